"""Libraries that take frequencies as they are."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import numpy as np
import pytest
from packages import installed, script_at
from ropes import BLOCKS, CONTEXT, KINDS, SEEDS, check, features

from rfrope import Rope, exports

pytestmark = pytest.mark.filterwarnings("ignore")  # of these libraries


def test_rotary_embedding_torch():
    torch = installed("torch")
    library = installed("rotary_embedding_torch")
    for seed in SEEDS:
        rope = KINDS["interleaved, no factor"](seed)
        x, positions = features(rope)
        omega = torch.tensor(exports.export(rope, "json")["frequencies"], dtype=torch.float64)
        rotary = library.RotaryEmbedding(2 * BLOCKS, custom_freqs=omega, cache_if_possible=False)
        phases = rotary.forward(torch.from_numpy(positions).double()).detach()
        got = library.apply_rotary_emb(phases, torch.from_numpy(x).double()).numpy()
        np.testing.assert_allclose(got, rope.rotate(x.astype(np.float64), positions), atol=1e-6)


def test_x_transformers():
    torch = installed("torch")
    library = installed("x_transformers.x_transformers")
    for seed in SEEDS:
        rope = KINDS["interleaved"](seed)
        x, positions = features(rope)
        rotary = library.RotaryEmbedding(rope.rotary_dim).double()
        rotary.inv_freq = torch.from_numpy(exports.export(rope, "npz")["frequencies"])
        phases, _ = rotary(torch.from_numpy(positions))
        x_64 = torch.from_numpy(x).double()[None]
        got = library.apply_rotary_pos_emb(x_64, phases, rope.attention_factor)[0].numpy()
        np.testing.assert_allclose(got, rope.rotate(x.astype(np.float64), positions), atol=1e-10)


def test_torchtune():
    """Its file of positions alone: the package asks for a torchao that does not load with every torch."""
    torch = installed("torch")
    if importlib.util.find_spec("torchtune") is None:
        pytest.skip("torchtune is not installed")
    path = importlib.metadata.distribution("torchtune").locate_file("torchtune/modules/position_embeddings.py")
    with script_at(path) as module:
        rotary_of = module.RotaryPositionalEmbeddings
    for seed in SEEDS:
        rope = KINDS["interleaved, no factor"](seed)
        x, positions = features(rope)
        rotary = rotary_of(rope.rotary_dim, max_seq_len=CONTEXT)
        rotary.theta = torch.tensor(exports.export(rope, "json")["frequencies"], dtype=torch.float32)
        rotary.build_rope_cache(CONTEXT)
        got = rotary(torch.from_numpy(x.swapaxes(0, 1))[None], input_pos=torch.from_numpy(positions)[None])
        check(got[0].numpy().swapaxes(0, 1), x, positions, rope, "MLX")


def test_everything_that_belongs_to_frequencies():
    rope = Rope([1.0, 0.02], pairing="interleaved", head_dim=6, attention_factor=1.25, context=(40,))
    exported = exports.export(rope, "json")
    assert exported == {
        "units": "radians per unit of position", "pairing": "interleaved", "head_dim": 6, "rotary_dim": 4,
        "attention_factor": 1.25, "context": 40, "sections": None, "interleaved_sections": False,
        "frequencies": [1.0, 0.02],
    }  # fmt: skip
    assert set(exported) < set(exports.export(rope, "npz"))
