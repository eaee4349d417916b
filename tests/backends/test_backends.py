"""Properties of every backend that runs on the CPU here: of compiled loops, and of the text of CUDA's kernels."""

import contextlib
import importlib
import math
import warnings

import mpmath
import numpy as np
import pytest
from campaign import campaign, sparse
from conftest import library
from emulator import emulation
from hypothesis import example, given, settings
from hypothesis import strategies as st
from places import PLACES, at_work, backend
from plain_angles import angles_of
from rotation_calls import (
    BLOCKS,
    DTYPES,
    EPSILON,
    PAIRINGS,
    SLOW,
    SMALLEST,
    Call,
    calls,
    doubles,
    numpy_dtype,
    run,
    watched,
    without_backends,
)
from score_problems import EVERY, EVERY_TABLED, KEY, TRANSPORTED, problem, scaled_error
from stand_in import on_device, standing_in
from sum_problems import (
    BOUND,
    LAWS,
    QUANTITIES,
    exact_moments,
    frequencies,
    grid_of,
    kernel_moments,
    mean_cos,
    plain_mean,
    plain_moments,
)

import rfrope
from rfrope import kernels, montecarlo
from rfrope._core import random


@pytest.fixture(scope="module", params=PLACES)
def place(request):
    """Where backends are that work here."""
    backend(request.param, "rotation")
    return request.param


# -- rotations ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def turning_here(place):
    """Context in which a backend rotates, which gives the names of what ran."""
    return {"cpu": watched, "cuda": emulation}[place]


@contextlib.contextmanager
def launched():
    """Let the stand-in be CuPy; gives the kernels that were launched."""
    names: list[str] = []
    with standing_in() as machine:
        yield names
        names += machine.of("launch")


