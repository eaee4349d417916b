"""Engines that are given cos and sin, phases or periods, and files for everyone else."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope._core.angles import is_line
from rfrope._core.array import to_host
from rfrope.exports.engine import ULP, Asked, Used

_UNITS = {"float16": 2.0**-11, "float32": ULP, "float64": 2.0**-53}  # largest relative rounding


def mlx(asked: Asked) -> dict[str, Any]:
    """Arguments of ``mx.fast.rope``, which divides by periods: 1/frequency, infinite where nothing turns."""
    with np.errstate(divide="ignore", over="ignore"):
        freqs = (1.0 / asked.omega).astype(np.float32)
    return {
        "freqs": freqs,
        "dims": asked.rope.rotary_dim,
        "traditional": _interleaved(asked),
        "base": None,
        "scale": 1.0,
    }


def used_by_mlx(asked: Asked, made: dict[str, Any]) -> Used:
    """The reciprocal of a period, times a position, in float32."""
    with np.errstate(divide="ignore"):
        omega = np.float32(1.0) / made["freqs"]
    return Used(omega.astype(np.float64), 2.0 * ULP, 3.0 * ULP)


def onnx(asked: Asked) -> dict[str, Any]:
    """Inputs and attributes of RotaryEmbedding, operator set 23, and its node."""
    cos, sin = _table(asked)
    width = asked.rope.rotary_dim
    attributes = {
        "interleaved": int(_interleaved(asked)),
        "rotary_embedding_dim": 0 if width == asked.rope.head_dim else width,
    }
    node = {"op_type": "RotaryEmbedding", "domain": "", "opset": 23, "output": ["Y"]}
    node |= {"input": ["X", "cos_cache", "sin_cache", "position_ids"], "attributes": attributes}
    return {"cos_cache": cos, "sin_cache": sin, **attributes, "node": node}


def flash_attn(asked: Asked) -> dict[str, Any]:
    """Arguments of ``apply_rotary_emb``."""
    cos, sin = _table(asked)
    return {"cos": cos, "sin": sin, "interleaved": _interleaved(asked)}


def flashinfer(asked: Asked) -> dict[str, Any]:
    """Arguments of ``apply_rope_with_cos_sin_cache``: cos beside sin."""
    table = np.concatenate(_table(asked), axis=-1)
    return {"cos_sin_cache": table, "head_size": asked.rope.head_dim, "is_neox": not _interleaved(asked)}


def transformer_engine(asked: Asked) -> dict[str, Any]:
    """Arguments of ``apply_rotary_pos_emb``: phases less whole turns, which float32 holds at far positions too."""
    cos, sin = asked.rope.table(asked.positions)
    phases = np.arctan2(sin, cos).astype(np.float32)
    whole = np.repeat(phases, 2, axis=-1) if _interleaved(asked) else np.concatenate([phases, phases], axis=-1)
    return {"freqs": whole[:, None, None, :], "interleaved": _interleaved(asked)}


def arrays(asked: Asked) -> dict[str, Any]:
    """Frequencies in float64 with all that belongs to them, and cos and sin where there is a context on one axis."""
    made = described(asked) | {"frequencies": asked.omega, "vectors": to_host(asked.rope.vectors)}
    if asked.context is not None and is_line(made["vectors"]):
        made["cos"], made["sin"] = _table(asked)
    return made


def plain(asked: Asked) -> dict[str, Any]:
    """Numbers, strings and lists alone, each frequency with all digits of its float64."""
    return described(asked) | {"frequencies": asked.omega.tolist()}


def described(asked: Asked) -> dict[str, Any]:
    """What belongs to frequencies, as plain numbers and strings."""
    rope = asked.rope
    about: dict[str, Any] = {"units": "radians per unit of position", "pairing": rope.pairing}
    about |= {"head_dim": rope.head_dim, "rotary_dim": rope.rotary_dim, "attention_factor": rope.attention_factor}
    context = list(rope.context) if isinstance(rope.context, tuple) else rope.context
    about |= {"context": context if asked.context is None else asked.context}
    return about | {"sections": rope.sections and list(rope.sections), "interleaved_sections": rope.interleaved}


def used_as_table(asked: Asked, made: dict[str, Any]) -> Used:
    """Cos and sin were rounded once."""
    return Used(None, 0.0, _UNITS[asked.dtype])


def used_as_phases(asked: Asked, made: dict[str, Any]) -> Used:
    """Phases of at most half a turn were rounded once; their cos and sin, in float32, again."""
    return Used(None, 0.0, (np.pi + 2.0) * ULP)


def used_whole(asked: Asked, made: dict[str, Any]) -> Used:
    """Frequencies keep all their bits."""
    return Used(asked.omega, 0.0, 0.0)


def _table(asked: Asked) -> tuple[np.ndarray, np.ndarray]:
    cos, sin = asked.rope.table(asked.positions)
    return cos.astype(asked.dtype), sin.astype(asked.dtype)


def _interleaved(asked: Asked) -> bool:
    return asked.rope.pairing == "interleaved"
