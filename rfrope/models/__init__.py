"""The RoPE of models: read from their configs, in every dialect."""

from rfrope.models.configs import from_config
from rfrope.models.conformance import conformance
from rfrope.models.rope_parameters import from_rope_parameters

__all__ = ["conformance", "from_config", "from_rope_parameters"]
