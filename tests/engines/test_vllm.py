"""vLLM's ``get_rope`` against the rule, and with exported frequencies; its operator with exported tables."""

from __future__ import annotations

import copy
import importlib
import types
from typing import Any

import numpy as np
import pytest
from engine_configs import CASES, SCHEMES, YARN, check_table, config, is_refused, read_by_transformers, report
from engine_configs import CONTEXT as LENGTH
from packages import installed
from ropes import BLOCKS, CONTEXT, KINDS, SEEDS, carried_by, check, features

import rfrope
from rfrope import Rope, exports

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def vllm(monkeypatch):
    """Return vLLM's module of rotary embeddings, whose class for longrope asks vLLM's own config for a length."""
    installed("torch")
    module = installed("vllm.model_executor.layers.rotary_embedding")
    longrope = importlib.import_module(f"{module.__name__}.phi3_long_rope_scaled_rope")
    monkeypatch.setattr(longrope, "get_current_vllm_config", lambda: served(CONTEXT))
    monkeypatch.setattr(module, "_ROPE_DICT", {})  # it takes 4 for 4.0
    return module


def served(length: int) -> Any:
    return types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=length))


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_configs(vllm, made, monkeypatch):
    torch, config_of = installed("torch"), installed("vllm.config")
    longrope = importlib.import_module(f"{vllm.__name__}.phi3_long_rope_scaled_rope")
    monkeypatch.setattr(longrope, "get_current_vllm_config", lambda: served(LENGTH))
    held, found = read_by_transformers(made), report("vLLM", made)

    def build() -> Any:
        width = getattr(held, "head_dim", None) or held.hidden_size // held.num_attention_heads
        parameters = copy.deepcopy(held.rope_parameters)
        with config_of.set_current_vllm_config(config_of.VllmConfig()):
            return vllm.get_rope(width, LENGTH, rope_parameters=parameters, dtype=torch.float32)

    if is_refused(found, build):
        return
    rotary = build()
    if not hasattr(rotary, "long_short_cos_sin_cache"):
        check_table(rotary.cos_sin_cache.numpy(), found, found.rope.positions)
        return
    original = held.rope_parameters["original_max_position_embeddings"]
    short = report("vLLM", made, original)
    check_table(rotary.long_short_cos_sin_cache[:original].numpy(), short, short.rope.positions)
    assert rotary.use_long_rope == (original < LENGTH)
    if rotary.use_long_rope:
        check_table(rotary.long_short_cos_sin_cache[original:].numpy(), found, found.rope.positions)


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        (None, LENGTH),
        ({"rope_type": "linear", "factor": 2.3}, 9421),  # 2.3 times 4096 is 9420.8
        (YARN | {"factor": 2.3}, 2356),  # of 1024, 2355.2
        (SCHEMES["longrope"], LENGTH),
    ],
)
def test_positions_of_a_table(scaling, positions):
    assert report("vLLM", config("llama", "default") | {"rope_scaling": scaling}).rope.positions == positions


def test_it_refuses_what_export_refuses(vllm):
    with pytest.raises(ValueError, match="it pairs 'interleaved', the engine 'half' alone"):
        exports.export(KINDS["interleaved"](0), "vLLM")
    exported = exports.export(KINDS["plain"](0), "vLLM")["rope_parameters"]
    with pytest.raises(ValueError, match="neox"):
        vllm.get_rope(2 * BLOCKS, CONTEXT, is_neox_style=False, rope_parameters=exported)


@pytest.mark.parametrize("kind", carried_by("vLLM"))
def test_rotation(vllm, kind):
    torch = importlib.import_module("torch")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        exported = exports.export(rope, "vLLM")
        length, parameters = exported["max_position_embeddings"], exported["rope_parameters"]
        rotary = vllm.get_rope(rope.head_dim, length, rope_parameters=parameters, dtype=torch.float32)
        flat = torch.from_numpy(x.swapaxes(0, 1).reshape(len(positions), -1))
        got, _ = rotary(torch.from_numpy(positions), flat, flat.clone())
        check(got.numpy().reshape(len(positions), -1, rope.head_dim).swapaxes(0, 1), x, positions, rope, "vLLM")


@pytest.mark.parametrize("kind", carried_by("vLLM operator"))
def test_operator(vllm, kind):
    """Its own function of a table, which its classes call where there is no device."""
    torch = importlib.import_module("torch")
    base = importlib.import_module(f"{vllm.__name__}.base")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        made = exports.export(rope, "vLLM operator")
        flat, cache = (
            torch.from_numpy(x.swapaxes(0, 1).reshape(len(positions), -1)),
            torch.from_numpy(made["cos_sin_cache"]),
        )
        arguments = made["head_size"], cache.shape[-1], cache, made["is_neox"]
        got, _ = base.RotaryEmbedding.forward_static(torch.from_numpy(positions), flat, flat.clone(), *arguments)
        turned = got.numpy().reshape(len(positions), -1, rope.head_dim).swapaxes(0, 1)
        check(turned, x, positions, rope, "vLLM operator")


def test_operator_with_a_set_for_each_head(vllm):
    torch = importlib.import_module("torch")
    base = importlib.import_module(f"{vllm.__name__}.base")
    omega = rfrope.sample(rfrope.kernel("gaussian", scale=3.0), 8, rng=0, heads=3)
    rope, positions = Rope(omega, context=30, attention_factor=1.1, head_dim=20), np.array([0, 3, 7, 29])
    x, made = np.random.default_rng(0).standard_normal((4, 3, 20)), exports.export(rope, "vLLM operator")
    rows = torch.from_numpy(made["first_rows"] + positions[:, None]).reshape(-1)
    tokens, cache = torch.from_numpy(x).float().reshape(12, 20), torch.from_numpy(made["cos_sin_cache"])
    arguments = made["head_size"], cache.shape[-1], cache, made["is_neox"]
    got, _ = base.RotaryEmbedding.forward_static(rows, tokens, tokens.clone(), *arguments)
    wanted = rope.rotate(x.swapaxes(0, 1), positions[:, None]).swapaxes(0, 1)
    np.testing.assert_allclose(got.numpy().reshape(4, 3, 20), wanted, atol=2e-6)
