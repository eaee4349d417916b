"""Autocorrelations that are nearly those of spectral lines: a kernel that has them, or a refusal whose advice helps."""

import contextlib
import math
import re

import numpy as np
import pytest
from campaign import campaign, sparse
from lag_functions import SMOOTH

from rfrope import bochner
from rfrope.bochner import NotPositiveDefiniteError, UndecidedError


def of_lines(seed: int) -> np.ndarray:
    """Values of up to four spectral lines, in most cases with a little white noise."""
    rng = np.random.default_rng([27, seed])
    lines, n = int(rng.integers(1, 5)), int(rng.integers(2, 24))
    theta, mass = rng.uniform(0.02, math.pi - 0.02, lines), rng.dirichlet(np.ones(lines))
    values = np.cos(np.outer(np.arange(n + 1.0), theta)) @ mass
    values[1:] /= 1.0 + (10.0 ** rng.uniform(-13.0, -3.0) if rng.random() < 0.7 else 0.0)
    return values


def check(values: np.ndarray, ridge: float) -> None:
    """The kernel has the values that a ridge makes of these, and few panels."""
    made = bochner.from_autocorrelation(values, ridge=ridge)
    wanted = np.append(values[0], values[1:] / (1.0 + ridge))
    np.testing.assert_allclose(made.phi(np.arange(float(values.size))), wanted, atol=1e-12)
    assert made.certificate.sup_error < 1e-12
    assert made.law.halves.size < 2000
    assert np.all(made.density(np.linspace(0.0, math.pi, 1000)) >= 0.0)


@campaign
@pytest.mark.parametrize("batch", sparse(range(30), lambda batch: batch % 10 == 0, 27))
def test_lines_with_a_little_noise(batch):
    for seed in range(10 * batch, 10 * batch + 10):
        values = of_lines(seed)
        with contextlib.suppress(UndecidedError):
            check(values, 0.0)
        check(values, 1e-9)
        check(values, 1e-6)


def test_a_cosine_with_a_ridge():
    values = np.cos(0.7 * np.arange(3.0))
    check(values, 1e-9)
    assert bochner.from_autocorrelation(values, ridge=1e-9).transport(0.75) == pytest.approx(0.7, abs=1e-6)


@pytest.mark.parametrize("count", [60, 200])
@pytest.mark.parametrize("phi", SMOOTH, ids=["cosine", "gaussian", "cauchy", "close lines", "ten lines", "constant"])
def test_many_values_of_smooth_functions(phi, count):
    check(phi(np.arange(count + 1.0) / 200.0), 1e-9)


def without_a_law(seed: int) -> np.ndarray:
    rng = np.random.default_rng([28, seed])
    n = int(rng.integers(2, 40))
    lag = np.arange(n + 1.0)
    values = [
        rng.uniform(-1.0, 1.0, n + 1),
        np.exp(-0.5 * (lag / 5.0) ** 2) + 1e-3 * rng.normal(size=n + 1),
        np.maximum(1.0 - (lag / 10.0) ** 2, 0.0),
        np.cos(0.3 * lag) + 10.0 ** -rng.uniform(1.0, 12.0) * (lag == n),
    ][seed % 4]
    values[0] = 1.0
    return values


@campaign
@pytest.mark.parametrize("batch", sparse(range(10), lambda batch: batch == 0, 9))
def test_the_ridge_that_would_repair_does(batch):
    refused = 0
    for seed in range(40 * batch, 40 * batch + 40):
        values = without_a_law(seed)
        try:
            bochner.from_autocorrelation(values)
        except UndecidedError:
            check(values, 1e-9)
        except NotPositiveDefiniteError as error:
            ridge = float(re.search(r"ridge=(\S+) would repair", str(error))[1])
            made = bochner.from_autocorrelation(values, ridge=ridge)
            assert made.certificate.sup_error < 1e-9
            refused += 1
    assert refused > 20
