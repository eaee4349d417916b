"""Mutate the package, and see whether the tests nearest to each change notice.

RFROPE_LINES_TO=lines.json python -m pytest -p tools.nearest    which test runs which line (Python 3.12 or later)
python -m tools.mutate campaign lines.json                      about 230 mutations of lines, into docs/mutations.csv
python -m tools.mutate campaign lines.json --meaning            about 360 by meaning, into the same table
python -m tools.mutate campaign --of-torch --number 45          of what needs PyTorch, by tests listed by hand
python -m tools.mutate again                                    a sample of those that were seen: is each still seen?
python -m tools.mutate reported                                 those that tools/reported.py lists

Every mutation is made in a copy of the tree, and tested in a process of its own. What survives is open until it has a
test, or goes from the source, or until the last column of the table says "equal: " and why behaviour cannot differ.
"""

from __future__ import annotations

import argparse
import collections
import compileall
import csv
import importlib
import importlib.util
import os
import pathlib
import random
import resource
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
from tools.mutations import Mutation, brief, chosen, modules, mutations

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / "docs" / "mutations.csv"
PAGE = ROOT / "docs" / "mutations.inc"  # included by docs/reliability.rst: those that survived
FIELDS = ("kind", "module", "function", "before", "after", "outcome", "by")
EQUAL = "equal: "  # how a reason begins that makes a survivor no question any more
SEED = 18
SECONDS = 5.0  # tests for one mutation, as they take without it
PATIENCE = 300  # seconds of one test, after which it does not end
ENDLESS, FATAL = " does not end", " ends the process"  # what follows the name of a test that cannot fail
UNIMPORTED = "it cannot be imported"
MEMORY = 8 * 2**30  # bytes of data that a mutation may take
# imported once, before processes are made of this one; rfrope itself only in these
BEFORE = ("pytest", "numpy", "scipy.special", "scipy.optimize", "scipy.stats", "tqdm", "mpmath")
BEFORE += ("array_api_compat.numpy", "array_api_strict", "numba.core.caching", "finufft", "matplotlib.pyplot", "torch")
BEFORE += ("hypothesis", "dask.array", "ml_dtypes", "safetensors.numpy")


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("campaign", help="mutate anew, and write the table")
    one.add_argument("lines", type=pathlib.Path, nargs="?", help="what tools.nearest wrote")
    one.add_argument("--of-torch", action="store_true", help="only what needs PyTorch, whose tests are listed by hand")
    one.add_argument("--meaning", action="store_true", help="mutations by meaning; without it, of lines")
    one.add_argument("--number", type=int, help="how many, about (230, or 360 by meaning)")
    one.add_argument("--survivors", action="store_true", help="only those that the table says survived")
    one.add_argument("--new", action="store_true", help="only those that the table has not")
    one.add_argument("--seconds", type=float, default=SECONDS, help="what tests for one mutation take without it")
    one.add_argument("--processes", type=int, default=2)
    one.add_argument("--only", nargs="*", default=[""], help="only modules whose path holds one of these texts")
    three = commands.add_parser("reported", help="those that an attack from outside reported as unseen")
    three.add_argument("--only", default="", help="only modules whose path holds this text")
    three.add_argument("--processes", type=int, default=2)
    commands.add_parser("page", help="drop rows whose lines are others now; write docs/mutations.inc from the table")
    two = commands.add_parser("again", help="check a sample of the table")
    two.add_argument("--number", type=int, default=24)
    given = parser.parse_args(arguments)
    if given.command == "page":
        write(present(table()))
        return 0
    for name in BEFORE:
        with suppress(ImportError):
            importlib.import_module(name)
    if given.command == "reported":
        work = [(one, tests) for one, tests in reported.mutations(ROOT) if given.only in one.module]
        return checked(work, reported.reasons(ROOT), given.processes)
    return campaign(given) if given.command == "campaign" else again(given.number)


def campaign(given: argparse.Namespace) -> int:
    """Mutations that a seed chooses, or those that survived, by the tests that run their lines.

    Rows of the table are kept, but for those whose lines are others now.
    """
    lines, rows = nearest.read(given.lines) if given.lines else {}, table()
    before = {row_name(row): row for row in present(rows)}
    among = nearest.OF_TORCH if given.of_torch else ("",)
    number = given.number or (360 if given.meaning else 230)
    if given.survivors:
        left = {name for name, row in before.items() if row["outcome"] != "killed"}
        asked = [one for one in everything({row["module"] for row in before.values()}) if one.name in left]
    else:
        asked = chosen(ROOT, number, SEED, among, meaning=given.meaning)
    asked = [one for one in asked if any(part in one.module for part in given.only) and can_be_tested(one.module)]
    asked = [one for one in asked if not (given.new and one.name in before)]
    asked.sort(key=lambda one: one.module.startswith("rfrope/_accel"))  # what takes longest comes last
    work = [(one, nearest.tests(lines, one.module, one.line, given.seconds)) for one in asked]
    for one, seen, by in judged(work, given.processes):
        known = before.get(one.name, {})
        by = by if seen else known["by"] if known.get("outcome") != "killed" and known else ""
        values = (one.kind, one.module, one.function, brief(one.before), brief(one.after), outcome(seen, by), by)
        before[one.name] = dict(zip(FIELDS, values, strict=True))
        write(before.values())
        print(f"{outcome(seen, by):9}{one.module}:{one.line} {one.kind} {one.function}: {one.after.strip()}  {by}")
        sys.stdout.flush()
    return 0


