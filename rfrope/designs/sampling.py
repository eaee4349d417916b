"""Designs by name: frequencies of a kernel, the underlying points of the cube, and Ropes for a model's heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rfrope._core import array, capacity, parallel, random
from rfrope._core.arguments import choice, flag, positive, show, whole
from rfrope._core.array import Array
from rfrope.designs import sets
from rfrope.designs.errors import error
from rfrope.designs.optimising import fit, read_fit, read_range
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope

RANDOMISED = (*(sets.POINTS | sets.FREQUENCIES),)  # take a seed: each block alone has exactly the kernel's law
DETERMINISTIC = ("quantile", "optimised")
_NAMES = (*RANDOMISED, "balanced", *DETERMINISTIC)  # balanced takes a seed, and is fitted to a range


def names() -> tuple[str, ...]:
    """Return the names of the designs; ``design=`` also accepts "auto", which chooses one of them.

    Returns
    -------
    tuple of str

    See Also
    --------
    design, sample

    Examples
    --------
    >>> names()[:3]
    ('iid', 'stratified', 'shifted')
    """
    return _NAMES


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
    """Return frequencies of a kernel; with randomised designs the expected score is ``(q . k) Phi(lag)``.

    The set of head h depends only on the seed, h and the design: the same bits on every library (for one build of NumPy
    and SciPy, which evaluate the quantile functions, on one kind of processor). With "iid" a shorter sample is the
    beginning of a longer one.

    Parameters
    ----------
    kernel : Kernel or str, or a sequence of them
        Kernel of all heads, or one for each; strings are read by `rfrope.kernels.parse`.
    n_blocks : int
        D, half the rotated width.
    rng : None, int, sequence of ints or numpy.random.Generator
        Seed; None draws fresh entropy. A Generator advances by eight bytes. Deterministic designs ignore it.
    design : str
        "iid", independent draws, or one of the following (docs/howto/designs.rst compares them).

        - "stratified": one uniform in each of D strata of every column of the cube, the strata permuted at random. If a
          column carries a sign, its magnitude is stratified and its sign independent. In one axis the strata are those
          of abs(omega), for any number of columns, and the variance of the mean kernel is at most 33/32 of that of
          independent draws, at any lag and for up to 32768 blocks (docs/explain/proofs.rst).
        - "shifted": the points of "quantile" under one random shift, in random order, with independent signs. At some
          far lags all blocks return together: the variance is up to D times that of independent draws.
        - "sobol", "halton": scrambled low-discrepancy points.
        - "orthogonal" (two axes or more; isotropic kernels and linear maps of them): uniform directions, orthogonal
          within groups of k, times independent radii.
        - "balanced": one of eight sets into which shifted points of the law are divided so that each has a small error
          over ``max_lag``.
        - "antithetic": pairs (omega, -omega); an odd last one is alone. With equal content the sines of a pair cancel,
          but its cosines are equal, which doubles the variance of their mean: rarely useful.
        - "quantile", deterministic: abs(omega) at probabilities (i + 1/2)/D with alternating signs; a lattice of the
          cube in more than one axis.
        - "optimised", deterministic: `optimise`, which also reports the error reached.
        - "auto": "stratified" in one axis, else "sobol".
    heads : int, optional
        Number of heads, each with an independent set; head 0 has the set returned without ``heads``. Deterministic
        designs give all heads the same set.
    xp, device, dtype
        Array library (a module such as ``torch``; default: NumPy), device and dtype of the result (default: float64
        where the library has it). The draw is made by NumPy in float64 on the host, and copied to the device.
    max_lag, norm
        For the designs "optimised" and "balanced"; see `optimise`. "balanced" has no norm.

    Returns
    -------
    array, radians per unit of position
        ``(D,)`` for a kernel with one axis and ``(D, k)`` with k; with heads ``(H, D, k)``, also for k = 1.

    Raises
    ------
    ValueError
        If the design is unknown or does not suit the kernel, a number is negative, or the kernel is invalid.
    TypeError
        If an argument is of another type.

    See Also
    --------
    design, designs.optimise, designs.points

    Notes
    -----
    Source: Corollary 3 and Theorem 2 of the RF-RoPE paper; sections 3 and 4 of the mathematics page. Each block of a
    randomised design has exactly the kernel's law, which is all that Theorem 2 needs, so the expected score is exact.
    The variance of Proposition 4 holds for "iid" only; `estimate_scores` measures that of the others. A deterministic
    design has no expectation: its mean kernel is near Phi, and a score is near ``(q . k) Phi`` as far as blocks share
    the content.

    Examples
    --------
    >>> sample("gaussian(scale=32)", 4, rng=0).shape
    (4,)
    >>> sample("gaussian(scale=32, ndim=2)", 4, rng=0, heads=8).shape
    (8, 4, 2)

    A ladder of scales, one per head:

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
    reach = read_fit(kernels[0], design, n_blocks, max_lag, norm)
    array.check_float_dtype(dtype, array.named_namespace(xp))
    key = random.key_from_rng(rng) if chosen[0] not in DETERMINISTIC else None
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
    return array.place_for_caller(joined, xp, device, dtype)


