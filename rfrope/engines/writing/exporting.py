"""Ropes in the formats of other engines: plain data, files, and rounding errors."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rfrope import engines
from rfrope._core import angles, files
from rfrope._core.arguments import choice, flag, path_of, positive, show, whole
from rfrope._core.array import Array, select_device
from rfrope._core.results import Result
from rfrope.analysis import mean_kernel
from rfrope.engines.record import ExportRequest, Format
from rfrope.engines.writing.files import make_content, read_architecture
from rfrope.models import Layers
from rfrope.models.rewriting import keep_scheme
from rfrope.rotation.rope import Rope

_DTYPES = ("float16", "float32", "float64")
_MOST_LAGS = 2**20
_POLAR = "it is polar, and no engine supports polar attention; layers.torch.PolarEmbedding runs it"


@dataclass(frozen=True)
class Rounding(Result):
    """Error of an export over the positions of its context.

    Attributes
    ----------
    frequency : float
        Largest relative error of the engine's frequencies above 1e-30; 0 if it is given tables.
    kernel : float
        Largest error of the mean kernel ``(1/D) sum_i cos(lag omega_i)`` with these frequencies, or this table, at lags
        0 to ``context - 1``.
    table : float
        Bound on the error of an entry of cos or sin at any position, the engine's own float32 phases included, in units
        of the attention factor. A rotated feature is off by at most ``table * (|x_1| + |x_2|)`` times that factor.
    context : int
        Number of positions.
    phases : float
        Part of `table` from the engine's own arithmetic, mainly its float32 product of position and frequency, which
        any RoPE has there. 0 for tables.
    scheme : str
        Scheme in an exported config: the config's own, "longrope" for divisors; "" where no config is exported.

    See Also
    --------
    engines.rounding

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(32), pairing="half", context=4096)
    >>> found = rfrope.engines.rounding(rope, "vllm")
    >>> found.context, found.frequency < 1e-6 < found.table
    (4096, True)
    """

    frequency: float
    kernel: float
    table: float
    context: int
    phases: float = 0.0
    scheme: str = ""

    def __str__(self) -> str:
        own = f", at most {self.phases:.1e} by the engine's float32 phases, as with any RoPE" if self.phases else ""
        return (
            f"over {self.context} positions: frequencies to {self.frequency:.1e}, the mean kernel to "
            f"{self.kernel:.1e}, entries of cos and sin within {self.table:.1e}{own}"
            f"{f'; exported as {self.scheme}' if self.scheme else ''}"
        )


@select_device
def export(
    rope: Rope | Array,
    engine: str,
    *,
    context: int | None = None,
    base: float | None = None,
    dtype: str | None = None,
    architecture: str | None = None,
) -> dict[str, Any]:
    """Return a Rope as plain data, in the form that an engine takes.

    Parameters
    ----------
    rope : Rope or array_like
        Bare frequencies, in radians per unit of position, are a Rope with pairing "half".
    engine : str
        Engine with a ``format`` in `engines.records`, in any spelling.
    context : int, optional
        Number of positions for tables and configs. Default: that of the Rope.
    base : float, optional
        Base of the ladder that divisors refer to, which the engine multiplies back; it affects only the rounding.
        Default: that of the Rope's ``source``, or 10000. With another one a config's scheme becomes divisors, too.
    dtype : {"float16", "float32", "float64"}, optional
        Type of tables. Default: "float32".
    architecture : {"llama", "phi3", "gemma4"}, optional
        Architecture of llama.cpp. Default: "llama".

    Returns
    -------
    dict
        Numbers, strings, lists and NumPy arrays. For transformers, vLLM and SGLang ``rope_parameters`` and
        ``max_position_embeddings``: the scheme of the config that the Rope still follows, where the engine reads it as
        this Rope at every length, or else divisors in longrope's keys. For llama.cpp ``tensors`` and ``keys``; for the
        others arguments by name. With one set per head, tables have a row for each head and position, in the order of
        ``format.heads`` in ``engines.records()``.

    Raises
    ------
    ValueError
        If the engine is unknown or cannot carry the Rope (the message says why), a required context is missing, or the
        engine does not use an option.
    TypeError
        If an argument is of another type.

    See Also
    --------
    engines.write, engines.names, engines.rounding

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope([1.0, 0.02], attention_factor=1.1, context=4096)
    >>> made = export(rope, "transformers")
    >>> made["max_position_embeddings"], made["rope_parameters"]["short_factor"]
    (4096, [1.0, 0.4999999888241291])
    """
    request, form = _read_request(rope, engine, context, base, dtype, architecture)
    return form.make(request)


@select_device
def rounding(
    rope: Rope | Array,
    engine: str,
    *,
    context: int | None = None,
    base: float | None = None,
    dtype: str | None = None,
    architecture: str | None = None,
) -> Rounding:
    """Return the error of an export, from the engine's float32 arithmetic and the dtype of tables.

    Parameters
    ----------
    rope, engine, context, base, dtype, architecture
        See `export`; a context is needed for every engine.

    Returns
    -------
    Rounding

    Raises
    ------
    ValueError, TypeError
        See `export`.

    See Also
    --------
    engines.Rounding, engines.export

    Notes
    -----
    Frequencies are those that the engine computes from the export. The error of an entry of cos or sin is bounded by
    that of its phase at the last position, ``(context - 1) |omega| (error of the frequency + float32)``; exported
    tables do not have this error.

    Examples
    --------
    >>> import rfrope
    >>> lost = rounding(rfrope.Rope(rfrope.geometric(64), context=131072), "transformers")
    >>> lost.frequency < 2e-7, lost.kernel < 2e-3, lost.table < 0.06
    (True, True, True)
    >>> rounding(rfrope.Rope(rfrope.geometric(64), context=8192), "onnx").table < 1e-7
    True
    """
    return _measure(*_read_request(rope, engine, context, base, dtype, architecture, needs_context=True))


@select_device
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
        ``.json`` for transformers, vLLM, SGLang, MLX-LM and TensorRT-LLM, ``.gguf`` for llama.cpp, ``.onnx`` or
        ``.npz`` for ONNX, ``.npz`` for the others that take arrays.
    rope, engine, context, base, dtype, architecture
        See `export`. Default for llama.cpp: the architecture of `model`.
    model : str or path, optional
        Model to copy, with its RoPE replaced: a config.json or its folder, if the engine reads configs; required for
        llama.cpp, as a GGUF.
    part : str, optional
        RoPE of the config to replace, as ``"text_config"`` or ``"full_attention"``. Default: the one that the Rope came
        from.
    overwrite : bool
        Replace an existing file.

    Returns
    -------
    None

    Raises
    ------
    FileExistsError
        If the file exists, unless `overwrite` is True.
    OSError
        If a folder or the model is missing, or cannot be read or written.
    ValueError
        See `export`. Also if the suffix is wrong, or the model is damaged, or of another architecture, width or
        pairing. A config is read back and compared before it is written.
    TypeError
        See `export`.
    ModuleNotFoundError
        If the package gguf or onnx is needed and missing.

    See Also
    --------
    engines.export, save

    Examples
    --------
    >>> import os, tempfile, rfrope
    >>> path = os.path.join(tempfile.mkdtemp(), "rope.json")
    >>> write(path, rfrope.Rope([1.0, 0.02], context=4096), "vllm")
    >>> os.path.getsize(path) > 100
    True
    """
    path, (name, form) = path_of("path", path, "rope", rope), engines.find_engine("engine", engine, "format")
    if not path.endswith(form.suffixes):
        raise ValueError(f"path is {path!r}; expected for {name} a name that ends in {' or '.join(form.suffixes)}")
    if model is not None and not form.copies_model:
        raise ValueError(f"model is {show(model)}, but nothing is copied for {name}; expected None")
    if not (part is None or isinstance(part, str)):
        raise TypeError(f"part is {show(part)}; expected the name of a part of a config, such as 'text_config'")
    if part is not None and model is None:
        raise ValueError(f"part is {show(part)}, but model is None; expected the config to change")
    if model is not None and architecture is None and "architecture" in form.options:
        architecture = read_architecture(model)
    request, _ = _read_request(rope, name, context, base, dtype, architecture)
    files.check_writable(path, overwrite=flag("overwrite", overwrite))
    part = request.rope.source.model.name if part is None else part
    files.write(path, make_content(path, form.make(request), model, request.rope, part), overwrite=overwrite)


