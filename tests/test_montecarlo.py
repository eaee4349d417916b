"""Estimators: right on real vectors, and the same whoever computes the chunks.

Statistical tests use fixed seeds. Each asks for all its abs(z) to lie under Bonferroni's bound at ALPHA, so a right
implementation fails one of them once in a million. Standard errors are held against those of draws made by hand.
"""

import concurrent.futures
import copy
import dataclasses
import functools
import multiprocessing
import pickle
from fractions import Fraction

import numpy as np
import pytest
from campaign import campaign, sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st
from problems import units
from scipy import stats
from wrong_kernels import EXAMPLES

import rfrope
from rfrope import Kernel, estimate_kernel, estimate_scores, expected_score, kernels, montecarlo, score_variance
from rfrope._backends import transforms as plans
from rfrope._core import dispatch, sums
from rfrope._core.sums import PowerSums
from rfrope.montecarlo import Estimate
from rfrope.validation import default_lags, example_pairs

ALPHA = 1e-6
FEW = [text for text in EXAMPLES if text.startswith(("gauss", "sinc", "exp"))]
FACTORS = np.asarray([0.0625, 0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0])  # eight lags, in units of the example's scale


def scale_of(text: str) -> float:
    law = kernels.parse(text)
    if law.name in ("periodic", "spectral_mixture"):
        return {"periodic": 15.0, "spectral_mixture": 20.0}[law.name]
    return min(
        getattr(law, name) if kind == "length" else 1.0 / getattr(law, name) for name, kind in units(law).items()
    )


def z_scores(estimate: Estimate, closed_form) -> np.ndarray:
    return (np.asarray(estimate.value) - closed_form) / np.maximum(estimate.stderr, 1e-13)  # +-W has one cosine


def agrees(*zs: np.ndarray, alpha: float = ALPHA) -> bool:
    """Whether all z lie under Bonferroni's bound."""
    z = np.concatenate([np.ravel(part) for part in zs])
    return bool(np.all(np.abs(z) < stats.norm.isf(alpha / (2.0 * z.size))))


# -- estimate_kernel ---------------------------------------------------------------------------------------------------


def kernel_agrees(law: Kernel, text: str, n_samples: int) -> bool:
    right, lags = kernels.parse(text), -FACTORS * scale_of(text)
    truth = {"phi": right.phi(lags), "phi2": right.phi(2.0 * lags), "sin": np.zeros(8)}
    found = {q: estimate_kernel(lags, law, n_samples=n_samples, rng=[7, i], quantity=q) for i, q in enumerate(truth)}
    return agrees(*(z_scores(found[q], truth[q]) for q in truth))


@pytest.mark.parametrize("text", EXAMPLES)
def test_estimate_kernel_agrees_with_the_closed_forms(text):
    assert kernel_agrees(kernels.parse(text), text, 2**18)


# -- estimate_scores on real vectors -----------------------------------------------------------------------------------


def scores_agree(law, right, q, k, lags, *, n_trials, rng=5, pairing="half") -> bool:
    found = estimate_scores(q, k, lags, law, n_trials=n_trials, rng=rng, pairing=pairing)
    mean = z_scores(found.mean, expected_score(q, k, lags, right, pairing=pairing))
    return agrees(mean, z_scores(found.variance, score_variance(q, k, lags, right, pairing=pairing)))


@pytest.mark.parametrize("text", EXAMPLES)
def test_scores_of_the_example_pairs_agree_with_theory_at_eight_lags(text):
    q, k = (v[:, None] for v in example_pairs())
    assert scores_agree(text, text, q, k, -FACTORS * scale_of(text), n_trials=2**14)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_agree_on_two_axes_and_in_both_pairings(pairing):
    q, k = (v[:, None] for v in example_pairs())
    lags = np.asarray([[1.0, 2.0], [-3.0, 4.0], [8.0, 0.0], [0.0, -16.0]])
    text = "matern(nu=1.5, scale=(6, 9), ndim=2)"
    assert scores_agree(text, text, q, k, lags, n_trials=2**13, pairing=pairing)


