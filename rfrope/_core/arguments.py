"""Readers of single arguments, one for each kind of value: the value is returned in its plain form, or refused.

Every message names the argument, shows its value, and says what was expected.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

LARGEST = 2.0**500  # bound on positions, frequencies and features: products of two of them stay finite
LARGEST_SCALE = sys.float_info.max  # beyond, whole numbers are no floats
MOST = 2**32 - 1  # bound on counts
_SHOWN = 80  # characters of a value that an error shows
_NOT_NUMBERS = (str, bytes, bytearray, complex, np.complexfloating)


class BooleanGivenError(TypeError, ValueError):
    """True or False where a number belongs. Some readers of 0.1 raised the one, some the other: it is both."""


def show(value: Any) -> str:
    """Return a value as an error shows it, whatever its own code does: its `repr`, cut and with nothing unprintable."""
    try:
        text = str.__str__(repr(value))
    except Exception as error:  # raised by the value's code, or for a number of too many digits
        if isinstance(value, int):
            return f"a whole number of {int.bit_length(value)} bits"
        text = f"<a {type(value).__name__}, whose repr raised {type(error).__name__}>"
    return printable(text[:_SHOWN])[:_SHOWN]


def printable(text: str, keep: str = "") -> str:
    """Return text in which what a terminal acts on, or shows in another order or not at all, stands as an escape."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else ascii(one)[1:-1] for one in text)


def whole(name: str, value: Any, minimum: int = 0, maximum: int = MOST) -> int:
    """Return a whole number from `minimum` to `maximum`."""
    if type(value) is int and minimum <= value <= maximum:
        return value
    largest = "2**32 - 1" if maximum == MOST else maximum
    if isinstance(value, bool | np.bool):
        raise BooleanGivenError(f"{name} is {show(value)}; expected a whole number")
    try:
        number = operator.index(value)
    except Exception:  # whatever an array of another library raises
        raise TypeError(f"{name} is {show(value)}; expected a whole number") from None
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} is {show(value)}; expected a whole number from {minimum} to {largest}")
    return number


def axis_of(name: str, value: Any, shape: tuple[int, ...]) -> int:
    """Return which axis of an array of some shape is meant, counted from the first or, negative, from the last."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and -len(shape) <= value < len(shape):
        return int(value)
    raise ValueError(f"axis is {show(value)}; expected an axis of {name}, whose shape is {tuple(shape)}")


def finite(name: str, value: Any, *, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Return a finite number, within bounds if there are any, as a Python float."""
    if type(value) is float and math.isfinite(value) and minimum <= value <= maximum:
        return value
    expected = "a finite number" if minimum == -math.inf else f"a finite number of at least {_bound(minimum)}"
    expected = expected if maximum == math.inf else f"a number from {_bound(minimum)} to {_bound(maximum)}"
    number = _number(name, value, "a number")
    if not (math.isfinite(number) and minimum <= number <= maximum):
        raise ValueError(f"{name} is {show(value)}; expected {expected}")
    return number


def positive(name: str, value: Any, *, minimum: float = 0.0, maximum: float = math.inf) -> float:
    """Return a positive finite number, within bounds if there are any, as a Python float."""
    if type(value) is float and 0.0 < value < math.inf and minimum <= value <= maximum:
        return value
    number = _number(name, value, "a positive number")
    if not (0.0 < number < math.inf):
        raise ValueError(f"{name} is {show(value)}; expected a positive finite number")
    if not minimum <= number <= maximum:
        bounds = f"from {_bound(minimum)} to" if minimum else "up to"
        raise ValueError(f"{name} is {show(value)}; expected a positive number {bounds} {_bound(maximum)}")
    return number


def fraction(name: str, value: Any) -> float:
    """Return a number from 0 to 1."""
    return finite(name, value, minimum=0.0, maximum=1.0)


def probability(name: str, value: Any) -> float:
    """Return a number strictly between 0 and 1."""
    number = _number(name, value, "a number between 0 and 1")
    if not 0.0 < number < 1.0:
        raise ValueError(f"{name} is {show(value)}; expected a number between 0 and 1")
    return number


def flag(name: str, value: Any) -> bool:
    """Return True or False."""
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool):
        raise TypeError(f"{name} is {show(value)}; expected True or False")
    return bool(value)


