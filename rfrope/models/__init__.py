"""RoPE of models: read from configs in every dialect, compared between engines, and audited in running models."""

from rfrope.models.auditing import Audit, audit
from rfrope.models.checking import check
from rfrope.models.comparing import Comparison, EngineReport, RopeComparison, compare
from rfrope.models.configs import from_config
from rfrope.models.conformance import conformance
from rfrope.models.diffing import Change, Diff, LayerDiff, diff
from rfrope.models.layering import LayerKind, Layers, list_layers
from rfrope.models.probing import Probe, Rotation, probe
from rfrope.models.relocating import Relocation, RopeRelocation, can_relocate
from rfrope.models.repairing import Repair, repair
from rfrope.models.rope_parameters import from_rope_parameters
from rfrope.models.verdicts import Check, Finding

__all__ = ["Audit", "Change", "Check", "Comparison", "Diff", "EngineReport", "Finding", "LayerDiff"]
__all__ += ["LayerKind", "Layers", "Probe", "Relocation", "Repair", "RopeComparison", "RopeRelocation", "Rotation"]
__all__ += ["audit", "can_relocate", "check", "compare", "conformance", "diff", "from_config", "from_rope_parameters"]
__all__ += ["list_layers", "probe", "repair"]
