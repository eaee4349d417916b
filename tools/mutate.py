"""Mutate the package line by line, and see whether the tests nearest to each line notice.

RFROPE_LINES_TO=lines.json python -m pytest -p tools.nearest    which test runs which line (Python 3.12 or later)
python -m tools.mutate campaign lines.json                      about 230 mutations, into docs/mutations.csv
python -m tools.mutate campaign --of-torch --number 45          of what needs PyTorch, into the same table
python -m tools.mutate again                                    a sample of those that were seen: is each still seen?
python -m tools.mutate reported                                 those that tools/reported.py lists

Every mutation is made in a copy of the tree, and tested in a process of its own. What survives gets its reason by hand
in the last column of the table, or, better, a test, or goes from the source.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

from tools import nearest, reported
from tools.mutations import Mutation, chosen, modules, mutations

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / "docs" / "mutations.csv"
PAGE = ROOT / "docs" / "mutations.inc"  # included by docs/reliability.rst: those that survived
FIELDS = ("module", "function", "before", "after", "outcome", "by")
SEED = 18
SECONDS = 8.0  # tests for one mutation, as they take without it
PATIENCE = 900  # seconds until a mutation hangs
# imported once, before processes are made of this one; rfrope itself only in these
BEFORE = ("pytest", "numpy", "scipy.special", "scipy.optimize", "scipy.stats", "tqdm", "mpmath")
BEFORE += ("array_api_compat.numpy", "array_api_strict", "numba.core.caching", "finufft", "matplotlib.pyplot")


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("campaign", help="mutate anew, and write the table")
    one.add_argument("lines", type=pathlib.Path, nargs="?", help="what tools.nearest wrote")
    one.add_argument("--of-torch", action="store_true", help="only what needs PyTorch, whose tests are listed by hand")
    one.add_argument("--number", type=int, default=230)
    one.add_argument("--survivors", action="store_true", help="only those that the table says survived")
    one.add_argument("--only", default="", help="only modules whose path holds this text")
    three = commands.add_parser("reported", help="those that an attack from outside reported as unseen")
    three.add_argument("--only", default="", help="only modules whose path holds this text")
    commands.add_parser("page", help="write docs/mutations.inc from the table")
    two = commands.add_parser("again", help="check a sample of the table")
    two.add_argument("--number", type=int, default=24)
    given = parser.parse_args(arguments)
    if given.command == "page":
        write(table())
        return 0
    for name in BEFORE:
        with suppress(ImportError):
            importlib.import_module(name)
    if given.command == "reported":
        work = [(one, tests) for one, tests in reported.mutations(ROOT) if given.only in one.module]
        return checked(work, reported.reasons(ROOT))
    return campaign(given) if given.command == "campaign" else again(given.number)


def campaign(given: argparse.Namespace) -> int:
    """Mutations that a seed chooses, or those that survived, by the tests that run their lines.

    Rows of the table are kept, but for those whose lines are others now.
    """
    lines, rows = nearest.read(given.lines) if given.lines else {}, table()
    there = {one.name for one in everything({row["module"] for row in rows})}
    before = {row_name(row): row for row in rows if row_name(row) in there}
    among = nearest.OF_TORCH if given.of_torch else ("",)
    asked = chosen(ROOT, given.number, SEED, among)
    asked = [one for one in asked if given.only in one.module and can_be_tested(one.module)]
    if given.survivors:
        left = {name for name, row in before.items() if row["outcome"] == "survived"}
        asked = [one for one in everything({row["module"] for row in before.values()}) if one.name in left]
        asked = [one for one in asked if given.only in one.module]
    asked.sort(key=lambda one: one.module.startswith("rfrope/_accel"))  # what takes longest comes last
    work = [(one, nearest.tests(lines, one.module, one.line, SECONDS)) for one in asked]
    for one, outcome, by in judged(work):
        kept = before.get(one.name, {})
        reason = kept["by"] if outcome == kept.get("outcome") == "survived" else ""
        before[one.name] = dict(
            zip(
                FIELDS,
                (one.module, one.function, one.before.strip(), one.after.strip(), outcome, by or reason),
                strict=True,
            )
        )
        write(before.values())
        print(f"{outcome:9}{one.module}:{one.line} {one.function}: {one.after.strip()}  {by}", flush=True)
    return 0


def can_be_tested(module: str) -> bool:
    """Whether what a module is for is installed."""
    needed = "transformers" if "integrations/" in module else "torch"
    return importlib.util.find_spec(needed) is not None or not module.endswith(nearest.OF_TORCH)


def again(number: int) -> int:
    """Whether mutations of a sample of the table are still seen by the tests that saw them; 1 if not."""
    seen = [row for row in table() if row["outcome"] == "killed" and "::" in row["by"]]
    random.Random(SEED).shuffle(seen)
    seen = seen[:number]
    there = {one.name: one for one in everything({row["module"] for row in seen})}
    work = [(there[row_name(row)], [row["by"]]) for row in seen if row_name(row) in there]
    print(f"{len(seen) - len(work)} of {len(seen)} lines are others now")
    return checked(work)


def checked(work: list[tuple[Mutation, list[str]]], reasons: Mapping[str, str] | None = None) -> int:
    """Whether tests see mutations, but for those that have a reason why not: 1 if not."""
    missed, allowed = 0, 0
    for one, outcome, _ in judged(work):
        reason = "" if outcome == "killed" else (reasons or {}).get(one.name, "")
        allowed += bool(reason)
        missed += outcome != "killed" and not reason
        print(f"{outcome:9}{one.name}" + (f"  ({reason})" if reason else ""), flush=True)
    print(f"{len(work) - missed - allowed} of {len(work)} mutations were seen; {allowed} others have a reason")
    return 1 if missed or not work else 0


def everything(names: set[str]) -> list[Mutation]:
    """All mutations of some modules."""
    return [one for module in modules(ROOT) if module in names for one in mutations(ROOT, module)]


def table() -> list[dict[str, str]]:
    """Rows of the table."""
    if not TABLE.exists():
        return []
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row_name(row: dict[str, str]) -> str:
    """`Mutation.name` of a row."""
    return f"{row['module']} {row['function']}: {row['before']} -> {row['after']}"


def write(rows: Any) -> None:
    """Write the table, in the order of the modules."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: [row[name] for name in FIELDS]))
    PAGE.write_text(page(table()), "utf-8")


