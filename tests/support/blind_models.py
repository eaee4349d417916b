"""Right and wrong rotary position embeddings, written without sight of the audit that is to tell them apart.

`blind_models.json` has configs, and what the audit says of the wrong ones, whose names say what is wrong with them:
kinds of first findings, and words. Mistakes that it did not tell, or told in other words, when it first met them were
taught to it since: its verdicts on these are no estimate of how it does on others.
"""

import json
import math
import pathlib
from typing import NamedTuple

import ml_dtypes
import numpy as np


class Blind(NamedTuple):
    """One callable under audit: a factory, what is meant, its shapes, and whether it is wrong."""

    name: str
    apply: object
    config: object
    options: dict
    wrong: bool


MODELS = []


def model(config, heads=4, kv_heads=2, head_dim=64, wrong=False, **more):
    """Enter the decorated factory into MODELS; a text is the name of a config."""
    meant = CONFIGS[config] if isinstance(config, str) else config

    def enter(factory):
        options = dict(heads=heads, kv_heads=kv_heads, head_dim=head_dim, **more)
        MODELS.append(Blind(factory.__name__, factory, meant, options, wrong))
        return factory

    return enter


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
    n, y = cos.shape[-1], np.array(x, np.float32)
    y[..., 0 : 2 * n : 2] = x[..., 0 : 2 * n : 2] * cos - x[..., 1 : 2 * n : 2] * sin
    y[..., 1 : 2 * n : 2] = x[..., 1 : 2 * n : 2] * cos + x[..., 0 : 2 * n : 2] * sin
    return y.astype(x.dtype)


def tables(positions, freq, factor=1.0, angles=lambda angle: angle):
    """Float32 cosines and sines of shape (batch, 1, tokens, half)."""
    angle = angles(positions[:, None, :, None].astype(np.float32) * np.asarray(freq, np.float32))
    return np.cos(angle) * np.float32(factor), np.sin(angle) * np.float32(factor)


def usual(freq, factor=1.0, turn=halves, at=lambda positions: positions, angles=lambda angle: angle):
    """An ordinary callable: both sides turned by the same tables."""

    def apply(q, k, positions):
        cos, sin = tables(at(positions), freq, factor, angles)
        return turn(q, cos, sin), turn(k, cos, sin)

    return apply


def scored(rotate, scale=0.125, spread=np.repeat):
    """Turn a rotating callable into one of scores, keys spread over the queries' heads."""

    def apply(q, k, positions):
        q, k = rotate(q, k, positions)
        return np.einsum("bhqd,bhkd->bhqk", q, spread(k, q.shape[1] // k.shape[1], axis=1)) * np.float32(scale)

    return apply


def yarn(dim, base, factor, original, fast=32, slow=1, cut=True):
    """YaRN frequencies: a ramp between the plain ones and those divided by factor."""

    def index(turns):
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = index(fast), index(slow)
    if cut:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp, plain = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1), power(dim, base)
    return (plain * (1 - ramp) + plain / factor * ramp).astype(np.float32)


def llama3(base=500000.0, dim=64, factor=8.0, low=1.0, high=4.0, original=8192):
    """Llama 3.1 frequencies, one after another as in the published code."""
    out = []
    for freq in power(dim, base).tolist():
        wave = 2 * math.pi / freq
        smooth = min(max((original / wave - low) / (high - low), 0.0), 1.0)
        out.append((1 - smooth) * freq / factor + smooth * freq)
    return np.array(out, np.float32)


# -- right ones --------------------------------------------------------------------------------------------------------


@model("LLAMA")
def llama_big_base_rotate_half():
    """Tables doubled to the full width and a half-turned copy of the input."""
    inv = 1.0 / (np.float32(500000.0) ** (np.arange(0, 64, 2, dtype=np.float32) / 64))

    def rotate_half(x):
        return np.concatenate((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), axis=-1)

    def apply(q, k, positions):
        emb = positions[..., None].astype(np.float32) * inv
        emb = np.concatenate((emb, emb), axis=-1)[:, None]
        return tuple((x * np.cos(emb) + rotate_half(x) * np.sin(emb)).astype(x.dtype) for x in (q, k))

    return apply


@model("LLAMA31")
def llama31_complex_halves():
    """Each half-split pair as one complex number, turned by a unit phase."""
    freq = llama3()

    def turn(x, phase):
        z = (x[..., :32] + 1j * x[..., 32:]) * phase
        return np.concatenate([z.real, z.imag], axis=-1).astype(x.dtype)

    def apply(q, k, positions):
        phase = np.exp(1j * (positions[:, None, :, None] * freq.astype(np.float64)))
        return turn(q, phase), turn(k, phase)

    return apply


@model("YARN", head_dim=128)
def yarn_two_by_two_blocks():
    """One two-by-two matrix a pair and token, attention factor in the matrices."""
    freq, factor = yarn(128, 1e6, 4.0, 8192), 0.1 * math.log(4.0) + 1.0

    def apply(q, k, positions):
        cos, sin = tables(positions, freq, factor)
        blocks = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)[:, 0]

        def turn(x):
            y = np.einsum("btnij,bhtjn->bhtin", blocks, x.reshape(*x.shape[:3], 2, 64))
            return y.reshape(x.shape).astype(x.dtype)

        return turn(q), turn(k)

    return apply


