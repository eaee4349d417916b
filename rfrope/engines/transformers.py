"""Hugging Face's transformers 5, the reference for `rfrope.from_config`, and 4, which reads configs in older form."""

from __future__ import annotations

import numpy as np

from rfrope._core.arguments import show
from rfrope.data.model_types import has_defaults, known
from rfrope.engines import formats, observed
from rfrope.engines.formulas import RefusedError, UnknownError
from rfrope.engines.record import ConfigRope, Engine, EngineRope, ExportRequest, Reading

_LAYERED = (  # model types, whose classes take a dict for each kind of layer, or a list of layers without RoPE
    *("gemma3_text", "gemma3n_text", "olmo3", "modernbert", "modernbert-decoder"),
    *("smollm3", "cohere2", "exaone4", "llama4_text"),
)
_SU = ("phi3",)  # model types whose config class knows "su" for longrope
_CACHED = "keys in a cache keep their old frequencies"
_LENGTHS = {
    "dynamic": f"recomputed for every text longer than the context; {_CACHED}",
    "longrope": f"long_factor for texts longer than {{}}, short_factor for others; {_CACHED}",
}


def _read(config: ConfigRope) -> EngineRope:
    name, values = config.scheme, config.values
    written = config.written.get("rope_type", config.written.get("type"))
    if name == "ntk" or (written == "su" and config.model_type not in _SU):
        raise RefusedError(f"stops with an error: {show(written)} is none of its schemes")
    if name == "yarn" and not {"factor", "short_factor"} & set(config.written):
        raise RefusedError("stops with an error: factor missing")
    if config.rope.source.model.pairing_from in ("assumed", "config"):
        raise UnknownError(f"it has no class for model type {show(config.model_type)}")
    length = EngineRope.length if "alpha" in values else _LENGTHS.get(name, EngineRope.length)
    note = "after rfrope.integrations.transformers.register(), else it stops with an error" if name == "rfrope" else ""
    return EngineRope(
        np.asarray(config.rope.frequencies),
        config.rope.attention_factor,
        length.format(values.get("original_max_position_embeddings")),
        config.rope.pairing,
        note=note,
        layers=config.rope.source.model.layers,
    )


def _refuse_by_class(request: ExportRequest) -> str:
    """Return why the class of a model type, where that is known, would turn other features."""
    rope = request.rope
    model_type = rope.source.model.model_type
    entry = known(model_type)
    pairing = entry.get("pairing") if rope.source.model.pairing_from != "given" else None
    if pairing is None and rope.pairing != "half":
        return "most classes of transformers pair halves, and the Rope does not say that its model_type pairs otherwise"
    if pairing is not None and pairing != rope.pairing and "pairing_by" not in entry:
        return f"the class of {show(model_type)} pairs {pairing!r}, the Rope {rope.pairing!r}"
    if rope.head_dim != rope.rotary_dim and has_defaults(entry) and not entry.get("partial"):
        return f"the class of {show(model_type)} turns whole heads, the Rope {rope.rotary_dim} features of a head"
    return ""


ENGINE = Engine(
    "transformers",
    Reading(
        "5.23.0",
        (
            "src/transformers/modeling_rope_utils.py (ROPE_INIT_FUNCTIONS, dynamic_rope_update)",
            "src/transformers/models/*/modeling_*.py (the classes of the model types)",
        ),
        _read,
    ),
    formats.config_format(
        "``rope_parameters`` of type ``longrope``, for config.json; no code",
        f"transformers 5.23, modeling_rope_utils.py; {formats.RUN}: Llama, Qwen3, Phi-3",
        formats.make_longrope,
        refusal=_refuse_by_class,
        layered=_LAYERED,
        cannot="what the class of the ``model_type`` would pair or slice otherwise",
    ),
)
OLD = Engine("transformers 4", observed.reading("transformers 4", _LENGTHS))
