"""What `from_config` finds where, in published configurations and in made-up ones, and what it says of bad ones."""

import builtins
import json

import numpy as np
import pytest
from conftest import rows
from published import BY_MODEL, Place, lists

import rfrope
from rfrope import from_config

KEY = "original_max_position_embeddings"
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}


def place(part: rfrope.Rope) -> Place:
    told, name = part.source.rope_parameters, part.source.model.name
    return Place(name, told["rope_type"], part.head_dim, len(part.frequencies), told["rope_theta"], part.context)


# -- published configurations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", BY_MODEL)
def test_published(model):
    before = json.dumps(BY_MODEL[model].config)
    found = from_config(BY_MODEL[model].config)
    assert json.dumps(BY_MODEL[model].config) == before
    assert tuple(place(part) for part in found) == BY_MODEL[model].places
    for part in found:
        blocks, told = len(part.frequencies), part.source.rope_parameters
        assert np.all(np.isfinite(part.frequencies))
        assert part.rotary_dim == 2 * blocks <= part.head_dim
        if told["rope_type"] == "default":
            np.testing.assert_allclose(
                part.frequencies, told["rope_theta"] ** (-np.arange(blocks) / blocks), rtol=1e-14
            )
        json.dumps(told)


@pytest.mark.parametrize("model", ["Gemma 3 4B", "Qwen2-VL 7B"])
def test_files_folders_and_objects_are_as_dicts(model, tmp_path):
    class Config:
        def to_dict(self):
            return BY_MODEL[model].config

    (tmp_path / "config.json").write_text(json.dumps(BY_MODEL[model].config))
    expected = from_config(BY_MODEL[model].config)
    for source in (tmp_path, tmp_path / "config.json", str(tmp_path / "config.json"), Config()):
        for one, other in zip(from_config(source), expected, strict=True):
            assert place(one) == place(other)
            assert np.array_equal(one.frequencies, other.frequencies)


# -- where things stand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "expected"), rows("models/configs.json", "one place"))
def test_one_place(config, expected):
    (part,) = from_config(config)
    assert [*place(part)] == expected


@pytest.mark.parametrize(("config", "expected"), rows("models/configs.json", "several places"))
def test_several_places(config, expected):
    found = from_config(config)
    assert sorted([*place(part)] for part in found) == sorted(expected)
    assert all(part.source.model.qk_head_dim == part.head_dim for part in found)


@pytest.mark.parametrize(("config", "windows"), rows("models/configs.json", "windows"))
def test_windows(config, windows):
    parts = from_config(config)
    assert {name: window for part in parts for name, window in part.source.model.windows.items()} == windows
    for part in parts:
        held = part.source.model.windows.values()
        assert part.source.model.window == (None if None in held else max(held))


@pytest.mark.parametrize("head_dim", [44, 98])
def test_rotary_dim_is_exact(head_dim):
    for rotary_dim in range(2, head_dim + 1, 2):
        (part,) = from_config({"rope_theta": 1e4, "head_dim": head_dim, "rotary_dim": rotary_dim})
        assert part.rotary_dim == rotary_dim
        again = rfrope.models.from_rope_parameters(part.source.rope_parameters, head_dim=head_dim)
        np.testing.assert_allclose(again.frequencies, 1e4 ** (-np.arange(0, rotary_dim, 2) / rotary_dim), rtol=1e-14)


@pytest.mark.parametrize("scheme", ["llama3", "yarn", "longrope", "su"])
def test_the_original_context_at_the_top_counts_more(scheme):
    told = {"llama3": BY_MODEL["Llama 3.1 8B"].config["rope_scaling"], "yarn": {"factor": 2.0}}.get(
        scheme, {**lists(8), "factor": 2.0}
    )
    (part,) = from_config({**LLAMA, KEY: 256, "rope_scaling": {KEY: 512, **told, "rope_type": scheme}})
    assert part.source.rope_parameters[KEY] == 256


