"""Features: tokens, projections, and attention in linear time."""

import numpy as np

from rfrope import features

F = np.ones((4, 3))


def attention(q=F, k=F, v=F, **options):
    return features.linear_attention(q, k, v, **options)


ROWS = [
    (lambda: features.positive(F, np.ones((5, 2))), ValueError, "x has shape (4, 3) but projections has (5, 2);"),
    (lambda: features.positive(np.array(1.0), F), ValueError, "x has shape (); expected 1 axes or more"),
    (lambda: features.positive(np.ones((4, 3), "int64"), F), TypeError, "x has dtype int64; expected real floating"),
    (lambda: features.positive(F, F, stabilise="key"), ValueError, "stabilise is 'key'; expected one of 'token', "),
    (lambda: features.positive(F[0], F, stabilise="all"), ValueError, "stabilise is 'all', but x has shape (3,)"),
    (lambda: features.variance(F, F, 3, features="relu"), ValueError, "features is 'relu'; expected one of"),
    (lambda: features.variance(F, F, 0), ValueError, "n_projections is 0; expected"),
    (lambda: attention(k=F[:, :2]), ValueError, "q has shape (4, 3) but k has (4, 2)"),
    (lambda: attention(v=F[:2]), ValueError, "expected a value for each key"),
    (lambda: attention(q=F[:2], causal=True), ValueError, "causal is True, but q has 2 tokens and k 4"),
    (lambda: attention(denominator=3), TypeError, "denominator is 3; expected features of queries and of keys"),
    (lambda: attention(denominator=(F, F[:, :2])), ValueError,
     "denominator[0] has shape (4, 3) but denominator[1] has (4, 2)"),
    (lambda: attention(scale=[0.0, -np.inf, 0, 0]), ValueError, "scale holds NaN or infinity; expected logarithms"),
    (lambda: attention(scale=F[0]), ValueError, "scale has shape (3,); expected (..., 4), one for each key"),
    (lambda: attention(denominator=(F[:3], F)), ValueError,
     "denominator[0] has shape (3, 3), denominator[1] (4, 3), q (4, 3)"),
    (lambda: attention(causal=True, block=0), ValueError, "block is 0; expected"),
]  # fmt: skip
