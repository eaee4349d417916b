"""Exports as files: JSON, a model's config, arrays, an ONNX graph, a GGUF."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from rfrope._core import files
from rfrope._core.arguments import path_of, printable, show
from rfrope.data.model_types import known
from rfrope.models import configs, from_config
from rfrope.models.parts import NAMES
from rfrope.models.rope_parameters import DICTS
from rfrope.rotation.rope import Rope

_ORIGINAL = "original_max_position_embeddings"
_OTHERS = ("finetuned", "llama_4_scaling_beta")  # keys of a scheme's dict that say nothing of the rotation
_NEED = "files for llama.cpp need the package gguf: pip install gguf"
# raised by the reader for a file that is not a GGUF, or half of one
_UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, MemoryError, AttributeError)


def make_content(path: str, made: Mapping[str, Any], model: Any, rope: Rope, part: str) -> files.Content:
    """Return the content of a file, by its suffix: the export itself, or a copy of a model with it."""
    if path.endswith(".npz"):
        arrays: dict[str, Any] = {name: value for name, value in made.items() if isinstance(value, np.ndarray)}
        about = {name: value for name, value in made.items() if name not in arrays}
        file = io.BytesIO()
        np.savez(file, about=np.asarray(json.dumps(about, allow_nan=False)), **arrays)
        return file.getvalue()
    if path.endswith(".onnx"):
        return _build_graph(path, made)
    if path.endswith(".json"):
        whole = made if model is None else _merge(made, model, rope, part)
        return (json.dumps(whole, indent=2, allow_nan=False) + "\n").encode()
    if model is None:
        raise ValueError("model is None; expected for llama.cpp the GGUF to copy, in which the tensors are replaced")
    return lambda file: copy_gguf(file, model, made)


def _build_graph(path: str, made: Mapping[str, Any]) -> bytes:
    """Return a graph of one node, with its tables inside, for ``X`` and ``position_ids``."""
    library = files.load_package("onnx", f"{path} needs the package onnx: pip install onnx (or use the suffix .npz)")
    helper, node = library.helper, made["node"]
    kind = helper.np_dtype_to_tensor_dtype(made["cos_cache"].dtype)
    features, tokens = ["batch", "heads", "tokens", "features"], ["batch", "tokens"]
    graph = helper.make_graph(
        [helper.make_node(node["op_type"], node["input"], node["output"], **node["attributes"])],
        "rfrope",
        [
            helper.make_tensor_value_info("X", kind, features),
            helper.make_tensor_value_info("position_ids", library.TensorProto.INT64, tokens),
        ],
        [helper.make_tensor_value_info("Y", kind, features)],
        initializer=[library.numpy_helper.from_array(made[name], name) for name in ("cos_cache", "sin_cache")],
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid(node["domain"], node["opset"])], ir_version=10)
    library.checker.check_model(whole)
    return bytes(whole.SerializeToString())


# -- a model's config with another RoPE --------------------------------------------------------------------------------


def _merge(made: Mapping[str, Any], model: Any, rope: Rope, part: str) -> dict[str, Any]:
    """Return a model's config with an export in place of the RoPE of one part, read again and compared."""
    config, source = configs.read_file(path_of("model", model))
    try:
        parts = [one.source.model.name for one in from_config(config)]
    except (ValueError, TypeError):
        parts = [part]  # its scheme cannot be read, and is replaced
    if part not in parts:
        listed = ", ".join(map(repr, parts))
        raise ValueError(f"part is {show(part)}, but {source} has a RoPE for {listed}; expected one of them")
    place, names = config, [name for name in part.split(".") if name]
    while names and isinstance(place.get(names[0]), dict):
        place = place[names.pop(0)]
    layers = place.get("rope_parameters")  # of kinds of layers, whose context is that of all layers
    if not names:
        _replace_rope(place, made, rope)
    elif "rope_parameters" in made and isinstance(layers, dict) and isinstance(layers.get(".".join(names)), dict):
        layers[".".join(names)] = made["rope_parameters"]
    else:
        raise ValueError(
            f"part is {show(part)}, a kind of layers, and {source} has no rope_parameters with a dict for it, or the "
            "engine reads none; expected a config in the spelling of transformers 5"
        )
    _check_fit(config, rope, part, source)
    return config


