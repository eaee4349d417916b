"""Schemes against formulas written out here, cases of other projects, every library, and a table of bad input."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings

import mpmath
import numpy as np
import pytest
from published import lists

import rfrope
from rfrope import Rope, scaling
from rfrope.models import from_rope_parameters

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONG = {**lists(8), "original_max_position_embeddings": 4096}


# -- formulas of section 5 of the mathematics page, one frequency at a time --------------------------------------------


def yarn_ramp(i, width, base, original, beta_fast=32.0, beta_slow=1.0, truncate=True):
    def block(turns):
        return width * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = block(beta_fast), block(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    return 1 - min(max((i - low) / (high - low), 0), 1)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("n_blocks", "base", "original", "factor"),
    [
        (64, 10_000.0, 4096, 16.0),
        (64, 1e6, 32768, 4.0),
        (32, 150_000.0, 4096, 32.0),
        (3, 50.0, 64, 2),
        (64, 1e4, 8, 2.0),
        (64, 1e4, 10**6, 4.0),
        (4, 1e4, 2, 2.0),  # the ramp ends where it begins
        (1, 1e4, 10**6, 2.0),
    ],
)
def test_yarn_is_its_formula(n_blocks, base, original, factor, truncate):
    got = scaling.yarn(
        rfrope.geometric(n_blocks, base=base),
        factor,
        original_max_position_embeddings=original,
        base=base,
        truncate=truncate,
    )
    for i in range(n_blocks):
        theta = base ** (-i / n_blocks)
        g = yarn_ramp(i, 2 * n_blocks, base, original, truncate=truncate)
        assert got.frequencies[i] == pytest.approx(theta / factor * (1 - g) + theta * g, rel=1e-14)
    assert got.attention_factor == 0.1 * math.log(factor) + 1


@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (64.0, 2.0), (8.0, 8.0), (4, 1)])
def test_yarn_takes_its_turns(fast, slow):
    got = scaling.yarn(rfrope.geometric(64), 8.0, original_max_position_embeddings=4096, beta_fast=fast, beta_slow=slow)
    ramp = np.array([yarn_ramp(i, 128, 10_000.0, 4096, fast, slow) for i in range(64)])
    theta = rfrope.geometric(64)
    np.testing.assert_allclose(got.frequencies, theta / 8.0 * (1 - ramp) + theta * ramp, rtol=1e-14)


def test_how_steep_yarn_is_where_its_ends_meet_between_two_blocks():
    """They meet 0.003 before block 3, where the ramp that is 0.001 wide has ended."""
    beta = 4096 / (2 * math.pi) * 10_000.0 ** (-2 * 2.997 / 128)
    theta, options = rfrope.geometric(64), {"original_max_position_embeddings": 4096, "truncate": False}
    got = scaling.yarn(theta, 8.0, beta_fast=beta, beta_slow=beta, **options)
    np.testing.assert_allclose(got.frequencies, np.where(np.arange(64) < 3, theta, theta / 8.0), rtol=1e-14)


def test_a_context_is_never_below_one_position():
    assert scaling.linear(Rope(rfrope.geometric(8), context=2), 0.125).context == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 0.1 * math.log(40.0) + 1.0),
        ({"mscale": 0.707}, 0.1 * math.log(40.0) + 1.0),  # alone it has no effect
        ({"mscale_all_dim": 0.707}, 0.1 * math.log(40.0) + 1.0),
        ({"mscale": 0.0, "mscale_all_dim": 1.0}, 0.1 * math.log(40.0) + 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, (0.1 * math.log(40.0) + 1) / (0.1 * 0.5 * math.log(40.0) + 1)),
        ({"mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.5}, 1.5),
    ],
)
def test_the_attention_factor_of_yarn(given, expected):
    got = scaling.yarn(rfrope.geometric(32), 40.0, original_max_position_embeddings=4096, **given)
    assert got.attention_factor == expected


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_yarn_without_extension_sharpens_nothing(factor):
    got = scaling.yarn(
        rfrope.geometric(8), factor, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=0.5
    )
    assert got.attention_factor == 1.0


@pytest.mark.parametrize("base", [1.5, 100.0, 10_000.0, 5e5, 1e9])
@pytest.mark.parametrize("n_blocks", [2, 3, 16, 64, 128])
def test_yarn_finds_the_base_of_a_ladder(base, n_blocks):
    omega = rfrope.geometric(n_blocks, base=base)
    told = scaling.yarn(omega, 4.0, original_max_position_embeddings=2048, base=base, truncate=False)
    found = scaling.yarn(omega, 4.0, original_max_position_embeddings=2048, truncate=False)
    np.testing.assert_allclose(found.frequencies, told.frequencies, rtol=1e-12)


def test_yarn_finds_the_base_of_a_checkpoints_float32():
    omega = rfrope.geometric(64, base=5e5).astype(np.float32)
    told, found = (scaling.yarn(omega, 4.0, original_max_position_embeddings=2048, base=b) for b in (5e5, None))
    np.testing.assert_array_equal(found.frequencies, told.frequencies)


@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0, 31.7])
@pytest.mark.parametrize("n_blocks", [2, 3, 64])
def test_ntk_is_another_base(n_blocks, factor):
    got = scaling.ntk(rfrope.geometric(n_blocks, base=500_000.0), factor)
    width = 2 * n_blocks
    with mpmath.workdps(40):
        base = mpmath.mpf(500_000) * mpmath.mpf(factor) ** (mpmath.mpf(width) / (width - 2))
        exact = [float(base ** (-mpmath.mpf(i) / n_blocks)) for i in range(n_blocks)]
    np.testing.assert_allclose(got.frequencies, exact, rtol=4e-15)
    assert got.frequencies[0] == 1.0
    assert got.attention_factor == 1.0


@pytest.mark.parametrize(("seq_len", "stretch"), [(None, 1.0), (1, 1.0), (2048, 1.0), (4096, 5.0), (2050, 1.00390625)])
def test_dynamic_is_ntk_by_what_the_sequence_needs(seq_len, stretch):
    omega = rfrope.geometric(16)
    got = scaling.dynamic_ntk(omega, 4.0, seq_len=seq_len, max_position_embeddings=2048)
    np.testing.assert_allclose(got.frequencies, scaling.ntk(omega, stretch).frequencies, rtol=1e-14)


def test_linear_divides():
    got = scaling.linear([[[1.0, 2.0]], [[-3.0, 0.0]]], 4)
    assert got.frequencies.tolist() == [[[0.25, 0.5]], [[-0.75, 0.0]]]
    assert got.attention_factor == 1.0


@pytest.mark.parametrize(("seq_len", "key"), [(None, "short"), (4096, "short"), (4097, "long")])
def test_longrope_divides_by_its_lists(seq_len, key):
    omega = rfrope.geometric(8)
    got = scaling.longrope(omega, factor=32.0, seq_len=seq_len, **LONG)
    assert np.array_equal(got.frequencies, omega / np.array(LONG[f"{key}_factor"]))
    assert got.attention_factor == math.sqrt(1 + math.log(32.0) / math.log(4096))  # in both regimes


def test_the_attention_factor_of_longrope():
    omega = rfrope.geometric(8)
    assert scaling.longrope(omega, factor=1.0, **LONG).attention_factor == 1.0
    assert scaling.longrope(omega, factor=0.5, **LONG).attention_factor == 1.0
    assert scaling.longrope(omega, factor=32.0, attention_factor=1.25, **LONG).attention_factor == 1.25


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (0.5, 16.0), (2.0, 2.5)])
def test_llama3_is_its_formula(base, low, high):
    got = scaling.llama3(
        rfrope.geometric(64, base=base),
        8.0,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=8192,
    )
    kinds = set()
    for theta, value in zip(rfrope.geometric(64, base=base), got.frequencies, strict=True):
        wavelength = 2 * math.pi / theta
        if wavelength < 8192 / high:
            kind, expected = "stays", theta
        elif wavelength > 8192 / low:
            kind, expected = "divided", theta / 8.0
        else:
            t = (8192 / wavelength - low) / (high - low)
            kind, expected = "between", (1 - t) * theta / 8.0 + t * theta
        kinds.add(kind)
        assert value == pytest.approx(expected, rel=1e-14)
    assert kinds == {"stays", "divided", "between"} or high / low < 2


@pytest.mark.parametrize("turns", [1.0, 4.0])
def test_llama3_as_a_step(turns, xp):
    """Llama 4: a ramp of no width, with frequencies exactly at its place and at 0."""
    step = 2 * math.pi * turns / 8192
    omega = xp([1.0, step * 1.000001, step, step * 0.999999, 1e-6, 0.0, -1.0, -1e-6])
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        got = scaling.llama3(
            omega, 16.0, low_freq_factor=turns, high_freq_factor=turns, original_max_position_embeddings=8192
        )
    host = xp.host(got.frequencies)
    assert np.all(np.isfinite(host))
    stays = np.array([True, True, host[2] == step, False, False, True, True, False])
    np.testing.assert_allclose(host, xp.host(omega) / np.where(stays, 1.0, 16.0), rtol=1e-15)


@pytest.mark.parametrize(("fraction", "kept"), [(0.0, 0), (0.25, 2), (0.3, 2), (0.49, 3), (0.5, 4), (1.0, 8)])
def test_proportional_keeps_the_first_of_the_whole_ladder(fraction, kept):
    omega = rfrope.geometric(8)
    got = scaling.proportional(omega, partial_rotary_factor=fraction, factor=2.0)
    assert np.array_equal(got.frequencies, np.where(np.arange(8) < kept, omega / 2.0, 0.0))
    assert kept == int(fraction * 16 // 2)


# -- every library -----------------------------------------------------------------------------------------------------


SCHEMES = {
    "linear": lambda w: scaling.linear(w, 4.0),
    "ntk": lambda w: scaling.ntk(w, 4.0),
    "dynamic_ntk": lambda w: scaling.dynamic_ntk(w, 4.0, seq_len=5000, max_position_embeddings=2048),
    "yarn": lambda w: scaling.yarn(w, 4.0, original_max_position_embeddings=2048, base=10_000.0),
    "longrope": lambda w: scaling.longrope(w, factor=4.0, seq_len=5000, **LONG),
    "llama3": lambda w: scaling.llama3(w, 4.0, **LLAMA3),
    "proportional": lambda w: scaling.proportional(w, partial_rotary_factor=0.5, factor=2.0),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("name", SCHEMES)
def test_in_every_library(name, dtype, xp):
    host = rfrope.geometric(8).astype(dtype) if dtype != "int64" else np.arange(1, 9)
    got, expected = SCHEMES[name](xp(host)), SCHEMES[name](host)
    assert isinstance(got, Rope)
    assert xp.owns(got.frequencies)
    assert got.frequencies.dtype == xp.dtype("float64")
    np.testing.assert_allclose(xp.host(got.frequencies), expected.frequencies, rtol=4e-16)
    assert got.attention_factor == expected.attention_factor
    assert type(got.attention_factor) is float


@pytest.mark.parametrize("name", SCHEMES)
def test_what_a_rope_holds_goes_through_a_scheme(name):
    """Factors multiply, contexts grow where the scheme itself stretches them, and the steps are written down."""
    bare = SCHEMES[name](rfrope.geometric(8))
    longer = {"dynamic_ntk": 1, "longrope": 1, "proportional": 2}.get(name, 4)  # the first two follow the text
    for context in (300, (300, 50)):
        fields = {"pairing": "interleaved", "head_dim": 24, "attention_factor": 1.25, "context": context}
        before = Rope(2.0 * rfrope.geometric(8), **fields, source={"kernel": "constant()"})
        before = scaling.linear(before, 2.0)
        got = SCHEMES[name](before)
        assert got.attention_factor == 1.25 * bare.attention_factor
        assert np.array_equal(got.frequencies, bare.frequencies)
        assert (got.pairing, got.head_dim) == ("interleaved", 24)
        assert got.context == (600 * longer if context == 300 else (600 * longer, 100 * longer))
        assert got.source.kernel == "constant()"
        assert [step["scheme"] for step in got.source.scaled_by] == ["linear", name.removesuffix("_ntk")]


@pytest.mark.parametrize("name", SCHEMES)
def test_a_list_is_an_array_of_numpy(name):
    got = SCHEMES[name](rfrope.geometric(8).tolist())
    assert np.array_equal(got.frequencies, SCHEMES[name](rfrope.geometric(8)).frequencies)


@pytest.mark.parametrize("name", SCHEMES)
def test_given_frequencies_stay_as_they_are(name):
    omega = rfrope.geometric(8)
    SCHEMES[name](omega)
    assert np.array_equal(omega, rfrope.geometric(8))


def test_lists_beside_arrays_come_to_their_library(xp):
    factors = {key: xp(LONG[key]) for key in ("short_factor", "long_factor")}
    omega = rfrope.geometric(8)
    got = scaling.longrope(omega.tolist(), factor=4.0, original_max_position_embeddings=4096, **factors)
    assert xp.owns(got.frequencies)
    np.testing.assert_array_equal(xp.host(got.frequencies), omega / np.array(LONG["short_factor"]))


@pytest.mark.parametrize("name", SCHEMES)
def test_gradients_reach_the_frequencies(name):
    """Every scheme is linear in the frequencies or smooth; compared with differences of the scheme itself."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    host = rfrope.geometric(8)
    omega = torch.tensor(host, requires_grad=True)
    weights = np.cos(np.arange(8.0))
    (SCHEMES[name](omega).frequencies * torch.tensor(weights)).sum().backward()
    step = 1e-6 * host
    for i in range(8):
        up, down = host.copy(), host.copy()
        up[i] += step[i]
        down[i] -= step[i]
        slope = (SCHEMES[name](up).frequencies - SCHEMES[name](down).frequencies) @ weights / (2 * step[i])
        assert float(omega.grad[i]) == pytest.approx(slope, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (1.0, 4.0)])
