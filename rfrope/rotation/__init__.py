"""Rotary position embedding of vectors: rotation and its inverse, pairings, tables, scores, positions, and `Rope`.

Conventions: a block is two features, paired ``"half"`` (i, i + D, as in Hugging Face and GPT-NeoX) or ``"interleaved"``
(2i, 2i + 1, as in Meta's Llama). `rotate` turns it counter-clockwise by ``phase = position . frequency`` radians and
leaves features beyond the first 2D unchanged. A lag is KEY minus QUERY position.
"""

from rfrope.rotation.pairings import block_coefficients, convert_pairing, from_complex, to_complex
from rfrope.rotation.polar import rotate_polar
from rfrope.rotation.positions import cumulative_phases, grid_positions, mrope_positions, shift_matrix, sinusoidal
from rfrope.rotation.provenance import ModelPart, Provenance
from rfrope.rotation.rerotation import relocate, rerotate
from rfrope.rotation.rope import Rope
from rfrope.rotation.turning import phases, rotate, rotate_by_phases, rotate_by_table, rotation_table, scores

__all__ = [
    "ModelPart", "Provenance", "Rope", "block_coefficients", "convert_pairing", "cumulative_phases", "from_complex",
    "grid_positions", "mrope_positions", "phases", "relocate", "rerotate", "rotate",
    "rotate_by_phases", "rotate_by_table", "rotate_polar", "rotation_table", "scores", "shift_matrix", "sinusoidal",
    "to_complex",
]  # fmt: skip
