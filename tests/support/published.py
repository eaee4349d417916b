"""Configurations that models were published with: the keys of their config.json that RoPE depends on, as written there.

Beside each stands what must be found in it, by place: name, scheme, head_dim, number of frequencies, base, context.
Where the function ``lists`` is called, the published lists of one number for each frequency are replaced by made-up
ones of the same length; only these are not the models' own.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Place(NamedTuple):
    """What a config says of one place in the model."""

    name: str
    rope_type: str
    head_dim: int
    n_blocks: int
    theta: float
    context: int | None


class Published(NamedTuple):
    """A model, its config, and what is in it."""

    model: str
    config: dict[str, Any]
    places: tuple[Place, ...]


def lists(n: int) -> dict[str, list[float]]:
    """Lists for longrope, which rise with the wavelength as published ones do."""
    return {
        "short_factor": [1.0 + 0.02 * i for i in range(n)],
        "long_factor": [1.0 + 63.0 * (i / (n - 1)) ** 2 for i in range(n)],
    }


def llama3(factor: float, low: float = 1.0, high: float = 4.0) -> dict[str, Any]:
    return {
        "factor": factor, "high_freq_factor": high, "low_freq_factor": low, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }  # fmt: skip


def deepseek(mscale: float) -> dict[str, Any]:
    return {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": mscale, "mscale_all_dim": mscale,
        "original_max_position_embeddings": 4096, "type": "yarn",
    }  # fmt: skip


def simple(
    model: str,
    model_type: str,
    hidden: int,
    heads: int,
    context: int,
    theta: float | None = None,
    blocks: int | None = None,
    **more: Any,
) -> Published:
    """A text model with one RoPE; width and blocks follow from its keys, or from hidden and heads, or are given."""
    config = {"model_type": model_type, "hidden_size": hidden, "num_attention_heads": heads, **more}
    config["max_position_embeddings"] = context
    if theta is not None:
        config["rope_theta"] = theta
    told = more.get("rope_scaling") or {}
    scheme = told.get("rope_type", told.get("type", "default"))
    head_dim = more.get("head_dim", more.get("qk_rope_head_dim", hidden // heads))
    part = more.get("partial_rotary_factor", more.get("rotary_pct", 1.0))
    blocks = blocks or more.get("rotary_dim", int(head_dim * part)) // 2
    return Published(model, config, (Place("", scheme, head_dim, blocks, theta or 10_000.0, context),))


GEMMA4_ROPE = {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
MINISTRAL3_ROPE = {
    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn",
    "type": "yarn",
}  # fmt: skip
GPT_OSS_ROPE = {
    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
    "rope_type": "yarn", "truncate": False,
}  # fmt: skip
OLMO3_ROPE = {
    "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
    "original_max_position_embeddings": 8192, "rope_type": "yarn",
}  # fmt: skip
HUNYUAN_ROPE = {
    "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "type": "dynamic",
}  # fmt: skip
PHIMOE_ROPE = {
    **lists(64), "long_mscale": 1.243163121016122, "original_max_position_embeddings": 4096,
    "short_mscale": 1.243163121016122, "type": "longrope",
}  # fmt: skip
QWEN_YARN = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
LATENT = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "kv_lora_rank": 512, "v_head_dim": 128}

TEXT = (
    simple("Llama 2 7B", "llama", 4096, 32, 4096, rope_scaling=None),
    simple("Code Llama 7B", "llama", 4096, 32, 16384, 1000000, rope_scaling=None),
    simple("Llama 3 8B", "llama", 4096, 32, 8192, 500000.0, rope_scaling=None),
    simple("Llama 3.1 8B", "llama", 4096, 32, 131072, 500000.0, rope_scaling=llama3(8.0)),
    simple("Llama 3.2 1B", "llama", 2048, 32, 131072, 500000.0, head_dim=64, rope_scaling=llama3(32.0)),
    simple("Llama 3.3 70B", "llama", 8192, 64, 131072, 500000.0, rope_scaling=llama3(8.0)),
    simple("DeepSeek Coder 6.7B", "llama", 4096, 32, 16384, 100000, rope_scaling={"factor": 4.0, "type": "linear"}),
    simple("SmolLM2 135M", "llama", 576, 9, 8192, 100000, rope_scaling=None, rope_interleaved=False),
    simple("SmolLM3 3B", "smollm3", 2048, 16, 65536, 5000000.0, rope_scaling=None),
    simple("Mistral 7B v0.1", "mistral", 4096, 32, 32768, 10000.0, sliding_window=4096),
    simple("Mistral 7B v0.3", "mistral", 4096, 32, 32768, 1000000.0, sliding_window=None),
    simple("Mistral Nemo 12B", "mistral", 5120, 32, 131072, 1000000.0, head_dim=128),
    simple("Mixtral 8x7B", "mixtral", 4096, 32, 32768, 1000000.0),
    simple("Qwen1.5 7B", "qwen2", 4096, 32, 32768, 1000000.0),
    simple("Qwen2 7B", "qwen2", 3584, 28, 131072, 1000000.0),
    simple("Qwen2.5 7B with YaRN", "qwen2", 3584, 28, 32768, 1000000.0, rope_scaling=QWEN_YARN),
    simple("Qwen3 8B", "qwen3", 4096, 32, 40960, 1000000, head_dim=128, rope_scaling=None),
    simple("Qwen3 30B-A3B", "qwen3_moe", 2048, 32, 40960, 1000000.0, head_dim=128, rope_scaling=None),
    simple("Qwen3-Next 80B", "qwen3_next", 2048, 16, 262144, 10000000, head_dim=256, partial_rotary_factor=0.25),
    simple("Gemma 2B", "gemma", 2048, 8, 8192, 10000.0, head_dim=256),
    simple("Gemma 2 9B", "gemma2", 3584, 16, 8192, 10000.0, head_dim=256),
    simple("phi-1.5", "phi", 2048, 32, 2048, 10000.0, partial_rotary_factor=0.5, rope_scaling=None),
    simple("phi-2", "phi", 2560, 32, 2048, 10000.0, partial_rotary_factor=0.4, rope_scaling=None),
    simple("Phi-3 mini 4k", "phi3", 3072, 32, 4096, 10000.0, original_max_position_embeddings=4096, rope_scaling=None),
    simple("Phi-4", "phi3", 5120, 40, 16384, 250000, original_max_position_embeddings=16384, rope_scaling=None),
    simple("gpt-oss-20b", "gpt_oss", 2880, 64, 131072, 150000, head_dim=64, rope_scaling=GPT_OSS_ROPE),
    simple("StableLM 2 1.6B", "stablelm", 2048, 32, 4096, 10000, partial_rotary_factor=0.25),
    simple("OLMo 2 7B", "olmo2", 4096, 32, 4096, 500000, rope_scaling=None),
    simple("Granite 3.1 8B", "granite", 4096, 32, 131072, 10000000.0, rope_scaling=None),
    simple("Command R", "cohere", 8192, 64, 8192, 8000000.0, model_max_length=131072),
    simple("GLM-4 9B 0414", "glm4", 4096, 32, 32768, 10000.0, head_dim=128, partial_rotary_factor=0.5),
    simple("Minitron 4B", "nemotron", 3072, 24, 4096, 10000, head_dim=128, partial_rotary_factor=0.5),
    simple("StarCoder2 7B", "starcoder2", 4608, 36, 16384, 1000000),
    simple("LFM2 1.2B", "lfm2", 2048, 32, 128000, 1000000.0),
)

PUBLISHED = (
    *TEXT,
    simple("Phi-3 mini 128k", "phi3", 3072, 32, 131072, 10000.0, original_max_position_embeddings=4096,
           rope_scaling={"type": "longrope", **lists(48)}),
    simple("Phi-4 mini", "phi3", 3072, 24, 131072, 10000.0, original_max_position_embeddings=4096,
           partial_rotary_factor=0.75, rope_scaling={"type": "longrope", **lists(48)}),
    simple("Phi-4 multimodal", "phi4_multimodal", 3072, 24, 131072, 10000.0, original_max_position_embeddings=4096,
           partial_rotary_factor=0.75, rope_scaling={"type": "longrope", **lists(48)}),
    simple("Phi-3.5 MoE", "phimoe", 4096, 32, 131072, 10000.0, original_max_position_embeddings=4096,
           rope_scaling=PHIMOE_ROPE),
    simple("DeepSeek V2 Lite", "deepseek_v2", 2048, 16, 163840, 10000, rope_scaling=deepseek(0.707), **LATENT),
    simple("DeepSeek V3 and R1", "deepseek_v3", 7168, 128, 163840, 10000, rope_scaling=deepseek(1.0), **LATENT),
    simple("Pythia 1.4B", "gpt_neox", 2048, 16, 2048, rotary_emb_base=10000, rotary_pct=0.25),
    simple("GPT-NeoX 20B", "gpt_neox", 6144, 64, 2048, rotary_emb_base=10000, rotary_pct=0.25),
    Published("GPT-J 6B", {
        "model_type": "gptj", "n_ctx": 2048, "n_embd": 4096, "n_head": 16, "n_positions": 2048, "rotary": True,
        "rotary_dim": 64
    }, (Place("", "default", 256, 32, 10000.0, 2048),)),
    Published("CodeGen 350M", {
        "model_type": "codegen", "n_ctx": 2048, "n_embd": 1024, "n_head": 16, "n_positions": 2048, "rotary_dim": 32
    }, (Place("", "default", 64, 16, 10000.0, 2048),)),
    Published("Falcon 7B", {
        "model_type": "falcon", "alibi": False, "hidden_size": 4544, "num_attention_heads": 71, "multi_query": True
    }, (Place("", "default", 64, 32, 10000.0, 2048),)),
    simple("Persimmon 8B", "persimmon", 4096, 64, 16384, 25000.0, blocks=16),
    simple("MiniMax M2", "minimax_m2", 3072, 48, 196608, 5000000, head_dim=128, rotary_dim=64),
    simple("Hunyuan 7B", "hunyuan_v1_dense", 4096, 32, 32768, 10000.0, head_dim=128, rope_scaling=HUNYUAN_ROPE),
    Published("OLMo 3 7B", {
        "model_type": "olmo3", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 65536,
        "rope_scaling": OLMO3_ROPE, "rope_theta": 500000
    }, (
        Place("full_attention", "yarn", 128, 64, 500000.0, 65536),
        Place("sliding_attention", "default", 128, 64, 500000.0, 65536),
    )),
    Published("ModernBERT base", {
        "model_type": "modernbert", "global_rope_theta": 160000.0, "hidden_size": 768, "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192, "num_attention_heads": 12, "position_embedding_type": "absolute"
    }, (
        Place("full_attention", "default", 64, 32, 160000.0, 8192),
        Place("sliding_attention", "default", 64, 32, 10000.0, 8192),
    )),
    Published("Gemma 3 1B", {
        "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 1152, "max_position_embeddings": 32768,
        "num_attention_heads": 4, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window_pattern": 6
    }, (
        Place("full_attention", "default", 256, 128, 1000000.0, 32768),
        Place("sliding_attention", "default", 256, 128, 10000.0, 32768),
    )),
    Published("Gemma 3 4B", {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024
        },
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "num_attention_heads": 16}
    }, (
        Place("text_config.full_attention", "linear", 256, 128, 1000000.0, 131072),
        Place("text_config.sliding_attention", "default", 256, 128, 10000.0, 131072),
    )),
    Published("Gemma 4 E2B", {
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text", "global_head_dim": 512, "head_dim": 256, "max_position_embeddings": 131072,
            "rope_parameters": GEMMA4_ROPE
        },
        "vision_config": {"model_type": "gemma4_vision", "rope_parameters": {"rope_theta": 100.0}}
    }, (
        Place("text_config.full_attention", "proportional", 512, 256, 1000000.0, 131072),
        Place("text_config.sliding_attention", "default", 256, 128, 10000.0, 131072),
    )),
    Published("Llama 3.2 11B Vision", {
        "model_type": "mllama",
        "text_config": {
            "model_type": "mllama_text_model", "hidden_size": 4096, "max_position_embeddings": 131072,
            "num_attention_heads": 32, "rope_scaling": llama3(8.0), "rope_theta": 500000.0
        },
        "vision_config": {"model_type": "mllama_vision_model", "attention_heads": 16, "hidden_size": 1280}
    }, (Place("text_config", "llama3", 128, 64, 500000.0, 131072),)),
    Published("Llama 4 Scout", {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text", "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 10485760,
            "num_attention_heads": 40, "rope_scaling": llama3(16.0, 1.0, 1.0), "rope_theta": 500000.0
        },
        "vision_config": {
            "model_type": "llama4_vision_model", "hidden_size": 1408, "image_size": 336, "num_attention_heads": 16,
            "patch_size": 14, "rope_theta": 10000
        }
    }, (
        Place("text_config", "llama3", 128, 64, 500000.0, 10485760),
        Place("vision_config", "axial", 88, 44, 10000.0, None),
    )),
    Published("LLaVA 1.5 7B", {
        "model_type": "llava",
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "num_attention_heads": 16}
    }, (Place("text_config", "default", 128, 64, 10000.0, 4096),)),
    Published("Mistral Small 3.1 24B", {
        "model_type": "mistral3",
        "text_config": {
            "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 131072,
            "num_attention_heads": 32, "rope_theta": 1000000000.0
        },
        "vision_config": {
            "model_type": "pixtral", "head_dim": 64, "hidden_size": 1024, "image_size": 1540,
            "num_attention_heads": 16, "patch_size": 14, "rope_theta": 10000.0
        }
    }, (
        Place("text_config", "default", 128, 64, 1000000000.0, 131072),
        Place("vision_config", "axial", 64, 32, 10000.0, None),
    )),
    Published("Ministral 3 8B", {
        "model_type": "mistral3",
        "text_config": {
            "model_type": "ministral3", "head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 262144,
            "num_attention_heads": 32, "rope_parameters": MINISTRAL3_ROPE
        },
        "vision_config": {"model_type": "pixtral", "rope_parameters": {"rope_theta": 10000.0}}
    }, (
        Place("text_config", "yarn", 128, 64, 1000000.0, 262144),
        Place("vision_config", "axial", 64, 32, 10000.0, None),
    )),
    Published("Qwen2-VL 7B", {
        "model_type": "qwen2_vl", "hidden_size": 3584, "max_position_embeddings": 32768, "num_attention_heads": 28,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "rope_theta": 1000000.0,
        "vision_config": {
            "model_type": "qwen2_vl", "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16
        }
    }, (Place("", "default", 128, 64, 1000000.0, 32768), Place("vision_config", "axial", 80, 40, 10000.0, None))),
    Published("Qwen2.5-VL 7B", {
        "model_type": "qwen2_5_vl", "hidden_size": 3584, "max_position_embeddings": 128000,
        "num_attention_heads": 28, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "rope_theta": 1000000.0,
        "vision_config": {"model_type": "qwen2_5_vl", "hidden_size": 1280, "num_heads": 16, "out_hidden_size": 3584}
    }, (Place("", "default", 128, 64, 1000000.0, 128000), Place("vision_config", "axial", 80, 40, 10000.0, None))),
    Published("Qwen3-VL 8B", {
        "model_type": "qwen3_vl",
        "text_config": {
            "model_type": "qwen3_vl_text", "head_dim": 128, "hidden_size": 4096, "max_position_embeddings": 262144,
            "num_attention_heads": 32,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "rope_theta": 5000000
        },
        "vision_config": {"model_type": "qwen3_vl", "depth": 27, "hidden_size": 1152, "num_heads": 16}
    }, (
        Place("text_config", "default", 128, 64, 5000000.0, 262144),
        Place("vision_config", "axial", 72, 36, 10000.0, None),
    )),
    Published("DINOv3 ViT-S/16", {
        "model_type": "dinov3_vit", "hidden_size": 384, "num_attention_heads": 6, "rope_theta": 100.0
    }, (Place("", "axial", 64, 32, 100.0, None),)),
)  # fmt: skip
BY_MODEL = {one.model: one for one in PUBLISHED}
