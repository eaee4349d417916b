"""LMCache: cached keys moved to other positions, with vLLM's table."""

from __future__ import annotations

from dataclasses import replace

from rfrope.engines import formats
from rfrope.engines.record import Arithmetic, Engine, Format

ENGINE = Engine(
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
