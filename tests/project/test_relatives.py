"""Facts of docs/explain/relatives.rst that no function of its own holds: sine heads of RoPE++, and rates of content."""

import math

import numpy as np
import pytest

import rfrope


def test_sine_heads_on_every_library(xp, rng):
    q, k = rng.standard_normal((2, 5, 16))
    omega, at = rfrope.geometric(8), np.arange(100, 105)
    turned = rfrope.rotate(xp(q), xp(at), xp(omega), shift=xp(np.full(8, -math.pi / 2)))
    scores = xp.host(turned) @ rfrope.rotate(k, at, omega).T
    a, b = rfrope.block_coefficients(q[:, None], k[None])
    u = (at[None, :] - at[:, None])[..., None] * omega
    np.testing.assert_allclose(scores, np.sum(b * np.cos(u) - a * np.sin(u), axis=-1), atol=1e-12)
    # RoPE++ as published: the features (x, y) of a block become (y, -x) before they are turned by position
    swapped = np.concatenate([q[:, 8:], -q[:, :8]], axis=-1)
    np.testing.assert_allclose(scores, rfrope.rotate(swapped, at, omega) @ rfrope.rotate(k, at, omega).T, atol=1e-12)


# -- rates of content --------------------------------------------------------------------------------------------------


def softplus(x, xp):
    return xp.log(1.0 + xp.exp(x))


CONTENT = {  # rates (L, 4) of content x (L, 3) and weights w (3, 4)
    "selective": lambda x, w, xp: x @ w,
    "carope": lambda x, w, xp: xp.exp(  # its first head: powers of 1 / (1 + softplus)
        -xp.log(1.0 + softplus(x @ w[:, :1], xp)) * xp.asarray([1.0, 2.0, 3.0, 4.0], dtype=x.dtype)
    ),
    "grape": lambda x, w, xp: softplus(x @ w[:, :1], xp) * xp.asarray([1.0, 0.1, 0.01, 0.001], dtype=x.dtype),
}


@pytest.mark.parametrize("scheme", CONTENT)
def test_scores_see_the_rates_between_two_tokens_and_nothing_else(scheme, xp, rng):
    """By the papers' formulas, summed up token by token."""
    x, w = rng.standard_normal((7, 3)), rng.standard_normal((3, 4))
    q, k = rng.standard_normal((2, 7, 8))
    rates = CONTENT[scheme](x, w, np)
    made = CONTENT[scheme](xp(x), xp(w), xp.module)
    phases, _ = rfrope.rotation.cumulative_phases(made)
    turned, keys = (xp.host(rfrope.rotate_by_phases(xp(one), phases)) for one in (q, k))
    a, b = rfrope.block_coefficients(q[:, None], k[None])
    for query, key in ((6, 1), (5, 5), (2, 4)):
        u = np.zeros(4)  # key less query
        for token in range(min(query, key) + 1, max(query, key) + 1):
            u += rates[token] if key > query else -rates[token]
        wanted = np.sum(a[query, key] * np.cos(u) + b[query, key] * np.sin(u))
        np.testing.assert_allclose(turned[query] @ keys[key], wanted, atol=1e-11)
