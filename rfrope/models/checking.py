"""Check of a model's RoPE: one verdict, findings, and what to type for each engine."""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rfrope._core import array, libraries
from rfrope._core.arguments import path_of, show, whole
from rfrope.engines import REFERENCE
from rfrope.engines.overrides import TYPED, override
from rfrope.engines.record import RefusedError
from rfrope.models.auditing import audit
from rfrope.models.buffers import list_tensors, read_stored
from rfrope.models.comparing import EngineReport, RopeComparison, compare, find_readings
from rfrope.models.configs import is_config, perceives, read
from rfrope.models.diffing import Change, diff
from rfrope.models.gguf import find_gguf, read_metadata
from rfrope.models.layering import LayerKind, Layers, list_layers, show_layers
from rfrope.models.parts import is_broken
from rfrope.models.probing import Probe, probe
from rfrope.models.repairing import REPAIRED
from rfrope.models.rewriting import SAME
from rfrope.models.rope_parameters import DICTS
from rfrope.models.verdicts import KINDS, Check, Finding
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import describe_reach, stretched
from rfrope.scaling.schemes import sharpen_yarn
from rfrope.storage import SUFFIXES

_ATTENDED = {"max_position_embeddings", "model_type", "kind", "window", "both_sides"}  # say nothing about a rotation
_ROTATIONS = {"RoPE", "part", "layers", "pairing", "head_dim", "rotary_dim", "sections", "interleaved", "turns_last"}
_ROTATIONS |= {"attention_factor", "softmax_factor"}
# keys that a user writes, with those of a GGUF
_WRITTEN = {"rope_theta": "rope.freq_base", "factor": "rope.scaling.factor"}
_WRITTEN |= dict.fromkeys(("original_max_position_embeddings", "partial_rotary_factor", "rope_type"), "")
_FLOAT32 = 1e-6  # relative; a GGUF holds numbers in float32
_BASE = r"theta|rotary_emb_base|freq_base"  # in the name of a key for it


