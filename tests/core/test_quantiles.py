"""Polynomials on parts of octaves, against the functions that they stand for."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import special

from rfrope._core import quantiles
from rfrope._core.quantiles import Interpolant, polynomials

rng = np.random.default_rng(3)
# ends of parts and their neighbours, every octave, 1/2 and what lies below them all
EDGES = np.ldexp(1.0 + np.arange(0.0, 1.0, 0.125), np.arange(-53, -1)[:, None]).ravel()
PLACES = np.concatenate(
    [
        EDGES,
        np.nextafter(EDGES, 1.0),
        np.nextafter(EDGES[1:], 0.0),
        [0.5, np.nextafter(0.5, 0.0)],
        0.5 * rng.random(5000),
        2.0 ** -(1.0 + 52.0 * rng.random(5000)),
        2.0 ** -(53.0 + rng.random(20)),
        2.0 ** -(54.0 + 900.0 * rng.random(50)),
    ]
)
FUNCTIONS = {
    "power": lambda v: v**-0.7,
    "logarithm": lambda v: -np.log(v),
    "gamma": lambda v: special.gammaincinv(0.3, v),
    "gamma, upper": lambda v: special.gammainccinv(30.0, v),
}


def kinds_of(interpolant):
    """What its polynomials are that were made."""
    kinds = interpolant._table[1]
    return set(kinds[kinds != quantiles._NOT_MADE].tolist())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_met_in_every_octave(name):
    interpolant = Interpolant(FUNCTIONS[name])
    np.testing.assert_allclose(interpolant(PLACES), FUNCTIONS[name](PLACES), rtol=1e-13)
    assert kinds_of(interpolant) == {quantiles._GOOD}


def test_a_function_that_vanishes_at_one_half_is_met_absolutely_there():
    interpolant = Interpolant(special.ndtri, vanish=True)
    np.testing.assert_allclose(interpolant(PLACES), special.ndtri(PLACES), rtol=6e-14, atol=3e-16)
    assert interpolant(np.array([0.5]))[0] == 0.0
    assert kinds_of(interpolant) == {quantiles._GOOD}


def test_each_element_has_the_function_that_is_chosen_for_it():
    functions = [FUNCTIONS["power"], FUNCTIONS["logarithm"]]
    both, which = Interpolant(*functions), rng.integers(0, 2, PLACES.size)
    alone = np.stack([Interpolant(function)(PLACES) for function in functions])
    np.testing.assert_array_equal(both(PLACES, which), alone[which, np.arange(PLACES.size)])
    np.testing.assert_array_equal(both(PLACES, which == 1), both(PLACES, which))
    np.testing.assert_array_equal(both(PLACES), alone[0])


def test_an_element_does_not_depend_on_its_neighbours_nor_on_shape_and_strides():
    interpolant = Interpolant(FUNCTIONS["gamma"])
    whole = interpolant(PLACES)
    fresh = [Interpolant(FUNCTIONS["gamma"])(PLACES[i : i + 1])[0] for i in range(0, PLACES.size, 197)]
    np.testing.assert_array_equal(fresh, whole[::197])
    np.testing.assert_array_equal(interpolant(PLACES[::-3]), whole[::-3])
    np.testing.assert_array_equal(interpolant(PLACES[:100].reshape(4, 1, 25)), whole[:100].reshape(4, 1, 25))
    np.testing.assert_array_equal(interpolant(PLACES.astype(">f8")), whole)
    narrow = PLACES[:1000].astype(np.float32)
    np.testing.assert_array_equal(interpolant(narrow), interpolant(narrow.astype(np.float64)))
    np.testing.assert_array_equal(interpolant(np.array(0.3)), interpolant(np.array([0.3]))[0])
    assert interpolant(PLACES[:0]).shape == (0,)
    assert np.isnan(Interpolant(FUNCTIONS["power"])(np.array([np.nan])))


def test_a_function_is_asked_itself_in_those_parts_alone_where_it_is_no_polynomial():
    interpolant = Interpolant(lambda v: 1.0 + np.abs(v - 0.3))
    found, kinked = interpolant(PLACES), 1.0 + np.abs(PLACES - 0.3)
    part = (PLACES >= 0.28125) & (PLACES < 0.3125)
    assert part.any()
    np.testing.assert_array_equal(found[part], kinked[part])
    np.testing.assert_allclose(found, kinked, rtol=1e-15)
    assert np.sum(interpolant._table[1] == quantiles._REFUSED) == 1


@pytest.mark.parametrize("number", [1, 5, 10])
def test_a_bump_between_two_points_is_seen(number):
    """Errors are looked at midway between any two points, in the angle."""
    place = 0.5 * np.cos(np.pi * number / 11)

    def bumpy(v):
        x = 8.0 * (v / 0.25 - 1.0) - 2.5  # 0 in the middle of the third part of the last octave, 1/2 at its end
        return 1.0 + 1e-9 * np.exp(-0.5 * ((x - place) / 1e-3) ** 2)

    _, good = polynomials(bumpy, np.array([8 * 51 + 2]), 8, 11, 5e-14)
    assert not good[0]


NO_POLYNOMIALS = {
    "an error of 1e-12 is seen": lambda v: 1.0 + 1e-12 * np.sin(1e3 * np.log(v)),
    "0 far out": lambda v: np.where(v < 0.5, np.exp(-1.0 / v), 1.0) * (v > 1e-3),
    "infinite far out": lambda v: v**-30.0,
    "cut far out": lambda v: np.minimum(v**-20.0, 1e152),
}


@pytest.mark.parametrize("why", NO_POLYNOMIALS)
def test_what_polynomials_are_not_is_asked_itself(why):
    far, function = PLACES[PLACES < 2.0**-20], NO_POLYNOMIALS[why]
    with np.errstate(over="ignore"):
        exact, itself, beside = function(far), Interpolant(function), Interpolant(FUNCTIONS["power"], function)
        assert why == "0 far out" or not np.any(polynomials(function, np.arange(100), 8, 11, 5e-14)[1])
        np.testing.assert_array_equal(itself(far), exact)
        np.testing.assert_array_equal(beside(far, np.arange(far.size) % 2)[1::2], exact[1::2])


def test_making_polynomials_warns_of_nothing():
    def warns(v):
        return np.log(v - 0.4) + 1e308 * v / 1e-308

    with np.errstate(all="raise"):
        _, good = polynomials(warns, np.arange(8 * quantiles.OCTAVES), 8, 11, 5e-14)
    assert not np.any(good)
    tiny = polynomials(lambda v: v**30.0, np.arange(0, 80), 8, 11, 5e-14)
    assert np.all(tiny[0] < 1e-300)


def test_a_polynomial_is_made_once_and_where_it_is_needed():
    asked = []
    interpolant = Interpolant(lambda v: asked.append(v.size) or 1.0 / v)
    interpolant(np.array([0.3, 0.31, 2.0**-53]))
    assert sum(asked) == 2 * (11 + 10)
    interpolant(np.array([0.3, 1.001 * 2.0**-53, 2.0**-60]))
    assert asked[2:] == [1], "only what lies below all parts"


def test_threads_that_make_polynomials_at_once_are_given_the_same():
    exact = Interpolant(FUNCTIONS["gamma"])(PLACES)
    for _ in range(5):
        interpolant, gate = Interpolant(FUNCTIONS["gamma"]), threading.Barrier(4)

        def work(step, interpolant=interpolant, gate=gate):
            gate.wait()
            return np.concatenate([interpolant(part) for part in np.array_split(PLACES[::step], 7)])

        with ThreadPoolExecutor(4) as pool:
            for step, found in zip((1, -1, 1, -1), pool.map(work, (1, -1, 1, -1)), strict=True):
                np.testing.assert_array_equal(found, exact[::step])


@pytest.mark.campaign
def test_bits_do_not_depend_on_the_processor_that_linear_algebra_is_made_for():
    work = "import rfrope; print(rfrope.sample('matern(nu=1.5, scale=3, ndim=2)', 512, rng=0).tobytes().hex())"
    environments = [os.environ | {"OPENBLAS_CORETYPE": name} for name in ("Prescott", "Haswell")]
    found = [subprocess.check_output([sys.executable, "-c", work], env=one) for one in environments]
    assert found[0] == found[1]
