"""Layers of a transformers model as black boxes: what their rotation function does, and what attention receives."""

from __future__ import annotations

import inspect
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from rfrope._core import array, libraries
from rfrope._core.arguments import show
from rfrope.models.configs import perceives
from rfrope.models.layering import list_layers
from rfrope.models.probing.measurements import Box, noise_of
from rfrope.rotation.rope import Rope

_NEAR = 1e-3  # relative tolerance of a softmax scale
_OFF = 0.02  # fraction of the largest value; half precision differs by less
_SIDES = ("queries", "keys")
_ELSEWHERE = ("gemma3n", "gemma4", "t5gemma")  # the scale is in norms of queries and keys, or in weights
_ROTATION = re.compile("apply_.*(rotary|rope)")
_TABLES = re.compile("cos|sin|freqs|position|emb")  # parameters that are not features
_INDEX = re.compile(r"\.(\d+)\.")
_FIRST = 11  # tokens of the first forward pass, which finds the layers


class ModelLayers:
    """Layers of a model as a source of measurements, each of which runs the model once."""

    def __init__(self, model: Any, meant: tuple[Rope, ...], config: Any) -> None:
        self.model, self.calls = model, 0  # forward passes
        self.axes = max([1, *(len(one.sections) for one in meant if one.sections is not None)])
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
        self._features: Mapping[str, np.ndarray] = {}
        self._found: dict[str, dict[str, np.ndarray]] = {}
        # In the first run, random numbers take the place of what rotations return, and are followed to attention. By
        # layer, for each result: its side, "" if rotated alone; its values (B, H, T, d); and what norms made of it
        self._planted: dict[str, list[tuple[str, list[np.ndarray]]]] = {}
        self._rotated: dict[str, Any] = {}  # features given to the first rotation of each layer
        self._twice: set[str] = set()  # layers that rotate a result again
        self._received: dict[str, tuple[Any, ...]] = {}  # module, dtype, queries, keys and scale of scores
        self._is_first = True
        self._run(np.repeat(np.arange(_FIRST)[None, :, None], self.axes, axis=-1))
        self._is_first = False
        if not self._rotated:
            names = ", ".join(sorted({name for _, name in self.functions}))
            raise ValueError(f"{type(model).__name__} called none of {names} when run; expected one in each layer")
        inner = {one for one in self._visited if any(other.startswith(f"{one}.") for other in self._visited)}
        kinds = () if config is None else [one for one in list_layers(config).kinds if not perceives(one.part)]
        self.boxes = []
        for name in dict.fromkeys([*self._rotated, *(one for one in self._visited if one not in inner)]):
            box = Box(name, 0, "", *_choose_ropes(name, meant, kinds))
            if (given := self._rotated.get(name)) is not None:
                box.width, box.dtype = int(given.shape[-1]), array.dtype_name(given)
                box.changes = tuple(self._find_changes(box))
            self.boxes.append(box)

    def measure(
        self, features: Mapping[str, np.ndarray], positions: np.ndarray, **_: Any
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return the outputs of one run of the model, by layer and side."""
        self._features, self._found = features, {}
        self._run(positions)
        return self._found

    def _find_changes(self, box: Box) -> Iterator[tuple[str, str]]:
        """Yield kinds and texts of what happens to a layer's rotated queries and keys before attention."""
        name, planted = box.name, self._planted[box.name]
        if name in self._twice:
            yield "attention", "the result of the rotation is turned a second time"
        if name in self._twice or name not in self._received or len(planted) < 2:
            return
        module, dtype, *features, scale = self._received[name]
        factors: dict[str, float] = {}
        for side, x in zip(_SIDES, features, strict=True):
            candidates = [made for whose, forms in planted if whose in (side, "") for made in forms]
            found = [factor for made in candidates if (factor := _read_factor(x, made)) is not None]
            if found:
                factors[side] = found[-1]
                continue
            is_order = any(np.array_equal(np.sort(made, axis=None), np.sort(x, axis=None)) for made in candidates)
            what = "they are reordered" if is_order else "the result of the rotation is dropped, or changed"
            yield "attention", f"{side} that attention receives are not the rotated ones: {what}"
        if len(factors) == len(_SIDES):
            width = features[0].shape[-1]
            total = (width**-0.5 if scale is None else float(scale)) * math.prod(factors.values())
            wanted = _choose_scale(getattr(module, "config", None), width, box.meant)
            yield from _judge_scale(factors, total, wanted, _read_mscale(box.meant), 8.0 * noise_of(dtype))

    # -- one forward pass ----------------------------------------------------------------------------------------------

    def _run(self, positions: np.ndarray) -> None:
        torch: Any = libraries.imported("torch")
        device, was_training = next(self.model.parameters()).device, self.model.training
        at = torch.from_numpy(np.ascontiguousarray(positions)).to(device)
        at = at.movedim(-1, 0) if self.axes > 1 else at[..., 0]
        ids = torch.zeros(positions.shape[:2], dtype=torch.int64, device=device)
        with ExitStack() as undo, torch.no_grad():
            if libraries.imported("torch._dynamo") and hasattr(torch.compiler, "set_stance"):  # since PyTorch 2.6
                undo.enter_context(torch.compiler.set_stance("force_eager"))  # parts may be compiled
            self._watch(undo)
            undo.callback(self.model.train, was_training)
            self.model.eval()
            self.model(input_ids=ids, position_ids=at, use_cache=False)
        self.calls += 1

    def _watch(self, undo: ExitStack) -> None:
        """Record calls of attention and of rotation functions; and if they are traced, what attention receives."""

        def replace(module: Any, name: str, wrapped: Callable[[Any], Any]) -> None:
            if (original := getattr(module, name, None)) is not None:
                undo.callback(setattr, module, name, original)
                setattr(module, name, wrapped(original))

        for part in self.model.modules():
            if path := self.attention.get(id(part)):
                undo.callback(part.register_forward_pre_hook(lambda *_, path=path: self._path.append(path)).remove)
                undo.callback(part.register_forward_hook(lambda *_: self._visited.append(self._path.pop())).remove)
            elif self._is_first and "norm" in type(part).__name__.lower():
                undo.callback(part.register_forward_hook(self._follow_norm).remove)
        for module, name in self.functions:
            replace(module, name, self._wrapped)
        for module in dict.fromkeys(module for module, _ in self.functions if self._is_first):
            replace(module, "ALL_ATTENTION_FUNCTIONS", lambda original: _Interface(original, self._attending))

    def _follow_norm(self, part: Any, given: Any, made: Any) -> None:
        """Keep the output of a norm as another form of the planted result."""
        if given and getattr(given[0], "ndim", 0) in (3, 4) and hasattr(made, "shape"):
            for axis in _axes_of_tokens(given[0], _FIRST)[:1]:
                for _, forms in self._planted.get(self._layer, []):
                    if _is_same(_to_heads(given[0], axis), forms):
                        forms.append(_to_heads(made, axis))

    def _attending(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def attend(module: Any, query: Any, key: Any, *rest: Any, **options: Any) -> Any:
            features = _to_heads(query), _to_heads(key)
            self._received[self._layer] = (module, array.dtype_name(query), *features, options.get("scaling"))
            return function(module, query, key, *rest, **options)

        return attend

    def _plant(self, given: list[Any], turned: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return random numbers in place of the results of a rotation."""
        results = self._planted.setdefault(self._layer, [])
        axes = [_axis_of_tokens(one, _FIRST) for one in given]
        before = [_to_heads(one, axis) for one, axis in zip(given, axes, strict=True)]
        if any(_is_same(one, forms) for one in before for _, forms in results):
            self._twice.add(self._layer)
        planted = []
        for one, axis, side in zip(turned, axes, _SIDES if len(turned) > 1 else ("",), strict=True):
            values = np.random.default_rng(len(results) + 29).standard_normal(tuple(one.shape))
            planted.append(one.new_tensor(values))
            results.append((side, [_to_heads(planted[-1], axis)]))
        return tuple(planted)

    @property
    def _layer(self) -> str:
        return self._path[-1] if self._path else type(self.model).__name__

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
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
                self._rotated.setdefault(self._layer, given[0])
                if self._is_first:
                    has_two = isinstance(result, tuple | list)
                    planted = self._plant(given, tuple(result) if has_two else (result,))
                    return planted if has_two else planted[0]
                if self._layer in self._features:
                    self._follow(original, bound, names)
                return result
            finally:
                self._is_inside = False

        return rotate

    def _follow(self, original: Callable[..., Any], bound: inspect.BoundArguments, names: list[str]) -> None:
        """Call a function once more, with unit vectors in place of queries and keys."""
        features, sides = self._features[self._layer], self._found.setdefault(self._layer, {})
        given = [bound.arguments[name] for name in names]
        axes = [_axis_of_tokens(one, len(features)) for one in given]
        for name, one, axis in zip(names, given, axes, strict=True):
            shape = [1] * one.ndim
            shape[axis], shape[-1] = features.shape
            bound.arguments[name] = one.new_tensor(features.reshape(shape)).expand(one.shape).contiguous()
        turned = original(*bound.args, **bound.kwargs)
        for one, axis in zip(turned if len(names) > 1 else (turned,), axes, strict=True):
            sides.setdefault("keys" if sides else "queries", _to_heads(one, axis))


def _choose_ropes(name: str, meant: tuple[Rope, ...], kinds: Sequence[Any]) -> tuple[tuple[Rope, ...], bool | None]:
    """Return the Ropes that a layer may use, and whether it should rotate, if that is known."""
    numbers = _INDEX.findall(f".{name}.")
    alike = [one for one in kinds if numbers and one.layers is not None and int(numbers[0]) in one.layers]
    if len(alike) != 1:
        return meant, None
    rope = alike[0].rope
    if rope is None:
        return meant, False
    return tuple(one for one in meant if one.source.model.name == rope.source.model.name) or meant, True


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


def _axes_of_tokens(x: Any, tokens: int) -> list[int]:
    return [axis for axis in range(x.ndim - 2, 0, -1) if x.shape[axis] == tokens]


def _axis_of_tokens(x: Any, tokens: int) -> int:
    if not (axes := _axes_of_tokens(x, tokens)):
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


# -- what reaches attention --------------------------------------------------------------------------------------------


def _to_heads(x: Any, axis: int = 2) -> np.ndarray:
    """Return features as (B, H, T, d), from a tensor with tokens on the given axis."""
    host = array.to_host(x.detach().float()).astype(np.float64)
    if host.ndim == 3:  # one head without its own axis
        return host[:, None]
    return host if axis == 2 else np.moveaxis(host, axis, 2)


def _is_same(x: np.ndarray, made: list[np.ndarray]) -> bool:
    return any(x.shape == one.shape and np.array_equal(x, one) for one in made)


def _read_factor(x: np.ndarray, made: np.ndarray) -> float | None:
    """Return c if the first or last features of x (B, H, T, d) are c times made (B, h, T, w), otherwise None."""
    heads, width = made.shape[1], made.shape[-1]
    if x.ndim != 4 or x.shape[1] % heads or x.shape[2] != made.shape[2] or x.shape[-1] < width:
        return None
    times = x.shape[1] // heads
    repeated = (np.repeat(made, times, axis=1), np.tile(made, (1, times, 1, 1)))
    for part, wanted in itertools.product((x[..., :width], x[..., x.shape[-1] - width :]), repeated):
        factor = float(np.sum(part * wanted) / np.sum(wanted * wanted))
        if factor and np.max(np.abs(part / factor - wanted)) <= _OFF * np.max(np.abs(wanted)):
            return factor
    return None


def _judge_scale(
    factors: dict[str, float], total: float, wanted: float | None, mscale: float, room: float
) -> Iterator[tuple[str, str]]:
    """Yield factors of rotated features, and of scores before softmax, that the config does not have."""
    if wanted is not None and abs(total / wanted - 1.0) <= max(_NEAR, room):
        return
    off = {name: factor for name, factor in factors.items() if abs(factor - 1.0) > room}
    for name, factor in off.items():
        yield "attention", f"{name} are multiplied by {factor:.6g} between the rotation and attention"
    if wanted is not None and not off:
        text = f"scores are multiplied by {total:.6g} before softmax, expected {wanted:.6g}"
        for name, ratio in (("left out", mscale**-2), ("taken once", 1.0 / mscale), ("squared twice", mscale**2)):
            if mscale > 1.0 and abs(total / wanted / ratio - 1.0) < _NEAR:
                text += f": the factor of mscale_all_dim, {mscale:.6g}, was {name}"
        yield "softmax scale", text


def _choose_scale(config: Any, width: int, ropes: tuple[Rope, ...]) -> float | None:
    """Return the expected factor of scores, if the config determines it."""
    kind = str(getattr(config, "model_type", ""))
    if config is None or not any(rope.source.rope_parameters for rope in ropes) or kind.startswith(_ELSEWHERE):
        return None
    if (multiplier := getattr(config, "attention_multiplier", None)) is not None:
        return float(multiplier)
    scalar = getattr(config, "query_pre_attn_scalar", None)
    return float(width if scalar is None else scalar) ** -0.5 * _read_mscale(ropes) ** 2


def _read_mscale(ropes: tuple[Rope, ...]) -> float:
    """Return the factor whose square multi-head latent attention includes in its softmax scale."""
    return math.sqrt(next((known for rope in ropes if (known := rope.source.model.softmax_factor)), 1.0))
