"""Estimates from random frequencies, each with its standard error.

Work is cut into fixed chunks, merged in order, so a result is bit-identical for every number of workers, and needs the
memory of one chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._backends import transforms
from rfrope._core import angles, array, blocks, capacity, dispatch, parallel, random, sums, turns
from rfrope._core.arguments import choice, show, whole
from rfrope._core.array import Array
from rfrope._core.dispatch import CPU, CUDA, backend_place, dispatched
from rfrope._core.results import Result
from rfrope._core.sums import MeanSums, PowerSums
from rfrope.designs.sampling import check_randomised, draw, draw_sets
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel

__all__ = ["Estimate", "ScoreEstimate", "estimate_kernel", "estimate_scores"]

_ROUNDING = 1e-13  # part of the largest possible value
_SHARE = 0.02  # largest ratio of fourth powers to the squared sum of squares: 50 outlying draws or more
_FEW_DRAWS = 256
_LOOKED_AT = 2**14  # lags with computed fourth moments


@dataclass(frozen=True)
class Estimate(Result):
    """A mean over n independent draws, or sets of draws.

    Attributes
    ----------
    value : array, float64 where the library has it
    stderr : array
        Standard error of `value`, estimated from the same draws; except at lag 0, at least 1e-13 of the largest
        possible value, to cover rounding.
    n : int
    trusted : array of bool
        True if the moments of the draws support the standard error. If a few draws hold most of the variance, as for a
        heavy-tailed law at lags small against its scale, another sample would give another one, and errors of three
        times `stderr` are common. Computed when first read; see the notes of `estimate_kernel`.

    See Also
    --------
    estimate_kernel

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.estimate_kernel([8.0], "gaussian(scale=8)", n_samples=4000, rng=0)
    >>> found.n, bool(abs(found.value[0] - 0.6065) < 4 * found.stderr[0])
    (4000, True)
    """

    value: Array
    stderr: Array
    n: int
    _trusted: Any = field(default=True, repr=False)  # or what finds it out
    _also = ("trusted",)

    @property
    def trusted(self) -> Any:
        """True if the moments of the draws support the standard error; computed on first access."""
        if isinstance(self._trusted, partial):
            object.__setattr__(self, "_trusted", self._trusted())
        return self._trusted


@dataclass(frozen=True)
class ScoreEstimate(Result):
    """Mean and variance of the attention score over independent draws of all its frequencies.

    Attributes
    ----------
    mean : Estimate
    variance : Estimate
        Unbiased sample variance; its standard error comes from the fourth moment.
    n_trials : int

    See Also
    --------
    estimate_scores

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> found = rfrope.estimate_scores(np.ones(8), np.ones(8), [4.0], "gaussian(scale=8)", n_trials=500, rng=0)
    >>> found.n_trials, found.mean.value.shape
    (500, (1,))
    """

    mean: Estimate
    variance: Estimate
    n_trials: int


@array.select_device
def estimate_kernel(
    lags: Array,
    kernel: Kernel | str,
    *,
    n_samples: int,
    rng: Any = None,
    design: str = "iid",
    n_blocks: int | None = None,
    quantity: str = "phi",
    executor: Any = None,
    progress: Any = None,
) -> Estimate:
    """Return a Monte Carlo estimate of Phi, Phi_2 or the expected sine (0 in theory) of a kernel.

    Parameters
    ----------
    lags : array_like, in units of position
        Lags: any shape for a kernel with one axis, ``(..., ndim)`` with more. The same draws serve all lags.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    n_samples : int
        Number of frequencies, at least 2.
    rng : None, int, sequence of ints or numpy.random.Generator
        Seed; None draws fresh entropy.
    design : str
        "iid", another randomised design of `sample`, or "auto". Frequencies of one set are then not independent, so the
        mean is over `Estimate.n` independent sets of `n_blocks`; ``stderr * n ** 0.5`` is the error of one set.
    n_blocks : int, optional
        D of one set, for all designs except "iid". `n_samples` must be a multiple of it, at least twice as large.
    quantity : {"phi", "phi2", "sin"}
        Average ``cos u``, ``cos 2u`` or ``sin u``, with u = lag . omega.
    executor : concurrent.futures.Executor or callable, optional
        Runs the chunks: anything with a ``map`` method, or a callable like ``map``. Arrays on a device need none, as
        their work is queued on the current stream. Threads have their own current stream in CuPy and PyTorch, so an
        executor of threads is safe only if the caller's stream is the default one.
    progress : None, bool or callable
        True shows a bar on stderr (tqdm), False none; None shows one after two seconds if stderr is a terminal. A
        callable wraps the iterable of chunks: ``progress(iterable, total=n_chunks)``.

    Returns
    -------
    Estimate
        With the shape of the lags, in their library.

    Raises
    ------
    ValueError, TypeError
        If the kernel, lags, design, quantity or a number is not as described above.
    Exception
        Any exception of the executor, as when a worker dies, with a note on what is lost.

    See Also
    --------
    estimate_scores, montecarlo.Estimate, validate

    Notes
    -----
    For many lags in a NumPy array or a CPU torch tensor the sums use a non-uniform fast Fourier transform (finufft:
    type 1 for lags on a uniform grid, else type 3, up to three axes) if that is cheaper than the direct sum. Values are
    then within 1e-9 of it, and standard errors within 1e-4 (where the variance of a single draw is below 1e-6, a series
    or the direct sum is used). On a CUDA device, and without finufft or Numba, the sum is direct, and phases are
    accurate to ``1.1e-16 |u|``.

    `Estimate.trusted` is True where the variance is too large for 256 draws to hold it, or where the sum of fourth
    powers of the deviations is below 2 % of the squared sum of their squares. The latter is checked in NumPy and CPU
    torch, for up to 2**14 lags and 2**14 draws, and for sets of draws. Draws too rare to have occurred cannot be
    detected.

    Examples
    --------
    >>> estimate = estimate_kernel([0.0, 32.0], "gaussian(scale=32)", n_samples=10_000, rng=0)
    >>> bool(abs(estimate.value[1] - 0.6065) < 4 * estimate.stderr[1])
    True
    >>> estimate_kernel([0.001, 32.0], "exponential(scale=32)", n_samples=4096, rng=0).trusted
    array([False,  True])
    """
    kernel = read_kernel(kernel)
    design = check_randomised(design, kernel)
    choice("quantity", quantity, sums.QUANTITIES)
    lags, _, _ = angles.lags(lags, kernel.ndim, law=kernel)
    array.check_memory(128.0, lags.shape[:-1], lags, "lags")
    n_samples = whole("n_samples", n_samples, 2)
    n_sets = _n_sets(design, n_samples, n_blocks, kernel)
    key, n_lags, threaded = random.key_from_rng(rng), math.prod(lags.shape[:-1]), dispatch.place_of((lags,)) == "cpu"
    if n_sets:
        sets = _SetChunk(kernel, key, lags, quantity, design, n_samples // n_sets)
        length = transforms.sets_in_chunk(n_samples // n_sets * (n_lags + kernel.n_columns + kernel.ndim))
        summed = parallel.run_chunks(sets, n_sets, length, executor, progress, threaded)
        return _mean(summed, lags, 1.0, _is_held_by_many(summed, _SHARE))
    where = backend_place(_kernel_moments, lags)
    on_host = array.view_as_numpy(lags).reshape(-1, kernel.ndim) if where == "cpu" else None
    length = transforms.draws_in_chunk(where, on_host, n_lags, n_samples, kernel.n_columns, kernel.ndim)
    task = _KernelChunk(kernel, key, lags, quantity)
    found = parallel.run_chunks(task, n_samples, length, executor, progress, threaded)
    return _mean(found, lags, 1.0, _are_trusted(task, found))


@array.select_device
def estimate_scores(
    q: Array,
    k: Array,
    lags: Array,
    kernel: Kernel | str,
    *,
    n_trials: int,
    rng: Any = None,
    design: str = "iid",
    pairing: str = "half",
    executor: Any = None,
    progress: Any = None,
) -> ScoreEstimate:
    """Return estimates of the mean and variance of the score of q and k over random frequencies.

    Every trial draws D frequencies, one per block, shared by all lags and all pairs of q and k.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Query and key before rotation, d even.
    lags : array_like, in units of position
        Lags, KEY minus QUERY: ``(...)`` for a kernel with one axis, ``(..., ndim)`` with more. Their shape broadcasts
        against the leading axes of q and k.
    kernel, rng, executor, progress
        See `estimate_kernel`.
    n_trials : int
        Number of independent draws of all frequencies, at least 4. Trial t uses the frequencies of head t of `sample`.
    design : str
        "iid", another randomised design of `sample`, or "auto". Each trial draws one set, so mean and variance have
        standard errors for every design; only for "iid" is the variance that of `score_variance`.
    pairing : {"half", "interleaved"}
        Features that form a block.

    Returns
    -------
    ScoreEstimate
        With the broadcast shape, in the library of q and k.

    Raises
    ------
    ValueError, TypeError
        See `estimate_kernel`, and `rotate` for q and k.

    See Also
    --------
    estimate_kernel, expected_score, montecarlo.ScoreEstimate

    Notes
    -----
    Source: the decomposition ``S = sum_i A_i cos u_i + B_i sin u_i`` of the RF-RoPE paper, exact for every draw.

    On the CPU, trials of NumPy arrays and torch tensors run in one compiled loop if Numba is available; on a CUDA
    device, in one kernel. Their quantile functions are accurate to 2e-15, unlike SciPy's for Student's t near its
    median, so results agree with those elsewhere to 1e-9, as long as nearly all phases are below 1e5.

    Examples
    --------
    >>> estimate = estimate_scores([1.0, 2.0], [3.0, 1.0], 32.0, "gaussian(scale=32)", n_trials=4096, rng=0)
    >>> bool(abs(estimate.mean.value - 3.0327) < 4 * estimate.mean.stderr)
    True
    """
    kernel = read_kernel(kernel)
    design = check_randomised(design, kernel)
    n_trials = whole("n_trials", n_trials, 4)
    lags, xp, device = angles.lags(lags, kernel.ndim, law=kernel, q=q, k=k)
    a, b, _ = blocks.content(q, k, xp, device, pairing)
    grid = lags.shape[:-1]
    shape = array.broadcast_shapes({"q and k": a.shape[:-1], "lags": grid})
    task = _ScoreChunk(kernel, random.key_from_rng(rng), lags, a, b, design)
    width = a.shape[-1] * (math.prod(grid) + kernel.n_columns + kernel.ndim) + math.prod(shape)
    where = backend_place(_score_sums, lags, a, b) if design == "iid" else ""
    if not where:  # two trials at least stand beside their powers and those of all before
        capacity.check(256.0 * math.prod(shape), f"lags of shape {grid} beside q and k", "the number of lags")
    length = transforms.trials_in_chunk(where, kernel.stated_law() is not None, width)
    found = parallel.run_chunks(task, n_trials, length, executor, progress, dispatch.place_of((a,)) == "cpu")
    size = xp.sum(sums.root(a * a + b * b, xp), axis=-1)
    mean, n = _mean(found, lags, size, _is_held_by_many(found, _SHARE)), found.n
    variance = found.m2 / (n - 1.0)
    spread = (found.m4 / n - (n - 3.0) / (n - 1.0) * variance * variance) / n  # of the unbiased sample variance
    stderr = _floored(spread, lags, size * size)
    return ScoreEstimate(mean, Estimate(variance, stderr, n, _is_held_by_many(found, 0.25 * _SHARE)), n_trials)


def _mean(found: MeanSums | PowerSums, lags: Array, size: Array | float, trusted: Any) -> Estimate:
    """Sample mean, with its standard error from the sample variance."""
    stderr = _floored(found.m2 / (found.n - 1.0) / found.n, lags, size)
    return Estimate(found.mean, stderr, found.n, trusted)


def _is_held_by_many(found: PowerSums, share: float) -> Array:
    """True where fourth powers are a small part of the squared sum of squares: no few trials hold the variance."""
    return found.m4 <= share * found.m2 * found.m2


# -- chunks of work ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _KernelChunk:
    """Work on frequencies start, ..., start + length - 1: picklable, so that it can travel to a worker."""

    kernel: Kernel
    key: random.Key
    lags: Array
    quantity: str

    def __call__(self, span: tuple[int, int]) -> MeanSums:
        start, length = span
        with array.device_of(self.lags):
            omega = _drawn(self.kernel, self.key, start, length, self.lags)
            return MeanSums(length, *_kernel_moments(omega, self.lags, self.quantity))


@dataclass(frozen=True)
class _SetChunk(_KernelChunk):
    """Work on randomised sets start, ..., start + length - 1."""

    design: str
    n_blocks: int

    def __call__(self, span: tuple[int, int]) -> PowerSums:
        start, length = span
        xp = array.namespace(lags=self.lags)
        with array.device_of(self.lags):
            omega = _omega_of_sets(self.kernel, self.design, self.key, self.n_blocks, start, length, self.lags)

            def means(lags: Array, *_: Array) -> Array:
                u = _phases(lags, omega, xp)
                u = xp.reshape(u, (*u.shape[:-1], length, self.n_blocks))
                return xp.mean(sums.waves_of_phases(u, self.quantity, xp), axis=-1)

            one = omega[0, 0]  # a number in place of coefficients
            return PowerSums.from_values(sums.map_lags(means, self.lags, one, one, length * self.n_blocks, xp), xp)


@dataclass(frozen=True)
class _ScoreChunk:
    """Work on trials start, ..., start + length - 1: picklable, so that it can travel to a worker."""

    kernel: Kernel
    key: random.Key
    lags: Array
    a: Array
    b: Array
    design: str = "iid"

    def __call__(self, span: tuple[int, int]) -> PowerSums:
        start, length = span
        with array.device_of(self.a):
            if self.design != "iid":
                found = _scores_of_sets(self.kernel, self.design, self.key, self.lags, self.a, self.b, start, length)
                return PowerSums.from_values(found, array.namespace(a=self.a))
            return PowerSums(length, *_score_sums(self.kernel, self.key, self.lags, self.a, self.b, start, length))


# -- the mathematics, for lags (*S, k) and frequencies (n, k) ----------------------------------------------------------


@dispatched(CPU.estimators, CUDA.estimators)
def _score_sums(
    kernel: Kernel, key: random.Key, lags: Array, a: Array, b: Array, start: int, length: int
) -> tuple[Array, Array, Array, Array]:
    """Mean and central power sums of orders 2 to 4 of the scores of trials start, ..., start + length - 1."""
    found = PowerSums.from_values(_scores_of_sets(kernel, "iid", key, lags, a, b, start, length), array.namespace(a=a))
    return found.mean, found.m2, found.m3, found.m4


def _scores_of_sets(
    kernel: Kernel, design: str, key: random.Key, lags: Array, a: Array, b: Array, start: int, length: int
) -> Array:
    """Scores ``(..., trials)`` of the sets start, ..., start + length - 1."""
    xp = array.namespace(lags=lags)
    omega = _omega_of_sets(kernel, design, key, a.shape[-1], start, length, lags)

    def scores(lags: Array, a: Array, b: Array) -> Array:
        u = _phases(lags, omega, xp)
        u, a, b = xp.reshape(u, (*u.shape[:-1], length, a.shape[-1])), a[..., None, :], b[..., None, :]
        return sums.CosSin.from_phases(u, xp).total(a, b)

    return sums.map_lags(scores, lags, a, b, length * a.shape[-1], xp)


def _omega_of_sets(
    kernel: Kernel, design: str, key: random.Key, n_blocks: int, start: int, length: int, like: Array
) -> Array:
    """Frequencies ``(length * D, k)`` of the sets start, ..., start + length - 1, beside some lags."""
    omega = draw_sets(kernel, design, key, n_blocks, stream=start, streams=length).reshape(-1, kernel.ndim)
    return array.from_host(omega, array.namespace(like=like), device=array.device(like))


def _phases(lags: Array, omega: Array, xp: ModuleType) -> Array:
    return turns.phases(angles.Angles(lags, omega, None, xp))


@dispatched(CUDA.estimators)
def _drawn(kernel: Kernel, key: random.Key, start: int, length: int, like: Array) -> Array:
    """Draws start, ..., start + length - 1 beside the lags `like`: ``(length, k)``."""
    return array.from_host(draw(kernel, key, start, length)[0], array.namespace(like=like), device=array.device(like))


@dispatched(CPU.sums, CUDA.sums)
def _kernel_moments(omega: Array, lags: Array, quantity: str) -> tuple[Array, Array]:
    """Mean over the draws ``(n, k)``, and central sum of squares, of a kernel's quantity at all lags."""
    xp = array.namespace(lags=lags)
    values = sums.waves_of_phases(_phases(lags, omega, xp), quantity, xp)
    mean = xp.mean(values, axis=-1)
    centred = values - mean[..., None]
    return mean, xp.sum(centred * centred, axis=-1)


