"""What reports, heads, laws from data, exports and figures must give; see `accepted.py`, whose `CHECKS` these join."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np
from accepted import (
    BELL,
    WIDE,
    agree,
    coefficients,
    gaussian,
    gives,
    holds,
    ladder_index,
    magnitudes,
    omega_of,
    phases_of,
    plain,
    real,
    turned,
)
from scipy import integrate, special

import rfrope

UNIT = gaussian(1.0)  # the function and density that `bochner` is given


# -- analysis ----------------------------------------------------------------------------------------------------------


def mean_of(frequencies: Any, lags: Any) -> np.ndarray:
    return np.cos(phases_of(lags, frequencies)).mean(axis=-1)


@gives("analysis.curves.mean_kernel")
def _mean_kernel(a):
    return mean_of(a.frequencies, a.lags)


@gives("analysis.curves.log_uniform_kernel")
def _continuum(a):
    m = np.abs(real(a.lags))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (special.sici(m)[1] - special.sici(m / a.base)[1]) / math.log(a.base)
        if a.n_blocks is not None:
            found = found + (np.cos(m) - np.cos(m / a.base)) / (2.0 * a.n_blocks)
    return np.where(m < 1e-9, 1.0, found)


@gives("analysis.curves.dirichlet")
def _dirichlet(a):
    x, n = np.asarray(a.lags, dtype=WIDE) * WIDE(a.step), a.n_blocks
    if n < 10_000:
        return np.cos(x[..., None] * np.arange(1, n + 1)).mean(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        closed = np.sin((n + WIDE(0.5)) * x) / (2 * n * np.sin(x / 2)) - 1.0 / (2 * n)
    return np.where(np.abs(x) < 1e-300, 1.0, closed)


@holds("analysis.curves.first_negative_lag")
def _first_negative(found, a):
    means = mean_of(a.frequencies, np.arange(min(a.max_lag, 2000) + 1))
    assert found == next((lag for lag, mean in enumerate(means) if mean < 0.0), None)


@holds("analysis.curves.aliasing_distance")
def _aliasing(found, a):
    means = mean_of(a.frequencies, np.arange(min(a.max_lag, 2000) + 1))
    below = next((lag for lag, mean in enumerate(means) if mean < a.threshold), len(means))
    again = next((lag for lag in range(below, len(means)) if means[lag] >= a.threshold), None)
    assert found == again or (found is not None and again is None and found > 2000), f"{found} for {again}"


@gives("analysis.blocks.turns")
def _turns(a):
    return a.context * magnitudes(a.frequencies) / (2.0 * WIDE(np.pi))


@gives("analysis.blocks.wavelengths")
def _wavelengths(a):
    with np.errstate(divide="ignore"):
        return 2.0 * WIDE(np.pi) / magnitudes(a.frequencies)


@holds("analysis.blocks.density_of_states")
def _density_of_states(found, a):
    size = np.sort(real(magnitudes(a.frequencies)).reshape(-1))
    agree(found, {"magnitudes": size[size > 0.0], "zeros": int(np.sum(size == 0.0))})
    edges = found.edges * (1.0 + 1e-12)
    counts = [np.sum(size[size > 0.0] <= edge) for edge in edges[1:]]
    agree(found.share, np.diff([0, *counts]) / np.sum(size > 0.0))
    assert a.n_bins is None or len(found.share) == a.n_bins


@holds("analysis.bases.base_for_context")
def _base_for_context(found, a):
    agree(found, {"context": a.context, "n_blocks": a.n_blocks, "integral_rule": a.context / 0.61650548562071626})
    lags, index = np.arange(a.context), np.arange(a.n_blocks) / a.n_blocks
    for base in np.geomspace(*found.grid[:2], 200):
        lowest = np.cos(np.outer(lags, base**-index)).mean(axis=-1).min()
        inside = any(low <= base <= high for low, high in found.islands)
        assert abs(lowest) < 1e-6 or (lowest >= 0.0) == inside or a.n_grid < 10, f"base {base}: {lowest}"
    agree(found.grid[2], a.n_grid)
    assert a.max_base is None or math.isclose(found.grid[1], a.max_base)


@gives("analysis.content.similarity")
def _similarity(a):
    c = np.cos(phases_of(a.lags, a.frequencies))
    n, mean = c.shape[-1], c.mean(axis=-1)
    v, cosine = c.var(axis=-1) / (n + 1), a.cosine
    variance = cosine**2 * v + (1.0 - cosine**2) * (1.0 - mean**2 - v) / (2 * n - 1)
    std = np.sqrt(np.maximum(variance, 0.0))
    return {"mean": cosine * mean, "std": std, "random_std": 1.0 / math.sqrt(2 * n), "radius": np.maximum(mean, 0.0)}


def split(a: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coefficients of blocks that turn, phases, and what other features add."""
    u = phases_of(a.lags, a.frequencies, getattr(a, "shift", None))
    width = 2 * u.shape[-1]
    q, k = np.asarray(a.q, dtype=WIDE), np.asarray(a.k, dtype=WIDE)
    return (*coefficients(q[..., :width], k[..., :width], a.pairing), u, np.sum(q[..., width:] * k[..., width:], -1))


