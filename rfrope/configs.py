"""The RoPE of a model, read from its config: where models put it, under which names, and what they leave out."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rfrope import _array
from rfrope._array import Array
from rfrope.data.model_defaults import rope_defaults
from rfrope.frequencies import count
from rfrope.scaling.parameters import DEFAULT_THETA, from_rope_parameters, ladder, read
from rfrope.scaling.scaled import positive

# Names that models have for one thing, the usual one first. The first that a config holds counts.
_NAMES = {
    "rope_theta": ("rope_theta", "rotary_emb_base", "global_rope_theta"),
    "local_theta": ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "embed_dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx"),
}
_DICTS = ("rope_parameters", "rope_scaling")
_SIGNS = (*_DICTS, *_NAMES["rope_theta"], *_NAMES["local_theta"], "rotary_pct", "rotary_dim")
_SCALED_EVERYWHERE = ("modernbert", "modernbert-decoder")  # their rope_scaling is for both kinds of layer
_OWN_ORDER = "ernie4_5_vl"  # whose mrope_section alternates two axes and then has the third
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")  # repeats what a part says around it
_NO_PARTS = ("per_layer_config", "quantization_config", "attn_config", "ffn_config")
_PERCEPTION = ("vision", "visual", "vit", "image", "audio")  # read only where their type is known
_MOVED = ("llama3", "yarn", "longrope", "su")  # which take original_max_position_embeddings from beside the dict


@dataclass(frozen=True, eq=False)
class ModelRope:
    """The RoPE of one place in a model: of all its layers, of one kind of them, or of a part.

    Attributes
    ----------
    name : str
        Where it was found: ``""`` for the top, ``"text_config"``, ``"text_config.full_attention"``.
    model_type : str
        As the config has it there; empty if it says nothing.
    head_dim : int
        Width of a query or key; for latent attention (DeepSeek) of the part that carries positions.
    rotary_dim : int
        Features that are rotated, twice the number of frequencies; with ``proportional`` some of these are 0.
    qk_head_dim : int
        Features of a query and a key that a score compares: `head_dim`, and with latent attention also those that carry
        no position.
    context : int or None
        Positions that the model is made for (``max_position_embeddings``); None where the config does not say.
    window : int or None
        How many positions these layers see, where the config names a sliding window for them; None for all.
    rope_parameters : dict
        The scheme and its values under the names of transformers 5, with defaults filled in. ``rope_type`` is
        ``"axial"`` for the two axes of vision models.
    frequencies : array, (D,), radians per position
    attention_factor : float
        Multiplies cos and sin: ``rotate(..., scale=attention_factor)``.
    sections : tuple of int or None
        How many frequencies each position axis gets, as `mrope` takes it: ``mrope_section``, or the halves of a vision
        model. None for one axis.
    interleaved : bool
        Whether sections are interleaved, as in Qwen3-VL.
    """

    name: str
    model_type: str
    head_dim: int
    rotary_dim: int
    qk_head_dim: int
    context: int | None
    window: int | None
    rope_parameters: dict[str, Any]
    frequencies: Array
    attention_factor: float
    sections: tuple[int, ...] | None
    interleaved: bool


@dataclass
class _Reading:
    """What is asked for, and where was looked."""

    source: str
    seq_len: int | None
    xp: Any
    device: Any
    dtype: Any
    looked: list[str] = field(default_factory=list)


def from_config(
    config: Mapping[str, Any] | str | os.PathLike[str] | Any,
    *,
    seq_len: int | None = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> tuple[ModelRope, ...]:
    """Every RoPE that a model's config tells of.

    Parameters
    ----------
    config : dict, path, or object with to_dict()
        A Hugging Face config: the content of its config.json, that file or its folder, or a config of transformers.
    seq_len : int, optional
        Positions in the sequence at hand, on which the schemes dynamic and longrope depend; None is a short one.
    xp, device, dtype
        As in `geometric`.

    Returns
    -------
    tuple of ModelRope
        One for each place: the top or a part (``text_config``, ``vision_config``, ...), and in it each kind of layer.

    Raises
    ------
    ValueError
        If no RoPE is found, a file holds no config, a needed key is missing, and as `from_rope_parameters`. The message
        begins with the file and the place.
    TypeError
        For a config of another kind, and as `from_rope_parameters`.
    OSError
        If a file is missing or cannot be read.

    Notes
    -----
    Nothing is fetched or executed. What a config leaves out is what transformers 5 has for its ``model_type``, from a
    table in the package. Parts whose RoPE the config alone does not determine (some vision and audio encoders) are left
    out; if there is no other part, that is an error.

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "gemma3_text", "hidden_size": 1152, "num_attention_heads": 4, "head_dim": 256,
    ...           "rope_theta": 1000000, "rope_local_base_freq": 10000, "max_position_embeddings": 32768}
    >>> for part in rfrope.from_config(config):
    ...     print(part.name, part.rope_parameters["rope_theta"], part.frequencies.shape)
    full_attention 1000000.0 (128,)
    sliding_attention 10000.0 (128,)
    """
    root, source = _read(config)
    if seq_len is not None:
        count("seq_len", seq_len, 1)
    reading = _Reading(source, seq_len, xp, device, dtype)
    found = tuple(_all_parts("", root, "", reading))
    if not found:
        raise ValueError(
            f"{source or 'config'} tells of no RoPE; looked for {', '.join(_SIGNS)}, or a model_type that has one, at "
            f"{', '.join(reading.looked)}"
        )
    return found


def _read(config: Any) -> tuple[Mapping[str, Any], str]:
    """Return a config as a dict, and what errors call it."""
    if isinstance(config, Mapping):
        return config, ""
    if hasattr(config, "to_dict"):
        return config.to_dict(), ""
    if not isinstance(config, str | os.PathLike):
        raise TypeError(f"config is {config!r:.80}; expected a dict, the path of a config.json, or a config object")
    path = os.fspath(config)
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    with open(path, encoding="utf-8-sig") as file:
        try:
            held = json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no JSON ({error}); expected a model's config.json") from None
    if not isinstance(held, dict):
        raise ValueError(f"{path} holds a {type(held).__name__}; expected a model's config, which is an object")
    return held, path


# -- parts and kinds of layers -----------------------------------------------------------------------------------------


def _all_parts(name: str, part: Mapping[str, Any], parent: str, reading: _Reading) -> Iterator[ModelRope]:
    """The RoPE of a part and of the parts inside it; a part that holds its text model only repeats what that says."""
    looked = len(reading.looked)
    reading.looked.append(name or "the top")
    model_type, defaults = _known(name, part, parent)
    inner = {
        f"{name}.{key}" if name else key: key
        for key, value in part.items()
        if isinstance(value, Mapping) and _is_part(key)
    }
    found = [one for path, key in inner.items() for one in _all_parts(path, part[key], model_type, reading)]
    has_text = any(key in _TEXT and one.name.startswith(path) for path, key in inner.items() for one in found)
    if not has_text and _has_rope(part, defaults, bool(inner)):
        if defaults.get("axial") == "unknown" or (_perceives(name) and not defaults):
            reading.looked[looked] += " (there is one, but the config alone does not tell its frequencies)"
        else:
            try:
                yield from _of_part(name, part, model_type, defaults, reading)
            except (ValueError, TypeError) as error:
                place = ": ".join(told for told in (reading.source, name, str(error)) if told)
                raise (TypeError if isinstance(error, TypeError) else ValueError)(place) from None
    yield from found


def _is_part(key: str) -> bool:
    return key in ("encoder", "decoder") or (key.endswith("config") and key not in _NO_PARTS)


def _perceives(name: str) -> bool:
    return name.rpartition(".")[2].startswith(_PERCEPTION)


def _known(name: str, part: Mapping[str, Any], parent: str) -> tuple[str, Mapping[str, Any]]:
    """Model type of a part, and what is known of it: its own type, else its parent's with what the part is called."""
    told, key = part.get("model_type") or "", name.rpartition(".")[2]
    table = rope_defaults()
    kind = key.removesuffix("_config")
    names = [f"{parent}_{kind}", f"{parent}_{kind}_encoder"] if kind in ("text", "vision") else []
    # Qwen2-VL's first configs call their vision part by the name of the whole
    names = [*names, told, f"{told}_text"] if told in ("", parent) else [told, f"{told}_text", *names]
    return str(told), next((table[one] for one in names if one in table), {})


