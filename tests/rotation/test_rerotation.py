"""Cached keys turned into those of another Rope, or of other positions."""

import dataclasses
import itertools

import mpmath
import numpy as np
import pytest
from campaign import campaign
from rotation_calls import watched

import rfrope
from rfrope import Rope
from rfrope.rotation import relocate, rerotate

RNG = np.random.default_rng(6)
LADDER = rfrope.geometric(8)
OLD = Rope(LADDER, attention_factor=1.2, context=64)
NEW = rfrope.scaling.yarn(LADDER, 8.0, original_max_position_embeddings=64)


def keys(*shape):
    return np.random.default_rng(5).standard_normal(shape)


def exact_turn(move, omega):
    """Cos and sin of a product, from 60 digits."""
    with mpmath.workdps(60):
        phase = mpmath.mpf(move) * mpmath.mpf(omega)
        return [float(mpmath.cos(phase)), float(mpmath.sin(phase))]


PAIRS = {
    "half": (OLD, NEW),
    "interleaved": [
        Rope(one.frequencies, pairing="interleaved", attention_factor=one.attention_factor) for one in (OLD, NEW)
    ],
    "another pairing": (OLD, Rope(LADDER, pairing="interleaved")),
    "fewer blocks": (OLD, Rope(rfrope.geometric(4), head_dim=16)),
    "sections": (rfrope.mrope(LADDER, (3, 3, 2)), rfrope.mrope(LADDER / 2.0, (4, 2, 2), interleaved=False)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_the_new_rotation_of_the_features(xp, name, dtype):
    (old, new), k, positions = PAIRS[name], keys(2, 40, 16 if name == "fewer blocks" else 20), np.arange(1000, 1040)
    positions = RNG.integers(0, 500, (40, 3)) if name == "sections" else positions
    cached, wanted = old.rotate(k, positions), new.rotate(k, positions)
    got = rerotate(xp(cached, dtype), xp(positions), old, new)
    assert xp.owns(got)
    assert got.dtype == xp.dtype(dtype)
    np.testing.assert_allclose(xp.host(got), wanted, atol=1e-13 if dtype == "float64" else 3e-6)


def test_a_ladder_takes_the_positions_of_heads():
    k, positions, heads = keys(2, 40, 16), RNG.integers(0, 500, (40, 1)), ROPES["heads"]
    got = rerotate(Rope(LADDER).rotate(k, positions[:, 0]), positions, LADDER, heads)
    np.testing.assert_allclose(got, heads.rotate(k, positions), atol=1e-13)


def test_the_phase_is_exact_at_large_positions():
    """As mpmath has it: a difference of frequencies rounded to float64 would be off by 1e-7 there."""
    position, old, new = 2**40 + 12345, np.array([1.0, 0.3]), np.array([0.7, 0.1])
    got = rerotate(np.array([1.0, 1.0, 0.0, 0.0]), position, old, new)
    with mpmath.workdps(60):
        wanted = [exact_turn(position, mpmath.mpf(b) - mpmath.mpf(a)) for a, b in zip(old, new, strict=True)]
    np.testing.assert_allclose(got, np.ravel(wanted, order="F"), atol=3e-15)


@pytest.mark.parametrize("function", [rerotate, relocate])
def test_in_place(function, xp):
    cached, at = OLD.rotate(keys(2, 40, 16), np.arange(40)), np.arange(40)
    given = (at, OLD, NEW) if function is rerotate else (at, at[::-1] + 9, OLD)
    wanted, k = function(cached, *given), xp(cached)
    if not xp.writable:
        with pytest.raises((ValueError, TypeError)):
            function(k, *given, out=k)
        return
    assert function(k, *given, out=k) is k
    np.testing.assert_allclose(xp.host(k), wanted, atol=1e-14)
    part, some = xp(cached), [one[10:20] if isinstance(one, np.ndarray) else one for one in given]
    function(part[:, 10:20, ...], *some, out=part[:, 10:20, ...])  # a part of a cache
    np.testing.assert_allclose(xp.host(part)[:, 10:20], wanted[:, 10:20], atol=1e-14)
    np.testing.assert_array_equal(xp.host(part)[:, 20:], cached[:, 20:])


def test_keys_stay_as_they_were_where_a_move_is_refused():
    k, bad = np.ones((4, 16)), [0, 1, 2, np.nan]
    with pytest.raises(ValueError, match="positions holds NaN"):
        rerotate(k, bad, OLD, NEW, out=k)
    with pytest.raises(ValueError, match="old_positions holds NaN"):
        relocate(k, bad, range(4), OLD, out=k)
    assert np.all(k == 1.0)


def test_a_torch_cache_of_bfloat16(torch):
    k = torch.from_numpy(keys(3, 40, 16))
    cached = OLD.rotate(k, torch.arange(40)).to(torch.bfloat16)
    wanted = NEW.rotate(OLD.rotate(cached.double(), torch.arange(40), inverse=True), torch.arange(40))
    assert rerotate(cached, torch.arange(40), OLD, NEW, out=cached) is cached
    assert torch.max(torch.abs(cached.double() - wanted) / (1.0 + torch.abs(wanted))) < 2.0**-8


@campaign
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-13), ("float32", 4e-5)])
def test_a_thousand_turns_drift_as_roundings_do(dtype, bound):
    """As the page on schemes has it: a dynamic scheme that grows with every token."""
    ladder, length = Rope(rfrope.geometric(32), context=4096), 4096
    lengths = {"max_position_embeddings": length}
    grown = [rfrope.scaling.dynamic_ntk(ladder, 2.0, seq_len=length + n, **lengths) for n in range(1001)]
    k, positions = keys(64, 64).astype(dtype), np.arange(0, 4096, 64)
    cached = grown[0].rotate(k, positions)
    for old, new in itertools.pairwise(grown):
        rerotate(cached, positions, old, new, out=cached)
    error = np.max(np.abs(cached - grown[-1].rotate(k, positions)))
    assert 0.0 < error < bound


