"""SGLang's ``get_rope`` against the rule."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from engine_configs import CASES, CONTEXT, check_table, is_refused, read_by_transformers, report
from packages import installed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", CASES)
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
