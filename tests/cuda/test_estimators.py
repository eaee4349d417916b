"""The estimators' CUDA kernels, run on the CPU: draws are the CPU's bit for bit, sums are the generic ones."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from campaign import campaign, sparse
from emulator import COMPILER, NO_COMPILER, Emulator, emulation, emulator
from hypothesis import example, given, settings
from hypothesis import strategies as st
from score_problems import EVERY, EVERY_TABLED, KEY, TRANSPORTED, problem, scaled_error

import rfrope
from rfrope import estimate_kernel, estimate_scores, kernels, montecarlo
from rfrope._backends import laws, schedules
from rfrope._backends.cuda import device
from rfrope._backends.cuda import estimators as backend
from rfrope._core import array, random

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

NO_LOOPS = "the bits of the compiled loops need Numba, with its compiler on"
SLOW = {"deadline": None}

uniforms = random.uniforms.generic


def sums(kernel, *arguments, backward=False, replaced=None):
    """Moments by the CUDA backend."""
    with emulation(backward=backward, replaced=replaced):
        return backend.score_sums(kernel, KEY, *arguments)


def both(kernel, *, start=0, length=600, backward=False, replaced=None, **options):
    arguments = (*problem(kernel, **options), start, length)
    return sums(kernel, *arguments, backward=backward, replaced=replaced), generic(kernel, *arguments)


def generic(kernel, *arguments):
    return montecarlo._score_sums.generic(kernel, KEY, *arguments)


def assert_same_bits(found, expected):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


# -- uniforms and frequencies ------------------------------------------------------------------------------------------

STARTS = st.one_of(st.integers(0, 2000), st.integers(2**33 - 300, 2**33 + 300), st.integers(0, 2**62))
KEYS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


def device_uniforms(key, start, count, columns, stream, streams, replaced=None):
    with emulation(replaced=replaced):
        return backend._uniforms(key, start, count, columns, stream, streams, np.empty(0), np)


@settings(max_examples=80, **SLOW)
@given(
    key=KEYS,
    start=STARTS,
    count=st.integers(0, 700),
    columns=st.integers(1, 3),
    stream=st.one_of(st.integers(0, 9), st.just(2**32 - 3)),
    streams=st.integers(0, 3),
)
def test_uniforms_are_those_of_the_generic_function_bit_for_bit(key, start, count, columns, stream, streams):
    found = device_uniforms(key, start, count, columns, stream, streams)
    np.testing.assert_array_equal(found, uniforms(key, start, count, columns, stream=stream, streams=streams))


def device_frequencies(kernel, key, start, length, replaced=None):
    with emulation(replaced=replaced) as ran:
        omega = backend.drawn(kernel, key, start, length, np.empty(0))
    return omega, ran


@pytest.fixture(scope="module")
def loop_frequencies():
    """Frequencies of a stated law by the loops for the CPU."""
    loops = pytest.importorskip("rfrope._backends.cpu.estimator_loops", reason=NO_LOOPS, exc_type=ImportError)
    from numba import njit

    @njit
    def component(law, parameter, factor, table, u, out):
        loops._component(law, parameter, factor, table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size)

    @njit
    def radius(table, u, out):
        loops._radius(table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size)

    def drawn(kernel, key, start, length):
        law = laws.stated(kernel)
        u = uniforms(key, start, length, kernel.n_columns)[0]
        omega = np.empty((kernel.ndim, length))
        for axis, (out, column) in enumerate(zip(omega, u.T[-kernel.ndim :], strict=True)):
            component(law.code, law.parameter, law.factors[axis], law.table, np.ascontiguousarray(column), out)
        if law.radius.size:
            shared = np.empty(length)
            radius(law.radius, np.ascontiguousarray(u[:, 0]), shared)
            omega *= shared
        return omega.T

    return drawn


@settings(max_examples=80, **SLOW)
@given(kernel=st.sampled_from(EVERY_TABLED), key=KEYS, start=STARTS, length=st.integers(0, 900))
@example(EVERY_TABLED[0], KEY, 2**32 - 5, 20)
def test_frequencies_are_those_of_the_compiled_loops_bit_for_bit(loop_frequencies, kernel, key, start, length):
    omega, _ = device_frequencies(kernel, key, start, length)
    np.testing.assert_array_equal(omega, loop_frequencies(kernel, key, start, length), strict=True)


@pytest.mark.parametrize("kernel", EVERY, ids=repr)
@pytest.mark.parametrize(("start", "length"), [(0, 2000), (2**40 + 1, 333)])
def test_frequencies_are_those_of_the_transport(kernel, start, length):
    omega, ran = device_frequencies(kernel, KEY, start, length)
    expected = montecarlo._drawn.generic(kernel, KEY, start, length, np.empty(0))
    stated = laws.stated(kernel)
    assert ran == (["uniforms"] if stated is None else [f"frequencies<{backend._LAWS[stated.code]}>"])
    np.testing.assert_allclose(omega, expected, rtol=1e-13 if stated else 0.0, atol=3e-16 if stated else 0.0)


# -- sums --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", EVERY, ids=repr)
def test_sums_are_those_of_the_generic_function(kernel):
    found, expected = both(kernel, start=11, length=300)
    assert [x.shape for x in found] == [(3, 5)] * 4
    assert scaled_error(found, expected, 300) < 1e-9


SHAPES = st.sampled_from(
    [((), ()), ((1,), ()), ((), (1,)), ((3,), ()), ((6,), (1,)), ((), (4,)), ((), (9,)), ((3, 1), (5,)),
     ((2, 1, 3), (4, 1)), ((5,), (5,)), ((3, 5), (5,)), ((1, 5), (3, 1)), ((0,), ()), ((), (0,)), ((2, 0), (1,))]
)  # fmt: skip


@campaign
@settings(max_examples=100, **SLOW)
@given(
    kernel=st.sampled_from(EVERY),
    shapes=SHAPES,
    blocks=st.integers(0, 9),
    start=st.sampled_from([0, 1, 2**20 + 3, 2**32 - 2000]),
    length=st.integers(2, 800),
    longest=st.sampled_from([0.0, 20.0, 500.0]),
    seed=st.integers(0, 99),
    backward=st.booleans(),
)
@example(EVERY[0], ((2, 7), (11, 1, 1)), 2, 0, 65, 20.0, 0, False)
def test_sums_agree_for_all_shapes(kernel, shapes, blocks, start, length, longest, seed, backward):
    pairs, lags = shapes
    options = {"pairs": pairs, "lags": lags, "blocks": blocks, "longest": longest, "seed": seed}
    found, expected = both(kernel, start=start, length=length, backward=backward, **options)
    assert [np.shape(x) for x in found] == [np.shape(x) for x in expected]
    if math.prod(np.shape(found[0])):
        assert scaled_error(found, expected, length) < 1e-9


def strided(x, seed: int):
    """The numbers of an array, lying in memory with strides of any kind."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(x.ndim)
    wide = np.full([2 * n for n in x.shape], np.nan).transpose(order)
    view = wide.transpose(np.argsort(order))[tuple(slice(None, None, -2) if rng.random() < 0.5 else slice(1, None, 2)
                                                   for _ in x.shape)]  # fmt: skip
    view[...] = x
    return view