@pytest.mark.parametrize("arrays", sparse(("numpy", "torch", "cuda", "cupy"), lambda one: one in ("torch", "cupy")))
def test_any_call_is_the_generic_call(arrays):
    """Of loops with arrays and tensors, of kernels with what counts as a device's, and with what stands for CuPy."""
    place = "cuda" if arrays in ("cuda", "cupy") else "cpu"
    module = backend(place, "rotation")
    if arrays == "torch":
        library("torch")

    @settings(max_examples=60 if arrays in ("torch", "cupy") else 400, **SLOW)
    @given(calls(torch=arrays == "torch"), st.booleans())
    def check_call(call, backward):
        if arrays == "cuda":
            names, size = run(call, lambda: emulation(backward=backward))
        elif arrays == "cupy":
            names, size = run(call, launched, own=on_device)
        else:
            names, size = run(call, lambda: watched(without=("at once",)))
        if place == "cpu":
            assert set(names) == {call.function.replace("rotate", "rotated")}
        else:
            assert bool(names) == (size > 0)
            assert set(names) <= set(module.KERNELS)

    check_call()


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_width_and_type(turning_here, dtype, blocks):
    """Each with one of the four ways from pairing to pairing."""
    angles = np.asarray([-7, 0, 131071]), np.random.default_rng(blocks).standard_normal(blocks)
    number = BLOCKS.index(blocks) + DTYPES.index(dtype)
    pairing, out_pairing = PAIRINGS[number % 2], PAIRINGS[number // 2 % 2]
    options = {"pairing": pairing, "out_pairing": out_pairing, "scale": 1.0, "inverse": False}
    for layout in ("dense", "offset", "stepped"):
        for out in ("none", "in place"):
            shape = (2, 3, 2 * blocks + 6)
            run(Call("rotate", angles, options, dtype, layout, shape, out, "dense", blocks, 5, False), turning_here)


@pytest.mark.parametrize(
    ("p_shape", "w_shape"),
    [((), (3,)), ((2, 1, 5), (3,)), ((5, 2), (2, 1, 3, 2)), ((2, 1, 5, 3), (4, 3, 3)), ((2,), (5, 3, 2))],
)
def test_tables_and_rotations_of_every_form_of_frequencies(turning_here, p_shape, w_shape):
    rng = np.random.default_rng(11)
    p, w, x = rng.uniform(-1e6, 1e6, p_shape), rng.standard_normal(w_shape), rng.standard_normal((2, 4, 5, 8))
    shift = rng.uniform(-9, 9, 3)
    with without_backends():
        wanted = [*rfrope.rotation_table(p, w, shift=shift, scale=1.5), rfrope.rotate(x, p, w)]
    with turning_here() as ran:
        got = [*rfrope.rotation_table(p, w, shift=shift, scale=1.5), rfrope.rotate(x, p, w)]
    assert len(ran) == 2
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


def test_given_phases_beyond_the_reach_of_the_polynomials(turning_here):
    """Above 2**53 the library's cos and sin are called, and NaN and infinity stay where they are."""
    u = np.asarray([[2.0**53, 2.0**60, 1e300, 0.5], [np.nan, np.inf, -np.inf, 1.0]])
    x = np.concatenate([np.ones((2, 4)), np.zeros((2, 4))], axis=-1)
    with turning_here() as ran, np.errstate(invalid="ignore"):
        got = rfrope.rotate_by_phases(x, u)
        wanted = np.concatenate([np.cos(u), np.sin(u)], axis=-1)
    assert len(ran) == 1
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("blocks", [3, 21])
def test_nan_and_infinity_go_where_the_formula_sends_them(turning_here, dtype, pairing, blocks):
    d = 2 * blocks + 4
    x = np.random.default_rng(11).standard_normal((2 * d, d)).astype(numpy_dtype(dtype))
    bad = np.array(x)
    for row in range(2 * d):
        bad[row, row % d] = (np.nan, np.inf, -np.inf)[row % 3]
    p, w = np.arange(2 * d) % 7, rfrope.geometric(blocks)  # position 0 too, where sin is 0 and 0 * inf is NaN
    with turning_here() as ran:
        got, clean = (doubles(rfrope.rotate(v, p, w, pairing=pairing)) for v in (bad, x))
    assert len(ran) == 2
    with without_backends(), warnings.catch_warnings(action="ignore"):
        wanted = doubles(rfrope.rotate(bad, p, w, pairing=pairing))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(got[np.isinf(wanted)], wanted[np.isinf(wanted)])
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[finite], clean[finite])
    assert np.count_nonzero(~finite) <= 4 * d  # at most the two features of one block in each row
    np.testing.assert_array_equal(got[:, 2 * blocks :], doubles(bad)[:, 2 * blocks :])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_is_to_nearest_even_over_the_whole_range(turning_here, dtype):
    """At position 0 features come back as they were: subnormal, largest, signed zero and NaN with any payload."""
    kind = numpy_dtype(dtype)
    bits = np.arange(2**16, dtype=np.uint16) if kind.itemsize == 2 else np.arange(0, 2**32, 65521, dtype=np.uint32)
    x = np.zeros((bits.size // 8, 16), kind)
    x[:, :8] = bits[: bits.size // 8 * 8].view(kind).reshape(-1, 8)
    with np.errstate(invalid="ignore"):  # NaN that signals
        plain = doubles(x)
    rows = np.isfinite(plain).all(axis=-1)
    with turning_here() as ran:
        got, scaled = (rfrope.rotate(x, 0, rfrope.geometric(8), scale=scale) for scale in (1.0, 0.3))
    assert len(ran) == 2
    np.testing.assert_array_equal(doubles(got)[rows], plain[rows])
    with without_backends(), warnings.catch_warnings(action="ignore"):
        wanted = rfrope.rotate(x, 0, rfrope.geometric(8), scale=0.3)
    np.testing.assert_array_equal(np.isnan(doubles(scaled)), np.isnan(doubles(wanted)))
    np.testing.assert_allclose(doubles(scaled)[rows], doubles(wanted)[rows], rtol=EPSILON[dtype], atol=SMALLEST[dtype])


GOOD = {"x": np.ones((3, 8)), "positions": np.asarray([0.0, 5.0, -9.0]), "frequencies": rfrope.geometric(4)}
WRONG = {
    "x": [np.ones((3, 8), np.int64), np.ones((), np.float32), np.ones((3, 7)), np.ones((3, 6)), np.ones(8)],
    "positions": [np.arange(4.0), np.asarray([True, False, True]), 10**400, None],
    "frequencies": [np.ones((4, 2)), np.ones(()), np.ones(5)],
    "pairing": ["neox", ["half"]],
    "out_pairing": ["", 0],
    "scale": [-1.0, 0.0, math.nan, "big", True, np.ones((2, 1, 4))],
    "shift": [np.ones(3), np.ones((2, 3, 4))],
    "inverse": [0, "yes", np.asarray([False])],
    "out": [np.ones((3, 10)), np.ones((4, 8)), np.ones((3, 8), np.float32)],
}
LOOKED_AT = {  # where that is free
    "positions": [np.asarray([0.0, bad, 1.0]) for bad in (math.nan, 1e200)],
    "frequencies": [np.asarray([1.0, 1.0, 1.0, -math.inf]), np.asarray(["a", "b", "c", "d"])],
    "shift": [np.asarray([0.0, math.nan, 0.0, 0.0]), math.inf],
    "scale": [np.asarray([1.0, 1.0, bad, 1.0]) for bad in (-1.0, math.nan)],
    "out": [np.broadcast_to(np.zeros(8), (3, 8)), np.lib.stride_tricks.as_strided(np.zeros(8), (3, 8), (0, 8)),
            [[0.0] * 8] * 3],
}  # fmt: skip
REFUSED, SEEN = ([(name, one) for name, values in table.items() for one in values] for table in (WRONG, LOOKED_AT))


@pytest.mark.parametrize(
    ("arrays", "name", "value"),
    [("numpy", *one) for one in REFUSED + SEEN]
    + [("a Rope", *one) for one in REFUSED + SEEN if one[0] in ("x", "positions", "inverse", "out")]
    + [("cupy", *one) for one in REFUSED if one[0] != "inverse"],  # its words show the array, which is another there
)
def test_what_is_refused_leaves_out_untouched_with_the_error_of_the_checks(arrays, name, value):
    backend("cuda" if arrays == "cupy" else "cpu", "rotation")
    call = GOOD | {"out": np.full((3, 8), 5.0)} | {name: value}
    with without_backends(), pytest.raises((ValueError, TypeError)) as wanted:
        rfrope.rotate(**call)
    rotate = rfrope.rotate
    with launched() if arrays == "cupy" else watched() as ran:
        if arrays == "cupy":
            call = {key: on_device(np.array(one)) if isinstance(one, np.ndarray) else one for key, one in call.items()}
        elif arrays == "a Rope":
            rotate = rfrope.Rope(call.pop("frequencies")).rotate
            rotate(GOOD["x"], GOOD["positions"])
            ran.clear()
        with pytest.raises(wanted.type) as found:
            rotate(**call)
    assert str(found.value) == str(wanted.value)
    assert ran == []
    if name != "out":
        np.testing.assert_array_equal(doubles(call["out"]), 5.0)


OVERLAPS = {  # features and the result in memory of 400 numbers, and whether that works
    "part": (lambda memory, xp: memory[20:180].reshape(8, 20), False),
    "reversed": (lambda memory, xp: memory[:160].reshape(8, 20)[::-1], False),
    "one row": (lambda memory, xp: xp.broadcast_to(memory[:20], (8, 20)), False),
    "in place": (lambda memory, xp: memory[:160].reshape(8, 20), True),
    "in place, other pairing": (lambda memory, xp: memory[:160].reshape(8, 20), True),
    "over positions": (lambda memory, xp: memory[160:320].reshape(8, 20), True),
    "over frequencies": (lambda memory, xp: memory[160:320].reshape(8, 20), True),
}


@pytest.mark.parametrize(
    ("arrays", "name"),
    [(arrays, name) for arrays in ("numpy", "cupy") for name in OVERLAPS]
    + [("a Rope", name) for name in ("part", "reversed", "one row", "in place", "over positions")],
)
def test_memory_that_overlaps(arrays, name):
    """In part: refused. Results lie where operands are, which are read before."""
    backend("cuda" if arrays == "cupy" else "cpu", "rotation")
    laid_out, works = OVERLAPS[name]
    host = np.arange(400.0) / 100
    options = {"out_pairing": "interleaved"} if "other" in name else {}
    places = slice(170, 178) if name == "over positions" else slice(380, 388)
    numbers = slice(170, 178) if name == "over frequencies" else slice(388, 396)
    with without_backends():
        wanted = rfrope.rotate(host[:160].reshape(8, 20), host[places], host[numbers], **options)
    with standing_in() if arrays == "cupy" else contextlib.nullcontext() as machine:
        memory = on_device(host.copy()) if arrays == "cupy" else host.copy()
        xp = np if machine is None else importlib.import_module("cupy")
        given = memory[:160].reshape(8, 20), memory[places], memory[numbers]
        rotate = rfrope.rotate if arrays != "a Rope" else lambda x, p, w, **o: rfrope.Rope(w).rotate(x, p, **o)
        out = laid_out(memory, xp)
        if works:
            assert rotate(*given, **options, out=out) is out
            np.testing.assert_allclose(doubles(out), wanted, rtol=0, atol=1e-14)
            return
        with pytest.raises(ValueError, match=r"share memory|overlaps x in part"):
            rotate(*given, **options, out=out)
        assert machine is None or machine.of("launch") == []
        np.testing.assert_array_equal(doubles(memory), host)


# -- sums over lags ----------------------------------------------------------------------------------------------------


@pytest.fixture
def transformed(monkeypatch):
    """Names of the paths of sums that were taken."""
    module, names = backend("cpu", "sums"), []
    for name in ("_grid_sums", "_scattered_sums"):
        right = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, right=right: names.append(name) or right(*a))
    return names


def test_one_frequency_against_mpmath(place):
    module, error = backend(place, "sums"), {"cpu": 4e-16, "cuda": 7e-16}[place]
    omega = np.concatenate([rfrope.geometric(24), [math.pi / 4, math.pi, 1e-300, 12345.678, -2.5]])
    lags = np.asarray([1.0, -7.0, 131071.0, 2.0**24 + 1, 1e9, 0.37, 2.0**36 - 1, 2.0**53 - 1])
    with mpmath.workdps(60):
        wanted = np.asarray([[complex(mpmath.expj(mpmath.mpf(x) * mpmath.mpf(float(w)))) for x in lags] for w in omega])
    with at_work(place):
        cos = np.stack([mean_cos(module, omega[i : i + 1], lags) for i in range(len(omega))])
        sin = np.stack([kernel_moments(module, omega[i : i + 1], lags, "sin")[0] for i in range(len(omega))])
    promised = np.abs(np.multiply.outer(omega, lags)) <= 2.0**53
    assert np.max(np.abs(cos - wanted.real)[promised]) < error
    assert np.max(np.abs(sin - wanted.imag)[promised]) < error


SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@settings(max_examples=150, **SLOW)
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
def test_means_are_the_plain_ones(place, heads, count, axes, positions, flat, whole, strided, seed):
    module, rng = backend(place, "sums"), np.random.default_rng(seed)
    omega = rng.standard_cauchy((count,) if flat else (*heads, count, axes))
    if not flat and len(positions) > 1:  # leading axes of positions broadcast against heads
        positions = (*(1 if i % 2 else length for i, length in enumerate(heads)), positions[-1])
    shape = positions if flat else (*positions, axes)
    lags = np.asarray(rng.integers(-99, 99, shape) if whole else rng.normal(size=shape) * 9.0)
    if strided and lags.ndim:
        lags = np.repeat(lags, 2, axis=-1)[..., ::2][::-1]
        omega = np.repeat(omega, 3, axis=-1)[..., ::3][::-1]
        lags.flags.writeable = False
    with at_work(place):
        got = mean_cos(module, omega, lags)
    wanted = plain_mean(omega, lags)
    assert got.shape == wanted.shape == angles_of(lags, omega).shape[:-1]
    assert got.dtype == wanted.dtype == np.float64
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-15)


@settings(max_examples=100, **SLOW)
@given(
    count=st.integers(1, 700),
    axes=st.integers(1, 4),
    shape=SHAPES,
    quantity=st.sampled_from(QUANTITIES),
    narrow=st.booleans(),
    seed=st.integers(0, 99),
)
def test_moments_are_the_plain_ones(place, count, axes, shape, quantity, narrow, seed):
    module, rng = backend(place, "sums"), np.random.default_rng(seed)
    omega = rng.normal(size=(2 * count, axes) if axes > 1 else 2 * count)[::2]
    delta = np.asarray(rng.normal(size=(*shape, axes) if axes > 1 else shape) * 5.0)
    delta = delta.astype(np.float32) if narrow else delta
    with at_work(place):
        got = kernel_moments(module, omega, delta, quantity)
    for ours, plain in zip(got, plain_moments(omega, delta.astype(float), quantity), strict=True):
        assert ours.shape == plain.shape == shape
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, plain, rtol=1e-13, atol=2e-15 * count)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["whole", "fractions", "far", "scattered", "far scattered"])
def test_transforms_keep_the_bound(law, axes, kind, transformed):
    omega, lags = frequencies(law, axes, 2**13), grid_of({1: 2048, 2: 40, 3: 12}[axes], axes)
    scattered = np.random.default_rng(0).uniform(-12.0, 12.0, lags.shape)
    lags = {
        "whole": lags,
        "fractions": lags * 0.1,
        "far": lags + 2.0**36,
        "scattered": scattered,
        "far scattered": scattered + 1e7,
    }[kind]
    with at_work("cpu"):
        got = mean_cos(backend("cpu", "sums"), omega, lags)
    # a Cauchy law in three axes has no box that is small and leaves few outside
    without = law == LAWS[1] and axes == 3 and "scattered" in kind
    assert set(transformed) == (set() if without else {"_scattered_sums" if "scattered" in kind else "_grid_sums"})
    chosen = np.random.default_rng(1).integers(0, len(lags), 200)
    assert np.max(np.abs(got[chosen] - exact_moments(omega, lags[chosen])[0])) < BOUND / 10


