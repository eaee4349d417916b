"""RoPE of a GGUF, as llama.cpp reads it for the file's architecture; params.json of Mistral and Meta as a config."""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rfrope._core import files
from rfrope._core.arguments import path_of, printable, show, whole
from rfrope.data.model_types import read_table
from rfrope.engines.formats import STILL
from rfrope.engines.record import RefusedError, UnknownError
from rfrope.models.layer_patterns import LARGEST
from rfrope.models.parts import Part
from rfrope.rotation.provenance import ModelPart, Provenance
from rfrope.rotation.rope import Rope
from rfrope.scaling import schemes
from rfrope.scaling.registry import ladder

REORDERED = "the converter has reordered the rows of queries and keys, from halves to neighbours"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _FLOAT32 = 8, 9, 0
_KEPT = 2**16  # elements of an array that is kept; those of a vocabulary are passed over
_FULL, _SLIDING, _STATE = "full_attention", "sliding_attention", "linear_attention"
_NAMES = {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
_NAMES |= {"max_seq_len": "max_position_embeddings"}
_YARN = {"beta": "beta_fast", "alpha": "beta_slow"}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}  # Meta's own code
_FACTOR = "rope_scaling_factor"


def find_gguf(config: Any) -> str | None:
    """Return the path of a GGUF, given it or a folder with it and without a config.json; None for anything else."""
    if not isinstance(config, str | os.PathLike):
        return None
    path = path_of("config", config)
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "config.json")):
        names = [name for name in os.listdir(path) if name.lower().endswith(".gguf")]
        found = sorted(names, key=lambda name: (name.lower().startswith("mmproj"), name))  # the vision part comes last
        path = os.path.join(path, found[0]) if found else path
    return path if path.lower().endswith(".gguf") else None


# -- the file ----------------------------------------------------------------------------------------------------------


class _Cursor:
    """A place in the memory of a file; what lies beyond its end is an error."""

    def __init__(self, memory: Any) -> None:
        self.memory, self.at = memory, 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.memory, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def skip(self, size: int) -> int:
        """Pass over bytes, and return where they begin."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.memory):
            raise struct.error(f"{size} bytes at {start}, of {len(self.memory)}")
        return start

    def text(self) -> str:
        start = self.skip(self.number("Q"))
        return bytes(self.memory[start : self.at]).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Return a value; None for a long array or one of strings or arrays."""
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            start = self.skip(struct.calcsize(f"<{_SCALARS[inner]}") * count)
            code = f"<{count}{_SCALARS[inner]}"
            return list(struct.unpack_from(code, self.memory, start)) if count <= _KEPT else None
        if inner != _STRING:
            raise KeyError(inner)
        for _ in range(count):
            self.skip(self.number("Q"))
        return None


