"""Functions of single elements on arrays of any library."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope._core import array


def test_a_numpy_function_of_arrays_of_any_library(xp):
    x = xp(np.linspace(0.0, 1.0, 6).reshape(2, 3))
    got = array.map_on_host(np.sinh, x, array.namespace(x=x), "x")
    assert xp.owns(got)
    np.testing.assert_allclose(xp.host(got), np.sinh(xp.host(x)))


@pytest.mark.parametrize("last_axis", [0, 2])
def test_along_the_last_axis(xp, last_axis):
    def function(v):
        return v.sum(axis=-1) if last_axis == 0 else v[..., :2] * 2.0

    x = xp(np.arange(12.0).reshape(4, 3))
    got = array.map_on_host(function, x, array.namespace(x=x), "x", last_axis=last_axis)
    np.testing.assert_allclose(xp.host(got), function(xp.host(x)))


def test_gradients_are_not_dropped_silently():
    torch = library("torch").module
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(TypeError, match=r"^lags asks for a gradient"):
        rfrope.bochner.from_density(lambda w: 0.5 * np.exp(-np.abs(w))).phi(x)
    for nu in (0.3, 0.8, 1.0, 2.5, 7.3, 30.0):
        (gradient,) = torch.autograd.grad(rfrope.kernel("matern", nu=nu).phi(x).sum(), x)
        step = 1e-6
        kernel = rfrope.kernel("matern", nu=nu)
        slope = (kernel.phi(1.0 + step) - kernel.phi(1.0 - step)) / (2 * step)
        assert gradient[0].item() == pytest.approx(slope, rel=1e-8)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 11])
def test_a_call_in_spans_is_the_call(axis, count, xp, monkeypatch):
    """Along either axis, in as many pieces as it takes, of which the last may be shorter."""
    monkeypatch.setattr(array, "spans", lambda n, each: (slice(i, min(i + 4, n)) for i in range(0, n, 4)))
    shape = (11, 3) if axis == 0 else (2, 3, 11)
    x, seen = xp(np.arange(float(np.prod(shape))).reshape(shape)), []

    def call(span):
        seen.append(span)
        return x[span, ...] if axis == 0 else x[..., span]

    got = array.map_spans(call, count or 11, x, array.namespace(x=x), axis=axis)
    assert xp.owns(got)
    np.testing.assert_array_equal(xp.host(got), xp.host(call(slice(0, count or 11))))
    assert len(seen) - 1 == (1 if array.is_lazy(x) else -(-(count or 11) // 4))
