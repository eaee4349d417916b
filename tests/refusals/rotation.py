"""Rotation: features, positions, Ropes, and keys that move."""

import numpy as np
from conftest import library

import rfrope
from rfrope import Rope
from rfrope.rotation import Provenance, grid_positions, mrope_positions, relocate, rerotate, rotate_polar, shift_matrix

X, P, W = np.ones((3, 8)), np.arange(3), np.asarray([1.0, 0.5])
KEYS, LADDER = np.ones((4, 16)), rfrope.geometric(8)
ROPE, POLAR = Rope(LADDER), Rope(LADDER, polar=True)
MROPE, UNPAIRED = rfrope.mrope(LADDER, (4, 2, 2)), Rope(LADDER, pairing=None)
LATENT = {"model_type": "deepseek_v3", "qk_rope_head_dim": 8, "rope_theta": 1e4, "rope_interleave": "no"}
SHARED = np.lib.stride_tricks.as_strided(np.ones(8), (3, 8), (0, 8))
ONE_PER = "rotate_polar takes one frequency per magnitude, rotate one per two"
IS_POLAR = "the Rope has polar=True; expected rotation.rotate_polar for it"


def rotate(**changed):
    return rfrope.rotate(**{"x": X, "positions": P, "frequencies": W} | changed)


def polar(**changed):
    return rotate_polar(**{"magnitudes": X, "positions": P, "frequencies": LADDER} | changed)


def rope(**fields):
    return Rope(**{"frequencies": LADDER} | fields)


def embedded(function, name):
    yield lambda: function(1, [1.0], pairing="all"), ValueError, "pairing is 'all'; expected one of 'half',"
    yield lambda: function(1, [1.0], dtype="int32"), TypeError, "dtype is 'int32'; expected a real floating type"
    yield lambda: function(1j, [1.0]), TypeError, f"{name} has dtype complex128"
    yield lambda: function(P, np.ones((2, 2))), ValueError, (f"{name} has shape (3,), but frequencies of ", " k = 2")
    yield lambda: function(P, np.ones((2, 1))), ValueError, f"use {name}[..., None]"