# -- other positions ---------------------------------------------------------------------------------------------------

YARN = Rope(NEW.frequencies, pairing="interleaved", attention_factor=NEW.attention_factor, head_dim=20)
MROPE = rfrope.mrope(LADDER, (3, 3, 2), interleaved=True)
HEADS = Rope(rfrope.sample(rfrope.kernel("gaussian", scale=8.0), 8, rng=0, heads=2))
ROPES = {
    "a ladder": Rope(LADDER),
    "YaRN": YARN,
    "partial": Rope(rfrope.geometric(4), head_dim=16),
    "still blocks": rfrope.scaling.proportional(LADDER, partial_rotary_factor=0.5),
    "negative": Rope(-LADDER),
    "M-RoPE": Rope(LADDER, sections=(3, 3, 2), attention_factor=0.7),
    "M-RoPE in turns": MROPE,
    "axes": rfrope.axial(rfrope.geometric(4), rfrope.geometric(4)),
    "heads": HEADS,
    "polar": Rope(LADDER, polar=True, attention_factor=1.5),
}


def places(rope, rng, dtype, n=40):
    """Two sets of positions for n tokens, whole or not."""
    axes = () if rope.vectors.ndim == 1 else (rope.vectors.shape[-1],)
    found = rng.integers(-(10**6), 10**6, (2, n, *axes))
    return found if dtype == "int64" else found + rng.uniform(0.0, 1.0, found.shape)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize("name", ROPES)
def test_moved_keys_are_those_of_the_new_positions(name, dtype, xp):
    rope, rng = ROPES[name], np.random.default_rng(7)
    k, (old, new) = abs(keys(2, 40, rope.head_dim)), places(rope, rng, dtype)
    cached, wanted = rope.rotate(k, old), rope.rotate(k, new)
    got = relocate(xp(cached), xp(old), xp(new), rope)
    assert xp.owns(got)
    np.testing.assert_allclose(xp.host(got), wanted, rtol=0, atol=2e-14)


@pytest.mark.parametrize("start", [2**53 + 1, 2**60 + 7, -(2**62) - 3])
def test_integers_are_subtracted_before_any_float_is_made(start):
    """Beyond 2**53 floats lack the odd numbers."""
    k, at = keys(40, 16), np.arange(40)
    cached = OLD.rotate(k, at)
    moved = relocate(cached, start + at, start + 5 + 2 * at, OLD)
    np.testing.assert_allclose(moved, OLD.rotate(k, 5 + 2 * at), atol=1e-14)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "uint32", "uint64"])
