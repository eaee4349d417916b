"""Save and load Ropes: frequencies, their fields, and their origin."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, files
from rfrope._core.arguments import flag, path_of, printable, show
from rfrope._core.array import Array
from rfrope.kernels import Kernel
from rfrope.rotation.rope import Assumed, Rope, read_provenance, replace_fields

__all__ = ["load", "save"]

SUFFIXES = (".npz", ".safetensors")
_FORMAT = 2
_DTYPES = ("float16", "float32", "float64")
_FIELDS = ("pairing", "head_dim", "attention_factor", "sections", "interleaved", "context", "polar")  # of a Rope


@array.select_device
def save(path: str | os.PathLike[str], rope: Rope | Array, /, *, overwrite: bool = False, source: Any = None) -> None:
    """Write a Rope, or bare frequencies, to a file, with their origin.

    The file appears complete or not at all: it is written under a temporary name in the same folder, then renamed.

    Parameters
    ----------
    path : str or path
        Ends in ``.npz`` (NumPy's archive), or in ``.safetensors`` if that package is installed.
    rope : Rope or array_like, radians per unit of position
        Frequencies ``(D,)`` or ``(*H, D, k)``, of float16, float32 or float64; bfloat16 is stored as float32.
    overwrite : bool
        Replace an existing file.
    source : Provenance or dict, optional
        Added to the origin recorded in the Rope (``kernel``, ``design``, ``seed``, or any other name): numbers,
        strings, None, and lists and dicts of these; a kernel is stored as its text.

    Returns
    -------
    None

    Raises
    ------
    FileExistsError
        If the file exists, unless `overwrite` is True.
    OSError
        If the folder is missing or not writable.
    ValueError
        If the suffix is wrong, frequencies are not finite or have no axis, or a number in the source is not
        finite.
    TypeError
        If frequencies, a field or the source is of another type.
    ModuleNotFoundError
        If the file is ``.safetensors`` and that package is missing.

    See Also
    --------
    load, engines.write

    Notes
    -----
    The file holds two arrays, neither pickled: ``frequencies``, and ``metadata``, a JSON string with the format number,
    the version of rfrope, units, shape, dtype, the Rope's other fields, its source, and a SHA-256 digest of all these
    and of the frequencies, which `load` checks. No time is stored: the same arguments give the same bytes. Safetensors
    files hold the same string in their metadata, under ``rfrope``.

    Examples
    --------
    >>> import os, tempfile, rfrope
    >>> kernel = rfrope.kernel("gaussian", scale=32.0)
    >>> path = os.path.join(tempfile.mkdtemp(), "gaussian.npz")
    >>> save(path, rfrope.sample(kernel, 64, rng=0), source={"kernel": kernel, "seed": 0})
    >>> rfrope.storage.load(path).source
    Provenance(kernel='gaussian(scale=32.0)', seed=0)
    """
    path = path_of("path", path, "rope", rope)
    check_target(path, overwrite=flag("overwrite", overwrite))
    held = rope if isinstance(rope, Rope) else Rope(_storable(rope))
    if source is not None:
        held = replace_fields(held, source=held.source.to_dict() | read_provenance(source).to_dict())
    files.write(path, packed(path, held), overwrite=overwrite)


def load(path: str | os.PathLike[str], *, xp: Any = None, device: Any = None, dtype: Any = None) -> Rope:
    """Load a Rope from a file written by `save`.

    Parameters
    ----------
    path : str or path
        The file; its first bytes determine the format.
    xp, device, dtype
        Array library (a module; default: NumPy), device and dtype of the frequencies (default: as saved).

    Returns
    -------
    Rope
        As saved.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    OSError
        If it cannot be read, or is not a regular file.
    ValueError
        If it is damaged (its digest is checked), compressed, of another kind or format, or does not fit into
        memory.
    ModuleNotFoundError
        If the file is safetensors and that package is missing.
    TypeError
        If `xp` is not an array library, or `dtype` not one of its real floating types.

    See Also
    --------
    save, Rope

    Notes
    -----
    Nothing in a file is executed: pickled arrays are refused. Reading takes at most twice the length of the file in
    memory.

    Examples
    --------
    >>> import os, tempfile, rfrope
    >>> path = os.path.join(tempfile.mkdtemp(), "standard.npz")
    >>> rfrope.storage.save(path, rfrope.geometric(4))
    >>> load(path).frequencies
    array([1.   , 0.1  , 0.01 , 0.001])
    """
    path, space = path_of("path", path), array.named_namespace(xp)
    dtype = array.check_float_dtype(dtype, space)
    try:
        with files.open_regular(path) as file:
            beginning = file.read(9)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: there is no such file; expected one that `rfrope design -o` or rfrope.save wrote"
        ) from None
    # a safetensors file has JSON after eight bytes for the length of its header, unless it is damaged
    is_tensors = beginning[8:] == b"{" or (path.endswith(SUFFIXES[1]) and not beginning.startswith(b"PK"))
    held, text = _from_safetensors(path) if is_tensors else _from_npz(path)
    if text is None or "frequencies" not in held:
        raise ValueError(f"{path} holds {printable(', '.join(held)) or 'nothing'}; expected what rfrope.save writes")
    frequencies = held["frequencies"]
    fields = _read_fields(path, text, frequencies)
    if dtype is None and space is not np:
        fits = frequencies.dtype != np.float64 or array.has_float64(space, device)
        dtype = array.check_float_dtype(frequencies.dtype.name if fits else "float32", space)
    try:
        return Rope(array.from_host(frequencies, space, device=device, dtype=dtype), **fields)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} holds no Rope ({error}); expected what rfrope.save writes") from None


def check_target(path: str, *, overwrite: bool = False) -> None:
    """Raise if a file cannot be written: wrong name, existing file, missing folder."""
    if not path.endswith(SUFFIXES):
        raise ValueError(f"path is {path!r}; expected a name that ends in {' or '.join(SUFFIXES)}")
    if path.endswith(SUFFIXES[1]):
        _safetensors(path)
    files.check_writable(path, overwrite=overwrite)


def packed(path: str, rope: Rope) -> bytes:
    """Return the content of a file: frequencies, and a JSON text that describes them."""
    host = _storable(rope.frequencies)
    metadata = {
        "format": _FORMAT,
        "rfrope": sys.modules["rfrope"].__version__,  # this module may not import the package above it
        "units": "radians per unit of position",
        "shape": list(host.shape),
        "dtype": host.dtype.name,
        "rope": {name: getattr(rope, name) for name in _FIELDS},
        "source": rope.source.to_dict(),
    }
    if isinstance(rope.head_dim, Assumed):
        metadata["rope"]["head_dim"] = None
    try:
        text = json.dumps(metadata, allow_nan=False, default=_plain)
        _check_keys(metadata["source"])
    except (ValueError, TypeError) as error:
        raise type(error)(
            f"source is {show(metadata['source'])}, which JSON cannot hold ({error}); expected finite numbers, "
            "strings, None, kernels, or lists and dicts of them"
        ) from None
    if len(text) > files.LONGEST_JSON:
        raise ValueError(f"source has {len(text)} characters as JSON; expected at most {files.LONGEST_JSON}")
    text = json.dumps(json.loads(text) | {"digest": _digest(text, host)})
    if path.endswith(SUFFIXES[1]):
        content: bytes = _safetensors(path).save({"frequencies": host}, metadata={"rfrope": text})
        return content
    file = io.BytesIO()
    np.savez(file, frequencies=host, metadata=np.asarray(text))
    return file.getvalue()


def _storable(frequencies: Any) -> np.ndarray:
    """Frequencies on the host, of a dtype that files hold, in C order and the machine's own byte order."""
    xp, device = array.shared(frequencies=frequencies)
    angles.read_frequencies(frequencies, xp, device)
    host = array.to_host(array.asarray(frequencies, xp, name="frequencies", device=device), "frequencies")
    if host.dtype.name == "bfloat16":
        host = host.astype(np.float32)
    if host.dtype.name not in _DTYPES:
        raise TypeError(f"frequencies has dtype {host.dtype}; expected one of {', '.join(_DTYPES)}")
    return np.ascontiguousarray(host, dtype=host.dtype.newbyteorder("="))


def _plain(value: Any) -> Any:
    """Return values without a JSON type as text or lists."""
    if isinstance(value, Kernel):
        return repr(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"it holds {show(value)}")


def _check_keys(value: Any) -> None:
    """Refuse keys that JSON would turn into text."""
    if isinstance(value, dict):
        if others := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"it has the key {show(others[0])}")
        value = [*value.values()]
    for held in value if isinstance(value, list | tuple) else ():
        _check_keys(held)


