"""Rotary modules and attention of transformers models, and their replacements, which rotate by positions."""

from __future__ import annotations

import copy
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

import torch

from rfrope._core.arguments import show
from rfrope.data.model_types import known
from rfrope.rotation.rope import Assumed, Rope

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

PERCEPTION = re.compile(r"(^|[._])(vision|visual|vit|image|video|audio)", re.IGNORECASE)  # in the path of a module
_PERCEIVING = re.compile("vision|visual|image|video|audio", re.IGNORECASE)  # in the name of a class
_ROTATION = re.compile("apply_.*(rotary|rope)")
_TABLES = ({"cos", "sin"}, {"freqs_cis"})  # parameters by which a function takes what it turns by
_BACK = re.compile(r"-\s*sin\b")  # attention that undoes a rotation
_MORE = {"num_k_exclude_rope", "repeat_freqs_k", "cos_k", "sin_k"}  # parameters of functions that turn memory as keys
_CLASS = "class_pos_emb"  # learned angles of a class token, which are put before those of positions


# -- what a model has --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rotary:
    """A module that makes cos/sin tables."""

    parent: Module  # the module that it is a part of
    # where the parent is, and what the module in it is called
    path: str
    name: str
    module: Module  # the module itself
    is_text: bool  # true if it counts tokens of text


def check_model(model: Any) -> None:
    """Refuse anything but a model."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {show(model)}; expected a model of transformers")


def rotaries(model: Module) -> list[Rotary]:
    """Find the modules that make tables in a model, including vision and audio parts."""
    check_model(model)
    if any(isinstance(one, Positions) for one in model.modules()):
        raise ValueError(f"the rotation of this {type(model).__name__} was replaced already; expected undo() first")
    found = [
        Rotary(parent, path, name, child, not _perceives(f"{path}.{name}", child))
        for path, parent in model.named_modules()
        for name, child in parent.named_children()
        if "Rotary" in type(child).__name__ and "position_ids" in inspect.signature(child.forward).parameters
    ]
    if not found:
        makers = [type(one).__name__ for one in model.modules() if re.search("Rotary|RopePosition", type(one).__name__)]
        why = f"its {makers[0]} computes positions from images itself" if makers else "it has no rotary module"
        raise ValueError(f"{type(model).__name__}: {why}; expected one that makes tables of cos and sin from positions")
    return found


def _perceives(path: str, rotary: Module) -> bool:
    """Return True for the rotary module of a part that sees or hears; models of text with such names have words."""
    if PERCEPTION.search(path):
        return True
    config = getattr(rotary, "config", None)
    names = (type(rotary).__name__, type(config).__name__, str(getattr(config, "model_type", "")))
    has_text = getattr(config, "vocab_size", None) is not None or any("text" in name.lower() for name in names)
    return not has_text and any(map(_PERCEIVING.search, names))


def nearest(path: str, found: list[Rotary]) -> Rotary:
    """Return the rotary module of the nearest sub-model around a module: that for text, if it has several."""
    steps = path.split(".")

    def nearness(rotary: Rotary) -> tuple[bool, int, bool]:
        others = rotary.path.split(".") if rotary.path else []
        same = len([*takewhile(lambda pair: pair[0] == pair[1], zip(steps, others, strict=False))])
        return same == len(others), same, rotary.is_text

    return max(reversed(found), key=nearness)


# -- what takes its place ----------------------------------------------------------------------------------------------


class _Tag(torch.Tensor):
    """A tensor whose shape names the kind of layer of positions, and whose extra axis means that they turn back."""

    def __neg__(self) -> Any:
        return self.new_empty((*self.shape, 0))


class Positions(torch.nn.Module):
    """Replacement of a rotary module that returns positions ``(batch, tokens, k)`` instead of a table."""

    def __init__(self, rotary: Rotary, turning: Mapping[str, Module]) -> None:
        super().__init__()
        if hasattr(rotary.parent, _CLASS):
            raise ValueError(
                f"{type(rotary.parent).__name__} turns its class token by learned angles instead of a position; "
                "expected a model that does not"
            )
        self.turning = torch.nn.ModuleDict(turning)  # by kind of layer
        self.__dict__["rotary"] = rotary  # no part of the model any more
        # its attention turns the last features of a head, undoes rotations, too, takes one table of complex numbers
        self.turns_last = known(_model_type(rotary.module)).get("rotated") == "last"
        self.turns_back = self.is_complex = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse: the attention that goes with it would come back as it was, and take positions for tables."""
        raise TypeError(
            "a model with a replaced rotation cannot be pickled; expected its state_dict or save_pretrained, or "
            "undo() before, and replace_rotary again after loading"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Positions:
        """Copy it with a model, whose attention goes on to turn by the original: alike, unless that is learned."""
        if any(True for _ in self.turning.parameters()):
            raise TypeError(
                "a model with a learned replaced rotation cannot be copied, as the copy would learn the original's; "
                "expected replace_rotary on a copy of the original model, and load_state_dict"
            )
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the module that it replaces, such as its config, which code of models may read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["rotary"].module, name)

    def forward(self, x: Any, position_ids: Any, layer_type: str | None = None) -> Any:
        """Return positions in place of cos, and in place of sin the kind of layer, if there are several."""
        if layer_type not in self.turning and self.has_kinds:
            raise ValueError(f"layer_type is {show(layer_type)}; expected one of {', '.join(self.turning)}")
        index = [*self.turning].index(layer_type) if layer_type in self.turning else 0
        positions = self._split_axes(position_ids, self.turning_module(index).axes)
        if not self.is_tagged:  # code between this and the attention may take parts of both, as of tables
            return positions if self.is_complex else (positions, positions)
        tag = positions.new_empty((1 + index, 0))
        return positions, tag.as_subclass(_Tag) if self.turns_back else tag

    @property
    def has_kinds(self) -> bool:
        """True if several kinds of layers have their own rotary embeddings."""
        return len({*self.turning.values()}) > 1

    @property
    def is_tagged(self) -> bool:
        """True if positions come with a tensor that names their kind of layer."""
        return not self.is_complex and (self.turns_back or self.has_kinds)

    def _split_axes(self, position_ids: Any, axes: int) -> Any:
        """Positions with their axes last; those of M-RoPE come with their axes first."""
        if axes > 1 and not self.__dict__["rotary"].is_text:
            return position_ids
        if position_ids.ndim < 3:
            return position_ids[..., None]
        if axes == 1 and position_ids.stride(0) and bool((position_ids != position_ids[-1:]).any()):
            raise ValueError(
                f"position_ids have {len(position_ids)} axes that differ, as in M-RoPE for images, but the "
                f"Rope has one; expected a Rope with sections, or of {len(position_ids)} axes"
            )
        return position_ids[-axes:].movedim(0, -1)

    def turning_module(self, index: int) -> Module:
        """Return the rotary embedding of a kind of layer, by its number."""
        return [*self.turning.values()][index]


