"""Rotary models of diffusers by their own configs, against diffusers' own tables; those of transformers: test_parts."""

import numpy as np
import pytest
from conftest import rows

import rfrope
from rfrope import models

WAN = {"_class_name": "WanTransformer3DModel", "attention_head_dim": 128, "rope_max_seq_len": 1024}
QWEN = {"_class_name": "QwenImageTransformer2DModel", "axes_dims_rope": [16, 56, 56], "use_layer3d_rope": False}
LTX = {"_class_name": "LTXVideoTransformer3DModel", "attention_head_dim": 64, "num_attention_heads": 32}
FLUX = {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, 56, 56], "attention_head_dim": 128}


@pytest.mark.parametrize(("config", "shape", "sections", "ends"), rows("models/axial.json", "diffusers"))
def test_rotary_models_of_diffusers(config, shape, sections, ends):
    (rope,) = rfrope.from_config(config)
    assert ([*rope.frequencies.shape], rope.pairing) == (shape, "interleaved")
    assert rope.sections == (sections and tuple(sections))
    assert (rope.frequencies.flat[0], rope.frequencies.flat[-1]) == pytest.approx(tuple(ends))
    assert rope.source.model.pairing_from == "known"
    with pytest.raises(ValueError, match=r"^yarn is .*, and is not read for model_type"):
        rfrope.from_config(config | {"yarn": {"factor": 2.0}})


@pytest.mark.parametrize(("config", "base"), rows("models/axial.json", "bases"))
def test_classes_of_diffusers_read_their_own_rope_theta(config, base):
    (rope,) = rfrope.from_config(config)
    assert rope.source.rope_parameters == {"rope_type": "axial", "rope_theta": base}
    assert rope.source.model.remarks == ()


@pytest.mark.parametrize(("config", "kind", "said"), rows("models/axial.json", "refused"))
def test_keys_that_classes_of_diffusers_do_not_read_are_refused(config, kind, said):
    with pytest.raises({"ValueError": ValueError, "TypeError": TypeError}[kind], match=f"^{said}"):
        rfrope.from_config(config)
    assert models.check(config).verdict.startswith("cannot tell: ")


def test_other_classes_of_diffusers_are_refused_by_their_keys():
    with pytest.raises(ValueError, match=r"^axes_dims_rope is "):
        rfrope.from_config(FLUX | {"_class_name": "AnotherTransformer2DModel"})


def as_phases(rope, positions, cos, sin):
    """Check a table with every column twice against a Rope's phases at positions (S, k)."""
    vectors = rope.vectors.reshape(-1, positions.shape[-1])
    cos, sin = (np.asarray(one)[..., ::2].reshape(len(positions), -1) for one in (cos, sin))
    found = cos + 1j * sin
    np.testing.assert_allclose(found, np.exp(1j * positions @ vectors.T), atol=1e-6 * max(1.0, np.abs(vectors).max()))


def test_their_tables_are_those_of_diffusers():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    from diffusers.models.transformers.transformer_flux import FluxPosEmbed
    from diffusers.models.transformers.transformer_ltx import LTXVideoRotaryPosEmbed
    from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    grid = np.stack(np.meshgrid(*map(np.arange, (2, 3, 4)), indexing="ij"), axis=-1).reshape(-1, 3)
    (flux,), (wan,), (ltx,), (qwen,) = map(rfrope.from_config, (FLUX, WAN, LTX, QWEN))
    as_phases(flux, grid, *FluxPosEmbed(theta=10000, axes_dim=[16, 56, 56])(torch.tensor(grid)))
    as_phases(wan, grid, *WanRotaryPosEmbed(128, (1, 1, 1), 1024)(torch.zeros(1, 1, 2, 3, 4)))
    made = LTXVideoRotaryPosEmbed(2048)(torch.zeros(1, 1), 2, 3, 4, (1.0, 64.0, 64.0))
    as_phases(ltx, 2.0 * grid * [1 / 20, 1 / 32, 1 / 32] - 1.0, *made)
    table = QwenEmbedRope(theta=10000, axes_dim=[16, 56, 56]).pos_freqs[:5].numpy()  # all axes at one position
    np.testing.assert_allclose(table, np.exp(1j * np.outer(np.arange(5), qwen.frequencies)), atol=2e-6)
