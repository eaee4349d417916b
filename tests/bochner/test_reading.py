"""Functions of the user are called with care, and resolved as far as they go."""

import numpy as np
import pytest

from rfrope import bochner
from rfrope.bochner import reading, tabulated


def test_a_function_may_write_to_its_argument():
    """It gets arrays of its own."""

    def spoiling(x):
        found = np.exp(-np.abs(x))
        x[...] = 7.0
        return found

    made, other = (bochner.from_function(f) for f in (spoiling, lambda x: np.exp(-np.abs(x))))
    np.testing.assert_array_equal(made.phi([0.5, 3.0]), other.phi([0.5, 3.0]))


def test_a_detail_at_a_whole_lag_is_resolved():
    """It lies beyond where samples of the octaves find anything."""
    place, height = 1000.0, 1e-3

    def phi(x):
        bump = height * np.clip(1.0 - 2.0 * np.abs(np.abs(x) - place), 0.0, None)
        return np.clip(1.0 - np.abs(x), 0.0, None) + bump

    found = reading.read_lags(phi, tabulated.MEASURES[1], 1.0, phi(np.arange(2000.0)))
    assert found.scale * found.pieces.edges[-1] >= place + 1.0
    assert found.pieces(np.array([place])) == pytest.approx(height, rel=1e-9)
