"""How the package is laid out: sizes of functions and modules, what modules take of each other, the table of layers."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
MODULES = {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in (ROOT / "rfrope").rglob("*.py")}
LONGEST_BODY, LONGEST_MODULE = 45, 500


def body_lines(function: ast.FunctionDef) -> int:
    """Lines from the first statement to the last, the docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def is_module(name: str) -> bool:
    """Whether there is a package or a module of that dotted name."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def too_long(path: pathlib.Path, tree: ast.Module) -> list[str]:
    """Functions whose bodies are too long; compiled loops may be, since calls with arrays cost compile time."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    loops = path.name.endswith("_loops.py")
    return [one.name for one in functions if not loops and body_lines(one) > LONGEST_BODY]


def private_imports(tree: ast.Module) -> list[str]:
    """Private names that a module takes of another; a module or package with an underscore is none."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rfrope"):
            names = [f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")]
            found += [name for name in names if not is_module(name)]
    return found


def private_uses(tree: ast.Module) -> list[str]:
    """Private names that a module asks of a module it imported."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rfrope")
        for alias in node.names
        if is_module(f"{node.module}.{alias.name}")
    }
    return [
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
        if re.match(r"_[A-Za-z]", node.attr) and node.attr not in ("_accel", "_core")
    ]


def test_no_function_is_long():
    assert {str(path): names for path, tree in MODULES.items() if (names := too_long(path, tree))} == {}


def test_no_module_is_long():
    lengths = {str(path): len((ROOT / path).read_text("utf-8").splitlines()) for path in MODULES}
    assert {path: length for path, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_no_module_takes_what_is_private_to_another():
    found = {
        str(path): names for path, tree in MODULES.items() if (names := private_imports(tree) + private_uses(tree))
    }
    assert found == {}


def test_the_checks_above_see_what_they_look_for():
    source = (
        "def f():\n"
        + "    x = 1\n" * 46
        + "from rfrope.scaling import schemes\nfrom rfrope.scaling.schemes import _read\n"
    )
    tree = ast.parse(source + "schemes._read(1)\n")
    assert too_long(pathlib.Path("rfrope/a.py"), tree) == ["f"]
    assert too_long(pathlib.Path("rfrope/a_loops.py"), tree) == []
    assert private_imports(tree) == ["rfrope.scaling.schemes._read"]
    assert private_uses(tree) == ["schemes._read"]


def table_of_layers() -> list[list[str]]:
    """Modules of each row of the table in CONTRIBUTING.md, from the top."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| \d+ \| (.*?) \|", text, re.MULTILINE)
    return [[name.rstrip("/") for name in re.findall(r"`([a-z_]+/?)`", row)] for row in rows]


def contract() -> list[list[str]]:
    """Modules of each layer of the first contract of import-linter, from the top."""
    tomllib = pytest.importorskip("tomllib")
    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[name.strip().removeprefix("rfrope.") for name in layer.split("|")] for layer in told]


def test_the_table_of_layers_is_the_contract_and_the_tree():
    table = table_of_layers()
    assert [sorted(row) for row in table] == [sorted(row) for row in contract()]
    tree = {path.parts[1].removesuffix(".py") for path in MODULES} - {"__init__"}
    assert {name for row in table for name in row} == tree
