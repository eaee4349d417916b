"""Mutations of the source: how they are made, and the table of those that were tried."""

from __future__ import annotations

import ast
import pathlib
import signal
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
if not (ROOT / "tools").is_dir():
    pytest.skip("tools/ is not here", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from tools import minimums, mutate, nearest, reported  # noqa: E402
from tools.meanings import KINDS  # noqa: E402
from tools.mutations import Mutation, brief, chosen, modules, mutations  # noqa: E402

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
    return {one.after.strip(): one for one in mutations(tmp_path, "rfrope/one.py") if one.kind == "line"}


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


MEANT = '''
@cache
def table(xp, size, *, start=0):
    """Text."""
    return xp.arange(size)
def f(x, known, axis=None, wide=False):
    if axis is None or x.ndim < 2:
        raise ValueError("no")
    check_shape(x)
    key = (x.shape, x.dtype)
    if key == known._last:
        return known.found
    if len(known) > 9 and not wide:
        known.clear()
    y = np.array(x)
    y *= known.scale
    for part in known:
        y += part
    low, high = np.min(y,
        axis=-1), np.max(y, axis=-1).T
    total = low * high
    z = replace(known, low=low, high=high)
    where = 0.0 if axis is None else axis
    return low * z.scale, {"low": np.float64(low), "high": high}
'''


@pytest.fixture
def meant(tmp_path):
    (tmp_path / "rfrope").mkdir()
    for name in ("one", "two"):
        (tmp_path / "rfrope" / f"{name}.py").write_text(MEANT, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("stale", "pass"),
        ("stale", "key = (x.dtype,)"),
        ("stale", "if True:"),
        ("stale", "@(lambda f, m={}: lambda *a, **k: m[a[:-1]] if"),
        ("copy", "y = x"),
        ("check", "if False:"),
        ("check", "if ((x.ndim < 2)):"),
        ("check", "pass"),
        ("guard", "if ((len(known) > 9)):"),
        ("field", "return low * z.scale, {'high': high}"),
        ("field", "z = replace(known, low=low)"),
        ("factor", "pass"),
        ("term", "pass"),
        ("return", "y += part break"),
        ("sign", "total = -(low * high)"),
        ("axes", "axis=0), np.max(y, axis=-1).T"),
        ("axes", "axis=-1), np.max(y, axis=-1)"),
        ("swapped", "high, low = np.min(y,"),
        ("swapped", "z = replace(known, low=high, high=low)"),
        ("keyword", "low, high = np.min(y), np.max(y, axis=-1).T"),
        ("default", "def f(x, known, axis=1, wide=False):"),
        ("default", "where = axis"),
        ("dtype", 'return low * z.scale, {"low": np.float32(low), "high": high}'),
    ],
)
def test_kinds_of_mutations_by_meaning(meant, kind, after):
    """Each parses; what is replaced may stand in several lines, and the name does not say how they are broken."""
    made = [one for one in mutations(meant, "rfrope/one.py") if one.kind == kind]
    for one in made:
        assert one.applied(MEANT) != MEANT
        ast.parse(one.applied(MEANT))
    assert [one for one in made if brief(one.after).startswith(after)], [brief(one.after) for one in made]


def test_all_kinds_are_chosen_before_one_is_twice(meant):
    """The same by one seed, from every module, and those alone that can be compiled."""
    found = chosen(meant, 2 * len(KINDS), 0, meaning=True)
    assert found == chosen(meant, 2 * len(KINDS), 0, meaning=True)
    assert {one.module for one in found} == {"rfrope/one.py", "rfrope/two.py"}
    assert {one.kind for one in found} == set(KINDS)
    assert len({one.name for one in found}) == len(found)
    few = chosen(meant, 4, 0, meaning=True)
    assert len([one for one in few if one.module == "rfrope/one.py"]) == 2
    assert {one.kind for one in chosen(meant, 9, 0)} == {"line"}


def test_no_survivor_of_the_table_is_open():
    """Each is seen by a test that is there, or equal for a reason that says why."""
    rows = mutate.table()
    assert sum(row["kind"] == "line" for row in rows) >= 200
    assert sum(row["kind"] != "line" for row in rows) >= 300
    assert len({row["module"] for row in rows}) > 0.8 * len(modules(ROOT))
    assert {row["kind"] for row in rows} == {"line", *KINDS}
    assert {row["outcome"] for row in rows} <= {"killed", "equal"}
    assert [
        mutate.row_name(row) for row in rows if row["outcome"] != mutate.outcome(row["outcome"] == "killed", row["by"])
    ] == []
    seen = {mutate.named(row["by"]) for row in rows if row["outcome"] == "killed"} - {mutate.UNIMPORTED}
    assert [by for by in sorted(seen) if not (ROOT / by.partition("::")[0]).is_file()] == []
    named = [by.partition("[")[0].split("::") for by in seen if by.startswith("tests/") and "::" in by]
    texts = {file: (ROOT / file).read_text("utf-8") for file, *_ in named}
    assert [names for names in named if f"def {names[-1]}(" not in texts[names[0]]] == []


