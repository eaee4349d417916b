"""Witnesses: their quadratic forms are what they say, prove what they say, and none speaks against a kernel."""

import math
import pickle
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from lag_functions import FAMILIES, check_is_fixed, family, less_a_wave, refused

from rfrope import bochner
from rfrope.bochner import UndecidedError, Witness, witnesses


def test_a_witness_is_a_value():
    error = refused(less_a_wave(1e-3, 29.0))
    copy = pickle.loads(pickle.dumps(error))
    assert copy.witness == error.witness
    assert hash(copy.witness) == hash(error.witness)
    assert copy.frequency == error.frequency
    assert repr(error.witness) == f"<witness of 89 points, quadratic form {error.witness.value:.3g}>"
    assert str(error).count("89 points") == 1
    check_is_fixed(error.witness, "value", copy.witness.weights, copy.witness.points)
    undecided = pickle.loads(pickle.dumps(UndecidedError("this", "that")))
    assert (str(undecided), undecided.reason, undecided.decides) == ("this; that", "this", "that")


def test_a_witness_bounds_the_distance_of_every_kernel():
    phi = less_a_wave(1e-3, 29.0)
    witness = refused(phi).witness
    nearest, _ = bochner.nearest(phi)
    lags = np.unique(np.abs(witness.points[:, None] - witness.points))
    assert np.max(np.abs(nearest.phi(lags) - phi(lags))) >= -witness.value


def exactly(witness: Witness, phi: Callable[[mp.mpf], mp.mpf]) -> float:
    """The quadratic form of points at even steps: phi in mpmath, sums of products of weights without an FFT."""
    step, w = witness.points[1] - witness.points[0], witness.weights
    products = np.correlate(w, w, "full")[w.size - 1 :]
    return math.fsum(
        float((2 if m else 1) * phi(m * mp.mpf(float(step))) * mp.mpf(float(p))) for m, p in enumerate(products)
    )


def test_a_spectrum_that_is_hardly_negative_about_0_has_a_witness():
    """The negative stretch has a width of 0.05: windows are as wide as 30 scales, on a grid fine for the tail."""
    excess = 1.003
    error = refused(lambda x: np.exp(-np.abs(x)) * (1.0 - excess * np.abs(x)))
    assert error.density == pytest.approx(2.0 * (1.0 - excess) / (2.0 * math.pi), rel=1e-3)
    assert exactly(error.witness, lambda x: mp.exp(-x) * (1 - mp.mpf(excess) * x)) < 0.9 * error.witness.value < 0.0


@pytest.mark.parametrize("name", list(FAMILIES))
def test_no_grid_gives_a_witness_against_a_kernel(name):
    for spacing in (0.01, 0.3, 1.0, 7.0):
        values = np.array(family(name, 1.0).phi(spacing * np.arange(4096.0)))
        assert witnesses.search_grid(values, spacing, witnesses.FORM_ROUNDING) is None
        values[100:] -= 0.5  # and what is no kernel gives one
        assert witnesses.search_grid(values, spacing, witnesses.FORM_ROUNDING) is not None