@gives("analysis.content.sine_share")
def _sine_share(a):
    c, s, u, rest = split(a)
    even, odd = np.abs(np.sum(c * np.cos(u), -1) + rest), np.abs(np.sum(s * np.sin(u), -1))
    with np.errstate(invalid="ignore"):
        return np.where(even + odd == 0.0, 0.0, odd / (even + odd))


@holds("analysis.content.departure")
def _departure(found, a):
    u = phases_of(a.lags, a.frequencies)[..., None, :]
    width = 2 * u.shape[-1]
    q, k = np.asarray(a.q, dtype=WIDE), np.asarray(a.k, dtype=WIDE)
    c, s = coefficients(q[:, :width], k[:, :width], a.pairing)
    dots = np.sum(q * k, -1)
    scores = np.sum(c * np.cos(u) + s * np.sin(u), -1) + np.sum(q[:, width:] * k[:, width:], -1)
    phi = np.sum(dots * scores, -1) / np.sum(dots * dots)
    left, all_of = np.sum((scores - dots * phi[..., None]) ** 2, -1), np.sum(scores * scores, -1)
    with np.errstate(invalid="ignore"):
        overall = np.sqrt(np.sum(left) / np.sum(all_of)) if all_of.size else 0.0
        agree(found, {"phi": phi, "residual": np.sqrt(left / all_of), "overall": overall}, floor=1e-3)


@gives("analysis.fits.scaling_effect")
def _scaling_effect(a):
    before, after = mean_of(a.before, a.lags), mean_of(a.after, a.lags)
    first, last = omega_of(a.before), omega_of(a.after)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(first == last, 1.0, first / last) if first.shape == last.shape else None
    change = after - before
    return {"before": before, "after": after, "largest": np.abs(change).max(), "wavelength_ratio": ratio}


@holds("analysis.fits.fit_kernel")
def _fit(found, a):
    names = None if a.names is None else [*a.names]
    assert names is None or len(found) == len(names)
    lags = np.arange(min(a.max_lag, 5000) + 1.0)
    means = real(mean_of(a.frequencies, lags))
    for fit in found if a.max_lag <= 5000 else ():
        away = fit.kernel.phi(lags) - means
        assert abs(np.abs(away).max() - fit.sup) < 1e-6
        assert abs(np.sqrt(np.mean(away**2)) - fit.rms) < 0.1


@holds("analysis.summary.summarise")
def _summarise(found, a):
    agree(found.n_blocks, len(omega_of(a.frequencies)))
    assert found.context in (a.context, (a.context,))
    assert a.name is None or found.name == a.name
    agree(found.attention_factor, 1.0 if a.attention_factor is None else a.attention_factor)
    agree(found.head_dim, 2 * found.n_blocks if a.head_dim is None else a.head_dim)


