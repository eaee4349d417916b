"""Files of Ropes: what cannot be saved or loaded, and where. `tests/test_storage.py` has damaged files."""

import numpy as np

from rfrope import Rope, engines
from rfrope.storage import load, save

OMEGA = np.linspace(0.1, 0.7, 4)
PATH, ORDER = "never-written.npz", ": path comes first, then rope"


def held(value):
    return lambda: save(PATH, OMEGA, source={"x": value})


ROWS = [
    (lambda: save(PATH, np.array([1.0, np.inf])), ValueError, "frequencies holds NaN or infinity"),
    (lambda: save(PATH, np.array(1.0)), ValueError, "frequencies is a single number"),
    (lambda: save(PATH, np.arange(4)), TypeError, "dtype int64"),
    (lambda: save(PATH, OMEGA + 1j), TypeError, "dtype complex128"),
    (held(object()), TypeError, "it holds <object"),
    (held(np.nan), ValueError, ("which JSON cannot hold", "expected finite numbers")),
    (held({(1, 2): 2}), TypeError, "which JSON cannot hold"),
    (held({"inside": [{1: 2}]}), TypeError, ("which JSON cannot hold", "the key 1")),
    (held(np.array([1j])), TypeError, "it holds 1j"),
    (lambda: save("set", OMEGA), ValueError, "expected a name that ends in .npz or .safetensors"),
    (lambda: save("none/set.npz", OMEGA), FileNotFoundError, "none/set.npz"),
    (lambda: load("none/set.npz"), FileNotFoundError, "none/set.npz"),
    *(
        (lambda call=call, name=name: call(name, OMEGA), kind, ("path is ", "; expected"))
        for call in (save, lambda name, _: load(name))
        for name, kind in ((3, TypeError), (b"a.npz", TypeError), ("", ValueError), ("a\0.npz", ValueError))
    ),
    *(
        (lambda call=call, rope=rope: call(rope, PATH), TypeError, ("path is ", "expected a path, ", ORDER))
        for call in (save, lambda *swapped: engines.write(*swapped, "vllm"))
        for rope in (OMEGA, Rope(OMEGA))
    ),
]
