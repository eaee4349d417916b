"""Wrong values in every argument of every public call, one at a time: taken rightly, or refused in words of our own.

`bad_input.py` has the calls and the values. Each error is of a documented type and names the argument that is wrong;
none comes from inside NumPy, SciPy, Numba, PyTorch, JAX or Dask; nothing hangs or asks for more than 1 GiB; `out` and
files stay as they were. What is taken gives the same as in its plain form.
"""

import os
import random
import sys

import bad_commands
import bad_input
import calls
import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import cli
from rfrope._core.arguments import show

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's"),
    pytest.mark.filterwarnings("ignore"),  # what a value that is taken means is not the question here
]
SHARE = float(os.environ.get("RFROPE_SHARE", "0.2"))  # of all pairs of an argument and a value; 1 is the whole table
QUICK = 0.02  # in the suite
SEED = 20261122
NAMES = calls.names()
SLOW = ("plan", "summarise", "optimise", "conformance", "fit_kernel", "nearest", "from_function")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bad_input")


def state(folder, arguments):
    """Bytes of files and of `out`."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return files, None if arguments.get("out") is None else arguments["out"].tobytes()


@pytest.mark.parametrize(
    ("name", "share"),
    [
        *((name, QUICK) for name in NAMES if not name.endswith(SLOW)),
        *(pytest.param(name, SHARE / (5 if name.endswith(SLOW) else 1), marks=campaign) for name in NAMES),
    ],
)
def test_wrong_values_are_taken_rightly_or_refused_clearly(name, share, folder, monkeypatch):
    monkeypatch.chdir(folder)
    if name.startswith("plotting"):
        pytest.importorskip("matplotlib.pyplot")
    table = calls.calls(folder)
    if name not in table:
        pytest.skip("torch is not installed")
    function, arguments = table[name]
    calls.called(function, arguments)  # it works
    faults, chosen = [], random.Random(f"{SEED} {name}")
    for argument, value, plain in bad_input.pairs(name, function, arguments):
        if chosen.random() > share:
            continue
        before = state(folder, arguments)
        refused, fault = bad_input.judged(function, arguments, argument, value, plain)
        faults += [f"{argument} = {show(value)}: {fault}"] if fault else []
        if refused and state(folder, arguments) != before:
            faults.append(f"{argument} = {show(value)}: it was refused, but files or out are not as they were")
    assert not faults, "\n".join(faults)


def _masked(value):
    """The good value with its first number masked: the array, a list of its rows, and pairs and dicts of them."""
    if isinstance(value, dict):
        return [{**value, name: one} for name, held in value.items() for one in _masked(held)]
    if isinstance(value, tuple):
        return [tuple(made) for made in zip(*map(_masked, value), strict=True)]
    if not isinstance(value, np.ndarray):
        return []
    made = np.ma.masked_array(value, mask=np.arange(value.size).reshape(value.shape) == 0)
    return [made, list(made)] if value.ndim else [made]


def test_a_mask_is_never_dropped(folder):
    """Of the arguments that are arrays, of any call."""
    table, kept = calls.calls(folder), []
    buffers = {"cos_cached": np.ones((3, 4)), "sin_cached": np.zeros((3, 4))}
    others = [(rfrope.models.audit, {"what": what, "rope": calls.ROPE}) for what in (buffers, (*buffers.values(),))]
    for function, arguments in [*table.values(), *others]:
        for name, value in arguments.items():
            for masked in _masked(value) if name != "out" else _masked(value)[:1]:
                try:
                    function(**{**arguments, name: masked})
                except TypeError as error:
                    kept += [] if "a numpy Masked" in str(error) else [f"{function} {name}: {error}"]
                else:
                    kept.append(f"{function} {name} is taken")
    assert not kept, "\n".join(kept)


@pytest.mark.parametrize("name", [pytest.param(name, marks=campaign if name.endswith(SLOW) else ()) for name in NAMES])
def test_tensors_whose_sign_is_pending_count_as_what_they_are(name, folder, torch):
    """As the imaginary part of a conjugate: NumPy cannot see such memory. One alone, and beside other tensors."""
    if name.startswith("plotting"):
        pytest.importorskip("matplotlib.pyplot")
    function, arguments = calls.calls(folder)[name]
    floats = {key: value for key, value in arguments.items() if key != "out" and bad_input.is_numeric(value)}
    tensors = {key: torch.as_tensor(np.array(value, np.float64)) for key, value in floats.items()}
    faults = []
    for others in (arguments, {**arguments, **tensors}):
        for key, plain in tensors.items():
            pending = torch.complex(torch.zeros_like(plain), -plain).conj().imag
            assert pending.is_neg()
            _, fault = bad_input.judged(function, others, key, pending, plain)
            faults += [f"{key}: {fault}"] if "RuntimeError" in fault or "plain form gives" in fault else []
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("command", "share"),
    [
        *((command, 0.05) for command in bad_commands.parsers() if command not in ("doctor", "heads", "tune")),
        *(pytest.param(command, 2.0 * SHARE, marks=campaign) for command in bad_commands.parsers()),
    ],
)
def test_wrong_words_of_the_command_line(command, share, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(cli, "say_compiling", lambda: None)  # whatever is compiled here
    if command in ("heads", "tune"):
        pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
        import saved_models

        saved_models.save(folder / "model")
        (folder / "text.txt").write_text(saved_models.text(400), "utf-8")
    line = bad_commands.commands(folder)[command]
    assert bad_commands.run([command, *line])[0] == 0  # it works
    faults, chosen = [], random.Random(f"{SEED} {command}")
    for name, names, changed, word in bad_commands.pairs(command, line):
        if chosen.random() < share:
            fault = bad_commands.fault(command, name, names, changed, word)
            faults += [f"{name} = {word:.60}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)
