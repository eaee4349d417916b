"""rfrope: kernel engineering for rotary position embeddings.

Choose a shift-invariant kernel Phi, draw the frequencies that realise it, rotate q and k with them on any array
library, and see the attention score's mean and variance proven: ``E S = (q . k) Phi(lag)``.

Conventions: frequencies are radians per unit of position, lags are KEY minus QUERY, rotations are counter-clockwise,
and the backend comes from the arrays.
"""

from rfrope import analysis, bochner, heads, kernels, plotting, scaling
from rfrope._threads import threads
from rfrope.axes import axial, golden_gate, mixed, mrope
from rfrope.configs import ModelRope, from_config
from rfrope.embedding import shift_matrix, sinusoidal
from rfrope.frequencies import arithmetic, from_wavelengths, geometric, pixel, xpos_scales
from rfrope.kernels import Kernel, kernel
from rfrope.moments import Band, blocks_for_error, expected_score, mean_kernel_band, relative_error, score_variance
from rfrope.montecarlo import Estimate, ScoreEstimate, estimate_kernel, estimate_scores
from rfrope.rotation import (
    block_coefficients,
    convert_pairing,
    from_complex,
    phases,
    rotate,
    rotate_by_phases,
    rotate_by_table,
    rotation_table,
    scores,
    to_complex,
)
from rfrope.sampling import Optimised, optimise, sample
from rfrope.scaling import Scaled, from_rope_parameters
from rfrope.storage import FrequencySet, load, save
from rfrope.validation import Validation, validate

__version__ = "0.1.0"

__all__ = [
    "Band",
    "Estimate",
    "FrequencySet",
    "Kernel",
    "ModelRope",
    "Optimised",
    "Scaled",
    "ScoreEstimate",
    "Validation",
    "analysis",
    "arithmetic",
    "axial",
    "block_coefficients",
    "blocks_for_error",
    "bochner",
    "convert_pairing",
    "estimate_kernel",
    "estimate_scores",
    "expected_score",
    "from_complex",
    "from_config",
    "from_rope_parameters",
    "from_wavelengths",
    "geometric",
    "golden_gate",
    "heads",
    "kernel",
    "kernels",
    "load",
    "mean_kernel_band",
    "mixed",
    "mrope",
    "optimise",
    "phases",
    "pixel",
    "plotting",
    "relative_error",
    "rotate",
    "rotate_by_phases",
    "rotate_by_table",
    "rotation_table",
    "sample",
    "save",
    "scaling",
    "score_variance",
    "scores",
    "shift_matrix",
    "sinusoidal",
    "threads",
    "to_complex",
    "validate",
    "xpos_scales",
]
