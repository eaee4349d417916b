"""Closed forms against references that know nothing of Phi: enumeration of discrete laws, integrals over densities."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

import rfrope
from rfrope import Kernel, expected_score, kernels, rotate, score_variance
from rfrope.moments import mean_kernel_band, relative_error

RNG = np.random.default_rng(20240)
Q3, K3 = RNG.normal(size=(2, 6))  # three blocks
FUNCTIONS = (expected_score, score_variance, relative_error)
PAIRINGS = ("half", "interleaved")


@dataclasses.dataclass(frozen=True, repr=False)
class Tones(Kernel):
    """Atoms at +-frequency for each of some vectors: a law small enough to enumerate."""

    name = "tones"
    frequencies: tuple[tuple[float, ...], ...] = ((0.7,), (1.9,))
    weights: tuple[float, ...] = (0.25, 0.75)
    ndim: int = 1

    @property
    def n_columns(self):
        return 1

    def _phi(self, lags, xp):
        return sum(
            w * xp.cos(xp.sum(lags * xp.asarray(f), axis=-1))
            for w, f in zip(self.weights, self.frequencies, strict=True)
        )

    def _transport(self, u):
        raise NotImplementedError  # nothing is drawn: all outcomes are enumerated

    def atoms(self):
        for weight, frequency in zip(self.weights, self.frequencies, strict=True):
            for sign in (1.0, -1.0):
                yield 0.5 * weight, sign * np.asarray(frequency)


def enumerated(q, k, lags, law, pairing):
    """Mean and variance of rotate(q, 0) . rotate(k, lags) over every outcome of three independent blocks."""
    first = second = 0.0
    for outcome in itertools.product(law.atoms(), repeat=q.shape[-1] // 2):
        probability = math.prod(weight for weight, _ in outcome)
        omega = np.stack([frequency for _, frequency in outcome])
        lag = np.atleast_1d(np.asarray(lags, dtype=float))
        score = rotate(q, 0.0 * lag, omega, pairing=pairing) @ rotate(k, lag, omega, pairing=pairing)
        first, second = first + probability * score, second + probability * score**2
    return float(first), float(second - first**2)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("lags", [-3.0, -0.5, 0.25, 1.0, 7.0])
def test_moments_are_those_of_every_outcome_enumerated(lags, pairing):
    mean, variance = enumerated(Q3, K3, lags, Tones(), pairing)
    assert expected_score(Q3, K3, lags, Tones(), pairing=pairing) == pytest.approx(mean, abs=1e-13)
    assert score_variance(Q3, K3, lags, Tones(), pairing=pairing) == pytest.approx(variance, abs=1e-12)
    assert relative_error(Q3, K3, lags, Tones(), pairing=pairing) == pytest.approx(math.sqrt(variance) / abs(mean))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_moments_are_those_of_every_outcome_enumerated_on_two_axes(pairing):
    law = Tones(((0.7, -0.2), (0.1, 1.3)), (0.4, 0.6), ndim=2)
    for lags in ((1.0, 0.0), (-2.0, 0.5), (3.0, -4.0)):
        mean, variance = enumerated(Q3, K3, lags, law, pairing)
        assert expected_score(Q3, K3, lags, law, pairing=pairing) == pytest.approx(mean, abs=1e-13)
        assert score_variance(Q3, K3, lags, law, pairing=pairing) == pytest.approx(variance, abs=1e-12)


def test_the_pairing_matters():
    mean = enumerated(Q3, K3, 1.0, Tones(), "half")
    assert score_variance(Q3, K3, 1.0, Tones(), pairing="interleaved") != pytest.approx(mean[1], rel=1e-3)


# kernel, half-width and cells of the midpoint rule (frequencies times scale), tolerance set by the tail cut off
DENSITIES = [
    ("gaussian(scale=32)", 32.0, 10.0, 20_000, 1e-11),
    ("cauchy(scale=24)", 24.0, 45.0, 1_000_000, 1e-8),
    ("sinc(bandwidth=0.1)", 10.0, 1.0, 100_000, 1e-8),
    ("matern(nu=1.5, scale=16)", 16.0, 2000.0, 400_000, 1e-8),
    ("matern(nu=2.3, scale=16)", 16.0, 1000.0, 200_000, 1e-10),
    ("matern(nu=25, scale=16)", 16.0, 60.0, 40_000, 1e-11),
    ("exponential(scale=48)", 48.0, 2e5, 4_000_000, 5e-6),
]


def integrated(q, k, lags, omega, mass):
    """Mean and variance of sum_i (A_i cos u_i + B_i sin u_i) for independent omega_i, by summing over a grid."""
    half = len(q) // 2
    u = np.tensordot(omega, np.atleast_1d(lags), axes=([-1], [0])) if np.ndim(lags) else omega * lags
    cos, sin, mean, variance = np.cos(u), np.sin(u), 0.0, 0.0
    for i in range(half):
        a = q[i] * k[i] + q[half + i] * k[half + i]
        b = q[half + i] * k[i] - q[i] * k[half + i]
        first = float(np.sum(mass * (a * cos + b * sin)))
        mean, variance = mean + first, variance + float(np.sum(mass * (a * cos + b * sin) ** 2)) - first**2
    return mean, variance


@pytest.mark.parametrize(("text", "scale", "width", "cells", "tolerance"), DENSITIES, ids=[d[0] for d in DENSITIES])
def test_moments_are_integrals_over_the_density(text, scale, width, cells, tolerance):
    law = kernels.parse(text)
    step = 2.0 * width / cells / scale
    omega = (np.arange(cells) + 0.5) * step - width / scale
    mass = law.density(omega) * step
    q, k = Q3[[0, 1, 3, 4]], K3[[0, 1, 3, 4]]
    size = tolerance * (q @ q) * (k @ k)
    for lags in (0.3 * scale, -1.1 * scale, 2.7 * scale):
        mean, variance = integrated(q, k, lags, omega, mass)
        assert expected_score(q, k, lags, law) == pytest.approx(mean, abs=size)
        assert score_variance(q, k, lags, law) == pytest.approx(variance, abs=size)


@pytest.mark.parametrize(
    ("text", "scales", "width", "cells"),
    [
        ("gaussian(scale=(3, 5), ndim=2)", (3.0, 5.0), 9.0, 400),
        ("matern(nu=2.5, scale=4, ndim=2)", (4.0, 4.0), 60.0, 900),
    ],
)
def test_moments_are_integrals_over_the_density_on_two_axes(text, scales, width, cells):
    law = kernels.parse(text)
    line = (np.arange(cells) + 0.5) * (2.0 * width / cells) - width
    omega = np.stack(np.meshgrid(line / scales[0], line / scales[1], indexing="ij"), axis=-1)
    mass = law.density(omega) * (2.0 * width / cells) ** 2 / math.prod(scales)
    for lags in ((1.0, -2.0), (4.0, 3.0)):
        mean, variance = integrated(Q3[:4], K3[:4], np.asarray(lags), omega, mass)
        assert expected_score(Q3[:4], K3[:4], lags, law) == pytest.approx(mean, abs=1e-6)
        assert score_variance(Q3[:4], K3[:4], lags, law) == pytest.approx(variance, abs=1e-6)


MUTATIONS = {
    "Phi_2 is Phi": lambda a, b, phi, phi2: sum((a * a + b * b) / 2 + (a * a - b * b) / 2 * phi - a * a * phi**2),
    "no Phi^2": lambda a, b, phi, phi2: sum((a * a + b * b) / 2 + (a * a - b * b) / 2 * phi2),
    "A and B swapped": lambda a, b, phi, phi2: sum((a * a + b * b) / 2 + (b * b - a * a) / 2 * phi2 - b * b * phi**2),
    "square of the sum": lambda a, b, phi, phi2: (
        (sum(a) ** 2 + sum(b) ** 2) / 2 + (sum(a) ** 2 - sum(b) ** 2) / 2 * phi2 - sum(a) ** 2 * phi**2
    ),
    "B forgotten": lambda a, b, phi, phi2: sum(a * a / 2 + a * a / 2 * phi2 - a * a * phi**2),
    "scale off by 1 %": lambda a, b, phi, phi2: score_variance(Q3, K3, 1.01, Tones()),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_references_tell_a_wrong_variance(mutation):
    a, b = rfrope.block_coefficients(Q3, K3)
    wrong = MUTATIONS[mutation](a, b, Tones().phi(1.0), Tones().phi2(1.0))
    assert abs(wrong - enumerated(Q3, K3, 1.0, Tones(), "half")[1]) > 1e-3


def test_by_hand():
    # A = 5, B = 5, Phi = exp(-1/2), Phi_2 = exp(-2): Var S = 25 - 25 Phi^2
    assert expected_score([1.0, 2.0], [3.0, 1.0], 32.0, "gaussian(scale=32)") == pytest.approx(5.0 * math.exp(-0.5))
    assert score_variance([1.0, 2.0], [3.0, 1.0], 32.0, "gaussian(scale=32)") == pytest.approx(25.0 - 25.0 / math.e)
    # A = 0, B = -1, Phi_2 = 1/(1 + 4): Var S = 1/2 - 1/10
    assert expected_score([1.0, 0.0], [0.0, 1.0], 24.0, "cauchy(scale=24)") == 0.0
    assert score_variance([1.0, 0.0], [0.0, 1.0], 24.0, "cauchy(scale=24)") == pytest.approx(0.4)


def test_far_away_the_variance_is_half_the_power_of_the_blocks():
    a, b = rfrope.block_coefficients(Q3, K3)
    assert score_variance(Q3, K3, 1e6, "gaussian(scale=32)") == pytest.approx((a @ a + b @ b) / 2.0)


ALL = [record.example for record in kernels.records()]


@pytest.mark.parametrize("text", [*ALL, "matern(nu=50)", "matern(nu=0.8)", "gaussian(ndim=3)", "sinc(ndim=2)"])
def test_at_lag_0_the_mean_is_q_dot_k_and_the_variance_exactly_0(text):
    law = kernels.parse(text)
    origin = np.zeros(law.ndim) if law.ndim > 1 else 0.0
    assert expected_score(Q3, K3, origin, law) == pytest.approx(Q3 @ K3, rel=1e-15)
    assert score_variance(Q3, K3, origin, law) == 0.0
    assert relative_error(Q3, K3, origin, law) == 0.0


@pytest.mark.parametrize("text", ALL)
def test_variance_is_never_negative_near_lag_0(text):
    # with q = k all B are 0, and (1 + Phi_2)/2 - Phi^2 rounds to -1e-16 at some of these lags
    assert np.all(score_variance(Q3, Q3, np.logspace(-12, 0, 4000), text) >= 0.0)
    assert np.all(np.isfinite(relative_error(Q3, Q3, np.logspace(-12, 0, 4000), text)))


def test_relative_error_is_infinite_where_the_mean_is_0():
    assert relative_error([1.0, 0.0], [0.0, 1.0], [0.0, 1.0], "gaussian").tolist() == [0.0, math.inf]
    assert relative_error([0.0, 0.0], [0.0, 1.0], [0.0, 1.0], "gaussian").tolist() == [0.0, 0.0]


def test_relative_error_counts_a_negative_mean_by_its_size():
    law = "sinc(bandwidth=1)"
    assert expected_score(Q3, Q3, 4.5, law) < 0.0 < relative_error(Q3, Q3, 4.5, law)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_vectors_broadcast_against_lags(function):
    q, k, lags = RNG.normal(size=(5, 1, 6)), RNG.normal(size=(5, 1, 6)), np.linspace(-9.0, 9.0, 7)
    table = function(q, k, lags, "gaussian(scale=4)")
    assert table.shape == (5, 7)
    for i, j in ((0, 0), (4, 6), (2, 3)):
        assert table[i, j] == pytest.approx(function(q[i, 0], k[i, 0], lags[j], "gaussian(scale=4)"), rel=1e-14)
    assert function(q[:, 0], k[:, 0], lags[:5], "gaussian(scale=4)").shape == (5,)
    assert function(q[0, 0], k, lags, "gaussian(scale=4)").shape == (5, 7)
    assert function(Q3, K3, 1.0, "gaussian").shape == ()
    assert function(Q3, K3, np.zeros((2, 0)), "gaussian").shape == (2, 0)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("ndim", [2, 3])
def test_lags_of_several_axes_lose_their_last(function, ndim):
    lags = RNG.normal(size=(4, 7, ndim))
    q, k = RNG.normal(size=(2, 7, 6))
    table = function(q, k, lags, f"gaussian(scale=2, ndim={ndim})")
    assert table.shape == (4, 7)
    radius = float(np.linalg.norm(lags[3, 5]))
    assert table[3, 5] == pytest.approx(function(q[5], k[5], radius, "gaussian(scale=2)"), rel=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_lists_and_text_are_accepted(function):
    asked = function([1.0, 2.0], [3.0, 1.0], [1, 2], "gaussian(scale=3)")
    given = function(
        np.asarray([1.0, 2.0]), np.asarray([3.0, 1.0]), np.asarray([1.0, 2.0]), kernels.parse("gaussian(scale=3)")
    )
    assert np.array_equal(asked, given)


@pytest.mark.parametrize("text", ["gaussian(scale=4)", "matern(nu=1.5, scale=4)", "matern(nu=0.7, scale=4)", "sinc"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_library_gives_numpys_numbers(xp, function, text):
    q, k, lags = RNG.normal(size=(3, 1, 6)), RNG.normal(size=(3, 1, 6)), np.asarray([0.0, -1.0, 2.5, 9.0])
    got = function(xp(q), xp(k), xp(lags), text)
    assert xp.owns(got)
    assert got.dtype == xp.dtype("float64")
    np.testing.assert_allclose(xp.host(got), function(q, k, lags, text), rtol=1e-11, atol=1e-11)


READERS_OF_LAGS = {
    **{function.__name__: lambda q, k, lags, f=function: f(q, k, lags, "gaussian") for function in FUNCTIONS},
    "estimate_scores": lambda q, k, lags: rfrope.estimate_scores(q, k, lags, "gaussian", n_trials=8, rng=0).mean.value,
    "recentred_kernel": lambda q, k, lags: rfrope.heads.recentred_kernel(lags, q, "gaussian"),
    "sine_share": lambda q, k, lags: rfrope.analysis.sine_share(q, k, lags, [1.0, 0.25, 0.5]),
}


@pytest.mark.parametrize("name", READERS_OF_LAGS)
def test_lags_of_numpy_join_any_library(xp, name):
    """One reader of lags: what one function takes beside q and k, all do."""
    read, lags = READERS_OF_LAGS[name], np.asarray([2.0**-40, 1.0, 4.0, -1.0, 0.0, 9.0])
    got = read(xp(Q3[None]), xp(K3[None]), lags)
    assert xp.owns(got)
    np.testing.assert_allclose(xp.host(got), read(Q3[None], K3[None], lags), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2.0**501])
@pytest.mark.parametrize("name", READERS_OF_LAGS)
def test_lags_that_are_no_place_are_refused_by_all(name, bad):
    with pytest.raises(ValueError, match=r"lags holds NaN or infinity, or magnitudes above 2\*\*500"):
        READERS_OF_LAGS[name](Q3[None], K3[None], [0.0, bad])
    with pytest.raises(ValueError, match="lags holds NaN"):
        mean_kernel_band([0.0, bad], "gaussian", n_blocks=4)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_narrow_features_are_computed_in_float64_in_every_library(xp, dtype):
    if dtype == "float16" and xp.name == "array-api-strict":
        dtype = "float32"  # the standard has no float16
    q, k = (RNG.normal(size=(2, 1, 64)).astype(dtype) for _ in range(2))
    got = score_variance(xp(q), xp(k), [1.0, 5.0], "gaussian(scale=4)")
    assert got.dtype == xp.dtype("float64")
    np.testing.assert_allclose(xp.host(got), score_variance(q, k, [1.0, 5.0], "gaussian(scale=4)"), rtol=1e-12)


def test_arguments_are_left_alone():
    q, k, lags = Q3.copy(), K3.copy(), np.asarray([0.0, 1.0])
    relative_error(q, k, lags, "gaussian")
    assert np.array_equal(q, Q3)
    assert np.array_equal(k, K3)
    assert lags.tolist() == [0.0, 1.0]


GOOD = {"q": [1.0, 2.0], "k": [3.0, 4.0], "lags": [0.0, 1.0], "kernel": "gaussian", "pairing": "half"}
BAD = [
    ("q", [1.0, 2.0, 3.0], ValueError),
    ("q", [1, 2], TypeError),
    ("k", [1.0, 2.0, 3.0, 4.0], ValueError),
    ("q", [[1.0, 2.0]] * 3, ValueError),
    ("lags", [True, False], TypeError),
    ("kernel", "gausian", ValueError),
    ("kernel", "gaussian(scale=-1)", ValueError),
    ("pairing", "halves", ValueError),
]


@pytest.mark.parametrize(("name", "value", "error"), BAD, ids=[f"{n}={v!r:.20}" for n, v, _ in BAD])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_bad_input_is_named(function, name, value, error):
    arguments = GOOD | {name: value}
    pairing = arguments.pop("pairing")
    with pytest.raises(error, match=rf"\b({name}|scale)\b"):
        function(*arguments.values(), pairing=pairing)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_lags_that_do_not_fit_are_named(function):
    with pytest.raises(ValueError, match="lags has shape"):
        function([1.0, 2.0], [3.0, 4.0], [1.0, 2.0, 3.0], "gaussian(ndim=2)")
    with pytest.raises(ValueError, match=r"lags.*\(3,\) of q and k and \(4,\) of lags"):
        function(np.ones((3, 2)), np.ones((3, 2)), np.ones(4), "gaussian")


def test_two_libraries_at_once_are_refused():
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is the second library of this test")
    with pytest.raises(TypeError, match="q is a numpy array but lags is a array_api_strict array"):
        expected_score(Q3, K3, strict.asarray([1.0]), "gaussian")
