"""Other people's rotary embeddings, run live beside ours: ONNX, and models of transformers.

None of these libraries is in the extra "test": what is missing is skipped.
"""

import importlib
import types
from typing import Any

import numpy as np
import pytest

import rfrope


def needed(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


# -- ONNX: the node tests of RotaryEmbedding, operator set 23 ----------------------------------------------------------


def onnx_rotary(attributes: dict[str, int], inputs: dict[str, np.ndarray]) -> np.ndarray:
    """RotaryEmbedding of ONNX by `rotate_by_table`."""
    x = inputs["input"]
    if x.ndim == 3:  # (batch, tokens, heads * features)
        heads = np.reshape(x, (*x.shape[:2], attributes["num_heads"], -1))
        return np.reshape(onnx_rotary(attributes, inputs | {"input": np.swapaxes(heads, 1, 2)}).swapaxes(1, 2), x.shape)
    cos, sin = inputs["cos_cache"], inputs["sin_cache"]
    if "position_ids" in inputs:
        cos, sin = cos[inputs["position_ids"]], sin[inputs["position_ids"]]
    width = attributes.get("rotary_embedding_dim") or x.shape[-1]
    assert cos.shape[-1] == width // 2
    pairing = "interleaved" if attributes.get("interleaved") else "half"
    return rfrope.rotate_by_table(x, cos[:, None], sin[:, None], pairing=pairing)  # one axis for the heads


def test_every_node_test_of_onnx(monkeypatch):
    """The ONNX package carries name, attributes, inputs and the expected output of each."""
    needed("onnx")
    module, seen = needed("onnx.backend.test.case.node.rotaryembedding"), []

    def expect(node: Any, inputs: Any, outputs: Any, name: str, **_: Any) -> None:
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        inputs, (expected,) = dict(zip(node.input, inputs, strict=True)), outputs
        got = onnx_rotary(attributes, inputs)
        assert got.dtype == expected.dtype, name
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6, err_msg=name)
        other = onnx_rotary(attributes | {"interleaved": 1 - attributes.get("interleaved", 0)}, inputs)
        assert not np.allclose(other, expected, atol=1e-2), "the other pairing is another result"
        seen.append(attributes.keys() | inputs.keys())

    monkeypatch.setattr(module, "expect", expect)
    for export in [name for name in dir(module.RotaryEmbedding) if name.startswith("export")]:
        getattr(module.RotaryEmbedding, export)()
    assert len(seen) >= 8
    assert set().union(*seen) >= {"interleaved", "num_heads", "rotary_embedding_dim", "position_ids"}
    assert any("position_ids" not in names for names in seen)


# -- models of transformers --------------------------------------------------------------------------------------------


def model(name: str) -> types.SimpleNamespace:
    """Modules of a model of transformers, where this version has it."""
    needed("torch")
    needed("transformers")
    folder = f"transformers.models.{name}"
    return types.SimpleNamespace(
        torch=needed("torch"),
        code=needed(f"{folder}.modeling_{name}"),
        configs=importlib.import_module(f"{folder}.configuration_{name}"),
    )


def test_dinov3_of_transformers():
    """Coordinates between -1 and 1, periods ``base ** (4j / d)`` with the 2 pi outside of them."""
    found = model("dinov3_vit")
    torch = found.torch
    config = found.configs.DINOv3ViTConfig(hidden_size=384, num_attention_heads=6, patch_size=16, rope_theta=100.0)
    theirs = found.code.DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 7 * 16, 4 * 16))
    one = rfrope.frequencies.from_wavelengths(100.0 ** (np.arange(16) / 16.0))
    rows, columns = ((2.0 * np.arange(n) + 1.0) / n - 1.0 for n in (7, 4))
    positions = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
    for ours, other in zip(rfrope.rotation_table(positions, rfrope.axial(one, one)), theirs, strict=True):
        np.testing.assert_allclose(other.numpy(), np.concatenate([ours, ours], axis=-1), rtol=0, atol=5e-6)


# -- sinusoidal embeddings of transformers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "base", "atol"),
    [
        ("Marian", 1e4, 1e-7),  # all sines, and then all cosines
        ("M2M100", 10_000.0 ** (8 / 7), 1e-5),  # as tensor2tensor and fairseq: the ladder ends at 1 / base
    ],
)
def test_sinusoidal_tables(name, base, atol):
    code = model({"Marian": "marian", "M2M100": "m2m_100"}[name]).code
    kind = getattr(code, f"{name}SinusoidalPositionalEmbedding")
    table = kind(40, 16).create_weight() if name == "Marian" else kind.get_embedding(40, 16)
    got = rfrope.sinusoidal(np.arange(40), rfrope.geometric(8, base=base), pairing="half")
    np.testing.assert_allclose(table.numpy(), got, rtol=0, atol=atol)
