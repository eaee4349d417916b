"""Work cut into fixed chunks, done anywhere, and merged in order: bit-identical for every number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeVar

from rfrope._core import threads


class Part(Protocol):
    """Result of some chunks, which knows how many draws it covers."""

    @property
    def n(self) -> int:
        """How many."""

    def merge(self, other: Self, /) -> Self:
        """Combine it with that of the chunks that follow."""


_Part = TypeVar("_Part", bound=Part)


def run(
    task: Callable[[tuple[int, int]], _Part], total: int, length: int, executor: Any, progress: Any, threaded: bool
) -> _Part:
    """Map a task over fixed spans ``(start, length)`` and merge in their order.

    Parameters
    ----------
    task : callable
        Picklable, so that it can travel to a worker.
    total, length : int
        How many draws, and how many make a chunk.
    executor : concurrent.futures.Executor, callable like map, or None
        None means threads of our own, or this one alone unless `threaded`.
    progress : callable or None
        Wraps the iterable of chunks, as tqdm does.
    threaded : bool
        Whether the task releases the interpreter.

    Raises
    ------
    TypeError
        For an executor or progress of another kind.
    ValueError
        If the executor gives back less, or more, than all draws.
    """
    spans = [(start, min(length, total - start)) for start in range(0, total, length)]
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is {progress!r}; expected a callable such as tqdm.tqdm, that wraps an iterable")
    if executor is None:
        results: Iterable[_Part] = threads.ordered_map(task, spans, threads.allowed() if threaded else 1)
    else:
        results = _mapper(executor)(task, spans)
    if progress is not None:
        results = progress(results, total=len(spans))
    merged: _Part | None = None
    for part in results:
        merged = part if merged is None else merged.merge(part)
    if merged is None or merged.n != total:
        raise ValueError(
            f"executor gave back {0 if merged is None else merged.n} of {total} draws; expected all, in order"
        )
    return merged


def _mapper(executor: Any) -> Callable[..., Iterable[Any]]:
    if callable(getattr(executor, "map", None)):
        return executor.map
    if callable(executor):
        return executor
    raise TypeError(f"executor is {executor!r}; expected a concurrent.futures.Executor, or a callable like map")
