"""Small tensors with gradients are turned at once, as one node whose gradients are those of the operators."""

import functools
import itertools
from contextlib import nullcontext

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope._core import dispatch
from rfrope.rotation import turning

torch = library("torch").module
recording = dispatch.find(dispatch.TORCH_RECORDING)
if recording is None or turning.load_fast_path() is None:
    pytest.skip("small tensors are turned at once by compiled loops, which need Numba", allow_module_level=True)

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from rfrope.layers import turning as layers  # noqa: E402
from rfrope.layers.torch import RotaryEmbedding  # noqa: E402

OMEGA = rfrope.geometric(4)
NODE = "_RecordedBackward"


def features(*shape, dtype=torch.float64, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_()


def node(x):
    return type(x.grad_fn).__name__


def by_operators(function):
    """Make a call without this module."""
    find = dispatch.find
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "find", lambda one: None if one == dispatch.TORCH_RECORDING else find(one))
        patch.setattr(layers, "_RECORDING", None)
        return function()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pairings", list(itertools.product(("half", "interleaved"), repeat=2)), ids=" to ".join)
def test_values_and_gradients_are_those_of_operators(pairings, dtype):
    at = torch.arange(100_000, 100_005)
    for width, scale, inverse in ((8, 1.0, False), (12, 1.25, True)):
        options = dict(pairing=pairings[0], out_pairing=pairings[1], scale=scale, inverse=inverse)
        x, g = features(2, 5, width, dtype=dtype), features(2, 5, width, dtype=dtype, seed=1).detach()
        call = functools.partial(rfrope.rotate, x, at, OMEGA, **options)
        found, wanted = call(), by_operators(call)
        assert node(found) == NODE != node(wanted)
        assert torch.equal(found, wanted)
        assert torch.equal(*(torch.autograd.grad(turned, x, g)[0] for turned in (found, wanted)))


@pytest.mark.parametrize("positions", [3, np.arange(4), torch.arange(4), torch.arange(4.0)], ids=str)
@pytest.mark.parametrize("of_rope", [False, True])
def test_gradients_of_gradients(of_rope, positions):
    x, rope = features(2, 4, 10), rfrope.Rope(OMEGA, pairing="interleaved", attention_factor=1.5)
    scaled = dict(pairing="interleaved", scale=1.5)

    def call(x):
        return rope.rotate(x, positions) if of_rope else rfrope.rotate(x, positions, OMEGA, **scaled)

    assert node(call(x)) == NODE
    assert torch.autograd.gradcheck(call, x)
    assert torch.autograd.gradgradcheck(call, x)


@pytest.mark.parametrize("sets", [None, 2])
@pytest.mark.parametrize("layout", ["bhtd", "bthd"])
def test_queries_and_keys_of_a_module(layout, sets):
    omega = OMEGA if sets is None else np.stack([OMEGA, OMEGA / 3.0])[..., None]
    module = RotaryEmbedding(rfrope.Rope(omega, attention_factor=1.5), layout=layout)
    q, k = features(2, 4, 5, 8), features(2, 2, 5, 8, seed=1)
    at = torch.arange(5)[None] + torch.tensor([[0], [70_000]])

    def call(q, k):
        q, k = (x.transpose(1, 2) if layout == "bthd" else x for x in (q, k))
        return module(q, k, at, offset=3)

    found = call(q, k)
    assert NODE in {node(found[0]), type(found[0].grad_fn.next_functions[0][0]).__name__}
    wanted = by_operators(lambda: call(q, k))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
        gradients = [torch.autograd.grad(x.square().sum(), (q, k), allow_unused=True) for x in (one, other)]
        for a, b in zip(*gradients, strict=True):
            assert b is None or torch.equal(a, b)
    assert torch.autograd.gradcheck(call, (q, k))
    assert torch.autograd.gradgradcheck(call, (q, k), fast_mode=True)


def test_what_needs_no_gradient_gets_none():
    module, q, k = RotaryEmbedding(OMEGA), features(1, 2, 3, 8), features(1, 2, 3, 8).detach()
    of_q, of_k = module(q, k)
    assert (of_q.requires_grad, of_k.requires_grad) == (True, False)
    of_q.sum().backward()
    assert q.grad.abs().sum() > 0
    x, y = features(1, 2, 3, 8), features(1, 2, 3, 8)
    assert torch.autograd.grad(module(x, y)[1].sum(), (x, y), allow_unused=True)[0] is None
    with torch.no_grad():
        assert not module(q, k)[0].requires_grad
        assert not rfrope.rotate(q, 3, OMEGA).requires_grad


