"""Numbers of draws or trials in one chunk of an estimate: plain functions of the arguments of a call.

Chunks are merged in order, so their length enters the last bits of a result; it must not depend on threads or on what
else the machine does. It does depend on where the work is done ("cpu", "cuda", or "" for the generic functions): what
one chunk costs differs.
"""

from __future__ import annotations

import numpy as np

from rfrope._backends import transforms

_ELEMENTS, _LONGEST = 2**20, 2**16  # numbers that make a chunk of the generic functions, and draws at most
_DRAWS = 2**18  # draws in a chunk that a transform sums
_TABLED = {"cpu": 2**21, "cuda": 2**30}  # numbers that make a chunk of trials whose law loops know
_TRANSPORTED = {"cpu": 2**18, "cuda": 2**22}  # the same where the kernel's own transport is called
_MOST_TRIALS = {"cpu": 2**16, "cuda": 2**22}
_USEFUL_LANES = 256  # trials that a chunk has at least on the CPU, unless that makes more numbers than the next line
_MOST_NUMBERS = 2**28


def sets_in_chunk(width: int) -> int:
    """Return how many randomised sets make a chunk, if each needs `width` numbers."""
    return min(_LONGEST, _power_of_two(_ELEMENTS // max(1, width)))


def draws_in_chunk(where: str, lags: np.ndarray | None, n_lags: int, n_samples: int, draws: int, axes: int) -> int:
    """Return how many draws of a kernel make a chunk; `lags` are ``(n_lags, axes)`` on the CPU, and None elsewhere.

    A loop's memory does not grow with the lags, and a transform pays more with more draws. A device needs
    many draws to be filled at few lags.
    """
    if where == "cuda":
        return _power_of_two(min(2**20, 2**24 // (draws + axes)))
    if lags is None:
        return sets_in_chunk(n_lags + draws + axes)
    if transforms.may_pay(min(_DRAWS, n_samples), n_lags, axes, transforms.CPU) and (
        axes == 1 or transforms.grid_of(lags) is not None
    ):
        return _power_of_two(min(_DRAWS, 2**22 // (draws + axes)))
    length = _power_of_two(min(2**16, 2**20 // (draws + axes)))
    while length > 2**10 and length * n_lags > 2**22:
        length //= 2
    return length


def trials_in_chunk(where: str, stated: bool, width: int) -> int:
    """Return how many trials of a score make a chunk, if each needs `width` numbers: some milliseconds of work."""
    if not where:
        return sets_in_chunk(width)
    usual, width = (_TABLED if stated else _TRANSPORTED)[where], max(1, width)
    fitting = max(4, usual // width, min(_USEFUL_LANES, _MOST_NUMBERS // width) if where == "cpu" else 0)
    return min(_MOST_TRIALS[where], _power_of_two(fitting))


def _power_of_two(most: int) -> int:
    return 1 << (max(2, most).bit_length() - 1)
