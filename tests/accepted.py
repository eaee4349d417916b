"""What calls that take a value must give, by formulas written out here in plain NumPy.

`CHECKS` holds, by the name that `bad_input.calls` has for it, a function of a call's arguments that returns what the
call must give, or, where it is decorated by `holds`, a function of result and arguments that raises what is wrong. None
of them calls what it checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import special

import rfrope

WIDE = np.longdouble  # phases of large positions
CHECKS: dict[str, Callable[[Any, SimpleNamespace], None]] = {}


# -- plain values, and comparing them ----------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return numbers and arrays of any library as Python's and NumPy's, anything else as it is."""
    if getattr(value, "is_meta", False):
        return np.zeros(tuple(value.shape))  # it has a shape alone
    if hasattr(value, "compute"):
        value = value.compute()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.double().numpy() if value.is_floating_point() and value.element_size() < 4 else value.numpy()
    if type(value).__module__.startswith(("jax", "jaxlib")) and hasattr(value, "__array__"):
        value = np.asarray(value)
        value = value.astype(np.float64) if value.dtype.kind not in "iufcb" else value
    if isinstance(value, np.generic) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biufc"
    ):
        return value.item()
    return value


def agree(found: Any, expected: Any, at: str = "result", floor: float = 0.0) -> None:
    """Raise AssertionError where a result is not what is expected: records by those fields that a dict names.

    Numbers agree to 1e-9 of the largest of an array, or of `floor`, in which terms may have cancelled.
    """
    if getattr(found, "is_meta", False):
        assert tuple(found.shape) == np.shape(expected), f"{at} has shape {tuple(found.shape)} on meta"
        return
    found = plain(found)
    if isinstance(expected, Mapping):
        for name, value in expected.items():
            agree(found[name] if isinstance(found, Mapping) else getattr(found, name), value, f"{at}.{name}", floor)
    elif isinstance(expected, tuple):
        assert len(found) == len(expected), f"{at} has {len(found)} parts; expected {len(expected)}"
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            agree(one, other, f"{at}[{number}]", floor)
    elif isinstance(expected, str | bool | None | np.bool):
        assert found == expected, f"{at} is {found!r}; expected {expected!r}"
    else:
        expected = np.asarray(expected)
        found = np.asarray(found)
        assert found.shape == expected.shape, f"{at} has shape {found.shape}; expected {expected.shape}"
        if expected.dtype.kind not in "biufcg" or found.dtype.kind not in "biufcg":
            assert found.dtype == expected.dtype, f"{at} has dtype {found.dtype}; expected {expected.dtype}"
            assert found.tobytes() == expected.tobytes(), f"{at} is {found!r:.60}; expected {expected!r:.60}"
            return
        narrow = 1e-2 if found.dtype == np.float16 else 2e-6 if found.dtype in (np.float32, np.complex64) else 1e-9
        with np.errstate(all="ignore"):
            expected = expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64)
            known = np.abs(expected[np.isfinite(expected)])
            largest = max(floor, min(float(known.max()) if known.size else 0.0, 1.0))
            close = np.allclose(
                found.astype(expected.dtype), expected, narrow, narrow * largest + 1e-300, equal_nan=True
            )
        assert close, f"{at} is {found!r:.80}; expected {expected!r:.80}"


def gives(*names: str) -> Callable[[Any], Any]:
    """Say what calls give: what the decorated function of their arguments returns."""

    def keep(formula: Callable[[SimpleNamespace], Any]) -> Any:
        for name in names:
            CHECKS[name] = lambda found, a: agree(found, formula(a))
        return formula

    return keep


def holds(*names: str) -> Callable[[Any], Any]:
    """Say what is true of what calls give: the decorated function of result and arguments raises what is not."""

    def keep(check: Callable[[Any, SimpleNamespace], None]) -> Any:
        for name in names:
            CHECKS[name] = check
        return check

    return keep


# -- blocks and phases -------------------------------------------------------------------------------------------------


def real(value: Any) -> np.ndarray:
    return np.asarray(value, dtype=np.float64)


def omega_of(value: Any) -> np.ndarray:
    """Frequencies as given, of a Rope too."""
    return np.asarray(plain(value.vectors) if isinstance(value, rfrope.Rope) else value, dtype=WIDE)


