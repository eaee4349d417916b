"""The module on a device where one launch turns queries and keys, against itself by the generic functions."""

import copy
import functools
import pickle

import numpy as np
import pytest
import triton_device
from campaign import sparse
from triton_device import assert_rounded

import rfrope

if triton_device.NOT_COUNTED:
    pytest.skip(triton_device.NOT_COUNTED, allow_module_level=True)

import torch

from rfrope._core import array, dispatch
from rfrope.layers.launching import LaunchingModule
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding
from rfrope.rotation import turning

ROPE = rfrope.Rope(rfrope.geometric(4))
ERROR = 6e-7
MODULES = {
    "known": lambda: RotaryEmbedding(ROPE),
    "tokens before heads": lambda: RotaryEmbedding(ROPE, layout="bthd"),
    "part of a head": lambda: RotaryEmbedding(ROPE, head_dim=12),
    "interleaved with a factor": lambda: RotaryEmbedding(
        rfrope.Rope(rfrope.geometric(4), pairing="interleaved", attention_factor=1.2)
    ),
    "frequencies and phases": lambda: RotaryEmbedding(ROPE, learnable="both"),
    "factors": lambda: RotaryEmbedding(ROPE, learnable="factors"),
    "factors and temperature": lambda: RotaryEmbedding(ROPE, learnable=("factors", "temperature")),
    "sets": lambda: RotaryEmbedding(rfrope.sample("gaussian(scale=32)", 4, rng=0, heads=2), learnable="both"),
    "polar": lambda: PolarEmbedding(rfrope.Rope(rfrope.geometric(8), polar=True), learnable="phases", heads=2),
}
POSITIONS = {
    "counted": {},
    "counted from 7": {"offset": 7},
    "each cache": {"offset": torch.tensor([3, 2**31])},
    "a tensor as offset": {"offset": torch.tensor(5)},
    "integers": {"positions": torch.tensor([5, -1, 2**31, 0, 99])},
    "whose sum is wider": {"positions": torch.tensor([2**31 - 1, 0, 1, 2, 3], dtype=torch.int32), "offset": 1},
    "floats whose sum is wider": {"positions": torch.tensor([0.3, 0.7, 1.1, 2.9, 3.0]), "offset": 1_000_000},
    "floats and a tensor": {"positions": torch.tensor([0.3, 0.7, 1.1, 2.9, 3.0]), "offset": torch.tensor(10**6)},
    "of each sequence": {
        "positions": torch.tensor([[5, 1, 0, 2, 3], [7, 8, 9, 10, 11]], dtype=torch.int32),
        "offset": 3,
    },
    "small integers": {"positions": torch.arange(5, dtype=torch.int16)},
    "floats": {"positions": torch.tensor([0.5, 1.25, -3.0, 1e4, 7.1])},
    "floats of 64 bits": {"positions": torch.tensor([0.5, 1.25, -3.0, 1e7, 2.0**40 + 0.125], dtype=torch.float64)},
    "floats of each sequence": {
        "positions": torch.tensor([[0.5, 1.25, -3.0, 1e4, 7.1]] * 2),
        "offset": torch.tensor([1, 2]),
    },
}


def features(module, dtype=torch.float32, batch=(2,)):
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (*batch, *((5, heads) if module.layout == "bthd" else (heads, 5)), module.head_dim or 8) for heads in (4, 2)
    ]
    return [(torch.rand(shape, generator=generator) - 0.5).to(dtype).requires_grad_() for shape in shapes]


def results(module, inputs, options):
    turned = module(*inputs, **options)
    gradients = [torch.linspace(-1.0, 1.0, one.numel(), dtype=one.dtype).reshape(one.shape) for one in turned]
    return [*turned, *torch.autograd.grad(turned, [*inputs, *module.parameters()], gradients)]


