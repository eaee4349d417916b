"""Rotations right and wrong in known ways, as models write them, each with what an audit from outside must say.

They were written from the definitions of RoPE, of its schemes and of the mistakes in other projects' issues, by the
authors of `rfrope.models.probe`, and use nothing of rfrope. ``q`` and ``k`` are ``(batch, heads, tokens, head_dim)``,
positions ``(batch, tokens)`` or ``(batch, tokens, axes)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
CONTEXT = 4096
ORIGINAL = "original_max_position_embeddings"


class Constructed(NamedTuple):
    """A model, how it is probed, what is meant, and what must be found: the kinds of faults, and words of the first."""

    name: str
    apply: Callable[..., Any]
    options: dict[str, Any]
    config: dict[str, Any]
    kind: str = ""  # "" for a right one
    says: str = ""


# -- definitions -------------------------------------------------------------------------------------------------------


def ladder(width: int, base: float = 10_000.0) -> np.ndarray:
    """omega_i = base^(-2i / d), Su et al. 2021."""
    return np.array([base ** (-2.0 * i / width) for i in range(width // 2)])


def stretched_by_yarn(width: int, base: float, factor: float, original: float) -> np.ndarray:
    """YaRN, Peng et al. 2023, eq. 23 and 25, with alpha 1 and beta 32, and boundaries made whole."""

    def dimension(turns: float) -> float:
        return width * math.log(original / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))

    low, high = max(math.floor(dimension(32.0)), 0), min(math.ceil(dimension(1.0)), width - 1)
    made = []
    for i, omega in enumerate(ladder(width, base)):
        ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        made.append(omega / factor * ramp + omega * (1.0 - ramp))
    return np.array(made)


def stretched_as_llama3(omega: np.ndarray, factor: float, low: float, high: float, original: float) -> np.ndarray:
    """Llama 3.1: wavelengths below original / high stay, those above original / low are multiplied."""
    made = []
    for one in omega:
        wavelength = 2.0 * math.pi / one
        if wavelength < original / high:
            made.append(one)
        elif wavelength > original / low:
            made.append(one / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            made.append((1.0 - smooth) * one / factor + smooth * one)
    return np.array(made)


def turn_halves(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Feature i with feature i + D."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, rest], axis=-1)


def turn_neighbours(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Feature 2i with feature 2i + 1."""
    width, made = 2 * cos.shape[-1], x.copy()
    made[..., 0:width:2] = x[..., 0:width:2] * cos - x[..., 1:width:2] * sin
    made[..., 1:width:2] = x[..., 0:width:2] * sin + x[..., 1:width:2] * cos
    return made


TURNS = {"half": turn_halves, "interleaved": turn_neighbours}


