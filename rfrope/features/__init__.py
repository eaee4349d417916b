"""Random features: attention in linear time, and stochastic positional encoding.

Projections are an argument, so any design works:
``rfrope.sample("gaussian(ndim=64)", 256, design="orthogonal", rng=0)``
draws 256 of them for vectors of 64 features.
"""

from rfrope.features.attention import linear_attention
from rfrope.features.estimates import hyperbolic, positive, stochastic, stochastic_variance, trigonometric, variance

__all__ = [
    "hyperbolic",
    "linear_attention",
    "positive",
    "stochastic",
    "stochastic_variance",
    "trigonometric",
    "variance",
]
