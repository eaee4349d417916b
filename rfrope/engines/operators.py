"""Operators that take tables or phases of a Rope, each in its own form, and plain files, JSON and NumPy arrays."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope.engines import formats
from rfrope.engines.record import Arithmetic, Engine, ExportRequest, Format


def _double(x: np.ndarray, interleaved: bool) -> np.ndarray:
    """Return numbers of blocks as those of features."""
    return np.repeat(x, 2, axis=-1) if interleaved else np.concatenate([x, x], axis=-1)


def _refuse_part(request: ExportRequest) -> str:
    rope = request.rope
    return "" if rope.head_dim == rope.rotary_dim else f"it turns whole heads, the Rope {rope.rotary_dim} features"


def _make_offsets(request: ExportRequest) -> dict[str, Any]:
    """Return tables, and for sets of each head the offsets of one text: row ``h S + p`` is position p of head h."""
    cos, sin = request.table()
    made = {"cos": cos, "sin": sin, "interleaved": request.interleaved}
    return made if request.heads is None else made | {"heads": request.heads, "seqlen_offsets": request.first_rows}


FLASH_ATTN = Engine(
    "flash-attn",
    format=Format(
        "``cos`` and ``sin`` of ``apply_rotary_emb``, in the dtype of q and k",
        formats.ONCE,
        f"flash-attention, flash_attn/ops/triton/rotary.py of 03f6a6b; {formats.READ}",
        _make_offsets,
        formats.round_once,
        heads="fold heads into the batch: view contiguous ``(B, H, S, d)`` as ``(B H, S, 1, d)``, and repeat "
        "``seqlen_offsets``, which is ``h S``, for each text of the batch (plus the position at which it begins). The "
        "tables have H S rows: a text that goes on beyond S would read those of the next head",
        options=("context", "dtype"),
    ),
)


FLASHINFER = Engine(
    "FlashInfer",
    format=Format(
        "``cos_sin_cache`` of ``apply_rope_with_cos_sin_cache``, float32; it has kernels for heads of 64, 128, 256 and "
        "512 features",
        formats.ONCE,
        f"FlashInfer, flashinfer/rope.py, csrc/rope.cu and include/flashinfer/pos_enc.cuh of fb28d72; {formats.READ}",
        # alone takes frequencies, and computes no phase itself
        lambda request: formats.make_cache(request) | {"function": "flashinfer.apply_rope_with_cos_sin_cache"},
        formats.round_once,
        heads=formats.ROW_OF_HEAD,
        cannot="``apply_rope``, ``apply_rope_pos_ids`` and ``apply_llama31_rope``, which take no frequencies: they "
        "compute ``__powf`` of a base, and ``__sincosf`` of float32 phases that are not reduced",
    ),
)


LMCACHE = Engine(
    "LMCache",
    format=Format(
        "``cos_sin_cache`` of ``rotary_embedding_k_fused``, in the dtype of the cached keys: it turns keys back from "
        "their old positions and forth to the new ones. It is of size 1, since cached keys have the attention factor",
        "cos and sin are rounded once, and so is what is turned, in the dtype of the keys",
        "LMCache, csrc/pos_kernels.cu and lmcache/v1/compute/positional_encoding.py of 0e65d2f (which refuses schemes "
        "and parts of a head), lmcache/v1/multiprocess/modules/blend/registration.py of 0544eb1 (which takes any table "
        f"of vLLM and divides it by its size); {formats.READ}",
        # without the attention factor: cached keys have it, and would get its square on top
        lambda request: formats.make_cache(replace(request, rope=replace(request.rope, attention_factor=1.0))),
        # an entry of the turn that two rows make: the error of both rows, two products and their sum
        lambda request, made: Arithmetic(None, 0.0, 6.0 * formats.round_once(request, made).entry_error),
        heads=f"{formats.ROW_OF_HEAD}; both for old and for new positions",
        options=("context", "dtype"),
    ),
)


def _make_node(request: ExportRequest) -> dict[str, Any]:
    """Return inputs and attributes of RotaryEmbedding, operator set 23, and its node."""
    cos, sin = request.table()
    width = request.rope.rotary_dim
    attributes = {
        "interleaved": int(request.interleaved),
        "rotary_embedding_dim": 0 if width == request.rope.head_dim else width,
    }
    node = {"op_type": "RotaryEmbedding", "domain": "", "opset": 23, "output": ["Y"]}
    node |= {"input": ["X", "cos_cache", "sin_cache", "position_ids"], "attributes": attributes}
    return {"cos_cache": cos, "sin_cache": sin, **attributes, "node": node}


ONNX = Engine(
    "ONNX",
    format=Format(
        "``cos_cache`` and ``sin_cache`` of RotaryEmbedding-23, and the node",
        formats.ONCE,
        f"ONNX 1.23.2, operator set 23; {formats.RUN}: onnxruntime",
        _make_node,
        formats.round_once,
        (".onnx", ".npz"),
        options=("context", "dtype"),
    ),
)


def _make_phases(request: ExportRequest) -> dict[str, Any]:
    """Return phases ``(S, 1, 1, d)``, and for sets of each head ``(H S, 1, 1, d)`` and where each begins."""
    phases = formats.make_phases(request)
    made = {"freqs": _double(phases, request.interleaved)[:, None, None, :], "interleaved": request.interleaved}
    return made if request.heads is None else made | {"heads": request.heads, "start_positions": request.first_rows}


TRANSFORMER_ENGINE = Engine(
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


def _make_doubled(request: ExportRequest) -> dict[str, Any]:
    """Return tables ``(1, S, d)``, halves twice, of which it reads the first; ``(H, S, d)`` for sets of each head."""
    shape = (request.heads or 1, request.context or 0, -1)
    cos, sin = (_double(one, False).reshape(shape) for one in request.table())
    return {"cos": cos, "sin": sin}


LIGER = Engine(
    "Liger-Kernel",
    format=Format(
        "``cos`` and ``sin`` of ``liger_rotary_pos_emb``, ``(1, S, d)`` for all texts of a batch that begin at 0, or "
        "one table for each text, of its length: ``cos[0, positions]`` with positions ``(B, S)``. It computes in their "
        "dtype",
        formats.ONCE,
        f"Liger-Kernel 0.8.2, src/liger_kernel/ops/rope.py of ead96b6; {formats.RUN}, in Triton's interpreter",
        _make_doubled,
        formats.round_once,
        pairings=("half",),
        heads="view q as ``(B H, 1, S, d)``: the tables ``(H, S, d)`` are those of one text, cut to its length and "
        "repeated for each text of the batch",
        options=("context", "dtype"),
        refusal=_refuse_part,
        cannot="a part of a head",
    ),
)


def _make_caches(request: ExportRequest) -> dict[str, Any]:
    """Return tables ``(S, D)``, or ``(H, S, D)`` for sets of each head, which broadcast against ``(B, H, S, D)``."""
    shape = (request.context or 0, -1) if request.heads is None else (request.heads, request.context or 0, -1)
    cos, sin = (one.reshape(shape) for one in request.table())
    return {"cos": cos, "sin": sin, "interleaved": request.interleaved}


def _refuse_until_released(request: ExportRequest) -> str:
    instead = "layers.torch.RotaryEmbedding runs the Rope with any torch"
    if importlib.util.find_spec("torch") is None:
        return f"torch is not installed, and only one that has nn.functional.rotary_embedding takes it; {instead}"
    torch = importlib.import_module("torch")
    if not hasattr(torch.nn.functional, "rotary_embedding"):
        return (
            f"torch {torch.__version__} has no nn.functional.rotary_embedding: pull request 187286, which adds it and "
            f"nn.RotaryEmbedding, is not in it; {instead}"
        )
    return _refuse_part(request)


PYTORCH = Engine(
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


def _make_padded(request: ExportRequest) -> dict[str, Any]:
    """Return tables ``(rows, head_dim)``: features that do not turn have cos 1 and sin 0."""
    cos, sin = (_double(one, request.interleaved) for one in request.table())
    rest = ((0, 0), (0, (request.rope.head_dim or 0) - request.rope.rotary_dim))
    made: dict[str, Any] = {"cos": np.pad(cos, rest, constant_values=1.0), "sin": np.pad(sin, rest)}
    made |= {"use_real": True, "use_real_unbind_dim": -1 if request.interleaved else -2}
    return made if request.heads is None else made | {"heads": request.heads}


def _refuse_halves(request: ExportRequest) -> str:
    """Return why halves of a part would be others: it splits the whole head."""
    rope = request.rope
    if rope.head_dim == rope.rotary_dim or request.interleaved:
        return ""
    return f"it pairs the halves of the whole head of {rope.head_dim} features, the Rope those of its first part"


DIFFUSERS = Engine(
    "diffusers",
    format=Format(
        "``freqs_cis=(cos, sin)`` of ``models.embeddings.apply_rotary_emb`` and its flags: row p is position p, and "
        "other positions (or grids) take ``cos[positions]``",
        formats.ONCE,
        f"diffusers 0.40.0.dev0, src/diffusers/models/embeddings.py of 58eb52c; {formats.RUN}: 0.42.1",
        _make_padded,
        formats.round_once,
        heads="view contiguous ``(B, H, S, d)`` as ``(B, 1, H S, d)``: the tables have H S rows, and S is the "
        "length of the text",
        options=("context", "dtype"),
        refusal=_refuse_halves,
        cannot="halves of a part of a head",
    ),
)


# -- plain files -------------------------------------------------------------------------------------------------------


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
