"""Entries of one job, measured in turn in one run, so that all of them meet the same state of the machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from benchmarks import machine

LEAST_BURST = 2e-3  # seconds: shorter calls are repeated until they take as long
PAUSE = 5e-3  # seconds before a burst, in which the idle threads of the one before stop spinning
SLOW = 0.1  # seconds of which one call a round is enough
LONG = 5e-4  # seconds from which on a call is made once a turn, with caches that hold nothing of it
SCRATCH = 2**25  # float32 numbers that are copied to empty the caches, on every core


class Missing(Exception):
    """A peer that cannot take part, and why: it is listed with its reason, never dropped."""


@dataclass
class Entry:
    """One contestant: what to call, how to read its result, and what that is to be compared with.

    `call` takes no arguments. `value` tells that it returns the figure itself (seconds, megabytes) instead of being
    timed. `result` turns what it returns into float64 arrays of NumPy, or is None where there is nothing to compare.
    `factor` multiplies the figure: more than 1 where a part is measured and the whole extrapolated.
    """

    name: str
    call: Callable[[], Any]
    result: Callable[[Any], Any] | None = None
    value: bool = False
    factor: float = 1.0
    figures: list[float] = field(default_factory=list)

    @property
    def least(self) -> float:
        return min(self.figures, default=math.nan)

    @property
    def median(self) -> float:
        return statistics.median(self.figures) if self.figures else math.nan


def burst(call: Callable[[], Any], number: int) -> float:
    """Seconds a call, over so many in a row."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


@cache
def _scratch() -> tuple[np.ndarray, np.ndarray, ThreadPoolExecutor]:
    return np.ones(SCRATCH, np.float32), np.ones(SCRATCH, np.float32), ThreadPoolExecutor(machine.cores())


def empty_caches() -> None:
    """Fill the caches of all cores with other things, and wake the cores."""
    source, target, pool = _scratch()
    edges = np.linspace(0, SCRATCH, machine.cores() + 1).astype(int)
    for _ in pool.map(
        lambda i: np.copyto(target[edges[i] : edges[i + 1]], source[edges[i] : edges[i + 1]]), range(edges.size - 1)
    ):
        pass


def measure(entries: list[Entry], rounds: int, most_seconds: float) -> None:
    """Fill in the figures: every round takes all entries in turn, beginning with another one each time.

    Long calls are made three times a round, each time after the caches were emptied, so that the memory they need has
    to come from memory, for all alike. Short ones are made many times in a row, three times after one that warms up.

    An entry that has used up `most_seconds` sits out the later rounds, but never before it has two figures (one, if a
    single round is asked for).
    """
    numbers = {id(entry): 1 for entry in entries}
    used = {id(entry): 0.0 for entry in entries}
    for entry in entries:
        if not entry.value:
            numbers[id(entry)] = _number(entry.call)
    for index in range(rounds):
        start = index % len(entries)
        for entry in entries[start:] + entries[:start]:
            if used[id(entry)] > most_seconds and len(entry.figures) >= 2:
                continue
            began = time.perf_counter()
            figures = [entry.call()] if entry.value else _turn(entry.call, numbers[id(entry)])
            entry.figures += [entry.factor * figure for figure in figures]
            used[id(entry)] += time.perf_counter() - began


def _number(call: Callable[[], Any]) -> int:
    """How many calls make a burst: judged by the fastest of some, because the first ones compile, load and plan."""
    burst(call, 1)
    tried: list[float] = []
    while len(tried) < 8 and sum(tried) < SLOW:
        tried.append(burst(call, 1))
    return 1 if min(tried) > LONG else math.ceil(LEAST_BURST / max(min(tried), 1e-7))


def _turn(call: Callable[[], Any], number: int) -> list[float]:
    """Seconds a call, of some bursts."""
    if number > 1:
        time.sleep(PAUSE)
        return [burst(call, number) for _ in range(4)][1:]
    figures: list[float] = []
    while sum(figures) < SLOW and len(figures) < 3:
        time.sleep(PAUSE)
        empty_caches()
        figures.append(burst(call, 1))
    return figures
