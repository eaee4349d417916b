"""Designs by name: the same frequencies for the same seed everywhere, heads, estimates, errors, and whole designs."""

import csv
import itertools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from campaign import HANGS, campaign, sparse
from conftest import rows
from problems import Z_BOUND

import rfrope
from rfrope import kernels, sample
from rfrope._core import random
from rfrope.designs import names, sampling, sets

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "_data"
G, E, M2 = map(kernels.parse, ("gaussian(scale=4)", "exponential(scale=6)", "matern(scale=3, ndim=2)"))
RANDOMISED = sampling.RANDOMISED
each_design = pytest.mark.parametrize("design", RANDOMISED)


# Written down once: seeds must mean the same in every later version.
@pytest.mark.parametrize(("text", "options", "rtol", "wanted"), rows("designs/sampling.json", "frozen"))
def test_frozen_frequencies(text, options, rtol, wanted):
    np.testing.assert_allclose(sample(text, len(wanted), **options), wanted, rtol=rtol)


def plain(design):
    """A kernel that the design allows."""
    return M2 if design == "orthogonal" else G


@pytest.mark.parametrize("design", [*RANDOMISED, "quantile"])
def test_equal_seeds_give_equal_bits_in_every_library_and_others_do_not(design, xp):
    kernel = plain(design)
    expected = sample(kernel, 9, rng=11, design=design, heads=3)
    for dtype in (None, "float32"):
        options = {} if dtype is None else {"dtype": xp.dtype(dtype)}
        found = sample(kernel, 9, rng=np.int64(11), design=design, heads=3, xp=xp.module, device=xp.device, **options)
        assert xp.owns(found)
        np.testing.assert_array_equal(xp.host(found), expected.astype(dtype or "float64"))
    assert np.any(sample(kernel, 9, rng=12, design=design, heads=3) == expected) == (design == "quantile")


@pytest.mark.parametrize("design", names())
@pytest.mark.parametrize("n", sparse([0, 1, 2, 5, 31, 48, 64], lambda n: n in (0, 1, 5)))
def test_shapes_and_heads(design, n):
    options = {"rng": 1, "design": design} | ({"max_lag": 16} if design in ("balanced", "optimised") else {})
    kernel = plain(design)
    heads = sample(kernel, n, heads=5, **options)
    assert heads.shape == (5, n, kernel.ndim)
    assert np.all(np.isfinite(heads))
    alone = sample(kernel, n, **options)
    assert alone.shape == ((n,) if kernel.ndim == 1 else (n, kernel.ndim))
    np.testing.assert_array_equal(heads[0].reshape(alone.shape), alone)
    np.testing.assert_array_equal(heads[:2], sample(kernel, n, heads=2, **options))
    if n > 2:
        assert len({head.tobytes() for head in heads}) == (1 if design in ("quantile", "optimised") else 5)


@pytest.mark.parametrize("text", [record.example for record in kernels.records()] + ["matern(scale=(3, 4, 5), ndim=3)"])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 32])
def test_a_shorter_sample_is_the_beginning_of_a_longer_one(text, n):
    np.testing.assert_array_equal(sample(text, n, rng=1), sample(text, 64, rng=1)[:n])
    np.testing.assert_array_equal(sample(text, n, rng=1, heads=2), sample(text, 64, rng=1, heads=5)[:2, :n])


@pytest.mark.parametrize("text", ["gaussian(scale=3)", "exponential(scale=7, ndim=2)"])
def test_parts_and_threads_change_no_bits(text):
    """Many draws are made in parts, on several threads."""
    kernel, n = rfrope.kernels.parse(text), 3 * sets._ROWS + 5
    key = random.key_from_rng(3)
    whole = kernel.transport_points(random.uniforms.generic(key, 0, n, kernel.n_columns, stream=2))
    for count in (1, 3):
        np.testing.assert_array_equal(sets.independent(kernel, key, n, 2, 1, count), whole)
        with rfrope.threads(count):
            found = sample(kernel, n, rng=3, heads=3)[2]
        np.testing.assert_array_equal(found, whole[0])
    points = np.random.default_rng(0).uniform(size=(2, n, kernel.n_columns))
    np.testing.assert_array_equal(sets.transport(kernel, points, 2), kernel.transport_points(points))
    for design in ("antithetic", "orthogonal")[: kernel.ndim]:
        one, two = (sampling.draw_sets(kernel, design, key, n, n_threads=count) for count in (1, 2))
        np.testing.assert_array_equal(one, two)


def test_many_blocks_hold_nothing_but_themselves(peak):
    sample("gaussian", 2 * sets._ROWS, rng=0)
    before = peak(anew=True)
    found = sample("gaussian", 2**20, rng=0)
    assert found.nbytes <= peak() - before <= found.nbytes + 2**22


