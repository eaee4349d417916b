"""Compiled estimators: which of them run, tiles and chunks, the tables of laws, and the same bits on any threads."""

import concurrent.futures
import dataclasses
import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from places import NO_LOOPS
from score_problems import EVERY_TABLED, KEY, TRANSPORTED, problem, scaled_error

import rfrope
from rfrope import estimate_scores, kernels, montecarlo
from rfrope._backends import transforms
from rfrope._core import dispatch, parallel, quantiles
from rfrope.kernels import families

estimators = pytest.importorskip("rfrope._backends.cpu.estimators", reason=NO_LOOPS, exc_type=ImportError)
estimator_loops = pytest.importorskip("rfrope._backends.cpu.estimator_loops", reason=NO_LOOPS, exc_type=ImportError)
numba = pytest.importorskip("numba", reason=NO_LOOPS)


def error_of_sums(kernel, *arguments, length=600):
    """Largest difference from the generic function, on the sums' own scale."""
    results = (
        one(kernel, KEY, *arguments, 0, length) for one in (estimators.score_sums, montecarlo._score_sums.generic)
    )
    return scaled_error(*results, length)


# -- the sums ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lags", [[2.0**60], [2.0**60, 3.0]])
@pytest.mark.parametrize("pairs", [1, 3])
def test_phases_beyond_those_that_the_loop_reduces(lags, pairs):
    """One row for each lag, which is added without a store, and several."""
    a, b = (np.repeat(one, pairs, 1) for one in np.random.default_rng(5).standard_normal((2, 1, 1, 4)))
    shape = len(lags), pairs
    delta = np.broadcast_to(np.reshape(lags, (-1, 1, 1)), (*shape, 1))
    a, b = (np.broadcast_to(one, (*shape, 4)) for one in (a, b))
    assert error_of_sums(kernels.parse("sinc(bandwidth=1.0)"), delta, a, b) < 1e-9


@pytest.mark.parametrize(("lags", "pairs"), [(1, 1), (31, 1), (32, 1), (33, 1), (7, 20), (3, 33), (65, 2), (200, 1)])
def test_lags_in_any_number_of_tiles(lags, pairs):
    """Fewer rows than are worked on together, as many, more in one lag alone, and several tiles of lags."""
    kernel, rng = kernels.parse("exponential(scale=3.0)"), np.random.default_rng(lags)
    delta = np.repeat(np.arange(1.0, lags + 1.0), pairs).reshape(lags, pairs, 1)
    a, b = rng.standard_normal((2, lags, pairs, 4))
    assert error_of_sums(kernel, delta, a, b, length=70) < 1e-9
    first = np.arange(0, pairs * (lags + 1), pairs)
    tiles = estimators._tiles(first)
    assert (tiles[0], tiles[-1]) == (0, lags)
    assert np.all(np.diff(tiles) > 0)
    assert all(stop - start == 1 or first[stop] - first[start] <= 32 for start, stop in itertools.pairwise(tiles))


def test_a_subclass_with_another_transport_is_not_taken_for_its_parent():
    @dataclasses.dataclass(frozen=True, repr=False)
    class Wide(families.Gaussian):
        def _unit_transport(self, u):
            return 1.001 * super()._unit_transport(u)

    assert quantiles.tabulate_law(Wide(scale=3.0)) is None
    assert error_of_sums(Wide(scale=3.0), *problem(Wide(scale=3.0))) < 1e-9


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_extreme_scales_are_left_to_the_transport(scale):
    kernel = rfrope.kernel("gaussian", scale=scale)
    assert quantiles.tabulate_law(kernel) is None
    assert error_of_sums(kernel, *problem(kernel), length=32) < 1e-9


def test_a_quantile_that_no_table_fits_is_refused():
    assert quantiles.table(lambda v: np.sin(1e4 * v)) is None
    assert quantiles.table(lambda v: np.where(v < 0.1, np.nan, v)) is None


# -- who works ---------------------------------------------------------------------------------------------------------


Q, K = np.random.default_rng(0).standard_normal((2, 3, 1, 16))
LAGS = np.array([-3.0, 0.0, 8.0])
TEXT = "matern(nu=1.5, scale=8)"


def estimate(text=TEXT, given=(Q, K, LAGS), **options):
    found = estimate_scores(*given, text, **{"n_trials": 3000, "rng": 3, **options})
    return [found.mean.value, found.mean.stderr, found.variance.value, found.variance.stderr]


def test_compiled_loops_work_on_numpy_and_on_torch(monkeypatch):
    called, original = [], dispatch.backend_function

    def recorded(function, place):
        compiled = original(function, place)
        return compiled and (lambda *args, **options: called.append(function.name) or compiled(*args, **options))

    monkeypatch.setattr(dispatch, "backend_function", recorded)
    expected = estimate()
    assert "score_sums" in called
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    called.clear()
    found = estimate(given=map(torch.from_numpy, (Q, K, LAGS)))
    assert "score_sums" in called
    assert all(isinstance(one, torch.Tensor) for one in found)
    np.testing.assert_array_equal(torch.stack(found).numpy(), expected)


