"""Sums over lags on a CUDA device: the kernels' text, run on the CPU, against exact moments; cuts, and what is read."""

import re

import mpmath
import numpy as np
import pytest
from emulator import COMPILER, NO_COMPILER, emulation
from sum_problems import QUANTITIES, exact_moments, kernel_moments, mean_cos, plain_mean, plain_moments

import rfrope
from rfrope._backends.cuda import device
from rfrope._backends.cuda import sums as backend
from rfrope._core import array

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)


def normal(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(size=shape) * scale


def test_the_coefficients_are_what_the_comment_says():
    text = device.text("sums")
    body = text[text.index("INLINE double sin_half_turns") : text.index("// What is summed")]
    found = [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-\d+)?", body)]
    with mpmath.workdps(50):
        count, top = 9, (mpmath.mpf("0.5") + mpmath.mpf(2) ** -12) ** 2
        nodes = [top * (1 + mpmath.cos(mpmath.pi * (i + 0.5) / count)) / 2 for i in range(count)]
        powers = mpmath.matrix([[node**j for j in range(count)] for node in nodes])
        values = mpmath.matrix([mpmath.sinpi(mpmath.sqrt(node)) / mpmath.sqrt(node) for node in nodes])
        wanted = [float(c) for c in mpmath.lu_solve(powers, values)]
    assert found[1::-1] + found[2:] == wanted[:-3:-1][::-1] + wanted[-3::-1]


# -- direct sums -------------------------------------------------------------------------------------------------------

FLAT = np.asarray([0.0, 1e-150, 1e-12, 1e-9, -3e-7, 1e-5, 1e-3, 0.02])
PROBLEMS = {  # frequencies and lags, relative error of squared deviations, absolute one of means
    "several parts": (lambda: (normal(2999), normal(130, seed=1)), 1e-12, 2e-15),
    "few lags": (lambda: (normal(999), normal(5, seed=1)), 1e-12, 2e-15),
    "few frequencies": (lambda: (normal(7), normal(300, seed=1)), 1e-12, 2e-15),
    "cos about 0.3, variance 1e-14": (
        lambda: (1.3 + normal(2000, scale=1e-7), np.linspace(0.9, 1.1, 130)),
        1e-7,
        2e-15,
    ),
    "far": (lambda: (normal(50, scale=2.0**50), np.asarray([2.0**8 + 1.0, 3.0])), 1e-12, 2e-15),
    "flat": (lambda: (rfrope.sample("gaussian(scale=4)", 2000, rng=1), FLAT), 1e-11, 2e-16),
    "flat, frequencies of any size": (lambda: (rfrope.sample("exponential(scale=4)", 2000, rng=1), FLAT), 1e-11, 2e-16),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_moments_keep_all_digits_in_any_order_of_threads(name, quantity):
    make, error_of_squares, error_of_mean = PROBLEMS[name]
    omega, lags = make()
    results = []
    for backward in (False, True, False):
        with emulation(backward=backward):
            results.append(np.stack(kernel_moments(backend, omega, lags, quantity)))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    (mean, squares), (exact, exact_squares) = results[0], exact_moments(omega, lags, quantity)
    np.testing.assert_allclose(squares, exact_squares, rtol=error_of_squares, atol=1e-300)
    np.testing.assert_allclose(mean, exact, rtol=1e-11 if quantity == "sin" else 0, atol=error_of_mean)
    assert np.all(mean[lags == 0.0] == (0.0 if quantity == "sin" else 1.0))


@pytest.mark.parametrize("n_lags", [1, 3, 63, 64, 130, 257])
@pytest.mark.parametrize("count", [1, 64, 255, 257, 513, 2503])
def test_sizes_that_no_tile_divides(count, n_lags):
    for axes in (1, 2, 3, 4) if count < 600 and n_lags < 100 else (1,):
        omega, lags = normal(count, axes, seed=n_lags), normal(n_lags, axes, seed=count, scale=4.0)
        exact, exact_squares = exact_moments(omega, lags)
        results = []
        for backward in (False, True):
            with emulation(backward=backward):
                results.append(np.stack([mean_cos(backend, omega, lags), *kernel_moments(backend, omega, lags)]))
        assert np.array_equal(*results)
        cosines, mean, squares = results[0]
        np.testing.assert_allclose(cosines, exact, rtol=0, atol=2e-15)
        np.testing.assert_allclose(mean, exact, rtol=0, atol=2e-15)
        np.testing.assert_allclose(squares, exact_squares, rtol=5e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("count", "n_lags", "n_heads"), [(1, 1, 1), (64, 8192, 1), (2**20, 1, 1), (2**20, 2**17, 1), (2**30, 1, 1)]
)
@pytest.mark.parametrize("axes", [1, 2])
def test_cuts_fill_a_device_and_bound_memory(count, n_lags, n_heads, axes):
    cut = backend._cut(count, n_lags, n_heads, axes)
    blocks = cut.parts * cut.tiles(n_lags, cut.lags_each) * n_heads
    assert (cut.parts - 1) * cut.part < count <= cut.parts * cut.part
    assert 256 % cut.lanes == 0
    assert blocks < 2**31
    assert cut.parts * n_lags * 16 <= 2**24 + 16 * n_lags
    if count * n_lags >= 2**20:
        assert blocks >= 64
    if count * n_lags >= 2**30:
        assert blocks >= 2**11


@pytest.mark.campaign
def test_many_axes_of_heads():
    shape = (2, 1, 2, 1, 2, 1, 2)
    omega, lags = normal(*shape, 5, 1), normal(*(3 - n for n in shape), 3, 1, seed=1)
    assert len(backend._head_axes(omega, lags)) > backend._HEAD_AXES
    with emulation():
        got = mean_cos(backend, omega, lags)
    np.testing.assert_allclose(got, plain_mean(omega, lags), rtol=0, atol=2e-15)


def test_torch_tensors_give_torch_tensors(torch):
    xp, omega, lags = array.namespace(x=torch.ones(1)), normal(2, 50, 1), normal(2, 7, 1, seed=1).astype(np.float32)
    delta = torch.asarray(lags[0, :, 0])
    with emulation() as ran, pytest.MonkeyPatch.context() as patch:  # which ends before the emulation
        patch.setattr(device, "view", array.view_as_numpy)  # tensors on the CPU, seen as CuPy would see them
        means = [mean_cos(backend, torch.asarray(omega), torch.asarray(lags), xp)]
        means.append(mean_cos(backend, torch.asarray(omega[0, :, 0]), delta[2], xp))
        moments = kernel_moments(backend, omega[0, :, 0], delta)
        moments += kernel_moments(backend, torch.asarray(omega[0]), delta[:, None])
    assert len(ran) == 12
    assert all(type(v) is torch.Tensor and v.dtype == torch.float64 for v in (*means, *moments))
    lags = lags.astype(float)
    np.testing.assert_allclose(means[0].numpy(), plain_mean(omega, lags), rtol=0, atol=2e-15)
    np.testing.assert_allclose(means[1].numpy(), plain_mean(omega[0, :, 0], lags[0, 2, 0]), rtol=0, atol=2e-15)
    plain = plain_moments(omega[0, :, 0], lags[0, :, 0])
    for got, wanted in zip(moments, (*plain, *plain), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-13, atol=2e-15)