def test_gradients_of_llama3_are_finite_everywhere(low, high):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    step = 2 * math.pi / 8192
    omega = torch.tensor([0.0, 1.0, step, 4 * step, -step, 1e-300], dtype=torch.float64, requires_grad=True)
    got = scaling.llama3(omega, 8.0, low_freq_factor=low, high_freq_factor=high, original_max_position_embeddings=8192)
    got.frequencies.sum().backward()
    assert bool(torch.isfinite(omega.grad).all())


@pytest.mark.parametrize("name", SCHEMES)
def test_under_jit(name):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    jax.config.update("jax_enable_x64", True)
    got = jax.jit(lambda w: SCHEMES[name](w).frequencies)(jax.numpy.asarray(rfrope.geometric(8)))
    np.testing.assert_allclose(np.asarray(got), SCHEMES[name](rfrope.geometric(8)).frequencies, rtol=1e-15)


def test_scaled_is_a_frozen_pair():
    scaled = SCHEMES["yarn"](rfrope.geometric(8))
    frequencies, attention_factor = scaled
    assert frequencies is scaled.frequencies
    assert attention_factor == scaled.attention_factor
    with pytest.raises(dataclasses.FrozenInstanceError):
        scaled.attention_factor = 2.0


def test_the_attention_factor_multiplies_scores_by_its_square():
    frequencies, factor = SCHEMES["yarn"](rfrope.geometric(8))
    q, k = np.random.default_rng(0).standard_normal((2, 16))
    scaled = rfrope.rotate(q, 5, frequencies, scale=factor) @ rfrope.rotate(k, 9, frequencies, scale=factor)
    assert scaled == pytest.approx(factor**2 * rfrope.scores([q], [k], [5], [9], frequencies)[0, 0], rel=1e-13)


