"""Where the elements of arrays lie, and who may write to them."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import library

from rfrope._core import array, dispatch

NONE, PART, SAME = dispatch.Overlap


@pytest.mark.parametrize("name", ["numpy", "torch", "array-api-strict"])
def test_memory_is_compared(name):
    lib = library(name)
    buffer = lib(np.arange(24.0).reshape(4, 6))
    assert dispatch.overlap_of(buffer, buffer) is SAME
    assert dispatch.overlap_of(buffer[:3, :], buffer[1:, :]) is PART
    assert dispatch.overlap_of(buffer[:3, :], buffer[1:, :]) is not SAME
    assert dispatch.overlap_of(buffer[:2, :], buffer[2:, :]) is NONE
    assert dispatch.overlap_of(buffer, lib(np.ones((4, 6)))) is NONE
    if name != "array-api-strict":
        assert dispatch.overlap_of(buffer, buffer[:, :]) is SAME


def test_lazy_libraries_cannot_be_written_to(xp):
    assert array.library(xp([1.0])).is_writable(xp([1.0])) == xp.writable


def test_places_of_arrays(xp):
    x = xp([1.0, 2.0])
    where = "cuda" if xp.on_device else "cpu" if xp.name in ("numpy", "read-only numpy", "torch") else ""
    space = array.namespace(x=x)
    for values in ((x,), (x, None, 1.0, "half", True, space), (None, (x, space)), ((None, (x, x)), x)):
        assert dispatch.place_of(values) == where, values


def test_places_of_nothing_and_of_mixtures():
    x, odd = np.ones(3), np.ones(3).astype(">f8")
    assert dispatch.place_of(()) == "cpu"
    assert dispatch.place_of((None, 1.0, np.float64(2.0), np, ("half", ()))) == "cpu"
    assert dispatch.place_of((x, odd)) == ""
    assert dispatch.place_of((x, (None, odd))) == ""


@pytest.mark.parametrize(
    ("shape", "strides", "shared"),
    [
        ((4, 4), (8, 8), True),  # windows that slide
        ((4, 4), (32, 8), False),
        ((4, 4), (8, 32), False),
        ((4, 4), (24, 8), True),
        ((3, 2), (16, 24), False),  # interleaved, and yet apart: 0, 16, 32, 24, 40, 56
        ((4, 2), (16, 32), True),
        ((3,), (4,), True),  # half an element on
        ((1, 4), (0, 8), False),
        ((4, 1), (0, 8), True),
        ((4,), (-8,), False),
        ((0, 4), (8, 8), False),
    ],
)
def test_elements_that_share_memory(shape, strides, shared):
    start = np.zeros(64)[32:]
    view = np.lib.stride_tricks.as_strided(start, shape, strides)
    assert dispatch.has_shared_elements(view) is shared


def test_many_windows_that_slide():
    x = np.lib.stride_tricks.as_strided(np.zeros(2**18), (2**17, 2**17), (8, 8))
    assert dispatch.has_shared_elements(x)
    assert not dispatch.has_shared_elements(np.zeros((512, 512))[::2, 1::3])


@pytest.mark.parametrize("steps", [(1, 1), (-1, 1), (1, -1), (-1, -1), (-2, 3)])
def test_large_arrays_in_any_direction(steps):
    """Rows or columns that run backwards share nothing; each broadcast one does."""
    x = np.zeros((600, 600))[:: steps[0], :: steps[1]]
    assert x.size > dispatch._LOOKED_AT // 2
    assert not dispatch.has_shared_elements(x)
    assert dispatch.has_shared_elements(np.lib.stride_tricks.as_strided(x, (2, *x.shape), (0, *x.strides)))
    assert dispatch.has_shared_elements(
        np.lib.stride_tricks.as_strided(x, (x.shape[0] - 2, 3, x.shape[1]), (x.strides[0], *x.strides))
    )


def test_what_is_too_hard_to_decide_may_overlap():
    """Whether such steps meet is a knapsack problem (the example of NumPy's `shares_memory`)."""
    buffer = np.zeros(192_163_377, np.int8)  # memory that is never touched
    first = np.lib.stride_tricks.as_strided(buffer, (1049, 1049, 1049), (36674, 61119, 85569))
    second = np.lib.stride_tricks.as_strided(buffer[64_023_025:], (1049, 1049, 1), (12223, 12224, 1))
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(first, second, max_work=10_000)
    assert dispatch.overlap_of(first, second) is PART
