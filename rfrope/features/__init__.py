"""Random features: attention in linear time, and stochastic positional encoding.

Every draw comes from outside, as an array: ``rfrope.sample("gaussian(ndim=64)", 256, design="orthogonal", rng=0)`` are
256 projections of vectors of 64 features, by any design.
"""

from rfrope.features.attention import linear_attention
from rfrope.features.estimates import hyperbolic, positive, trigonometric, variance
from rfrope.features.positional import stochastic, stochastic_variance

__all__ = [
    "hyperbolic",
    "linear_attention",
    "positive",
    "stochastic",
    "stochastic_variance",
    "trigonometric",
    "variance",
]