@pytest.mark.parametrize("seed", sparse(range(8), lambda seed: seed < 2))
@pytest.mark.parametrize("kernel", [EVERY_TABLED[0], EVERY_TABLED[9], TRANSPORTED[1]], ids=repr)
def test_strides_of_any_kind_change_no_bit(kernel, seed):
    delta, a, b = problem(kernel, pairs=(2, 1, 3), lags=(5, 1), blocks=5)
    expected = sums(kernel, delta, a, b, 3, 300)
    assert_same_bits(sums(kernel, *(strided(v, seed) for v in (delta, a, b)), 3, 300), expected)


@pytest.mark.parametrize("kernel", sparse(EVERY, lambda kernel: kernel in EVERY[::4]), ids=repr)
def test_the_score_of_a_trial_is_that_of_the_compiled_loops_bit_for_bit(kernel):
    estimators = pytest.importorskip("rfrope._backends.cpu.estimators", reason=NO_LOOPS, exc_type=ImportError)
    for seed, longest in enumerate((60.0, 1e13, 1e14, 1e100)):
        delta, a, b = problem(kernel, pairs=(3, 1), lags=(5,), blocks=7, seed=seed, longest=longest)
        found = sums(kernel, delta, a, b, 12345 * seed, 1)
        expected = estimators.score_sums(kernel, KEY, delta, a, b, 12345 * seed, 1)
        np.testing.assert_array_equal(found[0], expected[0])
        assert not np.any(found[1:])


