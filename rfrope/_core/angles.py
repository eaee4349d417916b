"""The gate for positions, frequencies and shifts: read once, in one form, with an error that names what is wrong.

Below the gate positions are ``(*P, k)`` and frequencies ``(*H, D, k)``, so that nothing there asks whether there is one
axis or several: frequencies ``(D,)`` of one axis are ``(D, 1)``, and scalar positions ``P`` become ``(*P, 1)``.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import array, libraries
from rfrope._core.arguments import LARGEST
from rfrope._core.array import Array

_SETS = {  # the frequencies that a function takes, as its errors word it
    "any": "(D,), or (*H, D, k) for k axes",
    "one": "one set, (D,) or (D, k)",
    "one axis": "one set, (D,) or (D, 1)",
    "heads": "one set, (D,), or one for each head, (H, D, 1)",
    "line": "(D,)",
}


_NARROW = ("float16", "bfloat16")
MISSED = 0.05  # radians: what narrow positions and frequencies may miss without a word


class PrecisionWarning(UserWarning):
    """Positions or frequencies have a dtype too narrow for their phases."""


class Angles(NamedTuple):
    """Checked positions, frequencies and shift of the phases ``positions . frequencies + shift``."""

    positions: Array  # (*P, k): integers or floats
    # (*H, D, k), radians per unit of position: the widest float of `xp`; of NumPy where they were given as numbers that
    # `xp` could not hold
    frequencies: Array
    shift: Array | None  # radians, or None: broadcasts against the phases
    xp: ModuleType  # the namespace of the positions

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the phases: ``P + (D,)``, or what ``positions @ frequencies^T`` and the shift broadcast to."""
        return self.shape_for("positions")

    def shape_for(self, name: str) -> tuple[int, ...]:
        """Return that shape; errors call the positions by a name."""
        positions, frequencies = self.positions.shape, self.frequencies.shape
        shape = tuple(frequencies[:-1])
        if len(positions) > 1:
            leading = tuple(positions[:-2])
            if len(frequencies) > 2:
                leading = array.broadcast_shapes({name: leading, "frequencies": frequencies[:-2]})
            shape = (*leading, positions[-2], frequencies[-2])
        origin = f"the phases from {name} and frequencies"
        return shape if self.shift is None else array.broadcast_shapes({"shift": self.shift.shape, origin: shape})

    @property
    def blocks(self) -> int:
        """D."""
        return int(self.frequencies.shape[-2])

    @property
    def device(self) -> Any:
        """Device of the positions; None for a library without devices."""
        return array.device(self.positions)

    @property
    def tokens(self) -> int:
        """Return how many positions there are along the last of their axes: 1 for a single one."""
        return int(self.positions.shape[-2]) if token_axes(self.positions) else 1

    def to_rows(self) -> Angles:
        """The same, without a shift, as rows of positions ``(..., L, k)``; a single one, ``(k,)``, is a row of one.

        What is summed over the blocks then has a last axis that `drop_row_axis` drops.
        """
        return self if token_axes(self.positions) else self._replace(positions=self.positions[None, :])

    def drop_row_axis(self, found: Array) -> Array:
        """Undo `to_rows` for values ``(..., L)`` at each position."""
        return found if token_axes(self.positions) else found[..., 0]

    def axes(self) -> Iterator[tuple[Array, Array]]:
        """Yield, axis by axis, positions and frequencies that broadcast to the shape of the phases."""
        tokens = token_axes(self.positions)
        for axis in range(self.frequencies.shape[-1]):
            frequency = self.frequencies[..., axis]
            yield self.positions[..., axis][..., None], frequency[..., None, :] if tokens else frequency

    def select_positions(self, span: slice) -> Angles:
        """Those at some of the positions, along the last of their axes."""
        return self._replace(positions=self.positions[..., span, :], shift=rows(self.shift, span))

    def select_blocks(self, span: slice) -> Angles:
        """Those of some blocks."""
        shift = self.shift
        if shift is not None and shift.ndim and shift.shape[-1] > 1:
            shift = shift[..., span]
        with array.library(self.frequencies).eager(self.frequencies):
            return self._replace(frequencies=self.frequencies[..., span, :], shift=shift)


