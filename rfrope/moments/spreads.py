"""Variance of a score over the frequencies of any design, from coefficients and the covariances of pairs of blocks."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import angles, array, sums
from rfrope._core.array import Array
from rfrope._core.turns import phases
from rfrope.designs.covariances import Pairs, pair_covariances
from rfrope.kernels import Kernel


class Content(NamedTuple):
    """Coefficients of the score ``sum_i A_i cos u_i + B_i sin u_i``, ``(..., D)``, and lags."""

    cosine: Array
    sine: Array
    lags: Array
    xp: ModuleType


def content_mean(content: Content, law: Kernel) -> Array:
    """Return the expected score of block coefficients A ``(..., D)`` at lags ``(..., ndim)``."""
    a, _, lags, xp = content
    return xp.sum(a, axis=-1) * law.phi_of_vectors(lags, xp)


def content_variance(content: Content, law: Kernel) -> Array:
    """Return the variance of the score of block coefficients A and B over independent frequencies."""
    a, b, lags, xp = content
    a_squared, b_squared = xp.sum(a * a, axis=-1), xp.sum(b * b, axis=-1)
    fall, square = law.deficits(lags, xp)
    variance = a_squared * (square - fall * fall) + b_squared * (2.0 * fall - square)
    return array.clip(variance, 0.0, None, xp)


def spread(content: Content, law: Kernel, design: Any) -> tuple[Array, Array | None]:
    """Return the variance of the score over the frequencies of a design, and its mean if that is not the kernel's."""
    xp = content.xp
    if not isinstance(design, str):
        return _dealt_spread(content, law, design)
    variance = content_variance(content, law)
    n_blocks = content.cosine.shape[-1]
    lags = np.reshape(_host_lags(content), (-1, law.ndim)) if design != "iid" else np.empty((0, law.ndim))
    pairs = pair_covariances(law, design, n_blocks, lags)
    if pairs is None:
        return variance, None
    found = variance + _add_covariances(content, pairs)
    return array.clip(found, 0.0, None, xp), None


def relative_spread(content: Content, law: Kernel, design: Any) -> Array:
    """Root mean square of the score less its mean over the kernel, divided by that mean; infinite where it is 0."""
    xp, mean = content.xp, content_mean(content, law)
    variance, own = spread(content, law, design)
    error = sums.root(variance if own is None else variance + (own - mean) ** 2, xp)
    none = mean == 0.0
    ratio = error / xp.abs(xp.where(none, xp.ones_like(mean), mean))
    return xp.where(none & (error > 0.0), xp.full_like(ratio, math.inf), ratio)


def _host_lags(content: Content) -> np.ndarray:
    lags = content.lags
    if array.needs_gradient(lags):
        raise TypeError("lags require a gradient, which only design 'iid' has; expected lags without")
    return array.to_host(lags, "lags").astype(np.float64, copy=False)


def _add_covariances(content: Content, pairs: Pairs) -> Array:
    """Sum of covariances over the pairs of blocks, both orders."""
    xp, shape = content.xp, content.lags.shape[:-1]
    device = array.device(content.lags)
    total: Array = 0.0
    columns = array.from_host(np.ascontiguousarray(pairs.rows.T), xp, device=device)
    for values, covariances in ((content.cosine, pairs.cosine), (content.sine, pairs.sine)):
        if not np.any(covariances):
            continue
        both = xp.matmul(values, columns) ** 2 - xp.matmul(values * values, columns * columns)
        weights = array.from_host(covariances.reshape(*shape, len(pairs.rows)), xp, device=device)
        total = total + xp.sum(both * weights, axis=-1)
    return total


def _dealt_spread(content: Content, law: Kernel, design: Any) -> tuple[Array, Array]:
    """Variance and mean over all orders of a set of frequencies: sums over the set (Hoeffding 1951)."""
    xp, n_blocks = content.xp, content.cosine.shape[-1]
    omega = angles.read_on_host(design, "design", sets="one")
    if omega.shape != (n_blocks, law.ndim):
        raise ValueError(
            f"design has {len(omega)} frequencies of {omega.shape[-1]} axes, but q and k have {n_blocks} magnitudes "
            f"and {law!r} {law.ndim} axes; expected one frequency for each magnitude"
        )
    lags = _host_lags(content)
    u = phases(angles.Angles(lags, omega, None, np))
    fall, sine = 2.0 * np.sin(0.5 * u) ** 2, np.sin(u)
    means = [np.mean(x, axis=-1) for x in (fall, sine)]
    fall, sine = fall - means[0][..., None], sine - means[1][..., None]
    device = array.device(content.lags)
    ways = [np.mean(x * y, axis=-1) for x, y in ((fall, fall), (sine, sine), (-fall, sine))]
    of_fall, of_sine, of_both, deficit, mean_sine = (array.from_host(x, xp, device=device) for x in (*ways, *means))
    a, b = content.cosine, content.sine
    total_a, total_b = xp.sum(a, axis=-1), xp.sum(b, axis=-1)
    own = total_a * (1.0 - deficit) + total_b * mean_sine
    a, b = a - total_a[..., None] / float(n_blocks), b - total_b[..., None] / float(n_blocks)
    squares = xp.sum(a * a, axis=-1) * of_fall + xp.sum(b * b, axis=-1) * of_sine
    variance = (squares + 2.0 * xp.sum(a * b, axis=-1) * of_both) * (n_blocks / max(n_blocks - 1.0, 1.0))
    return array.clip(variance, 0.0, None, xp), own
