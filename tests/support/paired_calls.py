"""A call of every public function that takes frequencies beside a pairing, by its name: of a Rope, or frequencies."""

import numpy as np

import rfrope
from rfrope import analysis, heads

Q, K = np.random.default_rng(3).standard_normal((2, 6, 8))
AT = np.arange(6)
CALLS = {
    "rotate": lambda rope, **options: rfrope.rotate(Q, AT, rope, **options),
    "scores": lambda rope, **options: rfrope.scores(Q, K, AT, AT, rope, **options),
    "analysis.sine_share": lambda rope, **options: analysis.sine_share(Q, K, -1.0, rope, **options),
    "analysis.departure": lambda rope, **options: analysis.departure(Q, K, [-1.0], rope, **options).phi,
    "heads.profile": lambda rope, **options: heads.profile(Q, K, [-1.0, 0.0], rope, **options).mean,
    "heads.effective_offset": lambda rope, **options: heads.effective_offset(Q, K, rope, **options).offset,
    "heads.shifted_scores": lambda rope, **options: heads.shifted_scores(Q, K, -1.0, rope, 1.0, **options),
    "heads.positional_weights": lambda rope, **options: heads.positional_weights(rope, d_model=3, **options)[0],
}
