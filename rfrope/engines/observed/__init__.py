"""Observed readings of configs by engines: data of ``tools/observe_engines.py``, one file for each version.

A file has the engine's ``version``, the ``date``, the ``families`` by model type (``part.`` before those that another
config holds), and the ``rules`` that they share. A rule holds for one form of config ("dict": ``rope_parameters``;
"flat": ``rope_scaling`` with the base beside it; "bare": none of them), one kind of layer and one scheme:

- ``as``: the scheme by whose formula the engine turns;
- ``reads``: the keys that it reads; ``else``: one more, where no original context gives the ratio;
  ``sets``: values that it takes in place of others or of missing ones;
- ``attention``: its attention factor, if it is not that of transformers: "ratio", YaRN's factor of ``mscale`` over that
  of ``mscale_all_dim``, 1 and 0 if missing; "both", this ratio of two given ones; "one"; "all", 1 beside the latter;
- ``both``: the list that longrope takes at every length;
- ``at``: "factor" for a dynamic scheme computed once, for ``factor`` times the context;
- ``positions``: the length of its tables; ``without``: keys without which it turns by the plain ladder;
- ``needs``: keys without which it stops; ``any``: keys, one of them required; ``floats``: keys whose whole numbers it
  refuses; ``unless``: a key whose effect no known formula explains; ``refused``: the error with which it always stops;
- ``ignored``: the keys that it leaves unread, if they do not follow; ``unknown``: why it was not read.

``rfrope/data/engines.json``, written by hand, has such rules for sources that were read and not run: engines, and
model types that are ``unseen`` because they need a device, each like another or by a rule of its own; ``lengths``: what
comes of the length of a text, by scheme; ``reordered``: parts of whose weights loaders turn the rows; ``unread``: keys
of a scheme's dict that change what an engine does and were not observed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope.data.model_types import read_table
from rfrope.engines.record import ConfigRope, EngineRope, Reading, RefusedError, UnknownError, require_key
from rfrope.scaling import registry, schemes

_USUAL = {"beta_fast": 32, "beta_slow": 1, "truncate": True, "mscale": None, "mscale_all_dim": None, "attn_factor": 1.0}
_SCHEMES = {one.name: one for one in registry.records()}
SCALES = ("mscale", "mscale_all_dim")
_SAYING = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
BESIDE = ("rope_theta", "partial_rotary_factor")  # older configs have them beside the dict
_KEY = "original_max_position_embeddings"


@cache
def find_files() -> dict[str, Mapping[str, Any]]:
    """Return the content of all files by the engine's name, with what was read in engines' sources and not run."""
    held = [json.loads(one.read_text("utf-8")) for one in files(__package__).iterdir() if one.name.endswith(".json")]
    seen = {one["engine"]: one | {"was": "was not observed"} for one in held}
    read = {name: {"was": "was not read"} | one.get("reading", {}) for name, one in read_table("engines").items()}
    return {name: read.get(name, {}) | seen.get(name, {}) for name in (*read, *seen)}


def reading(
    engine: str,
    *,
    own: Mapping[str, Callable[[ConfigRope], EngineRope]] | None = None,
    layers: Callable[[ConfigRope], tuple[int, ...] | None] | None = None,
) -> Reading:
    """Return an engine's reading by its file and by what was read in its source.

    `own` are functions by model type, where a machine without a device takes another way.
    """
    held, by_hand = find_files()[engine], own or {}
    others, families = held.get("unseen", {}), held["families"]
    lengths, sources = held.get("lengths", {}), held.get("sources", ())
    types = tuple(sorted({*(name.removeprefix("part.") for name in families), *by_hand, *others}))

    def rule(config: ConfigRope) -> EngineRope:
        for key in held.get("unread", ()):
            if config.written.get(key):
                raise UnknownError(f"{key} {held['was']}")
        if config.model_type in by_hand:
            return by_hand[config.model_type](config)
        try:
            found = find_rule(held, config)
        except UnknownError:
            like = others.get(config.model_type)
            if like is None:
                raise
            like = like if isinstance(like, str) else like.get(config.kind, like[""])
            found = find_rule(held, config, like) if isinstance(like, str) else {"pairing": "half", **like}
        made = evaluate(found, config)
        if config.model_type in held.get("reordered", ()) and config.rope.source.model.name:
            made = replace(made, pairing="interleaved")
        length = lengths.get(config.scheme, EngineRope.length).format(*2 * (config.values.get(_KEY),))
        return replace(made, length=length, layers=None if layers is None else layers(config))

    if "date" not in held:
        return Reading(held["version"], sources, rule, types)
    about = f"tools/observe_engines.py of {held['date']}: {len(families)} families, run"
    return Reading(held["version"], (about, *sources), rule, types, types, failed=held["failed"])


def find_rule(held: Mapping[str, Any], config: ConfigRope, like: str = "") -> dict[str, Any]:
    """Return the rule for a config, with its pairing and what its family, or one like it, has in common."""
    part = "part." if config.rope.source.model.name.partition(".")[0].endswith("_config") else ""
    family, was = held["families"].get(like or part + (config.model_type or "llama")), held["was"]
    if family is None:
        raise UnknownError(f"model type {show(config.model_type)} {was}" + (" inside another" if part else ""))
    if "alpha" in config.values:
        raise UnknownError(f"the scheme 'dynamic' with alpha {was}")
    form = "dict" if like or config.raw.get("rope_parameters") else "flat"
    if not like and "bare" in family and all([config.raw.get(key) is None for key in _SAYING]):
        form = "bare"
    found = _look_up(held, family, form, config)
    has_both = form == "dict" and not like and config.raw.get("rope_theta") is not None
    if has_both and "unknown" not in found and "rope_theta" not in found.get("reads", ()):
        if config.scheme != "default":
            raise UnknownError(f"rope_theta beside rope_parameters {was} for {config.model_type}")
        found = _look_up(held, family, "flat", config)
    is_paired = config.raw.get(family.get("pairing key"))  # neighbours, by a key of its own
    common = {"pairing": "interleaved" if is_paired else family["pairing"], "base": family.get(f"{form} base")}
    return {**found, **common}


def _look_up(held: Mapping[str, Any], family: Mapping[str, Any], form: str, config: ConfigRope) -> Mapping[str, Any]:
    """Return the rule for a form of config, a kind of layer and a scheme."""
    by_kind = family.get(form, {})
    number = by_kind.get(config.kind if config.kind in by_kind else "", {}).get(config.scheme)
    if number is None:
        raise UnknownError(f"the scheme {show(config.scheme)} {held['was']} in this form of {config.model_type}")
    return held["rules"][number]


def _check_runs(rule: Mapping[str, Any], config: ConfigRope) -> None:
    """Refuse a config that stops the engine, or that has no rule."""
    if "refused" in rule:
        raise RefusedError(f"stops with an error: {rule['refused']}")
    if "unknown" in rule:
        raise UnknownError(rule["unknown"].format(config.model_type))
    for key in rule.get("needs", ()):
        require_key(config.written, key)
    if "any" in rule and all(config.written.get(key) is None for key in rule["any"]):
        raise RefusedError(f"stops with an error: {' or '.join(rule['any'])} missing")
    for key in rule.get("floats", ()):
        if not isinstance(value := config.values.get(key, 1.0), float):
            raise RefusedError(f"stops with an error: factor is {show(value)}, and it needs a float, {float(value)!r}")
    if config.raw.get(rule.get("unless", "")) not in (None, {}):
        raise UnknownError(f"no known formula explains its use of {rule['unless']} here")


def evaluate(rule: Mapping[str, Any], config: ConfigRope) -> EngineRope:
    """Return the RoPE that a rule makes of a config."""
    _check_runs(rule, config)
    if "without" in rule and any(config.written.get(key) is None for key in rule["without"]):
        rule = {**rule, "as": "default", "attention": ""}
    values = _read_values(rule, config)
    head_dim, context, scheme = config.rope.head_dim or 0, config.context, rule["as"]
    attention = values.pop("attn_factor", 1.0)
    scales = [values.get("mscale", 1.0), values.get("mscale_all_dim", 0.0)]
    if scheme == "dynamic" and rule.get("at") == "factor":
        factor = values["factor"]
        values |= {"factor": factor * factor - (factor - 1.0)}
        scheme = "ntk"
    frequencies, factor = _SCHEMES[scheme].make(values, head_dim, context, config.seq_len)
    if rule.get("attention") == "ratio" or (rule.get("attention") == "both" and {*SCALES} <= values.keys()):
        factor = schemes.sharpen_yarn(values["factor"], *scales)
    if rule.get("attention") == "all":
        factor = 1.0 if values.get("mscale_all_dim") else schemes.sharpen_yarn(values["factor"])
    factor = 1.0 if rule.get("attention") == "one" else float(factor * attention)
    return EngineRope(
        np.asarray(frequencies),
        factor,
        pairing=rule["pairing"],
        positions=_count_positions(rule["positions"], values, config) if "positions" in rule else None,
        ignored_keys=_find_ignored(rule, config, factor),
    )


def _read_values(rule: Mapping[str, Any], config: ConfigRope) -> dict[str, Any]:
    """Return the values of the keys that an engine reads, with what it takes in place of others."""
    has_original = config.has_original
    reads = rule["reads"] if has_original else (*rule["reads"], rule.get("else"))
    sets, forced = rule.get("sets", {}), BESIDE if has_original else (*BESIDE, _KEY)
    values = {
        key: value
        for key, value in config.values.items()
        if key in reads and value is not None and not (key in sets and key in forced)
    }
    part = config.rope.source.rope_parameters.get("partial_rotary_factor", 1.0)  # with the defaults of transformers
    values = {"partial_rotary_factor": part, **sets, **values}
    if sets.get("partial_rotary_factor", 1.0) != 1.0:  # a width under a key of its own
        values["partial_rotary_factor"] = part
    if rule.get("both"):
        values |= dict.fromkeys(("short_factor", "long_factor"), values[rule["both"]])
    if rule.get("else") and has_original:
        values["factor"] = config.context / values[_KEY]
    base = rule.get("base")
    if base is not None and config.raw.get("rope_theta") is None and config.written.get("rope_theta") is None:
        if isinstance(base, str):
            raise RefusedError(f"stops with an error: {base}")
        values["rope_theta"] = float(base)
    return values


def find_rules(engine: str, model_type: str, scheme: str) -> dict[str, Mapping[str, Any]]:
    """Return the rules of an engine for a scheme that is the same in all layers, by form of config."""
    held = find_files()[engine]
    family = held["families"].get(model_type or "llama", {})
    numbers = {form: family.get(form, {}).get("", {}).get(scheme) for form in ("dict", "flat")}
    return {form: held["rules"][number] for form, number in numbers.items() if number is not None}


def _count_positions(rule: str, values: Mapping[str, Any], config: ConfigRope) -> int:
    """Return the length of tables."""
    original = values.get(_KEY, config.context)
    if rule == "side":  # longrope's tables: one for each side of the original context
        return config.context if config.seq_len > original else int(original)
    return math.ceil(
        (original if "original" in rule else config.context) * (values["factor"] if rule[-2:] == " x" else 1.0)
    )


def _find_ignored(rule: Mapping[str, Any], config: ConfigRope, factor: float) -> tuple[str, ...]:
    """Return the keys that are not read although they would matter."""
    values, reads = config.values, rule["reads"]
    if "ignored" in rule:
        return tuple(rule["ignored"])
    if "rope_theta" not in reads and "rope_theta" in config.written:
        names = ("rope_parameters", "rope_local_base_freq" if config.kind.startswith("sliding") else "rope_theta")
        return (next((name for name in names if config.raw.get(name) is not None), "rope_theta"),)
    if config.scheme == "default":
        return ()
    if rule["as"] == "default" and config.scheme != "dynamic":
        return ("rope_type",)
    usual = _USUAL | {"attention_factor": factor}
    usual |= {key: value for key, value in rule.get("sets", {}).items() if key not in BESIDE}
    if config.scheme == "longrope":
        usual |= {"factor": config.context / values[_KEY], "attention_factor": None}
    if "else" in rule and config.has_original:
        usual |= {"factor": config.context / values[_KEY]}
    if config.scheme == "proportional":
        usual |= {"factor": 1.0}
    if factor == config.rope.attention_factor:  # scales of no effect
        usual |= {"mscale": values.get("mscale"), "mscale_all_dim": values.get("mscale_all_dim")}
    return tuple([key for key, value in usual.items() if key not in reads and values.get(key) not in (None, value)])
