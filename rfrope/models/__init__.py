"""The RoPE of models: read from their configs, in every dialect."""

from rfrope.models.configs import from_config
from rfrope.models.rope_parameters import from_rope_parameters

__all__ = ["from_config", "from_rope_parameters"]
