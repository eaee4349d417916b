"""Comparison of frequencies: with the nearest kernel of the registry, and before and after a scaling scheme."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rfrope import kernels
from rfrope._core import array
from rfrope._core.angles import Angles
from rfrope._core.arguments import flag, listed, show, whole
from rfrope._core.array import Array
from rfrope._core.results import Result, plain
from rfrope._core.sums import mean_cos
from rfrope.analysis.curves import one_set
from rfrope.designs.sets import quantile
from rfrope.kernels import Kernel
from rfrope.kernels.parameters import SearchRange

_DENSE, _PER_OCTAVE = 256, 128  # every whole lag up to the first, and so many in each octave beyond
_COARSE = 96  # lags on which the grids are searched
_TIGHTEST, _WIDEST = 0.1, 100.0  # lengths are sought from so many positions to so many contexts
_SLOWEST, _FASTEST = 0.01, 10.0  # frequencies from so many radians over the context to so many per position
_POINTS, _SHAPE_POINTS = {1: 64, 2: 24}, 8  # points of grids, by the number of parameters; for parameters of shape
_OWN = 33  # quantiles of the given frequencies that are tried
_PHASE = 0.3  # step of a single frequency, as the phase at the largest lag
_TURN = math.log(2.0 * math.pi)
_EVALUATIONS = 120  # evaluations of Phi, at most, in each refinement
_STARTS = 3  # points of a grid from which the search is refined
_DIGITS = 9  # digits of fitted parameters
_EVEN = 1e-6  # errors below are alike
_LEFT_OUT = ("ball",)  # in one axis the same as sinc
_LEAST_WEIGHT = 0.01  # of a part of a mixture
_AT_LIMIT = 1e-3  # distance of a logarithm from the end of its range
_NONE = 1e300  # error where there is no such kernel


@dataclass(frozen=True)
class KernelFit(Result):
    """A kernel of the registry fitted to the mean kernel of frequencies.

    Attributes
    ----------
    kernel : Kernel
        With parameters of nine significant digits.
    rms, sup : float
        Root mean square and largest difference between the mean kernel and Phi over the lags of the fit.
    at_limit : tuple of str
        Parameters at a limit of the search, beyond which the fit might be better.
    design_rms : float
        Root mean square error of as many blocks of this kernel, by the design "quantile": what the number of blocks
        alone errs. A fit that is no worse describes the frequencies.

    See Also
    --------
    analysis.fit_kernel

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.sample("gaussian(scale=16)", 64, design="quantile")
    >>> best = rfrope.analysis.fit_kernel(omega, 128, names=["gaussian", "cauchy"])[0]
    >>> best.kernel.name, round(best.kernel.scale, 1)
    ('gaussian', 16.0)
    """

    kernel: Kernel
    rms: float
    sup: float
    at_limit: tuple[str, ...] = ()
    design_rms: float = math.nan

    @property
    def label(self) -> str:
        """The kernel's text with parameters to four digits."""
        return re.sub(r"\d+\.\d+(e[+-]?\d+)?", lambda number: f"{float(number[0]):.4g}", repr(self.kernel))

    @property
    def sentence(self) -> str:
        """The kernel, its errors, and parameters at a limit, in words."""
        limits = f" (limit of the search: {', '.join(self.at_limit)})" if self.at_limit else ""
        return f"{self.label}, rms error {self.rms:.2g}, largest {self.sup:.2g}{limits}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON, with the kernel as text."""
        return plain(vars(self) | {"kernel": repr(self.kernel)})


def find_law(frequencies: np.ndarray, n_positions: int) -> KernelFit | None:
    """Return the kernel nearest to the blocks that turn, within a text; None where none does, or below 8 positions.

    Hardly more lags than parameters do not tell the families apart.
    """
    turning = frequencies[frequencies != 0.0]
    return fit_kernel(turning, n_positions - 1)[0] if turning.size and n_positions >= 8 else None


