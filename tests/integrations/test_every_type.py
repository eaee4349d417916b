"""`replace_rotary` in every class of the pairing table: the queries and keys of its own rotation, or a stated reason.

Attention classes run without weights, as in `tools.pairing_layers`: their queries and keys are caught at the door
of the attention function, turned by the tables of their own rotary class, and by a Rope in its place.
"""

import dataclasses
import inspect
import re
import warnings

import numpy as np
import pytest
from campaign import campaign, sparse
from conftest import library

import rfrope
from rfrope.data.model_types import known, model_types
from tools import pairing_layers
from tools.pairing_layers import CASES, TOKENS, Case, made_config

torch = library("torch").module
with warnings.catch_warnings():  # importing them raises a few of their own
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
    from rfrope.integrations.transformers import replace_rotary
    from rfrope.layers.torch import RotaryEmbedding

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error::pytest.PytestWarning")]
transformers.logging.set_verbosity(transformers.logging.CRITICAL)

PICTURES = "computes positions from images itself"
NEITHER = "no Rope does that"
REFUSED = {  # what truly cannot be replaced, and why: docs/howto/transformers.rst has the same reasons
    **dict.fromkeys(("dinov3_vit", "eomt_dinov3", "sapiens2", "llama4_vision_model", "efficientloftr"), PICTURES),
    **dict.fromkeys(("gptj", "codegen"), "it has no rotary module"),
    **dict.fromkeys(("gemma4_vision", "hunyuan_vl_text", "neucodec", "xcodec2", "qwen2_5_omni_dit"), NEITHER),
    **dict.fromkeys(("sam2_video", "sam3_tracker_video", "edgetam_video"), "keys at other positions than queries"),
}
NOT_THERE = ("internlm3", "iquestcoder", "sam3_lite_text_vit_model")  # transformers has no such classes
TYPES = [name for name, entry in model_types().items() if "pairing" in entry and "source" not in entry]
TYPES = [name for name in TYPES if name not in (*NOT_THERE, *REFUSED)]


@pytest.fixture(scope="module")
def classes():
    return pairing_layers.config_classes()


class Model(torch.nn.Module):
    """A rotary module and one attention module."""

    def __init__(self, config, rotary, attention):
        super().__init__()
        self.config = config
        if rotary is not None:
            self.rotary_emb = rotary
        self.self_attn = attention


def parts(model_type, classes):
    """Config, rotary module and attention classes of a model type; with sections where it has M-RoPE."""
    needs, case = known(model_type).get("needs", {}), CASES.get(model_type, Case())
    config = made_config(classes[model_type], model_type, **needs)
    attentions = pairing_layers._one_class(
        config, case.attention, "Attention|Attn", r"apply_\w*(rot|rope)|rotary|freqs"
    )
    kinds = pairing_layers._one_class(config, case.rotary, "RotaryEmbedding|RopePosition")
    rotary = kinds[0](config) if kinds else None
    sections = getattr(rotary, "mrope_section", None)
    if isinstance(sections, list) and sum(sections) == len(rotary.inv_freq):
        config.rope_parameters = dict(config.rope_parameters) | {"mrope_section": list(sections)}
    return config, rotary, attentions


