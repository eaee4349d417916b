"""The jobs that `benchmarks.gpu` measures, as data: what is done, by whom, and which target it is held against.

Every entry works on arrays of one library, behind `Arrays`; the tests of this file run all of it on NumPy and on
torch's CPU tensors, in the place of CuPy and torch's CUDA tensors.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rfrope
from benchmarks.rotation_peers import need
from benchmarks.timing import Missing

HEADS, WIDTH, BLOCKS = 32, 128, 64
COPY, OURS = "copy", "rfrope"


class Arrays:
    """A library's arrays: NumPy's, or CuPy's on the current device."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def make(self, host: np.ndarray, dtype: str | None = None) -> Any:
        """Array of a dtype by name; bfloat16 is that of ml_dtypes."""
        kind = need("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
        try:
            return self.xp.asarray(host if kind is None else host.astype(kind))
        except Exception as error:
            raise Missing(f"it has no {dtype}: {type(error).__name__}") from None

    def host(self, x: Any) -> np.ndarray:
        """Array of NumPy, features in float64."""
        return (x.get() if hasattr(x, "get") else np.asarray(x)).astype(np.float64)

    def copy(self, target: Any, source: Any) -> None:
        """Copy contiguous memory as fast as the library does."""
        if hasattr(self.xp, "cuda"):
            target.data.copy_from_device_async(source.data, source.nbytes)
        else:
            self.xp.copyto(target, source)

    def empty(self, x: Any) -> Any:
        """Array alike, not filled."""
        return self.xp.empty_like(x)


class TorchArrays(Arrays):
    """PyTorch's tensors on a device."""

    def __init__(self, device: str) -> None:
        super().__init__(need("torch"))
        self.device = device

    def make(self, host: np.ndarray, dtype: str | None = None) -> Any:
        """Tensor of a dtype by name."""
        x = self.xp.from_numpy(np.ascontiguousarray(host)).to(self.device)
        return x if dtype is None else x.to(getattr(self.xp, dtype))

    def host(self, x: Any) -> np.ndarray:
        """Array of NumPy, features in float64."""
        return x.detach().double().cpu().numpy()

    def copy(self, target: Any, source: Any) -> None:
        """Copy contiguous memory."""
        target.copy_(source)

    def empty(self, x: Any) -> Any:
        """Tensor alike, not filled."""
        return self.xp.empty_like(x)


@dataclass
class Place:
    """Where everything is done.

    Attributes
    ----------
    libraries : dict
        ``"cupy"`` and ``"torch"``: functions that return `Arrays`, or raise `Missing`.
    cache : int
        Bytes of the device's last cache; buffers in turn hold several times as much.
    """

    libraries: dict[str, Callable[[], Arrays]]
    cache: int = 0

    def arrays(self, library: str) -> Arrays:
        """Return a library's arrays."""
        return self.libraries[library]()

    def buffers(self, size: int) -> int:
        """How many arrays of so many bytes are to be used in turn."""
        return min(64, max(2, -(-4 * self.cache // max(1, size))))


@dataclass(frozen=True)
class Entry:
    """One contestant, ready: ``call(i)`` does the work on buffers number i, ``error()`` how wrong fresh work is."""

    call: Callable[[int], Any]
    error: Callable[[], float] | None = None


@dataclass(frozen=True)
class Job:
    """What is to be done, and by whom; the first entry is ours.

    Attributes
    ----------
    name, kind : str
    entries : dict
        For each contestant a function of the place that prepares it.
    work : float
        How much one call does, in units of `unit` times seconds.
    unit : str
    target : float or None
        Least rate of ours, as a fraction of the base's where there is one.
    launch : bool
        Time the call on the host, as it is queued: what a small call costs.
    base : str
        The contestant whose time is divided by that of the others.
    """

    name: str
    kind: str
    entries: dict[str, Callable[[Place], Entry]]
    work: float
    unit: str
    target: float | None = None
    launch: bool = field(default=False)
    base: str = COPY


@dataclass(frozen=True)
class Sizes:
    """How large the problems are."""

    tokens: int = 4096
    trials: int = 2**24
    samples: int = 2**20
    lags: int = 2**17
    frequencies: int = 2**12


FULL = Sizes()
QUICK = Sizes(tokens=1024, trials=2**20, samples=2**18, lags=2**15)
TINY = Sizes(tokens=8, trials=64, samples=2**8, lags=2**5, frequencies=16)


def least_of_copy(size: int) -> float | None:
    """Return the least rate of a rotation that reads so many bytes, as a fraction of a copy's: small ones have none."""
    return 0.92 if size >= 64e6 else 0.85 if size >= 16e6 else None


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """``||found - expected|| / ||expected||``; NaN where one element is."""
    return float(np.linalg.norm((found - expected).ravel()) / np.linalg.norm(expected.ravel()))


# -- rotation ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rotation:
    """Features (1, 32, tokens, 128) of a dtype, for an array library (`backend`)."""

    tokens: int
    dtype: str = "float32"
    backend: str = "cupy"
    pairing: str = "half"
    heads_last: bool = False
    in_place: bool = False
    per_head: bool = False

    @property
    def size(self) -> int:
        """Bytes of x."""
        return HEADS * self.tokens * WIDTH * {"float64": 8, "float32": 4}.get(self.dtype, 2)

    def angles(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions and frequencies; a single token comes late, as in decoding."""
        positions = np.arange(self.tokens) + (4095 if self.tokens == 1 else 0)
        if self.per_head:
            return positions[:, None], rfrope.sample("gaussian(scale=32)", BLOCKS, rng=0, heads=HEADS)
        return positions, rfrope.geometric(BLOCKS)

    def features(self, arrays: Arrays, rng: np.random.Generator) -> Any:
        """Return features, laid out as asked."""
        shape = (1, self.tokens, HEADS, WIDTH) if self.heads_last else (1, HEADS, self.tokens, WIDTH)
        x = arrays.make(rng.standard_normal(shape), self.dtype)
        return x.swapaxes(1, 2) if self.heads_last else x

    def poisoned(self, arrays: Arrays, x: Any) -> Any:
        """Return memory like that of x, full of NaN."""
        out = arrays.empty(x.swapaxes(1, 2)).swapaxes(1, 2) if self.heads_last else arrays.empty(x)
        out[...] = float("nan")
        return out

    def exact(self, x: np.ndarray) -> np.ndarray:
        """Rotate in float64 on the CPU, by the usual formula and exact tables."""
        cos, sin = rfrope.rotation_table(*self.angles())
        first, second = (
            (slice(0, BLOCKS), slice(BLOCKS, None))
            if self.pairing == "half"
            else (slice(0, None, 2), slice(1, None, 2))
        )
        y = np.empty_like(x)
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y


Turn = Callable[[Any, Any], Any]  # x, memory for the result -> the result


def _rotation_entry(problem: Rotation, place: Place, prepare: Callable[[Arrays], Turn], checked: bool = True) -> Entry:
    """Give a way to rotate several buffers to work on in turn, and a check on features of their own."""
    arrays, rng = place.arrays(problem.backend), np.random.default_rng(0)
    turn = prepare(arrays)
    count = place.buffers(2 * problem.size)
    sources = [problem.features(arrays, rng)]
    sources += [problem.features(arrays, rng) for _ in range(count - 1)]
    targets = sources if problem.in_place else [problem.poisoned(arrays, x) for x in sources]

    def call(i: int) -> Any:
        return turn(sources[i % count], targets[i % count])

    def error() -> float:
        x = problem.features(arrays, np.random.default_rng())
        expected = problem.exact(arrays.host(x))
        return relative(arrays.host(turn(x, x if problem.in_place else problem.poisoned(arrays, x))), expected)

    return Entry(call, error if checked else None)


def ours(problem: Rotation) -> Callable[[Place], Entry]:
    """Rotate by rfrope, with phases formed on the fly."""

    def prepare(arrays: Arrays) -> Turn:
        positions, frequencies = (arrays.make(v) for v in problem.angles())
        return lambda x, out: rfrope.rotate(x, positions, frequencies, pairing=problem.pairing, out=out)

    return lambda place: _rotation_entry(problem, place, prepare)


def copy(problem: Rotation) -> Callable[[Place], Entry]:
    """Copy x, by the library's own copy from device memory to device memory."""
    dense = Rotation(problem.tokens, problem.dtype, problem.backend)

    def prepare(arrays: Arrays) -> Turn:
        return lambda x, out: arrays.copy(out, x)

    return lambda place: _rotation_entry(dense, place, prepare, checked=False)


def _torch_tables(problem: Rotation, arrays: Arrays) -> tuple[Any, Any]:
    return tuple(
        arrays.make(np.concatenate([v, v], -1), problem.dtype) for v in rfrope.rotation_table(*problem.angles())
    )


def _usual(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    return x * cos + torch.cat((-x[..., BLOCKS:], x[..., :BLOCKS]), -1) * sin


def torch_eager(problem: Rotation) -> Callable[[Place], Entry]:
    """Compute the formula that models use, with ready tables in the dtype of x."""

    def prepare(arrays: Arrays) -> Turn:
        cos, sin = _torch_tables(problem, arrays)
        return arrays.xp.inference_mode()(lambda x, out: _usual(x, cos, sin))

    return lambda place: _rotation_entry(problem, place, prepare)


def torch_compiled(problem: Rotation) -> Callable[[Place], Entry]:
    """Compute the same by torch.compile."""

    def prepare(arrays: Arrays) -> Turn:
        cos, sin = _torch_tables(problem, arrays)
        compiled = arrays.xp.compile(_usual, dynamic=False)
        turn = arrays.xp.inference_mode()(lambda x, out: compiled(x, cos, sin))
        try:
            turn(problem.features(arrays, np.random.default_rng(0)), None)
        except Exception as error:  # no compiler
            raise Missing(f"torch.compile fails here: {type(error).__name__}") from None
        return turn

    return lambda place: _rotation_entry(problem, place, prepare)


def flash_attention(problem: Rotation) -> Callable[[Place], Entry]:
    """Rotate by the Triton kernel of flash-attn, which takes (batch, tokens, heads, width)."""

    def prepare(arrays: Arrays) -> Turn:
        if importlib.util.find_spec("flash_attn") is None:
            raise Missing("flash-attn is not installed")
        try:
            rotary = importlib.import_module("flash_attn.ops.triton.rotary").apply_rotary
        except Exception as error:  # no Triton, or none that it knows
            raise Missing(f"flash-attn's rotary cannot be imported: {type(error).__name__}") from None
        cos, sin = (arrays.make(v, problem.dtype) for v in rfrope.rotation_table(*problem.angles()))
        interleaved = problem.pairing == "interleaved"
        return lambda x, out: rotary(x.swapaxes(1, 2), cos, sin, interleaved=interleaved).swapaxes(1, 2)

    return lambda place: _rotation_entry(problem, place, prepare)


def rotations(sizes: Sizes) -> list[Job]:
    """Rotation against a copy of x, and on torch's tensors against torch's ways too."""
    n, jobs = sizes.tokens, []
    options: list[dict[str, Any]] = [
        {"dtype": dtype, "pairing": pairing}
        for dtype, pairing in itertools.product(("float32", "float16", "bfloat16", "float64"), ("half", "interleaved"))
    ]
    options += [
        {"per_head": True},
        {"per_head": True, "pairing": "interleaved"},
        {"heads_last": True},
        {"heads_last": True, "pairing": "interleaved"},
        {"in_place": True},
        {"in_place": True, "dtype": "float16"},
    ]
    for library, extra in itertools.product(("cupy", "torch"), options):
        problem = Rotation(n, backend=library, **extra)
        entries = {OURS: ours(problem), COPY: copy(problem)}
        if library == "torch" and not (problem.in_place or problem.heads_last):
            if problem.pairing == "half":
                entries |= {"torch, eager": torch_eager(problem), "torch.compile": torch_compiled(problem)}
            if not problem.per_head and problem.dtype != "float64":
                entries["flash-attn, Triton"] = flash_attention(problem)
        target = least_of_copy(problem.size) if problem.dtype != "float64" else None
        jobs.append(Job(_name(problem), "rotation", entries, 2e-9 * problem.size, "GB/s", target))
    for library in ("cupy", "torch"):
        step = Rotation(1, backend=library)
        entries = {OURS: ours(step)} | ({"torch, eager": torch_eager(step)} if library == "torch" else {})
        jobs.append(Job(f"{_name(step)}: the host's part of a call", "launch", entries, 1.0, "calls/s", launch=True))
        jobs.append(Job(f"{_name(step)}: the device's part", "launch", entries, 1.0, "calls/s"))
    return jobs


def _name(problem: Rotation) -> str:
    words = [f"rotate (1,{HEADS},{problem.tokens},{WIDTH}) {problem.dtype} of {problem.backend}", problem.pairing]
    words += ["frequencies for each head"] * problem.per_head + ["heads last in memory"] * problem.heads_last
    return ", ".join([*words, "in place" if problem.in_place else "out="])


# -- estimators --------------------------------------------------------------------------------------------------------

LAWS = ("gaussian(scale=32)", "cauchy(scale=24)", "sinc(bandwidth=0.1)", "matern(nu=1.5, scale=16)")


def _scores(kernel: str, trials: int, n_lags: int) -> Callable[[Place], Entry]:
    def prepare(place: Place) -> Entry:
        arrays = place.arrays("cupy")

        def problem(rng: np.random.Generator) -> tuple[Any, Any, Any]:
            q, k = (arrays.make(rng.standard_normal(WIDTH), "float32") for _ in range(2))
            return q, k, arrays.make(np.arange(1.0, n_lags + 1.0))

        def estimate(q: Any, k: Any, placed: Any, seed: int) -> Any:
            return rfrope.estimate_scores(q, k, placed, kernel, n_trials=trials, rng=seed)

        timed = problem(np.random.default_rng(0))

        def error() -> float:
            fresh = problem(np.random.default_rng())
            found, wanted = estimate(*fresh, 1), estimate(*map(arrays.host, fresh), 1)
            return relative(
                *(
                    np.stack([read(e.mean.value), read(e.variance.value)])
                    for e, read in ((found, arrays.host), (wanted, np.asarray))
                )
            )

        return Entry(lambda i: estimate(*timed, i), error)

    return prepare


def _kernel(samples: int, n_lags: int) -> Callable[[Place], Entry]:
    def prepare(place: Place) -> Entry:
        arrays = place.arrays("cupy")
        lags = np.arange(float(n_lags))
        placed = arrays.make(lags)

        def estimate(placed: Any, seed: int) -> Any:
            return rfrope.estimate_kernel(placed, LAWS[0], n_samples=samples, rng=seed).value

        return Entry(
            lambda i: estimate(placed, i), lambda: relative(arrays.host(estimate(placed, 1)), estimate(lags, 1))
        )

    return prepare


def _mean_kernel(frequencies: int, n_lags: int) -> Callable[[Place], Entry]:
    def prepare(place: Place) -> Entry:
        arrays = place.arrays("cupy")
        lags = np.arange(float(n_lags))
        placed, omega = arrays.make(lags), arrays.make(rfrope.sample(LAWS[0], frequencies, rng=0))

        def error() -> float:
            fresh = rfrope.sample(LAWS[0], frequencies)
            found = rfrope.analysis.mean_kernel(placed, arrays.make(fresh))
            return relative(arrays.host(found), rfrope.analysis.mean_kernel(lags, fresh))

        return Entry(lambda i: rfrope.analysis.mean_kernel(placed, omega), error)

    return prepare


def estimators(sizes: Sizes) -> list[Job]:
    """Estimators and sums; seeds change from call to call."""
    jobs = [
        Job(
            f"estimate_scores {kernel}, {sizes.trials} trials of {BLOCKS} blocks, {n_lags} lag{'s' * (n_lags > 1)}",
            "estimators",
            {OURS: _scores(kernel, sizes.trials, n_lags)},
            float(sizes.trials) * BLOCKS * n_lags,
            "(trial, block)/s" if n_lags == 1 else "(trial, block, lag)/s",
            1e11 if kernel == LAWS[0] and n_lags == 1 else None,
        )
        for kernel, n_lags in (*((law, 1) for law in LAWS), (LAWS[0], 17))
    ]
    jobs.append(
        Job(
            f"estimate_kernel gaussian, {sizes.samples} samples, {sizes.lags} lags",
            "estimators",
            {OURS: _kernel(sizes.samples, sizes.lags)},
            1.0,
            "calls/s",
        )
    )
    jobs += [
        Job(
            f"mean_kernel, {count} frequencies, {sizes.lags} lags",
            "estimators",
            {OURS: _mean_kernel(count, sizes.lags)},
            float(count) * sizes.lags,
            "(frequency, lag)/s",
        )
        for count in (BLOCKS, sizes.frequencies)
    ]
    return jobs


def device_jobs(sizes: Sizes) -> list[Job]:
    """Return the jobs of functions."""
    return [*rotations(sizes), *estimators(sizes)]


# -- accuracy ----------------------------------------------------------------------------------------------------------


def table_error(arrays: Arrays) -> float:
    """Largest error of cos and sin on the device at positions up to 2^53 - 1, against those of the CPU."""
    positions = np.asarray([0, 1, 131071, 2**24 + 1, 10**9, 2**53 - 1, -12345])
    frequencies = rfrope.geometric(BLOCKS)
    wanted = np.stack(rfrope.rotation_table(positions, frequencies))
    found = rfrope.rotation_table(arrays.make(positions), arrays.make(frequencies))
    return float(np.max(np.abs(np.stack([arrays.host(v) for v in found]) - wanted)))
