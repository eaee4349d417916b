"""Values of one kind of layer in a model's config: the names that models have for them, and what they leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rfrope._core.arguments import fraction, show, whole
from rfrope.data.model_types import has_defaults, known
from rfrope.models.rope_parameters import DEFAULT_THETA
from rfrope.scaling.shared import positive

# Names that models have for one thing, the usual one first. The first that a config holds counts, of those that its
# class reads where the class is known (`names`).
NAMES = {
    "rope_theta": ("rope_theta", "rotary_emb_base", "global_rope_theta", "rotary_embedding_base"),
    "local_theta": ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "embed_dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx"),
}
DICTS = ("rope_parameters", "rope_scaling")
_SIZES = ("head_dim", "hidden_size", "num_attention_heads")
_BESIDE = ("rope_theta", "partial_rotary_factor")  # may stand beside the dict
_WINDOWED = ("sliding", "chunked")  # beginnings of the names of kinds of layers
_NO_ATTENTION = ("linear_attention", "conv", "mamba", "recurrent")
_MOVED = ("llama3", "yarn", "longrope", "su")  # these take original_max_position_embeddings from beside the dict


def names(what: str, defaults: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Names of a thing in a config: those that the class of a known type reads, else all that models have for it."""
    if defaults is None or not has_defaults(defaults):
        return NAMES[what]
    own: tuple[str, ...] = defaults.get("names", {}).get(what, NAMES[what][:1])
    return own


def first(part: Mapping[str, Any], what: str, defaults: Mapping[str, Any] | None = None) -> Any:
    """Value of the first of a thing's names that a config holds, else the usual one of its type, else None.

    A known class has these for one field, and takes what a file has last.
    """
    held = {name: part[name] for name in names(what, defaults) if part.get(name) is not None}
    found = next(iter(held.values()), None)
    if what in _SIZES and has_defaults(defaults or {}) and any(value != found for value in held.values()):
        listed = ", ".join(f"{name} is {show(value)}" for name, value in held.items())
        raise ValueError(f"{listed}; expected one of them, or equal")
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


def base(part: Mapping[str, Any], read: tuple[str, ...]) -> float | None:
    """A base that stands beside the dict, under one of the names that are read; if under two they must agree."""
    held = {name: part[name] for name in read if part.get(name) is not None}
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
    if defaults.get("head_dim") == "quotient" or "qk_rope_head_dim" in defaults:  # its class sets it itself
        latent = _latent(part, layer, defaults)
        if latent is None:
            return _quotient(part, defaults)
        return sum(latent) if defaults.get("partial") == "latent" else latent[0]
    found, is_known = _of_layer(part, layer, "head_dim"), has_defaults(defaults)
    own = {"full_attention": "global_head_dim", "sliding_attention": "swa_head_dim"}.get(layer, "")
    if found is None and (own in defaults or not is_known or not is_nested(defaults["rope_parameters"])):
        found = part.get(own) if part.get(own) is not None else defaults.get(own)
    if found is None and not is_known:
        found = _of_unknown_type(part, parameters.get("partial_rotary_factor") is not None)
    if found is None:
        is_null = any(name in part for name in names("head_dim", defaults))  # the quotient then, whatever the type has
        found = first(part, "head_dim", {**defaults, "head_dim": None} if is_null else defaults)
    return whole("head_dim", found, 1) if found is not None else _quotient(part, defaults)


def _of_unknown_type(part: Mapping[str, Any], of_whole: bool) -> int | None:
    """Width of a head with latent attention, in a type of which nothing is known; None for other attention."""
    latent = part.get("qk_rope_head_dim") if part.get("use_mla") is not False else None
    if not latent or not of_whole:
        return latent or None
    found, other = first(part, "head_dim"), part.get("qk_nope_head_dim")
    if found is None and other is None:
        raise ValueError(
            "qk_nope_head_dim is missing; expected it or head_dim beside qk_rope_head_dim and partial_rotary_factor"
        )
    return found or whole("qk_nope_head_dim", other) + whole("qk_rope_head_dim", latent, 1)


