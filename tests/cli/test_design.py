"""``rfrope design``: what it makes, what it says of it, and what it writes."""

import os
import re
from unittest.mock import Mock

import numpy as np
import pytest
from campaign import campaign, sparse
from conftest import rows

import rfrope
from rfrope import storage
from rfrope.designs import sampling

SMALL = ["--head-dim", "32", "--context", "256"]
DESIGNS = [name for name in (*sampling.names(), "auto") if name != "orthogonal"]


@pytest.fixture
def designed(says):
    """``designed(arguments)``: what ``rfrope design --json`` holds."""
    return lambda *arguments: says("design", *arguments, "--json")


LAGS = {1: np.arange(256)[:, None]}
LAGS[2] = np.asarray([(i, j) for i in range(32) for j in range(-15, 16) if (i, j) >= (0, 0)])  # one of each pair


def check(held, laws, omega):
    """Errors and wavelengths of heads against plain sums over all lags."""
    sups, lags = [], LAGS[laws[0].ndim]
    for head, law, one in zip(held["heads"], laws, omega, strict=True):
        error = np.abs(rfrope.analysis.mean_kernel(lags, one) - law(np.squeeze(lags)))
        waves = 2 * np.pi / np.linalg.norm(one.astype(float), axis=-1)
        wanted = np.sqrt(np.mean(error**2)), np.max(error), waves.min(), waves.max()
        assert [head[name] for name in ("rms", "sup", "shortest", "longest")] == pytest.approx(wanted, rel=1e-6)
        assert (head["kernel"], head["sup_lag"]) == (repr(law), lags[np.argmax(error)].tolist())
        sups.append(np.max(error))
    if len(omega) > 1:
        assert (held["worst"], held["mean"]["sup"]) == (np.argmax(sups), pytest.approx(np.mean(sups)))


@pytest.mark.parametrize(
    ("kernels", "given"),
    rows("cli/design.json", "designs"),
    ids=["several heads", "a kernel for each head", "two axes"],
)
def test_designs_of_heads_and_axes(designed, tmp_path, kernels, given):
    laws, options = [*map(rfrope.kernels.parse, kernels)], [f"--{name}={value}" for name, value in given.items()]
    context = "32,16" if laws[0].ndim == 2 else "256"
    held = designed(*kernels, "--head-dim", 32, "--context", context, *options, "-o", tmp_path / "set.npz")
    omega = storage.load(tmp_path / "set.npz").frequencies
    law = laws if len(laws) > 1 else laws[0]
    assert np.array_equal(omega, rfrope.sample(law, 16, **{"rng": 0, "design": "auto"} | given))
    assert held["shape"] == [*omega.shape]
    check(held, laws * given.get("heads", 1), omega if omega.ndim == 3 else omega[None])


def test_a_ladder_and_a_context_for_both_axes(designed, says, tmp_path):
    designed("matern(nu=2.5)", *SMALL, "--heads", 4, "--ladder", "8:512", "-o", tmp_path / "set.npz")
    texts = storage.load(tmp_path / "set.npz").source.kernel
    assert [rfrope.kernels.parse(text).scale for text in texts] == [8.0, 32.0, 128.0, 512.0]
    assert "at lags up to 15, 15:" in says("design", "gaussian(ndim=2)", "--head-dim", 32, "--context", 16)


@pytest.mark.parametrize("design", sparse(DESIGNS, lambda design: design in ("auto", "balanced", "optimised")))
def test_design_writes_what_sample_gives_and_tells_its_error(designed, tmp_path, design):
    path = tmp_path / "set.npz"
    held = designed("gaussian(scale=16)", *SMALL, "--design", design.title(), "--seed", 3, "-o", path)
    kernel = rfrope.kernel("gaussian", scale=16.0)
    max_lag = 255 if design in ("balanced", "optimised") else None
    omega = rfrope.sample(kernel, 16, rng=3, design=design, max_lag=max_lag)
    loaded = storage.load(path)
    assert np.array_equal(loaded.frequencies, omega)
    check(held, [kernel], omega[None, :, None])
    resolved = "stratified" if design == "auto" else design
    assert (loaded.head_dim, loaded.context, loaded.pairing) == (32, 256, "half")
    error = {name: held["heads"][0][name] for name in ("rms", "sup")}
    source = {"kernel": "gaussian(scale=16.0)", "design": resolved, "error": error}
    source |= {} if design in ("quantile", "optimised") else {"seed": 3}
    source |= {"norm": "rms"} if design == "optimised" else {}
    assert loaded.source.to_dict() == source
    wanted = {"design": resolved, "seed": loaded.source.seed, "shape": [16]}
    assert held == held | wanted | {"output": str(path)}


