"""Deterministic frequency sets of one axis, and xPos: exact values, placement, and what is refused."""

from __future__ import annotations

import contextlib
import json
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from conftest import library

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


def test_arithmetic_is_i_times_step_from_one():
    assert arithmetic(4, step=0.25).tolist() == [0.25, 0.5, 0.75, 1.0]
    step = 0.1
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
        assert xp.owns(got)
        assert got.dtype == xp.dtype("float64")
        assert np.array_equal(xp.host(got), make(int(n_blocks)))
    narrow = make(6, xp=xp.module, device=xp.device, dtype=xp.dtype("float32"))
    assert narrow.dtype == xp.dtype("float32")
    assert np.array_equal(xp.host(narrow), make(6).astype(np.float32))


REFUSED = [
    *((make, (n_blocks,), {}, "n_blocks is") for make in MAKERS.values() for n_blocks in (-1, 2.0)),
    *((make, (2,), {"xp": "numpy"}, "xp is") for make in MAKERS.values()),
    *((geometric, (4,), {"base": value}, "base is") for value in (0, math.inf, None, [1.0, 2.0])),
    *((arithmetic, (4,), {"step": value}, "step is") for value in (0, -1.0, "many")),
    *((pixel, (4,), {"max_freq": value}, "max_freq is") for value in (0, -1.0, "many")),
    *((from_wavelengths, ([1.0, value],), {}, "wavelengths holds zero, negative numbers, NaN.* expected positive")
      for value in (0.0, -1.0, math.nan, 1e-160)),
    *((from_wavelengths, (value,), {}, "wavelengths ") for value in (None, "long", [1j], [[1.0], [1.0, 2.0]], True)),
    (xpos_scales, ([0.0, math.nan], 2), {}, "positions holds NaN"),
    (xpos_scales, ("here", 2), {}, "positions has type builtins.str; expected an array"),
    (xpos_scales, ([0], -1), {}, "n_blocks is -1"),
    (xpos_scales, ([0], 2), {"scale_base": 0}, "scale_base is 0"),
    (xpos_scales, ([0], 2), {"centre": math.nan}, "centre is nan"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_refused_arguments(case):
    make, arguments, options, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=message):
        make(*arguments, **options)


# -- wavelengths -------------------------------------------------------------------------------------------------------


def test_from_wavelengths_is_2_pi_over_them(xp):
    lengths = np.array([[1.0, 3.0, 1e-3], [1e300, math.inf, 2.0**-497]])
    got = from_wavelengths(xp(lengths))
    assert xp.owns(got)
    assert got.dtype == xp.dtype("float64")
    with mpmath.workdps(40):
        exact = [[float(2 * mpmath.pi / mpmath.mpf(v)) for v in row] for row in lengths]
    np.testing.assert_allclose(xp.host(got), exact, rtol=3e-16)


def test_jax_traces_wavelengths_and_xpos():
    lib = library("jax")
    import jax

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
    assert xp.owns(got)
    assert got.dtype == xp.dtype("float64")
    power = (positions - options.get("centre", 0.0)) / options.get("scale_base", 512.0)
    np.testing.assert_allclose(xp.host(got), zeta(4) ** power[..., None], rtol=1e-13)


def test_xpos_is_1_at_its_centre_and_has_the_shape_of_the_positions():
    assert xpos_scales(3.5, 4, centre=3.5).tolist() == [1.0] * 4
    assert xpos_scales(np.zeros((2, 0)), 4).shape == (2, 0, 4)
    assert xpos_scales([1, 2], 0).shape == (2, 0)


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
    other = rfrope.rotate(
        k, n, w, pairing=pairing, scale=1.0 / xpos_scales(n, 6, centre=centre + 20.0, scale_base=50.0)
    )
    assert np.dot(xp.host(turned_q), other) != pytest.approx(expected, rel=1e-3), "another centre is another score"


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_xpos_reaches_to_565_scale_bases_and_no_further(side):
    edge = side * 565.0
    scales = xpos_scales([edge], 3, scale_base=1.0)
    assert np.isfinite(scales).all()
    assert (scales > 0.0).all()
    assert np.isfinite(1.0 / scales).all()
    with pytest.raises(ValueError, match=r"positions holds NaN or infinity, or numbers more than 565 \* 1.0 from 0.0"):
        xpos_scales([1.001 * edge], 3, scale_base=1.0)


def test_without_float64_they_are_float32():
    lib = library("jax")
    import jax

    disabled = getattr(jax, "enable_x64", None)
    with disabled(False) if disabled is not None else contextlib.nullcontext():
        for made in (from_wavelengths(lib([2.0], "float32")), xpos_scales(lib([100], "int32"), 3)):
            assert made.dtype == (lib.dtype("float32") if disabled is not None else lib.dtype("float64"))
        np.testing.assert_allclose(xpos_scales(lib([100], "int32"), 3), zeta(3)[None] ** (100 / 512), rtol=1e-6)


# -- other people's outputs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n_blocks", "base"), [("llama2_start_pos_cached", 64, 10_000.0), ("llama3_theta5e5", 64, 500_000.0)]
)
def test_meta_llama_by_its_base(cases, name, n_blocks, base):
    """Published Llama functions, executed: their rotations from the base alone."""
    told = json.loads((cases / f"03_meta_complex/{name}.json").read_text())
    with np.load(cases / f"03_meta_complex/{name}.npz", allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    w = geometric(n_blocks, base=base)
    np.testing.assert_allclose(w, arrays["freqs"], rtol=1e-14)
    for key in ("xq", "xk"):
        got = rfrope.rotate(arrays[key], arrays["positions"][:, None], w, pairing="interleaved")
        np.testing.assert_allclose(got, arrays[f"{key}_out"], rtol=0, atol=told["tolerance"]["xq_out"]["atol"])
        exact = rfrope.rotate(arrays[key].astype(np.float64), arrays["positions"][:, None], w, pairing="interleaved")
        np.testing.assert_allclose(exact, arrays[f"{key}_out_f64"], rtol=0, atol=1e-11)
