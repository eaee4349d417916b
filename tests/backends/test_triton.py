"""The Triton backend as calls reach it: who is served, what is left to others, gradients, operators and graphs."""

import importlib
import subprocess
import types

import numpy as np
import pytest
import triton_device
from conftest import rows
from triton_device import PLACE, assert_rounded, on_device_alone, placed

import rfrope
from rfrope._backends import triton as package
from rfrope._core import dispatch
from rfrope.rotation import turning

if triton_device.MISSING:
    pytest.skip(triton_device.MISSING, allow_module_level=True)

import torch
import triton
from replay import check_replay, trained

from rfrope._backends.torch.rotation import FUNCTIONS

pytestmark = [*triton_device.MARKS, pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")]  # of torch's
ERROR = 6e-7


def uniform(*shape, seed=0):
    return placed(triton_device.uniform(*shape, seed=seed))


OMEGA = placed(torch.from_numpy(rfrope.geometric(4)))
FIVE = torch.arange(5, device=PLACE)


@pytest.fixture
def calls(monkeypatch):
    """Launches of a device that tensors of the CPU stand for."""
    triton_device.stand_in(monkeypatch)
    return triton_device.recorded(monkeypatch)


# -- who is served -----------------------------------------------------------------------------------------------------


def test_tensors_on_a_device_reach_it_first(calls):
    x = uniform(2, 5, 8).float()
    assert dispatch.backend_place(turning.rotated, x, OMEGA) == "triton"
    assert dispatch.backend_place(turning.rotated, x.requires_grad_(), OMEGA) == "triton"
    loops = dispatch.backend_function(turning.rotated, "cpu") is not None
    assert dispatch.backend_place(turning.rotated, np.ones(3)) == ("cpu" if loops else "")
    assert dispatch.backend_place(turning.rotated_by_table, x, OMEGA) in ("torch", "cuda")  # it has none by tables
    rfrope.rotate(x, FIVE, OMEGA)
    assert len(calls) == 1


def test_without_it_others_serve(calls, monkeypatch):
    def check():
        raise ImportError("none here")

    monkeypatch.setattr(package, "check", check)
    x = uniform(2, 5, 8).float()
    assert dispatch.backend_place(turning.rotated, x, OMEGA) == ""
    assert dispatch.backend_place(turning.rotated, x.requires_grad_(), OMEGA) == "torch"
    rfrope.rotate(x, FIVE, OMEGA)
    assert not calls


def test_a_machine_without_a_device_is_refused(monkeypatch):
    for kind in ("cuda", "xpu"):
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)
    with pytest.raises(ImportError, match="finds no device"):
        package.check()
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    reached = []
    driver = types.SimpleNamespace(get_current_target=lambda: reached.append(1))
    monkeypatch.setattr(triton.runtime, "driver", types.SimpleNamespace(active=driver))
    package.check()
    assert reached == [1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: ((9, 0), (6, 1))[i])
    with pytest.raises(ImportError, match=r"compute capability 6\.1; Triton needs 7\.0"):
        package.check()
    monkeypatch.setattr(torch.version, "hip", "7.0")
    package.check()
    monkeypatch.setattr(driver, "get_current_target", lambda: subprocess.run(["no-such-compiler"], check=True))
    with pytest.raises(ImportError, match=r"cannot reach the device: FileNotFoundError: .*no-such-compiler"):
        package.check()
    monkeypatch.setattr(triton, "__version__", "3.3.1+git1")
    with pytest.raises(ImportError, match=r"Triton 3\.3\.1\+git1; expected 3\.4 or later"):
        package.check()


