"""The table's pairings against transformers' own attention classes, by the code that made them.

What explains a query is tested on made-up ones, without PyTorch; then every entry on its classes.
"""

import dataclasses
import importlib
import json
import warnings

import numpy as np
import pytest
from campaign import one_of
from packages import WARNINGS

import rfrope
from rfrope.data.model_types import has_defaults, model_types
from tools import make_pairings, pairing_layers
from tools.make_pairings import NOTES, UndeterminedError, answer, explanations, found_for, pairing_of
from tools.pairing_layers import CASES, Seen

pytestmark = WARNINGS
PAIRINGS = ("half", "interleaved")
# transformers 5.24 has the configs of these and no class, or nothing of them
NOT_RUN = ("exaone", "internlm3", "iquestcoder", "sam3_lite_text_vit_model", "sarvam_mla", "sarvam_moe")
TABLE = {name: entry for name, entry in model_types().items() if has_defaults(entry)}
RNG = np.random.default_rng(0)


# -- what is written ---------------------------------------------------------------------------------------------------


def test_every_entry_says_what_it_can():
    assert set(NOTES) | set(CASES) <= set(TABLE)
    for name, entry in TABLE.items():
        if name == "sam3_lite_text_vit_model":
            assert not pairing_of(entry)
            continue
        assert entry["pairing"] in (*PAIRINGS, "neither")
        assert entry.get("out_pairing", "") in ({*PAIRINGS, ""} - {entry["pairing"]})
        assert entry.get("rotated", "last") == "last"
        assert "pairing_note" in entry or (entry["pairing"] != "neither" and name not in NOT_RUN)
        by = entry.get("pairing_by", {"key": "", "if_true": "half", "if_false": "interleaved"})
        assert (set(by), {by["if_true"], by["if_false"]}) == ({"key", "if_true", "if_false"}, set(PAIRINGS))
    remote = [entry for entry in model_types().values() if "source" in entry]
    assert len(remote) == 13  # types with remote code, which name what was read for them
    assert all(entry["source"] and entry["pairing"] in PAIRINGS and not has_defaults(entry) for entry in remote)


def test_the_table_stands_as_the_script_writes_it():
    text = make_pairings.PATH.read_text("utf-8")
    assert text == make_pairings._lines(json.loads(text))


# -- what explains a query ---------------------------------------------------------------------------------------------


POSITIONS = np.array([0, 1, 7, 50, 300])


def seen(pairing, out_pairing, *, width=16, start=0, doubled="halves", sign=1.0):
    """What a class would show that turns 8 features of a head, from `start` on, in one way."""
    frequencies = rfrope.geometric(4, base=100.0)
    cos, sin = rfrope.rotation_table(POSITIONS, frequencies)
    still = np.cumsum(RNG.uniform(0.5, 1.5, width)) * np.ones((len(POSITIONS), 1))
    turned = still.copy()
    part = slice(start, start + 8)
    turned[:, part] = rfrope.rotate_by_table(still[:, part], cos, sign * sin, pairing=pairing, out_pairing=out_pairing)
    still[:, part] = rfrope.convert_pairing(still[:, part], pairing, out_pairing)
    wide = {"halves": lambda t: np.tile(t, 2), "neighbours": lambda t: np.repeat(t, 2, axis=-1), "no": lambda t: t}
    return Seen("made up", still, turned, wide[doubled](cos), wide[doubled](sin), POSITIONS, frequencies)


@pytest.mark.parametrize("doubled", ["halves", "neighbours", "no"])
@pytest.mark.parametrize(("width", "start", "where"), [(8, 0, "first"), (16, 0, "first"), (16, 8, "last")])
@pytest.mark.parametrize("out_pairing", PAIRINGS)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_one_pairing_explains_a_query(pairing, out_pairing, width, start, where, doubled):
    one = seen(pairing, out_pairing, width=width, start=start, doubled=doubled)
    assert explanations(one) == [(pairing, out_pairing, where)]
    usual = {"out_pairing": pairing, "rotated": "first"}
    assert usual | answer([one, one]) == {"pairing": pairing, "out_pairing": out_pairing, "rotated": where}


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_other_rotations_are_neither(pairing):
    one, middle = seen(pairing, pairing), seen(pairing, pairing, width=16, start=4)
    for changed in (
        *({"turned": one.turned * 1.001}, {"turned": one.turned[::-1]}, {"cos": one.sin, "sin": one.cos}),
        {"frequencies": one.frequencies * 1.001},
    ):
        assert explanations(dataclasses.replace(one, **changed)) == []
    assert explanations(middle) == []
    assert answer([seen(pairing, pairing, sign=-1.0)]) == {"pairing": "neither"}


def test_queries_and_keys_must_agree():
    one = seen("half", "half")
    for found in ([one, seen("interleaved", "interleaved")], [one, seen("half", "half", sign=-1.0)], []):
        with pytest.raises(UndeterminedError, match="not one answer"):
            answer(found)


# -- every entry -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classes():
    with warnings.catch_warnings():  # importing them raises a few of their own
        warnings.simplefilter("ignore")
        pytest.importorskip("torch", reason="torch is not installed")
        transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
        transformers.logging.set_verbosity(transformers.logging.CRITICAL)
        return pairing_layers.config_classes()


RUN = [name for name in TABLE if name not in NOT_RUN]


@pytest.mark.parametrize("model_type", one_of(RUN, lambda name: str(pairing_of(TABLE[name]))))
def test_the_table_says_what_the_classes_do(model_type, classes):
    if model_type not in classes:
        pytest.skip(f"the installed transformers has no {model_type}")
    entry = TABLE[model_type]
    assert found_for(model_type, entry, classes) == pairing_of(entry)


@pytest.mark.parametrize("model_type", NOT_RUN)
def test_what_is_not_run_cannot_be(model_type, classes):
    with pytest.raises(UndeterminedError, match="transformers"):
        found_for(model_type, TABLE[model_type], classes)


def test_the_key_of_deepseek_is_read_by_its_class(classes, monkeypatch):
    entry = TABLE["deepseek_v3"]
    assert entry["pairing_by"] == {"key": "rope_interleave", "if_true": "interleaved", "if_false": "half"}
    module = pairing_layers.modelling(classes["deepseek_v3"])
    monkeypatch.setattr(module, "apply_rotary_pos_emb_interleave", module.apply_rotary_pos_emb)
    found = found_for("deepseek_v3", entry, classes)
    assert (found["pairing"], found["pairing_by"]["if_true"]) == ("half", "half")


# -- what the notes say ------------------------------------------------------------------------------------------------


def test_weights_that_transformers_reorders_have_a_note(classes):
    mapping = pytest.importorskip("transformers.conversion_mapping")
    loading = importlib.import_module("transformers.core_model_loading")
    if not hasattr(mapping, "get_checkpoint_conversion_mapping") or not hasattr(loading, "PermuteForRope"):
        pytest.skip("another version of transformers, which says otherwise how it reorders weights")
    found = {
        name
        for name in classes
        for one in mapping.get_checkpoint_conversion_mapping(name) or []
        if any(isinstance(step, loading.PermuteForRope) for step in getattr(one, "operations", None) or [])
    }
    assert found == {"gradium_phonon_tts", "kimi_k25", "mistral_large4", "step3p5_vision"}
    for name in ("gradium_phonon_tts", "kimi_k25_vision", "pixtral", "step3p5_vision"):
        assert "reorders" in NOTES[name]
