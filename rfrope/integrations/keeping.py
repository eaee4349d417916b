"""Texts that are read once, their keys and values kept: short windows of them see all tokens before them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from rfrope.integrations import rotations, windows
from rfrope.layers.torch import RotaryEmbedding

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see
Module: TypeAlias = Any

_EVALUATED = 4  # windows of each text and part that choose
_NEAR = 0.05  # largest relative difference of a hidden state by what is kept, which is rounded to half precision


class Windows(NamedTuple):
    """Windows of texts that are kept, one per row."""

    texts: np.ndarray  # (windows,), int64: the number of the text
    firsts: np.ndarray  # the same: the position of the first token
    documents: np.ndarray  # the same: the document of each, from 0 in the batch
    length: int  # tokens


class _Kept(NamedTuple):
    """A text with keys and values of each layer."""

    ids: Tensor  # (1, tokens)
    keys: list[Tensor]  # before their rotation, (1, heads, tokens, d)
    values: list[Tensor]  # the same


@dataclasses.dataclass(frozen=True)
class Layout:
    """Lengths that determine where windows lie in a text."""

    trained: int
    context: int
    window: int

    def batches(self, teaching: int, texts: int, seed: int, batch: int) -> tuple[Any, dict[str, tuple[Windows, ...]]]:
        """Return a function of the step, and what chooses: the first texts teach, and the others choose."""
        draw = partial(self.learning, texts=teaching, seed=seed, batch=batch)
        return draw, self.parts(range(teaching, texts), seed + 1)

    def learning(self, step: int, texts: int, seed: int, batch: int) -> Windows:
        """Return the windows of a step, anywhere in texts drawn by chance; determined by seed and step alone."""
        rng = np.random.default_rng([seed, step])
        numbers = rng.integers(0, texts, batch)
        return Windows(numbers, rng.integers(0, self.context - self.window, batch), np.arange(batch), self.window)

    def parts(self, numbers: Sequence[int], seed: int) -> dict[str, tuple[Windows, ...]]:
        """Return one batch per text within the trained positions and one beyond, spread evenly over them."""
        edges = {"within": (0, self.trained - self.window), "beyond": (self.trained, self.context - self.window)}
        rng = np.random.default_rng(seed)
        found: dict[str, tuple[Windows, ...]] = {}
        for part, (low, high) in edges.items():
            rows = []
            for number in numbers:
                places = (np.arange(_EVALUATED) + rng.random(_EVALUATED)) / _EVALUATED
                firsts = (low + places * (high - low)).astype(np.int64)
                none = np.zeros(_EVALUATED, np.int64)
                rows.append(Windows(none + number, firsts, none, self.window))
            found[part] = tuple(rows)
        return found


class Texts:
    """Texts that a model has read, and losses of their windows."""

    def __init__(self, model: Module) -> None:
        self._model, self._kept = model, list[_Kept]()

    @torch.no_grad()
    def read(self, ids: np.ndarray) -> None:
        """Read a text by the rotation that is in the model, a chunk at a time, and keep it."""
        from transformers import DynamicCache

        model, positions = self._model, _positions(self._model)
        tokens = torch.from_numpy(ids)[None].to(next(model.parameters()).device)
        cache = DynamicCache()
        for first in range(0, len(ids), windows.CHUNK):
            last = self._run(tokens, first, min(first + windows.CHUNK, len(ids)), cache)
        held = [(one.keys, one.values) for one in cache.layers]
        places = torch.arange(len(ids), device=tokens.device)
        keys = []
        for i, (rotated, _) in enumerate(held):
            if rotated is None or rotated.shape[-2] != len(ids):
                raise ValueError(f"layer {i} keeps no keys of all tokens; expected keys='window' for this model")
            keys.append(_small(_turn(positions, _undoing(_rotary(positions, i)), rotated, places)))
        text = _Kept(tokens, keys, [_small(values) for _, values in held])
        again = self._run(tokens, len(ids) - 2, len(ids), _cache(text, len(ids) - 2, positions))
        if not float((again - last).norm()) <= _NEAR * float(last.norm()):
            raise ValueError(
                f"{type(model).__name__} does not read the end of a text alike when it has its keys and values; "
                "expected keys='window' for this model"
            )
        self._kept.append(text)

    def _run(self, tokens: Tensor, first: int, end: int, cache: Any) -> Tensor:
        """Return the last hidden state of some tokens of a text, of which a cache has what is before them."""
        places = torch.arange(first, end, device=tokens.device)[None]
        some = tokens[:, first:end]
        found = self._model.base_model(some, position_ids=places, past_key_values=cache, use_cache=True)
        return found.last_hidden_state[0, -1].float()

    def losses(self, batch: Windows) -> Tensor:
        """Return the mean loss of each document of a batch: next tokens, in nats."""
        found = []
        with _checkpointed(self._model):
            for number, first in zip(batch.texts.tolist(), batch.firsts.tolist(), strict=True):
                ids = self._kept[number].ids[:, first : first + batch.length + 1]
                places = torch.arange(first, first + batch.length, device=ids.device)[None]
                before = _cache(self._kept[number], first, _positions(self._model))
                logits = self._model(ids[:, :-1], position_ids=places, past_key_values=before, use_cache=True).logits
                found.append(torch.nn.functional.cross_entropy(logits[0].float(), ids[0, 1:]))
        each = torch.stack(found)
        documents = torch.from_numpy(batch.documents).to(each.device)
        many = int(batch.documents.max()) + 1
        sums = each.new_zeros(many).index_add(0, documents, each)
        return sums / each.new_zeros(many).index_add(0, documents, torch.ones_like(each))


def _cache(text: _Kept, first: int, positions: Module) -> Any:
    """Return a cache of the tokens of a text before one, whose keys are rotated when they are asked for."""
    from transformers import DynamicCache

    class Before(DynamicCache):
        def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            keys, values = (one[layer_idx][:, :, :first].to(key.dtype) for one in (text.keys, text.values))
            places = torch.arange(first, device=key.device)
            keys = _turn(positions, _rotary(positions, layer_idx), keys, places)
            return torch.cat([keys, key], -2), torch.cat([values, value], -2)

        def get_seq_length(self, *_: Any, **__: Any) -> int:
            return first

        def get_mask_sizes(self, tokens: Any, *_: Any, **__: Any) -> tuple[int, int]:
            return first + (len(tokens) if isinstance(tokens, torch.Tensor) else int(tokens)), 0

    return Before()


def _positions(model: Module) -> Module:
    """Return what was put in the place of the model's rotary module."""
    return next(one for one in model.modules() if isinstance(one, rotations.Positions))