def read(
    positions: Any,
    frequencies: Any,
    shift: Any = None,
    *,
    name: str = "positions",
    minimum: int = 0,
    shapes: str = "any",
    other_arguments: Mapping[str, Any] | None = None,
    pairing: str | None = None,
    **arrays: Any,
) -> Angles:
    """Read the angles of a public call: find the library and device that its arrays share, and check.

    Parameters
    ----------
    positions, frequencies, shift, name, minimum, shapes
        As in `checked`; frequencies may be those of a Rope.
    other_arguments : mapping, optional
        Further arguments that say how to turn, by their names: as NumPy arrays they fit beside any library.
    pairing : str, optional
        How the call pairs features, where it has any: a Rope that turns otherwise is refused (see `frequencies_of`).
    **arrays
        The call's other arrays, by their names.

    Raises
    ------
    ValueError, TypeError
        See `checked`. Also for arrays of several libraries or devices.
    """
    frequencies = frequencies_of(frequencies, pairing, None if pairing is None else 1.0, arrays.get("q"))
    constants = {name: positions, "frequencies": frequencies, "shift": shift, **(other_arguments or {})}
    xp, device = array.shared(constants, **arrays)
    return check_angles(positions, frequencies, shift, xp, device, name, minimum=minimum, shapes=shapes)


def check_angles(
    positions: Any,
    frequencies: Any,
    shift: Any,
    xp: ModuleType,
    device: Any,
    name: str = "positions",
    *,
    frequencies_name: str = "frequencies",
    minimum: int = 0,
    shapes: str = "any",
) -> Angles:
    """Check positions, frequencies and shift, and bring lists to the caller's library and device.

    Parameters
    ----------
    positions : array_like
        Any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for frequencies ``(*H, D, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    shift : array_like, radians, or None
        Broadcasts against the phases.
    xp, device
        Those that `array.shared` found for all arrays of the call.
    name, frequencies_name : str
        What the caller calls the positions, and the frequencies where these are checked already.
    minimum, shapes
        The frequencies that are allowed, as in `read_frequencies`.

    Raises
    ------
    ValueError
        For shapes that do not fit together or are not allowed, and for NaN, infinity or magnitudes above 2**500.
    TypeError
        For arrays that do not hold real numbers.
    """
    positions = array.numbers(_whole(positions, name, xp, device), xp, name=name, device=device)
    omega = read_frequencies(frequencies, xp, device, minimum=minimum, shapes=shapes)
    positions = add_axis_dimension(positions, frequencies)
    if positions.ndim == 0 or positions.shape[-1] != omega.shape[-1]:
        hint = f": use {name}[..., None]" if omega.shape[-1] == 1 else ""
        raise ValueError(
            f"{name} has shape {tuple(positions.shape)}, but {frequencies_name} of shape {tuple(omega.shape)} have "
            f"k = {omega.shape[-1]} axes; expected {name} of shape (..., {omega.shape[-1]}){hint}"
        )
    check_values(name, positions, xp)
    warn_of_narrow_positions(positions, omega, name)
    if shift is not None:
        shift = array.widen_on_host(array.numbers(shift, xp, name="shift", device=device), xp)
        check_values("shift", shift, xp)
        omega = _widen_single(omega, shift)
    _warn_of_16_bits(frequencies, positions, xp, name)
    angles = Angles(positions, omega, shift, xp)
    angles.shape_for(name)  # refuses what does not broadcast, by the names of the call
    return angles


