"""The polar module for PyTorch: against the formula, through casts, caches, layouts and graphs, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope import Rope

torch = library("torch").module
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding  # noqa: E402

WIDTH, TOKENS = 12, 7
SETS = rfrope.design("gaussian", head_dim=WIDTH, context=64, heads=2, ladder=(2.0, 16.0), polar=True, rng=0)
ONE = rfrope.design("cauchy(scale=8)", head_dim=WIDTH, context=64, polar=True, rng=0)
PLANE = rfrope.design("gaussian(scale=8, ndim=2)", head_dim=WIDTH, context=64, polar=True, rng=0)


def features(heads, tokens=TOKENS, dtype=torch.float64, seed=0, batch=2):
    return torch.randn((batch, heads, tokens, WIDTH), generator=torch.Generator().manual_seed(seed)).to(dtype)


def formula(x, positions, omega, delta=0.0):
    """Magnitudes and directions as PoPE writes them, in float64: frequencies ``(D,)`` or ``(heads, D)``."""
    m = torch.nn.functional.softplus(x.double(), threshold=60)
    u = positions.double()[:, None] * omega[..., None, :] + delta
    return torch.cat([m * u.cos(), m * u.sin()], -1)


def frequencies(rope, heads):
    omega = torch.tensor(np.asarray(rope.frequencies))
    return omega if omega.ndim == 1 else omega[..., 0].repeat_interleave(heads // len(omega), 0)


@pytest.mark.parametrize("rope", [ONE, SETS], ids=["one set", "a set for each head"])
@pytest.mark.parametrize("layout", ["bhtd", "bthd"])
@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_it_is_the_formula(rope, layout, tokens):
    q, k, at = features(4, tokens), features(2, tokens, seed=1), torch.arange(tokens) + 1000
    polar = PolarEmbedding(rope, layout=layout)
    given = (q, k) if layout == "bhtd" else (q.transpose(1, 2), k.transpose(1, 2))
    for call in (polar, torch.compile(polar, backend="eager", fullgraph=True)):
        found = call(*given, offset=1000)
        for x, y in zip((q, k), found, strict=True):
            y = y if layout == "bhtd" else y.transpose(1, 2)
            torch.testing.assert_close(y, formula(x, at, frequencies(rope, x.shape[1])), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("rope", "heads"), [(ONE, None), (ONE, 2), (SETS, None)], ids=["all", "heads", "sets"])
def test_phases_are_a_bias_of_keys_from_minus_two_pi_to_zero(rope, heads):
    polar = PolarEmbedding(rope, "phases", heads=heads)
    shape = (WIDTH,) if rope is ONE and heads is None else (2, WIDTH)
    assert polar.phases.shape == shape
    assert not polar.phases.any()
    with torch.no_grad():
        polar.phases.copy_(torch.linspace(-8.0, 1.0, math.prod(shape)).reshape(shape))
    q, k, at = features(4), features(2, seed=1), torch.arange(TOKENS)
    turned_q, turned_k = polar(q, k)
    delta = polar.phases.detach().clamp(-2.0 * math.pi, 0.0)
    assert not torch.equal(delta, polar.phases)
    delta = delta if delta.ndim == 1 else delta[:, None]
    torch.testing.assert_close(turned_q, formula(q, at, frequencies(rope, 4)), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(turned_k, formula(k, at, frequencies(rope, 2), delta), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(polar.rotate(k, keys=True), turned_k)
    wrong = formula(k, at, frequencies(rope, 2), -delta)
    assert (turned_k - wrong).abs().max() > 0.1  # the check sees the sign of the bias
    turned_k.square().mean().backward()  # of squares nothing depends on phases
    assert polar.phases.grad.abs().max() < 1e-12
    polar.phases.grad = None
    (polar(q, k)[1] ** 3).sum().backward()
    at_bound = polar.phases.detach().clamp(-2.0 * math.pi, 0.0).requires_grad_()
    bias = at_bound if at_bound.ndim == 1 else at_bound[:, None]
    (formula(k, at, frequencies(rope, 2), bias) ** 3).sum().backward()
    below, above, whole = polar.phases < -2.0 * math.pi, polar.phases > 0.0, at_bound.grad
    outwards = (below & (whole > 0.0)) | (above & (whole < 0.0))  # a step against the gradient leads further away
    assert (below | above).any()
    torch.testing.assert_close(polar.phases.grad, torch.where(outwards, 0.0, whole), rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("at", [0.0, -1.0, 0.5, -7.0])
def test_phases_have_derivatives_of_both_modes(at):
    polar, q, k = PolarEmbedding(ONE, "phases"), features(2, 3, batch=1), features(1, 3, batch=1, seed=1)
    omega, places = torch.tensor(np.asarray(ONE.frequencies)), torch.arange(3)

    def loss(turned_q, turned_k):
        return (turned_q @ turned_k.mT).square().sum()

    def learned(phases):
        return loss(*torch.func.functional_call(polar, {"phases": phases}, (q, k)))

    def written(phases):
        delta = phases.clamp(-2.0 * math.pi, 0.0)
        return loss(formula(q, places, omega), formula(k, places, omega, delta))

    start, step = torch.full((WIDTH,), at, dtype=torch.float64), torch.linspace(-1.0, 1.0, WIDTH, dtype=torch.float64)
    for found, wanted in zip(*(torch.func.jvp(f, (start,), (step,)) for f in (learned, written)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    hessian, gradient = torch.func.hessian(learned)(start), torch.func.grad(learned)(start)
    clamped = start.clamp(-2.0 * math.pi, 0.0)
    wanted = torch.func.hessian(written)(clamped)
    beyond = start != clamped  # rows of what the gradient passes; forward mode has a clamp in it
    torch.testing.assert_close(hessian, torch.where(beyond[:, None] | beyond, 0.0, wanted), rtol=1e-8, atol=1e-8)
    assert gradient.any()


def test_scores_are_sums_over_magnitudes():
    polar = PolarEmbedding(ONE, "phases")
    with torch.no_grad():
        polar.phases.uniform_(-6.0, 0.0, generator=torch.Generator().manual_seed(3))
    q, k = features(1, batch=1), features(1, batch=1, seed=1)
    turned = polar(q, k)
    scores = (turned[0] @ turned[1].mT)[0, 0]
    m, n = (torch.nn.functional.softplus(x, threshold=60)[0, 0] for x in (q, k))
    omega, delta = torch.tensor(np.asarray(ONE.frequencies)), polar.phases.detach()
    lags = torch.arange(TOKENS)[None, :] - torch.arange(TOKENS)[:, None]  # key minus query
    wanted = (m[:, None] * n[None] * torch.cos(lags[..., None] * omega + delta)).sum(-1)
    torch.testing.assert_close(scores, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("learnable", ["frequencies", "factors", ("frequencies", "factors", "phases")])
def test_what_is_learned_has_gradients(learnable):
    polar = PolarEmbedding(SETS, learnable)
    names = (learnable,) if isinstance(learnable, str) else learnable
    named = {"factors": "log_factors"}
    assert sorted(name for name, _ in polar.named_parameters()) == sorted(named.get(name, name) for name in names)
    q, k = features(4), features(2, seed=1)
    at = torch.arange(TOKENS)
    (sum(x.pow(3).sum() for x in polar(q, k))).backward()
    omega = torch.tensor(np.asarray(SETS.frequencies))[..., 0].requires_grad_()
    sum(formula(x, at, omega.repeat_interleave(x.shape[1] // 2, 0)).pow(3).sum() for x in (q, k)).backward()
    for name in set(names) - {"phases"}:
        wanted = omega.grad * (omega.detach() if name == "factors" else 1.0)
        torch.testing.assert_close(getattr(polar, named.get(name, name)).grad[..., 0], wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", [RotaryEmbedding, PolarEmbedding])
def test_factors_multiply_frequencies(kind):
    rope = ONE if kind is PolarEmbedding else Rope(np.asarray(ONE.frequencies)[: WIDTH // 2])
    module, scale = kind(rope, "factors"), 1.0 + torch.arange(rope.n_blocks, dtype=torch.float64) / 8.0
    with torch.no_grad():
        module.log_factors.copy_(scale.log())
    stretched = kind(Rope(np.asarray(rope.frequencies) * scale.numpy(), polar=rope.polar))
    q, k = features(2), features(1, seed=1)
    for found, wanted in zip(module(q, k, offset=9), stretched(q, k, offset=9), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("far", [0, 1_000_000])
def test_phases_stay_exact_in_narrow_features_and_after_casts(dtype, far):
    polar = PolarEmbedding(SETS, "phases").to(dtype)
    assert polar.phases.dtype == torch.float64
    x, at = features(2, dtype=dtype), torch.arange(TOKENS) + far
    exact = formula(x, at, frequencies(SETS, 2))
    eps = torch.finfo(dtype).eps
    with torch.autocast("cpu", torch.bfloat16):
        found = polar.rotate(x, offset=far)
    assert found.dtype == dtype
    assert ((found.double() - exact).abs() / exact.abs().amax(-1, keepdim=True)).max() < 1.1 * eps
    if far and dtype == torch.bfloat16:  # as such modules are written it is wrong altogether
        u = at.to(dtype)[:, None] * frequencies(SETS, 2).to(dtype)[:, None]
        naive = torch.nn.functional.softplus(x) * u.cos()
        assert (naive.double() - exact[..., :WIDTH]).abs().max() > 0.5


def test_a_cache_grows_token_by_token():
    polar = PolarEmbedding(SETS)
    q, k = features(4), features(2, seed=1)
    whole = polar(q, k)
    steps = [polar(q[:, :, t : t + 1], k[:, :, t : t + 1], offset=t) for t in range(TOKENS)]
    for i in range(2):
        torch.testing.assert_close(torch.cat([step[i] for step in steps], 2), whole[i])
    ragged = torch.stack([torch.arange(TOKENS), torch.arange(TOKENS) - 2])
    found = polar(q, k, ragged)[0]
    torch.testing.assert_close(found[1], polar(q[1:], k[1:], offset=-2)[0][0])


def test_positions_in_the_plane():
    polar, at = PolarEmbedding(PLANE), torch.stack([torch.arange(TOKENS), 3 - torch.arange(TOKENS)], -1)
    x = features(3)
    m = torch.nn.functional.softplus(x, threshold=60)
    u = at.double() @ torch.tensor(np.asarray(PLANE.frequencies)).mT
    torch.testing.assert_close(polar.rotate(x, at), torch.cat([m * u.cos(), m * u.sin()], -1), rtol=1e-9, atol=1e-9)


def test_states_and_copies():
    polar = PolarEmbedding(ONE, ("factors", "phases"), heads=2)
    with torch.no_grad():
        polar.phases.fill_(-1.0)
        polar.log_factors.fill_(2.0)
    other = PolarEmbedding(ONE, ("factors", "phases"), heads=2)
    other.load_state_dict(polar.state_dict())
    q, k = features(4), features(2, seed=1)
    for one in (other, copy.deepcopy(polar)):
        assert all(torch.equal(a, b) for a, b in zip(one(q, k), polar(q, k), strict=True))
    with torch.device("meta"):
        empty = PolarEmbedding(ONE, ("factors", "phases"), heads=2)
    empty.to_empty(device="cpu")
    fresh = PolarEmbedding(ONE, ("factors", "phases"), heads=2)
    assert all(torch.equal(a, b) for a, b in zip(empty(q, k), fresh(q, k), strict=True))


def test_the_scale_of_scores_gives_normal_contents_the_spread_of_rope():
    rope = rfrope.design("gaussian(scale=1e6)", head_dim=64, context=64, polar=True, rng=0)  # Phi is 1 at these lags
    polar, generator = PolarEmbedding(rope), torch.Generator().manual_seed(0)
    q, k = (torch.randn((1, 1, 20_000, 64), generator=generator, dtype=torch.float64) for _ in range(2))
    turned = polar(q, k, torch.zeros(20_000, dtype=torch.int64))
    scores = polar.score_scale * (turned[0] * turned[1]).sum(-1)
    error = 1.0 / math.sqrt(20_000)
    assert abs(float(scores.std()) - 1.0) < 5.0 * error
    assert abs(float(scores.mean()) - 0.99484 * 8.0) < 5.0 * error
    rotated = RotaryEmbedding(64)(q, k)
    assert abs(float((rotated[0] * rotated[1]).sum(-1).std()) / 8.0 - 1.0) < 5.0 * error


def test_it_prints_what_it_is():
    assert "polar=True" in repr(PolarEmbedding(ONE))
    shown = repr(PolarEmbedding(ONE, ("factors", "phases"), heads=2))
    assert "learnable=factors and phases" in shown
    assert "heads=2" in shown


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolarEmbedding(Rope([1.0, 0.5])), "rope is not polar"),
        (lambda: RotaryEmbedding(ONE), "rope is polar; expected rfrope.layers.torch.PolarEmbedding"),
        (lambda: PolarEmbedding(SETS, "phases", heads=2), "heads is 2, but the module has 2 sets"),
        (lambda: PolarEmbedding(ONE, heads=2), "heads is 2, but the module has no phases"),
        (lambda: PolarEmbedding(ONE, "bias"), "learnable is 'bias'"),
        (lambda: PolarEmbedding(0), "rope is 0"),
        (
            lambda: PolarEmbedding(ONE)(features(2)[..., :-2], features(2)[..., :-2]),
            "rotate_polar takes one frequency per magnitude",
        ),
        (lambda: PolarEmbedding(ONE, "phases", heads=3)(features(2), features(2)), "k has 2 heads"),
        (lambda: PolarEmbedding(ONE, "phases", heads=4).rotate(features(1), keys=True), "heads is 4, but x has 1"),
        (
            lambda: PolarEmbedding(ONE, "frequencies").load_state_dict({"inv_freq": torch.ones(6)}),
            "inv_freq .* 6 frequencies",
        ),
        (lambda: PolarEmbedding(SETS)(features(4), features(4)), "k has 4 heads"),
        (lambda: PolarEmbedding(ONE)(features(2).long(), features(2).long()), "q has dtype int64"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("rope", [ONE, SETS], ids=["one set", "a set for each head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_small_calls_run_one_loop_with_the_same_bits(rope, dtype, pairing):
    rope = dataclasses.replace(rope, pairing=pairing, attention_factor=1.25)
    polar, slow = PolarEmbedding(rope), PolarEmbedding(rope)
    if polar._backend is None:
        pytest.skip("compiled loops are off")
    slow._backend = None
    for q, k in (
        (features(4, 1, dtype), features(2, 1, dtype, seed=1)),
        (features(4, 3, dtype), features(2, 3, dtype)),
    ):
        for at in ({"offset": 1000}, {"positions": torch.arange(q.shape[2]) * 7}):
            assert polar.turn_at_once(q, k, at.get("positions"), at.get("offset", 0)) is not None
            for found, wanted in zip(polar(q, k, **at), slow(q, k, **at), strict=True):
                assert found.shape == (*q.shape[:1], found.shape[1], q.shape[2], 2 * WIDTH)
                assert torch.equal(found, wanted)
        turned, k_turned = polar(q.transpose(0, 1).contiguous().transpose(0, 1), k)
        assert torch.equal(turned, slow(q, k)[0])
        assert torch.equal(k_turned, slow(q, k)[1])
    q, k = features(4, 1, dtype).requires_grad_(), features(2, 1, dtype)
    grad, wanted = (torch.autograd.grad(one(q, k, offset=5)[0].square().sum(), q)[0] for one in (polar, slow))
    assert torch.equal(grad, wanted)


@pytest.mark.parametrize("kind", ["RotaryEmbedding", "PolarEmbedding"])
def test_states_of_the_other_kind_are_refused_where_shapes_agree(kind, tmp_path):
    made = PolarEmbedding(WIDTH, "both"), RotaryEmbedding(2 * WIDTH, "both")
    one, other = made if kind == "RotaryEmbedding" else made[::-1]
    torch.save(other.state_dict(), tmp_path / "state.pt")
    held = torch.nn.ModuleDict({"a": one})
    given = {f"a.{name}": value for name, value in other.state_dict().items()}
    states = (other.state_dict(), torch.load(tmp_path / "state.pt"))
    pairs = [(one, state) for state in states] + [(held, torch.nn.ModuleDict({"a": other}).state_dict())]
    for module, state in pairs:
        with pytest.raises(ValueError, match=f"frequencies of the state is of a {kind}, and this is"):
            module.load_state_dict(state)
    one.load_state_dict(one.state_dict())
    held.load_state_dict(given)  # without PyTorch's notes nothing says what they are
