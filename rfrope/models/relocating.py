"""Decide if cached keys of a model may move to other positions, and what must be rotated again first."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from rfrope._core.arguments import MOST, whole
from rfrope._core.results import Result, plain
from rfrope.data.model_types import known
from rfrope.models.configs import from_config, read
from rfrope.models.layering import LayerKind, list_layers, show_layers
from rfrope.rotation.rope import Rope


@dataclass(frozen=True, eq=False)
class RopeRelocation(Result):
    """Answer of `can_relocate` for one RoPE of a config.

    Attributes
    ----------
    name : str
        See `from_config`.
    possible : bool
        True if `rotation.relocate` with `rope` does the whole move.
    reason : str
        The obstacle, or facts about the keys: width, pairing in a cache, and the longest text for which this holds.
    rope : Rope
        The Rope of the keys in the text; move them with it.
    cached_rope : Rope or None
        Rope that keys were cached with, if another: convert by ``rotation.rerotate(k, positions, cached_rope, rope)``.
    changed : tuple of int
        Blocks whose frequencies differ between the two.
    constant_up_to : int or None
        Length of the longest text with the frequencies and attention factor of a short one; None if they never change.
    layers : tuple of int or None
        Layers with such keys; None if the config does not determine them.

    See Also
    --------
    models.Relocation

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> (one,) = rfrope.models.can_relocate(config).ropes
    >>> one.possible, one.rope.n_blocks
    (True, 8)
    """

    name: str
    possible: bool
    reason: str
    rope: Rope
    cached_rope: Rope | None
    changed: tuple[int, ...]
    constant_up_to: int | None
    layers: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON; of the Ropes, only width and pairing."""
        held = {name: value for name, value in vars(self).items() if name not in ("rope", "cached_rope")}
        held |= {"rotary_dim": self.rope.rotary_dim, "pairing": self.rope.pairing}
        return plain(held | {"cached_pairing": self.rope.source.model.cached_pairing or self.rope.pairing})

    def __str__(self) -> str:
        where = show_layers(self.layers) if self.layers is not None else ""
        label = "".join(f"{word}: " for word in (self.name, where) if word)
        return f"{label}{'may move' if self.possible else 'may not move as they are'}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Relocation(Result):
    """Answer of `can_relocate` for a config; true if the cached keys of all its layers may move.

    Attributes
    ----------
    ropes : tuple of RopeRelocation
        One per RoPE of the config, as in `from_config`.
    still : tuple of LayerKind
        Layers without RoPE, as in `list_layers`, whose keys or state a move leaves unchanged.

    See Also
    --------
    models.can_relocate, models.RopeRelocation

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> found = rfrope.models.can_relocate(config)
    >>> bool(found), found.reasons
    (True, ())
    """

    ropes: tuple[RopeRelocation, ...]
    still: tuple[LayerKind, ...] = ()
    _also = ("possible",)

    @property
    def possible(self) -> bool:
        """True if `rotation.relocate` does the whole move in every layer with RoPE."""
        return all(one.possible for one in self.ropes)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences on the obstacles; empty if it is possible."""
        return tuple(str(one) for one in self.ropes if not one.possible)

    def __bool__(self) -> bool:
        return self.possible

    def __str__(self) -> str:
        said = {True: "their keys stay as they are", False: "they have no keys, and no position enters their state"}
        return "\n".join([*map(str, self.ropes), *(f"{kind}; {said[kind.has_keys]}" for kind in self.still)])


def can_relocate(
    config: Mapping[str, Any] | str | os.PathLike[str] | Any,
    *,
    cached_len: int | None = None,
    seq_len: int | None = None,
    pairing: str | None = None,
) -> Relocation:
    """Return whether cached keys of a model may move to other positions, and why.

    Parameters
    ----------
    config : dict, path, or object with to_dict()
        See `from_config`.
    cached_len, seq_len : int, optional
        Number of positions in the text when the keys were cached, and in the text they move to; frequencies may differ
        under schemes that depend on the length (dynamic, longrope). Default: any two lengths up to the context. Engines
        that choose factors at start-up, by the longest text, have one length: pass it as both.
    pairing : {"half", "interleaved"}, optional
        See `from_config`; for model types missing from the table.

    Returns
    -------
    Relocation
        True if the move is possible, with the reasons and the Ropes to move keys with in ``ropes``, a readable ``str``
        and plain data from ``to_dict``.

    Raises
    ------
    ValueError, TypeError, OSError
        See `from_config`.

    See Also
    --------
    models.Relocation, rotation.relocate

    Notes
    -----
    The answer does not rely on the name of a scheme: frequencies and attention factors are computed at both lengths and
    compared, and the longest text without a change is found by bisection.

    A move turns keys at some positions exactly into the same keys at others. It does not turn them into those of
    another text: from the second layer on, keys depend on all preceding tokens. Keys without RoPE do not change.

    Examples
    --------
    Phi-3 switches between two lists of factors, so keys of a short text differ from those of a long one:

    >>> factors = {"short_factor": [1.0] * 8, "long_factor": [1.0] * 4 + [8.0] * 4}
    >>> config = {"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e4,
    ...           "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
    ...           "rope_scaling": {"rope_type": "longrope", **factors}}
    >>> found = can_relocate(config)
    >>> found.possible, found.ropes[0].changed, found.ropes[0].constant_up_to
    (False, (4, 5, 6, 7), 4096)
    >>> can_relocate(config, cached_len=3000, seq_len=4096).possible
    True
    """
    raw, _ = read(config)
    old_len = 1 if cached_len is None else whole("cached_len", cached_len, 1)
    new_len = None if seq_len is None else whole("seq_len", seq_len, 1)

    @cache
    def ropes(length: int) -> tuple[Rope, ...]:
        return from_config(raw, seq_len=length, pairing=pairing)

    def differs(i: int, length: int) -> bool:
        return not _are_same(ropes(1)[i], ropes(length)[i])

    found = []
    for i, rope in enumerate(ropes(1)):
        # the longest text with the RoPE of one position
        constant = bisect_left(range(MOST), True, 2, key=partial(differs, i)) - 1 if differs(i, MOST) else None
        longest = rope.context if isinstance(rope.context, int) else 1
        before, after = (ropes(length)[i] for length in (old_len, longest if new_len is None else new_len))
        found.append(_judge(before, after, constant, _describe_chunks(raw)))
    still = (one for one in list_layers(raw, pairing=pairing).kinds if one.rope is None)
    return Relocation(tuple(found), tuple(still))


def _are_same(one: Rope, other: Rope) -> bool:
    return one.attention_factor == other.attention_factor and np.array_equal(one.frequencies, other.frequencies)


def _judge(before: Rope, after: Rope, constant: int | None, chunks: str) -> RopeRelocation:
    """Return the answer for keys rotated by one Rope and to be rotated by another."""
    model, obstacles = after.source.model, []
    changed = tuple(np.flatnonzero(np.asarray(before.frequencies) != np.asarray(after.frequencies)).tolist())
    if not (same := _are_same(before, after)):
        what = "the attention factor is"
        if changed:
            what = f"the frequencies of {len(changed)} of {after.n_blocks} blocks are"
        obstacles.append(
            f"{what} not the same in both texts, as in any up to {constant} positions; first "
            "rotation.rerotate(k, positions, cached_rope, rope)"
        )
    # why keys cannot move at any text length
    if model.unmovable:
        obstacles.append(model.unmovable)
    elif after.pairing is None:
        obstacles.append(f"this model has a pairing of its own: {model.note}")
    elif model.pairing_from == "assumed":
        unknown = f"the model type {model.model_type!r} is not in the table, so its pairing is unknown; pass pairing="
        obstacles.append(unknown)
    apart = ", which latent attention caches apart" if model.turns_last else ""
    facts = [f"{'the last ' if apart else ''}{after.rotary_dim} features of a key turn{apart}"]
    if model.cached_pairing:
        facts.append(
            f"transformers caches them paired {model.cached_pairing!r}, and an engine that turns them in place caches "
            f"them paired {after.pairing!r}"
        )
    facts += [note for note in (model.note, chunks) if note]
    if known(model.model_type).get("sections") == "own":
        facts.append("its sections have an order of their own, so keys move by one number for all axes")
    facts += [f"in texts of up to {constant} positions; beyond, frequencies depend on the length"] if constant else []
    reason = "; and ".join(obstacles) or "; ".join(facts)
    cached = None if same else before
    return RopeRelocation(model.name, not obstacles, reason, after, cached, changed, constant, model.layers)


def _describe_chunks(raw: Mapping[str, Any]) -> str:
    """Return how vLLM and SGLang count positions of keys with dual chunk attention, or ""."""
    key = "dual_chunk_attention_config"
    if not isinstance(about := raw.get(key), Mapping):
        return ""
    size = whole(f"{key}.chunk_size", about.get("chunk_size", 8192))
    near = whole(f"{key}.local_size", about.get("local_size", 1000))
    return (
        f"with dual chunk attention vLLM and SGLang turn them by positions modulo {size - near}, so take old and "
        "new positions modulo that; transformers does not"
    )
