"""Entries of one job, measured in turn in one run, so that all of them meet the same state of the machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LEAST_BURST = 2e-3  # seconds: shorter calls are repeated until they take as long
PAUSE = 5e-3  # seconds before a burst, in which the idle threads of the one before stop spinning
SLOW = 0.1  # seconds of which one call a round is enough


class Missing(Exception):
    """A peer that cannot take part, and why: it is listed with its reason, never dropped."""


@dataclass
class Entry:
    """One contestant: what to call, how to read its result, and what that is to be compared with.

    `call` takes no arguments. `value` says that it returns the figure itself (seconds, megabytes) instead of being
    timed. `result` turns what it returns into float64 arrays of NumPy, or is None where there is nothing to compare.
    `factor` multiplies the figure: more than 1 where a part is measured and the whole extrapolated.
    """

    name: str
    call: Callable[[], Any]
    result: Callable[[Any], Any] | None = None
    value: bool = False
    factor: float = 1.0
    figures: list[float] = field(default_factory=list)
    rounds: dict[int, float] = field(default_factory=dict)  # median of the figures of each round it took part in

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


def measure(entries: list[Entry], rounds: int, most_seconds: float) -> None:
    """Fill in the figures: every round takes all entries in turn, beginning with another one each time.

    In its turn an entry is called in four bursts, the first of which warms up and does not count; a burst is one call,
    or as many as take two milliseconds. Slow entries have one call.

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
            figures = [entry.factor * figure for figure in figures]
            entry.figures += figures
            entry.rounds[index] = statistics.median(figures)
            used[id(entry)] += time.perf_counter() - began


def _number(call: Callable[[], Any]) -> int:
    """How many calls make a burst: judged by the fastest of some, because the first ones compile, load and plan."""
    burst(call, 1)
    tried: list[float] = []
    while len(tried) < 8 and sum(tried) < SLOW:
        tried.append(burst(call, 1))
    return math.ceil(LEAST_BURST / max(min(tried), 1e-7))


def _turn(call: Callable[[], Any], number: int) -> list[float]:
    """Seconds a call, of some bursts."""
    time.sleep(PAUSE)
    first = burst(call, number)
    return [first] if first > SLOW else [burst(call, number) for _ in range(3)]
