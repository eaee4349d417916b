"""Functions on panels: transforms, integrals and products against closed forms, and jumps to the last place."""

import mpmath
import numpy as np
import pytest
from scipy import special

from rfrope.bochner import UndecidedError, piecewise
from rfrope.bochner.tabulated import Inverse


def test_spherical_bessel_functions():
    z = np.concatenate([[0.0], np.geomspace(1e-10, 1e6, 2000), np.linspace(0.0, 60.0, 1001)])
    exact = np.array([special.spherical_jn(n, z) for n in range(25)]).T
    assert np.max(np.abs(piecewise.spherical_bessel(25, z) - exact)) < 5e-15


def pieces_of(function) -> piecewise.Pieces:
    return piecewise.build(function, np.arange(65.0), lambda c, _: 1e-17 + 0.0 * c, tolerance=1e-14, budget=1000)


def test_transforms_of_pieces():
    law = pieces_of(lambda w: np.exp(-w))
    x = np.linspace(0.0, 50.0, 301)
    np.testing.assert_allclose(law.fourier(x), 1.0 / (1.0 + x * x), atol=1e-14)
    np.testing.assert_allclose(law.fourier(x, sine=True), x / (1.0 + x * x), atol=1e-14)
    np.testing.assert_allclose(law.integral_above()(x), np.exp(-x), atol=1e-14)
    np.testing.assert_allclose(law.times_argument()(x), x * np.exp(-x), atol=1e-14)
    np.testing.assert_allclose(law.until(10.3)(x), np.where(x <= 10.3, np.exp(-x), 0.0), atol=1e-14)
    w = np.geomspace(1e-6, 20.0, 100)
    np.testing.assert_allclose(piecewise.abel(law, w), special.k0(w), rtol=1e-11)


def test_inverse_of_a_distribution_function():
    inverse = Inverse(pieces_of(lambda w: np.exp(-w)))
    upper = np.concatenate([np.geomspace(1e-14, 0.999, 500), 1.0 - np.geomspace(1e-12, 0.1, 50)])
    np.testing.assert_allclose(inverse(upper), -np.log(upper), rtol=1e-9, atol=1e-15)
    assert inverse(np.array([[0.5, 0.25]])).shape == (1, 2)


def test_transforms_of_far_panels_are_exact():
    near, w = 2.0**20, 1000.1  # phases of 1e9
    panel = piecewise.Pieces(np.array([near, near + 1.0]), np.ones((1, 1)))
    with mpmath.workprec(200):
        low, high = mpmath.mpf(near) * w, mpmath.mpf(near + 1.0) * w
        wanted = {1: (mpmath.sin(high) - mpmath.sin(low)) / w, 3: (mpmath.cos(low) - mpmath.cos(high)) / w}
    for ndim, value in wanted.items():
        (found,) = panel.fourier(np.array([w]), sine=ndim > 1, tails=True)
        assert found == pytest.approx(float(value), abs=1e-16)


@pytest.mark.parametrize("place", [0.3, 2.0**-90])
def test_a_jump_is_resolved_to_the_last_place(place):
    """Panels next to it are good once no float lies between their ends: the integral is right, and the work ends."""
    unit = np.array([0.0, 1.0])
    found = piecewise.build(
        lambda x: np.where(x > place, 1.0, 0.0), unit, lambda _, half: 1e-14 / half, tolerance=1e-13, budget=2000
    )
    assert found.mass == pytest.approx(1.0 - place, abs=1e-12)
    cusp = piecewise.build(np.sqrt, unit, lambda _, half: 0.0 * half, tolerance=1e-13, budget=1100)
    assert cusp.mass == pytest.approx(2.0 / 3.0, abs=1e-12)
    with pytest.raises(UndecidedError):
        piecewise.build(lambda w: np.sin(1e6 * w), unit, lambda c, _: 0.0 * c, tolerance=1e-13, budget=50)
