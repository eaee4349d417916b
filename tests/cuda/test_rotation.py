"""The rotation's CUDA kernel, run on the CPU: equal to the generic function for any shape, stride and type."""

from __future__ import annotations

import contextlib
import inspect

import numpy as np
import pytest
from campaign import sparse
from emulator import COMPILER, NO_COMPILER, Emulator, emulation
from hypothesis import given, settings
from hypothesis import strategies as st
from rotation_calls import BLOCKS, DTYPES, PAIRINGS, SLOW, Call, calls, doubles, numpy_dtype, run, without_backends

import rfrope
from rfrope._accel.cuda import device
from rfrope._accel.cuda import rotation as leaf
from rfrope._core import turns
from rfrope.rotation import turning

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

TWINS = (turning.rotated, turning._rotated_by_phases, turning._rotated_by_table, turns.cos_sin)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("function", TWINS, ids=lambda function: function.__name__)
def test_a_twin_has_the_name_and_the_parameters_of_its_generic_function(function):
    name = function.__name__.lstrip("_")
    twin = getattr(leaf, name)
    assert twin.__name__ == name
    assert list(inspect.signature(twin).parameters) == list(inspect.signature(function.generic).parameters)


# -- the kernel is the generic function --------------------------------------------------------------------------------


@settings(max_examples=400, **SLOW)
@given(calls(), st.booleans())
def test_any_call_is_the_generic_call(call, backward):
    names, size = run(call, lambda: emulation(backward=backward))
    assert bool(names) == (size > 0)
    assert set(names) <= set(leaf.KERNELS)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("out_pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_every_width_type_and_pairing(pairing, out_pairing, dtype, blocks):
    angles = np.asarray([-7, 0, 131071]), np.random.default_rng(blocks).standard_normal(blocks)
    options = {"pairing": pairing, "out_pairing": out_pairing, "scale": 1.0, "inverse": False}
    for layout in ("dense", "offset", "stepped"):
        for out in ("none", "in place"):
            shape = (2, 3, 2 * blocks + 6)
            run(Call("rotate", angles, options, dtype, layout, shape, out, "dense", blocks, 5, False), emulation)


SIXTEEN_BYTES = {
    "float64": "<double, 2, ",
    "float32": "<float, 4, ",
    "float16": "<Half, 8, ",
    "bfloat16": "<Bfloat, 8, ",
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(("blocks", "extra"), [(32, 0), (32, 16), (24, 80)])
def test_rows_that_lie_suitably_move_16_bytes_at_a_time(dtype, pairing, blocks, extra, rng):
    x = rng.standard_normal((2, 5, 2 * blocks + extra)).astype(numpy_dtype(dtype))
    heads = np.swapaxes(rng.standard_normal((5, 2, 2 * blocks + extra)).astype(numpy_dtype(dtype)), 0, 1)
    with emulation() as ran:
        for array in (x, heads):
            rfrope.rotate(array, np.arange(5), rng.standard_normal(blocks), pairing=pairing)
            rfrope.rotate_by_phases(array, rng.standard_normal((5, blocks)), pairing=pairing)
            rfrope.rotate_by_table(array, *rng.standard_normal((2, 5, blocks)), pairing=pairing)
    assert len(ran) == 6
    assert all(SIXTEEN_BYTES[dtype] in kernel for kernel in ran)


def test_rows_that_do_not_move_a_block_at_a_time(rng):
    x = rng.standard_normal((3, 70)).astype(np.float32)
    cases = {
        "an address": x.reshape(-1)[1:193].reshape(3, 64),
        "a stride of rows": x[:, :64],
        "a stride of features": x[:, ::2][:, :32],
        "halves": np.zeros((3, 60), np.float32),
    }
    for what, array in cases.items():
        blocks = 15 if what == "halves" else array.shape[-1] // 2
        with emulation() as ran:
            rfrope.rotate(array, np.arange(3), rng.standard_normal(blocks))
        assert ran == ["rotate<float, 1, POSITIONS>"], what


@pytest.mark.parametrize(
    ("p_shape", "w_shape"),
    [
        ((), (3,)),
        ((5,), (3,)),
        ((2, 1, 5), (3,)),
        ((5, 1), (4, 3, 1)),
        ((5, 2), (4, 3, 2)),
        ((5, 2), (2, 1, 3, 2)),
        ((2, 1, 5, 3), (4, 3, 3)),
        ((2,), (3, 2)),
        ((2,), (5, 3, 2)),
        ((1,), (2, 1, 1, 3, 1)),
    ],
)
def test_tables_and_rotations_of_every_form_of_frequencies(p_shape, w_shape, rng):
    p, w, x = rng.uniform(-1e6, 1e6, p_shape), rng.standard_normal(w_shape), rng.standard_normal((2, 4, 5, 8))
    shift = rng.uniform(-9, 9, 3)
    with without_backends():
        wanted = [*rfrope.rotation_table(p, w, shift=shift, scale=1.5), rfrope.rotate(x, p, w)]
    with emulation() as ran:
        got = [*rfrope.rotation_table(p, w, shift=shift, scale=1.5), rfrope.rotate(x, p, w)]
    assert len(ran) == 2
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "uint8"])
def test_positions_of_any_type(dtype, rng):
    positions = np.asarray([0, 1, 100, 7]).astype(dtype)
    x, w = rng.standard_normal((4, 8)), rng.standard_normal(4)
    with emulation() as ran:
        got = rfrope.rotate(x, positions, w)
    assert ran
    np.testing.assert_allclose(got, rfrope.rotate(x, [0, 1, 100, 7], w), rtol=0, atol=1e-15)


