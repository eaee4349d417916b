"""Designs: how a kernel becomes D frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope import _accel, _array, _philox
from rfrope._array import Array
from rfrope.frequencies import count
from rfrope.kernels import Kernel, parse

DESIGNS = ("iid",)
_MANY = 2**15  # uniforms from which on it pays to import Numba


def sample(
    kernel: Kernel | str,
    n_blocks: int,
    *,
    rng: Any = None,
    design: str = "iid",
    heads: int | None = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Array:
    """Draw frequencies whose expected score is ``(q . k) Phi(lag)``.

    Frequency i of head h depends on the seed, h and i alone: the same bits on every library (with one build of NumPy
    and SciPy, which evaluate the quantile functions), and a shorter sample is the beginning of a longer one.

    Parameters
    ----------
    kernel : Kernel or str
        What to realise; a string is read by `rfrope.kernels.parse`.
    n_blocks : int
        D, half the rotated width.
    rng : None, int, sequence of ints or numpy.random.Generator
        Seed, as SPEC 7 has it; None draws fresh entropy. A Generator is advanced by eight bytes.
    design : {"iid"}
        Independent draws.
    heads : int, optional
        Draw an independent set for each of so many heads. Head 0 is the set without `heads`.
    xp, device, dtype
        Array library (a module such as ``torch``; NumPy unless given), where to put the result, and its dtype (float64
        where the library has it unless given). The draw itself is made by NumPy in float64 on the host, and copied to
        the device.

    Returns
    -------
    array, radians per unit of position
        ``(D,)`` for a kernel with one axis and ``(D, k)`` with k; with heads ``(H, D, k)``, k = 1 included.

    Raises
    ------
    ValueError
        For an unknown design, negative numbers, or a kernel that cannot be read.
    TypeError
        For arguments of another kind.

    Notes
    -----
    Source: Corollary 3 of seed 000; sections 3 and 4 of the mathematics page.

    Examples
    --------
    >>> sample("gaussian(scale=32)", 4, rng=0).shape
    (4,)
    >>> sample("gaussian(scale=32, ndim=2)", 4, rng=0, heads=8).shape
    (8, 4, 2)
    """
    kernel, space = as_kernel(kernel), _array.named_namespace(xp)
    check_design(design)
    n_blocks, streams = count("n_blocks", n_blocks), 1 if heads is None else count("heads", heads)
    dtype = _array.check_float_dtype(dtype, space)
    omega = draw(kernel, _philox.key_from_rng(rng), 0, n_blocks, streams=streams)
    if heads is None:
        omega = omega[0]
    elif kernel.ndim == 1:
        omega = omega[..., None]
    return _array.from_host(omega, space, device=device, dtype=dtype)


def draw(
    kernel: Kernel, key: _philox.Key, start: int, n_draws: int, *, stream: int = 0, streams: int = 1
) -> np.ndarray:
    """Draws start, ..., start + n_draws - 1 of some streams: ``(streams, n_draws)``, plus ``(k,)`` for k > 1."""
    many = streams * n_draws * kernel.draws >= _MANY
    uniforms = _accel.choose(_philox.uniforms) if many else _philox.uniforms
    return kernel.transport(uniforms(key, start, n_draws, kernel.draws, stream=stream, streams=streams))


def as_kernel(kernel: Kernel | str) -> Kernel:
    """Return a kernel, read from its specification if it is a string."""
    if isinstance(kernel, str):
        return parse(kernel)
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"kernel is {kernel!r:.80}; expected a kernel, as rfrope.kernel('gaussian', scale=32.0), or its text"
        )
    return kernel


def check_design(design: str) -> None:
    """Say which designs there are if `design` is none."""
    if design not in DESIGNS:
        raise ValueError(f"design is {design!r}; expected one of {', '.join(map(repr, DESIGNS))}")