@array.select_device
def check(
    target: Any, *, engines: Iterable[str] | None = None, context: int | None = None, against: Any = None
) -> Check:
    """Check the RoPE of a model, and say what to type if it is wrong.

    Parameters
    ----------
    target : dict, path, object with to_dict(), module or Rope
        A config as in `from_config`; or a running model, whose buffers are compared with its ``config``, and which is
        run as by `probe` if they are right; or a Rope, with `against`.
    engines : iterable of str, optional
        Engines that must agree with transformers. Default: all known engines are listed, and none changes the verdict.
    context : int, optional
        Number of positions that it must reach. Default: the config's own.
    against : as `target`, optional
        Target that must have the same RoPE, such as the config of a trainer, a server or a quantised file.

    Returns
    -------
    Check
        With ``verdict``, ``findings``, ``passed``, a readable ``str`` and plain data from ``to_dict``.

    Raises
    ------
    ValueError
        If a file is not a config, an engine is unknown, or a Rope or a module without config has no `against`.
    TypeError
        If an argument is of another type.
    OSError
        If a file cannot be read.

    See Also
    --------
    models.repair, models.compare, models.audit, models.diff

    Notes
    -----
    The verdict is "cannot tell" if the config has a key that looks like RoPE and that nobody is known to read, or a
    model type whose pairing is not known; a number that no engine can take, such as a base of NaN, is wrong. Nothing is
    downloaded, and no code beside a config is run. A running model is left as it was; one that is spread over processes
    is not run. A note says what was not checked.

    Examples
    --------
    >>> config = {"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1000000.0,
    ...           "max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 2.0,
    ...           "original_max_position_embeddings": 32768}}
    >>> print(check(config).verdict)
    wrong: yarn does not reach max_position_embeddings: 2 x 32768 = 65536 < 131072; expected a factor of 4.
    """
    length = None if context is None else whole("context", context, 1)
    target, against = (getattr(one, "_orig_mod", one) for one in (target, against))  # of torch.compile
    names = None if engines is None else [*find_readings(engines)]
    config, other = _read_side("target", target), None if against is None else _read_side("against", against)
    made: dict[Finding, list[str]] = {}  # what each engine does, and of which RoPEs
    if not is_config(config):
        if against is None:
            raise ValueError(f"against is None, and target is {show(target)}, without a config; expected against=")
        return _conclude([*_compare_sides((target, against), (config, other), length)])
    try:
        layers = list_layers(config)
    except (ValueError, TypeError) as error:
        kind = "wrong" if isinstance(error, RefusedError) or is_broken(config) else "unknown"
        return _conclude([Finding(kind, "", str(error))])
    rope = tuple(_describe(kind, is_alone=len(layers.kinds) == 1) for kind in layers.kinds)
    found = [*_check_layers(layers, config)]
    found += _audit(target, None, length) if hasattr(target, "named_modules") else ()
    if isinstance(target, str | os.PathLike) and os.path.isdir(target) and not isinstance(config, str):
        found += _check_stored(os.fspath(target), config, layers)
    turning: list[Any] = [kind for kind in layers.kinds if kind.rope is not None and not perceives(kind.part)]
    read_text = (kind for kind in turning if isinstance(kind.rope.context, int))
    for part, kinds in itertools.groupby(read_text, lambda kind: kind.part):
        ropes = {kind.rope_name: kind.rope for kind in kinds}
        found += _check_part(config, part, ropes, names, length, made)
    everything = {label for labels in made.values() for label in labels}
    told = [
        one if everything <= {*labels} else replace(one, where=f"{one.where}, {' and '.join(labels)}")
        for one, labels in made.items()
    ]
    asked = tuple(f"{name} " for name in names or ())
    found += [one for one in told if one.kind != "note" and one.where.startswith(asked)]
    if against is not None:
        found += _compare_sides((target, against), (config, other), length)
        if is_config(other) and not hasattr(against, "named_modules"):  # engines may take two spellings for two things
            own = check(against, engines=engines, context=context)
            heard = {(one.where, one.text) for one in (*found, *told)}
            new = [one for one in (*own.findings, *own.engines) if (one.where, one.text) not in heard]
            found += [replace(one, where=f"against {one.where}".strip()) for one in new if one in own.findings]
            wrong = [one for one in new if one in own.engines and one.kind == "wrong"]
            told += [replace(one, where=f"{one.where}, against") for one in wrong]
    return _conclude(found, rope, told)


def _read_side(name: str, value: Any) -> Any:
    """Return the config of a side as a dict, or a GGUF or saved file as its path, or frequencies as they are."""
    held = getattr(value, "config", None) if hasattr(value, "named_modules") else value
    try:
        path = path_of("config", held) if isinstance(held, str | os.PathLike) else ""
        if not is_config(held) or path.lower().endswith(SUFFIXES):
            return held
        return find_gguf(held) or read(held)[0]
    except (ValueError, TypeError, OSError) as error:
        said = str(error)
        said = said.replace("config", name, 1) if said.startswith("config ") else f"{name}: {said}"
        raise type(error)(said) from None


def _conclude(found: list[Finding], rope: tuple[str, ...] = (), engines: Iterable[Finding] = ()) -> Check:
    ordered = sorted(dict.fromkeys(found), key=lambda one: [*KINDS].index(one.kind))
    return Check(KINDS[ordered[0].kind] if ordered else "right", tuple(ordered), rope, tuple(engines))


def _describe(kind: LayerKind, *, is_alone: bool) -> str:
    """Return the RoPE of a kind of layers in words, with the pairing and where that is from."""
    said = kind.about
    if kind.rope is not None:
        origin = kind.rope.source.model.pairing_from
        said += f", pairs {kind.rope.pairing}{'' if origin == 'known' else f' ({origin})'}"
    if is_alone:
        return said
    label = ".".join(word for word in (kind.part, kind.kind) if word)
    return ": ".join(filter(None, [label, "" if kind.layers is None else show_layers(kind.layers), said]))


# -- the config alone --------------------------------------------------------------------------------------------------


