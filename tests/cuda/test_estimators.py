"""The estimators' CUDA kernels, run on the CPU: draws are the loops' bit for bit; plans, tiles, memory and tables."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from campaign import sparse
from conftest import tuples
from emulator import COMPILER, NO_COMPILER, emulation
from places import NO_LOOPS
from score_problems import EVERY, EVERY_TABLED, KEY, TRANSPORTED, problem, scaled_error

import rfrope
from rfrope import kernels, montecarlo
from rfrope._backends import transforms
from rfrope._backends.cuda import device
from rfrope._backends.cuda import estimators as backend
from rfrope._core import array, quantiles, random

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

THREE = pytest.mark.parametrize("kernel", [EVERY_TABLED[0], EVERY_TABLED[9], TRANSPORTED[0]], ids=repr)


def sums(kernel, *arguments, backward=False):
    """Moments by the CUDA backend."""
    with emulation(backward=backward):
        return backend.score_sums(kernel, KEY, *arguments)


def assert_same_bits(found, expected):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


# -- frequencies -------------------------------------------------------------------------------------------------------


def draw(kernel, key, start, length):
    with emulation() as ran:
        return backend.drawn(kernel, key, start, length, np.empty(0)), ran


@pytest.mark.parametrize("kernel", EVERY, ids=repr)
@pytest.mark.parametrize(("start", "length"), [(0, 2000), (2**40 + 1, 333)])
def test_frequencies_are_those_of_the_transport(kernel, start, length):
    omega, ran = draw(kernel, KEY, start, length)
    expected = montecarlo._drawn.generic(kernel, KEY, start, length, np.empty(0))
    stated = quantiles.tabulate_law(kernel)
    assert ran == ([] if stated is None else [f"frequencies<{backend._LAWS[stated.code]}>"])
    np.testing.assert_allclose(omega, expected, rtol=1e-13 if stated else 0.0, atol=3e-16 if stated else 0.0)


# -- sums --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", sparse(EVERY, lambda kernel: kernel in EVERY[::4]), ids=repr)
def test_the_score_of_a_trial_is_that_of_the_compiled_loops_bit_for_bit(kernel):
    estimators = pytest.importorskip("rfrope._backends.cpu.estimators", reason=NO_LOOPS, exc_type=ImportError)
    for seed, longest in enumerate((60.0, 1e13, 1e14, 1e100)):
        delta, a, b = problem(kernel, pairs=(3, 1), lags=(5,), blocks=7, seed=seed, longest=longest)
        found = sums(kernel, delta, a, b, 12345 * seed, 1)
        expected = estimators.score_sums(kernel, KEY, delta, a, b, 12345 * seed, 1)
        np.testing.assert_array_equal(found[0], expected[0])
        assert not np.any(found[1:])


@THREE
def test_lags_that_are_no_numbers_spoil_their_own_rows_alone(kernel):
    """As in the loops for the CPU; the public functions refuse such lags where they can look at them for free."""
    estimators = pytest.importorskip("rfrope._backends.cpu.estimators", reason=NO_LOOPS, exc_type=ImportError)
    delta, a, b = problem(kernel, pairs=(3, 1), lags=(9,))
    expected = sums(kernel, delta, a, b, 0, 300)
    delta[[1, 4, 6], 0] = np.nan, np.inf, -np.inf
    wanted = estimators.score_sums(kernel, KEY, delta, a, b, 0, 300)
    for x, y, before in zip(sums(kernel, delta, a, b, 0, 300), wanted, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        np.testing.assert_array_equal(x[:, [0, 2, 3, 5, 7, 8]], before[:, [0, 2, 3, 5, 7, 8]])


def test_nothing_beyond_given_frequencies_is_read(monkeypatch):
    """An odd number of blocks is filled up with one of zeros, which has no frequencies."""
    kernel, right = TRANSPORTED[0], backend._transported
    delta, a, b = problem(kernel, blocks=7)
    expected = sums(kernel, delta, a, b, 0, 300)
    monkeypatch.setattr(backend, "_transported", lambda *arguments: ended_by_nan(right(*arguments)))
    assert_same_bits(sums(kernel, delta, a, b, 0, 300), expected)


def ended_by_nan(x):
    longer = np.full(x.size + 100, np.nan)
    longer[: x.size] = x.reshape(-1)
    return longer[: x.size].reshape(x.shape)


# -- moments -----------------------------------------------------------------------------------------------------------


class Coin(rfrope.kernels.Kernel):
    """Frequencies 0 or pi, by a fair coin: scores at lag 1 are a or -a."""

    name, ndim, n_columns = "coin", 1, 1

    def _phi(self, delta, xp):
        return 0.5 * (1.0 + xp.cos(math.pi * delta[..., 0]))

    def _transport(self, u):
        return np.where(u > 0.5, math.pi, 0.0)


@pytest.mark.parametrize("length", [1, 2, 3, 255, 256, 257, 1000, 300 * 256 + 7])
@pytest.mark.parametrize("most_blocks", [1, 2**12])  # so many trials of a thread, or one
def test_moments_of_a_coin_are_exact(length, most_blocks, monkeypatch):
    monkeypatch.setattr(backend, "_ENOUGH_BLOCKS", most_blocks)
    found = sums(Coin(), np.array([1.0]), np.array([3.0]), np.array([0.0]), 5, length)
    tails = int(np.sum(random.uniforms.generic(KEY, 0, 1, 1, stream=5, streams=length) > 0.5))
    heads, mean = length - tails, Fraction(3 * (length - 2 * tails), length)
    exact = [mean] + [heads * (3 - mean) ** p + tails * (-3 - mean) ** p for p in (2, 3, 4)]
    np.testing.assert_allclose(np.array(found), [float(x) for x in exact], rtol=1e-12, atol=1e-12 * length)


@pytest.mark.parametrize(
    ("kernel", "pairs", "lags"),
    [
        (EVERY_TABLED[0], (), ()),
        (EVERY_TABLED[8], (), (5,)),
        (EVERY_TABLED[9], (5, 1), (3,)),
        (TRANSPORTED[1], (3, 1), (2,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("enough", [backend._ENOUGH_BLOCKS, 1])  # trials of a thread: one, or some
def test_bits_are_the_same_in_any_order_of_threads_and_any_groups_of_tiles(kernel, pairs, lags, enough, monkeypatch):
    monkeypatch.setattr(backend, "_ENOUGH_BLOCKS", enough)
    arguments = (kernel, *problem(kernel, pairs=pairs, lags=lags), 0, 600)
    found = sums(*arguments)
    assert scaled_error(found, montecarlo._score_sums.generic(kernel, KEY, *arguments[1:]), 600) < 1e-9
    assert_same_bits(sums(*arguments, backward=True), found)
    monkeypatch.setattr(backend, "_LAID_OUT", 100)
    assert_same_bits(sums(*arguments), found)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_the_text_repeats_the_numbers_of_the_tables():
    text = device.text("estimators")
    assert f"PIECES = {quantiles.PIECES}, SIDE = {quantiles.OCTAVES} * PIECES" in text
    assert f"#define ROW_BYTES {8 * quantiles.ROW}\n" in text
    assert [backend._LAWS[code] for code in (quantiles.UNIFORM, quantiles.LOG_UNIFORM, quantiles.TABLE)] == re.search(
        r"enum Law { (.*), GIVEN };", text
    ).group(1).split(", ")


@pytest.mark.parametrize(
    ("lags", "members", "tile"),
    tuples("cuda/estimators.json", "tiles"),
)
def test_tiles_suit_the_rows(lags, members, tile):
    assert backend._tile(lags, members, 1) == tile


def test_memory_is_that_of_partial_sums(monkeypatch):
    sizes, right = [], array.empty

    def recorded(shape, like, xp):
        sizes.append(math.prod(shape))
        return right(shape, like, xp)

    monkeypatch.setattr(array, "empty", recorded)
    monkeypatch.setattr(device, "launch", lambda *_: None)
    kernel = EVERY_TABLED[0]
    with emulation():
        monkeypatch.setattr(device, "launch", lambda *_: None)
        backend.score_sums(kernel, KEY, *problem(kernel, lags=(400,), pairs=(50, 1), blocks=64), 0, 2**16)
    assert max(sizes) <= 2 * backend._LAID_OUT


# -- tables, and public calls ------------------------------------------------------------------------------------------


def test_tables_are_put_on_a_device_once_and_nothing_travels_afterwards(monkeypatch):
    kernel = kernels.parse("matern(nu=1.25, scale=3, ndim=2)")
    arguments = (*problem(kernel), 0, 100)
    expected = sums(kernel, *arguments)
    for name in ("from_host", "to_host", "view_as_numpy"):
        monkeypatch.setattr(array, name, None)
    assert_same_bits(sums(kernel, *arguments), expected)
    assert draw(kernel, KEY, 0, 10)[1]


@pytest.mark.parametrize(("text", "law"), [("matern(nu=1.5, scale=8)", "TABLE"), ("matern(nu=0.3, scale=8)", "GIVEN")])
def test_estimates_of_scores_are_those_on_the_cpu(text, law, monkeypatch):
    asked, right = [], transforms.trials_in_chunk
    monkeypatch.setattr(transforms, "trials_in_chunk", lambda *given: asked.append(given[:2]) or right(*given))
    monkeypatch.setitem(transforms._MOST_TRIALS, "cuda", 1024)
    q, k = np.random.default_rng(0).standard_normal((2, 3, 1, 16))

    def estimate():
        found = rfrope.estimate_scores(q, k, np.array([-3.0, 0.0, 8.0, 100.0]), text, n_trials=3000, rng=3)
        return [part for one in (found.mean, found.variance) for part in (one.value, one.stderr)]

    with emulation() as ran:
        found = estimate()
    assert asked == [("cuda", law == "TABLE")]
    assert [kernel for kernel in ran if kernel.startswith("score")] == [f"score_sums<{law}, 1, 4>"] * 3
    np.testing.assert_allclose(found, estimate(), rtol=1e-9, atol=1e-12)
