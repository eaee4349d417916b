"""Random features: attention in linear time.

Projections are an argument, so any design works:
``rfrope.sample("gaussian(ndim=64)", 256, design="orthogonal", rng=0)``
draws 256 of them for vectors of 64 features.
"""

from rfrope.features.attention import linear_attention
from rfrope.features.estimates import hyperbolic, positive, trigonometric, variance

__all__ = [
    "hyperbolic",
    "linear_attention",
    "positive",
    "trigonometric",
    "variance",
]
