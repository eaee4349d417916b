"""Where tests of the Triton kernel run: on a CUDA device, by ``pytest -m gpu``, or on the CPU, by Triton's interpreter.

The interpreter is chosen when kernels are read, by the variable that `conftest` sets on machines without a device;
there tensors of the CPU count as those of a device.
"""

import importlib
import importlib.util
import os
from typing import Any

import numpy as np
import pytest

from rfrope._backends import triton as package
from rfrope._core import dispatch, libraries

MISSING = (
    "PyTorch is not installed"
    if importlib.util.find_spec("torch") is None
    else "triton is not installed"
    if importlib.util.find_spec("triton") is None
    else ""
)
NO_DEVICE = "no CUDA device"
PLACE = "cpu"
if os.environ.get("TRITON_INTERPRET") != "1" and not MISSING:
    PLACE = "cuda" if importlib.import_module("torch").cuda.is_available() else "cpu"
    MISSING = "" if PLACE == "cuda" else f"{NO_DEVICE}: torch.cuda.is_available() is False"
elif not MISSING:  # in Triton 3.4 to 3.6 it counts loops by arrays of one number, which NumPy 2.4 takes for none
    _interpreter = importlib.import_module("triton.runtime.interpreter")

    def _count_by_numbers(tensor: Any, *scope: Any, patch: Any = _interpreter._patch_lang_tensor) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    _interpreter._patch_lang_tensor = _count_by_numbers
    # and operators of PyTorch 2.11 refuse what is interpreted
    importlib.import_module("rfrope._backends.triton.rotation").wrap_triton = lambda kernel: kernel
NOT_COUNTED = MISSING or ("launches are counted on the CPU alone" if PLACE == "cuda" else "")
MARKS = [pytest.mark.gpu] if PLACE == "cuda" else []


def on_device_alone(test: Any) -> Any:
    """Mark a test that has nothing to run on by the interpreter."""
    reason = f"{NO_DEVICE}, and the interpreter has neither streams, nor graphs, nor memory enough"
    return pytest.mark.gpu(pytest.mark.skipif(PLACE == "cpu", reason=reason)(test))


def placed(x: Any) -> Any:
    """Return a tensor, or what is none, in the memory of the device, with the strides and alignment that it has."""
    if PLACE == "cpu" or not hasattr(x, "untyped_storage"):
        return x
    memory = x.detach().new_empty(0).set_(x.untyped_storage()).to(PLACE)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset()).requires_grad_(x.requires_grad)


def uniform(*shape: int, seed: int = 0) -> Any:
    """Return float64 numbers from -1/2 to 1/2, the same on every device."""
    torch = importlib.import_module("torch")
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5


def stand_in(monkeypatch: Any) -> None:
    """Let tensors of the CPU count as those of a device, for one test, unless there is one."""
    if PLACE == "cuda":
        return
    launching = importlib.import_module("rfrope.layers.launching")
    monkeypatch.setattr(package, "check", lambda: None)
    monkeypatch.setattr(dispatch, "_FOUND", dict(dispatch._FOUND))
    monkeypatch.setitem(libraries._PLACES, "cpu", "torch on cuda")
    monkeypatch.setitem(dispatch._RECORDED, "cpu", "recorded on cuda")
    monkeypatch.setattr(launching, "DEVICES", {"cpu", *launching.DEVICES})
    monkeypatch.setattr(libraries._Torch, "are_plain_dense", lambda *_: False)
    for name in [name for name in dispatch._FOUND if name[0] == "triton"]:
        del dispatch._FOUND[name]


class Kernel:
    """A kernel that notes with which arguments it is launched, and runs unless told otherwise."""

    def __init__(self, kernel: Any, runs: bool = True) -> None:
        self.kernel, self.runs, self.calls = kernel, runs, []

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            self.calls.append((grid, dict(zip(self.kernel.arg_names, arguments, strict=False)) | constants))
            recordings = importlib.import_module("replay").RECORDINGS
            if recordings:
                recordings[-1].launch(lambda: self.kernel[grid](*arguments, **constants))
            elif self.runs:
                self.kernel[grid](*arguments, **constants)

        return launch


def recorded(monkeypatch: Any, runs: bool = True) -> list[tuple[Any, dict[str, Any]]]:
    """Grid and arguments of every launch from here on."""
    kernels = importlib.import_module("rfrope._backends.triton.kernels")
    rotation = importlib.import_module("rfrope._backends.triton.rotation")
    kernel = Kernel(kernels.turn, runs)
    monkeypatch.setattr(kernels, "turn", kernel)
    monkeypatch.setattr(rotation, "wrap_triton", lambda one: one)
    return kernel.calls


FENCE = 2**18  # elements before and behind a tensor, which a wrong address may hit


def fenced(x: Any) -> Any:
    """Return a copy of a tensor of floats, in its order of axes, amid memory that `assert_intact` looks at."""
    torch = importlib.import_module("torch")
    dense = torch.empty_like(x)
    room = torch.full((dense.numel() + 2 * FENCE,), 77.0, dtype=x.dtype, device=x.device)
    return room.as_strided(dense.shape, dense.stride(), FENCE).copy_(x.detach())


def assert_intact(x: Any) -> None:
    """Assert that nothing was written to what lies around a tensor that `fenced` made."""
    room = x.as_strided((x.numel() + 2 * FENCE,), (1,), 0)
    assert bool((room[:FENCE] == 77.0).all() and (room[-FENCE:] == 77.0).all()), "written outside"


def assert_rounded(found: Any, exact: Any, error: float) -> None:
    """Assert that every element is a number within an error of the exact one, rounded to the type of features.

    The interpreter rounds to bfloat16 towards zero, where a device rounds to the nearest; nothing else is allowed.
    """
    torch = importlib.import_module("torch")
    dtype, exact, found = found.dtype, exact.double().cpu(), found.cpu()
    error = error * (float(exact.abs().amax()) if exact.numel() else 0.0)
    low, high = (((exact + side * error).float()) for side in (-1.0, 1.0))
    if dtype == torch.bfloat16 and PLACE == "cpu":
        mask = torch.tensor(-(2**16), dtype=torch.int32)
        low, high = ((one.view(torch.int32) & mask).view(torch.float32) for one in (low, high))
    else:
        low, high = low.to(dtype), high.to(dtype)
    found = found.float()
    assert bool(((low.float() <= found) & (found <= high.float())).all()), (
        f"off by {float((found.double() - exact).abs().max()):.3g}"
    )


def turn_words(frequencies: np.ndarray) -> np.ndarray:
    """Turns of one step and of 2**26 in units of 2**-64, along a new last axis: by long numbers."""
    from fractions import Fraction

    from rfrope._core.turns import _TURN

    found = np.empty((*frequencies.shape, 2), np.int64)
    for place, value in np.ndenumerate(frequencies):
        for part, steps in enumerate((1, 2**26)):
            units = round(Fraction(float(value)) * steps * _TURN * 2**64) % 2**64
            found[(*place, part)] = units - 2**64 if units >= 2**63 else units
    return found
