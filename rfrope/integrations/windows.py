"""Short windows of texts at long positions, whole readings, and their losses, for transformers models."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from rfrope._core import files
from rfrope._core.arguments import printable, show

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see
Module: TypeAlias = Any

CHUNK = 1024  # tokens whose logits are held at once in a whole reading
EVALUATED = 4  # windows of each document and part that are read
_CACHES = ("cache", "past_key_values")  # names of a cache, from transformers 5.24 on and before it


class Batch(NamedTuple):
    """Windows, one per row."""

    ids: np.ndarray  # (windows, tokens), of int64
    positions: np.ndarray  # of the same
    # (windows, tokens - 1), bool: whether the loss of the token after each counts: not across a gap, and in its part
    # alone
    counted: np.ndarray
    documents: np.ndarray  # (windows,), int64: the document of each, from 0 in the batch


def read_documents(texts: Any, tokenizer: Any, vocabulary: int) -> list[np.ndarray]:
    """Return token ids, below `vocabulary`, of texts: ids, strings, or paths of text files."""
    if isinstance(texts, str | bytes | os.PathLike) or not hasattr(texts, "__iter__"):
        raise TypeError(f"texts is {show(texts)}; expected a sequence of texts, each a document")
    return [_read_document(f"texts[{i}]", one, tokenizer, vocabulary) for i, one in enumerate(texts)]


def _read_document(name: str, text: Any, tokenizer: Any, vocabulary: int) -> np.ndarray:
    if isinstance(text, os.PathLike):
        try:
            text = files.read_bytes(os.fspath(text)).decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name}, {printable(str(text))}, is not UTF-8; expected a file of text") from None
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError(f"tokenizer is None, but {name} is a text; expected the model's tokenizer, or token ids")
        text = tokenizer(text, verbose=False)["input_ids"]
    ids = np.asarray(text)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(f"{name} has shape {ids.shape} of {ids.dtype}; expected token ids, a string or a path")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise ValueError(
            f"{name} has ids from {ids.min()} to {ids.max()}; expected those of {vocabulary} tokens, from 0"
        )
    return ids.astype(np.int64)


@dataclass(frozen=True)
class Layout:
    """Lengths that determine where windows lie in a context."""

    # positions that the model was trained with, and those to reach
    trained: int
    context: int
    # tokens of a window, and parts of it that keep together
    window: int
    chunks: int

    def draw(self, document: np.ndarray, rng: np.random.Generator, length: int | None = None) -> tuple[Any, ...]:
        """Return ids, positions and counted losses of a window with random gaps, its first chunk at position 0.

        Tokens are those at the positions, from anywhere in a document that is long enough, otherwise consecutive.
        """
        length = self.context if length is None else length
        cuts = np.sort(rng.choice(np.arange(1, self.window), self.chunks - 1, replace=False))
        gaps = np.sort(rng.integers(0, length - self.window + 1, self.chunks - 1))
        return self._taken(document, rng, cuts, gaps)

    def draw_beyond(self, document: np.ndarray, rng: np.random.Generator) -> tuple[Any, ...]:
        """Return the same for a window whose second half, which alone counts, is beyond the trained positions."""
        cut, most = self.window // 2, self.context - self.window
        gap = rng.integers(min(max(self.trained - cut, 0), most), most + 1)
        ids, positions, counted = self._taken(document, rng, np.asarray([cut]), np.asarray([gap]))
        return ids, positions, counted & (positions[1:] >= self.trained)

    def _taken(self, document: np.ndarray, rng: np.random.Generator, cuts: Any, gaps: Any) -> tuple[Any, ...]:
        places = np.arange(self.window)
        positions = places + np.append(0, gaps)[np.searchsorted(cuts, places, side="right")]
        has_all = len(document) >= self.context
        begin = rng.integers(0, len(document) - (self.context if has_all else self.window) + 1)
        ids = document[begin + (positions if has_all else places)]
        return ids, positions, np.diff(positions) == 1

    def whole(self, document: np.ndarray, length: int, first: int) -> tuple[Any, ...]:
        """Return the same for the beginning of a document; losses count from position `first` on."""
        positions = np.arange(length)
        return document[:length], positions, positions[1:] >= first


def learning_batch(
    step: int, documents: Sequence[np.ndarray], layout: Layout, seed: int, windows: int, whole: float
) -> Batch:
    """Return the windows of a step, or a whole context in part of the steps; determined by seed and step alone."""
    rng = np.random.default_rng([seed, step])
    if rng.random() < whole:
        long = [one for one in documents if len(one) >= layout.context]
        return _stacked([layout.whole(long[int(rng.integers(len(long)))], layout.context, 0)], [0])
    rows = [layout.draw(documents[int(rng.integers(len(documents)))], rng) for _ in range(windows)]
    return _stacked(rows, range(windows))


def read_parts(
    documents: Sequence[np.ndarray], layout: Layout, seed: int, *, are_whole: bool
) -> dict[str, tuple[Batch, ...]]:
    """Return one batch per document within the trained positions, and one beyond: whole readings, or windows."""
    found: dict[str, list[Batch]] = {"within": [], "beyond": []}
    for number, document in enumerate(documents):
        rng = np.random.default_rng([seed, number])
        if are_whole:
            within = [layout.whole(document, layout.trained, 0)]
            beyond = [layout.whole(document, layout.context, layout.trained)]
        else:
            within = [layout.draw(document, rng, layout.trained) for _ in range(EVALUATED)]
            beyond = [layout.draw_beyond(document, rng) for _ in range(EVALUATED)]
        for part, rows in (("within", within), ("beyond", beyond)):
            found[part].append(_stacked(rows, [0] * len(rows)))
    return {part: tuple(batches) for part, batches in found.items()}


def _stacked(rows: Sequence[tuple[Any, ...]], documents: Any) -> Batch:
    ids, positions, counted = (np.stack(column) for column in zip(*rows, strict=True))
    return Batch(ids, positions, counted, np.asarray([*documents]))


# -- losses ------------------------------------------------------------------------------------------------------------


def document_losses(model: Module, batch: Batch) -> Tensor:
    """Return the mean loss of each document of a batch: next tokens, in nats."""
    device = next(model.parameters()).device
    ids, positions = (torch.from_numpy(one).to(device) for one in (batch.ids, batch.positions))
    counted = torch.from_numpy(batch.counted).to(device)
    pieces = _pieces(model, ids, positions)
    losses = torch.cat([_token_losses(logits, ids[rows, first:]) for rows, first, logits in pieces])
    kept = counted.reshape(-1)
    numbers = batch.documents.repeat(counted.shape[1])[kept.cpu().numpy()]
    return mean_by_document(losses[kept], numbers, int(batch.documents.max()) + 1)


def mean_by_document(losses: Tensor, documents: np.ndarray, many: int) -> Tensor:
    """Return the mean of the losses of each of so many documents, whose numbers, from 0, `documents` has."""
    own = torch.from_numpy(documents == np.arange(many)[:, None]).to(losses.device)
    return torch.where(own, losses, 0.0).sum(-1) / own.sum(-1)  # in one order, on a GPU too


def name_cache(model: Module) -> str:
    """Return the parameter by which a model takes a cache: of this transformers, unless it was written for another."""
    taken = inspect.signature(model.forward).parameters
    outputs = CausalLMOutputWithPast.__dataclass_fields__
    return next(name for names in (taken, outputs) for name in _CACHES if name in names)


def _pieces(model: Module, ids: Tensor, positions: Tensor) -> Iterator[tuple[slice, int, Tensor]]:
    """Yield logits of rows from a token on: of all where gradients are wanted, else of a chunk at a time."""
    if torch.is_grad_enabled():
        yield slice(None), 0, _logits(model, ids, positions)
        return
    together = max(1, CHUNK // ids.shape[1])
    for row in range(0, len(ids), together):
        rows = slice(row, row + together)
        if ids.shape[1] <= CHUNK:
            yield rows, 0, _logits(model, ids[rows], positions[rows])
            continue
        cache, name = None, name_cache(model)
        for first in range(0, ids.shape[1], CHUNK):
            some = slice(first, first + CHUNK)
            found = model(ids[rows, some], position_ids=positions[rows, some], use_cache=True, **{name: cache})
            cache = next(found[one] for one in _CACHES if one in found)
            yield rows, first, found.logits


def _logits(model: Module, ids: Tensor, positions: Tensor) -> Tensor:
    """Return logits; by the mask tokens after a gap are of the same text, which transformers takes for another one."""
    return model(ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False).logits


def _token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the loss of the token after each, of the tokens that logits are of."""
    wanted = ids[:, 1 : logits.shape[1] + 1]
    logits = logits[:, : wanted.shape[1]].float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), wanted.reshape(-1), reduction="none")
