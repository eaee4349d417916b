"""Sums of cos and sin over many frequencies at many lags on a CUDA device, with the accuracy of `cpu.sums`.

Direct sums wait for nothing. How they are cut depends on shapes alone, and parts are merged in a fixed order, so that
results are the same bits on every device and in every run.

Very many frequencies at very many lags are cheaper by cufinufft, where it can be loaded. This is the one exception to
the above: whether lags lie on a grid, and which frequencies a transform can take, is known only by reading them, so
they are copied to the host; cufinufft itself waits for the device; and its sums are in no fixed order, so that a mean
may differ in its last digits from run to run, within the bound of 1e-9 that it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rfrope._backends import layout, transforms
from rfrope._backends.cuda import device
from rfrope._core import array
from rfrope._core.angles import Angles
from rfrope._core.array import Array

_THREADS = 256  # in a block
_ENOUGH_BLOCKS, _MOST_BLOCKS = 512, 2048  # that fill a device, and that are made by cutting frequencies into parts
_HEAD_AXES = 6
_LAGS_EACH = {1: 2}  # lags of a thread by the number of axes, where they are many: 1 unless named
_QUANTITIES = {"phi": ("COS", 1.0), "phi2": ("COS", 2.0), "sin": ("SIN", 1.0)}  # what is summed, factor of the lags
_DRAWS = 2**22  # frequencies of one transform: its memory is some 100 bytes each
_LARGEST_PHASE = 2.0**90  # radians: what turns hold the fraction of, with a margin

_COSTS = transforms.CUDA

KERNELS = (
    *(f"sum_few<{quantity}, {few}>" for quantity in ("MEAN", "COS", "SIN") for few in ("1, 1", "1, 2", "2, 1", "3, 1")),
    *(f"{name}<{quantity}>" for name in ("sum_any", "merge_parts") for quantity in ("MEAN", "COS", "SIN")),
    "form_sources",
)

_HEAD_AXIS = np.dtype([(name, np.int64) for name in ("length", "frequencies", "lags")])
SUMS = np.dtype(
    [(name, np.int64) for name in ("frequencies", "lags", "parts")]
    + [(name, np.int64) for name in ("frequency_step", "frequency_axis", "lag_step", "lag_axis")]
    + [("factor", np.float64)]
    + [(name, np.int64) for name in ("axes", "n_frequencies", "n_lags", "lanes", "tiles", "n_parts", "part")]
    + [(name, np.int64) for name in ("again", "head_axes")]
    + [("heads", _HEAD_AXIS, _HEAD_AXES)]
)
PARTS = np.dtype(
    [(name, np.int64) for name in ("parts", "mean", "squares", "n_frequencies", "n_lags", "n_parts", "part", "threads")]
)
SOURCES = np.dtype(
    [(name, np.int64) for name in ("frequencies", "points", "strengths", "count", "axes", "rows")]
    + [("steps", np.float64, 3), ("positions", np.float64, 9)]
)


def mean_cos(angles: Angles) -> Array:
    """Mean of ``cos u`` over the blocks: see `rfrope._core.sums.mean_cos`."""
    xp = angles.xp
    with device.place(angles.positions):
        omega, lags = (device.doubles(v, xp) for v in (angles.frequencies, angles.positions))
        omega, lags = layout.head_rows(omega, lags)
        mean, view = _result(angles.shape[:-1], angles.positions, xp)
        if not _transformed_means(omega, lags, view):
            _direct(omega, lags, "MEAN", view)
        return mean


def kernel_moments(omega: Array, lags: Array, quantity: str) -> tuple[Array, Array]:
    """Mean and sum of squared deviations of a kernel's cos or sin: see `rfrope.montecarlo`."""
    xp, (kind, factor) = array.namespace(lags=lags), _QUANTITIES[quantity]
    with device.place(lags):
        space, rows = device.space(), device.doubles(lags, xp)
        omega = space.asarray(device.view(omega), np.float64)
        shape = rows.shape[:-1]
        rows = rows.reshape(-1, omega.shape[1])
        (mean, mean_view), (squares, squares_view) = (_result(shape, lags, xp) for _ in range(2))
        found = _transformed_moments(omega, rows, kind, factor)
        if found is None:
            _direct(omega, rows, kind, mean_view, squares_view, factor)
        else:
            mean_view[...], squares_view[...] = (v.reshape(shape) for v in found)
        return mean, squares


