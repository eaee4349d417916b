"""Defaults and pairings of model types, which a config leaves to the class that reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any


@cache
def model_types() -> Mapping[str, Mapping[str, Any]]:
    """Return the table of model types, which tests hold against transformers.

    Returns
    -------
    mapping of str to mapping
        By ``model_type``. Defaults of transformers 5.23, of the types that it has: ``rope_parameters`` (flat, or one
        dict for each kind of layer), ``head_dim`` where it does not follow from the next two, ``hidden_size``,
        ``num_attention_heads``, ``max_position_embeddings``, ``global_head_dim``; with latent attention
        ``qk_rope_head_dim``, the width that turns, and ``qk_nope_head_dim``, for sliding layers those of ``swa``.

        How its class reads them. ``names``: the names that it reads, its own first, where these are not the usual one
        alone; what other models call otherwise it passes over. ``head_dim`` is "quotient" where it sets that itself,
        whatever a config says. ``quotient``: how many times the ratio of width and heads a head is wide. ``narrowed``:
        names of numbers by which a head is narrower. ``alike``: names of numbers that must be that of the heads.
        ``dict``: false where it reads no dict. ``needs``: keys without which a config of this type has no RoPE.
        ``partial``: true where a partial rotary factor is read under the scheme "default" too; "rotary_dim" or
        "qk_rope_head_dim" if the width that turns is, too, under that name; "latent" where the two widths of latent
        attention say it, whatever a dict does; others pass over it there. ``beside``: what a dict that the config gives
        lacks, where that is not what `rope_parameters` has. ``whole``: true where `rope_parameters` stands alone, and
        what it has is not read beside it without a dict. ``axial``: how a vision model uses its ladder; "halves": one
        ladder for each of two axes, "alternating": one dealt out to both, "turns": as halves, in turns and not in
        radians, "columns first": as halves, the columns' before the rows', "columns in turn": blocks of columns and
        rows in turn, "thirds": one ladder for each of three axes, "unknown": another way. ``rope``: false where its
        code has no RoPE of queries and keys, whatever its configs carry. ``by_layer``: lists with a value for each
        layer, by the name of the value. ``said``: keys that its class passes over and other engines read.
        ``null_base``: true where a base of null says so. ``sections``: "own" where they are not dealt out in the order
        of `rfrope.mrope`; "interleaved" where they are dealt out in turns, whatever ``mrope_interleaved`` says.
        ``scaled``: "everywhere" where a ``rope_scaling`` is for every kind of layer. ``ntk``: "own" where that scheme
        is not the usual one. ``inner_base``: true where the base is in a dict of the attention. ``original``: true
        where its class has a default for ``original_max_position_embeddings`` beside the dict, which wins. ``negated``:
        true where every angle is. ``softmax``: "mscale_all_dim" where its attention multiplies the softmax scale by the
        square of YaRN's factor with that key.

        ``window``: what its layers see, for types whose class has windows; the others see all. ``length``: the usual
        number of positions, under ``key`` where that is not "sliding_window". ``layers``: the usual kinds of layers, of
        a type with one RoPE; ``windowed``: those with a window, "" for all, where that does not follow from the names
        of kinds; ``still``: those without RoPE. ``first``: the usual ``max_window_layers``, from which on layers have a
        window. ``used``: false where ``use_sliding_window`` must say that it counts. ``half``: true where the number
        counts both sides, ``both``: true where layers see as far to both, ``longest``: what some of the layers have at
        least.

        ``layers``: kinds of layers, for types whose class has several or reads ``layer_types``; the layers of the
        others are alike. Without a list of names in the config, every ``every``-th layer is of ``kind`` and the others
        are ``other``: those whose number leaves ``at`` when divided, counted from the last layer where ``from_end`` is
        true, and ``also``; a config may say ``every`` under ``key``. Or ``pattern``: kinds in turn, after ``start``; or
        ``listed``: the name of a list of the layers of ``kind``, ``usual`` without it, and all where ``listed_all`` is
        true. ``names``: the key of the names, where that is not ``layer_types``; ``cycle``: true where they go in turn;
        ``codes``: a key with numbers for kinds; ``explicit``: true where a config must name them; ``padded``: true
        where names beyond the last layer are dropped; ``halved``: a name that stands after every layer's; ``last``:
        what the class makes of the last layer. Layers turn unless their kind is in ``still``, here or of ``window``;
        ``turning``: a list by which they do (not 0) or do not, ``kinds_turn``: true where kinds follow it,
        ``interval``: a key, every so many-th layer does not; ``without_window``: "all" or "none" of them turn in a
        config without a window; ``forced``: layers that turn in any case. ``bases``: a list with the base of each
        layer; ``compressed``: the base of the RoPE "compress", for which alone a ``rope_scaling`` is, without its
        factor; ``scaled``: a list of the layers to which the scheme applies; ``ropes``: the name of the RoPE for each
        kind, "" for all others.

        ``pairing``: which features of a query and a key, in the order of the weights of their linear layer, make a
        block: "half", "interleaved", or "neither", which no pairing of rfrope explains. ``pairing_by``: a key of the
        config by which the class chooses, under ``key``, and the pairing ``if_true`` and ``if_false``; ``pairing`` is
        that of its default. ``out_pairing``: how the class leaves the features after the rotation, where that is not
        `pairing`; scores do not depend on it, cached keys do. ``rotated``: "last" where the features that turn are the
        last ones of a query and a key, and not the first. ``pairing_note``: what else a user must know, in words.
        ``unmovable``: why a cached key cannot go to another position by another turn, in words.
        ``source``: the code that was read for the pairing of a type that transformers does not have.

    See Also
    --------
    from_config, models.list_layers

    Notes
    -----
    ``tools/make_pairings.py`` of the source tree makes the keys on pairing by running the classes of transformers.

    Examples
    --------
    >>> dict(model_types()["mixtral"]["rope_parameters"])
    {'rope_theta': 1000000.0, 'rope_type': 'default'}
    >>> model_types()["cohere"]["pairing"]
    'interleaved'
    """
    table: Mapping[str, Mapping[str, Any]] = read_table("model_types")
    return table


def known(model_type: Any) -> Mapping[str, Any]:
    """Return the entry of a model type; an empty one where the table has none.

    Parameters
    ----------
    model_type : str
        As a config gives it; anything else is not a type.

    Returns
    -------
    mapping
        See `model_types`.

    Examples
    --------
    >>> dict(known("nemotron_h"))
    {'rope': False}
    """
    return model_types().get(model_type, {}) if isinstance(model_type, str) else {}


def has_defaults(entry: Mapping[str, Any]) -> bool:
    """Say whether an entry has what a config of its type may leave out, and not only what is peculiar to it.

    Parameters
    ----------
    entry : mapping
        See `model_types`.

    Returns
    -------
    bool

    Examples
    --------
    >>> has_defaults(known("llama")), has_defaults(known("nemotron_h"))
    (True, False)
    """
    return "rope_parameters" in entry or "axial" in entry


@cache
def read_table(name: str) -> Any:
    """Return a JSON file of this folder, which nothing can write to: mappings, and tuples.

    Parameters
    ----------
    name : str
        The file without its suffix.

    Returns
    -------
    mapping or tuple

    Examples
    --------
    >>> read_table("config_names")["head_dim"]
    ('head_dim', 'attention_head_dim', 'kv_channels')
    """
    return _frozen(json.loads(files(__package__).joinpath(f"{name}.json").read_text("utf-8")))


def _frozen(held: Any) -> Any:
    """Views that cannot be written to, all the way down, for what every caller shares."""
    if isinstance(held, dict):
        return MappingProxyType({key: _frozen(value) for key, value in held.items()})
    return tuple(held) if isinstance(held, list) else held
