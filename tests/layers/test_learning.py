"""What the module learns: factors and a temperature that stay positive, and the Rope that they make."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import library

import rfrope

torch = library("torch").module
import torch_modules  # noqa: E402
from torch_modules import LEARNED, made  # noqa: E402

from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding  # noqa: E402

ROPE = rfrope.Rope(rfrope.geometric(4), attention_factor=1.25, context=64, source={"author": "me"})
SETS = rfrope.Rope(np.geomspace(0.01, 1.0, 8).reshape(2, 4, 1))
DEALT = rfrope.Rope(rfrope.geometric(4), sections=(2, 1, 1))
POLAR = rfrope.Rope(rfrope.geometric(8), polar=True)
BOTH = ("factors", "temperature")


def features(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, heads, 5, 8, generator=generator, dtype=dtype).requires_grad_() for heads in (4, 2)]


def learned(rope, learnable=BOTH):
    """A module whose parameters are no longer where they start."""
    module = (PolarEmbedding if rope.polar else RotaryEmbedding)(rope, learnable)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.linspace(-0.4, 0.3, parameter.numel(), dtype=parameter.dtype).reshape(parameter.shape)
    return module


def places(rope):
    far = torch.arange(5) + 2**33
    return torch.stack([far, -far, far // 3], -1) if rope.sections else far


@pytest.mark.parametrize("rope", [ROPE, SETS, DEALT, POLAR], ids=["one", "sets", "sections", "polar"])
def test_the_rope_of_what_was_learned_turns_as_the_module_does(rope):
    module, (q, k) = learned(rope), features()
    made = type(module)(module.rope)
    for found, wanted in zip(module(q, k, places(rope)), made(q, k, places(rope)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)  # phases of 2**33 positions
    assert module.rope.attention_factor == pytest.approx(
        rope.attention_factor * math.exp(module.log_temperature.item() / 2), rel=1e-15
    )
    ratio = np.asarray(module.rope.frequencies) / np.asarray(rope.frequencies)
    np.testing.assert_allclose(ratio, np.exp(module.log_factors.detach().numpy()), rtol=1e-14)


def test_the_rope_says_what_was_learned_and_from_what():
    start = rfrope.scaling.yarn(ROPE, factor=2.0, original_max_position_embeddings=64)
    module = learned(start)
    yarn, step = module.rope.source.scaled_by
    assert yarn == start.source.scaled_by[0]
    assert step["scheme"] == "learned"
    assert step["learned"] == [*BOTH]
    assert step["temperature"] == pytest.approx(math.exp(module.log_temperature.item()))
    assert module.rope.source.extra == {"author": "me"}
    assert module.start is start
    assert (module.rope.context, module.rope.pairing) == (start.context, "half")
    for nothing in (RotaryEmbedding(ROPE), RotaryEmbedding(ROPE, "phases")):
        assert nothing.rope is nothing.start is ROPE


@pytest.mark.parametrize("kind", [RotaryEmbedding, PolarEmbedding])
def test_a_log_temperature_multiplies_scores_by_its_exponential(kind):
    rope = POLAR if kind is PolarEmbedding else ROPE
    module, start, (q, k) = kind(rope, "temperature"), kind(rope), features()
    scores = [(a @ b.repeat_interleave(2, 1).mT).detach() for a, b in (module(q, k), start(q, k))]
    torch.testing.assert_close(*scores, rtol=0, atol=0)
    with torch.no_grad():
        module.log_temperature.fill_(0.7)
    q_turned, k_turned = module(q, k)
    found = q_turned @ k_turned.repeat_interleave(2, 1).mT
    torch.testing.assert_close(found.detach(), scores[1] * math.exp(0.7), rtol=1e-12, atol=1e-12)
    assert float((q_turned.norm() / start(q, k)[0].norm()).detach()) == pytest.approx(math.exp(0.35))
    found.sum().backward()
    assert float(module.log_temperature.grad) == pytest.approx(float(found.detach().sum()), rel=1e-10)


@pytest.mark.parametrize("kind", LEARNED)
def test_gradients_are_those_of_the_functions(kind):
    module = made(kind)
    if module.start.polar and module.phases is not None:
        module.phases.data.clamp_(max=-0.01)  # beyond a bound they are not those of a clamp
    q, k = (torch_modules.features(2, n, 5, 32, dtype=torch.float64, seed=n).requires_grad_() for n in (4, 2))
    options, at = torch_modules.placed(module, "after a cache")
    inputs = [q, k, *module.parameters()]
    both = module(q, k, **options), torch_modules.by_functions(module, q, k, at)
    found = [torch.autograd.grad(sum(x.pow(3).sum() for x in turned), inputs) for turned in both]
    for one, wanted in zip(*found, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-8, atol=1e-8)
        assert float(wanted.abs().sum()) > 0.0


def test_states_and_starts():
    module = learned(ROPE)
    assert list(module.state_dict()) == ["log_factors", "log_temperature"]
    other = RotaryEmbedding(ROPE, BOTH)
    assert (other.log_factors.abs().sum() + other.log_temperature.abs()).item() == 0.0
    other.load_state_dict(module.state_dict())
    np.testing.assert_array_equal(other.rope.frequencies, module.rope.frequencies)
    other.reset_parameters()
    np.testing.assert_array_equal(other.rope.frequencies, ROPE.frequencies)
    with torch.device("meta"):
        empty = RotaryEmbedding(ROPE, BOTH)
    np.testing.assert_array_equal(empty.to_empty(device="cpu").rope.frequencies, ROPE.frequencies)
    assert "learnable=factors and temperature" in repr(module)
    narrow = RotaryEmbedding(ROPE.frequencies.astype(np.float32), BOTH)
    assert narrow.log_temperature.dtype == torch.float32
    assert narrow.rope.frequencies.dtype == np.float32


def test_one_module_or_its_parameters_may_serve_all_layers():
    first, second = RotaryEmbedding(ROPE, BOTH), RotaryEmbedding(ROPE, BOTH)
    second.log_factors, second.log_temperature = first.log_factors, first.log_temperature
    q, k = features()
    sum(x.pow(2).sum() * w.sum() for one in (first, second) for x, w in zip(one(q, k), (q, k), strict=True)).backward()
    assert second.log_factors.grad is first.log_factors.grad
    assert len({*torch.nn.ModuleList([first, second]).parameters()}) == 2