# -- where one value ends and the next begins --------------------------------------------------------------------------


def test_a_frequency_exactly_at_the_step_of_llama3_stays():
    theta = np.array([2.0, 1.0, 0.5]) * (2 * math.pi / 1024)  # turns in 1024 positions: 2, 1, 0.5
    got = scaling.llama3(
        theta, 8.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=1024
    ).frequencies
    assert (theta * (1024 / (2 * math.pi)))[1] == 1.0
    np.testing.assert_allclose(got, theta / [1.0, 1.0, 8.0], rtol=1e-15)


@pytest.mark.parametrize(("off", "found"), [(1e-7, True), (9e-6, True), (1.2e-5, False), (1e-3, False)])
def test_how_far_frequencies_may_be_from_a_ladder(off, found):
    theta = rfrope.geometric(8)
    theta[3] *= 1.0 + off
    if found:
        got = scaling.yarn(theta, 4.0, original_max_position_embeddings=4096).frequencies
        told = scaling.yarn(theta, 4.0, original_max_position_embeddings=4096, base=10_000.0).frequencies
        np.testing.assert_allclose(got, told, rtol=1e-9)
    else:
        with pytest.raises(ValueError, match="frequencies are not a ladder"):
            scaling.yarn(theta, 4.0, original_max_position_embeddings=4096)


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_a_factor_up_to_one_does_not_sharpen(factor):
    options = {"mscale": 1.0, "mscale_all_dim": 0.5}
    for given in ({}, options):
        got = scaling.yarn(rfrope.geometric(8), factor, original_max_position_embeddings=4096, **given)
        assert got.attention_factor == 1.0


def test_a_ramp_of_yarn_without_width_is_a_step_after_its_block():
    theta = rfrope.geometric(8)
    turns = 4096 * theta[3] / (2 * math.pi)  # turns of block 3, where both ends are
    got = scaling.yarn(
        theta, 4.0, original_max_position_embeddings=4096, base=1e4, beta_fast=turns, beta_slow=turns, truncate=False
    ).frequencies
    np.testing.assert_allclose(got, theta / [1, 1, 1, 1, 4, 4, 4, 4], rtol=1e-9)


@pytest.mark.parametrize(
    ("part", "kept"), [(0.0, 0), (0.124, 0), (0.125, 1), (0.99, 7), (1.0, 8), (0.375, 3), (0.49, 3)]
)
def test_how_many_frequencies_proportional_keeps(part, kept):
    got = scaling.proportional(rfrope.geometric(8), partial_rotary_factor=part).frequencies
    assert np.count_nonzero(got) == kept


