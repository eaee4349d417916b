"""Designs: sets of points of the unit cube, and what they become through a kernel's transport.

A randomised design gives every block, taken alone, exactly the law of the kernel: each of its points is uniform in the
cube, whatever the other points do. All randomness is Philox's, by key and stream, so that a seed means the same set in
every version of SciPy, and any number of sets is made in one call.
"""

from __future__ import annotations

import math

import numpy as np

from rfrope import _accel, _philox, _special, _sums
from rfrope.kernels import Kernel

_MANY = 2**15  # uniforms from which on it pays to import Numba
_BITS = 52  # of a uniform
_TABULATED = 2**16  # points from which the law of abs(omega) is tabulated where it has no quantile function
_FITTED, _JUDGED = 2**11, 2**18  # lags that a fit sees, and that its error is taken over, unless there are fewer
_ENOUGH, _STEPS = 1e-5, 500  # gain that ends least squares, and steps of it at most
_NEGLIGIBLE = 1e-9  # error that ends it too
_FIRST_STEP, _LEAST_GAIN, _PROGRAMMES = 0.1, 1e-3, 40  # phase at the largest lag, gain that ends minimax, steps at most
_MANY_PHASES = 2**22  # from which on it pays to import Numba and finufft


def uniforms(key: _philox.Key, start: int, n: int, columns: int, stream: int, streams: int) -> np.ndarray:
    """Philox's uniforms ``(streams, n, columns)``, by the compiled loop where they are many."""
    make = _accel.choose(_philox.uniforms) if streams * n * columns >= _MANY else _philox.uniforms
    return make(key, start, n, columns, stream=stream, streams=streams)


# -- randomised --------------------------------------------------------------------------------------------------------


