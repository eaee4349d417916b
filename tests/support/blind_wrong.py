"""Wrong rotary position embeddings, written without sight of the audit that is to tell them from right ones."""

import math

import ml_dtypes
import numpy as np
from blind_models import (
    COHERE,
    GPTJ,
    LINEAR,
    LLAMA,
    LLAMA31,
    MODELS,
    MSCALE,
    NEOX,
    ODD,
    OSS,
    PHI,
    PHI3,
    PLAIN,
    PROPORTIONAL,
    QWEN2VL,
    QWEN3VL,
    SCORES,
    STABLE,
    YARN,
    GrowingTable,
    by_axis,
    halves,
    llama3,
    model,
    neighbours,
    power,
    scored,
    tables,
    usual,
    yarn,
)


def wrong(name, config, sentence, factory, **options):
    """Enter a wrong model whose factory is a single expression."""
    factory.__name__ = name
    model(config, wrong=sentence, **options)(factory)


def sides(freq, q_at=lambda p: p, k_at=lambda p: p, q_factor=1.0, k_factor=1.0, turn=halves):
    """A callable whose queries and keys may be treated differently."""

    def apply(q, k, positions):
        return turn(q, *tables(q_at(positions), freq, q_factor)), turn(k, *tables(k_at(positions), freq, k_factor))

    return apply


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
    """Tables kept under the number of tokens, whatever the positions of a later call are."""
    kept = {}

    def apply(q, k, positions):
        cos, sin = kept.setdefault(positions.shape, tables(positions, power(64, 500000.0)))
        return halves(q, cos, sin), halves(k, cos, sin)

    return apply


def running_sum():
    """Angles as a running sum of float32 steps."""
    angle = np.cumsum(np.broadcast_to(power(64, 500000.0), (8192, 32)), axis=0, dtype=np.float32)
    angle = np.concatenate([np.zeros((1, 32), np.float32), angle])

    def apply(q, k, positions):
        cos, sin = np.cos(angle[positions])[:, None], np.sin(angle[positions])[:, None]
        return halves(q, cos, sin), halves(k, cos, sin)

    return apply


L, Y, Q2, Q3 = power(64, 500000.0), yarn(128, 1e6, 4.0, 8192), power(64, 1e6), power(64, 5e6)
YF = 0.1 * math.log(4.0) + 1.0

