"""TensorRT-LLM, whose PyTorch classes read configs, and Megatron-Bridge, which makes models of Megatron-Core."""

from __future__ import annotations

from typing import Any

from rfrope.engines import formats, observed
from rfrope.engines.record import Engine, ExportRequest


def _make_rope_scaling(request: ExportRequest) -> dict[str, Any]:
    """Return the keys of older configs, and the original context beside them, where it is looked for first."""
    made, key = formats.make_rope_scaling(request), "original_max_position_embeddings"
    scaling = made["rope_scaling"] or {}
    if request.scheme is None:
        del scaling["attention_factor"]
    return made | ({key: scaling[key]} if key in scaling else {})


ENGINE = Engine(
    "TensorRT-LLM",
    observed.reading(
        "TensorRT-LLM",
        {"longrope": "long_factor where the engine's max_seq_len is above {} or unset, else short_factor"},
        sources=(
            "tensorrt_llm/_torch/attention_backend/interface.py (RopeParams) at 51ea5c9",
            "RopeEmbeddingUtils and RotaryScalingType, which it calls, in a later version: tensorrt_llm/functional.py",
            "tensorrt_llm/_torch/models/modeling_llama.py at 012cf90, modeling_phi3.py at 000a01d, "
            "modeling_qwen.py at 047098b, modeling_qwen3.py",
        ),
    ),
    formats.config_format(
        "``rope_scaling`` of type ``longrope``, for config.json",
        f"TensorRT-LLM, _torch/attention_backend/interface.py of 000a01d; {formats.READ}",
        _make_rope_scaling,
        pairings=("half",),
        factor=False,
    ),
)


# -- Megatron-Bridge ---------------------------------------------------------------------------------------------------


MEGATRON_BRIDGE = Engine(
    "Megatron-Bridge",
    observed.reading(
        "Megatron-Bridge",
        sources=(
            "src/megatron/bridge/models/conversion/model_bridge.py (CONFIG_MAPPING, _hf_config_to_megatron_kwargs) and "
            "transformers_compat.py (rope_theta_from_hf)",
            "src/megatron/bridge/models/{llama/llama_bridge,mistral/mistral_bridge,qwen/qwen2_bridge,qwen/qwen3_bridge,"
            "qwen/qwen3_moe_bridge}.py",
            "megatron/core/models/common/embeddings/rotary_pos_embedding.py and yarn_rotary_pos_embedding.py of "
            "Megatron-LM at 00caa53, megatron/core/models/gpt/gpt_model.py at 007562f",
        ),
    ),
)
