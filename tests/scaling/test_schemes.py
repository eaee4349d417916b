"""Schemes against formulas written out here, and in every library."""

import contextlib
import math
import warnings

import mpmath
import numpy as np
import pytest
from blind_models import llama3, yarn
from conftest import rows
from published import lists

import rfrope
from rfrope import Rope, scaling

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONG = {**lists(8), "original_max_position_embeddings": 4096}
KEY = "original_max_position_embeddings"


# -- formulas of section 5 of the mathematics page, one frequency at a time --------------------------------------------


@pytest.mark.parametrize(("n_blocks", "base", "original", "factor", "ramp"), rows("scaling/schemes.json", "yarn"))
def test_yarn_is_its_formula(n_blocks, base, original, factor, ramp):
    omega = rfrope.geometric(n_blocks, base=base)
    got = scaling.yarn(omega, factor, original_max_position_embeddings=original, base=base, **ramp)
    np.testing.assert_allclose(got.frequencies, yarn(omega, base, factor, original, **ramp), rtol=1e-14)
    assert got.attention_factor == 0.1 * math.log(factor) + 1


@pytest.mark.parametrize(("block", "kept"), [(2.997, 3), (3.0, 4)])
def test_how_steep_yarn_is_where_its_ends_meet(block, kept):
    """They meet at block 3, or 0.003 before it, where the ramp that is 0.001 wide has ended."""
    theta, beta = rfrope.geometric(64), 4096 / (2 * math.pi) * 10_000.0 ** (-2 * block / 128)
    options = {KEY: 4096, "truncate": False, "beta_fast": beta, "beta_slow": beta}
    got = scaling.yarn(theta, 8.0, **options)
    np.testing.assert_allclose(got.frequencies, np.where(np.arange(64) < kept, theta, theta / 8.0), rtol=1e-9)


SHARP = 0.1 * math.log(40.0) + 1.0


