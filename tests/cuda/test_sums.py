"""Sums over lags on a CUDA device: the kernels' text, run on the CPU, against the plain sums and exact moments."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from campaign import sparse
from emulator import COMPILER, NO_COMPILER, Emulator, emulation
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_angles import angles_of, vectors
from rotation_calls import without_backends

import rfrope
from rfrope import montecarlo
from rfrope._backends import transforms
from rfrope._backends.cuda import device
from rfrope._backends.cuda import sums as backend
from rfrope._core import array, sums, turns

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)

BOUND = 1e-9  # error of a mean by transforms, as promised
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
QUANTITIES = ["phi", "phi2", "sin"]


def exact_moments(omega, lags, quantity):
    """Mean and squared deviations from exact phases, in long double: 1 - cos u is formed without cancellation."""
    omega, lags = (v if v.ndim > 1 else v[:, None] for v in (np.asarray(omega), np.asarray(lags)))
    cos, sin = turns.cos_sin.generic(angles_of(lags * (2.0 if quantity == "phi2" else 1.0), omega))
    small = lags.astype(np.longdouble) @ omega.T.astype(np.longdouble) * (2 if quantity == "phi2" else 1)
    near = np.abs(small) < 3.0
    if quantity == "sin":
        deviation = np.where(near, np.sin(small), sin)
    else:
        deviation = np.where(near, 2.0 * np.sin(0.5 * small) ** 2, 1.0 - cos.astype(np.longdouble))
    mean = np.mean(deviation, axis=-1)
    squares = np.sum((deviation - mean[:, None]) ** 2, axis=-1)
    return (mean if quantity == "sin" else 1.0 - mean), squares


def mean_cos(omega, lags, xp=np):
    """Mean by the backend."""
    return backend.mean_cos(angles_of(lags, omega, xp=xp))


def plain_mean(omega, lags):
    """Mean from the generic function, from generic cosines."""
    with without_backends():
        return sums.mean_cos.generic(angles_of(lags, omega))


def kernel_moments(omega, delta, quantity):
    """Moments by the backend."""
    delta, omega = vectors(delta, omega)
    return backend.kernel_moments(omega, delta, quantity)


def plain_moments(omega, delta, quantity):
    """Moments from the generic function."""
    delta, omega = vectors(delta, omega)
    return montecarlo._kernel_moments.generic(omega, delta, quantity)


# -- cos and sin -------------------------------------------------------------------------------------------------------


def test_the_coefficients_are_what_the_comment_says():
    mpmath = pytest.importorskip("mpmath")
    text = device.text("sums")
    body = text[text.index("INLINE double sin_half_turns") : text.index("// What is summed")]
    found = [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-\d+)?", body)]
    with mpmath.workdps(50):
        count, top = 9, (mpmath.mpf("0.5") + mpmath.mpf(2) ** -12) ** 2
        nodes = [top * (1 + mpmath.cos(mpmath.pi * (i + 0.5) / count)) / 2 for i in range(count)]
        powers = mpmath.matrix([[node**j for j in range(count)] for node in nodes])
        values = mpmath.matrix([mpmath.sinpi(mpmath.sqrt(node)) / mpmath.sqrt(node) for node in nodes])
        wanted = [float(c) for c in mpmath.lu_solve(powers, values)]
    assert found[1::-1] + found[2:] == wanted[:-3:-1][::-1] + wanted[-3::-1]


def test_one_frequency_against_mpmath():
    mpmath = pytest.importorskip("mpmath")
    omega = np.concatenate([rfrope.geometric(24), [math.pi / 4, math.pi, 1e-300, 12345.678, -2.5]])
    lags = np.asarray([1.0, -7.0, 131071.0, 2.0**24 + 1, 1e9, 0.37, 2.0**36 - 1, 2.0**53 - 1])
    with mpmath.workdps(60):
        wanted = np.asarray([[complex(mpmath.expj(mpmath.mpf(x) * mpmath.mpf(float(w)))) for x in lags] for w in omega])
    with emulation():
        cos = np.stack([mean_cos(omega[i : i + 1], lags) for i in range(len(omega))])
        sin = np.stack([kernel_moments(omega[i : i + 1], lags, "sin")[0] for i in range(len(omega))])
    promised = np.abs(np.multiply.outer(omega, lags)) <= 2.0**53
    assert np.max(np.abs(cos - wanted.real)[promised]) < 7e-16
    assert np.max(np.abs(sin - wanted.imag)[promised]) < 7e-16
    assert np.max(np.abs(np.cos(np.multiply.outer(omega, lags)) - wanted.real)[promised]) > 1e-12  # plain phases


# -- direct sums -------------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    heads=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    count=st.integers(1, 9),
    axes=st.integers(1, 5),
    positions=SHAPES,
    flat=st.booleans(),
    whole=st.booleans(),
    strided=st.booleans(),
    seed=st.integers(0, 99),
)
@example(heads=(), count=1, axes=1, positions=(), flat=True, whole=True, strided=False, seed=0)
@example(heads=(2,), count=3, axes=2, positions=(), flat=False, whole=False, strided=True, seed=0)
@example(heads=(2, 3), count=3, axes=1, positions=(0,), flat=False, whole=True, strided=False, seed=0)
@example(heads=(2, 3), count=4, axes=3, positions=(3, 1, 2), flat=False, whole=False, strided=True, seed=1)
def test_the_backend_is_the_plain_sum(heads, count, axes, positions, flat, whole, strided, seed):
    rng = np.random.default_rng(seed)
    omega = rng.standard_cauchy((count,) if flat else (*heads, count, axes))
    if not flat and len(positions) > 1:  # leading axes of positions broadcast against heads
        positions = (*(1 if i % 2 else length for i, length in enumerate(heads)), positions[-1])
    shape = positions if flat else (*positions, axes)
    lags = np.asarray(rng.integers(-99, 99, shape) if whole else rng.normal(size=shape) * 9.0)
    if strided and lags.ndim:
        lags = np.repeat(lags, 2, axis=-1)[..., ::2][::-1]
        omega = np.repeat(omega, 3, axis=-1)[..., ::3][::-1]
        lags.flags.writeable = False
    with emulation():
        got = mean_cos(omega, lags)
    wanted = plain_mean(omega, lags)
    assert got.shape == wanted.shape == angles_of(lags, omega).shape[:-1]
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-15)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    count=st.integers(1, 700),
    axes=st.integers(1, 4),
    shape=SHAPES,
    quantity=st.sampled_from(QUANTITIES),
    narrow=st.booleans(),
    seed=st.integers(0, 99),
)
def test_moments_are_the_plain_moments(count, axes, shape, quantity, narrow, seed):
    rng = np.random.default_rng(seed)
    omega = rng.normal(size=(2 * count, axes) if axes > 1 else 2 * count)[::2]
    delta = np.asarray(rng.normal(size=(*shape, axes) if axes > 1 else shape) * 5.0)
    delta = delta.astype(np.float32) if narrow else delta
    with emulation():
        got = kernel_moments(omega, delta, quantity)
    for ours, plain in zip(got, plain_moments(omega, delta.astype(float), quantity), strict=True):
        assert ours.shape == plain.shape == shape
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, plain, rtol=1e-13, atol=2e-15 * count)


@pytest.mark.parametrize("n_lags", [1, 3, 63, 64, 130, 257])
@pytest.mark.parametrize("count", [1, 64, 255, 257, 513, 2503])
def test_sizes_that_no_tile_divides(count, n_lags):
    rng = np.random.default_rng(count * n_lags)
    for axes in (1, 2, 3, 4) if count < 600 and n_lags < 100 else (1,):
        omega, lags = rng.normal(size=(count, axes)), rng.normal(size=(n_lags, axes)) * 4.0
        mean, squares = exact_moments(omega, lags, "phi")
        with emulation():
            np.testing.assert_allclose(mean_cos(omega, lags), mean.astype(float), rtol=0, atol=2e-15)
            got = kernel_moments(omega, lags, "phi")
        np.testing.assert_allclose(got[0], mean.astype(float), rtol=0, atol=2e-15)
        np.testing.assert_allclose(got[1], squares.astype(float), rtol=5e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("count", "n_lags", "n_heads"), [(1, 1, 1), (64, 8192, 1), (2**20, 1, 1), (2**20, 2**17, 1), (2**30, 1, 1)]
)
@pytest.mark.parametrize("axes", [1, 2])
def test_cuts_fill_a_device_and_bound_memory(count, n_lags, n_heads, axes):
    cut = backend._cut(count, n_lags, n_heads, axes)
    blocks = cut.parts * cut.tiles(n_lags, cut.lags_each) * n_heads
    assert (cut.parts - 1) * cut.part < count <= cut.parts * cut.part
    assert 256 % cut.lanes == 0
    assert blocks < 2**31
    assert cut.parts * n_lags * 16 <= 2**24 + 16 * n_lags
    if count * n_lags >= 2**20:
        assert blocks >= 64
    if count * n_lags >= 2**30:
        assert blocks >= 2**11


def test_many_axes_of_heads():
    rng = np.random.default_rng(0)
    shape = (2, 1, 2, 1, 2, 1, 2)
    omega, lags = rng.normal(size=(*shape, 5, 1)), rng.normal(size=(*(3 - n for n in shape), 3, 1))
    assert len(backend._head_axes(omega, lags)) > backend._HEAD_AXES
    with emulation():
        got = mean_cos(omega, lags)
    np.testing.assert_allclose(got, plain_mean(omega, lags), atol=2e-15)


@pytest.mark.parametrize("law", ["gaussian(scale=4)", "exponential(scale=4)"])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_flat_lags_keep_all_digits(law, quantity):
    omega = rfrope.sample(law, 2000, rng=1)
    lags = np.asarray([0.0, 1e-150, 1e-12, 1e-9, -3e-7, 1e-5, 1e-3, 0.02])
    with emulation():
        mean, squares = kernel_moments(omega, lags, quantity)
    wanted_mean, wanted = (v.astype(float) for v in exact_moments(omega, lags, quantity))
    np.testing.assert_allclose(squares, wanted, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(mean, wanted_mean, rtol=1e-11 if quantity == "sin" else 0, atol=2e-16)
    assert (mean[0], squares[0]) == (0.0 if quantity == "sin" else 1.0, 0.0)
    # the plain function rounds the cosines themselves, and so loses what this keeps
    plain = plain_moments(omega, lags, quantity)[1]
    assert quantity == "sin" or law.startswith("exponential") or abs(plain[3] - wanted[3]) > 0.5 * wanted[3]


def narrow_band(count: int = 2000):
    """Frequencies whose cosines are about 0.3 at the lags, with a variance of 1e-14."""
    rng = np.random.default_rng(5)
    return 1.3 + 1e-7 * rng.normal(size=count), np.linspace(0.9, 1.1, 130)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_small_spread_beside_a_large_mean_is_kept(quantity):
    omega, lags = narrow_band()
    with emulation():
        squares = kernel_moments(omega, lags, quantity)[1]
    doubled = 2.0 if quantity == "phi2" else 1.0
    u = doubled * np.multiply.outer(lags, omega).astype(np.longdouble)  # to 1e-16, which spreads by 1e-9 of the rest
    values = np.sin(u) if quantity == "sin" else np.cos(u)
    wanted = np.sum((values - np.mean(values, axis=-1, keepdims=True)) ** 2, axis=-1)
    np.testing.assert_allclose(squares, wanted.astype(float), rtol=1e-7)


def test_the_same_bits_in_every_run_and_order_of_threads():
    rng = np.random.default_rng(2)
    for axes, count, n_lags in ((1, 3000, 130), (1, 700, 5), (1, 5000, 1), (2, 900, 40), (4, 500, 9)):
        omega, lags = rng.standard_cauchy((count, axes)), rng.normal(size=(n_lags, axes))
        results = []
        for backward in (False, True, False):
            with emulation(backward=backward):
                moments = kernel_moments(omega, lags, "phi")
                results.append(np.stack([mean_cos(omega, lags), *moments]))
        assert np.array_equal(results[0], results[1])
        assert np.array_equal(results[0], results[2])


# -- numbers beyond all bounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e100, 1e-100])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_phases_that_turns_cannot_hold_are_plain(size, quantity):
    omega = np.random.default_rng(0).normal(size=3000)
    omega[0] = 1.0 / size
    lags = np.asarray([0.0, 1.0, 2.0, -3.0]) * max(size, 1.0)
    with emulation():
        got = kernel_moments(omega, lags, quantity)
    for ours, plain in zip(got, plain_moments(omega, lags, quantity), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-11, atol=1e-11)
    assert got[1][1] > 100.0  # deviations from the mean, not a constant


@pytest.mark.parametrize("axes", [1, 2, 4])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_where_it_is(bad, axes):
    rng = np.random.default_rng(0)
    omega, lags = rng.normal(size=(700, axes)), rng.normal(size=(70, axes))
    lags[3, axes - 1] = bad
    with emulation():
        results = [mean_cos(omega, lags), *kernel_moments(omega, lags, "phi")]
        omega[600, 0] = bad
        spoilt = [mean_cos(omega, lags), *kernel_moments(omega, lags, "sin")]
    for result in results:
        assert np.flatnonzero(np.isnan(result)).tolist() == [3]
    assert all(np.all(np.isnan(result)) for result in spoilt)


# -- mutations of the text ---------------------------------------------------------------------------------------------


def is_right(text: str) -> bool:
    """Whether moments from a text are exact and do not depend on the order of the threads."""
    kinds = ("sum_few<COS, 1, 1>", "sum_few<COS, 1, 2>", "sum_any<COS>", "merge_parts<COS>")
    replaced = {"sums": Emulator(text, kinds)}
    rng = np.random.default_rng(3)
    cases = [(rng.normal(size=2999), rng.normal(size=130)), (rng.normal(size=999), rng.normal(size=5)), narrow_band()]
    cases.append((rng.normal(size=50) * 2.0**50, np.asarray([2.0**8 + 1.0, 3.0])))
    cases.append((np.full(64, 2.0**60) * rng.normal(size=64), np.asarray([2.0**60])))
    for omega, lags in cases:
        results = []
        try:
            for backward in (False, True):
                with emulation(backward=backward, replaced=replaced):
                    results.append(np.stack(kernel_moments(omega, lags, "phi")))
        except AssertionError:
            return False
        far = np.max(np.abs(omega)) * np.max(np.abs(lags)) > 2.0**90
        mean, squares = plain_moments(omega, lags, "phi") if far else exact_moments(omega, lags, "phi")
        right = np.allclose(results[0][0], mean.astype(float), rtol=0, atol=1e-13)
        right = right and np.allclose(results[0][1], squares.astype(float), 1e-7 if squares[0] < 1e-9 else 1e-12, 0)
        if not right or not np.array_equal(*results):
            return False
    return True


BARRIER = "        __syncthreads();"
MUTATIONS = {
    "no barrier before a tile is written": (f"{BARRIER}  // all have read the tile before\n", ""),
    "no barrier after a tile is written": (f"        }}\n{BARRIER}\n", "        }\n"),
    "no barrier while groups are merged": (
        f"{BARRIER}\n        if (here.group < half)",
        "        if (here.group < half)",
    ),
    "no barrier between two lags of a thread": ("        if (j) __syncthreads();\n", ""),
    "the last frequency of a tile left out": ("int i = group; i < size;", "int i = group; i < size - 1;"),
    "the last frequency of a part twice": ("min(here.begin + plan.part,", "min(here.begin + plan.part + 1,"),
    "counts of another group": ("(size - group + groups - 1) / groups", "(size + groups - 1) / groups"),
    "no share of the means in squares": ("+ step * step * (a.count * share)", ""),
    "a wrong share": ("share = b.count / count;", "share = a.count / count;"),
    "the first part left out": ("int64 part = 0; part < plan.n_parts", "int64 part = 1; part < plan.n_parts"),
    "no pivot": ("pivot = QUANTITY == MEAN ? 0.0 : first;", "pivot = 0.0;"),
    "large phases not reduced": ("#define SMALL 0x42700000u", "#define SMALL 0x7F000000u"),
    "huge phases not seen": ("#define FAR 0x45600000u", "#define FAR 0xFFFFFFFFu"),
    "the second lag of a thread is the first": ("here.index + j * here.lanes) + axis", "here.index) + axis"),
}


def test_the_text_is_right():
    assert is_right(device.text("sums"))


@pytest.mark.parametrize("name", sparse(MUTATIONS, lambda name: name == "no pivot"))
def test_mutations_are_seen(name):
    old, new = MUTATIONS[name]
    text = device.text("sums")
    assert text.count(old) == 1
    assert not is_right(text.replace(old, new))


# -- transforms, with finufft in the place of cufinufft ----------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """Let finufft stand for cufinufft, at prices that make transforms pay; names of the calls."""
    finufft = pytest.importorskip("finufft")
    names: list[str] = []

    def call(name, *arguments, **options):
        names.append(name)
        return getattr(finufft, name)(*arguments, nthreads=1, **options)

    monkeypatch.setattr(backend, "nufft", lambda: call)
    prices = transforms.Costs((1.6, 1.9, 2.2), 0.3, (3e5, 4e5, 7e5), (50.0, 120.0, 820.0), (25.0, 13.0, 13.0), 100.0)
    monkeypatch.setattr(backend, "_COSTS", prices)
    return names


def grid_lags(side: int, axes: int) -> np.ndarray:
    """Whole lags (L, axes) about zero."""
    return np.stack(np.meshgrid(*[np.arange(side) - side // 3.0] * axes, indexing="ij"), -1).reshape(-1, axes)


@pytest.mark.parametrize("law", ["gaussian(scale=4{})", "exponential(scale=4{})"])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["whole", "fractions", "far", "scattered"])
def test_transforms_keep_the_bound(law, axes, kind, calls):
    omega = rfrope.sample(law.format(f", ndim={axes}" if axes > 1 else ""), 2**11, rng=axes).reshape(-1, axes)
    lags = grid_lags({1: 1024, 2: 32, 3: 10}[axes], axes)
    scattered = np.random.default_rng(0).uniform(-12.0, 12.0, lags.shape)
    lags = {"whole": lags, "fractions": lags * 0.1, "far": lags + 2.0**36, "scattered": scattered}[kind]
    with emulation() as ran:
        got = mean_cos(omega, lags)
    if calls:
        assert set(calls) == {f"nufft{axes}d{3 if kind == 'scattered' else 1}"}
        assert "form_sources" in ran
    else:
        assert (axes, kind) == (3, "scattered")  # no box in three axes is small and leaves few outside
    chosen = np.random.default_rng(1).integers(0, len(lags), 50)
    assert np.max(np.abs(got[chosen] - exact_moments(omega, lags[chosen], "phi")[0])) < BOUND / 10


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("int row = 0;", "int row = 1;"),
        ("fraction(add_turns({0.0, 0.0}, plan.steps[axis], turns))", "fraction({plan.steps[axis] * turns.high, 0.0})"),
    ],
    ids=["right", "no phase of the origin", "a phase folded after it was rounded"],
)
def test_mutations_of_what_a_transform_starts_from(old, new, calls):
    text = device.text("sums")
    assert not old or text.count(old) == 1
    replaced = {"sums": Emulator(text.replace(old, new), ("form_sources",))}
    omega, lags = np.random.default_rng(0).normal(size=(400, 1)) * 1e5, (np.arange(2.0**17) * 1.5 + 7.25)[:, None]
    with emulation(replaced=replaced):
        got = mean_cos(omega, lags)
    assert calls == ["nufft1d1"]
    error = np.max(np.abs(got[-50:] - exact_moments(omega, lags[-50:], "phi")[0]))
    assert (error < BOUND) == (not old)


def test_transforms_of_heads_blocks_and_parts(calls, monkeypatch):
    monkeypatch.setattr(transforms, "MODES", 500)
    monkeypatch.setattr(backend, "_DRAWS", 1500)
    rng = np.random.default_rng(0)
    omega = rng.normal(size=(1, 3500, 1))
    lags = np.stack([np.arange(1234.0), np.arange(1234.0) * 0.5])[:, :, None]
    with emulation():
        got = mean_cos(omega, lags)
    assert calls == ["nufft1d1"] * (2 * 2 * 3)  # heads, parts and blocks; the last part is too short to pay
    np.testing.assert_allclose(got, plain_mean(omega, lags), rtol=0, atol=BOUND / 10)


@pytest.mark.parametrize("law", ["gaussian(scale=4)", "exponential(scale=4)"])
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("kind", ["grid", "scattered"])
def test_moments_by_transform(law, quantity, kind, calls):
    omega, lags = rfrope.sample(law, 2**12, rng=1), np.arange(600.0) * 0.002
    lags = lags if kind == "grid" else np.concatenate([[0.0], np.random.default_rng(0).uniform(0.0, 1.2, 599)])
    with emulation() as ran:
        mean, squares = kernel_moments(omega, lags, quantity)
    assert set(calls) == {"nufft1d1" if kind == "grid" else "nufft1d3"}
    if law.startswith("gaussian"):  # the first lags are flat
        assert f"merge_parts<{'SIN' if quantity == 'sin' else 'COS'}>" in ran
    wanted_mean, wanted = (v.astype(float) for v in exact_moments(omega, lags[::7], quantity))
    assert np.max(np.abs(mean[::7] - wanted_mean)) < BOUND / 10
    assert np.all(np.abs(np.sqrt(squares[::7]) - np.sqrt(wanted)) <= 1e-4 * np.sqrt(wanted))
    assert (mean[0], squares[0]) == (0.0 if quantity == "sin" else 1.0, 0.0)


def test_numbers_that_no_transform_takes_are_summed_directly(calls):
    lags = np.arange(600.0)
    for bad in (math.nan, math.inf, 1e100, 1e308):
        omega = np.random.default_rng(0).normal(size=1500)
        omega[7] = bad
        with emulation() as ran:
            got = mean_cos(omega, lags)
            kernel_moments(omega, lags, "phi")
        assert not calls
        assert "form_sources" not in ran
        assert np.isnan(got[5]) == (bad != 1e100)  # the phase of 1e308 at lag 5 is infinite


def test_without_cufinufft_and_for_small_sums_nothing_is_read(monkeypatch):
    def refused(x):
        raise AssertionError("an array was copied to the host")

    monkeypatch.setattr(backend, "nufft", lambda: None)
    monkeypatch.setattr(array, "to_host", refused)
    rng = np.random.default_rng(0)
    omega, lags = rng.normal(size=300), np.arange(100.0)
    with emulation():
        mean_cos(omega, lags)
        kernel_moments(omega, lags, "phi")
        monkeypatch.setattr(transforms, "may_pay", lambda *arguments: True)
        mean_cos(omega, lags)
        monkeypatch.setattr(backend, "nufft", lambda: 1 / 0)
        monkeypatch.setattr(transforms, "may_pay", lambda *arguments: False)
        kernel_moments(omega, lags, "phi")


# -- public functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("text", ["gaussian(scale=4)", "matern(nu=1.5, scale=(2.0, 3.0), ndim=2)"])
def test_estimate_kernel_runs_on_the_device(quantity, text):
    delta = np.linspace(0.0, 9.0, 20).reshape(5, 4)
    delta = delta if "ndim" not in text else np.stack([delta, -delta], axis=-1)
    options = {"n_samples": 3000, "rng": 4, "quantity": quantity}
    wanted = rfrope.estimate_kernel(delta, text, **options)
    with emulation() as ran:
        got = rfrope.estimate_kernel(delta, text, **options)
    kind = "SIN" if quantity == "sin" else "COS"
    few = "2, 1" if "ndim" in text else "1, 1"
    assert [name for name in ran if kind in name] == [
        f"sum_few<{kind}, {few}>",
        f"sum_any<{kind}>",
        f"merge_parts<{kind}>",
    ]
    np.testing.assert_allclose(got.value, wanted.value, rtol=0, atol=1e-12)
    np.testing.assert_allclose(got.stderr, wanted.stderr, rtol=1e-9, atol=1e-15)


def test_torch_tensors_give_torch_tensors():
    torch = pytest.importorskip("torch")
    xp = array.namespace(x=torch.ones(1))
    rng = np.random.default_rng(0)
    omega, lags = rng.normal(size=(2, 50, 1)), rng.normal(size=(2, 7, 1)).astype(np.float32)
    delta = torch.asarray(lags[0, :, 0])
    with (
        emulation() as ran,
        pytest.MonkeyPatch.context() as patch,
    ):  # which ends before the emulation, and so restores its own
        patch.setattr(device, "view", array.view_as_numpy)  # tensors on the CPU, seen as CuPy would see them
        means = [mean_cos(torch.asarray(omega), torch.asarray(lags), xp)]
        means.append(mean_cos(torch.asarray(omega[0, :, 0]), delta[2], xp))
        moments = kernel_moments(omega[0, :, 0], delta, "phi")
        moments += kernel_moments(torch.asarray(omega[0]), delta[:, None], "phi")
    assert len(ran) == 12
    assert all(type(v) is torch.Tensor and v.dtype == torch.float64 for v in (*means, *moments))
    lags = lags.astype(float)
    np.testing.assert_allclose(means[0].numpy(), plain_mean(omega, lags), atol=2e-15)
    np.testing.assert_allclose(means[1].numpy(), plain_mean(omega[0, :, 0], lags[0, 2, 0]), atol=2e-15)
    plain = plain_moments(omega[0, :, 0], lags[0, :, 0], "phi")
    for got, wanted in zip(moments, (*plain, *plain), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-13, atol=2e-15)
