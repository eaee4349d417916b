"""Queries and keys of a model of transformers, as they go into its rotation."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core.arguments import show
from rfrope.heads import Atlas, AtlasBuilder
from rfrope.integrations import rotations
from rfrope.models import from_config, list_layers
from rfrope.rotation.rope import Rope

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see


@dataclass(frozen=True, eq=False)
class HeadFeatures:
    """Queries and keys of all heads of a model that turn, on one text, before rotation.

    Attributes
    ----------
    q, k : ndarray, (H, tokens, d) and (G, tokens, d), float32
        H / G heads in a row share keys.
    heads : list of (int, int)
        Layer and number of each of the H heads.
    scale : ndarray, (H,)
        What q . k is multiplied by before the softmax, beside the attention factor.
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
        With attention that turns all features of queries and keys by a function of both.
    documents : iterable of sequences of int
        Token ids. Positions are 0, 1, ...
    layers : iterable of int, optional
        Only these; all that turn unless given.

    Yields
    ------
    HeadFeatures

    Raises
    ------
    ValueError
        If no attention turns q and k by one function, or if features are split off before it, as in MLA.
    TypeError
        For what is no model.

    Notes
    -----
    The function of q, k, cos and sin that attention calls is watched while the model runs, in this model alone. What it
    is given is what a model's norms of queries and keys have made, and in any layout is put into that of the result.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {show(model)}; expected a model of transformers")
    wanted = None if layers is None else set(layers)
    device = next(model.parameters()).device
    for ids in documents:
        kept: dict[str, tuple[Any, Any]] = {}
        with ExitStack() as undo, torch.no_grad():
            attentions = _watch(model, kept, undo)
            model(torch.as_tensor(np.asarray(ids), device=device)[None], use_cache=False)
        yield _join(attentions, kept, wanted)


def _watch(model: Module, kept: dict[str, tuple[Any, Any]], undo: ExitStack) -> dict[str, Module]:
    """Let attention modules keep what they turn; return them by their paths."""
    found = {}
    for path, attention in model.named_modules():
        if rotations.PERCEPTION.search(path):
            continue
        for name, function, called in rotations.rotating_methods(attention):
            if name in vars(attention):
                raise ValueError(f"{type(attention).__name__} was changed already; expected a model as it was loaded")
            keeping = {one: _keeping(turn, kept, path) for one, turn in called.items()}
            method = types.MethodType(rotations.calling(function, keeping), attention)
            rotations.swap(attention.__dict__, name, method, undo)
            found[path] = attention
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention that turns q and k by a table of cos and sin")
    return found


def _keeping(turn: Callable[..., Any], kept: dict[str, tuple[Any, Any]], path: str) -> Callable[..., Any]:
    """Return a function as one that turns q and k, which keeps them."""
    parameters = inspect.signature(turn).parameters
    usual = parameters.get("unsqueeze_dim")
    names = [*parameters][:2]
    heads_last = usual is None and rotations.has_heads_last(turn, 4)

    def keep(*arguments: Any, **options: Any) -> Any:
        named = dict(zip(parameters, arguments, strict=False)) | options
        last = heads_last if usual is None else named.get("unsqueeze_dim", usual.default) in (2, -2)
        if path in kept or names[1] in ("cos", "sin", "freqs_cis"):
            raise ValueError(f"{path} turns queries and keys apart; expected attention that turns both by one call")
        both = (named[name].detach().float()[0].cpu() for name in names)
        q, k = ((x.transpose(0, 1) if last else x).numpy() for x in both)
        kept[path] = q, k
        return turn(*arguments, **options)

    return keep


def _join(attentions: dict[str, Module], kept: dict[str, tuple[Any, Any]], wanted: set[int] | None) -> HeadFeatures:
    """Put the heads of all layers together."""
    queries: list[np.ndarray] = []
    keys: list[np.ndarray] = []
    heads: list[tuple[int, int]] = []
    scales: list[float] = []
    for number, (path, attention) in enumerate(attentions.items()):
        layer = getattr(attention, "layer_idx", None)
        layer = number if layer is None else int(layer)
        if path not in kept or (wanted is not None and layer not in wanted):
            continue  # layers without rotation
        q, k = kept[path]
        width = max(int(getattr(attention, name, None) or 0) for name in ("head_dim", "qk_head_dim"))
        if width > q.shape[-1]:
            raise ValueError(
                f"{path} turns {q.shape[-1]} features of {width} and keeps the others apart; expected attention that "
                "gives whole queries and keys to its rotation"
            )
        if len({len(k), *map(len, keys)}) > 1 or len({len(q), *map(len, queries)}) > 1:
            raise ValueError(f"{path} has {len(q)} heads of {len(k)} keys, other layers have not; give `layers` alike")
        queries.append(q)
        keys.append(k)
        heads += [(layer, head) for head in range(len(q))]
        scaling = getattr(attention, "scaling", None)
        scales += [q.shape[-1] ** -0.5 if scaling is None else float(scaling)] * len(q)
    if not heads:
        raise ValueError(f"no layer of {sorted(wanted or ())} turns; expected layers that do")
    return HeadFeatures(np.concatenate(queries), np.concatenate(keys), heads, np.asarray(scales))


def atlas(
    model: Module,
    documents: Iterable[Sequence[int]],
    *,
    part: str | None = None,
    skip: int = 1,
    context: int | None = None,
) -> Atlas:
    """Return `rfrope.heads.atlas` of a loaded model: readings of every head that turns, with errors over documents.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        As of `read_heads`; its config says the Rope.
    documents : iterable of sequences of int
        Token ids of at least 3 documents, as many of each.
    part : str, optional
        Kind of layer, for a model whose kinds have Ropes of their own, as in ``config.layer_types``.
    skip, context : int
        As of `rfrope.heads.atlas`.

    Returns
    -------
    Atlas

    Raises
    ------
    ValueError
        As `read_heads` and `rfrope.heads.atlas`, and for a model of several Ropes without `part`.
    TypeError
        For what is no model.

    Notes
    -----
    One document is held at a time, and of each about ``2 D^2`` numbers a head.

    Examples
    --------
    >>> import torch, transformers
    >>> sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 2}
    >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    >>> found = atlas(model, torch.arange(48).reshape(3, 16))
    >>> found.layer.tolist(), found.head.tolist()
    ([0, 0, 1, 1], [0, 1, 0, 1])
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {show(model)}; expected a model of transformers")
    rope, layers = _rope_of(model, part)
    builder, heads = AtlasBuilder(rope, scale=1.0, skip=skip, context=context), None
    for one in read_heads(model, documents, layers=layers):
        builder.add(one.q * one.scale[:, None, None], one.k)
        heads = one.heads
    return builder.finish(heads)


def _rope_of(model: Module, part: str | None) -> tuple[Rope, list[int] | None]:
    """Return the Rope of a model or of one kind of its layers, and these layers."""
    ropes = {rope.source.model.name: rope for rope in from_config(model.config)}
    if len(ropes) == 1 and part in (None, *ropes):
        return next(iter(ropes.values())), None
    if part not in ropes:
        listed = ", ".join(repr(name) for name in ropes)
        raise ValueError(
            f"part is {show(part)}, but {type(model).__name__} has Ropes for {listed}; expected one of them"
        )
    kinds = [one for one in list_layers(model.config).kinds if one.rope and one.rope.source.model.name == part]
    return ropes[part], [i for one in kinds for i in one.layers or ()]