@pytest.mark.parametrize("kernel", [EVERY_TABLED[0], EVERY_TABLED[8], TRANSPORTED[0]], ids=repr)
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
    tails = int(np.sum(uniforms(KEY, 0, 1, 1, stream=5, streams=length) > 0.5))
    heads, mean = length - tails, Fraction(3 * (length - 2 * tails), length)
    exact = [mean] + [heads * (3 - mean) ** p + tails * (-3 - mean) ** p for p in (2, 3, 4)]
    np.testing.assert_allclose(np.array(found), [float(x) for x in exact], rtol=1e-12, atol=1e-12 * length)


def test_a_large_mean_does_not_swamp_the_spread():
    kernel = kernels.parse("gaussian(scale=1e4)")
    delta, a, b = problem(kernel, longest=7.0)
    arguments = (kernel, delta, 1e6 + a, b, 0, 512)
    found, expected = sums(*arguments), generic(*arguments)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-14)


@pytest.mark.parametrize("kernel", [EVERY_TABLED[0], EVERY_TABLED[9], TRANSPORTED[0]], ids=repr)
def test_bits_are_the_same_again_in_any_order_of_threads_and_in_any_groups_of_tiles(kernel, monkeypatch):
    arguments = (kernel, *problem(kernel, pairs=(5, 1), lags=(3,)), 3, 700)
    expected = sums(*arguments)
    assert_same_bits(sums(*arguments), expected)
    assert_same_bits(sums(*arguments, backward=True), expected)
    monkeypatch.setattr(backend, "_LAID_OUT", 100)
    assert_same_bits(sums(*arguments), expected)


# -- mistakes in the text ----------------------------------------------------------------------------------------------

DRAWING = ("uniforms", "frequencies<TABLE>")
SUMMING = (
    "lay_out",
    "merge_parts",
    *(f"score_sums<{a}>" for a in ("TABLE, 1, 1", "TABLE, 4, 1", "TABLE, 1, 4", "GIVEN, 1, 4")),
)


def mutated(old: str, new: str, more: tuple[str, ...]) -> dict[str, Emulator]:
    text = device.text("estimators")
    assert text.count(old) == 1, f"the text holds {text.count(old)} times {old!r}"
    return {"estimators": Emulator(text.replace(old, new), (*DRAWING, *more))}


def wrong_uniforms(replaced) -> bool:
    return any(
        not np.array_equal(
            device_uniforms(KEY, start, 40, 2, 1, 2, replaced), uniforms(KEY, start, 40, 2, stream=1, streams=2)
        )
        for start in (3, 4)
    )


def wrong_frequencies(replaced) -> bool:
    for kernel in (EVERY_TABLED[0], EVERY_TABLED[9]):
        right, _ = device_frequencies(kernel, KEY, 3, 300)
        if not np.array_equal(device_frequencies(kernel, KEY, 3, 300, replaced)[0], right):
            return True
    return False


