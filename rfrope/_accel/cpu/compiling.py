"""How loops are compiled, and kept on disk where that works."""

from __future__ import annotations

import hashlib
import pathlib
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from numba import config, njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

_BROKEN = (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError, IndexError, TypeError, ValueError)
FAILURES: list[str] = []  # what the disk or the files there said, for `rfrope doctor`


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
        dispatcher._cache = _Kept(function)
    except RuntimeError as error:  # no folder for the cache can be written to
        _note(error)
    return dispatcher


def called(function: Callable[..., Any], **options: Any) -> Any:
    """Compile for calls from compiled loops alone, which spares the code that Python would call it by."""
    return compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile into the loops that call it: a call would keep them from being vectorised."""
    return called(function, forceinline=True)


class _Kept(FunctionCache):
    """Numba's files of a compiled function, which differ in two ways from its own cache.

    They are stale as soon as any file of this folder or the one above was edited, not the function's own alone, because
    loops call each other across files. A full disk or a damaged file costs a compilation and nothing else.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = (self._impl.locator.get_source_stamp(), _stamp())
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path, filename_base=self._impl.filename_base, source_stamp=stamp
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except _BROKEN as error:
            _note(error)
            with suppress(*_BROKEN):
                self.flush()  # so that what is compiled now can be kept
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except _BROKEN as error:
            _note(error)


def _note(error: BaseException) -> None:
    if (told := f"{type(error).__name__}: {error}") not in FAILURES:
        FAILURES.append(told)


@cache
def _stamp() -> str:
    """Digest of all sources from which loops are compiled."""
    digest = hashlib.sha256()
    here = pathlib.Path(__file__).parent
    for path in sorted((*here.glob("*.py"), *here.parent.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()
