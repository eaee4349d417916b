"""What commands share: errors of files, colours, tables."""

from __future__ import annotations

import re
import sys
from contextvars import Context

import pytest

from rfrope._core import results
from rfrope.cli import shared


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(2, "No such file", "model.json"), "-o out.json: model.json: No such file"),
        (FileNotFoundError(2, "No such file", "./out.json"), "-o out.json: No such file"),
        (OSError("it is damaged"), "-o out.json: it is damaged"),
        (ValueError("it says nothing"), "-o out.json: it says nothing"),
    ],
)
def test_an_error_of_another_file_names_both(error, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"), shared.naming("-o", "out.json"):
        raise error


def test_verdicts_have_colours_on_a_terminal_alone(monkeypatch, capsys):
    def printed():
        shared.print_text("PASSED: 3 \x1b[31m of 3\nthe FAILED")
        return capsys.readouterr().out

    plain = "PASSED: 3 \\x1b[31m of 3\nthe FAILED\n"
    assert printed() == plain
    monkeypatch.setattr(shared, "is_terminal", lambda: True)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert printed() == f"\x1b[1;32mPASSED\x1b[0m{plain.removeprefix('PASSED')}"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed() == plain
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdout", None)
    assert not shared.is_terminal()


def test_cells_on_the_left_are_broken_and_no_others():
    def at(width, function, *arguments):
        return Context().run(lambda: (results.WIDTH.set(width), function(*arguments))[1])

    rows = [("name", "number", "what it is"), ("one", "12 345 678", "a long text of many words that is broken")]
    whole = shared.format_table(rows).splitlines()
    assert whole[1:] == [
        "----  ----------  ----------------------------------------",
        "one   12 345 678  " + rows[1][2],
    ]
    lines = at(40, shared.format_table, rows).splitlines()
    assert "12 345 678" in lines[2]
    assert len(lines) > 3
    assert max(map(len, lines)) <= 40
    assert " ".join(line[18:].strip() for line in lines[2:]) == rows[1][2]
    assert at(22, shared.format_table, rows).splitlines() == [
        *("name      number", "----  ----------", "one   12 345 678", ""),
        *("name  what it is", "----  ----------------", "one   a long text of"),
        *("      many words that", "      is broken"),
    ]
    assert at(None, results.fill, "two\n  lines") == "two\n  lines"
    assert at(20, results.fill, "a text\nof some lines that are broken") == "a text of some lines\nthat are broken"
    for line, broken in {
        "x: what is broken off hangs": "x: what is broken\n  off hangs",
        "  label  what it says of it": "  label  what it\n         says of it",
        "    indented, without labels": "    indented,\n      without labels",
        "a_word_that_is_longer_than_that": "a_word_that_is_longer_than_that",
    }.items():
        assert at(20, results.wrap, line) == broken