def listed(name: str, value: Any, expected: str) -> tuple[Any, ...]:
    """Return the items of a list, a tuple, a range or an array; a text, which is one item, is none."""
    if isinstance(value, range) or is_several(value):
        return tuple(value)
    raise TypeError(f"{name} is {show(value)}; expected {expected}")


def is_several(value: Any) -> bool:
    """Return whether an argument that is one number, or one for each of several things, is a list of them."""
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.shape != ())


def path_of(name: str, value: Any, other: str = "", given: Any = None) -> str:
    """Return the name of a file or folder as text; `other` is the argument that may have been given in its place."""
    try:
        found = os.fspath(value)
    except Exception:  # raised by the value's own code, too
        found = b""
    if not isinstance(found, str):
        swapped = f": {name} comes first, then {other}" if isinstance(given, str | os.PathLike) else ""
        raise TypeError(f"{name} is {show(value)}; expected a path, as a string or pathlib.Path{swapped}")
    if not found or "\0" in found:
        raise ValueError(f"{name} is {show(value)}; expected the name of a file")
    return found


def choice(name: str, value: Any, options: Sequence[str]) -> str:
    """Return one of a few words."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} is {show(value)}{list_choices(value, options)}")
    return value


def named(name: str, value: Any, names: Sequence[str]) -> str:
    """Return the one of some names that is meant, in any spelling."""
    found = spelled(value, names)
    if found is None:
        raise ValueError(f"{name} is {show(value)}{list_choices(value, names)}")
    return found


def spelled(value: Any, names: Sequence[str]) -> str | None:
    """Return the name that a text spells, if there is one: capitals, spaces and signs between words do not count."""
    if not isinstance(value, str) or not _plain(value):
        return None
    return value if value in names else next((name for name in names if _plain(name) == _plain(value)), None)


def list_choices(value: Any, names: Sequence[str]) -> str:
    """End of an error: the name that may have been meant, and all that there are."""
    plain = {_plain(name): name for name in names}
    close = difflib.get_close_matches(_plain(value), plain, n=1) if isinstance(value, str) else ()
    hint = f"; did you mean {plain[close[0]]!r}? Expected" if close else "; expected"
    return f"{hint} one of {', '.join(map(repr, names))}"


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text[:80]).lower()


def _number(name: str, value: Any, expected: str) -> float:
    """Return a real number as a Python float; one that no float can hold is infinite."""
    if isinstance(value, bool | np.bool):
        raise BooleanGivenError(f"{name} is {show(value)}; expected {expected}")
    foreign = hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic)  # an array of another library
    if not isinstance(value, _NOT_NUMBERS) and not foreign and getattr(value, "ndim", 0) == 0:
        try:
            return float(value)
        except OverflowError:
            return math.inf
        except Exception:  # whatever the value's own code raises
            pass
    lost = ": gradients do not go through it" if foreign else ""
    raise TypeError(f"{name} is {show(value)}; expected {expected}{lost}")


def _bound(value: float) -> str:
    """A bound as an error shows it: a large power of two by its exponent."""
    mantissa, exponent = math.frexp(value)
    sign = "-" if value < 0.0 else ""
    return f"{sign}2**{exponent - 1}" if abs(mantissa) == 0.5 and abs(exponent) > 32 else f"{value:g}"


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a number or a list; that of a ragged list, which who reads it refuses, is ()."""
    try:
        return np.shape(value)
    except ValueError:
        return ()


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape of some, as `numpy.broadcast_shapes`; lengths may be symbols of PyTorch's compiler."""
    common: list[Any] = [1] * max([0, *map(len, shapes)])
    for shape in shapes:
        for axis, length in enumerate(shape, len(common) - len(shape)):
            if common[axis] == 1:
                common[axis] = length
            elif length != 1 and length != common[axis]:
                raise ValueError("shapes do not broadcast")
    return tuple(common)


def kinds_within(value: Any) -> set[type]:
    """Return the types of what nested lists and tuples hold, as deep as NumPy reads them; none of anything else."""
    found: set[type] = set()
    level = [value] if isinstance(value, list | tuple) else []
    for _ in range(64):
        kinds = set().union(*(map(type, one) for one in level))
        found |= kinds
        if not any(issubclass(kind, list | tuple) for kind in kinds):
            break
        level = list({id(inner): inner for one in level for inner in one if isinstance(inner, list | tuple)}.values())
    return found
