"""The rules of engines against the engines themselves, where they install: frequencies, factors, ends of tables."""

from __future__ import annotations

import copy
import importlib
import types
import warnings
from typing import Any

import numpy as np
import pytest
import tiny_llama
from engines import installed

import rfrope
from rfrope import models
from rfrope.models.engines import ENGINES

PLAIN = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "vocab_size": 16,
}
PLAIN |= {"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "tie_word_embeddings": False}
CONTEXT, ORIGINAL, BASE, D = 4096, 1024, 500_000.0, 32
LISTS = {"short_factor": [1.0 + 0.02 * i for i in range(D)], "long_factor": [1.0 + i for i in range(D)]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
SCHEMES: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear with a whole factor": {"rope_type": "linear", "factor": 4},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn with an attention factor": YARN | {"attention_factor": 1.5},
    "yarn with scales": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn with a scale of no effect": YARN | {"mscale": 0.7},
    "yarn with another ramp": YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
    "yarn not truncated": YARN | {"truncate": False},
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": ORIGINAL, **LISTS},
}
TYPES = ("llama", "mistral", "qwen2", "qwen3")


def config(model_type: str, scheme: str, form: str = "rope_scaling") -> dict[str, Any]:
    """A config in the form of transformers 4 or 5."""
    made = PLAIN | {"model_type": model_type, "max_position_embeddings": CONTEXT}
    if model_type == "qwen3":
        made["head_dim"] = 64
    scaling = copy.deepcopy(SCHEMES[scheme])
    if form == "rope_parameters":
        return made | {"rope_parameters": {"rope_type": "default", "rope_theta": BASE} | (scaling or {})}
    made["rope_theta"] = BASE
    return made if scaling is None else made | {"rope_scaling": scaling | {"type": scaling["rope_type"]}}


def phi3(scheme: str, part: float = 1.0) -> dict[str, Any]:
    blocks = int(D * part)
    made = PLAIN | {"model_type": "phi3", "max_position_embeddings": CONTEXT, "rope_theta": 10_000.0}
    made |= {"original_max_position_embeddings": ORIGINAL, "partial_rotary_factor": part}
    lists = {name: values[:blocks] for name, values in LISTS.items()}
    return made | ({"rope_scaling": {"type": "longrope", **lists}} if scheme == "longrope" else {})


def advised(made: dict[str, Any]) -> dict[str, Any]:
    """A config with the change that a comparison advises."""
    place = models.compare(made, seq_len=CONTEXT).places[0]
    assert place.write
    return {key: value for key, value in (made | place.write).items() if value is not None}


CASES = [
    *(pytest.param(config(kind, name), id=f"{kind} {name}") for kind in TYPES for name in SCHEMES),
    *(pytest.param(config(kind, "yarn", "rope_parameters"), id=f"{kind} in rope_parameters") for kind in TYPES),
    pytest.param(advised(config("qwen3", "yarn with an attention factor")), id="advice on an attention factor"),
    pytest.param(advised(config("llama", "default", "rope_parameters")), id="advice on rope_parameters"),
    pytest.param(advised(config("llama", "dynamic")), id="advice on a dynamic scheme"),
    pytest.param(phi3("default"), id="phi3"),
    pytest.param(phi3("longrope"), id="phi3 longrope"),
    pytest.param(phi3("longrope", 0.75), id="phi3 longrope, in part"),
]


def the_use(engine: str, made: dict[str, Any], seq_len: int = CONTEXT) -> models.EngineUse:
    (place,) = models.compare(made, [engine], seq_len=seq_len).places
    (use,) = place.engines
    return use


@pytest.fixture
def read_by_transformers():
    """``read(config)``: the config as the class of transformers 5 holds it."""
    installed("transformers")
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING

    def read(made: dict[str, Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mapping[made["model_type"]].from_dict(copy.deepcopy(made))

    return read


def check_table(table: np.ndarray, use: models.EngineUse, positions: int) -> None:
    """A table [S, d], cos then sin, against a rule; float32 phases are as good as their size allows."""
    assert table.shape == (positions, 2 * use.frequencies.size)
    rows = np.unique(np.geomspace(1, positions - 1, 40).astype(int))
    phases = np.multiply.outer(rows, use.frequencies)
    expected = use.attention_factor * np.concatenate([np.cos(phases), np.sin(phases)], axis=-1)
    allowed = 2e-6 + 4e-6 * np.concatenate([phases, phases], axis=-1)
    assert np.max(np.abs(table[rows] - expected) - allowed) < 0.0
    np.testing.assert_allclose(table[0, : use.frequencies.size], use.attention_factor, rtol=1e-6)


# -- records -----------------------------------------------------------------------------------------------------------


def test_records_are_complete():
    assert ENGINES[0].name == "transformers"
    assert len({engine.name for engine in ENGINES}) == len(ENGINES) == 6
    for engine in ENGINES:
        assert engine.version
        assert engine.sources
        assert all("/" in source for source in engine.sources)
        assert engine.name == "transformers" or set(TYPES) <= set(engine.model_types)


@pytest.mark.parametrize("engine", [engine.name for engine in ENGINES[1:]])
def test_what_was_not_read_is_unknown(engine):
    use = the_use(engine, config("llama", "default") | {"model_type": "stablelm"})
    assert use.status == "unknown"
    assert "'stablelm' was not read" in use.reason
    assert (use.frequencies, use.attention_factor, use.differs_from) == (None, None, None)


def test_the_check_of_a_table_sees_what_it_looks_for():
    use = the_use("transformers", config("llama", "yarn with an attention factor"))
    phases = np.multiply.outer(np.arange(CONTEXT), use.frequencies)
    right = 1.5 * np.concatenate([np.cos(phases), np.sin(phases)], axis=-1)
    check_table(right, use, CONTEXT)
    for wrong in (right / 1.5, right[:, ::-1], right * 1.001, np.roll(right, 1, axis=0)):
        with pytest.raises(AssertionError):
            check_table(wrong, use, CONTEXT)


# -- against the engines -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", CASES)
def test_transformers(made, read_by_transformers):
    torch = installed("torch")
    kind = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}[
        made["model_type"]
    ]
    module = installed(f"transformers.models.{made['model_type']}.modeling_{made['model_type']}")
    rotary = getattr(module, f"{kind}RotaryEmbedding")(read_by_transformers(made))
    use = the_use("transformers", made)
    cos, sin = rotary(torch.zeros(1), torch.arange(CONTEXT)[None])
    blocks = use.frequencies.size
    check_table(np.concatenate([cos[0, :, :blocks], sin[0, :, :blocks]], axis=-1), use, CONTEXT)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", CASES)
def test_vllm(made, read_by_transformers, monkeypatch):
    torch = installed("torch")
    vllm = installed("vllm.model_executor.layers.rotary_embedding")
    config_of = installed("vllm.config")
    long = importlib.import_module("vllm.model_executor.layers.rotary_embedding.phi3_long_rope_scaled_rope")
    served = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=CONTEXT))
    monkeypatch.setattr(long, "get_current_vllm_config", lambda: served)
    monkeypatch.setattr(vllm, "_ROPE_DICT", {})  # it takes 4 for 4.0
    held, use = read_by_transformers(made), the_use("vLLM", made)

    def build() -> Any:
        width = getattr(held, "head_dim", None) or held.hidden_size // held.num_attention_heads
        parameters = copy.deepcopy(held.rope_parameters)
        with config_of.set_current_vllm_config(config_of.VllmConfig()):
            return vllm.get_rope(width, CONTEXT, rope_parameters=parameters, dtype=torch.float32)

    if use.status == "refused":
        with pytest.raises((TypeError, KeyError, ValueError)):
            build()
        return
    rotary = build()
    if hasattr(rotary, "long_short_cos_sin_cache"):
        original = held.rope_parameters["original_max_position_embeddings"]
        short = the_use("vLLM", made, original)
        check_table(rotary.long_short_cos_sin_cache[:original].numpy(), short, short.positions)
        assert rotary.use_long_rope == (original < CONTEXT)
        if rotary.use_long_rope:
            check_table(rotary.long_short_cos_sin_cache[original:].numpy(), use, use.positions)
    else:
        check_table(rotary.cos_sin_cache.numpy(), use, use.positions)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", CASES)
