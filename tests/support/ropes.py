"""Random Ropes of each kind that an engine may have to carry."""

import contextlib
from dataclasses import replace

import numpy as np

import rfrope
from rfrope import Rope

CONTEXT, BLOCKS = 300, 8


def plain(seed: int) -> Rope:
    """Frequencies of a kernel, in no order, of both signs, one of them 0; an attention factor."""
    rng = np.random.default_rng(seed)
    kernel = rfrope.kernel("matern", nu=1.5, scale=float(rng.uniform(2.0, 40.0)))
    omega = rfrope.sample(kernel, BLOCKS, rng=seed)
    omega[seed % BLOCKS] = 0.0
    return Rope(omega, context=CONTEXT, attention_factor=float(rng.uniform(0.7, 1.6)))


def learned(seed: int) -> Rope:
    """A ladder with factors and a temperature, as `integrations.transformers.tune` returns them."""
    rng, ladder = np.random.default_rng(seed), rfrope.geometric(BLOCKS)
    step = {"scheme": "learned", "learned": ["factors", "temperature"], "temperature": float(rng.uniform(1.0, 1.5))}
    omega, factor = ladder * np.exp(rng.normal(scale=0.3, size=BLOCKS)), step["temperature"] ** 0.5
    return Rope(omega, context=CONTEXT, attention_factor=factor, source={"scaled_by": [step]})


KINDS = {
    "plain": plain,
    "no factor": lambda seed: replace(plain(seed), attention_factor=1.0),
    "interleaved": lambda seed: replace(plain(seed), pairing="interleaved"),
    "interleaved, no factor": lambda seed: replace(plain(seed), pairing="interleaved", attention_factor=1.0),
    "partial": lambda seed: replace(plain(seed), head_dim=2 * BLOCKS + 8),
    "learned": learned,
    "ladder": lambda seed: Rope(rfrope.geometric(BLOCKS, base=1e4 * 1.7**seed), context=CONTEXT),
}
SEEDS = range(10)


def carried_by(engine: str) -> list[str]:
    """Kinds that an engine takes; `test_exporting.py` holds what it refuses, and why."""
    return [kind for kind in KINDS if _carries(engine, KINDS[kind](0))]


def _carries(engine: str, rope: Rope) -> bool:
    with contextlib.suppress(ValueError):
        return bool(rfrope.engines.export(rope, engine))
    return False


def features(rope: Rope, heads: int = 2, tokens: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Queries (heads, tokens, features) and positions up to the end of the context."""
    rng = np.random.default_rng(rope.n_blocks)
    positions = np.concatenate([np.arange(tokens // 2), np.sort(rng.integers(0, CONTEXT, tokens - tokens // 2 - 1))])
    x = rng.standard_normal((heads, tokens, rope.head_dim)).astype(np.float32)
    return x, np.append(positions, CONTEXT - 1)


def check(got: np.ndarray, x: np.ndarray, positions: np.ndarray, rope: Rope, engine: str) -> None:
    """Assert that an engine's rotation is the Rope's, to the rounding that its export states and that of features."""
    told = rfrope.engines.rounding(rope, engine)
    wanted = rope.rotate(x.astype(np.float64), positions)
    at_most = rope.attention_factor * (told.table + 2.0**-22) * 2.0 * np.max(np.abs(x)) + 1e-7
    assert got.shape == wanted.shape
    assert np.max(np.abs(got - wanted)) <= at_most
    assert np.max(np.abs(got - x)) > 100.0 * at_most, "it turns"
