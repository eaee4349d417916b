"""The compiled rotation: equal to the generic one for any shape, stride and type, and seen to be what ran."""

import gc
import itertools
import weakref

import mpmath
import numpy as np
import pytest
from conftest import library
from hypothesis import given, settings
from places import NO_LOOPS
from rotation_calls import (
    DTYPES,
    PAIRINGS,
    SLOW,
    calls,
    check,
    doubles,
    laid,
    numpy_dtype,
    run,
    watched,
    without_backends,
)

import rfrope

dense = pytest.importorskip("rfrope._backends.cpu.dense", reason=NO_LOOPS, exc_type=ImportError)
leaf = pytest.importorskip("rfrope._backends.cpu.rotation", reason=NO_LOOPS, exc_type=ImportError)
plans = pytest.importorskip("rfrope._backends.cpu.plans", reason=NO_LOOPS, exc_type=ImportError)
circle = pytest.importorskip("rfrope._backends.cpu.circle", reason=NO_LOOPS, exc_type=ImportError)


@pytest.fixture
def ran():
    with watched() as names:
        yield names


def test_a_rope_keeps_the_plan_whose_memory_it_reads_again(rng, monkeypatch):
    """Plans are forgotten when 512 others were met, and loops read them by their addresses."""
    made, plan_of, rope = [], dense.plan_of, rfrope.Rope(rfrope.geometric(4))
    x, at = rng.normal(size=(2, 20, 8)), np.arange(20)

    def noted(*arguments):
        plan = plan_of(*arguments)
        made.append(weakref.ref(plan.tables))
        return plan

    monkeypatch.setattr(dense, "plan_of", noted)
    wanted = rope.rotate(x, at)
    plan_of.cache_clear()
    gc.collect()
    assert [tables() is None for tables in made] == [False]
    np.testing.assert_array_equal(rope.rotate(x, at), wanted)
    assert len(made) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_a_rope_turns_after_another_call_is_read_as_if_it_were_the_first(rng, dtype):
    """Every pair of calls: layouts, types of positions and directions change, and what is refused is refused again."""
    x, ladder = np.asarray(rng.normal(size=(2, 5, 10)), dtype), rfrope.geometric(4)
    places = np.arange(5), np.arange(5.0), np.arange(5, dtype=np.uint8), np.full(5, np.nan), 3, np.arange(10)[::2]
    features = x, np.ascontiguousarray(x[..., :8]), x[..., ::-1], x.astype(np.float64)
    calls = [(one, at, inverse) for one in features for at in places for inverse in (False, True)]

    def turned(rope, call):
        one, at, inverse = call
        try:
            return rope.rotate(one, at, inverse=inverse)
        except ValueError as refused:
            return str(refused)

    wanted = [turned(rfrope.Rope(ladder, attention_factor=1.5), call) for call in calls]
    rope = rfrope.Rope(ladder, attention_factor=1.5)
    for i, first in enumerate(calls):
        for j, second in enumerate(calls):
            np.testing.assert_array_equal(turned(rope, first), wanted[i])
            np.testing.assert_array_equal(turned(rope, second), wanted[j])


def test_the_last_group_of_rows_that_share_phases_ends_with_them(rng):
    """As many heads as one item of work takes, and three more: in place none is turned twice."""
    x = rng.standard_normal((plans._LARGEST_GROUP + 3, 1, 8))
    with without_backends():
        wanted = rfrope.rotate(x, [5], rfrope.geometric(4))
    rfrope.rotate(x, [5], rfrope.geometric(4), out=x)
    np.testing.assert_allclose(x, wanted, atol=1e-14)


@pytest.mark.parametrize("count", [1, 2])
def test_a_loop_is_called_again_and_again_so_that_an_interrupt_comes_through(count, monkeypatch):
    calls = []
    monkeypatch.setattr(leaf, "_UNINTERRUPTED", 2**10)
    with rfrope.threads(count):
        leaf._run_threaded(lambda start, stop: calls.append((start, stop)), 64, 2**16)
    assert sorted(calls) == [(i, i + 1) for i in range(64)]


