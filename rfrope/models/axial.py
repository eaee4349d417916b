"""Ropes of several axes: one ladder for each coordinate of an image or a video."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rfrope._core.arguments import positive, whole
from rfrope.data.model_types import read_table
from rfrope.rotation.provenance import ModelPart, Provenance
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import ladder

# what is known of diffusers' rotary models, by the ``_class_name`` of their configs
DIFFUSERS: Mapping[str, Mapping[str, Any]] = read_table("diffusers")


def make_axial(layout: str, head_dim: int, theta: float, pairing: str | None, model: ModelPart) -> Rope:
    """Return the Rope of a vision model by how its class uses a ladder; see ``axial`` of `data.model_types`."""
    axes = 3 if layout == "thirds" else 2
    if axes == 2 and head_dim % 4:
        raise ValueError(f"head_dim is {head_dim}; expected a multiple of 4: two axes, and two features a block")
    one = ladder(head_dim // axes // 2 * 2, theta)
    host = np.tile(one, axes)
    sections: tuple[int, ...] | None = (one.size,) * axes
    if layout in ("columns first", "columns in turn"):  # blocks of the second axis stand before those of the first
        both = np.multiply.outer(np.eye(2)[::-1], one).swapaxes(1, 2)
        host, sections = (both if layout == "columns first" else both.swapaxes(0, 1)).reshape(-1, 2), None
    elif layout == "alternating":  # Pixtral deals one ladder to both axes in turn
        host = ladder(head_dim, theta).reshape(-1, 2).T.ravel()
    elif layout == "turns":  # DINOv3: whole turns over coordinates from -1 to 1
        host = host * (2.0 * math.pi)
    source = Provenance(rope_parameters={"rope_type": "axial", "rope_theta": theta}, model=model)
    return Rope(host, pairing=pairing, head_dim=head_dim, sections=sections, source=source)


def make_diffusers(held: Mapping[str, Any], pairing: str | None, model: ModelPart) -> Rope:
    """Return the Rope of a diffusers config: one ladder for each axis, or in LTX one over all heads for all axes."""
    entry = DIFFUSERS[model.model_type]
    theta = positive("rope_theta", held.get("rope_theta", entry["rope_theta"]))
    sizes = ("attention_head_dim", "num_attention_heads")
    width, heads = (whole(key, held.get(key, entry.get(key, 1)), 1) for key in sizes)
    if "num_attention_heads" in entry:  # LTX: axes in turn, with blocks that stand still before them
        if width % 2:
            raise ValueError(f"attention_head_dim is {width}; expected an even number")
        ladder_of_all = theta ** np.linspace(0.0, 1.0, width * heads // 6) * (math.pi / 2.0)
        turning = (ladder_of_all[:, None, None] * np.eye(3)).reshape(-1, 3)
        flat = np.zeros((width * heads // 2, 3))
        flat[len(flat) - len(turning) :] = turning
        host, sections = flat.reshape(heads, width // 2, 3), None
    else:
        side = width // 6 * 2  # Wan's rows and columns; frames have the rest
        widths = held.get(entry.get("axes", ""), entry.get("widths", [width - 2 * side, side, side]))
        widths = [whole(f"{entry.get('axes')}[{i}]", one, 2) for i, one in enumerate(widths)]
        host = np.concatenate([ladder(one, theta) for one in widths])
        width, sections = sum(widths), tuple(one // 2 for one in widths)
    model = replace(model, note=entry.get("note", ""), qk_head_dim=width)
    source = Provenance(rope_parameters={"rope_type": "axial", "rope_theta": theta}, model=model)
    return Rope(host, pairing=pairing or "interleaved", head_dim=width, sections=sections, source=source)
