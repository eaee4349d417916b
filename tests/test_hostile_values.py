"""Values whose own code fails, or that are no plain arrays: each is refused in our words, by the name of its argument.

Calls are those of `bad_input.py`; values are put in each of their arguments, one at a time.
"""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
import traceback

import bad_input
import numpy as np
import pytest
from campaign import HANGS, sparse

import rfrope
from rfrope import rotation
from rfrope._core.arguments import printable, show

LONGEST = 3000  # characters of an error, which may show several values and list what was expected
NAMES = sorted(set(map(bad_input.name_of, bad_input.public().values())) - {"kernels.registry.register"})
NAMES = [name for name in NAMES if name not in ("frequencies.axes.axial", "kernels.algebra.axes")]
FEW = ("rotation.turning.rotate", "rotation.rope.Rope", "kernels.algebra.mixture", "heads.peaks.offset_of")


class Raises:
    """Its `repr` fails."""

    def __repr__(self):
        raise RuntimeError("not today")


class Long:
    """Its `repr` is a megabyte."""

    def __repr__(self):
        return "long " * 2**18


class NoText:
    """Its `repr` is no text."""

    def __repr__(self):
        return 3


class Escape:
    """Its `repr` would change a terminal, and hide what follows."""

    def __repr__(self):
        return "\x1b[31mred\u202e\n"


HOSTILE = {
    "10**5000": 10**5000,
    "-10**5000": -(10**5000),
    "a list with 10**5000": [10**5000],
    "a raising repr": Raises(),
    "a list with a raising repr": [Raises()],
    "a dict with a raising repr": {"a": Raises()},
    "an array with a raising repr": np.array([Raises()], dtype=object),
    "a long repr": Long(),
    "a repr that is no text": NoText(),
    "a repr with escapes": Escape(),
}


def nowhere_plain():
    """Arrays of other libraries that are not a rectangle of numbers of known lengths with values."""
    torch, dask = pytest.importorskip("torch"), pytest.importorskip("dask.array")
    parts = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    line, table = dask.ones(8, chunks=4), dask.ones((8, 8), chunks=4)
    return {
        "a nested tensor": torch.nested.nested_tensor(parts),
        "a jagged tensor": torch.nested.nested_tensor(parts, layout=torch.jagged),
        "a sparse tensor": torch.eye(8, dtype=torch.float64).to_sparse(),
        "a meta tensor": torch.ones(3, 8, device="meta", dtype=torch.float64),
        "a line on meta": torch.ones(4, device="meta", dtype=torch.float64),
        "a number on meta": torch.tensor(3, device="meta"),
        "an unknown length": line[line > 0.0],
        "unknown rows": table[table.sum(axis=-1) > 0.0],
    }


# a missing value is one; a context manager refuses where it is entered; the others are refused by what they lead to
ELSEWHERE = {"_core.parallel.threads"}


def faults(name, folder, values):
    """What is wrong with how a function refuses values."""
    function, arguments = bad_input.calls(folder)[name]
    for argument in bad_input.arguments_of(function):
        for kind, value in values.items():
            try:
                with bad_input.patience(HANGS), bad_input.watched():
                    bad_input.called(function, {**arguments, argument: value})
            except BaseException as error:
                last = traceback.extract_tb(error.__traceback__)[-1].filename
                text = f"{argument} = {kind}: {type(error).__name__} of {last}: {error!s:.200}"
                names = (argument, *bad_input.ALIASES.get(argument, ()))
                ours = isinstance(error, bad_input.DOCUMENTED) and not any(one in last for one in bad_input.FOREIGN)
                named = any(re.search(rf"\b{one}\b", str(error)) for one in names)
                if not (ours and named and len(str(error)) < LONGEST and str(error).isprintable()):
                    yield text


pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's"),
    pytest.mark.filterwarnings("ignore"),  # what a value that is taken means is not the question here
]


