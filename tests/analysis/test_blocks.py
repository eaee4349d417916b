"""How fast blocks turn: by hand, at the ends of the floats, and on every library."""

import math
from fractions import Fraction

import numpy as np
import pytest
from owned import check_owned

from rfrope import analysis

PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494")


# -- wavelengths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 4, 5, 3)])
def test_shapes_of_wavelengths(shape, xp):
    omega = np.random.default_rng(0).normal(size=shape)
    wanted = 2.0 * np.pi / (np.abs(omega) if len(shape) == 1 else np.linalg.norm(omega, axis=-1))
    for got, right in ((analysis.wavelengths(xp(omega)), wanted), (analysis.turns(xp(omega), 7.0), 7.0 / wanted)):
        check_owned(xp, got, right, rtol=1e-15)


def test_wavelengths_are_right_to_an_ulp():
    rng = np.random.default_rng(1)
    omega = np.concatenate([[2.0**500, 2.0**-1018, 1e-300, 1.0], np.exp(rng.uniform(-300.0, 300.0, 500))])
    for value, got in zip(omega.tolist(), analysis.wavelengths(omega).tolist(), strict=True):
        exact = 2 * PI / Fraction(value)
        assert abs(Fraction(got) - exact) <= Fraction(math.ulp(got))
        made = analysis.turns([value], 131072.0).item()
        assert abs(Fraction(made) - 131072 * Fraction(value) / (2 * PI)) <= 2 * Fraction(math.ulp(made))


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e149])
def test_wavelengths_of_several_axes_neither_overflow_nor_vanish(size):
    got = analysis.wavelengths([[3.0 * size, 4.0 * size], [0.0, size], [0.0, 0.0]])
    np.testing.assert_allclose(got, [2.0 * np.pi / 5.0 / size, 2.0 * np.pi / size, np.inf], rtol=5e-16)
