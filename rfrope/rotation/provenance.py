"""Origin of a Rope's frequencies: kernel and design, or place in a model's config, and later changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rfrope._core.arguments import show

_PLAIN = {str, int, float, bool, type(None)}  # kinds of values that need no copy


@dataclass(frozen=True)
class ModelPart:
    """Place in a model's config that describes a RoPE, with what its model type adds to the frequencies.

    Attributes
    ----------
    name : str
        ``""`` for the top level of a config with one RoPE; otherwise a path like ``"text_config.full_attention"``.
    model_type : str
        Model type in that place of the config.
    pairing_from : {"known", "given", "config", "assumed"} or None
        Source of the Rope's pairing: the table of transformers' attention classes, the caller, a key of the config, or
        the guess "half" for an unknown model type. None for a Rope without a config.
    turns_last : bool
        True if the model rotates the last features of a query or key instead of the first, as in latent attention.
    note : str
        Anything else to know about how this model type rotates.
    window : int or None
        Positions that the layers see, including the token itself; None where some see all.
    windows : dict
        Window of each kind of layer, where they differ.
    qk_head_dim : int or None
        Number of features in a score; more than ``head_dim`` with latent attention.
    cached_pairing : {"half", "interleaved"} or None
        Pairing of the keys that transformers' class caches, where it is not the Rope's.
    unmovable : str
        Reason why `rotation.relocate` cannot move cached keys, whatever their frequencies; "" where it can.
    layers : tuple of int
        Layers that use this Rope, counted from 0 in their part; None where the config does not determine them.
    softmax_factor : float or None
        Factor of the softmax scale beside the attention factor, as in DeepSeek's models with ``mscale_all_dim``; None
        where there is none.
    remarks : tuple of str
        Values of the config that its model type does not read, or that engines read differently.

    See Also
    --------
    rotation.Provenance, from_config

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> (rope,) = rfrope.from_config(config)
    >>> rope.source.model.model_type, rope.source.model.window
    ('llama', None)
    """

    name: str = ""
    model_type: str = ""
    pairing_from: str | None = None
    turns_last: bool = False
    note: str = ""
    window: int | None = None
    windows: dict[str, int | None] = field(default_factory=dict)
    qk_head_dim: int | None = None
    cached_pairing: str | None = None
    unmovable: str = ""
    layers: tuple[int, ...] | None = None
    softmax_factor: float | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Provenance:
    """Origin of a Rope's frequencies. All fields are optional and descriptive: no computation depends on them.

    Attributes
    ----------
    kernel : str, tuple of str or None
        Text of the kernel, or of one per head.
    design, norm : str or None
        Design that made the frequencies (`rfrope.design`), and the error that an optimised design minimised.
    seed : int, list of int or None
        Seed of a random design.
    error : dict
        ``rms`` and ``sup`` error of the design over the context.
    rope_parameters : dict
        The config's scheme and its values, defaults filled in, with the names of transformers 5.
    model : ModelPart
        Place in the config, for a Rope of `rfrope.from_config`.
    scaled_by : tuple of dict
        Schemes of ``rfrope.scaling`` that changed the frequencies, in order, with their arguments.
    extra : dict
        Other information, under names chosen by the maker of the frequencies.

    See Also
    --------
    Rope, rotation.ModelPart

    Examples
    --------
    >>> source = Provenance.from_dict({"kernel": "gaussian(scale=32.0)", "seed": 3, "author": "me"})
    >>> source.kernel, source.seed, source.extra
    ('gaussian(scale=32.0)', 3, {'author': 'me'})
    >>> source
    Provenance(kernel='gaussian(scale=32.0)', seed=3, author='me')
    """

    kernel: str | tuple[str, ...] | None = None
    design: str | None = None
    norm: str | None = None
    seed: Any = None
    error: dict[str, float] = field(default_factory=dict)
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    model: ModelPart = field(default_factory=ModelPart)
    scaled_by: tuple[dict[str, Any], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the non-empty fields as one flat dict of plain numbers, strings, lists and dicts, as files store it.

        Examples
        --------
        >>> Provenance(design="optimised", model=ModelPart(model_type="llama")).to_dict()
        {'design': 'optimised', 'model_type': 'llama'}
        """
        held = {name: value for name, value in vars(self).items() if name not in ("model", "extra")} | vars(self.model)
        said = {name: value for name, value in held.items() if not _is_empty(value)}
        lists = {name: list(value) for name, value in said.items() if isinstance(value, tuple)}
        beside = {name: value for name, value in self.extra.items() if name not in said}
        return {name: copied(value) for name, value in (said | lists | beside).items()}

    @classmethod
    def from_dict(cls, held: Mapping[str, Any]) -> Provenance:
        """Return the record of a dict, which is copied.

        Parameters
        ----------
        held : mapping
            Unknown keys, and values of another type than the field's, go into `extra`.

        Raises
        ------
        TypeError
            If a key is not a string.
        """
        if strange := [name for name in held if not isinstance(name, str)]:
            raise TypeError(f"source has the key {show(strange[0])}; expected names")
        rest = {name: copied(value) for name, value in held.items()}
        known = {name: rest.pop(name) for name, kinds in _KINDS.items() if isinstance(rest.get(name), kinds)}
        known |= {
            name: tuple(known[name])
            for name in ("kernel", "scaled_by", "layers", "remarks")
            if isinstance(known.get(name), list)
        }
        part = ModelPart(**{name: known.pop(name) for name in _PART if name in known})
        unsaid = [name for name in _KINDS if rest.get(name, "") is None]
        return cls(**known, model=part, extra={name: value for name, value in rest.items() if name not in unsaid})

    def __repr__(self) -> str:
        return f"Provenance({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"


