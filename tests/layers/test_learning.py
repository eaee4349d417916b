"""What the module learns: factors and a temperature that stay positive, and the Rope that they make."""

import copy
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


SAME = ("loaded", "copied", "itself"), ("empty", "reset", "fresh")


@pytest.mark.parametrize("kind", LEARNED)
def test_states_copies_and_starts(kind):
    module, kept = made(kind), {}
    new = lambda: type(module)(module.start, **torch_modules.KINDS[kind][1])  # noqa: E731
    with torch.device("meta"):
        kept["empty"] = new()
    kept |= {"loaded": new(), "reset": copy.deepcopy(module), "copied": copy.deepcopy(module), "fresh": new()}
    kept["loaded"].load_state_dict(module.state_dict())
    kept["empty"].to_empty(device="cpu")
    kept["reset"].reset_parameters()
    options, _ = torch_modules.placed(module, "after a cache")
    q, k = (torch_modules.features(2, n, 5, 32, seed=n) for n in (4, 2))
    (*moved, other), (*anew, start) = ([kept.get(name, module)(q, k, **options) for name in names] for names in SAME)
    assert all(torch.equal(*pair) for one in moved for pair in zip(one, other, strict=True))
    assert all(torch.equal(*pair) for one in anew for pair in zip(one, start, strict=True))
    assert not torch.equal(start[1], other[1])


def test_parameters_are_named_and_have_the_dtype_of_the_rope():
    assert list(learned(ROPE).state_dict()) == ["log_factors", "log_temperature"]
    assert "learnable=factors and temperature" in repr(learned(ROPE))
    polar = PolarEmbedding(POLAR, ("factors", "phases"), heads=2)
    assert all(each in repr(polar) for each in ("polar=True", "learnable=factors and phases", "heads=2"))
    np.testing.assert_array_equal(RotaryEmbedding(ROPE, BOTH).rope.frequencies, ROPE.frequencies)
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


# -- a kernel that is learned ------------------------------------------------------------------------------------------

KERNEL = rfrope.design("matern(nu=1.5, scale=8)", head_dim=8, context=64, heads=2, rng=0)
LADDER = rfrope.Rope(rfrope.geometric(4))


@pytest.mark.parametrize("rope", [KERNEL, LADDER, DEALT], ids=["sets", "ladder", "sections"])
def test_a_learned_kernel_is_the_same_to_the_bit_wherever_it_goes(rope, tmp_path):
    module, (q, k) = learned(rope, ("kernel", "temperature")), features()
    at = places(rope)
    wanted = [x.detach() for x in module(q, k, at)]
    torch.save(module, tmp_path / "whole.pt")
    rfrope.save(tmp_path / "rope.safetensors", module.rope)
    again = RotaryEmbedding(rfrope.load(tmp_path / "rope.safetensors"), "kernel")
    for one, other in zip(again._law.parameters.values(), module.parameters(), strict=False):
        np.testing.assert_allclose(one, other.detach(), rtol=1e-13, atol=1e-14)
    for other in (
        torch.load(tmp_path / "whole.pt", weights_only=False),
        torch.compile(module, fullgraph=True, backend="eager"),
        torch.export.export(module, (q, k, at)).module(),
    ):
        assert all(map(torch.equal, other(q, k, at), wanted))
    with torch.no_grad():  # the Rope, as a module that learns nothing turns by it
        for fixed in (module.eval(), RotaryEmbedding(module.rope)):
            for one, other in zip(fixed(q.detach(), k.detach(), at), wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-6 if rope.sections is None else 1e-5)


def test_the_rope_says_which_kernel_was_learned_and_from_which():
    module = learned(KERNEL, "kernel")
    assert [*module.state_dict()] == ["log_nu", "log_scale"]
    kernels, source = module.kernel, module.rope.source
    assert source.kernel == tuple(map(repr, kernels))
    assert kernels[0].nu == pytest.approx(math.exp(module.log_nu[0].item()), rel=1e-14)
    assert (source.error, source.design) == ({}, "stratified")
    assert source.scaled_by[-1] == {"scheme": "learned", "learned": ["kernel"], "began": KERNEL.source.kernel}
    twice = learned(module.rope, "kernel")
    assert twice.rope.source.scaled_by[-1]["began"] == KERNEL.source.kernel


def test_frequencies_of_a_kernel_are_made_once_for_a_step(monkeypatch):
    LearnedKernel = rfrope.designs.LearnedKernel
    made, tabulate = [], LearnedKernel.tabulate
    monkeypatch.setattr(LearnedKernel, "tabulate", lambda *given: made.append(1) or tabulate(*given))
    module, (q, k) = learned(KERNEL, "kernel"), features()
    for _ in range(3):
        sum(x.square().sum() + x.sum() for x in module(q, k)).backward()  # accumulated
    assert len(made) == 1
    with torch.no_grad():
        module.log_scale += 0.1
    module(q, k)
    module.log_scale.data.add_(0.1)
    module(q, k)
    assert len(made) == 3


