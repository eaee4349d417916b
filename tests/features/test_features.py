"""Random features against their formulas and draws, linear attention against the sums that it leaves out."""

import math

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope import features

RNG = np.random.default_rng(0)
X, Y = np.array([0.5, 0.3, -0.4]), np.array([0.1, -0.3, 0.6])
KINDS = ("positive", "hyperbolic", "trigonometric")
LIMIT = 5.0  # standard errors: passed by chance once in 1.7e6
DESIGNS = ("iid", "stratified", "shifted", "sobol", "halton", "orthogonal", "antithetic")


def drawn(kind, x, y, n_sets, m=1, design="iid", seed=0):
    """Products of the features of two vectors, one for each set of projections."""
    w = rfrope.sample(f"gaussian(ndim={len(x)})", m, heads=n_sets, design=design, rng=seed)
    make = getattr(features, kind)
    return np.sum(make(x[None], w) * make(y[None], w), axis=(-2, -1))


def variance(x, y, kind, m=1):
    """Variance of such products: Choromanski et al. (2021), Lemma 2."""
    near, apart, mean = np.sum((x - y) ** 2, axis=-1), np.sum((x + y) ** 2, axis=-1), np.exp(np.sum(x * y, axis=-1))
    size = np.exp(np.sum(x * x + y * y, axis=-1))
    return {
        "positive": mean**2 * np.expm1(apart),
        "hyperbolic": 0.5 * mean**2 * np.exp(apart) * np.expm1(-apart) ** 2,
        "trigonometric": 0.5 * size * np.expm1(-near) ** 2,
    }[kind] / m


def of_mean(values, mean):
    """Distance of a mean from what it should be, in standard errors."""
    return (values.mean() - mean) / (values.std() / math.sqrt(values.size))


def attention(q, k, v, causal, below=None):
    """Attention by all pairs."""
    weights = np.matmul(q, np.swapaxes(k, -1, -2))
    sums = weights if below is None else np.matmul(below[0], np.swapaxes(below[1], -1, -2))
    weights, sums = (np.tril(one) if causal else one for one in (weights, sums))
    return np.matmul(weights, v) / np.sum(sums, axis=-1, keepdims=True)


# -- features ----------------------------------------------------------------------------------------------------------


def test_features_are_those_of_the_formulas(xp):
    x, w = RNG.standard_normal((2, 5, 3)), RNG.standard_normal((4, 3))
    along, size = x @ w.T, np.sum(x * x, axis=-1, keepdims=True)
    up, down = (np.exp(sign * along - size / 2) for sign in (1.0, -1.0))
    waves = np.exp(size / 2) * np.concatenate([np.cos(along), np.sin(along)], axis=-1)
    wanted = (up / 2.0, np.concatenate([up, down], axis=-1) / math.sqrt(8.0), waves / 2.0)
    for kind, one in zip(KINDS, wanted, strict=True):
        for dtype, within in (("float64", 1e-14), ("float32", 3e-6)):
            found = getattr(features, kind)(xp(x, dtype), w)  # NumPy's projections fit beside any library
            assert xp.owns(found)
            assert xp.host(found).dtype == dtype
            np.testing.assert_allclose(xp.host(found), one, rtol=within)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_and_variance_of_products_are_those_of_lemma_2(kind):
    values, mean = drawn(kind, X, Y, 200_000), math.exp(X @ Y)
    assert abs(of_mean(values, mean)) < LIMIT
    assert abs(of_mean((values - mean) ** 2, variance(X, Y, kind))) < LIMIT
    assert abs(of_mean((values - mean) ** 2, 1.1 * variance(X, Y, kind))) > LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_orthogonal_projections_lower_the_variance(kind):
    """Choromanski et al. (2021), theorem 2, for positive features; the others are measured."""
    q, k = RNG.standard_normal((2, 8)) / 2.0
    squares = (drawn(kind, q, k, 20_000, 8, "orthogonal") - math.exp(q @ k)) ** 2
    assert of_mean(squares, variance(q, k, kind, 8)) < -LIMIT


