"""Measurements of a black box with unit vectors at chosen positions: pairs of features, blocks, phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import printable, show
from rfrope.models import buffers
from rfrope.rotation.rope import Rope

EXCEEDS = 1e-3  # error of cos and sin
POSITIONS = 160  # most positions at which phases are measured
STEPS = (1, 3, 50)  # positions beside 0 and the last at which each feature is followed
ORIGIN = 3  # position of the queries in a second measurement of scores
_STILL = 1e-9  # fraction of the largest entry; less is no rotation
_AT_ONCE = 4096  # positions compared at a time
_NEAR = 0.05  # largest error of cos and sin for a position to be named
_MIXED = 0.1  # a partner counts from this fraction of the largest
_NOISE = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": buffers.FINE}


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

    def find_changes(self, name: str, meant: tuple[Rope, ...]) -> tuple[tuple[str, str], ...]:
        """Return nothing: a function has no attention that its results reach."""
        return ()

    def measure(self, features: Mapping[str, np.ndarray], positions: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
        """Return the outputs of one call, by side."""
        x, batch, width = features["apply"], len(positions), self.head_dim
        q = k = x
        if self.gives == "scores":  # keys first, so that a causal mask hides none of them
            q, k = np.concatenate([0.0 * x, np.eye(width)]), np.concatenate([x, np.zeros((width, width))])
            at = np.full((batch, width, positions.shape[2]), self.origin, dtype=positions.dtype)
            positions = np.concatenate([positions, at], axis=1)
        tokens, (space, device, dtype) = len(q), self.place
        given = []
        for one, heads, is_marked in ((q, self.heads, self.gives != "scores"), (k, self.kv_heads, True)):
            marks = 1.0 + np.arange(batch * heads).reshape(batch, heads, 1, 1) * (self.marks_heads and is_marked)
            given.append(array.from_host(np.ascontiguousarray(marks * one), space, device=device, dtype=dtype))
        at = array.from_host(positions if self.axes > 1 else positions[..., 0], space, device=device, dtype=None)
        self.calls, self.dtypes = self.calls + 1, {"apply": array.dtype_name(given[0])}
        try:
            found = self.apply(*given, at)
        except Exception as error:
            shapes = ", ".join(str(tuple(one.shape)) for one in (*given, at))
            raise ValueError(
                f"apply raised {type(error).__name__} for q, k and positions of shapes {shapes}: "
                f"{printable(str(error))[:200]}"
            ) from error
        if self.gives == "scores":
            scores = _read("scores", found, (batch, self.heads, tokens, tokens))
            return {"apply": {"scores": np.moveaxis(scores[:, :, len(x) :, : len(x)] / self.scale, 2, 3)}}
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeError(
                f"apply gave {show(found)}; expected a pair, the turned queries and keys, or gives='scores' for a "
                "function that gives scores"
            )
        sides = zip(("queries", "keys"), found, (self.heads, self.kv_heads), strict=True)
        return {"apply": {name: _read(name, one, (batch, heads, tokens, width)) for name, one, heads in sides}}


def _read(name: str, found: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array from a black box, in float64."""
    if not hasattr(found, "shape") or not array.is_real_floating(found):
        raise TypeError(f"apply gave {show(found)} for {name}; expected an array of real floating numbers")
    if tuple(found.shape) != shape:
        raise ValueError(f"apply gave {name} of shape {tuple(found.shape)}; expected {shape}")
    return array.to_host(found, name).astype(np.float64)


def noise_of(dtype: str) -> float:
    """Return the rounding error of cos and sin in a dtype."""
    return _NOISE.get(dtype, 1e-12 if dtype == "float64" else buffers.FINE)


# -- which features form pairs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pairs:
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


