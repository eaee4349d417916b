"""Observe what an engine makes of configs, and keep it as data of the package.

python -m tools.observe_engines ENGINE                     prints what differs from the stored file, and exits with 1
python -m tools.observe_engines ENGINE --write             writes the file of the version that is installed here
python -m tools.observe_engines ENGINE --family NAME ...   some families of tools/engine_families.json alone

It runs in an environment that has the engine. For each family it builds a tiny model from a tiny config, plain and with
each scheme and each of its keys, in the form of transformers 5 and in the older one, and looks at what turns queries
and keys (`engine_drivers`). A rule goes into the file only if it gives every number that was seen; see
`rfrope.engines.observed` for its form.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import itertools
import json
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rfrope.engines import observed
from rfrope.engines.record import ConfigRope, RefusedError, UnknownError
from rfrope.models import comparing
from rfrope.models.configs import read_parts
from tools import engine_drivers
from tools.llama_cpp_driver import LlamaCpp

FOLDER = pathlib.Path(observed.__file__).parent
FAMILIES = json.loads(pathlib.Path(__file__).with_name("engine_families.json").read_text("utf-8"))
DRIVERS: dict[str, Any] = {"transformers4": engine_drivers.Transformers4, "vllm": engine_drivers.VLLM}
DRIVERS |= {"sglang": engine_drivers.SGLang, "mlx-lm": engine_drivers.MLXLM, "llama.cpp": LlamaCpp}
DRIVERS |= {"mlx-vlm": engine_drivers.MLXVLM, "exllamav3": engine_drivers.ExLlamaV3}
CONTEXT, ORIGINAL, KEY = 2048, 512, "original_max_position_embeddings"
BASES = (34567.0, 23456.0)
LOCAL, LOCALS = "rope_local_base_freq", ("gemma3_text", "gemma3n_text")
YARN = {"rope_type": "yarn", "factor": 4.0, KEY: ORIGINAL}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, KEY: ORIGINAL}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {  # a scheme, and its keys with other values
    "default": (
        {"rope_type": "default"},
        {"rope_theta": {"rope_theta": 45678.0}, "no rope_theta": {"rope_theta": None}},
    ),
    "linear": (
        {"rope_type": "linear", "factor": 4.0},
        {"factor": {"factor": 3.0}, "whole factor": {"factor": 4}, "no factor": {"factor": None}},
    ),
    "ntk": ({"rope_type": "ntk", "factor": 4.0}, {}),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, {"factor": {"factor": 3.0}, "no factor": {"factor": None}}),
    "yarn": (
        YARN,
        {
            "factor": {"factor": 3.0},
            KEY: {KEY: 1024},
            "beta_fast": {"beta_fast": 16.0},
            "beta_slow": {"beta_slow": 3.0},
            "truncate": {"truncate": False},
            "attention_factor": {"attention_factor": 1.5},
            "mscale": {"mscale": 0.7},
            "mscale_all_dim": {"mscale_all_dim": 1.2},
            "mscale, mscale_all_dim": {"mscale": 0.7, "mscale_all_dim": 1.2},
            "attn_factor": {"attn_factor": 0.8},
            "all": {"mscale": 0.7, "mscale_all_dim": 1.2, "attention_factor": 1.5, "beta_slow": 3.0},
            "no factor": {"factor": None},
            f"no {KEY}": {KEY: None},
        },
    ),
    "llama3": (
        LLAMA3,
        {
            "factor": {"factor": 4.0},
            "low_freq_factor": {"low_freq_factor": 2.0},
            "high_freq_factor": {"high_freq_factor": 8.0},
            KEY: {KEY: 1024},
            f"no {KEY}": {KEY: None},
        },
    ),
    "longrope": (
        {"rope_type": "longrope", KEY: ORIGINAL},
        {
            KEY: {KEY: 1024},
            "factor": {"factor": 8.0},
            "attention_factor": {"attention_factor": 1.5},
            "short_mscale, long_mscale": {"short_mscale": 1.25, "long_mscale": 1.75},
        },
    ),
    "proportional": (
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        {"factor": {"factor": 2.0}, "partial_rotary_factor": {"partial_rotary_factor": 0.25}},
    ),
}
LENGTHS = {"dynamic": (CONTEXT, 4 * CONTEXT), "longrope": (ORIGINAL, CONTEXT)}
ATTENTIONS = ("", "ratio", "one", "all")
FORMS = ("dict", "flat", "bare")
POSITIONS = ("context", "context x", "original x", "side")


@dataclass(frozen=True)
class Case:
    """One config as rfrope reads it, and what the engine made of it: a rotation, or its error in words."""

    name: str
    config: ConfigRope
    seen: engine_drivers.Turn | str


# -- configs -----------------------------------------------------------------------------------------------------------


def make_config(family: dict[str, Any], form: str, values: dict[str, Any], part: float | None = None) -> dict[str, Any]:
    """Return a family's config with a scheme in one of two forms, and bases of its own for each kind of layer."""
    made = copy.deepcopy(family)
    text = made.get("text_config", made)
    usual = text.pop("rope_parameters", None) or {}
    for key in ("rope_scaling", "rope_theta", LOCAL, "partial_rotary_factor"):
        text.pop(key, None)
    kinds = [key for key, value in usual.items() if isinstance(value, dict)]
    if form == "bare":
        return made
    values = {"rope_theta": BASES[0]} | values
    fraction = usual.get("partial_rotary_factor", family.get("partial_rotary_factor", 1.0)) if part is None else part
    if values.get("rope_type") == "longrope":
        plain = make_config(family, form, {"rope_type": "default"}, part)
        blocks = next(iter(read_parts(plain)[0].ropes.values())).frequencies.size
        values |= {
            "short_factor": [1.0 + 0.02 * i for i in range(blocks)],
            "long_factor": [1.0 + i for i in range(blocks)],
        }
    values = {key: value for key, value in values.items() if value is not None}
    if KEY in text:
        text |= {KEY: values.get(KEY, text[KEY])}
    sections = {key: value for key, value in usual.items() if key.startswith("mrope")}
    if form == "dict":
        if fraction != 1.0 or part is not None:
            values.setdefault("partial_rotary_factor", fraction)
        one = values | sections
        bases = (values["rope_theta"], BASES[1]) if "rope_theta" in values else (None, None)
        text["rope_parameters"] = (
            one
            if not kinds
            else {
                kind: values | ({} if base is None else {"rope_theta": base})
                for kind, base in zip(kinds, bases, strict=False)
            }
        )
    else:
        outside = ("rope_theta", "partial_rotary_factor", *((KEY, "rope_type") if KEY in text else ()))
        scaling = {"type": values["rope_type"]} | {key: value for key, value in values.items() if key not in outside}
        scaling |= sections
        text["rope_scaling"] = None if values["rope_type"] == "default" and not sections else scaling
        if "rope_theta" in values:
            text["rope_theta"] = values["rope_theta"]
            if len(kinds) > 1 and text["model_type"] in LOCALS:
                text[LOCAL] = BASES[1]
        if (
            values.get("partial_rotary_factor", fraction) != 1.0
            or part is not None
            or "partial_rotary_factor" in family
        ):
            text["partial_rotary_factor"] = values.get("partial_rotary_factor", fraction)
    return made


