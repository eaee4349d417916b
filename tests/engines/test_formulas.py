"""Rules by which engines read configs, against the engines' formulas written down in plain NumPy."""

import math
import types
from typing import Any

import numpy as np
import pytest
from blind_models import llama3, yarn
from conftest import rows
from engine_configs import BASE, CONTEXT, KEY, LISTS, LLAMA3, ORIGINAL, YARN, D, config, phi3, report
from packages import installed

from rfrope import engines, models

READERS = [engine.name for engine in engines.records() if engine.reading]
LINEAR = {"rope_type": "linear", "factor": 4.0}
WHOLE_YARN = YARN | {"beta_fast": 32.0, "beta_slow": 1.0}
USUAL = 0.1 * math.log(4.0) + 1.0  # the attention factor of YaRN by 4


def ladder(base: float = BASE, n_blocks: int = D) -> np.ndarray:
    return base ** (-np.arange(n_blocks) / n_blocks)


def ramp(
    factor: float, original: int, turns: tuple[float, float] = (32.0, 1.0), base: float = BASE, truncate: bool = True
) -> np.ndarray:
    """Return exllamav3's ``yarn_inv_freq``; Megatron-Core's ``inter (1 - mask) + extra mask`` is the same."""
    return yarn(ladder(base), base, factor, original, *turns, truncate)


def scaled(scaling: dict[str, Any] | None, model_type: str = "llama", **more: Any) -> dict[str, Any]:
    made = config(model_type, "default") | ({} if scaling is None else {"rope_scaling": scaling}) | more
    return {key: value for key, value in made.items() if value is not None}


def proportional(part: float) -> dict[str, Any]:
    made = config("llama", "default", "rope_parameters")
    made["rope_parameters"] |= {"rope_type": "proportional", "partial_rotary_factor": part, "factor": 2.0}
    return made


EXL, BRIDGE = "exllamav3", "Megatron-Bridge"
SCHEMES = {
    "default": (ladder(), 1.0),
    "linear": (ladder() / 4.0, 1.0),
    "llama3": (llama3(ladder(), ORIGINAL), 1.0),
    "yarn": (ramp(4.0, ORIGINAL), USUAL),
    "yarn with another ramp": (ramp(4.0, ORIGINAL, (16.0, 2.0)), USUAL),
}
QWEN = {"rope_type": "yarn", "factor": 4.0, KEY: 32768}  # as it is published, beside a context of 40960
SCALE = math.sqrt(1.0 + math.log(CONTEXT / ORIGINAL) / math.log(ORIGINAL))
READ = [  # the engine, a config, the length, frequencies, the attention factor, and keys that are not read
    *(
        (EXL, config("llama", name, form), CONTEXT, *wanted, ())
        for name, wanted in SCHEMES.items()
        for form in ("rope_scaling", "rope_parameters")
    ),
    # the ratio of contexts is taken for YaRN's factor
    (EXL, scaled(QWEN, "qwen3", max_position_embeddings=40960), 40960, ramp(1.25, 32768), 0.1 * math.log(1.25) + 1.0,
     ("factor",)),
    (EXL, scaled(QWEN | {KEY: None}, "qwen3", max_position_embeddings=40960), 40960, ramp(4.0, 40960), USUAL, ()),
    (EXL, scaled(YARN | {"attention_factor": 1.5}), CONTEXT, ramp(4.0, ORIGINAL), 1.5, ()),
    (EXL, scaled(YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}), CONTEXT, ramp(4.0, ORIGINAL), USUAL,
     ("mscale", "mscale_all_dim")),
    *((EXL, phi3("longrope", 0.75), length, ladder(1e4, 24) / LISTS[name][:24], SCALE, ())
      for length, name in ((ORIGINAL, "short_factor"), (CONTEXT, "long_factor"))),
    # Gemma 4's scheme: most blocks still, exponents over the whole head; of 64 features 19.2 turn: 9 whole pairs
    *((EXL, proportional(part), CONTEXT, np.where(np.arange(D) < turning, ladder(), 0.0) / 2.0, 1.0, ())
      for part, turning in ((0.25, 8), (0.3, 9))),
    # a base that is missing is 10000 for every model type
    (EXL, scaled(None, rope_theta=None, model_type="mixtral"), CONTEXT, ladder(1e4), 1.0, ()),
    (EXL, scaled(YARN, rope_theta=None, model_type="mixtral"), CONTEXT, ramp(4.0, ORIGINAL, base=1e4), USUAL, ()),
    # of the numbers of llama3 the factor alone is read; 1, 4 and 8192 stand in its code
    *((BRIDGE, scaled(LLAMA3 | {KEY: original}), CONTEXT, llama3(ladder(), 8192), 1.0, ignored)
      for original, ignored in ((8192, ()), (ORIGINAL, (KEY,)))),
    (BRIDGE, scaled(LINEAR), CONTEXT, ladder() / 4.0, 1.0, ()),
    *((BRIDGE, scaled(scheme, kind), CONTEXT, ladder(), 1.0, ("rope_type",))
      for kind, scheme in (("qwen2", LINEAR), ("qwen3", LLAMA3), ("mistral", LINEAR))),
    *((BRIDGE, config("qwen2", "default", form), CONTEXT, ladder(), 1.0, ())
      for form in ("rope_scaling", "rope_parameters")),
    # YaRN has no defaults: without truncate it is not truncated, None being given in its place
    *((BRIDGE, scaled(WHOLE_YARN | more, kind), CONTEXT, ramp(4.0, ORIGINAL, truncate="truncate" in more), factor, keys)
      for kind, more, factor, keys in (
          ("qwen3", {}, USUAL, ()),
          ("qwen3", {"truncate": True}, USUAL, ()),
          ("qwen2", {"attention_factor": 1.5}, USUAL, ("attention_factor",)),
          ("qwen2", {"mscale": 0.7}, USUAL, ()),
          ("qwen2", {"mscale": 0.7, "mscale_all_dim": 0.0}, 0.07 * math.log(4.0) + 1.0, ()),
      )),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(READ)))
