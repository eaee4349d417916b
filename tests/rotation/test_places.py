"""Positions on a circle, a sphere and a graph, at irregular times and of cameras: against their own formulas."""

import math

import numpy as np
import pytest

import rfrope
from rfrope.rotation import graph_positions, sphere_positions


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_whole_frequencies_make_a_kernel_of_the_circle():
    """Herglotz: the law of `periodic` at period 2 pi has whole frequencies, so scores do not see a full turn."""
    law = rfrope.kernel("periodic", period=2.0 * math.pi, scale=0.7)
    omega = rfrope.sample(law, 16, rng=0)
    np.testing.assert_allclose(omega, np.rint(omega), atol=1e-12)
    q, k, angle = draw(32), draw(1, 32)[0], np.array([0.3, 0.3 + 2.0 * math.pi])
    whole = np.rint(omega)
    turned = rfrope.rotate(np.stack([k, k]), angle, whole) @ rfrope.rotate(q, 1.1, whole)
    assert math.isclose(turned[0], turned[1], rel_tol=1e-12)
    mean = rfrope.analysis.mean_kernel(0.8, rfrope.sample(law, 200_000, rng=1))
    assert math.isclose(mean, math.exp((math.cos(0.8) - 1.0) / 0.49), abs_tol=8e-3)


def test_points_of_a_sphere_are_apart_by_their_chord():
    rng = np.random.default_rng(3)
    lat, lon = rng.uniform(-1.5, 1.5, 2), rng.uniform(-3.0, 3.0, 2)
    a, b = sphere_positions(lat, lon)
    central = math.acos(
        math.sin(lat[0]) * math.sin(lat[1]) + math.cos(lat[0]) * math.cos(lat[1]) * math.cos(lon[0] - lon[1])
    )
    assert math.isclose(float(np.linalg.norm(a - b)), 2.0 * math.sin(0.5 * central), rel_tol=1e-12)


def test_scores_on_a_sphere_have_a_chordal_kernel_for_their_mean():
    """Over a drawn set the mean kernel is that of the chord, in any place: turns of the sphere do not change it."""
    law = rfrope.kernel("gaussian", scale=0.5, ndim=3)
    omega = rfrope.sample(law, 100_000, rng=0, design="orthogonal")
    a, b = sphere_positions([0.2, -1.0], [0.5, 2.0]), sphere_positions([0.7, -0.5], [0.5, 2.0])
    found = rfrope.analysis.mean_kernel(b - a, omega)
    np.testing.assert_allclose(found, math.exp(-0.5 * (2.0 * math.sin(0.25) / 0.5) ** 2), atol=1e-2)


def test_sphere_positions_on_every_library(xp):
    found = sphere_positions(xp([[0.1], [0.2]]), xp([0.3, 0.4, 0.5]))
    assert found.shape == (2, 3, 3)
    np.testing.assert_allclose(xp.host(found), sphere_positions([[0.1], [0.2]], [0.3, 0.4, 0.5]), rtol=1e-6)


def test_gradients_reach_latitude_and_longitude():
    torch = pytest.importorskip("torch")
    lat, lon = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, 1.1))
    assert torch.autograd.gradcheck(sphere_positions, (lat, lon))


def grid(rows, columns):
    """Adjacency of a grid of nodes, row after row."""
    index = np.arange(rows * columns).reshape(rows, columns)
    found = np.zeros((rows * columns,) * 2)
    for a, b in ((index[1:], index[:-1]), (index[:, 1:], index[:, :-1])):
        found[a, b] = found[b, a] = 1.0
    return found


@pytest.mark.parametrize("n", [2, 7, 12])
def test_waves_of_a_path_are_cosines(n):
    found = graph_positions(grid(1, n), n - 1)
    place = math.pi * (np.arange(n) + 0.5) / n
    expected = np.sqrt(2.0 / n) * np.cos(place[:, None] * np.arange(1, n))
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-12)
    assert np.all(found.max(axis=0) >= -found.min(axis=0) - 1e-9)  # the largest entry is positive
    assert found[0, 0] > 0.0  # of two as large it is that of the first node


