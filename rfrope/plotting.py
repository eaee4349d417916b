"""Figures from kernels, frequencies and results; matplotlib is imported inside."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from rfrope import analysis
from rfrope._core import angles, array
from rfrope._core.arguments import whole
from rfrope._core.array import Array
from rfrope.kernels import Kernel
from rfrope.kernels.text import as_kernel
from rfrope.moments import mean_kernel_band

__all__ = ["attention", "frequencies", "kernel", "mean_kernels", "validation", "wavelengths"]

_ALL_LAGS = 2048  # up to so many every lag is drawn, and as many more beyond


def kernel(
    law: Kernel | str,
    max_lag: int,
    *,
    frequencies: Array | None = None,
    n_blocks: int | None = None,
    ax: Any = None,
) -> Any:
    """Draw Phi over lags, the mean kernel of given frequencies, and the band of independent draws.

    Parameters
    ----------
    law : Kernel or str
        The kernel that was asked for; a string is read by `rfrope.kernels.parse`. With several axes the lags run along
        the diagonal ``(1, 1, ...)``.
    max_lag : int
        Largest lag, at least 1, in units of position.
    frequencies : Rope or array_like, radians per unit of position, optional
        ``(D,)`` or ``(*H, D, k)``: one curve for each head.
    n_blocks : int, optional
        D of the band, one standard deviation to either side of Phi at each lag; that of `frequencies` unless given.
        Without either there is no band.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure of pyplot unless given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    ValueError, TypeError
        For a kernel, frequencies or numbers that are not as above.

    Notes
    -----
    Only whole lags are drawn: all of them up to 2048, and some 2048 beyond. The band is that of
    `rfrope.moments.mean_kernel_band`.

    Examples
    --------
    >>> import rfrope
    >>> ax = kernel("gaussian(scale=32)", 256, frequencies=rfrope.sample("gaussian(scale=32)", 64, rng=0))
    >>> ax.get_xlabel(), [line.get_label() for line in ax.lines]
    ('lag (positions)', ['these frequencies', 'Φ'])
    """
    law, max_lag = as_kernel(law, "law"), whole("max_lag", max_lag, 1)
    lags = _drawn_lags(max_lag)
    vectors = law.as_given(np.repeat(lags[:, None], law.ndim, axis=1))
    curves = np.empty((0, len(lags)))
    if frequencies is not None:
        omega = _sets("frequencies", frequencies)
        curves, n_blocks = _curves(omega, lags, law), n_blocks or omega.shape[1]
    phi = law.phi(vectors)
    band = None if n_blocks is None else mean_kernel_band(law, vectors, n_blocks=n_blocks)
    ax = _axes(ax)
    if band is not None:
        label = f"one standard deviation of {n_blocks} independent draws"
        ax.fill_between(lags, phi - band.stderr, phi + band.stderr, alpha=0.2, color="tab:blue", lw=0, label=label)
    for number, curve in enumerate(curves):
        label = "" if number else "these frequencies" + (f" ({len(curves)} heads)" if len(curves) > 1 else "")
        ax.plot(lags, curve, color="tab:orange", lw=0.8, alpha=1.0 if len(curves) < 5 else 0.4, label=label or None)
    ax.plot(lags, phi, color="black", lw=1.2, label="Φ")
    ax.set(xlabel="lag (positions)" if law.ndim == 1 else "lag on every axis (positions)", ylabel="mean kernel")
    ax.set_title(repr(law))
    ax.legend()
    return ax


def frequencies(rope: Array, *, ax: Any = None) -> Any:
    """Draw frequencies: in two axes as points of the plane, else their magnitudes in order, one line for each head.

    Parameters
    ----------
    rope : Rope or array_like, radians per unit of position
        Frequencies ``(D,)`` or ``(*H, D, k)``, with at least one block.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure of pyplot unless given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    ValueError, TypeError
        For frequencies that are not as above.

    Examples
    --------
    >>> import rfrope
    >>> ax = frequencies(rfrope.geometric(64))
    >>> ax.get_yscale(), len(ax.lines[0].get_xdata())
    ('log', 64)
    """
    sets = _sets("rope", rope)
    ax = _axes(ax)
    if sets.shape[-1] == 2:
        for points in sets:
            ax.plot(points[:, 0], points[:, 1], ".", ms=4)
        ax.set(xlabel="ω, first axis (radians per position)", ylabel="ω, second axis (radians per position)")
        ax.set_aspect("equal", adjustable="datalim")
        return ax
    magnitudes = np.sort(np.linalg.norm(sets, axis=-1), axis=-1)[:, ::-1]
    for curve in magnitudes:
        ax.plot(np.arange(1, curve.size + 1), np.where(curve > 0.0, curve, np.nan), ".-", ms=3, lw=0.8)
    ax.set(xlabel="block, by size of its frequency", ylabel="|ω| (radians per position)")
    if np.any(magnitudes > 0.0):
        ax.set_yscale("log")
    return ax


def attention(result: Any, *, ax: Any = None) -> Any:
    """Draw what a head attends to by lag, or the mean score of a real one with its spread.

    Parameters
    ----------
    result : AttentionProfile or Profile
        What `heads.attention_profile` or `heads.profile` returned, for lags along one axis.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure of pyplot unless given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    ValueError, TypeError
        For lags of several axes, and for another kind of result.

    Notes
    -----
    One line for each head. For a `Profile` the band is one standard deviation of the score over the pairs, drawn for a
    single head.

    Examples
    --------
    >>> import rfrope
    >>> profile = rfrope.heads.attention_profile(rfrope.geometric(64), 128, temperature=10.0)
    >>> ax = attention(profile)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('lag, key minus query (positions)', 'attention')
    """
    real = all(hasattr(result, name) for name in ("lags", "mean", "spread"))
    if not real and not all(hasattr(result, name) for name in ("lags", "weights", "mass")):
        raise TypeError(f"result is {result!r:.80}; expected what heads.attention_profile or heads.profile returns")
    lags = array.to_host(result.lags).astype(np.float64)
    if lags.ndim != 1:
        raise ValueError(f"result has lags of shape {lags.shape}; expected lags along one axis")
    order = np.argsort(lags)
    curves = array.to_host(result.mean if real else result.weights).reshape(-1, lags.size)
    ax = _axes(ax)
    if real and len(curves) == 1:
        spread = array.to_host(result.spread).reshape(-1)[order]
        label = "one standard deviation over pairs"
        ax.fill_between(lags[order], curves[0][order] - spread, curves[0][order] + spread, alpha=0.2, lw=0, label=label)
    for number, curve in enumerate(curves):
        label = f"head {number}" if len(curves) > 1 else "mean score" if real else "attention"
        ax.plot(lags[order], curve[order], ".-" if lags.size < 100 else "-", ms=3, lw=0.9, label=label)
    ax.set(xlabel="lag, key minus query (positions)", ylabel="mean score" if real else "attention")
    ax.legend()
    return ax


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
        Where to draw; a new figure of pyplot unless given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    ValueError, TypeError
        For sets or numbers that are not as above.

    Notes
    -----
    Only whole lags are drawn: all of them up to 2048, and some 2048 beyond.

    Examples
    --------
    >>> import rfrope
    >>> bases = {f"base {base:g}": rfrope.geometric(64, base=base) for base in (1e4, 5e5)}
    >>> ax = mean_kernels(bases, 8192)
    >>> [line.get_label() for line in ax.lines[:2]], ax.get_xscale()
    (['base 10000', 'base 500000'], 'symlog')
    """
    checked, lags = _checked_sets(sets), _drawn_lags(whole("max_lag", max_lag, 1))
    ax = _axes(ax)
    for label, omega in checked.items():
        ax.plot(
            lags,
            analysis.mean_kernel(omega, np.repeat(lags[:, None], omega.shape[-1], axis=1)),
            lw=0.9,
            label=_plain(label),
        )
    ax.axhline(0.0, color="black", lw=0.6)
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set_xlim(0, lags[-1])
    ax.set(xlabel="lag (positions)", ylabel="mean kernel")
    ax.legend()
    return ax