@model("MSCALE")
def yarn_mscale_ratio_float64():
    """The attention factor as a ratio of two mscales, angles in float64."""
    freq = yarn(64, 10000.0, 40.0, 4096).astype(np.float64)
    factor = (0.1 * 1.0 * math.log(40.0) + 1.0) / (0.1 * 0.5 * math.log(40.0) + 1.0)

    def apply(q, k, positions):
        angle = positions[:, None, :, None] * freq
        cos, sin = factor * np.cos(angle), factor * np.sin(angle)
        return halves(q, cos, sin), halves(k, cos, sin)

    return apply


@model("OSS")
def gpt_oss_yarn_without_rounding():
    """YaRN with bounds that are not rounded to whole indices."""
    return usual(yarn(64, 150000.0, 32.0, 4096, cut=False), 0.1 * math.log(32.0) + 1.0)


@model("LINEAR")
def linear_positions_divided():
    """Positions, not frequencies, divided by the factor."""
    return usual(power(64, 10000.0), at=lambda positions: positions.astype(np.float64) / 4.0)


@model("NEOX", kv_heads=4)
def gptneox_pair_by_pair():
    """A loop over pairs, in copies whose untouched features pass."""

    def apply(q, k, positions):
        q, k, rotary = q.copy(), k.copy(), 16
        for i in range(rotary // 2):
            angle = positions[:, None, :] * 10000.0 ** (-2.0 * i / rotary)
            c, s, j = np.cos(angle), np.sin(angle), i + rotary // 2
            for x in (q, k):
                x[..., i], x[..., j] = c * x[..., i] - s * x[..., j], s * x[..., i] + c * x[..., j]
        return q, k

    return apply


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


@model("PHI", kv_heads=4, head_dim=80)
def phi_growing_table():
    """Part of the head rotated from a table that grows."""
    return GrowingTable(power(32, 10000.0))


@model("GPTJ", kv_heads=4)
def gptj_complex_view():
    """Neighbouring features viewed as complex128, the rest passing."""
    freq = 10000.0 ** -(np.arange(16) / 16.0)

    def turn(x, positions):
        z = np.ascontiguousarray(x[..., :32], np.float64).view(np.complex128)
        z = z * np.exp(1j * positions[:, None, :, None] * freq)
        return np.concatenate([z.view(np.float64), x[..., 32:]], -1).astype(x.dtype)

    return lambda q, k, positions: (turn(q, positions), turn(k, positions))


@model("COHERE")
def cohere_repeated_tables():
    """Each table entry repeated for its two neighbours."""

    def apply(q, k, positions):
        cos, sin = (np.repeat(t, 2, axis=-1) for t in tables(positions, power(64, 8e6)))

        def turn(x):
            crossed = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
            return (x * cos + crossed * sin).astype(x.dtype)

        return turn(q), turn(k)

    return apply


@model("GLM")
def glm_tokens_first_neighbours():
    """Tokens before heads inside, neighbours turned, half the features passing."""

    def apply(q, k, positions):
        cos, sin = (t.transpose(0, 2, 1, 3) for t in tables(positions, power(32, 10000.0)))
        return tuple(neighbours(x.swapaxes(1, 2), cos, sin).swapaxes(1, 2) for x in (q, k))

    return apply


@model("PHI3", kv_heads=4, head_dim=32)
def phi3_short_factors_in_short_context():
    """The context never exceeds the original one, so the short factors hold and the attention factor is 1."""
    return usual(power(32, 10000.0) / np.array(SHORT, np.float32))


@model("PROPORTIONAL")
def proportional_zero_frequencies():
    """Exponents and pairs over the full head, the last half of the pairs standing still."""
    return usual(np.concatenate([power(64, 1e6)[:16], np.zeros(16, np.float32)]))


def scale_axis(freq, owner, turn=halves):
    """M-RoPE: pair i follows the axis owner[i]."""

    def apply(q, k, positions):
        angle = (positions[..., owner] * freq).astype(np.float32)[:, None]
        return turn(q, np.cos(angle), np.sin(angle)), turn(k, np.cos(angle), np.sin(angle))

    return apply


@model("QWEN2VL", axes=3)
def qwen2vl_split_sections():
    """Tables of three axes split into sections and put together again."""

    def apply(q, k, positions):
        per_axis = [tables(positions[..., axis], power(64, 1e6)) for axis in range(3)]
        cos, sin = (
            np.concatenate([np.split(per_axis[a][part], [8, 20], axis=-1)[a] for a in range(3)], axis=-1)
            for part in range(2)
        )
        return halves(q, cos, sin), halves(k, cos, sin)

    return apply


@model("QWEN3VL", axes=3)
def qwen3vl_interleaved_sections():
    """Axes take turns pair by pair until their sections are used up, the first axis has the rest."""
    return scale_axis(power(64, 5e6), np.array([i % 3 if i < 27 else 0 for i in range(32)]))


@model(PLAIN)
def plain_frequencies_angle_addition():
    """Coarse and fine tables joined by the sum formulas, in float64."""

    def apply(q, k, positions):
        coarse, fine = positions // 128, positions % 128
        a = np.outer(np.arange(coarse.max() + 1) * 128, PLAIN)[coarse][:, None]
        b = np.outer(np.arange(128), PLAIN)[fine][:, None]
        cos = np.cos(a) * np.cos(b) - np.sin(a) * np.sin(b)
        sin = np.sin(a) * np.cos(b) + np.cos(a) * np.sin(b)
        return halves(q, cos, sin), halves(k, cos, sin)

    return apply


@model(ODD)
def custom_frequencies_repeated_squaring():
    """Phases from the binary digits of the position, in complex128; 48 of 64 features rotated."""

    def apply(q, k, positions):
        phase, step, left = np.ones(1, complex), np.exp(1j * ODD), positions[:, None, :, None]
        while left.any():
            phase, step, left = np.where(left & 1, phase * step, phase), step * step, left >> 1
        phase = np.broadcast_to(phase, (*left.shape[:3], 24))
        return halves(q, phase.real, phase.imag), halves(k, phase.real, phase.imag)

    return apply


@model("LLAMA", **SCORES)
def grouped_scores_from_relative_turns():
    """Scores straight from the distance of query and key, no vector rotated by itself."""
    freq = power(64, 500000.0).astype(np.float64)

    def apply(q, k, positions):
        k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
        q, k = (x[..., :32].astype(np.float64) + 1j * x[..., 32:] for x in (q, k))
        phase = np.exp(1j * (positions[:, :, None] - positions[:, None, :])[..., None] * freq)
        return (np.einsum("bhqn,bhkn,bqkn->bhqk", q, k.conj(), phase).real * 0.125).astype(np.float32)

    return apply


@model("COHERE", **SCORES)
def scores_of_gathered_neighbours():
    """Neighbours gathered into halves on both sides before the turn; scores do not see the order."""
    rotate = usual(power(64, 8e6))
    order = np.r_[0:64:2, 1:64:2]
    return scored(lambda q, k, positions: rotate(q[..., order], k[..., order], positions))


@model("YARN", head_dim=128, gives="scores", score_scale=128**-0.5)
def yarn_scores_factor_folded_into_scale():
    """The attention factor squared within the scale, positions counted from the row's least."""
    rotate = usual(yarn(128, 1e6, 4.0, 8192), at=lambda positions: positions - positions.min(axis=1, keepdims=True))
    return scored(rotate, scale=128**-0.5 * (0.1 * math.log(4.0) + 1.0) ** 2)


# -- wrong ones --------------------------------------------------------------------------------------------------------


def wrong(name, config, factory, **options):
    """Enter a wrong model whose factory is a single expression."""
    factory.__name__ = name
    model(config, wrong=True, **options)(factory)


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

wrong("llama_neighbours_paired", "LLAMA", lambda: usual(L, turn=neighbours))
wrong("llama_small_base", "LLAMA", lambda: usual(power(64, 10000.0)))
wrong("llama31_scaling_dropped", "LLAMA31", lambda: usual(L))
wrong("llama_turned_backwards", "LLAMA", lambda: usual(-L))
wrong("llama_only_keys_turned", "LLAMA", lambda: sides(L, q_at=lambda p: 0 * p))
wrong("llama_query_one_late", "LLAMA", lambda: sides(L, q_at=lambda p: p + 1))
wrong("llama_keys_turned_twice", "LLAMA", lambda: sides(L, k_at=lambda p: 2 * p))
wrong("llama_positions_modulo_table", "LLAMA", lambda: usual(L, at=lambda p: p % 4096))
wrong(
    "llama_positions_ignored", "LLAMA", lambda: usual(L, at=lambda p: np.broadcast_to(np.arange(p.shape[1]), p.shape))
)
wrong("llama_first_row_positions", "LLAMA", lambda: usual(L, at=lambda p: np.broadcast_to(p[:1], p.shape)))
wrong("llama_positions_in_bfloat16", "LLAMA", lambda: usual(L, at=lambda p: p.astype(ml_dtypes.bfloat16)))
wrong("llama31_positions_in_int16", "LLAMA31", lambda: usual(llama3(), at=lambda p: p.astype(np.int16)))
wrong(
    "llama_bfloat16_tables",
    "LLAMA",
    lambda: usual(L, turn=lambda x, *t: halves(x, *(a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in t))),
)
wrong("llama_float16_frequencies", "LLAMA", lambda: usual(L.astype(np.float16)))
wrong("llama_running_sum_of_angles", "LLAMA", running_sum)
wrong("llama_rough_two_pi", "LLAMA", lambda: usual(L, angles=lambda angle: np.fmod(angle, np.float32(6.2832))))
wrong("llama_last_pair_missing", "LLAMA", lambda: usual(np.append(L[:-1], np.float32(0))))
wrong("llama_cos_and_sin_swapped", "LLAMA", lambda: usual(L, turn=lambda x, cos, sin: halves(x, sin, cos)))
wrong("llama_overwritten_half", "LLAMA", lambda: usual(L, turn=overwritten))
wrong("llama_mirrored", "LLAMA", lambda: usual(L, turn=mirrored))
wrong("llama_last_head_left_out", "LLAMA", lambda: usual(L, turn=all_heads_but_the_last))
wrong("llama_tail_tokens_left_out", "LLAMA", lambda: usual(L, turn=whole_blocks_of_tokens))
wrong("llama_single_token_one_late", "LLAMA", lambda: usual(L, at=lambda p: p + (p.shape[1] == 1)))
wrong("llama_query_scaled", "LLAMA", lambda: sides(L, q_factor=0.125))
wrong("llama_tables_kept_by_length", "LLAMA", remembered_by_length)
wrong("llama_table_grown_from_zero", "LLAMA", lambda: GrowingTable(L, 2048, start=lambda rows: 0))
wrong("linear_factor_twice", "LINEAR", lambda: usual(power(64, 10000.0) / 16))
wrong("yarn_factor_missing", "YARN", lambda: usual(Y), head_dim=128)
wrong("yarn_factor_on_keys_only", "YARN", lambda: sides(Y, k_factor=YF), head_dim=128)
wrong("yarn_betas_swapped", "YARN", lambda: usual(yarn(128, 1e6, 4.0, 8192, 1, 32), YF), head_dim=128)
wrong("yarn_ramp_from_long_limit", "YARN", lambda: usual(yarn(128, 1e6, 4.0, 32768), YF), head_dim=128)
wrong("gpt_oss_ramp_rounded", "OSS", lambda: usual(yarn(64, 150000.0, 32.0, 4096), 0.1 * math.log(32.0) + 1.0))
wrong("mscale_ratio_ignored", "MSCALE", lambda: usual(yarn(64, 10000.0, 40.0, 4096), 0.1 * math.log(40.0) + 1.0))
wrong("gptneox_exponent_over_head", "NEOX", lambda: usual(power(16, 10000.0, 64)), kv_heads=4)
wrong("phi_whole_head", "PHI", lambda: usual(power(80, 10000.0)), kv_heads=4, head_dim=80)
wrong("gptj_halves_paired", "GPTJ", lambda: usual(power(32, 10000.0)), kv_heads=4)
wrong("cohere_frequencies_shifted", "COHERE", lambda: usual(power(66, 8e6, 64)[1:], turn=neighbours))
wrong(
    "phi3_long_factors_used",
    "PHI3",
    lambda: usual(power(32, 10000.0) / np.array(LONG)),
    kv_heads=4,
    head_dim=32,
)
wrong("proportional_as_partial", "PROPORTIONAL", lambda: usual(power(32, 1e6)))
wrong("qwen2vl_height_width_swapped", "QWEN2VL", lambda: scale_axis(Q2, np.repeat([0, 2, 1], [8, 12, 12])), axes=3)
wrong("qwen2vl_only_time", "QWEN2VL", lambda: scale_axis(Q2, np.zeros(32, int)), axes=3)
wrong("qwen3vl_sections_contiguous", "QWEN3VL", lambda: scale_axis(Q3, np.repeat([0, 1, 2], [14, 9, 9])), axes=3)
wrong("qwen3vl_turns_never_end", "QWEN3VL", lambda: scale_axis(Q3, np.arange(32) % 3), axes=3)
wrong("plain_degrees", PLAIN, lambda: usual(PLAIN, angles=np.radians))
wrong("plain_frequencies_reversed", PLAIN, lambda: usual(PLAIN[::-1]))
wrong("custom_frequencies_sorted", ODD, lambda: usual(np.sort(ODD)[::-1]))
wrong("scores_keys_backwards", "LLAMA", lambda: scored(sides(L, k_at=lambda p: -p)), **SCORES)
wrong(
    "scores_groups_tiled",
    "LLAMA",
    lambda: scored(usual(L), spread=lambda k, n, axis: np.concatenate([k] * n, axis)),
    **SCORES,
)
wrong(
    "yarn_scores_factor_once",
    "YARN",
    lambda: scored(sides(Y, q_factor=YF), 128**-0.5),
    gives="scores",
    score_scale=128**-0.5,
    head_dim=128,
)
wrong(
    "stablelm_scores_without_rest",
    "STABLE",
    lambda: scored(lambda q, k, p: usual(power(16, 10000.0))(q[..., :16], k[..., :16], p)),
    kv_heads=4,
    **SCORES,
)

WRONG = [one for one in MODELS if one.wrong]