def scores_by_rotation(q, k, lags, text, n_trials, rng) -> np.ndarray:
    """Scores of every trial, (pairs, lags, trials), from the frequencies of `sample` and `rotate` alone."""
    heads = rfrope.sample(text, q.shape[-1] // 2, rng=rng, heads=n_trials)
    keys = np.tile(k[:, None], (len(lags), 1))
    here, there = np.asarray([[0.0]]), np.asarray(lags, dtype=float)[:, None]
    return np.stack(
        [
            np.einsum("nqd,nmd->nm", rfrope.rotate(q[:, None], here, omega), rfrope.rotate(keys, there, omega))
            for omega in heads
        ],
        axis=-1,
    )


class Recorder:
    """A progress bar that writes down what it saw."""

    def __init__(self):
        self.total, self.seen = None, 0

    def __call__(self, iterable, *, total):
        self.total = total
        for item in iterable:
            self.seen += 1
            yield item


@pytest.mark.parametrize("place", ["one chunk", "twin", "generic"])
@pytest.mark.parametrize("text", FEW)
def test_trial_t_uses_the_frequencies_of_head_t(text, place, monkeypatch):
    """Also across chunks; ``Var s^2 = (mu_4 - (n - 3)/(n - 1) sigma^4) / n``."""
    recorder, n = Recorder(), 9 if place == "one chunk" else 101
    if place == "generic":
        monkeypatch.setattr(dispatch, "backend_function", lambda function, place: None)
    if n == 101:
        monkeypatch.setattr(plans, "_ELEMENTS", 2**10)
        monkeypatch.setitem(plans._TABLED, "cpu", 2**10)
        monkeypatch.setattr(plans, "_USEFUL_LANES", 4)
    q, k = example_pairs()
    lags = np.asarray([-1.0, 2.5, -59.0])
    found = estimate_scores(q[:, None], k[:, None], lags, text, n_trials=n, rng=42, progress=recorder)
    assert (recorder.total > 10) == (n == 101)
    by_hand = scores_by_rotation(q, k, lags, text, n, 42)
    size = float(np.max(np.linalg.norm(q, axis=-1) * np.linalg.norm(k, axis=-1)))
    variance = by_hand.var(axis=-1, ddof=1)
    fourth = np.mean((by_hand - by_hand.mean(axis=-1, keepdims=True)) ** 4, axis=-1)
    np.testing.assert_allclose(found.mean.value, by_hand.mean(axis=-1), atol=1e-11 * size)
    np.testing.assert_allclose(found.mean.stderr, stats.sem(by_hand, axis=-1), rtol=1e-8)
    np.testing.assert_allclose(found.variance.value, variance, rtol=1e-8)
    np.testing.assert_allclose(
        found.variance.stderr, np.sqrt((fourth - (n - 3) / (n - 1) * variance**2) / n), rtol=1e-7
    )


@pytest.mark.parametrize(
    ("q_shape", "k_shape", "delta_shape", "shape"),
    [
        ((6,), (6,), (), ()),
        ((2, 1, 1, 6), (3, 1, 6), (4,), (2, 3, 4)),
        ((3, 6), (6,), (5, 1), (5, 3)),
        ((0, 6), (0, 6), (), (0,)),
    ],
)
def test_shapes_broadcast(q_shape, k_shape, delta_shape, shape):
    rng = np.random.default_rng(1)
    q, k, lags = rng.normal(size=q_shape), rng.normal(size=k_shape), rng.normal(size=delta_shape)
    found = estimate_scores(q, k, lags, "gaussian", n_trials=16, rng=1)
    for estimate in (found.mean, found.variance):
        assert estimate.value.shape == estimate.stderr.shape == shape
    one_by_one = np.vectorize(
        lambda *one: float(estimate_scores(*one, "gaussian", n_trials=16, rng=1).mean.value),
        signature="(d),(d),()->()",
        otypes=[float],
    )
    np.testing.assert_allclose(found.mean.value, one_by_one(q, k, lags), rtol=1e-12, atol=1e-13)


# -- sums and their merging --------------------------------------------------------------------------------------------


def exact_moments(values) -> tuple[float, float, float, float]:
    """Mean and central power sums of orders 2 to 4, in exact fractions."""
    numbers = [Fraction(float(v)) for v in values]
    mean = sum(numbers) / len(numbers)
    return tuple(float(m) for m in (mean, *(sum((v - mean) ** order for v in numbers) for order in (2, 3, 4))))


def merged(values: np.ndarray, cuts: list[int]) -> PowerSums:
    parts = [PowerSums.from_values(part, np) for part in np.split(values, sorted(cuts)) if part.size]
    return functools.reduce(PowerSums.merge, parts)


def assert_sums(sums: PowerSums, values: np.ndarray, tolerance: float) -> None:
    mean, m2, m3, m4 = exact_moments(values)
    spread = float(np.max(np.abs(values - values.mean()))) + 1e-300
    largest = float(np.max(np.abs(values))) + 1e-300
    n = len(values)
    assert sums.n == n
    assert abs(sums.mean - mean) <= 4e-16 * n * largest
    for order, (got, wanted) in zip((2, 3, 4), ((sums.m2, m2), (sums.m3, m3), (sums.m4, m4)), strict=True):
        assert abs(got - wanted) <= tolerance * n * spread**order


# -- executors ---------------------------------------------------------------------------------------------------------


def backwards(function, items):
    """A map that works from the last item to the first, and returns results in order."""
    return list(reversed([function(item) for item in reversed(list(items))]))


@pytest.fixture(scope="module")
def executors():
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ThreadPoolExecutor(4) as threads,
        concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as processes,
    ):
        yield {"threads": threads, "spawned processes": processes, "backwards": backwards}


