"""Heads: queries, keys and weights that do not fit, offsets that cannot be."""

import math

import numpy as np

import rfrope
from rfrope import heads

OMEGA = rfrope.geometric(4, base=100.0)
LAGS, AT = np.array([0.0, -1.0, 2.0]), np.arange(12)
Q, K = np.random.default_rng(16).normal(size=(2, 3, 2, 9, 8))
ROPE, POLAR = rfrope.Rope(OMEGA), rfrope.Rope(OMEGA, polar=True)
LAST = rfrope.from_config({"model_type": "deepseek_v3"})[0]  # heads have 192 features, and the last 64 turn
PLANE = np.zeros((4, 2))
NO_SYMMETRY, NEGATIVE = np.eye(8) + np.eye(8, k=1), np.diag([1.0, 1, 1, 1, 1, 1, 1, -0.01])
LATTICE = rfrope.arithmetic(8, step=2.0 * math.pi / 100.0)
COPY = "keys at 1 other lags, such as [-101]"


def atlas_of(*documents, heads_at=None):
    """The atlas of documents of so many tokens."""
    builder = heads.AtlasBuilder(ROPE)
    for one, tokens in enumerate(documents):
        builder.add(Q[one, :, :tokens], K[one, :, :tokens])
    return builder.finish(heads_at)


def profile(q=Q[0, 0, :7], k=K[0, 0, :5], lags=(0, -1), frequencies=OMEGA, **options):
    return heads.profile(q, k, np.asarray(lags), frequencies, **{"paired": False} | options)


def in_plane(**options):
    return profile(frequencies=PLANE, lags=[[0, 0]], pairs="occurring", **options)


M = np.ones((7, 4))


def polar_profile(q=M, k=M, rope=POLAR, **options):
    return heads.profile(q, k, LAGS, rope, **options)


def offset(q=Q[0, 0, :7], k=K[0, 0, :5], frequencies=OMEGA, **options):
    return heads.effective_offset(q, k, frequencies, **{"paired": False} | options)


def from_weights(w_q=Q[0, 0, :8], w_k=K[0, 0, :8], **options):
    return heads.offset_from_weights(w_q, w_k, OMEGA, max_lag=9, **options)


def beside_larger(moment):
    """A second moment beside that of a head whose inputs are far larger."""
    return from_weights(np.stack([Q[0, 0, :8]] * 2), second_moment=np.stack([1e9 * np.eye(8), moment]))


def weights(frequencies=(1.0, 0.5), **options):
    return heads.positional_weights(np.asarray(frequencies), **{"d_model": 3} | options)


def scores(frequencies=(1.0, 0.5), **options):
    return heads.positional_scores([1, 2] if np.ndim(frequencies) > 1 else 3, np.asarray(frequencies), **options)


def attention(frequencies=(1.0, 0.5), **options):
    return heads.positional_attention(np.asarray(frequencies), **{"context": 9} | options)


def temperature(mass=0.5, frequencies=(1.0, 0.5), **options):
    return heads.temperature_for_mass(mass, np.asarray(frequencies), **{"context": 10} | options)


def offset_of(frequencies=(1.0, 0.5), shift=(0.1, 0.2), **options):
    return heads.offset_of(np.asarray(frequencies), np.asarray(shift), **{"low": -10.0} | options)


SEVERAL = {"frequencies": [[1.0, 2.0]], "offset": [0, 0]}
TWO = {"offset": [-1, -2]}
ONE_HEAD = np.random.default_rng(0).standard_normal((2, 3, 1, 12, 192))