def test_a_config_is_read_by_the_formulas_of_the_engine(index):
    engine, made, seq_len, frequencies, factor, ignored = READ[index]
    found = report(engine, made, seq_len)
    assert found.status == "known", found.reason
    np.testing.assert_allclose(found.rope.frequencies, frequencies, rtol=1e-14)
    assert (found.rope.attention_factor, found.rope.ignored_keys) == (pytest.approx(factor, rel=1e-14), ignored)
    assert found.rope.pairing == "half"


@pytest.mark.parametrize(("truncate", "same"), [(None, False), (True, True), (False, True)])
def test_yarn_of_megatron_bridge_is_that_of_transformers_where_truncate_is_said(truncate, same):
    made = scaled(WHOLE_YARN | ({} if truncate is None else {"truncate": truncate}), "qwen3")
    assert models.compare(made, ["transformers", BRIDGE]).ropes[0].engines[1].is_same is same


UNREAD = [  # the engine, what the config of a Llama has instead, the status, and the reason
    *((engine, {"model_type": "vaultgemma"}, "unknown", "'vaultgemma' was not read") for engine in READERS[1:]),
    ("MLX-LM", {"model_type": "phi3", "rope_scaling": {"type": "longrope", KEY: 4096, **LISTS}}, "known", ""),
    *rows("engines/formulas.json", "unread"),
]


@pytest.mark.parametrize(("engine", "changes", "status", "reason"), UNREAD)
def test_a_config_that_an_engine_does_not_run(engine, changes, status, reason):
    found = report(engine, config("llama", "default") | changes)
    assert (found.status, reason in found.reason) == (status, True), found.reason
    assert status == "known" or (found.rope, found.differs_from) == (None, None)