def _check_layers(layers: Layers, config: Any) -> Iterator[Finding]:
    """Yield what the config itself says wrong, leaves open, or says of its own."""
    seen, has_base = set(), isinstance(config, str) or re.search(_BASE, json.dumps(config, default=str))
    for kind in layers.kinds:
        rope = kind.rope
        if rope is None or (kind.part, kind.rope_name) in seen:
            continue
        seen.add((kind.part, kind.rope_name))
        where, model = rope.source.model.name, rope.source.model
        if model.pairing_from == "assumed":
            text = f"model_type {show(model.model_type)} is not known, nor is its pairing: half is assumed"
            yield Finding("unknown", where, text, fix='rfrope.from_config(config, pairing="half" or "interleaved")')
        base = rope.source.rope_parameters.get("rope_theta", 2.0)
        if base <= 1.0:
            text = f"rope_theta is {base:g}: no block turns slower than 1 radian a position, so far scores are noise"
            yield Finding("wrong", where, text, fix="rope_theta: 10000.0, or the base of the training")
        elif not has_base:
            yield Finding("note", where, f"the config has no base: that of the class, {base:g}, is taken")
        if caution := describe_reach(rope):
            yield Finding("wrong" if _falls_short(rope) else "note", where, caution)
        yield from (Finding("caution", where, said) for said in model.remarks)
        yield from [Finding("note", where, model.note)] if model.note else []


def _check_stored(folder: str, config: Any, layers: Layers) -> Iterator[Finding]:
    """Yield differences between the config and frequencies stored beside the weights.

    These are notes: transformers computes its own, and its older versions stored them without the scheme.
    """
    try:
        stored = read_stored(folder)
        faults = audit(stored, config).findings if stored else ()
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        yield Finding("note", "safetensors", f"stored frequencies are not read: {error}")
        return
    is_plain = all(rope.source.rope_parameters["rope_type"] == "default" for rope in layers.ropes.values())
    for one in faults:
        kind = "wrong" if is_plain and one.kind != "half precision" else "note"
        yield Finding(kind, one.where, f"stored beside the weights: {one.text}; engines that load them use them")


def _falls_short(rope: Rope) -> bool:
    """Return whether a scheme does not reach its context, or takes it for the original one."""
    values, before = rope.source.rope_parameters, stretched(rope)
    if before is None or not before.names_original or not isinstance(rope.context, int):
        return False
    return "original_max_position_embeddings" not in values or before.reach < rope.context


# -- engines -----------------------------------------------------------------------------------------------------------


def _check_part(
    config: Mapping[str, Any] | str,
    part: str,
    ropes: dict[str, Rope],
    names: list[str] | None,
    length: int | None,
    told: dict[Finding, list[str]],
) -> Iterator[Finding]:
    """Yield findings on the length that is asked for and on engines, and list what each engine does."""
    reach = min(_reach(rope) for rope in ropes.values())
    made = {name: rope.source.rope_parameters for name, rope in ropes.items()}
    if is_longer := length is not None and length > reach:
        made = _extend(ropes, length or 0)
        typed = "llama.cpp" if isinstance(config, str) else REFERENCE
        fix = override(typed, made.get("", made), length or 0, part=part) if made else ""
        yield Finding("wrong", part, f"{length} positions are requested, and the RoPE reaches {reach}", fix=fix)
        if made and not isinstance(config, str):
            config = _write(config, part, made.get("", made), length or 0)
    if isinstance(config, str):  # a GGUF, which one engine reads
        return
    try:
        comparisons = compare(config, None if names is None else [REFERENCE, *names], seq_len=length).ropes
    except ValueError as error:
        if names is not None:
            raise
        yield Finding("note", "engines", str(error))
        return
    compared = [one for one in comparisons if one.name in {rope.source.model.name for rope in ropes.values()}]
    has_lengths = len({one.name for one in compared}) < len(compared)
    for one in compared:
        label = f"{one.name} for {one.seq_len} positions".strip() if has_lengths else one.name
        for engine in one.engines:
            fix = _choose_fix(engine, one, part, made.get("", made), is_longer=is_longer)
            kind = "unknown" if engine.status == "unknown" else "wrong" if engine.findings else "note"
            same = "the reference" if engine.engine == one.reference else f"as {one.reference}"
            text = "; ".join(engine.findings) or engine.reason or same
            has_run = engine.engine == one.reference or engine.sources[0].startswith("tools/observe_engines")
            about = f"{engine.engine} {engine.version}{'' if has_run else ' (read, not run)'}"
            told.setdefault(Finding(kind, about, text, fix=fix), []).append(label)