ROWS = [
    # an atlas
    (lambda: heads.atlas(Q[:2], K[:2], ROPE), ValueError, "there are 2 documents; expected at least 3"),
    (lambda: heads.atlas(Q, K[:2], ROPE), ValueError, "q has 3 documents and k 2"),
    (lambda: heads.atlas(Q, K[..., :7, :], ROPE), ValueError, ("q has shape", "and k", "expected H heads")),
    (lambda: heads.atlas(Q[:, :, :4], K[:, :, :4], ROPE), ValueError, "q has 4 tokens; expected at least 5"),
    (lambda: heads.atlas(Q[..., :6], K[..., :6], ROPE), ValueError, "an even d of at least 8"),
    (lambda: heads.atlas(Q, K, np.ones((2, 4, 1))), ValueError, ("rope has shape", "one set")),
    (lambda: heads.atlas(Q, K, rfrope.Rope(np.ones(8), polar=True)), ValueError, "rope is polar"),
    (lambda: heads.atlas(Q, K, rfrope.Rope(np.ones(4), pairing=None)), ValueError, "rope.pairing is None"),
    (lambda: heads.atlas(Q, K, ROPE).removable_blocks(-1.0), ValueError, "tolerance is -1.0"),
    (lambda: heads.atlas(*ONE_HEAD, LAST), ValueError, ("the last 64 features", "expected q[..., -64:]")),
    (lambda: heads.atlas(*ONE_HEAD[..., :128], rfrope.Rope(rfrope.geometric(32), head_dim=64)), ValueError,
     "q has 128 features, but head_dim is 64"),
    (lambda: atlas_of(), ValueError, "there are 0 documents"),
    (lambda: atlas_of(9, 8), ValueError, "in documents before; expected equal lengths"),
    (lambda: atlas_of(9, 9, 9, heads_at=[(0, 0)]), ValueError, "heads has 1 entries; expected 2"),
    # profiles and offsets of queries and keys
    (lambda: profile(paired=True), ValueError, "q has 7 tokens and k 5, but paired is True; expected as many of each"),
    (lambda: profile(k=K[0, 0, :0]), ValueError, "k has shape (0, 8); expected (..., tokens, d) with tokens"),
    (lambda: profile(frequencies=np.zeros((2, 4, 1)), lags=[[0.0]]), ValueError, "expected one set, (D,) or (D, k)"),
    (lambda: profile(q_positions=AT[:7]), ValueError, "pairs is 'all'; expected pairs='occurring'"),
    (lambda: profile(pairs="occurring", q_positions=AT[:6]), ValueError, ("q_positions has shape (6,)", "(7, 1)")),
    (lambda: profile(pairs="occurring", k_positions=[math.inf] * 5), ValueError, "expected finite positions"),
    (lambda: in_plane(), ValueError, "q_positions is None; expected positions, as the frequencies have 2 axes"),
    (lambda: in_plane(q_positions=AT[:7]), ValueError, "shape (7,); expected finite positions (7, 2), one a token"),
    (lambda: polar_profile(q=-M), ValueError, "q holds negative numbers; expected magnitudes of 0 or more: log(1 +"),
    (lambda: polar_profile(k=-M), ValueError, "k holds negative numbers"),
    (lambda: polar_profile(Q[0, 0], K[0, 0]), ValueError, "expected (..., tokens, 4) magnitudes, one for each freq"),
    (lambda: polar_profile(shift=np.ones(3)), ValueError, "shift has shape (3,); expected (..., 4)"),
    (lambda: polar_profile(shift=1.0), ValueError, "shift has shape (); expected (..., 4)"),
    (lambda: polar_profile(shift=np.full(4, np.nan)), ValueError, "shift holds NaN"),
    (lambda: polar_profile(rope=rfrope.Rope(OMEGA, polar=True, attention_factor=2.0)), ValueError,
     "attention factor 2.0"),
    (lambda: offset(paired=True), ValueError, "q has 7 tokens and k 5, but paired is True"),
    (lambda: offset(q=Q[0, 0, :1]), ValueError, "q has 1 tokens and k 5; expected at least two of each"),
    (lambda: offset(frequencies=PLANE), ValueError, "expected one set, (D,) or (D, 1)"),
    (lambda: offset(frequencies=PLANE[:, 0]), ValueError, "all offsets are alike"),
    # offsets of weights
    (lambda: from_weights(w_q=Q[0, 0, 0]), ValueError, "w_q has shape (8,); expected (..., d, d_model)"),
    (lambda: from_weights(w_k=K[0, 0, :8, :3]), ValueError, "expected the same two last lengths"),
    (lambda: from_weights(np.ones((2, 8, 8)), np.ones((3, 8, 8))), ValueError, "w_q and w_k do not broadcast"),
    (lambda: from_weights(mean=np.ones(4)), ValueError, "mean has shape (4,); expected finite numbers (..., 8)"),
    (lambda: from_weights(second_moment=np.ones(8)), ValueError, ("second_moment has shape (8,)", "8, 8)")),
    (lambda: from_weights(second_moment=NO_SYMMETRY), ValueError, "second_moment is not symmetric; expected E x x"),
    (lambda: from_weights(second_moment=NEGATIVE), ValueError, "second_moment has the eigenvalue -0.01"),
    (lambda: beside_larger(NO_SYMMETRY), ValueError, "second_moment is not symmetric"),
    (lambda: beside_larger(NEGATIVE), ValueError, "second_moment has the eigenvalue -0.01"),
    (lambda: from_weights(mean=np.ones(8), second_moment=np.eye(8)), ValueError, "are both given; expected at most"),
    (lambda: from_weights(np.zeros((8, 8))), ValueError, "all offsets are alike"),
    # offsets that shifts point at
    (lambda: offset_of(low=0.0), ValueError, "low is 0.0 and high 0.0; expected low < high"),
    (lambda: offset_of(low=-1e9), ValueError, "1.59e+08 turns of the fastest block; expected at most 1048576"),
    (lambda: offset_of([1.0, 0.0], weights=[0.0, 1.0]), ValueError, "no block with a weight has a nonzero frequency"),
    (lambda: offset_of(np.ones((2, 2))), ValueError, "frequencies has shape (2, 2); expected one set"),
    (lambda: offset_of(shift=[0.0] * 3), ValueError, "do not broadcast"),
    (lambda: offset_of(weights=[1.0, -1.0]), ValueError, "weights holds NaN, infinity, negative numbers"),
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
            ({"offset_weights": [1.0]}, "offset_weights was given for a single offset"),
            (TWO | {"offset_weights": [1.0, 2.0, 3.0]}, "offset_weights and offset do not broadcast"),
            (TWO | {"offset_weights": [[1.0], [2.0]]}, "offset_weights has shape (2, 1)"),
            ({"temperature": 5e-324}, "temperature is 5e-324; expected a positive number from"),
            ({"head_dim": 5}, "head_dim is 5; expected an even number of at least 2D = "),
        )
    ),
    (lambda: weights(constant_index=3), ValueError, "constant_index is 3; expected an index into the d_model = 3"),
    (lambda: weights(constant=5e-324), ValueError, "constant is 5e-324 at temperature 1.0; expected a number that is"),
    (lambda: weights(dtype="int32"), TypeError, "dtype is 'int32'"),
    (lambda: attention(context=2**32 - 1), ValueError, "the query sees 4294967295 keys"),
    (lambda: attention(query_position=9), ValueError, "query_position is 9; expected one in the context of 9"),
    (lambda: attention(**SEVERAL, context=(3, 3)), ValueError, ("causal is True", "k = 2 axes")),
    (lambda: attention(**SEVERAL, causal=False), ValueError, ("context is 9; ", "each of 2 axes")),
    # temperatures
    (lambda: temperature(frequencies=np.zeros(4)), ValueError, ("keys at 9 other lags, ", "below 1/10")),
    (lambda: temperature(frequencies=[[1.0, 0.0], [0.1, 0.0]], context=(3, 3), offset=(-1, 0), causal=False),
     ValueError, "keys at 2 other lags, such as [-1, -1]"),
    (lambda: temperature(offset=1), ValueError, "offset is 1, but with this context, window and query_position the"),
    (lambda: temperature(offset=-3, window=3), ValueError, ("offset is -3", "sees only lags from -2 to 0")),
    (lambda: temperature(offset=-1.5), ValueError, "offset is -1.5; expected a whole number"),
    (lambda: temperature(0.1), ValueError, ("mass is 0.1; expected a number above 1/10,", "and below 1")),
    (lambda: temperature(context=1, offset=0), ValueError, "mass is 0.5; expected a number above 1/1"),
    (lambda: temperature(0.9, LATTICE, context=102), ValueError, ("0.9, but", COPY, "a mass below 1/2")),
    (lambda: temperature(0.1, LATTICE, context=1000), ValueError, ("keys at 9 other lags, such as [-101]", "1/10")),
    *(
        (lambda w=w: temperature(0.9, [w], context=4), ValueError, ("keys at 3 other lags, ", "too small for float64"))
        for w in (1e-155, 1e-200, 1e-320)
    ),
    (lambda: temperature(0.9, [1e-145], context=2), ValueError, "keys at 1 other lags"),  # a deficit of 5e-291
    # shifts
    (lambda: heads.phase_shift(-1, [[1.0, 2.0]]), ValueError, ("offset has shape ()", "k = 2 axes")),
    (lambda: heads.aligned_shift(-1, [1.0, 2.0], [1.0] * 3), ValueError, ("cosine and the phases", "not broadcast")),
    (lambda: heads.aligned_shift(-1, [1.0], [1.0, 2.0]), ValueError, "cosine has shape (2,); expected (..., 1)"),
    (lambda: heads.shifted_scores([1.0, 2.0], [1.0, 2.0], 1, [], 0.0), ValueError, "expected at least one block"),
    (lambda: heads.shifted_scores([1.0, 2.0], [1.0, 2.0], 1, [0.5, 0.1], 0.0), ValueError, ("2 blocks", "but q has")),
    (lambda: heads.shifted_scores(*np.ones((2, 6, 5, 8)), np.ones((5, 3)), np.ones((6, 4, 3)), np.ones(3)),
     ValueError, "do not broadcast"),
    (lambda: heads.shifted_mean_kernel(1, [1.0, 2.0], [0.0] * 3), ValueError, "shift and the phases from"),
    (lambda: heads.recentred_kernel(LAGS[:2], LAGS, "gaussian"), ValueError, "lags and offset do not"),
]  # fmt: skip
