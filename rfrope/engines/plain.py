"""Plain files: a Rope's frequencies and fields, as JSON or NumPy arrays."""

from __future__ import annotations

from typing import Any

from rfrope.engines.record import Arithmetic, Engine, ExportRequest, Format


def _describe(request: ExportRequest) -> dict[str, Any]:
    """Return everything but the frequencies, as plain numbers and strings."""
    rope = request.rope
    about: dict[str, Any] = {"units": "radians per unit of position", "pairing": rope.pairing}
    about |= {"head_dim": rope.head_dim, "rotary_dim": rope.rotary_dim, "attention_factor": rope.attention_factor}
    context = list(rope.context) if isinstance(rope.context, tuple) else rope.context
    about |= {"context": context if request.context is None else request.context}
    return about | {"sections": rope.sections and list(rope.sections), "interleaved_sections": rope.interleaved}


def _make_arrays(request: ExportRequest) -> dict[str, Any]:
    """Return frequencies in float64, and cos and sin where there is a context on one axis."""
    made = _describe(request) | {"frequencies": request.rope.frequencies, "vectors": request.rope.vectors}
    if request.context is not None and made["vectors"].ndim == 1:
        made["cos"], made["sin"] = request.table()
    return made


JSON = Engine(
    "json",
    format=Format(
        "frequencies and all that belongs to them, as numbers and strings",
        "nothing",
        "this page",
        lambda request: _describe(request) | {"frequencies": request.rope.frequencies.tolist()},  # all their digits
        lambda request, _: Arithmetic(request.rope.frequencies, 0.0, 0.0),
        (".json",),
        any_rope=True,
        options=(),
    ),
)
NPZ = Engine(
    "npz",
    format=Format(
        "the same as arrays, with float32 tables of cos and sin where there is a context on one axis",
        "nothing in the frequencies; tables are rounded once",
        "this page",
        _make_arrays,
        lambda request, _: Arithmetic(request.rope.frequencies, 0.0, 0.0),
        any_rope=True,
        options=("dtype",),
    ),
)