def test_a_set_of_projections_for_each_head():
    x, w = RNG.standard_normal((2, 5, 3)), RNG.standard_normal((2, 4, 3))
    found = features.positive(x, w)
    for head in range(2):
        np.testing.assert_array_equal(found[head], features.positive(x[head], w[head]))


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
def test_stabilised_features_of_long_vectors_give_the_same_attention(kind):
    """In float32 `exp` of what they stand for overflows or vanishes."""
    make = getattr(features, kind)
    q, k, v = RNG.standard_normal((3, 40, 8))
    q, k = 6.0 * q, 4.0 * k
    w = RNG.standard_normal((16, 8))
    wanted = attention(make(q, w), make(k, w), v, True)
    with np.errstate(all="ignore"):
        assert not np.all(np.isfinite(attention(make(q.astype("f4"), w), make(k.astype("f4"), w), v, True)))
    one, other = make(q, w, stabilise="token"), make(k, w, stabilise="all")
    assert np.all(np.max(one, axis=-1) == 1.0)
    assert np.max(other) == 1.0
    assert np.all(np.max(make(np.stack([k, k / 9.0]), w, stabilise="all"), axis=(-2, -1)) == 1.0)  # in each head
    np.testing.assert_allclose(features.linear_attention(one, other, v, causal=True), wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
@pytest.mark.parametrize(("dtype", "length"), [("float16", 10.0), ("float32", 20.0)])
def test_a_long_first_key_does_not_vanish_beside_later_ones(kind, dtype, length):
    """Its own row has no other key; relative to the largest of all keys it would be 0/0."""
    make, v = getattr(features, kind), RNG.standard_normal((40, 8))
    q, k = RNG.standard_normal((2, 40, 8)) / 3.0
    k[0] *= length / np.linalg.norm(k[0])
    w = RNG.standard_normal((64, 8))
    narrow = [x.astype(dtype) for x in (q, k, w)]
    keys = make(*narrow[1:], stabilise="all")
    with pytest.warns(RuntimeWarning, match="^the weights of a query sum to 0, .* and scale=$"):
        lost = features.linear_attention(make(narrow[0], narrow[2], stabilise="token"), keys, v, causal=True)
    assert np.isnan(lost[0]).all()
    keys, scale = make(*narrow[1:], stabilise="scale")
    queries = make(narrow[0], narrow[2], stabilise="token")
    found = features.linear_attention(queries, keys, v, causal=True, scale=scale, block=16)
    assert keys.dtype == dtype
    np.testing.assert_allclose(found, attention(make(q, w), make(k, w), v, True), atol=40.0 * np.finfo(dtype).eps)


def test_half_precision_is_computed_in_float32_and_kept(torch):
    x, w = torch.asarray(RNG.standard_normal((6, 4)) / 2.0), RNG.standard_normal((8, 4))
    x = x.to(torch.bfloat16)
    for kind in KINDS:
        found = getattr(features, kind)(x, w)
        assert found.dtype == torch.bfloat16
        np.testing.assert_allclose(found.double(), getattr(features, kind)(x.double(), w), rtol=2.0**-8)
    one = features.positive(x, w)
    sums = features.linear_attention(one, one, x, causal=True)
    assert sums.dtype == torch.bfloat16
    wide = one.double().numpy()
    np.testing.assert_allclose(sums.double(), attention(wide, wide, x.double().numpy(), True), atol=2.0**-8)


# -- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 3, 4, 11, 12, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_is_the_sum_over_all_pairs(xp, causal, block):
    q, k = RNG.uniform(0.1, 1.0, (2, 2, 12, 5))
    v = RNG.standard_normal((1, 12, 3))  # one head for all queries
    below = RNG.uniform(0.1, 1.0, (2, 2, 12, 7))
    scale = RNG.uniform(-50.0, 50.0, (2, 12))  # logarithms of what keys were divided by
    for others in (None, below):
        options = {"causal": causal, "block": block, "denominator": None if others is None else tuple(map(xp, others))}
        found = features.linear_attention(xp(q), xp(k), xp(v), **options)
        assert xp.owns(found)
        np.testing.assert_allclose(xp.host(found), attention(q, k, v, causal, others), rtol=1e-12)
        found = features.linear_attention(xp(q), xp(k), xp(v), scale=xp(scale), **options)
        size = np.exp(scale)[..., None]
        others = others if others is None else (others[0], size * others[1])
        np.testing.assert_allclose(xp.host(found), attention(q, size * k, v, causal, others), rtol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wide", ["q", "k", "v", "denominator"])
def test_float64_beside_float32_is_computed_in_float64(xp, wide, causal):
    """Features of few digits, so that their products are exact in float32: what is lost are digits of values."""
    q, k = RNG.integers(1, 9, (2, 6, 5)).astype(float)
    v = RNG.standard_normal((6, 3)).astype("float64" if wide == "v" else "float32")
    one, other = (xp(x, "float64" if wide == name else "float32") for name, x in (("q", q), ("k", k)))
    below = (xp(q), xp(k)) if wide == "denominator" else None
    found = features.linear_attention(one, other, xp(v), causal=causal, denominator=below, block=4)
    np.testing.assert_array_equal(found.dtype, xp(v).dtype)
    wanted = attention(q, k, v.astype(float), causal).astype(v.dtype)
    np.testing.assert_allclose(xp.host(found), wanted, rtol=1e-14 if wide == "v" else 0.0)


def test_queries_may_be_fewer_than_keys():
    q, k, v = RNG.uniform(size=(3, 4)), RNG.uniform(size=(9, 4)), RNG.standard_normal((9, 2))
    np.testing.assert_allclose(features.linear_attention(q, k, v), attention(q, k, v, False), rtol=1e-12)


def test_memory_is_that_of_some_copies_of_the_arguments(peak):
    for length in (2**12, 2**15):  # for the latter all pairs are 8.6e9 bytes
        q, k, v = (RNG.uniform(0.1, 1.0, (length, width)) for width in (64, 64, 16))
        peak(anew=True)
        start = peak()
        features.linear_attention(q, k, v, causal=True, block=128)
        assert peak() - start < 1.3 * q.nbytes + 1e6


def check_gradients(call, arrays):
    """Those of torch are those of differences, and JAX, which compiles, finds the same."""
    torch, jax = library("torch").module, library("jax").module
    import jax as whole_jax

    tensors = [torch.tensor(one, requires_grad=True) for one in arrays]
    assert torch.autograd.gradcheck(call, tensors)
    assert torch.allclose(torch.compile(call, fullgraph=True, backend="eager")(*tensors), call(*tensors))
    wanted = torch.autograd.grad(call(*tensors).square().sum(), tensors)
    loss = whole_jax.grad(lambda *a: jax.sum(call(*a) ** 2), argnums=tuple(range(len(arrays))))
    for one, other in zip(whole_jax.jit(loss)(*map(jax.asarray, arrays)), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_compilation(kind):
    make, stabilised = getattr(features, kind), kind != "trigonometric"

    def call(x, y, z, projections):
        if stabilised:
            queries, (keys, size) = make(x, projections, stabilise="token"), make(y, projections, stabilise="scale")
        else:
            queries, keys, size = make(x, projections), make(y, projections), None
        return features.linear_attention(queries, keys, z, causal=True, block=4, scale=size)

    check_gradients(call, [*RNG.standard_normal((3, 6, 3)) / 2.0, RNG.standard_normal((4, 3))])
