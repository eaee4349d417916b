"""Work cut into fixed chunks, done anywhere, and merged in order: bit-identical for every number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from rfrope._core import progress as bars
from rfrope._core import threads
from rfrope._core.arguments import show
from rfrope._core.checkpoints import Checkpoint

Span = tuple[int, int]  # the first draw, and how many


class Part(Protocol):
    """Result of some chunks, which knows how many draws it covers."""

    @property
    def n(self) -> int:
        """How many."""

    def merge(self, other: Self, /) -> Self:
        """Combine it with that of the chunks that follow."""


_Part = TypeVar("_Part", bound=Part)


class Spans(Sequence[Span]):
    """Spans ``(start, length)`` that cut so many draws, from some span on; they are made when they are asked for."""

    def __init__(self, total: int, length: int, first: int = 0) -> None:
        self._total, self._length, self._first = total, length, first

    def __len__(self) -> int:
        return -(-self._total // self._length) - self._first

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        start = (i + self._first) * self._length
        return start, min(self._length, self._total - start)


@dataclass(frozen=True)
class _Placed:
    """A task whose answer says which span it belongs to: picklable, as the task is."""

    task: Callable[[Span], Any]

    def __call__(self, span: Span) -> tuple[int, Any]:
        return span[0], self.task(span)


def run(
    task: Callable[[Span], _Part],
    total: int,
    length: int,
    executor: Any,
    progress: Any,
    threaded: bool,
    kept: Checkpoint | None = None,
    before: _Part | None = None,
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
    progress : None, bool or callable
        As in `progress.shown`.
    threaded : bool
        Whether the task releases the interpreter.
    kept : Checkpoint, optional
        Where the answer so far is kept.
    before : Part, optional
        What it holds of an earlier run.

    Raises
    ------
    TypeError
        For an executor or progress of another kind.
    ValueError
        If the executor gives back less, or more, than all draws, or others.
    Exception
        What a worker raises, with a note that says how much was finished, and how to go on.
    """
    bars.check(progress)
    spans = Spans(total, length, kept.done if kept else 0)
    merged, done = before, kept.done if kept else 0
    if executor is None:
        results: Iterable[tuple[int, _Part]] = threads.ordered_map(
            _Placed(task), spans, threads.allowed() if threaded else 1
        )
    else:
        results = _from(executor, _Placed(task), spans, kept)
    try:
        for start, part in bars.shown(results, len(spans) + done, progress, done):
            if start != (0 if merged is None else merged.n):
                raise _wrong(f"the chunk from draw {start}, after {0 if merged is None else merged.n}", total)
            merged = part if merged is None else merged.merge(part)
            done += 1
            if kept is not None:
                kept.keep(merged, done)
    finally:
        if hasattr(results, "close"):  # an interrupt out here leaves helping threads waiting, which this ends
            results.close()
        if kept is not None and merged is not None and done > kept.done:
            kept.keep(merged, done, now=True)
    if merged is None or merged.n != total:
        raise _wrong(f"{0 if merged is None else merged.n}", total, "progress" if executor is None else "executor")
    return merged


def _wrong(found: str, total: int, who: str = "executor") -> ValueError:
    return ValueError(f"{who} gave back {found} of {total} draws; expected all, once and in order")


def _from(executor: Any, task: Any, spans: Spans, kept: Checkpoint | None) -> Iterator[tuple[int, Any]]:
    """Results of an executor; where it fails, say what that costs."""
    apply, done = _mapper(executor), 0
    try:
        results = apply(task, spans)
        if not isinstance(results, Iterable):
            raise TypeError(f"executor gave back {show(results)}; expected the results, in order, as map gives them")
        for result in results:
            if not (isinstance(result, tuple) and len(result) == 2):
                future = callable(getattr(result, "result", None))
                hint = ": pass client.get_executor() of a Dask client" if future else ""
                raise TypeError(
                    f"executor gave back {show(result)}; expected what the function that it maps returns{hint}"
                )
            yield result
            done += 1
    except Exception as error:
        lost = "which are lost: with checkpoint=PATH they would be kept, and the same call would go on"
        where = f"which are in {kept.path}: the same call goes on from there" if kept else lost
        error.add_note(f"The executor failed after {done} of {len(spans)} chunks, {where}.")
        raise


def _mapper(executor: Any) -> Callable[..., Any]:
    if isinstance(executor, type) and not issubclass(executor, Iterator):  # such as map itself
        raise TypeError(
            f"executor is the class {executor.__name__}; expected an instance of it, or a callable like map"
        )
    if callable(getattr(executor, "map", None)):
        found: Callable[..., Any] = executor.map
        return found
    if callable(executor):
        return executor
    raise TypeError(f"executor is {show(executor)}; expected a concurrent.futures.Executor, or a callable like map")