def test_every_row_of_the_table_is_of_this_source():
    """``python -m tools.mutate page`` drops those whose lines are others now."""
    rows = mutate.table()
    kept = mutate.present(rows)
    assert [mutate.row_name(row) for row in rows if row not in kept] == []


def test_rows_whose_line_is_another_now_are_left_out(meant, monkeypatch):
    monkeypatch.setattr(mutate, "ROOT", meant)
    one = mutations(meant, "rfrope/one.py")[0]
    values = (one.kind, one.module, one.function, brief(one.before), brief(one.after), "killed", "tests/test_a.py::b")
    row = dict(zip(mutate.FIELDS, values, strict=True))
    gone = row | {"before": "x = 1"}
    assert mutate.present([gone, row, row | {"module": "rfrope/gone.py"}]) == [row]


@pytest.mark.parametrize(
    ("seen", "by", "expected"),
    [
        (True, "tests/test_a.py::test_one", "killed"),
        (False, "", "open"),
        (False, "speed alone", "open"),
        (False, "equal: ", "open"),
        (False, "equal: the factors of a product change places", "equal"),
    ],
)
def test_a_sentence_alone_is_no_reason(seen, by, expected):
    assert mutate.outcome(seen, by) == expected


def test_how_a_test_sees_what_it_does_not_fail_for():
    one = "tests/test_a.py::test_one"
    said = [mutate.ending(code, one) for code in (1, -signal.SIGALRM, -signal.SIGSEGV)]
    assert said == [one, f"{one} does not end", f"{one} ends the process"]
    assert {mutate.named(by) for by in said} == {one}
    assert mutate.ending(4, None) == mutate.UNIMPORTED


def test_a_test_that_fails_without_a_mutation_has_seen_nothing(made, monkeypatch):
    """The last run is of all tests that saw something, on the source as it is."""
    one, asked, fails = next(iter(made.values())), [], False

    def judged(work, processes):
        asked.append(work)
        yield work[0][0], len(asked) == 1 or fails, "tests/test_a.py::test_one"

    monkeypatch.setattr(mutate, "_judged", judged)
    assert [seen for _, seen, _ in mutate.judged([(one, ["tests/test_a.py"])])] == [True]
    ((none, tests),) = asked[1]
    assert (none.before, tests) == (none.after, ["tests/test_a.py::test_one"])
    asked.clear()
    fails = True
    with pytest.raises(RuntimeError, match=r"test_one fails without a mutation, too"):
        list(mutate.judged([(one, ["tests/test_a.py"])]))


def test_an_open_row_fails_what_ci_runs(monkeypatch, capsys):
    row = dict(zip(mutate.FIELDS, ("sign", "rfrope/a.py", "f", "x", "-x", "open", ""), strict=True))
    monkeypatch.setattr(mutate, "table", lambda: [row])
    monkeypatch.setattr(mutate, "checked", lambda work: 0)
    assert mutate.again(3) == 1
    assert "open     rfrope/a.py f: x -> -x" in capsys.readouterr().out
    monkeypatch.setattr(mutate, "table", lambda: [row | {"outcome": "equal"}])
    assert mutate.again(3) == 0


def test_what_was_reported_is_in_the_source_or_gone_from_the_list():
    """It raises for a line that is another now."""
    assert len(reported.mutations(ROOT)) == len(reported.REPORTED) >= 95
    reasons = reported.reasons(ROOT)
    assert len(reasons) == len(reported.MAY_SURVIVE)
    assert {mutate.outcome(False, reason) for reason in reasons.values()} == {"equal"}


def test_the_page_is_that_of_the_table():
    assert mutate.PAGE.read_text("utf-8") == mutate.page(mutate.table())


def test_tests_nearest_to_a_line():
    found = {
        "tests/test_a.py::test_one": [5.0, {"rfrope/a.py": [1, 2, 3]}],
        "tests/test_a.py::test_two": [0.1, {"rfrope/a.py": [1, 2]}],
        "tests/test_b.py::test_three": [0.01, {"rfrope/a.py": [1, 2], "rfrope/b.py": [7]}],
    }
    assert nearest.tests(found, "rfrope/a.py", 2, 2.0) == ["tests/test_a.py::test_two", "tests/test_b.py::test_three"]
    assert nearest.tests(found, "rfrope/a.py", 3, 1.0) == ["tests/test_a.py::test_one"]
    assert nearest.tests(found, "rfrope/a.py", 99, 9.0)[0] == "tests/test_a.py::test_two"
    assert nearest.tests(found, "rfrope/_accel/cpu/circle.py", 1, 1.0) == nearest.BY_HAND["rfrope/_accel/cpu/circle.py"]


def test_minimums_are_those_of_the_project():
    told = dict(line.split("==") for line in minimums.minimums(("test",)))
    assert told["numpy"] == "2.0"
    assert {"scipy", "numba", "finufft", "pytest", "dask[array]"} <= set(told)
