"""Exports as files: a config, arrays, a graph of ONNX, a GGUF."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rfrope._core.arguments import path_of, show
from rfrope._core.files import Content
from rfrope.data.model_types import known
from rfrope.exports import gguf
from rfrope.models import configs, from_config
from rfrope.models.values import NAMES
from rfrope.rotation.rope import Rope

_SCHEMES = ("rope_parameters", "rope_scaling")
_NAMES = {name: NAMES[name] for name in ("rope_theta", "partial_rotary_factor")}
_ORIGINAL = "original_max_position_embeddings"


def config(path: str, made: Mapping[str, Any], model: Any, rope: Rope, part: str) -> Content:
    """The export itself, or a model's config with it in place of its own RoPE."""
    if model is None:
        return text(path, made, model, rope, part)
    read, source = configs.read_file(path_of("model", model))
    held = dict(read)
    _put(held, made, rope, part, source)
    _check(held, rope, part, source)
    return text(path, held, None, rope, "")


def text(path: str, made: Mapping[str, Any], model: Any, rope: Rope, part: str) -> Content:
    """JSON, with all digits of its numbers."""
    return (json.dumps(made, indent=2, allow_nan=False) + "\n").encode()


def arrays(path: str, made: Mapping[str, Any], model: Any, rope: Rope, part: str) -> Content:
    """NumPy's archive: arrays under their names, the rest as JSON under ``about``."""
    held = {name: value for name, value in made.items() if isinstance(value, np.ndarray)}
    about = {name: value for name, value in made.items() if name not in held}
    file = io.BytesIO()
    whole: dict[str, Any] = {"about": np.asarray(json.dumps(about, allow_nan=False)), **held}
    np.savez(file, **whole)
    return file.getvalue()


def onnx(path: str, made: Mapping[str, Any], model: Any, rope: Rope, part: str) -> Content:
    """A graph of one node, with its tables inside, for ``X`` and ``position_ids``; or the tables alone as arrays."""
    if path.endswith(".npz"):
        return arrays(path, made, model, rope, part)
    try:
        library = importlib.import_module("onnx")
    except ImportError:
        raise ModuleNotFoundError(f"{path} needs the package onnx: pip install onnx (or use the suffix .npz)") from None
    helper, node = library.helper, made["node"]
    kind = helper.np_dtype_to_tensor_dtype(made["cos_cache"].dtype)
    caches = [library.numpy_helper.from_array(made[name], name) for name in ("cos_cache", "sin_cache")]
    features = ["batch", "heads", "tokens", "features"]
    graph = helper.make_graph(
        [helper.make_node(node["op_type"], node["input"], node["output"], **node["attributes"])],
        "rfrope",
        [
            helper.make_tensor_value_info("X", kind, features),
            helper.make_tensor_value_info("position_ids", library.TensorProto.INT64, ["batch", "tokens"]),
        ],
        [helper.make_tensor_value_info("Y", kind, features)],
        initializer=caches,
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid(node["domain"], node["opset"])], ir_version=10)
    library.checker.check_model(whole)
    content: bytes = whole.SerializeToString()
    return content


def gguf_copy(path: str, made: Mapping[str, Any], model: Any, rope: Rope, part: str) -> Content:
    """A copy of the model's GGUF."""
    if model is None:
        raise ValueError("model is None; expected for llama.cpp the GGUF to copy, in which the tensors are replaced")
    return lambda file: gguf.copy(file, model, made)


WRITERS = {"config": config, "text": text, "arrays": arrays, "onnx": onnx, "gguf": gguf_copy}
TAKE_MODELS = ("config", "gguf")


