"""The RoPE of a model, read from its config: where models put it, under which names, and what they leave out."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rfrope._core import files
from rfrope._core.arguments import flag, path_of, printable, show, whole
from rfrope._core.array import placed
from rfrope._core.blocks import check_pairing
from rfrope.data.model_types import has_defaults, known, model_types
from rfrope.models import values
from rfrope.models.rope_parameters import from_rope_parameters
from rfrope.models.values import DICTS, NAMES, first, given, is_nested
from rfrope.rotation.provenance import ModelPart, Provenance
from rfrope.rotation.rope import Rope, of
from rfrope.scaling.records import ladder
from rfrope.scaling.shared import positive

_SIGNS = (*DICTS, *NAMES["rope_theta"], *NAMES["local_theta"], "rotary_pct", "rotary_dim", "rope_ratio")
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")  # repeats what a part says around it
_PERCEPTION = ("vision", "visual", "vit", "image", "audio")  # read only where their type is known
_PLAIN = ("rope_type", "default")  # says nothing; transformers itself wrote it beside dicts of layers
_DEEPEST = 8  # parts inside parts; models have three


@dataclass
class _Reading:
    """What is asked for, and where it was looked for."""

    source: str
    seq_len: int | None
    pairing: str | None
    xp: Any
    device: Any
    dtype: Any
    looked: list[str] = field(default_factory=list)


def from_config(
    config: Mapping[str, Any] | str | os.PathLike[str] | Any,
    *,
    seq_len: int | None = None,
    pairing: str | None = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> tuple[Rope, ...]:
    """Every RoPE of a model, from its config.

    Parameters
    ----------
    config : dict, path, or object with to_dict()
        A Hugging Face config: the content of its config.json, that file or its folder, or a config of transformers.
    seq_len : int, optional
        Positions in the sequence at hand, on which the schemes dynamic and longrope depend; None is a short one.
    pairing : {"half", "interleaved"}, optional
        The two features that make a block, for model types that the table of transformers' classes does not have, or
        for weights whose features were reordered.
    xp, device, dtype
        As in `geometric`.

    Returns
    -------
    tuple of Rope
        One for each place: the top or a part (``text_config``, ``vision_config``, ...), and in it each kind of layer.
        Its ``context`` is ``max_position_embeddings``. Its ``source`` is a `rotation.Provenance` that holds

        - ``rope_parameters``: the scheme and its values under the names of transformers 5, defaults filled in
          (``rope_type`` is ``"axial"`` for the two axes of vision models);
        - ``model``: a `rotation.ModelPart` with the place, the model type, where the pairing is from, windows of
          attention, and the width that a score compares.

    Raises
    ------
    ValueError
        If no RoPE is found, a file holds no config or more than 16 MiB, a needed key is missing, and as
        `from_rope_parameters`. The message begins with the file and the place.
    TypeError
        For a config of another kind, and as `from_rope_parameters`.
    FileNotFoundError
        If there is no such file or folder. Names of models mean nothing here: nothing is downloaded.
    OSError
        If a file cannot be read, or is not a regular one.

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
    ...     print(part.source.model.name, part.source.rope_parameters["rope_theta"], part)
    full_attention 1000000.0 Rope(128 frequencies, pairing='half', head_dim=256, context=32768)
    sliding_attention 10000.0 Rope(128 frequencies, pairing='half', head_dim=256, context=32768)
    """
    root, source = read(config)
    if seq_len is not None:
        whole("seq_len", seq_len, 1)
    if pairing is not None:
        check_pairing(pairing)
    reading = _Reading(source, seq_len, pairing, xp, device, dtype)
    found = tuple(_all_parts("", root, "", reading))
    if not found:
        raise ValueError(
            f"{source or 'config'} describes no RoPE; looked for {', '.join(_SIGNS)}, or a model_type that has one, at "
            f"{printable(', '.join(reading.looked))}"
        )
    return found


def read(config: Any) -> tuple[Mapping[str, Any], str]:
    """Return a config as a dict, and what errors call it."""
    if isinstance(config, Mapping):
        return config, ""
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
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        content = files.read_bytes(path, files.LONGEST_JSON)
    except FileNotFoundError:
        raise FileNotFoundError(_nowhere(path)) from None
    try:
        held = files.parse_json(content.decode("utf-8-sig"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); expected a model's config.json") from None
    if not isinstance(held, dict):
        raise ValueError(f"{path} holds a {type(held).__name__}; expected a model's config, which is an object")
    return held, path


def _nowhere(path: str) -> str:
    """What to pass instead of a path where nothing lies, or of a model's name."""
    folder, _, name = path.replace(os.sep, "/").rpartition("/")
    is_name = folder and not path.startswith((".", "/", "~")) and "/" not in folder and "." not in folder
    hint = f" (for {name}: the config.json of its repository)" if is_name and not name.endswith(".json") else ""
    return (
        f"{path}: there is no such file or folder here, and nothing is downloaded; expected the path of a "
        f"config.json, or of the folder that it lies in{hint}"
    )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for key, value in pairs:
        if key in held:
            raise ValueError(f"{show(key)} occurs twice in one object")
        held[key] = value
    return held