ROWS = [
    # rotate and scores
    (lambda: rotate(positions=range(4)), ValueError, "the phases from positions do not broadcast: (3,) of x and (4,)"),
    (lambda: rotate(frequencies=LADDER), ValueError, ("D <= 4; one frequency per feature is ", "rotate_polar")),
    (lambda: rotate(out=X.astype("f4")), TypeError, "dtype('float32'); expected the dtype of x, dtype('float64')"),
    (lambda: rotate(out=SHARED), ValueError, "out is read-only, or some of its elements share memory"),
    (lambda: rotate(x=library("torch").module.eye(8).to_sparse()), TypeError,
     "sparse_coo; expected a dense one: pass x.to_"),
    (lambda: rfrope.scores(X, X.astype(">f8"), P, P, W), TypeError, "q has dtype <f8 but k has >f8; expected"),
    (lambda: rfrope.scores(X, X, P, P, LADDER), ValueError, ("frequencies has D = 8 blocks", "q has shape (3, 8)")),
    (lambda: rfrope.block_coefficients(X, X.astype("f4")), TypeError, "q has dtype float64 but k has float32"),
    # embeddings
    *embedded(rfrope.sinusoidal, "positions"),
    *embedded(shift_matrix, "offset"),
    # positions
    (lambda: mrope_positions([2, (1, 4)]), ValueError, "segments[1] is (1, 4); expected (t, h, w)"),
    (lambda: mrope_positions([(1, 4, 5)]), ValueError, "expected a height and width that merge = 2 divides"),
    (lambda: grid_positions((2, 2), trained=(2, 2)), ValueError, "expected none, since nothing is interpolated"),
    (lambda: grid_positions((2, 2), resized="interpolate", trained=(2,)), ValueError, "expected 2 numbers"),
    # polar rotation
    (lambda: polar(frequencies=LADDER[:4]), ValueError,
     ("magnitudes has shape (3, 8); expected (..., 4) mag", ONE_PER)),
    (lambda: polar(out=np.ones((3, 16), "f4")), TypeError, ("out has dtype ", "expected the dtype of magnitudes")),
    (lambda: polar(frequencies=ROPE), ValueError, "the Rope has polar=False; expected a Rope with polar=True"),
    # fields of a Rope, and polar ones
    (lambda: rope(frequencies=[2.0**501]), ValueError, "magnitudes above 2**500"),
    (lambda: rope(frequencies=np.ones((4, 0))), ValueError, "shape (4, 0); expected at least one position axis"),
    (lambda: rope(head_dim=14), ValueError, "head_dim is 14; expected at least 2D = 16"),
    (lambda: rope(attention_factor=0), ValueError, "attention_factor is 0; expected a positive finite number"),
    (lambda: rope(sections=(4, 5)), ValueError, "sections (4, 5) sum to 9; expected D = 8"),
    (lambda: rope(sections=8), TypeError, "sections is 8; expected a whole number for each axis"),
    (lambda: rope(sections=(4, 4), frequencies=np.ones((8, 2))), ValueError, "expected (D,) with sections"),
    (lambda: rope(sections=(1, 7), interleaved=True), ValueError, "interleaved put block"),
    (lambda: rope(context=()), ValueError, "context is empty"),
    (lambda: rope(interleaved=True), ValueError, "interleaved is True, but sections is None"),
    (lambda: rope(frequencies=[ROPE] * 2), TypeError, "frequencies is a Rope, or several; expected an array"),
    (lambda: rope(source="a paper"), TypeError, "source is 'a paper'; expected a Provenance, a dict or None"),
    (lambda: rope(source={1: 2}), TypeError, "source has the key 1; expected names"),
    *(
        (lambda one=one: rope(source=Provenance(**one)), TypeError, (f"source.{next(iter(one))} is ", "; expected a "))
        for one in ({"extra": None}, {"error": 3}, {"rope_parameters": []}, {"model": None})
    ),
    (lambda: rope(head_dim=12, polar=True), ValueError, "a polar Rope has one frequency per feature"),
    (lambda: rfrope.from_config(LATENT), TypeError, "rope_interleave is 'no'; expected True or False"),
    (lambda: rfrope.axial(POLAR, ROPE), ValueError, "sets differ in pairing, attention_factor, polar"),
    (lambda: POLAR.scores(X, X, P, P), ValueError, IS_POLAR),
    *(
        (lambda name=name: rfrope.engines.export(POLAR, name), ValueError, ": it is polar, and no engine")
        for name in (one.name for one in rfrope.engines.records() if one.format)
    ),
    # keys that are turned on, or move
    (lambda: rerotate(KEYS, range(4), ROPE, MROPE), ValueError, "old turns by 1 position axes and new by 3"),
    (lambda: rerotate(KEYS, range(4), ROPE, rfrope.geometric(9)), ValueError, "D = 9 blocks"),
    (lambda: rerotate(KEYS, range(3), ROPE, ROPE), ValueError, "do not broadcast"),
    (lambda: rerotate(KEYS, range(4), POLAR, ROPE), ValueError, "old has polar=True and new polar=False; expected "),
    (lambda: rerotate(np.ones((6, 18)), range(6), POLAR, POLAR), ValueError, "16 polar features: old has 8"),
    (lambda: relocate(KEYS, P, range(4), ROPE), ValueError, "old_positions and new_positions do not broadcast"),
    (lambda: relocate(KEYS, range(4), np.ones((4, 2)), MROPE), ValueError, "_positions has shape"),
    (lambda: relocate(KEYS, range(5), range(5), ROPE), ValueError, "from old_positions and new_positions do not"),
    (lambda: relocate(KEYS[:, :14], range(4), range(4), ROPE), ValueError, "rope has D = 8 blocks"),
    (lambda: relocate(np.ones((4, 18)), range(4), range(4), POLAR), ValueError, "16 polar features: rope has 8"),
    (lambda: relocate(np.ones((4, 18)), 0, 1, rope(head_dim=20)), ValueError, "k has 18 features, but head_dim is 20"),
    (lambda: relocate(KEYS, 0, np.ones(4, complex), ROPE), TypeError, "new_positions has dtype complex128"),
    (lambda: rerotate(KEYS, range(4), UNPAIRED, ROPE), ValueError, "rope.pairing is None"),
    (lambda: relocate(KEYS, range(4), range(4), UNPAIRED), ValueError, "rope.pairing is None"),
]  # fmt: skip
