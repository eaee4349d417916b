"""Benchmarks: peers compute the same as rfrope, targets are judged as they say, and jobs and scripts run."""

import importlib
import importlib.util
import math
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from campaign import HANGS, campaign, sparse
from conftest import library

ROOT = pathlib.Path(__file__).parents[2]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
sys.path.insert(0, str(ROOT))

import rfrope  # noqa: E402
from benchmarks import (  # noqa: E402
    compare,
    compare_jobs,
    gpu,
    gpu_jobs,
    gpu_layers,
    jobs,
    libraries,
    limits,
    peers,
    timing,
)
from benchmarks.process_peers import Process  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_is_collected(monkeypatch):
    """Between entries a device's memory is freed; beside a whole suite's objects each time would take a second."""
    monkeypatch.setattr("gc.collect", lambda: 0)


SLOW_TO_PREPARE = ("Hugging Face formula, torch.compile",)
SMALL = [job for job in jobs.jobs(jobs.TINY) if not isinstance(job.problem, Process)]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_scripts_import_without_optional_packages(path):
    importlib.import_module(f"benchmarks.{path.stem}".removesuffix(".__init__"))


@pytest.mark.parametrize("job", SMALL, ids=lambda job: job.name)
def test_peers_compute_the_same(job):
    outcome = peers.prepare(job, SLOW_TO_PREPARE)
    assert len(outcome.entries) + len(outcome.missing) == 1 + len(job.peers)
    for name in {"rfrope", *job.peers} - set(outcome.missing):
        assert any(entry.name.startswith(name) for entry in outcome.entries)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("rotate (1,32,16,128) float32, out=", lambda x: -x),
        ("estimate_scores gaussian(scale=32), 1024 trials, 17 lags", lambda x: np.stack([1.3 * x[0], x[1]])),
        ("estimate_kernel gaussian, 4096 samples, 256 lags", lambda x: x + 1e-6),
        ("sample gaussian(scale=32), 4096 blocks", lambda x: np.stack([1.3 * x[0], x[1]])),
    ],
)
def test_a_peer_that_computes_something_else_is_refused(name, spoil):
    (job,) = [job for job in SMALL if job.name == name]
    module = importlib.import_module(job.ours.__module__)
    peer = next(peer for peer in job.peers if peer.startswith("NumPy"))
    right = module.PEERS[peer]

    def wrong(problem):
        entry = right(problem)
        return timing.Entry(entry.name, entry.call, lambda found, read=entry.result: spoil(read(found)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module.PEERS, peer, wrong)
        with pytest.raises(AssertionError, match="computes something else"):
            peers.prepare(job, tuple(other for other in job.peers if other != peer))


def test_entries_are_measured_in_turn(monkeypatch):
    calls = []
    entries = [timing.Entry(name, lambda name=name: calls.append(name) or 2.0, value=True) for name in "abc"]
    timing.measure(entries, rounds=3, most_seconds=1.0)
    assert "".join(calls) == "abcbcacab"
    assert entries[0].figures == [2.0, 2.0, 2.0]
    timed = timing.Entry("timed", lambda: sum(range(100)), factor=2.0)
    timing.measure([timed], rounds=1, most_seconds=1.0)
    assert 0.0 < timed.least <= timed.median


def test_targets_say_whether_they_are_met():
    below, above = jobs.Target(0, 1.1, "copy"), jobs.Target(0, 12.0, "formula", faster=True)
    assert below.measured(3.0, 2.0) == 1.5
    assert above.measured(3.0, 30.0) == 10.0
    alike = np.ones(3)
    assert below.verdict(1.32 * alike) == "MISSED by 20%"
    assert below.verdict(0.55 * alike) == "met, 50% to spare"
    assert above.verdict(10.0 * alike) == "MISSED by 20%"
    assert above.verdict(24.0 * alike) == "met, 50% to spare"
    assert above.verdict(np.asarray([12.1, 24.0, 30.0])) == "met, 50% to spare"
    assert above.verdict(np.asarray([9.0, 10.0, 13.0])) == "open: short by 20%, and the rounds differ by more"
    assert below.verdict(np.asarray([0.5, 0.55, 1.2])) == "open: met by 50%, and the rounds differ by more"
    assert jobs.Target(4, 8.0).text("us") == "<= 8 us"


def test_ratios_are_those_of_the_same_round():
    """On a machine that becomes ten times slower between rounds they stay what they are; least times would not tell."""
    ours, peer = timing.Entry("rfrope", None), timing.Entry("NumPy generator", None)
    ours.rounds, peer.rounds = {0: 1.0, 1: 10.0, 2: 1.0}, {0: 2.0, 1: 20.0}
    job = next(job for job in SMALL if job.name.startswith("sample gaussian"))
    outcome = peers.Outcome(job, [ours, peer])
    assert outcome.held(jobs.Target(0, 1.0, "NumPy generator", faster=True)).tolist() == [2.0, 2.0, 2.0]
    assert np.isnan(outcome.held(jobs.Target(0, 1.0, "another"))).all()


def test_examples_of_the_page_run():
    text = (ROOT / "docs" / "project" / "performance.md").read_text("utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert examples
    for example in examples:
        exec(compile(example, "performance.md", "exec"), {})


# -- on a device: all but its clock, run on NumPy and on torch's CPU tensors -------------------------------------------

DEVICE_JOBS = gpu.all_jobs(gpu_jobs.TINY)
UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def stand_in(cache=0):
    return gpu_jobs.Place({"cupy": lambda: gpu_jobs.Arrays(np), "torch": lambda: gpu_jobs.TorchArrays("cpu")}, cache)


def unit_of(job):
    return next((unit for dtype, unit in UNITS.items() if f" {dtype} " in job.name), 1e-9)


@pytest.mark.parametrize("job", sparse(DEVICE_JOBS, lambda job: job in DEVICE_JOBS[::5]), ids=lambda job: job.name)
def test_jobs_of_the_device_run_and_are_right(job):
    lines = gpu.run(job, stand_in(), gpu.HostTimer(), 2, skip=("torch.compile",))
    assert [line.who for line in lines] == list(job.entries)
    for line in lines:
        assert not line.is_wrong, line.reason
        if line.reason:
            assert line.who == "torch.compile" or "not installed" in line.reason or "no CUDA graphs" in line.reason
            continue
        assert 0.0 < line.least <= line.median
        assert line.rate == pytest.approx(job.work / line.median)
        assert (line.error is None) == (line.who == gpu_jobs.COPY)
        # the peers round their tables to the dtype of x
        assert line.error is None or line.error <= unit_of(job) * (1.0 if line.who == gpu_jobs.OURS else 4.0)
        assert len(line.cells()) == len(gpu.HEADINGS)
    if lines[0].reason:
        return
    assert (lines[0].met is None) == (job.target is None)
    of_base = next((line for line in lines if line.who == job.base), None)
    assert (lines[0].of_copy is None) == (of_base is None or bool(of_base.reason))
    assert lines[0].base == ("" if lines[0].of_copy is None else job.base)


@campaign
def test_without_a_device_there_are_counts():
    if "cupy" in libraries.NAMES:
        pytest.skip("there is a device")
    known = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.gpu", "--quick"]
    run = subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True, timeout=HANGS)
    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith("python -m benchmarks.gpu: no CUDA device: CuPy: ")
    tables = [re.split("  +", line.strip()) for line in run.stdout.splitlines()]
    for package, head in (("torch", gpu_layers.COUNTED), ("triton", gpu_layers.CODE)):
        assert (list(head) in tables) == (importlib.util.find_spec(package) is not None)


# -- comparing revisions -----------------------------------------------------------------------------------------------


def test_intervals_hold_the_median_as_often_as_they_say():
    rng, alpha, held = np.random.default_rng(0), 0.05, 0
    for _ in range(2000):
        found = compare.interval(rng.lognormal(0.0, 0.5, 13).tolist(), alpha)
        assert found.low <= found.value <= found.high < math.inf
        held += found.low <= 1.0 <= found.high
    assert held / 2000 > 1.0 - alpha - 4 * math.sqrt(alpha / 2000)
    assert held < 2000, "an interval that always holds it says nothing"


@pytest.mark.parametrize("alpha", [0.05, 0.001, 0.05 / 65])
def test_with_too_few_rounds_an_interval_is_everything(alpha):
    rounds = compare.rounds_needed(alpha)
    ratios = np.linspace(0.9, 1.1, rounds).tolist()
    assert compare.interval(ratios, alpha).high == 1.1
    assert compare.interval(ratios[: rounds - 1], alpha) == compare.Ratio(
        pytest.approx(np.median(ratios[: rounds - 1])), 0.0, math.inf
    )


def test_noise_of_the_control_is_not_a_verdict():
    quiet, noisy = compare.Ratio(1.0, 0.99, 1.01), compare.Ratio(1.1, 0.9, 1.2)
    assert compare.verdict(compare.Ratio(1.1, 1.05, 1.15), quiet) == "slower"
    assert compare.verdict(compare.Ratio(1.1, 1.05, 1.15), noisy) == ""
    assert compare.verdict(compare.Ratio(0.9, 0.85, 0.95), quiet) == "faster"
    assert compare.verdict(compare.Ratio(1.1, 0.99, 1.3), quiet) == ""


class Clockwork:
    """A worker whose times are known."""

    def __init__(self, factor):
        self.factor, self.calls = factor, []

    def seconds(self, job):
        self.calls.append(job)
        missing = job == "new" and self.factor == 3.0
        return "AttributeError: not there" if missing else self.factor * (1 + len(self.calls))


def test_ratios_are_taken_within_a_round():
    workers = {"base": Clockwork(1.0), "slow": Clockwork(2.0), "old": Clockwork(3.0), "control": Clockwork(1.0)}
    ratios, seconds, missing = compare.measured(workers, ["a", "new"], 5, "base")
    assert ratios["slow", "a"] == [2.0] * 5
    assert ratios["control", "new"] == [1.0] * 5
    assert len(seconds["new"]) == 5
    assert missing == {("old", "new"): "AttributeError: not there"}
    assert workers["old"].calls.count("new") == 1


@campaign
def test_a_process_times_the_rfrope_of_its_folder():
    worker = compare.Worker(ROOT, "cpu", 1)
    try:
        assert 0.0 < worker.seconds("from_config, yarn") < 60.0
        assert worker.seconds("no such job") == "KeyError: 'no such job'"
    finally:
        worker.close()
    assert worker.process.returncode == 0


SLOW_JOBS = ("analysis.summarise", "analysis.base_for_context", "designs.optimise")


@pytest.mark.parametrize("job", [job for job in compare_jobs.EVERY if job not in SLOW_JOBS])
def test_jobs_run(job):
    compare_jobs.EVERY[job](rfrope)()


@pytest.mark.parametrize(("dtype", "pairing", "into", "per_head"), limits.KINDS)
def test_limits_are_of_the_rotation_that_is_measured(dtype, pairing, into, per_head):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    problem = limits.Rotation(16, dtype, pairing=pairing, into=into, per_head=per_head)
    x, frequencies = problem.host[:, :4], problem.frequencies[:4] if per_head else problem.frequencies
    exact = rfrope.rotate(x, problem.positions, frequencies, pairing=pairing)
    np.testing.assert_array_equal(limits.call_of(4, 16, problem)(), exact)


@campaign
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_ways_in_jax_turn_alike(pairing):
    library("jax")
    import jax

    x, at = np.random.default_rng(0).standard_normal((2, 5, 128)).astype(np.float32), np.arange(5)
    ways = importlib.import_module("benchmarks.ways").rotations(jax, pairing)
    exact = rfrope.rotate(x.astype(float), at, rfrope.geometric(64), pairing=pairing)
    assert len(ways) > 6
    for way in ways.values():
        np.testing.assert_allclose(way(jax.numpy.asarray(x), jax.numpy.asarray(at)), exact, atol=5e-6)


@campaign
def test_ways_in_torch_turn_alike():
    torch, ways = library("torch").module, importlib.import_module("benchmarks.ways").steps()
    q, k, positions = torch.randn(1, 4, 1, 128), torch.randn(1, 2, 1, 128), torch.tensor([[4095]])
    for way in ways.values():
        for x, turned in zip((q, k), way(q, k, positions), strict=True):
            exact = rfrope.rotate(x.double(), [4095], rfrope.geometric(64))
            torch.testing.assert_close(turned.double(), exact, rtol=0, atol=2e-6)
