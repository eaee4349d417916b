"""The suite is a covering choice of the campaign, and no test asserts a time."""

from __future__ import annotations

import itertools
import pathlib
import re
import subprocess
import sys
import types

import campaign
import conftest
import pytest
from campaign import HANGS, covering, one_of, sparse

TESTS = pathlib.Path(__file__).parent
LIBRARIES = (*conftest.LIBRARIES, *conftest.CUDA_LIBRARIES)


class Item:
    """As much of a pytest item as the choice looks at."""

    def __init__(self, function: str, params: dict[str, object], *marks: str) -> None:
        self.name = f"{function}[{'-'.join(map(str, params.values()))}]"
        self.callspec = types.SimpleNamespace(params=params)
        self.module, self.cls, self.originalname = None, None, function
        self.marks = list(marks)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


def grid(function: str = "test", **parameters) -> list[Item]:
    combinations = itertools.product(*parameters.values())
    return [Item(function, dict(zip(parameters, values, strict=True))) for values in combinations]


GRIDS = {
    "one parameter": grid(a=range(7)),
    "three parameters": grid(a=range(5), b="xyz", c=[1.0, None, (2, 3)]),
    "libraries": grid(xp=LIBRARIES, dtype=["float64", "float32", "float16"], shape=[(), (3,), (2, 3), (0,)]),
    "many values for the libraries": grid(xp=LIBRARIES, kernel=range(40)),
    "libraries that need not be here": grid(name=["torch", "jax"], form=range(4)),
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_value_is_in_the_suite_and_few_are_there_twice(name):
    items = GRIDS[name]
    chosen, every = covering(items), [item.callspec.params.items() for item in items]
    held = [item.callspec.params.items() for item in chosen]
    assert {pair for pairs in held for pair in pairs} == {pair for pairs in every for pair in pairs}
    lengths = [len({pairs[key] for pairs in map(dict, every)}) for key in dict(every[0])]
    assert max(lengths) <= len(chosen) <= max(lengths) + len(campaign.OPTIONAL)
    assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize("name", GRIDS)
def test_the_choice_does_not_depend_on_the_order(name):
    items = GRIDS[name]
    assert {item.name for item in covering(items[::-1])} == {item.name for item in covering(items)}


@pytest.mark.parametrize("name", ["libraries", "many values for the libraries"])
def test_no_value_is_left_to_a_library_that_may_be_missing(name):
    """And the slow library is taken once, as are those that may be missing."""
    chosen = [item.callspec.params for item in covering(GRIDS[name])]
    always = [params for params in chosen if params["xp"] not in campaign.OPTIONAL]
    for key in chosen[0].keys() - {"xp"}:
        assert {params[key] for params in always} == {item.callspec.params[key] for item in GRIDS[name]}
    for library in (*campaign.OPTIONAL, *campaign.SLOW):
        assert sum(params["xp"] == library for params in chosen) == 1


def test_parameters_are_marked_by_what_they_are():
    values = sparse([1, 2, 3], lambda value: value == 2)
    assert [getattr(value, "values", (value,)) for value in values] == [(1,), (2,), (3,)]
    assert [value == 2 or [mark.name for mark in value.marks] for value in values] == [["campaign"], True, ["campaign"]]
    assert [value for value in one_of(["ab", "cd", "efg", "h"], len) if isinstance(value, str)] == ["cd", "efg", "h"]


def test_what_is_not_chosen_is_marked_and_what_is_marked_is_not_chosen():
    items = [*grid("one", a=range(3), b="xyz"), *grid("other", a=range(2)), Item("other", {"a": 2}, "campaign")]
    before = list(items)
    conftest.pytest_collection_modifyitems(None, items)
    assert items == before
    suite = [item for item in items if "campaign" not in item.marks]
    assert [item.name for item in suite if item.originalname == "other"] == ["other[0]", "other[1]"]
    assert len([item for item in suite if item.originalname == "one"]) == 3


@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
def test_each_of_a_grid(a, b):
    assert a in range(3)
    assert b in range(3)


@pytest.mark.parametrize(
    ("options", "count"),
    [([], 3), (["-m", ""], 9), pytest.param(["-m", "campaign"], 6, marks=campaign.campaign)],
    ids=str,
)
def test_the_command_line_chooses(options, count):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    place = f"{pathlib.Path(__file__).relative_to(TESTS.parent)}::test_each_of_a_grid"
    done = subprocess.run([*command, place], capture_output=True, text=True, timeout=HANGS, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("test_each_of_a_grid[") == count


# -- time --------------------------------------------------------------------------------------------------------------

CLOCK = re.compile(
    r"perf_counter|process_time|thread_time|monotonic|\btime\.time\(|\btimeit\b|getrusage|os\.times\(|datetime\.now"
    r"|deadline=(?!None)|pytest\.mark\.timeout"
)
MAY_NAME_CLOCKS = {
    "test_benchmarks.py": "puts clocks of its own in the place of the real one, to test what measures",
    "test_campaign.py": "this list",
}


def test_no_test_asserts_a_time():
    """A machine may be slow, or busy: speed is what benchmarks/ measures."""
    naming = {path.name for path in TESTS.rglob("*.py") if CLOCK.search(path.read_text("utf-8"))}
    assert naming == set(MAY_NAME_CLOCKS), "measure in benchmarks/, or say in MAY_NAME_CLOCKS why it is not a measure"


@pytest.mark.parametrize(
    "text",
    ["start = time.perf_counter()", "from time import process_time", "t = time.time()", "@settings(deadline=500)"],
)
def test_a_clock_is_seen(text):
    assert CLOCK.search(text)
    assert not CLOCK.search("@settings(deadline=None)\ndef test_at_a_time(): time.sleep(0.1)")
