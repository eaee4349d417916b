"""Blocks of features: the two pairings, complex numbers, and the coefficients of a score."""

import numpy as np
import pytest

import rfrope

PAIRINGS = ("half", "interleaved")


def test_convert_pairing_of_features_and_weight_rows(xp, rng):
    for pairings, order in ((PAIRINGS, [0, 3, 1, 4, 2, 5]), (PAIRINGS[::-1], [0, 2, 4, 1, 3, 5])):
        np.testing.assert_array_equal(xp.host(rfrope.convert_pairing(xp([0, 1, 2, 3, 4, 5]), *pairings)), order)
    weight, x = rng.standard_normal((2, 6, 4)), rng.standard_normal(4)
    converted = xp.host(rfrope.convert_pairing(xp(weight), "half", "interleaved", axis=1))
    features = xp.host(rfrope.convert_pairing(xp(weight @ x), "half", "interleaved"))
    np.testing.assert_allclose(converted @ x, features, atol=1e-14)


def test_complex_view_turns_by_multiplication(xp, rng):
    x, p, w = rng.standard_normal((3, 8)), np.asarray([2, -5, 40]), rfrope.geometric(4)
    for pairing in PAIRINGS:
        z = rfrope.rotation.to_complex(xp(x), pairing=pairing)
        turned = xp.host(z) * np.exp(1j * p[:, None] * w)
        found = rfrope.rotation.to_complex(rfrope.rotate(xp(x), xp(p), xp(w), pairing=pairing), pairing=pairing)
        np.testing.assert_allclose(xp.host(found), turned, atol=1e-13)
        np.testing.assert_array_equal(xp.host(rfrope.rotation.from_complex(z, pairing=pairing)), x)


def test_complex_view_keeps_infinities_apart():
    z = rfrope.rotation.to_complex(np.asarray([1.0, np.inf]))
    assert (z[0].real, z[0].imag) == (1.0, np.inf)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_score_is_the_sum_of_its_coefficients_exactly(xp, pairing, ndim, rng):
    """S = sum A cos u + B sin u, u = (key - query) . omega; a flipped sign of J must not pass."""
    w = rfrope.sample(f"gaussian(scale=3, ndim={ndim})", 8, rng=1)
    p_q, p_k, (q, k) = *rng.uniform(-5, 5, (2, *(() if ndim == 1 else (ndim,)))), rng.standard_normal((2, 16))
    a, b = (xp.host(v) for v in rfrope.block_coefficients(xp(q), xp(k), pairing=pairing))
    u = (p_k - p_q) * w if ndim == 1 else w @ (p_k - p_q)
    rotated = [xp.host(rfrope.rotate(xp(v), xp(p), xp(w), pairing=pairing)) for v, p in ((q, p_q), (k, p_k))]
    assert np.dot(*rotated) == pytest.approx(np.sum(a * np.cos(u) + b * np.sin(u)), abs=1e-12)
    assert np.dot(*rotated) != pytest.approx(np.sum(a * np.cos(u) - b * np.sin(u)), abs=1e-3)


def test_rotation_is_counter_clockwise_and_the_coefficients_have_the_stated_signs():
    np.testing.assert_allclose(rfrope.rotate(np.asarray([1.0, 0.0]), 1, [np.pi / 2]), [0.0, 1.0], atol=1e-15)
    a, b = rfrope.block_coefficients([1.0, 2.0], [3.0, 5.0])
    assert (a[0], b[0]) == (1 * 3 + 2 * 5, 2 * 3 - 1 * 5)


def test_meta_to_hugging_face_bridge(cases):
    with np.load(cases / "03_meta_complex/layout_bridge_interleaved_half.npz", allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    x = arrays["x_interleaved"]
    half = rfrope.convert_pairing(x, "interleaved", "half")
    np.testing.assert_array_equal(half, x[..., arrays["perm"]])
    positions, w = arrays["positions"][:, None], rfrope.geometric(64)
    for given, pairings in ((half, ("half",) * 2), (x, ("interleaved",) * 2), (x, ("interleaved", "half"))):
        turned = rfrope.rotate(given, positions, w, pairing=pairings[0], out_pairing=pairings[1])
        np.testing.assert_allclose(turned, arrays[f"y_{pairings[1]}"], atol=1e-5)


@pytest.mark.parametrize("width", [2, 4])
def test_features_beyond_a_width_stay_where_they_are(width, rng):
    x = rng.standard_normal((3, 6))
    found = rfrope.convert_pairing(x, "half", "interleaved", width=width)
    np.testing.assert_array_equal(found[:, width:], x[:, width:])
    np.testing.assert_array_equal(found[:, :width], rfrope.convert_pairing(x[:, :width], "half", "interleaved"))