def test_sections():
    by_model = {model: from_config(BY_MODEL[model].config) for model in ("Qwen2-VL 7B", "Qwen3-VL 8B", "Llama 3 8B")}
    (chunked, vision), (interleaved, _), (plain,) = by_model.values()
    assert (chunked.sections, chunked.interleaved) == ((16, 24, 24), False)
    assert (interleaved.sections, interleaved.interleaved) == ((24, 20, 20), True)
    assert (plain.sections, plain.interleaved) == (None, False)
    assert (vision.sections, vision.interleaved) == ((20, 20), False)


@pytest.mark.parametrize(("config", "sections", "interleaved"), rows("models/configs.json", "sections"))
def test_sections_and_their_order(config, sections, interleaved):
    (part,) = from_config(config)
    assert (part.sections, part.interleaved) == (sections and tuple(sections), interleaved)
    told = config.get("text_config", config)["rope_scaling"]
    assert part.source.rope_parameters["mrope_section"] == told.get("mrope_section", told.get("xdrope_section"))


# -- nothing, or nothing that can be read ------------------------------------------------------------------------------


@pytest.mark.parametrize("config", rows("models/configs.json", "without RoPE"))
def test_models_without_rope(config):
    said = r"config describes no RoPE(; looked for rope_parameters, |: .* (is (True|False|null|'.*')|has none)$)"
    with pytest.raises(ValueError, match=said):
        from_config(config)


def test_where_was_looked():
    with pytest.raises(ValueError, match=r"at the top, text_config, vision_config$"):
        from_config({"text_config": {"model_type": "bert"}, "vision_config": {"model_type": "vit"}})


@pytest.mark.parametrize("config", rows("models/configs.json", "pictures"))
def test_pictures_that_the_config_does_not_determine_wherever_they_are(config):
    with pytest.raises(ValueError, match=r"\(there is one, but the config alone does not give its frequencies\)"):
        from_config(config)
    if "vision_config" in config:
        (text,) = from_config({"text_config": LLAMA, **config})
        assert text.source.model.name == "text_config"


def test_results_can_be_changed_and_the_table_stays():
    (part,) = from_config({"model_type": "apertus"})
    part.source.rope_parameters["factor"] = 99.0
    (sections,) = from_config({"model_type": "cosmos3_edge_text"})
    sections.source.rope_parameters["mrope_section"].append(1)
    assert from_config({"model_type": "apertus"})[0].source.rope_parameters["factor"] == 8.0
    assert from_config({"model_type": "cosmos3_edge_text"})[0].sections == (24, 20, 20)


class Listed:
    def to_dict(self):
        return [1]


CYCLE: dict = {}
CYCLE["text_config"] = CYCLE
BAD = [
    *((config, getattr(builtins, error), words) for config, error, words in rows("models/configs.json", "refused")),
    ({**LLAMA, "rope_scaling": {3: {}}}, TypeError, "rope_scaling holds the key 3; expected names of parameters"),
    (CYCLE, ValueError, "text_config.text_config.text_con: parts are nested deeper than 8"),
    (Listed(), TypeError, "config.to_dict() gave a list; expected a dict"),
    (Listed, TypeError, "expected a dict, the path of a config.json, or a config object"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_config(index):
    config, error, message = BAD[index]
    with pytest.raises(error) as caught:
        from_config(config)
    assert message in str(caught.value)


@pytest.mark.parametrize(("text", "message"), rows("models/configs.json", "bad_files"))
def test_bad_files(text, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match="^" + str(path).replace("\\", "\\\\")) as caught:
        from_config(path)
    assert message in str(caught.value)


def test_missing_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("none.json", tmp_path, "meta-llama/Llama-3.1-8B"):
        with pytest.raises(FileNotFoundError, match=f"^{path}.*nothing is downloaded.* its folder, not the name"):
            from_config(path)
