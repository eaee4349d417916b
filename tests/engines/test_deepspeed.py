"""DeepSpeed inference: its rule and its kernel's formula for given frequencies, in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_configs import BASE, YARN, config, report
from packages import installed
from ropes import CONTEXT, KINDS, SEEDS, carried_by, features

from rfrope import Rope, exports

D = 32


def made(dtype: str | None = "bfloat16", **changes: Any) -> dict[str, Any]:
    return config("llama", "default") | {"torch_dtype": dtype} | changes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_frequencies_are_those_of_the_weights_dtype(dtype):
    torch = installed("torch")
    for base in (BASE, (1.0 + 2.0**-8) ** -D, (1.0 + 2.0**-11) ** -D):  # the second frequency is a tie
        rope, ladder = report("DeepSpeed", made(dtype, rope_theta=base)).rope, base ** (-np.arange(D) / D)
        wanted = torch.from_numpy(ladder).float().to(getattr(torch, dtype)).double().numpy()
        assert np.array_equal(rope.frequencies, wanted)
        error = np.max(np.abs(rope.frequencies / ladder - 1.0))
        assert (error > 1e-4, rope.attention_factor, rope.pairing) == (True, 1.0, "half")


def test_no_scheme_is_read():
    found = report("DeepSpeed", made(rope_scaling=YARN))
    assert found.rope.ignored_keys == ("rope_scaling",)
    assert np.array_equal(found.rope.frequencies, report("DeepSpeed", made()).rope.frequencies)


def test_queries_of_a_group_differ_from_its_keys():
    """Only the first head of a group is turned beside the key, with the frequencies that are rounded."""
    assert "queries of all heads of a group but its first" in report("DeepSpeed", made(num_key_value_heads=2)).rope.note
    assert "queries" not in report("DeepSpeed", made()).rope.note


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"torch_dtype": "float32"}, "refused", "torch_dtype is 'float32'; only fp16 and bf16 are supported"),
        ({"torch_dtype": None}, "unknown", "rounded to torch_dtype, and the config has none"),
        ({"head_dim": 128}, "refused", "heads of hidden_size / num_attention_heads = 64 features"),
        ({"num_attention_heads": 16}, "refused", "= 32 features"),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}, "unknown", "rope_theta is missing"),
    ],
)
def test_configs_that_it_does_not_run(changes, status, reason):
    found = report("DeepSpeed", made(**changes))
    assert found.status == status
    assert reason in found.reason


def turn(x: np.ndarray, positions: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Return features as its kernel turns them: ``inv_freq[neuron % half]``, the other half with a sign."""
    half = inverse.size
    neuron = np.arange(2 * half)
    phases = inverse[neuron % half] * positions[:, None].astype(np.float32)
    assert phases.dtype == np.float32
    sign = np.where(neuron >= half, -1.0, 1.0)  # of the lane that gives, so of its partner the other
    partner = (x[..., : 2 * half] * sign)[..., (neuron + half) % (2 * half)]
    result = x.astype(np.float64)
    result[..., : 2 * half] = x[..., : 2 * half] * np.cos(phases) + partner * np.sin(phases)
    return result


@pytest.mark.parametrize("kind", carried_by("DeepSpeed"))
def test_rotation(kind):
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        inverse, told = exports.export(rope, "DeepSpeed")["inverse_freqs"], exports.rounding(rope, "DeepSpeed")
        assert (inverse.shape, inverse.dtype) == ((rope.n_blocks,), np.float32)
        missed = np.max(np.abs(turn(x, positions, inverse) - rope.rotate(x.astype(np.float64), positions)))
        assert missed <= 2.0 * told.table * np.max(np.abs(x))
        assert np.max(np.abs(turn(x, positions, -inverse) - turn(x, positions, inverse))) > 100.0 * missed


def test_a_part_of_a_head():
    rope = Rope(KINDS["no factor"](0).frequencies, head_dim=64, context=CONTEXT)
    x, positions = features(rope)
    got = turn(x, positions, exports.export(rope, "DeepSpeed")["inverse_freqs"])
    np.testing.assert_allclose(got, rope.rotate(x.astype(np.float64), positions), atol=1e-4)
