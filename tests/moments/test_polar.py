"""Polar contents: closed forms against every outcome of small laws, every order of a set, and draws of every family."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from campaign import campaign
from scipy import stats

import rfrope
from rfrope import Kernel, kernels
from rfrope.moments import effective_blocks, polar_error, polar_score, polar_tail, polar_variance, relative_error
from rfrope.rotation import rotate_polar
from rfrope.validation import default_lags

RNG = np.random.default_rng(27)
FAMILIES = [record.example for record in kernels.records() if record.name != "constant"]  # nothing varies there
FUNCTIONS = (polar_score, polar_variance, polar_error)
G = "gaussian(scale=32)"


def contents(n, blocks, seed=0):
    """Magnitudes of n queries and keys by softplus of normals, and a bias as PoPE's, between -2 pi and 0."""
    rng = np.random.default_rng(seed)
    q, k = np.logaddexp(0.0, rng.normal(size=(2, n, blocks)))
    return q, k, rng.uniform(-2.0 * math.pi, 0.0, blocks)


@dataclasses.dataclass(frozen=True, repr=False)
class Tones(Kernel):
    """Atoms at +-frequency for each of some numbers: a law small enough to enumerate."""

    name = "tones"
    tones: tuple[float, ...] = (0.7, 1.9)
    weights: tuple[float, ...] = (0.25, 0.75)
    ndim: int = 1

    def _phi(self, lags, xp):
        return sum(w * xp.cos(f * lags[..., 0]) for w, f in zip(self.weights, self.tones, strict=True))

    def outcomes(self):
        return [(0.5 * w, s * f) for w, f in zip(self.weights, self.tones, strict=True) for s in (1.0, -1.0)]


def enumerated(q, k, lag, shift, law, antithetic=False):
    """Mean and variance of ``rotate_polar(q, 0) . rotate_polar(k, lag)`` over all outcomes of blocks or pairs."""
    first = second = 0.0
    free = (len(q) + 1) // 2 if antithetic else len(q)
    for outcome in itertools.product(law.outcomes(), repeat=free):
        probability = math.prod(weight for weight, _ in outcome)
        omega = np.array([frequency for _, frequency in outcome])
        if antithetic:
            omega = np.repeat(omega, 2)[: len(q)] * np.where(np.arange(len(q)) % 2, -1.0, 1.0)
        score = rotate_polar(q, 0.0, omega) @ rotate_polar(k, lag, omega, shift=shift)
        first, second = first + probability * score, second + probability * score**2
    return float(first), float(second - first**2)


@pytest.mark.parametrize("lag", [-3.0, 0.25, 7.0])
@pytest.mark.parametrize("design", ["iid", "antithetic"])
@pytest.mark.parametrize("blocks", [3, 4])
def test_moments_are_those_of_every_outcome_enumerated(lag, design, blocks):
    q, k, shift = contents(1, blocks)
    mean, variance = enumerated(q[0], k[0], lag, shift, Tones(), design == "antithetic")
    assert polar_score(q[0], k[0], lag, Tones(), shift=shift) == pytest.approx(mean, abs=1e-13)
    found = polar_variance(q[0], k[0], lag, Tones(), shift=shift, design=design)
    assert found == pytest.approx(variance, abs=1e-12)
    error = polar_error(q[0], k[0], lag, Tones(), shift=shift, design=design)
    assert error == pytest.approx(math.sqrt(variance) / abs(mean))


# -- draws of every family ---------------------------------------------------------------------------------------------


def measured(kernel, q, k, lag, shift, draws, seed, design="iid", change=lambda u: u):
    """Scores ``(draws, contents)`` over draws of the frequencies of a design."""
    omega = rfrope.sample(kernel, q.shape[-1], rng=seed, heads=draws, design=design)
    u = change(omega @ np.atleast_1d(lag)) + (0.0 if shift is None else shift)
    return np.cos(u) @ (q * k).T


