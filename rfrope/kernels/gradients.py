"""The transport as a function of a family's parameters, with gradients.

A `Kernel` holds plain numbers; here parameters may be arrays. A length or frequency that is the unit of a law only
divides or multiplies frequencies; parameters that change the shape of the law have their formulas below, and those
without a differentiable formula are not learned.

nu and alpha move a quantile x of Student's t or of a Gamma law, ``F(x; nu) = u``: the derivative is ``-(dF/dnu) /
F'(x)`` (Figurnov et al., 2018, who have both laws among their examples). x is SciPy's, and the derivative a sum of
exponentials at fixed nodes, which any library differentiates up to three times more; good to about 1e-12 for nu from
0.05 to 200.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array, quantiles
from rfrope._core.arguments import LARGEST
from rfrope._core.array import Array
from rfrope.kernels.base import Kernel

Values = dict[str, Any]  # arrays of one library, by the name of a parameter

_TAIL_GRID = np.arange(-3.6, 7.0, 0.12)  # of t in r = exp(t - exp(-t)), by which tails are integrated
_TAIL_NODES = np.exp(_TAIL_GRID - np.exp(-_TAIL_GRID))
_TAIL_WEIGHTS = 0.12 * _TAIL_NODES * (1.0 + np.exp(-_TAIL_GRID))
_NODES, _WEIGHTS = 0.5 * np.asarray(np.polynomial.legendre.leggauss(14)) + [[0.5], [0.0]]  # of Gauss on (0, 1)
_CENTRE = 3.0  # (nu + 1) y^2 up to which slopes come from an integral from 0 by these
_LARGEST_NARROW = 2.0**120  # where float64 is missing

# factor and parameter that make the index of a law's tail, 1 without a parameter
_TAILS = {"exponential": (1.0, ""), "matern": (2.0, "nu"), "power_exponential": (1.0, "exponent")}


def list_movable(law: Kernel) -> list[str]:
    """Return the parameters of a family in which frequencies are differentiable."""
    unit, shapes = getattr(law, "unit", ""), law.name in _TRANSPORT
    fields = [field.name for field in dataclasses.fields(law)]  # type: ignore[arg-type]
    return [name for name in fields if name == unit or (shapes and name not in ("ndim", "weights"))]


def fix_points(law: Any, host: np.ndarray) -> Callable[[Values, ModuleType], Array]:
    """Return the frequencies ``(..., k)`` of points ``(..., n_columns)`` as a function of all that `list_movable` has.

    Values broadcast against ``(..., 1)``, those of a length or frequency against ``(..., k)``, means and scales of a
    mixture against ``(..., J, k)``: points may have parameters of their own. Those of NumPy may have an imaginary part
    of at most 2**-200 of them, of which frequencies then have their derivative by it: the complex step (Squire and
    Trapp, 1998).
    """
    transport, unit, names = _TRANSPORT.get(law.name), getattr(law, "unit", ""), list_movable(law)
    if transport is None:
        base = dataclasses.replace(law, **{unit: 1.0}) if names else law
        fixed = base._transport(host) if names else base.transport_points(host)  # to be cut once it has its size

    def move(values: Values, xp: ModuleType) -> Array:
        size = values.get(unit)
        if transport is not None:
            vectors = transport(law, host, values, xp)
        else:
            with np.errstate(over="ignore"):
                vectors = _constant(fixed, np.empty(0) if size is None else size, xp)
        if size is None:
            return vectors
        is_length = unit in ("scale", "period")
        most = _LARGEST_NARROW if array.dtype_name(size) == "float32" else LARGEST
        is_cut = xp.abs(vectors / size if is_length else vectors * size) > most
        seen = xp.where(is_cut, xp.zeros_like(vectors), vectors)  # an overflow would make derivatives NaN
        end = xp.full_like(vectors, most)
        return xp.where(is_cut, xp.where(vectors < 0.0, -end, end), seen / size if is_length else seen * size)

    return move


def warn_of_tails(law: Kernel, stacklevel: int) -> None:
    """Warn of laws whose derivatives at single frequencies have no mean or no variance."""
    factor, name = _TAILS.get(law.name, (0.0, ""))
    index = factor * getattr(law, name, 1.0)
    if 0.0 < index <= 2.0 and (name != "exponent" or index < 2.0):
        lacking, meaning = ("mean", "do not converge") if index <= 1.0 else ("variance", "converge slowly")
        warnings.warn(
            f"frequencies of {law.name} have tails of index {index:g}, so derivatives have no {lacking}: gradients "
            f"hold for these points, but estimates for the law {meaning}; expected lighter tails",
            stacklevel=stacklevel,
        )


def _constant(value: Any, like: Array, xp: ModuleType) -> Array:
    return array.from_host(np.asarray(value, np.float64), xp, device=array.device(like), dtype=like.dtype)


# -- the transport -----------------------------------------------------------------------------------------------------


def _move_log_uniform(law: Kernel, u: np.ndarray, values: Values, xp: ModuleType) -> Array:
    low, high = values["low"], values["high"]
    place = _constant(2.0 * u - 1.0, low, xp)
    return xp.sign(place) * low * xp.exp(xp.abs(place) * xp.log1p((high - low) / low))


def _move_power_exponential(law: Kernel, u: np.ndarray, values: Values, xp: ModuleType) -> Array:
    """Kanter's formula, as in ``stable_root`` of the quantiles."""
    like = values["exponent"]
    p = np.maximum(u[..., :1], 1e-30 if array.dtype_name(like) == "float32" else 1e-100)  # derivatives would overflow
    half, w = 0.5 * like, 1.0 - p
    log_sin_p, waiting = np.log(np.sin(math.pi * np.minimum(p, w))), np.log(-np.log1p(-u[..., 1:2]))
    log_sin_p, waiting, p, w = (_constant(one, like, xp) for one in (log_sin_p, waiting, p, w))

    def log_sin(share: Array, other: Array) -> Array:  # of the smaller of an angle and its supplement
        return xp.log(xp.sin(math.pi * xp.where(share < other, share, other)))

    rest = 1.0 - half  # 0 for a Gaussian law, where what it multiplies is infinite
    is_normal = rest <= 0.0
    some = xp.where(is_normal, xp.full_like(rest, 0.5), rest)
    product = some / half * (log_sin(some * p, w + half * p) - waiting)
    product = xp.where(is_normal, -xp.sqrt(xp.where(is_normal, rest, some)), product)  # 0, of infinite slope
    log_s = log_sin(half * p, w + rest * p) - log_sin_p / half + product
    return xp.exp(_cut(0.5 * (math.log(2.0) + log_s), xp)) * _constant(quantiles.normal_quantile(u[..., 2:]), like, xp)


