"""A summary of frequencies over a context, as one result and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import angles, array
from rfrope._core.arguments import is_several, positive, show, whole
from rfrope._core.results import WIDTH, Part, Report, Result, Table, Words
from rfrope.analysis.bases import integral_rule, ladder_base
from rfrope.analysis.curves import aliasing_distance, first_lag, first_negative_lag, mean_kernel, scan_lags
from rfrope.analysis.fits import KernelFit, fit_kernel
from rfrope.rotation.rope import Rope

_SHOWN = 7  # lags that a reader sees, beside 0
_LADDER = 1e-6  # largest relative departure of a geometric ladder from its base
_FAR = 0.15  # root mean square from which a fitted kernel does not describe the curve
_VARIED = 1.0052  # of products of two softplus of standard normal numbers, the standard deviation over the mean
_HIGH = 0.9  # value of the mean kernel from which two positions look the same


@dataclass(frozen=True)
class AxisSummary(Result):
    """Effects of the frequencies of one axis over a context.

    Attributes
    ----------
    axis : int
    n_turning : int
        Blocks with nonzero frequency on this axis.
    shortest, longest : float, in positions
        Wavelengths of these blocks; infinite if there are none.
    n_dead : int
        Number of these blocks that complete no turn within the context ("dead channels").
    n_still : int
        Number of these that complete less than a quarter of a turn.
    base : float or None
        Base, if the frequencies are a geometric ladder that starts at 1; otherwise None.
    curve : tuple of (int, float)
        Mean kernel at some lags: the expected score of a unit vector with itself, without attention factor. Unrotated
        features of the head count as blocks of frequency 0.
    half_lag : int or None
        First lag with mean kernel below 1/2; None if there is none within the context.
    first_negative_lag : int or None
        First lag with mean kernel below 0, the mean score of unrelated content.
    negative_share : float
        Fraction of the lags 1, ..., context - 1 with mean kernel below 0.
    lowest, lowest_lag : float, int
        Smallest value of the mean kernel, and its lag.
    aliasing_distance : int or None
        First lag at which the mean kernel is 0.9 or more again, after being below.
    integral_rule : float
        Base required by the integral rule for the context. The sum over few blocks usually needs a larger one.
    fit : KernelFit or None
        Registered kernel nearest to the mean kernel of the blocks that turn; None if there are none.
    context : int
        Positions along the axis; lags are 0, ..., context - 1.

    See Also
    --------
    analysis.Summary

    Examples
    --------
    >>> import rfrope
    >>> (axis,) = rfrope.analysis.summarise(rfrope.geometric(32), 4096).axes
    >>> axis.half_lag, axis.n_dead, round(axis.shortest, 3)
    (28, 9, 6.283)
    """

    axis: int
    n_turning: int
    shortest: float
    longest: float
    n_dead: int
    n_still: int
    base: float | None
    curve: tuple[tuple[int, float], ...]
    half_lag: int | None
    first_negative_lag: int | None
    negative_share: float
    lowest: float
    lowest_lag: int
    aliasing_distance: int | None
    integral_rule: float
    fit: KernelFit | None
    context: int


@dataclass(frozen=True)
class Summary(Result):
    """Effects of frequencies over a context; ``str(summary)`` explains them in words.

    Attributes
    ----------
    name : str or None
    n_blocks : int
        D; 2D features of a head are rotated, or D magnitudes.
    head_dim : int
        Number of features in a score, 2D or more; for a polar Rope D.
    context : int or tuple of int
        Number of positions, one for each axis where they differ; lags are 0, ..., context - 1.
    attention_factor : float
        Factor of cos and sin; scores are multiplied by its square.
    random_std : float
        Standard deviation of the score of a unit query with a random unit key, ``1/sqrt(head_dim)`` at every lag, with
        mean 0. For a polar Rope, that of a score at lag 0, with mean 1, for contents that are softplus of independent
        standard normal numbers; it is smaller at other lags.
    axes : tuple of AxisSummary
        One for each position axis, for lags along that axis.
    polar : bool
        Whether the Rope is polar, with magnitudes as blocks.

    See Also
    --------
    analysis.summarise, analysis.AxisSummary

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.analysis.summarise(rfrope.geometric(32), 4096)
    >>> found.n_blocks, found.axes[0].n_dead
    (32, 9)
    """

    name: str | None
    n_blocks: int
    head_dim: int
    context: int | tuple[int, ...]
    attention_factor: float
    random_std: float
    axes: tuple[AxisSummary, ...]
    polar: bool = False

    @property
    def slots(self) -> int:
        """Number of blocks that fit in a head; those beyond D are not rotated."""
        return self.head_dim if self.polar else (self.head_dim + 1) // 2

    def report(self) -> Report:
        """Return the width of a head, a summary, and for each axis its blocks, scores by distance, base and kernel."""
        rotated, name = (1 if self.polar else 2) * self.n_blocks, f"{self.name}: " if self.name else ""
        kind = "magnitudes" if self.polar else "features"
        partial = rotated < self.head_dim
        lines = [
            f"{name}{self.n_blocks} {'frequency' if self.n_blocks == 1 else 'frequencies'} for {rotated} "
            f"{f'of the {self.head_dim} ' if partial else ''}{kind} of a head, over a context of "
            f"{' x '.join(map(str, np.atleast_1d(self.context)))} positions."
        ]
        if partial:
            lines.append("The other features are not rotated, and count below as blocks of frequency 0.")
        if self.attention_factor != 1.0:
            part = "the part of a score from rotated features" if partial else "every score"
            lines.append(
                f"cos and sin are multiplied by {self.attention_factor:.6g}, so {part} by "
                f"{self.attention_factor**2:.6g}; the scores below leave this out."
            )
        several = len(self.axes) > 1
        short = [
            f"In short{f', axis {axis.axis}' if several else ''}: {_finding(axis, self.polar)}" for axis in self.axes
        ]
        parts: list[Part] = [Words([*lines, *short])]
        for axis in self.axes:
            parts += [Words([f"Lags along axis {axis.axis}"])] if several else []
            parts += _describe_axis(axis, self)
        return Report(parts, " ".join(short))


@array.select_device
def summarise(
    frequencies: Any,
    context: int | Sequence[int] | None = None,
    *,
    attention_factor: float | None = None,
    head_dim: int | None = None,
    name: str | None = None,
) -> Summary:
    """Summarise frequencies over a context: wavelengths, dead channels, mean kernel, base, and nearest kernel.

    Parameters
    ----------
    frequencies : Rope or array_like, radians per unit of position
        ``(D,)`` or ``(D, k)``, with at least one block. A Rope's attention factor and head width count; its sections do
        not: all axes advance together, as in text.
    context : int or sequence of int, optional
        Number of positions, at least 2, or one for each axis. Default: that of the Rope.
    attention_factor : float, optional
        Positive. Default: that of `frequencies`, or 1.
    head_dim : int, optional
        Number of features in a score; those beyond 2D are not rotated, and count as blocks of frequency 0. Default:
        that of `frequencies`, or 2D; for a polar Rope D.
    name : str, optional
        Name to print.

    Returns
    -------
    Summary
        ``print`` it, or read its fields.

    Raises
    ------
    ValueError
        If a frequency is NaN or infinite, there are no blocks, the array has more than two axes, the context is below
        2, the head is narrower than 2D or not D for a polar Rope, or the attention factor is not positive and finite.
    TypeError
        If frequencies are not an array of numbers, or a number is not whole.

    See Also
    --------
    analysis.Summary, analysis.plan, from_config

    Notes
    -----
    All whole lags 0, ..., context - 1 are used: positions are tokens or patches, one apart. The mean kernel
    ``C(lag) = (1/D) sum cos(lag theta)`` is the score of a unit vector in a random direction with itself (Zhao), that
    is, of equal content averaged over contents. Trained queries and keys weigh the blocks unequally; see `sine_share`
    and `departure`. For a polar Rope it is the score of any two tokens, relative to lag 0, averaged over contents of
    similar magnitudes.

    Examples
    --------
    >>> import rfrope
    >>> llama = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    ...          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    >>> summary = summarise(rfrope.models.from_rope_parameters(llama, head_dim=128), 131072)
    >>> along = summary.axes[0]
    >>> along.n_dead, along.first_negative_lag
    (25, 85133)
    """
    omega = angles.read_on_host(frequencies.frequencies if isinstance(frequencies, Rope) else frequencies, shapes="one")
    rope = frequencies if isinstance(frequencies, Rope) else Rope(omega)
    lengths, n_blocks, polar = _lengths(rope.context if context is None else context, omega), len(omega), rope.polar
    head_dim = rope.qk_head_dim if head_dim is None else head_dim
    if polar:
        head_dim = whole("head_dim", head_dim, n_blocks, n_blocks)
    else:
        head_dim = max(whole("head_dim", head_dim, 2 * n_blocks - 1), 2 * n_blocks)  # an odd width is rounded up
    factor = positive("attention_factor", rope.attention_factor if attention_factor is None else attention_factor)
    if not (name is None or isinstance(name, str)):
        raise TypeError(f"name is {show(name)}; expected a string")
    still = np.zeros(0 if polar else (head_dim + 1) // 2 - n_blocks)
    axes = tuple(
        _axis_summary(axis, np.concatenate([column, still]), n_blocks, lengths[axis])
        for axis, column in enumerate(omega.T)
    )
    span = lengths[0] if len(set(lengths)) == 1 else lengths
    std = (_VARIED if polar else 1.0) / math.sqrt(head_dim)
    return Summary(name, n_blocks, head_dim, span, factor, std, axes, polar)


def _lengths(context: Any, omega: np.ndarray) -> tuple[int, ...]:
    """Positions along each axis of frequencies ``(D, k)``."""
    if context is None:
        raise ValueError("context is missing; expected a number of positions, such as 4096")
    axes = omega.shape[-1]
    given = context if isinstance(context, range) or is_several(context) else (context,)
    lengths = tuple(whole("context", length, 2) for length in given)
    if len(lengths) not in (1, axes):
        raise ValueError(
            f"context has {len(lengths)} numbers; expected one, or {axes}, one for each axis of the frequencies"
        )
    return lengths * axes if len(lengths) == 1 else lengths


def _axis_summary(axis: int, theta: np.ndarray, n_blocks: int, context: int) -> AxisSummary:
    """Read the frequencies of one axis; those beyond the first `n_blocks` are 0."""
    turning = np.abs(theta[theta != 0.0])
    lengths = 2.0 * math.pi / turning if turning.size else np.array([math.inf])
    n_negative, lowest, lowest_lag, rounded = 0, math.inf, 0, 1e-14 + 4e-16 * len(theta)
    for start, curve in scan_lags(theta, 1, context - 1):
        n_negative += int(np.sum(curve < -rounded))
        at = int(np.argmin(curve))
        if curve[at] < lowest:
            lowest, lowest_lag = float(curve[at]), start + at
    lags = np.unique(np.concatenate([[0], np.rint(np.geomspace(1, context - 1, _SHOWN)).astype(np.int64)]))
    return AxisSummary(
        axis=axis,
        n_turning=int(turning.size),
        shortest=float(lengths.min()),
        longest=float(lengths.max()),
        n_dead=int(np.sum(turning * context < 2.0 * math.pi)),
        n_still=int(np.sum(turning * context < 0.5 * math.pi)),
        base=ladder_base(theta[:n_blocks], _LADDER),
        curve=tuple((int(lag), float(value)) for lag, value in zip(lags, mean_kernel(lags, theta), strict=True)),
        half_lag=first_lag(theta, 1, context - 1, 0.5, below=True),
        first_negative_lag=first_negative_lag(theta, context - 1),
        negative_share=n_negative / (context - 1),
        lowest=0.0 if abs(lowest) <= rounded else lowest,
        lowest_lag=lowest_lag,
        aliasing_distance=aliasing_distance(theta, context - 1, threshold=_HIGH),
        integral_rule=integral_rule(context),
        fit=fit_kernel(turning, context - 1)[0] if turning.size else None,
        context=context,
    )


def _finding(axis: AxisSummary, polar: bool) -> str:
    """One line: where the score of equal content, or of any, falls, and how many blocks complete no turn."""
    if not axis.n_turning:
        return "no block turns."
    half, below = ("no lag" if lag is None else f"lag {lag}" for lag in (axis.half_lag, axis.first_negative_lag))
    blocks = f"{axis.n_dead} of {axis.n_turning} {'block' if axis.n_turning == 1 else 'blocks'}"
    content = "content on average" if polar else "equal content"
    return f"{content} first scores below 1/2 at {half}, below 0 at {below}; {blocks} complete no turn."


def _describe_axis(axis: AxisSummary, summary: Summary) -> Iterator[Part]:
    """Yield tables on one axis."""
    if not axis.n_turning:
        yield Words(["No block turns: this axis does not change scores."])
        return
    longest = f"{axis.longest:.4g}" if axis.longest < 1e4 or axis.longest >= 1e12 else f"{axis.longest:.0f}"
    rows = [
        ("turn", f"{axis.n_turning}, once in {axis.shortest:.4g} (the fastest) to {longest} positions"),
        ("not rotated", f"{summary.slots - axis.n_turning}"),
        ("complete no turn", f"{axis.n_dead} within the context, {axis.n_still} not even a quarter of one"),
    ]
    if axis.shortest < 2.0:
        rows.append(("some", "over half a turn between neighbours (expected for coordinates from -1 to 1)"))
    yield Table(rows, f"Blocks ({'one magnitude' if summary.polar else 'two features'} each)", head=False)
    cells = [(str(lag), f"{value:.3f}") for lag, value in axis.curve]
    width = WIDTH.get()
    few = len(cells) if width is None else max((width - 22) // 9, 1)
    rows = []
    for first in range(0, len(cells), few):
        for name, column in zip(("distance", "score"), zip(*cells[first : first + few], strict=True), strict=True):
            rows.append((name, "".join(f"{cell:<9}" for cell in column).rstrip()))
    rows.append(("below one half", _first(axis.half_lag)))
    rows.append(("below 0", f"{_first(axis.first_negative_lag)}; at {100.0 * axis.negative_share:.2g} % of them all"))
    rows.append(("lowest", f"{axis.lowest:.3f}, at distance {axis.lowest_lag}"))
    rows.append((f"{_HIGH} or more again", _first(axis.aliasing_distance)))
    if summary.polar:
        rows.append(("of one pair", f"as above, standard deviation {summary.random_std:.3f} at most (random contents)"))
    else:
        rows.append(("of a random token", f"0 at every distance, standard deviation {summary.random_std:.3f}"))
    who = "any two tokens" if summary.polar else "equal content"
    yield Table(rows, f"Score of {who} at a distance (1 at the same place, averaged over contents)", head=False)
    fit, rule = axis.fit, f"base {axis.integral_rule:.6g} or more for this context (integral); prefer the scores above"
    rows = [
        ("base", "none" if axis.base is None else f"{axis.base:.6g}, as in standard RoPE"),
        ("rule of thumb", rule),
        ("closest kernel", f"{fit.sentence}{': not near' if fit.rms > _FAR else ''}" if fit else "none"),
    ]
    yield Table(rows, "Origin", head=False)


def _first(lag: int | None) -> str:
    return "at no distance" if lag is None else f"first at distance {lag}"