@pytest.mark.parametrize(
    ("factor", "given", "expected"),
    [
        (40.0, {"mscale": 0.707}, SHARP),  # alone it has no effect
        (40.0, {"mscale_all_dim": 0.707}, SHARP),
        (40.0, {"mscale": 0.0, "mscale_all_dim": 1.0}, SHARP),
        (40.0, {"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        (40.0, {"mscale": 1.0, "mscale_all_dim": 0.5}, SHARP / (0.1 * 0.5 * math.log(40.0) + 1)),
        (40.0, {"mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.5}, 1.5),
        (1.0, {}, 1.0),
        (0.5, {"mscale": 1.0, "mscale_all_dim": 0.5}, 1.0),
    ],
)
def test_the_attention_factor_of_yarn(factor, given, expected):
    assert scaling.yarn(rfrope.geometric(32), factor, **{KEY: 4096}, **given).attention_factor == expected


@pytest.mark.parametrize(("n_blocks", "base"), [(2, 1.5), (3, 1e9), (16, 100.0), (128, 5e5)])
def test_yarn_finds_the_base_of_a_ladder(n_blocks, base):
    omega, options = rfrope.geometric(n_blocks, base=base), {KEY: 2048, "truncate": False}
    for held in (omega, omega.astype(np.float32)) if n_blocks == 128 else (omega,):
        told, found = (scaling.yarn(held, 4.0, base=given, **options) for given in (base, None))
        np.testing.assert_allclose(found.frequencies, told.frequencies, rtol=1e-12 if held is omega else 1e-6)


@pytest.mark.parametrize("off", [1e-7, 9e-6])  # further off they are no ladder: see tests/refusals
def test_how_far_frequencies_may_be_from_a_ladder(off):
    theta = rfrope.geometric(8)
    theta[3] *= 1.0 + off
    got, told = (scaling.yarn(theta, 4.0, base=base, **{KEY: 4096}).frequencies for base in (None, 10_000.0))
    np.testing.assert_allclose(got, told, rtol=1e-9)


@pytest.mark.parametrize(("n_blocks", "factor"), [(2, 8.0), (3, 31.7), (64, 1.0), (64, 2.0)])
def test_ntk_is_another_base(n_blocks, factor):
    got = scaling.ntk(rfrope.geometric(n_blocks, base=500_000.0), factor)
    width = 2 * n_blocks
    with mpmath.workdps(40):
        base = mpmath.mpf(500_000) * mpmath.mpf(factor) ** (mpmath.mpf(width) / (width - 2))
        exact = [float(base ** (-mpmath.mpf(i) / n_blocks)) for i in range(n_blocks)]
    np.testing.assert_allclose(got.frequencies, exact, rtol=4e-15)
    assert (got.frequencies[0], got.attention_factor) == (1.0, 1.0)


@pytest.mark.parametrize(("seq_len", "stretch"), [(None, 1.0), (1, 1.0), (2048, 1.0), (4096, 5.0), (2050, 1.00390625)])
def test_dynamic_is_ntk_by_what_the_sequence_needs(seq_len, stretch):
    omega = rfrope.geometric(16)
    got = scaling.dynamic_ntk(omega, 4.0, seq_len=seq_len, max_position_embeddings=2048)
    np.testing.assert_allclose(got.frequencies, scaling.ntk(omega, stretch).frequencies, rtol=1e-14)


def test_linear_divides():
    got = scaling.linear([[[1.0, 2.0]], [[-3.0, 0.0]]], 4)
    assert (got.frequencies.tolist(), got.attention_factor) == ([[[0.25, 0.5]], [[-0.75, 0.0]]], 1.0)
    assert scaling.linear(Rope(rfrope.geometric(8), context=2), 0.125).context == 1  # never below one position


@pytest.mark.parametrize(("seq_len", "key"), [(None, "short"), (4096, "short"), (4097, "long")])
def test_longrope_divides_by_its_lists(seq_len, key):
    omega, usual = rfrope.geometric(8), math.sqrt(1 + math.log(32.0) / math.log(4096))  # in both regimes
    got = scaling.longrope(omega, factor=32.0, seq_len=seq_len, **LONG)
    assert np.array_equal(got.frequencies, omega / np.array(LONG[f"{key}_factor"]))
    for factor, given, expected in ((32.0, None, usual), (1.0, None, 1.0), (0.5, None, 1.0), (32.0, 1.25, 1.25)):
        got = scaling.longrope(omega, factor=factor, seq_len=seq_len, attention_factor=given, **LONG)
        assert got.attention_factor == expected


@pytest.mark.parametrize(("base", "low", "high"), [(1e4, 1.0, 4.0), (5e5, 0.5, 16.0), (5e5, 2.0, 2.5)])
def test_llama3_is_its_formula(base, low, high):
    omega, options = rfrope.geometric(64, base=base), {"low_freq_factor": low, "high_freq_factor": high, KEY: 8192}
    found, wavelengths = scaling.llama3(omega, 8.0, **options).frequencies, 2 * math.pi / omega
    np.testing.assert_allclose(found, llama3(omega, 8192, 8.0, low, high), rtol=1e-14)
    kinds = {*((wavelengths < 8192 / high) + 2 * (wavelengths > 8192 / low)).tolist()}  # stays, divided, between
    assert kinds == {0, 1, 2} or high / low < 2


@pytest.mark.parametrize("turns", [1.0, 4.0])
def test_llama3_as_a_step(turns, xp):
    """Llama 4: a ramp of no width, with frequencies exactly at its place, which stay, and at 0."""
    step = 2 * math.pi * turns / 8192
    omega = xp([1.0, step * 1.000001, step, step * 0.999999, 1e-6, 0.0, -1.0, -1e-6])
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        got = scaling.llama3(omega, 16.0, low_freq_factor=turns, high_freq_factor=turns, **{KEY: 8192})
    stays = np.array([True, True, True, False, False, True, True, False])
    np.testing.assert_allclose(xp.host(got.frequencies), xp.host(omega) / np.where(stays, 1.0, 16.0), rtol=1e-15)


@pytest.mark.parametrize(
    ("fraction", "kept"), [(0.0, 0), (0.124, 0), (0.125, 1), (0.25, 2), (0.375, 3), (0.49, 3), (0.99, 7), (1.0, 8)]
)
def test_proportional_keeps_the_first_of_the_whole_ladder(fraction, kept):
    omega = rfrope.geometric(8)
    got = scaling.proportional(omega, partial_rotary_factor=fraction, factor=2.0)
    assert np.array_equal(got.frequencies, np.where(np.arange(8) < kept, omega / 2.0, 0.0))


@pytest.mark.parametrize(
    ("base", "n_blocks", "period", "length", "block", "frequency"), rows("scaling/schemes.json", "riflex")
)
def test_riflex_slows_down_the_block_that_its_authors_do(base, n_blocks, period, length, block, frequency):
    omega = rfrope.geometric(n_blocks, base=base)
    got = scaling.riflex(omega, period=period, length=length).frequencies
    assert got[block] == pytest.approx(frequency, abs=5e-7)
    assert np.array_equal(np.delete(got, block), np.delete(omega, block))


@pytest.mark.parametrize(("patches", "time", "expected"), rows("scaling/schemes.json", "dype"))
def test_ntk_by_axis_and_step_is_that_of_dype(patches, time, expected):
    rope = Rope(rfrope.axial(rfrope.geometric(8), *[rfrope.geometric(28)] * 2).frequencies, context=(1, 64, 64))
    got = scaling.scale_axis(rope, 2, scaling.ntk, (patches / 64) ** (2 * time**2))
    np.testing.assert_allclose(got.frequencies[36:, 2][::9], expected, rtol=4e-6)
    assert np.array_equal(got.frequencies[:36], rope.frequencies[:36])
    assert got.context == (1, 64, round(64 * (patches / 64) ** (2 * time**2)))


def test_a_scheme_by_axis_is_that_of_its_blocks(xp):
    """In any order of blocks, and but for those that several axes turn; the attention factor is of all."""
    one, other = rfrope.geometric(6), rfrope.geometric(4, base=100.0)
    sets = [np.concatenate([made, [[0.5, 0.5]]]) for made in (
        rfrope.axial(one, other, order="interleaved").frequencies,
        rfrope.axial(one, scaling.yarn(other, 4.0, **{KEY: 64}), order="interleaved").frequencies,
    )]  # fmt: skip
    got = scaling.scale_axis(xp(sets[0]), 1, scaling.yarn, 4.0, base=100.0, **{KEY: 64})
    assert xp.owns(got.frequencies)
    np.testing.assert_allclose(xp.host(got.frequencies), sets[1], rtol=4e-16)
    assert got.attention_factor == 0.1 * math.log(4.0) + 1
    assert (got.source.scaled_by[0]["scheme"], got.source.scaled_by[0]["axis"]) == ("yarn", 1)


# -- every library -----------------------------------------------------------------------------------------------------


SCHEMES = {
    "linear": lambda w: scaling.linear(w, 4.0),
    "ntk": lambda w: scaling.ntk(w, 4.0),
    "dynamic_ntk": lambda w: scaling.dynamic_ntk(w, 4.0, seq_len=5000, max_position_embeddings=2048),
    "yarn": lambda w: scaling.yarn(w, 4.0, original_max_position_embeddings=2048, base=10_000.0),
    "longrope": lambda w: scaling.longrope(w, factor=4.0, seq_len=5000, **LONG),
    "llama3": lambda w: scaling.llama3(w, 4.0, **LLAMA3),
    "proportional": lambda w: scaling.proportional(w, partial_rotary_factor=0.5, factor=2.0),
    "riflex": lambda w: scaling.riflex(w, period=200, length=500),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_what_a_rope_holds_goes_through_a_scheme(name):
    """Factors multiply, contexts grow where the scheme itself stretches them, and the steps are written down."""
    bare = SCHEMES[name](rfrope.geometric(8))
    longer = {"dynamic_ntk": 1, "longrope": 1, "riflex": 1, "proportional": 2}.get(name, 4)  # two follow the text
    for context in (300, (300, 50)):
        fields = {"pairing": "interleaved", "head_dim": 24, "attention_factor": 1.25, "context": context}
        before = Rope(2.0 * rfrope.geometric(8), **fields, source={"kernel": "constant()"})
        got = SCHEMES[name](scaling.linear(before, 2.0))
        assert got.attention_factor == 1.25 * bare.attention_factor
        assert np.array_equal(got.frequencies, bare.frequencies)
        assert (got.pairing, got.head_dim, got.source.kernel) == ("interleaved", 24, "constant()")
        assert got.context == (600 * longer if context == 300 else (600 * longer, 100 * longer))
        assert [step["scheme"] for step in got.source.scaled_by] == ["linear", name.removesuffix("_ntk")]


def test_lists_beside_arrays_come_to_their_library(xp):
    factors = {key: xp(LONG[key]) for key in ("short_factor", "long_factor")}
    omega = rfrope.geometric(8)
    got = scaling.longrope(omega.tolist(), factor=4.0, original_max_position_embeddings=4096, **factors)
    assert xp.owns(got.frequencies)
    np.testing.assert_array_equal(xp.host(got.frequencies), omega / np.array(LONG["short_factor"]))
    if not xp.name.endswith("numpy"):
        with pytest.raises(TypeError, match="expected all arrays from one library"):
            scaling.longrope(xp(omega), factor=2.0, **LONG | {"short_factor": np.ones(8)})


@pytest.mark.parametrize("high", [1.0, 4.0])
def test_gradients_of_llama3_are_finite_everywhere(high, torch):
    step = 2 * math.pi / 8192
    omega = torch.tensor([0.0, 1.0, step, 4 * step, -step, 1e-300], dtype=torch.float64, requires_grad=True)
    scaling.llama3(omega, 8.0, **LLAMA3 | {"high_freq_factor": high}).frequencies.sum().backward()
    assert bool(torch.isfinite(omega.grad).all())


def test_yarn_looks_at_no_value_that_is_lazy_or_on_a_device(xp):
    said = "base is None, and frequencies are lazy or on a device"
    with pytest.raises(ValueError, match=said) if xp.lazy else contextlib.nullcontext():
        scaling.yarn(xp([1.0, 0.1, 0.01, 0.001]), 2.0, **{KEY: 64})
