"""docs/support.inc against what calls of every public function find, on every library."""

from __future__ import annotations

import pathlib
import re

import pytest
import supported
from campaign import sparse
from conftest import library

TABLE = pathlib.Path(__file__).parents[2] / "docs" / "support.inc"
if not TABLE.is_file():
    pytest.skip("docs/ is not here", allow_module_level=True)

ROWS = [part.strip().split("\n     - ") for part in TABLE.read_text("utf-8").split("   * - ")[1:]]
NAMES = [row[0].strip("`") for row in ROWS[1:]]


def test_every_public_function_has_its_row():
    assert tuple(ROWS[0]) == supported.HEADS
    assert supported.names() == NAMES
    documented = re.findall(r"^   ((?:\w+\.)*\w+)$", (TABLE.parent / "api.rst").read_text("utf-8"), re.MULTILINE)
    functions = {name for name in documented if name.rpartition(".")[2][0].islower()} - NO_FUNCTIONS
    assert {name for name in functions if not {name, name.partition(".")[2]} & {*NAMES}} == set()


NO_FUNCTIONS = {"data.model_types.model_types"}  # tables of this package
KEPT = ("rotate", "packed_positions", "geometric", "kernels.names", "exports.export")


@pytest.mark.parametrize("name", sparse(supported.names(), lambda name: name in KEPT))
def test_a_row_says_what_calls_find(name):
    for of in ("torch", "jax", "dask"):
        library(of)
    told = ROWS[1 + NAMES.index(name)]
    found = [kept if one is None else one for one, kept in zip(supported.row(name), told, strict=True)]  # without MLX
    assert told == found


def test_the_finder_notices_values_that_are_asked_for(monkeypatch):
    library("dask")
    monkeypatch.setitem(supported.CALLS, "rotate", lambda a: [a([1.0, 2.0]) if a([1.0]).compute() else None])
    assert supported.lazily("rotate") == "computes"
    monkeypatch.setitem(supported.CALLS, "rotate", lambda a: [a([1.0, 2.0])])
    assert supported.lazily("rotate") == "lazy"