def _replace_rope(place: dict[str, Any], made: Mapping[str, Any], rope: Rope) -> None:
    """Put an export in the place of a part's own, under all the names that the part or its class has for it."""
    entry = known(place.get("model_type"))
    own: Mapping[str, tuple[str, ...]] = entry.get("names", {})
    beside: dict[str, Any] = {}
    for key in ("rope_theta", "partial_rotary_factor"):
        names = [name for name in NAMES[key] if place.pop(name, None) is not None]
        beside |= {name: made[key] for name in (*names, *own.get(key, ())[:1]) if key in made}
    if place.get("rotary_dim") is not None:
        beside["rotary_dim"] = rope.rotary_dim
    scheme = made.get("rope_parameters") or made.get("rope_scaling") or {}
    if _ORIGINAL in place or entry.get("original") is True:
        beside[_ORIGINAL] = scheme.get(_ORIGINAL, made["max_position_embeddings"])
    for old in [place.pop(name, None) for name in DICTS]:
        if isinstance(old, dict) and scheme.get("rope_type") == old.get("rope_type", old.get("type")):
            scheme |= {key: old[key] for key in _OTHERS if key in old}
    place.update({**made, **beside})


def _check_fit(config: Mapping[str, Any], rope: Rope, part: str, source: str) -> None:
    """Read a config that is about to be written, and compare it with the Rope."""
    try:
        found = {one.source.model.name: one for one in from_config(config)}[part]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"the Rope of {rope.n_blocks} blocks in heads of {rope.head_dim} does not fit {source}: with it, "
            f"the config cannot be read ({error}); expected a Rope of the model's own width"
        ) from None
    free = found.pairing is None or found.source.model.pairing_from == "assumed"
    if (
        (found.head_dim, found.rotary_dim) != (rope.head_dim, rope.rotary_dim)
        or not (free or found.pairing == rope.pairing)
        or not np.allclose(found.frequencies, rope.frequencies, rtol=1e-5, atol=1e-25)
        or not np.isclose(found.attention_factor, rope.attention_factor, rtol=1e-6)
    ):
        raise ValueError(
            f"the Rope is {rope!r}, but with it {source} is read as {found!r}, or turns differently; expected "
            "a Rope of the model's own width and pairing, and a config without schemes of its own"
        )


# -- copies of a GGUF --------------------------------------------------------------------------------------------------


def copy_gguf(file: BinaryIO, model: str | os.PathLike[str], made: Mapping[str, Any]) -> None:
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
    """Refuse a file that the tensors do not fit."""
    name, width = made["architecture"], made["keys"][f"{made['architecture']}.rope.dimension_count"]
    found = _value(reader, path, "general.architecture")
    if found != name:
        raise ValueError(f"{path} is of architecture {show(found)}, not {name!r}; expected architecture={show(found)}")
    if (_optional(reader, "split.count") or 1) > 1:
        raise ValueError(f"{path} is one part of several; expected a whole GGUF, as llama-gguf-split --merge makes")
    own = _optional(reader, f"{name}.attention.key_length")
    if own is None:
        own = _value(reader, path, f"{name}.embedding_length") // _value(reader, path, f"{name}.attention.head_count")
    turned = _optional(reader, f"{name}.rope.dimension_count") or own
    if turned != width:
        raise ValueError(f"{path} turns {turned} features of a head, and the Rope turns {width}; expected the same")


def _read(library: ModuleType, path: str) -> Any:
    try:
        with files.open_regular(path) as file:  # the reader maps it, so it may be closed
            size = os.fstat(file.fileno()).st_size
            reader = library.GGUFReader(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file; expected the GGUF of a model") from None
    except _UNREADABLE as error:
        reason = printable(f"{type(error).__name__}: {error}")
        raise ValueError(f"{path} is not a GGUF, or is damaged ({reason})") from None
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