@pytest.mark.parametrize("engine", ["vLLM", "SGLang", "exllamav3", "llama.cpp", "TensorRT-LLM"])
def test_longrope_changes_its_list_beyond_the_original_context(engine):
    """Of factors of size 1 only vLLM and SGLang read those of each list; ``factor`` is none of any engine's."""
    made = phi3("longrope")
    for keys, ignored in (({}, ()), ({"factor": 4.0}, ()), ({"factor": 8.0}, ("factor",))):
        for seq_len, kind in ((1, "short"), (ORIGINAL, "short"), (ORIGINAL + 1, "long"), (CONTEXT, "long")):
            rope = report(engine, made | {"rope_scaling": made["rope_scaling"] | keys}, seq_len).rope
            np.testing.assert_allclose(rope.frequencies, ladder(1e4) / LISTS[f"{kind}_factor"], rtol=1e-14)
            assert (rope.ignored_keys, rope.attention_factor) == (ignored, pytest.approx(SCALE, rel=1e-14))
            own = made | {"rope_scaling": made["rope_scaling"] | {"short_mscale": 1.25, "long_mscale": 1.5}}
            expected = {"short": 1.25, "long": 1.5}[kind] if engine in ("vLLM", "SGLang") else SCALE
            assert report(engine, own, seq_len).rope.attention_factor == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("engine", "unread"),
    [
        ("vLLM", set()),
        ("SGLang", set()),
        ("MLX-LM", {"truncate"}),
        ("TensorRT-LLM", {"truncate"}),
        ("llama.cpp", {"beta_fast", "beta_slow", "truncate"}),
    ],
)
def test_keys_of_a_ramp_that_an_engine_leaves_unread(engine, unread):
    plain = report(engine, config("qwen3", "yarn")).rope
    for key, usual, other in (("beta_fast", 32, 16), ("beta_slow", 1, 2), ("truncate", True, False)):
        for value in (usual, other):
            rope = report(engine, scaled(YARN | {key: value}, "qwen3")).rope
            assert rope.ignored_keys == ((key,) if value == other and key in unread else ())
            assert np.array_equal(rope.frequencies, plain.frequencies) == (value == usual or key in unread)


@pytest.mark.parametrize(("engine", "model_type", "turning", "base"), rows("engines/formulas.json", "ntk"))
def test_ntk_stretches_the_slowest_wavelength_of_what_turns(engine, model_type, turning, base):
    made = config(model_type, "dynamic") | ({} if base == BASE else {"rope_theta": None})
    rope = report(engine, made | {"partial_rotary_factor": turning / D}, 2 * CONTEXT).rope
    slower = base * 3.0 ** (turning / (turning - 1))  # 3 is 2 x 2 - (2 - 1): the slowest one is a third
    np.testing.assert_allclose(rope.frequencies, ladder(slower, turning), rtol=1e-12)
    assert base ** (-(turning - 1) / turning) / rope.frequencies[-1] == pytest.approx(3.0, rel=1e-12)


# what Megatron-Bridge hands over for a config, as its sources say; megatron-core itself is run
HANDED = {
    "llama3": ("llama", LLAMA3 | {KEY: 8192}, {"rope_scaling": True, "rope_scaling_factor": 8.0}),
    "linear": ("llama", LINEAR, {"seq_len_interpolation_factor": 4.0}),
    "yarn": ("qwen3", WHOLE_YARN, {"scaling_factor": 4.0, KEY: ORIGINAL, "beta_fast": 32.0, "beta_slow": 1.0}
             | dict.fromkeys(("mscale", "mscale_all_dim", "correction_range_round_to_int"))),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", HANDED)
def test_megatron_core(scheme, monkeypatch):
    torch = installed("torch")
    module = installed("megatron.core.models.common.embeddings")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    alone = types.SimpleNamespace(size=lambda: 1)
    kind, scaling, arguments = HANDED[scheme]
    made = module.YarnRotaryEmbedding if scheme == "yarn" else module.RotaryEmbedding
    rotary = made(64, 1.0, rotary_base=BASE, use_cpu_initialization=True, cp_group=alone, **arguments)
    phases = rotary.get_emb(CONTEXT)
    phases, factor = phases if scheme == "yarn" else (phases, 1.0)
    rope = report(BRIDGE, scaled(scaling, kind)).rope
    assert phases.shape == (CONTEXT, 1, 1, 2 * D)
    wanted = np.arange(CONTEXT)[:, None] * rope.frequencies
    np.testing.assert_allclose(phases[:, 0, 0, :D].numpy(), wanted, rtol=1e-6, atol=1e-9)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)
