"""Outputs of other people's rotary embeddings, executed: what was given, what came out, and ours beside it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

import rfrope


def read_case(folder: pathlib.Path, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is told of a case, and its arrays."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as archive:
        return json.loads((folder / f"{name}.json").read_text()), {key: archive[key] for key in archive.files}


def check_case(
    told: Any, arrays: Any, w: np.ndarray, positions: np.ndarray, keys: tuple[str, str], atol: float
) -> None:
    """Assert that rotations by frequencies are those of a case, in its own dtype and in float64."""
    for key in keys:
        got = rfrope.rotate(arrays[key], positions, w, pairing="interleaved")
        np.testing.assert_allclose(got, arrays[f"{key}_out"], rtol=0, atol=told["tolerance"][f"{keys[0]}_out"]["atol"])
        exact = rfrope.rotate(arrays[key].astype(np.float64), positions, w, pairing="interleaved")
        np.testing.assert_allclose(exact, arrays[f"{key}_out_f64"], rtol=0, atol=atol)