def test_sglang(made, read_by_transformers, monkeypatch):
    torch = installed("torch")
    sglang = installed("sglang.srt.layers.rotary_embedding.factory")
    monkeypatch.setattr(sglang, "_ROPE_DICT", {})
    held, use = read_by_transformers(made), the_use("SGLang", made)
    width = getattr(held, "head_dim", None) or held.hidden_size // held.num_attention_heads
    rotated = (
        int(width * getattr(held, "partial_rotary_factor", 1)) if "llama mistral phi3".count(held.model_type) else width
    )

    def build() -> Any:
        told = copy.deepcopy(held.rope_parameters)
        return sglang.get_rope(width, rotated, CONTEXT, told["rope_theta"], True, told, torch.float32)

    if use.status == "refused":
        with pytest.raises((TypeError, KeyError, ValueError)):
            build()
        return
    rotary = build()
    if hasattr(rotary, "long_cos_sin_cache"):
        original = held.rope_parameters["original_max_position_embeddings"]
        check_table(rotary.long_cos_sin_cache.numpy(), use, CONTEXT)
        check_table(rotary.short_cos_sin_cache.numpy(), the_use("SGLang", made, original), original)
    else:
        check_table(rotary.cos_sin_cache.numpy(), use, len(rotary.cos_sin_cache))


