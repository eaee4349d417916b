"""Wrong values in every argument of every public call, one at a time: taken rightly, or refused in words of our own.

`bad_input.py` has the calls and the values. Each error is of a documented type and names the argument that is wrong;
none comes from inside NumPy, SciPy, Numba, PyTorch, JAX or Dask; nothing hangs or asks for more than 1 GiB; `out` and
files stay as they were. What is taken gives the same as in its plain form.
"""

from __future__ import annotations

import math
import os
import random
import sys

import bad_commands
import bad_input
import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import bochner, exports, frequencies, heads, rotation

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's"),
    pytest.mark.filterwarnings("ignore"),  # what a value that is taken means is not the question here
]
SHARE = float(os.environ.get("RFROPE_SHARE", "0.2"))  # of all pairs of an argument and a value; 1 is the whole table
QUICK = 0.02  # in the suite
SEED = 20261122
NAMES = bad_input.names()
SLOW = ("plan", "summarise", "optimise", "conformance", "fit_kernel", "nearest", "from_function")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bad_input")


def state(folder, arguments):
    """Bytes of files and of `out`."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return files, None if arguments.get("out") is None else arguments["out"].tobytes()


def test_every_public_function_and_method_has_a_call(folder):
    modules = {name for name in NAMES if "Embedding" in name}  # PyTorch need not be there
    assert {*bad_input.calls(folder)} | modules == {*NAMES}


@pytest.mark.parametrize(
    ("name", "share"),
    [
        *((name, QUICK) for name in NAMES if not name.endswith(SLOW)),
        *(pytest.param(name, SHARE / (5 if name.endswith(SLOW) else 1), marks=campaign) for name in NAMES),
    ],
)
def test_wrong_values_are_taken_rightly_or_refused_clearly(name, share, folder, monkeypatch):
    monkeypatch.chdir(folder)
    plotting = pytest.importorskip("matplotlib.pyplot") if name.startswith("plotting") else None
    table = bad_input.calls(folder)
    if name not in table:
        pytest.skip("torch is not installed")
    function, arguments = table[name]
    bad_input.called(function, arguments)  # it works
    faults, chosen = [], random.Random(f"{SEED} {name}")
    for argument, kind, value, plain in bad_input.pairs(name, function, arguments):
        if chosen.random() > share:
            continue
        before = state(folder, arguments)
        refused, fault = bad_input.judged(function, arguments, argument, value, plain)
        faults += [f"{argument} = {kind}: {fault}"] if fault else []
        if refused and state(folder, arguments) != before:
            faults.append(f"{argument} = {kind}: it was refused, but files or out are not as they were")
    if plotting:
        plotting.close("all")
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
    table, kept = bad_input.calls(folder), []
    buffers = {"cos_cached": np.ones((3, 4)), "sin_cached": np.zeros((3, 4))}
    others = [(rfrope.models.audit, {"what": what, "rope": bad_input.ROPE}) for what in (buffers, (*buffers.values(),))]
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
def test_tensors_whose_sign_is_pending_count_as_what_they_are(name, folder):
    """As the imaginary part of a conjugate: NumPy cannot see such memory. One alone, and beside other tensors."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    plotting = pytest.importorskip("matplotlib.pyplot") if name.startswith("plotting") else None
    function, arguments = bad_input.calls(folder)[name]
    floats = {key: value for key, value in arguments.items() if key != "out" and bad_input.is_numeric(value)}
    tensors = {key: torch.as_tensor(np.array(value, np.float64)) for key, value in floats.items()}
    faults = []
    for others in (arguments, {**arguments, **tensors}):
        for key, plain in tensors.items():
            pending = torch.complex(torch.zeros_like(plain), -plain).conj().imag
            assert pending.is_neg()
            _, fault = bad_input.judged(function, others, key, pending, plain)
            faults += [f"{key}: {fault}"] if "RuntimeError" in fault or "plain form gives" in fault else []
    if plotting:
        plotting.close("all")
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
    if command in ("heads", "tune"):
        pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
        import saved_models

        saved_models.save(folder / "model")
        (folder / "text.txt").write_text(saved_models.text(40), "utf-8")
    line = bad_commands.commands(folder)[command]
    assert bad_commands.run([command, *line])[0] == 0  # it works
    faults, chosen = [], random.Random(f"{SEED} {command}")
    for name, names, changed, word in bad_commands.pairs(command, line):
        if chosen.random() < share:
            fault = bad_commands.fault(command, name, names, changed, word)
            faults += [f"{name} = {word:.60}: {fault}"] if fault else []
    assert not faults, "\n".join(faults)


# -- the table can fail ------------------------------------------------------------------------------------------------


def raises(error):
    raise error


FAULTS = {
    "does not name it": lambda n, out=None: raises(ValueError("no")),
    "does not name it: ValueError": lambda n, out=None: raises(ValueError("out is 3; expected an array")),
    "too long": lambda n: raises(ValueError("n is " + "a" * 4000)),
    "/numpy/": lambda n: np.reshape(np.zeros(3), n),
    "KeyError": lambda n: {}[n],
    "MemoryError": lambda n: np.ones(2**31),
    "it is taken, and gives NaN": lambda n: math.nan,
    "its plain form gives": lambda n: np.asarray(n).ndim,
    "in its plain form refused": lambda n: n if isinstance(n, tuple) else raises(ValueError("n")),
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_are_seen(text):
    value = (2, 2)
    _, fault = bad_input.judged(FAULTS[text], {}, "n", value, 4.0 if "plain" in text else value)
    assert text in fault


def test_a_hang_is_seen():
    def hangs():
        while True:
            pass

    with pytest.raises(bad_input.HungError), bad_input.watched(1):
        hangs()


# -- what the table found ----------------------------------------------------------------------------------------------

X, LADDER = bad_input.X, bad_input.LADDER
FOUND = {
    "shift": (
        lambda: rfrope.rotate(X, np.arange(3), LADDER, shift=np.ones((5, 1, 4))),
        "phases from positions and shift",
    ),
    "scale": (lambda: rfrope.rotate_by_phases(X, X[:, :4], scale=np.ones((5, 1, 1))), "phases from phases and scale"),
    "sets": (
        lambda: rfrope.rotate(X, np.ones((3, 1)), np.ones((5, 4, 1))),
        "phases from positions and frequencies have",
    ),
    "old": (lambda: rotation.rerotate(X, np.arange(3), np.ones((1, 4, 1)), LADDER), "frequencies of old of shape"),
    "of frequencies": (
        lambda: heads.shifted_mean_kernel(1, [1.0, 2.0], [0.0] * 3),
        "^shift and the phases from lags and frequencies do not broadcast",
    ),
    "centre": (lambda: frequencies.xpos_scales([0], 2, centre=1e9), "565 times scale_base from centre"),
    "support": (lambda: bochner.from_density(np.exp, support={1, 2}), "^support is {1, 2}; expected two numbers"),
    "part": (lambda: exports.write("a.json", bad_input.ROPE, "vllm", part="x"), "^part is 'x', but model is None"),
    "wide queries": (
        lambda: rfrope.Rope(LADDER, head_dim=8).scores(np.ones((3, 10)), np.ones((3, 10)), np.arange(3), np.arange(3)),
        "^q has 10 features, but head_dim is 8",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_was_unclear_is_clear(case, folder, monkeypatch):
    monkeypatch.chdir(folder)
    call, message = FOUND[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()
