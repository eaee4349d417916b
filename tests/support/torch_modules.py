"""Modules for PyTorch as data: their Ropes, what is learned, where tokens are, and the functions that say the same."""

import dataclasses
import math
from typing import Any

import numpy as np
from conftest import library

import rfrope

torch = library("torch").module
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding  # noqa: E402

FREQUENCIES = rfrope.geometric(16)
WIDTH = 2 * len(FREQUENCIES)
SETS = rfrope.sample("gaussian(scale=32)", 16, rng=0, heads=2)
POLAR, TEMPERATURE = rfrope.Rope(rfrope.geometric(WIDTH), polar=True, attention_factor=1.25), ("factors", "temperature")
MATERN = rfrope.design("matern(nu=1.5, scale=8)", head_dim=32, context=64, heads=2, rng=0)
POLAR_SETS = rfrope.Rope(np.geomspace(0.01, 1.0, 2 * WIDTH).reshape(2, WIDTH, 1), polar=True)
SECTIONS = rfrope.Rope(FREQUENCIES, sections=(6, 5, 5), interleaved=True)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "half": (rfrope.Rope(FREQUENCIES, attention_factor=1.25), {}),
    "interleaved": (rfrope.Rope(FREQUENCIES, pairing="interleaved"), {}),
    "partial": (rfrope.Rope(FREQUENCIES[:5], pairing="interleaved", head_dim=WIDTH), {}),
    "sets": (SETS, {}),
    "sections": (SECTIONS, {}),
    "vectors": (rfrope.golden_gate(16, low=0.1, high=2.0, ndim=3), {}),
    "vectors of heads": (rfrope.golden_gate(16, low=0.1, high=2.0, ndim=3, heads=2), {}),
    "polar": (POLAR, {}),
    "polar, interleaved": (dataclasses.replace(POLAR, pairing="interleaved"), {}),
    "polar sets": (POLAR_SETS, {}),
    "polar plane": (rfrope.Rope(np.stack([POLAR.frequencies, POLAR.frequencies[::-1]], -1), polar=True), {}),
    "learned ends of the ladder": (FREQUENCIES, {"learnable": ("kernel", "phases")}),
    "learned kernel of sets": (MATERN, {"learnable": ("kernel", "temperature")}),
    "learned factors": (FREQUENCIES, {"learnable": True}),
    "learned factors and temperature": (SETS, {"learnable": TEMPERATURE}),
    "learned both": (FREQUENCIES, {"learnable": "both"}),
    "learned both of sets": (SETS, {"learnable": "both"}),
    "learned both of sections": (SECTIONS, {"learnable": "both"}),
    "learned phases of vectors": (rfrope.golden_gate(16, low=0.1, high=2.0, ndim=3, heads=2), {"learnable": "both"}),
    "learned polar": (POLAR, {"learnable": ("phases", *TEMPERATURE)}),
    "learned polar of heads": (POLAR, {"learnable": "phases", "heads": 2}),
    "learned polar sets": (POLAR_SETS, {"learnable": ("frequencies", "factors", "phases")}),
}
FIXED = [name for name in KINDS if "learned" not in name]
KINDS["tables"] = (FREQUENCIES, {"max_positions": 512})
LEARNED = [name for name in KINDS if "learned" in name]
RAGGED = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])  # padded on the left
OWN = np.array([[[3]], [[900_000]]])
PLACES: dict[str, tuple[dict[str, Any], np.ndarray]] = {  # arguments, and what they mean: (tokens,) or (2, 1, tokens)
    "consecutive": ({}, np.arange(5)),
    "after a cache": ({"offset": 7}, np.arange(5) + 7),
    "before 0": ({"offset": -3}, np.arange(5) - 3),
    "after caches of their own": ({"offset": torch.tensor([3, 900_000])}, np.arange(5) + OWN),
    "as many tokens as sequences": ({"offset": torch.tensor([3, 900_000])}, np.arange(2) + OWN),
    "ragged": ({"positions": RAGGED}, RAGGED.numpy()[:, None]),
    "packed, after a cache": ({"positions": torch.tensor([0, 1, 2, 0, 1]), "offset": 2}, np.array([2, 3, 4, 2, 3])),
    "floats": ({"positions": torch.tensor([0.5, 1.5, -2.0, 3.25, 1e6])}, np.array([0.5, 1.5, -2.0, 3.25, 1e6])),
    "a list": ({"positions": [0, 5, 2, 9, 2**53 - 1]}, np.array([0, 5, 2, 9, 2**53 - 1])),
    "an array": ({"positions": np.arange(5) * 3}, np.arange(5) * 3),
    "one": ({"offset": 17}, np.array([17])),
    "one of each": ({"positions": torch.tensor([[17], [3]])}, np.array([[[17]], [[3]]])),
}


