"""Wrong values in every argument of every public function, one at a time: taken, or refused in words of our own.

`bad_input.py` has the calls and the values. Each error is of a documented type and names the argument; none comes from
inside NumPy, SciPy, Numba or torch; nothing hangs or asks for more than 1 GiB; `out` and files stay as they were.
"""

from __future__ import annotations

import os
import random
import sys

import bad_input
import numpy as np
import pytest
from campaign import campaign

pytestmark = [
    campaign,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's"),
    pytest.mark.filterwarnings("ignore"),  # what a value that is taken means is not the question here
]
SHARE = float(os.environ.get("RFROPE_SHARE", "0.6"))  # of all pairs of an argument and a value; 1 is the whole table
SEED = 20261122
NAMES = sorted(set(map(bad_input.name_of, bad_input.public().values())) - {"kernels.registry.register"})
VARIADIC = {"frequencies.axes.axial", "kernels.algebra.axes"}  # they take any number of one kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bad_input")


def state(folder, arguments):
    """Bytes of files and of `out`."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    out = arguments.get("out")
    return files, None if out is None else out.tobytes()


def test_every_public_function_has_a_call(folder):
    assert set(bad_input.calls(folder)) == set(NAMES) - VARIADIC


@pytest.mark.parametrize("name", sorted(set(NAMES) - VARIADIC))
def test_wrong_values_are_taken_or_refused_clearly(name, folder, monkeypatch):
    plotting = pytest.importorskip("matplotlib.pyplot") if name.startswith("plotting") else None
    monkeypatch.chdir(folder)
    function, arguments = bad_input.calls(folder)[name]
    bad_input.called(function, arguments)  # it works
    short, chosen = name.rpartition(".")[2], random.Random(f"{SEED} {name}")
    faults = []
    for argument in bad_input.arguments_of(function):
        for kind, value in bad_input.wrong().items():
            if chosen.random() > SHARE or (kind == "2**32 - 1" and (short, argument) in bad_input.LONG):
                continue
            before = state(folder, arguments)
            refused, fault = bad_input.judged(function, arguments, argument, value)
            faults += [f"{argument} = {kind}: {fault}"] if fault else []
            if refused and state(folder, arguments) != before:
                faults.append(f"{argument} = {kind}: it was refused, but files or out are not as they were")
        if plotting:
            plotting.close("all")
    assert not faults, "\n".join(faults)


# -- the table can fail ------------------------------------------------------------------------------------------------


def unclear(n, out=None):
    raise ValueError("no")


def foreign(n):
    return np.reshape(np.zeros(3), n)


def undocumented(n):
    return {}[n]


def greedy(n):
    return np.ones(2**31)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (unclear, "does not name it"),
        (foreign, "/numpy/"),
        (undocumented, "KeyError"),
        (greedy, "MemoryError"),
    ],
)
def test_faults_are_seen(function, told):
    refused, fault = bad_input.judged(function, {}, "n", (2, 2))
    assert told in fault
    assert refused


def test_a_hang_is_seen(monkeypatch):
    def hangs(n):
        while True:
            pass

    with bad_input.patience(1):
        assert bad_input.judged(hangs, {}, "n", 1) == (True, "it hangs")


def test_kinds_of_values_are_many():
    assert len(bad_input.wrong()) >= 40