def magnitudes(value: Any) -> np.ndarray:
    omega = omega_of(value)
    return np.abs(omega) if omega.ndim == 1 else np.sqrt(np.sum(omega * omega, axis=-1))


def phases_of(at: Any, frequencies: Any, shift: Any = None) -> np.ndarray:
    """Phases ``(..., D)``, of positions, lags or offsets."""
    at, omega = np.asarray(at, dtype=WIDE), omega_of(frequencies)
    u = at[..., None] * omega if omega.ndim == 1 else np.matmul(at, np.swapaxes(omega, -1, -2))
    return u if shift is None else u + np.asarray(shift, dtype=WIDE)


def as_complex(x: Any, pairing: str) -> np.ndarray:
    x = np.asarray(x, dtype=WIDE)
    half = x.shape[-1] // 2
    both = (x[..., :half], x[..., half:]) if pairing == "half" else (x[..., 0::2], x[..., 1::2])
    return both[0] + 1j * both[1]


def as_features(z: np.ndarray, pairing: str) -> np.ndarray:
    if pairing == "half":
        return np.concatenate([z.real, z.imag], axis=-1)
    return np.stack([z.real, z.imag], axis=-1).reshape(*z.shape[:-1], 2 * z.shape[-1])


def turned(x: Any, u: Any, pairing: str, out_pairing: str | None = None, scale: Any = 1.0, inverse: Any = False) -> Any:
    x, u, scale = np.asarray(x, dtype=WIDE), np.asarray(u, dtype=WIDE), np.asarray(scale, dtype=WIDE)
    width = 2 * u.shape[-1]
    turn = (np.cos(u) - 1j * np.sin(u)) / scale if inverse else (np.cos(u) + 1j * np.sin(u)) * scale
    y = as_features(as_complex(x[..., :width], pairing) * turn, out_pairing or pairing)
    return np.concatenate([y, x[..., width:]], axis=-1)


def coefficients(q: Any, k: Any, pairing: str) -> tuple[np.ndarray, np.ndarray]:
    """A and B of ``S = sum A cos u + B sin u``: real and imaginary part of ``q conj(k)``."""
    z = as_complex(q, pairing) * np.conj(as_complex(k, pairing))
    return z.real, z.imag


@gives("rotation.turning.rotate")
def _rotate(a):
    return turned(a.x, phases_of(a.positions, a.frequencies, a.shift), a.pairing, a.out_pairing, a.scale, a.inverse)


@gives("rotation.rope.Rope.rotate")
def _rope_rotate(a):
    rope = a.self
    return turned(a.x, phases_of(a.positions, rope), rope.pairing, None, rope.attention_factor, a.inverse)


@gives("rotation.turning.rotate_by_phases")
def _by_phases(a):
    return turned(a.x, a.phases, a.pairing, a.out_pairing, a.scale, a.inverse)


@gives("rotation.turning.rotate_by_table")
def _by_table(a):
    z = as_complex(a.x, a.pairing) * (np.asarray(a.cos, dtype=WIDE) + 1j * np.asarray(a.sin, dtype=WIDE))
    return as_features(z, a.out_pairing or a.pairing)


@gives("rotation.turning.rotation_table")
def _table(a):
    u, scale = phases_of(a.positions, a.frequencies, a.shift), np.asarray(a.scale, dtype=WIDE)
    return scale * np.cos(u), scale * np.sin(u)


@gives("rotation.rope.Rope.table")
def _rope_table(a):
    u = phases_of(a.positions, a.self)
    return a.self.attention_factor * np.cos(u), a.self.attention_factor * np.sin(u)


@gives("rotation.scoring.scores")
def _scores(a):
    q = turned(a.q, phases_of(a.q_positions, a.frequencies), a.pairing)
    return np.matmul(q, np.swapaxes(turned(a.k, phases_of(a.k_positions, a.frequencies, a.shift), a.pairing), -1, -2))


@gives("rotation.rope.Rope.scores")
def _rope_scores(a):
    q, k = (turned(x, phases_of(at, a.self), a.self.pairing) for x, at in ((a.q, a.q_positions), (a.k, a.k_positions)))
    return a.self.attention_factor**2 * np.matmul(q, np.swapaxes(k, -1, -2))


