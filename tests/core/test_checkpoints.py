"""Checkpoints of estimates: broken off anywhere, a rerun ends with the same bits; what is not theirs is refused."""

import functools
import io
import json
import re
import sys

import numpy as np
import pytest

import rfrope
from rfrope._core import files, parallel

Q, K = np.random.default_rng(0).standard_normal((2, 3, 16))
LAGS = np.array([-9.0, -1.0, 0.0])
ESTIMATES = {
    "kernel": lambda **options: rfrope.estimate_kernel(LAGS, "cauchy(scale=9)", n_samples=2**21, **options),
    "sets": lambda **options: rfrope.estimate_kernel(
        LAGS, "gaussian(scale=9)", n_samples=2**20, design="stratified", n_blocks=2**4, **options
    ),
    "scores": lambda **options: rfrope.estimate_scores(Q, K, LAGS, "gaussian(scale=9)", n_trials=2**17, **options),
}


def bits(estimate):
    parts = (estimate.mean, estimate.variance) if hasattr(estimate, "mean") else (estimate,)
    return b"".join(np.asarray(value).tobytes() for part in parts for value in (part.value, part.stderr))


class Broken(Exception):
    pass


def failing_after(count):
    """An executor that breaks after some chunks."""

    def mapping(task, spans):
        for i, span in enumerate(spans):
            if i == count:
                raise Broken("the worker is gone")
            yield task(span)

    return mapping


@pytest.mark.parametrize("name", ESTIMATES)
def test_a_rerun_goes_on_where_another_ended(name, tmp_path):
    estimate, path, seen = ESTIMATES[name], tmp_path / "work.npz", []
    whole = bits(estimate(rng=1))
    with pytest.raises(Broken) as error:
        estimate(rng=1, executor=failing_after(2), checkpoint=path)
    (note,) = error.value.__notes__
    assert re.search(r"failed after 2 of \d+ chunks, which are in .*work.npz: the same call resumes from there", note)

    def noting(task, spans):
        seen.extend(spans)
        return map(task, spans)

    assert bits(estimate(rng=1, executor=noting, checkpoint=path)) == whole
    assert seen[0] > 0  # two chunks were not done again
    seen.clear()
    assert bits(estimate(rng=1, executor=noting, checkpoint=path)) == whole
    assert seen == []


def test_without_a_checkpoint_a_dead_worker_says_what_is_lost():
    with pytest.raises(Broken) as error:
        ESTIMATES["kernel"](rng=1, executor=failing_after(1))
    assert re.search(r"after 1 of \d+ chunks, which are lost; with checkpoint=PATH", error.value.__notes__[0])


CHANGED = [
    ("rng", {"rng": 2}),
    ("number", {"n_samples": 2**20}),
    ("kernel", {"kernel": "cauchy(scale=9.5)"}),
    ("lags", {"lags": LAGS + 1.0}),
    ("lags", {"lags": LAGS[:, None]}),  # the same bytes in another shape, too
    ("quantity", {"quantity": "phi2"}),
    ("design", {"design": "sobol", "n_blocks": 64}),
]


def test_another_question_is_refused(tmp_path):
    asked = {"kernel": "cauchy(scale=9)", "lags": LAGS, "n_samples": 2**12, "rng": 1, "checkpoint": tmp_path / "a.npz"}
    rfrope.estimate_kernel(**asked)
    before = (tmp_path / "a.npz").read_bytes()
    for named, changed in CHANGED:
        with pytest.raises(ValueError, match=f"checkpoint of another estimate .*{named}.*differ.; expected a new name"):
            rfrope.estimate_kernel(**asked | changed)
        assert (tmp_path / "a.npz").read_bytes() == before


