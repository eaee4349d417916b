"""Keys in blocks of 8 and 4 bits: their bytes, their moves, and the bound of what moves lose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rfrope
from rfrope import Rope
from rfrope.rotation import dequantise, quantise, relocate, relocate_quantised, relocation_bound
from rfrope.rotation.quantised import _bytes_to_halves, _halves_to_bytes

LAYOUTS = {"q8_0": (34, 127), "q4_0": (18, 8)}
EACH = pytest.mark.parametrize("layout", LAYOUTS)


def values(*shape, low=-9.0, high=9.0):
    """Normal rows of many sizes."""
    rng = np.random.default_rng(3)
    return (rng.standard_normal(shape) * np.exp(rng.uniform(low, high, (*shape[:-1], 1)))).astype(np.float32)


def norms(x):
    return np.linalg.norm(x, axis=-1)


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_every_float16_is_read_and_written(xp):
    """All of them, against NumPy's own."""
    words = np.arange(2**16, dtype=np.uint16)
    halves, pairs = words.view(np.float16).astype(np.float32), words.view(np.uint8).reshape(-1, 2)
    read = xp.host(_bytes_to_halves(xp(pairs.astype(np.int32)), rfrope._core.array.namespace(x=xp(pairs))))[:, 0]
    np.testing.assert_array_equal(read, halves)
    kept = np.isfinite(halves) & (words != 0x8000)  # of the two zeros one is written
    written = xp.host(_halves_to_bytes(xp(halves[kept][:, None]), rfrope._core.array.namespace(x=xp(pairs))))
    np.testing.assert_array_equal(written, pairs[kept])


def test_scales_are_rounded_to_even_as_numpy_does():
    middles = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = 0.5 * (middles[1:] + middles[:-1])  # exact in float32
    near = np.concatenate([middles, np.nextafter(middles, 0), np.nextafter(middles, np.float32(np.inf))])
    near = near[near <= 65504.0]
    written = _halves_to_bytes(near[:, None], np).reshape(-1).view(np.float16)
    np.testing.assert_array_equal(written, near.astype(np.float16))


def test_a_block_by_hand():
    """Steps of 0.25: in "q8_0" after the scale, in "q4_0" two to a byte, the low bits of the first half."""
    x = np.zeros(32)
    x[[0, 1, 17]] = -31.75, 0.5, 31.5
    wanted = [0x00, 0x34, 129, 2, *[0] * 15, 126, *[0] * 14]
    np.testing.assert_array_equal(quantise(x, "q8_0"), np.array(wanted, np.uint8))
    x[[0, 1, 17]] = -2.0, 0.5, 1.75
    wanted = [0x00, 0x34, 0x80, 0xFA, *[0x88] * 14]
    np.testing.assert_array_equal(quantise(x, "q4_0"), np.array(wanted, np.uint8))
    np.testing.assert_array_equal(dequantise(np.array(wanted, np.uint8), "q4_0"), x.astype(np.float32))


@EACH
def test_bytes_are_those_of_llama_cpp(layout):
    quants = pytest.importorskip("gguf.quants", reason="gguf is not installed")
    kind = getattr(quants.GGMLQuantizationType, layout.upper())
    x = values(500, 128)
    x[3, 32:] = 0.0
    theirs = quants.quantize(x, kind)
    ours = quantise(x, layout)
    np.testing.assert_array_equal(np.delete(ours, 3, axis=0), np.delete(theirs, 3, axis=0))
    for made in (ours, theirs):
        np.testing.assert_array_equal(dequantise(made, layout), quants.dequantize(theirs, kind))


@EACH
def test_every_library_makes_the_same_bytes(layout, xp):
    x, (n_bytes, _) = values(6, 4, 64), LAYOUTS[layout]
    made = quantise(xp(x), layout)
    assert xp.owns(made)
    np.testing.assert_array_equal(xp.host(made), quantise(x, layout))
    assert made.shape == (6, 4, 2 * n_bytes)
    read = dequantise(made, layout)
    assert xp.owns(read)
    np.testing.assert_array_equal(xp.host(read), dequantise(quantise(x, layout), layout))


@EACH
def test_what_was_in_blocks_stays_what_it_was(layout):
    held = dequantise(quantise(values(200, 96, low=-20.0), layout), layout)
    np.testing.assert_array_equal(dequantise(quantise(held, layout), layout), held)
    still = np.zeros(64)
    np.testing.assert_array_equal(dequantise(quantise(still, layout), layout), still)


# -- moves -------------------------------------------------------------------------------------------------------------

SETS = {
    "heads of 64": (Rope(rfrope.geometric(32)), 64),
    "interleaved, with a factor": (Rope(rfrope.geometric(32), pairing="interleaved", attention_factor=1.3), 64),
    "partial": (Rope(rfrope.geometric(16), head_dim=96), 96),
    "partial, within a block": (Rope(rfrope.geometric(20), head_dim=128), 128),
    "M-RoPE": (Rope(rfrope.geometric(16), sections=(6, 6, 4)), 32),
}


