"""``rfrope check``, ``compare`` and ``audit``: whether a model's RoPE is right; ``doctor``: what works on a machine."""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import asdict
from typing import Any

import rfrope
from rfrope import engines, models, storage
from rfrope._backends import diagnostics
from rfrope._core import files, parallel
from rfrope._core.results import Report, Words, plain
from rfrope.cli import page
from rfrope.cli.shared import add_command, add_files, is_saved, naming, one_of, whole
from rfrope.models.verdicts import CODES

_ENGINES = [engine.name for engine in engines.records() if engine.reading is not None]
_ENGINE: dict[str, Any] = {"type": one_of(_ENGINES), "choices": _ENGINES, "action": "append", "metavar": "NAME"}


def add_check(commands: Any) -> None:
    """Add ``rfrope check`` to the parser."""
    command = add_command(
        commands,
        "check",
        _check,
        "Check whether the RoPE of a model is right: print a verdict, the findings, how each engine reads the config, "
        "and what to type. With a second file, check that both sides have the same RoPE: a trainer and a server, a "
        "checkpoint and its quantised file. Nothing is downloaded, and no code beside a config is run.",
        example="rfrope check config.json --context 131072; rfrope check config.json model.gguf",
        codes="0 if it is right, 1 if it is wrong, 2 if that is unknown, or for bad input",
    )
    option, source = command.add_argument, "a config.json, params.json or GGUF, or the folder of one"
    agrees = f"engine that must agree (repeatable): {', '.join(_ENGINES)}"
    option("target", metavar="TARGET", help=source)
    option("against", metavar="AGAINST", nargs="?", help="file that must have the same RoPE; also one of rfrope.save")
    option("--engine", dest="engines", help=agrees, **_ENGINE)
    option("--context", type=whole, metavar="N", help="positions that it must reach (default: those of the config)")
    add_files(command, "html")


def _check(options: argparse.Namespace) -> int:
    against = options.against
    if against is not None and is_saved(against):
        against = storage.load(against)
    found = models.check(options.target, engines=options.engines, context=options.context, against=against)
    page.emit(options, f"RoPE of {options.target}", found.report(), found.to_dict())
    return CODES[found.status]


def add_compare(commands: Any) -> None:
    """Add ``rfrope compare`` to the parser."""
    command = add_command(
        commands,
        "compare",
        _compare,
        "Compare how engines read the RoPE of one config.json, by the rules in each engine's source: frequencies, "
        "pairing, attention factor, and the effect of the length of the text. Reports the size of disagreements, the "
        "first distance at which a score differs by 1 %, and what to write into the config to make them agree. "
        f"Engines: {', '.join(_ENGINES)}. Engines whose code for a model was not read are listed as unknown.",
        example="rfrope compare config.json --engine transformers --engine llama.cpp",
    )
    option, length = command.add_argument, "length of the text (default: the context, and where a scheme changes)"
    option("source", metavar="SOURCE", help="a Hugging Face config.json, or its folder")
    option("--engine", help="engine to compare (repeatable; default: all)", **_ENGINE)
    option("--context", "--seq-len", dest="seq_len", type=whole, metavar="n", help=length)
    option("--sources", action="store_true", help="list the files that each rule was written from")
    add_files(command, "html")


def _compare(options: argparse.Namespace) -> None:
    found = models.compare(options.source, options.engine, seq_len=options.seq_len)
    parts: list[Any] = []
    for rope in found.ropes:
        laws = [Words(rope.list_laws())] if options.all else []  # the search takes longer than all else
        parts += [*rope.report().parts, *laws]
    listed = found.ropes[0].engines if options.sources else ()
    parts += [Words([f"{one.engine} {one.version}", *(f"  {file}" for file in one.sources)]) for one in listed]
    report = Report(parts, found.report().verdict)
    named = {"laws": [plain(rope.laws) for rope in found.ropes]} if options.all else {}
    page.emit(options, f"Engines on {options.source}", report, found.to_dict() | named)


def add_audit(commands: Any) -> None:
    """Add ``rfrope audit`` to the parser."""
    command = add_command(
        commands,
        "audit",
        _audit,
        "Compare the frequencies or cos/sin tables of a running model with its config. Reports uninitialised memory, "
        "half precision, tables that end too early, wrong pairing, width, attention factor, scheme or factor, the "
        "most similar known mistake, and the position from which it matters. FILE is an .npy with frequencies or a "
        "table, or an .npz whose arrays have the names of a model's buffers (inv_freq, cos_cached, sin_cached, "
        "cos_sin_cache, freqs_cis).",
        example="rfrope audit buffers.npz config.json",
        codes="0 if nothing is wrong, 1 if something is, or 2 for bad input",
    )
    option, meant = command.add_argument, "a Hugging Face config.json or its folder, or a file that rfrope.save wrote"
    option("file", metavar="FILE", help="buffers of the model: .npy or .npz")
    option("meant", metavar="MEANT", help=meant)
    option("--context", type=whole, metavar="N", help="positions that tables must have")


def _audit(options: argparse.Namespace) -> int:
    with naming("FILE", options.file):
        if not options.file.endswith((".npy", ".npz")):
            raise ValueError("expected a name that ends in .npy or .npz")
        is_single = options.file.endswith(".npy")
        what = files.read_array(options.file) if is_single else files.read_arrays(options.file, compressed=True)
    meant = storage.load(options.meant) if is_saved(options.meant) else options.meant
    found = models.audit(what, meant, context=options.context)
    page.emit(options, "", found.report(), found.to_dict())
    return 0 if found.passed else 1


def add_doctor(commands: Any) -> None:
    """Add ``rfrope doctor`` to the parser."""
    add_command(
        commands,
        "doctor",
        _doctor,
        "List the array libraries and accelerators that are active here and, for the others, the reason and the "
        "command to type next. Each is imported and tried, which takes some seconds.",
        example="rfrope doctor --json",
        codes="0, whatever is found",
    )


def _doctor(options: argparse.Namespace) -> None:
    here = {"rfrope": rfrope.__version__, "python": platform.python_version()}
    here |= {"system": f"{platform.system()} {platform.machine()}"}
    counts = {"threads": parallel.allowed(), "cores": os.cpu_count() or 1}
    found = {
        "libraries": [one.diagnose() for one in diagnostics.LIBRARIES],
        "accelerators": [one.diagnose() for one in diagnostics.BACKENDS],
    }
    active = ", ".join(f"{sum(one.active for one in each)} of {len(each)} {title}" for title, each in found.items())
    verdict = f"rfrope {here['rfrope']} works: {active} are active."
    about = f"Python {here['python']}, {here['system']}; {counts['threads']} threads, {counts['cores']} cores"
    parts = [Words([verdict, about])]
    for title, each in found.items():
        lines = [title.capitalize()]
        for one in each:
            said = "; ".join(filter(None, (one.detail, one.reason))) or "works"
            lines += [f"  {'active' if one.active else '-':6}  {one.name}: {said}"]
            lines += [f"{'':10}next: {one.advice}"] if one.advice else []
        parts.append(Words(lines))
    data = here | counts | {name: [*map(asdict, each)] for name, each in found.items()}
    page.emit(options, "", Report(parts, verdict), data)
