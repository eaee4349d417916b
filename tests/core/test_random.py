"""Counter-based uniforms: the cipher's published answers, and that a value depends on its place alone."""

import itertools

import numpy as np
import pytest
from problems import Z_BOUND, ks_bound, ks_distance
from scipy import stats

from rfrope._core import random
from rfrope._core.random import key_from_rng, philox4x32

KEY = (0x1234ABCD, 0xDEADBEEF)

uniforms = random.uniforms.generic  # `accel/test_estimators` holds the compiled one against it, bit for bit

# Philox4x32-10 lines of kat_vectors in Random123 (Salmon et al., SC 2011): counter, key, output.
KNOWN_ANSWERS = {
    "zeros": ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    "ones": ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    "pi": ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
}


def words(text):
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize("name", KNOWN_ANSWERS)
def test_known_answers(name):
    counter, key, answer = map(words, KNOWN_ANSWERS[name])
    assert tuple(int(w) for w in philox4x32(counter, key)) == answer


def test_known_answers_in_one_array_of_counters_with_one_key():
    counters = [words(KNOWN_ANSWERS["zeros"][0]), (1, 0, 0, 0), (0, 0, 7, 2)]
    together = np.stack(philox4x32(tuple(np.array(counters).T), (0, 0)), axis=-1)
    for counter, found in zip(counters, together, strict=True):
        assert [int(w) for w in philox4x32(counter, (0, 0))] == found.tolist()
    assert together[0].tolist() == list(words(KNOWN_ANSWERS["zeros"][2]))


@pytest.mark.parametrize("rounds", [9, 11])
def test_a_wrong_number_of_rounds_would_be_noticed(rounds, monkeypatch):
    monkeypatch.setattr(random, "range", lambda _: range(rounds), raising=False)
    counter, key, answer = map(words, KNOWN_ANSWERS["pi"])
    assert tuple(int(w) for w in philox4x32(counter, key)) != answer


# -- uniforms ----------------------------------------------------------------------------------------------------------


def test_uniforms_are_the_ciphers_words_at_their_counter():
    """Draws 2b and 2b + 1 of column j in stream s: the two halves of block (b low, b high, j, s)."""
    values = uniforms(KEY, 2 * 2**33 + 6, 2, 3, stream=9, streams=2)
    for stream, column in itertools.product(range(2), range(3)):
        w = [int(word) for word in philox4x32((3, 2, column, 9 + stream), KEY)]
        for i, (low, high) in enumerate([w[:2], w[2:]]):
            assert values[stream, i, column] == ((high << 32 | low) >> 12) * 2.0**-52 + 2.0**-53


@pytest.mark.parametrize(("start", "count"), [*itertools.product([0, 1, 2, 7, 10], [0, 1, 2, 5, 8])])
@pytest.mark.parametrize(("stream", "streams", "columns"), [(0, 1, 3), (0, 3, 2), (2, 1, 1), (3, 2, 3)])
def test_any_part_is_that_of_the_whole(start, count, stream, streams, columns):
    whole, part = (
        uniforms(KEY, 0, 20, 3, streams=5),
        uniforms(KEY, start, count, columns, stream=stream, streams=streams),
    )
    assert (part.shape, part.dtype) == ((streams, count, columns), np.float64)
    np.testing.assert_array_equal(part, whole[stream : stream + streams, start : start + count, :columns])


@pytest.mark.parametrize("start", [2**32 - 3, 2**33 - 3, 2**40 + 1])
def test_ranges_join_where_the_counters_low_word_overflows(start):
    whole = uniforms(KEY, start, 10, 1)
    np.testing.assert_array_equal(uniforms(KEY, start + 3, 7, 1), whole[:, 3:])
    assert np.unique(whole).size == 10


def test_other_key_column_or_stream_other_values():
    base = uniforms(KEY, 0, 64, 1)
    others = [
        uniforms((KEY[0] + 1, KEY[1]), 0, 64, 1),
        uniforms((KEY[0], KEY[1] + 1), 0, 64, 1),
        uniforms(KEY, 0, 64, 2)[..., 1:],
        uniforms(KEY, 0, 64, 1, stream=1),
    ]
    for other in others:
        assert not np.any(base == other)


def test_values_are_odd_multiples_of_two_to_the_minus_53():
    whole = uniforms(KEY, 0, 2**16, 2) * 2.0**53
    assert np.all(whole == np.floor(whole))
    assert np.all(whole % 2.0 == 1.0)
    assert np.all((whole > 0) & (whole < 2.0**53))


