"""What is exported, as data and as files: values, refusals, roundings, and that nothing is half written."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
from ropes import CONTEXT, KINDS, carried_by

import rfrope
from rfrope import Rope, exports

NAMES = exports.names()
ROPE = KINDS["no factor"](1)
DICTS = ("transformers", "vllm", "sglang", "tensorrt-llm")


def test_records():
    assert len(set(NAMES)) == len(NAMES) == len(exports.records()) == 12
    for record in exports.records():
        assert record.carries
        assert record.exact
        assert record.source
        assert set(record.options) <= {"context", "base", "dtype", "architecture"}
        assert record.lacks == "nothing" if record.anything else "sets for each head, several axes" in record.lacks


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", DICTS)
@pytest.mark.parametrize("base", [None, 5e6])
def test_dicts_hold_divisors_of_the_ladder(engine, base):
    told = exports.export(ROPE, engine, base=base)
    scheme = told.get("rope_parameters") or told["rope_scaling"]
    theta = scheme.get("rope_theta") or told["rope_theta"]
    assert theta == (base or 10_000.0)
    assert scheme["short_factor"] == scheme["long_factor"]
    ladder = theta ** (-np.arange(8) / 8)
    moving = ROPE.frequencies != 0.0
    np.testing.assert_allclose((ladder / scheme["short_factor"])[moving], ROPE.frequencies[moving], rtol=1e-6)
    assert [scheme["short_factor"][i] for i in np.flatnonzero(~moving)] == [1e30]
    assert scheme["factor"] == 1.0
    assert "attention_factor" not in scheme or engine != "tensorrt-llm"  # which has no such key
    assert scheme["original_max_position_embeddings"] == told["max_position_embeddings"] == CONTEXT
    json.dumps(told, allow_nan=False)


def test_attention_factors_are_where_each_engine_looks():
    rope = replace(ROPE, attention_factor=1.25)
    assert exports.export(rope, "transformers")["rope_parameters"]["attention_factor"] == 1.25
    for engine in ("vllm", "sglang"):
        told = exports.export(rope, engine)["rope_parameters"]
        assert [told[key] for key in ("short_mscale", "long_mscale", "attention_factor")] == [1.25] * 3
    assert exports.export(rope, "llama.cpp")["keys"]["llama.rope.scaling.attn_factor"] == 1.25
    cos = exports.export(rope, "onnx")["cos_cache"]
    np.testing.assert_array_equal(cos[0], np.full(8, 1.25, np.float32))


@pytest.mark.parametrize(("rotary", "head"), [(16, 24), (16, 100), (12, 17), (2, 7)])
def test_the_share_of_a_head_gives_its_width_again(rotary, head):
    rope = Rope(np.ones(rotary // 2), head_dim=head, context=8)
    told = exports.export(rope, "transformers")["rope_parameters"]
    assert int(head * told["partial_rotary_factor"]) == rotary
    assert exports.export(rope, "tensorrt-llm")["partial_rotary_factor"] == told["partial_rotary_factor"]


def test_tensors_of_llama_cpp():
    told = exports.export(ROPE, "llama.cpp", base=5e5)
    (name, factors), *others = told["tensors"].items()
    assert (name, others, factors.dtype) == ("rope_freqs.weight", [], np.float32)
    wanted = np.divide(
        5e5 ** (-np.arange(8) / 8), ROPE.frequencies, where=ROPE.frequencies != 0.0, out=np.full(8, 1e30)
    )
    np.testing.assert_allclose(factors, wanted, rtol=1e-5)
    phi = exports.export(replace(ROPE, head_dim=24), "llama.cpp", architecture="phi3")
    assert list(phi["tensors"]) == ["rope_factors_long.weight", "rope_factors_short.weight"]
    assert phi["keys"]["phi3.rope.scaling.original_context_length"] == CONTEXT
    assert phi["keys"]["phi3.rope.dimension_count"] == 16


def test_periods_of_mlx():
    told = exports.export(ROPE, "mlx")
    with np.errstate(divide="ignore"):
        assert np.array_equal(told["freqs"], (1.0 / ROPE.frequencies).astype(np.float32))
    assert np.sum(np.isinf(told["freqs"])) == 1
    assert (told["dims"], told["traditional"]) == (16, False)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_tables_are_rounded_once(dtype):
    rope = replace(ROPE, attention_factor=1.25, context=2**17)
    told = exports.export(rope, "flash-attn", dtype=dtype)
    cos, sin = rope.table(np.arange(2**17))
    assert np.array_equal(told["cos"], cos.astype(dtype))
    assert np.array_equal(told["sin"], sin.astype(dtype))
    assert (
        exports.rounding(rope, "flash-attn", dtype=dtype).table
        == 2.0 ** -{"float16": 11, "float32": 24, "float64": 53}[dtype]
    )


def test_everyone_else_gets_everything():
    heads = rfrope.sample(rfrope.kernel("gaussian", scale=8.0), 8, rng=0, heads=3)
    rope = Rope(heads, pairing="interleaved", head_dim=20, attention_factor=1.5, context=64)
    told = exports.export(rope, "json")
    assert np.array_equal(np.asarray(json.loads(json.dumps(told))["frequencies"]), rope.frequencies)
    assert (told["pairing"], told["head_dim"], told["attention_factor"]) == ("interleaved", 20, 1.5)
    sections = Rope(rfrope.geometric(8), sections=(4, 2, 2), context=64)
    held = exports.export(sections, "npz")
    assert held["frequencies"].shape == (8,)
    assert np.array_equal(held["vectors"], sections.vectors)
    assert held["sections"] == [4, 2, 2]
    assert "cos" not in held
    with pytest.raises(ValueError, match="turns by 3 position axes"):
        exports.export(sections, "onnx")
    assert exports.export(replace(sections, sections=None), "onnx")["cos_cache"].shape == (64, 8)
    assert exports.export(ROPE, "npz")["cos"].shape == (CONTEXT, 8)
    assert exports.export(Rope(ROPE.frequencies, pairing=None), "json")["pairing"] is None


def test_arrays_of_other_libraries_and_bare_ones(xp):
    told = exports.export(xp(ROPE.frequencies), "mlx")
    assert np.array_equal(told["freqs"], exports.export(ROPE, "mlx")["freqs"])
    assert exports.export(ROPE.frequencies[:, None], "mlx")["freqs"].shape == (8,)


# -- roundings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["transformers", "mlx"])
def test_the_stated_bound_holds_and_is_not_idle(engine):
    """In NumPy's float32, at the far end of a long context."""
    rope = Rope(rfrope.geometric(64), context=131072)
    told = exports.rounding(rope, engine)
    made = exports.export(rope, engine)
    if engine == "mlx":
        omega = np.float32(1.0) / made["freqs"]
    else:
        factors = np.asarray(made["rope_parameters"]["short_factor"], np.float32)
        exponents = np.arange(0, 128, 2, dtype=np.float32) / np.float32(128)
        omega = np.float32(1.0) / (factors * np.float32(10_000.0) ** exponents)
    positions = np.arange(131072 - 4096, 131072)
    phases = positions[:, None].astype(np.float32) * omega
    missed = np.max(np.abs(np.cos(phases) - rope.table(positions)[0]))
    assert missed <= told.table <= 20.0 * missed
    apart = np.abs(omega.astype(np.float64) / rope.frequencies - 1.0)
    assert told.frequency == pytest.approx(np.max(apart), rel=0.02)
    lags = np.arange(131072)
    kernels = [rfrope.analysis.mean_kernel(lags, one) for one in (omega.astype(np.float64), rope.frequencies)]
    assert told.kernel == pytest.approx(np.max(np.abs(kernels[0] - kernels[1])), rel=1e-3)
    assert told.context == 131072


