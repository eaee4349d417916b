"""Biases of relatives: published formulas and code, the kernels that they are after softmax, and what has none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
from conftest import library

import rfrope
from rfrope.analysis import toeplitz_defect
from rfrope.heads import fire_bias, lag_bias, t5_bias

LAGS = np.array([0.0, -1.0, 2.0, -3.5, 40.0])
AT = np.arange(12)
BETWEEN = (AT - AT[:, None]).astype(float)


def eigenvalues(matrix, without_constants=False):
    """All, or those on vectors that sum to 0."""
    if without_constants:
        share = np.eye(len(matrix)) - 1.0 / len(matrix)
        matrix = share @ matrix @ share
    return np.linalg.eigvalsh(matrix)


@pytest.mark.parametrize("form", ["power", "log"])
def test_lag_bias_is_its_formula(form):
    found = lag_bias(LAGS, [[0.5], [2.0]], shape=0.7, form=form)
    distance = np.abs(LAGS) ** 0.7 if form == "power" else np.log1p(0.7 * np.abs(LAGS))
    np.testing.assert_allclose(found, -np.array([[0.5], [2.0]]) * distance, atol=1e-13)


def test_alibi_is_an_exponential_kernel_after_softmax():
    """Slopes of 8 heads, 1/2 to 1/256; softmax of q . k and the bias is exp(q . k) times the kernel, normed."""
    slopes = 2.0 ** (-np.arange(1.0, 9.0))
    bias = lag_bias(BETWEEN, slopes[:, None, None])
    kernels = np.stack([rfrope.kernel("exponential", scale=1.0 / m).phi(BETWEEN) for m in slopes])
    np.testing.assert_allclose(np.exp(bias), kernels, rtol=1e-13)
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 8, 12, 16))
    scores = np.tril(q @ np.swapaxes(k, 1, 2) / 4.0)
    seen = np.tri(12)
    weights = seen * np.exp(scores) * kernels
    wanted = weights / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(scipy.special.softmax(np.where(seen > 0, scores + bias, -np.inf), axis=-1), wanted)


def test_a_bias_is_only_conditionally_positive_definite():
    for form, shape in (("power", 1.0), ("power", 2.0), ("log", 0.5)):
        bias = lag_bias(BETWEEN, 0.5, shape=shape, form=form)
        assert eigenvalues(bias)[0] < -1.0
        assert eigenvalues(bias, True)[0] > -1e-10
        assert eigenvalues(np.exp(bias))[0] > -1e-10
    assert eigenvalues(-(np.abs(BETWEEN) ** 3.0), True)[0] < -1.0  # which is why exponents end at 2


@pytest.mark.parametrize("shape", [0.4, 1.0, 2.0])
def test_kerple_power_is_a_kernel_of_the_registry(shape):
    kernel = rfrope.kernel("power_exponential", exponent=shape, scale=0.3 ** (-1.0 / shape))
    np.testing.assert_allclose(np.exp(lag_bias(LAGS, 0.3, shape=shape)), kernel.phi(LAGS), rtol=1e-10, atol=1e-300)


def test_kerple_log_is_a_mixture_of_exponentials():
    """Its law: rates over 0.8 with density ``g^(w-1) exp(-g) / Gamma(w)``."""
    for lag in LAGS[1:]:
        for weight in (1.5, 3.0):
            mixture = scipy.integrate.quad(
                lambda g, lag=lag, weight=weight: (
                    g ** (weight - 1) * math.exp(-g - g * 0.8 * abs(lag)) / math.gamma(weight)
                ),
                0.0,
                np.inf,
            )[0]
            assert abs(mixture - np.exp(lag_bias(lag, weight, shape=0.8, form="log"))) < 1e-9


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets_are_those_of_transformers(bidirectional):
    """Apache 2.0, run and not copied."""
    torch = library("torch").module
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    lags = torch.arange(-600, 601)
    for n, most in ((32, 128), (8, 20), (64, 1000)):
        wanted = t5.T5Attention._relative_position_bucket(lags, bidirectional, n, most)
        found = t5_bias(lags, torch.arange(float(n)), max_distance=most, bidirectional=bidirectional)
        assert torch.equal(found, wanted.float())


def test_t5_takes_the_buckets_of_lags():
    table = np.random.default_rng(1).standard_normal((3, 8))
    found = t5_bias(np.array([[0, -1, -2, -5], [-300, 1, 7, 400]]), table, max_distance=20)
    np.testing.assert_array_equal(found, table[:, [[0, 1, 2, 4], [7, 0, 0, 0]]])


LEARNED = {  # functions of what a model learns of a bias, and values of it
    "power": (lambda w, s: lag_bias(LAGS[:3], w, shape=s), (0.4, 1.3)),
    "log": (lambda w, s: lag_bias(LAGS[:3], w, shape=s, form="log"), (0.4, 1.3)),
    "fire": (
        lambda c, t: fire_bias([1.0, 4.0, 9.5], [1.0, 4.0, 9.5], lambda x: -2.0 * x.sin(), c=c, threshold=t),
        (0.7, 5.0),
    ),
    "t5": (
        lambda table: t5_bias([0, -1, -300, -400], table, max_distance=20),
        (np.linspace(-1.0, 1.0, 16).reshape(2, 8),),
    ),
}


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_reach_what_is_learned(name):
    torch = library("torch").module
    function, values = LEARNED[name]
    learned = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]
    assert torch.autograd.gradcheck(function, learned)
    if name == "fire":  # of numbers alone it is the same
        at = torch.tensor([1.0, 4.0, 9.5], dtype=torch.float64)
        plain = fire_bias(at, at, lambda x: -2.0 * x.sin(), c=0.7, threshold=5.0)
        torch.testing.assert_close(function(*learned), plain, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8"])
def test_t5_lags_may_be_narrow(dtype):
    lags = np.array([-128, -100, 0, 5, 127] if dtype != "uint8" else [0, 5, 255], dtype)
    for bidirectional in (False, True):
        found = t5_bias(lags, np.arange(400.0), max_distance=1000, bidirectional=bidirectional)
        wide = t5_bias(lags.astype("int64"), np.arange(400.0), max_distance=1000, bidirectional=bidirectional)
        np.testing.assert_array_equal(found, wide)
    assert t5_bias(np.array([-128], "int8"), np.arange(32.0))[0] == 31.0


def test_a_table_of_t5_need_not_be_a_kernel():
    bias = t5_bias(AT - AT[:, None], [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0], bidirectional=True)
    np.testing.assert_array_equal(bias, bias.T)
    assert eigenvalues(np.exp(bias))[0] < -0.5
    assert eigenvalues(bias, True)[0] < -0.5
    assert toeplitz_defect(bias) < 1e-30


def test_fire_is_kerple_up_to_its_threshold_and_then_no_function_of_the_lag():
    rows = np.arange(0.0, 12.0)
    near, far = (fire_bias(x, x, lambda share: -2.0 * share, c=0.5, threshold=16.0) for x in (rows, rows + 100.0))
    kerple = lag_bias(np.minimum(BETWEEN, 0.0), 2.0 / math.log1p(0.5 * 16.0), shape=0.5, form="log")
    np.testing.assert_allclose(near, kerple, atol=1e-14)
    wanted = np.array([[-2.0 * math.log1p(0.5 * max(m - n, 0)) / math.log1p(0.5 * (100 + m)) for n in AT] for m in AT])
    np.testing.assert_allclose(far, wanted, atol=1e-14)
    assert toeplitz_defect(near) < 1e-28 < 1e-5 < toeplitz_defect(far)
