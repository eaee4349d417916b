"""exllamav3's rule, held against its formulas as they stand in its ``util/rope.py``, in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from engine_configs import BASE, CONTEXT, KEY, LISTS, ORIGINAL, YARN, config, phi3, report

D = 32
LADDER = BASE ** (-np.arange(D) / D)


def read(made: dict[str, Any], seq_len: int = CONTEXT) -> Any:
    found = report("exllamav3", made, seq_len)
    assert found.status == "known", found.reason
    return found.rope


def ramp(factor: float, original: int, fast: float = 32.0, slow: float = 1.0, base: float = BASE) -> np.ndarray:
    """Return its ``yarn_inv_freq``."""
    ladder = base ** (-np.arange(D) / D)
    low, high = (2 * D * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow))
    low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * D - 1)
    kept = 1.0 - np.clip((np.arange(D) - low) / (high - low), 0.0, 1.0)
    return ladder / factor * (1.0 - kept) + ladder * kept


@pytest.mark.parametrize("scheme", ["default", "linear", "llama3", "yarn", "yarn with another ramp"])
@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_schemes(scheme, form):
    rope = read(config("llama", scheme, form))
    wavelength = 2 * math.pi / LADDER
    smooth = (ORIGINAL / wavelength - 1.0) / 3.0
    slow = np.where(wavelength > ORIGINAL, LADDER / 8.0, LADDER)
    between = (wavelength >= ORIGINAL / 4.0) & (wavelength <= ORIGINAL)
    wanted = {
        "default": LADDER,
        "linear": LADDER / 4.0,
        "llama3": np.where(between, (1.0 - smooth) * slow / 8.0 + smooth * slow, slow),
        "yarn": ramp(4.0, ORIGINAL),
        "yarn with another ramp": ramp(4.0, ORIGINAL, 16.0, 2.0),
    }
    np.testing.assert_allclose(rope.frequencies, wanted[scheme], rtol=1e-12)
    assert rope.attention_factor == (0.1 * math.log(4.0) + 1.0 if "yarn" in scheme else 1.0)
    assert (rope.pairing, rope.ignored_keys) == ("half", ())


def test_yarn_takes_the_ratio_of_contexts_for_its_factor():
    """Qwen3's published configs say factor 4 beside a context of 40960 over 32768, which is read as 1.25."""
    made = config("qwen3", "default") | {"max_position_embeddings": 40960}
    made["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0, KEY: 32768}
    rope = read(made, 40960)
    np.testing.assert_allclose(rope.frequencies, ramp(1.25, 32768), rtol=1e-12)
    assert (rope.attention_factor, rope.ignored_keys) == (0.1 * math.log(1.25) + 1.0, ("factor",))
    del made["rope_scaling"][KEY]
    rope = read(made, 40960)
    np.testing.assert_allclose(rope.frequencies, ramp(4.0, 40960), rtol=1e-12)
    assert (rope.attention_factor, rope.ignored_keys) == (0.1 * math.log(4.0) + 1.0, ())


def test_attention_factors_of_yarn():
    made = config("llama", "default")
    for keys, factor, ignored in (
        ({"attention_factor": 1.5}, 1.5, ()),
        ({"mscale": 0.7, "mscale_all_dim": 1.2}, 0.1 * math.log(4.0) + 1.0, ("mscale", "mscale_all_dim")),
    ):
        rope = read(made | {"rope_scaling": YARN | keys})
        assert (rope.attention_factor, rope.ignored_keys) == (factor, ignored)


def test_longrope_and_a_part_of_a_head():
    for seq_len, name in ((ORIGINAL, "short_factor"), (CONTEXT, "long_factor")):
        rope = read(phi3("longrope", 0.75), seq_len)
        ladder = 10_000.0 ** (-np.arange(24) / 24)
        np.testing.assert_allclose(rope.frequencies, ladder / LISTS[name][:24], rtol=1e-12)
        scale = math.sqrt(1.0 + math.log(CONTEXT / ORIGINAL) / math.log(ORIGINAL))
        assert rope.attention_factor == pytest.approx(scale, rel=1e-14)


def test_proportional():
    """Gemma 4's scheme: most blocks still, exponents over the whole head."""
    made = config("llama", "default", "rope_parameters")
    for part, turning in ((0.25, 8), (0.3, 9)):  # of 64 features 19.2: 9 whole pairs
        made["rope_parameters"] |= {"rope_type": "proportional", "partial_rotary_factor": part, "factor": 2.0}
        wanted = np.where(np.arange(D) < turning, LADDER, 0.0) / 2.0
        np.testing.assert_allclose(read(made).frequencies, wanted, rtol=1e-12)


def test_a_base_that_is_missing_is_10000_for_every_model_type():
    made = {key: value for key, value in config("llama", "default").items() if key != "rope_theta"}
    found = read(made | {"model_type": "mixtral"})
    np.testing.assert_allclose(found.frequencies, 10_000.0 ** (-np.arange(D) / D), rtol=1e-12)
    found = read(made | {"model_type": "mixtral", "rope_scaling": YARN})
    np.testing.assert_allclose(found.frequencies, ramp(4.0, ORIGINAL, base=10_000.0), rtol=1e-12)


@pytest.mark.parametrize(
    ("scheme", "status", "reason"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "refused", "'dynamic' is none of its schemes"),
        (YARN | {"llama_4_scaling_beta": 0.1}, "unknown", "llama_4_scaling_beta was not read"),
    ],
)
def test_schemes_that_it_does_not_run(scheme, status, reason):
    found = report("exllamav3", config("llama", "default") | {"rope_scaling": scheme})
    assert found.status == status
    assert reason in found.reason
