"""``rfrope design``: what it makes, what it says of it, what it writes and what it refuses."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import sys
import textwrap

import numpy as np
import pytest

import rfrope
from rfrope import storage
from rfrope.designs import errors, sampling

SMALL = ["--head-dim", "32", "--context", "256"]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "command_line.rst"
BAD_DESIGNS = [
    (["gausian", *SMALL], "gausian"),
    (["gaussian", "--head-dim", "63", "--context", "64"], "argument --head-dim: 63 is odd; expected an even number"),
    (["gaussian", "--head-dim", "64", "--context", "1"], "argument --context: 1 is below 2"),
    (["gaussian", "--head-dim", "64", "--context", "4k"], "argument --context: '4k' is not a whole number"),
    (["gaussian", "--head-dim", "64", "--context", "64,64"], "--context 64,64: gaussian(scale=1.0) has ndim 1"),
    (["gaussian", *SMALL, "--heads", "0"], "argument --heads: 0 is below 1"),
    (["gaussian", "cauchy", *SMALL, "--heads", "3"], "--heads 3 with 2 KERNELs"),
    (["gaussian", "gaussian(ndim=2)", *SMALL], "KERNELs have [1, 2] axes"),
    (["gaussian", *SMALL, "--design", "orthogonal"], "--design orthogonal: "),
    (["gaussian", *SMALL, "--norm", "sup"], "--norm sup with --design auto"),
    (["gaussian", "--head-dim", "4096", "--context", "64", "--design", "optimised"], "--design optimised: "),
    (["gaussian", *SMALL, "--dtype", "float16"], "--dtype"),
    (["gaussian", *SMALL, "--ladder", "8:512"], "--ladder: expected one KERNEL with it, and --heads"),
    (["gaussian", *SMALL, "--heads", "2", "--ladder", "8"], "argument --ladder: '8' is not a range"),
    (["gaussian", *SMALL, "--heads", "2", "--ladder", "0:8"], "argument --ladder: '0:8' is not a range"),
    (
        ["sinc", *SMALL, "--heads", "2", "--ladder", "8:64"],
        "--ladder: kernel is sinc(bandwidth=1.0), which has no single scale",
    ),
    (["gaussian", *SMALL, "-o", "set.txt"], "-o set.txt: path is 'set.txt'; expected a name that ends in .npz"),
    (["gaussian", *SMALL, "--plot", "set.gif"], "--plot set.gif: expected a name that ends in .png"),
]


def assert_refused(result, *told):
    code, out, err = result
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for text in told:
        assert text in err


def designed(run, *arguments):
    code, out, err = run("design", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def errors_of(kernel, omega, context):
    return rfrope.analysis.mean_kernel(np.arange(context), omega) - kernel(np.arange(context))


@pytest.mark.parametrize("design", [name for name in (*sampling.names(), "auto") if name != "orthogonal"])
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


def test_a_kernel_for_each_head(run, tmp_path):
    path = tmp_path / "set.npz"
    held = designed(run, "cauchy(scale=64)", "gaussian(scale=4)", *SMALL, "-o", path)
    laws = [rfrope.kernel("cauchy", scale=64.0), rfrope.kernel("gaussian", scale=4.0)]
    assert np.array_equal(storage.load(path).frequencies, rfrope.sample(laws, 16, rng=0, design="auto"))
    assert [*storage.load(path).source.kernel] == [*map(repr, laws)] == [head["kernel"] for head in held["heads"]]
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


def test_a_very_long_context_is_judged_by_a_part_of_its_lags(run):
    held = designed(run, "gaussian(scale=64)", "--head-dim", 8, "--context", 2**31)
    assert 0.0 < held["heads"][0]["rms"] < held["heads"][0]["sup"] < 1.0


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


@pytest.mark.parametrize(
    ("kernels", "suffix", "begins"),
    [
        (["gaussian"], "png", b"\x89PNG"),
        (["gaussian", "cauchy(scale=8)"], "svg", b"<?xml"),
        (["gaussian(ndim=2)"], "PDF", b"%PDF"),
    ],
)
def test_a_figure(run, tmp_path, kernels, suffix, begins):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / f"figure.{suffix}"
    code, out, err = run("design", *kernels, *SMALL, "--plot", path)
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


def test_the_same_seed_replaces_a_file_by_the_same(run, tmp_path):
    path, found = tmp_path / "set.npz", []
    path.write_text("old")
    for seed in (0, 0, 1):
        assert run("design", "gaussian", *SMALL, "--seed", seed, "-o", path, "--force")[0] == 0
        found.append(path.read_bytes())
    assert found[0] == found[1] != found[2]


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


@pytest.mark.parametrize(("arguments", "told"), BAD_DESIGNS, ids=[" ".join(a) for a, _ in BAD_DESIGNS])
def test_bad_designs(run, arguments, told):
    assert_refused(run("design", *arguments), told)


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