def test_a_generator_is_advanced_and_without_one_there_is_fresh_entropy():
    rng, other = np.random.default_rng(3), np.random.default_rng(3)
    first, second = sample("gaussian", 8, rng=rng), sample("gaussian", 8, rng=rng)
    for one, another in ((first, second), (sample("gaussian", 8), sample("gaussian", 8))):
        assert not np.any(one == another)
    np.testing.assert_array_equal([sample("gaussian", 8, rng=other), sample("gaussian", 8, rng=other)], [first, second])


@pytest.mark.parametrize("options", [{"design": "quantile"}, {"design": "optimised", "max_lag": 20}], ids=str)
def test_deterministic_designs_need_no_seed(options):
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(sample(G, 8, rng=rng, **options), sample(G, 8, **options))
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize(
    ("kernel", "design"), [(G, "stratified"), (E, "stratified"), (G * E, "stratified"), (M2, "sobol")]
)
def test_auto(kernel, design):
    np.testing.assert_array_equal(sample(kernel, 9, rng=0, design="auto"), sample(kernel, 9, rng=0, design=design))


@pytest.mark.parametrize("design", [*RANDOMISED, "quantile", "auto"])
def test_a_kernel_for_each_head(design):
    one, other = (M2, M2.rescale(4.0)) if design == "orthogonal" else (G, "exponential(scale=9)")
    both = sample([one, other, one], 6, rng=2, design=design)
    for head, kernel in enumerate((one, other, one)):
        np.testing.assert_array_equal(both[head], sample(kernel, 6, rng=2, design=design, heads=3)[head])
    np.testing.assert_array_equal(sample((one, other, one), 6, rng=2, design=design, heads=3), both)


@pytest.mark.parametrize("design", [name for name in RANDOMISED if name not in ("antithetic", "orthogonal")])
@pytest.mark.parametrize("kernel", [G, G * E, M2], ids=str)
def test_points_go_through_the_transport(kernel, design):
    points = rfrope.designs.points(kernel, 9, design=design, rng=3, heads=2)
    assert points.shape == (2, 9, kernel.n_columns)
    np.testing.assert_array_equal(rfrope.designs.points(kernel, 9, design=design, rng=3), points[0])
    found = np.reshape(kernel.transport(points), (2, 9, kernel.ndim))
    np.testing.assert_array_equal(found, sample(kernel, 9, design=design, rng=3, heads=2))


@pytest.mark.parametrize("options", [{"design": "quantile"}, {"design": "optimised", "max_lag": 9}], ids=str)
def test_no_blocks(options):
    for kernel in (G, G * E):
        assert sample(kernel, 0, **options).shape == (0,)


# -- the law -----------------------------------------------------------------------------------------------------------


def test_heads_and_neighbouring_draws_are_independent():
    n = 2**16
    heads = sample("gaussian", n, rng=6, heads=4)[..., 0]
    pairs = [*itertools.combinations(heads, 2), (heads[0, 1:], heads[0, :-1])]
    for one, other in pairs:
        assert abs(np.mean(one * other)) * np.sqrt(one.size) < Z_BOUND
        assert abs(magnitude_z(one, other)) < Z_BOUND
    flipped = heads[0] * np.sign(heads[1])  # uncorrelated with heads[0], and not independent of it
    assert abs(np.mean(heads[0] * flipped)) * np.sqrt(n) < Z_BOUND < abs(magnitude_z(heads[0], flipped))


def magnitude_z(x, y):
    """z-score of the mean of cos 2x cos 2y for independent standard normal draws, whose E cos 2x is exp(-2)."""
    mean, mean_of_square = np.exp(-2.0), 0.5 * (1.0 + np.exp(-8.0))
    return (np.mean(np.cos(2 * x) * np.cos(2 * y)) - mean**2) / np.sqrt((mean_of_square**2 - mean**4) / x.size)


# -- estimates ---------------------------------------------------------------------------------------------------------


Q, K = np.random.default_rng(0).normal(size=(2, 16))
LAGS = {1: np.array([1.5, 4.0, 7.0]), 2: np.array([[1.0, 0.5], [2.4, -3.0]])}


@each_design
def test_mean_scores_of_every_design_are_the_expected_scores(design):
    kernel = plain(design)
    lags = LAGS[kernel.ndim]
    found = rfrope.estimate_scores(Q, K, lags, kernel, n_trials=10_000, rng=0, design=design)
    assert np.all(np.abs(found.mean.value - rfrope.expected_score(Q, K, lags, kernel)) < Z_BOUND * found.mean.stderr)


