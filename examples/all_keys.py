"""Short windows of long texts that see all keys before them, to learn a rotation by: for ``tune_smollm2.py``.

A text is read once by some rotation, and every layer's keys before they are rotated, and its values, are kept. A
window of a few hundred tokens is then run alone: attention rotates the keys of all tokens before it by what is learned,
with gradients. Its loss is that of a whole reading, as long as what is learned is near what the text was read by, and
costs as many products as the window has tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

import rfrope
from rfrope.integrations.transformers import replace_rotary

NAME = "rfrope_all_keys"  # of the attention, in transformers


@dataclass(frozen=True, eq=False)
class Text:
    """Tokens, and what each layer has of them: keys before their rotation and values, ``(tokens, heads, d)``."""

    ids: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


@dataclass
class Attention:
    """Attention of a window's queries to all keys before them and its own."""

    model: Any
    text: Text | None = None
    first: int = 0

    def rotary(self, layer: int) -> Any:
        """Return the module that rotates in a layer."""
        positions = self.model.model.rotary_emb
        return positions.turning_module(layer if positions.is_by_layer else 0)

    def __call__(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any
    ) -> tuple[torch.Tensor, None]:
        """Attend, with activations that are formed again for gradients."""
        found = checkpoint(self._attend, query, key, value, scaling, module.layer_idx, use_reentrant=False)
        return found.transpose(1, 2), None

    def _attend(self, query: Any, key: Any, value: Any, scaling: float, layer: int) -> torch.Tensor:
        assert self.text is not None
        before = [
            one[layer][: self.first].transpose(0, 1)[None].to(key.dtype) for one in (self.text.keys, self.text.values)
        ]
        rotated = self.rotary(layer).rotate(before[0], torch.arange(self.first))
        keys, values = torch.cat([rotated, key], 2), torch.cat([before[1], value], 2)
        seen = torch.arange(keys.shape[2]) <= self.first + torch.arange(query.shape[2])[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=seen, scale=scaling, enable_gqa=True
        )


@torch.no_grad()
def read(model: Any, ids: Sequence[int], rope: rfrope.Rope) -> Text:
    """Read a text, and keep its keys and values in half precision."""
    tokens, layers = torch.as_tensor(ids)[None], model.model.layers
    width = layers[0].self_attn.head_dim
    kept: list[list[torch.Tensor]] = [[], []]
    hooks = [
        getattr(layer.self_attn, name).register_forward_hook(
            lambda module, inputs, output, held=held: held.append(output[0].unflatten(-1, (-1, width)).half())
        )
        for layer in layers
        for name, held in zip(("k_proj", "v_proj"), kept, strict=True)
    ]
    try:
        with replace_rotary(model, rope):
            model.model(tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return Text(tokens[0], *kept)


@contextmanager
def attending(model: Any) -> Iterator[Attention]:
    """Let a model attend so, inside a ``with`` block; its rotation has to be replaced before."""
    own, made = model.config._attn_implementation, Attention(model)
    AttentionInterface.register(NAME, made)
    model.set_attn_implementation(NAME)
    try:
        yield made
    finally:
        model.set_attn_implementation(own)


def loss(attention: Attention, text: Text, first: int, length: int) -> torch.Tensor:
    """Return the mean loss of the tokens after those of a window, in nats."""
    attention.text, attention.first = text, first
    ids = text.ids[first : first + length + 1]
    model = attention.model
    positions = torch.arange(first, first + length)[None]
    logits = model(ids[None, :-1], position_ids=positions, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(logits.float(), ids[1:])


def positions(begin: int, end: int, parts: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Return where windows begin: one in each of so many equal parts of a range, in a random order."""
    edges = np.linspace(begin, end - length - 1, parts + 1)
    return rng.permutation(rng.uniform(edges[:-1], edges[1:]).astype(np.int64))
