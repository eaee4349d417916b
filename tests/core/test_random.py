"""Counter-based uniforms: the cipher's published answers, and that a value depends on its place alone."""

import itertools

import numpy as np
import pytest
from conftest import rows

from rfrope._core import random
from rfrope._core.random import key_from_rng, philox4x32

KEY = (0x1234ABCD, 0xDEADBEEF)

uniforms = random.uniforms.generic  # `accel/test_estimators` holds the compiled one against it, bit for bit

# Philox4x32-10 lines of kat_vectors in Random123 (Salmon et al., SC 2011): counter, key, output.
KNOWN_ANSWERS = rows("core/random.json", "known_answers")


@pytest.mark.parametrize("name", KNOWN_ANSWERS)
def test_known_answers(name):
    counter, key, answer = (tuple(int(word, 16) for word in text.split()) for text in KNOWN_ANSWERS[name])
    assert tuple(int(w) for w in philox4x32(counter, key)) == answer


# -- uniforms ----------------------------------------------------------------------------------------------------------


def test_uniforms_are_the_ciphers_words_at_their_counter():
    """Draws 2b and 2b + 1 of column j in stream s: the two halves of block (b low, b high, j, s)."""
    values = uniforms(KEY, 2 * 2**33 + 6, 2, 3, stream=9, streams=2)
    for stream, column in itertools.product(range(2), range(3)):
        w = [int(word) for word in philox4x32((3, 2, column, 9 + stream), KEY)]
        for i, (low, high) in enumerate([w[:2], w[2:]]):
            assert values[stream, i, column] == ((high << 32 | low) >> 12) * 2.0**-52 + 2.0**-53


@pytest.mark.parametrize(("start", "count"), [*itertools.product([0, 1, 2, 7], [0, 1, 2, 5])])
@pytest.mark.parametrize(("stream", "streams", "columns"), [(0, 1, 3), (0, 3, 2), (2, 1, 1), (3, 2, 3)])
def test_any_part_is_that_of_the_whole(start, count, stream, streams, columns):
    whole = uniforms(KEY, 0, 20, 3, streams=5)
    part = uniforms(KEY, start, count, columns, stream=stream, streams=streams)
    assert (part.shape, part.dtype) == ((streams, count, columns), np.float64)
    np.testing.assert_array_equal(part, whole[stream : stream + streams, start : start + count, :columns])


@pytest.mark.parametrize("start", [2**32 - 3, 2**33 - 3, 2**40 + 1])
def test_ranges_join_where_the_counters_low_word_overflows(start):
    whole = uniforms(KEY, start, 10, 1)
    np.testing.assert_array_equal(uniforms(KEY, start + 3, 7, 1), whole[:, 3:])
    assert np.unique(whole).size == 10


def test_values_are_odd_multiples_of_two_to_the_minus_53():
    whole = uniforms(KEY, 0, 2**16, 2) * 2.0**53
    assert np.all(whole == np.floor(whole))
    assert np.all(whole % 2.0 == 1.0)
    assert np.all((whole > 0) & (whole < 2.0**53))


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed",
    [0, 7, 2**128 + 1, np.int64(7), [1, 2, 3], (1, 2), np.array([4, 5]), np.random.SeedSequence(3)],
    ids=lambda v: f"{type(v).__name__} {np.size(v)} {v if isinstance(v, int) else ''}",
)
def test_a_seed_always_gives_one_key_of_two_words(seed):
    key = key_from_rng(seed)
    assert key == key_from_rng(seed)
    assert key_from_rng(0) == (2968811710, 3677149159), "seeds mean the same in every later version"
    assert all(type(word) is int and 0 <= word < 2**32 for word in key)


def test_a_generator_is_advanced_by_eight_bytes():
    ours, theirs = np.random.default_rng(5), np.random.default_rng(5)
    first, second = key_from_rng(ours), key_from_rng(ours)
    assert first != second
    assert first == tuple(np.frombuffer(theirs.bytes(8), "<u4").tolist())
    theirs.bytes(8)
    assert ours.random() == theirs.random()
    bits = np.random.PCG64(5)  # counts as its generator, and is advanced, too
    assert [key_from_rng(bits), key_from_rng(bits)] == [first, second]
