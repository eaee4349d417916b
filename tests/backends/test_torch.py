"""Operators of torch: gradients of every argument, gradients of those, and one node in a compiled or exported graph."""

import functools
import importlib
import pathlib
import warnings

import numpy as np
import pytest
from campaign import campaign
from conftest import rows
from places import backend

import rfrope
from rfrope._core import dispatch
from rfrope.rotation import rotate_polar, turning

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of torch, about its own use of it

if dispatch.backend_function(turning.rotated, "torch") is None:
    pytest.skip("this PyTorch cannot register operators with gradients", allow_module_level=True)

POSITIONS = torch.asarray([3.0, -1.0, 7.5, 11.0, 0.25], dtype=torch.float64)


def uniform(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


SHAPES = rows("backends/torch.json", "shapes")  # of x, positions, frequencies, shift, scale
OPTIONS = rows("backends/torch.json", "options")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "to half, inverse", "to interleaved, inverse"])
def test_gradients_and_their_gradients(name, options):
    names = ("x", "positions", "frequencies", "shift", "scale")
    shapes = {key: shape for key, shape in zip(names, SHAPES[name], strict=True) if shape is not None}
    values = [uniform(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes.values())]
    fixed = options | ({} if "scale" in shapes else {"scale": 1.7})

    def call(*arguments):
        given = dict(zip(shapes, arguments, strict=True))
        return rfrope.rotate(**given | ({"scale": given["scale"] + 1.0} if "scale" in given else {}), **fixed)

    assert "rfrope_turn" in type(call(*values).grad_fn).__name__
    assert torch.autograd.gradcheck(call, values)
    assert torch.autograd.gradgradcheck(call, values, fast_mode=True)


