"""What is read from given frequencies: right by hand, on every library, and exact at large lags."""

import math

import mpmath as mp
import numpy as np
import pytest
from conftest import tuples
from owned import check_owned

import rfrope
from rfrope import analysis
from rfrope._core import angles, sums
from rfrope.analysis import curves


def by_hand(omega, lags) -> np.ndarray:
    return np.mean(np.cos(rfrope.rotation.phases(lags, omega)), axis=-1)


@pytest.mark.parametrize(
    ("omega_shape", "delta_shape", "shape"),
    tuples("analysis/shapes.json", "mean_kernel"),
)
def test_shapes(omega_shape, delta_shape, shape, xp):
    if xp.name == "dask" and 0 in shape:
        pytest.skip("Dask cannot chunk an array without elements")
    rng = np.random.default_rng(3)
    omega, lags = rng.normal(size=omega_shape), rng.integers(-20, 20, delta_shape).astype(float)
    got = analysis.mean_kernel(xp(lags), xp(omega))
    assert got.shape == shape
    check_owned(xp, got, by_hand(omega, lags), atol=1e-13)


def test_large_whole_lags_are_exact(xp):
    omega, lags = rfrope.geometric(16), [2**53 - 1, 2**24 + 1, -(10**9), 131071]
    got = xp.host(analysis.mean_kernel(xp(np.asarray(lags)), xp(omega)))
    with mp.workdps(60):
        wanted = [float(mp.fsum(mp.cos(lag * mp.mpf(float(w))) for w in omega) / 16) for lag in lags]
    assert np.max(np.abs(got - wanted)) < 1e-15


def plain_mean(omega, lags):
    """Mean cosines without compiled loops and transforms."""
    return sums.mean_cos.generic(angles.read(lags, omega, name="lags"))


# -- the continuum of standard RoPE ------------------------------------------------------------------------------------


def continuum(lag: float, base: float) -> mp.mpf:
    m, b = mp.mpf(lag), mp.mpf(base)
    return (mp.ci(m) - mp.ci(m / b)) / mp.log(b) if m else mp.mpf(1)


def exactly(curve, lags, *arguments) -> np.ndarray:
    """Values in many digits, rounded."""
    with mp.workdps(60):
        return np.asarray([float(curve(mp.mpf(float(lag)), *arguments)) for lag in lags])


@pytest.mark.parametrize("base", [1.01, 1.3, 2.7, 2.72, 1e4, 1e12])
def test_the_continuum_to_1e_13(base):
    lags = np.concatenate([np.geomspace(1e-6, 1e15, 85), [1.99, 2.01, 2.0 * base, 4.0 / (1.0 - 1.0 / base), 123457.0]])
    wanted = exactly(continuum, lags, base)
    assert np.max(np.abs(analysis.log_uniform_kernel(lags, base) - wanted)) < 1e-13
    for n_blocks in (None, 1, 64):
        assert float(analysis.log_uniform_kernel(0, base, n_blocks=n_blocks)) == 1.0
        left, right = (analysis.log_uniform_kernel(sign * lags, base, n_blocks=n_blocks) for sign in (-1, 1))
        assert np.array_equal(left, right)


@pytest.mark.parametrize(("shape", "dtype"), [((), "int32"), ((3,), "float32"), ((2, 3), "float64")])
def test_the_continuum_at_lags_of_any_shape_and_dtype(shape, dtype, xp):
    lags = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    got = analysis.log_uniform_kernel(xp(lags), n_blocks=32)
    assert got.shape == shape
    wanted = exactly(continuum, range(6), 1e4) + (np.cos(np.arange(6)) - np.cos(np.arange(6) * 1e-4)) / 64
    np.testing.assert_allclose(xp.host(got), wanted[lags.astype(int)], atol=1e-14)


def test_the_next_term_of_euler_and_maclaurin_is_what_the_correction_leaves():
    """At small lags the rest is (ln base)/(12 D^2) times the difference of t f'(t) at the ends, f = cos(m t)."""
    for m in (0.5, 1.0, 2.0):
        small = m / 1e4
        wanted = -math.log(1e4) / 12.0 * (m * math.sin(m) - small * math.sin(small))
        for blocks in (256, 512):
            rest = analysis.mean_kernel(m, rfrope.geometric(blocks)) - analysis.log_uniform_kernel(m, n_blocks=blocks)
            assert float(rest) * blocks**2 == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("base", [1.01, 2.0, 1e4])
