"""Deterministic frequency sets of one axis, and the scales of xPos that go with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import finite, positive, whole
from rfrope._core.array import Array, place_for_caller


def geometric(n_blocks: int, *, base: float = 10_000.0, xp: Any = None, device: Any = None, dtype: Any = None) -> Array:
    """Return the frequencies of standard RoPE, ``base ** (-i / D)`` for i = 0, ..., D - 1 (``base ** (-2i / d)``).

    Parameters
    ----------
    n_blocks : int
        D, half the rotated width.
    base : float
        Positive; 10000 in the first models, 500000 in Llama 3.
    xp, device, dtype
        Array library (a module; default: NumPy), device and dtype of the result (default: float64 where the library has
        it). The frequencies are computed on the host and copied to the device.

    Returns
    -------
    array, (D,), radians per position

    Raises
    ------
    ValueError
        If `n_blocks` is negative or `base` is not positive and finite.
    TypeError
        If `n_blocks` is not a whole number, or `xp` not an array library.

    See Also
    --------
    arithmetic, frequencies.from_wavelengths, scaling.yarn

    Notes
    -----
    Source: section 5 of the mathematics page; the RF-RoPE paper counts i from 1, which is off by one.

    Examples
    --------
    >>> geometric(4)
    array([1.   , 0.1  , 0.01 , 0.001])
    """
    base = positive("base", base)
    n_blocks = whole("n_blocks", n_blocks)
    return place_for_caller(base ** (-np.arange(n_blocks) / max(n_blocks, 1)), xp, device, dtype)


def arithmetic(n_blocks: int, *, step: float, xp: Any = None, device: Any = None, dtype: Any = None) -> Array:
    """Return equally spaced frequencies ``i * step`` for i = 1, ..., D; their mean kernel is Dirichlet's.

    Parameters
    ----------
    n_blocks : int
        D, half the rotated width.
    step : float, radians per position
        Positive.
    xp, device, dtype
        See `geometric`.

    Returns
    -------
    array, (D,), radians per position

    Raises
    ------
    ValueError
        If `n_blocks` is negative or `step` is not positive and finite.
    TypeError
        See `geometric`.

    See Also
    --------
    geometric, frequencies.from_wavelengths

    Examples
    --------
    >>> arithmetic(3, step=0.5)
    array([0.5, 1. , 1.5])
    """
    step = positive("step", step)
    return place_for_caller(step * np.arange(1, whole("n_blocks", n_blocks) + 1), xp, device, dtype)


def pixel(n_blocks: int, *, max_freq: float = 10.0, xp: Any = None, device: Any = None, dtype: Any = None) -> Array:
    """Return equally spaced frequencies from pi to ``max_freq * pi / 2``, for coordinates between -1 and 1.

    Parameters
    ----------
    n_blocks : int
        D, half the rotated width; for several axes (`axial`), of one axis.
    max_freq : float
        Positive. Over the whole image, a distance of 2, the last block makes ``max_freq / 2`` turns.
    xp, device, dtype
        See `geometric`.

    Returns
    -------
    array, (D,), radians per unit of position
        ``pi * (1 + i (max_freq/2 - 1) / (D - 1))``; a single block gets pi.

    Raises
    ------
    ValueError
        If `n_blocks` is negative or `max_freq` is not positive and finite.
    TypeError
        See `geometric`.

    See Also
    --------
    axial, geometric

    Notes
    -----
    Source: the set "pixel" of lucidrains' rotary-embedding-torch, whose set "lang" is `geometric`.

    Examples
    --------
    >>> pixel(3).round(4)
    array([ 3.1416,  9.4248, 15.708 ])
    """
    max_freq = positive("max_freq", max_freq)
    turns = np.linspace(1.0, 0.5 * max_freq, whole("n_blocks", n_blocks))
    return place_for_caller(math.pi * turns, xp, device, dtype)


@array.select_device
def from_wavelengths(wavelengths: Array) -> Array:
    """Return the frequencies ``2 pi / wavelength``, for positions in any unit.

    Parameters
    ----------
    wavelengths : array_like, in units of position
        Any shape: distance in which a block makes one turn. Positive; infinity gives frequency 0.

    Returns
    -------
    array, radians per unit of position
        Same shape as `wavelengths`, float64 where the library has it.

    Raises
    ------
    ValueError
        If a wavelength is zero, negative, NaN or below 2**-497. Values are checked only where that is free: not on
        devices, in JAX or in Dask.
    TypeError
        If the dtype is neither integer nor real floating.

    See Also
    --------
    analysis.wavelengths, geometric

    Notes
    -----
    Vision models often specify a block's period for coordinates between -1 and 1, with the 2 pi in their code (DINOv3:
    periods ``base ** (4j / d)`` on each axis of an image).

    Examples
    --------
    >>> from_wavelengths([1.0, 4.0, float("inf")]).round(4)
    array([6.2832, 1.5708, 0.    ])
    """
    xp, _ = array.shared(wavelengths=wavelengths)
    wavelengths = array.widen(array.numbers(wavelengths, xp, name="wavelengths"), xp)
    if array.has_host_values(wavelengths) and not bool(xp.all(wavelengths >= 2.0**-497)):
        raise ValueError(
            "wavelengths holds zero, negative numbers, NaN, or numbers below 2**-497; expected positive ones"
        )
    return 2.0 * math.pi / wavelengths


@array.select_device
def xpos_scales(positions: Array, n_blocks: int, *, scale_base: float = 512.0, centre: float = 0.0) -> Array:
    """Return the scales of xPos, with which the score of a block decays exponentially with the lag.

    Rotate queries with ``scale=s`` and keys with ``scale=1 / s`` (in `rotate` or `rotation_table`), with s for their
    own positions. The centre cancels from the score if both sides use the same.

    Parameters
    ----------
    positions : array_like
        Integers or floats of any shape ``P``: the positions of the rotation. For frequencies of several axes choose
        those, such as time, along which scores should decay.
    n_blocks : int
        D, half the rotated width.
    scale_base : float, in units of position
        Positive; the order of the lags over which scores decay.
    centre : float, in units of position
        Position where all scales are 1. Queries and keys must share it: a centre that follows the length of a text, as
        in some implementations, makes cached keys wrong.

    Returns
    -------
    array, ``P + (D,)``
        ``zeta_i ** ((position - centre) / scale_base)`` with ``zeta_i = (2i + 0.4 r) / (1.4 r)``, ``r = 2D``; float64
        where the library has it. For frequencies ``(*H, D, k)`` it broadcasts against the phases.

    Raises
    ------
    ValueError
        If `n_blocks` is negative, `scale_base` not positive and finite, `centre` not finite, or a position is not
        finite or more than 565 `scale_base` from the centre, beyond which scales leave the range of float64 (without
        float64, 69 `scale_base`; lazy arrays then get infinity or 0). Positions are checked only where that is free:
        not on devices, in JAX or in Dask.
    TypeError
        If `n_blocks` is not a whole number, or positions are neither integers nor real floats.

    See Also
    --------
    rotate, geometric

    Notes
    -----
    The score of q at m and k at n is ``sum_i zeta_i^((m - n) / scale_base) (A_i cos u_i + B_i sin u_i)``: it depends on
    the lag alone, decays if the key comes before the query, and grows if it comes after. Source: Sun et al., "A
    length-extrapolatable transformer" (2022); section 5 of the mathematics page.

    Examples
    --------
    >>> xpos_scales([0, 512], 4).round(4)
    array([[1.    , 1.    , 1.    , 1.    ],
           [0.2857, 0.4643, 0.6429, 0.8214]])
    """
    n_blocks, scale_base = whole("n_blocks", n_blocks), positive("scale_base", scale_base)
    centre = finite("centre", centre)
    xp, _ = array.shared(positions=positions)
    positions = array.widen(array.numbers(positions, xp, name="positions"), xp)
    powers = (positions - centre) / scale_base
    most = 565.0 if array.dtype_name(powers) == "float64" else 69.0
    if not array.all_within(powers, most, xp):
        raise ValueError(
            f"positions holds NaN or infinity, or numbers more than {most:g} * {scale_base} from {centre}; expected at "
            f"most {most:g} times scale_base from centre"
        )
    index = xp.arange(n_blocks, dtype=powers.dtype, device=array.device(powers))
    zeta = (index + 0.4 * n_blocks) / (1.4 * max(n_blocks, 1))
    return xp.exp(powers[..., None] * xp.log(zeta))
