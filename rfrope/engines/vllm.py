"""vLLM and SGLang: ``get_rope`` with ``rope_parameters`` of transformers; vLLM's operator, with a table."""

from __future__ import annotations

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats, observed
from rfrope.engines.formulas import UnknownError
from rfrope.engines.record import ConfigRope, Engine, EngineRope, Format

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
_SGLANG_LENGTHS = {
    "dynamic": "computed once, for a text of factor times the context",
    "longrope": "long_factor for a batch that holds a position above {}, else short_factor; keys in a cache keep their "
    "old frequencies",
}


# -- SGLang ------------------------------------------------------------------------------------------------------------


def _find_layers(config: ConfigRope) -> tuple[int, ...] | None:
    """Return the layers that turn: in Llama 4 three of four, whatever ``no_rope_layers`` says."""
    count = config.raw.get("num_hidden_layers")
    if config.model_type == "llama4_text" and config.rope.source.model.name and count is not None:
        return tuple(i for i in range(count) if (i + 1) % 4)
    return config.rope.source.model.layers


def _read_gemma3(config: ConfigRope) -> EngineRope:
    """Return the RoPE of one kind of layers: by transformers' own functions, those under a window without a scheme.

    What ran was the way of a processor with AMX, which leaves the scheme out.
    """
    if config.kind == "sliding_attention" or config.scheme == "default":
        ignored = () if config.scheme == "default" else ("rope_type",)
        return EngineRope(config.ladder(), ignored_keys=ignored, layers=config.rope.source.model.layers)
    if config.scheme == "dynamic":
        raise UnknownError(f"the scheme {show(config.scheme)} was not read")
    note = "on processors with AMX the scheme is left out"
    layers = config.rope.source.model.layers
    return EngineRope(np.asarray(config.rope.frequencies), config.rope.attention_factor, note=note, layers=layers)


SGLANG = Engine(
    "SGLang",
    observed.reading(
        "SGLang",
        _SGLANG_LENGTHS,
        own={"gemma3_text": _read_gemma3},
        reordered=("llama4_text",),
        layers=_find_layers,
        sources=("python/sglang/srt/models/{gemma3_causal,gemma3n_causal,gemma4_causal}.py (read, not run)",),
    ),
    formats.config_format(
        "as vLLM",
        f"SGLang 0.5.23, srt/layers/rotary_embedding/factory.py and rope_variant.py; {formats.RUN}: get_rope",
        formats.make_longrope_with_mscales,
        pairings=("half",),
    ),
)