@array.select_device
def fit_kernel(
    frequencies: Array, max_lag: int, *, names: Sequence[str] | None = None, mixtures: bool = False
) -> tuple[KernelFit, ...]:
    """Return the kernels of the registry nearest to the mean kernel of frequencies, best first.

    The first one describes the frequencies in a word, and its `rms` says how far to trust it.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        One set: ``(D,)``, or ``(D, 1)``, with at least one block. Arrays on a device are copied to the host.
    max_lag : int
        Largest lag of the fit, at least 1, in units of position.
    names : sequence of str, optional
        Families to try. Default: see Notes.
    mixtures : bool
        Add the best mixture of two of the families that have one parameter, such as two Gaussian kernels; `names` must
        have such a family.

    Returns
    -------
    tuple of KernelFit
        One for each family, and for the mixture. Errors equal in two significant digits, or below 1e-6, count as equal;
        ties are broken by fewer parameters at a limit, fewer parameters, and the order of the registry.

    Raises
    ------
    ValueError
        If there are several heads or axes (call it for each), there are no blocks, a frequency is NaN or infinite,
        `max_lag` is below 1, or a family is unknown, has only several axes, or parameters unknown to this search.
    TypeError
        If a frequency is not a real number, or `max_lag` not a whole number.

    See Also
    --------
    analysis.KernelFit, bochner.from_function

    Notes
    -----
    Least squares in all parameters, with equal weights for the whole lags from 0 to 256, and 128 in each octave beyond
    up to `max_lag`, so that every scale of a long context counts.

    The search covers lengths from 0.1 to 100 `max_lag` (periods from 2), frequencies from 0.01/`max_lag` to 10, ``nu``
    from 0.05 to 30, ``alpha`` from 0.02 to 100, ``exponent`` from 0.05 to 2 and the scale of a periodic kernel from
    0.05 to 20. It uses SciPy's Nelder-Mead method from the best points of a grid and, for single frequencies and
    periods, of the given list. Equal calls give equal results. Where the error has several minima of almost equal
    depth, as for few frequencies over a long context, another one may be slightly deeper.

    Default families are all of the registry with such parameters, except ``ball``, which in one axis
    is ``sinc``, and ``spectral_mixture``, mixtures and products, which with enough parts represent anything.
    ``gaussian`` and ``exponential`` are also members of ``power_exponential`` and ``matern``.

    Examples
    --------
    Standard RoPE is log-uniform, from one over the base to 1. How clearly depends on the number of blocks: 64 of them
    are off by 0.05, and a stretched exponential fits nearly as well; 512 distinguish the two.

    >>> import rfrope
    >>> for blocks in (64, 512):
    ...     first, second, *_ = fit_kernel(rfrope.geometric(blocks, base=10_000.0), 4096)
    ...     first.kernel.name, round(first.kernel.low, 5), round(first.kernel.high, 2), round(first.rms, 3)
    ...     second.kernel.name, round(second.rms, 3)
    ('log_uniform', 0.00011, 1.05, 0.051)
    ('power_exponential', 0.052)
    ('log_uniform', 0.0001, 1.0, 0.011)
    ('power_exponential', 0.016)
    """
    omega, max_lag = one_set(frequencies), whole("max_lag", max_lag, 1)
    lags = _lags(max_lag)
    curve = _Curve(lags, mean_cos.generic(Angles(lags[:, None], omega[:, None], None, np)))
    tried, sizes = _records(names), np.abs(omega)
    simple = [record for record in tried if len(record.search_ranges) == 1]
    if flag("mixtures", mixtures) and not simple:
        raise ValueError("mixtures is True, but no family in names has one parameter; expected one, as 'gaussian'")
    found = [(_fitted(record, curve, sizes), len(record.search_ranges)) for record in tried]
    if mixtures:
        found.append((_fit_mixture(simple, curve, sizes), 3))
    found.sort(key=lambda one: (float(f"{max(one[0].rms, _EVEN):.1e}"), bool(one[0].at_limit), one[1]))
    return tuple(fit for fit, _ in found)


# -- the search for a kernel -------------------------------------------------------------------------------------------


class _Curve(NamedTuple):
    """Mean kernel at some lags, to which kernels are fitted."""

    lags: np.ndarray
    target: np.ndarray

    def error(self, kernel: Kernel) -> np.ndarray:
        """Difference at each lag."""
        return kernel.phi(self.lags) - self.target


class _Range(NamedTuple):
    """Range in which a parameter is sought: logarithms of its bounds, of values to try, and of a step from each.

    `end` is the value at which the family itself ends, if it does.
    """

    low: float
    high: float
    values: np.ndarray
    steps: np.ndarray
    end: float | None


