"""Wrong values in every argument of every public call, one at a time: taken rightly, or refused in words of our own.

`bad_input.py` has the calls and the values, `accepted.py` the formulas. Each error is of a documented type and names
the argument that is wrong; none comes from inside NumPy, SciPy, Numba, PyTorch, JAX or Dask; nothing hangs or asks for
more than 1 GiB; `out` and files stay as they were. What is taken gives what a formula says.
"""

from __future__ import annotations

import csv
import os
import pathlib
import random
import sys

import bad_commands
import bad_input
import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import analysis, bochner, exports, frequencies, heads, rotation

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's"),
    pytest.mark.filterwarnings("ignore"),  # what a value that is taken means is not the question here
]
SHARE = float(os.environ.get("RFROPE_SHARE", "0.25"))  # of all pairs of an argument and a value; 1 is the whole table
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
            _, fault = bad_commands.judged(command, name, names, changed, kind)
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
    assert len(bad_commands.WORDS) >= 30


def test_the_table_of_the_documentation():
    """It has calls of every group, and none is unclear or wrong."""
    path = pathlib.Path(__file__).parents[1] / "docs" / "bad_input.csv"
    if not path.exists():
        pytest.skip("docs/ is not here")
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row.pop(""): {name: int(count) for name, count in row.items()} for row in csv.DictReader(file)}
    total = rows.pop("all")
    assert all(total[name] == sum(row[name] for row in rows.values()) for name in total)
    assert (total["unclear"], total["wrong"]) == (0, 0)
    assert total["calls"] == total["refused"] + total["taken"] >= 1500
    assert {"functions", "methods of Rope", "methods of Kernel", "modules and models", "command line"} <= set(rows)


# -- what the table found ----------------------------------------------------------------------------------------------

X, LADDER, LAW = bad_input.X, bad_input.LADDER, "gaussian(scale=8)"
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
    "lags and sets": (
        lambda: heads.shifted_mean_kernel(np.ones((3, 2, 1)), np.ones((4, 1, 1)), np.zeros(1)),
        "^lags and frequencies do not broadcast",
    ),
    "centre": (lambda: frequencies.xpos_scales([0], 2, centre=1e9), "565 times scale_base from centre"),
    "context": (
        lambda: analysis.base_for_context(2**31, 4, max_base=100.0),
        "the grid of bases for context = 2147483648 begins",
    ),
    "query_position": (
        lambda: heads.temperature_for_mass(0.5, LADDER, context=16, query_position=0),
        "^offset is -1, but by context, window and query_position",
    ),
    "weights": (lambda: heads.alignment(-1, LADDER, np.zeros(4), weights=5e-324), "^weights holds .* below"),
    "support": (lambda: bochner.from_density(np.exp, support={1, 2}), "^support is {1, 2}; expected two numbers"),
    "complex support": (lambda: bochner.from_density(np.exp, support=np.array([0j, 2.0])), r"^support\[0\] is "),
    "part": (lambda: exports.write("a.json", bad_input.ROPE, "vllm", part="x"), "^part is 'x', but model is None"),
    "ragged features": (lambda: bad_input.ROPE.rotate([[1.0], [1.0, 2.0]], 1), "^x is "),
    "ragged queries": (lambda: bad_input.ROPE.scores([[1.0], [1.0, 2.0]], X, np.arange(3), np.arange(3)), "^q is "),
    "wide queries": (
        lambda: rfrope.Rope(LADDER, head_dim=8).scores(np.ones((3, 10)), np.ones((3, 10)), np.arange(3), np.arange(3)),
        "^q has 10 features, but the Rope has head_dim=8",
    ),
    "no block": (lambda: analysis.sine_share(X[0], X[1], [1.0, 2.0], []), "^frequencies "),
    "a set of axial": (lambda: rfrope.axial([1.0], 2.0), r"^sets\[1\] is a single number"),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_was_unclear_is_clear(case, folder, monkeypatch):
    monkeypatch.chdir(folder)
    call, message = FOUND[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_nan_in_what_nobody_looks_at_is_seen_on_the_host():
    jax = pytest.importorskip("jax")
    with pytest.raises(ValueError, match=r"^frequencies holds NaN"):
        analysis.density_of_states(jax.numpy.full(4, jax.numpy.nan))


def test_points_that_scipy_cannot_take_are_named():
    torch = pytest.importorskip("torch")
    points = torch.full((3,), 0.5, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"^u is on the meta device and has no values"):
        rfrope.kernel("gaussian").transport(points.to("meta"))
    with pytest.raises(TypeError, match=r"^u asks for a gradient, .*; expected u.detach\(\)$"):
        rfrope.kernel("gaussian").transport(points.requires_grad_())


def test_no_blocks_of_several_axes_have_no_wavelengths_in_dask():
    dask = pytest.importorskip("dask.array")
    assert analysis.wavelengths(dask.zeros((0, 4))).compute().shape == (0,)


def test_offsets_of_a_module_and_models_are_named():
    torch = pytest.importorskip("torch")
    from rfrope.layers.torch import RotaryEmbedding

    module, x = RotaryEmbedding(LADDER), torch.ones(1, 2, 3, 8)
    with pytest.raises(ValueError, match=r"^offset holds NaN"):
        module(x, x, offset=float("nan"))
    with pytest.raises(ValueError, match="phases from positions and offset have shape"):
        module.rotate(x, offset=torch.arange(5))
    pytest.importorskip("transformers")
    from rfrope.integrations.transformers import replace_rotary

    with pytest.raises(TypeError, match=r"^model is 3; expected a model of transformers"):
        replace_rotary(3, LADDER)


@pytest.mark.parametrize(
    ("command", "changed", "message"),
    [
        ("design", "--heads=4294967296", "argument --heads: 4294967296 is above 2**32 - 1"),
        ("export", "--base=nan", "--base is nan; expected a positive finite number"),
        ("export", "--part=x", "--part x: "),
        ("plan", "--context=9", "--context is 9; expected more than the 64 trained positions"),
        ("plan", "--trained=4294967296", "argument --trained: 4294967296 is above 2**32 - 1"),
    ],
)
def test_errors_of_a_command_name_the_option(run, folder, command, changed, message):
    option = changed.partition("=")[0]
    line = [one for one in bad_commands.commands(folder)[command] if not one.startswith(f"{option}=")]
    code, out, err = run(command, *line, changed)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"rfrope {command}: error: {message}")
