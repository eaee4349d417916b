"""The vectors that ship with the package are what their note says."""

import numpy as np
import pytest

import rfrope
from rfrope.data import smollm2_heads
from rfrope.validation import example_pairs

HEADS = {"previous": 169, "induction": 120}


@pytest.fixture(scope="module")
def heads():
    return smollm2_heads()


@pytest.mark.parametrize(("head", "n"), HEADS.items())
def test_names_shapes_and_dtypes(heads, head, n):
    shapes = {"q": ((n, 64), "float32"), "k": ((n, 64), "float32"), "attention": ((n, n), "float32")}
    shapes |= {"token_ids": ((n,), "int64")}
    assert {f"{head}_{part}" for head in HEADS for part in shapes} | {"inv_freq"} == set(heads)
    held = {part: heads[f"{head}_{part}"] for part in shapes}
    assert {part: (one.shape, one.dtype.name) for part, one in held.items()} == shapes
    assert all(np.all(np.isfinite(one)) for one in held.values())
    assert heads["inv_freq"].dtype == np.float32
    np.testing.assert_allclose(heads["inv_freq"], rfrope.geometric(32, base=100_000.0), rtol=3e-7)


def causal_softmax(scores):
    scores = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("head", HEADS)
def test_rotating_reproduces_the_models_attention(heads, head):
    at = np.arange(len(heads[f"{head}_q"]))
    scores = rfrope.scores(heads[f"{head}_q"], heads[f"{head}_k"], at, at, heads["inv_freq"])
    np.testing.assert_allclose(causal_softmax(0.125 * scores), heads[f"{head}_attention"], rtol=0, atol=1e-5)


def test_heads_attend_where_the_note_says(heads):
    previous = np.diagonal(heads["previous_attention"], -1)
    induction = np.diagonal(heads["induction_attention"], -59)[1:]
    assert previous.mean() == pytest.approx(0.766, abs=2e-3)
    assert induction.mean() == pytest.approx(0.926, abs=2e-3)
    ids = heads["induction_token_ids"]
    assert np.array_equal(ids[:60], ids[60:])


def test_every_call_returns_arrays_of_its_own(heads):
    again = smollm2_heads()
    again["previous_q"][:] = 0.0
    assert np.any(smollm2_heads()["previous_q"])


def test_example_pairs_are_rows_of_the_heads_at_their_lag(heads):
    q, k = example_pairs()
    assert q.dtype == k.dtype == np.float64
    rows = {"previous": (-1, np.array([20, 60, 100, 140])), "induction": (-59, np.array([70, 80, 95, 110]))}
    assert np.array_equal(q, np.concatenate([heads[f"{head}_q"][at] for head, (_, at) in rows.items()]))
    assert np.array_equal(k, np.concatenate([heads[f"{head}_k"][at + lag] for head, (lag, at) in rows.items()]))
