"""The compiled rotation: equal to the generic one for any shape, stride and type, and seen to be what ran."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import inspect
import itertools
import math
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import rotation_calls
from conftest import library
from hypothesis import given, settings
from rotation_calls import (
    BLOCKS,
    DTYPES,
    EPSILON,
    PAIRINGS,
    SLOW,
    SMALLEST,
    Call,
    calls,
    check,
    doubles,
    laid,
    numpy_dtype,
    without_backends,
)

import rfrope
from rfrope._core import array, dispatch, turns
from rfrope.rotation import turning

NO_LOOPS = "compiled loops need Numba, with its compiler on"
leaf = pytest.importorskip("rfrope._accel.cpu.rotation", reason=NO_LOOPS, exc_type=ImportError)
loops = pytest.importorskip("rfrope._accel.cpu.rotation_loops", reason=NO_LOOPS, exc_type=ImportError)
walks = pytest.importorskip("rfrope._accel.cpu.rotation_walks", reason=NO_LOOPS, exc_type=ImportError)
circle = pytest.importorskip("rfrope._accel.cpu.circle", reason=NO_LOOPS, exc_type=ImportError)

TWIN_OF = {"rotate": "rotated", "rotate_by_phases": "rotated_by_phases", "rotate_by_table": "rotated_by_table"}
TWINS = (turning.rotated, turning._rotated_by_phases, turning._rotated_by_table, turns.cos_sin)


@contextlib.contextmanager
def watched(*, without: tuple[str, ...] = ()):
    """Note what gave a result, in order; without some of them.

    That is a twin by its name ("recorded" before that of an operator of torch), or for a call of a known layout
    "repeated", and "prepared" where a Rope knows it.
    """
    names: list[str] = []
    find, repeats, again = dispatch.backend_function, turning._repeats(), leaf.Prepared.again

    def noting(function, place):
        bare = function.name
        right = None if bare in without else find(function, place)
        label = f"recorded {bare}" if place == "torch" else bare
        return right and (lambda *arguments: noted(label, right(*arguments)))

    def noted(name, result):
        if result is not None:
            names.append(name)
        return result

    class Noting:
        def turned(self, *arguments):
            return noted("repeated", repeats.turned(*arguments))

        def learn(self, *arguments):
            repeats.learn(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "backend_function", noting)
        patch.setattr(leaf.Prepared, "again", lambda self, *arguments: noted("prepared", again(self, *arguments)))
        patch.setattr(turning, "_repeats", lambda: None if repeats is None or "repeated" in without else Noting())
        yield names


@pytest.fixture(autouse=True)
def _nothing_is_known():
    turning._repeats()._known.clear()


@pytest.fixture
def ran():
    with watched() as names:
        yield names


@pytest.fixture
def rng():
    return np.random.default_rng(11)


# -- the twins are the generic functions -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_a_loop_is_called_again_and_again_so_that_an_interrupt_comes_through(count, monkeypatch):
    calls = []
    monkeypatch.setattr(leaf, "_UNINTERRUPTED", 2**10)
    with rfrope.threads(count):
        leaf._shared_out(lambda start, stop: calls.append((start, stop)), 64, 2**16)
    assert sorted(calls) == [(i, i + 1) for i in range(64)]


@pytest.mark.parametrize("function", TWINS, ids=lambda function: function.__name__)
def test_a_twin_has_the_name_and_the_parameters_of_its_generic_function(function):
    name = function.__name__.lstrip("_")
    twin = getattr(leaf, name)
    assert dispatch.backend_function(function, "cpu") is twin
    assert twin.__name__ == name
    assert list(inspect.signature(twin).parameters) == list(inspect.signature(function.generic).parameters)


def run(call: Call, *, without: tuple[str, ...] = ("repeated",), repeat: int = 1) -> list[str]:
    """Make a call with its twin, hold it against the generic function, and return what ran, if there was work."""
    names, size = rotation_calls.run(call, lambda: watched(without=without), repeat=repeat)
    assert names
    assert set(names) <= {TWIN_OF[call.function], "repeated"}
    return names if size else []


@settings(max_examples=400, **SLOW)
@given(calls())
def test_any_call_on_numpy_is_the_generic_call(call):
    run(call)


@settings(max_examples=120, **SLOW)
@given(calls(torch=True))
def test_any_call_on_torch_is_the_generic_call(call):
    library("torch")
    run(call)


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
            run(Call("rotate", angles, options, dtype, layout, shape, out, "dense", blocks, 5, False))


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
def test_tables_and_rotations_of_every_form_of_frequencies(xp, p_shape, w_shape, ran, rng):
    p, w, x = rng.uniform(-1e6, 1e6, p_shape), rng.standard_normal(w_shape), rng.standard_normal((2, 4, 5, 8))
    shift = rng.uniform(-9, 9, 3)
    with without_backends():
        wanted = [*rfrope.rotation_table(p, w, shift=shift, scale=1.5), rfrope.rotate(x, p, w)]
    got = [*rfrope.rotation_table(xp(p), xp(w), shift=xp(shift), scale=1.5), rfrope.rotate(xp(x), xp(p), xp(w))]
    assert set(ran) == ({"cos_sin", "rotated"} if xp.name in ("numpy", "read-only numpy", "torch") else set())
    for one, other in zip(got, wanted, strict=True):
        assert xp.owns(one)
        assert one.shape == other.shape
        np.testing.assert_allclose(xp.host(one), other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("argument", ["shift", "scale"])
@pytest.mark.parametrize("blocks", [1, 0])
def test_a_shift_or_scale_with_more_columns_than_the_frequencies(argument, blocks, ran, rng):
    """Phases have the broadcast number of blocks: none for 0 with 1, all columns for 1 with 4."""
    x, p, w = rng.standard_normal((3, 12)), np.arange(3), np.ones(blocks)
    wide = {argument: np.asarray([1.0, 2.0, 3.0, 4.0][: 4 if blocks else 1])}
    phase = np.ones((3, blocks))
    calls = {
        "rotated": lambda: (rfrope.rotate(x, p, w, **wide),),
        "cos_sin": lambda: rfrope.rotation_table(p, w, **wide),
        "rotated_by_phases": lambda: (rfrope.rotate_by_phases(x, phase, **wide),),
    }
    for call in list(calls.values())[: 2 if argument == "shift" else 3]:
        got = call()
        with without_backends():
            wanted = call()
        for one, other in zip(got, wanted, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("argument", ["shift", "scale"])
def test_phases_that_are_wider_than_x_are_refused_and_write_nothing(argument):
    around = np.full(60, 5.0)
    out = around[24:36].reshape(3, 4)
    wide = {argument: np.asarray([1.0, 2.0, 3.0, 4.0])}
    calls = [
        lambda: rfrope.rotate(np.ones((3, 4)), np.arange(3), np.ones(1), out=out, **wide),
        lambda: rfrope.rotate_by_phases(np.ones((3, 4)), np.ones((3, 1)), out=out, **wide),
    ]
    for call in calls[: 1 if argument == "shift" else 2]:
        with pytest.raises(ValueError, match=r"4|broadcast"):
            call()
        np.testing.assert_array_equal(around, 5.0)


def test_out_may_lie_over_the_angles():
    """The generic function has read them before it writes; so many rows that the loops write before they have read."""
    rows = 5000
    calls = [
        lambda x: rfrope.rotate(x, x[:, 0], rfrope.geometric(4), out=x),
        lambda x: rfrope.rotate(x, np.arange(rows), x[0, :4], out=x),
        lambda x: rfrope.rotate(x, np.arange(rows), np.ones(4), shift=x[::-1, :4], out=x),
        lambda x: rfrope.rotate_by_phases(x, x[:, 4:], out=x),
        lambda x: rfrope.rotate_by_phases(x, x[::-1, :4], out=x),
        lambda x: rfrope.rotate_by_table(x, x[:, :4], x[::-1, 4:], out=x),
        lambda x: rfrope.rotate(x, np.arange(rows), np.ones(4), scale=np.abs(x[-1, 4:]), out=x),
    ]
    for call in calls:
        x = np.random.default_rng(3).standard_normal((rows, 8))
        with without_backends():
            wanted = call(x.copy())
        for _ in range(2):  # the second call is the short way, where there is one
            np.testing.assert_allclose(call(x.copy()), wanted, rtol=0, atol=1e-13)


def test_memory_that_loops_cannot_read_stays_generic(ran, rng):
    x, p, w = rng.standard_normal((3, 8)), np.arange(3), rfrope.geometric(4)
    wanted = rfrope.rotate(x, p, w)
    ran.clear()
    odd = x.astype(">f8")
    for _ in range(2):
        np.testing.assert_allclose(rfrope.rotate(odd, p, w).astype(float), wanted, rtol=0, atol=1e-15)
    assert ran == ["cos_sin", "cos_sin"]  # for the angles, which lie in plain memory
    np.testing.assert_allclose(rfrope.rotate(x, p.astype(">i8"), w.astype(">f8")), wanted, rtol=0, atol=1e-15)


# -- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("shifted", [False, True])
def test_cos_and_sin_against_mpmath(dtype, axes, shifted, ran, rng):
    mpmath = pytest.importorskip("mpmath", reason="mpmath, which holds the digits, is missing")
    blocks = 16
    p = (
        np.asarray([1, -7, 131071, 2**24 + 1, 10**12 + 1, 2**53 - 1, 1 - 2**53])[:, None]
        // np.asarray([1, 3, 7])[:axes]
    )
    w = np.stack([rfrope.geometric(blocks)] * axes, axis=-1) * rng.uniform(0.5, 1.0, (blocks, axes))
    shift = rng.uniform(-1e4, 1e4, blocks) if shifted else None
    unit = np.broadcast_to(np.repeat(np.asarray([1.0, 0.0], dtype), blocks), (len(p), 2 * blocks))
    frequencies, positions = (w[:, 0], p[:, 0]) if axes == 1 else (w, p)
    got = rfrope.rotate(unit, positions, frequencies, shift=shift)
    table = rfrope.rotation_table(positions, frequencies, shift=shift)
    with mpmath.workdps(60):

        def phase(row, i):
            products = (mpmath.mpf(int(p[row, a])) * mpmath.mpf(float(w[i, a])) for a in range(axes))
            return mpmath.fsum(products) + (mpmath.mpf(float(shift[i])) if shifted else 0)

        exact = np.asarray(
            [
                [float(f(phase(row, i))) for f in (mpmath.cos, mpmath.sin) for i in range(blocks)]
                for row in range(len(p))
            ]
        )
    assert ran == ["rotated", "cos_sin"]
    assert np.max(np.abs(np.concatenate(table, axis=-1) - exact)) <= 1e-15
    assert np.max(np.abs(got - exact)) <= (1e-15 if dtype == "float64" else 0.51 * 2.0**-23)


def polynomial(coefficients, value):
    total = 0.0
    for c in reversed(coefficients):
        total = total * value + c
    return total


@pytest.mark.parametrize(
    ("sin", "cos", "quarter", "largest", "bounds"),
    [
        (circle.SIN, circle.COS, 1, 0.5, (5e-17, 5e-17)),
        (circle.NARROW_SIN, circle.NARROW_COS, 4, 0.5, (2.2e-11, 9.5e-13)),
    ],
    ids=["exact", "narrow"],
)
def test_the_polynomials_against_mpmath(sin, cos, quarter, largest, bounds):
    """The coefficients as they stand, in exact arithmetic: what rounding adds is held elsewhere."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath, which holds the digits, is missing")
    with mpmath.workdps(40):
        sin, cos = ([mpmath.mpf(c) for c in cs] for cs in (sin, cos))
        worst = [0, 0]
        for i in range(401):
            r = mpmath.mpf(largest) * i / 400
            found = polynomial(sin, r * r) * r, polynomial(cos, r * r)
            for j, (value, function) in enumerate(zip(found, (mpmath.sin, mpmath.cos), strict=True)):
                worst[j] = max(worst[j], abs(value - function(quarter * mpmath.pi * r / 2)))
        assert worst[0] <= bounds[0]
        assert worst[1] <= bounds[1]