@EACH
@pytest.mark.parametrize("name", SETS)
def test_moved_blocks_are_those_of_moved_keys(name, layout, xp):
    (rope, width), rng = SETS[name], np.random.default_rng(5)
    old, new = rng.integers(0, 10**6, (2, 24, *([3] if rope.sections else [])))
    held = quantise(rope.rotate(values(2, 24, width, low=-1.0, high=1.0), old), layout)
    wanted = quantise(relocate(dequantise(held, layout), old, new, rope), layout)
    got = relocate_quantised(xp(held), xp(old), xp(new), rope, layout)
    assert xp.owns(got)
    # another library's last bit of a float32 may be another step
    steps = np.abs(xp.host(got).astype(int) - wanted) if xp.name != "numpy" else xp.host(got) != wanted
    assert np.mean(steps > 0) < 0.01
    turned = -(-rope.rotary_dim // 32) * LAYOUTS[layout][0]
    np.testing.assert_array_equal(xp.host(got)[..., turned:], held[..., turned:])
    assert np.mean(xp.host(got)[..., :turned] != held[..., :turned]) > 0.3


@EACH
def test_blocks_move_in_place(layout, xp):
    rope, at = SETS["partial"][0], np.arange(24)
    held = quantise(rope.rotate(values(2, 24, 96, low=-1.0, high=1.0), at), layout)
    wanted = relocate_quantised(held, at, at + 500, rope, layout)
    for inside in (True, False):
        k = xp(held)
        out = k if inside else xp(np.zeros_like(held))
        if not xp.writable:
            with pytest.raises((TypeError, ValueError), match="out"):
                relocate_quantised(k, at, at + 500, rope, layout, out=out)
            continue
        assert relocate_quantised(k, at, at + 500, rope, layout, out=out) is out
        assert np.mean(xp.host(out) != wanted) < 0.01
        assert inside or np.array_equal(xp.host(k), held)


# -- what moves lose ---------------------------------------------------------------------------------------------------


@EACH
def test_storing_loses_no_more_than_the_bound_and_nearly_all_of_it(layout):
    """At worst all but one value lie half a step from two whole numbers of steps."""
    steps, bound = LAYOUTS[layout][1], relocation_bound(layout, 0)
    worst = 0.37 * np.array([-float(steps), *[0.4999] * 31])
    assert 0.97 * bound < norms(dequantise(quantise(worst, layout), layout) - worst) / norms(worst) < bound
    rng = np.random.default_rng(0)
    x = np.concatenate([values(2000, 32), rng.uniform(-1, 1, (2000, 32)), rng.integers(-9, 9, (2000, 32)) + 0.5])
    x = x[np.max(np.abs(x), axis=-1) > steps * 2.0**-14]
    assert np.max(norms(dequantise(quantise(x, layout), layout) - x) / norms(x)) < bound


@EACH
def test_small_scales_lose_a_little_more(layout):
    steps = LAYOUTS[layout][1]
    x = values(4000, 32, low=-25.0, high=-5.0).astype(float)
    lost = norms(dequantise(quantise(x, layout), layout) - x)
    small = np.max(np.abs(x), axis=-1) < steps * 2.0**-14
    assert np.any(small)
    assert np.any(lost[small] > relocation_bound(layout, 0) * norms(x[small]))
    assert np.all(lost <= relocation_bound(layout, 0) * norms(x) + np.sqrt(32) * steps * 2.0**-25)


@EACH
def test_moves_stay_below_the_bound(layout):
    """Against one rotation of the features; errors that are independent add up in squares."""
    rng, rope = np.random.default_rng(2), Rope(rfrope.geometric(32), attention_factor=1.2)
    k, at = rng.standard_normal((64, 64)), rng.integers(0, 10**6, (101, 64))
    held = quantise(rope.rotate(k, at[0]), layout)
    for n, (old, new) in enumerate(itertools.pairwise(at), 1):
        relocate_quantised(held, old, new, rope, layout, out=held)
        if n in (1, 10, 100):
            part = norms(dequantise(held, layout) - rope.rotate(k, new)) / norms(1.2 * k)
            assert np.max(part) < relocation_bound(layout, n)
            assert np.max(part) < np.sqrt(n + 1) * relocation_bound(layout, 0)


def test_bounds_by_hand():
    wanted = {
        ("float32", 0): (2.0**-21, 1e-6),
        ("float64", 0): (1.68e-15, 1e-2),
        ("bfloat16", 0): (2.0**-8 + 2.0**-21, 1e-6),
        ("float16", 9): (10 * 2.0**-11, 1e-2),
        ("q8_0", 0): (0.0219 + 2.0**-11, 1e-2),
        ("q4_0", 0): (0.3287 + 2.0**-11, 2e-3),
        ("q4_0", 10**6): (float("inf"), 0.0),
    }
    for given, (bound, tolerance) in wanted.items():
        assert relocation_bound(*given) == pytest.approx(bound, rel=tolerance)
    assert relocation_bound("bfloat16") == relocation_bound("bfloat16", 1)
    one = relocation_bound("q8_0", 0)
    assert relocation_bound("q8_0", 1) == pytest.approx(one * (2.0 + one))


def test_a_move_that_outgrows_the_scale_leaves_what_was_there():
    rope, large = Rope(np.array([np.pi / 4] * 16)), np.full(32, 500000.0)
    held = quantise(large, "q4_0")
    before = held.copy()
    with pytest.raises(ValueError, match="k holds NaN, or magnitudes above 524032"):
        relocate_quantised(held, 0, 1, rope, "q4_0", out=held)
    np.testing.assert_array_equal(held, before)
