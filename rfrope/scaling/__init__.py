"""Context extension: the schemes that models use to reach further than they were trained, as maps on frequencies.

Each scheme is a function of given frequencies; `from_rope_parameters` reads the dict of a config that names one.
"""

from rfrope.scaling.parameters import from_rope_parameters
from rfrope.scaling.scaled import Scaled
from rfrope.scaling.schemes import dynamic_ntk, linear, llama3, longrope, ntk, proportional, yarn

__all__ = [
    "Scaled",
    "dynamic_ntk",
    "from_rope_parameters",
    "linear",
    "llama3",
    "longrope",
    "ntk",
    "proportional",
    "yarn",
]
