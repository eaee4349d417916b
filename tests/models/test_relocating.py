"""The gate for cached keys that shall move: held against rotation from scratch, and against classes of transformers."""

import dataclasses
import json

import numpy as np
import pytest
from campaign import sparse
from conftest import rows
from published import BY_MODEL, PUBLISHED, lists

import rfrope
from rfrope.data.model_types import model_types
from rfrope.models import can_relocate
from rfrope.rotation import relocate, rerotate

KEY = "original_max_position_embeddings"
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
LONGROPE = LLAMA | {"rope_scaling": {"rope_type": "longrope", KEY: 512, **lists(8)}}
DYNAMIC = LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
SCHEMES = rows("models/relocating.json", "schemes")


def configs():
    """All that the table describes by itself, published ones, and every scheme for the types of plain text models."""
    found = {f"table: {name}": {"model_type": name} for name in model_types()}
    found |= {f"published: {one.model}": one.config for one in PUBLISHED}
    for kind in ("llama", "qwen2", "cohere", "glm4", "stablelm"):
        for name, values in SCHEMES.items():
            parameters = {"rope_type": name, "rope_theta": 5e5, **values}
            found[f"{kind}: {name}"] = LLAMA | {"model_type": kind, "rope_parameters": parameters}
    return found


def turned(k, phases, pairing):
    """Rotation as it is defined: both features of each block, by the phase of the block."""
    blocks = phases.shape[-1]
    one, two = (slice(0, blocks), slice(blocks, None)) if pairing == "half" else (slice(0, None, 2), slice(1, None, 2))
    found = np.empty_like(k)
    found[..., one] = k[..., one] * np.cos(phases) - k[..., two] * np.sin(phases)
    found[..., two] = k[..., one] * np.sin(phases) + k[..., two] * np.cos(phases)
    return found


@pytest.mark.parametrize(
    "of", ["published", "llama", "stablelm", *sparse(("table", "qwen2", "cohere", "glm4"), {"glm4"}.__contains__)]
)
def test_keys_move_as_if_turned_from_scratch(of):
    """By the frequencies of `from_config`, which test_parts.py holds against transformers, for every kind of layer."""
    rng, seen = np.random.default_rng(0), 0
    for name, config in configs().items():
        try:
            held = {one.source.model.name: one for one in rfrope.from_config(config, seq_len=500)}
        except ValueError:
            continue  # no RoPE
        for one in can_relocate(config, cached_len=500, seq_len=500).ropes if name.startswith(of) else ():
            rope = held[one.name]
            assert one.possible or rope.pairing is None or one.reason, name
            if rope.pairing is None:
                assert not one.possible, name
                continue
            vectors = rope.vectors if rope.vectors.ndim > 1 else rope.vectors[:, None]
            k, (old, new) = rng.standard_normal((4, rope.rotary_dim)), rng.integers(0, 700, (2, 4, vectors.shape[-1]))
            cached, wanted = (rope.attention_factor * turned(k, at @ vectors.T, rope.pairing) for at in (old, new))
            old, new = (at if rope.vectors.ndim > 1 else at[:, 0] for at in (old, new))
            np.testing.assert_allclose(relocate(cached, old, new, one.rope), wanted, atol=1e-11, err_msg=name)
            seen += 1
    assert seen >= 7


# -- lengths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_that_depend_on_the_length_are_found(scheme):
    """From frequencies alone; `scaling.records` says the same."""
    found = can_relocate(LLAMA | {"rope_parameters": {"rope_type": scheme, **SCHEMES[scheme]}}).ropes[0]
    by_length = {one.name: one.by_length for one in rfrope.scaling.records()}[scheme]
    assert found.constant_up_to == ({"dynamic": 2048, "longrope": 512}[scheme] if by_length else None)


@pytest.mark.parametrize("last", [1, 2, 3, 1000, 2049, 131071])
def test_the_last_text_without_a_change_is_found_whatever_its_length(last):
    (one,) = can_relocate(DYNAMIC | {"max_position_embeddings": last}).ropes
    assert one.constant_up_to == last


def test_a_text_that_grows_over_the_switch():
    found = can_relocate(LONGROPE, cached_len=512, seq_len=513)
    (one,) = found.ropes
    assert not found
    assert not found.possible
    assert one.changed == tuple(range(1, 8))  # the first factor is 1 in both lists
    assert one.constant_up_to == 512
    assert found.reasons == (
        "may not move as they are: the frequencies of 7 of 8 blocks are not the same in both texts, as in any up to "
        "512 positions; first rotation.rerotate(k, positions, cached_rope, rope)",
    )
    k, old, new = np.random.default_rng(0).standard_normal((40, 16)), np.arange(40), np.arange(40) + 400
    short, long = (rfrope.from_config(LONGROPE, seq_len=n)[0] for n in (512, 513))
    cached = rerotate(short.rotate(k, old), old, one.cached_rope, one.rope)
    np.testing.assert_allclose(relocate(cached, old, new, one.rope), long.rotate(k, new), atol=1e-14)


