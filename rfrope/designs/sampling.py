"""Designs by name: the frequencies of a kernel that each makes, and the points of the cube behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import array, capacity, parallel, random
from rfrope._core.arguments import choice, show, whole
from rfrope._core.array import Array
from rfrope.designs import sets
from rfrope.designs.optimising import check_fit, check_range, fit
from rfrope.kernels import Kernel
from rfrope.kernels.text import read_kernel


@dataclass(frozen=True)
class Design:
    """One way to make the frequencies of a kernel; `sample` describes each.

    Attributes
    ----------
    name : str
        What ``design=`` takes.
    randomised : bool
        True if there is a seed; each block, taken alone, then has exactly the kernel's law.
    fitted : bool
        True if frequencies depend on a range of lags, ``max_lag``.
    """

    name: str
    randomised: bool
    fitted: bool = False


_RECORDS = (
    *(Design(name, randomised=True) for name in (*sets.POINTS, *sets.FREQUENCIES)),
    Design("balanced", randomised=True, fitted=True),
    Design("quantile", randomised=False),
    Design("optimised", randomised=False, fitted=True),
)
_BY_NAME = {record.name: record for record in _RECORDS}


def records() -> tuple[Design, ...]:
    """Return the designs, as records.

    Returns
    -------
    tuple of Design

    Examples
    --------
    >>> [record.name for record in records() if not record.randomised]
    ['quantile', 'optimised']
    """
    return _RECORDS


def names() -> tuple[str, ...]:
    """Names of the designs; ``design=`` also takes "auto", which chooses one of them.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> names()[:3]
    ('iid', 'stratified', 'shifted')
    """
    return tuple(_BY_NAME)


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
    NumPy and SciPy, which evaluate the quantile functions, on one kind of processor). With "iid" a shorter sample is
    the beginning of a longer one.

    Parameters
    ----------
    kernel : Kernel or str, or a sequence of them
        What to realise; a string is read by `rfrope.kernels.parse`. A sequence has one kernel for each head.
    n_blocks : int
        D, half the rotated width.
    rng : None, int, sequence of ints or numpy.random.Generator
        Seed, as in SPEC 7; None draws fresh entropy. A Generator is advanced by eight bytes. Deterministic designs
        do not look at it.
    design : str
        "iid", independent draws, or one of the following (docs/designs.rst compares them).

        - "stratified": one uniform in each of D strata of every column of the cube, the strata permuted at random. A
          column that carries a sign has strata of its magnitude and independent signs. In one axis the strata are those
          of abs(omega), however many columns there are, and the variance of the mean kernel is at any lag at most 33/32
          of that of independent draws, for up to 32768 blocks (docs/proofs.rst).
        - "shifted": the points of "quantile" moved by one random shift, in random order, with independent signs. At
          some far lags all blocks return together: the variance is up to D times that of independent draws.
        - "sobol", "halton": scrambled points of low discrepancy.
        - "orthogonal" (two axes or more, isotropic kernels and linear maps of them): uniform directions that are
          orthogonal within groups of k, times independent radii.
        - "balanced": shifted points of the law, dealt out to eight sets so that each errs little over ``max_lag``, and
          one of these sets.
        - "antithetic": pairs (omega, -omega); an odd last one is alone. Sines of a pair with equal content cancel, but
          cosines are equal, which doubles the variance of their mean: rarely what one wants.
        - "quantile", deterministic: abs(omega) at probabilities (i + 1/2)/D with alternating signs; a lattice of the
          cube in more than one axis.
        - "optimised", deterministic: `optimise`, which also reports what was reached.
        - "auto": "stratified" in one axis, else "sobol".
    heads : int, optional
        Number of heads, each with an independent set. Head 0 is the set without ``heads``. Deterministic designs
        give all heads the same set.
    xp, device, dtype
        Array library (a module such as ``torch``; NumPy unless given), where to put the result, and its dtype (float64
        where the library has it unless given). The draw itself is made by NumPy in float64 on the host, and copied to
        the device.
    max_lag, norm
        For the designs "optimised" and "balanced": as in `optimise`; "balanced" has no norm.

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
    Source: Corollary 3 and Theorem 2 of the RF-RoPE paper, which needs the kernel's law for every block alone, not
    independence; sections 3 and 4 of the mathematics page. Every block of a randomised design has the kernel's law
    exactly, so the mean score is exact; the variance of Proposition 4 holds for "iid" only: `estimate_scores` measures
    that of the others. A deterministic design has no expectation: its mean kernel is near Phi, and a score is near
    ``(q . k) Phi`` as far as blocks share the content.

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
    kernels = read_kernels(kernel)
    chosen = [check_design(design, k) for k in kernels]
    n_blocks, streams = whole("n_blocks", n_blocks), 1 if heads is None else whole("heads", heads)
    if several and heads is not None and streams != len(kernels):
        raise ValueError(f"heads is {heads} but kernel has {len(kernels)} kernels; expected one number, or no heads")
    _check_size(kernels[0], n_blocks, max(streams, len(kernels)))
    reach = _read_range(kernels[0], design, n_blocks, max_lag, norm)
    array.check_float_dtype(dtype, array.named_namespace(xp))
    key = random.key_from_rng(rng) if _BY_NAME[chosen[0]].randomised else None
    each = 1 if several else streams
    found = []
    for head, (one, name) in enumerate(zip(kernels, chosen, strict=True)):
        if key is None:
            omega = fit(one, n_blocks, reach, norm or "rms") if reach else sets.quantile(one, n_blocks)
            found.append(np.repeat(omega[None], each, axis=0))
        elif reach:
            found.append(sets.balanced(one, key, n_blocks, reach, head, each))
        else:
            found.append(draw_sets(one, name, key, n_blocks, head, each, parallel.allowed()))
    joined = found[0] if len(found) == 1 else np.concatenate(found)
    if heads is None and not several:
        joined = kernels[0].restore_shape(joined[0])
    return array.placed(joined, xp, device, dtype)


def points(
    kernel: Kernel | str, n_blocks: int, *, design: str = "stratified", rng: Any = None, heads: int | None = None
) -> np.ndarray:
    """Points of the unit cube that a design sends through a kernel's transport.

    Parameters
    ----------
    kernel : Kernel or str
        It says how many columns the cube has (`Kernel.n_columns`) and which of them carry a sign.
    n_blocks, rng, heads
        As in `sample`.
    design : {"iid", "stratified", "shifted", "sobol", "halton"}
        Those of `sample` that are point sets.

    Returns
    -------
    ndarray, float64, (n_blocks, kernel.n_columns), or (heads, n_blocks, kernel.n_columns)
        ``kernel.transport(points(kernel, n, design=d, rng=seed))`` is ``sample(kernel, n, design=d, rng=seed)``.

    Raises
    ------
    ValueError
        For another design, negative numbers, or a kernel that cannot be read.
    TypeError
        For arguments of another kind.

    Examples
    --------
    One point in each eighth of the column, which here is the magnitude's:

    >>> u = points("gaussian(scale=32)", 8, design="stratified", rng=0)
    >>> sorted((abs(2.0 * u - 1.0) * 8).astype(int)[:, 0].tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    kernel, n_blocks = read_kernel(kernel), whole("n_blocks", n_blocks)
    choice("design", design, tuple(sets.POINTS))
    streams = 1 if heads is None else whole("heads", heads)
    _check_size(kernel, n_blocks, streams)
    found = sets.POINTS[design](kernel, random.key_from_rng(rng), n_blocks, 0, streams)
    return found[0] if heads is None else found


def draw(kernel: Kernel, key: random.Key, start: int, n_draws: int, *, stream: int = 0, streams: int = 1) -> np.ndarray:
    """Draws start, ..., start + n_draws - 1 of some streams: ``(streams, n_draws, k)``."""
    return sets.transport(kernel, sets.uniforms(key, start, n_draws, kernel.n_columns, stream, streams))


def draw_sets(
    kernel: Kernel,
    design: str,
    key: random.Key,
    n_blocks: int,
    stream: int = 0,
    streams: int = 1,
    n_threads: int = 1,
) -> np.ndarray:
    """Sets of a randomised design, one for each stream: ``(streams, n_blocks, k)``."""
    if design in sets.FREQUENCIES:
        return sets.FREQUENCIES[design](kernel, key, n_blocks, stream, streams)
    if design == "iid":
        return sets.independent(kernel, key, n_blocks, stream, streams, n_threads)
    return sets.transport(kernel, sets.POINTS[design](kernel, key, n_blocks, stream, streams), n_threads)


def _check_size(kernel: Kernel, n_blocks: int, heads: int) -> None:
    held = 16.0 * (2 * kernel.n_columns + kernel.ndim) * n_blocks * heads
    capacity.check(held, f"n_blocks={n_blocks} of {heads} sets on {kernel.ndim} axes", "n_blocks or heads")


def check_design(design: str, kernel: Kernel) -> str:
    """Return the name of a design that the kernel allows, "auto" resolved, or say which designs there are."""
    choice("design", design, (*_BY_NAME, "auto"))
    if design == "auto":
        return "sobol" if kernel.ndim > 1 else "stratified"
    if design == "orthogonal":
        sets.checked_isotropy(kernel)
    return design


def check_randomised(design: str, kernel: Kernel) -> str:
    """As `check_design`, and refuse a design without randomness, which has nothing to estimate, or with a range."""
    record = _BY_NAME[check_design(design, kernel)]
    if record.randomised and not record.fitted:
        return record.name
    why, hint = "needs a range of lags", ""
    if not record.randomised:
        why = "is deterministic: there is nothing to estimate"
        hint = " (rfrope.scores and rfrope.analysis.mean_kernel take its frequencies)"
    free = ", ".join(repr(each.name) for each in _RECORDS if each.randomised and not each.fitted)
    raise ValueError(f"design is {show(design)}, which {why}; expected 'auto' or one of {free}{hint}")


def read_kernels(kernel: Any) -> tuple[Kernel, ...]:
    """Return one kernel, or one for each head."""
    made = tuple(map(read_kernel, kernel)) if isinstance(kernel, list | tuple) else (read_kernel(kernel),)
    if not made:
        raise ValueError("kernel is an empty sequence; expected one kernel for each head")
    if len({k.ndim for k in made}) > 1:
        raise ValueError(f"kernel has kernels with {[k.ndim for k in made]} axes; expected one ndim for all heads")
    return made


def _read_range(kernel: Kernel, design: str, n_blocks: int, max_lag: Any, norm: str | None) -> tuple[int, ...] | None:
    """Largest lag on each axis for a design that is fitted to a range; None for the others."""
    if design == "optimised":
        return check_fit(kernel, n_blocks, max_lag, norm or "rms")
    if norm is not None:
        raise ValueError(f"norm is {show(norm)} but design is {show(design)}; expected it with 'optimised' alone")
    if design == "balanced":
        return check_range(kernel, max_lag, design)
    if max_lag is not None:
        raise ValueError(
            f"max_lag is {show(max_lag)} but design is {show(design)}; expected it with 'optimised' or 'balanced' alone"
        )
    return None
