"""The table of model types: its keys, and that nobody can write to what all share."""

import pathlib

import pytest

import rfrope
from rfrope.data.model_types import has_defaults, known, model_types

CHOSEN = ("pairing", "out_pairing", "rotated", "axial", "sections", "ntk", "softmax", "partial", "without_window")


def test_every_key_and_choice_is_one_that_is_read():
    """As words of the modules that read the table: another spelling would be passed over in silence."""
    root = pathlib.Path(rfrope.__file__).parent
    read = "".join(path.read_text("utf-8") for room in ("data", "models") for path in (root / room).rglob("*.py"))
    for name, entry in model_types().items():
        held = {**entry, **entry.get("layers", {})}
        words = {*held, *(held[key] for key in CHOSEN if isinstance(held.get(key), str))}
        assert [word for word in words if f'"{word}"' not in read] == [], name
        assert set(entry.get("names", {})) <= set(rfrope.models.parts.NAMES)
        assert not has_defaults(entry) or "rope_parameters" in entry or "axial" in entry


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3"])
def test_what_is_known_of_a_model_type_cannot_be_written_to(name):
    """What all callers share, all the way down."""
    with pytest.raises(TypeError):
        model_types()[name] = {}
    shared = [value for value in known(name).values() if hasattr(value, "items")]
    assert shared
    for held in shared:
        shared += [value for value in held.values() if hasattr(value, "items")]
        with pytest.raises(TypeError):
            held["another"] = 1
    with pytest.raises(AttributeError):
        model_types()["cosmos3_edge_text"]["rope_parameters"]["mrope_section"].append(1)
