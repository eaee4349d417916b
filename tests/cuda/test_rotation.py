"""The rotation's CUDA kernel, run on the CPU: which form of it runs, how work is cut, and what it computes far away."""

import contextlib

import numpy as np
import pytest
from emulator import COMPILER, NO_COMPILER, emulation
from rotation_calls import DTYPES, PAIRINGS, check, numpy_dtype, without_backends

import rfrope
from rfrope._backends.cuda import rotation as leaf
from rfrope._core.angles import PrecisionWarning

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)


# -- which kernel runs -------------------------------------------------------------------------------------------------

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
        assert ran == ["rotate<float, 1, POSITIONS, INT64>"], what


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["int64", "int32", "float64", "float32"])
def test_positions_and_frequencies_of_any_size_meet_exactly(dtype, kind, rng):
    """Up to phases of 2**53, at positions that all types but the narrow ones hold."""
    far = {"int64": 2**53 - 1, "int32": 2**31 - 1, "float64": 2**53 - 1, "float32": 2**53 - 2**29}[kind]
    p = np.asarray([far, -far, far // 3 * 2, 2**24, 1, 0, -1, 131_071]).astype(kind)
    w = np.asarray([1.0, 0.3, 2.0**-20, 1e-12, 1e-19, 1e-300, 5e-324, 0.0, -0.7, -1e-5, *rng.uniform(-1, 1, 6)])
    near, large = np.asarray([1, -1, 2, 3]).astype(kind), rng.uniform(-1, 1, 16) * np.exp2(np.arange(36.0, 52.0))
    x = rng.standard_normal((3, 8, 32)).astype(numpy_dtype(dtype))
    for positions, frequencies, features in ((p, w, x), (near, large, x[:, :4])):
        with without_backends():
            wanted = rfrope.rotate(features.astype(float), positions.astype(float), frequencies)
        beyond = kind == "float32" and positions is p
        with emulation() as ran, pytest.warns(PrecisionWarning) if beyond else contextlib.nullcontext():
            check(rfrope.rotate(features, positions, frequencies), wanted, dtype, 16, "half")
        assert [kernel.endswith(f"POSITIONS, {kind.upper()}>") for kernel in ran] == [True]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "uint32"])
def test_integers_of_other_widths_count_as_those_of_64_bits(kind, rng):
    x, p = rng.standard_normal((5, 16)).astype(np.float32), np.arange(123, 128).astype(kind)
    with without_backends():
        wanted = rfrope.rotate(x.astype(float), p, rfrope.geometric(8))
    with emulation() as ran:
        check(rfrope.rotate(x, p, rfrope.geometric(8)), wanted, "float32", 8, "half")
    assert ran == ["rotate<float, 4, POSITIONS, INT64>"]


# -- the plan ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small(**limits: int):
    """Let a launch hold less than it can, so that work is cut."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(leaf, name, value)
        leaf._plan_of.cache_clear()
        yield
    leaf._plan_of.cache_clear()


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


@pytest.mark.parametrize(
    ("dtype", "positions"), [("float64", 1e6 * np.arange(5.0)), ("float32", 3 + 2**49 * np.arange(5))]
)
@pytest.mark.parametrize("blocks", [8, 7])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_few_rows_for_each_thread_at_far_positions(dtype, positions, blocks, pairing, rng):
    """By 16 bytes and by single features: what is not turned passes through, and all of the result is written."""
    x, w = rng.standard_normal((3, 5, 2 * 8 + 8)).astype(dtype), rng.standard_normal(blocks)
    with without_backends():
        wanted = rfrope.rotate(x.astype(float), positions, w, shift=w, pairing=pairing)
    with small(_ENOUGH_IN_FLIGHT=1), emulation():
        got = rfrope.rotate(x, positions, w, shift=w, pairing=pairing, out=np.full(x.shape, 7, dtype))
    check(got, wanted, dtype, blocks, pairing)
