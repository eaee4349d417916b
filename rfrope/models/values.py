"""Values of one kind of layer in a model's config: the names that models have for them, and what they leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rfrope._core.arguments import fraction, show, whole
from rfrope.data.model_types import known
from rfrope.models.rope_parameters import DEFAULT_THETA
from rfrope.scaling.shared import positive

# Names that models have for one thing, the usual one first. The first that a config holds counts.
NAMES = {
    "rope_theta": ("rope_theta", "rotary_emb_base", "global_rope_theta", "rotary_embedding_base"),
    "local_theta": ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "embed_dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx"),
}
DICTS = ("rope_parameters", "rope_scaling")
_MOVED = ("llama3", "yarn", "longrope", "su")  # these take original_max_position_embeddings from beside the dict


def first(part: Mapping[str, Any], what: str, defaults: Mapping[str, Any] | None = None) -> Any:
    """Value of the first of a thing's names that a config holds, else the usual one of its type, else None."""
    found = next((part[name] for name in NAMES[what] if part.get(name) is not None), None)
    return found if found is not None or defaults is None else defaults.get(what)


def given(part: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_parameters`` and the older ``rope_scaling`` in one; where both say something they must agree."""
    joined: dict[str, Any] = {}
    for key in DICTS:
        parameters = part.get(key)
        if parameters is not None and not isinstance(parameters, Mapping):
            raise TypeError(f"{key} is {show(parameters)}; expected a dict or None")
        for inner, value in (parameters or {}).items():
            if not isinstance(inner, str):
                raise TypeError(f"{key} holds the key {show(inner)}; expected names of parameters")
            if value is not None and joined.setdefault(inner, value) != value:
                raise ValueError(
                    f"rope_scaling[{show(inner)}] is {show(value)}, but rope_parameters[{show(inner)}] is "
                    f"{show(joined[inner])}; expected one of them, or equal"
                )
    return joined


def is_nested(parameters: Mapping[str, Any]) -> bool:
    """Whether a dict of rotary parameters holds one such dict for each kind of layer."""
    return any(isinstance(value, Mapping) for value in parameters.values())


def base(part: Mapping[str, Any], what: str = "rope_theta") -> float | None:
    """A base that stands beside the dict; where two of its names are used they must agree."""
    held = {name: part[name] for name in NAMES[what] if part.get(name) is not None}
    for name, value in held.items():
        if isinstance(value, list | tuple):
            raise ValueError(
                f"{name} is {show(value)}, one for each layer, which is not read; expected a number. Pass each of them "
                "to rfrope.models.from_rope_parameters"
            )
    bases = {name: positive(name, value) for name, value in held.items()}
    if len(set(bases.values())) > 1:
        listed = ", ".join(f"{name} is {value}" for name, value in bases.items())
        raise ValueError(f"{listed}; expected one of them, or equal")
    return next(iter(bases.values()), None)


def head_dim(part: Mapping[str, Any], layer: str, parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> int:
    """Width of a head; with latent attention of the part that carries positions, unless a fraction says which."""
    own = {"full_attention": "global_head_dim", "sliding_attention": "swa_head_dim"}.get(layer, "")
    found = _of_layer(part, layer, "head_dim")
    if found is None:
        found = part.get(own) if part.get(own) is not None else defaults.get(own)
    latent = part.get("qk_rope_head_dim") if part.get("use_mla") is not False else 0
    of_whole = parameters.get("partial_rotary_factor") is not None and (not defaults or "partial" in defaults)
    if found is None and latent and not of_whole:
        found = latent
    if found is None:
        found = first(part, "head_dim")
    if latent == 0:  # DeepSeek-V2 without latent attention, which saves its head_dim as 0
        found = found or None
    elif found is None and latent and part.get("qk_nope_head_dim") is not None:
        found = whole("qk_nope_head_dim", part["qk_nope_head_dim"]) + whole("qk_rope_head_dim", latent, 1)
    if found is None and latent != 0 and "head_dim" not in part:  # null is the quotient, whatever the type has
        found = defaults.get("head_dim")
    if found is None and latent:
        raise ValueError(
            "qk_nope_head_dim is missing; expected it or head_dim beside qk_rope_head_dim and partial_rotary_factor"
        )
    return whole("head_dim", found, 1) if found is not None else _quotient(part, defaults)


def _quotient(part: Mapping[str, Any], defaults: Mapping[str, Any]) -> int:
    width, heads = (first(part, what, defaults) for what in ("hidden_size", "num_attention_heads"))
    if width is None or heads is None:
        raise ValueError("head_dim is missing; expected it, or hidden_size and num_attention_heads")
    width, heads = whole("hidden_size", width, 1), whole("num_attention_heads", heads, 1)
    if width < heads:
        raise ValueError(f"hidden_size is {width}, num_attention_heads {heads}; expected at least one feature a head")
    return width // heads


def qk_head_dim(part: Mapping[str, Any], width: int) -> int:
    """Width of a score; latent attention adds features without positions to those with."""
    apart = part.get("qk_rope_head_dim") == width and part.get("qk_nope_head_dim") is not None
    return width + whole("qk_nope_head_dim", part["qk_nope_head_dim"]) if apart else width


def window(part: Mapping[str, Any], layer: str) -> int | None:
    """Positions that the layers see, where it is a number of them."""
    length = part.get("sliding_window") if layer == "sliding_attention" else None
    return None if length is None else whole("sliding_window", length, 1)


def _of_layer(part: Mapping[str, Any], layer: str, key: str) -> Any:
    """What transformers 5 saves of the first layer of a kind, where layers differ in more than their RoPE."""
    apart, kinds = part.get("per_layer_config"), part.get("layer_types")
    if not isinstance(apart, Mapping) or not isinstance(kinds, list | tuple) or layer not in kinds:
        return None
    at = kinds.index(layer)
    own: Any = next((entry for index, entry in apart.items() if str(index).isdecimal() and int(index) == at), {})
    return own.get(key, part.get(key)) if isinstance(own, Mapping) else None


def filled(
    parameters: Mapping[str, Any], part: Mapping[str, Any], width: int, layer: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """What a config says beside the dict of a layer, put into it under the names of transformers 5."""
    values = {key: value for key, value in parameters.items() if value is not None}
    usual = defaults.get("rope_parameters", {})
    usual = usual.get(layer) or {} if is_nested(usual) else usual
    has_dict = bool(given(part))
    lacking = {**usual, **(defaults.get("beside", {}) if has_dict else {})}
    theta = base(part)
    if theta is not None and "whole" in defaults and not has_dict and theta != usual["rope_theta"]:
        raise ValueError(
            f"rope_theta is {theta}, which this model_type does not read without rope_parameters; expected such a dict"
        )
    # the base beside the dict is for all kinds of layer, but where the type has local layers with a base of their own
    if theta is not None and not (layer == "sliding_attention" and usual.get("rope_theta") == DEFAULT_THETA):
        values.setdefault("rope_theta", theta)
    values.setdefault("rope_theta", lacking.get("rope_theta", DEFAULT_THETA))
    scheme = values.get("rope_type", values.get("type"))
    if scheme == "yarn" and "short_factor" in values:  # Phi-3's second name for it
        scheme = "longrope"
        values = {key: value for key, value in values.items() if key != "type"} | {"rope_type": scheme}
    if scheme == "ntk" and known(part.get("model_type")).get("ntk") == "own":
        raise ValueError(
            f"the scheme 'ntk' of {show(part['model_type'])} is not that of rfrope: its code also divides all "
            "frequencies by factor ** (2 / head_dim); use rfrope.scaling.ntk and rfrope.scaling.linear"
        )
    if scheme in (None, "default", "mrope") and defaults and "partial" not in defaults:
        values["partial_rotary_factor"] = 1.0  # the classes of these models ignore it there
    part_of = _part_of_head(part, width, defaults)
    values.setdefault(
        "partial_rotary_factor", lacking.get("partial_rotary_factor", 1.0) if part_of is None else part_of
    )
    if scheme in _MOVED and part.get("original_max_position_embeddings") is not None:
        values["original_max_position_embeddings"] = part["original_max_position_embeddings"]
    return values


def _part_of_head(part: Mapping[str, Any], width: int, defaults: Mapping[str, Any]) -> float | None:
    """What part of a head is rotated, as given beside the dict."""
    name = next((name for name in NAMES["partial_rotary_factor"] if part.get(name) is not None), None)
    if name is not None:
        return fraction(name, part[name])
    reads = not defaults or defaults.get("partial") == "rotary_dim"
    if part.get("rotary_dim") is None or part.get("rope_parameters") is not None or not reads:
        return None
    rotated = whole("rotary_dim", part["rotary_dim"], 1)
    if rotated > width:
        raise ValueError(f"rotary_dim is {rotated}; expected at most head_dim = {width}")
    found = rotated / width
    return found if int(width * found) == rotated else math.nextafter(found, 1.0)