@gives("rotation.pairings.convert_pairing")
def _convert(a):
    x = np.moveaxis(np.asarray(a.x), a.axis, -1)
    width = x.shape[-1] if a.width is None else a.width
    order = np.arange(width).reshape((2, -1) if a.source == "half" else (-1, 2)).T.reshape(-1)
    order = np.arange(width) if a.source == a.target else order
    return np.moveaxis(x[..., [*order, *range(width, x.shape[-1])]], -1, a.axis)


@gives("rotation.scoring.block_coefficients")
def _coefficients(a):
    return coefficients(a.q, a.k, a.pairing)


def sinusoid(u: np.ndarray, pairing: str) -> np.ndarray:
    return as_features(np.sin(u) + 1j * np.cos(u), pairing)


@gives("rotation.embedding.sinusoidal")
def _sinusoidal(a):
    return sinusoid(phases_of(a.positions, a.frequencies), a.pairing)


@holds("rotation.embedding.shift_matrix")
def _shift_matrix(found, a):
    u = phases_of(a.offset, a.frequencies)
    if getattr(found, "is_meta", False):
        assert tuple(found.shape) == (*u.shape[:-1], 2 * u.shape[-1], 2 * u.shape[-1])
        return
    for start in (0.0, 0.7):  # any phases at the start
        before, after = np.full(u.shape, WIDE(start)), u + start
        moved = np.matmul(np.asarray(plain(found), dtype=WIDE), sinusoid(before, a.pairing)[..., None])[..., 0]
        agree(np.asarray(moved, dtype=np.float64), sinusoid(after, a.pairing))


@gives("rotation.turning.phases")
def _phases(a):
    return phases_of(a.positions, a.frequencies, a.shift)


@gives("rotation.pairings.to_complex")
def _to_complex(a):
    return as_complex(a.x, a.pairing)


@gives("rotation.pairings.from_complex")
def _from_complex(a):
    return as_features(np.asarray(a.z), a.pairing)


@gives("rotation.rerotation.rerotate")
def _rerotate(a):
    y, kinds = a.k, []
    for one, back in ((a.old, True), (a.new, False)):
        kinds = (one.pairing, one.attention_factor) if isinstance(one, rfrope.Rope) else ("half", 1.0)
        y = turned(y, phases_of(a.positions, one), kinds[0], None, kinds[1], back)
    return y


@gives("rotation.placing.grid_positions")
def _grid(a):
    return np.stack(np.meshgrid(*map(np.arange, a.shape), indexing="ij"), axis=-1).reshape(-1, len(a.shape))


@gives("rotation.placing.mrope_positions")
def _mrope_positions(a):
    rows, start = [], a.start
    for segment in a.segments:
        if isinstance(segment, int | np.integer):
            rows += [(start + i,) * 3 for i in range(segment)]
            start += segment
        else:
            t, h, w = segment[0], segment[1] // a.merge, segment[2] // a.merge
            rows += [(start + i, start + j, start + m) for i in range(t) for j in range(h) for m in range(w)]
            start += max(h, w) if a.after_video == "sides" else max(t, h, w)
    return np.asarray(rows, dtype=np.int64).reshape(-1, 3)


@gives("rotation.placing.packed_positions")
def _packed(a):
    ends = [*map(int, a.cu_seqlens)]
    starts = [a.starts] * (len(ends) - 1) if isinstance(a.starts, int) else a.starts
    return np.concatenate([np.arange(n - m) + s for m, n, s in zip(ends, ends[1:], starts, strict=False)])


@gives("rotation.rope.Rope")
def _rope(a):
    omega = real(a.frequencies)
    width = 2 * omega.shape[-1 if omega.ndim == 1 else -2]
    return {
        "frequencies": omega,
        "pairing": a.pairing,
        "head_dim": width if a.head_dim is None else a.head_dim,
        "attention_factor": a.attention_factor,
        "sections": a.sections if a.sections is None else tuple(a.sections),
        "context": tuple(a.context) if isinstance(a.context, list | tuple) else a.context,
        "source": {} if a.source is None else dict(a.source),
    }


# -- frequencies and schemes -------------------------------------------------------------------------------------------


@gives("frequencies.ladders.geometric")
def _geometric(a):
    return WIDE(a.base) ** (-np.arange(a.n_blocks, dtype=WIDE) / max(a.n_blocks, 1))


@gives("frequencies.ladders.arithmetic")
def _arithmetic(a):
    return a.step * np.arange(1.0, a.n_blocks + 1.0)