@pytest.mark.parametrize("factor", [5e-324, 1e-300, 1e300])
def test_factors_without_measure_are_refused_and_nothing_overflows(factor):
    theta, more = rfrope.geometric(8), {"original_max_position_embeddings": 4096}
    lists_of = {"short_factor": [factor] * 8, "long_factor": [1.0] * 8}
    for call in (
        lambda: scaling.linear(theta, factor),
        lambda: scaling.ntk(theta, factor),
        lambda: scaling.yarn(theta, factor, **more),
        lambda: scaling.proportional(theta, factor=factor),
        lambda: scaling.longrope(theta, factor=2.0, **lists_of, **more),
    ):
        told = rf"factor is {re.escape(repr(factor))}; expected a positive number from 2\*\*-100 to 2\*\*100"
        with pytest.raises(ValueError, match=f"{told}|numbers other than 0"):
            call()


# -- bad input of the functions ----------------------------------------------------------------------------------------


W = [1.0, 0.1, 0.01, 0.001]
ORIGINAL = {"original_max_position_embeddings": 64}
PAIR = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
BAD = [
    (lambda: scaling.linear(W, 0.0), ValueError, "factor is 0.0; expected a positive finite number"),
    (lambda: scaling.linear(W, math.inf), ValueError, "factor is inf; expected a positive finite number"),
    (lambda: scaling.linear(W, math.nan), ValueError, "factor is nan; expected a positive finite number"),
    (lambda: scaling.linear(W, "4"), TypeError, "factor is '4'; expected a positive number"),
    (lambda: scaling.linear(W, True), TypeError, "factor is True; expected a positive number"),
    (lambda: scaling.linear(W, None), TypeError, "factor is None; expected a positive number"),
    (lambda: scaling.linear(W, [2.0, 3.0]), TypeError, "factor is [2.0, 3.0]; expected a positive number"),
    (
        lambda: scaling.linear(1.0, 2.0),
        ValueError,
        "frequencies is a single number; expected (D,), or (*H, D, k) for k axes",
    ),
    (lambda: scaling.linear([1.0, math.nan], 2.0), ValueError, "frequencies holds NaN or infinity"),
    (lambda: scaling.linear([1j], 2.0), TypeError, "frequencies has dtype complex128"),
    (lambda: scaling.linear(None, 2.0), TypeError, "frequencies is None"),
    (lambda: scaling.ntk([1.0], 2.0), ValueError, "frequencies has shape (1,); expected at least two"),
    (lambda: scaling.ntk([W], 2.0), ValueError, "frequencies has shape (1, 4); expected (D,)"),
    (lambda: scaling.ntk(W, -1.0), ValueError, "factor is -1.0; expected a positive finite number"),
    (
        lambda: scaling.dynamic_ntk(W, 2.0, seq_len=0, max_position_embeddings=8),
        ValueError,
        "seq_len is 0; expected a whole number from 1",
    ),
    (
        lambda: scaling.dynamic_ntk(W, 2.0, seq_len=9.5, max_position_embeddings=8),
        TypeError,
        "seq_len is 9.5; expected a whole number",
    ),
    (
        lambda: scaling.dynamic_ntk(W, 2.0, seq_len=9, max_position_embeddings=None),
        TypeError,
        "max_position_embeddings is None; expected a whole number",
    ),
    (
        lambda: scaling.yarn([1.0, 0.3, 0.2], 2.0, **ORIGINAL),
        ValueError,
        "base is None, and frequencies are not a ladder base ** (-i / D) of two or more; pass base=",
    ),
    (lambda: scaling.yarn([1.0], 2.0, **ORIGINAL), ValueError, "pass base="),
    (lambda: scaling.yarn([1.0, 0.0], 2.0, **ORIGINAL), ValueError, "pass base="),
    (lambda: scaling.yarn([1.0, 1.0], 2.0, **ORIGINAL), ValueError, "base is 1.0; expected a number above 1"),
    (lambda: scaling.yarn(W, 2.0, base=0.5, **ORIGINAL), ValueError, "base is 0.5; expected a number above 1"),
    (lambda: scaling.yarn(W, 2.0, truncate=1, **ORIGINAL), TypeError, "truncate is 1; expected True or False"),
    (
        lambda: scaling.yarn(W, 2.0, beta_fast=1.0, beta_slow=2.0, **ORIGINAL),
        ValueError,
        "beta_fast is 1.0, beta_slow 2.0; expected the first not below the second",
    ),
    (lambda: scaling.yarn(W, 2.0, beta_slow=0.0, **ORIGINAL), ValueError, "beta_slow is 0.0; expected a positive"),
    (
        lambda: scaling.yarn(W, 2.0, mscale=-1.0, **ORIGINAL),
        ValueError,
        "mscale is -1.0; expected a number from 0 to 2**100",
    ),
    (
        lambda: scaling.yarn(W, 2.0, attention_factor=0.0, **ORIGINAL),
        ValueError,
        "attention_factor is 0.0; expected a positive finite number",
    ),
    (
        lambda: scaling.yarn(W, 2.0, original_max_position_embeddings=64.0),
        TypeError,
        "original_max_position_embeddings is 64.0; expected a whole number",
    ),
    (
        lambda: scaling.longrope(W[:3], factor=2.0, **PAIR, **ORIGINAL),
        ValueError,
        "short_factor has shape (4,), but frequencies has (3,); expected one number for each frequency",
    ),
    (
        lambda: scaling.longrope(W, factor=2.0, **PAIR | {"long_factor": [1.0, 2.0, 0.0, 4.0]}, **ORIGINAL),
        ValueError,
        "long_factor holds numbers that are 0 or not finite",
    ),
    (
        lambda: scaling.longrope(W, factor=2.0, **PAIR, original_max_position_embeddings=1),
        ValueError,
        "original_max_position_embeddings is 1; expected a whole number from 2",
    ),
    (lambda: scaling.longrope(W, factor=-2.0, **PAIR, **ORIGINAL), ValueError, "factor is -2.0; expected a positive"),
    (
        lambda: scaling.llama3(W, 2.0, low_freq_factor=4.0, high_freq_factor=1.0, **ORIGINAL),
        ValueError,
        "low_freq_factor is 4.0, high_freq_factor 1.0; expected the first not above the second",
    ),
    (
        lambda: scaling.llama3(W, 2.0, low_freq_factor=0.0, high_freq_factor=1.0, **ORIGINAL),
        ValueError,
        "low_freq_factor is 0.0; expected a positive finite number",
    ),
    (
        lambda: scaling.proportional(W, partial_rotary_factor=1.5),
        ValueError,
        "partial_rotary_factor is 1.5; expected a number from 0 to 1",
    ),
    (lambda: scaling.proportional(W, factor=0.0), ValueError, "factor is 0.0; expected a positive finite number"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index):
    call, error, message = BAD[index]
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_yarn_looks_at_no_value_that_is_lazy_or_on_a_device(xp):
    if not xp.lazy:
        scaling.yarn(xp(W), 2.0, **ORIGINAL)
        return
    with pytest.raises(ValueError, match="base is None, and frequencies are lazy or on a device"):
        scaling.yarn(xp(W), 2.0, **ORIGINAL)


def test_arrays_of_two_libraries(xp):
    if xp.name.endswith("numpy"):
        return
    with pytest.raises(TypeError, match="expected all arrays from one library"):
        scaling.longrope(xp(W), factor=2.0, short_factor=np.ones(4), long_factor=[1.0] * 4, **ORIGINAL)


# -- from_rope_parameters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [None, {}, {"rope_type": "default"}, {"type": "default"}, {"rope_type": None}])
def test_nothing_told_is_standard_rope(told):
    got = from_rope_parameters(told, head_dim=128)
    assert np.array_equal(got.frequencies, rfrope.geometric(64))
    assert got.attention_factor == 1.0


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ({"rope_theta": 5e5}, {}),
        ({}, {"rope_theta": 5e5}),
        ({"rope_theta": 5e5}, {"rope_theta": 500_000}),
        ({"rope_theta": 5e5, "factor": None}, {}),
        ({"type": "mrope", "mrope_section": [8, 4, 4], "rope_theta": 5e5}, {}),
        ({"rope_type": "default", "type": "mrope", "mrope_interleaved": True, "rope_theta": 5e5}, {}),
        ({"rope_theta": 5e5}, {"seq_len": 100_000, "max_position_embeddings": 10}),
    ],
)
def test_ways_to_say_the_same(told, options):
    got = from_rope_parameters(told, head_dim=32, **options)
    assert np.array_equal(got.frequencies, rfrope.geometric(16, base=5e5))


