"""Vectors by which the developer of an engine checks what it makes of a config, without rfrope."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files as resources
from typing import Any

import numpy as np

from rfrope._core.arguments import path_of
from rfrope.models.configs import from_config
from rfrope.rotation.rope import Rope

_POSITIONS = (0, 1, 2, 3, 17, 255, 256, 1023, 4095, 4096, 8191, 32767, 65535, 131071, 2**20 - 1, 2**24 + 1)
_ARRAYS = ("positions", "frequencies", "cos", "sin", "x", "rotated")
_FILES = {"README.md": "README.md", "run.py": "run.txt"}  # in the package a script would be taken for a module

_LLAMA: dict[str, Any] = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 8192}
_HALVES = {"short_factor": [1.0 + 0.02 * i for i in range(32)], "long_factor": [1.0 + 0.06 * i * i for i in range(32)]}
_LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 4096, **_HALVES}


def _llama(**rope_parameters: Any) -> dict[str, Any]:
    return _LLAMA | {"rope_parameters": {"rope_theta": 10_000.0, **rope_parameters}}


def _typed(model_type: str, head_dim: int, context: int = 32768, **rope_parameters: Any) -> dict[str, Any]:
    dims = {"head_dim": head_dim, "max_position_embeddings": context}
    return {"model_type": model_type, **dims, "rope_parameters": rope_parameters}


# name: what it is about, the config, positions in the text at hand
_CASES: dict[str, tuple[str, Mapping[str, Any], int | None]] = {
    "default": ("the ladder alone", _llama(), None),
    "base of 5e8": ("a large base", _llama(rope_theta=5e8), None),
    "older spelling": ("rope_theta beside the dict", _LLAMA | {"rope_theta": 1e6, "rope_scaling": None}, None),
    "one block": ("a head of two features", _llama() | {"head_dim": 2}, None),
    "linear": ("positions interpolated", _llama(rope_type="linear", factor=8.0), None),
    "linear, type": ("type for rope_type", _LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.5}}, None),
    "dynamic, short": ("nothing changes up to the context", _llama(rope_type="dynamic", factor=2.0), 8192),
    "dynamic, long": ("the base grows with the text", _llama(rope_type="dynamic", factor=2.0), 20000),
    "dynamic with alpha": (
        "HunYuan's base, at every length",
        _typed("hunyuan_v1_dense", 128, rope_type="dynamic", alpha=1000.0, rope_theta=10_000.0),
        None,
    ),
    "ntk": ("the base changed by a factor", _llama(rope_type="ntk", factor=4.0), None),
    "yarn": (
        "Qwen3's four-fold context",
        _typed("qwen3", 128, 131072, rope_type="yarn", rope_theta=1e6, factor=4.0,
               original_max_position_embeddings=32768),
        None,
    ),
    "yarn, attention factor": (
        "a factor given, and not by the formula",
        _llama(rope_type="yarn", factor=16.0, attention_factor=1.05, original_max_position_embeddings=4096),
        None,
    ),
    "yarn, no truncation": (
        "edges of the ramp that are not whole, and betas",
        _llama(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
               original_max_position_embeddings=4096),
        None,
    ),
    "yarn, mscale": (
        "DeepSeek: neighbours pair, and mscale over mscale_all_dim is 1",
        _typed("deepseek_v3", 64, 163840, rope_type="yarn", rope_theta=10_000.0, factor=40.0, mscale=1.0,
               mscale_all_dim=1.0, original_max_position_embeddings=4096) | {"qk_rope_head_dim": 64},
        None,
    ),
    "yarn, mscale of two": (
        "a ratio of two mscales",
        _llama(rope_type="yarn", factor=40.0, mscale=0.707, mscale_all_dim=1.0, original_max_position_embeddings=4096),
        None,
    ),
    "llama3": (
        "Llama 3.1",
        _typed("llama", 128, 131072, rope_type="llama3", rope_theta=500_000.0, factor=8.0, low_freq_factor=1.0,
               high_freq_factor=4.0, original_max_position_embeddings=8192),
        None,
    ),
    "longrope, short": ("the short list, and a factor", _llama(**_LONGROPE, factor=2.0), 4096),
    "longrope, long": ("the long list", _llama(**_LONGROPE, factor=2.0), 4097),
    "longrope, factor from contexts": ("8192 over 4096", _llama(**_LONGROPE), 8192),
    "longrope, given factor": ("attention_factor before the formula", _llama(**_LONGROPE, attention_factor=1.3), 8192),
    "longrope, mscales": (
        "Phi-3.5-MoE's names of the factor",
        _llama(**_LONGROPE, factor=2.0, short_mscale=1.1, long_mscale=1.25),
        8192,
    ),
    "any frequencies": (
        "lists that hold what rfrope designed: negative divisors, one block still",
        _llama(rope_type="longrope", original_max_position_embeddings=8192, factor=1.0, attention_factor=0.9,
               short_factor=[1e30, -1.0, *[0.3 + 0.1 * i for i in range(30)]],
               long_factor=[1e30, -1.0, *[0.3 + 0.1 * i for i in range(30)]]),
        None,
    ),
    "proportional": (
        "Gemma 4's global layers: half pairing over the whole head, most blocks still",
        _typed("llama", 64, rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25),
        None,
    ),
    "partial": ("Phi-3: the first three quarters of a head", _typed(
        "phi3", 96, rope_type="default", rope_theta=10_000.0, partial_rotary_factor=0.75), None),
    "partial, interleaved": ("GLM-4: neighbours in the first half of a head", _typed(
        "glm4", 128, rope_type="default", rope_theta=10_000.0, partial_rotary_factor=0.5), None),
    "interleaved": ("Cohere: neighbours pair", _typed(
        "cohere", 64, 8192, rope_type="default", rope_theta=10_000.0), None),
    "layers": (
        "Gemma 3: another base for each kind of layer",
        {"model_type": "gemma3_text", "head_dim": 256, "max_position_embeddings": 131072, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}},
        None,
    ),
    "mrope": ("Qwen2-VL: sections one after the other", _typed(
        "qwen2_vl_text", 128, rope_type="default", rope_theta=1e6, mrope_section=[16, 24, 24]), None),
    "mrope, interleaved": ("Qwen3-VL: sections in turn", _typed(
        "qwen3_vl_text", 128, rope_type="default", rope_theta=5e6, mrope_section=[24, 20, 20],
        mrope_interleaved=True), None),
}  # fmt: skip


def conformance(folder: str | os.PathLike[str] | None = None) -> tuple[dict[str, Any], ...]:
    """Cases that hold an engine to what a config means: every scheme, pairing, partial width, M-RoPE, edges.

    Parameters
    ----------
    folder : str or path, optional
        Where to write ``cases.json``, ``cases.npz``, a ``README.md`` and ``run.py``, a runner that needs NumPy alone.
        It must not exist, or be empty, and appears complete or not at all.

    Returns
    -------
    tuple of dict
        For each case: ``name``, ``about``, the ``config``, ``part`` (the kind of layer), ``seq_len`` (the length of the
        text, or None), ``pairing``, ``head_dim``, ``rotary_dim``, ``attention_factor``, ``sections`` and
        ``interleaved_sections``; and as NumPy arrays in float64 ``positions``, ``(P,)`` or ``(P, 3)``,
        ``frequencies``, ``(D,)``, ``cos`` and ``sin``, ``(P, D)`` with the attention factor inside, a vector for each
        position ``x``, ``(P, head_dim)``, and what it becomes, ``rotated``.

    Raises
    ------
    FileExistsError
        If the folder holds something.
    OSError
        If it cannot be written.

    Notes
    -----
    Frequencies are those of transformers' formulas in float64; cos and sin are those of the exact phase to 1e-15, at
    positions up to ``2**24 + 1``, the first that float32 cannot hold.

    Examples
    --------
    >>> case = next(case for case in conformance() if case["name"] == "llama3")
    >>> case["config"]["rope_parameters"]["factor"], case["cos"].shape
    (8.0, (16, 64))
    """
    found = tuple(
        _case(name, about, config, seq_len, rope, number)
        for name, (about, config, seq_len) in _CASES.items()
        for number, rope in enumerate(from_config(config, seq_len=seq_len))
    )
    if folder is not None:
        _write(path_of("folder", folder), found)
    return found


def _case(
    name: str, about: str, config: Mapping[str, Any], seq_len: int | None, rope: Rope, number: int
) -> dict[str, Any]:
    part = rope.source.model.name
    positions = np.asarray(_POSITIONS, dtype=np.int64)
    if rope.sections is not None:  # time, rows and columns that differ
        positions = np.stack([positions, positions // 3 + 1, positions // 7 + 2], axis=-1)
    cos, sin = rope.table(positions)
    x = np.random.default_rng(len(about) + number).standard_normal((len(positions), rope.head_dim or 0))
    return {
        "name": f"{name}, {part}" if part else name,
        "about": about,
        "config": dict(config),
        "part": part,
        "seq_len": seq_len,
        "pairing": rope.pairing,
        "head_dim": rope.head_dim,
        "rotary_dim": rope.rotary_dim,
        "attention_factor": rope.attention_factor,
        "sections": rope.sections and list(rope.sections),
        "interleaved_sections": rope.interleaved,
        "positions": positions,
        "frequencies": np.asarray(rope.frequencies),
        "cos": cos,
        "sin": sin,
        "x": x,
        "rotated": rope.rotate(x, positions),
    }


def _write(folder: str, cases: tuple[dict[str, Any], ...]) -> None:
    """Make a folder appear with all its files: under another name first, which is then changed."""
    folder = os.path.abspath(folder)
    if os.path.lexists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise FileExistsError(f"{folder} exists and holds something; expected a new or empty folder")
    arrays = {f"{case['name']}/{name}": case[name] for case in cases for name in _ARRAYS}
    plain = [{name: value for name, value in case.items() if name not in _ARRAYS} for case in cases]
    file = io.BytesIO()
    whole: dict[str, Any] = arrays
    np.savez(file, **whole)
    contents = {
        "cases.json": (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode(),
        "cases.npz": file.getvalue(),
    }
    source = resources("rfrope.data").joinpath("conformance")
    contents |= {name: source.joinpath(kept).read_bytes() for name, kept in _FILES.items()}
    try:
        temporary = tempfile.mkdtemp(prefix=".rfrope-", dir=os.path.dirname(folder))
    except OSError as error:
        raise OSError(error.errno, error.strerror, folder) from None
    try:
        for name, content in contents.items():
            with open(os.path.join(temporary, name), "xb") as target:
                target.write(content)
        os.chmod(temporary, 0o755)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
