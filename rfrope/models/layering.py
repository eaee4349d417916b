"""The layers of a model by kind: the Rope of each, or none, and its attention window."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rfrope._core.arguments import printable
from rfrope._core.results import Result, plain
from rfrope.models.configs import PartLayers, perceives, read_parts
from rfrope.models.layer_patterns import NO_ATTENTION
from rfrope.rotation.rope import Rope


@dataclass(frozen=True, eq=False)
class LayerKind(Result):
    """A set of like layers of one part of a model.

    Attributes
    ----------
    part : str
        The part of the config, "" for its top.
    kind : str
        As in ``layer_types``; "" if the class has one kind.
    layers : tuple of int or None
        Layer numbers, from 0 in the part; None if the config does not determine them.
    rope : Rope or None
        Rope of queries and keys; None for layers without RoPE.
    window : int or None
        Size of the attention window on one side, with the token itself: distances are below it. None if unlimited.
    both_sides : bool
        True if the window extends as far to the other side, as in encoders: it holds ``2 window - 1`` positions.
    rope_name : str
        Name of the Rope within its part, its key in `Layers.ropes`; "" if there is only one.

    See Also
    --------
    models.Layers

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> (kind,) = rfrope.models.list_layers(config | {"num_hidden_layers": 2}).kinds
    >>> kind.layers, kind.rope.n_blocks, kind.window
    ((0, 1), 8, None)
    """

    part: str
    kind: str
    layers: tuple[int, ...] | None
    rope: Rope | None
    window: int | None = None
    both_sides: bool = False
    rope_name: str = ""

    @property
    def has_keys(self) -> bool:
        """False for layers that have a state instead of keys: linear attention, convolutional or recurrent layers."""
        return self.kind not in NO_ATTENTION

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON; of the Rope, its name and parameters."""
        held = {name: getattr(self, name) for name in ("rope", "part", "kind", "window", "both_sides", "layers")}
        if (rope := self.rope) is not None:
            about = {name: getattr(rope, name) for name in ("head_dim", "rotary_dim", "pairing", "attention_factor")}
            held["rope"] = about | {"name": rope.source.model.name, "rope_parameters": rope.source.rope_parameters}
        return plain(held)

    def __str__(self) -> str:
        label = ".".join(word for word in (self.part, self.kind) if word)
        numbers = "layers without numbers" if self.layers is None else show_layers(self.layers)
        return ": ".join(word for word in (label, numbers, self.about) if word)

    @property
    def about(self) -> str:
        """Scheme, base, width and window in words."""
        sides = " to both sides" if self.both_sides else ""
        seen = "" if self.window is None else f", a window of {self.window}{sides}"
        if self.rope is None:
            return f"no RoPE{seen}" if self.has_keys else "no attention"
        held = self.rope.source.rope_parameters
        base = f", base {held['rope_theta']:g}" if "rope_theta" in held else ""
        last = "the last " if self.rope.source.model.turns_last else ""
        width = f"{last}{self.rope.rotary_dim} of {self.rope.qk_head_dim} features"
        return printable(f"{held.get('rope_type', 'a Rope')}{base}, {width}{seen}")


