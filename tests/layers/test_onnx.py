"""Models with rfrope's rotation as files of ONNX, run by onnxruntime: exact at far positions, and without rfrope."""

import numpy as np
import pytest
from campaign import campaign
from conftest import library

import rfrope

torch = library("torch").module
pytest.importorskip("onnxscript", reason="onnxscript is not installed, by which PyTorch writes files of ONNX")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
import torch_modules  # noqa: E402
from torch_modules import features  # noqa: E402

from rfrope.layers.torch import RotaryEmbedding  # noqa: E402

pytestmark = [campaign, pytest.mark.filterwarnings("ignore")]  # of torch and onnxscript, about their own use of others

FREQUENCIES = rfrope.geometric(8)


class Rotated(torch.nn.Module):
    """A function of rfrope as a model calls it."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, positions):
        return self.function(x, positions)


def by_table(x, positions):
    cos, sin = rfrope.rotation_table(positions, FREQUENCIES)
    return rfrope.rotate_by_table(x, cos, sin)


def check(model, inputs, others, dynamic=None):
    """Export a model, run it on inputs that it has not seen, and compare with its own results."""
    program = torch.onnx.export(model.eval(), inputs, dynamo=True, dynamic_shapes=dynamic, verbose=False)
    assert "rfrope" not in {node.domain for node in program.model.graph}
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for given in (inputs, *others):
        named = dict(zip([each.name for each in session.get_inputs()], (each.numpy() for each in given), strict=True))
        expected = model(*given)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for found, wanted in zip(session.run(None, named), expected, strict=True):
            eps = torch.finfo(wanted.dtype).eps
            np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=0, atol=2 * eps * float(wanted.abs().max()))


KINDS = ["half", "interleaved", "partial", "sets", "learned both", "learned polar of heads", "tables"]


@pytest.mark.parametrize("layout", ["bhtd", "bthd"])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_module_is_exported(kind, tokens, layout):
    q, k = features(1, 4, tokens, 32), features(1, 2, tokens, 32)
    q, k = (q, k) if layout == "bhtd" else (q.transpose(1, 2), k.transpose(1, 2))
    far = [(q, k, torch.arange(tokens) + start) for start in ((7, 500) if kind == "tables" else (131_071, 2**40))]
    check(torch_modules.made(kind, layout=layout), (q, k, torch.arange(tokens)), far)


@pytest.mark.parametrize("program", [False, True])
@pytest.mark.parametrize("offset", [-1, 30, -33])
def test_positions_beyond_the_tables_are_refused_as_by_the_module(program, offset):
    """ONNX's Gather would count -1 from the end."""
    module, at = RotaryEmbedding(FREQUENCIES, max_positions=32), torch.arange(3)
    inputs = features(1, 4, 3, 16), features(1, 2, 3, 16), at
    made = torch.onnx.export(torch.export.export(module, inputs) if program else module, inputs, dynamo=True)
    session = runtime.InferenceSession(made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    q, k, places = [each.name for each in session.get_inputs()]
    given = {q: inputs[0].numpy(), k: inputs[1].numpy()}
    np.testing.assert_allclose(session.run(None, given | {places: at.numpy() + 29})[0], module(*inputs[:2], at + 29)[0])
    with pytest.raises(ValueError, match=r"positions go from .*; expected 0 to 31"):
        module(*inputs[:2], at + offset)
    with pytest.raises(Exception, match=r"Gather.*out of data bounds"):
        session.run(None, given | {places: at.numpy() + offset})


FUNCTIONS = {
    "rotate": lambda x, at: rfrope.rotate(x, at, FREQUENCIES),
    "a shift and a scale": lambda x, at: rfrope.rotate(x, at, FREQUENCIES, shift=0.3, scale=1.1, inverse=True),
    "Rope.rotate": lambda x, at: rfrope.Rope(FREQUENCIES, pairing="interleaved").rotate(x, at),
    "rotate_by_phases": lambda x, at: rfrope.rotate_by_phases(x, at[:, None] * torch.asarray(FREQUENCIES)),
    "rotate_by_table": by_table,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in FUNCTIONS), ("rotate", "float64"), ("a shift and a scale", "float16")],
)
def test_functions_are_exported(name, dtype):
    x = features(2, 3, 20, dtype=getattr(torch, dtype))
    for at in (torch.arange(3), torch.tensor([0.5, 3.25, -7.0], dtype=torch.float64)):
        check(Rotated(FUNCTIONS[name]), (x, at), [(x, at + 131_071)])