CALLS = {
    "rotate": lambda x, blocks, **wide: (rfrope.rotate(x, np.arange(3), np.ones(blocks), **wide),),
    "rotation_table": lambda x, blocks, **wide: rfrope.rotation_table(np.arange(3), np.ones(blocks), **wide),
    "rotate_by_phases": lambda x, blocks, **wide: (rfrope.rotate_by_phases(x, np.ones((3, blocks)), **wide),),
}


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, at) for name in CALLS for at in ("shift", "scale") if (name[-1], at) != ("s", "shift")],
)
@pytest.mark.parametrize("blocks", [1, 0])
def test_a_shift_or_scale_with_more_columns_than_the_frequencies(name, argument, blocks, rng):
    """Phases have the broadcast number of blocks: none for 0 with 1, all columns for 1 with 4."""
    given = {"x": rng.standard_normal((3, 12)), "blocks": blocks, argument: np.arange(1.0, 5.0)[: 4 if blocks else 1]}
    got = CALLS[name](**given)
    with without_backends():
        wanted = CALLS[name](**given)
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


def test_memory_that_loops_cannot_read_stays_generic(ran, rng):
    x, p, w = rng.standard_normal((3, 8)), np.arange(3), rfrope.geometric(4)
    wanted = rfrope.rotate(x, p, w)
    ran.clear()
    odd = x.astype(">f8")
    for _ in range(2):
        np.testing.assert_allclose(rfrope.rotate(odd, p, w).astype(float), wanted, rtol=0, atol=1e-15)
    assert ran == ["cos_sin", "cos_sin"]  # for the angles, which lie in plain memory
    np.testing.assert_allclose(rfrope.rotate(x, p.astype(">i8"), w.astype(">f8")), wanted, rtol=0, atol=1e-15)


# -- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "axes", "shifted"),
    [("float64", 1, False), ("float32", 1, True), ("float64", 2, True), ("float32", 3, False)],
)
def test_cos_and_sin_against_mpmath(dtype, axes, shifted, ran, rng):
    blocks, far = 16, np.asarray([1, -7, 131071, 2**24 + 1, 10**12 + 1, 2**53 - 1, 1 - 2**53])
    p = far[:, None] // np.asarray([1, 3, 7])[:axes]
    w = np.stack([rfrope.geometric(blocks)] * axes, axis=-1) * rng.uniform(0.5, 1.0, (blocks, axes))
    shift = rng.uniform(-1e4, 1e4, blocks) if shifted else None
    unit = np.broadcast_to(np.repeat(np.asarray([1.0, 0.0], dtype), blocks), (len(p), 2 * blocks))
    frequencies, positions = (w[:, 0], p[:, 0]) if axes == 1 else (w, p)
    got = rfrope.rotate(unit, positions, frequencies, shift=shift)
    table = rfrope.rotation_table(positions, frequencies, shift=shift)
    with mpmath.workdps(60):

        def phase(row, i):
            products = (mpmath.mpf(int(p[row, a])) * mpmath.mpf(float(w[i, a])) for a in range(axes))
            return mpmath.fsum(products) + (mpmath.mpf(float(shift[i])) if shifted else 0)

        phases = [[phase(row, i) for i in range(blocks)] for row in range(len(p))]
        exact = np.asarray([[float(f(u)) for f in (mpmath.cos, mpmath.sin) for u in row] for row in phases])
    assert ran == ["at once", "cos_sin"]
    assert np.max(np.abs(np.concatenate(table, axis=-1) - exact)) <= 1e-15
    assert np.max(np.abs(got - exact)) <= (1e-15 if dtype == "float64" else 0.51 * 2.0**-23)


@pytest.mark.parametrize(
    ("name", "quarter", "bounds"),
    [("", 1, (5e-17, 5e-17)), ("NARROW_", 4, (2.2e-11, 9.5e-13))],
    ids=["exact", "narrow"],
)
def test_the_polynomials_against_mpmath(name, quarter, bounds):
    """The coefficients as they stand, in exact arithmetic: what rounding adds is held elsewhere."""
    with mpmath.workdps(40):
        points = [mpmath.mpf(i) / 800 for i in range(401)]
        for kind, bound in zip(("SIN", "COS"), bounds, strict=True):
            coefficients = [mpmath.mpf(c) for c in getattr(circle, name + kind)][::-1]
            found = [np.polyval(coefficients, r * r) * (r if kind == "SIN" else 1) for r in points]
            exact = [(mpmath.sin if kind == "SIN" else mpmath.cos)(quarter * mpmath.pi * r / 2) for r in points]
            assert max(abs(one - other) for one, other in zip(found, exact, strict=True)) <= bound


