"""Readings of heads and content by compiled backends and without: ``python -m benchmarks.backends`` prints the ratios.

The same call is measured with backends and with generic functions alone, in turn, in one run.
"""

import contextlib

import numpy as np

import rfrope
from benchmarks.timing import Entry, measure
from rfrope import analysis, heads

try:
    from rfrope._core import dispatch, turns
except ImportError:  # asv imports every file of this folder, for versions too that have no such module
    dispatch = None

RNG = np.random.default_rng(0)
LADDER = rfrope.geometric(64)  # one head of 128 features
SETS = RNG.standard_normal((32, 64, 1)) * LADDER[:, None]  # each of 32 heads its own
SHIFT = heads.phase_shift(-1, LADDER)
QUERY, KEY = RNG.standard_normal((2, 128))
QUERIES, KEYS = RNG.standard_normal((2, 32, 1, 128))  # vectors of 32 heads
TOKENS = RNG.standard_normal((2, 256, 128))
PAIRS = RNG.standard_normal((2, 512, 1, 128))  # pairs of queries and keys


def lags(count):
    return -np.arange(float(count))


READINGS = {
    "shifted scores, 1 pair, 4096 lags": lambda: heads.shifted_scores(QUERY, KEY, lags(4096), LADDER, SHIFT),
    "shifted scores, 1 pair, 131072 lags": lambda: heads.shifted_scores(QUERY, KEY, lags(131072), LADDER, SHIFT),
    "shifted scores, 32 heads, 4096 lags": lambda: heads.shifted_scores(QUERIES, KEYS, lags(4096), LADDER, SHIFT),
    "shifted mean kernel, 131072 lags": lambda: heads.shifted_mean_kernel(lags(131072), LADDER, SHIFT),
    "attention profile, 4096 positions": lambda: heads.positional_attention(LADDER, 4096),
    "attention profile, 131072 positions": lambda: heads.positional_attention(LADDER, 131072),
    "attention profile, 32 sets, 4096 positions": lambda: heads.positional_attention(
        SETS, 4096, offset=np.full((32, 1, 1), -1.0)
    ),
    "profile of 256 tokens, 256 lags": lambda: heads.profile(*TOKENS, lags(256), LADDER),
    "sine share, 512 pairs, 256 lags": lambda: analysis.sine_share(*PAIRS, lags(256), LADDER),
    "sine share, 1 pair, 131072 lags": lambda: analysis.sine_share(QUERY, KEY, lags(131072), LADDER),
    "similarity, 131072 lags": lambda: analysis.similarity(lags(131072), LADDER),
    "departure, 512 pairs, 256 lags": lambda: analysis.departure(PAIRS[0, :, 0], PAIRS[1, :, 0], lags(256), LADDER),
    "mean kernel, 131072 scattered lags": lambda: analysis.mean_kernel(lags(131072) * np.pi, LADDER),
}


@contextlib.contextmanager
def without_backends():
    """Let generic functions run."""
    find = dispatch.backend_function
    dispatch.backend_function = lambda function, place: None
    try:
        yield
    finally:
        dispatch.backend_function = find


def measured(name, rounds=5, most_seconds=4.0):
    """Measure a reading with backends, and without them."""
    call = READINGS[name]

    def generic():
        with without_backends():
            return call()

    entries = Entry("backend", call), Entry("generic", generic)
    measure(list(entries), rounds, most_seconds)
    return entries


class Readings:
    """How many times as long a reading takes by generic functions alone, on all threads."""

    params = (tuple(READINGS),)
    param_names = ("reading",)
    unit = "generic over backend"

    def setup(self, reading):
        if dispatch is None or not dispatch.backend_place(turns.cos_sin, LADDER):
            raise NotImplementedError("there are no backends here")

    def track_gain(self, reading):
        backend, generic = measured(reading)
        return generic.median / backend.median


if __name__ == "__main__":
    print(f"{'':45} {'backend ms':>10} {'generic ms':>11} {'ratio':>6}")
    for reading in READINGS:
        backend, generic = measured(reading)
        times = f"{1e3 * backend.median:10.2f} {1e3 * generic.median:11.2f}"
        print(f"{reading:45} {times} {generic.median / backend.median:6.2f}")
