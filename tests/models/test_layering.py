"""Layers by kind: their Ropes, numbers and windows, in words and as data."""

import json

import numpy as np
import pytest
from conftest import rows

import rfrope
from rfrope.models import list_layers
from rfrope.models.layering import show_layers

GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 8, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
BOTH = ["sliding_attention", "full_attention"]


def of(model_type, n_layers=None, **values):
    return {"model_type": model_type, **({} if n_layers is None else {"num_hidden_layers": n_layers}), **values}


LINEAR = {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}


@pytest.mark.parametrize("row", rows("models/layering.json", "kinds"))
def test_kinds_of_layers(row):
    config, *expected = row  # for each kind its name, its layers, base and window
    found = list_layers(config).kinds
    bases = [None if one.rope is None else one.rope.source.rope_parameters["rope_theta"] for one in found]
    held = [[one.kind, one.layers, base, one.window] for one, base in zip(found, bases, strict=True)]
    assert json.loads(json.dumps(held)) == expected
    assert {one.part for one in found} == {"text_config" if "text_config" in config else ""}


def test_each_layer_has_the_rope_of_its_kind():
    found = list_layers(GEMMA)
    ropes = dict(zip(BOTH[::-1], rfrope.from_config(GEMMA), strict=True))
    names = (BOTH[0],) * 5 + (BOTH[1],) + (BOTH[0],) * 2
    assert found.ropes_by_layer == names
    for name, rope in ropes.items():
        assert rope.source.model.layers == tuple(i for i, one in enumerate(names) if one == name)
        assert found.ropes[name].source.model.name == name
    for name, one in zip(names, found.kinds_by_layer(), strict=True):
        np.testing.assert_array_equal(one.rope.frequencies, ropes[name].frequencies)


def test_layers_that_a_scheme_leaves_alone():
    unscaled, scaled = list_layers(of("molmo2_text", 3, rope_scaling_layers=[1], **LINEAR)).kinds
    np.testing.assert_allclose(unscaled.rope.frequencies, 2.0 * scaled.rope.frequencies, rtol=1e-15)


def test_names_for_a_model_with_parts():
    config = {"model_type": "gemma3", "text_config": GEMMA, "vision_config": {"model_type": "siglip_vision_model"}}
    found = list_layers(config)
    assert [*found.ropes] == BOTH
    assert [one.part for one in found.kinds_by_layer()] == ["text_config"] * 8
    assert {one.rope.source.model.name for one in found.kinds} == {f"text_config.{name}" for name in BOTH}


@pytest.mark.parametrize(("config", "window", "both_sides"), rows("models/layering.json", "both_sides"))
def test_windows_of_encoders_reach_to_both_sides(config, window, both_sides):
    windowed = [one for one in list_layers(config).kinds if one.kind == BOTH[0]]
    assert [(one.window, one.both_sides) for one in windowed] == [(window, both_sides)]
    assert str(windowed[0]).endswith(f"a window of {window} to both sides" if both_sides else f"a window of {window}")
    assert not any(one.both_sides for one in list_layers(config).kinds if one.window is None)


def test_the_ropes_of_a_model_that_sees_are_those_of_its_text():
    text = {"model_type": "qwen2_5_vl_text", "head_dim": 32, "num_hidden_layers": 3, "rope_theta": 5e5}
    seeing = {"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280, "num_heads": 16}, "text_config": text}
    found = list_layers(seeing)
    assert {one.part for one in found.kinds} == {"vision_config", "text_config"}
    assert [*found.ropes] == [""]
    assert found.ropes[""].source.rope_parameters["rope_theta"] == 5e5
    assert found.ropes_by_layer == ("", "", "")
    assert list_layers(text).ropes_by_layer == ("", "", "")


def test_the_rope_of_each_layer_by_name():
    assert list_layers({"model_type": "smollm3", "num_hidden_layers": 4}).ropes_by_layer == ("", "", "", None)
    assert list_layers(of("smollm3", 2, no_rope_layers=[True, False])).ropes_by_layer == ("", None)
    assert list_layers({"model_type": "llama", "head_dim": 8}).ropes_by_layer is None


def test_in_words_and_as_data():
    found = list_layers({"model_type": "llama4_text", "num_hidden_layers": 8})
    assert str(found).splitlines() == [
        "chunked_attention: layers 0-2, 4-6: default, base 500000, 128 of 128 features, a window of 8192",
        "full_attention: layers 3, 7: no RoPE",
    ]
    plain = json.loads(json.dumps(found.to_dict()))
    seen = {"window": None, "both_sides": False}
    assert plain["kinds"][1] == {"part": "", "kind": BOTH[1], "layers": [3, 7], "rope": None} | seen
    assert plain["kinds"][0]["rope"]["rope_parameters"]["rope_theta"] == 5e5
    hybrid = str(list_layers({"model_type": "qwen3_next", "num_hidden_layers": 4}))
    assert hybrid.startswith("linear_attention: layers 0-2: no attention\n")
    assert str(list_layers({"model_type": "llama", "head_dim": 8})).startswith("layers without numbers: default")


@pytest.mark.parametrize(
    ("layers", "text"),
    [((), "no layers"), ((3,), "layer 3"), ((0, 1), "layers 0-1"), ((0, 2, 3, 4, 7), "layers 0, 2-4, 7")],
)
def test_numbers_in_short(layers, text):
    assert show_layers(layers) == text
