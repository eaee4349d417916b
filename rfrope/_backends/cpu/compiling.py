"""Compilation of loops by Numba, with a cache on disk that knows all of their sources."""

from __future__ import annotations

import hashlib
import pathlib
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from numba import config, njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import intrinsic

from rfrope._core.dispatch import BEFORE_COMPILING

_BROKEN = (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError, IndexError, TypeError, ValueError)
FAILURES: list[str] = []  # what the disk or the files there said, for `rfrope doctor`
_CACHES: list[_CompiledCache] = []


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a loop with Numba on its first call, without the interpreter's lock; keep it on disk where that works.

    Raises
    ------
    ImportError
        If Numba's compiler is switched off: leaves with such loops are then not there.
    """
    if config.DISABLE_JIT:
        raise ImportError("NUMBA_DISABLE_JIT is set: these loops exist in compiled form only")
    dispatcher = njit(nogil=True, error_model="numpy", **options)(function)
    try:
        dispatcher._cache = _CompiledCache(function)
        _CACHES.append(dispatcher._cache)
    except RuntimeError as error:  # no folder for the cache can be written to
        _note(error)
    return dispatcher


def called(function: Callable[..., Any], **options: Any) -> Any:
    """Compile for calls from compiled loops alone, which spares the code that Python would call it by."""
    return compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile into the loops that call it: a call would keep them from being vectorised."""
    return called(function, forceinline=True)


@cache
def address_of(dispatcher: Any, signature: Any) -> int:
    """Address of a loop for arguments of some types, to be called from others; it is compiled where it is wanted."""
    dispatcher.compile(signature)
    made = dispatcher.overloads[signature]
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))


@intrinsic
def widest(typing: Any) -> Any:
    """To be called in a loop: let it have vectors of 512 bits where the processor has them.

    LLVM keeps to 256 on Intel's processors up to Ice Lake, for the sake of code beside it that a lower clock would slow
    down. These loops are the work itself.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # llvmlite checks names against a list
        return context.get_dummy_value()

    return types.void(), generate


def examined() -> list[str]:
    """Look at whether code can be kept; return what failed, now or before in this process."""
    for folder in {held.cache_path for held in _CACHES}:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(2**20))
        except OSError as error:
            _note(error)
    return FAILURES


class _Files(IndexDataCacheFile):
    """Numba's files, whose names say what their code is for and of what source.

    Numba numbers them: of two processes that compile at once, for different types, each may then load what the other
    has written, and one that comes after an edit the code of before.
    """

    def __init__(self, folder: str, base: str, stamp: Any) -> None:
        super().__init__(folder, base, stamp)
        self._names = base + ".{}.nbc"

    def save(self, key: Any, data: Any) -> None:
        overloads = self._load_index()
        if not overloads:  # what lies there is of another source
            for path in pathlib.Path(self._cache_path).glob(self._names.format("*")):
                path.unlink(missing_ok=True)
        kept = hashlib.sha256(repr((self._source_stamp, key)).encode()).hexdigest()[:16]
        overloads[key] = self._names.format(kept)
        self._save_data(overloads[key], data)
        self._save_index(overloads)


class _CompiledCache(FunctionCache):
    """Numba's cache of a compiled function, which differs in two more ways.

    They are stale as soon as any file of this folder or the one above was edited, not the function's own alone, because
    loops call each other across files. A full disk or a damaged file costs a compilation and nothing else.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = (self._impl.locator.get_source_stamp(), _stamp())
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = None
        try:
            found = super().load_overload(sig, target_context)
        except _BROKEN as error:
            _note(error)
            with suppress(*_BROKEN):
                self.flush()  # so that what is compiled now can be kept
        with suppress(IndexError):  # another thread may have said it
            while found is None:
                BEFORE_COMPILING.pop()()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except _BROKEN as error:
            _note(error)


def _note(error: BaseException) -> None:
    if (failure := f"{type(error).__name__}: {error}") not in FAILURES:
        FAILURES.append(failure)


@cache
def _stamp() -> str:
    """Digest of all sources from which loops are compiled."""
    digest = hashlib.sha256()
    here = pathlib.Path(__file__).parent
    for path in sorted((*here.glob("*.py"), *here.parent.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()