def observe(driver: Any, name: str, form: str) -> dict[tuple[str, str], list[Case]]:
    """Return the cases of a family in one form, by kind of layers and scheme."""
    found: dict[tuple[str, str], list[Case]] = {}
    for scheme, (plain, changes) in CHANGES.items():
        cases = [("", plain, None), *((key, plain | change, None) for key, change in changes.items())]
        if form == "bare":
            cases = cases[:1] if scheme == "default" else []
        elif scheme in ("default", "linear", "yarn", "llama3"):
            cases.append(("partial_rotary_factor", plain, 0.25))
        for (key, values, part), length in itertools.product(cases, LENGTHS.get(scheme, (CONTEXT,))):
            try:
                made = make_config(FAMILIES[name], form, values, part)
                configs = list(describe(made, length))
            except (ValueError, TypeError, KeyError):  # not a config by rfrope
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    layers = driver.see(made, length)
            except (Exception, SystemExit) as error:
                layers = describe_error(error)
            for config in configs:
                kind = config.kind if config.rope.source.model.name not in ("", "text_config") else ""
                seen = layers if isinstance(layers, str) else of_kind(layers, config)
                if form != "bare" and config.scheme != scheme:  # it is for other layers
                    continue
                named = config.scheme
                found.setdefault((kind, named), []).append(Case(key, config, seen))
            if not key and isinstance(layers, str) and scheme != "longrope":  # the scheme is refused, whatever its keys
                break
    return found