wrong(
    "llama_neighbours_paired",
    LLAMA,
    "Features 2i and 2i+1 are paired, not i and i+32.",
    lambda: usual(L, turn=neighbours),
)
wrong("llama_small_base", LLAMA, "The base is 10000, not 500000.", lambda: usual(power(64, 10000.0)))
wrong("llama31_scaling_dropped", LLAMA31, "The Llama 3.1 scaling is ignored.", lambda: usual(L))
wrong("llama_turned_backwards", LLAMA, "Queries and keys are turned in the opposite direction.", lambda: usual(-L))
wrong("llama_only_keys_turned", LLAMA, "Queries are not rotated at all.", lambda: sides(L, q_at=lambda p: 0 * p))
wrong(
    "llama_query_one_late",
    LLAMA,
    "Queries are rotated at their position plus one, keys at their position.",
    lambda: sides(L, q_at=lambda p: p + 1),
)
wrong("llama_keys_turned_twice", LLAMA, "Keys are rotated twice.", lambda: sides(L, k_at=lambda p: 2 * p))
wrong(
    "llama_positions_modulo_table",
    LLAMA,
    "Positions wrap around after 4096, half of the allowed range.",
    lambda: usual(L, at=lambda p: p % 4096),
)
wrong(
    "llama_positions_ignored",
    LLAMA,
    "Tokens are counted from zero and the given positions are ignored.",
    lambda: usual(L, at=lambda p: np.broadcast_to(np.arange(p.shape[1]), p.shape)),
)
wrong(
    "llama_first_row_positions",
    LLAMA,
    "All rows of a batch use the positions of the first row.",
    lambda: usual(L, at=lambda p: np.broadcast_to(p[:1], p.shape)),
)
wrong(
    "llama_positions_in_bfloat16",
    LLAMA,
    "Positions are rounded to bfloat16, inexact above 256 (subtle).",
    lambda: usual(L, at=lambda p: p.astype(ml_dtypes.bfloat16)),
)
wrong(
    "llama31_positions_in_int16",
    LLAMA31,
    "Positions are 16-bit integers and turn negative from 32768 on.",
    lambda: usual(llama3(), at=lambda p: p.astype(np.int16)),
)
wrong(
    "llama_bfloat16_tables",
    LLAMA,
    "Cosines and sines are rounded to bfloat16.",
    lambda: usual(L, turn=lambda x, *t: halves(x, *(a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in t))),
)
wrong("llama_float16_frequencies", LLAMA, "Frequencies are rounded to float16.", lambda: usual(L.astype(np.float16)))
wrong("llama_running_sum_of_angles", LLAMA, "Angles are a running sum in float32 and drift (subtle).", running_sum)
wrong(
    "llama_rough_two_pi",
    LLAMA,
    "Angles are reduced by 6.2832 in place of two pi and drift with position (subtle).",
    lambda: usual(L, angles=lambda angle: np.fmod(angle, np.float32(6.2832))),
)
wrong(
    "llama_last_pair_missing",
    LLAMA,
    "The slowest pair, features 31 and 63, is not rotated (subtle).",
    lambda: usual(np.append(L[:-1], np.float32(0))),
)
wrong(
    "llama_cos_and_sin_swapped",
    LLAMA,
    "Cosine and sine are swapped: a turn by a quarter minus the angle.",
    lambda: usual(L, turn=lambda x, cos, sin: halves(x, sin, cos)),
)
wrong(
    "llama_overwritten_half",
    LLAMA,
    "The second half is computed from the already rotated first half.",
    lambda: usual(L, turn=overwritten),
)
wrong("llama_mirrored", LLAMA, "Each pair is reflected in place of being rotated.", lambda: usual(L, turn=mirrored))
wrong(
    "llama_last_head_left_out",
    LLAMA,
    "The last head of the queries and of the keys is not rotated.",
    lambda: usual(L, turn=all_heads_but_the_last),
)
wrong(
    "llama_tail_tokens_left_out",
    LLAMA,
    "Tokens past the last full block of four are not rotated (subtle).",
    lambda: usual(L, turn=whole_blocks_of_tokens),
)
wrong(
    "llama_single_token_one_late",
    LLAMA,
    "A call of one single token rotates it at its position plus one (subtle).",
    lambda: usual(L, at=lambda p: p + (p.shape[1] == 1)),
)
wrong("llama_query_scaled", LLAMA, "Queries are also multiplied by 1/8.", lambda: sides(L, q_factor=0.125))
wrong(
    "llama_tables_kept_by_length",
    LLAMA,
    "Tables are kept by shape: a second call of the same shape reuses the positions of the first.",
    remembered_by_length,
)
wrong(
    "llama_table_grown_from_zero",
    LLAMA,
    "Table rows added beyond position 2047 start from position zero again.",
    lambda: GrowingTable(L, 2048, start=lambda rows: 0),
)
wrong("linear_factor_twice", LINEAR, "The linear factor 4 is applied twice.", lambda: usual(power(64, 10000.0) / 16))
wrong("yarn_factor_missing", YARN, "YaRN's attention factor is not applied.", lambda: usual(Y), head_dim=128)
wrong(
    "yarn_factor_on_keys_only",
    YARN,
    "The attention factor is applied to keys and not to queries.",
    lambda: sides(Y, k_factor=YF),
    head_dim=128,
)
wrong(
    "yarn_betas_swapped",
    YARN,
    "beta_fast and beta_slow are swapped, which turns the ramp around.",
    lambda: usual(yarn(128, 1e6, 4.0, 8192, 1, 32), YF),
    head_dim=128,
)
wrong(
    "yarn_ramp_from_long_limit",
    YARN,
    "The ramp is computed from 32768 in place of the original 8192 (subtle).",
    lambda: usual(yarn(128, 1e6, 4.0, 32768), YF),
    head_dim=128,
)
wrong(
    "gpt_oss_ramp_rounded",
    OSS,
    "The bounds of the ramp are rounded although truncate is false (subtle).",
    lambda: usual(yarn(64, 150000.0, 32.0, 4096), 0.1 * math.log(32.0) + 1.0),
)
wrong(
    "mscale_ratio_ignored",
    MSCALE,
    "The attention factor ignores mscale and mscale_all_dim.",
    lambda: usual(yarn(64, 10000.0, 40.0, 4096), 0.1 * math.log(40.0) + 1.0),
)
wrong(
    "gptneox_exponent_over_head",
    NEOX,
    "Exponents are divided by the head size 64 in place of the rotated 16.",
    lambda: usual(power(16, 10000.0, 64)),
    kv_heads=4,
)
wrong(
    "phi_whole_head",
    PHI,
    "The whole head of 80 is rotated in place of its first 32 features.",
    lambda: usual(power(80, 10000.0)),
    kv_heads=4,
    head_dim=80,
)
wrong(
    "gptj_halves_paired",
    GPTJ,
    "Features i and i+16 are paired in place of neighbours.",
    lambda: usual(power(32, 10000.0)),
    kv_heads=4,
)
wrong(
    "cohere_frequencies_shifted",
    COHERE,
    "Frequencies start at the second power, the first one being left out.",
    lambda: usual(power(66, 8e6, 64)[1:], turn=neighbours),
)
wrong(
    "phi3_long_factors_used",
    PHI3,
    "The long factors are used although the context is never past the original one.",
    lambda: usual(power(32, 10000.0) / np.array(PHI3["rope_scaling"]["long_factor"])),
    kv_heads=4,
    head_dim=32,
)
wrong(
    "proportional_as_partial",
    PROPORTIONAL,
    "The first 32 features are rotated among themselves, as partial rotary.",
    lambda: usual(power(32, 1e6)),
)
wrong(
    "qwen2vl_height_width_swapped",
    QWEN2VL,
    "The second and third axis change places.",
    lambda: by_axis(Q2, np.repeat([0, 2, 1], [8, 12, 12])),
    axes=3,
)
wrong(
    "qwen2vl_only_time",
    QWEN2VL,
    "All pairs follow the first axis and the other two are ignored.",
    lambda: by_axis(Q2, np.zeros(32, int)),
    axes=3,
)
wrong(
    "qwen3vl_sections_contiguous",
    QWEN3VL,
    "Sections are contiguous blocks in place of taking turns.",
    lambda: by_axis(Q3, np.repeat([0, 1, 2], [14, 9, 9])),
    axes=3,
)
wrong(
    "qwen3vl_turns_never_end",
    QWEN3VL,
    "Axes take turns to the last pair, section lengths are ignored (subtle).",
    lambda: by_axis(Q3, np.arange(32) % 3),
    axes=3,
)
wrong("plain_degrees", PLAIN, "Angles are taken as degrees.", lambda: usual(PLAIN, angles=np.radians))
wrong("plain_frequencies_reversed", PLAIN, "Frequencies are used in reverse order.", lambda: usual(PLAIN[::-1]))
wrong("custom_frequencies_sorted", ODD, "Frequencies are sorted from fast to slow.", lambda: usual(np.sort(ODD)[::-1]))
wrong(
    "scores_keys_backwards",
    LLAMA,
    "Keys are turned backwards, so scores depend on the sum of the positions.",
    lambda: scored(sides(L, k_at=lambda p: -p)),
    **SCORES,
)
wrong(
    "scores_groups_tiled",
    LLAMA,
    "Query head h meets key head h mod 2 in place of h // 2.",
    lambda: scored(usual(L), spread=lambda k, n, axis: np.concatenate([k] * n, axis)),
    **SCORES,
)
wrong(
    "yarn_scores_factor_once",
    YARN,
    "Scores hold the attention factor once in place of its square.",
    lambda: scored(sides(Y, q_factor=YF), 128**-0.5),
    gives="scores",
    score_scale=128**-0.5,
    head_dim=128,
)
wrong(
    "stablelm_scores_without_rest",
    STABLE,
    "Scores leave out the 48 features that are not rotated.",
    lambda: scored(lambda q, k, p: usual(power(16, 10000.0))(q[..., :16], k[..., :16], p)),
    kv_heads=4,
    **SCORES,
)

WRONG = [one for one in MODELS if one.wrong]
