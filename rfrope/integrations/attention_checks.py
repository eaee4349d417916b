"""Attention that an atlas can describe: causal, over all tokens, of rotated queries and keys alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope.models import LayerKind
from rfrope.models.layering import show_layers
from rfrope.rotation.rope import Rope

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

_INSTEAD = "read_heads and rfrope.heads.atlas read its queries and keys as if that were not so"
_SEEN = 1e-6  # attention on a key above rounding
_LIKE = 0.01  # of the spread of a row's logits: what float32 leaves, tables of float32 included
_LIKE_16 = 0.05
_ROUNDED, _ROUNDED_16 = 1e-5, 0.02  # relative error of a weight by the dtype of the model


def check_windows(kinds: list[LayerKind], tokens: int) -> None:
    """Refuse documents in which some layers do not see all earlier tokens."""
    for kind in kinds:
        if kind.window is not None and kind.window < tokens:
            where = "its layers" if kind.layers is None else show_layers(kind.layers)
            raise ValueError(
                f"documents have {tokens} tokens, more than the window of {kind.window} of {where}, but an atlas is "
                f"over all pairs; expected at most {kind.window} tokens each, or `part` with a kind that sees all"
            )


def check_module(path: str, attention: Module, rope: Rope) -> None:
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
            cap = getattr(holder, "attn_logit_softcapping", None)
            if cap:
                other = f"its logits are capped at {cap:g}"
    if other:
        raise ValueError(f"{path} has attention that an atlas cannot describe: {other}; {_INSTEAD}")


def compute_weights(model: Module, undo: ExitStack) -> None:
    """Make attention return its weights, until undone."""
    configs = {id(one.config): one.config for one in model.modules() if hasattr(one, "config")}
    for config in configs.values():
        if hasattr(config, "_attn_implementation"):
            undo.callback(setattr, config, "_attn_implementation", config._attn_implementation)
    for config in configs.values():
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = "eager"


def comparing(
    path: str,
    attention: Module,
    kept: dict[str, tuple[Any, Any]],
    scale: Callable[[str, Module, np.ndarray], float],
    rope: Rope,
) -> Callable[..., None]:
    """Return a hook that compares an attention module's weights with those of its rotated queries and keys."""

    def compare(_: Module, __: Any, given: Any) -> None:
        if path not in kept:
            return
        q, k = kept[path]
        expected = _score(q, k, scale(path, attention, q), rope)
        shape = (1, len(q), q.shape[1], q.shape[1])
        found = [one for one in given if getattr(one, "shape", None) == shape] if isinstance(given, tuple) else []
        if not found:
            raise ValueError(
                f"{path} gives no attention of shape {shape} with attn_implementation='eager', by which an atlas is "
                f"checked; {_INSTEAD}"
            )
        is_narrow = found[0].element_size() < 4
        _compare(path, found[0][0].double().cpu().numpy(), expected, is_narrow)

    return compare


def _score(q: np.ndarray, k: np.ndarray, scale: float, rope: Rope) -> np.ndarray:
    """Return scores ``(H, tokens, tokens)`` of queries and keys before rotation."""
    at = np.arange(q.shape[1])
    x, y = (rope.rotate(one.astype(np.float64), at) for one in (q, k))
    return scale * np.matmul(x, np.repeat(y, len(q) // len(k), axis=0).swapaxes(-1, -2))


def _compare(path: str, weights: np.ndarray, logits: np.ndarray, is_narrow: bool) -> None:
    """Refuse weights that are not the softmax of the logits of each query and the keys up to it."""
    is_seen = np.tri(logits.shape[-1], dtype=bool)
    logits = np.where(is_seen, logits, -np.inf)
    logits = logits - np.max(logits, axis=-1, keepdims=True)
    logits = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    counts = is_seen & (logits > np.log(_SEEN))
    with np.errstate(divide="ignore"):  # hidden keys
        apart = np.log(weights, where=counts, out=np.zeros_like(weights)) - np.where(counts, logits, 0.0)
    number = np.sum(counts, axis=-1)
    mean = np.sum(logits, axis=-1, where=counts) / number
    spread = np.sqrt(np.mean((logits - mean[..., None]) ** 2, axis=(1, 2), where=counts))
    error = np.sqrt(np.mean(apart**2, axis=(1, 2), where=counts))
    like, rounded = (_LIKE_16, _ROUNDED_16) if is_narrow else (_LIKE, _ROUNDED)
    worst = int(np.argmax(error - like * spread))
    hidden = np.max(np.where(is_seen, 0.0, weights), initial=0.0)
    if hidden > _SEEN:
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
            f"they vary by {spread[worst]:.2g}), as where the config was changed, or something follows the rotation"
        )
    raise ValueError(f"{path} has attention that an atlas cannot describe: {what}; {_INSTEAD}")
