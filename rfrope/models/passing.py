"""Features that black boxes are to let pass, and the order in which features come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rfrope.models.measuring import Box

_LOST = 1e-3  # less is nothing


def find_order(box: Box) -> str:
    """Return what queries and keys do in other orders, or any order of scores, or ""."""
    first, *others = (side.structures[side.head] for side in box.sides.values())
    if any(None not in (first.pairing, one.pairing) and first.pairing != one.pairing for one in others):
        return f"queries turn by pairing {first.pairing!r}, and keys by {others[0].pairing!r}"
    orders = {name: side.structures[side.head].order for name, side in box.sides.items()}
    wanted = np.arange(box.width) if "scores" in orders else next(iter(orders.values()))
    for name, order in orders.items():
        if np.any(off := order != wanted):
            i = int(np.argmax(off))
            if name == "scores":
                return f"feature {i} of keys meets feature {order[i]} of queries"
            return f"{name}: feature {i} comes out at {order[i]}, and that of queries at {wanted[i]}"
    return ""


def describe_rest(box: Box, noise: float, usual: Mapping[str, float]) -> Iterator[str]:
    """Yield what became of features that do not turn, of the first head of a side where they do not pass.

    Parameters
    ----------
    box : Box
    noise : float
        Error of factors by rounding.
    usual : mapping
        By side, the factor of what turns, which is spoken of elsewhere.
    """
    for name, side in box.sides.items():
        for h in side.turning:
            one = side.structures[h]
            rest = np.setdiff1d(np.arange(box.width), np.concatenate([one.first, one.second]))
            values = side.matrices[h][:, rest, one.order[rest]]
            near = [np.abs(values / value - 1.0) <= 8.0 * noise for value in (1.0, usual.get(name, 1.0))]
            off = ~np.all(np.any(near, axis=0), axis=0)
            if np.any(off):
                yield f"{name}: {_describe(values[:, off], rest[off])}"
                break


def _describe(values: np.ndarray, features: np.ndarray) -> str:
    """Say what became of features of factors (P, n)."""
    which = f"{len(features)} features that do not turn are" if len(features) > 1 else f"feature {features[0]} is"
    if np.max(np.abs(values)) < _LOST:
        return f"{which} left out"
    factor = float(values[0, 0])
    if np.all(np.abs(values - factor) <= 0.01 * abs(factor)):
        return f"{which} negated" if factor == -1.0 else f"{which} multiplied by {factor:.6g}"
    return f"{which} multiplied by {np.min(values):.6g} to {np.max(values):.6g}"