def turning_modules(module: Module, rope: Any) -> dict[str, Module]:
    """Return the rotary embeddings by kind of layer ("all" if there is one), checked against the model's own."""
    from rfrope.layers.torch import RotaryEmbedding

    widths = {  # numbers of blocks by kind of layer, as far as the module holds frequencies
        name.removesuffix("inv_freq").rstrip("_") or "all": value.shape[-1]
        for name, value in module.named_buffers()
        if name.endswith("inv_freq") and "original" not in name
    }
    ropes = dict(rope) if isinstance(rope, Mapping) else dict.fromkeys(widths or ("all",), rope)
    if missing := widths.keys() - ropes.keys():
        raise ValueError(f"rope has {', '.join(sorted(ropes))}; expected a Rope for {', '.join(sorted(missing))}, too")
    found: dict[str, Module] = {}
    made: dict[int, Module] = {}
    for kind in widths or ropes:  # a mapping may be for several parts
        one = ropes[kind]
        if isinstance(one, list | tuple) and one and isinstance(one[0], Rope | RotaryEmbedding):
            raise TypeError(f"rope is {show(one)}; expected a Rope, or a dict of Ropes by kind of layer")
        if getattr(getattr(one, "rope", one), "polar", False):
            raise ValueError("rope is polar; expected a Rope with polar=False")
        _check_pairing(module, getattr(one, "rope", one))
        if id(one) not in made and not isinstance(one, RotaryEmbedding):
            made[id(one)] = RotaryEmbedding(one)
            if isinstance(made[id(one)].start.head_dim, Assumed):  # heads are as wide as the model has them
                made[id(one)].head_dim = None
        found[kind] = made.get(id(one), one)
        _check_blocks(found[kind], module, widths.get(kind))
    return found