def test_a_divisor_makes_up_for_the_ladder_that_the_engine_computes():
    """At a base of 1e9 the float32 ladder is off by 1e-6, and what the engine makes of the divisors is not."""
    assert exports.rounding(Rope(rfrope.geometric(64), context=100), "vllm", base=1e9).frequency < 2e-7
    assert exports.rounding(Rope(rfrope.geometric(64), context=100), "llama.cpp", base=1e9).frequency < 1e-7


def test_phases_less_whole_turns_lose_nothing_far_away():
    rope = Rope(rfrope.geometric(8), context=2**20)
    told = exports.export(rope, "transformer-engine")["freqs"][-1000:, 0, 0, :8].astype(np.float64)
    cos, _ = rope.table(np.arange(2**20 - 1000, 2**20))
    assert np.max(np.abs(np.cos(told) - cos)) < exports.rounding(rope, "transformer-engine").table < 4e-7


def test_roundings_in_words():
    told = exports.rounding(ROPE, "json")
    assert (told.frequency, told.kernel, told.table) == (0.0, 0.0, 0.0)
    assert str(exports.rounding(ROPE, "onnx")).startswith(
        "over 300 positions: frequencies to 0.0e+00, the mean kernel to "
    )


# -- refusals ----------------------------------------------------------------------------------------------------------

