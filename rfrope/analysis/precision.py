"""Bounds on the logit errors of an engine's phases and tables, and the cheapest below a given error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks
from rfrope._core.arguments import choice, named, positive, whole
from rfrope._core.array import Array
from rfrope._core.results import Result, align, plain
from rfrope.rotation.rope import Rope, pairing_for, refuse_polar

_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # relative
_FUNCTIONS = 2.0**-23  # error of cos and sin of a float32 in good libraries: two units in the last place
# up to a phase: sin.approx.f32 of the PTX ISA
_INTRINSIC = ((2.0 * math.pi, 2.0**-20.5), (100.0 * math.pi, 2.0**-14.7))
_EXACT = 1e-15  # of rfrope


@dataclass(frozen=True)
class _Form:
    """Arithmetic of one way to form cos and sin."""

    phases: str  # how a phase is formed
    table: str = ""  # type of the table that a kernel reads; "" where it forms cos and sin itself
    used_by: str = ""  # engines that do so
    frequency: float = 0.0  # largest relative error of a frequency, the same wherever it is used
    exponent: float = 0.0  # and beside that for each unit of its logarithm, where it is a power of a base
    phase: float = 0.0  # largest relative error of a product beside that
    position: float = 0.0  # relative error of a position, from `whole_positions` on
    whole_positions: int = 2**53  # positions up to which every whole number exists

    @property
    def name(self) -> str:
        """Phases and table, in words."""
        return f"{self.phases}, {self.table} table" if self.table else self.phases

    @property
    def n_bytes(self) -> int:
        """Bytes of cos and sin that a kernel reads for each block of a token."""
        return 2 * {"": 0, "float32": 4}.get(self.table, 2)

    def frequency_error(self, frequencies: np.ndarray) -> np.ndarray:
        """Return the largest error of frequencies, in radians per position."""
        size = np.abs(frequencies)
        logarithm = np.abs(np.log(np.where(size > 0.0, size, 1.0)))
        return np.asarray(size * (self.frequency + self.exponent * logarithm))

    def off_by(self, phase: np.ndarray) -> np.ndarray:
        """Return the largest error of cos or sin of a phase that is given, the table's rounding included."""
        rounded = _ROUNDING[self.table] if self.table else 0.0
        if self.phases == "__sincosf":
            limits, errors = zip(*_INTRINSIC, strict=True)
            return np.asarray((*errors, math.inf))[np.searchsorted(limits, phase)]
        function = _EXACT if self.phases == "exact" else _FUNCTIONS
        return np.full(phase.shape, function + rounded)


_SINGLE: dict[str, Any] = {
    "frequency": 2.0**-21,
    "exponent": 2.0**-24,
    "phase": 2.0**-24,
    "position": 2.0**-24,
    "whole_positions": 2**24,
}
_HALF: dict[str, Any] = {"frequency": 2.0**-8, "phase": 2.0**-8, "position": 2.0**-8, "whole_positions": 2**8}
_FORMS = (  # the cheapest first
    _Form("__sincosf", "", "FlashInfer without a table", **_SINGLE),
    _Form("bfloat16 phases", "bfloat16", "modules cast to bfloat16", **_HALF),
    _Form("float32 phases", "bfloat16", "transformers in bfloat16", **_SINGLE),
    _Form("exact", "bfloat16"),
    _Form("exact", "float16"),
    _Form("float32 phases", "float32", "transformers in float32", **_SINGLE),
    _Form("exact", "float32", "tables that rfrope exports"),
    _Form("float32 pairs", frequency=2.0**-48, phase=2.0**-46, position=2.0**-48, whole_positions=2**48),
    _Form("exact", used_by="rfrope"),
)


@dataclass(frozen=True)
class Representation(Result):
    """A way to compute cos and sin, and its possible effect on logits.

    Attributes
    ----------
    name : str
        Computation of the phases, and the type of the table, if any.
    n_bytes : int
        Bytes of cos and sin that a kernel reads per block of a token; 0 if it computes them itself.
    used_by : str
        Engines known to do so.
    error : float
        Bound on the error of a logit; infinite if there is none.
    drift : float
        Bound on the change of a logit when all positions move by the same number, within the context: twice the error
        without the part of the frequencies, which is the same everywhere.
    frequency, phase, entry, rounding : float
        Parts of the error: rounded frequencies, rounded products with positions, cos and sin and their table, and the
        arithmetic of the rotation in the dtype of queries and keys. The error also includes their products.

    See Also
    --------
    analysis.PrecisionBudget

    Examples
    --------
    >>> import rfrope
    >>> from rfrope.data import smollm2_heads
    >>> heads, omega = smollm2_heads(), rfrope.geometric(32, base=1e5)
    >>> found = rfrope.analysis.precision_budget(heads["previous_q"], heads["previous_k"], omega, 8192)
    >>> one = found.representation("float32 phases, float32 table")
    >>> one.error < 0.1, one.phase > one.rounding
    (True, True)
    """

    name: str
    n_bytes: int
    used_by: str
    error: float
    drift: float
    frequency: float
    phase: float
    entry: float
    rounding: float


