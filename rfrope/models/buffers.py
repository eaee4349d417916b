"""Find the RoPE frequencies and tables of a running model in arrays, dicts and modules, and read the tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import array, files
from rfrope._core.arguments import printable
from rfrope.rotation.rope import Rope

FREQUENCIES = ("inv_freq", "inv_freqs", "freqs", "theta")
COS = ("cos_cached", "cos_cache", "cos")
SIN = ("sin_cached", "sin_cache", "sin")
TABLES = ("cos_sin_cache", "freqs_cis", "rotary_cos_sin")
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # names of safetensors
_LONGEST = 10**8  # bytes of its header
ROUNDED = 4e-6  # relative error of float32 exponents at a base of 1e9
TINY = 1e-29  # frequencies up to this count as 0; exports write a zero as 1e-30 or less
HALVES = {8: "bfloat16", 11: "float16"}  # by mantissa bits
FINE = 2e-6  # error of cos and sin in float32
_PHASES = 2.0**-22  # relative: four roundings to float32 on the way to a phase
_FAR = 2**15  # largest position from which frequencies are read
_FEW, _ROWS = 2**6, 2**12  # per chunk: in the first, and at most
_DENSE, _SPARSE = 512, 256  # number of rows examined: the first ones, and a sample of the others


@dataclass(frozen=True, eq=False)
class Buffer:
    """Frequencies or a cos/sin table found in a model."""

    name: str  # where it is
    values: np.ndarray  # frequencies (D,) in float64; or a table: cos and sin of float dtype, (S, 2, D)
    dtype: str = "float64"
    attention_factor: float | None = None  # factor of cos and sin, held beside frequencies
    pairing: str | None = None  # {"half", "interleaved"} or None: from the column order of a table
    layer: str = ""  # kind of layer, if a module has several
    fault: str = ""  # why there are no values

    @property
    def is_table(self) -> bool:
        """True for a table, False for frequencies."""
        return self.values.ndim == 3

    @property
    def blocks(self) -> int:
        """Number of frequencies."""
        return int(self.values.shape[-1])

    def rows(self, index: Any) -> np.ndarray:
        """Return rows of a table as complex numbers, cos + i sin."""
        found = self.values[index].astype(np.float64)
        return np.asarray(found[..., 0, :] + 1j * found[..., 1, :])


def find_buffers(what: Any) -> tuple[Buffer, ...]:
    """Return all RoPE arrays found in an object.

    Raises
    ------
    ValueError, TypeError
        If there are none, or an array has no shape of frequencies or tables.
    """
    if hasattr(what, "named_modules"):
        found = tuple(
            one for prefix, part in what.named_modules() for one in search_names(prefix, list_tensors(part), part)
        )
        looked = "buffers, parameters and attributes"
    elif isinstance(what, Mapping):
        found = tuple(search_names("", dict(what)))
        looked = "keys"
    elif isinstance(what, list | tuple) and len(what) == 2 and _count_axes(what[0]) > 1:
        return (_read_pair("table", what[0], what[1]),)
    else:
        return (_read_array("frequencies" if _count_axes(what) < 2 else "table", what),)
    if not found:
        names = ", ".join((*FREQUENCIES, *COS, *SIN, *TABLES))
        raise ValueError(f"what holds no frequencies or tables of a RoPE; looked for {looked} called {names}")
    return found


def read_stored(folder: str) -> dict[str, np.ndarray]:
    """Return the frequencies in the safetensors files of a folder; nothing else is read.

    Raises
    ------
    ValueError, LookupError, TypeError, AttributeError, OSError
        If a file is damaged, or cannot be read.
    """
    found = {}
    for path in sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors")):
        with files.open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
            for name, held in files.parse_json(file.read(min(size, _LONGEST)).decode()).items():
                if name.endswith("inv_freq"):
                    start, end = held["data_offsets"]
                    file.seek(8 + size + start)
                    values = np.frombuffer(file.read(min(end - start, _LONGEST)), _STORED[held["dtype"]])
                    wide = (values.astype(np.uint32) << 16).view(np.float32) if held["dtype"] == "BF16" else values
                    found[name] = wide.reshape(held["shape"])
    return found


# -- modules and dicts -------------------------------------------------------------------------------------------------


def list_tensors(part: Any) -> dict[str, Any]:
    """Return the buffers, parameters and attributes of a module that are arrays."""
    tensors = {**part._buffers, **part._parameters, **{k: v for k, v in vars(part).items() if hasattr(v, "dtype")}}
    return {name: value for name, value in tensors.items() if value is not None}


def search_names(prefix: str, tensors: dict[str, Any], part: Any = None) -> Iterator[Buffer]:
    """Yield the frequencies and tables among arrays, by their names."""

    def label(name: str) -> str:
        return printable(f"{prefix}.{name}" if prefix else name)

    for name, value in tensors.items():
        last = name.rpartition(".")[2]
        layer = last.removesuffix("_inv_freq") if last.endswith("_inv_freq") else ""
        if last in FREQUENCIES or (layer and "original" not in layer and layer != "long"):
            scale = getattr(part, f"{layer}_attention_scaling" if layer else "attention_scaling", None)
            yield _read_array(label(name), value, attention_factor=scale, layer=layer)
        elif last in TABLES or (last == "cache" and np.ndim(value) == 3 and value.shape[-1] == 2):
            yield _read_array(label(name), value)
        elif last in COS:
            other = name.removesuffix(last) + SIN[COS.index(last)]
            if other in tensors:
                yield _read_pair(label(name), value, tensors[other])


# -- arrays and their layouts ------------------------------------------------------------------------------------------


def _read_array(name: str, value: Any, attention_factor: float | None = None, layer: str = "") -> Buffer:
    if isinstance(value, Rope):
        value = value.frequencies
    if str(getattr(value, "device", "")) == "meta":
        return Buffer(name, np.zeros(tuple(value.shape)), layer=layer, fault="it is on the meta device, without values")
    dtype, host = _host(name, value)
    squeezed = host.reshape([n for n in host.shape if n != 1] or [1])
    if squeezed.ndim == 1 and host.ndim > 1 and (np.iscomplexobj(host) or name.rpartition(".")[2] in TABLES):
        squeezed = squeezed[None]  # a table with one row
    if squeezed.ndim == 1 and not np.iscomplexobj(squeezed):
        factor = None if attention_factor is None else float(attention_factor)
        return Buffer(name, squeezed.astype(np.float64), dtype, factor, layer=layer)
    if np.iscomplexobj(squeezed) and squeezed.ndim == 2:
        squeezed = np.stack([squeezed.real, squeezed.imag], axis=-1)
    if squeezed.ndim == 3 and squeezed.shape[-1] == 2:
        return Buffer(name, np.moveaxis(squeezed, -1, 1), dtype, layer=layer)
    if squeezed.ndim == 2 and squeezed.shape[1] % 2 == 0:
        # by the first row, in which sin is 0 and cos is not
        halves, neighbours = np.split(squeezed, 2, axis=1), (squeezed[:, 0::2], squeezed[:, 1::2])
        orders = (halves, halves[::-1], neighbours)
        nearest = min(orders, key=lambda parts: float(np.sum(np.abs(parts[1][0]) - np.abs(parts[0][0]))))
        return Buffer(name, np.stack(nearest, axis=1), dtype, layer=layer)
    raise ValueError(
        f"{name} has shape {tuple(host.shape)}; expected frequencies (D,), a table (S, 2D) or (S, D, 2) of cos "
        "and sin, or a complex one (S, D); pass a table of cos and one of sin as a pair"
    )


def _count_axes(value: Any) -> int:
    """Return the number of axes of an array or of nested lists of numbers."""
    return int(value.ndim) if hasattr(value, "ndim") else array.host_numbers(value, "what").ndim


def _read_pair(name: str, cos: Any, sin: Any) -> Buffer:
    if "meta" in (str(getattr(cos, "device", "")), str(getattr(sin, "device", ""))):
        return Buffer(name, np.zeros((1, 2, 1)), fault="it is on the meta device, without values")
    (dtype, real), (_, imaginary) = _host(name, cos), _host(name, sin)
    real, imaginary = (each.reshape(-1, each.shape[-1]) for each in (real, imaginary))
    if real.shape != imaginary.shape:
        raise ValueError(f"{name}: cos has shape {real.shape}, sin {imaginary.shape}; expected the same")
    parts, width = [real, imaginary], real.shape[1]
    if width % 2 == 0 and width > 2 and not np.all(real == real.flat[0]):
        halves = slice(width // 2), slice(width // 2, None)
        copies = {"half": halves, "interleaved": (slice(0, None, 2), slice(1, None, 2))}
        for pairing, (first, second) in copies.items():
            if all(np.array_equal(one[:, first], one[:, second], equal_nan=True) for one in parts):
                return Buffer(name, np.stack([one[:, first] for one in parts], axis=1), dtype, pairing=pairing)
    return Buffer(name, np.stack(parts, axis=1), dtype)


def _host(name: str, value: Any) -> tuple[str, np.ndarray]:
    """Return the dtype and a host copy; half precision is widened, as NumPy lacks bfloat16."""
    if not hasattr(value, "dtype"):
        value = array.host_numbers(value, name)
        if value.dtype.kind not in "iuf":
            raise TypeError(f"{name} holds {value.dtype}; expected real floating numbers")
        value = value.astype(np.float64)
    array.namespace(**{name: value})
    dtype = array.dtype_name(value)
    if not (array.is_real_floating(value) or array.is_integer(value) or dtype.startswith("complex")):
        raise TypeError(f"{name} has dtype {dtype}; expected real or complex floating numbers")
    host = array.to_host(value, name)
    if host.ndim == 0 or host.size == 0:
        raise ValueError(f"{name} has shape {tuple(host.shape)}; expected at least one frequency")
    return dtype, host.astype(np.float32) if dtype in HALVES.values() else host


@dataclass(frozen=True, eq=False)
class TableEstimate:
    """Numbers read from a table."""

    frequencies: np.ndarray  # (D,), radians per position
    allowed: np.ndarray  # (D,), tolerance of frequencies
    factor: float  # magnitude of cos + i sin
    spread: float  # largest deviation from it
    start: int  # position of the first row
    reach: int  # largest distance of rows from which frequencies were read


def bits(values: np.ndarray, dtype: str = "") -> int:
    """Return the mantissa bits that numbers need: 8, 11 or 53; a half-precision dtype determines them."""
    mantissas = np.abs(np.frexp(values[..., :_DENSE].astype(np.float64))[0])
    narrow = (width for width, name in HALVES.items() if dtype == name)
    return next(narrow, next((width for width in HALVES if np.all(mantissas * 2.0**width % 1.0 == 0.0)), 53))


def rounded(values: np.ndarray, width: int) -> np.ndarray:
    """Return numbers rounded to a number of bits; float16 has fewer below its smallest normal number."""
    mantissas, exponents = np.frexp(values)
    if width == 11:
        return np.asarray(values, dtype=np.float16).astype(np.float64)
    return np.asarray(np.ldexp(np.round(mantissas * 2.0**width) / 2.0**width, exponents))


def noise(buffer: Buffer) -> float:
    """Return the rounding error of cos and sin."""
    width = bits(buffer.values[_looked_at(buffer)], buffer.dtype)
    return 2.0**-width if width in HALVES else FINE


def read(buffer: Buffer, rope: Rope) -> TableEstimate:
    """Return what a table shows; a single row shows no frequencies, which are then 0."""
    rows, rounding = buffer.rows(_looked_at(buffer)), noise(buffer)
    size = np.abs(rows)
    factor = float(np.median(size))
    spread = float(np.max(np.abs(size / factor - 1.0))) if factor > 0.0 else 0.0
    frequencies, apart = np.zeros(buffer.blocks), 1
    while apart < min(len(buffer.values), _FAR + 1):  # from rows at distances that double
        turned = np.angle(buffer.rows(apart) * np.conj(buffer.rows(0))) - frequencies * apart
        frequencies = frequencies + (turned - 2.0 * np.pi * np.round(turned / (2.0 * np.pi))) / apart
        apart *= 2
    last = max(1, apart // 2)
    allowed = np.zeros(buffer.blocks)
    if buffer.blocks == rope.n_blocks:
        allowed = ROUNDED * np.abs(np.asarray(rope.frequencies)) + 4.0 * rounding / last
    start = 0  # the first row may be at another position
    if factor > 0.0:
        phases = np.multiply.outer(np.arange(_DENSE), frequencies)
        is_near = np.all(np.abs(rows[0] / factor - np.exp(1j * phases)) < 8.0 * rounding, axis=1)
        start = int(np.argmax(is_near))
    return TableEstimate(frequencies, allowed, factor, spread, start, last)


def _looked_at(buffer: Buffer) -> np.ndarray:
    length = len(buffer.values)
    far = np.minimum(np.geomspace(1, max(1, length - 1), _SPARSE).astype(int), length - 1)
    return np.unique(np.concatenate([np.arange(min(length, _DENSE)), far]))


def _exact(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(1j * np.multiply.outer(positions.astype(np.float64), frequencies)))


def rows_unlike(buffer: Buffer, reading: TableEstimate, rounding: float) -> tuple[str, str] | None:
    """Return the fault of rows whose frequencies are right: half precision of positions or phases, or another."""
    chunks = np.split(np.arange(len(buffer.values)), range(_ROWS, len(buffer.values), _ROWS))
    found = np.concatenate([at[np.any(_unlike(buffer, at, reading, rounding), axis=1)] for at in chunks])
    if not found.size:
        return None
    at, frequencies = _looked_at(buffer), reading.frequencies
    rows, off = buffer.rows(at) / reading.factor, _unlike(buffer, at, reading, rounding)
    allowed = 4.0 * rounding + 2.0 * ROUNDED * np.multiply.outer(at, np.abs(frequencies))
    allowed = allowed + at[:, None] * reading.allowed
    if text := find_rounding(rows, at, frequencies, allowed, off):
        repeated = f": rows repeat first at position {found[0]}" if text.startswith("positions") else ""
        return "half precision", text + repeated
    return "rows", f"{found.size} of {len(buffer.values)} rows do not match their positions, first at {found[0]}"


def find_rounding(
    rows: np.ndarray, at: np.ndarray, frequencies: np.ndarray, allowed: np.ndarray, off: np.ndarray
) -> str:
    """Return what was rounded to half precision, positions or phases, if that explains the values that are off."""
    positions = at.astype(np.float64)
    phases = np.multiply.outer(positions, np.abs(frequencies))
    for width, name in HALVES.items() if np.any(off) else ():
        with np.errstate(over="ignore", invalid="ignore"):  # float16 overflows at 65504; NaN matches nothing
            of_positions = np.abs(rows - _exact(rounded(positions, width), frequencies))
            apart = np.abs(rows - np.exp(1j * np.sign(frequencies) * rounded(phases, width)))
        if np.all(of_positions <= allowed):
            return f"positions rounded to {name}"
        is_near = np.all(apart <= allowed + phases * 2.0**-width)  # at large phases, being near means little
        if is_near and np.sum((apart <= allowed)[off]) > 0.9 * np.sum(off):
            return f"phases rounded to {name}"
    return ""


def _unlike(buffer: Buffer, at: np.ndarray, reading: TableEstimate, rounding: float) -> np.ndarray:
    """Return which rows do not match the table's own frequencies with phases in float32."""
    positions = at.astype(np.float64)
    phases = np.multiply.outer(positions, np.abs(reading.frequencies))
    allowed = 4.0 * rounding * (1.0 + positions[:, None] / reading.reach) + _PHASES * phases
    return np.asarray(np.abs(buffer.rows(at) / reading.factor - _exact(at, reading.frequencies)) > allowed)


