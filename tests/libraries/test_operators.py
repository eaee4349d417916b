"""Tensors that only torch's own operators serve: how many, how exact, none in float64, none that a CUDA graph refuses.

On the meta device every operator is seen and no value is there to be looked at; those of rfrope are taken apart into
what they run, and memory that is only asked for counts as none. On the CPU, with the compiled loops taken away, the
same code gives numbers.
"""

import importlib
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope._core import array, blocks, dispatch, libraries, turns
from rfrope._core.angles import Angles
from rfrope.rotation import turning

torch = library("torch").module
from replay import Watching, check_replay, trained  # noqa: E402
from torch.utils._python_dispatch import _disable_current_modes  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from rfrope._backends.torch.rotation import FUNCTIONS  # noqa: E402
from rfrope.layers import turning as layers  # noqa: E402
from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding  # noqa: E402

if dispatch.backend_function(turning.rotated, "torch") is None:
    pytest.skip("this PyTorch cannot register operators with gradients", allow_module_level=True)

OMEGA = rfrope.geometric(16)
WIDTH, TOKENS = 2 * len(OMEGA), 40
SETS = rfrope.sample("gaussian(scale=32)", 16, rng=0, heads=2)
FAR = [0, 1, -1, 131_071, 2**24 + 1, 10**9, 2**38 + 3, 2**45 + 9, 2**53 - 1, -(2**53) + 1]

VIEWS = {"view", "expand", "slice", "select", "unsqueeze", "squeeze", "permute", "transpose", "detach", "alias"}
VIEWS |= {"unbind", "as_strided", "_unsafe_view", "_reshape_alias", "t", "split", "unflatten"}
VIEWS |= {"empty", "empty_like", "new_empty", "empty_strided"}
OF_THE_TEST = {"ones"}
FROM_HOST = {"lift_fresh", "_to_copy across devices", "copy_ across devices", "scalar_tensor"}
LOOKS = {"_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero", "masked_select", "unique", "_unique2"}


