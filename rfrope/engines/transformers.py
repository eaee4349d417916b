"""Hugging Face's transformers 5, the reference for `rfrope.from_config`."""

from __future__ import annotations

import numpy as np

from rfrope._core.arguments import show
from rfrope.data.model_types import has_defaults, known, read_table
from rfrope.engines import formats, record
from rfrope.engines.record import ConfigRope, EngineRope, ExportRequest, RefusedError, make_engine

_HELD = read_table("engines")["transformers"]["reading"]


def _read(config: ConfigRope) -> EngineRope:
    name, values = config.scheme, config.values
    written = config.written.get("rope_type", config.written.get("type"))
    # "su" is longrope in the config class of phi3 alone
    if name == "ntk" or (written == "su" and config.model_type != "phi3"):
        raise RefusedError(f"stops with an error: {show(written)} is not one of its schemes")
    if name == "yarn" and not {"factor", "short_factor"} & set(config.written):
        raise RefusedError("stops with an error: factor missing")
    if config.rope.source.model.pairing_from in ("assumed", "config"):
        raise record.UnknownError(f"it has no class for model type {show(config.model_type)}")
    length = EngineRope.length if "alpha" in values else _HELD["lengths"].get(name, EngineRope.length)
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
    """Return why the class of a known model type would turn other features."""
    rope = request.rope
    model_type = rope.source.model.model_type
    entry = known(model_type)
    pairing = entry.get("pairing") if rope.source.model.pairing_from != "given" else None
    if pairing is None and rope.pairing != "half":
        return "most classes of transformers pair halves, and the Rope's model_type is not known to pair neighbours"
    if pairing is not None and pairing != rope.pairing and "pairing_by" not in entry:
        return f"the class of {show(model_type)} pairs {pairing!r}, and the Rope {rope.pairing!r}"
    if rope.head_dim != rope.rotary_dim and has_defaults(entry) and not entry.get("partial"):
        return f"the class of {show(model_type)} turns whole heads, and the Rope turns {rope.rotary_dim} features"
    return ""


READING = record.Reading(_HELD["version"], _HELD["sources"], _read)
ENGINE = make_engine("transformers", formats.make_longrope, formats.compute_longrope, _refuse_by_class, reading=READING)