def page(rows: list[dict[str, str]]) -> str:
    """Text of `PAGE`: what survived, and why it may."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 22 50 28", ""]
    left = [row for row in rows if row["outcome"] == "survived"]
    cells = [("Module and function", "Change", "Why no test sees it")]
    for row in left:
        change = "``{before}`` to ``{after}``".format(**{name: _short(row[name]) for name in ("before", "after")})
        place = f"{row['module'].removeprefix('rfrope/')} {row['function']}"
        cells.append((f"``{place}``", change, row["by"]))
    for first, *others in cells:
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    seen = len(rows) - len(left)
    summary = f"Of {len(rows)} mutations {seen} are seen by tests; {len(left)} are not:"
    return "\n".join([summary, "", *lines, "", *_page_of_reported()]) + "\n"


def _page_of_reported() -> list[str]:
    """Those that were reported as unseen, and may be."""
    number, reasons = len(reported.REPORTED), reported.reasons(ROOT)
    lines = [f"Of {number} mutations of ``tools/reported.py`` {len(reasons)} may survive:", "", ".. list-table::"]
    lines += ["   :header-rows: 1", "   :widths: 72 28", "", "   * - Change", "     - Why no test needs to see it"]
    for name, reason in sorted(reasons.items()):
        module, _, change = name.partition(" reported: ")
        before, _, after = change.partition(" -> ")
        place = module.removeprefix("rfrope/")
        lines += [f"   * - ``{place}``: ``{_short(before)}`` to ``{_short(after)}``", f"     - {reason}"]
    return lines


def _short(line: str) -> str:
    """A line of source for a cell, its end left out where it is long."""
    return line.partition("  # ")[0][:110].replace("`", "'").strip()


# -- processes ---------------------------------------------------------------------------------------------------------


def judged(work: list[tuple[Mutation, list[str]]], processes: int = 2) -> Any:
    """Yield each mutation with ``killed`` or ``survived``, and the test that saw it."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trees = [pathlib.Path(folder) / str(i) for i in range(processes)]
        for tree in trees:
            wanted = (
                "rfrope",
                "tests",
                "tools",
                "docs",
                "benchmarks",
                "examples",
                "pyproject.toml",
                "README.md",
                "CONTRIBUTING.md",
                "CHANGELOG.md",
                "asv.conf.json",
                "LICENSE",
            )
            tree.mkdir()
            for name in wanted:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
                copy(ROOT / name, tree / name)
        free, running, left = trees, {}, list(reversed(work))
        while left or running:
            while left and free:
                tree, (one, tests) = free.pop(), left.pop()
                source = (tree / one.module).read_text("utf-8")
                (tree / one.module).write_text(one.applied(source), "utf-8")
                said = tree / "said"
                running[started(tree, one, tests, said)] = (tree, one, source, said, time.monotonic())
            time.sleep(0.05)
            for process, (tree, one, source, said, begun) in list(running.items()):
                found = ended(process, begun)
                if found is None:
                    continue
                del running[process]
                (tree / one.module).write_text(source, "utf-8")
                free.append(tree)
                by = said.read_text("utf-8") if said.exists() else ""
                said.unlink(missing_ok=True)
                if found in (3, 5):
                    raise RuntimeError(f"{one.name}: pytest ended with exit code {found}")
                yield one, "killed" if found else "survived", by or (ending(found) if found else "")


