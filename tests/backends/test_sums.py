"""Sums over lags on the CPU: the compiled and transformed sums against the plain sums, and which of them ran."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from campaign import HANGS, campaign
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_angles import angles_of, vectors
from rotation_calls import laid, without_backends

import rfrope
from rfrope import heads, montecarlo
from rfrope._backends import transforms
from rfrope._core import dispatch, sums, turns

NO_LOOPS = "compiled loops need Numba, with its compiler on"
loops = pytest.importorskip("rfrope._backends.cpu.sums_loops", reason=NO_LOOPS, exc_type=ImportError)
backend = pytest.importorskip("rfrope._backends.cpu.sums", reason=NO_LOOPS, exc_type=ImportError)
circle = pytest.importorskip("rfrope._backends.cpu.circle", reason=NO_LOOPS, exc_type=ImportError)
compiling = pytest.importorskip("rfrope._backends.cpu.compiling", reason=NO_LOOPS, exc_type=ImportError)

BOUND = 1e-9  # error of a mean, as promised
LAWS = ("gaussian(scale=4{})", "exponential(scale=4{})")  # the second is a Cauchy law: |omega| far above 1e4


def frequencies(law: str, axes: int, count: int) -> np.ndarray:
    text = law.format(f", ndim={axes}" if axes > 1 else "")
    return rfrope.sample(text, count, rng=axes).reshape(count, axes)


def grid_of(side: int, axes: int, indexing: str = "ij") -> np.ndarray:
    """Whole lags (L, axes) about zero, as meshgrid makes them."""
    return np.stack(np.meshgrid(*[np.arange(side) - side // 3.0] * axes, indexing=indexing), -1).reshape(-1, axes)


def exact_mean(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Mean of exp(i u) from exact phases and NumPy's cos and sin."""
    parts = [turns.cos_sin.generic(angles_of(part, omega)) for part in np.array_split(lags, max(1, len(lags) // 64))]
    return np.concatenate([np.mean(cos + 1j * sin, axis=-1) for cos, sin in parts])


def mean_cos(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Mean by the backend."""
    return backend.mean_cos(angles_of(lags, omega))


def plain_mean(omega: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Mean by the generic function, from generic cosines."""
    with without_backends():
        return sums.mean_cos.generic(angles_of(lags, omega))


def kernel_moments(omega: np.ndarray, delta: np.ndarray, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Moments by the backend."""
    delta, omega = vectors(delta, omega)
    return backend.kernel_moments(omega, delta, quantity)


def plain_moments(omega: np.ndarray, delta: np.ndarray, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Moments by the generic function."""
    delta, omega = vectors(delta, omega)
    return montecarlo._kernel_moments.generic(omega, delta, quantity)


@pytest.fixture
def ran(monkeypatch):
    """Names of the paths that were taken, in order."""
    names = []
    for name in ("_grid_sums", "_scattered_sums", "_direct_sums", "_direct_mean", "_direct_moments", "_powers"):
        right = getattr(backend, name)

        def noted(*arguments, name=name, right=right):
            names.append(name.removeprefix("_"))
            return right(*arguments)

        monkeypatch.setattr(backend, name, noted)
    return names


# -- cos and sin of the loops ------------------------------------------------------------------------------------------


def looped(omega, lags):
    """Cos and sin of every lag with every frequency, from the loops."""
    turned = backend._Turned.from_frequencies(np.asarray(omega, dtype=float).reshape(-1, 1))
    return np.stack([backend._phasors(turned, np.asarray([[lag]])) for lag in lags])


def test_cos_and_sin_of_the_loops_against_mpmath():
    mpmath = pytest.importorskip("mpmath")
    omega = np.concatenate([rfrope.geometric(24), [math.pi / 4, math.pi, 1e-300, 12345.678, -2.5]])
    lags = [1.0, -7.0, 131071.0, 2.0**24 + 1, 1e9, 0.37, 2.0**36 - 1]
    got = looped(omega, lags)
    with mpmath.workdps(60):
        wanted = [[complex(mpmath.expj(mpmath.mpf(lag) * mpmath.mpf(float(w)))) for w in omega] for lag in lags]
    error = np.abs(got - np.asarray(wanted))
    assert error.max() < 4e-16
    assert np.abs(np.exp(1j * np.multiply.outer(lags, omega)) - np.asarray(wanted)).max() > 1e-12  # plain phases


# -- mean_cos: the backend against the plain sum -----------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    heads=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    count=st.integers(1, 9),
    axes=st.integers(1, 5),
    positions=SHAPES,
    flat=st.booleans(),
    whole=st.booleans(),
    strided=st.booleans(),
    seed=st.integers(0, 99),
)
@example(heads=(), count=1, axes=1, positions=(), flat=True, whole=True, strided=False, seed=0)
@example(heads=(2,), count=3, axes=2, positions=(), flat=False, whole=False, strided=True, seed=0)
@example(heads=(2,), count=3, axes=1, positions=(0,), flat=False, whole=True, strided=False, seed=0)
def test_the_backend_is_the_plain_sum(heads, count, axes, positions, flat, whole, strided, seed):
    rng = np.random.default_rng(seed)
    omega = rng.standard_cauchy((count,) if flat else (*heads, count, axes))
    if not flat and len(positions) > 1:  # leading axes of positions broadcast against heads
        positions = (*(1 for _ in positions[:-1]), positions[-1])
    shape = positions if flat else (*positions, axes)
    lags = np.asarray(rng.integers(-99, 99, shape) if whole else rng.normal(size=shape) * 9.0)
    if strided and lags.ndim:
        lags = np.repeat(lags, 2, axis=-1)[..., ::2][::-1]
        lags.flags.writeable = False
    got, wanted = (f(omega, lags) for f in (mean_cos, plain_mean))
    assert got.shape == wanted.shape == angles_of(lags, omega).shape[:-1]
    assert got.dtype == wanted.dtype == np.float64
    np.testing.assert_allclose(got, wanted, atol=5e-15)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["whole", "fractions", "far", "scattered", "far scattered"])
def test_transforms_keep_the_bound(law, axes, kind, ran):
    omega = frequencies(law, axes, {1: 2**13, 2: 2**13, 3: 2**13}[axes])
    lags = grid_of({1: 2048, 2: 40, 3: 12}[axes], axes)
    scattered = np.random.default_rng(0).uniform(-12.0, 12.0, lags.shape)
    lags = {
        "whole": lags,
        "fractions": lags * 0.1,
        "far": lags + 2.0**36,
        "scattered": scattered,
        "far scattered": scattered + 1e7,
    }[kind]
    got = mean_cos(omega, lags)
    if kind.endswith("scattered"):
        # a Cauchy law in three axes has no box that is small and leaves few outside
        wanted = {"direct_mean"} if law == LAWS[1] and axes == 3 else {"scattered_sums"}
    else:
        wanted = {"grid_sums"}
    assert wanted <= set(ran)
    chosen = np.random.default_rng(1).integers(0, len(lags), 200)
    assert np.max(np.abs(got[chosen] - exact_mean(omega, lags[chosen]).real)) < BOUND / 10


@pytest.mark.parametrize(("axes", "indexing"), [(2, "ij"), (2, "xy"), (3, "ij"), (3, "xy")])
def test_grids_are_found_in_any_order(axes, indexing):
    lags = grid_of(12, axes, indexing)
    for order in (np.arange(len(lags)), np.arange(len(lags))[::-1], np.random.default_rng(2).permutation(len(lags))):
        grid = transforms.grid_of(backend._prepared(lags[order] * 0.3 + 5.0))
        assert [axis.count for axis in grid] == [12] * axes
        assert max(axis.loss for axis in grid) < 1e-14
        rebuilt = np.stack([axis.origin + axis.step * axis.index for axis in grid], axis=-1)
        np.testing.assert_allclose(rebuilt, lags[order] * 0.3 + 5.0, rtol=1e-14)


@pytest.mark.parametrize(
    ("values", "step", "count"),
    [
        (np.arange(10.0), 1.0, 10),
        (np.arange(10.0) * 12 + 5, 12.0, 10),
        ([0.0, 6.0, 9.0, 9.0, 3.0], 3.0, 4),
        (np.subtract.outer(np.arange(9.0), np.arange(9.0)).ravel(), 1.0, 17),
        (np.linspace(0.0, 1.0, 11), 0.1, 11),
        (np.concatenate([np.linspace(0.0, 1.0, 11), 2.0 * np.linspace(0.0, 1.0, 11)]), 0.1, 21),
        ([3.5, 3.5], 1.0, 1),
        ([0.0, 1.0, 2.0**40], None, None),
        ([0.0, 1.0, math.pi], None, None),
        (np.geomspace(1.0, 10.0, 30), None, None),
    ],
)
def test_uniform_axes(values, step, count):
    axis = transforms.axis_of(np.asarray(values, dtype=float), 100)
    if step is None:
        assert axis is None
    else:
        assert (axis.step, axis.count) == (pytest.approx(step), count)
        assert axis.loss == 0.0 or step == 0.1
        assert axis.loss < 1e-14


@campaign
def test_lags_of_several_blocks_and_many_frequencies(ran, monkeypatch):
    monkeypatch.setattr(transforms, "MODES", 1000)
    monkeypatch.setattr(backend, "_DRAWS", 1500)
    for axes, side in ((1, 4567), (2, 67)):
        omega, lags = frequencies(LAWS[0], axes, 4000), grid_of(side, axes)
        got = mean_cos(omega, lags)
        assert ran == ["grid_sums"] * 3
        ran.clear()
        np.testing.assert_allclose(got, exact_mean(omega, lags).real, atol=BOUND / 10)


def test_long_grids_far_away_keep_the_bound():
    omega = np.random.default_rng(0).normal(size=(100, 1)) * 1e10
    lags = (np.arange(2**19) + 2.0**18)[:, None]
    got = mean_cos(omega, lags)
    chosen = np.concatenate([[0, 2**18, 2**19 - 1], np.random.default_rng(1).integers(0, 2**19, 200)])
    assert np.max(np.abs(got[chosen] - exact_mean(omega, lags[chosen]).real)) < BOUND / 2


def test_frequencies_without_bound_stay_direct(ran):
    omega = np.random.default_rng(0).normal(size=(2**12, 1))
    omega[:2] = [[2.0**500], [1e100]]
    lags = np.random.default_rng(1).uniform(0.0, 30.0, (2000, 1))
    got = mean_cos(omega, lags)
    assert ran == ["scattered_sums", "direct_sums"]  # the two outside, the others not
    small = exact_mean(omega[2:], lags).real * (4094 / 4096)
    assert np.max(np.abs(got - small)) < 2 / 4096 + BOUND


def test_a_grid_off_by_little_is_seen(monkeypatch):
    """The mutation: without the test of what a grid loses, large frequencies are wrong."""
    omega, lags = frequencies(LAWS[1], 1, 2**12) * 1e7, np.linspace(0.0, 7.0, 1001)[:, None]
    wanted = exact_mean(omega, lags).real
    assert np.max(np.abs(mean_cos(omega, lags) - wanted)) < BOUND
    monkeypatch.setattr(transforms, "PHASE_LOSS", np.inf)  # and so no frequency is summed directly
    assert np.max(np.abs(mean_cos(omega, lags) - wanted)) > BOUND


def test_a_phase_folded_in_float64_would_break_the_bound(monkeypatch):
    """The mutation: frequency times step, reduced after it was rounded."""
    omega, lags = frequencies(LAWS[0], 1, 500) * 1e5, np.arange(2.0**17)[:, None]
    wanted = exact_mean(omega, lags[-500:]).real
    assert np.max(np.abs(mean_cos(omega, lags)[-500:] - wanted)) < BOUND

    def plain(turns, tails, step, out):
        out[:] = np.remainder(step * turns * (2.0 * np.pi), 2.0 * np.pi)

    monkeypatch.setattr(loops, "folded", plain)
    assert np.max(np.abs(mean_cos(omega, lags)[-500:] - wanted)) > BOUND


def test_without_finufft_sums_are_direct(ran, monkeypatch):
    omega, lags = frequencies(LAWS[0], 1, 2**12), np.arange(500.0)[:, None]
    with_it = mean_cos(omega, lags)
    monkeypatch.setitem(sys.modules, "finufft", None)
    np.testing.assert_allclose(mean_cos(omega, lags), with_it, atol=BOUND / 10)
    assert ran == ["grid_sums", "direct_mean"]


# -- moments of a kernel -----------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    count=st.integers(1, 700),
    axes=st.integers(1, 4),
    shape=SHAPES,
    quantity=st.sampled_from(["phi", "phi2", "sin"]),
    seed=st.integers(0, 99),
)
def test_moments_are_the_plain_moments(count, axes, shape, quantity, seed):
    rng = np.random.default_rng(seed)
    omega = rng.normal(size=(count, axes) if axes > 1 else count)
    delta = np.asarray(rng.normal(size=(*shape, axes) if axes > 1 else shape) * 5.0)
    got = kernel_moments(omega, delta, quantity)
    wanted = plain_moments(omega, delta, quantity)
    for ours, plain in zip(got, wanted, strict=True):
        assert ours.shape == plain.shape == shape
        np.testing.assert_allclose(ours, plain, rtol=1e-9, atol=1e-13 * count)


@campaign
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("quantity", ["phi", "phi2", "sin"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_moments_by_transform(law, quantity, axes, ran):
    omega = frequencies(law, axes, 2**14)
    lags = grid_of({1: 500, 2: 24, 3: 10}[axes], axes) * (0.01 if axes == 1 else 0.5)
    if axes == 1:
        omega, lags = omega[:, 0], lags[:, 0]
    mean, m2 = kernel_moments(omega, lags, quantity)
    assert "grid_sums" in ran
    exact_mean, exact_m2 = plain_moments(omega, lags, quantity)
    assert np.max(np.abs(mean - exact_mean)) < BOUND
    spread, exact_spread = np.sqrt(m2), np.sqrt(exact_m2)
    assert np.all(np.abs(spread - exact_spread) <= 1e-3 * exact_spread)
    zero = np.flatnonzero(~np.any(lags.reshape(len(lags), -1), axis=1))
    assert zero.size
    assert np.all(mean[zero] == (0.0 if quantity == "sin" else 1.0))
    assert np.all(m2[zero] == 0.0)


def test_small_variances_need_the_loop(monkeypatch):
    """The mutation: transforms alone lose the variance near lag 0."""
    omega, lags = frequencies(LAWS[0], 1, 2**14)[:, 0], np.arange(500.0) * 1e-3
    exact = np.sqrt(plain_moments(omega, lags, "phi")[1])
    assert np.all(np.abs(np.sqrt(kernel_moments(omega, lags, "phi")[1]) - exact) <= 1e-3 * exact)
    monkeypatch.setattr(transforms, "LEAST_VARIANCE", 0.0)
    wrong = np.sqrt(kernel_moments(omega, lags, "phi")[1])
    assert not np.all(np.abs(wrong - exact) <= 1e-3 * exact)


@pytest.mark.parametrize("quantity", ["phi", "phi2", "sin"])
@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("largest", [1e-3, 0.5])
def test_moments_at_many_flat_lags_are_those_of_exact_arithmetic(law, largest, quantity, ran):
    omega, lags = frequencies(law, 1, 2**12)[:, 0], np.linspace(0.0, largest, 20_001)
    mean, m2 = kernel_moments(omega, lags, quantity)
    some = np.asarray([1, 2, 3, 5, 100, 3333, 12345, 20_000])
    u = (2.0 if quantity == "phi2" else 1.0) * lags[some, None] * omega
    deviation = np.sin(u) if quantity == "sin" else 2.0 * np.sin(0.5 * u) ** 2  # 1 - cos u, without cancellation
    exact = np.mean(deviation, axis=-1)
    spread = np.sum((deviation - exact[:, None]) ** 2, axis=-1)
    np.testing.assert_allclose(m2[some], spread, rtol=2e-5, atol=1e-27)  # cos itself is rounded to 1e-16
    np.testing.assert_allclose(mean[some], exact if quantity == "sin" else 1.0 - exact, rtol=0, atol=1e-11)
    assert ran.count("direct_moments") < 40  # not at every flat lag


@pytest.mark.parametrize("quantity", ["phi", "phi2", "sin"])
@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize(("axes", "side"), [(2, 60), (3, 15)])
def test_moments_at_many_flat_lags_of_several_axes_are_those_of_exact_arithmetic(axes, side, law, quantity, ran):
    omega, lags = frequencies(law, axes, 2**12), grid_of(side, axes) * np.arange(1, axes + 1)
    lags = lags * (1e-6 if quantity == "sin" else 1e-5 if law.startswith("exponential") else 1e-3)
    mean, m2 = kernel_moments(omega, lags, quantity)
    some = np.random.default_rng(0).integers(0, len(lags), 50)
    u = (2.0 if quantity == "phi2" else 1.0) * lags[some] @ omega.T
    deviation = np.sin(u) if quantity == "sin" else 2.0 * np.sin(0.5 * u) ** 2  # 1 - cos u, without cancellation
    exact = np.mean(deviation, axis=-1)
    spread = np.sum((deviation - exact[:, None]) ** 2, axis=-1)
    np.testing.assert_allclose(m2[some], spread, rtol=2e-5, atol=1e-24)
    np.testing.assert_allclose(mean[some], exact if quantity == "sin" else 1.0 - exact, rtol=0, atol=1e-11)
    assert "powers" in ran
    assert ran.count("direct_moments") < 10  # where few lags are alike


@pytest.mark.parametrize("size", [1e100, 1e-100])
def test_phases_that_turns_cannot_hold_are_plain(size):
    """The loop would give cos = 1 for all of them: an estimate that is wrong and sure of itself."""
    omega = np.random.default_rng(0).normal(size=3000)
    omega[0] = 1.0 / size
    lags = np.asarray([0.0, 1.0, 2.0, -3.0]) * max(size, 1.0)
    for got, wanted in zip(kernel_moments(omega, lags, "phi"), plain_moments(omega, lags, "phi"), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    assert got[1] > 100.0  # deviations from the mean, not a constant


# -- threads, forks, workers -------------------------------------------------------------------------------------------


def test_every_number_of_threads_gives_the_same_bits():
    omega, lags = frequencies(LAWS[1], 1, 2**19), np.arange(300.0)[:, None]
    few = frequencies(LAWS[1], 4, 3000)
    results = []
    for count in (1, 2, 4):
        with rfrope.threads(count):
            results.append((mean_cos(omega, lags), mean_cos(few, grid_of(6, 4))))
    for transformed, direct in results[1:]:
        assert np.array_equal(transformed, results[0][0])
        assert np.array_equal(direct, results[0][1])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_transforms_work_after_a_fork():
    code = """
import os, numpy as np, rfrope
def job():
    return rfrope.estimate_kernel(np.arange(300.0), "gaussian(scale=4)", n_samples=2**19, rng=0).value
before = job()
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(job(), before) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.array_equal(job(), before))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS)
    assert (run.stdout.split(), run.stderr) == (["0", "True"], "")


# -- memory that starts anywhere ---------------------------------------------------------------------------------------


def test_unaligned_arrays_give_the_same_bits():
    """As Dask unpickles them; they left the compiled loops."""
    rng = np.random.default_rng(8)
    lags, omega, q, k = rng.uniform(-40.0, 40.0, 70), rng.normal(size=16), *rng.normal(size=(2, 8))
    assert dispatch.backend_place(montecarlo._kernel_moments, laid(lags, "unaligned")) == "cpu"

    def found(move):
        at, w, a, b = (move(v) for v in (lags, omega, q, k))
        kernel = rfrope.estimate_kernel(at, "matern(nu=0.8, scale=9)", n_samples=3000, rng=1)
        score = rfrope.estimate_scores(a, b, at, "gaussian(scale=9)", n_trials=40, rng=1)
        mean = rfrope.analysis.mean_kernel(at, w)
        return (
            mean,
            kernel.value,
            kernel.stderr,
            *(v for e in (score.mean, score.variance) for v in (e.value, e.stderr)),
        )

    for one, other in zip(found(lambda v: laid(v, "unaligned")), found(np.array), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("lags", [np.arange(4096.0), np.sort(np.random.default_rng(1).uniform(0.0, 900.0, 4096))])
@pytest.mark.parametrize("in_parts", [False, True])
def test_moments_by_transforms_are_the_plain_ones_in_order(odd, lags, in_parts, monkeypatch):
    omega, used = np.random.default_rng(0).standard_normal((3000, 1)), []

    def apart(omega, lags, costs, planned):
        used.extend((part, planned(part, transforms.grid_of(part))) for part in (lags, 2.0 * lags))
        return used

    if in_parts:
        monkeypatch.setattr(transforms, "plans_of_moments", apart)
    mean, m2 = backend._moments(omega, lags[:, None], odd)
    assert len(used) == 2 * in_parts
    at = np.r_[0:4, 1000:1004, 4090:4096]
    values = (np.sin if odd else np.cos)(lags[at, None] * omega[:, 0])
    np.testing.assert_allclose(mean[at], values.mean(axis=1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        m2[at], ((values - values.mean(axis=1, keepdims=True)) ** 2).sum(axis=1), rtol=1e-7, atol=1e-20
    )


# -- pairs of tokens ---------------------------------------------------------------------------------------------------

POSITIONS = {
    "0, 1, 2, ...": (np.arange(150.0), np.arange(-160.0, 20.0)),
    "repeated": (np.random.default_rng(3).integers(0, 40, 150) / 4.0, np.arange(-40.0, 40.0) / 4.0),
    "two axes": (np.random.default_rng(4).integers(0, 9, (150, 2)), np.random.default_rng(5).integers(-5, 12, (40, 2))),
}


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("paired", [True, False])
def test_profiles_of_pairs_that_occur_are_those_of_the_generic_function(positions, paired, monkeypatch):
    """More queries than are kept at hand, more lags than in a tile, heads that share keys, lags without pairs."""
    at, lags = POSITIONS[positions]
    rng, axes = np.random.default_rng(6), np.ndim(lags)
    q, k, omega = (
        rng.standard_normal((2, 2, 150, 22)),
        rng.standard_normal((2, 1, 150, 22)),
        rng.standard_normal((9, axes)),
    )
    options = {"pairs": "occurring", "q_positions": at, "k_positions": at, "paired": paired, "pairing": "interleaved"}
    arguments = (q + 0.5, k, lags, omega if axes > 1 else omega[:, 0])
    ran, compiled = [], backend.sum_occurring_pairs
    monkeypatch.setitem(
        dispatch._FOUND, "cpu.sums.sum_occurring_pairs", lambda *given: ran.append(len(given)) or compiled(*given)
    )
    found = heads.profile(*arguments, **options)
    with rfrope.threads(1):
        alone = heads.profile(*arguments, **options)
    assert ran == [3, 3]
    with without_backends():
        wanted = heads.profile(*arguments, **options)
    assert np.any(wanted.count == 0.0)
    assert np.max(wanted.count) > 64.0
    for name, value in vars(wanted).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-11, atol=1e-13)
        assert np.array_equal(getattr(found, name), getattr(alone, name), equal_nan=True)


def test_moments_are_transformed_whole_or_not_at_all():
    """Both lags and their doubles; few lags, or lags whose doubles are too far, never."""
    omega, lags = np.ones((4096, 1)), np.arange(5000.0)[:, None]
    costs = transforms.CPU

    def up_to(furthest):
        return lambda part, grid: None if np.max(part) > furthest else transforms.Plan(1.0, None, None)

    for furthest, found in ((1e9, 1), (6000.0, None), (10.0, None)):
        plans = transforms.plans_of_moments(omega, lags, costs, up_to(furthest))
        assert (None if plans is None else len(plans)) == found
    assert transforms.plans_of_moments(omega, lags * transforms.LARGEST, costs, up_to(np.inf)) is None
    assert transforms.plans_of_moments(omega[:1], lags[:2], costs, up_to(np.inf)) is None


@pytest.mark.parametrize("phases", [1, 7, 40, 2**25])
@pytest.mark.parametrize("quantity", ["phi", "phi2", "sin"])
def test_sums_in_any_number_of_tiles(phases, quantity, monkeypatch):
    """Between which an interrupt is seen: every lag is summed, to the same bits."""
    rng = np.random.default_rng(0)
    omega, lags = rng.standard_normal((5, 1)), rng.uniform(-90.0, 90.0, (23, 1))
    whole = kernel_moments(omega, lags, quantity)
    monkeypatch.setattr(backend, "_TILE_PHASES", phases)
    for found, same, plain in zip(
        kernel_moments(omega, lags, quantity), whole, plain_moments(omega, lags, quantity), strict=True
    ):
        np.testing.assert_array_equal(found, same)
        np.testing.assert_allclose(found, plain, atol=1e-12)
    read = angles_of(lags, omega)
    np.testing.assert_allclose(sums.mean_cos(read), np.mean(np.cos(lags * omega[:, 0]), axis=-1), atol=1e-13)
