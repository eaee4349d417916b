"""Arrays of two libraries or of two devices: what is not moved unasked."""

from calls import FEATURES, FREQUENCIES, POSITIONS
from conftest import library

import rfrope
from rfrope import analysis


def second(values):
    strict = library("array-api-strict").module
    return strict.asarray(values, device=strict.Device("device1"))


def beside(call):
    """A call of features on the second device, with others beside them in NumPy."""
    return lambda: call(second(FEATURES), second(POSITIONS), second(FREQUENCIES)), TypeError, K


K, OUT = (f"but {name} is a numpy array; expected all arrays from one library" for name in ("k", "out"))

ROWS = [
    beside(lambda x, p, w: rfrope.block_coefficients(x, FEATURES)),
    beside(lambda x, p, w: rfrope.scores(x, FEATURES, p, p, w)),
    beside(lambda x, p, w: analysis.sine_share(x, FEATURES, FREQUENCIES, w)),
    beside(lambda x, p, w: analysis.departure(x[0, ...], FEATURES[0], FREQUENCIES, w)),
    beside(lambda x, p, w: rfrope.expected_score(x, FEATURES, 1.0, "gaussian")),
    beside(lambda x, p, w: rfrope.estimate_scores(x, FEATURES, 1.0, "gaussian", n_trials=4)),
    (*beside(lambda x, p, w: rfrope.rotate(x, p, w, out=FEATURES.copy()))[:2], OUT),
    (lambda: rfrope.rotate(FEATURES, POSITIONS, FREQUENCIES, out=second(FEATURES)), TypeError,
     ("out is a ", " array; expected all arrays from one library")),
    (
        lambda: rfrope.rotate(
            second(FEATURES), library("array-api-strict").module.asarray(POSITIONS), second(FREQUENCIES)
        ),
        ValueError,
        ("x is on device ", "device1", " but positions is on ", "CPU_DEVICE"),
    ),
]  # fmt: skip