LEFT = {  # to the next backend, or the generic function
    "float64": lambda: (uniform(2, 5, 8), FIVE, OMEGA, {}),
    "many axes": lambda: (uniform(2, 2, 2, 5, 8).float(), FIVE, OMEGA, {}),
    "frequencies of tokens": lambda: (uniform(2, 5, 8).float(), torch.ones(1, device=PLACE), uniform(2, 5, 4, 1), {}),
    "positions with gradients": lambda: (uniform(5, 8).float(), uniform(5).requires_grad_(), OMEGA, {}),
    "shifts of tokens with gradients": lambda: (
        uniform(2, 5, 8).float(),
        FIVE,
        OMEGA,
        {"shift": uniform(2, 5, 4).requires_grad_()},
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_does_not_take_goes_on_to_others(name, calls):
    x, positions, omega, options = LEFT[name]()
    found = rfrope.rotate(x, positions, omega, **options)
    exact = turning.rotated.generic.__globals__["rotate"](x.double(), positions, omega, **options)
    assert not calls
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-7)


def test_where_nothing_is_recorded_gradients_do_not_matter(calls):
    x, positions = uniform(2, 5, 8).float(), uniform(5).requires_grad_()
    with torch.no_grad():
        found = rfrope.rotate(x, positions, OMEGA, shift=uniform(2, 5, 4).requires_grad_())
    assert len(calls) == 1
    assert found.shape == x.shape


def test_phases_and_ropes(calls, monkeypatch):
    monkeypatch.setattr(dispatch, "uses_integer_phases", lambda x: True)  # as on a device
    x, rope = uniform(2, 5, 8).float(), rfrope.Rope(rfrope.geometric(4), pairing="half")
    assert_rounded(rfrope.rotate_by_phases(x, uniform(5, 4)), rfrope.rotate_by_phases(x.double(), uniform(5, 4)), ERROR)
    assert_rounded(rope.rotate(x, FIVE), rope.rotate(x.double(), FIVE), ERROR)
    assert len(calls) == 2
    assert calls[1][1]["frequencies"].dtype == torch.int64  # words that the Rope holds


# -- memory that there is already --------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_pairing", ["half", "interleaved"])
def test_in_place(out_pairing, calls):
    x = uniform(2, 5, 10).float()
    expected = rfrope.rotate(x, FIVE, OMEGA, out_pairing=out_pairing)
    version = x._version
    found = rfrope.rotate(x, FIVE, OMEGA, out_pairing=out_pairing, out=x)
    assert found is x
    assert x._version > version
    assert torch.equal(x, expected)
    assert calls[1][1]["COPIED"] == (0 if out_pairing == "half" else 2)
    beside = torch.zeros(2, 5, 13, dtype=torch.bfloat16, device=PLACE)
    part = beside[..., 1:11].copy_(uniform(2, 5, 10))
    expected = rfrope.rotate(part, FIVE, OMEGA, out_pairing=out_pairing)
    assert torch.equal(rfrope.rotate(part, FIVE, OMEGA, out_pairing=out_pairing, out=part), expected)
    assert not beside[..., [0, 11, 12]].any()


def test_operands_that_the_result_is_written_over(calls):
    x = uniform(5, 8).float()
    positions = x[:, 0]
    expected = rfrope.rotate(x, positions.clone(), OMEGA)
    assert torch.equal(rfrope.rotate(x, positions, OMEGA, out=x), expected)
    assert len(calls) == 2


def test_results_lie_in_memory_as_features_do(calls):
    x = uniform(2, 5, 3, 8).float().transpose(1, 2)
    found = rfrope.rotate(x, FIVE, OMEGA)
    assert found.stride() == x.stride()
    assert rfrope.rotate(x[:, :, ::2], FIVE[:3], OMEGA).is_contiguous() is False


# -- gradients ---------------------------------------------------------------------------------------------------------

GRADIENTS = rows("backends/triton.json", "gradients")  # of features (2, 6, 5, 8): frequencies, shift, scale


def assert_gradients(name, options, derive, error):
    """Hold what is derived of a rotation of float32 features against that of float64, which the kernel leaves alone."""
    omega, shift, scale = (None if one is None else uniform(*one, seed=7) + 1.0 for one in GRADIENTS[name])
    given = {"frequencies": omega, "shift": shift, "scale": scale}
    given = {key: value.requires_grad_() for key, value in given.items() if value is not None}
    positions = placed(torch.randint(0, 99, (5, omega.shape[-1]), generator=torch.Generator().manual_seed(0)))
    found = []
    for dtype in (torch.float32, torch.float64):
        features = uniform(2, 6, 5, 8).to(dtype).requires_grad_()
        found.append(derive(rfrope.rotate(features, positions, **given, **options), [features, *given.values()]))
    for one, exact in zip(*found, strict=True):
        assert one.shape == exact.shape
        torch.testing.assert_close(one.double(), exact, rtol=0, atol=error * float(exact.abs().max()) + 1e-6)


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize(
    "options", [{}, {"inverse": True, "pairing": "interleaved"}, {"out_pairing": "interleaved"}], ids=str
)
def test_gradients_are_those_of_the_generic_function(name, options, calls):
    def derive(turned, inputs):
        return torch.autograd.grad(turned, inputs, uniform(2, 6, 5, 8, seed=5).to(turned.dtype))

    assert_gradients(name, options, derive, 1e-6)
    assert len(calls) == 2  # of float32 features alone: one forwards, one backwards


@pytest.mark.parametrize(
    ("name", "options"),
    [("heads", {}), ("scale", {}), ("heads", {"scale": 1.7}), ("heads", {"scale": 1.7, "inverse": True})],
)
def test_gradients_of_gradients(name, options, calls):
    def derive(turned, inputs):
        first = torch.autograd.grad((turned**2 * torch.arange(8, device=PLACE)).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(one.double().square().sum() for one in first), inputs)

    assert_gradients(name, options, derive, 1e-5)
    assert calls


def test_features_are_kept_for_gradients_of_angles_alone(calls):
    x = uniform(2, 5, 8).float().requires_grad_()

    def kept(frequencies):
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.shape) or t, lambda t: t):
            rfrope.rotate(x, FIVE, frequencies)
        return any(shape.numel() == x.numel() for shape in held)

    assert not kept(OMEGA)
    assert kept(OMEGA.clone().requires_grad_())


