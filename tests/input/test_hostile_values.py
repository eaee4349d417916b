"""Values whose own code fails are shown; arrays that are not plain are refused by the name of their argument.

`test_bad_input.py` puts such values into every argument of every function.
"""

import subprocess
import sys

import numpy as np
import pytest
from bad_input import MUTE, Shown
from campaign import HANGS

import rfrope
from rfrope._core.arguments import printable, show

SHOWN = [
    (3, "3"),
    ("a\x1b[31m\u202eb\x00\x9bc", r"'a\x1b[31m\u202eb\x00\x9bc'"),
    (10**5000, "a whole number of 16610 bits"),
    (-(10**5000), "a whole number of 16610 bits"),
    ([10**5000], "<a list, whose repr raised ValueError>"),
    (MUTE, "<a Shown, whose repr raised RuntimeError>"),
    (Shown(3), "<a Shown, whose repr raised TypeError>"),
    (Shown("\x1b[31mred\u202e\n"), r"\x1b[31mred\u202e\n"),
    (Shown("long " * 2**18), ("long " * 16)),
    (np.arange(3), "array([0, 1, 2])"),
]


@pytest.mark.parametrize("number", range(len(SHOWN)))  # not even pytest can name them
def test_show(number):
    value, shown = SHOWN[number]
    assert show(value) == shown


def test_printable_keeps_what_it_is_asked_to_keep():
    assert printable("Φ = é, 中, 𝛷") == "Φ = é, 中, 𝛷"
    assert printable("a\nb\tc\r\x7f\u2066\u200b\ufeff\ud800") == r"a\nb\tc\r\x7f\u2066\u200b\ufeff\ud800"
    assert printable("a\nb\tc", "\n") == "a\nb\\tc"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_calls_that_are_prepared_too(torch):
    from rfrope.layers.torch import RotaryEmbedding

    x, at, rope = torch.ones(1, 2, 3, 8), torch.arange(3), rfrope.Rope([1.0, 0.5, 0.25, 0.125])
    nested, module = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), RotaryEmbedding(rope)
    for _ in range(3):  # the last of these are quick
        rope.rotate(x, at), module(x, x, at)
    for name, call in (
        ("x", lambda: rope.rotate(nested, at)),
        ("positions", lambda: rope.rotate(x, nested)),
        ("q", lambda: module(nested, x, at)),
        ("k", lambda: module(x, nested, at)),
        ("positions", lambda: module(x, x, nested)),
    ):
        with pytest.raises(TypeError, match=f"^{name} is a nested tensor; expected a dense one"):
            call()


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


def test_a_number_of_threads_that_numba_cannot_have(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "0")
    found = subprocess.run(
        [sys.executable, "-c", NO_THREADS], capture_output=True, text=True, check=True, timeout=HANGS
    ).stdout.splitlines()
    line = "the environment variable NUMBA_NUM_THREADS is '0'; expected 1 or more: unset it"
    assert found == [line] * 3
