"""The sinusoidal embedding and its shift matrices: exact values, laws, layouts, and what is refused."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope import analysis, geometric, sinusoidal
from rfrope.rotation import shift_matrix

PAIRINGS = ("interleaved", "half")
RNG = np.random.default_rng(8)

# positions, frequencies and the shape of the phases
SHAPES = {
    "scalar": ((), (3,), (3,)),
    "sequence": ((5,), (3,), (5, 3)),
    "batch": ((2, 5), (3,), (2, 5, 3)),
    "plane": ((5, 2), (3, 2), (5, 3)),
    "one point of a plane": ((2,), (3, 2), (3,)),
    "heads": ((5, 3), (4, 3, 3), (4, 5, 3)),
    "one axis for each head": ((5, 1), (4, 3, 1), (4, 5, 3)),
    "no blocks": ((5,), (0,), (5, 0)),
    "no positions": ((0,), (3,), (0, 3)),
}


def block(u: float) -> np.ndarray:
    """(8) of Stratos."""
    return np.array([[math.cos(u), math.sin(u)], [-math.sin(u), math.cos(u)]])


def places(i: int, n_blocks: int, pairing: str) -> list[int]:
    return [2 * i, 2 * i + 1] if pairing == "interleaved" else [i, n_blocks + i]


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(("p_shape", "w_shape", "u_shape"), SHAPES.values(), ids=SHAPES)
def test_sinusoidal_stacks_sine_and_cosine_of_each_block(xp, pairing, p_shape, w_shape, u_shape):
    p, w = RNG.uniform(-9, 9, p_shape), RNG.standard_normal(w_shape)
    u = p[..., None] * w if w.ndim == 1 else p @ np.swapaxes(w, -1, -2)
    got = sinusoidal(xp(p), xp(w), pairing=pairing)
    assert xp.owns(got)
    assert got.dtype == xp.dtype("float64")
    expected = np.zeros((*u_shape[:-1], 2 * u_shape[-1]))
    for i in range(u_shape[-1]):
        first, second = places(i, u_shape[-1], pairing)
        expected[..., first], expected[..., second] = np.sin(u[..., i]), np.cos(u[..., i])
    assert tuple(got.shape) == expected.shape
    np.testing.assert_allclose(xp.host(got), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("position", [131071, 2**24 + 1, 2**53 - 1, -(2**53 - 1)])
def test_sinusoidal_is_exact_at_far_positions(xp, position):
    w = np.array([1.0, 0.3, 1e-4])
    got = xp.host(sinusoidal(xp(np.array(position)), xp(w), pairing="interleaved"))
    with mpmath.workdps(60):
        exact = [float(f(position * mpmath.mpf(v))) for v in w for f in (mpmath.sin, mpmath.cos)]
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-15)


def test_both_orders_hold_the_same(xp):
    p, w = xp(np.arange(4)), xp(geometric(3))
    neighbours, halves = sinusoidal(p, w, pairing="interleaved"), sinusoidal(p, w)
    assert np.array_equal(xp.host(rfrope.convert_pairing(halves, "half", "interleaved")), xp.host(neighbours))
    assert not np.array_equal(xp.host(halves), xp.host(neighbours))


@pytest.mark.parametrize("function", [sinusoidal, shift_matrix])
def test_dtype_rounds_once(xp, function):
    p, w = xp(np.array([3, 131071])), xp(geometric(4))
    wide = xp.host(function(p, w))
    for dtype in ("float32", xp.dtype("float32")):
        narrow = function(p, w, dtype=dtype)
        assert narrow.dtype == xp.dtype("float32")
        np.testing.assert_array_equal(xp.host(narrow), wide.astype(np.float32))


def test_the_usual_formula_of_pytorch_tutorials():
    torch = library("torch").module
    d, n = 16, 50
    position = torch.arange(n, dtype=torch.float64)[:, None]
    rates = torch.exp(torch.arange(0, d, 2, dtype=torch.float64) * (-math.log(10_000.0) / d))
    table = torch.zeros(n, d, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = torch.sin(position * rates), torch.cos(position * rates)
    got = sinusoidal(torch.arange(n), torch.asarray(geometric(d // 2)), pairing="interleaved")
    torch.testing.assert_close(got, table, rtol=0, atol=1e-13)


# -- the shift ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(("o_shape", "w_shape", "u_shape"), SHAPES.values(), ids=SHAPES)
def test_shift_matrix_is_block_diagonal(xp, pairing, o_shape, w_shape, u_shape):
    offset, w = RNG.uniform(-9, 9, o_shape), RNG.standard_normal(w_shape)
    u = offset[..., None] * w if w.ndim == 1 else offset @ np.swapaxes(w, -1, -2)
    got = shift_matrix(xp(offset), xp(w), pairing=pairing)
    assert xp.owns(got)
    assert got.dtype == xp.dtype("float64")
    n = u_shape[-1]
    expected = np.zeros((*u_shape[:-1], 2 * n, 2 * n))
    for index in np.ndindex(*u_shape[:-1]):
        for i in range(n):
            expected[index][np.ix_(places(i, n, pairing), places(i, n, pairing))] = block(u[(*index, i)])
    assert tuple(got.shape) == expected.shape
    np.testing.assert_allclose(xp.host(got), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("offset", [0, 1, -17, 0.25, 131072, -(2**40)])
def test_shift_matrix_moves_every_embedding(xp, pairing, offset):
    """E(t + k) = B_k E(t), also where the phases are large."""
    w = xp(geometric(8))
    b = xp.host(shift_matrix(xp(np.array(offset)), w, pairing=pairing))
    for t in (0, 5, -3, 10**6, 2**50):
        now, then = (xp.host(sinusoidal(xp(np.array(v)), w, pairing=pairing)) for v in (t, t + offset))
        np.testing.assert_allclose(b @ now, then, rtol=0, atol=3e-15)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_shift_matrix_moves_in_several_axes_and_for_each_head(xp, pairing):
    w = rfrope.golden_gate(4, low=0.1, high=2.0, ndim=3, heads=2)
    t, offset = np.array([[7.0, -2.5, 100.0]]), np.array([[1.5, 0.0, -4.0]])
    b = xp.host(shift_matrix(xp(offset), xp(w), pairing=pairing))
    now, then = (xp.host(sinusoidal(xp(v), xp(w), pairing=pairing)) for v in (t, t + offset))
    assert b.shape == (2, 1, 8, 8)
    np.testing.assert_allclose((b @ now[..., None])[..., 0], then, rtol=0, atol=3e-15)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_shift_matrices_are_a_group_of_rotations(pairing):
    w = geometric(6)
    b = {k: shift_matrix(k, w, pairing=pairing) for k in (-9, 0, 4, 1000, 1004)}
    np.testing.assert_allclose(b[4] @ b[1000], b[1004], rtol=0, atol=2e-15)
    np.testing.assert_allclose(b[1000] @ b[4], b[1004], rtol=0, atol=2e-15)
    assert np.array_equal(b[0], np.eye(12))
    np.testing.assert_allclose(b[-9].T @ b[-9], np.eye(12), rtol=0, atol=1e-15)
    assert np.array_equal(b[-9], shift_matrix(9, w, pairing=pairing).T)
    assert np.linalg.det(b[4]) == pytest.approx(1.0)


def test_both_orders_of_the_matrix_are_related_by_convert_pairing(xp):
    offset, w = xp(np.array([3, -0.5])), xp(geometric(3))
    half = shift_matrix(offset, w, pairing="half")
    for axis in (-1, -2):
        half = rfrope.convert_pairing(half, "half", "interleaved", axis=axis)
    np.testing.assert_array_equal(xp.host(half), xp.host(shift_matrix(offset, w, pairing="interleaved")))


# -- the inner product -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_similarity_of_two_embeddings_is_the_mean_kernel(xp, pairing):
    """E(s) . E(t) = sum_i cos((s - t) theta_i)."""
    w, s = geometric(32), np.array([0, 17, 100_000, 2**40])
    for lag in (0, 1, -250, 4096):
        one, other = (xp.host(sinusoidal(xp(v), xp(w), pairing=pairing)) for v in (s, s + lag))
        got = np.sum(one * other, axis=-1)
        np.testing.assert_allclose(got, np.sum(np.cos(lag * w)), rtol=0, atol=1e-13)
        expected = 32 * xp.host(analysis.mean_kernel(xp(np.array(-lag)), xp(w)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


def test_the_similarity_is_the_mean_kernel_in_several_axes_too():
    w = rfrope.axial(geometric(4), geometric(4))
    points = RNG.integers(-30, 30, (10, 2))
    table = sinusoidal(points, w)
    lags = points[:, None, :] - points[None, :, :]
    np.testing.assert_allclose(table @ table.T, 8.0 * analysis.mean_kernel(lags, w), rtol=0, atol=1e-13)


def test_a_shift_is_a_rotation_with_its_pairs_reversed(cases):
    """The numbers that Stratos prints: (sin, cos) of a block turned by -u is (x_2, x_1) of a pair turned by +u."""
    with np.load(cases / "10_upstream_literals/seed004_karl_stratos_numeric.npz", allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    for x, t, name in (("q", "t1", "q_t1"), ("k", "t2", "k_t2")):
        pair = arrays[x].astype(np.float64)[[1, 0]]
        turned = (shift_matrix(float(arrays[t][0]), [1.0]) @ pair)[[1, 0]]
        np.testing.assert_allclose(turned, arrays[name], rtol=0, atol=1e-12)
        np.testing.assert_allclose(turned, arrays[f"{name}_printed"], rtol=0, atol=1e-4)


# -- gradients and tracing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [sinusoidal, shift_matrix])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_torch_gradients(function, pairing):
    torch = library("torch").module
    p = torch.tensor([0.5, -3.25], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([1.0, 0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: function(*a, pairing=pairing), (p, w))


@pytest.mark.parametrize("function", [sinusoidal, shift_matrix])
def test_jax_transformations(function):
    lib = library("jax")
    import jax

    p, w = lib(np.array([0.5, -3.25])), lib(geometric(3))
    np.testing.assert_allclose(jax.jit(function)(p, w), function(np.asarray(p), np.asarray(w)), atol=1e-15)
    np.testing.assert_allclose(jax.vmap(function, in_axes=(0, None))(p, w), function(p, w), atol=1e-15)
    slope = jax.jacobian(lambda v: function(v, w))(lib(0.5))
    step = (function(0.5 + 1e-5, geometric(3)) - function(0.5 - 1e-5, geometric(3))) / 2e-5
    np.testing.assert_allclose(slope, step, atol=1e-9)
    assert np.isnan(np.asarray(jax.jit(function)(p * math.nan, w))).any(), "what JAX traces must not raise on values"


def test_dask_stays_lazy():
    lib = library("dask")
    for function in (sinusoidal, shift_matrix):
        made = function(lib(np.arange(6)), lib(geometric(4)))
        assert made.npartitions > 1


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD = {
    "pairing": (ValueError, "pairing is 'all'; expected one of 'half', 'interleaved'", (1, [1.0]), {"pairing": "all"}),
    "scalar frequency": (ValueError, "frequencies is a single number", (1, 1.0), {}),
    "NaN": (ValueError, "holds NaN or infinity", (math.nan, [1.0]), {}),
    "frequency NaN": (ValueError, "frequencies holds NaN or infinity", (1, [math.nan]), {}),
    "complex": (TypeError, "has dtype complex128", (1j, [1.0]), {}),
    "None": (TypeError, "is None; expected numbers", (None, [1.0]), {}),
    "axes": (ValueError, r"has shape \(3,\), but frequencies of .* have k = 2", ([1, 2, 3], np.ones((2, 2))), {}),
    "one axis": (ValueError, r"use \w+\[..., None\]", ([1, 2, 3], np.ones((2, 1))), {}),
    "dtype": (TypeError, "dtype is 'int32'; expected a real floating type", (1, [1.0]), {"dtype": "int32"}),
}  # fmt: skip


@pytest.mark.parametrize(("function", "name"), [(sinusoidal, "positions"), (shift_matrix, "offset")])
@pytest.mark.parametrize(("kind", "message", "arguments", "options"), BAD.values(), ids=BAD)
def test_bad_input_is_named(function, name, kind, message, arguments, options):
    with pytest.raises(kind, match=message) as caught:
        function(*arguments, **options)
    if message.startswith(("has ", "is None", "holds")):
        assert str(caught.value).startswith(name)


def test_only_numpy_comes_to_another_library():
    torch, strict = library("torch").module, library("array-api-strict").module
    for function, name in ((sinusoidal, "positions"), (shift_matrix, "offset")):
        moved = function(np.arange(3), torch.ones(2, dtype=torch.float64))
        assert isinstance(moved, torch.Tensor)
        np.testing.assert_array_equal(moved.numpy(), function(np.arange(3), np.ones(2)))
        with pytest.raises(TypeError, match=f"{name} is a array_api_strict array but frequencies is a torch array"):
            function(strict.arange(3), torch.ones(2))
