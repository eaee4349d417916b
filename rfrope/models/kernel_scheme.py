"""The scheme "rfrope" of a config: the text of a kernel to design frequencies from, or the frequencies themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from rfrope import kernels
from rfrope._core import angles
from rfrope._core.arguments import show, whole
from rfrope.designs import design
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import Scheme, rotated_width

NAME = "rfrope"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {show(value)}; expected a string")
    return value


def _kernel(name: str, value: Any) -> str:
    kernels.parse(_text(name, value))
    return str(value)


KEYS: dict[str, Callable[[str, Any], Any]] = {
    "kernel": _kernel,
    "design": _text,
    "seed": whole,
    "context": lambda name, value: whole(name, value, 2),
    "frequencies": lambda name, value: angles.read_on_host(value, name, shapes="line")[:, 0].tolist(),
}


def check(parameters: Mapping[str, Any]) -> None:
    """Raise an error if a dict is incomplete, ambiguous or unreadable; keys that hold None count as absent."""
    has = {key for key, value in parameters.items() if value is not None}
    if ("kernel" in has) == ("frequencies" in has):
        raise ValueError(f"rope_parameters of rope_type {NAME!r} needs either 'kernel' or 'frequencies'")
    if "frequencies" in has and (extra := has & (KEYS.keys() - {"frequencies"})):
        raise ValueError(f"rope_parameters has frequencies and {', '.join(sorted(extra))}; expected one or the other")
    for key in has & KEYS.keys():
        KEYS[key](f"rope_parameters[{key!r}]", parameters[key])


def make(values: Mapping[str, Any], head_dim: int, context: int | None, seq_len: int | None = None) -> Rope:
    """Return the Rope of checked values; cached, as models ask several times and a design may take seconds."""
    check(values)
    width = rotated_width(head_dim, values.get("partial_rotary_factor") or 1.0)
    parameters = {key: value for key, value in values.items() if key in SCHEME.optional and value is not None}
    return _made(json.dumps(parameters, sort_keys=True), head_dim, width, context)


@lru_cache(maxsize=64)
def _made(text: str, head_dim: int, width: int, context: int | None) -> Rope:
    parameters = json.loads(text)
    factor = parameters.get("attention_factor", 1.0)
    if "frequencies" in parameters:
        given = angles.read_on_host(parameters["frequencies"], "frequencies", shapes="line")[:, 0]
        if 2 * len(given) != width:
            raise ValueError(f"rope_parameters has {len(given)} frequencies; expected {width // 2}, one for each block")
        return Rope(given, head_dim=head_dim, attention_factor=factor)
    length = parameters.get("context", context)
    if length is None:
        raise ValueError("rope_parameters lacks context; a design needs it, or max_position_embeddings")
    made = design(
        parameters["kernel"],
        head_dim=head_dim,
        rotary_dim=width,
        context=length,
        design=parameters.get("design", "auto"),
        rng=parameters.get("seed", 0),
    )
    return Rope(made.frequencies, head_dim=head_dim, attention_factor=factor, source=made.source)


SCHEME = Scheme(
    NAME,
    "frequencies from a kernel's text or a list, as `integrations.transformers` writes them",
    make,
    optional=(*KEYS, "attention_factor"),
)
