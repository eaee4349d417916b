"""Generators of rotations: their frequencies and basis, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

import rfrope


def rotated_generators(omega, d, seed):
    """Commuting generators of some frequencies ``(D, k)`` in a random basis of d features; the others stand still."""
    rng = np.random.default_rng(seed)
    mixer = np.linalg.qr(rng.standard_normal((d, d)))[0]
    blocks = np.zeros((omega.shape[1], d, d))
    for i, vector in enumerate(omega):
        blocks[:, 2 * i + 1, 2 * i], blocks[:, 2 * i, 2 * i + 1] = vector, -vector
    return mixer @ blocks @ mixer.T


@pytest.mark.parametrize("noise", [0.0, 1e-12])
@pytest.mark.parametrize("omega", [[[1.0, 0.0], [0.0, 0.3]], [[2.0, 0.1]], [[0.5, 0.5]] * 2, np.zeros((0, 2))], ids=str)
def test_from_generators_with_features_that_stand_still(omega, noise):
    """Rounding in what should be 0 turns nothing: the basis stays orthogonal, and there are D blocks."""
    omega, d = np.reshape(np.asarray(omega), (-1, 2)), 12
    made = rotated_generators(omega, d, seed=4)
    shaken = np.random.default_rng(5).standard_normal(made.shape) * noise * (1.0 if len(omega) else 0.0)
    made += shaken - np.swapaxes(shaken, 1, 2)
    made = 0.5 * (made - np.swapaxes(made, 1, 2))
    rope, basis = rfrope.frequencies.from_generators(made)
    np.testing.assert_allclose(basis.T @ basis, np.eye(d), atol=1e-12)
    assert rope.frequencies.shape == (d // 2, 2)
    sizes = np.sort(np.linalg.norm(rope.frequencies, axis=-1))
    expected = np.sort(np.append(np.linalg.norm(omega, axis=-1), np.zeros(d // 2 - len(omega))))
    np.testing.assert_allclose(sizes, expected, atol=1e-9)
    x, p = np.random.default_rng(6).standard_normal(d), np.array([3.0, -2.0])
    turned = scipy.linalg.expm(np.tensordot(p, made, axes=1)) @ x
    np.testing.assert_allclose(rope.rotate(x @ basis, p) @ basis.T, turned, atol=1e-8)


@pytest.mark.parametrize("size", [1e-300, 1.0, 2.0**490])
def test_from_generators_of_a_full_matrix(size):
    made = np.random.default_rng(7).standard_normal((40, 40))
    made = (made - made.T) * size
    rope, basis = rfrope.frequencies.from_generators(made)
    np.testing.assert_allclose(basis.T @ basis, np.eye(40), atol=1e-13)
    blocks = np.zeros((40, 40))
    first = np.arange(0, 40, 2)
    blocks[first + 1, first], blocks[first, first + 1] = rope.frequencies, -rope.frequencies
    np.testing.assert_allclose(basis.T @ (made / size) @ basis, blocks / size, atol=1e-12)
    assert np.all(np.diff(rope.frequencies) > 0.0)


SKEW = np.random.default_rng(0).standard_normal((2, 4, 4))
SKEW -= np.swapaxes(SKEW, 1, 2)


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        (np.zeros((3, 3)), r"generators has shape \(3, 3\); expected \(k, d, d\), or \(d, d\), with an even d"),
        (np.full((2, 2), np.nan), "generators holds NaN or infinity"),
        (np.eye(2), "generators holds a matrix that is not skew-symmetric"),
        (SKEW, "generators 0 and 1 do not commute"),
        (1j * np.eye(2), "generators has dtype complex128"),
    ],
)
def test_refused_generators(generators, message):
    with pytest.raises((ValueError, TypeError), match=message):
        rfrope.frequencies.from_generators(generators)
