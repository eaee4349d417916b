"""Work shared out among threads: for tensors of PyTorch its own, where it keeps any, else those of `parallel`.

After each of its parallel loops PyTorch's threads look out for the next one for some milliseconds, without giving their
cores away. Threads of ours would share these with them; a team of those threads has them to itself
(``python -m benchmarks.torch_layers --only "after a product"`` compares the two).
"""

from __future__ import annotations

import contextvars
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from rfrope._core import parallel
from rfrope._core.libraries import imported

_MEMBER = ctypes.CFUNCTYPE(None)  # it has an argument, which nobody reads
_FORKED: list[int] = []  # in a child of a fork, where the threads of a team are missing

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _FORKED.append(os.getpid()))


def share(task: Callable[[Any], Any], items: Sequence[Any], n_threads: int, are_tensors: bool) -> None:
    """Run ``task(item)`` for all items on up to so many threads, the caller's included, in any order.

    The task gives the interpreter away while it works. What one raises comes out, once the others have ended their
    items; an interrupt, too.
    """
    n_threads = min(n_threads, len(items))
    team = _size() if are_tensors and n_threads > 1 else 0
    if team < max(n_threads, 2):
        parallel.run_all(task, items, n_threads)
        return
    failures: list[BaseException] = []
    work = parallel.share_items(task, items, threading.Event())
    # a smaller team would end threads that PyTorch wants again
    members = [*(_member(work, failures) for _ in range(n_threads)), *[itertools.repeat(None)] * (team - n_threads)]
    for member in members:
        next(member)
    _runtime()(_MEMBER(map(next, members).__next__), None, team, 0)
    if failures:
        raise failures[0]


def _member(work: Callable[[Any], None], failures: list[BaseException]) -> Iterator[None]:
    """Work, once it is resumed: an interrupt that meets the first line of a function that C calls would be lost."""
    context = contextvars.copy_context()
    try:
        yield
        context.run(work, None)
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        failures.append(error)
        yield


def _size() -> int:
    """Threads that PyTorch keeps at hand; 0 where no team can be made of them."""
    return 0 if _FORKED or _runtime() is None else int(imported("torch").get_num_threads())


@cache
def _runtime() -> Any:
    """Return what runs a function on each thread of a team, in the OpenMP that PyTorch was linked with; or None."""
    try:
        start = ctypes.CDLL(imported("torch")._C.__file__).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # not GNU's, nor one that answers to its names
        return None
    start.argtypes, start.restype = [_MEMBER, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return start
