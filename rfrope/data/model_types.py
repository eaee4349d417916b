"""What a model's config may leave out, because the class that reads it in transformers has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any


@cache
def model_types() -> Mapping[str, Mapping[str, Any]]:
    """Defaults of transformers 5.23 by ``model_type``; tests hold them against the installed one.

    Returns
    -------
    mapping of str to mapping
        ``rope_parameters`` (flat, or one dict for each kind of layer), ``head_dim`` where it does not follow from the
        next two, ``hidden_size``, ``num_attention_heads``, ``max_position_embeddings``, ``global_head_dim``. ``needs``:
        keys without which a config of this type has no RoPE. ``partial``: true where the class reads a partial rotary
        factor under the scheme "default" too; "rotary_dim" if that name, too; others pass over it
        there. ``beside``: what a dict that the config gives
        lacks, where that is not what `rope_parameters` has. ``whole``: true where `rope_parameters` stands alone, and a
        ``rope_theta`` without a dict beside it is not read. ``axial``: how a vision model uses its ladder; "halves":
        one ladder for each of two axes, "alternating": one dealt out to both, "turns": as halves, in turns and not in
        radians, "unknown": another way.

    Examples
    --------
    >>> dict(model_types()["mixtral"]["rope_parameters"])
    {'rope_theta': 1000000.0, 'rope_type': 'default'}
    """
    return MappingProxyType({name: held for name, held in _table().items() if held.keys() != {"remarks"}})


def remarks(model_type: Any) -> Mapping[str, Any]:
    """What is peculiar to the configs of a model type, of those that transformers does not have too.

    Parameters
    ----------
    model_type : str

    Returns
    -------
    mapping
        ``rope``: false where its code has no RoPE, whatever its configs carry. ``null_base``: true where a base of null
        says so. ``sections``: "own" where they are not dealt out in the order of `rfrope.mrope`. ``scaled``:
        "everywhere" where a ``rope_scaling`` is for every kind of layer. ``ntk``: "own" where that scheme is not the
        usual one. ``inner_base``: true where the base is in a dict of the attention. ``pairing``: as in `model_types`.

    Examples
    --------
    >>> dict(remarks("nemotron_h"))
    {'rope': False}
    """
    held = _table().get(model_type) if isinstance(model_type, str) else None
    found: Mapping[str, Any] = (held or {}).get("remarks", {})
    return found


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    with files(__package__).joinpath("model_types.json").open(encoding="utf-8") as file:
        return _frozen(json.load(file))


def _frozen(told: Any) -> Any:
    """Views that cannot be written to, all the way down, for what every caller shares."""
    if isinstance(told, dict):
        return MappingProxyType({key: _frozen(value) for key, value in told.items()})
    return tuple(told) if isinstance(told, list) else told
