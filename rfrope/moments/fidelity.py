"""Errors of a set of frequencies against its kernel over a context."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rfrope._core import angles, array, sums
from rfrope._core.arguments import whole
from rfrope._core.array import Array
from rfrope.designs.errors import error
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel


@array.select_device
def kernel_gap(frequencies: Array, kernel: Kernel | str | Array, context: int) -> Array:
    """Return the mean square difference of a mean kernel and Phi, which keeps learned frequencies near a law.

    Parameters
    ----------
    frequencies : array_like, (D,) or (H, D, 1), radians per unit of position
        Usually a parameter: gradients reach it.
    kernel : Kernel, str or array_like
        The law; or Phi at the lags 0, 1, ..., context - 1, which gradients reach, too.
    context : int
        Number of lags, at least 1.

    Returns
    -------
    array, (), or (H,)
        Mean over the whole lags below `context` of ``((1/D) sum_i cos(lag omega_i) - Phi(lag))^2``; float64 where the
        library has it.

    Raises
    ------
    ValueError
        If there are several axes, or `context` values of Phi were expected.
    TypeError
        If arrays are of different libraries.

    See Also
    --------
    analysis.mean_kernel, analysis.fit_kernel

    Examples
    --------
    >>> import rfrope
    >>> law, omega = "gaussian(scale=32)", rfrope.sample("gaussian(scale=32)", 32, design="quantile")
    >>> [float(f"{kernel_gap(w, law, 512):.1e}") for w in (omega, 1.1 * omega, rfrope.geometric(32))]
    [0.00046, 0.0009, 0.1]
    """
    held = angles.frequencies_of(frequencies)
    named = isinstance(kernel, Kernel | str)
    xp, place = array.shared(frequencies=held, **({} if named else {"kernel": kernel}))
    lags = xp.arange(whole("context", context, 1), dtype=array.widest_float(xp, place), device=place)
    held = array.numbers(held, xp, name="frequencies", device=place)
    curve = sums.mean_cos(angles.read(lags if held.ndim == 1 else lags[:, None], held, name="lags", minimum=1))
    phi = read_kernel(kernel).phi(lags) if named else array.numbers(kernel, xp, name="kernel", device=place)
    if tuple(phi.shape) != tuple(lags.shape) or curve.ndim > 2:
        raise ValueError(
            f"frequencies has shape {tuple(held.shape)} and Phi {tuple(phi.shape)}; expected (D,) or (H, D, 1), and a "
            f"kernel of one axis or {context} values"
        )
    return xp.mean((curve - array.widen(phi, xp)) ** 2, axis=-1)


def head_errors(kernels: Sequence[Kernel], frequencies: np.ndarray, context: tuple[int, ...]) -> list[dict[str, Any]]:
    """Compare frequencies ``(D,)``, ``(D, k)`` or ``(H, D, k)`` with one kernel, or one for each head.

    For each head: the root mean square and largest difference between its mean kernel and Phi at the whole lags below a
    context on every axis, the lag of the largest, and its wavelengths, infinite for a frequency of 0. Beyond 2**20 lags
    only a subset is used: the smaller ones, and a spread over the rest.
    """
    omega = angles.read_frequencies(frequencies, np)
    sets = omega.reshape(-1, *omega.shape[-2:])
    copies = len(sets) if len(kernels) == 1 and np.all(sets == sets[0]) else 1  # the design is deterministic
    heads = []
    for kernel, omega in zip(itertools.cycle(kernels), sets[::copies], strict=False):
        sizes = np.linalg.norm(omega.astype(np.float64), axis=-1)
        ends = float(sizes.max()), float(sizes.min())
        shortest, longest = (2.0 * math.pi / size if size > 0.0 else math.inf for size in ends)
        found = error(kernel, omega, tuple(c - 1 for c in context))._asdict()
        heads.append({"kernel": repr(kernel), **found, "shortest": shortest, "longest": longest})
    return heads * copies