def _reach(rope: Rope) -> int:
    """Return the number of positions that a RoPE of text reaches."""
    before = stretched(rope)
    assert isinstance(rope.context, int)  # of a part that reads text
    return rope.context if before is None else max(before.reach, 0 if _falls_short(rope) else rope.context)


def _extend(ropes: dict[str, Rope], length: int) -> dict[str, dict[str, Any]]:
    """Return ``rope_parameters`` that reach further: YaRN, or a larger factor; empty for schemes without a factor."""
    made = {}
    for name, rope in ropes.items():
        values, before = dict(rope.source.rope_parameters), stretched(rope)
        original = rope.context if before is None else before.original_context
        assert isinstance(original, int)  # of a part that reads text
        if values["rope_type"] == "default":
            values |= {"rope_type": "yarn", "original_max_position_embeddings": original}
        elif values["rope_type"] not in ("yarn", "linear"):  # their factor times the original context is the reach
            return {}
        made[name] = values | {"factor": length / original}
        if values.get("attention_factor") == sharpen_yarn(values.get("factor") or 1.0):  # follows from the factor
            made[name].pop("attention_factor")
    return made


def _write(raw: Mapping[str, Any], part: str, parameters: dict[str, Any], length: int) -> dict[str, Any]:
    """Return a config with other ``rope_parameters`` and another context in one of its parts."""
    changed = held = copy.deepcopy(dict(raw))
    for name in part.split(".") if part else ():
        held = held[name]
    for key in (*DICTS, "rope_theta", "partial_rotary_factor", "rope_local_base_freq"):
        held.pop(key, None)
    held |= {"rope_parameters": parameters, "max_position_embeddings": length}
    return changed


def _choose_fix(
    engine: EngineReport, rope: RopeComparison, part: str, parameters: dict[str, Any], *, is_longer: bool
) -> str:
    """Return what to type for an engine so that it does as the reference; "" if there is nothing, or no way."""
    name, held = engine.engine, dict[str, Any]()
    standard = next((one.rope for one in rope.engines if one.engine == rope.reference), None)
    if engine.is_same:
        held = parameters if is_longer else {}
    elif name in rope.then_agree:
        scaling = dict(rope.write.get("rope_scaling") or {"rope_type": "default"})
        scaling.pop("type", None)
        keys = ("rope_theta", "partial_rotary_factor")
        held = {key: rope.write.get(key, parameters[key]) for key in keys if key in (rope.write | parameters)} | scaling
    elif name == "llama.cpp" and standard and engine.rope and (engine.frequency_error or 0.0) <= SAME:
        held, part = parameters | {"attention_factor": standard.attention_factor}, ""
    if name not in TYPED:
        return f"config.json: {json.dumps(rope.write)}" if held and not engine.is_same else ""
    try:
        return override(name, held, rope.seq_len, part=part) if held else ""
    except ValueError:  # it has no words for this
        return ""


# -- against another ---------------------------------------------------------------------------------------------------


def _audit(model: Any, rope: Any, length: int | None) -> Iterator[Finding]:
    """Yield faults of a running model: of its buffers, or if they are right, of what it does when it is run."""
    try:
        faults, unknown = audit(model, rope, context=length).findings, ""
    except ValueError as error:  # it holds neither frequencies nor tables, or its config says nothing of them
        faults, unknown = (), str(error)
    for one in faults:
        yield replace(one, kind="wrong", fix="rfrope.models.repair(model)" if one.kind in REPAIRED else "")
    left = unknown or f"how it turns queries and keys{', until its buffers are right' if faults else ''}"
    if not faults:
        try:
            found = _run(model, rope)
        except Exception as error:  # whatever a model raises, such as one without weights
            said = str(error).partition("\n")[0]
            left += f"; running it raises {type(error).__name__}: {said}"
        else:
            left = ""
            yield from (Finding("wrong", one.where, one.text) for one in found.findings)
    if left:
        yield Finding("unknown" if unknown else "note", "running model", f"not checked: {left}")


