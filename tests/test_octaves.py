"""Polynomials on parts of octaves, against the functions that they stand for."""

import numpy as np
import pytest
from scipy import special

from rfrope._core import octaves
from rfrope._core.octaves import Interpolant, coefficients

rng = np.random.default_rng(3)
# 1/2, its neighbours, ends of pieces and their neighbours, every octave, and what lies below all of them
EDGES = np.ldexp(1.0 + np.arange(0.0, 1.0, 0.25), np.arange(-53, -1)[:, None]).ravel()
PLACES = np.concatenate(
    [
        EDGES,
        np.nextafter(EDGES, 1.0),
        np.nextafter(EDGES[1:], 0.0),
        [0.5, np.nextafter(0.5, 0.0)],
        0.5 * rng.random(5000),
        2.0 ** -(1.0 + 52.0 * rng.random(5000)),
        2.0 ** -(54.0 + 900.0 * rng.random(50)),
    ]
)
FUNCTIONS = {
    "power": lambda v: v**-0.7,
    "logarithm": lambda v: -np.log(v),
    "normal": lambda v: np.where(v == 0.5, 1.0, special.ndtri(v) / np.where(v == 0.5, 1.0, 2.0 * v - 1.0)),
    "gamma": lambda v: special.gammaincinv(0.3, v),
    "gamma, upper": lambda v: special.gammainccinv(30.0, v),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_met_in_every_octave(name):
    factor = 1.0 - 2.0 * PLACES if name == "normal" else 1.0  # a quotient of small numbers near 1/2
    exact = factor * FUNCTIONS[name](PLACES)
    found = factor * Interpolant(FUNCTIONS[name])(PLACES)
    assert np.all(np.abs(found - exact) <= 1e-13 * np.abs(exact) + (3e-16 if name == "normal" else 0.0))


def test_each_element_has_the_function_that_is_chosen_for_it():
    functions = [FUNCTIONS["power"], FUNCTIONS["logarithm"]]
    both, which = Interpolant(*functions), rng.integers(0, 2, PLACES.size)
    alone = np.stack([Interpolant(function)(PLACES) for function in functions])
    np.testing.assert_array_equal(both(PLACES, which), alone[which, np.arange(PLACES.size)])
    np.testing.assert_array_equal(both(PLACES, which == 1), both(PLACES, which))


def test_an_element_does_not_depend_on_its_neighbours_nor_on_shape_and_strides():
    slope = Interpolant(FUNCTIONS["normal"])
    whole = slope(PLACES)
    np.testing.assert_array_equal([slope(PLACES[i : i + 1])[0] for i in range(0, PLACES.size, 97)], whole[::97])
    np.testing.assert_array_equal(slope(PLACES[::-3]), whole[::-3])
    np.testing.assert_array_equal(slope(PLACES[:100].reshape(4, 1, 25)), whole[:100].reshape(4, 1, 25))
    np.testing.assert_array_equal(slope(np.array(0.3)), slope(np.array([0.3]))[0])
    assert slope(PLACES[:0]).shape == (0,)


def bent(v):
    return 1.0 + np.abs(v - 0.3)


@pytest.mark.parametrize(
    ("function", "why"),
    [(bent, "no polynomial"), (lambda v: np.exp(-1.0 / v), "0 far out"), (lambda v: v**-30.0, "infinite far out")],
)
def test_what_polynomials_are_not_is_asked_itself(function, why):
    with np.errstate(all="ignore"):
        assert coefficients(function, 4, 12, 1e-13) is None, why
        np.testing.assert_array_equal(Interpolant(function)(PLACES), function(PLACES))
        beside = Interpolant(FUNCTIONS["power"], function)
        which = np.arange(PLACES.size) % 2
        np.testing.assert_array_equal(beside(PLACES, which)[1::2], function(PLACES[1::2]))


def test_a_function_is_called_a_few_thousand_times_once():
    asked = []
    slope = Interpolant(lambda v: asked.append(v.size) or 1.0 / v)
    slope(PLACES[PLACES >= 2.0**-53])
    assert sum(asked) == octaves.OCTAVES * 4 * (12 + 11)
    slope(np.array([2.0**-60, 0.3]))
    assert asked[2:] == [1]
