"""Figures drawn from kernels, frequencies and results."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rfrope import analysis
from rfrope._core import angles, array
from rfrope._core.arguments import show, whole
from rfrope._core.array import Array
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel
from rfrope.moments import mean_kernel_band

# Okabe and Ito (2008), which colour-blind readers can tell apart; yellow, too pale for a line, is left out
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_STYLES = ("-", "--", "-.", ":")
_DENSE = 1024  # from so many points on, a curve is drawn as its range and its median
_BINS = 256  # parts of the axis, at equal ratios and as many at equal distances
__all__ = ["kernel", "mean_kernels", "wavelengths"]
_ALL_LAGS = 2048  # up to so many every lag of a smooth curve is drawn, and as many more beyond
_MOST = 2**20  # lags, of all heads together, at which the mean kernels of frequencies are computed
_FEW_HEADS = 4  # that are drawn as a line each


def bin_edges(last: float) -> np.ndarray:
    """Return the first lags of bins from 0 to `last`, at equal ratios and at equal distances."""
    parts = (np.geomspace(1.0, float(last), _BINS), np.linspace(0.0, float(last), _BINS))
    return np.unique(np.rint(np.concatenate(parts)))


def ranges_of_bins(values: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the smallest, median and largest of the values ``(..., lags)`` in bins that start at some indices."""
    low, high = (one.reduceat(values, starts, axis=-1) for one in (np.minimum, np.maximum))
    parts = np.split(values, starts[1:], axis=-1)
    return low, np.stack([np.median(part, axis=-1) for part in parts], axis=-1), high


def lag_label(axes: int) -> str:
    """Return the label of an axis of lags, for a number of position axes."""
    return "lag (positions)" if axes == 1 else "lag on every axis (positions)"


def new_axes(ax: Any) -> Any:
    """Return the given axes, or those of a new pyplot figure, without frame at top and right."""
    if ax is not None and not all(hasattr(ax, name) for name in ("plot", "fill_between", "set_xlabel")):
        raise TypeError(f"ax is {show(ax)}; expected the axes of a figure of matplotlib, or None")
    if ax is None:
        if importlib.util.find_spec("matplotlib") is None:
            raise ModuleNotFoundError("figures need matplotlib: pip install matplotlib")
        ax = importlib.import_module("matplotlib.pyplot").subplots(layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="0.5", alpha=0.25, lw=0.5)
    ax.set_axisbelow(True)
    return ax