def _latent(part: Mapping[str, Any], layer: str, defaults: Mapping[str, Any]) -> tuple[int, int] | None:
    """Widths with and without positions of a query of a known type; None without latent attention."""
    if "qk_rope_head_dim" not in defaults or part.get("use_mla") is False:
        return None
    keys = ("qk_rope_head_dim", "qk_nope_head_dim")
    found, usual = {key: _of_layer(part, layer, key) for key in keys}, defaults.get("swa", {})
    if usual and layer == "sliding_attention" and None in found.values():
        sizes = {key: whole(f"swa_{key}", part.get(f"swa_{key}", value)) for key, value in usual.items()}
        rest = sizes["head_dim"] - sizes["qk_nope_head_dim"]
        found = sizes | {"qk_rope_head_dim": part.get("swa_qk_rope_head_dim", rest)}
    rope, other = (whole(key, first(part, key, defaults) if found[key] is None else found[key]) for key in keys)
    return (rope, other) if rope else None


def _quotient(part: Mapping[str, Any], defaults: Mapping[str, Any]) -> int:
    width, heads = (first(part, what, defaults) for what in ("hidden_size", "num_attention_heads"))
    if width is None or heads is None:
        raise ValueError("head_dim is missing; expected it, or hidden_size and num_attention_heads")
    width, heads = whole("hidden_size", width, 1), whole("num_attention_heads", heads, 1)
    if width < heads:
        raise ValueError(f"hidden_size is {width}, num_attention_heads {heads}; expected at least one feature a head")
    for name in defaults.get("alike", ()):  # its class has one head_dim for all layers
        if (other := part.get(name, defaults["num_attention_heads"])) != heads:
            own = names("num_attention_heads", defaults)[0]
            raise ValueError(f"{name} is {show(other)} and {own} {heads}; expected the same number")
    return int(defaults.get("quotient", 1)) * width // heads


def qk_head_dim(part: Mapping[str, Any], layer: str, width: int, defaults: Mapping[str, Any]) -> int:
    """Width of a score; latent attention adds features without positions to those with."""
    if has_defaults(defaults):
        return sum(_latent(part, layer, defaults) or (width,))
    apart = part.get("qk_rope_head_dim") == width and part.get("qk_nope_head_dim") is not None
    return width + whole("qk_nope_head_dim", part["qk_nope_head_dim"]) if apart else width


def windows(part: Mapping[str, Any], layer: str, defaults: Mapping[str, Any]) -> dict[str, int | None]:
    """Windows of the layers that a RoPE turns, by kind: the first distance that they do not see; None if there is none.

    One entry, under the name of the RoPE's own kind, where all see as far. What the table has under ``window`` says how
    a known class reads its config; of an unknown type, layers with a window are those that ``layer_types`` calls so.
    """
    if "window" not in defaults and has_defaults(defaults):
        return {layer: None}
    about = defaults.get("window", {})
    length, kinds = _length_of_window(part, about), [layer] if layer else _kinds_of_layers(part, about)
    named = about.get("windowed", [kind for kind in kinds if kind.startswith(_WINDOWED) or kind.endswith("_sliding")])
    found = {kind: length if kind in named else None for kind in kinds if length or kind == layer} or {layer: None}
    return found if len(set(found.values())) > 1 else {layer: next(iter(found.values()))}


def _length_of_window(part: Mapping[str, Any], about: Mapping[str, Any]) -> int | None:
    key = about.get("key", "sliding_window")
    length, apart = part.get(key, about.get("length")), part.get("per_layer_config")
    if part.get("use_sliding_window", about.get("used")) is False or not length:
        return None
    length = whole(key, length, 1)
    if isinstance(apart, Mapping):  # transformers 5, where layers differ in more than their RoPE
        others = [one.get(key) for one in apart.values() if isinstance(one, Mapping)]
        length = max([length, *(whole(key, one, 1) for one in others if one)])
    else:
        length = max(length, about.get("longest", 0))
    turned = part.get("use_bidirectional_attention") is True  # Gemma 3 as an encoder
    length = length // 2 if turned or "half" in about else length
    return length + 1 if turned or "both" in about else length