# -- parts and kinds of layers -----------------------------------------------------------------------------------------


def _all_parts(name: str, part: Mapping[str, Any], parent: str, reading: _Reading) -> Iterator[Rope]:
    """The RoPE of a part and of the parts inside it; a part that holds its text model only repeats what that says."""
    looked = len(reading.looked)
    reading.looked.append(name or "the top")
    if name.count(".") >= _DEEPEST:
        raise ValueError(
            f"{reading.source or 'config'} has parts nested deeper than {_DEEPEST}, as {printable(name[:80])}..."
        )
    model_type, defaults = _known(name, part, parent)
    with _named(reading, name):
        part = _without_unread_dict(_with_inner_base(part, model_type), defaults)
    inner = {
        f"{name}.{key}" if name else key: key
        for key, value in part.items()
        if isinstance(value, Mapping) and _is_part(key, value)
    }
    found = [one for path, key in inner.items() for one in _all_parts(path, part[key], model_type, reading)]
    has_text = any(
        key in _TEXT and one.source.model.name.startswith(path) for path, key in inner.items() for one in found
    )
    if not has_text and _has_rope(part, defaults, bool(inner)):
        if _is_unknown(name, part, defaults):
            reading.looked[looked] += " (there is one, but the config alone does not give its frequencies)"
        else:
            yield from _of_part(name, part, model_type, defaults, reading)
    yield from found


def _is_part(key: Any, value: Mapping[str, Any]) -> bool:
    """Whether a dict in a config is one of a model: those of quantization and the like have no type."""
    if not isinstance(key, str) or not (key in ("encoder", "decoder") or key.endswith("config")):
        return False
    return key in (*_TEXT, "encoder", "decoder") or key.startswith(_PERCEPTION) or bool(value.get("model_type"))