def _check_blocks(turning: Module, module: Module, width: int | None) -> None:
    """Refuse a module that turns another layout, other axes or another number of blocks than that of the model."""
    if turning.layout != "bhtd":
        raise ValueError(f"the module has layout={turning.layout!r}; expected 'bhtd' in a model")
    blocks = turning.start.n_blocks
    if turning.axes == 1 and "axial" in known(_model_type(module)):
        raise ValueError(f"the Rope has one axis, {_model_type(module)} two; expected a Rope with sections or two axes")
    if width is not None and blocks not in (width, width * turning.axes):  # for all axes, or for each
        raise ValueError(f"the Rope has {blocks} blocks, but {type(module).__name__} has {width}; expected {width}")


def _check_pairing(module: Module, rope: Any) -> None:
    """Refuse a Rope with another pairing than the weights of a model, and a model that fits no pairing."""
    kind, rope_pairing = _model_type(module), getattr(rope, "pairing", "half")
    pairing = _pairing(getattr(module, "config", None))
    if pairing == "neither":
        if known(kind).get("negated") is not True:
            raise ValueError(f"{kind}: {known(kind)['pairing_note']}; no Rope does that")
        if rope_pairing is None:
            raise ValueError(
                f"{kind} turns the other way; expected dataclasses.replace(rope, frequencies=-rope.frequencies, "
                "pairing='half')"
            )
        pairing = "half"
    if None not in (pairing, rope_pairing) and pairing != rope_pairing:
        raise ValueError(
            f"the Rope pairs {rope_pairing!r}, but {kind} pairs {pairing!r}; expected "
            f"dataclasses.replace(rope, pairing={pairing!r})"
        )


def _model_type(module: Module) -> Any:
    return getattr(getattr(module, "config", None), "model_type", None)


def _pairing(config: Any) -> str | None:
    """The features that the weights of a model pair; None where the table of model types does not know."""
    entry = known(getattr(config, "model_type", None))
    by = entry.get("pairing_by", {})
    chosen = getattr(config, by["key"], None) if by else None
    return entry.get("pairing") if chosen is None else str(by["if_true" if chosen else "if_false"])


# -- attention that turns by positions ---------------------------------------------------------------------------------


def swap(names: dict[str, Any], name: str, value: Any, undo: ExitStack) -> None:
    """Put a value in a dict, and register how to undo that."""
    if name in names:
        undo.callback(names.__setitem__, name, names[name])
    else:
        undo.callback(names.pop, name, None)
    names[name] = value


def rotating_methods(attention: Module) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield methods of an attention module that call functions of cos and sin: name, function, and those functions."""
    for kind in type(attention).__mro__:
        if kind is torch.nn.Module:
            break
        for name, method in vars(kind).items():
            function = inspect.unwrap(method) if inspect.isfunction(method) else None
            if function is None:
                continue
            called = {one: function.__globals__.get(one) for one in function.__code__.co_names if _ROTATION.search(one)}
            taken = {one: inspect.signature(f).parameters.keys() for one, f in called.items() if callable(f)}
            if called := {one: called[one] for one, names in taken.items() if any(has <= names for has in _TABLES)}:
                yield name, function, called


def redirect(attention: Module, positions: Positions, undo: ExitStack) -> bool:
    """Replace the functions of cos and sin that an attention module calls by functions of positions."""
    found = False
    for name, function, called in rotating_methods(attention):
        if name in vars(attention):
            continue
        for one in called.values():  # more than features, tables, layout: keys have other positions
            if more := {*inspect.signature(one).parameters} & _MORE:
                raise ValueError(
                    f"{type(attention).__name__} turns keys at other positions than queries, by "
                    f"{', '.join(sorted(more))} of its {one.__name__}; expected attention that turns both by one table"
                )
        positions.turns_back |= bool(_BACK.search(inspect.getsource(function)))
        positions.is_complex |= any("freqs_cis" in inspect.signature(one).parameters for one in called.values())
        method = calling(function, {one: _rotation_by_positions(f, positions) for one, f in called.items()})
        swap(attention.__dict__, name, types.MethodType(method, attention), undo)
        found = True
    return found


def calling(function: Any, replaced: Mapping[str, Any]) -> Any:
    """Return a copy of a function with some of its global names replaced."""
    names = function.__globals__ | replaced
    names.pop("__name__", None)  # by which PyTorch's compiler would find those of the module itself
    made: Any = types.FunctionType(function.__code__, names, closure=function.__closure__)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    made.__annotations__ = function.__annotations__
    return made


def _rotation_by_positions(rotation: Callable[..., Any], positions: Positions) -> Callable[..., Any]:
    """A function with the parameters of a model's own, that turns by the positions which come in place of a table."""

    def rotate(named: dict[str, Any], features: list[str], heads_last: bool) -> Any:
        places, number, back = _read_positions(named, positions)
        rotary = positions.turning_module(number)
        given = tuple(named[name] for name in features if named.get(name) is not None)
        if len(given) == 1 and rotary.phases is not None:
            raise ValueError("phases are learned, but this model rotates q and k alike; expected frequencies alone")
        found = rotate_features(rotary, positions.turns_last, given, -places if back else places, heads_last)
        if "rotated" in positions.__dict__:  # where a text is cached
            turned = (one.transpose(-3, -2) if heads_last else one for one in (given[-1], found[-1]))
            positions.__dict__["rotated"] = (*turned, back, number)
        return found if len(given) == 2 else found[0]

    return wrap(rotation, rotate)


