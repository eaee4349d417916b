"""The table of model types: its keys, and that nobody can write to what all share."""

import pytest

import rfrope
from rfrope.data.model_types import has_defaults, known, model_types

DEFAULTS = {
    *("rope_parameters", "head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings"),
    *("global_head_dim", "needs", "axial", "partial", "beside", "whole"),
    *("qk_rope_head_dim", "qk_nope_head_dim", "swa", "names", "quotient", "alike", "dict", "window", "layers"),
    *("by_layer", "said", "narrowed"),
}
PAIRING = {"pairing", "out_pairing", "rotated", "pairing_by", "pairing_note", "unmovable"}
PECULIAR = {
    "rope": (False,),
    "null_base": (True,),
    "sections": ("own", "interleaved"),
    "scaled": ("everywhere",),
    "ntk": ("own",),
    "inner_base": (True,),
    "negated": (True,),
    "original": (True,),
    "softmax": ("mscale_all_dim",),
}


LAYOUTS = ("halves", "alternating", "turns", "columns first", "columns in turn", "thirds", "unknown")
LAYERS = {
    *("kind", "other", "every", "at", "also", "from_end", "key", "pattern", "start", "last", "listed", "listed_all"),
    *("names", "cycle", "codes", "explicit", "padded", "turning", "kinds_turn", "interval", "forced"),
    *("without_window", "bases", "compressed", "scaled", "ropes", "still", "usual", "halved"),
}


def test_every_entry_is_well_formed():
    for entry in model_types().values():
        assert set(entry) <= DEFAULTS | PAIRING | set(PECULIAR) | {"source"}
        assert set(entry.get("layers", {})) <= LAYERS
        assert set(entry.get("names", {})) <= set(rfrope.models.parts.NAMES)
        assert all(entry[key] in values for key, values in PECULIAR.items() if key in entry)
        if has_defaults(entry):
            assert entry.get("axial", "halves") in LAYOUTS
            assert "rope_parameters" in entry or set(entry) - PAIRING == {"axial"}
        else:
            assert set(entry) & {*PECULIAR, "source"}


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
