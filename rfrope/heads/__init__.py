"""Attention heads: attention by position alone, learned shifts, and analysis of real heads."""

from rfrope.heads.atlas import Atlas, AtlasBuilder, HeadEstimate, atlas
from rfrope.heads.offsets import EffectiveOffset, effective_offset
from rfrope.heads.peaks import Peak, offset_of
from rfrope.heads.positional import PositionalAttention, positional_attention, positional_scores, positional_weights
from rfrope.heads.reading import Profile, profile
from rfrope.heads.shifts import aligned_shift, phase_shift, shifted_mean_kernel, shifted_scores

__all__ = [
    "Atlas", "AtlasBuilder", "EffectiveOffset", "HeadEstimate", "Peak", "PositionalAttention", "Profile",
    "aligned_shift", "atlas", "effective_offset", "offset_of", "phase_shift", "positional_attention",
    "positional_scores", "positional_weights", "profile", "shifted_mean_kernel", "shifted_scores",
]  # fmt: skip