def _rotary(positions: Module, layer: int) -> Module:
    return positions.turning_module(layer if positions.is_by_layer else 0)


def _turn(positions: Module, rotary: Module, keys: Tensor, places: Tensor) -> Tensor:
    turned: Tensor = rotations.rotate_features(rotary, positions.turns_last, (keys,), places, False)[0]
    return turned


def _undoing(rotary: Module) -> Module:
    """Return a module that rotates back."""
    rope = rotary.start
    back = dataclasses.replace(rope, frequencies=-rope.frequencies, attention_factor=1.0 / rope.attention_factor)
    made = RotaryEmbedding(back)
    made.head_dim = rotary.head_dim
    return made


def _small(x: Tensor) -> Tensor:
    """Return a tensor in half precision, unless that cannot hold it."""
    half = x.half() if x.dtype == torch.float32 else x
    return half if bool(torch.isfinite(half).all()) else x


@contextmanager
def _checkpointed(model: Module) -> Iterator[None]:
    """Let attention form its activations again for gradients: of long keys they take the most memory."""
    with ExitStack() as undo:
        for one in model.modules():
            if "forward" in vars(one) and torch.is_grad_enabled():  # attention that rotates by positions
                again = partial(checkpoint, one.forward, use_reentrant=False)
                rotations.swap(one.__dict__, "forward", again, undo)
        yield
