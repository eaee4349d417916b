"""Designs: how a kernel becomes D frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope import _array, _designs, _philox
from rfrope._array import Array
from rfrope.frequencies import count
from rfrope.kernels import Kernel, parse

__all__ = ["DESIGNS", "RANDOMISED", "Optimised", "optimise", "sample"]

_RANDOMISED = {
    "iid": _designs.iid,
    "stratified": _designs.stratified,
    "sobol": _designs.sobol,
    "halton": _designs.halton,
    "orthogonal": _designs.orthogonal,
    "antithetic": _designs.antithetic,
}
RANDOMISED = tuple(_RANDOMISED)
DESIGNS = (*RANDOMISED, "quantile", "optimised", "auto")
_NORMS = ("rms", "sup")
_MOST_LAGS = 2**52  # that a range may hold
_MOST_UNKNOWNS = 2**10  # of a fit: its time grows with their square


@dataclass(frozen=True)
class Optimised:
    """Frequencies fitted to a kernel over a range of lags, and what they reach there.

    Attributes
    ----------
    frequencies : array, (D,) or (D, k), radians per unit of position
    norm : {"rms", "sup"}
        What was minimised.
    max_lag : tuple of int
        The range, one for each axis.
    rms, sup : float
        Root mean square and largest error ``abs(Phi_D - Phi)`` over the whole lags of the range, one of each pair
        +-lag; of more than 262144, over the smaller ones and a spread over the rest.
    start_rms, start_sup : float
        The same of the design "quantile", from which the fit starts.
    """

    frequencies: Array
    norm: str
    max_lag: tuple[int, ...]
    rms: float
    sup: float
    start_rms: float
    start_sup: float


def sample(
    kernel: Kernel | str | Sequence[Kernel | str],
    n_blocks: int,
    *,
    rng: Any = None,
    design: str = "iid",
    heads: int | None = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
    max_lag: int | Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Frequencies of a kernel: with a randomised design the expected score is ``(q . k) Phi(lag)``.

    The set of head h depends on the seed, h and the design alone: the same bits on every library (with one build of
    NumPy and SciPy, which evaluate the quantile functions). With "iid" a shorter sample is the beginning of a longer
    one.

    Parameters
    ----------
    kernel : Kernel or str, or a sequence of them
        What to realise; a string is read by `rfrope.kernels.parse`. A sequence has one kernel for each head.
    n_blocks : int
        D, half the rotated width.
    rng : None, int, sequence of ints or numpy.random.Generator
        Seed, as SPEC 7 has it; None draws fresh entropy. A Generator is advanced by eight bytes. Deterministic designs
        do not look at it.
    design : str
        "iid", independent draws, or one of the following (docs/designs.rst compares them).

        - "stratified": one uniform in each of D strata of every column of the cube, the strata permuted at random. A
          column that carries a sign has strata of its magnitude and independent signs: in one axis, of abs(omega).
        - "sobol", "halton": scrambled points of low discrepancy.
        - "orthogonal" (two axes or more, isotropic kernels and linear maps of them): uniform directions that are
          orthogonal within groups of k, times independent radii.
        - "antithetic": pairs (omega, -omega); an odd last one is alone. Sines of a pair with equal content cancel, but
          cosines are equal, which doubles the variance of their mean: rarely what one wants.
        - "quantile", deterministic: abs(omega) at probabilities (i + 1/2)/D with alternating signs; a lattice of the
          cube in more than one axis.
        - "optimised", deterministic: `optimise`, which also tells what was reached.
        - "auto": "stratified" where one uniform makes a frequency (`Kernel.draws`), else "sobol".
    heads : int, optional
        Draw an independent set for each of so many heads. Head 0 is the set without ``heads``. Deterministic designs
        give all heads the same set.
    xp, device, dtype
        Array library (a module such as ``torch``; NumPy unless given), where to put the result, and its dtype (float64
        where the library has it unless given). The draw itself is made by NumPy in float64 on the host, and copied to
        the device.
    max_lag, norm
        Of the design "optimised": as in `optimise`.

    Returns
    -------
    array, radians per unit of position
        ``(D,)`` for a kernel with one axis and ``(D, k)`` with k; with heads ``(H, D, k)``, k = 1 included.

    Raises
    ------
    ValueError
        For an unknown design or one that the kernel does not allow, negative numbers, or a kernel that cannot be read.
    TypeError
        For arguments of another kind.

    Notes
    -----
    Source: Corollary 3 and Theorem 2 of seed 000, which needs the kernel's law for every block alone, not independence;
    sections 3 and 4 of the mathematics page. Every block of a randomised design has the kernel's law exactly, so the
    mean score is exact; the variance of Proposition 4 holds for "iid" only: `estimate_scores` measures that of the
    others. A deterministic design has no expectation: its mean kernel is near Phi, and a score is near ``(q . k) Phi``
    as far as blocks share the content.

    Examples
    --------
    >>> sample("gaussian(scale=32)", 4, rng=0).shape
    (4,)
    >>> sample("gaussian(scale=32, ndim=2)", 4, rng=0, heads=8).shape
    (8, 4, 2)

    A ladder of scales, one for each head:

    >>> import rfrope
    >>> ladder = [rfrope.kernel("gaussian", scale=s) for s in np.geomspace(8.0, 512.0, 4)]
    >>> abs(sample(ladder, 2, design="quantile"))[..., 0].round(4)
    array([[0.0398, 0.1438],
           [0.01  , 0.0359],
           [0.0025, 0.009 ],
           [0.0006, 0.0022]])
    """
    several = isinstance(kernel, list | tuple)
    kernels, space = _as_kernels(kernel), _array.named_namespace(xp)
    designs = [check_design(design, k) for k in kernels]
    n_blocks, streams = count("n_blocks", n_blocks), 1 if heads is None else count("heads", heads)
    if several and heads is not None and streams != len(kernels):
        raise ValueError(f"heads is {heads} but kernel has {len(kernels)} kernels; expected one number, or no heads")
    reach = _range_of_design(kernels[0], design, n_blocks, max_lag, norm)
    dtype = _array.check_float_dtype(dtype, space)
    key = _philox.key_from_rng(rng) if designs[0] in RANDOMISED else None
    sets = [
        _fixed_set(k, n_blocks, reach, norm or "rms", 1 if several else streams)
        if key is None
        else draw_sets(k, name, key, n_blocks, stream=head, streams=1 if several else streams)
        for head, (k, name) in enumerate(zip(kernels, designs, strict=True))
    ]
    omega = np.concatenate(sets)
    if heads is None and not several:
        omega = omega[0]
    elif kernels[0].ndim == 1:
        omega = omega[..., None]
    return _array.from_host(omega, space, device=device, dtype=dtype)