def read_frequencies(
    value: Any, xp: ModuleType, device: Any = None, *, name: str = "frequencies", minimum: int = 0, shapes: str = "any"
) -> Array:
    """Check frequencies, and return them as ``(*H, D, k)``.

    Lists and NumPy arrays stay float64 arrays of NumPy where the library has no float64, so that they lose nothing.

    Parameters
    ----------
    value : array_like, radians per unit of position
        ``(D,)``, which is returned as ``(D, 1)``, or ``(*H, D, k)``.
    xp, device
        Those that `array.shared` found for all arrays of the call.
    name : str
        What the caller calls them.
    minimum : int
        How many blocks there must be, 0 or 1.
    shapes : {"any", "one", "one axis", "heads", "line"}
        What is allowed: all of the above; one set, without heads; one of one axis; one for each head; ``(D,)`` alone.

    Raises
    ------
    ValueError
        For another shape, and for NaN, infinity or magnitudes above 2**500.
    TypeError
        For an array that does not hold real numbers.
    """
    exact = xp is not np and isinstance(value, list | tuple | np.ndarray) and not array.has_float64(xp, device)
    space = np if exact else xp
    omega = array.widen(array.numbers(value, space, name=name, device=None if exact else device), space)
    shape = tuple(omega.shape)
    if not shape:
        raise ValueError(f"{name} is a single number; expected {_SETS[shapes]}")
    if omega.ndim > 1 and omega.shape[-1] == 0:
        raise ValueError(f"{name} has shape {tuple(omega.shape)}; expected at least one position axis")
    check_values(name, omega, space)
    if type(omega) is np.ndarray:
        omega = add_axis_dimension(omega, omega)
    else:
        # where there is no float64, phases are exact for frequencies with values alone
        with array.library(omega).eager(omega):
            vectors = add_axis_dimension(omega, omega)
        if not libraries.is_compiling() and (hasattr(omega, "fine_words") or hasattr(omega, "on_host")):
            # see turns.make_integer_turns
            for prepared in ("turn_words", "fine_words", "float64_bits", "on_host"):
                if hasattr(omega, prepared):
                    setattr(vectors, prepared, getattr(omega, prepared))
        omega = vectors
    most = {"line": 1, "heads": 3, "any": len(shape)}.get(shapes, 2)
    if len(shape) > most or (shapes in ("one axis", "heads") and omega.shape[-1] > 1):
        hint = ": call the function for each head" if len(shape) > 2 >= most else ""
        raise ValueError(f"{name} has shape {shape}; expected {_SETS[shapes]}{hint}")
    if omega.shape[-2] < minimum:
        raise ValueError(f"{name} has shape {shape}; expected at least one block")
    return omega


def read_on_host(value: Any, name: str = "frequencies", *, shapes: str = "any") -> np.ndarray:
    """Check frequencies that stand alone, or those of a Rope, and bring them to NumPy as ``(*H, D, k)`` float64."""
    return read_frequencies(numbers_on_host(frequencies_of(value), name), np, name=name, minimum=1, shapes=shapes)


def numbers_on_host(value: Any, name: str) -> np.ndarray:
    """Check integers or real floating numbers of any library, and bring them to NumPy."""
    read = array.numbers(value, array.namespace(**{name: value}), name=name)
    return read if isinstance(read, np.ndarray) else array.to_host(read, name)


def lags(value: Any, axes: int, name: str = "lags", law: Any = None, **arrays: Any) -> tuple[Array, ModuleType, Any]:
    """Read the lags of a public call whose frequencies follow a law, and find what its arrays share.

    Parameters
    ----------
    value : array_like, in units of position
        Any shape ``P`` for one axis, ``(*P, k)`` for k; a NumPy array fits beside arrays of any library.
    axes : int
        k.
    name : str
        What the caller calls them.
    law : object, optional
        Whose axes they are, for errors.
    **arrays
        The call's other arrays, by their names.

    Returns
    -------
    lags : array, (*P, k)
        In the widest float.
    xp, device
        As from `array.shared`.

    Raises
    ------
    ValueError, TypeError
        See `read`.
    """
    xp, device = array.shared({name: value}, **arrays)
    return checked_lags(value, axes, xp, device, name, law), xp, device


def checked_lags(value: Any, axes: int, xp: ModuleType, device: Any, name: str, law: Any) -> Array:
    """Read lags as `lags` does, where it is known what the arrays of the call share."""
    return to_vectors_of(law, read_numbers(name, value, xp, device), axes, name)


# -- the form that users give and get ----------------------------------------------------------------------------------