def score_job(**options):
    q, k = (v[:, None] for v in example_pairs())
    return estimate_scores(q, k, [-1.0, -8.0, -59.0], "exponential(scale=48)", n_trials=40_000, rng=9, **options)


def kernel_job(**options):
    return estimate_kernel(np.linspace(0, 50, 16), "matern(nu=1.5, scale=16)", n_samples=300_001, rng=9, **options)


def many_lags_job(**options):
    return estimate_kernel(np.arange(-50.0, 450.0), "exponential(scale=4)", n_samples=700_001, rng=9, **options)


def parts(found):
    return [found] if isinstance(found, Estimate) else [found.mean, found.variance]


def same(a: Estimate, b: Estimate) -> bool:
    return a.n == b.n and np.array_equal(a.value, b.value) and np.array_equal(a.stderr, b.stderr)


PLACES = ["threads", "spawned processes", "backwards"]


@pytest.mark.parametrize("job", [score_job, kernel_job, many_lags_job])
@pytest.mark.parametrize("name", sparse(PLACES, lambda name: name == "threads"))
def test_executors_give_the_same_bits(name, job, executors):
    recorder = Recorder()
    found, serial = job(executor=executors[name], progress=recorder), job()
    assert recorder.total == recorder.seen >= 2
    assert all(map(same, parts(found), parts(serial)))


def test_threads_give_the_same_bits_at_many_lags(transforms):
    found = [many_lags_job(executor=map)]
    for count in (1, 2, 4):
        with rfrope.threads(count):
            found.append(many_lags_job())
    assert len(transforms) == 12  # one a chunk
    assert all(same(found[0], one) for one in found)


@campaign
@pytest.mark.parametrize("job", ["scores", "kernel", "many lags"])
def test_memory_does_not_grow_with_the_draws(job, peak, request):
    (q, k), law = (v[:, None] for v in example_pairs()), "gaussian(scale=32)"
    run, least = {
        "scores": (lambda n: estimate_scores(q, k, -FACTORS * 32.0, law, n_trials=n, rng=0), 2**12),
        "kernel": (lambda n: estimate_kernel(-FACTORS * 32.0, law, n_samples=n, rng=0), 2**17),
        "many lags": (lambda n: estimate_kernel(np.arange(2.0**14), law, n_samples=n, rng=0), 2**18),
    }[job]
    if job == "many lags":
        assert request.getfixturevalue("transforms") == []

    def most(call):
        peak(anew=True)
        call()
        return peak()

    with rfrope.threads(1):  # which holds one chunk
        run(2**10)  # imports and caches are not counted
        small, large = (most(lambda n=n: run(n)) for n in (least, 4 * least))
        assert small > 2**16  # the measure sees NumPy's arrays
        assert large < 1.15 * small
        if job == "many lags":  # a number for every draw and lag would take 2.7e11 bytes
            assert most(lambda: estimate_kernel(np.arange(2.0**17), law, n_samples=2**18, rng=0)) < 100e6


