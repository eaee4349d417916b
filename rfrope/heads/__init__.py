"""Heads: attention by position alone, learned shifts, and what real heads do."""

import warnings
from typing import Any

from rfrope.heads.from_weights import WeightOffset, offset_from_weights
from rfrope.heads.offsets import EffectiveOffset, effective_offset
from rfrope.heads.peaks import Alignment, Peak, alignment, offset_of
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
from rfrope.heads.temperature import temperature_for_mass

__all__ = [
    "Alignment",
    "EffectiveOffset",
    "Peak",
    "PositionalAttention",
    "Profile",
    "ShiftedTerms",
    "WeightOffset",
    "aligned_shift",
    "alignment",
    "effective_offset",
    "offset_from_weights",
    "offset_of",
    "phase_shift",
    "positional_attention",
    "positional_scores",
    "positional_weights",
    "profile",
    "recentred_kernel",
    "shifted_mean_kernel",
    "shifted_scores",
    "shifted_terms",
    "temperature_for_mass",
]

_RENAMED = {
    "AttentionProfile": "PositionalAttention",
    "attention_profile": "positional_attention",
    "score_profile": "positional_scores",
}


def __getattr__(name: str) -> Any:
    """Find what had another name in 0.1, and say so."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"rfrope.heads.{name} is called {_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
