"""cos and sin of positions times frequencies, against mpmath: the precision contract."""

import importlib

import mpmath
import numpy as np
import pytest
from conftest import library
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_angles import vectors

import rfrope
from rfrope._core import array, turns
from rfrope._core.angles import Angles

CONTRACT = 1e-15
WITHOUT_FLOAT64 = 2e-7
POSITIONS = [0, 1, -1, 131071, 2**24 + 1, 10**9, 2**53 - 1, -131071, -(2**24 + 1), -(2**53 - 1)]
FRACTIONS = [0.5, -0.1, 1e-9, 131071.3, -16777217.25, 123456789.123, 2.0**52 + 0.5, 1e15 / 3.0]
FREQUENCIES = [*(500_000.0 ** (-np.arange(8) / 8)), 0.7, -0.3, np.nextafter(1.0, 0.0), 0.0]


def test_every_digit_of_pi_is_right():
    for bits in (512, 2048):
        with mpmath.workprec(bits + 50):
            assert abs(turns._two_pi(bits) - 2**bits * 2 * mpmath.pi) < 1


def worst_error(cos, sin, positions, frequencies, shift=0.0) -> float:
    """Largest error over a table of positions ``(P,)`` or ``(P, k)`` and frequencies ``(D,)`` or ``(*H, D, k)``."""
    p, w = vectors(np.asarray(positions), np.asarray(frequencies))
    cos, sin, worst = np.asarray(cos), np.asarray(sin), 0.0
    shift = np.broadcast_to(shift, cos.shape)
    with mpmath.workprec(400):
        for index in np.ndindex(cos.shape):
            terms = zip(p[index[-2]].tolist(), w[(*index[:-2], index[-1])].tolist(), strict=True)
            phase = mpmath.fsum([*(mpmath.mpf(a) * mpmath.mpf(b) for a, b in terms), mpmath.mpf(float(shift[index]))])
            for true, got in ((mpmath.cos(phase), cos[index]), (mpmath.sin(phase), sin[index])):
                worst = max(worst, float(abs(true - mpmath.mpf(float(got)))))
    return worst


@pytest.mark.parametrize("positions", [POSITIONS, FRACTIONS], ids=["integers", "fractions"])
def test_contract_up_to_2_to_the_53(xp, positions):
    p, w = np.asarray(positions), np.asarray(FREQUENCIES)
    cos, sin = rfrope.rotation_table(xp(p), xp(w))
    assert xp.owns(cos)
    assert worst_error(xp.host(cos), xp.host(sin), p, w) <= CONTRACT
    if positions is POSITIONS:  # why `phases` is for people only
        u = rfrope.rotation.phases(p, w)
        assert worst_error(np.cos(u), np.sin(u), p, w) > 1e-3


@settings(max_examples=60, deadline=None)
@given(st.floats(-(2.0**53), 2.0**53, allow_subnormal=False), st.floats(-1e8, 1e8, allow_subnormal=False))
def test_contract_for_any_product_below_2_to_the_53(position, frequency):
    if abs(position * frequency) > 2.0**53:
        position /= abs(frequency)
    cos, sin = rfrope.rotation_table(np.asarray([position]), np.asarray([frequency]))
    assert worst_error(cos, sin, [position], [frequency]) <= CONTRACT


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_contract_on_several_axes_with_a_shift(xp, ndim):
    rng = np.random.default_rng(ndim)
    p = np.floor(rng.uniform(-(2.0**50), 2.0**50, (6, ndim))) + rng.choice([0.0, 0.5], (6, ndim))
    w, shift = rng.uniform(-1.0, 1.0, (2, 5, ndim)), np.asarray([1e6 / 3.0, -(2.0**40) / 7.0, 1e-3, 0.0, -30.0])
    cos, sin = rfrope.rotation_table(xp(p), xp(w), shift=xp(shift))
    assert worst_error(xp.host(cos), xp.host(sin), p, w, shift) <= CONTRACT


def test_position_zero_is_the_identity_to_the_bit(xp):
    cos, sin = rfrope.rotation_table(xp([0, 0]), xp([1.0, 1e150, 3.0]))
    np.testing.assert_array_equal(xp.host(cos), 1.0)
    np.testing.assert_array_equal(xp.host(sin), 0.0)


@pytest.fixture
def narrow_jax(narrow):
    return narrow.numpy