# -- whether standard errors are to be trusted -------------------------------------------------------------------------


def _floored(variance: Array, lags: Array, size: Array | float) -> Array:
    """Return a standard error from its square, at least the rounding except at lag 0."""
    xp = array.namespace(lags=lags)
    stderr = sums.root(variance, xp)
    rounded = xp.all(lags == 0.0, axis=-1) | (stderr >= _ROUNDING * size)
    return xp.where(rounded, stderr, _ROUNDING * size + 0.0 * stderr)


def _are_trusted(task: _KernelChunk, found: MeanSums) -> Any:
    """True where the variance at a lag is that of many draws: by its size, else by fourth moments of some draws."""
    sure = (found.m2 >= 4.0 * _FEW_DRAWS) | (found.m2 == 0.0)  # no value is off by more than 2
    if not array.has_host_values(found.m2):
        return sure
    unsure = np.flatnonzero(~array.to_host(sure))
    if not 0 < unsure.size <= _LOOKED_AT:
        return sure
    task = replace(task, lags=array.to_host(task.lags).reshape(-1, task.kernel.ndim)[unsure])
    variances = np.asarray(array.to_host(found.m2)).reshape(-1)[unsure] / found.n
    pending = partial(_look_at_draws, task, found.n, sure, unsure, variances)
    # for tensors at once: a compiler that meets it could not find it out
    return pending if isinstance(found.m2, np.ndarray | np.generic) else pending()


