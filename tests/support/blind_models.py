"""Right and wrong rotary position embeddings, written without sight of the audit that is to tell them apart.

`blind_models.json` has configs, and what the audit says of the wrong ones, whose names say what is wrong with them:
kinds of first findings, and words. Mistakes that it did not tell, or told in other words, when it first met them were
taught to it since: its verdicts on these are no estimate of how it does on others.
"""

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class Constructed(NamedTuple):
    """A model, how it is probed, what is meant, and the kind of the first finding, with words of it."""

    name: str
    apply: Callable[..., Any]
    options: dict[str, Any]
    config: Any
    kind: str = ""  # "" for a right one
    says: str = ""


MODELS = []


def model(name, config, apply, *finding, heads=4, kv_heads=2, head_dim=64, **more):
    """Enter a model into MODELS; a text is the name of a config."""
    meant = CONFIGS[config] if isinstance(config, str) else config
    MODELS.append(
        Constructed(name, apply, dict(heads=heads, kv_heads=kv_heads, head_dim=head_dim, **more), meant, *finding)
    )


CONFIGS, FINDINGS = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text("utf-8")).values()
SHORT, LONG = (CONFIGS["PHI3"]["rope_scaling"][f"{name}_factor"] for name in ("short", "long"))
PLAIN = 10000.0 ** -(np.arange(32) / 32.0)
ODD = np.concatenate([0.7 * 0.5 ** np.arange(12), 0.3 * 0.6 ** np.arange(12)])  # Unsorted, 48 of 64 features.
SCORES = dict(gives="scores", score_scale=0.125)


def power(dim, base, width=None):
    """Plain float32 frequencies of dim features, exponents over width (dim unless given)."""
    return (1.0 / np.float32(base) ** (np.arange(0, dim, 2, dtype=np.float32) / (width or dim))).astype(np.float32)


def halves(x, cos, sin):
    """Turn feature i against feature i + half, tables of shape (..., half); further features pass."""
    n = cos.shape[-1]
    a, b = x[..., :n], x[..., n : 2 * n]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * n :]], axis=-1).astype(x.dtype)


def neighbours(x, cos, sin):
    """Turn feature 2 i against feature 2 i + 1, tables of shape (..., half); further features pass."""
    n, y = cos.shape[-1], x.copy()
    y[..., 0 : 2 * n : 2] = x[..., 0 : 2 * n : 2] * cos - x[..., 1 : 2 * n : 2] * sin
    y[..., 1 : 2 * n : 2] = x[..., 1 : 2 * n : 2] * cos + x[..., 0 : 2 * n : 2] * sin
    return y


def as_it_is(x):
    return x


def usual(freq, factor=1.0, turn=halves, at=as_it_is, angles=as_it_is, wide=np.float32, tables=lambda *both: both):
    """An ordinary callable, right unless a function that is given makes it wrong: phases rounded once to `wide`."""

    def apply(q, k, positions):
        angle = angles(at(positions)[:, None, :, None].astype(wide) * np.asarray(freq, wide))
        cos, sin = ((factor * one).astype(one.dtype) for one in tables(np.cos(angle), np.sin(angle)))
        return tuple(turn(x, cos.astype(x.dtype), sin.astype(x.dtype)) for x in (q, k))

    return apply


def both(queries, keys):
    """Queries by one callable, keys by another."""
    return lambda *given: (queries(*given)[0], keys(*given)[1])


def along_axes(freq, owner, turn=halves):
    """M-RoPE: pair i follows the axis owner[i]."""

    def apply(q, k, positions):
        angle = (positions[..., owner].astype(np.float32) * np.asarray(freq, np.float32))[:, None]
        return turn(q, np.cos(angle), np.sin(angle)), turn(k, np.cos(angle), np.sin(angle))

    return apply