@pytest.mark.parametrize("position", [2**53 - 1, -(2**53), 123_456_789_012_345])
def test_cos_and_sin_are_exact_far_out(position, rng):
    w = rng.standard_normal(64)
    with without_backends():
        wanted = rfrope.rotation_table(position, w)
    with emulation():
        got = rfrope.rotation_table(position, w)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-15)


def test_given_phases_beyond_the_reach_of_the_polynomials():
    phases = np.asarray([[1e3, 2.0**53, 2.0**54, 1e300, np.inf, np.nan]])
    x = np.repeat([[1.0, 0.0]], 6, axis=1)
    with emulation() as ran, np.errstate(invalid="ignore"):
        got = rfrope.rotate_by_phases(x, phases)
        wanted = np.concatenate([np.cos(phases), np.sin(phases)], axis=-1)
    assert ran
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("blocks", [3, 16, 21])
def test_nan_and_infinity_go_where_the_formula_sends_them(dtype, pairing, blocks, rng):
    x = rng.standard_normal((40, 2 * blocks + 2)).astype(numpy_dtype(dtype))
    x.reshape(-1)[::7], x.reshape(-1)[3::11], x.reshape(-1)[5::13] = np.nan, np.inf, -np.inf
    p, w = np.arange(40), rng.standard_normal(blocks)
    with without_backends(), np.errstate(invalid="ignore", over="ignore"):
        wanted = doubles(rfrope.rotate(x, p, w, pairing=pairing))
    with emulation() as ran:
        got = doubles(rfrope.rotate(x, p, w, pairing=pairing))
    assert ran
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.where(np.isinf(got), got, 0.0), np.where(np.isinf(wanted), wanted, 0.0))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_is_to_nearest_even_over_the_whole_range(dtype):
    """A turn by zero is one, so what comes back is each value rounded to its own type: itself, subnormal ones too."""
    bits = np.uint32 if dtype == "float32" else np.uint16
    patterns = np.arange(2**16, dtype=np.uint64) * (2**16 + 1 if dtype == "float32" else 1)
    x = patterns.astype(bits).view(numpy_dtype(dtype))
    with np.errstate(invalid="ignore"):
        x = x[np.isfinite(x.astype(np.float64)) & (x != 0)]
    x = x[: len(x) // 2 * 2]
    with emulation() as ran:
        same = rfrope.rotate(x, 0, np.zeros(len(x) // 2))
        third = rfrope.rotate(x, 0, np.zeros(len(x) // 2), scale=1 / 3)
    assert ran
    np.testing.assert_array_equal(same.view(bits), x.view(bits))
    wide = np.float64 if dtype == "float32" else np.float32
    expected = (x.astype(wide) * wide(1 / 3)).astype(x.dtype)
    np.testing.assert_array_equal(third.astype(wide), expected.astype(wide))


def test_out_may_lie_over_the_angles(rng):
    for which in range(4):
        values = [np.arange(4.0), rng.standard_normal(4), rng.standard_normal(4), rng.uniform(0.5, 2, 4)]
        x = rng.standard_normal((4, 8))
        with without_backends():
            wanted = rfrope.rotate(x, values[0], values[1], shift=values[2], scale=values[3])
        memory = np.empty((4, 8))
        memory[0, :4] = values[which]
        values[which] = memory[0, :4]
        with emulation() as ran:
            got = rfrope.rotate(x, values[0], values[1], shift=values[2], scale=values[3], out=memory)
        assert ran
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-14)


def test_a_result_without_elements_launches_nothing():
    for shape in ((0, 4), (3, 0, 4)):
        with emulation() as ran:
            assert rfrope.rotate(np.ones(shape), np.zeros(shape[-2]), [1.0, 2.0]).shape == shape
        assert ran == []


# -- the plan ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small(**limits: int):
    """Let a launch hold less than it can, so that work is cut."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(leaf, name, value)
        leaf._plans.cache_clear()
        yield
    leaf._plans.cache_clear()


@pytest.mark.parametrize("most", [8, 40, 2**31])
@pytest.mark.parametrize("per_head", [False, True])
def test_work_for_several_launches_is_cut_without_seams(most, per_head, rng):
    x = rng.standard_normal((3, 5, 7, 8))
    p, w = (np.arange(7)[:, None], rng.standard_normal((5, 4, 1))) if per_head else (np.arange(7), np.ones(4))
    with without_backends():
        wanted = rfrope.rotate(x, p, w)
    with small(_MOST_THREADS=most), emulation() as ran:
        got = rfrope.rotate(x, p, w)
    assert (len(ran) > 1) == (most < 2**31)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-14)


def test_more_axes_than_a_plan_holds(rng):
    """Thirteen axes of length 2, none of which can be merged with another."""
    x = np.transpose(rng.standard_normal((2,) * 13 + (2,)), (*range(0, 13, 2), *range(1, 13, 2), 13))
    positions = np.arange(2.0).reshape((2,) + (1,) * 6)
    target = np.empty(x.shape)
    with without_backends():
        wanted = rfrope.rotate(x, positions, [0.5])
    with emulation() as ran:
        got = rfrope.rotate(x, positions, [0.5], out=target)
    assert len(ran) == 2
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("enough", [1, 64, 2**19])
def test_rows_that_share_phases_are_grouped_when_there_are_many(enough, rng):
    x, p, w = rng.standard_normal((2, 11, 6, 8)), np.arange(6), rng.standard_normal(4)
    with without_backends():
        wanted = rfrope.rotate(x, p, w)
    with small(_ENOUGH_THREADS=enough), emulation():
        got = rfrope.rotate(x, p, w)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-14)


# -- the tests can fail ------------------------------------------------------------------------------------------------

MISTAKES = {
    "one thread too few": ("if (index >= plan.threads) return;", "if (index + 1 >= plan.threads) return;"),
    "a step too far": ("x += along * here.x;", "x += (along + 1) * here.x;"),
    "the last block left out": ("left < WIDTH ? left : WIDTH", "left < WIDTH ? left - 1 : WIDTH"),
    "a group too short": ("min(begin + static_cast<uint32>(plan.group), shared)", "begin + 1"),
    "the wrong half": ("loaded.values[WIDTH + i]", "loaded.values[WIDTH + i - (i > 0)]"),
    "a feature passed through too few": ("i < count; ++i) put", "i + 1 < count; ++i) put"),
    "a sign": ("minus(times(one, cos_i)", "plus(times(one, cos_i)"),
    "low part of the phase left out": ("fma(factor, turns.low, fma(factor, turns.high, -product))", "0.0"),
}


def sweep(replaced: dict[str, Emulator] | None = None) -> None:
    """Some calls that together pass through every line of the kernel."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 5, 2 * 8 + 6))
    with small(_ENOUGH_THREADS=1):
        for blocks, pairing in ((8, "half"), (7, "half"), (8, "interleaved"), (7, "interleaved")):
            p, w = 1e6 * np.arange(5.0), rng.standard_normal(blocks)
            with without_backends():
                wanted = rfrope.rotate(x, p, w, shift=w, pairing=pairing)
            with emulation(replaced=replaced):
                got = rfrope.rotate(x, p, w, shift=w, pairing=pairing, out=np.full(x.shape, 7.0))
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-13)


def test_the_sweep_passes_as_the_kernel_stands():
    sweep()


@pytest.mark.parametrize("mistake", sparse(MISTAKES, lambda mistake: mistake in ("a sign", "a step too far")))
def test_a_mistake_in_the_source_is_found(mistake):
    right, wrong = MISTAKES[mistake]
    text = device.text("rotation")
    assert text.count(right) == 1
    kernels = ("rotate<double, 2, POSITIONS>", "rotate<double, 1, POSITIONS>")
    with pytest.raises(AssertionError):
        sweep({"rotation": Emulator(text.replace(right, wrong), kernels)})
