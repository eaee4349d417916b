"""Modules for PyTorch: Ropes that they cannot turn by, and features, states and positions that do not fit."""

import dataclasses

import numpy as np
from conftest import library

import rfrope

FREQUENCIES = rfrope.geometric(16)
NARROW = rfrope.Rope(FREQUENCIES, head_dim=32)
SETS = rfrope.Rope(np.geomspace(0.01, 1.0, 24).reshape(2, 12, 1), polar=True)
ONE = rfrope.Rope(rfrope.geometric(12), polar=True)


def rotary(rope=FREQUENCIES, *arguments, **options):
    library("torch")
    from rfrope.layers.torch import RotaryEmbedding

    return RotaryEmbedding(rope, *arguments, **options)


def polar(rope=ONE, *arguments, **options):
    library("torch")
    from rfrope.layers.torch import PolarEmbedding

    return PolarEmbedding(rope, *arguments, **options)


def x(heads=2, width=12, dtype="float64"):
    torch = library("torch").module
    return torch.ones((2, heads, 7, width), dtype=getattr(torch, dtype))


LATER = rfrope.golden_gate(16, low=0.1, high=2.0, ndim=3)
ROWS = [
    (lambda: rotary(dataclasses.replace(NARROW, pairing=None)), ValueError, "rope.pairing is None"),
    (lambda: rotary(learnable="phase"), ValueError, "learnable is 'phase'"),
    (lambda: rotary(learnable=("kernel", "factors")), ValueError, "expected the kernel, or frequencies and factors"),
    (lambda: rotary(learnable=True, max_positions=64), ValueError, "there are no tables for what is learned"),
    (lambda: rotary(LATER, max_positions=64), ValueError, "no tables for frequencies of shape (16, 3)"),
    (lambda: rotary(np.ones((2, 2, 16, 1))), ValueError, "expected at most one axis of heads"),
    (lambda: rotary(NARROW, head_dim=64), ValueError, "head_dim is 64, but the Rope has head_dim=32; expected the"),
    (lambda: rotary(head_dim=6), ValueError, "head_dim is 6; expected a whole number from 32"),
    (lambda: rotary(layout="bdht"), ValueError, "layout is 'bdht'; did you mean 'bhtd'"),
    (lambda: rotary(7), ValueError, "rope is 7; expected an even number of features, or a Rope or frequencies"),
    (lambda: rotary(0), ValueError, "rope is 0; expected a whole number from 2"),
    (lambda: rotary(ONE), ValueError, "rope is polar; expected rfrope.layers.torch.PolarEmbedding"),
    (lambda: rotary().rotate(x(width=32), keys=1), TypeError, "keys is 1; expected True or False"),
    (lambda: polar(rfrope.Rope([1.0, 0.5])), ValueError, "rope is not polar"),
    (lambda: polar(SETS, "phases", heads=2), ValueError, "heads is 2, but the module has 2 sets"),
    (lambda: polar(heads=2), ValueError, "heads is 2, but the module has no phases"),
    (lambda: polar()(x(width=10), x(width=10)), ValueError, "rotate_polar takes one frequency per magnitude"),
    (lambda: polar(ONE, "phases", heads=3)(x(), x()), ValueError, "k has 2 heads"),
    (lambda: polar(ONE, "phases", heads=4).rotate(x(1), keys=True), ValueError, "heads is 4, but x has 1"),
    (lambda: polar(ONE, "frequencies").load_state_dict({"inv_freq": x()[0, 0, 0, :6]}), ValueError,
     ("inv_freq ", " 6 frequencies")),
    (lambda: polar(SETS)(x(4), x(4)), ValueError, "k has 4 heads"),
    (lambda: polar()(x(dtype="int64"), x(dtype="int64")), TypeError, "q has dtype int64"),
]  # fmt: skip