def describe_error(error: BaseException) -> str:
    """Return the first line of an error that says something, without paths."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "validation error" not in line]
    said = re.sub(r"/\S+", "the config", lines[0] if lines else "")
    said = re.sub(r"\{('.*?')\}", lambda one: "{" + ", ".join(sorted(one[1].split(", "))) + "}", said)  # a set
    return f"{type(error).__name__}: {said}"[:100].removeprefix("ValidationError: Value error, ")


def describe(made: dict[str, Any], length: int) -> Iterator[ConfigRope]:
    """Return the RoPEs of a text as rules take them."""
    for part in read_parts(made):
        if part.name in ("", "text_config"):
            for rope in part.ropes.values():
                yield comparing._describe(rope, made, part.part.held, length)


def of_kind(layers: engine_drivers.Seen, config: ConfigRope) -> engine_drivers.Turn | str:
    """Return the one rotation of the layers of a kind."""
    own = config.rope.source.model.layers
    found = [one for i, one in layers.items() if i < 0 or own is None or not own or i in own]
    if not found:
        return "no such layers"
    if any(not one.is_like(found[0].frequencies, found[0].factor) for one in found):
        return "its layers differ"
    return found[0]


# -- rules -------------------------------------------------------------------------------------------------------------


def explain(cases: list[Case], scheme: str) -> dict[str, Any] | None:
    """Return the simplest rule that gives all that was seen, or all but of a part of heads; None if none does."""
    rule, part = find_rule(cases, scheme), "partial_rotary_factor"
    if rule is not None or not any(one.name == part for one in cases):
        return rule
    rule = find_rule([one for one in cases if one.name != part], scheme)
    return rule and rule | {"unless": part}


def find_rule(cases: list[Case], scheme: str) -> dict[str, Any] | None:
    """Return the simplest rule that gives all that was seen; None if no formula does."""
    plain = [one for one in cases if not one.name]
    if not plain:
        return None
    rule: dict[str, Any] = {}
    if all(isinstance(one.seen, str) for one in plain):
        enough = [one.name for one in cases if one.name and not isinstance(one.seen, str)]
        said = str(plain[0].seen)
        if enough and not set(enough) <= {"factor", "attention_factor"}:
            return None
        if not enough:
            is_seen = said not in ("no such layers", "its layers differ") and "no rotary" not in said
            return {"refused": said} if is_seen else None
        rule["any"] = sorted({*enough})
        plain = [one for one in cases if one.name == enough[0]]
    if any(isinstance(one.seen, str) for one in plain):
        return None
    reads = [*list_reads(cases, plain), *rule.get("any", ())]
    seen = plain[0].seen
    assert isinstance(seen, engine_drivers.Turn)
    needs = [one.name.removeprefix("no ") for one in cases if one.name.startswith("no ") and isinstance(one.seen, str)]
    if needs := [key for key in needs if key != "rope_theta"]:
        rule["needs"] = needs
    if any(one.name == "whole factor" and isinstance(one.seen, str) for one in cases):
        rule["floats"] = ["factor"]
    kept = [one for one in cases if not isinstance(one.seen, str) and one.name != "no rope_theta"]
    for made in candidates(scheme, reads, seen, plain[0].config):
        made = rule | made
        lacking = [one.name[3:] for one in kept if one.name.startswith("no ") and not fits(made, one)]
        made |= {"without": lacking} if lacking else {}
        if all(fits(made, one) for one in kept):
            spots = [one for one in POSITIONS if all(ends(made | {"positions": one}, case) for case in kept)]
            return made | ({"positions": spots[0]} if spots else {})
    return None


def list_reads(cases: list[Case], plain: list[Case]) -> list[str]:
    """Return the keys that change what is seen."""
    reads = []
    for one in cases:
        if not one.name or one.name.startswith(("no ", "whole", "all")) or isinstance(one.seen, str):
            continue
        other = next((case.seen for case in plain if case.config.seq_len == one.config.seq_len), one.seen)
        if isinstance(other, str) or not one.seen.is_like(other.frequencies, other.factor):
            reads += [key for key in one.name.split(", ") if key not in reads]
    return reads


def candidates(
    scheme: str, reads: list[str], seen: engine_drivers.Turn, config: ConfigRope
) -> Iterator[dict[str, Any]]:
    """Yield rules, the simplest first: schemes, bases and parts that are read or fixed, factors, and missing values."""
    lists = ["short_factor", "long_factor"] if scheme == "longrope" else []
    bases = [(["rope_theta"], {})]
    if (base := read_base(seen)) is not None and not any(
        abs(base - one) < 1e-3 * one for one in BASES
    ):  # another kind's
        bases.append(([], {"rope_theta": float(f"{base:.5g}")}))
    head = config.rope.head_dim or 1
    parts: list[tuple[list[str], dict[str, Any]]] = [(["partial_rotary_factor"], {})]
    parts.append(([], {"partial_rotary_factor": 2 * seen.frequencies.size / head}))
    ways: list[dict[str, Any]] = [{"as": "default"}] + ([{"as": scheme}] if scheme != "default" else [])
    ways += [{"as": "dynamic", "at": "factor"}] if scheme == "dynamic" else []
    ways += [{"as": "longrope", "both": "long_factor"}] if scheme == "longrope" else []
    ways += [{"as": "yarn", "else": "factor"}] if scheme == "yarn" and "factor" not in reads else []
    missing = [{}] + ([{KEY: value} for value in (4096, 8192)] if scheme in ("yarn", "llama3") else [])
    for way, (base, fixed), (part, width), attention, lacking in itertools.product(
        ways, bases, parts, ATTENTIONS if scheme in ("yarn", "longrope") else ("",), missing
    ):
        own = (
            [key for key in reads if key not in ("rope_theta", "partial_rotary_factor")]
            if way["as"] != "default"
            else []
        )
        rule = {"as": way["as"], "reads": sorted({*base, *part, *own, *(lists if way["as"] == "longrope" else ())})}
        if way["as"] in ("linear", "dynamic"):
            rule["reads"] = sorted({*rule["reads"], "factor"})
        sets = fixed | width | (lacking if way["as"] != "default" else {})
        rule |= {key: value for key, value in way.items() if key != "as"} | ({"sets": sets} if sets else {})
        yield rule | ({"attention": attention} if attention else {})


def run(rule: dict[str, Any], case: Case) -> Any:
    """Return what a rule makes of a case, or its error."""
    try:
        return observed.evaluate({"pairing": "half"} | rule, case.config)
    except (RefusedError, UnknownError, ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        return error


def fits(rule: dict[str, Any], case: Case) -> bool:
    made = run(rule, case)
    return not isinstance(made, Exception) and case.seen.is_like(made.frequencies, made.attention_factor)  # type: ignore[union-attr]


def ends(rule: dict[str, Any], case: Case) -> bool:
    made = run(rule, case)
    return not isinstance(made, Exception) and made.positions == case.seen.positions  # type: ignore[union-attr]


def read_base(seen: engine_drivers.Turn) -> float | None:
    """Return the base of frequencies that begin with 1."""
    size = seen.frequencies.size
    is_ladder = size > 1 and abs(seen.frequencies[0] - 1.0) < 1e-6
    return float(seen.frequencies[1] ** -float(size)) if is_ladder else None


def find_base(cases: list[Case]) -> Any:
    """Return the base of a config without one, where it is not that of transformers: a number, or the error."""
    for one in cases:
        if one.name == "no rope_theta":
            if isinstance(one.seen, str):
                return one.seen
            if (found := read_base(one.seen)) is not None:
                usual = float(one.config.values["rope_theta"])
                return None if abs(found - usual) < 1e-3 * usual else float(f"{found:.4g}")
    return None


# -- files -------------------------------------------------------------------------------------------------------------


def make_file(driver: Any, names: list[str]) -> dict[str, Any]:
    """Return what is seen of an engine: the rules of each family."""
    families: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        entry: dict[str, Any] = {}
        for form in FORMS:
            found = observe(driver, name, form)
            kinds: dict[str, dict[str, Any]] = {}
            for (kind, scheme), cases in found.items():
                rule = explain(cases, scheme)
                if rule is not None:
                    kinds.setdefault(kind, {})[scheme] = rule
                turned = [one.seen for one in cases if not isinstance(one.seen, str)]
                if turned and "pairing" not in entry:
                    entry["pairing"] = turned[0].pairing
                if turned and scheme == "default" and form != "bare":
                    base = find_base(cases)
                    entry |= {} if base is None else {f"{form} base": base}
                if not turned and scheme == "default" and form != "bare":
                    failed[name] = str(cases[0].seen)
            entry |= {form: kinds} if kinds else {}
        entry |= find_pairing_keys(driver, name)
        known = [one for form in FORMS for schemes in entry.get(form, {}).values() for one in schemes.values()]
        if "pairing" in entry and any("refused" not in one for one in known):
            failed.pop(name, None)
            whole = FAMILIES[name].get("text_config")
            families["part." + whole["model_type"] if whole else name] = entry
        elif name not in failed:
            failed[name] = "no formula explains what was seen"
        known_forms = {form: {kind: len(one) for kind, one in entry[form].items()} for form in FORMS if form in entry}
        print(name, failed.get(name, known_forms), file=sys.stderr)
    head = {"engine": driver.name, "version": driver.find_version(), "date": datetime.date.today().isoformat()}
    return head | {"families": families, "failed": failed}


def find_pairing_keys(driver: Any, name: str) -> dict[str, str]:
    """Return the key by which a family's class pairs neighbours, if it has one."""
    made = make_config(FAMILIES[name], "flat", {"rope_type": "default"})
    made.get("text_config", made)["rope_traditional"] = True
    try:
        found = {one.pairing for one in driver.see(made, CONTEXT).values()}
        made.get("text_config", made)["rope_traditional"] = False
        other = {one.pairing for one in driver.see(made, CONTEXT).values()}
    except (Exception, SystemExit):
        return {}
    return {"pairing key": "rope_traditional"} if found != other else {}