def wavelengths(sets: Mapping[str, Array], *, context: int | None = None, ax: Any = None) -> Any:
    """Draw the wavelengths of the blocks of several sets of frequencies, and the context beyond which none completes.

    Parameters
    ----------
    sets : mapping of str to Rope or array_like, radians per unit of position
        ``(D,)`` or ``(D, k)`` for each label, with at least one block. Blocks of frequency 0 are left out.
    context : int, optional
        Drawn as a line: blocks above it complete no turn within so many positions.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure of pyplot unless given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    ValueError, TypeError
        For sets or numbers that are not as above.

    Examples
    --------
    >>> import rfrope
    >>> ax = wavelengths({"base 500000": rfrope.geometric(64, base=5e5)}, context=131072)
    >>> ax.get_ylabel(), [line.get_label() for line in ax.lines]
    ('wavelength (positions)', ['base 500000', 'context 131072'])
    """
    checked = _checked_sets(sets)
    context = None if context is None else whole("context", context, 1)
    ax = _axes(ax)
    for label, omega in checked.items():
        lengths = analysis.wavelengths(omega)
        ax.plot(
            np.arange(len(lengths)), np.where(np.isfinite(lengths), lengths, np.nan), ".-", ms=3, lw=0.8, label=label
        )
    if context is not None:
        ax.axhline(context, color="black", ls="--", lw=0.8, label=f"context {context}")
    if any(np.any(omega) for omega in checked.values()):
        ax.set_yscale("log")
    ax.set(xlabel="block", ylabel="wavelength (positions)")
    ax.legend()
    return ax


