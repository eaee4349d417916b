"""Switches of a model's attention by which layers turn or not, against the layers of its config."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rfrope.models.configs import perceives
from rfrope.models.layering import list_layers, show_layers

_NUMBER = re.compile(r"\.(\d+)\.")
_SWITCH = "use_rope"  # of the attention of Llama 4, SmolLM3 and Mistral Large 4 in transformers
_UNSEEN = "which layers turn{}; rfrope.models.probe of the model runs them"


def check_switches(what: Any, config: Any) -> tuple[list[str], list[str], str]:
    """Return faults of switches, what was looked at, and in words what a config says of layers that was not.

    Parameters
    ----------
    what : object
        As in `audit`; only modules have layers.
    config : object
        As in `audit`: nothing is known of layers without a config.
    """
    config = getattr(what, "config", None) if config is None else config
    has_layers = isinstance(config, Mapping | str | os.PathLike) or hasattr(config, "to_dict")
    if not has_layers or not hasattr(what, "named_modules"):
        return [], [], ""
    layers = list_layers(config)
    meant = layers.ropes_by_layer
    if meant is None:
        return [], [], _UNSEEN.format(" by which RoPE") if len(layers.ropes) > 1 else ""
    found = _find_switches(what)
    wrong = {
        turns: tuple(i for i in sorted(found) if i < len(meant) and found[i] == turns != (meant[i] is not None))
        for turns in (True, False)
    }
    faults = [f"on in {show_layers(wrong[True])}, which the config has without RoPE"] if wrong[True] else []
    faults += [f"off in {show_layers(wrong[False])}, which the config has with RoPE"] if wrong[False] else []
    unseen = ""
    if len(layers.ropes) > 1:
        unseen = _UNSEEN.format(" by which RoPE")
    elif None in meant and {*range(len(meant))} - found.keys():
        unseen = _UNSEEN.format("")
    return faults, [_SWITCH] if found else [], unseen


def _find_switches(model: Any) -> dict[int, bool]:
    """Return what attention says of itself, by the number of its layer; nothing of parts that see or hear."""
    found: dict[int, bool] = {}
    for path, part in model.named_modules():
        value, number = vars(part).get(_SWITCH), _NUMBER.search(f".{path}.")
        if number and isinstance(value, bool | int | np.integer) and not perceives(path):
            found[int(number[1])] = bool(value)
    return found
