"""Test vectors with which engine developers check their reading of a config, without rfrope."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np

from rfrope._core.arguments import path_of
from rfrope.models.configs import from_config
from rfrope.rotation.rope import Rope

_POSITIONS = (0, 1, 2, 3, 17, 255, 256, 1023, 4095, 4096, 8191, 32767, 65535, 131071, 2**20 - 1, 2**24 + 1)
_DATA = files("rfrope.data").joinpath("conformance")
_ARRAYS = ("positions", "frequencies", "cos", "sin", "x", "rotated", "new_positions", "relocated")


def conformance(folder: str | os.PathLike[str] | None = None) -> tuple[dict[str, Any], ...]:
    """Return test cases for readers of configs: schemes, pairings, widths, layers, M-RoPE and relocated keys.

    Parameters
    ----------
    folder : str or path, optional
        Folder to write ``cases.json``, ``cases.npz``, a ``README.md`` and ``run.py``, a runner that needs only NumPy.
        It must be empty or not exist; it is written completely or not at all.

    Returns
    -------
    tuple of dict
        Each has ``name``, ``about``, ``config``, ``part`` (the kind of layer), ``seq_len`` (the length of the text, or
        None), ``layers`` (those that use this RoPE, or None: all), ``pairing``, ``head_dim``, ``rotary_dim``, ``turns``
        (the "first" or "last" features), ``attention_factor``, ``sections`` and ``interleaved_sections``; and float64
        arrays ``positions``, ``(P,)`` or ``(P, 3)``, ``frequencies``, ``(D,)``, ``cos`` and ``sin``, ``(P, D)``, with
        the attention factor, a vector ``x`` for each position, ``(P, head_dim)``, its rotation ``rotated``, and
        ``relocated``, the rotated vector moved to ``new_positions`` as a cached key.

    Raises
    ------
    FileExistsError
        If the folder is not empty.
    OSError
        If the folder cannot be written.

    See Also
    --------
    models.compare, from_config

    Notes
    -----
    Frequencies follow transformers' formulas in float64; cos and sin are exact to 1e-15, at positions up to
    ``2**24 + 1``, the first that float32 cannot represent.

    Examples
    --------
    >>> case = next(case for case in conformance() if case["name"] == "llama3")
    >>> case["config"]["rope_parameters"]["factor"], case["cos"].shape
    (8.0, (16, 64))
    """
    found = tuple(
        _make_case(said, rope, number)
        for said in json.loads(_DATA.joinpath("configs.json").read_text("utf-8"))
        for number, rope in enumerate(from_config(said["config"], seq_len=said["seq_len"]))
    )
    if folder is not None:
        _write(path_of("folder", folder), found)
    return found


def _make_case(said: Mapping[str, Any], rope: Rope, number: int) -> dict[str, Any]:
    part = rope.source.model.name
    positions = np.asarray(_POSITIONS, dtype=np.int64)
    if rope.sections is not None:  # time, rows and columns that differ
        positions = np.stack([positions, positions // 3 + 1, positions // 7 + 2], axis=-1)
    new_positions = np.flip(positions, axis=0).copy()
    cos, sin = rope.table(positions)
    x = np.random.default_rng(len(said["about"]) + number).standard_normal((len(positions), rope.head_dim or 0))
    return {
        "name": f"{said['name']}, {part}" if part else said["name"],
        "about": said["about"],
        "config": said["config"],
        "part": part,
        "seq_len": said["seq_len"],
        "layers": None if (layers := rope.source.model.layers) is None else list(layers),
        "pairing": rope.pairing,
        "head_dim": rope.head_dim,
        "rotary_dim": rope.rotary_dim,
        "turns": "last" if rope.source.model.turns_last else "first",
        "attention_factor": rope.attention_factor,
        "sections": rope.sections and list(rope.sections),
        "interleaved_sections": rope.interleaved,
        "positions": positions,
        "frequencies": np.asarray(rope.frequencies),
        "cos": cos,
        "sin": sin,
        "x": x,
        "rotated": _rotate(rope, x, positions),
        "new_positions": new_positions,
        "relocated": _rotate(rope, x, new_positions),
    }


def _rotate(rope: Rope, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return features rotated as the model does, which in some models are the last ones of a head."""
    if not rope.source.model.turns_last:
        return np.asarray(rope.rotate(x, positions))
    first = x.shape[-1] - rope.rotary_dim
    turned = replace(rope, head_dim=rope.rotary_dim).rotate(x[:, first:], positions)
    return np.concatenate([x[:, :first], turned], axis=-1)


def _write(folder: str, cases: tuple[dict[str, Any], ...]) -> None:
    """Write all files into a temporary folder, then rename it."""
    folder = os.path.abspath(folder)
    if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise FileExistsError(f"{folder} exists and holds something; expected a new or empty folder")
    arrays: dict[str, Any] = {f"{case['name']}/{name}": case[name] for case in cases for name in _ARRAYS}
    plain = [{name: value for name, value in case.items() if name not in _ARRAYS} for case in cases]
    try:
        temporary = pathlib.Path(tempfile.mkdtemp(prefix=".rfrope-", dir=os.path.dirname(folder)))
    except OSError as error:
        raise OSError(error.errno, error.strerror, folder) from None
    try:
        (temporary / "cases.json").write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n", "utf-8")
        np.savez(temporary / "cases.npz", **arrays)
        (temporary / "README.md").write_bytes(_DATA.joinpath("README.md").read_bytes())
        # inside the package, a .py file would count as a module
        (temporary / "run.py").write_bytes(_DATA.joinpath("run.txt").read_bytes())
        temporary.chmod(0o755)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
