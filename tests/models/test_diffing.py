"""What changed in the RoPE of a model: which layers, which parameters, and the distance from which scores differ."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import rows

import rfrope
from rfrope.models import diff

LLAMA = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 4, "max_position_embeddings": 4096}
LLAMA |= {"rope_theta": 5e5}
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
GEMMA |= {"max_position_embeddings": 8192, "sliding_window": 512}


def changes(one):
    return {change.what: (change.old, change.new) for change in one.changes}


def scores(rope, lags):
    """Mean score of equal content, by the formula."""
    turning = np.cos(np.multiply.outer(lags, rope.frequencies)).sum(-1)
    return (rope.attention_factor**2 * turning + rope.qk_head_dim / 2 - rope.n_blocks) / (rope.qk_head_dim / 2)


def test_nothing_changed():
    found = diff(LLAMA, dict(LLAMA))
    assert (found.same, found.layers, found.n_same, found.differs_from) == (True, (), 1, None)
    assert str(found) == "The RoPE is the same."
    assert diff(GEMMA, GEMMA).n_same == 2


def test_the_same_in_other_words_is_the_same():
    new = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    assert diff(LLAMA, new | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}).same
    assert diff({"model_type": "smollm3", "num_hidden_layers": 8}, _smollm3([1, 1, 1, 0] * 2)).same


def _smollm3(flags):
    return {"model_type": "smollm3", "num_hidden_layers": len(flags), "no_rope_layers": flags}


def test_windows_and_contexts_bound_the_distance():
    new = LLAMA | {"rope_theta": 505000.0}
    far = diff(LLAMA, new).differs_from
    assert far > 64
    assert diff(LLAMA, new, seq_len=far).differs_from is None
    assert diff(LLAMA, new, seq_len=far + 1).differs_from == far
    for *windows, expected in ((far, far, None), (far + 1, 2, far), (2, far + 1, far), (None, 2, far), (2, None, far)):
        sides = zip((LLAMA, new), windows, strict=True)
        sides = ({**one, "model_type": "mistral", "sliding_window": window} for one, window in sides)
        assert diff(*sides).differs_from == expected


def test_a_scheme_that_depends_on_the_length_is_looked_at_at_several():
    old = LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    assert diff(LLAMA, old).layers[0].seq_len == 4 * 4096
    assert diff(LLAMA, old, seq_len=4096).differs_from is None


@pytest.mark.parametrize(("old", "new", "seq_len"), rows("models/diffing.json", "differs_most"))
def test_what_differs_most_counts_be_it_in_the_longest_text_or_in_a_shorter_one(old, new, seq_len):
    (one,) = diff(old, new).layers
    (first,), (other,) = (rfrope.from_config(side, seq_len=seq_len) for side in (old, new))
    apart = np.abs(scores(other, np.arange(seq_len)) - scores(first, np.arange(seq_len))) >= 0.01
    assert (one.seq_len, one.differs_from) == (seq_len, int(np.argmax(apart)))
    assert one.frequency_error == pytest.approx(np.max(np.abs(other.frequencies / first.frequencies - 1.0)))


@pytest.mark.parametrize("row", rows("models/diffing.json", "changed"))
def test_what_changed(row):
    old, new, n_same, distance, *expected = row  # for each kind its name, its layers and changes
    found = diff(old, new)
    assert json.loads(json.dumps([(one.kind, one.layers, changes(one)) for one in found.layers])) == expected
    assert (found.n_same, found.differs_from, found.same) == (n_same, distance, False)
    assert {one.part for one in found.layers} == {"text_config" if "text_config" in old else ""}
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["layers"][0]["changes"][0].keys() == {"what", "old", "new"}


def test_in_words():
    wide = diff(LLAMA, LLAMA | {"head_dim": 32})
    assert "turns another number of features" in str(wide)
    assert (wide.layers[0].frequency_error, wide.to_dict()["layers"][0]["frequency_error"]) == (math.inf, None)
    longer = diff(LLAMA, LLAMA | {"max_position_embeddings": 8192})
    assert str(longer).endswith("No score of equal content differs by 1 % within the text.")
    assert "Some layers turn only before or only after" in str(diff(_smollm3([1, 1, 1, 0]), _smollm3([1, 0, 1, 1])))
    both = diff(GEMMA, GEMMA | {"rope_local_base_freq": 1.5e4, "rope_theta": 5e5})
    first, second = (layer.differs_from for layer in both.layers)
    assert both.differs_from == first < second


def test_another_pairing_counts_from_distance_1():
    (rope,) = rfrope.from_config(LLAMA)
    other = rfrope.Rope(rope.frequencies, pairing="interleaved", head_dim=64, context=4096)
    found = diff(rope, other)
    assert changes(found.layers[0]) == {"pairing": ("half", "interleaved")}
    assert found.differs_from == 1
    assert diff(rope, other, seq_len=1).differs_from is None
    assert diff(rope, replace(other, attention_factor=1.5)).differs_from == 0


def test_configs_and_ropes_and_files(tmp_path):
    (rope,) = rfrope.from_config(LLAMA)
    rfrope.save(tmp_path / "rope.npz", rope)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for new in (rope, tmp_path / "rope.npz", tmp_path, str(tmp_path / "config.json")):
        assert diff(LLAMA, new).same
    bare = diff(LLAMA, rope.frequencies * (1.0 + 1e-9))
    assert bare.layers[0].frequency_error == pytest.approx(1e-9, rel=1e-3)
    assert bare.layers[0].changes == ()


def yarn_with(scale):
    latent = {"model_type": "deepseek_v3", "num_hidden_layers": 2, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
    scaling = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 1024}
    scaling |= {"mscale": scale, "mscale_all_dim": scale}
    return latent | {"max_position_embeddings": 40960, "rope_scaling": scaling}


def test_the_factor_of_the_softmax_scale():
    found = diff(yarn_with(1.0), yarn_with(0.5))
    factors = [(0.1 * scale * math.log(40.0) + 1.0) ** 2 for scale in (1.0, 0.5)]
    assert changes(found.layers[0])["softmax_factor"] == pytest.approx(tuple(factors))
    assert found.differs_from == 0
    for share, first in ((0.01 + 1e-9, 0), (0.01 - 1e-9, None)):  # of the old score
        scale = (math.sqrt((1.0 - share) * factors[0]) - 1.0) / (0.1 * math.log(40.0))
        assert diff(yarn_with(1.0), yarn_with(scale)).differs_from == first
    plain = [{**yarn_with(scale), "model_type": "llama", "head_dim": 16} for scale in (1.0, 0.5)]
    assert diff(*plain).differs_from is None  # its class reads the ratio alone


@pytest.mark.parametrize(("old", "new"), rows("models/diffing.json", "fields"))
def test_fields_of_ropes_that_change_alone(old, new):
    (field,) = {**new, **new.get("source", {})}.keys() - old.keys() - {"source"} or new.keys()
    sides = [rfrope.Rope(rfrope.geometric(32), **{"context": 1000, "head_dim": 64} | one) for one in (old, new)]
    found = diff(*sides)
    assert not found.same
    assert {"context": "max_position_embeddings"}.get(field, field) in changes(found.layers[0])
    assert diff(sides[0], sides[0]).same
    assert diff(sides[1], sides[1]).same


def test_a_wider_head_counts_the_blocks_that_stand_still():
    lags = np.arange(1000)
    for speeds in ((1.0, 1.0), (0.02, 0.01), (0.01, 0.02)):
        sides = [
            rfrope.Rope(speed * rfrope.geometric(16), head_dim=width, context=1000)
            for speed, width in zip(speeds, (32, 128), strict=True)
        ]
        apart = np.abs(scores(sides[1], lags) - scores(sides[0], lags)) >= 0.01
        assert diff(*sides).differs_from == diff(*sides[::-1]).differs_from == int(np.argmax(apart)) > 0


def test_without_a_length_nothing_is_said_of_scores():
    old, new = rfrope.geometric(32), rfrope.geometric(32, base=5e5)
    found = diff(old, new)
    assert (found.same, found.differs_from, found.layers[0].is_compared) == (False, None, False)
    assert "No score" not in str(found)
    assert "pass seq_len for the latter" in str(found)
    assert diff(old, new, seq_len=1000).differs_from == diff(rfrope.Rope(old, context=1000), new).differs_from > 0
    assert not diff(old, new).to_dict()["layers"][0]["is_compared"]


MROPE = {"rope_type": "default", "mrope_section": [8, 12, 12]}
PICTURES = {"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280, "num_heads": 16}}
PICTURES |= {"text_config": {**LLAMA, "model_type": "qwen2_5_vl_text", "rope_scaling": MROPE}}


def test_the_top_is_held_against_the_text_part_beside_one_that_sees():
    assert len(rfrope.from_config(PICTURES)) == 2
    assert str(diff(PICTURES | {"vision_config": None}, PICTURES)).startswith("vision_config\n  part none -> ")
    text = LLAMA | {"model_type": "qwen2", "rope_theta": 1e4}
    for sides in ((PICTURES, text), (text, PICTURES)):
        found = diff(*sides)
        (one,) = (one for one in found.layers if "rope_theta" in changes(one))
        assert one.frequency_error > 0.5
        assert found.differs_from == one.differs_from == diff(LLAMA, LLAMA | {"rope_theta": 1e4}).differs_from
    assert [one.is_compared for one in diff(PICTURES, text).layers if one.part == "vision_config"] == [False]
    pictures, words = rfrope.from_config(PICTURES)
    assert not any(diff(*sides).layers[0].is_compared for sides in ((pictures, words), (words, pictures)))


def test_nothing_is_said_of_an_elsewhere_that_is_not_there():
    flags = [[1, 1, 1, 1], [0, 0, 0, 0]]
    assert "elsewhere" not in str(diff(*map(_smollm3, flags)))
    assert "elsewhere: no score" in str(diff(_smollm3([1, 1, 1, 0]), _smollm3([1, 0, 1, 0])))


def test_sections_are_for_positions_that_text_does_not_have():
    text = PICTURES["text_config"]
    new = text | {"rope_scaling": MROPE | {"mrope_section": [12, 10, 10]}}
    found = diff(text, new)
    assert (found.differs_from, "mrope_section" in changes(found.layers[0])) == (None, True)
    assert str(found).endswith("as in images, were not compared.")