@dataclass(frozen=True)
class PrecisionBudget(Result):
    """Representations of a rotation, cheapest first, with bounds on their effect on logits.

    Attributes
    ----------
    context : int
        Number of positions.
    dtype : str
        Dtype of queries and keys.
    below : float or None
        The requested bound.
    representations : tuple of Representation

    See Also
    --------
    analysis.precision_budget, analysis.Representation

    Examples
    --------
    >>> import rfrope
    >>> from rfrope.data import smollm2_heads
    >>> heads, omega = smollm2_heads(), rfrope.geometric(32, base=1e5)
    >>> found = rfrope.analysis.precision_budget(heads["previous_q"], heads["previous_k"], omega, 8192, below=0.08)
    >>> found.cheapest.name
    'float32 phases, float32 table'
    """

    context: int
    dtype: str
    below: float | None
    representations: tuple[Representation, ...]

    @property
    def cheapest(self) -> Representation | None:
        """The first representation with an error below the requested bound, or None."""
        found = (one for one in self.representations if self.below is not None and one.error < self.below)
        return next(found, None)

    def representation(self, name: str) -> Representation:
        """Return the representation of a name; case and punctuation are ignored."""
        by_name = {one.name: one for one in self.representations}
        return by_name[named("name", name, tuple(by_name))]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON, with None for infinity."""
        return plain({**vars(self), "cheapest": None if self.cheapest is None else self.cheapest.name})

    def __str__(self) -> str:
        head = ("", "bytes", "error", "drift", "used by")
        rows = [
            (one.name, str(one.n_bytes), _show(one.error), _show(one.drift), one.used_by)
            for one in self.representations
        ]
        lines = align((head, *rows))
        first = f"bounds for logits of {self.dtype} queries and keys, {self.context} positions"
        if self.below is None:
            return "\n".join([first, "", *lines])
        name = "none of these" if self.cheapest is None else self.cheapest.name
        return "\n".join([first, "", *lines, "", f"cheapest below {self.below:g}: {name}"])


@array.select_device
def precision_budget(
    q: Array,
    k: Array,
    rope: Rope | Array,
    context: int | None = None,
    *,
    dtype: str = "float32",
    below: float | None = None,
) -> PrecisionBudget:
    """Return bounds on the logit errors of each representation of cos and sin, and the cheapest below a bound.

    Parameters
    ----------
    q, k : array_like, (..., M, d) and (..., N, d)
        Queries and keys, rotated or not, d even and at least 2D: only norms of blocks matter. The largest bound over
        all pairs of a query and a key is reported.
    rope : Rope or array_like
        The intended rotation. Bare frequencies, in radians per unit of position, are a Rope with pairing "half".
    context : int, optional
        Number of positions, from 0 on each axis. Default: that of the Rope.
    dtype : {"float32", "float64", "float16", "bfloat16"}
        Type of queries and keys, in which the engine rotates them.
    below : float, optional
        Positive; largest allowed error.

    Returns
    -------
    PrecisionBudget
        ``print`` it for a table; ``cheapest`` is the first representation with an error below `below`.

    Raises
    ------
    ValueError
        If shapes do not fit, there is no context, the dtype is unknown, the Rope is polar, or `below` is not positive.
    TypeError
        If features are not real floating, or an argument is of another type.

    See Also
    --------
    analysis.PrecisionBudget, engines.rounding

    Notes
    -----
    A logit is ``a^2 / sqrt(d)`` times the score, with the attention factor a and d features in the score. With relative
    errors f of a block's frequency and r of its phase, e of a table entry and g of the arithmetic, rotated features are
    off by the factor ``1 + t`` with ``t = h + g + h g``, ``h = min(2, P r) + sqrt(2) e``, and P the phase at the last
    position. A score is then off by at most ``sum |q_i| |k_i| (min(2, P f) + 2 t + t^2)``, and changes by twice
    ``sum |q_i| |k_i| (2 t + t^2)`` if all positions move, since frequencies are the same everywhere. For arithmetic in
    a type of unit roundoff u, g is ``(1 + sqrt 2) u``. Rounding of the sum over features in attention is not counted.

    The bound holds for every position and every rounding; actual errors are some ten times smaller. The page on
    precision has those of a model. Cos, sin and powers of float32 are assumed to be within two units in the last place.
    A frequency ``base ** -e`` in float32 is then within ``2^-21 + |log frequency| 2^-24`` of the exact one, where the
    second term is the rounded exponent; for 64 or 128 features, whose exponents are exact, within ``2^-23``.
    ``__sincosf`` of CUDA is ``sin.approx.f32``, which the PTX ISA bounds by 2^-20.5 for phases up to 2 pi, by 2^-14.7
    up to 100 pi, and not beyond.

    Examples
    --------
    >>> import rfrope
    >>> from rfrope.data import smollm2_heads
    >>> heads, rope = smollm2_heads(), rfrope.Rope(rfrope.geometric(32, base=100000.0), context=8192)
    >>> found = precision_budget(heads["previous_q"], heads["previous_k"], rope, below=0.08)
    >>> found.cheapest.name, round(found.cheapest.error, 3)
    ('float32 phases, float32 table', 0.069)
    >>> precision_budget(heads["previous_q"], heads["previous_k"], rope, 131072, below=0.08).cheapest.name
    'exact, float32 table'
    """
    rope = rope if isinstance(rope, Rope) else Rope(rope)
    refuse_polar(rope, "rope", "no engine supports polar attention")
    choice("dtype", dtype, tuple(_ROUNDING))
    length = rope.context if context is None else whole("context", context, 1)
    if length is None:
        raise ValueError("context is None, and so is the Rope's; expected context=")
    length = max(length) if isinstance(length, tuple) else length
    below = None if below is None else positive("below", below)
    xp, device = array.shared(q=q, k=k)
    q, k = blocks.query_and_key(q, k, xp, device)
    if min(q.ndim, k.ndim) < 2:
        raise ValueError(f"q and k have shapes {tuple(q.shape)} and {tuple(k.shape)}; expected (..., tokens, d)")
    omega = angles.read_on_host(rope.vectors, "rope")
    norms = [_block_norms(x, rope, name) for x, name in ((q, "q"), (k, "k"))]
    scale = rope.attention_factor**2 / math.sqrt(max(rope.qk_head_dim, q.shape[-1]))
    found = (_bound(form, omega, length, dtype, norms[0], norms[1], scale) for form in _FORMS)
    return PrecisionBudget(length, dtype, below, tuple(found))


def _block_norms(x: Array, rope: Rope, name: str) -> np.ndarray:
    """Return the norm of each block that turns, in float64 on the host."""
    blocks.check_width(x, rope.n_blocks, "rope", name)
    pairing = pairing_for(rope, x, name)
    host = array.to_host(array.widen(x, array.namespace(x=x)), name).astype(np.float64)
    if not np.all(np.isfinite(host)):
        raise ValueError(f"{name} holds NaN or infinity; expected finite numbers")
    first, second = blocks.pair(host[..., : rope.rotary_dim], pairing)
    return np.hypot(first, second)


def _bound(
    form: _Form, omega: np.ndarray, context: int, dtype: str, q: np.ndarray, k: np.ndarray, scale: float
) -> Representation:
    """Return bounds for one form, from frequencies ``(*H, D, k)`` and the norms of blocks."""
    phase = (context - 1) * np.sum(np.abs(omega), axis=-1)
    unit = _ROUNDING[dtype]
    relative = form.phase + (form.position if context - 1 > form.whole_positions else 0.0)
    apart = (context - 1) * np.sum(form.frequency_error(omega), axis=-1)
    frequency = np.minimum(2.0, apart)
    product = np.minimum(2.0, (phase + apart) * relative)
    entry = math.sqrt(2.0) * form.off_by(phase)
    arithmetic = (1.0 + math.sqrt(2.0)) * unit
    turned = product + entry
    part = turned + arithmetic + turned * arithmetic
    both = 2.0 * part + part**2

    def largest(each: np.ndarray) -> float:
        if not np.all(np.isfinite(each)):
            return math.inf
        sums = np.matmul(q * each[..., None, :], np.swapaxes(k, -1, -2))
        return scale * float(np.max(sums, initial=0.0))

    return Representation(
        form.name,
        form.n_bytes,
        form.used_by,
        error=largest(frequency + both),
        drift=2.0 * largest(both),
        frequency=largest(frequency),
        phase=largest(2.0 * product),
        entry=largest(2.0 * entry),
        rounding=largest(np.full(phase.shape, 2.0 * arithmetic)),
    )


def _show(value: float) -> str:
    return "no bound" if value == math.inf else f"{value:.2g}"