def follow_features(matrices: np.ndarray, at: np.ndarray) -> Pairs:
    """Return pairs from matrices (P, d in, d out) at positions, one of which is 0."""
    width, still = matrices.shape[1], int(np.argmin(at))
    order = _find_order(matrices[still])
    moved = matrices[:, :, order]
    largest = float(np.max(np.abs(moved))) or 1.0
    off = np.max(np.abs(moved), axis=0) * (1.0 - np.eye(width))
    partner, size = np.argmax(off, axis=1), np.max(off, axis=1)
    rows = np.flatnonzero(size > _STILL * largest)
    second_size = np.sort(off, axis=1)[:, -2] if width > 2 else np.zeros(width)
    is_paired = np.array_equal(partner[partner[rows]], rows) and np.all(second_size[rows] <= _MIXED * size[rows])
    first = np.array([i for i in rows if i < partner[i]], dtype=int) if is_paired else np.zeros(0, dtype=int)
    diagonal = np.abs(moved[still][np.arange(width), np.arange(width)])
    if rows.size == 0:
        return Pairs(first, first, None, 0, order, float(np.median(diagonal)))
    if not is_paired:
        return Pairs(first, first, "other", 0, order, None, "features do not mix in pairs")
    first, second, pairing, start = _name_pairing(first, partner[first])
    others = np.setdiff1d(np.arange(width), np.concatenate([first, second]))
    rest = float(np.median(diagonal[others])) if others.size else None
    exchanged = "cos and sin are swapped" if np.array_equal(order[first], second) else ""
    fault = exchanged or _find_unlike_columns(moved, first, second, pairing)
    return Pairs(first, second, pairing, start, order, rest, fault)


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

    frequencies: np.ndarray  # (D,)
    allowed: np.ndarray  # (D,), tolerance of frequencies
    start: np.ndarray  # (D,), phases at position 0
    is_like: bool  # whether all phases match the positions, within float32 rounding

    def turn(self, at: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the phases (..., D) at positions, and how far cos and sin may be from theirs."""
        phases = at[..., None] * self.frequencies + self.start
        return phases, 8.0 * noise + 2.0**-20 * np.abs(phases) + at[..., None] * self.allowed

    def is_near(self, other: Phases, sign: float = 1.0) -> bool:
        """Return whether frequencies are those of another head, within the errors of both."""
        return bool(np.all(np.abs(self.frequencies - sign * other.frequencies) <= self.allowed + other.allowed))


def read_phases(z: np.ndarray, positions: np.ndarray, noise: float) -> Phases:
    """Return frequencies from complex numbers (T, D) of length about 1 at positions (T,), including 0 and 1."""
    places = {int(p): t for t, p in reversed([*enumerate(positions.tolist())])}
    origin = z[places[0]]
    found, reach, apart = np.zeros(origin.shape), np.ones(origin.shape), 1
    steady = np.ones(origin.shape, dtype=bool)
    while apart in places:
        turned = np.angle(z[places[apart]] * np.conj(origin)) - found * apart
        turned -= 2.0 * np.pi * np.round(turned / (2.0 * np.pi))
        steady &= (np.abs(turned) < 16.0 * noise * apart / reach + 2.0**-20 * np.abs(found) * apart) | (apart == 1)
        found = np.where(steady, found + turned / apart, found)
        reach, apart = np.where(steady, apart, reach), 2 * apart
    phases = positions[:, None] * found + np.angle(origin)
    room = 4.0 * noise * (1.0 + positions[:, None] / reach) + 2.0**-22 * np.abs(phases)
    least = 2.0**-25 if noise == _NOISE["float16"] else 0.0  # half of the smallest number
    allowed = (4.0 * noise * np.minimum(1.0, np.abs(found) * reach) + least) / reach + 2.0**-22 * np.abs(found)
    return Phases(found, allowed, np.angle(origin), bool(np.all(np.abs(z - np.exp(1j * phases)) <= room)))


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


# -- all measurements of one box ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Head:
    """Measurements of one head of queries, keys or scores."""

    box: Box
    side: str
    number: int
    matrices: np.ndarray  # (P, d, d), images of unit vectors at the steps
    doubled: np.ndarray  # (P, d, d), images of twice these
    # complex blocks: (2, T, D) at the positions and again at the end; (T, D) along each axis, and of scores with
    # queries at position 3; (2, 2, D) of single tokens in two rows, in two calls
    z: np.ndarray = field(init=False)
    again: np.ndarray = field(init=False)
    along: list[np.ndarray] = field(default_factory=list)
    lagged: np.ndarray = field(init=False)
    single: np.ndarray = field(init=False)

    @cached_property
    def pairs(self) -> Pairs:
        """Features that rotate together, with NaN and infinite values taken as 0."""
        return follow_features(np.nan_to_num(self.matrices, nan=0.0, posinf=0.0, neginf=0.0), self.box.steps)

    @cached_property
    def size(self) -> float:
        """Median length of blocks."""
        return float(np.median(np.abs(self.z[0]))) or 1.0 if self.z.size else 1.0

    @cached_property
    def narrow(self) -> int:
        """Mantissa bits of cos and sin in half precision, which the dtype of features does not have; otherwise 0."""
        values = np.stack([self.z.real, self.z.imag])
        width = buffers.bits(values[np.abs(values) > 0.0]) if self.box.dtype in ("float32", "float64") else 0
        return width if width in buffers.HALVES else 0

    @property
    def noise(self) -> float:
        """Rounding error of cos and sin."""
        return 2.0**-self.narrow if self.narrow else self.box.noise

    @cached_property
    def phases(self) -> Phases:
        """Frequencies and phases, by the positions of the first row."""
        return read_phases(self.z[0] / self.size, self.box.positions[0], self.noise)

    @cached_property
    def vectors(self) -> np.ndarray | None:
        """Frequencies ``(D, k)`` along each axis; None if positions have one axis."""
        at, noise = self.box.positions[0], self.noise
        rows = [read_phases(z / (np.median(np.abs(z)) or 1.0), at, noise).frequencies for z in self.along]
        return np.stack(rows, axis=-1) if rows else None

    def find_first_off(self, omega: np.ndarray) -> int | None:
        """Return the first measured position with a cos or sin off by more than 1e-3 for the given frequencies."""
        at = self.box.positions[0]
        apart = self.z[0] - self.size * np.exp(1j * np.multiply.outer(at, omega))
        off = np.any(np.maximum(np.abs(apart.real), np.abs(apart.imag)) > EXCEEDS, axis=1)
        return int(at[off].min()) if np.any(off) else None


@dataclass(eq=False)
class Box:
    """Measurements of one black box."""

    name: str
    width: int
    dtype: str
    context: int
    kv_heads: int  # 0 if features of heads were not marked
    steps: np.ndarray
    positions: np.ndarray  # (2, T)
    heads: list[Head] = field(default_factory=list)

    @property
    def noise(self) -> float:
        """Rounding error of cos and sin."""
        return noise_of(self.dtype)

    @cached_property
    def turning(self) -> list[Head]:
        """Heads that rotate."""
        return [one for one in self.heads if one.pairs.pairing is not None]

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs of the head with the most rotated features; the first of several."""
        return max((one.pairs for one in self.turning or self.heads[:1]), key=lambda one: one.first.size)

    @property
    def firsts(self) -> list[Head]:
        """The first head of each side that rotates."""
        return [*{one.side: one for one in reversed(self.turning)}.values()][::-1]


def measure(source: Any, context: int) -> list[Box]:
    """Return the measurements of all boxes of a source, which has `measure`, `widths`, `dtypes` and `axes`."""
    steps, at = choose_steps(context), choose_positions(context)
    rows = np.stack([at, np.roll(at[::-1], len(at) // 3)])  # nor in reverse order
    widest = max(source.widths.values())
    followed = np.tile(np.eye(widest), (len(steps), 1))
    places = _spread(np.repeat(steps, widest)[None], source.axes)
    once, twice = (
        source.measure({name: times * followed[:, :d] for name, d in source.widths.items()}, places)
        for times in (1.0, 2.0)
    )
    boxes, blocks = [], {}
    for name, sides in once.items():
        width = source.widths[name]
        boxes.append(box := Box(name, width, source.dtypes[name], context, source.kv_heads, steps, rows))
        for side, found in sides.items():
            shape = (-1, len(steps), widest, width)
            cubes = (one[0].reshape(shape)[:, :, :width] for one in (found, twice[name][side]))
            box.heads += [Head(box, side, h, one, two) for h, (one, two) in enumerate(zip(*cubes, strict=True))]
        blocks[name] = np.zeros((len(at), width))
        blocks[name][:, box.pairs.first] = 1.0
    _follow_blocks(source, boxes, blocks)
    return boxes


def _follow_blocks(source: Any, boxes: list[Box], blocks: dict[str, np.ndarray]) -> None:
    """Measure blocks at all positions, along each axis, in scores with other queries, again, and alone."""
    rows, axes = boxes[0].positions, np.arange(source.axes)
    for head, z in _read_blocks(source, boxes, blocks, _spread(rows, source.axes)):
        head.z = z
    for axis in axes if len(axes) > 1 else ():
        for head, z in _read_blocks(source, boxes, blocks, _spread(rows[:1], source.axes) * (axes == axis)):
            head.along.append(z[0])
    if boxes[0].heads[0].side == "scores":
        source.origin = ORIGIN
        for head, z in _read_blocks(source, boxes, blocks, _spread(rows[:1], source.axes)):
            head.lagged = z[0] / head.size
        source.origin = 0
    for head, z in _read_blocks(source, boxes, blocks, _spread(rows, source.axes)):
        head.again = z
    source.marks_heads = True
    one = {name: x[:1] for name, x in blocks.items()}
    at = [_spread(one[:, None], source.axes) for one in choose_single(boxes[0].context)]
    calls = (_read_blocks(source, boxes, one, each) for each in at)
    for (head, first), (_, second) in zip(*calls, strict=True):
        head.single = np.stack([first, second])[:, :, 0]


def _read_blocks(
    source: Any, boxes: list[Box], features: dict[str, np.ndarray], positions: np.ndarray
) -> list[tuple[Head, np.ndarray]]:
    """Return the blocks (B, T, D) of every head from one call, as complex numbers."""
    found, read = source.measure(features, positions), []
    for box in boxes:
        first, second = box.pairs.order[box.pairs.first], box.pairs.order[box.pairs.second]
        for head in box.heads:
            turned = found[box.name][head.side][:, head.number]
            read.append((head, turned[..., first] + 1j * turned[..., second]))
    return read


def _spread(rows: np.ndarray, axes: int) -> np.ndarray:
    """Return positions (B, T, k) that are equal on all axes."""
    return np.repeat(np.asarray(rows, dtype=np.int64)[..., None], axes, axis=-1)