def test_read_only_and_strided_input_compiles_nothing_new():
    expected = estimate()
    before = len(estimator_loops.add_trials.signatures)
    given = np.repeat(Q, 2, axis=-1)[..., ::2], np.asfortranarray(K), LAGS.copy()
    for array in given:
        array.flags.writeable = False
    np.testing.assert_array_equal(estimate(given=given), expected)
    for x in (np.ones((5, 4)), np.ones((3, 5, 4))):  # features of all pairs side by side in memory
        rfrope.estimate_scores(np.asfortranarray(x), np.asfortranarray(x), 1.0, "gaussian", n_trials=8, rng=0)
    assert len(estimator_loops.add_trials.signatures) == before == 1


@pytest.mark.parametrize("text", [TEXT, "matern(nu=0.3, scale=8)"])
def test_bits_are_the_same_for_every_number_of_threads_and_every_executor(text, monkeypatch):
    monkeypatch.setitem(transforms._TABLED, "cpu", 2**14)
    monkeypatch.setitem(transforms._TRANSPORTED, "cpu", 2**14)
    expected = estimate(text)
    for n in (1, 2, 3, 4):
        with parallel.threads(n):
            np.testing.assert_array_equal(estimate(text), expected)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for executor in (map, pool, pool.map):
            np.testing.assert_array_equal(estimate(text, executor=executor), expected)


@pytest.mark.parametrize(("kernel", "stated"), [(EVERY_TABLED[0], True), (TRANSPORTED[0], False)], ids=["fast", "slow"])
def test_chunks_are_those_of_the_schedule_for_this_kernel(kernel, stated, monkeypatch):
    asked, right = [], transforms.trials_in_chunk
    monkeypatch.setattr(transforms, "trials_in_chunk", lambda *arguments: asked.append(arguments) or right(*arguments))
    estimate(kernel, n_trials=8)
    assert asked == [("cpu", stated, 8 * (3 + kernel.n_columns + 1) + 9)]


# -- cos and sin -------------------------------------------------------------------------------------------------------


@numba.njit
def cos_sin(u, cos, sin):
    for i in range(u.size):
        cos[i], sin[i] = estimator_loops._cos_sin(u[i])


def test_cos_and_sin_of_reduced_phases_are_good_to_4e_16():
    rng = np.random.default_rng(5)
    u = np.concatenate(
        [np.arange(-64, 65) * (math.pi / 8), rng.uniform(-10, 10, 500), rng.uniform(-(2**40), 2**40, 500)]
    )
    cos, sin = found = np.empty((2, len(u)))
    cos_sin(u, cos, sin)
    with mp.workdps(60):
        for function, values in ((mp.cos, cos), (mp.sin, sin)):
            assert max(abs(function(mp.mpf(at)) - mp.mpf(value)) for at, value in zip(u, values, strict=True)) < 4e-16
    assert np.all(np.abs(found) <= 1.0)


# -- quantiles ---------------------------------------------------------------------------------------------------------


def cells(n: int = 20_000) -> np.ndarray:
    """Uniforms as `philox` makes them, odd multiples of 2**-53 below 1/2: ordinary ones, and some of every octave."""
    rng = np.random.default_rng(2)
    ordinary = rng.integers(0, 2**51, n)
    octaves = [rng.integers(2 ** (e - 1), 2**e, 40) for e in range(1, 52)]
    return (np.concatenate([ordinary, np.arange(8), 2**51 - 1 - np.arange(8), *octaves]) + 0.5) * 2.0**-52


@numba.njit
def components(law, parameter, factor, table, u, out):
    work = np.empty(u.size, np.uint64), np.empty(u.size)
    estimator_loops._component(law, parameter, factor, table, u, *work, out, u.size)


@numba.njit
def radii(table, u, out):
    estimator_loops._radius(table, u, np.empty(u.size, np.uint64), np.empty(u.size), out, u.size)


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
    components(quantiles.TABLE, 0.0, 1.0, quantiles.component_table(function, parameters), u, below)
    components(quantiles.TABLE, 0.0, 1.0, quantiles.component_table(function, parameters), 1.0 - u, above)
    np.testing.assert_array_equal(above, -below)
    exact = function(*parameters, u)
    # SciPy's Student quantile has an absolute error of some 1e-16 near 0
    assert np.all(np.abs(below - exact) <= 1e-13 * np.abs(exact) + (3e-16 if "student" in name else 0.0))


def test_components_of_laws_without_a_table():
    u = np.concatenate([cells(), 1.0 - cells()])
    out = np.empty_like(u)
    components(quantiles.UNIFORM, 0.0, 1.0, np.empty(0), u, out)
    np.testing.assert_array_equal(out, 2.0 * u - 1.0)
    for ratio in (1e-3, 1.0, 9.2, 400.0):
        components(quantiles.LOG_UNIFORM, ratio, 1.0, np.empty(0), u, out)
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
    radii(quantiles.radius_table(function, parameters), u, out)
    np.testing.assert_allclose(out, function(*parameters, u), rtol=1e-13)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_lags", [1, 63, 64, 1000, 2**20])
@pytest.mark.parametrize("axes", [2, 3])
def test_chunks_of_draws_at_scattered_lags_stay_small(n_lags, axes):
    """A loop takes 2**22 numbers at a time, or 2**10 draws; fewer lags take longer chunks."""
    lags = np.random.default_rng(0).uniform(-1e3, 1e3, (n_lags, axes))
    length = transforms.draws_in_chunk("cpu", lags, n_lags, 2**20, 1, axes)
    assert length & (length - 1) == 0
    assert length == 2**10 or length * n_lags <= 2**22
    assert length == 2**16 or 2 * length * n_lags > 2**22
