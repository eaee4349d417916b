"""Waves that a shifted lattice does not see: by a sum over its points, and by the covariance of blocks there."""

import math

import numpy as np

from rfrope import sample
from rfrope.designs import dual_lattice, points
from rfrope.moments import pair_covariance

TWO, N, W = "sinc(bandwidth=0.4, ndim=2)", 16, 0.4


def test_with_one_column_the_waves_are_multiples_of_the_number_of_points():
    waves, left = dual_lattice("gaussian(scale=32)", 7, most=3)
    assert waves[:, 0].tolist() == [7, 14, 21]
    np.testing.assert_allclose(left, 1.0, rtol=1e-12)


def test_waves_are_those_that_the_points_of_the_design_leave():
    waves, left = dual_lattice(TWO, N, most=4, least=0.3)
    cube = points(TWO, N, design="shifted", rng=0)
    cube = np.where((cube[:, :1] < 0.5), 1.0 - cube, cube)  # signs undone; the first column lies on half of its own
    cube[:, 0] = 2.0 * cube[:, 0] - 1.0
    every = np.stack(np.meshgrid(np.arange(-64, 65), np.arange(-4, 5), indexing="ij"), axis=-1).reshape(-1, 2)
    seen = np.abs(np.mean(np.exp(2j * math.pi * every @ cube.T), axis=1))
    known = {tuple(h): x for h, x in zip(waves.tolist(), left, strict=True)}
    for h, x in zip(every.tolist(), seen, strict=True):
        if h != [0, 0] and abs(x - 0.3) > 1e-9:
            found = known.get(tuple(h), known.get((-h[0], -h[1])))
            assert (found is None) == (x < 0.3)
            assert found is None or math.isclose(found, x, rel_tol=1e-9)


def test_all_blocks_err_together_where_the_cosine_is_such_a_wave():
    """A uniform law's cosine is one wave there, so that the mean kernel varies by half of what is left, squared."""
    waves, left = dual_lattice(TWO, N, most=4)
    for h, x in zip(waves[:6], left[:6], strict=True):
        lag = [2.0 * math.pi * h[0] / W, math.pi * h[1] / W]
        covariance = float(pair_covariance(lag, TWO, n_blocks=N, design="shifted"))
        assert math.isclose(0.5 / N + (1.0 - 1.0 / N) * covariance, 0.5 * x * x, rel_tol=1e-9)
    drawn = sample(TWO, N, design="shifted", heads=4000, rng=0)
    variance = np.var(np.mean(np.cos(drawn @ [2.0 * math.pi * 6 / W, math.pi / W]), axis=1))
    assert math.isclose(variance, 0.5 * left[[tuple(h) for h in waves.tolist()].index((6, 1))] ** 2, rel_tol=0.1)
