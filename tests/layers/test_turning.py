"""Calls of the module for PyTorch: places, layouts, graphs, positions at their extremes, and what is refused."""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import warnings

import array_api_compat
import numpy as np
import pytest
from campaign import campaign, sparse
from conftest import library

import rfrope
from rfrope._core import dispatch
from rfrope._core.angles import PrecisionWarning
from rfrope.rotation import turning

torch = library("torch").module
from rfrope.layers.torch import RotaryEmbedding  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # of torch, about its own use of it
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning"),
]

FREQUENCIES = rfrope.geometric(16)
WIDTH = 2 * len(FREQUENCIES)
RAGGED = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])  # padded on the left
PACKED = torch.tensor([0, 1, 2, 0, 1])
SETS = rfrope.sample("gaussian(scale=32)", 16, rng=0, heads=2)


def features(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exactly(rope, x, positions, **options):
    return rfrope.rotate(x, positions, rope.vectors, pairing=rope.pairing, scale=rope.attention_factor, **options)


# -- places ------------------------------------------------------------------------------------------------------------


PLACES = {
    "consecutive": ({}, np.arange(5)),
    "after a cache": ({"offset": 7}, np.arange(5) + 7),
    "before 0": ({"offset": -3}, np.arange(5) - 3),
    "after caches of their own": (
        {"offset": torch.tensor([3, 900_000])},
        np.arange(5) + np.array([3, 900_000]).reshape(2, 1, 1),
    ),
    "ragged": ({"positions": RAGGED}, RAGGED.numpy()[:, None]),
    "packed": ({"positions": PACKED}, PACKED.numpy()),
    "packed, after a cache": ({"positions": PACKED, "offset": 2}, PACKED.numpy() + 2),
    "floats": ({"positions": torch.tensor([0.5, 1.5, -2.0, 3.25, 1e6])}, np.asarray([0.5, 1.5, -2.0, 3.25, 1e6])),
    "a list": ({"positions": [0, 5, 2, 9, 2**53 - 1]}, np.asarray([0, 5, 2, 9, 2**53 - 1])),
    "an array": ({"positions": np.arange(5) * 3}, np.arange(5) * 3),
}


def test_positions_beyond_2_to_53_are_added_to_an_offset_before_they_are_rounded():
    module, q, k = RotaryEmbedding(FREQUENCIES), features(1, 4, 6, WIDTH), features(1, 2, 6, WIDTH, seed=1)
    positions = 2**53 + 1 + 2 * torch.arange(6)
    for x, found in zip((q, k), module(q, k, positions=positions, offset=1), strict=True):
        assert torch.equal(found, exactly(rfrope.Rope(FREQUENCIES), x, positions + 1))


@pytest.mark.parametrize("queries", [2, 6])
def test_heads_in_groups_are_turned_by_operators_alone(queries, monkeypatch):
    """As on a device without kernels: two sets, which queries share in groups of three."""
    monkeypatch.setattr(RotaryEmbedding, "_runs_operators", lambda self, x: True)
    monkeypatch.setattr(RotaryEmbedding, "turn_at_once", lambda *_: None)
    q, k = features(1, queries, 5, WIDTH), features(1, 2, 5, WIDTH, seed=1)
    for x, found in zip((q, k), RotaryEmbedding(SETS)(q, k), strict=True):
        sets = torch.from_numpy(SETS).repeat_interleave(x.shape[1] // 2, 0)
        torch.testing.assert_close(found, rfrope.rotate(x, torch.arange(5)[:, None], sets), rtol=0, atol=1e-5)


ROPES = {
    "half": rfrope.Rope(FREQUENCIES, attention_factor=1.25),
    "interleaved": rfrope.Rope(FREQUENCIES, pairing="interleaved"),
    "partial": rfrope.Rope(FREQUENCIES[:5], head_dim=WIDTH),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_places(place, rope, dtype):
    options, positions = PLACES[place]
    rope, module = ROPES[rope], RotaryEmbedding(ROPES[rope])
    q = features(2, 5, 6, WIDTH, dtype=getattr(torch, dtype)).transpose(1, 2)  # heads last in memory
    k = features(2, 3, 5, WIDTH, dtype=getattr(torch, dtype), seed=1)
    for _ in range(3):  # the first call is checked, later ones may be known
        turned = module(q, k, **options)
        for x, found in zip((q, k), turned, strict=True):
            assert torch.equal(found, exactly(rope, x, positions))
    if np.ndim(positions) < 2:
        assert module(q[0], k[0], **options)[0].shape == (6, 5, WIDTH)


@pytest.mark.parametrize("tokens", [5, 700])  # turned by one node of the graph, and by the operator
def test_gradients_of_features_that_lie_apart(tokens):
    module, q = RotaryEmbedding(FREQUENCIES), features(2, 3, tokens, WIDTH).requires_grad_()
    turned, gradient = module(q, q)[0], features(2, 3, tokens, WIDTH, seed=1)
    apart = gradient.mT.contiguous().mT
    found = [torch.autograd.grad(turned, [q], one, retain_graph=True)[0] for one in (gradient, apart)]
    assert apart.stride(-1) == tokens
    assert torch.equal(*found)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_a_graph_may_not_know_how_far_gradients_lie_apart():
    torch._dynamo.reset()
    omega = torch.from_numpy(FREQUENCIES)

    def chosen(x, mask):
        places = mask.nonzero()[:, 0]
        torch._check(places.shape[0] != 1)
        return rfrope.rotate(x[places], places, omega).mT.contiguous().sin().sum()

    x, mask = features(6, WIDTH).requires_grad_(), torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool)
    compiled = torch.compile(chosen, fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(call(x, mask), [x])[0] for call in (compiled, chosen)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)
    torch._dynamo.reset()


def test_a_decode_step_is_known_after_the_first():
    if dispatch.backend_function(turning.rotated, "cpu") is None:
        pytest.skip("no compiled loops")
    module, positions = RotaryEmbedding(FREQUENCIES), torch.tensor([[17]])
    q, k = features(1, 8, 1, WIDTH), features(1, 2, 1, WIDTH)
    with pytest.MonkeyPatch.context() as patch:
        module(q, k, offset=3)
        module(q, k, positions)
        patch.setattr(RotaryEmbedding, "turn_checked", lambda *_: pytest.fail("checked again"))
        for offset in (4, 5, 10**6):
            assert torch.equal(module(q, k, offset=offset)[0], rfrope.rotate(q, [offset], FREQUENCIES))
            assert torch.equal(module(q, k, positions + offset)[1], rfrope.rotate(k, [17 + offset], FREQUENCIES))
        with torch.inference_mode():
            module(q, k, offset=6)
    for other in (q.clone().requires_grad_(), q.double(), q[:, :4], q.to("meta")):  # nothing else is taken for known
        kept = k.to(dtype=other.dtype, device=other.device)
        turned = module(other, kept, offset=4)[0]
        assert (turned.requires_grad, turned.dtype, turned.shape) == (other.requires_grad, other.dtype, other.shape)


def test_sets_for_each_head_with_grouped_queries():
    module = RotaryEmbedding(SETS)
    q, k = features(2, 6, 5, WIDTH), features(2, 2, 5, WIDTH, seed=1)
    of_queries = np.repeat(SETS, 3, axis=0)
    for options, positions in (({"offset": 3}, np.arange(5) + 3), ({"positions": RAGGED}, RAGGED.numpy()[:, None])):
        for _ in range(2):
            turned_q, turned_k = module(q, k, **options)
            assert torch.equal(turned_q, rfrope.rotate(q, positions[..., None], of_queries))
            assert torch.equal(turned_k, rfrope.rotate(k, positions[..., None], SETS))


AXES = {
    "sections": rfrope.Rope(FREQUENCIES, sections=(6, 5, 5), interleaved=True),
    "vectors": rfrope.golden_gate(16, low=0.1, high=2.0, ndim=3),
    "vectors of heads": rfrope.golden_gate(16, low=0.1, high=2.0, ndim=3, heads=3),
}


@pytest.mark.parametrize("name", AXES)
def test_several_axes(name):
    module, rope = RotaryEmbedding(AXES[name]), AXES[name]
    q, k = features(2, 3, 5, WIDTH), features(2, 3, 5, WIDTH, seed=1)
    shared = torch.randint(0, 50, (5, 3), generator=torch.Generator().manual_seed(0))
    own = torch.stack([shared, shared + 9])
    for given, positions in ((shared, shared), (own, own[:, None])):
        for _ in range(2):
            assert torch.equal(module(q, k, given, 4)[1], exactly(rope, k, positions + 4))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("rope", ROPES)
def test_tables_for_graphs_without_rfrope(dtype, rope):
    q = features(2, 4, 5, WIDTH, dtype=getattr(torch, dtype))
    k = features(2, 2, 5, WIDTH, dtype=q.dtype, seed=1)
    module, reference = RotaryEmbedding(ROPES[rope], max_positions=64), RotaryEmbedding(ROPES[rope])
    for options in ({"offset": 59}, {"positions": RAGGED}, {"offset": torch.tensor([3, 50])}):
        for found, expected in zip(module(q, k, **options), reference(q, k, **options), strict=True):
            assert found.dtype == q.dtype
            bound = {"float32": 4.0, "bfloat16": 1.0, "float64": 0.0}[dtype] * torch.finfo(q.dtype).eps
            assert float((found.double() - expected.double()).abs().max()) <= bound * 4.0
    with pytest.raises(ValueError, match="positions go from 60 to 64; expected 0 to 63"):
        module(q, k, offset=60)
    with pytest.raises(TypeError, match="positions are floats; expected integers"):
        module(q, k, torch.rand(5))


# -- a call is what it is, whatever came before ------------------------------------------------------------------------


MAKERS = {
    "a ladder": lambda: RotaryEmbedding(FREQUENCIES),
    "sets": lambda: RotaryEmbedding(SETS),
    "axes": lambda: RotaryEmbedding(np.stack([FREQUENCIES, FREQUENCIES[::-1]], -1)),
    "learned": lambda: RotaryEmbedding(FREQUENCIES, "both"),
    "tables": lambda: RotaryEmbedding(FREQUENCIES, max_positions=8),
    "tokens first": lambda: RotaryEmbedding(FREQUENCIES, layout="bthd", head_dim=WIDTH + 2),
}


NUMBERS = [0, 1, 3, 127, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**62, 2**63 - 1]
NUMBERS += [-number for number in NUMBERS]
DTYPES = ["int64", "int32", "uint8", "int8", "uint64", "float64", "float32", "float16", "bfloat16", "bool"]


def some_call(chosen):
    """A call of few layouts, so that some come again; some of them are refused."""
    (tokens, heads, shared), width = chosen.choice([(1, 1, 1), (1, 4, 2), (2, 4, 2), (1, 2, 4)]), chosen.choice([0, 2])
    dtype = chosen.choice([torch.float32, torch.bfloat16, torch.float64])
    q, k = (features(1, n, tokens, WIDTH + width, dtype=dtype, seed=n) for n in (heads, shared))
    if chosen.random() < 0.1:
        other = [q[0, 0], q.tolist(), q.mT.contiguous().mT, q.clone().requires_grad_(), q.to("meta")]
        q = chosen.choice([*other, q.float().numpy(), torch.nested.nested_tensor([q[0]])])
    made = torch.tensor(chosen.choices(NUMBERS, k=tokens)).to(getattr(torch, chosen.choice(DTYPES)))
    positions = chosen.choice([None, None, made, made[None], made[:, None].expand(-1, 2), made.tolist(), made[:1]])
    offset = chosen.choice([*NUMBERS, *NUMBERS, 2**63, -(2**63) - 1, 10**400, True, 2.5, None, "5", made[:1], made[0]])
    return q, k, positions, offset


def outcome(module, call):
    """Bytes and layout of what a call gives, or its error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = module(*call)
        except Exception as error:
            return type(error), str(error)
    kept = [(x.dtype, x.shape, x.requires_grad, x.is_meta) for x in found]
    values = [None if x.is_meta else x.detach().contiguous().view(torch.uint8).numpy().tobytes() for x in found]
    return kept, values, [str(each.message) for each in warned]


@pytest.mark.parametrize("name", sparse(MAKERS, lambda name: name in ("a ladder", "sets")))
def test_a_call_gives_what_a_fresh_module_gives(name):
    """Bit for bit, errors and warnings included, whatever was called before."""
    used, chosen = MAKERS[name](), random.Random(20)
    calls = [some_call(chosen) for _ in range(150)]
    for call in [*calls, *chosen.choices(calls, k=150)]:
        assert outcome(used, call) == outcome(MAKERS[name](), call)


@pytest.mark.parametrize("of", ["a ladder", "learned"])
@pytest.mark.parametrize("numbers", [[2**53 + 1, 0, 1], [2**53 - 1, 2**62 + 3, -(2**53) - 1], [-(2**63) + 3, 5, 7]])
@pytest.mark.parametrize("offset", [0, -3, 2])
def test_integers_of_64_bits_are_added_exactly(of, numbers, offset):
    """The sum is the position, and float64 holds that to its 53 bits."""
    module, q = MAKERS[of](), features(1, 2, 3, WIDTH)
    exact = rfrope.rotate(q, torch.tensor([number + offset for number in numbers]), FREQUENCIES)
    for _ in range(2):
        assert torch.equal(module(q, q, torch.tensor(numbers), offset)[0].detach(), exact)
        module(q, q, torch.arange(3), offset)  # of the same layout


@pytest.mark.parametrize("numbers", [None, [0, 1, 2], [2**63 - 1, 0, 1], [-(2**63), 0, 1]])
@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (2**70, r"offset has 71 bits; expected a whole number from -2\*\*63 to 2\*\*63 - 1"),
        (-(2**63) - 1, r"offset has 64 bits; expected a whole number"),
        (10**400, r"offset has 1329 bits"),
        (2**63 - 1, r"positions and offset add up to more than 64 bits"),
        (torch.tensor([2**63 - 1]), r"positions and offset add up to more than 64 bits"),
        (torch.tensor(2**63 + 1, dtype=torch.uint64), r"offset holds integers above 2\*\*63 - 1"),
        (True, "offset has dtype bool"),
    ],
)
def test_what_64_bits_do_not_hold_is_refused(numbers, offset, message):
    module, q = RotaryEmbedding(FREQUENCIES), features(1, 2, 3, WIDTH)
    positions = None if numbers is None else torch.tensor(numbers)
    if "add up" in message and numbers == [-(2**63), 0, 1]:
        positions = torch.tensor([-(2**63), 1, 0])
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=message):
            module(q, q, positions, offset)
        module(q, q, offset=1)
    with pytest.raises(ValueError, match=r"positions holds integers above 2\*\*63 - 1"):
        module(q, q, torch.tensor([2**63 + 1, 0, 1], dtype=torch.uint64))
    assert module(q, q, torch.tensor([0, 1, 2], dtype=torch.uint64), 2**63 - 3)[0].isfinite().all()


@pytest.mark.parametrize("records", [True, False], ids=["recorded", "unrecorded"])
@pytest.mark.parametrize("of", [False, "frequencies", "phases", "both"])
def test_features_beside_what_has_no_values_are_refused(of, records):
    """An operator with one tensor on the meta device computes nothing, and would give back raw memory."""
    module, q = RotaryEmbedding(FREQUENCIES, of), features(1, 2, 3, WIDTH)
    void = q.to("meta")
    with torch.set_grad_enabled(records):
        for x, y, wrong in (
            (q, void, "q is on device cpu but k is on meta"),
            (void, q, "q is on device meta but k is"),
        ):
            with pytest.raises(ValueError, match=wrong if not of else "is on device"):
                module(x, y)
        module.to("meta")
        assert all(x.is_meta for x in module(void, void))
        calls = (lambda: module(q, q), lambda: module.rotate(q, keys=True), lambda: module(q, q, k_positions=[0, 1, 2]))
        for call in calls if of else ():
            with pytest.raises(
                ValueError, match=r"^[qx] is on device cpu but (frequencies|phases) is on meta; expected"
            ):
                call()


@pytest.mark.parametrize(("dtype", "last"), [("float16", 2048), ("bfloat16", 256)])
def test_positions_of_16_bits_warn_where_they_lack_whole_numbers(dtype, last, xp):
    """Others turn by the positions of their neighbours; the first token that does is at `last` + 1."""
    x = xp(np.ones((2, WIDTH)), "float32")
    try:
        near, far = (xp(np.array([0.0, number])) for number in (last, last + 2))
        near, far = (
            one.astype(dtype) if hasattr(one, "astype") else one.to(getattr(torch, dtype)) for one in (near, far)
        )
    except (TypeError, AttributeError):
        pytest.skip(f"no {dtype} there")
    rope = rfrope.Rope(FREQUENCIES)
    for call in (rope.rotate, lambda x, at: rfrope.rotate(x, at, FREQUENCIES), lambda x, at: rope.scores(x, x, at, at)):
        for _ in range(18):  # so often that it may be prepared
            with pytest.warns(
                PrecisionWarning, match=rf"positions has dtype {dtype}, .* numbers above {last:g}: "
            ) as seen:
                call(x, far)
            assert seen[0].filename == __file__
        if rfrope._core.array.library(x).is_readable(x):
            call(x, near)  # a warning would be an error


NARROW = [  # positions, their type, and what the warning says, if any
    ([1.7e9, 1.7e9 + 1, 1.7e9 + 40], "float32", "lacks whole numbers above 16777216: "),
    ([0.0, -(2.0**24) - 2], "float32", "lacks whole numbers above 16777216: "),
    (np.arange(2**24 - 3, 2**24 + 1), "float32", None),
    ([2**20 + 0.1, 2**20 + 0.4], "float32", "numbers are 0.125 apart at 1048576.4: phases may miss by 0.062 radians"),
    ([2**20 + 0.5, 0.0], "float32", None),  # no odd multiple of the spacing
    ([2**20 + 0.125, 3.125], "float32", None),  # a fraction of another binade shows what is meant
    ([2**20, 1.3], "float32", "numbers are 0.125 apart at 1048576: "),
    (np.arange(0.0, 1000.0, 0.1), "float32", None),
    (np.arange(0.0, 127.0, 0.1), "float16", None),
    (np.arange(0.0, 130.0, 0.1), "float16", "numbers are 0.125 apart at 129.875: phases may miss by 0.062 radians"),
    (np.arange(0.25, 512.0, 0.25), "float16", None),
    (np.arange(0.5, 128.0), "bfloat16", None),
    (np.arange(0.0, 20.0, 0.1), "bfloat16", "numbers are 0.125 apart at 19.875: "),
    ([200.0, 0.5], "bfloat16", "numbers are 1 apart at 200: phases may miss by 0.5 radians"),
]


@pytest.mark.parametrize(("values", "dtype", "said"), NARROW)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_positions_that_a_narrow_type_cannot_tell_apart_warn(values, dtype, said, name):
    at, x = torch.as_tensor(np.array(values, np.float64)).to(getattr(torch, dtype)), torch.ones(len(values), WIDTH)
    if name != "torch":
        kind = np.dtype(dtype if dtype != "bfloat16" else pytest.importorskip("ml_dtypes").bfloat16)
        at, x = (library(name)(one) for one in (at.float().numpy().astype(kind), x.numpy()))
    rope, slow = rfrope.Rope(FREQUENCIES), rfrope.Rope(FREQUENCIES / 64.0)
    calls = [rope.rotate, lambda x, at: rfrope.rotate(x, at, FREQUENCIES), lambda x, at: rope.table(at)]
    calls += [lambda x, at: RotaryEmbedding(rope)(x[None, None], x[None, None], at)] if name == "torch" else []
    for call in calls * 3:  # so often that it may be prepared
        with pytest.warns(PrecisionWarning, match=said) if said else contextlib.nullcontext():
            call(x, at)
    with pytest.warns(PrecisionWarning) if "lacks" in str(said) else contextlib.nullcontext():
        slow.rotate(x, at)  # no phase of these frequencies misses by much


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("call", ["module", "rotate", "export"])
def test_while_a_graph_is_made_all_positions_of_16_bits_warn(call, dtype):
    rotary, x = RotaryEmbedding(FREQUENCIES), features(1, 1, 3, WIDTH)
    turn = rotary if call == "module" else lambda x, y, at: (rfrope.rotate(x, at, FREQUENCIES), y)
    at = torch.arange(3).to(getattr(torch, dtype))
    torch._dynamo.reset()
    made = torch.compile(turn, fullgraph=True, backend="aot_eager")
    with pytest.warns(PrecisionWarning, match=f"positions has dtype {dtype}"):
        made = torch.export.export(rotary, (x, x, at)).module() if call == "export" else (made(x, x, at), made)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        assert torch.equal(made(x, x, at)[0], rotary(x, x, at)[0])  # and neither a run nor what is exact
        if call != "export":
            made(x, x, at.float())


# -- layouts, and keys of another length -------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [*MAKERS][:5])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_tokens_before_heads(of, compiled):
    """The other order of the same features, for every kind of module."""
    torch._dynamo.reset()
    module = MAKERS[of]()
    other = RotaryEmbedding(module.start, "both" if of == "learned" else False, module.max_positions, layout="bthd")
    call = torch.compile(other, backend="eager") if compiled else other
    for tokens in (1, 3):
        q, k = features(2, 4, tokens, WIDTH), features(2, 2, tokens, WIDTH, seed=1)
        at = torch.tensor([[5], [2], [7]])[:tokens].expand(-1, module.axes)
        at = at[:, 0] if module.axes == 1 else at
        for options in ({"positions": at}, *([{"offset": 2}] if module.axes == 1 else [])):
            for _ in range(2):
                found = call(q.transpose(1, 2), k.transpose(1, 2), **options)
                for x, exact in zip(found, module(q, k, **options), strict=True):
                    torch.testing.assert_close(x.transpose(1, 2), exact, rtol=0, atol=1e-6 if compiled else 0)
            alone = other.rotate(k.transpose(1, 2), keys=True, **options).transpose(1, 2)
            torch.testing.assert_close(alone, module(q, k, **options)[1], rtol=0, atol=0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("of", [*MAKERS][:5])
def test_one_query_beside_many_keys(of, compiled):
    torch._dynamo.reset()
    module = MAKERS[of]()
    if module.phases is not None:
        with torch.no_grad():
            module.phases += 0.3
    call = torch.compile(module, backend="eager") if compiled else module
    q, k = features(2, 4, 1, WIDTH), features(2, 2, 6, WIDTH, seed=1)
    at = torch.arange(6) if module.axes == 1 else torch.arange(12).reshape(6, 2)
    found = call(q, k, at[-1:], k_positions=at)
    repeated = q.expand(-1, -1, 6, -1)
    exact = module(repeated, k, at)
    torch.testing.assert_close(found[0], exact[0][..., -1:, :], rtol=0, atol=0)
    torch.testing.assert_close(found[1], exact[1], rtol=0, atol=0)
    torch.testing.assert_close(module.rotate(k, at, keys=True), exact[1], rtol=0, atol=0)
    torch.testing.assert_close(module.rotate(repeated, at), exact[0], rtol=0, atol=0)
    if module.axes == 1:
        torch.testing.assert_close(call(q, k, offset=5, k_positions=at)[0], found[0], rtol=0, atol=0)
        later = module.rotate(k[..., :5, :], offset=1)
        torch.testing.assert_close(later, module.rotate(k[..., :5, :], at[1:]), rtol=0, atol=0)


# -- graphs ------------------------------------------------------------------------------------------------------------


MODULES = {
    "fixed": lambda: RotaryEmbedding(rfrope.Rope(FREQUENCIES, attention_factor=1.5)),
    "heads": lambda: RotaryEmbedding(SETS),
    "learned": lambda: RotaryEmbedding(FREQUENCIES, "both"),
    "tables": lambda: RotaryEmbedding(FREQUENCIES, max_positions=512),
}


OPTIONS = {
    "consecutive": lambda n: {"offset": 3},
    "positions": lambda n: {"positions": torch.arange(n) + 7},
    "offsets": lambda n: {"offset": torch.tensor([3, 9])},
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("place", OPTIONS)
def test_full_graphs_without_warnings(dynamic, name, place):
    torch._dynamo.reset()
    module, graphs = MODULES[name](), []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*torch.jit.*", DeprecationWarning)
        compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend=backend)
        for n in (5, 9, 130) if dynamic else (5,):
            q, k = features(2, 4, n, WIDTH), features(2, 2, n, WIDTH, seed=1)
            for found, expected in zip(
                compiled(q, k, **OPTIONS[place](n)), module(q, k, **OPTIONS[place](n)), strict=True
            ):
                assert torch.equal(found, expected)
    assert len(graphs) == 1
    assert sum("rfrope" in target for target in graphs[0]) == (0 if name == "tables" else 2)


class NotAsked:
    """What is not to be asked for."""

    def __getattr__(self, name):
        pytest.fail(f"asked for {name}")


@pytest.mark.parametrize("name", sparse(MODULES, lambda name: name in ("fixed", "learned")))
def test_a_graph_asks_neither_array_api_compat_nor_for_the_list_of_modules(name, monkeypatch):
    """The list grows while PyTorch's compiler imports, and goes through it."""
    torch._dynamo.reset()
    helpers = importlib.import_module("array_api_compat.common._helpers")
    monkeypatch.setattr(helpers, "sys", NotAsked())
    for each in (array_api_compat, helpers):
        monkeypatch.setattr(each, "array_namespace", lambda *_, **__: pytest.fail("array-api-compat was asked"))
    module, guards = MODULES[name](), []

    def kept(entries):
        guards.extend(entry.name for entry in entries)
        return [True] * len(entries)

    for n in (5, 1):
        q, k = features(2, 4, n, WIDTH), features(2, 2, n, WIDTH, seed=1)
        with contextlib.suppress(RuntimeError):  # before PyTorch 2.8 guards cannot be seen
            torch.compile(module, fullgraph=True, backend="eager", options={"guard_filter_fn": kept})(q, k)
        compiled = torch.compile(module, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(q, k, offset=3), module(q, k, offset=3), rtol=0, atol=1e-6)
        compiled = torch.compile(rfrope.rotate, fullgraph=True, backend="eager")
        assert torch.equal(compiled(q, torch.arange(n), FREQUENCIES), rfrope.rotate(q, torch.arange(n), FREQUENCIES))
    assert guards or torch.__version__ < "2.8"
    assert not [guard for guard in guards if "sys" in guard]
    assert len({*guards}) < 200, "a compiled graph looks at all of them in every call"


DECODING = {  # module, and positions of its axes
    "half": (rfrope.Rope(FREQUENCIES, attention_factor=1.5), 1),
    "interleaved": (rfrope.Rope(FREQUENCIES[:5], pairing="interleaved", head_dim=WIDTH), 1),
    "heads": (SETS, 1),
    "sections": (rfrope.Rope(FREQUENCIES, sections=(6, 5, 5)), 3),
    "vectors of heads": (rfrope.golden_gate(16, low=0.1, high=2.0, ndim=3, heads=2), 3),
}


@pytest.mark.parametrize("dynamic", sparse([False, True], lambda dynamic: not dynamic))
@pytest.mark.parametrize("name", sparse(DECODING, lambda name: name in ("half", "heads")))
def test_one_token_in_a_graph_is_turned_by_torchs_own_operators(name, dynamic):
    """So that they are fused with their neighbours; exactly, wherever the token is."""
    rope, axes = DECODING[name]
    module, graphs = RotaryEmbedding(rope), []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    for dtype, bound in ((torch.float32, 4.0), (torch.float64, 64.0), (torch.bfloat16, 1.0)):
        torch._dynamo.reset()
        compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend=backend)
        q, k = features(2, 4, 1, WIDTH, dtype=dtype), features(2, 2, 1, WIDTH, dtype=dtype, seed=1)
        for at in ([0, 0, 0], [131_071, 7, 3], [-5, 2**40 + 1, 9], [2**53 - 1, 1, 0]):
            positions = torch.tensor(at[:1] if axes == 1 else [at])
            own = torch.stack([positions, positions + 3])
            for options in ({"positions": positions}, {"positions": own, "offset": -2}):
                for found, exact in zip(compiled(q, k, **options), module(q, k, **options), strict=True):
                    error = float((found.double() - exact.double()).abs().max() / exact.double().abs().max())
                    assert error <= bound * torch.finfo(dtype).eps
        for offset in (70_000, torch.tensor([3, 2**40])) if axes == 1 else ():
            torch.testing.assert_close(compiled(q, k, offset=offset), module(q, k, offset=offset), rtol=0.01, atol=0.01)
    assert not any("rfrope" in target for graph in graphs for target in graph)


@pytest.mark.parametrize("name", MODULES)
def test_exported(name):
    module, length = MODULES[name](), torch.export.Dim("length", min=2, max=400)
    q, k, positions = features(2, 4, 5, WIDTH), features(2, 2, 5, WIDTH, seed=1), torch.arange(5)
    shapes = {"q": {2: length}, "k": {2: length}, "positions": {0: length}}
    program = torch.export.export(module, (q, k, positions), dynamic_shapes=shapes, strict=False)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for n in (5, 21):
        q, k = features(2, 4, n, WIDTH), features(2, 2, n, WIDTH, seed=1)
        for found, expected in zip(again(q, k, torch.arange(n)), module(q, k, torch.arange(n)), strict=True):
            assert torch.equal(found, expected)


@campaign
@pytest.mark.parametrize(("name", "dynamic"), [("fixed", True), ("heads", False), ("learned", True), ("tables", False)])
def test_inductor_without_warnings(name, dynamic, monkeypatch):
    """Warnings are errors, here as everywhere; forwards, backwards, and one token; under CI inductor asks for more."""
    monkeypatch.setenv("CI", "true")
    torch._dynamo.reset()
    module, at = MODULES[name](), torch.tensor([[131], [7]])
    call = torch.compile(module, fullgraph=True, dynamic=dynamic)
    q, k = features(2, 4, 5, WIDTH).requires_grad_(), features(2, 2, 5, WIDTH, seed=1)
    results = [each(q, k) for each in (call, module)]
    gradients = [torch.autograd.grad(one.sum() + other.sum(), q) for one, other in results]
    torch.testing.assert_close((results[0], gradients[0]), (results[1], gradients[1]), rtol=0, atol=1e-6)
    for x in (features(2, 4, 1, WIDTH, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)):
        with torch.no_grad():
            found, expected = (each(x, x[:, :2], at) for each in (call, module))
        torch.testing.assert_close(found, expected, rtol=0, atol=4 * torch.finfo(x.dtype).eps)


# -- what is refused, in a graph too -----------------------------------------------------------------------------------


X, WIDE = features(2, 4, 1, WIDTH), features(1, 3, 2, WIDTH + 4)
LAST = rfrope.Rope(FREQUENCIES, source={"turned": "last"})
ENLARGED = "do not broadcast.*layout='bthd' takes tokens before heads|the result would be"
REFUSED = {  # the module, arguments, and words of the error
    "tokens": ({}, (features(2, 4, 5, WIDTH), features(2, 4, 3, WIDTH)), "q has 5 tokens, but k has 3, in layout"),
    "heads": ({}, (X, X[:, :3]), "q has 4 heads and k has 3; expected a number that 3 divides"),
    "sets": ({"rope": SETS}, (X, X), "has 2 sets of frequencies, but k has 4 heads in layout"),
    "sets alone": ({"rope": SETS}, (X[:, :3],), "has 2 sets of frequencies, but x has 3 heads"),
    "axes of features": ({}, (X[0, 0], X[0, 0]), r"q has shape \(1, 32\); expected \(..., heads, tokens, d\)"),
    "other axes": ({"layout": "bthd"}, (X[0, 0], X[0, 0]), r"expected \(..., tokens, heads, d\)"),
    "axes that differ": ({}, (X, X[0, 0]), r"k has shape \(1, 32\); expected"),
    "too narrow": ({}, (X, X[..., :30]), "the Rope has D = 16 blocks, which needs 32 features, but k"),
    "too wide": ({}, (WIDE, WIDE), "q has 36 features, but head_dim is 32; expected 32: for heads of 36"),
    "wide alone": ({}, (WIDE,), "x has 36 features, but head_dim is 32"),
    "wide keys": ({}, (WIDE[..., :32], WIDE), "k has 36 features, but head_dim is 32"),
    "not a head": ({"head_dim": 64}, (WIDE, WIDE), "q has 36 features, .* expected 64, or the 32 that turn"),
    "last": ({"rope": LAST}, (WIDE, WIDE), r"the last 32 .* q\[..., -32:\]"),
    "dtype": ({}, (X.long(), X), "q has dtype int64"),
    "no tensor": ({}, (X, X.numpy()), "k has type numpy.ndarray; expected a tensor of PyTorch"),
    "too many": ({}, (X, X, torch.arange(3)), ENLARGED),
    "rows": ({}, (X, X, torch.tensor([[3], [4], [5]])), ENLARGED),
    "k_positions": ({}, (X, X, None, 0, torch.arange(5)), "^k|phases from k_positions"),
    "no positions": ({"rope": AXES["vectors"]}, (X, X), r"positions is None; expected \(..., tokens, 3\)"),
    "positions of one axis": ({"rope": AXES["vectors"]}, (X, X, torch.arange(1)), r"positions has shape \(1,\)"),
    "boolean positions": ({}, (X, X, torch.tensor([True])), "positions has dtype bool"),
    "complex offset": ({}, (X, X, None, torch.tensor(1j)), "offset has dtype complex64"),
    "beyond tables": ({"max_positions": 8}, (X, X, None, 0, torch.tensor([9])), "k_positions go from 9 to 9; expected"),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, compiled):
    """However often other calls came before."""
    options, arguments, message = REFUSED[name]
    module = RotaryEmbedding(**({"rope": FREQUENCIES} | options))
    call = module if len(arguments) > 1 else module.rotate
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, backend="eager")
        message = message if name != "beyond tables" else "index out of range"  # a graph asks for no values: torch does
    for _ in range(2):
        with pytest.raises(Exception, match=message):
            call(*arguments)


def test_what_has_values_alone_is_refused_outside_graphs():
    module = RotaryEmbedding(FREQUENCIES)
    with pytest.raises(ValueError, match="positions holds NaN"):
        module(X, X, torch.tensor([float("nan")]))
    with pytest.raises(TypeError, match="keys is 1; expected True or False"):
        module.rotate(X, keys=1)
