"""Designs: the same frequencies for the same seed everywhere, prefixes, heads, and what is refused."""

import tracemalloc
import warnings

import numpy as np
import pytest
from problems import KERNELS, N_DRAWS, Z_BOUND, moment_z, worst

import rfrope
from rfrope import sample
from rfrope._core import random
from rfrope.designs import sampling, sets

SPECIFICATIONS = (
    "gaussian(scale=32)",
    "cauchy(scale=5, ndim=2)",
    "sinc(bandwidth=0.1)",
    "matern(nu=0.8, scale=16)",
    "matern(nu=1.5, scale=(3, 4, 5), ndim=3)",
    "exponential(scale=7)",
    "exponential(scale=7, ndim=2)",
)
each = pytest.mark.parametrize("text", SPECIFICATIONS)

# Seed 0, written down once: seeds must mean the same in every later version.
FROZEN = {
    "sinc(bandwidth=0.1)": [0.012455686699700874, 0.07321925165784758, 0.023782472308746905, 0.03395991373465164],
    "exponential(scale=7)": [0.02831269355456476, 0.3193211674663413, 0.05599725485978067, 0.08436410921112934],
}


@pytest.mark.parametrize("text", FROZEN)
def test_frozen_frequencies(text):
    np.testing.assert_allclose(sample(text, 4, rng=0), FROZEN[text], rtol=1e-14)


@each
def test_same_seed_same_bits_on_every_library(text, xp):
    expected = sample(text, 33, rng=11, heads=3)
    found = sample(text, 33, rng=11, heads=3, xp=xp.module, device=xp.device)
    assert xp.owns(found)
    assert found.dtype == xp.dtype("float64")
    np.testing.assert_array_equal(xp.host(found), expected)


@each
def test_same_seed_same_bits_other_seed_other_bits(text):
    first = sample(text, 16, rng=11)
    np.testing.assert_array_equal(sample(text, 16, rng=11), first)
    np.testing.assert_array_equal(sample(rfrope.kernels.parse(text), 16, rng=np.int64(11)), first)
    assert not np.any(sample(text, 16, rng=12) == first)


@each
@pytest.mark.parametrize("n", [0, 1, 2, 7, 32])
def test_a_shorter_sample_is_the_beginning_of_a_longer_one(text, n):
    np.testing.assert_array_equal(sample(text, n, rng=1), sample(text, 64, rng=1)[:n])
    np.testing.assert_array_equal(sample(text, n, rng=1, heads=2), sample(text, 64, rng=1, heads=5)[:2, :n])


@each
def test_head_zero_is_the_set_without_heads(text):
    alone, heads = sample(text, 16, rng=1), sample(text, 16, rng=1, heads=3)
    np.testing.assert_array_equal(heads[0].reshape(alone.shape), alone)


@each
def test_any_chunk_of_draws_is_the_slice_of_all(text):
    made, key = rfrope.kernels.parse(text), (1, 2)
    whole = sampling.draw(made, key, 0, 50, streams=3)
    for start, stop in ((0, 17), (17, 18), (18, 50)):
        np.testing.assert_array_equal(sampling.draw(made, key, start, stop - start, streams=3), whole[:, start:stop])
    np.testing.assert_array_equal(sampling.draw(made, key, 3, 40, stream=2), whole[2:, 3:43])


@pytest.mark.parametrize("text", ["gaussian(scale=3)", "exponential(scale=7, ndim=2)"])
def test_parts_and_threads_change_no_bits(text):
    """Many draws are made in parts, on several threads."""
    kernel, n = rfrope.kernels.parse(text), 3 * sets._ROWS + 5
    key = random.key_from_rng(3)
    whole = kernel.transport_points(random.uniforms.generic(key, 0, n, kernel.n_columns, stream=2))
    for count in (1, 3):
        np.testing.assert_array_equal(sets.independent(kernel, key, n, 2, 1, count), whole)
        with rfrope.threads(count):
            found = sample(kernel, n, rng=3, heads=3)[2]
        np.testing.assert_array_equal(found, whole[0])
    points = np.random.default_rng(0).uniform(size=(2, n, kernel.n_columns))
    np.testing.assert_array_equal(sets.through(kernel, points, 2), kernel.transport_points(points))