def test_evaluation_follows_what_is_written_later_and_learns_where_gradients_are_wanted():
    module, (q, k) = learned(KERNEL, "kernel").eval(), features()
    module(q, k)[0].sum().backward()
    assert module.log_nu.grad.abs().sum() > 0.0
    with torch.no_grad():
        first = module(q, k)[0]
        module.log_scale.data.add_(0.3)
        second = module(q, k)[0]
        torch.testing.assert_close(second, RotaryEmbedding(module.rope)(q, k)[0], rtol=0, atol=0)
        assert not torch.equal(first, second)
        module.load_state_dict(learned(KERNEL, "kernel").state_dict())
        assert torch.equal(module(q, k)[0], first)
    assert [*module.modules()] == [module]


@pytest.mark.parametrize("compiled", [False, True])
def test_evaluation_follows_a_step_of_an_optimiser_and_parameters_in_place_of_its_own(compiled):
    module, x = learned(LADDER, "kernel").eval(), features()[0].detach()
    call = torch.compile(module, backend="eager") if compiled else module
    swap = lambda own: torch.func.functional_call(module, own, (x, x))[0]  # noqa: E731
    swap = torch.compile(swap, backend="eager") if compiled else swap
    with torch.no_grad():
        call(x, x)
    module(x, x)[0][..., 0].sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    with torch.no_grad():
        torch.testing.assert_close(call(x, x)[0], RotaryEmbedding(module.rope)(x, x)[0], rtol=1e-12, atol=1e-12)
        other = learned(LADDER, "kernel")
        torch.testing.assert_close(swap(dict(other.named_parameters())), other(x, x)[0], rtol=1e-12, atol=1e-12)
        own = {name: value + 0.1 for name, value in other.named_parameters()}
        other.load_state_dict(own)
        torch.testing.assert_close(swap(own), other(x, x)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rope", [LADDER, KERNEL], ids=["one", "sets"])
def test_second_derivatives_and_maps_over_parameters(rope):
    module, x = learned(rope, "kernel"), features()[1].detach()
    names, own = zip(*module.named_parameters(), strict=True)
    call = lambda *values: torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x, x))[0].sum()  # noqa: E731
    assert torch.autograd.gradgradcheck(call, own)
    assert torch.autograd.gradgradcheck(lambda one: call(one, *(p.detach() for p in own[1:])), own[:1])  # others stay
    if rope is not LADDER:  # quantiles by nu are SciPy's
        with pytest.raises(TypeError, match=r"^nu or alpha has no values, as in transforms of torch\.func; expected"):
            torch.func.grad(call)(*(p.detach() for p in own))
    else:
        found = torch.vmap(torch.func.grad(call))(*(torch.stack([p.detach(), p.detach() + 0.1]) for p in own))
        torch.testing.assert_close(found[0], torch.autograd.grad(call(*own), own[0])[0])


@pytest.mark.parametrize("wrong", [1.0, 1.1], ids=["right", "ten percent off"])
def test_a_kernel_learned_by_attention_as_a_smoother_comes_back_within_its_standard_error(wrong):
    """Values are weighed by ``softmax(6 Phi(lag))``, with noise; from ones, blocks add up to the mean kernel."""
    tokens, noise, blocks, z = 48, 0.3, 32, []
    truth, lags = rfrope.kernel("gaussian", scale=5.0 * wrong), np.arange(tokens)[:, None] - np.arange(tokens)
    weights = torch.softmax(6.0 * torch.from_numpy(truth.phi(lags)), -1)
    rope = rfrope.design("gaussian(scale=3)", head_dim=2 * blocks, context=tokens, design="quantile")
    ones = torch.ones(1, 1, tokens, 2 * blocks, dtype=torch.float64) * (3.0 / blocks) ** 0.5
    for seed in range(20):
        module, generator = RotaryEmbedding(rope, "kernel"), torch.Generator().manual_seed(seed)
        values, error = torch.randn(2, tokens, 8, generator=generator, dtype=torch.float64)
        given = weights @ values + noise * error
        for _ in range(6):  # Gauss-Newton
            (slope,) = torch.autograd.grad(
                0.5 * (smoothed(module, ones, values) - given).square().sum(), module.log_scale
            )
            ends = [smoothed(module, ones, values, module.log_scale.detach() + step) for step in (-1e-4, 1e-4)]
            information = ((ends[1] - ends[0]) / 2e-4).square().sum().detach()
            module.log_scale.data.sub_(slope / information)
        z.append((module.log_scale.item() - math.log(5.0)) * information.sqrt().item() / noise)
    misses = abs(np.mean(z)) * 20**0.5, np.sum(np.square(z))
    assert (misses[0] < 4.9 and misses[1] < 73.0) == (wrong == 1.0)  # each by chance once in a million


def smoothed(module, ones, values, log_scale=None):
    own = {} if log_scale is None else {"log_scale": log_scale}
    q, k = torch.func.functional_call(module, own, (ones, ones))
    return torch.softmax(q[0, 0] @ k[0, 0].T, -1) @ values