# -- estimate_kernel at many lags: sums by transforms ------------------------------------------------------------------


@pytest.fixture
def transforms(monkeypatch):
    """Counts the transforms that ran; the test is skipped where there can be none."""
    pytest.importorskip("finufft")
    sums = pytest.importorskip(
        "rfrope._backends.cpu.sums", reason="compiled loops need Numba, with its compiler on", exc_type=ImportError
    )
    calls, right = [], sums._transformed
    monkeypatch.setattr(sums, "_transformed", lambda *arguments: calls.append(1) or right(*arguments))
    return calls


@pytest.mark.parametrize(
    ("text", "quantity", "kind"),
    [("gaussian(scale=4)", "phi", "grid"), ("exponential(scale=4)", "sin", "scattered"), ("sinc", "phi2", "grid")],
)
def test_estimates_at_many_lags_are_the_plain_ones(text, quantity, kind, transforms, monkeypatch):
    lags = np.arange(300.0) * 0.5
    if kind == "scattered":
        lags = np.concatenate([[0.0], np.random.default_rng(0).uniform(0.0, 150.0, 299)])
    options = {"n_samples": 2**15, "rng": 3, "quantity": quantity}
    found = estimate_kernel(lags, text, **options)
    assert transforms
    transforms.clear()
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "backend_function", lambda function, place: None)
        plain = estimate_kernel(lags, text, **options)
    assert not transforms
    assert np.max(np.abs(found.value - plain.value)) < 1e-9
    assert np.all(np.abs(found.stderr - plain.stderr) <= 1e-3 * plain.stderr)
    assert (found.value[0], found.stderr[0]) == (0.0 if quantity == "sin" else 1.0, 0.0)
    assert not np.array_equal(found.value, plain.value)


# -- seeds -------------------------------------------------------------------------------------------------------------


def test_seeds():
    estimate = functools.partial(estimate_kernel, [1.0], "gaussian", n_samples=100)
    assert same(estimate(rng=3), estimate(rng=3))
    assert same(estimate(rng=np.random.default_rng(3)), estimate(rng=np.random.default_rng(3)))
    assert not same(estimate(rng=3), estimate(rng=4))
    assert not same(estimate(), estimate())
    generator = np.random.default_rng(3)
    assert not same(estimate(rng=generator), estimate(rng=generator))
    scores = [estimate_scores([1.0, 2.0], [0.5, 1.0], 5.0, "gaussian", n_trials=64, rng=i) for i in (1, 1, 2)]
    assert scores[0].mean.value == scores[1].mean.value != scores[2].mean.value


@pytest.mark.parametrize("quantity", ["phi", "phi2", "sin"])
def test_sets_at_many_lags_are_worked_on_in_parts(monkeypatch, peak, quantity):
    """With the same bits, and in memory that does not grow with the lags."""
    lags = np.linspace(-3.0, 90.0, 60).reshape(3, 20, 1) * [1.0, -0.5]
    options = {"n_samples": 96, "n_blocks": 16, "design": "stratified", "rng": 0, "quantity": quantity}
    whole = estimate_kernel(lags, "gaussian(scale=8, ndim=2)", **options)
    monkeypatch.setattr("rfrope._core.sums.BUDGET", 100)
    parts = estimate_kernel(lags, "gaussian(scale=8, ndim=2)", **options)
    assert np.array_equal(whole.value, parts.value)
    assert np.array_equal(whole.stderr, parts.stderr)
    monkeypatch.undo()
    peak(anew=True)
    estimate_kernel(np.arange(2.0**14), "gaussian(scale=8)", n_samples=256, n_blocks=128, design="stratified", rng=0)
    assert peak() < 2**26  # the phases alone were 2**25 for two sets, beside their cosines and all that makes them