class Seen(Watching):
    """Notes operators that launch, tensors of float64, and what a graph cannot record."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.wide, self.refused = [], 0, []

    def run_inside(self, function: Any, args: Any, kwargs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatch, "place_of", lambda values: "")
            return super().run_inside(function, args, kwargs)

    def note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = function._schema.name.split("::")[-1]
        tensors = [one for one in tree_leaves((args, kwargs, result)) if isinstance(one, torch.Tensor)]
        if len({one.device for one in tensors}) > 1:
            name += " across devices"
        if name not in VIEWS | OF_THE_TEST:
            self.names.append(name)
        by_mask = name == "index" and any(one.dtype == torch.bool for one in tensors)
        if name in LOOKS | FROM_HOST or name.endswith("across devices") or by_mask:
            self.refused.append(name)
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        self.wide += any(one.dtype == torch.float64 and one.numel() >= TOKENS * len(OMEGA) for one in made)


def meta(*shape: int, dtype: Any = torch.float32, **options: Any) -> Any:
    """Features or numbers that a caller has; not by an operator that is counted."""
    return torch.ones(shape, dtype=dtype, device="meta", **options)


def seen_again(call: Any) -> Seen:
    """What a call runs when its constants have come to the device, by a call before it."""
    with Seen():
        call()
    with Seen() as seen:
        call()
    return seen


def both(module: Any, tokens: int, dtype: Any, *given: Any, learns: bool = True, **options: Any) -> tuple[Any, ...]:
    """Operators of queries and keys of 4 and 2 heads, forwards and, where that is asked for, backwards."""
    q, k = (meta(2, heads, tokens, module.start.qk_head_dim, dtype=dtype, requires_grad=learns) for heads in (4, 2))
    found = module(q, k, *given, **options)
    if learns:
        gradients = [meta(*one.shape, dtype=one.dtype) for one in found]
        found += torch.autograd.grad(found, [q, k, *module.parameters()], gradients)
    return found


ROPES = {
    "half": rfrope.Rope(OMEGA),
    "scaled": rfrope.Rope(OMEGA, attention_factor=1.25),
    "interleaved": rfrope.Rope(OMEGA, pairing="interleaved"),
    "partial": rfrope.Rope(OMEGA[:5], head_dim=WIDTH),
    "sets": rfrope.Rope(SETS),
    "sections": rfrope.Rope(OMEGA, sections=(6, 5, 5)),
}
AT = torch.arange(TOKENS)
PLACES = {name: [] for name in ROPES} | {"sections": [torch.stack([AT, AT // 2, AT * 0], -1).to("meta")]}


# -- how many ----------------------------------------------------------------------------------------------------------

# forwards; and backwards alone
COUNTS = {"half": (15, 8), "scaled": (17, 8), "interleaved": (15, 8), "partial": (17, 10), "sets": (15, 8)}
COUNTS["sections"] = (18, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [TOKENS, 1])
@pytest.mark.parametrize("name", ROPES)
def test_operators_of_the_module(name, tokens, dtype, device):
    """290 when each of q and k formed its phases from floats: cf. the usual formula, 14 and float32 phases."""
    module, at = RotaryEmbedding(ROPES[name]), [one[:tokens] for one in PLACES[name]]
    forwards, backwards = COUNTS[name]
    for learns, most in ((False, forwards), (True, forwards + backwards)):
        seen = seen_again(lambda learns=learns: both(module, tokens, dtype, *at, learns=learns))
        assert len(seen.names) <= most <= 35, " ".join(seen.names)
        assert (seen.wide, seen.refused) == (0, [])


@pytest.mark.parametrize("name", ROPES)
def test_a_module_that_is_moved_takes_its_constants_along(name):
    """A graph that is made before any call would else copy them from the host whenever it runs."""
    with Seen():
        both(RotaryEmbedding(OMEGA), TOKENS, torch.bfloat16)  # constants of the library come to the device
    for module, copies in ((RotaryEmbedding(ROPES[name]).to("meta"), False), (RotaryEmbedding(ROPES[name]), True)):
        with Seen() as seen:
            both(module, TOKENS, torch.bfloat16, *PLACES[name])
        assert bool(seen.refused) == copies, seen.refused


@pytest.mark.parametrize("called", [False, True])
def test_a_compiled_rotation_by_a_rope_finds_its_frequencies_on_the_device_after_one_call(called):
    rope, x, p, seen = rfrope.Rope(OMEGA), meta(5, WIDTH), meta(5, dtype=torch.int64), []
    if called:
        rope.rotate(x, p)

    def backend(graph: Any, inputs: Any) -> Any:
        seen.extend(one.device.type for one in inputs)
        return graph.forward

    torch.compile(lambda x, p: rope.rotate(x, p), backend=backend, fullgraph=True)(x, p)
    assert ("cpu" in seen) == (not called), seen


# forwards, on Apple's devices: by a table from the host, and without memory that is written in parts
NARROW = {"half": 19, "scaled": 21, "interleaved": 19, "partial": 21, "sets": 19, "sections": 18}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ROPES)
def test_operators_of_the_module_without_float64(name, dtype, device, monkeypatch):
    real = array.widest_float
    monkeypatch.setattr(array, "widest_float", lambda xp, on=None: torch.float32 if "meta" in str(on) else real(xp, on))
    monkeypatch.setattr(libraries.TORCH, "wraps_words", lambda device: False)
    monkeypatch.setattr(libraries.TORCH, "has_values", lambda x: True)
    to_host = array.to_host
    monkeypatch.setattr(array, "to_host", lambda x: np.zeros(x.shape) if "meta" in str(x.device) else to_host(x))
    module = RotaryEmbedding(ROPES[name])
    seen = seen_again(lambda: both(module, TOKENS, dtype, *PLACES[name], learns=False))
    assert len(seen.names) <= NARROW[name], " ".join(seen.names)
    assert (seen.wide, seen.refused) == (0, ["lift_fresh", "_to_copy across devices"])  # the table alone


def test_a_table_from_the_host_is_exact(monkeypatch):
    """For positions of 64 bits or floats and a shift, of frequencies of the host and of those that were placed."""
    monkeypatch.setattr(libraries.TORCH, "wraps_words", lambda device: False)
    space = array.named_namespace(torch)
    omega = np.concatenate([OMEGA, [3.0, -1.0, 1e-9, 7e3]])[:, None]
    whole = torch.tensor([0, 1, -1, 65_535, 131_071, 2**24 + 1, 2**31 - 1, -(2**31), 2**52 + 1])[:, None]
    real = array.widest_float
    monkeypatch.setattr(array, "widest_float", lambda xp, on=None: real(xp, on) if xp is np else torch.float32)
    placed = turns.make_integer_turns(omega, space, torch.device("cpu"))
    monkeypatch.undo()
    monkeypatch.setattr(libraries.TORCH, "wraps_words", lambda device: False)
    assert (placed.dtype, hasattr(placed, "turn_words")) == (torch.float32, False)
    for at, shift in ((whole, None), (whole * 0.5, torch.linspace(-3.0, 3.0, len(omega), dtype=torch.float64))):
        exact = turns.cos_sin.generic(Angles(at, torch.from_numpy(omega), shift, space))
        for frequencies in (omega, placed):
            found = turns.cos_sin_float32.generic(Angles(at, frequencies, shift, space))
            assert (found.dtype, found.shape) == (torch.float32, (2, len(at), len(omega)))
            assert float((found - torch.stack(exact)).abs().max()) <= 6e-8


LEARNING = {  # operators forwards and backwards, of a module with parameters
    "frequencies": (lambda: RotaryEmbedding(OMEGA, "frequencies"), 61),
    "float32": (lambda: RotaryEmbedding(OMEGA.astype(np.float32), "frequencies"), 62),
    "factors": (lambda: RotaryEmbedding(OMEGA, "factors"), 65),
    "factors and temperature": (lambda: RotaryEmbedding(OMEGA, ("factors", "temperature")), 83),
    "phases": (lambda: RotaryEmbedding(OMEGA, "phases"), 58),
    "both": (lambda: RotaryEmbedding(OMEGA, "both"), 104),
    "polar": (lambda: PolarEmbedding(rfrope.Rope(OMEGA, polar=True)), 53),
    "polar, both": (lambda: PolarEmbedding(POLAR, "both"), 226),
}


@pytest.mark.parametrize("name", LEARNING)
def test_operators_of_what_is_learned(name, device):
    make, most = LEARNING[name]
    module = make().to("meta")
    seen = seen_again(lambda: both(module, TOKENS, torch.bfloat16))
    assert len(seen.names) <= most, " ".join(seen.names)
    assert (seen.wide, seen.refused) == (0, [])


TURNS: dict[str, Any] = {  # functions of features, positions and a function that puts constants where they are
    "rotate": (lambda x, p, a: rfrope.rotate(x, p, HELD["half"]), 11),
    "by a tensor": (lambda x, p, a: rfrope.rotate(x, p, a(OMEGA)), 23),
    "interleaved to half": (lambda x, p, a: turned(x, p, pairing="interleaved", out_pairing="half"), 11),
    "inverse": (lambda x, p, a: turned(x, p, inverse=True, scale=1.25), 14),
    "shift and scale": (lambda x, p, a: turned(x, p, shift=a(SHIFT), scale=a(1.0 - SHIFT)), 28),
    "in place": (lambda x, p, a: turned(x, p, out=x), 12),
    "into memory": (lambda x, p, a: turned(x, p, out_pairing="interleaved", out=torch.empty_like(x)), 11),
    "partial": (lambda x, p, a: rfrope.rotate(x, p, HELD["partial"]), 12),
    "sets": (lambda x, p, a: rfrope.rotate(x, p[:, None], HELD["sets"]), 11),
    "sections": (lambda x, p, a: rfrope.rotate(x, torch.stack([p, -p, p], -1), HELD["sections"]), 17),
    "floats": (lambda x, p, a: rfrope.rotate(x, (p % 2**30).float() / 4.0, HELD["half"]), 24),
    "small floats": (lambda x, p, a: rfrope.rotate(x, (p % 2**20) * a(np.pi * 2.0**-20), a(OMEGA)), 40),
    "one token": (lambda x, p, a: turned(x[:, 0], p[3]), 11),
    "polar": (lambda x, p, a: polar(x.abs(), p), 11),
    "softplus": (lambda x, p, a: polar(x, p, pairing="interleaved", softplus=True, scale=0.7), 15),
    "polar, inverse": (lambda x, p, a: rfrope.rotation.rotate_polar(x, p, POLAR, inverse=True), 11),
}
SHIFT = np.linspace(-6.0, 0.0, 16)
POLAR = rfrope.Rope(OMEGA, polar=True)
HELD = ROPES | {"partial": rfrope.Rope(OMEGA[:5])}


def turned(x: Any, p: Any, **options: Any) -> Any:
    return rfrope.rotate(x, p, HELD[options.get("pairing", "half")], **options)


def polar(x: Any, p: Any, **options: Any) -> Any:
    return rfrope.rotation.rotate_polar(x[..., : len(OMEGA)], p, POLAR, **options)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_angles_of_float32_are_not_copied_into_float64(kind, device):
    """Kernels and operators read them as they are; 16 bits become float32, and features of float64 widen phases."""
    x, values = meta(2, TOKENS, WIDTH, dtype=torch.bfloat16), meta(TOKENS, len(OMEGA), dtype=kind)
    wide = kind == torch.float64
    calls = [
        lambda: rfrope.rotate_by_phases(x, values),
        lambda: rfrope.rotate(x, meta(TOKENS, dtype=torch.int64), HELD["half"], shift=values, scale=values),
    ]
    for call, (shortest, more) in zip(calls, ((5, 2), (25, 3)), strict=True):
        seen = seen_again(call)
        assert (seen.wide > 0) == wide
        assert len(seen.names) <= shortest + (more if kind != torch.float32 else 0), " ".join(seen.names)
    with Seen() as seen:
        rfrope.rotate_by_phases(x.double(), values)
    assert seen.wide


@pytest.fixture
def device(monkeypatch):
    """The meta device as one with values: there tensors whose gradients nobody wants are no more than memory."""
    real = dispatch.place_of

    def place_of(values: Any) -> str:
        place = real(values)
        return (
            ""
            if place == "torch" and not any(getattr(one, "requires_grad", False) for one in tree_leaves(values))
            else place
        )

    monkeypatch.setattr(dispatch, "place_of", place_of)


@pytest.fixture
def without_loops(monkeypatch):
    """Tensors of the CPU are those of a device that no loop and no kernel serves."""
    real = dispatch.find
    monkeypatch.setattr(dispatch, "find", lambda backend: real(backend) if backend.place == "torch" else None)
    monkeypatch.setattr(dispatch, "_FOUND", {})
    monkeypatch.setattr(turning, "load_fast_path", lambda: None)
    monkeypatch.setattr(layers, "_RECORDING", None)


def features(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("name", TURNS)
def test_operators_of_functions(name, device):
    """148 for `rotate`, when phases were formed from floats."""
    call, most = TURNS[name]
    x, p = meta(2, len(FAR), WIDTH, dtype=torch.bfloat16), torch.tensor(FAR, device="meta")
    held: dict[str, Any] = {}  # constants of the caller

    def device_tensor(values: Any) -> Any:
        with _disable_current_modes():
            return held.setdefault(repr(values), torch.tensor(values, device="meta"))

    seen = seen_again(lambda: call(x, p, device_tensor))
    assert len(seen.names) <= most, " ".join(seen.names)
    assert (seen.wide, seen.refused) == (0, [])


@pytest.mark.filterwarnings("ignore::rfrope._core.angles.PrecisionWarning")  # their bits are what is meant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", TURNS)
def test_turns_by_few_operators_are_exact(name, dtype, without_loops, monkeypatch):
    """Features of float32 within 6e-7, at positions up to 2**53; those of 16 bits are rounded once more."""
    call, _ = TURNS[name]
    x, p = features(2, len(FAR), WIDTH, dtype=dtype), torch.tensor(FAR)
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "uses_integer_phases", lambda x: False)
        exact = call(x.clone().double(), p, torch.tensor)
    found, seen = call(x.clone(), p, torch.tensor), []
    assert found.dtype == dtype
    bound = {torch.float32: 6e-7, torch.float64: 1e-14}.get(dtype, torch.finfo(dtype).eps * 2.0)
    assert float((found.double() - exact).abs().max()) <= bound * max(1.0, float(exact.abs().max()) / 4.0)
    with monkeypatch.context() as patch:
        patch.setattr(turns, "cos_sin_float32", lambda angles: seen.append(1) or turns.cos_sin(angles))
        call(x.clone(), p, torch.tensor)
    assert bool(seen) == (dtype != torch.float64)


def test_what_a_tracer_made_is_not_kept(monkeypatch):
    """A Rope and a module that once turned fake tensors turn real ones afterwards."""
    module, held, device = RotaryEmbedding(OMEGA), {}, torch.device("meta")
    monkeypatch.setattr(turns, "make_integer_turns", lambda omega, xp, device: xp.empty(omega.shape, device=device))
    for kept in (False, True):
        with nullcontext() if kept else torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            made = turns.copy_to_device_of(torch.empty(1).to(device), np.asarray(OMEGA), held)
            assert (type(made) is type(module._moved("words", device)) is torch.Tensor) == kept
        assert bool(module._placed) == bool(held["_placed"]) == kept


def test_what_no_backend_serves_ends(without_loops, monkeypatch):
    """As numbers on the CPU beside features on a device: operators run the generic functions, and not themselves."""
    x, p = features(2, len(FAR), WIDTH), torch.tensor(FAR)
    exact = rfrope.rotate(x.double(), p, OMEGA)
    monkeypatch.setattr(dispatch, "place_of", lambda values: "torch")
    found = rfrope.rotate(x, p, torch.tensor(OMEGA))
    assert float((found.double() - exact).abs().max()) <= 6e-7 * max(1.0, float(exact.abs().max()))


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_positions_and_shifts(dtype, without_loops):
    """Whatever dtype each has: sums over features are float32, as they are on a device."""
    x, module = features(2, 5, WIDTH, dtype=dtype), importlib.import_module("rfrope._backends.torch.rotation")
    found = []
    for narrow in (True, False):
        given = [torch.linspace(-3.0, 40.0, 5), torch.tensor(OMEGA), torch.zeros(16, dtype=torch.float64)]
        given = [one.requires_grad_() for one in given]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_sum_dtype", lambda x, kept=narrow: torch.float32 if kept else torch.float64)
            turned = rfrope.rotate(x if narrow else x.double(), given[0], given[1], shift=given[2])
            found.append(torch.autograd.grad(turned.double().sin().sum(), given))
        assert [one.dtype for one in found[-1]] == [torch.float32, torch.float64, torch.float64]
    for one, exact in zip(*found, strict=True):
        bound = 2e-6 if dtype == torch.float32 else 0.02
        assert float((one - exact).abs().max()) <= bound * float(exact.abs().max())


GRADIENTS = {
    "fixed": lambda: RotaryEmbedding(OMEGA),
    "learned": lambda: RotaryEmbedding(rfrope.Rope(OMEGA, pairing="interleaved", attention_factor=1.2), "frequencies"),
    "sets": lambda: RotaryEmbedding(SETS, "both"),
    "factors": lambda: RotaryEmbedding(OMEGA, ("factors", "phases")),
    "sections": lambda: RotaryEmbedding(ROPES["sections"], "frequencies"),
    "polar": lambda: PolarEmbedding(POLAR, "both"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_the_module_are_those_of_float64(name, without_loops):
    """Sums over heads and tokens are float32, and the far positions that multiply them are whole numbers."""
    module, at = GRADIENTS[name](), torch.arange(50_000, 50_040)
    at = at if module.axes == 1 else torch.stack([at, -at, at], -1)
    found = []
    for dtype in (torch.float32, torch.float64):
        q, k = (features(2, heads, TOKENS, module.start.qk_head_dim).to(dtype).requires_grad_() for heads in (4, 2))
        turned = module(q, k, at)
        assert [one.dtype for one in turned] == [dtype] * 2
        inputs = [q, k, *module.parameters()]
        found.append(torch.autograd.grad(turned, inputs, [(0.1 * one.detach()).cos() for one in turned]))
    for one, exact in zip(*found, strict=True):
        assert float((one - exact).abs().max()) <= 2e-6 * max(1.0, float(exact.abs().max())) * 4.0


@pytest.mark.parametrize("name", ["learned", "sets"])
def test_gradients_of_gradients(name, without_loops):
    """They are there, for all that has them: those of float64 to the precision of float32."""
    module, at, found = GRADIENTS[name](), torch.arange(5), []
    for dtype in (torch.float32, torch.float64):
        q, k = (features(1, heads, 5, WIDTH).to(dtype).requires_grad_() for heads in (4, 2))
        inputs = [q, *module.parameters()]
        turned = sum(one.sin().sum() for one in module(q, k, at))
        once = torch.autograd.grad(turned, inputs, create_graph=True)
        twice = torch.autograd.grad(sum((one.double() ** 2).sum() for one in once), inputs, allow_unused=True)
        found.append([one for one in twice if one is not None])
    assert len(found[0]) == len(found[1]) > 1
    for one, exact in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), exact.double(), rtol=1e-4, atol=1e-4 * float(exact.abs().max()))


def test_what_is_not_finite_is_not_hidden(without_loops):
    """Words cannot say NaN: frequencies that diverged in training are to be seen in what they turn."""
    for value in (math.nan, math.inf):
        module = RotaryEmbedding(OMEGA, "frequencies")
        with torch.no_grad():
            module.frequencies[3] = value
        q = features(1, 2, 5, WIDTH)
        found = module(q, q)[0].detach().isnan().all(-2)
        assert found[..., 3::16].all()
        assert found.sum() == 2 * 2


# -- in a compiled step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROPES)
def test_a_compiled_step_on_a_device_has_no_float64_and_no_library_cosine(name):
    """Nor is it formed for each head: cos and sin are kept in memory before heads multiply them."""
    from torch.fx.experimental.proxy_tensor import make_fx

    module, rope = RotaryEmbedding(ROPES[name]), ROPES[name]
    words = torch.tensor(FAR)[:, None]
    at = words if rope.sections is None else torch.stack([words, -words, words], -1)[:, 0]
    cos, sin = module._cos_sin_by_words(at)
    exact = turns.cos_sin.generic(Angles(at, torch.from_numpy(module._host.copy()), None, array.named_namespace(torch)))
    for found, wanted in zip((cos, sin), exact, strict=True):
        assert found.dtype == torch.float32
        assert found.shape[-2:] == wanted.shape[-2:]
        assert float((found - rope.attention_factor * wanted).abs().max()) <= 1.6e-7
    assert torch.equal(cos[..., 0, :], torch.full_like(cos[..., 0, :], rope.attention_factor))  # at position 0

    q, k = (features(1, heads, 1, rope.head_dim if name == "partial" else WIDTH) for heads in (4, 2))
    step = make_fx(lambda q, k, at: module._turn_both_by_rows(q, k, *module._cos_sin_by_words(at)))(q, k, at[:1])
    seen = [str(node.target) for node in step.graph.nodes]
    assert not [one for one in seen if "aten.cos" in one or "aten.sin" in one]
    made = [value for node in step.graph.nodes for value in tree_leaves(node.meta.get("val"))]
    assert not [one for one in made if isinstance(one, torch.Tensor) and one.dtype == torch.float64]
    last = max(i for i, one in enumerate(seen) if "as_strided" in one)
    assert not [one for one in seen[last:] if "bitwise_and" in one or "aten.abs" in one]


# -- safe to capture ---------------------------------------------------------------------------------------------------


def at(*shape: int) -> Any:
    return meta(*shape, dtype=torch.int64)


def decode(name: str, **options: Any) -> Any:
    return both(MODULES[name], 1, torch.bfloat16, learns=False, **options)


def rotated_with_gradients(dtype: Any) -> Any:
    x, omega = meta(2, 5, WIDTH, requires_grad=True), meta(16, dtype=torch.float64, requires_grad=True)
    p = meta(5, dtype=dtype, requires_grad=dtype.is_floating_point)
    turned, inputs = rfrope.rotate(x, p, omega), [one for one in (x, omega, p) if one.requires_grad]
    return turned, torch.autograd.grad(turned, inputs, meta(*turned.shape))


X = meta(2, 5, WIDTH, dtype=torch.bfloat16)
MODULES = {name: RotaryEmbedding(rope) for name, rope in ROPES.items()}
MODULES |= {"tables": RotaryEmbedding(OMEGA, max_positions=64)}
CAPTURED: dict[str, Any] = {  # beside those whose operators are counted
    "with gradients": lambda: rotated_with_gradients(torch.int64),
    "with gradients of positions": lambda: rotated_with_gradients(torch.float32),
    "by a table": lambda: rfrope.rotate_by_table(X, meta(5, 16), meta(5, 16)),
    "by phases": lambda: rfrope.rotate_by_phases(X, meta(5, 16)),
    "polar, by a shift": lambda: rfrope.rotation.rotate_polar(X, at(5), WIDE_POLAR, softplus=True, shift=meta(32)),
    "scores": lambda: rfrope.scores(X, X, at(5), at(5), HELD["half"]),
    "decode": lambda: decode("half", offset=at()),
    "decode, each": lambda: decode("scaled", offset=at(2)),
    "positions": lambda: decode("interleaved", positions=at(2, 1), offset=3),
    "sets": lambda: decode("sets", offset=at()),
    "sections": lambda: decode("sections", positions=at(2, 1, 3)),
    "tables": lambda: decode("tables", positions=at(1)),
}
WIDE_POLAR = rfrope.Rope(rfrope.geometric(WIDTH), polar=True)


@pytest.mark.parametrize("name", CAPTURED)
def test_calls_can_be_captured_after_one(name, device):
    """No value is read, nothing comes from the host, and no memory but of torch's operators, for what they make."""
    seen = seen_again(CAPTURED[name])
    assert seen.names
    assert not seen.refused, seen.refused


