"""Large arrays cut into parts that take a moment each: between two of them an interrupt is seen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MOMENT = 2**22  # numbers that NumPy works through in some hundredths of a second


def spans(count: int, each: int = 1) -> Iterator[slice]:
    """Cut so many things, of so many numbers each, into spans; one span where they are few."""
    length = max(1, MOMENT // max(1, each))
    for start in range(0, max(1, count), length):
        yield slice(start, min(start + length, count))


def parts(x: np.ndarray) -> Iterator[np.ndarray]:
    """Views of an array that together are all of it, cut along its longest axis."""
    if x.size <= MOMENT:
        yield x
        return
    longest = max(range(x.ndim), key=x.shape.__getitem__)
    for span in spans(x.shape[longest], x.size // x.shape[longest]):
        yield x[(*(slice(None),) * longest, span)]
