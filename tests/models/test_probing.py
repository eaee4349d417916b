"""Black boxes made from definitions, right and wrong in known ways: each named, and no false alarm."""

from __future__ import annotations

import inspect
import json
import math
import textwrap
import warnings

import numpy as np
import pytest
from blind_findings import FINDINGS
from blind_models import MODELS as BLIND
from blind_models import WRONG as BLIND_WRONG
from campaign import campaign, sparse
from conftest import library
from constructed_models import (
    BF16,
    CONTEXT,
    LISTS,
    LLAMA3_OMEGA,
    LONG_SCALE,
    LONGROPE_CONFIG,
    PLAIN,
    QWEN2_VL,
    RIGHT,
    WRONG,
    Constructed,
    W,
    axis_by_sections,
    config,
    cos_and_sin,
    in_bf16,
    ladder,
    model,
    mrope,
    one_of_both,
    scores_of,
)
from published import PUBLISHED

import rfrope
from rfrope import models

QUICK = (128, 256)  # widths that take longer


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
    assert found.calls <= 64
    alone = models.probe(one.apply, **{"context": CONTEXT, **one.options})
    assert alone.passed, str(alone)
    assert alone.rotations[0].pairing == found.rotations[0].pairing


@pytest.mark.parametrize("one", sparse(WRONG, is_small), ids=lambda one: one.name.replace(" ", "-"))
def test_wrong_ones_are_named(one):
    found = probed(one)
    assert not found.passed
    (finding,) = found.findings
    assert finding.kind == one.kind, str(found)
    assert one.says in finding.text, str(found)
    assert found.calls <= 64


def test_there_are_as_many_models_as_the_page_says():
    assert (len(RIGHT), len(WRONG), len(BLIND_RIGHT), len(BLIND_WRONG)) == (31, 53, 20, 50)
    assert len({one.name for one in RIGHT + WRONG}) == len(RIGHT) + len(WRONG)
    assert {one.name for one in BLIND_WRONG} == FINDINGS.keys()
    assert len({*MODELS, *OF_THEIR_OWN, "qwen2_vl_text", "esm"}) == 26


def test_calls_are_as_many_as_the_page_says(tiny):
    for options, calls in (({}, 6), ({"gives": "scores"}, 7), ({"axes": 3}, 9)):
        apply = mrope(lambda i: i % 3) if options.get("axes") else model(PLAIN)
        apply = scores_of(apply) if options.get("gives") else apply
        assert models.probe(apply, head_dim=W, **options).calls == calls
    assert models.probe(tiny.made()).calls == 9


BLIND_RIGHT = [one for one in BLIND if not one.wrong]


@pytest.mark.parametrize("one", sparse(BLIND_RIGHT, lambda one: one.name.startswith("llama")), ids=lambda one: one.name)
def test_right_ones_by_somebody_else_raise_no_alarm(one):
    found = models.probe(one.apply(), one.config, **one.options)
    assert found.passed, str(found)
    assert found.calls <= 64
    alone = models.probe(one.apply(), context=2048, **{"axes": 1} | one.options)
    assert alone.passed, str(alone)


@pytest.mark.parametrize(
    "one", sparse(BLIND_WRONG, lambda one: one.name.startswith("llama_k")), ids=lambda one: one.name
)
def test_wrong_ones_by_somebody_else_are_named(one):
    kind, says = FINDINGS[one.name]
    finding, *_ = models.probe(one.apply(), one.config, **one.options).findings
    assert (finding.kind, says in finding.text) == (kind, True), str(finding)


