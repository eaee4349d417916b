"""Other people's rotary embeddings, run live beside ours: ONNX, lucidrains' package, and models of transformers.

None of these libraries is in the extra "test": what is missing is skipped.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import numpy as np
import pytest

import rfrope

RNG = np.random.default_rng(12)


def needed(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


# -- ONNX: the node tests of RotaryEmbedding, operator set 23 ----------------------------------------------------------


@pytest.fixture
def node_tests(monkeypatch):
    """Name, attributes, inputs and the expected output of every test that the ONNX package carries."""
    needed("onnx")
    module = needed("onnx.backend.test.case.node.rotaryembedding")
    found = []

    def expect(node: Any, inputs: Any, outputs: Any, name: str, **_: Any) -> None:
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        found.append((name, attributes, dict(zip(node.input, inputs, strict=True)), outputs[0]))

    monkeypatch.setattr(module, "expect", expect)
    exports = [getattr(module.RotaryEmbedding, n) for n in dir(module.RotaryEmbedding) if n.startswith("export")]
    for export in exports:
        export()
    assert len(found) >= len(exports) >= 8
    return found


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


def test_every_node_test_of_onnx(node_tests):
    seen: set[str] = set()
    for name, attributes, inputs, expected in node_tests:
        got = onnx_rotary(attributes, inputs)
        assert got.dtype == expected.dtype, name
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6, err_msg=name)
        other = onnx_rotary(attributes | {"interleaved": 1 - attributes.get("interleaved", 0)}, inputs)
        assert not np.allclose(other, expected, atol=1e-2), "the other pairing is another result"
        seen |= attributes.keys() | inputs.keys()
    assert seen >= {"interleaved", "num_heads", "rotary_embedding_dim", "position_ids"}
    assert any("position_ids" not in inputs for _, _, inputs, _ in node_tests)


# -- lucidrains' rotary-embedding-torch, interleaved pairs -------------------------------------------------------------


@pytest.fixture
def lucid():
    """The package, torch, and an embedding whose frequencies are float64."""
    torch, package = needed("torch"), needed("rotary_embedding_torch")

    def make(width: int, frequencies: Any, **options: Any) -> Any:
        made = package.RotaryEmbedding(dim=width, custom_freqs=torch.tensor(frequencies), **options)
        assert made.freqs.dtype == torch.float64
        return made

    return types.SimpleNamespace(torch=torch, package=package, make=make)


def features(torch: Any, *shape: int) -> Any:
    return torch.asarray(RNG.standard_normal(shape))


@pytest.mark.parametrize("base", [10_000, 500_000])
@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_the_language_set_of_lucidrains_is_geometric(lucid, base, factor):
    """Also with a rescaled base, which is NTK scaling: ``base * factor ** (d / (d - 2))``."""
    made = lucid.package.RotaryEmbedding(dim=32, theta=base, theta_rescale_factor=factor)
    expected = rfrope.geometric(16, base=base * factor ** (32 / 30))
    np.testing.assert_allclose(made.freqs.detach().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("width", [16, 10])
@pytest.mark.parametrize("offset", [0, 40])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_rotations_of_lucidrains(lucid, width, offset, factor):
    """Partial width, an offset, and interpolated positions, which is linear scaling."""
    w = rfrope.geometric(width // 2)
    x = features(lucid.torch, 2, 3, 9, 16)
    made = lucid.make(width, w, interpolate_factor=factor, cache_if_possible=False)
    expected = made.rotate_queries_or_keys(x, offset=offset).detach()
    positions = lucid.torch.arange(offset, offset + 9)
    got = rfrope.rotate(x, positions, lucid.torch.asarray(w / factor), pairing="interleaved")
    # they divide float32 positions
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=0, atol=1e-12 if factor == 1.0 else 1e-5)


@pytest.mark.parametrize("dims", [(7, 4), (3, 5, 2)])
@pytest.mark.parametrize("kind", ["lang", "pixel"])
def test_axial_sets_of_lucidrains(lucid, dims, kind):
    """Axes one after the other; pixel positions go from -1 to 1 on every axis."""
    torch, one = lucid.torch, rfrope.geometric(4) if kind == "lang" else rfrope.frequencies.pixel(4)
    made = lucid.make(8, one, freqs_for=kind)
    table = made.get_axial_freqs(*dims).detach()
    x = features(torch, 2, *dims, 8 * len(dims))
    expected = lucid.package.apply_rotary_emb(table, x)
    lines = [torch.linspace(-1, 1, n) if kind == "pixel" else torch.arange(n, dtype=torch.float64) for n in dims]
    positions = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1)
    w = rfrope.axial(*[torch.asarray(one)] * len(dims))
    np.testing.assert_allclose(
        rfrope.rotation.phases(positions, w).numpy(), table[..., 0::2].numpy(), rtol=1e-6, atol=1e-6
    )
    got = rfrope.rotate(x, positions, w, pairing="interleaved")
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale_base", [512, 20])
def test_xpos_of_lucidrains(lucid, scale_base):
    """Their centre is half the length of the sequence; queries and keys of one call share it."""
    torch, w, n = lucid.torch, rfrope.geometric(8), 13
    q, k = features(torch, 2, n, 16), features(torch, 2, n, 16)
    made = lucid.make(16, w, use_xpos=True, xpos_scale_base=scale_base)
    expected = [v.detach().numpy() for v in made.rotate_queries_and_keys(q, k)]
    positions, w = torch.arange(n), torch.asarray(w)
    scale = rfrope.frequencies.xpos_scales(positions, 8, scale_base=scale_base, centre=n // 2)
    got = [rfrope.rotate(v, positions, w, pairing="interleaved", scale=s) for v, s in ((q, scale), (k, 1.0 / scale))]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=0, atol=1e-5)
    scores = np.einsum("hid,hjd->hij", got[0].numpy(), got[1].numpy())
    np.testing.assert_allclose(scores, np.einsum("hid,hjd->hij", *expected), rtol=0, atol=1e-4)


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


def text_embedding(name: str, prefix: str, config: str, **options: Any) -> tuple[types.SimpleNamespace, Any]:
    """The rotary embedding of a model's text part, for one head of 128 features and base 1e6."""
    found = model(name)
    parameters = {"rope_type": "default", "rope_theta": 1e6, **options}
    made = getattr(found.configs, config)(
        hidden_size=256, num_attention_heads=2, num_key_value_heads=2, head_dim=128, rope_parameters=parameters
    )
    embedding = getattr(found.code, f"{prefix}RotaryEmbedding")(made)
    if not hasattr(embedding, "recomposition_frequencies"):
        pytest.skip(f"{name} of this transformers puts its axes together inside attention")
    return found, embedding