def test_many_blocks_hold_nothing_but_themselves():
    sample("gaussian", 2 * sets._ROWS, rng=0)
    tracemalloc.start()
    try:
        found = sample("gaussian", 2**20, rng=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.nbytes <= peak <= found.nbytes + 2**22


@pytest.mark.parametrize(
    ("ndim", "heads", "shape"),
    [(1, None, (5,)), (1, 4, (4, 5, 1)), (1, 1, (1, 5, 1)), (2, None, (5, 2)), (3, 4, (4, 5, 3)), (3, 1, (1, 5, 3))],
)
def test_shapes(ndim, heads, shape, xp):
    found = sample(rfrope.kernel("gaussian", ndim=ndim), 5, rng=0, heads=heads, xp=xp.module)
    assert tuple(found.shape) == shape


def test_no_blocks():
    assert sample("gaussian", 0, rng=0).shape == (0,)
    assert sample("gaussian(ndim=2)", 0, rng=0, heads=3).shape == (3, 0, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype(dtype, xp):
    found = sample("gaussian", 6, rng=0, xp=xp.module, device=xp.device, dtype=xp.dtype(dtype))
    assert found.dtype == xp.dtype(dtype)
    np.testing.assert_array_equal(xp.host(found), sample("gaussian", 6, rng=0).astype(dtype))


def test_device(xp):
    device = {"array-api-strict": lambda: xp.module.Device("device1"), "torch": lambda: "cpu"}.get(
        xp.name, lambda: xp.device
    )()
    found = sample("gaussian", 6, rng=0, xp=xp.module, device=device)
    if device is not None:
        assert str(found.device) == str(device)


def test_jax_without_64_bits_gets_float32():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    before = jax.config.jax_enable_x64
    try:
        jax.config.update("jax_enable_x64", False)
        found = sample("gaussian", 6, rng=0, xp=jax.numpy)
        assert found.dtype == jax.numpy.float32
    finally:
        jax.config.update("jax_enable_x64", before)


def test_a_string_is_read_by_parse():
    np.testing.assert_array_equal(
        sample("matern(nu=1.5, scale=3)", 8, rng=2), sample(rfrope.kernel("matern", nu=1.5, scale=3.0), 8, rng=2)
    )
    with pytest.raises(ValueError, match="unknown kernel 'gauss'; did you mean 'gaussian'"):
        sample("gauss", 8)


def test_a_generator_is_advanced():
    rng, other = np.random.default_rng(3), np.random.default_rng(3)
    first, second = sample("gaussian", 8, rng=rng), sample("gaussian", 8, rng=rng)
    assert not np.any(first == second)
    np.testing.assert_array_equal(sample("gaussian", 8, rng=other), first)
    np.testing.assert_array_equal(sample("gaussian", 8, rng=other), second)


def test_fresh_entropy_without_a_seed():
    assert not np.any(sample("gaussian", 8) == sample("gaussian", 8))


# -- the law -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [p for p in KERNELS if p.family in ("gaussian", "cauchy")], ids=str)
def test_every_head_has_the_kernels_law(problem):
    heads = sample(problem.kernel, N_DRAWS // 8, rng=5, heads=4)
    for head in heads:
        omega = head[:, 0] if problem.kernel.ndim == 1 else head
        assert worst(moment_z(problem.kernel, problem.lags, omega)) < Z_BOUND


def test_heads_and_neighbouring_draws_are_independent():
    n = 2**16
    heads = sample("gaussian", n, rng=6, heads=4)[..., 0]
    pairs = [heads[i] * heads[j] for i in range(4) for j in range(i)] + [heads[0, 1:] * heads[0, :-1]]
    for product in pairs:
        assert abs(np.mean(product)) * np.sqrt(product.size) < Z_BOUND
    for i in range(4):
        assert all(abs(magnitude_z(heads[i], heads[j])) < Z_BOUND for j in range(i))
    assert abs(magnitude_z(heads[0], -heads[0])) > 10 * Z_BOUND
    flipped = heads[0] * np.sign(heads[1])  # uncorrelated with heads[0], and not independent of it
    assert abs(np.mean(heads[0] * flipped)) * np.sqrt(n) < Z_BOUND < abs(magnitude_z(heads[0], flipped))


def magnitude_z(x, y):
    """z-score of the mean of cos 2x cos 2y for independent standard normal draws, whose E cos 2x is exp(-2)."""
    mean, mean_of_square = np.exp(-2.0), 0.5 * (1.0 + np.exp(-8.0))
    return (np.mean(np.cos(2 * x) * np.cos(2 * y)) - mean**2) / np.sqrt((mean_of_square**2 - mean**4) / x.size)


def test_axes_are_uncorrelated_but_share_their_radius():
    omega = sample("matern(nu=3, ndim=2)", 2**17, rng=8)
    direction = omega / np.linalg.norm(omega, axis=-1, keepdims=True)
    assert abs(np.mean(direction[:, 0] * direction[:, 1])) * np.sqrt(8.0 * 2**17) < Z_BOUND
    assert np.corrcoef(np.abs(omega).T)[0, 1] > 0.05


def test_heads_fit_rotate():
    """(H, D, 1) goes with positions (L, 1), a set for each head."""
    frequencies = sample("gaussian(scale=32)", 4, rng=0, heads=2)
    x = np.random.default_rng(0).normal(size=(2, 5, 8))
    assert rfrope.rotate(x, np.arange(5)[:, None], frequencies).shape == x.shape


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_blocks": -1}, ValueError, r"^n_blocks is -1; expected a whole number"),
        ({"n_blocks": 1.5}, TypeError, r"^n_blocks is 1.5; expected a whole number"),
        ({"n_blocks": "3"}, TypeError, r"^n_blocks is '3'; expected a whole number"),
        ({"n_blocks": True}, ValueError, r"^n_blocks is True; expected a whole number"),
        ({"n_blocks": None}, TypeError, r"^n_blocks is None; expected a whole number"),
        ({"n_blocks": 2**32}, ValueError, r"^n_blocks is 4294967296; expected a whole number"),
        ({"heads": -1}, ValueError, r"^heads is -1; expected a whole number"),
        ({"heads": 2.0}, TypeError, r"^heads is 2.0; expected a whole number"),
        ({"design": "sobol?"}, ValueError, r"^design is 'sobol\?'; did you mean 'sobol'\? Expected one of 'iid'"),
        ({"design": None}, ValueError, r"^design is None; expected one of 'iid'"),
        ({"kernel": 3}, TypeError, r"^kernel is 3; expected a kernel"),
        ({"kernel": None}, TypeError, r"^kernel is None; expected a kernel"),
        ({"kernel": rfrope.kernels.families.Gaussian}, TypeError, r"^kernel is <class .*; expected a kernel"),
        ({"kernel": "gaussian(scale=-1)"}, ValueError, r"^scale is -1; expected a positive"),
        ({"kernel": "gaussian("}, ValueError, r"^cannot read kernel"),
        ({"rng": -1}, ValueError, r"^rng is -1; expected"),
        ({"rng": 1.5}, TypeError, r"^rng is 1.5; expected"),
        ({"rng": "0"}, TypeError, r"^rng is '0'; expected"),
        ({"xp": "numpy"}, TypeError, r"^xp is 'numpy'; expected an array library's module"),
        ({"xp": warnings}, TypeError, r"^xp is module warnings.*expected an array library"),
    ],
    ids=lambda v: str(v)[:40] if isinstance(v, dict) else "",
)
def test_bad_input_names_the_argument_what_came_and_what_was_expected(arguments, error, message):
    good = {"kernel": "gaussian", "n_blocks": 4, "rng": 0}
    with pytest.raises(error, match=message):
        sample(**{**good, **arguments})


def test_a_refused_call_does_not_advance_the_generator():
    rng = np.random.default_rng(0)
    for bad in ({"n_blocks": -1}, {"design": "none"}, {"heads": -1}, {"kernel": "none"}, {"xp": "numpy"}):
        with pytest.raises((ValueError, TypeError)):
            sample(**{"kernel": "gaussian", "n_blocks": 4, "rng": rng, **bad})
    assert rng.random() == np.random.default_rng(0).random()
