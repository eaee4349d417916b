"""Designs: sets of points of the unit cube, mapped to frequencies by a kernel's transport.

Each block of a randomised design alone has exactly the kernel's law: each of its points is uniform in the cube. All
randomness is Philox's, by key and stream, so a seed gives the same set with every version of SciPy, and one call makes
any number of sets.

Below, points are ``(sets, n, draws)`` and frequencies ``(sets, n, k)``, also for k = 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from rfrope._core import parallel, quantiles, random
from rfrope.designs.errors import inner
from rfrope.kernels import Kernel

_MANY = 2**15  # uniforms from which importing Numba pays
_BITS = 52  # random bits of a uniform
_AT_ONCE = 2**16  # numbers of candidates
_TABULATED = 2**16  # points from which the law of abs(omega) is tabulated where it has no quantile function
_ROWS = 2**15  # rows that go through a transport at once, by one thread: in smaller parts threads wait for each other
_DRAWN, _MOST_DRAWN = 32, 2**20  # candidates for each stratum of abs(omega) where it has none; in all, if n allows
_SETS = 8  # of balanced points, from which one is drawn
_MOST_POINTS = 2**10  # in all sets together, if one holds no more
_ROUNDS = 3  # over all pairs of sets; what more of them gain is less than 1 %
_NO_GAIN = 1e-9  # part of a point's own square


def uniforms(key: random.Key, start: int, n: int, columns: int, stream: int, streams: int) -> np.ndarray:
    """Return Philox's uniforms ``(streams, n, columns)``, from the compiled loop if there are many."""
    make = random.uniforms if streams * n * columns >= _MANY else random.uniforms.generic
    return make(key, start, n, columns, stream=stream, streams=streams)


# -- randomised --------------------------------------------------------------------------------------------------------


