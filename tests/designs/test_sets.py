"""Point sets: the law of every block, independent heads, what the points are spread over, and balanced sets."""

import math
from typing import ClassVar

import numpy as np
import pytest
from campaign import campaign, sparse
from conftest import rows
from problems import KERNELS, Z_BOUND

import rfrope
from rfrope import kernels, sample
from rfrope.designs import sampling, sets
from rfrope.designs.sets import balanced
from rfrope.kernels import Kernel

N_SETS, N_BLOCKS = 10_000, 6
KEY = (20240607, 4)
RANDOMISED = sampling.RANDOMISED
G, E, M2 = map(kernels.parse, ("gaussian(scale=4)", "exponential(scale=6)", "matern(scale=3, ndim=2)"))
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


P, Q_LAW = kernels.parse("power_exponential(exponent=0.8, scale=3)"), kernels.parse("rational_quadratic(scale=3)")


def plain(design: str) -> Kernel:
    """A kernel that the design allows."""
    return M2 if design == "orthogonal" else G


def lags_of(kernel: Kernel) -> np.ndarray:
    """Five lags at which Phi is neither 0 nor 1."""
    directions = {1: [[1.0]], 2: [[1.0, 0.0], [0.6, -0.8]], 3: [[1.0, 0.0, 0.0], [0.6, 0.6, -0.5]]}[kernel.ndim]
    directions = np.array(directions)
    sizes = np.geomspace(1e-3, 1e5, 200)
    reach = sizes[np.argmax(kernel.phi(kernel.restore_shape(sizes[:, None] * directions[0])) < 0.6)]
    return kernel.restore_shape(np.concatenate([f * reach * directions for f in (0.4, 1.0, 1.7)])[:5])


def draw_sets(kernel: Kernel, *arguments, **options) -> np.ndarray:
    """Sets (streams, D) of frequencies in one axis, or (streams, D, k)."""
    return kernel.restore_shape(sampling.draw_sets(kernel, *arguments, **options))


