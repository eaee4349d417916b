"""Deterministic frequency sets: exact values, placement, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from rfrope import arithmetic, geometric


@pytest.mark.parametrize("base", [10_000.0, 100_000.0, 500_000.0, 2.0, 0.5])
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 32, 64, 128])
def test_geometric_is_base_to_the_minus_2i_over_d(n_blocks, base):
    got = geometric(n_blocks, base=base)
    with mpmath.workdps(40):
        exact = [float(mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / (2 * n_blocks))) for i in range(n_blocks)]
    assert got.shape == (n_blocks,)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, exact, rtol=4e-16 * (1.0 + abs(math.log(base))))


def test_geometric_counts_from_zero():
    got = geometric(64)
    assert got[0] == 1.0  # and not base**(-2/d), the off-by-one of the seed
    assert got[0] != pytest.approx(10_000.0 ** (-2.0 / 128.0), rel=1e-3)
    assert got[-1] == pytest.approx(10_000.0 ** (-63.0 / 64.0), rel=1e-14)
    assert got[-1] > 1.0 / 10_000.0
    np.testing.assert_allclose(got[1:] / got[:-1], 10_000.0 ** (-1.0 / 64.0), rtol=1e-14)


def test_geometric_has_the_base_of_the_first_models():
    assert np.array_equal(geometric(8), geometric(8, base=10_000.0))


def test_geometric_takes_positional_blocks_and_keyword_base():
    with pytest.raises(TypeError):
        geometric(8, 500.0)


def test_arithmetic_is_i_times_step_from_one():
    assert arithmetic(4, step=0.25).tolist() == [0.25, 0.5, 0.75, 1.0]
    step = 0.1
    assert arithmetic(50, step=step).tolist() == [float(Fraction(step) * i) for i in range(1, 51)]


@pytest.mark.parametrize(
    "make", [geometric, lambda n, **o: arithmetic(n, step=0.3, **o)], ids=["geometric", "arithmetic"]
)
class TestBoth:
    def test_no_blocks(self, make):
        assert make(0).shape == (0,)

    def test_numpy_integers_count(self, make):
        assert np.array_equal(make(np.int64(5)), make(5))

    def test_in_every_library(self, make, xp):
        got = make(6, xp=xp.module, device=xp.device)
        assert xp.owns(got)
        assert got.dtype == xp.dtype("float64")
        assert np.array_equal(xp.host(got), make(6))

    def test_dtype(self, make, xp):
        got = make(6, xp=xp.module, device=xp.device, dtype=xp.dtype("float32"))
        assert got.dtype == xp.dtype("float32")
        assert np.array_equal(xp.host(got), make(6).astype(np.float32))

    @pytest.mark.parametrize(
        ("library", "device"), [("torch", "cpu"), ("torch", "meta"), ("array_api_strict", "device1")]
    )
    def test_device(self, make, library, device):
        module = pytest.importorskip(library, reason=f"{library} is not installed")
        place = module.device(device) if library == "torch" else module.Device(device)
        assert make(6, xp=module, device=place).device == place

    @pytest.mark.parametrize(
        ("n_blocks", "error"),
        [(-1, ValueError), (True, ValueError), (2.0, TypeError), ("2", TypeError), (None, TypeError)],
    )
    def test_bad_n_blocks(self, make, n_blocks, error):
        with pytest.raises(error, match="n_blocks is"):
            make(n_blocks)

    @pytest.mark.parametrize("space", [3, "numpy", math])
    def test_bad_xp(self, make, space):
        with pytest.raises(TypeError, match="xp is"):
            make(2, xp=space)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1.0, ValueError),
        (math.inf, ValueError),
        (math.nan, ValueError),
        (None, TypeError),
        ("many", TypeError),
        (1j, TypeError),
        ([1.0, 2.0], TypeError),
    ],
)
def test_bad_base_and_step(value, error):
    with pytest.raises(error, match="base is"):
        geometric(4, base=value)
    with pytest.raises(error, match="step is"):
        arithmetic(4, step=value)


def test_step_is_required():
    with pytest.raises(TypeError, match="step"):
        arithmetic(4)