@campaign
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("kind", ["line", "scattered", "plane", "space"])
def test_moments_by_transforms(law, quantity, kind, transformed):
    axes = {"plane": 2, "space": 3}.get(kind, 1)
    lags = grid_of({1: 600, 2: 24, 3: 10}[axes], axes) * (0.004 if axes == 1 else 0.5)
    if kind == "scattered":
        lags = np.concatenate([[[0.0]], np.random.default_rng(0).uniform(0.0, 1.2, (599, 1))])
    omega = frequencies(law, axes, 2**14)
    with at_work("cpu"):
        mean, squares = kernel_moments(backend("cpu", "sums"), omega, lags, quantity)
    assert set(transformed) == {"_scattered_sums" if kind == "scattered" else "_grid_sums"}
    some = np.unique([*range(0, len(lags), 7), *np.flatnonzero(~lags.any(axis=1))])
    exact, exact_squares = exact_moments(omega, lags[some], quantity)
    assert np.max(np.abs(mean[some] - exact)) < BOUND / 10
    spread = np.sqrt(exact_squares)
    assert np.all(np.abs(np.sqrt(squares[some]) - spread) <= 1e-3 * spread)
    (zero,) = np.flatnonzero(~lags.any(axis=1))
    assert (mean[zero], squares[zero]) == (0.0 if quantity == "sin" else 1.0, 0.0)


