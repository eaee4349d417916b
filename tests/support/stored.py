"""Files of Ropes that say something else of themselves than `save` writes."""

import hashlib
import json
from typing import Any

import numpy as np


def told(path: Any) -> dict[str, Any]:
    """Return what an ``.npz`` says of its frequencies."""
    with np.load(path, allow_pickle=False) as archive:
        return json.loads(str(archive["metadata"]))


def rewritten(path: Any, *, frequencies: np.ndarray | None = None, **changes: Any) -> None:
    """Write an ``.npz`` again with changes and the digest of these; None removes an entry."""
    if frequencies is None:
        with np.load(path, allow_pickle=False) as archive:
            frequencies = archive["frequencies"]
    metadata = {name: value for name, value in (told(path) | {"digest": None} | changes).items() if value is not None}
    if "digest" not in changes and metadata.get("format") != 1:
        metadata["digest"] = hashlib.sha256(json.dumps(metadata).encode() + frequencies.tobytes()).hexdigest()
    np.savez(path, frequencies=frequencies, metadata=json.dumps(metadata))