@pytest.mark.parametrize("bad", [{"kernel": "gausian"}, {"lags": [np.nan]}, {"n": 1}, {"n": 2.0}, {"design": "grid"}])
def test_a_refused_call_leaves_the_generator_alone(bad):
    rng, options = np.random.default_rng(5), {"kernel": "gaussian", "lags": [1.0], "n": 8} | bad
    n = options.pop("n")
    for call in (
        lambda: estimate_kernel(n_samples=n, rng=rng, **options),
        lambda: estimate_scores([1.0, 2.0], [1.0, 2.0], n_trials=n, rng=rng, **options),
    ):
        with pytest.raises((ValueError, TypeError)):
            call()
    assert rng.integers(2**32) == np.random.default_rng(5).integers(2**32)


# -- whether error bars are to be trusted ------------------------------------------------------------------------------

HEAVY = ("power_exponential(exponent=1.9, scale=64)", "matern(nu=1.2, scale=256)", "exponential(scale=64)")


@pytest.mark.parametrize("text", sparse([*HEAVY, EXAMPLES[0]], lambda text: text in HEAVY[:1]))
def test_error_bars_that_are_trusted_hold(text):
    """From lags of 1e-4 to 10 scales: where not many draws bear the error bar, it says so, and elsewhere |z| < 3."""
    kernel = kernels.parse(text)
    unit = default_lags(kernel)[2]
    lags = kernel.restore_shape(np.multiply.outer([1e-4, 1e-3, 1e-2, 0.02, 0.1, 0.5, 3.0, 10.0], unit))
    far, trusted = [], []
    for seed in range(200):
        found = estimate_kernel(lags, kernel, n_samples=4096, rng=seed)
        trusted.append(found.trusted)
        far.append((np.abs(found.value - kernel.phi(lags)) > 3.0 * found.stderr) & found.trusted)
    assert np.mean(far) < 0.01
    assert np.mean(np.asarray(trusted)[:, -2:]) > 0.99
    if text in HEAVY:
        assert np.mean(np.asarray(trusted)[:, 2]) < 0.5
    if text.startswith(("gaussian", "sinc", "ball")):
        assert np.mean(trusted) > 0.99  # all moments exist: small lags are no reason


def test_trust_is_settled_when_it_is_read_and_no_sooner(monkeypatch):
    """What is looked at is what the draws were taken for, whatever has been written since."""
    settled = []
    judge = montecarlo._is_held_by_many  # once for all unsure lags
    monkeypatch.setattr(montecarlo, "_is_held_by_many", lambda *given: settled.append(given) or judge(*given))
    lags = np.asarray([0.005, 100.0])
    law, options = "exponential(scale=64)", {"n_samples": 4096, "rng": 0}
    wanted = estimate_kernel(lags, law, **options).trusted
    assert wanted.tolist() == [False, True]
    assert len(settled) == 1
    found = estimate_kernel(lags, law, **options)
    again = pickle.loads(pickle.dumps(found))
    for one in (again, copy.deepcopy(found), dataclasses.replace(found, n=1)):
        np.testing.assert_array_equal(one.trusted, wanted)
    later = estimate_kernel(lags, law, **options)
    count = len(settled)
    found.value[...], lags[...] = 0.0, 1e3
    later.value[...], later.stderr[...] = 0.0, 0.0
    np.testing.assert_array_equal(later.trusted, wanted)
    assert later.trusted is later.trusted
    assert len(settled) == count + 1
    assert montecarlo.Estimate(1.0, 0.1, 4).trusted is True