LIMITS = np.asarray([0, 1, -1, 131071, 2**24 + 1, -(2**24 + 1), 2**31 - 1, -(2**31 - 1)], dtype=np.int32)
NARROW = np.asarray([*(500_000.0 ** (-np.arange(16) / 16)), -0.3, 1000.5, 2.0**19 + 0.5], dtype=np.float32)
AXES = np.asarray([[131071, -7], [2**24 + 1, 10**9], [2**31 - 1, 1 - 2**31]], np.int32)
OF_AXES = np.asarray([[0.3, 1e-3], [0.7, 0.1], [-0.9, 0.5]])
WITHOUT = {  # positions and frequencies; lists keep the digits of float64
    "integers": (LIMITS, NARROW),
    "a list of frequencies": (LIMITS[:6], rfrope.geometric(16).tolist()),
    "several axes": (AXES, OF_AXES.astype(np.float32)),
    "several axes, a list": (AXES, OF_AXES.tolist()),
}


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("jit", [False, True])
def test_without_float64_integer_positions_stay_exact(narrow_jax, name, jit):
    positions, w = WITHOUT[name]
    given = w if isinstance(w, list) else narrow_jax.asarray(w)

    def call(p):
        return rfrope.rotation_table(p, given)

    cos, sin = (importlib.import_module("jax").jit(call) if jit else call)(narrow_jax.asarray(positions))
    assert cos.dtype == narrow_jax.float32
    assert worst_error(cos, sin, positions, w) <= WITHOUT_FLOAT64


def test_without_float64_all_that_is_traced_is_good_up_to_2_to_the_24_and_beyond_where_frequencies_are_slow(narrow_jax):
    jax = importlib.import_module("jax")
    far, slow = np.asarray([2**24 + 1, 2**30 + 1, -(2**24 + 1)], np.int32), np.asarray([1e-3, 1e-5], np.float32)
    for p, w in ((LIMITS[:4], NARROW[:16]), (far, slow)):
        cos, sin = jax.jit(rfrope.rotation_table)(narrow_jax.asarray(p), narrow_jax.asarray(w))
        assert worst_error(cos, sin, p, w) <= WITHOUT_FLOAT64


def test_without_float64_lists_of_positions(narrow_jax):
    w = narrow_jax.asarray([1.0, 0.3])
    cos, _ = importlib.import_module("jax").jit(lambda v: rfrope.rotation_table([1, 2**24 + 1], v))(w)
    np.testing.assert_allclose(np.asarray(cos)[0], np.cos(np.asarray(w)), atol=WITHOUT_FLOAT64)
    cos, _ = rfrope.rotation_table([0.5, 2.0], narrow_jax.asarray([1.0]))
    np.testing.assert_allclose(np.asarray(cos)[:, 0], np.cos([0.5, 2.0]), atol=WITHOUT_FLOAT64)
    for position in (2**32 + 1, 2**53 - 1, -(2**40)):
        with pytest.raises(ValueError, match=r"positions is .*expected integers of 32 bits"):
            rfrope.rotation_table([position], narrow_jax.asarray([1.0]))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_jit_with_everything_traced_keeps_the_contract(dtype, jax):
    jax_library = library("jax")

    p, w = np.asarray(POSITIONS), np.asarray(FREQUENCIES, dtype=dtype)
    cos, sin = jax.jit(rfrope.rotation_table)(jax_library(p), jax_library(w))
    assert worst_error(cos, sin, p, w) <= CONTRACT


def turns_of(frequencies):
    """Turns of each frequency in units of 2**-64, exactly."""
    return [mpmath.mpf(float(omega)) / (2 * mpmath.pi) * 2**64 for omega in frequencies]


@pytest.mark.parametrize("scale", [1.0, -1.0, 1e3, 1e-12])
def test_wrapping_turns_are_exact(scale):
    """Word and rest add up to the turns, modulo one turn, far below what float64 holds."""
    frequencies = scale * np.array([*FREQUENCIES, np.pi, 2.0 * np.pi, 1.5 * np.pi])
    words, rests = turns.wrapping_turns(frequencies)
    assert words.dtype == np.int64
    assert np.abs(rests).max() <= 0.5
    with mpmath.workprec(400):
        for exact, word, rest in zip(turns_of(frequencies), words, rests, strict=True):
            error = (exact - int(word) - mpmath.mpf(float(rest))) / 2**64
            assert abs(error - mpmath.nint(error)) < 2.0**-100 * max(1.0, abs(scale))