HEADS = Rope(np.ones((2, 8, 1)), context=8)
AXES = rfrope.mrope(rfrope.geometric(8), (4, 2, 2))
GLM = next(iter(rfrope.from_config({"model_type": "glm4", "head_dim": 32})))
LLAMA = {"source": {"model_type": "llama", "pairing": "known"}}
CARRIED = {  # of the kinds
    "transformers": {"plain", "no factor", "partial", "ladder"},
    "vllm": {"plain", "no factor", "partial", "ladder"},
    "mlx": {"no factor", "interleaved, no factor", "ladder"},
    "transformer-engine": {"no factor", "interleaved, no factor", "ladder"},
    "flash-attn": set(KINDS),
    "flashinfer": set(KINDS),
    "onnx": set(KINDS),
}
REFUSED = [
    *((HEADS, name, r"shape \(2, 8, 1\), a set for each head, and heads share one") for name in NAMES[:10]),
    *((AXES, name, r"turns by 3 position axes; for text alone, replace\(rope, sections=None\)") for name in NAMES[:10]),
    *((Rope(np.ones(4), pairing=None, context=8), name, "its pairing is None") for name in NAMES[:10]),
    *((replace(ROPE, pairing="interleaved"), name, "it pairs 'interleaved', the engine 'half' alone") for name in NAMES[1:4]),
    *((replace(ROPE, attention_factor=1.1), name, "its attention factor 1.1 would be dropped")
      for name in ("tensorrt-llm", "mlx", "transformer-engine")),
    (replace(ROPE, pairing="interleaved"), "transformers", "most classes of transformers pair halves"),
    (replace(GLM, pairing="half"), "transformers", "the class of 'glm4' pairs 'interleaved', the Rope 'half'"),
    (replace(ROPE, head_dim=24, **LLAMA), "transformers", "the class of 'llama' turns whole heads, the Rope 16 features"),
    *((KINDS[kind](0), name, "pair|attention factor") for name, kinds in CARRIED.items() for kind in KINDS if kind not in kinds),
    (replace(ROPE, head_dim=24), "llama.cpp", "llama turns whole heads, the Rope 16 features of 24"),
]  # fmt: skip


@pytest.mark.parametrize(("rope", "engine", "reason"), REFUSED)
def test_what_an_engine_cannot_carry(rope, engine, reason, tmp_path):
    with pytest.raises(ValueError, match=f"^rope cannot be exported to {engine}: .*{reason}"):
        exports.export(rope, engine)
    suffix = next(record for record in exports.records() if record.name == engine).suffixes[0]
    with pytest.raises(ValueError, match=reason):
        exports.write(tmp_path / f"new{suffix}", rope, engine)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("engine", CARRIED)
def test_what_an_engine_carries(engine):
    assert set(carried_by(engine)) == CARRIED[engine]


def test_one_factor_for_all_layers_of_gemma4():
    with pytest.raises(ValueError, match=r"the attention factor 1\.1 would multiply the sliding layers of gemma4 too"):
        exports.export(replace(ROPE, attention_factor=1.1), "llama.cpp", architecture="gemma4")
    assert list(exports.export(ROPE, "llama.cpp", architecture="gemma4")["tensors"]) == ["rope_freqs.weight"]


