"""Lags over which errors are taken."""

import numpy as np
import pytest

from rfrope.designs.errors import lags_within


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
