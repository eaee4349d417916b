"""Context extension: the schemes that models use to reach further than they were trained, as maps on frequencies.

Each scheme is a function of given frequencies; `records` has one record for each, from which
`rfrope.models.from_rope_parameters` reads the dict of a config.
"""

from rfrope.scaling.registry import Scheme, names, records
from rfrope.scaling.schemes import dynamic_ntk, linear, llama3, longrope, ntk, proportional, yarn

__all__ = ["Scheme", "dynamic_ntk", "linear", "llama3", "longrope", "names", "ntk", "proportional", "records", "yarn"]
