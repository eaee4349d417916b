"""The gate for cached keys that shall move: held against rotation from scratch, and against classes of transformers."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from campaign import campaign
from published import BY_MODEL, PUBLISHED, lists

import rfrope
from rfrope.data.model_types import model_types
from rfrope.models import can_relocate
from rfrope.rotation import relocate, rerotate
from tools import pairing_layers

KEY = "original_max_position_embeddings"
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
LONGROPE = LLAMA | {"rope_scaling": {"rope_type": "longrope", KEY: 512, **lists(8)}}
DYNAMIC = LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
SCHEMES = {
    "default": {},
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, KEY: 512},
    "longrope": {KEY: 512, "factor": 4.0, **lists(8)},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, KEY: 512},
    "proportional": {"partial_rotary_factor": 0.5},
}


def configs():
    """All that the table describes by itself, published ones, and every scheme for the types of plain text models."""
    found = {f"table: {name}": {"model_type": name} for name in model_types()}
    found |= {f"published: {one.model}": one.config for one in PUBLISHED}
    for kind in ("llama", "qwen2", "cohere", "glm4", "stablelm"):
        for name, values in SCHEMES.items():
            parameters = {"rope_type": name, "rope_theta": 5e5, **values}
            found[f"{kind}: {name}"] = LLAMA | {"model_type": kind, "rope_parameters": parameters}
    return found


def ropes_of(config):
    try:
        return rfrope.from_config(config)
    except ValueError:
        return ()


def turned(k, phases, pairing):
    """Rotation as it is defined: both features of each block, by the phase of the block."""
    blocks = phases.shape[-1]
    half = pairing == "half"
    one, two = (k[..., :blocks], k[..., blocks:]) if half else (k[..., 0::2], k[..., 1::2])
    found = np.empty_like(k)
    found[..., slice(None, blocks) if half else slice(0, None, 2)] = one * np.cos(phases) - two * np.sin(phases)
    found[..., slice(blocks, None) if half else slice(1, None, 2)] = one * np.sin(phases) + two * np.cos(phases)
    return found


def check_moves(rope, frequencies, factor, rng, atol, message):
    """Hold keys that `relocate` moves with a Rope against keys that given frequencies ``(D,)`` turn from scratch.

    A Rope of two axes of a picture has these once for each axis, the first half of its blocks turning by rows.
    """
    assert rope.rotary_dim in (2 * len(frequencies), 4 * len(frequencies)), message
    k, (old, new) = rng.standard_normal((4, rope.rotary_dim)), rng.integers(0, 700, (2, 4, 1))
    axes = 1 if rope.vectors.ndim == 1 else rope.vectors.shape[-1]
    if rope.rotary_dim == 4 * len(frequencies):
        old, new = rng.integers(0, 700, (2, 4, 2))
        phases = [np.concatenate([at[:, :1] * frequencies, at[:, 1:] * frequencies], axis=-1) for at in (old, new)]
    else:
        phases = [at * frequencies for at in (old, new)]
        old, new = (np.repeat(at, axes, axis=-1) if axes > 1 else at[:, 0] for at in (old, new))  # a text
    cached, wanted = (factor * turned(k, one, rope.pairing) for one in phases)
    np.testing.assert_allclose(relocate(cached, old, new, rope), wanted, rtol=0, atol=atol, err_msg=message)


def test_keys_of_published_models_move_as_if_turned_from_scratch():
    """By bases and widths as they were published, of schemes whose frequencies are powers of the base."""
    rng, count = np.random.default_rng(0), 0
    for one in PUBLISHED[::2]:
        for place, found in zip(one.places, can_relocate(one.config, seq_len=700).ropes, strict=True):
            if place.rope_type == "default" and found.rope.pairing and found.rope.vectors.ndim == 1:
                frequencies = place.theta ** (-np.arange(place.n_blocks) / place.n_blocks)
                check_moves(found.rope, frequencies, 1.3, rng, 1e-12, one.model)
                count += 1
    assert count >= 20


@campaign
@pytest.mark.filterwarnings("ignore")
def test_keys_of_three_hundred_configs_move_as_if_turned_from_scratch():
    """Of every kind of layer, by the frequencies that the rotary classes of transformers have for the config."""
    pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    classes, rng, seen, missing = pairing_layers.config_classes(), np.random.default_rng(0), set(), {}
    for name, config in configs().items():
        if not ropes_of(config):
            continue
        for one in can_relocate(config, cached_len=500, seq_len=500).ropes:
            if one.rope.pairing is None:
                assert not one.possible, name
                continue
            try:
                frequencies, factor = frequencies_of_transformers(classes, config, one.name)
            except (pairing_layers.UndeterminedError, LookupError, AttributeError) as error:
                missing[name] = f"{type(error).__name__}: {error}"
                continue
            check_moves(one.rope, frequencies, factor, rng, 2e-3, f"{name} {one.name}")
            seen.add(name)
    assert len(seen) >= 300, missing


def frequencies_of_transformers(classes, config, name):
    """Frequencies and factor of the rotary class of one RoPE of a config."""
    values = {key: value for key, value in config.items() if key != "model_type"}
    parameters = values.get("rope_parameters", {})
    if parameters.get("rope_type") == "ntk":  # which transformers does not have
        n = {"glm4": 32, "stablelm": 2}.get(config["model_type"], 8)  # half of 128 features, a quarter of 16
        base = parameters["rope_theta"] * parameters["factor"] ** (n / (n - 1))
        return base ** (-np.arange(n) / n), 1.0
    made = classes[config["model_type"]](**json.loads(json.dumps(values)))
    steps = [step for step in name.split(".") if step]
    while steps and hasattr(getattr(made, steps[0], None), "to_dict"):
        made = getattr(made, steps.pop(0))
    if not steps and not hasattr(made, "hidden_size"):
        made = made.get_text_config()
    case = pairing_layers.CASES.get(made.model_type, pairing_layers.Case())
    kind = pairing_layers._one_class(made, case.rotary, "RotaryEmbedding|RopePosition")[0]
    rotary = kind(made)
    buffers, layer = dict(rotary.named_buffers()), ".".join(steps)
    key = f"{layer}_inv_freq" if f"{layer}_inv_freq" in buffers else "inv_freq"
    factor = getattr(rotary, f"{layer}_attention_scaling", getattr(rotary, "attention_scaling", 1.0))
    frequencies = buffers[key].double().numpy()
    if "dinov3" in made.model_type:  # the factor is in the forward of the class
        frequencies = 2.0 * np.pi * frequencies
    if made.model_type.startswith("ernie4_5_vl_moe"):  # the forward brings them back into their order
        frequencies = np.sort(frequencies)[::-1]
    return frequencies, float(factor)


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


@pytest.mark.parametrize(
    ("config", "lengths", "possible", "n_changed"),
    [
        (DYNAMIC, (None, None), True, 0),
        (DYNAMIC, (1, 2048), True, 0),
        (DYNAMIC, (2048, 2049), False, 7),  # the first frequency stays
        (DYNAMIC, (3000, 3000), True, 0),
        (DYNAMIC, (3000, 4000), False, 7),
        (LONGROPE, (None, None), False, 7),
        (LONGROPE, (None, 512), True, 0),
        (LONGROPE, (513, None), True, 0),
        (LONGROPE, (513, 2048), True, 0),
        (LLAMA, (1, 10**6), True, 0),
    ],
)
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


def test_reasons():
    def reason(config, **options):
        found = can_relocate(config, **options)
        return found.possible, found.ropes[0].reason

    assert reason(LLAMA) == (True, "16 features of a key turn")
    latent = reason(BY_MODEL["DeepSeek V3 and R1"].config)
    assert latent == (
        True,
        "the last 64 features of a key turn, which latent attention caches apart; transformers caches them paired "
        "'half', an engine that turns them in place 'interleaved'",
    )
    possible, text = reason({"model_type": "hunyuan_v1_dense"})
    assert not possible
    assert text.startswith("a norm with a weight for each feature follows the rotation")
    possible, text = reason({"model_type": "nanochat"})
    assert not possible
    assert "pairs features in a way of its own: half with every angle negated" in text
    possible, text = reason({"model_type": "ernie4_5_vl_moe_text"})
    assert possible
    assert text.endswith("in an order of its own, so keys move by one number for all axes")
    unknown = LLAMA | {"model_type": "made_up", "rope_theta": 1e4}
    assert reason(unknown) == (
        False,
        "the model type 'made_up' is not in the table, so that its pairing would be a guess; give pairing=",
    )
    assert reason(unknown, pairing="interleaved") == (True, "16 features of a key turn")
    chunks = {"chunk_size": 262144, "local_size": 8192}  # of Qwen2.5-7B-Instruct-1M
    possible, text = reason(LLAMA | {"model_type": "qwen2", "dual_chunk_attention_config": chunks})
    assert (possible, "by positions modulo 253952, so old and new positions are" in text) == (True, True)
    growing = reason(DYNAMIC)[1]
    assert growing.endswith("in texts of up to 2048 positions; beyond, frequencies depend on the length")


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
    assert (one["possible"], one["rotary_dim"], one["pairing"], one["cached_pairing"]) == (
        True,
        64,
        "interleaved",
        "half",
    )
    assert one["changed"] == []
    assert can_relocate(LLAMA).to_dict()["ropes"][0]["cached_pairing"] == "half"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: can_relocate({"model_type": "bert"}), ValueError, "config describes no RoPE"),
        (lambda: can_relocate(LLAMA, seq_len=0), ValueError, "seq_len is 0; expected a whole number from 1"),
        (lambda: can_relocate(LLAMA, cached_len=2.5), TypeError, "cached_len is 2.5; expected a whole number"),
        (lambda: can_relocate(3), TypeError, "config is 3; expected a dict"),
        (lambda: can_relocate(LLAMA, pairing="both"), ValueError, "pairing is 'both'"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


# -- keys of models of transformers ------------------------------------------------------------------------------------


SMALL = {
    "llama": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, KEY: 1024}},
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    "glm4": {},
    "cohere": {},
    "hunyuan_v1_dense": {},
    "deepseek_v3": {
        **{"q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 8, "v_head_dim": 16},
        **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
        "num_key_value_heads": 4,
    },
}


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
    assert str(found).splitlines()[1] == "full_attention: layers 3, 7: no RoPE; their keys stay what they are"
    assert found.to_dict()["still"][0]["layers"] == [3, 7]
    hybrid = can_relocate({"model_type": "qwen3_next", "num_hidden_layers": 4})
    assert str(hybrid).endswith("layers 0-2: no attention; they have no keys, and no position enters their state")


def test_each_kind_of_layer_has_its_answer():
    found = can_relocate({"model_type": "gemma3_text", "num_hidden_layers": 7})
    assert {one.name: one.layers for one in found.ropes} == {
        "full_attention": (5,),
        "sliding_attention": (0, 1, 2, 3, 4, 6),
    }
    assert (found.still, bool(found)) == ((), True)
    assert can_relocate({"model_type": "llama", "head_dim": 8}).ropes[0].layers is None
