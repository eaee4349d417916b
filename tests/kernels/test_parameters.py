"""Parameters of kernels in their normal form."""

from __future__ import annotations

import numpy as np
import pytest

from rfrope._core import arguments
from rfrope.kernels import parameters


def test_lengths_have_one_normal_form():
    assert parameters.per_axis("scale", 3, 2) == 3.0
    assert parameters.per_axis("scale", np.asarray([3, 5]), 2) == (3.0, 5.0)
    assert parameters.per_axis("scale", (3,), 1) == 3.0
    assert isinstance(parameters.per_axis("scale", np.float32(3.0), 1), float)
    with pytest.raises(ValueError, match=r"scale is \(1, 2, 3\), 3 values; expected one number or 2"):
        parameters.per_axis("scale", (1, 2, 3), 2)


@pytest.mark.parametrize("bad", [0, -1.0, np.nan, np.inf, 10**400])
def test_lengths_are_positive_and_finite(bad):
    with pytest.raises(ValueError, match=r"scale is .*; expected a positive finite number"):
        parameters.per_axis("scale", bad, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 10**400])
def test_numbers_are_finite(bad):
    assert arguments.finite("means", -3) == -3.0
    with pytest.raises(ValueError, match=r"^means is .*; expected a finite number"):
        arguments.finite("means", bad)


def test_shares_keep_what_sums_to_one_and_normalise_the_rest():
    assert parameters.shares("weights", [0.1] * 10) == (0.1,) * 10
    third = parameters.shares("weights", np.full(3, 0.33333333333))
    assert sum(third) == pytest.approx(1.0, abs=1e-15)
    assert parameters.shares("weights", third) == third
    for bad, kind in (([0.5], ValueError), ("ab", TypeError), (3.0, TypeError), ([[1.0]], TypeError)):
        with pytest.raises(kind, match=r"^weights is "):
            parameters.shares("weights", bad)


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1.0, 1e150, 1e300])
def test_radius_at_any_size(size):
    found = parameters.radius(size * np.array([[3.0, -4.0], [0.0, 0.0], [0.0, np.inf], [1.0, np.nan]]), np)
    np.testing.assert_allclose(found, [5.0 * size, 0.0, np.inf, np.nan], rtol=1e-15)


def test_volume_and_radius():
    assert parameters.volume(3.0, 2) == 9.0
    assert parameters.volume((3.0, 5.0), 2) == 15.0
    assert parameters.radius(np.array([[3.0, -4.0]]), np).tolist() == [5.0]
    assert parameters.radius(np.array([[-3.0]]), np).tolist() == [3.0]


def test_matrices_are_square_and_invertible():
    np.testing.assert_array_equal(parameters.square_matrix("matrix", [[0, 1], [2, 0]], 2), [[0.0, 1.0], [2.0, 0.0]])
    for bad, kind in (
        ([[1, 2], [2, 4]], ValueError),
        ([[1, 2]], ValueError),
        ([[1, 2], [3]], TypeError),
        ("ab", TypeError),
    ):
        with pytest.raises(kind, match=r"^matrix "):
            parameters.square_matrix("matrix", bad, 2)


@pytest.mark.parametrize(("off", "taken"), [(1e-10, True), (1e-8, False), (-1e-10, True), (-1e-8, False)])
def test_shares_add_up_to_one_within_rounding(off, taken):
    if taken:
        assert sum(parameters.shares("weights", [0.5, 0.5 + off])) == pytest.approx(1.0, abs=1e-15)
        return
    with pytest.raises(ValueError, match=r"weights is .*expected sum 1"):
        parameters.shares("weights", [0.5, 0.5 + off])


@pytest.mark.parametrize("kind", [int, np.int64, np.uint64])
def test_whole_numbers_have_both_their_bounds_and_no_more(kind):
    assert [arguments.whole("n", kind(n), 1, 5) for n in (1, 5)] == [1, 5]
    assert arguments.whole("n", kind(0)) == 0
    assert arguments.whole("n", kind(2**32 - 1)) == 2**32 - 1
    for bounds, number in (((1, 5), 0), ((1, 5), 6), ((0,), 2**32)):
        with pytest.raises(ValueError, match=r"^n is .*; expected a whole number from"):
            arguments.whole("n", kind(number), *bounds)
