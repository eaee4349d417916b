"""Polar attention in transformers models: each attention module has its own polar embedding."""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

from transformers import Cache
from transformers.models.llama.modeling_llama import LlamaAttention

from rfrope._core import array
from rfrope.integrations.rotations import Positions, Rotary, calling, rotating_methods, swap
from rfrope.layers.torch import PolarEmbedding
from rfrope.models.kernel_scheme import NAME

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

_WIDEST = 256  # features that kernels of flash attention take


@dataclass(frozen=True, eq=False)
class PolarAttention:
    """The options of polar attention."""

    rope: Any  # as of `PolarEmbedding`
    learnable: Any  # parameters of each attention module
    score_scale: float | None  # what scores are multiplied by

    def read(self) -> dict[str, Module]:
        """Return the module of all layers, which learns nothing, for their positions.

        Raises
        ------
        ValueError
            If the Rope is not polar, or has several axes.
        """
        found = PolarEmbedding(self.rope)
        if found.axes != 1:
            raise ValueError(f"the Rope has {found.axes} axes; expected one, as tokens of text have")
        return {"all": found}

    @classmethod
    def read_parameters(cls, rope: Any, parameters: Mapping[str, Any]) -> PolarAttention:
        """Return the options that the `rope_parameters` of a config give beside the Rope."""
        return cls(rope, parameters.get("learnable", "phases"), parameters.get("score_scale"))

    @property
    def parameters(self) -> dict[str, Any]:
        """Return these options as `rope_parameters` of a config."""
        module = PolarEmbedding(self.rope, self.learnable)
        about: dict[str, Any] = {"rope_type": NAME, "polar": True, "learnable": [*module.learnable]}
        about |= {"frequencies": array.to_host(module.start.frequencies).tolist()}
        about |= {"attention_factor": module.start.attention_factor}
        return about if self.score_scale is None else about | {"score_scale": self.score_scale}

    def positions(self, rotary: Rotary) -> Positions:
        """Return the replacement of a rotary module."""
        made = Positions(rotary, self.read())
        made.__dict__["asked"] = self
        return made

    def put_in(self, attention: Module, positions: Positions, undo: ExitStack) -> bool:
        """Give an attention module a polar embedding of its own, if it rotates at all.

        Raises
        ------
        ValueError
            If attention is not written as Llama's, or has another width or other heads than the Rope.
        """
        methods = [*rotating_methods(attention)]
        if not methods:
            return False
        ((name, function, called), *others) = methods
        middle = _middle(function)
        if others or name != "forward" or not middle or middle != _middle(LlamaAttention.forward):
            raise ValueError(
                f"{type(attention).__name__} does more between its projections and its attention function than turn "
                "queries and keys; expected attention that is written as LlamaAttention is"
            )
        module = self._module_of(attention)
        turning = calling(function, dict.fromkeys(called, _turn))

        @wraps(function)
        def forward(self: Module, hidden_states: Any, position_embeddings: Any, *arguments: Any, **options: Any) -> Any:
            for cache in (one for one in (*arguments, *options.values()) if isinstance(one, Cache)):  # by any name
                _check_cache(cache, self.layer_idx, self.polar.start.n_blocks)
            return turning(self, hidden_states, (position_embeddings[0], self.polar), *arguments, **options)

        ratio = module.score_scale * math.sqrt(module.head_dim)  # to what RoPE's scores are multiplied by
        scale = attention.scaling * ratio if self.score_scale is None else self.score_scale
        swap(attention._modules, "polar", module, undo)
        swap(attention.__dict__, "scaling", scale, undo)
        swap(attention.__dict__, "forward", types.MethodType(forward, attention), undo)
        return True

    def _module_of(self, attention: Module) -> Module:
        """Return a polar module for the heads of an attention module, where its weights are."""
        kind, config, rope = type(attention).__name__, attention.config, PolarEmbedding(self.rope).rope
        if rope.n_blocks != attention.head_dim:
            raise ValueError(
                f"the Rope has {rope.n_blocks} frequencies, but heads of {kind} have {attention.head_dim} features; "
                "expected one for each"
            )
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        sets = rope.vectors.shape[0] if rope.vectors.ndim == 3 else None
        if sets not in (None, heads):
            raise ValueError(f"the Rope has {sets} sets of frequencies, but {kind} has {heads} heads of keys")
        made = PolarEmbedding(self.rope, self.learnable)
        if made.phases is not None and sets is None:
            made = PolarEmbedding(self.rope, self.learnable, heads=heads)
        kernels = str(getattr(config, "_attn_implementation", ""))
        if "flash" in kernels and 2 * rope.n_blocks > _WIDEST:
            raise ValueError(
                f"attention is {kernels!r}, whose kernels take heads of {_WIDEST} features, but polar keys have "
                f"{2 * rope.n_blocks}; expected attn_implementation='sdpa'"
            )
        return made.to(next(attention.parameters()).device)


def _turn(q: Any, k: Any, places: Any, module: Module) -> Any:
    """Return queries and keys of twice the width: what stands for a function of q, k, cos and sin."""
    return module(q, k, places[..., 0])


def _check_cache(cache: Any, layer: int, blocks: int) -> None:
    """Refuse a cache for keys of another width, such as those of a model before it was polar."""
    keys = getattr(cache.layers[layer], "keys", None) if layer < len(getattr(cache, "layers", ())) else None
    if keys is not None and keys.shape[-1] not in (0, 2 * blocks):
        raise ValueError(
            f"the cache has keys of {keys.shape[-1]} features, but polar keys have {2 * blocks}; expected a cache that "
            "this model has filled alone, and no prefill_chunk_size with a static cache, which takes the config's width"
        )


def _middle(function: Any) -> str:
    """Return the source of an attention module's forward from its tables to its attention function."""
    code = re.sub(r"\s*#.*", "", inspect.getsource(function))
    found = re.search(r"\n {8}cos, sin = position_embeddings\n.*?\n {8}attention_interface\b", code, re.DOTALL)
    inputs = [*inspect.signature(function).parameters][1:3] == ["hidden_states", "position_embeddings"]
    return re.sub(r"\s+", " ", found[0]) if found and inputs and "scaling=self.scaling," in code else ""