def test_waves_of_a_grid_are_places_along_its_sides_so_that_axial_rope_comes_back():
    rows, columns = 4, 7
    waves = graph_positions(grid(rows, columns), 8)
    longer = waves[:, 0].reshape(rows, columns)  # the slowest wave goes along the longer side
    assert np.ptp(longer, axis=0).max() < 1e-12
    other = next(w for w in waves.T if np.ptp(w.reshape(rows, columns), axis=1).max() < 1e-12).reshape(rows, columns)
    column = np.arccos(longer[0] * math.sqrt(0.5 * rows * columns)) * columns / math.pi - 0.5
    row = np.arccos(other[:, 0] * math.sqrt(0.5 * rows * columns)) * rows / math.pi - 0.5
    np.testing.assert_allclose(column, np.arange(columns), atol=1e-9)
    np.testing.assert_allclose(row, np.arange(rows), atol=1e-9)
    places = np.stack(np.meshgrid(row, column, indexing="ij"), axis=-1).reshape(-1, 2)
    ladder = rfrope.geometric(4)
    rope, x = rfrope.axial(ladder, ladder), draw(rows * columns, 16)
    plain = rope.rotate(x, rfrope.rotation.grid_positions((rows, columns)))
    np.testing.assert_allclose(rope.rotate(x, places), plain, atol=1e-8)


def test_a_graph_with_its_nodes_in_another_order_has_its_positions_in_that_order():
    rng = np.random.default_rng(5)
    weights = rng.uniform(0.1, 1.0, (9, 9))
    weights, order = weights + weights.T, rng.permutation(9)
    for normalised in (False, True):
        found = graph_positions(weights, 3, normalised=normalised)
        moved = graph_positions(weights[order][:, order], 3, normalised=normalised)
        np.testing.assert_allclose(moved, found[order], atol=1e-9)
        laplacian = np.diag(weights.sum(1) - np.diagonal(weights)) - weights + np.diag(np.diagonal(weights))
        root = np.sqrt(np.diagonal(laplacian))
        laplacian = laplacian / np.outer(root, root) if normalised else laplacian
        np.testing.assert_allclose(laplacian @ found, found * np.diagonal(found.T @ laplacian @ found), atol=1e-9)


def test_irregular_times_are_positions_as_they_are():
    """RoMAE: phases are real times along each axis of an axial set, and scores see differences of times alone."""
    times, ladder = np.cumsum(np.random.default_rng(1).exponential(0.37, 12)), rfrope.geometric(8, base=100.0)
    q, k = draw(12, 16), draw(2, 12, 16)[1]
    phase = (times[:, None] - times)[..., None] * ladder
    a, b = rfrope.block_coefficients(q[None, :], k[:, None])
    expected = np.sum(a * np.cos(phase) + b * np.sin(phase), axis=-1)
    for start in (0.0, 1e5):
        found = rfrope.rotate(k, times + start, ladder) @ rfrope.rotate(q, times + start, ladder).T
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_rope_part_of_cameras_is_two_ladders_that_turn_the_other_way():
    """PRoPE: a quarter of the features by columns, a quarter by rows, base 100, frequency ``100^(-i/n)``, clockwise."""
    width, rows, columns = 32, 3, 4
    x, quarter = draw(rows * columns, width), width // 4
    place = rfrope.rotation.grid_positions((rows, columns))

    def published(part, position):
        n = part.shape[-1] // 2
        u = position[:, None] * 100.0 ** (-np.arange(n) / n)
        first, second = part[:, :n], part[:, n:]
        return np.concatenate([np.cos(u) * first + np.sin(u) * second, -np.sin(u) * first + np.cos(u) * second], axis=1)

    ladder = rfrope.geometric(quarter // 2, base=100.0)
    for part, axis in ((x[:, 2 * quarter : 3 * quarter], 1), (x[:, 3 * quarter :], 0)):
        expected = published(part, place[:, axis])
        np.testing.assert_allclose(rfrope.rotate(part, place[:, axis], -ladder), expected, atol=1e-13)
