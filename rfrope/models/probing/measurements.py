"""Measurements of a black box with unit vectors at chosen positions: pairs, phases, factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import printable, show
from rfrope.models import tables
from rfrope.rotation.rope import Rope

EXCEEDS = 1e-3  # error of cos and sin
POSITIONS = 160  # most positions at which phases are measured
STEPS = (1, 3, 50)  # positions beside 0 and the last at which each feature is followed
_STILL = 1e-9  # fraction of the largest entry; less is no rotation
_AT_ONCE = 4096  # positions compared at a time
_NEAR = 0.05  # largest error of cos and sin for a position to be named
_MIXED = 0.1  # a partner counts from this fraction of the largest
_NOISE = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": tables.FINE}


@dataclass
class Function:
    """A function of queries, keys and positions that returns both rotated, or scores."""

    apply: Callable[..., Any]
    head_dim: int
    heads: int
    kv_heads: int
    axes: int
    gives: str  # "rotated" or "scores"
    scale: float  # factor of scores beside the rotation
    place: tuple[ModuleType, Any, Any]  # namespace, device and dtype of the arrays that the function takes
    origin: int = 0  # position of the queries in scores
    marks_heads: bool = False  # scale head g of row b by H b + g + 1; queries only if they are returned
    calls: int = 0
    dtypes: dict[str, str] = field(default_factory=dict)  # of queries, and `widths` of a head, by the name "apply"
    still: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.widths = {"apply": self.head_dim}

    def choose(self, name: str, meant: tuple[Rope, ...]) -> tuple[tuple[Rope, ...], bool | None]:
        """Return all expected Ropes, and that the function must rotate."""
        return meant, True

    def measure(self, features: Mapping[str, np.ndarray], positions: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
        """Return the outputs of one call, by side."""
        x, batch = features["apply"], len(positions)
        q = k = x
        if self.gives == "scores":  # keys first, so that a causal mask hides none of them
            zeros = np.zeros_like(x)
            q = np.concatenate([zeros, np.eye(self.head_dim)])
            k = np.concatenate([x, np.zeros((self.head_dim, self.head_dim))])
            at = np.full((batch, self.head_dim, positions.shape[2]), self.origin, dtype=positions.dtype)
            positions = np.concatenate([positions, at], axis=1)
        tokens = len(q)
        marked = (self.gives != "scores", True)
        given = [
            self._place(
                self._mark(np.broadcast_to(one, (batch, heads, tokens, self.head_dim)), is_marked), self.place[2]
            )
            for one, heads, is_marked in zip((q, k), (self.heads, self.kv_heads), marked, strict=True)
        ]
        at = self._place(positions if self.axes > 1 else positions[..., 0], None)
        self.calls, self.dtypes = self.calls + 1, {"apply": array.dtype_name(given[0])}
        try:
            found = self.apply(*given, at)
        except Exception as error:
            shapes = ", ".join(str(tuple(one.shape)) for one in (*given, at))
            raise ValueError(
                f"apply raised {type(error).__name__} for q, k and positions of shapes {shapes}: "
                f"{printable(str(error))[:200]}"
            ) from error
        if self.gives != "scores":
            return {"apply": self._read_turned(found, batch, tokens)}
        scores = _read("scores", found, (batch, self.heads, tokens, tokens))
        rows = scores[:, :, len(x) :, : len(x)] / self.scale
        return {"apply": {"scores": np.moveaxis(rows, 2, 3)}}

    def _mark(self, x: np.ndarray, is_marked: bool) -> np.ndarray:
        if not self.marks_heads or not is_marked:
            return np.ascontiguousarray(x)
        marks = 1.0 + np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2])
        return marks[:, :, None, None] * x

    def _place(self, host: np.ndarray, dtype: Any) -> Any:
        space, device, _ = self.place
        return array.from_host(host, space, device=device, dtype=dtype)

    def _read_turned(self, found: Any, batch: int, tokens: int) -> dict[str, np.ndarray]:
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeError(
                f"apply gave {show(found)}; expected a pair, the turned queries and keys, or gives='scores' for a "
                "function that gives scores"
            )
        return {
            name: _read(name, one, (batch, heads, tokens, self.head_dim))
            for name, one, heads in zip(("queries", "keys"), found, (self.heads, self.kv_heads), strict=True)
        }


def _read(name: str, found: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array from a black box, in float64."""
    if not hasattr(found, "shape") or not array.is_real_floating(found):
        raise TypeError(f"apply gave {show(found)} for {name}; expected an array of real floating numbers")
    if tuple(found.shape) != shape:
        raise ValueError(f"apply gave {name} of shape {tuple(found.shape)}; expected {shape}")
    return array.to_host(found, name).astype(np.float64)


