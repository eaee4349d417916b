"""Threads, a map that uses them, bars for work that takes long, and fixed chunks, done anywhere and merged in order.

Results are bit-identical for every number of workers.

Threads live for one call: nothing is left behind that a fork, an interrupt or the end of the interpreter could meet.
Work for one thread starts none, but for `run_in_thread`.
"""

from __future__ import annotations

import contextvars
import math
import os
import pathlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

from rfrope._core.arguments import show, whole

Item = TypeVar("Item")
Result = TypeVar("Result")

_PATIENCE = 2.0  # seconds after which a bar that nobody asked for appears


class _Abandoned(BaseException):
    """The call that a thread helps with has ended: nobody waits for the item."""


_WANTED: contextvars.ContextVar[int | None] = contextvars.ContextVar("rfrope_threads", default=None)
_ABANDONED: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("rfrope_abandoned", default=None)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Limit how many threads rfrope's own CPU loops use, inside a ``with`` block.

    Without it every core that this process may run on is used (its affinity and its cgroup's quota count), for work
    that is large enough. The limit holds for the current thread or task, not for others. Results do not depend on it:
    they are bit-identical for every number of threads.

    Parameters
    ----------
    count : int
        At least 1. More than the available cores is allowed.

    Returns
    -------
    context manager
        To be entered by ``with``; it gives None.

    Raises
    ------
    TypeError, ValueError
        If `count` is not such a number.

    See Also
    --------
    estimate_kernel, estimate_scores

    Notes
    -----
    A task that is handed to an ``executor=`` runs on one thread, whatever the limit. NumPy, PyTorch and the others
    keep their own threads.

    Examples
    --------
    >>> import rfrope
    >>> with rfrope.threads(1):
    ...     estimate = rfrope.estimate_kernel(1.0, "gaussian", n_samples=1000, rng=0)
    """
    token = _WANTED.set(whole("count", count, 1))
    try:
        yield
    finally:
        _WANTED.reset(token)


def allowed() -> int:
    """Number of threads to use: that of `threads`, or all cores that this process may run on."""
    return _WANTED.get() or available()


def available() -> int:
    """Return the cores that this process may run on, by its affinity and its cgroup's quota.

    joblib's `cpu_count` reads the quota of the root alone: in a cgroup with one core of two it gave 2.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(cores, _quota()))


@lru_cache(maxsize=1)
def _quota(
    root: pathlib.Path = pathlib.Path("/sys/fs/cgroup"), membership: pathlib.Path = pathlib.Path("/proc/self/cgroup")
) -> int:
    """Cores that the cgroup of this process (version 2), or one above it, pays for; very many without a limit."""
    limits = [2.0**20]
    with suppress(OSError, ValueError):
        (name,) = [line[3:] for line in membership.read_text().splitlines() if line.startswith("0::")]
        inside = pathlib.PurePosixPath(name.lstrip("/"))
        for part in (inside, *inside.parents):
            with suppress(OSError, ValueError):  # "max"
                quota, period = map(int, (root / part / "cpu.max").read_text().split())
                limits.append(quota / period)
    return math.ceil(min(limits))


def raise_if_abandoned() -> None:
    """Leave a long task that nobody waits for any more: to be called between its parts, of some 0.1 s at most."""
    abandoned = _ABANDONED.get()
    if abandoned is not None and abandoned.is_set():
        raise _Abandoned


def ordered_map(task: Callable[[Item], Result], items: Sequence[Item], n_threads: int) -> Iterator[Result]:
    """Yield ``task(item)`` in the order of the items, worked on by up to `n_threads` threads.

    A failed or abandoned run (an exception, KeyboardInterrupt, the consumer gone) ends the threads before it is
    reported: they finish the item that they are at, or leave it at its next `raise_if_abandoned`.
    """
    n_threads = min(n_threads, len(items))
    return _map_on_threads(task, items, n_threads) if n_threads > 1 else map(task, items)


def run_all(task: Callable[[Any], Any], items: Sequence[Any], n_threads: int) -> None:
    """Run ``task(item)`` for all items on up to `n_threads` threads, in any order; otherwise as `ordered_map`."""
    n_threads = min(n_threads, len(items))
    if n_threads < 2:
        for item in items:
            task(item)
        return
    remaining = iter(items)  # one thread at a time holds the interpreter, so that every item is taken once
    failed = threading.Event()

    def work(_: Any) -> None:
        try:
            for item in remaining:
                task(item)
                raise_if_abandoned()
                if failed.is_set():
                    return
        except BaseException:
            failed.set()
            raise

    for _ in _map_on_threads(work, range(n_threads), n_threads):
        pass


def run_in_thread(task: Callable[[], Result]) -> Result:
    """Do work on another thread where interrupts would come to this one, and wait.

    An interrupt that meets a destructor, as of a library's plan that is freed, is printed and lost there.
    """
    if threading.current_thread() is not threading.main_thread():
        return task()
    (result,) = _map_on_threads(lambda _: task(), [None], 1)
    return result


def _map_on_threads(task: Callable[[Item], Result], items: Iterable[Item], n_threads: int) -> Iterator[Result]:
    abandoned, waiting = threading.Event(), deque[Future[Result]]()
    name = f"rfrope {id(abandoned):x} "
    pool = ThreadPoolExecutor(n_threads, name)

    def work(item: Item) -> Result:
        _WANTED.set(1)
        _ABANDONED.set(abandoned)
        raise_if_abandoned()
        return task(item)

    try:
        for item in items:
            try:
                waiting.append(pool.submit(contextvars.copy_context().run, work, item))
            except RuntimeError:  # no more threads can be had
                waiting.append(Future())
                waiting[-1].set_result(contextvars.copy_context().run(work, item))
            if len(waiting) == 2 * n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        abandoned.set()
        _end(pool, name)


def _end(pool: ThreadPoolExecutor, name: str) -> None:
    """Let no item be begun any more and wait for those that are, whatever interrupts."""
    try:
        pool.shutdown(cancel_futures=True)
        for thread in threading.enumerate():  # one that was starting at an interrupt, of which the pool does not know
            if thread.name.startswith(name) and thread.is_alive():
                thread.join()
    except BaseException:
        _end(pool, name)
        raise


# -- bars: `progress=` of public functions -----------------------------------------------------------------------------


def check_progress(progress: Any) -> None:
    """Refuse what cannot show progress."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(
            f"progress is {show(progress)}; expected None, True, False, or a callable such as tqdm.tqdm, that wraps an "
            "iterable"
        )


def show_progress(items: Iterable[Item], total: Any, progress: Any, done: int = 0) -> Iterable[Item]:
    """Wrap an iterable so that its progress shows.

    Parameters
    ----------
    items : iterable
    total : int or None
        How many there are, those that were done before included; None if that is not known.
    progress : None, bool or callable
        A callable is called as ``progress(items, total=total)``. True means a bar on stderr; None a bar after two
        seconds, if stderr is a terminal; False none.
    done : int
        How many were done before.
    """
    check_progress(progress)
    if callable(progress):
        try:
            wrapped = progress(items, total=total - done)
        except TypeError as error:
            raise TypeError(
                f"progress is {show(progress)}, called as progress(iterable, total=...): {error}"
            ) from error
        if not isinstance(wrapped, Iterable):
            raise TypeError(f"progress returned {show(wrapped)}; expected an iterable, as from tqdm.tqdm")
        return wrapped
    if progress is False or (progress is None and not _is_terminal()):
        return items
    from tqdm import tqdm

    return tqdm(items, total=total, initial=done, delay=0.0 if progress else _PATIENCE, leave=False, dynamic_ncols=True)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False


# -- chunks ------------------------------------------------------------------------------------------------------------

Span = tuple[int, int]  # the first draw, and how many


def _run_chunk(task: Callable[[Span], Any], total: int, length: int, start: int) -> tuple[int, Any]:
    """Return the first draw of a chunk, and the answer of its task."""
    return start, task((start, min(length, total - start)))


def run_chunks(
    task: Callable[[Span], Any], total: int, length: int, executor: Any, progress: Any, threaded: bool
) -> Any:
    """Map a task over fixed spans ``(start, length)`` and merge in their order.

    Parameters
    ----------
    task : callable
        Picklable, so that it can travel to a worker; its answers have ``n``, the number of their draws, and ``merge``.
    total, length : int
        How many draws, and how many make a chunk.
    executor : concurrent.futures.Executor, callable like map, or None
        None means threads of our own, or this one alone unless `threaded`.
    progress : None, bool or callable
        See `show_progress`.
    threaded : bool
        Whether the task releases the interpreter.

    Raises
    ------
    TypeError
        For an executor or progress of another kind.
    ValueError
        If the executor gives back less, or more, than all draws, or others.
    Exception
        What a worker raises, with a note that says how much was finished.
    """
    check_progress(progress)
    # a partial function, which can be pickled as the task can
    merged, placed, starts = None, partial(_run_chunk, task, total, length), range(0, total, length)
    if executor is None:
        results: Iterable[tuple[int, Any]] = ordered_map(placed, starts, allowed() if threaded else 1)
    else:
        results = _from(executor, placed, starts)
    try:
        for start, part in show_progress(results, len(starts), progress):
            if start != (0 if merged is None else merged.n):
                raise _wrong(f"the chunk from draw {start}, after {0 if merged is None else merged.n}", total)
            merged = part if merged is None else merged.merge(part)
    finally:
        if hasattr(results, "close"):  # an interrupt out here leaves helping threads waiting, which this ends
            results.close()
    if merged is None or merged.n != total:
        raise _wrong(f"{0 if merged is None else merged.n}", total, "progress" if executor is None else "executor")
    return merged


def _wrong(found: str, total: int, who: str = "executor") -> ValueError:
    return ValueError(f"{who} returned {found} of {total} draws; expected all, once and in order")


def _from(executor: Any, task: Any, starts: range) -> Iterator[tuple[int, Any]]:
    """Results of an executor; where it fails, say what that costs."""
    apply, done = _mapper(executor), 0
    try:
        results = apply(task, starts)
        if not isinstance(results, Iterable):
            raise TypeError(f"executor returned {show(results)}; expected the results in order, as from map")
        for result in results:
            if not (isinstance(result, tuple) and len(result) == 2):
                future = callable(getattr(result, "result", None))
                hint = ": pass client.get_executor() of a Dask client" if future else ""
                raise TypeError(f"executor returned {show(result)}; expected the result of the mapped function{hint}")
            yield result
            done += 1
    except Exception as error:
        error.add_note(f"The executor failed after {done} of {len(starts)} chunks, which are lost.")
        raise


def _mapper(executor: Any) -> Callable[..., Any]:
    if isinstance(executor, type) and not issubclass(executor, Iterator):  # such as map itself
        raise TypeError(
            f"executor is the class {executor.__name__}; expected an instance of it, or a callable like map"
        )
    if callable(getattr(executor, "map", None)):
        return executor.map
    if callable(executor):
        return executor
    raise TypeError(f"executor is {show(executor)}; expected a concurrent.futures.Executor, or a callable like map")
