"""Generators: their basis, how far they are from commuting, the nearest that do, and weights in their basis."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from conftest import library

import rfrope
from rfrope.frequencies import from_generators


def skew(rng, *shape):
    made = rng.standard_normal(shape)
    return made - np.swapaxes(made, -1, -2)


def orthogonal(rng, d):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def turned(generators, positions, x):
    """Turn features by the matrix exponential, as the papers do."""
    phases = np.tensordot(np.asarray(positions, np.float64), np.asarray(generators, np.float64), axes=([-1], [0]))
    return np.stack([scipy.linalg.expm(one) @ row for one, row in zip(phases, x, strict=True)])


def rotated_generators(omega, d, seed):
    """Commuting generators of some frequencies ``(D, k)`` in a random basis of d features; the others stand still."""
    mixer = orthogonal(np.random.default_rng(seed), d)
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
    made += skew(np.random.default_rng(5), *made.shape) * noise * (1.0 if len(omega) else 0.0)
    made = 0.5 * (made - np.swapaxes(made, 1, 2))
    rope, basis = from_generators(made)
    np.testing.assert_allclose(basis.T @ basis, np.eye(d), atol=1e-12)
    assert rope.frequencies.shape == (d // 2, 2)
    sizes = np.sort(np.linalg.norm(rope.frequencies, axis=-1))
    expected = np.sort(np.append(np.linalg.norm(omega, axis=-1), np.zeros(d // 2 - len(omega))))
    np.testing.assert_allclose(sizes, expected, atol=1e-9)
    x, p = np.random.default_rng(6).standard_normal(d), np.array([3.0, -2.0])
    np.testing.assert_allclose(rope.rotate(x @ basis, p) @ basis.T, turned(made, [p], [x])[0], atol=1e-8)


@pytest.mark.parametrize("size", [1e-300, 1.0, 2.0**490])
def test_from_generators_of_a_full_matrix(size):
    made = np.random.default_rng(7).standard_normal((40, 40))
    made = (made - made.T) * size
    rope, basis = from_generators(made)
    np.testing.assert_allclose(basis.T @ basis, np.eye(40), atol=1e-13)
    blocks = np.zeros((40, 40))
    first = np.arange(20)
    blocks[first + 20, first], blocks[first, first + 20] = rope.frequencies, -rope.frequencies
    np.testing.assert_allclose(basis.T @ (made / size) @ basis, blocks / size, atol=1e-12)
    assert np.all(np.diff(rope.frequencies) > 0.0)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_basis_on_every_library(xp, pairing):
    made = rotated_generators(np.array([[1.0, 0.5], [0.3, -2.0], [0.0, 0.7]]), 6, seed=9)
    rope, basis = from_generators(xp(made), pairing=pairing)
    assert (xp.owns(rope.frequencies), xp.owns(basis), rope.pairing) == (True, True, pairing)
    omega, basis = xp.host(rope.frequencies), xp.host(basis)
    rng = np.random.default_rng(1)
    x, p = rng.standard_normal((5, 6)), rng.integers(-9, 9, (5, 2))
    found = rfrope.rotate(x @ basis, p, omega, pairing=pairing) @ basis.T
    np.testing.assert_allclose(found, turned(made, p, x), atol=1e-12)


# -- what relatives are ------------------------------------------------------------------------------------------------


def circulant(rng, d):
    made = np.stack([scipy.linalg.circulant(row) for row in rng.standard_normal((2, d))])
    return 0.1 * (made - np.swapaxes(made, 1, 2))


def cayley(rng, d):
    s, made = skew(rng, d, d), rotated_generators(rng.standard_normal((d // 2, 2)), d, 0)
    turn = np.linalg.solve(np.eye(d) + s, np.eye(d) - s)
    return turn @ made @ turn.T


def grape(rng, d):
    a, b = 0.3 * rng.standard_normal((2, d))
    return (np.outer(a, b) - np.outer(b, a))[None]


def along_axes(rng, d):
    made = np.zeros((2, d, d))
    made[0, : d // 2, : d // 2], made[1, d // 2 :, d // 2 :] = skew(rng, d // 2, d // 2), skew(rng, d // 2, d // 2)
    return made


RELATIVES = {  # generators (k, d, d), and what their frequencies (d / 2, k) are
    # the vectors of ones and of alternating signs stand still
    "circulant STRING": (circulant, lambda made, omega: np.sum(np.linalg.norm(omega, axis=1) < 1e-12) == 1),
    "Cayley STRING": (cayley, lambda made, omega: np.linalg.matrix_rank(omega) == 2),
    # one matrix times a number for each axis: displacements across are not seen
    "ComRoPE-LD": (
        lambda rng, d: rng.standard_normal((2, 1, 1)) * 0.3 * skew(rng, d, d),
        lambda made, omega: np.linalg.matrix_rank(omega, tol=1e-9) == 1,
    ),
    # a matrix of its own for each axis in blocks of its own: it is axial
    "ComRoPE-AP": (along_axes, lambda made, omega: np.sum(np.abs(omega) > 1e-9, axis=1).tolist() == [1] * len(omega)),
    "GRAPE": (  # a single frequency, the root of |a|^2 |b|^2 - (a b)^2
        grape,
        lambda made, omega: np.allclose(
            np.sort(np.abs(omega[:, 0])), [0.0] * (len(omega) - 1) + [np.linalg.norm(made) / math.sqrt(2.0)], atol=1e-12
        ),
    ),
}


@pytest.mark.parametrize("name", RELATIVES)
def test_what_frequencies_of_relatives_are(name):
    make, are_so = RELATIVES[name]
    made = make(np.random.default_rng(2), 16)
    assert are_so(made, from_generators(made)[0].frequencies)


GRADIENTS = {"frequencies": lambda g: (from_generators(g[0])[0].frequencies ** 3).sum()}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    torch, function = library("torch").module, GRADIENTS[name]
    x = torch.tensor(np.random.default_rng(15).standard_normal((2, 6, 6)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: function(x - x.mT), x, eps=1e-5, rtol=1e-4, atol=1e-6)
    made = (x - x.mT).detach().requires_grad_()
    wanted = torch.autograd.grad(function(made), made)[0]
    jax = library("jax")
    import jax as transforms

    found = transforms.jit(transforms.grad(function))(jax(made.detach().numpy()))
    np.testing.assert_allclose(found, wanted, atol=1e-9)


# -- weights in the basis ----------------------------------------------------------------------------------------------


def normed(x):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("kind", RELATIVES)
def test_a_checkpoint_becomes_a_plain_rope(kind):
    """Weights of float32, an RMSNorm without gains, biases and heads: scores are those of the model to 1e-6."""
    rng, d, heads = np.random.default_rng(16), 16, 3
    made = RELATIVES[kind][0](rng, d)
    made = made.astype(np.float32)
    w_q, w_k = rng.standard_normal((2, heads * d, 24)).astype(np.float32) / np.float32(5.0)
    bias = rng.standard_normal(heads * d).astype(np.float32)
    x = rng.standard_normal((9, 24)).astype(np.float32)
    grid = rfrope.rotation.grid_positions((3, 3))[:, : len(made)]

    def split(y):
        return np.swapaxes(y.reshape(9, heads, d), 0, 1)

    q, k = (split(x.astype(np.float64) @ w.T.astype(np.float64) + bias) for w in (w_q, w_k))
    old = np.stack([turned(made, grid, normed(a)) @ turned(made, grid, normed(b)).T for a, b in zip(q, k, strict=True)])
    rope, basis = from_generators(made)
    q, k = (split(x @ w.T + bias) @ basis.astype(np.float32) for w in (w_q, w_k))
    new = rope.scores(normed(q.astype(np.float64)), normed(k.astype(np.float64)), grid, grid)
    assert np.max(np.abs(new - old)) < 1e-6 * np.max(np.abs(old))


@pytest.mark.parametrize("size", [1e-200, 1e-12, 1e12, 2.0**490])
def test_what_commutes_does_so_in_any_unit_of_positions(size):
    """Of three, the last two alone do not: their planes have a feature in common."""
    made = rotated_generators(np.array([[1.0, 0.5, 0.2], [0.3, -2.0, 0.7], [0.9, 0.1, 1.1]]), 6, seed=25)
    made = made - np.swapaxes(made, 1, 2)
    from_generators(size * made)
    made = np.zeros((3, 6, 6))
    for one, (a, b) in zip(made, ((0, 1), (2, 3), (3, 4)), strict=True):
        one[a, b], one[b, a] = 1.0, -1.0
    with pytest.raises(ValueError, match=r"generators 1 and 2 do not commute: their relative commutator is 0\.71"):
        from_generators(size * made)
    with pytest.raises(ValueError, match="not skew-symmetric"):
        from_generators(size * np.eye(6))


def test_generators_of_float32_may_miss_their_last_digits():
    made = rotated_generators(np.random.default_rng(22).standard_normal((4, 2)), 8, seed=23)
    made = 0.5 * (made - np.swapaxes(made, 1, 2))
    from_generators(made.astype(np.float32))
    with pytest.raises(ValueError, match="do not commute"):
        from_generators(made.astype(np.float32).astype(np.float64))