def test_narrow_and_unsigned_integers_do_not_wrap(dtype, xp):
    if xp.name == "torch" and dtype.startswith("uint") and dtype != "uint8":
        pytest.skip("torch does not subtract these")
    k, old, new = keys(3, 16), np.array([127, 100, 3], dtype), np.array([0, 127, 4], dtype)
    got = relocate(xp(OLD.rotate(k, old.astype(int))), xp(old), xp(new), OLD)
    np.testing.assert_allclose(xp.host(got), OLD.rotate(k, new.astype(int)), atol=1e-14)


@pytest.mark.parametrize("name", [name for name in ROPES if name != "polar"])
def test_small_dense_keys_move_in_one_pass(name, monkeypatch):
    """The same numbers as with all that is looked at, from positions of another type."""
    rope, rng = dataclasses.replace(ROPES[name]), np.random.default_rng(9)
    k, (old, new) = keys(2, 40, rope.head_dim), places(rope, rng, "int64")
    wanted = relocate(k, old.astype(np.int32), new, rope)
    monkeypatch.setattr("rfrope.rotation.rerotation._read_keys", None)
    with watched() as names:
        got = relocate(k, old, new, rope)
    assert names == ["at once"]
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (16, 0),
        (16, np.arange(40)),
        (np.arange(40) + 2**60, 2**60),
        (np.arange(40), np.array([[5], [900]])),
        (np.array(7), np.arange(40)),
    ],
    ids=["numbers", "from one", "to one", "broadcast", "without axes"],
)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_small_dense_keys_move_by_positions_that_broadcast_in_one_pass(old, new, library, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed") if library == "torch" else None
    given, rope = torch.from_numpy if torch else np.asarray, dataclasses.replace(YARN)
    k = given(keys(2, 40, 20))
    old, new = (given(one.copy()) if isinstance(one, np.ndarray) else one for one in (old, new))
    move = np.asarray(np.asarray(new).astype(object) - np.asarray(old).astype(object), float)
    wanted = rfrope.rotate(np.asarray(k), move, YARN.frequencies, pairing=YARN.pairing)
    monkeypatch.setattr("rfrope.rotation.rerotation._read_keys", None)
    with watched() as names:
        got = relocate(k, old, new, rope, out=k)
    assert names == ["at once"]
    assert got is k
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        (0, 2**53 + 1, 2**53 + 1),
        ([0, 1], [5, 2**53 + 2], 2**53 + 1),
        ([-(2**62), 0], [2**62 + 1, 0], 2**63 + 1),
        ([-(2**63)], [2**63 - 1], 2**64 - 1),
        ([3, 2**53 + 4], 3, -(2**53) - 1),
        ([[2**53 + 1], [0]], [0, 0], -(2**53) - 1),
        ([2**53 + 4, 0], [3, 2**53], -(2**53) - 1),
        (np.zeros(2, "uint64"), np.array([2**63, 1], "uint64"), 2**63),
    ],
)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_whole_positions_that_are_too_far_apart_are_refused(old, new, difference, library):
    k = np.ones((2, 2, 16))
    if library == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        if getattr(old, "dtype", None) == np.uint64:
            pytest.skip("torch does not subtract these")
        k, old, new = torch.from_numpy(k), *(torch.tensor(x) if isinstance(x, list) else x for x in (old, new))
    elif isinstance(old, list):
        old, new = np.array(old), np.array(new)
    for rope in (OLD, OLD.frequencies):
        with pytest.raises(ValueError, match=rf"old_positions has .*, {difference} apart; expected .* at most 2\*\*53"):
            relocate(k, old, new, rope)


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("power", [0, 3, 10])
def test_errors_grow_with_phases_beyond_the_limit(kind, power):
    """Up to 2**53 radians 1e-15 is promised, and 2**power times it for so much larger phases."""
    for start in np.random.default_rng(power).uniform(0.5, 1.0, 40):
        move, omega = kind(2**53 * start), 2.0**power * start
        got = relocate(np.array([1.0, 0.0]), kind(0), move, Rope(np.array([omega])))
        np.testing.assert_allclose(got, exact_turn(move, omega), rtol=0.0, atol=2.0**power * 1e-15)


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize(
    ("old", "new"), [(2**61, 2**61 + 2**53), (2**61, 2**61 - 2**53), (2.0**30 + 0.1, 1e-7)], ids=str
)
def test_the_farthest_move_and_one_below_the_last_place_are_exact(old, new, as_array):
    """A difference in float64 of the last two would be off by 1e-6 of a position."""
    with mpmath.workdps(60):
        wanted = exact_turn(mpmath.mpf(new) - mpmath.mpf(old), 1)
    old, new = (np.array([old]), np.array([new])) if as_array else (old, new)
    got = relocate(np.array([[1.0, 0.0]]), old, new, Rope(np.array([1.0])))
    np.testing.assert_allclose(got[0], wanted, atol=2e-15)


