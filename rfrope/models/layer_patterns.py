"""The kind and RoPE of each layer in a part of a model, from a config's lists and a class's patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rfrope._core.arguments import show, whole
from rfrope.scaling.schemes import positive

NO_ATTENTION = ("linear_attention", "conv", "mamba", "recurrent")  # kinds without keys and queries at positions
LARGEST = 2**16  # layers of a model, and features of a head: a larger number is a mistake, and lists of it take long
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def count_layers(held: Mapping[str, Any]) -> int | None:
    """Return the number of layers of a part, or None if the config does not give it."""
    for name in _COUNTS:
        if held.get(name) is not None:
            return whole(name, held[name], 0, LARGEST)
    return None


def read_names(held: Mapping[str, Any], key: str = "layer_types") -> tuple[str, ...] | None:
    """Return a config's own list with the kind of each layer, or None."""
    kinds = held.get(key)
    if not isinstance(kinds, list | tuple):
        return None
    if others := [kind for kind in kinds if not isinstance(kind, str)]:
        raise ValueError(f"{key} holds {show(others[0])}; expected names of kinds of layers")
    return tuple(kinds)


def list_kinds(
    held: Mapping[str, Any], about: Mapping[str, Any] | None, *, windowed_from: int | None = None
) -> tuple[str, ...] | None:
    """Return the kind of each layer from a config and the table's entry for its class; None if unknown."""
    count = count_layers(held)
    about = {"explicit": True} if about is None else about
    key = about.get("names", "layer_types")
    names = read_names(held, key) if about else None  # an empty entry: all layers of one kind, named ""
    if names and about.get("halved") in names:  # a list of blocks, of which every second is no attention
        names, count = names[::2], None if count is None else count // 2
    if names and "cycle" in about:  # names that the layers repeat in turn
        names = None if count is None else tuple(names[i % len(names)] for i in range(count))
    if names is None and "codes" in about and isinstance(held.get(about["codes"]["key"]), list | tuple):
        key, known = about["codes"]["key"], about["codes"]["kinds"]
        if others := [code for code in held[key] if str(code) not in known]:
            raise ValueError(f"{key} holds {show(others[0])}; expected one of {', '.join(known)}")
        names = tuple(str(known[str(code)]) for code in held[key])
    if names is None and count is not None and "explicit" not in about:
        return _follow_pattern(held, about, count, windowed_from)
    if names is not None and count is not None and len(names) != count:
        if "padded" not in about or len(names) < count:
            raise ValueError(f"{key} has {len(names)} entries, and the config {count} layers; expected the same number")
        names = names[:count]  # the class drops the rest
    if names and "last" in about:  # forced by the class
        names = (*names[:-1], about["last"])
    return names


def _follow_pattern(
    held: Mapping[str, Any], about: Mapping[str, Any], count: int, windowed_from: int | None
) -> tuple[str, ...]:
    """Return the kinds that a class gives its layers if the config does not list them."""
    kind, other = about.get("kind", ""), about.get("other", "")
    if "listed" in about:
        chosen, listed = range(count) if "listed_all" in about else about.get("usual", ()), held.get(about["listed"])
        if isinstance(listed, list | tuple):
            chosen = {whole(f"{about['listed']}[{i}]", one) for i, one in enumerate(listed)}
        return tuple(kind if i in chosen else other for i in range(count))
    if windowed_from is not None:
        return tuple("sliding_attention" if i >= windowed_from else kind for i in range(count))
    if "turning" in about and held.get(about["turning"]) and "kinds_turn" in about:
        return tuple(other if turns else kind for turns in _read_flags(held, about["turning"], count))
    if "pattern" in about:  # a complete pattern, apart from its first layers
        start, pattern = about.get("start", ()), about["pattern"]
        return tuple(start[i] if i < len(start) else pattern[i % len(pattern)] for i in range(count))
    if "every" not in about:
        return (kind,) * count
    key = about.get("key", "")
    every = about["every"] if held.get(key) is None else whole(key, held[key], 1)
    at, also = about["at"] % every, {i % count for i in about.get("also", ()) if -count <= i < count}
    steps = range(count - 1, -1, -1) if "from_end" in about else range(count)
    return tuple(kind if step % every == at or i in also else other for i, step in enumerate(steps))


