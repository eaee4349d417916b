"""What a model's config leaves to the class that reads it: defaults, and which two features make a pair."""

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

        ``pairing``: which features of a query and a key, in the order of the weights of their linear layer, make a
        pair: "half", "interleaved", or "neither", which no pairing of rfrope explains; then ``pairing_note`` says why.
        It is missing where no class was there to be run. ``pairing_by``: a key of the config by which the class
        chooses, under ``key``, and the pairing ``if_true`` and ``if_false``; ``pairing`` is that of its default.
        ``out_pairing``: how the class leaves the features after the rotation, where that is not `pairing`; scores do
        not depend on it, cached keys do. ``rotated``: "last" where the features that turn are the last ones of a query
        and a key, and not the first. ``pairing_note``: what else a user must know, in words.

    Notes
    -----
    ``make_pairings.py`` beside the table makes the keys on pairing by running the classes.

    Examples
    --------
    >>> dict(rope_defaults()["mixtral"]["rope_parameters"])
    {'rope_theta': 1000000.0, 'rope_type': 'default'}
    >>> rope_defaults()["cohere"]["pairing"]
    'interleaved'
    """
    return _read("rope_defaults.json")


@cache
def remote_pairings() -> Mapping[str, Mapping[str, str]]:
    """The pairing of model types whose code came with their weights, and which transformers 5.23 does not have.

    Returns
    -------
    mapping of str to mapping
        ``pairing``, ``rotated`` and ``pairing_note`` as in `rope_defaults`; ``source``: the code that was read for it.

    Examples
    --------
    >>> remote_pairings()["internlm2"]["pairing"]
    'half'
    """
    return _read("remote_pairings.json")


def _read(name: str) -> Any:
    with files(__package__).joinpath(name).open(encoding="utf-8") as file:
        return _frozen(json.load(file))


def _frozen(told: Any) -> Any:
    """Views that cannot be written to, all the way down, for what every caller shares."""
    if isinstance(told, dict):
        return MappingProxyType({key: _frozen(value) for key, value in told.items()})
    return tuple(told) if isinstance(told, list) else told
