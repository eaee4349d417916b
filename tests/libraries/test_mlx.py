"""MLX by the generic path: exact with frequencies of the host, a warning of those in its float32, transformations."""

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope._core import array
from rfrope._core.angles import PrecisionWarning

mx = library("mlx").module
OMEGA = rfrope.geometric(4)
ROPE = rfrope.Rope(OMEGA, attention_factor=1.25)
AT = np.array([0, 5, 10**7 + 1, 2**31 - 1, -131_071], np.int32)
X = np.random.default_rng(0).standard_normal((2, len(AT), 8)).astype(np.float32)


@pytest.fixture(params=["cpu", "gpu"])
def place(request, monkeypatch):
    """Where MLX computes by itself: Apple's devices have no float64, which is then not to be made."""
    if request.param == "gpu":
        monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu, 0))
    return request.param


def close(found, exact, bound=6e-7):
    assert isinstance(found, mx.array)
    np.testing.assert_allclose(np.array(found.astype(mx.float32)), exact, rtol=0, atol=bound * np.abs(exact).max())


@pytest.mark.parametrize("given", [OMEGA, OMEGA.tolist(), rfrope.Rope(OMEGA)], ids=["array", "list", "Rope"])
def test_frequencies_of_the_host_stay_exact(given, place):
    exact = rfrope.rotate(X.astype(np.float64), AT, OMEGA)
    for positions in (mx.array(AT), AT):
        close(rfrope.rotate(mx.array(X), positions, given), exact)
    for dtype in (mx.float16, mx.bfloat16):
        found = rfrope.rotate(mx.array(X).astype(dtype), mx.array(AT), given)
        assert found.dtype == dtype
        close(found, exact, 0.01)
    cos, _ = rfrope.rotation_table(mx.array(AT), given)
    assert cos.dtype == (mx.float32 if place == "gpu" else mx.float64)


def test_frequencies_in_its_float32_are_warned_of(place):
    """They turn by 6e-3 radians too far at 131071, and nothing can be done about it here."""
    narrow = mx.array(OMEGA.astype(np.float32))
    for call in (
        lambda: rfrope.rotate(mx.array(X), mx.array(AT), narrow),
        lambda: rfrope.rotation_table(mx.array(AT), narrow),
        lambda: rfrope.Rope(narrow).rotate(mx.array(X), mx.array(AT)),
    ):
        with pytest.warns(
            PrecisionWarning, match="frequencies is an array of mlx in float32, which changes phases"
        ) as seen:
            call()
        assert seen[0].filename == __file__


def test_options_and_other_functions(place):
    x, at = mx.array(X), mx.array(AT)
    wide = X.astype(np.float64)
    options = {"pairing": "interleaved", "out_pairing": "half", "inverse": True, "scale": 2.0, "shift": OMEGA}
    close(rfrope.rotate(x, at, OMEGA, **options), rfrope.rotate(wide, AT, OMEGA, **options))
    close(ROPE.scores(x, x, at, at), ROPE.scores(wide, wide, AT, AT), 2e-6)
    polar = rfrope.Rope(OMEGA, polar=True)
    found = rfrope.rotation.rotate_polar(x[..., :4], at, polar, softplus=True)
    close(found, rfrope.rotation.rotate_polar(wide[..., :4], AT, polar, softplus=True))
    with pytest.raises(TypeError, match="arrays of this library cannot be written to"):
        rfrope.rotate(x, at, OMEGA, out=mx.zeros(x.shape))  # a part of it would be a copy


def test_transformations(place):
    """None of them lets a value be looked at."""
    x, at = mx.array(X), mx.array(AT)
    exact = ROPE.rotate(X.astype(np.float64), AT)
    close(mx.compile(ROPE.rotate)(x, at), exact)
    close(mx.vmap(lambda one: ROPE.rotate(one, at))(x), exact)
    floats = mx.array([0.5, 1.0, 2.0, 3.0, 1000.25])
    close(mx.compile(ROPE.rotate)(x, floats), ROPE.rotate(X.astype(np.float64), np.array(floats)), 1e-5)
    gradient = mx.grad(lambda x: (ROPE.rotate(x, at) * x).sum())(x)
    back = ROPE.rotate(X.astype(np.float64), AT) + 1.25**2 * ROPE.rotate(X.astype(np.float64), AT, inverse=True)
    close(gradient, back)


def test_its_record():
    x = mx.array(X)
    assert array.namespace(x=x) is mx
    assert not array.has_host_values(x)
    assert array.library_of(mx) is array.library(x)


def test_running_sums_in_parts_and_their_gradients(place):
    rates = np.random.default_rng(1).normal(size=(300, 3)).astype(np.float32)
    phases, last = rfrope.rotation.cumulative_phases(mx.array(rates))
    apart = np.array(phases.astype(mx.float32)) - np.cumsum(rates.astype(np.float64), axis=0)
    assert np.max(np.abs(np.angle(np.exp(1j * apart)))) < 1e-6
    first, kept = rfrope.rotation.cumulative_phases(mx.array(rates[:123]))
    second, end = rfrope.rotation.cumulative_phases(mx.array(rates[123:]), offset=kept)
    assert mx.array_equal(mx.concatenate([first, second]), phases)
    assert mx.array_equal(end, last)
    slope = mx.grad(lambda r: rfrope.rotation.cumulative_phases(r)[0][:, 0].sum())(mx.array(rates[:4]))
    np.testing.assert_array_equal(np.array(slope), [[4, 0, 0], [3, 0, 0], [2, 0, 0], [1, 0, 0]])