def _move_matern(law: Kernel, u: np.ndarray, values: Values, xp: ModuleType) -> Array:
    """Student's t by its quantile in one axis; in more, the normal law over the root of a Gamma variable."""
    nu = values["nu"]
    if law.ndim == 1:
        y = _student_quantile(nu, np.minimum(u, 1.0 - u), xp)
        return _constant(np.sign(u - 0.5), nu, xp) * xp.sqrt(2.0 * nu) * xp.sinh(_cut(y, xp))
    radius = xp.exp(0.5 * (xp.log(nu) + _cut(-_log_gamma_quantile(nu, u[..., :1], xp), xp)))
    return radius * _constant(quantiles.normal_quantile(u[..., 1:]), nu, xp)


def _move_rational_quadratic(law: Kernel, u: np.ndarray, values: Values, xp: ModuleType) -> Array:
    alpha = values["alpha"]
    radius = xp.exp(0.5 * (_log_gamma_quantile(alpha, u[..., :1], xp) - xp.log(alpha)))
    return radius * _constant(quantiles.normal_quantile(u[..., 1:]), alpha, xp)


def _cut(x: Array, xp: ModuleType) -> Array:
    """Bound numbers, and their derivatives, before their exponential overflows."""
    most = -math.log(float(xp.finfo(x.dtype).smallest_normal))
    return xp.where(x > most, xp.full_like(x, most), x)


def _student_quantile(nu: Array, p: np.ndarray, xp: ModuleType) -> Array:
    """Return y >= 0 with the tail p <= 1/2, Student's t with 2 nu degrees of freedom being ``sqrt(2 nu) sinh(y)``.

    The density of y is proportional to ``cosh(y)^(-2 nu)``. Near the median the integral is that from 0 to y.
    """
    from scipy.special import betaincinv

    def find(own: np.ndarray) -> np.ndarray:
        share = np.maximum(betaincinv(own, 0.5, 2.0 * p), np.finfo(np.float64).tiny)
        rest = betaincinv(0.5, own, 1.0 - 2.0 * p, where=p >= 0.25, out=np.asarray(1.0 - share))
        return np.arcsinh(np.sqrt(rest / share))

    def log_cosh(y: Array) -> Array:
        return y + xp.log1p(0.5 * xp.expm1(-2.0 * y))

    def slope(own: Array, y: Array) -> Array:
        nodes, weights = (_constant(one, y, xp) for one in (_NODES, _WEIGHTS))
        is_near, size, above = (own + 1.0) * y * y < _CENTRE, 1.0 / (own + xp.sqrt(own)), log_cosh(y)
        tail = size[..., None] * _constant(_TAIL_NODES, y, xp)
        rises = log_cosh(tail), log_cosh(y[..., None] + tail) - above[..., None]
        (_, mean_rise), (length, mean) = (_tail_and_mean(-2.0 * own[..., None] * one, one, size, xp) for one in rises)
        by_nu = 2.0 * mean_rise  # the difference of digamma functions at nu + 1/2 and nu, with more digits
        near = xp.where(is_near, y, xp.zeros_like(y))[..., None]
        height = log_cosh(near * nodes)
        parts = weights * xp.exp(2.0 * own[..., None] * (log_cosh(near) - height)) * (2.0 * height - by_nu[..., None])
        return xp.where(is_near, near[..., 0] * xp.sum(parts, axis=-1), length * (by_nu - 2.0 * (mean + above)))

    return _follow(nu, p, find, slope, xp)


