"""Configurations that models were published with: the keys of their config.json that RoPE depends on, as written there.

`published.json` has a row for each model: its name, its config, and what must be found in it, by place. Where a config
there has ``"lists": n``, the published lists of one number for each frequency are replaced by made-up ones of the same
length; only these are not the models' own.
"""

import json
import pathlib
from typing import Any, NamedTuple


class Place(NamedTuple):
    """What a config says of one place in the model."""

    name: str
    rope_type: str
    head_dim: int
    n_blocks: int
    theta: float
    context: int | None


class Published(NamedTuple):
    """A model, its config, and what is in it."""

    model: str
    config: dict[str, Any]
    places: tuple[Place, ...]


def lists(n: int) -> dict[str, list[float]]:
    """Lists for longrope, which rise with the wavelength as published ones do."""
    return {
        "short_factor": [1.0 + 0.02 * i for i in range(n)],
        "long_factor": [1.0 + 63.0 * (i / (n - 1)) ** 2 for i in range(n)],
    }


def with_lists(config: dict[str, Any]) -> dict[str, Any]:
    return config | lists(config.pop("lists")) if "lists" in config else config


ROWS = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text("utf-8"), object_hook=with_lists)
PUBLISHED = tuple(Published(model, config, tuple(Place(*one) for one in places)) for model, config, *places in ROWS)
BY_MODEL = {one.model: one for one in PUBLISHED}
