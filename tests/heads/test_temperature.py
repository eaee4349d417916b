"""The temperature that puts a wanted mass on the offset, by the softmax that it promises."""

import math

import mpmath as mp
import numpy as np
import pytest

import rfrope
from rfrope import heads

OMEGA = rfrope.geometric(64, base=10_000.0)


def softmax_mass(omega, alpha, offset, lags):
    """Mass at the offset, in the longest floats that NumPy has, and how far rounding may have moved it."""
    long = np.longdouble
    phases = (np.asarray(lags, dtype=long) - long(offset))[:, None] * omega.astype(long)
    scores = long(alpha) * np.sum(np.cos(phases), axis=1)
    powers = np.exp(scores - np.max(scores))
    worst = float(np.finfo(long).eps) * alpha * float(np.sum(1.0 + np.max(np.abs(phases), axis=0)))
    return float(powers[np.asarray(lags) == offset][0] / np.sum(powers)), 8.0 * worst


def random_problem(rng):
    """Frequencies of one of the kinds that heads have, a context, and an offset within it."""
    blocks, context = int(rng.integers(1, 65)), int(rng.integers(2, 400))
    omega = [
        lambda: rfrope.geometric(blocks, base=10.0 ** rng.uniform(1.0, 6.0)),
        lambda: rng.normal(size=blocks) * 10.0 ** rng.uniform(-3.0, 0.5),
        lambda: rfrope.sample("exponential(scale=16)", blocks, rng=rng),
        lambda: rfrope.arithmetic(blocks, step=rng.uniform(1e-4, 1.0) / context),
    ][rng.integers(4)]()
    window = int(rng.integers(1, context + 1)) if rng.uniform() < 0.3 else context
    return omega, context, window, -int(rng.integers(0, window))


def test_the_softmax_keeps_the_promise_for_random_sets():
    rng = np.random.default_rng(0)
    solved = 0
    for _ in range(100):
        omega, context, window, offset = random_problem(rng)
        if window == 1:
            window, offset = 2, -1
        mass, scaled = 0.9, bool(rng.integers(2))
        found = heads.temperature_for_mass(mass, omega, context=context, offset=offset, window=window, scaled=scaled)
        factor = 1.0 / found / math.sqrt(2 * len(omega)) if scaled else 1.0 / found
        got, unsure = softmax_mass(omega, factor, offset, np.arange(1 - window, 1))
        assert got == pytest.approx(mass, abs=1e-12 + unsure)
        solved += unsure < 1e-6
    assert solved > 90  # where that says something


@pytest.mark.parametrize("mass", [0.01, 0.9, 1.0 - 1e-12])
@pytest.mark.parametrize("base", [1e4, 1e9])
def test_to_a_relative_1e_12(mass, base):
    omega = rfrope.geometric(8, base=base)[:7] if base < 1e9 else rfrope.geometric(8, base=base)[4:]  # fast and slow
    alpha = 1.0 / heads.temperature_for_mass(mass, omega, context=200, offset=-7, scaled=False)
    with mp.workdps(50):
        deficits = [mp.fsum(1 - mp.cos((lag + 7) * mp.mpf(float(w))) for w in omega) for lag in range(-199, 1)]
        level = (1 - mp.mpf(mass)) / mp.mpf(mass)

        def excess(a):
            return mp.log(mp.fsum(mp.exp(-a * d) for d in deficits) - 1) - mp.log(level)

        exact = mp.findroot(excess, (mp.mpf(alpha) * 0.999, mp.mpf(alpha) * 1.001))
        assert abs(mp.mpf(alpha) / exact - 1) < 1e-12


def test_two_keys_have_a_closed_form():
    found = heads.temperature_for_mass(0.8, [0.4], context=2, scaled=False)
    assert found == pytest.approx((1.0 - math.cos(0.4)) / math.log(4.0), rel=1e-14)
    assert heads.temperature_for_mass(0.8, [0.4], context=2) == pytest.approx(found / math.sqrt(2.0), rel=1e-14)
    assert heads.temperature_for_mass(0.8, [0.4], context=2, head_dim=8) == pytest.approx(found / math.sqrt(8.0))