@pytest.mark.parametrize("blocks", [16, 64, 256])
@pytest.mark.parametrize("text", FAMILIES)
@pytest.mark.parametrize("biased", [False, True])
def test_the_error_of_one_draw_is_that_of_the_formula(text, blocks, biased):
    """Root mean squares of 3000 draws are within 10 % of it for each of 200 contents."""
    kernel, (q, k, shift) = kernels.parse(text), contents(200, blocks)
    shift = shift if biased else None
    lag = default_lags(kernel)[2]
    mean = polar_score(q, k, kernel.restore_shape(lag), kernel, shift=shift)
    found = measured(kernel, q, k, lag, shift, 3000, seed=5)
    error = np.sqrt(np.mean((found - mean) ** 2, axis=0)) / np.abs(mean)
    wanted = polar_error(q, k, kernel.restore_shape(lag), kernel, shift=shift)
    assert np.all(np.abs(error - wanted) < 0.1 * np.maximum(wanted, 1e-7))  # two frequencies +-w have one cosine


def variances(q, k, shift, phi, phi2):
    """Variances of one content by the formula of the page, with mistakes."""
    a, v, w = (q * k) ** 2, 0.5 * (1.0 + phi2) - phi**2, 0.5 * (1.0 - phi2)
    cos, sin = np.cos(shift) ** 2, np.sin(shift) ** 2
    return {
        "right": np.sum(a * (0.5 * (1.0 + phi2 * np.cos(2.0 * shift)) - phi**2 * cos), axis=-1),
        "delta dropped": np.sum(a * v, axis=-1),
        "half of delta": np.sum(a * (0.5 * (1.0 + phi2 * np.cos(shift)) - phi**2 * cos), axis=-1),
        "v and w exchanged": np.sum(a * (w * cos + v * sin), axis=-1),
        "factor 2": 2.0 * np.sum(a * (v * cos + w * sin), axis=-1),
        "no mean taken away": np.sum(a * 0.5 * (1.0 + phi2 * np.cos(2.0 * shift)), axis=-1),
        "Phi_2 is Phi": np.sum(a * (0.5 * (1.0 + phi * np.cos(2.0 * shift)) - phi**2 * cos), axis=-1),
        "A, not its square": np.sum(np.sqrt(a) * (v * cos + w * sin), axis=-1),
    }


def test_the_formula_of_the_page_and_mistakes_in_it():
    kernel, (q, k, shift) = kernels.parse(G), contents(200, 64)
    made = variances(q, k, shift, kernel(20.0), kernel.phi2(20.0))
    right = made.pop("right")
    np.testing.assert_allclose(polar_variance(q, k, 20.0, kernel, shift=shift), right, rtol=1e-12)
    found = np.std(measured(kernel, q, k, 20.0, shift, 3000, seed=5), axis=0)
    assert np.max(np.abs(found / np.sqrt(right) - 1.0)) < 0.1
    for name, wrong in made.items():
        assert np.max(np.abs(found / np.sqrt(np.maximum(wrong, 1e-9)) - 1.0)) > 0.1, name


DESIGNS = [
    *((design, G) for design in ("stratified", "shifted", "sobol", "halton", "antithetic", "auto")),
    ("stratified", "matern(nu=1.5, scale=16)"),
    ("stratified", "gaussian(scale=9, ndim=2)"),
    ("orthogonal", "gaussian(scale=9, ndim=2)"),
    ("orthogonal", "exponential(scale=9, ndim=3)"),
]
TRIALS = 20_000
Z = float(stats.norm.isf(1e-6 / 2 / (2 * 2 * 8 * len(DESIGNS))))


def largest_z(design, text, change=lambda v, content: v, blocks=16):
    """Largest abs(z) of variances of eight contents, with and without a bias, at two lags, over sets of a design."""
    kernel, (q, k, delta), worst = kernels.parse(text), contents(8, blocks), 0.0
    for shift in (None, delta):
        for lag in default_lags(kernel)[[1, 3]]:
            lags = kernel.restore_shape(lag)
            found = measured(kernel, q, k, lag, shift, TRIALS, 3, design)
            wanted = change(
                polar_variance(q, k, lags, kernel, shift=shift, design=design), (q, k, lags, kernel, shift, design)
            )
            centred = (found - polar_score(q, k, lags, kernel, shift=shift)) ** 2
            stderr = np.std(centred, axis=0) / math.sqrt(TRIALS)
            worst = max(worst, float(np.max(np.abs(np.mean(centred, axis=0) - wanted) / stderr)))
    return worst