def features(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def made(kind: str, **options: Any) -> Any:
    """A module whose parameters are no longer where they start."""
    rope, own = KINDS[kind]
    module = (PolarEmbedding if "polar" in kind else RotaryEmbedding)(rope, **own | options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= torch.linspace(-0.1, 0.4, parameter.numel(), dtype=parameter.dtype).reshape(parameter.shape)
    return module


def placed(module: Any, place: str) -> tuple[dict[str, Any], np.ndarray]:
    """Arguments of a call and positions as functions take them; of several axes the second turns the other way."""
    options, at = PLACES[place]
    if module.axes > 1:
        at = np.stack([at, -at, at // 3][: module.axes], -1)
        options = {"positions": torch.as_tensor(at if at.ndim < 4 else at[:, 0])}
    return options, at


def by_functions(module: Any, q: Any, k: Any, at: np.ndarray) -> list[Any]:
    """Queries and keys by the functions of `rfrope`, or the formula of PoPE, with the values that a module has."""
    start, names = module.start, ("frequencies", "log_factors", "log_temperature", "phases")
    omega, factors, temperature, phases = (getattr(module, name) for name in names)
    omega = torch.tensor(np.asarray(start.frequencies)) if omega is None else omega
    if module.kernel is not None:
        law = rfrope.designs.learned_kernel(start)
        omega = law.frequencies({name: getattr(module, name) for name in law.parameters})
        omega = omega + (torch.tensor(np.asarray(module.rope.frequencies)) - omega).detach()  # gradients are the law's
    omega = omega if factors is None else omega * factors.exp()
    vectors = dataclasses.replace(start, frequencies=omega, source=None).vectors
    scale = start.attention_factor * (1.0 if temperature is None else (0.5 * temperature).exp())
    turned, at = [], torch.as_tensor(at)
    for x, shift in ((q, None), (k, phases)):
        w = vectors if vectors.ndim < 3 else vectors.repeat_interleave(x.shape[-3] // len(vectors), 0)
        if shift is not None:
            shift = shift.clamp(-2.0 * math.pi, 0.0) if start.polar else shift
            shift = shift if shift.ndim < 2 else shift.repeat_interleave(x.shape[-3] // len(shift), 0)[:, None]
        options = {"shift": 0.0 if shift is None else shift}
        places = at if w.ndim == 1 or module.axes > 1 else at[..., None]
        if start.polar:  # magnitudes in the directions of (1, 0), turned
            m = scale * torch.nn.functional.softplus(x.double(), threshold=60)
            ones = torch.cat([torch.ones_like(m), torch.zeros_like(m)], -1)
            cos, sin = rfrope.rotate(ones, places, w, **options).chunk(2, -1)
            halves = [m * cos, m * sin]
            turned.append(torch.cat(halves, -1) if start.pairing == "half" else torch.stack(halves, -1).flatten(-2))
        elif module.learnable:
            turned.append(scale * rfrope.rotate(x.double(), places, w, pairing=start.pairing, **options))
        else:
            turned.append(rfrope.rotate(x, places, w, pairing=start.pairing, scale=scale))
    return turned


def assert_close(found: Any, wanted: Any, *, equal: bool = False, roundings: float = 1.1) -> None:
    """Assert that two tensors are equal, or differ by roundings of the largest number of a head."""
    assert found.shape == wanted.shape
    if equal:
        assert torch.equal(found, wanted)
    found, wanted, eps = found.detach(), wanted.detach().double(), torch.finfo(found.dtype).eps
    most = wanted.abs().amax(-1, keepdim=True) if wanted.ndim else wanted.abs()
    assert bool(((found.double() - wanted).abs() <= roundings * eps * most + 1e-300).all())