@campaign
def test_a_long_context_is_judged_by_a_part_of_its_lags(designed):
    longer = designed("gaussian(scale=64)", "--head-dim", 8, "--context", 2**31)
    assert 0.0 < longer["heads"][0]["rms"] < longer["heads"][0]["sup"] < 1.0


def test_the_text_of_design_says_what_its_json_holds(run, designed, tmp_path):
    arguments = ["gaussian(scale=16)", *SMALL, "--heads", 3, "--seed", 2]
    _, text, _ = run("design", *arguments, "-o", tmp_path / "set.npz")
    held = designed(*arguments)
    worst, mean = held["heads"][held["worst"]], held["mean"]
    shape = "float64 (3, 16, 1), design stratified, seed 2.\n"
    first = f"rms error {worst['rms']:.3g}, largest {worst['sup']:.3g}, at lags up to 255, in the worst of 3 heads.\n"
    assert text.startswith(f"{first}Frequencies of gaussian(scale=16.0), radians per position: {shape}")
    assert text.endswith(f"\nWritten: {tmp_path / 'set.npz'}\n")
    wanted = [f"{held['worst']}, worst", f"{worst['rms']:.3g}", "gaussian(scale=16.0)", f"{worst['sup']:.3g}"]
    wanted += [str(worst["sup_lag"][0]), f"{worst['shortest']:.4g} to {worst['longest']:.4g}"]
    table = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    assert wanted in table
    assert ["mean", f"{mean['rms']:.3g}", f"{mean['sup']:.3g}"] in table


@campaign
def test_the_norm_of_an_optimised_design(run):
    optimised = ("design", "exponential(scale=24)", *SMALL, "--design", "optimised")
    assert "design optimised, norm sup.\n" in run(*optimised, "--norm", "sup")[1]


@pytest.mark.parametrize(("option", "suffix"), [("-o", "npz"), ("--html", "html")])
def test_files_are_refused_before_the_work(run, tmp_path, monkeypatch, option, suffix):
    monkeypatch.setattr(rfrope, "design", Mock(side_effect=AssertionError("work began")))
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"taken.{suffix}").write_text("precious")
    (tmp_path / f"folder.{suffix}").mkdir()
    refused = {f"taken.{suffix}": "--force", f"folder.{suffix}": "regular file", "set.txt": f".{suffix}"}
    refused[f"none/set.{suffix}"] = "No such file or directory"
    for path, told in refused.items():
        code, out, err = run("design", "gaussian", *SMALL, option, path)
        assert (code, out) == (2, "")
        assert f"{option} {path}: " in err
        assert told in err
    assert (tmp_path / f"taken.{suffix}").read_text() == "precious"
    assert sorted(os.listdir()) == [f"folder.{suffix}", f"taken.{suffix}"]


def test_the_same_seed_replaces_a_file_by_the_same(run, tmp_path):
    path, found = tmp_path / "set.npz", []
    path.write_text("old")
    for seed in (0, 0, 1):
        assert run("design", "gaussian", *SMALL, "--seed", seed, "-o", path, "--force")[0] == 0
        found.append(path.read_bytes())
    assert found[0] == found[1] != found[2]


def test_a_polar_design_has_a_frequency_for_each_magnitude(run, designed, tmp_path):
    path = tmp_path / "polar.npz"
    arguments = ["gaussian", "--head-dim", 9, "--context", 64, "--heads", 2, "--ladder", "2:16", "--polar", "--seed", 3]
    held = designed(*arguments, "-o", path)
    rope = storage.load(path)
    wanted = rfrope.design("gaussian", head_dim=9, context=64, heads=2, ladder=(2.0, 16.0), polar=True, rng=3)
    assert np.array_equal(rope.frequencies, wanted.frequencies)
    assert (rope.polar, rope.head_dim, held["polar"], held["shape"]) == (True, 9, True, [2, 9, 1])
    assert max(head["sup"] for head in held["heads"]) < 0.6
    out = run("design", *arguments)[1]
    assert "Frequencies of polar features, one for each magnitude, radians per position: float64 (2, 9, 1)" in out
    assert "of polar" not in run("design", "gaussian", *SMALL)[1]
    page = tmp_path / "polar.html"
    run("design", *arguments, "--html", page)
    assert "it is polar, and no engine supports polar attention" in page.read_text("utf-8")