def is_line(frequencies: Any) -> bool:
    """Return whether frequencies are ``(D,)``, of one axis, for scalar positions; or a number of axes is 1."""
    if isinstance(frequencies, int):
        return frequencies == 1
    return len(frequencies.shape if hasattr(frequencies, "shape") else np.shape(frequencies)) == 1


def token_axes(positions: Array) -> int:
    """Return the number of token axes between heads and blocks of the phases: 1, or 0 for one position ``(k,)``."""
    return min(positions.ndim - 1, 1)


def add_axis_dimension(value: Array, like: Any) -> Array:
    """Give numbers the last axis that they have below the gate.

    Parameters
    ----------
    value : array
        Positions, lags or frequencies, in their user's form.
    like : array_like or int
        Frequencies in theirs, or the number of axes of a law, which decides the form of its lags.
    """
    return value[..., None] if is_line(like) else value


def to_vectors_of(law: Any, value: Array, axes: int, name: str) -> Array:
    """Give the lags or frequencies of a law the last axis that they have below the gate, or say that it lacks axes."""
    vectors = value[..., None] if axes == 1 else value
    if vectors.ndim == 0 or vectors.shape[-1] != axes:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (..., {axes}): {law!r} has {axes} axes")
    return vectors


def from_vectors(vectors: Array, like: Any) -> Array:
    """Undo `add_axis_dimension`: the one way back to the form that a user gave, or gets."""
    return vectors[..., 0] if is_line(like) else vectors


def frequencies_of(
    value: Any, pairing: str | None = None, scale: Any = None, x: Any = None, name: str = "x", polar: bool = False
) -> Any:
    """Return the frequencies of a record that holds some, such as a Rope, and anything else as it came.

    The record checks that the call turns features as it would.

    Parameters
    ----------
    value : Rope or array_like
    pairing : str, optional
        How the call pairs features, where it has any.
    scale : float or array_like, optional
        What the call multiplies cos and sin by, where it has any; 1 where it multiplies them by nothing.
    x : array_like, optional
        The features of the call.
    name : str
        What the call names them.
    polar : bool
        Whether its features are magnitudes, with one frequency each.

    Raises
    ------
    ValueError
        As the record: for another pairing, attention factor, kind or width of features.
    """
    read_record = getattr(value, "_frequencies_for", None)
    return value if read_record is None else read_record(pairing, scale, x, name, polar)


def check_values(name: str, value: Array, xp: ModuleType) -> None:
    """Refuse NaN, infinity and magnitudes that could overflow, where looking is free (see `array.has_host_values`)."""
    if not array.is_integer(value) and not array.all_within(value, LARGEST, xp):
        raise ValueError(f"{name} holds NaN or infinity, or magnitudes above 2**500; expected finite numbers")


def read_numbers(name: str, value: Any, xp: ModuleType, device: Any = None) -> Array:
    """Return finite real numbers in the widest float."""
    read = array.widen(array.numbers(value, xp, name=name, device=device), xp)
    check_values(name, read, xp)
    return read


def rows(values: Array | None, span: slice) -> Array | None:
    """Rows ``(..., rows, D)`` of an array that broadcasts: all of it where it is the same in every row."""
    return values if values is None or values.ndim < 2 or values.shape[-2] == 1 else values[..., span, :]