def wrong_sums(replaced) -> bool:
    """Whether some sums are not those of the generic function, or not the same bits backwards."""
    for kernel, pairs, lags, enough in (
        (EVERY_TABLED[0], (), (), backend._ENOUGH_BLOCKS),
        (EVERY_TABLED[0], (), (), 1),  # some trials for each thread
        (EVERY_TABLED[8], (), (5,), backend._ENOUGH_BLOCKS),
        (EVERY_TABLED[9], (5,), (), backend._ENOUGH_BLOCKS),
        (TRANSPORTED[1], (3, 1), (2,), backend._ENOUGH_BLOCKS),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "_ENOUGH_BLOCKS", enough)
            found, expected = both(kernel, pairs=pairs, lags=lags, replaced=replaced)
            if not scaled_error(found, expected, 600) < 1e-9:
                return True
            again, _ = both(kernel, pairs=pairs, lags=lags, backward=True, replaced=replaced)
            if not np.array_equal(found, again):
                return True
    return False


MISTAKES = [  # none of them writes where nothing belongs to it
    (wrong_uniforms, "0xD2511F53u", "0xD2511F51u"),
    (wrong_uniforms, "round < 10", "round < 9"),
    (wrong_uniforms, "if (at >= 0) put", "if (at > 0) put"),
    (wrong_frequencies, "axis + 1 : axis", "axis : axis"),
    (wrong_frequencies, "(spot.upper ? SIDE * ROW_BYTES : 0)", "0"),
    (wrong_frequencies, "upper ? 1.0 - u : u", "u"),
    (wrong_sums, "piece - (SIDE - NEAR);", "piece - (SIDE - NEAR) - 1;"),
    (wrong_sums, "        __syncthreads();\n    }\n    const uint32 parts", "    }\n    const uint32 parts"),
    (wrong_sums, "    __syncthreads();  // what was there has been read\n", ""),
    (wrong_sums, "        __syncthreads();\n        if (threadIdx.x < half)", "        if (threadIdx.x < half)"),
    (wrong_sums, "lags += 8 * LAGS;", "lags += 8;"),
    (wrong_sums, "16 * (LAGS * PAIRS + i)", "16 * i"),
    (wrong_sums, "(count + 1) << 62", "count << 62"),
    (wrong_sums, "a * b * (a - b) * n", "a * b * (a + b) * n"),
    (wrong_sums, "n * n - 3.0 * n + 3.0", "n * n - 3.0 * n + 2.0"),
    (wrong_sums, "plan.tile_lags + slot / plan.tile_pairs", "plan.tile_lags + slot / plan.tile_pairs + 1"),
    (wrong_sums, "slot % plan.tile_pairs, 0, 0", "slot % plan.tile_lags, 0, 0"),
    (wrong_sums, "part < plan.parts; part += MERGING_THREADS", "part + 1 < plan.parts; part += MERGING_THREADS"),
    (wrong_sums, "plan.length - part * plan.span", "plan.length"),
]


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [pytest.param(*one, marks=[campaign] if i % 10 else [], id=one[1].strip()[:40]) for i, one in enumerate(MISTAKES)],
)
def test_a_mistake_in_the_text_is_noticed(check, old, new):
    assert check(mutated(old, new, SUMMING if check is wrong_sums else ()))


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("uniforms", backend.DRAWS),
        ("frequencies<TABLE>", backend.DRAWS),
        ("lay_out", backend.ROWS),
        ("merge_parts", backend.ROWS),
    ]
    + [(kernel, backend.SCORES) for kernel in backend.KERNELS if kernel.startswith("score_sums")],
)
def test_a_plan_has_the_size_of_the_structure(kernel, dtype):
    emulator("estimators").launch(kernel, 0, 256, np.zeros((), dtype))
    with pytest.raises(AssertionError, match="another size"):
        emulator("estimators").launch(kernel, 0, 256, np.zeros((), [("plan", dtype), ("more", np.int64)]))


