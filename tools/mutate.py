"""Make mistakes in the package that a person would make, and see whether tests notice.

python -m tools.mutate campaign             about 360 mutations of all modules, into docs/_data/mutations.csv
python -m tools.mutate campaign --only rope.py scores.py --number 900 --new     more of some modules
python -m tools.mutate campaign --survivors --tests tests/rotation/test_rope.py           what survived, by other tests
python -m tools.mutate page                 drop rows whose lines are others now; write the page of the table
python -m tools.mutate again                a sample of those that were seen: is each still seen?

Every mutation is made in a copy of the tree, and tested in a process of its own, by the tests of its module: those that
have the module's name, or its folder's. A survivor is open until it has a test, or goes from the source, or until the
last column of the table says "equal: " and why behaviour cannot differ.
"""

from __future__ import annotations

import argparse
import collections
import compileall
import csv
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
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import Any

from tools.mutations import Mutation, brief, chosen, modules, mutations

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / "docs" / "_data" / "mutations.csv"
REFUSALS = "tests/test_refusals.py"
PAGE = ROOT / "docs" / "_data" / "mutations.inc"  # included by docs/project/reliability.rst: those that survived
FIELDS = ("kind", "module", "function", "before", "after", "outcome", "by")
EQUAL = "equal: "  # how a reason begins that makes a survivor no question any more
SEED = 18
PATIENCE = 300  # seconds of one test, after which it does not end
ENDLESS, FATAL = " does not end", " ends the process"  # what follows the name of a test that cannot fail
UNIMPORTED = "it cannot be imported"
MEMORY = 8 * 2**30  # bytes of data that a mutation may take
OF_TORCH = ("torch", "layers/", "integrations/")  # paths of what needs PyTorch
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
    one.add_argument("--number", type=int, default=360, help="how many, about")
    one.add_argument("--survivors", action="store_true", help="only those that the table says survived")
    one.add_argument("--new", action="store_true", help="only those that the table has not")
    one.add_argument("--only", nargs="*", default=[""], help="only modules whose path holds one of these texts")
    one.add_argument("--tests", nargs="*", default=[], help="files of tests, in the place of those of the module")
    one.add_argument("--processes", type=int, default=2)
    commands.add_parser(
        "page", help="drop rows whose lines are others now; write docs/_data/mutations.inc from the table"
    )
    two = commands.add_parser("again", help="check a sample of the table")
    two.add_argument("--number", type=int, default=12)
    options = parser.parse_args(arguments)
    if options.command == "page":
        write(present(table()))
        return 0
    for name in BEFORE:
        with suppress(ImportError):
            importlib.import_module(name)
    return campaign(options) if options.command == "campaign" else again(options.number)


def campaign(options: argparse.Namespace) -> int:
    """Try mutations that a seed chooses, or those that survived; rows of the table are kept if their lines are."""
    rows = {row_name(row): row for row in present(table())}
    if options.survivors:
        left = {name for name, row in rows.items() if row["outcome"] != "killed"}
        asked = [one for one in everything({row["module"] for row in rows.values()}) if one.name in left]
    else:
        asked = chosen(ROOT, options.number, SEED)
    asked = [one for one in asked if any(part in one.module for part in options.only) and can_be_tested(one.module)]
    asked = [one for one in asked if not (options.new and one.name in rows)]
    work = [(one, options.tests or tests_of(one.module)) for one in asked]
    for one, seen, by in judged(work, options.processes):
        known = rows.get(one.name, {})
        by = by if seen else known["by"] if known.get("outcome") != "killed" and known else ""
        values = (one.kind, one.module, one.function, brief(one.before), brief(one.after), outcome(seen, by), by)
        rows[one.name] = dict(zip(FIELDS, values, strict=True))
        write(rows.values())
        print(f"{outcome(seen, by):9}{one.module}:{one.line} {one.kind} {one.function}: {one.after.strip()}  {by}")
        sys.stdout.flush()
    return 0


def tests_of(module: str) -> list[str]:
    """Return the file of tests with a module's name, in its folder or one of that name, or the folder; and refusals."""
    path = pathlib.PurePosixPath(module).relative_to("rfrope").with_suffix("")
    folder = ROOT / "tests" / str(path.parent).replace("_backends/cuda", "cuda").removeprefix("_")
    while not folder.is_dir():
        folder = folder.parent
    places = (folder, ROOT / "tests", ROOT / "tests" / path.name)
    named = [file for one in places if (file := one / f"test_{path.name}.py").is_file()][:1]
    found = named or ([folder] if folder.name != "tests" else sorted(folder.glob("test_*.py")))
    return [*(one.relative_to(ROOT).as_posix() for one in found), REFUSALS]