def _kinds_of_layers(part: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """Kinds of layers of a config with one RoPE that it turns."""
    if about.get("windowed") == ("",):
        return [""]
    kinds = part.get("layer_types")
    if not isinstance(kinds, list | tuple):
        kinds = about.get("layers", ("",))
        first, layers = part.get("max_window_layers", about.get("first")), part.get("num_hidden_layers")
        if "first" in about and (layers is None or first is None or first < layers):
            kinds = ("full_attention", "sliding_attention") if first != 0 else ("sliding_attention",)
    for kind in kinds:
        if not isinstance(kind, str):
            raise ValueError(f"layer_types holds {show(kind)}; expected names of kinds of layers")
    return [kind for kind in dict.fromkeys(kinds) if kind not in about.get("still", ()) and kind not in _NO_ATTENTION]


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
    is_whole = "whole" in defaults and not has_dict
    read = {key: () if is_whole and key in usual else names(key, defaults) for key in _BESIDE}
    theta = base(part, read["rope_theta"])
    # the base beside the dict is for all kinds of layer, but where the type has local layers with a base of their own
    if layer == "sliding_attention" and usual.get("rope_theta") == DEFAULT_THETA:
        theta = None
    theta = part.get(f"{layer}_rope_theta", lacking.get("rope_theta", DEFAULT_THETA) if theta is None else theta)
    values.setdefault("rope_theta", theta)
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
    beside = _part_of_head(part, width, read["partial_rotary_factor"], layer, defaults)
    if defaults.get("partial") == "latent":  # their classes overwrite what a dict has
        values["partial_rotary_factor"] = beside
    values.setdefault("partial_rotary_factor", lacking.get("partial_rotary_factor", 1.0) if beside is None else beside)
    if layer != "sliding_attention":
        _check_unread(part, {key: values[key] for key in _BESIDE if parameters.get(key) is None}, read, defaults)
    if scheme in _MOVED and part.get("original_max_position_embeddings") is not None:
        values["original_max_position_embeddings"] = part["original_max_position_embeddings"]
    return values


def _check_unread(
    part: Mapping[str, Any], used: Mapping[str, Any], read: Mapping[str, tuple[str, ...]], defaults: Mapping[str, Any]
) -> None:
    """Refuse a base, or a part of a head, that the class of a known type passes over beside the dict."""
    for what, value in used.items():
        if not has_defaults(defaults) or (what == "partial_rotary_factor" and defaults.get("partial") is not True):
            continue
        for name in NAMES[what]:
            if name not in read[what] and part.get(name) not in (None, value):
                raise ValueError(
                    f"{name} is {show(part[name])}, which this model_type does not read beside rope_parameters; "
                    f"expected {what} in that dict"
                )


def _part_of_head(
    part: Mapping[str, Any], width: int, read: tuple[str, ...], layer: str, defaults: Mapping[str, Any]
) -> float | None:
    """What part of a head is rotated, as given beside the dict."""
    key = defaults.get("partial") if has_defaults(defaults) else "rotary_dim"
    if key == "latent":
        latent = _latent(part, layer, defaults)
        return None if latent is None else _fraction(latent[0], width)
    name = next((name for name in read if part.get(name) is not None), None)
    if name is not None:
        return fraction(name, part[name])
    if not isinstance(key, str) or part.get(key) is None or part.get("rope_parameters") is not None:
        return None
    rotated = whole(key, part[key], 1)
    if rotated > width:
        raise ValueError(f"{key} is {rotated}; expected at most head_dim = {width}")
    return _fraction(rotated, width)


def _fraction(rotated: int, width: int) -> float:
    """Part of a head whose product with its width, rounded down, is so many features."""
    found = rotated / width
    return found if int(width * found) == rotated else math.nextafter(found, 1.0)
