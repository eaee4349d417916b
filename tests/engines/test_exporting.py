"""Exported data: values, refusals and roundings, and files that appear whole or not at all."""

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import rows
from ropes import CONTEXT, KINDS, carried_by

import rfrope
from rfrope import Rope, engines

FORMATS = {engine.name: engine.format for engine in engines.records() if engine.format}
NAMES = list(FORMATS)
ROPE = KINDS["no factor"](1)
DICTS = ("transformers", "vLLM", "SGLang", "MLX-LM", "TensorRT-LLM")
ANY = ("json", "npz")


@pytest.mark.parametrize("engine", DICTS)
@pytest.mark.parametrize("base", [None, 5e6])
def test_dicts_hold_divisors_of_the_ladder(engine, base):
    made = engines.export(ROPE, engine, base=base)
    scheme = made.get("rope_parameters") or made["rope_scaling"]
    theta = scheme.get("rope_theta") or made["rope_theta"]
    assert theta == (base or 10_000.0)
    factors, moving = np.asarray(scheme["short_factor"]), ROPE.frequencies != 0.0
    assert scheme["short_factor"] == scheme["long_factor"]
    ladder = theta ** (-np.arange(8) / 8)
    np.testing.assert_allclose((ladder / factors)[moving], ROPE.frequencies[moving], rtol=1e-6)
    assert factors[~moving].tolist() == [1e30]
    assert scheme["factor"] == 1.0
    assert scheme["original_max_position_embeddings"] == made["max_position_embeddings"] == CONTEXT
    json.dumps(made, allow_nan=False)


def test_attention_factors_are_where_each_engine_looks():
    rope = replace(ROPE, attention_factor=1.25)
    assert engines.export(rope, "transformers")["rope_parameters"]["attention_factor"] == 1.25
    for engine in ("vLLM", "SGLang"):
        made = engines.export(rope, engine)["rope_parameters"]
        assert [made[key] for key in ("short_mscale", "long_mscale", "attention_factor")] == [1.25] * 3
    assert "attention_factor" not in engines.export(ROPE, "TensorRT-LLM")["rope_scaling"]  # it has no such key
    assert engines.export(rope, "llama.cpp")["keys"]["llama.rope.scaling.attn_factor"] == 1.25
    np.testing.assert_array_equal(engines.export(rope, "ONNX")["cos_cache"][0], np.full(8, 1.25, np.float32))


@pytest.mark.parametrize("factor", [1.0, 1.0693147180559945, 1.25])
def test_the_contexts_of_mlx_lm_say_the_attention_factor(factor, tmp_path):
    """By our rule for its classes, and in a copy of a config; what whole positions lose is stated."""
    rope, path = replace(LLAMA, attention_factor=factor, context=16384, source=None), tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "head_dim": 16, "rope_theta": 5e5, "vocab_size": 8}))
    engines.write(path, rope, "MLX-LM", model=path, overwrite=True)
    (found,) = rfrope.models.compare(path, ["MLX-LM", "transformers"], seq_len=16384).ropes
    for engine in found.engines:
        np.testing.assert_allclose(engine.rope.frequencies, rope.frequencies, rtol=1e-6)
        assert engine.rope.attention_factor == pytest.approx(factor, rel=2e-5)
    lost = [engines.rounding(replace(rope, attention_factor=one), "MLX-LM").table for one in (factor, 1.0)]
    assert abs(found.engines[0].rope.attention_factor / factor - 1.0) == pytest.approx(lost[0] - lost[1], abs=1e-12)


SCHEMES = rows("engines/exporting.json", "schemes")
OTHERWISE = {  # engines that read a scheme in another way, and get divisors
    "dynamic": ("vLLM", "SGLang", "TensorRT-LLM"),
    "yarn with an attention factor": ("SGLang", "MLX-LM", "TensorRT-LLM"),
    "longrope": ("MLX-LM",),
    "ntk": DICTS,
}


