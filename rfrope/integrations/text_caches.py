"""Texts for transformers models: read, divided, and cached, so that short windows attend to all tokens before them."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import transformers
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from rfrope._core import files
from rfrope._core.arguments import printable, show
from rfrope.integrations import rotations
from rfrope.integrations.reading import read_ids

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see
Module: TypeAlias = Any

CHUNK = 1024  # tokens that are read, and whose logits are held, at once
_CACHES = ("cache", "past_key_values")  # names of a cache, from transformers 5.24 on and before it
# largest sum of differences of probabilities by what is cached, in half precision, in a model of float32, and of
# narrower ones, which round all else, too: SmolLM2-135M has up to 0.001 and 0.06
_NEAR, _NEAR_IN_HALF = 0.05, 0.4
_EVALUATED = 4  # windows of each document and part that are read
_OTHERWISE = "expected a model whose keys can be rotated again, or tune_modules with a loss of your own"


def read_documents(texts: Any, tokenizer: Any, model: Module) -> list[np.ndarray]:
    """Return token ids of texts: ids, strings, or paths of text files."""
    if isinstance(texts, str | bytes | os.PathLike) or not hasattr(texts, "__iter__"):
        raise TypeError(f"texts is {show(texts)}; expected a sequence of texts, each a document")
    found = []
    for name, text in ((f"texts[{i}]", one) for i, one in enumerate(texts)):
        if isinstance(text, os.PathLike):
            try:
                text = files.read_bytes(os.fspath(text)).decode("utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"{name}, {printable(str(text))}, is not UTF-8; expected a file of text") from None
        if isinstance(text, str):
            if tokenizer is None:
                raise ValueError(
                    f"tokenizer is None, but {name} is a text; expected the model's tokenizer, or token ids"
                )
            text = tokenizer(text, verbose=False)["input_ids"]
        found.append(read_ids(name, text, model)[0].cpu().numpy())
    return found


def divide(documents: Sequence[np.ndarray], context: int, share: float, seed: int) -> list[list[np.ndarray]]:
    """Return the first `context` tokens of documents that teach, of those that choose, and of held-out ones.

    Raises
    ------
    ValueError
        If a document is shorter than the context or is there twice, or if there are too few.
    """
    seen: dict[bytes, int] = {}
    for i, one in enumerate(documents):
        if len(one) < context:
            raise ValueError(
                f"texts[{i}] has {len(one)} tokens; expected at least {context}, the context, in every text: "
                "join several"
            )
        if (first := seen.setdefault(one.tobytes(), i)) != i:
            raise ValueError(f"texts[{i}] is texts[{first}] again; expected different documents")
    apart = max(2, round(share * len(documents)))
    if len(documents) < 2 * apart + 1:
        raise ValueError(
            f"texts has {len(documents)} documents; expected at least {2 * apart + 1}: {apart} are held out, {apart} "
            "choose, and the others teach"
        )
    order = [documents[i][:context] for i in np.random.default_rng([seed, 0]).permutation(len(documents))]
    return [order[2 * apart :], order[apart : 2 * apart], order[:apart]]


def name_cache(model: Module) -> str:
    """Return the parameter by which a model takes a cache: of this transformers, unless it was written for another."""
    taken = inspect.signature(model.forward).parameters
    outputs = CausalLMOutputWithPast.__dataclass_fields__
    return next(name for names in (taken, outputs) for name in _CACHES if name in names)


@torch.no_grad()
def read_whole(model: Module, tokens: np.ndarray, least: int) -> Tensor:
    """Return the mean loss (1,) of tokens from a position on, in nats; the text is read in chunks with a cache."""
    ids = torch.from_numpy(tokens)[None].to(next(model.parameters()).device)
    cache, name, losses = None, name_cache(model), []
    for first in range(0, ids.shape[1] - 1, CHUNK):
        some, wanted = ids[:, first : first + CHUNK], ids[0, first + 1 : first + CHUNK + 1]
        places = torch.arange(first, first + some.shape[1], device=ids.device)[None]
        found = model(some, position_ids=places, use_cache=True, **{name: cache})
        cache = next(found[one] for one in _CACHES if one in found)
        logits = found.logits[0, : len(wanted)].float()
        losses.append(torch.nn.functional.cross_entropy(logits, wanted, reduction="none"))
    return torch.cat(losses)[max(least - 1, 0) :].mean()[None]


def load(path: str) -> tuple[Any, Any]:
    """Load a model in float32 and its tokenizer from a folder or a GGUF file, without the network.

    Raises
    ------
    ValueError
        If there is no such folder or file, or transformers cannot load it, with its reason.
    """
    if not os.path.exists(path):
        raise ValueError(f"{printable(path)} does not exist; expected a folder with a model, or a GGUF file")
    folder, options = path, {"local_files_only": True}
    if os.path.isfile(path):
        if not path.lower().endswith(".gguf"):
            raise ValueError(f"{printable(path)} is a file; expected a folder with a model, or a GGUF file")
        folder, name = os.path.split(os.path.abspath(path))
        options["gguf_file"] = name  # type: ignore[assignment]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of other projects, while files are read
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    except Exception as error:  # whatever libraries raise for files that are not what they say
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{printable(path)} does not load: {reason}") from None
    return model.eval(), tokenizer


def cut_documents(tokenizer: Any, texts: Sequence[str], count: int, tokens: int) -> list[list[int]]:
    """Return documents of `tokens` tokens: the beginning of each text, or `count` separate stretches of a single text.

    Raises
    ------
    ValueError
        If the texts are too short.
    """
    ids = [tokenizer(text, verbose=False)["input_ids"] for text in texts]
    if len(ids) == 1:
        (whole,) = ids
        if len(whole) < count * tokens:
            raise ValueError(
                f"the text has {len(whole)} tokens; expected {count * tokens} for {count} documents of {tokens}: give "
                "a longer text, several texts, or fewer tokens"
            )
        return [whole[i * len(whole) // count :][:tokens] for i in range(count)]
    shortest = min(range(len(ids)), key=lambda i: len(ids[i]))
    if len(ids[shortest]) < tokens:
        raise ValueError(f"text {shortest + 1} has {len(ids[shortest])} tokens; expected {tokens}, or fewer asked for")
    return [one[:tokens] for one in ids]


class Windows(NamedTuple):
    """Windows of cached texts, one per row."""

    texts: np.ndarray  # (windows,), int64: the number of the text
    firsts: np.ndarray  # the same: the position of the first token
    length: int  # tokens, and as many that are predicted, from the second on


def draw_window(step: int, texts: int, context: int, length: int, seed: int) -> Windows:
    """Return the window of a step, anywhere in the first `texts` of all; determined by seed and step alone."""
    rng = np.random.default_rng([seed, step])
    return Windows(rng.integers(0, texts, 1), rng.integers(0, context - length, 1), length)


def spread_windows(
    texts: Sequence[int], trained: int, context: int, longest: int, seed: int
) -> dict[str, tuple[Windows, ...]]:
    """Return one batch per text for tokens within the trained positions and one beyond, spread evenly over them."""
    rng, found, count = np.random.default_rng(seed), dict[str, tuple[Windows, ...]](), _EVALUATED
    for part, (low, high) in {"within": (1, trained), "beyond": (trained, context)}.items():
        length, rows = min(longest, high - low), []
        for number in texts:
            places = (np.arange(count) + rng.random(count)) / count
            firsts = low - 1 + (places * (high - low - length + 1)).astype(np.int64)
            rows.append(Windows(np.full(count, number), firsts, length))
        found[part] = tuple(rows)
    return found


class TextCaches:
    """Caches of texts that a model has read, and losses of their windows."""

    def __init__(self, model: Module) -> None:
        self._model, self._cache, self._texts = model, name_cache(model), list[RecordingCache]()
        self._attention = [one for one in model.modules() if any(rotations.rotating_methods(one))]

    @torch.no_grad()
    def read(self, ids: np.ndarray) -> None:
        """Read a text by the rotation that is in the model, a chunk at a time, and cache it."""
        name = type(self._model).__name__
        tokens = torch.from_numpy(ids)[None].to(next(self._model.parameters()).device)
        end = len(ids)
        try:
            positions = _positions(self._model)
            text = RecordingCache(positions, tokens)
            with ExitStack() as undo:
                rotations.swap(positions.__dict__, "rotated", None, undo)
                for text.first in range(0, end, CHUNK):
                    wanted = self._probabilities(tokens, text.first, min(text.first + CHUNK, end), text)
            text.finish()
            found = self._probabilities(tokens, end - 2, end, PrefixCache(text, end - 2, positions))
        except FloatingPointError as error:
            raise ValueError(f"{name} cannot read a text: {error}") from error
        except (AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
            raise ValueError(f"{name} cannot be tuned: {error}; {_OTHERWISE}") from error
        near = _NEAR if next(self._model.parameters()).dtype.itemsize > 2 else _NEAR_IN_HALF
        if not float((found - wanted).abs().sum()) <= near:
            raise ValueError(f"{name} cannot be tuned: its results change with cached keys; {_OTHERWISE}")
        self._texts.append(text)

    def _probabilities(self, tokens: Tensor, first: int, end: int, cache: Any) -> Tensor:
        """Return the probabilities of the tokens after some tokens of a text; earlier ones are cached."""
        places = torch.arange(first, end, device=tokens.device)[None]
        few = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(self._model.forward).parameters else {}
        some = {"position_ids": places, self._cache: cache, "use_cache": True}
        probabilities = self._model(tokens[:, first:end], **some, **few).logits[0, -1].float().softmax(-1)
        if not bool(torch.isfinite(probabilities).all()):
            raise FloatingPointError("its logits are NaN or infinite")
        return probabilities

    def losses(self, batch: Windows) -> Tensor:
        """Return the mean loss of each window of a batch: next tokens, in nats."""
        found, positions = [], _positions(self._model)
        with recompute_attention(self._attention):
            for number, first in zip(batch.texts.tolist(), batch.firsts.tolist(), strict=True):
                text = self._texts[number]
                ids = text.ids[:, first : first + batch.length + 1]
                places = torch.arange(first, first + ids.shape[1] - 1, device=ids.device)[None]
                some = {"position_ids": places, self._cache: PrefixCache(text, first, positions), "use_cache": True}
                logits = self._model(ids[:, :-1], **some).logits
                found.append(torch.nn.functional.cross_entropy(logits[0].float(), ids[0, 1:]))
        return torch.stack(found)

    def forget(self) -> None:
        """Remove all texts."""
        self._texts.clear()


class _TextCache(DynamicCache):
    """A cache of the tokens before one."""

    def __init__(self, positions: Module, first: int) -> None:
        super().__init__()
        self.positions, self.first = positions, first

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return the number of tokens before."""
        return self.first

    def get_mask_sizes(self, tokens: Any, *_: Any, **__: Any) -> tuple[int, int]:
        """Return the number of keys and their offset; releases give new tokens by number or by place."""
        return self.first + (len(tokens) if isinstance(tokens, torch.Tensor) else int(tokens)), 0


