"""docs/_data/support.inc against what calls of every public function find, on every library."""

import re

import pytest
import supported
from campaign import sparse

if not supported.TABLE.is_file():
    pytest.skip("docs/ is not here", allow_module_level=True)

KEPT = ("rotate", "offset_of", "geometric", "kernels.names", "engines.export")
NO_FUNCTIONS = {"data.model_types.model_types"}  # tables of this package


def test_every_public_function_has_its_row():
    head, *names = supported.kept()
    assert supported.kept()[head] == supported.HEADS
    assert supported.names() == names
    documented = re.findall(
        r"^   ((?:\w+\.)*\w+)$", (supported.TABLE.parents[1] / "reference" / "api.rst").read_text("utf-8"), re.MULTILINE
    )
    functions = {name for name in documented if name.rpartition(".")[2][0].islower()} - NO_FUNCTIONS
    assert {name for name in functions if not {name, name.partition(".")[2]} & {*names}} == set()


@pytest.mark.parametrize("name", sparse(supported.names(), lambda name: name in KEPT))
def test_a_row_says_what_calls_find(name):
    assert supported.kept()[name] == supported.row(name)


def test_the_page_of_devices_names_what_leaves_one():
    page = (supported.TABLE.parents[1] / "howto" / "gpu.md").read_text("utf-8")
    for label in (supported.BACK, supported.HOST):
        leaving = [f"`{name}`" for name, cells in supported.kept().items() if cells[-1] == label]
        assert re.findall(rf"^\| {label}.*? \| (.*) \|$", page, re.MULTILINE) == [", ".join(leaving)]
