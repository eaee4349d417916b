"""Rotations right and wrong in known ways, as models write them, each with what an audit from outside must say.

They were written from the mistakes in other projects' issues by the authors of `rfrope.models.probe`, and use nothing
of rfrope; definitions of RoPE and of its schemes are those of blind_models.py. ``q`` and ``k`` are ``(batch, heads,
tokens, head_dim)``, positions ``(batch, tokens)`` or ``(batch, tokens, axes)``.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from blind_models import MODELS as BLIND
from blind_models import Constructed, along_axes, both, halves, in_bf16, llama3, neighbours, scored, usual, yarn

BF16 = ml_dtypes.bfloat16
CONTEXT = 4096
ORIGINAL = "original_max_position_embeddings"


def ladder(width: int, base: float = 10_000.0) -> np.ndarray:
    """omega_i = base^(-2i / d), Su et al. 2021."""
    return np.array([base ** (-2.0 * i / width) for i in range(width // 2)])


def model(omega: np.ndarray, pairing: str = "half", **options: Any) -> Callable[..., Any]:
    """A rotation of queries and keys, right unless options make it wrong."""
    return usual(omega, **{"turn": {"half": halves, "interleaved": neighbours}[pairing]} | options)


def config(
    width: int = 64, base: float = 10_000.0, scaling: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    made = {"model_type": "llama", "hidden_size": 4 * width, "num_attention_heads": 4, "head_dim": width}
    made |= {"rope_theta": base, "max_position_embeddings": CONTEXT}
    return made | ({"rope_scaling": scaling} if scaling else {}) | more


W = 64
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 1024}
YARN_OMEGA, MSCALE = yarn(ladder(W), 1e4, 4.0, 1024), 0.1 * math.log(4.0) + 1.0
LLAMA3_OMEGA = llama3(ladder(W, 5e5), 1024)
LISTS = {"short_factor": [1.0 + 0.01 * i for i in range(W // 2)], "long_factor": [1.0 + i for i in range(W // 2)]}
LONGROPE = {"rope_type": "longrope", "factor": 4.0, **LISTS}
LONGROPE_CONFIG = config(W, 1e4, LONGROPE, model_type="phi3", **{ORIGINAL: 1024})
LONG_SCALE = math.sqrt(1.0 + math.log(4.0) / math.log(1024))
PARTIAL = config(W, model_type="stablelm", partial_rotary_factor=0.25)
LATENT = config(W, model_type="deepseek_v3", qk_rope_head_dim=16, qk_nope_head_dim=48)
HEADS = {"heads": 4, "kv_heads": 2}
PLAIN = ladder(W)


AXES = {"axes": 3}
QWEN2_VL = config(scaling={"type": "mrope", "mrope_section": [8, 12, 12]}, model_type="qwen2_vl_text")


# -- right ones --------------------------------------------------------------------------------------------------------


def last_features(width: int, turned: int) -> Callable[..., Any]:
    """As in latent attention whose parts were joined: the features with positions are the last ones."""
    inner = usual(ladder(turned), turn=neighbours)

    def apply(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        rest = width - turned
        ends = inner(q[..., rest:], k[..., rest:], positions)
        return tuple(np.concatenate([x[..., :rest], end], axis=-1) for x, end in zip((q, k), ends, strict=True))

    return apply


def right(name: str, apply: Callable[..., Any], meant: dict[str, Any] | None = None, **options: Any) -> Constructed:
    return Constructed(name, apply, {"head_dim": W, **options}, config() if meant is None else meant)


RIGHT = [
    right("halves", model(PLAIN)),
    right("grouped heads", model(PLAIN), **HEADS),
    right("one head of keys", model(PLAIN), heads=8, kv_heads=1),
    right("float64", model(PLAIN, wide=np.float64), dtype=np.float64),
    right("float16 features", model(PLAIN), dtype=np.float16),
    right("bfloat16 features", model(PLAIN), dtype=BF16),
    right("width 16", model(ladder(16)), config(16), head_dim=16),
    right("width 80", model(ladder(80)), config(80), head_dim=80),
    right("width 256", model(ladder(256)), config(256), head_dim=256),
    right("a base of 1e9", model(ladder(W, 1e9)), config(W, 1e9)),
    right("yarn without a factor", model(YARN_OMEGA), config(W, 1e4, YARN | {"attention_factor": 1.0})),
    right("longrope of long texts", model(PLAIN / np.array(LISTS["long_factor"]), factor=LONG_SCALE), LONGROPE_CONFIG),
    right("scores", scored(model(PLAIN), 1.0), gives="scores"),
    right("scores of a part", scored(model(ladder(16)), 1.0), PARTIAL, gives="scores"),
    right("the last features", last_features(W, 16), LATENT),
]  # fmt: skip


# -- wrong ones --------------------------------------------------------------------------------------------------------


def wrong(
    name: str, kind: str, says: str, apply: Callable[..., Any], meant: dict[str, Any] | None = None, **options: Any
) -> Constructed:
    return Constructed(name, apply, {"head_dim": W, **options}, config() if meant is None else meant, kind, says)


def loud(*given: Any) -> Any:
    """All features multiplied, turned or not."""
    return tuple(np.float32(1.2) * x for x in model(ladder(16))(*given))


def by_columns_twice(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Tables of cos and sin with every column twice in a row, and halves turned by them."""
    first, second = np.split(x, 2, axis=-1)
    return x * np.repeat(cos, 2, axis=-1) + np.concatenate([-second, first], axis=-1) * np.repeat(sin, 2, axis=-1)


