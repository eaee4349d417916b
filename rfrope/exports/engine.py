"""The record of an engine, what is asked of it, and the rounding that it forces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import capacity
from rfrope._core.texts import Result
from rfrope.rotation.rope import Rope

STILL = 1e30  # the divisor that stands for a frequency of 0: no position turns by it in float32
ULP = 2.0**-24  # largest relative rounding of float32


class Asked(NamedTuple):
    """A checked Rope, and the options that its engine uses.

    Attributes
    ----------
    rope : Rope
        As it came.
    omega : array, (D,), float64, or as the Rope has them where the engine takes any
        Its frequencies on the host.
    context : int or None
        Positions for which tables are made and roundings given.
    base : float
        Base of the ladder that divisors refer to.
    dtype : str
        Type of tables.
    architecture : str
        Architecture of a GGUF.
    """

    rope: Rope
    omega: np.ndarray
    context: int | None
    base: float
    dtype: str
    architecture: str

    @property
    def positions(self) -> np.ndarray:
        """All those of the context."""
        length = self.context or 0
        capacity.check(32.0 * length * max(1, self.rope.rotary_dim), f"a table of context={length}", "context")
        return np.arange(length)


class Used(NamedTuple):
    """How a target computes with what it was given.

    Attributes
    ----------
    omega : array, (D,), or None
        Frequencies as the target has them; None where it is given a table.
    phase : array, (D,)
        Largest relative error of a phase beside that of its frequency, from the target's own arithmetic.
    entry : float
        Largest error of an entry of cos or sin, of size 1, beside that of its phase.
    """

    omega: np.ndarray | None
    phase: np.ndarray | float
    entry: float


@dataclass(frozen=True)
class Engine:
    """What one engine takes, as data; names, errors, files, the documentation's table and tests follow from it.

    Attributes
    ----------
    name : str
        What users call it.
    carries : str
        What is written for it, in the engine's own words.
    exact : str
        What rounds.
    source : str
        Files of the engine that were read, with its version, and whether a test runs it.
    make : callable
        `Asked` to plain data.
    used : callable
        `Asked` and that data to `Used`.
    file : str
        How it is written: config, text, arrays, onnx or gguf.
    suffixes : tuple of str
        Endings of such files.
    pairings : tuple of str
        Those that it can turn.
    factor : bool
        Whether it keeps an attention factor.
    partial : bool
        Whether heads may be wider than what turns.
    anything : bool
        Whether sets for each head and several axes fit in.
    options : tuple of str
        Those of context, base, dtype and architecture that it uses.
    refuses : callable
        `Asked` to a reason against it that the fields above do not say, or "".
    cannot : str
        What ``refuses`` refuses, in words.
    """

    name: str
    carries: str
    exact: str
    source: str
    make: Callable[[Asked], dict[str, Any]]
    used: Callable[[Asked, dict[str, Any]], Used]
    file: str
    suffixes: tuple[str, ...]
    pairings: tuple[str, ...] = ("half", "interleaved")
    factor: bool = True
    partial: bool = True
    anything: bool = False
    options: tuple[str, ...] = ("context",)
    refuses: Callable[[Asked], str] = field(default=lambda asked: "")
    cannot: str = ""

    @property
    def lacks(self) -> str:
        """What it cannot carry, in words."""
        lacks = [] if self.anything else ["sets for each head", "several axes"]
        lacks += [] if len(self.pairings) == 2 else ["interleaved pairs"]
        lacks += [] if self.factor else ["an attention factor"]
        lacks += [] if self.partial else ["partial width"]
        return ", ".join([*lacks, self.cannot] if self.cannot else lacks) or "nothing"


@dataclass(frozen=True)
class Rounding(Result):
    """What an export loses, over the positions of its context.

    Attributes
    ----------
    frequency : float
        Largest relative error of a frequency as the engine has it, to those above 1e-30; 0 where it is given tables.
    kernel : float
        Largest error of the mean kernel ``(1/D) sum_i cos(lag omega_i)`` for those frequencies, or for that table, at
        lags 0 to ``context - 1``.
    table : float
        Bound of the error of an entry of cos or sin at any position, the engine's own float32 phases included, in units
        of the attention factor. A rotated feature is off by at most ``table * (|x_1| + |x_2|)`` times that factor.
    context : int
        How many positions.
    """

    frequency: float
    kernel: float
    table: float
    context: int

    def __str__(self) -> str:
        return (
            f"over {self.context} positions: frequencies to {self.frequency:.1e}, the mean kernel to "
            f"{self.kernel:.1e}, entries of cos and sin within {self.table:.1e}"
        )


def divisors(asked: Asked, ladder: np.ndarray) -> np.ndarray:
    """Factors by which an engine divides its own ladder ``(D,)``; 1e30 where a frequency is 0."""
    with np.errstate(divide="ignore", over="ignore"):
        found = ladder / asked.omega
    return np.where(np.abs(found) < STILL, found, np.copysign(STILL, asked.omega))
