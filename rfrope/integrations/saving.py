"""Write the frequencies of a replaced rotation into the config of a saved model."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, TypeAlias

import torch
from transformers import PretrainedConfig, PreTrainedModel

from rfrope._core import array
from rfrope.data.model_types import known
from rfrope.integrations import rotations
from rfrope.models import kernel_scheme

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

KEPT = ("rope_theta", "partial_rotary_factor")  # of a config's own parameters


def watch_saving(register: Callable[[], None]) -> None:
    """Make models look for replaced rotations when saved, also those of a part replaced on its own."""
    kept = PreTrainedModel.save_pretrained
    if getattr(kept, "__module__", "") == __name__:
        return

    def save_pretrained(self: Module, *arguments: Any, **options: Any) -> Any:
        """Save a model with a config that describes its current rotation."""
        replaced = [one for one in self.modules() if isinstance(one, rotations.Positions)]
        with ExitStack() as undo:
            for lost in dict.fromkeys(filter(None, [_written(self, one, undo, register) for one in replaced])):
                warnings.warn(
                    f"{type(self).__name__} is saved without the rotation that replace_rotary put in: {lost}; expected "
                    "replace_rotary again after from_pretrained, and the state_dict of what was learned",
                    stacklevel=2,
                )
            return kept(self, *arguments, **options)

    PreTrainedModel.save_pretrained = functools.update_wrapper(save_pretrained, kept, ("__doc__", "__name__"))


def _written(model: Module, positions: rotations.Positions, undo: ExitStack, register: Callable[[], None]) -> str:
    """Put frequencies into the config of what they stand in for; why that cannot be, if it cannot."""
    register()
    module = positions.__dict__["rotary"].module
    kind, config = type(module), getattr(module, "config", None)
    before = getattr(config, "rope_parameters", None)
    if config is None or not isinstance(before, Mapping) or known(getattr(config, "model_type", None)).get("negated"):
        return f"{kind.__name__} reads no frequencies from a config"
    if not any(each is config for each in _configs(model.config)):
        return f"{kind.__name__} has a config of its own, which is not saved"
    if positions.is_by_layer:
        return "a config holds one set of frequencies for all layers"
    if any(one.phases is not None or one.start.vectors.ndim > 1 for one in positions.turning.values()):
        return "a config holds one set of frequencies for all heads, and no phases"
    told = {
        name: _parameters(one, before if name == "all" else before[name]) for name, one in positions.turning.items()
    }
    with ExitStack() as changed, suppress(Exception):  # a model class may raise anything
        rotations.swap(config.__dict__, "rope_parameters", told.get("all", {**before, **told}), changed)
        config.validate_rope()  # transformers 5.0 has no validate()
        made = kind(config)
        if all(_turns_by(made, "" if name == "all" else f"{name}_", parameters) for name, parameters in told.items()):
            undo.push(changed.pop_all())
            return ""
    return f"{kind.__name__} does not rotate by the frequencies of its config"


def _configs(config: Any) -> Iterator[Any]:
    """A config and those inside it."""
    yield config
    for one in vars(config).values():
        if isinstance(one, PretrainedConfig):
            yield from _configs(one)


def _parameters(rotary: Module, before: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of what turns, with what else a config needs to know."""
    rope = rotary.rope
    kept = {key: before[key] for key in KEPT if key in before}
    numbers = {"frequencies": array.to_host(rope.frequencies).tolist(), "attention_factor": rope.attention_factor}
    return kept | {"rope_type": kernel_scheme.NAME} | numbers


def _turns_by(made: Module, prefix: str, parameters: Mapping[str, Any]) -> bool:
    """Return True if a module of transformers turns by the frequencies and the factor of some parameters."""
    frequencies = torch.tensor(parameters["frequencies"], dtype=torch.float32)
    factor = getattr(made, f"{prefix}attention_scaling")
    return (
        torch.equal(getattr(made, f"{prefix}inv_freq").cpu(), frequencies) and factor == parameters["attention_factor"]
    )
