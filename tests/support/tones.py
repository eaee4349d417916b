"""A law of a few atoms, over which expectations are sums of all outcomes."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rfrope import Kernel


@dataclasses.dataclass(frozen=True, repr=False)
class Tones(Kernel):
    """Atoms at +-frequency for each of some vectors."""

    name = "tones"
    frequencies: tuple[tuple[float, ...], ...] = ((0.7,), (1.9,))
    weights: tuple[float, ...] = (0.25, 0.75)
    ndim: int = 1

    def _phi(self, lags: Any, xp: Any) -> Any:
        pairs = zip(self.weights, self.frequencies, strict=True)
        return sum(w * xp.cos(xp.sum(lags * xp.asarray(f), axis=-1)) for w, f in pairs)

    def outcomes(self) -> list[tuple[float, np.ndarray]]:
        pairs = zip(self.weights, self.frequencies, strict=True)
        return [(0.5 * w, s * np.asarray(f)) for w, f in pairs for s in (1.0, -1.0)]


def enumerate_scores(
    law: Tones, n_blocks: int, score: Callable[[np.ndarray], Any], *, antithetic: bool = False
) -> tuple[float, float]:
    """Mean and variance of a function of the frequencies ``(D, k)`` over all outcomes of blocks, or of their pairs."""
    first = second = 0.0
    for outcome in itertools.product(law.outcomes(), repeat=(n_blocks + 1) // 2 if antithetic else n_blocks):
        probability = math.prod(weight for weight, _ in outcome)
        omega = np.stack([frequency for _, frequency in outcome])
        if antithetic:
            omega = np.repeat(omega, 2, axis=0)[:n_blocks] * np.where(np.arange(n_blocks) % 2, -1.0, 1.0)[:, None]
        value = score(omega)
        first, second = first + probability * value, second + probability * value**2
    return float(first), float(second - first**2)