# -- many lags ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes", [((40,), (4,)), ((3, 40), (4,)), ((40, 3), (40, 1, 4)), ((3, 1), (2, 1, 5, 4)), ((), (4,))]
)
def test_scores_of_sets_do_not_depend_on_how_lags_are_cut(monkeypatch, shapes):
    lags, q = (np.random.default_rng(0).standard_normal(shape) for shape in shapes)
    whole = estimate_scores(q, 2.0 * q, lags, "gaussian", n_trials=8, design="sobol", rng=0)
    monkeypatch.setattr(sums, "BUDGET", 32)
    monkeypatch.setattr(plans, "_ELEMENTS", 2**20)
    cut = estimate_scores(q, 2.0 * q, lags, "gaussian", n_trials=8, design="sobol", rng=0)
    assert cut.mean.value.shape == whole.mean.value.shape
    np.testing.assert_allclose(cut.mean.value, whole.mean.value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(cut.variance.value, whole.variance.value, rtol=1e-12, atol=1e-12)


def test_whether_errors_are_trusted_is_known_to_a_compiler(torch):
    lags = torch.tensor([0.0, 1e-4, 1e-3, 0.1], dtype=torch.float64)
    found = estimate_kernel(lags, rfrope.kernel("cauchy", scale=100.0), n_samples=300, rng=1)
    marked = torch.compile(lambda x: x * found.trusted, backend="eager", fullgraph=True)(torch.ones(4))
    assert marked.tolist() == found.trusted.tolist()
    assert 0 < sum(marked.tolist()) < 4


def test_an_error_that_rare_draws_make_is_not_trusted():
    """Those that are looked at are spread well, and hold a small part of the variance: it is that of few draws."""
    often, seldom = rfrope.kernel("gaussian", scale=40.0), rfrope.kernel("gaussian", scale=1e-3)
    kernel = rfrope.kernels.mixture([1.0 - 1e-5, 1e-5], [often, seldom])
    found = rfrope.estimate_kernel([1.0], kernel, n_samples=2**20, rng=0)
    assert not found.trusted.any()
    assert rfrope.estimate_kernel([1.0], often, n_samples=2**20, rng=0).trusted.all()


@pytest.mark.parametrize("quantity", ["phi", "phi2", "sin"])
def test_errors_at_zeros_and_periods_are_no_smaller_than_rounding(quantity):
    law = kernels.parse("periodic(period=96, scale=0.7)")
    lags = np.asarray([0.0, 96.0, -192.0, 9600.0])
    exact = {"phi": law.phi, "phi2": law.phi2, "sin": np.zeros_like}[quantity](lags)
    for seed in range(20):
        found = estimate_kernel(lags, law, n_samples=1000, rng=seed, quantity=quantity)
        assert found.value[0] == exact[0]
        assert found.stderr[0] == 0.0
        assert np.all(np.abs(found.value - exact)[1:] < 3.0 * found.stderr[1:])


def test_estimate_kernel_by_hand():
    omega, lags = rfrope.sample("gaussian(scale=2)", 500, rng=11), np.asarray([0.5, -3.0])
    u = lags[:, None] * omega
    for quantity, values in (("phi", np.cos(u)), ("phi2", np.cos(2.0 * u)), ("sin", np.sin(u))):
        found = estimate_kernel(lags, "gaussian(scale=2)", n_samples=500, rng=11, quantity=quantity)
        np.testing.assert_allclose(found.value, values.mean(axis=-1), rtol=1e-12)
        np.testing.assert_allclose(found.stderr, stats.sem(values, axis=-1), rtol=1e-12)
        assert found.n == 500


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(-1000.0, 1000.0, width=32), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
@example(values=[1.0], cuts=[])
@example(values=[5.0, 5.0, 5.0], cuts=[1, 2])
@example(values=[float(i) for i in range(40)], cuts=list(range(40)))
def test_merging_in_any_split_gives_the_direct_moments(values, cuts):
    array = np.asarray(values, dtype=np.float64)
    assert_sums(merged(array, cuts), array, 1e-11 * (1.0 + np.max(np.abs(array)) / (np.ptp(array) + 1e-3)))


@pytest.mark.parametrize("offset", [1e6, -1e9, 2.0**40])
@pytest.mark.parametrize("cuts", [[], [1], [10, 11, 200], list(range(1, 256))])
def test_merging_keeps_the_spread_beside_a_large_offset(offset, cuts):
    values = offset + np.random.default_rng(5).integers(-64, 65, size=256) / 8.0
    assert_sums(merged(values, cuts), values, 1e-4 if offset == 2.0**40 else 1e-6)
    if abs(offset) >= 1e9:  # the plain sum of squares, which central sums avoid, has lost it
        naive = float(np.mean(values**2) - np.mean(values) ** 2) * 256
        assert abs(naive / exact_moments(values)[1] - 1.0) > 1e-3