DICTS = {
    "linear": ({"factor": 4.0}, lambda w: scaling.linear(w, 4.0)),
    "ntk": ({"factor": 4.0}, lambda w: scaling.ntk(w, 4.0)),
    "dynamic": ({"factor": 4.0}, lambda w: scaling.dynamic_ntk(w, 4.0, seq_len=5000, max_position_embeddings=2048)),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 512},
        lambda w: scaling.yarn(w, 4.0, original_max_position_embeddings=512, base=5e5),
    ),
    "longrope": (
        {**lists(16), "original_max_position_embeddings": 512},
        lambda w: scaling.longrope(
            w, **lists(16), original_max_position_embeddings=512, factor=2048 / 512, seq_len=5000
        ),
    ),
    "llama3": ({"factor": 4.0, **LLAMA3}, lambda w: scaling.llama3(w, 4.0, **LLAMA3)),
    "proportional": (
        {"factor": 2.0, "partial_rotary_factor": 0.5},
        lambda w: scaling.proportional(w, factor=2.0, partial_rotary_factor=0.5),
    ),
    "rfrope": (
        {"kernel": "gaussian(scale=32)", "design": "stratified", "seed": 3, "attention_factor": 1.5},
        lambda w: rfrope.Rope(
            rfrope.sample("gaussian(scale=32)", 16, rng=3, design="stratified"), attention_factor=1.5
        ),
    ),
}


@pytest.mark.parametrize("design", ["iid", "stratified", "optimised"])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_kernel_in_a_config_is_designed_as_it_says(design, seed):
    """For the context at hand, whichever was asked for before."""
    told = {"rope_type": "rfrope", "kernel": "matern(scale=9)", "design": design, "seed": seed}
    for context in (64, 700, 64):
        got = from_rope_parameters(told, head_dim=8, max_position_embeddings=context)
        made = rfrope.design("matern(scale=9)", head_dim=8, context=context, design=design, rng=seed)
        assert np.array_equal(got.frequencies, made.frequencies)
        assert got.source.design == design


ASKED = {"head_dim": 32, "max_position_embeddings": 2048, "seq_len": 5000}


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("name", DICTS)
def test_a_dict_stands_for_its_function(name, key):
    told, function = DICTS[name]
    got = from_rope_parameters({key: name, "rope_theta": 5e5, **told}, **ASKED)
    expected = function(rfrope.geometric(16, base=5e5))
    np.testing.assert_allclose(got.frequencies, expected.frequencies, rtol=2e-15)
    assert got.attention_factor == expected.attention_factor


def test_a_dict_of_explicit_frequencies():
    told = {"rope_type": "rfrope", "frequencies": [1.0, 0.5]}
    got = from_rope_parameters(told, head_dim=8, partial_rotary_factor=0.5)
    assert (got.frequencies.tolist(), got.rotary_dim, got.head_dim) == ([1.0, 0.5], 4, 8)
    assert got.source.rope_parameters["frequencies"] == [1.0, 0.5]
    assert from_rope_parameters(got.source.rope_parameters, head_dim=8).frequencies.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({}, "needs either 'kernel' or 'frequencies'"),
        ({"kernel": "gaussian", "frequencies": [1.0, 0.5]}, "needs either 'kernel' or 'frequencies'"),
        ({"frequencies": [1.0, 0.5], "seed": 1}, "has frequencies and seed; expected one or the other"),
        ({"frequencies": [1.0]}, "rope_parameters has 1 frequencies; expected 2, one for each block"),
        ({"kernel": "gaussian"}, "rope_parameters lacks context; a design needs it, or max_position_embeddings"),
        ({"kernel": "gaussian", "factor": 2.0}, r"holds 'factor', which 'rfrope' does not use \(linear, "),
        ({"kernel": "gausian"}, "gausian"),
        ({"kernel": "gaussian", "seed": -1}, r"rope_parameters\['seed'\] is -1"),
    ],
)
def test_dicts_of_our_own_that_cannot_be_read(told, message):
    with pytest.raises(ValueError, match=message):
        from_rope_parameters({"rope_type": "rfrope", **told}, head_dim=4)


