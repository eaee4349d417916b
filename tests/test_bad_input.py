"""Wrong values in every argument of every public call, one at a time: taken rightly, or refused in words of our own.

`bad_input.py` has the calls and the values, `accepted.py` the formulas. Each error is of a documented type and names
the argument that is wrong; none comes from inside NumPy, SciPy, Numba, PyTorch, JAX or Dask; nothing hangs or asks for
more than 1 GiB; `out` and files stay as they were. What is taken gives what a formula says.
"""

from __future__ import annotations

import os
import random
import sys

import bad_commands
import bad_input
import numpy as np
import pytest
from campaign import campaign

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's"),
    pytest.mark.filterwarnings("ignore"),  # what a value that is taken means is not the question here
]
SHARE = float(os.environ.get("RFROPE_SHARE", "0.6"))  # of all pairs of an argument and a value; 1 is the whole table
SEED = 20261122
NAMES = bad_input.names()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bad_input")


def state(folder, arguments):
    """Bytes of files and of `out`."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    out = arguments.get("out")
    return files, None if out is None else bad_input.accepted.plain(out).tobytes()


def test_every_public_function_and_method_has_a_call(folder):
    assert set(bad_input.calls(folder)) | set(bad_input.OF_MODULES) == set(NAMES) == set(bad_input.accepted.CHECKS)


@pytest.fixture
def judge(folder, monkeypatch):
    """``judge(name, share)``: the calls of one name with some of the values, and what is wrong with each."""
    monkeypatch.chdir(folder)

    def run(name, share):
        plotting = pytest.importorskip("matplotlib.pyplot") if name.startswith("plotting") else None
        table = bad_input.calls(folder)
        if name not in table:
            pytest.skip(f"{name.split('.')[1]} is not installed")
        function, arguments = table[name]
        bad_input.called(function, arguments)  # it works
        faults, chosen = [], random.Random(f"{SEED} {name}")
        for argument, kind, value in bad_input.pairs(name, function, arguments):
            if chosen.random() > share:
                continue
            before = state(folder, arguments)
            refused, fault = bad_input.judged(function, arguments, argument, value, name)
            faults += [f"{argument} = {kind}: {fault}"] if fault else []
            if refused and state(folder, arguments) != before:
                faults.append(f"{argument} = {kind}: it was refused, but files or out are not as they were")
        if plotting:
            plotting.close("all")
        return faults

    return run


QUICK = 0.02  # of all pairs, in the suite
SLOW = ("plan", "summarise", "optimise", "conformance", "fit_kernel", "replace_rotary", "nearest", "from_function")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(SLOW)])
def test_a_few_wrong_values_are_taken_rightly_or_refused_clearly(name, judge):
    faults = judge(name, QUICK)
    assert not faults, "\n".join(faults)


@campaign
@pytest.mark.parametrize("name", NAMES)
def test_wrong_values_are_taken_rightly_or_refused_clearly(name, judge):
    faults = judge(name, SHARE)
    assert not faults, "\n".join(faults)


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "share"),
    [
        *((command, 0.05) for command in bad_commands.parsers() if command != "doctor"),
        *(pytest.param(command, 1.0, marks=campaign) for command in bad_commands.parsers()),
    ],
)
def test_wrong_words_of_the_command_line(command, share, folder, monkeypatch):
    monkeypatch.chdir(folder)
    line = bad_commands.commands(folder)[command]
    assert bad_commands.run([command, *line])[0] == 0  # it works
    faults, chosen = [], random.Random(f"{SEED} {command}")
    for name, names, changed, kind in bad_commands.pairs(command, line):
        if chosen.random() < share:
            fault = bad_commands.judged(command, name, names, changed, kind)
            faults += [f"{name} = {kind}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)


def test_every_command_has_a_line(folder):
    assert set(bad_commands.commands(folder)) == set(bad_commands.parsers())


# -- the table can fail ------------------------------------------------------------------------------------------------


def unclear(n, out=None):
    raise ValueError("no")


def misnamed(n, out=None):
    raise ValueError("out is 3; expected an array")


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
        (misnamed, "does not name it"),
        (foreign, "/numpy/"),
        (undocumented, "KeyError"),
        (greedy, "MemoryError"),
    ],
)
def test_faults_are_seen(function, told):
    refused, fault = bad_input.judged(function, {}, "n", (2, 2))
    assert told in fault
    assert refused


def test_what_is_taken_needs_a_formula_and_is_held_against_it():
    def doubled(n_blocks, *, base=10000.0, xp=None, device=None, dtype=None):
        return 2.0 * 10000.0 ** -np.arange(n_blocks) / n_blocks

    refused, fault = bad_input.judged(doubled, {}, "n_blocks", 3)
    assert (refused, fault) == (False, "it is taken, and no formula says what it gives")
    refused, fault = bad_input.judged(doubled, {}, "n_blocks", 3, "frequencies.ladders.geometric")
    assert not refused
    assert fault.startswith("it is taken, and gives something else: AssertionError")


def test_a_hang_is_seen(monkeypatch):
    def hangs(n):
        while True:
            pass

    with bad_input.patience(1):
        assert bad_input.judged(hangs, {}, "n", 1) == (True, "it hangs")


def test_kinds_of_values_are_many():
    assert len(bad_input.wrong()) >= 50
