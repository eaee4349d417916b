"""Keys that look like RoPE are read, said, or refused by name, in published dialects and in every known type."""

import json
from pathlib import Path

import pytest
from campaign import one_of
from conftest import rows

import rfrope
from rfrope.data.model_types import has_defaults, model_types
from rfrope.models.accounting import looks_like_rope, read_pairing
from rfrope.scaling.registry import describe_reach

CASES = json.loads(Path(__file__).with_name("dialects.json").read_text("utf-8"))
NEW = {"model_type": "made_up", "rope_theta": 1e4, "head_dim": 16, "max_position_embeddings": 2048}


# -- published dialects ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_dialects(case):
    expect, config = case["expect"], case["config"]
    if words := [word for key, word in expect.items() if key.startswith("error")]:
        with pytest.raises(ValueError, match=f"^{words[0]} is .*; expected "):
            rfrope.from_config(config)
        return
    ropes = rfrope.from_config(config)
    rope, *_ = ropes
    said = "\n".join((*rope.source.model.remarks, describe_reach(rope)))
    found = {
        **{key: getattr(rope, key) for key in ("rotary_dim", "pairing")},
        "last_frequency": rope.frequencies[-1],
        "turns_last": rope.source.model.turns_last,
        "scheme": rope.source.rope_parameters["rope_type"],
        "attention_factor_transformers": rope.attention_factor,
    }
    if "kinds" in expect:
        full, sliding = (one for _, one in sorted((one.source.model.name, one) for one in ropes))
        assert (full.n_blocks, sliding.n_blocks) == (32, 64)
        assert full.frequencies[-1] == pytest.approx(1.6194e-07, rel=1e-4)
        assert sliding.source.rope_parameters["rope_theta"] == 1e4
    if "can_relocate" in expect:
        assert all(one.possible for one in rfrope.models.can_relocate(config).ropes)
    if "attention_factor_sglang" in expect:
        made = rfrope.models.compare(config, ["transformers", "vLLM", "SGLang"]).ropes[0].engines
        wanted = [expect[f"attention_factor_{name}"] for name in ("transformers", "vllm", "sglang")]
        assert [one.rope.attention_factor for one in made] == pytest.approx(wanted)
    assert expect.get("says", "") in said
    assert {key: found[key] for key in expect if key in found} == {key: expect[key] for key in expect if key in found}


# -- no silent plain RoPE ----------------------------------------------------------------------------------------------

# each means another RoPE than a plain one of the whole head
ADDED = dict(rows("models/accounting.json", "added"))
KNOWN = {name: entry for name, entry in model_types().items() if has_defaults(entry) and entry.get("rope") is not False}
ODD = "qwen3_omni_moe_text"  # whose class has an odd head_dim by default
KNOWN = {name: entry for name, entry in KNOWN.items() if entry.get("axial") != "unknown" and name != ODD}


def state(config):
    """Everything that a config says of RoPE, as text, and the remarks on it; or twice its error."""
    try:
        layers = rfrope.models.list_layers(config)
    except (ValueError, TypeError) as error:
        return str(error), str(error)
    remarks = "\n".join(remark for one in layers.kinds if one.rope for remark in one.rope.source.model.remarks)
    return json.dumps(layers.to_dict()), remarks


@pytest.mark.parametrize("model_type", ["made_up", *one_of(KNOWN, lambda name: str(sorted(KNOWN[name])))])
def test_no_key_is_dropped(model_type):
    entry = KNOWN.get(model_type, {})
    base = {"model_type": model_type, **entry.get("needs", {})} if entry else NEW
    base = {**base, "num_hidden_layers": 2} if "turning" in entry.get("layers", {}) else base
    plain, _ = state(base)
    rope, *_ = rfrope.from_config(base)
    for key, value in ADDED.items():
        if key in base or rope.pairing == read_pairing(key, value) is not None:
            continue
        made, said = state({**base, key: value})
        assert made != plain or key in said
        if "axial" not in entry:
            whole = {"model_type": model_type, "text_config": base}
            assert key in state({**whole, key: value})[1]


@pytest.mark.parametrize("key", ["europe", "properties", "scope_type", "head_dim", "dropout", "group_size", "rotate_k"])
def test_other_words_are_not_of_rope(key):
    assert not looks_like_rope(key, False)
    assert rfrope.from_config({**NEW, key: 1 if key == "head_dim" else 3.0} | {"head_dim": 16})


def test_pairings_of_an_unknown_type_with_latent_attention_or_sections_must_be_given():
    for more in ({"qk_rope_head_dim": 8}, {"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}):
        with pytest.raises(ValueError, match='is unknown; expected pairing="half" or "interleaved", or rope_interl'):
            rfrope.from_config(NEW | more)
        assert rfrope.from_config(NEW | more, pairing="half")[0].source.model.pairing_from == "given"
        (rope,) = rfrope.from_config(NEW | more | {"rope_interleave": True})
        assert (rope.pairing, rope.source.model.pairing_from) == ("interleaved", "config")


def test_agreeing_keys_are_silent():
    same = {"rotary_pct": 1.0, "rotary_emb_base": 1e4, "use_rope": True, "rope_interleaved": False, "alibi": False}
    same |= {
        "position_embedding_type": "rope",
        "rotary_dim": 16,
        "attn_factor": 1.0,
        "no_rope_layers": [],
        "yarn": None,
    }
    for key, value in same.items():
        (rope,) = rfrope.from_config({**NEW, key: value})
        assert (rope.source.model.remarks, rope.n_blocks, rope.pairing) == ((), 8, "half")
