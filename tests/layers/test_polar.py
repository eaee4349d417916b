"""The polar module for PyTorch: against the formula, through casts, caches, layouts and graphs, and what it refuses."""

import math

import numpy as np
import pytest
from campaign import sparse
from conftest import library

import rfrope

torch = library("torch").module
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding  # noqa: E402

WIDTH, TOKENS = 12, 7
SETS = rfrope.design("gaussian", head_dim=WIDTH, context=64, heads=2, ladder=(2.0, 16.0), polar=True, rng=0)
ONE = rfrope.design("cauchy(scale=8)", head_dim=WIDTH, context=64, polar=True, rng=0)


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
    bounded = polar.phases.detach().clamp(-2.0 * math.pi, 0.0).requires_grad_()
    delta = bounded if bounded.ndim == 1 else bounded[:, None]
    wanted = formula(k, at, frequencies(rope, 2), delta)
    torch.testing.assert_close(turned_q, formula(q, at, frequencies(rope, 4)), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(turned_k, wanted, rtol=1e-10, atol=1e-10)
    (whole,) = torch.autograd.grad((wanted**3).sum(), bounded)
    (found,) = torch.autograd.grad((turned_k**3).sum(), polar.phases)
    below, above = polar.phases < -2.0 * math.pi, polar.phases > 0.0
    outwards = (below & (whole > 0.0)) | (above & (whole < 0.0))  # a step against the gradient leads further away
    assert (below | above).any()
    torch.testing.assert_close(found, torch.where(outwards, 0.0, whole), rtol=1e-8, atol=1e-8)


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


@pytest.mark.parametrize("rope", [ONE, SETS], ids=["one set", "a set for each head"])
@pytest.mark.parametrize(
    "dtype", sparse((torch.float32, torch.bfloat16, torch.float64), lambda one: one == torch.float32)
)
def test_small_calls_run_one_loop_whose_gradients_have_the_same_bits(rope, dtype):
    polar, slow = PolarEmbedding(rope), PolarEmbedding(rope)
    if polar._backend is None:
        pytest.skip("compiled loops are off")
    slow._backend = None
    for tokens in (1, 3):
        q, k = features(4, tokens, dtype), features(2, tokens, dtype, seed=1)
        assert polar.turn_at_once(q, k, None, 1000) is not None
        assert polar.turn_at_once(q, k, torch.arange(tokens) * 7, 0) is not None
    q.requires_grad_()
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
