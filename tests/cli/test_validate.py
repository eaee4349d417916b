"""``rfrope validate``: its tables, its verdict, vectors of one's own, and what it refuses."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import textwrap

import numpy as np
import pytest

import rfrope
from rfrope import kernels
from rfrope.kernels import registry
from rfrope.kernels.families import Gaussian
from rfrope.validation import example_pairs

FAST = ["--samples", "4096", "--trials", "1024"]
COLUMNS = ["kernel", "lag", "quantity", "pair", "closed form", "estimate", "std. error", "z"]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "command_line.rst"
ONES = np.ones((2, 4))
BAD_ARRAYS = {
    "no pair": {"a": ONES, "b": ONES},
    "q of one head and k of another": {"a_q": ONES, "b_k": ONES},
    "nothing": {},
    "lengths differ": {"q": ONES, "k": np.ones((3, 4))},
    "heads of two widths": {"a_q": ONES, "a_k": ONES, "b_q": np.ones((2, 6)), "b_k": np.ones((2, 6))},
    "three axes": {"q": np.ones((2, 2, 4)), "k": np.ones((2, 2, 4))},
    "no rows": {"q": np.ones((0, 4)), "k": np.ones((0, 4))},
    "odd width": {"q": np.ones((2, 3)), "k": np.ones((2, 3))},
    "NaN": {"q": np.full((2, 4), np.nan), "k": ONES},
    "integers": {"q": np.ones((2, 4), int), "k": np.ones((2, 4), int)},
    "text": {"q": np.asarray(["a", "b"]), "k": np.asarray(["c", "d"])},
}
BAD_ARGUMENTS = [
    (["gausian"], "gausian"),
    (["gaussian(scale=-1)"], "scale is -1"),
    (["gaussian(width=1)"], "width"),
    (["gaussian(scale="], "cannot read kernel"),
    (["gaussian; cauchy"], "cannot read kernel"),
    ([""], "cannot read kernel"),
    (["gaussian", "--samples", "-5"], "argument --samples: -5 is below 2"),
    (["gaussian", "--samples", "5000000000"], "argument --samples: 5000000000 is above 2**32 - 1"),
    (["gaussian", "--trials", "3"], "argument --trials: 3 is below 4"),
    (["gaussian", "--blocks", "33"], "n_blocks is 33"),
    (["gaussian", "--blocks", "0"], "argument --blocks: 0 is below 1"),
    (["gaussian", "--alpha", "1"], "alpha"),
    (["gaussian", "--alpha", "nan"], "alpha"),
    (["gaussian", "--seed", "-1"], "argument --seed: -1 is below 0"),
    (["gaussian", "--pairing", "halves"], "--pairing"),
]


class WrongGaussian(Gaussian):
    """Draws frequencies that are two times too large."""

    name = "wrong"

    def _unit_transport(self, u):
        return 2.0 * super()._unit_transport(u)


@pytest.fixture
def wrong_kernel(monkeypatch):
    record = registry.Record("wrong", WrongGaussian, "exp(-r^2)", "normal", "any k", "wrong(scale=8.0)")
    monkeypatch.setattr(registry, "_RECORDS", [*registry._RECORDS, record])


@pytest.fixture
def npz(tmp_path):
    """``npz(name=array, ...)`` writes a file and returns its path."""

    def write(**arrays):
        path = tmp_path / "vectors.npz"
        np.savez(path, **arrays)
        return path

    return write


def assert_refused(result, *told):
    code, out, err = result
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for text in told:
        assert text in err


def test_the_summary_has_a_line_for_each_kernel_and_the_worst_rows(run, wrong_kernel):
    arguments = ["validate", "gaussian(scale=8)", "wrong(scale=8)", *FAST]
    code, out, _ = run(*arguments)
    assert code == 1
    held = json.loads(run(*arguments, "--json")[1])["results"]
    summary, _, worst = out.split("\n\n")[:3]
    for line, result in zip(summary.splitlines()[2:], held, strict=True):
        cells = re.split(r"\s{2,}", line)
        largest = result["worst"]
        where = f"{largest['quantity']}, lag {largest['lag'][0]:.4g}"
        size = [f"{abs(largest['z']):.2f}", where, f"{result['spread'][2]:.2g}x"]
        assert cells == [result["kernel"], "passed" if result["passed"] else "FAILED", "95", *size]
    rows = worst.splitlines()[3:]
    assert len(rows) == 5
    assert all(row.startswith("wrong(") for row in rows)
    z = [abs(float(row.split()[-1])) for row in rows]
    assert z == sorted(z, reverse=True)
    assert z[0] == pytest.approx(abs(held[1]["worst"]["z"]), abs=5e-3)
    assert len(out.splitlines()) < 24
    assert re.search(r"FAILED: largest \|z\| [\d.]+ \(wrong\(scale=8.0\)", out)


def test_the_text_says_what_the_json_holds(run):
    """Every number of the table and of the sentences below it, against the full list."""
    arguments = ["gaussian(scale=32)", "cauchy(scale=8)", *FAST, "--seed", "11", "--blocks", "24"]
    _, text, _ = run("validate", *arguments, "--full")
    held = json.loads(run("validate", *arguments, "--json")[1])["results"]
    expected, worst_signs = [], set()
    for result in held:
        groups: dict = {}
        for row in result["rows"]:
            groups.setdefault((row["lag"][0], row["quantity"]), []).append(row)
        for (lag, quantity), rows in groups.items():
            worst = max(rows, key=lambda row: abs(row["z"]))
            if len(rows) > 1:
                worst_signs.add(worst["z"] > 0)
            pair = [] if worst["pair"] is None else [str(worst["pair"])]
            numbers = [f"{worst['closed_form']:.6g}", f"{worst['estimate']:.6g}", f"{worst['stderr']:.2g}"]
            expected.append([result["kernel"], f"{lag:.4g}", quantity, *pair, *numbers, f"{worst['z']:+.2f}"])
    head, rule, *_ = text.splitlines()
    assert re.split(r"\s{2,}", head.strip()) == COLUMNS
    assert set(rule) == {"-", " "}
    table = [re.split(r"\s{2,}", line) for line in text.splitlines() if line.startswith(("gaussian", "cauchy"))]
    assert table == expected
    assert worst_signs == {True, False}, "a seed that shows both signs among the worst pairs"
    for result in held:
        told = ", ".join(
            f"{s:.2g}x at lag {lag[0]:.4g}" for s, lag in zip(result["spread"], result["lags"], strict=True)
        )
        assert f"  {result['kernel']}: {told}\n" in text
    worst = max((result["worst"] for result in held), key=lambda row: abs(row["z"]))
    assert f"largest |z| {abs(worst['z']):.2f} " in text
    assert f"bound {min(result['bound'] for result in held):.2f} (Bonferroni, {2 * 95} tests, alpha 0.001)" in text
    assert "Vectors: 8 pairs" in text
    assert ", 24 blocks;" in text


def test_the_numbers_are_those_of_validate(run):
    _, out, _ = run("validate", "gaussian(scale=8)", "--seed", 3, *FAST, "--json")
    held = json.loads(out)
    result = rfrope.validate("gaussian(scale=8)", rng=3, n_samples=4096, n_trials=1024)
    assert held["results"] == [json.loads(json.dumps(result.to_dict()))]
    assert (held["passed"], held["alpha"], held["seed"]) == (True, 1e-3, 3)


def test_alpha_is_shared_among_the_kernels(run):
    _, out, _ = run("validate", "gaussian", "cauchy", "--alpha", 0.02, *FAST, "--json")
    held = json.loads(out)
    assert held["alpha"] == 0.02
    assert [result["alpha"] for result in held["results"]] == [0.01, 0.01]


def test_one_seed_one_output(run):
    outputs = [run("validate", "gaussian", "--seed", seed, *FAST) for seed in (1, 1, 2)]
    assert outputs[0] == outputs[1]
    assert outputs[0][1] != outputs[2][1]
    assert run("validate", "gaussian", *FAST) == run("validate", "gaussian", "--seed", 0, *FAST)


def test_samples_trials_and_blocks(run):
    _, out, _ = run("validate", "gaussian", "--samples", 1000, "--trials", 500, "--blocks", 3, "--json")
    (result,) = json.loads(out)["results"]
    assert (result["n_samples"], result["n_trials"], result["n_blocks"]) == (1000, 500, 3)


def test_a_wrong_kernel_in_the_registry_is_found_without_naming_it(run, wrong_kernel):
    code, out, _ = run("validate", *FAST, "--json")
    held = json.loads(out)
    assert code == 1
    assert held["passed"] is False
    assert {r["kernel"]: r["passed"] for r in held["results"]} == {
        record.example: record.name != "wrong" for record in kernels.records()
    }


def test_kernels_of_two_axes_print_their_lags_in_brackets(run):
    code, out, _ = run("validate", "gaussian(scale=(3, 5), ndim=2)", *FAST)
    assert code == 0
    assert re.search(r"\(-[\d.]+, [\d.]+\)", out)


def test_few_trials_are_told(run):
    code, out, _ = run("validate", "gaussian", "--samples", "2000", "--trials", "999")
    assert "fails more often than alpha" in out
    assert code in (0, 1)
    assert "fails more often" not in run("validate", "gaussian", "--samples", "2000", "--trials", "1000")[1]


# -- vectors of one's own ----------------------------------------------------------------------------------------------


def test_qk(run, npz):
    q, k = example_pairs()
    code, out, err = run("validate", "gaussian", *FAST, "--json", "--qk", npz(q=q[:3], k=k[:3]))
    assert (code, err) == (0, "")
    (result,) = json.loads(out)["results"]
    assert result == json.loads(
        json.dumps(rfrope.validate("gaussian", q=q[:3], k=k[:3], rng=0, n_samples=4096, n_trials=1024).to_dict())
    )


def test_qk_with_named_heads(run, npz):
    q, k = (v.astype(np.float32) for v in example_pairs())
    path = npz(first_q=q[:2], first_k=k[:2], second_q=q[2:], second_k=k[2:], other=np.arange(3))
    _, out, _ = run("validate", "gaussian", *FAST, "--json", "--qk", path)
    _, default, _ = run("validate", "gaussian", *FAST, "--json")
    assert json.loads(out)["results"] == json.loads(default)["results"]


def test_qk_with_single_vectors_and_a_pairing(run, npz):
    path = npz(q=np.asarray([1.0, 2.0, 3.0, 4.0]), k=np.asarray([4.0, -3.0, 2.0, 1.0]))
    _, out, _ = run("validate", "gaussian", *FAST, "--json", "--qk", path, "--pairing", "interleaved")
    (result,) = json.loads(out)["results"]
    assert (result["n_pairs"], result["n_blocks"]) == (1, 2)
    assert run("validate", "gaussian", *FAST, "--json", "--qk", path)[1] != out
    _, out, _ = run("validate", "gaussian", *FAST, "--qk", path)
    assert str(path) in out
    assert "SmolLM2" not in out


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(run, npz, case):
    assert_refused(run("validate", "gaussian", *FAST, "--qk", npz(**BAD_ARRAYS[case])), "rfrope validate: error: ")


BROKEN = {
    "text": lambda good: b"hello",
    "cut off": lambda good: good[: len(good) // 2],
    "a changed byte": lambda good: good.replace(np.float64(2.5).tobytes(), np.float64(2.75).tobytes(), 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_not_npz(run, npz, case):
    path = npz(q=np.full((2, 4), 2.5), k=np.full((2, 4), 2.5))
    path.write_bytes(BROKEN[case](path.read_bytes()))
    assert_refused(run("validate", "gaussian", *FAST, "--qk", path), "--qk", str(path), "not an .npz file")
    assert_refused(run("validate", "gaussian", "--qk", path.parent), "--qk")
    assert_refused(run("validate", "gaussian", "--qk", path.parent / "none.npz"), "none.npz: no such file")


def test_pickled_objects_are_not_loaded(run, npz, tmp_path):
    class Loud:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "loaded"),))

    path = npz(q=np.asarray([Loud()], dtype=object), k=np.ones((1, 4)))
    assert_refused(run("validate", "gaussian", "--qk", path), "--qk", "not an .npz file of plain numeric arrays")
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize(("arguments", "told"), BAD_ARGUMENTS, ids=[" ".join(a) or "empty" for a, _ in BAD_ARGUMENTS])
def test_bad_arguments(run, arguments, told):
    quick = [] if "--samples" in arguments else ["--samples", "256"]
    quick += [] if "--trials" in arguments else ["--trials", "64"]
    assert_refused(run("validate", *arguments, *quick), told)


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_the_outputs_of_validate_and_kernels_on_the_documentation_page(run):
    shown = re.findall(
        r"^    \$ rfrope ((?:validate|kernels) .*)\n((?:    .*\n|\n)+)", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert len(shown) == 2
    for command, block in shown:
        code, out, _ = run(*shlex.split(command))
        assert code == 0
        assert out.strip() == textwrap.dedent(block).strip()