def _read_positions(arguments: Mapping[str, Any], positions: Positions) -> tuple[Any, int, bool]:
    """Positions as the module that turns takes them, the number of the kind of layer, and whether to turn back."""
    places = arguments["freqs_cis" if positions.is_complex else "cos"]
    if places.is_floating_point() and places.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"this model rounds its positions to {places.dtype}; expected a model in float32")
    places = places[..., 0] if places.shape[-1] == 1 else places
    if not positions.is_tagged:
        return places, 0, False
    return places, arguments["sin"].shape[0] - 1, arguments["sin"].ndim == 3


def wrap(rotation: Callable[..., Any], run: Callable[[dict[str, Any], list[str], bool], Any]) -> Callable[..., Any]:
    """A function that gives `run` its arguments by name, names of queries and keys, and whether heads follow tokens."""
    parameters = inspect.signature(rotation).parameters
    names, axis = [*parameters], parameters.get("unsqueeze_dim")
    first = min(names.index(one) for one in ("cos", "sin", "freqs_cis") if one in names)
    features = [name for name in names[:first] if name != "v"][:2]
    by_shape = {axes: axis is None and _has_heads_last(rotation, axes) for axes in (3, 4)}

    def call(*arguments: Any, **options: Any) -> Any:
        named = dict(zip(names, arguments, strict=False)) | options
        is_last = by_shape[named[features[0]].ndim]
        if axis is not None:
            is_last = named.get("unsqueeze_dim", axis.default) in (2, -2)
        return run(named, features, is_last)

    return call


def _has_heads_last(rotation: Callable[..., Any], axes: int) -> bool:
    """Return whether a function takes ``(..., tokens, heads, d)``, found by calling it on two tokens of three heads."""
    parameters = inspect.signature(rotation).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    tables = [name for name in needed if name in ("cos", "sin", "freqs_cis")]
    for width in (8, 4):
        for last in (False, True):
            x = torch.zeros(1, *((2, 3) if last else (3, 2)), 8)[(0,) * (4 - axes)]
            table = torch.zeros(1, 2, width, dtype=torch.complex64 if "freqs_cis" in tables else None)
            try:
                rotation(**dict.fromkeys(needed, x) | dict.fromkeys(tables, table[(0,) * (4 - axes)]))
            except (RuntimeError, IndexError, ValueError, AssertionError):
                continue
            return last
    return False


def rotate_features(rotary: Module, turns_last: bool, features: tuple[Any, ...], places: Any, heads_last: bool) -> Any:
    """Queries and keys, or one of them, turned; where there are fewer queries they are at the last positions."""
    width = rotary.start.rotary_dim
    if turns_last and width < features[0].shape[-1]:
        parts = rotate_features(rotary, False, tuple(x[..., -width:] for x in features), places, heads_last)
        return tuple(torch.cat([x[..., :-width], y], -1) for x, y in zip(features, parts, strict=True))
    if heads_last:
        found = rotate_features(rotary, False, tuple(x.transpose(-3, -2) for x in features), places, False)
        return tuple(x.transpose(-3, -2) for x in found)
    if len(features) == 1:
        return (rotary.rotate(features[0], places),)
    q, k = features
    if q.shape[-2] == k.shape[-2]:
        return rotary(q, k, places)
    axis = -1 if rotary.axes == 1 else -2
    return rotary(q, k, places.narrow(axis, places.shape[axis] - q.shape[-2], q.shape[-2]), k_positions=places)
