"""Memory: whether a call fits into it, asked before the work begins, and large arrays cut into short parts."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from rfrope._core.arguments import show

VARIABLE = "RFROPE_MAX_BYTES"  # environment variable: bytes that one call may hold
SHARE = 0.5  # part of the free memory that one call may hold, unless that variable is set
SMALL = 2.0**26  # bytes that are not worth asking about
_CGROUP = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"  # limit and use of a container


def check(n_bytes: float, what: str, lower: str) -> None:
    """Refuse to hold more bytes than half of the free memory, or than ``RFROPE_MAX_BYTES``, and say what lowers it."""
    if n_bytes <= SMALL and VARIABLE not in os.environ:
        return
    most = allowed()
    if n_bytes > most:
        why = f"{VARIABLE} allows" if VARIABLE in os.environ else f"{SHARE:.0%} of the free memory is"
        raise ValueError(
            f"{what} would take {_shown(n_bytes)} of memory, but {why} {_shown(most)}; expected less: lower {lower}, "
            f"or set the environment variable {VARIABLE} to {math.ceil(n_bytes):.2g} to insist"
        )


def allowed() -> float:
    """Bytes that one call may hold."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return SHARE * free()
    try:
        most = float(given)
    except ValueError:
        most = math.nan
    if not most > 0.0:
        raise ValueError(f"{VARIABLE} is {show(given)}; expected a number of bytes, such as 64e9")
    return most


def free() -> float:
    """Bytes of memory that are free, within the limits of a container; infinite where nobody says."""
    with suppress(OSError, ValueError):
        most, held = (int(pathlib.Path(path).read_text("ascii")) for path in _CGROUP)
        return min(_machine_memory(), max(0.0, float(most) - held))
    return _machine_memory()


def _machine_memory() -> float:
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    with suppress(OSError, ValueError, AttributeError):  # all there is, on other systems
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    return math.inf


def _shown(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3g} GB"


# -- parts that take a moment each: between two of them an interrupt is seen -------------------------------------------


MOMENT = 2**22  # numbers that NumPy works through in some hundredths of a second


def spans(count: int, each: int = 1) -> Iterator[slice]:
    """Split `count` items into slices of bounded size; one slice where they are few."""
    length = max(1, MOMENT // max(1, each))
    for start in range(0, max(1, count), length):
        yield slice(start, min(start + length, count))


def parts(x: np.ndarray) -> Iterator[np.ndarray]:
    """Views of an array that together are all of it, cut along its longest axis."""
    if x.size <= MOMENT:
        yield x
        return
    longest = max(range(x.ndim), key=x.shape.__getitem__)
    for span in spans(x.shape[longest], x.size // x.shape[longest]):
        yield x[(*(slice(None),) * longest, span)]
