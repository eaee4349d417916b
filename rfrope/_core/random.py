"""Counter-based uniforms: number i of column j in stream s is a function of (key, i, j, s) alone.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). One block of four 32-bit words
makes two uniforms: those of draws 2b and 2b + 1 in column j come from counter (b low, b high, j, stream).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rfrope._core.arguments import show
from rfrope._core.dispatch import CPU, dispatched

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)

Key = tuple[int, int]


def philox4x32(counter: tuple[Any, Any, Any, Any], key: Key) -> tuple[np.ndarray, ...]:
    """Ten rounds of Philox4x32: four words of 32 bits in, four out, all in arrays of uint64, which broadcast."""
    word_0, word_1, word_2, word_3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    key_0, key_1 = key
    for _ in range(10):
        product_0, product_1 = _MULTIPLIERS[0] * word_0, _MULTIPLIERS[1] * word_2
        word_0 = (product_1 >> _WORD) ^ word_1 ^ np.uint64(key_0)
        word_2 = (product_0 >> _WORD) ^ word_3 ^ np.uint64(key_1)
        word_1, word_3 = product_1 & _LOW, product_0 & _LOW
        key_0, key_1 = (key_0 + _WEYL[0]) & 0xFFFFFFFF, (key_1 + _WEYL[1]) & 0xFFFFFFFF
    return word_0, word_1, word_2, word_3


@dispatched(CPU.estimators)
def uniforms(key: Key, start: int, count: int, columns: int, *, stream: int = 0, streams: int = 1) -> np.ndarray:
    """Uniforms of draws start, ..., start + count - 1, for some streams.

    Every value is an odd multiple of 2**-53: never 0 or 1, and 1 - u is as likely as u, exactly.

    Parameters
    ----------
    key : two 32-bit words
    start, count : int
        The draws, by their numbers; below 2**64.
    columns : int
        How many columns of the unit cube.
    stream, streams : int
        The first stream and how many; below 2**32.

    Returns
    -------
    ndarray, float64, (streams, count, columns)
    """
    first, last = start // 2, (start + count + 1) // 2
    block = np.arange(first, last, dtype=np.uint64)[None, :, None]
    column = np.arange(columns, dtype=np.uint64)[None, None, :]
    which = np.arange(stream, stream + streams, dtype=np.uint64)[:, None, None]
    words = philox4x32((block & _LOW, block >> _WORD, column, which), key)
    pairs = np.stack([_to_unit(*words[:2]), _to_unit(*words[2:])], axis=2)
    draws = pairs.reshape(streams, 2 * (last - first), columns)
    return draws[:, start - 2 * first : start - 2 * first + count]


def _to_unit(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Upper 52 of 64 bits as the middle of one of 2**52 equal cells of the unit interval."""
    bits = ((high << _WORD) | low) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def key_from_rng(rng: Any) -> Key:
    """Turn the ``rng=`` argument (SPEC 7) into a Philox key.

    Parameters
    ----------
    rng : None, int, sequence of ints, numpy.random.SeedSequence, BitGenerator or Generator
        None takes fresh entropy; a Generator or BitGenerator is advanced by eight bytes.

    Raises
    ------
    TypeError, ValueError
        For anything else, and for negative seeds.
    """
    if isinstance(rng, np.random.BitGenerator):
        rng = np.random.Generator(rng)
    if isinstance(rng, np.random.Generator):
        low, high = np.frombuffer(rng.bytes(8), dtype="<u4")
        return int(low), int(high)
    if not isinstance(rng, np.random.SeedSequence):
        try:
            if isinstance(rng, bool | float | str | bytes | np.random.RandomState):
                raise TypeError
            rng = np.random.SeedSequence(rng)
        except Exception as error:  # NumPy shows the value in its message, by code of the value's own
            kind = ValueError if isinstance(error, ValueError) else TypeError
            raise kind(
                f"rng is {show(rng)}; expected None, a non-negative int, a sequence of them or a numpy.random.Generator"
            ) from None
    low, high = rng.generate_state(2, np.uint32)
    return int(low), int(high)
