"""Results for people: a line of text for ``print``, a table for a notebook; one mechanism for all of them."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import printable

__all__ = ["Result", "short", "table", "to_html"]

_FEW = 4  # numbers that are shown one by one
_LONG = 120  # characters of a value
_ROWS = 8  # records of a list that are shown
_CELL = "text-align:left;vertical-align:top"


class Result:
    """Base of results, which are dataclasses: ``print`` gives a short text, a notebook shows a table.

    A result that has better words than its fields defines ``__str__`` itself; its first line then heads the table, and
    the whole text stands below it.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return short(self)

    def _repr_html_(self) -> str:
        return to_html(self)


def short(result: Any) -> str:
    """Return one line on a result that is a dataclass: its fields, and of long arrays the shape and the range.

    Nothing lazy or traced is computed for it.
    """
    held = (f"{field.name} {_value(getattr(result, field.name))}" for field in fields(result))
    return f"{type(result).__name__}: {', '.join(held)}"


def to_html(result: Any) -> str:
    """Return a result that is a dataclass as a piece of HTML: its fields, a table for each list of records, its text.

    Nothing lazy or traced is computed for it.
    """
    text = printable(str(result), "\n")
    first, _, rest = text.partition("\n")
    has_words = first != short(result)
    parts = [f"<p><b>{type(result).__name__}</b>{' ' + html.escape(first) if has_words else ''}</p>"]
    held = {field.name: getattr(result, field.name) for field in fields(result) if not field.name.startswith("_")}
    lists = {name: value for name, value in held.items() if _is_records(value)}
    parts.append(table([(name, _value(value)) for name, value in held.items() if name not in lists], head=False))
    for name, value in lists.items():
        more = f"<p>and {len(value) - _ROWS} more</p>" if len(value) > _ROWS else ""
        parts.append(f"<p>{html.escape(name)}</p>{table([*_rows(value[:_ROWS])])}{more}")
    if has_words and rest:
        parts.append(f"<details><summary>as text</summary><pre>{html.escape(text)}</pre></details>")
    return f'<div class="rfrope">{"".join(parts)}</div>'


def table(rows: Sequence[tuple[str, ...]], *, head: bool = True) -> str:
    """Return rows of text as a table of HTML; the first row is its head, or the first column if there is none."""
    if not rows:
        return ""
    lines = []
    for number, row in enumerate(rows):
        kinds = ["th" if (head and not number) or (not head and not column) else "td" for column in range(len(row))]
        cells = (f'<{k} style="{_CELL}">{html.escape(c)}</{k}>' for k, c in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _is_records(value: Any) -> bool:
    """Say whether a value is a list of records, which is shown as a table."""
    return isinstance(value, tuple | list) and bool(value) and all(_is_record(one) for one in value)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _rows(records: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    """Head and rows of records of one kind."""
    names = [field.name for field in fields(records[0])]
    yield tuple(names)
    for one in records:
        yield tuple(_value(getattr(one, name, "")) for name in names)


def _value(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array_text(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if _is_records(value):
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
    if array.is_lazy(value) or array.is_traced(value) or getattr(value, "is_meta", False):
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
