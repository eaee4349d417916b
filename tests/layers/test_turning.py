"""Calls of the module for PyTorch: places, layouts, graphs, positions at their extremes, and what is refused."""

import contextlib
import importlib
import io
import random
import re
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
from torch_modules import (  # noqa: E402
    FIXED,
    FREQUENCIES,
    KINDS,
    LEARNED,
    PLACES,
    SETS,
    WIDTH,
    assert_close,
    by_functions,
    features,
    made,
    placed,
)

from rfrope.layers.torch import RotaryEmbedding  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # of torch, about its own use of it
    pytest.mark.filterwarnings("ignore:.*should not be instantiated.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning"),
]


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), [("half", "float32"), ("half", "float64"), ("polar", "float32")])
def test_operators_of_float32_turn_no_float64_and_nothing_polar(kind, dtype, monkeypatch):
    """As on a device without kernels, where the general formula turns these."""
    monkeypatch.setattr(dispatch, "_find_function", lambda *_: None)
    x = features(1, WIDTH, dtype=getattr(torch, dtype))
    assert made(kind)._runs_operators(x) == ((kind, dtype) == ("half", "float32"))


@pytest.mark.parametrize("queries", [2, 6])
def test_heads_in_groups_are_turned_by_operators_alone(queries, monkeypatch):
    """As on a device without kernels: two sets, which queries share in groups of three."""
    monkeypatch.setattr(RotaryEmbedding, "_runs_operators", lambda self, x: True)
    monkeypatch.setattr(RotaryEmbedding, "turn_at_once", lambda *_: None)
    q, k = features(1, queries, 5, WIDTH), features(1, 2, 5, WIDTH, seed=1)
    for x, found in zip((q, k), RotaryEmbedding(SETS)(q, k), strict=True):
        sets = torch.from_numpy(SETS).repeat_interleave(x.shape[1] // 2, 0)
        torch.testing.assert_close(found, rfrope.rotate(x, torch.arange(5)[:, None], sets), rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", ["bhtd", "bthd"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", [*FIXED, *LEARNED])
def test_calls_are_those_of_the_functions(kind, dtype, layout):
    """Wherever tokens are: together, alone, and a query beside its cache; fixed ones to the bit."""
    dtype, axes = getattr(torch, dtype), (-3, -2) if layout == "bthd" else (-2, -2)
    module, kept = made(kind, layout=layout).to(dtype), made(kind)  # whose values no cast may round
    equal, slow = kind in FIXED and "polar" not in kind, made(kind, layout=layout)
    slow._backend = None  # no compiled loop, of which polar ones have the same bits
    roundings = 4.0 if dtype == torch.float64 else 1.1
    for place in PLACES:
        options, at = placed(module, place)
        n = at.shape[-2 if module.axes > 1 else -1]
        q = features(2, n, 4, WIDTH, dtype=dtype).transpose(1, 2)  # heads last in memory
        k = features(2, 2, n, WIDTH, dtype=dtype, seed=1)
        wanted = by_functions(kept, q, k, at)
        for _ in range(3):  # the first call is checked, later ones may be known
            with torch.autocast("cpu", torch.bfloat16, enabled=layout == "bthd"):
                found = [x.transpose(*axes) for x in module(q.transpose(*axes), k.transpose(*axes), **options)]
            for one, exact in zip(found, wanted, strict=True):
                assert (one.dtype, one.device) == (dtype, q.device)
                assert_close(one, exact, equal=equal, roundings=roundings)
        if kind in FIXED:
            again = [x.transpose(*axes) for x in slow(q.transpose(*axes), k.transpose(*axes), **options)]
            assert all(map(torch.equal, found, again))
        alone = module.rotate(k.transpose(*axes), keys=True, **options), module.rotate(q.transpose(*axes), **options)
        for one, exact in zip(alone, reversed(found), strict=True):
            assert torch.equal(one.transpose(*axes), exact)
        if at.ndim == (1 if module.axes == 1 else 2):
            places, whole = torch.as_tensor(at), [x.transpose(*axes) for x in found]
            single = module(q[0].transpose(*axes), k[0].transpose(*axes), **options)
            assert all(torch.equal(one, exact[0]) for one, exact in zip(single, whole, strict=True))
            last = module(q[..., -1:, :].transpose(*axes), k.transpose(*axes), places[-1:], k_positions=places)
            assert torch.equal(last[0].transpose(*axes), found[0][..., -1:, :])
            assert torch.equal(last[1], whole[1])


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", ["half", "interleaved", "partial"])
def test_tables_for_graphs_without_rfrope(dtype, kind):
    q, module = features(2, 4, 5, WIDTH, dtype=getattr(torch, dtype)), made(kind, max_positions=64)
    k, bound = features(2, 2, 5, WIDTH, dtype=q.dtype, seed=1), {"float32": 4.0, "bfloat16": 1.0, "float64": 0.0}[dtype]
    for options in ({"offset": 59}, {"positions": PLACES["ragged"][0]["positions"]}, {"offset": torch.tensor([3, 50])}):
        for found, expected in zip(module(q, k, **options), made(kind)(q, k, **options), strict=True):
            assert found.dtype == q.dtype
            assert float((found.double() - expected.double()).abs().max()) <= bound * torch.finfo(q.dtype).eps * 4.0
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


FINEST = {"float16": 2048, "bfloat16": 256}  # the last of all whole numbers
NARROW = [  # positions, their type, and what the warning says, if any
    *(([0.0, last + 2], kind, f"{kind}, .* numbers above {last}: ") for kind, last in FINEST.items()),
    *(([0.0, last], kind, None) for kind, last in FINEST.items()),
    ([1.7e9, 1.7e9 + 1, 1.7e9 + 40], "float32", "skips whole numbers above 16777216: "),
    ([0.0, -(2.0**24) - 2], "float32", "skips whole numbers above 16777216: "),
    (np.arange(2**24 - 3, 2**24 + 1), "float32", None),
    ([2**20 + 0.1, 2**20 + 0.4], "float32", "values are 0.125 apart at 1048576.4: phases may be off by 0.062 radians"),
    ([2**20 + 0.5, 0.0], "float32", None),  # no odd multiple of the spacing
    ([2**20 + 0.125, 3.125], "float32", None),  # a fraction of another binade shows what is meant
    ([2**20, 1.3], "float32", "values are 0.125 apart at 1048576: "),
    (np.arange(0.0, 1000.0, 0.1), "float32", None),
    (np.arange(0.0, 127.0, 0.1), "float16", None),
    (np.arange(0.0, 130.0, 0.1), "float16", "values are 0.125 apart at 129.875: phases may be off by 0.062 radians"),
    (np.arange(0.25, 512.0, 0.25), "float16", None),
    (np.arange(0.5, 128.0), "bfloat16", None),
    (np.arange(0.0, 20.0, 0.1), "bfloat16", "values are 0.125 apart at 19.875: "),
    ([200.0, 0.5], "bfloat16", "values are 1 apart at 200: phases may be off by 0.5 radians"),
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
    calls += [lambda x, at: rope.scores(x, x, at, at)]
    calls += [lambda x, at: RotaryEmbedding(rope)(x[None, None], x[None, None], at)] if name == "torch" else []
    for call in calls * 2:  # the second time it may be prepared
        with pytest.warns(PrecisionWarning, match=said) if said else contextlib.nullcontext() as seen:
            call(x, at)
        assert said is None or seen[0].filename == __file__
    with pytest.warns(PrecisionWarning) if re.search("skips|above", str(said)) else contextlib.nullcontext():
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


# -- graphs ------------------------------------------------------------------------------------------------------------


OPTIONS = {  # tokens of queries, and arguments beside positions
    "counted": lambda n, at: (n, {"offset": 3}),
    "positions": lambda n, at: (n, {"positions": at + 7}),
    "offsets": lambda n, at: (n, {"offset": torch.tensor([3, 9])}),
    "a query beside a cache": lambda n, at: (1, {"positions": at[-1:], "k_positions": at}),
}


@pytest.mark.parametrize("layout", ["bhtd", "bthd"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", OPTIONS)
def test_graphs_give_what_calls_do(dynamic, kind, place, layout):
    """In one graph and without warnings: two operators, or torch's own where there is a table."""
    torch._dynamo.reset()
    module, order, graphs = made(kind, layout=layout), (-3, -2) if layout == "bthd" else (-2, -2), []
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend=noting(graphs))
    for n in (5, 9, 130) if dynamic else (5,):
        at = torch.arange(n) if module.axes == 1 else torch.arange(n * module.axes).reshape(n, -1)
        tokens, options = OPTIONS[place](n, at)
        options = options if module.axes == 1 else {"positions": at} | options
        q = features(2, 4, tokens, WIDTH).transpose(*order)
        k = features(2, 2, n, WIDTH, seed=1).transpose(*order)
        for found, expected in zip(compiled(q, k, **options), module(q, k, **options), strict=True):
            assert_close(found, expected, roundings=4.0, equal=layout == "bhtd" and kind in OPERATORS and tokens == n)
    if tokens == n:
        assert len(graphs) == 1
        assert kind not in OPERATORS or graphs[0].count(True) == OPERATORS[kind]


OPERATORS = {"half": 2, "sets": 2, "learned both": 2, "tables": 0}  # of ours in a graph: for queries, and for keys


def noting(graphs):
    """A compiler that notes which functions of each graph are operators of rfrope, and runs it as it is."""

    def backend(graph, inputs):
        called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        graphs.append(["rfrope" in target for target in called])
        return graph.forward

    return backend


class NotAsked:
    """What is not to be asked for."""

    def __getattr__(self, name):
        pytest.fail(f"asked for {name}")


@pytest.mark.parametrize("name", sparse(OPERATORS, lambda name: name in ("half", "learned both")))
def test_a_graph_asks_neither_array_api_compat_nor_for_the_list_of_modules(name, monkeypatch):
    """The list grows while PyTorch's compiler imports, and goes through it."""
    torch._dynamo.reset()
    helpers = importlib.import_module("array_api_compat.common._helpers")
    monkeypatch.setattr(helpers, "sys", NotAsked())
    for each in (array_api_compat, helpers):
        monkeypatch.setattr(each, "array_namespace", lambda *_, **__: pytest.fail("array-api-compat was asked"))
    module, guards = made(name), []

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


@pytest.mark.parametrize("dynamic", sparse([False, True], lambda dynamic: not dynamic))
@pytest.mark.parametrize(
    "kind", sparse([kind for kind in FIXED if "polar" not in kind], lambda kind: kind in ("half", "sets"))
)
def test_one_token_in_a_graph_is_turned_by_torchs_own_operators(kind, dynamic):
    """So that they are fused with their neighbours; exactly, wherever the token is. By ours in float64."""
    module = made(kind)
    for dtype, bound in ((torch.float32, 4.0), (torch.float64, 64.0), (torch.bfloat16, 1.0)):
        torch._dynamo.reset()
        graphs = []
        compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend=noting(graphs))
        q, k = features(2, 4, 1, WIDTH, dtype=dtype), features(2, 2, 1, WIDTH, dtype=dtype, seed=1)
        for at in ([0, 0, 0], [131_071, 7, 3], [-5, 2**40 + 1, 9], [2**53 - 1, 1, 0]):
            positions = torch.tensor(at[:1] if module.axes == 1 else [at])
            own = torch.stack([positions, positions + 3])
            for options in ({"positions": positions}, {"positions": own, "offset": -2}):
                for found, exact in zip(compiled(q, k, **options), module(q, k, **options), strict=True):
                    error = float((found.double() - exact.double()).abs().max() / exact.double().abs().max())
                    assert error <= bound * torch.finfo(dtype).eps
        for offset in (70_000, torch.tensor([3, 2**40])) if module.axes == 1 else ():
            torch.testing.assert_close(compiled(q, k, offset=offset), module(q, k, offset=offset), rtol=0.01, atol=0.01)
        assert {any(graph) for graph in graphs} == {dtype == torch.float64}


@pytest.mark.parametrize("name", OPERATORS)
def test_exported(name):
    module, length = made(name), torch.export.Dim("length", min=2, max=400)
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
@pytest.mark.parametrize(
    ("name", "dynamic"), [("half", True), ("sets", False), ("learned both", True), ("tables", False)]
)
def test_inductor_without_warnings(name, dynamic, monkeypatch):
    """Warnings are errors, here as everywhere; forwards, backwards, and one token; under CI inductor asks for more."""
    monkeypatch.setenv("CI", "true")
    torch._dynamo.reset()
    module, at = made(name), torch.tensor([[131], [7]])
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
LAST = rfrope.Rope(FREQUENCIES, source={"turns_last": True})
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
    "no positions": ({"rope": KINDS["vectors"][0]}, (X, X), r"positions is None; expected \(..., tokens, 3\)"),
    "positions of one axis": ({"rope": KINDS["vectors"][0]}, (X, X, torch.arange(1)), r"positions has shape \(1,\)"),
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
