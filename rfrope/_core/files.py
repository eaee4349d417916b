"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from typing import Any, BinaryIO

Content = bytes | Callable[[BinaryIO], Any]  # all of it, or what writes it to an open file


def check_writable(path: str, *, overwrite: bool = False) -> None:
    """Say why `write` would fail, by writing an empty file beside `path` for a moment."""
    os.remove(_written_beside(_free(path, overwrite), b""))


def write(path: str, content: Content, *, overwrite: bool = False) -> None:
    """Make a file appear with its whole content, or leave everything as it was."""
    path = _free(path, overwrite)
    temporary = _written_beside(path, content)
    try:
        if overwrite:
            os.replace(temporary, path)
        else:
            _rename_to_new(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def _free(path: str, overwrite: bool) -> str:
    """Return the path of the file to make: the one that a link leads to is replaced, not the link."""
    path = os.path.realpath(path)
    if os.path.lexists(path):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} is not a regular file; expected the name of a file")
        if not overwrite:
            raise FileExistsError(f"{path} exists; expected a new name, or overwrite=True")
    return path


def _written_beside(path: str, content: Content) -> str:
    """Name of a new file with some content in the folder of `path`, safely on the disk."""
    temporary = os.path.join(os.path.dirname(path), f".rfrope-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        if os.path.exists(temporary):
            os.remove(temporary)
        if isinstance(error, OSError) and error.filename in (None, temporary):
            raise OSError(error.errno, error.strerror, path) from None  # under the name that the user knows
        raise
    return temporary


def _rename_to_new(temporary: str, path: str) -> None:
    """Rename a file unless the name was taken meanwhile; a hard link checks that without a gap, where links exist."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise FileExistsError(f"{path} exists; expected a new name, or overwrite=True") from None
    except (OSError, NotImplementedError, AttributeError):
        os.replace(temporary, path)
