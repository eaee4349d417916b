"""Bases for a context: the integral rule and the truth of the sum, each reported as what it is."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from campaign import campaign

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
    with mp.workdps(30):
        assert found.integral_rule == pytest.approx(float(4096 / mp.findroot(mp.ci, 0.6165)), rel=1e-15)
    assert 26_950.0 < found.smallest < 26_955.0
    assert 58_500.0 < found.always_above < 59_100.0
    assert found.grid == (0.5 * found.integral_rule, pytest.approx(2e5), 1200)
    assert len(found.islands) == 16
    assert found.islands[0][0] == found.smallest
    assert found.islands[-1] == (found.always_above, found.grid[1])
    assert found.islands == tuple(sorted(found.islands))
    assert all(low < high for low, high in found.islands)


def test_ends_of_islands_are_properties_of_the_sum(found):
    """They hold, and bases 1e-6 outside do not."""
    for low, high in found.islands:
        assert lowest(low, 4096, 64) >= 0.0
        assert lowest(low * (1.0 - 1.01e-6), 4096, 64) < 0.0
        assert lowest(high, 4096, 64) >= 0.0
        if high != found.grid[1]:
            assert lowest(high * (1.0 + 1.01e-6), 4096, 64) < 0.0


@pytest.mark.parametrize(("context", "n_blocks"), [(300, 16), (512, 24)])
def test_nothing_holds_between_islands(context, n_blocks):
    islands = analysis.base_for_context(context, n_blocks, n_grid=50).islands
    low = 0.5 * bases.integral_rule(context)
    for start, end in zip((low, *(high for _, high in islands[:-1])), (low for low, _ in islands), strict=True):
        for base in np.geomspace(start, end, 400)[1:-1]:
            assert lowest(base, context, n_blocks) < 0.0


@pytest.mark.parametrize(("context", "n_blocks"), [(4, 8), (300, 16), (700, 128)])
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


def test_none_and_all_bases_hold():
    found = analysis.base_for_context(100, 1, n_grid=20)
    assert (found.smallest, found.islands, found.always_above) == (None, (), None)
    found = analysis.base_for_context(1, 4)
    assert found.islands == ((1.0, found.grid[1]),)
    assert found.smallest == found.always_above == found.grid[0] == 1.0


def test_a_top_that_does_not_hold():
    found = analysis.base_for_context(4096, 64, max_base=45_200.0)
    assert found.always_above is None
    assert found.smallest == pytest.approx(26_952.4, abs=0.1)
    assert len(found.islands) == 7
    assert found.grid[1] == 45_200.0


def test_the_text_says_what_is_what(found):
    lines = str(found).splitlines()
    assert "4096 positions with 64 blocks (head width 128)" in lines[0]
    for number, label in (("6644", "integral rule"), ("26952", "smallest found"), ("58790", "all hold from")):
        assert [line for line in lines if label in line and number in line]
    assert "and 4 more ranges" in str(found)
    assert "none" in str(analysis.base_for_context(100, 1, n_grid=20))
    assert max(map(len, lines)) <= 120


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