def test_a_class_that_pairs_as_the_rope_does():
    assert exports.export(GLM, "transformers")["rope_parameters"]["partial_rotary_factor"] == 0.5
    given = replace(GLM, pairing="half", source=GLM.source.to_dict() | {"pairing_from": "given"})
    assert exports.export(given, "transformers") == exports.export(GLM, "transformers")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exports.export(ROPE, "vlm"), r"engine is 'vlm'; did you mean 'vllm'\? Expected one of 'transformers', 'vllm'"),
        (lambda: exports.export(ROPE.frequencies, "onnx"), "context is None, and so is the Rope's; onnx needs it"),
        (lambda: exports.rounding(ROPE.frequencies, "mlx"), "context is None, and so is the Rope's; mlx needs it"),
        (lambda: exports.export(ROPE, "mlx", base=1e4), "base is 10000.0, for which mlx has no use; expected no base"),
        (lambda: exports.export(ROPE, "json", context=8), "context is 8, for which json has no use"),
        (lambda: exports.export(ROPE, "vllm", dtype="float32"), "dtype is 'float32', for which vllm has no use"),
        (lambda: exports.export(ROPE, "onnx", dtype="int8"), "dtype is 'int8'; expected one of 'float16'"),
        (lambda: exports.export(ROPE, "vllm", base=-1.0), "base is -1.0; expected a positive"),
        (lambda: exports.export(ROPE, "vllm", context=0), "context is 0; expected a whole number from 1"),
        (lambda: exports.export(ROPE, "llama.cpp", architecture="qwen3"), "architecture is 'qwen3', whose loader"),
        (lambda: exports.export(np.ones(8) * np.nan, "json"), "NaN"),
        (lambda: exports.write("rope.txt", ROPE, "vllm"), r"path is 'rope.txt'; expected for vllm a name that ends in \.json"),
        (lambda: exports.write("rope.npz", ROPE, "mlx", model="a"), "model is 'a', but nothing is copied for mlx"),
        (lambda: exports.write("new.gguf", ROPE, "llama.cpp"), "model is None; expected for llama.cpp the GGUF to copy"),
    ],
)  # fmt: skip
def test_bad_calls(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        call()
    assert os.listdir(tmp_path) == []


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [name for name in NAMES if name != "llama.cpp"])
def test_files_hold_what_export_gives(engine, tmp_path):
    for suffix in next(record for record in exports.records() if record.name == engine).suffixes:
        path = tmp_path / f"rope{suffix}"
        if suffix == ".onnx":
            pytest.importorskip("onnx", reason="onnx is not installed")
        exports.write(path, ROPE, engine)
        told, before = exports.export(ROPE, engine), path.read_bytes()
        if suffix == ".json":
            assert json.loads(before) == told
        elif suffix == ".npz":
            with np.load(path, allow_pickle=False) as held:
                arrays = {name: value for name, value in told.items() if isinstance(value, np.ndarray)}
                assert set(held.files) == {"about", *arrays}
                assert all(np.array_equal(held[name], value) for name, value in arrays.items())
                assert json.loads(str(held["about"])) == {n: v for n, v in told.items() if n not in arrays}
        with pytest.raises(FileExistsError, match="exists; expected a new name, or overwrite=True"):
            exports.write(path, replace(ROPE, context=7), engine)
        assert path.read_bytes() == before
        exports.write(path, ROPE, engine, overwrite=True)
        assert path.read_bytes() == before


SIZES = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
CONFIG = SIZES | {
    "rope_theta": 5e5,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}
LAYERED = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "max_position_embeddings": 300,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}


