"""GGUF files of a few bytes, written without the package gguf: keys of one architecture, and tensors."""

import pathlib
import struct
from typing import Any

import numpy as np

KINDS = ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "b1", "text", "list", "u8", "i8", "f8"]  # by their numbers


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def typed(value: Any) -> bytes:
    """The type of a value and the value."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        kind = typed(value[0])[:4]
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(value)) + b"".join(typed(one)[4:] for one in value)
    kind = {bool: "b1", float: "f4", int: "u4"}.get(type(value)) or value.dtype.str[1:]
    return struct.pack("<I", KINDS.index(kind)) + np.array(value, f"<{kind}").tobytes()


def content(
    architecture: str, values: dict[str, Any], tensors: dict[str, Any] | None = None, version: int = 3
) -> bytes:
    """Return the bytes of a GGUF; names of keys are without the architecture."""
    keys = {"general.architecture": architecture, "tokenizer.ggml.tokens": ["a", "bc"]}
    keys |= {f"{architecture}.{key}": value for key, value in values.items()}
    arrays = {name: np.asarray(value, dtype="<f4") for name, value in (tensors or {}).items()}
    made = b"GGUF" + struct.pack("<IQQ", version, len(arrays), len(keys))
    made += b"".join(text(key) + typed(value) for key, value in keys.items())
    at = 0
    for name, array in arrays.items():
        shape = tuple(reversed(array.shape))
        made += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, at)
        at += -(-array.nbytes // 32) * 32
    made += b"\0" * (-len(made) % 32)
    return made + b"".join(array.tobytes().ljust(-(-array.nbytes // 32) * 32, b"\0") for array in arrays.values())


def write(path: pathlib.Path, *arguments: Any, **options: Any) -> pathlib.Path:
    path.write_bytes(content(*arguments, **options))
    return path
