"""The offset that a head prefers, read from its weights alone or with the mean of its input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rfrope._core import angles, array, sums
from rfrope._core.arguments import LARGEST, positive
from rfrope._core.array import Array
from rfrope._core.blocks import check_pairing, check_width, halves
from rfrope._core.results import Result
from rfrope._core.sums import Waves
from rfrope.heads.offsets import bring_to_host, lag_range, one_axis, read_waves, stack_fields
from rfrope.heads.peaks import angles_at

_ROUNDED = 1e-6  # part of the largest eigenvalue that float32 may leave of asymmetry, and of eigenvalues that are 0


@dataclass(frozen=True, eq=False)
class WeightOffset(Result):
    """The lag that a head's weights prefer; see `offset_from_weights`.

    NumPy arrays of the shape of the leading axes of the weights, those of the blocks with an axis ``(D,)`` more.

    Attributes
    ----------
    offset : ndarray, in units of position
        Real lag, KEY minus QUERY, at which the expected score peaks.
    confidence : ndarray
        From 0 to 1: at least so likely is it that blocks with random angles would not make any whole lag of the range
        stand out as much.
    value : ndarray
        Expected score at the offset, with the scale.
    runner_up, runner_up_value : ndarray
        Where the next local maximum is, and how high; NaN if there is none.
    lag : ndarray of int
        The whole lag with the highest expected score.
    mass : ndarray
        Attention that position alone puts on `lag`: the softmax of the expected scores at all whole lags of the range.
    angle : ndarray, (..., D), radians
        By how much the key's side of each block is turned against the query's, between -pi and pi: the block's learned
        shift. Its part of the score is ``weight cos(u + angle)``.
    weight : ndarray, (..., D)
        Amplitude of each block's part, not negative, with the scale.
    quality : ndarray, (..., D)
        How much of the key's rows of each block is the query's rows, turned by `angle` and stretched: from 0, nothing,
        to 1, all. 0 where one of them vanishes.
    """

    offset: np.ndarray
    confidence: np.ndarray
    value: np.ndarray
    runner_up: np.ndarray
    runner_up_value: np.ndarray
    lag: np.ndarray
    mass: np.ndarray
    angle: np.ndarray
    weight: np.ndarray
    quality: np.ndarray


@array.select_device
def offset_from_weights(
    w_q: Array,
    w_k: Array,
    frequencies: Array,
    *,
    max_lag: int,
    mean: Array | None = None,
    second_moment: Array | None = None,
    pairing: str = "half",
    causal: bool = True,
    scale: float | None = None,
) -> WeightOffset:
    """Lag that a head prefers by position, from its weights alone or with what is known of its input.

    Parameters
    ----------
    w_q, w_k : array_like, (..., d, d_model)
        Weights of one head, or with leading axes that broadcast of several: queries are ``w_q @ x`` and keys
        ``w_k @ x``, before rotation. d is even and at least 2D. In Hugging Face models head h has the rows
        ``[h * d : (h + 1) * d]`` of ``q_proj.weight``, and x comes out of the layer's norm, its gain included. A bias
        is one more column, for a feature of x that is 1. Heads with a norm of their own on q and k are not linear.
    frequencies : array_like, radians per position
        One set: ``(D,)`` or ``(D, 1)``.
    max_lag : int
        Furthest lag that is looked at, at least 1.
    mean : array_like, (..., d_model), optional
        Mean input x. Queries and keys are then those of the mean input, which is what scores are on average over tokens
        that have nothing to do with each other.
    second_moment : array_like, (..., d_model, d_model), optional
        ``E x x^T`` over tokens x, each compared with its like: symmetric, and no ``v^T M v`` is negative. Not both this
        and `mean`, which is the same as ``mean mean^T``; the identity unless one is given: a query and a key of equal
        content, any direction of which is as likely.
    pairing : {"half", "interleaved"}
        The two features that make a block.
    causal : bool
        Whether only lags from -max_lag to 0 count, else those to max_lag too.
    scale : float, optional
        Positive; multiplies the scores. ``1 / sqrt(d)`` unless given.

    Returns
    -------
    WeightOffset

    Raises
    ------
    ValueError
        For shapes that do not fit, NaN or infinite values, both of `mean` and `second_moment`, a second moment that is
        not symmetric or has a negative eigenvalue (both to 1e-6 of its largest, as moments are often in float32), and
        where no block with a weight turns, so that all lags are alike.
    TypeError
        For weights that are not real floating, a `mean` or `second_moment` that is not real, or arrays of different
        libraries.

    Notes
    -----
    Let ``Q_b`` and ``K_b`` be a block's two rows of weights as one complex row, first feature real, and M the second
    moment. The expected score at lag x is ``sum_b Re(c_b exp(i x omega_b))`` with ``c_b = conj(Q_b) M K_b^T``: `weight`
    and `angle` are its magnitude and angle. ``c_b / (conj(Q_b) M Q_b^T)`` is also the complex number z for which
    ``z Q_b`` is nearest to ``K_b`` by least squares in the metric M, and `quality` is the part of ``K_b`` that is
    explained, ``|c_b|^2 / ((conj(Q_b) M Q_b^T) (conj(K_b) M K_b^T))``; with `mean` it is 1. For random rows, about
    ``1 / d_model`` is explained.

    `confidence` compares the score at `lag` with its mean over all whole lags of the range, so that blocks that hardly
    turn, whose part is nearly constant, count for nothing. The difference is a sum of terms ``Re(c_b y_b)``, one for
    each block; with random angles it is above t with probability ``exp(-t^2 / sum_b |c_b y_b|^2)`` at most, as a cosine
    is sub-Gaussian with variance 1/2. `confidence` is 1 minus that bound times the number of lags, or 0. It does
    not rank heads: a few strong blocks may make a head that chance could have made as well.

    The right input depends on the head. One that compares equal contents at an offset shows with the identity. One
    that looks at position alone acts through what all inputs share, as in `rfrope.heads.positional_weights`, and that
    is `mean`: a single direction, which the identity counts no more than any other.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> from rfrope.heads import positional_weights
    >>> omega = rfrope.geometric(32)
    >>> w_q, w_k = positional_weights(omega, d_model=8, offset=-3, temperature=4.0)
    >>> found = offset_from_weights(w_q, w_k, omega, max_lag=512)
    >>> round(float(found.offset), 6), int(found.lag), bool(found.confidence > 0.999)
    (-3.0, -3, True)
    >>> np.allclose(found.quality, 1.0)
    True
    """
    if mean is not None and second_moment is not None:
        raise ValueError("mean and second_moment are both given; expected at most one of them")
    for name, value in (("w_q", w_q), ("w_k", w_k)):
        if value is None:
            raise TypeError(f"{name} is None; expected weights (..., head_dim, d_model)")
    named = {"w_q": w_q, "w_k": w_k, "mean": mean, "second_moment": second_moment}
    named = {name: value for name, value in named.items() if value is not None}
    *arrays, omega = bring_to_host(angles.given(frequencies, pairing, 1.0), **named)
    host, omega = dict(zip(named, arrays, strict=True)), one_axis(omega)
    query, key = (_read_rows(name, host[name], len(omega), pairing) for name in ("w_q", "w_k"))
    angles.given(frequencies, x=host["w_q"].mT, name="w_q")
    array.broadcast_shapes({"w_q": query.shape[:-2], "w_k": key.shape[:-2]})
    if query.shape[-2:] != key.shape[-2:]:
        raise ValueError(
            f"w_q has shape {host['w_q'].shape} but w_k has {host['w_k'].shape}; expected the same two last lengths"
        )
    low, high = lag_range(max_lag, causal)
    if scale is None:
        scale = host["w_q"].shape[-2] ** -0.5
    scale = positive("scale", scale, least=1.0 / LARGEST, most=LARGEST)
    c, explained = _join(query, key, host.get("mean"), host.get("second_moment"))
    c = scale * c
    heads = [_read_head(head, omega, low, high) for head in c.reshape(-1, c.shape[-1])]
    c, explained = c[..., : len(omega)], explained[..., : len(omega)]
    fields = stack_fields(WeightOffset, heads, c.shape[:-1])
    return WeightOffset(**fields, angle=np.angle(c), weight=np.abs(c), quality=explained)


# -- weights -----------------------------------------------------------------------------------------------------------


def _read_rows(name: str, weight: np.ndarray, blocks: int, pairing: str) -> np.ndarray:
    """Weights ``(..., d, d_model)`` as one complex row a block; features that are not turned are real rows after it."""
    if weight.dtype.name not in ("float16", "float32", "float64"):
        raise TypeError(f"{name} has dtype {weight.dtype.name}; expected real floating weights")
    if weight.ndim < 2:
        raise ValueError(f"{name} has shape {weight.shape}; expected (..., d, d_model)")
    if not np.all(np.isfinite(weight)):
        raise ValueError(f"{name} holds NaN or infinity; expected finite weights")
    columns = np.swapaxes(weight.astype(np.float64), -1, -2)
    check_pairing(pairing)
    if columns.shape[-1] % 2:
        raise ValueError(f"{name} has shape {weight.shape}; expected (..., d, d_model) with an even d")
    check_width(columns, blocks, "frequencies", name)
    first, second = halves(columns, blocks, pairing, np)
    return np.swapaxes(first + 1j * second, -1, -2)


def _join(
    query: np.ndarray, key: np.ndarray, mean: np.ndarray | None, moment: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Complex coefficient of each block, and the share of the key's row that the query's explains."""
    width = query.shape[-1]
    mean = _read_inputs("mean", mean, (width,), query)
    moment = _read_inputs("second_moment", moment, (width, width), query)
    if mean is not None:  # M = mean mean^T
        query, key = (rows @ mean[..., :, None] for rows in (query, key))
    if moment is not None:
        _check_moment(moment)
    seen = query if moment is None else np.conj(np.conj(query) @ moment)
    c = np.sum(np.conj(seen) * key, axis=-1)
    energy_q = np.sum(np.conj(seen) * query, axis=-1).real
    energy_k = np.sum(np.conj(key if moment is None else np.conj(np.conj(key) @ moment)) * key, axis=-1).real
    energy = energy_q * energy_k
    explained = np.where(energy > 0.0, np.abs(c) ** 2 / np.where(energy > 0.0, energy, 1.0), 0.0)
    return c, np.minimum(explained, 1.0)


