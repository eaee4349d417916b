"""The mathematics page: every formula names functions that there are."""

from __future__ import annotations

import functools
import pathlib
import re

import pytest

import rfrope

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "explain" / "mathematics.rst"


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_every_formula_has_its_functions():
    formulas = re.split(r"(?=\.\. math::)", PAGE.read_text("utf-8"))[1:]  # each with what follows it
    for formula in formulas:
        (functions,) = re.findall(r"^:Function: (.+)$", formula, re.MULTILINE)
        names = re.findall(r"`([\w.]+)`", functions)
        assert names
        for name in names:
            one = functools.reduce(getattr, name.split("."), rfrope)
            assert callable(one)
            assert one.__doc__