@pytest.mark.parametrize("name", DICTS)
def test_a_dict_in_every_library(name, xp):
    told, _ = DICTS[name]
    got = from_rope_parameters({"rope_type": name, **told}, **ASKED, xp=xp.module, device=xp.device)
    assert xp.owns(got.frequencies)
    assert got.frequencies.dtype == xp.dtype("float64")
    expected = from_rope_parameters({"rope_type": name, **told}, **ASKED)
    assert np.array_equal(xp.host(got.frequencies), expected.frequencies)
    narrow = from_rope_parameters({"rope_type": name, **told}, **ASKED, xp=xp.module, dtype="float32")
    assert narrow.frequencies.dtype == xp.dtype("float32")


def test_a_dict_is_only_read():
    told = {"type": "su", **lists(16), "original_max_position_embeddings": 512, "factor": None}
    before = json.dumps(told)
    from_rope_parameters(told, **ASKED)
    assert json.dumps(told) == before


def test_su_is_longrope():
    told = {**lists(16), "original_max_position_embeddings": 512}
    su, long = (from_rope_parameters({"type": name, **told}, **ASKED) for name in ("su", "longrope"))
    assert np.array_equal(su.frequencies, long.frequencies)
    assert su.attention_factor == long.attention_factor


@pytest.mark.parametrize(("seq_len", "factor"), [(None, 1.25), (512, 1.25), (513, 1.5)])
def test_longrope_with_a_factor_for_each_regime(seq_len, factor):
    told = {"type": "longrope", **lists(16), "original_max_position_embeddings": 512}
    told |= {"short_mscale": 1.25, "long_mscale": 1.5}
    got = from_rope_parameters(told, head_dim=32, max_position_embeddings=2048, seq_len=seq_len)
    assert got.attention_factor == factor


@pytest.mark.parametrize("scheme", ["yarn", "longrope"])
def test_a_missing_factor_is_the_ratio_of_contexts(scheme):
    told = {"rope_type": scheme, "original_max_position_embeddings": 512, **(lists(16) if scheme == "longrope" else {})}
    missing = from_rope_parameters(told, **ASKED)
    given = from_rope_parameters(told | {"factor": 4.0}, **ASKED)
    assert np.array_equal(missing.frequencies, given.frequencies)
    assert missing.attention_factor == given.attention_factor != 1.0


