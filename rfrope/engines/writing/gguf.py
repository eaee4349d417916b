"""Copies of a model's GGUF with other divisors, for llama.cpp."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, BinaryIO

from rfrope._core import files
from rfrope._core.arguments import path_of, printable, show

_NEED = "files for llama.cpp need the package gguf: pip install gguf"
# raised by the reader for a file that is not a GGUF, or half of one
_UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, MemoryError, AttributeError)


def copy(file: BinaryIO, model: str | os.PathLike[str], made: Mapping[str, Any]) -> None:
    """Write a copy of a GGUF, with its tensors and keys replaced by those of an export.

    Parameters
    ----------
    file : binary file
        An empty file with a name.
    model : str or path
        The GGUF to copy.
    made : mapping
        The export.

    Raises
    ------
    ModuleNotFoundError
        If the package gguf is missing.
    ValueError
        If the model is not a GGUF, is truncated, is split, or has another architecture or width.
    """
    library, path = files.load_package("gguf", _NEED), path_of("model", model)
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


def read_architecture(model: str | os.PathLike[str]) -> str:
    """Return the name of a GGUF's architecture."""
    path = path_of("model", model)
    return str(_value(_read(files.load_package("gguf", _NEED), path), path, "general.architecture"))


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
        raise ValueError(f"{path} is not a GGUF, or damaged ({reason})") from None
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
