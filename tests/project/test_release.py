"""One version everywhere, and files of the release that say the same as pyproject.toml."""

import datetime
import pathlib
import re
import tomllib

import pytest

import rfrope

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "CITATION.cff").is_file(), reason="the source tree is not here")


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version = rfrope.__version__
    assert project["version"] == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f'{{% set version = "{version}" %}}' in (ROOT / "conda" / "meta.yaml").read_text("utf-8")
    if (ROOT / "docs" / "reference" / "cite.rst").is_file():
        assert f"version = {{{version}}}" in (ROOT / "docs" / "reference" / "cite.rst").read_text("utf-8")


def test_the_changelog_has_the_version_with_the_date_of_the_citation():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    (date,) = re.findall(r"^date-released: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert f"\n{rfrope.__version__} ({datetime.date.fromisoformat(date).isoformat()})\n---" in text
    assert text.index("\nUnreleased\n---") < text.index(f"\n{rfrope.__version__} (")


def test_the_recipe_of_conda_has_the_dependencies_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    run = (ROOT / "conda" / "meta.yaml").read_text("utf-8").partition("  run:\n")[2].partition("\n\n")[0]
    wanted = [f"python {project['requires-python']}", *(one.replace(">=", " >=") for one in project["dependencies"])]
    assert [line.strip(" -") for line in run.splitlines()] == wanted


def test_links_that_lead_nowhere_in_a_wheel_become_paths():
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    names = {}
    exec(compile((ROOT / "hatch_build.py").read_text("utf-8"), "hatch_build.py", "exec"), names)
    given = '<picture>\n<img src="a.svg">\n</picture>\n\n[Start](docs/a.rst), [away](https://example.org/x), [up](#top)'
    expected = "Start (`docs/a.rst`), [away](https://example.org/x), [up](#top)"
    assert names["without_relative_links"](given) == expected