def validation(result: Any, *, ax: Any = None) -> Any:
    """Draw the z of every comparison of `rfrope.validate`, and the bound that they must keep.

    Parameters
    ----------
    result : Validation
        What `rfrope.validate` returned.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure of pyplot unless given.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    TypeError
        For another kind of result.

    Examples
    --------
    >>> import rfrope
    >>> ax = validation(rfrope.validate("cauchy(scale=24)", n_samples=10_000, n_trials=1000, rng=0))
    >>> ax.get_ylabel(), ax.get_title()
    ('z = (estimate - closed form) / std. error', 'cauchy(scale=24.0): passed')
    """
    if not all(hasattr(result, name) for name in ("kernel", "rows", "bound", "passed")):
        raise TypeError(f"result is {result!r:.80}; expected what rfrope.validate returns")
    ax, start = _axes(ax), 0
    for quantity in dict.fromkeys(row.quantity for row in result.rows):
        z = [row.z for row in result.rows if row.quantity == quantity]
        ax.plot(range(start, start + len(z)), z, ".", label=quantity)
        start += len(z)
    for bound in (-result.bound, result.bound):
        ax.axhline(bound, color="black", ls="--", lw=0.8)
    ax.set(xlabel="comparison", ylabel="z = (estimate - closed form) / std. error")
    ax.set_title(f"{result.kernel}: {'passed' if result.passed else 'failed'}")
    ax.legend()
    return ax


def check_available() -> None:
    """Say before the work that matplotlib is missing, without importing it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("figures need matplotlib: pip install 'rfrope[plot]'")


def new_figure(columns: int) -> tuple[Any, Any]:
    """Return a figure that pyplot does not know, for a file, and its axes side by side."""
    figure = _matplotlib("matplotlib.figure").Figure(figsize=(6.4 * columns, 4.8), layout="constrained")
    return figure, figure.subplots(1, columns)


def _axes(ax: Any) -> Any:
    if ax is not None and not all(hasattr(ax, name) for name in ("plot", "fill_between", "set_xlabel")):
        raise TypeError(f"ax is {ax!r:.80}; expected the axes of a figure of matplotlib, or None")
    return _matplotlib("matplotlib.pyplot").subplots(layout="constrained")[1] if ax is None else ax


def _matplotlib(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ModuleNotFoundError("figures need matplotlib: pip install 'rfrope[plot]'") from None


def _sets(name: str, value: Any) -> np.ndarray:
    """Frequencies on the host, ``(heads, D, k)``."""
    omega = angles.on_host(value, name)
    return omega.reshape(-1, *omega.shape[-2:])


def _checked_sets(sets: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sets of frequencies ``(D, k)`` by their labels."""
    if not isinstance(sets, Mapping) or not sets:
        raise TypeError(f"sets is {sets!r:.80}; expected labels with frequencies: {{'base 10000': frequencies}}")
    held = {str(label): _sets(f"sets[{label!r}]", omega) for label, omega in sets.items()}
    for label, omega in held.items():
        if len(omega) != 1:
            raise ValueError(f"sets[{label!r}] has {len(omega)} heads; expected (D,) or (D, k), one set")
    return {label: omega[0] for label, omega in held.items()}


def _plain(label: str) -> str:
    """Return a label that is drawn as it is: between dollars is mathematics, and what begins with _ is hidden."""
    return (" " if label.startswith("_") else "") + label.replace("$", r"\$")


def _drawn_lags(max_lag: int) -> np.ndarray:
    """Whole lags: all of the smaller ones, and beyond as many again at equal ratios."""
    near = np.arange(min(max_lag, _ALL_LAGS) + 1)
    far = np.geomspace(_ALL_LAGS, max_lag, _ALL_LAGS) if max_lag > _ALL_LAGS else near
    return np.unique(np.concatenate([near, np.rint(far).astype(np.int64)]))


def _curves(sets: np.ndarray, lags: np.ndarray, law: Kernel) -> np.ndarray:
    """Mean kernels ``(heads, lags)`` along the diagonal."""
    axes = sets.shape[-1]
    if axes != law.ndim:
        raise ValueError(f"frequencies have {axes} axes; expected {law.ndim}, as {law!r} has")
    found: np.ndarray = analysis.mean_kernel(sets, np.repeat(lags[:, None], axes, axis=1))
    return found
