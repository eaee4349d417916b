"""Parameters of the PyTorch module: their start, moves and loading, and the Rope that they make."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core import array
from rfrope._core.arguments import choice, listed, show
from rfrope._core.libraries import TORCH
from rfrope.kernels import Kernel
from rfrope.layers.launching import LaunchingModule
from rfrope.rotation.rope import Rope

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see

# each option and its parameter; logarithms of factors and temperature keep these positive
LEARNABLE = {
    "kernel": "",  # those of the kernel
    "frequencies": "frequencies",
    "factors": "log_factors",
    "phases": "phases",
    "temperature": "log_temperature",
}
_OTHERS = ("inv_freq", "original_inv_freq", "freqs", "cos_cached", "sin_cached")  # what other modules put into states
POLAR_VERSION = 2  # version of a polar module's state; PyTorch's default is 1
_ROUNDED = 0.01  # relative, above the rounding of a frequency to bfloat16
_DONE = "_is_hf_initialized"  # the mark of transformers


def read_learnable(learnable: Any) -> tuple[str, ...]:
    """Return the names of the learned parameters."""
    if isinstance(learnable, bool):
        return ("factors",) if learnable else ()
    names = (learnable,) if isinstance(learnable, str) else listed("learnable", learnable, "names of what is learned")
    for name in names:
        choice("learnable", name, ("none", *LEARNABLE, "both"))
    chosen = {*names, *(("frequencies", "phases") if "both" in names else ())}
    if "kernel" in chosen and chosen & {"frequencies", "factors"}:
        raise ValueError(f"learnable is {show(learnable)}; expected the kernel, or frequencies and factors, not both")
    return tuple(name for name in LEARNABLE if name in chosen)


class LearningModule(LaunchingModule):
    """A module whose frequencies, factors, phases or temperature may be parameters."""

    learnable: tuple[str, ...]  # names of what is learned
    _starts: dict[str, np.ndarray]  # of all parameters
    _from_meta: bool
    _is_sharded = False
    _fixed: Any  # a module of the Rope that the parameters make, in evaluation
    _watched: tuple[Any, ...]  # parameters that made it, with views of their memory and their values then

    @property
    def kernel(self) -> Kernel | tuple[Kernel, ...] | None:
        """Return the learned kernel, or one for each set of frequencies; its text is its ``repr``. None if not learned.

        Parameters are read from their device, as those of `rope` are.
        """
        if self._law is None:
            return None
        found = self._law.kernels({name: self._read_on_host(name) for name in self._law_names})
        return found if self._sets else found[0]

    @property
    def rope(self) -> Rope:
        """Return the current Rope: as given, or with the parameters learned so far, except phases.

        Parameters are read from their device: inside a model's step use `start`, which has all but their values.
        """
        learned = [name for name in self.learnable if name != "phases"]
        if not learned:
            return self.start
        omega = np.asarray(array.to_host(self.start.frequencies))
        if self.frequencies is not None:
            omega = self._read_on_host("frequencies")
        factor, source = self.start.attention_factor, self.start.source
        step: dict[str, Any] = {"scheme": "learned", "learned": learned}
        if self._law is not None:
            values = {name: self._read_on_host(name).astype(np.float64) for name in self._law_names}
            row = np.concatenate([one.reshape(*self._law.points.shape[:-2], -1) for one in values.values()], -1)
            omega = self._law.tabulate(row)[0].astype(omega.dtype)
            texts = tuple(map(repr, self._law.kernels(values)))
            earlier = source.scaled_by[-1] if source.scaled_by else {}
            began = earlier.get("began", source.kernel)
            step |= {"began": began} if began is not None else {}
            source = replace(source, kernel=texts if self._sets else texts[0], error={})
        if self.log_factors is not None:
            omega = (omega * np.exp(self._read_on_host("log_factors"))).astype(omega.dtype)
        if self.log_temperature is not None:
            half = 0.5 * float(self._read_on_host("log_temperature"))
            step["temperature"] = math.exp(2.0 * half)
            factor *= math.exp(half)
        source = replace(source, scaled_by=(*source.scaled_by, step))
        return replace(self.start, frequencies=omega, attention_factor=factor, source=source)

    def _read_on_host(self, name: str) -> np.ndarray:
        parameter = getattr(self, name).detach()
        parameter = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter  # a part of it is here
        return np.asarray(parameter.cpu().numpy())

    def reset_parameters(self) -> None:
        """Reset the parameters: frequencies to the Rope's, factors and temperature to 1, phases to 0."""
        self._start(self._learned)

    def _register(self, starts: dict[str, np.ndarray], dtype: Any) -> None:
        """Make the learned parameters, with values to start with; the others are None."""
        self._starts = starts
        for name, start in starts.items():
            learned = torch.nn.Parameter(torch.empty(start.shape, dtype=dtype)) if name in self._learned else None
            self.register_parameter(name, learned)
        self._from_meta = any(getattr(self, name).is_meta for name in self._learned)
        self.reset_parameters()

    # -- how it starts, moves and is loaded ----------------------------------------------------------------------------

    def _apply(self, fn: Any, recurse: bool = True) -> LearningModule:
        """Move learned parameters without narrowing them; initialise those from the meta device."""
        empty = any(getattr(self, name).is_meta for name in self._learned)

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            if found.dtype == tensor.dtype or not tensor.is_floating_point():
                return found
            like = torch.empty_like(tensor, device=found.device)
            return like if tensor.is_meta or like.is_meta else like.copy_(tensor)

        super()._apply(moved, recurse)
        self._follow(fn)
        if empty and not any(getattr(self, name).is_meta for name in self._learned):
            self.reset_parameters()
        self._fix()
        return self

    def _start(self, names: tuple[str, ...]) -> None:
        with torch.no_grad():
            for name in names:
                parameter, start = getattr(self, name), torch.tensor(self._starts[name], dtype=torch.float64)
                if hasattr(parameter, "placements"):  # fully_shard left only a part of it here
                    from torch.distributed.tensor import distribute_tensor

                    start = start.to(parameter.device, parameter.dtype)
                    start = distribute_tensor(start, parameter.device_mesh, parameter.placements)
                parameter.copy_(start)

    def __setattr__(self, name: str, value: Any) -> None:
        """Reset parameters that no file had, when a loader of transformers is done with this module.

        The loader marks each parameter that it has read, and then every module. A module that was not made on the meta
        device holds no raw memory; its marks are not a loader's.
        """
        if isinstance(value, torch.Tensor) and name in self.__dict__.get("_learned", ()):
            self._last_law, self._fixed = (None, None), None
            self._is_sharded |= hasattr(value, "placements")  # then others take their place at every call
        super().__setattr__(name, value)
        if name == _DONE and value and self._from_meta:
            self._from_meta = False
            self._start(tuple(one for one in self._learned if not getattr(getattr(self, one), _DONE, False)))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """Accept the states of other rotary modules, but keep the Rope.

        A state whose version is that of the other kind of module, RoPE or polar, is refused: shapes may agree.
        """
        version = others[0].get("version")
        has = [name for name in self._starts if f"{prefix}{name}" in state_dict]
        if has and version is not None and (version == POLAR_VERSION) != (self._version == POLAR_VERSION):
            kinds = ("a PolarEmbedding", "a RotaryEmbedding")
            kind, other = kinds if version == POLAR_VERSION else kinds[::-1]
            raise ValueError(
                f"{prefix}{has[0]} of the state is of {kind}, and this is {other}; expected one of {other}"
            )
        given = {name: state_dict.pop(f"{prefix}{name}", None) for name in _OTHERS}["inv_freq"]
        if given is not None and "frequencies" in self._learned:
            if given.numel() != self.frequencies.numel():
                raise ValueError(
                    f"{prefix}inv_freq of the state has {given.numel()} frequencies, but the Rope has "
                    f"{self.frequencies.numel()}; expected the state of a module with the same number"
                )
            state_dict.setdefault(f"{prefix}frequencies", given.reshape(self.frequencies.shape))
        elif given is not None:
            expected = torch.from_numpy(array.to_host(self.start.frequencies).astype(np.float64)).reshape(-1)
            given = given.detach().double().cpu().reshape(-1)
            if given.shape != expected.shape or bool(((given - expected).abs() > _ROUNDED * expected.abs()).any()):
                warnings.warn(
                    f"{prefix}inv_freq of the state differs from the Rope's, and is ignored; expected the Rope of this "
                    "checkpoint, as rfrope.from_config gives it",
                    stacklevel=2,
                )
        for name in self._learned:
            if (key := f"{prefix}{name}") in state_dict:
                state_dict[key] = state_dict[key].to(getattr(self, name).dtype)
        super()._load_from_state_dict(state_dict, prefix, *others)
        self._fix()

    # -- where nothing is learned any more -----------------------------------------------------------------------------

    def train(self, mode: bool = True) -> LearningModule:
        """Switch between training and evaluation, where calls without gradients turn by the Rope learned so far."""
        super().train(mode)
        self._fix()
        return self

    def _fix(self) -> None:
        """Drop what was computed from the parameters; for evaluation make a module of the Rope learned so far."""
        self._last_law, self._fixed, self._watched = (None, None), None, ()
        learned = [getattr(self, name) for name in self._learned]
        if self.training or not learned or self.phases is not None or self._is_sharded:
            return
        if not TORCH.are_plain_dense() or any(type(one) is not torch.nn.Parameter or one.is_meta for one in learned):
            return
        made = type(self)(self.rope, layout=self.layout, **({} if self.start.polar else {"head_dim": self.head_dim}))
        self.__dict__["_fixed"] = made.to(learned[0].device).eval()  # no part of this one
        views = [one.detach().numpy() if one.is_cpu else None for one in learned]  # which see what is written later
        self._watched = tuple(zip(self._learned, learned, views, map(_state, learned, views), strict=True))

    def find_fixed(self) -> Any:
        """Return the module of the Rope learned so far, if a call may turn by it: in evaluation, without gradients."""
        if torch.is_grad_enabled():
            return None
        if torch.compiler.is_compiling():  # a graph does not see that a parameter changes, but whether it may
            own = [getattr(self, name) for name in self._learned]
            is_frozen = all([isinstance(one, torch.nn.Parameter) and not one.requires_grad for one in own])
            return self._fixed if is_frozen else None
        for name, parameter, view, state in self._watched:
            if self._parameters.get(name) is not parameter:
                return None
            if _state(parameter, view) != state:
                self._fix()
                break
        return self._fixed


def _state(parameter: Tensor, view: np.ndarray | None) -> Any:
    """Return what changes with a parameter: its values on the host; elsewhere no one waits for them."""
    return (parameter.data_ptr(), parameter._version if view is None else view.tobytes())
