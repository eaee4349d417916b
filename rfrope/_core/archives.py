"""NumPy's files, .npz and .npy, read within bounds: what a header claims must lie in the file, nothing is unpickled."""

from __future__ import annotations

import io
import math
import os
import zipfile
from typing import Any

import numpy as np

from rfrope._core import capacity, files
from rfrope._core.arguments import printable

_KINDS = "biufcU"  # kinds of dtypes that are plain memory
_HEADERS: dict[Any, Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BEGINNINGS = {
    b"PK": "a zip archive",
    b"\x93NUMPY": "a single array (.npy)",
    b"GGUF": "a GGUF",
    b"\x80": "a pickle, which is never loaded",
    b"{": "JSON",
}


class DamagedError(ValueError):
    """A file is not what it should be: the reason, for people; names in it come from the file."""

    def __init__(self, reason: Any) -> None:
        super().__init__(printable(str(reason)))


def members(path: str, *, compressed: bool = False) -> dict[str, np.ndarray]:
    """Arrays of an .npz by their names.

    Parameters
    ----------
    path : str
    compressed : bool
        Whether members may be compressed, as `numpy.savez_compressed` writes them; what they become must fit (see
        `capacity.check`). Otherwise all together are no larger than the file.

    Raises
    ------
    DamagedError
        For anything else.
    OSError
        If it cannot be read, or is not a regular file.
    ValueError
        If it does not fit into memory, or its arrays do not.
    """
    with files.opened(path) as file:
        size, beginning = os.fstat(file.fileno()).st_size, file.read(8)
        if not beginning.startswith(b"PK"):
            raise DamagedError(f"it is {kind(beginning)}, expected an .npz")
        capacity.check(2.0 * size, path, "the arrays in it")  # what lists the members may be as long
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                listed = archive.infolist()
                capacity.check(2.0 * _checked(listed, size, compressed), path, "the arrays in it")
                return {info.filename.removesuffix(".npy"): _member(archive, info) for info in listed}
        except DamagedError:
            raise
        except OSError as error:
            raise DamagedError(f"{type(error).__name__}: {error}") from None
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError) as error:
            raise DamagedError(str(error)) from None


def single(path: str) -> np.ndarray:
    """Array of an .npy, as `members` reads one."""
    return _parsed(files.content(path), path)


def kind(beginning: bytes) -> str:
    """What a file with such first bytes seems to be."""
    if not beginning:
        return "empty"
    found = next((what for first, what in _BEGINNINGS.items() if beginning.startswith(first)), "")
    return found or ("text" if all(8 <= byte < 127 for byte in beginning) else "a file of another kind")


def _checked(listed: list[zipfile.ZipInfo], size: int, compressed: bool) -> int:
    """Bytes of all members, if each is of a kind that is read."""
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) if compressed else (zipfile.ZIP_STORED,)
    if any(info.compress_type not in kinds for info in listed):
        raise DamagedError("it has compressed members, which could become far larger than the file")
    if len({info.filename for info in listed}) < len(listed):
        raise DamagedError("it has two members of one name")
    total = sum(info.file_size for info in listed)
    if not compressed and total > size:
        raise DamagedError(f"its members claim {total} bytes, but the file has {size}")
    return total


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    try:
        with archive.open(info) as member:
            content = member.read(info.file_size + 1)  # a bound, so that a wrong size costs no memory
    except DamagedError:
        raise
    except Exception as error:  # whatever a decoder raises on bytes that nobody wrote
        raise DamagedError(f"{type(error).__name__}: {error}") from None
    return _parsed(content, info.filename)


def _parsed(content: bytes, name: str) -> np.ndarray:
    """Array of the content of an .npy."""
    file = io.BytesIO(content)
    try:
        shape, fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except Exception:  # whatever the reader of a header raises on bytes that nobody wrote
        raise DamagedError(f"{name} is {kind(content[:8])}, with no header of an array that can be read") from None
    if dtype.kind not in _KINDS:
        raise DamagedError(f"{name} holds {dtype}, expected plain numbers or text: pickled objects are never loaded")
    held, order = len(content) - file.tell(), "F" if fortran else "C"
    fits = min(shape, default=0) >= 0 and math.prod(shape) * dtype.itemsize == held and dtype.itemsize
    try:
        if fits:
            flat = np.frombuffer(content, dtype, offset=file.tell()) if held else np.empty(0, dtype)
            return flat.reshape(shape, order=order).copy(order="K")  # type: ignore[call-overload]
    except ValueError:  # axes of no elements that are too long together
        pass
    raise DamagedError(f"{name} claims shape {shape} of {dtype}, but has {held} bytes")
