"""Arrays and what libraries they are of, and seeds."""

import itertools

import numpy as np

from rfrope._core import array
from rfrope._core.random import key_from_rng

MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
AN_ARRAY, NUMBERS = ("q has type ", "; expected an array of NumPy, CuPy"), ("q is ", "expected numbers")
A_SEED = ("rng is ", "; expected None, a", "int", "Generator")


ROWS = [
    (lambda: array.namespace(q="text"), TypeError, AN_ARRAY),
    (lambda: array.namespace(q=object()), TypeError, AN_ARRAY),
    (lambda: array.asarray([1, [2]], np, name="q"), TypeError, NUMBERS),
    (lambda: array.asarray(["a"], np, name="q"), TypeError, NUMBERS),
    (lambda: array.asarray(None, np, name="q"), TypeError, NUMBERS),
    (lambda: array.host_numbers([MASKED, MASKED], "x"), TypeError, "Masked"),
    (lambda: array.host_numbers(([[MASKED]],), "x"), TypeError, "Masked"),
    (lambda: array.named_namespace("torch"), TypeError, "xp is"),
    (lambda: array.named_namespace(itertools), TypeError, "xp is"),
    (lambda: key_from_rng(-1), ValueError, A_SEED),
    (lambda: key_from_rng([1, -1]), ValueError, A_SEED),
    (lambda: key_from_rng(1.5), TypeError, A_SEED),
    (lambda: key_from_rng(b"1"), TypeError, A_SEED),
    (lambda: key_from_rng(True), TypeError, A_SEED),
    (lambda: key_from_rng(np.random.RandomState(0)), TypeError, A_SEED),
]
