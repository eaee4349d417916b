"""Heads: queries, keys and weights that do not fit, offsets that cannot be."""

import numpy as np

import rfrope
from rfrope import heads

OMEGA = rfrope.geometric(4, base=100.0)
LAGS = np.array([0.0, -1.0, 2.0])
Q, K = np.random.default_rng(16).normal(size=(2, 3, 2, 9, 8))
ROPE, POLAR = rfrope.Rope(OMEGA), rfrope.Rope(OMEGA, polar=True)
LAST = rfrope.from_config({"model_type": "deepseek_v3"})[0]  # heads have 192 features, and the last 64 turn


def atlas_of(*documents, heads_at=None):
    """The atlas of documents of so many tokens."""
    builder = heads.AtlasBuilder(ROPE)
    for one, tokens in enumerate(documents):
        builder.add(Q[one, :, :tokens], K[one, :, :tokens])
    return builder.finish(heads_at)


def profile(q=Q[0, 0, :7], k=K[0, 0, :5], lags=(0, -1), frequencies=OMEGA, **options):
    return heads.profile(q, k, np.asarray(lags), frequencies, **{"paired": False} | options)


M = np.ones((7, 4))


def polar_profile(q=M, k=M, rope=POLAR, **options):
    return heads.profile(q, k, LAGS, rope, **options)


def weights(frequencies=(1.0, 0.5), **options):
    return heads.positional_weights(np.asarray(frequencies), **{"d_model": 3} | options)


def scores(frequencies=(1.0, 0.5), **options):
    return heads.positional_scores([1, 2] if np.ndim(frequencies) > 1 else 3, np.asarray(frequencies), **options)


def attention(frequencies=(1.0, 0.5), **options):
    return heads.positional_attention(np.asarray(frequencies), **{"context": 9} | options)


SEVERAL = {"frequencies": [[1.0, 2.0]], "offset": [0, 0]}
ONE_HEAD = np.random.default_rng(0).standard_normal((2, 3, 1, 12, 192))

ROWS = [
    # an atlas
    (lambda: heads.atlas(Q, K, ROPE).removable_blocks(-1.0), ValueError, "tolerance is -1.0"),
    (lambda: heads.atlas(*ONE_HEAD, LAST), ValueError, ("the last 64 features", "expected q[..., -64:]")),
    (lambda: atlas_of(), ValueError, "there are 0 documents"),
    (lambda: atlas_of(9, 8), ValueError, "in documents before; expected equal lengths"),
    (lambda: atlas_of(9, 9, 9, heads_at=[(0, 0)]), ValueError, "heads has 1 entries; expected 2"),
    # profiles and offsets of queries and keys
    (lambda: polar_profile(q=-M), ValueError, "q holds negative numbers; expected magnitudes of 0 or more: log(1 +"),
    (lambda: polar_profile(k=-M), ValueError, "k holds negative numbers"),
    (lambda: polar_profile(Q[0, 0], K[0, 0]), ValueError, "expected (..., tokens, 4) magnitudes, one for each freq"),
    (lambda: polar_profile(shift=np.ones(3)), ValueError, "shift has shape (3,); expected (..., 4)"),
    (lambda: polar_profile(shift=1.0), ValueError, "shift has shape (); expected (..., 4)"),
    (lambda: polar_profile(shift=np.full(4, np.nan)), ValueError, "shift holds NaN"),
    # heads that look at position alone
    *(
        (lambda call=call, options=options: call(**options), ValueError, words)
        for call in (weights, scores, attention)
        for options, words in (
            ({"frequencies": []}, "frequencies has shape (0,); expected at least one block"),
            ({"offset": []}, "offset has shape (0,); expected at least one"),
            ({"offset": [[-1, -2]]}, "offset has shape (1, 2); expected () or (J,)"),
            (SEVERAL | {"offset": -1}, ("offset has shape ()", "k = 2 axes")),
            (SEVERAL | {"offset": [[[1, 2]]]}, "offset has shape (1, 1, 2); expected () or (J,) for"),
            ({"temperature": 5e-324}, "temperature is 5e-324; expected a positive number from"),
            ({"head_dim": 5}, "head_dim is 5; expected an even number of at least 2D = "),
        )
    ),
]  # fmt: skip