@pytest.mark.parametrize("make", [np.array, lambda values: torch.from_numpy(np.array(values))])
def test_numbers_that_change_before_the_gradient_is_asked_for(make):
    x, positions, omega = features(3, 8), make([5, 6, 7]), make(OMEGA)
    module, q, at = RotaryEmbedding(OMEGA), features(1, 1, 3, 8), torch.tensor([5, 6, 7])
    wanted = torch.autograd.grad(rfrope.rotate(x, positions, omega).square().sum(), x)[0]
    turned, (of_q, _) = rfrope.rotate(x, positions, omega), module(q, q, at)
    want = torch.autograd.grad(module(q, q, at)[0].sum(), q)[0]
    for numbers in (positions, omega, at):
        numbers *= 3
    assert torch.equal(torch.autograd.grad(turned.square().sum(), x)[0], wanted)
    assert torch.equal(torch.autograd.grad(of_q.sum(), q)[0], want)


def test_gradients_of_any_layout():
    x, g = features(2, 3, 5, 8), features(2, 3, 5, 8, seed=1).detach()
    turned, (of_q, _) = rfrope.rotate(x, np.arange(5), OMEGA), RotaryEmbedding(OMEGA)(x, x)
    wanted = torch.autograd.grad(turned, x, g, retain_graph=True)[0]
    laid = g, g.transpose(1, 2).contiguous().transpose(1, 2), g.mT.contiguous().mT
    for one in laid:
        for made in (turned, of_q):
            assert torch.equal(torch.autograd.grad(made, x, one, retain_graph=True)[0], wanted)
    repeated = g[..., :1].expand(x.shape)
    for made in (turned, of_q):
        found = [torch.autograd.grad(made, x, one, retain_graph=True)[0] for one in (repeated, repeated.contiguous())]
        assert torch.equal(*found)
    batched = torch.autograd.grad(turned, x, torch.stack([g, 2.0 * g]), is_grads_batched=True)[0]
    torch.testing.assert_close(batched, torch.stack([wanted, 2.0 * wanted]))


def test_a_checkpoint_and_two_backward_passes():
    def call(x):
        return rfrope.rotate(x, np.arange(5), OMEGA).square().sum()

    x = features(2, 3, 5, 8)
    wanted = torch.autograd.grad(call(x), x)[0]
    kept = torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False)
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(kept, x, retain_graph=True)[0], wanted)


LEFT = {
    "large": lambda x, p, w: rfrope.rotate(features(2**15, 128), np.arange(2**15), rfrope.geometric(64)),
    "learned frequencies": lambda x, p, w: rfrope.rotate(x, p, w.clone().requires_grad_()),
    "learned positions": lambda x, p, w: rfrope.rotate(x, p.clone().requires_grad_(), w),
    "a shift": lambda x, p, w: rfrope.rotate(x, p, w, shift=w),
    "a list": lambda x, p, w: rfrope.rotate(x, [0, 1, 2], w),
    "a scale without an inverse": lambda x, p, w: rfrope.rotate(x, p, w, scale=1e-310),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_the_operators(name):
    turned = LEFT[name](features(3, 8), torch.arange(3.0), torch.from_numpy(OMEGA))
    assert "rfrope_turn" in node(turned)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch about its own use of torch.jit
def test_transforms_and_forward_mode_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(recording, "record", lambda *given: pytest.fail("recorded"))
    x, p, w = features(3, 8), torch.arange(3), torch.from_numpy(OMEGA)

    def call(x):
        return rfrope.rotate(x, p, w).square().sum()

    plain = x.detach()
    torch.testing.assert_close(torch.func.grad(call)(plain), 2.0 * plain)
    mapped = torch.func.vmap(lambda x: rfrope.rotate(x, p, w))(plain[None])[0]
    torch.testing.assert_close(mapped, rfrope.rotate(plain, p, w))
    torch.testing.assert_close(torch.func.jvp(call, (plain,), (plain,))[1], 2.0 * plain.square().sum())


@pytest.mark.parametrize("gradient", [False, True])
def test_modes_that_look_at_operators_see_one(gradient):
    """As tracers and counters are; fake tensors have no memory to write to."""
    module, x = RotaryEmbedding(OMEGA), features(1, 2, 3, 8).requires_grad_(gradient)
    other = features(1, 2, 3, 8, seed=1)
    traced = make_fx(lambda x: module(x, x)[0])(x)
    torch.testing.assert_close(traced(other), module(other, other)[0])
    with pytest.raises(RuntimeError, match="tracing"):  # positions are looked at
        make_fx(lambda x: rfrope.rotate(x, torch.arange(3), OMEGA))(x)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert module(x, x)[0].shape == x.shape


@pytest.mark.filterwarnings("ignore")  # the compiler's own warnings
def test_compiled_gradients():
    from torch._dynamo import compiled_autograd  # slow to import

    module, found = RotaryEmbedding(rfrope.Rope(OMEGA, attention_factor=1.3)), []
    for graph in (False, True):
        q, k = features(2, 4, 3, 8), features(2, 2, 3, 8, seed=1)
        a, b = module(q, k)
        total = (a[:, :2] * b).sum()
        with compiled_autograd._enable(torch.compile(backend="eager")) if graph else nullcontext():
            total.backward()
        found.append((q.grad, k.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