@holds("analysis.planning.plan")
def _plan(found, a):
    agree(found, {"context": a.context, "n_blocks": len(omega_of(a.rope)), "trained_context": a.trained_context})
    by_name = {method.name: real(method.rope.frequencies) for method in found.methods}
    omega, factor = omega_of(a.rope), a.context / a.trained_context
    if "linear" in by_name:
        agree(by_name["linear"], omega / factor)
    if "ntk" in by_name:
        agree(by_name["ntk"], omega * factor ** -ladder_index(omega))
    assert by_name


# -- heads -------------------------------------------------------------------------------------------------------------


@gives("heads.shifts.phase_shift")
def _phase_shift(a):
    return 0.0 - phases_of(a.offset, a.frequencies)


@gives("heads.shifts.aligned_shift")
def _aligned(a):
    u = 0.0 - phases_of(a.offset, a.frequencies)
    c = real(a.cosine)
    return u + (np.where(c < 0.0, math.pi, 0.0) if a.sine is None else np.arctan2(real(a.sine), c))


def weights_of(a: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(1.0 if a.weights is None else real(a.weights), shape)


@gives("heads.peaks.alignment")
def _alignment(a):
    u = phases_of(a.offset, a.frequencies, a.shift)
    shape = np.broadcast_shapes(u.shape, () if a.weights is None else np.shape(a.weights))
    weight, cos = weights_of(a, shape), np.cos(u)
    with np.errstate(invalid="ignore"):
        mean = np.sum(weight * cos, -1) / np.sum(weight, -1)
    return {"overall": np.where(np.sum(weight, -1) == 0.0, 0.0, mean), "blocks": cos}


@holds("heads.peaks.offset_of")
def _offset_of(found, a):
    omega = real(omega_of(a.frequencies))
    shift = real(a.shift)
    shape = np.broadcast_shapes(shift.shape, omega.shape, () if a.weights is None else np.shape(a.weights))
    shift, weight = (np.broadcast_to(one, shape).reshape(-1, shape[-1]) for one in (shift, weights_of(a, shape)))
    grid = np.linspace(a.low, a.high, 4001)
    assert np.shape(found.offset) == shape[:-1], f"{np.shape(found.offset)} for {shape[:-1]}"
    for one, w, offset, value in zip(shift, weight, np.ravel(found.offset), np.ravel(found.value), strict=True):
        heights = np.cos(one + np.outer(grid, omega)) @ w / np.sum(w)
        assert abs(np.cos(one + offset * omega) @ w / np.sum(w) - value) < 1e-9
        assert a.low <= offset <= a.high
        assert value >= heights.max() - 1e-12, f"{value} at {offset}; {heights.max()}"


def positional(a: Any, at: Any, scaled: bool) -> np.ndarray:
    omega = omega_of(a.frequencies)
    offset = np.asarray(a.offset, dtype=WIDE)
    offsets = np.atleast_1d(offset)
    weight = np.ones(len(offsets)) if a.offset_weights is None else real(a.offset_weights)
    lags = np.asarray(at, dtype=WIDE)[..., None] - offsets
    width = 2 * len(omega) if a.head_dim is None else a.head_dim
    total = np.sum(weight * np.cos(phases_of(lags, omega)).sum(-1), -1)
    return WIDE(a.temperature) * total / (np.sqrt(WIDE(width)) if scaled else 1.0)


@gives("heads.positional.positional_scores")
def _positional_scores(a):
    return positional(a, a.lags, a.scaled)


def seen(a: Any) -> np.ndarray:
    """Lags of the keys that a query sees."""
    query = a.context - 1 if a.query_position is None else a.query_position
    lags = np.arange(a.context) - query
    lags = lags[(lags <= 0) | (not a.causal)]
    return lags if a.window is None else lags[np.abs(lags) < a.window]


@holds("heads.positional.positional_weights")
def _positional_weights(found, a):
    w_q, w_k = (real(plain(w)) for w in found)
    x = np.zeros(a.d_model)
    x[a.constant_index] = a.constant
    with np.errstate(over="ignore", invalid="ignore"):
        q, k = w_q @ x, w_k @ x
    width = 2 * len(omega_of(a.frequencies))
    assert w_q.shape == w_k.shape == (width, a.d_model)
    lags = np.asarray([-2.0, -1.0, 0.0, 3.0])
    c, s = coefficients(q, k, a.pairing)
    u = phases_of(lags, a.frequencies)
    agree(np.asarray(np.sum(c * np.cos(u) + s * np.sin(u), -1), dtype=np.float64), positional(a, lags, False))


@holds("heads.positional.positional_attention")
def _positional_attention(found, a):
    lags = seen(a)
    scores = positional(a, lags, a.scaled)
    weight = np.exp(scores - scores.max())
    agree(found, {"lags": lags, "scores": scores, "weights": weight / weight.sum()})
    at = np.isin(lags, np.atleast_1d(real(a.offset)))
    agree(found.mass, (weight / weight.sum())[at].sum())


@holds("heads.temperature.temperature_for_mass")
def _temperature(found, a):
    lags = seen(a)
    omega = omega_of(a.frequencies)
    width = 2 * len(omega) if a.head_dim is None else a.head_dim
    fall = np.sum(1.0 - np.cos(phases_of(lags - WIDE(a.offset), omega)), -1) / (math.sqrt(width) if a.scaled else 1.0)
    assert abs(1.0 / np.sum(np.exp(-found * fall)) - a.mass) < 1e-9


@holds("heads.reading.profile")
def _profile(found, a):
    q, k = np.asarray(a.q, dtype=WIDE), np.asarray(a.k, dtype=WIDE)
    u = phases_of(a.lags, a.frequencies)
    width = 2 * u.shape[-1]
    q, k = q[:, None, :], k[None, :, :]
    c, s = (v.reshape(-1, u.shape[-1]) for v in coefficients(q[..., :width], k[..., :width], a.pairing))
    rest = np.sum(q[..., width:] * k[..., width:], -1).reshape(-1)
    parts = (
        a.scale * np.sum(c * np.cos(u)[..., None, :], -1) + a.scale * rest,
        a.scale * np.sum(s * np.sin(u)[..., None, :], -1),
    )
    score = parts[0] + parts[1]
    spread, scale = real(plain(found.spread)), float(np.abs(real(score)).max(initial=1e-300))
    agree(found, {"mean": score.mean(-1), "cosine": parts[0].mean(-1), "sine": parts[1].mean(-1)}, floor=scale)
    assert np.all(np.abs(spread - real(score.std(-1))) <= 1e-6 * scale) or scale > 1e300
    agree(found.count, np.full(np.shape(a.lags), float(score.shape[-1])))


@gives("heads.shifts.recentred_kernel")
def _recentred(a):
    return BELL(np.asarray(a.lags, dtype=WIDE) - np.asarray(a.offset, dtype=WIDE))


@gives("heads.shifts.shifted_mean_kernel")
def _shifted_mean(a):
    return np.cos(phases_of(a.lags, a.frequencies, a.shift)).mean(-1)


@gives("heads.shifts.shifted_scores")
def _shifted_scores(a):
    c, s, u, rest = split(a)
    return np.sum(c * np.cos(u) + s * np.sin(u), -1) + rest


@gives("heads.shifts.shifted_terms")
def _shifted_terms(a):
    c, s, u, _ = split(a)
    return {"cosine": c * np.cos(u), "sine": s * np.sin(u)}


def argued(c: Any, s: Any, omega: Any, low: float, high: float) -> float:
    """Highest place of a sum of waves on a fine grid."""
    grid = np.linspace(low, high, 200_001)
    heights = np.cos(np.outer(grid, omega)) @ c + np.sin(np.outer(grid, omega)) @ s
    return float(grid[np.argmax(heights)])


def check_peak(found: Any, a: Any, q: Any, k: Any) -> None:
    omega = real(omega_of(a.frequencies))
    width = 2 * len(omega)
    c, s = (real(v.reshape(-1, len(omega)).mean(0)) for v in coefficients(q[..., :width], k[..., :width], a.pairing))
    reach = len(a.k) - 1 if a.max_lag is None else a.max_lag
    at = argued(c, s, omega, -float(reach), 0.0 if a.causal else float(reach))
    assert abs(float(found.offset) - at) < 1e-3, f"{found.offset} for {at}"


@holds("heads.offsets.effective_offset")
def _effective(found, a):
    check_peak(found, a, np.asarray(a.q)[:, None, :], np.asarray(a.k)[None, :, :])


@holds("heads.from_weights.offset_from_weights")
def _from_weights(found, a):
    omega = real(omega_of(a.frequencies))
    width, w_q, w_k = 2 * len(omega), real(a.w_q), real(a.w_k)
    c, s = coefficients(w_q.T[:, :width], w_k.T[:, :width], a.pairing)  # tokens whose second moment is 1
    at = argued(real(c.sum(0)), real(s.sum(0)), omega, -float(a.max_lag), 0.0 if a.causal else float(a.max_lag))
    assert abs(float(found.offset) - at) < 1e-3, f"{found.offset} for {at}"


# -- laws from functions and data --------------------------------------------------------------------------------------


def law_of(law: Any, low: float, high: float) -> np.ndarray:
    lags = (0.0, 0.5, 2.0)
    return np.asarray([integrate.quad(lambda w, x=x: np.cos(w * x) * law(w), low, high)[0] for x in lags])


@holds("bochner.densities.from_density")
def _from_density(found, a):
    low, high = (0.0, 12.0) if a.support is None else map(float, a.support)
    expected = law_of(lambda w: float(w) ** (a.ndim - 1) * math.exp(-0.5 * w * w), low, high)
    if a.ndim == 1:
        agree(np.round(found.phi([0.0, 0.5, 2.0]), 5), np.round(expected / expected[0], 5))
    else:
        lags = np.asarray([0.0, 0.5, 2.0])[:, None] * np.eye(a.ndim)[0]
        assert np.allclose(found.phi(lags), UNIT([0.0, 0.5, 2.0]), atol=1e-5)  # the support hardly cuts it


def check_function(found: Any, a: Any) -> None:
    r = np.asarray([0.0, 0.5, 2.0])
    lags = r if a.ndim == 1 else r[:, None] * np.eye(a.ndim)[0]
    assert np.allclose(found.phi(lags), UNIT(r), atol=1e-6 + min(a.tolerance, 1.0)), found.phi(lags)


@holds("bochner.functions.from_function")
def _from_function(found, a):
    check_function(found, a)


@holds("bochner.functions.nearest")
def _nearest(found, a):
    check_function(found[0], a)
    assert found[1] < 1e-6 + min(a.tolerance, 1.0)


@holds("bochner.data.from_autocorrelation")
def _from_values(found, a):
    values = real(a.values) / a.values[0] / np.where(np.arange(len(a.values)), 1.0 + a.ridge, 1.0)
    assert np.allclose(found.phi(np.arange(len(values)) * a.spacing), values, atol=1e-6), "values"


@holds("bochner.data.from_series")
def _from_series(found, a):
    x = real(a.x)
    x = x - x.mean() if a.remove_mean else x
    most = min(int(10.0 * math.log10(len(x))), len(x) - 1) if a.max_lag is None else a.max_lag
    values = np.asarray([np.sum(x[: len(x) - m] * x[m:]) for m in range(most + 1)])
    values = values / values[0] / np.where(np.arange(most + 1), 1.0 + a.ridge, 1.0)
    assert a.window is None
    assert np.allclose(found.phi(np.arange(most + 1) * a.spacing), values, atol=1e-6), "values"


# -- configs, files, engines -------------------------------------------------------------------------------------------


def ladder(base: float, blocks: int) -> np.ndarray:
    return np.asarray(WIDE(base) ** (-np.arange(blocks, dtype=WIDE) / blocks), dtype=np.float64)


@holds("models.configs.from_config")
def _from_config(found, a):
    (rope,) = found
    agree(rope, {"frequencies": ladder(1e4, 4), "pairing": a.pairing or "half", "context": 64, "head_dim": 8})


@gives("models.rope_parameters.from_rope_parameters")
def _from_parameters(a):
    part = 1.0 if a.partial_rotary_factor is None else a.partial_rotary_factor
    parameters = a.rope_parameters or {}
    width = int(a.head_dim * part)
    base = a.rope_theta or 1e4
    exponent = np.arange(0, width, 2) / width
    return {"frequencies": WIDE(base) ** -exponent / parameters.get("factor", 1.0)}


@holds("models.comparing.compare")
def _compare(found, a):
    assert found.ropes
    assert all(one.engines for one in found.ropes)


@holds("models.auditing.audit")
def _audit(found, a):
    held, meant = (np.asarray(one.frequencies if isinstance(one, rfrope.Rope) else one) for one in (a.what, a.rope))
    alike = held.shape == meant.shape and bool(np.all(held == meant))
    assert found.passed == alike, f"passed is {found.passed} for {held} and {meant}"


@holds("models.conformance.conformance")
def _conformance(found, a):
    assert len(found) > 10
    assert all(isinstance(case, dict) for case in found)


@holds("storage.save")
def _save(found, a):
    assert found is None
    agree(rfrope.load(a.path).frequencies, omega_of(a.rope).astype(np.float64))


@gives("storage.load")
def _load(a):
    return {"frequencies": np.asarray([1.0, 0.5, 0.25, 0.125]), "context": 64, "pairing": "half"}


def check_export(found: Any, a: Any) -> None:
    said = found["rope_parameters"]
    base = said["rope_theta"]
    held = ladder(base, len(said["long_factor"])) / real(said["long_factor"])
    assert np.allclose(held, real(omega_of(a.rope)), rtol=1e-6)
    assert said["long_factor"] == said["short_factor"]
    assert a.base is None or base == a.base
    assert found["max_position_embeddings"] == (64 if a.context is None else a.context)


@holds("exports.exporting.export")
def _export(found, a):
    check_export(found, a)


@holds("exports.exporting.write")
def _write(found, a):
    check_export(json.loads(pathlib.Path(a.path).read_text("utf-8")), a)


@holds("exports.exporting.rounding")
def _rounding(found, a):
    assert found.context == (64 if a.context is None else a.context)
    assert 0.0 <= found.frequency < 1e-6


# -- figures and threads -----------------------------------------------------------------------------------------------


def lines(axes: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    axes = np.ravel(axes)[0] if isinstance(axes, np.ndarray | tuple | list) else axes
    return [tuple(map(real, line.get_data())) for line in axes.get_lines()]


def drawn(found: Any, curve: Any) -> None:
    """One of the lines of a figure is a curve."""
    for x, y in lines(found):
        with np.errstate(all="ignore"):
            if x.size > 1 and np.allclose(y, real(curve(x)), atol=1e-6):
                return
    raise AssertionError(f"none of {len(lines(found))} lines is the curve")


@holds("plotting.figures.kernel")
def _plot_kernel(found, a):
    drawn(found, BELL)


@holds("plotting.figures.mean_kernels")
def _plot_means(found, a):
    for one in a.sets.values():
        if a.max_lag == 2**32 - 1:  # a band of what the curve does between two lags
            assert all(np.all(np.abs(y) <= 1.0 + 1e-9) for _, y in lines(found))
        else:
            drawn(found, lambda x, one=one: mean_of(one, x))


@holds("plotting.figures.frequencies")
def _plot_frequencies(found, a):
    drawn_values = np.concatenate([np.ravel(real(one)) for both in lines(found) for one in both] or [np.zeros(0)])
    drawn_values = np.concatenate([drawn_values, *(np.ravel(real(c.get_offsets())) for c in _axes(found).collections)])
    wanted = real(magnitudes(a.rope)).reshape(-1)
    wanted = wanted[wanted > 0.0]
    assert all(np.any(np.isclose(drawn_values, w)) for w in wanted), f"{wanted} are not in {drawn_values[:9]}"


def _axes(found: Any) -> Any:
    return np.ravel(found)[0] if isinstance(found, np.ndarray | tuple | list) else found


@holds("plotting.figures.wavelengths")
def _plot_wavelengths(found, a):
    values = np.concatenate([np.ravel(real(one)) for both in lines(found) for one in both] or [np.zeros(0)])
    for one in a.sets.values():
        assert all(np.any(np.isclose(values, w)) for w in real(2.0 * np.pi / magnitudes(one)))


@holds("plotting.figures.attention")
def _plot_attention(found, a):
    values = np.concatenate([np.ravel(one) for both in lines(found) for one in both] or [np.zeros(0)])
    values = np.concatenate([values, [patch.get_height() for patch in _axes(found).patches]])
    assert all(np.any(np.isclose(values, w)) for w in real(a.result.weights).reshape(-1)[:4])


@holds("plotting.figures.validation")
def _plot_validation(found, a):
    assert len(_axes(found).get_lines()) + len(_axes(found).collections) > 0


@holds("_core.parallel.threads")
def _threads(found, a):
    assert found == a.count


# -- modules and models ------------------------------------------------------------------------------------------------


def tokens(x: Any, positions: Any, offset: Any, omega: Any) -> np.ndarray:
    """Features ``(batch, heads, tokens, d)`` turned at positions ``(tokens,)`` or ``(batch, tokens)``."""
    at = np.arange(np.shape(x)[-2]) if positions is None else np.asarray(positions, dtype=WIDE)
    offset = np.asarray(offset, dtype=WIDE)
    at = at + (offset.reshape(-1, 1) if offset.ndim else offset)  # one for each sequence
    u = phases_of(at, omega)
    return turned(x, u[..., None, :, :] if u.ndim > 2 else u, "half")


@holds("layers.torch.RotaryEmbedding")
def _module(found, a):
    import torch

    omega = 1e4 ** (-np.arange(a.rope // 2) / (a.rope // 2)) if isinstance(a.rope, int) else real(a.rope)
    width = 2 * omega.shape[0 if omega.ndim == 1 else -2] if a.head_dim is None else a.head_dim
    if omega.ndim > 1 or width > 2**20:  # heads of their own, or heads too wide to be made
        agree(found.head_dim, width)
        agree(found.rope.frequencies, omega)
        return
    x = torch.linspace(-1.0, 1.0, 6 * width, dtype=torch.float64).reshape(1, 2, 3, width)
    turned_x = found(x, x)[0]
    at = tokens(x.numpy(), None, 0, omega)
    if a.max_positions is None:
        agree(turned_x, at)
    else:  # tables in float32
        assert np.allclose(plain(turned_x), real(at), atol=1e-6)
    learned = {name for name, _ in found.named_parameters()}
    kinds = {"both": {"frequencies", "phases"}, "none": set(), False: set(), True: {"frequencies"}}
    assert learned == kinds.get(a.learnable, {a.learnable})


@gives("layers.torch.RotaryEmbedding.forward")
def _forward(a):
    at = (a.positions, a.offset) if a.k_positions is None else (a.k_positions, 0)
    omega = [1.0, 0.5, 0.25, 0.125]
    return tokens(a.q, a.positions, a.offset, omega), tokens(a.k, *at, omega)


@gives("layers.torch.RotaryEmbedding.rotate")
def _turn_alone(a):
    return tokens(a.x, a.positions, a.offset, [1.0, 0.5, 0.25, 0.125])


@holds("integrations.transformers.replace_rotary")
def _replace(found, a):
    """Logits of a model whose own frequencies are those."""
    import torch

    own = a.model.model.rotary_emb
    before = own.inv_freq
    own.inv_freq = torch.tensor(real(omega_of(a.rope)), dtype=torch.float32)
    try:
        with torch.no_grad():
            expected = a.model(torch.arange(5)[None]).logits.numpy()
    finally:
        own.inv_freq = before
    assert np.allclose(found, expected, atol=1e-5)
