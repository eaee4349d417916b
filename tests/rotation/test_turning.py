"""Rotation, pairings, scores: laws, and other people's outputs."""

import contextlib
import json
import math
import re

import numpy as np
import pytest
from conftest import library, tuples
from rotation_calls import EPSILON, PAIRINGS, doubles, norms, numpy_dtype, tensor

import rfrope
from rfrope._core import dispatch
from rfrope._core.angles import PrecisionWarning


def reference(x, u, pairing="half", out_pairing=None, scale=1.0):
    """Rotate block by block, in complex numbers: a second implementation, written for clarity."""
    x, width = np.asarray(x, dtype=np.float64), 2 * u.shape[-1]
    shape, scale = np.broadcast_shapes(x.shape[:-1], u.shape[:-1]), np.broadcast_to(scale, u.shape)
    x, u = np.broadcast_to(x, (*shape, x.shape[-1])), np.broadcast_to(u, (*shape, u.shape[-1]))
    result = np.array(x)

    def places(i, which):
        return (i, i + width // 2) if which == "half" else (2 * i, 2 * i + 1)

    for i in range(width // 2):
        first, second = places(i, pairing)
        turned = scale[..., i] * np.exp(1j * u[..., i]) * (x[..., first] + 1j * x[..., second])
        first, second = places(i, out_pairing or pairing)
        result[..., first], result[..., second] = turned.real, turned.imag
    return result


# -- laws --------------------------------------------------------------------------------------------------------------

SHAPES = tuples("rotation/turning.json", "shapes")
SCALES = {"one": lambda u: 1.5, "for each": lambda u: np.random.default_rng(0).uniform(1.0, 2.0, u.shape)}


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("out_pairing", [None, *PAIRINGS])
@pytest.mark.parametrize("scale", SCALES)
def test_a_rotation_is_a_complex_multiplication_and_nothing_is_guessed(xp, shapes, pairing, out_pairing, scale, rng):
    """From positions, phases or tables; the inverse undoes shift and scale, too, and what does not turn stays."""
    x, p, w = (rng.standard_normal(shape) for shape in shapes[:3])
    p, shift, pairings = p * 100.0, rng.standard_normal(w.shape[-1 if w.ndim == 1 else -2]), (pairing, out_pairing)
    u = p[..., None] * w if w.ndim == 1 else p @ np.swapaxes(w, -1, -2)
    assert u.shape == shapes[3]
    np.testing.assert_allclose(xp.host(rfrope.rotation.phases(xp(p), xp(w))), u, rtol=1e-13, atol=1e-13)
    u, scale = u + shift, SCALES[scale](u)
    given, there = scale if isinstance(scale, float) else xp(scale), {"pairing": pairing, "out_pairing": out_pairing}
    table = rfrope.rotation_table(xp(p), xp(w), shift=xp(shift), scale=given)
    for found, wanted in zip(table, (scale * np.cos(u), scale * np.sin(u)), strict=True):
        np.testing.assert_allclose(xp.host(found), wanted, atol=1e-12)
    expected, back = reference(x, u, *pairings, scale), {"pairing": out_pairing or pairing, "out_pairing": pairing}
    turned = rfrope.rotate(xp(x), xp(p), xp(w), shift=xp(shift), scale=given, **there)
    by_phases = rfrope.rotate_by_phases(xp(x), xp(u), scale=given, **there)
    for got in (turned, by_phases, rfrope.rotate_by_table(xp(x), *table, **there)):
        assert xp.owns(got)
        host = xp.host(got)
        np.testing.assert_allclose(host, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(host[..., 2 * u.shape[-1] :], x[..., 2 * u.shape[-1] :])
    for got in (
        rfrope.rotate(turned, xp(p), xp(w), shift=xp(shift), scale=given, inverse=True, **back),
        rfrope.rotate_by_phases(by_phases, xp(u), scale=given, inverse=True, **back),
    ):
        np.testing.assert_allclose(xp.host(got), x, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("pairings", [("half", "half"), ("half", "interleaved"), ("interleaved", "interleaved")])
def test_as_many_rows_as_features_that_turn_or_stay(pairings, xp, rng):
    for rows in (2, 4, 6):
        x, u = rng.standard_normal((rows, 6)), np.arange(rows)[:, None] * np.array([1.0, 0.3])
        options = {"pairing": pairings[0], "out_pairing": pairings[1]}
        got = rfrope.rotate(xp(x), xp(np.arange(rows)), np.array([1.0, 0.3]), **options)
        np.testing.assert_allclose(xp.host(got), reference(x, u, *pairings), atol=1e-6)


@pytest.mark.parametrize(
    ("x_shape", "p_shape", "w_shape", "u_shape"),
    tuples("rotation/turning.json", "enlarging"),
)
def test_phases_may_not_enlarge_x(xp, x_shape, p_shape, w_shape, u_shape):
    """A forgotten axis would silently make every combination, for instance of nine heads with nine tokens."""
    x, p, w, u = (xp(np.ones(shape)) for shape in (x_shape, p_shape, w_shape, u_shape))
    shape = (*np.broadcast_shapes(x_shape[:-1], u_shape[:-1]), 6)
    for name, call in (
        ("positions", lambda x: rfrope.rotate(x, p, w)),
        ("phases", lambda x: rfrope.rotate_by_phases(x, u)),
        ("cos", lambda x: rfrope.rotate_by_table(x, u, u)),
    ):
        with pytest.raises(ValueError, match=re.escape(f"insert axes with None, as in {name}[:, None], or")) as caught:
            call(x)
        assert [one for one in (x_shape, u_shape, shape) if str(one) not in str(caught.value)] == []
        assert call(xp(np.ones(shape))).shape == shape


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_are_rotated_dot_products(xp, pairing, rng):
    q, k = rng.standard_normal((2, 3, 5, 10)), rng.standard_normal((2, 1, 7, 10))
    p_q, p_k, w, shift = np.arange(5), np.arange(7) - 3, rfrope.geometric(4), np.asarray([0.1, 1.0, -2.0, 0.0])
    got = rfrope.scores(xp(q), xp(k), xp(p_q), xp(p_k), xp(w), pairing=pairing, shift=xp(shift))
    turned_q = reference(q, p_q[:, None] * w, pairing)
    turned_k = reference(k, p_k[:, None] * w + shift, pairing)
    assert xp.owns(got)
    np.testing.assert_allclose(xp.host(got), turned_q @ np.swapaxes(turned_k, -1, -2), atol=1e-12)


# -- dtypes ------------------------------------------------------------------------------------------------------------


def test_heads_of_sines_are_a_shift_of_a_quarter(xp, rng):
    q, k = rng.standard_normal((2, 5, 16))
    omega, at = rfrope.geometric(8), np.arange(100, 105)
    turned = rfrope.rotate(xp(q), xp(at), xp(omega), shift=xp(np.full(8, -math.pi / 2)))
    scores = xp.host(turned) @ rfrope.rotate(k, at, omega).T
    a, b = rfrope.block_coefficients(q[:, None], k[None])
    u = (at[None, :] - at[:, None])[..., None] * omega
    np.testing.assert_allclose(scores, np.sum(b * np.cos(u) - a * np.sin(u), axis=-1), atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_narrow_features_are_within_one_unit_in_the_last_place(xp, dtype, pairing, rng):
    if dtype not in dir(xp.module) and not (dtype == "bfloat16" and xp.name == "numpy"):
        pytest.skip(f"{xp.name} has no {dtype}")
    x = rng.standard_normal((200, 16)).astype(numpy_dtype(dtype))
    p, w = rng.integers(0, 2**31, 200), rfrope.geometric(8)
    own = tensor if xp.name == "torch" else xp if dtype != "bfloat16" else xp.module.asarray
    got = rfrope.rotate(own(x), xp(p), xp(w), pairing=pairing)
    assert str(got.dtype).rpartition(".")[2] == dtype
    exact = rfrope.rotate(x.astype(np.float64), p, w, pairing=pairing)
    units = 2.0 if dispatch.uses_integer_phases(got) else 1.0  # cos and sin are float32 there
    host = doubles(got) if xp.name == "torch" else xp.host(got).astype(np.float64)
    error = np.abs(host - exact.astype(x.dtype).astype(np.float64))
    assert np.all(error <= units * EPSILON[dtype] * norms(exact, 8, pairing))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64"])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_positions_of_every_type_count_as_they_are(xp, dtype, shape):
    if xp.name == "array-api-strict" and dtype == "float16":
        pytest.skip("array-api-strict has no float16")
    p, w, x = np.full(shape, 3, dtype=dtype), rfrope.geometric(2), np.ones((3, 4))
    unseen = dtype == "float16" and xp.name == "dask"  # nobody looks at them: they may be beyond 2048
    with pytest.warns(PrecisionWarning, match="positions has dtype float16") if unseen else contextlib.nullcontext():
        got = xp.host(rfrope.rotate(xp(x), xp(p), xp(w)))
    expected = xp.host(rfrope.rotate(xp(x), xp(p.astype(np.float64)), xp(w)))
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(got, rfrope.rotate(x, p.astype(np.float64), w), rtol=0, atol=1e-15)


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 8), ("float16", 11)])
@pytest.mark.parametrize("sign", [1, -1])
def test_from_where_on_frequencies_of_16_bits_warn(dtype, bits, sign, torch):
    """Half a unit of the last place of the fastest frequency, times the farthest position, is above 0.05 radians."""
    narrow = torch.tensor([1.0, 0.25], dtype=getattr(torch, dtype))
    last = int(0.05 / 2.0**-bits)  # the last whole position below the bound
    x = torch.ones(2, 4)
    for omega in (narrow, -narrow):
        rfrope.rotate(x, torch.tensor([0, sign * last]), omega)
        with pytest.warns(UserWarning, match=f"at positions up to {last + 1} phases may be off by 0.05"):
            rfrope.rotate(x, torch.tensor([0, sign * (last + 1)]), omega)
    for rows, blocks in ((0, 2), (3, 0)):  # nothing warns of nothing
        empty = rfrope.rotate(torch.ones(rows, 4), torch.arange(1000, 1000 + rows), narrow[:blocks])
        assert empty.shape == (rows, 4)


def test_float16_of_numpy_warns_too():
    with pytest.warns(UserWarning, match="frequencies has dtype float16: at q_positions up to 100000"):
        rfrope.scores(np.ones((1, 4)), np.ones((1, 4)), [100000], [0], np.array([0.5, 0.1], dtype=np.float16))


@pytest.mark.parametrize("constant", ["cos", "sin", "both"])
def test_tables_of_numpy_fit_beside_any_library(constant, xp, rng):
    x, phases = rng.standard_normal((3, 8)), rng.standard_normal((3, 4))
    tables = {"cos": np.cos(phases), "sin": np.sin(phases)}
    given = {name: value if constant in (name, "both") else xp(value) for name, value in tables.items()}
    got = rfrope.rotate_by_table(xp(x), **given)
    assert xp.owns(got)
    np.testing.assert_allclose(xp.host(got), rfrope.rotate_by_phases(x, phases), atol=1e-6)


# -- out ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("out_pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("blocks", [4, 3])
def test_out_and_in_place(xp, pairing, out_pairing, dtype, blocks, rng):
    x, p, w = rng.standard_normal((3, 8)).astype(dtype), xp([1, 2, 3]), xp(rfrope.geometric(blocks))
    options = {"pairing": pairing, "out_pairing": out_pairing}
    expected = xp.host(rfrope.rotate(xp(x), p, w, **options))
    if not xp.writable:
        error, words = (TypeError, "out") if xp.lazy else (ValueError, "out is read-only")
        with pytest.raises(error, match=words):
            rfrope.rotate(xp(x), p, w, out=xp(x), **options)
        return
    same = xp(x)
    for given, out in ((xp(x), xp(np.full_like(x, 7.0))), (same, same)):
        assert rfrope.rotate(given, p, w, out=out, **options) is out
        np.testing.assert_array_equal(xp.host(out), expected)


def test_out_and_gradients_exclude_each_other_and_nothing_is_written(torch):
    x, p, w = torch.ones(3, 8, dtype=torch.float64), torch.arange(3), torch.ones(4, dtype=torch.float64)
    for name in ("x", "frequencies"):
        arguments = {"x": x.clone(), "positions": p, "frequencies": w.clone()}
        arguments[name].requires_grad_()
        out = torch.zeros(3, 8, dtype=torch.float64)
        with pytest.raises(TypeError, match="out was given, but gradients"):
            rfrope.rotate(**arguments, out=out)
        assert not out.requires_grad
        assert not out.any()
        with torch.no_grad():
            rfrope.rotate(**arguments, out=out)
        assert out.any()


OPERANDS = {  # with p, of which there is one for each row, or one for each block; `at` are positions, `w` frequencies
    "positions": lambda x, p, at, w, out: rfrope.rotate(x, p, w, out=out),
    "frequencies": lambda x, p, at, w, out: rfrope.rotate(x, at, p, out=out),
    "shift": lambda x, p, at, w, out: rfrope.rotate(x, at, w, shift=p, out=out),
    "scale": lambda x, p, at, w, out: rfrope.rotate(x, at, w, scale=p, out=out),
    "phases": lambda x, p, at, w, out: rfrope.rotate_by_phases(x, p, out=out),
    "cos": lambda x, p, at, w, out: rfrope.rotate_by_table(x, p, w, out=out),
    "sin": lambda x, p, at, w, out: rfrope.rotate_by_table(x, w, p, out=out),
}


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("rows", [3, 5000])
def test_out_may_lie_over_what_turns(operand, name, rows, rng):
    """It is read before it is written over, also where loops go on to another tile, or a layout was met before."""
    lib, length = library(name), rows if operand == "positions" else 4
    x, place = rng.standard_normal((rows, 8)), rng.uniform(0.1, 2.0, 8 * rows)
    positions, omega = rng.standard_normal(rows), rng.standard_normal(4)
    for start in {0, 8, 3, 8 * rows - length}:
        at, expected = slice(start, start + length), None
        for _ in range(4):  # the first time out lies apart
            features, flat, other, *given = (lib(np.array(one)) for one in (x, place, place, positions, omega))
            got = OPERANDS[operand](features, (other if expected is None else flat)[at], *given, flat.reshape(rows, 8))
            expected = lib.host(got) if expected is None else expected
            np.testing.assert_array_equal(lib.host(got), expected)


# -- other people's outputs ----------------------------------------------------------------------------------------------


def load(cases, name):
    told = json.loads((cases / f"{name}.json").read_text())
    with np.load(cases / f"{name}.npz", allow_pickle=False) as archive:
        return told, {key: archive[key] for key in archive.files}


META = ("llama2_small_dim6", "llama2_start0", "llama2_start_pos_cached")
META += ("llama3_theta5e5", "llama3_1_scaled", "llama4_scaled16")
VIT = ("axial_deit_s_14x14", "axial_hd32_8x8", "axial_rect_7x4", "mixed_deit_s_10x10", "mixed_no_rotate_5x3")


LLAMA = {"llama2_start_pos_cached": 10_000.0, "llama3_theta5e5": 500_000.0}  # whose frequencies their base gives


@pytest.mark.parametrize("name", [*(f"03_meta_complex/{one}" for one in META), *(f"05_rope_vit/{one}" for one in VIT)])
def test_published_functions_executed(cases, name):
    """Meta's Llama, (batch, tokens, heads, features); axial and mixed sets of pictures, (batch, heads, tokens, features).

    The mixed ones drew their angles in float32, and no angle makes sin(pi/2 + angle) exact.
    """
    told, arrays = load(cases, name)
    meta, kind = "freqs" in arrays, name.partition("/")[2]
    positions = arrays["positions"][:, None] if meta else arrays["positions"]  # one axis for the heads
    w = arrays["freqs"] if meta else np.swapaxes(arrays["W"], -1, -2)  # (heads, 2, D) -> (heads, D, 2)
    width, base = (told["params"].get(one) for one in ("head_dim", "theta"))
    if kind in LLAMA:
        np.testing.assert_allclose(rfrope.geometric(64, base=LLAMA[kind]), w, rtol=1e-14)
    elif "axial" in kind:
        ladder = rfrope.geometric(width // 4, base=base)
        np.testing.assert_allclose(rfrope.axial(ladder, ladder).frequencies, w, rtol=1e-14)
    elif "mixed" in kind:
        made = rfrope.mixed(width // 2, np.arctan2(w[:, 0, 1], w[:, 0, 0]), base=base).frequencies
        np.testing.assert_allclose(made, w, rtol=0, atol=3e-7)
    first = "xq" if meta else "q"
    for key in (first, first.replace("q", "k")):
        exact = rfrope.rotate(arrays[key].astype(np.float64), positions, w, pairing="interleaved")
        np.testing.assert_allclose(exact, arrays[f"{key}_out_f64"], rtol=0, atol=1e-11)
        got = rfrope.rotate(arrays[key], positions, w, pairing="interleaved")
        tolerance = told["tolerance"][f"{first}_out"]["atol"]
        np.testing.assert_allclose(got, arrays[f"{key}_out"], rtol=0, atol=tolerance)


ORT = "ort_interleaved_small_llama_msft"


@pytest.mark.parametrize(
    ("name", "frequencies"),
    [
        ("keras_hub_flax_positions_2d", rfrope.geometric(8)),
        ("keras_hub_linear_x2", rfrope.geometric(2) / 2.0),
        ("keras_hub_linear_x5_start12", rfrope.geometric(2) / 5.0),
        ("keras_hub_ones_pos3_dim6", rfrope.geometric(3)),
        (ORT, rfrope.geometric(2)),
    ],
)
def test_literals_of_other_projects(cases, name, frequencies):
    """Numbers printed in other projects' tests: (batch, tokens, heads, features)."""
    told, arrays = load(cases, f"10_upstream_literals/{name}")
    positions = arrays["positions"][..., None]  # one axis for the heads
    pairing = told["params"]["pair_layout"]
    got = rfrope.rotate(arrays["x"], positions, frequencies, pairing=pairing)
    tolerance = {"rtol": 0} | told["tolerance"]["y"]
    np.testing.assert_allclose(got, arrays["y"], rtol=tolerance["rtol"], atol=tolerance["atol"])
    if name == ORT:  # whose cache is a table
        cos, sin = (arrays[f"{one}_cache"][arrays["positions"]][:, None] for one in ("cos", "sin"))
        got = rfrope.rotate_by_table(arrays["x"], cos, sin, pairing=pairing)
        np.testing.assert_allclose(got, arrays["y"], atol=tolerance["atol"])


def test_previous_token_head_of_seed_003(cases):
    _, arrays = load(cases, "10_upstream_literals/seed003_previous_token_head")
    n, p = len(arrays["positions"]), arrays["positions"]
    q, k = (np.broadcast_to(arrays[f"{name}_content"], (n, 64)) for name in "qk")
    got = rfrope.scores(q, k, p, p, arrays["theta"], pairing="interleaved")
    np.testing.assert_allclose(got, arrays["scores"], atol=1e-11)