@pytest.mark.parametrize("name", sparse(NAMES, lambda name: name in FEW))
def test_a_value_is_shown_whatever_its_own_code_does(name, tmp_path, monkeypatch):
    plotting = pytest.importorskip("matplotlib.pyplot") if name.startswith("plotting") else None
    monkeypatch.chdir(tmp_path)
    assert not [*faults(name, tmp_path, HOSTILE)]
    if plotting:
        plotting.close("all")


@pytest.mark.parametrize("name", sparse(NAMES, lambda name: name in FEW))
def test_arrays_that_are_not_plain_are_taken_or_refused_by_the_name_of_their_argument(name, tmp_path, monkeypatch):
    plotting = pytest.importorskip("matplotlib.pyplot") if name.startswith("plotting") else None
    monkeypatch.chdir(tmp_path)
    assert not [*faults(name, tmp_path, nowhere_plain())]
    if plotting:
        plotting.close("all")


SHOWN = [
    (3, "3"),
    ("a\x1b[31m\u202eb\x00\x9bc", r"'a\x1b[31m\u202eb\x00\x9bc'"),
    (10**5000, "a whole number of 16610 bits"),
    (-(10**5000), "a whole number of 16610 bits"),
    ([10**5000], "<a list, whose repr raised ValueError>"),
    (Raises(), "<a Raises, whose repr raised RuntimeError>"),
    (NoText(), "<a NoText, whose repr raised TypeError>"),
    (Escape(), r"\x1b[31mred\u202e\n"),
    (Long(), ("long " * 16)),
    (np.arange(3), "array([0, 1, 2])"),
]


@pytest.mark.parametrize("number", range(len(SHOWN)))  # not even pytest can name them
def test_show(number):
    value, shown = SHOWN[number]
    assert show(value) == shown


def test_a_repr_of_another_kind_of_text_is_made_plain():
    class Text(str):
        __slots__ = ()

        def __getitem__(self, index):
            raise RuntimeError("no")

        def isprintable(self):
            raise RuntimeError("no")

    class Value:
        def __repr__(self):
            return Text("text")

    assert show(Value()) == "text"
    assert type(show(Value())) is str


def test_an_interrupt_while_a_value_is_shown_is_an_interrupt():
    class Interrupts:
        def __repr__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        show(Interrupts())


def test_printable_keeps_what_it_is_asked_to_keep():
    assert printable("Φ = é, 中, 𝛷") == "Φ = é, 中, 𝛷"
    assert printable("a\nb\tc\r\x7f\u2066\u200b\ufeff\ud800") == r"a\nb\tc\r\x7f\u2066\u200b\ufeff\ud800"
    assert printable("a\nb\tc", "\n") == "a\nb\\tc"


def test_no_error_shows_a_value_by_its_own_code():
    """A value is shown by `show` alone; `!r` is for what is known to be one of a few words, a path or a law."""
    root = pathlib.Path(rfrope.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FormattedValue) and node.conversion == ord("r") and node.format_spec is not None
    ]
    assert found == []


def test_a_rope_of_frequencies_of_unknown_number_is_refused():
    dask = pytest.importorskip("dask.array")
    x = dask.ones(8, chunks=4)
    with pytest.raises(ValueError, match=r"^frequencies has lengths that are not known; expected known ones: freq"):
        rfrope.Rope(x[x > 0.0])
    with pytest.raises(ValueError, match=r"^x has lengths that are not known"):
        rfrope.rotate(dask.ones((8, 4))[x > 0.0], 3, [1.0])
    assert rfrope.Rope(x[x > 0.0].compute_chunk_sizes()).head_dim == 16


