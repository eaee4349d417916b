"""Phi and the transport as functions of a family's parameters, with gradients.

A `Kernel` holds plain numbers; here parameters may be arrays. A length or frequency that is the unit of a law only
divides lags or multiplies frequencies. Parameters that change the shape of the law have their formulas below; those
without a differentiable formula are refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, quantiles
from rfrope._core.array import Array
from rfrope._core.special import log_uniform_mean_cos
from rfrope.kernels import parameters
from rfrope.kernels.base import Kernel
from rfrope.kernels.isotropic import Family, Scaled
from rfrope.kernels.text import read_kernel

Values = dict[str, Any]  # arrays of one library, by the name of a parameter

_STEP, _FIRST, _LAST = 0.125, -64.0, 6.0  # grid of the logarithm of a Gamma variable, good for nu from 0.05 to 32


@array.select_device
def evaluate_phi(lags: Array, kernel: Kernel | str, **values: Array) -> Array:
    """Return Phi of a kernel's family, with some parameters given as arrays that gradients reach.

    Parameters
    ----------
    lags : array_like, in units of position
        Any shape for ndim = 1, ``(..., ndim)`` otherwise.
    kernel : Kernel or str
        A family of the registry, with its other parameters; a string is read by `rfrope.kernels.parse`.
    **values : array_like
        Parameters by name, usually tensors that require gradients: single numbers, or ``(ndim,)`` for a length or
        frequency of each axis; ``(J,)`` for the weights of a ``spectral_mixture``, ``(J, ndim)`` or, in one axis,
        ``(J,)`` for its means and scales.

    Returns
    -------
    array, float64 where the library has it
        See `Kernel.phi`, which it matches to about 1e-13 for equal numbers.

    Raises
    ------
    ValueError
        If the kernel is not a single family (multiply or mix the values of its parts), has no such parameter, or a
        value has another shape.
    TypeError
        If a value is not a real number, or arrays are of several libraries.

    See Also
    --------
    kernels.transport_points, kernel

    Notes
    -----
    For Matern with nu among the values, Phi is the mean of a Gaussian kernel over a Gamma variable g of shape nu and
    rate 1, ``Phi = E exp(-nu t^2 / (2 g))``. ``nu (1 - Phi)`` is integrated by parts and summed over a grid of
    ``log g``, which converges exponentially: to about 1e-13 for nu from 0.05 to 32, at lags above 1e-12 of the scale.
    Values are not checked to be positive, so traced arrays are accepted.

    Examples
    --------
    >>> import numpy as np
    >>> evaluate_phi([0.0, 32.0], "gaussian", scale=np.asarray(32.0)).round(4)
    array([1.    , 0.6065])
    >>> evaluate_phi([16.0], "matern(scale=16)", nu=np.asarray(1.5)).round(4)
    array([0.4834])
    """
    law = _family(kernel, values)
    xp, vectors, values = _read(law, lags, values)
    law, vectors = _take_unit(law, vectors, values, xp, of_lags=True)
    formula = _PHI.get(law.name)
    if formula is None or not values:
        return law.phi_of_vectors(vectors, xp)
    array.check_memory(128.0, vectors.shape, vectors, "lags")
    return formula(law, vectors, _complete(law, values, vectors, xp), xp)


@array.select_device
def transport_points(points: Array, kernel: Kernel | str, **values: Array) -> Array:
    """Return frequencies of points of the unit cube, with some parameters given as arrays that gradients reach.

    Parameters
    ----------
    points : array_like, in (0, 1)
        ``(..., n_columns)``: points of `rfrope.designs.points`, fixed while parameters are learned. Read on the host.
    kernel : Kernel or str
        A family of the registry, as in `rfrope.kernels.evaluate_phi`.
    **values : array_like
        See `rfrope.kernels.evaluate_phi`.

    Returns
    -------
    array, radians per unit of position, float64 where the library has it
        ``(...)`` for one axis, ``(..., ndim)`` for more, in the library of the values.

    Raises
    ------
    ValueError
        See `rfrope.kernels.evaluate_phi` and, for points, `Kernel.transport`. Also for parameters in which frequencies
        are not differentiable here: nu and alpha, whose quantile functions have no such form, and the weights of a
        mixture or the scale of a periodic kernel, which choose among whole numbers.
    TypeError
        See `rfrope.kernels.evaluate_phi`.

    See Also
    --------
    kernels.evaluate_phi, sample

    Notes
    -----
    At fixed points a frequency is a smooth function of the parameters. This is ``sample`` with these points, and its
    derivative is an unbiased estimate of the derivative of any mean over the law.

    Examples
    --------
    >>> import numpy as np
    >>> import rfrope
    >>> from rfrope.designs import points
    >>> u = points("gaussian", 4, rng=0)
    >>> there = transport_points(u, "gaussian", scale=np.asarray(32.0))
    >>> bool(np.array_equal(there, np.asarray(rfrope.sample("gaussian(scale=32)", 4, design="stratified", rng=0))))
    True
    """
    law = _family(kernel, values)
    xp, device = array.shared(**values) if values else (np, None)
    fixed = _FIXED.get(law.name, ())
    for name in values:
        if name in fixed:
            able = [f.name for f in _fields(law) if f.name not in fixed]
            raise ValueError(
                f"{name} of {law.name} has no transport that can be differentiated; expected {_listed(able)}, or "
                "evaluate_phi, whose gradients reach it"
            )
    host = angles.numbers_on_host(points, "points").astype(np.float64)
    if law.n_columns == 1 and (host.ndim == 0 or host.shape[-1] != 1):
        host = host[..., None]
    if host.ndim == 0 or host.shape[-1] != law.n_columns or not np.all((host > 0.0) & (host < 1.0)):
        raise ValueError(f"points has shape {host.shape}; expected (..., {law.n_columns}), inside the unit cube")
    values = _read_values(law, values, xp, device)
    like = next(iter(values.values()), np.empty(0))
    formula = _TRANSPORT.get(law.name)
    bent = {name: value for name, value in values.items() if name != getattr(law, "unit", None)}
    if formula is not None and bent:
        base = _take_unit(law, None, {getattr(law, "unit", ""): 1.0}, xp, of_lags=True)[0]
        vectors = formula(base, host, _complete(base, bent, like, xp), xp)
        if isinstance(law, Scaled) and law.unit not in values:
            values[law.unit] = _constant(law._unit, like, xp)
    else:
        base = _take_unit(law, None, dict(values), xp, of_lags=False)[0]
        vectors = array.from_host(base.transport_points(host), xp, device=array.device(like), dtype=like.dtype)
    return law.restore_shape(_take_unit(law, vectors, values, xp, of_lags=False)[1])


# -- reading -----------------------------------------------------------------------------------------------------------


def _fields(law: Kernel) -> list[Any]:
    return [f for f in dataclasses.fields(law) if f.name != "ndim"]  # type: ignore[arg-type]


def _listed(names: list[str]) -> str:
    return " or ".join(map(repr, names)) if names else "no parameter"


def _family(kernel: Any, values: Values) -> Kernel:
    law = read_kernel(kernel)
    if not isinstance(law, Family):
        raise ValueError(f"kernel is {law!r}, which is not one family; expected one, such as 'gaussian'")
    known = [f.name for f in _fields(law)]
    for name in values:
        if name not in known:
            raise ValueError(f"{law.name} has no parameter {name!r}; expected {_listed(known)}")
    return law


def _read(law: Kernel, lags: Any, values: Values) -> tuple[ModuleType, Array, Values]:
    xp, device = array.shared({"lags": lags}, **values) if values else array.shared(lags=lags)
    vectors = angles.checked_lags(lags, law.ndim, xp, device, "lags", law)
    return xp, vectors, _read_values(law, values, xp, device)


def _read_values(law: Kernel, values: Values, xp: ModuleType, device: Any) -> Values:
    read = {name: array.widen(array.numbers(v, xp, name=name, device=device), xp) for name, v in values.items()}
    for name, value in read.items():
        fits = ((), (1,), (law.ndim,)) if law.name != "spectral_mixture" else (value.shape,)
        if tuple(value.shape) not in fits:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected one number, or ({law.ndim},)")
    return read


def _take_unit(law: Kernel, vectors: Any, values: Values, xp: ModuleType, *, of_lags: bool) -> tuple[Kernel, Any]:
    """Take the unit out of the law, and lags or frequencies into it; what is left of the values bends the law."""
    unit = law.unit if isinstance(law, Scaled) else "period" if law.name == "periodic" else None
    if unit is None or unit not in values:
        return law, vectors
    size = values.pop(unit) if of_lags else values[unit]
    law = dataclasses.replace(law, **{unit: 1.0})  # type: ignore[type-var]
    if vectors is None:
        return law, None
    return law, vectors / size if (unit in ("scale", "period")) else vectors * size


def _constant(value: Any, like: Array, xp: ModuleType) -> Array:
    host = np.asarray(value, dtype=np.float64)
    return array.from_host(host, xp, device=array.device(like), dtype=like.dtype)


def _complete(law: Kernel, values: Values, like: Array, xp: ModuleType) -> Values:
    """All parameters as arrays."""
    return {f.name: values.get(f.name, _constant(getattr(law, f.name), like, xp)) for f in _fields(law)}


# -- Phi ---------------------------------------------------------------------------------------------------------------


def _square(law: Kernel, lags: Array, values: Values, xp: ModuleType) -> Array:
    return parameters.square(lags / values["scale"], xp)


def _matern(law: Kernel, lags: Array, values: Values, xp: ModuleType) -> Array:
    nu, square = values["nu"], _square(law, lags, values, xp)
    log_g = _constant(np.arange(_FIRST, _LAST, _STEP), square, xp)
    c = (0.5 * nu * square)[..., None] * xp.exp(-log_g)  # the exponent of the Gaussian kernel
    weight = xp.exp(nu * log_g - xp.exp(log_g))
    gone = -xp.expm1(-c)  # what of it is gone
    by_parts = weight * (xp.exp(log_g) * gone + c * (1.0 - gone))
    return 1.0 - xp.sum(by_parts, axis=-1) / xp.sum(weight * xp.exp(log_g))


def _rational_quadratic(law: Kernel, lags: Array, values: Values, xp: ModuleType) -> Array:
    alpha = values["alpha"]
    return xp.exp(-alpha * xp.log1p(_square(law, lags, values, xp) / (2.0 * alpha)))


def _power_exponential(law: Kernel, lags: Array, values: Values, xp: ModuleType) -> Array:
    square = _square(law, lags, values, xp)
    zero = square == 0.0
    power = xp.exp(0.5 * values["exponent"] * xp.log(xp.where(zero, xp.ones_like(square), square)))
    return xp.exp(-xp.where(zero, xp.zeros_like(power), power))


def _log_uniform(law: Kernel, lags: Array, values: Values, xp: ModuleType) -> Array:
    x, (low, high) = xp.abs(lags[..., 0]), (values[name] for name in ("low", "high"))
    return log_uniform_mean_cos(low * x, high * x, xp.log(high / low), xp)


def _periodic(law: Any, lags: Array, values: Values, xp: ModuleType) -> Array:
    sine = xp.sin(math.pi * lags[..., 0] / values["period"]) / values["scale"]
    return xp.exp(-2.0 * sine * sine)


def _spectral_mixture(law: Kernel, lags: Array, values: Values, xp: ModuleType) -> Array:
    weights, means, scales = _components(law, values, xp)
    spread = xp.sum((lags[..., None, :] * scales) ** 2, axis=-1)
    return xp.sum(weights * xp.exp(-0.5 * spread) * xp.cos(xp.sum(lags[..., None, :] * means, axis=-1)), axis=-1)


def _components(law: Kernel, values: Values, xp: ModuleType) -> tuple[Array, Array, Array]:
    weights = values["weights"]
    each = []
    for name in ("means", "scales"):
        value = values[name][:, None] if values[name].ndim == 1 else values[name]
        if tuple(value.shape) not in ((weights.shape[0], 1), (weights.shape[0], law.ndim)):
            raise ValueError(f"{name} has shape {tuple(values[name].shape)}; expected ({weights.shape[0]}, {law.ndim})")
        each.append(xp.broadcast_to(value, (weights.shape[0], law.ndim)))
    return weights, each[0], each[1]


_PHI: dict[str, Callable[..., Array]] = {
    "matern": _matern,
    "rational_quadratic": _rational_quadratic,
    "power_exponential": _power_exponential,
    "log_uniform": _log_uniform,
    "periodic": _periodic,
    "spectral_mixture": _spectral_mixture,
}


# -- the transport -----------------------------------------------------------------------------------------------------


def _move_log_uniform(law: Kernel, u: np.ndarray, values: Values, xp: ModuleType) -> Array:
    place = _constant(2.0 * u - 1.0, values["low"], xp)
    size = xp.exp(xp.log(values["low"]) + xp.abs(place) * xp.log(values["high"] / values["low"]))
    return xp.sign(place) * size


def _move_power_exponential(law: Kernel, u: np.ndarray, values: Values, xp: ModuleType) -> Array:
    """Kanter's formula, as in ``stable_root`` of the quantiles."""
    half, like = 0.5 * values["exponent"], values["exponent"]
    p, waiting = _constant(u[..., :1], like, xp), _constant(np.log(-np.log1p(-u[..., 1:2])), like, xp)
    log_s = xp.log(xp.sin(math.pi * half * p)) - xp.log(_constant(np.sin(math.pi * u[..., :1]), like, xp)) / half
    rest = 1.0 - half  # 0 for a Gaussian law, where what it multiplies is infinite
    inner = xp.log(xp.sin(math.pi * xp.where(rest > 0.0, rest, xp.full_like(rest, 0.5)) * p)) - waiting
    log_s = log_s + rest / half * inner
    return xp.exp(0.5 * (math.log(2.0) + log_s)) * _constant(quantiles.normal_quantile(u[..., 2:]), like, xp)


def _move_spectral_mixture(law: Any, u: np.ndarray, values: Values, xp: ModuleType) -> Array:
    _, means, scales = _components(law, values, xp)
    chosen = np.searchsorted(np.cumsum(law.weights)[:-1], np.abs(2.0 * u[..., 0] - 1.0), side="right")
    one = _constant(np.arange(len(law.weights)) == chosen[..., None], means, xp)
    sign = _constant(np.where(u[..., :1] > 0.5, 1.0, -1.0), means, xp)
    z = _constant(quantiles.normal_quantile(u[..., 1:]), means, xp)
    return sign * xp.matmul(one, means) + xp.matmul(one, scales) * z


_TRANSPORT: dict[str, Callable[..., Array]] = {
    "log_uniform": _move_log_uniform,
    "power_exponential": _move_power_exponential,
    "spectral_mixture": _move_spectral_mixture,
}
_FIXED = {
    "matern": ("nu",),
    "rational_quadratic": ("alpha",),
    "periodic": ("scale",),
    "spectral_mixture": ("weights",),
}
