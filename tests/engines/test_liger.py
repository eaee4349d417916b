"""Liger-Kernel's ``liger_rotary_pos_emb`` with exported tables, in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from packages import installed
from ropes import KINDS, carried_by, check, features

import rfrope
from rfrope import Rope, exports

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def turn(monkeypatch):
    """``turn(x, cos, sin)`` returns features (B, H, S, d) as its kernel turns them, as queries and as keys."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch, module = installed("torch"), installed("liger_kernel.transformers.rope")

    def call(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        q, k = (torch.from_numpy(x.astype(np.float32)) for _ in range(2))
        tables = (torch.from_numpy(np.ascontiguousarray(one)) for one in (cos, sin))
        q, k = module.liger_rotary_pos_emb(q, k, *tables)
        assert torch.equal(q, k)
        return q.numpy()

    return call


@pytest.mark.parametrize("kind", carried_by("Liger-Kernel"))
def test_rotation(turn, kind):
    for seed in range(3):
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        made = exports.export(rope, "Liger-Kernel")
        got = turn(x[None], made["cos"][:, positions], made["sin"][:, positions])[0]
        check(got, x, positions, rope, "Liger-Kernel")


def test_one_table_for_each_text(turn):
    rope, positions = Rope(rfrope.geometric(8), context=40), np.array([[3, 4, 5, 6], [20, 21, 22, 23]])
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 16))
    made = exports.export(rope, "Liger-Kernel")
    got = turn(x, made["cos"][0, positions], made["sin"][0, positions])
    np.testing.assert_allclose(got, rope.rotate(x, positions[:, None]), atol=2e-6)


def test_a_set_for_each_head(turn):
    omega = rfrope.sample(rfrope.kernel("gaussian", scale=3.0), 8, rng=0, heads=3)
    rope, x = Rope(omega, context=9, attention_factor=1.1), np.random.default_rng(0).standard_normal((2, 3, 5, 16))
    made = exports.export(rope, "Liger-Kernel")
    cos, sin = (np.tile(made[name][:, :5], (2, 1, 1)) for name in ("cos", "sin"))
    wanted = np.stack([rope.rotate(text, np.arange(5)[:, None]) for text in x])
    np.testing.assert_allclose(turn(x.reshape(6, 1, 5, 16), cos, sin).reshape(x.shape), wanted, atol=2e-6)
