"""Words that a native technical reader would not use."""

from __future__ import annotations

import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOLD = re.compile(r"(?<![A-Za-z])_*told(?![A-Za-z])", re.IGNORECASE)
# a sentence, a docstring or the words on a parameter; a question may begin so
OPENING = re.compile(r"(?:^|\"\"\"|[.:] )[ ]*(?:Of|Which)\b[^.?]*(?P<end>[.?]|$)")
REMARK = re.compile(r"#:? +(?:of|which)\b", re.IGNORECASE)
FOLDERS = ("rfrope", "benchmarks", "docs", "examples", "tools")
WRITTEN = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".rst", ".md") and not {"_build", "generated", "gallery"} & set(path.parts[:-1])
    ),
    *sorted((ROOT / "examples" / "gallery").glob("*.py")),
]


def remarks(text: str) -> list[str]:
    """Comments of a module that begin with "of" or "which"; a second line of one may."""
    found, before = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, alone = token.start[0], token.line.lstrip().startswith("#")
            if REMARK.match(token.string) and not (alone and before == row - 1):
                found.append(token.string)
            before = row if alone else 0
    return found


def openings(text: str) -> list[str]:
    """Sentences that begin with "of" or "which" and are no questions."""
    lines = text.split("\n")
    joined = [f"{line.rstrip()} {after.strip()}" for line, after in zip(lines, [*lines[1:], ""], strict=True)]
    return [
        line
        for line, whole in zip(lines, joined, strict=True)
        for match in [OPENING.search(line)]
        if match and OPENING.search(whole, match.start())["end"] != "?"
    ]


def strange(path: pathlib.Path) -> list[str]:
    """What is to be said otherwise."""
    text = path.read_text("utf-8")
    found = [match.group() for match in TOLD.finditer(text)] + openings(text)
    return found + remarks(text) if path.suffix == ".py" else found


def test_words_are_those_of_technical_english():
    assert len(WRITTEN) > 200
    assert {str(path.relative_to(ROOT)): found for path in WRITTEN if (found := strange(path))} == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("told = read(config)", 1),
        ("class Told:", 1),
        ("found = _told(x)", 1),
        ("SHARE = 0.5  # of the memory", 1),
        ("x = 1  # which others see", 1),
        ("# a sentence that goes on\n# of which this is the end", 0),
        ('def f():\n    """Which of them it is."""', 1),
        ('def f():\n    """Which of them is it?"""', 0),
        ("# One thing. Of the others none is there.", 1),
        ("# Which of these suits a model that is to read\n# further than it was trained? That one.", 0),
        ("# the share of memory, which others have", 0),
        ("# untold, retold", 0),
    ],
)
def test_strange_words_are_seen(line, count, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(line + "\n", encoding="utf-8")
    assert len(strange(path)) == count, strange(path)