def ernie(ladder: np.ndarray, sections: tuple[int, ...]) -> np.ndarray:
    """The layout of Ernie 4.5 VL: height and width by turns over the fast blocks, then time, the first axis."""
    fast = sections[0] + sections[1]
    w = rfrope.axial(rfrope.mrope(ladder[:fast], sections[:2], interleaved=True), ladder[fast:]).frequencies
    return w[:, [2, 0, 1]]


M_ROPE = {
    "qwen2_vl": ("Qwen2VL", "Qwen2VLTextConfig", (16, 24, 24), "half", rfrope.mrope, {}),
    "qwen2_5_vl": ("Qwen2_5_VL", "Qwen2_5_VLTextConfig", (16, 24, 24), "half", rfrope.mrope, {}),
    "paddleocr_vl": ("PaddleOCR", "PaddleOCRTextConfig", (16, 24, 24), "half", rfrope.mrope, {}),
    "glm4v": ("Glm4vText", "Glm4vTextConfig", (8, 12, 12), "interleaved", rfrope.mrope, {"partial_rotary_factor": 0.5}),
    "qwen3_vl": (
        "Qwen3VLText", "Qwen3VLTextConfig", (24, 20, 20), "half",
        lambda w, sections: rfrope.mrope(w, sections, interleaved=True), {"mrope_interleaved": True},
    ),
    "qwen3_5": (
        "Qwen3_5Text", "Qwen3_5TextConfig", (11, 11, 10), "half",
        lambda w, sections: rfrope.mrope(w, sections, interleaved=True), {"partial_rotary_factor": 0.5},
    ),
    "ernie4_5_vl_moe": ("Ernie4_5_VLMoeText", "Ernie4_5_VLMoeTextConfig", (22, 22, 20), "interleaved", ernie, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", M_ROPE)
def test_multimodal_rope_of_transformers(name):
    prefix, config, sections, pairing, frequencies, options = M_ROPE[name]
    found, embedding = text_embedding(name, prefix, config, mrope_section=list(sections), **options)
    torch, n_blocks = found.torch, sum(sections)
    w = np.asarray(frequencies(rfrope.geometric(n_blocks, base=1e6), sections))
    positions = RNG.integers(0, 60, (3, 2, 9))  # time, height, width; batch; tokens
    ours = rfrope.rotation_table(np.moveaxis(positions, 0, -1), w)

    def columns(table: Any) -> np.ndarray:
        """Their tables hold each column twice."""
        table = table.numpy()
        return table[..., 0::2] if pairing == "interleaved" else table[..., :n_blocks]

    theirs = embedding(torch.zeros(2, 9, 256), torch.asarray(positions))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(columns(other), one, rtol=0, atol=2e-5)  # float32 phases up to 60
    q, k = features(torch, 2, 2, 9, 128), features(torch, 2, 2, 9, 128)
    turned = found.code.apply_rotary_pos_emb(q, k, *theirs)
    for one, other in zip((q, k), turned, strict=True):
        got = rfrope.rotate(one.numpy(), np.moveaxis(positions, 0, -1)[:, None], w, pairing=pairing)
        np.testing.assert_allclose(other.numpy(), got, rtol=0, atol=2e-4)
    # says which block goes to which axis in numbers that nothing rounds: the ladder's index plus 1000 times the axis
    marks = torch.arange(n_blocks, dtype=torch.float64) + 1000.0 * torch.arange(3)[:, None, None, None]
    put = columns(embedding.recomposition_frequencies(marks.clone()))[0, 0]
    axis = np.argmax(w != 0.0, axis=-1)
    np.testing.assert_array_equal(put // 1000, axis)
    ladder = embedding.inv_freq.numpy()[(put % 1000).astype(int)]
    np.testing.assert_allclose(ladder, np.sum(w, axis=-1), rtol=1e-6)


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


VISION = {
    "qwen2_vl": (
        "Qwen2VLVisionRotaryEmbedding", "Qwen2VLVisionConfig", {"embed_dim": 128, "num_heads": 2},
        lambda: rfrope.axial(*[rfrope.geometric(16)] * 2),
    ),
    "pixtral": (
        "PixtralVisionRotaryEmbedding", "PixtralVisionConfig", {"hidden_size": 128, "num_attention_heads": 2},
        lambda: rfrope.axial(rfrope.geometric(32)[0::2], rfrope.geometric(32)[1::2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VISION)
def test_vision_towers_of_transformers(name):
    """Two axes: Qwen2-VL gives both one ladder, Pixtral gives rows its even and columns its odd frequencies."""
    kind, config, options, make = VISION[name]
    found = model(name)
    if not hasattr(found.code, kind):
        pytest.skip(f"{name} of this transformers has no {kind}")
    made = getattr(found.configs, config)(**options, rope_parameters={"rope_type": "axial", "rope_theta": 10_000.0})
    embedding, torch = getattr(found.code, kind)(made), found.torch
    positions = np.stack(np.meshgrid(np.arange(6), np.arange(9), indexing="ij"), axis=-1).reshape(-1, 2)
    theirs = embedding(torch.zeros(1, 54, 128), torch.asarray(positions))
    for ours, other in zip(rfrope.rotation_table(positions, make()), theirs, strict=True):
        np.testing.assert_allclose(other.numpy(), np.concatenate([ours, ours], axis=-1), rtol=0, atol=3e-6)


# -- sinusoidal embeddings of transformers -----------------------------------------------------------------------------


def test_marian_stacks_all_sines_and_then_all_cosines():
    table = model("marian").code.MarianSinusoidalPositionalEmbedding(40, 16).create_weight()
    got = rfrope.sinusoidal(np.arange(40), rfrope.geometric(8), pairing="half", dtype="float32")
    np.testing.assert_allclose(table.numpy(), got, rtol=0, atol=1e-7)


def test_tensor2tensor_ends_its_ladder_at_one_over_the_base():
    """As M2M-100 and fairseq do: ``base ** (-i / (D - 1))``."""
    table = model("m2m_100").code.M2M100SinusoidalPositionalEmbedding.get_embedding(40, 16)
    ladder = rfrope.geometric(8, base=10_000.0 ** (8 / 7))
    assert ladder[-1] == pytest.approx(1e-4, rel=1e-14)
    got = rfrope.sinusoidal(np.arange(40), ladder, pairing="half")
    np.testing.assert_allclose(table.numpy(), got, rtol=0, atol=1e-5)