@pytest.mark.parametrize("made", CASES)
def test_mlx_lm(made):
    mx = installed("mlx.core")
    installed("mlx_lm.models.rope_utils")
    name = {"mistral": "llama"}.get(made["model_type"], made["model_type"])
    module = installed(f"mlx_lm.models.{name}")
    use = the_use("MLX-LM", made)
    width = 64

    def build() -> Any:
        return module.Attention(module.ModelArgs.from_dict(copy.deepcopy(made))).rope

    if use.status == "refused":
        with pytest.raises((TypeError, KeyError, ValueError)):
            build()
        return
    rotary, blocks = build(), use.frequencies.size
    first = mx.concatenate([mx.ones((1, 1, 1, blocks)), mx.zeros((1, 1, 1, width - blocks))], axis=-1)
    for position in (0, 1, 3, 10, 50, 200, CONTEXT - 1):
        turned = np.array(rotary(first, offset=position))[0, 0, 0]
        phases = position * use.frequencies
        expected = use.attention_factor * np.concatenate([np.cos(phases), np.sin(phases)])
        allowed = 1e-5 + 4e-6 * np.concatenate([phases, phases])
        assert np.max(np.abs(turned[: 2 * blocks] - expected) - allowed) < 0.0


# What its converter writes into a GGUF for a scheme, by conversion/base.py and conversion/llama.py
CONVERTED = {
    "default": {},
    "linear": {"scaling__type": "linear", "scaling__factor": 4.0},
    "dynamic": {},
    "longrope": {"scaling__type": "longrope"},
    "yarn": {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 64},
    "yarn with an attention factor": {"scaling__yarn_attn_factor": 1.5},
    "yarn with another ramp": {"scaling__yarn_beta_fast": 16.0, "scaling__yarn_beta_slow": 2.0},
}


def test_llama_cpp(tmp_path):
    """A tiny llama with the keys that the converter writes, run by llama.cpp, against NumPy with the rule."""
    installed("gguf")
    held, files, wanted, others = tiny_llama.weights(), [], [], []
    tokens = [1, *np.random.default_rng(0).integers(259, tiny_llama.VOCABULARY, 60).tolist()]
    for name, keys in CONVERTED.items():
        scaling = copy.deepcopy(SCHEMES[name])
        if scaling and "original_max_position_embeddings" in scaling:
            scaling["original_max_position_embeddings"] = 64
        made = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 256}
        made |= {"rope_theta": 10_000.0, "rope_scaling": scaling}
        if name == "longrope":
            scaling |= {key: values[:8] for key, values in LISTS.items()}
        keys = CONVERTED["yarn"] | keys if name.startswith("yarn") else keys
        files.append(tmp_path / f"{name}.gguf")
        tiny_llama.write(files[-1], held, freq_base=10_000.0, context=256, **keys)
        use = the_use("llama.cpp", made, 256)
        assert use.status == "known"
        by_transformers = the_use("transformers", made, 256)
        for which, one in ((wanted, use), (others, by_transformers)):
            rope = rfrope.Rope(one.frequencies, pairing="interleaved", attention_factor=one.attention_factor)
            which.append(tiny_llama.probabilities(held, tokens, lambda x, r=rope: r.rotate(x, np.arange(len(tokens)))))
    answers = tiny_llama.node_llama_cpp(files, tokens)
    for name, answer, row, other in zip(CONVERTED, answers, wanted, others, strict=True):
        missed = np.max(np.abs(np.asarray(answer["rows"]) - row))
        assert missed < 2e-3, name  # its cache of keys and values is in half precision
        if name in ("longrope", "yarn with an attention factor", "yarn with another ramp"):
            assert np.max(np.abs(other - row)) > 5.0 * missed, name  # what transformers does is another thing
        else:
            np.testing.assert_allclose(other, row, atol=1e-9)
