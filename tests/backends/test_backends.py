"""Compiled loops and CUDA kernels of the rotation, which runs on the CPU here: one set of properties for both."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from emulator import COMPILER, NO_COMPILER, emulation
from rotation_calls import (
    BLOCKS,
    DTYPES,
    EPSILON,
    PAIRINGS,
    SMALLEST,
    Call,
    doubles,
    numpy_dtype,
    run,
    watched,
    without_backends,
)

import rfrope
from rfrope._core import dispatch
from rfrope.rotation import turning


@pytest.fixture(params=["cpu", "cuda"])
def backend(request):
    """Context in which a backend rotates, which gives the names of what ran, and the backend's module."""
    if request.param == "cuda":
        if COMPILER is None:
            pytest.skip(NO_COMPILER)
        return emulation
    if dispatch.backend_function(turning.rotated, "cpu") is None:
        pytest.skip("compiled loops need Numba, with its compiler on")
    return watched


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width_and_type(backend, dtype, blocks):
    """Each with one of the four ways from pairing to pairing."""
    angles = np.asarray([-7, 0, 131071]), np.random.default_rng(blocks).standard_normal(blocks)
    number = BLOCKS.index(blocks) + DTYPES.index(dtype)
    pairing, out_pairing = PAIRINGS[number % 2], PAIRINGS[number // 2 % 2]
    options = {"pairing": pairing, "out_pairing": out_pairing, "scale": 1.0, "inverse": False}
    for layout in ("dense", "offset", "stepped"):
        for out in ("none", "in place"):
            shape = (2, 3, 2 * blocks + 6)
            run(Call("rotate", angles, options, dtype, layout, shape, out, "dense", blocks, 5, False), backend)


@pytest.mark.parametrize(
    ("p_shape", "w_shape"),
    [((), (3,)), ((2, 1, 5), (3,)), ((5, 2), (2, 1, 3, 2)), ((2, 1, 5, 3), (4, 3, 3)), ((2,), (5, 3, 2))],
)
def test_tables_and_rotations_of_every_form_of_frequencies(backend, p_shape, w_shape):
    rng = np.random.default_rng(11)
    p, w, x = rng.uniform(-1e6, 1e6, p_shape), rng.standard_normal(w_shape), rng.standard_normal((2, 4, 5, 8))
    shift = rng.uniform(-9, 9, 3)
    with without_backends():
        wanted = [*rfrope.rotation_table(p, w, shift=shift, scale=1.5), rfrope.rotate(x, p, w)]
    with backend() as ran:
        got = [*rfrope.rotation_table(p, w, shift=shift, scale=1.5), rfrope.rotate(x, p, w)]
    assert len(ran) == 2
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


def test_given_phases_beyond_the_reach_of_the_polynomials(backend):
    """Above 2**53 the library's cos and sin are called, and NaN and infinity stay where they are."""
    u = np.asarray([[2.0**53, 2.0**60, 1e300, 0.5], [np.nan, np.inf, -np.inf, 1.0]])
    x = np.concatenate([np.ones((2, 4)), np.zeros((2, 4))], axis=-1)
    with backend() as ran, np.errstate(invalid="ignore"):
        got = rfrope.rotate_by_phases(x, u)
        wanted = np.concatenate([np.cos(u), np.sin(u)], axis=-1)
    assert len(ran) == 1
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("blocks", [3, 21])
def test_nan_and_infinity_go_where_the_formula_sends_them(backend, dtype, pairing, blocks):
    d = 2 * blocks + 4
    x = np.random.default_rng(11).standard_normal((2 * d, d)).astype(numpy_dtype(dtype))
    bad = np.array(x)
    for row in range(2 * d):
        bad[row, row % d] = (np.nan, np.inf, -np.inf)[row % 3]
    p, w = np.arange(2 * d) % 7, rfrope.geometric(blocks)  # position 0 too, where sin is 0 and 0 * inf is NaN
    with backend() as ran:
        got, clean = (doubles(rfrope.rotate(v, p, w, pairing=pairing)) for v in (bad, x))
    assert len(ran) == 2
    with without_backends(), warnings.catch_warnings(action="ignore"):
        wanted = doubles(rfrope.rotate(bad, p, w, pairing=pairing))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(got[np.isinf(wanted)], wanted[np.isinf(wanted)])
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[finite], clean[finite])
    assert np.count_nonzero(~finite) <= 4 * d  # at most the two features of one block in each row
    np.testing.assert_array_equal(got[:, 2 * blocks :], doubles(bad)[:, 2 * blocks :])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_is_to_nearest_even_over_the_whole_range(backend, dtype):
    """At position 0 features come back as they were: subnormal, largest, signed zero and NaN with any payload."""
    kind = numpy_dtype(dtype)
    bits = np.arange(2**16, dtype=np.uint16) if kind.itemsize == 2 else np.arange(0, 2**32, 65521, dtype=np.uint32)
    x = np.zeros((bits.size // 8, 16), kind)
    x[:, :8] = bits[: bits.size // 8 * 8].view(kind).reshape(-1, 8)
    with np.errstate(invalid="ignore"):  # NaN that signals
        plain = doubles(x)
    rows = np.isfinite(plain).all(axis=-1)
    with backend() as ran:
        got, scaled = (rfrope.rotate(x, 0, rfrope.geometric(8), scale=scale) for scale in (1.0, 0.3))
    assert len(ran) == 2
    np.testing.assert_array_equal(doubles(got)[rows], plain[rows])
    with without_backends(), warnings.catch_warnings(action="ignore"):
        wanted = rfrope.rotate(x, 0, rfrope.geometric(8), scale=0.3)
    np.testing.assert_array_equal(np.isnan(doubles(scaled)), np.isnan(doubles(wanted)))
    np.testing.assert_allclose(doubles(scaled)[rows], doubles(wanted)[rows], rtol=EPSILON[dtype], atol=SMALLEST[dtype])


def test_out_may_lie_over_the_angles(backend):
    """The generic function has read them before it writes; so many rows that loops would write before they read."""
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
        for _ in range(2):
            with backend():
                np.testing.assert_allclose(call(x.copy()), wanted, rtol=0, atol=1e-14)
