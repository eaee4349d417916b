"""Texts for transformers models: read from ids, strings and files, divided, and their losses by whole readings."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from rfrope._core import files
from rfrope._core.arguments import printable, show

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see
Module: TypeAlias = Any

CHUNK = 1024  # tokens that are read, and whose logits are held, at once
_CACHES = ("cache", "past_key_values")  # names of a cache, from transformers 5.24 on and before it


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


def divide(documents: Sequence[np.ndarray], context: int, share: float, seed: int) -> list[list[np.ndarray]]:
    """Return the beginnings, of `context` tokens, of documents that teach, of those that choose, and of held-out ones.

    Raises
    ------
    ValueError
        If a document is shorter than the context or is there twice, or if there are too few.
    """
    seen: dict[bytes, int] = {}
    for i, one in enumerate(documents):
        if len(one) < context:
            raise ValueError(
                f"texts[{i}] has {len(one)} tokens; expected at least {context}, those of the context, in every text, "
                "such as several joined"
            )
        if (first := seen.setdefault(one.tobytes(), i)) != i:
            raise ValueError(f"texts[{i}] is texts[{first}] again; expected different documents")
    apart = max(2, round(share * len(documents)))
    if len(documents) < 2 * apart + 1:
        raise ValueError(
            f"texts has {len(documents)} documents; expected at least {2 * apart + 1}: {apart} are held out, {apart} "
            "choose, and the others are learned from"
        )
    order = [documents[i][:context] for i in np.random.default_rng([seed, 0]).permutation(len(documents))]
    return [order[2 * apart :], order[apart : 2 * apart], order[:apart]]


class Reading(NamedTuple):
    """A text that is read whole, from its beginning."""

    ids: np.ndarray  # (tokens,), of int64
    first: int  # position from which the losses of tokens count


def name_cache(model: Module) -> str:
    """Return the parameter by which a model takes a cache: of this transformers, unless it was written for another."""
    taken = inspect.signature(model.forward).parameters
    outputs = CausalLMOutputWithPast.__dataclass_fields__
    return next(name for names in (taken, outputs) for name in _CACHES if name in names)


@torch.no_grad()
def read_whole(model: Module, reading: Reading) -> Tensor:
    """Return the mean loss (1,) of the tokens of a text that count, in nats; it is read in chunks with a cache."""
    ids = torch.from_numpy(reading.ids)[None].to(next(model.parameters()).device)
    cache, name, losses = None, name_cache(model), []
    for first in range(0, ids.shape[1] - 1, CHUNK):
        some, wanted = ids[:, first : first + CHUNK], ids[0, first + 1 : first + CHUNK + 1]
        places = torch.arange(first, first + some.shape[1], device=ids.device)[None]
        found = model(some, position_ids=places, use_cache=True, **{name: cache})
        cache = next(found[one] for one in _CACHES if one in found)
        logits = found.logits[0, : len(wanted)].float()
        losses.append(torch.nn.functional.cross_entropy(logits, wanted, reduction="none"))
    return torch.cat(losses)[max(reading.first - 1, 0) :].mean()[None]
