"""Tiny configs of the families that people run, for `observe_engines`.

python -m tools.engine_families    writes tools/engine_families.json by the config classes of the transformers here
"""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import warnings
from typing import Any

PATH = pathlib.Path(__file__).with_name("engine_families.json")
SIZES: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
SIZES |= {"num_hidden_layers": 6, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 2048}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_experts": 2, "num_local_experts": 2}
SIZES |= {"n_routed_experts": 2, "num_experts_per_tok": 1, "moe_num_experts": 2, "moe_k": 1, "n_shared_experts": 1}
SIZES |= {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1}
SIZES |= {"first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 32}
SIZES |= {"qk_nope_head_dim": 16, "v_head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 4}
SIZES |= {"global_head_dim": 64, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "mamba_d_state": 16}
SIZES |= {"mamba_d_head": 32, "mamba_n_heads": 8, "mamba_expand": 2, "use_cache": False}
TEXTS = """
    llama mistral mixtral ministral ministral3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5_text
    qwen3_5_moe_text gemma gemma2 gemma3_text gemma4_text phi phi3 phimoe deepseek_v2 deepseek_v3 glm glm4 glm4_moe
    glm4_moe_lite glm_moe_dsa minimax minimax_m2 gpt_oss olmo olmo2 olmo3 olmoe granite granitemoe granitemoehybrid
    falcon falcon_h1 stablelm starcoder2 cohere cohere2 exaone4 step3p5 lfm2 lfm2_moe nemotron smollm3 ernie4_5
    ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe seed_oss apertus arcee persimmon gpt_neox gptj codegen bamba dbrx
    bitnet helium dots1 afmoe llama4_text minicpm3 internlm3 flex_olmo modernbert solar_open mimo_v2_flash diffllama
    nanochat youtu laguna
""".split()  # noqa: SIM905
WHOLE = """
    qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe gemma3 gemma3n gemma4 llama4 mistral3 glm4v
    glm4v_moe
""".split()  # noqa: SIM905
REMOTE = {  # types with code of their own: the keys of another type, and what they have beside them
    "kimi_k2": ("deepseek_v3", "DeepseekV3ForCausalLM", {}),
    "internlm2": ("llama", "InternLM2ForCausalLM", {"bias": False}),
    "baichuan": ("llama", "BaichuanForCausalLM", {}),
    "bailing_moe": ("qwen2_moe", "BailingMoeForCausalLM", {"use_bias": False, "use_qkv_bias": False}),
    "mimo": ("qwen2", "MiMoForCausalLM", {"num_nextn_predict_layers": 1}),
    "exaone": ("llama", "ExaoneForCausalLM", {"activation_function": "silu", "layer_norm_epsilon": 1e-6}),
}
_ATTENTIVE = {"layer_types": ["linear_attention", "full_attention"] * 3, "full_attention_interval": 2}
_LFM = {"block_dim": 128, "block_ff_dim": 64, "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0}
_LFM |= {"block_auto_adjust_ff_dim": False, "norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3}
_LFM |= {"full_attn_idxs": [1, 3]}
_HYBRID = {"layer_types": ["mamba", "attention"] * 3, "mamba_n_heads": 8, "mamba_d_head": 32}
_IN_TURN = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}
_IN_TURN |= {"mrope_interleaved": True}
_AXES = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]}
OWN: dict[str, dict[str, Any]] = {  # what a class wants, or what its published configs have beside the class's fields
    "afmoe": {"score_func": "sigmoid", "head_dim": 32},
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "bamba": {"mamba_n_heads": 8, "attn_layer_indices": [1, 3, 5]},
    "deepseek_v2": {"moe_layer_freq": 1, "topk_method": "greedy", "scoring_func": "softmax"},
    "deepseek_v3": {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "dbrx": {"attn_config": {"kv_n_heads": 4, "clip_qkv": 8.0, "rope_theta": 10000.0}, "d_model": 128, "n_heads": 4},
    "dots1": {"norm_topk_prob": True},
    "exaone4": {"head_dim": 32, "sliding_window": 64, "sliding_window_pattern": "LLLG"},
    "falcon": {"new_decoder_architecture": False, "alibi": False, "multi_query": False},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 4},
    "gemma3n": {"text_config": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * 6}},
    "glm4": {"partial_rotary_factor": 0.5, "head_dim": 32},
    "glm4_moe": {"partial_rotary_factor": 0.5, "head_dim": 32},
    "glm4_moe_lite": {"first_k_dense_replace": 1, "partial_rotary_factor": 1.0},
    "glm_moe_dsa": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.25},
    "gptj": {"rotary_dim": 16, "n_embd": 128, "n_head": 4, "n_layer": 6},
    "codegen": {"rotary_dim": 16, "n_embd": 128, "n_head": 4, "n_layer": 6},
    "granitemoehybrid": _HYBRID,
    "lfm2": _LFM | {"layer_types": ["conv", "full_attention"] * 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3, "norm_eps": 1e-5, "num_dense_layers": 1},
    "minimax": {"shared_intermediate_size": 0, "rotary_dim": 16, "layer_types": ["full_attention"] * 6},
    "minimax_m2": {"shared_intermediate_size": 0, "rotary_dim": 16, "scoring_func": "sigmoid"},
    "mimo_v2_flash": {"hybrid_layer_pattern": [1, 0] * 3, "moe_layer_freq": [0] * 6},
    "phi": {"partial_rotary_factor": 0.5},
    **{f"qwen3_5{one}": {"text_config": {"rope_parameters": _IN_TURN}} for one in ("", "_moe")},
    **{f"qwen3_5{one}_text": _ATTENTIVE | {"rope_parameters": _IN_TURN} for one in ("", "_moe")},
    "qwen3_moe": {"num_experts": 2, "head_dim": 32, "norm_topk_prob": True},
    "qwen3_next": {"partial_rotary_factor": 0.25} | _ATTENTIVE,
    "smollm3": {"no_rope_layers": [1, 1, 1, 0, 1, 1]},
    "solar_open": {"intermediate_size": 64, "first_k_dense_replace": 1, "partial_rotary_factor": 1.0, "head_dim": 32},
    "stablelm": {"partial_rotary_factor": 0.25},
    **{
        key: {"text_config": {"rope_parameters": _AXES}}
        for key in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
    },
    "step3p5": {"num_attention_groups": 4, "architectures": ["Step3p5ForCausalLM"]},
}
VISION = {"depth": 1, "num_hidden_layers": 1, "hidden_size": 64, "num_heads": 2, "num_attention_heads": 2}
VISION |= {
    "intermediate_size": 64,
    "out_hidden_size": 128,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
}
DROPPED = ("transformers_version", "id2label", "label2id", "problem_type", "output_hidden_states", "return_dict")
DROPPED += ("chunk_size_feed_forward", "is_encoder_decoder", "_name_or_path", "output_attentions", "dtype")