def _has_rope(part: Mapping[str, Any], defaults: Mapping[str, Any], composite: bool) -> bool:
    if part.get("alibi") is True or any(part.get(key) != value for key, value in defaults.get("needs", {}).items()):
        return False
    if any(part.get(key) is not None for key in _SIGNS):
        return True
    return bool(defaults) and (not composite or part.get("model_type") in rope_defaults())


def _of_part(
    name: str, part: Mapping[str, Any], model_type: str, defaults: Mapping[str, Any], reading: _Reading
) -> Iterator[ModelRope]:
    if "axial" in defaults:
        yield _axial(name, part, model_type, defaults, reading)
        return
    context = _first(part, "max_position_embeddings", defaults)
    context = None if context is None else count("max_position_embeddings", context, 1)
    for layer, told in _layers(part, defaults).items():
        head_dim = _head_dim(part, layer, told, defaults)
        filled = _filled(told, part, head_dim, layer, defaults)
        scaled = from_rope_parameters(
            filled,
            head_dim=head_dim,
            max_position_embeddings=context,
            seq_len=reading.seq_len,
            xp=reading.xp,
            device=reading.device,
            dtype=reading.dtype,
        )
        scheme, values = read(filled)
        sections = values.get("mrope_section") if not model_type.startswith(_OWN_ORDER) else None
        yield ModelRope(
            name=".".join(one for one in (name, layer) if one),
            model_type=model_type,
            head_dim=head_dim,
            rotary_dim=2 * scaled.frequencies.shape[0],
            qk_head_dim=_qk_head_dim(part, head_dim),
            context=context,
            window=_window(part, layer),
            rope_parameters={"rope_type": scheme.partition(" ")[0], **values},
            frequencies=scaled.frequencies,
            attention_factor=scaled.attention_factor,
            sections=None if sections is None else tuple(sections),
            interleaved=bool(values.get("mrope_interleaved", False)),
        )