def _read_flags(held: Mapping[str, Any], key: str, count: int) -> tuple[bool, ...]:
    """Return whether each layer rotates: from 1 or 0, or from a base, where 0 or None means it does not."""
    flags = held[key]
    if not isinstance(flags, list | tuple) or len(flags) != count:
        raise ValueError(f"{key} is {show(flags)}; expected a list with a number for each of {count} layers")
    if key.startswith("no_rope_layers"):
        flags = [one if isinstance(one, bool) else whole(f"{key}[{i}]", one, 0, 1) for i, one in enumerate(flags)]
    else:
        flags = [one and positive(f"{key}[{i}]", one) for i, one in enumerate(flags)]
    return tuple(map(bool, flags))


# -- which layers rotate, and by which RoPE ----------------------------------------------------------------------------


def split_parameters(
    held: Mapping[str, Any], about: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each RoPE of a config with one dict; several if it lists what differs."""
    bases, scaled = held.get(about.get("bases", "")), held.get(about.get("scaled", ""))
    if isinstance(bases, list | tuple):
        found = sorted({positive(f"{about['bases']}[{i}]", one) for i, one in enumerate(bases) if one})
        return {_name_base(one) if len(found) > 1 else "": {**parameters, "rope_theta": one} for one in found}
    if isinstance(scaled, list | tuple) and not {*range(count_layers(held) or 0)} <= {*scaled}:
        kept = ("rope_theta", "partial_rotary_factor")
        plain = {key: value for key, value in parameters.items() if key in kept}
        return {"scaled": dict(parameters), "unscaled": {**plain, "rope_type": "default"}}
    return {"": dict(parameters)}


def _name_base(theta: float) -> str:
    return f"rope_theta={theta:.12g}"


def assign_ropes(
    held: Mapping[str, Any],
    about: Mapping[str, Any] | None,
    kinds: Sequence[str],
    names: Sequence[str],
    still: Iterable[str],
    *,
    has_window: bool,
) -> tuple[str | None, ...] | None:
    """Return the name of each layer's RoPE, None for a layer without; or None if that is unknown."""
    if about is None:  # an unknown type: use only what the config says
        if "" in names or not {*names, *NO_ATTENTION} >= {*kinds}:
            return None
        return tuple(kind if kind in names else None for kind in kinds)
    # whether each layer rotates: by the config's list, or else by its kind
    flags: Iterable[bool] = [kind not in (*still, *NO_ATTENTION) for kind in kinds]
    if "turning" in about and held.get(about["turning"]):
        flags = _read_flags(held, about["turning"], len(kinds))
    elif "interval" in about:
        every = whole(about["interval"], 4 if held.get(about["interval"]) is None else held[about["interval"]], 1)
        flags = [(i + 1) % every != 0 for i in range(len(kinds))]
    elif "without_window" in about and not has_window:
        flags = [about["without_window"] == "all"] * len(kinds)
    elif "forced" in about and held.get(about["forced"]["if"], about["forced"]["equals"]) == about["forced"]["equals"]:
        others = read_names(held, about["forced"]["key"]) or ()  # kinds of another list, which rotate under a condition
        flags = [flag or other == about["forced"]["kind"] for flag, other in zip_longest(flags, others[: len(kinds)])]
    # the RoPE of each layer that rotates
    if [*names] == [""]:
        ropes = [""] * len(kinds)
    elif held.get(about.get("bases", "")) and {*kinds}.isdisjoint(names):
        ropes = [_name_base(one or 0.0) for one in held[about["bases"]]]
    elif "scaled" in names:
        ropes = ["scaled" if i in held[about["scaled"]] else "unscaled" for i in range(len(kinds))]
    else:
        of_kind = about.get("ropes", {})
        ropes = [of_kind.get(kind, of_kind.get("", kind)) for kind in kinds]
    return tuple(name if turns and name in names else None for name, turns in zip(ropes, flags, strict=True))
