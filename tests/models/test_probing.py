"""Black boxes made from definitions, right and wrong in known ways: each named, and no false alarm."""

import importlib
import inspect
import itertools
import json
import math
import textwrap
import warnings

import constructed_models as made_up
import numpy as np
import pytest
from blind_models import BY_SECTIONS, Constructed, along_axes, both, in_bf16, scored
from campaign import campaign, sparse
from conftest import library, rows
from constructed_models import CONTEXT, HEADS, PLAIN, QWEN2_VL, RIGHT, WRONG, W, ladder, model
from packages import WARNINGS
from published import PUBLISHED

import rfrope
from rfrope import models
from rfrope.models.probing.measurements import choose_positions

QUICK = (128, 256)  # widths that take longer
ROPE = rfrope.Rope(PLAIN, context=CONTEXT)


def probed(one: Constructed) -> models.Probe:
    """Probe it as it says; configs of schemes that switch are read for a length."""
    options = dict(one.options)
    length = options.pop("seq_len", None)
    expected = rfrope.from_config(one.config, seq_len=length)[0] if length else one.config
    return models.probe(one.apply, expected, **options)


def is_small(one: Constructed) -> bool:
    return one.options["head_dim"] not in QUICK and one.options.get("gives") != "scores"


@pytest.mark.parametrize("one", sparse(RIGHT, is_small), ids=lambda one: one.name.replace(" ", "-"))
def test_right_ones_raise_no_alarm(one):
    found = probed(one)
    assert found.passed, str(found)
    alone = models.probe(one.apply, **{"context": 2048, "axes": 1} | one.options)
    assert alone.passed, str(alone)
    assert max(found.calls, alone.calls) <= 64
    assert alone.rotations[0].pairing == found.rotations[0].pairing


@pytest.mark.parametrize("one", sparse(WRONG, is_small), ids=lambda one: one.name.replace(" ", "-"))
def test_wrong_ones_are_named(one):
    found = probed(one)
    finding, *more = found.findings
    assert (finding.kind, one.says in finding.text, found.passed) == (one.kind, True, False), str(found)
    assert not more or one in made_up.BLIND
    assert found.calls <= 64


# -- faults, each by a table -------------------------------------------------------------------------------------------