def _from_npz(path: str) -> tuple[dict[str, np.ndarray], str | None]:
    """Return the arrays of a file, and the JSON text beside them, if it has one."""
    try:
        held = files.read_arrays(path)
    except files.DamagedError as error:
        raise _damaged(path, error) from None
    text = held.get("metadata")
    if text is not None and "frequencies" in held and (text.dtype.kind != "U" or text.ndim):
        raise _damaged(path, f"its metadata has dtype {text.dtype} and shape {text.shape}")
    return held, None if text is None else str(text[()])


def _from_safetensors(path: str) -> tuple[dict[str, np.ndarray], str | None]:
    """As `_from_npz`."""
    library, content = _safetensors(path), files.read_bytes(path)
    try:
        held = library.load(content)
        header = files.parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode())
        return held, header.get("__metadata__", {}).get("rfrope")
    except Exception as error:  # whatever the package raises on bytes that it did not write
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def _damaged(path: str, reason: Any) -> ValueError:
    reason = printable(str(reason))
    return ValueError(f"{path} is damaged, or not a file of frequencies: {reason}; expected what rfrope.save writes")


def _safetensors(path: str) -> ModuleType:
    need = f"{path} needs the package safetensors: pip install safetensors (or use the suffix .npz)"
    return files.load_package("safetensors.numpy", need)


def _read_fields(path: str, text: str, frequencies: np.ndarray) -> dict[str, Any]:
    """Return a Rope's other fields from a JSON text, whose digest is also that of the frequencies beside it."""
    try:
        metadata = files.parse_json(text)
        number, digest = metadata["format"], metadata.pop("digest", None)
        fields: dict[str, Any] = {**metadata["rope"], "source": metadata["source"]} if number == _FORMAT else {}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} does not say what it holds; expected what rfrope.save writes") from None
    if number != _FORMAT:
        raise ValueError(f"{path} has format {show(number)}; expected {_FORMAT}: another version of rfrope may read it")
    if digest != _digest(json.dumps(metadata), frequencies):
        raise _damaged(path, "its content does not match its digest")
    return fields


def _digest(text: str, frequencies: np.ndarray) -> str:
    """SHA-256 of the other fields of a file, as JSON, and of its numbers in little-endian order."""
    numbers = np.ascontiguousarray(frequencies, dtype=frequencies.dtype.newbyteorder("<"))
    return hashlib.sha256(text.encode() + numbers.tobytes()).hexdigest()
