"""FlashInfer: ``apply_rope_with_cos_sin_cache``, with one table of cos and sin side by side."""

from __future__ import annotations

from rfrope.engines import formats
from rfrope.engines.record import Engine, Format

_FUNCTION = "flashinfer.apply_rope_with_cos_sin_cache"  # alone takes frequencies, and computes no phase itself


ENGINE = Engine(
    "FlashInfer",
    format=Format(
        "``cos_sin_cache`` of ``apply_rope_with_cos_sin_cache``, float32; it has kernels for heads of 64, 128, 256 and "
        "512 features",
        formats.ONCE,
        f"FlashInfer, flashinfer/rope.py, csrc/rope.cu and include/flashinfer/pos_enc.cuh of fb28d72; {formats.READ}",
        lambda request: formats.make_cache(request) | {"function": _FUNCTION},
        formats.round_once,
        heads=formats.ROW_OF_HEAD,
        cannot="``apply_rope``, ``apply_rope_pos_ids`` and ``apply_llama31_rope``, which take no frequencies: they "
        "compute ``__powf`` of a base, and ``__sincosf`` of float32 phases that are not reduced",
    ),
)
