"""Layers of a transformers model as black boxes: their own rotation function is called with unit vectors."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import array, libraries
from rfrope._core.arguments import show
from rfrope.models.configs import perceives
from rfrope.models.layering import list_layers
from rfrope.models.probing.attention import Trace
from rfrope.rotation.rope import Rope

_ROTATION = re.compile("apply_.*(rotary|rope)")
_TABLES = re.compile("cos|sin|freqs|position|emb")  # parameters that are not features
_INDEX = re.compile(r"\.(\d+)\.")
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_FIRST = 11  # tokens of the first forward pass, which finds the layers


@dataclass
class _Calls:
    """Input and output features of the rotation in each layer, in one forward pass."""

    features: Mapping[str, np.ndarray]
    found: dict[str, dict[str, np.ndarray]]
    widths: dict[str, int]
    dtypes: dict[str, str]
    trace: Trace | None = None


class ModelLayers:
    """Source that runs a model once per measurement, for all layers together."""

    def __init__(self, model: Any, meant: tuple[Rope, ...], config: Any) -> None:
        self.model, self.calls = model, 0  # forward passes
        listed = () if config is None else list_layers(config).kinds
        self.kinds = tuple(one for one in listed if not perceives(one.part))
        self.axes = max([1, *(len(one.sections) for one in meant if one.sections is not None)])
        self.kv_heads = 0  # features of heads are not marked
        self.functions = [*_find_functions(model)]
        if not self.functions:
            raise ValueError(
                f"{type(model).__name__} has no function apply_rotary_... in its module; expected such a model, or a "
                "function (q, k, positions)"
            )
        self.attention = {id(part): path for path, part in model.named_modules() if "Attention" in type(part).__name__}
        self._path: list[str] = []
        self._visited: list[str] = []
        self._is_inside = False
        calls = self._run({}, _count(_FIRST, self.axes))
        self.widths, self.dtypes = calls.widths, calls.dtypes  # features that each layer rotates
        self.trace = Trace()  # what attention receives of the rotation's results
        if not self.widths:
            names = ", ".join(sorted({name for _, name in self.functions}))
            raise ValueError(
                f"{type(model).__name__} called none of {names} in its forward; expected one in each layer"
            )
        visited = dict.fromkeys(self._visited)
        self._run({}, _count(_FIRST, self.axes), trace=self.trace)
        inner = {one for one in visited if any(other.startswith(f"{one}.") for other in visited)}
        self.still = tuple(one for one in visited if one not in self.widths and one not in inner)

    def measure(self, features: Mapping[str, np.ndarray], positions: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
        """Return the outputs of one run of the model, by layer and side."""
        return self._run(features, positions).found

    def choose(self, name: str, meant: tuple[Rope, ...]) -> tuple[tuple[Rope, ...], bool | None]:
        """Return the Ropes that a layer may use, and whether it should rotate, if that is known."""
        numbers = _INDEX.findall(f".{name}.")
        index = int(numbers[0]) if numbers else -1
        alike = [one for one in self.kinds if one.layers is not None and index in one.layers]
        if len(alike) != 1:
            return meant, None
        rope = alike[0].rope
        if rope is None:
            return meant, False
        return tuple(one for one in meant if one.source.model.name == rope.source.model.name) or meant, True

    def find_changes(self, name: str, meant: tuple[Rope, ...]) -> Iterator[tuple[str, str]]:
        """Yield kinds and texts of what happens to a layer's rotated queries and keys before attention."""
        return self.trace.find(name, meant)

    # -- one forward pass ----------------------------------------------------------------------------------------------

    def _run(self, features: Mapping[str, np.ndarray], positions: np.ndarray, trace: Trace | None = None) -> _Calls:
        torch: Any = libraries.imported("torch")
        parameter = next(self.model.parameters())
        calls = _Calls(features, {}, {}, {}, trace)
        at = torch.from_numpy(np.ascontiguousarray(positions)).to(parameter.device)
        at = at.movedim(-1, 0) if self.axes > 1 else at[..., 0]
        ids = torch.zeros(positions.shape[:2], dtype=torch.int64, device=parameter.device)
        self._visited = []
        was_training = self.model.training
        with ExitStack() as undo, torch.no_grad():
            undo.enter_context(self._watch(calls))
            undo.callback(self.model.train, was_training)
            self.model.eval()
            self.model(input_ids=ids, position_ids=at, use_cache=False)
        self.calls += 1
        return calls

    @contextmanager
    def _watch(self, calls: _Calls) -> Iterator[None]:
        """Record calls of attention and of rotation functions."""
        with ExitStack() as undo:
            for _, part in self.model.named_modules():
                if path := self.attention.get(id(part)):
                    undo.callback(part.register_forward_pre_hook(self._entering(path)).remove)
                    undo.callback(part.register_forward_hook(self._leaving).remove)
            for module, name in self.functions:
                original = getattr(module, name)
                undo.callback(setattr, module, name, original)
                setattr(module, name, self._wrapped(original, calls))
            if calls.trace is not None:
                self._watch_attention(undo, calls.trace)
            yield

    def _watch_attention(self, undo: ExitStack, trace: Trace) -> None:
        """Record the inputs of attention functions, and of norms before them."""
        for module in dict.fromkeys(module for module, _ in self.functions):
            if (original := getattr(module, _INTERFACE, None)) is not None:
                undo.callback(setattr, module, _INTERFACE, original)
                setattr(module, _INTERFACE, _Interface(original, self._attending(trace)))

        def leave_norm(part: Any, given: Any, made: Any) -> None:
            if self._path and given and getattr(given[0], "ndim", 0) in (3, 4) and hasattr(made, "shape"):
                axes = [axis for axis in range(given[0].ndim - 2, 0, -1) if given[0].shape[axis] == _FIRST]
                if axes:
                    trace.follow_norm(self._layer, given[0], made, axes[0])

        for part in self.model.modules():
            if "norm" in type(part).__name__.lower():
                undo.callback(part.register_forward_hook(leave_norm).remove)

    def _attending(self, trace: Trace) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def watched(function: Callable[..., Any]) -> Callable[..., Any]:
            def attend(module: Any, query: Any, key: Any, *rest: Any, **options: Any) -> Any:
                trace.attend(self._layer, module, query, key, options.get("scaling"))
                return function(module, query, key, *rest, **options)

            return attend

        return watched

    @property
    def _layer(self) -> str:
        return self._path[-1] if self._path else type(self.model).__name__

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._path.append(path)
            self._visited.append(path)

        return enter

    def _leaving(self, *_: Any) -> None:
        self._path.pop()

    def _wrapped(self, original: Callable[..., Any], calls: _Calls) -> Callable[..., Any]:
        signature = inspect.signature(original)
        names = [*signature.parameters]
        names = names[: 2 if len(names) > 1 and not _TABLES.search(names[1]) else 1]

        def rotate(*arguments: Any, **options: Any) -> Any:
            if self._is_inside:  # rotation functions may call each other
                return original(*arguments, **options)
            self._is_inside = True
            try:
                result = original(*arguments, **options)
                bound = signature.bind(*arguments, **options)
                given = [bound.arguments[name] for name in names]
                self._follow(original, bound, names, calls)
                return result if calls.trace is None else self._plant(given, result, calls.trace)
            finally:
                self._is_inside = False

        return rotate

    def _plant(self, given: list[Any], result: Any, trace: Trace) -> Any:
        """Return random numbers in place of the result of a function."""
        turned = result if isinstance(result, tuple | list) else (result,)
        planted = trace.plant(self._layer, given, tuple(turned), [_axis_of_tokens(one, _FIRST) for one in given])
        return planted if isinstance(result, tuple | list) else planted[0]

    def _follow(
        self, original: Callable[..., Any], bound: inspect.BoundArguments, names: list[str], calls: _Calls
    ) -> None:
        """Call a function once more, with unit vectors in place of queries and keys."""
        layer = self._layer
        given = [bound.arguments[name] for name in names]
        calls.widths.setdefault(layer, int(given[0].shape[-1]))
        calls.dtypes.setdefault(layer, array.dtype_name(given[0]))
        if layer not in calls.features:
            return
        features = calls.features[layer]
        axes = [_axis_of_tokens(one, len(features)) for one in given]
        for name, one, axis in zip(names, given, axes, strict=True):
            shape = [1] * one.ndim
            shape[axis], shape[-1] = features.shape
            bound.arguments[name] = one.new_tensor(features.reshape(shape)).expand(one.shape).contiguous()
        turned = original(*bound.args, **bound.kwargs)
        sides = calls.found.setdefault(layer, {})
        turned = turned if len(names) > 1 else (turned,)
        for one, axis in zip(turned, axes, strict=True):
            host = array.to_host(one.detach().float()).astype(np.float64)
            if host.ndim == 3:  # one head without its own axis
                host, axis = host[:, None], axis + 1
            side = "keys" if sides else "queries"
            sides.setdefault(side, host if axis == 2 else np.moveaxis(host, axis, 2))


