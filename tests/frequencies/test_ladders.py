"""Deterministic frequency sets of one axis, and xPos: exact values, placement, and what is refused."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from conftest import library
from owned import check_owned

import rfrope
from rfrope import arithmetic, geometric
from rfrope.frequencies import from_wavelengths, pixel, xpos_scales


@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 0.5])
@pytest.mark.parametrize("n_blocks", [1, 3, 64])
def test_geometric_is_base_to_the_minus_2i_over_d(n_blocks, base):
    got = geometric(n_blocks, base=base)
    with mpmath.workdps(40):
        exact = [float(mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / (2 * n_blocks))) for i in range(n_blocks)]
    assert got.shape == (n_blocks,)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, exact, rtol=4e-16 * (1.0 + abs(math.log(base))))


@pytest.mark.parametrize("step", [0.25, 0.1])
def test_arithmetic_is_i_times_step_from_one(step):
    assert arithmetic(50, step=step).tolist() == [float(Fraction(step) * i) for i in range(1, 51)]


@pytest.mark.parametrize("max_freq", [10.0, 2.0, 0.5, 256.0])
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 16])
def test_pixel_is_linear_from_pi_to_half_max_freq_pi(n_blocks, max_freq):
    with mpmath.workdps(40):
        steps = max(n_blocks - 1, 1)
        exact = [float(mpmath.pi * (1 + i * (mpmath.mpf(max_freq) / 2 - 1) / steps)) for i in range(n_blocks)]
    np.testing.assert_allclose(pixel(n_blocks, max_freq=max_freq), exact, rtol=1e-15)


MAKERS = {"geometric": geometric, "arithmetic": lambda n, **o: arithmetic(n, step=0.3, **o), "pixel": pixel}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_placing(make, xp):
    for n_blocks in (0, 6, np.int64(6)):
        got = make(n_blocks, xp=xp.module, device=xp.device)
        check_owned(xp, got, make(int(n_blocks)))
    narrow = make(6, xp=xp.module, device=xp.device, dtype=xp.dtype("float32"))
    check_owned(xp, narrow, make(6).astype(np.float32), dtype="float32")


# -- wavelengths -------------------------------------------------------------------------------------------------------


def test_from_wavelengths_is_2_pi_over_them(xp):
    lengths = np.array([[1.0, 3.0, 1e-3], [1e300, math.inf, 2.0**-497]])
    got = from_wavelengths(xp(lengths))
    with mpmath.workdps(40):
        exact = [[float(2 * mpmath.pi / mpmath.mpf(v)) for v in row] for row in lengths]
    check_owned(xp, got, exact, rtol=3e-16)


def test_jax_traces_wavelengths_and_xpos(jax):
    lib = library("jax")

    assert np.isinf(np.asarray(jax.jit(from_wavelengths)(lib([0.0]))))
    slope = jax.grad(lambda v: from_wavelengths(v)[0])(lib([4.0]))
    np.testing.assert_allclose(slope, [-2.0 * math.pi / 16.0], rtol=1e-15)
    far = jax.jit(lambda p: xpos_scales(p, 2))(lib([1e9]))
    assert np.array_equal(np.asarray(far), [[0.0, 0.0]])


# -- xPos --------------------------------------------------------------------------------------------------------------


def zeta(n_blocks: int) -> np.ndarray:
    width = 2 * n_blocks
    return np.array([(2 * i + 0.4 * width) / (1.4 * width) for i in range(n_blocks)])


@pytest.mark.parametrize("options", [{}, {"scale_base": 100.0, "centre": 7.5}, {"centre": -3}])
def test_xpos_scales_are_powers_of_zeta(xp, options):
    positions = np.array([[0, 5, -7], [100, 512, 4096]])
    got = xpos_scales(xp(positions), 4, **options)
    power = (positions - options.get("centre", 0.0)) / options.get("scale_base", 512.0)
    check_owned(xp, got, zeta(4) ** power[..., None], rtol=1e-13)


def test_xpos_is_1_at_its_centre_and_has_the_shape_of_the_positions():
    assert xpos_scales(3.5, 4, centre=3.5).tolist() == [1.0] * 4
    assert xpos_scales(np.zeros((2, 0)), 4).shape == (2, 0, 4)
    assert xpos_scales([1, 2], 0).shape == (2, 0)
    edges = xpos_scales([-565.0, 565.0], 3, scale_base=1.0)  # no further than these: tests/refusals/frequencies.py
    assert np.all(np.isfinite(edges) & np.isfinite(1.0 / edges) & (edges > 0.0))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_with_xpos_depend_on_the_lag_alone(xp, pairing):
    """S = sum_i zeta_i^((m - n) / scale_base) (A_i cos u_i + B_i sin u_i), wherever the shared centre is."""
    rng = np.random.default_rng(4)
    q, k, w = rng.standard_normal(12), rng.standard_normal(12), geometric(6)
    a, b = rfrope.block_coefficients(q, k, pairing=pairing)
    for m, n, centre in ((0, -9, 0.0), (1000, 991, 0.0), (1000, 991, 512.5), (40, 45, 3.0)):
        s_q, s_k = (xpos_scales(xp(np.array(p)), 6, centre=centre, scale_base=50.0) for p in (m, n))
        turned_q = rfrope.rotate(xp(q), xp(np.array(m)), xp(w), pairing=pairing, scale=s_q)
        turned_k = rfrope.rotate(xp(k), xp(np.array(n)), xp(w), pairing=pairing, scale=1.0 / s_k)
        u = (n - m) * w
        expected = np.sum(zeta(6) ** ((m - n) / 50.0) * (a * np.cos(u) + b * np.sin(u)))
        got = np.dot(xp.host(turned_q), xp.host(turned_k))
        assert got == pytest.approx(expected, rel=1e-11, abs=1e-11)
    scale = 1.0 / xpos_scales(n, 6, centre=centre + 20.0, scale_base=50.0)
    other = rfrope.rotate(k, n, w, pairing=pairing, scale=scale)
    assert np.dot(xp.host(turned_q), other) != pytest.approx(expected, rel=1e-3), "another centre is another score"


def test_without_float64_they_are_float32(jax):
    lib = library("jax")

    if not hasattr(jax, "enable_x64"):
        pytest.skip("this jax cannot be without float64 for a while")
    with jax.enable_x64(False):
        for made in (from_wavelengths(lib([2.0], "float32")), xpos_scales(lib([100], "int32"), 3)):
            assert made.dtype == lib.dtype("float32")
        np.testing.assert_allclose(made, zeta(3)[None] ** (100 / 512), rtol=1e-6)