def _range(sought: SearchRange, points: int, max_lag: int, magnitudes: np.ndarray) -> _Range:
    """Range of a parameter, for frequencies of such magnitudes."""
    low, high = {
        "length": (max(sought.minimum, _TIGHTEST), _WIDEST * max_lag),
        "frequency": (_SLOWEST / max_lag, _FASTEST),
        "shape": (sought.minimum, sought.maximum),
    }[sought.kind]
    points = min(points, _SHAPE_POINTS) if sought.kind == "shape" else points
    values = np.linspace(math.log(low), math.log(high), points)
    step = 0.5 * (values[1] - values[0])
    steps = np.full(len(values), step)
    if sought.single:  # one frequency: the error has as many minima as there are turns in the range
        sign, turn = (-1.0, _TURN) if sought.kind == "length" else (1.0, 0.0)  # of a length to its frequency
        moving = magnitudes[magnitudes > 0.0]
        if moving.size:
            own = turn + sign * np.log(np.quantile(moving, np.linspace(0.0, 1.0, _OWN), method="nearest"))
            values = np.unique(np.concatenate([values, np.clip(own, *np.log((low, high)))]))
        steps = np.minimum(step, _PHASE / (np.exp(turn + sign * values) * max_lag))
    return _Range(math.log(low), math.log(high), values, steps, sought.maximum if sought.ends else None)


def _fitted(record: kernels.Record, curve: _Curve, magnitudes: np.ndarray) -> KernelFit:
    """Return the best kernel of one family: from the best points of a grid, first on some of the lags."""
    few = np.unique(np.linspace(0, curve.lags.size - 1, _COARSE).round().astype(np.int64))
    coarse, searched = _Curve(curve.lags[few], curve.target[few]), record.search_ranges
    points = _POINTS.get(len(searched), _SHAPE_POINTS)
    most = int(curve.lags[-1])
    ranges = {name: _range(one, points, most, magnitudes) for name, one in searched.items() if one is not None}
    search = _Search(record, ranges)
    grid = itertools.product(*(zip(r.values.tolist(), r.steps.tolist(), strict=True) for r in ranges.values()))
    starts = sorted(
        (([x for x, _ in point], np.asarray([step for _, step in point])) for point in grid),
        key=lambda start: search.mean_square(start[0], coarse),
    )
    return _best([(search, *start) for start in starts[:_STARTS]], coarse, curve, magnitudes.size)


def _best(starts: list[tuple[_Search, list[float], np.ndarray]], coarse: _Curve, curve: _Curve, n: int) -> KernelFit:
    """Return the best fit that some points and steps lead to, with its errors, and that of n blocks of its kernel."""
    near = []
    for search, point, steps in starts:
        point = search.refined(point, steps, coarse, 1e-3)
        near.append((search, search.refined(point, 0.1 * steps, curve, 1e-3), 0.01 * steps))
    search, point, steps = min(near, key=lambda one: one[0].mean_square(one[1], curve))
    point = search.refined(point, steps, curve, 1e-9)
    kernel, limits = search.kernel(point, curve), search.limits(point)
    assert kernel is not None  # a search begins with a kernel, and never leaves for a point without one
    error, lags = np.abs(curve.error(kernel)), curve.lags[:, None]
    own = mean_cos.generic(Angles(lags, quantile(kernel, n), None, np)) - kernel.phi(curve.lags)
    rms, own_rms = (math.sqrt(float(np.mean(one**2))) for one in (error, own))
    return KernelFit(kernel, rms, float(np.max(error)), tuple(limits), own_rms)


def _fit_mixture(records: Sequence[kernels.Record], curve: _Curve, magnitudes: np.ndarray) -> KernelFit:
    """Return the best mixture of two kernels with one parameter each: weights in closed form, scales from a grid."""
    few = np.unique(np.linspace(0, curve.lags.size - 1, _COARSE).round().astype(np.int64))
    atoms = []
    for record in records:
        (name, sought), *_ = record.search_ranges.items()
        assert sought is not None  # as `_records` leaves no other
        one = _range(sought, _POINTS[2], int(curve.lags[-1]), magnitudes)
        atoms += [(_Search(record, {name: one}), x, step) for x, step in zip(one.values, one.steps, strict=True)]
    rows = np.stack([search.kernel([x]).phi(curve.lags[few]) for search, x, _ in atoms])  # type: ignore[union-attr]
    rest = rows - curve.target[few]
    first, second = np.triu_indices(len(atoms), 1)
    weight = _best_weight(rest[first], rest[second])
    errors = np.mean((weight * rest[first] + (1.0 - weight) * rest[second]) ** 2, axis=-1)
    starts = []
    for pair in np.argsort(errors, kind="stable")[:_STARTS]:
        (a, x, step), (b, y, other) = (atoms[i] for i in (first[pair], second[pair]))
        starts.append((_Search(a.record, a.ranges, b), [float(x), float(y)], np.asarray([step, other])))
    return _best(starts, _Curve(curve.lags[few], curve.target[few]), curve, magnitudes.size)


