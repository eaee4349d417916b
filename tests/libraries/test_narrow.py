"""Narrow numbers of torch: devices without float64, as Apple's, and features of 16 bits, in every public function."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import test_device
from campaign import sparse
from conftest import library

import rfrope
from rfrope._core import array, dispatch, libraries
from rfrope.rotation import turning

torch = library("torch").module
CALLS = test_device.CALLS | test_device.FROM_HOST | test_device.TO_HOST
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:[a-z_]* has dtype"),
]


class WithoutFloat64(torch.utils._python_dispatch.TorchDispatchMode):
    """No tensor of float64 comes to be, as on Apple's devices."""

    def __torch_dispatch__(self, function, kinds, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if isinstance(one, torch.Tensor) and one.dtype in (torch.float64, torch.complex128):
                raise TypeError(
                    f"Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't ({function})"
                )
        return found


@pytest.fixture(params=["mps", "xpu"])
def without_float64(request, monkeypatch):
    """Tensors of the CPU as those of a device without float64, which no loop serves.

    Apple's turn by words of 32 bits. Intel's turn by words of 64, and their gradients are recorded by operators.
    """
    real, find = array.widest_float, dispatch.find

    def widest(xp, device=None):
        return torch.float32 if array.name_of(xp) == "torch" else real(xp, device)

    test_device.bad_input.calls(test_device.FOLDER)  # made before there is no float64
    monkeypatch.setattr(array, "widest_float", widest)
    monkeypatch.setattr(dispatch, "find", lambda backend: find(backend) if backend.place == "torch" else None)
    monkeypatch.setattr(dispatch, "_FOUND", {})
    monkeypatch.setattr(turning, "load_flat_pass", lambda: None)
    monkeypatch.setattr(libraries.TORCH, "wraps_words", lambda device: request.param == "xpu")
    with WithoutFloat64():
        yield request.param


def narrow(values, dtype=None):
    made = np.array(values, dtype=dtype)
    return torch.asarray(
        made.astype({"float64": "float32", "complex128": "complex64"}.get(made.dtype.name, made.dtype))
    )


def results(name, place):
    made = CALLS[name](place)
    return list(made) if hasattr(made, "__iter__") else [made]


@pytest.mark.parametrize("name", sparse(CALLS, lambda name: name in ("rotate", "estimate_kernel", "mrope")))
def test_a_device_without_float64(name, without_float64):
    for found in results(name, narrow):
        assert getattr(found, "dtype", None) not in (torch.float64, torch.complex128)


@pytest.mark.parametrize("learnable", [False, "frequencies", "factors"])
def test_the_module_on_a_device_without_float64(learnable, without_float64):
    """Whole positions stay exact there, as far as 32 bits go: the turns wrap as integers."""
    frequencies = rfrope.geometric(8)
    rope = frequencies.astype(np.float32) if learnable else frequencies
    with torch.utils._python_dispatch._disable_current_modes():  # it is made on the CPU
        module = rfrope.layers.torch.RotaryEmbedding(rope, learnable)
        module._moved = lambda name, device, held={}: held.setdefault(name, moved(module, name))
    q, k = torch.randn(1, 4, 3, 16, requires_grad=True), torch.randn(1, 2, 3, 16)
    for offset in (0, 1_000_000) if not learnable else (0,):
        turned = module(q, k, offset=offset)[0].detach().numpy()
        exact = rfrope.rotate(q.detach().numpy().astype(np.float64), np.arange(3) + offset, frequencies)
        np.testing.assert_allclose(turned, exact, rtol=0, atol=2e-6)
    module(q, k)[0].sum().backward()
    assert q.grad.isfinite().all()


def test_sets_for_each_head_on_a_device_without_float64(without_float64):
    sets = rfrope.sample("gaussian(scale=32)", 8, rng=0, heads=2)
    with torch.utils._python_dispatch._disable_current_modes():
        module = rfrope.layers.torch.RotaryEmbedding(rfrope.Rope(sets, attention_factor=1.5))
        module._moved = lambda name, device, held={}: held.setdefault(name, moved(module, name))
    q, k = torch.randn(1, 6, 3, 16), torch.randn(1, 2, 3, 16)
    turned, of_queries = module(q, k, offset=70_000), np.repeat(sets, 3, axis=0)
    for x, found, omega in zip((q, k), turned, (of_queries, sets), strict=True):
        exact = rfrope.rotate(x.numpy().astype(np.float64), np.arange(3)[:, None] + 70_000, omega, scale=1.5)
        np.testing.assert_allclose(found.numpy(), exact, rtol=0, atol=2e-6)


def moved(module, name):
    """A constant of a module as it comes to such a device."""
    found = module._constants[name]
    if found.dtype != torch.float64:
        return found
    found = found.float()
    found.turn_words, found.fine_words = module._constants["words"], module._constants["fine words"]
    return found


def test_the_widest_float_of_a_device_is_what_torch_says(monkeypatch):
    space = array.named_namespace(torch)
    assert array.widest_float(space, torch.device("mps", 0)) == torch.float32
    assert array.widest_float(space, torch.device("cuda", 1)) == array.widest_float(space) == torch.float64
    for held in (True, False, None):
        libraries._xpu_has_float64.cache_clear()
        fields = {} if held is None else {"has_fp64": held}  # as an older torch has none
        monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device, kept=fields: SimpleNamespace(**kept))
        assert array.has_float64(space, torch.device("xpu", 0)) is bool(held)
    libraries._xpu_has_float64.cache_clear()


@pytest.mark.parametrize("positions", [[0, 1, -1, 131071, 2**31 - 1, -(2**31)], [0.5, 3.25]])
def test_phases_without_float64(positions, without_float64):
    whole = isinstance(positions[0], int)
    at = torch.tensor(positions, dtype=torch.int32 if whole else torch.float32)
    found = rfrope.rotation_table(at, rfrope.geometric(8).tolist())
    exact = rfrope.rotation_table(np.array(positions), rfrope.geometric(8))
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=0, atol=2.5e-7)


# -- 16 bits -----------------------------------------------------------------------------------------------------------


def rounded(name):
    """NumPy's arrays and tensors of one dtype with the same numbers, those that this dtype holds."""
    dtype = getattr(torch, name)

    def host(values, kind=None):
        made = np.array(values, dtype=kind)
        return tensor(values, kind).double().numpy() if made.dtype.kind == "f" else made

    def tensor(values, kind=None):
        made = torch.asarray(np.array(values, dtype=kind))
        return made.clamp(max=6e4).to(dtype) if made.is_floating_point() else made  # float16 ends at 65504

    return host, tensor


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", sparse(CALLS, lambda name: name in ("rotate", "scores", "mean_kernel", "axial")))
def test_features_of_16_bits(name, dtype):
    """Results are those of the same numbers in float64, to the rounding of their dtype."""
    host, tensor = rounded(dtype)
    found = results(name, tensor)
    with np.errstate(all="ignore"):
        expected = results(name, host)
    for one, other in zip(found, expected, strict=True):
        if not isinstance(one, torch.Tensor):
            continue
        wide = one.detach().cpu()
        eps = torch.finfo(one.dtype).eps if one.is_floating_point() else 2.0**-20
        wide = (wide.to(torch.complex128) if one.is_complex() else wide.double()).numpy()
        scale = max(1.0, float(np.max(np.abs(np.where(np.isfinite(other), other, 0.0)), initial=0.0)))
        np.testing.assert_allclose(wide, np.asarray(other), rtol=4 * eps, atol=4 * max(eps, 1e-6) * scale)
