"""Attention heads: attention by position alone, learned shifts, and analysis of real heads."""

from rfrope.heads.atlas import Atlas, AtlasBuilder, HeadEstimate, atlas
from rfrope.heads.offsets import EffectiveOffset, WeightOffset, effective_offset, offset_from_weights
from rfrope.heads.peaks import Alignment, Peak, alignment, offset_of, temperature_for_mass
from rfrope.heads.positional import PositionalAttention, positional_attention, positional_scores, positional_weights
from rfrope.heads.reading import Profile, profile
from rfrope.heads.shifts import (
    ShiftedTerms,
    aligned_shift,
    phase_shift,
    recentred_kernel,
    shifted_mean_kernel,
    shifted_scores,
    shifted_terms,
)

__all__ = [
    "Alignment", "Atlas", "AtlasBuilder", "EffectiveOffset", "HeadEstimate", "Peak", "PositionalAttention",
    "Profile", "ShiftedTerms", "WeightOffset", "aligned_shift", "alignment", "atlas", "effective_offset",
    "offset_from_weights", "offset_of", "phase_shift", "positional_attention", "positional_scores",
    "positional_weights", "profile", "recentred_kernel", "shifted_mean_kernel", "shifted_scores", "shifted_terms",
    "temperature_for_mass",
]  # fmt: skip
