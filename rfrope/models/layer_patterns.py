"""The kind and RoPE of each layer in a part of a model, from a config's lists and a class's patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    if about is None:
        return _check_count(read_names(held), count, "layer_types", padded=False)
    key = about.get("names", "layer_types")
    names = read_names(held, key) if about else None  # an empty entry: all layers of one kind, named ""
    if names and about.get("halved") in names:  # a list of blocks, of which every second is no attention
        names, count = names[::2], None if count is None else count // 2
    if names and "cycle" in about:  # names that the layers repeat in turn
        names = None if count is None else tuple(names[i % len(names)] for i in range(count))
    if names is None and "codes" in about and isinstance(held.get(about["codes"]["key"]), list | tuple):
        key, known = about["codes"]["key"], about["codes"]["kinds"]
        for code in held[key]:
            if str(code) not in known:
                raise ValueError(f"{key} holds {show(code)}; expected one of {', '.join(known)}")
        names = tuple(str(known[str(code)]) for code in held[key])
    if names is None and count is not None and "explicit" not in about:
        return _follow_pattern(held, about, count, windowed_from)
    names = _check_count(names, count, key, padded="padded" in about)
    if names and "last" in about:  # forced by the class
        names = (*names[:-1], about["last"])
    return names


def _check_count(names: tuple[str, ...] | None, count: int | None, key: str, *, padded: bool) -> tuple[str, ...] | None:
    if names is None or count is None or len(names) == count:
        return names
    if padded and len(names) > count:  # the class drops the rest
        return names[:count]
    raise ValueError(f"{key} has {len(names)} entries, and the config {count} layers; expected the same number")


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
        return tuple(
            bool(one if isinstance(one, bool) else whole(f"{key}[{i}]", one, 0, 1)) for i, one in enumerate(flags)
        )
    return tuple(bool(one) and positive(f"{key}[{i}]", one) > 0.0 for i, one in enumerate(flags))


# -- which layers rotate, and by which RoPE ----------------------------------------------------------------------------


def find_turning(
    held: Mapping[str, Any], about: Mapping[str, Any], kinds: Sequence[str], still: Iterable[str], *, has_window: bool
) -> tuple[bool, ...]:
    """Return whether each layer rotates queries and keys: by the config's list, or else by its kind."""
    key, count = about.get("turning"), len(kinds)
    if key and held.get(key):
        return _read_flags(held, key, count)
    if "interval" in about:
        name = about["interval"]
        every = 4 if held.get(name) is None else whole(name, held[name], 1)
        return tuple((i + 1) % every != 0 for i in range(count))
    stopped = {*still, *NO_ATTENTION}
    if "without_window" in about and not has_window:
        return (about["without_window"] == "all",) * count
    flags = [kind not in stopped for kind in kinds]
    forced = about.get("forced")  # kinds of another list, which rotate under a condition
    if forced and held.get(forced["if"], forced["equals"]) == forced["equals"]:
        others = read_names(held, forced["key"]) or ()
        flags = [flag or (i < len(others) and others[i] == forced["kind"]) for i, flag in enumerate(flags)]
    return tuple(flags)


def split_parameters(
    held: Mapping[str, Any], about: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each RoPE of a config with one dict; several if it lists what differs."""
    bases, scaled = held.get(about.get("bases", "")), held.get(about.get("scaled", ""))
    if isinstance(bases, list | tuple):
        found = sorted({positive(f"{about['bases']}[{i}]", one) for i, one in enumerate(bases) if one})
        if len(found) == 1:
            return {"": {**parameters, "rope_theta": found[0]}}
        return {_name_base(one): {**parameters, "rope_theta": one} for one in found}
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
    flags = find_turning(held, about, kinds, still, has_window=has_window)
    if [*names] == [""]:
        return tuple("" if turns else None for turns in flags)
    if "bases" in about and held.get(about["bases"]):
        bases = [_name_base(float(theta)) if theta else None for theta in held[about["bases"]]]
        return tuple(bases) if len(bases) == len(kinds) else None
    if "scaled" in names:
        chosen = {*held[about["scaled"]]}
        return tuple("scaled" if i in chosen else "unscaled" for i in range(len(kinds)))
    ropes = about.get("ropes", {})
    found = [ropes.get(kind, ropes.get("", kind)) for kind in kinds]
    return tuple(name if turns and name in names else None for name, turns in zip(found, flags, strict=True))