def _read_inputs(name: str, value: np.ndarray | None, shape: tuple[int, ...], query: np.ndarray) -> np.ndarray | None:
    """Check a moment of the inputs, ``(..., *shape)``, and return it in float64."""
    if value is None:
        return None
    if value.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {value.dtype.name}; expected real numbers")
    if value.shape[-len(shape) :] != shape or not np.all(np.isfinite(value)):
        raise ValueError(f"{name} has shape {value.shape}; expected finite numbers (..., {', '.join(map(str, shape))})")
    array.broadcast_shapes({name: value.shape[: -len(shape)], "w_q": query.shape[:-2]})
    return value.astype(np.float64)


def _check_moment(moment: np.ndarray) -> None:
    apart = np.max(np.abs(moment - np.swapaxes(moment, -1, -2)), axis=(-2, -1))
    if np.any(apart > _ROUNDED * np.max(np.abs(moment), axis=(-2, -1))):
        raise ValueError(
            "second_moment is not symmetric; expected E x x^T, for which queries and keys are of inputs that are alike"
        )
    eigenvalues = np.linalg.eigvalsh(moment)
    if np.any(eigenvalues[..., 0] < -_ROUNDED * eigenvalues[..., -1]):
        raise ValueError(
            f"second_moment has the eigenvalue {np.min(eigenvalues):.3g}; expected E x x^T, which has no negative ones"
        )