def _run(model: Any, rope: Any) -> Probe:
    """Return what a model does when it is run, and put back what schemes for long texts write into it."""
    spread = libraries.imported("torch.distributed")
    if spread is not None and spread.is_available() and spread.is_initialized() and spread.get_world_size() > 1:
        raise ValueError("it is spread over processes; expected rfrope.models.probe(model) in all of them")
    parts = [part for part in model.modules() if any("inv_freq" in name for name in list_tensors(part))]
    held = [(part, dict(vars(part)), dict(part._buffers)) for part in parts]
    tensors = [one for part in parts for one in list_tensors(part).values() if hasattr(one, "copy_")]
    before = [one.clone() for one in tensors]
    try:
        return probe(model, rope)
    finally:
        for part, values, buffers in held:
            vars(part).update(values)
            part._buffers.update(buffers)
        for one, values in zip(tensors, before, strict=True):
            one.data.copy_(values)


def _compare_sides(sides: tuple[Any, Any], configs: tuple[Any, Any], length: int | None) -> Iterator[Finding]:
    """Yield differences between two sides that should have the same RoPE: models, and what was read of them."""
    paths = [*map(find_gguf, configs)]
    if hasattr(sides[1], "named_modules"):
        yield from _audit(sides[1], configs[0] if paths[0] is None else None, length)
    elif hasattr(sides[0], "named_modules") and paths[1] is None:
        yield from _audit(sides[0], sides[1], length)
    if any(one is None for one in configs):
        return
    try:
        found = diff(*configs, seq_len=length)
    except (ValueError, TypeError) as error:
        said = re.sub("^new", "against", re.sub("^old", "target", str(error)))
        if not all(map(is_config, configs)):
            raise type(error)(said) from None
        yield Finding("unknown", "", said)
        return
    is_alone = len(found.layers) + found.n_same == 1
    for one in found.layers:
        label = "" if is_alone else ".".join(word for word in (one.part, one.kind) if word)
        changes = [each for each in one.changes if _matters(each, is_gguf=any(paths))]
        turned = [each for each in changes if each.what in _ROTATIONS]
        turned = [each for each in turned if each.what != "attention_factor" or None not in (each.old, each.new)]
        if (one.frequency_error or 0.0) > _FLOAT32 or one.differs_from is not None or turned:
            is_part = any(each.what == "part" for each in changes) and perceives(one.part)
            fix = _fix_diff(changes, "" if paths[1] is None else read_metadata(paths[1]).name)
            far = "" if one.differs_from is None else f": scores differ from distance {one.differs_from} on"
            said = f"the two sides differ: {', '.join(map(str, changes)) or 'frequencies'}{far}"
            yield Finding("note" if is_part else "wrong", label, said, fix=fix)
        elif noted := [str(each) for each in one.changes if each.what == "max_position_embeddings"]:
            yield Finding("note", label, f"the same rotation, and {noted[0]}")


def _matters(change: Change, *, is_gguf: bool) -> bool:
    """Return whether a change is one of the rotation; a GGUF writes some schemes otherwise, and numbers in float32."""
    if change.what in _ATTENDED:
        return False
    values = (change.old, change.new)
    if all(isinstance(one, int | float) for one in values):
        return abs(change.new - change.old) > _FLOAT32 * abs(change.old)
    return not (is_gguf and (None in values or change.what == "rope_type"))


def _fix_diff(changes: list[Change], architecture: str) -> str:
    """Return what to write into the second side, a GGUF or a config, so that it has the values of the first."""
    held = {each.what: each.old for each in changes if each.what in _WRITTEN and each.old is not None}
    if architecture:
        numbers = {_WRITTEN[what]: value for what, value in held.items() if _WRITTEN[what]}
        return " ".join(f"--override-kv {architecture}.{key}=float:{value:.9g}" for key, value in numbers.items())
    return f"in the second: {json.dumps(held)}" if held else ""
