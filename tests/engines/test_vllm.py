"""vLLM's ``get_rope`` against the rule, and with exported frequencies."""

from __future__ import annotations

import copy
import importlib
import types
from typing import Any

import pytest
from engine_configs import CASES, check_table, is_refused, read_by_transformers, report
from engine_configs import CONTEXT as LENGTH
from packages import installed
from ropes import BLOCKS, CONTEXT, KINDS, SEEDS, carried_by, check, features

from rfrope import exports

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


@pytest.mark.parametrize("made", CASES)
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