def ending(code: int) -> str:
    """What an exit code means that no failing test explains."""
    return "it hangs" if code == -signal.SIGALRM else "the process ends" if code < 0 else "it cannot be imported"


def started(tree: pathlib.Path, one: Mutation, tests: list[str], said: pathlib.Path) -> int:
    """Begin the tests in a process of their own."""
    process = os.fork()
    if process:
        return process
    code = 3
    try:
        os.setsid()
        os.chdir(tree)
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
        for name in [name for name in sys.modules if name == "tools" or name.startswith(("tools.", "rfrope"))]:
            del sys.modules[name]
        os.environ["PYTHONPATH"], os.environ["PYTHONDONTWRITEBYTECODE"] = str(tree), "1"
        sys.dont_write_bytecode = True
        if one.module.startswith("rfrope/_accel"):
            with suppress(ImportError):
                importlib.import_module("numba").config.CACHE_DIR = str(tree / "loops" / str(os.getpid()))
        with (
            open(os.environ.get("MUTATE_LOG", os.devnull), "a", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
        ):
            code = passed(tree, tests, said)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def passed(tree: pathlib.Path, tests: list[str], said: pathlib.Path) -> int:
    """Exit code of pytest; the first test that failed is written down."""
    import pytest

    class Say:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed and not said.exists():
                said.write_text(report.nodeid, "utf-8")

        def pytest_collectreport(self, report: Any) -> None:
            self.pytest_runtest_logreport(report)

    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "--rootdir",
        str(tree),
        "-c",
        str(tree / "pyproject.toml"),
    ]
    if all("::" in test for test in tests):
        options += ["-m", ""]  # one of the campaign, too
    return int(pytest.main([*options, *tests], plugins=[Say()]))


def ended(process: int, begun: float) -> int | None:
    """Exit code of a process, minus the signal that ended it; None while it runs."""
    late = time.monotonic() - begun > PATIENCE
    if late:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
    found, status = os.waitpid(process, 0 if late else os.WNOHANG)
    if not found:
        return None
    with suppress(ProcessLookupError):  # what its tests left running
        os.killpg(process, signal.SIGKILL)
    return -signal.SIGALRM if late else os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