def optimise(
    kernel: Kernel | str,
    n_blocks: int,
    *,
    max_lag: int | Sequence[int],
    norm: str = "rms",
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Optimised:
    """Fit frequencies to a kernel over whole lags from -max_lag to max_lag, and say what they reach.

    Deterministic: it starts from the design "quantile" and goes to the nearest minimum.

    Parameters
    ----------
    kernel, n_blocks, xp, device, dtype
        As in `sample`.
    max_lag : int or sequence of int
        Largest lag in units of position, one number or one for each axis. Beyond it the error is not looked at, and
        grows.
    norm : {"rms", "sup"}
        Minimise the root mean square of the error, or go on from there to lower the largest error.

    Returns
    -------
    Optimised

    Raises
    ------
    ValueError
        For a range or norm that is not as above, for more than 1024 unknowns (D k), and as `sample`.
    TypeError
        For arguments of another kind.

    Notes
    -----
    Source: section 4 of the mathematics page. The error is that of the mean kernel ``(1/D) sum_i cos(lag . omega_i)``.
    Only whole lags count, for which omega matters modulo 2 pi: at positions that are not whole such a set is no better
    than its start. Of more than 2048 lags the fit sees the smaller ones and a spread over the rest; the figures are
    over all. 64 frequencies in one axis take a second or so, 1024 unknowns minutes.

    Examples
    --------
    >>> fit = optimise("gaussian(scale=32)", 64, max_lag=256)
    >>> bool(fit.sup < 0.003 < 0.01 < fit.start_sup)
    True
    """
    made, space = as_kernel(kernel), _array.named_namespace(xp)
    n_blocks = count("n_blocks", n_blocks, 1)
    reach = _range_of_fit(made, n_blocks, max_lag, norm)
    dtype = _array.check_float_dtype(dtype, space)
    start, omega = _designs.quantile(made, n_blocks), _designs.optimised(made, n_blocks, reach, norm)
    start_rms, start_sup = _designs.reached(made, start, reach)
    frequencies = _array.from_host(omega, space, device=device, dtype=dtype)
    return Optimised(frequencies, norm, reach, *_designs.reached(made, omega, reach), start_rms, start_sup)


def draw(
    kernel: Kernel, key: _philox.Key, start: int, n_draws: int, *, stream: int = 0, streams: int = 1
) -> np.ndarray:
    """Draws start, ..., start + n_draws - 1 of some streams: ``(streams, n_draws)``, plus ``(k,)`` for k > 1."""
    return kernel.transport(_designs.uniforms(key, start, n_draws, kernel.draws, stream, streams))


def draw_sets(
    kernel: Kernel, design: str, key: _philox.Key, n_blocks: int, *, stream: int = 0, streams: int = 1
) -> np.ndarray:
    """Sets of a randomised design, one for each stream: ``(streams, n_blocks)``, plus ``(k,)`` for k > 1."""
    return _RANDOMISED[design](kernel, key, n_blocks, stream, streams)


def check_design(design: str, kernel: Kernel) -> str:
    """Return the name of a design that the kernel allows, "auto" resolved, or say which designs there are."""
    if not isinstance(design, str) or design not in DESIGNS:
        raise ValueError(f"design is {design!r}; expected one of {', '.join(map(repr, DESIGNS))}")
    if design == "auto":
        return "stratified" if kernel.draws == 1 else "sobol"
    if design == "orthogonal":
        _designs.checked_isotropy(kernel)
    return design


def check_randomised(design: str, kernel: Kernel) -> str:
    """As `check_design`, and say so if there is no randomness whose effect could be estimated."""
    design = check_design(design, kernel)
    if design not in RANDOMISED:
        raise ValueError(
            f"design is {design!r}, which is deterministic: there is nothing to estimate; expected 'auto' or one of "
            f"{', '.join(map(repr, RANDOMISED))} (rfrope.scores and rfrope.analysis.mean_kernel take its frequencies)"
        )
    return design


def as_kernel(kernel: Kernel | str) -> Kernel:
    """Return a kernel, read from its specification if it is a string."""
    if isinstance(kernel, str):
        return parse(kernel)
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"kernel is {kernel!r:.80}; expected a kernel, as rfrope.kernel('gaussian', scale=32.0), or its text"
        )
    return kernel


