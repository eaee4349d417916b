"""What a model's config may leave out, because the class that reads it in transformers has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any


@cache
def rope_defaults() -> Mapping[str, Mapping[str, Any]]:
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
    >>> dict(rope_defaults()["mixtral"]["rope_parameters"])
    {'rope_theta': 1000000.0, 'rope_type': 'default'}
    """
    with files(__package__).joinpath("rope_defaults.json").open(encoding="utf-8") as file:
        return _frozen(json.load(file))


def _frozen(told: Any) -> Any:
    """Views that cannot be written to, all the way down, for what every caller shares."""
    if isinstance(told, dict):
        return MappingProxyType({key: _frozen(value) for key, value in told.items()})
    return tuple(told) if isinstance(told, list) else told
