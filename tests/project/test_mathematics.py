"""The mathematics page: formulas numbered without gaps, each with its functions and an example."""

from __future__ import annotations

import functools
import pathlib
import re

import pytest
from campaign import campaign

import rfrope

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mathematics.rst"
if not PAGE.is_file():
    pytest.skip("docs/ is not here", allow_module_level=True)

TEXT = PAGE.read_text("utf-8")
FORMULAS = re.split(r"(?=\.\. math::)", TEXT)[1:]  # each with what follows it
SECTIONS = [int(number) for number in re.findall(r"^(\d+)\. .+\n-{4,}$", TEXT, re.MULTILINE)]


def tag(formula):
    section, number = re.search(r"\\tag\{(\d+)\.(\d+)\}", formula).groups()
    return int(section), int(number)


def test_formulas_are_numbered_without_gaps():
    tags = [tag(formula) for formula in FORMULAS]
    assert len(tags) == TEXT.count(r"\tag{")
    assert len(tags) >= 39
    assert tags == [(s, n) for s in SECTIONS for n in range(1, 1 + sum(section == s for section, _ in tags))]
    assert list(range(1, 9)) == SECTIONS
    for number in SECTIONS:
        assert f".. _mathematics-{number}:" in TEXT


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: "{}.{}".format(*tag(formula)))
def test_every_formula_has_its_function(formula):
    (functions,) = re.findall(r"^:Function: (.+)$", formula, re.MULTILINE)
    names = re.findall(r"`([\w.]+)`", functions)
    assert names
    for name in names:
        one = functools.reduce(getattr, name.split("."), rfrope)
        assert callable(one)
        assert one.__doc__


def test_every_formula_has_an_example():
    """One that stands at once before another, with no text between, may share its example."""
    for formula, after in zip(FORMULAS, [*FORMULAS[1:], ">>>"], strict=True):
        assert ">>> " in formula or ">>> " in after, tag(formula)
    assert sum(">>> " in formula for formula in FORMULAS) >= len(FORMULAS) - 2


def test_sections_that_docstrings_name_are_there():
    cited = set()
    for path in [*(ROOT / "rfrope").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        words = re.sub(r"\s+", " ", path.read_text("utf-8"))
        for found in re.findall(r"[Ss]ections? (\d+)(?: and (\d+))? of the mathematics page", words):
            cited |= {int(number) for number in found if number}
    assert cited <= set(SECTIONS)
    assert len(cited) > 4


@campaign
def test_no_file_cites_a_document_that_is_not_here():
    for folder in ("rfrope", "tests", "docs", "benchmarks", "examples"):
        for path in (path for kind in ("*.py", "*.rst", "*.md") for path in (ROOT / folder).rglob(kind)):
            for name in re.findall(r"\b([A-Z]{3,})\.md\b", path.read_text("utf-8")):
                assert list(ROOT.rglob(f"{name}.md")), f"{path.name} cites {name}.md"
