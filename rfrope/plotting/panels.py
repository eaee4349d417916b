"""Figures of pages as data: lines, and the choices that say which of them are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rfrope import analysis, scaling
from rfrope._core import angles
from rfrope.frequencies import geometric
from rfrope.plotting import figures
from rfrope.validation import QUANTITIES, Row, Validation

_ALL_LAGS = 2**18  # up to which every lag counts
_SOME_LAGS = 64  # of a bin, beyond
_ROUNDED = 1e-12  # what the sums leave unknown
_DIGITS = 6
_FURTHER = 4  # contexts beyond that of the command
_LONGEST = 2**24  # positions
_BASES = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)
_FACTORS = (2, 4, 8, 16, 32)
_MORE = "one more line"
_INK = -1  # colour of text
_HEAD: tuple[str, ...] = ("", "first < 1/2", "first < 0", "lowest", "at", "never turn")

Panel = dict[str, Any]  # a figure, table or group of them, as the script of a page reads it


@dataclass(frozen=True, eq=False)
class Curve:
    """Frequencies whose mean kernel a page draws."""

    label: str
    frequencies: np.ndarray  # (D,) or (D, k): radians per position; with several axes, lags run along the diagonal
    last: int  # the largest lag
    still: int = 0  # blocks of the head that stand still, beside these


def mean_kernels(
    title: str,
    sets: Sequence[Curve],
    context: int,
    *,
    ladder: tuple[float | None, int] | None = None,
    heads: Sequence[str] = (),
    head: int = 0,
    phi: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]] | None = None,
    stretched: int = 0,
) -> Panel:
    """Return mean kernels and wavelengths of blocks, with a choice of contexts and of one more line.

    Parameters
    ----------
    title : str
    sets : sequence of Curve
        One for each of `heads`, if there are some. Those that reach the end of the context continue beyond it.
    context : int
        Context that is shown first.
    ladder : tuple, optional
        Base, and positions in training, of the ladder that other bases and schemes change. Without it, set number
        `stretched` is also drawn with longer wavelengths, unless there are heads.
    heads : sequence of str
        Names of heads, shown one at a time, starting with number `head`.
    phi : callable, optional
        Maps lags and the number of a head to the kernel's Phi and its standard deviation.
    stretched : int
    """
    contexts = contexts_around(context)
    last = contexts[-1] - 1
    starts, ends = lag_bins(last)
    controls = [_choose("context", contexts, contexts.index(context), slider=True)]
    controls += [_choose("head", heads, head)] if heads else []
    longest = [replace(one, last=last) if one.last == context - 1 else one for one in sets]
    drawn = [(one, {"head": i} if heads else {}, 0 if heads else i) for i, one in enumerate(longest)]
    others = {} if heads else dict(alternatives(replace(longest[stretched], last=last), *(ladder or (None, context))))
    controls += [_choose(_MORE, ["none", *others], 0)] if others else []
    for number, (name, choices) in enumerate(others.items(), 1):
        controls.append(_choose(name, [one.label for one in choices], 0, slider=True) | {"when": {_MORE: number}})
        drawn += [(one, {_MORE: number, name: i}, len(sets)) for i, one in enumerate(choices)]
    lines, waves, rows = [], [], [_HEAD]
    when: list[dict[str, int]] = [{}]
    for one, condition, colour in drawn:
        ranges, cells = tabulate(one, contexts)
        lines.append(_line(one.label, colour, **ranges, when=condition))
        waves.append(_line(one.label, colour, analysis.wavelengths(_terms(one)), when=condition))
        rows += [(one.label, *row) for row in cells]
        when += [condition | {"context": i} for i in range(len(cells))]
    middles = (starts + ends) // 2
    bands = [] if phi is None else [phi(middles, i) for i in range(len(heads) or 1)]
    for i, (value, stderr) in enumerate(bands):
        label = "Φ, and one standard deviation of independent draws"
        lines.append(_line(label, _INK, value, value - stderr, value + stderr, drawn[i][1] if heads else {}))
    axes = max(one.frequencies.shape[-1] if one.frequencies.ndim > 1 else 1 for one in sets)
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    names = [f"lag {b}" if a == b else f"lags {a} to {b}: median (smallest to largest)" for a, b in spans]
    reach = {"by": "context", "values": [max(one - 1, 2) for one in contexts]}
    note = "A mean kernel is the score of equal content at a distance, averaged over contents. Where a line stands for "
    note += "several lags it is their median, inside their range."
    parts = [_chart(title, (figures.lag_label(axes), "mean kernel"), middles, lines, names, x_scale="log", reach=reach)]
    more = f"Beyond {_ALL_LAGS} positions a part of the lags is summed, and no first lag is given."
    more = more if last > _ALL_LAGS else ""
    parts.append({"kind": "table", "rows": rows, "when_rows": when, "left": [0], "note": more})
    if axes == 1 and not heads:
        for i, reached in enumerate(contexts):
            waves.append({"label": f"context {reached}", "colour": _INK, "level": reached, "when": {"context": i}})
        blocks = np.arange(max(len(one.frequencies) for one, _, _ in drawn))
        label = "Wavelengths of the blocks"
        chart = _chart(label, ("block", "wavelength (positions)"), blocks, waves, y_scale="log")
        about = {"title": label, "note": "A block above the context, the dashed line, completes no turn in it."}
        parts.append(chart | about)
    return {"kind": "panel", "title": title, "note": note, "controls": controls, "parts": parts}


def comparisons(title: str, results: Sequence[Validation]) -> Panel:
    """Return the z of every comparison of some validations, shown one at a time, the worst first."""
    parts = []
    for number, one in enumerate(results):
        rows = sorted(one.rows, key=lambda row: QUANTITIES.index(row.quantity))
        lines = [
            _line(name, colour, np.array([row.z if row.quantity == name else math.nan for row in rows]))
            | {"points": True}
            for colour, name in enumerate(QUANTITIES)
        ]
        bounds = {"bound": one.bound, "-bound": -one.bound}
        lines += [{"label": name, "colour": _INK, "level": level} for name, level in bounds.items()]
        names = [_describe(row) for row in rows]
        labels = ("quantity; then lag and pair", "z = (estimate - closed form) / std. error")
        parts.append(_chart(title, labels, np.arange(len(rows)), lines, names) | {"when": {"kernel": number}})
    sizes = [abs(one.worst.z) for one in results]
    controls = [_choose("kernel", [one.kernel for one in results], sizes.index(max(sizes)))]
    note = "A point for each quantity, lag and pair of q and k. All lie between the dashed lines where theory and "
    note += "experiment agree."
    return {"kind": "panel", "title": title, "note": note, "controls": controls, "parts": parts}


def _describe(row: Row) -> str:
    pair = "" if row.pair is None else f", pair {row.pair}"
    numbers = f"closed form {row.closed_form:.6g}, estimate {row.estimate:.6g} ± {row.stderr:.2g}"
    return f"{row.quantity}, lag {row.place}{pair}: z {row.z:.3g}, {numbers}"


def _choose(name: str, values: Sequence[Any], start: int, *, slider: bool = False) -> Panel:
    return {"name": name, "values": [str(one) for one in values], "start": start, "slider": slider}


def _line(
    label: str,
    colour: int,
    mid: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    when: Mapping[str, int] | None = None,
) -> Panel:
    bands = {"mid": mid} | ({} if low is None or high is None else {"low": low, "high": high})
    return {"label": label, "colour": colour, "when": when or {}} | {name: _listed(one) for name, one in bands.items()}


def _listed(values: np.ndarray) -> list[float | None]:
    return [float(f"{v:.{_DIGITS}g}") if math.isfinite(v) else None for v in values.tolist()]


def _chart(
    label: str, labels: tuple[str, str], x: np.ndarray, lines: Sequence[Panel], names: Sequence[str] = (), **more: Any
) -> Panel:
    about = {"kind": "chart", "label": label, "xlabel": labels[0], "ylabel": labels[1]}
    return about | {"x": x.tolist(), "names": list(names), "lines": list(lines)} | more


# -- mean kernels in bins of lags --------------------------------------------------------------------------------------


def lag_bins(last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return first and last lags of the bins for lags 1 to `last`, as in figures."""
    edges = figures.bin_edges(last)
    starts: np.ndarray = edges[(edges >= 1) & (edges <= last)].astype(np.int64)
    return starts, np.append(starts[1:] - 1, last)