@pytest.mark.parametrize("size", [1e100, 1e-100])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_phases_that_turns_cannot_hold_are_plain(place, size, quantity):
    """Loops and kernels would give cos = 1 for all of them: an estimate that is wrong and sure of itself."""
    omega = np.random.default_rng(0).normal(size=3000)
    omega[0] = 1.0 / size
    lags = np.asarray([0.0, 1.0, 2.0, -3.0]) * max(size, 1.0)
    with at_work(place):
        got = kernel_moments(backend(place, "sums"), omega, lags, quantity)
    for ours, plain in zip(got, plain_moments(omega, lags, quantity), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-12, atol=1e-12 if size > 1.0 else 1e-11)
    assert got[1][1] > 100.0  # deviations from the mean, not a constant


@pytest.mark.parametrize("axes", [1, 2, 4])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_where_it_is(place, bad, axes):
    module, rng = backend(place, "sums"), np.random.default_rng(0)
    omega, lags = rng.normal(size=(700, axes)), rng.normal(size=(70, axes))
    lags[3, axes - 1] = bad
    with at_work(place), np.errstate(invalid="ignore"):
        results = [mean_cos(module, omega, lags), *kernel_moments(module, omega, lags)]
        omega[600, 0] = bad
        spoilt = [mean_cos(module, omega, lags), *kernel_moments(module, omega, lags, "sin")]
    for result in results:
        assert np.flatnonzero(np.isnan(result)).tolist() == [3]
    assert all(np.all(np.isnan(result)) for result in spoilt)


