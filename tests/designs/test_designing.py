"""Whole designs: how close the mean kernel comes, what a Rope says of itself, and the documented tables."""

import csv
import pathlib

import numpy as np
import pytest
from campaign import sparse
from conftest import benchmark

import rfrope
from rfrope import kernels, sample

DOCS = pathlib.Path(__file__).parents[2] / "docs"


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


@pytest.mark.parametrize(("rng", "seed"), [(3, 3), (np.int64(3), 3), (True, None), (np.random.default_rng(0), None)])
def test_the_seed_of_a_design_is_a_number(rng, seed):
    """What no other call could go on from is no seed."""
    if rng is True:
        with pytest.raises((TypeError, ValueError), match="rng"):
            rfrope.design("gaussian", head_dim=8, context=32, rng=rng)
        return
    assert rfrope.design("gaussian", head_dim=8, context=32, design="iid", rng=rng).source.seed == seed


def test_a_rope_of_it_can_be_made_again():
    rope = rfrope.design("matern(scale=16)", head_dim=64, context=(256), heads=2, design="balanced", rng=5)
    assert (rope.source.design, rope.source.seed, rope.source.norm) == ("balanced", 5, None)
    again = sample("matern(scale=16)", 32, rng=5, heads=2, design="balanced", max_lag=255)
    np.testing.assert_array_equal(rope.frequencies, again)
    other = rfrope.design("matern(scale=16)", head_dim=64, context=256, heads=2, design="stratified", rng=5)
    assert rope.source.error["rms"] < 0.8 * other.source.error["rms"]


def test_what_optimise_says_of_itself_is_what_a_file_gives_back(tmp_path):
    rope = rfrope.designs.optimise("gaussian(scale=4)", 3, max_lag=9, starts=1)
    rfrope.save(tmp_path / "a.npz", rope)
    assert rfrope.load(tmp_path / "a.npz").source == rope.source
    assert rope.source.extra["max_lag"] in (9, [9])