def heads_for_tokens(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
    """The table goes with the wrong axis: heads count as positions."""
    swapped = (x.swapaxes(1, 2) for x in (q, k))
    return tuple(model(PLAIN)(x, x, np.arange(x.shape[2])[None])[0].swapaxes(1, 2) for x in swapped)


def cast_at_first_forward() -> Callable[..., Any]:
    """A cache in float32 that the first call leaves in bfloat16, as a module's buffer does."""
    calls = itertools.count()
    return model(PLAIN, tables=lambda *tables: in_bf16(*tables) if next(calls) else tables)


def stored(held: np.ndarray) -> Callable[..., Any]:
    """Buffers of cos and sin whose memory nobody wrote to, as ESM's after loading on the meta device."""

    def apply(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        cos, sin = (each[positions][:, None].astype(np.float32) for each in held)
        return halves(q, cos, sin), halves(k, cos, sin)

    return apply


def earlier_tokens_counted() -> Callable[..., Any]:
    """An offset that is not set back: tokens of earlier calls are counted, as if they were in a cache."""
    seen = [0]
    return model(PLAIN, at=lambda positions: positions + (seen.append(seen[-1] + positions.shape[1]) or seen[-2]))


MEMORY = np.random.default_rng(0).standard_normal((2, CONTEXT, W // 2))
LARGE, NAN = (stored(np.where(MEMORY > 0.0, value, 1e-30 * MEMORY)) for value in (1e33, math.nan))
NEVER = "uninitialised"
YARN_CONFIG = config(W, 1e4, YARN)
WRONG = [
    wrong("columns for neighbours, halves turned", "pairing", "columns", model(PLAIN, turn=by_columns_twice)),
    wrong("mscale squared", "attention factor", "twice", model(YARN_OMEGA, factor=MSCALE**2), YARN_CONFIG),
    wrong("factor on cos alone", "attention factor", "cos",
          model(YARN_OMEGA, tables=lambda cos, sin: (np.float32(MSCALE) * cos, sin)), YARN_CONFIG),
    wrong("factor on all features", "attention factor", "do not turn", loud, PARTIAL),
    wrong("a part turns", "width", "part of the head turns", model(ladder(16))),
    wrong("a cache cast at the first forward", "half precision", "first call", cast_at_first_forward()),
    wrong("positions in float16", "half precision", "positions rounded to float16",
          model(PLAIN, at=lambda p: p.astype(np.float16).astype(np.float32))),
    wrong("phases in bfloat16", "half precision", "phases rounded to bfloat16",
          model(PLAIN, angles=lambda angle: in_bf16(angle)[0])),
    wrong("sections in turn", "sections", "in turn", along_axes(PLAIN, np.arange(W // 2) % 3), QWEN2_VL, **AXES),
    wrong("keys the other way", "direction", "keys", both(model(PLAIN), model(-PLAIN))),
    wrong("heads for tokens", "positions", "head", heads_for_tokens, heads=4, kv_heads=4),
    wrong("the table ends at 1024", "too short", "1023", model(PLAIN, at=lambda p: np.minimum(p, 1023))),
    wrong("never filled", NEVER, "uninitialised", LARGE),
    wrong("not a number", NEVER, "not finite", NAN),
    wrong("whatever lay there", NEVER, "cos^2", stored(MEMORY)),
    wrong("earlier tokens counted", "positions", "earlier calls", earlier_tokens_counted()),
    wrong("all frequencies 0", "layers", "does not turn", model(0.0 * PLAIN)),
    wrong("turns for radians", "frequencies", "turns instead of radians", model(PLAIN / (2.0 * math.pi))),
    wrong("exponents twice as large", "frequencies", "exponents twice as large",
          model(np.array([1e4 ** (-4.0 * i / W) for i in range(W // 2)]))),
    wrong("the first features for the last", "width", "features", model(ladder(16), "interleaved"), LATENT),
    wrong("scores without the factor", "attention factor", "left out", scored(model(YARN_OMEGA), 1.0), YARN_CONFIG,
          gives="scores"),
    wrong("features squashed", "not linear", "twice the features", lambda q, k, p: (np.tanh(q), np.tanh(k))),
]  # fmt: skip
RIGHT += [one for one in BLIND if not one.kind]
WRONG += [one for one in BLIND if one.kind]
