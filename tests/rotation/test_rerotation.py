"""Keys of one Rope turned into those of another."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import Rope
from rfrope.rotation import rerotate

RNG = np.random.default_rng(6)
LADDER = rfrope.geometric(8)
OLD = Rope(LADDER, attention_factor=1.2, context=64)
NEW = rfrope.scaling.yarn(LADDER, 8.0, original_max_position_embeddings=64)


def keys(*shape):
    return np.random.default_rng(5).standard_normal(shape)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_the_new_rotation_of_the_features(xp, pairing, dtype):
    old, new = (Rope(one.frequencies, pairing=pairing, attention_factor=one.attention_factor) for one in (OLD, NEW))
    k, positions = keys(2, 40, 20), np.arange(1000, 1040)
    cached, wanted = old.rotate(k, positions), new.rotate(k, positions)
    got = rerotate(xp(cached, dtype), xp(positions), old, new)
    assert xp.owns(got)
    assert got.dtype == xp.dtype(dtype)
    np.testing.assert_allclose(xp.host(got), wanted, atol=1e-13 if dtype == "float64" else 3e-6)
    assert not np.allclose(xp.host(rerotate(xp(cached, dtype), xp(positions), new, old)), wanted, atol=0.1)


def test_the_phase_is_exact_at_large_positions():
    """As mpmath has it: a difference of frequencies rounded to float64 would be off by 1e-7 there."""
    position, old, new = 2**40 + 12345, np.array([1.0, 0.3]), np.array([0.7, 0.1])
    got = rerotate(np.array([1.0, 1.0, 0.0, 0.0]), position, old, new)
    with mpmath.workdps(60):
        phases = [
            mpmath.mpf(position) * (mpmath.mpf(float(b)) - mpmath.mpf(float(a))) for a, b in zip(old, new, strict=True)
        ]
        wanted = [float(mpmath.cos(x)) for x in phases] + [float(mpmath.sin(x)) for x in phases]
    np.testing.assert_allclose(got, wanted, atol=3e-15)


def test_in_place(xp):
    cached = OLD.rotate(keys(40, 16), np.arange(40))
    wanted = rerotate(cached, np.arange(40), OLD, NEW)
    k = xp(cached)
    if not xp.writable:
        with pytest.raises((ValueError, TypeError)):
            rerotate(k, xp(np.arange(40)), OLD, NEW, out=k)
        return
    assert rerotate(k, xp(np.arange(40)), OLD, NEW, out=k) is k
    np.testing.assert_allclose(xp.host(k), wanted, atol=1e-14)


def test_a_torch_cache_of_bfloat16():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    k = torch.from_numpy(keys(3, 40, 16))
    cached = OLD.rotate(k, torch.arange(40)).to(torch.bfloat16)
    wanted = NEW.rotate(OLD.rotate(cached.double(), torch.arange(40), inverse=True), torch.arange(40))
    assert rerotate(cached, torch.arange(40), OLD, NEW, out=cached) is cached
    assert torch.max(torch.abs(cached.double() - wanted) / (1.0 + torch.abs(wanted))) < 2.0**-8


def test_several_axes_heads_and_sections():
    positions = RNG.integers(0, 500, (40, 3))
    old = rfrope.mrope(LADDER, (3, 3, 2))
    new = rfrope.mrope(LADDER / 2.0, (4, 2, 2), interleaved=False)
    k = keys(2, 40, 16)
    got = rerotate(old.rotate(k, positions), positions, old, new)
    np.testing.assert_allclose(got, new.rotate(k, positions), atol=1e-13)
    heads = Rope(rfrope.sample(rfrope.kernel("gaussian", scale=8.0), 8, rng=0, heads=2))
    got = rerotate(Rope(LADDER).rotate(k, positions[:, 0]), positions[:, :1], LADDER, heads)
    np.testing.assert_allclose(got, heads.rotate(k, positions[:, :1]), atol=1e-13)


@pytest.mark.parametrize(
    "new",
    [Rope(LADDER, pairing="interleaved"), Rope(rfrope.geometric(4), head_dim=16), NEW],
    ids=["pairing", "D", "same"],
)
def test_another_pairing_or_width(new):
    k = keys(40, 16)
    got = rerotate(OLD.rotate(k, np.arange(40)), np.arange(40), OLD, new)
    np.testing.assert_allclose(got, new.rotate(k, np.arange(40)), atol=1e-13)


def test_there_and_back():
    k = OLD.rotate(keys(40, 16), np.arange(40))
    there = rerotate(k, np.arange(40), OLD, NEW)
    np.testing.assert_allclose(rerotate(there, np.arange(40), NEW, OLD), k, atol=1e-14)


@pytest.mark.parametrize(
    ("old", "new", "positions", "message"),
    [
        (Rope(LADDER, pairing=None), NEW, range(4), "rope.pairing is None"),
        (OLD, rfrope.mrope(LADDER, (4, 2, 2)), range(4), "old turns by 1 position axes and new by 3"),
        (OLD, rfrope.geometric(9), range(4), "D = 9 blocks"),
        (OLD, NEW, [0, 1, 2, np.nan], "positions holds NaN"),
        (OLD, NEW, range(3), "broadcast|shape"),
    ],
)
def test_what_cannot_be(old, new, positions, message):
    k = np.ones((4, 16))
    with pytest.raises(ValueError, match=message):
        rerotate(k, list(positions), old, new, out=k)
    assert np.all(k == 1.0)


@campaign
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-13), ("float32", 4e-5)])
def test_a_thousand_turns_drift_as_roundings_do(dtype, bound):
    """As the page on schemes has it: a dynamic scheme that grows with every token."""
    ladder, length = Rope(rfrope.geometric(32), context=4096), 4096
    grown = [
        rfrope.scaling.dynamic_ntk(ladder, 2.0, seq_len=length + n, max_position_embeddings=length) for n in range(1001)
    ]
    k, positions = keys(64, 64).astype(dtype), np.arange(0, 4096, 64)
    cached = grown[0].rotate(k, positions)
    for old, new in itertools.pairwise(grown):
        rerotate(cached, positions, old, new, out=cached)
    error = np.max(np.abs(cached - grown[-1].rotate(k, positions)))
    assert 0.0 < error < bound
