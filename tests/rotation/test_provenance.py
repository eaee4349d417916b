"""The origin of a Rope: its record, and the dicts of files and of earlier versions."""

import dataclasses
import json
import pickle

import numpy as np
import pytest

import rfrope
from rfrope import Rope
from rfrope.rotation import ModelPart, Provenance

FULL = Provenance(
    kernel=("gaussian(scale=1.0)", "gaussian(scale=2.0)"),
    design="optimised",
    norm="rms",
    seed=0,
    error={"rms": 0.5, "sup": 1.0},
    rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    model=ModelPart("text_config", "llama", "known", True, "a note", 128, {"": 128}, 192),
    scaled_by=({"scheme": "linear", "factor": 2.0},),
    extra={"author": "me", "none": None},
)


@pytest.mark.parametrize("source", [FULL, Provenance(), Provenance(seed=[1, 2])])
def test_a_record_comes_back_from_its_dict(source):
    held = source.to_dict()
    assert Provenance.from_dict(held) == source
    assert Provenance.from_dict(json.loads(json.dumps(held))) == source
    assert pickle.loads(pickle.dumps(source)) == source


def test_what_is_not_known_is_left_out_and_zeros_are_kept():
    assert Provenance().to_dict() == {}
    assert {"seed": 0}.items() <= FULL.to_dict().items()


@pytest.mark.parametrize("held", [{"pairing": "half"}, {"window": "wide"}, {"error": 3}, {"context": 8}, {"kernel": 2}])
def test_other_keys_and_values_of_another_kind_are_kept(held):
    source = Provenance.from_dict(held)
    assert source.extra == held == source.to_dict()


def test_a_dict_and_a_record_are_copied():
    held = {"deep": [1, {"a": 2}]}
    source = rfrope.Rope([1.0], source=held).source
    held["deep"][1]["a"] = 3
    assert source.extra == {"deep": [1, {"a": 2}]}
    assert rfrope.Rope([1.0], source=FULL).source == FULL
    held["self"] = held  # one that holds itself, too
    source = rfrope.Rope([1.0], source=held).source
    assert source.extra["deep"] == [1, {"a": 3}]
    assert source.extra["deep"][1] is not held["deep"][1]


def test_no_two_records_share_what_can_be_written_to():
    Provenance().model.windows["x"] = 1
    assert Provenance().model.windows == {}
    rope = Rope([1.0], source={"author": "me", "seed": np.int64(3)})
    assert (rope.source.seed, rope.source.extra) == (3, {"author": "me"})
    for copied in (dataclasses.replace(rope, context=5), Rope([2.0], source=rope.source)):
        copied.source.extra["author"] = "you"
        assert rope.source.extra == {"author": "me"}
        assert copied.source != rope.source


def test_fields_are_not_hidden_by_what_else_is_said():
    held = Provenance(kernel="gaussian", extra={"kernel": "another", "maker": "me"}).to_dict()
    assert held == {"kernel": "gaussian", "maker": "me"}