def test_no_keys_move():
    assert relocate(np.ones((0, 16)), np.arange(0), np.arange(0), OLD).shape == (0, 16)


def test_latent_attention_moves_what_it_caches_apart():
    config = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_theta": 1e4}
    (rope,) = rfrope.from_config(config | {"rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32}})
    k, at = keys(40, 64), np.arange(40)
    np.testing.assert_allclose(relocate(rope.rotate(k, at), at, at + 77, rope), rope.rotate(k, at + 77), atol=1e-13)
    with pytest.raises(ValueError, match=r"expected k\[..., -64:\]"):
        relocate(keys(40, 192), at, at, rope)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_frequencies_of_the_library_of_the_keys(dtype, xp):
    rope, rng = Rope(LADDER, attention_factor=1.5), np.random.default_rng(3)
    k, (old, new) = keys(2, 40, 16), places(rope, rng, dtype)
    theirs = Rope(xp(LADDER), attention_factor=1.5)
    got = relocate(xp(rope.rotate(k, old)), xp(old), xp(new), theirs)
    np.testing.assert_allclose(xp.host(got), rope.rotate(k, new), atol=1e-13)


def test_devices_without_float64_have_integers_of_64_bits(monkeypatch, torch):
    """As Intel's and Apple's in PyTorch: differences beyond 2**31 are kept there."""
    k, at = keys(40, 16).astype("float32"), torch.arange(40)
    cached = torch.from_numpy(OLD.rotate(k, np.arange(40)))
    monkeypatch.setattr("rfrope._core.array.has_float64", lambda *_: False)
    seen = []
    monkeypatch.setattr("rfrope.rotation.rerotation._relocated_at_once", lambda *_: None)
    monkeypatch.setattr("rfrope.rotation.rerotation.rotate", lambda k, moved, *_, **__: seen.append(moved))
    relocate(cached, at, at + 2**40, OLD)
    assert seen[0].tolist() == [2**40] * 40


def test_jax_moves_in_compiled_functions_and_without_float64():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    k, at = keys(40, 16).astype("float32"), np.arange(40)
    wanted = OLD.rotate(k.astype(float), at + 2**24 + 1)
    with jax.enable_x64(False):
        cached = OLD.rotate(jax.numpy.asarray(k), at)
        moved = jax.jit(lambda k, old, new: relocate(k, old, new, OLD))(cached, at, at + 2**24 + 1)
        assert moved.dtype == "float32"
        np.testing.assert_allclose(moved, wanted, atol=3e-6)


MOVED = [  # largest part of a key's norm that one move may lose; largest error of a feature after a thousand
    *(("float64", 1.7e-15, 1e-13), ("float32", 2.0**-21, 1e-5)),
    *(("float16", 2.0**-11 + 2.0**-21, 9), ("bfloat16", 2.0**-8 + 2.0**-21, 9)),
]


@pytest.mark.parametrize(("dtype", "lost", "stated"), MOVED)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_thousand_random_moves(dtype, lost, stated, pairing, torch):
    """Errors against one rotation of the features: absolute ones, and those of a key as a part of its norm."""
    rng, rope = np.random.default_rng(11), Rope(rfrope.geometric(32), pairing=pairing, attention_factor=1.1386)
    k = torch.from_numpy(rng.standard_normal((64, 64))).to(getattr(torch, dtype))
    exact, at = k.double().numpy(), rng.integers(0, 2**40, (1001, 64))
    cached = rope.rotate(k, at[0])
    for old, new in itertools.pairwise(at):
        relocate(cached, old, new, rope, out=cached)
    error = cached.double().numpy() - rope.rotate(exact, at[-1])
    part = np.linalg.norm(error, axis=-1) / np.linalg.norm(1.1386 * exact, axis=-1)
    assert 0.0 < np.max(part) < np.sqrt(1001) * lost
    assert np.max(np.abs(error)) < stated