def iid(kernel: Kernel, key: _philox.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """Independent draws."""
    return kernel.transport(uniforms(key, 0, n, kernel.draws, stream, streams))


def antithetic(kernel: Kernel, key: _philox.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """Pairs (omega, -omega) of the first n/2 independent draws; of an odd number the last one is alone."""
    pairs = np.repeat(iid(kernel, key, (n + 1) // 2, stream, streams), 2, axis=1)[:, :n]
    sign = np.where(np.arange(n) % 2, -1.0, 1.0)
    return pairs * (sign if kernel.ndim == 1 else sign[:, None])


def stratified(kernel: Kernel, key: _philox.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """One point in each of n strata of every column, the strata permuted at random: a Latin hypercube.

    Strata of a column that carries a sign are those of its magnitude, and its sign is drawn independently.
    """
    u = uniforms(key, 0, n, 3 * kernel.draws, stream, streams)
    jitter, order, sign = np.split(u, 3, axis=-1)
    cell = (_permutations(order) + jitter) / max(n, 1)
    return kernel.transport(_inside(np.where(kernel.signed_columns, _with_sign(cell, sign < 0.5), cell)))


def sobol(kernel: Kernel, key: _philox.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """First n of the next power of two Sobol' points (SciPy's), scrambled: random lower triangular matrices and shifts.

    Matousek's linear scrambling with a digital shift, as `scipy.stats.qmc.Sobol` has it, but with Philox's bits.
    """
    from scipy.stats import qmc

    columns, digits = kernel.draws, max(n - 1, 0).bit_length()
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
    return kernel.transport(_half_covered(kernel, cube, u[:, :n, columns] < 0.5))


def halton(kernel: Kernel, key: _philox.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """First n Halton points (SciPy's), scrambled: digits permuted at random, and a random place in the cell they name.

    Every digit of every column has a permutation of its own (Owen, "A randomized Halton algorithm in R", 2017).
    """
    from scipy.stats import qmc

    columns = kernel.draws
    cube = np.empty((streams, n, columns))
    sequence = qmc.Halton(max(columns, 1), scramble=False)
    points = sequence.random(n) if n else np.empty((0, columns))
    digits = [next(m for m in range(33) if base**m >= n) for base in sequence.base]
    keys = max(base * m for base, m in zip(sequence.base, digits, strict=True))
    u = uniforms(key, 0, max(n, keys), 2 * columns + 1, stream, streams)
    for j, (base, m) in enumerate(zip(sequence.base[:columns], digits[:columns], strict=True)):
        index = np.rint(points[:, j] * float(base) ** m).astype(np.int64)  # the digits, first one highest
        cell = np.zeros((streams, n))
        for place in range(m):
            permutation = _permutations(u[:, place * base : (place + 1) * base, columns + 1 + j])
            cell = cell * base + permutation[:, index // base ** (m - 1 - place) % base]
        cube[..., j] = (cell + u[:, :n, j]) / float(base) ** m
    return kernel.transport(_half_covered(kernel, cube, u[:, :n, columns] < 0.5))


def orthogonal(kernel: Kernel, key: _philox.Key, n: int, stream: int, streams: int) -> np.ndarray:
    """Groups of k orthogonal directions, each of them uniform, times independent radii of the kernel's law.

    Directions are the rows of Q from the QR decomposition of a normal matrix, its columns times the signs of R's
    diagonal: without these signs Q is not uniform.
    """
    k, isotropy = kernel.ndim, checked_isotropy(kernel)
    groups = -(-n // k)
    u = uniforms(key, 0, groups * k, kernel.draws + k, stream, streams)
    drawn = np.reshape(kernel.transport(u[:, :n, : kernel.draws]), (streams, n, k))
    radius = np.linalg.norm(np.linalg.solve(isotropy, drawn[..., None])[..., 0], axis=-1)
    q, r = np.linalg.qr(_special.normal_quantile(u[..., kernel.draws :]).reshape(streams, groups, k, k))
    q = q * _signs(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    directions = q.reshape(streams, groups * k, k)[:, :n]
    return (radius[..., None] * directions) @ isotropy.T


def checked_isotropy(kernel: Kernel) -> np.ndarray:
    """Return the linear map under which a law is spherically symmetric, or say why "orthogonal" is not for it."""
    if kernel.ndim == 1:
        raise ValueError(f"design is 'orthogonal' but {kernel!r} has one axis; expected 2 or more, or another design")
    isotropy = kernel._isotropy()
    if isotropy is None:
        raise ValueError(
            f"design is 'orthogonal' but {kernel!r} is not known to be spherically symmetric up to a linear map; "
            "expected an isotropic kernel, or another design, such as 'sobol'"
        )
    return isotropy


# -- deterministic -----------------------------------------------------------------------------------------------------


def quantile(kernel: Kernel, n: int) -> np.ndarray:
    """Magnitudes at probabilities (i + 1/2)/n in one axis, signs alternating; a lattice of n points in more.

    Where one uniform makes a frequency this is the quantile function of abs(omega); elsewhere (products, mixtures) its
    values come from a table of 2**16 or more points of the law.
    """
    sign = np.where(np.arange(n) % 2, -1.0, 1.0)
    if kernel.ndim > 1:
        return kernel.transport(_half_covered(kernel, lattice(kernel, n), sign < 0.0))
    probability = (np.arange(n) + 0.5) / max(n, 1)
    if kernel.signed_columns == (True,):
        return kernel.transport(0.5 + 0.5 * probability) * sign
    if not n:
        return probability
    fine = max(_TABULATED, 16 * n)
    table = kernel.transport(_half_covered(kernel, lattice(kernel, fine), np.zeros(fine, dtype=bool)))
    return np.quantile(np.abs(table), probability, method="hazen") * sign


def lattice(kernel: Kernel, n: int) -> np.ndarray:
    """Points of the cube ``(n, draws)``: equally spaced in one column, multiples of irrational numbers in the others.

    Column j after the first has the steps ``g**-j`` with ``g**draws = g + 1``: the golden section for two columns, and
    its generalisation (Roberts's R sequence) for more. The equally spaced column is the first that carries a sign.
    """
    columns = kernel.draws
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


def _permutations(order: np.ndarray) -> np.ndarray:
    """Random permutations along axis 1, from independent uniforms."""
    return np.argsort(order, axis=1)


def _signs(values: np.ndarray) -> np.ndarray:
    return np.where(values < 0.0, -1.0, 1.0)


def _with_sign(magnitude: np.ndarray, minus: np.ndarray) -> np.ndarray:
    """Points whose distance from 1/2 is half the magnitude, on the side that the sign says."""
    return 0.5 + np.where(minus, -0.5, 0.5) * magnitude


def _first_signed(kernel: Kernel) -> int | None:
    return next((j for j, signed in enumerate(kernel.signed_columns) if signed), None)


def _half_covered(kernel: Kernel, cube: np.ndarray, minus: np.ndarray) -> np.ndarray:
    """Squeeze points into the half of the cube that makes all cosines, and mirror some of them.

    The cosine of -omega is that of omega, so points spread over half of a column that carries a sign are twice as dense
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
    """Move what rounding put on the faces of the cube inside."""
    return np.clip(cube, 2.0**-54, 1.0 - 2.0**-53)


# -- fitted to a range of lags -----------------------------------------------------------------------------------------


def optimised(kernel: Kernel, n: int, max_lag: tuple[int, ...], norm: str) -> np.ndarray:
    """Frequencies that start as `quantile` and minimise the error of their mean kernel over whole lags.

    Norm "rms" is least squares; norm "sup" goes on from there.
    """
    lags, weights = lags_within(max_lag, _FITTED)
    target, start = _phi_at(kernel, lags), quantile(kernel, n).reshape(n, kernel.ndim)
    omega = _least_squares(start, lags, target, np.sqrt(weights)) if n else start
    if n and norm == "sup":
        nearest = min((omega, start), key=lambda each: float(np.max(np.abs(_errors(each, lags, target)))))
        omega = _minimax(nearest, lags, target)
    return omega[:, 0] if kernel.ndim == 1 else omega


def _least_squares(omega: np.ndarray, lags: np.ndarray, target: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Levenberg's and Marquardt's method on the normal equations.

    Not SciPy's: the last bits of its MINPACK differ from call to call, and a fit with more unknowns than its errors
    determine grows them to differences that everybody sees. It is also several times slower here.
    """
    errors, damping, idle = scale * _errors(omega, lags, target), 1e-3, 0
    for _ in range(_STEPS):
        slopes = scale[:, None] * _slopes(omega, lags)
        normal = slopes.T @ slopes
        sizes = np.diag(normal)
        normal += damping * np.diag(np.maximum(sizes, 1e-12 * np.max(sizes) + np.finfo(np.float64).tiny))
        moved = omega - np.linalg.solve(normal, slopes.T @ errors).reshape(omega.shape)
        new = scale * _errors(moved, lags, target)
        before, after = float(np.sum(errors * errors)), float(np.sum(new * new))
        if after < before:
            idle = idle + 1 if before - after < _ENOUGH * before else 0
            omega, errors, damping = moved, new, max(damping / 3.0, 1e-12)
        else:
            damping *= 4.0
        if idle == 2 or damping > 1e8 or after < len(lags) * _NEGLIGIBLE**2:
            break
    return omega


def _minimax(omega: np.ndarray, lags: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Lower the largest error by linear programmes (HiGHS), each within a step that the one before allows.

    The method of Madsen ("An algorithm for minimax solution of overdetermined systems of non-linear equations", 1975).
    A programme holds the errors above half of the largest; whether a step is taken is decided by all of them.
    """
    from scipy.optimize import linprog

    errors, step = _errors(omega, lags, target), _FIRST_STEP / max(1.0, float(np.max(np.abs(lags))))
    largest = float(np.max(np.abs(errors)))
    for _ in range(_PROGRAMMES):
        held = np.abs(errors) >= 0.5 * largest
        slopes, bound = _slopes(omega, lags[held]), -np.ones((np.count_nonzero(held), 1))
        found = linprog(
            np.append(np.zeros(omega.size), 1.0),
            np.block([[slopes, bound], [-slopes, bound]]),
            np.concatenate([-errors[held], errors[held]]),
            bounds=[(-step, step)] * omega.size + [(0.0, None)],
        )
        if found.x is None or (promised := largest - found.x[-1]) <= _LEAST_GAIN * largest:
            break
        moved = omega + found.x[:-1].reshape(omega.shape)
        gain = largest - float(np.max(np.abs(_errors(moved, lags, target))))
        if gain > 0.1 * promised:
            omega, largest, errors = moved, largest - gain, _errors(moved, lags, target)
        step *= 2.0 if gain > 0.7 * promised else 1.0 if gain > 0.1 * promised else 0.25
    return omega


def _slopes(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Derivatives of the errors ``(lags, n k)``."""
    return (np.sin(_phases(omega, lags))[..., None] * lags[:, None] / -len(omega)).reshape(len(lags), -1)


def _errors(omega: np.ndarray, lags: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.cos(_phases(omega, lags)).mean(axis=-1) - target


def _phases(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Phases ``(lags, n)``, without BLAS: its last bits depend on where arrays lie in memory, and fits on last bits."""
    return np.sum(lags[:, None, :] * omega, axis=-1)


def _phi_at(kernel: Kernel, lags: np.ndarray) -> np.ndarray:
    return np.asarray(kernel.phi(lags[:, 0] if kernel.ndim == 1 else lags))


def reached(kernel: Kernel, omega: np.ndarray, max_lag: tuple[int, ...]) -> tuple[float, float]:
    """Root mean square and largest error of the mean kernel over the whole lags of a range."""
    lags, weights = lags_within(max_lag, _JUDGED)
    mean_cos = _accel.choose(_sums.mean_cos) if omega.size * len(lags) >= _MANY_PHASES else _sums.mean_cos
    error = np.abs(mean_cos(omega, lags[:, 0] if kernel.ndim == 1 else lags, np) - _phi_at(kernel, lags))
    return math.sqrt(float(np.average(error**2, weights=weights))), float(np.max(error))


def lags_within(max_lag: tuple[int, ...], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole lags up to max_lag in size on every axis, one of each pair +-lag, and how many each of them stands for.

    All of them if there are no more than `most`; else about half of these are the smallest ones, and the others are
    spread over the rest by multiples of the golden section.
    """
    total = _half(max_lag)
    if total <= most:
        return _from_half(max_lag, np.arange(total)), np.ones(total)
    side = next(s for s in range(most, 0, -1) if _half((s,) * len(max_lag)) <= most // 2)
    inner = tuple(min(m, side) for m in max_lag)
    near = _from_half(inner, np.arange(_half(inner)))
    spread = (np.arange(most - len(near)) + 0.5) * (0.5 * (math.sqrt(5.0) - 1.0)) % 1.0
    far = _from_half(max_lag, np.unique((spread * total).astype(np.int64)))
    far = far[np.any(np.abs(far) > inner, axis=-1)]
    weights = np.concatenate([np.ones(len(near)), np.full(len(far), (total - len(near)) / len(far))])
    return np.concatenate([near, far]), weights


def _half(max_lag: tuple[int, ...]) -> int:
    """How many whole lags a box around 0 holds, one of each pair +-lag: 0 and half of the others."""
    return (math.prod(2 * m + 1 for m in max_lag) + 1) // 2


def _from_half(max_lag: tuple[int, ...], index: np.ndarray) -> np.ndarray:
    """Lags number index of that half; number 0 is lag 0."""
    place = np.unravel_index(_half(max_lag) - 1 + index, [2 * m + 1 for m in max_lag])
    return np.stack(place, axis=-1).astype(np.float64) - max_lag
