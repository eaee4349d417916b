"""Measurements of a black box with unit vectors at chosen positions: pairs of features, blocks, phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import choice, positive, printable, show, whole
from rfrope.models import buffers
from rfrope.models.verdicts import EXCEEDS
from rfrope.rotation.rope import Rope

POSITIONS = 160  # most positions at which phases are measured
STEPS = (1, 3, 50)  # positions beside 0 and the last at which each feature is followed
ORIGIN = 3  # position of the queries in a second measurement of scores
_STILL = 1e-9  # fraction of the largest entry; less is no rotation
_MOST_AXES = 16
_AT_ONCE = 4096  # positions compared at a time
_NEAR = 0.05  # largest error of cos and sin for a position to be named
_MIXED = 0.1  # a partner counts from this fraction of the largest
_NOISE = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": buffers.FINE}


class Function:
    """A function of queries, keys and positions that returns both rotated, or scores, as a source of measurements."""

    def __init__(
        self,
        apply: Callable[..., Any],
        meant: tuple[Rope, ...],
        head_dim: int | None,
        heads: int,
        kv_heads: int | None,
        axes: int | None,
        gives: str,
        score_scale: float,
        place: tuple[Any, Any, Any],
    ) -> None:
        if not callable(apply):
            raise TypeError(
                f"apply is {show(apply)}; expected a function (q, k, positions), or a model of transformers"
            )
        self.apply, self.gives = apply, choice("gives", gives, ("rotated", "scores"))
        self.scale = positive("score_scale", score_scale)  # of scores beside the rotation
        if head_dim is None and not meant:
            raise ValueError("head_dim is None; expected the width of a head, or expected=")
        self.width = int(meant[0].head_dim or 0) if head_dim is None else whole("head_dim", head_dim, 2)
        if self.width % 2:
            raise ValueError(f"head_dim is {self.width}; expected an even number of features")
        self.heads = whole("heads", heads, 1)
        self.kv_heads = self.heads if kv_heads is None else whole("kv_heads", kv_heads, 1)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads is {self.kv_heads}; expected a number that divides heads = {self.heads}")
        wanted = max((one.vectors.shape[-1] if one.vectors.ndim > 1 else 1 for one in meant), default=1)
        self.axes = wanted if axes is None else whole("axes", axes, 1, _MOST_AXES)
        if meant and self.axes != wanted:
            raise ValueError(
                f"axes is {self.axes}, and expected turns by {wanted}; expected the same, or frequencies alone"
            )
        xp, self.device, dtype = place
        self.space = array.named_namespace(xp)
        self.dtype = self.space.float32 if dtype is None else array.check_float_dtype(dtype, self.space)
        name = array.dtype_name(self._make(np.zeros(1)))
        self.boxes = [Box("apply", self.width, name, meant, must_turn=True, kv_heads=self.kv_heads)]
        self.calls = 0

    def _make(self, values: np.ndarray) -> Any:
        return array.from_host(np.ascontiguousarray(values), self.space, device=self.device, dtype=self.dtype)

    def measure(
        self, features: Mapping[str, np.ndarray], positions: np.ndarray, *, origin: int = 0, marks_heads: bool = False
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return the outputs of one call, by side; with queries at a position, or head g of row b times H b + g + 1."""
        x, batch, width = features["apply"], len(positions), self.width
        q = k = x
        if self.gives == "scores":  # keys first, so that a causal mask hides none of them
            q, k = np.concatenate([0.0 * x, np.eye(width)]), np.concatenate([x, np.zeros((width, width))])
            at = np.full((batch, width, self.axes), origin)
            positions = np.concatenate([positions, at], axis=1)
        given = []
        for one, heads, is_marked in ((q, self.heads, self.gives != "scores"), (k, self.kv_heads, True)):
            marks = 1.0 + np.arange(batch * heads).reshape(batch, heads, 1, 1) * (marks_heads and is_marked)
            given.append(self._make(marks * one))
        at = array.from_host(positions if self.axes > 1 else positions[..., 0], self.space, device=self.device)
        self.calls += 1
        try:
            found = self.apply(*given, at)
        except Exception as error:
            shapes = ", ".join(str(tuple(one.shape)) for one in (*given, at))
            raise ValueError(
                f"apply raised {type(error).__name__} for q, k and positions of shapes {shapes}: "
                f"{printable(str(error))[:200]}"
            ) from error
        if self.gives == "scores":
            scores = _read("scores", found, (batch, self.heads, len(q), len(q)))
            return {"apply": {"scores": np.moveaxis(scores[:, :, len(x) :, : len(x)] / self.scale, 2, 3)}}
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeError(
                f"apply gave {show(found)}; expected a pair, the turned queries and keys, or gives='scores' for a "
                "function that gives scores"
            )
        sides = zip(("queries", "keys"), found, (self.heads, self.kv_heads), strict=True)
        return {"apply": {name: _read(name, one, (batch, heads, len(q), width)) for name, one, heads in sides}}


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
    order: np.ndarray  # (d,), of int: position of each feature in the output
    rest: float | None  # factor of unrotated features; None if there are none
    fault: str = ""  # why it is no rotation of pairs

    @property
    def start(self) -> int:
        """The first rotated feature."""
        return int(self.first[0]) if self.first.size else 0


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
        return Pairs(first, first, None, order, float(np.median(diagonal)))
    if not is_paired:
        return Pairs(first, first, "other", order, None, "features do not mix in pairs")
    first, second, pairing = _name_pairing(first, partner[first])
    others = np.setdiff1d(np.arange(width), np.concatenate([first, second]))
    rest = float(np.median(diagonal[others])) if others.size else None
    exchanged = "cos and sin are swapped" if np.array_equal(order[first], second) else ""
    fault = exchanged or _find_unlike_columns(moved, first, second, pairing)
    return Pairs(first, second, pairing, order, rest, fault)