@pytest.mark.parametrize("alpha", [1.0, 50.0, 1000])
def test_hunyuans_alpha_changes_the_base_whatever_the_length(alpha):
    told = {"type": "dynamic", "alpha": alpha, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
    for seq_len in (None, 100_000):
        got = from_rope_parameters(told, head_dim=32, seq_len=seq_len)
        np.testing.assert_allclose(
            got.frequencies, rfrope.geometric(16, base=10_000.0 * alpha ** (32 / 30)), rtol=1e-14
        )


@pytest.mark.parametrize(
    "idle", [{"finetuned": True}, {"llama_4_scaling_beta": 0.1}, {"max_position_embeddings": 262144}]
)
def test_keys_that_published_yarn_configs_carry_change_nothing(idle):
    told = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    with_key, without = (from_rope_parameters(one, **ASKED) for one in (told | idle, told))
    assert np.array_equal(with_key.frequencies, without.frequencies)
    with pytest.raises(ValueError, match=f"holds '{next(iter(idle))}', which is unknown"):
        from_rope_parameters(idle | {"rope_type": "linear", "factor": 4.0}, **ASKED)


@pytest.mark.parametrize(
    ("head_dim", "fraction", "width", "n_blocks"),
    [(128, 0.5, 64, 32), (80, 0.4, 32, 16), (128, 0.75, 96, 48), (64, 0.25, 16, 8), (96, 0.3, 28, 14), (10, 0.5, 5, 3),
     (5, 0.8, 4, 2), (3, 0.4, 1, 1)],
)  # fmt: skip
def test_partial_rotary_divides_exponents_by_the_rotated_width(head_dim, fraction, width, n_blocks):
    for told, options in (({"partial_rotary_factor": fraction}, {}), ({}, {"partial_rotary_factor": fraction})):
        got = from_rope_parameters(told, head_dim=head_dim, **options)
        np.testing.assert_allclose(got.frequencies, [10_000.0 ** (-2 * i / width) for i in range(n_blocks)], rtol=1e-15)


def test_ntk_of_an_odd_width_is_that_of_its_base():
    got = from_rope_parameters({"rope_type": "ntk", "factor": 4.0, "partial_rotary_factor": 0.5}, head_dim=10)
    base = 10_000.0 * 4.0 ** (5 / 3)
    np.testing.assert_allclose(got.frequencies, [base ** (-2 * i / 5) for i in range(3)], rtol=1e-14)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LONGROPE = {"rope_type": "longrope", **lists(16), "original_max_position_embeddings": 512, "factor": 4.0}
BAD_DICTS = [
    # names
    ({"rope_type": "yarm"}, {}, ValueError, "rope_parameters['rope_type'] is 'yarm'; did you mean 'yarn'?"),
    ({"type": np.array(["yarn", "x"])}, {}, ValueError, "rope_parameters['type'] is array(['yarn', 'x']"),
    ({"rope_type": ["yarn"]}, {}, ValueError, "rope_parameters['rope_type'] is ['yarn']; expected one of"),
    ({3: {}}, {}, TypeError, "rope_parameters holds the key 3; expected names of parameters"),
    ({"type": 3}, {}, ValueError, "rope_parameters['type'] is 3; expected one of"),
    (
        {"rope_type": "linear", "type": "dynamic", "factor": 2.0},
        {},
        ValueError,
        "rope_parameters['type'] is 'dynamic', but rope_parameters['rope_type'] is 'linear'; expected one of them",
    ),
    # keys
    (
        {"rope_type": "linear", "factors": 2.0},
        {},
        ValueError,
        "rope_parameters holds 'factors', which is unknown; expected for 'linear': factor, rope_theta, partial_rotary",
    ),
    (
        {"factor": 2.0},
        {},
        ValueError,
        "rope_parameters holds 'factor', which 'default' does not use (linear, ntk, dynamic, yarn, longrope, llama3, "
        "proportional would); expected for 'default': rope_theta, partial_rotary_factor, mrope_section, mrope",
    ),
    (
        {"rope_type": "linear", "factor": 2.0, "low_freq_factor": 1.0},
        {},
        ValueError,
        "rope_parameters holds 'low_freq_factor', which 'linear' does not use (llama3 would)",
    ),
    ({"rope_type": "linear", "factor": 2.0, "alpha": 2.0}, {}, ValueError, "'linear' does not use (dynamic with"),
    ({"rope_type": "linear"}, {}, ValueError, "rope_parameters lacks factor; 'linear' needs factor"),
    ({"rope_type": "linear", "factor": None}, {}, ValueError, "rope_parameters lacks factor"),
    (
        {"rope_type": "llama3", "factor": 8.0},
        {},
        ValueError,
        "rope_parameters lacks low_freq_factor, high_freq_factor; 'llama3' needs factor, low_freq_factor, high_freq",
    ),
    (
        {"rope_type": "longrope", "factor": 8.0},
        {},
        ValueError,
        "rope_parameters lacks short_factor, long_factor; 'longrope' needs short_factor, long_factor",
    ),
    ({"rope_type": "yarn", "factor": 8.0}, {}, ValueError, "lacks original_max_position_embeddings; 'yarn' needs it"),
    ({"rope_type": "yarn"}, {"max_position_embeddings": 8}, ValueError, "lacks factor; 'yarn' needs it, or original"),
    ({k: v for k, v in LONGROPE.items() if k != "factor"}, {}, ValueError, "lacks factor; 'longrope' needs it"),
    (
        {"rope_type": "dynamic", "factor": 2.0},
        {},
        ValueError,
        "max_position_embeddings is None; 'dynamic' needs it: the context the model was trained with",
    ),
    (
        {"full_attention": {"rope_type": "default"}, "sliding_attention": {}},
        {},
        ValueError,
        "rope_parameters holds a dict for each of full_attention, sliding_attention; expected one dict: pass "
        "rope_parameters['full_attention'], or the whole config to rfrope.from_config",
    ),
    (LONGROPE | {"short_mscale": 1.1}, {}, ValueError, "short_mscale or long_mscale; expected both, and no attention"),
    (
        LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.2, "attention_factor": 1.3},
        {},
        ValueError,
        "short_mscale or long_mscale; expected both, and no attention_factor beside them",
    ),
    # contradictions
    (
        {"rope_theta": 1e4},
        {"rope_theta": 5e5},
        ValueError,
        "rope_theta is 500000.0, but rope_parameters['rope_theta'] is 10000.0; expected one of them, or equal",
    ),
    (
        {"partial_rotary_factor": 0.5},
        {"partial_rotary_factor": 0.25},
        ValueError,
        "partial_rotary_factor is 0.25, but rope_parameters['partial_rotary_factor'] is 0.5; expected one of them",
    ),
    # values
    ("yarn", {}, TypeError, "rope_parameters is 'yarn'; expected a dict or None"),
    ([], {}, TypeError, "rope_parameters is []; expected a dict or None"),
    ({"rope_theta": 0}, {}, ValueError, "rope_parameters['rope_theta'] is 0; expected a positive finite number"),
    ({"rope_theta": "10000"}, {}, TypeError, "rope_parameters['rope_theta'] is '10000'; expected a positive number"),
    ({"rope_theta": math.nan}, {}, ValueError, "rope_parameters['rope_theta'] is nan; expected a positive finite"),
    ({"rope_theta": [1e4]}, {}, TypeError, "rope_parameters['rope_theta'] is [10000.0]; expected a positive number"),
    ({}, {"rope_theta": -1}, ValueError, "rope_theta is -1; expected a positive finite number"),
    ({"partial_rotary_factor": 1.5}, {}, ValueError, "is 1.5; expected a number from 0 to 1"),
    ({"partial_rotary_factor": 0.01}, {}, ValueError, "partial_rotary_factor is 0.01; expected enough of head_dim"),
    ({"rope_type": "linear", "factor": 0.5}, {}, ValueError, "['factor'] is 0.5; expected a number from 1 to 2**100"),
    ({"rope_type": "linear", "factor": True}, {}, TypeError, "rope_parameters['factor'] is True; expected a number"),
    ({"rope_type": "dynamic", "alpha": 0}, {}, ValueError, "rope_parameters['alpha'] is 0; expected a positive finite"),
    (YARN | {"truncate": "false"}, {}, TypeError, "rope_parameters['truncate'] is 'false'; expected True or False"),
    (YARN | {"beta_fast": 0}, {}, ValueError, "rope_parameters['beta_fast'] is 0; expected a positive finite number"),
    (YARN | {"beta_fast": 1, "beta_slow": 2}, {}, ValueError, "beta_fast is 1.0, beta_slow 2.0; expected the first"),
    (YARN | {"mscale": -1}, {}, ValueError, "rope_parameters['mscale'] is -1; expected a number from 0 to 2**100"),
    (YARN | {"attention_factor": 0}, {}, ValueError, "rope_parameters['attention_factor'] is 0; expected a positive"),
    (
        YARN | {"original_max_position_embeddings": 4096.5},
        {},
        TypeError,
        "rope_parameters['original_max_position_embeddings'] is 4096.5; expected a whole number",
    ),
    (YARN | {"rope_theta": 1.0}, {}, ValueError, "base is 1.0; expected a number above 1"),
    (YARN | {"partial_rotary_factor": 0.22}, {}, ValueError, "the rotated width is 7, of head_dim = 32; 'yarn'"),
    (
        LONGROPE | {"long_factor": [1.0] * 15},
        {},
        ValueError,
        "long_factor has shape (15,), but frequencies has (16,); expected one number for each",
    ),
    (
        LONGROPE | {"short_factor": [1.0] * 15 + [0.0]},
        {},
        ValueError,
        "short_factor holds numbers that are 0 or not finite; expected numbers other than 0",
    ),
    (LONGROPE | {"short_factor": 2.0}, {}, TypeError, "rope_parameters['short_factor'] is 2.0; expected a list of"),
    # sizes
    ({"rope_theta": 5e-324}, {}, ValueError, "['rope_theta'] is 5e-324; expected a positive number from 2**-100"),
    ({"rope_type": "linear", "factor": 1e300}, {}, ValueError, "'] is 1e+300; expected a number from 1 to 2**100"),
    ({"rope_type": "ntk", "factor": 1e300}, {}, ValueError, "['factor'] is 1e+300; expected a number from 1 to 2**100"),
    ({"rope_type": "dynamic", "alpha": 1e300}, {}, ValueError, "expected a positive number from 2**-100 to 2**100"),
    (YARN | {"beta_fast": 1e308}, {}, ValueError, "is 1e+308; expected a positive number from 2**-100 to 2**100"),
    (YARN | {"beta_slow": 5e-324}, {}, ValueError, "'beta_slow'] is 5e-324; expected a positive number from 2**-100"),
    (
        {"rope_type": "yarn", "original_max_position_embeddings": 4096},
        {"max_position_embeddings": 1024},
        ValueError,
        "lacks factor; 'yarn' needs it, or original_max_position_embeddings in the dict and no less as max_position",
    ),
    (
        {"mrope_section": [16, 24, 24]},
        {},
        ValueError,
        "rope_parameters['mrope_section'] is [16, 24, 24], which sums to 64; expected 16, the number of frequencies",
    ),
    ({"mrope_section": []}, {}, ValueError, "rope_parameters['mrope_section'] is [], which sums to 0; expected 16"),
    ({"mrope_section": [16, 24.5]}, {}, TypeError, "rope_parameters['mrope_section'][1] is 24.5; expected a whole"),
    ({"mrope_interleaved": 1}, {}, TypeError, "rope_parameters['mrope_interleaved'] is 1; expected True or False"),
    # arguments
    ({}, {"head_dim": 0}, ValueError, "head_dim is 0; expected a whole number from 1"),
    ({}, {"head_dim": 64.0}, TypeError, "head_dim is 64.0; expected a whole number"),
    ({}, {"head_dim": 33}, ValueError, "head_dim is 33; expected an even number, or a partial_rotary_factor below 1"),
    ({"rope_type": "proportional"}, {"head_dim": 33}, ValueError, "head_dim is 33; 'proportional' expects an even"),
    ({"rope_type": "ntk", "factor": 2.0}, {"head_dim": 2}, ValueError, "the rotated width is 2; NTK scaling expects"),
    ({}, {"seq_len": 0}, ValueError, "seq_len is 0; expected a whole number from 1"),
    ({}, {"max_position_embeddings": -1}, ValueError, "max_position_embeddings is -1; expected a whole number from 1"),
    ({}, {"xp": "torch"}, TypeError, "xp is 'torch'; expected an array library's module"),
    ({}, {"dtype": "int64"}, TypeError, "dtype is 'int64'; expected a real floating type"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(BAD_DICTS)))
