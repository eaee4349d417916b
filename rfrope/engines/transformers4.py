"""transformers 4, which reads neither base nor scheme of a config in the form of transformers 5."""

from __future__ import annotations

from rfrope.engines import observed
from rfrope.engines.record import Engine

_CACHED = "keys in a cache keep their old frequencies"
ENGINE = Engine(
    "transformers 4",
    observed.reading(
        "transformers 4",
        {
            "dynamic": f"recomputed for every text longer than the context; {_CACHED}",
            "longrope": f"long_factor for texts longer than {{}}, short_factor for others; {_CACHED}",
        },
    ),
)
