"""Frequencies of rfrope in the models of transformers: by the config alone, or in place of a model's own rotation."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any, TypeAlias

from rfrope import kernels
from rfrope._core import angles
from rfrope._core.arguments import positive, whole
from rfrope.data.model_types import known
from rfrope.designs import design
from rfrope.rotation.rope import Rope

try:
    import torch
    from transformers import modeling_rope_utils
except ImportError as error:
    raise ImportError(
        "rfrope.integrations.transformers needs PyTorch and transformers 5: pip install 'rfrope[transformers]'"
    ) from error

__all__ = ["Replacement", "register", "replace_rotary"]

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

ROPE_TYPE = "rfrope"
_DESIGNED = ("kernel", "design", "seed", "context")
_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "frequencies", "attention_factor", *_DESIGNED}
_ROTATION = re.compile("apply_.*(rotary|rope)")
_PERCEPTION = re.compile(r"(^|[._])(vision|visual|vit|image|video|audio)", re.IGNORECASE)  # in the path of a module
_PERCEIVING = re.compile("vision|visual|image|video|audio", re.IGNORECASE)  # in the name of a class


# -- a config that decides ---------------------------------------------------------------------------------------------


def register() -> None:
    """Make rope_type "rfrope" known to transformers, with its validation.

    A config then decides the frequencies by its ``rope_parameters``, through save and load, `generate` and training:

    - ``{"rope_type": "rfrope", "kernel": "matern(nu=1.5, scale=64.0)", "design": "optimised", "seed": 3}``: what
      `rfrope.design` makes of the kernel's text. Unless given, ``design`` is "auto", ``seed`` 0, and ``context`` the
      config's ``max_position_embeddings``.
    - ``{"rope_type": "rfrope", "frequencies": [...]}``: radians per position, one for each block.

    Both may have an ``attention_factor``; ``rope_theta`` means nothing here. Models with kinds of layers have one such
    dict for each, as transformers has it. To be called once in a process, before such a config is loaded.

    Raises
    ------
    ImportError
        From the module, where PyTorch or transformers is missing; the message names the extra to install.

    Notes
    -----
    The rotation stays transformers' own, with frequencies in float32 and tables in the dtype of the model;
    `replace_rotary` makes it exact, and takes sets for each head and of several axes.

    Examples
    --------
    >>> register()
    >>> import transformers
    >>> rope_parameters = {"rope_type": "rfrope", "kernel": "gaussian(scale=32)", "seed": 3}
    >>> config = transformers.LlamaConfig(head_dim=64, rope_parameters=rope_parameters)
    """
    modeling_rope_utils.ROPE_INIT_FUNCTIONS[ROPE_TYPE] = _initialised
    modeling_rope_utils.RotaryEmbeddingConfigMixin._validate_rfrope_rope_parameters = _validated


def _initialised(
    config: Any = None, device: Any = None, seq_len: int | None = None, layer_type: str | None = None, **others: Any
) -> tuple[Any, float]:
    """Frequencies in float32 and the attention factor, as transformers asks for them."""
    told = config.rope_parameters
    if layer_type is not None and layer_type in told:
        told = told[layer_type]
        config = config.per_layer_config[layer_type] if getattr(config, "is_heterogeneous", False) else config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = int(head_dim * (told.get("partial_rotary_factor") or 1.0))
    rope = _made(json.dumps(dict(told), sort_keys=True), head_dim, width, config.max_position_embeddings)
    return torch.tensor(rope.frequencies.tolist(), dtype=torch.float32, device=device), rope.attention_factor


@lru_cache(maxsize=64)
def _made(text: str, head_dim: int, width: int, context: int) -> Rope:
    """Rope of the dict in a config; kept, because a model asks for it several times and a design may take seconds."""
    told = json.loads(text)
    factor = positive("attention_factor", told.get("attention_factor") or 1.0)
    if told.get("frequencies") is not None:
        given = angles.on_host(told["frequencies"], "frequencies", sets="line")[:, 0]
        if 2 * len(given) != width:
            raise ValueError(f"rope_parameters has {len(given)} frequencies; expected {width // 2}, one for each block")
        return Rope(given, head_dim=head_dim, attention_factor=factor)
    made = design(
        told["kernel"],
        head_dim=head_dim,
        rotary_dim=width,
        context=whole("context", told.get("context") or context, 2),
        design=told.get("design") or "auto",
        rng=whole("seed", told.get("seed") or 0),
    )
    return Rope(made.frequencies, head_dim=head_dim, attention_factor=factor)


def _validated(config: Any, rope_parameters: Mapping[str, Any], ignore_keys: set[str] | None = None) -> None:
    """Refuse a dict that says too little, too much, or something that cannot be read."""
    has = {key for key, value in rope_parameters.items() if value is not None}
    if unknown := has - _KEYS - set(ignore_keys or ()):
        raise ValueError(
            f"rope_parameters of rope_type 'rfrope' has {', '.join(sorted(unknown))}; expected no such key"
        )
    if ("kernel" in has) == ("frequencies" in has):
        raise ValueError("rope_parameters of rope_type 'rfrope' needs either 'kernel' or 'frequencies'")
    if "frequencies" in has:
        if extra := has & set(_DESIGNED):
            raise ValueError(
                f"rope_parameters has frequencies and {', '.join(sorted(extra))}; expected one or the other"
            )
        angles.on_host(rope_parameters["frequencies"], "frequencies", sets="line")
    else:
        kernels.parse(rope_parameters["kernel"])


# -- another rotation in a model that is there -------------------------------------------------------------------------


class Replacement:
    """A rotation that was put in the place of a model's own; also a context manager, which takes it out at the end.

    Attributes
    ----------
    attentions : int
        How many attention modules turn by it.
    rotaries : int
        How many modules of the model gave tables of cos and sin, and now give positions.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.attentions = self.rotaries = 0

    def undo(self) -> None:
        """Give the model its own rotation back. A second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def replace_rotary(model: Module, rope: Any) -> Replacement:
    """Turn the queries and keys of a loaded model by a Rope, exactly, in place of its own rotation.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With a rotary module that makes tables from positions, as most have.
    rope : Rope, array_like, `rfrope.layers.torch.RotaryEmbedding`, or mapping of str to these
        For all layers, or by kind of layer, as in ``config.layer_types``. With sets for each head of the keys, or
        several axes of positions, too; with a module, what it learns is trained with the model.

    Returns
    -------
    Replacement
        With ``undo()``; also a context manager.

    Raises
    ------
    ValueError
        If the model has no such module of text, pairs features in another way than the Rope, turns another number of
        blocks, turns back by its tables, too, or has kinds of layers that a mapping lacks. The model is then as it was.

    Notes
    -----
    The rotary module gives positions in place of tables, and the attention modules, which pass them on to their
    function of q, k, cos and sin, get a function of q, k and positions instead: this model's alone, nothing of its
    class is changed. Parts that see or hear keep their own rotation. A Rope of one axis in a model of M-RoPE is for
    text: position ids whose axes differ are refused. Caches hold turned keys, as ever, so a cache must not be used
    across a replacement.

    Examples
    --------
    >>> import rfrope, torch, transformers
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=8, hidden_size=32, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    ... )
    >>> model = transformers.LlamaForCausalLM(config)
    >>> with replace_rotary(model, rfrope.geometric(8)) as replacement:
    ...     logits = model(torch.arange(5)[None]).logits
    >>> replacement.attentions
    2
    """
    done = Replacement()
    rotaries = [*_rotaries(model)]
    if not any(rotary.of_text for rotary in rotaries):
        raise ValueError(
            f"{type(model).__name__} has no rotary module of text that makes tables from positions; expected a model "
            "that has"
        )
    try:
        made: dict[int, _Positions] = {}
        for rotary in rotaries:
            if rotary.of_text:
                made[id(rotary)] = _Positions(_turning(rotary.own, rope), rotary.own)
                _swap(rotary.parent._modules, rotary.name, made[id(rotary)], done)
                done.rotaries += 1
        for path, attention in model.named_modules():
            rotary = _nearest(path, rotaries)
            if rotary.of_text and not _PERCEPTION.search(path):
                done.attentions += _redirect(attention, made[id(rotary)], done)
        if not done.attentions:
            raise ValueError(
                f"{type(model).__name__} has no attention that turns q and k by cos and sin; expected a model that has"
            )
    except BaseException:
        done.undo()
        raise
    return done


class _Positions(torch.nn.Module):
    """What stands in the place of a rotary module: it gives positions ``(batch, tokens, k)`` in place of a table."""

    def __init__(self, turning: dict[str, Module], own: Module) -> None:
        super().__init__()
        self.turning = torch.nn.ModuleDict(turning)
        self.__dict__["own"] = own  # no part of the model any more
        self.turns_last = known(getattr(getattr(own, "config", None), "model_type", None)).get("rotated") == "last"

    def __getattr__(self, name: str) -> Any:
        """What else code of models asks of its rotary module, such as its config."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["own"], name)

    def forward(self, x: Any, position_ids: Any, layer_type: str | None = None) -> tuple[Any, Any]:
        """Positions, and a tensor without elements whose length says for which kind of layer they are."""
        index = [*self.turning].index(layer_type) if layer_type in self.turning else 0
        if layer_type not in self.turning and len({*self.turning.values()}) > 1:
            raise ValueError(f"layer_type is {layer_type!r}; expected one of {', '.join(self.turning)}")
        axes = self.of(index).axes
        several = position_ids.ndim == 3  # M-RoPE, and models that count text on several axes
        if several and axes == 1 and position_ids.stride(0) and bool((position_ids != position_ids[-1:]).any()):
            raise ValueError(
                f"position_ids have {len(position_ids)} axes that differ, as M-RoPE has them for pictures, but the "
                f"Rope has one; expected a Rope with sections, or of {len(position_ids)} axes"
            )
        positions = position_ids[-axes:].movedim(0, -1) if several else position_ids[..., None]
        return positions, positions.new_empty((1 + index, 0))

    def of(self, index: int) -> Module:
        """What turns in a kind of layer."""
        return [*self.turning.values()][index]