def test_the_spread_of_designs_on_content_that_all_blocks_share():
    """Var S / D^2 is that of Phi_D: stratified far below Proposition 4, antithetic twice as large."""
    q = np.repeat([1.0, 0.0], 32)
    lag, designs = 3.0, ("iid", "stratified", "shifted", "sobol", "halton", "antithetic")
    found = {d: rfrope.estimate_scores(q, q, lag, G, n_trials=10_000, rng=0, design=d).variance for d in designs}
    exact = rfrope.score_variance(q, q, lag, G)
    for design, times in (("iid", 1.0), ("antithetic", 2.0)):
        assert abs(found[design].value - times * exact) < Z_BOUND * found[design].stderr
    assert all(found[d].value < 0.05 * exact for d in ("stratified", "sobol", "halton"))
    assert found["shifted"].value < 0.15 * exact  # all blocks are moved together


def test_trials_are_the_heads_of_sample_and_chunks_do_not_matter():
    omega = sample(E, 8, rng=4, design="stratified", heads=50)[..., 0]
    a, b = rfrope.block_coefficients(Q, K)
    scores = np.cos(3.0 * omega) @ a + np.sin(3.0 * omega) @ b
    found = rfrope.estimate_scores(Q, K, 3.0, E, n_trials=50, rng=4, design="stratified")
    assert found.mean.value == pytest.approx(scores.mean(), rel=1e-12)
    assert found.variance.value == pytest.approx(scores.var(ddof=1), rel=1e-12)


# -- whole designs -----------------------------------------------------------------------------------------------------

# root mean square of independent draws over that of each design, at 64 blocks; least of them
GAINS = rows("designs/sampling.json", "gains")


@campaign
@pytest.mark.parametrize("text", sparse(GAINS, lambda text: text.startswith(("gaussian", "power")), 3))
def test_designs_gain_in_every_family_of_one_axis(text):
    """Twice to fifteen times at random, by how heavy the tail is; if balanced five times, but for two heavy tails."""
    kernel, lags = kernels.parse(text), np.arange(257.0)
    sets = {d: sample(kernel, 64, rng=4, design=d, heads=100)[..., 0] for d in ("iid", "stratified", "shifted")}
    sets["balanced"] = sample(kernel, 64, rng=0, design="balanced", max_lag=256, heads=60)[..., 0]
    sets["optimised"] = sample(kernel, 64, design="optimised", max_lag=256)[None]
    rms = {
        d: np.sqrt(np.mean((np.cos(each[..., None] * lags).mean(axis=1) - kernel.phi(lags)) ** 2, axis=-1)).mean()
        for d, each in sets.items()
    }
    for design, gain in zip(("stratified", "shifted", "balanced", "optimised"), GAINS[text], strict=True):
        assert rms["iid"] > gain * rms[design], (design, rms["iid"] / rms[design])


def test_the_error_of_a_design_is_that_within_the_context():
    """The lags are 0 to context - 1: one more would make some of these errors larger."""
    law, lags, larger = rfrope.kernel("exponential", scale=2), np.arange(6.0), 0
    for seed in range(6):
        rope = rfrope.design(law, head_dim=4, context=5, design="stratified", rng=seed)
        errors = np.abs(np.cos(np.multiply.outer(lags, rope.frequencies)).mean(axis=1) - law.phi(lags))
        assert rope.source.error["sup"] == pytest.approx(np.max(errors[:5]))
        larger += errors[5] > np.max(errors[:5])
    assert larger


@pytest.mark.parametrize(("rng", "seed"), [(3, 3), (np.int64(3), 3), (np.random.default_rng(0), None)])
def test_the_seed_of_a_design_is_a_number(rng, seed):
    """What no other call could go on from is no seed."""
    assert rfrope.design("gaussian", head_dim=8, context=32, design="iid", rng=rng).source.seed == seed


def test_a_rope_of_it_can_be_made_again():
    rope = rfrope.design("matern(scale=16)", head_dim=64, context=(256), heads=2, design="balanced", rng=5)
    assert (rope.source.design, rope.source.seed, rope.source.norm) == ("balanced", 5, None)
    again = sample("matern(scale=16)", 32, rng=5, heads=2, design="balanced", max_lag=255)
    np.testing.assert_array_equal(rope.frequencies, again)
    other = rfrope.design("matern(scale=16)", head_dim=64, context=256, heads=2, design="stratified", rng=5)
    assert rope.source.error["rms"] < 0.8 * other.source.error["rms"]


def test_a_ladder_of_scales_and_seeds_of_several_numbers():
    options = {"head_dim": 8, "context": [32], "rng": [3, 4], "design": "stratified"}
    rope = rfrope.design("gaussian", heads=3, ladder=(4, 64), **options)
    assert tuple(rope.source.seed) == (3, 4)
    scales = [rfrope.kernel("gaussian", scale=scale) for scale in (4.0, 16.0, 64.0)]
    assert rope.source.kernel == tuple(map(repr, scales))
    np.testing.assert_array_equal(rope.frequencies, rfrope.design(scales, **options).frequencies)


