"""diffusers' ``apply_rotary_emb`` with exported tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from packages import installed
from ropes import KINDS, SEEDS, carried_by, check, features

import rfrope
from rfrope import Rope, exports

pytestmark = pytest.mark.filterwarnings("ignore")


def turn(x: np.ndarray, made: dict[str, Any], rows: Any = slice(None)) -> np.ndarray:
    """Return features (B, H, S, d) as it turns them."""
    torch, module = installed("torch"), installed("diffusers.models.embeddings")
    tables = tuple(torch.from_numpy(made[name][rows]) for name in ("cos", "sin"))
    flags = {name: made[name] for name in ("use_real", "use_real_unbind_dim")}
    return module.apply_rotary_emb(torch.from_numpy(x), tables, **flags).numpy()


@pytest.mark.parametrize("kind", carried_by("diffusers"))
def test_rotation(kind):
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        check(turn(x[None], exports.export(rope, "diffusers"), positions)[0], x, positions, rope, "diffusers")


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_set_for_each_head(pairing):
    omega = rfrope.sample(rfrope.kernel("gaussian", scale=3.0), 8, rng=0, heads=3)
    rope = Rope(omega, context=12, attention_factor=1.1, pairing=pairing)
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 16)).astype(np.float32)
    got = turn(x.reshape(2, 1, 36, 16), exports.export(rope, "diffusers")).reshape(x.shape)
    wanted = np.stack([rope.rotate(text, np.arange(12)[:, None]) for text in x.astype(np.float64)])
    np.testing.assert_allclose(got, wanted, atol=2e-6)