@dataclass(frozen=True, eq=False)
class _Rotary:
    """A module that makes tables of cos and sin from positions, where it is, and whether it counts tokens of text."""

    parent: Module
    path: str  # of the parent
    name: str
    own: Module
    of_text: bool


def _rotaries(model: Module) -> Iterator[_Rotary]:
    """Modules that make tables of cos and sin from positions, those of parts that see or hear among them."""
    for path, parent in [*model.named_modules()]:
        for name, child in [*parent.named_children()]:
            if "Rotary" in type(child).__name__ and "position_ids" in inspect.signature(child.forward).parameters:
                yield _Rotary(parent, path, name, child, not _perceives(f"{path}.{name}", child))


def _perceives(path: str, rotary: Module) -> bool:
    """Whether a rotary module is of a part that sees or hears; models of text with such names have a vocabulary."""
    if _PERCEPTION.search(path):
        return True
    config = getattr(rotary, "config", None)
    names = (type(rotary).__name__, type(config).__name__, str(getattr(config, "model_type", "")))
    has_text = getattr(config, "vocab_size", None) is not None or any("text" in name.lower() for name in names)
    return not has_text and any(map(_PERCEIVING.search, names))


def _nearest(path: str, rotaries: list[_Rotary]) -> _Rotary:
    """The rotary module of a module's own sub-model: that of the nearest part around it, of text if it has several."""
    steps = path.split(".")

    def nearness(rotary: _Rotary) -> tuple[bool, int, bool]:
        others = rotary.path.split(".") if rotary.path else []
        same = len([*takewhile(lambda pair: pair[0] == pair[1], zip(steps, others, strict=False))])
        return same == len(others), same, rotary.of_text

    return max(reversed(rotaries), key=nearness)


