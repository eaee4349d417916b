"""Files that appear complete or not at all; regular files, of NumPy's arrays too, read within bounds; digests.

The contents that a header claims must lie in the file, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import secrets
import stat
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from rfrope._core import array, capacity
from rfrope._core.arguments import printable

_BEGINNING, _END = ".rfrope-", ".tmp"  # names of files that are being written
_OLD = 86400.0  # seconds, after which nobody writes such a file any more
LONGEST_JSON = 2**24  # characters; numbers and lists in memory are some thirty times as large
Content = bytes | Callable[[BinaryIO], Any]  # all of it, or what writes it to an open file
_KINDS = "biufcU"  # kinds of dtypes that are plain memory
_BEGINNINGS = {
    b"PK": "a zip archive",
    b"\x93NUMPY": "a single array (.npy)",
    b"GGUF": "a GGUF",
    b"\x80": "a pickle, which is never loaded",
    b"{": "JSON",
}


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading; a FIFO or a device, which may never end, is refused without waiting for it."""
    return open(path, "rb", opener=_descriptor)


def _descriptor(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # `open` itself refuses a folder
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file; expected one")
    return descriptor


def read_bytes(path: str, most: int | None = None) -> bytes:
    """Return the content of a regular file: at most `most` bytes, by default as many as fit into memory.

    Raises
    ------
    OSError
        If it cannot be read, or is not a regular file.
    ValueError
        If it is longer, or grows while it is read.
    """
    with open_regular(path) as file:
        if most is None:
            most = os.fstat(file.fileno()).st_size
            capacity.check(2.0 * most, path, "the arrays in it")
        held = file.read(most + 1)
    if len(held) > most:
        raise ValueError(f"{path} has more than {most} bytes; expected a smaller file that does not grow")
    return held


def load_package(module: str, need: str) -> ModuleType:
    """Return a module of an optional package; where it is missing, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ModuleNotFoundError(need) from None


def parse_json(text: str, **options: Any) -> Any:
    """Return what a text of JSON says, if it is not too long."""
    if len(text) > LONGEST_JSON:
        raise ValueError(f"{len(text)} characters; expected at most {LONGEST_JSON}")
    return json.loads(text, **options)


# -- writing -----------------------------------------------------------------------------------------------------------


def check_writable(path: str, *, overwrite: bool = False) -> None:
    """Say why `write` would fail, by writing an empty file beside `path` for a moment.

    Files that killed writers left in the folder are removed.
    """
    path = _free(path, overwrite)
    os.remove(_written_beside(path, b""))
    # remove files that were being written when their writers were killed
    with suppress(OSError), os.scandir(os.path.dirname(path) or ".") as entries:
        for entry in entries:
            if entry.name.startswith(_BEGINNING) and entry.name.endswith(_END):
                with suppress(OSError):
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if age > _OLD and entry.is_file(follow_symlinks=False):
                        os.remove(entry.path)


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
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise FileExistsError(f"{path} exists; expected a new name, or overwrite=True") from None
            except (OSError, NotImplementedError, AttributeError):
                os.replace(temporary, path)
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


# -- NumPy's files: .npz and .npy --------------------------------------------------------------------------------------


class DamagedError(ValueError):
    """A file is damaged or of another kind; names in the message come from the file."""

    def __init__(self, reason: Any) -> None:
        super().__init__(printable(str(reason)))


def read_arrays(path: str, *, compressed: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz by their names.

    Parameters
    ----------
    path : str
    compressed : bool
        True if members may be compressed, as `numpy.savez_compressed` writes them; what they become must fit (see
        `capacity.check`). Otherwise all together are no larger than the file.

    Raises
    ------
    DamagedError
        If the file is not such an .npz.
    OSError
        If it cannot be read, or is not a regular file.
    ValueError
        If it does not fit into memory, or its arrays do not.
    """
    with open_regular(path) as file:
        size, beginning = os.fstat(file.fileno()).st_size, file.read(8)
        if not beginning.startswith(b"PK"):
            raise DamagedError(f"it is {describe_content(beginning)}, expected an .npz")
        capacity.check(2.0 * size, path, "the arrays in it")  # what lists the members may be as long
        file.seek(0)
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:  # whatever a reader raises on bytes that nobody wrote
            raise DamagedError(f"{type(error).__name__}: {error}") from None
        listed = archive.infolist()
        capacity.check(2.0 * _checked(listed, size, compressed), path, "the arrays in it")
        return {one.filename.removesuffix(".npy"): _read(partial(archive.open, one), one.filename) for one in listed}


def read_array(path: str) -> np.ndarray:
    """Return the array of an .npy, as `read_arrays` reads one."""
    return _read(partial(io.BytesIO, read_bytes(path)), path)


def describe_content(beginning: bytes) -> str:
    """Return the apparent kind of a file with these first bytes, in words."""
    if not beginning:
        return "empty"
    found = next((what for first, what in _BEGINNINGS.items() if beginning.startswith(first)), "")
    return found or ("text" if all(8 <= byte < 127 for byte in beginning) else "a file of another kind")


def _checked(listed: list[zipfile.ZipInfo], size: int, compressed: bool) -> int:
    """Bytes of all members, if each is of a kind that is read."""
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) if compressed else (zipfile.ZIP_STORED,)
    if any(info.compress_type not in kinds for info in listed):
        raise DamagedError("it has compressed members, which may be far larger than the file")
    if len({info.filename for info in listed}) < len(listed):
        raise DamagedError("it has two members with the same name")
    total = sum(info.file_size for info in listed)
    if not compressed and total > size:
        raise DamagedError(f"its members claim {total} bytes, but the file has {size}")
    return total


def _read(open_it: Callable[[], Any], name: str) -> np.ndarray:
    """Return the one array that an .npy holds; what its header claims costs no memory that its bytes do not fill."""
    try:
        with open_it() as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
            ends = not file.read(1)  # which is also where an archive compares checksums
    except Exception as error:  # whatever a reader raises on bytes that nobody wrote
        raise DamagedError(
            f"{name} is not an array of plain numbers or text ({error}): pickled objects are never loaded"
        ) from None
    if found.dtype.kind not in _KINDS or not found.dtype.itemsize or not ends:
        more = "" if ends else ", and more bytes"
        raise DamagedError(f"{name} holds {found.dtype}{more}; expected one array of plain numbers or text")
    return found


# -- digests -----------------------------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """A short name of a value: its text; an array's dtype, shape and bytes; all fields of a record."""
    if isinstance(value, list | tuple):
        return digest("".join(map(digest, value)))
    if hasattr(value, "shape"):
        host = np.ascontiguousarray(array.to_host(value))
        kind = f"{type(value).__module__.partition('.')[0]} {host.dtype} {host.shape}".encode()
        return hashlib.sha256(kind + host.tobytes()).hexdigest()[:32]
    if isinstance(value, type):
        return digest(f"{value.__module__}.{value.__qualname__}")
    if isinstance(value, dict):
        return digest([item for pair in value.items() for item in pair])
    if is_dataclass(value):
        return digest([type(value), *((one.name, getattr(value, one.name)) for one in fields(value))])
    if not isinstance(value, str | int | float | complex | None):
        return digest([type(value), *value.__reduce_ex__(2)[1:3]])  # what a copy would be made from
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]
