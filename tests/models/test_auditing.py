"""Audits of models broken on purpose, each fault named; and no false alarm on right ones."""

import copy
import importlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from campaign import campaign
from conftest import library, rows
from published import PUBLISHED

import rfrope
from rfrope import models
from rfrope.models.mistakes import mistakes

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers
CONTEXT, KEY = 4096, "original_max_position_embeddings"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, KEY: 1024}
YARN = {"rope_type": "yarn", "factor": 4.0, KEY: 1024}


def config(scaling: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    made = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "rope_theta": 500_000.0}
    made |= {"max_position_embeddings": CONTEXT, "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 32}
    return made | ({"rope_scaling": scaling} if scaling else {}) | more


def rope_of(scaling: dict[str, Any] | None = None, **more: Any) -> rfrope.Rope:
    (rope,) = rfrope.from_config(config(scaling, **more))
    return rope


def table(rope: rfrope.Rope, length: int = CONTEXT, frequencies: Any = None, dtype: Any = np.float32) -> Any:
    """Cos and sin as a model computes them, in float32, (length, D)."""
    omega = np.asarray(rope.frequencies if frequencies is None else frequencies, dtype=np.float32)
    phases = np.multiply.outer(np.arange(length, dtype=np.float32), omega)
    factor = np.float32(rope.attention_factor)
    return (np.cos(phases) * factor).astype(dtype), (np.sin(phases) * factor).astype(dtype)


def doubled(cos: Any, sin: Any) -> Any:
    return np.concatenate([cos, cos], axis=-1), np.concatenate([sin, sin], axis=-1)


def repeated(cos: Any, sin: Any) -> Any:
    return np.repeat(cos, 2, axis=-1), np.repeat(sin, 2, axis=-1)


LAYOUTS = {
    "pair": lambda cos, sin: (cos, sin),
    "doubled": doubled,
    "cos, sin": lambda cos, sin: np.concatenate([cos, sin], axis=-1),
    "sin, cos": lambda cos, sin: np.concatenate([sin, cos], axis=-1),
    "in turn": lambda cos, sin: np.stack([cos, sin], axis=-1).reshape(len(cos), -1),
    "last axis": lambda cos, sin: np.stack([cos, sin], axis=-1),
    "complex": lambda cos, sin: (cos + 1j * sin).astype(np.complex64),
    "old caches": lambda cos, sin: tuple(each[None, None] for each in doubled(cos, sin)),
    "a dict": lambda cos, sin: {"rotary_emb.cos_cached": cos, "rotary_emb.sin_cached": sin},
}


def kinds(found: models.Audit) -> set[str]:
    return {finding.kind for finding in found.findings}


def the_fault(found: models.Audit, kind: str) -> models.Finding:
    """The only finding, of that kind."""
    assert not found.passed
    assert kinds(found) == {kind}, str(found)
    return found.findings[0]


# -- right ones --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_right_tables_pass(layout):
    for scaling in (None, LLAMA3, YARN):
        rope = rope_of(scaling)
        found = models.audit(LAYOUTS[layout](*table(rope)), rope)
        assert found.passed, str(found)
        assert found.context == CONTEXT


def test_right_frequencies_pass_in_every_library(xp):
    rope = rope_of(YARN)
    omega = np.asarray(rope.frequencies)
    found = models.audit(xp(omega, "float32"), rope)
    assert found.passed, str(found)
    assert found.exceeds is None or found.exceeds > 1000
    assert models.audit(xp(omega * (1.0 + 1e-7)), rope).passed
    assert not models.audit(xp(omega * (1.0 + 2e-5)), rope).passed


@campaign
def test_no_false_alarm_on_sixty_right_sets():
    """Published configs: frequencies in float32, and tables in every layout."""
    count = 0
    for one, rope in published_ropes():
        assert models.audit(np.asarray(rope.frequencies, dtype=np.float32), rope).passed, one.model
        made = LAYOUTS[list(LAYOUTS)[count % len(LAYOUTS)]](*table(rope, 3000))
        if rope.pairing == "interleaved":
            made = repeated(*table(rope, 3000))
        found = models.audit(made, rope, context=3000)
        assert found.passed, f"{one.model}: {found}"
        count += 1
    assert count >= 60


def published_ropes() -> Iterator[tuple[Any, rfrope.Rope]]:
    """Published configs with every RoPE in them but those of pictures."""
    for one in PUBLISHED:
        for rope in rfrope.from_config(one.config):
            if rope.source.rope_parameters["rope_type"] != "axial" and rope.context is not None:
                yield one, rope


# -- frequencies broken on purpose -------------------------------------------------------------------------------------


def rounded_to_bfloat16(values: Any) -> np.ndarray:
    held = np.asarray(values, dtype=np.float32).view(np.uint32)
    return ((held + 0x7FFF + (held >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


ROPE, PLAIN, STRETCHED = rope_of(LLAMA3), rope_of(), rope_of(YARN)
LADDER = np.asarray(PLAIN.frequencies)
PARTIAL = rope_of(model_type="stablelm", partial_rotary_factor=0.25)
ALTERED = {  # wrong frequencies, the Rope that was meant, and what is said
    "zeros": (np.zeros(32), ROPE, "uninitialised", "all values are 0"),
    "not finite": (np.where(np.arange(32) == 3, np.nan, LADDER), PLAIN, "uninitialised", "1 of 32 values are not"),
    "memory": (np.where(np.arange(32) % 2, 1e-41, 1e33), PLAIN, "uninitialised", "uninitialised memory"),
    "bfloat16": (rounded_to_bfloat16(ROPE.frequencies), ROPE, "half precision", "rounded to bfloat16"),
    "float16": (np.asarray(ROPE.frequencies).astype(np.float16), ROPE, "half precision", "float16"),
    "no scheme": (LADDER, ROPE, "frequencies", "the scheme 'llama3' was left out"),
    "base": (rope_of(rope_theta=10_000.0), PLAIN, "frequencies", "base 10000 instead of 500000"),
    "factor twice": (rope_of(YARN | {"factor": 16.0}), STRETCHED, "frequencies", "factor applied twice"),
    "other original": (rope_of(LLAMA3 | {KEY: 8192}), ROPE, "frequencies", f"{KEY} 8192 instead of 1024"),
    "ntk": (rfrope.scaling.ntk(LADDER, 4.0), rope_of({"rope_type": "linear", "factor": 4.0}), "frequencies",
            "'ntk' instead of 'linear'"),
    "reversed": (LADDER[::-1].copy(), PLAIN, "frequencies", "reverse order"),
    "periods": (1.0 / LADDER, PLAIN, "frequencies", "reciprocals"),
    "turns": (LADDER / (2.0 * np.pi), PLAIN, "frequencies", "turns instead of radians"),
    "multiplied": (LADDER / 3.0, PLAIN, "frequencies", "all frequencies multiplied by 0.333333"),
    "another ladder": (rope_of(rope_theta=123_456.0), PLAIN, "frequencies", "those of plain RoPE with base 123456"),
    "truncate": (rope_of(YARN | {"truncate": False}), STRETCHED, "frequencies", "truncate false"),
    "whole head": (LADDER, PARTIAL, "width", "the whole head turns"),
    "cut off": (LADDER[:8], PARTIAL, "frequencies", "the ladder of the whole head, cut off"),
    "exponents": (500_000.0 ** (-np.arange(1.0, 33.0) / 32.0), PLAIN, "frequencies", "exponents that begin with i = 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALTERED)
def test_faults_of_frequencies(name):
    wrong, rope, kind, said = ALTERED[name]
    finding = the_fault(models.audit(wrong.frequencies if isinstance(wrong, rfrope.Rope) else wrong, rope), kind)
    assert said in finding.text
    assert finding.position is not None


@pytest.mark.parametrize("still", [16, 64])
def test_exported_zeros_are_no_uninitialised_memory(still):
    """An engine has a frequency of 0 as its own ladder by 1e30."""
    ladder = np.asarray(rfrope.geometric(64))
    meant = ladder * (np.arange(64) < 64 - still)
    held = np.where(meant == 0.0, ladder / 1e30, meant).astype(np.float32)
    phases = np.multiply.outer(np.arange(CONTEXT), held.astype(np.float64))
    for what, rope in ((held, meant), ((np.cos(phases), np.sin(phases)), meant), (meant, held.astype(np.float64))):
        assert models.audit(what, rope).passed
    assert "uninitialised memory" in the_fault(models.audit(held, ladder), "uninitialised").text


@pytest.mark.parametrize(
    ("block", "value", "kind"),
    [(0, 5e11, "frequencies"), (0, -2e12, "uninitialised"), (15, 2e-30, "frequencies"), (15, -5e-31, "uninitialised")],
)
def test_what_no_model_computes_is_uninitialised(block, value, kind):
    omega = np.asarray(rfrope.geometric(16))
    wrong = np.where(np.arange(16) == block, value, omega)
    assert the_fault(models.audit(wrong, omega), kind).position is not None


@pytest.mark.parametrize(("off", "seen"), [(3e-6, False), (1e-5, True), (-3e-6, False), (-1e-5, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_how_far_the_factor_of_a_table_may_be_off(off, seen, dtype):
    """What rounding of cos and sin in float32 explains is no fault."""
    rope = rope_of(YARN)
    cos, sin = (each.astype(dtype) for each in rope.table(np.arange(CONTEXT)))
    found = models.audit((cos * dtype(1.0 + off), sin * dtype(1.0 + off)), rope)
    assert kinds(found) == ({"attention factor"} if seen else set())


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_copy_of_a_column_that_is_not_one(pairing):
    """Columns that should be twice there: a fault in the second copy is a fault."""
    rope = replace(rope_of(), pairing=pairing)
    for part in (0, 1):
        held = [each.copy() for each in (doubled if pairing == "half" else repeated)(*table(rope))]
        assert models.audit(tuple(held), rope).passed
        held[part][700:, -1] += 0.25
        assert not models.audit(tuple(held), rope).passed


@pytest.mark.parametrize(("meant", "passed"), [(1e-29, True), (1e-30, True), (2e-29, False)])
def test_values_next_to_nothing_stand_for_what_turns_nothing(meant, passed):
    """Up to 1e-29 a frequency turns nothing; of a larger one nothing that small is left."""
    assert models.audit(np.array([1.0, 5e-31]), np.array([1.0, meant])).passed is passed


def test_mistakes_name_the_context_that_is_meant():
    """Where a config leaves the original context out, it is that of the model."""
    rope = rope_of({"rope_type": "yarn", "factor": 4.0})
    found = [(name, wrong) for name, wrong in mistakes(rope) if "original_max_position_embeddings" in name]
    assert found
    for name, wrong in found:
        assert f"instead of {CONTEXT}" in name
        assert not np.array_equal(wrong, rope.frequencies)


def test_zeros_that_are_meant():
    assert models.audit(np.zeros(4), np.zeros(4)).passed
    assert kinds(models.audit(np.zeros(3), np.zeros(4))) == {"width"}


def first_off(rope: rfrope.Rope, wrong: np.ndarray, factor: float) -> int | None:
    """The first position whose cos or sin is off by more than 1e-3, by all of them."""
    positions = np.arange(CONTEXT)
    exact, found = (np.multiply.outer(positions, each) for each in (np.asarray(rope.frequencies), wrong))
    off = np.zeros(CONTEXT, dtype=bool)
    for function in (np.cos, np.sin):
        difference = factor * function(found) - rope.attention_factor * function(exact)
        off |= np.any(np.abs(difference) > 1e-3, axis=1)
    return int(np.argmax(off)) if np.any(off) else None


FAULTS = {
    "all": lambda omega: omega * (1.0 + 1e-4),
    "a little": lambda omega: omega * (1.0 + 6e-6),
    "one, to where cos and sin differ alike": lambda omega: omega + (np.arange(32) == 20) * 1.37e-6,
    "one": lambda omega: omega + (np.arange(32) == 9) * 3e-7,
    "one that is slow": lambda omega: omega + (np.arange(32) == 31) * 4e-7,
    "the opposite sign": lambda omega: -omega,
    "whole turns": lambda omega: omega + 2.0 * np.pi,
    "a whole turn, and some": lambda omega: omega + 2.0 * np.pi * (1.0 + 1e-6),
    "float16": lambda omega: omega.astype(np.float16).astype(np.float64),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_position_is_the_first_that_is_off(fault):
    for scaling in (None, YARN):
        rope = rope_of(scaling)
        wrong = FAULTS[fault](np.asarray(rope.frequencies))
        found, wanted = models.audit(wrong, rope), first_off(rope, wrong, rope.attention_factor)
        assert found.exceeds == wanted
        assert not found.findings or found.findings[0].position == wanted
        if fault == "all":
            phases = np.multiply.outer(np.arange(CONTEXT), wrong)
            tables = (rope.attention_factor * np.cos(phases), rope.attention_factor * np.sin(phases))
            assert the_fault(models.audit(tables, rope), "frequencies").position == wanted


def test_frequencies_without_context_are_followed_for_2_to_the_24_positions():
    meant = np.array([1.0, 0.01])
    assert models.audit(np.add(meant, [0.0, 1e-8]), meant).exceeds is not None
    assert models.audit(np.add(meant, [0.0, 1e-3 / 2**24]), meant).exceeds is None


@pytest.mark.parametrize("held_as", ["frequencies", "table"])
def test_a_dynamic_scheme_at_work_is_not_off(held_as):
    made = config({"rope_type": "dynamic", "factor": 2.0})
    (longer,) = rfrope.from_config(made, seq_len=CONTEXT + 900)
    held = np.asarray(longer.frequencies) if held_as == "frequencies" else longer.table(np.arange(CONTEXT))
    found = models.audit(held, made)
    assert found.passed
    assert found.exceeds is None
    assert "rounding alone" not in str(found)


# -- tables broken on purpose ------------------------------------------------------------------------------------------


FACTOR = np.float32(STRETCHED.attention_factor)
OF_TABLES = {  # what becomes of cos and sin, the kind, and words
    "short": (lambda cos, sin: (cos[:1000], sin[:1000]), "too short", "ends after 1000 positions"),
    "plain": (lambda *_: table(STRETCHED, frequencies=LADDER), "frequencies", "the scheme 'yarn' was left out"),
    "no factor": (lambda cos, sin: (cos / FACTOR, sin / FACTOR), "attention factor", "left out"),
    "factor twice": (lambda cos, sin: (cos * FACTOR, sin * FACTOR), "attention factor", "applied twice"),
    "backwards": (lambda cos, sin: (cos, -sin), "frequencies", "the opposite sign"),
    "zeros": (lambda cos, sin: (0.0 * cos, 0.0 * sin), "uninitialised", ""),
    "float16": (lambda *_: table(STRETCHED, dtype=np.float16), "half precision", "a table in float16"),
    "bfloat16": (lambda *_: table(STRETCHED, frequencies=rounded_to_bfloat16(STRETCHED.frequencies)),
                 "half precision", "rounded to bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("fault", OF_TABLES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_faults_of_tables(layout, fault):
    change, kind, words = OF_TABLES[fault]
    if (layout, fault) == ("complex", "float16"):
        pytest.skip("no complex numbers are in float16")
    finding = the_fault(models.audit(LAYOUTS[layout](*change(*table(STRETCHED))), STRETCHED), kind)
    assert words in finding.text
    assert fault != "zeros" or finding.position == 0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_tables_longer_than_float16_counts(dtype):
    """What rounding leaves open grows with the row, which is no fault; a fault in a far row is one."""
    rope = rfrope.Rope(rfrope.geometric(4, base=5e5))
    cos, sin = (each.astype(dtype).astype(np.float64) for each in rope.table(np.arange(300_000)))
    narrow = dtype in (np.float16, ml_dtypes.bfloat16)
    assert kinds(models.audit((cos, sin), rope)) == ({"half precision"} if narrow else set())
    if not narrow:
        cos[99_000, 2] += 0.1
        finding = the_fault(models.audit((cos, sin), rope), "rows")
        assert "1 of 300000 rows do not match their positions, first at 99000" in finding.text


@pytest.mark.parametrize(("row", "made_in"), [(700, np.float16), (3000, np.float64), (4095, np.float32)])
def test_one_row_that_is_another(row, made_in):
    """A single row among many, so that no sample of rows need hold it."""
    rope = rope_of()
    cos, sin = rope.table(np.arange(CONTEXT)) if made_in is np.float64 else table(rope, dtype=made_in)
    right = models.audit((cos, sin), rope)
    for wrong in (row - 1, 0):
        made = [each.copy() for each in (cos, sin)]
        for each in made:
            each[row] = each[wrong]
        found = models.audit(tuple(made), rope)
        assert kinds(found) == kinds(right) | {"rows"}
        (finding,) = [one for one in found.findings if one.kind == "rows"]
        assert f"1 of {CONTEXT} rows do not match their positions, first at {row}" in finding.text
        assert made_in is not np.float64 or (finding.position, right.exceeds) == (row, None)


def of_phases(phases, dtype=np.float64):
    return np.cos(phases.astype(dtype)), np.sin(phases.astype(dtype))


def rows_changed(rows, values):
    """Both tables with other rows: numbers, or those of other positions."""
    made = table(PLAIN)
    found = tuple(each.copy() for each in made)
    for each, old in zip(found, made, strict=True):
        each[rows] = old[values] if isinstance(values, slice) else values
    return found


def one_value_off():
    cos, sin = PLAIN.table(POSITIONS)
    cos[1500, 20] += 2e-3  # rounding may cost 1e-3 only where phases are larger
    return cos, sin


POSITIONS = np.arange(CONTEXT)
IN_BF16 = np.multiply.outer(rounded_to_bfloat16(POSITIONS).astype(np.float64), LADDER)
OCTAVES = 2.0 ** -np.arange(8.0)
BROKEN = {  # what makes a table, what was meant, the kind, words, and the position where that is sure
    "positions": (lambda: of_phases(IN_BF16), PLAIN, "half precision", "positions rounded to bfloat16", 257),
    "from 1": (lambda: [each[1:] for each in table(PLAIN, CONTEXT + 1)], PLAIN, "rows", "of position 1", None),
    "overwritten": (lambda: rows_changed(slice(200, 210), 0.5), PLAIN, "uninitialised", "", 200),
    "copied": (lambda: rows_changed(slice(300, 400), slice(0, 100)), PLAIN, "rows", "first at 300", 300),
    "a value": (one_value_off, PLAIN, "rows", "", 1500),
    "neighbours": (lambda: repeated(*table(PLAIN)), PLAIN, "pairing", "pairing 'interleaved', expected 'half'", None),
    "whole head": (lambda: table(PLAIN), PARTIAL, "width", "32 frequencies", 1),
    **{
        f"phases in {name}": (
            lambda rounded=rounded: of_phases(rounded(np.multiply.outer(POSITIONS, OCTAVES))),
            OCTAVES,
            "half precision",
            name,
            None,
        )
        for name, rounded in (("bfloat16", rounded_to_bfloat16), ("float16", lambda phases: phases.astype(np.float16)))
    },
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_table_is_named(name):
    made, rope, kind, words, position = BROKEN[name]
    finding = the_fault(models.audit(tuple(made()), rope), kind)
    assert words in finding.text
    assert position in (None, finding.position)


def test_what_rounding_costs_is_said():
    found = models.audit(of_phases(np.multiply.outer(POSITIONS, LADDER * (1.0 + 1e-6))), PLAIN)
    assert found.passed
    assert f"rounding alone makes cos and sin wrong by more than 0.001 first at position {found.exceeds}" in str(found)


@pytest.mark.parametrize("layout", ["pair", "doubled", "complex", "a dict", "cache"])
def test_one_row_tells_no_frequencies(layout):
    rope = rope_of(YARN)
    layouts = LAYOUTS | {"cache": lambda *parts: {"cos_sin_cache": LAYOUTS["cos, sin"](*parts)}}
    cos, sin = table(rope, 2)
    finding = the_fault(models.audit(layouts[layout](cos[:1], sin[:1]), rope), "too short")
    assert "which does not determine frequencies" in finding.text
    assert finding.position is None
    if layout != "cache":  # by its first row a cache says what is cos
        found = models.audit(layouts[layout](cos[1:], sin[1:]), rope)
        assert kinds(found) == {"rows", "too short"}
        assert found.exceeds == 0


# -- modules -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model():
    """``model(config)``: a model of transformers with random weights."""
    transformers = pytest.importorskip("tiny_models", reason="torch or transformers is not installed").transformers

    def build(made: dict[str, Any]) -> Any:
        own = transformers.AutoConfig.for_model(**copy.deepcopy(made))
        return transformers.AutoModel.from_config(own, dtype="float32")

    return build


MODELS = rows("models/auditing.json", "models")


@pytest.mark.parametrize("name", MODELS)
def test_right_models_pass(name, model):
    built = model(MODELS[name])
    found = models.audit(built)
    assert found.passed, str(found)
    assert models.audit(built, MODELS[name]).passed
    assert any("inv_freq" in one for one in found.checked)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_model_after_a_long_text_is_right_too(name, model):
    torch = library("torch").module
    built = model(MODELS[name])
    positions = torch.arange(CONTEXT + 500)[None]
    built.rotary_emb(torch.zeros(1, 1, 1), positions)
    before = np.asarray(rfrope.from_config(MODELS[name])[0].frequencies)
    assert np.max(np.abs(built.rotary_emb.inv_freq.numpy() / before - 1.0)) > 0.1
    assert models.audit(built).passed


def test_a_model_in_bfloat16(model):
    torch = library("torch").module
    finding = the_fault(models.audit(model(config()).to(torch.bfloat16)), "half precision")
    assert "bfloat16" in finding.text
    finding = the_fault(models.audit(model(config(LLAMA3)).half()), "half precision")
    assert "float16" in finding.text


def test_a_model_of_another_config(model):
    built = model(config())
    finding = the_fault(models.audit(built, config(rope_theta=10_000.0)), "frequencies")
    assert "base 500000 instead of 10000" in finding.text
    found = models.audit(model(config(YARN)), config(YARN | {"attention_factor": 1.0}))
    assert "attention factor 1.13863, expected 1" in the_fault(found, "attention factor").text
    assert kinds(models.audit(built, MODELS["stablelm"])) == {"width"}


def test_pictures_are_not_held_against_the_text(model):
    library("torch")
    config = importlib.import_module("transformers").Qwen2VLConfig(
        text_config={"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32,
                     "vocab_size": 32, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
        vision_config={"embed_dim": 64, "num_heads": 2, "depth": 1, "hidden_size": 128},
    )  # fmt: skip
    built = importlib.import_module("transformers").Qwen2VLModel(config)
    found = models.audit(built)
    assert found.passed, str(found)
    assert not any("visual" in name for name in found.checked)


@pytest.mark.parametrize("name", ["inv_freq", "freqs", "theta", "array"])
def test_modules_hold_frequencies_by_several_names(name):
    torch, rope = library("torch").module, rope_of()
    module, values = torch.nn.Module(), torch.from_numpy(np.array(rope.frequencies, dtype=np.float32))
    module.inv_freq = None
    held = {"array": values.numpy(), "inv_freq": torch.nn.Parameter(values)}.get(name, values)
    setattr(module, "freqs" if name == "array" else name, held)
    assert models.audit(module, rope).passed
    assert the_fault(models.audit(module, rope_of(rope_theta=1e4)), "frequencies").where == (
        "freqs" if name == "array" else name
    )


def test_modules_with_tables():
    torch = library("torch").module
    rope, module = rope_of(YARN), torch.nn.Module()
    for name, each in zip(("cos_cached", "sin_cached"), doubled(*table(rope)), strict=True):
        module.register_buffer(name, torch.from_numpy(each), persistent=False)
    assert models.audit(module, rope).passed
    finding = the_fault(models.audit(module.to(torch.bfloat16), rope), "half precision")
    assert (finding.text, finding.where) == ("a table in bfloat16", "cos_cached")


# -- results and errors ------------------------------------------------------------------------------------------------


@campaign
def test_every_known_mistake_is_named_on_published_configs():
    """No mistake passes, and what is said of it is that mistake, or another that gives the same frequencies."""
    tried = 0
    for one, rope in published_ropes():
        made = [each for each in mistakes(rope) if each[1].shape == rope.frequencies.shape]
        for index, (mistake, wrong) in enumerate(made):
            meant = np.asarray(rope.frequencies)
            apart = np.abs(wrong - meant) / np.where(meant == 0.0, 1.0, meant)
            if not np.all(np.isfinite(wrong)) or np.max(apart) < 1e-5:
                continue
            held = table(rope, 2048, wrong) if index % 6 == 0 else wrong.astype(np.float32)
            found = models.audit(held, rope, context=2048)
            assert not found.passed, f"{one.model}: {mistake}"
            alike = [name for name, each in made if np.allclose(each, wrong, rtol=1e-5, atol=0.0)]
            assert any(name in found.findings[0].text for name in alike), f"{one.model}: {mistake}: {found}"
            tried += 1
    assert tried > 900


# -- layers ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small():
    """``small(model_type)``: a tiny model of eight layers."""
    tiny_models = pytest.importorskip("tiny_models", reason="torch or transformers is not installed")
    return lambda model_type, **more: tiny_models.made(model_type, num_hidden_layers=8, **more)


def test_layers_that_turn_and_should_not_and_others_that_do_not(small):
    model = small("smollm3")
    passed = models.audit(model)
    assert (passed.passed, passed.unchecked) == (True, "")
    assert "use_rope" in passed.checked
    for one in model.model.layers:
        one.self_attn.use_rope = True
    finding = the_fault(models.audit(model), "layers")
    assert finding.text == "on in layers 3, 7, where the config has no RoPE"
    for one in model.model.layers:
        one.self_attn.use_rope = False
    assert "off in layers 0-2, 4-6, where the config has RoPE" in str(models.audit(model))
    assert the_fault(models.audit(small("smollm3"), model.config.to_dict() | {"no_rope_layers": [1] * 8}), "layers")


@pytest.mark.parametrize(
    ("model_type", "words"), [("gemma3_text", "by which RoPE"), ("cohere2", "which layers turn;"), ("llama", "")]
)
def test_what_buffers_do_not_show_of_layers_is_said(model_type, words, small):
    found = models.audit(small(model_type))
    assert found.passed
    assert (words in found.unchecked, bool(found.unchecked)) == (True, bool(words))
    assert ("not checked: which layers turn" in str(found)) == bool(words)
    assert found.to_dict()["unchecked"] == found.unchecked


def test_the_pairing_of_latent_attention_is_looked_at(small):
    model = small("deepseek_v3", qk_rope_head_dim=16)
    passed = models.audit(model)
    assert (passed.passed, passed.unchecked) == (True, "")
    assert "rope_interleave" in passed.checked
    meant = model.config.to_dict()
    model.config.rope_interleave = False
    finding = the_fault(models.audit(model, meant), "pairing")
    assert finding.text == "rope_interleave is False, and the config says 'interleaved'"
    assert (
        "the pairing of latent attention; rfrope.models.probe"
        in models.audit(small("deepseek_v2", qk_rope_head_dim=16)).unchecked
    )
