"""Results for people and libraries: reports, a line of text, plain data, pytrees of JAX."""

from __future__ import annotations

import html
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np

from rfrope._core import array, libraries
from rfrope._core.angles import PrecisionWarning
from rfrope._core.arguments import printable

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# columns of the terminal for which a command makes its text; None elsewhere, where lines stay as they are
WIDTH: ContextVar[int | None] = ContextVar("WIDTH", default=None)
COPIED = " " * 6  # begins a line that is copied, and so not broken
_NARROWEST = 24  # width to which a column of words gives way
_FEW = 4  # numbers that are shown one by one
_LONG = 120  # characters of a value
_LABEL = 20  # width of the names in a table without a head


@dataclass(frozen=True)
class Words:
    """Sentences, each on a line of its own."""

    sentences: Sequence[str]

    def __str__(self) -> str:
        return "\n".join(fill(one) if "\n" in one else one for one in self.sentences)


@dataclass(frozen=True)
class Table:
    """Rows of text below a head, or pairs of a name and a text without one.

    `left` are the columns on the left, None for all; `rule` underlines the head.
    """

    rows: Sequence[Sequence[str]]
    title: str = ""
    left: Collection[int] | None = (0,)
    note: str = ""
    head: bool = True
    rule: bool = True

    def __str__(self) -> str:
        if self.head:
            lines = align([[printable(cell) for cell in row] for row in self.rows], self.left, rule=self.rule)
        else:
            lines = [f"  {name:{_LABEL}}{text}" for name, text in self.rows]
        title = [f"{self.title}{':' if self.head else ''}"] if self.title else []
        return "\n".join([*title, *lines, *(["", fill(self.note)] if self.note else [])])


@dataclass(frozen=True)
class Copyable:
    """Data that a reader copies; `text` is what the text form of a report has of them."""

    title: str
    content: Any
    note: str = ""
    text: str = ""

    def __str__(self) -> str:
        return self.text


Part = Words | Table | Copyable


@dataclass(frozen=True)
class Report:
    """Sentences and tables of a result, from which its text and pages are made.

    Attributes
    ----------
    parts : sequence of Part or callable
        In the order of the text. A callable returns what a page alone shows, such as figures.
    verdict : str
        The sentence that a page shows first; the text has it among the others.
    """

    parts: Sequence[Part | Callable[[], Iterable[Any]]]
    verdict: str = ""

    def __str__(self) -> str:
        return "\n\n".join(text for one in self.parts if isinstance(one, Part) and (text := str(one)))

    @property
    def led(self) -> Report:
        """The same with the verdict first, and without the sentences that it repeats."""
        if str(self).startswith(self.verdict):
            return self
        said = " ".join(self.verdict.split())
        parts = [
            Words([one for one in part.sentences if not one or " ".join(one.split()) not in said])
            if isinstance(part, Words)
            else part
            for part in self.parts
        ]
        return replace(self, parts=[Words([self.verdict]), *parts])


