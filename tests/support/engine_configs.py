"""Configs of models for the rules of engines, and checks of the tables that engines make of them."""

import copy
import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import rows
from packages import installed

from rfrope import models

PLAIN = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 1, "intermediate_size": 64}
PLAIN |= {"vocab_size": 16, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "tie_word_embeddings": False}
CONTEXT, ORIGINAL, BASE, D = 4096, 1024, 500_000.0, 32
KEY = "original_max_position_embeddings"
LISTS = {"short_factor": [1.0 + 0.02 * i for i in range(D)], "long_factor": [1.0 + i for i in range(D)]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, KEY: ORIGINAL}
YARN = {"rope_type": "yarn", "factor": 4.0, KEY: ORIGINAL}
SCHEMES: dict[str, dict[str, Any] | None] = rows("support/engine_configs.json", "schemes")
TYPES = ("llama", "mistral", "qwen2", "qwen3")


def config(model_type: str, scheme: str, form: str = "rope_scaling") -> dict[str, Any]:
    """Return a config in the form of transformers 4 or 5."""
    made = PLAIN | {"model_type": model_type, "max_position_embeddings": CONTEXT}
    if model_type == "qwen3":
        made["head_dim"] = 64
    scaling = copy.deepcopy(SCHEMES[scheme])
    if form == "rope_parameters":
        return made | {"rope_parameters": {"rope_type": "default", "rope_theta": BASE} | (scaling or {})}
    made["rope_theta"] = BASE
    return made if scaling is None else made | {"rope_scaling": scaling | {"type": scaling["rope_type"]}}


def phi3(scheme: str, part: float = 1.0) -> dict[str, Any]:
    lists = {name: values[: int(D * part)] for name, values in LISTS.items()}
    made = PLAIN | {"model_type": "phi3", "max_position_embeddings": CONTEXT, "rope_theta": 10_000.0}
    made |= {KEY: ORIGINAL, "partial_rotary_factor": part}
    return made | ({"rope_scaling": {"type": "longrope", **lists}} if scheme == "longrope" else {})


def advised(*of: str) -> dict[str, Any]:
    """Return a config with the change that a comparison advises."""
    made = config(*of)
    (found,) = models.compare(made, seq_len=CONTEXT).ropes
    assert found.write
    return {key: value for key, value in (made | found.write).items() if value is not None}


GRID = ((i + j, kind, name) for i, kind in enumerate(TYPES) for j, name in enumerate(SCHEMES))
ADVICE = {
    "an attention factor": ("qwen3", "yarn with an attention factor"),
    "rope_parameters": ("llama", "default", "rope_parameters"),
    "a dynamic scheme": ("llama", "dynamic"),
}
CASES = [  # every scheme with half of the types; functions that make a config, for the fixture `made`
    *(pytest.param(partial(config, kind, name), id=f"{kind} {name}") for index, kind, name in GRID if index % 2 == 0),
    *(
        pytest.param(partial(config, kind, "yarn", "rope_parameters"), id=f"{kind} in rope_parameters")
        for kind in TYPES
    ),
    *(pytest.param(partial(advised, *of), id=f"advice on {subject}") for subject, of in ADVICE.items()),
    pytest.param(partial(phi3, "default"), id="phi3"),
    pytest.param(partial(phi3, "longrope"), id="phi3 longrope"),
    pytest.param(partial(phi3, "longrope", 0.75), id="phi3 longrope, in part"),
]


def report(engine: str, made: dict[str, Any], seq_len: int = CONTEXT) -> models.EngineReport:
    """Return what `compare` finds for one engine."""
    (found,) = models.compare(made, [engine], seq_len=seq_len).ropes
    return found.engines[0]


def is_refused(found: models.EngineReport, build: Callable[[], Any]) -> bool:
    """Return whether a config is refused, after seeing the engine itself stop at it."""
    if found.status == "refused":
        with pytest.raises((TypeError, KeyError, ValueError)):
            build()
    return found.status == "refused"


def read_by_transformers(made: dict[str, Any]) -> Any:
    """Return a config as the class of transformers 5 holds it."""
    installed("transformers")
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mapping[made["model_type"]].from_dict(copy.deepcopy(made))


def check_table(table: np.ndarray, found: models.EngineReport, positions: int) -> None:
    """Hold a table [S, d], cos then sin, against a rule; float32 phases are as good as their size allows."""
    rope = found.rope
    assert table.shape == (positions, 2 * rope.frequencies.size)
    rows = np.unique(np.geomspace(1, positions - 1, 40).astype(int))
    phases = np.multiply.outer(rows, rope.frequencies)
    expected = rope.attention_factor * np.concatenate([np.cos(phases), np.sin(phases)], axis=-1)
    allowed = 2e-6 + 4e-6 * np.concatenate([phases, phases], axis=-1)
    assert np.max(np.abs(table[rows] - expected) - allowed) < 0.0
    np.testing.assert_allclose(table[0, : rope.frequencies.size], rope.attention_factor, rtol=1e-6)