def test_a_config_with_its_rope_replaced(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for model in (tmp_path, tmp_path / "config.json"):
        exports.write(tmp_path / "new.json", ROPE, "transformers", model=model, overwrite=True)
        told = json.loads((tmp_path / "new.json").read_text())
        assert told == SIZES | exports.export(ROPE, "transformers")
    exports.write(tmp_path / "config.json", ROPE, "vllm", model=tmp_path / "config.json", overwrite=True)
    (read,) = rfrope.from_config(tmp_path / "config.json")
    np.testing.assert_allclose(read.frequencies, ROPE.frequencies, atol=1e-6)


@pytest.mark.parametrize("model_type", ["gpt_neox", "llama"])
def test_a_config_gets_the_names_that_its_class_reads(model_type, tmp_path):
    """Also where it says nothing of them, because they were its class's defaults."""
    model = tmp_path / "config.json"
    plain = {"model_type": model_type, "hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 2048}
    model.write_text(json.dumps(plain), "utf-8")
    rope = rfrope.Rope(rfrope.geometric(8, base=5e5), head_dim=64, context=4096)
    exports.write(tmp_path / "new.json", rope, "tensorrt-llm", model=model, base=5e5)
    told = json.loads((tmp_path / "new.json").read_text("utf-8"))
    assert (told["rope_theta"], told["partial_rotary_factor"]) == (5e5, 0.25)
    own = (5e5, 0.25) if model_type == "gpt_neox" else (None, None)
    assert (told.get("rotary_emb_base"), told.get("rotary_pct")) == own


def test_a_pairing_that_is_assumed_speaks_against_no_rope(tmp_path):
    """Of a type that nobody knows "half" is assumed; the Rope's own type interleaves."""
    model = tmp_path / "config.json"
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 4096, "rope_theta": 1e4}
    model.write_text(json.dumps({"model_type": "made_up"} | sizes), "utf-8")
    (found,) = rfrope.from_config(model)
    (cohere,) = rfrope.from_config({"model_type": "cohere"} | sizes)
    assert (found.source.model.pairing_from, cohere.pairing) == ("assumed", "interleaved")
    rope = replace(cohere, frequencies=0.5 * cohere.frequencies)
    exports.write(tmp_path / "new.json", rope, "transformers", model=model)
    (read,) = rfrope.from_config(tmp_path / "new.json")
    np.testing.assert_allclose(read.frequencies, rope.frequencies, rtol=1e-6)


def test_a_config_that_would_say_another_attention_factor(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    made = exports.files.from_config
    monkeypatch.setattr(
        exports.files, "from_config", lambda held: [replace(one, attention_factor=1.5) for one in made(held)]
    )
    with pytest.raises(ValueError, match="says other frequencies or another attention factor than the Rope"):
        exports.write(tmp_path / "new.json", ROPE, "transformers", model=tmp_path)
    assert os.listdir(tmp_path) == ["config.json"]


def test_one_kind_of_layer_of_a_part(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LAYERED))
    full, sliding = rfrope.from_config(LAYERED)
    rope = replace(ROPE, source=full.source)
    exports.write(tmp_path / "new.json", rope, "transformers", model=tmp_path, base=1e6)
    read = {one.source.model.name: one for one in rfrope.from_config(tmp_path / "new.json")}
    np.testing.assert_allclose(read["text_config.full_attention"].frequencies, ROPE.frequencies, atol=1e-6)
    assert np.array_equal(read["text_config.sliding_attention"].frequencies, sliding.frequencies)
    for part in ("", "text_config", "text_config.chunked_attention", "vision_config", "text_config.full_attention.x"):
        with pytest.raises(ValueError, match=f"part is '{part}', but .* has a RoPE for 'text_config.full_attention', "):
            exports.write(tmp_path / "other.json", ROPE, "transformers", model=tmp_path, part=part)
    exports.write(tmp_path / "other.json", ROPE, "transformers", model=tmp_path, part="text_config.sliding_attention")
    old = LAYERED["text_config"] | {"rope_parameters": None}
    (tmp_path / "config.json").write_text(json.dumps(LAYERED | {"text_config": old}))
    with pytest.raises(ValueError, match="has no rope_parameters with a dict for 'full_attention'"):
        exports.write(tmp_path / "last.json", rope, "transformers", model=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "new.json", "other.json"]


def test_older_keys_have_no_kinds_of_layers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LAYERED))
    with pytest.raises(ValueError, match=r"'text_config.full_attention', a kind of layers, but the older keys"):
        exports.write(tmp_path / "new.json", ROPE, "tensorrt-llm", model=tmp_path, part="text_config.full_attention")
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize("engine", DICTS)
@pytest.mark.parametrize(("rope", "heads", "message"), [
    (ROPE, 2, "the Rope .*config.json"),
    (replace(ROPE, head_dim=32), 4, "the Rope of 8 blocks in heads of 32 does not fit .*config.json, .* expected 4, one"),
    (Rope([1.0, 0.5], context=8), 4, "the Rope .*config.json"),
])  # fmt: skip
def test_a_rope_must_fit_the_config(engine, rope, heads, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": "phi", "num_attention_heads": heads}))
    with pytest.raises(ValueError, match=message):
        exports.write(tmp_path / "new.json", rope, engine, model=tmp_path)
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_config_is_read_again_before_it_is_written(tmp_path):
    for changed, message in (
        ({"model_type": "glm", "head_dim": 16}, "the Rope pairs 'half', but .*config.json pairs 'interleaved'"),
        (
            {"num_attention_heads": 128},
            "the Rope of 8 blocks in heads of 16 does not fit .*config.json, .* .hidden_size is 64",
        ),
    ):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | changed))
        with pytest.raises(ValueError, match=message):
            exports.write(tmp_path / "new.json", ROPE, "vllm", model=tmp_path)
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize("engine", DICTS)
@pytest.mark.parametrize(("model_type", "own"), [
    ("phi", {"partial_rotary_factor": 0.5}),
    ("stablelm", {"partial_rotary_factor": 0.25}),
    ("gpt_neox", {"rotary_pct": 0.25, "rotary_emb_base": 100}),
    ("gpt_neox", {}),
    ("phi", {}),
])  # fmt: skip
@pytest.mark.parametrize("head", [16, 32])
def test_the_share_of_a_head_is_always_written(engine, model_type, own, head, tmp_path):
    """Whole heads, too, because these classes turn a part unless they are told."""
    scheme = {"rope_scaling": None, "rope_theta": None, "num_attention_heads": 64 // head}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | scheme | own | {"model_type": model_type}))
    rope = replace(ROPE, head_dim=head)
    exports.write(tmp_path / "new.json", rope, engine, model=tmp_path)
    told = json.loads((tmp_path / "new.json").read_text())
    (read,) = rfrope.from_config(told)
    assert (read.head_dim, read.rotary_dim) == (head, 16)
    np.testing.assert_allclose(read.frequencies, ROPE.frequencies, rtol=1e-5, atol=1e-25)
    if engine == "tensorrt-llm" and model_type == "gpt_neox":
        assert (told["rotary_pct"], told["rotary_emb_base"]) == (16 / head, 10_000.0)
    assert told.get("rope_parameters", told)["partial_rotary_factor"] == 16 / head


@pytest.mark.parametrize("engine", DICTS)
@pytest.mark.parametrize("own", [{}, {"original_max_position_embeddings": 4096}])
def test_the_original_context_beside_the_dict_is_replaced(engine, own, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SIZES | own | {"model_type": "phi3", "rope_theta": 1e4}))
    exports.write(tmp_path / "new.json", ROPE, engine, model=tmp_path)
    told = json.loads((tmp_path / "new.json").read_text())
    assert told["original_max_position_embeddings"] == told["max_position_embeddings"] == CONTEXT