def test_gradients_of_the_continuum(base, torch):
    lags = np.array([0.0, 1e-3, 0.7, 5.9, 6.1, 40.0, 3000.0])
    m = torch.tensor(lags, requires_grad=True)
    (slope,) = torch.autograd.grad(analysis.log_uniform_kernel(m, base).sum(), m, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), m)
    for found, order in ((slope, 1), (bend, 2)):
        wanted = exactly(lambda x, order=order: mp.diff(lambda y: continuum(y, base), x, order), np.maximum(lags, 1e-9))
        np.testing.assert_allclose(found.detach(), wanted, rtol=1e-9, atol=1e-8)


def test_the_continuum_without_float64():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    lags = np.asarray([0, 1, 5, 1000, 2**24])
    with jax.experimental.disable_x64() if not hasattr(jax, "enable_x64") else jax.enable_x64(False):
        got = analysis.log_uniform_kernel(jax.numpy.asarray(lags))
        assert got.dtype == jax.numpy.float32
        np.testing.assert_allclose(np.asarray(got), analysis.log_uniform_kernel(lags), atol=2e-7)
        np.testing.assert_allclose(jax.jit(analysis.log_uniform_kernel)(jax.numpy.asarray(lags)), got, atol=1e-7)


# -- where the mean kernel turns ---------------------------------------------------------------------------------------

HALF_PI = 0.5 * math.pi
ODD_ZEROS = np.concatenate([np.zeros(32), np.full(32, math.pi)])  # that float frequencies move by 1e-16 and less


@pytest.mark.parametrize(
    ("omega", "last", "wanted"),
    [
        (rfrope.geometric(64), 2**20, 1707),
        (rfrope.geometric(64, base=150_000.0), 2**20, 10_791),
        (rfrope.geometric(64, base=5e5), 2**20, 18_438),
        (rfrope.geometric(64, base=1e6), 2**20, 27_115),
        (rfrope.geometric(64, base=1e12), 2**20, None),
        (np.zeros(64), 2**20, None),
        (np.zeros((1, 1)), 2**20, None),
        ([HALF_PI + 1e-11, HALF_PI], 1, 1),  # the mean is half a difference: too little for a transform
        ([HALF_PI - 1e-11, HALF_PI], 1, None),
        ([HALF_PI + 1e-14] * 2, 1, 1),
        ([HALF_PI - 1e-14] * 2, 1, None),
        (ODD_ZEROS, 2**12, None),
        (ODD_ZEROS + np.repeat([0.0, 1e-6], 32), 2**12, None),  # cos(lag (pi + e)) >= -1
        (np.append(ODD_ZEROS, math.pi), 2**12, 1),
    ],
    ids=str,
)
def test_first_negative_lags(omega, last, wanted):
    assert analysis.first_negative_lag(omega, last) == wanted
    assert analysis.first_negative_lag(omega, wanted or 0) == wanted
    assert analysis.first_negative_lag(omega, (wanted or 1) - 1) is None


def test_distances_of_aliasing():
    third = [math.pi / 3.0]  # 0.5 at lag 1, which is not below the threshold; below from 2 to 4
    assert [analysis.aliasing_distance(third, last, threshold=0.5) for last in (5, 4)] == [5, None]
    assert analysis.aliasing_distance(np.zeros(3), 2**20) is None
    assert analysis.aliasing_distance([math.pi], 0) is None


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


def test_the_scan_is_the_mean_kernel(monkeypatch):
    omega = np.random.default_rng(5).normal(size=70)
    monkeypatch.setattr(curves, "_FREQUENCIES", 32)
    seen = {}
    for first, means in curves.scan_lags(omega, 3, 30_000):
        seen |= dict(enumerate(means.tolist(), first))
    assert list(seen) == list(range(3, 30_001))
    wanted = plain_mean(omega, np.arange(3, 30_001))
    assert np.max(np.abs(np.asarray(list(seen.values())) - wanted)) < 1e-14