class RecordingCache(_TextCache):
    """A cache of a whole text, with room for all of it, that also has keys before their rotation.

    A cache that grows by joining leaves as much memory unused between its parts as it holds.
    """

    def __init__(self, positions: Module, ids: Tensor) -> None:
        super().__init__(positions, 0)
        self.ids = ids  # (1, tokens)
        # by layer, (1, heads, tokens, d): keys before their rotation, values, and rotated keys
        self.keys, self.values, self._turned = dict[int, Tensor](), dict[int, Tensor](), dict[int, Tensor]()
        self.rotated = dict[int, int]()  # number of the rotary module, by layer that rotates

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Note the keys of a layer, rotated just now or, in a layer without RoPE, not at all; return all so far."""
        noted, self.positions.__dict__["rotated"] = self.positions.__dict__["rotated"], None
        plain = key
        if not bool(torch.isfinite(key).all()):
            raise FloatingPointError(f"keys of layer {layer_idx} are NaN or infinite")
        if noted is not None:
            plain, turned, is_back, number = noted
            self.rotated[layer_idx] = number
            if is_back or turned.shape != key.shape or not torch.equal(turned, key):
                raise ValueError(f"layer {layer_idx} changes keys after their rotation")
        end = self.first + key.shape[2]
        for wholes, part in ((self._turned, key), (self.values, value), (self.keys, plain)):
            if layer_idx not in wholes:
                wholes[layer_idx] = part.new_empty((*part.shape[:2], self.ids.shape[1], part.shape[3]))
            wholes[layer_idx][:, :, self.first : end] = part
        return self._turned[layer_idx][:, :, :end], self.values[layer_idx][:, :, :end]

    def finish(self) -> None:
        """Hold rotated keys no longer, and the others and values in half precision."""
        for layer in [*self._turned]:
            del self._turned[layer]
            self.keys[layer], self.values[layer] = _small(self.keys[layer]), _small(self.values[layer])


class PrefixCache(_TextCache):
    """A cache of the tokens of a text before one, whose keys are rotated on demand."""

    def __init__(self, text: RecordingCache, first: int, positions: Module) -> None:
        super().__init__(positions, first)
        self._text = text

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all tokens up to the last."""
        text, positions = self._text, self.positions
        keys, values = (one[layer_idx][:, :, : self.first].to(key.dtype) for one in (text.keys, text.values))
        if layer_idx in text.rotated:
            rotary = positions.turning_module(text.rotated[layer_idx])
            places = torch.arange(self.first, device=key.device)
            (keys,) = rotations.rotate_features(rotary, positions.turns_last, (keys,), places, False)
        return torch.cat([keys, key], -2), torch.cat([values, value], -2)


def _positions(model: Module) -> Module:
    """Return what was put in the place of the model's rotary module."""
    found = [one for one in model.modules() if isinstance(one, rotations.Positions)]
    if len(found) != 1:
        raise ValueError(f"{type(model).__name__} has {len(found)} replaced rotations; expected one, by replace_rotary")
    return found[0]


def _small(x: Tensor) -> Tensor:
    """Return a tensor in half precision, unless that cannot hold it."""
    half = x.half() if x.dtype == torch.float32 else x
    return half if bool(torch.isfinite(half).all()) else x


@contextmanager
def recompute_attention(attention: Sequence[Module]) -> Iterator[None]:
    """Let attention recompute its activations for gradients: of long keys they take the most memory."""
    with ExitStack() as undo:
        for one in attention if torch.is_grad_enabled() else ():
            rotations.swap(one.__dict__, "forward", partial(checkpoint, one.forward, use_reentrant=False), undo)
        yield
