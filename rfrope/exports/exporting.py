"""A Rope in the formats of other engines: plain data, a file, and what it loses."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope._core import angles, files
from rfrope._core.arguments import choice, flag, named, path_of, positive, show, whole
from rfrope._core.array import Array, on_device_of_arrays
from rfrope._core.blocks import check_pairing
from rfrope.analysis import mean_kernel
from rfrope.exports.engine import Asked, Engine, Rounding
from rfrope.exports.files import TAKE_MODELS, WRITERS
from rfrope.exports.gguf import USUAL, architecture_of
from rfrope.exports.records import ENGINES
from rfrope.rotation.rope import Rope

_BY_NAME = {engine.name: engine for engine in ENGINES}
_DTYPES = ("float16", "float32", "float64")
_MOST_LAGS = 2**20


def names() -> list[str]:
    """Engines that a Rope can be exported to.

    Returns
    -------
    list of str

    Examples
    --------
    >>> names()[:5]
    ['transformers', 'vllm', 'sglang', 'tensorrt-llm', 'llama.cpp']
    """
    return list(_BY_NAME)


def records() -> tuple[Engine, ...]:
    """What is known of each engine.

    Returns
    -------
    tuple of Engine

    Examples
    --------
    >>> [record.name for record in records() if not record.factor]
    ['tensorrt-llm', 'mlx', 'transformer-engine']
    """
    return ENGINES


@on_device_of_arrays
def export(
    rope: Rope | Array,
    engine: str,
    *,
    context: int | None = None,
    base: float | None = None,
    dtype: str | None = None,
    architecture: str | None = None,
) -> dict[str, Any]:
    """A Rope as plain data, in the form in which an engine takes it.

    Parameters
    ----------
    rope : Rope or array_like
        Bare frequencies, in radians per unit of position, are a Rope with the pairing "half".
    engine : str
        One of `names`, in any spelling.
    context : int, optional
        Positions of tables and configs; that of the Rope unless given.
    base : float, optional
        Base of the ladder that divisors refer to, which the engine multiplies back: that of the Rope's ``source``, or
        10000, unless given. It changes nothing but the rounding.
    dtype : {"float16", "float32", "float64"}, optional
        Type of tables; "float32" unless given.
    architecture : str, optional
        Architecture of llama.cpp: "llama" unless given, "phi3" or "gemma4".

    Returns
    -------
    dict
        Numbers, strings, lists and NumPy arrays: for transformers, vLLM and SGLang ``rope_parameters`` and
        ``max_position_embeddings``; for llama.cpp ``tensors`` and ``keys``; for the others arguments by their names.

    Raises
    ------
    ValueError
        For an unknown engine; for a Rope that it cannot carry, with the reason; without a context where one is needed;
        for an option that the engine has no use for.
    TypeError
        For values of another kind.

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope([1.0, 0.02], attention_factor=1.1, context=4096)
    >>> made = export(rope, "transformers")
    >>> made["max_position_embeddings"], made["rope_parameters"]["short_factor"]
    (4096, [1.0, 0.4999999888241291])
    """
    kind = _engine(engine)
    options = {"context": context, "base": base, "dtype": dtype, "architecture": architecture}
    return kind.make(_asked(rope, kind, options))


@on_device_of_arrays
def rounding(
    rope: Rope | Array,
    engine: str,
    *,
    context: int | None = None,
    base: float | None = None,
    dtype: str | None = None,
    architecture: str | None = None,
) -> Rounding:
    """What an export loses, by what the engine computes in float32 and by the dtype of tables.

    Parameters
    ----------
    rope, engine, context, base, dtype, architecture
        As in `export`; a context is needed for every engine.

    Returns
    -------
    Rounding

    Raises
    ------
    ValueError, TypeError
        As `export`.

    Notes
    -----
    Frequencies are those that the engine's own arithmetic makes of the export. The error of an entry of cos or sin is
    bounded by that of its phase at the last position, ``(context - 1) |omega| (error of the frequency + float32)``, and
    grows so with the position; tables that are written whole have none of it.

    Examples
    --------
    >>> import rfrope
    >>> lost = rounding(rfrope.Rope(rfrope.geometric(64), context=131072), "transformers")
    >>> lost.frequency < 2e-7, lost.kernel < 2e-3, lost.table < 0.06
    (True, True, True)
    >>> rounding(rfrope.Rope(rfrope.geometric(64), context=131072), "onnx").table < 1e-7
    True
    """
    kind = _engine(engine)
    options = {"context": context, "base": base, "dtype": dtype, "architecture": architecture}
    asked = _asked(rope, kind, options, measured=True)
    return _rounding(asked, kind, kind.make(asked))


@on_device_of_arrays
def write(
    path: str | os.PathLike[str],
    rope: Rope | Array,
    engine: str,
    *,
    model: str | os.PathLike[str] | None = None,
    part: str | None = None,
    overwrite: bool = False,
    context: int | None = None,
    base: float | None = None,
    dtype: str | None = None,
    architecture: str | None = None,
) -> None:
    """Write a Rope to a file that an engine reads.

    The file appears complete or not at all.

    Parameters
    ----------
    path : str or path
        ``.json`` for transformers, vLLM, SGLang and TensorRT-LLM, ``.gguf`` for llama.cpp, ``.onnx`` or ``.npz`` for
        ONNX, ``.npz`` for the others that take arrays.
    rope, engine, context, base, dtype, architecture
        As in `export`. The architecture of llama.cpp is that of `model` unless given.
    model : str or path, optional
        What to copy, with its RoPE replaced: a config.json or its folder, where the engine reads configs; for llama.cpp
        the GGUF, which must be given.
    part : str, optional
        The RoPE of the config to replace, as ``"text_config"`` or ``"full_attention"``: that which the Rope came from
        unless given.
    overwrite : bool
        Replace an existing file.

    Returns
    -------
    None

    Raises
    ------
    FileExistsError
        If there is such a file, unless it may be overwritten.
    OSError
        If a folder or the model is missing, or cannot be written to or read.
    ValueError
        As `export`, and for another suffix, a model that is damaged, of another architecture, or of another width
        or pairing; a config with the Rope in it is read again and compared before it is written.
    TypeError
        As `export`.
    ModuleNotFoundError
        Without the package gguf or onnx, where it is needed.

    Examples
    --------
    >>> import os, tempfile, rfrope
    >>> path = os.path.join(tempfile.mkdtemp(), "rope.json")
    >>> write(path, rfrope.Rope([1.0, 0.02], context=4096), "vllm")
    >>> os.path.getsize(path) > 100
    True
    """
    kind, path = _engine(engine), path_of("path", path)
    if not path.endswith(kind.suffixes):
        raise ValueError(f"path is {path!r}; expected for {kind.name} a name that ends in {' or '.join(kind.suffixes)}")
    if model is not None and kind.file not in TAKE_MODELS:
        raise ValueError(f"model is {show(model)}, but nothing is copied for {kind.name}; expected no model")
    if not (part is None or isinstance(part, str)):
        raise TypeError(f"part is {show(part)}; expected the name of a part of a config, such as 'text_config'")
    if part is not None and model is None:
        raise ValueError(f"part is {show(part)}, but model is None; expected the config of which a part is replaced")
    if kind.file == "gguf" and model is not None and architecture is None:
        architecture = architecture_of(model)
    options = {"context": context, "base": base, "dtype": dtype, "architecture": architecture}
    asked = _asked(rope, kind, options)
    files.check_writable(path, overwrite=flag("overwrite", overwrite))
    place = asked.rope.source.model.name if part is None else part
    content = WRITERS[kind.file](path, kind.make(asked), model, asked.rope, place)
    files.write(path, content, overwrite=overwrite)


# -- what is asked -----------------------------------------------------------------------------------------------------


def _engine(name: Any) -> Engine:
    return _BY_NAME[named("engine", name, names())]


def _asked(rope: Any, engine: Engine, options: dict[str, Any], measured: bool = False) -> Asked:
    """Read a Rope and options, or say why the engine cannot have them."""
    rope = rope if isinstance(rope, Rope) else Rope(rope)
    for name, value in options.items():
        if value is not None and name not in engine.options and not (measured and name == "context"):
            raise ValueError(f"{name} is {show(value)}, for which {engine.name} has no use; expected no {name}")
    rope, omega = _carried(rope, engine)
    context = _context(options["context"], rope)
    if context is None and (measured or "context" in engine.options):
        raise ValueError(f"context is None, and so is the Rope's; {engine.name} needs it: expected context=")
    base = options["base"]
    base = _own_base(rope) if base is None else positive("base", base, least=2.0**-100, most=2.0**100)
    dtype = choice("dtype", options["dtype"] or "float32", _DTYPES)
    asked = Asked(rope, omega, context, base, dtype, options["architecture"] or USUAL)
    if reason := engine.refuses(asked):
        raise _refused(engine, reason)
    return asked


def _refused(engine: Engine, reason: str) -> ValueError:
    return ValueError(f"rope cannot be exported to {engine.name}: {reason}")


def _carried(rope: Rope, engine: Engine) -> tuple[Rope, np.ndarray]:
    """The Rope with its frequencies on the host, ``(D,)`` where the engine takes but one set on one axis."""
    vectors = angles.on_host(rope.vectors)
    if engine.anything:
        host = angles.as_given(angles.on_host(rope.frequencies), rope.frequencies)
        return replace(rope, frequencies=host), host
    if rope.sections is not None or vectors.shape[-1] > 1:
        axes = f"it turns by {vectors.shape[-1]} position axes; for text alone, replace(rope, sections=None) has one"
        raise _refused(engine, axes)
    if vectors.shape[:-2]:
        heads = f"its frequencies have shape {tuple(rope.frequencies.shape)}, a set for each head, and heads share one"
        raise _refused(engine, heads)
    if rope.pairing is None:
        raise _refused(engine, "its pairing is None, a way of its own")
    if check_pairing(rope.pairing) not in engine.pairings:
        only = f"the engine {engine.pairings[0]!r} alone; convert_pairing reorders weights"
        raise _refused(engine, f"it pairs {rope.pairing!r}, {only}")
    if rope.attention_factor != 1.0 and not engine.factor:
        factor = f"its attention factor {rope.attention_factor} would be dropped: multiply scores by its square"
        raise _refused(engine, factor)
    if rope.head_dim != rope.rotary_dim and not engine.partial:
        raise _refused(engine, f"it turns {rope.rotary_dim} features of {rope.head_dim}, and the engine whole heads")
    return replace(rope, frequencies=vectors[..., 0]), vectors[..., 0]


def _context(given: Any, rope: Rope) -> int | None:
    """Positions on one axis, those of the Rope unless given."""
    if given is not None:
        return whole("context", given, 1)
    if isinstance(rope.context, tuple):
        return rope.context[0] if len(rope.context) == 1 else None
    return rope.context


def _own_base(rope: Rope) -> float:
    """Base of a model's ladder, where the Rope came from one."""
    theta = rope.source.rope_parameters.get("rope_theta")
    return float(theta) if isinstance(theta, int | float) and not isinstance(theta, bool) else 10_000.0


