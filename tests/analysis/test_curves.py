"""What is read from given frequencies: right by hand, on every library, and exact at large lags."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

import rfrope
from rfrope import analysis
from rfrope._core import angles, dispatch, sums
from rfrope.analysis import curves


def by_hand(omega, lags) -> np.ndarray:
    return np.mean(np.cos(rfrope.rotation.phases(lags, omega)), axis=-1)


@pytest.mark.parametrize(
    ("omega_shape", "delta_shape", "shape"),
    [
        ((5,), (), ()),
        ((5,), (2, 3), (2, 3)),
        ((5, 2), (4, 3, 2), (4, 3)),
        ((6, 5, 1), (7, 1), (6, 7)),
        ((6, 5, 2), (3, 1, 7, 2), (3, 6, 7)),
        ((6, 5, 2), (0, 2), (6, 0)),
    ],
)
def test_shapes(omega_shape, delta_shape, shape, xp):
    if xp.name == "dask" and 0 in shape:
        pytest.skip("Dask cannot chunk an array without elements")
    rng = np.random.default_rng(3)
    omega, lags = rng.normal(size=omega_shape), rng.integers(-20, 20, delta_shape).astype(float)
    got = analysis.mean_kernel(xp(lags), xp(omega))
    assert xp.owns(got)
    assert got.shape == shape
    assert got.dtype == xp.dtype("float64")
    np.testing.assert_allclose(xp.host(got), by_hand(omega, lags), atol=1e-13)
    if 0 not in shape:
        assert np.max(np.abs(xp.host(got) - by_hand(1.01 * omega, lags))) > 1e-6  # the check sees 1 %


def test_large_whole_lags_are_exact(xp):
    omega, lags = rfrope.geometric(16), [2**53 - 1, 2**24 + 1, -(10**9), 131071]
    got = xp.host(analysis.mean_kernel(xp(np.asarray(lags)), xp(omega)))
    with mp.workdps(60):
        wanted = [float(mp.fsum(mp.cos(lag * mp.mpf(float(w))) for w in omega) / 16) for lag in lags]
    assert np.max(np.abs(got - wanted)) < 1e-15
    assert np.max(np.abs(by_hand(omega, lags) - wanted)) > 1e-6  # plain phases are not


def plain_mean(omega, lags):
    """Mean cosines without compiled loops and transforms."""
    return sums.mean_cos.generic(angles.read(lags, omega, name="lags"))


def test_many_lags_agree_with_the_plain_sum():
    omega, lags = rfrope.geometric(512), np.arange(2**14)
    with_twin = analysis.mean_kernel(lags, omega)
    plain = np.concatenate([plain_mean(omega, part) for part in np.array_split(lags, 8)])
    assert np.max(np.abs(with_twin - plain)) < 1e-10
    assert (
        dispatch.backend_function(sums.mean_cos, "cpu") is None or np.max(np.abs(with_twin - plain)) > 0.0
    )  # not the same sum


def test_the_plain_sum_goes_in_parts(monkeypatch):
    omega, lags = np.random.default_rng(0).normal(size=(3, 50, 2)), np.ones((4, 2))
    whole = plain_mean(omega, lags)
    monkeypatch.setattr(sums, "BUDGET", 100)
    np.testing.assert_allclose(plain_mean(omega, lags), whole, rtol=1e-13)


# -- the continuum of standard RoPE ------------------------------------------------------------------------------------


def continuum(lag: float, base: float) -> float:
    with mp.workdps(50):
        m, b = mp.mpf(lag), mp.mpf(base)
        return float((mp.ci(m) - mp.ci(m / b)) / mp.log(b))


@pytest.mark.parametrize("base", [1.0001, 1.3, 2.7, 2.72, 1e4, 1e12])
def test_the_continuum_to_1e_13(base):
    lags = np.concatenate([np.geomspace(1e-6, 1e15, 85), [1.99, 2.01, 2.0 * base, 4.0 / (1.0 - 1.0 / base), 123457.0]])
    wanted = np.asarray([continuum(float(lag), base) for lag in lags])
    assert np.max(np.abs(analysis.log_uniform_kernel(lags, base) - wanted)) < 1e-13
    assert np.max(np.abs(analysis.log_uniform_kernel(lags, base * 1.0001) - wanted)) > 1e-9


@pytest.mark.parametrize(("shape", "dtype"), [((), "int32"), ((3,), "float32"), ((2, 3), "float64")])
def test_the_continuum_at_lags_of_any_shape_and_dtype(shape, dtype, xp):
    lags = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    got = analysis.log_uniform_kernel(xp(lags), n_blocks=32)
    assert got.shape == shape
    wanted = np.asarray(
        [1.0, *(continuum(float(m), 1e4) + (math.cos(m) - math.cos(m * 1e-4)) / 64 for m in range(1, 6))]
    )
    np.testing.assert_allclose(xp.host(got), wanted[lags.astype(int)], atol=1e-14)


def test_the_continuum_is_1_at_0_and_even():
    for base in (1.0001, 2.0, 1e4):
        for n_blocks in (None, 1, 64):
            assert float(analysis.log_uniform_kernel(0, base, n_blocks=n_blocks)) == 1.0
            lags = np.geomspace(1e-9, 1e9, 50)
            left, right = (analysis.log_uniform_kernel(sign * lags, base, n_blocks=n_blocks) for sign in (-1, 1))
            assert np.array_equal(left, right)


def test_the_next_term_of_euler_and_maclaurin_is_what_the_correction_leaves():
    """At small lags the rest is (ln base)/(12 D^2) times the difference of t f'(t) at the ends, f = cos(m t)."""
    for m in (0.5, 1.0, 2.0):
        small = m / 1e4
        wanted = -math.log(1e4) / 12.0 * (m * math.sin(m) - small * math.sin(small))
        for blocks in (256, 512):
            rest = analysis.mean_kernel(m, rfrope.geometric(blocks)) - analysis.log_uniform_kernel(m, n_blocks=blocks)
            assert float(rest) * blocks**2 == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("base", [1.01, 2.0, 1e4])
