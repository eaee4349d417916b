"""vLLM's ``get_rope`` against the rule; `test_formats.py` turns by what it is given."""

import copy
import importlib
import types
from typing import Any

import pytest
from conftest import rows
from engine_configs import CASES, CONTEXT, check_table, config, is_refused, read_by_transformers, report
from packages import installed
from ropes import BLOCKS, KINDS

from rfrope import engines

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def vllm(monkeypatch):
    """Return vLLM's module of rotary embeddings, whose class for longrope asks vLLM's own config for a length."""
    module = installed("vllm.model_executor.layers.rotary_embedding")
    longrope = importlib.import_module(f"{module.__name__}.phi3_long_rope_scaled_rope")
    served = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=CONTEXT))
    monkeypatch.setattr(longrope, "get_current_vllm_config", lambda: served)
    monkeypatch.setattr(module, "_ROPE_DICT", {})  # it takes 4 for 4.0
    return module


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_configs(vllm, made):
    torch, config_of = installed("torch"), installed("vllm.config")
    held, found = read_by_transformers(made), report("vLLM", made)

    def build() -> Any:
        width = getattr(held, "head_dim", None) or held.hidden_size // held.num_attention_heads
        parameters = copy.deepcopy(held.rope_parameters)
        with config_of.set_current_vllm_config(config_of.VllmConfig()):
            return vllm.get_rope(width, CONTEXT, rope_parameters=parameters, dtype=torch.float32)

    if is_refused(found, build):
        return
    rotary = build()
    if not hasattr(rotary, "long_short_cos_sin_cache"):
        check_table(rotary.cos_sin_cache.numpy(), found, found.rope.positions)
        return
    original = held.rope_parameters["original_max_position_embeddings"]
    short = report("vLLM", made, original)
    check_table(rotary.long_short_cos_sin_cache[:original].numpy(), short, short.rope.positions)
    assert rotary.use_long_rope == (original < CONTEXT)
    if rotary.use_long_rope:
        check_table(rotary.long_short_cos_sin_cache[original:].numpy(), found, found.rope.positions)


@pytest.mark.parametrize(("scaling", "positions"), rows("engines/vllm.json", "positions_of_a_table"))
def test_positions_of_a_table(scaling, positions):
    assert report("vLLM", config("llama", "default") | {"rope_scaling": scaling}).rope.positions == positions


def test_it_refuses_what_export_refuses(vllm):
    exported = engines.export(KINDS["plain"](0), "vLLM")["rope_parameters"]
    with pytest.raises(ValueError, match="neox"):
        vllm.get_rope(2 * BLOCKS, 300, is_neox_style=False, rope_parameters=exported)
