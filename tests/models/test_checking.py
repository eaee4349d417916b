"""One verdict on a model's RoPE: no alarm at right models, wrong ones named, and what is typed is what was meant."""

import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import rows
from published import PUBLISHED

import rfrope
from rfrope.models import check

ORIGINAL = "original_max_position_embeddings"
BASE = {"hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128, "max_position_embeddings": 131072}
QWEN = BASE | {"model_type": "qwen3", "rope_theta": 1e6, "num_hidden_layers": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32768}
VL = {"model_type": "qwen3_vl", "text_config": QWEN | {"model_type": "qwen3_vl_text"}}


@pytest.mark.parametrize("model", PUBLISHED, ids=[one.model for one in PUBLISHED])
def test_right_models_raise_no_alarm(model):
    assert check(model.config).passed


def test_an_engine_that_differs_is_in_the_first_line_and_named_once_for_all_kinds_of_layers():
    found = check(scaled(QWEN, **YARN, attention_factor=1.0))
    assert found.verdict.startswith("right in transformers: yarn, base 1e+06, ")
    assert found.verdict.endswith(" engines differ, see below")
    assert ['"type"' in one.fix for one in found.engines if one.where.startswith("SGLang")] == [False]
    sliding = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512, "head_dim": 256}
    gemma = check(BASE | sliding | {"model_type": "gemma3_text", "rope_theta": 1e6, "num_hidden_layers": 2})
    assert gemma.verdict == "right in transformers: 2 kinds of layers; MLX-LM 0.32.2 differs, see below"
    names = [one.where.partition(",")[0] for one in gemma.engines if one.kind == "unknown"]
    assert len(names) == len({*names}) > 0
    assert all(str(gemma).count(name) == 1 for name in names)


@pytest.mark.parametrize("config", [VL | {"rope_scaling": YARN}, QWEN | {"rope_parameters": {"rope_theta": 1e4}}])
def test_a_key_that_is_not_read_is_in_the_first_line(config):
    found = check(config)
    assert found.passed
    assert "; but not all keys are read as they look, see below" in found.verdict
    assert "Take care:\n" in str(found)
    assert "is not read" in found.findings[0].text


def test_an_attention_factor_of_its_own_is_kept_for_a_longer_text():
    for own in (1.0, None):
        config = scaled(QWEN, **YARN | ({} if own is None else {"attention_factor": own}))
        assert (f'"attention_factor": {own}' in check(config, context=262144).findings[0].fix) == (own is not None)


def scaled(config: dict[str, Any], **scheme: Any) -> dict[str, Any]:
    return config | {"rope_scaling": scheme}


# a config, what is asked for, and the verdict
WRONG = dict(rows("models/checking.json", "wrong"))
WRONG["another Rope"] = (QWEN, {"against": rfrope.Rope(rfrope.geometric(64), context=131072)}, "wrong: the two sides d")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_models_are_named(name):
    config, asked, verdict = WRONG[name]
    found = check(config, **asked)
    assert found.verdict.startswith(verdict), found.verdict
    assert not found.passed
    assert str(found).split("\n")[0] == found.verdict
    assert str(found).count(found.findings[0].text) == 1
    assert json.loads(json.dumps(found.to_dict()))["verdict"] == found.verdict


def test_sides_that_agree_though_they_are_written_otherwise():
    new = {key: value for key, value in QWEN.items() if key != "rope_theta"}
    new |= {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "model_type": "qwen2"}
    assert check(QWEN, against=new | {"max_position_embeddings": 40960}).passed
    assert check(rfrope.from_config(QWEN)[0], against=QWEN).passed
    spelled = check(QWEN, against=new)  # transformers 4 does not read this spelling
    assert re.search(r"right in transformers: .*; transformers 4 \S+ differs, see below$", spelled.verdict)
    assert "but not all keys" in check(QWEN, against=QWEN | {"partial_rotary_factor": 0.5}).verdict
    bare = {key: value for key, value in QWEN.items() if key != "rope_theta"}
    assert "the config has no base: that of the class, 10000, is taken" in str(check(bare))
    llama4 = BASE | {"model_type": "llama4_text", "rope_theta": 5e5, "num_hidden_layers": 4, "no_rope_layers": []}
    assert "MLX-LM" in check(llama4).verdict  # it stops: its list must have every layer
    with pytest.raises(ValueError, match="against is None, and target is Rope"):
        check(rfrope.from_config(QWEN)[0])


@pytest.mark.parametrize(("config", "part"), [(QWEN, ""), (VL, "text_config"), (scaled(QWEN, **YARN), "")])
def test_what_is_typed_reaches_the_length_and_is_read_as_it_was_meant(config, part):
    """The JSON that each engine is given, put into the config at its own level."""
    found = check(config, context=262144)
    typed = {one.where.partition(" ")[0].strip(","): one.fix for one in found.engines if one.fix}
    assert {"transformers"} <= typed.keys()
    for text in [found.findings[0].fix, *typed.values()]:
        if "{" not in text:
            assert text.startswith("-c 262144 --rope-scaling yarn --rope-freq-base 1000000 --rope-scale ")
            continue
        made = json.loads(text[text.index("{") : text.rindex("}") + 1])
        inner = made.get(part, made)
        held = {**(config[part] if part else config), **inner, "max_position_embeddings": 262144}
        if "rope_parameters" in inner:
            held.pop("rope_scaling", None)
        assert check(config | {part: held} if part else held, context=262144).passed, text


PARAMS = {"dim": 4096, "n_layers": 2, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "rope_theta": 1e6}