def own_rope(config, rotary):
    """What `from_config` reads, or, where the config alone does not say it, what the rotary class does to each axis."""
    entry = known(config.model_type)
    if entry.get("axial") == "unknown":
        axes, columns = (3 if config.model_type.startswith("minimax") else 2), []
        for axis in range(axes):
            made = rotary(torch.ones(1, 1), torch.eye(axes)[axis].repeat(4, 1))
            cos, sin = (table.reshape(-1, table.shape[-1])[0].double().numpy() for table in made)
            angles = np.arctan2(sin, cos)
            columns.append(angles[::2] if entry["pairing"] == "interleaved" else angles[: len(angles) // 2])
        return rfrope.Rope(np.stack(columns, -1), pairing=entry["pairing"])
    found = rfrope.from_config(config)
    found = [one for one in found if "config" not in one.source.model.name] or found
    if config.model_type == "nanochat":
        found = [dataclasses.replace(one, frequencies=-one.frequencies, pairing="half") for one in found]
    return {one.source.model.name.rpartition(".")[2]: one for one in found} if len(found) > 1 else found[0]


def caught(model, positions, states, kind, neutral=False):
    """Query and key of the first head, by what stands in the place of the rotary module."""
    layer, rotary = model.self_attn, getattr(model, "rotary_emb", None)
    if rotary is None or (hasattr(rotary, "inv_freq") and not hasattr(rotary, "turning")):
        given = pairing_layers._table(layer, rotary, model.config, positions, kind)
    else:
        wanted = inspect.signature(getattr(rotary.__dict__.get("rotary"), "own", rotary).forward).parameters
        options = {"layer_type": kind} if "layer_type" in wanted and kind else {}
        given = rotary(torch.ones(1, 1, dtype=torch.float64), positions, **options)
        given = {kind: given} if hasattr(layer, "rope_layer_type") else given
    given = pairing_layers._neutral(given) if neutral else given
    takes = not pairing_layers._TABLES.isdisjoint(inspect.signature(layer.forward).parameters)
    return pairing_layers._caught(layer, given, 0 * positions if neutral and not takes else positions, states)


def asked(config, axes):
    """Positions and states of which a model's classes may accept some."""
    for positions in pairing_layers._positions(Case()):
        if positions.shape[-1] != (axes if "axial" in known(config.model_type) else TOKENS):
            continue
        positions = positions[:1].expand(len(positions), -1, -1) if axes == 1 == positions.ndim - 2 else positions
        yield from ((positions, states) for states in pairing_layers._states(config, TOKENS))


def compared(model, rope, kind):
    """Query and key by its own tables, unturned, and by a Rope; of the first call that the classes accept."""
    one, refused = next(iter(rope.values())) if isinstance(rope, dict) else rope, []
    for positions, states in asked(model.config, RotaryEmbedding(one).axes):
        try:
            own = caught(model, positions, states, kind)
            still = caught(model, positions, states, kind, neutral=True)
        except pairing_layers._REFUSALS as error:
            refused.append(f"{tuple(positions.shape)}, {tuple(states.shape)}: {error}")
            continue
        with replace_rotary(model, rope) as done:
            ours = caught(model, positions, states, kind)
        assert done.attentions > 0
        return own, still, ours
    raise AssertionError(refused)


def replaced(model_type, classes):
    """Queries and keys of each kind of layer and class of attention, of the first layer that turns them."""
    config, rotary, attentions = parts(model_type, classes)
    rope = own_rope(config, rotary)
    for kind in pairing_layers._kinds(config, rotary):
        for attention in attentions:
            turned = []
            for index in pairing_layers._layers(config, kind):
                layer = pairing_layers._built(attention, config, index)
                if getattr(layer, "rope_layer_type", kind) == kind:
                    own, still, ours = compared(Model(config, rotary, layer), rope, kind)
                    turned.append(not np.array_equal(own[0], still[0]))
                    yield own, ours
                if any(turned):
                    break
            assert any(turned) or not turned


@campaign
@pytest.mark.parametrize("model_type", TYPES)
def test_its_own_rope_gives_its_own_queries_and_keys(model_type, classes):
    if model_type not in classes:
        pytest.skip(f"the installed transformers has no {model_type}")
    found = [*replaced(model_type, classes)]
    assert found
    for own, ours in found:
        scale = max(np.abs(one).max() for one in own)
        for one, other in zip(own, ours, strict=True):
            np.testing.assert_allclose(_ranked(other), _ranked(one), rtol=0, atol=2e-4 * scale)  # float32 up to 2000
        scores = own[0] @ own[1].T
        np.testing.assert_allclose(ours[0] @ ours[1].T, scores, rtol=0, atol=1e-5 * np.abs(scores).max())


def _ranked(x):
    """Features in order: some classes leave them in another after the rotation, on which scores do not depend."""
    return np.sort(x, axis=-1)


FAR = 40


def moved_keys(model_type, classes):
    """Keys of the first layer that turns them, at some positions and all of them moved, and the Rope of these keys."""
    config, rotary, attentions = parts(model_type, classes)
    found = own_rope(config, rotary)
    kinds = pairing_layers._kinds(config, rotary)
    places = [(kind, index) for kind in kinds for index in pairing_layers._layers(config, kind)]
    for kind, index in places:
        rope = found.get(kind, next(iter(found.values()))) if isinstance(found, dict) else found
        axes = RotaryEmbedding(rope).axes
        layer = pairing_layers._built(attentions[0], config, index)
        if getattr(layer, "rope_layer_type", kind) != kind:
            continue
        learned = [one for name, one in layer.named_parameters() if "norm" in name and one.ndim == 1]
        for one in learned + [one for name, one in rotary.named_buffers() if name == "alpha"] if rotary else learned:
            torch.nn.init.uniform_(one, 0.5, 1.5)
        model = Model(config, rotary, layer)
        for positions, states in asked(config, axes):
            try:
                pair = [caught(model, positions + moved, states, kind)[1] for moved in (0, FAR)]
            except pairing_layers._REFUSALS:
                continue
            if not np.array_equal(*pair):
                return rope, axes, pair
    raise AssertionError("no layer turns its keys")


@campaign
@pytest.mark.parametrize("model_type", TYPES)
def test_keys_may_move_where_the_table_does_not_say_otherwise(model_type, classes):
    """By `relocate` alone, with the pairing in which the class leaves keys."""
    if model_type not in classes:
        pytest.skip(f"the installed transformers has no {model_type}")
    entry = known(model_type)
    rope, axes, (k, wanted) = moved_keys(model_type, classes)
    rope = dataclasses.replace(rope, pairing=entry.get("out_pairing", rope.pairing), source=None, head_dim=None)
    moved = np.full(axes, FAR) if rope.vectors.ndim > 1 else FAR
    width, got = rope.rotary_dim, k.copy()
    turns = slice(-width, None) if entry.get("rotated") == "last" else slice(width)
    got[:, turns] = rfrope.rotation.relocate(k[:, turns].copy(), 0 * moved, moved, rope)
    error = np.max(np.abs(got - wanted)) / np.max(np.abs(wanted))
    assert error > 0.01 if "unmovable" in entry else error < 2e-3


@pytest.mark.parametrize("model_type", sparse(REFUSED, lambda name: name == "neucodec"))
def test_what_cannot_be_replaced_says_why(model_type, classes):
    if model_type not in classes:
        pytest.skip(f"the installed transformers has no {model_type}")
    config, rotary, attentions = parts(model_type, classes)
    kind = getattr(pairing_layers.modelling(config), "EdgeTamVideoRoPECrossAttention", attentions[0])
    layer = kind.__new__(kind)  # its methods are enough
    torch.nn.Module.__init__(layer)
    entry = known(model_type)
    width = getattr(rotary, "inv_freq", np.ones(32)).shape[-1]
    frequencies = rfrope.golden_gate(2 * width, low=0.1, high=1.0).vectors if "axial" in entry else np.ones(width)
    pairing = "half" if entry["pairing"] == "neither" else entry["pairing"]
    with pytest.raises(ValueError, match=re.escape(REFUSED[model_type])):
        replace_rotary(Model(config, rotary, layer), rfrope.Rope(frequencies, pairing=pairing))


@pytest.mark.parametrize("model_type", ["nanochat"])
def test_angles_that_go_the_other_way_want_negative_frequencies(model_type, classes):
    config, rotary, attentions = parts(model_type, classes)
    model = Model(config, rotary, pairing_layers._built(attentions[0], config, 0))
    (rope,) = rfrope.from_config(config)
    with pytest.raises(ValueError, match=r"nanochat turns the other way; .*frequencies=-rope.frequencies, pairing='ha"):
        replace_rotary(model, rope)
