"""Config classes of transformers by model type, and sizes that make their models small; where it is missing, a skip."""

import functools
import importlib
import warnings
from typing import Any

import pytest
from conftest import rows

from rfrope.data.model_types import model_types

with warnings.catch_warnings():  # importing them raises a few of their own
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
    pairing_layers = importlib.import_module("tools.pairing_layers")

transformers.logging.set_verbosity(transformers.logging.CRITICAL)  # it warns of keys that are under test here
SMALL = rows("support/sizes.json", "small")
every_class = functools.cache(pairing_layers.config_classes)


def find_class(model_type: str) -> Any:
    """The config class of a model type, or a skip."""
    if model_type not in every_class():
        pytest.skip(f"this transformers, {transformers.__version__}, has no {model_type}")
    return every_class()[model_type]


def made(model_type: str, **values: Any) -> Any:
    """A config of a model type, with what its RoPE needs."""
    return find_class(model_type)(**model_types()[model_type].get("needs", {}), **values)


def made_small(model_type: str, **values: Any) -> Any:
    """A config with small sizes, of those that its class has."""
    own = made(model_type).to_dict()
    return made(model_type, **{name: value for name, value in SMALL.items() if name in own} | values)
