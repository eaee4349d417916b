"""transformers itself: its classes against the rule, and with exported schemes."""

from typing import Any

import numpy as np
import pytest
from engine_configs import CASES, CONTEXT, SCHEMES, check_table, read_by_transformers, report
from packages import installed

import rfrope
from rfrope import engines

pytestmark = pytest.mark.filterwarnings("ignore")


def modeling(model_type: str) -> Any:
    return installed(f"transformers.models.{model_type}.modeling_{model_type}")


@pytest.mark.parametrize("made", CASES, indirect=True)
def test_configs(made):
    torch = installed("torch")
    kind = made["model_type"]
    rotary = getattr(modeling(kind), f"{kind.capitalize()}RotaryEmbedding")(read_by_transformers(made))
    found = report("transformers", made)
    blocks = found.rope.frequencies.size
    tables = rotary(torch.zeros(1), torch.arange(CONTEXT)[None])
    check_table(np.concatenate([one[0, :, :blocks] for one in tables], axis=-1), found, CONTEXT)


@pytest.mark.parametrize("scheme", ["default", "linear", "yarn", "llama3"])
@pytest.mark.parametrize(("base", "head_dim"), [(1e4, 96), (5e6, 128)])
def test_a_scheme_that_stays_is_within_the_stated_rounding(scheme, base, head_dim):
    """At the far end of a long context, where float32 phases are off most."""
    torch = installed("torch")
    transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
    values = (SCHEMES[scheme] or {"rope_type": "default"}) | {"rope_theta": base}
    rope = rfrope.models.from_rope_parameters(values, head_dim=head_dim, max_position_embeddings=131072)
    exported, lost = engines.export(rope, "transformers"), engines.rounding(rope, "transformers")
    config = transformers.LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, **exported)
    positions = np.arange(131072 - 4096, 131072)
    cos, _ = modeling("llama").LlamaRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(positions)[None])
    missed = np.max(np.abs(cos[0, :, : head_dim // 2].numpy() - rope.table(positions)[0])) / rope.attention_factor
    assert lost.scheme == scheme
    assert missed <= lost.table <= 20.0 * missed
