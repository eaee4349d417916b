"""Bases for a context: the integral rule and the truth of the sum, each reported as what it is."""

from __future__ import annotations

import json
import math

import mpmath as mp
import numpy as np
import pytest
from campaign import campaign, sparse

import rfrope
from rfrope import analysis
from rfrope.analysis import bases


def lowest(base: float, context: int, n_blocks: int) -> float:
    """Smallest value of the mean kernel inside a context, by hand."""
    return float(np.min(np.mean(np.cos(np.outer(np.arange(context), base ** (-np.arange(n_blocks) / n_blocks))), -1)))


@pytest.fixture(scope="module")
def found():
    return analysis.base_for_context(4096, 64)


def test_context_4096_with_64_blocks(found):
    assert round(found.integral_rule) == 6644
    assert 26_950.0 < found.smallest < 26_955.0
    assert 58_500.0 < found.always_above < 59_100.0
    assert found.grid == (0.5 * found.integral_rule, pytest.approx(2e5), 1200)
    assert len(found.islands) == 16
    assert found.islands[0][0] == found.smallest
    assert found.islands[-1] == (found.always_above, found.grid[1])
    assert found.islands == tuple(sorted(found.islands))
    assert all(low < high for low, high in found.islands)


def test_the_integral_rule_is_not_sufficient(found):
    assert lowest(found.integral_rule, 4096, 64) < -0.02
    assert analysis.first_negative_lag(rfrope.geometric(64, base=found.integral_rule), 4095) < 2000


def test_the_zero_of_the_cosine_integral():
    with mp.workdps(30):
        zero = mp.findroot(mp.ci, 0.6165)
        for context in (1, 4096, 10**6):
            assert bases.base_for_context(context, 1, n_grid=2).integral_rule == pytest.approx(
                float(context / zero), rel=1e-15
            )
    assert bases._zero_of_ci() == pytest.approx(0.61650548562, abs=5e-12)


def test_ends_of_islands_are_properties_of_the_sum(found):
    """They hold, and bases 1e-6 outside do not."""
    for low, high in found.islands:
        assert lowest(low, 4096, 64) >= 0.0
        assert lowest(low * (1.0 - 1.01e-6), 4096, 64) < 0.0
        assert lowest(high, 4096, 64) >= 0.0
        if high != found.grid[1]:
            assert lowest(high * (1.0 + 1.01e-6), 4096, 64) < 0.0


def test_islands_do_not_depend_on_the_grid(found):
    """The first is a third as wide as the spacing of the grid."""
    assert found.islands[0][1] / found.islands[0][0] - 1.0 < 0.3 * math.log(found.grid[1] / found.grid[0]) / 1199
    for n_grid in (600, 2000):
        other = analysis.base_for_context(4096, 64, max_base=2e5, n_grid=n_grid)
        np.testing.assert_allclose(other.islands, found.islands, rtol=2e-6)


@pytest.mark.parametrize(("context", "n_blocks"), [(300, 16), (512, 24)])
def test_nothing_holds_between_islands(context, n_blocks):
    islands = analysis.base_for_context(context, n_blocks, n_grid=50).islands
    low = 0.5 * bases.integral_rule(context)
    for start, end in zip((low, *(high for _, high in islands[:-1])), (low for low, _ in islands), strict=True):
        for base in np.geomspace(start, end, 400)[1:-1]:
            assert lowest(base, context, n_blocks) < 0.0


def test_followed_lags_stay_negative_until_they_do_not():
    search, base = bases._Search(4096, 64), 2.0e4
    means = analysis.mean_kernel(np.arange(4096), rfrope.geometric(64, base=base))
    lags = np.argsort(means)[:20]
    for lag, grown in zip(lags, search._followed(lags, math.log(base)), strict=True):
        between = [
            np.mean(np.cos(lag * rfrope.geometric(64, base=base * math.exp(x * grown)))) for x in (0.3, 0.6, 0.99)
        ]
        assert max(between) < 0.0
        after = rfrope.geometric(64, base=base * math.exp(grown + 1e-6))
        assert np.mean(np.cos(lag * after)) > 0.0


@pytest.mark.parametrize(("context", "n_blocks"), [(4, 8), (300, 16), (512, 24), (1000, 33), (700, 128)])
def test_every_base_of_a_grid_by_hand(context, n_blocks):
    found = analysis.base_for_context(context, n_blocks, n_grid=300)
    low, high, n = found.grid
    grid = np.geomspace(low, high, n)
    holds = np.asarray([lowest(base, context, n_blocks) >= 0.0 for base in grid])
    inside = np.asarray([any(start <= base <= end for start, end in found.islands) for base in grid])
    assert np.array_equal(inside, holds)
    assert np.all(holds[grid >= found.always_above])
    assert not holds[grid < found.always_above][-1:].any()
    assert np.all(grid[holds] >= found.smallest)
    assert np.all(holds[grid >= 0.5 * high])  # what the default top is chosen for


@pytest.mark.parametrize("n_blocks", sparse([16, 32, 128], lambda n_blocks: n_blocks == 32))
def test_other_widths(n_blocks):
    found = analysis.base_for_context(4096, n_blocks)
    assert found.integral_rule < found.smallest <= found.always_above <= 0.5 * found.grid[1]
    assert lowest(found.smallest, 4096, n_blocks) >= 0.0
    assert lowest(found.smallest * (1.0 - 1.01e-6), 4096, n_blocks) < 0.0


