"""MLX-LM's models against the rule, and ``mx.fast.rope`` with exported periods."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from engine_configs import CASES, CONTEXT, is_refused, report
from packages import installed
from ropes import KINDS, SEEDS, carried_by, check, features

from rfrope import exports


@pytest.mark.parametrize("made", CASES)
def test_configs(made):
    mx = installed("mlx.core")
    installed("mlx_lm.models.rope_utils")
    module = installed(f"mlx_lm.models.{made['model_type'].replace('mistral', 'llama')}")
    found, width = report("MLX-LM", made), 64

    def build() -> Any:
        return module.Attention(module.ModelArgs.from_dict(copy.deepcopy(made))).rope

    if is_refused(found, build):
        return
    rotary, blocks = build(), found.rope.frequencies.size
    first = mx.concatenate([mx.ones((1, 1, 1, blocks)), mx.zeros((1, 1, 1, width - blocks))], axis=-1)
    for position in (0, 1, 3, 10, 50, 200, CONTEXT - 1):
        turned = np.array(rotary(first, offset=position))[0, 0, 0]
        phases = position * found.rope.frequencies
        expected = found.rope.attention_factor * np.concatenate([np.cos(phases), np.sin(phases)])
        allowed = 1e-5 + 4e-6 * np.concatenate([phases, phases])
        assert np.max(np.abs(turned[: 2 * blocks] - expected) - allowed) < 0.0


@pytest.mark.parametrize("kind", carried_by("MLX"))
def test_rotation(kind):
    mx = installed("mlx.core")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        exported = exports.export(rope, "MLX")
        exported["freqs"] = mx.array(exported["freqs"])
        rows = [mx.fast.rope(mx.array(x[None, :, [i]]), **exported, offset=int(p)) for i, p in enumerate(positions)]
        check(np.concatenate([np.asarray(row)[0] for row in rows], axis=1), x, positions, rope, "MLX")
