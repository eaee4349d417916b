"""TransformerEngine: ``apply_rotary_pos_emb``, given phases."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope.engines import formats
from rfrope.engines.record import Arithmetic, Engine, ExportRequest, Format


def _make_phases(request: ExportRequest) -> dict[str, Any]:
    """Return phases less whole turns, which float32 holds at far positions too."""
    cos, sin = request.exact_table()
    phases = np.arctan2(sin, cos).astype(np.float32)
    whole = np.repeat(phases, 2, axis=-1) if request.interleaved else np.concatenate([phases, phases], axis=-1)
    return {"freqs": whole[:, None, None, :], "interleaved": request.interleaved}


def _compute_phases(request: ExportRequest, made: dict[str, Any]) -> Arithmetic:
    """Return the error of phases of at most half a turn, rounded once, and of their cos and sin in float32."""
    return Arithmetic(None, 0.0, (np.pi + 2.0) * formats.ULP)


ENGINE = Engine(
    "TransformerEngine",
    format=Format(
        "``freqs`` of ``apply_rotary_pos_emb``: phases, less whole turns",
        "phases of at most half a turn are rounded to float32",
        f"TransformerEngine, pytorch/attention/rope.py of 0dc141c; {formats.READ}",
        _make_phases,
        _compute_phases,
        factor=False,
    ),
)