def _log_gamma_quantile(shape: Array, u: np.ndarray, xp: ModuleType) -> Array:
    """Return the logarithm s of quantiles of a Gamma law with rate 1: of a density like ``exp(shape s - exp(s))``."""
    from scipy.special import gammainccinv, gammaincinv, gammaln, polygamma

    def find(own: np.ndarray) -> np.ndarray:
        quantile = np.where(u < 0.5, gammaincinv(own, u), gammainccinv(own, 1.0 - u))
        with np.errstate(divide="ignore"):  # below all floats a bound of the quantile is the quantile
            return np.maximum(np.log(quantile), (np.log(u) + gammaln(own + 1.0)) / own)

    still = _detach(shape)
    orders = range(1 if isinstance(shape, np.ndarray) else 4)  # of the series of digamma
    psi = [array.map_on_host(partial(polygamma, n), still, xp, "nu or alpha") / math.factorial(n) for n in orders]

    def slope(own: Array, s: Array) -> Array:
        a, x = own[..., None], xp.exp(s)[..., None]
        is_below = x < a
        size = 1.0 / (xp.where(is_below, a, x - a) + xp.sqrt(a))
        r = size * _constant(_TAIL_NODES, s, xp)
        power = xp.where(is_below, -r, xp.log1p(r))
        exponent = xp.where(is_below, a, a - 1.0) * power - x * xp.where(is_below, xp.expm1(-r), r)
        length, mean = _tail_and_mean(exponent, power, size[..., 0], xp)
        length = xp.where(is_below[..., 0], -length, length)
        digamma = psi[-1]
        for other in psi[-2::-1]:
            digamma = other + (own - still) * digamma
        return length * (s + mean - digamma)

    return _follow(shape, u, find, slope, xp)


def _detach(value: Array) -> Array:
    """Return a parameter without derivatives, and NumPy's without its imaginary part."""
    return value.real if isinstance(value, np.ndarray) else array.library(value).detach_as_int16(value)


def _follow(value: Array, u: np.ndarray, find: Any, slope: Callable[[Array, Array], Array], xp: ModuleType) -> Array:
    """Return the quantiles of points that `find` has on the host, moved along their slope ``dx/dvalue``.

    The step is of length 0: by the classical Runge-Kutta method it has the first four derivatives.
    """
    still = _detach(value)
    if isinstance(value, np.ndarray):
        root = find(still)
        return root + slope(still, root) * (value - still)
    shape = np.broadcast_shapes(tuple(value.shape), u.shape)
    root = array.map_on_host(find, xp.broadcast_to(still, shape), xp, "nu or alpha")
    step = value - still
    one = slope(still, root)
    two = slope(still + 0.5 * step, root + 0.5 * step * one)
    three = slope(still + 0.5 * step, root + 0.5 * step * two)
    return root + step / 6.0 * (one + 2.0 * (two + three) + slope(still + step, root + step * three))


def _tail_and_mean(exponent: Array, values: Array, size: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Return the integral of ``exp(exponent)`` over nodes scaled by `size`, and the mean of values with this weight."""
    weights = _constant(_TAIL_WEIGHTS, size, xp) * xp.exp(exponent)
    total = xp.sum(weights, axis=-1)
    return size * total, xp.sum(weights * values, axis=-1) / total


def _move_spectral_mixture(law: Any, u: np.ndarray, values: Values, xp: ModuleType) -> Array:
    means, scales = values["means"], values["scales"]
    chosen = np.searchsorted(np.cumsum(law.weights)[:-1], np.abs(2.0 * u[..., 0] - 1.0), side="right")
    one = _constant(np.arange(len(law.weights)) == chosen[..., None], means, xp)
    sign = _constant(np.where(u[..., :1] > 0.5, 1.0, -1.0), means, xp)
    z = _constant(quantiles.normal_quantile(u[..., 1:]), means, xp)
    mean, scale = (xp.matmul(one[..., None, :], each)[..., 0, :] for each in (means, scales))
    return sign * mean + scale * z


_TRANSPORT: dict[str, Callable[..., Array]] = {
    "log_uniform": _move_log_uniform,
    "matern": _move_matern,
    "power_exponential": _move_power_exponential,
    "rational_quadratic": _move_rational_quadratic,
    "spectral_mixture": _move_spectral_mixture,
}
