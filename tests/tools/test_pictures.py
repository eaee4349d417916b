"""Pictures of the README and of pages: each is there in both themes, small, and drawn by its function."""

import re

import pytest
from campaign import campaign

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from tools import pictures

FOLDER = pictures.DOCS / "pictures"
HERE = pytest.mark.skipif(not FOLDER.is_dir(), reason="docs/ is not here")


@HERE
def test_pictures_are_there_light_and_dark_and_small():
    names = {f"{name}{suffix}.svg" for name in pictures.PICTURES for suffix in pictures.THEMES}
    assert {path.name for path in FOLDER.iterdir()} == names
    for path in FOLDER.iterdir():
        assert path.stat().st_size < 200_000
        text, other = path.read_text("utf-8").lower(), pictures.THEMES["" if "-dark" in path.name else "-dark"]
        assert (other.blue in text, other.ink in text) == (False, False)


@campaign
@HERE
@pytest.mark.parametrize("name", ["designed", "block", "scales", "extension", "designs"])
def test_a_picture_is_what_its_function_draws(name, tmp_path):
    pictures.main([name, "--folder", str(tmp_path)])
    for suffix in pictures.THEMES:
        new, old = ((where / f"{name}{suffix}.svg").read_text("utf-8") for where in (tmp_path, FOLDER))
        paths = [re.findall(r'<path d="([^"]*)"', text) for text in (new, old)]
        counts = [[len(path.split()) for path in one] for one in paths]
        assert counts[0] == counts[1]
        numbers = [[float(number) for path in one for number in re.findall(r"-?\d+\.?\d*", path)] for one in paths]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=0.05)