def altered(i: int, by: float) -> np.ndarray:
    return np.where(np.arange(W // 2) == i, by * PLAIN, PLAIN)


def keys_by(apply):
    return lambda q, k, positions: (model(PLAIN)(q, k, positions)[0], apply(q, k, positions)[1])


def grows(q, k, positions):
    """As xPos does."""
    size = np.exp(-1e-4 * positions)[:, None, :, None].astype(np.float32)
    turned_q, turned_k = model(PLAIN)(q, k, positions)
    return turned_q * size, turned_k / size


def crosses_blocks(q, k, positions):
    """Features 3 and 5 in each other's blocks."""
    order = np.arange(W)
    order[[3, 5]] = 5, 3
    return tuple(one[..., order] for one in model(PLAIN)(q[..., order], k[..., order], positions))


def counted(positions_of):
    return model(PLAIN, positions_of=positions_of)


def by_key_head(apply):
    """Key head h by a function of its number and positions, queries as they should be."""

    def turn(q, k, positions):
        turned = [apply(h)(q, k[:, h : h + 1], positions)[1] for h in range(k.shape[1])]
        return model(PLAIN)(q, k, positions)[0], np.concatenate(turned, axis=1)

    return turn


def second(positions_of, first=lambda positions: positions):
    """The second key head by positions of its own."""
    return by_key_head(lambda h: counted(positions_of if h else first))


def turns_from_new(q, k, positions):
    """The first feature is made from the second one after that was turned."""
    cos, sin = cos_and_sin(positions, PLAIN)

    def turn(x):
        a, b = x[..., : W // 2], x[..., W // 2 :]
        new = a * sin + b * cos
        return np.concatenate([a * cos - new * sin, new], axis=-1)

    return turn(q), turn(k)


OTHERS = {  # one head, one row or one side is wrong: the function, the kind, and words
    "a key head one off": (
        second(lambda p: p + 1),
        "positions",
        "keys: head 1: they turn by positions that are 1 more",
    ),
    "a key head by its place": (
        second(lambda p: np.broadcast_to(np.arange(p.shape[1]), p.shape)),
        *("positions", "keys: head 1: positions are not used"),
    ),
    "a key head in bfloat16": (
        second(lambda p: p.astype(BF16).astype(np.float32)),
        *("half precision", "keys: head 1: positions rounded to bfloat16"),
    ),
    "a key head of neighbours": (
        by_key_head(lambda h: model(PLAIN, "interleaved" if h else "half")),
        *("heads", "keys: head 1 turns by pairing 'interleaved', and head 0 by 'half'"),
    ),
    "a key head with a part": (
        by_key_head(lambda h: model(PLAIN if h else PLAIN[:8])),
        *("heads", "keys: head 1 turns 64 features, and head 0 16"),
    ),
    "a part of keys": (keys_by(model(PLAIN[:8])), "width", "queries turn 64 features and keys turn 16"),
    "keys at half the positions": (keys_by(model(PLAIN / 2.0)), "frequencies", "keys: frequencies are not as expected"),
    "queries by a table in bfloat16": (
        one_of_both(model(PLAIN, changed=in_bf16), model(PLAIN)),
        *("half precision", "queries: cos and sin are rounded to bfloat16"),
    ),
    "the second row": (
        counted(lambda p: p + np.arange(len(p))[:, None]),
        *("positions", "the second row of the batch turns by positions that are 1 more than its own"),
    ),
    "in reverse": (counted(lambda p: p[:, ::-1]), "positions", "in the reverse order"),
    "the token before": (counted(lambda p: np.roll(p, 1, axis=1)), "positions", "of the one before them"),
    "the token after": (counted(lambda p: np.roll(p, -1, axis=1)), "positions", "of the one after them"),
    "cos for sin": (model(PLAIN, changed=lambda cos, sin: (sin, cos)), "pairing", "in each other's place"),
    "the new second feature": (turns_from_new, "pairing", "the first feature is made from the second"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_wrong_in_one_head_row_or_side_alone(name):
    apply, kind, says = OTHERS[name]
    finding, *_ = models.probe(apply, rfrope.Rope(PLAIN, context=CONTEXT), heads=4, kv_heads=2).findings
    assert (finding.kind, says in finding.text) == (kind, True), str(finding)


def test_a_factor_that_depends_on_the_position():
    """As Llama 4 has for queries of layers without RoPE."""

    def apply(q, k, positions):
        turned_q, turned_k = model(PLAIN)(q, k, positions)
        return turned_q * (1.0 + 0.1 * np.log1p(positions // 1024))[:, None, :, None].astype(np.float32), turned_k

    (finding,) = models.probe(apply, head_dim=W).findings
    assert (finding.kind, "queries: lengths depend on the position: times 1 to 1.13" in finding.text) == (
        "attention factor",
        True,
    )


@pytest.mark.parametrize("which", ["keys", "a key head"])
def test_axes_of_keys_are_followed_too(which):
    time = mrope(lambda i: 0)

    def of_head(q, k, positions):
        right, wrong = mrope(axis_by_sections)(q, k, positions), time(q, k, positions)[1]
        return right[0], np.concatenate([right[1][:, :1], wrong[:, 1:]], axis=1)

    apply = one_of_both(mrope(axis_by_sections), time) if which == "keys" else of_head
    options = {"head_dim": W, "heads": 2, "axes": 3}
    for expected in (QWEN2_VL, None):
        (finding,) = models.probe(apply, expected, **options).findings
        assert finding.kind == "sections"
        head = 0 if which == "keys" else 1
        assert finding.text == f"keys, head {head}: positions along axes 1, 2 are given and never used"


def test_sets_of_heads_along_axes():
    sets = np.stack([np.stack([PLAIN, PLAIN / 2.0, PLAIN / 3.0], -1), np.stack([PLAIN, PLAIN / 3.0, PLAIN / 2.0], -1)])
    meant, swapped = (rfrope.Rope(one, context=CONTEXT) for one in (sets, sets[:, :, [0, 2, 1]]))

    def turn_by(rope):
        return lambda q, k, positions: tuple(rope.rotate(x, positions[:, None]) for x in (q, k))

    options = {"heads": 2, "axes": 3, "dtype": np.float64}
    assert models.probe(turn_by(meant), meant, **options).passed
    (finding,) = models.probe(turn_by(swapped), meant, **options).findings
    assert (finding.kind, "axes of positions are swapped" in finding.text) == ("sections", True)


def test_blocks_that_stand_still_in_one_head_are_those_meant():
    sets = np.stack([np.where(np.arange(W // 2) < 8, PLAIN, 0.0), PLAIN])
    rope = rfrope.Rope(sets[..., None], context=CONTEXT, pairing="interleaved")

    def turn(q, k, positions):
        return tuple(rope.rotate(x, positions[:, None, :, None]) for x in (q, k))

    assert models.probe(turn, rope, heads=2, dtype=np.float64).passed


def test_scores_behind_a_mask_are_said_to_be_that():
    def apply(q, k, positions):
        is_seen = positions[:, None, :, None] >= positions[:, None, None, :]
        return np.where(is_seen, scores_of(model(PLAIN))(q, k, positions), -np.inf)

    (finding,) = models.probe(apply, head_dim=W, gives="scores").findings
    assert "or a mask: expected scores before it" in finding.text


STRANGE = {  # small or rare faults: the function, the kind, and words
    "one block, a little": (model(altered(10, 1.00002)), "frequencies", "block 10"),
    "the slowest block, a little": (model(altered(31, 1.00003)), "frequencies", "block 31"),
    "one block the other way": (model(altered(7, -1.0)), "frequencies", "block 7"),
    "one block still": (model(altered(2, 0.0)), "frequencies", "block 2"),
    "one block of keys": (keys_by(model(altered(12, 1.0001))), "frequencies", "block 12"),
    "a factor, a little": (model(PLAIN, factor=1.0001), "attention factor", "1.0001"),
    "a factor of keys": (keys_by(model(PLAIN, factor=0.9999)), "attention factor", "keys"),
    "lengths that grow": (grows, "attention factor", "xPos"),
    "crossed blocks": (crosses_blocks, "pairing", "'other'"),
    "something added": (lambda q, k, p: (model(PLAIN)(q, k, p)[0] + np.float32(0.01), k), "pairing", "than in pairs"),
    "a table in float16": (
        model(PLAIN, changed=lambda *tables: tuple(each.astype(np.float16).astype(np.float32) for each in tables)),
        *("half precision", "float16"),
    ),
    "one position": (counted(lambda p: np.where(p == 16, 17, p)), "positions", "position 16 turns as position 17"),
    "16 bits with a sign": (counted(lambda p: (p + 2048) % 4096 - 2048), "positions", "2048 turns as position -2048"),
    "sorted": (counted(lambda p: np.sort(p, axis=-1)), "positions", "sorted first"),
    "doubled": (counted(lambda p: 2 * p), "frequencies", "multiplied by 2"),
    "halved": (counted(lambda p: p // 2), "rows", "first at 2"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_small_and_rare_faults(name):
    apply, kind, says = STRANGE[name]
    (finding,) = models.probe(apply, rfrope.Rope(PLAIN, context=CONTEXT)).findings
    assert (finding.kind, says in finding.text) == (kind, True), str(finding)


def then(change, omega=PLAIN):
    """A rotation, and a change of queries and keys after it."""
    return lambda q, k, positions: change(*(one.copy() for one in model(omega)(q, k, positions)))


def on_keys(features, change):
    def apply(q, k):
        k[..., features] = change(k[..., features])
        return q, k

    return apply


QUARTER = ladder(32)  # of 64 features
PASSING = {  # what becomes of features that do not turn, and words
    "left out": (on_keys(slice(32, None), lambda x: 0.0 * x), "32 features that do not turn are left out"),
    "longer": (on_keys(slice(32, None), lambda x: 3.0 * x), "32 features that do not turn are multiplied by 3"),
    "negated": (on_keys(slice(32, None), lambda x: -x), "32 features that do not turn are negated"),
    "one left out": (on_keys([40], lambda x: 0.0 * x), "feature 40 is left out"),
    "a little": (on_keys([63], lambda x: np.float32(1.0001) * x), "feature 63 is multiplied by 1.0001"),
    "two exchanged": (on_keys([40, 41], lambda x: x[..., ::-1]), "feature 40"),
}


@pytest.mark.parametrize("gives", ["rotated", "scores"])
@pytest.mark.parametrize("name", PASSING)
def test_features_that_are_to_pass(name, gives):
    change, says = PASSING[name]
    apply = then(change, QUARTER) if gives == "rotated" else scores_of(then(change, QUARTER))
    for expected in (rfrope.Rope(QUARTER, head_dim=W, context=CONTEXT), None):
        (finding,) = models.probe(apply, expected, head_dim=W, gives=gives, context=CONTEXT).findings
        assert (finding.kind, says in finding.text) == ("pairing" if "two" in name else "width", True), str(finding)


EXCHANGED = {  # heads and rows that come out as others
    "heads in reverse": (then(lambda q, k: (q[:, ::-1], k)), "queries: head 0 of row 0 of the batch comes from head 3"),
    "the first key head": (then(lambda q, k: (q, k[:, :1].repeat(2, 1))), "keys: head 1 of row 0 of the batch comes"),
    "rows": (lambda q, k, p: model(PLAIN)(q[::-1], k, p), "queries: head 0 of row 0 of the batch comes from head 0 of"),
    "a longer head": (then(lambda q, k: (q, k * np.array([1.0, 2.0], k.dtype)[:, None, None])), "has the factor 2"),
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_heads_and_rows_that_are_exchanged(name):
    apply, says = EXCHANGED[name]
    (finding,) = models.probe(apply, head_dim=W, heads=4, kv_heads=2).findings
    assert (finding.kind, says in finding.text) == ("heads", True), str(finding)


def test_orders_of_queries_and_keys():
    order = np.r_[0:W:2, 1:W:2]
    assert models.probe(then(lambda q, k: (q[..., order], k[..., order])), head_dim=W).passed
    (finding,) = models.probe(then(lambda q, k: (q[..., order], k)), head_dim=W).findings
    assert (finding.kind, "comes out at" in finding.text) == ("pairing", True)
    (finding,) = models.probe(keys_by(model(PLAIN, "interleaved")), head_dim=W).findings
    assert "queries turn by pairing 'half', and keys by 'interleaved'" in finding.text


def test_axes_are_those_of_what_is_meant():
    one_axis = model(PLAIN, positions_of=lambda positions: positions[..., 0])
    (finding,) = models.probe(one_axis, QWEN2_VL).findings
    assert (finding.kind, "1, 2 are given and never used" in finding.text) == ("sections", True)
    with pytest.raises(ValueError, match="axes is 1, and expected turns by 3"):
        models.probe(one_axis, QWEN2_VL, axes=1)


@pytest.mark.parametrize("which", ["short_factor", "long_factor"])
def test_the_list_of_longrope_is_that_of_the_length(which):
    apply = model(PLAIN / np.array(LISTS[which]), factor=LONG_SCALE)
    for context in (1024, 1025, CONTEXT):
        found = models.probe(apply, LONGROPE_CONFIG, context=context)
        assert found.passed == ((which == "long_factor") == (context > 1024))
        assert found.passed or "longrope's other list" in found.findings[0].text


def test_a_dynamic_scheme_beyond_its_context():
    dynamic = config(W, 1e4, {"rope_type": "dynamic", "factor": 4.0})
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
                apply, options = mrope(owner.__getitem__, omega), options | {"axes": len(rope.sections)}
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
    apply = model(omega) if gives == "rotated" else scores_of(model(omega))
    found = models.probe(apply, head_dim=width, gives=gives)
    (one,) = found.rotations
    assert found.calls <= 64
    assert np.max(np.abs(one.frequencies / omega - 1.0)) < 1e-6
    assert np.all(np.abs(one.frequencies - omega) <= one.frequency_error)
    assert np.max(one.frequency_error / omega) < 1e-5


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_the_rope_that_was_found_turns_as_the_function_does(pairing):
    found = models.probe(model(LLAMA3_OMEGA, pairing, factor=1.25), head_dim=W + 8, heads=3, kv_heads=1)
    rope, (one,) = found.rope, found.rotations
    assert (rope.pairing, rope.rotary_dim, one.first) == (pairing, W, 0)
    assert rope.attention_factor == pytest.approx(1.25, rel=1e-6)
    assert one.factor_of_rest == pytest.approx({"queries": 1.0, "keys": 1.0})
    assert one.turning_heads == {"queries": (True,) * 3, "keys": (True,)}
    x = np.random.default_rng(0).standard_normal((1, 3, 5, W))
    at = np.array([[0, 1, 7, 90, 2000]])
    wanted = model(LLAMA3_OMEGA, pairing, factor=1.25, wide=np.float64)(x, x, at)[0]
    assert np.max(np.abs(rope.rotate(x, at[:, None]) - wanted)) < 1e-3


def test_the_rope_that_was_found_scores_as_the_function_does():
    """A part of a head, and a factor of keys alone."""

    def apply(q, k, positions):
        return model(QUARTER)(q, k, positions)[0], model(QUARTER, factor=1.25)(q, k, positions)[1]

    rope = models.probe(apply, head_dim=W).rope
    q, k = np.random.default_rng(0).standard_normal((2, 1, 1, 7, W))
    at = np.array([[0, 1, 7, 90, 2000, 3, 5]])
    turned = (rope.rotate(x, at[:, None]) for x in (q, k))
    scores, wanted = (a @ np.swapaxes(b, -1, -2) for a, b in (turned, apply(q, k, at)))
    assert (rope.head_dim, rope.rotary_dim) == (W, 32)
    assert np.max(np.abs(scores - wanted)) < 5e-3


def test_what_no_rope_does_gives_none():
    sets = np.stack([PLAIN, PLAIN / 3.0])[..., None]
    by_head = rfrope.Rope(sets, context=CONTEXT)

    def turn_by_head(q, k, positions):
        return tuple(by_head.rotate(x, positions[:, None, :, None]) for x in (q, k))

    found = models.probe(turn_by_head, by_head, heads=2)
    assert found.passed, str(found)
    with pytest.raises(ValueError, match="heads, or queries and keys, turn by different frequencies"):
        found.rope  # noqa: B018
    (last,) = [one for one in RIGHT if one.name == "the last features"]
    with pytest.raises(ValueError, match="features from 48 on turn"):
        probed(last).rope  # noqa: B018
    with pytest.raises(ValueError, match="not all heads turn"):
        models.probe(all_but_one, head_dim=W, heads=2).rope  # noqa: B018


def all_but_one(q, k, positions):
    turned = model(PLAIN)(q, k, positions)
    return tuple(np.concatenate([new[:, :1], old[:, 1:]], axis=1) for new, old in zip(turned, (q, k), strict=True))


def test_sides_have_factors_of_their_own():
    def apply(q, k, positions):
        return model(PLAIN, factor=1.5)(q, k, positions)[0], model(PLAIN, factor=0.5)(q, k, positions)[1]

    (one,) = models.probe(apply, head_dim=W).rotations
    assert one.attention_factor == pytest.approx({"queries": 1.5, "keys": 0.5}, rel=1e-6)
    meant = rfrope.Rope(PLAIN, attention_factor=math.sqrt(0.75))
    (finding,) = models.probe(apply, meant).findings
    assert finding.kind == "attention factor"
    assert "only their product is the one meant" in finding.text


def test_scores_tell_the_factor_by_its_square():
    apply = scores_of(model(PLAIN, factor=1.2), 0.125)
    found = models.probe(apply, head_dim=W, gives="scores", score_scale=0.125)
    assert found.rotations[0].attention_factor == pytest.approx({"scores": 1.44}, rel=1e-6)
    assert found.rope.attention_factor == pytest.approx(1.2, rel=1e-6)


def test_frequencies_along_each_axis():
    omega = np.stack([PLAIN, PLAIN[::-1]], axis=-1)

    def apply(q, k, positions):
        phases = (positions @ omega.T)[:, None]
        return tuple(
            np.concatenate(
                [
                    x[..., : W // 2] * np.cos(phases) - x[..., W // 2 :] * np.sin(phases),
                    x[..., : W // 2] * np.sin(phases) + x[..., W // 2 :] * np.cos(phases),
                ],
                axis=-1,
            )
            for x in (q, k)
        )

    found = models.probe(apply, rfrope.Rope(omega), axes=2, dtype=np.float64)
    assert found.passed, str(found)
    assert np.max(np.abs(found.rotations[0].frequencies / omega - 1.0)) < 1e-6
    swapped = models.probe(apply, rfrope.Rope(omega[:, ::-1]), axes=2, dtype=np.float64)
    assert [one.kind for one in swapped.findings] == ["sections"]


def test_sets_of_each_head():
    sets = np.stack([PLAIN, PLAIN / 3.0])

    def apply(q, k, positions):
        phases = positions[:, None, :, None] * sets[:, None]
        cos, sin = np.cos(phases), np.sin(phases)
        half = W // 2
        return tuple(
            np.concatenate(
                [x[..., :half] * cos - x[..., half:] * sin, x[..., :half] * sin + x[..., half:] * cos], axis=-1
            )
            for x in (q, k)
        )

    options = {"heads": 2, "dtype": np.float64}
    assert models.probe(apply, rfrope.Rope(sets[..., None]), **options).passed
    (finding,) = models.probe(apply, head_dim=W, **options).findings
    assert (finding.kind, "head 1" in finding.text) == ("heads", True)
    assert not models.probe(apply, rfrope.Rope(sets[::-1, :, None]), **options).passed


def test_the_position_from_which_precision_is_lost():
    """Phases in float32 at positions far out: rounding alone, which is no fault."""
    found = models.probe(model(PLAIN), rfrope.Rope(PLAIN, context=2**20))
    assert found.passed, str(found)
    assert 1000 < found.rotations[0].exceeds < 2**20
    exact = models.probe(model(PLAIN, wide=np.float64), rfrope.Rope(PLAIN, context=2**20), dtype=np.float64)
    assert exact.rotations[0].exceeds is None
    half = models.probe(model(PLAIN, positions_of=lambda p: p.astype(np.float16).astype(float)), head_dim=W)
    assert half.findings[0].position == min(p for p in _measured(CONTEXT) if float(np.float16(p)) != p)


def _measured(context):
    from rfrope.models.probing.measurements import choose_positions

    return choose_positions(context)


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
    rope = rfrope.Rope(PLAIN, context=256)
    seen = set()

    def apply(q, k, positions):
        seen.add(type(q))
        return rope.rotate(q, positions[:, None, ...]), rope.rotate(k, positions[:, None, ...])

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
    assert "frequencies" in found._repr_html_()
    still = models.probe(lambda q, k, positions: (q, k), head_dim=8)
    assert "does not turn" in str(still)
    with pytest.raises(ValueError, match="no layer turns pairs"):
        still.rope  # noqa: B018


# -- bad input ---------------------------------------------------------------------------------------------------------

TURN = model(PLAIN)


@pytest.mark.parametrize(
    ("error", "says", "call"),
    [
        (TypeError, "apply is 3; expected a function", lambda: models.probe(3, head_dim=8)),
        (ValueError, "head_dim is None; expected the features", lambda: models.probe(TURN)),
        (ValueError, "head_dim is 1; expected a whole", lambda: models.probe(TURN, head_dim=1)),
        (ValueError, "kv_heads is 3; expected a number that divides heads = 4",
         lambda: models.probe(TURN, head_dim=8, heads=4, kv_heads=3)),
        (ValueError, "gives is 'score'; did you mean 'scores'", lambda: models.probe(TURN, head_dim=8, gives="score")),
        (ValueError, "score_scale is 0", lambda: models.probe(TURN, head_dim=8, score_scale=0)),
        (ValueError, "context is 1; expected", lambda: models.probe(TURN, head_dim=8, context=1)),
        (ValueError, "axes is 0; expected", lambda: models.probe(TURN, head_dim=8, axes=0)),
        (TypeError, "expected a pair", lambda: models.probe(lambda q, k, p: q, head_dim=8)),
        (ValueError, r"apply gave queries of shape \(1, 1, 40, 4\); expected \(1, 1, 40, 8\)",
         lambda: models.probe(lambda q, k, p: (q[..., :4], k), head_dim=8)),
        (TypeError, "for keys; expected an array of real", lambda: models.probe(lambda q, k, p: (q, 3), head_dim=8)),
        (ValueError, "apply gave scores of shape", lambda: models.probe(lambda q, k, p: q, head_dim=8, gives="scores")),
        (ValueError, "polar", lambda: models.probe(TURN, rfrope.Rope(PLAIN, polar=True))),
        (TypeError, "xp is 'torch'", lambda: models.probe(TURN, head_dim=8, xp="torch")),
        (TypeError, "dtype is", lambda: models.probe(TURN, head_dim=8, dtype=int)),
    ],
)  # fmt: skip
def test_bad_input(error, says, call):
    with pytest.raises(error, match=says):
        call()


# -- models of transformers --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    """The maker of tiny models, and torch; a skip where transformers is missing."""
    library("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tiny_models", reason="transformers 5 is not installed")


FEW = {"num_hidden_layers": 4}
LATENT = {
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 16, "q_lora_rank": 16},
    **{"head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    **{"first_k_dense_replace": 1, "moe_intermediate_size": 16, "num_key_value_heads": 4},
}
MODELS = {  # by model type: options, and what its layers do
    "llama": ({}, ["half"] * 2),
    "qwen3": ({}, ["half"] * 2),
    "phi3": ({}, ["half"] * 2),
    "gpt_neox": ({}, ["half"] * 2),
    "glm4": ({}, ["interleaved"] * 2),
    "gpt_oss": ({}, ["half"] * 2),
    "gptj": ({"rotary_dim": 8, "n_embd": 64, "n_head": 4}, ["interleaved"] * 2),
    "deepseek_v3": (LATENT, ["interleaved"] * 2),
    **{name: ({}, ["half"] * 2) for name in ("stablelm", "phi", "persimmon", "jetmoe", "nanochat")},
    **{name: ({}, ["interleaved"] * 2) for name in ("cohere", "helium", "ernie4_5")},
    "codegen": ({"rotary_dim": 8, "n_embd": 64, "n_head": 4, "n_layer": 2}, ["interleaved"] * 2),
    "gemma3_text": (FEW | {"num_hidden_layers": 6}, ["half"] * 6),
    "smollm3": (FEW, ["half", "half", "half", None]),
    "cohere2": (FEW, ["interleaved", "interleaved", "interleaved", None]),
    "llama4_text": (FEW, ["interleaved", "interleaved", "interleaved", None]),
}
IGNORED = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Deprecation", "Future", "User")]
pytestmark = IGNORED


@pytest.mark.parametrize("name", sparse(MODELS, lambda name: name in ("llama", "deepseek_v3", "nanochat", "gptj")))
def test_models_of_transformers_raise_no_alarm(tiny, name):
    options, pairings = MODELS[name]
    found = models.probe(tiny.made(name, **options))
    assert found.passed, str(found)
    assert sorted(str(one.pairing) for one in found.rotations) == sorted(map(str, pairings))
    assert found.calls <= 64


def test_rotation_on_a_layer_that_should_have_none(tiny):
    """As vllm#23918."""
    made = tiny.made("smollm3", **FEW)
    made.model.layers[3].self_attn.use_rope = 1
    (finding,) = models.probe(made).findings
    assert finding.kind == "layers"
    assert finding.where == "model.layers.3.self_attn"
    assert "it turns" in finding.text
    made = tiny.made("smollm3", **FEW)
    made.model.layers[1].self_attn.use_rope = 0
    (finding,) = models.probe(made).findings
    assert (finding.kind, finding.where) == ("layers", "model.layers.1.self_attn")
    assert "does not turn" in finding.text


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
    rotary.inv_freq = kept.bfloat16().float()
    (finding,) = models.probe(made).findings
    assert (finding.kind, "bfloat16" in finding.text) == ("half precision", True)
    assert finding.where == "model.layers.0.self_attn and 1 more"
    rotary.inv_freq = kept * math.nan
    assert {one.kind for one in models.probe(made).findings} == {"uninitialised"}
    rotary.inv_freq = kept * 0.0
    assert {one.kind for one in models.probe(made).findings} == {"layers"}
    rotary.inv_freq = kept
    rotary.attention_scaling = 1.5
    (finding,) = models.probe(made).findings
    assert finding.kind == "attention factor"


TURNED = "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)"
ON_THE_WAY = {  # lines in place of the one that turns, and words of the first finding
    "dropped": ("apply_rotary_pos_emb(query_states, key_states, cos, sin)", "queries that attention is given are not"),
    "keys alone": (TURNED.replace("query_states, key", "_, key", 1), "queries that attention is given are not"),
    "queries alone": (TURNED.replace(", key_states =", ", _ ="), "keys that attention is given are not"),
    "twice": (f"{TURNED}; {TURNED}", "turned a second time"),
    "in reverse": (f"{TURNED}; key_states = key_states.flip(-1)", "they are reordered"),
    "longer": (f"{TURNED}; key_states = key_states * 1.5", "keys are multiplied by 1.5 between"),
    "other heads": (f"{TURNED}; query_states = query_states.flip(1)", "they are reordered"),
    "exchanged": (f"{TURNED}; query_states = key_states.repeat(1, 2, 1, 1)", "queries that attention is given are not"),
}


@pytest.mark.parametrize("name", ["", *ON_THE_WAY])
def test_what_reaches_attention(tiny, name, monkeypatch):
    """A line of Llama's attention, as models under repair have it."""
    from transformers.models.llama import modeling_llama

    line, says = ON_THE_WAY.get(name, (TURNED, ""))
    source = inspect.getsource(modeling_llama.LlamaAttention.forward)
    assert TURNED in source
    names = {}
    text = f"from __future__ import annotations\n{textwrap.dedent(source.replace(TURNED, line))}"
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
    made = tiny.made("deepseek_v3", **LATENT, rope_parameters=scaling | {"mscale": 1.0, "mscale_all_dim": 1.0})
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
    for layer in made.model.layers:
        layer.to(tiny.torch.bfloat16)
    made.model.embed_tokens.to(tiny.torch.bfloat16)
    made.model.norm.to(tiny.torch.bfloat16)
    made.lm_head.to(tiny.torch.bfloat16)
    assert models.probe(made).passed
    made.model.layers[1].self_attn.scaling *= 1.1
    (finding,) = models.probe(made).findings
    assert (finding.kind, finding.where) == ("softmax scale", "model.layers.1.self_attn")


OF_THEIR_OWN = ["gemma2", "granite", "hunyuan_v1_dense"]


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_scales_and_norms_of_their_own(tiny, name):
    assert models.probe(tiny.made(name)).passed


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
    made = _qwen2_vl(tiny)
    assert models.probe(made).passed
    assert models.probe(made).rotations[0].frequencies.shape == (8, 3)
    original = made.rotary_emb.forward
    made.rotary_emb.forward = lambda x, position_ids: original(x, position_ids[:1].expand(3, -1, -1))
    (finding,) = models.probe(made).findings
    assert (finding.kind, "1, 2 are given and never used" in finding.text) == ("sections", True)


def _qwen2_vl(tiny):
    from transformers import Qwen2VLTextConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel

    scaling = {"type": "mrope", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    return Qwen2VLTextModel(Qwen2VLTextConfig(**tiny.SIZES, rope_scaling=scaling)).eval()


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
    found = models.probe(made)
    assert made.training
    made.eval()
    assert module.apply_rotary_pos_emb is function
    assert tiny.torch.equal(tiny.logits(made), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in made.modules())
    assert found.counts_padding is True  # transformers counts from the first token where it is given no positions


def test_a_model_without_rotation_is_refused(tiny):
    made = tiny.transformers.GPT2Model(tiny.transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=8))
    with pytest.raises(ValueError, match="has no function apply_rotary"):
        models.probe(made, rfrope.geometric(2))