def phases_of(kernel: Kernel, sets: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Phases (sets, blocks, lags)."""
    return sets[..., None] * lags if kernel.ndim == 1 else sets @ lags.T


def scores_of_mean(kernel: Kernel, sets: np.ndarray, lags: np.ndarray | None = None) -> float:
    """Largest abs(z) of mean cosine and sine against Phi and 0, of each block and of the mean over the blocks."""
    lags = lags_of(kernel) if lags is None else lags
    u, found = phases_of(kernel, sets, lags), 0.0
    for values, expected in ((np.cos(u), kernel.phi(lags)), (np.sin(u), 0.0)):
        for group in (values, values.mean(axis=1, keepdims=True)):
            spread = np.maximum(group.std(axis=0), 1e-10)  # laws with one frequency leave rounding alone
            found = max(found, float(np.max(np.abs(group.mean(axis=0) - expected) / spread)) * np.sqrt(len(sets)))
    return found


# -- the law of every block --------------------------------------------------------------------------------------------


@each_case
def test_mean_cosine_is_phi_and_mean_sine_is_zero_for_every_block(design, name):
    kernel = LAWS[name]
    assert scores_of_mean(kernel, draw_sets(kernel, design, KEY, N_BLOCKS, streams=N_SETS)) < Z_BOUND


@pytest.mark.parametrize("design", ["stratified", "shifted"])
@pytest.mark.parametrize("most", [1, 60])
def test_strata_of_few_candidates_keep_the_law(design, most, monkeypatch):
    """It holds for any number of points that a transport with several columns is given, one a stratum included."""
    monkeypatch.setattr(sets, "_MOST_DRAWN", most)
    for kernel in (P, Q_LAW, ALGEBRA["mixture"]):
        assert scores_of_mean(kernel, draw_sets(kernel, design, KEY, N_BLOCKS, streams=N_SETS)) < Z_BOUND


@campaign
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
def test_streams_are_cut_anywhere(design):
    kernel = plain(design)
    whole = draw_sets(kernel, design, KEY, 7, streams=9)
    np.testing.assert_array_equal(draw_sets(kernel, design, KEY, 7, stream=4, streams=5), whole[4:])
    if design in ("stratified", "shifted"):  # several uniforms, and more streams than are made at once
        whole = draw_sets(G * E, design, KEY, 64, streams=40)
        np.testing.assert_array_equal(draw_sets(G * E, design, KEY, 64, stream=15, streams=20), whole[15:35])


# -- the points --------------------------------------------------------------------------------------------------------


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
            counts = np.histogram2d(*points.T, bins=box, range=[(0.0, 1.0)] * 2)[0]
            assert np.all(counts == n // (box[0] * box[1])), box


def test_the_law_of_the_magnitude_is_stratified_and_signs_are_independent():
    for design in ("stratified", "sobol"):
        found = draw_sets(kernels.parse("sinc(bandwidth=1)"), design, KEY, 64, streams=1000)
        assert np.all(np.sort(np.floor(64 * np.abs(found)), axis=1) == np.arange(64))
        signs = np.sign(found)
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
    flat = rfrope.kernel("gaussian", scale=(1.0, 1e8), ndim=2)
    for kernel in (flat, M2.warp(WARP), G2.rescale((2.0, 3.0))):
        assert sample(kernel, 4, rng=0, design="orthogonal").shape == (4, 2)
    with pytest.raises(ValueError, match=r"^design is 'orthogonal' but .*; expected an isotropic kernel"):
        sample(Cube(), 4, rng=0, design="orthogonal")


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


@pytest.mark.parametrize("n", [1, 23, 122])
@pytest.mark.parametrize("kernel", [ALGEBRA["product"], ALGEBRA["mixture"], P, G * E * P], ids=str)
def test_candidates_have_a_box_each_and_the_boxes_are_equal_shares(kernel, n):
    ends = [sets._squeeze_into_boxes(kernel, np.full((1, n, kernel.n_columns), u))[0] for u in (0.0, 1.0)]
    assert np.prod(ends[1] - ends[0], axis=1) == pytest.approx(np.full(n, 0.5 / n))
    assert np.min(np.stack(ends)[..., kernel.signed_columns.index(True)]) == 0.5  # the half that makes all cosines
    points = 0.5 * (ends[0] + ends[1])
    inside = np.all((points[:, None] > ends[0]) & (points[:, None] < ends[1]), axis=-1)
    np.testing.assert_array_equal(inside, np.eye(n, dtype=bool))


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


# -- at every lag, against independent draws ---------------------------------------------------------------------------


# kernels whose blocks all come back together where candidates are one shifted lattice, and a lag of 64
RESONANT = rows("designs/sets.json", "resonant")


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


@campaign
@pytest.mark.parametrize(("text", "lag"), RESONANT)
def test_strata_of_several_uniforms_are_independent(text, lag):
    """A mean of S squares of normal numbers is above ``1 + 2 sqrt(x/S) + 2x/S`` with a chance below ``exp(-x)``."""
    kernel, n_sets, x = kernels.parse(text), 1024, math.log(4 * 3000 * 1e6)
    noise = 1.0 + 2.0 * math.sqrt(x / n_sets) + 2.0 * x / n_sets
    found = variance_ratios(kernel, "stratified", 64, n_sets)
    assert np.max(found) < 1.1 * noise
    assert np.mean(found[:30]) < 0.3
    assert variance_ratios(kernel, "shifted", 64, 256, 2900)[lag - 1] > 4.0  # that design does come back


# -- balanced sets -----------------------------------------------------------------------------------------------------


BALANCED = {
    text: (kernels.parse(text), reach)
    for text, reach in {
        "gaussian(scale=4)": (12,),
        "exponential(scale=6)": (12,),
        "spectral_mixture(weights=(0.75, 0.25), means=(0.1, 1.2), scales=(0.4, 0.2))": (12,),
        "mixture([0.3, 0.7], [gaussian(scale=4), exponential(scale=6)])": (12,),
        "matern(scale=3, ndim=2)": (6, 6),
        "constant()": (5,),
    }.items()
}


def whole_lags(kernel: Kernel) -> np.ndarray:
    """Lags inside the range and beyond it, and between the whole ones that the sets are made for."""
    return kernel.restore_shape(np.array([0.7, 2.0, 5.3, 40.0])[:, None] * np.array([1.0, -0.6, 0.3])[: kernel.ndim])


@campaign
@pytest.mark.parametrize("name", sparse(BALANCED, lambda name: name.startswith("exponential")))
def test_every_balanced_block_has_the_kernels_law(name):
    kernel, reach = BALANCED[name]
    found = balanced(kernel, KEY, 3, reach, streams=1000)
    assert scores_of_mean(kernel, kernel.restore_shape(found), whole_lags(kernel)) < Z_BOUND
    if kernel.ndim == 1 and "constant" not in name:  # and its size, by Kolmogorov and Smirnov's statistic
        table = np.sort(np.abs(sampling.draw(kernel, (7, 7), 0, 2**16)[0, :, 0]))
        for block in range(3):
            place = np.sort(np.searchsorted(table, np.abs(found[:, block, 0])) / table.size)
            assert np.max(np.abs(place - (np.arange(1000) + 0.5) / 1000)) < 2.8 / np.sqrt(1000)


@pytest.mark.parametrize("name", ["exponential(scale=6)", "matern(scale=3, ndim=2)", "constant()"])
def test_sets_share_the_points_out_and_err_less_than_they_did(name):
    kernel, reach = BALANCED[name]
    n, each = 8, 8
    omega = sets.transport(kernel, sets.shifted(kernel, KEY, n * each, 0, 1))[0]
    members = sets._partition(omega, each, reach)
    assert sorted(members.ravel().tolist()) == list(range(n * each))
    grids = np.meshgrid(*[np.arange(-m, m + 1.0) for m in reach], indexing="ij")
    waves = np.cos(omega @ np.stack([g.ravel() for g in grids]))  # at every lag of the range, by brute force

    def spread(found: np.ndarray) -> float:
        return float(np.sum(np.mean(waves[found].mean(axis=1) ** 2, axis=-1)))

    by_size = np.argsort(np.abs(omega[:, 0]), kind="stable").reshape(n, each).T
    assert spread(members) <= spread(by_size) + 1e-12
    for a, b in ((0, 1), (2, 7)):  # no exchange of a pair gains anything
        least = spread(members[[a, b]])
        for i in range(n):
            for j in range(n):
                tried = members[[a, b]].copy()
                tried[0, i], tried[1, j] = tried[1, j], tried[0, i]
                assert spread(tried) > least - 0.02 * spread(members)


@campaign
def test_balanced_heads():
    kernel = kernels.parse("exponential(scale=6)")
    whole = balanced(kernel, KEY, 7, (64,), streams=9)
    np.testing.assert_array_equal(balanced(kernel, KEY, 7, (64,), stream=4, streams=5), whole[4:])
    centred = np.cos(2.0 * balanced(kernel, KEY, 4, (9,), streams=600)[:, 0, 0]) - kernel.phi(2.0)
    assert abs(np.mean(centred[::2] * centred[1::2])) / np.var(centred) * np.sqrt(300) < Z_BOUND


def test_many_balanced_blocks_are_the_points_of_one_lattice():
    many = [
        sample(E, 600, rng=0, **options) for options in ({"design": "balanced", "max_lag": 9}, {"design": "shifted"})
    ]
    np.testing.assert_array_equal(*map(np.sort, many))


def test_points_of_the_cube_stay_as_they_are():
    kernel = rfrope.kernel("gaussian", scale=4.0)
    cube, minus = np.full((5, 1), 0.25), np.zeros(5, bool)
    found = sets.half_covered(kernel, cube, minus)
    assert np.all(cube == 0.25)
    assert np.all(found == 0.625)
