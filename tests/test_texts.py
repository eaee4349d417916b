"""Results as one line of text."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope import analysis, heads
from rfrope.montecarlo import Estimate

LADDER = rfrope.geometric(8)
Q, K = np.random.default_rng(0).standard_normal((2, 9, 16))

RESULTS = {
    "Estimate": lambda: rfrope.estimate_kernel("gaussian", [1.0, 2.0], n_samples=100, rng=0),
    "ScoreEstimate": lambda: rfrope.estimate_scores(Q[0], K[0], -1.0, "gaussian", n_trials=100, rng=0),
    "Band": lambda: rfrope.moments.mean_kernel_band("gaussian", np.arange(99.0), n_blocks=8),
    "PositionalAttention": lambda: heads.positional_attention(LADDER, 64),
    "Profile": lambda: heads.profile(Q, K, LADDER, np.arange(-5, 1)),
    "EffectiveOffset": lambda: heads.effective_offset(Q, K, LADDER, max_lag=5),
    "Alignment": lambda: heads.alignment(LADDER, heads.phase_shift(LADDER, -3), -3),
    "Peak": lambda: heads.offset_of(LADDER, heads.phase_shift(LADDER, -3), low=-9.0),
    "WeightOffset": lambda: heads.offset_from_weights(np.eye(16), np.eye(16), LADDER, max_lag=9, mean=Q[0]),
    "Similarity": lambda: analysis.similarity(LADDER, np.arange(9)),
    "Departure": lambda: analysis.departure(Q, K, LADDER, -1),
    "DensityOfStates": lambda: analysis.density_of_states(LADDER),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_one_line(name):
    result = RESULTS[name]()
    text = str(result)
    assert text.startswith(f"{name}: ")
    assert "\n" not in text
    assert len(text) < 600
    assert all(f"{field} " in text for field in result.__dataclass_fields__)
    assert repr(result) != text


def test_numbers_and_ranges():
    band = rfrope.moments.mean_kernel_band("gaussian", [1.0, 2.0], n_blocks=8)
    assert f"value [{band.value[0]:.6g}, {band.value[1]:.6g}]" in str(band)
    band = RESULTS["Band"]()
    assert f"value of shape (99,) from {band.value.min():.4g} to 1," in str(band)
    estimate = rfrope.estimate_kernel("gaussian", np.arange(1.0, 9.0), n_samples=50, rng=0)
    assert f"trusted of shape (8,), {int(np.sum(estimate.trusted))} of 8 true" in str(estimate)


def test_lazy_results_are_not_computed():
    da = library("dask").module
    held = Estimate(da.map_blocks(lambda x: 1 / 0, da.ones(5), dtype=float), np.ones(2), 3)
    assert str(held) == "Estimate: value of shape (5,), stderr [1, 1], n 3, trusted True"