@gives("frequencies.ladders.pixel")
def _pixel(a):
    return math.pi * np.linspace(1.0, 0.5 * a.max_freq, a.n_blocks) if a.n_blocks != 1 else np.asarray([math.pi])


@gives("frequencies.ladders.from_wavelengths")
def _from_wavelengths(a):
    return 2.0 * math.pi / real(a.wavelengths)


@gives("frequencies.ladders.xpos_scales")
def _xpos(a):
    zeta = (2.0 * np.arange(a.n_blocks) + 0.8 * a.n_blocks) / (2.8 * max(a.n_blocks, 1))
    return zeta ** ((real(a.positions)[..., None] - a.centre) / a.scale_base)


@holds("frequencies.generators.from_generators")
def _from_generators(found, a):
    rope, basis = found
    assert sorted(np.abs(rope.frequencies).reshape(-1).tolist()) == [0.5, 1.0]
    assert np.allclose(basis.T @ basis, np.eye(4))


@gives("frequencies.axes.mixed")
def _mixed(a):
    angles, half = real(a.angles), a.n_blocks // 2
    size = WIDE(a.base) ** (-2.0 * np.arange(half, dtype=WIDE) / max(a.n_blocks, 1))
    along = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    across = np.stack([-np.sin(angles), np.cos(angles)], axis=-1)
    return {"frequencies": np.concatenate([size[:, None] * one[..., None, :] for one in (along, across)], axis=-2)}


@holds("frequencies.axes.golden_gate")
def _golden(found, a):
    omega, m = found.frequencies, a.n_blocks - a.zero_blocks
    part = np.arange(m) / max(m - 1, 1)
    size = np.exp(math.log(a.low) * (1.0 - part) + math.log(a.high) * part)
    shape = (() if a.heads is None else (a.heads,)) + (a.n_blocks, a.ndim)
    assert omega.shape == shape, f"{omega.shape} for {shape}"
    agree(np.linalg.norm(omega, axis=-1), np.broadcast_to(np.concatenate([np.zeros(a.zero_blocks), size]), shape[:-1]))
    if a.ndim == 2:
        angle = np.arange(math.prod(shape[:-1])).reshape(shape[:-1]) * math.pi * (math.sqrt(5.0) - 1.0) / 2.0
        crossed = omega[..., 0] * np.sin(angle) - omega[..., 1] * np.cos(angle)
        assert np.all(np.abs(crossed) <= 1e-9 * a.high), "other directions"


@gives("frequencies.axes.mrope")
def _mrope(a):
    omega, n = real(a.frequencies), len(a.sections)
    if a.interleaved:
        owners = [axis if place < n * a.sections[axis] else 0 for place, axis in enumerate([*range(n)] * len(omega))]
        owners = owners[: len(omega)]
    else:
        owners = np.repeat(np.arange(n), a.sections)
    return {"vectors": np.where(np.eye(n)[np.asarray(owners, dtype=int)] > 0.0, omega[:, None], 0.0)}


@gives("frequencies.axes.axial")
def _axial(a):
    sets = [real(one) if real(one).ndim > 1 else real(one)[:, None] for one in (a.first, a.second)]
    heads = np.broadcast_shapes(*(one.shape[:-2] for one in sets))
    found = np.zeros((*heads, sum(one.shape[-2] for one in sets), sum(one.shape[-1] for one in sets)))
    row = column = 0
    for one in sets:
        found[..., row : row + one.shape[-2], column : column + one.shape[-1]] = one
        row, column = row + one.shape[-2], column + one.shape[-1]
    return {"frequencies": found}


def ladder_index(omega: np.ndarray) -> np.ndarray:
    return np.arange(len(omega), dtype=WIDE) / max(len(omega) - 1, 1)


@gives("scaling.schemes.linear")
def _linear(a):
    return {"frequencies": omega_of(a.frequencies) / a.factor, "attention_factor": 1.0}


@gives("scaling.schemes.ntk")
def _ntk(a):
    omega = omega_of(a.frequencies)
    return {"frequencies": omega * WIDE(a.factor) ** -ladder_index(omega), "attention_factor": 1.0}


@gives("scaling.schemes.dynamic_ntk")
def _dynamic(a):
    omega, longest = omega_of(a.frequencies), a.max_position_embeddings
    length = longest if a.seq_len is None else max(a.seq_len, longest)
    factor = WIDE(a.factor) * length / longest - (WIDE(a.factor) - 1.0)
    return {"frequencies": omega * factor ** -ladder_index(omega)}


