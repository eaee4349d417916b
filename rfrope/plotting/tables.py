"""Mean kernels as numbers, for pages that draw them: ranges in bins of lags, first lags below a level, wavelengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rfrope import analysis, scaling
from rfrope._core import angles
from rfrope.frequencies import geometric
from rfrope.plotting.drawing import Bins

_ALL_LAGS = 2**18  # up to which every lag counts
_SOME_LAGS = 64  # of a bin, beyond
_ROUNDED = 1e-12  # what the sums leave unknown
_DECIMALS = 6
_FURTHER = 4  # contexts beyond that of the command
_LONGEST = 2**24  # positions
_BASES = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
_FACTORS = (2, 4, 8, 16, 32)


@dataclass(frozen=True, eq=False)
class Curve:
    """Frequencies whose mean kernel a page draws."""

    label: str
    frequencies: np.ndarray  # (D,) or (D, k): radians per position; with several axes, lags run along the diagonal
    last: int  # the largest lag
    still: int = 0  # blocks of the head that stand still, beside these
    gain: float = 1.0  # weight of the blocks that turn: the square of an attention factor
    group: int = 0  # the choice that it belongs to, where there are several


def lag_bins(last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return first and last lags of the bins in which lags 1 to `last` are drawn: those of the figures."""
    edges = Bins.edges(last)
    starts: np.ndarray = edges[(edges >= 1) & (edges <= last)].astype(np.int64)
    starts = starts if starts.size else np.ones(1, np.int64)
    return starts, np.append(starts[1:] - 1, max(last, 1))


def contexts_around(context: int) -> list[int]:
    """Return contexts from 2 to four times the given one, half an octave apart, the given one among them."""
    most = min(_FURTHER * context, max(_LONGEST, context))
    octaves = np.arange(math.floor(-2 * math.log2(context / 2)), 2 * math.log2(_FURTHER) + 1) / 2
    around = np.rint(context * 2.0**octaves).astype(np.int64)
    return sorted({2, context, most} | {int(c) for c in around if 2 <= c <= most})


def tabulated(curve: Curve, contexts: Sequence[int]) -> dict[str, Any]:
    """Return the mean kernel of a curve in bins of lags, and rows of text on each context.

    Parameters
    ----------
    curve : Curve
    contexts : sequence of int
        As `contexts_around` gives them.

    Returns
    -------
    dict
        ``label``, ``group``; ``low``, ``mid``, ``high``: smallest, median and largest value in each bin of lags;
        ``wavelengths``, None for a block that stands still; ``rows``: for each context up to 2^18 the first lags below
        1/2 and below 0, the lowest value, its lag, and the number of blocks that never turn.
    """
    terms = np.sum(angles.read_on_host(curve.frequencies).astype(np.float64), axis=-1)
    starts, ends = lag_bins(contexts[-1] - 1)
    last = min(curve.last, contexts[-1] - 1)
    starts, ends = starts[starts <= last], np.minimum(ends[starts <= last], last)
    lags = _counted_lags(starts, ends)
    blocks = len(terms) + curve.still
    values = (curve.gain * len(terms) * analysis.mean_kernel(lags, terms) + curve.still) / blocks
    ranges = Bins(np.searchsorted(lags, starts), starts).range(values)
    names = ("low", "mid", "high")
    return {
        "label": curve.label,
        "group": curve.group,
        **{name: np.round(one, _DECIMALS).tolist() for name, one in zip(names, ranges, strict=True)},
        "wavelengths": [float(f"{2 * math.pi / abs(w):.6g}") if w else None for w in terms.tolist()],
        "rows": list(_rows(values, terms, curve.still, [min(context - 1, last) for context in contexts])),
    }


def _counted_lags(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the lags that are summed: all of the near ones, and some of each bin beyond."""
    near = np.arange(1, min(ends[-1], _ALL_LAGS) + 1)
    bins = zip(starts[ends > _ALL_LAGS], ends[ends > _ALL_LAGS], strict=True)
    far = [np.linspace(first, end, min(end - first + 1, _SOME_LAGS)).round().astype(np.int64) for first, end in bins]
    return np.concatenate([near, *(lags[lags > _ALL_LAGS] for lags in far)])


def _rows(values: np.ndarray, terms: np.ndarray, still: int, lasts: Sequence[int]) -> Iterator[list[str]]:
    below = [np.flatnonzero(values[:_ALL_LAGS] < level - _ROUNDED) for level in (0.5, 0.0)]
    for last in lasts:
        if last > _ALL_LAGS:
            return
        firsts = [str(lags[0] + 1) if lags.size and lags[0] < last else "never" for lags in below]
        lowest = int(np.argmin(values[:last]))
        dead = still + int(np.sum(np.abs(terms) * (last + 1) < 2 * math.pi))
        yield [*firsts, f"{values[lowest]:.3f}", str(lowest + 1), str(dead)]


def alternatives(curve: Curve, base: float | None, original: int) -> Iterator[tuple[str, list[Curve]]]:
    """Yield what else blocks could be, by name: curves with other bases, and of schemes with factors."""
    n_blocks = len(curve.frequencies)
    curve = replace(curve, gain=1.0)
    if base is None or n_blocks < 2 or not 1.0 < base < math.inf:
        omega = curve.frequencies
        stretched = [replace(curve, label=f"wavelengths x {s}", frequencies=omega / s) for s in _FACTORS]
        yield "all wavelengths, times", stretched
        return
    ladder = geometric(n_blocks, base=base)
    bases = sorted({base, *_BASES})
    yield "base", [replace(curve, label=f"base {b:g}", frequencies=geometric(n_blocks, base=b)) for b in bases]
    schemes: dict[str, Callable[[float], Any]] = {
        "linear": lambda s: scaling.linear(ladder, s),
        "ntk": lambda s: scaling.ntk(ladder, s),
        "yarn": lambda s: scaling.yarn(ladder, s, base=base, original_max_position_embeddings=original),
        "llama3": lambda s: scaling.llama3(
            ladder, s, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=original
        ),
    }
    for name, scheme in schemes.items():
        yield (
            f"{name}, factor",
            [replace(curve, label=f"{name}, factor {s}", frequencies=scheme(s).frequencies) for s in _FACTORS],
        )
