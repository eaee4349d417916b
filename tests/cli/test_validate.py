"""``rfrope validate``: its tables, its verdict, and vectors of one's own."""

import json
import os
import re

import numpy as np
import pytest

import rfrope
from rfrope import kernels
from rfrope.kernels import registry
from rfrope.kernels.families import Gaussian
from rfrope.validation import example_pairs

FAST = ["--samples", "4096", "--trials", "1024"]
COLUMNS = ["kernel", "lag", "quantity", "pair", "closed form", "estimate", "std. error", "z"]


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


def as_json(run, *arguments):
    return json.loads(run("validate", *arguments, *FAST, "--json")[1])


def test_the_summary_has_a_line_for_each_kernel_and_the_worst_rows(run, wrong_kernel):
    arguments = ["gaussian(scale=8)", "wrong(scale=8)"]
    code, out, _ = run("validate", *arguments, *FAST)
    held = as_json(run, *arguments)["results"]
    assert (code, [result["passed"] for result in held]) == (1, [True, False])
    _, summary, _, worst = out.split("\n\n")[:4]
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
    assert re.search(r"^FAILED: largest \|z\| [\d.]+ \(wrong\(scale=8.0\)", out, re.MULTILINE)


def test_the_text_says_what_the_json_holds(run):
    """Every number of the table and of the sentences below it, against all."""
    arguments = ["gaussian(scale=32)", "cauchy(scale=8)", "--seed", "11"]
    _, text, _ = run("validate", *arguments, *FAST)
    held = as_json(run, *arguments)["results"]
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
    _, head, _, *table = text.split("\n\n")[3].splitlines()
    assert re.split(r"\s{2,}", head.strip()) == COLUMNS
    shown = [re.split(r"\s{2,}", line) for line in table]
    assert shown == sorted(expected, key=lambda row: -abs(float(row[-1])))[:5]
    assert worst_signs == {True, False}, "a seed that shows both signs among the worst pairs"
    worst = max((result["worst"] for result in held), key=lambda row: abs(row["z"]))
    assert f"largest |z| {abs(worst['z']):.2f} " in text
    assert f"bound {min(result['bound'] for result in held):.2f} (Bonferroni, {2 * 95} tests, alpha 0.001)" in text
    assert "Vectors: 8 pairs, real q and k of SmolLM2-135M-Instruct, 32 blocks;" in text


def test_the_numbers_are_those_of_validate(run):
    held = as_json(run, "gaussian(scale=8)", "--seed", 3)
    result = rfrope.validate("gaussian(scale=8)", rng=3, n_samples=4096, n_trials=1024)
    assert held["results"] == [json.loads(json.dumps(result.to_dict()))]
    assert (held["passed"], held["alpha"], held["seed"]) == (True, 1e-3, 3)
    assert as_json(run, "gaussian(scale=8)", "--seed", 3) == held
    two = as_json(run, "gaussian", "cauchy", "--alpha", 0.02)
    assert two["alpha"] == 0.02
    assert [result["alpha"] for result in two["results"]] == [0.01, 0.01]


def test_without_names_all_of_the_registry_is_checked(run, wrong_kernel, monkeypatch):
    monkeypatch.setattr(registry, "_RECORDS", registry._RECORDS[-3:])
    passed = {result["kernel"]: result["passed"] for result in as_json(run)["results"]}
    assert passed == {record.example: record.name != "wrong" for record in kernels.records()}


def test_two_axes_and_few_trials(run, says):
    out = says("validate", "gaussian(scale=(3, 5), ndim=2)", *FAST)
    assert re.search(r"\(-[\d.]+, [\d.]+\)", out)
    for trials, told in ((999, True), (1000, False)):
        _, out, _ = run("validate", "gaussian", "--samples", 2000, "--trials", trials)
        assert ("fails more often than alpha" in out) == told


# -- vectors of one's own ----------------------------------------------------------------------------------------------


def test_qk(run, npz):
    q, k = example_pairs()
    (result,) = as_json(run, "gaussian", "--qk", npz(q=q[:3], k=k[:3]))["results"]
    wanted = rfrope.validate("gaussian", q=q[:3], k=k[:3], rng=0, n_samples=4096, n_trials=1024)
    assert result == json.loads(json.dumps(wanted.to_dict()))
    q, k = (v.astype(np.float32) for v in (q, k))
    path = npz(first_q=q[:2], first_k=k[:2], second_q=q[2:], second_k=k[2:], other=np.arange(3))
    assert as_json(run, "gaussian", "--qk", path)["results"] == as_json(run, "gaussian")["results"]


def test_qk_with_single_vectors_and_a_pairing(run, npz):
    path = npz(q=np.asarray([1.0, 2.0, 3.0, 4.0]), k=np.asarray([4.0, -3.0, 2.0, 1.0]))
    (result,) = as_json(run, "gaussian", "--qk", path, "--pairing", "interleaved")["results"]
    assert (result["n_pairs"], result["n_blocks"]) == (1, 2)
    assert as_json(run, "gaussian", "--qk", path)["results"] != [result]
    _, out, _ = run("validate", "gaussian", *FAST, "--qk", path)
    assert f"1 pairs, q and k of {path}, 2 blocks" in out


ONES, WIDE = np.ones((2, 4)), np.ones((2, 6))


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"a_q": ONES, "b_k": ONES},
        {"q": ONES, "k": np.ones((3, 4))},
        {"a_q": ONES, "a_k": ONES, "b_q": WIDE, "b_k": WIDE},
        {"q": np.ones((2, 2, 4)), "k": np.ones((2, 2, 4))},
        {"q": ONES[:0], "k": ONES[:0]},
        {"q": ONES[:, :3], "k": ONES[:, :3]},
        {"q": ONES * np.nan, "k": ONES},
        {"q": ONES.astype(int), "k": ONES.astype(int)},
        {"q": np.asarray(["a"]), "k": np.asarray(["c"])},
    ],
    ids=lambda arrays: ", ".join(f"{name} {value.dtype}{value.shape}" for name, value in arrays.items()),
)
def test_bad_arrays(run, npz, arrays):
    code, out, err = run("validate", "gaussian", *FAST, "--qk", npz(**arrays))
    assert (code, out) == (2, "")
    assert err.startswith("rfrope validate: error: ")


def test_pickled_objects_are_not_loaded(run, npz, tmp_path):
    class Loud:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "loaded"),))

    code, _, err = run("validate", "gaussian", "--qk", npz(q=np.asarray([Loud()], dtype=object), k=np.ones((1, 4))))
    assert code == 2
    assert "pickled objects are never loaded" in err
    assert not (tmp_path / "loaded").exists()