@gives("scaling.schemes.proportional")
def _proportional(a):
    omega = omega_of(a.frequencies) / a.factor
    omega[int(a.partial_rotary_factor * 2 * len(omega) // 2) :] = 0.0
    return {"frequencies": omega}


@gives("scaling.schemes.longrope")
def _longrope(a):
    original = a.original_max_position_embeddings
    divisor = a.short_factor if a.seq_len is None or a.seq_len <= original else a.long_factor
    factor = math.sqrt(1.0 + math.log(max(a.factor, 1.0)) / math.log(original))
    factor = factor if a.attention_factor is None else a.attention_factor
    return {"frequencies": omega_of(a.frequencies) / real(divisor), "attention_factor": factor}


@gives("scaling.schemes.llama3")
def _llama3(a):
    omega = omega_of(a.frequencies)
    with np.errstate(divide="ignore"):
        length = 2.0 * math.pi / omega
    low, high = (a.original_max_position_embeddings / WIDE(f) for f in (a.low_freq_factor, a.high_freq_factor))
    part = (a.original_max_position_embeddings / length - a.low_freq_factor) / (a.high_freq_factor - a.low_freq_factor)
    between = (1.0 - part) * omega / a.factor + part * omega
    return {"frequencies": np.where(length < high, omega, np.where(length > low, omega / a.factor, between))}


@gives("scaling.schemes.yarn")
def _yarn(a):
    omega = omega_of(a.frequencies)
    base = 16.0 if a.base is None else a.base  # that of the ladder
    low, high = (
        len(omega) * math.log(a.original_max_position_embeddings / (turns * 2.0 * math.pi)) / math.log(base)
        for turns in (a.beta_fast, a.beta_slow)
    )
    low, high = (math.floor(low), math.ceil(high)) if a.truncate else (low, high)
    low, high = max(low, 0), min(high, 2 * len(omega) - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(len(omega)) - low) / (high - low), 0.0, 1.0)
    grown = [
        1.0 if a.factor <= 1.0 else 0.1 * (m or 0.0) * math.log(a.factor) + 1.0
        for m in (a.mscale, a.mscale_all_dim, 1.0)
    ]
    factor = grown[0] / grown[1] if a.mscale and a.mscale_all_dim else grown[2]
    factor = factor if a.attention_factor is None else a.attention_factor
    return {"frequencies": omega / a.factor * ramp + omega * (1.0 - ramp), "attention_factor": factor}


# -- kernels -----------------------------------------------------------------------------------------------------------


def gaussian(scale: float, ndim: int = 1) -> Callable[[Any], np.ndarray]:
    def phi(lags: Any) -> np.ndarray:
        x = np.asarray(lags, dtype=WIDE) / scale
        return np.exp(-0.5 * (x * x if ndim == 1 else np.sum(x * x, axis=-1)))

    return phi


BELL = gaussian(8.0)  # the kernel of most calls: gaussian(scale=8)


@gives("kernels.base.Kernel.phi")
def _phi(a):
    return BELL(a.lags)


@gives("kernels.base.Kernel.phi2")
def _phi2(a):
    return BELL(2.0 * np.asarray(a.lags, dtype=WIDE))


@gives("kernels.base.Kernel.density")
def _density(a):
    return 8.0 / math.sqrt(2.0 * math.pi) * np.exp(-32.0 * np.asarray(a.omega, dtype=WIDE) ** 2)


@gives("kernels.base.Kernel.transport")
def _transport(a):
    u = real(a.u)
    return np.clip(special.ndtri(u[..., 0] if u.ndim and u.shape[-1] == 1 else u) / 8.0, -(2.0**500), 2.0**500)


LAGS = np.asarray([0.0, 0.3, 1.0, 2.5, 7.0])


@holds("kernels.base.Kernel.rescale")
def _rescale(found, a):
    agree(found.phi(LAGS), BELL(LAGS / float(np.reshape(a.scale, -1)[0])))


@holds("kernels.base.Kernel.warp")
def _warp(found, a):
    agree(found.phi(LAGS), BELL(LAGS * float(np.reshape(a.matrix, -1)[0])))


def check_law(found: Any) -> None:
    """Phi against the mean cosine of the transport, with which it shares no code."""
    n = 2**14
    if found.ndim > 2**10:
        return  # no lag fits into memory
    if found.n_columns == 1 and found.ndim == 1:
        omega = real(found.transport((np.arange(n) + 0.5) / n))
        middle = float(np.median(np.abs(omega)))
        lags = (0.0, 0.3, 1.0) if not 0.0 < middle < 1e100 else (0.0, 0.3 / middle, 1.0 / middle)
        for lag in lags:
            mean = float(np.mean(np.cos(lag * omega)))
            assert abs(float(found.phi(lag)) - mean) < 1e-2, f"phi({lag}) is {found.phi(lag)}; its transport has {mean}"
    else:
        points = np.random.default_rng(0).random((n, found.n_columns))
        omega = real(found.transport(points)).reshape(n, found.ndim)
        for lag in (0.0, 1.0 / max(float(np.median(np.linalg.norm(omega, axis=-1))), 1e-200)):
            mean, lags = float(np.mean(np.cos(lag * omega[:, 0]))), np.zeros(found.ndim)
            lags[0] = lag
            assert abs(float(found.phi(lags if found.ndim > 1 else lag)) - mean) < 0.05, f"phi({lag}) is not {mean}"


FAMILIES = ("Gaussian", "Cauchy", "Matern", "Exponential", "RationalQuadratic", "PowerExponential")
SPECTRA = ("Sinc", "LogUniform", "Periodic", "SpectralMixture", "Ball", "Shell", "Constant")


@holds(*(f"kernels.families.{name}" for name in FAMILIES), *(f"kernels.spectra.{name}" for name in SPECTRA))
def _family(found, a):
    check_law(found)
    agree(found.ndim, a.ndim)


@holds("kernels.algebra.mixture", "kernels.registry.kernel", "kernels.text.parse", "kernels.algebra.axes")
def _law(found, a):
    check_law(found)


# -- moments and estimates ---------------------------------------------------------------------------------------------


def moments(a: Any) -> tuple[Any, Any]:
    phi, phi2 = BELL(a.lags), BELL(2.0 * np.asarray(a.lags, dtype=WIDE))
    c, s = coefficients(a.q, a.k, a.pairing)
    variance = np.sum(c * c, -1) * ((1.0 + phi2) / 2.0 - phi * phi) + np.sum(s * s, -1) * (1.0 - phi2) / 2.0
    return np.sum(c, -1) * phi, variance


@gives("moments.expected_score")
def _expected(a):
    return moments(a)[0]


@gives("moments.score_variance")
def _variance(a):
    return variance_near_zero(a)


def variance_near_zero(a: Any) -> np.ndarray:
    """The variance by ``1 - Phi``, which keeps its digits near lag 0."""
    x = np.asarray(a.lags, dtype=WIDE) / 8.0
    c, s = coefficients(a.q, a.k, a.pairing)
    fall, fall2 = -np.expm1(-0.5 * x * x), -np.expm1(-2.0 * x * x)
    flat = fall * (2.0 - fall) - fall2 / 2.0
    flat = np.where(x * x < 1e-6, x**4 / 2.0, flat)  # (1 + e^-2y)/2 - e^-y with y = x^2: y^2 / 2
    return np.sum(c * c, -1) * flat + np.sum(s * s, -1) * fall2 / 2.0


@gives("moments.relative_error")
def _relative(a):
    mean = moments(a)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mean == 0.0, np.inf, np.sqrt(variance_near_zero(a)) / np.abs(mean))


