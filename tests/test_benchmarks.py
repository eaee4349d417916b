"""Benchmarks: peers compute the same as rfrope, every target is measured, and documented figures name their command."""

import csv
import importlib
import math
import pathlib
import re
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[1]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from benchmarks import growth, jobs, peers, timing  # noqa: E402
from benchmarks.process_peers import Process  # noqa: E402

SLOW_TO_PREPARE = ("Hugging Face formula, torch.compile",)
SMALL = [job for job in jobs.jobs(jobs.TINY) if not isinstance(job.problem, Process)]
TABLE = ROOT / "docs" / "performance_table.md"

# the table of CPU targets, row by row: bounds on ours, on ours over a peer, and on a peer over ours
BOUNDS = [
    {1.10, 1.8, 12.0},
    {1.3},
    {2.2},
    {1.3},
    {8.0},
    {2.0, 15.0},
    {0.8},
    {1.5, 2.0, 4.0},
    {0.3, 300.0},
    {0.12},
    {1.1},
    {5.0, 0.3},
]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_scripts_import_without_optional_packages(path):
    importlib.import_module(f"benchmarks.{path.stem}".removesuffix(".__init__"))


def test_every_target_has_a_job():
    full = jobs.jobs()
    for row, bounds in enumerate(BOUNDS):
        assert {target.bound for job in full for target in job.targets if target.row == row} == bounds
    assert len(BOUNDS) == len(jobs.ROWS)


def test_jobs_are_well_formed():
    full, tiny = jobs.jobs(), jobs.jobs(jobs.TINY)
    assert len({job.name for job in full}) == len(full) == len(tiny)
    for job in full:
        assert all(callable(job.maker(peer)) for peer in job.peers)
        assert all(target.peer is None or target.peer in job.peers for target in job.targets)
        assert all(0 <= target.row < len(jobs.ROWS) for target in job.targets)


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
        ("sample gaussian, 4096 blocks", lambda x: np.stack([1.3 * x[0], x[1]])),
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


def test_a_peer_that_is_not_installed_is_listed(monkeypatch):
    job = next(job for job in SMALL if "scikit-learn RBFSampler.fit" in job.peers)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = peers.prepare(job)
    assert outcome.missing == {"scikit-learn RBFSampler.fit": "not installed"}
    assert ("scikit-learn RBFSampler.fit", "", "", "", "not installed") in peers.peer_rows(outcome)


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
    assert below.verdict(1.32) == "MISSED by 20%"
    assert below.verdict(0.55) == "met, 50% to spare"
    assert above.verdict(10.0) == "MISSED by 20%"
    assert above.verdict(24.0) == "met, 50% to spare"
    assert jobs.Target(4, 8.0).text("us") == "<= 8 us"


def test_page_holds_all_rows_and_its_command():
    (job,) = [job for job in SMALL if job.name.startswith("sample gaussian")]
    text = peers.page([peers.run(job, 1, 1.0)], ["a machine"], "python -m benchmarks.peers")
    assert text.startswith("<!-- Made by: python -m benchmarks.peers -->")
    assert all(row in text for row in jobs.ROWS)
    assert text.count("not measured in this run") == len(jobs.ROWS)


@pytest.mark.parametrize(
    ("problem", "bound"),
    [(Process("import numpy", "pass"), 1.0), (Process("", "x = bytearray(2 * 10**7)", False), 40.0)],
)
def test_processes_measure_work_alone(problem, bound):
    assert (0.0 if problem.seconds else 15.0) <= problem.run() < bound


def test_growth_covers_three_decades_of_every_size():
    assert {one.against for one in growth.GROWTHS} == {"tokens", "heads", "trials", "lags", "blocks", "samples"}
    assert all(one.sizes[-1] / one.sizes[0] >= 1000 for one in growth.GROWTHS)
    sizes = np.asarray([1.0, 2.0, 4.0, 8.0, 16.0])
    assert math.isclose(growth.slope(sizes, sizes**1.5), 1.5)


def test_growth_is_drawn_again_from_its_points(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for name in ("first.svg", "second.svg"):
        arguments = ["--from", str(ROOT / "docs" / "performance_growth.csv"), "--output", str(tmp_path / name)]
        assert growth.main(arguments) == 0
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
    assert capsys.readouterr().out.count("exponent") == 2 * len(growth.GROWTHS)


def test_documented_figures_name_the_command_that_made_them():
    assert re.match(r"<!-- Made by: python -m benchmarks\.peers( --\S+| \S+)* -->\n", TABLE.read_text("utf-8"))
    lines = (ROOT / "docs" / "performance_growth.csv").read_text("utf-8").splitlines()
    assert lines[0].startswith("# python -m benchmarks.growth")
    documented = {(row["function"], row["against"]) for row in csv.DictReader(lines[1:])}
    assert documented == {(one.name, one.against) for one in growth.GROWTHS}


def test_examples_of_the_page_run():
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "performance.md", "exec"), {})
    assert "```{include} performance_table.md" in text
