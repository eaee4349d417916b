"""Memory that two arrays share, and elements that share it."""

import numpy as np
import pytest
from conftest import library, tuples

from rfrope._core import overlap

NONE, PART, SAME = overlap.Overlap


@pytest.mark.parametrize("name", ["numpy", "torch", "array-api-strict"])
def test_memory_is_compared(name):
    lib = library(name)
    buffer = lib(np.arange(24.0).reshape(4, 6))
    assert overlap.overlap_of(buffer, buffer) is SAME
    assert overlap.overlap_of(buffer[:3, :], buffer[1:, :]) is PART
    assert overlap.overlap_of(buffer[:2, :], buffer[2:, :]) is NONE
    assert overlap.overlap_of(buffer, lib(np.ones((4, 6)))) is NONE
    assert overlap.overlap_of(buffer, buffer[:, :]) is SAME or name == "array-api-strict"


SHARED = tuples("core/overlap.json", "shared")


@pytest.mark.parametrize(("shape", "strides", "shared"), SHARED)
def test_elements_that_share_memory(shape, strides, shared):
    view = np.lib.stride_tricks.as_strided(np.zeros(64)[32:], shape, strides)
    assert overlap.has_shared_elements(view) is shared


def test_many_windows_that_slide():
    x = np.lib.stride_tricks.as_strided(np.zeros(2**18), (2**17, 2**17), (8, 8))
    assert overlap.has_shared_elements(x)
    assert not overlap.has_shared_elements(np.zeros((512, 512))[::2, 1::3])
