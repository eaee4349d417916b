"""What the module for PyTorch takes in a call: positions at their extremes, layouts, lengths and widths of features."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
from campaign import sparse
from conftest import library
from hypothesis import given, settings
from hypothesis import strategies as st

import rfrope
from rfrope._core.angles import PrecisionWarning

torch = library("torch").module
from rfrope.layers.torch import RotaryEmbedding  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # of torch, about its own use of it
    pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning"),
]

FREQUENCIES = rfrope.geometric(4)
WIDTH = 2 * len(FREQUENCIES)
SETS = rfrope.sample("gaussian(scale=32)", 4, rng=0, heads=2)


def features(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


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


def tensors(draw, shape):
    """Positions or offsets of a shape, in a dtype, at numbers that it may hold or not."""
    dtype = getattr(torch, draw(st.sampled_from(DTYPES)))
    values = draw(st.lists(st.sampled_from(NUMBERS), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    made = torch.tensor(values, dtype=torch.int64).to(dtype).reshape(shape)
    return draw(st.sampled_from([made, made.tolist(), made.numpy() if dtype != torch.bfloat16 else made]))


@st.composite
def calls(draw):
    """Queries, keys, positions and offset: few layouts, so that some come again."""
    tokens, heads, width = (
        draw(st.sampled_from([1, 2])),
        draw(st.sampled_from([1, 2, 4])),
        draw(st.sampled_from([0, 2])),
    )
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    q = features(1, heads, tokens, WIDTH + width, dtype=dtype)
    k = features(1, draw(st.sampled_from([1, 2])), tokens, WIDTH + width, dtype=dtype, seed=1)
    if draw(st.integers(0, 9)) == 0:
        q = draw(
            st.sampled_from(
                [
                    q[0, 0],
                    q.tolist(),
                    q.float().numpy(),
                    q.mT.contiguous().mT,
                    q.clone().requires_grad_(),
                    q.to("meta"),
                    torch.nested.nested_tensor([q[0]]),
                ]
            )
        )
    shape = draw(st.sampled_from([(tokens,), (1, tokens), (tokens, 2), (1, tokens, 2), (3,), ()]))
    positions = None if draw(st.booleans()) else tensors(draw, shape)
    offset = draw(
        st.sampled_from([*NUMBERS, 2**63, -(2**63), -(2**63) - 1, 2**70, -(2**70), 10**400, True, 2.5, None, "5"])
    )
    offset = tensors(draw, draw(st.sampled_from([(), (1,)]))) if draw(st.integers(0, 4)) == 0 else offset
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
@settings(max_examples=150, derandomize=True)
@given(sequence=st.lists(calls(), min_size=1, max_size=6))
def test_a_call_gives_what_a_fresh_module_gives(name, sequence):
    """Bit for bit, errors and warnings included."""
    used = MAKERS[name]()
    for call in [*sequence, *sequence]:
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
        (torch.tensor(2**63 + 1, dtype=torch.uint64), r"offset holds integers from 2\*\*63 on"),
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
    with pytest.raises(ValueError, match=r"positions holds integers from 2\*\*63 on"):
        module(q, q, torch.tensor([2**63 + 1, 0, 1], dtype=torch.uint64))
    assert module(q, q, torch.tensor([0, 1, 2], dtype=torch.uint64), 2**63 - 3)[0].isfinite().all()


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("order", ["bhtd", "bthd"])
def test_nested_features_are_refused_after_dense_ones(order, layout):
    module, q = RotaryEmbedding(FREQUENCIES, layout=order), features(2, 2, 2, WIDTH)
    nested = torch.nested.nested_tensor([q[0], q[1, :1]], layout=layout)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^q is a nested tensor"):
            module(nested, q)
        with pytest.raises(TypeError, match=r"^k is a nested tensor"):
            module(q, nested)
        module(q, q)


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


# -- positions of 16 bits ----------------------------------------------------------------------------------------------


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
        if rfrope._core.array.has_host_values(x):
            call(x, near)  # a warning would be an error


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_module_takes_positions_of_16_bits_as_the_function_does(dtype):
    q, at = features(1, 2, 3, WIDTH), torch.tensor([0, 1, 200]).to(getattr(torch, dtype))
    for module in (RotaryEmbedding(FREQUENCIES), RotaryEmbedding(FREQUENCIES, True)):
        for _ in range(3):
            assert torch.equal(module(q, q, at)[1].detach(), rfrope.rotate(q, at, FREQUENCIES))
        with pytest.warns(PrecisionWarning, match=f"positions has dtype {dtype}"):
            module(q, q, at + 4000)
        with pytest.warns(PrecisionWarning, match=f"offset has dtype {dtype}"):
            module(q, q, offset=at[2] + 4000)


# -- layouts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [*MAKERS][:5])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_tokens_before_heads(of, compiled):
    """The other order of the same features, for every kind of module."""
    torch._dynamo.reset()
    module = MAKERS[of]()
    other = RotaryEmbedding(module.rope, "both" if of == "learned" else False, module.max_positions, layout="bthd")
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


def test_an_error_guesses_the_other_layout_where_shapes_show_it():
    hint = r"; if features are \(..., tokens, heads, d\), layout='bthd'$"
    module, x = RotaryEmbedding(FREQUENCIES), features(2, 20, 4, WIDTH)
    with pytest.raises(ValueError, match=r"q has 4 tokens, but k has 2; expected the same, or k_positions" + hint):
        module(x, x[..., :2, :])
    with pytest.raises(ValueError, match=r"positions do not broadcast.*" + hint):
        module(x, x, torch.arange(20))
    with pytest.raises(ValueError, match=r"positions do not broadcast.*" + hint):
        RotaryEmbedding(FREQUENCIES, max_positions=64)(x, x, torch.arange(20))
    with pytest.raises(ValueError, match=r"has 2 sets of frequencies, but k has 20 heads;.*" + hint):
        RotaryEmbedding(SETS)(x[..., :2, :], x[..., :2, :])
    with pytest.raises(ValueError, match=r"has 3 sets of frequencies, but x has 20 heads;.*multiple of 3" + hint):
        RotaryEmbedding(np.ones((3, 4, 1))).rotate(x[..., :3, :])
    other = RotaryEmbedding(FREQUENCIES, layout="bthd")
    back = r"in the order of layout 'bhtd'; if features are \(..., heads, tokens, d\), layout='bhtd'$"
    with pytest.raises(ValueError, match=back):
        other(x, x, torch.arange(4))
    with pytest.raises(ValueError, match=r"positions do not broadcast.*counted from the right[^;]*$"):
        module(x, x, torch.arange(7))
    with pytest.raises(ValueError, match=r"q has shape \(4, 8\); expected \(..., tokens, heads, d\)"):
        other(x[0, 0], x[0, 0])
    with pytest.raises(ValueError, match=r"layout is 'bdht'; did you mean 'bhtd'\? Expected one of 'bhtd', 'bthd'"):
        RotaryEmbedding(FREQUENCIES, layout="bdht")
    assert repr(other).endswith("layout='bthd')")


# -- queries or keys alone, and keys of another length -----------------------------------------------------------------


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


def test_alone_they_are_checked_as_together():
    module, x = RotaryEmbedding(FREQUENCIES), features(1, 3, 2, WIDTH)
    with pytest.raises(
        ValueError, match="x has 12 features, but heads have 8; expected 8: to turn 8 of 12, give head_dim"
    ):
        module.rotate(features(1, 3, 2, 12))
    with pytest.raises(ValueError, match="x and the phases from positions do not broadcast"):
        module.rotate(x, torch.arange(5))
    with pytest.raises(ValueError, match="k and the phases from k_positions do not broadcast"):
        module(x, x, k_positions=torch.arange(5))
    with pytest.raises(TypeError, match="k_positions has dtype bool"):
        module(x, x, k_positions=torch.tensor([True, False]))
    with pytest.raises(TypeError, match="keys is 1; expected True or False"):
        module.rotate(x, keys=1)
    with pytest.raises(ValueError, match="k_positions go from 0 to 9; expected 0 to 7"):
        MAKERS["tables"]()(x, x, k_positions=torch.tensor([0, 9]))
    with warnings.catch_warnings(action="ignore"):
        nested = torch.nested.nested_tensor([x[0], x[0]])
    with pytest.raises(TypeError, match="x is a nested tensor; expected a dense one"):
        module.rotate(nested)


# -- widths ------------------------------------------------------------------------------------------------------------


def test_features_are_as_wide_as_was_said():
    """What is wider would be left unturned in part without a word."""
    wide, narrow = features(1, 2, 3, 2 * WIDTH), features(1, 2, 3, WIDTH)
    for module in (
        RotaryEmbedding(FREQUENCIES),
        RotaryEmbedding(rfrope.Rope(FREQUENCIES)),
        RotaryEmbedding(rfrope.Rope(FREQUENCIES, head_dim=WIDTH)),
        RotaryEmbedding(FREQUENCIES, head_dim=WIDTH),
        RotaryEmbedding(FREQUENCIES, "both"),
        torch.compile(RotaryEmbedding(FREQUENCIES), backend="eager"),
    ):
        torch._dynamo.reset()
        for _ in range(2):
            with pytest.raises(
                Exception, match="q has 16 features, but heads have 8; expected 8: to turn 8 of 16, give"
            ):
                module(wide, wide)
            module(narrow, narrow)
    with pytest.raises(ValueError, match="k has 16 features, but heads have 8"):
        RotaryEmbedding(FREQUENCIES)(narrow, wide)
    for module in (
        RotaryEmbedding(FREQUENCIES, head_dim=2 * WIDTH),
        RotaryEmbedding(rfrope.Rope(FREQUENCIES, head_dim=2 * WIDTH)),
        RotaryEmbedding(rfrope.Rope(FREQUENCIES, head_dim=2 * WIDTH), head_dim=2 * WIDTH),
    ):
        turned = module(wide, wide)[0]
        assert torch.equal(turned[..., WIDTH:], wide[..., WIDTH:])
        assert torch.equal(turned[..., :WIDTH], module(wide[..., :WIDTH], wide[..., :WIDTH])[0])
        with pytest.raises(ValueError, match="q has 12 features, but heads have 16; expected 16, or the 8 that turn"):
            module(wide[..., :12], wide[..., :12])
    with pytest.raises(
        ValueError, match="head_dim is 16, but the Rope has head_dim=8; expected the same, or one alone"
    ):
        RotaryEmbedding(rfrope.Rope(FREQUENCIES, head_dim=WIDTH), head_dim=2 * WIDTH)
    with pytest.raises(ValueError, match="head_dim is 6; expected a whole number from 8"):
        RotaryEmbedding(FREQUENCIES, head_dim=6)


def test_a_number_of_features_is_their_ladder():
    """As rotary-embedding-torch and others take it."""
    for number in (8, np.int64(8)):
        module = RotaryEmbedding(number)
        np.testing.assert_array_equal(module.rope.frequencies, rfrope.geometric(4))
    x = features(1, 2, 3, WIDTH)
    assert torch.equal(module(x, x)[0], RotaryEmbedding(rfrope.geometric(4))(x, x)[0])
    with pytest.raises(ValueError, match="rope is 7; expected an even number of features, or a Rope or frequencies"):
        RotaryEmbedding(7)
    with pytest.raises(ValueError, match="rope is 0; expected a whole number from 2"):
        RotaryEmbedding(0)
    with pytest.raises(TypeError, match="rope is True; expected a whole number"):
        RotaryEmbedding(True)
    assert "head_dim=16" in repr(RotaryEmbedding(8, head_dim=16))
    assert dataclasses.replace(module.rope, context=8).head_dim == 8
