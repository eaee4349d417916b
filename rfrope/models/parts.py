"""Values of one part of a model's config, under the names that models use, with defaults for missing ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from rfrope._core.arguments import fraction, show, whole
from rfrope.data.model_types import known, read_table
from rfrope.models import layer_patterns
from rfrope.models.accounting import Record, looks_like_rope
from rfrope.models.rope_parameters import DEFAULT_THETA, join_dicts
from rfrope.scaling.schemes import positive

# Names of each value in models, the usual one first. The first one present in the config counts, among those that the
# class reads if it is known (`Part.names`).
NAMES: Mapping[str, tuple[str, ...]] = read_table("config_names")
_POSITIVE = {"factor", "original_max_position_embeddings"}.union(
    *(names for what, names in NAMES.items() if "qk_" not in what and "dim" not in what), NAMES["head_dim"]
)
_USUAL = {what: names[:1] for what, names in NAMES.items()}
_SIZES = ("head_dim", "hidden_size", "num_attention_heads")
_PLAIN = ("rope_type", "default")  # says nothing; transformers itself wrote it beside dicts per layer kind
_WINDOWED = ("sliding", "chunked")  # prefixes of layer kinds
_MOVED = ("llama3", "yarn", "longrope", "su")  # these read original_max_position_embeddings also from outside the dict


def is_broken(config: Any) -> bool:
    """Return whether a config holds text, NaN or a number out of range where every reader takes a positive number."""
    if not isinstance(config, Mapping):
        return False
    for key, value in config.items():
        if isinstance(value, Mapping) and is_broken(value):
            return True
        if key in _POSITIVE and not isinstance(value, Mapping | list | tuple | None):
            largest = 1.0 if key in NAMES["partial_rotary_factor"] else math.inf
            if not isinstance(value, int | float) or not (0.0 < value <= largest and value < math.inf):
                return True
    return False


class Part:
    """One part of a model's config, read as the class of its model type reads it."""

    def __init__(self, held: Mapping[str, Any], model_type: str, table: Mapping[str, Any]) -> None:
        self.held, self.model_type = Record(held), model_type  # the config's values
        self.entry = known(model_type)  # the table's entry of that type
        # the entry with defaults for this config: that of its type, or that of this part in its parent
        self.table = table
        self.is_known = bool(table)
        self.about_window: Mapping[str, Any] = table.get("window", {})
        # the table's rope_parameters, one dict or one for each kind of layer
        self.usual: Mapping[str, Any] = table.get("rope_parameters", {})
        self.has_usual_layers = MappingProxyType in map(type, self.usual.values())
        # for each value, the names that a known class reads, otherwise all names that models use
        self.names: Mapping[str, tuple[str, ...]] = {**_USUAL, **table.get("names", {})} if table else NAMES

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """``rope_parameters`` and ``rope_scaling`` of the config, merged."""
        return join_dicts(self.held)

    def first(self, what: str) -> Any:
        """Return the value under the first name of `what` that the config has, else the usual value, else None.

        A known class reads these names into one field, the last in the file winning; so they must be equal.
        """
        _, found = self._pick(self.names[what], must_agree=self.is_known and what in _SIZES)
        return self.table.get(what) if found is None else found

    def base(self, names: tuple[str, ...]) -> float | None:
        """Return a base from outside the dict, under one of some names; if it is under several, they must agree."""
        name, value = self._pick(names, must_agree=True)
        if isinstance(value, list | tuple):
            raise ValueError(
                f"{name} is a list by layer, which is not read for {show(self.model_type)}; expected layer_types, "
                "and in rope_parameters a dict with its rope_theta for each kind of layers"
            )
        return None if value is None else positive(name, value)

    def _pick(self, names: tuple[str, ...], *, must_agree: bool) -> tuple[str, Any]:
        """Return the first of some names that the config has, and its value."""
        first, found, held = "", None, self.held.held
        self.held.read.update(names)
        for name in names:
            value = held.get(name)
            if found is None:
                first, found = name, value
            elif must_agree and value not in (None, found):
                raise ValueError(f"{first} is {show(found)}, {name} is {show(value)}; expected equal values")
        return first, found

    # -- widths of heads -----------------------------------------------------------------------------------------------

    def widths(self, layer: str, parameters: Mapping[str, Any]) -> tuple[int, int]:
        """Return the width of a head, and of a dot product.

        With latent attention the first is that of the part with positions, unless only a fraction of all latent
        features rotates; the second is that of both parts.
        """
        held, table = self.held, self.table
        if table.get("head_dim") == "quotient" or "qk_rope_head_dim" in table:  # the class sets it itself
            latent = self._latent(layer) or (self._quotient(), 0)
            return sum(latent) if table.get("partial") == "latent" else latent[0], sum(latent)
        found = self._value_of_layer(layer, "head_dim") if "per_layer_config" in held else None
        key = {"full_attention": "global_head_dim", "sliding_attention": "swa_head_dim"}.get(layer, "")
        if found is None and key and (key in table or not self.is_known or not self.has_usual_layers):
            found = held.get(key) if held.get(key) is not None else table.get(key)
        if found is None and not self.is_known:
            found = self._unknown_latent_width(has_fraction=parameters.get("partial_rotary_factor") is not None)
        if found is None:
            names = self.names["head_dim"]
            _, found = self._pick(names, must_agree=self.is_known)
            if found is None and held.keys().isdisjoint(names):  # null means the quotient, whatever the type's default
                found = table.get("head_dim")
        width = whole("head_dim", self._quotient() if found is None else found, 1, layer_patterns.LARGEST)
        other = None if self.is_known else held.get("qk_nope_head_dim")
        is_apart = other is not None and held.get("qk_rope_head_dim") == width
        return width, width + whole("qk_nope_head_dim", other) if is_apart else width

    def _unknown_latent_width(self, *, has_fraction: bool) -> int | None:
        """Return the width of a head with latent attention in an unknown type, or None."""
        latent = self.held.get("qk_rope_head_dim") if self.held.get("use_mla") is not False else None
        if not latent or not has_fraction:
            return latent or None
        found, other = self.first("head_dim"), self.held.get("qk_nope_head_dim")
        if found is None and other is None:
            raise ValueError("qk_nope_head_dim is missing; expected it or head_dim beside qk_rope_head_dim")
        return found or whole("qk_nope_head_dim", other) + whole("qk_rope_head_dim", latent, 1)

    def _latent(self, layer: str) -> tuple[int, int] | None:
        """Return the widths with and without positions of a query of a known type; None without latent attention."""
        if "qk_rope_head_dim" not in self.table or self.held.get("use_mla") is False:
            return None
        keys = ("qk_rope_head_dim", "qk_nope_head_dim")
        found, usual = {key: self._value_of_layer(layer, key) for key in keys}, self.table.get("swa", {})
        if usual and layer == "sliding_attention" and None in found.values():
            sizes = {key: whole(f"swa_{key}", self.held.get(f"swa_{key}", value)) for key, value in usual.items()}
            rest = sizes["head_dim"] - sizes["qk_nope_head_dim"]
            found = sizes | {"qk_rope_head_dim": self.held.get("swa_qk_rope_head_dim", rest)}
        rope, other = (whole(key, self.first(key) if found[key] is None else found[key]) for key in keys)
        return (rope, other) if rope else None

    def _quotient(self) -> int:
        width, heads = self.first("hidden_size"), self.first("num_attention_heads")
        if width is None or heads is None:
            raise ValueError("head_dim is missing; expected it, or hidden_size and num_attention_heads")
        width, heads = whole("hidden_size", width, 1), whole("num_attention_heads", heads, 1)
        for name in self.table.get("narrowed", ()):  # heads of a fraction of the width
            heads *= whole(name, self.held.get(name, 1), 1)
        if width < heads:
            raise ValueError(f"hidden_size is {width}, num_attention_heads {heads}; expected a feature for each head")
        for name in self.table.get("alike", ()):  # the class has one head_dim for all layers
            if (other := self.held.get(name, self.table["num_attention_heads"])) != heads:
                usual = self.names["num_attention_heads"][0]
                raise ValueError(f"{name} is {show(other)} and {usual} {heads}; expected the same number")
        return int(self.table.get("quotient", 1)) * width // heads

    def _value_of_layer(self, layer: str, key: str) -> Any:
        """Return a value that transformers 5 keeps for a kind's first layer, if layers differ in more than RoPE."""
        apart, kinds = self.held.get("per_layer_config"), self.held.get("layer_types")
        if not isinstance(apart, Mapping) or not isinstance(kinds, list | tuple) or layer not in kinds:
            return None
        at = kinds.index(layer)
        found: Any = next((entry for index, entry in apart.items() if str(index).isdecimal() and int(index) == at), {})
        return found.get(key, self.held.get(key)) if isinstance(found, Mapping) else None

    # -- windows of attention ------------------------------------------------------------------------------------------

    def windows(self, layer: str) -> dict[str, int | None]:
        """Return attention windows by kind of layer that a RoPE rotates: the first distance outside, or None.

        There is one entry, named as the RoPE's own kind, if all windows are equal. The table's ``window`` says how a
        known class reads its config; in unknown types, ``layer_types`` names the layers with a window.
        """
        if self.window is None:
            return {layer: None}
        kinds = [layer] if layer else self._layer_kinds()
        usual = [kind for kind in kinds if kind.startswith(_WINDOWED) or kind.endswith("_sliding")]
        windowed = self.about_window.get("windowed", usual)
        found = {kind: self.window if kind in windowed else None for kind in kinds}
        return found if len(set(found.values())) > 1 else {layer: next(iter(found.values()), None)}

    @cached_property
    def window(self) -> int | None:
        """First distance outside the window of layers that have one; None if no layer has."""
        held, about, key = self.held, self.about_window, self.about_window.get("key", "sliding_window")
        if self.is_known and "window" not in self.table:
            return None
        length, apart = held.get(key, about.get("length")), held.get("per_layer_config")
        if held.get("use_sliding_window", about.get("used")) is False or not length:
            return None
        length = whole(key, length, 1)
        if isinstance(apart, Mapping):  # transformers 5, if layers differ beyond their RoPE
            others = [one.get(key) for one in apart.values() if isinstance(one, Mapping)]
            length = max([length, *(whole(key, one, 1) for one in others if one)])
        else:
            length = max(length, about.get("longest", 0))
        is_encoder = held.get("use_bidirectional_attention") is True  # Gemma 3
        length = length // 2 if is_encoder or "half" in about else length
        return length + 1 if self.sees_both_sides else length

    @property
    def sees_both_sides(self) -> bool:
        """True if windows extend to both sides of a token."""
        return self.held.get("use_bidirectional_attention") is True or "both" in self.about_window

    def _layer_kinds(self) -> list[str]:
        """Return the kinds of layers that the RoPE of a config with one RoPE rotates."""
        about = self.about_window
        if about.get("windowed") == ("",):
            return [""]
        kinds: Any = layer_patterns.read_names(self.held)
        if kinds is None:
            kinds = about.get("layers", ("",))
            start, layers = self.held.get("max_window_layers", about.get("first")), self.held.get("num_hidden_layers")
            if "first" in about and (layers is None or start is None or start < layers):
                kinds = ("full_attention", "sliding_attention") if start != 0 else ("sliding_attention",)
        still = (*about.get("still", ()), *layer_patterns.NO_ATTENTION)
        return [kind for kind in dict.fromkeys(kinds) if kind not in still]

    # -- layers --------------------------------------------------------------------------------------------------------

    def layers(self, names: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
        """Return the kind of each layer and the name of its RoPE in the part, None without RoPE; empty if unknown."""
        about = self.table.get("layers", {}) if self.is_known else None
        window, has_window = self.about_window, bool(self.about_window and self.window)
        start = self.held.get("max_window_layers", window.get("first")) if "first" in window and has_window else None
        kinds = layer_patterns.list_kinds(self.held, about, windowed_from=start)
        if kinds is None:
            return ()
        still = [
            *window.get("still", ()),
            *(about or {}).get("still", ()),
            *(kind for kind, one in self.usual.items() if one is None),
        ]
        ropes = layer_patterns.assign_ropes(self.held, about, kinds, names, still, has_window=has_window)
        return () if ropes is None else tuple(zip(kinds, ropes, strict=True))

    def window_of(self, kind: str) -> int | None:
        """Return the first distance outside the window of a layer kind, or None."""
        ropes = self.table.get("layers", {}).get("ropes", {})
        name = "" if self.about_window.get("windowed") == ("",) else ropes.get(kind, ropes.get("", kind))
        return next(iter(self.windows(name).values()))

    # -- rotary parameters ---------------------------------------------------------------------------------------------

    def fill(self, parameters: Mapping[str, Any], width: int, layer: str) -> dict[str, Any]:
        """Return the dict of a layer with values from outside it, under the names of transformers 5."""
        held, table, has_dict = self.held, self.table, bool(self.parameters)
        usual = self.usual.get(layer) or {} if self.has_usual_layers else self.usual
        lacking = {**usual, **(table.get("beside", {}) if has_dict else {})}
        read = self.names
        if "whole" in table and not has_dict:  # used alone
            read = {what: names for what, names in read.items() if what not in usual}
        theta = None if parameters.get("rope_theta") is not None else self.base(read.get("rope_theta", ()))
        # a base outside the dict is for all kinds of layer, unless the type's local layers have their own
        if layer == "sliding_attention" and usual.get("rope_theta") == DEFAULT_THETA:
            theta = None
        theta = held.get(f"{layer}_rope_theta", lacking.get("rope_theta", DEFAULT_THETA) if theta is None else theta)
        values = {key: value for key, value in parameters.items() if value is not None}
        values.setdefault("rope_theta", theta)
        if has_dict and "mrope_section" in lacking:
            values.setdefault("mrope_section", list(lacking["mrope_section"]))
        scheme = values.get("rope_type", values.get("type"))
        if scheme == "yarn" and "short_factor" in values:  # Phi-3's other name for it
            values.pop("type", None)
            scheme = values["rope_type"] = "longrope"
        if scheme == "ntk" and self.entry.get("ntk") == "own":
            raise ValueError(
                f"the scheme 'ntk' of {show(held['model_type'])} is not rfrope's: its code also divides all "
                "frequencies by factor ** (2 / head_dim); use rfrope.scaling.ntk and rfrope.scaling.linear"
            )
        if scheme in (None, "default", "mrope") and table and "partial" not in table:
            values["partial_rotary_factor"] = 1.0  # these models' classes ignore it there
        beside = self._rotated_fraction(width, read.get("partial_rotary_factor", ()), layer)
        if table.get("partial") == "latent":  # these classes overwrite the value in the dict
            values["partial_rotary_factor"] = beside
        usual_fraction = lacking.get("partial_rotary_factor", 1.0) if beside is None else beside
        values.setdefault("partial_rotary_factor", usual_fraction)
        if scheme in _MOVED and held.get("original_max_position_embeddings") is not None:
            values["original_max_position_embeddings"] = held["original_max_position_embeddings"]
        return values

    def _rotated_fraction(self, width: int, read: tuple[str, ...], layer: str) -> float | None:
        """Return the rotated fraction of a head given outside the dict, or None."""
        key = self.table.get("partial")
        if key == "latent":
            latent = self._latent(layer)
            return None if latent is None else _round_fraction(latent[0], width)
        for name in read:
            if self.held.get(name) is not None:
                return fraction(name, self.held[name])
        if self.is_known and not isinstance(key, str):
            return None
        name, value = self._pick(NAMES["rotary_dim"] if key is None else (key,), must_agree=True)
        if value is None:
            return None
        rotated = whole(name, value, 1)
        if rotated > width:
            raise ValueError(f"{name} is {rotated}; expected at most head_dim = {width}")
        return _round_fraction(rotated, width)


# -- kinds of layers with a RoPE of their own --------------------------------------------------------------------------


def list_parameters(part: Part) -> dict[str, dict[str, Any]]:
    """Return the rotary parameters of each kind of layer; a single kind is named ``""``."""
    parameters, usual = part.parameters, part.usual
    if parameters and any(isinstance(value, Mapping) for value in parameters.values()):
        flat = [key for key, value in parameters.items() if not isinstance(value, Mapping) and (key, value) != _PLAIN]
        if flat:
            raise ValueError(
                f"rope_parameters holds {', '.join(flat)} beside dicts of layers; expected {flat[0]} in each dict that "
                "it applies to"
            )
        if odd := [key for key, one in parameters.items() if isinstance(one, Mapping) and looks_like_rope(key, False)]:
            raise ValueError(f"rope_parameters holds {odd[0]}; expected its keys beside the others, or kinds of layers")
        return {layer: dict(one) for layer, one in parameters.items() if isinstance(one, Mapping)}
    if "by_layer" in part.table and (by_kind := _read_lists(part)):
        return by_kind
    compressed = part.table.get("layers", {}).get("compressed")
    if compressed and not part.held.get("rope_parameters"):
        return _split_compressed(part, compressed)
    local = None if part.is_known and not part.has_usual_layers else part.base(NAMES["local_theta"])
    beside = ("rope_theta", "partial_rotary_factor")  # may stand outside the dict
    if not part.has_usual_layers and local is None:
        return {"": parameters or {key: value for key, value in usual.items() if key not in beside}}
    theta = part.base(part.names["rope_theta"])
    layers = {
        layer: {key: value for key, value in one.items() if key not in beside}
        for layer, one in (usual.items() if part.has_usual_layers else ())
        if one is not None
    }
    if not parameters and local is None and theta is None:
        return layers
    if layers and (
        set(layers) != {"full_attention", "sliding_attention"}
        or any(one["rope_type"] != "default" for one in layers.values())
        or part.held.get("rope_parameters")  # an older rope_scaling applies only to layers with full attention
    ):
        raise ValueError(f"rope_parameters is one dict; expected a dict in it for each of {', '.join(sorted(layers))}")
    # rope_scaling then applies to both kinds of layer
    sliding = dict(parameters) if part.entry.get("scaled") == "everywhere" else {}
    return {
        "full_attention": dict(parameters),
        "sliding_attention": sliding if local is None else {**sliding, "rope_theta": local},
    }


def _read_lists(part: Part) -> dict[str, dict[str, Any]]:
    """Return the parameters of each kind of layer from lists by layer; a scheme is for layers with full attention."""
    kinds, lists = layer_patterns.list_kinds(part.held, part.table["layers"]) or (), {}
    for key, name in part.table["by_layer"].items():
        value = part.held.get(name)
        if isinstance(value, list | tuple):
            lists[key] = value
            if len(value) < len(kinds):
                raise ValueError(f"{name} has {len(value)} entries; expected one for each of {len(kinds)} layers")
    if part.held.get("yarn_only_types") not in (None, ["full_attention"]):
        raise ValueError(f'yarn_only_types is {show(part.held["yarn_only_types"])}; expected ["full_attention"]')
    found: dict[str, dict[str, Any]] = {}
    if lists and not kinds:
        raise ValueError(
            f"{', '.join(sorted(part.table['by_layer'].values()))} need num_hidden_layers, which is missing"
        )
    for i, kind in enumerate(kinds) if lists else ():
        values = {key: value[i] for key, value in lists.items()}
        values |= part.parameters if kind == "full_attention" else {}
        if found.setdefault(kind, values) != values:
            raise ValueError(f"layer {i} has {values}, another of {kind} has {found[kind]}; expected the same")
    return found


def _split_compressed(part: Part, key: str) -> dict[str, dict[str, Any]]:
    """Return the parameters of DeepSeek V4's two RoPEs; a scheme is for compressed keys, without attention factor."""
    theta, compressed = part.base(part.names["rope_theta"]), dict(part.parameters)
    main = {"rope_theta": part.usual["main"]["rope_theta"] if theta is None else theta}
    given = part.held.get(key)
    compressed["rope_theta"] = part.usual["compress"]["rope_theta"] if given is None else positive(key, given)
    if compressed.get("rope_type", compressed.get("type")) == "yarn":
        compressed.setdefault("attention_factor", 1.0)
    return {"main": main, "compress": compressed}


def _round_fraction(rotated: int, width: int) -> float:
    """Return the fraction whose product with the width of a head, rounded down, is the number of rotated features."""
    found = rotated / width
    return found if int(width * found) == rotated else math.nextafter(found, 1.0)
