"""What traces or defers: Dask's blocks, one task each, with the bits of NumPy."""

import functools
import pickle

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope._core import array, lazy
from rfrope.rotation import rotate_polar

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 10, 16), dtype=np.float32)  # batch, heads, tokens, d
CHUNKS = (1, 2, 4, 16)
TOKENS = np.arange(10) * 1000 - 5
PACKED = RNG.integers(0, 99, (2, 1, 10))
LINE = rfrope.geometric(8)
HEADS = RNG.standard_normal((3, 5, 2))

TURNS = {
    "tokens": lambda x: rfrope.rotate(x, TOKENS, LINE),
    "list": lambda x: rfrope.rotate(x, TOKENS.tolist(), LINE.tolist(), pairing="interleaved", out_pairing="half"),
    "one position": lambda x: rfrope.rotate(x, 7, LINE, inverse=True),
    "packed": lambda x: rfrope.rotate(x, PACKED, LINE[:6], scale=2.0),
    "heads": lambda x: rfrope.rotate(x, np.stack([TOKENS, TOKENS + 1], axis=-1), HEADS),
    "one token of heads": lambda x: rfrope.rotate(x[..., 0, :], TOKENS[:2], HEADS),
    "shift and scale": lambda x: rfrope.rotate(
        x, TOKENS, LINE, shift=np.arange(24.0).reshape(3, 1, 8), scale=np.linspace(1, 2, 10)[:, None]
    ),
    "one scale": lambda x: rfrope.rotate(x, TOKENS, LINE, scale=np.asarray(2.0), shift=0.5),
    "Rope": lambda x: rfrope.Rope(LINE, pairing="interleaved", attention_factor=1.5).rotate(x, TOKENS),
    "rerotate": lambda x: rfrope.rotation.rerotate(x, TOKENS, LINE, LINE / 2),
    "relocate": lambda x: rfrope.rotation.relocate(x, TOKENS, TOKENS + 9, LINE),
    "phases": lambda x: rfrope.rotate_by_phases(x, np.outer(TOKENS, LINE), scale=0.5),
    "polar": lambda x: rotate_polar(x, TOKENS, np.geomspace(0.1, 1.0, 16), scale=np.full((10, 1), 2.0)),
    "polar, softplus": lambda x: rotate_polar(x, TOKENS[:, None], np.ones((3, 16, 1)), softplus=True, shift=-0.5),
    "polar, inverse": lambda x: rotate_polar(x, TOKENS, LINE, inverse=True),
    "table": lambda x: rfrope.rotate_by_table(x, *rfrope.rotation_table(PACKED, LINE), pairing="interleaved"),
}


@pytest.fixture
def dask():
    return library("dask").module


@pytest.mark.parametrize("name", TURNS)
def test_a_dask_array_is_turned_block_by_block_in_one_task_each(name, dask):
    given = abs(X) if name == "polar" else X
    x = dask.from_array(given, chunks=CHUNKS)
    turned = TURNS[name](x)
    width = {"polar": 32, "polar, softplus": 32, "polar, inverse": 8}.get(name, 16)
    assert turned.chunks == (*(x[..., 0, :] if "one token" in name else x).chunks[:-1], (width,))
    blocks = turned.npartitions
    before = len((x[..., 0, :] if "one token" in name else x).__dask_graph__())
    assert len(turned.__dask_graph__()) - before <= blocks + 18  # and one for each part of what is cut as x is
    found = turned.compute()
    assert found.dtype == X.dtype
    np.testing.assert_array_equal(found, TURNS[name](given))


def test_features_in_several_blocks_become_one_and_lazy_positions_stay_lazy(dask):
    x, wanted = dask.from_array(X, chunks=(2, 3, 5, 4)), rfrope.rotate(X, TOKENS, LINE)
    np.testing.assert_array_equal(rfrope.rotate(x, TOKENS, LINE).compute(), wanted)
    turned = rfrope.rotate(x, dask.from_array(TOKENS, chunks=4), LINE)
    np.testing.assert_allclose(turned.compute(), wanted, rtol=1e-6, atol=1e-6)
    wide, lazy_wide = X.astype(np.float64), x.astype(np.float64)
    found, wanted = (rfrope.scores(one, one, TOKENS, TOKENS, LINE) for one in (lazy_wide, wide))
    np.testing.assert_allclose(found.compute(), wanted)


WRONG = {
    "positions holds NaN": lambda x: {"positions": np.full(10, np.nan)},
    "do not broadcast": lambda x: {"positions": np.arange(11)},
    "out was given": lambda x: {"out": x},
}


def test_negative_magnitudes_are_seen_when_they_are_computed(dask):
    later = rotate_polar(dask.from_array(X, chunks=CHUNKS), TOKENS, np.ones(16))
    with pytest.raises(ValueError, match="negative"):
        later.compute()


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_said_before_anything_is_computed(words, dask):
    x = dask.from_array(X, chunks=CHUNKS)
    with pytest.raises((TypeError, ValueError), match=words):
        rfrope.rotate(**{"x": x, "positions": TOKENS, "frequencies": LINE} | WRONG[words](x))


def test_names_are_those_of_the_question_and_tasks_travel(dask):
    x = dask.from_array(X, chunks=CHUNKS, name="x")
    one, same, other = (rfrope.rotate(x, p, LINE) for p in (TOKENS, TOKENS.copy(), TOKENS + 1))
    assert one.name == same.name != other.name
    call = functools.partial(lazy._call, rfrope.rotate, ("positions", "frequencies"), {"pairing": "half"})
    again = pickle.loads(pickle.dumps(call))
    np.testing.assert_array_equal(again(X, TOKENS, LINE), rfrope.rotate(X, TOKENS, LINE))


def test_every_slope_is_its_own():
    """Two derivatives of one function are two, whichever was asked for first."""
    jax = pytest.importorskip("jax", reason="jax is not installed")

    def turn(x):
        return jax.numpy.cos(x), jax.numpy.sin(x)

    slopes = [lambda arrays, changes, factor=factor: factor * changes[0] for factor in (1.0, 3.0)]
    found = [
        float(jax.grad(lambda x, slope=slope: lazy.JAX.attach_derivative(turn, slope)(x)[1])(0.5)) for slope in slopes
    ]
    assert found == pytest.approx([np.cos(0.5), 3.0 * np.cos(0.5)], rel=1e-6)


# -- functions mapped over arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("last_axis", [None, 0, 2])
def test_a_numpy_function_of_arrays_of_any_library(xp, last_axis):
    """Of each element, or along the last axis."""
    function = {None: np.sinh, 0: lambda v: v.sum(axis=-1), 2: lambda v: v[..., :2] * 2.0}[last_axis]
    x = xp(np.arange(12.0).reshape(4, 3))
    got = array.map_on_host(function, x, array.namespace(x=x), "x", last_axis=last_axis)
    assert xp.owns(got)
    np.testing.assert_allclose(xp.host(got), function(xp.host(x)))


def test_gradients_are_not_dropped_silently(torch):
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(TypeError, match=r"^lags requires a gradient"):
        rfrope.bochner.from_density(lambda w: 0.5 * np.exp(-np.abs(w))).phi(x)
