"""Bases for a context: the integral rule and the truth of the sum, each reported as what it is."""

import mpmath as mp
import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import analysis


def lowest(base: float, context: int, n_blocks: int) -> float:
    """Smallest value of the mean kernel inside a context, by hand."""
    return float(np.min(np.mean(np.cos(np.outer(np.arange(context), base ** (-np.arange(n_blocks) / n_blocks))), -1)))


@pytest.fixture(scope="module")
def found():
    return analysis.base_for_context(4096, 64)


def test_context_4096_with_64_blocks(found):
    """Ends of islands are properties of the sum: they hold, and bases 1e-6 outside do not."""
    with mp.workdps(30):
        assert found.integral_rule == pytest.approx(float(4096 / mp.findroot(mp.ci, 0.6165)), rel=1e-15)
    assert (26_950.0 < found.smallest < 26_955.0, 58_500.0 < found.always_above < 59_100.0) == (True, True)
    assert found.grid == (0.5 * found.integral_rule, pytest.approx(2e5), 1200)
    assert (len(found.islands), found.islands) == (16, tuple(sorted(found.islands)))
    assert found.islands[0][0] == found.smallest
    assert found.islands[-1] == (found.always_above, found.grid[1])
    for low, high in found.islands:
        assert low < high
        assert min(lowest(low, 4096, 64), lowest(high, 4096, 64)) >= 0.0
        assert lowest(low * (1.0 - 1.01e-6), 4096, 64) < 0.0
        assert high == found.grid[1] or lowest(high * (1.0 + 1.01e-6), 4096, 64) < 0.0
    lower = analysis.base_for_context(4096, 64, max_base=45_200.0)  # a top that does not hold
    assert (lower.always_above, len(lower.islands), lower.grid[1]) == (None, 7, 45_200.0)
    assert lower.smallest == pytest.approx(26_952.4, abs=0.1)


@pytest.mark.parametrize(
    ("context", "n_blocks", "n_grid"), [(4, 8, 300), (300, 16, 50), (512, 24, 50), (700, 128, 300)]
)
def test_every_base_by_hand(context, n_blocks, n_grid):
    """On a grid finer than that of the search, islands are where the sum holds, and nothing else."""
    found = analysis.base_for_context(context, n_blocks, n_grid=n_grid)
    low, high, _ = found.grid
    grid = np.geomspace(low, high, 400)
    holds = np.asarray([lowest(base, context, n_blocks) >= 0.0 for base in grid])
    inside = np.asarray([any(start <= base <= end for start, end in found.islands) for base in grid])
    assert np.array_equal(inside, holds)
    assert np.all(holds[grid >= found.always_above])
    assert not holds[grid < found.always_above][-1:].any()
    assert np.all(grid[holds] >= found.smallest)
    assert np.all(holds[grid >= 0.5 * high])  # what the default top is chosen for


def test_ends_of_contexts_and_of_bases():
    """cos(m) with one block: lags 0 and 1, of a context of 2, are positive, 2 is not; one lag alone always is."""
    assert analysis.base_for_context(2, 1, n_grid=10).smallest is not None
    for context in (3, 100):
        found = analysis.base_for_context(context, 1, n_grid=20)
        assert (found.smallest, found.islands, found.always_above) == (None, (), None)
    found = analysis.base_for_context(1, 4)
    assert found.islands == ((1.0, found.grid[1]),)
    assert found.smallest == found.always_above == found.grid[0] == 1.0


@campaign
def test_a_long_context():
    found = analysis.base_for_context(131_072, 64)
    assert found.smallest > 20.0 * found.integral_rule  # a narrow island lies below those that a grid sees
    assert found.always_above <= 0.5 * found.grid[1]
    for base in (found.smallest, found.always_above):
        assert analysis.first_negative_lag(rfrope.geometric(64, base=base), 131_071) is None
        below = rfrope.geometric(64, base=base * (1.0 - 1.01e-6))
        assert analysis.first_negative_lag(below, 131_071) is not None
