"""TransformerEngine: ``apply_rotary_pos_emb`` and ``apply_fused_qkv_rotary_pos_emb``, with phases."""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope.engines import formats
from rfrope.engines.record import Arithmetic, Engine, ExportRequest, Format


def _make_phases(request: ExportRequest) -> dict[str, Any]:
    """Return phases ``(S, 1, 1, d)``, and for sets of each head ``(H S, 1, 1, d)`` and where each begins."""
    phases = formats.make_phases(request)
    whole = np.repeat(phases, 2, axis=-1) if request.interleaved else np.concatenate([phases, phases], axis=-1)
    made = {"freqs": whole[:, None, None, :], "interleaved": request.interleaved}
    return made if request.heads is None else made | {"heads": request.heads, "start_positions": request.first_rows}


ENGINE = Engine(
    "TransformerEngine",
    format=Format(
        "``freqs`` of ``apply_rotary_pos_emb``: phases, less whole turns. ``q_freqs`` and ``k_freqs`` of "
        "``apply_fused_qkv_rotary_pos_emb`` are this array, or those of two exports where q and k turn otherwise",
        "phases of at most half a turn are rounded to float32",
        f"TransformerEngine, pytorch/attention/rope.py and common/fused_rope/fused_rope.cu of d0067d0; {formats.READ}",
        _make_phases,
        # phases of at most half a turn, rounded once, and their cos and sin in float32
        lambda request, made: Arithmetic(None, 0.0, (np.pi + 2.0) * formats.ULP),
        factor=False,
        heads="fold heads into the batch: view ``(S, B, H, d)`` as ``(S, B H, 1, d)``, and repeat ``start_positions``, "
        "which is ``h S``, for each text of the batch; not in ``apply_fused_qkv_rotary_pos_emb``",
    ),
)