def design(
    kernel: Kernel | str | Sequence[Kernel | str],
    *,
    head_dim: int,
    context: int | Sequence[int],
    heads: int | None = None,
    design: str = "auto",
    rng: Any = None,
    rotary_dim: int | None = None,
    ladder: tuple[float, float] | None = None,
    norm: str | None = None,
    pairing: str = "half",
    polar: bool = False,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Rope:
    """Return a Rope of a kernel's frequencies for one head or several, with their error over the context.

    Parameters
    ----------
    kernel : Kernel or str, or a sequence of them
        Kernel of all heads, or one for each; strings are read by `rfrope.kernels.parse`.
    head_dim : int
        Number of features of a head, even; any number of magnitudes if `polar`.
    context : int or sequence of int
        Number of positions, at least 2; one for all axes or one for each.
    heads : int, optional
        Number of heads, each with its own frequencies. Default: all heads share one set.
    design : str
        Method that makes the frequencies; see `sample`.
    rng : None, int, sequence of ints or numpy.random.Generator
        Seed of the randomised designs. None draws fresh entropy, which `source` records to reproduce the set.
    rotary_dim : int, optional
        Number of rotated features of a head, even. Default: all.
    ladder : (first, last), optional
        Scales of the kernel from the first head to the last, at equal ratios; for one kernel and several heads.
    norm : {"rms", "sup"}, optional
        Error that the design "optimised" minimises. Default: "rms".
    pairing : {"half", "interleaved"}
        Features of the model that form a block.
    polar : bool
        Make one frequency per feature instead of one per pair, for `rfrope.rotation.rotate_polar`.
    xp, device, dtype
        See `sample`.

    Returns
    -------
    Rope
        Frequencies ``(D,)``, ``(D, k)`` or ``(H, D, k)``; in its ``source``

        - ``kernel``: its text, or one for each head;
        - ``design``: the name of the design, also if "auto" chose it; ``norm``; ``seed``, if the design is randomised
          and the seed was not a Generator;
        - ``error``: ``rms`` and ``sup`` of the worst head's mean kernel against Phi, over the whole lags below the
          context on every axis.

    Raises
    ------
    ValueError
        If a width is odd or does not fit, the context is below 2, or numbers of heads and kernels differ; see also
        `sample`.
    TypeError
        If an argument is of another type.

    See Also
    --------
    sample, designs.optimise, expected_score, blocks_for_error

    Examples
    --------
    >>> rope = design("gaussian(scale=16)", head_dim=32, context=128, design="optimised")
    >>> rope
    Rope(16 frequencies, pairing='half', head_dim=32, context=128, kernel='gaussian(scale=16.0)')
    >>> rope.source.design, bool(rope.source.error["sup"] < 0.02)
    ('optimised', True)
    """
    width, n_blocks = _read_widths(head_dim, rotary_dim, flag("polar", polar))
    kernels = _read_kernels_of_heads(kernel, heads, ladder)
    several = len(kernels) > 1
    lengths = read_range(kernels[0], context, "context", minimum=2)
    reach = tuple(length - 1 for length in lengths)
    chosen = {check_design(design, each) for each in kernels}
    seed = _seed(rng) if not chosen <= {*DETERMINISTIC} else None
    norm = norm or "rms" if design == "optimised" else norm
    made = sample(
        kernels if several else kernels[0],
        n_blocks,
        rng=rng if seed is None else seed,
        design=design,
        heads=heads,
        max_lag=reach if design in ("optimised", "balanced") else None,
        norm=norm,
    )
    sets = made.reshape(-1, n_blocks, kernels[0].ndim)
    if np.all(sets == sets[0]) and not several:  # the design is deterministic
        sets = sets[:1]
    errors = [error(kernels[h % len(kernels)], omega, reach) for h, omega in enumerate(sets)]
    source = Provenance(
        kernel=tuple(map(repr, kernels)) if several else repr(kernels[0]),
        design=chosen.pop() if len(chosen) == 1 else design,
        norm=norm,
        seed=seed,
        error={"rms": max(each.rms for each in errors), "sup": max(each.sup for each in errors)},
    )
    return Rope(
        array.place_for_caller(made, xp, device, dtype),
        pairing=pairing,
        head_dim=width,
        context=lengths[0] if len(lengths) == 1 else lengths,
        polar=polar,
        source=source,
    )


def points(
    kernel: Kernel | str, n_blocks: int, *, design: str = "stratified", rng: Any = None, heads: int | None = None
) -> np.ndarray:
    """Return the points of the unit cube that a design passes to a kernel's transport.

    Parameters
    ----------
    kernel : Kernel or str
        Determines the number of columns (`Kernel.n_columns`) and which of them carry a sign.
    n_blocks, rng, heads
        See `sample`.
    design : {"iid", "stratified", "shifted", "sobol", "halton"}
        A design of `sample` that is a set of points.

    Returns
    -------
    ndarray, float64, (n_blocks, kernel.n_columns), or (heads, n_blocks, kernel.n_columns)
        ``kernel.transport(points(kernel, n, design=d, rng=seed))`` is ``sample(kernel, n, design=d, rng=seed)``.

    Raises
    ------
    ValueError
        If the design is another one, a number is negative, or the kernel is invalid.
    TypeError
        If an argument is of another type.

    See Also
    --------
    sample, designs.names

    Examples
    --------
    They do not depend on scales: with equal points, kernels of different parameters have common random numbers, and
    `designs.learned_kernel` has the derivatives. One point in each eighth of the column, here of the magnitude:

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
    """Return draws start, ..., start + n_draws - 1 of some streams: ``(streams, n_draws, k)``."""
    return sets.transport(kernel, sets.uniforms(key, start, n_draws, kernel.n_columns, stream, streams))


def draw_sets(
    kernel: Kernel, design: str, key: random.Key, n_blocks: int, stream: int = 0, streams: int = 1, n_threads: int = 1
) -> np.ndarray:
    """Return sets of a randomised design, one per stream: ``(streams, n_blocks, k)``."""
    if design in sets.FREQUENCIES:
        return sets.FREQUENCIES[design](kernel, key, n_blocks, stream, streams, n_threads)
    return sets.transport(kernel, sets.POINTS[design](kernel, key, n_blocks, stream, streams), n_threads)


def _check_size(kernel: Kernel, n_blocks: int, heads: int) -> None:
    held = 16.0 * (2 * kernel.n_columns + kernel.ndim) * n_blocks * heads
    capacity.check(held, f"n_blocks={n_blocks} of {heads} sets on {kernel.ndim} axes", "n_blocks or heads")


def check_design(design: str, kernel: Kernel) -> str:
    """Return the name of a design, "auto" resolved; refuse one that the kernel does not allow."""
    choice("design", design, (*_NAMES, "auto"))
    if design == "auto":
        return "sobol" if kernel.ndim > 1 else "stratified"
    if design == "orthogonal":
        sets.checked_isotropy(kernel)
    return design


def check_randomised(design: str, kernel: Kernel) -> str:
    """Return the name as `check_design`; refuse a design without randomness, or one fitted to a range."""
    name = check_design(design, kernel)
    if name not in RANDOMISED:
        free = ", ".join(map(repr, RANDOMISED))
        why = "which is deterministic or fitted to a range of lags"
        raise ValueError(f"design is {show(design)}, {why}; expected 'auto' or one of {free}")
    return name


def read_kernels(kernel: Any) -> tuple[Kernel, ...]:
    """Return one kernel, or one for each head."""
    made = tuple(map(read_kernel, kernel)) if isinstance(kernel, list | tuple) else (read_kernel(kernel),)
    if not made:
        raise ValueError("kernel is an empty sequence; expected one kernel for each head")
    if len({k.ndim for k in made}) > 1:
        raise ValueError(f"kernel has kernels with {[k.ndim for k in made]} axes; expected one ndim for all heads")
    return made


def even(name: str, value: Any, most: int = 2**32 - 2) -> int:
    """Return an even number of features, at least 2."""
    number = whole(name, value, 2)
    if number % 2 or number > most:
        raise ValueError(f"{name} is {number}; expected an even number from 2 to {most}")
    return number


def _read_widths(head_dim: Any, rotary_dim: Any, polar: bool) -> tuple[int, int]:
    """Return the width of a head, and how many frequencies turn it."""
    if not polar:
        width = even("head_dim", head_dim)
        return width, (width if rotary_dim is None else even("rotary_dim", rotary_dim, most=width)) // 2
    if rotary_dim is not None:
        raise ValueError(f"rotary_dim is {show(rotary_dim)}, but all polar features are rotated; expected None")
    width = whole("head_dim", head_dim, 1)
    return width, width


def _read_kernels_of_heads(kernel: Any, heads: Any, ladder: Any) -> list[Kernel]:
    """One kernel for all heads, or one for each."""
    chosen = list(read_kernels(kernel))
    heads = None if heads is None else whole("heads", heads, 1)
    if ladder is None:
        return chosen
    if len(chosen) > 1 or heads is None:
        raise ValueError(f"ladder is {show(ladder)}; expected a single kernel and heads with it")
    if not isinstance(ladder, list | tuple) or len(ladder) != 2:
        raise TypeError(f"ladder is {show(ladder)}; expected the scales of the first and the last head")
    first, last = (positive(f"ladder[{i}]", value) for i, value in enumerate(ladder))
    one = chosen[0]
    if not isinstance(getattr(one, "scale", None), float) or not dataclasses.is_dataclass(one):
        raise ValueError(f"kernel is {one!r}, which has no single scale; expected one, as gaussian(), with a ladder")
    scales = np.geomspace(first, last, heads).tolist()  # of so few digits that a kernel's text is the kernel
    return [dataclasses.replace(one, scale=float(f"{scale:.6g}")) for scale in scales]


def _seed(rng: Any) -> Any:
    """Return a seed that can be recorded: the given one, or fresh entropy; None for a Generator."""
    if rng is None:
        return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]
    if isinstance(rng, list | tuple):
        random.key_from_rng(rng)
        return [int(each) for each in rng]
    return int(rng) if isinstance(rng, int | np.integer) and not isinstance(rng, bool) else None
