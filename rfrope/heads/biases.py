"""Score biases of relatives of RoPE, and the kernels that they correspond to."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rfrope._core import array
from rfrope._core.angles import read_numbers
from rfrope._core.arguments import choice, finite, flag, show, whole
from rfrope._core.array import Array

FORMS = ("power", "log")


@array.select_device
def lag_bias(lags: Array, weight: Array, *, shape: Array = 1.0, form: str = "power") -> Array:
    """Return the bias of ALiBi, ``-weight |lag|``, or KERPLE, to add to the score ``q . k / sqrt(d)``.

    Parameters
    ----------
    lags : array_like, in units of position
        Key minus query, any shape.
    weight : float or array_like
        KERPLE's r1, nonnegative; ALiBi's slope, ``2 ** (-8 h / H)`` for head h = 1, ..., H if H is a power of two.
        Broadcasts against the lags.
    shape : float or array_like
        KERPLE's r2: the exponent of "power", above 0 and at most 2; the factor of "log", positive.
    form : {"power", "log"}
        ``-weight |lag| ** shape``, or ``-weight log(1 + shape |lag|)``.

    Returns
    -------
    array
        Broadcast shape of the arguments; float64 where the library has it. Gradients reach all of them.

    Raises
    ------
    ValueError
        If a number is out of range (checked where that is free), or the form is unknown.
    TypeError
        If a value is not a real number.

    See Also
    --------
    kernel : makes the kernels named below.
    heads.t5_bias, heads.fire_bias : learned biases.

    Notes
    -----
    The bias is 0 at 0 and negative elsewhere, so it is not a kernel, only conditionally positive definite (Chi et al.,
    2022). After softmax a weight is ``exp(q . k / sqrt(d)) exp(bias)``, and ``exp(bias)`` is a kernel by Schoenberg's
    theorem:

    - ALiBi: ``exp(-m |lag|)``, the kernel ``exponential(scale=1/m)``;
    - "power": ``exp(-(|lag| / l) ** shape)``, ``power_exponential(exponent=shape, scale=weight ** (-1 / shape))``;
    - "log": ``(1 + shape |lag|) ** -weight``, a mixture of exponentials whose rates over `shape` follow a gamma law
      with exponent `weight`.

    So a head decays with distance whatever its contents are: scores are exact functions of ``q . k`` and the lag, but
    contents cannot select a distance. Engines have their own switches for ALiBi. Source: Press et al. (2022); Chi et
    al. (2022).

    Examples
    --------
    >>> lag_bias([0, -1, -8], 0.5)
    array([-0. , -0.5, -4. ])
    >>> lag_bias([0, -1, -8], 0.5, shape=3.0, form="log").round(4)
    array([-0.    , -0.6931, -1.6094])
    """
    choice("form", form, FORMS)
    named = {"lags": lags, "weight": weight, "shape": shape}
    xp, device = array.shared(named)
    read = _read_numbers(named, ("weight", "shape"), xp, device)
    lags, weight, shape = read.values()
    if not _holds(weight >= 0.0, xp):
        raise ValueError(f"weight is {show(weight)}; expected numbers of 0 or more")
    if not (_holds(shape > 0.0, xp) and (form == "log" or _holds(shape <= 2.0, xp))):
        bound = "positive numbers up to 2" if form == "power" else "positive numbers"
        raise ValueError(f"shape is {show(shape)}; expected {bound}")
    made = array.broadcast_shapes({name: tuple(getattr(value, "shape", ())) for name, value in read.items()})
    array.check_memory(40.0, made, lags, "lags, weight or shape")
    distance = xp.abs(lags)
    if form == "log":
        return -weight * xp.log1p(shape * distance)
    apart = distance > 0.0  # whose logarithm has a slope
    power = xp.exp(shape * xp.log(xp.where(apart, distance, xp.ones_like(distance))))
    return -weight * xp.where(apart, power, xp.zeros_like(power))


@array.select_device
def t5_bias(lags: Array, table: Array, *, max_distance: int = 128, bidirectional: bool = False) -> Array:
    """Return the learned bias of T5, one number per bucket of lags, to add to the score ``q . k``.

    Parameters
    ----------
    lags : array_like of integers
        Key minus query, any shape ``P``.
    table : array_like, (..., n_buckets)
        Bias of each bucket, for each head; at least 2 buckets, and an even number of at least 4 if `bidirectional`.
    max_distance : int
        Distance from which on all lags share a bucket; above the number of buckets.
    bidirectional : bool
        Whether keys after the query use the second half of the buckets, as in encoders. Otherwise they share the bucket
        of lag 0, as in decoders, where they are masked.

    Returns
    -------
    array
        ``(..., *P)``, in the dtype of the table, with gradients.

    Raises
    ------
    ValueError
        If the number of buckets or the distance is not as described above.
    TypeError
        If lags are not integers, or the table is not real floating.

    See Also
    --------
    heads.lag_bias : biases with a formula.

    Notes
    -----
    Half of the buckets are single lags, the others grow geometrically up to `max_distance`. A table may be any function
    of the bucket, so ``exp(bias)`` need not be a kernel: it may grow with distance, or not be even. Scores are T5's
    ``q . k`` without ``1 / sqrt(d)``. Source: Raffel et al. (2020).

    Examples
    --------
    >>> t5_bias([0, -1, -2, -3, -9, 1], [0.0, -1.0, -2.0, -3.0], max_distance=8)
    array([ 0., -1., -2., -2., -3.,  0.])
    """
    most, bidirectional = whole("max_distance", max_distance, 1), flag("bidirectional", bidirectional)
    xp, device = array.shared({"lags": lags}, table=table)
    table = array.numbers(table, xp, name="table", device=device)
    lags = array.numbers(lags, xp, name="lags", device=array.device(table))
    if not array.is_real_floating(table) or table.ndim == 0 or not array.is_integer(lags):
        raise TypeError(
            f"table has dtype {array.dtype_name(table)} and shape {tuple(table.shape)}, lags {array.dtype_name(lags)}; "
            "expected real floating numbers (..., n_buckets), and integers"
        )
    n = table.shape[-1] // 2 if bidirectional else table.shape[-1]
    if n < 2 or n >= most or (bidirectional and table.shape[-1] % 2):
        raise ValueError(
            f"table has {table.shape[-1]} buckets and max_distance is {most}; expected at least 2 (or an even number "
            "of at least 4 if bidirectional), and a larger distance"
        )
    array.check_memory(16.0, (*table.shape[:-1], *lags.shape), table, "lags or table")
    lags, shape = xp.reshape(lags, (-1,)), lags.shape
    if not array.dtype_name(lags).endswith(("32", "64")):  # whose least number has no magnitude, or buckets do not fit
        lags = array.astype(lags, xp.int32, xp)
    distance = xp.abs(lags) if bidirectional else xp.where(lags < 0, -lags, xp.zeros_like(lags))
    found = _find_buckets(distance, n, most, xp)
    if bidirectional:
        found = found + xp.where(lags > 0, xp.full_like(found, n), xp.zeros_like(found))
    return xp.reshape(xp.take(table, found, axis=-1), (*table.shape[:-1], *shape))


@array.select_device
def fire_bias(
    q_positions: Array, k_positions: Array, function: Callable[[Array], Array], *, c: Array, threshold: Array
) -> Array:
    """Return the bias of FIRE: a learned function of the lag relative to the query's position.

    Parameters
    ----------
    q_positions, k_positions : array_like
        ``(M,)`` and ``(N,)``; 0 or more.
    function : callable
        Maps shares in [0, 1], ``(M, N)``, to the bias: a small network in the published models.
    c : float or array_like
        A positive number, which spreads near distances: shares use ``log(1 + c x)``.
    threshold : float or array_like
        A positive number; queries before this position use it in place of their own.

    Returns
    -------
    array
        The function's value at ``log(1 + c (m - n)) / log(1 + c max(m, threshold))``; keys after the query count as its
        own. Gradients reach positions, c and threshold.

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described above.

    See Also
    --------
    heads.lag_bias : a bias of the lag alone.
    analysis.toeplitz_defect : the distance from a function of the lag.

    Notes
    -----
    Up to the threshold it is a function of the lag, and with ``-r1 x`` KERPLE's logarithm. Beyond, each query sees
    another share at the same lag (`analysis.toeplitz_defect`), so there is no kernel. Source: Li et al. (2024), who
    learn c and the threshold.

    Examples
    --------
    >>> fire_bias([4, 8], [4, 2], lambda share: -share, c=1.0, threshold=4).round(4)
    array([[-0.    , -0.6826],
           [-0.7325, -0.8856]])
    """
    if not callable(function):
        raise TypeError(f"function is {show(function)}; expected a function of shares")
    named = {"q_positions": q_positions, "k_positions": k_positions, "c": c, "threshold": threshold}
    xp, device = array.shared(named)
    read = _read_numbers(named, ("c", "threshold"), xp, device)
    for name, axes in (("q_positions", 1), ("k_positions", 1), ("c", 0), ("threshold", 0)):
        shape = tuple(getattr(read[name], "shape", ()))
        if len(shape) != axes:
            wanted = "one position each, of one axis" if axes else "one number"
            raise ValueError(f"{name} has shape {shape}; expected {wanted}")
        if not axes and not _holds(read[name] > 0.0, xp):
            raise ValueError(f"{name} is {show(named[name])}; expected a positive number")
        if axes and not _holds(read[name] >= 0.0, xp):
            raise ValueError(f"{name} holds negative positions; expected 0 or more")
    rows, columns, c, threshold = read.values()
    array.check_memory(48.0, (rows.shape[0], columns.shape[0]), rows, "q_positions or k_positions")
    queries, keys = rows[:, None], columns[None, :]
    past = xp.where(queries > keys, queries - keys, xp.zeros_like(queries - keys))
    whole_past = xp.where(queries > threshold, queries, xp.zeros_like(queries) + threshold)
    return function(xp.log1p(c * past) / xp.log1p(c * whole_past))


# -- the mathematics ---------------------------------------------------------------------------------------------------


def _read_numbers(named: dict[str, Any], plain: tuple[str, ...], xp: ModuleType, device: Any) -> dict[str, Any]:
    """Read arguments as finite arrays in the widest float; some of them may be plain numbers, and stay these."""
    return {
        name: finite(name, value)
        if name in plain and type(value) in (int, float)
        else read_numbers(name, value, xp, device)
        for name, value in named.items()
    }


def _holds(condition: Any, xp: ModuleType) -> bool:
    """Return whether a condition holds everywhere, as far as looking costs nothing."""
    return condition if type(condition) is bool else not array.has_host_values(condition) or bool(xp.all(condition))


def _find_buckets(distance: Array, n: int, most: int, xp: ModuleType) -> Array:
    """Buckets of distances, by logarithms of float32 as in the published code."""
    exact = n // 2
    near = distance < exact
    far = array.astype(xp.where(near, xp.full_like(distance, exact), distance), xp.float32, xp)
    steps = xp.floor(xp.log(far / exact) / math.log(most / exact) * (n - exact))
    steps = xp.where(steps < n - 1 - exact, steps, xp.full_like(steps, n - 1 - exact))
    return xp.where(near, distance, exact + array.astype(steps, distance.dtype, xp))
