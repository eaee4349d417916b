"""Schemes for one axis of several: more frames, larger pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import fraction, show, whole
from rfrope._core.array import Array
from rfrope.rotation.rope import Rope
from rfrope.scaling.schemes import read, scaled_rope


@array.select_device
def riflex(frequencies: Array, *, period: int, length: int, share: float = 0.9) -> Rope:
    """Slow down the one block by which a longer video repeats itself, so that it turns less than once.

    The block is the one whose wavelength, rounded to whole frames, is nearest `period`. It gets the frequency ``share *
    2 pi / length``, unless `length` is within its wavelength: then nothing changes.

    Parameters
    ----------
    frequencies : Rope or array_like, (D,), radians per frame
        Frequencies of the axis of frames; in a Rope of several axes, use `scale_axis`.
    period : int
        Frames after which longer videos of the model are seen to repeat, in its latent space.
    length : int
        Frames to be generated, in latent space.
    share : float
        Part of a turn over `length`, from 0 to 1.

    Returns
    -------
    Rope
        Frequencies ``(D,)``, float64 where the library has it; attention factor 1.

    Raises
    ------
    ValueError
        See `linear`. Also if there is no block, `period` or `length` is not positive, or `share` not from 0 to 1.
    TypeError
        See `linear`. Also if `period` or `length` is not a whole number.

    See Also
    --------
    scaling.scale_axis, scaling.ntk

    Notes
    -----
    Source: Zhao et al. 2025 (arXiv 2502.15894), equations 7 and 8, and their code, which has the share of 0.9.

    Examples
    --------
    HunyuanVideo repeats after about 48 latent frames, near the 50 of its fourth block:

    >>> import rfrope
    >>> riflex(rfrope.geometric(8, base=256.0), period=48, length=66).frequencies.round(3)[:5]
    array([1.   , 0.5  , 0.25 , 0.086, 0.062])
    """
    theta, xp = read(frequencies)
    period, length = whole("period", period, 1), whole("length", length, 1)
    if theta.shape[0] == 0:
        raise ValueError("frequencies has shape (0,); expected (D,) with at least one block")
    wavelengths = xp.round(2.0 * math.pi / array.clip(xp.abs(theta), 2.0**-100, 2.0**100, xp))  # both are floats of 32
    index = xp.arange(theta.shape[0], device=array.device(theta))
    chosen = (index == xp.argmin(xp.abs(wavelengths - period))) & (wavelengths < length)
    slowed = xp.where(chosen, xp.full_like(theta, fraction("share", share) * 2.0 * math.pi / length), theta)
    return scaled_rope(frequencies, slowed, 1.0, "riflex", period=period, length=length, share=share)


@array.select_device
def scale_axis(frequencies: Array, axis: int, scheme: Callable[..., Rope], *arguments: Any, **options: Any) -> Rope:
    """Apply a scheme to the blocks of one axis.

    Parameters
    ----------
    frequencies : Rope or array_like, (D, k), radians per unit of position
        Frequencies of several axes, as `axial` and `mrope` return them.
    axis : int
        Axis whose blocks are changed: those that no other axis turns.
    scheme : callable
        A function of this module.
    *arguments, **options
        Passed to it after the frequencies of those blocks, ``(D_axis,)``.

    Returns
    -------
    Rope
        Frequencies ``(D, k)``. The attention factor of the scheme multiplies that of all blocks, and the context of
        `axis` grows.

    Raises
    ------
    ValueError
        If frequencies are not ``(D, k)``, or no block turns by `axis` alone. Also see the scheme.
    TypeError
        If `axis` is not a whole number, or `scheme` is not a function. Also see the scheme.

    See Also
    --------
    scaling.riflex, scaling.ntk, axial

    Notes
    -----
    DyPE's NTK, for images larger than a diffusion model was trained on, is `ntk` by axis with another factor at each
    step: ``scale ** (2 * t**2)``, where scale is the ratio of patches along the axis and t falls from 1, noise, to 0.
    Source: Issachar et al. 2025 (arXiv 2510.20766) and their code; they state that a patent is pending.

    Examples
    --------
    A video of more frames and larger pictures:

    >>> import rfrope
    >>> frames, patches = rfrope.geometric(2, base=256.0), rfrope.geometric(2)
    >>> rope = scale_axis(rfrope.axial(frames, patches, patches), 0, riflex, period=100, length=132)
    >>> ntk = rfrope.scaling.ntk
    >>> scale_axis(scale_axis(rope, 1, ntk, 4.0), 2, ntk, 2.0).frequencies.round(4)
    array([[1.    , 0.    , 0.    ],
           [0.0428, 0.    , 0.    ],
           [0.    , 1.    , 0.    ],
           [0.    , 0.0025, 0.    ],
           [0.    , 0.    , 1.    ],
           [0.    , 0.    , 0.005 ]])
    """
    if not callable(scheme) or isinstance(scheme, type):
        raise TypeError(f"scheme is {show(scheme)}; expected a function of rfrope.scaling, such as rfrope.scaling.ntk")
    theta, xp = read(frequencies, shapes="any")
    if theta.ndim != 2:
        raise ValueError(f"frequencies has shape {tuple(theta.shape)}; expected (D, k), one set for all heads")
    axis = whole("axis", axis, 0, theta.shape[1] - 1)
    turns = array.to_host(theta, "frequencies") != 0.0
    own = np.flatnonzero(turns[:, axis] & (np.count_nonzero(turns, axis=1) == 1))
    if not len(own):
        raise ValueError(f"axis is {axis}, by which alone no block turns; expected an axis of rfrope.axial or mrope")
    place = partial(xp.asarray, device=array.device(theta))
    made = scheme(xp.take(theta[:, axis], place(own)), *arguments, **options)
    places = np.arange(len(turns))
    places[own] = len(turns) + np.arange(len(own))
    columns = [theta[:, j] for j in range(theta.shape[1])]
    columns[axis] = xp.take(xp.concat([columns[axis], made.frequencies]), place(places))
    (step,) = made.source.scaled_by
    return scaled_rope(frequencies, xp.stack(columns, axis=-1), made.attention_factor, axis=axis, **step)
