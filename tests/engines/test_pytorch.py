"""PyTorch's own operator: refused until it is there, and exact where it is, or something with its signature."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from packages import installed
from ropes import CONTEXT, KINDS, features

import rfrope
from rfrope import Rope, exports


@pytest.fixture
def operator(monkeypatch):
    """Return ``nn.functional.rotary_embedding``; where it is not released, one by the words of its pull request."""
    torch = installed("torch")

    def rotary_embedding(x: Any, cos: Any, sin: Any, position_ids: Any = None, *, interleaved: bool = False) -> Any:
        if position_ids is not None:
            cos, sin = cos[position_ids][:, None], sin[position_ids][:, None]
        pairs = x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, dim=-1)
        turned = pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin
        return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)

    if not hasattr(torch.nn.functional, "rotary_embedding"):
        monkeypatch.setattr(torch.nn.functional, "rotary_embedding", rotary_embedding, raising=False)
    return torch.nn.functional.rotary_embedding


def test_until_it_is_released():
    torch = installed("torch")
    if hasattr(torch.nn.functional, "rotary_embedding"):
        pytest.skip("it is released")
    with pytest.raises(ValueError, match=r"PyTorch: torch .* has no nn\.functional\.rotary_embedding: pull request"):
        exports.export(KINDS["plain"](0), "PyTorch")


def test_without_torch(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="torch is not installed, and only one that has"):
        exports.export(KINDS["plain"](0), "PyTorch")


@pytest.mark.parametrize("kind", ["plain", "interleaved", "ladder"])
def test_rotation(operator, kind):
    torch = installed("torch")
    for seed in range(3):
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        made = exports.export(rope, "PyTorch")
        assert made["cos"].shape == (CONTEXT, 8)
        cos, sin = (torch.from_numpy(made[name]) for name in ("cos", "sin"))
        ids = torch.from_numpy(positions)[None]
        got = operator(torch.from_numpy(x)[None], cos, sin, ids, interleaved=made["interleaved"])[0]
        np.testing.assert_allclose(got.numpy(), rope.rotate(x.astype(np.float64), positions), atol=3e-6)
    with pytest.raises(ValueError, match="turns whole heads, the Rope 16 features"):
        exports.export(replace(rope, head_dim=24), "PyTorch")


def test_a_set_for_each_head(operator):
    torch = installed("torch")
    omega = rfrope.sample(rfrope.kernel("gaussian", scale=3.0), 8, rng=0, heads=3)
    rope, positions = Rope(omega, context=12, attention_factor=1.1), np.arange(12)
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 16))
    made = exports.export(rope, "PyTorch")
    assert made["cos"].shape == (3, 12, 8)
    got = operator(torch.from_numpy(x), torch.from_numpy(made["cos"]), torch.from_numpy(made["sin"]))
    wanted = np.stack([rope.rotate(text, positions[:, None]) for text in x])
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-6)
