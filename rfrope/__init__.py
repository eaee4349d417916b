"""rfrope: kernel engineering for rotary position embeddings.

Choose a shift-invariant kernel Phi, draw the frequencies that realise it, rotate q and k with them on any array
library, and see the attention score's mean and variance proven: ``E S = (q . k) Phi(lag)``.

Conventions: frequencies are radians per unit of position, lags are KEY minus QUERY, rotations are counter-clockwise,
and the backend comes from the arrays.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rfrope import (
        analysis,
        bochner,
        designs,
        exports,
        frequencies,
        heads,
        kernels,
        layers,
        models,
        moments,
        montecarlo,
        plotting,
        rotation,
        scaling,
        storage,
        validation,
    )
    from rfrope._core.threads import threads
    from rfrope.designs import design, sample
    from rfrope.frequencies import arithmetic, axial, geometric, golden_gate, mixed, mrope
    from rfrope.kernels import Kernel, kernel
    from rfrope.models import from_config
    from rfrope.moments import blocks_for_error, expected_score, score_variance
    from rfrope.montecarlo import estimate_kernel, estimate_scores
    from rfrope.rotation import (
        Rope,
        block_coefficients,
        convert_pairing,
        rotate,
        rotate_by_phases,
        rotate_by_table,
        rotation_table,
        scores,
        sinusoidal,
    )
    from rfrope.storage import load, save
    from rfrope.validation import validate

__version__ = "0.1.0"

# Everyday names and where they live, imported when first asked for; all others are in these modules.
_HOMES = {
    "rotation": (
        *("Rope", "block_coefficients", "convert_pairing", "rotate", "rotate_by_phases", "rotate_by_table"),
        *("rotation_table", "scores", "sinusoidal"),
    ),
    "designs": ("design", "sample"),
    "frequencies": ("arithmetic", "axial", "geometric", "golden_gate", "mixed", "mrope"),
    "kernels": ("Kernel", "kernel"),
    "models": ("from_config",),
    "moments": ("blocks_for_error", "expected_score", "score_variance"),
    "montecarlo": ("estimate_kernel", "estimate_scores"),
    "storage": ("load", "save"),
    "validation": ("validate",),
    "_core.threads": ("threads",),
}
_MODULES = (
    "analysis",
    "bochner",
    "exports",
    "heads",
    "layers",
    "plotting",
    "scaling",
    *(home for home in _HOMES if "." not in home),
)
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Kernel",
    "Rope",
    "analysis",
    "arithmetic",
    "axial",
    "block_coefficients",
    "blocks_for_error",
    "bochner",
    "convert_pairing",
    "design",
    "designs",
    "estimate_kernel",
    "estimate_scores",
    "expected_score",
    "exports",
    "frequencies",
    "from_config",
    "geometric",
    "golden_gate",
    "heads",
    "kernel",
    "kernels",
    "layers",
    "load",
    "mixed",
    "models",
    "moments",
    "montecarlo",
    "mrope",
    "plotting",
    "rotate",
    "rotate_by_phases",
    "rotate_by_table",
    "rotation",
    "rotation_table",
    "sample",
    "save",
    "scaling",
    "score_variance",
    "scores",
    "sinusoidal",
    "storage",
    "threads",
    "validate",
    "validation",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rfrope.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rfrope' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"rfrope.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
