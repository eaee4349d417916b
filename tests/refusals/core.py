"""Arrays and what libraries they are of, seeds, and what estimates are given to show and to do their work."""

import itertools

import numpy as np

import rfrope
from rfrope._core import array
from rfrope._core.random import key_from_rng

MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
AN_ARRAY, NUMBERS = ("q has type ", "; expected an array of NumPy, CuPy"), ("q is ", "expected numbers")
A_SEED = ("rng is ", "; expected None, a", "int", "Generator")


def estimate(**options):
    return rfrope.estimate_kernel([1.0], "gaussian", n_samples=2**21, **{"rng": 1} | options)


def repeat(task, spans):
    """Give one chunk twice, and leave out another."""
    results = list(map(task, spans))
    return [results[0], results[0], *results[2:]]


def lossy(items, total):
    return itertools.islice(items, 1)


ROWS = [
    (lambda: array.namespace(q="text"), TypeError, AN_ARRAY),
    (lambda: array.namespace(q=object()), TypeError, AN_ARRAY),
    (lambda: array.namespace(q={1: 2}), TypeError, AN_ARRAY),
    (lambda: array.namespace(q=b"bytes"), TypeError, AN_ARRAY),
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
    (lambda: key_from_rng([1.5]), TypeError, A_SEED),
    (lambda: key_from_rng(b"1"), TypeError, A_SEED),
    (lambda: key_from_rng(True), TypeError, A_SEED),
    (lambda: key_from_rng(np.random.RandomState(0)), TypeError, A_SEED),
    # estimates
    (lambda: estimate(checkpoint=3), TypeError, "checkpoint is 3; expected a path"),
    (lambda: estimate(checkpoint="a.npz", rng=None), ValueError, "rng is None; expected a seed with checkpoint"),
    (lambda: estimate(progress=lossy), ValueError, ("progress returned ", " of 2097152 draws")),
    (lambda: estimate(progress="yes"), TypeError, "progress is 'yes'; expected None, True, False, or a callable"),
    (lambda: estimate(progress=lambda items, total: None), TypeError, "progress returned None; expected an iterable"),
    (lambda: estimate(executor=repeat), ValueError,
     ("the chunk from draw 0, after ", " of 2097152 draws; expected all")),
    *(
        (lambda answer=answer: estimate(executor=lambda *_: answer), TypeError, "executor returned")
        for answer in (None, 3, [4], [(1, 2, 3)])
    ),
]  # fmt: skip