def test_a_gradient_of_the_continuum(base):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    lags = np.array([0.0, 1e-3, 0.7, 5.9, 6.1, 40.0, 3000.0])
    m = torch.tensor(lags, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(analysis.log_uniform_kernel(m, base).sum(), m, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), m)
    for x, first, second in zip(lags, slope.tolist(), bend.tolist(), strict=True):
        curve = lambda y: (mp.cos(y) - mp.cos(y / base)) / y / mp.log(base)  # noqa: E731
        at = mp.mpf(float(x or 1e-9))
        with mp.workdps(40):
            wanted = float(curve(at)), float(mp.diff(curve, at))
        assert (first, second) == pytest.approx(wanted, rel=1e-9, abs=1e-9 if x else 1e-8)


# -- Dirichlet's kernel ------------------------------------------------------------------------------------------------


def dirichlet_exactly(lag: float, step: float, blocks: int) -> float:
    with mp.workdps(60):
        x = mp.mpf(lag) * mp.mpf(step)
        half = mp.sin(x / 2)
        return float((mp.sin((blocks + mp.mpf(0.5)) * x) / (2 * half) - mp.mpf(0.5)) / blocks) if half else 1.0


@pytest.mark.parametrize("step", [1.0, 0.3, 40.0])
@pytest.mark.parametrize("blocks", [1, 3, 64, 10**6])
def test_dirichlet_to_1e_12_at_and_around_multiples_of_2_pi(blocks, step):
    turns = np.arange(1, 20) * (2.0 * math.pi / step)
    away = np.geomspace(1e-12, 10.0, 19) / blocks / step
    lags = np.concatenate(
        [
            *(turns, turns * (1.0 + 1e-15), turns + away, turns - away, away, -away, turns + math.pi / step),
            *([1e6, 2.0**40, 2.0**40 + 1.0, 1e-300, 5e-324, 0.0], np.asarray([0.0199, 0.02, 0.0201]) / blocks / step),
        ]
    )
    wanted = [dirichlet_exactly(float(lag), step, blocks) for lag in lags]
    assert np.max(np.abs(analysis.dirichlet(lags, blocks, step=step) - wanted)) < 1e-14
    with mp.workdps(40):
        plain = [float(mp.mpf(float(lag * step))) for lag in lags]  # the rounded product
    if blocks == 10**6 and step == 0.3:
        rounded = [dirichlet_exactly(x, 1.0, blocks) for x in plain]
        assert np.max(np.abs(np.subtract(rounded, wanted))) > 1e-9  # is not good enough