def expand(held: dict[str, Any]) -> dict[str, Any]:
    """Return the families of a file with their rules in place of numbers."""

    def fill(one: Any) -> Any:
        if isinstance(one, int):
            return held["rules"][one]
        return {key: fill(value) for key, value in one.items()} if isinstance(one, dict) else one

    return {name: fill(entry) for name, entry in held["families"].items()}


def number_rules(families: dict[str, Any]) -> dict[str, Any]:
    """Return families with numbers in place of their rules, and the rules that they share."""
    rules: list[dict[str, Any]] = []

    def number(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        if not {"as", "refused"} & one.keys():
            return {key: number(value) for key, value in one.items()}
        if one not in rules:
            rules.append(one)
        return rules.index(one)

    return {"families": {name: number(families[name]) for name in sorted(families)}, "rules": rules}


def write_file(path: pathlib.Path, held: dict[str, Any]) -> None:
    """Write a file with one family or rule a line."""
    lines = []
    for key, value in held.items():
        if key in ("families", "failed"):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(value.items()))
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        elif key == "rules":
            lines.append(' "rules": [\n' + ",\n".join(f"  {json.dumps(one)}" for one in value) + "\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.observe_engines", description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=DRIVERS)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=None)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    driver = DRIVERS[options.engine]()
    made = make_file(driver, options.family or list(FAMILIES))
    path = FOLDER / f"{options.engine}.json"
    stored = json.loads(path.read_text("utf-8")) if path.exists() else {"version": "none", "families": {}, "rules": []}
    old, new = expand(stored), made["families"]
    different = sorted(
        name for name in new.keys() | (set() if options.family else old.keys()) if old.get(name) != new.get(name)
    )
    versions = f"{made['engine']} {made['version']} against {stored['version']}"
    print(f"{versions}: {len(different)} of {len(new)} families differ")
    for name in different:
        print(f"{name}:\n  - {json.dumps(old.get(name))}\n  + {json.dumps(new.get(name))}")
    if options.write:
        if options.family:  # the others stay
            made["families"] = old | new
            made["failed"] = {
                name: said
                for name, said in (stored.get("failed", {}) | made["failed"]).items()
                if name in made["failed"] or name not in options.family
            }
        write_file(path, made | number_rules(made["families"]))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