# -- the documented tables ---------------------------------------------------------------------------------------------


@campaign
def test_documented_errors_are_reproduced():
    """Some of them; the whole takes ``python -m benchmarks.designs`` minutes."""
    designs = pytest.importorskip("benchmarks.designs")
    first, *lines = (DOCS / "designs_error.csv").read_text("utf-8").splitlines()
    assert first.startswith("# python -m benchmarks.designs")
    documented = {tuple(row[h] for h in designs.HEADER[:4]): row for row in csv.DictReader(lines)}
    assert {key[0] for key in documented} == {repr(kernel) for kernel in designs.cases()}
    for kernel in (designs.cases()[0], kernels.parse("matern(nu=1.5, scale=4, ndim=2)")):
        for row in designs.rows(kernel, (8, 32)):
            written = documented[tuple(row[h] for h in designs.HEADER[:4])]
            for quantity in ("rms", "sup"):
                assert float(row[quantity]) == pytest.approx(float(written[quantity]), rel=0.02), row


@pytest.mark.parametrize("design", ["iid", "optimised"])
@pytest.mark.parametrize("heads", [None, 3])
def test_polar_sets_have_a_frequency_for_each_feature(design, heads):
    rope = rfrope.design("gaussian(scale=8)", head_dim=7, context=32, design=design, heads=heads, rng=0, polar=True)
    assert (rope.polar, rope.head_dim, rope.n_blocks) == (True, 7, 7)
    plain = rfrope.design("gaussian(scale=8)", head_dim=14, context=32, design=design, heads=heads, rng=0)
    np.testing.assert_array_equal(rope.frequencies, plain.frequencies)
    assert rope.source == plain.source


# -- the same bits elsewhere: docs/explain/conventions.rst has these sizes ---------------------------------------------

DRAWN = """
import sys, numpy as np, rfrope
found = []
for law in sys.argv[2:]:
    estimate = rfrope.estimate_kernel([0.1, 1.0, 10.0, 100.0], law, n_samples=4096, rng=0)
    found.append(np.concatenate([rfrope.sample(law, 4096, rng=0), estimate.value, estimate.stderr]))
np.save(sys.argv[1], found)
"""
WITHOUT_AVX_512 = "X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"
EXPONENTS = (0.02, 0.05, 0.1, 0.3, 1.0)


@campaign
def test_bits_and_where_they_differ(tmp_path):
    """With ``-s`` it prints the sizes; ``RFROPE_OTHER_PYTHON`` names an interpreter with another NumPy."""
    examples = [record.example for record in kernels.records()]
    laws = [*examples, "matern(nu=0.1, scale=64)", *(f"power_exponential(exponent={e}, scale=7.3)" for e in EXPONENTS)]
    places = {"here": {}, "without compiled loops": {"NUMBA_DISABLE_JIT": "1"}, "another NumPy": {}}
    places["without AVX-512"] = {"NPY_DISABLE_CPU_FEATURES": WITHOUT_AVX_512}
    other = os.environ.get("RFROPE_OTHER_PYTHON", sys.executable)
    found, apart = {}, {}
    for place, environment in places.items():
        python = other if place == "another NumPy" else sys.executable
        command = [python, "-W", "ignore", "-c", DRAWN, str(tmp_path / "drawn.npy"), *laws]
        subprocess.run(command, check=True, env=os.environ | environment, timeout=HANGS)
        found[place] = np.load(tmp_path / "drawn.npy")
        here, there = found["here"], found[place]
        steps = np.abs(there - here)[:, :4096] / np.spacing(np.maximum(np.abs(here), np.abs(there)))[:, :4096]
        apart[place] = [int(step) for step in np.max(steps, axis=1)], np.max(np.abs(there - here)[:, 4096:4100], axis=1)
        for law, step, error in zip(laws, *apart[place], strict=True):
            sys.stdout.write(f"{place}, {law}: frequencies {step} units in the last place, estimates {error:.1e}\n")
    for place in ("without compiled loops", "another NumPy"):
        assert not any(apart[place][0])
    assert np.max(apart["without compiled loops"][1][: len(examples)]) < 1e-14
    assert not np.any(apart["another NumPy"][1])
    assert max(apart["without AVX-512"][0][: len(examples) + 1]) <= 8
    assert all(
        step <= 20 / e for step, e in zip(apart["without AVX-512"][0][-len(EXPONENTS) :], EXPONENTS, strict=True)
    )
    for place in places:  # a far phase is any angle, and the estimate as good
        assert np.all(np.abs(found[place] - found["here"])[:, 4096:4100] <= found["here"][:, 4100:])