def test_a_ladder_of_scales_and_seeds_of_several_numbers():
    options = {"head_dim": 8, "context": [32], "rng": [3, 4], "design": "stratified"}
    rope = rfrope.design("gaussian", heads=3, ladder=(4, 64), **options)
    assert tuple(rope.source.seed) == (3, 4)
    scales = [rfrope.kernel("gaussian", scale=scale) for scale in (4.0, 16.0, 64.0)]
    assert rope.source.kernel == tuple(map(repr, scales))
    np.testing.assert_array_equal(rope.frequencies, rfrope.design(scales, **options).frequencies)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head_dim": 7}, "^head_dim is 7; expected an even number from 2"),
        ({"rotary_dim": 10}, "^rotary_dim is 10; expected an even number from 2 to 8"),
        ({"context": 1}, "^context is 1; expected a whole number from 2"),
        ({"kernel": ["gaussian", "cauchy"], "heads": 3}, "^heads is 3 but kernel has 2 kernels"),
        ({"ladder": (1, 2)}, r"^ladder is \(1, 2\); expected one kernel with it, and heads"),
        ({"ladder": 3, "heads": 2}, "^ladder is 3; expected two scales"),
        ({"kernel": "sinc", "ladder": (1, 2), "heads": 2}, "has no single scale"),
    ],
)
def test_refused_designs(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        rfrope.design(**{"kernel": "gaussian", "head_dim": 8, "context": 32, "rng": 0, **arguments})


# -- the documented tables ---------------------------------------------------------------------------------------------


def test_documented_errors_are_reproduced():
    """Some of them; the whole takes ``python -m benchmarks.designs`` minutes."""
    designs = benchmark("designs")
    lines = (DOCS / "designs_error.csv").read_text("utf-8").splitlines()
    assert lines[0].startswith("# python -m benchmarks.designs")
    documented = {tuple(row[h] for h in designs.HEADER[:4]): row for row in csv.DictReader(lines[1:])}
    assert {key[0] for key in documented} == {repr(kernel) for kernel in designs.cases()}
    for kernel in (designs.cases()[0], kernels.parse("matern(nu=1.5, scale=4, ndim=2)")):
        for row in designs.rows(kernel, (8, 32)):
            written = documented[tuple(row[h] for h in designs.HEADER[:4])]
            for quantity in ("rms", "sup"):
                assert float(row[quantity]) == pytest.approx(float(written[quantity]), rel=0.02), row


@pytest.fixture(scope="module")
def gains():
    return benchmark("gains")


@pytest.mark.parametrize(
    "text", ["exponential(scale=6)", "power_exponential(exponent=0.8, scale=3)", "sinc(bandwidth=3)"]
)
@pytest.mark.parametrize("n", [2, 8, 32])
def test_no_design_falls_below_the_limit(text, n, gains):
    kernel, reach = kernels.parse(text), 40
    least = gains.limit(kernel, n, reach)
    assert least > 0.01 or (n == 32 and least >= 0.0)
    for design in ("iid", "stratified", "shifted", "balanced"):
        options = {"max_lag": reach} if design == "balanced" else {}
        found = sample(kernel, n, rng=3, design=design, heads=50, **options)[..., 0]
        assert gains.rms(kernel, found, reach) > least


def test_the_form_of_the_limit_is_what_it_says(gains):
    """Its parts by sums over a grid: own and pairs from the law's density, and the whole at most all lags."""
    kernel, n, reach, width = kernels.parse("exponential(scale=6)"), 4, 16, 4
    size = 1 << 7
    w = 2.0 * np.pi * np.arange(size) / size
    decay = np.exp(-1.0 / 6.0)
    law = (1.0 - decay**2) / (1.0 - 2.0 * decay * np.cos(w) + decay**2) / size  # exp(-|x|/6) at whole lags has this one
    fejer = lambda angle, d: sum((1.0 - abs(m) / (d + 1.0)) * np.cos(m * angle) for m in range(-d, d + 1))  # noqa: E731
    apart = w[:, None] - w
    psi, h = fejer(apart, width // 2) ** 2, fejer(apart, reach - 2 * (width // 2))
    own = psi**2 @ law * h[0, 0] / (2.0 * n)
    pairs = np.einsum("wa,wb,ab,a,b->w", psi, psi, h, law, law, optimize=True)
    whole = np.fft.fft((psi[:1] ** 0 * (psi @ psi.T / size * h)[:1])[0]).real / size
    assert np.min(whole) > -1e-9
    assert np.max(np.abs(whole[reach + 1 : size // 2])) < 1e-9
    wanted = np.sum(np.maximum(own - pairs, 0.0)) / size / np.max(whole[1:])
    assert gains._limit(kernel, n, reach, width) == pytest.approx(wanted, rel=1e-3)


def test_the_documented_gains(gains):
    lines = (DOCS / "designs_gains.csv").read_text("utf-8").splitlines()
    rows = {(row["kernel"], int(row["max lag"])): row for row in csv.DictReader(lines[1:])}
    assert set(rows) == {(repr(kernel), reach) for kernel, reach in gains.cases()}
    kernel = kernels.parse(gains.HEAVY[0])
    row = rows[repr(kernel), 256]
    assert 1e3 * gains.limit(kernel, 64, 256) == pytest.approx(float(row["limit"]), rel=0.01)
    assert float(row["iid"]) < 5.0 * float(row["limit"]), "docs/designs.rst says that five times is impossible here"
    long = rows[repr(kernels.parse("exponential(scale=48)")), 1024]
    assert float(long["iid"]) < 5.0 * float(long["limit"]), "docs/designs.rst says so of this one too"
    for (name, reach), row in rows.items():  # and that all others gain five times
        if reach == 256 and not name.startswith("exponential") and "0.8" not in name:
            assert float(row["iid"]) > 5.0 * float(row["balanced"]), name
        assert float(row["limit"]) < min(float(row[design]) for design in ("balanced", "shifted", "stratified"))
