"""Bars of long work: shown where they are wanted, and no work goes on behind one that was interrupted."""

import io
import sys

import numpy as np
import pytest

import rfrope
from rfrope._core import parallel


def estimate(**options):
    return rfrope.estimate_kernel(np.array([-9.0, -1.0, 0.0]), "cauchy(scale=9)", n_samples=2**21, **options)


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
        estimate(rng=1, executor=executor, progress=progress)
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
        estimate(rng=1, progress=progress)
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
