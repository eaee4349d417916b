"""Check what no other linter checks: lengths, budget, private names, clocks in tests, tests that are named, words.

python -m tools.lint            all but words fail, which are counted
python -m tools.lint --words    words fail, too
"""

from __future__ import annotations

import argparse
import ast
import io
import pathlib
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
LONGEST_BODY, LONGEST_READER, LONGEST_MODULE = 60, 80, 500
READERS = re.compile(r"_*(read|report)(_|$)")  # straight-line functions, which a reader follows from top to bottom
OPENING = re.compile(r"(What|Whether|How|Where|Which|Of|Whose)\b")
PREPOSITIONS = re.compile(
    r"_*(of|at|in|by|on|for|with|within|without|beside|under|over|through|after|before|between|beyond|around|into"
    r"|along|among|as)(_|$)"
)
# a machine may be slow or busy: speed is what benchmarks/ measures
CLOCK = re.compile(
    r"perf_counter|process_time|thread_time|monotonic|\btime\.time\(|\btimeit\b|getrusage|os\.times\(|datetime\.now"
    r"|deadline=(?!None)|pytest\.mark\.timeout"
)
# the wing of each package that knows other people's software; all else is the core
UPPER = ("cli", "engines", "integrations", "models")
SLACK = 1.03  # by which a budget may lie above what there is
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}
MAY_NAME_CLOCKS = {"test_benchmarks.py"}  # puts clocks of its own in the place of the real one


def main(arguments: list[str] | None = None) -> int:
    """Print every finding; return 1 if there is one that fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.lint", description=__doc__.partition("\n")[0])
    parser.add_argument("--words", action="store_true", help="fail for words, too")
    options = parser.parse_args(arguments)
    findings, words = [], []
    for path in sorted((ROOT / "rfrope").rglob("*.py")):
        text = path.read_text("utf-8")
        tree, place = ast.parse(text), path.relative_to(ROOT)
        findings += [f"{place}:{line}" for line in [*lengths(path.name, text, tree), *private_names(tree)]]
        words += [f"{place}:{line}" for line in strange_words(tree)]
    findings += [f"{path.relative_to(ROOT)}:{line}" for path in (ROOT / "tests").rglob("*.py") for line in clocks(path)]
    findings += [*missing_tests(), *over_budget()]
    print("\n".join([*findings, *(words if options.words else [f"words to be said otherwise: {len(words)}"])]))
    return 1 if findings or (options.words and words) else 0


def lengths(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    """Yield modules and functions that are too long; compiled loops may be, since their calls cost compile time."""
    lines = len(text.splitlines()) - sum(map(shown, ast.walk(tree)))
    if lines > LONGEST_MODULE:
        yield f"1: {lines} lines without examples and links; at most {LONGEST_MODULE}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not name.endswith("_loops.py"):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            most = LONGEST_READER if READERS.match(node.name) else LONGEST_BODY
            if lines > most:
                yield f"{node.lineno}: the body of {node.name} has {lines} lines; at most {most}"


def shown(node: ast.AST) -> int:
    """Return how many lines of a docstring are examples, and links to other pages."""
    text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
    parts = re.split(r"^(\w[\w ]+)\n-{3,}$", text or "", flags=re.MULTILINE)[1:]
    sections = zip(parts[::2], parts[1::2], strict=True)
    return sum(2 + len(body.strip().splitlines()) for name, body in sections if name in ("Examples", "See Also"))


def private_names(tree: ast.Module) -> Iterator[str]:
    """Yield private names that a module takes from another; a module or package with an underscore may be taken."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rfrope"):
            for alias in node.names:
                if is_module(f"{node.module}.{alias.name}"):
                    imported.add(alias.asname or alias.name)
                elif alias.name.startswith("_"):
                    yield f"{node.lineno}: imports {alias.name}, which is private to {node.module}"
    for node in ast.walk(tree):
        taken = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
        if taken and re.match(r"_[A-Za-z]", node.attr) and not is_module(f"rfrope.{node.attr}"):
            yield f"{node.lineno}: {node.value.id}.{node.attr} is private to its module"


def is_module(name: str) -> bool:
    """Return whether there is a package or a module of that dotted name."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def strange_words(tree: ast.Module) -> Iterator[str]:
    """Yield docstrings whose first line does not say what comes back, and functions named by a preposition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            docstring, line = ast.get_docstring(node) or "", getattr(node, "lineno", 1)
            if OPENING.match(docstring):
                yield f"{line}: {docstring.splitlines()[0]}"
        if isinstance(node, ast.FunctionDef) and PREPOSITIONS.match(node.name):
            yield f"{node.lineno}: {node.name} begins with a preposition; a function is named by a verb and a noun"


def clocks(path: pathlib.Path) -> Iterator[str]:
    """Yield lines of a test that read a clock."""
    if path.name not in MAY_NAME_CLOCKS:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if CLOCK.search(line):
                yield f"{number}: a test reads a clock: {line.strip()}"


def missing_tests() -> Iterator[str]:
    """Yield files of tests that CI or the documentation names and that are not there."""
    named = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for pattern in (".ci/*", "docs/**/*.rst", "docs/**/*.md"):
        named += ROOT.glob(pattern)
    for path in named:
        for test in re.findall(r"\btests/[\w/]+\.py", path.read_text("utf-8")):
            if not (ROOT / test).is_file():
                yield f"{path.relative_to(ROOT)}: {test} is not there"


def code_lines(path: pathlib.Path) -> int:
    """Return how many lines hold code: not those that are blank, comments or docstrings."""
    text = path.read_text("utf-8")
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            lines -= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    return len(lines)


def sizes() -> dict[str, int]:
    """Return what the budget limits: lines of code of each wing and of the tests, and words of the documentation."""
    found = {"core": 0, "upper": 0}
    for path in (ROOT / "rfrope").rglob("*.py"):
        found["upper" if path.relative_to(ROOT).parts[1] in UPPER else "core"] += code_lines(path)
    for folder in ("tests", "experiments", "benchmarks", "tools"):
        found[folder] = sum(map(code_lines, (ROOT / folder).rglob("*.py")))
    pages = [
        one for one in (ROOT / "docs").rglob("*") if one.suffix in (".rst", ".md") and "generated" not in one.parts
    ]
    found["words"] = sum(len(one.read_text("utf-8").split()) for one in pages if "gallery" not in one.parts)
    return found


def over_budget() -> Iterator[str]:
    """Yield what is above its budget, and budgets that can be lowered."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["rfrope"]["budget"]
    for name, size in sizes().items():
        if size > budget[name]:
            yield f"pyproject.toml: {name} has {size}, the budget is {budget[name]}: make it lighter"
        elif budget[name] > SLACK * size:
            yield f"pyproject.toml: {name} has {size}, the budget is {budget[name]}: lower it"


if __name__ == "__main__":
    sys.exit(main())
