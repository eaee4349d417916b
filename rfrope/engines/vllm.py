"""vLLM: ``get_rope`` with ``rope_parameters`` of transformers, and its operator, with a table."""

from __future__ import annotations

from typing import Any

from rfrope.engines import formats, observed
from rfrope.engines.record import Engine, Format

_ORIGINAL = "original_max_position_embeddings"
_YARN = {"as": "yarn", "needs": ["factor"], "reads": ["beta_fast", "beta_slow", "factor", _ORIGINAL, "rope_theta"]}
_YARN |= {"positions": "original x"}
_GPT_OSS: dict[str, Any] = {**_YARN, "needs": ["factor", "beta_fast", "beta_slow"]}
_GPT_OSS["reads"] = [*_YARN["reads"], "truncate"]
_PLAIN = {"as": "default", "reads": ["partial_rotary_factor", "rope_theta"], "positions": "side"}
_UNSEEN: dict[str, Any] = dict.fromkeys(("gemma3_text", "gemma3n_text", "gemma4_text", "modernbert"), "llama")
_UNSEEN |= {
    "llama4_text": "llama4_text",
    "gpt_oss": {"": _GPT_OSS},
    "deepseek_v4": {
        "": _PLAIN | {"pairing": "interleaved"},
        "compress": _YARN | {"pairing": "interleaved", "attention": "one"},
    },
}
_LENGTHS = {
    "dynamic": "computed once, for a text as long as the context",
    "longrope": "long_factor for every text of a server whose max_model_len is above {} (it is {} unless set "
    "otherwise), else short_factor",
}

ENGINE = Engine(
    "vLLM",
    observed.reading(
        "vLLM",
        _LENGTHS,
        unseen=_UNSEEN,
        layers=lambda config: config.rope.source.model.layers,
        sources=(
            "vllm/models/deepseek_v4/common/rope.py, vllm/transformers_utils/configs/deepseek_v4.py (read, not run)",
            "vllm/model_executor/models/{gemma3,gemma3n,gemma4,gpt_oss,modernbert}.py (read, and run in part)",
        ),
    ),
    formats.config_format(
        "as transformers, with ``short_mscale`` and ``long_mscale``",
        f"vLLM 0.32.0, rotary_embedding/phi3_long_rope_scaled_rope.py; {formats.RUN}: get_rope",
        formats.make_longrope_with_mscales,
        pairings=("half",),
        layered=("gemma3_text", "gemma3n_text", "modernbert", "exaone4"),
    ),
)
OPERATOR = Engine(
    "vLLM operator",
    format=Format(
        "``cos_sin_cache`` of ``torch.ops._C.rotary_embedding``, for code that calls it itself",
        formats.ONCE,
        f"vLLM, csrc/pos_encoding_kernels.cu of 0f5257e; {formats.RUN}: its form without a device, of 0.32.0",
        formats.make_cache,
        formats.round_once,
        heads=formats.ROW_OF_HEAD,
        options=("context", "dtype"),
    ),
)
