"""Command lines that work, and words that are wrong in each of their options and arguments, one at a time."""

import argparse
import contextlib
import io
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from bad_input import watched
from calls import CONFIG, ROPE

import rfrope
from rfrope import cli
from rfrope._core.arguments import printable, show

WORDS = (
    *("", "x", "0", "-1", " 3 ", "\u0664", str(2**32), "9" * 5000, "0.5", "nan", "1e400", "3,4", "[1]", "None"),
    *("\x1b[31mred\u202e", "a" * 10_000, "a\0b", "\udcff", "/nowhere/at/all.npz", "/", "/dev/zero"),
    "gaussian(scale=nan)",
)


def commands(folder: pathlib.Path) -> dict[str, list[str]]:
    """Return a line for each command that works, by its name."""
    config, rope, stored = folder / "config.json", folder / "rope.npz", folder / "stored.npy"
    if not stored.exists():
        config.write_text(json.dumps(CONFIG))
        rfrope.save(rope, ROPE, overwrite=True)
        np.save(stored, np.asarray(1e4 ** (-np.arange(4) / 4)))
    law = "gaussian(scale=8)"
    return {
        "validate": [law, "--samples=64", "--trials=8", "--json"],
        "design": [law, "--head-dim=8", "--context=64", "--json"],
        "inspect": ["--base=100", "--head-dim=8", "--context=16", "--json"],
        "plan": [str(config), "--context=128", "--json"],
        "export": [str(rope), "--to=vllm", "--json"],
        "check": [str(config), str(config), "--json"],
        "compare": [str(config), "--json"],
        "audit": [str(stored), str(config), "--json"],
        "heads": [str(folder / "model"), f"--texts={folder / 'text.txt'}", "--documents=3", "--tokens=9", "--json"],
        "tune": [
            *(str(folder / "model"), f"--texts={folder / 'text.txt'}", "--documents=5", "--trained=32", "--context=64"),
            *("--window=8", "--steps=1", "--starts=ntk", "--json"),
        ],
        "doctor": ["--json"],
    }


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    (found,) = (one for one in cli.make_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(found.choices)


def pairs(command: str, line: list[str]) -> Iterator[tuple[str, tuple[str, ...], list[str], str]]:
    """Yield options and arguments of a command, the names an error may give them, and lines with a wrong word."""
    places = iter([place for place, word in enumerate(line) if word[0] != "-"])
    for action in parsers()[command]._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        name = action.option_strings[-1] if action.option_strings else str(action.metavar)
        names = (*action.option_strings, str(action.metavar or action.dest))
        place = None if action.option_strings else next(places, None)
        for word in WORDS:
            if action.option_strings:
                changed = [one for one in line if not one.startswith(f"{name}=")] + [f"{name}={word}"]
            elif place is None:
                changed = [*line, "--", word]
            else:
                changed = [word if at == place else one for at, one in enumerate(line)]
            yield name, names, changed, word


def fault(command: str, name: str, names: tuple[str, ...], line: list[str], word: str) -> str:
    """Return what is wrong with how a line is taken or refused; empty if nothing is."""
    try:
        code, out, err = run([command, *line])
        if code == 0 or (command == "check" and out):
            json.loads(out, parse_constant=no_constant)
            return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.200}"
    *usage, last = err.rstrip("\n").split("\n")
    if code != 2 or out or not re.match(rf"rfrope( {command})?: error: ", last) or (usage and "usage:" not in usage[0]):
        return f"exit code {code}, {err[-300:]!r}"
    shown = not name.startswith("-") and (printable(word)[:60] in last or show(word)[:60] in last)
    named = shown or any(re.search(rf"(?<!\S){re.escape(one)}\b", last) for one in names)
    return "" if named else f"does not name it: {last:.200}"


def no_constant(text: str) -> None:
    """Refuse a constant that JSON does not have."""
    raise ValueError(f"{text} in JSON")


def run(line: list[str]) -> tuple[Any, str, str]:
    """Return exit code, stdout and stderr of a line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), watched():
        try:
            code = cli.main(line)
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()