def _find_order(at_zero: np.ndarray) -> np.ndarray:
    """Return the positions of features in the output; some models reorder features when they rotate them."""
    size = np.abs(at_zero)
    place = np.argmax(size, axis=1)
    alone = np.sum(size > 1e-6 * np.max(size, initial=1e-300), axis=1) == 1
    is_order = bool(np.all(alone)) and np.array_equal(np.sort(place), np.arange(len(place)))
    return place if is_order else np.arange(len(place))


def _name_pairing(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Return pairs, including unrotated ones between them, and the name of the pairing."""
    apart = np.unique(second - first)
    distance, start, end = int(apart[0]), int(first[0]), int(first[-1])
    if apart.size == 1 and distance > 1:
        whole = (0 if end < distance else start) + np.arange(distance)
        if end <= whole[-1]:
            return whole, whole + distance, "half"
    if apart.size == 1 and distance == 1 and not np.any((first - start) % 2):
        whole = np.arange(start, end + 1, 2)
        return whole, whole + 1, "interleaved" if whole.size > 1 else "half"
    return first, second, "other"


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
    columns = np.einsum("pii->pi", moved)[:, first[0] : first[0] + 2 * first.size]
    copies = {"interleaved": (columns[:, 0::2], columns[:, 1::2]), "half": np.split(columns, 2, axis=1)}
    for name, (one, two) in copies.items():
        if name != pairing and np.all(np.abs(one - two) <= room):
            return f"cos and sin have their columns ordered for {name!r}, and features are paired {pairing!r}"
    return "blocks are not turned: cos or sin of the two features differ"


# -- phases --------------------------------------------------------------------------------------------------------


def choose_single(context: int) -> np.ndarray:
    """Return the positions of single tokens in two calls of two rows, each with the largest position."""
    return np.array([[context - 1, min(5, context - 1)], [min(7, context - 1), context - 1]])


def choose_positions(context: int) -> np.ndarray:
    """Return positions below a context, near and far, shuffled."""
    powers = [2**n for n in range(40) if 2**n < context]
    near = range(min(17, context))
    far = np.random.default_rng(29).integers(0, context, POSITIONS - 17 - len(powers) - len(STEPS))
    chosen = np.unique(np.array([*near, *powers, *choose_steps(context), *far]))
    mixed = np.random.default_rng(31).permutation(chosen[chosen > 0])
    return np.insert(mixed, len(mixed) // 2, 0)  # position 0 is at neither end


@dataclass(frozen=True, eq=False)
class Phases:
    """Frequencies and phases read from the rotation of the first feature of each block."""

    frequencies: np.ndarray  # (D,)
    allowed: np.ndarray  # (D,), tolerance of frequencies
    start: np.ndarray  # (D,), phases at position 0
    is_like: bool  # whether all phases match the positions, within float32 rounding

    def expect(self, at: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
        """Return complex numbers (..., D) at positions, and how far cos and sin may be from theirs."""
        phases = at[..., None] * self.frequencies + self.start
        return np.exp(1j * phases), 8.0 * noise + 2.0**-20 * np.abs(phases) + at[..., None] * self.allowed

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
    # complex blocks: (2, T, D) in "first" and "again" at the positions; (1, T, D) along each "axis 0", ...,
    # and of scores with queries at position 3, "lagged"; (2, 1, D) of single tokens, "single 0" and "single 1"
    seen: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def z(self) -> np.ndarray:
        """Complex blocks (2, T, D) at the positions."""
        return self.seen["first"]

    @cached_property
    def pairs(self) -> Pairs:
        """Features that rotate together, with NaN and infinite values taken as 0."""
        finite = np.nan_to_num(self.matrices, nan=0.0, posinf=0.0, neginf=0.0)
        return follow_features(finite, choose_steps(self.box.context))

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
        along = (z[0] for name, z in self.seen.items() if name.startswith("axis"))
        scaled = [z / (np.median(np.abs(z)) or 1.0) for z in along]
        rows = [read_phases(z, self.box.positions[0], self.noise).frequencies for z in scaled]
        return np.stack(rows, axis=-1) if rows else None

    def find_first_off(self, omega: np.ndarray) -> int | None:
        """Return the first measured position with a cos or sin off by more than 1e-3 for the given frequencies."""
        at = self.box.positions[0]
        apart = self.z[0] - self.size * np.exp(1j * np.multiply.outer(at, omega))
        off = np.any(np.maximum(np.abs(apart.real), np.abs(apart.imag)) > EXCEEDS, axis=1)
        return int(at[off].min()) if np.any(off) else None


@dataclass(eq=False)
class Box:
    """A function, or a layer of a model: what is expected of it, and what was measured."""

    name: str
    width: int  # of a head; 0 if nothing rotates
    dtype: str = "float32"
    meant: tuple[Rope, ...] = ()
    must_turn: bool | None = None  # whether it should rotate, if that is known
    changes: tuple[tuple[str, str], ...] = ()  # kinds and texts of faults between the rotation and attention
    kv_heads: int = 0  # 0 if features of heads were not marked
    context: int = 0
    positions: np.ndarray = field(init=False)  # (2, T)
    heads: list[Head] = field(default_factory=list)

    @property
    def noise(self) -> float:
        """Rounding error of cos and sin."""
        return noise_of(self.dtype)

    @cached_property
    def turning(self) -> list[Head]:
        """Heads that rotate."""
        return [one for one in self.heads if one.pairs.pairing is not None]

    @property
    def firsts(self) -> dict[str, Head]:
        """The first head of each side that rotates."""
        return {one.side: one for one in reversed(self.turning)}

    def note(self, name: str, found: Mapping[str, np.ndarray]) -> None:
        """Keep the blocks of each head of a call, as complex numbers."""
        first, second = self.pairs.order[self.pairs.first], self.pairs.order[self.pairs.second]
        for head in self.heads:
            turned = found[head.side][:, head.number]
            head.seen[name] = turned[..., first] + 1j * turned[..., second]

    @property
    def factors(self) -> dict[str, float]:
        """By side that rotates, the length of a unit vector after rotation."""
        sizes: dict[str, list[np.ndarray]] = {}
        for one in self.turning:
            sizes.setdefault(one.side, []).append(np.abs(one.z[0]))
        return {side: float(np.median(found)) for side, found in sizes.items()}

    @property
    def factors_of_rest(self) -> dict[str, float]:
        """The same for unrotated features, if there are any."""
        firsts = {one.side: one for one in reversed(self.heads)} | self.firsts
        return {side: rest for side, one in reversed(firsts.items()) if (rest := one.pairs.rest) is not None}

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs of the head with the most rotated features; the first of several."""
        return max((one.pairs for one in self.turning or self.heads[:1]), key=lambda one: one.first.size)


def measure(source: Any, context: int) -> None:
    """Measure the boxes of a source, which has `boxes`, `axes` and `measure`: all features, then blocks of features."""
    boxes, steps, at = [one for one in source.boxes if one.width], choose_steps(context), choose_positions(context)
    rows = np.stack([at, np.roll(at[::-1], len(at) // 3)])  # nor in reverse order
    widest, axes = max(one.width for one in boxes), np.arange(source.axes)
    followed = np.tile(np.eye(widest), (len(steps), 1))
    places = np.repeat(steps, widest)[None, :, None] + 0 * axes
    once, twice = (
        source.measure({one.name: times * followed[:, : one.width] for one in boxes}, places) for times in (1.0, 2.0)
    )
    blocks = {}
    for box in boxes:
        box.context, box.positions = context, rows
        for side, found in once[box.name].items():
            shape = (-1, len(steps), widest, box.width)
            cubes = (one[0].reshape(shape)[:, :, : box.width] for one in (found, twice[box.name][side]))
            box.heads += [Head(box, side, h, one, two) for h, (one, two) in enumerate(zip(*cubes, strict=True))]
        blocks[box.name] = np.zeros((len(at), box.width))
        blocks[box.name][:, box.pairs.first] = 1.0
    is_score = boxes[0].heads[0].side == "scores"
    calls: list[tuple[str, np.ndarray, Any, dict[str, Any]]] = [
        ("first", rows, axes, {}),
        *((f"axis {axis}", rows[:1], axis, {}) for axis in axes if len(axes) > 1),
        *(("lagged", rows[:1], axes, {"origin": ORIGIN}) for _ in range(is_score)),
        ("again", rows, axes, {}),
        *((f"single {i}", one[:, None], axes, {"marks_heads": True}) for i, one in enumerate(choose_single(context))),
    ]
    for name, at, along, options in calls:
        some = {one: x[: at.shape[1]] for one, x in blocks.items()}
        found = source.measure(some, at[..., None] * np.isin(axes, along), **options)
        for box in boxes:
            box.note(name, found[box.name])
