"""The precision budget: its bounds held against engines' arithmetic, emulated, at every position and in every dtype."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import rfrope
from rfrope import Rope
from rfrope.analysis import precision_budget
from rfrope.data import smollm2_heads

ROPE = Rope(rfrope.geometric(32, base=1e5), context=8192)
HEADS = smollm2_heads()
Q, K = (HEADS[f"previous_{one}"].astype(np.float64) for one in "qk")
NAMES = (
    *("__sincosf", "bfloat16 phases, bfloat16 table", "float32 phases, bfloat16 table", "exact, bfloat16 table"),
    *("exact, float16 table", "float32 phases, float32 table", "exact, float32 table", "float32 pairs", "exact"),
)


def rounded(x, dtype):
    """Values rounded to a type."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    return np.asarray(x).astype(dtype).astype(np.float64)


def waves(name, positions, frequencies):
    """Cos and sin as an engine forms them, in float64."""
    phases, _, table = name.partition(", ")
    if phases == "exact":
        cos, sin = rfrope.rotation_table(positions, frequencies)
    elif phases == "float32 pairs":  # as sums of two: products are exact in float64, and then rounded to 48 bits
        high = positions[:, None] * frequencies.astype(np.float32).astype(np.float64)
        low = positions[:, None] * (frequencies - frequencies.astype(np.float32))
        turns = np.remainder(high, 2.0 * np.pi) + low
        cos, sin = (rounded(f(turns), "float32") for f in (np.cos, np.sin))
    else:
        dtype = phases.partition(" ")[0]
        omega = rounded(frequencies, dtype)
        product = rounded(rounded(positions, dtype)[:, None] * omega, dtype).astype(np.float32)
        cos, sin = np.cos(product), np.sin(product)
    table = table.removesuffix(" table")
    return (rounded(one, table) if table else np.asarray(one, np.float64) for one in (cos, sin))


def logits(name, q, k, positions, dtype="float32", frequencies=ROPE.frequencies):
    """Logits of features turned as transformers does, every operation rounded."""
    turned = []
    for x in (q, k):
        (a, b), (cos, sin) = np.split(rounded(x, dtype), 2, axis=-1), waves(name, positions, frequencies)
        ac, bs, bc, as_ = (rounded(one, dtype) for one in (a * cos, b * sin, b * cos, a * sin))
        turned.append(rounded(np.concatenate([ac - bs, bc + as_], axis=-1), dtype))
    return turned[0] @ turned[1].T / math.sqrt(q.shape[-1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "__sincosf"])
def test_no_error_exceeds_its_bound(name, dtype):
    """Queries and keys of a head of SmolLM2, and normal ones, at the end of several contexts."""
    normal = np.random.default_rng(0).standard_normal((2, 169, 64))
    near = np.arange(169)
    for context in (169, 8192, 100_169, 2**24 + 1000):
        positions = near + context - 169
        for q, k in ((Q, K), normal):
            q, k = rounded(q, dtype), rounded(k, dtype)
            bound = precision_budget(q, k, ROPE, context, dtype=dtype).representation(name)
            far, exact = logits(name, q, k, positions, dtype), ROPE.scores(q, k, positions, positions) / 8.0
            error = np.max(np.abs(far - exact))
            assert error <= bound.error
            assert np.max(np.abs(far - logits(name, q, k, near, dtype))) <= bound.drift
            assert bound.error < 100.0 * error or name == "float32 pairs" or context > 2**24


def test_the_measured_drift_of_a_head_at_100000():
    """Float32 phases: 0.030 in logits up to 31, where the whole model's drift by 0.05 (docs/howto/transformers.rst)."""
    name, near = "float32 phases, float32 table", np.arange(169)
    drift = np.max(np.abs(logits(name, Q, K, near + 100_000) - logits(name, Q, K, near)))
    bound = precision_budget(Q, K, ROPE, 100_169).representation(name)
    assert 0.02 < drift < 0.04
    assert 5.0 * drift < bound.drift < 20.0 * drift
    assert bound.frequency > 0.7 * bound.error
    assert bound.drift == pytest.approx(2.0 * (bound.phase + bound.entry + bound.rounding), rel=0.01)


