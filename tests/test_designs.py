"""Designs: the law of every block, independent heads, what the points are spread over, and how close Phi_D comes."""

from __future__ import annotations

import csv
import itertools
import math
import pathlib
from typing import ClassVar

import numpy as np
import pytest
from campaign import campaign, sparse
from conftest import benchmark
from problems import KERNELS, Z_BOUND, law_distances
from scipy import optimize

import rfrope
from rfrope import analysis, kernels, sample
from rfrope.designs import descent, fitting, optimise, sampling
from rfrope.designs import lags as lags_module
from rfrope.designs import sets as designs
from rfrope.designs.errors import lags_within
from rfrope.designs.sampling import RANDOMISED
from rfrope.kernels import Kernel

N_SETS, N_BLOCKS = 10_000, 6
KEY = (20240607, 4)
G, E, M2 = (
    kernels.parse("gaussian(scale=4)"),
    kernels.parse("exponential(scale=6)"),
    kernels.parse("matern(scale=3, ndim=2)"),
)
G2 = kernels.parse("gaussian(scale=(4, 7), ndim=2)")
WARP = [[1.0, 0.4], [-0.3, 0.8]]
ALGEBRA = {
    "product": G * E,
    "mixture": kernels.mixture([0.3, 0.7], [G, E]),
    "mixture of layouts": kernels.mixture([0.5, 0.5], [G2, M2]),
    "rescaled": E.rescale(2.0),
    "warped": M2.warp(WARP),
    "axes": kernels.axes(G, E),
    "product in two axes": M2 * M2,
}
LAWS = {str(p): p.kernel for p in {(p.family, p.kernel.ndim): p for p in KERNELS}.values()} | ALGEBRA


def allowed(design: str, kernel: Kernel) -> bool:
    return design != "orthogonal" or (kernel.ndim > 1 and kernel.isotropy() is not None)


CASES = [(design, name) for design in RANDOMISED for name in LAWS if allowed(design, LAWS[name])]
each_case = pytest.mark.parametrize(("design", "name"), CASES, ids=[f"{d}-{n}" for d, n in CASES])
each_design = pytest.mark.parametrize("design", RANDOMISED)


def plain(design: str) -> Kernel:
    """A kernel that the design allows."""
    return M2 if design == "orthogonal" else G


def lags_of(kernel: Kernel) -> np.ndarray:
    """Five lags at which Phi is neither 0 nor 1."""
    directions = {1: [[1.0]], 2: [[1.0, 0.0], [0.6, -0.8]], 3: [[1.0, 0.0, 0.0], [0.6, 0.6, -0.5]]}[kernel.ndim]
    reach = next(r for r in np.geomspace(1e-3, 1e5, 200) if kernel.phi(squeezed(r * np.array(directions[:1])))[0] < 0.6)
    return squeezed(np.concatenate([f * reach * np.array(directions) for f in (0.4, 1.0, 1.7)])[:5])


def draw_sets(kernel: Kernel, *arguments, **options) -> np.ndarray:
    """Sets (streams, D) of frequencies in one axis, or (streams, D, k)."""
    return kernel.restore_shape(sampling.draw_sets(kernel, *arguments, **options))


def squeezed(vectors: np.ndarray) -> np.ndarray:
    return vectors[..., 0] if vectors.shape[-1] == 1 else vectors