@pytest.mark.parametrize("name", sparse(MODULES, lambda name: name in ("known", "factors and temperature", "sets")))
@pytest.mark.parametrize("places", POSITIONS)
def test_one_launch_each_way_gives_what_the_generic_functions_do(name, places, monkeypatch):
    module, options = MODULES[name](), POSITIONS[places]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1)) - 0.2
    inputs = features(module)
    exact = results(module, [one.detach().double().requires_grad_() for one in inputs], options)
    triton_device.stand_in(monkeypatch)
    calls = triton_device.recorded(monkeypatch)
    found = results(module, inputs, options)
    assert len(calls) == 2
    for place, (one, other) in enumerate(zip(found, exact, strict=True)):
        assert one.shape == other.shape
        if place < 4:
            assert_rounded(one.detach(), other.detach(), ERROR)
        else:
            torch.testing.assert_close(one, other, rtol=0, atol=2e-6 * float(other.abs().max()))


ELSEWHERE = {  # what takes another way
    "float64": lambda m: m(*features(m, torch.float64)),
    "positions of keys": lambda m: m(*features(m), k_positions=torch.arange(5)),
    "lists": lambda m: m(*features(m), positions=[1, 2, 3, 4, 5]),
    "positions with gradients": lambda m: m(*features(m), positions=torch.rand(5, requires_grad=True)),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_one_launch_does_not_take_is_turned_all_the_same(name, monkeypatch):
    module = MODULES["known"]()
    torch.manual_seed(0)
    exact = ELSEWHERE[name](module)
    triton_device.stand_in(monkeypatch)
    calls = triton_device.recorded(monkeypatch)
    torch.manual_seed(0)
    for one, other in zip(ELSEWHERE[name](module), exact, strict=True):
        torch.testing.assert_close(one, other)
    assert len(calls) != 1


def biased(heads):
    return PolarEmbedding(rfrope.Rope(rfrope.geometric(8), polar=True), learnable="phases", heads=heads)


BAD = {  # how a module is made, and places
    "do not broadcast": (MODULES["known"], {"positions": torch.arange(4)}),
    "q is on device|positions": (MODULES["known"], {"positions": torch.arange(10).reshape(5, 2)}),
    "offset": (MODULES["known"], {"offset": torch.arange(3)}),
    "axes": (lambda: RotaryEmbedding(rfrope.axial(rfrope.geometric(2), rfrope.geometric(2))), {}),
    **{f"heads is {n}, but k has 2 heads": (functools.partial(biased, n), {}) for n in (1, 3, 4)},
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_refused_is_refused_there_too(text, monkeypatch):
    make, options = BAD[text]
    module = make()
    triton_device.stand_in(monkeypatch)
    calls = triton_device.recorded(monkeypatch)
    with pytest.raises((ValueError, TypeError), match=text):
        module(*features(module), **options)
    assert calls == []


FEATURES = {  # queries and keys that one launch takes, but for those of two axes of batches
    "bfloat16": lambda m: features(m, torch.bfloat16),
    "float16": lambda m: features(m, torch.float16),
    "lazily negative": lambda m: [torch.complex(0.0 * x, x).detach().conj().imag for x in features(m)],
    "queries without heads": lambda m: [x[:, :heads] for x, heads in zip(features(m), (0, 2), strict=True)],
    "one of a batch": lambda m: features(m, batch=()),
    "two axes of batches": lambda m: features(m, batch=(2, 3)),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_of_other_kinds_and_shapes(name, monkeypatch):
    module = MODULES["known"]()
    inputs = FEATURES[name](module)
    assert all(one.is_neg() == (name == "lazily negative") for one in inputs)
    with torch.no_grad():
        exact = module(*(one.double() for one in inputs), offset=2**30)
        triton_device.stand_in(monkeypatch)
        calls = triton_device.recorded(monkeypatch)
        found = module(*inputs, offset=2**30)
    for one, other in zip(found, exact, strict=True):
        assert one.shape == other.shape
        assert_rounded(one, other, ERROR)
    assert len(calls) == (name != "two axes of batches")


# -- devices without float64 -------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(monkeypatch):
    """No float64 on the device that tensors of the CPU stand for; launches on it."""
    real, find = array.widest_float, dispatch.find
    monkeypatch.setattr(
        array, "widest_float", lambda xp, device=None: torch.float32 if xp.__name__.endswith("torch") else real(xp)
    )
    triton_device.stand_in(monkeypatch)
    monkeypatch.setattr(dispatch, "find", lambda backend: None if backend.place == "cpu" else find(backend))
    monkeypatch.setattr(dispatch, "_FOUND", {})
    monkeypatch.setattr(turning, "load_fast_path", lambda: None)
    monkeypatch.setattr(LaunchingModule, "_moved", lambda self, name, device: self._copied(name, device))
    return triton_device.recorded(monkeypatch)


FAR = torch.tensor([131_071.5, 2.0**23 - 0.5, -3.25, 1e5 + 0.125, 0.1])


@pytest.mark.filterwarnings("ignore::rfrope._core.angles.PrecisionWarning")  # their bits are what is meant
@pytest.mark.parametrize("name", ["known", "sets", "interleaved with a factor"])
@pytest.mark.parametrize("learns", [False, True])
def test_float_positions_meet_all_bits_of_frequencies(name, learns, narrow):
    """In float32 they would miss by 4e-3 radians: the kernel reads bits; or words, where gradients are recorded."""
    sets = rfrope.Rope(rfrope.sample("gaussian(scale=32)", 4, rng=0, heads=2))
    module = RotaryEmbedding(sets) if name == "sets" else MODULES[name]()
    q, k = features(module)
    with torch.set_grad_enabled(learns):
        found = module(q, k, FAR)
    assert [call["frequencies"].dtype for _, call in narrow] == [] if learns else [torch.uint64]
    omega = module.start.frequencies
    for one, x in zip(found, (q, k), strict=True):
        heads = np.repeat(omega, x.shape[1] // 2, 0) if name == "sets" else omega
        at = FAR.double().numpy()[:, None] if name == "sets" else FAR.double().numpy()
        turned = rfrope.rotate(
            x.detach().double().numpy(), at, heads, pairing=module.start.pairing, scale=module.start.attention_factor
        )
        torch.testing.assert_close(one.detach().double(), torch.from_numpy(turned), rtol=0, atol=ERROR)


@pytest.mark.filterwarnings("ignore::rfrope._core.angles.PrecisionWarning")  # their bits are what is meant
def test_float_positions_of_functions_meet_them_too(narrow):
    x = features(MODULES["known"]())[0]
    exact = rfrope.rotate(x.detach().double().numpy(), FAR.double().numpy(), ROPE)
    for learns in (False, True):
        with torch.set_grad_enabled(learns):
            found = ROPE.rotate(x, FAR)
        torch.testing.assert_close(found.detach().double(), torch.from_numpy(exact), rtol=0, atol=ERROR)
    assert [call["frequencies"].dtype for _, call in narrow] == [torch.uint64] * 2  # the second inside an operator


# -- what is held on a device ------------------------------------------------------------------------------------------


def test_constants_are_placed_where_the_module_is_made_copied_or_moved(monkeypatch):
    """A graph that is made before any call would else copy them from the host whenever it runs."""
    meta = torch.device("meta")
    with meta:
        module = RotaryEmbedding(ROPE)
    names = {(name, meta) for name in module._constants}
    assert names == {("words", meta), ("frequencies", meta)}
    assert set(module._placed) == names
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(RotaryEmbedding(ROPE).to("meta")))):
        assert set(copied._placed) == names
    monkeypatch.setattr(LaunchingModule, "_moved", lambda self, name, device: pytest.fail("not here"))
    state = RotaryEmbedding(ROPE).__getstate__() | {"_devices": ["cuda:63", "xpu:63"]}
    RotaryEmbedding.__new__(RotaryEmbedding).__setstate__(state)


def test_a_module_that_moves_leaves_nothing_behind():
    """Not on a change of dtype alone: that leaves constants where they are."""
    module = RotaryEmbedding(ROPE, max_positions=8)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        for device in ("cuda:0", "cuda:1"):
            module._placed["words", torch.device(device)] = torch.empty(2, device=device)
        module.half()
        assert len(module._placed) == 2
        module._follow(lambda tensor: tensor.to("cuda:1"))
        assert [str(device) for _, device in module._placed] == ["cuda:1"]
        module._follow(lambda tensor: tensor.cpu())
        assert not module._placed
