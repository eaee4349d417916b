"""The statements of the seeds hold, each within its bound, by functions that there are."""

import functools

import pytest
from theorems import CLAIMS

import rfrope


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.source)
def test_statement(claim):
    assert claim.error() <= claim.bound
    for name in claim.functions:
        assert callable(functools.reduce(getattr, name.split("."), rfrope))