@pytest.mark.parametrize("step", [1.0, 0.25, 2.0**-7])
def test_dirichlet_is_the_mean_kernel_of_arithmetic_frequencies(step, xp):
    """Steps that are powers of two: then the frequencies i * step are not rounded."""
    lags = np.asarray([0.0, 1.0, -2.5, 6.283185307179586, 99.0, 1e6, 2.0**40])
    got = analysis.dirichlet(xp(lags), 48, step=step)
    assert xp.owns(got)
    assert got.dtype == xp.dtype("float64")
    wanted = analysis.mean_kernel(lags, rfrope.arithmetic(48, step=step))
    np.testing.assert_allclose(xp.host(got), wanted, atol=3e-15)
    assert np.max(np.abs(analysis.dirichlet(lags, 48, step=1.01 * step) - wanted)) > 1e-3


def test_closed_curves_without_float64():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    lags = np.asarray([0, 1, 5, 1000, 2**24])
    with jax.experimental.disable_x64() if not hasattr(jax, "enable_x64") else jax.enable_x64(False):
        for curve in (lambda x: analysis.dirichlet(x, 64, step=0.3), analysis.log_uniform_kernel):
            got = curve(jax.numpy.asarray(lags))
            assert got.dtype == jax.numpy.float32
            np.testing.assert_allclose(np.asarray(got), curve(lags), atol=2e-7)
            np.testing.assert_allclose(np.asarray(jax.jit(curve)(jax.numpy.asarray(lags))), got, atol=1e-7)


@pytest.mark.parametrize("blocks", [1, 64, 10**6])
def test_gradients_of_dirichlet_are_finite_and_right(blocks):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    host = np.concatenate([[0.0, 1e-300], np.asarray([1e-9, 1e-3, 0.019, 0.021, 0.5, 3.0]) / blocks, [1.0, 1e3]])
    lags = torch.tensor(host, requires_grad=True)
    (gradient,) = torch.autograd.grad(analysis.dirichlet(lags, blocks).sum(), lags)
    with mp.workdps(40):
        wanted = [_slope(mp.mpf(x), blocks) if x else 0.0 for x in host.tolist()]
    assert np.max(np.abs(gradient.numpy() - wanted)) < 1e-11 * blocks


def _slope(x: mp.mpf, n: int) -> float:
    """Derivative of sin(n x/2) cos((n + 1) x/2) / (n sin(x/2)), or of its series."""
    if n * x < 1e-10:
        return float(-x * (n + 1) * (2 * n + 1) / 6)
    a = x / 2
    upper, lower = mp.sin(n * a) * mp.cos((n + 1) * a), n * mp.sin(a)
    upper_slope = n * mp.cos(n * a) * mp.cos((n + 1) * a) - (n + 1) * mp.sin(n * a) * mp.sin((n + 1) * a)
    return float((upper_slope * lower - upper * n * mp.cos(a)) / lower**2 / 2)


# -- where the mean kernel turns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "lag"), [(1e4, 1707), (150_000.0, 10_791), (5e5, 18_438), (1e6, 27_115)])
def test_first_negative_lag_of_geometric_frequencies(base, lag):
    omega = rfrope.geometric(64, base=base)
    assert analysis.first_negative_lag(omega, 2**20) == lag
    assert analysis.first_negative_lag(omega, lag) == lag
    assert analysis.first_negative_lag(omega, lag - 1) is None


@pytest.mark.parametrize("blocks", [1, 3, 64, 5000])  # 5000 frequencies go in two parts
def test_turns_are_those_of_the_curve(blocks):
    rng = np.random.default_rng(blocks)
    for _ in range(10):
        omega = rng.normal(size=blocks) * 10.0 ** rng.uniform(-4.0, 0.0)
        last = int(rng.integers(1, 400 if blocks > 64 else 20_000))
        level = float(rng.uniform(0.05, 0.95))
        curve = np.concatenate([plain_mean(omega, part) for part in np.array_split(np.arange(last + 1), 8)])
        negative = np.flatnonzero(curve < 0.0)
        assert analysis.first_negative_lag(omega, last) == (int(negative[0]) if negative.size else None)
        below = np.flatnonzero(curve < level)
        again = np.flatnonzero(curve[below[0] :] >= level) + below[0] if below.size else below
        assert analysis.aliasing_distance(omega, last, threshold=level) == (int(again[0]) if again.size else None)


