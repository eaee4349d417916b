"""Steps that all schemes share: reading frequencies and numbers, and making the Rope that they return."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, arguments, array
from rfrope._core.arguments import whole
from rfrope._core.array import Array
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope, replace_fields

_LADDER = 1e-5  # how far, relatively, frequencies may be from a geometric ladder whose base is looked for


def positive(name: str, value: Any) -> float:
    """Return a positive number that stays a float64 cubed and divided, far beyond the parameters of all models."""
    return arguments.positive(name, value, least=2.0**-100, most=2.0**100)


def read(frequencies: Any, *, sets: str = "line", **beside: Any) -> tuple[Array, ModuleType]:
    """Check frequencies, and return them in the shape they have and the widest float of their library."""
    theta = frequencies.frequencies if isinstance(frequencies, Rope) else frequencies
    xp, device = array.shared(frequencies=theta, **beside)
    checked = angles.frequencies(theta, xp, device, sets=sets)
    return angles.from_vectors(checked, theta), xp


def scaled(given: Any, frequencies: Array, attention_factor: float, scheme: str, **parameters: Any) -> Rope:
    """Return the Rope of a scheme's result, with a longer context; it keeps what else a given Rope held."""
    step = {"scheme": scheme, **{name: value for name, value in parameters.items() if value is not None}}
    if not isinstance(given, Rope):
        return Rope(frequencies, attention_factor=attention_factor, source=Provenance(scaled_by=(step,)))
    longer = 1.0 if scheme == "dynamic" else float(parameters.get("factor") or 1.0)
    return replace_fields(
        given,
        frequencies=frequencies,
        attention_factor=given.attention_factor * attention_factor,
        context=given.context and np.maximum(1, np.rint(longer * np.asarray(given.context))).astype(int).tolist(),
        source=replace(given.source, scaled_by=(*given.source.scaled_by, step)),
    )


def stretch(factor: float, seq_len: int | None, max_position_embeddings: int) -> float:
    """By what dynamic NTK scaling stretches the slowest wavelength for a sequence; 1 for a short one."""
    longest = whole("max_position_embeddings", max_position_embeddings, 1)
    length = longest if seq_len is None else max(whole("seq_len", seq_len, 1), longest)
    return factor * length / longest - (factor - 1)


def base_of(theta: Array, xp: ModuleType) -> float:
    """Base of a geometric ladder."""
    if not array.has_host_values(theta):
        raise ValueError("base is None, and frequencies are lazy or on a device, not to be looked at; pass base=")
    host = array.to_host(theta, "frequencies")
    n_blocks = host.shape[0]
    if n_blocks > 1 and host[-1] > 0.0:
        base = float(host[-1]) ** (-n_blocks / (n_blocks - 1))
        if np.allclose(host, base ** (-np.arange(n_blocks) / n_blocks), rtol=_LADDER, atol=0.0):
            return base
    raise ValueError("base is None, and frequencies are not a ladder base ** (-i / D) of two or more; pass base=")
