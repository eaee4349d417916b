"""SGLang's ``get_rope`` against the rule, and with exported frequencies."""

import copy
from typing import Any

import numpy as np
import pytest
from engine_configs import CASES, CONTEXT, check_table, is_refused, read_by_transformers, report
from packages import installed
from ropes import KINDS, SEEDS, carried_by

from rfrope import engines


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", CASES, indirect=True)
def test_configs(made, monkeypatch):
    torch = installed("torch")
    sglang = installed("sglang.srt.layers.rotary_embedding.factory")
    monkeypatch.setattr(sglang, "_ROPE_DICT", {})
    held, found = read_by_transformers(made), report("SGLang", made)
    width = getattr(held, "head_dim", None) or held.hidden_size // held.num_attention_heads
    part = getattr(held, "partial_rotary_factor", 1) if held.model_type in ("llama", "mistral", "phi3") else 1

    def build() -> Any:
        held_parameters = copy.deepcopy(held.rope_parameters)
        theta = held_parameters["rope_theta"]
        return sglang.get_rope(width, int(width * part), CONTEXT, theta, True, held_parameters, torch.float32)

    if is_refused(found, build):
        return
    rotary = build()
    if hasattr(rotary, "long_cos_sin_cache"):
        original = held.rope_parameters["original_max_position_embeddings"]
        check_table(rotary.long_cos_sin_cache.numpy(), found, CONTEXT)
        check_table(rotary.short_cos_sin_cache.numpy(), report("SGLang", made, original), original)
    else:
        check_table(rotary.cos_sin_cache.numpy(), found, len(rotary.cos_sin_cache))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", carried_by("SGLang"))
def test_exported_tables(kind, monkeypatch):
    torch = installed("torch")
    sglang = installed("sglang.srt.layers.rotary_embedding.factory")
    monkeypatch.setattr(sglang, "_ROPE_DICT", {})
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        made, told = engines.export(rope, "SGLang"), engines.rounding(rope, "SGLang")
        parameters, context = made["rope_parameters"], made["max_position_embeddings"]
        theta, sizes = parameters["rope_theta"], (int(rope.head_dim), rope.rotary_dim)
        rotary = sglang.get_rope(*sizes, context, theta, True, parameters, torch.float32)
        wanted = np.concatenate(rope.table(np.arange(context)), axis=-1)
        for table in (rotary.short_cos_sin_cache, rotary.long_cos_sin_cache):
            assert np.max(np.abs(table.numpy()[:context] - wanted)) < rope.attention_factor * told.table
