"""The suite, which everybody runs, and the campaign beside it: wide grids and long statistics, for `.ci/run`.

Marked by hand, with `campaign` or through `sparse` and `one_of`, are tests that take long. `conftest.py` takes
`covering` combinations of every parametrised test: into the campaign where the test is marked, and else into the
suite, with half as many more in the campaign. What is left of a grid is marked `wide`, and runs by ``pytest -m wide``
or ``pytest -m ""`` alone.
"""

import collections
import hashlib
import itertools
import signal
import subprocess
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

OPTIONAL = ("torch", "jax", "cupy", "torch cuda")  # libraries that the extra "test" does not bring
SLOW = ("dask",)  # libraries whose every call takes long, however small its arrays
PATIENCE = 20  # seconds after which a command that goes on is asked whether it lost its interrupt
LOST = "Exception ignored in: "
HANGS = 600  # seconds: a guard, not a measure; what has not come by then never comes

campaign, wide = pytest.mark.campaign, pytest.mark.wide


def sparse(values: Iterable[Any], keep: Callable[[Any], bool], every: int = 1) -> list[Any]:
    """Values of a parameter: in the suite those that `keep` takes, in the campaign alone the others.

    Of these it is every so many-th; the rest are `wide`.
    """
    values = list(values)
    kept, others = {id(value) for value in values if keep(value)}, [value for value in values if not keep(value)]
    often = {id(value) for value in others[::every]}
    return [
        value if id(value) in kept else pytest.param(value, marks=campaign if id(value) in often else [campaign, wide])
        for value in values
    ]


def one_of(values: Iterable[Any], kind: Callable[[Any], Hashable]) -> list[Any]:
    """Values of a parameter: in the suite the last one of each kind, in the campaign alone the others."""
    values = list(values)
    chosen = {kind(value): id(value) for value in values}.values()
    return sparse(values, lambda value: id(value) in chosen)


def covering(grid: list[pytest.Item]) -> list[pytest.Item]:
    """A few of the combinations of a parametrised test that hold every value of every parameter at least once.

    The choice depends on the test's name and its values alone. A value that goes with array libraries is taken with one
    that is always there; the optional libraries, and the slow one, come to one combination each.
    """
    values = {item: {(name, id(value)) for name, value in item.callspec.params.items()} for item in grid}
    held = collections.Counter(itertools.chain.from_iterable(values.values()))
    if all(any(held[value] == 1 for value in own) for own in values.values()):
        return grid  # each alone has one of its values: so it is in most tests of one parameter
    order = in_order(grid)
    always = [item for item in order if not _is_of(item, OPTIONAL)]
    left, chosen = set().union(*values.values()), []
    for choice in (always, order):
        while choice and left & values[best := max(choice, key=lambda item: len(left & values[item]))]:
            chosen.append(best)
            left -= values[best]
    return chosen


def in_order(grid: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return tests in an order that depends on their names alone, those of slow libraries last."""
    return sorted(grid, key=lambda item: (_is_of(item, SLOW), hashlib.blake2b(item.name.encode()).digest()))


def _is_of(item: pytest.Item, libraries: tuple[str, ...]) -> bool:
    return any(isinstance(value, str) and value in libraries for value in item.callspec.params.values())


def interrupted(command: list[str]) -> tuple[int, str, str]:
    """Run a command, interrupt it half a second after its first line, which is "ready": exit code, output, errors.

    Python prints and loses an interrupt that comes while it frees a thread or a module, in a callback; a command that
    says so is run again, twice at most.
    """
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired as late:
                said = late.stderr or ""
                if LOST in (said if isinstance(said, str) else said.decode()):
                    process.kill()
                out, err = process.communicate(timeout=HANGS)
        finally:
            process.kill()
            process.wait()
        if LOST not in err:
            break
    return process.returncode, out, err