def _warn_of_16_bits(frequencies: Any, positions: Array, xp: ModuleType, name: str) -> None:
    """Warn where frequencies of 16 bits can no longer say the phase, as in a module cast by ``.bfloat16()``.

    Numbers that such a type holds exactly may be meant; so this is a warning, where looking at values is free. Those of
    a library that had to round them are warned of in float32, unlooked at.
    """
    if libraries.is_compiling() or not hasattr(frequencies, "dtype"):
        return
    rounded = type(frequencies) is not np.ndarray and array.library(frequencies).rounds_frequencies
    if rounded and array.dtype_name(frequencies) == "float32":
        _warn(
            f"frequencies is an array of {array.name_of(xp)} in float32, which changes phases by up to 6e-8 of their "
            "size: 8e-3 radians at position 131071; expected a Rope, a NumPy array or a list, which keep float64"
        )
    if getattr(frequencies.dtype, "itemsize", 2) != 2 or array.dtype_name(frequencies) not in _NARROW:
        return
    is_seen = array.has_host_values(frequencies) and array.has_host_values(positions)
    if not is_seen or 0 in (*frequencies.shape, *positions.shape):
        return
    omega, places = (np.abs(array.to_host(array.widen(one, xp))) for one in (frequencies, positions))
    missed = 0.5 * array.resolution(frequencies) * float(np.max(omega)) * float(np.max(places))
    if missed > MISSED:
        _warn(
            f"frequencies has dtype {array.dtype_name(frequencies)}: at {name} up to {float(np.max(places)):g} phases "
            f"may be off by {missed:.2g} radians; expected float32 or float64 frequencies: keep them out of casts such "
            "as .bfloat16() or .half(), or create them again"
        )


def warn_of_narrow_positions(positions: Array, frequencies: Array, name: str) -> None:
    """Warn of floats of 16 or 32 bits that cannot tell positions apart; where nobody may look, of 16 bits alone.

    Above some number they lack whole numbers. Below it their spacing at the largest position may be too wide for
    fractions: half of it moves a phase by more than `MISSED`, and some fraction is finer, or, where all are of the
    largest one's binade and so cannot be finer, an odd multiple.
    """
    if getattr(positions.dtype, "itemsize", 2) not in (2, 4):
        return
    kind = array.dtype_name(positions)
    if kind not in (*_NARROW, "float32"):
        return
    is_seen = not libraries.is_compiling() and array.library(positions).is_readable(positions)
    last, wider = 2.0 / array.resolution(positions), "float64" if kind == "float32" else "float32 or float64"
    host = array.to_host(positions) if is_seen else None
    largest = math.inf if host is None else float(np.max(np.abs(host), initial=0.0))
    if kind != "float32" if host is None else last < largest < math.inf:
        _warn(
            f"{name} has dtype {kind}, which skips whole numbers above {last:.8g}: tokens there may get the "
            f"positions of others; expected integers, or {wider}"
        )
    elif host is not None and array.library(frequencies).is_readable(frequencies) and 0 not in frequencies.shape:
        binade = 2.0 ** (math.frexp(largest)[1] - 1)
        spacing = 2.0 * binade / last
        missed = 0.5 * spacing * float(np.max(np.abs(array.to_host(frequencies))))
        fractions = host[host % 1.0 != 0.0] if missed > MISSED else host[:0]
        if np.any(fractions % (spacing if np.any(np.abs(fractions) < binade) else 2.0 * spacing)):
            _warn(
                f"{name} has dtype {kind}, whose values are {spacing:g} apart at {largest:.8g}: phases may be off by "
                f"{missed:.2g} radians; expected {wider} for fractions there"
            )


def _warn(text: str) -> None:
    """Warn at the line that called this package, however deep inside it that is noticed."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("rfrope", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, PrecisionWarning, stacklevel=level + 1)


_warn._dynamo_marked_constant = True  # type: ignore[attr-defined] # PyTorch's compiler calls it while it traces


def _whole(positions: Any, name: str, xp: ModuleType, device: Any) -> Any:
    """Return whole numbers as integers where the library has no float64, the only float that holds all of them."""
    if xp is np:
        return positions
    given = isinstance(positions, float | list | tuple | np.ndarray)
    if not given or array.has_float64(xp, device):
        return positions
    host = array.host_numbers(positions, name)
    are_whole = host.dtype.kind == "f" and bool(np.all((np.abs(host) < 2.0**63) & (host == np.floor(host))))
    return host.astype(np.int64) if are_whole else positions


def _widen_single(omega: Array, shift: Array) -> Array:
    """Repeat a single frequency for every column of the shift: there are as many blocks."""
    if omega.shape[-2] != 1 or not shift.ndim or shift.shape[-1] < 2:
        return omega
    return array.namespace(frequencies=omega).broadcast_to(omega, (*omega.shape[:-2], shift.shape[-1], omega.shape[-1]))
