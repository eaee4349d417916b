"""Files that appear complete or not at all, and regular files read to a bound."""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from rfrope._core import capacity

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_BEGINNING, _END = ".rfrope-", ".tmp"  # names of files that are being written
_YOUNG, _OLD = 60.0, 86400.0  # seconds: from when on such a file may be, or is, one that nobody writes any more
LONGEST_JSON = 2**24  # characters; numbers and lists in memory are some thirty times as large
Content = bytes | Callable[[BinaryIO], Any]  # all of it, or what writes it to an open file


def opened(path: str) -> BinaryIO:
    """Open a regular file for reading; a FIFO or a device, which may never end, is refused without waiting for it."""
    return open(path, "rb", opener=_descriptor)


def _descriptor(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # `open` itself refuses a folder
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file; expected one")
    return descriptor


def content(path: str, most: int | None = None) -> bytes:
    """Return what a regular file holds: at most so many bytes, or unless given as many as fit into memory.

    Raises
    ------
    OSError
        If it cannot be read, or is not a regular file.
    ValueError
        If it is longer, or grows while it is read.
    """
    with opened(path) as file:
        if most is None:
            most = os.fstat(file.fileno()).st_size
            capacity.check(2.0 * most, path, "the arrays in it")
        held = file.read(most + 1)
    if len(held) > most:
        raise ValueError(f"{path} has more than {most} bytes; expected at most so many, and a file that does not grow")
    return held


def parsed(text: str, **options: Any) -> Any:
    """Return what a text of JSON says, if it is not too long."""
    if len(text) > LONGEST_JSON:
        raise ValueError(f"{len(text)} characters; expected at most {LONGEST_JSON}")
    return json.loads(text, **options)


def check_writable(path: str, *, overwrite: bool = False) -> None:
    """Say why `write` would fail, by writing an empty file beside `path` for a moment.

    What writers that were killed left in the folder is removed.
    """
    path = _free(path, overwrite)
    os.remove(_written_beside(path, b""))
    _remove_left(os.path.dirname(path))


def write(path: str, content: Content, *, overwrite: bool = False) -> None:
    """Make a file appear with its whole content, or leave everything as it was."""
    path = _free(path, overwrite)
    temporary = _written_beside(path, content)
    try:
        if overwrite:
            with suppress(OSError):  # a new file has the usual mode, one that is replaced keeps its own
                os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
            os.replace(temporary, path)
        else:
            _rename_to_new(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def _free(path: str, overwrite: bool) -> str:
    """Return the path of the file to make: the one that a link leads to is replaced, not the link."""
    given, path = path, os.path.realpath(path)
    if os.path.islink(given) and not os.path.lexists(path):
        raise FileExistsError(f"{given} is a link to {path}, which does not exist; expected the name of a file")
    if os.path.lexists(path):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} is not a regular file; expected the name of a file")
        if not overwrite:
            raise FileExistsError(f"{path} exists; expected a new name, or overwrite=True")
    return path


def _written_beside(path: str, content: Content) -> str:
    """Name of a new file with some content in the folder of `path`, safely on the disk."""
    temporary = os.path.join(os.path.dirname(path), f"{_BEGINNING}{secrets.token_hex(8)}{_END}")
    ours = False
    try:
        with open(temporary, "xb") as file:
            ours = True
            _locked(file)
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        if ours and os.path.exists(temporary):
            os.remove(temporary)
        if isinstance(error, OSError) and error.filename in (None, temporary):
            raise OSError(error.errno, error.strerror, path) from None  # under the name that the user knows
        raise
    return temporary


def _locked(file: BinaryIO) -> bool:
    """Mark a file as being written until it is closed; False if somebody else writes it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # no such marks here
        pass
    return True


def _remove_left(folder: str) -> None:
    """Remove files that were being written when their writers were killed, and that nobody writes now."""
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if not (entry.name.startswith(_BEGINNING) and entry.name.endswith(_END)):
                continue
            with suppress(OSError):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age > (_YOUNG if fcntl else _OLD) and entry.is_file(follow_symlinks=False):
                    with opened(entry.path) as file:
                        free = _locked(file)
                    if free:
                        os.remove(entry.path)


def _rename_to_new(temporary: str, path: str) -> None:
    """Rename a file unless the name was taken meanwhile; a hard link checks that without a gap, where links exist."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise FileExistsError(f"{path} exists; expected a new name, or overwrite=True") from None
    except (OSError, NotImplementedError, AttributeError):
        os.replace(temporary, path)