def phases_of(kernel: Kernel, sets: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Phases (sets, blocks, lags)."""
    return sets[..., None] * lags if kernel.ndim == 1 else sets @ lags.T


def scores_of_mean(kernel: Kernel, sets: np.ndarray, *, claimed: Kernel | None = None) -> float:
    """Largest abs(z) of mean cosine and sine against Phi and 0, of each block and of the mean over the blocks."""
    lags = lags_of(kernel)
    u = phases_of(kernel, sets, lags)
    found = 0.0
    for values, expected in ((np.cos(u), (claimed or kernel).phi(lags)), (np.sin(u), 0.0)):
        for group in (values, values.mean(axis=1, keepdims=True)):
            spread = np.maximum(group.std(axis=0), 1e-10)  # laws with one frequency leave rounding alone
            found = max(found, float(np.max(np.abs(group.mean(axis=0) - expected) / spread)) * np.sqrt(len(sets)))
    return found


# -- the law of every block --------------------------------------------------------------------------------------------


@each_case
def test_mean_cosine_is_phi_and_mean_sine_is_zero_for_every_block(design, name):
    kernel = LAWS[name]
    sets = draw_sets(kernel, design, KEY, N_BLOCKS, streams=N_SETS)
    assert scores_of_mean(kernel, sets) < Z_BOUND


SHAPES = [p for p in KERNELS if p.family in ("matern", "sinc")][::2]
SHAPED = [(design, p) for design in RANDOMISED for p in SHAPES if allowed(design, p.kernel)]


@pytest.mark.parametrize(("design", "problem"), SHAPED, ids=[f"{d}-{p}" for d, p in SHAPED])
def test_every_block_has_the_kernels_law(design, problem):
    sets = draw_sets(problem.kernel, design, KEY, 5, streams=N_SETS)
    for block in range(5):
        distances = law_distances(problem.kernel, problem.lengths, problem.shape, sets[:, block])
        assert max(distances.values()) < 1.0, block


@each_design
def test_a_scale_that_is_off_by_one_percent_is_seen(design):
    kernel = plain(design)
    sets = draw_sets(kernel, design, KEY, 64, streams=N_SETS)
    assert scores_of_mean(kernel, sets) < Z_BOUND < scores_of_mean(kernel, sets, claimed=kernel.rescale(1.01))


def test_the_orthogonal_design_without_its_sign_fix_is_seen(monkeypatch):
    monkeypatch.setattr(designs, "_signs", np.ones_like)
    assert scores_of_mean(M2, draw_sets(M2, "orthogonal", KEY, N_BLOCKS, streams=N_SETS)) > 5 * Z_BOUND


def test_strata_that_are_not_permuted_are_seen(monkeypatch):
    monkeypatch.setattr(
        designs, "_permutations", lambda order: np.broadcast_to(np.arange(order.shape[1])[:, None], order.shape)
    )
    sets = draw_sets(G, "stratified", KEY, N_BLOCKS, streams=N_SETS)
    assert scores_of_mean(G, sets) > 5 * Z_BOUND


P, Q_LAW = kernels.parse("power_exponential(exponent=0.8, scale=3)"), kernels.parse("rational_quadratic(scale=3)")


@pytest.mark.parametrize("design", ["stratified", "shifted"])
@pytest.mark.parametrize("most", [1, 60])
def test_strata_of_few_candidates_keep_the_law(design, most, monkeypatch):
    """It holds for any number of points that a transport with several columns is given, one a stratum included."""
    monkeypatch.setattr(designs, "_MOST_DRAWN", most)
    for kernel in (P, Q_LAW, ALGEBRA["mixture"]):
        assert scores_of_mean(kernel, draw_sets(kernel, design, KEY, N_BLOCKS, streams=N_SETS)) < Z_BOUND


@pytest.mark.parametrize(
    ("design", "spoiled"),
    [
        ("stratified", np.s_[:, : 4 * 32]),  # places in the boxes
        ("stratified", np.s_[:, 4 * 32 : 4 * 33, 0]),  # places in the runs
        ("shifted", np.s_[..., :2]),  # the shift
        ("shifted", np.s_[..., 2]),
    ],
)
def test_points_that_are_not_shifted_or_taken_from_one_end_of_a_stratum_are_seen(design, spoiled, monkeypatch):
    right, kernel = designs.uniforms, kernels.mixture([0.5, 0.5], [G, G.rescale(8.0)])

    def wrong(*arguments):
        u = right(*arguments).copy()
        u[spoiled] *= 1e-3
        return u

    monkeypatch.setattr(designs, "uniforms", wrong)
    assert scores_of_mean(kernel, draw_sets(kernel, design, KEY, 4, streams=N_SETS)) > 2 * Z_BOUND


def test_a_transport_of_several_columns_has_strata_of_the_magnitude():
    """One magnitude in each of 64 strata of equal probability, as a table of the law has them, nearly."""
    for kernel in (P, Q_LAW, ALGEBRA["mixture"], ALGEBRA["product"]):
        table = np.sort(np.abs(draw_sets(kernel, "iid", KEY, 2**18)[0]))
        for design, width in (("stratified", 1.0), ("shifted", 0.0)):
            found = np.sort(np.abs(draw_sets(kernel, design, (1, 2), 64, streams=40)), axis=1)
            place = 64 * np.searchsorted(table, found) / len(table) - np.arange(64)
            middle = place.mean(axis=1, keepdims=True) if design == "shifted" else 0.5
            assert np.max(np.abs(place - middle)) < 0.5 * width + 0.8  # independent draws are 4 off
            signs = np.sign(draw_sets(kernel, design, (1, 2), 64, streams=1000))
            assert np.max(np.abs(signs.T @ signs / 1000 - np.eye(64))) * np.sqrt(1000) < Z_BOUND + 1.0


@pytest.mark.parametrize("design", ["stratified", "halton"])
def test_strata_filled_unevenly_are_seen(design, monkeypatch):
    right = designs.uniforms

    def wrong(*arguments):
        u = right(*arguments).copy()
        u[..., 0] *= 0.5  # the place inside the stratum
        return u

    monkeypatch.setattr(designs, "uniforms", wrong)
    assert scores_of_mean(G, draw_sets(G, design, KEY, N_BLOCKS, streams=N_SETS)) > 5 * Z_BOUND


def test_a_sobol_sequence_that_is_not_scrambled_is_seen(monkeypatch):
    right = designs.uniforms
    monkeypatch.setattr(
        designs, "uniforms", lambda *a: np.concatenate([0.0 * right(*a)[..., :1], right(*a)[..., 1:]], -1)
    )
    assert scores_of_mean(G, draw_sets(G, "sobol", KEY, N_BLOCKS, streams=N_SETS)) > 5 * Z_BOUND


# -- heads -------------------------------------------------------------------------------------------------------------


def dependence(kernel: Kernel, sets: np.ndarray) -> float:
    """Largest abs(z) of the correlations between neighbouring streams, of mean cosines, mean sines, first cosines."""
    u = phases_of(kernel, sets, lags_of(kernel)[1:3])
    found = []
    for values in (np.cos(u).mean(axis=1), np.sin(u).mean(axis=1), np.cos(u[:, 0])):
        centred = values - values.mean(axis=0)
        correlation = np.mean(centred[::2] * centred[1::2], axis=0) / np.maximum(values.var(axis=0), 1e-12)
        found.append(np.max(np.abs(correlation)) * np.sqrt(len(values) // 2))
    return float(max(found))


@each_design
def test_heads_are_independent(design):
    kernel = plain(design)
    assert dependence(kernel, draw_sets(kernel, design, KEY, N_BLOCKS, streams=N_SETS)) < Z_BOUND


@each_design
def test_heads_that_share_their_strata_are_seen(design, monkeypatch):
    """Pairs of heads that are given the same uniforms fail the test above."""
    right, kernel = designs.uniforms, plain(design)
    monkeypatch.setattr(designs, "uniforms", lambda *a: np.repeat(right(*a)[: a[5] // 2], 2, axis=0))
    assert dependence(kernel, draw_sets(kernel, design, KEY, N_BLOCKS, streams=N_SETS)) > 5 * Z_BOUND


@each_design
def test_head_zero_is_the_set_without_heads_and_streams_are_cut_anywhere(design):
    kernel = plain(design)
    heads = sample(kernel, 7, rng=1, design=design, heads=5)
    np.testing.assert_array_equal(heads[0].reshape(-1), sample(kernel, 7, rng=1, design=design).reshape(-1))
    np.testing.assert_array_equal(heads[:2], sample(kernel, 7, rng=1, design=design, heads=2))
    whole = draw_sets(kernel, design, KEY, 7, streams=9)
    np.testing.assert_array_equal(draw_sets(kernel, design, KEY, 7, stream=4, streams=5), whole[4:])
    assert len({h.tobytes() for h in heads}) == 5
    assert not np.any(heads == sample(kernel, 7, rng=2, design=design, heads=5))


@pytest.mark.parametrize("design", ["stratified", "shifted"])
def test_streams_of_several_uniforms_are_cut_anywhere(design):
    whole = draw_sets(G * E, design, KEY, 64, streams=40)  # more than are made at once
    np.testing.assert_array_equal(draw_sets(G * E, design, KEY, 64, stream=15, streams=20), whole[15:35])
    assert draw_sets(G * E, design, KEY, 0, streams=2).shape == (2, 0)


@each_design
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 31, 48, 64])
def test_any_number_of_blocks_gives_no_warning(design, n):
    kernel = plain(design)
    found = sample(kernel, n, rng=0, design=design, heads=2)
    assert found.shape == (2, n, kernel.ndim)
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("design", [*RANDOMISED, "quantile"])
def test_same_seed_same_bits_on_every_library(design, xp):
    kernel = plain(design)
    found = sample(kernel, 9, rng=11, design=design, heads=3, xp=xp.module, device=xp.device)
    assert xp.owns(found)
    np.testing.assert_array_equal(xp.host(found), sample(kernel, 9, rng=11, design=design, heads=3))


# Seed 0, written down once: seeds must mean the same in every later version.
FROZEN = {
    "stratified": [0.05207594778328346, 0.028869875276307935, -0.08729707871812448],
    "shifted": [0.006227843349850427, 0.0728945100165171, -0.03956117668318378],
    "sobol": [-0.06189123615437345, -0.006836610402832966, 0.029773026064382393],
    "halton": [-0.0640569608374626, -0.021652406457230947, 0.09047280903859337],
    "antithetic": [0.012455686699700874, -0.012455686699700874, 0.07321925165784758],
}


@pytest.mark.parametrize("design", FROZEN)
def test_frozen_frequencies(design):
    found = sample("sinc(bandwidth=0.1)", 3, rng=0, design=design)
    np.testing.assert_allclose(found, FROZEN[design], rtol=1e-14)


def test_frozen_frequencies_of_several_uniforms():
    for design, frozen in (
        ("stratified", [0.25471634542916527, -0.09631611855065936, -0.123750938241256]),
        ("shifted", [0.1653393141243578, 0.28885323270910185, 0.06952092895626115]),
    ):
        found = sample("sinc(bandwidth=0.1) * sinc(bandwidth=0.3)", 3, rng=0, design=design)
        np.testing.assert_allclose(found, frozen, rtol=1e-14)


# -- what the points are spread over -----------------------------------------------------------------------------------


class Cube(Kernel):
    """Frequencies that are the points of the cube themselves."""

    ndim: ClassVar[int] = 2
    n_columns: ClassVar[int] = 2
    signed_columns: ClassVar[tuple[bool, ...]] = (False, False)

    def __repr__(self):
        return "cube"

    def _transport(self, u):
        return u

    def _phi(self, lags, xp):
        raise NotImplementedError  # these laws are not symmetric


def counts(points: np.ndarray, cells: tuple[int, int]) -> np.ndarray:
    return np.histogram2d(*points.T, bins=cells, range=[(0.0, 1.0)] * 2)[0]


@pytest.mark.parametrize(
    ("design", "n", "boxes"),
    [
        ("stratified", 37, [(37, 1), (1, 37)]),
        ("sobol", 32, [(2**m, 2 ** (5 - m)) for m in range(6)]),
        ("halton", 36, [(4, 9), (4, 1), (1, 9), (2, 3)]),
    ],
)
def test_every_box_has_its_share_of_the_points(design, n, boxes):
    for points in draw_sets(Cube(), design, KEY, n, streams=20):
        assert np.all((points > 0.0) & (points < 1.0))
        for box in boxes:
            assert np.all(counts(points, box) == n // (box[0] * box[1])), box


def test_the_law_of_the_magnitude_is_stratified_and_signs_are_independent():
    for design in ("stratified", "sobol"):
        sets = draw_sets(kernels.parse("sinc(bandwidth=1)"), design, KEY, 64, streams=1000)
        assert np.all(np.sort(np.floor(64 * np.abs(sets)), axis=1) == np.arange(64))
        signs = np.sign(sets)
        assert abs(signs.mean()) * np.sqrt(signs.size) < Z_BOUND
        assert np.max(np.abs(signs.T @ signs / 1000 - np.eye(64))) * np.sqrt(1000) < Z_BOUND + 1.0


def test_antithetic_frequencies_are_pairs():
    omega = sample(G2, 7, rng=3, design="antithetic")
    np.testing.assert_array_equal(omega[:6:2], sample(G2, 3, rng=3))
    np.testing.assert_array_equal(omega[1:6:2], -omega[:6:2])
    np.testing.assert_array_equal(omega[6], sample(G2, 4, rng=3)[3])


@pytest.mark.parametrize("ndim", [2, 3, 5])
def test_directions_are_orthogonal_in_groups(ndim):
    scales = tuple(range(2, 2 + ndim))
    kernel = kernels.kernel("gaussian", scale=scales, ndim=ndim)
    for head in sample(kernel, 2 * ndim + 1, rng=0, design="orthogonal", heads=4) * np.array(scales):
        unit = head / np.linalg.norm(head, axis=-1, keepdims=True)
        for start in range(0, 2 * ndim + 1, ndim):
            group = unit[start : start + ndim]
            np.testing.assert_allclose(group @ group.T, np.eye(len(group)), atol=1e-12)
    radii = draw_sets(kernel, "orthogonal", KEY, 2, streams=N_SETS) * np.array(scales)
    squares = np.sum(radii**2, axis=-1)
    assert abs(np.mean((squares[:, 0] - ndim) * (squares[:, 1] - ndim))) / (2 * ndim) * np.sqrt(N_SETS) < 1.5 * Z_BOUND


def test_orthogonal_is_for_linear_maps_of_isotropic_laws():
    for kernel in (M2 * M2, kernels.mixture([0.5, 0.5], [M2, M2.rescale(5.0)]), M2.warp(WARP), G2.rescale((2.0, 3.0))):
        assert sample(kernel, 4, rng=0, design="orthogonal").shape == (4, 2)
    for kernel in (kernels.axes(G, E), M2 * G2, kernels.mixture([0.5, 0.5], [M2, G2]), "sinc(ndim=2)", Cube()):
        with pytest.raises(ValueError, match=r"^design is 'orthogonal' but .*; expected an isotropic kernel"):
            sample(kernel, 4, rng=0, design="orthogonal")
    with pytest.raises(ValueError, match="has one axis; expected 2 or more"):
        sample(G, 4, design="orthogonal")


@pytest.mark.parametrize("name", [name for name in LAWS if name != "mixture of layouts"])
def test_columns_that_carry_the_sign(name):
    kernel = LAWS[name]
    assert len(kernel.signed_columns) == kernel.n_columns
    assert any(kernel.signed_columns)
    u = (np.random.default_rng(0).integers(1, 2**30, size=(1000, kernel.n_columns)) + 0.5) * 2.0**-31
    mirrored = np.where(kernel.signed_columns, 1.0 - u, u)
    np.testing.assert_array_equal(kernel.transport_points(mirrored), -kernel.transport_points(u))


def test_a_mixture_whose_components_lay_out_their_columns_differently_has_no_signed_column():
    assert ALGEBRA["mixture of layouts"].signed_columns == (False,) * 4
    assert kernels.mixture([0.5, 0.5], [G, G * E]).signed_columns == (False, True, True)


# -- deterministic designs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["gaussian(scale=32)", "exponential(scale=7)", "log_uniform(low=0.01, high=1)"])
@pytest.mark.parametrize("n", [0, 1, 7, 64])
def test_quantile_frequencies_are_midpoints_with_alternating_signs(text, n):
    kernel = kernels.parse(text)
    i = np.arange(n)
    expected = kernel.transport(0.5 + 0.5 * (i + 0.5) / max(n, 1)) * (-1.0) ** i
    np.testing.assert_allclose(sample(kernel, n, design="quantile"), expected, rtol=1e-14)


def test_quantiles_of_sums_and_mixtures():
    """Kernels whose law is also known otherwise: a product of gaussians is one, a mixture of equals is each of them."""
    for same, kernel in ((kernels.parse("gaussian(scale=2.4)"), kernels.parse("gaussian(scale=3)") * G),
                         (G, kernels.mixture([0.3, 0.7], [G, G]))):  # fmt: skip
        np.testing.assert_allclose(
            sample(kernel, 64, design="quantile"), sample(same, 64, design="quantile"), rtol=2e-3, atol=1e-4
        )


@pytest.mark.parametrize("design", ["quantile", "optimised"])
def test_deterministic_designs_need_no_seed_and_repeat_the_set_for_every_head(design):
    options = {"design": design} | ({"max_lag": 20} if design == "optimised" else {})
    rng = np.random.default_rng(0)
    alone, heads = sample(G, 8, rng=rng, **options), sample(G, 8, heads=3, **options)
    assert heads.shape == (3, 8, 1)
    for head in heads:
        np.testing.assert_array_equal(head[:, 0], alone)
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("name", ["mixture", "product", "axes", "warped", "product in two axes"])
def test_every_design_beats_independent_draws(name):
    kernel = LAWS[name]
    lags = lags_of(kernel)
    error = {}
    for design in ("iid", "stratified", "sobol", "halton", "quantile"):
        sets = sample(kernel, 64, rng=5, design=design, heads=100).reshape(100, 64, *([2] if kernel.ndim == 2 else []))
        phi = np.cos(phases_of(kernel, sets, lags)).mean(axis=1)
        error[design] = float(np.sqrt(np.mean((phi - kernel.phi(lags)) ** 2)))
    assert max(error, key=error.get) == "iid"
    assert error["sobol"] < 0.7 * error["iid"]
    assert error["quantile"] < (0.5 if kernel.ndim == 1 else 0.8) * error["iid"]


# -- how close Phi_D comes ---------------------------------------------------------------------------------------------


def errors(kernel: Kernel, sets: np.ndarray, max_lag: int) -> tuple[float, float]:
    """Mean over the sets of root mean square and of largest error over whole lags."""
    lags = np.arange(max_lag + 1.0)
    error = np.abs(np.cos(sets[..., None] * lags).mean(axis=1) - kernel.phi(lags))
    return float(np.sqrt(np.mean(error**2, axis=-1)).mean()), float(np.max(error, axis=-1).mean())


def test_the_promise_at_scale_32_with_64_blocks():
    kernel = kernels.parse("gaussian(scale=32)")
    rms = {d: errors(kernel, draw_sets(kernel, d, KEY, 64, streams=200), 256)[0] for d in ("iid", "stratified")}
    assert rms["iid"] >= 6.0 * rms["stratified"]
    fit = optimise(kernel, 64, max_lag=256)
    assert fit.source.error["sup"] <= 0.003
    assert rms["iid"] >= 25.0 * fit.source.error["rms"]


GAINS = {  # root mean square of independent draws over that of each design, at 64 blocks; least of them
    "gaussian(scale=32)": (7, 9, 12, 40),
    "cauchy(scale=24)": (4, 5, 7, 11),
    "sinc(bandwidth=0.1)": (12, 15, 40, 1e3),
    "matern(nu=1.5, scale=16)": (3.2, 4.2, 5, 8),
    "exponential(scale=48)": (2.6, 2.9, 3.5, 6),
    "rational_quadratic(alpha=1.5, scale=24)": (5, 6, 8, 14),
    "power_exponential(exponent=1.5, scale=32)": (3.3, 3.8, 5, 8),
    "power_exponential(exponent=0.8, scale=32)": (2, 2.2, 2.6, 5),
    "log_uniform(low=0.05, high=0.5)": (2.6, 12, 14, 40),
    "periodic(period=96, scale=0.7)": (5, 5.5, 5.5, 9),
    "spectral_mixture(weights=(0.75, 0.25), means=(0.01, 0.2), scales=(0.04, 0.02))": (4, 6, 9, 20),
}


@pytest.mark.parametrize("text", sparse(GAINS, lambda text: text.startswith(("gaussian", "power"))))
def test_designs_gain_in_every_family_of_one_axis(text):
    """Twice to fifteen times at random, by how heavy the tail is; if balanced five times, but for two heavy tails."""
    kernel, lags = kernels.parse(text), np.arange(257.0)
    sets = {d: draw_sets(kernel, d, KEY, 64, streams=100) for d in ("iid", "stratified", "shifted")}
    sets["balanced"] = sample(kernel, 64, rng=0, design="balanced", max_lag=256, heads=60)[..., 0]
    sets["optimised"] = sample(kernel, 64, design="optimised", max_lag=256)[None]
    rms = {
        d: np.sqrt(np.mean((np.cos(each[..., None] * lags).mean(axis=1) - kernel.phi(lags)) ** 2, axis=-1)).mean()
        for d, each in sets.items()
    }
    for design, gain in zip(("stratified", "shifted", "balanced", "optimised"), GAINS[text], strict=True):
        assert rms["iid"] > gain * rms[design], (design, rms["iid"] / rms[design])


@pytest.mark.parametrize(
    ("text", "n", "max_lag"),
    [
        ("gaussian(scale=32)", 64, 256),
        ("gaussian(scale=32)", 64, 16),
        ("exponential(scale=8)", 16, 100),
        ("log_uniform(low=0.01, high=1)", 1, 50),
        ("gaussian(scale=4, ndim=2)", 16, (8, 5)),
        ("matern(scale=3, ndim=3)", 8, 3),
    ],
)
def test_a_fit_reaches_what_it_says_and_no_less_than_its_start(text, n, max_lag):
    kernel = kernels.parse(text)
    fits = {norm: optimise(kernel, n, max_lag=max_lag, norm=norm) for norm in ("rms", "sup")}
    reach = fits["rms"].source.extra["max_lag"]
    assert fits["rms"].context == (reach[0] + 1 if len(reach) == 1 else tuple(m + 1 for m in reach))
    grid = np.stack(np.meshgrid(*[np.arange(-m, m + 1) for m in reach], indexing="ij"), axis=-1)
    half = grid.reshape(-1, kernel.ndim)[grid.size // kernel.ndim // 2 :].astype(float)
    for norm, fit in fits.items():
        omega = fit.frequencies.reshape(n, kernel.ndim)
        error = np.abs(analysis.mean_kernel(half, omega) - kernel.phi(squeezed(half)))
        reached = fit.source.error
        assert reached["rms"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6, abs=1e-12)
        assert reached["sup"] == pytest.approx(np.max(error), rel=1e-6, abs=1e-12)
        assert reached[norm] <= fit.source.extra["start"][norm]
        np.testing.assert_array_equal(
            sample(kernel, n, design="optimised", max_lag=max_lag, norm=norm), fit.frequencies
        )
    found = {norm: fit.source.error for norm, fit in fits.items()}
    assert found["sup"]["sup"] <= found["rms"]["sup"]
    assert found["rms"]["rms"] <= found["sup"]["rms"] * (1.0 + 1e-9) + 1e-5


def test_the_largest_error_is_a_local_minimum():
    """No step that a linear programme finds lowers it any more: moving at random does not either."""
    kernel, rng = kernels.parse("gaussian(scale=8)"), np.random.default_rng(0)
    fit = optimise(kernel, 12, max_lag=60, norm="sup")
    for size in (1e-6, 1e-4, 1e-3):
        moved = fit.frequencies + size / 60 * rng.normal(size=(1000, 12))
        assert errors_sup(kernel, moved, 60).min() > 0.995 * fit.source.error["sup"]


def errors_sup(kernel: Kernel, sets: np.ndarray, max_lag: int) -> np.ndarray:
    lags = np.arange(max_lag + 1.0)
    return np.max(np.abs(np.cos(sets[..., None] * lags).mean(axis=1) - kernel.phi(lags)), axis=-1)


@pytest.mark.parametrize("max_lag", [(10,), (3000,), (100_000,), (40, 3), (200, 300), (30, 20, 10)])
def test_lags_of_a_range(max_lag):
    lags, weights = lags_within(max_lag, 500)
    total = (np.prod([2 * m + 1 for m in max_lag]) + 1) // 2
    assert len(lags) == len(weights) <= 500
    assert weights.sum() == pytest.approx(total)
    assert np.all(np.abs(lags) <= max_lag)
    assert np.all(lags == np.rint(lags))
    assert not np.any(lags[0])
    both = {tuple(v) for v in lags} | {tuple(v) for v in -lags}
    assert len(both) == 2 * len(lags) - 1
    for axis, m in enumerate(max_lag):
        assert np.max(np.abs(lags[:, axis])) > 0.95 * m


def test_a_long_range_is_fitted_at_some_lags_and_judged_at_all():
    fit = optimise("gaussian(scale=256)", 8, max_lag=5000)
    assert fit.source.error["rms"] < fit.source.extra["start"]["rms"]
    lags = np.arange(5001.0)
    error = analysis.mean_kernel(lags, fit.frequencies) - kernels.parse("gaussian(scale=256)").phi(lags)
    assert fit.source.error["rms"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)


# -- at every lag, against independent draws ---------------------------------------------------------------------------

RESONANT = (  # kernels whose blocks all come back together where candidates are one shifted lattice, and a lag of 64
    ("sinc(bandwidth=0.3) * sinc(bandwidth=1)", 346),
    ("sinc(bandwidth=1) * sinc(bandwidth=1)", 2850),
    ("gaussian(scale=4) * sinc(bandwidth=1)", 399),
    ("exponential(scale=8) * sinc(bandwidth=1)", 366),
)
EVERYWHERE = (
    *(record.example for record in kernels.records() if record.name not in ("shell", "constant")),
    *(text for text, _ in RESONANT),
    "sinc(bandwidth=1)",
    "gaussian(scale=8) * exponential(scale=64)",
    "rational_quadratic(alpha=0.7, scale=5) * log_uniform(low=0.05, high=0.5)",
    "periodic(period=96, scale=0.7) * gaussian(scale=200)",
    "power_exponential(exponent=0.8, scale=9) * sinc(bandwidth=1)",
    "sinc(bandwidth=0.3) * sinc(bandwidth=0.7) * sinc(bandwidth=1)",
    "mixture([0.7, 0.3], [gaussian(scale=8), exponential(scale=64)])",
    "mixture([0.5, 0.5], [sinc(bandwidth=1), gaussian(scale=3) * sinc(bandwidth=0.5)])",
    "mixture([0.4, 0.6], [rational_quadratic(alpha=1.5, scale=24), sinc(bandwidth=1)])",  # no column has the sign alone
    "(power_exponential(exponent=1.5, scale=32)).rescale(0.2)",
)


def variance_ratios(kernel: Kernel, design: str, n: int, n_sets: int, max_lag: int = 3000) -> np.ndarray:
    """Mean square errors of the mean kernel at whole lags 1 to `max_lag`, in units of those of independent draws."""
    lags, low = np.arange(1.0, max_lag + 1.0), 1.0 + np.arange(64.0)
    high = 64.0 * np.arange(-(-max_lag // 64))
    phi, total = kernel.phi(lags), 0.0
    for stream in range(0, n_sets, 128):
        omega = draw_sets(kernel, design, KEY, n, stream=stream, streams=128)[..., None]
        both = np.swapaxes(np.exp(1j * omega * high), 1, 2) @ np.exp(1j * omega * low)
        total += np.sum((both.real.reshape(128, -1)[:, :max_lag] / n - phi) ** 2, axis=0)
    alone = 0.5 * (1.0 + kernel.phi2(lags)) - phi * phi
    seen = alone > 1e-12  # where all frequencies have one cosine there is nothing but rounding
    return np.where(seen, total / n_sets * n / np.where(seen, alone, 1.0), 0.0)


@pytest.mark.parametrize(("text", "lag"), RESONANT)
def test_strata_of_several_uniforms_are_independent(text, lag):
    """A mean of S squares of normal numbers is above ``1 + 2 sqrt(x/S) + 2x/S`` with a chance below ``exp(-x)``."""
    kernel, n_sets, x = kernels.parse(text), 1024, math.log(4 * 3000 * 1e6)
    noise = 1.0 + 2.0 * math.sqrt(x / n_sets) + 2.0 * x / n_sets
    found = variance_ratios(kernel, "stratified", 64, n_sets)
    assert np.max(found) < 1.1 * noise
    assert np.mean(found[:30]) < 0.3
    assert variance_ratios(kernel, "shifted", 64, 256, 2900)[lag - 1] > 4.0  # that design does come back


@campaign
@pytest.mark.parametrize("text", EVERYWHERE)
def test_at_no_lag_is_a_stratified_set_worse_than_independent_draws(text):
    """The proofs say 33/32; an estimate over 2**15 sets is 1.066 times too high with a chance below 1e-14."""
    found = variance_ratios(kernels.parse(text), "stratified", 16, 2**15)
    assert np.max(found) < 1.1


@pytest.mark.parametrize("n", [1, 2, 23, 122, 512])
@pytest.mark.parametrize("kernel", [ALGEBRA["product"], ALGEBRA["mixture"], P, G * E * P], ids=str)
def test_candidates_have_a_box_each_and_the_boxes_are_equal_shares(kernel, n):
    ends = [designs._in_boxes(kernel, np.full((1, n, kernel.n_columns), u))[0] for u in (0.0, 1.0)]
    assert np.prod(ends[1] - ends[0], axis=1) == pytest.approx(np.full(n, 0.5 / n))
    assert np.min(np.stack(ends)[..., kernel.signed_columns.index(True)]) == 0.5  # the half that makes all cosines
    points = 0.5 * (ends[0] + ends[1])
    inside = np.all((points[:, None] > ends[0]) & (points[:, None] < ends[1]), axis=-1)
    np.testing.assert_array_equal(inside, np.eye(n, dtype=bool))


# -- choice, heads of several kernels, bad input -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "design"), [(G, "stratified"), (E, "stratified"), (G * E, "stratified"), (M2, "sobol")]
)
def test_auto(kernel, design):
    np.testing.assert_array_equal(sample(kernel, 9, rng=0, design="auto"), sample(kernel, 9, rng=0, design=design))


def test_the_error_of_a_design_is_that_within_the_context():
    """The lags are 0 to context - 1: one more would make some of these errors larger."""
    law, lags, larger = rfrope.kernel("exponential", scale=2), np.arange(6.0), 0
    for seed in range(6):
        rope = rfrope.design(law, head_dim=4, context=5, design="stratified", rng=seed)
        errors = np.abs(np.cos(np.multiply.outer(lags, rope.frequencies)).mean(axis=1) - law.phi(lags))
        assert rope.source.error["sup"] == pytest.approx(np.max(errors[:5]))
        larger += errors[5] > np.max(errors[:5])
    assert larger


@pytest.mark.parametrize("design", [*RANDOMISED, "quantile", "auto"])
def test_a_kernel_for_each_head(design):
    if design == "orthogonal":
        one, other = M2, M2.rescale(4.0)
    else:
        one, other = G, "exponential(scale=9)"
    both = sample([one, other, one], 6, rng=2, design=design)
    for head, kernel in enumerate((one, other, one)):
        np.testing.assert_array_equal(both[head], sample(kernel, 6, rng=2, design=design, heads=3)[head])
    np.testing.assert_array_equal(sample((one, other, one), 6, rng=2, design=design, heads=3), both)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"design": "grid"}, ValueError, r"^design is 'grid'; expected one of 'iid', 'stratified', .*'auto'"),
        ({"design": ["iid"]}, ValueError, r"^design is \['iid'\]; expected one of"),
        ({"design": "optimised"}, ValueError, r"^max_lag is None; expected the largest .*, for design 'optimised'"),
        ({"design": "optimised", "max_lag": 0}, ValueError, r"^max_lag is 0; expected a whole number from 1"),
        ({"design": "optimised", "max_lag": 2.5}, TypeError, r"^max_lag is 2.5; expected a whole number"),
        ({"design": "optimised", "max_lag": (3, 4)}, ValueError, r"^max_lag is \(3, 4\); expected one number or 1"),
        (
            {"design": "optimised", "max_lag": 9, "norm": "l1"},
            ValueError,
            r"^norm is 'l1'; expected one of 'rms', 'sup'",
        ),
        ({"design": "optimised", "max_lag": 9, "n_blocks": 2000}, ValueError, r"^n_blocks is 2000 .* at most 1024"),
        ({"design": "sobol", "max_lag": 9}, ValueError, r"^max_lag is 9 but design is 'sobol'"),
        ({"norm": "rms"}, ValueError, r"^norm is 'rms' but design is 'iid'"),
        ({"kernel": []}, ValueError, r"^kernel is an empty sequence"),
        ({"kernel": [G, M2]}, ValueError, r"^kernel has kernels with \[1, 2\] axes; expected one ndim"),
        ({"kernel": [G, 3]}, TypeError, r"^kernel is 3; expected a kernel"),
        ({"kernel": [G, E], "heads": 3}, ValueError, r"^heads is 3 but kernel has 2 kernels"),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_bad_input_names_the_argument_what_came_and_what_was_expected(arguments, error, message):
    rng = np.random.default_rng(0)
    with pytest.raises(error, match=message):
        sample(**{"kernel": G, "n_blocks": 4, "rng": rng, **arguments})
    assert rng.random() == np.random.default_rng(0).random()


# -- estimates ---------------------------------------------------------------------------------------------------------

Q, K = np.random.default_rng(0).normal(size=(2, 16))


@each_design
def test_mean_scores_of_every_design_are_the_expected_scores(design):
    kernel = plain(design)
    lags = lags_of(kernel)
    found = rfrope.estimate_scores(Q, K, lags, kernel, n_trials=N_SETS, rng=0, design=design)
    assert np.all(np.abs(found.mean.value - rfrope.expected_score(Q, K, lags, kernel)) < Z_BOUND * found.mean.stderr)


def test_the_spread_of_designs_on_content_that_all_blocks_share():
    """Var S / D^2 is that of Phi_D: stratified far below Proposition 4, antithetic twice as large."""
    q = np.repeat([1.0, 0.0], 32)
    lag = 3.0
    found = {d: rfrope.estimate_scores(q, q, lag, G, n_trials=N_SETS, rng=0, design=d).variance for d in RANDOMISED[:5]}
    pairs = rfrope.estimate_scores(q, q, lag, G, n_trials=N_SETS, rng=0, design="antithetic").variance
    exact = rfrope.score_variance(q, q, lag, G)
    assert abs(found["iid"].value - exact) < Z_BOUND * found["iid"].stderr
    assert abs(pairs.value - 2.0 * exact) < Z_BOUND * pairs.stderr
    assert all(found[d].value < 0.05 * exact for d in ("stratified", "sobol", "halton"))
    assert found["shifted"].value < 0.15 * exact  # all blocks are moved together


def test_trials_are_the_heads_of_sample_and_chunks_do_not_matter():
    omega = sample(E, 8, rng=4, design="stratified", heads=50)[..., 0]
    a, b = rfrope.block_coefficients(Q, K)
    scores = np.cos(3.0 * omega) @ a + np.sin(3.0 * omega) @ b
    found = rfrope.estimate_scores(Q, K, 3.0, E, n_trials=50, rng=4, design="stratified")
    assert found.mean.value == pytest.approx(scores.mean(), rel=1e-12)
    assert found.variance.value == pytest.approx(scores.var(ddof=1), rel=1e-12)


@each_design
@pytest.mark.parametrize("quantity", ["phi", "phi2", "sin"])
def test_kernel_estimates_take_the_mean_over_independent_sets(design, quantity):
    kernel = plain(design)
    lags = lags_of(kernel)
    options = {} if design == "iid" else {"n_blocks": 8}
    found = rfrope.estimate_kernel(lags, kernel, n_samples=16_000, rng=0, design=design, quantity=quantity, **options)
    expected = {"phi": kernel.phi(lags), "phi2": kernel.phi2(lags), "sin": 0.0}[quantity]
    assert found.n == (16_000 if design == "iid" else 2000)
    assert np.all(np.abs(found.value - expected) <= Z_BOUND * found.stderr)


@pytest.mark.parametrize("design", ["quantile", "optimised"])
def test_nothing_is_estimated_from_a_deterministic_design(design):
    with pytest.raises(ValueError, match=f"^design is '{design}', which is deterministic"):
        rfrope.estimate_scores(Q, K, 1.0, G, n_trials=8, design=design)
    with pytest.raises(ValueError, match=f"^design is '{design}', which is deterministic"):
        rfrope.estimate_kernel(1.0, G, n_samples=8, design=design)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"design": "sobol"}, r"^n_blocks is None; expected the number of frequencies in one set, for design 'sobol'"),
        ({"design": "sobol", "n_blocks": 3}, r"^n_samples is 64; expected a multiple of n_blocks=3"),
        ({"design": "sobol", "n_blocks": 64}, r"^n_samples is 64; expected a multiple of n_blocks=64, at least 128"),
        ({"n_blocks": 8}, r"^n_blocks is 8 but design is 'iid'"),
    ],
)
def test_sets_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        rfrope.estimate_kernel(1.0, G, n_samples=64, rng=0, **options)


def test_names_of_the_designs():
    assert set(sampling.DESIGNS) == {*RANDOMISED, "balanced", "quantile", "optimised", "auto"}
    assert all(callable(getattr(designs, name)) for name in (*RANDOMISED, "quantile"))
    assert callable(fitting.optimised)
    assert len(list(itertools.chain(sampling.DESIGNS))) == len(set(sampling.DESIGNS))


# -- the page ----------------------------------------------------------------------------------------------------------


def test_documented_errors_are_reproduced():
    """Some of them; the whole takes ``python -m benchmarks.designs`` minutes."""
    designs = benchmark("designs")
    lines = (pathlib.Path(__file__).parents[1] / "docs" / "designs_error.csv").read_text("utf-8").splitlines()
    assert lines[0].startswith("# python -m benchmarks.designs")
    documented = {tuple(row[h] for h in designs.HEADER[:4]): row for row in csv.DictReader(lines[1:])}
    assert {key[0] for key in documented} == {repr(kernel) for kernel in designs.cases()}
    for kernel in (designs.cases()[0], kernels.parse("matern(nu=1.5, scale=4, ndim=2)")):
        for row in designs.rows(kernel, (8, 32)):
            written = documented[tuple(row[h] for h in designs.HEADER[:4])]
            for quantity in ("rms", "sup"):
                assert float(row[quantity]) == pytest.approx(float(written[quantity]), rel=0.02), row


def test_ellipsoids_that_differ_on_a_tiny_axis_are_not_similar():
    """Isotropy is compared free of scale: here the small axes differ tenfold, beside one 1e8 times as large."""
    parts = [rfrope.kernel("gaussian", scale=(1.0, s), ndim=2) for s in (1e8, 1e9)]
    with pytest.raises(ValueError, match="not known to be spherically symmetric"):
        rfrope.sample(rfrope.kernels.mixture([0.5, 0.5], parts), 8, rng=0, design="orthogonal")
    nearly = [rfrope.kernel("gaussian", scale=(1.0, s), ndim=2) for s in (2.0, 2.0 + 1e-8)]
    with pytest.raises(ValueError, match="not known to be spherically symmetric"):
        rfrope.sample(rfrope.kernels.mixture([0.5, 0.5], nearly), 8, rng=0, design="orthogonal")
    same = rfrope.kernels.mixture([0.5, 0.5], [parts[0], parts[0].rescale(3.0)])
    assert rfrope.sample(same, 8, rng=0, design="orthogonal").shape == (8, 2)


def test_a_constant_part_leaves_the_orthogonal_design_allowed():
    parts = [rfrope.kernel("constant", ndim=2), rfrope.kernel("gaussian", scale=(8.0, 4.0), ndim=2)]
    law = rfrope.kernels.mixture([0.25, 0.75], parts)
    sets = draw_sets(law, "orthogonal", KEY, N_BLOCKS, streams=N_SETS)
    assert scores_of_mean(law, sets) < Z_BOUND


@pytest.mark.parametrize(("count", "most"), [(10, 10), (11, 10), (1000, 64), (2**31 + 1, 2**10), (2**32, 6)])
def test_some_lags_stand_for_all(count, most):
    """Each for as many as lie about it, exactly, also beyond what float32 holds."""
    lags, shares = lags_module._some(count, most)
    assert np.sum(shares) == count
    assert lags.size == min(count, most)
    assert np.all(np.diff(lags) > 0)
    assert (lags[0], lags[-1] < count) == (0, True)
    near = most // 2
    ends = np.cumsum(shares)
    assert np.all((lags >= ends - shares) & (lags < ends))
    assert np.all(shares[:near] == 1.0)


def test_points_of_the_cube_stay_as_they_are():
    kernel = rfrope.kernel("gaussian", scale=4.0)
    cube, minus = np.full((5, 1), 0.25), np.zeros(5, bool)
    found = designs.half_covered(kernel, cube, minus)
    assert np.all(cube == 0.25)
    assert np.all(found == 0.625)


@pytest.mark.parametrize(("rng", "seed"), [(3, 3), (np.int64(3), 3), (True, None), (np.random.default_rng(0), None)])
def test_the_seed_of_a_design_is_a_number(rng, seed):
    """What no other call could go on from is no seed."""
    if rng is True:
        with pytest.raises((TypeError, ValueError), match="rng"):
            rfrope.design("gaussian", head_dim=8, context=32, rng=rng)
        return
    assert rfrope.design("gaussian", head_dim=8, context=32, design="iid", rng=rng).source.seed == seed


def test_what_optimise_says_of_itself_is_what_a_file_gives_back(tmp_path):
    rope = rfrope.designs.optimise("gaussian(scale=4)", 3, max_lag=9, starts=1)
    rfrope.save(tmp_path / "a.npz", rope)
    assert rfrope.load(tmp_path / "a.npz").source == rope.source
    assert rope.source.extra["max_lag"] in (9, [9])


def test_an_interrupt_is_seen_between_two_exchanges(monkeypatch):
    lags = lags_module.Lags(rfrope.kernel("gaussian", scale=4.0), (9,))

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(descent.threads, "checkpoint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        descent.exchange(lags, np.ones((3, 1)), np.full((2, 1), 0.5), 4)


@pytest.mark.parametrize("text", ["gaussian(scale=32)", "exponential(scale=6)"])
def test_a_fit_ends_at_a_minimum(text):
    """Its last descent goes on while anything is gained: another gains less than a part in a thousand."""
    kernel, lags = kernels.parse(text), lags_module.Lags(kernels.parse(text), (63,))
    found = fitting.optimised(kernel, 8, (63,), "rms", starts=2)
    value = lags.mean_square(lags.errors(lags.waves(found)))
    _, lower = descent.descend(lags, found, 2000, 1e-12)
    assert value <= lower * (1.0 + 1e-3) + 1e-20


def test_the_best_of_several_starts_is_followed_furthest(monkeypatch):
    """Descents from the others end sooner: with fewer steps, and where they gain more."""
    asked, descend, search = [], fitting.descend, fitting.search
    monkeypatch.setattr(
        fitting, "descend", lambda lags, omega, *how: (asked.append(how), descend(lags, omega, *how))[1]
    )
    monkeypatch.setattr(
        fitting, "search", lambda lags, omega, draw, n, *how: (asked.append(how), search(lags, omega, draw, n, *how))[1]
    )
    fitting.optimised(kernels.parse("exponential(scale=6)"), 4, (31,), "rms", starts=2)
    steps, gains = zip(*asked, strict=True)
    assert min(steps) < steps[-1] == max(steps)
    assert max(gains) > gains[-1] == min(gains)


@pytest.mark.parametrize(
    ("text", "reach", "n", "seed"), [("gaussian(scale=4)", 20, 5, 18), ("gaussian(scale=32)", 63, 5, 25)]
)
def test_a_descent_ends_where_no_other_goes_on(text, reach, n, seed):
    """A rejected step alone does not end it: SciPy's minimiser gains nothing from there."""
    lags = lags_module.Lags(kernels.parse(text), (reach,))

    def value(omega):
        return lags.mean_square(lags.errors(lags.waves(omega.reshape(-1, 1))))

    found, least = descent.descend(lags, np.random.default_rng(seed).uniform(0.0, 3.0, (n, 1)), 500, 1e-7)
    assert least == pytest.approx(value(found), rel=1e-12)
    assert optimize.minimize(value, found.ravel(), method="BFGS").fun > least * (1.0 - 1e-3)
