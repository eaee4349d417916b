"""What a call will hold is asked before it begins."""

from __future__ import annotations

import math

import pytest

from rfrope._core import capacity


def test_what_fits_passes(monkeypatch):
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: 1e9)
    capacity.check(4e8, "this", "n")
    with pytest.raises(
        ValueError, match=r"^this would take 0\.6 GB of memory, but 50% of the free memory is 0\.5 GB; .*lower n"
    ):
        capacity.check(6e8, "this", "n")


def test_small_calls_are_not_asked_about(monkeypatch):
    monkeypatch.delenv(capacity.VARIABLE, raising=False)
    monkeypatch.setattr(capacity, "free", lambda: pytest.fail("asked"))
    capacity.check(2.0**26, "this", "n")


def test_the_variable_decides(monkeypatch):
    monkeypatch.setenv(capacity.VARIABLE, "1e12")
    capacity.check(1e12, "this", "n")
    monkeypatch.setenv(capacity.VARIABLE, "1000")
    with pytest.raises(ValueError, match=r"RFROPE_MAX_BYTES allows 1e-06 GB.* to 2e\+03 to insist"):
        capacity.check(2000.0, "this", "n")


@pytest.mark.parametrize("told", ["", "much", "0", "-1", "nan"])
def test_a_variable_that_is_no_number(monkeypatch, told):
    monkeypatch.setenv(capacity.VARIABLE, told)
    with pytest.raises(ValueError, match=r"RFROPE_MAX_BYTES is .*; expected a number of bytes, such as 64e9"):
        capacity.check(1.0, "this", "n")


def test_free_memory_is_that_of_the_smallest_limit(tmp_path, monkeypatch):
    assert 0.0 < capacity.free() <= math.inf
    limit, use = tmp_path / "max", tmp_path / "current"
    limit.write_text("5000\n")
    use.write_text("2000\n")
    monkeypatch.setattr(capacity, "_CGROUPS", ((str(limit), str(use)),))
    assert capacity.free() == 3000.0
    limit.write_text("max\n")
    assert capacity.free() > 3000.0