def test_the_text_repeats_the_numbers_of_the_tables():
    text = device.text("estimators")
    assert f"PIECES = {laws.PIECES}, SIDE = {laws.OCTAVES} * PIECES" in text
    assert f"#define ROW_BYTES {8 * laws.ROW}\n" in text
    assert [backend._LAWS[code] for code in (laws.UNIFORM, laws.LOG_UNIFORM, laws.TABLE)] == re.search(
        r"enum Law { (.*), GIVEN };", text
    ).group(1).split(", ")


@pytest.mark.parametrize(
    ("lags", "members", "tile"),
    [
        (1, 1, (1, 1)),
        (2, 1, (1, 1)),
        (3, 1, (4, 1)),
        (17, 1, (4, 1)),
        (1, 2, (1, 4)),
        (1, 64, (1, 4)),
        (64, 64, (1, 4)),
    ],
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


# -- tables ------------------------------------------------------------------------------------------------------------


def test_tables_are_put_on_a_device_once_and_nothing_travels_afterwards(monkeypatch):
    kernel = kernels.parse("matern(nu=1.25, scale=3, ndim=2)")
    arguments = (*problem(kernel), 0, 100)
    expected = sums(kernel, *arguments)
    for module, name in ((array, "from_host"), (array, "to_host"), (array, "view_as_numpy")):
        monkeypatch.setattr(module, name, None)
    assert_same_bits(sums(kernel, *arguments), expected)
    assert device_frequencies(kernel, KEY, 0, 10)[1]


# -- the public functions ----------------------------------------------------------------------------------------------

Q, K = np.random.default_rng(0).standard_normal((2, 3, 1, 16))
LAGS = np.array([-3.0, 0.0, 8.0, 100.0])


@pytest.fixture
def called(monkeypatch):
    """Names of the functions for CUDA that were called."""
    names = []
    for name in ("score_sums", "drawn"):
        monkeypatch.setattr(backend, name, recording(names, name, getattr(backend, name)))
    return names


@pytest.fixture
def scheduled(monkeypatch):
    """Where trials were scheduled for, and whether their law is known there."""
    asked, right = [], schedules.trials_in_chunk
    monkeypatch.setattr(
        schedules, "trials_in_chunk", lambda *arguments: asked.append(arguments[:2]) or right(*arguments)
    )
    return asked


def recording(names, name, function):
    return lambda *arguments: names.append(name) or function(*arguments)


def parts(found) -> list[np.ndarray]:
    return [found.mean.value, found.mean.stderr, found.variance.value, found.variance.stderr]


@pytest.mark.parametrize("text", ["matern(nu=1.5, scale=8)", "matern(nu=0.3, scale=8)"])
def test_estimates_of_scores_are_those_on_the_cpu(text, called, scheduled, monkeypatch):
    expected = estimate_scores(Q, K, LAGS, text, n_trials=3000, rng=3)
    assert called == []
    monkeypatch.setitem(schedules._MOST_TRIALS, "cuda", 1024)
    scheduled.clear()
    with emulation() as ran:
        found = estimate_scores(Q, K, LAGS, text, n_trials=3000, rng=3)
    assert scheduled == [("cuda", "1.5" in text)]
    assert called == ["score_sums"] * 3
    law = "TABLE" if "1.5" in text else "GIVEN"
    assert {kernel for kernel in ran if kernel.startswith("score")} == {f"score_sums<{law}, 1, 4>"}
    for x, y in zip(parts(found), parts(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("text", ["gaussian(scale=8)", "cauchy(scale=8)", "matern(nu=0.3, scale=8)"])
@pytest.mark.parametrize("quantity", ["phi", "phi2", "sin"])
def test_estimates_of_kernels_are_those_on_the_cpu(text, quantity, called):
    expected = estimate_kernel(LAGS, text, n_samples=3001, rng=3, quantity=quantity)
    assert called == []
    with emulation():
        found = estimate_kernel(LAGS, text, n_samples=3001, rng=3, quantity=quantity)
    assert set(called) == {"drawn"}
    for x, y in ((found.value, expected.value), (found.stderr, expected.stderr)):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
