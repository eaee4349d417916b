"""Every call of every public function that takes arrays, on every library: NumPy's numbers and dtypes."""

import warnings
from collections.abc import Iterator
from typing import Any

import calls
import numpy as np
import pytest
from campaign import sparse
from conftest import library

CALLS = calls.CALLS | calls.FROM_HOST | calls.TO_HOST | calls.MADE_ON_HOST
WRITING = {"rotate", "Rope.rotate", "relocate", "rerotate", "rotate_polar"}  # to out, which not every library has


def results(name: str, place: Any) -> list[Any]:
    made = CALLS[name](place) if name not in calls.MADE_ON_HOST else CALLS[name](place.module, place.device)
    return [*calls.arrays([*made] if isinstance(made, Iterator) else made)]


@pytest.mark.parametrize("name", CALLS)
def test_every_library_gives_numpys_numbers(name, xp):
    if name in WRITING and not xp.writable:
        pytest.skip("its arrays are not written to")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, wanted = results(name, xp), results(name, library("numpy"))
    for one, other in zip(found, wanted, strict=True):
        host, other = xp.host(one) if xp.owns(one) else np.asarray(one), np.asarray(other)
        assert (host.dtype, host.shape) == (other.dtype, other.shape)
        if other.dtype.kind in "fciub":
            unit = 1e-6 if other.dtype == np.float32 else 1e-9
            scale = max(1.0, np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
            np.testing.assert_allclose(host, other, rtol=unit, atol=unit * scale)


# whose numbers are constants, or count as such where they keep others from overflowing
WITHOUT_SLOPES = {"Rope.table", "features.positive", "from_complex", "xpos_scales"}


SEEN = ("axial", "isotropic", "mixed", "mrope", "relocate", "scaling.llama3", "scaling.yarn")
SLOPED = sparse(sorted(calls.TAKING - calls.OF_THE_HOST - WITHOUT_SLOPES), lambda name: name in SEEN)


@pytest.mark.parametrize("name", SLOPED)
def test_gradients_of_every_function_are_those_of_differences(name, torch):
    """By all of its arrays of floats."""
    function, arguments = calls.found_call(name)
    given, leaves = {key: value for key, value in arguments.items() if key != "out"}, []

    def kept(values, dtype=None):
        made = torch.tensor(np.array(values))
        leaves.extend([made.requires_grad_()] if made.is_floating_point() else [])
        return made

    def call(*leaves):
        rest = iter(leaves)
        made = calls.moved(given, lambda values: next(rest) if values.dtype.kind == "f" else torch.tensor(values))
        return tuple(one for one in calls.arrays(calls.called(function, made)) if getattr(one, "requires_grad", False))

    calls.moved(given, kept)
    assert call(*leaves)
    assert torch.autograd.gradcheck(call, leaves, atol=1e-6, rtol=1e-5)
