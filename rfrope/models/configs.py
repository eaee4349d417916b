"""Read the RoPE of a model from its config: where models keep it, under which names, and what they leave out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rfrope._core import array, files
from rfrope._core.arguments import flag, path_of, printable, show, whole
from rfrope._core.blocks import check_pairing
from rfrope.data.model_types import has_defaults, known
from rfrope.models import layer_patterns
from rfrope.models.accounting import Facts, find_unread, read_pairing
from rfrope.models.axial import DIFFUSERS, make_axial, make_diffusers
from rfrope.models.gguf import find_file, find_gguf, read_gguf, translate_params
from rfrope.models.parts import NAMES, Part, list_parameters
from rfrope.models.rope_parameters import DICTS, make_rope, place_rope, read_scheme
from rfrope.rotation.provenance import ModelPart
from rfrope.rotation.rope import Rope, refuse_polar
from rfrope.scaling import schemes
from rfrope.scaling.schemes import positive

_SIGNS = (*DICTS, *NAMES["rope_theta"], *NAMES["local_theta"], *NAMES["rotary_dim"], "rope_ratio")
_SIGNS = (*_SIGNS, *NAMES["partial_rotary_factor"][1:])
# keys of known types that other readers take, or published configs carry: read as transformers does, and said
_SAID = ("partial_rotary_factor", "position_embedding_type", "use_mla", "original_max_position_embeddings")
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")  # repeats values of the part around it
_PERCEPTION = ("vision", "visual", "vit", "image", "audio", "protein")  # read only if their type is known
_DEEPEST = 8  # nesting depth; models have three


@dataclass(frozen=True)
class PartLayers:
    """One part of a config: its name, its values, the kind and the RoPE of each layer, and the Ropes by name."""

    name: str
    part: Part
    layers: tuple[tuple[str, str | None], ...]
    ropes: dict[str, Rope]


@dataclass
class _Reading:
    """Options of `from_config`, the place being read, and all places read."""

    seq_len: int | None
    pairing: str | None
    place: str = ""
    looked: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)


def from_config(
    config: Mapping[str, Any] | str | os.PathLike[str] | Any,
    *,
    seq_len: int | None = None,
    pairing: str | None = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> tuple[Rope, ...]:
    """Return all Ropes of a model, from its config.

    Parameters
    ----------
    config : dict, path, or object with to_dict()
        A Hugging Face config: content or path of a config.json, its folder, or a transformers config; or the path of a
        params.json of Mistral or Meta, or of a GGUF, which is read as llama.cpp reads it.
    seq_len : int, optional
        Length of the text, on which the schemes dynamic and longrope depend. Default: a short text.
    pairing : {"half", "interleaved"}, optional
        Features that form a block. Required for model types missing from the table of transformers' classes, or for
        weights with reordered features.
    xp, device, dtype
        See `geometric`.

    Returns
    -------
    tuple of Rope
        One for each place, which is the top level or a part (``text_config``, ``vision_config``, ...), and each kind of
        layer in it. The ``context`` is ``max_position_embeddings``. The ``source`` is a `rotation.Provenance` with

        - ``rope_parameters``: the scheme and its values under their names in transformers 5, with defaults filled in
          (``rope_type`` is ``"axial"`` for the two axes of vision models);
        - ``model``: a `rotation.ModelPart` with the place, the model type, the origin of the pairing, attention
          windows, and the width of a dot product.

    Raises
    ------
    ValueError
        If no RoPE is found, a file holds no config or more than 16 MiB, or a required key is missing. See also
        `from_rope_parameters`. The message begins with the file and the place.
    TypeError
        If the config is of another type. See also `from_rope_parameters`.
    FileNotFoundError
        If the file or folder does not exist. Model names are not accepted, as nothing is downloaded.
    OSError
        If a file cannot be read, or is not a regular file.

    See Also
    --------
    models.from_rope_parameters, models.compare, analysis.summarise

    Notes
    -----
    Nothing is downloaded or executed. Values missing from a config are taken from a table of the defaults of
    transformers 5 for its ``model_type``. Parts whose RoPE the config does not determine (some vision and audio
    encoders) are left out; it is an error if no other part remains.

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "gemma3_text", "hidden_size": 1152, "num_attention_heads": 4, "head_dim": 256,
    ...           "rope_theta": 1000000, "rope_local_base_freq": 10000, "max_position_embeddings": 32768}
    >>> for part in rfrope.from_config(config):
    ...     print(part.source.model.name, part.source.rope_parameters["rope_theta"], part)
    full_attention 1000000.0 Rope(128 frequencies, pairing='half', head_dim=256, context=32768)
    sliding_attention 10000.0 Rope(128 frequencies, pairing='half', head_dim=256, context=32768)
    """
    parts = read_parts(config, seq_len=seq_len, pairing=pairing)
    return tuple([place_rope(rope, xp, device, dtype) for part in parts for rope in part.ropes.values()])


def read_parts(config: Any, *, seq_len: int | None = None, pairing: str | None = None) -> list[PartLayers]:
    """Return the parts of a config that have RoPE, with their layers, in the order of `from_config`."""
    if seq_len is not None:
        whole("seq_len", seq_len, 1)
    if pairing is not None:
        check_pairing(pairing)
    if (path := find_gguf(config)) is not None:
        part, layers, ropes = read_gguf(path, seq_len, pairing)
        return [PartLayers("", part, layers, ropes)]
    reading = _Reading(seq_len, pairing)
    root, source = read(config)
    try:
        found = _read_part("", root, "", reading)
    except (ValueError, TypeError) as error:
        message = ": ".join(word for word in (source, reading.place, str(error)) if word)
        raise (TypeError if isinstance(error, TypeError) else ValueError)(printable(message)) from None
    if not found:
        places = printable(", ".join(reading.looked))
        why = f"; looked for {', '.join(_SIGNS)}, or a model_type that has one, at {places}"
        why = f": {printable('; '.join(reading.denied))}" if reading.denied else why
        raise ValueError(f"{source or 'config'} describes no RoPE{why}")
    return found


def is_config(value: Any) -> bool:
    """Return whether a value is a config for `from_config`, not a Rope or frequencies."""
    return isinstance(value, Mapping | str | os.PathLike) or hasattr(value, "to_dict")


def read_rope(name: str, value: Any, reason: str = "") -> Rope:
    """Return a Rope, given one or its frequencies, in float64 on the host; polar ones are refused with a `reason`."""
    rope = value if isinstance(value, Rope) else Rope(value)
    if reason:
        refuse_polar(rope, name, reason)
    return replace(rope, frequencies=array.to_host(rope.frequencies, name).astype(np.float64))


def read(config: Any) -> tuple[Mapping[str, Any], str]:
    """Return a config as a dict, and its name in error messages."""
    if isinstance(config, Mapping):
        return translate_params(config), ""
    if hasattr(config, "to_dict") and not isinstance(config, type):
        held = config.to_dict()
        if not isinstance(held, Mapping):
            raise TypeError(f"config.to_dict() gave a {type(held).__name__}; expected a dict")
        return held, ""
    if not isinstance(config, str | os.PathLike):
        raise TypeError(f"config is {show(config)}; expected a dict, the path of a config.json, or a config object")
    return read_file(path_of("config", config))


def read_file(path: str) -> tuple[dict[str, Any], str]:
    """Return the config of a file or folder, and the path of the file."""
    if (path := find_file(path)).lower().endswith(".gguf"):
        raise ValueError(f"{path} is a GGUF, which only llama.cpp reads; expected a config.json or its folder")
    try:
        content = files.read_bytes(path, files.LONGEST_JSON)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: there is no such file or folder here, and nothing is downloaded; expected the path of a "
            "config.json or of its folder, not the name of a model"
        ) from None
    try:
        held = files.parse_json(content.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); expected a model's config.json") from None
    if not isinstance(held, dict):
        raise ValueError(f"{path} holds a {type(held).__name__}; expected a model's config, which is an object")
    return {**translate_params(held)}, path


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for key, value in pairs:
        if key in held:
            raise ValueError(f"{show(key)} occurs twice in one object")
        held[key] = value
    return held


# -- parts and kinds of layers -----------------------------------------------------------------------------------------


def _read_part(name: str, held: Mapping[str, Any], parent: str, reading: _Reading) -> list[PartLayers]:
    """Return a part and the parts inside it, without parts that only repeat the text model inside them."""
    number = len(reading.looked)
    reading.looked.append(name or "the top")
    reading.place = name if name.count(".") < _DEEPEST else name[:80]
    if name.count(".") >= _DEEPEST:
        raise ValueError(f"parts are nested deeper than {_DEEPEST}; expected a model's config")
    if (of_diffusers := held.get("_class_name")) in DIFFUSERS:
        return [_read_diffusers(name, Part(held, str(of_diffusers), {}), reading)]
    model_type, table = _find_table(name, held, parent)
    part = Part(_add_inner_base(held, model_type), model_type, table)
    if table.get("dict") is False:
        part = _drop_unread_dict(part)
    held = part.held
    found: list[PartLayers] = []
    has_parts = has_text = False
    for key, value in held.items():
        if isinstance(value, Mapping) and _is_part(key, value):
            inner = _read_part(f"{name}.{key}" if name else key, value, model_type, reading)
            has_parts, has_text = True, has_text or (bool(inner) and key in _TEXT)
            found += inner
    reading.place = name
    if has_text:
        _account(part, found)
        return found
    denied, is_usual = _deny_rope(part), part.is_known and (not has_parts or has_defaults(part.entry))
    if denied or not (is_usual or any(held.held.get(key) is not None for key in _SIGNS)):
        reading.denied += [denied] if denied else []
        if not (table or has_parts or denied) and name.rpartition(".")[2] in ("", *_TEXT):
            _account(part, [])
        return found
    if (not table or "axial" in table) and _is_unknown(name, part):
        reading.looked[number] += " (there is one, but the config alone does not give its frequencies)"
        return found
    own = _read_ropes(name, part, reading)
    reading.place = name
    _account(part, [own])
    return [own, *found]


def _account(part: Part, parts: list[PartLayers]) -> None:
    """Raise an error for keys that look like RoPE and are not read, or add remarks on them to the Ropes of parts."""
    if part.entry.get("rope") is False:
        return
    is_top, has_dict = not parts or parts[0].part is not part, bool(part.parameters)
    ropes = tuple([rope for one in parts for rope in one.ropes.values()])
    widths = [width for key in NAMES["head_dim"] if isinstance(width := part.held.held.get(key), int)]
    named = [key for key in part.table.get("layers", {}).values() if isinstance(key, str)]
    facts = Facts(ropes, tuple(widths), set() if is_top else part.held.read.union(named))
    unread, remarks = [], list[str]()
    for one in find_unread(part.held.held, facts, _is_part):
        said = {*_SAID, *part.table.get("said", ())}
        said |= {name for key in ("rope_theta", "local_theta") for name in NAMES[key]} if has_dict else set()
        is_said = part.is_known and {*".["}.isdisjoint(one.path)  # not in a dict of this level
        if is_said and is_top:
            remarks.append(f"{one.path} at the top is not read: {show(part.model_type)} keeps its RoPE in text_config.")
        elif is_said and (one.path in said or read_pairing(one.path, one.value)):
            remarks.append(f"{one} by the class of {show(part.model_type)} in transformers; other engines may read it.")
        else:
            unread.append(one)
    if unread:
        first, more = unread[0], ", ".join(one.path for one in unread[1:])
        of = f" for model_type {show(part.model_type)}" if part.model_type else ""
        also = f"; nor {'is' if len(unread) == 2 else 'are'} {more}" if more else ""
        raise ValueError(f"{first}{of}; expected {first.write}, or no {first.path}{also}")
    remarks += [part.held["assumed"]] if "assumed" in part.held and not is_top else []
    for read in parts if remarks else ():
        for name, rope in read.ropes.items() if not (is_top and perceives(read.name)) else ():
            model = rope.source.model
            model = replace(model, remarks=(*model.remarks, *map(printable, remarks)))
            read.ropes[name] = replace(rope, source=replace(rope.source, model=model))


def _is_part(key: Any, value: Mapping[str, Any]) -> bool:
    """Return True for a dict in a config that describes a model; quantization and similar dicts have no model type."""
    if not isinstance(key, str) or not (key in ("encoder", "decoder") or key.endswith("config")):
        return False
    return key in (*_TEXT, "encoder", "decoder") or key.startswith(_PERCEPTION) or bool(value.get("model_type"))


def perceives(name: str) -> bool:
    """Return whether a part is a vision or audio part, by its name."""
    return any(one.startswith(_PERCEPTION) for one in name.split("."))


def _is_unknown(name: str, part: Part) -> bool:
    """Return True for a vision or audio RoPE that the config does not determine."""
    is_axial = any(one.get(key) == "axial" for one in _find_dicts(part) for key in ("rope_type", "type"))
    return bool(part.table.get("axial", "unknown" if is_axial or perceives(name) else "") == "unknown")


def _find_dicts(part: Part) -> list[Mapping[str, Any]]:
    return [part.held[key] for key in DICTS if isinstance(part.held.get(key), Mapping)]


def _find_table(name: str, held: Mapping[str, Any], parent: str) -> tuple[str, Mapping[str, Any]]:
    """Return the model type of a part, and its entry in the table.

    The entry is that of its own type, or else that of the part in its parent's type.
    """
    model_type, key = held.get("model_type") or "", name.rpartition(".")[2]
    if not isinstance(model_type, str):
        raise TypeError(f"model_type is {show(model_type)}; expected a name")
    kind = key.removesuffix("_config")
    names = [f"{parent}_{kind}", f"{parent}_{kind}_encoder"] if kind in ("text", "vision") else []
    types = [model_type, f"{model_type}_text"]
    # Qwen2-VL's first configs give their vision part the type of the whole model
    for one in [*names, *types] if model_type in ("", parent) else [*types, *names]:
        entry = known(one)
        if has_defaults(entry):
            return model_type, entry
    return model_type, {}


def _deny_rope(part: Part) -> str:
    """Return the words by which a config, or the class of its type, says that there is no RoPE; or ""."""
    held, entry = part.held, part.entry
    said = [key for key, value in part.table.get("needs", {}).items() if held.get(key) != value]
    said += [key for key in ("alibi", "mla_use_nope") if held.get(key) is True]
    said += ["position_embeddings_type"] if held.get("position_embeddings_type", "rotary") != "rotary" else []
    if said:
        return f"{said[0]} is {show(held.get(said[0]))}"
    if entry.get("rope") is False:
        return f"the class of {show(part.model_type)} has none"
    # some types set the base to null if they have no RoPE
    is_null = entry.get("null_base") is True and any(one.get("rope_theta", 0) is None for one in _find_dicts(part))
    return "rope_theta is null" if is_null else ""


def _add_inner_base(held: Mapping[str, Any], model_type: str) -> Mapping[str, Any]:
    """Return a part with the base that some types keep in a dict of their attention; other such dicts are refused."""
    if held.get("rope_ratio") is not None:
        raise ValueError(f"rope_ratio is {show(held['rope_ratio'])}, of ChatGLM's own code; expected rope_theta")
    inner = held.get("attn_config")
    if not isinstance(inner, Mapping) or held.get("rope_theta") is not None:
        return held
    if inner.get("rope") is True:
        raise ValueError(f"attn_config has a RoPE, which is not read for {show(model_type)}; expected rope_theta")
    return {**held, "rope_theta": inner.get("rope_theta")} if known(model_type).get("inner_base") is True else held


def _drop_unread_dict(part: Part) -> Part:
    """Return a part without the dict that some types carry and do not read; a dict with more in it is refused."""
    theta = part.first("rope_theta") or part.usual.get("rope_theta")
    plain = {"rope_type": ("default", "axial"), "rope_theta": (theta,)}
    if unread := [key for key, value in part.parameters.items() if value not in plain.get(key, ())]:
        raise ValueError(
            f"rope_parameters holds {', '.join(unread)}, but this model_type reads no such dict; expected rope_theta "
            "beside it"
        )
    return Part({key: value for key, value in part.held.items() if key not in DICTS}, part.model_type, part.table)


def _read_ropes(name: str, part: Part, reading: _Reading) -> PartLayers:
    """Return a part with the RoPE of each kind of layer."""
    if "axial" in part.table:
        return PartLayers(name, part, (), {"": _make_axial(part, reading)})
    context = part.first("max_position_embeddings")
    context = None if context is None else whole("max_position_embeddings", context, 1)
    split = described = list_parameters(part)
    if "" in described and "layers" in part.table:  # one dict, from which the layers of some classes take several bases
        split = layer_patterns.split_parameters(part.held, part.table["layers"], described[""])
    by_layer, found = part.layers([*split]), {}
    for key, parameters in split.items():
        reading.place, layer = f"{name}.{key}" if name and key else name or key, key if key in described else ""
        head_dim, qk_head_dim = part.widths(layer, parameters)
        scheme, values = read_scheme(part.fill(parameters, head_dim, layer))
        pairing, about = _find_pairing(part, reading)
        windows = part.windows(layer)
        about |= {
            "window": None if None in windows.values() else max(windows.values()),  # type: ignore[type-var]
            "windows": windows,
            "layers": tuple([i for i, (_, rope) in enumerate(by_layer) if rope == key]) if by_layer else None,
            "qk_head_dim": qk_head_dim,
        }
        if (own := parameters.get("attn_factor")) and own != 1:
            about["remarks"] += (f"attn_factor is {own}: {scheme.ignored['attn_factor']}.",)
        part_of, is_latent = parameters.get("partial_rotary_factor"), part.table.get("partial") == "latent"
        if part_of not in (None, values["partial_rotary_factor"]) and not is_latent:
            said = f"partial_rotary_factor is {part_of}: transformers' class does not read it; others may."
            about["remarks"] += (said,)
        scale, factor = values.get("mscale_all_dim"), values.get("factor")
        has_softmax = part.entry.get("softmax", part.table.get("softmax"))  # some classes apply it to the softmax scale
        if about["turns_last"] and scale and factor is not None and has_softmax:
            about["softmax_factor"] = schemes.sharpen_yarn(factor, scale) ** 2
        found[key] = make_rope(
            scheme,
            values,
            head_dim=head_dim,
            context=context,
            seq_len=reading.seq_len,
            pairing=pairing,
            order=part.entry.get("sections", part.table.get("sections")),
            model=ModelPart(**about),
        )
    return PartLayers(name, part, by_layer, found)


def _find_pairing(part: Part, reading: _Reading) -> tuple[str | None, dict[str, Any]]:
    """Return the pairing of a model type, None if it is neither, and what is known of how it rotates features."""
    entry = part.table if "pairing" in part.table else part.entry
    about: dict[str, Any] = {
        "name": printable(reading.place),
        "model_type": printable(part.model_type),
        "pairing_from": "given" if reading.pairing is not None else "known" if "pairing" in entry else "assumed",
        "turns_last": entry.get("rotated") == "last",
        "note": entry.get("pairing_note", ""),
        "unmovable": entry.get("unmovable", ""),
        "remarks": (),
    }
    if "qk_rope_head_dim" in part.table and part.held.get("use_mla") is False:  # Llama's attention, by remote code
        return reading.pairing or "half", about | {"turns_last": False, "unmovable": ""}
    if about["pairing_from"] == "assumed":
        said = {found for key, value in part.held.items() if (found := read_pairing(key, value))}
        if len(said) > 1:
            raise ValueError("the config has keys for both pairings; expected one")
        if not said and _needs_pairing(part):
            raise ValueError(
                f"pairing is None, and the code of model_type {show(part.model_type)}, with latent attention or "
                'sections, is unknown; expected pairing="half" or "interleaved", or rope_interleave in the config'
            )
        return next(iter(said), "half"), about | ({"pairing_from": "config"} if said else {})
    if about["pairing_from"] == "given":
        return reading.pairing, about
    found, chosen = entry["pairing"], entry.get("pairing_by", {})
    choice = part.held.get(chosen.get("key"))
    if choice is not None:
        found = chosen["if_true" if flag(chosen["key"], choice) else "if_false"]
    if entry.get("out_pairing") != found:
        about["cached_pairing"] = entry.get("out_pairing")
    return None if found == "neither" else found, about


def _needs_pairing(part: Part) -> bool:
    """Return whether a part has latent attention or sections, which have no usual pairing."""
    is_latent = bool(part.held.get("qk_rope_head_dim")) and part.held.get("use_mla") is not False
    return is_latent or any(one.get(key) for one in _find_dicts(part) for key in ("mrope_section", "xdrope_section"))


def _read_diffusers(name: str, part: Part, reading: _Reading) -> PartLayers:
    """Return a part of diffusers with its Rope."""
    origin = "known" if reading.pairing is None else "given"
    model = ModelPart(name=name, model_type=part.model_type, pairing_from=origin, windows={"": None})
    own = PartLayers(name, part, (), {"": make_diffusers(part.held, reading.pairing, model)})
    _account(part, [own])
    return own


def _make_axial(part: Part, reading: _Reading) -> Rope:
    """Return a RoPE of several image axes."""
    theta = part.parameters.get("rope_theta", part.first("rope_theta"))
    theta = positive("rope_theta", part.usual["rope_theta"] if theta is None else theta)
    head_dim, _ = part.widths("", part.parameters)
    pairing, about = _find_pairing(part, reading)
    model = ModelPart(**about, windows={"": None}, qk_head_dim=head_dim)
    return make_axial(part.table["axial"], head_dim, theta, pairing, model)