def main() -> None:
    """Write the file, and say which types the config classes refuse."""
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    names = importlib.import_module("transformers.models.auto.modeling_auto")
    architectures = names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES | names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    architectures |= names.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    found: dict[str, Any] = {}
    for name in TEXTS + WHOLE:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = make_whole(auto.CONFIG_MAPPING, name) if name in WHOLE else make(auto.CONFIG_MAPPING[name], name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
            continue
        named = architectures.get(name) or made.get("architectures")
        found[name] = made | {"architectures": [named] if isinstance(named, str) else list(named or ())[:1]}
    for name, (other, architecture, more) in REMOTE.items():
        found[name] = found[other] | more | {"model_type": name, "architectures": [architecture]}
    rows = (f" {json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in sorted(found))
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")


def take(kind: type, sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes that a config class has fields for."""
    fields = {*inspect.signature(kind.__init__).parameters, *getattr(kind, "attribute_map", {})}  # type: ignore[misc]
    for one in kind.__mro__:
        fields |= set(getattr(one, "__annotations__", {}))
    kept = {key: value for key, value in sizes.items() if key in fields}
    return {key: value for key, value in kept.items() if key != "head_dim" or "qk_rope_head_dim" not in kept}


def make(kind: Any, name: str) -> dict[str, Any]:
    """Return the tiny config of a text."""
    own = OWN.get(name, {})
    given = {key: value for key, value in own.items() if key != "sliding_window_pattern"}
    return clean(kind(**take(kind, SIZES) | take(kind, given)).to_dict() | own)


def make_whole(mapping: Any, name: str) -> dict[str, Any]:
    """Return the tiny config of a model that holds a text and an encoder of pictures."""
    kind, own = mapping[name], OWN.get(name, {})
    parts = {}
    for part, sizes in (("text_config", SIZES), ("vision_config", VISION)):
        inner = kind.sub_configs[part]
        if not hasattr(inner, "model_type") or inner.__name__ == "AutoConfig":
            inner = mapping["ministral3" if part == "text_config" else "pixtral"]
        parts[part] = inner(**take(inner, sizes) | own.get(part, {})).to_dict()
    return clean(kind(**parts).to_dict())


def clean(held: dict[str, Any]) -> dict[str, Any]:
    """Return a config without what is the same in all."""
    kept = {key: clean(value) if isinstance(value, dict) else value for key, value in held.items()}
    return {key: value for key, value in kept.items() if key not in DROPPED}


if __name__ == "__main__":
    main()
