"""How near frequencies are to a law, as a number that gradients go through."""

import numpy as np
import pytest

import rfrope
from rfrope import analysis
from rfrope.moments import kernel_gap


@pytest.mark.parametrize("shape", [(8,), (2, 4, 1)])
def test_the_gap_is_the_mean_square_over_whole_lags(xp, shape):
    omega, lags = np.geomspace(0.01, 1.0, 8).reshape(shape), np.arange(40.0)
    curve = analysis.mean_kernel(lags if len(shape) == 1 else lags[:, None], omega)
    wanted = np.mean((curve - rfrope.kernel("matern", scale=9.0).phi(lags)) ** 2, axis=-1)
    np.testing.assert_allclose(xp.host(kernel_gap(xp(omega), "matern(scale=9)", 40)), wanted, rtol=1e-12)


def test_gradients_reach_frequencies_and_the_parameters_of_the_law(torch):
    omega = torch.tensor(rfrope.geometric(6), requires_grad=True)
    scale = torch.tensor(8.0, dtype=torch.float64, requires_grad=True)
    lags = torch.arange(30, dtype=torch.float64)
    gap = lambda omega, scale: kernel_gap(omega, torch.exp(-lags / scale), 30)  # noqa: E731
    assert torch.autograd.gradcheck(gap, (omega, scale))