# -- reading the arguments ---------------------------------------------------------------------------------------------


def _read_request(
    rope: Any, engine: Any, context: Any, base: Any, dtype: Any, architecture: Any, *, needs_context: bool = False
) -> tuple[ExportRequest, Format]:
    """Read a Rope and options for an engine, or raise with the reason against them."""
    form: Format
    name, form = engines.find_engine("engine", engine, "format")
    rope = _read_rope(rope)
    options = {"context": context, "base": base, "dtype": dtype, "architecture": architecture}
    for option, value in options.items():
        if value is not None and option not in form.options and not (needs_context and option == "context"):
            raise ValueError(f"{option} is {show(value)}, which {name} does not use; expected no {option}")
    vectors = angles.read_on_host(rope.vectors)
    if reason := _POLAR if rope.polar else "" if form.any_rope else _find_obstacle(rope, vectors.shape, form):
        raise ValueError(f"rope cannot be exported to {name}: {reason}")
    host = vectors[..., 0] if vectors.ndim < 3 else vectors  # of several heads (H, D, 1)
    if form.any_rope:
        host = angles.from_vectors(angles.read_on_host(rope.frequencies), rope.frequencies)
    lengths = rope.context if isinstance(rope.context, tuple) else (rope.context,)
    if context is not None:
        context = whole("context", context, 1)
    elif len(lengths) == 1:
        (context,) = lengths
    if context is None and (needs_context or "context" in form.options):
        raise ValueError(f"context is None, and so is the Rope's; {name} needs it: expected context=")
    theta = rope.source.rope_parameters.get("rope_theta")
    usual = theta if isinstance(theta, int | float) and not isinstance(theta, bool) else 1e4
    base = positive("base", usual if base is None else base, minimum=2.0**-100, maximum=2.0**100)
    rope = replace(rope, frequencies=host)
    scheme = keep_scheme(rope, context, name) if _is_config(form) and base == theta else None
    dtype = choice("dtype", dtype or "float32", _DTYPES)
    request = ExportRequest(rope, context, base, dtype, architecture or "llama", scheme)
    reason, factor = "" if form.refusal is None else form.refusal(request), rope.attention_factor
    if not reason and factor != 1.0 and not form.factor and scheme is None:
        reason = f"its attention factor {factor} would be dropped: multiply scores by its square"
    if reason:
        raise ValueError(f"rope cannot be exported to {name}: {reason}")
    return request, form


