"""Wavelengths, turns and distribution of the blocks; scores of content that no kernel explains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks, sums
from rfrope._core.angles import Angles
from rfrope._core.arguments import finite, positive
from rfrope._core.array import Array
from rfrope._core.blocks import Content
from rfrope._core.results import Result
from rfrope._core.sums import root
from rfrope.kernels.parameters import radius
from rfrope.rotation.rope import refuse_polar


@array.select_device
def wavelengths(frequencies: Array) -> Array:
    """Return the wavelength of each block, ``2 pi / |omega|``: the distance in which it turns once.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.

    Returns
    -------
    array, units of position, float64 where the library has it
        ``(D,)`` or ``(*H, D)``. With k axes, the distance from crest to crest, across the wave. Infinite for frequency
        0.

    Raises
    ------
    ValueError
        If `frequencies` is a single number, or holds NaN, infinity or magnitudes above 2**500.
    TypeError
        If `frequencies` does not hold real numbers.

    See Also
    --------
    analysis.turns, plotting.wavelengths

    Notes
    -----
    Source: section 5 of the mathematics page. Blocks have no common period in general, despite Zhao: ratios of
    wavelengths are irrational, and sums over blocks are quasi-periodic.

    Examples
    --------
    >>> wavelengths([1.0, 0.01, 0.0]).round(2)
    array([  6.28, 628.32,    inf])
    """
    omega, xp = _magnitudes(frequencies)
    still = omega == 0.0
    with np.errstate(over="ignore"):  # for the smallest floats
        length = 2.0 * math.pi / xp.where(still, xp.ones_like(omega), omega)
    return xp.where(still, xp.full_like(omega, math.inf), length)


@array.select_device
def turns(frequencies: Array, context: float) -> Array:
    """Return the number of turns of each block over a context, ``context |omega| / (2 pi)``.

    A block with less than one turn is a "dead channel": training at that context has shown only a part of its circle,
    and longer texts bring new angles. Far below one turn a block hardly rotates between any two tokens: it carries
    content but no position.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    context : float, units of position
        Positive, such as the number of tokens in training.

    Returns
    -------
    array, float64 where the library has it
        ``(D,)`` or ``(*H, D)``. With k axes, turns over that distance across the wave.

    Raises
    ------
    ValueError
        See `wavelengths`. Also if `context` is not positive and finite.
    TypeError
        See `wavelengths`. Also if `context` is not a number.

    See Also
    --------
    analysis.wavelengths

    Examples
    --------
    A quarter of the blocks of Llama 2 are dead over its 4096 positions of training:

    >>> import rfrope
    >>> made = turns(rfrope.geometric(64, base=10_000.0), 4096)
    >>> made[[45, 46, 63]].round(3)
    array([1.004, 0.869, 0.075])
    >>> int((made < 1.0).sum())
    18
    """
    context = positive("context", context)
    omega, _ = _magnitudes(frequencies)
    with np.errstate(over="ignore", under="ignore"):
        return omega * (context / (2.0 * math.pi))


def _magnitudes(frequencies: Any) -> tuple[Array, ModuleType]:
    """Check frequencies; their magnitudes ``(D,)`` or ``(*H, D)``, and the namespace."""
    frequencies = angles.frequencies_of(frequencies)
    xp, device = array.shared(frequencies=frequencies)
    return radius(angles.read_frequencies(frequencies, xp, device), xp), xp


@dataclass(frozen=True, eq=False)
class Similarity(Result):
    """Score of a random unit token and a similar unit key, by lag.

    Attributes
    ----------
    mean : array
        Expected score: the cosine between token and key times the mean kernel.
    std : array
        Its standard deviation over tokens.
    random_std : float
        Standard deviation of the score of an independent random unit key, ``1/sqrt(d)``; its mean is 0 at every lag.
    radius : array
        Distance within which every key has a positive expected score, above that of a random key: the mean kernel, or 0
        where it is negative.

    See Also
    --------
    analysis.similarity

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.analysis.similarity([0, 64], rfrope.geometric(32))
    >>> found.mean.round(3)
    array([1.   , 0.435])
    """

    mean: Array
    std: Array
    random_std: float
    radius: Array


@dataclass(frozen=True, eq=False)
class Departure(Result):
    """Distance of scores from content times a single kernel.

    Attributes
    ----------
    phi : array
        Number Phi at each lag for which ``(q . k) Phi`` is nearest to the scores; 0 where all q . k are 0.
    residual : array
        Relative residual at each lag: the norm of ``S - (q . k) Phi`` over the norm of S, over the pairs. 0 if one
        number explains all scores, 1 if it explains nothing; 0 where all scores are 0.
    overall : array, ()
        The same over all pairs and lags together.

    See Also
    --------
    analysis.departure

    Examples
    --------
    >>> import rfrope
    >>> from rfrope.data import smollm2_heads
    >>> heads = smollm2_heads()
    >>> found = rfrope.analysis.departure(heads["previous_q"], heads["previous_k"], [0, -8], heads["inv_freq"])
    >>> found.phi.shape, found.residual.shape
    ((2,), (2,))
    """

    phi: Array
    residual: Array
    overall: Array


@array.select_device
def sine_share(q: Array, k: Array, lags: Array, frequencies: Array, *, pairing: str = "half") -> Array:
    """Return the part of the score that comes from sines, ``|sum B sin u| / (|sum A cos u| + |sum B sin u|)``.

    A kernel averages the cosines; the sines have opposite signs at opposite lags, and do not cancel because standard
    RoPE has only positive frequencies.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Query and key before rotation, d even and at least 2D. Features beyond 2D are not rotated, and count as cosines.
    lags : array_like, in units of position
        Lags, KEY minus QUERY: any shape ``P`` for frequencies ``(D,)``, ``(*P, k)`` otherwise. The shape of
        ``lags @ frequencies^T`` without its last axis broadcasts against the leading axes of q and k: for n pairs at m
        lags give q and k as ``(n, 1, d)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    pairing : {"half", "interleaved"}
        Features that form a block.

    Returns
    -------
    array, float64 where the library has it
        Broadcast shape, with values between 0 and 1; 0 where both parts vanish.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, features are not real floating, or a lag or frequency is NaN or infinite.

    See Also
    --------
    analysis.departure, block_coefficients

    Notes
    -----
    ``S = sum_i A_i cos u_i + B_i sin u_i``, with A and B from `rfrope.block_coefficients` and exact phases ``u_i``:
    section 1 of the mathematics page. The RF-RoPE paper shows that the sines of deterministic RoPE do not cancel.

    Examples
    --------
    Query and key in the same direction have no sines; at a right angle in the block they have nothing else:

    >>> import rfrope
    >>> q, k = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    >>> sine_share(q, k, -5, [0.1]).round(3)
    array([0., 1.])

    Each token and the one before it, in the previous-token head of SmolLM2, at lags -1, -8 and -64:

    >>> import numpy as np
    >>> from rfrope.data import smollm2_heads
    >>> heads = smollm2_heads()
    >>> q, k = heads["previous_q"][1:, None], heads["previous_k"][:-1, None]
    >>> np.median(sine_share(q, k, [-1, -8, -64], heads["inv_freq"]), axis=0).round(2)
    array([0.62, 0.27, 0.29])
    """
    content, read = _prepare(q, k, lags, frequencies, pairing)
    xp = read.xp
    cosines, sines = sums.sum_blocks(read, content.cosine, content.sine)
    cosines, sines = xp.abs(cosines + content.rest), xp.abs(sines)
    none = sines == 0.0
    return xp.where(none, xp.zeros_like(cosines), sines / xp.where(none, xp.ones_like(sines), cosines + sines))


@array.select_device
def similarity(lags: Array, frequencies: Array, *, cosine: float = 1.0) -> Similarity:
    """Return the score of a unit token in a random direction and a similar unit key.

    The token q is uniform on the unit sphere in d = 2D features. The key k has ``q . k = cosine`` and is otherwise in
    a uniformly random direction. All d features are rotated.

    Parameters
    ----------
    lags : array_like, in units of position
        Lags: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for ``(*H, D, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block.
    cosine : float
        Between -1 and 1; 1 if the key is the token itself.

    Returns
    -------
    Similarity
        Arrays of shape ``P``, or of ``lags @ frequencies^T`` without its last axis; float64 where the library has it.

    Raises
    ------
    ValueError
        If shapes do not fit, there are no blocks, a value is NaN or infinite, or `cosine` is outside [-1, 1].
    TypeError
        If arrays are of different libraries, or a dtype is neither integer nor real floating.

    See Also
    --------
    analysis.Similarity, analysis.mean_kernel

    Notes
    -----
    Let C be the mean and V the variance, over the blocks, of ``c_i = cos(lag . omega_i)``. The squared lengths of
    the blocks of q are uniform on the simplex, so ``(R q) . q = sum_i c_i |q_i|^2`` has mean C and variance
    ``v = V/(D+1)``; a random direction w at a right angle to q adds ``(R q) . w``, with mean 0 and, given q, variance
    ``(1 - ((R q) . q)^2) / (d - 1)``. Hence::

        mean = cosine C,    variance = cosine^2 v + (1 - cosine^2) (1 - C^2 - v) / (d - 1)

    Over all keys the score has mean 0 and variance 1/d at every lag: `random_std`.

    Zhao requires that nearby tokens beat random ones: for every unit key with ``|k - q| < eps``,
    ``E (R q) . k >= C - eps``, so a positive C leaves a positive `radius`. This is about the mean, and about the worst
    key, which deviates in the wrong direction for every q; a merely similar key, as above, has mean ``cosine C``, which
    is positive whenever C is. A single score varies by `std`: unless `mean` is several times `random_std`, a random key
    often scores higher.

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(64, base=10_000.0)
    >>> near = similarity([0, 1, 100, 1000], omega, cosine=0.8)
    >>> near.mean.round(3), near.std.round(3), round(near.random_std, 3)
    (array([0.8  , 0.776, 0.382, 0.127]), array([0.   , 0.015, 0.08 , 0.087]), 0.088)
    >>> near.radius.round(3)
    array([1.   , 0.97 , 0.477, 0.159])
    """
    cosine = finite("cosine", cosine, minimum=-1.0, maximum=1.0)
    refuse_polar(frequencies, "frequencies", "polar contents have no direction (use analysis.mean_kernel)")
    read = angles.read(lags, frequencies, name="lags", minimum=1)
    xp = read.xp
    total, squares = sums.one_minus_cos_moments(read, 2)
    fall, features = total / read.blocks, 2 * read.blocks
    kernel = 1.0 - fall
    own = array.clip(squares / read.blocks - fall * fall, 0.0, None, xp) / (read.blocks + 1)
    other = array.clip(fall * (2.0 - fall) - own, 0.0, None, xp) / (features - 1)
    std = root(cosine**2 * own + (1.0 - cosine**2) * other, xp)
    return Similarity(cosine * kernel, std, features**-0.5, array.clip(kernel, 0.0, None, xp))


@array.select_device
def departure(q: Array, k: Array, lags: Array, frequencies: Array, *, pairing: str = "half") -> Departure:
    """Return the distance of the scores of given pairs from ``(q . k) Phi(lag)``, for the best kernel Phi.

    At each lag the best number Phi is found by least squares over the pairs. Random frequencies have a kernel on
    average over their draws; a single set of frequencies, such as standard RoPE, need not have one.

    Parameters
    ----------
    q, k : array_like, (n, d)
        n pairs of query and key before rotation, row by row, d even and at least 2D. Features beyond 2D count
        unrotated.
    lags : array_like, in units of position
        Lags, KEY minus QUERY, for every pair: any shape ``P`` for frequencies ``(D,)``, ``(*P, k)`` otherwise.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(D, k)``.
    pairing : {"half", "interleaved"}
        Features that form a block.

    Returns
    -------
    Departure
        Arrays of shape ``P``, and ``()``; float64 where the library has it.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, there are no pairs, features are not real floating, or a lag or frequency is NaN or
        infinite.

    See Also
    --------
    analysis.Departure, analysis.sine_share

    Notes
    -----
    ``Phi = sum (q . k) S / sum (q . k)^2`` over the pairs, with residual ``|S - (q . k) Phi| / |S|``. Source: the
    RF-RoPE paper, on deterministic RoPE. For independent normal features and many pairs, the best number is the mean
    kernel C, with residual ``sqrt(1 - C^2)``. In real heads all pairs may share a few large features; one number then
    fits them, need not be the mean kernel, and may exceed 1. A single pair is always fitted exactly: give many.

    Examples
    --------
    Neighbours in the previous-token head of SmolLM2, also at other lags. No kernel has the best numbers:

    >>> from rfrope.data import smollm2_heads
    >>> heads = smollm2_heads()
    >>> q, k = heads["previous_q"][1:], heads["previous_k"][:-1]
    >>> found = departure(q, k, [0, -1, -8, -64], heads["inv_freq"])
    >>> found.phi.round(2), found.residual.round(2)
    (array([ 1.  , -0.99,  2.46,  2.75]), array([0.  , 0.53, 0.37, 0.38]))
    """
    content, read = _prepare(q, k, lags, frequencies, pairing, shapes="one")
    (a, b, rest), xp = content, read.xp
    if a.ndim != 2 or a.shape[0] == 0:
        raise ValueError(f"q and k have leading axes {tuple(a.shape[:-1])}; expected n pairs, shape (n, d), n >= 1")
    shape = read.shape[:-1]
    read = read._replace(positions=xp.reshape(read.positions, (-1, read.positions.shape[-1])))
    equal = xp.sum(a, axis=-1) + rest  # q . k
    cosines, sines = sums.sum_blocks(read, a[:, None, :], b[:, None, :])
    score = cosines + sines + rest[:, None]
    weights = xp.sum(equal * equal)
    empty = weights == 0.0
    phi = xp.sum(equal[:, None] * score, axis=0) / xp.where(empty, xp.ones_like(weights), weights)
    left = xp.sum((score - equal[:, None] * phi) ** 2, axis=0)
    whole = xp.sum(score * score, axis=0)
    return Departure(
        xp.reshape(phi, shape),
        xp.reshape(_root_ratio(left, whole, xp), shape),
        _root_ratio(xp.sum(left), xp.sum(whole), xp),
    )


def _root_ratio(part: Array, whole: Array, xp: ModuleType) -> Array:
    return root(part / xp.where(whole == 0.0, xp.ones_like(whole), whole), xp)


def _prepare(q: Any, k: Any, lags: Any, frequencies: Any, pairing: str, shapes: str = "any") -> tuple[Content, Angles]:
    """Content of the queries and keys, and the angles of their lags."""
    read = angles.read(lags, frequencies, name="lags", minimum=1, shapes=shapes, pairing=pairing, q=q, k=k)
    content = blocks.content(q, k, read.xp, read.device, pairing, read.blocks)
    if shapes == "any":
        array.broadcast_shapes({"q and k": content.rest.shape, "lags": read.shape[:-1]})
    return content, read
