"""Formulas that engines share, read through each engine whose rule calls them, against the formulas written down."""

from __future__ import annotations

import math

import numpy as np
import pytest
from engine_configs import BASE, CONTEXT, LISTS, ORIGINAL, YARN, D, config, phi3, report

from rfrope.engines import formulas


@pytest.mark.parametrize("engine", ["vLLM", "SGLang", "exllamav3", "llama.cpp", "TensorRT-LLM"])
def test_longrope_changes_its_list_beyond_the_original_context(engine):
    """Of factors of size 1 only vLLM and SGLang read those of each list; ``factor`` is none of any engine's."""
    ratio = math.sqrt(1.0 + math.log(CONTEXT / ORIGINAL) / math.log(ORIGINAL))
    made, ladder = phi3("longrope"), 10_000.0 ** (-np.arange(D) / D)
    for keys, ignored in (({}, ()), ({"factor": 4.0}, ()), ({"factor": 8.0}, ("factor",))):
        for seq_len, kind in ((1, "short"), (ORIGINAL, "short"), (ORIGINAL + 1, "long"), (CONTEXT, "long")):
            rope = report(engine, made | {"rope_scaling": made["rope_scaling"] | keys}, seq_len).rope
            np.testing.assert_allclose(rope.frequencies, ladder / LISTS[f"{kind}_factor"], rtol=1e-14)
            assert (rope.ignored_keys, rope.attention_factor) == (ignored, pytest.approx(ratio, rel=1e-14))
            own = made | {"rope_scaling": made["rope_scaling"] | {"short_mscale": 1.25, "long_mscale": 1.5}}
            expected = {"short": 1.25, "long": 1.5}[kind] if engine in ("vLLM", "SGLang") else ratio
            assert report(engine, own, seq_len).rope.attention_factor == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("count", [3, 5])
def test_as_many_factors_as_frequencies(count):
    with pytest.raises(formulas.RefusedError, match=f"stops with an error: {count} factors for 4 frequencies"):
        formulas.divide_ladder(np.ones(4), [1.0] * count)


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
    usual, other = (
        {"beta_fast": 32, "beta_slow": 1, "truncate": True},
        {"beta_fast": 16, "beta_slow": 2, "truncate": False},
    )
    plain = report(engine, config("qwen3", "yarn")).rope
    for key in usual:
        for values, changes in ((usual, False), (other, True)):
            rope = report(engine, config("qwen3", "default") | {"rope_scaling": YARN | {key: values[key]}}).rope
            assert rope.ignored_keys == ((key,) if changes and key in unread else ())
            assert np.array_equal(rope.frequencies, plain.frequencies) == (not changes or key in unread)


@pytest.mark.parametrize(
    ("engine", "model_type", "turning", "base"),
    [
        ("SGLang", "llama", D, BASE),
        ("SGLang", "phi3", D // 2, BASE),
        ("MLX-LM", "llama", D, BASE),
        ("MLX-LM", "qwen2", D, 1e6),  # its own where a config has none
    ],
)
def test_ntk_stretches_the_slowest_wavelength_of_what_turns(engine, model_type, turning, base):
    made = config(model_type, "dynamic") | ({} if base == BASE else {"rope_theta": None})
    rope = report(engine, made | {"partial_rotary_factor": turning / D}, 2 * CONTEXT).rope
    slower = base * 3.0 ** (turning / (turning - 1))  # 3 is 2 x 2 - (2 - 1): the slowest one is a third
    np.testing.assert_allclose(rope.frequencies, slower ** (-np.arange(turning) / turning), rtol=1e-12)
    assert base ** (-(turning - 1) / turning) / rope.frequencies[-1] == pytest.approx(3.0, rel=1e-12)