@pytest.mark.parametrize(
    ("low", "high", "value"), [(0, 0, 2.0**-53), (2**32 - 1, 2**32 - 1, 1.0 - 2.0**-53), (0, 2**31, 0.5 + 2.0**-53)]
)
def test_extreme_words_stay_inside_the_unit_interval(low, high, value):
    assert random._to_unit(np.uint64(low), np.uint64(high)) == value
    assert 0.0 < value < 1.0


@pytest.mark.parametrize("key", [KEY, (0, 0), (0, 1)])
def test_uniform(key):
    values = uniforms(key, 0, 2**18, 2, streams=2)
    points = np.linspace(0.0, 1.0, 4097)
    for column in values.transpose(0, 2, 1).reshape(4, -1):
        assert ks_distance(column, points, points) < ks_bound(column.size)


def test_independent_between_draws_of_a_block_blocks_columns_and_streams():
    n = 2**17
    u = uniforms((0, 0), 0, n, 2, streams=2) - 0.5
    first = u[0, :, 0]
    pairs = {
        "halves of a block": (first[0::2], first[1::2]),
        "next blocks": (first[1:-1:2], first[2::2]),
        "columns": (first, u[0, :, 1]),
        "streams": (first, u[1, :, 0]),
        "column and stream swapped": (u[0, :, 1], u[1, :, 0]),
    }
    for name, (x, y) in pairs.items():
        z = 12.0 * np.mean(x * y) * np.sqrt(x.size)
        assert abs(z) < Z_BOUND, name
        counts, *_ = np.histogram2d(x, y, bins=16, range=[(-0.5, 0.5)] * 2)
        chi2 = np.sum((counts - x.size / 256) ** 2) / (x.size / 256)
        assert chi2 < stats.chi2.isf(1e-6, 255), name


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_frozen_key():
    """Seeds must mean the same in every later version; the value is that of NumPy's SeedSequence(0)."""
    assert key_from_rng(0) == (2968811710, 3677149159)


@pytest.mark.parametrize(
    "seed",
    [0, 7, 2**128 + 1, np.int64(7), [1, 2, 3], (1, 2), np.array([4, 5]), np.random.SeedSequence(3)],
    ids=lambda v: f"{type(v).__name__} {np.size(v)} {v if isinstance(v, int) else ''}",
)
def test_a_seed_always_gives_one_key_of_two_words(seed):
    key = key_from_rng(seed)
    assert key == key_from_rng(seed)
    assert all(type(word) is int and 0 <= word < 2**32 for word in key)


def test_equal_seeds_of_different_kinds_and_different_seeds():
    assert key_from_rng(7) == key_from_rng(np.int64(7)) == key_from_rng(np.random.SeedSequence(7))
    assert key_from_rng([1, 2]) == key_from_rng((1, 2)) == key_from_rng(np.array([1, 2]))
    assert len({key_from_rng(seed) for seed in (*range(1000), (0, 1), (3, 2, 1), 2**40)}) == 1003


def test_none_takes_fresh_entropy():
    assert key_from_rng(None) != key_from_rng(None)


def test_a_generator_is_advanced_by_eight_bytes():
    ours, theirs = np.random.default_rng(5), np.random.default_rng(5)
    first, second = key_from_rng(ours), key_from_rng(ours)
    assert first != second
    assert first == tuple(np.frombuffer(theirs.bytes(8), "<u4").tolist())
    theirs.bytes(8)
    assert ours.random() == theirs.random()


def test_a_bit_generator_counts_as_its_generator():
    bits = np.random.PCG64(5)
    assert key_from_rng(bits) == key_from_rng(np.random.default_rng(5))
    assert key_from_rng(bits) != key_from_rng(np.random.default_rng(5)), "it was not advanced"


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (-1, ValueError),
        ([1, -1], ValueError),
        (1.5, TypeError),
        (2.0, TypeError),
        (np.float64(2.0), TypeError),
        ([1.5], TypeError),
        ("1", TypeError),
        (b"1", TypeError),
        (True, TypeError),
        (np.True_, TypeError),
        (1 + 2j, TypeError),
        (np.random.RandomState(0), TypeError),
        (np.random, TypeError),
        (object(), TypeError),
        ({"seed": 1}, TypeError),
    ],
    ids=lambda v: f"{type(v).__name__} {v if isinstance(v, int | float | str | list) else ''}",
)
def test_bad_seeds_say_what_came_and_what_was_expected(bad, error):
    with pytest.raises(error, match=r"^rng is .*; expected None, an? .*int.*Generator$"):
        key_from_rng(bad)