def contexts_around(context: int) -> list[int]:
    """Return contexts from 2 to four times `context`, half an octave apart, including `context`."""
    most = min(_FURTHER * context, max(_LONGEST, context))
    octaves = np.arange(math.floor(-2 * math.log2(context / 2)), 2 * math.log2(_FURTHER) + 1) / 2
    around = np.rint(context * 2.0**octaves).astype(np.int64)
    return sorted({2, context, most} | {int(c) for c in around if 2 <= c <= most})


def tabulate(curve: Curve, contexts: Sequence[int]) -> tuple[dict[str, np.ndarray], list[tuple[str, ...]]]:
    """Return the mean kernel of a curve in bins of lags, and a row of text on each context.

    Parameters
    ----------
    curve : Curve
    contexts : sequence of int
        Result of `contexts_around`.

    Returns
    -------
    bands : dict of str to array
        Median, smallest and largest value in each bin.
    rows : list of tuple of str
        For each context up to 2^18 the first lags below 1/2 and below 0, the lowest value, its lag, and the number of
        blocks that complete no turn; empty texts beyond.
    """
    terms = _terms(curve)
    starts, ends = lag_bins(contexts[-1] - 1)
    last = min(curve.last, contexts[-1] - 1)
    starts, ends = starts[starts <= last], np.minimum(ends[starts <= last], last)
    near, bins = np.arange(1, min(ends[-1], _ALL_LAGS) + 1), zip(starts, ends, strict=True)
    far = [np.linspace(a, b, min(b - a + 1, _SOME_LAGS)).round().astype(np.int64) for a, b in bins if b > _ALL_LAGS]
    lags = np.concatenate([near, *(some[some > _ALL_LAGS] for some in far)])
    blocks = len(terms) + curve.still
    values = (len(terms) * analysis.mean_kernel(lags, terms) + curve.still) / blocks
    low, mid, high = figures.ranges_of_bins(values, np.searchsorted(lags, starts))
    below = [np.flatnonzero(values[:_ALL_LAGS] < level - _ROUNDED) for level in (0.5, 0.0)]
    rows = []
    for end in (min(context - 1, last) for context in contexts):
        firsts = [str(one[0] + 1) if one.size and one[0] < end else "never" for one in below]
        lowest = int(np.argmin(values[:end]))
        dead = curve.still + int(np.sum(np.abs(terms) * (end + 1) < 2 * math.pi))
        known = (*firsts, f"{values[lowest]:.3f}", str(lowest + 1), str(dead))
        rows.append(known if end <= _ALL_LAGS else ("",) * len(known))
    return {"mid": mid, "low": low, "high": high}, rows


def _terms(curve: Curve) -> np.ndarray:
    """Return the frequencies of lags that are the same on all axes."""
    return np.sum(angles.read_on_host(curve.frequencies).astype(np.float64), axis=-1)


def alternatives(curve: Curve, base: float | None, original: int) -> Iterator[tuple[str, list[Curve]]]:
    """Yield alternatives to the blocks of a curve, by name: curves with other bases, and of schemes with factors."""
    n_blocks = len(curve.frequencies)
    if base is None or n_blocks < 2 or not 1.0 < base < math.inf:
        stretched = [replace(curve, label=f"wavelengths x {s}", frequencies=curve.frequencies / s) for s in _FACTORS]
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
        scaled = [replace(curve, label=f"{name}, factor {s}", frequencies=scheme(s).frequencies) for s in _FACTORS]
        yield f"{name}, factor", scaled