REPLAYED: dict[str, Any] = {  # calls of features, or of queries and keys, and of positions
    "rotate": lambda x, at: [HELD["half"].rotate(x, at)],
    "floats": lambda x, at: [rfrope.rotate(x, 0.25 * at, HELD["half"])],
    "in place": lambda x, at: [rfrope.rotate(x.clone(), at, HELD["half"], inverse=True)],
    "by a shift": lambda x, at: [
        rfrope.rotate(x, at, HELD["half"], shift=0.1 * x[..., :16], scale=1.0 + x[..., 16:] ** 2)
    ],
    "by phases": lambda x, at: [rfrope.rotate_by_phases(x, 7.0 * x[..., :16])],
    "polar": lambda x, at: [rfrope.rotation.rotate_polar(x, at, WIDE_POLAR, softplus=True)],
    "scores": lambda x, at: [rfrope.scores(x, x, at, at, HELD["half"])],
    "training": trained(RotaryEmbedding(OMEGA)),
    "learning": trained(RotaryEmbedding(OMEGA, ("factors", "phases"))),
    "polar learning": trained(PolarEmbedding(POLAR, "frequencies")),
    "tables": trained(RotaryEmbedding(OMEGA, max_positions=2**14)),
}


@pytest.mark.parametrize("name", REPLAYED)
def test_a_recorded_call_serves_inputs_that_changed(name, without_loops):
    """Forwards and backwards: nothing of the inputs is in the recording but where they are."""
    learns = "learning" in name or name in ("training", "tables")
    width = 16 if name == "polar learning" else WIDTH
    inputs = [features(2, heads, 5, width).requires_grad_(learns) for heads in ((4, 2) if learns else (4,))]
    changes = [lambda x: 0.5 * x + 0.25] * len(inputs) + [lambda at: at + 12_345]
    check_replay(REPLAYED[name], [*inputs, torch.tensor([3, 1, 99, 0, 7])], changes, FUNCTIONS.get)


def test_sums_are_in_float32_only_where_operators_run(without_loops, monkeypatch):
    """Loops of the CPU sum in float64, and the generic function beside them does, too; so does what is recorded."""
    x, space = features(2, 4, WIDTH), array.named_namespace(torch)
    arguments = x, x + 1.0, (4, 16), "half", "interleaved", space
    narrow = blocks.shared_coefficients(*arguments)
    recorded = blocks.shared_coefficients(x.clone().requires_grad_(), *arguments[1:])
    monkeypatch.setattr(dispatch, "uses_integer_phases", lambda x: False)
    wide = blocks.shared_coefficients(*arguments)
    for one, other, exact in zip(narrow, recorded, wide, strict=True):
        assert (one.dtype, other.dtype, exact.dtype) == (torch.float32, torch.float64, torch.float64)
        assert torch.equal(other.detach(), exact)
        assert float((one - exact).abs().max()) <= 2e-6 * float(exact.abs().max())
