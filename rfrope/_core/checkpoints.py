"""Finished work of a long estimate on disk, so that a rerun goes on where another ended, with the same bits."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import warnings
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from rfrope._core import array, files
from rfrope._core.arguments import path_of

_FORMAT = 1
_SECONDS = 1.0  # between two savings: so much work a process that is killed loses, beside its last chunk
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)


class Checkpoint:
    """The file of a sum over chunks: the answer so far, the number of chunks in it, and the question.

    Parameters
    ----------
    path : str or os.PathLike
    question : dict
        Fields of a task and their values, which decide all bits of the answer.

    Raises
    ------
    TypeError
        For a path that is none.
    ValueError
        If the file holds something else, or the answer to another question.
    OSError
        If the file cannot be read, or a new one not be written there.
    """

    def __init__(self, path: Any, question: dict[str, Any]) -> None:
        self.path = path_of("checkpoint", path)
        self._question = {name: _digest(value) for name, value in question.items()}
        self._saved = time.monotonic()
        self.done, self._held = 0, None
        if os.path.lexists(self.path):
            self.done, self._held = self._read()
        else:
            files.check_writable(self.path)

    def _read(self) -> tuple[int, dict[str, np.ndarray]]:
        try:
            found = files.read_arrays(self.path)
            about = files.parse_json(str(found.pop("checkpoint")[()]))
            number, asked, done = about["format"], about["question"], about["done"]
        except _UNREADABLE as error:
            raise ValueError(f"{self.path} is not a checkpoint ({type(error).__name__}); expected a new name") from None
        if number != _FORMAT or asked != self._question:
            keys = asked.keys() | self._question.keys() if isinstance(asked, dict) else ()
            other = ", ".join(sorted(k for k in keys if asked.get(k) != self._question.get(k))) or "format"
            raise ValueError(f"{self.path} is the checkpoint of another estimate ({other} differ); expected a new name")
        if not isinstance(done, int) or done < 1 or about["digest"] != _digest_of_all(found):
            raise ValueError(f"{self.path} is damaged; remove it to begin again")
        return done, found

    def restored(self, kind: Any, like: Any) -> Any:
        """Return the answer so far, a record `kind` of arrays beside `like`; None where there is none."""
        if self._held is None:
            return None
        xp, device = array.namespace(like=like), array.device(like)
        held = {name: array.from_host(values, xp, device=device) for name, values in self._held.items() if name != "n"}
        return kind(n=int(self._held["n"]), **held)

    def keep(self, part: Any, done: int, *, now: bool = False) -> None:
        """Save the answer of so many chunks, if the last saving is some time ago."""
        if not now and time.monotonic() - self._saved < _SECONDS:
            return
        held = {one.name: np.asarray(array.to_host(getattr(part, one.name))) for one in fields(part) if one.name != "n"}
        held["n"] = np.asarray(part.n)
        about = {"format": _FORMAT, "question": self._question, "done": done, "digest": _digest_of_all(held)}
        content = io.BytesIO()
        np.savez(content, checkpoint=np.asarray(json.dumps(about)), **held)  # type: ignore[arg-type]
        self._saved = time.monotonic()
        try:
            files.write(self.path, content.getvalue(), overwrite=True)
        except OSError as error:  # the work goes on, and the next saving may succeed
            warnings.warn(f"checkpoint {self.path} was not written: {error}", RuntimeWarning, stacklevel=2)


def check_seed(rng: Any, checkpoint: Any) -> None:
    """Refuse a checkpoint that no other call could go on from."""
    if checkpoint is not None and rng is None:
        raise ValueError("rng is None; expected a seed with checkpoint, so that the same call can go on")


def _digest(value: Any) -> str:
    """A short name of a value: its text; an array's dtype, shape and bytes; all fields of a record."""
    if isinstance(value, list | tuple):
        return _digest("".join(map(_digest, value)))
    if hasattr(value, "shape"):
        host = np.ascontiguousarray(array.to_host(value))
        kind = f"{type(value).__module__.partition('.')[0]} {host.dtype} {host.shape}".encode()
        return hashlib.sha256(kind + host.tobytes()).hexdigest()[:32]
    if isinstance(value, type):
        return _digest(f"{value.__module__}.{value.__qualname__}")
    if isinstance(value, dict):
        return _digest([item for pair in value.items() for item in pair])
    if is_dataclass(value):
        return _digest([type(value), *((one.name, getattr(value, one.name)) for one in fields(value))])
    if not isinstance(value, str | int | float | complex | None):
        return _digest([type(value), *value.__reduce_ex__(2)[1:3]])  # what a copy would be made from
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def _digest_of_all(held: dict[str, np.ndarray]) -> str:
    return _digest([item for name in sorted(held) for item in (name, np.asarray(held[name]))])
