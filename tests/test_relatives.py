"""Facts of docs/relatives.rst that no function of its own holds: sine heads of RoPE++, and rows of the table."""

from __future__ import annotations

import math
import pathlib
import re

import numpy as np
import pytest
import scipy.special
from conftest import library

import rfrope

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "relatives.rst"


@pytest.fixture
def rng():
    return np.random.default_rng(31)


def sine_scores(q, k, lags, omega):
    """Scores of queries that are turned a quarter back."""
    queries = rfrope.rotate(q, 0, omega, shift=-math.pi / 2)
    return np.array([queries @ rfrope.rotate(k, lag, omega) for lag in lags])


def test_sine_heads_on_every_library(xp, rng):
    q, k = rng.standard_normal((2, 5, 16))
    omega, at = rfrope.geometric(8), np.arange(100, 105)
    turned = rfrope.rotate(xp(q), xp(at), xp(omega), shift=xp(np.full(8, -math.pi / 2)))
    scores = xp.host(turned) @ rfrope.rotate(k, at, omega).T
    a, b = rfrope.block_coefficients(q[:, None], k[None])
    u = (at[None, :] - at[:, None])[..., None] * omega
    np.testing.assert_allclose(scores, np.sum(b * np.cos(u) - a * np.sin(u), axis=-1), atol=1e-12)
    # RoPE++ as published: the features (x, y) of a block become (y, -x) before they are turned by position
    swapped = np.concatenate([q[:, 8:], -q[:, :8]], axis=-1)
    np.testing.assert_allclose(scores, rfrope.rotate(swapped, at, omega) @ rfrope.rotate(k, at, omega).T, atol=1e-12)


def test_the_mean_of_a_sine_head_has_the_cross_term_for_q_k(rng):
    """Exactly, for frequencies of both signs: cosines keep B, sines of A cancel."""
    q, k = rng.standard_normal((2, 2))
    (a,), (b,) = rfrope.block_coefficients(q, k)
    lags = np.array([0.0, 1.0, 7.0])
    scores = [0.5 * (sine_scores(q, k, lags, [w]) + sine_scores(q, k, lags, [-w])) for w in (0.3, 1.1)]
    np.testing.assert_allclose(scores, [b * np.cos(w * lags) for w in (0.3, 1.1)], atol=1e-14)
    assert abs(a) > 0.1
    np.testing.assert_allclose(sine_scores(q, q, [0.0], [0.3]), 0.0, atol=1e-14)


def test_sine_heads_of_a_ladder_tend_to_sine_integrals():
    n, base = 20_000, 1e4
    omega = rfrope.geometric(n, base=base)
    ones = np.concatenate([np.ones(n), np.zeros(n)]) / math.sqrt(n)
    lags = np.array([-1.0, -10.0, -300.0, 5.0])
    si = scipy.special.sici(np.abs(lags))[0] - scipy.special.sici(np.abs(lags) / base)[0]
    wanted = -np.sign(lags) * si / math.log(base)
    np.testing.assert_allclose(sine_scores(ones, ones, lags, omega), wanted, atol=1e-4)


def test_gradients_reach_sine_heads():
    torch = library("torch").module
    q = torch.ones(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rfrope.rotate(x, 3, [1.0, 0.1], shift=-math.pi / 2), q)


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
def test_rows_of_the_table_name_what_there_is():
    table = PAGE.read_text("utf-8").partition(".. _relatives-cumulative:")[0]
    rows = [part.strip().split("\n     -") for part in table.split("   * - ")[2:]]
    assert len(rows) > 15
    references = (PAGE.parent / "references.rst").read_text("utf-8")
    for row in rows:
        assert len(row) == 6, row[0]
        for name in re.findall(r"`([a-z_]+\.?[a-z_0-9]+)`", row[2]):
            owner, _, function = name.rpartition(".")
            assert callable(getattr(getattr(rfrope, owner) if owner else rfrope, function)), name
        for work, years in re.findall(r"([A-Z][\w-]+(?: et al\.)?) \((\d[^)]*)\)", row[5]):
            for year in years.split(", "):
                assert f"\n- {work} ({year}): " in references, (work, year)
