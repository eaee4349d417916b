"""Command lines that work, and words that are wrong in each of their options and arguments, one at a time."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from bad_input import CONFIG, ROPE, watched

import rfrope
from rfrope import cli
from rfrope._core.arguments import printable, show

WORDS = {
    "nothing": "",
    "a space": " ",
    "a word": "x",
    "0": "0",
    "-1": "-1",
    "3": "3",
    "a number with spaces": " 3 ",
    "a number with _": "1_0",
    "digits of another script": "\u0664",
    "2**32": str(2**32),
    "400 digits": "9" * 400,
    "5000 digits": "9" * 5000,
    "0.5": "0.5",
    "nan": "nan",
    "inf": "-inf",
    "1e400": "1e400",
    "hexadecimal": "0x10",
    "two numbers": "3,4",
    "a range": "2:1",
    "a list": "[1]",
    "None": "None",
    "True": "True",
    "an escape": "\x1b[31mred\u202e",
    "a long word": "a" * 10_000,
    "NUL": "a\0b",
    "half a character": "\udcff",
    "nowhere": "/nowhere/at/all.npz",
    "a folder": "/",
    "a device": "/dev/zero",
    "a law": "gaussian(scale=nan)",
    "an option": "--json",
}


def commands(folder: pathlib.Path) -> dict[str, list[str]]:
    """A line for each command that works, by its name."""
    config, rope, held = folder / "config.json", folder / "rope.npz", folder / "held.npy"
    if not held.exists():
        config.write_text(json.dumps(CONFIG))
        rfrope.save(rope, ROPE, overwrite=True)
        np.save(held, np.asarray(1e4 ** (-np.arange(4) / 4)))
    law = "gaussian(scale=8)"
    return {
        "validate": [law, "--samples=64", "--trials=8", "--json"],
        "design": [law, "--head-dim=8", "--context=64", "--json"],
        "inspect": ["--base=100", "--head-dim=8", "--context=16", "--json"],
        "plan": [str(config), "--context=128", "--json"],
        "export": [str(rope), "--to=vllm", "--json"],
        "compare": [str(config), "--json"],
        "audit": [str(held), str(config), "--json"],
        "kernels": ["gaussian", "--json"],
        "doctor": ["--json"],
    }


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (found,) = (one for one in cli._parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(found.choices)


def pairs(command: str, line: list[str]) -> Iterator[tuple[str, tuple[str, ...], list[str], str]]:
    """Options and arguments of a command, what an error may call each, and lines with a word in its place, by kind."""
    places = iter([place for place, word in enumerate(line) if word[0] != "-"])
    for action in parsers()[command]._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        name = action.option_strings[-1] if action.option_strings else str(action.metavar)
        names = (*action.option_strings, str(action.metavar or action.dest))
        place = None if action.option_strings else next(places, None)
        for kind, word in WORDS.items():
            if kind in ("an option", "inf") and not action.option_strings:
                continue  # what begins with a minus sign is an option
            if action.option_strings:
                changed = [one for one in line if not one.startswith(f"{name}=")] + [f"{name}={word}"]
            elif place is None:
                changed = [*line, "--", word]
            else:
                changed = [word if at == place else one for at, one in enumerate(line)]
            yield name, names, changed, kind


SAID = {
    "--samples": "n_samples",
    "--trials": "n_trials",
    "--blocks": "n_blocks",
    "--base": "name",
    "--trained": "trained_context",
}
ANY = ("--to", "--conformance")  # names in any spelling; the name of a new folder


def check(command: str, option: str, word: str, out: str, line: list[str]) -> None:
    """Raise what is wrong with the output of a line that takes a word: it says the number that was meant."""
    if option in ANY:
        return
    said = json.loads(out)
    number: float = int(word) if re.fullmatch(r"\s*[\d_]+\s*", word) else float(word)
    key = SAID.get(option, option[2:].replace("-", "_"))
    if command == "export":
        made = said["export"]
        found = {made["rope_parameters"]["rope_theta"], made["max_position_embeddings"]}
    elif (command, option) == ("inspect", "--base"):
        found = {float(one["name"].removeprefix("base ")) for one in said["sets"]}
    elif (command, option) == ("design", "--heads"):
        found = {len(said["heads"])}
    else:
        found = set(values_of(said, key))
    assert number in found, f"{option} {word!r} gives {sorted(found)}"
    if isinstance(number, int) and word != str(number) and option != "--base":
        plain = [f"{option}={number}" if one == f"{option}={word}" else one for one in line]
        assert json.loads(run([command, *plain])[1]) == said


def values_of(said: Any, key: str) -> Iterator[Any]:
    """All values that stand under a key, at any depth."""
    if isinstance(said, dict):
        for name, value in said.items():
            if name == key:
                yield from (
                    one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int | float)
                )
            yield from values_of(value, key)
    elif isinstance(said, list):
        for one in said:
            yield from values_of(one, key)


def judged(command: str, name: str, names: tuple[str, ...], line: list[str], kind: str) -> tuple[Any, str]:
    """Exit code of a line, and what is wrong with what it gives; empty if nothing is."""
    word, code = WORDS[kind], None
    try:
        code, out, err = run([command, *line])
        if code == 0:
            check(command, name, word, out, line)
            return 0, ""
    except BaseException as error:
        return code, f"{type(error).__name__}: {error!s:.200}"
    *usage, last = err.rstrip("\n").split("\n")
    if code != 2 or out or not re.match(rf"rfrope( {command})?: error: ", last) or (usage and "usage:" not in usage[0]):
        return code, f"exit code {code}, {err[-300:]!r}"
    shown = not name.startswith("-") and (printable(word)[:60] in last or show(word)[:60] in last)
    named = shown or any(re.search(rf"(?<!\S){re.escape(one)}\b", last) for one in names)
    return code, "" if named else f"does not name it: {last:.200}"


def run(line: list[str]) -> tuple[Any, str, str]:
    """Exit code, stdout and stderr of a line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), watched():
        try:
            code = cli.main(line)
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()
