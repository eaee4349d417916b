"""Compiled versions of the score estimator and of the uniforms: equal to the generic functions, and really at work.

"Equal" for sums means to 1e-9 of their own scale (see `score_problems.scaled_error`).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from score_problems import EVERY, EVERY_TABLED, KEY, TRANSPORTED, problem, scaled_error

import rfrope
from rfrope import estimate_scores, kernels, montecarlo
from rfrope._backends import laws, schedules
from rfrope._core import dispatch, parallel, quantiles, random
from rfrope.kernels import families

NO_LOOPS = "compiled loops need Numba, with its compiler on"
estimators = pytest.importorskip("rfrope._backends.cpu.estimators", reason=NO_LOOPS, exc_type=ImportError)
circle = pytest.importorskip("rfrope._backends.cpu.circle", reason=NO_LOOPS, exc_type=ImportError)
estimator_loops = pytest.importorskip("rfrope._backends.cpu.estimator_loops", reason=NO_LOOPS, exc_type=ImportError)
njit = pytest.importorskip("numba", reason=NO_LOOPS).njit


def both(kernel, *, start=0, length=600, **options):
    arguments = (kernel, KEY, *problem(kernel, **options), start, length)
    return estimators.score_sums(*arguments), montecarlo._score_sums.generic(*arguments)


# -- the sums ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", EVERY, ids=repr)
def test_sums_are_those_of_the_generic_function(kernel):
    found, expected = both(kernel, start=11)
    assert [x.shape for x in found] == [(3, 5)] * 4
    assert scaled_error(found, expected, 600) < 1e-9


@pytest.mark.parametrize(("lags", "pairs"), [(1, 1), (31, 1), (32, 1), (33, 1), (7, 20), (3, 33), (65, 2), (200, 1)])
def test_lags_in_any_number_of_tiles(lags, pairs):
    """Fewer rows than are worked on together, as many, more in one lag alone, and several tiles of lags."""
    kernel, rng = kernels.parse("exponential(scale=3.0)"), np.random.default_rng(lags)
    delta = np.repeat(np.arange(1.0, lags + 1.0), pairs).reshape(lags, pairs, 1)
    a, b = rng.standard_normal((2, lags, pairs, 4))
    found, expected = (
        one(kernel, KEY, delta, a, b, 0, 70) for one in (estimators.score_sums, montecarlo._score_sums.generic)
    )
    assert found[0].shape == (lags, pairs)
    assert scaled_error(found, expected, 70) < 1e-9
    first = np.arange(0, pairs * (lags + 1), pairs)
    tiles = estimators._tiles(first)
    assert (tiles[0], tiles[-1]) == (0, lags)
    assert np.all(np.diff(tiles) > 0)
    assert all(stop - start == 1 or first[stop] - first[start] <= 32 for start, stop in itertools.pairwise(tiles))


@pytest.mark.parametrize("lags", [[2.0**60], [2.0**60, 3.0]])
def test_phases_beyond_those_that_the_loop_reduces(lags):
    """One row for each lag, which is added without a store, and several."""
    kernel, rng = kernels.parse("sinc(bandwidth=1.0)"), np.random.default_rng(5)
    for pairs in (1, 3):
        delta, (a, b) = (
            np.broadcast_to(np.reshape(lags, (-1, 1, 1)), (len(lags), pairs, 1)),
            rng.standard_normal((2, 1, 1, 4)),
        )
        a, b = (np.broadcast_to(one, (len(lags), pairs, 4)) for one in (a, b))
        found, expected = (
            one(kernel, KEY, delta, a, b, 0, 600) for one in (estimators.score_sums, montecarlo._score_sums.generic)
        )
        assert scaled_error(found, expected, 600) < 1e-9


SHAPES = st.sampled_from(
    [((), ()), ((1,), ()), ((), (1,)), ((3,), ()), ((), (4,)), ((3, 1), (5,)), ((2, 1, 3), (4, 1)), ((5,), (5,)),
     ((0,), ()), ((), (0,))]
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    kernel=st.sampled_from(EVERY),
    shapes=SHAPES,
    blocks=st.integers(1, 9),
    start=st.sampled_from([0, 1, 2**20 + 3]),
    length=st.integers(2, 1100),
    longest=st.sampled_from([0.0, 20.0, 500.0]),
    seed=st.integers(0, 99),
)
@example(EVERY[0], ((200,), (90, 1)), 2, 0, 65, 20.0, 0)  # so many rows that lanes are few
@example(EVERY[0], ((), ()), 1, 0, 1, 20.0, 0)
def test_sums_agree_for_all_shapes(kernel, shapes, blocks, start, length, longest, seed):
    pairs, lags = shapes
    found, expected = both(
        kernel, start=start, length=length, pairs=pairs, lags=lags, blocks=blocks, longest=longest, seed=seed
    )
    assert [x.shape for x in found] == [x.shape for x in expected]
    if 0 not in found[0].shape:
        assert scaled_error(found, expected, length) < 1e-9


@pytest.mark.parametrize("longest", [1e6, 1e14, 1e140])
def test_phases_of_any_size_agree_where_the_frequencies_are_the_same_bits(longest):
    """Uniform laws are not tabled, and a kernel's own transport gives the generic function's frequencies."""
    for kernel in (kernels.parse("sinc(bandwidth=0.5, ndim=2)"), kernels.parse("matern(nu=0.05, scale=3)")):
        assert scaled_error(*both(kernel, longest=longest), 600) < 1e-9


def test_a_large_mean_does_not_swamp_the_spread():
    kernel = kernels.parse("gaussian(scale=1e4)")
    delta, a, b = problem(kernel, longest=7.0)
    arguments = (kernel, KEY, delta, 1e6 + a, b, 0, 512)
    found, expected = estimators.score_sums(*arguments), montecarlo._score_sums.generic(*arguments)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-14)


@pytest.mark.parametrize("kernel", [EVERY[0], EVERY[5], EVERY[8]], ids=repr)
def test_the_comparison_notices_a_table_that_is_off_by_a_millionth(kernel, monkeypatch):
    right = laws.component_table
    monkeypatch.setattr(laws, "component_table", lambda *law: right(*law) * (1.0 + 1e-6))
    monkeypatch.setattr(laws, "_stated", laws._stated.__wrapped__)  # it keeps what it found
    assert scaled_error(*both(kernel), 600) > 1e-9


def test_a_subclass_with_another_transport_is_not_taken_for_its_parent():
    @dataclasses.dataclass(frozen=True, repr=False)
    class Wide(families.Gaussian):
        def _unit_transport(self, u):
            return 1.001 * super()._unit_transport(u)

    assert laws.stated(Wide(scale=3.0)) is None
    assert scaled_error(*both(Wide(scale=3.0)), 600) < 1e-9


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_extreme_scales_are_left_to_the_transport(scale):
    assert laws.stated(rfrope.kernel("gaussian", scale=scale)) is None
    assert scaled_error(*both(rfrope.kernel("gaussian", scale=scale), length=32), 32) < 1e-9


def test_the_loops_find_pieces_by_the_bits_that_the_tables_are_cut_by():
    names = ("UNIFORM", "LOG_UNIFORM", "PIECES", "ROW", "SIDE")
    assert [getattr(estimator_loops, name) for name in names] == [getattr(laws, name) for name in names]
    assert sorted({laws.UNIFORM, laws.LOG_UNIFORM, laws.TABLE}) == [0, 1, 2]
    assert 2 ** int(estimator_loops._PIECE_SHIFT) == laws.PIECES
    assert int(estimator_loops._PIECE_BITS) + int(estimator_loops._PIECE_SHIFT) == 52  # those of a mantissa
    assert int(estimator_loops._PIECE_MASK) == 2 ** int(estimator_loops._PIECE_BITS) - 1
    assert int(estimator_loops._UPPER) == laws.SIDE * laws.ROW == laws.OCTAVES * laws.PIECES * laws.ROW


def test_a_quantile_that_no_table_fits_is_refused():
    assert laws.table(lambda v: np.sin(1e4 * v)) is None
    assert laws.table(lambda v: np.where(v < 0.1, np.nan, v)) is None


# -- who works ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def spy(monkeypatch):
    """Names of the compiled functions that were called."""
    called, original = [], dispatch.backend_function

    def recorded(function, place):
        compiled = original(function, place)
        return compiled and (lambda *args, **options: called.append(function.name) or compiled(*args, **options))

    monkeypatch.setattr(dispatch, "backend_function", recorded)
    return called


Q, K = np.random.default_rng(0).standard_normal((2, 3, 1, 16))
LAGS = np.array([-3.0, 0.0, 8.0])


def estimate(text="matern(nu=1.5, scale=8)", **options):
    return estimate_scores(Q, K, LAGS, text, **{"n_trials": 3000, "rng": 3, **options})


def parts(found) -> list[np.ndarray]:
    return [found.mean.value, found.mean.stderr, found.variance.value, found.variance.stderr]


def test_compiled_loops_work_on_numpy_and_on_torch(spy):
    expected = estimate()
    assert "score_sums" in spy
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    spy.clear()
    found = estimate_scores(*map(torch.from_numpy, (Q, K, LAGS)), "matern(nu=1.5, scale=8)", n_trials=3000, rng=3)
    assert "score_sums" in spy
    for x, y in zip(parts(found), parts(expected), strict=True):
        assert isinstance(x, torch.Tensor)
        np.testing.assert_array_equal(x.numpy(), y)


def test_read_only_and_strided_input_compiles_nothing_new():
    expected = parts(estimate())
    before = len(estimator_loops.add_trials.signatures)
    q, k, lags = np.repeat(Q, 2, axis=-1)[..., ::2], np.asfortranarray(K), LAGS.copy()
    for array in (q, k, lags):
        array.flags.writeable = False
    for x, y in zip(parts(estimate_scores(q, k, lags, "matern(nu=1.5, scale=8)", n_trials=3000, rng=3)), expected,
                    strict=True):  # fmt: skip
        np.testing.assert_array_equal(x, y)
    for x in (np.ones((5, 4)), np.ones((3, 5, 4))):  # features of all pairs side by side in memory
        rfrope.estimate_scores(np.asfortranarray(x), np.asfortranarray(x), 1.0, "gaussian", n_trials=8, rng=0)
    assert len(estimator_loops.add_trials.signatures) == before == 1


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setitem(schedules._TABLED, "cpu", 2**14)
    monkeypatch.setitem(schedules._TRANSPORTED, "cpu", 2**14)


@pytest.mark.parametrize("text", ["matern(nu=1.5, scale=8)", "matern(nu=0.3, scale=8)"])
def test_bits_are_the_same_for_every_number_of_threads_and_every_executor(text, small_chunks):
    expected = parts(estimate(text))
    for n in (1, 2, 3, 4):
        with parallel.threads(n):
            for x, y in zip(parts(estimate(text)), expected, strict=True):
                np.testing.assert_array_equal(x, y)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for executor in (map, pool, pool.map):
            for x, y in zip(parts(estimate(text, executor=executor)), expected, strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("kernel", "stated"), [(EVERY_TABLED[0], True), (TRANSPORTED[0], False)], ids=["fast", "slow"])
def test_chunks_are_those_of_the_schedule_for_this_kernel(kernel, stated, monkeypatch):
    asked, right = [], schedules.trials_in_chunk
    monkeypatch.setattr(schedules, "trials_in_chunk", lambda *arguments: asked.append(arguments) or right(*arguments))
    estimate_scores(Q, K, LAGS, kernel, n_trials=8, rng=0)
    assert asked == [("cpu", stated, 8 * (3 + kernel.n_columns + 1) + 9)]


# -- cos and sin -------------------------------------------------------------------------------------------------------


@njit
def cos_sin(u, cos, sin):
    for i in range(u.size):
        cos[i], sin[i] = estimator_loops._cos_sin(u[i])


def test_cos_and_sin_of_reduced_phases_are_good_to_4e_16():
    rng = np.random.default_rng(5)
    u = np.concatenate(
        [np.arange(-64, 65) * (math.pi / 8), rng.uniform(-10, 10, 500), rng.uniform(-(2**40), 2**40, 500)]
    )
    cos, sin = np.empty_like(u), np.empty_like(u)
    cos_sin(u, cos, sin)
    with mp.workdps(60):
        for value, c, s in zip(u, cos, sin, strict=True):
            assert abs(mp.cos(mp.mpf(value)) - mp.mpf(c)) < 4e-16
            assert abs(mp.sin(mp.mpf(value)) - mp.mpf(s)) < 4e-16
    assert np.all(np.abs(cos) <= 1.0)
    assert np.all(np.abs(sin) <= 1.0)


def interpolated(function, degree: int, top: float, bottom: float = 0.0) -> list[float]:
    """Coefficients of the polynomial through a function's values at Chebyshev's points of [bottom, top]."""
    middle, half = (mp.mpf(top) + mp.mpf(bottom)) / 2, (mp.mpf(top) - mp.mpf(bottom)) / 2
    nodes = [middle + half * mp.cos(mp.pi * (j + mp.mpf(1) / 2) / (degree + 1)) for j in range(degree + 1)]
    matrix = mp.matrix([[x**j for j in range(degree + 1)] for x in nodes])
    return [float(c) for c in mp.lu_solve(matrix, mp.matrix([function(x) for x in nodes]))]


def test_the_coefficients_are_those_of_the_interpolation_that_their_comment_names():
    with mp.workdps(40):
        sin = interpolated(lambda s: mp.sin(mp.pi / 2 * mp.sqrt(s)) / mp.sqrt(s), 6, 0.25)
        cos = interpolated(lambda s: mp.cos(mp.pi / 2 * mp.sqrt(s)), 7, 0.25)
        assert list(circle.SIN) == sin
        assert list(circle.COS) == cos
        high, turn = float(2 / mp.pi), 1 / (2 * mp.pi)
        assert (float(turn), float(turn - float(turn))) == (circle.TURN_1, circle.TURN_2)
        assert high == estimator_loops._QUARTER_1
        assert float(2 / mp.pi - mp.mpf(high)) == estimator_loops._QUARTER_2
        assert list(estimator_loops.EXP) == interpolated(mp.exp, 12, mp.log(2) / 2, -mp.log(2) / 2)
        assert float(mp.log(2) - mp.mpf(estimator_loops._LN2_1)) == estimator_loops._LN2_2
        assert float(1 / mp.log(2)) == estimator_loops._PER_LN2


# -- quantiles ---------------------------------------------------------------------------------------------------------


@njit
def components(law, parameter, table, u, out):
    estimator_loops._component(
        law, parameter, 1.0, table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size
    )


@njit
def radii(table, u, out):
    estimator_loops._radius(table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size)


def cells(n: int = 20_000) -> np.ndarray:
    """Uniforms as `philox` makes them, odd multiples of 2**-53 below 1/2: ordinary ones, and some of every octave."""
    rng = np.random.default_rng(2)
    ordinary = rng.integers(0, 2**51, n)
    octaves = [rng.integers(2 ** (e - 1), 2**e, 40) for e in range(1, 52)]
    return (np.concatenate([ordinary, np.arange(8), 2**51 - 1 - np.arange(8), *octaves]) + 0.5) * 2.0**-52


COMPONENTS = {
    "normal": (quantiles.normal_quantile, ()),
    "laplace": (quantiles.laplace_quantile, ()),
    **{f"student {dof}": (quantiles.student_quantile, (dof,)) for dof in (1.0, 1.6, 2.0, 3.0, 5.0, 80.0)},
}


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_are_scipys_quantiles_and_odd_bit_for_bit(name):
    function, parameters = COMPONENTS[name]
    u = cells()
    below, above = np.empty_like(u), np.empty_like(u)
    components(laws.TABLE, 0.0, laws.component_table(function, parameters), u, below)
    components(laws.TABLE, 0.0, laws.component_table(function, parameters), 1.0 - u, above)
    np.testing.assert_array_equal(above, -below)
    exact = function(*parameters, u)
    # SciPy's Student quantile has an absolute error of some 1e-16 near 0
    assert np.all(np.abs(below - exact) <= 1e-13 * np.abs(exact) + (3e-16 if "student" in name else 0.0))


@pytest.mark.parametrize("u", [2.0**-53, 3.0 * 2.0**-53, 2.0**-30 + 2.0**-53, 0.1 - 2.0**-54, 0.5 - 2.0**-53])
def test_components_against_mpmath(u):
    u = math.floor(u * 2.0**52) * 2.0**-52 + 2.0**-53
    with mp.workdps(40):
        v = mp.mpf(u)
        normal = -mp.sqrt(2) * mp.erfinv(1 - 2 * v)
        exact = {
            "normal": normal,
            "laplace": mp.log(2 * v),
            "student 1.0": -mp.cot(mp.pi * v),
            "student 2.0": (2 * v - 1) / mp.sqrt(2 * v * (1 - v)),
        }
    for name, value in exact.items():
        out = np.empty(1)
        components(laws.TABLE, 0.0, laws.component_table(*COMPONENTS[name]), np.array([u]), out)
        assert out[0] == pytest.approx(float(value), rel=1e-13, abs=0.0), name


def test_components_of_laws_without_a_table():
    u = np.concatenate([cells(), 1.0 - cells()])
    out = np.empty_like(u)
    components(laws.UNIFORM, 0.0, np.empty(0), u, out)
    np.testing.assert_array_equal(out, 2.0 * u - 1.0)
    for ratio in (1e-3, 1.0, 9.2, 400.0):
        components(laws.LOG_UNIFORM, ratio, np.empty(0), u, out)
        exact = quantiles.log_uniform_quantile(1.0, math.exp(ratio), ratio, u)
        np.testing.assert_allclose(out, exact, rtol=1e-15 * (4.0 + ratio))
        np.testing.assert_array_equal(out[: out.size // 2], -out[out.size // 2 :])


RADII = {
    "student 0.5": (families._student_radius, (0.5,)),
    "student 1.5": (families._student_radius, (1.5,)),
    "student 40": (families._student_radius, (40.0,)),
    "cauchy": (families._cauchy_radius, ()),
    "root exponential": (families._root_exponential, ()),
}


@pytest.mark.parametrize("name", RADII)
def test_radii_are_those_of_the_transport(name):
    function, parameters = RADII[name]
    u = np.concatenate([cells(), 1.0 - cells()])
    out = np.empty_like(u)
    radii(laws.radius_table(function, parameters), u, out)
    np.testing.assert_allclose(out, function(*parameters, u), rtol=1e-13)


# -- uniforms ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    start=st.one_of(st.integers(0, 2000), st.integers(2**33 - 300, 2**33 + 300), st.integers(0, 2**62)),
    count=st.integers(0, 1200),
    columns=st.integers(1, 3),
    stream=st.one_of(st.integers(0, 9), st.just(2**32 - 3)),
    streams=st.integers(0, 3),
)
def test_uniforms_are_equal_bit_for_bit(key, start, count, columns, stream, streams):
    options = {"stream": stream, "streams": streams}
    found = estimators.uniforms(key, start, count, columns, **options)
    np.testing.assert_array_equal(found, random.uniforms.generic(key, start, count, columns, **options))


# -- in a process of its own -------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_trials():
    import tracemalloc

    peaks = []
    for n_trials in (2**16, 2**19):
        tracemalloc.start()
        estimate(n_trials=n_trials)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 2**17


@pytest.mark.parametrize("n_lags", [1, 63, 64, 1000, 2**20])
@pytest.mark.parametrize("axes", [2, 3])
def test_chunks_of_draws_at_scattered_lags_stay_small(n_lags, axes):
    """A loop takes 2**22 numbers at a time, or 2**10 draws; fewer lags take longer chunks."""
    lags = np.random.default_rng(0).uniform(-1e3, 1e3, (n_lags, axes))
    length = schedules.draws_in_chunk("cpu", lags, n_lags, 2**20, 1, axes)
    assert length & (length - 1) == 0
    assert length == 2**10 or length * n_lags <= 2**22
    assert length == 2**16 or 2 * length * n_lags > 2**22
