"""DeepSpeed inference (version 2, with a blocked cache): only a base, or trained frequencies."""

from __future__ import annotations

import numpy as np

from rfrope._core.arguments import show
from rfrope.engines import formats
from rfrope.engines.formulas import RefusedError, UnknownError
from rfrope.engines.record import Arithmetic, ConfigRope, EngineRope, ExportRequest, make_engine, make_reading

_WIDTHS = (64, 80, 96, 128)  # heads that its kernels are compiled for
_LANE = 8  # features that a lane of its kernel holds, and both halves are whole lanes
_ROUNDED = ("float16", "bfloat16")


def _read(config: ConfigRope) -> EngineRope:
    """Return the ladder of ``rope_theta`` in the type of the weights; no scheme and no part of a head are read."""
    raw = config.raw
    theta, dtype = raw.get("rope_theta"), str(raw.get("torch_dtype") or raw.get("dtype")).removeprefix("torch.")
    if theta is None:
        raise UnknownError("rope_theta is missing, and the default of transformers 4 was not read")
    if dtype == "None":
        raise UnknownError("its frequencies are rounded to torch_dtype, and the config has none")
    if dtype not in _ROUNDED:
        raise RefusedError(f"stops with an error: torch_dtype is {show(dtype)}; only fp16 and bf16 are supported")
    width = raw["hidden_size"] // raw["num_attention_heads"]
    if width != config.rope.head_dim or width not in _WIDTHS:
        raise RefusedError(f"stops with an error: hidden_size / num_attention_heads = {width} does not fit")
    unread: tuple[str, ...] = ("rope_scaling",) if config.scheme != "default" else ()
    unread += ("partial_rotary_factor",) if config.part != 1.0 else ()
    note = "with transformers 5 it stops: its configs have no attribute rope_theta"
    if raw.get("num_key_value_heads") not in (None, raw["num_attention_heads"]):
        note = f"in each group, query heads except the first rotate with float32 frequencies, not {dtype}; {note}"
    return EngineRope(_round(config.ladder(base=float(theta)), dtype), ignored_keys=unread, note=note)


def _round(frequencies: np.ndarray, dtype: str) -> np.ndarray:
    """Return frequencies rounded to a 16-bit type: the kernel converts them to that of q and k, and back."""
    if dtype == "float16":
        return frequencies.astype(np.float16).astype(np.float64)
    bits = frequencies.astype(np.float32).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def _refuse_lanes(request: ExportRequest) -> str:
    width = request.rope.rotary_dim
    return "" if width % (2 * _LANE) == 0 else f"it turns multiples of {2 * _LANE} features, and the Rope turns {width}"


ENGINE = make_engine(
    "DeepSpeed",
    lambda request: {"inverse_freqs": request.rope.frequencies.astype(np.float32)},
    # a float32 product, its product with 1/(2 pi) in ``__cosf``, and that itself
    lambda request, made: Arithmetic(made["inverse_freqs"].astype(np.float64), 4.0 * formats.ULP, 2.0**-21),
    _refuse_lanes,
    reading=make_reading("DeepSpeed", _read),
)