def _read_head(c: np.ndarray, omega: np.ndarray, low: int, high: int) -> dict[str, float]:
    """Fields of `WeightOffset` but the blocks, for one head; ``a cos + b sin`` is the real part of ``c exp(iu)``."""
    turned, rest = c[: len(omega)], float(np.sum(c[len(omega) :].real))
    found = read_waves(omega, turned.real, -turned.imag, rest, low, high)
    chance = (high - low + 1) * math.exp(-(_prominence(turned, omega, int(found["lag"]), low, high) ** 2))
    return found | {"confidence": max(0.0, 1.0 - chance)}


def _prominence(c: np.ndarray, omega: np.ndarray, lag: int, low: int, high: int) -> float:
    """Height of the score at a lag above its mean over all whole lags, in units of what random angles give."""
    lags, mean = np.arange(low, high + 1), np.zeros((2, len(omega)))
    for span in sums.parts(len(lags), len(omega)):
        mean += [np.sum(wave, axis=0) for wave in Waves.from_angles(angles_at(lags[span], omega))[:2]]
    there = Waves.from_angles(angles_at(np.asarray(lag), omega))
    apart = there._replace(cos=there.cos - mean[0] / len(lags), sin=there.sin - mean[1] / len(lags))
    above = float(apart.total(c.real, -c.imag))
    scale = float(np.linalg.norm(np.abs(c) * np.hypot(apart.cos, apart.sin)))
    return max(above, 0.0) / scale if scale else 0.0
