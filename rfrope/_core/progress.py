"""Bars for work that takes long: `progress=` of public functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rfrope._core.arguments import show

Item = TypeVar("Item")

PATIENCE = 2.0  # seconds after which a bar that nobody asked for appears


def check(progress: Any) -> None:
    """Refuse what cannot show progress."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(
            f"progress is {show(progress)}; expected None, True, False, or a callable such as tqdm.tqdm, that wraps an "
            "iterable"
        )


def shown(items: Iterable[Item], total: int, progress: Any, done: int = 0) -> Iterable[Item]:
    """Wrap an iterable so that its progress shows.

    Parameters
    ----------
    items : iterable
    total : int
        How many there are, those that were done before included.
    progress : None, bool or callable
        A callable is called as ``progress(items, total=total)``. True means a bar on stderr; None a bar after two
        seconds, if stderr is a terminal; False none.
    done : int
        How many were done before.
    """
    check(progress)
    if callable(progress):
        try:
            wrapped = progress(items, total=total - done)
        except TypeError as error:
            raise TypeError(
                f"progress is {show(progress)}, called as progress(iterable, total=...): {error}"
            ) from error
        if not isinstance(wrapped, Iterable):
            raise TypeError(f"progress gave back {show(wrapped)}; expected an iterable, as tqdm.tqdm gives it")
        return wrapped
    if progress is False or (progress is None and not _is_terminal()):
        return items
    from tqdm import tqdm

    delay = 0.0 if progress else PATIENCE
    bar: Iterable[Item] = tqdm(items, total=total, initial=done, delay=delay, leave=False, dynamic_ncols=True)
    return bar


def show_sizes(items: Iterable[Item], total: int, size: Callable[[Item], int]) -> Iterator[Item]:
    """Yield items, and show on a terminal, after two seconds, how much of a total they were; `size` is that of one."""
    if not _is_terminal():
        yield from items
        return
    from tqdm import tqdm

    with tqdm(total=total, delay=PATIENCE, leave=False, dynamic_ncols=True, unit_scale=True) as bar:
        for item in items:
            yield item
            bar.update(size(item))


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False