@campaign
def test_a_long_context():
    found = analysis.base_for_context(131_072, 64)
    assert found.smallest > 20.0 * found.integral_rule  # a narrow island lies below those that a grid sees
    assert found.always_above <= 0.5 * found.grid[1]
    for base in (found.smallest, found.always_above):
        assert analysis.first_negative_lag(rfrope.geometric(64, base=base), 131_071) is None
        below = rfrope.geometric(64, base=base * (1.0 - 1.01e-6))
        assert analysis.first_negative_lag(below, 131_071) is not None


def test_the_last_lag_is_one_less_than_the_context():
    """cos(m) with one block: lags 0 and 1 are positive, 2 is not."""
    assert analysis.base_for_context(2, 1, n_grid=10).smallest is not None
    assert analysis.base_for_context(3, 1, n_grid=10).smallest is None


def test_no_base_holds():
    found = analysis.base_for_context(100, 1, n_grid=20)
    assert (found.smallest, found.islands, found.always_above) == (None, (), None)
    assert "smallest found     none" in str(found)
    assert "all hold from      none" in str(found)


def test_all_bases_hold():
    found = analysis.base_for_context(1, 4)
    assert found.islands == ((1.0, found.grid[1]),)
    assert found.smallest == found.always_above == found.grid[0] == 1.0
    assert "smallest found     1, where the bases looked at begin" in str(found)


def test_a_top_that_does_not_hold():
    found = analysis.base_for_context(4096, 64, max_base=45_200.0)
    assert found.always_above is None
    assert found.smallest == pytest.approx(26_952.4, abs=0.1)
    assert len(found.islands) == 7
    assert found.grid[1] == 45_200.0
    text = str(found)
    assert "all hold from      none: 45200, the largest base looked at, does not" in text
    assert "44547 to 44963" in text


def test_the_text_says_what_is_what(found):
    lines = str(found).splitlines()
    (rule,) = [line for line in lines if "integral rule" in line]
    assert "6644" in rule
    assert "26952" not in rule
    assert [line for line in lines if "26952" in line] == [
        "  smallest found     26952",
        "  below, only        26952 to 26973",
    ]
    (above,) = [line for line in lines if "all hold from" in line]
    assert "58790 on, up to 200000" in above
    assert any("1200 bases from 3322 to 200000" in line for line in lines)
    assert "4096 positions with 64 blocks (head width 128)" in lines[0]
    assert max(map(len, lines)) <= 120


def test_the_text_lists_a_few_islands():
    islands = tuple((float(n), n + 0.5) for n in range(1, 31))
    text = str(analysis.BaseForContext(10, 2, 16.2, 1.0, islands, 30.0, (1.0, 30.5, 99)))
    assert "and 17 more" in text
    assert len(text.splitlines()) < 25


def test_plain_numbers_for_json(found):
    read = json.loads(json.dumps(found.to_dict()))
    assert read["islands"] == [list(island) for island in found.islands]
    assert read["grid"] == list(found.grid)
    read |= {"islands": tuple(map(tuple, read["islands"])), "grid": tuple(read["grid"])}
    assert analysis.BaseForContext(**read) == found


def test_the_lag_found_last_changes_no_answer():
    rng = np.random.default_rng(4)
    search = bases._Search(2048, 32)
    for base in np.exp(rng.uniform(math.log(1e3), math.log(3e5), 60)).tolist():
        lag = search.negative_lag(base)
        first = analysis.first_negative_lag(rfrope.geometric(32, base=base), 2047)
        assert (lag is None) == (first is None)
        if lag is not None:
            assert first <= lag < 2048
            assert analysis.mean_kernel(lag, rfrope.geometric(32, base=base)) < 0.0


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((0, 64), {}, ValueError, "context is 0"),
        ((4096.0, 64), {}, TypeError, "context is 4096.0"),
        ((4096, 0), {}, ValueError, "n_blocks is 0"),
        ((16, 4), {"n_grid": 1}, ValueError, "n_grid is 1; expected a whole number from 2"),
        ((4096, 64), {"max_base": 3000.0}, ValueError, r"max_base is 3000\.0; expected more than 3321\.9"),
    ],
)
def test_bad_input(arguments, options, error, message):
    with pytest.raises(error, match=message):
        analysis.base_for_context(*arguments, **options)


def test_where_the_mean_kernel_of_a_lag_is_0():
    """Between a base inside an island and one outside; the one inside where no lag, or no sign, says where."""
    search = bases._Search(64, 4)

    def mean(lag, base):
        return float(np.mean(np.cos(lag * rfrope.geometric(4, base=base))))

    lag = next(lag for lag in range(1, 64) if mean(lag, 300.0) < -0.1 and mean(lag, 3000.0) > 0.1)
    found = search._crossing(lag, 3000.0, 300.0)
    assert 300.0 < found < 3000.0
    assert abs(mean(lag, found)) < 1e-3
    assert search._crossing(None, 3000.0, 300.0) == 3000.0
    assert search._crossing(lag, 300.0, 3000.0) == 300.0
    assert search._crossing(lag, 3000.0, 3000.0) == 3000.0