def noise_of(dtype: str) -> float:
    """Return the rounding error of cos and sin in a dtype."""
    return _NOISE.get(dtype, 1e-12 if dtype == "float64" else tables.FINE)


# -- which features form pairs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Structure:
    """Pairs of features of one head that rotate together."""

    first: np.ndarray  # (D,), of int: the first feature of each block
    second: np.ndarray  # (D,), the second
    pairing: str | None  # "half", "interleaved", "other"; None if nothing rotates
    start: int  # the first rotated feature
    order: np.ndarray  # (d,), of int: position of each feature in the output
    rest: float | None  # factor of unrotated features; None if there are none
    fault: str = ""  # why it is no rotation of pairs


def choose_steps(context: int) -> np.ndarray:
    """Return the positions at which every feature is followed, with the last one: frequencies may depend on it."""
    return np.array(sorted({0, context - 1, *(step for step in STEPS if step < context)}, reverse=True))


def follow_features(matrices: np.ndarray, at: np.ndarray) -> Structure:
    """Return pairs from matrices (P, d in, d out) at positions, one of which is 0."""
    width, still = matrices.shape[1], int(np.argmin(at))
    order = _find_order(matrices[still])
    moved = matrices[:, :, order]
    largest = float(np.max(np.abs(moved))) or 1.0
    off = np.max(np.abs(moved), axis=0) * (1.0 - np.eye(width))
    partner, size = np.argmax(off, axis=1), np.max(off, axis=1)
    turning = size > _STILL * largest
    rows = np.flatnonzero(turning)
    second_size = np.sort(off, axis=1)[:, -2] if width > 2 else np.zeros(width)
    is_paired = np.array_equal(partner[partner[rows]], rows) and np.all(second_size[rows] <= _MIXED * size[rows])
    first = np.array([i for i in rows if i < partner[i]], dtype=int) if is_paired else np.zeros(0, dtype=int)
    diagonal = np.abs(moved[still][np.arange(width), np.arange(width)])
    if rows.size == 0:
        return Structure(first, first, None, 0, order, float(np.median(diagonal)))
    if not is_paired:
        return Structure(first, first, "other", 0, order, None, "features mix in other ways than in pairs")
    first, second, pairing, start = _name_pairing(first, partner[first])
    others = np.setdiff1d(np.arange(width), np.concatenate([first, second]))
    rest = float(np.median(diagonal[others])) if others.size else None
    exchanged = "cos and sin are in each other's place" if np.array_equal(order[first], second) else ""
    fault = exchanged or _find_unlike_columns(moved, first, second, pairing)
    return Structure(first, second, pairing, start, order, rest, fault)


def _find_order(at_zero: np.ndarray) -> np.ndarray:
    """Return the positions of features in the output; some models reorder features when they rotate them."""
    size = np.abs(at_zero)
    place = np.argmax(size, axis=1)
    alone = np.sum(size > 1e-6 * np.max(size, initial=1e-300), axis=1) == 1
    is_order = bool(np.all(alone)) and np.array_equal(np.sort(place), np.arange(len(place)))
    return place if is_order else np.arange(len(place))


def _name_pairing(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, str, int]:
    """Return pairs, including unrotated ones between them, the name of the pairing, and the first rotated feature."""
    apart = np.unique(second - first)
    start = int(first[0])
    if apart.size == 1 and (distance := int(apart[0])) > 1:
        start = 0 if first[-1] < distance else start
        whole = start + np.arange(distance)
        if first[-1] < start + distance:
            return whole, whole + distance, "half", start
    if apart.size == 1 and apart[0] == 1 and not np.any((first - start) % 2):
        whole = np.arange(start, first[-1] + 1, 2)
        return whole, whole + 1, "interleaved" if whole.size > 1 else "half", start
    return first, second, "other", start


