"""Generators of rotations: bases in which they are RoPE, their distance from it, and folding into weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.angles import from_vectors, numbers_on_host, read_numbers
from rfrope._core.array import Array
from rfrope._core.blocks import check_pairing
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope

_ROUNDED = 1e-9  # part of the largest entry by which generators may miss what they should be
_SINGLE = 1e-6  # the same where they are given in float32, or less
_SWEEPS = 100


@array.select_device
def from_generators(generators: Array, *, pairing: str = "half") -> tuple[Rope, Array]:
    """Return frequencies and basis of the rotations ``expm(sum_a p_a G_a)`` of commuting generators.

    Every rotation of features that depends on the difference of positions alone has this form; in a suitable basis it
    rotates blocks of two features, like RoPE. `fold` multiplies the basis into the weights.

    Parameters
    ----------
    generators : array_like, (k, d, d), or (d, d) for one axis
        Skew-symmetric, commuting, d even; radians per unit of position.
    pairing : {"half", "interleaved"}
        Which two columns of the basis, and so features after `fold`, form a block.

    Returns
    -------
    rope : Rope
        Frequencies ``(D, k)``, D = d/2, or ``(D,)`` for a single matrix, with this pairing.
    basis : array, (d, d)
        Orthogonal: columns i and i + D, or 2i and 2i + 1, span block i. ``rope.rotate(x @ basis, p) @ basis.T`` is
        ``x @ expm(sum p_a G_a).T``.

    Raises
    ------
    ValueError
        If shapes do not fit, or matrices are not skew-symmetric or do not commute, to 1e-9 of their size (1e-6 if given
        in float32 or less).
    TypeError
        If a value is not a real number.

    See Also
    --------
    frequencies.fold : multiplies the basis into weights.
    frequencies.nearest_commuting : for generators that do not commute, or only nearly.
    frequencies.relative_commutator : measures how far they are from commuting.

    Notes
    -----
    Commuting skew-symmetric matrices have a common orthogonal basis in which each consists of 2 x 2 blocks
    ``omega [[0, -1], [1, 0]]``. It is found from the tridiagonal form of a random combination, in which blocks that
    differ on some axis have different frequencies; directions with frequency 0 on all axes are paired arbitrarily. The
    basis is computed on the host in float64. Gradients reach the frequencies, and are exact where these are distinct
    and the generators keep commuting; the basis has none.

    A single generator commutes with itself: STRING (Schenck et al., 2025) and GRAPE (Zhang et al., 2025) on one axis
    are RoPE in another basis. GRAPE's ``a b^T - b a^T`` has one nonzero frequency,
    ``sqrt(|a|^2 |b|^2 - (a . b)^2)``; a circulant generator, ``C - C^T``, has one block of frequency 0. ComRoPE-LD (Yu
    et al., 2025) multiplies one matrix by a number for each axis, so the frequency vectors of a block are collinear and
    do not see displacements across them.

    Examples
    --------
    Rotations of a plane, in another basis:

    >>> turn = np.array([[0.0, -0.5], [0.5, 0.0]])
    >>> mixer = np.array([[0.6, -0.8], [0.8, 0.6]])
    >>> rope, basis = from_generators(mixer @ turn @ mixer.T)
    >>> rope.frequencies
    array([0.5])
    """
    check_pairing(pairing)
    given, axes, xp = _read(generators)
    close = _ROUNDED if array.resolution(generators) < 1e-12 else _SINGLE
    if not array.is_traced(given):
        _check_commuting(numbers_on_host(given, "generators"), close)
    placed = _find_basis(given, lambda stack: _common_basis(stack, close), xp)
    even, odd = _columns(placed, xp)
    vectors = xp.stack([xp.sum(odd * xp.matmul(given[a, ...], even), axis=0) for a in range(given.shape[0])], axis=-1)
    basis = xp.concat([even, odd], axis=1) if pairing == "half" else placed
    frequencies = from_vectors(vectors, axes)  # one matrix is one axis
    return Rope(frequencies, pairing=pairing, source=Provenance(extra={"maker": "from_generators"})), basis


@array.select_device
def relative_commutator(generators: Array) -> Array:
    """Return the largest relative commutator: 0 if all generators commute, so that scores depend on the lag alone.

    Parameters
    ----------
    generators : array_like, (k, d, d), or (d, d) for one axis
        Skew-symmetric; radians per unit of position.

    Returns
    -------
    array, ()
        The largest ``|G_a G_b - G_b G_a| / (|G_a| |G_b|)`` in the Frobenius norm over all pairs, from 0 to 1; float64
        where the library has it, with gradients. 0 for a single generator.

    Raises
    ------
    ValueError, TypeError
        See `from_generators`, except that matrices need not commute. Values are checked only where that is free.

    See Also
    --------
    frequencies.nearest_commuting : returns the nearest generators that commute.
    analysis.toeplitz_defect : measures the effect on scores.

    Notes
    -----
    At most 1 for skew-symmetric matrices (Bloch and Iserles, 2005). LieRE (Ostmeier et al., 2024) draws entries above
    the diagonal uniformly from [0, 2 pi), which gives on average 0.31 for d = 8, 0.22 for 16, 0.12 for 64. Its scores
    depend on both positions, not only on their displacement: to second order, from p to p' features are rotated by
    ``expm(displacement . G - area [G_1, G_2] / 2)``, with area ``p_1 p'_2 - p_2 p'_1``.

    Examples
    --------
    Quarter turns about two axes of space, and about a single one:

    >>> about = np.zeros((2, 4, 4))
    >>> about[0, 1, 0], about[0, 0, 1], about[1, 2, 1], about[1, 1, 2] = 1.0, -1.0, 1.0, -1.0
    >>> float(relative_commutator(about).round(4))
    0.7071
    >>> float(relative_commutator(about[[0, 0]]))
    0.0
    """
    given, _, xp = _read(generators, on_host=False)
    largest = xp.max(xp.abs(array.library(given).bits(given)))
    given = given / xp.where(largest > 0.0, largest, xp.ones_like(largest))  # whose squares neither overflow nor vanish
    found = [xp.sum(given * 0.0)]
    for a in range(given.shape[0]):
        for b in range(a):
            first, second = given[a, ...], given[b, ...]
            product = xp.matmul(first, second)
            commutator = product - xp.matrix_transpose(product)  # as both are skew-symmetric
            size = xp.sum(first**2) * xp.sum(second**2)
            squares = xp.sum(commutator**2) / xp.where(size > 0.0, size, xp.ones_like(size))
            some = squares > 0.0
            root = xp.sqrt(xp.where(some, squares, xp.ones_like(squares)))
            found.append(xp.where(some, root, xp.zeros_like(root)))
    return xp.max(xp.stack(found))


@array.select_device
def nearest_commuting(generators: Array) -> Array:
    """Return commuting generators near the given ones, by joint block diagonalisation.

    Parameters
    ----------
    generators : array_like, (k, d, d), or (d, d) for one axis
        Skew-symmetric, d even; radians per unit of position.

    Returns
    -------
    array, (k, d, d) or (d, d)
        The nearest commuting generators in the common basis found, by the sum of squared differences; float64 where the
        library has it. Pass them to `from_generators`.

    Raises
    ------
    ValueError, TypeError
        See `from_generators`, except that matrices need not commute.

    See Also
    --------
    frequencies.from_generators : returns the Rope of the result.
    frequencies.relative_commutator : measures how far generators are from commuting.

    Notes
    -----
    In a common basis P commuting generators are 2 x 2 blocks, so the nearest ones keep just these blocks of the given
    ones: ``P blocks(P^T G P) P^T``. The P with the largest blocks is sought by rotating two blocks at a time. These
    problems of four features are solved exactly: skew-symmetric 4 x 4 matrices are pairs of vectors in space, which
    rotate independently, and the best axis of each is a principal one. For d = 4 the result is the nearest of all; for
    more features, no rotation of two blocks finds a nearer one.

    With the given basis held fixed, gradients of the squared distance to the result are exact, ``2 (G - result)``: a
    penalty for training. Computed on the host in float64.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> made = rng.normal(size=(2, 8, 8))
    >>> made = made - made.swapaxes(1, 2)
    >>> near = nearest_commuting(made)
    >>> float(relative_commutator(made).round(2)), bool(relative_commutator(near) < 1e-12)
    (0.45, True)
    >>> rope, basis = from_generators(near)
    >>> rope.frequencies.shape
    (4, 2)
    """
    given, axes, xp = _read(generators)
    basis = _find_basis(given, _widest_blocks, xp)
    d = given.shape[-1]
    pairs = array.from_host(np.kron(np.eye(d // 2), np.ones((2, 2))), xp, device=array.device(given))
    turned = xp.matrix_transpose(basis)
    blocks = xp.matmul(turned, xp.matmul(given, basis)) * array.astype(pairs, given.dtype, xp)
    found = xp.matmul(basis, xp.matmul(blocks, turned))
    found = 0.5 * (found - xp.matrix_transpose(found))
    return found[0, ...] if axes == 1 else found


@array.select_device
def fold(weight: Array, basis: Array) -> Array:
    """Return weights that make queries or keys in the basis of `from_generators`, so that a plain Rope rotates them.

    Fold the weights of queries and of keys, and their biases: scores are unchanged, and the model runs wherever RoPE
    does. Values need no folding.

    Parameters
    ----------
    weight : array_like, (H d, n), or a bias (H d,)
        Weight of a linear layer ``y = weight @ x``, as in PyTorch: features of all heads, then of the input.
    basis : array_like, (d, d), or (H, d, d) with one per head
        Orthogonal. If groups of queries share a key (GQA), one basis per key head, each used for a group of consecutive
        query heads.

    Returns
    -------
    array, as `weight`
        ``basis.T @ weight`` for each head, rounded once to the dtype of `weight`.

    Raises
    ------
    ValueError
        If shapes do not fit, or a basis is not orthogonal to 1e-5 (checked where that is free).
    TypeError
        If weights are not real floating.

    See Also
    --------
    frequencies.from_generators : returns frequencies and basis.
    frequencies.fold_gains : for a norm between the weights and the rotation.

    Examples
    --------
    A circulant STRING as a Rope:

    >>> import scipy.linalg
    >>> rng = np.random.default_rng(0)
    >>> circulant = scipy.linalg.circulant(rng.normal(size=8))
    >>> generator = circulant - circulant.T
    >>> w_q, w_k = rng.normal(size=(2, 8, 8))
    >>> x, y = rng.normal(size=(2, 8))
    >>> old = (scipy.linalg.expm(5 * generator) @ w_q @ x) @ (scipy.linalg.expm(2 * generator) @ w_k @ y)
    >>> rope, basis = from_generators(generator)
    >>> new = rope.rotate(fold(w_q, basis) @ x, 5) @ rope.rotate(fold(w_k, basis) @ y, 2)
    >>> bool(np.isclose(old, new, rtol=1e-12))
    True
    """
    xp, device = array.shared({"basis": basis}, weight=weight)
    weight = array.numbers(weight, xp, name="weight", device=device)
    if not array.is_real_floating(weight) or weight.ndim not in (1, 2):
        raise TypeError(
            f"weight has shape {tuple(weight.shape)} and dtype {array.dtype_name(weight)}; expected real floating "
            "numbers (H d, n), or a bias (H d,)"
        )
    basis = _read_basis(basis, xp, array.device(weight))
    d, heads = basis.shape[-1], basis.shape[0] if basis.ndim == 3 else 1
    if weight.shape[0] % (d * heads):
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}, but basis {tuple(basis.shape)}; expected d = {d} rows a head"
        )
    rows = xp.reshape(array.astype(weight, basis.dtype, xp), (heads, weight.shape[0] // (d * heads), d, -1))
    folded = xp.matmul(xp.matrix_transpose(xp.reshape(basis, (heads, 1, d, d))), rows)
    return array.astype(xp.reshape(folded, weight.shape), weight.dtype, xp)


@array.select_device
def fold_gains(gains: Array, basis: Array) -> Array:
    """Return the gains of a query or key norm in the basis of `from_generators`, if they exist.

    Dividing by the root mean square (RMSNorm) commutes with any basis. Gains do if features with different gains are
    not mixed: all gains are equal, or the basis only permutes features.

    Parameters
    ----------
    gains : array_like, (d,)
        Factors of the features in the norm, such as ``q_norm.weight`` of Qwen3, or ``1 + weight`` in models that store
        it so (Gemma).
    basis : array_like, (d, d)
        Orthogonal.

    Returns
    -------
    array, (d,), as `gains`
        The diagonal of ``basis.T @ diag(gains) @ basis``.

    Raises
    ------
    ValueError
        If that matrix is not diagonal, to 1e-6 of the largest gain, so that no gains are equivalent: fold the model
        before gains are trained, or keep its own rotation. Also if shapes do not fit, a gain is not finite,
        or the basis is not orthogonal.
    TypeError
        If a value is not a real number.

    See Also
    --------
    frequencies.fold : the same for weights.

    Notes
    -----
    A LayerNorm over the features of a head subtracts the mean, so it only commutes with a basis that keeps the vector
    of ones. Values are read on the host.

    Examples
    --------
    >>> fold_gains([2.0, 2.0], [[0.6, -0.8], [0.8, 0.6]])
    array([2., 2.])
    >>> fold_gains([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    array([2., 1.])
    """
    xp, device = array.shared({"basis": basis}, gains=gains)
    gains = array.numbers(gains, xp, name="gains", device=device)
    basis = _read_basis(basis, xp, array.device(gains))
    if basis.ndim != 2 or tuple(gains.shape) != basis.shape[:1]:
        raise ValueError(
            f"gains has shape {tuple(gains.shape)} and basis {tuple(basis.shape)}; expected (d,) and (d, d)"
        )
    columns, values = numbers_on_host(basis, "basis"), numbers_on_host(gains, "gains").astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("gains holds NaN or infinity; expected finite numbers")
    made = columns.T @ (values[:, None] * columns)
    mixed = np.abs(made - np.diag(np.diagonal(made)))
    if not np.max(mixed) <= _SINGLE * np.max(np.abs(values)):
        worst = int(np.argmax(np.max(mixed, axis=1)))
        low, high = (values[np.abs(columns[:, worst]) > 0.1 / len(values)].take(i) for i in (0, -1))
        between = f"{np.min(values):.6g} and {np.max(values):.6g}" if low == high else f"{low:.6g} and {high:.6g}"
        raise ValueError(
            f"gains differ ({between}) between features that column {worst} of basis mixes; expected equal ones: "
            "no gains in that basis do the same, so this model keeps its own rotation"
        )
    return array.from_host(np.diagonal(made).copy(), xp, device=array.device(gains), dtype=gains.dtype)


# -- the mathematics ---------------------------------------------------------------------------------------------------


def _columns(basis: Array, xp: Any) -> tuple[Array, Array]:
    """Even and odd columns."""
    d = basis.shape[0]
    pairs = xp.reshape(basis, (d, d // 2, 2))
    return pairs[..., 0], pairs[..., 1]


def _find_basis(given: Array, find: Callable[[np.ndarray], np.ndarray], xp: Any) -> Array:
    """Return the basis that a function of host arrays finds, without derivatives."""
    shape = given.shape

    def find_rows(rows: np.ndarray) -> np.ndarray:
        bases = [find(one) for one in np.reshape(rows, (-1, *shape)).astype(np.float64)]
        return np.reshape(np.stack(bases), (*rows.shape[:-1], -1))

    if not array.is_traced(given):
        host = find(numbers_on_host(given, "generators").astype(np.float64))
        return array.from_host(host, xp, device=array.device(given), dtype=given.dtype)
    still = xp.reshape(array.library(given).bits(given), (-1,))
    found = array.map_on_host(find_rows, still, xp, "generators", last_axis=shape[-1] ** 2)
    return xp.reshape(found, shape[1:])


def _common_basis(stack: np.ndarray, close: float = _ROUNDED) -> np.ndarray:
    """Orthogonal basis whose neighbouring columns span the planes that all matrices turn.

    In a basis where the mixed matrix is tridiagonal it takes even columns to odd ones by a bidiagonal matrix, whose
    singular vectors pair them. Both steps are real and short: an interrupt is seen between them.
    """
    from scipy.linalg import hessenberg

    weights = np.random.default_rng(0).normal(size=len(stack))  # the same for every call
    form, basis = hessenberg(np.tensordot(weights, stack, axes=1), calc_q=True)
    below = np.diagonal(form, -1)  # and what is above is its negative, but for rounding
    odd, turns, even = np.linalg.svd(np.diag(below[::2]) - np.diag(below[1::2], 1))
    still = turns <= close * turns[0]
    order = np.argsort(np.where(still, np.inf, turns), kind="stable")  # they come last
    basis[:, 0::2], basis[:, 1::2] = basis[:, 0::2] @ even[order].T, basis[:, 1::2] @ odd[:, order]
    return basis


def _widest_blocks(stack: np.ndarray) -> np.ndarray:
    """Basis whose neighbouring columns hold as much of all matrices as no turn of two pairs could add to."""
    size = float(np.max(np.abs(stack)))
    stack = stack / size if size > 0.0 else stack
    basis = _common_basis(stack)
    form, total, left = basis.T @ stack @ basis, np.sum(stack * stack), np.inf
    for _ in range(_SWEEPS):
        before, left = left, total - np.sum(np.diagonal(form, -1, 1, 2)[:, ::2] ** 2) * 2.0
        if not left < before - 1e-15 * total:
            break
        for i in range(2, len(basis), 2):
            for j in range(0, i, 2):
                four = [j, j + 1, i, i + 1]
                turn = _best_turn(form[np.ix_(range(len(form)), four, four)])
                form[:, four, :] = turn.T @ form[:, four, :]
                form[:, :, four] = form[:, :, four] @ turn
                basis[:, four] = basis[:, four] @ turn
    return basis


# skew-symmetric 4 x 4 matrices are sums of left and right quaternions: entries below the diagonal, and their duals
_BELOW, _DUALS = ([1, 2, 3], [0, 0, 0]), ([3, 1, 2], [2, 3, 1])


def _best_turn(fours: np.ndarray) -> np.ndarray:
    """Rotation (4, 4) after which two blocks hold the most of some skew-symmetric matrices (k, 4, 4)."""
    below, duals = fours[:, *_BELOW], fours[:, *_DUALS]
    first, second = (_quaternion(below + sign * duals, sign) for sign in (1.0, -1.0))
    product = first @ second  # -1 on the plane that both turn one way, 1 on the other
    columns = []
    for sign in (-1.0, 1.0):
        plane = 0.5 * (np.eye(4) + sign * product)
        start = plane[:, np.argmax(np.diagonal(plane))]
        start = start / np.linalg.norm(start)
        columns += [start, first @ start]
    return np.stack(columns, axis=-1)


def _quaternion(vectors: np.ndarray, sign: float) -> np.ndarray:
    """Unit quaternion, as a matrix, along the principal axis of some vectors of space."""
    axis = np.linalg.eigh(vectors.T @ vectors)[1][:, -1]
    axis = axis if axis[0] >= 0.0 else -axis
    found = np.zeros((4, 4))
    found[_BELOW], found[_DUALS] = axis, sign * axis
    return found - found.T


# -- what is allowed in ------------------------------------------------------------------------------------------------


def _read(generators: Any, on_host: bool = True) -> tuple[Array, int, Any]:
    """Generators (k, d, d) in the widest float, the number of axes of positions' form, and their namespace.

    They are looked at where that costs nothing, or where they come to the host anyway.
    """
    xp, device = array.shared(generators=generators)
    given = read_numbers("generators", generators, xp, device)
    shape = tuple(given.shape)
    if len(shape) not in (2, 3) or shape[-1] != shape[-2] or shape[-1] % 2 or 0 in shape:
        raise ValueError(f"generators has shape {shape}; expected (k, d, d), or (d, d), with an even d")
    if array.has_host_values(given) or (on_host and not array.is_traced(given)):
        host = numbers_on_host(given, "generators")
        if np.any(np.abs(host + np.swapaxes(host, -1, -2)) > _ROUNDED * np.max(np.abs(host))):
            raise ValueError("generators holds a matrix that is not skew-symmetric; expected G^T = -G")
    return xp.reshape(given, (-1, *shape[-2:])), len(shape) - 1, xp


def _check_commuting(stack: np.ndarray, close: float) -> None:
    size = float(np.max(np.abs(stack)))
    stack = stack / (size or 1.0)  # whose products neither overflow nor vanish
    for a, first in enumerate(stack):
        for b, second in enumerate(stack[:a]):
            if np.any(np.abs(first @ second - second @ first) > close * len(first)):
                raise ValueError(
                    f"generators {b} and {a} do not commute: their relative commutator is "
                    f"{float(relative_commutator(np.stack([first, second]))):.2g}; expected matrices that do, such as "
                    "those of nearest_commuting"
                )


def _read_basis(basis: Any, xp: Any, device: Any) -> Array:
    """Orthogonal matrices in the widest float."""
    basis = array.widen(array.numbers(basis, xp, name="basis", device=device), xp)
    if basis.ndim not in (2, 3) or basis.shape[-1] != basis.shape[-2] or 0 in basis.shape:
        raise ValueError(f"basis has shape {tuple(basis.shape)}; expected (d, d), or (H, d, d)")
    if array.has_host_values(basis):
        unit = xp.eye(basis.shape[-1], dtype=basis.dtype, device=array.device(basis))
        if not array.all_within(xp.matmul(xp.matrix_transpose(basis), basis) - unit, 1e-5, xp):
            raise ValueError("basis is not orthogonal; expected one of from_generators")
    return basis