def test_moving_all_positions_leaves_out_what_frequencies_lose():
    """Frequencies of float32 are others, but the same everywhere: an engine that is exact otherwise does not drift."""
    single = np.asarray(ROPE.frequencies).astype(np.float32).astype(np.float64)
    near = np.arange(169)
    here, there = (logits("exact", Q, K, near + start, "float64", single) for start in (0, 10**6))
    assert np.max(np.abs(here - there)) < 1e-11
    row = precision_budget(Q, K, ROPE, 10**6, dtype="float64").representation("float32 phases, float32 table")
    assert row.frequency > 0.7 * row.error


def test_the_intrinsic_has_a_bound_up_to_100_pi():
    """As the PTX ISA has it, with a frequency of 1: phases up to 2 pi, up to 100 pi, and beyond."""
    one, unit = np.array([[1.0, 0.0]]), 2.0**-24
    for context, entry in ((7, 2.0**-20.5), (8, 2.0**-14.7), (315, 2.0**-14.7), (316, math.inf)):
        row = precision_budget(one, one, [1.0], context, dtype="float64").representation("__sincosf")
        wanted = 2.0 * math.sqrt(2.0) * entry / math.sqrt(2.0)
        assert row.entry == pytest.approx(wanted)
        phase = (context - 1) * unit
        assert row.error == pytest.approx(wanted + (8.0 * phase + 2.0 * phase) / math.sqrt(2.0), rel=1e-3)
    assert (row.drift, row.n_bytes) == (math.inf, 0)


def test_a_bound_by_hand():
    """One block, in float64, with a table of float16 and exact phases: two entries of 2^-11."""
    q, k = np.array([[3.0, 4.0, 7.0]] * 2).repeat(2, axis=-1)[:, :4], np.array([[0.0, 2.0, 1.0, 1.0]])
    rope = Rope([0.5], head_dim=4, attention_factor=1.5, pairing="interleaved")
    row = precision_budget(q, k, rope, 100, dtype="float64").representation("exact, float16 table")
    entry, unit = math.sqrt(2.0) * (2.0**-11 + 1e-15), (1.0 + math.sqrt(2.0)) * 2.0**-53
    size = np.hypot(3.0, 3.0) * 2.0 * 1.5**2 / math.sqrt(4.0)
    assert row.error == pytest.approx(size * (2.0 * entry + entry**2 + 2.0 * unit * (1.0 + entry) ** 2), rel=1e-13)
    assert row.drift == pytest.approx(2.0 * row.error)
    assert (row.frequency, row.phase, row.n_bytes) == (0.0, 0.0, 4)


def test_axes_heads_and_latent_attention():
    def phase(rope, width=4, heads=()):
        q, k = np.ones((*heads, 3, width)), np.ones((*heads, 5, width))
        return precision_budget(q, k, rope, 101, dtype="float64").representation("float32 phases, float32 table").phase

    lone = phase([1.0, 0.5])
    assert phase(rfrope.axial([1.0], [0.5])) == phase(Rope([1.0, 0.5], sections=(1, 1))) == pytest.approx(lone)
    both = Rope([[[1.0], [0.5]], [[4.0], [2.0]]])  # of the two heads the second has four times the phases
    assert phase(both, heads=(2,)) == pytest.approx(4.0 * lone)
    (latent,) = rfrope.from_config({"model_type": "deepseek_v3"})
    assert latent.qk_head_dim == 192
    ratio = phase(latent, 64) / phase(latent.frequencies, 64)
    assert ratio == pytest.approx(latent.attention_factor**2 / math.sqrt(3.0))


@pytest.mark.parametrize(
    ("below", "context", "dtype", "wanted"),
    [
        (None, 8192, "float32", None),
        (1.0, 8192, "float32", "float32 phases, bfloat16 table"),
        (0.69, 8192, "float32", "exact, bfloat16 table"),
        (0.1, 8192, "float32", "exact, float16 table"),
        (0.08, 8192, "float32", "float32 phases, float32 table"),
        (0.05, 131072, "float32", "exact, float32 table"),
        (2e-5, 131072, "float32", "exact"),
        (1e-9, 8192, "float32", None),
        (0.01, 300, "float32", "__sincosf"),
        (0.1, 8192, "bfloat16", None),  # whose own rounding is more
    ],
)
def test_the_cheapest_below_a_bound(below, context, dtype, wanted):
    assert getattr(precision_budget(Q, K, ROPE, context, below=below, dtype=dtype).cheapest, "name", None) == wanted