def style_line(number: int) -> dict[str, Any]:
    """Return colour and style of line `number`; the first 24 are all different."""
    return {"color": COLOURS[number % len(COLOURS)], "ls": _STYLES[number // len(COLOURS) % len(_STYLES)]}


def draw_curve(ax: Any, lags: np.ndarray, curves: np.ndarray, number: int, label: str) -> Any:
    """Draw a curve as a line; several, or one that would fill the figure, as their range and median."""
    style, curves = style_line(number), np.atleast_2d(curves)
    if len(curves) == 1 and len(lags) <= _DENSE:
        return ax.plot(lags, curves[0], lw=1.2, label=label, **style)[0]
    starts = np.unique(np.searchsorted(lags, bin_edges(lags[-1])))
    middles = lags[(starts + np.append(starts[1:], len(lags)) - 1) // 2]
    low, middle, high = ranges_of_bins(curves, starts)
    ax.fill_between(middles, low.min(axis=0), high.max(axis=0), color=style["color"], alpha=0.25, lw=0)
    return ax.plot(middles, np.median(middle, axis=0), lw=1.2, label=label, **style)[0]


def add_labels(ax: Any, artists: Sequence[Any], *, inside: bool = False) -> None:
    """Label the artists that have names: below the axes, or inside at the top right, in their colours."""
    named = [one for one in artists if one.get_label() and not str(one.get_label()).startswith("_")]
    if not named:
        return
    if inside:
        made = ax.legend(handles=named, loc="upper right", labelcolor="linecolor", framealpha=0.8)
        made.get_frame().set_linewidth(0.0)
    else:
        ax.legend(handles=named, loc="upper left", bbox_to_anchor=(0.0, -0.14), frameon=False, fontsize="small")


def escape_label(text: str) -> str:
    """Return a label that matplotlib draws literally: no mathematics between dollars, no hidden leading underscore."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


@array.select_device
def kernel(
    law: Kernel | str, max_lag: int, *, frequencies: Array | None = None, n_blocks: int | None = None, ax: Any = None
) -> Any:
    """Draw Phi over lags, with the mean kernel of frequencies and the band of independent draws.

    Parameters
    ----------
    law : Kernel or str
        The kernel; a string is read by `rfrope.kernels.parse`. With several axes lags run along the diagonal
        ``(1, 1, ...)``.
    max_lag : int
        Largest lag, at least 1, in units of position.
    frequencies : Rope or array_like, radians per unit of position, optional
        ``(D,)`` or ``(*H, D, k)``: one curve per head.
    n_blocks : int, optional
        D of the band, one standard deviation around Phi at each lag. Default: that of `frequencies`; without either, no
        band.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new pyplot figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing.
    ValueError, TypeError
        If the kernel, frequencies or a number is not as described above.

    See Also
    --------
    plotting.mean_kernels, moments.mean_kernel_band

    Notes
    -----
    Phi is drawn at whole lags: all up to 2048, and some 2048 beyond. Mean kernels are computed at every lag (up to
    2^20, beyond at equal ratios), and drawn as a line up to 1024 lags, otherwise as range and median of neighbouring
    lags. More than four heads are drawn as their range and median. The band is that of
    `rfrope.moments.mean_kernel_band`.

    Examples
    --------
    >>> import rfrope
    >>> ax = kernel("gaussian(scale=32)", 256, frequencies=rfrope.sample("gaussian(scale=32)", 64, rng=0))
    >>> ax.get_xlabel(), [line.get_label() for line in ax.lines]
    ('lag (positions)', ['these frequencies', 'Φ'])
    """
    law, max_lag = read_kernel(law, "law"), whole("max_lag", max_lag, 1)
    lags = _whole_lags(max_lag)
    vectors = law.restore_shape(np.repeat(lags[:, None], law.ndim, axis=1))
    omega = None
    if frequencies is not None:
        omega = _sets("frequencies", frequencies)
        if omega.shape[-1] != law.ndim:
            raise ValueError(f"frequencies have {omega.shape[-1]} axes; expected {law.ndim}, as {law!r} has")
        n_blocks = n_blocks or omega.shape[1]
    phi = law.phi(vectors)
    band = None if n_blocks is None else mean_kernel_band(vectors, law, n_blocks=n_blocks)
    ax, named = new_axes(ax), []
    if band is not None:
        about = f"one standard deviation of {n_blocks} independent draws"
        edges = (phi - band.stderr, phi + band.stderr)
        named.append(ax.fill_between(lags, *edges, alpha=0.25, color=COLOURS[0], lw=0, label=about))
    if omega is not None:
        named.append(_draw_heads(ax, omega, max_lag))
    named += ax.plot(lags, phi, color="black", lw=1.4, label="Φ")
    ax.set(xlabel=lag_label(law.ndim), ylabel="mean kernel")
    ax.set_title(repr(law), fontsize="medium")
    add_labels(ax, named)
    return ax


@array.select_device
def mean_kernels(sets: Mapping[str, Array], max_lag: int, *, ax: Any = None) -> Any:
    """Draw the mean kernels of several sets of frequencies over lags, on a logarithmic axis.

    Parameters
    ----------
    sets : mapping of str to Rope or array_like, radians per unit of position
        ``(D,)`` or ``(D, k)`` for each label, with at least one block. With several axes the lags run along the
        diagonal ``(1, 1, ...)``.
    max_lag : int
        Largest lag, at least 1, in units of position.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new pyplot figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing.
    ValueError, TypeError
        If sets or numbers are not as described above.

    See Also
    --------
    analysis.mean_kernel, plotting.kernel

    Notes
    -----
    All whole lags are used (up to 2^20, beyond at equal ratios); up to 1024 are drawn as a line, more as range and
    median of neighbouring lags.

    Examples
    --------
    >>> import rfrope
    >>> bases = {f"base {base:g}": rfrope.geometric(64, base=base) for base in (1e4, 5e5)}
    >>> ax = mean_kernels(bases, 8192)
    >>> [line.get_label() for line in ax.lines[1:]], ax.get_xscale()
    (['base 10000', 'base 500000'], 'symlog')
    """
    checked = _checked_sets(sets)
    max_lag = whole("max_lag", max_lag, 1)
    lags = _whole_lags(max_lag, 1)
    ax = new_axes(ax)
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set_xlim(0, max_lag)
    ax.axhline(0.0, color="black", lw=0.6)
    drawn = []
    for number, (label, omega) in enumerate(checked.items()):
        drawn.append(draw_curve(ax, lags, _diagonal_mean_kernel(omega, lags), number, escape_label(label)))
    ax.set(xlabel="lag (positions)", ylabel="mean kernel")
    add_labels(ax, drawn, inside=True)
    return ax


@array.select_device
def wavelengths(sets: Mapping[str, Array], *, context: int | None = None, ax: Any = None) -> Any:
    """Draw the wavelengths of the blocks of several sets, and the context beyond which no block completes a turn.

    Parameters
    ----------
    sets : mapping of str to Rope or array_like, radians per unit of position
        ``(D,)`` or ``(D, k)`` for each label, with at least one block. Blocks of frequency 0 are left out.
    context : int, optional
        Drawn as a line: blocks above it complete no turn within it.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new pyplot figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is missing.
    ValueError, TypeError
        If sets or numbers are not as described above.

    See Also
    --------
    analysis.wavelengths

    Notes
    -----
    Blocks with monotone wavelengths are joined by a line; others are points.

    Examples
    --------
    >>> import rfrope
    >>> ax = wavelengths({"base 500000": rfrope.geometric(64, base=5e5)}, context=131072)
    >>> ax.get_ylabel(), [line.get_label() for line in ax.lines]
    ('wavelength (positions)', ['base 500000', 'context 131072'])
    """
    checked = _checked_sets(sets)
    context = None if context is None else whole("context", context, 1)
    ax, drawn = new_axes(ax), []
    for number, (label, omega) in enumerate(checked.items()):
        lengths = analysis.wavelengths(omega)
        seen, style = np.where(np.isfinite(lengths), lengths, np.nan), style_line(number)
        steps = np.diff(seen[np.isfinite(seen)])
        style |= {"ms": 3} if np.all(steps >= 0.0) or np.all(steps <= 0.0) else {"ms": 6, "ls": ""}
        drawn += ax.plot(np.arange(len(lengths)), seen, marker=".", lw=1.0, label=escape_label(label), **style)
    if context is not None:
        drawn.append(ax.axhline(context, color="0.35", ls=(0, (6, 3)), lw=1.0, label=f"context {context}"))
    if any(np.any(omega) for omega in checked.values()):
        ax.set_yscale("log")
    ax.set(xlabel="block", ylabel="wavelength (positions)")
    add_labels(ax, drawn)
    return ax


def _sets(name: str, value: Any) -> np.ndarray:
    """Frequencies on the host, ``(heads, D, k)``."""
    omega = angles.read_on_host(value, name)
    return omega.reshape(-1, *omega.shape[-2:])


def _checked_sets(sets: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sets of frequencies ``(D, k)`` by their labels."""
    if not isinstance(sets, Mapping) or not sets:
        raise TypeError(f"sets is {show(sets)}; expected frequencies by label, such as {{'base 10000': frequencies}}")
    held = {str(label): _sets(f"sets[{show(label)}]", omega) for label, omega in sets.items()}
    for label, omega in held.items():
        if len(omega) != 1:
            raise ValueError(f"sets[{show(label)}] has {len(omega)} heads; expected (D,) or (D, k), one set")
    return {label: omega[0] for label, omega in held.items()}


def _whole_lags(max_lag: int, heads: int = _MOST) -> np.ndarray:
    """All of the smaller whole lags, as far as so many heads together allow, and as many again at equal ratios."""
    n = max(_MOST // heads, _ALL_LAGS)
    near = np.arange(min(max_lag, n) + 1)
    far = np.geomspace(n, max_lag, n) if max_lag > n else near
    return np.unique(np.concatenate([near, np.rint(far).astype(np.int64)]))


def _diagonal_mean_kernel(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Mean kernel ``(..., lags)`` of sets ``(..., D, k)`` where all axes have the same lag."""
    return np.asarray(analysis.mean_kernel(np.repeat(lags[:, None], omega.shape[-1], axis=1), omega))


def _draw_heads(ax: Any, sets: np.ndarray, max_lag: int) -> Any:
    """Draw the mean kernels of a few heads as curves, of more as their range and median; return what has the name."""
    lags = _whole_lags(max_lag, len(sets))
    curves, heads = _diagonal_mean_kernel(sets, lags), len(sets)
    if heads > _FEW_HEADS:
        return draw_curve(ax, lags, curves, 3, f"these frequencies: range and median of {heads} heads")
    label = "these frequencies" + (f" ({heads} heads)" if heads > 1 else "")
    drawn = [draw_curve(ax, lags, one, 3, "_" if i else label) for i, one in enumerate(curves)]
    return drawn[0]