def _find_unlike_columns(moved: np.ndarray, first: np.ndarray, second: np.ndarray, pairing: str) -> str:
    """Return why blocks are not rotated as (a cos - b sin, a sin + b cos), or ""."""
    cos, other = moved[:, first, first], moved[:, second, second]
    sin, back = moved[:, first, second], -moved[:, second, first]
    room = 0.02 * float(np.max(np.abs(moved)))  # allows for half precision
    if np.all(np.abs(cos - other) <= room) and np.all(np.abs(sin - back) <= room):
        return ""
    if np.all(np.abs(sin + back) <= room):
        for sign, text in ((-1.0, "the sign of one sin is wrong"), (1.0, "a row has the wrong signs")):
            if np.all(np.abs(cos + sign * other) <= room):
                return f"blocks are reflected and not turned: {text}"
    for name, one, two, given, mixed in (("second", cos, other, back, sin), ("first", other, cos, sin, back)):
        if np.all(np.abs(two - one + given**2) <= room) and np.all(np.abs(mixed - given * one) <= room):
            rest = {"second": "first", "first": "second"}[name]
            return f"the {name} feature is made from the {rest} one after that was turned"
    diagonal, begin, width = np.einsum("pii->pi", moved), int(first[0]), 2 * first.size
    columns = diagonal[:, begin : begin + width]
    copies = {
        "interleaved": np.abs(columns[:, 0::2] - columns[:, 1::2]),
        "half": np.abs(columns[:, : width // 2] - columns[:, width // 2 :]),
    }
    for name, apart in copies.items():
        if name != pairing and apart.size and np.all(apart <= room):
            return f"cos and sin have their columns ordered for {name!r}, and features are paired {pairing!r}"
    return "blocks are not turned: cos or sin of the two features differ"


# -- phases --------------------------------------------------------------------------------------------------------


def choose_single(context: int) -> np.ndarray:
    """Return the positions of single tokens in two calls of two rows, each with the largest position."""
    return np.array([[context - 1, min(5, context - 1)], [min(7, context - 1), context - 1]])


def choose_positions(context: int) -> np.ndarray:
    """Return positions below a context, near and far, shuffled."""
    powers = [2**n for n in range(40) if 2**n < context]
    near = [n for n in range(17) if n < context]
    steps = [*choose_steps(context)]
    far = np.random.default_rng(29).integers(0, context, POSITIONS - 17 - len(powers) - len(STEPS))
    chosen = np.unique(np.array([*near, *powers, *steps, context - 1, *far]))
    mixed = np.random.default_rng(31).permutation(chosen[chosen > 0])
    return np.insert(mixed, len(mixed) // 2, 0)  # position 0 is at neither end


@dataclass(frozen=True, eq=False)
class Phases:
    """Frequencies and phases read from the rotation of the first feature of each block."""

    frequencies: np.ndarray  # (H, D)
    allowed: np.ndarray  # (H, D), tolerance of frequencies
    start: np.ndarray  # (H, D), phases at position 0
    off: np.ndarray  # (H, T), largest error of cos and sin at each position
    is_like: np.ndarray  # (H,), whether all phases match the positions, within float32 rounding


def read_phases(z: np.ndarray, positions: np.ndarray, noise: float) -> Phases:
    """Return frequencies from complex numbers (H, T, D) of length about 1 at positions (T,), including 0 and 1."""
    places = {int(p): t for t, p in reversed([*enumerate(positions.tolist())])}
    origin = z[:, places[0]]
    found, reach, apart = np.zeros(origin.shape), np.ones(origin.shape), 1
    steady = np.ones(origin.shape, dtype=bool)
    while apart in places:
        turned = np.angle(z[:, places[apart]] * np.conj(origin)) - found * apart
        turned -= 2.0 * np.pi * np.round(turned / (2.0 * np.pi))
        steady &= (np.abs(turned) < 16.0 * noise * apart / reach + 2.0**-20 * np.abs(found) * apart) | (apart == 1)
        found = np.where(steady, found + turned / apart, found)
        reach, apart = np.where(steady, apart, reach), 2 * apart
    phases = positions[:, None] * found[:, None, :] + np.angle(origin)[:, None, :]
    error = np.abs(z - np.exp(1j * phases))
    room = 4.0 * noise * (1.0 + positions[:, None] / reach[:, None, :]) + 2.0**-22 * np.abs(phases)
    least = 2.0**-25 if noise == _NOISE["float16"] else 0.0  # half of the smallest number
    allowed = (4.0 * noise * np.minimum(1.0, np.abs(found) * reach) + least) / reach + 2.0**-22 * np.abs(found)
    return Phases(found, allowed, np.angle(origin), np.max(error, axis=2), np.all(error <= room, axis=(1, 2)))


def find_places(z: np.ndarray, frequencies: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the position in [low, high) nearest to z (T, D) for each token, and whether it is near."""
    found, best = np.zeros(len(z), dtype=int), np.full(len(z), -np.inf)
    for start in range(low, high, _AT_ONCE):
        at = np.arange(start, min(start + _AT_ONCE, high))
        likeness = (z @ np.exp(-1j * np.multiply.outer(frequencies, at))).real
        top = np.max(likeness, axis=1)
        found = np.where(top > best, start + np.argmax(likeness, axis=1), found)
        best = np.maximum(best, top)
    apart = np.abs(z - np.exp(1j * np.multiply.outer(found, frequencies)))
    return found, np.asarray(np.max(apart, axis=1) < _NEAR)


def unit(first: Sequence[int] | np.ndarray, width: int, tokens: int) -> np.ndarray:
    """Return tokens with 1 at the first feature of each block, and 0 elsewhere."""
    made = np.zeros((tokens, width))
    made[:, np.asarray(first, dtype=int)] = 1.0
    return made


def usual_length(z: np.ndarray) -> float:
    """Return the median length of blocks."""
    return float(np.median(np.abs(z))) or 1.0


# -- all measurements of one box ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Side:
    """Measurements of queries, keys or scores: the paths of features, and phases of blocks."""

    matrices: np.ndarray  # (H, P, d, d), images of unit vectors at the steps
    doubled: np.ndarray  # (H, P, d, d), images of twice these
    structures: list[Structure] = field(default_factory=list)  # one per head
    # complex blocks: (B, H, T, D) at the positions and again at the end; (H, T, D) along each axis, and of scores with
    # queries at position 3; (2, B, H, D) of single tokens in two rows, in two calls
    z: np.ndarray = field(default_factory=lambda: np.zeros((1, 1, 1, 0), complex))
    again: np.ndarray = field(default_factory=lambda: np.zeros((1, 1, 1, 0), complex))
    along: list[np.ndarray] = field(default_factory=list)
    lagged: np.ndarray | None = None
    single: np.ndarray = field(default_factory=lambda: np.zeros((2, 2, 1, 0), complex))

    @property
    def turning(self) -> list[int]:
        """Heads that rotate."""
        return [h for h, one in enumerate(self.structures) if one.pairing is not None]

    @property
    def head(self) -> int:
        """The first head that rotates, or 0."""
        return self.turning[0] if self.turning else 0


@dataclass(eq=False)
class Box:
    """Measurements of one black box."""

    name: str
    width: int
    steps: np.ndarray
    positions: np.ndarray  # (2, T)
    dtype: str
    sides: dict[str, Side]
    context: int
    kv_heads: int = 0  # 0 if features of heads were not marked

    def __post_init__(self) -> None:
        self.noise = noise_of(self.dtype)

    def structure(self) -> Structure:
        """Return the structure with the most rotated features; the first of several."""
        turning = [side.structures[h] for side in self.sides.values() for h in side.turning]
        return max(turning or next(iter(self.sides.values())).structures[:1], key=lambda one: one.first.size)

    def follow(self) -> None:
        """Read the structures of all heads, with NaN and infinite values taken as 0."""
        for side in self.sides.values():
            finite = np.nan_to_num(side.matrices, nan=0.0, posinf=0.0, neginf=0.0)
            side.structures = [follow_features(head, self.steps) for head in finite]

    def unit(self, name: str, row: int, head: int) -> np.ndarray:
        """Return blocks (T, D) of a head, scaled to length about 1."""
        z = self.sides[name].z[row, head]
        return np.asarray(z / usual_length(z))

    def find_first_off(self, name: str, omega: np.ndarray, head: int) -> int | None:
        """Return the first measured position with a cos or sin off by more than 1e-3 for the given frequencies."""
        z, at = self.sides[name].z[0, head], self.positions[0]
        apart = z - usual_length(z) * np.exp(1j * np.multiply.outer(at, omega))
        off = np.any(np.maximum(np.abs(apart.real), np.abs(apart.imag)) > EXCEEDS, axis=1)
        return int(at[off].min()) if np.any(off) else None

    def blocks_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the blocks of rotated features (..., d) as complex numbers."""
        one = self.structure()
        return np.asarray(rows[..., one.order[one.first]] + 1j * rows[..., one.order[one.second]])