def test_a_scheme_that_cannot_be_read_can_be_replaced(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"rope_scaling": {"rope_type": "exotic"}}))
    exports.write(tmp_path / "new.json", ROPE, "transformers", model=tmp_path)
    assert "rope_scaling" not in json.loads((tmp_path / "new.json").read_text())


@pytest.mark.parametrize(
    ("text", "message"), [('{"a": ', "is not valid JSON"), ("[1]", "holds a list; expected a model's")]
)
def test_configs_that_are_none(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        exports.write(tmp_path / "new.json", ROPE, "vllm", model=tmp_path)
    with pytest.raises(FileNotFoundError):
        exports.write(tmp_path / "new.json", ROPE, "vllm", model=tmp_path / "nowhere.json")
    assert os.listdir(tmp_path) == ["config.json"]


def test_a_folder_that_cannot_be_written_to(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        exports.write(tmp_path / "nowhere" / "rope.json", ROPE, "vllm")
    if os.path.isdir("/proc/self"):  # read-only, even for a superuser
        with pytest.raises(OSError, match=r"/proc/rope\.json"):
            exports.write("/proc/rope.json", ROPE, "vllm")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(FileExistsError, match="is not a regular file"):
        exports.write(tmp_path / "folder.json", ROPE, "vllm", overwrite=True)


@pytest.mark.parametrize(("engine", "package", "suffix"), [("onnx", "onnx", ".onnx"), ("llama.cpp", "gguf", ".gguf")])
def test_a_missing_package_is_named(engine, package, suffix, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    model = tmp_path / "model.gguf" if engine == "llama.cpp" else None
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}"):
        exports.write(tmp_path / f"new{suffix}", ROPE, engine, model=model)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("engine", NAMES)
def test_negative_frequencies_lose_what_positive_ones_do(engine, exact):
    """A block that turns the other way is as far off: errors are sizes, and so are their bounds."""
    rope = KINDS[carried_by(engine)[0]](3)
    if exact:  # in float32, too
        rope = replace(rope, frequencies=np.append(1.0, -(0.5 ** np.arange(1.0, rope.n_blocks))))
    found, other = (
        exports.rounding(replace(rope, frequencies=sign * rope.frequencies), engine) for sign in (1.0, -1.0)
    )
    assert (found.frequency, found.kernel, found.table) == (other.frequency, other.kernel, other.table)
    assert 0.0 <= found.table < 1e-3 * CONTEXT * np.max(np.abs(rope.frequencies))


@pytest.mark.parametrize("engine", [name for name in NAMES if "context" in exports.exporting._BY_NAME[name].options])
def test_a_context_of_several_axes_has_to_be_said(engine):
    """One of one axis is that of the text; of several none is."""
    rope = KINDS[carried_by(engine)[0]](3)
    one, told = (exports.export(replace(rope, context=context), engine) for context in ((CONTEXT,), CONTEXT))
    assert repr(one) == repr(told)
    for context in ((CONTEXT, 7), None):
        with pytest.raises(ValueError, match=r"context is None, and so is the Rope's; .* needs it: expected context="):
            exports.export(replace(rope, context=context), engine)
        assert repr(exports.export(replace(rope, context=context), engine, context=CONTEXT)) == repr(told)


def test_plain_data_say_all_that_belongs_to_frequencies():
    rope = Rope([1.0, 0.02], pairing="interleaved", head_dim=6, attention_factor=1.25, context=(40,))
    told = exports.export(rope, "json")
    assert told == {
        "units": "radians per unit of position",
        "pairing": "interleaved",
        "head_dim": 6,
        "rotary_dim": 4,
        "attention_factor": 1.25,
        "context": 40,
        "sections": None,
        "interleaved_sections": False,
        "frequencies": [1.0, 0.02],
    }
    assert set(told) < set(exports.export(rope, "npz"))


@pytest.mark.parametrize("tiny", [0.0, 1e-40, 1e-300, 5e-324, -5e-324])
def test_frequencies_next_to_nothing_are_divided_away(tiny):
    """Without a warning: a divisor that no float holds is 1e30."""
    told = exports.export(replace(ROPE, frequencies=np.append(ROPE.frequencies[:-1], tiny)), "transformers")
    assert abs(told["rope_parameters"]["long_factor"][-1]) == 1e30


def test_what_phases_in_float32_lose():
    """At most pi, rounded once, and a cos and a sin of float32: ``(pi + 2) 2**-24``."""
    lost = exports.rounding(KINDS["no factor"](0), "transformer-engine")
    assert lost.table == pytest.approx((np.pi + 2.0) * 2.0**-24, rel=1e-12)
    assert (lost.frequency, lost.context) == (0.0, CONTEXT)