@pytest.mark.parametrize("engine", DICTS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_unchanged_config_keeps_its_scheme_where_the_engine_reads_it_as_the_rope(scheme, engine, tmp_path):
    sizes = {"model_type": "llama", "head_dim": 16, "hidden_size": 64, "num_attention_heads": 4}
    config = sizes | {"max_position_embeddings": 512, "rope_theta": 5e5, "rope_scaling": SCHEMES[scheme]}
    (rope,) = rfrope.from_config(config)
    kept, path = engine not in OTHERWISE.get(scheme, ()), tmp_path / "config.json"
    path.write_text(json.dumps(config))
    engines.write(path, rope, engine, model=path, overwrite=True)
    made, written = engines.export(rope, engine), json.loads(path.read_text())
    said = made.get("rope_parameters") or made["rope_scaling"] or {}
    name = SCHEMES[scheme]["rope_type"] if kept else "longrope"
    assert (said.get("rope_type", "default"), made["max_position_embeddings"]) == (name, 512)
    assert {**written, **made} == written
    if kept:
        assert {key: said.get(key) for key in SCHEMES[scheme]} == SCHEMES[scheme] or name == "default"
        for length in (None, 400, 2000):
            before, after = (rfrope.from_config(one, seq_len=length)[0] for one in (config, path))
            np.testing.assert_array_equal(after.frequencies, before.frequencies)
            assert after.attention_factor == before.attention_factor
        more = engines.export(rope, engine, context=2048)
        assert more["max_position_embeddings"] == 2048
    lost = engines.rounding(rope, engine)
    assert (lost.scheme, str(lost).endswith(f"as with any RoPE; exported as {name}")) == (name, True)
    assert 0.0 < lost.phases <= lost.table < 2.0 * lost.phases


def test_a_rope_that_was_changed_is_not_what_its_config_says():
    yarn = {"model_type": "llama", "head_dim": 16, "max_position_embeddings": 512, "rope_scaling": SCHEMES["yarn"]}
    (rope,) = rfrope.from_config(yarn)
    assert engines.export(rope, "vLLM")["rope_parameters"]["rope_type"] == "yarn"
    (cohere,) = rfrope.from_config(yarn | {"model_type": "cohere"})
    others = [replace(rope, frequencies=0.999999 * rope.frequencies), replace(rope, attention_factor=1.0)]
    for other in (*others, rfrope.scaling.linear(rope, 2.0), replace(cohere, pairing="half")):
        assert engines.export(other, "vLLM")["rope_parameters"]["rope_type"] == "longrope"
    assert engines.export(rope, "vLLM", base=1e6)["rope_parameters"]["rope_type"] == "longrope"
    (long,) = rfrope.from_config(yarn | {"rope_scaling": SCHEMES["longrope"]}, seq_len=2000)
    np.testing.assert_array_equal(
        engines.export(long, "vLLM")["rope_parameters"]["short_factor"],
        engines.export(long, "vLLM")["rope_parameters"]["long_factor"],
    )


@pytest.mark.parametrize(("rotary", "head"), [(16, 24), (16, 100), (12, 17), (2, 7)])
def test_the_part_of_a_head_gives_its_width_again(rotary, head):
    rope = Rope(np.ones(rotary // 2), head_dim=head, context=8)
    part = engines.export(rope, "transformers")["rope_parameters"]["partial_rotary_factor"]
    assert int(head * part) == rotary
    assert engines.export(rope, "TensorRT-LLM")["partial_rotary_factor"] == part


def test_tensors_of_llama_cpp():
    made = engines.export(ROPE, "llama.cpp", base=5e5)
    ((name, factors),) = made["tensors"].items()
    assert (name, factors.dtype) == ("rope_freqs.weight", np.float32)
    ladder, moving = 5e5 ** (-np.arange(8) / 8), ROPE.frequencies != 0.0
    np.testing.assert_allclose(factors[moving], (ladder / np.where(moving, ROPE.frequencies, 1.0))[moving], rtol=1e-5)
    assert factors[~moving].tolist() == [np.float32(1e30)]
    phi3 = engines.export(replace(ROPE, head_dim=24), "llama.cpp", architecture="phi3")
    assert list(phi3["tensors"]) == ["rope_factors_long.weight", "rope_factors_short.weight"]
    assert phi3["keys"]["phi3.rope.scaling.original_context_length"] == CONTEXT
    assert phi3["keys"]["phi3.rope.dimension_count"] == 16
    gemma4 = engines.export(ROPE, "llama.cpp", architecture="gemma4")
    assert list(gemma4["tensors"]) == ["rope_freqs.weight"]


def test_periods_of_mlx(xp):
    made = engines.export(ROPE, "MLX")
    with np.errstate(divide="ignore"):
        assert np.array_equal(made["freqs"], (1.0 / ROPE.frequencies).astype(np.float32))
    assert np.sum(np.isinf(made["freqs"])) == 1
    assert (made["dims"], made["traditional"]) == (16, False)
    for bare in (xp(ROPE.frequencies), ROPE.frequencies[:, None]):
        assert np.array_equal(engines.export(bare, "MLX")["freqs"], made["freqs"])


def test_every_rope_fits_json_and_npz():
    heads = rfrope.sample(rfrope.kernel("gaussian", scale=8.0), 8, rng=0, heads=3)
    rope = Rope(heads, pairing="interleaved", head_dim=20, attention_factor=1.5, context=64)
    made = json.loads(json.dumps(engines.export(rope, "json")))
    assert np.array_equal(made["frequencies"], rope.frequencies)
    assert (made["pairing"], made["head_dim"], made["attention_factor"]) == ("interleaved", 20, 1.5)
    sections = Rope(rfrope.geometric(8), sections=(4, 2, 2), context=64)
    made = engines.export(sections, "npz")
    assert np.array_equal(made["frequencies"], sections.frequencies)
    assert np.array_equal(made["vectors"], sections.vectors)
    assert (made["sections"], "cos" in made) == ([4, 2, 2], False)
    assert engines.export(replace(sections, sections=None), "npz")["cos"].shape == (64, 8)
    assert engines.export(Rope(ROPE.frequencies, pairing=None), "json")["pairing"] is None


@pytest.mark.parametrize("tiny", [1e-40, -5e-324])
def test_frequencies_next_to_nothing_are_divided_away(tiny):
    """Without a warning: a divisor that no float holds is 1e30."""
    rope = replace(ROPE, frequencies=np.append(ROPE.frequencies[:-1], tiny))
    assert abs(engines.export(rope, "transformers")["rope_parameters"]["long_factor"][-1]) == 1e30


# -- roundings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["transformers", "MLX"])
def test_the_stated_bound_holds_and_is_not_idle(engine):
    """In NumPy's float32, at the far end of a long context."""
    rope = Rope(rfrope.geometric(64), context=131072)
    lost, made = engines.rounding(rope, engine), engines.export(rope, engine)
    if engine == "MLX":
        omega = np.float32(1.0) / made["freqs"]
    else:
        factors = np.asarray(made["rope_parameters"]["short_factor"], np.float32)
        exponents = np.arange(0, 128, 2, dtype=np.float32) / np.float32(128)
        omega = np.float32(1.0) / (factors * np.float32(10_000.0) ** exponents)
    positions, lags = np.arange(131072 - 4096, 131072), np.arange(131072)
    phases = positions[:, None].astype(np.float32) * omega
    missed = np.max(np.abs(np.cos(phases) - rope.table(positions)[0]))
    assert missed <= lost.table <= 20.0 * missed
    wide = omega.astype(np.float64)
    assert lost.frequency == pytest.approx(np.max(np.abs(wide / rope.frequencies - 1.0)), rel=0.02)
    kernels = [rfrope.analysis.mean_kernel(lags, one) for one in (wide, rope.frequencies)]
    assert lost.kernel == pytest.approx(np.max(np.abs(kernels[0] - kernels[1])), rel=1e-3)
    assert lost.context == 131072


@pytest.mark.parametrize(("engine", "most"), [("vLLM", 2e-7), ("llama.cpp", 1e-7)])
def test_a_divisor_makes_up_for_the_ladder_that_the_engine_computes(engine, most):
    """At a base of 1e9 the float32 ladder is off by 1e-6; the engine's product with the divisors is not."""
    assert engines.rounding(Rope(rfrope.geometric(64), context=100), engine, base=1e9).frequency < most


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("float32", 2.0**-24), ("float64", 2.0**-53)])
def test_tables_are_rounded_once(dtype, unit):
    rope = replace(ROPE, attention_factor=1.25, context=2**17)
    made = engines.export(rope, "flash-attn", dtype=dtype)
    for name, table in zip(("cos", "sin"), rope.table(np.arange(2**17)), strict=True):
        assert np.array_equal(made[name], table.astype(dtype))
    assert engines.rounding(rope, "flash-attn", dtype=dtype).table == unit


def test_one_position_has_no_phase_and_the_base_is_that_of_the_config():
    assert engines.rounding(replace(ROPE, context=1), "transformers").table == 3.0 * 2.0**-24
    (rope,) = rfrope.from_config({"model_type": "llama", "head_dim": 16, "rope_theta": 5e5})
    made = engines.export(rfrope.scaling.linear(rope, 2.0), "transformers")["rope_parameters"]
    assert made["rope_theta"] == 5e5
    np.testing.assert_allclose(made["long_factor"], 2.0, rtol=1e-6)


def test_roundings_in_words():
    assert engines.rounding(ROPE, "json") == engines.Rounding(0.0, 0.0, 0.0, CONTEXT)
    start = "over 300 positions: frequencies to 0.0e+00, the mean kernel to "
    assert str(engines.rounding(ROPE, "ONNX")).startswith(start)


@pytest.mark.parametrize(("engine", "exact"), [(engine, number % 2 == 0) for number, engine in enumerate(NAMES)])
def test_negative_frequencies_lose_what_positive_ones_do(engine, exact):
    """A block that turns the other way is as far off: errors are sizes, and so are their bounds."""
    rope = KINDS[carried_by(engine)[0]](3)
    if exact:  # in float32, too
        rope = replace(rope, frequencies=np.append(1.0, -(0.5 ** np.arange(1.0, rope.n_blocks))))
    lost = engines.rounding(rope, engine)
    assert lost == engines.rounding(replace(rope, frequencies=-rope.frequencies), engine)
    assert 0.0 <= lost.table < 1e-3 * CONTEXT * np.max(np.abs(rope.frequencies))


# -- what engines carry ------------------------------------------------------------------------------------------------

(GLM,) = rfrope.from_config({"model_type": "glm4", "head_dim": 32})
(LLAMA,) = rfrope.from_config({"model_type": "llama", "head_dim": 16})
WHOLE = {"no factor", "ladder"}
CARRIED = {
    **{engine: {"plain", "partial", "learned", *WHOLE} for engine in ("transformers", "vLLM", "SGLang")},
    "TensorRT-LLM": WHOLE,
    "MLX": {"interleaved, no factor", *WHOLE},
    "MLX-LM": {"learned", *WHOLE},
    "llama.cpp": {"plain", "interleaved", "interleaved, no factor", "learned", *WHOLE},
    **{one: set(KINDS) for one in ("flash-attn", "FlashInfer", "ONNX", "vLLM operator", *ANY)},
}


def test_what_an_engine_carries():
    assert {engine: set(carried_by(engine)) for engine in NAMES} == CARRIED


@pytest.fixture(scope="module")
def of_two_axes():
    return Rope(rfrope.sample("gaussian(ndim=2)", 8, rng=5), context=CONTEXT)


@pytest.mark.parametrize("engine", NAMES)
def test_sets_of_two_axes_are_read_back_or_refused_with_what_to_do(engine, of_two_axes, tmp_path):
    rope = of_two_axes
    assert rope.vectors.shape == (8, 2)
    path = tmp_path / f"rope{FORMATS[engine].suffixes[0]}"
    if engine in ANY:
        engines.write(path, rope, engine)
        held = engines.export(rope, engine)
        again = Rope(np.asarray(held["frequencies"]), pairing=held["pairing"])
        x, at = np.linspace(-1.0, 2.0, 16), np.array([7.0, 31.0])
        np.testing.assert_array_equal(again.rotate(x, at), rope.rotate(x, at))
        return
    with pytest.raises(
        ValueError, match=r"2 position axes, and the engine has one; 'json' and .* rope.table .*Embedding"
    ):
        engines.write(path, rope, engine)
    assert os.listdir(tmp_path) == []


def test_a_class_that_pairs_as_the_rope_does():
    assert engines.export(GLM, "transformers")["rope_parameters"]["partial_rotary_factor"] == 0.5
    (given,) = rfrope.from_config({"model_type": "glm4", "head_dim": 32}, pairing="half")
    assert engines.export(given, "transformers") == engines.export(GLM, "transformers")


@pytest.mark.parametrize("engine", [name for name in NAMES if "context" in FORMATS[name].options])
def test_a_context_of_several_axes_has_to_be_said(engine):
    """The context of one axis is that of the text; one of several is not."""
    rope = KINDS[carried_by(engine)[0]](3)
    one, made = (engines.export(replace(rope, context=context), engine) for context in ((CONTEXT,), CONTEXT))
    assert repr(one) == repr(made)
    for context in ((CONTEXT, 7), None):
        with pytest.raises(ValueError, match=r"context is None, and so is the Rope's; .* needs it: expected context="):
            engines.export(replace(rope, context=context), engine)
        assert repr(engines.export(replace(rope, context=context), engine, context=CONTEXT)) == repr(made)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "suffix"), [(name, suffix) for name in NAMES for suffix in FORMATS[name].suffixes if suffix != ".gguf"]
)
def test_files_hold_the_export(engine, suffix, tmp_path):
    path, made = tmp_path / f"rope{suffix}", engines.export(ROPE, engine)
    if suffix == ".onnx":
        pytest.importorskip("onnx", reason="onnx is not installed")
    engines.write(path, ROPE, engine)
    before = path.read_bytes()
    if suffix == ".json":
        assert json.loads(before) == made
    elif suffix == ".npz":
        arrays = {name: value for name, value in made.items() if isinstance(value, np.ndarray)}
        with np.load(path, allow_pickle=False) as held:
            assert set(held.files) == {"about", *arrays}
            assert all(np.array_equal(held[name], value) for name, value in arrays.items())
            assert json.loads(str(held["about"])) == {n: v for n, v in made.items() if n not in arrays}
    with pytest.raises(FileExistsError, match="exists; expected a new name, or overwrite=True"):
        engines.write(path, -ROPE.frequencies, engine, context=7 if "context" in FORMATS[engine].options else None)
    assert path.read_bytes() == before
    engines.write(path, ROPE, engine, overwrite=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("engine", "package", "suffix"), [("ONNX", "onnx", ".onnx"), ("llama.cpp", "gguf", ".gguf")])
def test_a_missing_package_is_named(engine, package, suffix, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    model = tmp_path / "model.gguf" if engine == "llama.cpp" else None
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}"):
        engines.write(tmp_path / f"new{suffix}", ROPE, engine, model=model)
    assert os.listdir(tmp_path) == []


def test_a_new_engine_is_one_record(monkeypatch):
    """Names, lookup, refusals and files follow from it."""
    form = replace(FORMATS["MLX"], make=lambda request: {"periods": 1.0 / request.rope.frequencies}, pairings=("half",))
    monkeypatch.setattr(engines, "records", lambda: (engines.Engine("New Engine", format=form),))
    assert engines.names() == ["New Engine"]
    np.testing.assert_array_equal(engines.export([1.0, 0.5], "new-engine")["periods"], [1.0, 2.0])