def outcome(seen: bool, by: str) -> str:
    """Whether a mutation is ``killed``, ``equal`` for a reason that says so, or ``open``."""
    return "killed" if seen else "equal" if by.startswith(EQUAL) and len(by) > len(EQUAL) + 10 else "open"


def can_be_tested(module: str) -> bool:
    """Whether what a module is for is installed."""
    needed = "transformers" if "integrations/" in module else "torch"
    return importlib.util.find_spec(needed) is not None or not module.endswith(nearest.OF_TORCH)


def again(number: int) -> int:
    """Whether a sample of the table is still seen by the tests that saw it, and nothing is open; 1 if not."""
    still_open = [row for row in table() if row["outcome"] == "open"]
    for row in still_open:
        print(f"open     {row_name(row)}")
    seen = [row for row in table() if row["outcome"] == "killed" and "::" in row["by"]]
    seen = [row for row in seen if not row["by"].endswith(ENDLESS)]  # they take the whole limit of a test
    random.Random(SEED).shuffle(seen)
    seen = seen[:number]
    there = {one.name: one for one in everything({row["module"] for row in seen})}
    work = [(there[row_name(row)], [named(row["by"])]) for row in seen if row_name(row) in there]
    print(f"{len(seen) - len(work)} of {len(seen)} lines are others now; {len(still_open)} of the table are open")
    return checked(work) or bool(still_open)


def checked(
    work: list[tuple[Mutation, list[str]]], reasons: Mapping[str, str] | None = None, processes: int = 2
) -> int:
    """Whether tests see mutations, but for those that are equal for a reason: 1 if not."""
    missed, allowed = 0, 0
    for one, seen, by in judged(work, processes):
        reason = by if seen else (reasons or {}).get(one.name, "")
        found = outcome(seen, reason)
        allowed += found == "equal"
        missed += found == "open"
        print(f"{found:9}{one.name}" + (f"  ({reason})" if reason and not seen else ""), flush=True)
    print(f"{len(work) - missed - allowed} of {len(work)} mutations were seen; {allowed} others are equal")
    return 1 if missed or not work else 0


def named(by: str) -> str:
    """The test that a row names."""
    return by.removesuffix(ENDLESS).removesuffix(FATAL)


def everything(names: set[str]) -> list[Mutation]:
    """All mutations of some modules."""
    return [one for module in modules(ROOT) if module in names for one in mutations(ROOT, module)]


