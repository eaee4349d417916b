"""Polar rotation: magnitudes turned by position alone, against plain formulas, on every library and by every path."""

import importlib
import itertools

import numpy as np
import pytest
from conftest import library, rows, tuples
from rotation_calls import DTYPES, EPSILON, LAYOUTS, PAIRINGS, SMALLEST, doubles, laid, numpy_dtype, tensor, watched
from rotation_calls import without_backends as plainly

import rfrope
from rfrope._core import blocks
from rfrope.rotation import rotate_polar


def joined(cosine, sine, pairing):
    if pairing == "half":
        return np.concatenate([cosine, sine], axis=-1)
    return np.stack([cosine, sine], axis=-1).reshape(*cosine.shape[:-1], 2 * cosine.shape[-1])


def formula(x, u, pairing="half", softplus=False, scale=1.0):
    """Return polar features as anybody would write them down, in the widest float of NumPy."""
    x, u = np.asarray(x, np.longdouble), np.asarray(u, np.longdouble)
    m = scale * (np.logaddexp(x, np.longdouble(0)) if softplus else x)
    return joined(m * np.cos(u), m * np.sin(u), pairing).astype(np.float64)


SHAPES = tuples("rotation/polar.json", "shapes")


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("softplus", [False, True])
def test_the_formula_on_every_library(xp, shapes, pairing, softplus, rng):
    m, p, w = (rng.uniform(0.1, 2.0, shape) for shape in shapes[:3])
    shift = 0.0 if shapes[3] is None else rng.uniform(-6.0, 0.0, shapes[3])
    u = (p[..., None] * w if w.ndim == 1 else p @ np.swapaxes(w, -1, -2)) + shift
    scale = 1.5 if softplus else rng.uniform(1.0, 2.0, u.shape)
    wanted = formula(m, u, pairing, softplus, scale)
    options = {"shift": None if shapes[3] is None else xp(shift), "scale": scale if softplus else xp(scale)}
    got = rotate_polar(xp(m), xp(p), xp(w), softplus=softplus, pairing=pairing, **options)
    assert xp.owns(got)
    assert tuple(got.shape) == wanted.shape
    np.testing.assert_allclose(xp.host(got), wanted, rtol=0, atol=2e-14)
    if not softplus:
        back = rotate_polar(got, xp(p), xp(w), inverse=True, pairing=pairing, **options)
        np.testing.assert_allclose(xp.host(back), m, rtol=1e-13)


def test_a_rotation_of_blocks_whose_second_features_are_zero(rng):
    """`rotate` and `rotate_polar` are one rotation."""
    m, p, w = rng.uniform(0, 1, (5, 8)), np.arange(5) * 10**9, rng.standard_normal(8)
    for pairing in PAIRINGS:
        widened = joined(m, np.zeros_like(m), pairing)
        np.testing.assert_array_equal(
            rotate_polar(m, p, w, pairing=pairing, scale=1.5), rfrope.rotate(widened, p, w, pairing=pairing, scale=1.5)
        )


# -- digits ------------------------------------------------------------------------------------------------------------


NEW = tuples("rotation/polar.json", "new")


@pytest.fixture
def filled(monkeypatch):
    """Note the loops that form phases of the plans that are made."""
    plans = pytest.importorskip("rfrope._backends.cpu.plans", exc_type=ImportError)
    names, address_of = [], plans.address_of
    plans.plan_of.cache_clear()

    def noted(loop, at):
        names.extend({loop.py_func.__name__} - {"turn"})
        return address_of(loop, at)

    monkeypatch.setattr(plans, "address_of", noted)
    yield names
    plans.plan_of.cache_clear()