def _is_config(form: Format) -> bool:
    return form.copies_model and form.suffixes == (".json",)


def _read_rope(rope: Any) -> Rope:
    if isinstance(rope, Layers):
        raise TypeError("rope is the layers of a model; expected one of its ropes at a time")
    if isinstance(rope, list | tuple) and any(isinstance(one, Rope) for one in rope):
        raise ValueError(f"rope has {len(rope)} Ropes, one per layer, but engines use one for each kind; expected one")
    return rope if isinstance(rope, Rope) else Rope(rope)


def _find_obstacle(rope: Rope, shape: tuple[int, ...], form: Format) -> str:
    """Return why a format, which takes one axis, cannot hold a Rope with vectors of that shape; or ""."""
    if rope.sections is not None:
        return f"it has {shape[-1]} position axes; for text alone, pass replace(rope, sections=None)"
    if shape[-1] > 1:
        return (
            f"it has {shape[-1]} position axes, and the engine has one; 'json' and 'npz' hold its frequencies, "
            "rope.table makes a table for a grid, layers.torch.RotaryEmbedding runs it; if all axes have the same "
            "position, as in text, export frequencies.sum(-1)"
        )
    if len(shape) > (3 if form.heads else 2):
        return f"its frequencies have shape {tuple(rope.frequencies.shape)}, one set per head, but the engine has one"
    if rope.pairing is None:
        return "its pairing is None, which no engine has"
    if rope.pairing not in form.pairings:
        return f"it pairs {rope.pairing!r}, and the engine only {form.pairings[0]!r}; convert_pairing reorders weights"
    return ""


def _measure(request: ExportRequest, form: Format) -> Rounding:
    """Compare the engine's values with the Rope's, at lags up to 2**20 and, for the bound, at the last position."""
    if request.heads is not None:
        sets = (replace(request.rope, frequencies=one) for one in request.rope.frequencies[..., 0])
        found = [_measure(replace(request, rope=one), form) for one in sets]
        worst = {name: max(getattr(one, name) for one in found) for name in ("frequency", "kernel", "table")}
        return Rounding(**worst, context=found[0].context)
    made, exact = form.arithmetic(request, form.make(request)), request.rope.frequencies
    context = request.context or 1
    scheme = str((request.scheme or {}).get("rope_type", "longrope")) if _is_config(form) else ""
    lags, last = np.arange(min(context, _MOST_LAGS)), context - 1
    if made.frequencies is None:
        cos, _ = replace(request.rope, attention_factor=1.0).table(lags)
        missed = np.max(np.abs(np.mean(cos.astype(request.dtype).astype(np.float64) - cos, axis=-1)))
        return Rounding(0.0, float(missed), made.entry_error, context)
    if np.array_equal(made.frequencies, exact):
        table = made.entry_error + float(np.max(last * np.abs(exact) * made.phase_error))
        return Rounding(0.0, 0.0, table, context, table, scheme)
    apart = np.abs(made.frequencies - exact)
    relative = np.divide(apart, np.abs(exact), where=np.abs(exact) > 1e-30, out=np.zeros_like(apart))
    missed = np.max(np.abs(mean_kernel(lags, made.frequencies) - mean_kernel(lags, exact)))
    phases = last * np.abs(made.frequencies) * made.phase_error
    table, own = (min(2.0, float(np.max(one)) + made.entry_error) for one in (last * apart + phases, phases))
    return Rounding(float(np.max(relative)), float(missed), table, context, own, scheme)