def _best_weight(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the weights of the first of two differences, ``(..., 1)``, with which the sum has the least square."""
    gap = second - first
    square = np.sum(gap * gap, axis=-1, keepdims=True)
    best = np.sum(second * gap, axis=-1, keepdims=True) / np.where(square > 0.0, square, 1.0)
    return np.clip(best, _LEAST_WEIGHT, 1.0 - _LEAST_WEIGHT)


class _Search(NamedTuple):
    """Search for the parameters of one family, or of one in a mixture with another, by their logarithms."""

    record: kernels.Record
    ranges: dict[str, _Range]
    other: _Search | None = None

    def all_ranges(self) -> list[tuple[str, _Range]]:
        """Return names and ranges of the parameters."""
        return [*self.ranges.items(), *(self.other.ranges.items() if self.other else ())]

    def limits(self, logarithms: Sequence[float]) -> list[str]:
        """Return the parameters at a limit of their ranges."""
        return [
            name
            for x, (name, r) in zip(logarithms, self.all_ranges(), strict=True)
            if x - r.low < _AT_LIMIT or (r.high - x < _AT_LIMIT and r.end is None)
        ]

    def kernel(self, logarithms: Sequence[float], curve: _Curve | None = None) -> Kernel | None:
        """Return the kernel of the parameters with these logarithms, or None where the family has none.

        A mixture has the weights that are best for a curve.
        """
        if self.other is not None and curve is not None:
            count = len(self.ranges)
            parts = self._replace(other=None).kernel(logarithms[:count]), self.other.kernel(logarithms[count:])
            if parts[0] is None or parts[1] is None:
                return None
            weight = float(f"{_best_weight(*(curve.error(part) for part in parts if part))[0]:.{_DIGITS}g}")
            return kernels.mixture([weight, 1.0 - weight], [part for part in parts if part])
        values = {}
        for x, (name, r) in zip(logarithms, self.ranges.items(), strict=True):
            value = float(f"{math.exp(x):.{_DIGITS}g}")
            values[name] = value if r.end is None else min(value, r.end)
        if "low" in values and not 1.001 * values["low"] < values["high"]:
            return None
        return self.record.factory(**values)

    def mean_square(self, point: Sequence[float], curve: _Curve) -> float:
        """Return the mean square error of the kernel at a point."""
        kernel = self.kernel(point, curve)
        return _NONE if kernel is None else float(np.mean(curve.error(kernel) ** 2))

    def refined(self, point: list[float], steps: np.ndarray, curve: _Curve, tolerance: float) -> list[float]:
        """Return where Nelder-Mead's search leads from a point.

        None of its arithmetic may differ between equal calls, as that of BLAS may.
        """
        from scipy.optimize import minimize

        if not point:
            return point
        ranges = [r for _, r in self.all_ranges()]
        inside = np.asarray(point) + steps <= [r.high for r in ranges]
        simplex = np.vstack([point, point + np.diag(np.where(inside, steps, -steps))])
        found = minimize(
            lambda x: self.mean_square(x.tolist(), curve),
            simplex[0],
            method="Nelder-Mead",
            bounds=[(r.low, r.high) for r in ranges],
            options={"initial_simplex": simplex, "xatol": tolerance, "fatol": 1e-6 * tolerance, "maxfev": _EVALUATIONS},
        )
        return [float(x) for x in found.x]


def _records(names: Sequence[str] | None) -> list[kernels.Record]:
    """Return the families to try; refuse those that cannot be fitted."""
    if names is None:
        return [r for r in kernels.records() if r.name not in _LEFT_OUT and not _obstacle(r)]
    chosen = []
    for name in (names,) if isinstance(names, str) else listed("names", names, "names of kernels"):
        kernels.kernel(name)  # raises an error that lists the known ones
        record = next(r for r in kernels.records() if name in (r.name, *r.aliases))
        if obstacle := _obstacle(record):
            raise ValueError(f"names holds {show(name)}, which has {obstacle}; expected families that can be fitted")
        chosen.append(record)
    return chosen


def _obstacle(record: kernels.Record) -> str:
    """Return why a family cannot be fitted, or ""."""
    if unknown := [name for name, sought in record.search_ranges.items() if sought is None]:
        return f"a parameter {unknown[0]!r} for which no search is known"
    return "" if record.factory().ndim == 1 else "several axes"


def _lags(max_lag: int) -> np.ndarray:
    """Whole lags from 0 to `max_lag`: all small ones, and equally many in each octave beyond."""
    dense = np.arange(min(max_lag, _DENSE) + 1)
    if max_lag <= _DENSE:
        return dense
    number = math.ceil(_PER_OCTAVE * math.log2(max_lag / _DENSE))
    return np.union1d(dense, np.geomspace(_DENSE, max_lag, number + 1).round().astype(np.int64))