def test_what_is_not_a_checkpoint_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    estimate = functools.partial(ESTIMATES["kernel"], rng=1, checkpoint=path)
    estimate()
    held = path.read_bytes()
    for content in (b"", b"text", held[:-200]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a checkpoint"):
            estimate()
        assert path.read_bytes() == content
    with np.load(io.BytesIO(held)) as archive:
        parts = dict(archive)
    about = json.loads(str(parts["checkpoint"]))
    changes = [({"done": 0}, "is damaged"), ({"done": 1.0}, "is damaged"), ({"digest": ""}, "is damaged")]
    changes += [({"format": 2}, "of another estimate .format differ.")]
    changed = [({"checkpoint": np.asarray(json.dumps(about | change))}, told) for change, told in changes]
    for change, told in [*changed, ({"mean": parts["mean"] + 1e-9}, "is damaged; remove it to start again")]:
        np.savez(path, **parts | change)
        with pytest.raises(ValueError, match=told):
            estimate()
    with pytest.raises(FileNotFoundError):
        ESTIMATES["kernel"](rng=1, checkpoint=tmp_path / "missing" / "a.npz")


def test_kernels_that_differ_in_rare_draws_are_told_apart():
    """Most points of the cube go to the same frequencies."""

    def density(band):
        def law(w):
            bump = np.exp(-0.5 * (np.abs(w) - band) ** 2) / np.sqrt(8.0 * np.pi)
            return 0.995 * np.exp(-0.5 * w * w) / np.sqrt(2.0 * np.pi) + 0.005 * bump

        return rfrope.bochner.from_density(law, normalise=True)

    one, again, other = density(20.0), density(20.0), density(40.0)
    assert files.digest(one) == files.digest(again)
    assert files.digest(one) != files.digest(other)
    one(3.0)  # what a kernel has computed does not matter
    assert files.digest(one) == files.digest(again)


def test_a_full_disk_does_not_end_the_work(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    whole = bits(ESTIMATES["kernel"](rng=1))
    monkeypatch.setattr(files, "write", full)
    with pytest.warns(RuntimeWarning, match=r"a\.npz was not written: .*No space left"):
        assert bits(ESTIMATES["kernel"](rng=1, checkpoint=tmp_path / "a.npz")) == whole


def test_work_is_saved_while_it_goes_on(tmp_path, monkeypatch):
    """After every chunk, if so much time went by: what a process that is killed has done is there."""
    monkeypatch.setattr(files, "_SECONDS", 0.0)
    path, seen = tmp_path / "work.npz", []

    def progress(items, total):
        for number, item in enumerate(items):
            if number:
                with np.load(path) as archive:
                    seen.append(json.loads(str(archive["checkpoint"]))["done"])
            yield item

    ESTIMATES["kernel"](rng=1, checkpoint=path, progress=progress)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > 3


def test_an_interrupt_ends_the_executor_at_once():
    """Not when somebody lets go of the exception: what works elsewhere hears of it, and so do helping threads."""
    ended = []

    def executor(task, spans):
        try:
            yield from map(task, spans)
        finally:
            ended.append(True)

    def progress(items, total):
        for number, item in enumerate(items):
            if number == 2:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt) as error:
        ESTIMATES["kernel"](rng=1, executor=executor, progress=progress)
    assert error.traceback  # its frames still hold what they held
    assert ended == [True]


@pytest.mark.parametrize("work", ["estimate", "scan"])
@pytest.mark.parametrize(
    ("progress", "terminal", "shows"),
    [(True, False, True), (None, True, True), (None, False, False), (False, True, False)],
)
def test_a_bar_shows_where_it_is_wanted(work, progress, terminal, shows, monkeypatch):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(parallel, "_PATIENCE", 0.0)
    if work == "estimate":
        ESTIMATES["kernel"](rng=1, progress=progress)
        assert ("it/s" in stderr.getvalue()) == shows
        assert ("%|" in stderr.getvalue()) == shows  # of how many there are
    elif progress is None:  # scans of lags have no such argument
        assert rfrope.analysis.aliasing_distance([1.0, 0.618], 10**5, threshold=1.0 - 1e-12) is None
        assert ("100k" in stderr.getvalue()) == shows


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_no_bar_without_stderr(stderr, monkeypatch, tmp_path):
    if stderr == "closed":
        stderr = (tmp_path / "stderr").open("w", encoding="utf-8")
        stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert parallel.show_progress([1], 1, None) == [1]
