"""llama.cpp: divisors in a tensor of the model's GGUF, and a copy of a GGUF with them."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from rfrope._core import files
from rfrope._core.arguments import path_of, printable, show
from rfrope.exports.engine import ULP, Asked, Used, divisors


@dataclass(frozen=True)
class Architecture:
    """How one architecture of llama.cpp takes divisors.

    Attributes
    ----------
    tensors : tuple of str
        All those that hold them; a loader refuses any other.
    pairings : tuple of str
        What the Rope may have: the converter reorders the rows of llama's queries and keys from halves to neighbours.
    partial : bool
        Whether ``rope.dimension_count`` may be less than a head.
    alone : bool
        Whether the attention factor, which is one for the whole model, multiplies these rotations alone.
    original : bool
        Whether its loader wants the context before the scheme.
    """

    tensors: tuple[str, ...]
    pairings: tuple[str, ...]
    partial: bool
    alone: bool = True
    original: bool = False


ARCHITECTURES = {
    "llama": Architecture(("rope_freqs.weight",), ("half", "interleaved"), False),
    "phi3": Architecture(("rope_factors_long.weight", "rope_factors_short.weight"), ("half",), True, original=True),
    "gemma4": Architecture(("rope_freqs.weight",), ("half",), False, alone=False),  # its global layers
}
USUAL = next(iter(ARCHITECTURES))
# what a file that is no GGUF, or half of one, makes the reader raise
_UNREADABLE = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    UnicodeDecodeError,
    MemoryError,
    AttributeError,
)


def llama_cpp(asked: Asked) -> dict[str, Any]:
    """Tensors and keys of a GGUF."""
    with np.errstate(over="ignore"):
        factors = divisors(asked, _ladder(asked)).astype(np.float32)
    name = asked.architecture
    keys: dict[str, Any] = {f"{name}.rope.freq_base": asked.base, f"{name}.rope.dimension_count": asked.rope.rotary_dim}
    keys |= {f"{name}.rope.scaling.type": "none", f"{name}.rope.scaling.attn_factor": asked.rope.attention_factor}
    if ARCHITECTURES[name].original:
        keys[f"{name}.rope.scaling.original_context_length"] = asked.context
    tensors = {tensor: factors for tensor in ARCHITECTURES[name].tensors}
    return {"architecture": name, "tensors": tensors, "keys": keys}


def used(asked: Asked, made: dict[str, Any]) -> Used:
    """Phases by repeated products in float32, each divided by its factor."""
    (factors, *_) = made["tensors"].values()
    steps = np.arange(asked.rope.n_blocks)
    return Used(_ladder(asked) / factors.astype(np.float64), (4.0 * steps + 4.0) * ULP, 3.0 * ULP)


def refused_by_architecture(asked: Asked) -> str:
    """Why the loader or the graph of an architecture would not take a Rope."""
    name = asked.architecture
    if name not in ARCHITECTURES:
        return (
            f"architecture is {show(name)}, whose loader is not known to read divisors, and refuses what it does not "
            f"read; expected one of {', '.join(map(repr, ARCHITECTURES))}"
        )
    found = ARCHITECTURES[name]
    if asked.rope.pairing not in found.pairings:
        return f"{name} pairs halves, the Rope {asked.rope.pairing!r}"
    if asked.rope.attention_factor != 1.0 and not found.alone:
        return f"the attention factor {asked.rope.attention_factor} would multiply the sliding layers of {name} too"
    if asked.rope.head_dim != asked.rope.rotary_dim and not found.partial:
        return f"{name} turns whole heads, the Rope {asked.rope.rotary_dim} features of {asked.rope.head_dim}"
    return ""


def copy(file: BinaryIO, model: str | os.PathLike[str], made: Mapping[str, Any]) -> None:
    """Write a copy of a GGUF, with the tensors and keys of an export in place of its own.

    Parameters
    ----------
    file : binary file
        An empty one with a name.
    model : str or path
        The GGUF to copy.
    made : mapping
        What `llama_cpp` gave.

    Raises
    ------
    ModuleNotFoundError
        Without the package gguf.
    ValueError
        If the model is no GGUF, is truncated, is a part of several, has another architecture or another width.
    """
    library, path = _library(), path_of("model", model)
    reader = _read(library, path)
    name = made["architecture"]
    _check(reader, path, made)
    quiet = logging.getLogger(library.gguf_writer.__name__)
    level = quiet.level
    quiet.setLevel(logging.WARNING)
    writer = library.GGUFWriter(file.name, name, endianess=reader.endianess)
    try:
        _copy_keys(library, reader, writer, name, made["keys"])
        kept = [one for one in reader.tensors if not one.name.startswith(("rope_freqs.", "rope_factors_"))]
        for one in kept:
            writer.add_tensor_info(one.name, one.data.shape, one.data.dtype, one.data.nbytes, one.tensor_type)
        for tensor, values in made["tensors"].items():
            writer.add_tensor_info(tensor, values.shape, values.dtype, values.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for one in kept:
            writer.write_tensor_data(one.data, tensor_endianess=reader.endianess)
        for values in made["tensors"].values():
            writer.write_tensor_data(values)
    finally:
        writer.close()
        quiet.setLevel(level)


def architecture_of(model: str | os.PathLike[str]) -> str:
    """Name of the architecture of a GGUF."""
    path = path_of("model", model)
    return str(_value(_read(_library(), path), path, "general.architecture"))


def _copy_keys(library: ModuleType, reader: Any, writer: Any, name: str, keys: Mapping[str, Any]) -> None:
    """Keys of a file, those of an export in place of its own; other schemes' keys are left out."""
    dropped = (*keys, f"{name}.rope.scale_linear", "general.architecture")
    for field in reader.fields.values():
        if field.name.startswith(("GGUF.", f"{name}.rope.scaling.")) or field.name in dropped:
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == library.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
        if field.name == "general.alignment":
            writer.data_alignment = int(field.contents())
    kinds = {str: "STRING", int: "UINT32", float: "FLOAT32"}
    for key, value in keys.items():
        writer.add_key_value(key, value, library.GGUFValueType[kinds[type(value)]])