def _turning(own: Module, rope: Any) -> dict[str, Module]:
    """The modules that turn, by kind of layer ("all" where there is one), checked against those of the model."""
    from rfrope.layers.torch import RotaryEmbedding

    widths = {
        name.removesuffix("inv_freq").rstrip("_") or "all": value.shape[-1]
        for name, value in own.named_buffers()
        if name.endswith("inv_freq") and "original" not in name
    }
    ropes = dict(rope) if isinstance(rope, Mapping) else dict.fromkeys(widths or ("all",), rope)
    if missing := widths.keys() - ropes.keys():
        raise ValueError(f"rope has {', '.join(sorted(ropes))}; expected a Rope for {', '.join(sorted(missing))}, too")
    ropes = {kind: ropes[kind] for kind in widths or ropes}  # a mapping may be for several parts
    found: dict[str, Module] = {}
    made: dict[int, Module] = {}
    for kind, one in ropes.items():
        module = made.setdefault(id(one), one if isinstance(one, RotaryEmbedding) else RotaryEmbedding(one))
        held = module.rope
        if (width := widths.get(kind)) is not None and held.n_blocks != width:
            raise ValueError(
                f"the Rope has {held.n_blocks} blocks, but {type(own).__name__} has {width}; expected as many"
            )
        pairing = _pairing(getattr(own, "config", None))
        if pairing not in (None, held.pairing):
            raise ValueError(
                f"the Rope pairs {held.pairing!r}, but {own.config.model_type} pairs {pairing!r}; expected "
                f"dataclasses.replace(rope, pairing={pairing!r})"
            )
        found[kind] = module
    return found