class Result:
    """Base of results, which are dataclasses: ``print`` and notebooks show a short text.

    A result that has better words than its fields has a `report` or a text of its own.
    """

    __slots__ = ()
    _also: ClassVar[tuple[str, ...]] = ()  # properties that texts and dicts have beside the fields

    def __str__(self) -> str:
        return str(self.report())

    def report(self) -> Report:
        """Return the sentences and tables that say what was found."""
        text = short(self) if type(self).__str__ is Result.__str__ else str(self)
        lines = text.split("\n")
        return Report([Words(lines)], lines[0])

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON, with None for what is not finite."""
        return plain(_contents(self))

    def _repr_html_(self) -> str:
        text = printable(str(self), "\n")
        return f"<pre>{html.escape(text)}</pre>"


def short(result: Any) -> str:
    """Return one line on a result that is a dataclass: its fields, and of long arrays the shape and the range.

    Nothing lazy or traced is computed for it.
    """
    held = (f"{name} {_value(value)}" for name, value in _contents(result).items())
    return f"{type(result).__name__}: {', '.join(held)}"


def _contents(result: Any) -> dict[str, Any]:
    """Return the public fields of a result by name, and the properties that it names."""
    names = [field.name for field in fields(result) if not field.name.startswith("_")]
    return {name: getattr(result, name) for name in (*names, *getattr(result, "_also", ()))}


def plain(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as numbers, strings, lists and dicts, ready for JSON: records too; None for what is not finite."""
    return {name: _plain(value) for name, value in held.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if _is_record(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return plain(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        value = array.to_host(value).tolist()
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def map_arrays(function: Callable[[Any], Any], result: Any) -> Any:
    """Return a result with a function applied to its arrays, those of records and named tuples included."""
    if is_dataclass(result) and not isinstance(result, type):
        return replace(result, **{one.name: map_arrays(function, getattr(result, one.name)) for one in fields(result)})
    if isinstance(result, tuple):
        return getattr(result, "_make", tuple)([map_arrays(function, one) for one in result])
    return function(result) if hasattr(result, "shape") else result


def returned_as_given(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Put what a public function computes on the host into the library and on the device of its arguments."""

    @wraps(function)
    def returned(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        found = function(*args, **kwargs)
        given = [getattr(one, "frequencies", one) for one in (*args, *kwargs.values())]
        given = [x for x in given if hasattr(x, "shape") and not isinstance(x, np.ndarray | np.generic)]
        if not given:
            return found
        xp, place = array.namespace(x=given[0]), array.device(given[0])
        return map_arrays(lambda host: array.from_host(np.asarray(host), xp, device=place), found)

    return array.select_device(returned)


def align(rows: Sequence[Sequence[str]], left: Collection[int] | None = None, *, rule: bool = False) -> list[str]:
    """Return a table as lines: `left` are the columns on the left, by default all; `rule` underlines the header.

    Where it is wider than `WIDTH`, cells of the widest columns are broken between words, numbers never; the columns
    that still do not fit follow below, beside the first column once more.
    """
    columns, gap = list(zip(*rows, strict=True)), 2
    lefts = [left is None or i in left for i in range(len(columns))]
    widths, least = [max(map(len, column)) for column in columns], []
    for (head, *cells), is_left, width in zip(columns, lefts, widths, strict=True):  # words give way, numbers do not
        words = [max(map(len, cell.split()), default=0) for cell in (head, *cells)]
        longest = min(max(words), _NARROWEST) if is_left else max([words[0], *map(len, cells)])
        least.append(min(longest, width))
    room = (WIDTH.get() or math.inf) + gap
    while sum(widths) + gap * len(widths) > room and widths != least:
        widths[max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)] -= 1
    if sum(widths) + gap * len(widths) > room and len(widths) > 2:
        first = max((n for n in range(3, len(widths)) if sum(widths[:n]) + gap * n <= room), default=2)
        above, below = [*range(first)], [0, *range(first, len(widths))]
        one, other = (
            align([[row[i] for i in part] for row in rows], [n for n, i in enumerate(part) if lefts[i]], rule=rule)
            for part in (above, below)
        )
        return [*one, "", *other]
    lines = []
    for row in [*rows[:1], *([["-" * width for width in widths]] if rule else []), *rows[1:]]:
        hangs = ["  ", *[""] * len(row)]  # a name that is broken begins no line
        cells = [
            textwrap.wrap(cell, max(width, 1), break_on_hyphens=False, subsequent_indent=hang) or [""]
            for cell, width, hang in zip(row, widths, hangs, strict=False)
        ]
        for line in itertools.zip_longest(*cells, fillvalue=""):
            padded = [
                part.ljust(w) if is_left else part.rjust(w)
                for part, w, is_left in zip(line, widths, lefts, strict=True)
            ]
            lines.append((" " * gap).join(padded).rstrip())
    return lines


def fill(text: str) -> str:
    """Return a paragraph whose lines are broken anew, for the terminal of a command."""
    return text if WIDTH.get() is None else wrap(" ".join(text.split()), hang=0)


def wrap(text: str, hang: int = 2) -> str:
    """Return a text whose lines fit the terminal of a command, words whole; what is broken off hangs below its start.

    After a label and two spaces the start is what follows them.
    """
    width, lines = WIDTH.get(), []
    for line in text.split("\n"):
        if width is None or len(line) <= width or (line.startswith(COPIED) and line[len(COPIED)] != " "):
            lines.append(line)
            continue
        label = re.match(r" *(?:\S+ )+ +", line)
        indent = len(line) - len(line.lstrip()) + hang if label is None or 2 * label.end() > width else label.end()
        lines += textwrap.wrap(
            line, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=" " * indent
        )
    return "\n".join(lines)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _value(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array_text(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple | list) and value and all(map(_is_record, value)):
        return f"{len(value)} of {type(value[0]).__name__}"
    if isinstance(value, tuple | list) and len(value) > _FEW:
        return f"{len(value)} values: {_value(value[0])} to {_value(value[-1])}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, Mapping):
        return _cut(", ".join(f"{printable(str(name))}: {_value(one)}" for name, one in value.items()) or "nothing")
    return _cut(printable(str(value).partition("\n")[0]))


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


def _array_text(value: Any) -> str:
    shape = tuple(value.shape)
    if not array.library(value).has_values(value):
        return f"of shape {shape}"
    held = array.to_host(value)
    if held.size <= _FEW:
        numbers = [f"{one:.6g}" if isinstance(one, float) else str(one) for one in held.reshape(-1).tolist()]
        return numbers[0] if not shape else f"[{', '.join(numbers)}]"
    if held.dtype.kind == "b":
        return f"of shape {shape}, {int(np.sum(held))} of {held.size} true"
    if held.dtype.kind == "c":
        return f"of shape {shape}"
    known = held[~np.isnan(held)] if held.dtype.kind == "f" else held
    return f"of shape {shape}" + (f" from {known.min():.4g} to {known.max():.4g}" if known.size else "")


# -- pytrees of JAX, which is not imported for that --------------------------------------------------------------------


_KNOWN: set[type] = set()


@dataclass(frozen=True, eq=False)
class _Others:
    """All fields but the leaf: JAX compares them to find what it has compiled."""

    fields: dict[str, Any]
    dtype: str  # as the leaf has it; optimizers mix widths, so it is not compared

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Others) and _are_same(self.fields, other.fields)

    def __hash__(self) -> int:
        return hash(tuple(self.fields))  # fields may hold lists and dicts


def _are_same(one: Any, other: Any) -> bool:
    """Return whether two values of a field are the same to the last part; NaN is, and arrays are by their bytes."""
    if one is other or type(one) is not type(other):
        return one is other
    if is_dataclass(one):
        return _are_same(vars(one), vars(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_are_same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if hasattr(one, "shape"):  # an array of another library: it may be traced
        return False
    return bool(one == other or (one != one and other != other))


def register(kind: type, leaf: str) -> None:
    """Make a record a pytree with one leaf, if JAX has been imported and does not know it yet.

    Parameters
    ----------
    kind : type
        Its instances hold their fields in ``__dict__``, and ``__getstate__`` returns them in order.
    leaf : str
        The field that is a leaf. All others are the same wherever JAX takes the record.
    """
    jax = None if kind in _KNOWN else libraries.imported("jax.tree_util")
    if jax is None:
        return
    _KNOWN.add(kind)

    def flatten(one: Any) -> tuple[tuple[Any], _Others]:
        others = one.__getstate__()
        value = others.pop(leaf)
        dtype = array.dtype_name(value) if hasattr(value, "dtype") else ""
        return ((jax.GetAttrKey(leaf), value),), _Others(others, dtype)

    def unflatten(others: _Others, leaves: tuple[Any]) -> Any:
        (value,) = leaves
        if others.dtype == "float64" and array.library(value).is_traced(value) and array.dtype_name(value) == "float32":
            warnings.warn(
                f"JAX traces the {leaf} of a {kind.__name__} in float32, and they had 64 bits: far phases are off; "
                f"expected a {kind.__name__} that is not an argument, as in jax.jit(rope.rotate), or jax_enable_x64",
                PrecisionWarning,
                stacklevel=2,
            )
        value = value.copy() if isinstance(value, np.ndarray) else value  # it is closed for writing
        made: Any = object.__new__(kind)
        made.__setstate__({**others.fields, leaf: value})  # unchecked: JAX puts other things than arrays there, too
        return made

    jax.register_pytree_with_keys(kind, flatten, unflatten)