def test_gradients_of_no_features_are_zero(calls):
    omega, x = OMEGA.clone().requires_grad_(), torch.ones(2, 0, 8, requires_grad=True, device=PLACE)
    found = torch.autograd.grad(rfrope.rotate(x, FIVE[:0], omega).sum(), (x, omega))
    assert [one.shape for one in found] == [x.shape, omega.shape]
    assert not found[1].any()


MODULES = {"known": False, "both": "both", "factors": "factors", "phases": "phases", "sets": True, "polar": "phases"}


def module_of(name):
    layers = importlib.import_module("rfrope.layers.torch")
    if name == "polar":
        return layers.PolarEmbedding(rfrope.Rope(rfrope.geometric(64), polar=True), learnable="phases").to(PLACE)
    rope = rfrope.sample("gaussian(scale=32)", 32, rng=0, heads=2) if name == "sets" else rfrope.geometric(32)
    return layers.RotaryEmbedding(rope, learnable=MODULES[name]).to(PLACE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("tokens", "offset"), [(100, 2**20), (1, 5)])
@pytest.mark.parametrize("name", MODULES)
def test_modules_turn_and_learn_as_in_float64_on_the_cpu(name, tokens, offset, dtype, calls):
    found, module = [], module_of(name)
    given = [uniform(2, heads, tokens, 64, seed=heads).to(dtype) for heads in (4, 2)]
    for place, kind in ((PLACE, dtype), ("cpu", torch.float64)):
        inputs = [one.to(place, kind).requires_grad_() for one in given]
        turned = module.to(place)(*inputs, offset=offset)
        along = [torch.full_like(one, 0.75) for one in turned]
        found.append([*turned, *torch.autograd.grad(turned, [*inputs, *module.parameters()], along)])
    assert len(calls) == 2
    for number, (one, exact) in enumerate(zip(*found, strict=True)):
        error = 2.0 * torch.finfo(dtype).eps if number < 4 else 2e-5  # sums of gradients are float32
        torch.testing.assert_close(
            one.double().cpu(), exact, rtol=error, atol=error * float(exact.detach().abs().max())
        )


@on_device_alone
def test_a_side_stream_orders_launches_with_what_comes_before():
    stream, x, module = torch.cuda.Stream(), triton_device.uniform(1, 8, 512, 64).bfloat16(), module_of("known")
    with torch.cuda.stream(stream):
        for _ in range(50):
            (found, _) = module(y := x.to(PLACE, non_blocking=True) * 2, y[:, :2])
    stream.synchronize()
    assert_rounded(found, module.cpu()(x.double() * 2, x.double()[:, :2] * 2)[0], ERROR)


@on_device_alone
@pytest.mark.parametrize("name", ["known", "both", "polar"])
@pytest.mark.parametrize("mode", [None, "dynamic", "reduce-overhead"])
def test_a_compiled_module_turns_and_learns_as_it_does_eagerly(name, mode):
    module = module_of(name)
    how = {"mode": mode} if mode == "reduce-overhead" else {"dynamic": mode == "dynamic"}
    graph = torch.compile(module, **how)
    for tokens in (64, 65, 1, 200) if mode == "dynamic" else (64, 64, 64):
        inputs = [uniform(1, heads, tokens, 64).bfloat16().requires_grad_() for heads in (8, 2)]
        for one, other in zip(*(trained(call, module)(*inputs) for call in (graph, module)), strict=True):
            one, other = one.detach().double(), other.detach().double()
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


# -- operators and graphs ----------------------------------------------------------------------------------------------


@pytest.fixture
def rotation():
    return importlib.import_module("rfrope._backends.triton.rotation")


def operands(seed=0):
    q, k = (uniform(2, heads, 5, 8, seed=seed).float() for heads in (4, 2))
    options = (1.5, 3, True, "half", "half", False, False, False)
    return q, k, None, OMEGA[None, None, :, None].clone(), uniform(1, 2, 1, 4), None, *options


