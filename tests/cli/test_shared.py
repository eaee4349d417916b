"""What commands share: errors of files, colours, tables."""

import re
import sys

import pytest

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
    plain = ": 3 \\x1b[31m of 3\nthe FAILED\n"
    monkeypatch.delenv("TERM", raising=False)
    for terminal, no_color, verdict in (
        (False, "", "PASSED"),
        (True, "", "\x1b[1;32mPASSED\x1b[0m"),
        (True, "1", "PASSED"),
    ):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setattr(shared, "is_terminal", lambda terminal=terminal: terminal)
        shared.print_text("PASSED: 3 \x1b[31m of 3\nthe FAILED")
        assert capsys.readouterr().out == verdict + plain
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdout", None)
    assert not shared.is_terminal()