@gives("moments.blocks_for_error")
def _blocks(a):
    return max(1, math.ceil(2.0 * math.log(2.0 * a.max_lag / (1.0 - a.confidence)) / a.error / a.error))


@holds("moments.mean_kernel_band")
def _band(found, a):
    x = np.asarray(a.lags, dtype=WIDE)
    value, stderr, lower, upper = (real(plain(one)) for one in (found.value, found.stderr, found.lower, found.upper))
    phi, phi2 = BELL(x), BELL(2.0 * x)
    error = np.sqrt(np.maximum((1.0 + phi2) / 2.0 - phi * phi, 0.0) / a.n_blocks)
    agree(found.value, phi)
    away = np.nan_to_num(np.abs(stderr - real(error)))
    assert np.all(away <= 1e-6 * np.nan_to_num(real(error)) + 3.1e-8 / math.sqrt(a.n_blocks)), "stderr"
    z = special.ndtri(0.5 + a.confidence / 2.0)
    agree(upper, np.minimum(value + z * stderr, 1.0))
    agree(lower, np.maximum(value - z * stderr, -1.0))


def near(estimate: Any, expected: Any, n: int) -> None:
    """Within what 10 standard errors of n draws, whose law is bounded by 1, can be."""
    value, expected = real(plain(estimate.value)), real(expected)
    assert value.shape == np.shape(expected), f"shape {value.shape} for {np.shape(expected)}"
    assert np.array_equal(np.isnan(value), np.isnan(expected))
    known = ~np.isnan(value)
    away = np.abs(value - expected)[known]
    assert np.all(away <= 10.0 / math.sqrt(n) * (1e-12 + np.abs(1.0 - expected[known])) + 1e-12)