@pytest.mark.parametrize("name", ["turn_both", "turn_both_back"])
def test_operators_keep_torchs_rules(name, monkeypatch, rotation):
    """Schemas, and registration of gradients; fake tensors, which the interpreter cannot take, are those of graphs."""
    triton_device.stand_in(monkeypatch)
    given = list(operands())
    if name == "turn_both":
        for place in (0, 1, 3, 4):
            given[place] = given[place].requires_grad_()
    if name == "turn_both_back":
        given = [*operands(1)[:2], *given, [True, True, False]]
    found = torch.library.opcheck(
        getattr(rotation, name), given, test_utils=("test_schema", "test_autograd_registration")
    )
    assert set(found.values()) == {"SUCCESS"}


def test_vmap_of_the_operator(calls, rotation):
    q, k, *others = operands()
    stacks = torch.stack([q, 2.0 * q]), torch.stack([k, 3.0 * k], 1)
    found = torch.func.vmap(lambda a, b: rotation.turn_both(a, b, *others), (0, 1))(*stacks)
    for i, factors in enumerate(((1.0, 1.0), (2.0, 3.0))):
        for one, exact, factor in zip(found, rotation.turn_both(q, k, *others), factors, strict=True):
            torch.testing.assert_close(one[i], factor * exact)


# -- recorded and replayed ---------------------------------------------------------------------------------------------


def inside(operator):
    """What an operator of rfrope is made of."""
    rotation = importlib.import_module("rfrope._backends.triton.rotation")
    own = getattr(rotation, operator._schema.name.split("::")[1], None)
    return FUNCTIONS[operator] if own is None else own._init_fn


def both(learns=True, width=8, tokens=5):
    return [uniform(2, heads, tokens, width, seed=heads).float().requires_grad_(learns) for heads in (4, 2)]


def halved(x):
    return 0.5 * x + 0.25


def moved(at):
    return at + 12_345


ROPE = rfrope.Rope(rfrope.geometric(4), pairing="interleaved", attention_factor=1.25)
AT = [placed(torch.tensor([3, 1, 2**31, 0, 7]))]


def replayed(name):
    """A call, its inputs, what each becomes, and how many launches there are."""
    module = importlib.import_module("rfrope.layers.torch")
    step, omega, phases = both(False, tokens=1), OMEGA.clone().requires_grad_(), uniform(5, 4).float()
    polar = module.PolarEmbedding(rfrope.Rope(rfrope.geometric(8), polar=True), learnable="phases").to(PLACE)
    with torch.no_grad():
        polar.phases -= 1.0
    learned, known = module.RotaryEmbedding(ROPE, learnable="both").to(PLACE), module.RotaryEmbedding(ROPE).to(PLACE)
    return {
        "training": (trained(known), both() + AT, [halved, halved, moved], 2),
        "learning": (trained(learned), both() + AT, [halved, halved, moved], 2),
        "polar": (trained(polar), both() + AT, [halved, halved, moved], 2),
        "counted": (lambda q, k: known(q, k), both(False), [halved, halved], 1),
        "decode": (
            lambda q, k, at: known(q, k, offset=at),
            [*step, placed(torch.tensor(9))],
            [halved, halved, moved],
            1,
        ),
        "each": (
            lambda q, k, at: known(q, k, offset=at),
            [*step, placed(torch.tensor([9, 5]))],
            [halved, halved, moved],
            1,
        ),
        "floats": (lambda q, k, at: known(q, k, at), [*both(False), AT[0].float()], [halved, halved, halved], 1),
        "rope": (lambda x, at: [ROPE.rotate(x, at)], both(False)[:1] + AT, [halved, moved], 1),
        "phases": (lambda x, u: [rfrope.rotate_by_phases(x, u)], [both(False)[0], phases], [halved, halved], 1),
        "frequencies": (
            lambda x, w: torch.autograd.grad(rfrope.rotate(x, AT[0] % 99, w, shift=0.5 * w, scale=w).sum(), (x, w)),
            [both()[0], omega],
            [halved, halved],
            2,
        ),
    }[name]


REPLAYED = ("training", "learning", "polar", "counted", "decode", "each", "floats", "rope", "phases", "frequencies")


@pytest.mark.parametrize("name", REPLAYED)
def test_a_recorded_call_serves_inputs_that_changed(name, calls):
    """Forwards and backwards: nothing of the inputs is in the recording but where they are."""
    call, inputs, changes, launches = replayed(name)
    recording = check_replay(call, inputs, changes, inside)
    assert len(calls) == 3 * launches
    assert len(getattr(recording, "steps", calls)) >= launches
