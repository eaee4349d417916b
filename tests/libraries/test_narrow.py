"""Narrow numbers of torch: devices without float64, as Apple's, and features of 16 bits, in every public function."""

from types import SimpleNamespace

import calls
import numpy as np
import pytest
from campaign import sparse
from conftest import library

import rfrope
from rfrope._core import array, dispatch, libraries
from rfrope.rotation import turning

torch = library("torch").module
CALLS = calls.CALLS | calls.FROM_HOST | calls.TO_HOST
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

    Apple's turn by tables from the host. Intel's turn by words of 64, and their gradients are recorded by operators.
    """
    real, find = array.widest_float, dispatch.find

    def widest(xp, device=None):
        return torch.float32 if array.name_of(xp) == "torch" else real(xp, device)

    calls.calls(calls.FOLDER)  # made before there is no float64
    monkeypatch.setattr(array, "widest_float", widest)
    monkeypatch.setattr(dispatch, "find", lambda backend: find(backend) if backend.place == "torch" else None)
    monkeypatch.setattr(dispatch, "_FOUND", {})
    monkeypatch.setattr(turning, "load_fast_path", lambda: None)
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


LINE, SETS = rfrope.geometric(8), rfrope.sample("gaussian(scale=32)", 8, rng=0, heads=2)
MODULES = {  # frequencies, what is learned of them, and a factor
    "fixed": (LINE, False, 1.0),
    "sets": (SETS, False, 1.5),
    "frequencies": (LINE.astype(np.float32), "frequencies", 1.0),
    "factors": (LINE.astype(np.float32), "factors", 1.0),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_module_on_a_device_without_float64(name, without_float64):
    """Whole positions stay exact there, as far as 32 bits go: the turns wrap as integers."""
    omega, learnable, factor = MODULES[name]
    with torch.utils._python_dispatch._disable_current_modes():  # it is made on the CPU
        module = rfrope.layers.torch.RotaryEmbedding(rfrope.Rope(omega, attention_factor=factor), learnable)
        module._moved = lambda name, device, held={}: held.setdefault(name, moved(module, name))
    q, k = torch.randn(1, 4, 3, 16, requires_grad=True), torch.randn(1, 2, 3, 16)
    of_queries = np.repeat(omega, 2, axis=0) if omega.ndim > 1 else omega
    for offset in (0, 1_000_000) if not learnable else (0,):
        at = np.arange(3)[:, None] + offset if omega.ndim > 1 else np.arange(3) + offset
        for x, turned, sets in zip((q, k), module(q, k, offset=offset), (of_queries, omega), strict=True):
            exact = rfrope.rotate(x.detach().numpy().astype(np.float64), at, sets.astype(np.float64), scale=factor)
            np.testing.assert_allclose(turned.detach().numpy(), exact, rtol=0, atol=2e-6)
    module(q, k)[0].sum().backward()
    assert q.grad.isfinite().all()


def moved(module, name):
    """A constant of a module as it comes to such a device."""
    found = module._constants[name]
    if found.dtype != torch.float64:
        return found
    found = found.float()
    found.on_host = module._host
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