@campaign
@pytest.mark.parametrize(("design", "text"), DESIGNS)
def test_the_variance_of_a_design_is_that_of_many_sets(design, text):
    assert largest_z(design, text) < Z


WRONG = {
    "no covariance of pairs": lambda v, c: polar_variance(*c[:4], shift=c[4]),
    "delta dropped": lambda v, c: polar_variance(*c[:4], design=c[5]),
    "factor 2": lambda v, c: 2.0 * v,
    "blocks counted as pairs": lambda v, c: 2.0 * v - polar_variance(*c[:4], shift=c[4]),
}


@pytest.mark.parametrize("mutation", WRONG)
@pytest.mark.parametrize("design", ["stratified", "sobol", "antithetic"])
def test_a_wrong_variance_of_a_design_is_seen(design, mutation):
    assert largest_z(design, G, WRONG[mutation]) > Z


# -- one set, dealt at random ------------------------------------------------------------------------------------------

SET = np.array([0.011, 0.05, -0.02, 0.09, 0.031])


def dealt(q, k, lag, shift, omega):
    """Scores of every order of the frequencies."""
    orders = np.array(list(itertools.permutations(omega)))
    return np.sum(q * k * np.cos(lag * orders + shift), axis=-1)


@pytest.mark.parametrize("lag", [-40.0, 3.0, 900.0])
def test_a_set_dealt_at_random_is_every_order(lag):
    q, k, shift = contents(1, 5)
    scores = dealt(q[0], k[0], lag, shift, SET)
    found = polar_variance(q[0], k[0], lag, G, shift=shift, design=SET)
    assert found == pytest.approx(np.var(scores), rel=1e-11)
    mean = polar_score(q[0], k[0], lag, G, shift=shift)
    error = polar_error(q[0], k[0], lag, G, shift=shift, design=SET)
    assert error == pytest.approx(math.sqrt(np.mean((scores - mean) ** 2)) / abs(mean), rel=1e-11)
    other = np.var(dealt(q[0], k[0], lag, -shift, SET))
    assert abs(found / other - 1.0) > 1e-3  # the sign of the bias counts where the set is not symmetric


def test_a_set_is_a_rope_or_any_array_and_one_block_does_not_vary():
    q, k, shift = contents(3, 5)
    rope = rfrope.Rope(SET, polar=True)
    plain = polar_variance(q, k, [1.0, 2.0, 3.0], G, shift=shift, design=SET)
    np.testing.assert_array_equal(polar_variance(q, k, [1.0, 2.0, 3.0], G, shift=shift, design=rope), plain)
    np.testing.assert_array_equal(polar_variance(q, k, [1.0, 2.0, 3.0], G, shift=shift, design=SET[:, None]), plain)
    assert polar_variance([2.0], [1.0], 5.0, G, design=[0.3]) == 0.0
    plane = np.stack([SET, SET[::-1]], axis=1)
    spread = polar_variance(q, k, [1.0, 2.0], "gaussian(ndim=2)", design=plane)
    np.testing.assert_allclose(spread, polar_variance(q, k, 1.0, G, design=plane @ [1.0, 2.0]), rtol=1e-12)


# -- concentration -----------------------------------------------------------------------------------------------------


def test_the_tail_of_a_fair_coin_lies_below_the_bound():
    """Cosines of +-1 are the widest there are: the exact binomial tail, and a bound with half the variance fails."""
    coin, n = Tones((0.0, math.pi), (0.5, 0.5)), 64
    ones, t = np.ones(n), np.arange(1.0, 64.0)
    bound = polar_tail(ones, ones, 1.0, coin, t)
    exact = 2.0 * stats.binom.sf(np.floor((n + t) / 2.0), n, 0.5)
    assert np.all(exact <= bound)
    assert np.any(exact > bound**2 / 2.0)  # exp(-t^2 / sum A^2) is too little


