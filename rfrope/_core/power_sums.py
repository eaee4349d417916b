"""Sums of powers along trials, merged in any number of parts."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from rfrope._core.array import Array


@dataclass(frozen=True)
class MeanSums:
    """Count, mean and central sum of squares along the draws."""

    n: int
    mean: Array
    m2: Array

    def merge(self, other: MeanSums) -> MeanSums:
        """Combine those of two disjoint sets of draws (Chan et al. 1983)."""
        a, b = float(self.n), float(other.n)
        step = other.mean - self.mean
        m2 = self.m2 + other.m2 + step**2 * (a * b / (a + b))
        return MeanSums(self.n + other.n, self.mean + step * (b / (a + b)), m2)


@dataclass(frozen=True)
class PowerSums:
    """Count, mean and central power sums of orders 2 to 4 along the trials."""

    n: int
    mean: Array
    m2: Array
    m3: Array
    m4: Array

    @classmethod
    def of(cls, values: Array, xp: ModuleType) -> PowerSums:
        """Take them from values whose last axis runs over the trials."""
        mean = xp.mean(values, axis=-1)
        centred = values - mean[..., None]
        square = centred * centred
        return cls(
            values.shape[-1],
            mean,
            xp.sum(square, axis=-1),
            xp.sum(square * centred, axis=-1),
            xp.sum(square * square, axis=-1),
        )

    def merge(self, other: PowerSums) -> PowerSums:
        """Combine those of two disjoint sets of trials (Chan et al. 1983; Pébay 2008 for orders 3 and 4)."""
        a, b = float(self.n), float(other.n)
        n = a + b
        step = other.mean - self.mean
        m4 = self.m4 + other.m4 + step**4 * (a * b * (a * a - a * b + b * b) / n**3)
        m4 = (
            m4
            + step**2 * (6.0 / n**2) * (a * a * other.m2 + b * b * self.m2)
            + step * (4.0 / n) * (a * other.m3 - b * self.m3)
        )
        m3 = self.m3 + other.m3 + step**3 * (a * b * (a - b) / n**2) + step * (3.0 / n) * (a * other.m2 - b * self.m2)
        m2 = self.m2 + other.m2 + step**2 * (a * b / n)
        return PowerSums(self.n + other.n, self.mean + step * (b / n), m2, m3, m4)
