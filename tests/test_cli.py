"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import types

import numpy as np
import pytest
from campaign import HANGS, campaign, sparse

import rfrope
from rfrope import cli, kernels, storage
from rfrope.cli import compare, main, shared
from rfrope.designs import errors, sampling
from rfrope.kernels import registry
from rfrope.kernels.families import Gaussian
from rfrope.validation import example_pairs

FAST = ["--samples", "4096", "--trials", "1024"]
COMMANDS = ("validate", "design", "inspect", "export", "compare", "audit", "kernels", "doctor")
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


def program(*arguments, **environment):
    """Run ``python -m rfrope`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "rfrope", *arguments],
        capture_output=True,
        env=os.environ | environment,
        timeout=HANGS,
    )


@pytest.mark.parametrize("command", [["inspect"], ["plan", "--context", 99], ["export", "--to", "vllm"]])
def test_a_path_where_nothing_lies(run, command):
    for source, read in (("meta-llama/Llama-3.1-8B", rfrope.from_config), ("none.npz", rfrope.load)):
        with pytest.raises(FileNotFoundError, match=f"^{source}: there is no such file.*; expected") as caught:
            read(source)
        assert run(*command, source) == (2, "", f"rfrope {command[0]}: error: {caught.value}\n")


def test_a_model_that_is_not_there_is_named(run, tmp_path):
    source = tmp_path / "rope.npz"
    rfrope.save(source, rfrope.Rope(np.ones(4), context=8))
    for engine, name in (("vllm", "new.json"), ("llama.cpp", "new.gguf")):
        if engine == "llama.cpp":
            pytest.importorskip("gguf", reason="gguf is not installed")
        code, _, err = run("export", source, "--to", engine, "-o", tmp_path / name, "--model", tmp_path / "none")
        assert code == 2
        assert f"{tmp_path / 'none'}: " in err
        assert "Errno" not in err


# -- as a program ------------------------------------------------------------------------------------------------------


@campaign
def test_python_m_rfrope_validate():
    done = program("validate", PYTHONIOENCODING="utf-8")
    out = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    for record in kernels.records():
        assert record.example in out
    assert "PASSED" in out
    assert "SmolLM2" in out


def test_the_console_script_is_main():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="rfrope")
    assert script.load() is main


def test_the_console_script_runs():
    path = os.path.join(os.path.dirname(sys.executable), "rfrope")
    if not os.path.exists(path):
        pytest.skip("rfrope is not installed beside this interpreter, so there is no script to start")
    done = subprocess.run([path, "validate", "gaussian", *FAST], capture_output=True, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, b"")


def test_python_m_rfrope_kernels():
    done = program("kernels", PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stderr) == (0, b"")
    for record in kernels.records():
        assert record.formula in done.stdout.decode()


def test_exit_codes_leave_the_process():
    done = program("validate", "gausian")
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"gausian" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    sparse([["validate", "gaussian", *FAST], ["kernels"], ["validate", "--help"]], lambda c: c == ["kernels"]),
)
def test_a_terminal_without_greek_letters(command):
    done = program(*command, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii")


def test_json_stays_readable_without_greek_letters():
    done = program("validate", "gaussian", *FAST, "--json", PYTHONIOENCODING="ascii")
    rows = json.loads(done.stdout)["results"][0]["rows"]
    assert {row["quantity"] for row in rows} == {"Φ", "Φ₂", "E sin", "E S", "Var S"}


@pytest.mark.parametrize(
    "command", sparse([["kernels"], ["validate", "gaussian", *FAST, "--json"]], lambda c: len(c) == 1)
)
def test_a_reader_that_leaves_is_no_error(command):
    process = subprocess.Popen(
        [sys.executable, "-m", "rfrope", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=HANGS) == 0
    assert errors == b""


# -- validate ----------------------------------------------------------------------------------------------------------


def test_the_table_has_its_columns_and_a_row_for_each_comparison(run):
    code, out, err = run("validate", "gaussian(scale=8)", "cauchy", *FAST, "--full")
    assert (code, err) == (0, "")
    head, rule, *body = out.split("\n\n")[0].splitlines()
    assert re.split(r"\s{2,}", head.strip()) == COLUMNS
    assert set(rule) == {"-", " "}
    assert len(body) == 2 * 5 * 5  # kernels, lags, quantities
    quantities = {re.split(r"\s{2,}", line.strip())[2] for line in body}
    assert quantities == {"Φ", "Φ₂", "E sin", "E S", "Var S"}
    assert {line.split("  ")[0] for line in body} == {"gaussian(scale=8.0)", "cauchy(scale=1.0)"}
    for line in body:
        float(line.split()[-1])


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


def test_colours_on_a_terminal_alone(run, monkeypatch):
    arguments = ["validate", "gaussian(scale=8)", *FAST]
    assert "\x1b" not in run(*arguments)[1]
    monkeypatch.setattr(shared, "on_a_terminal", lambda: True)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b[1;32mPASSED\x1b[0m: largest" in run(*arguments)[1]
    assert "\x1b" not in run(*arguments, "--json")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run(*arguments)[1]


def test_completion(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert_refused(run("--print-completion", "bash"), "pip install 'rfrope[completion]'")
    monkeypatch.undo()
    pytest.importorskip("shtab", reason="shtab is not installed")
    code, out, _ = run("--print-completion", "bash")
    assert code == 0
    assert all(name in out for name in COMMANDS)
    assert "--head-dim" in out


def test_it_says_how_large_the_deviation_is_against_the_mean(run):
    _, out, _ = run("validate", "gaussian(scale=8)", "cauchy", *FAST, "--full")
    text = out.split("\n\n")[1]
    assert "standard deviation" in text
    assert "mean" in text
    for law in ("gaussian(scale=8.0)", "cauchy(scale=1.0)"):
        (line,) = [line for line in text.splitlines() if line.strip().startswith(law)]
        assert len(re.findall(r"[\d.e+]+x at lag -[\d.]+", line)) == 5


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


def test_all_registered_kernels_unless_named(run):
    _, out, _ = run("validate", *FAST, "--json")
    assert [r["kernel"] for r in json.loads(out)["results"]] == [record.example for record in kernels.records()]


def test_one_seed_one_output(run):
    outputs = [run("validate", "gaussian", "--seed", seed, *FAST) for seed in (1, 1, 2)]
    assert outputs[0] == outputs[1]
    assert outputs[0][1] != outputs[2][1]
    assert run("validate", "gaussian", *FAST) == run("validate", "gaussian", "--seed", 0, *FAST)


def test_samples_trials_and_blocks(run):
    _, out, _ = run("validate", "gaussian", "--samples", 1000, "--trials", 500, "--blocks", 3, "--json")
    (result,) = json.loads(out)["results"]
    assert (result["n_samples"], result["n_trials"], result["n_blocks"]) == (1000, 500, 3)


def test_a_wrong_kernel_gives_exit_code_1(run, wrong_kernel):
    code, out, err = run("validate", "gaussian", "wrong(scale=8)", *FAST)
    assert (code, err) == (1, "")
    assert "FAILED" in out
    assert "PASSED" not in out
    assert re.search(r"FAILED: largest \|z\| [\d.]+ \(wrong\(scale=8.0\)", out)


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


# -- your own vectors --------------------------------------------------------------------------------------------------


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
    _, half, _ = run("validate", "gaussian", *FAST, "--json", "--qk", path)
    assert half != out


def test_qk_names_the_file_in_the_table(run, npz):
    path = npz(q=np.ones((1, 4)), k=np.ones((1, 4)))
    _, out, _ = run("validate", "gaussian", *FAST, "--qk", path)
    assert str(path) in out
    assert "SmolLM2" not in out


def test_qk_with_an_empty_vector(run, npz):
    code, _, _ = run("validate", "gaussian", *FAST, "--qk", npz(q=np.zeros((1, 4)), k=np.ones((1, 4))))
    assert code == 0


ONES = np.ones((2, 4))
BAD_ARRAYS = {
    "no pair": {"a": ONES, "b": ONES},
    "q alone": {"q": ONES},
    "q of one head and k of another": {"a_q": ONES, "b_k": ONES},
    "nothing": {},
    "lengths differ": {"q": ONES, "k": np.ones((3, 4))},
    "widths differ": {"q": ONES, "k": np.ones((2, 6))},
    "heads of two widths": {"a_q": ONES, "a_k": ONES, "b_q": np.ones((2, 6)), "b_k": np.ones((2, 6))},
    "three axes": {"q": np.ones((2, 2, 4)), "k": np.ones((2, 2, 4))},
    "no rows": {"q": np.ones((0, 4)), "k": np.ones((0, 4))},
    "odd width": {"q": np.ones((2, 3)), "k": np.ones((2, 3))},
    "NaN": {"q": np.full((2, 4), np.nan), "k": ONES},
    "infinity": {"q": ONES, "k": np.full((2, 4), np.inf)},
    "integers": {"q": np.ones((2, 4), int), "k": np.ones((2, 4), int)},
    "complex": {"q": ONES + 1j, "k": ONES + 1j},
    "text": {"q": np.asarray(["a", "b"]), "k": np.asarray(["c", "d"])},
}


def assert_refused(result, *told):
    code, out, err = result
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    for text in told:
        assert text in err


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(run, npz, case):
    assert_refused(run("validate", "gaussian", *FAST, "--qk", npz(**BAD_ARRAYS[case])), "rfrope validate: error: ")


def test_a_missing_file(run, tmp_path):
    assert_refused(run("validate", "gaussian", "--qk", tmp_path / "none.npz"), "none.npz: no such file")


def test_a_folder(run, tmp_path):
    assert_refused(run("validate", "gaussian", "--qk", tmp_path), "--qk")


def test_pickled_objects_are_not_loaded(run, npz, tmp_path):
    class Loud:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "loaded"),))

    path = npz(q=np.asarray([Loud()], dtype=object), k=np.ones((1, 4)))
    assert_refused(run("validate", "gaussian", "--qk", path), "--qk", "not an .npz file of plain numeric arrays")
    assert not (tmp_path / "loaded").exists()


BROKEN = {
    "text": lambda good: b"hello",
    "nothing": lambda good: b"",
    "a zip's first bytes": lambda good: b"PK\x03\x04 and no more",
    "cut off": lambda good: good[: len(good) // 2],
    "a changed byte": lambda good: good.replace(np.float64(2.5).tobytes(), np.float64(2.75).tobytes(), 1),
    "a pickle": lambda good: b"\x80\x04N.",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_not_npz(run, npz, case):
    path = npz(q=np.full((2, 4), 2.5), k=np.full((2, 4), 2.5))
    good = path.read_bytes()
    path.write_bytes(BROKEN[case](good))
    assert path.read_bytes() != good
    assert_refused(run("validate", "gaussian", *FAST, "--qk", path), "--qk", str(path))


def test_a_single_array_is_not_npz(run, tmp_path):
    np.save(tmp_path / "one.npy", np.ones((2, 4)))
    assert_refused(run("validate", "gaussian", "--qk", tmp_path / "one.npy"), "not an .npz file")


# -- design ------------------------------------------------------------------------------------------------------------

SMALL = ["--head-dim", "32", "--context", "256"]


def designed(run, *arguments):
    code, out, err = run("design", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def errors_of(kernel, omega, context):
    return rfrope.analysis.mean_kernel(np.arange(context), omega) - kernel(np.arange(context))


@pytest.mark.parametrize("design", [name for name in sampling.DESIGNS if name != "orthogonal"])
def test_design_writes_what_sample_gives_and_tells_its_error(run, tmp_path, design):
    path = tmp_path / "set.npz"
    held = designed(run, "gaussian(scale=16)", *SMALL, "--design", design, "--seed", 3, "-o", path)
    kernel, more = (
        rfrope.kernel("gaussian", scale=16.0),
        {"max_lag": 255} if design in ("balanced", "optimised") else {},
    )
    omega = rfrope.sample(kernel, 16, rng=3, design=design, **more)
    loaded = storage.load(path)
    assert np.array_equal(loaded.frequencies, omega)
    error = np.abs(errors_of(kernel, omega, 256))
    (head,) = held["heads"]
    assert head["rms"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)
    assert (head["sup"], head["sup_lag"]) == (pytest.approx(np.max(error), rel=1e-6), [int(np.argmax(error))])
    assert head["shortest"] == pytest.approx(2 * np.pi / np.max(np.abs(omega)))
    assert head["longest"] == pytest.approx(2 * np.pi / np.min(np.abs(omega)))
    resolved = "stratified" if design == "auto" else design
    assert (loaded.head_dim, loaded.context, loaded.pairing) == (32, 256, "half")
    assert loaded.source.to_dict() == {
        "kernel": "gaussian(scale=16.0)", "design": resolved,
        "error": {"rms": head["rms"], "sup": head["sup"]},
    } | ({"lower_bound": 0.0, "norm": "rms"} if design == "optimised" else {}) | (
        {} if design in ("quantile", "optimised") else {"seed": 3}
    )  # fmt: skip
    assert {name: held[name] for name in ("design", "seed", "shape", "dtype", "output", "plot")} == {
        "design": resolved, "seed": loaded.source.seed, "shape": [16], "dtype": "float64",
        "output": str(path), "plot": None,
    }  # fmt: skip


def test_a_design_is_found_in_any_spelling(run):
    told = [run("design", "gaussian", *SMALL, "--design", design) for design in ("Quantile", "quantile")]
    assert told[0] == told[1]
    assert told[0][0] == 0
    wrong = run("design", "gaussian", *SMALL, "--design", "Optimized")
    assert_refused(wrong, "argument --design: 'Optimized' is unknown; did you mean 'optimised'? Expected one of 'iid'")


def test_design_tells_bands_and_bounds(run):
    held = designed(run, "cauchy(scale=24)", *SMALL)
    kernel = rfrope.kernel("cauchy", scale=24.0)
    omega = rfrope.sample(kernel, 16, rng=0, design="auto")
    lags = [at["lag"][0] for at in held["lags"]]
    assert (lags[0], lags[-1], lags) == (0, 255, sorted(set(lags)))
    for at, lag in zip(held["lags"], lags, strict=True):
        assert at["phi"] == pytest.approx(kernel(lag))
        assert at["mean_kernel"] == pytest.approx(np.mean(np.cos(lag * omega)))
        assert at["stderr"] == pytest.approx(((0.5 * (1 + kernel.phi2(lag)) - kernel(lag) ** 2) / 16) ** 0.5)
    assert held["confidence"] == 0.95
    sup = held["heads"][0]["sup"]
    assert held["blocks"] == rfrope.moments.blocks_for_error(kernel, max_lag=255, error=sup)
    assert rfrope.moments.blocks_for_error(kernel, max_lag=255, error=held["bound"] * 1.000001) == 16
    assert rfrope.moments.blocks_for_error(kernel, max_lag=255, error=held["bound"] * 0.999999) == 17


def test_design_of_several_heads(run, tmp_path):
    path = tmp_path / "set.npz"
    held = designed(run, "matern(nu=1.5, scale=16)", *SMALL, "--heads", 5, "--dtype", "float32", "-o", path)
    kernel = rfrope.kernel("matern", nu=1.5, scale=16.0)
    omega = storage.load(path).frequencies
    assert (omega.shape, omega.dtype) == ((5, 16, 1), np.float32)
    assert np.array_equal(omega, rfrope.sample(kernel, 16, rng=0, design="auto", heads=5, dtype="float32"))
    sups = [np.max(np.abs(errors_of(kernel, one[:, 0], 256))) for one in omega]
    assert [head["sup"] for head in held["heads"]] == pytest.approx(sups, rel=1e-6)
    assert held["worst"] == int(np.argmax(sups))
    assert held["mean"]["sup"] == pytest.approx(np.mean(sups))
    at = held["lags"][3]
    assert at["mean_kernel"] == pytest.approx(np.mean(np.cos(at["lag"][0] * omega[held["worst"], :, 0].astype(float))))


def test_deterministic_heads_are_all_told(run):
    held = designed(run, "gaussian(scale=16)", *SMALL, "--heads", 3, "--design", "quantile")
    assert held["heads"] == [held["heads"][0]] * 3
    assert (held["shape"], held["worst"]) == ([3, 16, 1], 0)


def test_a_kernel_for_each_head(run, tmp_path):
    path = tmp_path / "set.npz"
    held = designed(run, "cauchy(scale=64)", "gaussian(scale=4)", *SMALL, "-o", path)
    laws = [rfrope.kernel("cauchy", scale=64.0), rfrope.kernel("gaussian", scale=4.0)]
    assert np.array_equal(storage.load(path).frequencies, rfrope.sample(laws, 16, rng=0, design="auto"))
    assert storage.load(path).source.kernel == [*map(repr, laws)] == [head["kernel"] for head in held["heads"]]
    for head, law, omega in zip(held["heads"], laws, storage.load(path).frequencies, strict=True):
        assert head["sup"] == pytest.approx(np.max(np.abs(errors_of(law, omega[:, 0], 256))), rel=1e-6)
    assert held["worst"] == 1
    assert [at["phi"] for at in held["lags"]] == pytest.approx([laws[1](at["lag"][0]) for at in held["lags"]])
    code, out, _ = run("design", "cauchy(scale=64)", "gaussian(scale=4)", *SMALL)
    assert code == 0
    assert out.count("gaussian(scale=4.0)") + out.count("cauchy(scale=64.0)") == 3  # a row each, and the worst's lags


def test_a_ladder_of_scales(run, tmp_path):
    path = tmp_path / "set.npz"
    designed(run, "matern(nu=2.5)", *SMALL, "--heads", 4, "--ladder", "8:512", "--design", "quantile", "-o", path)
    loaded = storage.load(path)
    laws = [rfrope.kernels.parse(text) for text in loaded.source.kernel]
    assert laws == [rfrope.kernel("matern", nu=2.5, scale=s) for s in (8.0, 32.0, 128.0, 512.0)]
    assert np.array_equal(loaded.frequencies, rfrope.sample(laws, 16, design="quantile"))


def test_a_design_in_two_axes(run, tmp_path):
    path = tmp_path / "set.npz"
    text = "gaussian(scale=(8, 4), ndim=2)"
    held = designed(run, text, "--head-dim", 32, "--context", "32,16", "--design", "orthogonal", "-o", path)
    law, omega = rfrope.kernels.parse(text), storage.load(path).frequencies
    assert np.array_equal(omega, rfrope.sample(law, 16, rng=0, design="orthogonal"))
    box = [(i, j) for i in range(-31, 32) for j in range(-15, 16)]
    lags = np.asarray([lag for lag in box if lag >= (0, 0)])  # one of each pair
    error = np.abs(rfrope.analysis.mean_kernel(lags, omega) - law(lags))
    (head,) = held["heads"]
    assert head["sup"] == pytest.approx(np.max(error))
    assert head["rms"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert head["shortest"] == pytest.approx(2 * np.pi / np.max(np.linalg.norm(omega, axis=-1)))
    assert held["context"] == [32, 16]
    assert held["lags"][-1]["lag"] == [31, 15]
    one = designed(run, text, "--head-dim", 32, "--context", "16")
    assert one["context"] == [16, 16]
    assert "lags up to (15, 15) in size on every axis" in run("design", text, "--head-dim", 32, "--context", 16)[1]


def test_long_contexts_are_judged_in_pieces(run, monkeypatch):
    whole = designed(run, "gaussian(scale=16)", "--head-dim", 16, "--context", 5000)
    monkeypatch.setattr(errors, "_CHUNK", 512)
    pieces = designed(run, "gaussian(scale=16)", "--head-dim", 16, "--context", 5000)
    for name in ("rms", "sup"):
        assert pieces["heads"][0][name] == pytest.approx(whole["heads"][0][name], rel=1e-6)
    assert pieces["heads"][0]["sup_lag"] == whole["heads"][0]["sup_lag"]


def test_the_text_of_design_says_what_its_json_holds(run, tmp_path):
    arguments = ["gaussian(scale=16)", *SMALL, "--heads", 3, "--seed", 2]
    _, text, _ = run("design", *arguments, "-o", tmp_path / "set.npz")
    held = designed(run, *arguments)
    worst, mean = held["heads"][held["worst"]], held["mean"]
    assert text.startswith(
        "3 heads of 16 frequencies, radians per position: float64 (3, 16, 1), design stratified, seed 2.\n"
        f"Written: {tmp_path / 'set.npz'}\n"
    )
    assert "over lags 0 to 255:" in text
    wanted = [f"{held['worst']}, worst", f"{worst['rms']:.3g}", "gaussian(scale=16.0)", f"{worst['sup']:.3g}"]
    wanted += [str(worst["sup_lag"][0]), f"{worst['shortest']:.4g} to {worst['longest']:.4g}"]
    table = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    assert wanted in table
    assert ["mean", f"{mean['rms']:.3g}", f"{mean['sup']:.3g}"] in table
    for at in held["lags"]:
        phi, value = at["phi"], at["mean_kernel"]
        row = [
            str(at["lag"][0]),
            f"{phi:.4f}",
            f"{value:.4f}",
            f"{value - phi:+.4f}",
            f"{phi:.4f} ± {at['stderr']:.4f}",
        ]
        assert row in table
    assert f"16 independent draws stay within {held['bound']:.3g} of Φ at all lags with 95% certainty" in text
    assert f"to stay within {worst['sup']:.3g}, as here, it asks for {held['blocks']} of them." in text


def test_a_design_that_is_not_written_says_so(run):
    _, out, _ = run("design", "gaussian(scale=16)", *SMALL)
    assert "not written: -o FILE.npz" in out
    assert out.startswith("16 frequencies, radians per position: float64 (16,), design stratified, seed 0.")
    assert "\nmean" not in out
    assert "seed" not in run("design", "gaussian", *SMALL, "--design", "quantile")[1]
    optimised = ("design", "exponential(scale=24)", *SMALL, "--design", "optimised")
    bound = json.loads(run(*optimised, "--json")[1])["lower_bound"]
    assert bound > 0.005
    assert f"No 16 frequencies, however they are chosen, reach an rms below {bound:.3g}.\n" in run(*optimised)[1]
    assert "No 16 frequencies" not in run("design", "gaussian", *SMALL)[1]
    assert "design optimised (sup)." in run("design", "gaussian", *SMALL, "--design", "optimised", "--norm", "sup")[1]


def test_one_seed_one_design(run, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run("design", "gaussian", *SMALL, "--seed", seed, "-o", tmp_path / f"{name}.npz")
    first, same, other = ((tmp_path / f"{name}.npz").read_bytes() for name in "abc")
    assert first == same != other


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
@pytest.mark.parametrize("kernels_of_heads", [["gaussian"], ["gaussian", "cauchy(scale=8)"], ["gaussian(ndim=2)"]])
def test_design_draws_a_figure(run, tmp_path, suffix, begins, kernels_of_heads):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / f"figure.{suffix}"
    code, out, err = run("design", *kernels_of_heads, *SMALL, "--plot", path)
    assert (code, err) == (0, "")
    assert f"Written: {path}" in out
    assert path.read_bytes().startswith(begins)
    assert os.listdir(tmp_path) == [path.name]


def test_a_figure_needs_matplotlib(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = run("design", "gaussian", *SMALL, "-o", tmp_path / "set.npz", "--plot", tmp_path / "figure.png")
    assert_refused(refused, "--plot", "pip install 'rfrope[plot]'")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", ["-o", "--plot"])
def test_files_are_refused_before_the_work(run, tmp_path, monkeypatch, option):
    def work(*arguments, **more):
        raise AssertionError("work began")

    monkeypatch.setattr(rfrope, "sample", work)
    suffix = "npz" if option == "-o" else "png"
    path = tmp_path / f"taken.{suffix}"
    path.write_text("precious")
    assert_refused(run("design", "gaussian", *SMALL, option, path), f"{option} {path}", "exists", "--force")
    assert_refused(run("design", "gaussian", *SMALL, option, tmp_path), option)
    (tmp_path / f"folder.{suffix}").mkdir()
    assert_refused(run("design", "gaussian", *SMALL, option, tmp_path / f"folder.{suffix}", "--force"), "regular file")
    missing = tmp_path / "none" / f"set.{suffix}"
    assert_refused(run("design", "gaussian", *SMALL, option, missing), f"{option} {missing}: No such file or directory")
    assert_refused(run("design", "gaussian", *SMALL, option, tmp_path / "set.txt"), option, f".{suffix}")
    assert path.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == [f"folder.{suffix}", f"taken.{suffix}"]


def test_force_replaces_a_file(run, tmp_path):
    path = tmp_path / "set.npz"
    path.write_text("old")
    assert run("design", "gaussian", *SMALL, "-o", path, "--force")[0] == 0
    assert storage.load(path).frequencies.shape == (16,)


def test_python_m_rfrope_design(tmp_path):
    path = tmp_path / "set.npz"
    done = program("design", "gaussian(scale=32)", *SMALL, "-o", str(path), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert storage.load(path).frequencies.shape == (16,)


PAGE = pathlib.Path(__file__).parents[1] / "docs" / "command_line.rst"


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_the_outputs_on_the_documentation_page(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^    \$ rfrope (design .*)\n((?:    .*\n|\n)+)", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(shown) == 2
    for command, block in shown:
        code, out, _ = run(*shlex.split(command))
        wanted, _, _ = textwrap.dedent(block).rstrip("\n").partition("\n...")
        assert code == 0
        assert out.startswith(wanted)


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


BAD_DESIGNS = [
    (["gausian", *SMALL], "gausian"),
    (["gaussian", "--context", "64"], "--head-dim"),
    (["gaussian", "--head-dim", "64"], "--context"),
    (SMALL, "KERNEL"),
    (["gaussian", "--head-dim", "63", "--context", "64"], "argument --head-dim: 63 is odd; expected an even number"),
    (["gaussian", "--head-dim", "0", "--context", "64"], "argument --head-dim: 0 is below 2"),
    (["gaussian", "--head-dim", "x", "--context", "64"], "--head-dim"),
    (["gaussian", "--head-dim", "64", "--context", "1"], "argument --context: 1 is below 2"),
    (["gaussian", "--head-dim", "64", "--context", "4k"], "argument --context: '4k' is not a whole number"),
    (["gaussian", "--head-dim", "64", "--context", "64,64"], "--context 64,64: gaussian(scale=1.0) has ndim 1"),
    (["gaussian(ndim=2)", "--head-dim", "64", "--context", "8,8,8"], "--context 8,8,8"),
    (["gaussian", *SMALL, "--heads", "0"], "argument --heads: 0 is below 1"),
    (["gaussian", "cauchy", *SMALL, "--heads", "3"], "--heads 3 with 2 KERNELs"),
    (["gaussian", "gaussian(ndim=2)", *SMALL], "KERNELs have [1, 2] axes"),
    (["gaussian", *SMALL, "--design", "random"], "--design"),
    (["gaussian", *SMALL, "--design", "orthogonal"], "--design orthogonal: "),
    (["gaussian", *SMALL, "--norm", "sup"], "--norm sup with --design auto"),
    (["gaussian", *SMALL, "--norm", "max", "--design", "optimised"], "--norm"),
    (["gaussian", "--head-dim", "4096", "--context", "64", "--design", "optimised"], "--design optimised: "),
    (["gaussian", *SMALL, "--seed", "-1"], "argument --seed: -1 is below 0"),
    (["gaussian", *SMALL, "--dtype", "float16"], "--dtype"),
    (["gaussian", *SMALL, "--ladder", "8:512"], "--ladder: expected one KERNEL with it, and --heads"),
    (["gaussian", "cauchy", *SMALL, "--heads", "2", "--ladder", "8:512"], "--ladder: expected one KERNEL with it"),
    (["gaussian", *SMALL, "--heads", "2", "--ladder", "8"], "argument --ladder: '8' is not a range"),
    (["gaussian", *SMALL, "--heads", "2", "--ladder", "0:8"], "argument --ladder: '0:8' is not a range"),
    (["gaussian", *SMALL, "--heads", "2", "--ladder", "nan:8"], "argument --ladder: 'nan:8' is not a range"),
    (
        ["sinc", *SMALL, "--heads", "2", "--ladder", "8:64"],
        "--ladder: kernel is sinc(bandwidth=1.0), which has no single scale",
    ),
    (["gaussian(scale=(1, 2), ndim=2)", *SMALL, "--heads", "2", "--ladder", "8:64"], "has no single scale"),
    (["gaussian", *SMALL, "-o", "set.txt"], "-o set.txt: path is 'set.txt'; expected a name that ends in .npz"),
    (["gaussian", *SMALL, "--plot", "set.gif"], "--plot set.gif: expected a name that ends in .png"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD_DESIGNS, ids=[" ".join(a) for a, _ in BAD_DESIGNS])
def test_bad_designs(run, arguments, told):
    assert_refused(run("design", *arguments), told)


# -- other bad input ---------------------------------------------------------------------------------------------------

BAD_ARGUMENTS = [
    (["gausian"], "gausian"),
    (["gaussian(scale=-1)"], "scale is -1"),
    (["gaussian(scale=0)"], "scale is 0"),
    (["gaussian(scale=nan)"], "scale"),
    (["gaussian(scale=1e999)"], "scale is inf"),
    (["gaussian(width=1)"], "width"),
    (["gaussian(2)"], "without a name"),
    (["gaussian(scale="], "cannot read kernel"),
    (["gaussian; cauchy"], "cannot read kernel"),
    (["__import__('os').getcwd()"], "cannot read kernel"),
    (["gaussian(scale=__import__('os').getpid())"], "not a number"),
    ([""], "cannot read kernel"),
    (["gaussian(ndim=0)"], "ndim is 0"),
    (["gaussian(scale=(1, 2, 3), ndim=2)"], "scale is"),
    (["gaussian", "--samples", "-5"], "argument --samples: -5 is below 2"),
    (["gaussian", "--samples", "1"], "argument --samples: 1 is below 2"),
    (["gaussian", "--samples", "5000000000"], "argument --samples: 5000000000 is above 2**32 - 1"),
    (["gaussian", "--samples", "many"], "--samples"),
    (["gaussian", "--samples", "1e6"], "--samples"),
    (["gaussian", "--trials", "3"], "argument --trials: 3 is below 4"),
    (["gaussian", "--blocks", "33"], "n_blocks is 33"),
    (["gaussian", "--blocks", "0"], "argument --blocks: 0 is below 1"),
    (["gaussian", "--blocks", "-1"], "argument --blocks: -1 is below 1"),
    (["gaussian", "--alpha", "0"], "alpha"),
    (["gaussian", "--alpha", "1"], "alpha"),
    (["gaussian", "--alpha", "-0.5"], "alpha"),
    (["gaussian", "--alpha", "nan"], "alpha"),
    (["gaussian", "cauchy", "--alpha", "1.5"], "alpha"),
    (["--alpha", "2"], "alpha"),
    (["gaussian", "--seed", "-1"], "argument --seed: -1 is below 0"),
    (["gaussian", "--seed", "x"], "--seed"),
    (["gaussian", "--pairing", "halves"], "--pairing"),
    (["gaussian", "--unknown"], "--unknown"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD_ARGUMENTS, ids=[" ".join(a) or "empty" for a, _ in BAD_ARGUMENTS])
def test_bad_arguments(run, arguments, told):
    quick = [] if "--samples" in arguments else ["--samples", "256"]
    quick += [] if "--trials" in arguments else ["--trials", "64"]
    assert_refused(run("validate", *arguments, *quick), told)


def test_without_a_command_it_prints_the_help(run):
    assert run() == run("--help")
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.startswith("usage: rfrope")


@pytest.mark.parametrize("arguments", [["--unknown"], ["nonsense"], ["doctor", "cupy"]])
def test_bad_commands(run, arguments):
    assert_refused(run(*arguments), "usage: rfrope")


# -- kernels, help, version --------------------------------------------------------------------------------------------


def test_kernels_lists_the_registry(run):
    code, out, err = run("kernels")
    assert (code, err) == (0, "")
    for record in kernels.records():
        for text in (
            record.formula,
            record.law,
            record.dimensions,
            record.example,
            *record.parameters,
            *record.aliases,
        ):
            assert text in out


def test_kernels_shows_those_that_are_named(run):
    code, out, _ = run("kernels", "matern", "rbf", "gaussian")
    assert code == 0
    assert [line.partition("(")[0] for line in out.splitlines() if line[:1] != " "] == ["matern", "gaussian"]
    assert [record["name"] for record in json.loads(run("kernels", "cauchy", "--json")[1])] == ["cauchy"]
    assert_refused(
        run("kernels", "matern", "gausian"),
        "unknown kernel 'gausian'; did you mean 'gaussian'? Expected one of 'gaussian', 'cauchy'",
    )


def test_kernels_as_json(run):
    _, out, _ = run("kernels", "--json")
    held = json.loads(out)
    assert out.count("\n") > 7 * len(held)  # a line for each entry, for people and for diff
    assert [record["name"] for record in held] == list(kernels.names())
    matern = next(record for record in held if record["name"] == "matern")
    assert matern["parameters"] == {"nu": 1.5, "scale": 1.0, "ndim": 1}
    for record in held:
        assert set(record) == {"name", "aliases", "formula", "law", "parameters", "dimensions", "example"}
        kernels.parse(record["example"])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(2, "No such file", "model.json"), "-o out.json: model.json: No such file"),
        (FileNotFoundError(2, "No such file", "./out.json"), "-o out.json: No such file"),
        (OSError("it is damaged"), "-o out.json: it is damaged"),
    ],
)
def test_an_error_of_another_file_names_both(error, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"), shared.naming("-o", "out.json"):
        raise error


def test_a_registered_kernel_is_listed(run, wrong_kernel):
    assert "wrong(scale=1.0, ndim=1)" in run("kernels")[1]


def test_version(run):
    assert run("--version")[:2] == (0, f"rfrope {rfrope.__version__}\n")


@pytest.mark.parametrize("command", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help(run, command):
    code, out, _ = run(*command)
    assert code == 0
    assert out.startswith("usage: rfrope")
    text = " ".join(out.split())
    assert re.search(r"Examples?: rfrope ", text)
    assert re.search(r"Exit codes?: 0", text)


def test_help_tells_every_option(run):
    _, out, _ = run("validate", "--help")
    for option in (
        "--qk",
        "--pairing",
        "--seed",
        "--samples",
        "--trials",
        "--blocks",
        "--alpha",
        "--json",
        "Exit code",
    ):
        assert option in out


def test_few_trials_are_told(run):
    code, out, _ = run("validate", "gaussian", "--samples", "2000", "--trials", "999")
    assert "fails more often than alpha" in out
    assert code in (0, 1)
    assert "fails more often" not in run("validate", "gaussian", "--samples", "2000", "--trials", "1000")[1]


def test_a_header_that_claims_more_than_memory_is_bad_input(run, tmp_path):
    import io
    import zipfile

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 64)})
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("q.npy", header.getvalue())
        archive.writestr("k.npy", header.getvalue())
    assert_refused(run("validate", "gaussian", "--qk", str(path)), "--qk", "fit in memory")


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


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_narrow_vectors_of_ones_own(run, npz, dtype):
    q, k = (v.astype(dtype) for v in example_pairs())
    code, _, err = run("validate", "gaussian", *FAST, "--qk", npz(q=q, k=k))
    assert (code, err) == (0, "")


@pytest.mark.parametrize("text", ["gaussian(scale=1e-60)", "gaussian(scale=1e50)"])
def test_frequencies_that_a_dtype_cannot_hold(run, text):
    code, _, err = run("design", text, "--head-dim", 8, "--context", 16, "--dtype", "float32")
    assert code == 2
    assert "--dtype float32: the frequencies go from" in err


def test_a_context_of_too_many_lags(run):
    for context in (10**18, 2**33, f"{2**27},{2**27}"):
        kernel = "gaussian(ndim=2)" if isinstance(context, str) else "gaussian"
        code, _, err = run("design", kernel, "--head-dim", 8, "--context", context)
        assert code == 2
        assert ("is too long; expected at most 2**52 lags" if "," in str(context) else "is above 2**32 - 1") in err


def test_a_very_long_context_is_judged_by_a_part_of_its_lags(run):
    held = designed(run, "gaussian(scale=64)", "--head-dim", 8, "--context", 2**31)
    assert 0.0 < held["heads"][0]["rms"] < held["heads"][0]["sup"] < 1.0


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def test_an_interrupt_is_one_line(run, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("rfrope.cli.validate.validate", interrupted)
    code, out, err = run("validate", "gaussian")
    assert (code, out, err) == (130, "", "rfrope validate: interrupted; no file was left half written\n")


@campaign
def test_an_interrupt_of_the_process():
    """A real signal, while the trials run."""
    many = ["validate", "gaussian(scale=32)", "--samples", "4294967295"]
    code = (  # a job in the background would ignore the signal
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from rfrope.cli import main; print('begun', flush=True); sys.exit(main(sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *many], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out) == (130, ""), err
    assert err == "rfrope validate: interrupted; no file was left half written\n"


def test_a_terminal_without_greek_letters_is_no_reason_to_stop(monkeypatch):
    """What it cannot show is replaced; arguments that are not given are those of the process."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "argv", ["rfrope", "kernels"])
    assert cli.main() == 0
    screen.flush()
    assert b"?" in screen.buffer.getvalue()
    assert "gaussian" in screen.buffer.getvalue().decode()


def test_audits_and_comparisons_say_where_they_looked(run, tmp_path):
    np.save(tmp_path / "a.npy", rfrope.geometric(8))
    for command in (["audit", tmp_path / "a.npy", "meta-llama/Llama-3.1-8B"], ["compare", "meta-llama/Llama-3.1-8B"]):
        code, _, err = run(*command)
        assert code == 2
        assert "there is no such file or folder here, and nothing is downloaded; expected the path" in err


def test_engines_that_give_equal_content_the_same_scores_share_a_curve():
    one = types.SimpleNamespace(frequencies=np.array([1.0, 0.5]), attention_factor=1.0)
    for change, same in (
        ({}, True),
        ({"frequencies": np.array([1.0, 0.5 * (1.0 + 1e-14)])}, True),
        ({"frequencies": np.array([1.0, 0.5 * (1.0 + 1e-9)])}, False),
        ({"frequencies": np.array([1.0])}, False),
        ({"attention_factor": 1.1}, False),
        ({"frequencies": None}, False),
    ):
        assert compare._same(one, types.SimpleNamespace(**{**vars(one), **change})) is same, change
