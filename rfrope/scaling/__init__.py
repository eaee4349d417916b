"""Context extension: the schemes with which models reach beyond their training length, as maps on frequencies.

Each scheme is a function of frequencies; `records` returns one record per scheme, by which
`rfrope.models.from_rope_parameters` reads the dict of a config.
"""

from rfrope.scaling.axes import riflex, scale_axis
from rfrope.scaling.registry import Scheme, names, records
from rfrope.scaling.schemes import dynamic_ntk, linear, llama3, longrope, ntk, proportional, yarn

__all__ = [
    "Scheme", "dynamic_ntk", "linear", "llama3", "longrope", "names", "ntk", "proportional", "records",
    "riflex", "scale_axis", "yarn",
]  # fmt: skip