def _look_at_draws(task: _KernelChunk, n: int, sure: Array, unsure: np.ndarray, variances: np.ndarray) -> Array:
    """Return whether errors are to be trusted; at unsure lags, those of `task`, from some draws, when it is read."""
    wanted = max(2**10, min(2**14, 2**24 // unsure.size))
    looked_at = min(n, wanted, max(2**8, 2**17 // (task.kernel.n_columns + task.kernel.ndim)))
    omega = draw(task.kernel, task.key, 0, looked_at)[0]
    known = np.array(array.to_host(sure)).reshape(-1)
    for span in sums.parts(len(task.lags), 8 * looked_at):  # phases, values, deviations and their powers
        seen = PowerSums.from_values(sums.waves_of_phases(_phases(task.lags[span], omega, np), task.quantity, np), np)
        rare = variances[span] > 1.5 * seen.m2 / looked_at  # draws not looked at hold much of the variance
        known[unsure[span]] = _is_held_by_many(seen, _SHARE) & ~rare
    xp = array.namespace(sure=sure)
    return array.from_host(known.reshape(sure.shape)[()], xp, device=array.device(sure), dtype=xp.bool)


# -- what is allowed in ------------------------------------------------------------------------------------------------


def _n_sets(design: str, n_samples: int, n_blocks: int | None, kernel: Kernel) -> int:
    """Number of sets of a design for a number of draws; 0 for independent draws."""
    if design == "iid":
        if n_blocks is not None:
            raise ValueError(f"n_blocks is {show(n_blocks)} but design is 'iid'; expected it only with other designs")
        return 0
    if n_blocks is None:
        raise ValueError(f"n_blocks is None; expected the number of frequencies in one set, for design {design!r}")
    n_blocks = whole("n_blocks", n_blocks, 1)
    if n_samples % n_blocks or n_samples < 2 * n_blocks:
        raise ValueError(
            f"n_samples is {n_samples}; expected a multiple of n_blocks={n_blocks}, at least {2 * n_blocks}"
        )
    held = 32.0 * (2 * kernel.n_columns + kernel.ndim) * n_blocks  # two sets make a chunk at least
    capacity.check(held, f"n_blocks={n_blocks} of design {design!r}", "n_blocks")
    return n_samples // n_blocks