def test_order_and_names():
    found = precision_budget(Q, K, ROPE)
    assert (tuple(one.name for one in found.representations), found.context) == (NAMES, 8192)
    assert found.representation("Float32 phases / float32 table").n_bytes == 8
    errors = {one.name: one.error for one in found.representations}
    assert errors["exact"] < errors["exact, float32 table"] < errors["exact, float16 table"]
    assert errors["exact, float16 table"] < errors["exact, bfloat16 table"] < errors["bfloat16 phases, bfloat16 table"]


def test_text_and_data():
    found = precision_budget(Q, K, ROPE, 400, below=0.1)
    text = str(found).splitlines()
    assert text[0] == "bounds for logits of float32 queries and keys, 400 positions"
    assert text[3].split() == ["__sincosf", "0", "no", "bound", "no", "bound", "FlashInfer", "without", "a", "table"]
    assert text[-1] == "cheapest below 0.1: exact, float16 table"
    assert str(precision_budget(Q, K, ROPE, 400, below=1e-9)).endswith("none of these")
    assert "cheapest" not in str(precision_budget(Q, K, ROPE, 400))
    held = json.loads(json.dumps(found.to_dict()))
    assert held["cheapest"] == "exact, float16 table"
    assert held["representations"][0]["error"] is None
    assert held["representations"][5]["error"] == found.representations[5].error


def test_features_of_other_libraries(xp):
    wanted = precision_budget(Q[:5], K[:5], ROPE, 1000)
    assert precision_budget(xp(Q[:5]), xp(K[:5]), ROPE, 1000) == wanted


def test_frequencies_of_float32_are_as_near_as_stated():
    """As transformers computes them, for all widths: those of 354 features and base 1e6 are beyond 2^-21."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    worst = 0.0
    for base in (1e4, 1e5, 5e5, 1e6, 1e7, 1e9):
        for width in range(2, 514, 2):
            theirs = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width))
            exact = base ** (-np.arange(0, width, 2) / width)
            apart = np.abs(theirs.double().numpy() / exact - 1.0)
            assert np.all(apart < 2.0**-21 + np.abs(np.log(exact)) * 2.0**-24)
            assert width not in (32, 64, 128, 256) or np.max(apart) < 2.0**-23
            worst = max(worst, float(np.max(apart)))
    assert worst > 1.3 * 2.0**-21


ROOT, LAST, HALF, AXES = math.sqrt(2.0), 2**32 - 2, 2.0**-8, np.array([[1.0, 0.0], [0.0, math.exp(-8.0)], [0.0, 0.0]])
BFLOAT16, FLOAT32 = "bfloat16 phases, bfloat16 table", "float32 phases, float32 table"


@pytest.mark.parametrize(
    ("frequencies", "last", "name", "frequency", "phase"),
    [
        ([0.75], LAST, "float32 pairs", 0.75 * LAST * 2.0**-48 / ROOT, 1.5 * LAST * 2.0**-46 / ROOT),
        ([1e-6], 256, BFLOAT16, 2.56e-4 * HALF / ROOT, 5.12e-4 * HALF * (1.0 + HALF) / ROOT),
        ([1e-6], 257, BFLOAT16, 2.57e-4 * HALF / ROOT, 5.14e-4 * HALF * 2.0 * (1.0 + HALF) / ROOT),  # is no position
        # of two axes, with a block that stands still: 2^-21, and 2^-24 for each unit of the logarithm
        (AXES, 1000, FLOAT32, 1000.0 * 2.0**-21 * (1.0 + 8.0 * math.exp(-8.0)) / math.sqrt(6.0), None),
    ],
)
def test_parts_by_hand(frequencies, last, name, frequency, phase):
    q = np.array([[1.0, 2.0, 4.0, 0.0, 0.0, 0.0] if len(frequencies) == 3 else [1.0, 0.0]])
    row = precision_budget(q, q, Rope(frequencies), last + 1, dtype="float64").representation(name)
    assert row.frequency == pytest.approx(frequency, rel=1e-6)
    assert phase is None or row.phase == pytest.approx(phase, rel=1e-6)
