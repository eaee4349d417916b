"""Rotation, pairings, scores: laws, other people's outputs, and bad input."""

from __future__ import annotations

import contextlib
import json
import re

import numpy as np
import pytest
from campaign import campaign
from conftest import library

import rfrope
from rfrope._core import dispatch
from rfrope._core.angles import PrecisionWarning

PAIRINGS = ("half", "interleaved")


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def reference(x, u, pairing="half", out_pairing=None, scale=1.0):
    """Rotate block by block, in complex numbers: a second implementation, written for clarity."""
    x, width = np.asarray(x, dtype=np.float64), 2 * u.shape[-1]
    shape = np.broadcast_shapes(x.shape[:-1], u.shape[:-1])
    x, u = np.broadcast_to(x, (*shape, x.shape[-1])), np.broadcast_to(u, (*shape, u.shape[-1]))
    result = np.array(x)

    def places(i, which):
        return (i, i + width // 2) if which == "half" else (2 * i, 2 * i + 1)

    for i in range(width // 2):
        first, second = places(i, pairing)
        turned = scale * np.exp(1j * u[..., i]) * (x[..., first] + 1j * x[..., second])
        first, second = places(i, out_pairing or pairing)
        result[..., first], result[..., second] = turned.real, turned.imag
    return result


# -- laws --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("out_pairing", [None, *PAIRINGS])
@pytest.mark.parametrize("blocks", [0, 1, 3, 4])
def test_rotate_is_a_complex_multiplication(xp, pairing, out_pairing, blocks, rng):
    x, p, w = rng.standard_normal((2, 5, 8)), np.asarray([-3, 0, 7, 100, 12]), rng.standard_normal(blocks)
    got = rfrope.rotate(xp(x), xp(p), xp(w), pairing=pairing, out_pairing=out_pairing, scale=1.5)
    assert xp.owns(got)
    expected = reference(x, p[:, None] * w, pairing, out_pairing, scale=1.5)
    np.testing.assert_allclose(xp.host(got), expected, rtol=1e-12, atol=1e-12)


@campaign
@pytest.mark.parametrize(
    ("x_shape", "p_shape", "w_shape", "u_shape"),
    [
        ((6,), (), (3,), (3,)),
        ((4, 6), (4,), (3,), (4, 3)),
        ((2, 5, 6), (5,), (3,), (5, 3)),
        ((2, 7, 5, 6), (2, 1, 5), (3,), (2, 1, 5, 3)),
        ((5, 6), (5, 2), (3, 2), (5, 3)),
        ((6,), (2,), (3, 2), (3,)),
        ((2, 6), (2,), (2, 3, 2), (2, 3)),
        ((2, 4, 5, 6), (5, 1), (4, 3, 1), (4, 5, 3)),
        ((2, 4, 5, 6), (2, 1, 5, 3), (4, 3, 3), (2, 4, 5, 3)),
        ((2, 4, 5, 6), (5,), (3,), (5, 3)),
        ((2, 4, 5, 6), (5, 3), (2, 1, 3, 3), (2, 1, 5, 3)),
        ((0, 6), (0,), (3,), (0, 3)),
        ((5, 0), (5,), (0,), (5, 0)),
    ],
)
def test_shapes_follow_matmul_and_nothing_is_guessed(xp, x_shape, p_shape, w_shape, u_shape, rng):
    x, p, w = (rng.standard_normal(s) for s in (x_shape, p_shape, w_shape))
    u = p[..., None] * w if w.ndim == 1 else p @ np.swapaxes(w, -1, -2)
    assert u.shape == u_shape
    np.testing.assert_allclose(xp.host(rfrope.rotation.phases(xp(p), xp(w))), u, rtol=1e-13, atol=1e-13)
    got = xp.host(rfrope.rotate(xp(x), xp(p), xp(w)))
    np.testing.assert_allclose(got, reference(x, u), rtol=1e-12, atol=1e-12)
    cos, sin = rfrope.rotation_table(xp(p), xp(w))
    np.testing.assert_allclose(xp.host(cos), np.cos(u), atol=1e-13)
    np.testing.assert_allclose(xp.host(rfrope.rotate_by_table(xp(x), cos, sin)), got, atol=1e-13)
    np.testing.assert_allclose(xp.host(rfrope.rotate_by_phases(xp(x), xp(u))), got, atol=1e-12)


@pytest.mark.parametrize(
    ("x_shape", "p_shape", "w_shape", "u_shape"),
    [
        ((6,), (4,), (3,), (4, 3)),
        ((6,), (1,), (3,), (1, 3)),
        ((1, 6), (4,), (3,), (4, 3)),
        ((1, 9, 1, 6), (9, 1), (9, 3, 1), (9, 9, 3)),
        ((5, 1, 6), (2, 1, 5), (3,), (2, 1, 5, 3)),
    ],
)
def test_phases_may_not_enlarge_x(xp, x_shape, p_shape, w_shape, u_shape):
    """A forgotten axis would silently make every combination, for instance of nine heads with nine tokens."""
    x, p, w, u = xp(np.ones(x_shape)), xp(np.ones(p_shape)), xp(np.ones(w_shape)), xp(np.ones(u_shape))
    for name, call in (
        ("positions", lambda x: rfrope.rotate(x, p, w)),
        ("phases", lambda x: rfrope.rotate_by_phases(x, u)),
        ("cos", lambda x: rfrope.rotate_by_table(x, u, u)),
    ):
        with pytest.raises(ValueError, match=re.escape(f"insert axes with None, as in {name}[:, None], or")) as caught:
            call(x)
        for shape in (x_shape, u_shape, (*np.broadcast_shapes(x_shape[:-1], u_shape[:-1]), 6)):
            assert str(shape) in str(caught.value)
        outer = np.broadcast_to(np.ones(x_shape), (*np.broadcast_shapes(x_shape[:-1], u_shape[:-1]), 6))
        assert call(xp(outer)).shape == outer.shape


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_score_depends_on_the_lag_alone(pairing, rng):
    q, k, w = rng.standard_normal(16), rng.standard_normal(16), rfrope.geometric(8)
    for start in (0, 5, -131072, 2**40):
        turned_q = rfrope.rotate(q, start, w, pairing=pairing)
        turned_k = rfrope.rotate(k, start - 17, w, pairing=pairing)
        expected = np.dot(q, rfrope.rotate(k, -17, w, pairing=pairing))
        assert np.dot(turned_q, turned_k) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert np.dot(q, rfrope.rotate(k, 17, w, pairing=pairing)) != pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("out_pairing", PAIRINGS)
def test_inverse_undoes_shift_and_scale_too(xp, pairing, out_pairing, rng):
    x, p, w = rng.standard_normal((3, 5, 10)), xp([9, 1, 4, -2, 10**6]), xp(rfrope.geometric(4))
    options = {"shift": xp([0.1, 0.2, 0.3, 0.4]), "scale": 1.7}
    turned = rfrope.rotate(xp(x), p, w, pairing=pairing, out_pairing=out_pairing, **options)
    back = rfrope.rotate(turned, p, w, pairing=out_pairing, out_pairing=pairing, inverse=True, **options)
    np.testing.assert_allclose(xp.host(back), x, rtol=1e-13, atol=1e-13)
    u = xp(rng.standard_normal((5, 4)))
    back = rfrope.rotate_by_phases(rfrope.rotate_by_phases(xp(x), u, scale=2.0), u, scale=2.0, inverse=True)
    np.testing.assert_allclose(xp.host(back), x, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_are_rotated_dot_products(xp, pairing, rng):
    q, k = rng.standard_normal((2, 3, 5, 10)), rng.standard_normal((2, 1, 7, 10))
    p_q, p_k, w, shift = np.arange(5), np.arange(7) - 3, rfrope.geometric(4), np.asarray([0.1, 1.0, -2.0, 0.0])
    got = rfrope.scores(xp(q), xp(k), xp(p_q), xp(p_k), xp(w), pairing=pairing, shift=xp(shift))
    turned_q = reference(q, p_q[:, None] * w, pairing)
    turned_k = reference(k, p_k[:, None] * w + shift, pairing)
    assert xp.owns(got)
    np.testing.assert_allclose(xp.host(got), turned_q @ np.swapaxes(turned_k, -1, -2), atol=1e-12)


def test_shift_moves_the_peak_to_its_offset():
    w, offset = rfrope.geometric(16), -3
    v = np.tile([1.0, 0.0], 16)[None, :].repeat(20, axis=0)
    s = rfrope.scores(v, v, np.arange(20), np.arange(20), w, pairing="interleaved", shift=-offset * w)
    rows = np.arange(5, 20)
    np.testing.assert_array_equal(np.argmax(s[rows], axis=1), rows + offset)


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_narrow_features_are_within_one_unit_in_the_last_place(xp, dtype, pairing, rng):
    if xp.name == "array-api-strict" and dtype == "float16":
        pytest.skip("array-api-strict has no float16")
    x = rng.standard_normal((200, 16)).astype(dtype)
    p, w = rng.integers(0, 2**31, 200), rfrope.geometric(8)
    got = rfrope.rotate(xp(x), xp(p), xp(w), pairing=pairing)
    assert str(got.dtype).rpartition(".")[2] == dtype
    exact = rfrope.rotate(x.astype(np.float64), p, w, pairing=pairing)
    blocks = rfrope.rotation.to_complex(exact, pairing=pairing)
    units = 2.0 if dispatch.takes_words(got) else 1.0  # cos and sin are float32 there
    unit = units * np.finfo(dtype).eps * np.abs(blocks)
    error = rfrope.rotation.to_complex(xp.host(got).astype(np.float64) - exact.astype(dtype), pairing=pairing)
    assert np.all(np.abs(error.real) <= unit)
    assert np.all(np.abs(error.imag) <= unit)


def test_bfloat16_of_ml_dtypes_and_torch(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x, p, w = rng.standard_normal((20, 8)), np.arange(20) * 1000, rfrope.geometric(4)
    narrow = x.astype(ml_dtypes.bfloat16)
    expected = rfrope.rotate(narrow.astype(np.float64), p, w)
    got = rfrope.rotate(narrow, p, w)
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(got.astype(np.float64), expected, atol=2.0**-8 * np.max(np.abs(x)))
    torch = library("torch").module
    tensor = rfrope.rotate(torch.asarray(x).to(torch.bfloat16), torch.asarray(p), torch.asarray(w))
    assert tensor.dtype == torch.bfloat16
    np.testing.assert_array_equal(tensor.float().numpy(), got.astype(np.float32))


def test_scale_may_vary_by_position_and_block(xp, rng):
    x, p, w, s = rng.standard_normal((3, 4)), np.arange(3), np.asarray([1.0, 0.1]), rng.uniform(1, 2, (3, 2))
    got = rfrope.rotate(xp(x), xp(p), xp(w), scale=xp(s))
    np.testing.assert_allclose(xp.host(got), reference(x, p[:, None] * w) * np.tile(s, 2), rtol=1e-13)
    back = rfrope.rotate(got, xp(p), xp(w), scale=xp(s), inverse=True)
    np.testing.assert_allclose(xp.host(back), x, rtol=1e-13)


def test_nan_stays_in_its_block():
    x = np.asarray([[1.0, np.nan, 2.0, 3.0]])
    np.testing.assert_array_equal(np.isnan(rfrope.rotate(x, [1], [1.0, 0.5])), [[False, True, False, True]])


# -- out ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("out_pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("blocks", [4, 3])
def test_out_and_in_place(xp, pairing, out_pairing, dtype, blocks, rng):
    x, p, w = rng.standard_normal((3, 8)).astype(dtype), xp([1, 2, 3]), xp(rfrope.geometric(blocks))
    options = {"pairing": pairing, "out_pairing": out_pairing}
    expected = xp.host(rfrope.rotate(xp(x), p, w, **options))
    if xp.lazy:
        with pytest.raises(TypeError, match="out"):
            rfrope.rotate(xp(x), p, w, out=xp(x), **options)
        return
    if not xp.writable:
        with pytest.raises(ValueError, match="out is read-only"):
            rfrope.rotate(xp(x), p, w, out=xp(x), **options)
        return
    out = xp(np.full_like(x, 7.0))
    assert rfrope.rotate(xp(x), p, w, out=out, **options) is out
    np.testing.assert_array_equal(xp.host(out), expected)
    same = xp(x)
    assert rfrope.rotate(same, p, w, out=same, **options) is same
    np.testing.assert_array_equal(xp.host(same), expected)


# -- bad input: what was wrong, what came, what was expected -------------------------------------------------------------

X, P, W = np.ones((3, 8)), np.arange(3), np.asarray([1.0, 0.5])
LONG = np.ones((4, 8))

BAD_ROTATE = {
    "odd width": (ValueError, r"x has shape \(3, 7\); expected .*even", {"x": np.ones((3, 7))}),
    "too many blocks": (ValueError, r"frequencies has D = 5 blocks, .*x has shape \(3, 8\); expected D <= 4", {"frequencies": np.ones(5)}),
    "no broadcast": (ValueError, r"x and the phases from positions do not broadcast: \(3,\) of x and \(4,\)", {"positions": np.arange(4)}),
    "integer x": (TypeError, "x has dtype int64; expected real floating", {"x": np.ones((3, 8), int)}),
    "complex x": (TypeError, "x has dtype complex128", {"x": np.ones((3, 8), complex)}),
    "text for x": (TypeError, "x has type builtins.str", {"x": "abc"}),
    "ragged list": (TypeError, "x is .*rectangular", {"x": [[1.0, 2.0], [1.0]]}),
    "NaN frequency": (ValueError, "frequencies holds NaN or infinity", {"frequencies": np.asarray([1.0, np.nan])}),
    "NaN position": (ValueError, "positions holds NaN", {"positions": np.asarray([0.0, np.nan, 1.0])}),
    "scalar frequency": (ValueError, "frequencies is a single number", {"frequencies": 1.0}),
    "axes differ": (ValueError, r"positions has shape \(3, 2\).*expected positions of shape \(..., 3\)", {"positions": np.ones((3, 2)), "frequencies": np.ones((2, 3))}),
    "per-head needs an axis": (ValueError, r"use positions\[..., None\]", {"frequencies": np.ones((3, 2, 1))}),
    "heads do not broadcast": (ValueError, "positions and frequencies do not broadcast", {"positions": np.ones((5, 3, 1)), "frequencies": np.ones((4, 2, 1))}),
    "pairing": (ValueError, "pairing is 'neox'; expected one of 'half', 'interleaved'", {"pairing": "neox"}),
    "out_pairing": (ValueError, "out_pairing is 'meta'", {"out_pairing": "meta"}),
    "shift": (ValueError, "shift and the phases from .* do not broadcast", {"shift": np.ones(3)}),
    "NaN shift": (ValueError, "shift holds NaN", {"shift": np.asarray([0.0, np.nan])}),
    "scale shape": (ValueError, "scale and the phases from .* do not broadcast", {"scale": np.ones(3)}),
    "scale NaN": (ValueError, "scale is nan; expected a positive finite number", {"scale": np.nan}),
    "scale array": (ValueError, "scale is .*expected positive", {"scale": np.asarray([1.0, -1.0])}),
    "scale bool": (TypeError, "scale is True; expected a positive number", {"scale": True}),
    "inverse": (TypeError, "inverse is 'no'", {"inverse": "no"}),
    "huge position": (ValueError, r"positions holds .*above 2\*\*500", {"positions": np.asarray([1e200, 0.0, 1.0])}),
    "masked x": (TypeError, "x is a numpy MaskedArray", {"x": np.ma.ones((3, 8))}),
    "scale zero": (ValueError, "scale is 0", {"scale": 0.0}),
    "out shape": (ValueError, r"out has shape \(3, 6\); expected \(3, 8\)", {"out": np.ones((3, 6))}),
    "out dtype": (TypeError, r"out has dtype dtype\('float32'\); expected the dtype of x, dtype\('float64'\)", {"out": np.ones((3, 8), np.float32)}),
    "out broadcast": (ValueError, "out is read-only, or some of its elements share memory", {"out": np.lib.stride_tricks.as_strided(np.ones(8), (3, 8), (0, 8))}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "changed"), BAD_ROTATE.values(), ids=BAD_ROTATE)
def test_bad_input_to_rotate_is_named(kind, message, changed):
    arguments = {"x": X, "positions": P, "frequencies": W} | changed
    with pytest.raises(kind, match=message):
        rfrope.rotate(**arguments)


def test_out_is_untouched_by_a_refused_call():
    out = np.full((3, 8), 5.0)
    with pytest.raises(ValueError, match="frequencies"):
        rfrope.rotate(X, P, [np.nan], out=out)
    np.testing.assert_array_equal(out, 5.0)


BAD_OTHERS = {
    "k positions": (ValueError, "k and the phases from k_positions do not broadcast", lambda: rfrope.scores(X, X, P, P[:2], W)),
    "q positions": (ValueError, "q_positions holds NaN", lambda: rfrope.scores(X, X, [0, 1, np.nan], P, W)),
    "overlap": (ValueError, "out overlaps x in part", lambda: rfrope.rotate(LONG[:3], P, W, out=LONG[1:])),
    "dtype": (TypeError, r"dtype is 'int32'; expected a real floating type of", lambda: rfrope.rotation_table(P, W, dtype="int32")),
    "phases scalar": (ValueError, "phases is a single number", lambda: rfrope.rotate_by_phases(X, 1.0)),
    "phases width": (ValueError, "phases has D = 5", lambda: rfrope.rotate_by_phases(X, np.ones(5))),
    "table shapes": (ValueError, "cos has shape", lambda: rfrope.rotate_by_table(X, np.ones((3, 2)), np.ones((3, 1)))),
    "doubled table": (ValueError, "pass the first half", lambda: rfrope.rotate_by_table(X, np.ones((3, 8)), np.ones((3, 8)))),
    "convert pairing": (ValueError, "target is 'gptj'", lambda: rfrope.convert_pairing(X, "half", "gptj")),
    "convert axis": (ValueError, r"axis is 2; expected an axis of x, whose shape is \(3, 8\)", lambda: rfrope.convert_pairing(X, "half", "half", axis=2)),
    "convert fraction": (ValueError, "axis is 0.5; expected an axis of x", lambda: rfrope.convert_pairing(X, "half", "half", axis=0.5)),
    "convert odd": (ValueError, r"x has shape \(3, 8\); expected an even number of features along axis 0", lambda: rfrope.convert_pairing(X, "half", "interleaved", axis=0)),
    "from_complex real": (TypeError, "z has dtype float64", lambda: rfrope.rotation.from_complex(X)),
    "q and k width": (ValueError, r"q has shape \(3, 8\) but k has \(3, 6\)", lambda: rfrope.scores(X, X[:, :6], P, P, W)),
    "q and k dtype": (TypeError, "q has dtype float64 but k has float32", lambda: rfrope.block_coefficients(X, X.astype("f4"))),
    "q and k byte order": (TypeError, "q has dtype <f8 but k has >f8; expected", lambda: rfrope.scores(X.astype("<f8"), X.astype(">f8"), P, P, W)),
    "one vector": (ValueError, r"q has shape \(8,\); expected \(..., tokens, d\)", lambda: rfrope.scores(X[0], X, P, P, W)),
    "q and k shapes": (ValueError, "q and k do not broadcast", lambda: rfrope.block_coefficients(np.ones((2, 8)), X)),
    "sparse x": (TypeError, r"x is a tensor of layout torch.sparse_coo; expected a dense one: pass x.to_dense\(\)", lambda: rfrope.rotate(library("torch").module.eye(8).to_sparse(), P, W)),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), BAD_OTHERS.values(), ids=BAD_OTHERS)
def test_bad_input_elsewhere_is_named(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


# -- JAX transformations, torch.func and compile -------------------------------------------------------------------------


def test_jax_transformations(rng):
    lib = library("jax")
    import jax

    x, p, w = lib(rng.standard_normal((4, 3, 8))), lib([1, 2, 3]), lib(rfrope.geometric(3))
    expected = rfrope.rotate(np.asarray(x), np.asarray(p), np.asarray(w))
    np.testing.assert_allclose(jax.jit(rfrope.rotate)(x, p, w), expected, atol=1e-14)
    np.testing.assert_allclose(jax.vmap(rfrope.rotate, in_axes=(0, None, None))(x, p, w), expected, atol=1e-14)
    # a rotation is orthogonal: the gradient of y . g is the inverse rotation of g
    g = lib(rng.standard_normal(x.shape))
    gradient = jax.grad(lambda v: lib.module.sum(rfrope.rotate(v, p, w) * g))(x)
    np.testing.assert_allclose(gradient, rfrope.rotate(g, p, w, inverse=True), atol=1e-14)
    bad = jax.jit(rfrope.rotate)(x, p, w * float("nan"))
    assert np.isnan(np.asarray(bad)[..., :6]).all(), "what JAX can trace must not raise on values"


def test_dask_stays_lazy_and_chunked(rng):
    lib = library("dask")
    x = lib(rng.standard_normal((4, 6, 8)))
    turned = rfrope.rotate(x, lib(np.arange(6)), lib(rfrope.geometric(4)))
    assert turned.npartitions > 1


# -- torch: gradients, functional transforms, compilation ----------------------------------------------------------------


def test_out_and_gradients_exclude_each_other_and_nothing_is_written():
    torch = library("torch").module
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


@pytest.mark.parametrize("argument", ["x", "frequencies", "positions", "scale"])
def test_torch_vmap_over_any_argument(argument):
    torch = library("torch").module
    generator = torch.Generator().manual_seed(0)
    stacks = {
        "x": torch.rand(5, 3, 8, generator=generator, dtype=torch.float64),
        "positions": torch.rand(5, 3, generator=generator, dtype=torch.float64),
        "frequencies": torch.rand(5, 4, generator=generator, dtype=torch.float64),
        "scale": torch.rand(5, generator=generator, dtype=torch.float64) + 1.0,
    }
    fixed = {name: stack[0] for name, stack in stacks.items()}
    got = torch.func.vmap(lambda v: rfrope.rotate(**(fixed | {argument: v})))(stacks[argument])
    expected = torch.stack([rfrope.rotate(**(fixed | {argument: v})) for v in stacks[argument]])
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)


# -- other people's outputs ----------------------------------------------------------------------------------------------


def load(cases, name):
    told = json.loads((cases / f"{name}.json").read_text())
    with np.load(cases / f"{name}.npz", allow_pickle=False) as archive:
        return told, {key: archive[key] for key in archive.files}


META = [
    "llama2_small_dim6",
    "llama2_start0",
    "llama2_start_pos_cached",
    "llama3_theta5e5",
    "llama3_1_scaled",
    "llama4_scaled16",
]


@pytest.mark.parametrize("name", META)
def test_meta_llama(cases, name):
    """Published Llama functions, executed: (batch, tokens, heads, features), interleaved."""
    told, arrays = load(cases, f"03_meta_complex/{name}")
    positions = arrays["positions"][:, None]  # one axis for the heads
    for key in ("xq", "xk"):
        exact = rfrope.rotate(arrays[key].astype(np.float64), positions, arrays["freqs"], pairing="interleaved")
        np.testing.assert_allclose(exact, arrays[f"{key}_out_f64"], rtol=0, atol=1e-11)
        got = rfrope.rotate(arrays[key], positions, arrays["freqs"], pairing="interleaved")
        tolerance = told["tolerance"]["xq_out"]["atol"]
        np.testing.assert_allclose(got, arrays[f"{key}_out"], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "name", ["axial_deit_s_14x14", "axial_hd32_8x8", "axial_rect_7x4", "mixed_deit_s_10x10", "mixed_no_rotate_5x3"]
)
def test_rope_vit(cases, name):
    """Axial and mixed (per-head) 2-D frequencies: (batch, heads, tokens, features), interleaved."""
    told, arrays = load(cases, f"05_rope_vit/{name}")
    w = np.swapaxes(arrays["W"], -1, -2)  # (2, D) -> (D, 2), (heads, 2, D) -> (heads, D, 2)
    for key in ("q", "k"):
        exact = rfrope.rotate(arrays[key].astype(np.float64), arrays["positions"], w, pairing="interleaved")
        np.testing.assert_allclose(exact, arrays[f"{key}_out_f64"], rtol=0, atol=1e-11)
        got = rfrope.rotate(arrays[key], arrays["positions"], w, pairing="interleaved")
        np.testing.assert_allclose(got, arrays[f"{key}_out"], rtol=0, atol=told["tolerance"]["q_out"]["atol"])


@pytest.mark.parametrize(
    ("name", "axis", "frequencies"),
    [
        ("keras_hub_flax_positions_2d", -1, rfrope.geometric(8)),
        ("keras_hub_linear_x2", 0, rfrope.geometric(2) / 2.0),
        ("keras_hub_linear_x5_start12", 0, rfrope.geometric(2) / 5.0),
        ("keras_hub_ones_pos3_dim6", 0, rfrope.geometric(3)),
        ("ort_interleaved_small_llama_msft", 0, rfrope.geometric(2)),
    ],
)
def test_literals_of_other_projects(cases, name, axis, frequencies):
    """Numbers printed in other projects' tests: (batch, tokens, heads, features)."""
    told, arrays = load(cases, f"10_upstream_literals/{name}")
    positions = arrays["positions"][..., None]  # one axis for the heads
    pairing = told["params"]["pair_layout"]
    got = rfrope.rotate(arrays["x"], positions, frequencies, pairing=pairing)
    tolerance = told["tolerance"]["y"]
    np.testing.assert_allclose(got, arrays["y"], rtol=tolerance.get("rtol", 0), atol=tolerance["atol"])


def test_onnxruntime_cache(cases):
    told, arrays = load(cases, "10_upstream_literals/ort_interleaved_small_llama_msft")
    cos, sin = (arrays[f"{name}_cache"][arrays["positions"]][:, None] for name in ("cos", "sin"))
    got = rfrope.rotate_by_table(arrays["x"], cos, sin, pairing="interleaved")
    np.testing.assert_allclose(got, arrays["y"], atol=told["tolerance"]["y"]["atol"])


def test_previous_token_head_of_seed_003(cases):
    _, arrays = load(cases, "10_upstream_literals/seed003_previous_token_head")
    n, p = len(arrays["positions"]), arrays["positions"]
    q, k = (np.broadcast_to(arrays[f"{name}_content"], (n, 64)) for name in "qk")
    got = rfrope.scores(q, k, p, p, arrays["theta"], pairing="interleaved")
    np.testing.assert_allclose(got, arrays["scores"], atol=1e-11)


def test_numeric_example_of_seed_004(cases):
    _, arrays = load(cases, "10_upstream_literals/seed004_karl_stratos_numeric")
    t_1, t_2 = (float(arrays[name][0]) for name in ("t1", "t2"))
    q, k = (arrays[name].astype(np.float64) for name in "qk")
    turned_q, turned_k = rfrope.rotate(q, t_1, [1.0]), rfrope.rotate(k, t_2, [1.0])
    np.testing.assert_allclose(turned_q, arrays["q_t1"], atol=1e-12)
    np.testing.assert_allclose(turned_k, arrays["k_t2"], atol=1e-12)
    inner = rfrope.rotation.to_complex(turned_q)[0] * np.conj(rfrope.rotation.to_complex(turned_k)[0])
    assert inner.real == pytest.approx(float(arrays["dot"]), abs=1e-12)
    assert inner.imag == pytest.approx(float(arrays["inner_imag"]), abs=1e-12)


@pytest.mark.parametrize("head", ["previous", "induction"])
def test_attention_of_a_real_model(xp, head):
    """Rotating SmolLM2's own q and k reproduces the causal softmax attention that the model computed."""
    from rfrope.data import smollm2_heads

    heads = smollm2_heads()
    q, k, n = heads[f"{head}_q"], heads[f"{head}_k"], len(heads[f"{head}_q"])
    p, w = np.arange(n), heads["inv_freq"].astype(np.float64)
    s = xp.host(rfrope.scores(xp(q), xp(k), xp(p), xp(p), xp(w))).astype(np.float64) / 8.0
    s = np.where(p[:, None] >= p, s, -np.inf)
    weights = np.exp(s - s.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(weights / weights.sum(axis=-1, keepdims=True), heads[f"{head}_attention"], atol=1e-5)


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


# -- frequencies of 16 bits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 8), ("float16", 11)])
@pytest.mark.parametrize("sign", [1, -1])
def test_from_where_on_16_bits_warn(dtype, bits, sign):
    """Half a unit of the last place of the fastest frequency, times the farthest position, is above 0.05 radians."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    narrow = torch.tensor([1.0, 0.25], dtype=getattr(torch, dtype))
    last = int(0.05 / 2.0**-bits)  # the last whole position below the bound
    x = torch.ones(2, 4)
    for omega in (narrow, -narrow):
        rfrope.rotate(x, torch.tensor([0, sign * last]), omega)
        with pytest.warns(UserWarning, match=f"at positions up to {last + 1} phases may miss by 0.05"):
            rfrope.rotate(x, torch.tensor([0, sign * (last + 1)]), omega)


@pytest.mark.parametrize("pairings", [("half", "half"), ("half", "interleaved"), ("interleaved", "interleaved")])
@pytest.mark.parametrize("rows", [2, 4, 6])
def test_as_many_rows_as_features_that_turn(rows, pairings, xp, rng):
    """What does not turn stays beside it, whatever the lengths of other axes."""
    x, w = rng.standard_normal((rows, 6)), np.array([1.0, 0.3])
    options = {"pairing": pairings[0], "out_pairing": pairings[1]}
    got = xp.host(rfrope.rotate(xp(x), xp(np.arange(rows)), w, **options))
    assert got.shape == (rows, 6)
    np.testing.assert_array_equal(got[:, 4:], x[:, 4:])
    np.testing.assert_allclose(got[:, :4], rfrope.rotate(x[:, :4], np.arange(rows), w, **options), atol=1e-6)


@pytest.mark.parametrize("constant", ["cos", "sin", "both"])
def test_tables_of_numpy_fit_beside_any_library(constant, xp, rng):
    x, phases = rng.standard_normal((3, 8)), rng.standard_normal((3, 4))
    tables = {"cos": np.cos(phases), "sin": np.sin(phases)}
    given = {name: value if constant in (name, "both") else xp(value) for name, value in tables.items()}
    got = rfrope.rotate_by_table(xp(x), **given)
    assert xp.owns(got)
    np.testing.assert_allclose(xp.host(got), rfrope.rotate_by_phases(x, phases), atol=1e-6)


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
    own = lambda host: lib(np.array(host))  # noqa: E731
    for start in {0, 8, 3, 8 * rows - length}:
        at = slice(start, start + length)
        expected = lib.host(
            OPERANDS[operand](own(x), own(place[at]), *map(own, (positions, omega)), own(place).reshape(rows, 8))
        )
        for _ in range(3):
            flat = own(place)
            got = OPERANDS[operand](own(x), flat[at], *map(own, (positions, omega)), flat.reshape(rows, 8))
            np.testing.assert_array_equal(lib.host(got), expected)


@pytest.mark.parametrize("empty", ["positions", "frequencies"])
def test_16_bits_of_nothing_warn_of_nothing(empty):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    narrow = torch.ones(0 if empty == "frequencies" else 2, dtype=torch.bfloat16)
    x = torch.ones(0 if empty == "positions" else 3, 4)
    assert rfrope.rotate(x, torch.arange(1000, 1000 + len(x)), narrow).shape == x.shape


def test_float16_of_numpy_warns_too():
    with pytest.warns(UserWarning, match="frequencies has dtype float16: at q_positions up to 100000"):
        rfrope.scores(np.ones((1, 4)), np.ones((1, 4)), [100000], [0], np.array([0.5, 0.1], dtype=np.float16))


def test_scores_of_too_few_features_say_of_which():
    with pytest.raises(ValueError, match=r"frequencies has D = 4 blocks, .* 8 features, but q has shape \(1, 4\)"):
        rfrope.scores(np.ones((1, 4)), np.ones((1, 4)), [0], [0], rfrope.geometric(4))