@pytest.mark.parametrize("shapes", NEW.values(), ids=NEW)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16], ids=str)
def test_shifts_of_heads_are_added_to_the_same_positions(shapes, dtype, filled, rng):
    """Tiles that share positions keep their cos and sin; where there are several tiles the last is short."""
    m, p, w, shift = (rng.uniform(0.0, 2.0, shape) for shape in shapes)
    m, p, shift = m.astype(dtype), np.round(p * 1e5), -3.0 * shift
    u = (p[..., None] * w if w.ndim == 1 else p @ np.swapaxes(w, -1, -2)) + shift
    fill = "fill_any" if dtype is np.float64 else "fill_apart"
    got = rotate_polar(m, p, w, shift=shift, scale=1.5)
    # phases of the formula have the digits of float64, of numbers up to 8e5
    tolerance = 3.0 * (np.finfo(dtype).eps + 8e5 * 2.0**-52)
    np.testing.assert_allclose(got, formula(m, u, scale=1.5), rtol=0, atol=tolerance)
    back = rotate_polar(got, p, w, shift=shift, scale=1.5, inverse=True)
    np.testing.assert_allclose(back, m.astype(np.float64), rtol=0, atol=tolerance)
    assert filled == [fill, fill]


def test_a_short_tile_that_begins_where_a_long_one_does_is_not_taken_for_it(filled, rng):
    """Tiles of 24 blocks have 170 rows: the 171st position of a sequence is the first of the next one."""
    at = np.lib.stride_tricks.as_strided(np.arange(171 * 172.0), (171, 1, 171), (170 * 8, 0, 8))
    m, w, shift = np.ones((171, 2, 171, 24), np.float32), rng.uniform(0.0, 2.0, 24), rng.uniform(-6.0, 0.0, (2, 1, 24))
    got = rotate_polar(m, at, w, shift=shift)
    assert filled == ["fill_apart"]
    np.testing.assert_allclose(got, formula(m, at[..., None] * w + shift), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_parts_have_the_bits_of_the_whole(dtype, rng):
    """By heads, by tokens, by one of each: no shape decides how phases are formed."""
    m, shift = rng.uniform(0.0, 2.0, (3, 40, 24)).astype(dtype), rng.uniform(-6.0, 0.0, (3, 1, 24))
    p, w = np.arange(40.0) * 1000.0, rng.uniform(0.0, 2.0, 24)
    whole = rotate_polar(m, p, w, shift=shift)
    for heads, tokens in itertools.product((1, 2, 3), (1, 7, 40)):
        for head, token in itertools.product(range(0, 3, heads), range(0, 40, tokens)):
            h, t = slice(head, head + heads), slice(token, token + tokens)
            np.testing.assert_array_equal(rotate_polar(m[h, t], p[t], w, shift=shift[h]), whole[h, t])


@pytest.mark.parametrize("shapes", NEW.values(), ids=NEW)
def test_gradients_of_shifts_of_heads_are_those_of_the_formula(shapes, filled, rng, torch):
    m, p, w, shift = (torch.from_numpy(rng.uniform(0.0, 2.0, shape)) for shape in shapes)
    m, p = m.float().double(), torch.round(100.0 * p)
    learned = [x.requires_grad_() for x in (m, w, shift)]
    g = torch.from_numpy(rng.standard_normal((*m.shape[:-1], 2 * m.shape[-1])).astype(np.float32))
    found = torch.autograd.grad(rotate_polar(m.float(), p, w, shift=shift), learned, g)
    assert set(filled) == {"fill_apart"}
    u = (p[..., None] * w if w.ndim == 1 else p @ w.mT) + shift
    wanted = torch.autograd.grad(torch.cat([m * u.cos(), m * u.sin()], -1), learned, g.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=3e-7 * other.abs().max().item())


@pytest.mark.parametrize("path", ["loop", "generic"])
def test_phases_are_exact_far_out(path, rng):
    """Where a phase in the widest float of NumPy has no digits left."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath, which holds the digits, is missing")
    p, w, shift = [131_071, 10**6, 2**40 + 1, 2**53 - 1], rng.uniform(0.1, 1, 6), rng.uniform(-6, 0, 6)
    with mpmath.workdps(40):
        phases = [[mpmath.mpf(at) * mpmath.mpf(x) + mpmath.mpf(s) for x, s in zip(w, shift, strict=True)] for at in p]
        wanted = [[float(f(u)) for f in (mpmath.cos, mpmath.sin) for u in row] for row in phases]
    with plainly() if path == "generic" else watched(without=("at once",)) as ran:
        got = rotate_polar(np.ones((4, 6)), p, w, shift=shift)
    assert path == "generic" or ran == ["has_negative", "rotated"]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-15)


SOFT = np.concatenate([np.linspace(-30, 30, 4001), -np.logspace(1, 2.9, 500), [0.0, -0.0, 1e-30, -1e-30, 300.0, 3e4]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", ["loop", "one by one", "generic"])
def test_softplus_to_two_units_in_the_last_place(dtype, path):
    mpmath = pytest.importorskip("mpmath", reason="mpmath, which holds the digits, is missing")
    x = SOFT.astype(numpy_dtype(dtype))
    with mpmath.workdps(40):
        exact = [mpmath.log1p(mpmath.exp(-abs(z))) + max(z, 0) for z in map(mpmath.mpf, x.astype(float).tolist())]
    with plainly() if path == "generic" else watched(without=("at once",)) as ran:
        features = laid(x, "stepped") if path == "one by one" else x
        got = rotate_polar(features, 0, np.ones(x.size), softplus=True)
    assert path == "generic" or ran == ["rotated"]
    assert np.all(doubles(got[x.size :]) == 0)
    ulps = EPSILON[dtype] * 2.0 ** np.floor(np.log2(np.maximum(np.array(exact, float), 1e-300)))
    least = 2.0**-1074 if dtype == "float64" else SMALLEST[dtype]
    error = [float(abs(mpmath.mpf(float(a)) - b)) for a, b in zip(doubles(got[: x.size]), exact, strict=True)]
    # narrower types than float32 are rounded once, and so is float32 by the generic function
    bound = {"float64": 2.0 if path == "generic" else 1.5, "float32": 0.51 if path == "generic" else 1.5}
    assert np.max(error / np.maximum(ulps, least)) <= bound.get(dtype, 0.51)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_in_its_block(dtype):
    x = np.asarray([np.nan, np.inf, -np.inf] * 7, numpy_dtype(dtype))
    with watched(without=("at once",)) as ran:
        got = doubles(rotate_polar(x, 0, np.ones(21), softplus=True))[:21]
    assert ran == ["rotated"]
    np.testing.assert_array_equal(got, [np.nan, np.inf, 0.0] * 7)
    m = np.asarray([[1.0, np.nan, 2.0]])
    np.testing.assert_array_equal(np.isnan(rotate_polar(m, [1], [1.0, 0.5, 0.2])), [[False, True, False] * 2])


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [*LAYOUTS, "broadcast"])
@pytest.mark.parametrize("form", [*itertools.product(PAIRINGS, ("plain", "softplus", "inverse"))], ids=str)
@pytest.mark.parametrize("blocks", [3, 21, 64])
def test_any_memory_by_the_loop_is_the_generic_result(dtype, layout, form, blocks, rng):
    pairing, kind = form
    options = {"pairing": pairing, "softplus": kind == "softplus", "inverse": kind == "inverse", "scale": 1.5}
    values = rng.uniform(0, 2, (2, 3, 5, 2 * blocks if kind == "inverse" else blocks))
    x = laid((values - 1.0 if kind != "plain" else values).astype(numpy_dtype(dtype)), layout)
    p, w = rng.integers(-(10**9), 10**9, (2, 1, 5, 1)), rng.standard_normal((3, blocks, 1))
    with plainly():
        wanted = rotate_polar(x.astype(np.float64), p, w, **options)
    with watched(without=("at once",)) as ran:
        got = rotate_polar(x, p, w, **options)
        for out_layout in ("dense", "stepped", "transposed", "offset"):
            out = laid(np.full(wanted.shape, 7.0).astype(x.dtype), out_layout)
            assert rotate_polar(x, p, w, out=out, **options) is out
            np.testing.assert_array_equal(doubles(out), doubles(got))
    assert ran == ([*["has_negative"] * (kind == "plain"), "rotated"] * 5)
    with watched() as ran:
        at_once = rotate_polar(x, p, w, **options)
    is_plain = layout in ("dense", "offset") or kind != "plain"
    assert (ran == ["at once"]) == (is_plain and dtype != "bfloat16")
    np.testing.assert_array_equal(doubles(at_once), doubles(got))
    assert got.dtype == x.dtype
    units = {"float64": 8.0, "float32": 2.5 if kind == "softplus" else 0.51}.get(dtype, 0.51) * EPSILON[dtype]
    allowed = units * np.max(np.abs(wanted), initial=0.0) + SMALLEST[dtype]
    np.testing.assert_allclose(doubles(got), wanted, rtol=0, atol=allowed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("softplus", [False, True])
def test_large_results_are_the_small_ones_bit_for_bit(dtype, pairing, softplus, monkeypatch, rng):
    """Past the caches or through them, aligned or not, on one thread or three, and there and back."""
    leaf = pytest.importorskip("rfrope._backends.cpu.rotation", exc_type=ImportError)
    plans = pytest.importorskip("rfrope._backends.cpu.plans", exc_type=ImportError)
    kind = numpy_dtype(dtype)
    m = rng.uniform(0, 1, (3, plans._STREAMED_BYTES // (3 * 128 * kind.itemsize) + 1, 64)).astype(kind)
    p, w, options = np.arange(m.shape[1]), rfrope.geometric(64), {"pairing": pairing, "softplus": softplus}
    small = [[rotate_polar(rows, p[i : i + 500], w, **options) for rows in m[:, i : i + 500]] for i in (0, 500)]
    memory = np.zeros(2 * m.size + 8, kind)
    for streams, count, start in itertools.product((True, False), (1, 3), (0, 1)):
        monkeypatch.setattr(leaf, "_STREAMS", streams)
        out = memory[start : start + 2 * m.size].reshape(*m.shape[:-1], 128)
        with rfrope.threads(count):
            rotate_polar(m, p, w, out=out, **options)
            back = rotate_polar(out, p, w, pairing=pairing, inverse=True)
        assert out[:, :1000].tobytes() == np.concatenate(small, axis=1).tobytes()
        if not softplus:
            np.testing.assert_allclose(doubles(back), doubles(m), rtol=2 * EPSILON[dtype], atol=SMALLEST[dtype])


def test_jax_derivatives_go_through_the_softplus(rng, jax):
    lib = library("jax")

    x, p, w, g = (lib(rng.standard_normal(shape)) for shape in ((3, 4), (3,), (4,), (3, 8)))
    found = jax.jit(jax.grad(lambda x: lib.module.sum(g * rotate_polar(x, p, w, softplus=True))))(x)
    logistic = 1.0 / (1.0 + np.exp(-np.asarray(x)))
    np.testing.assert_allclose(found, logistic * np.asarray(rotate_polar(g, p, w, inverse=True)), atol=1e-14)
    assert np.isnan(np.asarray(jax.jit(rotate_polar)(x, p, w * float("nan")))).all(), "what JAX traces has no values"


# -- torch -------------------------------------------------------------------------------------------------------------

ARGUMENTS = ("magnitudes", "positions", "frequencies", "shift", "scale")
LEARNT = tuples("rotation/polar.json", "learnt")
KINDS = rows("rotation/polar.json", "kinds")


def learnt(name, kind):
    """Return arguments that learn, and the call of them."""
    torch = library("torch").module
    shapes = {key: shape for key, shape in zip(ARGUMENTS, LEARNT[name], strict=True) if shape is not None}
    if KINDS[kind].get("inverse"):
        shapes["magnitudes"] = (*shapes["magnitudes"][:-1], 2 * shapes["magnitudes"][-1])
    generator = torch.Generator().manual_seed(1)
    values = [
        (0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()
        for shape in shapes.values()
    ]
    return values, lambda *arguments: rotate_polar(**KINDS[kind] | dict(zip(shapes, arguments, strict=True)))


@pytest.mark.parametrize("name", LEARNT)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_all_arguments_and_their_gradients(name, kind, torch):
    values, call = learnt(name, kind)
    assert "rfrope_turn" in type(call(*values).grad_fn).__name__
    assert torch.autograd.gradcheck(call, values)
    assert torch.autograd.gradgradcheck(call, values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["dense", "transposed", "rows stepped", "stepped", "broadcast", "features first"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("softplus", [False, True])
def test_both_gradients_in_one_pass_are_those_of_their_parts(dtype, layout, pairing, softplus, rng, torch):
    leaf = pytest.importorskip("rfrope._backends.cpu.rotation", exc_type=ImportError)
    x = tensor(laid(rng.uniform(0, 2, (2, 3, 5, 21)).astype(numpy_dtype(dtype)), layout)).requires_grad_()
    shift = torch.zeros(3, 1, 21, dtype=torch.float64, requires_grad=True)
    scale = torch.full((5, 1), 1.5, dtype=torch.float64, requires_grad=True)
    omega, at, ran = torch.linspace(0, 1, 21, dtype=torch.float64), torch.arange(5) * 1000, []
    g = torch.rand(2, 3, 5, 42, generator=torch.Generator().manual_seed(0)).to(x.dtype)
    whole = leaf.turn_back

    def noted(*arguments):
        ran.append(whole(*arguments))
        return ran[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf, "turn_back", noted)
        turned = rotate_polar(x, at, omega, shift=shift, scale=scale, softplus=softplus, pairing=pairing)
        found = torch.autograd.grad(turned, [x, shift, scale], g, retain_graph=True)
        parts = torch.autograd.grad(turned, [x, shift, scale], g, create_graph=True)
        apart = torch.autograd.grad(turned, [x, shift, scale], g.mT.contiguous().mT, retain_graph=True)
    assert all(one is not None for one in ran)
    assert len(ran) == 2
    assert all(map(torch.equal, found, apart))
    unit = EPSILON[dtype]
    for one, other, tolerance in zip(found, parts, (3 * unit, 0, 0), strict=True):
        bounds = {"rtol": tolerance + 1e-6 * softplus, "atol": 1e-12 + 1e-6 * softplus}
        torch.testing.assert_close(one.double(), other.detach().double(), **bounds)


def test_features_and_gradients_do_not_depend_on_threads(rng, torch):
    x = torch.from_numpy(rng.standard_normal((2, 8, 2048, 64), dtype=np.float32)).requires_grad_()
    shift, omega = torch.zeros(8, 1, 64, requires_grad=True), torch.from_numpy(rfrope.geometric(64))
    found = []
    for count in (1, 3):
        with rfrope.threads(count):
            turned = rotate_polar(x, torch.arange(2048), omega, shift=shift, softplus=True)
            found.append((turned.detach(), *torch.autograd.grad(turned, [x, shift], turned.detach())))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("softplus", [False, True])
def test_a_compiled_step_of_training_has_one_node_each_way(softplus):
    torch, names = library("torch").module, []
    common, functorch = map(importlib.import_module, ("torch._dynamo.backends.common", "torch._functorch.aot_autograd"))

    def backend(module, inputs):
        names.extend(str(node.target) for node in module.graph.nodes if "rfrope" in str(node.target))
        return functorch.make_boxed_func(module.forward)

    (x, *_, shift), _ = learnt("one axis", "softplus")
    at, omega = [5, 2**53 - 1, -7, 0, 1], rfrope.geometric(4)

    def call(x, shift):
        return rotate_polar(x, at, omega, shift=shift, softplus=softplus)

    torch._dynamo.reset()
    aot = common.aot_autograd(fw_compiler=backend, bw_compiler=backend)
    turned = torch.compile(call, fullgraph=True, backend=aot)(x, shift)
    found = torch.autograd.grad(turned.square().sum(), [x, shift])
    assert names == ["rfrope.turn.default", "rfrope.turn_back.default"]
    assert torch.equal(turned, call(x, shift))
    for one, other in zip(found, torch.autograd.grad(call(x, shift).square().sum(), [x, shift]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "softplus", "inverse"])
def test_gradients_of_narrow_features(dtype, kind, torch):
    (wide, *others), call = learnt("heads and two axes", kind)
    narrow = wide.detach().to(getattr(torch, dtype))
    found = []
    for x in (narrow.clone(), narrow.double()):
        turned = call(x.requires_grad_(), *others)
        weights = torch.rand(turned.shape, generator=torch.Generator().manual_seed(2)).to(narrow.dtype)
        found.append(torch.autograd.grad(turned, [x, *others], weights.to(turned.dtype)))
    for one, exact in zip(*found, strict=True):
        unit = torch.finfo(narrow.dtype).eps
        torch.testing.assert_close(one.double(), exact.double(), rtol=2 * unit, atol=8 * unit)


@pytest.mark.parametrize("kind", KINDS)
def test_operators_keep_torchs_rules(kind, torch):
    (x, _, w, shift), _ = learnt("one axis", kind)
    pairing, inverse = KINDS[kind].get("pairing", "half"), "inverse" in kind
    layouts = (pairing, blocks.MAGNITUDES) if inverse else (blocks.MAGNITUDES, pairing)
    softplus, omega = kind == "softplus", w.detach()[:, None].requires_grad_()
    turn = x, torch.arange(5)[:, None], omega, shift, None, 2.0, *layouts, inverse, softplus
    y = torch.rand(2, 3, 5, 4 if inverse else 8, dtype=torch.float64)
    fixed = [value.detach() if isinstance(value, torch.Tensor) else value for value in turn]
    gradient = fixed[0], y, *fixed[1:], (4,), False
    both = fixed[0], y, *fixed[1:], (4,)
    tried = {"turn": turn, "turn_gradient": gradient}
    for name, arguments in (tried if inverse else tried | {"turn_back": both}).items():
        found = torch.library.opcheck(getattr(torch.ops.rfrope, name).default, arguments)
        assert set(found.values()) == {"SUCCESS"}


# -- what is refused ---------------------------------------------------------------------------------------------------

M, P, W = np.ones((3, 8)), np.arange(3), np.linspace(0.1, 1.0, 8)
BAD = {  # tests/refusals/rotation.py has the others
    "magnitudes holds negative numbers; .* pass softplus=True": {"magnitudes": M - 1.0000001},
    r"out has shape \(3, 8\); expected \(3, 16\)": {"out": np.full((3, 8), 5.0)},
    "scale is 0": {"scale": 0.0},
    "shift holds NaN": {"shift": np.nan},
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_refused_leaves_out_untouched(message):
    given = {"magnitudes": M, "positions": P, "frequencies": W, "out": np.full((3, 16), 5.0)} | BAD[message]
    with pytest.raises(ValueError, match=message):
        rotate_polar(**given)
    np.testing.assert_array_equal(given["out"], 5.0)


@pytest.mark.parametrize("inverse", [False, True])
def test_memory_of_the_result_lies_apart(inverse):
    memory = np.ones(96)
    narrow, wide = memory[:24].reshape(3, 8), memory[16:64].reshape(3, 16)
    given = {"magnitudes": wide, "out": narrow} if inverse else {"magnitudes": narrow, "out": wide}
    with pytest.raises(ValueError, match="out overlaps magnitudes in part; expected memory of its own"):
        rotate_polar(**given, positions=P, frequencies=W, inverse=inverse)
    np.testing.assert_array_equal(memory, 1.0)


def test_out_lies_over_frequencies_that_are_read_first(rng):
    memory, m = rng.uniform(0.1, 1.0, 48), rng.uniform(0, 1, (3, 8))
    wanted = rotate_polar(m, P, memory[8:16].copy())
    np.testing.assert_array_equal(rotate_polar(m, P, memory[8:16], out=memory.reshape(3, 16)), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_single_negative_number_is_found_anywhere(dtype, layout):
    for values, found in ((-np.finfo(np.float32).tiny, True), (-np.inf, True), (-0.0, False), (np.nan, False)):
        for place in ((0, 0, 0), (1, 3, 36), (1, 2, 33)):
            x = np.ones((2, 4, 37), numpy_dtype(dtype))
            x[place] = values if dtype != "float16" or not found else min(values, -1e-7)
            x = laid(x, layout)
            with watched() as ran:
                assert blocks.has_negative(x, np) is found
            assert ran == ["has_negative"]
            assert blocks.has_negative.generic(x, np) is found


def test_signs_that_torch_has_not_applied_yet(torch):
    z = torch.complex(torch.ones(3, 8), -torch.from_numpy(M).float())
    x = z.conj().imag
    assert x.is_neg()
    assert torch.equal(rotate_polar(x, P, W), rotate_polar(x.clone(), P, W))
    with pytest.raises(ValueError, match="negative"):
        rotate_polar((-z).conj().imag, P, W)


def test_nothing_is_looked_at_where_values_are_not_at_hand(torch):
    assert rotate_polar(torch.full((3, 8), -1.0, device="meta"), P, W).shape == (3, 16)
    x = torch.full((3, 8), -1.0, requires_grad=True)
    with pytest.raises(ValueError, match="negative"):
        rotate_polar(x, P, W)
    lib = library("jax")
    assert rotate_polar(-lib(M), lib(P), lib(W)).shape == (3, 16)