def altered(i: int, by: float) -> np.ndarray:
    return np.where(np.arange(W // 2) == i, by * PLAIN, PLAIN)


def keys_by(apply):
    return both(model(PLAIN), apply)


def crosses_blocks(q, k, positions):
    """Features 3 and 5 in each other's blocks."""
    order = np.arange(W)
    order[[3, 5]] = 5, 3
    return tuple(one[..., order] for one in model(PLAIN)(q[..., order], k[..., order], positions))


def counted(at):
    return model(PLAIN, at=at)


def by_key_head(apply):
    """Key head h by a function of its number and positions, queries as they should be."""

    def turn(q, k, positions):
        turned = [apply(h)(q, k[:, h : h + 1], positions)[1] for h in range(k.shape[1])]
        return model(PLAIN)(q, k, positions)[0], np.concatenate(turned, axis=1)

    return turn


def second(at):
    """The second key head by positions of its own."""
    return by_key_head(lambda h: counted(at if h else lambda positions: positions))


def from_new(x, cos, sin):
    """The first feature is made from the second one after that was turned."""
    a, b = np.split(x, 2, axis=-1)
    new = a * sin + b * cos
    return np.concatenate([a * cos - new * sin, new], axis=-1)


def then(change, omega=PLAIN):
    """A rotation, and a change of queries and keys after it."""
    return lambda q, k, positions: change(*(one.copy() for one in model(omega)(q, k, positions)))


def by_position(q, k, positions):
    """A factor that depends on the position, as Llama 4 has for queries of layers without RoPE."""
    turned_q, turned_k = model(PLAIN)(q, k, positions)
    return turned_q * (1.0 + 0.1 * np.log1p(positions // 1024))[:, None, :, None].astype(np.float32), turned_k


def time_in_one_key_head(q, k, positions):
    right, wrong = BY_TIME[0](q, k, positions), BY_TIME[1](q, k, positions)[1]
    return right[0], np.concatenate([right[1][:, :1], wrong[:, 1:]], axis=1)


def in_float16(*tables):
    return tuple(each.astype(np.float16).astype(np.float32) for each in tables)


ORDER = np.r_[0:W:2, 1:W:2]
NEIGHBOURS = model(PLAIN, "interleaved")
QUERIES_IN_BF16 = both(model(PLAIN, tables=in_bf16), model(PLAIN))
BY_TIME = along_axes(PLAIN, BY_SECTIONS), along_axes(PLAIN, 0 * BY_SECTIONS)  # as it should, and by time alone
OTHERS = {  # one head, one row or one side is wrong: by kind, functions and words of the first finding
    "positions": [
        (second(lambda p: p + 1), "keys: head 1: they turn by positions that are 1 more"),
        (second(lambda p: 0 * p + np.arange(p.shape[1])), "keys: head 1: positions are not used"),
        (counted(lambda p: p + np.arange(len(p))[:, None]), "the second row of the batch turns by positions that are"),
        (counted(lambda p: p[:, ::-1]), "in the reverse order"),
        (counted(lambda p: np.roll(p, 1, axis=1)), "of the one before them"),
        (counted(lambda p: np.roll(p, -1, axis=1)), "of the one after them"),
    ],
    "half precision": [
        (second(lambda p: in_bf16(p)[0]), "keys: head 1: positions rounded to bfloat16"),
        (QUERIES_IN_BF16, "queries: cos and sin are rounded to bfloat16"),
    ],
    "heads": [
        (by_key_head(lambda h: NEIGHBOURS if h else model(PLAIN)), "keys: head 1: pairing 'interleaved', where"),
        (by_key_head(lambda h: model(PLAIN if h else PLAIN[:8])),
         "keys: head 1: 64 features turn, where 16 of head 0 do"),
    ],
    "width": [(keys_by(model(PLAIN[:8])), "64 features of queries turn, and 16 of keys")],
    "frequencies": [(keys_by(model(PLAIN / 2.0)), "keys: frequencies are not as expected")],
    "pairing": [(model(PLAIN, turn=from_new), "the first feature is made from the second")],
}  # fmt: skip
CALLS = itertools.count()
STRANGE = {  # small or rare faults
    "frequencies": [
        *((model(altered(i, by)), f"block {i}") for i, by in ((10, 1.00002), (31, 1.00003), (7, -1.0), (2, 0.0))),
        (keys_by(model(altered(12, 1.0001))), "block 12"),
    ],
    "attention factor": [
        (model(PLAIN, factor=1.0001), "1.0001"),
        (keys_by(model(PLAIN, factor=0.9999)), "keys"),
        (by_position, "queries: lengths depend on the position: times 1 to 1.13"),
    ],
    "pairing": [
        (crosses_blocks, "'other'"),
        (lambda q, k, p: (model(PLAIN)(q, k, p)[0] + np.float32(0.01), k), "not mix in pairs"),
        (then(lambda q, k: (q[..., ORDER], k)), "comes out at"),
        (keys_by(NEIGHBOURS), "queries turn by pairing 'half', and keys by 'interleaved'"),
    ],
    "half precision": [(model(PLAIN, tables=in_float16), "float16")],
    "positions": [
        (counted(lambda p: np.where(p == 16, 17, p)), "position 16 turns as position 17"),
        (counted(lambda p: np.sort(p, axis=-1)), "sorted first"),
    ],
    "rows": [(counted(lambda p: p // 2), "first at 2")],
    "state": [(then(lambda q, k: (q, (1.0 + 1e-3 * next(CALLS)) * k)), "keys: the same call gives another result")],
}
EXCHANGED = {  # heads and rows that come out as others
    "heads": [
        (then(lambda q, k: (q[:, ::-1], k)), "queries: head 0 of row 0 of the batch comes from head 3"),
        (then(lambda q, k: (q, k[:, :1].repeat(2, 1))), "keys: head 1 of row 0 of the batch comes"),
        (lambda q, k, p: model(PLAIN)(q[::-1], k, p), "queries: head 0 of row 0 of the batch comes from head 0 of"),
        (then(lambda q, k: (q, k * np.array([1.0, 2.0], k.dtype)[:, None, None])), "keys: head 1: factor 2"),
    ],
    "direction": [(keys_by(model(PLAIN / 2.0)), "queries and keys turn by different frequencies")],
}
UNUSED = {  # axes of positions
    "sections": [
        (apply, f"keys: {whose}positions along axes 1, 2 are given and never used")
        for whose, apply in (("", both(*BY_TIME)), ("head 1: ", time_in_one_key_head))
    ]
}


def on_keys(features, change):
    def apply(q, k):
        k[..., features] = change(k[..., features])
        return q, k

    return then(apply, QUARTER)


QUARTER = ladder(32)
PASSING = {  # what becomes of the features that do not turn, 32 of 64
    "width": [
        (on_keys(slice(32, None), lambda x: 0.0 * x), "32 features that do not turn are left out"),
        (on_keys(slice(32, None), lambda x: 3.0 * x), "32 features that do not turn are multiplied by 3"),
        (on_keys(slice(32, None), lambda x: -x), "32 features that do not turn are multiplied by -1"),
        (on_keys([40], lambda x: 0.0 * x), "feature 40 is left out"),
        (on_keys([63], lambda x: np.float32(1.0001) * x), "feature 63 is multiplied by 1.0001"),
    ],
    "pairing": [(on_keys([40, 41], lambda x: x[..., ::-1]), "feature 40")],
}
PART = rfrope.Rope(QUARTER, head_dim=W, context=CONTEXT)
AXES = [{"expected": meant, "head_dim": W, "heads": 2, "axes": 3} for meant in (QWEN2_VL, None)]
PARTS = [{"expected": meant, "head_dim": W, "context": CONTEXT} for meant in (PART, None)]
GROUPS = [
    ({"expected": ROPE, **HEADS}, OTHERS),
    ({"expected": ROPE}, STRANGE),
    ({"head_dim": W, **HEADS}, EXCHANGED),
    *((options, UNUSED) for options in AXES),
    *((options, PASSING) for options in PARTS),
]
FAULTS = [  # the function, options, the kind and words of the finding
    (apply, options, kind, says) for options, table in GROUPS for kind, rows in table.items() for apply, says in rows
]


def named(apply, options, kind, says):
    """Whether the first finding is of this kind and has these words, and no other one is beside it."""
    finding, *more = models.probe(apply, **options).findings
    assert (finding.kind, says in finding.text) == (kind, True), str(finding)
    return not more


@pytest.mark.parametrize(("apply", "options", "kind", "says"), FAULTS)
def test_a_fault_is_named(apply, options, kind, says):
    assert named(apply, options, kind, says) or (apply, says) in OTHERS[kind]


@pytest.mark.parametrize(("kind", "index"), [(kind, i) for kind, rows in PASSING.items() for i in range(len(rows))])
def test_features_that_are_to_pass_are_seen_in_scores_too(kind, index):
    apply, says = PASSING[kind][index]
    assert all(named(scored(apply, 1.0), options | {"gives": "scores"}, kind, says) for options in PARTS)


def test_scores_behind_a_mask_are_said_to_be_that():
    def apply(q, k, positions):
        is_seen = positions[:, None, :, None] >= positions[:, None, None, :]
        return np.where(is_seen, scored(model(PLAIN), 1.0)(q, k, positions), -np.inf)

    (finding,) = models.probe(apply, head_dim=W, gives="scores").findings
    assert "or a mask: expected scores before it" in finding.text


def test_the_same_order_of_queries_and_keys_is_no_fault():
    assert models.probe(then(lambda q, k: (q[..., ORDER], k[..., ORDER])), head_dim=W).passed


def turn_by(rope):
    """By a Rope whose heads have sets of their own, or which turns along several axes."""

    def turn(q, k, positions):
        at = positions[:, None] if positions.ndim == 3 else positions[:, None, :, None]
        return tuple(rope.rotate(x, at) for x in (q, k))

    return turn


BY_HEAD = np.stack([PLAIN, PLAIN / 3.0])[..., None]
ALONG_AXES = np.stack([PLAIN, PLAIN[::-1]], axis=-1)
BOTH = np.stack([np.stack([PLAIN, PLAIN / 2.0, PLAIN / 3.0], -1), np.stack([PLAIN, PLAIN / 3.0, PLAIN / 2.0], -1)])
STILL = np.stack([np.where(np.arange(W // 2) < 8, PLAIN, 0.0), PLAIN])[..., None]


@pytest.mark.parametrize(
    ("sets", "swapped", "options", "kind", "says"),
    [
        (BY_HEAD, BY_HEAD[::-1], {"heads": 2}, "frequencies", ""),
        (ALONG_AXES, ALONG_AXES[:, ::-1], {"axes": 2}, "sections", ""),
        (BOTH, BOTH[:, :, [0, 2, 1]], {"heads": 2, "axes": 3}, "sections", "axes of positions are swapped"),
        (STILL, STILL[::-1], {"heads": 2}, "", ""),  # blocks that stand still in one head are those meant
    ],
    ids=["heads", "axes", "heads and axes", "still in one head"],
)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_sets_of_heads_and_axes(sets, swapped, options, kind, says, pairing):
    meant, other = (rfrope.Rope(one, context=CONTEXT, pairing=pairing) for one in (sets, swapped))
    found = models.probe(turn_by(meant), meant, **options, dtype=np.float64)
    assert found.passed, str(found)
    if sets is ALONG_AXES:
        assert np.max(np.abs(found.rotations[0].frequencies / sets - 1.0)) < 1e-6
    finding, *_ = models.probe(turn_by(other), meant, **options, dtype=np.float64).findings
    assert (finding.kind if kind else "", says in finding.text) == (kind, True), str(finding)


def test_heads_that_turn_apart_are_said_to_where_nothing_is_expected():
    rope = rfrope.Rope(BY_HEAD, context=CONTEXT)
    (finding,) = models.probe(turn_by(rope), head_dim=W, heads=2, dtype=np.float64).findings
    assert (finding.kind, "head 1" in finding.text) == ("heads", True)


@pytest.mark.parametrize("which", ["short_factor", "long_factor"])
def test_the_list_of_longrope_is_that_of_the_length(which):
    apply = model(PLAIN / np.array(made_up.LISTS[which]), factor=made_up.LONG_SCALE)
    for context in (1024, 1025, CONTEXT):
        found = models.probe(apply, made_up.LONGROPE_CONFIG, context=context)
        assert found.passed == ((which == "long_factor") == (context > 1024))
        assert found.passed or "longrope's other list" in found.findings[0].text


def test_a_dynamic_scheme_beyond_its_context():
    dynamic = made_up.config(W, 1e4, {"rope_type": "dynamic", "factor": 4.0})
    for context in (CONTEXT, 2 * CONTEXT):
        stretch = 4.0 * context / CONTEXT - 3.0
        omega = ladder(W, 1e4 * stretch ** (W / (W - 2)))
        assert models.probe(model(omega), dynamic, context=context).passed
    assert not models.probe(model(PLAIN), dynamic, context=2 * CONTEXT).passed


@campaign
def test_no_false_alarm_on_published_configs():
    """Against the config, against its Rope, and against nothing; frequencies to 1e-6."""
    seen = set()
    for one in PUBLISHED:
        length = min(rfrope.from_config(one.config)[0].context or CONTEXT, 2**17)
        for rope in rfrope.from_config(one.config, seq_len=length):
            omega = np.asarray(rope.frequencies)
            key = (omega.tobytes(), rope.attention_factor, rope.pairing, rope.head_dim)
            if rope.source.rope_parameters["rope_type"] == "axial" or rope.pairing is None or key in seen:
                continue
            seen.add(key)
            apply = model(omega, rope.pairing, factor=rope.attention_factor)
            options = {"head_dim": rope.head_dim, "context": length}
            if rope.sections:
                owner = np.argmax(rope.vectors, axis=1)
                apply, options = along_axes(omega, owner), options | {"axes": len(rope.sections)}
            for expected in (one.config, rope, None):
                found = models.probe(apply, expected, **options)
                assert found.passed, f"{one.model}: {found}"
            measured = found.rotations[0].frequencies.reshape(-1, options.get("axes", 1)).max(axis=-1)
            wanted = omega[: len(measured)]
            assert np.all(np.abs(measured - wanted) <= 1e-6 * wanted), one.model
    assert len(seen) >= 30


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "base"), [(64, 1e4), (64, 1e9), (32, 5e5)])
@pytest.mark.parametrize("gives", ["rotated", "scores"])
def test_frequencies_in_float32_are_within_1e_6(width, base, gives):
    omega = ladder(width, base)
    apply = model(omega) if gives == "rotated" else scored(model(omega), 1.0)
    found = models.probe(apply, head_dim=width, gives=gives)
    (one,) = found.rotations
    assert found.calls <= 64
    assert np.max(np.abs(one.frequencies / omega - 1.0)) < 1e-6
    assert np.all(np.abs(one.frequencies - omega) <= one.frequency_error)
    assert np.max(one.frequency_error / omega) < 1e-5


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_the_rope_that_was_found_turns_as_the_function_does(pairing):
    found = models.probe(model(made_up.LLAMA3_OMEGA, pairing, factor=1.25), head_dim=W + 8, heads=3, kv_heads=1)
    rope, (one,) = found.rope, found.rotations
    assert (rope.pairing, rope.rotary_dim, one.first) == (pairing, W, 0)
    assert rope.attention_factor == pytest.approx(1.25, rel=1e-6)
    assert one.factor_of_rest == pytest.approx({"queries": 1.0, "keys": 1.0})
    assert one.turning_heads == {"queries": (True,) * 3, "keys": (True,)}
    x = np.random.default_rng(0).standard_normal((1, 3, 5, W))
    at = np.array([[0, 1, 7, 90, 2000]])
    wanted = model(made_up.LLAMA3_OMEGA, pairing, factor=1.25, wide=np.float64)(x, x, at)[0]
    assert np.max(np.abs(rope.rotate(x, at[:, None]) - wanted)) < 1e-3


def test_the_rope_that_was_found_scores_as_the_function_does():
    """A part of a head, and a factor of keys alone."""
    apply = both(model(QUARTER), model(QUARTER, factor=1.25))
    rope = models.probe(apply, head_dim=W).rope
    q, k = np.random.default_rng(0).standard_normal((2, 1, 1, 7, W))
    at = np.array([[0, 1, 7, 90, 2000, 3, 5]])
    turned = (rope.rotate(x, at[:, None]) for x in (q, k))
    scores, wanted = (a @ np.swapaxes(b, -1, -2) for a, b in (turned, apply(q, k, at)))
    assert (rope.head_dim, rope.rotary_dim) == (W, 32)
    assert np.max(np.abs(scores - wanted)) < 5e-3


def all_but_one(q, k, positions):
    turned = model(PLAIN)(q, k, positions)
    return tuple(np.concatenate([new[:, :1], old[:, 1:]], axis=1) for new, old in zip(turned, (q, k), strict=True))


def nan_beyond(q, k, positions):
    return tuple(np.where(positions[:, None, :, None] > 40, np.nan, one) for one in model(PLAIN)(q, k, positions))


LAST = next(one for one in RIGHT if one.name == "the last features")
PAIR = {"head_dim": W, "heads": 2}
NO_ROPE = [
    (turn_by(rfrope.Rope(BY_HEAD)), PAIR, "heads, or queries and keys, turn by different frequencies"),
    (LAST.apply, {"expected": LAST.config, **LAST.options}, "features from 48 on turn"),
    (all_but_one, PAIR, "not all heads turn"),
    (nan_beyond, PAIR, "some values turn into NaN"),
    (lambda q, k, positions: (q, k), {"head_dim": 8}, "no layer turns pairs"),
]


@pytest.mark.parametrize(("apply", "options", "says"), NO_ROPE)
def test_what_no_rope_does_gives_none(apply, options, says):
    found = models.probe(apply, **options)
    with pytest.raises(ValueError, match=says):
        found.rope  # noqa: B018


def test_sides_have_factors_of_their_own():
    apply = both(model(PLAIN, factor=1.5), model(PLAIN, factor=0.5))
    (one,) = models.probe(apply, head_dim=W).rotations
    assert one.attention_factor == pytest.approx({"queries": 1.5, "keys": 0.5}, rel=1e-6)
    meant = rfrope.Rope(PLAIN, attention_factor=math.sqrt(0.75))
    (finding,) = models.probe(apply, meant).findings
    assert finding.kind == "attention factor"
    assert "only their product is the one meant" in finding.text


def test_scores_tell_the_factor_by_its_square():
    apply = scored(model(PLAIN, factor=1.2))
    found = models.probe(apply, head_dim=W, gives="scores", score_scale=0.125)
    assert found.rotations[0].attention_factor == pytest.approx({"scores": 1.44}, rel=1e-6)
    assert found.rope.attention_factor == pytest.approx(1.2, rel=1e-6)


def test_the_position_from_which_precision_is_lost():
    """Phases in float32 at positions far out: rounding alone, which is no fault."""
    found = models.probe(model(PLAIN), rfrope.Rope(PLAIN, context=2**20))
    assert found.passed, str(found)
    assert 1000 < found.rotations[0].exceeds < 2**20
    exact = models.probe(model(PLAIN, wide=np.float64), rfrope.Rope(PLAIN, context=2**20), dtype=np.float64)
    assert exact.rotations[0].exceeds is None
    half = models.probe(model(PLAIN, at=lambda p: p.astype(np.float16).astype(float)), head_dim=W)
    assert half.findings[0].position == min(p for p in choose_positions(CONTEXT) if float(np.float16(p)) != p)


def test_rotation_is_not_called_at_the_context_or_beyond():
    seen = []

    def apply(q, k, positions):
        seen.append(int(positions.max()))
        return model(PLAIN)(q, k, positions)

    models.probe(apply, head_dim=W, context=100)
    assert max(seen) == 99


@pytest.mark.parametrize("context", [2, 3, 17, 50, 51, 1024, 1025])
def test_short_contexts(context):
    assert models.probe(model(ladder(16)), head_dim=16, context=context).passed


# -- libraries, words and data -----------------------------------------------------------------------------------------


def test_every_library(xp):
    """Functions of other libraries are given their arrays."""
    rope = rfrope.Rope(ladder(16), context=64)
    seen = set()

    def apply(q, k, positions):
        seen.update(map(type, (q, k, positions)))
        places = xp.host(positions)[:, None, ...]
        return tuple(xp(rope.rotate(xp.host(x), places)) for x in (q, k))  # what each library makes of it has its tests

    found = models.probe(apply, rope, xp=xp.module, device=xp.device)
    assert found.passed, str(found)
    assert seen == {type(xp(np.ones(2), "float32"))} or xp.name == "read-only numpy"


def test_text_and_data():
    found = models.probe(model(PLAIN), rfrope.Rope(ladder(W, 5e5)))
    text = str(found)
    assert text.startswith("FAILED\n  apply: pairing 'half', 64 features, 32 frequencies, 1 to 0.0001334")
    assert "queries x 1, keys x 1" in text
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["passed"] is False
    assert plain["findings"][0]["kind"] == "frequencies"
    assert len(plain["rotations"][0]["frequencies"]) == 32
    assert "does not turn" in str(models.probe(lambda q, k, positions: (q, k), head_dim=8))


# -- models of transformers --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    """The maker of tiny models, and torch; a skip where transformers is missing."""
    library("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tiny_models", reason="transformers 5 is not installed")


FEW = {"num_hidden_layers": 4}
# by model type: options, and what its layers do
MODELS = {name: told for name, *told in rows("models/probing.json", "models")}
pytestmark = WARNINGS


@pytest.mark.parametrize("name", sparse(MODELS, lambda name: name in ("llama", "deepseek_v3", "granite", "gptj")))
def test_models_of_transformers_raise_no_alarm(tiny, name):
    options, pairings = MODELS[name]
    found = models.probe(tiny.made(name, **options))
    assert found.passed, str(found)
    assert sorted(str(one.pairing) for one in found.rotations) == sorted(map(str, pairings))
    assert found.calls <= 64


@pytest.mark.parametrize(("layer", "turns", "says"), [(3, 1, "it turns"), (1, 0, "does not turn")])
def test_rotation_on_a_layer_that_should_have_none(tiny, layer, turns, says):
    """As vllm#23918."""
    made = tiny.made("smollm3", **FEW)
    made.model.layers[layer].self_attn.use_rope = turns
    (finding,) = models.probe(made).findings
    assert (finding.kind, finding.where) == ("layers", f"model.layers.{layer}.self_attn")
    assert says in finding.text


def test_a_scheme_that_is_written_into_the_config_of_a_made_model(tiny):
    """As Soup#793."""
    made = tiny.made()
    made.config.rope_parameters = {
        **{"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 1024}
    }
    kinds = {one.kind: one.text for one in models.probe(made).findings}
    assert kinds.keys() == {"frequencies", "attention factor"}
    assert "the scheme 'yarn' was left out" in kinds["frequencies"]
    assert "left out" in kinds["attention factor"]


def test_buffers_of_a_model_that_are_wrong(tiny):
    made = tiny.made()
    rotary = made.model.rotary_emb
    kept = rotary.inv_freq.clone()
    for held, factor, kind, says in (
        (kept.bfloat16().float(), 1.0, "half precision", "bfloat16"),
        (kept * math.nan, 1.0, "uninitialised", ""),
        (kept * 0.0, 1.0, "layers", ""),
        (kept, 1.5, "attention factor", ""),
    ):
        rotary.inv_freq, rotary.attention_scaling = held, factor
        findings = models.probe(made).findings
        assert {one.kind for one in findings} == {kind}
        assert says in findings[0].text
        assert says == "" or [one.where for one in findings] == ["model.layers.0.self_attn and 1 more"]


TURNED = "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)"
ON_THE_WAY = rows("models/probing.json", "on the way")  # lines in place of that one, and words of the first finding


@pytest.mark.parametrize("name", ["", *ON_THE_WAY])
def test_what_reaches_attention(tiny, name, monkeypatch):
    """A line of Llama's attention, as models under repair have it."""
    from transformers.models.llama import modeling_llama

    line, says = ON_THE_WAY.get(name, ("{}", ""))
    source = inspect.getsource(modeling_llama.LlamaAttention.forward)
    assert TURNED in source
    names = {}
    text = f"from __future__ import annotations\n{textwrap.dedent(source.replace(TURNED, line.replace('{}', TURNED)))}"
    exec(compile(text, "forward", "exec"), modeling_llama.__dict__, names)
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", names["forward"])
    findings = models.probe(tiny.made()).findings
    if not name:
        assert not findings
        return
    assert findings[0].kind == "attention"
    assert says in findings[0].text
    assert findings[0].where == "model.layers.0.self_attn and 1 more"


def test_the_softmax_scale(tiny):
    """As sglang#33558, where mscale was squared a second time."""
    scaling = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4}
    made = tiny.made(
        "deepseek_v3", **MODELS["deepseek_v3"][0], rope_parameters=scaling | {"mscale": 1.0, "mscale_all_dim": 1.0}
    )
    assert models.probe(made).passed
    mscale, layer = 0.1 * math.log(40.0) + 1.0, made.model.layers[1].self_attn
    meant = 24**-0.5 * mscale**2
    assert layer.scaling == pytest.approx(meant)
    ways = {1.0: "", mscale**2: "was squared twice", mscale**-2: "was left out", 1.0 / mscale: "was taken once"}
    for times, says in ways.items():
        layer.scaling = meant * times
        findings = models.probe(made).findings
        assert [one.kind for one in findings] == (["softmax scale"] if says else [])
        assert all(says in one.text and one.where == "model.layers.1.self_attn" for one in findings)
    made = tiny.made()
    made.model.layers[0].self_attn.scaling *= 1.5
    (finding,) = models.probe(made).findings
    assert "scores are multiplied by 0.375 before softmax, expected 0.25" in finding.text


@pytest.mark.parametrize("name", ["gptj", "gemma4_text"])
def test_scales_that_are_not_compared(tiny, name):
    """As the page says: GPT-J's attention is no function of transformers, and Gemma 4's scale is in its norms."""
    options = MODELS["gptj"][0] if name == "gptj" else {"hidden_size_per_layer_input": 0, "global_head_dim": 16}
    made = tiny.made(name, **options)
    layers = made.transformer.h if name == "gptj" else made.model.layers
    for layer in layers:
        attention = layer.attn if name == "gptj" else layer.self_attn
        which = "scale_attn" if name == "gptj" else "scaling"
        setattr(attention, which, 2.0 * getattr(attention, which))
    assert models.probe(made).passed


def test_half_precision_of_features_is_no_fault_of_attention(tiny):
    made = tiny.made()
    for part in (*made.model.layers, made.model.embed_tokens, made.model.norm, made.lm_head):
        part.to(tiny.torch.bfloat16)
    assert models.probe(made).passed
    made.model.layers[1].self_attn.scaling *= 1.1
    (finding,) = models.probe(made).findings
    assert (finding.kind, finding.where) == ("softmax scale", "model.layers.1.self_attn")


def test_a_table_that_the_first_forward_casts(tiny):
    """As sglang#33117: the model is run before it is measured."""
    made = tiny.made()
    rotary = made.model.rotary_emb
    original, calls = rotary.forward, []

    def forward(x, position_ids):
        cos, sin = original(x, position_ids)
        calls.append(1)
        return (cos, sin) if len(calls) == 1 else (cos.bfloat16().float(), sin.bfloat16().float())

    rotary.forward = forward
    (finding,) = models.probe(made).findings
    assert finding.kind == "half precision"
    assert "bfloat16" in finding.text


def test_axes_of_a_model_that_are_computed_and_not_used(tiny):
    """As vllm#32143."""
    module = importlib.import_module("transformers.models.qwen2_vl.modeling_qwen2_vl")
    scaling = {"type": "mrope", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    config = tiny.transformers.Qwen2VLTextConfig(**tiny.SIZES, rope_scaling=scaling)
    made = module.Qwen2VLTextModel(config).eval()
    assert models.probe(made).passed
    assert models.probe(made).rotations[0].frequencies.shape == (8, 3)
    original = made.rotary_emb.forward
    made.rotary_emb.forward = lambda x, position_ids: original(x, position_ids[:1].expand(3, -1, -1))
    (finding,) = models.probe(made).findings
    assert (finding.kind, "1, 2 are given and never used" in finding.text) == ("sections", True)


def test_an_encoder_whose_config_has_no_rope_is_held_against_frequencies(tiny):
    """ESM, whose buffers stayed uninitialised in some versions."""
    config = tiny.transformers.EsmConfig(
        vocab_size=33, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        position_embedding_type="rotary", pad_token_id=1, mask_token_id=32,
    )  # fmt: skip
    made = tiny.transformers.EsmModel(config).eval()
    assert models.probe(made, rfrope.geometric(8)).passed
    made.rotary_embeddings.inv_freq = made.rotary_embeddings.inv_freq * 1e30
    assert not models.probe(made, rfrope.geometric(8)).passed


def test_a_model_is_left_as_it_was(tiny):
    made = tiny.made()
    module = __import__(type(made).__module__, fromlist=["apply_rotary_pos_emb"])
    function, before = module.apply_rotary_pos_emb, tiny.logits(made)
    made.train()
    models.probe(made)
    assert made.training
    made.eval()
    assert module.apply_rotary_pos_emb is function
    assert tiny.torch.equal(tiny.logits(made), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in made.modules())


def test_a_model_without_rotation_is_refused(tiny):
    made = tiny.transformers.GPT2Model(tiny.transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=8))
    with pytest.raises(ValueError, match="has no function apply_rotary"):
        models.probe(made, rfrope.geometric(2))