@dataclass(frozen=True)
class Metadata:
    """Values of a GGUF, the shapes of its tensors, and its divisors of frequencies."""

    values: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    divisors: Mapping[str, np.ndarray]

    @property
    def name(self) -> str:
        """Name of the architecture."""
        return str(self.values.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture; of a list by layer, the first that is not 0."""
        found = self.values.get(f"{self.name}.{key}", default)
        return next((one for one in found if one), default) if isinstance(found, list) else found


def read_metadata(path: str) -> Metadata:
    """Return the metadata of a GGUF and its divisors; nothing else is read.

    Raises
    ------
    ValueError
        If it is not a GGUF of version 2 or 3, or damaged.
    OSError
        If it cannot be read.
    """
    try:
        with files.open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            return _read_memory(memory)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file; expected a GGUF") from None
    except (struct.error, KeyError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} is damaged or not a GGUF ({printable(str(error))})") from None
    except ValueError as error:  # an empty file cannot be mapped
        raise ValueError(f"{path}: {error}") from None


def _read_memory(memory: Any) -> Metadata:
    if memory[:4] != b"GGUF":
        raise ValueError("not a GGUF")
    cursor = _Cursor(memory)
    cursor.skip(4)
    if (version := cursor.number("I")) not in (2, 3):
        raise ValueError(f"a GGUF of version {version}; expected 2 or 3, in little-endian order")
    n_tensors, n_values = cursor.number("Q"), cursor.number("Q")
    values = {cursor.text(): cursor.value(cursor.number("I")) for _ in range(n_values)}
    shapes, places = {}, {}
    for _ in range(n_tensors):
        name = cursor.text()
        shapes[name] = tuple(cursor.number("Q") for _ in range(cursor.number("I")))
        places[name] = (cursor.number("I"), cursor.number("Q"))
    step = int(values.get("general.alignment") or 32)
    start, divisors = -(-cursor.at // step) * step, dict[str, np.ndarray]()
    for name in shapes:
        base = name.removesuffix(".weight").rpartition(".")[2]
        if base.startswith(("rope_freqs", "rope_factors_")):
            if places[name][0] != _FLOAT32:
                raise ValueError(f"{name} is of type {places[name][0]}; expected 0, float32")
            cursor.at = start + places[name][1]
            at = cursor.skip(4 * math.prod(shapes[name]))
            divisors.setdefault(base, np.frombuffer(bytes(memory[at : cursor.at]), dtype="<f4").astype(np.float64))
    return Metadata(values, shapes, divisors)


# -- what llama.cpp makes of it ----------------------------------------------------------------------------------------


def read_gguf(
    path: str, seq_len: int | None, pairing: str | None
) -> tuple[Part, tuple[tuple[str, str | None], ...], dict[str, Rope]]:
    """Return the values of a GGUF as a part of a config, the kind and RoPE of each layer, and the Ropes by name."""
    held = read_metadata(path)
    name = held.values.get("general.architecture")
    known: Mapping[str, Mapping[str, Any]] = read_table("gguf")["architectures"]  # what llama.cpp does with each
    about = known.get(name) if isinstance(name, str) else None
    if about is None:
        raise UnknownError(f"architecture {show(name)} is not known; expected one of {', '.join(known)}")
    if unread := [one for one in held.divisors if one not in about.get("divisors", ())]:
        raise RefusedError(f"the file holds {unread[0]}.weight, and the loader of {name} reads none; expected none")
    kinds, ropes = _list_kinds(held, about), {_FULL: _make(held, about, seq_len)}
    if any(kind == _SLIDING for kind, _ in kinds):
        ropes[_SLIDING] = _make(held, about, seq_len, about["sliding"])
    used = [kind for kind in ropes if (kind, True) in kinds] or [_FULL]
    sets = {(one.head_dim, one.attention_factor, one.frequencies.tobytes()) for one in ropes.values()}
    is_alone = len(used) == 1 or len(sets) == 1
    layers = tuple((kind, None if not turns else "" if is_alone else kind) for kind, turns in kinds)
    window, found = held.get("attention.sliding_window"), {}
    for kind in used[:1] if is_alone else used:
        key, rope = "" if is_alone else kind, ropes[kind]
        windows = {one: window if one == _SLIDING else None for one, turned in layers if turned == key} or {"": None}
        model = replace(
            rope.source.model,
            name=key,
            window=None if None in windows.values() else window,
            windows=windows,
            layers=tuple(i for i, (_, turned) in enumerate(layers) if turned == key),
            pairing_from="known" if pairing is None else "given",
        )
        found[key] = replace(rope, pairing=pairing or rope.pairing, source=replace(rope.source, model=model))
    return Part({"sliding_window": window}, str(name), {}), layers, found


def _list_kinds(held: Metadata, about: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the kind of each layer, and whether it turns."""
    count = whole("block_count", held.get("block_count", 0), 0, LARGEST) - held.get("nextn_predict_layers", 0)
    sliding, heads = about.get("sliding", {}), held.values.get(f"{held.name}.attention.head_count_kv")
    pattern = held.values.get(f"{held.name}.attention.sliding_window_pattern", sliding.get("period"))
    has_window = bool(sliding and held.get("attention.sliding_window") and pattern is not None)
    every, still = held.get("full_attention_interval", about.get("attends_every")), about.get("still_every")
    kinds = []
    for i in range(count):
        if (every and (i + 1) % every) or (isinstance(heads, list) and not heads[i]):
            kinds.append((_STATE, False))
        elif has_window and (pattern[i] if isinstance(pattern, list) else (i + 1) % pattern):
            kinds.append((_SLIDING, True))
        else:
            kinds.append((_FULL, not (still and (i + 1) % still == 0) and not (has_window and sliding.get("alone"))))
    return kinds


def _make(
    held: Metadata, about: Mapping[str, Any], seq_len: int | None, sliding: Mapping[str, Any] | None = None
) -> Rope:
    """Return the Rope of layers with full attention, or with what differs under a window."""
    head, turned = _read_widths(held, about, "" if sliding is None else "_swa")
    is_scaled, context = sliding is None or sliding["scaled"], held.get("context_length")
    theta = held.get("rope.freq_base", 1e4)
    theta = theta if sliding is None else held.get("rope.freq_base_swa", sliding.get("base", theta))
    if not 0.0 < theta < math.inf:
        raise RefusedError(f"rope.freq_base is {show(theta)}; expected a positive number")
    frequencies = ladder(turned, theta)
    values: dict[str, Any] = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": turned / head}
    attention = held.get("rope.scaling.attn_factor", 1.0)
    original = held.get("rope.scaling.original_context_length", context)
    divisors = held.divisors if is_scaled else {}
    for name, one in divisors.items():
        if one.size != turned // 2 or not np.all(np.isfinite(one) & (one != 0.0)):
            raise RefusedError(f"{name}.weight has {one.size} divisors, or a 0; expected {turned // 2}, for each block")
    if divisors:
        is_long = seq_len is not None and original is not None and seq_len > original
        short = next(divisors[name] for name in sorted(divisors, reverse=True))  # that of short texts, or for all
        long = divisors.get("rope_factors_long", short)
        chosen = long if is_long else short
        frequencies = np.where(np.abs(chosen) < STILL, frequencies / chosen, 0.0)
        values |= {"rope_type": "longrope", "short_factor": short.tolist(), "long_factor": long.tolist()}
        values |= {"attention_factor": attention, "original_max_position_embeddings": original}
    scheme = held.get("rope.scaling.type", "linear")
    factor = held.get("rope.scaling.factor", held.get("rope.scale_linear"))  # under its name of today or the older one
    factor = float(factor or 1.0) if is_scaled else 1.0  # 0 counts as none
    if scheme not in ("none", "linear", "yarn", "longrope"):
        raise RefusedError(f"rope.scaling.type is {show(scheme)}; expected none, linear, yarn or longrope")
    softmax = None
    if scheme == "yarn" and factor > 1.0:
        frequencies, sharper, softmax, keys = _apply_yarn(held, about, frequencies, theta, factor, original)
        attention *= sharper
        values |= keys | {"attention_factor": attention}
    elif scheme != "none" and factor != 1.0:
        frequencies = frequencies / factor
        values |= {"rope_type": "linear", "factor": factor} if not divisors else {}
    sections = held.values.get(f"{held.name}.rope.dimension_sections") if "sections" in about else ()
    sections = tuple(int(one) for one in sections or () if one) or None
    width = held.get("attention.key_length_mla", held.get("attention.key_length")) if about.get("latent") else head
    remarks = () if held.get("rope.freq_base") is not None else ("rope.freq_base is missing: llama.cpp takes 10000.",)
    model = ModelPart(
        model_type=held.name,
        turns_last=bool(about.get("latent")),
        note=REORDERED if about.get("reordered") else "",
        qk_head_dim=width,
        softmax_factor=softmax,
        remarks=remarks,
    )
    return Rope(
        frequencies,
        pairing="half" if sections else about["pairing"],
        head_dim=head,
        attention_factor=attention,
        sections=sections,
        interleaved=sections is not None and about["sections"] == "interleaved",
        context=context,
        source=Provenance(rope_parameters=values, model=model),
    )


def _apply_yarn(
    held: Metadata, about: Mapping[str, Any], frequencies: np.ndarray, theta: float, factor: float, original: int
) -> tuple[np.ndarray, float, float | None, dict[str, Any]]:
    """Return frequencies, the attention factor, the factor of the softmax scale, and keys of a config."""
    keys: dict[str, Any] = {key: held.get(f"rope.scaling.yarn_{key}") for key in about.get("betas", ())}
    keys = {key: value for key, value in keys.items() if value is not None}
    made = schemes.yarn(frequencies, factor, original_max_position_embeddings=original, base=theta, **keys)
    keys |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    all_dims = 10.0 * held.get("rope.scaling.yarn_log_multiplier", 0.0) if about.get("log_multiplier") else 0.0
    sharper = schemes.sharpen_yarn(factor, all_dims if all_dims and held.name == "deepseek2" else 1.0, all_dims)
    softmax = (sharper * schemes.sharpen_yarn(factor, all_dims)) ** 2 if all_dims else None
    return np.asarray(made.frequencies), sharper, softmax, keys


def _read_widths(held: Metadata, about: Mapping[str, Any], suffix: str) -> tuple[int, int]:
    """Return the width of a head, and how many of its features turn; with latent attention the latter twice."""
    heads = held.get("attention.head_count")
    head = held.get("attention.key_length") or (heads and held.get("embedding_length", 0) // heads)
    turned = held.get("rope.dimension_count") or head
    head, turned = held.get(f"attention.key_length{suffix}", head), held.get(f"rope.dimension_count{suffix}", turned)
    if not head or not turned or turned % 2 or turned > head or head > LARGEST:
        raise RefusedError(f"rope.dimension_count is {show(turned)}; expected an even number up to {show(head)}")
    if about.get("whole") and turned != head:
        raise RefusedError(f"rope.dimension_count is {turned}; expected {head}: {held.name} turns whole heads")
    shape, n_keys = held.shapes.get("blk.0.attn_k.weight"), held.get("attention.head_count_kv", heads)
    if "sliding" not in about and not about.get("latent") and shape and len(shape) == 2 and shape[1] != n_keys * head:
        raise RefusedError(
            f"blk.0.attn_k.weight has {shape[1]} rows; expected {n_keys * head}, of {n_keys} heads with "
            f"attention.key_length {head}"
        )
    return (turned, turned) if about.get("latent") else (head, turned)


# -- params.json -------------------------------------------------------------------------------------------------------


def find_file(path: str) -> str:
    """Return the path of the config in a folder; the path of a file is unchanged."""
    if not os.path.isdir(path):
        return path
    names = [os.path.join(path, name) for name in ("config.json", "params.json")]
    return next(filter(os.path.exists, names), names[0])


def translate_params(held: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a params.json under the names of a config, and a config as it is.

    Weights of that form pair neighbours. Other keys are kept, so none is dropped; ``assumed`` is a remark on a
    missing value. Mistral's keys are read as by vLLM (transformers_utils/configs/mistral.py).
    """
    if not ("dim" in held and "n_heads" in held and "model_type" not in held):
        return held
    made = {_NAMES.get(key, key): value for key, value in held.items()} | {"rope_interleave": True}
    made.pop("llama_4_scaling", None)  # it scales queries by position
    if made.get("rope_theta") is None:
        raise ValueError("rope_theta is missing; expected the base of the training (10000.0 for the oldest files)")
    yarn, is_scaled = made.pop("yarn", None), made.pop("use_scaled_rope", False)
    if isinstance(yarn, Mapping):
        scheme = {_YARN.get(key, key): value for key, value in yarn.items()} | {"rope_type": "yarn"}
        made["rope_scaling"] = scheme if scheme.pop("apply_scale", True) else scheme | {"attention_factor": 1.0}
    elif is_scaled:
        factor, high = made.pop(_FACTOR, None), made.pop("rope_high_freq_factor", None) or 4.0
        made["rope_scaling"] = _LLAMA3 | {"factor": factor or 8.0, "high_freq_factor": high}
        if factor is None:
            made["assumed"] = (
                "use_scaled_rope has no factor: 8 is assumed, as for Llama 3.1 in Meta's code; for Llama 3.2 1B and "
                f"3B, whose config.json has 32, expected {_FACTOR}: 32 beside it."
            )
    vision = made.pop("vision_encoder", None) or (made.get("multimodal") or {}).get("vision_encoder_args")
    if isinstance(vision, Mapping):
        made["vision_config"] = {"model_type": "pixtral", **vision}
        made.pop("multimodal", None)
    return made