def _rounding(asked: Asked, engine: Engine, made: dict[str, Any]) -> Rounding:
    """Hold what the engine uses against the Rope, at every lag up to 2**20 and, for the bound, at the last position."""
    used, omega, last = engine.used(asked, made), asked.omega, (asked.context or 1) - 1
    lags = np.arange(min(asked.context or 1, _MOST_LAGS))
    if used.omega is None:
        dtype = np.dtype(asked.dtype)
        cos, _ = replace(asked.rope, attention_factor=1.0).table(lags)
        missed = np.max(np.abs(np.mean(cos.astype(dtype).astype(np.float64) - cos, axis=-1)))
        return Rounding(0.0, float(missed), used.entry, last + 1)
    if np.array_equal(used.omega, omega):
        return Rounding(0.0, 0.0, used.entry + float(np.max(last * np.abs(omega) * used.phase)), last + 1)
    apart = np.abs(used.omega - omega)
    known = np.abs(omega) > 1e-30
    frequency = float(np.max(np.divide(apart, np.abs(omega), where=known, out=np.zeros_like(apart))))
    missed = np.max(np.abs(mean_kernel(lags, used.omega) - mean_kernel(lags, omega)))
    phase = last * (apart + np.abs(used.omega) * used.phase)
    return Rounding(frequency, float(missed), min(2.0, float(np.max(phase)) + used.entry), last + 1)
