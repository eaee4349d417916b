"""The command line: parse, call, print; no mathematics. Each command is a module beside this one."""

from __future__ import annotations

import argparse
import contextvars
import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import NoReturn

import rfrope
from rfrope._core import dispatch, results
from rfrope._core.arguments import printable
from rfrope.cli import check, design, export, inspect, plan, texts, validate
from rfrope.cli.shared import check_files, print_text

_COMMANDS = (
    *(check.add_check, validate.add, design.add, inspect.add, plan.add, texts.add_tune, export.add),
    *(check.add_compare, check.add_audit, texts.add_heads, check.add_doctor),
)
# options whose name is not that of the argument in Python
_OPTIONS = {"rng": "seed", "trained_context": "trained", "engine": "to", "n_samples": "samples", "n_trials": "trials"}
_OPTIONS |= {"n_blocks": "blocks"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``rfrope``; without a command, print the help.

    Returns the exit code: 0 for success, 1 for what is wrong, 2 for bad input, 130 after Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # terminals without Greek letters must not fail
    command, options = "rfrope", argparse.Namespace()
    try:
        parser = make_parser()
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help()
            return 0
        options.words = list(sys.argv[1:] if arguments is None else map(str, arguments))
        command = f"rfrope {options.command}"
        code = contextvars.copy_context().run(_run, options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; nothing more to say
        return 0
    except KeyboardInterrupt:
        print_text(f"{command}: interrupted; no file was left half written", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, MemoryError) as error:
        print_text(printable(f"{command}: error: {_name_option(_message_of(error), options)}"), file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    """Run a command, whose text is made for the terminal; JSON is not broken."""
    results.WIDTH.set(None if options.json else shutil.get_terminal_size().columns)
    dispatch.BEFORE_COMPILING[:] = [say_compiling]
    try:
        check_files(options)
        return int(options.run(options) or 0)
    finally:
        dispatch.BEFORE_COMPILING.clear()


def say_compiling() -> None:
    """Say on stderr why the first command on a machine takes longer."""
    print_text("rfrope: compiling for the first run on this machine; this takes some seconds", file=sys.stderr)


def _message_of(error: Exception) -> str:
    """Return the message of an error, without the system's error number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)


def _name_option(text: str, options: argparse.Namespace) -> str:
    """Return an error whose first word, the name of an argument, is written as its option."""
    first = re.match(r"(--\S+ \S+: )?([a-z_]+)(?=(\[\d\])? (is|has) )", text)
    if first is None or first[2] in ("file", "kernels", "meant", "names", "source", "sources"):
        return text
    name = first[2] if hasattr(options, first[2]) else _OPTIONS.get(first[2], "")
    renamed = f"{text[: first.start(2)]}--{name.replace('_', '-')}{text[first.end(2) :]}"
    return renamed if hasattr(options, name) else text


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show words of the command line with escapes."""

    def error(self, message: str) -> NoReturn:
        """Print the error and stop."""
        super().error(printable(message))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands, from which shtab makes completion scripts."""
    parser = _Parser(
        prog="rfrope",
        description="Kernel engineering for rotary position embeddings. Exit codes: 0 for success, 1 for what is "
        "wrong, 2 for bad input.",
        epilog='Examples: rfrope design "matern(nu=1.5, scale=64)" --head-dim 64 --context 4096 -o rope.npz; '
        "rfrope check config.json; rfrope validate",
    )
    parser.add_argument("--version", action="version", version=f"rfrope {rfrope.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    return parser