def _put(held: dict[str, Any], made: Mapping[str, Any], rope: Rope, part: str, source: str) -> None:
    """Replace the RoPE of a part of a config, or of a kind of layers in it."""
    known = _parts(held)
    if known is not None and part not in known:
        raise ValueError(
            f"part is {show(part)}, but {source} has a RoPE for {', '.join(map(repr, known))}; expected one of them"
        )
    place, names = held, [name for name in part.split(".") if name]
    while names and isinstance(place.get(names[0]), dict):
        place = place[names.pop(0)]
    layers: Any = place.get("rope_parameters")
    if names and "rope_parameters" not in made:
        raise ValueError(
            f"part is {show(part)}, a kind of layers, but the older keys of this engine (rope_scaling) hold one RoPE "
            "for all layers; expected a config without kinds of layers"
        )
    if names and (not isinstance(layers, dict) or len(names) > 1 or not isinstance(layers.get(names[0]), dict)):
        raise ValueError(
            f"part is {show(part)}, but {source} has no rope_parameters with a dict for {show(names[0])}; expected a "
            "config in the spelling of transformers 5"
        )
    if names:
        layers[names[0]] = made["rope_parameters"]  # their context is that of all layers
    else:
        _replace(place, made, rope)


def _replace(place: dict[str, Any], made: Mapping[str, Any], rope: Rope) -> None:
    """Put what was made in the place of a part's own, under all the names that the part or its class has for it."""
    entry = known(place.get("model_type"))
    own: Mapping[str, tuple[str, ...]] = entry.get("names", {})
    beside: dict[str, Any] = {}
    for what, names in _NAMES.items():
        names_here = [name for name in names if name in place]
        names_here += own.get(what, ())[:1]
        beside |= {name: made[what] for name in names_here if what in made}
        for name in names:
            place.pop(name, None)
    if place.get("rotary_dim") is not None:
        beside["rotary_dim"] = rope.rotary_dim
    if _ORIGINAL in place or entry.get("original") is True:
        beside[_ORIGINAL] = made["max_position_embeddings"]
    for name in _SCHEMES:
        place.pop(name, None)
    place.update({**made, **beside})


def _check(held: Mapping[str, Any], rope: Rope, part: str, source: str) -> None:
    """Read a config that is about to be written again, and compare what it says with the Rope."""
    try:
        read = {one.source.model.name: one for one in from_config(held)}
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"the Rope of {rope.n_blocks} blocks in heads of {rope.head_dim} does not fit {source}, which with it in "
            f"place cannot be read again ({error}); expected a Rope of the model's own width"
        ) from None
    if part not in read:
        named = ", ".join(map(repr, read)) or "nothing"
        raise ValueError(f"{source} with the Rope in it has a RoPE for {named}; expected one for {show(part)}")
    found = read[part]
    for what in ("head_dim", "rotary_dim"):
        one, other = getattr(rope, what), getattr(found, what)
        if one != other:
            raise ValueError(
                f"the Rope has {what} = {one}, but {source} has {other}; expected a Rope of "
                f"{found.n_blocks} blocks in heads of {found.head_dim}, or the config of another model"
            )
    if found.pairing is not None and found.source.model.pairing_from != "assumed" and found.pairing != rope.pairing:
        raise ValueError(
            f"the Rope pairs {rope.pairing!r}, but {source} pairs {found.pairing!r}; expected "
            f"dataclasses.replace(rope, pairing={found.pairing!r})"
        )
    omega = np.asarray(found.frequencies, dtype=np.float64)
    near = omega.shape == rope.frequencies.shape and np.allclose(omega, rope.frequencies, rtol=1e-5, atol=1e-25)
    if not near or not np.isclose(found.attention_factor, rope.attention_factor, rtol=1e-6):
        raise ValueError(
            f"{source} with the Rope in it says other frequencies or another attention factor than the Rope, by what "
            "else it holds; expected a config without schemes of its own"
        )


def _parts(held: Mapping[str, Any]) -> list[str] | None:
    """Names of the places of a config that have a RoPE; None where what it has now cannot be read."""
    try:
        return [rope.source.model.name for rope in from_config(held)]
    except (ValueError, TypeError):
        return None
