"""What is read from given frequencies: right by hand, on every library, and exact at large lags."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rfrope
from rfrope import _accel, _sums, analysis


def by_hand(omega, delta) -> np.ndarray:
    return np.mean(np.cos(rfrope.phases(delta, omega)), axis=-1)


@pytest.mark.parametrize(
    ("omega_shape", "delta_shape", "shape"),
    [
        ((5,), (), ()),
        ((5,), (7,), (7,)),
        ((5,), (2, 3), (2, 3)),
        ((5,), (0,), (0,)),
        ((5, 2), (2,), ()),
        ((5, 2), (3, 2), (3,)),
        ((5, 2), (4, 3, 2), (4, 3)),
        ((6, 5, 1), (7, 1), (6, 7)),
        ((6, 5, 2), (2,), (6,)),
        ((6, 5, 2), (3, 1, 7, 2), (3, 6, 7)),
        ((6, 5, 2), (0, 2), (6, 0)),
        ((2, 6, 5, 4), (7, 4), (2, 6, 7)),
    ],
)
def test_shapes(omega_shape, delta_shape, shape, xp):
    if xp.name == "dask" and 0 in shape:
        pytest.skip("Dask cannot chunk an array without elements")
    rng = np.random.default_rng(3)
    omega, delta = rng.normal(size=omega_shape), rng.integers(-20, 20, delta_shape).astype(float)
    got = analysis.mean_kernel(xp(omega), xp(delta))
    assert xp.owns(got)
    assert got.shape == shape
    assert got.dtype == xp.dtype("float64")
    np.testing.assert_allclose(xp.host(got), by_hand(omega, delta), atol=1e-13)
    if 0 not in shape:
        assert np.max(np.abs(xp.host(got) - by_hand(1.01 * omega, delta))) > 1e-6  # the check sees 1 %


def test_one_curve_a_head():
    heads = rfrope.sample("gaussian(scale=4)", 16, heads=3, rng=0)
    curves = analysis.mean_kernel(heads, np.arange(50.0)[:, None])
    for head, curve in zip(heads, curves, strict=True):
        np.testing.assert_allclose(curve, analysis.mean_kernel(head[:, 0], np.arange(50)), atol=1e-14)


@pytest.mark.parametrize(("base", "lag"), [(1e4, 1707), (150_000.0, 10_791), (5e5, 18_438), (1e6, 27_115)])
def test_the_first_negative_lag_of_geometric_frequencies(base, lag):
    curve = analysis.mean_kernel(rfrope.geometric(64, base=base), np.arange(lag + 1))
    assert curve[0] == 1.0
    assert curve[-1] < 0.0
    assert np.all(curve[:-1] > 0.0)


def test_large_whole_lags_are_exact(xp):
    mpmath = pytest.importorskip("mpmath")
    omega, lags = rfrope.geometric(16), [2**53 - 1, 2**24 + 1, -(10**9), 131071]
    got = xp.host(analysis.mean_kernel(xp(omega), xp(np.asarray(lags))))
    with mpmath.workdps(60):
        wanted = [float(mpmath.fsum(mpmath.cos(lag * mpmath.mpf(float(w))) for w in omega) / 16) for lag in lags]
    assert np.max(np.abs(got - wanted)) < 1e-15
    assert np.max(np.abs(by_hand(omega, lags) - wanted)) > 1e-6  # plain phases are not


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64", "float16", "float32"])
def test_lags_of_any_dtype(dtype):
    lags = np.arange(20).astype(dtype)
    wanted = analysis.mean_kernel(rfrope.geometric(8), np.arange(20.0))
    assert np.array_equal(analysis.mean_kernel(rfrope.geometric(8), lags), wanted)
    big_endian = lags.astype(lags.dtype.newbyteorder(">"))
    np.testing.assert_allclose(analysis.mean_kernel(rfrope.geometric(8), big_endian), wanted, atol=1e-15)


def test_many_lags_agree_with_the_plain_sum():
    omega, lags = rfrope.geometric(512), np.arange(2**14)
    with_twin = analysis.mean_kernel(omega, lags)
    plain = np.concatenate([_sums.mean_cos(omega, part, np) for part in np.array_split(lags, 8)])
    assert np.max(np.abs(with_twin - plain)) < 1e-10
    assert _accel.twin("mean_cos") is None or np.max(np.abs(with_twin - plain)) > 0.0  # not the same sum


def test_the_plain_sum_goes_in_parts(monkeypatch):
    omega, delta = np.random.default_rng(0).normal(size=(3, 50, 2)), np.ones((4, 2))
    whole = _sums.mean_cos(omega, delta, np)
    monkeypatch.setattr(_sums, "_ELEMENTS", 100)
    np.testing.assert_allclose(_sums.mean_cos(omega, delta, np), whole, rtol=1e-13)


def test_lists_join_any_library(xp):
    omega = [1.0, 0.5, 0.25]
    wanted = by_hand(omega, [0, 1, 2])
    for first, second in itertools.product((omega, xp(omega)), ([0, 1, 2], xp([0, 1, 2]))):
        got = analysis.mean_kernel(first, second)
        np.testing.assert_allclose(xp.host(got) if xp.owns(got) else got, wanted, atol=1e-15)


def test_gradients_flow():
    torch = pytest.importorskip("torch")
    omega = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(analysis.mean_kernel(omega, 3.0), omega)
    np.testing.assert_allclose(gradient, [-1.5 * np.sin(3.0), -1.5 * np.sin(6.0)])


@pytest.mark.parametrize(
    ("frequencies", "delta", "error", "message"),
    [
        (1.0, [1.0], ValueError, "frequencies is a single number"),
        ([], [1.0], ValueError, r"frequencies has shape \(0,\); expected at least one block"),
        (np.ones((3, 0, 2)), [[1.0, 2.0]], ValueError, r"frequencies has shape \(3, 0, 2\)"),
        (np.ones((3, 2)), [1.0, 2.0, 3.0], ValueError, r"delta has shape \(3,\), but frequencies .* k = 2"),
        (np.ones((4, 3, 1)), 1.0, ValueError, r"delta has shape \(\).*use delta\[\.\.\., None\]"),
        (np.ones((4, 3, 1)), np.ones((5, 2, 2, 1)), ValueError, "do not broadcast"),
        ([1.0, np.nan], [1.0], ValueError, "frequencies holds NaN"),
        ([1.0], [np.inf], ValueError, "delta holds NaN or infinity"),
        ([1.0], [1e200], ValueError, r"delta holds .* above 2\*\*500"),
        ([1j], [1.0], TypeError, "frequencies has dtype complex128"),
        ([1.0], [True], TypeError, "delta has dtype bool"),
        ([1.0], "far", TypeError, "delta has type builtins.str"),
        ([1.0], None, TypeError, "delta is None"),
    ],
)
def test_bad_input_is_named(frequencies, delta, error, message):
    with pytest.raises(error, match=message):
        analysis.mean_kernel(frequencies, delta)