IMAGE = rfrope.axial(*[rfrope.geometric(8, base=30.0)] * 2)
MASKS = [
    (OMEGA, 40, {"offset": 3, "causal": False, "query_position": 5}),
    (OMEGA, 40, {"offset": -2, "window": 4}),
    (OMEGA, 40, {"offset": 0, "causal": False, "window": 6, "query_position": 1}),
    (IMAGE, (6, 7), {"offset": (-1, 0), "causal": False}),
]


@pytest.mark.parametrize(("omega", "context", "options"), MASKS)
def test_masks_and_positions_are_those_of_the_profile(omega, context, options):
    temperature = heads.temperature_for_mass(0.7, omega, context=context, **options)
    assert type(temperature) is float
    mass = heads.positional_attention(omega, context, temperature=temperature, **options).mass
    assert mass == pytest.approx(0.7, abs=1e-11)


# -- what cannot be done -----------------------------------------------------------------------------------------------


def test_a_lattice_reaches_one_over_its_copies():
    lattice = rfrope.arithmetic(8, step=2.0 * math.pi / 100.0)
    assert heads.temperature_for_mass(0.9, lattice, context=100) > 0.0
    temperature = heads.temperature_for_mass(0.0999, lattice, context=1000)
    assert heads.positional_attention(lattice, 1000, temperature=temperature).mass == pytest.approx(0.0999, abs=1e-9)
    almost = lattice.copy()
    almost[3] *= 1.0 + 1e-9  # not quite a lattice: it can be done, in theory
    assert heads.temperature_for_mass(0.9, almost, context=102) < 1e-12


@pytest.mark.parametrize(("dtype", "apart"), [("float64", 1e-13), ("float32", 1e-4)])
def test_a_lattice_is_one_to_the_rounding_of_its_dtype(dtype, apart, xp):
    lattice = rfrope.arithmetic(8, step=2.0 * math.pi / 100.0)
    with pytest.raises(ValueError, match=r"keys at 1 other lags, such as \[-101\]"):
        heads.temperature_for_mass(0.9, xp(lattice, dtype), context=102)
    lattice[3] *= 1.0 + apart
    alpha = 1.0 / heads.temperature_for_mass(0.9, xp(lattice, dtype), context=102, scaled=False)
    missed = np.mod(np.asarray(lattice.astype(dtype), float) * 100.0 + math.pi, 2.0 * math.pi) - math.pi
    assert alpha == pytest.approx(math.log(9.0) / np.sum(0.5 * missed**2), rel=0.1)


@pytest.mark.parametrize(("turns", "up"), [(3, True), (5, True), (777, False)])
def test_a_whole_turn_computed_to_the_last_place_but_one_is_one(turns, up):
    """What was computed in float32 may be wrong by a unit more than its rounding."""
    omega = np.nextafter(np.float32(2.0 * math.pi / turns), np.float32(math.inf if up else 0.0))
    with pytest.raises(ValueError, match=rf"1 other lags, such as \[-{turns + 1}\]"):
        heads.temperature_for_mass(0.9, np.asarray([omega]), context=turns + 2)


def test_frequencies_that_are_just_large_enough():
    assert heads.temperature_for_mass(0.9, [1e-140], context=4) > 0.0
    assert heads.temperature_for_mass(0.9, [2e-145], context=2) > 0.0


def test_slow_frequencies_are_no_lattice():
    """Deficits of 1e-24 are small but known: nothing is lost to the rounding of cosines near 1."""
    alpha = 1.0 / heads.temperature_for_mass(0.9, [1e-12], context=2, scaled=False)
    assert alpha == pytest.approx(math.log(9.0) / 5e-25, rel=1e-12)