def _layers(part: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is told of each kind of layer; a single one is called ``""``."""
    given = _given(part)
    usual = defaults.get("rope_parameters", {})
    if _is_nested(given):
        return {layer: dict(told) for layer, told in given.items() if isinstance(told, Mapping)}
    local = _first(part, "local_theta")
    if not _is_nested(usual) and local is None:
        beside = ("rope_theta", "partial_rotary_factor")  # which the config may say outside the dict
        return {"": given or {key: value for key, value in usual.items() if key not in beside}}
    layers = {layer: dict(told) for layer, told in usual.items() if told is not None} if _is_nested(usual) else {}
    if not given and local is None and _first(part, "rope_theta") is None:
        return layers
    if layers and (
        set(layers) != {"full_attention", "sliding_attention"}
        or any(told["rope_type"] != "default" for told in layers.values())
    ):
        raise ValueError(
            f"rope_parameters is one dict; expected for this model one in it for each of {', '.join(sorted(layers))}"
        )
    everywhere = part.get("model_type") in _SCALED_EVERYWHERE
    return {
        "full_attention": dict(given),
        "sliding_attention": (dict(given) if everywhere else {}) | ({"rope_theta": local} if local is not None else {}),
    }


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_parameters`` and the older ``rope_scaling`` in one; where both say something they must agree."""
    joined: dict[str, Any] = {}
    for key in _DICTS:
        told = part.get(key)
        if told is not None and not isinstance(told, Mapping):
            raise TypeError(f"{key} is {told!r:.80}; expected a dict or None")
        for inner, value in (told or {}).items():
            if value is not None and joined.setdefault(inner, value) != value:
                raise ValueError(
                    f"rope_scaling[{inner!r}] is {value!r:.80}, but rope_parameters[{inner!r}] is "
                    f"{joined[inner]!r:.80}; expected one of them, or equal"
                )
    return joined


def _is_nested(told: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in told.values())


# -- values of one kind of layer ---------------------------------------------------------------------------------------


def _first(part: Mapping[str, Any], what: str, defaults: Mapping[str, Any] | None = None) -> Any:
    """Value of the first of a thing's names that a config holds, else the usual one of its type, else None."""
    found = next((part[name] for name in _NAMES[what] if part.get(name) is not None), None)
    return found if found is not None or defaults is None else defaults.get(what)


def _head_dim(part: Mapping[str, Any], layer: str, told: Mapping[str, Any], defaults: Mapping[str, Any]) -> int:
    own = {"full_attention": "global_head_dim", "sliding_attention": "swa_head_dim"}.get(layer, "")
    found = _of_layer(part, layer, "head_dim")
    if found is None:
        found = part.get(own) if part.get(own) is not None else defaults.get(own)
    if found is None and part.get("qk_rope_head_dim") and "partial_rotary_factor" not in told:
        found = part["qk_rope_head_dim"]  # latent attention: only this part of a head carries positions
    if found is None:
        found = _first(part, "head_dim", defaults)
    if found is not None:
        return count("head_dim", found, 1)
    if told.get("partial_rotary_factor") is not None and part.get("qk_rope_head_dim"):
        return count("qk_nope_head_dim", part.get("qk_nope_head_dim"), 0) + count(
            "qk_rope_head_dim", part["qk_rope_head_dim"], 1
        )
    width, heads = (_first(part, what, defaults) for what in ("hidden_size", "num_attention_heads"))
    if width is None or heads is None:
        raise ValueError("head_dim is missing; expected it, or hidden_size and num_attention_heads")
    return count("hidden_size", width, 1) // count("num_attention_heads", heads, 1)


def _qk_head_dim(part: Mapping[str, Any], head_dim: int) -> int:
    """Width of a score; latent attention adds features without positions to those with."""
    apart = part.get("qk_rope_head_dim") == head_dim and part.get("qk_nope_head_dim") is not None
    return head_dim + count("qk_nope_head_dim", part["qk_nope_head_dim"]) if apart else head_dim


def _window(part: Mapping[str, Any], layer: str) -> int | None:
    told = part.get("sliding_window") if layer == "sliding_attention" else None
    return None if told is None else count("sliding_window", told, 1)


def _of_layer(part: Mapping[str, Any], layer: str, key: str) -> Any:
    """What transformers 5 saves of the first layer of a kind, where layers differ in more than their RoPE."""
    apart, kinds = part.get("per_layer_config"), part.get("layer_types")
    if not isinstance(apart, Mapping) or not isinstance(kinds, list | tuple) or layer not in kinds:
        return None
    first = kinds.index(layer)
    own: Any = next((told for index, told in apart.items() if str(index).isdecimal() and int(index) == first), {})
    return own.get(key, part.get(key)) if isinstance(own, Mapping) else None


def _filled(
    told: dict[str, Any], part: Mapping[str, Any], head_dim: int, layer: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """What a config says beside the dict of a layer, put into it under the names of transformers 5."""
    filled = {key: value for key, value in told.items() if value is not None}
    usual = defaults.get("rope_parameters", {})
    usual = usual.get(layer) or {} if _is_nested(usual) else usual
    theta = _first(part, "rope_theta")
    # the base beside the dict is for all kinds of layer, but where the type has local layers with a base of their own
    if theta is not None and not (layer == "sliding_attention" and usual.get("rope_theta") == DEFAULT_THETA):
        filled.setdefault("rope_theta", theta)
    filled.setdefault("rope_theta", usual.get("rope_theta", DEFAULT_THETA))
    fraction = _first(part, "partial_rotary_factor")
    if fraction is None and part.get("rotary_dim") is not None and part.get("rope_parameters") is None:
        fraction = count("rotary_dim", part["rotary_dim"], 1) / head_dim
    if fraction is None:
        fraction = usual.get("partial_rotary_factor", 1.0)
    filled.setdefault("partial_rotary_factor", fraction)
    scheme = filled.get("rope_type", filled.get("type"))
    if scheme == "yarn" and "short_factor" in filled:  # Phi-3's second name for it
        scheme = "longrope"
        filled = {key: value for key, value in filled.items() if key != "type"} | {"rope_type": scheme}
    if scheme in _MOVED and part.get("original_max_position_embeddings") is not None:
        filled["original_max_position_embeddings"] = part["original_max_position_embeddings"]
    return filled


def _axial(
    name: str, part: Mapping[str, Any], model_type: str, defaults: Mapping[str, Any], reading: _Reading
) -> ModelRope:
    """Two axes of a picture: the first half of the frequencies turns by one coordinate, the second by the other."""
    given = _given(part)
    told = given.get("rope_theta", _first(part, "rope_theta"))
    theta = positive("rope_theta", defaults["rope_parameters"]["rope_theta"] if told is None else told)
    if part.get("embed_dim") is not None:  # Qwen2-VL, whose hidden_size is that of the text model
        part = {**part, "hidden_size": part["embed_dim"]}
    head_dim = _head_dim(part, "", given, defaults)
    if head_dim % 4:
        raise ValueError(f"head_dim is {head_dim}; expected a multiple of 4: two axes, and two features a block")
    if defaults["axial"] == "alternating":  # Pixtral deals out one ladder
        whole = ladder(head_dim, theta)
        host = np.concatenate([whole[0::2], whole[1::2]])
    else:
        host = np.tile(ladder(head_dim // 2, theta), 2)
    if defaults["axial"] == "turns":  # DINOv3: whole turns over coordinates from -1 to 1
        host = host * (2.0 * math.pi)
    space = _array.named_namespace(reading.xp)
    dtype = _array.check_float_dtype(reading.dtype, space)
    return ModelRope(
        name=name,
        model_type=model_type,
        head_dim=head_dim,
        rotary_dim=head_dim,
        qk_head_dim=head_dim,
        context=None,
        window=None,
        rope_parameters={"rope_type": "axial", "rope_theta": theta},
        frequencies=_array.from_host(host, space, device=reading.device, dtype=dtype),
        attention_factor=1.0,
        sections=(head_dim // 4, head_dim // 4),
        interleaved=False,
    )