@pytest.mark.parametrize("n", [2, 4])
def test_tails_of_a_set_in_random_order(n):
    """All orders, at every distance that occurs: with a shift the bound of independent blocks is passed."""
    rng, passed = np.random.default_rng(n), False
    for trial in range(200):
        a, phases = rng.exponential(size=n) ** rng.integers(0, 3), rng.uniform(-math.pi, math.pi, n)
        phases = phases if trial % 2 else math.pi * (phases > 0.0)
        orders = np.array([*itertools.permutations(phases)])
        for delta, part in (
            (np.zeros(n), 2.0),
            (math.pi * rng.integers(0, 2, n), 8.0),
            (rng.uniform(0.0, 7.0, n), 8.0),
        ):
            scores = np.cos(orders + delta) @ a
            away = np.abs(scores - np.mean(scores))
            square, often = away**2 / np.sum(a * a), np.mean(away >= away[:, None] * (1.0 - 1e-9), axis=1)
            assert np.all(often <= 2.0 * np.exp(-square / part))
            passed |= bool(np.any(often > 2.0 * np.exp(-square / 2.0)))
    assert passed


@pytest.mark.parametrize("text", [G, "exponential(scale=48)", "log_uniform(low=0.05, high=0.5)"])
def test_scores_are_off_no_more_often_than_the_bound_says(text):
    q, k, shift = contents(4, 32)
    for lag in (1.0, 20.0, 200.0):
        mean = polar_score(q, k, lag, text, shift=shift)
        scale = np.sqrt(np.sum((q * k) ** 2, axis=-1))
        away = np.abs(measured(text, q, k, lag, shift, 4000, seed=2) - mean)
        for part in (0.1, 0.5, 1.0, 2.0):
            bound = polar_tail(q, k, lag, text, part * scale, shift=shift)
            often = np.mean(away > part * scale, axis=0)
            assert np.all(often <= bound + 6.0 * np.sqrt(bound / 4000))


def test_the_bound_near_lag_0_is_that_of_the_variance():
    ones = np.ones(64)
    assert polar_tail(ones, ones, 1.0, G, 10.0) < 2e-3 < 2.0 * math.exp(-100.0 / 128.0)
    assert polar_tail(ones, ones, 0.0, G, [0.0, 0.1]).tolist() == [1.0, 0.0]
    far = polar_tail(ones, ones, 1.0, Tones((0.0, math.pi), (0.5, 0.5)), [0.0, 40.0])  # a fair coin
    np.testing.assert_allclose(far, [1.0, 2.0 * math.exp(-(40.0**2) / 128.0)], rtol=1e-12)


def test_the_bound_of_bernstein_by_hand():
    """Near lag 0, where it is the smaller one, with a bias."""
    (q,), (k,), shift = contents(1, 12)
    a, law, lag = q * k, kernels.parse(G), 3.0
    phi, twice = float(law.phi(lag)), float(law.phi(2.0 * lag))
    variance = np.sum(a**2 * ((1.0 + twice * np.cos(2.0 * shift)) / 2.0 - (phi * np.cos(shift)) ** 2))
    most, t = np.max(a * (1.0 + np.abs(phi * np.cos(shift)))), 12.0 * math.sqrt(variance)
    wanted = 2.0 * math.exp(-(t**2) / (2.0 * variance + 2.0 * most * t / 3.0))
    assert wanted < 2.0 * math.exp(-(t**2) / (2.0 * np.sum(a**2)))
    assert polar_tail(q, k, lag, G, t, shift=shift) == pytest.approx(wanted, rel=1e-12)


def test_one_bias_may_serve_all_blocks():
    q, k, _ = contents(3, 5)
    for function in FUNCTIONS:
        found = function(q, k, 7.0, G, shift=[[0.3], [-1.0], [2.0]])
        np.testing.assert_array_equal(found, function(q, k, 7.0, G, shift=np.repeat([[0.3], [-1.0], [2.0]], 5, axis=1)))