# -- estimators --------------------------------------------------------------------------------------------------------


@settings(max_examples=100, **SLOW)
@given(
    key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    start=st.one_of(st.integers(0, 2000), st.integers(2**33 - 300, 2**33 + 300), st.integers(0, 2**62)),
    count=st.integers(0, 1200),
    columns=st.integers(1, 3),
    stream=st.one_of(st.integers(0, 9), st.just(2**32 - 3)),
    streams=st.integers(0, 3),
)
def test_uniforms_are_those_of_the_generic_function_bit_for_bit(key, start, count, columns, stream, streams):
    module, options = backend("cpu", "estimators"), {"stream": stream, "streams": streams}
    found = module.uniforms(key, start, count, columns, **options)
    np.testing.assert_array_equal(found, random.uniforms.generic(key, start, count, columns, **options))


def score_sums(place, kernel, *arguments, **options):
    """Moments by a backend, and by the generic function."""
    module = backend(place, "estimators")
    with at_work(place, **options):
        return module.score_sums(kernel, KEY, *arguments), montecarlo._score_sums.generic(kernel, KEY, *arguments)


@pytest.mark.parametrize("kernel", EVERY, ids=repr)
def test_sums_of_scores_are_those_of_the_generic_function(place, kernel):
    found, expected = score_sums(place, kernel, *problem(kernel), 11, 600)
    assert [x.shape for x in found] == [(3, 5)] * 4
    assert scaled_error(found, expected, 600) < 1e-9