def test_bad_dict(index):
    told, options, error, message = BAD_DICTS[index]
    with pytest.raises(error) as caught:
        from_rope_parameters(told, **{"head_dim": 32, **options})
    assert message in str(caught.value)


# -- cases of other projects -------------------------------------------------------------------------------------------


def load(cases, name):
    told = json.loads((cases / f"{name}.json").read_text())
    with np.load(cases / f"{name}.npz", allow_pickle=False) as archive:
        return told, dict(archive)


@pytest.mark.parametrize("name", ["hf_test_dynamic_x10_seq16384", "hf_test_llama3_x10", "hf_test_yarn_x10"])
def test_literals_of_hugging_face(cases, name):
    told, arrays = load(cases, f"10_upstream_literals/{name}")
    asked = {key: told["params"][key] for key in ("head_dim", "max_position_embeddings", "seq_len")}
    got = from_rope_parameters(told["params"]["rope_parameters"], **asked)
    np.testing.assert_allclose(got.frequencies, arrays["inv_freq"], rtol=told["tolerance"]["inv_freq"]["rtol"])


@pytest.mark.parametrize("name", ["keras_hub_linear_x2", "keras_hub_linear_x5_start12"])
def test_literals_of_keras_hub(cases, name):
    told, arrays = load(cases, f"10_upstream_literals/{name}")
    params = told["params"]
    frequencies, _ = from_rope_parameters(
        {key: params[key] for key in ("rope_type", "factor")}, head_dim=params["head_dim"], rope_theta=params["base"]
    )
    got = rfrope.rotate(arrays["x"], arrays["positions"][:, None], frequencies)
    np.testing.assert_allclose(got, arrays["y"], atol=told["tolerance"]["y"]["atol"])


@pytest.mark.parametrize("name", ["llama3_1_scaled", "llama4_scaled16"])
def test_meta(cases, name):
    told, arrays = load(cases, f"03_meta_complex/{name}")
    params = told["params"]
    frequencies, factor = from_rope_parameters(
        {"rope_type": "llama3", **params["scaling"]}, head_dim=params["head_dim"], rope_theta=params["base"]
    )
    np.testing.assert_allclose(frequencies, arrays["freqs"], rtol=1e-14)
    got = rfrope.rotate(
        arrays["xq"].astype(np.float64),
        arrays["positions"][:, None],
        frequencies,
        pairing=params["pair_layout"],
        scale=factor,
    )
    np.testing.assert_allclose(got, arrays["xq_out_f64"], rtol=1e-11, atol=1e-11)
