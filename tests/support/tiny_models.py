"""Tiny models of transformers with weights of a fixed seed, and their logits; where transformers is missing, a skip."""

import importlib
import importlib.util
import pathlib
import warnings

import pytest
from conftest import library, rows

import rfrope

torch = library("torch").module
with warnings.catch_warnings():  # importing them raises a few of their own
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", "5.0", reason="transformers 5 is not installed")
    importlib.import_module("rfrope.integrations.transformers")

transformers.logging.set_verbosity(transformers.logging.ERROR)


SIZES = rows("support/sizes.json", "tiny")
IDS = torch.arange(3, 15)[None]
_SOURCE = pathlib.Path(importlib.util.find_spec("transformers.models.llama.modeling_llama").origin)  # slow to import
CACHE = "past_key_values" if "past_key_values: Cache" in _SOURCE.read_text("utf-8") else "cache"  # its name there


def made(model_type="llama", **values):
    """A tiny model with weights of a fixed seed."""
    kind = type(transformers.AutoConfig.for_model(model_type))
    config = kind(**SIZES | values)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def trained_by_another_base(ids, trained):
    """Return a small Llama whose weights learned some texts by one base for a moment; its config says another one."""
    from rfrope.integrations.transformers import replace_rotary

    found = made(hidden_size=32, max_position_embeddings=trained, num_attention_heads=2, num_key_value_heads=1)
    ids = torch.from_numpy(ids)
    with replace_rotary(found, rfrope.Rope(rfrope.geometric(8, base=30.0))):
        optimiser = torch.optim.Adam(found.parameters(), 1e-2)
        for _ in range(60):
            found(ids, labels=ids).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return found.eval()


def logits(model, ids=IDS, **options):
    with torch.no_grad():
        return model(ids, **options).logits


def ropes_of(model):
    found = rfrope.from_config(model.config)
    return {one.source.model.name: one for one in found} if len(found) > 1 else found[0]
