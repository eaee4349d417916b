"""Means over cells of a uniform, against dense grids of it and against laws of one axis."""

from __future__ import annotations

import numpy as np
import pytest

from rfrope import kernels
from rfrope.designs.lines import Line

LAGS = np.array([[3.0, 40.0], [-11.0, 0.5], [0.0, 7.0]])
PAIRS = {  # a law of two axes, and that of its second axis alone
    "gaussian(scale=(8, 20), ndim=2)": "gaussian(scale=20)",
    "sinc(bandwidth=(0.1, 0.7), ndim=2)": "sinc(bandwidth=0.7)",
}


def grid(n=2**20):
    return (np.arange(n) + 0.5) / n


@pytest.mark.parametrize("text", PAIRS)
def test_an_axis_is_that_of_the_law_of_its_own(text):
    both, alone = Line(kernels.parse(text), 1), Line(kernels.parse(PAIRS[text]), 0)
    np.testing.assert_allclose(both.fall(LAGS), alone.fall(LAGS[:, 1:]), rtol=1e-13)
    for found, wanted in zip(both.means(LAGS, 5), alone.means(LAGS[:, 1:], 5), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("half", [False, True])
def test_products_are_means_over_pairs_of_places(half):
    line, step, along = Line(kernels.parse("gaussian(scale=8)"), 0), 0.3, np.array([2.0, 9.0])
    a, other = (line.frequencies(p % 1.0, half=half) for p in (grid(), grid() + step))
    found = line.products(along, step, 64, half=half)
    for got, phase in zip(found, (other - a, other + a), strict=True):
        np.testing.assert_allclose(got, np.exp(1j * np.multiply.outer(along, phase)).mean(-1), atol=1e-6)


@pytest.mark.parametrize("lag", [3.0, 30.0, 400.0])
@pytest.mark.parametrize("cells", [2, 5])
def test_the_variance_of_a_lattice_of_a_heavy_tail(lag, cells):
    """Beyond the last interval, where phases are above 2**12, those of the other cells change, too."""
    line = Line(kernels.parse("exponential(scale=2)"), 0)
    places = (np.arange(cells)[:, None] + grid(2**22)) / cells
    values = np.mean(1.0 - np.cos(lag * line.magnitudes(places)), axis=0)
    wanted = np.mean((values - line.fall(np.array([[lag]]))) ** 2)
    assert line.lattice_variance(np.array([[lag]]), cells)[0] == pytest.approx(wanted, rel=5e-4)


def test_means_over_cells_of_a_law_of_atoms():
    line, lags = Line(kernels.parse("periodic(period=7, scale=0.7)"), 0), np.array([[0.3], [2.0], [11.0]])
    means, fall = line.means(lags, 4)
    cosines = np.cos(lags * line.magnitudes(grid()))
    np.testing.assert_allclose(means, 1.0 - cosines.reshape(3, 4, -1).mean(axis=-1), atol=1e-5)
    np.testing.assert_allclose(fall, means.mean(axis=1), rtol=1e-12)
