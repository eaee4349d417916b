"""Style of the figures: colours, labels, and curves that are too dense for a line."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core.arguments import show

# Okabe and Ito (2008), which colour-blind readers can tell apart; yellow, too pale for a line, is left out
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_STYLES = ("-", "--", "-.", ":")
_DENSE = 1024  # from so many points on, a curve is drawn as its range and its median
_BINS = 256  # parts of the axis, at equal ratios and as many at equal distances


@dataclass(frozen=True)
class Bins:
    """Bins of neighbouring lags, for which a figure shows the smallest, median and largest value."""

    starts: np.ndarray
    lags: np.ndarray

    @classmethod
    def divide(cls, lags: np.ndarray) -> Bins:
        """Divide consecutive lags from 0 on, so that both linear and logarithmic axes are resolved."""
        starts = np.unique(np.searchsorted(lags, cls.edges(lags[-1])))
        ends = np.append(starts[1:], len(lags))
        return cls(starts, lags[(starts + ends - 1) // 2])

    @staticmethod
    def edges(last: float) -> np.ndarray:
        """Return the first lags of bins from 0 to `last`: whole numbers, at equal ratios and at equal distances."""
        parts = (np.geomspace(1.0, float(last), _BINS), np.linspace(0.0, float(last), _BINS))
        return np.unique(np.rint(np.concatenate(parts)))

    def range(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the smallest, median and largest of the values ``(..., lags)`` in each bin."""
        low, high = (one.reduceat(values, self.starts, axis=-1) for one in (np.minimum, np.maximum))
        parts = np.split(values, self.starts[1:], axis=-1)
        return low, np.stack([np.median(part, axis=-1) for part in parts], axis=-1), high


def lag_label(axes: int) -> str:
    """Return the label of an axis of lags, for a number of position axes."""
    return "lag (positions)" if axes == 1 else "lag on every axis (positions)"


def new_axes(ax: Any) -> Any:
    """Return the given axes, or those of a new pyplot figure, without frame at top and right."""
    if ax is not None and not all(hasattr(ax, name) for name in ("plot", "fill_between", "set_xlabel")):
        raise TypeError(f"ax is {show(ax)}; expected the axes of a figure of matplotlib, or None")
    ax = _matplotlib("matplotlib.pyplot").subplots(layout="constrained")[1] if ax is None else ax
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="0.5", alpha=0.25, lw=0.5)
    ax.set_axisbelow(True)
    return ax


def colour(number: int) -> dict[str, Any]:
    """Return colour and style of line `number`; the first 24 are all different."""
    return {"color": COLOURS[number % len(COLOURS)], "ls": _STYLES[number // len(COLOURS) % len(_STYLES)]}


def curve(ax: Any, lags: np.ndarray, values: np.ndarray, number: int, **more: Any) -> Any:
    """Draw a curve: a line, or its median and range if a line would fill the figure."""
    style = colour(number) | more
    if len(lags) <= _DENSE:
        return ax.plot(lags, values, lw=1.2, **style)[0]
    bins = Bins.divide(lags)
    low, middle, high = bins.range(values)
    ax.fill_between(bins.lags, low, high, color=style["color"], alpha=0.25, lw=0)
    return ax.plot(bins.lags, middle, lw=1.2, **style)[0]


def heads_in_colours(ax: Any, count: int) -> list[dict[str, Any]]:
    """Return colour and label of each head; many heads share a colour scale with a bar beside the axes."""
    if count <= len(COLOURS):
        return [colour(number) | {"label": f"head {number}" if count > 1 else None} for number in range(count)]
    matplotlib = _matplotlib("matplotlib")
    scale = _matplotlib("matplotlib.colors").Normalize(0, count - 1)
    shades = _matplotlib("matplotlib.cm").ScalarMappable(scale, matplotlib.colormaps["viridis"])
    ax.figure.colorbar(shades, ax=ax, label="head")
    return [{"color": shades.to_rgba(number), "ls": "-", "label": None} for number in range(count)]


def label(ax: Any, artists: Sequence[Any], *, inside: bool = False) -> None:
    """Label the artists that have names: below the axes, or inside at the top right, in their colours."""
    named = [one for one in artists if one.get_label() and not str(one.get_label()).startswith("_")]
    if not named:
        return
    if inside:
        made = ax.legend(handles=named, loc="upper right", labelcolor="linecolor", framealpha=0.8)
        made.get_frame().set_linewidth(0.0)
    else:
        ax.legend(handles=named, loc="upper left", bbox_to_anchor=(0.0, -0.14), frameon=False, fontsize="small")


def plain(text: str) -> str:
    """Return a label that matplotlib draws literally: no mathematics between dollars, no hidden leading underscore."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _matplotlib(module: str) -> Any:
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("figures need matplotlib: pip install 'rfrope[plot]'")
    return importlib.import_module(module)