def test_nested_tensors_are_refused_by_name_in_methods_too():
    torch = pytest.importorskip("torch")
    from rfrope.layers.torch import RotaryEmbedding

    x, at = torch.ones(1, 2, 3, 8), torch.arange(3)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    rope = rfrope.Rope([1.0, 0.5, 0.25, 0.125])
    last = rfrope.Rope(rope.frequencies, source={"turned": "last"})
    module = RotaryEmbedding(rope)
    for warm in (1, 2, 3):  # the last of these are quick
        rope.rotate(x, at), module(x, x, at), warm
    calls = {
        "x": [lambda: rope.rotate(nested, at), lambda: last.rotate(nested, at)],
        "positions": [lambda: rope.rotate(x, nested), lambda: rope.table(nested), lambda: module(x, x, nested)],
        "q": [lambda: rope.scores(nested, x, at, at), lambda: module(nested, x, at)],
        "k": [lambda: rope.scores(x, nested, at, at), lambda: module(x, nested, at)],
        "lags": [lambda: rfrope.kernel("gaussian").phi(nested)],
        "u": [lambda: rfrope.kernel("gaussian").transport(nested)],
        "matrix": [lambda: rfrope.kernel("gaussian").warp(nested)],
        "frequencies": [lambda: rfrope.Rope(nested)],
    }
    for name, several in calls.items():
        for call in several:
            with pytest.raises(TypeError, match=f"^{name} is a nested tensor; expected a dense one"):
                call()


def test_a_table_on_the_meta_device_prints_its_shape_alone():
    torch = pytest.importorskip("torch")
    rope = rfrope.Rope(torch.ones(4, device="meta", dtype=torch.float64))
    assert "of shape (4,)" in rope._repr_html_()


@pytest.mark.parametrize("of", ["numpy", "torch"])
def test_empty_keys_are_turned_and_their_errors_say_k(of):
    k = np.ones((0, 4)) if of == "numpy" else pytest.importorskip("torch").ones(0, 4)
    old, new = rfrope.Rope([1.0, 0.5]), rfrope.Rope([1.0, 0.25])
    assert tuple(rotation.rerotate(k, np.arange(0), old, new).shape) == (0, 4)
    with pytest.raises(ValueError, match=r"^k and the phases from positions do not broadcast: \(0,\) of k and \(3,\)"):
        rotation.rerotate(k, np.arange(3), old, new)
    with pytest.raises(ValueError, match=r"^k has shape \(1, 4\), but the phases from positions have shape \(3, 2\)"):
        rotation.rerotate(np.ones((1, 4)), np.arange(3), old, new)
    out = np.full((3, 4), 7.0)
    with pytest.raises(ValueError, match=r"^out has shape \(3, 4\); expected \(1, 4\)"):
        rotation.rerotate(np.ones((1, 4)), 3, old, rfrope.Rope([1.0, 0.25], pairing="interleaved"), out=out)
    assert np.all(out == 7.0)


NO_THREADS = """
import numpy as np, rfrope
for call in (
    lambda: rfrope.rotate(np.ones((3, 4)), np.arange(3), [1.0, 0.5]),
    lambda: rfrope.Rope([1.0, 0.5]).rotate(np.ones((3, 4)), np.arange(3)),
    lambda: rfrope.estimate_kernel(1.0, "gaussian", n_samples=64, rng=0),
):
    try:
        call()
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize("count", ["0", "-1", "+0"])
def test_a_number_of_threads_that_numba_cannot_have(count, monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", count)
    found = subprocess.run(
        [sys.executable, "-c", NO_THREADS], capture_output=True, text=True, check=True, timeout=HANGS
    ).stdout.splitlines()
    line = f"the environment variable NUMBA_NUM_THREADS is '{count}'; expected 1 or more: unset it"
    assert found == [line] * 3
    from rfrope._accel import findings

    told = findings.on_host()[0]
    assert (told["active"], told["reason"], told["advice"]) == (False, f"ValueError: {line}", "unset NUMBA_NUM_THREADS")


@pytest.mark.parametrize("count", ["1", "x", ""])
def test_other_values_are_numbas_own(count, monkeypatch):
    from rfrope._accel import cpu

    monkeypatch.setenv("NUMBA_NUM_THREADS", count)
    cpu.check()