@holds("montecarlo.estimate_kernel")
def _estimate(found, a):
    near(found, BELL(a.lags), a.n_samples)
    assert found.n == a.n_samples


@holds("montecarlo.estimate_scores")
def _estimates(found, a):
    mean, variance = moments(a)
    value = real(plain(found.mean.value))
    assert value.shape == np.shape(mean)
    assert np.array_equal(np.isnan(value), np.isnan(real(mean)))
    known = ~np.isnan(value)
    away = np.abs(value - real(mean))[known]
    assert np.all(away <= 10.0 * np.sqrt(np.maximum(real(variance)[known], 0.0) / a.n_trials) + 1e-9)


@holds("validation.validate")
def _validate(found, a):
    assert found.passed or a.alpha == 0.5, str(found)  # half of all right implementations fail then
    lags = [lag for (lag,) in found.lags]
    if a.lags is not None:
        agree(lags, np.atleast_1d(real(a.lags)).reshape(-1))
    for row in found.rows:
        if row.quantity == "Φ":
            agree(row.closed_form, BELL(row.lag[0]))
    assert found.alpha == a.alpha
    assert found.n_samples == a.n_samples
    assert found.n_trials == a.n_trials


# -- designs -----------------------------------------------------------------------------------------------------------


@holds("designs.sampling.sample")
def _sample(found, a):
    shape = (a.n_blocks,) if a.heads is None else (a.heads, a.n_blocks, 1)
    assert found.shape == shape
    assert np.all(np.abs(found) < 2.0), "frequencies of gaussian(scale=8): 16 deviations"
    if a.n_blocks and a.heads != 0:
        assert np.all(found != 0.0)
        assert len(np.unique(found)) == found.size


@holds("designs.designing.design")
def _design(found, a):
    omega = found.frequencies
    assert omega.shape == ((4,) if a.heads is None else (a.heads, 4, 1))
    assert np.all(np.abs(omega) < 2.0)
    agree(found, {"context": a.context, "head_dim": 8, "pairing": a.pairing})


@holds("designs.optimising.optimise")
def _optimise(found, a):
    lags = np.arange(a.max_lag + 1.0)
    phi = real(BELL(lags))
    error = np.sqrt(np.mean((np.cos(np.outer(lags, found.frequencies)).mean(-1) - phi) ** 2))
    grid = np.stack(np.meshgrid(*[np.linspace(0.0, 0.5, 40)] * min(a.n_blocks, 2)), -1).reshape(-1, min(a.n_blocks, 2))
    best = np.sqrt(np.mean((np.cos(lags[:, None, None] * grid).mean(-1) - phi[:, None]) ** 2, axis=0)).min()
    assert found.frequencies.shape == (a.n_blocks,)
    assert error <= best, f"rms {error}; a coarse grid has {best}"


@holds("designs.sampling.points")
def _points(found, a):
    shape = (a.n_blocks,) if a.heads is None else (a.heads, a.n_blocks)
    assert found.shape[: len(shape)] == shape
    assert np.all((found > 0.0) & (found < 1.0))
    rows = found.reshape(math.prod(shape[:-1]), a.n_blocks)
    strata = np.sort(np.floor(np.abs(2.0 * rows - 1.0) * a.n_blocks), axis=-1)  # laws are even: both halves are one
    assert np.array_equal(strata, np.broadcast_to(np.arange(a.n_blocks), strata.shape)), "one in each stratum"
