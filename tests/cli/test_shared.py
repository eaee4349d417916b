"""What commands share: errors of files, colours."""

from __future__ import annotations

import re

import pytest

from rfrope.cli import shared


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(2, "No such file", "model.json"), "-o out.json: model.json: No such file"),
        (FileNotFoundError(2, "No such file", "./out.json"), "-o out.json: No such file"),
        (OSError("it is damaged"), "-o out.json: it is damaged"),
    ],
)
def test_an_error_of_another_file_names_both(error, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"), shared.naming("-o", "out.json"):
        raise error


def test_colours_on_a_terminal_alone(monkeypatch):
    assert shared.styled("PASSED", "green") == "PASSED"
    monkeypatch.setattr(shared, "is_terminal", lambda: True)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert shared.styled("PASSED", "green") == "\x1b[1;32mPASSED\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shared.styled("PASSED", "green") == "PASSED"


def test_cells_on_the_left_are_broken_and_no_others(monkeypatch, capsys):
    monkeypatch.setattr(shared, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("name", "number", "what it is"), ("one", "12 345 678", "a long text of many words that is broken")]
    shared.print_table(rows)
    printed = capsys.readouterr().out.splitlines()
    assert "12 345 678" in printed[2]
    assert len(printed) > 3
    assert max(map(len, printed)) <= 40


@pytest.mark.parametrize("width", [85, 70])
def test_no_word_of_a_cell_is_broken(run, monkeypatch, width):
    monkeypatch.setattr(shared, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    kernels = ["rational_quadratic(alpha=1.5, scale=24.0)", "periodic(period=96.0, scale=0.7)"]
    code, out, _ = run("validate", *kernels, "--samples", 256, "--trials", 64)
    summary, _, rest = out.partition("\n\n")
    worst = rest.partition("largest |z|:\n")[2].partition("\n\n")[0]
    assert code == 0
    assert max(map(len, (summary + "\n" + worst).splitlines())) <= width
    for word in ("rational_quadratic", "alpha=1.5,", "scale=24.0)", "period=96.0,", "closed form"):
        assert word in summary + worst
    above = [line for line in worst.splitlines() if line in kernels]
    assert len(above) == (5 if width < 85 else 0), "lines of their own, where a narrow column is not enough"