def test_one_set_of_any_library(xp):
    omega = rfrope.geometric(64)
    for frequencies in (xp(omega), xp(omega[:, None])):
        found = analysis.first_negative_lag(frequencies, 4096), analysis.aliasing_distance(frequencies, 4096)
        assert found == (1707, None)
        assert type(found[0]) is int
    assert analysis.aliasing_distance(xp(np.full(4, 2.0 * math.pi / 100.0)), 200, threshold=0.999) == 100
    assert analysis.first_negative_lag(omega.tolist(), 4096) == 1707


def test_signs_are_exact_where_a_transform_could_not_tell():
    """cos(lag pi/2 (1 + e)) - cos(that of 1 + 2e) is 0 but for a term of second order."""
    for shift, wanted in ((1e-11, 1), (-1e-11, None)):
        omega = np.asarray([0.5 * math.pi + shift, 0.5 * math.pi])  # C(1) = -shift / 2
        assert analysis.first_negative_lag(omega, 1) == wanted
    assert analysis.first_negative_lag([0.5 * math.pi + 1e-14] * 2, 1) == 1
    assert analysis.first_negative_lag([0.5 * math.pi - 1e-14] * 2, 1) is None


def test_what_rounding_leaves_unknown_is_no_negative_value():
    """Zeros of the exact kernel, at all odd lags, that float frequencies move by 1e-16 and less."""
    omega = np.concatenate([np.zeros(32), np.full(32, math.pi)])
    assert analysis.first_negative_lag(omega, 2**12) is None
    assert analysis.first_negative_lag(omega + np.repeat([0.0, 1e-6], 32), 2**12) is None  # cos(lag (pi + e)) >= -1
    assert analysis.first_negative_lag(np.append(omega, math.pi), 2**12) == 1


def test_a_value_at_the_threshold_is_not_below_it():
    assert analysis.aliasing_distance([math.pi / 3.0], 5, threshold=0.5) == 5  # 0.5 at lag 1, below from 2 to 4
    assert analysis.aliasing_distance([math.pi / 3.0], 4, threshold=0.5) is None


def test_sets_that_never_turn():
    for omega in (np.zeros(64), np.zeros((1, 1)), rfrope.geometric(64, base=1e12)):
        assert analysis.first_negative_lag(omega, 2**20) is None
    assert analysis.aliasing_distance(np.zeros(3), 2**20) is None
    assert analysis.first_negative_lag([math.pi], 0) is None
    assert analysis.aliasing_distance([math.pi], 0) is None


def test_the_scan_is_the_mean_kernel(monkeypatch):
    omega = np.random.default_rng(5).normal(size=70)
    monkeypatch.setattr(curves, "_FREQUENCIES", 32)
    seen = {}
    for first, means in curves.scan_lags(omega, 3, 30_000):
        seen |= dict(enumerate(means.tolist(), first))
    assert list(seen) == list(range(3, 30_001))
    wanted = plain_mean(omega, np.arange(3, 30_001))
    assert np.max(np.abs(np.asarray(list(seen.values())) - wanted)) < 1e-14


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: analysis.mean_kernel([1.0], 1.0), "frequencies is a single number"),
        (lambda: analysis.mean_kernel([1.0], []), r"frequencies has shape \(0,\); expected at least one block"),
        (lambda: analysis.mean_kernel([1.0] * 3, np.ones((3, 2))), r"lags has shape \(3,\), but frequencies .* k = 2"),
        (lambda: analysis.mean_kernel(1.0, np.ones((4, 3, 1))), r"lags has shape \(\).*use lags\[\.\.\., None\]"),
        (lambda: analysis.mean_kernel(np.ones((5, 2, 2, 1)), np.ones((4, 3, 1))), "do not broadcast"),
        (lambda: analysis.log_uniform_kernel([1.0], 1.0), r"base is 1\.0; expected a number above 1"),
        (lambda: analysis.log_uniform_kernel(1e200), r"lags holds .* above 2\*\*500"),
        (lambda: analysis.dirichlet([1.0], 2, step=1e200), r"step is 1e\+200; expected a positive number up to"),
        (lambda: analysis.first_negative_lag(np.ones((3, 2)), 5), r"frequencies has shape \(3, 2\)"),
        (lambda: analysis.aliasing_distance(np.ones((4, 3, 1)), 5), r"\(4, 3, 1\).*call the function for each head"),
        (lambda: analysis.first_negative_lag([1.0], -1), "max_lag is -1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