def _result(shape: tuple[int, ...], like: Array, xp: ModuleType) -> tuple[Array, Any]:
    """Return a new array beside another one, float64, and CuPy's view of it."""
    result = array.empty(shape, array.widen(like, xp), xp)
    return result, device.view(result)


# -- direct sums -------------------------------------------------------------------------------------------------------


class _Cut(NamedTuple):
    """A sum as it is laid over blocks of threads."""

    lags_each: int  # lags of a thread
    lanes: int  # threads of a block side by side along the lags; the others share the frequencies
    parts: int  # into which the frequencies are cut
    part: int  # frequencies of a part

    def tiles(self, n_lags: int, lags_each: int) -> int:
        return -(-n_lags // (self.lanes * lags_each))


def _cut(count: int, n_lags: int, n_heads: int, axes: int) -> _Cut:
    """Cut a sum, by its size alone: wide tiles of lags, unless many lanes would idle or there were too few blocks."""
    each = _LAGS_EACH.get(axes, 1) if n_lags >= 64 else 1

    def most_parts(lanes: int) -> int:  # so that a thread has 64 frequencies at least
        return -(-count // max(64 * _THREADS // lanes, _THREADS))

    lanes = _THREADS
    while lanes > 1:
        tiles = -(-n_lags // (lanes * each))
        idle = 8 * tiles * lanes * each > 9 * n_lags
        if not idle and (lanes <= 32 or n_heads * tiles * most_parts(lanes) >= _ENOUGH_BLOCKS):
            break
        lanes //= 2
    tiles = n_heads * -(-n_lags // (lanes * each))
    parts = min(most_parts(lanes), max(1, -(-_MOST_BLOCKS // tiles)))
    part = -(-count // parts)
    return _Cut(each, lanes, -(-count // part), part)


def _direct(omega: Any, lags: Any, kind: str, mean: Any, squares: Any = None, factor: float = 1.0) -> None:
    """Mean over frequencies ``(*H, n, k)``, and squared deviations if asked for, at lags ``(*H, L, k)`` times a factor.

    Arrays are those of CuPy; results are written to contiguous ones.
    """
    space = device.space()
    axes = _head_axes(omega, lags)
    heads = np.broadcast_shapes(omega.shape[:-2], lags.shape[:-2])
    if len(axes) > _HEAD_AXES:
        omega, lags = (space.ascontiguousarray(space.broadcast_to(v, (*heads, *v.shape[-2:]))) for v in (omega, lags))
        axes = _head_axes(omega, lags)
    (count, k), n_lags, n_heads = omega.shape[-2:], lags.shape[-2], math.prod(heads)
    if not n_lags * n_heads:
        return
    cut = _cut(count, n_lags, n_heads, k)
    parts = space.empty((n_heads, cut.parts, n_lags, 2), np.float64)

    plan = np.zeros((), SUMS)
    plan["frequencies"], plan["lags"], plan["parts"] = map(device.address, (omega, lags, parts))
    plan["frequency_step"], plan["frequency_axis"] = omega.strides[-2:]
    plan["lag_step"], plan["lag_axis"] = lags.strides[-2:]
    plan["factor"], plan["axes"], plan["n_frequencies"], plan["n_lags"] = factor, k, count, n_lags
    plan["lanes"], plan["n_parts"], plan["part"], plan["head_axes"] = cut.lanes, cut.parts, cut.part, len(axes)
    for i, axis in enumerate(axes):
        plan["heads"][i] = axis
    few = f"sum_few<{kind}, {k}, {cut.lags_each}>"
    fits = few in KERNELS
    steps = [(f"sum_any<{kind}>", 1, fits)]  # again only where phases turned out to be too large for the other
    if fits:
        steps.insert(0, (few, cut.lags_each, False))
    for kernel, lags_each, again in steps:
        plan = plan.copy()
        plan["tiles"], plan["again"] = cut.tiles(n_lags, lags_each), again
        device.launch("sums", kernel, n_heads * cut.parts * int(plan["tiles"]), _THREADS, plan)

    last = np.zeros((), PARTS)
    last["parts"], last["mean"] = map(device.address, (parts, mean))
    last["squares"] = 0 if squares is None else device.address(squares)
    last["n_frequencies"], last["n_lags"], last["threads"] = count, n_lags, n_heads * n_lags
    last["n_parts"], last["part"] = cut.parts, cut.part
    device.launch("sums", f"merge_parts<{kind}>", -(-n_heads * n_lags // _THREADS), _THREADS, last)


def _head_axes(omega: Any, lags: Any) -> list[tuple[int, int, int]]:
    """Leading axes: their lengths, and the strides of frequencies and lags, neighbours being merged where they can."""
    leading = np.broadcast_shapes(omega.shape[:-2], lags.shape[:-2])
    strides = (layout.broadcast_strides(v.shape[:-2], v.strides[:-2], leading) for v in (omega, lags))
    axes: list[tuple[int, int, int]] = []
    for length, *steps in zip(leading, *strides, strict=True):
        if axes and all(above == length * step for above, step in zip(axes[-1][1:], steps, strict=True)):
            length *= axes.pop()[0]
        if length != 1:
            axes.append((length, *steps))
    return axes


# -- transforms --------------------------------------------------------------------------------------------------------


@cache
def nufft() -> Callable[..., Any] | None:
    """Return what calls a function of cufinufft on the current device and stream, or None where it does not run."""
    try:
        return load_nufft()
    except Exception:  # whatever is wrong with it, direct sums do without; `rfrope doctor` says what it is
        return None


def load_nufft() -> Callable[..., Any]:
    """Return the same, after a sum of two terms: it is built for CUDA 12, and the driver or the device may be newer.

    Raises
    ------
    Exception
        Of any type: from the loader, from cufinufft, or for a wrong sum.
    """
    device.load_toolkit()
    import cufinufft

    cupy = device.space()

    def call(name: str, *arguments: Any, **options: Any) -> Any:
        stream, number = cupy.cuda.get_current_stream().ptr, cupy.cuda.runtime.getDevice()
        return getattr(cufinufft, name)(*arguments, gpu_stream=stream, gpu_device_id=number, **options)

    points, strengths = cupy.asarray(np.array([0.0, 1.0])), cupy.asarray(np.ones(2, np.complex128))
    found = call("nufft1d1", points, strengths, (3,), eps=transforms.ACCURACY, isign=1, upsampfac=2.0)
    if not np.allclose(array.to_host(found), 1.0 + np.exp(1j * np.arange(-1.0, 2.0)), rtol=0.0, atol=1e-6):
        raise RuntimeError("a transform of two points returns wrong sums")
    return call


@dataclass(frozen=True)
class _Set:
    """Frequencies ``(n, k)``: on the host, where transforms are planned, and on the device, contiguous."""

    host: np.ndarray
    omega: Any

    @classmethod
    def from_host(cls, host: np.ndarray) -> _Set:
        host = np.ascontiguousarray(host)
        return cls(host, device.space().asarray(host))


def _readable(omega: Any, lags: Any) -> tuple[_Set, np.ndarray] | None:
    """Copy frequencies and lags to the host, if a transform could pay; None if not, or if some phase is too large."""
    if not transforms.may_pay(omega.shape[0], lags.shape[0], omega.shape[1], _COSTS) or nufft() is None:
        return None
    host, host_lags = (np.ascontiguousarray(array.to_host(v)) for v in (omega, lags))
    if not float(np.max(np.abs(host))) * float(np.max(np.abs(host_lags))) <= _LARGEST_PHASE:  # nor NaN
        return None
    return _Set(host, device.space().ascontiguousarray(omega)), host_lags


def _transformed_means(omega: Any, lags: Any, mean: Any) -> bool:
    """Write means of cos to `mean`, if transforms pay."""
    space = device.space()
    if not transforms.may_pay(omega.shape[-2], lags.shape[-2], omega.shape[-1], _COSTS):
        return False
    heads = np.broadcast_shapes(omega.shape[:-2], lags.shape[:-2])
    omega, lags = (space.broadcast_to(v, (*heads, *v.shape[-2:])) for v in (omega, lags))
    rows = mean.reshape(*heads, -1)
    for i, head in enumerate(np.ndindex(heads)):
        found = _transformed_mean(omega[head], lags[head])
        if found is not None:
            rows[head] = found
        elif i == 0:  # the others are hardly different
            return False
        else:
            _direct(omega[head], lags[head], "MEAN", rows[head])
    return True


def _transformed_mean(omega: Any, lags: Any) -> Any:
    """Mean of cos of frequencies ``(n, k)`` at lags ``(L, k)`` by transforms, or None."""
    read = _readable(omega, lags)
    if read is None:
        return None
    space, (sources, host_lags) = device.space(), read
    grid, total = transforms.grid_of(host_lags), 0.0
    for start in range(0, len(sources.host), _DRAWS):
        part = _Set(*(v[start : start + _DRAWS] for v in (sources.host, sources.omega)))
        plan = transforms.plan(part.host, host_lags, grid, _COSTS)
        if plan is not None:
            total = total + _transformed(part, host_lags, plan).real
        elif start == 0:
            return None
        else:
            total = total + _direct_sums(part, host_lags).real
    return space.where(space.asarray(np.any(host_lags, axis=1)), total / len(sources.host), 1.0)  # lag 0 is known


def _transformed_moments(omega: Any, lags: Any, kind: str, factor: float) -> tuple[Any, Any] | None:
    """Mean and squared deviations by transforms, and direct sums where the variance is too small for these; or None."""
    space, read = device.space(), _readable(omega, lags)
    if read is None:
        return None
    sources, host_lags = read[0], factor * read[1]
    parts = transforms.plans_of_moments(
        sources.host, host_lags, _COSTS, lambda part, grid: transforms.plan(sources.host, part, grid, _COSTS)
    )
    if parts is None:
        return None
    sums = space.concatenate([_transformed(sources, part, plan) for part, plan in parts])
    count, zero = len(sources.host), space.asarray(~np.any(host_lags, axis=1))
    mean, squares, small = transforms.moments_of_means(sums / count, zero, count, kind == "SIN", space)
    flat = np.flatnonzero(array.to_host(small))
    if flat.size:
        mean_there, squares_there = space.empty(flat.size), space.empty(flat.size)
        _direct(sources.omega, space.asarray(host_lags[flat]), kind, mean_there, squares_there)
        chosen = space.asarray(flat)
        mean[chosen], squares[chosen] = mean_there, squares_there
    return mean, squares


def _transformed(sources: _Set, lags: np.ndarray, plan: transforms.TransformPlan) -> Any:
    """Sums of ``exp(i u)`` over the frequencies, at every lag, as planned."""
    inside = sources if plan.inside is None else _Set.from_host(sources.host[plan.inside])
    sums = _scattered_sums(inside, lags) if plan.grid is None else _grid_sums(inside, plan.grid, len(lags))
    return sums if plan.inside is None else sums + _direct_sums(_Set.from_host(sources.host[~plan.inside]), lags)


def _direct_sums(sources: _Set, lags: np.ndarray) -> Any:
    """Sums of ``exp(i u)``, directly."""
    space = device.space()
    there, cos, sin = space.asarray(lags), space.empty(len(lags)), space.empty(len(lags))
    _direct(sources.omega, there, "MEAN", cos)
    _direct(sources.omega, there, "SIN", sin)
    return len(sources.host) * (cos + 1j * sin)


def _grid_sums(sources: _Set, grid: transforms.Grid, n_lags: int) -> Any:
    """Type 1, in blocks along the first axis; frequency times step is folded exactly before it is a float64."""
    k = len(grid)

    def modes(first: int, shape: tuple[int, ...]) -> Any:
        steps = [axis.step for axis in grid]
        points, strengths = _formed(sources, transforms.middle(grid, first, shape), steps)
        return _called(f"nufft{k}d1", *points, strengths, shape)

    return transforms.from_blocks(grid, n_lags, modes, device.space())


def _scattered_sums(sources: _Set, lags: np.ndarray) -> Any:
    """Type 3, about the middle of the lags."""
    space = device.space()
    middle = 0.5 * (np.max(lags, axis=0) + np.min(lags, axis=0))
    points, targets = space.ascontiguousarray(sources.omega.T), space.asarray(np.ascontiguousarray((lags - middle).T))
    _, strengths = _formed(sources, middle[None], None)
    return _called(f"nufft{len(middle)}d3", *points, strengths, *targets)


def _called(name: str, *arguments: Any) -> Any:
    call = nufft()
    assert call is not None
    return call(name, *arguments, eps=transforms.ACCURACY, isign=1, upsampfac=2.0)


def _formed(sources: _Set, positions: np.ndarray, steps: list[float] | None) -> tuple[Any, Any]:
    """Points ``(k, n)`` of type 1, step * frequency folded exactly, and strengths: phasors at the sum of positions."""
    space, (count, k) = device.space(), sources.host.shape
    points, strengths = space.empty((k, count)), space.empty(count, np.complex128)
    plan = np.zeros((), SOURCES)
    plan["frequencies"], plan["strengths"] = map(device.address, (sources.omega, strengths))
    plan["points"] = 0 if steps is None else device.address(points)
    plan["count"], plan["axes"], plan["rows"] = count, k, len(positions)
    plan["steps"][: len(steps or ())] = steps or ()
    plan["positions"][: positions.size] = positions.ravel()
    device.launch("sums", "form_sources", -(-count // _THREADS), _THREADS, plan)
    return points, strengths