@dataclass(frozen=True, eq=False)
class Layers(Result):
    """The layers of a model.

    Attributes
    ----------
    kinds : tuple of LayerKind
        Ordered by part, then by first layer.

    See Also
    --------
    models.list_layers, models.LayerKind

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> layers = rfrope.models.list_layers(config | {"num_hidden_layers": 2})
    >>> [(one.kind, one.layers) for one in layers.kinds]
    [('', (0, 1))]
    """

    kinds: tuple[LayerKind, ...]

    @property
    def ropes(self) -> dict[str, Rope]:
        """The Ropes of the first part that is not vision or audio, by kind, as `replace_rotary` takes them."""
        return {one.rope_name: one.rope for one in self.text_kinds if one.rope is not None}

    @property
    def ropes_by_layer(self) -> tuple[str | None, ...] | None:
        """The key in `ropes` of each layer, None for layers without RoPE; None if layers have no numbers."""
        kinds = self.kinds_by_layer()
        return None if kinds is None else tuple([None if one.rope is None else one.rope_name for one in kinds])

    @property
    def text_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the first part that is not vision or audio."""
        parts = [one.part for one in self.kinds]
        part = next((one for one in parts if not perceives(one)), parts[0])
        return tuple(one for one in self.kinds if one.part == part)

    def kinds_by_layer(self) -> tuple[LayerKind, ...] | None:
        """Return the kind of each layer of the first text part, in order; None if layers have no numbers."""
        kinds = self.text_kinds
        found = {i: one for one in kinds for i in one.layers or ()}
        return None if any(one.layers is None for one in kinds) else tuple([found[i] for i in sorted(found)])

    def __str__(self) -> str:
        return "\n".join(map(str, self.kinds))


def list_layers(
    config: Mapping[str, Any] | str | os.PathLike[str] | Any, *, seq_len: int | None = None, pairing: str | None = None
) -> Layers:
    """Return the layers of a model by kind, each with its Rope, or none.

    Parameters
    ----------
    config : dict, path, or object with to_dict()
        See `from_config`.
    seq_len, pairing
        See `from_config`.

    Returns
    -------
    Layers
        With ``kinds``, ``kinds_by_layer()``, one line of ``str`` per kind and plain data from ``to_dict``. Parts
        without RoPE are left out, as in `from_config`.

    Raises
    ------
    ValueError
        If a list in the config does not have one entry per layer. See also `from_config`.
    TypeError, OSError
        See `from_config`.

    See Also
    --------
    models.Layers, from_config

    Notes
    -----
    A config gives the kind of each layer in ``layer_types``. Older configs imply it through their class in transformers
    5: by a pattern (``sliding_window_pattern``, ``full_attention_interval``) or a list of layers
    (``attn_layer_indices``, ``cross_attention_layers``). Which layers rotate follows from their kind, from
    ``no_rope_layers`` (where 1 means that a layer does rotate) or from ``layer_rope_theta`` (where 0 means none).

    Nothing is guessed. For types missing from the table, layers are numbered only if the config lists their kinds and
    has a dict of parameters for each; otherwise, or if the number of layers is missing, ``layers`` is None.

    Examples
    --------
    >>> config = {"model_type": "smollm3", "num_hidden_layers": 8, "rope_theta": 5e6, "head_dim": 128}
    >>> print(list_layers(config))
    full_attention: layers 0-2, 4-6: default, base 5e+06, 128 of 128 features
    full_attention: layers 3, 7: no RoPE
    """
    kinds = [kind for part in read_parts(config, seq_len=seq_len, pairing=pairing) for kind in _list_kinds(part)]
    return Layers(tuple(kinds))


def _list_kinds(part: PartLayers) -> Iterator[LayerKind]:
    """Yield the kinds of layers of one part, then RoPEs of no layer, or of layers without numbers."""
    groups: dict[tuple[str, str | None], list[int]] = {}
    for i, key in enumerate(part.layers):
        groups.setdefault(key, []).append(i)
    found: list[tuple[str, str | None, tuple[int, ...] | None, int | None]] = []
    for (kind, chosen), indices in groups.items():
        found.append((kind, chosen, tuple(indices), None if kind in NO_ATTENTION else part.part.window_of(kind)))
    used, numbers = {name for _, name in groups}, () if groups else None
    found += [(name, name, numbers, rope.source.model.window) for name, rope in part.ropes.items() if name not in used]
    for kind, name, layers, window in found:
        rope, both_sides = None if name is None else part.ropes[name], window is not None and part.part.sees_both_sides
        said = printable(part.name), printable(kind)
        yield LayerKind(*said, layers, rope, window, both_sides, printable(name or ""))


# -- in words ----------------------------------------------------------------------------------------------------------


def show_layers(layers: tuple[int, ...]) -> str:
    """Return layer numbers as text, with runs shortened: layers 0-2, 4-6, 8."""
    runs = [[i for _, i in run] for _, run in groupby(enumerate(layers), lambda one: one[1] - one[0])]
    said = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"layer{'' if len(layers) == 1 else 's'} {said}" if layers else "no layers"
