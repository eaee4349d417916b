"""Mutations of the source: how they are made, and the table of those that were tried."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
if not (ROOT / "tools").is_dir():
    pytest.skip("tools/ is not here", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from tools import minimums, mutate, nearest, reported  # noqa: E402
from tools.mutations import Mutation, modules, mutations  # noqa: E402

SOURCE = '''"""Text with 1 + 1."""
LIMIT = 1e-9
def f(a, b=2):
    """Say 1 < 2."""
    if a < b and not a == LIMIT:
        raise ValueError(f"{a} is {1 + 2}")
    return g(a, b) * 2 - a
'''


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "rfrope"
    folder.mkdir()
    (folder / "one.py").write_text(SOURCE, "utf-8")
    return {one.after.strip(): one for one in mutations(tmp_path, "rfrope/one.py")}


def test_mutations_are_one_changed_line_each(made):
    lines = SOURCE.split("\n")
    for after, one in made.items():
        changed = one.applied(SOURCE).split("\n")
        assert [i for i, (old, new) in enumerate(zip(lines, changed, strict=True), 1) if old != new] == [one.line]
        assert changed[one.line - 1].strip() == after
        ast.parse(one.applied(SOURCE))
    with pytest.raises(AssertionError, match="is another now"):
        Mutation("m", "f", 1, "x = 1", "x = 2").applied("x = 3")


@pytest.mark.parametrize(
    "after",
    [
        *(
            "LIMIT = 1e-08",
            "def f(a, b=3):",
            "def f(a, b=1):",
            "if a <= b and not a == LIMIT:",
            "return (g(a, b) * 2) + a",
        ),
        *(
            "if (a < b) or (not a == LIMIT):",
            "if (a < b):",
            "if a < b and (a == LIMIT):",
            "if a < b and not a != LIMIT:",
        ),
        *(
            "return g(b, a) * 2 - a",
            "return g(a, b) / 2 - a",
            "return g(a, b) - a",
            "return a",
            "return g(a, b) * 3 - a",
        ),
    ],
)
def test_kinds_of_mutations(made, after):
    assert after in made


def test_messages_and_docstrings_are_left_alone(made):
    assert {one.line for one in made.values()} == {2, 3, 5, 7}


def test_a_mutation_keeps_its_name_where_other_lines_change(tmp_path, made):
    (tmp_path / "rfrope" / "one.py").write_text("x = 1\n\n" + SOURCE.partition("\n")[2], "utf-8")
    names = {one.name for one in mutations(tmp_path, "rfrope/one.py")}
    assert {one.name for one in made.values()} <= names


def test_the_table_has_a_reason_for_every_survivor():
    rows = mutate.table()
    assert len(rows) >= 200
    assert {row["module"].split("/")[1] for row in rows} >= {
        "_core",
        "_accel",
        "kernels",
        "designs",
        "heads",
        "rotation",
    }
    assert len({row["module"] for row in rows}) > 0.8 * len(modules(ROOT))
    assert [mutate.row_name(row) for row in rows if len(row["by"]) < 8] == []
    assert {row["outcome"] for row in rows} == {"killed", "survived"}


def test_what_was_reported_is_in_the_source_or_gone_from_the_list():
    """It raises for a line that is another now."""
    assert len(reported.mutations(ROOT)) == len(reported.REPORTED) >= 55
    assert len(reported.reasons(ROOT)) == len(reported.MAY_SURVIVE)


def test_the_page_is_that_of_the_table():
    assert mutate.PAGE.read_text("utf-8") == mutate.page(mutate.table())


def test_tests_nearest_to_a_line():
    found = {
        "tests/test_a.py::test_one": [5.0, {"rfrope/a.py": [1, 2, 3]}],
        "tests/test_a.py::test_two": [0.1, {"rfrope/a.py": [1, 2]}],
        "tests/test_b.py::test_three": [0.01, {"rfrope/a.py": [1, 2], "rfrope/b.py": [7]}],
    }
    assert nearest.tests(found, "rfrope/a.py", 2, 1.0) == ["tests/test_a.py::test_two", "tests/test_b.py::test_three"]
    assert nearest.tests(found, "rfrope/a.py", 3, 1.0) == ["tests/test_a.py::test_one"]
    assert nearest.tests(found, "rfrope/a.py", 99, 9.0)[0] == "tests/test_a.py::test_two"
    assert nearest.tests(found, "rfrope/_accel/cpu/circle.py", 1, 1.0) == nearest.BY_HAND["rfrope/_accel/cpu/circle.py"]


def test_minimums_are_those_of_the_project():
    told = dict(line.split("==") for line in minimums.minimums(("test",)))
    assert told["numpy"] == "2.0"
    assert {"scipy", "numba", "finufft", "pytest", "dask[array]"} <= set(told)
