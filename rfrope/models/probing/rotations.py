"""Rotations read from measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rfrope._core.results import Result
from rfrope.models.probing.measurements import Box
from rfrope.rotation.rope import Rope


@dataclass(frozen=True, eq=False)
class Rotation(Result):
    """A rotation as measured from outside.

    Attributes
    ----------
    name : str
        "apply", or the path of the layer.
    pairing : {"half", "interleaved", "other"} or None
        None if nothing rotates.
    rotary_dim : int
        Number of rotated features of a head, including unrotated ones between them.
    first : int
        The first of them.
    frequencies : ndarray
        Radians per position, ``(D,)``, or ``(D, k)`` for k axes of positions, of the first head that rotates. Whole
        positions determine them only up to whole turns.
    frequency_error : ndarray, (D,)
        Largest error of the measured frequencies, by rounding.
    attention_factor : dict
        By side ("queries" and "keys", or "scores"), the length of a unit vector after rotation.
    factor_of_rest : dict
        The same for unrotated features, if there are any.
    turning_heads : dict
        By side, one bool for each head.
    exceeds : int or None
        First measured position at which a cos or sin is off by more than 1e-3 from the expected one, or if none is
        expected, from exact phases of `frequencies`.
    head_dim : int
        Width of a head; 0 if unknown.
    sets_differ : bool
        Whether frequencies differ between heads, or between queries and keys.

    See Also
    --------
    models.probe, models.Probe

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(8), pairing="half")
    >>> found = rfrope.models.probe(lambda q, k, at: tuple(rope.rotate(x, at[:, None]) for x in (q, k)), head_dim=16)
    >>> found.rotations[0].rotary_dim, found.rotations[0].pairing
    (16, 'half')
    """

    name: str
    pairing: str | None
    rotary_dim: int
    first: int
    frequencies: np.ndarray
    frequency_error: np.ndarray
    attention_factor: dict[str, float]
    factor_of_rest: dict[str, float]
    turning_heads: dict[str, tuple[bool, ...]]
    exceeds: int | None
    head_dim: int = 0
    sets_differ: bool = False

    def __str__(self) -> str:
        if self.pairing is None:
            return f"{self.name}: does not turn"
        factors = ", ".join(f"{side} x {value:.5g}" for side, value in self.attention_factor.items())
        first = f" from {self.first}" if self.first else ""
        waves = np.abs(self.frequencies[self.frequencies != 0.0])
        span = f", {waves.max():.4g} to {waves.min():.4g}" if waves.size else ""
        return (
            f"{self.name}: pairing {self.pairing!r}, {self.rotary_dim} features{first}, {len(self.frequencies)} "
            f"frequencies{span}; {factors}"
        )


def read_rotation(box: Box, rope: Rope | None, *, is_sound: bool) -> Rotation:
    """Return the rotation of a box, by an expected Rope or by none; without frequencies if values are not sound."""
    pairs, sides = box.pairs, dict.fromkeys(head.side for head in box.heads)
    turning = {side: tuple(each.pairs.pairing is not None for each in box.heads if each.side == side) for side in sides}
    rest = {each.side: each.pairs.rest for each in [*box.heads[::-1], *box.turning[::-1]]}
    rest_of = {side: one for side in sides if (one := rest[side]) is not None}
    found = Rotation(box.name, pairs.pairing, 2 * pairs.first.size, pairs.start, np.zeros(pairs.first.size),
                     np.zeros(pairs.first.size), {}, rest_of, turning, None, box.width)  # fmt: skip
    if not (is_sound and box.turning and pairs.first.size):
        return found
    first, factors = box.turning[0], {}
    for side in dict.fromkeys(each.side for each in box.turning):
        factors[side] = float(np.median(np.abs([each.z[0] for each in box.turning if each.side == side])))
    read = first.phases
    meant = read.frequencies if rope is None else total(rope)
    return replace(
        found,
        frequencies=read.frequencies if first.vectors is None else first.vectors,
        frequency_error=read.allowed,
        attention_factor=factors,
        exceeds=first.find_first_off(meant if meant.shape == read.frequencies.shape else read.frequencies),
        sets_differ=not all(each.phases.is_near(read) for each in box.turning),
    )


def total(rope: Rope, head: int = 0) -> np.ndarray:
    """Return frequencies for positions that are equal on all axes."""
    if rope.sections is not None:
        return np.asarray(rope.frequencies, dtype=np.float64)
    vectors = np.asarray(rope.vectors, dtype=np.float64)
    if vectors.ndim == 3:
        vectors = vectors[head % len(vectors)]
    return np.asarray(vectors if vectors.ndim == 1 else vectors.sum(axis=-1))
