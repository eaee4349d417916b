"""Compare the RoPE of two configs: what changed in which layers, and the distance from which scores differ."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rfrope._core import array
from rfrope._core.arguments import path_of, printable, show, whole
from rfrope._core.results import Result
from rfrope.models.configs import is_config, perceives, read_rope
from rfrope.models.gguf import REORDERED
from rfrope.models.layering import LayerKind, Layers, list_layers, show_layers
from rfrope.models.rewriting import SAME, choose_lengths, first_difference, relative_error, shorten
from rfrope.rotation.rope import refuse_polar
from rfrope.storage import SUFFIXES, load

_FIELDS = ("pairing", "head_dim", "rotary_dim", "qk_head_dim", "sections", "interleaved", "context")
_COMES = {"RoPE", "part", "layers"}
_OF_AXES = {"sections", "interleaved", "mrope_section", "mrope_interleaved"}
_OF_MODEL = ("turns_last", "model_type", "softmax_factor")


@dataclass(frozen=True)
class Change(Result):
    """One change.

    Attributes
    ----------
    what : str
        Name of a key of ``rope_parameters`` or of a field of a Rope, "RoPE", "kind", "window", "layers" or "part".
    old, new : object
        Plain values; None if absent.

    See Also
    --------
    models.LayerDiff

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> found = rfrope.models.diff(config, config | {"rope_theta": 500000.0})
    >>> found.layers[0].changes[0]
    Change(what='rope_theta', old=10000.0, new=500000.0)
    """

    what: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{printable(self.what)} {_show(self.old)} -> {_show(self.new)}"


def _show(value: Any) -> str:
    return printable(value) if isinstance(value, str) else "none" if value is None else shorten(value)


@dataclass(frozen=True, eq=False)
class LayerDiff(Result):
    """Changes of layers that are alike in both the old and the new model.

    Attributes
    ----------
    part, kind : str
        Names in the new config, or if it has none, in the old one.
    layers : tuple of int or None
        Layer numbers; None if a config does not number its layers.
    changes : tuple of Change
    frequency_error : float or None
        Largest relative difference of the new frequencies; infinite if their number differs, None if they are equal or
        a model has no RoPE there.
    differs_from : int or None
        First distance within the attention window at which scores of equal content differ by 1 % of that at 0; 1
        if the pairing differs; None if there is none.
    seq_len : int or None
        Number of positions in the text where they differ; None without a distance.
    is_compared : bool
        True if scores were compared. False if only one model has RoPE there, for vision axes, or if no text
        length is known.

    See Also
    --------
    models.Diff, models.Change

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> found = rfrope.models.diff(config, config | {"rope_theta": 500000.0})
    >>> found.layers[0].layers, len(found.layers[0].changes)
    (None, 1)
    """

    part: str
    kind: str
    layers: tuple[int, ...] | None
    changes: tuple[Change, ...]
    frequency_error: float | None = None
    differs_from: int | None = None
    seq_len: int | None = None
    is_compared: bool = True

    def __str__(self) -> str:
        label = ".".join(word for word in (self.part, self.kind) if word)
        numbered = "" if self.layers is None else show_layers(self.layers)
        lines = [": ".join(word for word in (label, numbered) if word) or "all layers"]
        lines += [f"  {change}" for change in self.changes]
        if self.frequency_error == math.inf:
            lines.append("  turns another number of features")
        elif (error := self.frequency_error) is not None and error > SAME:
            size = f"{error + 1.0:.3g} times" if error >= 1.0 else f"{100.0 * error:.3g} %"
            lines.append(f"  frequencies differ by up to {size}")
        if self.differs_from is not None:
            lines.append(f"  scores differ first at distance {self.differs_from} in a text of {self.seq_len} positions")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Diff(Result):
    """All changes in the RoPE of a model.

    Attributes
    ----------
    layers : tuple of LayerDiff
        Layers with changes.
    n_same : int
        Number of layer kinds without changes.
    differs_from : int or None
        First distance at which any layer differs; None if none does, or if a part or its layers are new.

    See Also
    --------
    models.diff, models.LayerDiff

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> new = config | {"rope_theta": 500000.0}
    >>> found = rfrope.models.diff(config, new)
    >>> found.same, found.differs_from
    (False, 2)
    """

    layers: tuple[LayerDiff, ...]
    n_same: int
    differs_from: int | None = None
    _also = ("same",)

    @property
    def same(self) -> bool:
        """True if nothing changed."""
        return not self.layers

    @property
    def findings(self) -> tuple[str, ...]:
        """One sentence per change."""
        return tuple(str(one) for one in self.layers)

    def __str__(self) -> str:
        if self.same:
            return "The RoPE is the same."
        return "\n".join([*self.findings, *self._conclude()])

    def _conclude(self) -> Iterator[str]:
        """Yield sentences on which scores were compared, and which were not."""
        whats = {each.what for one in self.layers for each in one.changes}
        last = "no score of equal content differs by 1 % within the text."
        if self.differs_from is not None:
            last = f"scores of equal content differ by 1 % first at distance {self.differs_from}."
        has_scores = self.n_same > 0 or any(one.is_compared for one in self.layers)
        if whats & _COMES:
            yield "Some layers turn only before or only after" + (f"; elsewhere: {last}" if has_scores else ".")
        elif has_scores:
            yield last[0].upper() + last[1:]
        if any(not one.is_compared and not {each.what for each in one.changes} & _COMES for one in self.layers):
            yield (
                "Scores were not compared where positions have several axes, or the text length is unknown; "
                "pass seq_len for the latter."
            )
        elif whats & _OF_AXES:
            yield "This is for text: scores at positions whose axes differ, as in images, were not compared."


@array.select_device
def diff(old: Any, new: Any, *, seq_len: int | None = None) -> Diff:
    """Return the changes in the RoPE of a model from one config to another.

    Parameters
    ----------
    old, new : dict, path, object with to_dict(), Rope or frequencies
        Configs as in `from_config`, files that `rfrope.save` wrote, or a Rope with frequencies ``(D,)``. For a GGUF,
        the pairing is that before its converter reordered rows.
    seq_len : int, optional
        Number of positions in the text, on which the schemes dynamic and longrope depend. Default: the context of each
        config. For schemes that depend on the length, one text on either side of the change, as in `compare`.

    Returns
    -------
    Diff
        With ``same``, True if nothing changed, ``layers`` with the changes of layers that are alike, a readable ``str``
        and plain data from ``to_dict``.

    Raises
    ------
    ValueError
        If there are sets for each head, several axes or polar Ropes. See also `from_config`.
    TypeError, OSError
        See `from_config`.

    See Also
    --------
    models.Diff, models.compare

    Notes
    -----
    Layers are compared by number if both configs number them (`list_layers`), and otherwise kinds by name. A Rope
    stands for all layers. The score of equal content at a distance is ``a^2 sum_i cos(distance omega_i)`` over rotated
    blocks plus 1 for each other block, divided by the number of blocks, where a is the attention factor, and times the
    class's factor of the softmax scale (``mscale_all_dim``). It does not depend on the pairing, so another pairing
    counts as different from distance 1. Sections are ignored, as all axes are equal in text. If positions always have
    several axes, or no text length is known, scores are not compared, and the text says so.

    Examples
    --------
    A converter dropped the base, so the default takes its place:

    >>> old = {"model_type": "llama", "num_hidden_layers": 2, "head_dim": 128, "max_position_embeddings": 8192,
    ...        "rope_theta": 500000.0}
    >>> new = {key: value for key, value in old.items() if key != "rope_theta"}
    >>> print(diff(old, new))
    layers 0-1
      rope_theta 500000.0 -> 10000.0
      frequencies differ by up to 47 times
      scores differ first at distance 2 in a text of 8192 positions
    Scores of equal content differ by 1 % first at distance 2.
    """
    given = None if seq_len is None else whole("seq_len", seq_len, 1)
    ropes = [kind.rope for side in _read_both(old, new, given) for kind in side.kinds if kind.rope is not None]
    lengths = sorted({n for rope in ropes for n in choose_lengths(rope)} or {1}) if given is None else [given]
    pairs = [_match(*_read_both(old, new, n)) for n in lengths]
    found = [_compare(each, lengths, has_length=given is not None) for each in zip(*pairs, strict=True)]
    changed = tuple(one for one in found if one.changes or one.frequency_error or one.differs_from is not None)
    first = min((one.differs_from for one in changed if one.differs_from is not None), default=None)
    return Diff(changed, len(found) - len(changed), first)


def _read_both(old: Any, new: Any, seq_len: int | None) -> tuple[Layers, Layers]:
    return _read("old", old, seq_len), _read("new", new, seq_len)


def _read(name: str, what: Any, seq_len: int | None) -> Layers:
    """Return the layers of a config, or a Rope as that of all layers; errors name the argument."""
    if what is None or isinstance(what, int | float):
        raise TypeError(f"{name} is {show(what)}; expected a config, its path, a Rope, or frequencies (D,)")
    try:
        if isinstance(what, str | os.PathLike) and path_of("path", what).lower().endswith(SUFFIXES):
            what = load(what)
        alone = None if is_config(what) else LayerKind("", "", None, read_rope("frequencies", what))
        found = list_layers(what, seq_len=seq_len) if alone is None else Layers((alone,))
        if any(one.rope is not None and one.rope.source.model.note == REORDERED for one in found.kinds):
            found = list_layers(what, seq_len=seq_len, pairing="half")  # as its rows were before they were reordered
    except (ValueError, TypeError) as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {error}") from None
    for one in found.kinds:
        refuse_polar(one.rope, name, "scores of equal content need blocks of two features")
        if one.rope is not None and one.rope.frequencies.ndim != 1:
            raise ValueError(f"{name} has frequencies {tuple(one.rope.frequencies.shape)}; expected (D,)")
    return found


# -- layers to compare -------------------------------------------------------------------------------------------------

_Pair = tuple[tuple[int, ...] | None, Any, Any]  # layer numbers, and LayerKinds; None where one has no such layers


def _match(old: Layers, new: Layers) -> list[_Pair]:
    """Return groups of layers: their numbers, and their kinds in the old and in the new model."""
    before, after = (
        {part: [*kinds] for part, kinds in itertools.groupby(one.kinds, lambda kind: kind.part)} for one in (old, new)
    )
    alone = [[name for name in one if name not in other] for one, other in ((before, after), (after, before))]
    text = [[name for name in names if not perceives(name)] for names in alone]
    renamed = {text[1][0]: text[0][0]} if len(text[0]) == len(text[1]) == 1 else {}
    alike = [_match_part(before.get(renamed.get(name, name), []), kinds) for name, kinds in after.items()]
    gone = [name for name in alone[0] if name not in renamed.values()]
    return [*itertools.chain(*alike), *((kind.layers, kind, None) for name in gone for kind in before[name])]


def _match_part(old: list[LayerKind], new: list[LayerKind]) -> list[_Pair]:
    old, new = ([one for one in kinds if one.layers != ()] for kinds in (old, new))
    if not old or any(one.layers is None for one in (*old, *new)):
        return [*_match_by_name(old, new)]
    sides = [{i: one for one in kinds for i in one.layers or ()} for kinds in (old, new)]
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in sorted(sides[0].keys() | sides[1].keys()):
        groups.setdefault(tuple(id(side.get(i)) for side in sides), []).append(i)
    return [(tuple(at), sides[0].get(at[0]), sides[1].get(at[0])) for at in groups.values()]


def _match_by_name(old: list[LayerKind], new: list[LayerKind]) -> Iterator[_Pair]:
    """Yield pairs of kinds with the same name, single kinds with any name, and the remaining ones."""
    if len(old) == 1 or len(new) == 1:
        yield from ((None, one, other) for other in new for one in old or (None,))
        return
    rest = {(one.kind, one.rope is None): one for one in old}
    for other in new:
        yield None, rest.pop((other.kind, other.rope is None), None), other
    yield from ((None, one, None) for one in rest.values())


# -- one group of layers -----------------------------------------------------------------------------------------------


def _compare(pairs: tuple[_Pair, ...], lengths: list[int], *, has_length: bool) -> LayerDiff:
    """Return the changes of layers that are alike, from their pairs of kinds in texts of several lengths."""
    layers, old, new = pairs[0]
    named = new if new is not None else old
    label = (named.part, named.kind, layers)
    if old is None or new is None:
        what = "layers" if layers is not None else "part"
        appears = Change(what, *(None if one is None else one.about for one in (old, new)))
        return LayerDiff(*label, (appears,), is_compared=False)
    changes = [one for one in _list_values(old, new) if one.old != one.new]
    if old.rope is None or new.rope is None:
        return LayerDiff(*label, tuple(changes), is_compared=old.rope is new.rope)
    ropes = (old.rope, new.rope)  # compared if they rotate tokens of a text whose length is known
    is_axial = any(one.source.rope_parameters.get("rope_type") == "axial" for one in ropes)
    is_compared = not is_axial and (has_length or any(map(choose_lengths, ropes)))
    error = max(relative_error(other.rope.frequencies, one.rope.frequencies) for _, one, other in pairs)
    sides = zip(pairs, lengths, strict=True) if is_compared else ()
    lags = [(lag, n) for (_, *both), n in sides if (lag := _find_lag(both, n)) is not None]
    factors = [one.rope.attention_factor for one in pairs[-1][1:]]
    if abs(factors[1] / factors[0] - 1.0) > SAME and not any(one.what == "attention_factor" for one in changes):
        changes.append(Change("attention_factor", *factors))
    about = (error if error > SAME else None, *min(lags, default=(None, None)), is_compared)
    return LayerDiff(*label, tuple(changes), *about)


def _list_values(old: LayerKind, new: LayerKind) -> Iterator[Change]:
    """Yield what layers have before and after, other than frequencies."""
    for what in ("kind", "window", "both_sides"):
        yield Change(what, getattr(old, what) or None, getattr(new, what) or None)
    before, after = old.rope, new.rope
    if before is None or after is None:
        yield Change("RoPE", *(None if one.rope is None else one.about for one in (old, new)))
        return
    values = [one.source.rope_parameters for one in (before, after)]
    are_read = all(values)  # from configs; frequencies alone determine neither parameters nor a context
    for key in dict.fromkeys(itertools.chain(*values)) if are_read else ():
        yield Change(key, *(one.get(key) for one in values))
    for name in _FIELDS:
        both = [getattr(one, name) for one in (before, after)]
        if name != "context" or are_read or None not in both:
            yield Change("max_position_embeddings" if name == "context" else name, *both)
    for name in _OF_MODEL if are_read else _OF_MODEL[:1]:
        yield Change(name, *(getattr(one.source.model, name) for one in (before, after)))


def _find_lag(kinds: list[LayerKind], length: int) -> int | None:
    """Return the first distance at which scores differ, within the attention windows of either model."""
    ropes: list[Any] = [kind.rope for kind in kinds]
    end = min(length, max([kind.window or length for kind in kinds]))
    after, before = ((one.qk_head_dim / 2, one.source.model.softmax_factor or 1.0) for one in ropes[::-1])
    pairs, scales = zip(after, before, strict=True)
    found = first_difference(ropes[1], ropes[0], pairs, end, scales)
    if end > 1 and len({(one.pairing, one.source.model.turns_last) for one in ropes}) > 1:
        found = 1 if found is None else min(found, 1)
    return found