def as_range(kernel: Kernel, max_lag: Any) -> tuple[int, ...]:
    """Largest lag on each axis, from one number or one for each, or say what is wrong with it."""
    several = isinstance(max_lag, list | tuple) or (isinstance(max_lag, np.ndarray) and max_lag.ndim == 1)
    reach = tuple(max_lag) if several else (max_lag,) * kernel.ndim
    reach = tuple(count("max_lag", m, 1) for m in reach)
    if len(reach) != kernel.ndim:
        raise ValueError(f"max_lag is {max_lag!r}; expected one number or {kernel.ndim}, one for each axis")
    return reach


def _as_kernels(kernel: Any) -> tuple[Kernel, ...]:
    made = tuple(map(as_kernel, kernel)) if isinstance(kernel, list | tuple) else (as_kernel(kernel),)
    if not made:
        raise ValueError("kernel is an empty sequence; expected one kernel for each head")
    if len({k.ndim for k in made}) > 1:
        raise ValueError(f"kernel has kernels with {[k.ndim for k in made]} axes; expected one ndim for all heads")
    return made


def _fixed_set(kernel: Kernel, n_blocks: int, reach: tuple[int, ...] | None, norm: str, heads: int) -> np.ndarray:
    """Sets of a deterministic design, the same for all heads: fitted to a range if there is one."""
    omega = _designs.optimised(kernel, n_blocks, reach, norm) if reach else _designs.quantile(kernel, n_blocks)
    return np.repeat(omega[None], heads, axis=0)


def _range_of_design(
    kernel: Kernel, design: str, n_blocks: int, max_lag: Any, norm: str | None
) -> tuple[int, ...] | None:
    """Range of the lags that a design is fitted to; None for those that fit nothing."""
    if design == "optimised":
        return _range_of_fit(kernel, n_blocks, max_lag, norm or "rms")
    for name, value in (("max_lag", max_lag), ("norm", norm)):
        if value is not None:
            raise ValueError(f"{name} is {value!r} but design is {design!r}; expected it with 'optimised' alone")
    return None


def _range_of_fit(kernel: Kernel, n_blocks: int, max_lag: Any, norm: str) -> tuple[int, ...]:
    """Largest lag on each axis, or say what is wrong with it, with the norm or with the number of blocks."""
    if norm not in _NORMS:
        raise ValueError(f"norm is {norm!r}; expected one of {', '.join(map(repr, _NORMS))}")
    if max_lag is None:
        raise ValueError("max_lag is None; expected with design 'optimised' the largest lag that counts")
    reach = as_range(kernel, max_lag)
    if math.prod(2 * m + 1 for m in reach) > _MOST_LAGS:
        raise ValueError(f"max_lag is {max_lag!r}; expected a range of at most 2**52 lags")
    if n_blocks * kernel.ndim > _MOST_UNKNOWNS:
        raise ValueError(
            f"n_blocks is {n_blocks} with {kernel.ndim} axes; expected at most {_MOST_UNKNOWNS} unknowns with design "
            "'optimised', or design 'quantile'"
        )
    return reach
