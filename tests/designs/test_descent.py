"""Sums over whole lags in closed form, descent and jumps."""

import contextvars
import math
import threading

import numpy as np
import pytest
from scipy import optimize

from rfrope import kernels
from rfrope._core import parallel
from rfrope.designs import errors as descent

E, G2 = kernels.parse("exponential(scale=6)"), kernels.parse("gaussian(scale=(4, 7), ndim=2)")
M3 = kernels.parse("matern(scale=3, ndim=3)")
RANGES = [(E, (1,)), (E, (40,)), (E, (1000,)), (G2, (5, 9)), (M3, (3, 2, 4))]
each_range = pytest.mark.parametrize(("kernel", "reach"), RANGES, ids=str)


def all_lags(reach: tuple[int, ...]) -> np.ndarray:
    """The whole box, both of each pair."""
    grid = np.meshgrid(*[np.arange(-m, m + 1.0) for m in reach], indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, len(reach))


def some_frequencies(n: int, k: int, seed: int = 0) -> np.ndarray:
    """Equal ones, opposite ones, ones that lie close, and 0 among them."""
    omega = np.random.default_rng(seed).normal(size=(n, k))
    omega[1], omega[2], omega[3] = omega[0], -omega[0], 0.0
    omega[4] = omega[0] + 1e-7
    return omega


@each_range
def test_all_lags_of_a_short_range_are_there_once(kernel, reach):
    found = descent.Lags(kernel, reach)
    counted = found.weights > 0.0
    seen, share = found.vectors[counted], found.weights[counted] / found.weights.max()
    total = np.zeros([2 * m + 1 for m in reach])
    for sign in (1.0, -1.0):
        np.add.at(total, tuple(np.int64(np.where(seen != 0.0, sign, 1.0) * seen + reach).T), share)
    np.testing.assert_array_equal(total, np.ones_like(total))
    np.testing.assert_array_equal(found.target[counted], kernel.phi(kernel.restore_shape(seen)))


@each_range
def test_sums_over_lags(kernel, reach):
    found, box, omega = descent.Lags(kernel, reach), all_lags(reach), some_frequencies(7, len(reach))
    cos, sin = np.cos(omega @ box.T), np.sin(omega @ box.T)
    errors = cos.mean(axis=0) - kernel.phi(kernel.restore_shape(box))
    waves = found.waves(omega)
    assert found.mean_square(found.errors(waves)) == pytest.approx(np.mean(errors**2), rel=1e-12)
    np.testing.assert_allclose(descent.inner(reach, omega[:, None], omega), cos @ cos.T / len(box), atol=1e-7)
    there = found.projected(waves, found.errors(waves))
    np.testing.assert_allclose(there.real, cos @ errors / len(box), atol=1e-12)
    slopes = (sin[:, None] * box.T).reshape(-1, len(box))
    np.testing.assert_allclose(found.slopes_product(omega), slopes @ slopes.T / len(box), atol=1e-6 * max(reach) ** 2)


@pytest.mark.parametrize("reach", [(10**6,), (400, 300), (60, 50, 40), (2**40,)])
def test_of_a_long_range_the_small_lags_and_some_of_the_others_are_seen(reach):
    kernel = kernels.parse(f"gaussian(scale=3, ndim={len(reach)})")
    found = descent.Lags(kernel, reach)
    seen = found.vectors[found.weights > 0.0]
    assert 2**12 < len(seen) <= 2**15
    assert np.all(np.abs(seen) <= reach)
    for axis, m in enumerate(reach):
        near = {abs(v) for v in seen[:, axis].tolist()}
        assert set(range(5)) <= near
        assert max(near) > 0.9 * m
    total = math.prod(2 * m + 1 for m in reach)
    assert found.weights.sum() == pytest.approx(1.0)
    assert found.weights[found.weights > 0.0].min() * total == pytest.approx(1.0, rel=0.01)  # half of a pair at 0