def _is_unknown(name: str, part: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Whether there is a RoPE, of a picture or sound, that the config alone does not determine."""
    if "axial" in defaults or not defaults:
        dicts = [part[key] for key in DICTS if isinstance(part.get(key), Mapping)]
        is_axial = any(parameters.get(key) == "axial" for parameters in dicts for key in ("rope_type", "type"))
        perceives = any(one.startswith(_PERCEPTION) for one in name.split("."))
        return defaults.get("axial", "unknown" if is_axial or perceives else "") == "unknown"
    return False


def _known(name: str, part: Mapping[str, Any], parent: str) -> tuple[str, Mapping[str, Any]]:
    """Model type of a part, and what is known of it: its own type, else its parent's with what the part is called."""
    own, key = part.get("model_type") or "", name.rpartition(".")[2]
    if not isinstance(own, str):
        raise TypeError(f"{name + ': ' if name else ''}model_type is {show(own)}; expected a name")
    table = model_types()
    kind = key.removesuffix("_config")
    names = [f"{parent}_{kind}", f"{parent}_{kind}_encoder"] if kind in ("text", "vision") else []
    # Qwen2-VL's first configs call their vision part by the name of the whole
    names = [*names, own, f"{own}_text"] if own in ("", parent) else [own, f"{own}_text", *names]
    return own, next((table[one] for one in names if has_defaults(known(one))), {})


def _has_rope(part: Mapping[str, Any], defaults: Mapping[str, Any], composite: bool) -> bool:
    if part.get("alibi") is True or any(part.get(key) != value for key, value in defaults.get("needs", {}).items()):
        return False
    if part.get("mla_use_nope") is True or part.get("position_embeddings_type", "rotary") != "rotary":
        return False
    said = known(part.get("model_type"))
    if said.get("rope") is False or (said.get("null_base") is True and _has_null_base(part)):
        return False
    if any(part.get(key) is not None for key in _SIGNS):
        return True
    return bool(defaults) and (not composite or has_defaults(said))


def _has_null_base(part: Mapping[str, Any]) -> bool:
    """Whether a config has a base of null, by which some types say that they have no RoPE."""
    dicts = [part[key] for key in DICTS if isinstance(part.get(key), Mapping)]
    return any(parameters.get("rope_theta", 0) is None for parameters in dicts)


def _of_part(
    name: str, part: Mapping[str, Any], model_type: str, defaults: Mapping[str, Any], reading: _Reading
) -> Iterator[Rope]:
    with _named(reading, name):
        if "axial" in defaults:
            yield _axial(name, part, model_type, defaults, reading)
            return
        context = first(part, "max_position_embeddings", defaults)
        context = None if context is None else whole("max_position_embeddings", context, 1)
        layers = _layers(part, defaults)
    for layer, parameters in layers.items():
        place = ".".join(one for one in (name, layer) if one)
        with _named(reading, place):
            yield _of_kind(place, layer, parameters, part, model_type, context, defaults, reading)


@contextmanager
def _named(reading: _Reading, place: str) -> Iterator[None]:
    """Begin what errors say with the file and the place."""
    try:
        yield
    except (ValueError, TypeError) as error:
        message = ": ".join(word for word in (reading.source, place, str(error)) if word)
        raise (TypeError if isinstance(error, TypeError) else ValueError)(printable(message)) from None


def _of_kind(
    place: str,
    layer: str,
    parameters: Mapping[str, Any],
    part: Mapping[str, Any],
    model_type: str,
    context: int | None,
    defaults: Mapping[str, Any],
    reading: _Reading,
) -> Rope:
    head_dim = values.head_dim(part, layer, parameters, defaults)
    made = from_rope_parameters(
        values.filled(parameters, part, head_dim, layer, defaults),
        head_dim=head_dim,
        max_position_embeddings=context,
        seq_len=reading.seq_len,
        xp=reading.xp,
        device=reading.device,
        dtype=reading.dtype,
    )
    order = known(model_type).get("sections", defaults.get("sections"))
    own_order = order == "own"  # not dealt out in the order of `mrope`
    pairing, about = _pairing(part, model_type, defaults, reading)
    windows = values.windows(part, layer, defaults)
    lengths = [length for length in windows.values() if length is not None]
    about = replace(
        about,
        name=printable(place),
        window=max(lengths) if len(lengths) == len(windows) else None,
        windows=windows,
        qk_head_dim=values.qk_head_dim(part, layer, head_dim, defaults),
    )
    return of(
        made,
        pairing=pairing,
        sections=None if own_order else made.sections,
        interleaved=made.sections is not None and not own_order and (made.interleaved or order == "interleaved"),
        source=replace(made.source, model=about),
    )


def _pairing(
    part: Mapping[str, Any], model_type: str, defaults: Mapping[str, Any], reading: _Reading
) -> tuple[str | None, ModelPart]:
    """Return the pairing of a model type, or None where neither is right for it; and what `source` says of it."""
    entry = defaults if "pairing" in defaults else known(model_type)
    about = ModelPart(
        model_type=printable(model_type),
        pairing_from="given" if reading.pairing is not None else "known" if "pairing" in entry else "assumed",
        turns_last=entry.get("rotated") == "last",
        note=entry.get("pairing_note", ""),
    )
    if about.pairing_from != "known":
        return reading.pairing or "half", about
    found, chosen = entry["pairing"], entry.get("pairing_by", {})
    asked = part.get(chosen.get("key"))
    if asked is not None:
        found = chosen["if_true" if flag(chosen["key"], asked) else "if_false"]
    return None if found == "neither" else found, about


def _with_inner_base(part: Mapping[str, Any], model_type: str) -> Mapping[str, Any]:
    """Return a part with the base that some types have in a dict of their attention; other such dicts are refused."""
    if part.get("rope_ratio") is not None:
        raise ValueError(
            f"rope_ratio is {show(part['rope_ratio'])}, of ChatGLM's own code, which is not read; expected rope_theta"
        )
    inner = part.get("attn_config")
    if not isinstance(inner, Mapping) or part.get("rope_theta") is not None:
        return part
    if inner.get("rope") is True:
        raise ValueError(f"attn_config has a RoPE, which is not read for {show(model_type)}; expected rope_theta")
    return {**part, "rope_theta": inner.get("rope_theta")} if known(model_type).get("inner_base") is True else part


def _without_unread_dict(part: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part without the dict that some types carry and do not read; one that says more is refused."""
    if defaults.get("dict") is not False:
        return part
    plain = {"rope_type": ("default", "axial"), "rope_theta": (first(part, "rope_theta", defaults["rope_parameters"]),)}
    if unread := [key for key, value in given(part).items() if value not in plain.get(key, ())]:
        raise ValueError(
            f"rope_parameters holds {', '.join(unread)}, but this model_type reads no such dict; expected rope_theta "
            "beside it"
        )
    return {key: value for key, value in part.items() if key not in DICTS}


def _layers(part: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a part says of each kind of layer; a single one is called ``""``."""
    parameters = given(part)
    usual = defaults.get("rope_parameters", {})
    if is_nested(parameters):
        flat = [key for key, value in parameters.items() if not isinstance(value, Mapping) and (key, value) != _PLAIN]
        if flat:
            raise ValueError(
                f"rope_parameters holds {', '.join(flat)} beside dicts of layers; expected {flat[0]} in each dict that "
                "it applies to"
            )
        return {layer: dict(one) for layer, one in parameters.items() if isinstance(one, Mapping)}
    theta = values.base(part, values.names("rope_theta", defaults))
    local = values.base(part, NAMES["local_theta"])
    beside = ("rope_theta", "partial_rotary_factor")  # the config may have these outside the dict
    if not is_nested(usual) and local is None:
        return {"": parameters or {key: value for key, value in usual.items() if key not in beside}}
    layers = {layer: one for layer, one in usual.items() if one is not None} if is_nested(usual) else {}
    layers = {layer: {key: value for key, value in one.items() if key not in beside} for layer, one in layers.items()}
    if not parameters and local is None and theta is None:
        return layers
    if layers and (
        set(layers) != {"full_attention", "sliding_attention"}
        or any(one["rope_type"] != "default" for one in layers.values())
        or part.get("rope_parameters")  # an older rope_scaling is for the layers with full attention
    ):
        raise ValueError(
            f"rope_parameters is one dict; expected one dict in it for each of {', '.join(sorted(layers))}"
        )
    # rope_scaling is then for both kinds of layer
    everywhere = known(part.get("model_type")).get("scaled") == "everywhere"
    return {
        "full_attention": dict(parameters),
        "sliding_attention": (dict(parameters) if everywhere else {})
        | ({"rope_theta": local} if local is not None else {}),
    }


def _axial(name: str, part: Mapping[str, Any], model_type: str, defaults: Mapping[str, Any], reading: _Reading) -> Rope:
    """Two axes of a picture: the first half of the frequencies turns by one coordinate, the second by the other."""
    held = given(part)
    given_theta = held.get("rope_theta", first(part, "rope_theta", defaults))
    theta = positive("rope_theta", defaults["rope_parameters"]["rope_theta"] if given_theta is None else given_theta)
    head_dim = values.head_dim(part, "", held, defaults)
    if head_dim % 4:
        raise ValueError(f"head_dim is {head_dim}; expected a multiple of 4: two axes, and two features a block")
    if defaults["axial"] == "alternating":  # Pixtral deals out one ladder
        spanning = ladder(head_dim, theta)
        host = np.concatenate([spanning[0::2], spanning[1::2]])
    else:
        host = np.tile(ladder(head_dim // 2, theta), 2)
    if defaults["axial"] == "turns":  # DINOv3: whole turns over coordinates from -1 to 1
        host = host * (2.0 * math.pi)
    pairing, about = _pairing(part, model_type, defaults, reading)
    return Rope(
        placed(host, reading.xp, reading.device, reading.dtype),
        pairing=pairing,
        head_dim=head_dim,
        sections=(head_dim // 4, head_dim // 4),
        source=Provenance(
            rope_parameters={"rope_type": "axial", "rope_theta": theta},
            model=replace(about, name=printable(name), windows={"": None}, qk_head_dim=head_dim),
        ),
    )
