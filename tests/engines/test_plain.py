"""Libraries that take frequencies as they are."""

import importlib.metadata
import importlib.util
from typing import Any

import numpy as np
import pytest
from packages import installed, script_at
from ropes import CONTEXT, KINDS, SEEDS, check, features

from rfrope import Rope, engines

pytestmark = pytest.mark.filterwarnings("ignore")  # of these libraries


def by_rotary_embedding_torch(rope: Rope, x: Any, positions: Any) -> Any:
    library = installed("rotary_embedding_torch")
    omega = x.new_tensor(engines.export(rope, "json")["frequencies"])
    rotary = library.RotaryEmbedding(rope.rotary_dim, custom_freqs=omega, cache_if_possible=False)
    return library.apply_rotary_emb(rotary.forward(positions.double()).detach(), x)


def by_x_transformers(rope: Rope, x: Any, positions: Any) -> Any:
    library = installed("x_transformers.x_transformers")
    rotary = library.RotaryEmbedding(rope.rotary_dim).double()
    rotary.inv_freq = x.new_tensor(engines.export(rope, "npz")["frequencies"])
    return library.apply_rotary_pos_emb(x[None], rotary(positions)[0], rope.attention_factor)[0]


def by_torchtune(rope: Rope, x: Any, positions: Any) -> Any:
    """By its file of positions alone: the package asks for a torchao that does not load with every torch."""
    if importlib.util.find_spec("torchtune") is None:
        pytest.skip("torchtune is not installed")
    path = importlib.metadata.distribution("torchtune").locate_file("torchtune/modules/position_embeddings.py")
    with script_at(path) as module:
        rotary = module.RotaryPositionalEmbeddings(rope.rotary_dim, max_seq_len=CONTEXT)
    rotary.theta = x.new_tensor(engines.export(rope, "json")["frequencies"]).float()
    rotary.build_rope_cache(CONTEXT)
    return rotary(x.float().swapaxes(0, 1)[None], input_pos=positions[None])[0].swapaxes(0, 1)


@pytest.mark.parametrize(
    ("turned", "kind", "atol"),
    [
        (by_rotary_embedding_torch, "interleaved, no factor", 1e-6),
        (by_x_transformers, "interleaved", 1e-10),
        (by_torchtune, "interleaved, no factor", None),  # phases in float32, as MLX has them
    ],
)
def test_a_library_turns_by_frequencies_as_the_rope_does(turned, kind, atol):
    torch = installed("torch")
    for seed in SEEDS:
        rope = KINDS[kind](seed)
        x, positions = features(rope)
        got = turned(rope, torch.from_numpy(x).double(), torch.from_numpy(positions)).numpy()
        if atol is None:
            check(got, x, positions, rope, "MLX")
        else:
            np.testing.assert_allclose(got, rope.rotate(x.astype(np.float64), positions), rtol=0.0, atol=atol)


def test_everything_that_belongs_to_frequencies():
    rope = Rope([1.0, 0.02], pairing="interleaved", head_dim=6, attention_factor=1.25, context=(40,))
    exported = engines.export(rope, "json")
    assert exported == {
        "units": "radians per unit of position", "pairing": "interleaved", "head_dim": 6, "rotary_dim": 4,
        "attention_factor": 1.25, "context": 40, "sections": None, "interleaved_sections": False,
        "frequencies": [1.0, 0.02],
    }  # fmt: skip
    assert set(exported) < set(engines.export(rope, "npz"))
