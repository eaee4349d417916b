"""Gradients where lengths, roots and quotients have none of their own: at zero, at equal points, next to zero.

A matrix of lags has a zero diagonal, so a NaN there would spoil every gradient. First and second derivatives are held
against mpmath's.
"""

import mpmath as mp
import numpy as np
import problems
import pytest
from campaign import sparse
from conftest import library

import rfrope
from rfrope import analysis, kernels, moments

SIZES = (0.0, 1e-12, 1e-9, 1e-6, 1e-3, 0.7)  # of lags, in units of the length scale
DIRECTIONS = {1: ((1.0,),) * 2, 2: ((0.6, -0.8), (0.8, 0.6)), 3: ((0.48, -0.64, 0.6), (0.8, 0.6, 0.0))}
EVERY = problems.KERNELS
FEW = {str(one) for one in {(one.family, one.kernel.ndim == 1): one for one in EVERY}.values()}


def smoothness(kernel) -> float:
    """Order of the first term of Phi at 0 that is no whole power of the square."""
    rough = {"exponential": 1.0, "matern": getattr(kernel, "nu", 0.0) * 2.0}
    order = (rough | {"power_exponential": getattr(kernel, "exponent", 2.0)}).get(kernel.name, 4.0)
    return 4.0 if kernel.name == "power_exponential" and order == 2.0 else order


def exact(problem, at, along, across, step):
    """Slope along a direction, and second derivatives along both, by central differences of 90 digits."""

    def phi(direction, times):
        return problems.phi_reference(
            problem, [mp.mpf(x) + times * step * mp.mpf(v) for x, v in zip(at, direction, strict=True)]
        )

    middle, (low, high) = phi(along, 0), (phi(along, -1), phi(along, 1))
    seconds = [(phi(v, 1) - 2 * middle + phi(v, -1)) / step**2 for v in (along, across)]
    return float((high - low) / (2 * step)), *map(float, seconds)


def by_torch(kernel, at, along, across):
    torch = library("torch").module
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    along, across = (torch.tensor(v, dtype=torch.float64) for v in (along, across))
    gradient = torch.autograd.grad(kernel.phi(x if kernel.ndim > 1 else x[0]), x, create_graph=True)[0]
    seconds = [
        torch.sum(v * torch.autograd.grad(torch.sum(v * gradient), x, retain_graph=True)[0]) for v in (along, across)
    ]
    return tuple(v.item() for v in (torch.sum(along * gradient), *seconds))


def by_jax(kernel, at, along, across):
    library("jax")
    import jax

    slope = jax.grad(lambda x: kernel.phi(x if kernel.ndim > 1 else x[0]))
    at, along, across = (jax.numpy.asarray(v) for v in (at, along, across))
    seconds = [v @ jax.jvp(slope, (at,), (v,))[1] for v in (along, across)]
    return tuple(float(v) for v in (along @ slope(at), *seconds))


@pytest.mark.parametrize(
    "problem",
    sparse([one for one in EVERY if one.kernel.ndim < 3 or str(one) in FEW], lambda one: str(one) in FEW),
    ids=str,
)
def test_derivatives_of_kernels_at_and_near_zero(problem, monkeypatch):
    check(problem, by_torch, SIZES, monkeypatch)


@pytest.mark.parametrize(
    "problem",
    [one for one in EVERY if str(one) in FEW and (one.kernel.ndim > 1 or one.family == "log_uniform")],
    ids=str,
)
def test_derivatives_of_kernels_in_jax(problem, monkeypatch):
    check(problem, by_jax, (0.0, 1e-9), monkeypatch)


def check(problem, derivatives, sizes, monkeypatch):
    monkeypatch.setattr(problems, "DIGITS", 90)
    kernel, smooth = problem.kernel, smoothness(problem.kernel)
    along, across = DIRECTIONS[kernel.ndim]
    unit = min(problem.lengths)
    for size in sizes:
        at = [size * unit * v for v in along]
        with mp.workdps(90):
            wanted = exact(problem, at, along, across, mp.mpf(unit) * (size or 1) * mp.mpf(10) ** -14)
        got = derivatives(kernel, at, along, across)
        assert np.all(np.isfinite(got)), (size, got)
        assert got[0] == pytest.approx(wanted[0], rel=1e-7, abs=1e-15 / unit if size else 1e-30), size
        if size or smooth > 2.0:  # else the second derivative is not finite
            close = 1e-6 if smooth >= 3.0 else 1e-2 if size else 1.0  # next to zero it varies with the lag
            bend = max(map(abs, wanted[1:]))
            assert got[1:] == pytest.approx(wanted[1:], abs=close * bend), size


Q, K = np.random.default_rng(0).normal(size=(2, 8))
AT_ZERO = {
    "relative_error": lambda x, kernel: moments.relative_error(like(x, Q), like(x, K), x, kernel),
    "score_variance": lambda x, kernel: moments.score_variance(like(x, Q), like(x, K), x, kernel),
    "polar_error": lambda x, kernel: moments.polar_error(abs(like(x, Q)), abs(like(x, K)), x, kernel, shift=like(x, Q)),
    "expected_score": lambda x, kernel: moments.expected_score(like(x, Q), like(x, K), x, kernel),
    "stderr of the band": lambda x, kernel: moments.mean_kernel_band(x, kernel, n_blocks=8).stderr,
    "upper end of the band": lambda x, kernel: moments.mean_kernel_band(x, kernel, n_blocks=8).upper,
    "density": lambda x, kernel: kernels.parse(kernel).density(x),
    "standard error": lambda x, kernel: rfrope.estimate_kernel(x, kernel, n_samples=8, rng=0).stderr,
    "variance of the estimate": lambda x, kernel: (
        rfrope.estimate_scores(like(x, Q), like(x, K), x, kernel, n_trials=8, rng=0).variance.stderr
    ),
    "wavelengths": lambda x, kernel: analysis.wavelengths(x[None, None, :] if x.ndim else x[None]),
    "turns": lambda x, kernel: analysis.turns(x[None, None, :] if x.ndim else x[None], 100.0),
}  # fmt: skip


def like(x, values):
    return library("torch").module.tensor(values)


@pytest.mark.parametrize("name", AT_ZERO)
@pytest.mark.parametrize("kernel", ["gaussian(scale=3{})", "matern(nu=1.5, scale=3{})", "exponential(scale=3{})"])
@pytest.mark.parametrize("axes", [1, 2])
def test_gradients_at_zero_are_those_of_both_sides(name, kernel, axes):
    """A function that is even about zero has the gradient 0 there: also where it has a kink."""
    torch, kernel = library("torch").module, kernel.format("" if axes == 1 else f", ndim={axes}")
    x = torch.zeros(() if axes == 1 else (axes,), dtype=torch.float64, requires_grad=True)
    value = AT_ZERO[name](x, kernel)
    gradient = torch.autograd.grad(value.sum(), x, allow_unused=True)[0]
    if gradient is not None:
        np.testing.assert_array_equal(gradient.numpy(), 0.0)