@pytest.mark.parametrize(("more", "scheme"), rows("models/checking.json", "params"))
def test_params_of_mistral_and_meta(tmp_path, more, scheme):
    """Alone in a folder; a key that looks like RoPE and is not one of theirs is not dropped."""
    path = tmp_path / "params.json"
    path.write_text(json.dumps(PARAMS | more))
    found = check(tmp_path)
    is_assumed = more == {"use_scaled_rope": True}
    assert "128 of 128 features, pairs interleaved (config)" in str(found)
    assert ("expected rope_scaling_factor: 32 beside it" in str(found)) == is_assumed
    rope, *vision = rfrope.from_config(path)
    assert [one.source.model.model_type for one in vision] == ["pixtral"] * ("vision_encoder" in more)
    assert scheme.items() <= rope.source.rope_parameters.items()
    assert rfrope.from_config(PARAMS | more)[0].source == rope.source
    path.write_text(json.dumps(PARAMS | {"rope_factor": 2.0}))
    assert check(path).verdict.startswith("cannot tell: rope_factor is 2.0")


STORED = {  # frequencies as a safetensors file holds them: dtype, values and verdict, and what is said
    "float32": ("F32", rfrope.geometric(64, base=1e6).astype("<f4"), "right", ""),
    "bfloat16": ("BF16", (rfrope.geometric(64, base=1e6).astype("<f4").view("<u4") >> 16).astype("<u2"), "right",
                 "bfloat16"),
    "base": ("F32", rfrope.geometric(64).astype("<f4"), "wrong", "those of base 10000 instead of 1e+06"),
    "memory": ("F32", np.full(64, 3e30, "<f4"), "wrong", "uninitialised memory"),
    "another dtype": ("I64", np.zeros(64, "<i8"), "right", "stored frequencies are not read"),
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_frequencies_beside_the_weights_are_read(tmp_path, name):
    dtype, values, verdict, says = STORED[name]
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    entry = {"dtype": dtype, "shape": [64], "data_offsets": [4, 4 + values.nbytes]}
    other = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"lm_head.weight": other, "model.rotary_emb.inv_freq": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4) + values.tobytes()
    (tmp_path / "model.safetensors").write_bytes(content)
    found = check(tmp_path)
    assert (found.status, says in str(found)) == (verdict, True), found
    assert bool(says) == ("stored" in str(found))
    (tmp_path / "model.safetensors").write_bytes(content[:-7])
    assert "stored frequencies are not read" in str(check(tmp_path))


def test_files_need_numpy_alone_and_no_code_beside_them_is_run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN | {"auto_map": {"AutoConfig": "configuration_x.X"}}))
    (tmp_path / "configuration_x.py").write_text("raise SystemExit(7)")
    program = f"""
import sys, rfrope
found = rfrope.models.check({str(tmp_path)!r})
assert found.passed, found
assert not {{"torch", "transformers", "gguf", "safetensors", "socket", "configuration_x"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def pair_neighbours(monkeypatch, modeling):
    def turn(q, k, cos, sin, unsqueeze_dim=1):
        first, second = (table[..., :8].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim) for table in (cos, sin))
        turned = [one.unflatten(-1, (-1, 2)).flip(-1) * one.new_tensor([-1.0, 1.0]) for one in (q, k)]
        return tuple(one * first + other.flatten(-2) * second for one, other in zip((q, k), turned, strict=True))

    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", turn)


def drop_the_factor(monkeypatch, modeling):
    forward = modeling.LlamaRotaryEmbedding.forward
    monkeypatch.setattr(
        modeling.LlamaRotaryEmbedding,
        "forward",
        lambda self, *rest, **more: tuple(one / self.attention_scaling for one in forward(self, *rest, **more)),
    )


LISTS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, ORIGINAL: 256}
SCHEMES = [YARN | {ORIGINAL: 256}, {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "longrope", **LISTS}]
MISTAKES = {None: "right", pair_neighbours: "wrong: layers.0.self_attn", drop_the_factor: "wrong: layers.0.self_attn"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme["rope_type"])
def test_what_a_running_model_does_is_seen_and_it_stays_as_it_was(monkeypatch, scheme, mistake):
    """Its buffers are right; its rotation function pairs otherwise, or its forward drops the attention factor.

    Nothing is compiled for it, though one model is marked to be, itself, in place and by layers.
    """
    tiny = pytest.importorskip("tiny_models")
    modeling = tiny.transformers.models.llama.modeling_llama
    sizes = tiny.SIZES | {"head_dim": 16, "max_position_embeddings": 1024}
    config = tiny.transformers.LlamaConfig(**sizes, rope_parameters=scheme | {"rope_theta": 1e4})
    model = tiny.transformers.LlamaModel(config).train()
    before = {name: (buffer, buffer.clone()) for name, buffer in model.rotary_emb.named_buffers()}
    if mistake is not None:
        mistake(monkeypatch, modeling)
    compiled = (model, *model.layers) if scheme is SCHEMES[0] else ()
    for part in compiled:
        part.compile(backend=lambda *_: pytest.fail("it is compiled"))
    found = check(pytest.importorskip("torch").compile(model, backend="eager") if compiled else model)
    is_harmless = mistake is drop_the_factor and scheme["rope_type"] == "dynamic"
    assert found.verdict.startswith("right" if is_harmless else MISTAKES[mistake]), found
    assert "not checked" not in str(found)
    for name, buffer in model.rotary_emb.named_buffers():
        assert buffer is before[name][0]
        assert buffer.equal(before[name][1])
    assert model.training
