"""MLX-LM's models against the rule; `test_formats.py` turns by what it is given."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from conftest import rows
from engine_configs import CASES, CONTEXT, is_refused, report
from packages import installed

from rfrope import models


def hold(mx: Any, turn: Any, rope: Any, positions: tuple[int, ...], width: int = 0) -> None:
    """Hold what a module turns a step of ones and zeros to against a rule."""
    blocks, is_interleaved = rope.frequencies.size, rope.pairing == "interleaved"
    step = np.zeros((1, 1, 1, width or 2 * blocks), np.float32)
    step[..., slice(0, 2 * blocks, 2) if is_interleaved else slice(0, blocks)] = 1.0
    for position in positions:
        rows, phases = np.array(turn(mx.array(step), offset=position))[0, 0, 0], position * rope.frequencies
        sides = [rope.attention_factor * part(phases) for part in (np.cos, np.sin)]
        expected = np.stack(sides, -1).ravel() if is_interleaved else np.concatenate(sides)
        allowed = 1e-5 + 4e-6 * (np.repeat(phases, 2) if is_interleaved else np.tile(phases, 2))
        assert np.max(np.abs(rows[: 2 * blocks] - expected) - allowed) < 0.0


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_configs(made):
    mx = installed("mlx.core")
    installed("mlx_lm.models.rope_utils")
    module = installed(f"mlx_lm.models.{made['model_type'].replace('mistral', 'llama')}")
    found = report("MLX-LM", made)

    def build() -> Any:
        return module.Attention(module.ModelArgs.from_dict(copy.deepcopy(made))).rope

    if is_refused(found, build):
        return
    hold(mx, build(), found.rope, (0, 1, 3, 10, 50, 200, CONTEXT - 1), 64)


SMALL = {"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
SMALL |= {"max_position_embeddings": CONTEXT, "intermediate_size": 8, "vocab_size": 8}


def attentions(whole: str, made: dict[str, Any]) -> list[Any]:
    """Return the attention of each layer of a model that holds a text, or of the text alone."""
    module = installed(f"mlx_lm.models.{'gemma4_text' if whole == 'gemma4' else whole or made['model_type']}")
    kind = {"gemma3n": "TextConfig", "llama4": "TextArgs"}.get(whole, "ModelArgs")
    fields = dataclasses.fields(getattr(module, kind))
    required = {one.name: 1 for one in fields if one.default is dataclasses.MISSING and one.name not in made}
    args = getattr(module, kind).from_dict(required | copy.deepcopy(made))
    if made["model_type"] in ("exaone4", "llama4_text") and not whole:
        body = module.ExaoneModel if made["model_type"] == "exaone4" else module.LanguageModel
        return [layer.self_attn for layer in body(args).layers]
    name = {"gemma3n": "Gemma3nAttention", "": "Olmo3Attention"}.get(whole, "Attention")
    more = {"is_kv_shared_layer": False} if whole == "gemma3n" else {}
    return [getattr(module, name)(args, i, **more) for i in range(made["num_hidden_layers"])]


@pytest.mark.parametrize(("whole", "given"), rows("engines/mlx.json", "layers that differ"))
def test_each_layer_turns_by_the_rule_of_its_kind(whole, given):
    """Of models that are texts (None), of texts that are held by another, and of texts alone ("")."""
    mx = installed("mlx.core")
    installed("mlx_lm.models.rope_utils")
    made = SMALL | given
    if whole is None:
        module = installed(f"mlx_lm.models.{given['model_type']}")
        more = {"rms_norm_eps": 1e-6, "tie_word_embeddings": True, "num_local_experts": 2, "num_experts_per_tok": 1}
        args = module.ModelArgs.from_dict(copy.deepcopy(made | more))
        layers = [layer.self_attn for layer in module.Model(args).model.layers]
    else:
        made = {"model_type": f"{whole}_text", "sliding_window": 64} | made
        if made["model_type"] == "exaone4":
            made["layer_types"] = (["sliding_attention"] * 3 + ["full_attention"]) * 2
        layers = attentions(whole, made)
    turned: set[int] = set()
    config = {"model_type": whole, "text_config": made} if whole else made
    for found in models.compare(config, ["MLX-LM"], seq_len=None if whole is not None else CONTEXT).ropes:
        rope = found.engines[0].rope
        turned |= {*rope.layers}
        for i in rope.layers:
            hold(mx, layers[i].rope, rope, (1, 50, CONTEXT - 1))
    still = {i for i, one in enumerate(layers) if type(getattr(one, "rope", None)).__name__ == "NoPE"}
    switch = "use_sliding_window" if whole is None else "use_rope"
    assert turned == {i for i, one in enumerate(layers) if getattr(one, switch, True)} - still
