"""The statements of the seeds hold, each within its bound; the page's table lists them all."""

from __future__ import annotations

import functools
import pathlib

import pytest
from theorems import CLAIMS

import rfrope

TABLE = pathlib.Path(__file__).parents[2] / "docs" / "theorems_table.inc"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.source)
def test_statement(claim):
    assert claim.error() <= claim.bound
    for name in claim.functions:
        assert callable(functools.reduce(getattr, name.split("."), rfrope))


def test_every_source_is_there():
    sources = [claim.source.split(",")[0] for claim in CLAIMS]
    assert [sources.count(one) for one in ("RF-RoPE", "Zhao", "Wendler", "Stratos")] == [18, 7, 2, 9]
    assert len({claim.source for claim in CLAIMS}) == len(CLAIMS) == len(sources)


@pytest.mark.skipif(not TABLE.is_file(), reason="docs/ is not here")
def test_the_page_lists_them_all():
    lines = TABLE.read_text("utf-8").splitlines()
    assert [line[7:] for line in lines if line.startswith("   * - ")][1:] == [claim.source for claim in CLAIMS]
    for claim in CLAIMS:
        assert f"     - {claim.statement}" in lines