def _check(reader: Any, path: str, made: Mapping[str, Any]) -> None:
    """Refuse a file that the tensors are not for."""
    name, width = made["architecture"], made["keys"][f"{made['architecture']}.rope.dimension_count"]
    found = _value(reader, path, "general.architecture")
    if found != name:
        raise ValueError(
            f"{path} is of the architecture {show(found)}, the export for {name!r}; expected architecture={show(found)}"
        )
    if (_optional(reader, "split.count") or 1) > 1:
        raise ValueError(f"{path} is one part of several; expected a whole GGUF, as llama-gguf-split --merge makes")
    own = _optional(reader, f"{name}.attention.key_length")
    if own is None:
        own = _value(reader, path, f"{name}.embedding_length") // _value(reader, path, f"{name}.attention.head_count")
    turned = _optional(reader, f"{name}.rope.dimension_count") or own
    if turned != width:
        raise ValueError(f"{path} turns {turned} features of a head, the Rope {width}; expected as many")


def _read(library: ModuleType, path: str) -> Any:
    try:
        with files.open_regular(path) as file:  # the reader maps it, so it may be closed
            size = os.fstat(file.fileno()).st_size
            reader = library.GGUFReader(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file; expected the GGUF of a model") from None
    except _UNREADABLE as error:
        reason = printable(f"{type(error).__name__}: {error}")
        raise ValueError(f"{path} is no GGUF, or damaged ({reason})") from None
    if any(one.data.nbytes != one.n_bytes or one.data_offset + one.n_bytes > size for one in reader.tensors):
        raise ValueError(f"{path} is truncated; expected a whole GGUF")
    return reader


def _optional(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _value(reader: Any, path: str, key: str) -> Any:
    value = _optional(reader, key)
    if value is None or isinstance(value, list):
        raise ValueError(f"{path} has no {key} of its own, or one for each layer; expected one for the whole model")
    return value


def _ladder(asked: Asked) -> np.ndarray:
    """The ladder at position 1 as ggml computes it: by repeated products in float32."""
    step = np.float32(asked.base) ** (np.float32(-2.0) / np.float32(asked.rope.rotary_dim))
    found = np.empty(asked.rope.n_blocks)
    theta = np.float32(1.0)
    for i in range(found.size):
        found[i] = theta
        theta *= step
    return found


def _library() -> ModuleType:
    try:
        return importlib.import_module("gguf")
    except ImportError:
        raise ModuleNotFoundError("files for llama.cpp need the package gguf: pip install gguf") from None
