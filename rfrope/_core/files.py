"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_BEGINNING, _END = ".rfrope-", ".tmp"  # names of files that are being written
_YOUNG, _OLD = 60.0, 86400.0  # seconds: from when on such a file may be, or is, one that nobody writes any more
Content = bytes | Callable[[BinaryIO], Any]  # all of it, or what writes it to an open file


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
                    with open(entry.path, "rb") as file:
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