def test_effective_blocks_by_hand():
    assert effective_blocks([1.0, 1.0], [3.0, 1.0]) == pytest.approx(16.0 / 10.0)
    assert effective_blocks([1.0, 0.0], [0.0, 1.0]) == 0.0
    q, k, _ = contents(5, 64)
    v = 0.5 * (1.0 + math.exp(-2.0)) - math.exp(-1.0)
    wanted = math.sqrt(v) / math.exp(-0.5) / np.sqrt(effective_blocks(q, k))
    np.testing.assert_allclose(polar_error(q, k, 32.0, G), wanted, rtol=1e-12)


@campaign
def test_the_measured_figures():
    """Medians at D = 64: a draw errs by twice the mean of RoPE's contents, by 13 % of that of polar ones."""
    rope = np.median(relative_error(*np.random.default_rng(0).normal(size=(2, 20_000, 128)), 32.0, G))
    assert rope == pytest.approx(1.95, abs=0.03)
    q, k, _ = contents(2000, 64)
    assert np.median(polar_error(q, k, 32.0, G)) == pytest.approx(0.128, abs=0.001)
    fit = rfrope.designs.optimise(G, 64, max_lag=256)
    for design, error in ((fit, 0.088), ("stratified", 0.089), ("shifted", 0.0905)):
        assert np.median(polar_error(q, k, 32.0, G, design=design)) == pytest.approx(error, abs=0.0015)


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS)
def test_contents_biases_and_lags_broadcast(function):
    q, k, _ = contents(5, 6)
    shift, lags = RNG.uniform(-6.0, 0.0, (5, 1, 6)), np.linspace(-9.0, 9.0, 7)
    table = function(q[:, None], k[:, None], lags, "gaussian(scale=4)", shift=shift)
    assert table.shape == (5, 7)
    for i, j in ((0, 0), (4, 6), (2, 3)):
        alone = function(q[i], k[i], lags[j], "gaussian(scale=4)", shift=shift[i, 0])
        assert table[i, j] == pytest.approx(alone, rel=1e-13)
    one = function(q, k, 3.0, "gaussian(scale=4)", shift=-1.0)
    np.testing.assert_allclose(one, function(q, k, 3.0, "gaussian(scale=4)", shift=np.full(6, -1.0)), rtol=1e-14)


@pytest.mark.parametrize("design", ["stratified", "sobol", "antithetic", "halton"])
def test_designs_broadcast(design):
    q, k, shift = contents(5, 6)
    lags = np.linspace(-9.0, 9.0, 7)
    table = polar_variance(q[:, None], k[:, None], lags, "gaussian(scale=4)", shift=shift, design=design)
    assert table.shape == (5, 7)
    alone = polar_variance(q[2], k[2], lags[1], "gaussian(scale=4)", shift=shift, design=design)
    assert table[2, 1] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("design", ["iid", "stratified", "a set"])
def test_every_library_gives_its_own_arrays(xp, design):
    q, k, shift = contents(3, 4)
    design = np.array([0.1, 0.2, 0.3, -0.1]) if design == "a set" else design
    for function in FUNCTIONS:
        options = {} if function is polar_score else {"design": design}
        got = function(xp(q), xp(k), [1.0, 3.0, 5.0], "gaussian(scale=4)", shift=xp(shift), **options)
        assert xp.owns(got)
        wanted = function(q, k, [1.0, 3.0, 5.0], "gaussian(scale=4)", shift=shift, **options)
        np.testing.assert_allclose(xp.host(got), wanted, rtol=1e-5 if xp.name == "jax" else 1e-12)
    assert xp.owns(effective_blocks(xp(q), xp(k)))
    assert xp.owns(polar_tail(xp(q), xp(k), 1.0, G, 0.1))


