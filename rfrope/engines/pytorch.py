"""PyTorch's own ``nn.functional.rotary_embedding`` and ``nn.RotaryEmbedding``, once they are released.

Both are proposed in pull request 187286 of pytorch/pytorch; this module follows its description and its
``torch/nn/modules`` file. Without an installed torch that has them, nothing is exported.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from rfrope.engines import formats
from rfrope.engines.record import Engine, ExportRequest, Format

_OPERATOR = "rotary_embedding"


def _make_caches(request: ExportRequest) -> dict[str, Any]:
    """Return tables ``(S, D)``, or ``(H, S, D)`` for sets of each head, which broadcast against ``(B, H, S, D)``."""
    shape = (request.context or 0, -1) if request.heads is None else (request.heads, request.context or 0, -1)
    cos, sin = (one.reshape(shape) for one in request.table())
    return {"cos": cos, "sin": sin, "interleaved": request.interleaved}


def _refuse_until_released(request: ExportRequest) -> str:
    instead = "layers.torch.RotaryEmbedding runs the Rope with any torch"
    if importlib.util.find_spec("torch") is None:
        return f"torch is not installed, and only one that has nn.functional.{_OPERATOR} takes it; {instead}"
    torch = importlib.import_module("torch")
    if not hasattr(torch.nn.functional, _OPERATOR):
        return (
            f"torch {torch.__version__} has no nn.functional.{_OPERATOR}: pull request 187286, which adds it and "
            f"nn.RotaryEmbedding, is not in it; {instead}"
        )
    rope = request.rope
    return "" if rope.head_dim == rope.rotary_dim else f"it turns whole heads, the Rope {rope.rotary_dim} features"


ENGINE = Engine(
    "PyTorch",
    format=Format(
        "``cos``, ``sin`` and ``interleaved`` of ``nn.functional.rotary_embedding``; the tables are the buffers "
        "``cos_cache`` and ``sin_cache`` of ``nn.RotaryEmbedding``, which pairs halves. Refused until torch has them",
        formats.ONCE,
        f"pytorch/pytorch, pull request 187286; {formats.READ}",
        _make_caches,
        formats.round_once,
        heads="tables ``(H, S, D)``, without ``position_ids``: cut them to the length of the text",
        options=("context", "dtype"),
        refusal=_refuse_until_released,
        cannot="a part of a head",
    ),
)
