"""The mathematics pages: every formula names functions that there are."""

import functools
import pathlib
import re

import pytest

import rfrope

PAGES = sorted((pathlib.Path(__file__).parents[2] / "docs" / "explain").glob("mathematics*.rst"))


@pytest.mark.skipif(not PAGES, reason="docs/ is not here")
def test_every_formula_has_its_functions():
    formulas = [one for page in PAGES for one in re.split(r"(?=\.\. math::)", page.read_text("utf-8"))[1:]]
    for formula in formulas:
        (functions,) = re.findall(r"^:Function: (.+)$", formula, re.MULTILINE)
        names = re.findall(r"`([\w.]+)`", functions)
        assert names
        for name in names:
            one = functools.reduce(getattr, name.split("."), rfrope)
            assert callable(one)
            assert one.__doc__
