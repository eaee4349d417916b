"""Audit of a rotation as a black box, given unit vectors at chosen positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rfrope._core.arguments import whole
from rfrope._core.results import Result
from rfrope.data.model_types import known
from rfrope.models.auditing import merge_shared
from rfrope.models.configs import from_config, is_config, read_rope
from rfrope.models.probing.faults import check_values, judge, total
from rfrope.models.probing.measurements import Box, Function, measure
from rfrope.models.probing.models import ModelLayers
from rfrope.models.verdicts import Finding
from rfrope.rotation.rope import Rope

_CONTEXT = 4096  # positions to measure if no context is known
_ROUNDED = 1e-6  # factors this close to 1 count as 1
_LARGEST = 2**24  # float32 represents positions up to this
_POLAR = "probe follows blocks of two features"


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
        True if frequencies differ between heads, or between queries and keys.

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
    pairing: str | None = None
    rotary_dim: int = 0
    first: int = 0
    frequencies: np.ndarray = field(default_factory=lambda: np.zeros(0))
    frequency_error: np.ndarray = field(default_factory=lambda: np.zeros(0))
    attention_factor: dict[str, float] = field(default_factory=dict)
    factor_of_rest: dict[str, float] = field(default_factory=dict)
    turning_heads: dict[str, tuple[bool, ...]] = field(default_factory=dict)
    exceeds: int | None = None
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


@dataclass(frozen=True, eq=False)
class Probe(Result):
    """Rotations of a function or of a model's layers, as measured, and their faults.

    Attributes
    ----------
    findings : tuple of Finding
    rotations : tuple of Rotation
        One per layer; one for a function.
    calls : int
        Number of calls of the function or the model.
    context : int
        Measured positions are below it.

    See Also
    --------
    models.probe, models.Rotation

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(8), pairing="half")
    >>> found = rfrope.models.probe(lambda q, k, at: tuple(rope.rotate(x, at[:, None]) for x in (q, k)), head_dim=16)
    >>> found.passed, found.rope.pairing
    (True, 'half')
    """

    findings: tuple[Finding, ...]
    rotations: tuple[Rotation, ...]
    calls: int
    context: int
    _also = ("passed",)

    @property
    def passed(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    @property
    def rope(self) -> Rope:
        """The measured Rope of the first layer that rotates.

        Its attention factor is the square root of the product of those of queries and keys.

        Raises
        ------
        ValueError
            If nothing rotates, rotated features are not pairs or not the first ones of a head, or the rotation
            differs between heads or between queries and keys.
        """
        one = next((one for one in self.rotations if one.pairing in ("half", "interleaved")), None)
        if one is None:
            raise ValueError("no layer turns pairs of features, so there is no Rope; read findings instead")
        reasons = {
            "some values turn into NaN": not (one.attention_factor and np.all(np.isfinite(one.frequencies))),
            f"features from {one.first} on turn": one.first > 0,
            "not all heads turn": not all(all(turning) for turning in one.turning_heads.values()),
            "heads, or queries and keys, turn by different frequencies": one.sets_differ,
        }
        if reason := next((text for text, holds in reasons.items() if holds), ""):
            raise ValueError(f"{one.name}: {reason}, and no Rope does; read rotations instead")
        factors = [*one.attention_factor.values()]
        sides = 2 if "scores" in one.attention_factor else len(factors)
        factor = float(np.prod(factors) ** (1.0 / sides))
        factor = 1.0 if abs(factor - 1.0) < _ROUNDED else factor
        about: dict[str, Any] = {"pairing": one.pairing, "head_dim": one.head_dim, "context": self.context}
        return Rope(one.frequencies, attention_factor=factor, **about)

    def __str__(self) -> str:
        lines = ["PASSED" if self.passed else "FAILED"]
        groups: dict[str, list[str]] = {}
        for one in self.rotations:
            groups.setdefault(str(one).removeprefix(one.name), []).append(one.name)
        for text, names in groups.items():
            lines.append(f"  {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}{text}")
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])


def probe(
    apply: Callable[..., Any],
    expected: Any = None,
    *,
    head_dim: int | None = None,
    heads: int = 1,
    kv_heads: int | None = None,
    axes: int | None = None,
    gives: str = "rotated",
    score_scale: float = 1.0,
    context: int | None = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Probe:
    """Measure what a rotation does, from its outputs alone, and name the known mistake that it looks like.

    Parameters
    ----------
    apply : callable, or a model of transformers
        A function ``apply(q, k, positions)`` of queries ``(batch, heads, tokens, head_dim)``, keys with ``kv_heads``
        heads, and int64 positions ``(batch, tokens)``, or ``(batch, tokens, axes)`` for several axes. It returns both
        rotated, or the scores ``(batch, heads, tokens, tokens)`` of all queries and keys, before softmax.

        A model is run on token 0 at such positions. Each layer's own rotation function is called once more, with unit
        vectors in place of queries and keys.
    expected : Rope, frequencies, or config, optional
        The expected Rope; configs as in `from_config`. Default: a model's ``config``. Without it, a function is only
        measured, and anything that no RoPE does is a finding.
    head_dim : int, optional
        Width of a head. Default: that of `expected`.
    heads, kv_heads : int
        Number of query and key heads. Default: one query head, and as many key heads as query heads.
    axes : int, optional
        Number of axes of positions, three for M-RoPE. Default: that of `expected`.
    gives : {"rotated", "scores"}
        Result of the function.
    score_scale : float
        Factor of scores apart from the rotation, such as ``head_dim ** -0.5``.
    context : int, optional
        Upper limit of positions. Default: the context of `expected`, or 4096.
    xp, device, dtype
        Library, device and dtype of `q` and `k`, as in `geometric`. Default: NumPy and float32.

    Returns
    -------
    Probe
        With ``passed``, ``findings``, ``rotations``, ``rope``, a readable ``str`` and plain data from ``to_dict``.

    Raises
    ------
    ValueError
        If the width of a head is unknown, results have other shapes, or a model's rotation is not a function of its
        Python module. See also `from_config`.
    TypeError
        If `apply` is not callable, or results are of another type. See also `from_config`.

    See Also
    --------
    models.Probe, models.audit

    Notes
    -----
    A function is called six times, once more for scores, and once for each of several axes. First, unit vectors of all
    features at five positions, and twice these vectors, give pairs, width and factors. Then all blocks are measured
    together at up to 160 positions below the context, shuffled, in two different rows. Phases at 1, 2, 4, ... give
    frequencies, and the others the position by which each token is rotated. Each axis is also measured alone, and the
    blocks once more at the end, to find state left by earlier calls. Finally, two calls have one token per row, as in
    decoding, with features scaled differently in every head and row. A model is first run once more, to find its
    layers and what reaches their attention. The position of a finding is the first of those measured. A config is read
    at length `context`.

    Whole positions determine frequencies only up to whole turns. Scores determine only the square of the attention
    factor, and not where positions start. A missing factor cannot be told from weights that compensate for it.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> config = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "rope_theta": 500000.0,
    ...           "max_position_embeddings": 4096}
    >>> wrong = rfrope.Rope(rfrope.geometric(32))  # base 10000
    >>> def apply(q, k, positions):
    ...     return wrong.rotate(q, positions[:, None]), wrong.rotate(k, positions[:, None])
    >>> print(probe(apply, config))  # doctest: +ELLIPSIS
    FAILED
      apply: pairing 'half', 64 features, 32 frequencies, 1 to 0.0001334; queries x 1, keys x 1
      apply: frequencies are not as expected (...): they are those of base 10000 instead of 500000; off by more ...
    """
    if hasattr(apply, "named_modules") and expected is None:
        expected = getattr(apply, "config", None)
    meant = () if expected is None else _read_meant(expected)
    contexts = [one.context for one in meant if isinstance(one.context, int)] or [_CONTEXT]
    length = max(2, min(_LARGEST, *contexts)) if context is None else whole("context", context, 2, _LARGEST)
    if is_config(expected):
        meant = _read_meant(expected, length)
    if hasattr(apply, "named_modules"):
        source: Any = ModelLayers(apply, meant, expected if is_config(expected) else None)
    else:
        source = Function(apply, meant, head_dim, heads, kv_heads, axes, gives, score_scale, (xp, device, dtype))
    measure(source, length)
    rotations, findings = [], []
    for box in source.boxes:
        rope, found = judge(box)
        rotations.append(_read_rotation(box, rope))
        findings += [*found, *(Finding(kind, box.name, text) for kind, text in box.changes)]
    return Probe(merge_shared(findings), tuple(rotations), source.calls, length)


def _read_rotation(box: Box, rope: Rope | None) -> Rotation:
    """Return the rotation of a box, by an expected Rope or by none; without frequencies if values are not sound."""
    if not box.width:
        return Rotation(box.name)
    pairs, sides = box.pairs, dict.fromkeys(head.side for head in box.heads)
    turning = {side: tuple(each.pairs.pairing is not None for each in box.heads if each.side == side) for side in sides}
    still = np.zeros(pairs.first.size)
    found = Rotation(
        box.name, pairs.pairing, 2 * still.size, pairs.start, still, still, {}, box.factors_of_rest, turning,
        head_dim=box.width,
    )  # fmt: skip
    if not still.size or any(True for head in box.heads for _ in check_values(head, rope)):
        return found
    first = box.turning[0]
    read = first.phases
    meant = read.frequencies if rope is None else total(rope)
    return replace(
        found,
        frequencies=read.frequencies if first.vectors is None else first.vectors,
        frequency_error=read.allowed,
        attention_factor=box.factors,
        exceeds=first.find_first_off(meant if meant.shape == read.frequencies.shape else read.frequencies),
        sets_differ=not all(each.phases.is_near(read) for each in box.turning),
    )


def _read_meant(expected: Any, length: int | None = None) -> tuple[Rope, ...]:
    """Return the expected Ropes, possibly of several axes or heads; for a config, those at a text length."""
    if not is_config(expected):
        return (read_rope("expected", expected, _POLAR),)
    found = from_config(expected, seq_len=length)
    text = [one for one in found if one.source.rope_parameters["rope_type"] != "axial"]
    return tuple(
        replace(one, frequencies=-np.asarray(one.frequencies))  # the class negates every angle
        if known(one.source.model.model_type).get("negated")
        else one
        for one in text or found
    )
