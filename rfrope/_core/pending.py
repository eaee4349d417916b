"""Fields of results that are found out when somebody asks, because few do and it takes as long as the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any


class Pending(ABC):
    """A field before it is read: `settled` gives its value, and may take its time.

    It holds copies of what it needs, so that nothing that is written later changes what it finds.
    """

    @abstractmethod
    def settled(self) -> Any:
        """Find it out."""


class LazyField:
    """A field of a frozen dataclass that may be given as `Pending`: it is settled once, when it is first read.

    Parameters
    ----------
    default : object
        The field's default.
    """

    def __init__(self, default: Any) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: Any, owner: type | None = None) -> Any:
        if record is None:
            return self.default
        held = record.__dict__[self.name]
        if isinstance(held, Pending):
            held = record.__dict__[self.name] = held.settled()
        return held

    def __set__(self, record: Any, value: Any) -> None:
        record.__dict__[self.name] = value


def settled_state(record: Any) -> dict[str, Any]:
    """State of a dataclass for a copy or a pickle, with nothing pending."""
    return {one.name: getattr(record, one.name) for one in fields(record)}
