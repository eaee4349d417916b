"""Queries and keys of a transformers model, before their rotation, and checks that an atlas can describe them."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy import special

from rfrope._core.arguments import show
from rfrope.heads import Atlas, AtlasBuilder
from rfrope.integrations import rotations
from rfrope.models import LayerKind, from_config, list_layers
from rfrope.models.layering import show_layers
from rfrope.rotation.rope import Rope

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

_INSTEAD = "read_heads and rfrope.heads.atlas read its queries and keys without this check"
_SEEN = 1e-6  # attention on a key above rounding
_LIKE = 0.01  # of the spread of a row's logits: what float32 leaves, tables of float32 included
_LIKE_16 = 0.05
_ROUNDED, _ROUNDED_16 = 1e-5, 0.02  # relative error of a weight by the dtype of the model


def _check_windows(kinds: list[LayerKind], tokens: int) -> None:
    """Refuse documents in which some layers do not see all earlier tokens."""
    for kind in kinds:
        if kind.window is not None and kind.window < tokens:
            where = "its layers" if kind.layers is None else show_layers(kind.layers)
            raise ValueError(
                f"documents have {tokens} tokens, more than the window of {kind.window} of {where}, but an atlas is "
                f"over all pairs; expected at most {kind.window} tokens each, or `part` with a kind that attends to all"
            )


def _check_module(path: str, attention: Module, rope: Rope) -> None:
    """Refuse attention that an atlas cannot describe, by its module and the table of model types.

    Raises
    ------
    ValueError
        If attention is bidirectional, has learned sinks or capped logits, or changes features after their rotation.
    """
    other = ""
    if rope.source.model.unmovable:
        other = rope.source.model.unmovable.partition(":")[0]
    elif getattr(attention, "is_causal", True) is False:
        other = "it is bidirectional"
    elif isinstance(getattr(attention, "sinks", None), torch.Tensor):
        other = "its softmax has a learned sink beside the keys"
    else:
        for holder in (attention, getattr(attention, "config", None)):
            if cap := getattr(holder, "attn_logit_softcapping", None):
                other = f"its logits are capped at {cap:g}"
    if other:
        raise ValueError(f"{path} has attention that an atlas cannot describe: {other}; {_INSTEAD}")


def _compute_weights(model: Module, undo: ExitStack) -> None:
    """Make attention return its weights, until undone."""
    for config in {id(one.config): one.config for one in model.modules() if hasattr(one, "config")}.values():
        if hasattr(config, "_attn_implementation"):
            undo.callback(setattr, config, "_attn_implementation", config._attn_implementation)
            config._attn_implementation = "eager"


def _compare(path: str, kept: dict[str, tuple[Any, Any]], rope: Rope, attention: Module, _: Any, given: Any) -> None:
    """Refuse weights that are not the softmax of the logits of each query and the keys up to it."""
    if path not in kept:
        return
    q, k = kept[path]
    shape = (1, len(q), q.shape[1], q.shape[1])
    found = [one for one in given if getattr(one, "shape", None) == shape] if isinstance(given, tuple) else []
    if not found:
        raise ValueError(
            f"{path} gives no attention of shape {shape} with attn_implementation='eager', by which an atlas is "
            f"checked; {_INSTEAD}"
        )
    weights, is_seen = found[0][0].double().cpu().numpy(), np.tri(shape[-1], dtype=bool)
    x, y = (rope.rotate(one.astype(np.float64), np.arange(shape[-1])) for one in (q, k))
    scores = _scale_of(path, attention, q) * np.matmul(x, np.repeat(y, len(q) // len(k), axis=0).swapaxes(-1, -2))
    logits = special.log_softmax(np.where(is_seen, scores, -np.inf), axis=-1)
    counts = is_seen & (logits > np.log(_SEEN))
    with np.errstate(divide="ignore"):  # hidden keys
        apart = np.log(weights, where=counts, out=np.zeros_like(weights)) - np.where(counts, logits, 0.0)
    mean = np.mean(logits, axis=-1, where=counts, keepdims=True)
    spread = np.sqrt(np.mean((logits - mean) ** 2, axis=(1, 2), where=counts))
    error = np.sqrt(np.mean(apart**2, axis=(1, 2), where=counts))
    like, rounded = (_LIKE_16, _ROUNDED_16) if found[0].element_size() < 4 else (_LIKE, _ROUNDED)
    worst = int(np.argmax(error - like * spread))
    if np.max(np.where(is_seen, 0.0, weights), initial=0.0) > _SEEN:
        what = "it is bidirectional"
    elif not error[worst] > like * spread[worst] + rounded:
        return
    elif np.any((weights == 0.0) & counts):
        what = "some keys before a query are masked"
    elif np.min(np.sum(weights, axis=-1)) < 0.99:
        what = "attention on all keys is less than 1, as with a learned sink"
    else:
        what = (
            f"logits of head {worst} are {error[worst]:.2g} away from those of the config's RoPE (root mean square; "
            f"they vary by {spread[worst]:.2g}), perhaps because the config was changed or a step follows the rotation"
        )
    raise ValueError(f"{path} has attention that an atlas cannot describe: {what}; {_INSTEAD}")


@dataclass(frozen=True, eq=False)
class HeadFeatures:
    """Queries and keys of all rotary heads of a model on one text, before rotation.

    Attributes
    ----------
    q, k : ndarray, (H, tokens, d) and (G, tokens, d), float32
        Each key head is shared by H / G consecutive query heads.
    heads : list of (int, int)
        Layer and number of each of the H heads.
    scale : ndarray, (H,)
        Factor of q . k before the softmax, beside the attention factor.

    See Also
    --------
    integrations.transformers.read_heads

    Examples
    --------
    >>> import transformers
    >>> from rfrope.integrations.transformers import read_heads
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=8, hidden_size=32, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    ... )
    >>> (found,) = read_heads(transformers.LlamaForCausalLM(config), [[1, 2, 3]])
    >>> found.heads
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """

    q: np.ndarray
    k: np.ndarray
    heads: list[tuple[int, int]]
    scale: np.ndarray


def read_heads(
    model: Module, documents: Iterable[Sequence[int]], *, layers: Iterable[int] | None = None
) -> Iterator[HeadFeatures]:
    """Yield queries and keys of a loaded model, before rotation, one document at a time.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model whose attention rotates all features of queries and keys in one function.
    documents : iterable of sequences of int
        Token ids, ``(tokens,)``. Positions are 0, 1, ...
    layers : iterable of int, optional
        Layers to read. Default: all that rotate.

    Yields
    ------
    HeadFeatures

    Raises
    ------
    ValueError
        If no attention rotates q and k in one function, if features are split off before it, as in MLA, or if a token
        id is beyond the vocabulary.
    TypeError
        If `model` is not a model, or a token id is not a whole number.

    See Also
    --------
    integrations.transformers.atlas, heads.AtlasBuilder

    Notes
    -----
    The model runs in evaluation mode, without dropout, and its mode is restored. While it runs, the function of q, k,
    cos and sin in its attention is watched, in this model alone: it sees queries and keys after the model's own norms,
    in any layout, which is converted to that of the result.

    Examples
    --------
    >>> import torch, transformers
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=8, hidden_size=32, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    ... )
    >>> model = transformers.LlamaForCausalLM(config)
    >>> [tuple(one.q.shape) for one in read_heads(model, [[1, 2, 3]])]
    [(4, 3, 16)]
    """
    rotations.check_model(model)
    wanted = None if layers is None else set(layers)
    for number, ids in enumerate(documents):
        kept: dict[str, tuple[Any, Any]] = {}
        read = read_ids(f"documents[{number}]", ids, model)
        with ExitStack() as undo:
            attentions = _watch(model, kept, undo)
            _run(model, read, undo)
        yield _join(attentions, kept, wanted)


def read_ids(name: str, ids: Any, model: Module) -> Any:
    """Return the token ids of a document, ``(1, tokens)``, beside the model."""
    try:
        found = np.asarray(ids.detach().cpu() if isinstance(ids, torch.Tensor) else ids)
    except (TypeError, ValueError):
        found = np.asarray(None)
    if found.dtype.kind not in "iufcb":
        raise TypeError(f"{name} is {show(ids)}; expected token ids, whole numbers (tokens,)")
    if found.dtype.kind not in "iu" and found.size:
        raise TypeError(f"{name} has dtype {found.dtype}; expected token ids, whole numbers")
    if found.ndim != 1 or not len(found):
        raise ValueError(f"{name} has shape {found.shape}; expected the ids of its tokens, (tokens,)")
    embeddings = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    size = getattr(embeddings, "num_embeddings", None)
    for one in (int(found.min()), int(found.max())):
        if one < 0 or (size is not None and one >= size):
            most = "at least 0" if size is None else f"0 to {size - 1}, the vocabulary of the model"
            raise ValueError(f"{name} has the token {one}; expected {most}")
    return torch.from_numpy(found.astype(np.int64)).to(next(model.parameters()).device)[None]


def _run(model: Module, ids: Any, undo: ExitStack) -> None:
    """Run a model as in evaluation, and put each part back into its mode."""
    for module in model.modules():
        undo.callback(setattr, module, "training", module.training)
    model.eval()
    with torch.no_grad():
        model(ids, use_cache=False)


def _watch(model: Module, kept: dict[str, tuple[Any, Any]], undo: ExitStack) -> dict[str, Module]:
    """Let attention modules keep what they turn; return them by their paths."""
    found = {}
    for path, attention in model.named_modules():
        if rotations.PERCEPTION.search(path):
            continue
        for name, function, called in rotations.rotating_methods(attention):
            if name in vars(attention):
                raise ValueError(f"{type(attention).__name__} was already modified; expected a freshly loaded model")
            keeping = {one: _keeping(turn, kept, path) for one, turn in called.items()}
            method = types.MethodType(rotations.calling(function, keeping), attention)
            rotations.swap(attention.__dict__, name, method, undo)
            found[path] = attention
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention that turns q and k by a table of cos and sin")
    return found


def _keeping(turn: Callable[..., Any], kept: dict[str, tuple[Any, Any]], path: str) -> Callable[..., Any]:
    """Return a function as one that turns q and k, which keeps them."""

    def keep(named: dict[str, Any], features: list[str], heads_last: bool) -> Any:
        if path in kept or len(features) < 2:
            raise ValueError(f"{path} rotates queries and keys in separate calls; expected one call for both")
        both = (named[name].detach().float()[0].cpu() for name in features)
        q, k = ((x.transpose(0, 1) if heads_last else x).numpy() for x in both)
        kept[path] = q, k
        return turn(**named)

    return rotations.wrap(turn, keep)


def _join(attentions: dict[str, Module], kept: dict[str, tuple[Any, Any]], wanted: set[int] | None) -> HeadFeatures:
    """Put the heads of all layers together."""
    found: list[tuple[int, float, np.ndarray, np.ndarray]] = []
    for number, (path, attention) in enumerate(attentions.items()):
        layer = getattr(attention, "layer_idx", None)
        layer = number if layer is None else int(layer)
        if path not in kept or (wanted is not None and layer not in wanted):
            continue  # layers without rotation
        q, k = kept[path]
        if found and (len(q), len(k)) != (len(found[0][2]), len(found[0][3])):
            raise ValueError(f"{path} has {len(q)} heads of {len(k)} keys, unlike others; expected `layers` alike")
        found.append((layer, _scale_of(path, attention, q), q, k))
    if not found:
        raise ValueError(f"no layer of {sorted(wanted or ())} turns; expected layers that do")
    layers, scales, queries, keys = zip(*found, strict=True)
    heads = [(layer, head) for layer in layers for head in range(len(queries[0]))]
    return HeadFeatures(np.concatenate(queries), np.concatenate(keys), heads, np.repeat(scales, len(queries[0])))


def _scale_of(path: str, attention: Module, q: np.ndarray) -> float:
    """Return the factor of q . k in an attention module, if q and k are whole."""
    width = max(int(getattr(attention, name, None) or 0) for name in ("head_dim", "qk_head_dim"))
    if width > q.shape[-1]:
        raise ValueError(
            f"{path} turns {q.shape[-1]} features of {width} and keeps the others apart; expected attention that gives "
            "whole queries and keys to its rotation"
        )
    scaling = getattr(attention, "scaling", None)
    return float(q.shape[-1] ** -0.5 if scaling is None else scaling)


def atlas(
    model: Module,
    documents: Iterable[Sequence[int]],
    *,
    part: str | None = None,
    skip: int = 1,
    context: int | None = None,
) -> Atlas:
    """Return `rfrope.heads.atlas` of a loaded model: readings of every rotary head, with errors over documents.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        See `read_heads`. Its config determines the Rope.
    documents : iterable of sequences of int
        Token ids of at least 3 documents of equal length.
    part : str, optional
        Kind of layer as in ``config.layer_types``; required if kinds have their own Ropes. Default: all that rotate.
    skip, context : int
        See `rfrope.heads.atlas`.

    Returns
    -------
    Atlas

    Raises
    ------
    ValueError
        See `read_heads` and `rfrope.heads.atlas`. Also for a model of several Ropes without `part`, and for attention
        that an atlas cannot describe: documents longer than a window, learned sinks, capped logits, both directions,
        norms after the rotation, another rotation than the config's.
    TypeError
        See `read_heads`.

    See Also
    --------
    heads.Atlas, integrations.transformers.read_heads

    Notes
    -----
    One document is held at a time, and about ``2 D^2`` numbers per head of each. The model's own attention on the first
    document is compared, head by head, with the softmax of the logits read: these may differ by 1 % of their spread in
    float32, by 5 % in 16 bits.

    Examples
    --------
    >>> import torch, transformers
    >>> sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 2}
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    >>> found = atlas(model, torch.arange(48).reshape(3, 16))
    >>> found.layer.tolist(), found.head.tolist()
    ([0, 0, 1, 1], [0, 1, 0, 1])
    """
    rotations.check_model(model)
    read = iter(documents)
    first = next(read, None)
    ids = None if first is None else read_ids("documents[0]", first, model)
    rope, layers, kinds = _rope_of(model, part, 1 if ids is None else ids.shape[-1])
    if ids is not None:
        _check_windows(kinds, ids.shape[-1])
        _check_attention(model, ids, rope, layers)
    builder, heads = AtlasBuilder(rope, scale=1.0, skip=skip, context=context), None
    for one in read_heads(model, [] if first is None else itertools.chain([first], read), layers=layers):
        builder.add(one.q * one.scale[:, None, None], one.k)
        heads = one.heads
    return builder.finish(heads)


def _rope_of(model: Module, part: str | None, tokens: int) -> tuple[Rope, list[int] | None, list[LayerKind]]:
    """Return the Rope of a model or of one kind of its layers, these layers, and their kinds."""
    ropes = {rope.source.model.name: rope for rope in from_config(model.config, seq_len=tokens)}
    kinds = [one for one in list_layers(model.config).kinds if one.rope is not None and one.layers != ()]
    names = {one: one.rope.source.model.name for one in kinds if one.rope is not None}
    if len(ropes) == 1 and part in (None, *ropes):
        return next(iter(ropes.values())), None, kinds
    chosen = [one for one in kinds if part in (one.kind, names[one])]
    found = {names[one] for one in chosen}
    if len(found) != 1:
        listed = ", ".join(repr(name) for name in (ropes if len(ropes) > 1 else {one.kind: 0 for one in kinds}))
        raise ValueError(f"part is {show(part)}, but {type(model).__name__} has Ropes for {listed}; expected one")
    return ropes[found.pop()], [i for one in chosen for i in one.layers or ()], chosen


def _check_attention(model: Module, ids: Any, rope: Rope, layers: list[int] | None) -> None:
    """Refuse a model whose attention on a document is not that of its queries and keys, turned by the Rope."""
    kept: dict[str, tuple[Any, Any]] = {}
    with ExitStack() as undo:
        for path, attention in _watch(model, kept, undo).items():
            if layers is None or getattr(attention, "layer_idx", None) in (None, *layers):
                _check_module(path, attention, rope)
                undo.callback(attention.register_forward_hook(partial(_compare, path, kept, rope)).remove)
        _compute_weights(model, undo)
        _run(model, ids, undo)
