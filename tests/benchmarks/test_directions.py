"""The table of directions: what its script finds now is what the page says, to a few of its last digits."""

import pathlib
import re

from conftest import benchmark

PLACE = pathlib.Path(__file__).parents[2] / "docs" / "directions_table.inc"


def test_the_tables_of_the_page_are_what_the_script_finds():
    texts = [benchmark("directions").text(), PLACE.read_text("utf-8")]
    now, written = ([re.split(r"(\d+\.\d+)", line) for line in text.splitlines()] for text in texts)
    assert [line[::2] for line in now] == [line[::2] for line in written]
    for one, other in zip(now, written, strict=True):
        for a, b in zip(one[1::2], other[1::2], strict=True):
            assert abs(float(a) - float(b)) <= 2e-3