def test_frequencies_of_numpy_beside_positions_of_any_library(xp):
    """As a Rope holds them: they come to where the positions are."""
    omega, at = np.array([[1.0], [0.25]]), np.arange(5.0)[:, None]
    positions = xp(at)
    cos, sin = turns.cos_sin.generic(Angles(positions, omega, None, array.namespace(x=positions)))
    for found, wanted in ((cos, np.cos(at * omega[:, 0])), (sin, np.sin(at * omega[:, 0]))):
        assert xp.owns(found)
        np.testing.assert_allclose(xp.host(found), wanted, atol=1e-6)


# -- by words, in float32 ----------------------------------------------------------------------------------------------

BY_WORDS = 1.5e-7


@pytest.mark.parametrize("scale", [1.0, -1.0, 1e3, 1e-12, 1e150])
def test_words_are_turns_to_two_units(scale):
    """Of all four steps, modulo one turn, of frequencies of any size."""
    frequencies = scale * np.array([*FREQUENCIES, np.pi, 2.0 * np.pi, 5e-324])
    made = turns.turn_words(frequencies)
    assert all(each.flags.c_contiguous for each in made)  # kernels take them as they lie
    words = np.concatenate(made, axis=-1)
    assert words.dtype == np.int64
    assert words.shape == (*frequencies.shape, 4)
    with mpmath.workprec(1300):
        for exact, row in zip(turns_of(frequencies), words, strict=True):
            for word, step in zip(row, (0, 26, -26, -52), strict=True):
                error = exact * mpmath.mpf(2) ** step - int(word)
                assert abs(error - mpmath.nint(error / 2**64) * 2**64) <= 2.0


@pytest.mark.parametrize("known", [True, False], ids=["of the host", "of a tensor"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float64", "float32", "bfloat16"])
def test_waves_are_exact_to_float32(dtype, known, torch):
    numbers = {"int32": [0, 1, -1, 2**31 - 1], "uint8": [0, 7, 255], "bfloat16": [0.5, -3.25, 256.0]}
    numbers["float64"] = [*FRACTIONS, 2.0**53 - 1]
    numbers["float32"] = [0.1, -0.3, 131071.25, 1e-6, -(2.0**24)]
    p = torch.tensor(numbers.get(dtype, POSITIONS), dtype=getattr(torch, dtype))
    w = np.asarray([*FREQUENCIES, 1000.5])
    xp = array.namespace(p=p)
    omega = turns.make_integer_turns(w[:, None], xp, p.device) if known else torch.tensor(w)[:, None]
    cos, sin = turns.cos_sin_float32.generic(Angles(p[:, None], omega, None, xp))
    assert cos.dtype == sin.dtype == torch.float32
    assert worst_error(cos, sin, p.tolist(), w) <= BY_WORDS
    narrow = turns.cos_sin_float32.generic(Angles(p[:, None], torch.tensor(w, dtype=torch.float32)[:, None], None, xp))
    assert worst_error(*narrow, p.tolist(), w.astype(np.float32)) <= BY_WORDS


def test_waves_of_several_axes_heads_and_a_shift():
    torch, rng = library("torch").module, np.random.default_rng(0)
    p, w = rng.integers(-(2**40), 2**40, (6, 3)), rng.uniform(-1.0, 1.0, (2, 5, 3))
    shift = rng.uniform(-1e6, 1e6, (2, 1, 5))
    xp = array.namespace(p=torch.tensor(p))
    found = turns.cos_sin_float32.generic(Angles(torch.tensor(p), torch.tensor(w), torch.tensor(shift), xp))
    assert found.shape == (2, 2, 6, 5)
    assert worst_error(*found, p, w, shift) <= BY_WORDS


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_waves_of_what_is_not_finite_are_nan(wrong, torch):
    """Words cannot say it, nor can they hold it."""
    at, omega, shift = (torch.tensor(one) for one in ([[1.0], [2.0]], [[0.5], [0.25], [0.125]], [0.1, 0.2, 0.3]))
    xp = array.namespace(p=at)
    for name, place in (("positions", (0, 0)), ("frequencies", (1, 0)), ("shift", (2,))):
        angles = Angles(at, omega, shift, xp)
        spoilt = getattr(angles, name).clone()
        spoilt[place] = wrong
        found = turns.cos_sin_float32.generic(angles._replace(**{name: spoilt})).isnan()
        part = found[:, 0] if name == "positions" else found[..., place[0]]
        assert part.all()
        assert found.sum() == part.numel()