@pytest.mark.parametrize(("config", "lengths", "possible", "n_changed"), rows("models/relocating.json", "lengths"))
def test_lengths_decide(config, lengths, possible, n_changed):
    found = can_relocate(config, cached_len=lengths[0], seq_len=lengths[1])
    assert (found.possible, len(found.ropes[0].changed)) == (possible, n_changed)
    assert (found.ropes[0].cached_rope is None) == possible
    assert bool(found) == possible == (found.reasons == ())


def test_a_factor_that_depends_on_the_length_alone():
    """Phi-3.5-MoE has one for short and one for long texts."""
    same = {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8, "short_mscale": 1.0, "long_mscale": 1.25, KEY: 512}
    (one,) = can_relocate(LLAMA | {"rope_scaling": {"rope_type": "longrope", **same}}).ropes
    assert not one.possible
    assert one.changed == ()
    assert one.reason.startswith("the attention factor is not the same in both texts, as in any up to 512 positions")
    assert (one.cached_rope.attention_factor, one.rope.attention_factor) == (1.0, 1.25)


# -- what no length explains -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "pairing", "possible", "words"), rows("models/relocating.json", "reasons"))
def test_reasons(config, pairing, possible, words):
    found = can_relocate(config, **({} if pairing is None else {"pairing": pairing})).ropes[0]
    assert (found.possible, words in found.reason) == (possible, True), found.reason


def test_all_kinds_of_layers_must_be_movable():
    (full, sliding) = (found := can_relocate(BY_MODEL["Gemma 3 4B"].config)).ropes
    assert found
    assert (full.name, sliding.name) == ("text_config.full_attention", "text_config.sliding_attention")
    parameters = {"full_attention": {"rope_type": "longrope", "rope_theta": 1e4, KEY: 512, **lists(8)}}
    parameters["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    mixed = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "rope_parameters": parameters}
    found = can_relocate(mixed)
    assert [one.possible for one in found.ropes] == [False, True]
    assert not found
    assert str(found).splitlines()[0].startswith("full_attention: may not move as they are: the frequencies of 7 of 8")


def test_plain_data():
    found = can_relocate(BY_MODEL["DeepSeek V3 and R1"].config).to_dict()
    assert json.loads(json.dumps(found)) == found
    (one,) = found["ropes"]
    expected = {"possible": True, "rotary_dim": 64, "pairing": "interleaved", "cached_pairing": "half", "changed": []}
    assert {name: one[name] for name in expected} == expected
    assert can_relocate(LLAMA).to_dict()["ropes"][0]["cached_pairing"] == "half"


# -- keys of models of transformers ------------------------------------------------------------------------------------


SMALL = dict(rows("models/relocating.json", "small"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", SMALL)
def test_keys_in_caches_of_transformers_move_where_the_gate_says_so(model_type):
    tiny_models = pytest.importorskip("tiny_models", reason="torch and transformers are not installed")
    torch, ids = tiny_models.torch, tiny_models.IDS
    model = tiny_models.made(model_type, **SMALL[model_type])
    for norm in (one for name, one in model.named_parameters() if "key_layernorm" in name):
        torch.nn.init.uniform_(norm, 0.5, 1.5)
    at, keys = torch.arange(ids.shape[1])[None], []
    for moved in (0, 3000):
        with torch.no_grad():
            cache = model(ids, position_ids=at + moved, use_cache=True)[tiny_models.CACHE]
        latent = model_type == "deepseek_v3"  # whose cache has latent features for keys, and what turns for values
        keys.append((cache.layers[0].values if latent else cache.layers[0].keys).double().numpy())
    (one,) = can_relocate(model.config, seq_len=1).ropes
    rope = dataclasses.replace(one.rope, pairing=one.rope.source.model.cached_pairing or one.rope.pairing)
    assert rope.rotary_dim == {"gpt_neox": 4, "glm4": 8}.get(model_type, 16)
    got = relocate(keys[0], at.numpy(), at.numpy() + 3000, rope)
    error = np.max(np.abs(got - keys[1])) / np.max(np.abs(keys[1]))
    assert error < 2e-3 if one.possible else error > 0.05  # phases of float32 at 3000
    assert np.max(np.abs(keys[0] - keys[1])) > 0.1 * np.max(np.abs(keys[1]))
    assert one.possible == (model_type != "hunyuan_v1_dense")


# -- layers that differ ------------------------------------------------------------------------------------------------


def test_layers_without_rope_are_named_and_stay():
    found = can_relocate({"model_type": "llama4_text", "num_hidden_layers": 8})
    (one,), (still,) = found.ropes, found.still
    assert (one.layers, still.layers, bool(found)) == ((0, 1, 2, 4, 5, 6), (3, 7), True)
    assert str(found).splitlines()[0].startswith("layers 0-2, 4-6: may move: 128 features")
    assert str(found).splitlines()[1] == "full_attention: layers 3, 7: no RoPE; their keys stay as they are"
    assert found.to_dict()["still"][0]["layers"] == [3, 7]
    hybrid = can_relocate({"model_type": "qwen3_next", "num_hidden_layers": 4})
    assert str(hybrid).endswith("layers 0-2: no attention; they have no keys, and no position enters their state")
