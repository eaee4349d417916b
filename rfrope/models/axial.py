"""Ropes of several axes: one ladder for each coordinate of an image or a video."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rfrope._core.array import place_for_caller
from rfrope.rotation.provenance import ModelPart, Provenance
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import ladder


def make_axial(
    layout: str, head_dim: int, theta: float, pairing: str | None, model: ModelPart, placed_by: tuple[Any, Any, Any]
) -> Rope:
    """Return the Rope of a vision model by how its class uses a ladder; see ``axial`` of `data.model_types`."""
    axes = 3 if layout == "thirds" else 2
    if layout != "thirds" and head_dim % 4:
        raise ValueError(f"head_dim is {head_dim}; expected a multiple of 4: two axes, and two features a block")
    sections: tuple[int, ...] | None = (head_dim // axes // 2,) * axes
    one = ladder(head_dim // axes // 2 * 2, theta)
    if layout == "alternating":  # Pixtral deals one ladder to both axes in turn
        spanning = ladder(head_dim, theta)
        host = np.concatenate([spanning[0::2], spanning[1::2]])
    elif layout in ("columns first", "columns in turn"):  # blocks of the second axis stand before those of the first
        sections, host = None, np.zeros((2 * one.size, 2))
        in_turn = layout == "columns in turn"
        host[0::2, 1] = host[1::2, 0] = one if in_turn else 0.0
        if not in_turn:
            host[: one.size, 1] = host[one.size :, 0] = one
    else:
        host = np.tile(one, axes)
    if layout == "turns":  # DINOv3: whole turns over coordinates from -1 to 1
        host = host * (2.0 * math.pi)
    return Rope(
        place_for_caller(host, *placed_by),
        pairing=pairing,
        head_dim=head_dim,
        sections=sections,
        source=Provenance(rope_parameters={"rope_type": "axial", "rope_theta": theta}, model=model),
    )