# -- NaN and infinity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("without", [(), ("at once",)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_of_any_payload_stays_nan(dtype, without):
    """All ones would carry over into a signed zero if it were rounded as a number."""
    bad = np.full((3, 5), 2**63 - 1, np.uint64).view(np.float64)
    x = np.ones((3, 10), numpy_dtype(dtype))
    with watched(without=without) as ran:
        assert np.isnan(doubles(rfrope.rotate_by_table(x, bad, bad))).all()
        assert np.isnan(doubles(rfrope.rotate_by_phases(x, bad))).all()
    by_checks = without or dtype == "bfloat16"
    assert ran == (["rotated_by_table", "rotated_by_phases"] if by_checks else ["at once", "at once"])


# -- out ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "pairing", "out_pairing", "blocks"),
    [
        ("float32", *PAIRINGS, 64),
        ("float32", *PAIRINGS[::-1], 60),
        ("float64", "half", "half", 32),
        ("bfloat16", "interleaved", "interleaved", 60),
        ("bfloat16", "half", "half", 64),
    ],
)
def test_large_outputs_are_the_small_ones_bit_for_bit(dtype, pairing, out_pairing, blocks, monkeypatch, rng):
    """Past the caches or through them, aligned or not, on one thread or four."""
    kind = numpy_dtype(dtype)
    x = rng.standard_normal((2, 3, 8 * 2**20 // (6 * 128 * kind.itemsize) + 1, 128)).astype(kind)
    p, w = np.arange(x.shape[2]), rfrope.geometric(blocks)
    options = {"pairing": pairing, "out_pairing": out_pairing}
    assert x.nbytes >= plans._STREAMED_BYTES
    memory = np.zeros(x.size + 64, kind)
    start = (-memory.ctypes.data % 64) // kind.itemsize
    with rfrope.threads(1):
        wanted = np.stack([[rfrope.rotate(rows, p, w, **options) for rows in heads] for heads in x])
    kept, plan_of = [], leaf.plan_of
    monkeypatch.setattr(leaf, "plan_of", lambda *a: kept.append(plan_of(*a)) or kept[-1])
    for offset, streams in itertools.product((0, 1), (True, False)):
        out = memory[start + offset : start + offset + x.size].reshape(x.shape)
        monkeypatch.setattr(leaf, "_STREAMS", streams)
        for count in (1, 4):
            memory[:] = 7.0
            with rfrope.threads(count):
                rfrope.rotate(x, p, w, out=out, **options)
            assert np.array_equal(out.view(np.uint8), wanted.view(np.uint8))
            assert np.all(memory[: start + offset] == 7.0)
            assert np.all(memory[start + offset + x.size :] == 7.0)
    assert {plan.may_stream for plan in kept} == {blocks != 60 or kind.itemsize > 2}
    same = x.copy()
    with rfrope.threads(4):
        rfrope.rotate(same, p, w, out=same, **options)
    assert np.array_equal(same.view(np.uint8), wanted.view(np.uint8))


def test_large_rows_with_features_that_do_not_fill_pieces(rng):
    """Those that do not turn, in a result with room between its rows."""
    x, at, w = rng.standard_normal((2**14, 130)).astype(np.float32), np.arange(2**14), rfrope.geometric(64)
    out = np.full((2**14, 132), np.nan, np.float32)
    rfrope.rotate(x, at, w, out=out[:, :130])
    halves = [rfrope.rotate(x[half], at[half], w) for half in (slice(2**13), slice(2**13, None))]
    assert np.array_equal(out[:, :130], np.concatenate(halves))
    assert np.isnan(out[:, 130:]).all()


def test_large_per_head_strided_and_transposed_work_is_cut_without_seams(rng):
    """Many items of work, of more rows than one tile and more heads than one group."""
    x = rng.standard_normal((2, 700, 5, 128)).astype(np.float32).transpose(0, 2, 1, 3)
    p, w = rng.integers(0, 2**31, (2, 1, 700, 1)), rng.standard_normal((5, 64, 1))
    out = np.empty((2, 700, 5, 128), np.float32).transpose(0, 2, 1, 3)
    for count in (1, 3):
        with rfrope.threads(count):
            rfrope.rotate(x, p, w, out=out)
        with without_backends():
            wanted = rfrope.rotate(x.astype(np.float64), p, w)
        check(out, wanted, "float32", 64, "half")
    many = rng.standard_normal((9000, 3, 8))  # shares its phases between more rows than one group holds
    with without_backends():
        wanted = rfrope.rotate(many, np.arange(3), rfrope.geometric(4))
    check(rfrope.rotate(many, np.arange(3), rfrope.geometric(4)), wanted, "float64", 4, "half")


# -- small dense arrays at once ---------------------------------------------------------------------------------------


@pytest.fixture
def call(rng):
    positions = np.asarray([0.0, 5.0, -9.0])
    return {"x": rng.standard_normal((3, 8)), "positions": positions, "frequencies": rfrope.geometric(4)}


@pytest.mark.parametrize("tensors", [False, True])
def test_any_call_at_once_is_the_generic_call(tensors):
    def laid_densely(value):
        narrow = isinstance(value, np.ndarray) and value.dtype == np.float16
        return np.array(value, np.float32 if narrow else None, order="C") if isinstance(value, np.ndarray) else value

    if tensors:
        library("torch")

    @settings(max_examples=100, **SLOW)
    @given(calls(torch=tensors))
    def check_call(call):
        options = {name: laid_densely(v) for name, v in call.options.items()}
        angles = tuple(map(laid_densely, call.angles))
        dtype = "float32" if call.dtype == "bfloat16" and not tensors else call.dtype
        call = call._replace(options=options, dtype=dtype, layout="dense", out_layout="dense", angles=angles)
        names, size = run(call, watched, repeat=2)
        assert set(names) == {"at once"} or not size

    check_call()


def test_what_is_not_small_and_plain_takes_the_long_way(call, ran):
    """Features may lie apart or be read-only where the result is new; all else is dense."""
    read_only, apart, large = call["x"].copy(), np.asfortranarray(call["x"]), np.zeros((2**14, 160), np.float32)
    read_only.flags.writeable = False
    for way, changed in (
        ("at once", {"x": read_only}),
        ("at once", {"x": apart}),
        ("rotated", {"x": apart, "out": np.empty_like(call["x"])}),
        ("rotated", {"out": np.asfortranarray(call["x"])}),
        ("rotated", {"x": call["x"].tolist()}),
        ("rotated", {"x": large, "positions": np.arange(len(large))}),
        ("rotated", {"frequencies": call["frequencies"].tolist()}),
        ("rotated", {"frequencies": np.repeat(call["frequencies"], 2)[::2]}),
        ("rotated", {"positions": call["positions"].tolist()}),
        ("rotated", {"scale": 2}),
        ("rotated", {"shift": 0}),
        ("rotated", {"shift": np.zeros(8)[::2]}),
    ):
        found = rfrope.rotate(**call | changed)
        assert ran == [way], changed
        if "x" not in changed or changed["x"] is not large:
            scale = changed.get("scale", 1.0)
            np.testing.assert_array_equal(found, scale * rfrope.rotate(**call))
        ran.clear()
    for position in (3, 2**40):  # the number alone, as at every step of decoding
        np.testing.assert_array_equal(
            rfrope.rotate(call["x"], position, call["frequencies"]),
            rfrope.rotate(call["x"], [position] * 3, call["frequencies"]),
        )
        assert ran == ["at once", "rotated"]
        ran.clear()


def test_unaligned_arrays_stay_in_the_loops_and_give_the_same_bits(ran, rng):
    x, p, w = rng.standard_normal((3, 8)), np.asarray([0.5, 1e6, -3.0]), rng.standard_normal(4)
    wanted = rfrope.rotate(x, p, w, scale=np.full(4, 1.5)), *rfrope.rotation_table(p, w)
    assert ran == ["at once", "cos_sin"]
    odd = [laid(v, "unaligned") for v in (x, p, w, np.full(4, 1.5))]
    assert not any(v.flags.aligned for v in odd)
    for _ in range(2):
        got = rfrope.rotate(*odd[:3], scale=odd[3]), *rfrope.rotation_table(*odd[1:3])
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    assert ran[2:] == ["rotated", "cos_sin"] * 2


@pytest.mark.parametrize(("sections", "inverse"), [(None, True), ((1, 3), False), ((2, 1, 1), True)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rope_turns_as_the_generic_function(sections, inverse, dtype, ran, rng):
    rope = rfrope.Rope(rfrope.geometric(4), sections=sections)
    p = rng.integers(0, 10**6, (3,) if sections is None else (3, len(sections)))
    for _ in range(3):
        x = rng.standard_normal((2, 3, 10)).astype(numpy_dtype(dtype))
        got = rope.rotate(x, p, inverse=inverse)
        with without_backends():
            wanted = rfrope.rotate(x.astype(np.float64), p, rope.vectors, inverse=inverse)
        check(got, wanted, dtype, 4, "half")
        out = x.copy()
        assert rope.rotate(out, p, inverse=inverse, out=out) is out
        np.testing.assert_array_equal(doubles(out), doubles(got))
    assert set(ran) == ({"rotated"} if dtype == "bfloat16" else {"at once"})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_of_a_rope_are_turned_at_once(dtype, ran, torch):
    rope = rfrope.Rope(rfrope.geometric(16))
    x = torch.randn((2, 4, 3, 40), generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    for turn, at in itertools.product(range(3), (np.arange(3), torch.arange(3), torch.arange(3.0))):
        wanted = rfrope.rotate(x, (at + turn).tolist(), torch.tensor(rope.frequencies))
        for out in (None, torch.empty_like(x), x.clone()):
            source = out if turn == 2 and out is not None else x  # in place
            if source is not x:
                source.copy_(x)
            version = None if out is None else out._version
            ran.clear()
            found = rope.rotate(source, at + turn, out=out)
            assert ran == ["at once"]
            assert torch.equal(found, wanted)
            assert found.dtype == x.dtype
            assert out is None or (found is out and out._version > version)
    with pytest.raises(ValueError, match="positions"):
        rope.rotate(x, np.array([0.0, np.nan, 1.0]))
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(rope.rotate(strided, np.arange(3)), rope.rotate(x, np.arange(3)))
    learnt = x.float().clone().requires_grad_()
    rope.rotate(learnt, np.arange(3)).sum().backward()
    assert learnt.grad is not None


def test_plans_are_kept_in_one_bounded_cache(call):
    plans.plan_of.cache_clear()
    for n in range(1, 600):
        rfrope.rotate(np.ones((n, 8)), np.zeros(n), call["frequencies"])
    info = plans.plan_of.cache_info()
    assert info.currsize == info.maxsize == 512


# -- who may use the loops ---------------------------------------------------------------------------------------------

OMEGA = rfrope.geometric(4)


def test_torch_on_the_cpu_is_turned_where_it_lies(torch, ran):
    p, w = torch.arange(3), torch.from_numpy(OMEGA)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = rfrope.rotate(x, p, w)
    address = x.data_ptr()
    assert rfrope.rotate(x, p, w, out=x) is x
    assert ran == ["at once", "at once"]
    assert x.data_ptr() == address
    assert torch.equal(x, expected)
    with torch.no_grad():
        rfrope.rotate(x.float().requires_grad_(), p, w)
    with torch.inference_mode():
        rfrope.rotate(torch.ones(3, 8), p, w, out=torch.ones(3, 8))
        rfrope.rotate(torch.ones(8, 3).T, p, w)
    assert ran == ["at once"] * 5


def test_numbers_that_torch_has_not_are_not_left_out(torch):
    p, x, shift = torch.arange(3), torch.ones(3, 8), np.arange(4, dtype=np.uint64)
    found = rfrope.rotate(x, p, torch.from_numpy(OMEGA), shift=shift, scale=shift + 1)
    assert torch.equal(found, rfrope.rotate(x, p, OMEGA, shift=shift * 1.0, scale=shift + 1.0))


@pytest.mark.parametrize("argument", ["x", "positions", "frequencies", "shift", "scale"])
def test_torch_that_asks_for_gradients_goes_through_operators_to_the_loops(torch, argument, ran):
    arguments = {"x": torch.ones(3, 8), "positions": torch.arange(3), "frequencies": torch.ones(4)}
    arguments |= {"shift": torch.ones(4), "scale": torch.full((4,), 2.0)}
    arguments = {name: value.double() for name, value in arguments.items()}
    arguments[argument].requires_grad_()
    turned = rfrope.rotate(**arguments)
    assert ran == ["rotated", "recorded rotated"]
    turned.sum().backward()
    assert ran[2:] == (["rotated"] if argument == "x" else ["turn_gradient"])
    assert arguments[argument].grad.abs().sum() > 0.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch about its own use of torch.jit
def test_torch_in_forward_mode_stays_generic(torch, ran):
    import torch.autograd.forward_ad as forward

    p, w, x = torch.arange(3), torch.from_numpy(OMEGA), torch.ones(3, 8, dtype=torch.float64)
    with forward.dual_level():
        turned = rfrope.rotate(forward.make_dual(x, 2.0 * x), p, w)
        primal, tangent = forward.unpack_dual(turned)
        assert ran == ["cos_sin"]  # for the angles, which have no tangent
        torch.testing.assert_close(tangent, 2.0 * primal)


@pytest.mark.filterwarnings("ignore")  # the compiler's own warnings
def test_torch_that_is_traced_stays_generic(torch, ran):
    p, w, x = torch.arange(3), torch.from_numpy(OMEGA), torch.ones(3, 8, dtype=torch.float64)
    traced = torch.jit.trace(lambda v: rfrope.rotate(v, p, w), torch.zeros_like(x), check_trace=False)(x)
    assert ran == []
    pushed = torch.func.jvp(lambda v: rfrope.rotate(v, p, w), (x,), (x,))[1]
    assert ran == []
    mapped = torch.func.vmap(lambda v: rfrope.rotate(v, 3, w))(x)
    assert ran == ["cos_sin"]  # for the angles, which are not mapped over
    expected = rfrope.rotate(x, p, w)
    for got in (pushed, traced):
        torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(mapped, rfrope.rotate(x, 3, w), rtol=1e-14, atol=1e-14)


def test_torch_notices_what_was_written_in_place(torch):
    """Autograd counts writes, to refuse gradients through values that are gone."""
    p, w = torch.arange(3), torch.from_numpy(OMEGA)
    weight, x = torch.ones(3, 8, dtype=torch.float64, requires_grad=True), torch.ones(3, 8, dtype=torch.float64)
    total = (weight * x).sum()
    rfrope.rotate(x, p, w, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("name", ["array-api-strict", "jax", "dask"])
def test_other_libraries_never_reach_the_loops(name, ran, rng):
    lib = library(name)
    x, p, w = rng.standard_normal((3, 8)), np.arange(3), rfrope.geometric(4)
    for got in (
        rfrope.rotate(lib(x), lib(p), lib(w)),
        rfrope.rotate(lib(x), lib(p) if name == "dask" else [0, 1, 2], w.tolist()),
        rfrope.rotate_by_phases(lib(x), lib(p[:, None] * w)),
        rfrope.rotate_by_table(lib(x), *rfrope.rotation_table(lib(p), lib(w))),
    ):
        lib.host(got)
    rfrope.scores(lib(x), lib(x), lib(p), lib(p), lib(w))
    assert ran == []
    if name == "dask":  # its blocks are NumPy's, and reach them where all else is NumPy's too
        lib.host(rfrope.rotate(lib(x), p, w))
        assert set(ran) == {"at once"}
        ran.clear()
    rfrope.scores(x, x, p, p, w)
    assert ran == ["rotated", "rotated"]


def test_bfloat16_is_rounded_to_even():
    """1 + 2**-8 and 1 + 3 * 2**-8 lie in the middle between two numbers of bfloat16."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = np.ones((2, 8), ml_dtypes.bfloat16)
    cos = np.repeat(np.float32([1.0 + 2.0**-8, 1.0 + 3.0 * 2.0**-8])[:, None], 4, axis=1)
    got = rfrope.rotate_by_table(x, cos, np.zeros_like(cos)).astype(np.float64)
    assert got.tolist() == [[1.0] * 8, [1.0 + 2.0**-6] * 8]
