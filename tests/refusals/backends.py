"""Rotations that are recorded for gradients are refused as others are."""

import numpy as np
from conftest import library

import rfrope


def rotate(positions, **options):
    x = library("torch").module.ones(3, 8, requires_grad=True)
    return rfrope.rotate(x, positions, rfrope.geometric(4), **options)


ROWS = [
    (lambda: rotate(np.full(3, np.nan)), ValueError, "positions"),
    (lambda: rotate(1, pairing="neox"), ValueError, "pairing"),
    (lambda: rotate(1, out=library("torch").module.empty(3, 8)), TypeError, "out"),
]