class _Interface:
    """The transformers table of attention functions, each recorded."""

    def __init__(self, original: Any, watched: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.original, self.watched = original, watched

    def get_interface(self, *arguments: Any) -> Callable[..., Any]:
        return self.watched(self.original.get_interface(*arguments))

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self.watched(self.original[name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


def _count(tokens: int, axes: int) -> np.ndarray:
    """Return positions (1, T, k) that count from 0."""
    return np.repeat(np.arange(tokens)[None, :, None], axes, axis=-1)


def _axis_of_tokens(x: Any, tokens: int) -> int:
    axes = [axis for axis in range(x.ndim - 2, 0, -1) if x.shape[axis] == tokens]
    if not axes:
        raise ValueError(
            f"a function of rotation is given features of shape {tuple(x.shape)} for {tokens} tokens; expected an axis "
            "of tokens after that of the batch"
        )
    return axes[0]


def _find_functions(model: Any) -> Iterator[tuple[Any, str]]:
    """Yield Python modules and the names of their rotation functions."""
    if not callable(model):
        raise TypeError(f"apply is {show(model)}; expected a model that can be called")
    for name in dict.fromkeys(type(part).__module__ for part in model.modules()):
        module = sys.modules.get(name)
        for function in [*vars(module or object)]:
            if _ROTATION.match(function) and callable(getattr(module, function)):
                yield module, function
