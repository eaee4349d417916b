"""Frequencies fitted to a kernel over a range of lags, and what they reach there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rfrope._core import array
from rfrope._core import progress as bars
from rfrope._core.arguments import MOST, choice, is_several, show, whole
from rfrope.designs.bounds import lower_bound
from rfrope.designs.errors import error
from rfrope.designs.fitting import optimised as fitted
from rfrope.designs.fitting import usual_starts
from rfrope.designs.sets import quantile
from rfrope.kernels import Kernel
from rfrope.kernels.text import read_kernel
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope

NORMS = ("rms", "sup")
_MOST_STARTS = 2**16
_MOST_LAGS = 2**52  # lags that a range may hold
_MOST_UNKNOWNS = 2**10  # unknowns of a fit: its time grows with their square


def optimise(
    kernel: Kernel | str,
    n_blocks: int,
    *,
    max_lag: int | Sequence[int],
    norm: str = "rms",
    starts: int | None = None,
    progress: Any = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Rope:
    """Fit frequencies to a kernel over whole lags from -max_lag to max_lag, and say what they reach.

    Deterministic: it goes downhill from the design "quantile" and from random sets that are always the same, lets
    blocks jump to where they are needed, and keeps the best.

    Parameters
    ----------
    kernel, n_blocks, xp, device, dtype
        As in `sample`.
    max_lag : int or sequence of int
        Largest lag in units of position, one number or one for each axis. Beyond it the error is not looked at, and
        grows.
    norm : {"rms", "sup"}
        Minimise the root mean square of the error, or go on from there to lower the largest error.
    starts : int, optional
        How many sets the search begins with, at least 1. Unless given 16 of up to 32 unknowns (D k), fewer of more: 8
        of 64, one of 512. More take longer, on as many cores as `rfrope.threads` allows, and seldom gain much.
    progress : None, bool or callable
        Shows the starts that are done, as in `rfrope.estimate_kernel`.

    Returns
    -------
    Rope
        Frequencies (D,) or (D, k), ``context = max_lag + 1``, and in its ``source``

        - ``norm``: what was minimised;
        - ``error``: ``rms`` and ``sup``, the root mean square and the largest ``abs(Phi_D - Phi)`` over the whole lags
          of the range, one of each pair +-lag; beyond 2**20, over the smaller ones and a spread over the rest;
        - ``lower_bound``: a root mean square error that no set of so many blocks falls below, whatever its frequencies,
          so that nobody looks for less; 0 where none is known (smooth kernels, and more than one axis);
        - ``extra``: ``max_lag``, the range, one number for each axis; ``starts``; and ``start``, the errors of the
          design "quantile".

    Raises
    ------
    ValueError
        For a range, norm or number of starts that is not as above, for more than 1024 unknowns (D k), and as
        `sample`.
    TypeError
        For arguments of another kind.

    Notes
    -----
    Source: section 4 of the mathematics page. The error is that of the mean kernel ``(1/D) sum_i cos(lag . omega_i)``.
    Only whole lags count, and there omega matters modulo 2 pi: at positions that are not whole such a set is no better
    than its start. Beyond 2**14 lags the fit sees the smaller ones and a spread over the rest ("sup": beyond 2**13);
    the figures are over all. Descent is Newton's method; a jump moves the block to the place that lowers the error
    most among all blocks and 1024 places, half of them drawn by the kernel's law. docs/designs.rst has times.

    Examples
    --------
    >>> fit = optimise("gaussian(scale=32)", 64, max_lag=256)
    >>> bool(fit.source.error["sup"] < 0.003 < 0.01 < fit.source.extra["start"]["sup"])
    True
    """
    made, n_blocks = read_kernel(kernel), whole("n_blocks", n_blocks, 1)
    reach = check_fit(made, n_blocks, max_lag, norm)
    starts = usual_starts(n_blocks * made.ndim) if starts is None else whole("starts", starts, 1, _MOST_STARTS)
    bars.check(progress)
    array.check_float_dtype(dtype, array.named_namespace(xp))
    start = quantile(made, n_blocks)
    omega = fitted(made, n_blocks, reach, norm, starts=starts, progress=progress)
    judged = [error(made, each, reach) for each in (omega, start)]
    reached, before = ({"rms": found.rms, "sup": found.sup} for found in judged)
    source = Provenance(
        kernel=repr(made),
        design="optimised",
        norm=norm,
        error=reached,
        lower_bound=bound(made, n_blocks, reach),
        extra={"max_lag": list(reach), "starts": starts, "start": before},
    )
    context = tuple(m + 1 for m in reach)
    frequencies = array.placed(made.restore_shape(omega), xp, device, dtype)
    return Rope(frequencies, context=context[0] if len(context) == 1 else context, source=source)


def bound(kernel: Kernel, n_blocks: int, max_lag: tuple[int, ...]) -> float:
    """Root mean square error that no so many blocks fall below; 0 where none is known."""
    return lower_bound(kernel, n_blocks, max_lag[0]) if len(max_lag) == 1 and n_blocks else 0.0


def as_range(kernel: Kernel, max_lag: Any, name: str = "max_lag") -> tuple[int, ...]:
    """Largest lag on each axis, from one number or one for each, or say what is wrong with it."""
    reach = tuple(max_lag) if is_several(max_lag) else (max_lag,) * kernel.ndim
    reach = tuple(whole(name, m, 1, MOST - 1) for m in reach)
    if len(reach) != kernel.ndim:
        raise ValueError(f"{name} is {show(max_lag)}; expected one number or {kernel.ndim}, one for each axis")
    return reach


def check_reach(kernel: Kernel, max_lag: Any, design: str) -> tuple[int, ...]:
    """Largest lag on each axis for a design that depends on it, or say what is wrong with it."""
    if max_lag is None:
        raise ValueError(f"max_lag is None; expected the largest lag that counts, for design {show(design)}")
    reach = as_range(kernel, max_lag)
    if math.prod(2 * m + 1 for m in reach) > _MOST_LAGS:
        raise ValueError(f"max_lag is {show(max_lag)}; expected a range of at most 2**52 lags")
    return reach


def check_fit(kernel: Kernel, n_blocks: int, max_lag: Any, norm: str) -> tuple[int, ...]:
    """Largest lag on each axis, or say what is wrong with it, with the norm or with the number of blocks."""
    choice("norm", norm, NORMS)
    reach = check_reach(kernel, max_lag, "optimised")
    if n_blocks * kernel.ndim > _MOST_UNKNOWNS:
        raise ValueError(
            f"n_blocks is {n_blocks} with {kernel.ndim} axes; expected at most {_MOST_UNKNOWNS} unknowns with design "
            "'optimised', or design 'quantile'"
        )
    return reach
