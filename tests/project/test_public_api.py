"""Public names, signatures, fields and docstrings: what they promise, held against reality."""

import inspect
import pathlib
import re
from importlib import metadata, resources
from typing import Any

import pytest
from public import FUNCTIONS, MODULES, OFFERED, RECORDS, TABLE, lines

import rfrope


def test_names_signatures_and_fields_are_those_of_the_table():
    """Parameters may be added, none renamed: run tests/support/public.py where that is meant."""
    assert [*lines()] == TABLE.read_text("utf-8").splitlines()


def test_names_of_the_face_are_sorted_and_stand_in_their_modules():
    assert rfrope.__all__ == sorted(set(rfrope.__all__))
    assert set(dir(rfrope)) == set(rfrope.__all__)
    homes = {value.__name__ for value in MODULES.values()}
    for name in set(rfrope.__all__) - set(MODULES) - {"threads"}:
        home = getattr(rfrope, name).__module__
        assert any(home.startswith(one) for one in homes), f"{name} is of {home}"
    with pytest.raises(AttributeError, match="No rfrope attribute phases"):
        rfrope.phases  # noqa: B018


def test_records_are_frozen():
    assert [name for name, record in RECORDS.items() if not record.__dataclass_params__.frozen] == []


def test_the_package_is_typed_and_has_its_version():
    assert rfrope.__version__ == metadata.version("rfrope")
    assert resources.files("rfrope").joinpath("py.typed").is_file()
    for name, function in FUNCTIONS.items():
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty, name
        given = [p for p in signature.parameters.values() if p.name != "self"]
        assert all(p.annotation is not inspect.Parameter.empty for p in given), name


# -- docstrings --------------------------------------------------------------------------------------------------------


def sections(docstring: str) -> dict[str, str]:
    """Return parts of a numpydoc docstring by their titles; the part before the first is 'Summary'."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return {"Summary": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def missing(function: Any) -> list[str]:
    """Return what a public function's docstring lacks."""
    found, parameters = sections(function.__doc__ or ""), inspect.signature(function).parameters
    parameters = [name for name in parameters if name != "self"]
    wanted = ["Summary", "Returns", "Examples", *(["Parameters", "Raises"] if parameters else [])]
    lacks = [title for title in wanted if not found.get(title, "").strip()]
    described = [line for line in found.get("Parameters", "").splitlines() if line and not line.startswith(" ")]
    names = {name.strip(" *") for line in described for name in line.partition(" : ")[0].split(",")}
    lacks += [f"parameter {name}" for name in parameters if name not in names]
    return lacks + (["doctest"] if ">>>" not in found.get("Examples", "") else [])


def test_public_functions_have_a_complete_docstring():
    lacks = {name: missing(one) for name, one in FUNCTIONS.items() if not name.startswith("Kernel.")}
    assert {name: found for name, found in lacks.items() if found} == {}


def test_records_and_methods_have_a_docstring():
    assert [name for name in (*RECORDS, *FUNCTIONS) if not inspect.getdoc(OFFERED[name])] == []


def test_every_page_of_the_reference_has_an_example():
    reference = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "api.rst"
    if not reference.is_file():
        pytest.skip("docs/ is not here")
    pages = re.findall(r"^   ((?:\w+\.)*\w+)$", reference.read_text("utf-8"), re.MULTILINE)
    found = {name: sections(OFFERED[name].__doc__) for name in pages if name in OFFERED}
    assert len(found) > 150
    assert [name for name, held in found.items() if ">>>" not in held.get("Examples", held["Summary"])] == []
