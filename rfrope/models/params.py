"""``params.json`` of Mistral and Meta, beside weights in their own form, in the words of a config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_NAMES = {
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "max_seq_len": "max_position_embeddings",
}
_YARN = {"beta": "beta_fast", "alpha": "beta_slow"}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}  # Meta's own code
_FACTOR = "rope_scaling_factor"


def find_file(path: str) -> str:
    """Return the path of the config in a folder; of a file as it is."""
    if not os.path.isdir(path):
        return path
    names = [os.path.join(path, name) for name in ("config.json", "params.json")]
    return next(filter(os.path.exists, names), names[0])


def translate_params(held: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a params.json under the names of a config, and a config as it is.

    Weights of that form pair neighbours. What has no other name is kept, so that no key is dropped; ``assumed`` says
    what the file does not. Mistral's keys are read as by vLLM (transformers_utils/configs/mistral.py).
    """
    if not ("dim" in held and "n_heads" in held and "model_type" not in held):
        return held
    made = {_NAMES.get(key, key): value for key, value in held.items()} | {"rope_interleave": True}
    made.pop("llama_4_scaling", None)  # it scales queries by position
    if made.get("rope_theta") is None:
        raise ValueError("rope_theta is missing; expected the base of the training (10000.0 for the oldest files)")
    yarn, is_scaled = made.pop("yarn", None), made.pop("use_scaled_rope", False)
    if isinstance(yarn, Mapping):
        scheme = {_YARN.get(key, key): value for key, value in yarn.items()} | {"rope_type": "yarn"}
        made["rope_scaling"] = scheme if scheme.pop("apply_scale", True) else scheme | {"attention_factor": 1.0}
    elif is_scaled:
        factor, high = made.pop(_FACTOR, None), made.pop("rope_high_freq_factor", None) or 4.0
        made["rope_scaling"] = _LLAMA3 | {"factor": factor or 8.0, "high_freq_factor": high}
        if factor is None:
            made["assumed"] = (
                "use_scaled_rope says no factor: 8 is assumed, as for Llama 3.1 in Meta's code; for Llama 3.2 1B and "
                f"3B, whose config.json has 32, expected {_FACTOR}: 32 beside it."
            )
    vision = made.pop("vision_encoder", None) or (made.get("multimodal") or {}).get("vision_encoder_args")
    if isinstance(vision, Mapping):
        made["vision_config"] = {"model_type": "pixtral", **vision}
        made.pop("multimodal", None)
    return made
