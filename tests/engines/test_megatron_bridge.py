"""Megatron-Bridge's rule, held against the formulas of Megatron-Core in plain NumPy."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest
from engine_configs import BASE, CONTEXT, KEY, LLAMA3, ORIGINAL, YARN, config, report
from packages import installed

from rfrope import models

D = 32
LADDER = BASE ** (-np.arange(D) / D)
WHOLE_YARN = YARN | {"beta_fast": 32.0, "beta_slow": 1.0}


def ramp(factor: float, truncate: bool) -> np.ndarray:
    """Return its ``inv_freq_inter * (1 - mask) + inv_freq_extra * mask``."""
    low, high = (2 * D * math.log(ORIGINAL / (turns * 2 * math.pi)) / (2 * math.log(BASE)) for turns in (32.0, 1.0))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * D - 1)
    mask = 1.0 - np.clip((np.arange(D) - low) / (high - low), 0.0, 1.0)
    return LADDER / factor * (1.0 - mask) + LADDER * mask


def test_llama3_has_constants_of_its_own():
    """Of the scheme's numbers it takes the factor alone; 1, 4 and 8192 stand in its code."""
    for original, ignored in ((8192, ()), (ORIGINAL, (KEY,))):
        rope = report("Megatron-Bridge", config("llama", "default") | {"rope_scaling": LLAMA3 | {KEY: original}}).rope
        wavelength = 2 * math.pi / LADDER
        smooth = (8192 / wavelength - 1.0) / 3.0
        slow = np.where(wavelength > 8192, LADDER / 8.0, LADDER)
        between = ~(wavelength < 2048) & ~(wavelength > 8192)
        wanted = np.where(between, (1.0 - smooth) * slow / 8.0 + smooth * slow, slow)
        np.testing.assert_allclose(rope.frequencies, wanted, rtol=1e-12)
        assert rope.ignored_keys == ignored


def test_linear_and_schemes_that_are_dropped():
    linear = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    rope = report("Megatron-Bridge", config("llama", "default") | linear).rope
    np.testing.assert_allclose(rope.frequencies, LADDER / 4.0, rtol=1e-14)
    for kind, scheme in (("qwen2", linear), ("qwen3", {"rope_scaling": LLAMA3}), ("mistral", linear)):
        rope = report("Megatron-Bridge", config(kind, "default") | scheme).rope
        np.testing.assert_allclose(rope.frequencies, LADDER, rtol=1e-14)
        assert rope.ignored_keys == ("rope_type",)


def test_the_base_is_read_in_both_spellings():
    for form in ("rope_scaling", "rope_parameters"):
        found = report("Megatron-Bridge", config("qwen2", "default", form))
        np.testing.assert_allclose(found.rope.frequencies, LADDER, rtol=1e-14)


def test_yarn_has_no_defaults():
    """A config without betas stops, and one without truncate is not truncated: None is given in their place."""
    found = report("Megatron-Bridge", config("qwen3", "yarn"))
    assert (found.status, "beta_fast missing" in found.reason) == ("refused", True)
    for truncate, same, keys in (
        (False, False, {}),
        (True, True, {"truncate": True}),
        (False, True, {"truncate": False}),
    ):
        made = config("qwen3", "default") | {"rope_scaling": WHOLE_YARN | keys}
        (compared,) = models.compare(made, ["transformers", "Megatron-Bridge"]).ropes
        found = compared.engines[1]
        np.testing.assert_allclose(found.rope.frequencies, ramp(4.0, truncate), rtol=1e-12)
        assert (found.rope.attention_factor, found.is_same) == (0.1 * math.log(4.0) + 1.0, same)


def test_attention_factors_of_yarn():
    for keys, factor, ignored in (
        ({"attention_factor": 1.5}, 0.1 * math.log(4.0) + 1.0, ("attention_factor",)),
        ({"mscale": 0.7}, 0.1 * math.log(4.0) + 1.0, ()),
        ({"mscale": 0.7, "mscale_all_dim": 0.0}, 0.07 * math.log(4.0) + 1.0, ()),
    ):
        rope = report("Megatron-Bridge", config("qwen2", "default") | {"rope_scaling": WHOLE_YARN | keys}).rope
        assert (rope.attention_factor, rope.ignored_keys) == (pytest.approx(factor, rel=1e-14), ignored)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_yarn_elsewhere_is_unknown(kind):
    found = report("Megatron-Bridge", config(kind, "yarn"))
    assert (found.status, f"'yarn' in {kind}" in found.reason) == ("unknown", True)


# what the bridge hands over for a config, as its sources say; megatron-core itself is run
ARGUMENTS = {
    "llama3": {"rope_scaling": True, "rope_scaling_factor": 8.0},
    "linear": {"seq_len_interpolation_factor": 4.0},
    "yarn": {"scaling_factor": 4.0, "original_max_position_embeddings": ORIGINAL, "beta_fast": 32.0, "beta_slow": 1.0,
             "mscale": None, "mscale_all_dim": None, "correction_range_round_to_int": None},
}  # fmt: skip
HANDED = {
    "llama3": ("llama", LLAMA3 | {KEY: 8192}),
    "linear": ("llama", {"rope_type": "linear", "factor": 4.0}),
    "yarn": ("qwen3", WHOLE_YARN),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ARGUMENTS)
def test_megatron_core(scheme, monkeypatch):
    torch = installed("torch")
    module = installed("megatron.core.models.common.embeddings")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    alone = types.SimpleNamespace(size=lambda: 1)
    kind, scaling = HANDED[scheme]
    made = module.YarnRotaryEmbedding if scheme == "yarn" else module.RotaryEmbedding
    rotary = made(64, 1.0, rotary_base=BASE, use_cpu_initialization=True, cp_group=alone, **ARGUMENTS[scheme])
    phases = rotary.get_emb(CONTEXT)
    phases, factor = phases if scheme == "yarn" else (phases, 1.0)
    rope = report("Megatron-Bridge", config(kind, "default") | {"rope_scaling": scaling}).rope
    rows = np.arange(CONTEXT)[:, None] * rope.frequencies
    assert phases.shape == (CONTEXT, 1, 1, 2 * D)
    np.testing.assert_allclose(phases[:, 0, 0, :D].numpy(), rows, rtol=1e-6, atol=1e-9)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)