def _pairing(config: Any) -> str | None:
    """Which features the weights of a model pair; None where the table of model types does not know."""
    entry = known(getattr(config, "model_type", None))
    by = entry.get("pairing_by", {})
    told = getattr(config, by["key"], None) if by else None
    if told is None:
        return entry.get("pairing")
    return str(by["if_true" if told else "if_false"])


def _swap(held: dict[str, Any], name: str, value: Any, done: Replacement) -> None:
    """Put a value in a dict, and note how to undo that."""
    before, was_there = held.get(name), name in held
    held[name] = value

    def undo() -> None:
        if was_there:
            held[name] = before
        else:
            held.pop(name, None)

    done._undo.append(undo)


def _redirect(attention: Module, positions: _Positions, done: Replacement) -> bool:
    """Let the methods of an attention module that call a function of cos and sin call one of positions."""
    found = False
    for kind in type(attention).__mro__:
        if kind is torch.nn.Module:
            break
        for name, method in vars(kind).items():
            function = inspect.unwrap(method) if inspect.isfunction(method) else None
            if function is None or name in vars(attention):
                continue
            names = [one for one in function.__code__.co_names if _ROTATION.match(one)]
            rotations = {one: function.__globals__[one] for one in names if callable(function.__globals__.get(one))}
            rotations = {one: f for one, f in rotations.items() if {"cos", "sin"} <= {*inspect.signature(f).parameters}}
            if not rotations or "vision" in "".join(rotations):
                continue
            if re.search(r"-\s*sin\b", inspect.getsource(function)):
                raise ValueError(
                    f"{type(attention).__name__} turns back by -sin, too; expected attention that does not"
                )
            changed = {one: _by_positions(f, positions) for one, f in rotations.items()}
            names_there = {**function.__globals__, **changed}
            names_there.pop("__name__", None)  # by which PyTorch's compiler would find those of the module itself
            copied = types.FunctionType(
                function.__code__,
                names_there,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            copied.__kwdefaults__ = function.__kwdefaults__
            _swap(attention.__dict__, name, types.MethodType(copied, attention), done)
            found = True
    return found


def _by_positions(rotation: Callable[..., Any], positions: _Positions) -> Callable[..., Any]:
    """A function with the parameters of a model's own, that turns by the positions which come in place of cos."""
    names = [*inspect.signature(rotation).parameters]
    features = [name for name in names[: min(names.index("cos"), names.index("sin"))] if name != "v"]

    def turned(*arguments: Any, **options: Any) -> Any:
        given = dict(zip(names, arguments, strict=False)) | options
        at, rotary = given["cos"], positions.of(given["sin"].shape[0] - 1)
        heads_last = given.get("unsqueeze_dim", 1) == 2
        at = angles.as_given(at, rotary.axes)
        if rotary.rope.rotary_dim < given[features[0]].shape[-1] and positions.turns_last:
            raise ValueError("this model turns the last features of a head inside its function, which is not supported")
        q, k = given[features[0]], given.get(features[1]) if len(features) > 1 else None
        turned_q, turned_k = _turned(rotary, q, q if k is None else k, at, heads_last)
        if len(features) == 1:
            return turned_q
        return turned_q, (None if k is None else turned_k)

    return turned


def _turned(rotary: Module, q: Any, k: Any, at: Any, heads_last: bool) -> tuple[Any, Any]:
    if not heads_last:
        found: tuple[Any, Any] = rotary(q, k, at)
        return found
    q, k = rotary(q.transpose(1, 2), k.transpose(1, 2), at)
    return q.transpose(1, 2), k.transpose(1, 2)
