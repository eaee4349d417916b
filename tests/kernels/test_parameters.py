"""Parameters of kernels in their normal form."""

from __future__ import annotations

import numpy as np
import pytest

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