def first_off(buffer: Buffer, rope: Rope, allowed: float, limit: int) -> int | None:
    """Return the first position with a cos or sin off by more than `allowed`: of a table, or below a limit."""
    factor = rope.attention_factor if buffer.attention_factor is None else buffer.attention_factor
    room, stop, expected = allowed - abs(factor - rope.attention_factor), limit, np.asarray(rope.frequencies)
    if buffer.is_table:
        if len(buffer.values) == 1:  # position 0 alone, where all columns are 1
            return 0 if np.max(np.abs(buffer.rows(0) - rope.attention_factor)) > allowed else None
        stop = len(buffer.values)
    elif room < 0.0:
        return 0
    if buffer.blocks != rope.n_blocks:
        return 1
    nearest = np.zeros(buffer.blocks)
    if not buffer.is_table:  # the chord bounds both errors; it reaches `room` at these positions at the earliest
        angle = 2.0 * np.arcsin(min(1.0, room / (2.0 * rope.attention_factor)))
        with np.errstate(divide="ignore", invalid="ignore"):
            nearest = np.where(buffer.values == expected, np.inf, np.floor(angle / np.abs(buffer.values - expected)))
    start, size = int(min(np.min(nearest), stop)), _FEW
    while start < stop:
        at = np.arange(start, min(start + size, stop))
        moving = nearest <= at[-1]
        found = buffer.rows(at)[:, moving] if buffer.is_table else factor * _exact(at, buffer.values[moving])
        off = found - rope.attention_factor * _exact(at, expected[moving])
        if np.any(is_off := np.any(np.maximum(np.abs(off.real), np.abs(off.imag)) > allowed, axis=1)):
            return start + int(np.argmax(is_off))
        start, size = start + size, min(2 * size, _ROWS)
    return None