def scored(rotate, scale=0.125, spread=np.repeat):
    """Turn a rotating callable into one of scores, keys spread over the queries' heads."""

    def apply(q, k, positions):
        q, k = rotate(q, k, positions)
        return np.einsum("bhqd,bhkd->bhqk", q, spread(k, q.shape[1] // k.shape[1], axis=1)) * np.float32(scale)

    return apply


def yarn(plain, base, factor, original, beta_fast=32.0, beta_slow=1.0, truncate=True):
    """YaRN frequencies: a ramp between the plain ones and those divided by factor."""
    dim = 2 * len(plain)

    def index(turns):
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = index(beta_fast), index(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low or 0.001), 0, 1)
    return plain * (1 - ramp) + plain / factor * ramp


def llama3(plain, original=8192, factor=8.0, low=1.0, high=4.0):
    """Llama 3.1 frequencies, one after another as in the published code."""
    out = []
    for freq in plain.tolist():
        wave = 2 * math.pi / freq
        smooth = min(max((original / wave - low) / (high - low), 0.0), 1.0)
        out.append((1 - smooth) * freq / factor + smooth * freq)
    return np.array(out)


class GrowingTable:
    """Rows of angles, lengthened when a position lies beyond them; rows added start at the first missing one."""

    def __init__(self, freq, rows=0, start=lambda rows: rows):
        self.freq, self.start, self.angle = freq, start, np.outer(np.arange(rows, dtype=np.float32), freq)

    def __call__(self, q, k, positions):
        rows, need = len(self.angle), int(positions.max()) + 1
        if need > rows:
            added = self.start(rows) + np.arange(need - rows, dtype=np.float32)
            self.angle = np.concatenate([self.angle, np.outer(added, self.freq)])
        angle = self.angle[positions][:, None]
        return tuple(halves(x, np.cos(angle), np.sin(angle)) for x in (q, k))


L, L31, Q2, Q3 = power(64, 500000.0), llama3(power(64, 500000.0)), power(64, 1e6), power(64, 5e6)
Y, P16, P32, OSS = yarn(power(128, 1e6), 1e6, 4.0, 8192), power(16, 1e4), power(32, 1e4), power(64, 150000.0)
MS = yarn(power(64, 10000.0), 10000.0, 40.0, 4096).astype(np.float32)
YF, MF, OF = (0.1 * math.log(factor) + 1.0 for factor in (4.0, 40.0, 32.0))
BY_SECTIONS = np.repeat([0, 1, 2], [8, 12, 12])
WIDE = dict(wide=np.float64)  # phases and tables that are not rounded
FOLDED = dict(gives="scores", score_scale=128**-0.5, head_dim=128)

# -- right ones --------------------------------------------------------------------------------------------------------

model("llama_big_base", "LLAMA", usual(L))
model("llama31", "LLAMA31", usual(L31, **WIDE))
model("yarn", "YARN", usual(Y, YF), head_dim=128)
model("yarn_mscale_ratio", "MSCALE", usual(MS, MF / (0.05 * math.log(40.0) + 1.0), **WIDE))
model("gpt_oss_yarn_without_rounding", "OSS", usual(yarn(OSS, 150000.0, 32.0, 4096, truncate=False), OF))
model("linear_positions_divided", "LINEAR", usual(power(64, 10000.0), at=lambda p: p.astype(np.float64) / 4.0))
model("gptneox", "NEOX", usual(10000.0 ** -(np.arange(8) / 8.0), **WIDE), kv_heads=4)
model("phi_growing_table", "PHI", GrowingTable(P32), kv_heads=4, head_dim=80)
model("gptj", "GPTJ", usual(10000.0 ** -(np.arange(16) / 16.0), turn=neighbours, **WIDE), kv_heads=4)
model("cohere", "COHERE", usual(power(64, 8e6), turn=neighbours))
model("glm_half_the_features_passing", "GLM", usual(P32, turn=neighbours))
# The context never exceeds the original one, so the short factors hold and the attention factor is 1.
model("phi3_short_factors", "PHI3", usual(P32 / np.array(SHORT, np.float32)), kv_heads=4, head_dim=32)
model("proportional_zeros", "PROPORTIONAL", usual(np.concatenate([Q2[:16], np.zeros(16, np.float32)])))
model("qwen2vl_split_sections", "QWEN2VL", along_axes(Q2, BY_SECTIONS), axes=3)
# Axes take turns pair by pair until their sections are used up, the first axis has the rest.
model("qwen3vl_interleaved", "QWEN3VL", along_axes(Q3, np.r_[np.arange(27) % 3, [0] * 5]), axes=3)
model("plain_frequencies", PLAIN, usual(PLAIN, **WIDE))
model("custom_frequencies", ODD, usual(ODD, **WIDE))
model("grouped_scores", "LLAMA", scored(usual(L, **WIDE)), **SCORES)
model("scores_of_neighbours", "COHERE", scored(usual(power(64, 8e6), turn=neighbours)), **SCORES)
# The attention factor squared within the scale, positions counted from the row's least.
model("yarn_scores_factor_folded_into_scale", "YARN",
      scored(usual(Y, at=lambda p: p - p.min(axis=1, keepdims=True)), 128**-0.5 * YF**2), **FOLDED)  # fmt: skip


# -- wrong ones --------------------------------------------------------------------------------------------------------


def wrong(name, config, apply, **options):
    """Enter a wrong model."""
    model(name, config, apply, *FINDINGS[name], **options)


def overwritten(x, cos, sin):
    """The in-place update that reads what it has just written."""
    y, n = x.copy(), cos.shape[-1]
    y[..., :n] = y[..., :n] * cos - y[..., n:] * sin
    y[..., n:] = y[..., n:] * cos + y[..., :n] * sin
    return y


def mirrored(x, cos, sin):
    """A reflection: the second row of the matrix has the wrong signs."""
    n = cos.shape[-1]
    return np.concatenate([x[..., :n] * cos + x[..., n:] * sin, x[..., :n] * sin - x[..., n:] * cos], -1)


def all_heads_but_the_last(x, cos, sin):
    """All heads but the last are turned."""
    return np.concatenate([halves(x[:, :-1], cos, sin), x[:, -1:]], axis=1)


def whole_blocks_of_tokens(x, cos, sin):
    """Tokens past the last full block of four stay as they are."""
    whole = x.shape[2] // 4 * 4
    return np.concatenate([halves(x[:, :, :whole], cos[:, :, :whole], sin[:, :, :whole]), x[:, :, whole:]], axis=2)


def remembered_by_length():
    """Positions kept under the number of tokens, whatever those of a later call are."""
    kept = {}
    return usual(L, at=lambda p: kept.setdefault(p.shape, p))


def running_sum():
    """Angles as a running sum of float32 steps."""
    made = GrowingTable(L, 1)
    steps = np.cumsum(np.broadcast_to(L, (8192, 32)), axis=0, dtype=np.float32)
    made.angle = np.concatenate([made.angle, steps])
    return made


def in_bf16(*tables):
    """Rounded to bfloat16."""
    return tuple(one.astype(ml_dtypes.bfloat16).astype(np.float32) for one in tables)


wrong("llama_neighbours_paired", "LLAMA", usual(L, turn=neighbours))
wrong("llama_small_base", "LLAMA", usual(power(64, 10000.0)))
wrong("llama31_scaling_dropped", "LLAMA31", usual(L))
wrong("llama_turned_backwards", "LLAMA", usual(-L))
wrong("llama_only_keys_turned", "LLAMA", both(usual(L, at=lambda p: 0 * p), usual(L)))
wrong("llama_query_one_late", "LLAMA", both(usual(L, at=lambda p: p + 1), usual(L)))
wrong("llama_keys_turned_twice", "LLAMA", both(usual(L), usual(L, at=lambda p: 2 * p)))
wrong("llama_positions_modulo_table", "LLAMA", usual(L, at=lambda p: p % 4096))
wrong("llama_positions_ignored", "LLAMA", usual(L, at=lambda p: np.arange(p.shape[1]) + 0 * p))
wrong("llama_first_row_positions", "LLAMA", usual(L, at=lambda p: np.broadcast_to(p[:1], p.shape)))
wrong("llama_positions_in_bfloat16", "LLAMA", usual(L, at=lambda p: p.astype(ml_dtypes.bfloat16)))
wrong("llama31_positions_in_int16", "LLAMA31", usual(L31, at=lambda p: p.astype(np.int16)))
wrong("llama_bfloat16_tables", "LLAMA", usual(L, tables=in_bf16))
wrong("llama_float16_frequencies", "LLAMA", usual(L.astype(np.float16)))
wrong("llama_running_sum_of_angles", "LLAMA", running_sum())
wrong("llama_rough_two_pi", "LLAMA", usual(L, angles=lambda angle: np.fmod(angle, np.float32(6.2832))))
wrong("llama_last_pair_missing", "LLAMA", usual(np.append(L[:-1], np.float32(0))))
wrong("llama_cos_and_sin_swapped", "LLAMA", usual(L, tables=lambda cos, sin: (sin, cos)))
wrong("llama_overwritten_half", "LLAMA", usual(L, turn=overwritten))
wrong("llama_mirrored", "LLAMA", usual(L, turn=mirrored))
wrong("llama_last_head_left_out", "LLAMA", usual(L, turn=all_heads_but_the_last))
wrong("llama_tail_tokens_left_out", "LLAMA", usual(L, turn=whole_blocks_of_tokens))
wrong("llama_single_token_one_late", "LLAMA", usual(L, at=lambda p: p + (p.shape[1] == 1)))
wrong("llama_query_scaled", "LLAMA", both(usual(L, 0.125), usual(L)))
wrong("llama_tables_kept_by_length", "LLAMA", remembered_by_length())
wrong("llama_table_grown_from_zero", "LLAMA", GrowingTable(L, 2048, start=lambda rows: 0))
wrong("linear_factor_twice", "LINEAR", usual(power(64, 10000.0) / 16))
wrong("yarn_factor_missing", "YARN", usual(Y), head_dim=128)
wrong("yarn_factor_on_keys_only", "YARN", both(usual(Y), usual(Y, YF)), head_dim=128)
wrong("yarn_betas_swapped", "YARN", usual(yarn(power(128, 1e6), 1e6, 4.0, 8192, 1, 32), YF), head_dim=128)
wrong("yarn_ramp_from_long_limit", "YARN", usual(yarn(power(128, 1e6), 1e6, 4.0, 32768), YF), head_dim=128)
wrong("gpt_oss_ramp_rounded", "OSS", usual(yarn(OSS, 150000.0, 32.0, 4096), OF))
wrong("mscale_ratio_ignored", "MSCALE", usual(MS, MF))
wrong("gptneox_exponent_over_head", "NEOX", usual(power(16, 10000.0, 64)), kv_heads=4)
wrong("phi_whole_head", "PHI", usual(power(80, 10000.0)), kv_heads=4, head_dim=80)
wrong("gptj_halves_paired", "GPTJ", usual(P32), kv_heads=4)
wrong("cohere_frequencies_shifted", "COHERE", usual(power(66, 8e6, 64)[1:], turn=neighbours))
wrong("phi3_long_factors_used", "PHI3", usual(P32 / np.array(LONG)), kv_heads=4, head_dim=32)
wrong("proportional_as_partial", "PROPORTIONAL", usual(power(32, 1e6)))
wrong("qwen2vl_height_width_swapped", "QWEN2VL", along_axes(Q2, np.repeat([0, 2, 1], [8, 12, 12])), axes=3)
wrong("qwen2vl_only_time", "QWEN2VL", along_axes(Q2, np.zeros(32, int)), axes=3)
wrong("qwen3vl_sections_contiguous", "QWEN3VL", along_axes(Q3, np.repeat([0, 1, 2], [14, 9, 9])), axes=3)
wrong("qwen3vl_turns_never_end", "QWEN3VL", along_axes(Q3, np.arange(32) % 3), axes=3)
wrong("plain_degrees", PLAIN, usual(PLAIN, angles=np.radians))
wrong("plain_frequencies_reversed", PLAIN, usual(PLAIN[::-1]))
wrong("custom_frequencies_sorted", ODD, usual(np.sort(ODD)[::-1]))
wrong("scores_keys_backwards", "LLAMA", scored(both(usual(L), usual(L, at=lambda p: -p))), **SCORES)
wrong(
    "scores_groups_tiled",
    "LLAMA",
    scored(usual(L), spread=lambda k, n, axis: np.tile(k, (1, n, 1, 1))),
    **SCORES,
)
wrong("yarn_scores_factor_once", "YARN", scored(both(usual(Y, YF), usual(Y)), 128**-0.5), **FOLDED)
wrong("stablelm_scores_without_rest", "STABLE",
      scored(lambda q, k, p: usual(P16)(q[..., :16], k[..., :16], p)), kv_heads=4, **SCORES)  # fmt: skip
