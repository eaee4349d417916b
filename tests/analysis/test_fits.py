"""Frequencies beside others: known laws are found again, and scaling does what it must."""

import dataclasses

import numpy as np
import pytest
from campaign import campaign
from conftest import rows, tuples

import rfrope
from rfrope import analysis, kernels

# -- fit_kernel: what was put in comes out -----------------------------------------------------------------------------

LAWS = rows("analysis/fits.json", "laws")


@campaign
@pytest.mark.parametrize("text", LAWS)
def test_a_law_is_found_from_its_frequencies(text):
    law = kernels.parse(text)
    found = analysis.fit_kernel(rfrope.sample(law, 256, design="quantile"), 250)
    assert found[0].kernel.name == law.name, [fit.kernel.name for fit in found]
    for field in dataclasses.fields(law):
        assert getattr(found[0].kernel, field.name) == pytest.approx(getattr(law, field.name), rel=0.03)
    assert found[0].rms <= 0.02


@campaign
def test_standard_rope_is_log_uniform():
    best = analysis.fit_kernel(rfrope.geometric(64, base=1e4), 131072)[0]
    assert best.kernel.name == "log_uniform"
    assert best.kernel.low == pytest.approx(1e-4, rel=0.2)
    assert best.kernel.high == pytest.approx(1.0, rel=0.15)


def test_the_fit_is_a_least_squares_minimum():
    """No step away from it is better, and its errors are those at the lags that the documentation names."""
    omega, max_lag = rfrope.geometric(48, base=3000.0), 3000
    lags = np.unique(np.rint(np.concatenate([np.arange(257), 256.0 * (3000.0 / 256.0) ** (np.arange(456) / 455.0)])))
    curve = analysis.mean_kernel(lags, omega)
    for fit in analysis.fit_kernel(omega, max_lag, names=["gaussian", "matern", "power_exponential", "log_uniform"]):
        error = np.abs(fit.kernel(lags) - curve)
        assert fit.rms == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)
        assert fit.sup == pytest.approx(np.max(error), rel=1e-9)
        for field in dataclasses.fields(fit.kernel):
            if field.name != "ndim":
                for factor in (0.99, 1.01):
                    value = factor * getattr(fit.kernel, field.name)
                    moved = dataclasses.replace(fit.kernel, **{field.name: value})
                    assert np.mean((moved(lags) - curve) ** 2) > np.mean(error**2)


def test_the_list_is_sorted_and_names_choose():
    omega = rfrope.geometric(64)
    found = analysis.fit_kernel(omega, 512)
    assert {fit.kernel.name for fit in found} == set(kernels.names()) - {"ball", "spectral_mixture"}
    two_digits = [float(f"{fit.rms:.1e}") for fit in found]
    assert two_digits == sorted(two_digits)
    assert all(fit.rms <= fit.sup for fit in found)
    some = analysis.fit_kernel(omega, 512, names=["rbf", "matern"])
    assert some == tuple(fit for fit in found if fit.kernel.name in ("gaussian", "matern"))
    assert analysis.fit_kernel(omega, 512, names="matern") == some[:1]


def test_fewer_parameters_come_first_among_equals():
    omega = rfrope.sample("exponential(scale=40)", 512, design="quantile")
    found = analysis.fit_kernel(omega, 400, names=["power_exponential", "matern", "exponential"])
    assert found[0].kernel.name == "exponential"
    assert min(found[1].rms, found[2].rms) <= found[0].rms  # the others contain it


@pytest.mark.parametrize(
    ("law", "name", "limits"),
    tuples("analysis/fits.json", "limits"),
)
def test_limits_of_the_search_are_named(law, name, limits):
    (found,) = analysis.fit_kernel(rfrope.sample(law, 64, design="quantile"), 64, names=[name])
    assert found.at_limit == limits
    if name == "power_exponential":
        assert found.kernel.exponent == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("parts", ["gaussian(scale=90)", pytest.param("exponential(scale=90)", marks=campaign)])
def test_a_mixture_is_found_with_its_weights_and_is_as_near_as_its_blocks_can_be(parts):
    law = kernels.parse(f"mixture([0.7, 0.3], [gaussian(scale=6), {parts}])")
    omega = rfrope.sample(law, 256, design="quantile")
    best, second, *_ = analysis.fit_kernel(omega, 512, mixtures=True)
    found = dict(zip(best.kernel.weights, best.kernel.kernels, strict=True))
    for (weight, one), wanted, part in zip(sorted(found.items())[::-1], (0.7, 0.3), law.kernels, strict=True):
        assert (weight, one.name) == (pytest.approx(wanted, abs=0.01), part.name)
        assert one.scale == pytest.approx(part.scale, rel=0.01)
    assert best.rms == pytest.approx(best.design_rms, rel=0.02)
    assert second.rms > 1.3 * second.design_rms


def test_frequencies_that_never_turn():
    best = analysis.fit_kernel(np.zeros(8), 1000)[0]
    assert (best.kernel, best.rms, best.sup) == (rfrope.kernel("constant"), 0.0, 0.0)


@campaign
@pytest.mark.parametrize("omega", [[2.0**500, 1.0], [5e-324, 0.5], [100.0, 250.0]])
def test_frequencies_far_from_all_ranges(omega):
    for fit in analysis.fit_kernel(omega, 50):
        assert np.isfinite([fit.rms, fit.sup]).all()
        assert fit.rms <= 2.0


@campaign
def test_families_of_others_are_fitted_too(monkeypatch):
    """A family that was registered is found by the names of its parameters."""
    monkeypatch.setattr(kernels.registry, "_RECORDS", list(kernels.records()))

    def squared_cauchy(scale: float = 1.0, ndim: int = 1) -> rfrope.Kernel:
        made = rfrope.kernel("cauchy", scale=scale, ndim=ndim)
        return made * made

    def unknown(warmth: float = 1.0) -> rfrope.Kernel:
        return rfrope.kernel("gaussian", scale=warmth)

    def plane(scale: float = 1.0) -> rfrope.Kernel:
        return rfrope.kernel("gaussian", scale=scale, ndim=2)

    for factory in (squared_cauchy, unknown, plane):
        kernels.register(factory.__name__, factory, formula="", law="")
    law = squared_cauchy(77.0)
    found = analysis.fit_kernel(rfrope.sample(law, 256, design="quantile"), 1000)
    assert len(found) == 12  # neither `unknown` nor `plane`
    (product,) = (fit for fit in found if fit.kernel.name == "product")
    assert product.kernel.factors[0].scale == pytest.approx(77.0, rel=0.02)
    assert product.rms <= 0.02
    for name, obstacle in (("unknown", "a parameter 'warmth' for which no search is known"), ("plane", "several axes")):
        with pytest.raises(ValueError, match=f"names holds '{name}', which has {obstacle}"):
            analysis.fit_kernel([1.0], 10, names=[name])
