"""Comparison of the closed forms of kernels and `moments` with the draws of `montecarlo`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from rfrope import data
from rfrope._core import angles, array, random
from rfrope._core.arguments import probability, whole
from rfrope._core.array import Array
from rfrope._core.blocks import check_pairing
from rfrope._core.quantiles import normal_quantile
from rfrope._core.results import Result
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel
from rfrope.moments import expected_score, relative_error, score_variance
from rfrope.montecarlo import estimate_kernel, estimate_scores
from rfrope.rotation.pairings import block_coefficients, convert_pairing

__all__ = ["Row", "Validation", "validate"]

QUANTITIES = ("Φ", "Φ₂", "E sin", "E S", "Var S")
_LAGS = (0.25, 0.5, 1.0, 2.0, 4.0)  # default lags, in units of the lag where Phi falls to one half
_LARGEST_FEATURE = 1e30  # fourth powers of scores stay finite
_ROUNDING = 1e-13  # differences below this part of the largest possible value are rounding, not evidence
_UNKNOWN = 2.0**-50  # relative error of a variance from the rounding of Phi


@dataclass(frozen=True)
class Row(Result):
    """One comparison of a closed form with an estimate.

    Attributes
    ----------
    lag : tuple of float
        One number for each position axis, KEY minus QUERY.
    quantity : str
        One of `QUANTITIES`.
    pair : int or None
        Index of the pair of q and k, for moments of the score.
    closed_form, estimate, stderr, z : float
        ``z = (estimate - closed_form) / stderr``. The standard error is exact for independent draws: it comes from Phi
        at one to four times the lag, not from the draws, a few of which may hold most of the variance. Where a single
        draw could exceed `Validation.bound` standard errors, Bernstein's inequality widens it.

    See Also
    --------
    validation.Validation

    Examples
    --------
    >>> import rfrope
    >>> row = rfrope.validate("gaussian(scale=8)", n_samples=2000, n_trials=200, rng=0).rows[0]
    >>> row.quantity, row.lag, round(row.closed_form, 4)
    ('Φ', (-2.35,), 0.9578)
    """

    lag: tuple[float, ...]
    quantity: str
    pair: int | None
    closed_form: float
    estimate: float
    stderr: float
    z: float

    @property
    def size(self) -> float:
        """Absolute value of z; infinite for NaN."""
        return abs(self.z) if self.z == self.z else math.inf

    @property
    def place(self) -> str:
        """The lag as text."""
        text = ", ".join(f"{v:.4g}" for v in self.lag)
        return text if len(self.lag) == 1 else f"({text})"


@dataclass(frozen=True)
class Validation(Result):
    """All comparisons for one kernel.

    Attributes
    ----------
    kernel : str
    lags : tuple of tuple of float
    rows : tuple of Row
    alpha : float
        Probability that a correct implementation fails in some row, as far as sums of many bounded terms are normal:
        below about 1000 trials sample variances are not, and it fails more often.
    bound : float
        Bound for every abs(z): Bonferroni's for `alpha` over all rows.
    n_samples, n_trials, n_blocks, n_pairs : int
    spread : tuple of float
        Standard deviation of the score over the magnitude of its mean, for each lag, in closed form; median over pairs.

    See Also
    --------
    validate, validation.Row

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.validate("gaussian(scale=8)", n_samples=2000, n_trials=200, rng=0)
    >>> found.passed, abs(found.worst.z) < found.bound, found.kernel
    (True, True, 'gaussian(scale=8.0)')
    """

    kernel: str
    lags: tuple[tuple[float, ...], ...]
    rows: tuple[Row, ...]
    alpha: float
    bound: float
    n_samples: int
    n_trials: int
    n_blocks: int
    n_pairs: int
    spread: tuple[float, ...]
    _also = ("passed", "worst")

    @property
    def passed(self) -> bool:
        """True if every abs(z) is below the bound."""
        return all(abs(row.z) < self.bound for row in self.rows)

    @property
    def worst(self) -> Row:
        """The row with the largest abs(z)."""
        return max(self.rows, key=lambda row: row.size)

    def __str__(self) -> str:
        worst = self.worst
        return (
            f"{self.kernel}: {'passed' if self.passed else 'FAILED'}, {len(self.rows)} tests; largest |z| "
            f"{abs(worst.z):.2f} ({worst.quantity}, lag {worst.place}), bound {self.bound:.2f}; {self.n_samples} "
            f"samples, {self.n_trials} trials, {self.n_blocks} blocks, {self.n_pairs} pairs"
        )


@array.select_device
def validate(
    kernel: Kernel | str,
    *,
    q: Array | None = None,
    k: Array | None = None,
    lags: Array | None = None,
    n_samples: int = 2**20,
    n_trials: int = 2**14,
    n_blocks: int | None = None,
    rng: Any = None,
    alpha: float = 1e-3,
    pairing: str = "half",
    executor: Any = None,
    progress: Any = None,
) -> Validation:
    """Check a kernel's sampler, and the moments of the score of q and k, against theory.

    Compares ``mean cos u`` with Phi, ``mean cos 2u`` with Phi_2, ``mean sin u`` with 0 (Lemma 1), and over repeated
    draws of all frequencies the score's mean with ``(q . k) Phi`` (Theorem 2) and its variance with Proposition 4.

    Parameters
    ----------
    kernel : Kernel or str
        Kernel to check; a string is read by `rfrope.kernels.parse`.
    q, k : array_like, (d,) or (n, d), optional
        Pairs of query and key before rotation, row by row. Default: eight real pairs of SmolLM2. Arrays on a device are
        copied to the host.
    lags : array_like, in units of position, optional
        Lags ``(m,)``, or ``(m, ndim)`` for a kernel with several axes. Default: five from a quarter to four times the
        lag at which Phi falls to one half.
    n_samples, n_trials : int
        Number of frequencies for Phi, Phi_2 and the sine; number of draws of all frequencies for the score.
    n_blocks : int, optional
        Use only the first blocks of q and k. Default: all.
    rng : None, int, sequence of ints or numpy.random.Generator
        Seed; None draws fresh entropy.
    alpha : float
        Probability that a correct implementation fails; see `Validation`.
    pairing : {"half", "interleaved"}
        Features of q and k that form a block.
    executor, progress
        See `estimate_kernel`.

    Returns
    -------
    Validation

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described above.

    See Also
    --------
    validation.Validation, expected_score

    Examples
    --------
    >>> result = validate("cauchy(scale=24)", n_samples=10_000, n_trials=1000, rng=0)
    >>> print(result)  # doctest: +ELLIPSIS
    cauchy(scale=24.0): passed, 95 tests; largest |z| 2.04 (Φ₂, lag -12), bound 4.41; 10000 samples, ...
    >>> result.passed, len(result.rows)
    (True, 95)
    """
    kernel = read_kernel(kernel)
    n_samples, n_trials = whole("n_samples", n_samples, 2), whole("n_trials", n_trials, 4)
    pairing, (q, k) = check_pairing(pairing), _pairs(q, k)
    if n_blocks is not None:
        width = 2 * whole("n_blocks", n_blocks, 1, q.shape[-1] // 2)
        q, k = (convert_pairing(v, pairing, "interleaved")[:, :width] for v in (q, k))
        pairing = "interleaved"
    if lags is None:
        lags = default_lags(kernel)
    else:
        given = array.to_host(angles.lags(lags, kernel.ndim, law=kernel)[0], "lags").astype(np.float64)
        if not given.size or (given.ndim != 2 and kernel.ndim > 1):
            wanted = "(m,)" if kernel.ndim == 1 else f"(m, {kernel.ndim})"
            raise ValueError(f"lags has shape {kernel.restore_shape(given).shape}; expected {wanted} for {kernel!r}")
        lags = given.reshape(-1, kernel.ndim)
    alpha = probability("alpha", alpha)
    key = random.key_from_rng(rng)

    vectors = kernel.restore_shape(lags)
    work = {"executor": executor, "progress": progress}
    common = {"n_samples": n_samples, "rng": [*key, 0], **work}
    phi, phi2, sine = (estimate_kernel(vectors, kernel, quantity=v, **common) for v in ("phi", "phi2", "sin"))
    # Pairs run along a new first axis, lags along the second.
    scores = estimate_scores(
        q[:, None], k[:, None], vectors, kernel, n_trials=n_trials, rng=[*key, 1], pairing=pairing, **work
    )
    *moments, spread = (
        f(q[:, None], k[:, None], vectors, kernel, pairing=pairing)
        for f in (expected_score, score_variance, relative_error)
    )
    bound = float(-normal_quantile(np.asarray(alpha / (2.0 * (3 + 2 * len(q)) * len(lags)))))
    harmonics = [np.atleast_1d(kernel.phi(m * vectors)) for m in (1.0, 2.0, 3.0, 4.0)]
    at_lag, at_2, _, at_4 = harmonics
    means = (  # of cos u, cos 2u and sin u: their variances, and how far a term may be from the mean
        (0.5 * (1.0 + at_2) - at_lag * at_lag, 1.0 + np.abs(at_lag)),
        (0.5 * (1.0 + at_4) - at_2 * at_2, 1.0 + np.abs(at_2)),
        (0.5 * (1.0 - at_2), 1.0),
    )
    errors = (
        *(_widened(variance, 1.0, reach, n_samples, bound) for variance, reach in means),
        *_errors_of_scores(*block_coefficients(q, k, pairing=pairing), harmonics, n_trials, bound),
    )
    closed = (kernel.phi(vectors), kernel.phi2(vectors), np.zeros(len(lags)), *moments)
    found = (phi.value, phi2.value, sine.value, scores.mean.value, scores.variance.value)
    largest = np.linalg.norm(q, axis=-1) * np.linalg.norm(k, axis=-1)
    return Validation(
        kernel=repr(kernel),
        lags=tuple(tuple(float(v) for v in lag) for lag in lags),
        rows=tuple(_rows(lags, closed, found, errors, largest)),
        alpha=alpha,
        bound=bound,
        n_samples=n_samples,
        n_trials=n_trials,
        n_blocks=q.shape[-1] // 2,
        n_pairs=len(q),
        spread=tuple(median(float(v) for v in column) for column in spread.T),
    )


def default_lags(kernel: Kernel) -> np.ndarray:
    """Return five lags ``(5, ndim)`` around the one where Phi first falls to one half, in a direction off the axes."""
    direction = np.asarray([(-0.5) ** axis for axis in range(kernel.ndim)])

    def phi(length: float) -> float:
        return float(kernel.phi(kernel.restore_shape(length * direction)))

    low, high = 0.0, 1.0
    while phi(high) <= 0.5 and high > 2.0**-400:
        high = 0.5 * high
    while phi(high) > 0.5 and high < 2.0**400:
        low, high = high, 2.0 * high
    if phi(high) > 0.5:
        low = high = 1.0  # it never falls that far
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if phi(middle) > 0.5 else (low, middle)
    lengths = [float(f"{-factor * high:.3g}") for factor in _LAGS]
    return np.asarray(lengths)[:, None] * direction


def _pairs(q: Array | None, k: Array | None) -> tuple[np.ndarray, np.ndarray]:
    if q is None and k is None:
        return example_pairs()
    host = []
    for name, value in (("q", q), ("k", k)):
        if value is None:
            raise ValueError(f"{name} is missing; expected both q and k, or neither for the real pairs of rfrope")
        rows = np.atleast_2d(angles.numbers_on_host(value, name))
        if rows.dtype.kind != "f" or rows.ndim != 2 or not rows.size or rows.shape[-1] % 2:
            raise ValueError(
                f"{name} has shape {rows.shape} and dtype {rows.dtype}; expected real vectors (d,) or (n, d), d even"
            )
        host.append(rows.astype(np.float64))  # first: float16 does not hold the bound
        if not np.all(np.abs(host[-1]) <= _LARGEST_FEATURE):
            raise ValueError(f"{name} holds NaN, infinity or magnitudes above 1e30; expected finite vectors")
    if host[0].shape != host[1].shape:
        raise ValueError(f"q has shape {host[0].shape} but k has {host[1].shape}; expected pairs, row by row")
    return host[0], host[1]


def example_pairs() -> tuple[np.ndarray, np.ndarray]:
    """Return eight real pairs, q and k ``(8, 64)`` float64: four of each SmolLM2 head, at the lag it attends to.

    See Also
    --------
    data.smollm2_heads, validate

    Examples
    --------
    >>> import rfrope
    >>> q, k = rfrope.validation.example_pairs()
    >>> q.shape, k.dtype.name
    ((8, 64), 'float64')
    """
    heads = data.smollm2_heads()
    rows: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for head, lag, queries in (("previous", -1, (20, 60, 100, 140)), ("induction", -59, (70, 80, 95, 110))):
        for query in queries:
            rows[0].append(heads[f"{head}_q"][query])
            rows[1].append(heads[f"{head}_k"][query + lag])
    return np.stack(rows[0]).astype(np.float64), np.stack(rows[1]).astype(np.float64)


def _rows(lags: np.ndarray, closed: Any, found: Any, errors: Any, largest: np.ndarray) -> Iterator[Row]:
    """Compare lag by lag: means ``(m,)``, which are at most 1, then moments ``(pairs, m)`` of scores of given sizes."""
    for j, lag in enumerate(lags.tolist()):
        cases: list[tuple[int, int | None, tuple[int, ...], float]] = [(i, None, (j,), 1.0) for i in range(3)]
        cases += [(i, pair, (pair, j), s ** (i - 2)) for pair, s in enumerate(largest.tolist()) for i in (3, 4)]
        for i, pair, at, size in cases:
            wanted, estimate, stderr = (float(values[i][at]) for values in (closed, found, errors))
            stderr, gap = max(stderr, _ROUNDING * size), estimate - wanted
            yield Row(tuple(lag), QUANTITIES[i], pair, wanted, estimate, stderr, gap / stderr if gap else 0.0)


# -- standard errors in closed form ------------------------------------------------------------------------------------


def _errors_of_scores(
    a: np.ndarray, b: np.ndarray, harmonics: list[np.ndarray], n: int, bound: float
) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors ``(pairs, m)`` of the mean and of the sample variance of scores with coefficients ``(pairs, D)``.

    Fourth cumulants of the independent blocks add up. Those of a block follow from its raw moments, which are
    polynomials in A, B and the means of cos u, cos 2u, cos 3u and cos 4u.
    """
    phi, phi2, phi3, phi4 = harmonics
    a, b = a[:, None, :], b[:, None, :]

    def sum_over_blocks(*terms: tuple[np.ndarray, np.ndarray]) -> Any:
        """Sum over the blocks of coefficients times functions of the lag."""
        return sum(np.sum(coefficient, axis=-1) * of_lag for coefficient, of_lag in terms)

    cos2, sin2 = 0.5 * (1.0 + phi2), 0.5 * (1.0 - phi2)
    cos3, cos_sin2 = 0.25 * (3.0 * phi + phi3), 0.25 * (phi - phi3)
    cos4, sin4, both = 0.125 * (3.0 + 4.0 * phi2 + phi4), 0.125 * (3.0 - 4.0 * phi2 + phi4), 0.125 * (1.0 - phi4)
    flat = cos2 - phi * phi  # A cos u: the variance over A^2
    variance = sum_over_blocks((a**2, flat), (b**2, sin2))
    fourth = sum_over_blocks(
        (a**4, cos4 - 4.0 * phi * cos3 + 6.0 * phi**2 * cos2 - 3.0 * phi**4),
        (a**2 * b**2, 6.0 * both - 12.0 * phi * cos_sin2 + 6.0 * phi**2 * sin2),
        (b**4, sin4),
    )
    cumulant = fourth - 3.0 * sum_over_blocks((a**4, flat**2), (2.0 * a**2 * b**2, flat * sin2), (b**4, sin2**2))
    of_variance = cumulant + 2.0 * n / (n - 1.0) * variance**2
    size = np.sum(a**2 + b**2, axis=-1)
    reach = np.max(np.hypot(a, b) + np.abs(a * phi[:, None]), axis=-1)  # for one block: a rare draw is one of one block
    return _widened(variance, size, reach, n, bound), _widened(of_variance, size**2, reach**2, n, bound)


def _widened(variance: Any, largest: Any, reach: Any, n: int, bound: float) -> np.ndarray:
    """Standard error of a mean of n terms that are off by `reach` at most, such that rare terms stay within the bound.

    By Bernstein's inequality a mean leaves ``sqrt(2 v L / n) + reach L / (3 n)`` with probability ``2 exp(-L)``, and a
    normal law leaves `bound` standard errors with less than that for ``L = bound^2 / 2``.
    """
    error: np.ndarray = np.sqrt(np.maximum(variance, _UNKNOWN * np.asarray(largest)) / n) + reach * bound / (6.0 * n)
    return error