@each_range
def test_derivatives(kernel, reach):
    found, omega = descent.Lags(kernel, reach), 0.3 * some_frequencies(5, len(reach), 1)[[0, 3, 4]]

    def slope(at: np.ndarray) -> np.ndarray:
        waves = found.waves(at)
        return descent._derivatives(found, at, waves, found.errors(waves))[0]

    waves = found.waves(omega)
    _, hessian, _ = descent._derivatives(found, omega, waves, found.errors(waves))
    step = 1e-6 / max(reach)
    for i in range(omega.size):
        moved = [omega + s * step * np.eye(omega.size)[i].reshape(omega.shape) for s in (1.0, -1.0)]
        squares = [found.mean_square(found.errors(found.waves(at))) for at in moved]
        assert 0.5 * (squares[0] - squares[1]) / (2 * step) == pytest.approx(slope(omega)[i], abs=1e-7 * max(reach))
        numeric = (slope(moved[0]) - slope(moved[1])) / (2 * step)
        np.testing.assert_allclose(hessian[i], numeric, atol=3e-6 * max(reach) ** 2)


@each_range
def test_a_jump_gains_what_it_says(kernel, reach):
    """Among all pairs of a block and a place it finds the best, against every pair tried."""
    found, omega = descent.Lags(kernel, reach), some_frequencies(6, len(reach), 2)
    places = np.random.default_rng(3).normal(size=(20, len(reach)))

    def square(at: np.ndarray) -> float:
        return found.mean_square(found.errors(found.waves(at)))

    tried = [square(np.concatenate([omega[:i], place[None], omega[i + 1 :]])) for i in range(6) for place in places]
    jumped = descent.exchange(found, omega, places, 1)
    assert square(jumped) == pytest.approx(min(tried), rel=1e-9)
    assert square(descent.exchange(found, omega, places, 3)) < square(jumped)
    assert descent.exchange(found, omega, omega, 3) is None or square(omega) > min(tried)


@pytest.mark.parametrize(("count", "most"), [(10, 10), (11, 10), (1000, 64), (2**31 + 1, 2**10), (2**32, 6)])
def test_some_lags_stand_for_all(count, most):
    """Each for as many as lie about it, exactly, also beyond what float32 holds."""
    lags, shares = descent._thin_out(count, most)
    assert np.sum(shares) == count
    assert lags.size == min(count, most)
    assert np.all(np.diff(lags) > 0)
    assert (lags[0], lags[-1] < count) == (0, True)
    near = most // 2
    ends = np.cumsum(shares)
    assert np.all((lags >= ends - shares) & (lags < ends))
    assert np.all(shares[:near] == 1.0)


@pytest.mark.parametrize(
    ("text", "reach", "n", "seed"), [("gaussian(scale=4)", 20, 5, 18), ("gaussian(scale=32)", 63, 5, 25)]
)
def test_a_descent_ends_where_no_other_goes_on(text, reach, n, seed):
    """A rejected step alone does not end it: SciPy's minimiser gains nothing from there."""
    lags = descent.Lags(kernels.parse(text), (reach,))

    def value(omega):
        return lags.mean_square(lags.errors(lags.waves(omega.reshape(-1, 1))))

    found, least = descent.descend(lags, np.random.default_rng(seed).uniform(0.0, 3.0, (n, 1)), 500, 1e-7)
    assert least == pytest.approx(value(found), rel=1e-12)
    assert optimize.minimize(value, found.ravel(), method="BFGS").fun > least * (1.0 - 1e-3)


def test_a_search_that_nobody_waits_for_is_left():
    lags, omega, context = descent.Lags(E, (40,)), some_frequencies(6, 1), contextvars.copy_context()
    context.run(parallel._ABANDONED.set, abandoned := threading.Event())
    abandoned.set()
    for work, *rest in ((descent.descend, 9, 0.0), (descent.exchange, omega, 1)):
        with pytest.raises(parallel._Abandoned):
            context.run(work, lags, omega, *rest)
