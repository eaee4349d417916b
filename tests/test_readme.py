"""README and documentation pages: their examples run, and their commands are those that CI runs."""

import doctest
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.rst"))


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_readme_example_runs(capsys):
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    assert re.fullmatch(r"this draw: .*; all draws: mean .*, standard deviation .*\n", capsys.readouterr().out)
    assert len(example.splitlines()) <= 12


def test_readme_has_the_two_commands_that_ci_runs():
    commands = blocks("sh")
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install ") for command in commands)
    assert commands[0].endswith("&& .venv/bin/rfrope validate\n")
    assert commands[1].endswith("&& .venv/bin/python -m pytest\n")


def test_readme_links_lead_somewhere():
    links = re.findall(r"\]\((\S+?)\)", (ROOT / "README.md").read_text("utf-8"))
    assert links
    for link in links:
        assert link.startswith("docs/") or (ROOT / link).is_file()
        assert not PAGES or (ROOT / link).is_file()


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_documentation_page(page):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    outcome = doctest.testfile(str(ROOT / "docs" / page), module_relative=False, optionflags=flags, encoding="utf-8")
    assert outcome.failed == 0
