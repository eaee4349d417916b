"""Features: tokens, projections, and attention in linear time."""

import numpy as np

from rfrope import features

F = np.ones((4, 3))


def attention(q=F, k=F, v=F, **options):
    return features.linear_attention(q, k, v, **options)


ROWS = [
    (lambda: features.positive(np.ones((4, 3), "int64"), F), TypeError, "x has dtype int64; expected real floating"),
    (lambda: attention(denominator=(F, F[:, :2])), ValueError,
     "denominator[0] has shape (4, 3) but denominator[1] has (4, 2)"),
    (lambda: attention(scale=[0.0, -np.inf, 0, 0]), ValueError, "scale holds NaN or infinity; expected logarithms"),
    (lambda: attention(scale=F[0]), ValueError, "scale has shape (3,); expected (..., 4), one for each key"),
    (lambda: attention(denominator=(F[:3], F)), ValueError,
     "denominator[0] has shape (3, 3), denominator[1] (4, 3), q (4, 3)"),
]  # fmt: skip
