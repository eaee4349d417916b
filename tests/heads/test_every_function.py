"""Every function of heads: the same on every library of arrays, and in parts as in one."""

import calls
import numpy as np
import pytest

import rfrope
from rfrope import heads
from rfrope._core import sums

OMEGA = rfrope.geometric(4, base=100.0)
PLANE = np.random.default_rng(0).normal(size=(3, 4, 2))
LAGS = np.array([0.0, -1.0, -2.5, 40.0])
Q, K = np.random.default_rng(16).standard_normal((2, 7, 8)) + np.array([[[0.5]], [[-0.3]]])
M, N = np.random.default_rng(7).gamma(2.0, size=(2, 2, 7, 4))
DELTA = np.linspace(-3.0, 0.0, 4)
IMAGE = rfrope.axial(rfrope.geometric(8, base=30.0), rfrope.geometric(8, base=30.0)).frequencies


def polar(a, shift, **options):
    return heads.profile(a(M), a(N), a(LAGS[:3]), rfrope.Rope(a(OMEGA), polar=True), shift=shift, **options)


def of_image(a, **options):
    options = {"offset": [1, -1], "causal": False, "query_position": (2, 2)} | options
    return heads.positional_attention(a(IMAGE), (4, 5), temperature=0.05, **options)


CALLS = {  # of a function that makes an array; by ways that calls of tests/support/calls.py do not take
    "phase_shift": lambda a: heads.phase_shift(a([[-1, 2], [3, 4]]), a(PLANE[0])),
    "aligned_shift": lambda a: heads.aligned_shift(a([-1.0, -2.0]), a(OMEGA), a(Q[:2, :4]), a(K[:2, :4])),
    "shifted_scores in the plane": lambda a: heads.shifted_scores(
        a(Q[:3, None]), a(K[:3, None]), a([[1, 2], [0, -3]]), a(PLANE), 0.3
    ),
    "shifted_scores of a part": lambda a: heads.shifted_scores(
        a(Q[:, None]), a(K[:, None]), a([1, -7]), a(OMEGA[:3]), a(DELTA[:3])
    ),
    "shifted_mean_kernel": lambda a: heads.shifted_mean_kernel(a(LAGS), a(OMEGA), a(DELTA)),
    "offset_of": lambda a: heads.offset_of(a(OMEGA), a(DELTA + LAGS[:3, None]), low=-16.0, weights=a(np.abs(Q[0, :4]))),
    "effective_offset": lambda a: heads.effective_offset(a(Q), a(K[:5]), a(OMEGA), paired=False),
    "profile": lambda a: heads.profile(a(Q), a(K[:5]), a(LAGS), a(OMEGA), paired=False),
    "profile of a part": lambda a: heads.profile(a(Q), a(K), a(LAGS), a(OMEGA[:2])),
    "profile in float32": lambda a: heads.profile(a(Q, "float32"), a(K, "float32"), a(LAGS), a(OMEGA)),
    "polar profile": lambda a: polar(a, a(DELTA)),
    "polar profile beside NumPy": lambda a: polar(a, DELTA),
    "positional_weights": lambda a: heads.positional_weights(
        a(OMEGA), d_model=9, offset=-2.5, temperature=0.4, constant_index=4, pairing="interleaved"
    ),
    "positional_weights in the plane": lambda a: heads.positional_weights(a(PLANE), d_model=3, offset=a(PLANE[:, :1])),
    "positional_scores in the plane": lambda a: heads.positional_scores(a(Q[:5, :2]), a(PLANE), offset=a(PLANE[:, :1])),
    "positional_scores of offsets": lambda a: heads.positional_scores(a([1, 2]), a(OMEGA), offset=a([-1, -5])),
    "positional_attention near": lambda a: heads.positional_attention(a(OMEGA), 12, causal=False, window=4),
    "positional_attention of heads": lambda a: heads.positional_attention(
        a(np.abs(PLANE[..., :1])), 9, offset=a([-1.0]), temperature=1 / 9
    ),
    "positional_attention over an image": lambda a: of_image(a),
    "positional_attention over patches": lambda a: of_image(a, window=2),
}


def in_numpy(values, dtype=None):
    return np.asarray(values, dtype)


@pytest.mark.parametrize("name", CALLS)
def test_every_library_gives_the_same_in_its_own_arrays(name, xp):
    found, wanted = ([*calls.arrays(CALLS[name](place))] for place in (xp, in_numpy))
    for one, other in zip(found, wanted, strict=True):
        assert xp.owns(one)
        one = xp.host(one)
        assert one.dtype == np.asarray(other).dtype
        assert one.shape == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-6 if one.dtype == np.float32 else 1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_parts_are_put_together(name, monkeypatch):
    """Of blocks and of lags, however few numbers may be held at a time."""
    whole = [*calls.arrays(CALLS[name](in_numpy))]
    monkeypatch.setattr(sums, "BUDGET", 20)
    for one, other in zip(calls.arrays(CALLS[name](in_numpy)), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