def test_given_phases_beyond_the_reach_of_the_polynomials(ran):
    """Above 2**53 the library's cos and sin are called, and NaN and infinity stay where they are."""
    u = np.asarray([[2.0**53, 2.0**60, 1e300, 0.5], [np.nan, np.inf, -np.inf, 1.0]])
    x = np.concatenate([np.ones((2, 4)), np.zeros((2, 4))], axis=-1)
    got = rfrope.rotate_by_phases(x, u)
    assert ran == ["rotated_by_phases"]
    with np.errstate(invalid="ignore"):
        wanted = np.concatenate([np.cos(u), np.sin(u)], axis=-1)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-15)


# -- NaN and infinity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("blocks", [3, 16, 21])
def test_nan_and_infinity_go_where_the_formula_sends_them(dtype, pairing, blocks, ran, rng):
    d = 2 * blocks + 4
    x = rng.standard_normal((2 * d, d)).astype(numpy_dtype(dtype))
    bad = np.array(x)
    for row in range(2 * d):
        bad[row, row % d] = (np.nan, np.inf, -np.inf)[row % 3]
    p, w = np.arange(2 * d) % 7, rfrope.geometric(blocks)  # position 0 too, where sin is 0 and 0 * inf is NaN
    got, clean = (doubles(rfrope.rotate(v, p, w, pairing=pairing)) for v in (bad, x))
    assert ran == ["rotated", "repeated"]
    with without_backends(), warnings.catch_warnings(action="ignore"):
        wanted = doubles(rfrope.rotate(bad, p, w, pairing=pairing))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(got[np.isinf(wanted)], wanted[np.isinf(wanted)])
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[finite], clean[finite])
    assert np.count_nonzero(~finite) <= 4 * d  # at most the two features of one block in each row
    np.testing.assert_array_equal(got[:, 2 * blocks :], doubles(bad)[:, 2 * blocks :])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_is_to_nearest_even_over_the_whole_range(dtype, ran):
    """At position 0 features come back as they were: subnormal, largest, signed zero and NaN with any payload."""
    kind = numpy_dtype(dtype)
    bits = np.arange(2**16, dtype=np.uint16) if kind.itemsize == 2 else np.arange(0, 2**32, 65521, dtype=np.uint32)
    x = np.zeros((bits.size // 8, 16), kind)
    x[:, :8] = bits[: bits.size // 8 * 8].view(kind).reshape(-1, 8)
    with np.errstate(invalid="ignore"):  # NaN that signals
        plain = doubles(x)
    rows = np.isfinite(plain).all(axis=-1)
    got = rfrope.rotate(x, 0, rfrope.geometric(8))
    assert ran == ["rotated"]
    np.testing.assert_array_equal(doubles(got)[rows], plain[rows])
    with without_backends(), warnings.catch_warnings(action="ignore"):
        wanted = rfrope.rotate(x, 0, rfrope.geometric(8), scale=0.3)
    scaled = rfrope.rotate(x, 0, rfrope.geometric(8), scale=0.3)
    np.testing.assert_array_equal(np.isnan(doubles(scaled)), np.isnan(doubles(wanted)))
    np.testing.assert_allclose(doubles(scaled)[rows], doubles(wanted)[rows], rtol=EPSILON[dtype], atol=SMALLEST[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_of_any_payload_stays_nan(dtype, ran):
    """All ones would carry over into a signed zero if it were rounded as a number."""
    bad = np.full((3, 5), 2**63 - 1, np.uint64).view(np.float64)
    x = np.ones((3, 10), numpy_dtype(dtype))
    assert np.isnan(doubles(rfrope.rotate_by_table(x, bad, bad))).all()
    assert np.isnan(doubles(rfrope.rotate_by_phases(x, bad))).all()
    assert ran == ["rotated_by_table", "rotated_by_phases"]


# -- out ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("shift", [-8, -1, 1, 8])
def test_partial_overlap_is_refused_and_nothing_is_written(dtype, calls, shift, rng):
    """At the second call too, which has the shapes and strides of one that was allowed."""
    memory = rng.standard_normal(200).astype(numpy_dtype(dtype))
    x, out = memory[80:112].reshape(4, 8), memory[80 + shift : 112 + shift].reshape(4, 8)
    p, w = np.arange(4), rfrope.geometric(4)
    for _ in range(calls - 1):
        rfrope.rotate(x, p, w, out=memory[140:172].reshape(4, 8))
        rfrope.rotate(x.copy(), p, w, out=x.copy())
    before = memory.copy()
    with pytest.raises(ValueError, match="out overlaps x in part"):
        rfrope.rotate(x, p, w, out=out)
    np.testing.assert_array_equal(memory.view(np.uint8), before.view(np.uint8))


def test_a_result_of_its_own_is_never_remembered_memory(rng):
    x, p, w = rng.standard_normal((3, 8)), np.arange(3), rfrope.geometric(4)
    first = rfrope.rotate(x, p, w)
    kept = first.copy()
    second, third = rfrope.rotate(-x, p, w), rfrope.rotate(2 * x, p, w)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(second, third)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(second, -kept)


def test_large_results_leave_the_core_in_the_way_that_was_faster(rng):
    x = rng.standard_normal((2**14, 160)).astype(np.float32)
    walks.walk_of.cache_clear()
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf, "walk_of", lambda *a: made.append(walks.walk_of(*a)) or made[-1])
        for _ in range(5):
            rfrope.rotate(x, np.arange(len(x)), rfrope.geometric(64), out=np.empty_like(x))
    (walk,) = set(made)
    tried = [way for way, seconds in walk._seconds.items() if seconds]
    assert len(tried) == 2
    assert walks.LINES in tried
    for fast, slow in (tried, tried[::-1]):
        walk._seconds |= {fast: [9.0] * (walks._TRIES - 1) + [1.0], slow: [2.0] * walks._TRIES}
        assert walk.faster(tuple(tried)) == fast
        walk._seconds[slow].pop()
        assert walk.faster(tuple(tried)) == slow  # not tried often enough
    assert walk.ways(0) == (walks.PIECES, walks.LINES)
    assert walk.ways(4) == (walks.THROUGH, walks.LINES)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("out_pairing", PAIRINGS)
@pytest.mark.parametrize("blocks", [64, 60, 32])
def test_large_outputs_are_the_small_ones_bit_for_bit(dtype, pairing, out_pairing, blocks, monkeypatch, rng):
    """Past the caches or through them, aligned or not, on one thread or four."""
    kind = numpy_dtype(dtype)
    x = rng.standard_normal((2, 3, 8 * 2**20 // (6 * 128 * kind.itemsize) + 1, 128)).astype(kind)
    p, w = np.arange(x.shape[2]), rfrope.geometric(blocks)
    options = {"pairing": pairing, "out_pairing": out_pairing}
    assert x.nbytes >= walks.STREAMED_BYTES
    memory = np.zeros(x.size + 64, kind)
    start = (-memory.ctypes.data % 64) // kind.itemsize
    with rfrope.threads(1):
        wanted = np.stack([[rfrope.rotate(rows, p, w, **options) for rows in heads] for heads in x])
    ran, chosen = set(), []
    monkeypatch.setattr(walks.Walk, "faster", lambda walk, ways: ran.add(way := chosen[0](ways)) or way)
    for offset, way in itertools.product((0, 1), (min, max)):
        out = memory[start + offset : start + offset + x.size].reshape(x.shape)
        chosen[:] = [way]
        for count in (1, 4):
            memory[:] = 7.0
            with rfrope.threads(count):
                rfrope.rotate(x, p, w, out=out, **options)
            assert np.array_equal(out.view(np.uint8), wanted.view(np.uint8))
            assert np.all(memory[: start + offset] == 7.0)
            assert np.all(memory[start + offset + x.size :] == 7.0)
    aligned = {walks.PIECES} if blocks != 60 or kind.itemsize > 2 else set()
    assert ran == {walks.THROUGH, walks.LINES} | aligned
    same = x.copy()
    with rfrope.threads(4):
        rfrope.rotate(same, p, w, out=same, **options)
    assert np.array_equal(same.view(np.uint8), wanted.view(np.uint8))


def test_large_per_head_strided_and_transposed_work_is_cut_without_seams(rng):
    """Many items of work, of more rows than one tile and more heads than one group."""
    x = rng.standard_normal((2, 700, 5, 128)).astype(np.float32).transpose(0, 2, 1, 3)
    p, w = rng.integers(0, 2**31, (2, 1, 700, 1)), rng.standard_normal((5, 64, 1))
    out = np.empty((2, 700, 5, 128), np.float32).transpose(0, 2, 1, 3)
    for count in (1, 3):
        with rfrope.threads(count):
            rfrope.rotate(x, p, w, out=out)
        with without_backends():
            wanted = rfrope.rotate(x.astype(np.float64), p, w)
        check(out, wanted, "float32", 64, "half")
    many = rng.standard_normal((9000, 3, 8))  # shares its phases between more rows than one group holds
    with without_backends():
        wanted = rfrope.rotate(many, np.arange(3), rfrope.geometric(4))
    check(rfrope.rotate(many, np.arange(3), rfrope.geometric(4)), wanted, "float64", 4, "half")


def test_several_threads_write_their_slices_of_one_out(rng):
    x, p, w = rng.standard_normal((8, 4000, 64)).astype(np.float32), np.arange(4000), rfrope.geometric(32)
    wanted, out = rfrope.rotate(x, p, w), np.zeros_like(x)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: rfrope.rotate(x[i], p, w, out=out[i]), range(8)))
    np.testing.assert_array_equal(out, wanted)


# -- the second call of the same kind ----------------------------------------------------------------------------------

AGAIN = {"x": (3, 8), "positions": (3,), "frequencies": (4,)}


@pytest.fixture
def known(rng):
    """Arguments of a call that was made twice, and an array for `out`."""
    arguments = {"x": rng.standard_normal((3, 8)), "positions": np.asarray([0.0, 5.0, -9.0])}
    arguments["frequencies"] = rfrope.geometric(4)
    with watched() as names:
        for _ in range(2):
            rfrope.rotate(**arguments)
            rfrope.rotate(**arguments, out=np.empty((3, 8)))
    assert names == ["rotated", "rotated", "repeated", "repeated"]
    return arguments


def test_the_second_call_is_short_and_sees_new_values(known, ran, rng):
    for scale, start in ((1.0, 0.0), (0.25, 1e9), (3.0, 2.0**53 - 3)):
        x, p, w = rng.standard_normal((3, 8)), np.asarray([0.0, 1.0, 2.0]) + start, rng.standard_normal(4)
        got = rfrope.rotate(x, p, w, scale=scale)
        assert ran == ["repeated"]
        with without_backends():
            wanted = rfrope.rotate(x, p, w, scale=scale)
        check(got, wanted, "float64", 4, "half")
        ran.clear()


@settings(max_examples=60, **SLOW)
@given(calls(functions=("rotate",)))
def test_the_second_call_of_any_kind_is_the_generic_call(call):
    options = {"scale": 1.5} | {name: v for name, v in call.options.items() if name not in ("shift", "scale")}
    dense = call.seed % 2 == 0 or call.layout == "unaligned"  # each kind is compiled anew
    dtype, layout = ("bfloat16", "dense") if dense else ("float32", call.layout)
    angles = tuple(np.array(v) for v in call.angles)
    call = call._replace(options=options, dtype=dtype, layout=layout, out_layout="dense", angles=angles)
    run(call, without=())
    assert set(run(call, without=(), repeat=2)) <= {"repeated"}


@pytest.mark.parametrize(
    "changed",
    [
        {"positions": np.asarray([0.0, np.nan, 1.0])},
        {"positions": np.asarray([0.0, np.inf, 1.0])},
        {"positions": np.asarray([0.0, 1e200, 1.0])},
        {"frequencies": np.asarray([1.0, 1.0, np.nan, 1.0])},
        {"frequencies": np.asarray([1.0, 1.0, 1.0, -np.inf])},
        {"frequencies": np.asarray([1e200, 1.0, 1.0, 1.0])},
        {"scale": 0.0},
        {"scale": -1.0},
        {"scale": math.nan},
        {"scale": math.inf},
        {"scale": "big"},
        {"scale": True},
        {"inverse": 1},
        {"inverse": 0},
        {"inverse": 0.0},
        {"inverse": None},
        {"inverse": "no"},
        {"inverse": [False]},
        {"inverse": np.asarray([False])},
        {"pairing": "neox"},
        {"pairing": ["half"]},
        {"pairing": None},
        {"out_pairing": "neox"},
        {"out_pairing": ""},
        {"out_pairing": 0},
        {"out_pairing": ["half"]},
        {"positions": np.asarray([True, False, True])},
        {"positions": np.asarray([0j, 1j, 2j])},
        {"positions": np.arange(4.0)},
        {"positions": None},
        {"frequencies": np.ones(5)},
        {"frequencies": np.asarray(["a", "b", "c", "d"])},
        {"x": np.ones((3, 8), np.int64)},
        {"x": np.ones((3, 7))},
    ],
    ids=repr,
)
@pytest.mark.parametrize("with_out", [False, True])
def test_the_second_call_refuses_what_the_first_refuses(changed, with_out, known, ran):
    out = np.full((3, 8), 5.0)
    arguments = known | changed | ({"out": out} if with_out else {})
    with pytest.raises((ValueError, TypeError)) as second:
        rfrope.rotate(**arguments)
    assert ran == []
    np.testing.assert_array_equal(out, 5.0)
    with without_backends(), pytest.raises((ValueError, TypeError)) as first:
        rfrope.rotate(**arguments)
    assert second.type is first.type
    assert str(second.value) == str(first.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: np.broadcast_to(np.empty(8), (3, 8)), "out is read-only"),
        (
            lambda x: np.lib.stride_tricks.as_strided(np.empty(8), (3, 8), (0, 8)),
            "out is read-only, or some of its elements share memory",
        ),
        (lambda x: np.empty((3, 8), np.float32), "out has dtype"),
        (lambda x: np.empty((4, 8)), "out has shape"),
        (lambda x: [[0.0] * 8] * 3, "out is"),
    ],
)
def test_the_second_call_refuses_an_out_that_the_first_refuses(make, message, known, ran):
    with pytest.raises((ValueError, TypeError), match=message):
        rfrope.rotate(**known, out=make(known["x"]))
    assert ran == []


def test_out_that_became_read_only_is_refused(known, ran):
    out = np.full((3, 8), 5.0)
    rfrope.rotate(**known, out=out)
    assert ran == ["repeated"]
    out[...] = 5.0
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        rfrope.rotate(**known, out=out)
    assert ran == ["repeated"]
    np.testing.assert_array_equal(out, 5.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_type_of_the_same_shape_and_strides_is_another_call(dtype, ran, rng):
    """Two types of one size share shapes and strides, so the type must tell calls, walks and plans apart."""
    p, w = np.arange(3), rfrope.geometric(4)
    values, wide = rng.standard_normal((3, 8)), np.dtype("float64").itemsize
    for _ in range(2):
        for other in (*DTYPES, dtype):
            kind = numpy_dtype(other)
            step = wide // kind.itemsize  # strides in bytes are the same for all of them
            x, out = (np.zeros((3, 8 * step), kind)[:, ::step] for _ in range(2))
            x[...] = values
            assert x.strides == (64, 8)
            rfrope.rotate(x, p, w, out=out)
            with without_backends():
                wanted = rfrope.rotate(x.astype(np.float64), p, w)
            check(out, wanted, other, 4, "half")
            check(rfrope.rotate(x, p, w), wanted, other, 4, "half")
    assert set(ran) == {"rotated", "repeated"}


def test_other_arrays_than_plain_ones_take_the_long_way(known, ran):
    rfrope.rotate(**(known | {"x": known["x"].tolist()}))
    rfrope.rotate(**(known | {"frequencies": known["frequencies"].tolist()}))
    rfrope.rotate(**(known | {"scale": 2}))
    rfrope.rotate(**known, shift=0.0)
    assert ran == ["rotated"] * 4
    for position in (3, 2**40):  # the number alone, as at every step of decoding
        ran.clear()
        several = [rfrope.rotate(known["x"], position, known["frequencies"]) for _ in range(2)]
        assert ran[-1] == "repeated"
        np.testing.assert_array_equal(*several)


def test_unaligned_arrays_stay_in_the_loops_and_give_the_same_bits(ran, rng):
    x, p, w = rng.standard_normal((3, 8)), np.asarray([0.5, 1e6, -3.0]), rng.standard_normal(4)
    wanted = rfrope.rotate(x, p, w, scale=np.full(4, 1.5)), *rfrope.rotation_table(p, w)
    assert ran == ["rotated", "cos_sin"]
    odd = [laid(v, "unaligned") for v in (x, p, w, np.full(4, 1.5))]
    assert not any(v.flags.aligned for v in odd)
    for _ in range(2):
        got = rfrope.rotate(*odd[:3], scale=odd[3]), *rfrope.rotation_table(*odd[1:3])
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    assert ran == ["rotated", "cos_sin"] * 3


def test_unaligned_or_overlapping_memory_at_the_second_call(known, rng):
    wanted = rfrope.rotate(**known)
    odd = np.empty(192 + 1, np.uint8)[1:].view(np.float64).reshape(3, 8)
    odd[...] = known["x"]
    np.testing.assert_allclose(rfrope.rotate(**(known | {"x": odd})), wanted, rtol=0, atol=1e-15)
    out = np.empty(193, np.uint8)[1:].view(np.float64).reshape(3, 8)
    np.testing.assert_allclose(rfrope.rotate(**known, out=out), wanted, rtol=0, atol=1e-15)
    x = known["x"].copy()
    np.testing.assert_array_equal(rfrope.rotate(**(known | {"x": x}), out=x), wanted)


def test_positions_that_no_array_holds_are_refused_at_the_second_call_too(ran):
    x, w = np.ones((3, 8)), rfrope.geometric(4)
    rope = rfrope.Rope(w)
    for call, name in (
        (lambda position: rfrope.rotate(x, position, w), "repeated"),
        (lambda position: rope.rotate(x, position), "prepared"),
    ):
        for _ in range(2):
            call(5)
        assert ran[-1] == name
        for position in (2**64, -(2**63) - 1, 10**400):
            ran.clear()
            with pytest.raises(TypeError, match=r"positions is .*; expected numbers of at most 64 bits"):
                call(position)
            assert ran == []
        np.testing.assert_array_equal(call(2**64 - 1), call(np.uint64(2**64 - 1)))


def test_what_is_remembered_is_bounded(rng):
    for n in range(leaf._REMEMBERED + 20):
        rfrope.rotate(np.ones((1 + n // 2, 2)), np.zeros(1 + n // 2), np.ones(1 - n % 2 + 0))
        assert len(turning._repeats()._known) <= leaf._REMEMBERED
    rope = rfrope.Rope(np.ones(1))
    for n in range(leaf._REMEMBERED + 20):
        rope.rotate(np.ones((1 + n, 2)), np.zeros(1 + n))
        assert len(rope._held()["_repeats"]._known) <= leaf._REMEMBERED


# -- a Rope prepares once ----------------------------------------------------------------------------------------------


@pytest.fixture
def rope(rng):
    """A Rope that was called twice, with `out` and without."""
    rope = rfrope.Rope(rfrope.geometric(4), pairing="interleaved", attention_factor=1.5)
    x, p = rng.standard_normal((3, 8)), np.asarray([0.0, 5.0, -9.0])
    with watched() as names:
        for _ in range(2):
            rope.rotate(x, p)
            rope.rotate(x, p, out=np.empty((3, 8)))
    assert [name for name in names if name == "prepared"] == ["prepared"] * 2
    return rope


def test_the_second_call_of_a_rope_is_short_and_sees_new_values(rope, ran, rng):
    for start in (0.0, 1e9, 2.0**53 - 3):
        x, p = rng.standard_normal((3, 8)), np.asarray([0.0, 1.0, 2.0]) + start
        got = rope.rotate(x, p)
        assert ran == ["prepared"]
        with without_backends():
            wanted = rfrope.rotate(x, p, rope.frequencies, pairing="interleaved", scale=1.5)
        check(got, wanted, "float64", 4, "interleaved")
        ran.clear()


@pytest.mark.parametrize("sections", [None, (1, 3), (2, 1, 1)])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rope_turns_as_the_generic_function(sections, inverse, dtype, ran, rng):
    rope = rfrope.Rope(rfrope.geometric(4), sections=sections)
    p = rng.integers(0, 10**6, (3,) if sections is None else (3, len(sections)))
    for _ in range(3):
        x = rng.standard_normal((2, 3, 10)).astype(numpy_dtype(dtype))
        got = rope.rotate(x, p, inverse=inverse)
        with without_backends():
            wanted = rfrope.rotate(x.astype(np.float64), p, rope.vectors, inverse=inverse)
        check(got, wanted, dtype, 4, "half")
        out = x.copy()
        assert rope.rotate(out, p, inverse=inverse, out=out) is out
        np.testing.assert_array_equal(doubles(out), doubles(got))
    assert ran[-4:] == ["prepared"] * 4


@pytest.mark.parametrize(
    "changed",
    [
        {"positions": np.asarray([0.0, np.nan, 1.0])},
        {"positions": np.asarray([0.0, 1e200, 1.0])},
        {"positions": np.asarray([True, False, True])},
        {"positions": np.arange(4.0)},
        {"positions": None},
        {"inverse": 1},
        {"inverse": 0},
        {"inverse": None},
        {"inverse": [False]},
        {"inverse": np.asarray([False])},
        {"x": np.ones((3, 8), np.int64)},
        {"x": np.ones((3, 7))},
        {"x": np.ones((3, 6))},
        {"out": np.broadcast_to(np.zeros(8), (3, 8))},
        {"out": np.zeros((3, 8), np.float32)},
        {"out": np.zeros((4, 8))},
        {"out": [[0.0] * 8] * 3},
    ],
    ids=repr,
)
def test_the_second_call_of_a_rope_refuses_what_the_first_refuses(changed, rope, ran):
    out = np.full((3, 8), 5.0)
    arguments = {"x": np.ones((3, 8)), "positions": np.arange(3.0), "out": out, **changed}
    with pytest.raises((ValueError, TypeError)) as second:
        rope.rotate(**arguments)
    assert ran == []
    np.testing.assert_array_equal(out, 5.0)
    with without_backends(), pytest.raises((ValueError, TypeError)) as first:
        rfrope.rotate(frequencies=rope.frequencies, pairing="interleaved", scale=1.5, **arguments)
    assert second.type is first.type
    assert str(second.value) == str(first.value)


def test_memory_that_a_rope_must_look_at(rope, rng):
    x, p = rng.standard_normal((3, 8)), np.asarray([0.0, 5.0, -9.0])
    wanted = rope.rotate(x, p)
    out = np.full((3, 8), 5.0)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        rope.rotate(x, p, out=out)
    memory = np.zeros(40)
    memory[:24] = x.ravel()
    with pytest.raises(ValueError, match="out overlaps x in part"):
        rope.rotate(memory[:24].reshape(3, 8), p, out=memory[8:32].reshape(3, 8))
    np.testing.assert_array_equal(memory[:24], x.ravel())
    memory[24:27] = p  # positions in the memory of the result
    np.testing.assert_allclose(
        rope.rotate(x, memory[24:27], out=memory[8:32].reshape(3, 8)), wanted, rtol=0, atol=1e-15
    )
    odd = np.empty(192 + 1, np.uint8)[1:].view(np.float64).reshape(3, 8)
    odd[...] = x
    np.testing.assert_allclose(rope.rotate(odd, p), wanted, rtol=0, atol=1e-15)


def test_frequencies_of_a_rope_may_lie_anywhere(ran, rng):
    x, p, w = rng.standard_normal((3, 8)), np.arange(3), rfrope.geometric(4)
    wanted = rfrope.rotate(x, p, w)
    unaligned = np.empty(w.nbytes + 1, np.uint8)[1:].view(np.float64)
    unaligned[...] = w
    for other in (unaligned, w.astype(">f8"), np.repeat(w, 2)[::2], w[::-1].copy()[::-1]):
        rope = rfrope.Rope(other)
        for _ in range(3):
            np.testing.assert_allclose(rope.rotate(x, p), wanted, rtol=0, atol=1e-15)
        assert ran[-1] == "prepared"


# -- who may use the loops ---------------------------------------------------------------------------------------------


def test_torch_on_the_cpu_is_turned_where_it_lies(ran):
    torch = library("torch").module
    p, w = torch.arange(3), torch.asarray(rfrope.geometric(4))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = rfrope.rotate(x, p, w)
    address = x.data_ptr()
    assert rfrope.rotate(x, p, w, out=x) is x
    assert ran == ["rotated", "rotated"]
    assert x.data_ptr() == address
    assert torch.equal(x, expected)
    with torch.no_grad():
        rfrope.rotate(x.float().requires_grad_(), p, w)
    with torch.inference_mode():
        rfrope.rotate(torch.ones(3, 8), p, w, out=torch.ones(3, 8))
    assert ran == ["rotated"] * 4


@pytest.mark.parametrize("argument", ["x", "positions", "frequencies", "shift", "scale"])
def test_torch_that_asks_for_gradients_goes_through_operators_to_the_loops(argument, ran):
    torch = library("torch").module
    arguments = {
        "x": torch.ones(3, 8, dtype=torch.float64),
        "positions": torch.arange(3, dtype=torch.float64),
        "frequencies": torch.ones(4, dtype=torch.float64),
        "shift": torch.ones(4, dtype=torch.float64),
        "scale": torch.full((4,), 2.0, dtype=torch.float64),
    }
    arguments[argument].requires_grad_()
    turned = rfrope.rotate(**arguments)
    assert ran == ["rotated", "recorded rotated"]
    turned.sum().backward()
    assert ran[2:] == (["rotated"] if argument == "x" else ["shared_coefficients", "cos_sin"])
    assert arguments[argument].grad.abs().sum() > 0.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch about its own use of torch.jit
def test_torch_in_forward_mode_stays_generic(ran):
    torch = library("torch").module
    import torch.autograd.forward_ad as forward

    p, w, x = torch.arange(3), torch.asarray(rfrope.geometric(4)), torch.ones(3, 8, dtype=torch.float64)
    with forward.dual_level():
        turned = rfrope.rotate(forward.make_dual(x, 2.0 * x), p, w)
        primal, tangent = forward.unpack_dual(turned)
        assert ran == ["cos_sin"]  # for the angles, which have no tangent
        torch.testing.assert_close(tangent, 2.0 * primal)


@pytest.mark.filterwarnings("ignore")  # the compiler's own warnings
def test_torch_that_is_traced_stays_generic(ran):
    torch = library("torch").module
    p, w, x = torch.arange(3), torch.asarray(rfrope.geometric(4)), torch.ones(3, 8, dtype=torch.float64)
    traced = torch.jit.trace(lambda v: rfrope.rotate(v, p, w), torch.zeros_like(x), check_trace=False)(x)
    assert ran == []
    pushed = torch.func.jvp(lambda v: rfrope.rotate(v, p, w), (x,), (x,))[1]
    assert ran == []
    mapped = torch.func.vmap(lambda v: rfrope.rotate(v, 3, w))(x)
    assert ran == ["cos_sin"]  # for the angles, which are not mapped over
    expected = rfrope.rotate(x, p, w)
    for got in (pushed, traced):
        torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(mapped, rfrope.rotate(x, 3, w), rtol=1e-14, atol=1e-14)


def test_torch_notices_what_was_written_in_place():
    """Autograd counts writes, to refuse gradients through values that are gone."""
    torch = library("torch").module
    p, w = torch.arange(3), torch.asarray(rfrope.geometric(4))
    weight, x = torch.ones(3, 8, dtype=torch.float64, requires_grad=True), torch.ones(3, 8, dtype=torch.float64)
    total = (weight * x).sum()
    rfrope.rotate(x, p, w, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_torch_views_that_negate_stay_right():
    torch = library("torch").module
    p, w, x = torch.arange(3), torch.asarray(rfrope.geometric(4)), torch.ones(3, 8, dtype=torch.float64)
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(rfrope.rotate(negative, p, w), -rfrope.rotate(x, p, w), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", ["array-api-strict", "jax", "dask"])
def test_other_libraries_never_reach_the_loops(name, ran, rng):
    lib = library(name)
    x, p, w = rng.standard_normal((3, 8)), np.arange(3), rfrope.geometric(4)
    for got in (
        rfrope.rotate(lib(x), lib(p), lib(w)),
        rfrope.rotate(lib(x), lib(p) if name == "dask" else [0, 1, 2], w.tolist()),
        rfrope.rotate_by_phases(lib(x), lib(p[:, None] * w)),
        rfrope.rotate_by_table(lib(x), *rfrope.rotation_table(lib(p), lib(w))),
    ):
        lib.host(got)
    rfrope.scores(lib(x), lib(x), lib(p), lib(p), lib(w))
    assert ran == []
    if name == "dask":  # its blocks are NumPy's, and reach them where all else is NumPy's too
        lib.host(rfrope.rotate(lib(x), p, w))
        assert ran == ["rotated", "rotated"]
        ran.clear()
    rfrope.scores(x, x, p, p, w)
    assert ran == ["rotated", "rotated"]


# -- the tests can fail ------------------------------------------------------------------------------------------------


def spoiled(kind: str) -> Any:
    """Return the right twin with one thing wrong."""

    def twin(x, angles, turn, out):
        if kind == "inverse":
            turn = turn._replace(inverse=not turn.inverse)
        if kind == "phases in float64":
            phases = angles.positions * angles.frequencies[:, 0]
            angles = angles._replace(positions=angles.positions * 0, shift=phases)
        y = leaf.rotated(x, angles, turn, out)
        if kind == "one block":
            y[-1, 2] *= -1.0
        if kind == "one unit":
            y[0, 0] += 20 * EPSILON[array.dtype_name(x)] * abs(y[0, 0])
        return y

    return twin


@pytest.mark.parametrize("kind", ["inverse", "one block", "one unit", "phases in float64"])
def test_a_wrong_twin_is_noticed(kind):
    angles = np.asarray([1, 7, 10**9 + 7]), rfrope.geometric(4)
    options = {"pairing": "half", "out_pairing": None}
    call = Call("rotate", angles, options, "float64", "dense", (3, 8), "none", "dense", 4, 3, False)
    run(call)
    find = dispatch.backend_function
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            dispatch,
            "backend_function",
            lambda function, place: spoiled(kind) if function.name == "rotated" else find(function, place),
        )
        with pytest.raises(AssertionError, match="more than allowed"):
            run(call)


def test_a_twin_that_did_not_run_is_noticed():
    options = {"pairing": "half", "out_pairing": None}
    call = Call("rotate", (np.arange(3), np.ones(4)), options, "float64", "dense", (3, 8), "none", "dense", 4, 3, False)
    with without_backends(), pytest.raises(AssertionError):
        run(call)


def test_bfloat16_is_rounded_to_even():
    """1 + 2**-8 and 1 + 3 * 2**-8 lie in the middle between two numbers of bfloat16."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = np.ones((2, 8), ml_dtypes.bfloat16)
    cos = np.repeat(np.float32([1.0 + 2.0**-8, 1.0 + 3.0 * 2.0**-8])[:, None], 4, axis=1)
    got = rfrope.rotate_by_table(x, cos, np.zeros_like(cos)).astype(np.float64)
    assert got.tolist() == [[1.0] * 8, [1.0 + 2.0**-6] * 8]


# -- steps that come again and again -----------------------------------------------------------------------------------


def outcome(call):
    """Result of a call, or what it raised."""
    try:
        return np.array(call())
    except (ValueError, TypeError) as error:
        return type(error), str(error)


def same(found, wanted):
    if isinstance(wanted, tuple):
        return found == wanted
    return found.dtype == wanted.dtype and np.array_equal(found, wanted)


@pytest.fixture
def steps(monkeypatch):
    """Steps after the first call of a layout; returns which compiled calls did all the work."""
    ran = []
    monkeypatch.setattr(leaf, "_STEADY", 1)
    for name in ("step", "step_at"):
        right = getattr(walks.step_loops, name)
        monkeypatch.setattr(
            walks.step_loops, name, lambda *a, name=name, right=right: ran.append((name, done := right(*a))) or done
        )
    return ran


def test_a_step_is_the_call_without_one(steps, rng):
    dtype, inverse, fields = np.float32, True, {"pairing": "interleaved", "attention_factor": 1.5}
    rope = rfrope.Rope(rfrope.geometric(16), **fields)
    store = rng.standard_normal((3, 5, 80)).astype(dtype)
    x, strided, kept = store[..., :40].copy(), store[..., :40], np.empty((3, 5, 40), dtype)
    readonly = kept.copy()
    readonly.flags.writeable = False
    at = np.arange(5)
    for _ in range(3):
        rope.rotate(x, at, inverse=inverse, out=kept)
    assert steps[-1] == ("step", True)
    shifted = np.zeros(x.size + 3, dtype)
    over = shifted[3:].reshape(x.shape)
    cases = (
        *((x, places, out) for places in (at, at + 7, -at, at.astype(float)) for out in (kept, None, x)),
        *((x, at + np.asarray([0.0, 0.0, bad, 0.0, 0.0]), kept) for bad in (np.nan, np.inf, 2.0**501)),
        *((each, at, kept) for each in (strided, x[:, ::-1], x[:2], x.astype(np.float16), x.tolist())),
        *((x, places, kept) for places in (at[:3], 5, at[:, None], at.astype(np.uint8), at.astype(complex))),
        *((x, at, out) for out in (readonly, kept[:2], over, kept.astype(np.float16), kept.T)),
        (shifted[:-3].reshape(x.shape), at, over),
    )
    for each, places, out in cases:
        results = []
        for rotate in (rope.rotate, rfrope.Rope(rope.frequencies, **fields).rotate):
            before = [np.array(v, copy=True) if isinstance(v, np.ndarray) else None for v in (each, out)]
            results.append(outcome(lambda rotate=rotate: rotate(each, places, inverse=inverse, out=out)))  # noqa: B023
            for array_, value in zip((each, out), before, strict=True):
                if value is not None and array_.flags.writeable:
                    array_[...] = value
        assert same(*results), (places, results)
    assert ("step", True) in steps[3:]


def test_a_step_does_not_stay_when_frequencies_have_axes_and_shapes_alternate(steps, rng):
    rope = rfrope.Rope(rng.standard_normal((4, 8, 2)), pairing="half")
    q, k = rng.standard_normal((2, 4, 3, 20)), rng.standard_normal((1, 4, 3, 16))
    for turn in range(5):
        at = rng.integers(0, 50, (3, 2)) + turn
        for x in (q, k):
            np.testing.assert_array_equal(rope.rotate(x, at), rfrope.rotate(x, at, rope.frequencies))
    assert steps.count(("step", True)) >= 6
    assert ("step", False) not in steps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_of_torch_is_the_call_without_one(dtype, steps):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rope = rfrope.Rope(rfrope.geometric(16), pairing="half")
    x = torch.randn((2, 4, 3, 40), generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    for turn in range(5):
        for at in (np.arange(3) + turn, torch.arange(3) + turn):
            wanted = rfrope.rotate(x, at, torch.tensor(rope.frequencies))
            for out in (None, torch.empty_like(x), x.clone()):
                source = out if turn == 4 and out is not None else x  # in place
                if source is not x:
                    source.copy_(x)
                version = None if out is None else out._version
                found = rope.rotate(source, at, out=out)
                assert torch.equal(found, wanted)
                assert found.dtype == x.dtype
                assert out is None or (found is out and out._version > version)
    assert steps.count(("step_at", True)) > 10
    with pytest.raises(ValueError, match="positions"):
        rope.rotate(x, np.array([0.0, np.nan, 1.0]))
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(rope.rotate(strided, np.arange(3)), rope.rotate(x, np.arange(3)))
    learnt = x.float().clone().requires_grad_()
    rope.rotate(learnt, np.arange(3)).sum().backward()
    assert learnt.grad is not None


def a_walk():
    x = np.zeros((3, 8), np.float32)
    source = walks.Source(loops.POSITIONS, 4, 1, 8, 8)
    place = (x.shape, x.strides)
    operands = (((3,), (8,), 8), ((), (), 8), ((), (), 0), ((), (), 0))
    return walks.Walk("float32", source, place, place, operands, (False, False, False), ("half", "half"))


def test_threads_that_plan_at_once_are_given_one_plan(monkeypatch):
    """A plan that the walk did not keep would be gone while a loop reads it."""
    walk, made, plan = a_walk(), [], walks._plan

    def interrupted(*arguments):
        if not made:
            made.append(None)
            made.append(walk.plan(False))  # of another thread, meanwhile
        return plan(*arguments)

    monkeypatch.setattr(walks, "_plan", interrupted)
    assert walk.plan(False) is made[1]
    assert walk.plan(False) is made[1]


def test_a_step_keeps_the_plans_that_it_names():
    walk, positions, omega = a_walk(), np.zeros(3), np.zeros(4)
    step = walks.Step(walk, (0, 32), (), positions, omega, 1.0, False)
    gone = weakref.ref(walk)
    del walk
    gc.collect()
    assert gone() is not None
    del step
    gc.collect()
    assert gone() is None