CALLS = {
    "rotate_by_phases": (rfrope.rotate_by_phases, (uniform(2, 5, 10), uniform(5, 4))),
    "rotate_by_table": (
        lambda *a: rfrope.rotate_by_table(*a, out_pairing="interleaved"),
        (uniform(2, 5, 10), uniform(5, 4), uniform(5, 4, seed=1)),
    ),
    "rotation_table": (lambda p, w, s: rfrope.rotation_table(p, w, shift=s), (POSITIONS, uniform(4), uniform(4))),
    "scores": (
        lambda q, k, w: rfrope.scores(q, k, POSITIONS, POSITIONS, w, shift=w),
        (uniform(3, 5, 8), uniform(5, 8, seed=1), uniform(4)),
    ),
    "sinusoidal": (rfrope.sinusoidal, (POSITIONS, uniform(4))),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_other_functions(name):
    function, values = CALLS[name]
    values = [value.clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(function, values)
    assert torch.autograd.gradgradcheck(function, values, fast_mode=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_of_narrow_features_are_rounded_once(dtype):
    x, g = (uniform(2, 3, 5, 8, seed=i).to(getattr(torch, dtype)) for i in range(2))
    found = []
    for wide in (False, True):
        features, w = (x.double() if wide else x).clone().requires_grad_(), uniform(3, 4, 1).requires_grad_()
        turned = rfrope.rotate(features, POSITIONS[:, None], w, scale=1.5)
        turned.backward(g.to(turned.dtype))
        found.append((features.grad, w.grad))
    (narrow, of_w), (exact, of_w_exact) = found
    assert narrow.dtype == x.dtype
    torch.testing.assert_close(narrow.double(), exact, rtol=torch.finfo(x.dtype).eps, atol=1e-7)
    sums = 1e-12 if dispatch.backend_function(turning.rotated, "cpu") is not None else 1e-5  # float64 in loops
    torch.testing.assert_close(of_w, of_w_exact, rtol=sums, atol=sums)


def test_what_is_kept_for_the_way_back():
    """Features are not, unless angles have gradients: the rotation back needs none."""
    x, w = uniform(2, 5, 8).requires_grad_(), uniform(4)

    def kept(frequencies):
        held = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.shape) or t, lambda t: t):
            rfrope.rotate(x, POSITIONS, frequencies)
        return x.shape in held

    assert not kept(w)
    assert kept(w.clone().requires_grad_())


def operands():
    x, w, at = uniform(2, 5, 8).requires_grad_(), uniform(4, 1).requires_grad_(), torch.arange(5)[:, None]
    return {
        "turn": (x, at, w, uniform(4).requires_grad_(), None, 2.0, "half", "interleaved", True, False),
        "turn_by_table": (x, uniform(5, 4).requires_grad_(), uniform(5, 4), "half", "interleaved"),
        "cos_sin": (POSITIONS[:, None], w, None, False),
    }


@pytest.mark.parametrize("name", ["turn", "turn_by_table", "cos_sin"])
def test_operators_keep_torchs_rules(name):
    """Schemas, fake tensors, registration of gradients and what AOT does, with dynamic shapes."""
    found = torch.library.opcheck(getattr(torch.ops.rfrope, name).default, operands()[name])
    assert set(found.values()) == {"SUCCESS"}


# -- graphs ------------------------------------------------------------------------------------------------------------


FREQUENCIES = rfrope.geometric(4)
CONSTANTS = {
    "tensor": torch.asarray(FREQUENCIES),
    "array": FREQUENCIES,
    "list": FREQUENCIES.tolist(),
    "Rope": rfrope.Rope(FREQUENCIES),
}


@pytest.fixture
def compiled():
    """``compiled(function, backend)`` is the function in a full graph, of a compiler that has compiled nothing."""
    torch._dynamo.reset()
    yield functools.partial(torch.compile, fullgraph=True)
    torch._dynamo.reset()


@pytest.mark.parametrize("form", CONSTANTS)
def test_a_rotation_is_one_node_of_a_full_graph_without_warnings(form, compiled):
    found, x, given = [], uniform(3, 8), CONSTANTS[form]

    def keep(module, inputs):
        found.append([str(node.target) for node in module.graph.nodes if str(node.target).startswith("rfrope")])
        return module.forward

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*torch.jit.*", DeprecationWarning)
        turned = compiled(lambda v: rfrope.rotate(v, [5, 2**53 - 1, -7], given), backend=keep)(x)
    assert torch.equal(turned, rfrope.rotate(x, [5, 2**53 - 1, -7], FREQUENCIES))
    assert found == [["rfrope.turn.default"]]


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        *((rfrope.rotate, one) for one in ("x", "frequencies", "positions")),
        *((rotate_polar, one) for one in ("magnitudes", "frequencies", "shift")),
    ],
)
def test_vmap_inside_a_compiled_graph_and_outside(function, argument, compiled):
    stacks = {"positions": uniform(3, 5), "frequencies": uniform(3, 4), "shift": uniform(3, 4)}
    stacks |= {"x": uniform(3, 2, 5, 8)} if function is rfrope.rotate else {"magnitudes": uniform(3, 2, 5, 4)}
    fixed = {name: stack[0] for name, stack in stacks.items()} | ({"softplus": True} if "magnitudes" in stacks else {})

    def mapped(values):
        return torch.func.vmap(lambda v: function(**fixed | {argument: v}))(values)

    expected = torch.stack([function(**fixed | {argument: v}) for v in stacks[argument]])
    for call in (mapped, compiled(mapped, backend="aot_eager")):
        torch.testing.assert_close(call(stacks[argument]), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dims", [(0, None), (1, None), (2, None), (None, 1), (0, 1), (2, 0)])
def test_vmap_of_the_operator(dims):
    """Over any axis of the features, of frequencies, or both."""
    turn = importlib.import_module("rfrope._backends.torch.rotation")._turn
    x, w = uniform(3, 3, 3, 8), uniform(3, 3, seed=1)[..., None] if dims[1] is not None else uniform(3, 1)
    positions = POSITIONS[:3, None]

    def turned(x, w):
        return turn(x, positions, w, None, None, 1.5, "half", "interleaved", False, False)

    found = torch.func.vmap(turned, dims)(x, w)
    for i, row in enumerate(found):
        one = (v if dim is None else v.select(dim, i) for v, dim in zip((x, w), dims, strict=True))
        assert torch.equal(row, turned(*one))


class Calls(torch.nn.Module):
    """Every function that an operator stands for."""

    def forward(self, x, positions):
        frequencies = rfrope.geometric(4)
        turned = rfrope.rotate(x, positions, frequencies, shift=0.3, scale=1.1, inverse=True)
        turned = rfrope.rotate_by_phases(turned, positions[:, None] * 0.125, pairing="interleaved")
        cos, sin = rfrope.rotation_table(positions, frequencies)
        polar = rotate_polar(x[..., :4], positions, frequencies, softplus=True, shift=-0.3, pairing="interleaved")
        back = rotate_polar(polar, positions, frequencies, inverse=True, pairing="interleaved")
        return rfrope.rotate_by_table(turned, cos, sin, out_pairing="interleaved"), cos, polar, back


@pytest.mark.filterwarnings("ignore")
def test_operators_become_torchs_own_for_the_exporter_to_onnx(monkeypatch):
    """It knows no others and makes numbers of Python float32; results keep their bits."""
    x, positions = uniform(2, 5, 10), POSITIONS + 131_071
    whole = torch.export.export(Calls(), (x, positions), strict=False)
    assert str(whole.graph).count("rfrope.turn") >= 4
    monkeypatch.setattr("rfrope._backends.torch.rotation._is_for_onnx", lambda: True)
    program = torch.export.export(Calls(), (x, positions), strict=False)
    monkeypatch.undo()
    assert "rfrope" not in str(program.graph)
    numbers = [one for node in program.graph.nodes for one in node.args if type(one) is float]
    assert numbers == [float(np.float32(number)) for number in numbers] != []
    for one in (whole, program):
        for found, expected in zip(one.module()(x, positions), Calls()(x, positions), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=4e-15)


@pytest.mark.parametrize(
    "options", [{"positions": 131_071.3}, {"positions": 2, "shift": 0.3}, {"positions": 2.5}], ids=str
)
def test_a_number_loses_nothing_in_a_graph(options, compiled):
    """As a tensor of its own PyTorch would make it float32."""
    x, frequencies = uniform(3, 8), CONSTANTS["tensor"]
    found = compiled(lambda x: rfrope.rotate(x, frequencies=frequencies, **options), backend="eager")(x)
    torch.testing.assert_close(found, rfrope.rotate(x, frequencies=frequencies, **options), rtol=0, atol=1e-15)


@campaign
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ci", ["", "true"])
def test_inductor_gives_the_same_bits(ci, monkeypatch, compiled):
    """Under CI inductor asks for more: it refuses operators that have a decomposition."""
    monkeypatch.setenv("CI", ci)
    x, at = uniform(2, 3, 5, 8).float(), torch.arange(5)

    def turned(x, at):
        return rfrope.rotate(x, at, [1.0, 0.1, 0.01, 0.001])

    assert torch.equal(compiled(turned)(x, at), turned(x, at))


@pytest.mark.parametrize("positions", [2**63, np.array([2**63, 1, 2], np.uint64)])
@pytest.mark.parametrize("gradient", [False, True])
def test_integers_that_torch_has_not_are_refused_by_every_path(positions, gradient):
    x, rope = torch.ones(3, 8, requires_grad=gradient), rfrope.Rope(rfrope.geometric(4))
    for call in (lambda: rfrope.rotate(x, positions, rope.frequencies), lambda: rope.rotate(x, positions)):
        with pytest.raises((TypeError, ValueError), match="positions"):
            call()


def test_large_results_are_in_large_pages():
    """Whether Linux was asked for them stands in its account of this process; what it gives is up to it."""
    if not pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("this system has no transparent large pages")
    backend("cpu", "rotation")
    turned = rfrope.rotate(torch.ones(32, 4096, 128), torch.arange(4096), rfrope.geometric(64))
    middle, asked = turned.data_ptr() + turned.nbytes // 2, None
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first:
            start, end = (int(one, 16) for one in first.split("-"))
            is_here = start <= middle < end
        elif first == "VmFlags:" and is_here:
            asked = "hg" in rest.split()
    assert asked