PAIRS_AND_LAGS = st.sampled_from(
    [((), ()), ((1,), ()), ((), (1,)), ((3,), ()), ((6,), (1,)), ((), (4,)), ((), (9,)), ((3, 1), (5,)),
     ((2, 1, 3), (4, 1)), ((5,), (5,)), ((3, 5), (5,)), ((1, 5), (3, 1)), ((0,), ()), ((), (0,)), ((2, 0), (1,))]
)  # fmt: skip


@pytest.mark.parametrize("place", sparse(PLACES, lambda place: place == "cpu"))
@settings(max_examples=120, **SLOW)
@given(
    kernel=st.sampled_from(EVERY),
    shapes=PAIRS_AND_LAGS,
    blocks=st.integers(0, 9),
    start=st.sampled_from([0, 1, 2**20 + 3, 2**32 - 2000]),
    length=st.integers(2, 1100),
    longest=st.sampled_from([0.0, 20.0, 500.0]),
    seed=st.integers(0, 99),
    backward=st.booleans(),
)
@example(EVERY[0], ((200,), (90, 1)), 2, 0, 65, 20.0, 0, False)  # so many rows that lanes are few
@example(EVERY[0], ((2, 7), (11, 1, 1)), 2, 0, 65, 20.0, 0, False)
@example(EVERY[0], ((), ()), 1, 0, 1, 20.0, 0, False)
def test_sums_of_scores_agree_for_all_shapes(place, kernel, shapes, blocks, start, length, longest, seed, backward):
    pairs, lags = shapes
    blocks = blocks or int(place == "cpu")  # its loops need a feature at least
    arguments = problem(kernel, pairs=pairs, lags=lags, blocks=blocks, longest=longest, seed=seed)
    order = {"backward": backward} if place == "cuda" else {}
    found, expected = score_sums(place, kernel, *arguments, start, length, **order)
    assert [np.shape(x) for x in found] == [np.shape(x) for x in expected]
    if math.prod(np.shape(found[0])):
        assert scaled_error(found, expected, length) < 1e-9


@pytest.mark.parametrize("longest", [1e6, 1e14, 1e140])
@pytest.mark.parametrize("text", ["sinc(bandwidth=0.5, ndim=2)", "matern(nu=0.05, scale=3)"])
def test_phases_of_any_size_agree_where_the_frequencies_are_the_same_bits(place, text, longest):
    """Uniform laws are not tabled, and a kernel's own transport gives the generic function's frequencies."""
    kernel = kernels.parse(text)
    assert scaled_error(*score_sums(place, kernel, *problem(kernel, longest=longest), 0, 600), 600) < 1e-9


def test_a_large_mean_does_not_swamp_the_spread(place):
    kernel = kernels.parse("gaussian(scale=1e4)")
    delta, a, b = problem(kernel, longest=7.0)
    found, expected = score_sums(place, kernel, delta, 1e6 + a, b, 0, 512)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-14)


def strided(x, seed: int):
    """The numbers of an array, lying in memory with strides of any kind."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(x.ndim)
    wide = np.full([2 * x.shape[axis] for axis in order], np.nan).transpose(np.argsort(order))
    view = wide[tuple(slice(None, None, -2) if rng.random() < 0.5 else slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("seed", sparse(range(8), lambda seed: seed < 2))
@pytest.mark.parametrize("kernel", [EVERY_TABLED[0], EVERY_TABLED[9], TRANSPORTED[1]], ids=repr)
def test_strides_of_any_kind_change_no_bit(place, kernel, seed):
    given = problem(kernel, pairs=(2, 1, 3), lags=(5, 1), blocks=5)
    expected, _ = score_sums(place, kernel, *given, 3, 300)
    found, _ = score_sums(place, kernel, *(strided(v, seed) for v in given), 3, 300)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