@pytest.mark.parametrize("design", ["iid", "stratified"])
def test_gradients(design):
    torch = pytest.importorskip("torch")
    q, k, shift = (torch.tensor(one, requires_grad=True) for one in contents(2, 4))
    lags = torch.tensor([1.0, 4.0], dtype=torch.float64)
    for function in FUNCTIONS:
        options = {} if function is polar_score else {"design": design}
        call = lambda q, k, d, f=function, o=options: f(q, k, lags, "gaussian(scale=4)", shift=d, **o)  # noqa: E731
        assert torch.autograd.gradcheck(call, [q, k, shift])
    with pytest.raises(TypeError, match="lags require a gradient"):
        polar_variance(q, k, lags.clone().requires_grad_(), G, design="stratified")


ONES = np.ones(4)
BAD = [
    ({"q": [-1.0, 1.0, 1.0, 1.0]}, ValueError, "q holds negative numbers; expected magnitudes"),
    ({"k": [1.0, 1.0, 1.0, -1e-9]}, ValueError, "k holds negative numbers"),
    ({"q": [1, 1, 1, 1]}, TypeError, "q has dtype int64"),
    ({"q": 1.0}, ValueError, "q is a single number"),
    ({"q": np.ones(8)}, ValueError, r"q has shape \(8,\) but k has \(4,\)"),
    ({"shift": np.ones(8)}, ValueError, r"shift has shape \(8,\), but q and k have 4 magnitudes"),
    ({"shift": [np.nan] * 4}, ValueError, "shift holds NaN"),
    ({"lags": [[1.0, 2.0, 3.0]], "kernel": "gaussian(ndim=2)"}, ValueError, "lags has shape"),
    ({"kernel": "gausian"}, ValueError, "gausian"),
    ({"design": "balanced"}, ValueError, "design is 'balanced', whose pairs"),
    ({"design": "straitfied"}, ValueError, "design is 'straitfied'"),
    ({"design": np.ones(5)}, ValueError, "design has 5 frequencies of 1 axes, but q and k have 4 magnitudes"),
    ({"design": np.ones((4, 2))}, ValueError, "design has 4 frequencies of 2 axes"),
    ({"design": None}, TypeError, "design"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD, ids=[f"{b[0]!r:.40}" for b in BAD])
def test_bad_input_is_named(change, error, message):
    arguments = {"q": ONES, "k": ONES, "lags": [1.0], "kernel": G} | change
    with pytest.raises(error, match=message):
        polar_variance(**arguments)


def test_negative_distances_are_refused():
    with pytest.raises(ValueError, match="distance holds negative"):
        polar_tail(ONES, ONES, 1.0, G, -1.0)


@pytest.mark.parametrize("text", ["constant()", *FAMILIES, "gaussian(ndim=3)"])
def test_at_lag_0_nothing_varies(text):
    law = kernels.parse(text)
    origin = np.zeros(law.ndim) if law.ndim > 1 else 0.0
    q, k, shift = contents(1, 4)
    assert polar_variance(q[0], k[0], origin, law, shift=shift) == 0.0
    assert polar_error(q[0], k[0], origin, law, design="antithetic") == 0.0
    assert polar_score(q[0], k[0], origin, law, shift=shift) == pytest.approx(np.sum(q * k * np.cos(shift)))


@pytest.mark.parametrize("size", [1e-170, 1e-11, 1e140])
def test_ratios_do_not_depend_on_the_size_of_contents(size):
    q, k = np.random.default_rng(0).uniform(0.1, 1.0, (2, 16))
    law, lag = "gaussian(scale=32)", 20.0
    assert effective_blocks(size * q, k) == pytest.approx(effective_blocks(q, k), rel=1e-12)
    for shift in (None, np.linspace(-1.0, 0.0, 16)):
        found = polar_error(size * q, k, lag, law, shift=shift)
        assert found == pytest.approx(polar_error(q, k, lag, law, shift=shift), rel=1e-12)
        found = polar_tail(size * q, k, lag, law, size * 2.0, shift=shift)
        assert found == pytest.approx(polar_tail(q, k, lag, law, 2.0, shift=shift), rel=1e-12)
    assert polar_error(0.0 * q, k, lag, law) == effective_blocks(0.0 * q, k) == 0.0