def cos_and_sin(positions: Any, omega: np.ndarray, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """As models compute them: positions and frequencies in float32, their product rounded once."""
    phases = np.asarray(positions).astype(dtype)[:, None, :, None] * omega.astype(dtype)
    return np.cos(phases), np.sin(phases)


def model(
    omega: np.ndarray,
    pairing: str = "half",
    *,
    factor: float = 1.0,
    wide: Any = np.float32,
    positions_of: Callable[[np.ndarray], np.ndarray] = lambda positions: positions,
    changed: Callable[[Any, Any], Any] = lambda cos, sin: (cos, sin),
) -> Callable[..., Any]:
    """A rotation of queries and keys, right unless `positions_of` or `changed` make it wrong."""

    def apply(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        cos, sin = changed(*cos_and_sin(positions_of(positions), omega, wide))
        cos, sin = ((factor * each).astype(each.dtype) for each in (cos, sin))
        return tuple(TURNS[pairing](x, cos.astype(x.dtype), sin.astype(x.dtype)) for x in (q, k))

    return apply


def config(
    width: int = 64, base: float = 10_000.0, scaling: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    made = {"model_type": "llama", "hidden_size": 4 * width, "num_attention_heads": 4, "head_dim": width}
    made |= {"rope_theta": base, "max_position_embeddings": CONTEXT}
    return made | ({"rope_scaling": scaling} if scaling else {}) | more


W = 64
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 1024}
YARN_OMEGA, MSCALE = stretched_by_yarn(W, 1e4, 4.0, 1024), 0.1 * math.log(4.0) + 1.0
LLAMA3_OMEGA = stretched_as_llama3(ladder(W, 5e5), 8.0, 1.0, 4.0, 1024)
LISTS = {"short_factor": [1.0 + 0.01 * i for i in range(W // 2)], "long_factor": [1.0 + i for i in range(W // 2)]}
LONGROPE = {"rope_type": "longrope", "factor": 4.0, **LISTS}
LONGROPE_CONFIG = config(W, 1e4, LONGROPE, model_type="phi3", **{ORIGINAL: 1024})
LONG_SCALE = math.sqrt(1.0 + math.log(4.0) / math.log(1024))
PARTIAL = config(W, model_type="stablelm", partial_rotary_factor=0.25)
LATENT = config(W, model_type="deepseek_v3", qk_rope_head_dim=16, qk_nope_head_dim=48)
NEIGHBOURS = config(W, model_type="cohere")
HEADS = {"heads": 4, "kv_heads": 2}
PLAIN = ladder(W)


# -- positions of pictures ---------------------------------------------------------------------------------------------

SECTIONS = (8, 12, 12)


def axis_by_sections(i: int) -> int:
    """Qwen2-VL: the first blocks count time, the next ones rows, the last ones columns."""
    return 0 if i < SECTIONS[0] else 1 if i < SECTIONS[0] + SECTIONS[1] else 2


def axis_in_turn(i: int) -> int:
    """Qwen3-VL: T H W T H W ..., and T alone at the end."""
    return i % 3 if i % 3 and i < 3 * SECTIONS[i % 3] else 0


def mrope(axis_of: Callable[[int], int], omega: np.ndarray = PLAIN) -> Callable[..., Any]:
    """Each block turns by the position of its own axis."""

    def apply(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        own = np.stack([positions[..., axis_of(i)] for i in range(omega.size)], axis=-1)  # (batch, tokens, D)
        phases = (own.astype(np.float32) * omega.astype(np.float32))[:, None]
        return tuple(turn_halves(x, np.cos(phases), np.sin(phases)) for x in (q, k))

    return apply


AXES = {"axes": 3}
QWEN2_VL = config(scaling={"type": "mrope", "mrope_section": [*SECTIONS]}, model_type="qwen2_vl_text")


# -- right ones --------------------------------------------------------------------------------------------------------


def scores_of(rotate: Callable[..., Any], scale: float = 1.0) -> Callable[..., Any]:
    """Scores of all queries and keys; keys are repeated for the heads of queries."""

    def apply(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> np.ndarray:
        turned_q, turned_k = rotate(q, k, positions)
        repeated = np.repeat(turned_k, q.shape[1] // k.shape[1], axis=1)
        return scale * (turned_q @ np.swapaxes(repeated, -1, -2))

    return apply


def by_matrices(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
    """The definition: a block-diagonal matrix for each token."""
    width, half = q.shape[-1], q.shape[-1] // 2
    matrices = np.zeros((*positions.shape, width, width))
    for i, omega in enumerate(ladder(width)):
        cos, sin = np.cos(positions * omega), np.sin(positions * omega)
        matrices[..., i, i], matrices[..., i, i + half] = cos, -sin
        matrices[..., i + half, i], matrices[..., i + half, i + half] = sin, cos
    return tuple((matrices[:, None] @ x[..., None])[..., 0].astype(x.dtype) for x in (q, k))


def last_features(width: int, turned: int) -> Callable[..., Any]:
    """As in latent attention whose parts were joined: the features with positions are the last ones."""
    inner = model(ladder(turned), "interleaved")

    def apply(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        rest = width - turned
        ends = inner(q[..., rest:], k[..., rest:], positions)
        return tuple(np.concatenate([x[..., :rest], end], axis=-1) for x, end in zip((q, k), ends, strict=True))

    return apply


def right(name: str, apply: Callable[..., Any], meant: dict[str, Any] | None = None, **options: Any) -> Constructed:
    return Constructed(name, apply, {"head_dim": W, **options}, config() if meant is None else meant)


RIGHT = [  # beside those of blind_models.py
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
    right("matrices", by_matrices, heads=1, kv_heads=1),
    right("scores", scores_of(model(PLAIN)), gives="scores"),
    right("scores of a part", scores_of(model(ladder(16))), PARTIAL, gives="scores"),
    right("the last features", last_features(W, 16), LATENT),
]  # fmt: skip


# -- wrong ones --------------------------------------------------------------------------------------------------------


def wrong(
    name: str, kind: str, says: str, apply: Callable[..., Any], meant: dict[str, Any] | None = None, **options: Any
) -> Constructed:
    return Constructed(name, apply, {"head_dim": W, **options}, config() if meant is None else meant, kind, says)


def one_of_both(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    """Queries by one rotation, keys by another."""
    return lambda q, k, positions: (first(q, k, positions)[0], second(q, k, positions)[1])


def heads_for_tokens(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
    """The table goes with the wrong axis: heads count as positions."""
    turned = []
    for x in (q, k):
        phases = np.multiply.outer(np.arange(x.shape[1], dtype=np.float32), PLAIN.astype(np.float32))[None, :, None]
        turned.append(turn_halves(x, np.cos(phases).astype(x.dtype), np.sin(phases).astype(x.dtype)))
    return tuple(turned)


def scaled(apply: Callable[..., Any], of_q: float, of_k: float) -> Callable[..., Any]:
    """All features multiplied, turned or not."""

    def multiplied(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        turned_q, turned_k = apply(q, k, positions)
        return (turned_q * of_q).astype(q.dtype), (turned_k * of_k).astype(k.dtype)

    return multiplied


def columns_for_neighbours(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
    """Tables of cos and sin with every column twice in a row, and halves turned by them."""
    cos, sin = (np.repeat(each, 2, axis=-1) for each in cos_and_sin(positions, PLAIN))
    half = q.shape[-1] // 2
    return tuple(
        x * cos.astype(x.dtype) + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin.astype(x.dtype)
        for x in (q, k)
    )


def twice(apply: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, positions: apply(*apply(q, k, positions), positions)


class CastAtFirstForward:
    """A cache in float32 that the first call leaves in bfloat16, as a module's buffer does."""

    def __init__(self) -> None:
        self.dtype: Any = np.float32

    def __call__(self, q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        cos, sin = (each.astype(self.dtype).astype(q.dtype) for each in cos_and_sin(positions, PLAIN))
        self.dtype = BF16
        return turn_halves(q, cos, sin), turn_halves(k, cos, sin)


def never_filled(value: float) -> Callable[..., Any]:
    """Buffers of cos and sin whose memory nobody wrote to, as ESM's after loading on the meta device."""
    rng = np.random.default_rng(0)
    held = np.where(rng.random((2, CONTEXT, W // 2)) < 0.5, value, 1e-30 * rng.standard_normal((2, CONTEXT, W // 2)))

    def apply(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        cos, sin = (each[positions][:, None].astype(np.float32) for each in held)
        return turn_halves(q, cos, sin), turn_halves(k, cos, sin)

    return apply


def whatever_lay_there(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
    """The same, where the memory held numbers of usual size."""
    held = np.random.default_rng(1).standard_normal((2, CONTEXT, W // 2)).astype(np.float32)
    cos, sin = (each[positions][:, None].astype(q.dtype) for each in held)
    return turn_halves(q, cos, sin), turn_halves(k, cos, sin)


class CountsEarlierTokens:
    """An offset that is not set back: tokens of earlier calls are counted, as if they were in a cache."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
        turned = model(PLAIN)(q, k, positions + self.seen)
        self.seen += positions.shape[1]
        return turned


def only_cos(cos: Any, sin: Any) -> Any:
    return cos * np.float32(MSCALE), sin


def in_bf16(*tables: Any) -> Any:
    return tuple(each.astype(BF16).astype(np.float32) for each in tables)


def phases_in_bf16(q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> Any:
    phases = (positions.astype(np.float32)[:, None, :, None] * PLAIN.astype(np.float32)).astype(BF16).astype(np.float32)
    return tuple(turn_halves(x, np.cos(phases), np.sin(phases)) for x in (q, k))


YARN_CONFIG = config(W, 1e4, YARN)
NEVER = "uninitialised"
WRONG = [  # beside those of blind_models.py, with other mistakes
    wrong("columns for neighbours, halves turned", "pairing", "columns", columns_for_neighbours),
    wrong("mscale squared", "attention factor", "twice", model(YARN_OMEGA, factor=MSCALE**2), YARN_CONFIG),
    wrong("factor on cos alone", "attention factor", "cos", model(YARN_OMEGA, changed=only_cos), YARN_CONFIG),
    wrong("factor on all features", "attention factor", "do not turn", scaled(model(ladder(16)), 1.2, 1.2), PARTIAL),
    wrong("a part turns", "width", "part of the head turns", model(ladder(16))),
    wrong("a cache cast at the first forward", "half precision", "first call", CastAtFirstForward()),
    wrong("positions in float16", "half precision", "positions rounded to float16",
          model(PLAIN, positions_of=lambda p: p.astype(np.float16).astype(np.float32))),
    wrong("phases in bfloat16", "half precision", "phases rounded to bfloat16", phases_in_bf16),
    wrong("sections in turn", "sections", "in turn", mrope(axis_in_turn), QWEN2_VL, **AXES),
    wrong("keys the other way", "direction", "keys", one_of_both(model(PLAIN), model(-PLAIN))),
    wrong("heads for tokens", "positions", "head", heads_for_tokens, heads=4, kv_heads=4),
    wrong("counted from 1", "positions", "1 more", model(PLAIN, positions_of=lambda p: p + 1)),
    wrong("the table ends at 1024", "too short", "1023", model(PLAIN, positions_of=lambda p: np.minimum(p, 1023))),
    wrong("never filled", NEVER, "uninitialised", never_filled(1e33)),
    wrong("not a number", NEVER, "not finite", never_filled(math.nan)),
    wrong("whatever lay there", NEVER, "cos^2", whatever_lay_there),
    wrong("earlier tokens counted", "positions", "earlier calls", CountsEarlierTokens()),
    wrong("all frequencies 0", "layers", "does not turn", model(0.0 * PLAIN)),
    wrong("turns for radians", "frequencies", "turns instead of radians", model(PLAIN / (2.0 * math.pi))),
    wrong("exponents twice as large", "frequencies", "exponents twice as large",
          model(np.array([1e4 ** (-4.0 * i / W) for i in range(W // 2)]))),
    wrong("the first features for the last", "width", "features", model(ladder(16), "interleaved"), LATENT),
    wrong("scores without the factor", "attention factor", "left out", scores_of(model(YARN_OMEGA)), YARN_CONFIG,
          gives="scores"),
    wrong("features squashed", "not linear", "twice the features", lambda q, k, p: (np.tanh(q), np.tanh(k))),
]  # fmt: skip