def outcome(seen: bool, by: str) -> str:
    """Whether a mutation is ``killed``, ``equal`` for a reason that says so, or ``open``."""
    return "killed" if seen else "equal" if by.startswith(EQUAL) and len(by) > len(EQUAL) + 10 else "open"


def can_be_tested(module: str) -> bool:
    """Return whether what a module is for is installed."""
    needed = "transformers" if "integrations/" in module else "torch"
    return not any(part in module for part in OF_TORCH) or importlib.util.find_spec(needed) is not None


def again(number: int) -> int:
    """Try a sample of the table; 1 if one is not seen, or a row is open, or no row is left.

    It is tried by the test that saw it, and by all of its module and the tables of refusals where that is gone or
    does not see it. Rows whose line is gone are left out: ``page`` drops them, ``campaign`` tries others.
    """
    rows = table()
    still_open = [row for row in rows if row["outcome"] == "open"]
    for row in still_open:
        print(f"open     {row_name(row)}")
    there = {one.name: one for one in everything({row["module"] for row in rows})}
    seen = [row for row in rows if row["outcome"] == "killed" and can_be_tested(row["module"])]
    kept = [row for row in seen if row_name(row) in there]
    random.Random(SEED).shuffle(kept)
    before = {row_name(row): row["by"].removesuffix(FATAL).partition("[")[0] for row in kept[:number]}
    known = [(there[name], [by]) for name, by in before.items() if is_there(by)]
    now = {one.name: by for one, found, by in judged(known) if found}
    missed = [(there[name], tests_of(there[name].module)) for name in before if name not in now]
    now |= {one.name: by for one, found, by in judged(missed) if found}
    for name, by in before.items():
        print(f"{outcome(name in now, ''):9}{name}  before: {by}  now: {now.get(name, 'none')}")
    print(f"{len(now)} of {len(before)} mutations were seen; {len(kept)} of {len(rows)} rows could be tried")
    return int(bool(still_open or not before or len(now) < len(before)))


def is_there(by: str) -> bool:
    """Return whether a row names a test that exists, and that ends."""
    path, _, name = by.removesuffix(FATAL).partition("::")
    name = name.partition("[")[0].rpartition("::")[2]
    file = ROOT / path
    return bool(name) and file.suffix == ".py" and file.is_file() and f"def {name}(" in file.read_text("utf-8")


def everything(names: set[str]) -> list[Mutation]:
    """Return all mutations of some modules."""
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
    return "\n".join([summary, "", *lines]) + "\n"


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
            proofs.add(by.removesuffix(ENDLESS).removesuffix(FATAL))
        yield one, seen, by
    line = (ROOT / "rfrope/__init__.py").read_text("utf-8").split("\n")[0]
    none = Mutation("rfrope/__init__.py", "module", 1, line, line, "none")
    for _, failed, by in _judged([(none, sorted(proofs))], 1) if proofs else ():
        if failed:
            raise RuntimeError(f"{by} fails without a mutation, too")


def _copied(tree: pathlib.Path) -> None:
    """Copy what tests need of the source."""
    folders = ("rfrope", "tests", "tools", "docs", "benchmarks", "examples", "experiments")
    files = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "asv.conf.json", "LICENSE")
    copytree = partial(shutil.copytree, ignore=shutil.ignore_patterns("__pycache__"))  # which other tests write
    for name in folders + files:
        copy = copytree if (ROOT / name).is_dir() else shutil.copy2
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
                compiled = (ROOT / one.module).stat().st_mtime_ns
                os.utime(tree / one.module, ns=(compiled, compiled))
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
        os.chdir(tempfile.mkdtemp(dir=tree.parent))  # a mutation may write what the next one would fall over
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
        for name in [name for name in sys.modules if name == "tools" or name.startswith(("tools.", "rfrope"))]:
            del sys.modules[name]
        os.environ["PYTHONPATH"], os.environ["PYTHONDONTWRITEBYTECODE"] = str(tree), "1"
        sys.dont_write_bytecode = True
        if one.module.startswith("rfrope/_backends"):
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

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--assert=plain"]
    options += ["--rootdir", str(tree), "-c", str(tree / "pyproject.toml")]
    if all("::" in test for test in tests):
        options += ["-m", ""]  # one of the campaign, too
    return int(pytest.main([*options, *(str(tree / test) for test in tests)], plugins=[Say()]))


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