def iid(kernel: Kernel, key: random.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """Return independent points."""
    return uniforms(key, 0, n, kernel.n_columns, stream, streams)


def stratified(kernel: Kernel, key: random.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """Return one point in each of n strata of every column, the strata permuted at random: a Latin hypercube.

    If a column carries a sign, its magnitude is stratified and its sign independent. In one axis the strata are those
    of abs(omega), even if a frequency takes several columns.
    """
    if needs_table(kernel):
        return strata_of_magnitude(kernel, key, n, stream, streams)
    u = uniforms(key, 0, n, 3 * kernel.n_columns, stream, streams)
    jitter, order, sign = np.split(u, 3, axis=-1)
    cell = (np.argsort(order, axis=1) + jitter) / max(n, 1)
    magnitude = 0.5 + np.where(sign < 0.5, -0.5, 0.5) * cell
    return _inside(np.where(kernel.signed_columns, magnitude, cell))


def shifted(kernel: Kernel, key: random.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """Return the points of `quantile` under one random shift, in random order and with independent signs.

    In one axis magnitudes are at probabilities (i + U)/n, with one uniform U for all (systematic sampling); in more
    axes a lattice is shifted in every column, modulo 1 (Cranley-Patterson rotation).
    """
    if needs_table(kernel):
        return strata_of_magnitude(kernel, key, n, stream, streams, moved=True, shared=True)
    columns = kernel.n_columns
    u = uniforms(key, 0, max(n, 1), columns + 2, stream, streams)
    points = (lattice(kernel, n) + u[:, :1, :columns]) % 1.0
    points = np.take_along_axis(points, np.argsort(u[:, :n, columns, None], axis=1), axis=1)
    return half_covered(kernel, points, u[:, :n, columns + 1] < 0.5)


def needs_table(kernel: Kernel) -> bool:
    """Return whether abs(omega), in one axis, depends on several columns, so that its strata are runs of candidates."""
    return kernel.ndim == 1 and kernel.n_columns > 1


def strata_of_magnitude(
    kernel: Kernel, key: random.Key, n: int, stream: int, streams: int, *, moved: bool = False, shared: bool = False
) -> np.ndarray:
    """Return one point in each of n strata of abs(omega) in one axis, for a transport of several columns.

    Candidates, equally many per stratum, are sorted by abs(omega). A stratum is a run of them and returns the one at a
    random place, the same in all strata if `shared`. Candidates are independent, each uniform in its own box, or if
    `moved` a lattice under one random shift. Each block gets a random stratum, so every candidate is equally likely and
    its law is exactly the kernel's, for any number of candidates.
    """
    each, columns = max(1, min(_DRAWN, _MOST_DRAWN // max(n, 1))), kernel.n_columns
    count, found = n * each, np.empty((streams, n, columns))
    start = lattice(kernel, count) if moved else np.empty((0, columns))
    length = max(1, _AT_ONCE // max(count * columns, 1))  # streams that fit in the processor's caches
    for part in [slice(at, at + length) for at in range(0, streams, length)]:
        first, some = stream + part.start, len(found[part])
        if moved:
            u = uniforms(key, 0, max(n, 1), columns + 3, first, some)
            points = _inside((start + u[:, :1, :columns]) % 1.0)
            where, order, sign = np.moveaxis(u[:, :n, columns:], -1, 0)
        else:
            u = uniforms(key, 0, count + 3 * n, columns, first, some)
            points = _squeeze_into_boxes(kernel, u[:, :count])
            where, order, sign = np.split(u[:, count:, 0], 3, axis=1)
        by_size = np.argsort(np.abs(transport(kernel, points)[..., 0]), axis=-1, kind="stable")
        run = np.floor(each * (where[:, :1] if shared else where)).astype(np.int64)
        chosen = np.take_along_axis(by_size, np.argsort(order, axis=1) * each + run, axis=1)
        taken = np.take_along_axis(points, chosen[..., None], axis=1)
        found[part] = np.where((sign < 0.5)[..., None] & kernel.signed_columns, 1.0 - taken, taken)
    return found


def _squeeze_into_boxes(kernel: Kernel, u: np.ndarray) -> np.ndarray:
    """Squeeze each of n points into one of n equal boxes of the cube, or of the half that makes all cosines."""
    left, parts = u.shape[1], []
    for columns in range(kernel.n_columns, 1, -1):
        most = int(left ** (1.0 / columns) + 1e-9)
        parts.append(next((m for m in range(most, 1, -1) if left % m == 0), 1))
        left //= parts[-1]
    parts.append(max(left, 1))
    points = (np.stack(np.unravel_index(np.arange(u.shape[1]), parts), axis=-1) + u) / parts
    first = _first_signed(kernel)
    if first is not None:
        points[..., first] = 0.5 + 0.5 * points[..., first]
    return _inside(points)


def sobol(kernel: Kernel, key: random.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """Return the first n of the next power of two Sobol' points (SciPy's), scrambled.

    Matousek's linear scrambling with a digital shift, as in `scipy.stats.qmc.Sobol`, but with Philox's bits.
    """
    from scipy.stats import qmc

    columns, digits = kernel.n_columns, max(n - 1, 0).bit_length()
    u = uniforms(key, 0, max(n, digits + 1), columns + 1, stream, streams)
    points = np.zeros((n, columns), dtype=np.uint64)
    if columns:
        exact = qmc.Sobol(columns, scramble=False, bits=32).random_base2(digits)[:n] * 2.0**digits
        points = exact.astype(np.uint64)
    words = np.floor(u[:, : digits + 1, :columns] * 2.0**_BITS).astype(np.uint64)
    scrambled = np.repeat(words[:, None, digits], n, axis=1)
    for digit in range(digits):
        top = np.uint64(1 << (_BITS - 1 - digit))
        column = words[:, None, digit] & (top - np.uint64(1)) | top
        scrambled ^= column * (points >> np.uint64(digits - 1 - digit) & np.uint64(1))
    cube = (scrambled.astype(np.float64) + 0.5) * 2.0**-_BITS
    return half_covered(kernel, cube, u[:, :n, columns] < 0.5)


def halton(kernel: Kernel, key: random.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """Return the first n Halton points (SciPy's), with permuted digits and a random place in the cell they name.

    Every digit of every column has its own permutation (Owen, "A randomized Halton algorithm in R", 2017).
    """
    from scipy.stats import qmc

    columns = kernel.n_columns
    cube = np.empty((streams, n, columns))
    sequence = qmc.Halton(max(columns, 1), scramble=False)
    points = sequence.random(n) if n else np.empty((0, columns))
    digits = [next(m for m in range(33) if base**m >= n) for base in sequence.base]
    keys = max(base * m for base, m in zip(sequence.base, digits, strict=True))
    u = uniforms(key, 0, max(n, keys), 2 * columns + 1, stream, streams)
    for j, (base, m) in enumerate(zip(sequence.base[:columns], digits[:columns], strict=True)):
        index = np.rint(points[:, j] * float(base) ** m).astype(np.int64)  # the digits, first one highest
        cell = np.zeros((streams, n))
        for digit in range(m):
            permutation = np.argsort(u[:, digit * base : (digit + 1) * base, columns + 1 + j], axis=1)
            cell = cell * base + permutation[:, index // base ** (m - 1 - digit) % base]
        cube[..., j] = (cell + u[:, :n, j]) / float(base) ** m
    return half_covered(kernel, cube, u[:, :n, columns] < 0.5)


POINTS = {"iid": iid, "stratified": stratified, "shifted": shifted, "sobol": sobol, "halton": halton}


# -- points become frequencies -----------------------------------------------------------------------------------------


def transport(kernel: Kernel, points: np.ndarray, n_threads: int = 1) -> np.ndarray:
    """Return frequencies ``(..., k)`` of points ``(..., draws)``, computed in parts by several threads."""
    count = math.prod(points.shape[:-1])
    if count <= _ROWS or not kernel.n_columns:
        return np.reshape(kernel.transport(points), (*points.shape[:-1], kernel.ndim))
    rows = points.reshape(count, -1)
    found = _transport_parts(kernel, 1, count, lambda _, part: rows[part], n_threads)
    return found.reshape(*points.shape[:-1], kernel.ndim)


def independent(kernel: Kernel, key: random.Key, n: int, stream: int, streams: int, n_threads: int) -> np.ndarray:
    """Return the frequencies of the points of `iid`; if there are many, only some points are in memory at a time."""
    if n <= _ROWS or not kernel.n_columns:
        return transport(kernel, iid(kernel, key, n, stream, streams), n_threads)

    def points(number: int, part: slice) -> np.ndarray:
        return uniforms(key, part.start, part.stop - part.start, kernel.n_columns, stream + number, 1)[0]

    return _transport_parts(kernel, streams, n, points, n_threads)


def _transport_parts(
    kernel: Kernel, sets: int, n: int, points: Callable[[int, slice], np.ndarray], n_threads: int
) -> np.ndarray:
    """Frequencies ``(sets, n, k)`` of the points that a function gives for a part of one of the sets."""
    found = np.empty((sets, n, kernel.ndim))

    def work(item: tuple[int, slice]) -> None:
        parallel.raise_if_abandoned()
        number, part = item
        found[number, part] = np.reshape(kernel.transport(points(number, part)), (-1, kernel.ndim))

    items = [(one, slice(at, min(at + _ROWS, n))) for one in range(sets) for at in range(0, n, _ROWS)]
    parallel.run_all(work, items, n_threads)
    return found


def antithetic(kernel: Kernel, key: random.Key, n: int, stream: int, streams: int, n_threads: int) -> np.ndarray:
    """Return pairs (omega, -omega) of the first n/2 independent draws; of an odd number the last one is alone."""
    drawn = transport(kernel, iid(kernel, key, (n + 1) // 2, stream, streams), n_threads)
    pairs = np.repeat(drawn, 2, axis=1)[:, :n]
    return pairs * np.where(np.arange(n) % 2, -1.0, 1.0)[:, None]


def orthogonal(kernel: Kernel, key: random.Key, n: int, stream: int, streams: int, n_threads: int) -> np.ndarray:
    """Return groups of k orthogonal directions, each of them uniform, times independent radii of the kernel's law.

    Directions are the rows of Q from the QR decomposition of a normal matrix, its columns times the signs of R's
    diagonal: without these signs Q is not uniform.
    """
    k, columns, isotropy = kernel.ndim, kernel.n_columns, checked_isotropy(kernel)
    groups = -(-n // k)
    u = uniforms(key, 0, groups * k, columns + k, stream, streams)
    parts = (lambda: transport(kernel, u[:, :n, :columns]), lambda: quantiles.normal_quantile(u[..., columns:]))
    drawn, normal = parallel.ordered_map(lambda part: part(), parts, n_threads if u.size > _MANY else 1)
    radius = np.linalg.norm(_mapped(drawn, isotropy, -1), axis=-1, keepdims=True)
    q, r = np.linalg.qr(normal.reshape(streams, groups, k, k))
    q *= np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0.0, -1.0, 1.0)[..., None, :]
    return _mapped(radius * q.reshape(streams, groups * k, k)[:, :n], isotropy, 1)


def _mapped(vectors: np.ndarray, matrix: np.ndarray, power: int) -> np.ndarray:
    """Return vectors under a linear map, which is diagonal for most kernels, or its inverse (power -1)."""
    scales = np.diagonal(matrix)
    if np.array_equal(matrix, np.diag(scales)):
        return np.asarray(vectors * scales**power)
    return vectors @ np.linalg.matrix_power(matrix, power).T


def checked_isotropy(kernel: Kernel) -> np.ndarray:
    """Return the linear map under which a law is spherically symmetric; refuse other laws for "orthogonal"."""
    if kernel.ndim == 1:
        raise ValueError(f"design is 'orthogonal' but {kernel!r} has one axis; expected 2 or more, or another design")
    isotropy = kernel.isotropy()
    if isotropy is None:
        raise ValueError(
            f"design is 'orthogonal' but {kernel!r} is not known to be spherically symmetric up to a linear map; "
            "expected an isotropic kernel, or another design, such as 'sobol'"
        )
    return isotropy


FREQUENCIES = {"iid": independent, "antithetic": antithetic, "orthogonal": orthogonal}


# -- fitted to a range of lags -----------------------------------------------------------------------------------------


def balanced(
    kernel: Kernel, key: random.Key, n: int, reach: tuple[int, ...], stream: int = 0, streams: int = 1
) -> np.ndarray:
    """Return frequencies of some streams, ``(streams, n, k)``: one of several disjoint sets of many points of the law.

    Each of the points of "shifted" has the kernel's law and belongs to one set, and each block gets any of them with
    equal probability, whatever the others are. The errors of the sets sum to that of all points together, which is
    small, so only their differences remain to be chosen: a descent exchanges points between two sets as long as that
    lowers the squared errors of both, summed in closed form over all whole lags of the range. Above 512 blocks the
    points are those of "shifted".
    """
    each = max(1, min(_SETS, _MOST_POINTS // max(n, 1)))
    found = np.empty((streams, n, kernel.ndim))
    for head in range(streams):
        points = shifted(kernel, key, n * each, stream + head, 1)
        u = uniforms(key, 0, max(n, 1), kernel.n_columns + 5, stream + head, 1)[0]  # the last two are not `shifted`'s
        omega = transport(kernel, points)[0]
        members = _partition(omega, each, reach)[int(each * u[0, -1])]
        found[head] = omega[members[np.argsort(u[:n, -2])]]
    return found


def _partition(omega: np.ndarray, each: int, reach: tuple[int, ...]) -> np.ndarray:
    """Indices ``(each, n)`` of sets that together hold every one of the frequencies ``(each n, k)`` once."""
    by_size = np.argsort(np.abs(omega[:, 0]), kind="stable")
    found = by_size.reshape(-1, each).T.copy()
    if each == 1 or not len(omega):
        return found
    products = inner(reach, omega[:, None], omega)
    sums = np.stack([np.sum(products[members], axis=0) for members in found])  # one for each set, with every frequency
    for _ in range(_ROUNDS):
        if not sum(_exchange_points(found, sums, products, a, b) for a, b in itertools.combinations(range(each), 2)):
            break
    return found


def _exchange_points(found: np.ndarray, sums: np.ndarray, products: np.ndarray, a: int, b: int) -> int:
    """Exchange points between two sets, the pair that gains most first, and return how many pairs."""
    squares = np.diagonal(products)
    for count in range(found.shape[1]):
        p, q, apart = found[a], found[b], sums[a] - sums[b]
        grown = (squares[p] - apart[p])[:, None] + (squares[q] + apart[q]) - 2.0 * products[p[:, None], q]
        i, j = divmod(int(np.argmin(grown)), q.size)
        if grown[i, j] > -_NO_GAIN * squares[p[i]]:
            return count
        change = products[q[j]] - products[p[i]]
        sums[a] += change
        sums[b] -= change
        found[a, i], found[b, j] = q[j], p[i]
    return found.shape[1]


# -- deterministic -----------------------------------------------------------------------------------------------------


def quantile(kernel: Kernel, n: int) -> np.ndarray:
    """Return magnitudes at probabilities (i + 1/2)/n in one axis, signs alternating; a lattice of n points in more.

    If one uniform makes a frequency this is the quantile function of abs(omega); otherwise (products, mixtures) its
    values come from a table of 2**16 or more points of the law.
    """
    points = quantile_points(kernel, n)
    if points is not None:
        return transport(kernel, points)
    if not n:
        return np.empty((0, 1))
    sign, probability = np.where(np.arange(n) % 2, -1.0, 1.0), (np.arange(n) + 0.5) / n
    fine = max(_TABULATED, 16 * n)
    table = transport(kernel, half_covered(kernel, lattice(kernel, fine), np.zeros(fine, dtype=bool)))
    return (np.quantile(np.abs(table[:, 0]), probability, method="hazen") * sign)[:, None]


def quantile_points(kernel: Kernel, n: int) -> np.ndarray | None:
    """Return the points of the cube behind `quantile`, or None where its values come from a table."""
    is_minus = np.arange(n) % 2 == 1
    if kernel.ndim > 1:
        return half_covered(kernel, lattice(kernel, n), is_minus)
    if kernel.signed_columns != (True,):
        return None
    half = 0.5 * (np.arange(n) + 0.5) / max(n, 1)
    return np.where(is_minus, 0.5 - half, 0.5 + half)[:, None]


def lattice(kernel: Kernel, n: int) -> np.ndarray:
    """Return points of the cube ``(n, draws)``: equally spaced in one column, multiples of irrationals in the others.

    Column j after the first has steps ``g**-j`` with ``g**draws = g + 1``: the golden section for two columns, its
    generalisation (Roberts's R sequence) for more. The equally spaced column is the first that carries a sign.
    """
    columns = kernel.n_columns
    g = 1.5
    for _ in range(64):
        g = (1.0 + g) ** (1.0 / max(columns, 2))
    points = np.arange(n)[:, None] * g ** -np.arange(columns)[None, :].astype(np.float64) % 1.0
    points = (points + 0.5) % 1.0
    if columns:
        points[:, 0] = (np.arange(n) + 0.5) / max(n, 1)
        first = _first_signed(kernel) or 0
        points[:, [0, first]] = points[:, [first, 0]]
    return _inside(points)


# -- the cube ----------------------------------------------------------------------------------------------------------


def _first_signed(kernel: Kernel) -> int | None:
    return next((j for j, signed in enumerate(kernel.signed_columns) if signed), None)


def half_covered(kernel: Kernel, cube: np.ndarray, minus: np.ndarray) -> np.ndarray:
    """Squeeze points into the half of the cube that makes all cosines, and mirror some of them.

    omega and -omega have the same cosine, so points spread over half of a column that carries a sign are twice as dense
    where it matters. With a fair sign for each, a uniform point stays uniform.
    """
    first = _first_signed(kernel)
    if first is None:
        return _inside(cube)
    cube = cube.copy()
    cube[..., first] = 0.5 + 0.5 * cube[..., first]
    mirrored = np.where(kernel.signed_columns, 1.0 - cube, cube)
    return _inside(np.where(minus[..., None], mirrored, cube))


def _inside(cube: np.ndarray) -> np.ndarray:
    """Move points that rounding put on the faces of the cube inside."""
    return np.clip(cube, 2.0**-54, 1.0 - 2.0**-53)
