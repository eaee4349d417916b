"""Closed forms of mean, variance and concentration of scores over random frequencies."""

from rfrope.moments.fidelity import kernel_gap
from rfrope.moments.polar import effective_blocks, polar_error, polar_score, polar_variance
from rfrope.moments.scores import (
    Band,
    blocks_for_error,
    expected_score,
    mean_kernel_band,
    relative_error,
    score_variance,
)

__all__ = [
    "Band", "blocks_for_error", "effective_blocks", "expected_score", "kernel_gap", "mean_kernel_band",
    "polar_error", "polar_score", "polar_variance", "relative_error",
    "score_variance",
]  # fmt: skip
