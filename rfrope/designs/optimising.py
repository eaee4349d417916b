"""Frequencies ``(n, k)`` fitted to a kernel over a range of lags from several starts, and the error they reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rfrope._core import array, parallel, random
from rfrope._core.arguments import MOST, choice, is_several, show, whole
from rfrope.designs.errors import NEGLIGIBLE, Lags, descend, error, lags_within, search
from rfrope.designs.sets import needs_table, quantile, strata_of_magnitude, stratified, transport, uniforms
from rfrope.kernels import Kernel
from rfrope.kernels.registry import read_kernel
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope

NORMS = ("rms", "sup")
FITTED = ("balanced", "optimised")  # designs that depend on a range of lags
_MOST_STARTS = 2**16
_MOST_LAGS = 2**52  # lags that a range may hold
_MOST_UNKNOWNS = 2**10  # unknowns of a fit: its time grows with their square
_KEY = random.key_from_rng(0)  # all starts and jumps are drawn with it: a fit has no seed
_WORK = 2**9  # unknowns times starts, by default
_USUAL_STARTS = 16  # at most
_QUICK, _LAST = (60, 1e-5), (500, 1e-7)  # steps at most and least gain of descents in between, and of the last one
_CANDIDATES = 2**10  # places that a block may jump to in one round
_SUP_LAGS = 2**13  # maximum number of lags of minimax
_FIRST_STEP, _LEAST_GAIN = 0.1, 1e-3  # phase at the largest lag, gain that ends minimax
_LARGE = 0.7  # share of the largest error from which on a programme bounds one
_REFINED = ((6, 2), (40, 1))  # steps of minimax that fits go, and how many of them are kept


def optimise(
    kernel: Kernel | str,
    n_blocks: int,
    *,
    max_lag: int | Sequence[int],
    norm: str = "rms",
    starts: int | None = None,
    progress: Any = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Rope:
    """Return frequencies fitted to a kernel over whole lags from -max_lag to max_lag, with the error they reach.

    Deterministic: descends from the design "quantile" and from fixed random sets, lets blocks jump, and keeps the best.

    Parameters
    ----------
    kernel, n_blocks, xp, device, dtype
        See `sample`.
    max_lag : int or sequence of int
        Largest lag in units of position, one for all axes or one for each. Beyond it the error is ignored, and grows.
    norm : {"rms", "sup"}
        Minimise the root mean square of the error, or continue from there to lower the largest error.
    starts : int, optional
        Number of starting sets, at least 1. Default: 16 for up to 32 unknowns (D k), 8 for 64, down to one for 512.
        More take longer, on as many cores as `rfrope.threads` allows, and rarely gain much.
    progress : None, bool or callable
        Shows the finished starts; see `rfrope.estimate_kernel`.

    Returns
    -------
    Rope
        Frequencies (D,) or (D, k), ``context = max_lag + 1``, and in its ``source``

        - ``norm``: the minimised error;
        - ``error``: ``rms`` and ``sup``, the root mean square and the largest ``abs(Phi_D - Phi)`` over the whole lags
          of the range, one of each pair +-lag; beyond 2**20 lags, over the smaller ones and a spread over the rest;
        - ``extra``: ``max_lag``, the range, one number for each axis; ``starts``; and ``start``, the errors of the
          design "quantile".

    Raises
    ------
    ValueError
        If the range, norm or number of starts is not as described above, or there are more than 1024 unknowns (D k);
        see also `sample`.
    TypeError
        If an argument is of another type.

    See Also
    --------
    design, sample, moments.relative_error

    Notes
    -----
    Source: section 4 of the mathematics page. The error is that of the mean kernel ``(1/D) sum_i cos(lag . omega_i)``.
    Only whole lags count, where omega matters modulo 2 pi: at fractional positions the result is no better than its
    start. Beyond 2**14 lags ("sup": 2**13) the fit uses the smaller ones and a spread over the rest; the reported
    errors use all. Descent is Newton's method; a jump moves the block that lowers the error most to the best of 1024
    places, half of them drawn from the kernel's law. docs/howto/designs.rst has times.

    Examples
    --------
    >>> fit = optimise("gaussian(scale=16)", 16, max_lag=64)
    >>> bool(fit.source.error["sup"] < 0.006 < 0.019 < fit.source.extra["start"]["sup"])
    True
    """
    made, n_blocks = read_kernel(kernel), whole("n_blocks", n_blocks, 1)
    choice("norm", norm, NORMS)
    reach = read_fit(made, "optimised", n_blocks, max_lag, norm)
    assert reach is not None
    starts = usual_starts(made, n_blocks) if starts is None else whole("starts", starts, 1, _MOST_STARTS)
    parallel.check_progress(progress)
    array.check_float_dtype(dtype, array.named_namespace(xp))
    omega = fit(made, n_blocks, reach, norm, starts=starts, progress=progress)
    errors = [error(made, each, reach) for each in (omega, quantile(made, n_blocks))]
    reached, start = ({"rms": each.rms, "sup": each.sup} for each in errors)
    source = Provenance(
        kernel=repr(made),
        design="optimised",
        norm=norm,
        error=reached,
        extra={"max_lag": list(reach), "starts": starts, "start": start},
    )
    context = tuple(m + 1 for m in reach)
    frequencies = array.place_for_caller(made.restore_shape(omega), xp, device, dtype)
    return Rope(frequencies, context=context[0] if len(context) == 1 else context, source=source)


def usual_starts(kernel: Kernel, n_blocks: int) -> int:
    """Return the default number of starts of a fit: fewer where each takes longer."""
    return min(_USUAL_STARTS, max(1, _WORK // max(n_blocks * kernel.ndim, 1)))


def read_range(kernel: Kernel, value: Any, name: str = "max_lag", minimum: int = 1) -> tuple[int, ...]:
    """Return the largest lag, or length, on each axis, from one number or one for each."""
    each = tuple(value) if is_several(value) else (value,) * kernel.ndim
    if len(each) != kernel.ndim:
        raise ValueError(f"{name} is {show(value)}; expected one number or {kernel.ndim}, one for each axis")
    return tuple(whole(name, number, minimum, MOST + minimum - 2) for number in each)


def read_fit(kernel: Kernel, design: str, n_blocks: int, max_lag: Any, norm: str | None) -> tuple[int, ...] | None:
    """Return the largest lag on each axis for a design that is fitted to a range; None for the others."""
    if norm is not None and design != "optimised":
        raise ValueError(f"norm is {show(norm)} but design is {show(design)}; expected it only with 'optimised'")
    if design not in FITTED:
        if max_lag is not None:
            alone = "expected it only with 'optimised' or 'balanced'"
            raise ValueError(f"max_lag is {show(max_lag)} but design is {show(design)}; {alone}")
        return None
    choice("norm", norm or "rms", NORMS)
    if max_lag is None:
        raise ValueError(f"max_lag is None; expected the largest lag, for design {show(design)}")
    reach = read_range(kernel, max_lag)
    if math.prod(2 * m + 1 for m in reach) > _MOST_LAGS:
        raise ValueError(f"max_lag is {show(max_lag)}; expected at most 2**52 lags")
    if design == "optimised" and n_blocks * kernel.ndim > _MOST_UNKNOWNS:
        most = f"at most {_MOST_UNKNOWNS} unknowns with design 'optimised', or design 'quantile'"
        raise ValueError(f"n_blocks is {n_blocks} with {kernel.ndim} axes; expected {most}")
    return reach


# -- the fit -----------------------------------------------------------------------------------------------------------


def fit(
    kernel: Kernel, n: int, max_lag: tuple[int, ...], norm: str, *, starts: int | None = None, progress: Any = None
) -> np.ndarray:
    """Return frequencies that minimise the error of their mean kernel over whole lags, the best of several starts.

    Norm "rms" is least squares; norm "sup" continues from there.
    """
    if not n:
        return quantile(kernel, n)
    lags = Lags(kernel, max_lag)
    fits = _fits(kernel, n, lags, starts or usual_starts(kernel, n), progress)
    least = min(range(len(fits)), key=lambda number: fits[number][1])
    omega, _ = descend(lags, fits[least][0], *_LAST)
    if norm == "sup":
        omega = _minimise_largest(kernel, max_lag, [omega, quantile(kernel, n), *(each for each, _ in fits)])
    first = np.take_along_axis(omega, np.argmax(omega != 0.0, axis=-1)[:, None], axis=-1)
    omega = np.where(first < 0.0, -omega, omega)[np.argsort(np.linalg.norm(omega, axis=-1), kind="stable")]
    return omega * np.where(np.arange(n) % 2, -1.0, 1.0)[:, None]  # the cosine does not see signs, and sines cancel


def _fits(kernel: Kernel, n: int, lags: Lags, starts: int, progress: Any) -> list[tuple[np.ndarray, float]]:
    """Minima and their mean square errors: next to the quantiles, and if more can be gained, where the starts lead."""

    def from_start(number: int) -> tuple[np.ndarray, float]:
        draws = iter(range(1 << 31))

        def draw(count: int) -> np.ndarray:  # places for blocks: half by the kernel's law, half anywhere
            half, columns = count // 2, kernel.n_columns
            u = uniforms(_KEY, next(draws) * half, half, columns + kernel.ndim, 2 + starts + number, 1)[0]
            anywhere = math.pi * (2.0 * u[:, columns:] - 1.0)
            return np.concatenate([_wrap(transport(kernel, u[:, :columns])), anywhere])

        return search(lags, _start(kernel, n, number), draw, _CANDIDATES, *_QUICK)

    def all_fits() -> Iterable[tuple[np.ndarray, float]]:
        first = descend(lags, quantile(kernel, n), *_LAST)
        yield first
        if first[1] >= NEGLIGIBLE**2:
            yield from parallel.ordered_map(from_start, range(starts), parallel.allowed())

    return list(parallel.show_progress(all_fits(), starts + 1, progress))


def _start(kernel: Kernel, n: int, number: int) -> np.ndarray:
    """Set number 0, 1, ... to begin with: the quantiles, and by turns strata and independent draws."""
    if number == 0:
        return quantile(kernel, n)
    if number % 2:
        points = uniforms(_KEY, 0, n, kernel.n_columns, number, 1)
    elif needs_table(kernel):  # a lattice is enough to begin with
        points = strata_of_magnitude(kernel, _KEY, n, number, 1, moved=True)
    else:
        points = stratified(kernel, _KEY, n, number, 1)
    return _wrap(transport(kernel, points)[0])


def _wrap(omega: np.ndarray) -> np.ndarray:
    """Frequencies between -pi and pi that whole lags cannot tell from the given ones."""
    return omega - 2.0 * math.pi * np.round(omega / (2.0 * math.pi))


def _minimise_largest(kernel: Kernel, max_lag: tuple[int, ...], fits: list[np.ndarray]) -> np.ndarray:
    """Frequencies of the least largest error that some fits lead to: all go a few steps, the best go on to the end."""
    lags, _ = lags_within(max_lag, _SUP_LAGS)
    target = kernel.phi(kernel.restore_shape(lags))

    def largest(omega: np.ndarray) -> float:
        return float(np.max(np.abs(_errors(omega, lags, target))))

    for steps, kept in _REFINED:
        lowered = partial(_minimax, lags=lags, target=target, steps=steps)
        fits = sorted(parallel.ordered_map(lowered, fits, parallel.allowed()), key=largest)[:kept]
    return fits[0]


def _minimax(omega: np.ndarray, lags: np.ndarray, target: np.ndarray, steps: int) -> np.ndarray:
    """Lower the largest error by linear programmes (HiGHS), each within a step that the one before allows.

    The method of Madsen ("An algorithm for minimax solution of overdetermined systems of non-linear equations", 1975).
    A programme bounds the larger errors; whether a step is taken is decided by all of them.
    """
    from scipy.optimize import linprog

    errors, step = _errors(omega, lags, target), _FIRST_STEP / max(1.0, float(np.max(np.abs(lags))))
    largest = float(np.max(np.abs(errors)))
    for _ in range(steps):
        large = np.abs(errors) >= _LARGE * largest
        sines = np.sin(_phases(omega, lags[large]))[..., None]
        slopes = (sines * lags[large][:, None] / -len(omega)).reshape(len(sines), -1)
        bound = -np.ones((len(sines), 1))
        found = linprog(
            np.append(np.zeros(omega.size), 1.0),
            np.block([[slopes, bound], [-slopes, bound]]),
            np.concatenate([-errors[large], errors[large]]),
            bounds=[(-step, step)] * omega.size + [(0.0, None)],
        )
        if found.x is None or (promised := largest - found.x[-1]) <= _LEAST_GAIN * largest:
            break
        moved = omega + found.x[:-1].reshape(omega.shape)
        errors_there = _errors(moved, lags, target)
        gain = largest - float(np.max(np.abs(errors_there)))
        if gain > 0.1 * promised:
            omega, largest, errors = moved, largest - gain, errors_there
        step *= 2.0 if gain > 0.7 * promised else 1.0 if gain > 0.1 * promised else 0.25
    return omega


def _errors(omega: np.ndarray, lags: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.asarray(np.mean(np.cos(_phases(omega, lags)), axis=-1) - target)


def _phases(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Phases ``(lags, n)``, without BLAS: its last bits depend on where arrays lie in memory, and fits on last bits."""
    return np.sum(lags[:, None, :] * omega, axis=-1)
