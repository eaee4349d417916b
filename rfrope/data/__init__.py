"""Real query and key vectors shipped with the package; README.md in this folder gives their origin."""

from __future__ import annotations

from importlib.resources import files

import numpy as np


def smollm2_heads() -> dict[str, np.ndarray]:
    """Return queries and keys, before rotation, of two attention heads of SmolLM2-135M-Instruct.

    Returns
    -------
    dict of str to ndarray
        ``previous_q``, ``previous_k``: (169, 64) float32, a previous-token head. ``induction_q``, ``induction_k``:
        (120, 64) float32, an induction head (lag -59). ``*_attention``: the model's causal softmax attention.
        ``*_token_ids``; ``inv_freq``: (32,) float32, radians per token, pairing "half".

    See Also
    --------
    validation.example_pairs, heads.profile

    Examples
    --------
    >>> smollm2_heads()["previous_q"].shape
    (169, 64)
    """
    with files(__name__).joinpath("smollm2_heads.npz").open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