def table() -> list[dict[str, str]]:
    """Rows of the table."""
    if not TABLE.exists():
        return []
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def present(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows whose lines are in the source as it is now."""
    there = {one.name for one in everything({row["module"] for row in rows})}
    return [row for row in rows if row_name(row) in there]


def row_name(row: dict[str, str]) -> str:
    """`Mutation.name` of a row."""
    return f"{row['module']} {row['function']}: {row['before']} -> {row['after']}"


def write(rows: Any) -> None:
    """Write the table, in the order of the modules."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        rows = [row | {"outcome": outcome(row["outcome"] == "killed", row["by"])} for row in rows]
        writer.writerows(sorted(rows, key=lambda row: [row[name] for name in FIELDS[1:]]))
    PAGE.write_text(page(table()), "utf-8")


def page(rows: list[dict[str, str]]) -> str:
    """Text of `PAGE`: how many of each kind are seen, and why what survived is equal."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 10 22 45 23", ""]
    left = [row for row in rows if row["outcome"] != "killed"]
    cells = [("Kind", "Module and function", "Change", "Why no test can see it")]
    for row in left:
        change = "``{before}`` to ``{after}``".format(**{name: _short(row[name]) for name in ("before", "after")})
        place = f"{row['module'].removeprefix('rfrope/')} {row['function']}"
        cells.append((row["kind"], f"``{place}``", change, row["by"].removeprefix(EQUAL) if row["by"] else "open"))
    for first, *others in cells:
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    kinds = collections.Counter(row["kind"] for row in rows)
    equal = sum(row["outcome"] == "equal" for row in left)
    numbers = f"{len(rows) - len(left)} are seen by tests, {equal} are equal, {len(left) - equal} are open"
    summary = f"Of {len(rows)} mutations ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}) {numbers}:"
    return "\n".join([summary, "", *lines, "", *_page_of_reported()]) + "\n"


def _page_of_reported() -> list[str]:
    """Those that were reported as unseen, and may be."""
    number, reasons = len(reported.REPORTED), reported.reasons(ROOT)
    lines = [f"Of {number} mutations of ``tools/reported.py`` {len(reasons)} are equal:", "", ".. list-table::"]
    lines += ["   :header-rows: 1", "   :widths: 72 28", "", "   * - Change", "     - Why no test can see it"]
    for name, reason in sorted(reasons.items()):
        module, _, change = name.partition(" reported: ")
        before, _, after = change.partition(" -> ")
        place = module.removeprefix("rfrope/")
        lines += [
            f"   * - ``{place}``: ``{_short(before)}`` to ``{_short(after)}``",
            f"     - {reason.removeprefix(EQUAL)}",
        ]
    return lines


def _short(line: str) -> str:
    """A line of source for a cell, its end left out where it is long."""
    return line.partition("  # ")[0][:110].replace("`", "'").strip()


# -- processes ---------------------------------------------------------------------------------------------------------


def judged(work: list[tuple[Mutation, list[str]]], processes: int = 2) -> Any:
    """Yield each mutation, whether it was seen, and the test that saw it.

    In the end tests that saw something run without a mutation: one that fails there has seen nothing.
    """
    proofs = set()
    for one, seen, by in _judged(work, processes):
        if seen and "::" in by:
            proofs.add(named(by))
        yield one, seen, by
    none = Mutation(
        "rfrope/__init__.py", "module", 1, *(2 * [(ROOT / "rfrope/__init__.py").read_text().split("\n")[0]])
    )
    for _, failed, by in _judged([(none, sorted(proofs))], 1) if proofs else ():
        if failed:
            raise RuntimeError(f"{by} fails without a mutation, too")


def _copied(tree: pathlib.Path) -> None:
    """Copy what tests need of the source."""
    wanted = ("rfrope", "tests", "tools", "docs", "benchmarks", "examples", "pyproject.toml", "README.md")
    tree.mkdir()
    for name in (*wanted, "CONTRIBUTING.md", "CHANGELOG.md", "asv.conf.json", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tree / name)
    compileall.compile_dir(tree, quiet=2)


def _judged(work: list[tuple[Mutation, list[str]]], processes: int) -> Any:
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trees = [pathlib.Path(folder) / str(i) for i in range(processes)]
        for tree in trees:
            _copied(tree)
        free, running, left = trees, {}, list(reversed(work))
        while left or running:
            while left and free:
                tree, (one, tests) = free.pop(), left.pop()
                source = (tree / one.module).read_text("utf-8")
                (tree / one.module).write_text(one.applied(source), "utf-8")
                said = tree / "said"
                said.unlink(missing_ok=True)
                running[started(tree, one, tests, said)] = (tree, one, source, said, time.time())
            time.sleep(0.05)
            for process, (tree, one, source, said, begun) in list(running.items()):
                found = ended(process, _last_heard(said, begun))
                if found is None:
                    continue
                del running[process]
                (tree / one.module).write_text(source, "utf-8")
                os.utime(
                    tree / one.module, ns=2 * ((ROOT / one.module).stat().st_mtime_ns,)
                )  # as what is compiled has it
                free.append(tree)
                by = said.read_text("utf-8") if said.exists() else None
                if found in (3, 5) or (found == 4 and by == ""):  # among them tests that are not there
                    raise RuntimeError(f"{one.name}: pytest ended with exit code {found}")
                yield one, bool(found), ending(found, by) if found else ""


def _last_heard(said: pathlib.Path, begun: float) -> float:
    """When the latest test began: many quick tests may take long together."""
    with suppress(OSError):
        return said.stat().st_mtime
    return begun


def ending(code: int, by: str | None) -> str:
    """The test that saw a mutation, and how, where it did not fail."""
    by = by or UNIMPORTED
    if code == -signal.SIGALRM:
        return f"{by}{ENDLESS}"
    return f"{by}{FATAL}" if code < 0 else by


def started(tree: pathlib.Path, one: Mutation, tests: list[str], said: pathlib.Path) -> int:
    """Begin the tests in a process of their own."""
    process = os.fork()
    if process:
        return process
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
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
    """Exit code of pytest; the latest test is written down, which is the first that failed."""
    import pytest

    class Say:
        def pytest_collection(self) -> None:
            said.touch()  # all could be imported so far

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            said.write_text(nodeid, "utf-8")

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed and report.nodeid:
                said.write_text(report.nodeid, "utf-8")

    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "--assert=plain",
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
    late = time.time() - begun > PATIENCE
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
