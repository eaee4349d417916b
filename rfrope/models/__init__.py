"""The RoPE of models: read from their configs, in every dialect; what engines make of it, and what a model holds."""

from rfrope.models.auditing import Audit, Finding, audit
from rfrope.models.comparing import Comparison, EngineUse, Place, compare
from rfrope.models.configs import from_config
from rfrope.models.conformance import conformance
from rfrope.models.engines import ENGINES, Engine
from rfrope.models.rope_parameters import from_rope_parameters

__all__ = [
    "ENGINES",
    "Audit",
    "Comparison",
    "Engine",
    "EngineUse",
    "Finding",
    "Place",
    "audit",
    "compare",
    "conformance",
    "from_config",
    "from_rope_parameters",
]