def read_provenance(source: Any) -> Provenance:
    """Return the `Provenance` of a record, a dict or None."""
    if not isinstance(source, Provenance):
        if not isinstance(source, Mapping | None):
            raise TypeError(f"source is {show(source)}; expected a Provenance, a dict or None")
        return Provenance.from_dict(source) if source else Provenance()
    held, made = {**vars(source)}, object.__new__(Provenance)
    for name in ("error", "rope_parameters", "extra"):  # Ropes must not share mutable dicts
        if not isinstance(held[name], Mapping):
            raise TypeError(f"source.{name} is {show(held[name])}; expected a dict")
        held[name] = {**held[name]}
    if not isinstance(source.model, ModelPart):
        raise TypeError(f"source.model is {show(source.model)}; expected a ModelPart")
    made.__dict__.update(held)
    return made


_PART = tuple(each.name for each in fields(ModelPart))
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("design", "norm", "name", "model_type", "note"), (str,)),
    **dict.fromkeys(("pairing_from", "cached_pairing", "unmovable"), (str,)),
    **dict.fromkeys(("error", "rope_parameters", "windows"), (dict,)),
    **dict.fromkeys(("window", "qk_head_dim"), (int,)),
    "kernel": (str, list, tuple),
    "seed": (int, list),
    "softmax_factor": (float, int),
    "turns_last": (bool,),
    **dict.fromkeys(("scaled_by", "layers", "remarks"), (list, tuple)),
}


def _is_empty(value: Any) -> bool:
    """Return whether a file leaves a field out; a seed of 0 stays."""
    return value is None or value is False or (isinstance(value, str | dict | tuple) and not value)


def copied(value: Any, depth: int = 4) -> Any:
    """Return a copy of plain values; from `depth` on by the slower `copy.deepcopy`, as a value may contain itself."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if kind is dict and depth:
        return {name: copied(one, depth - 1) for name, one in value.items()}
    return [copied(one, depth - 1) for one in value] if kind is list and depth else copy.deepcopy(value)
