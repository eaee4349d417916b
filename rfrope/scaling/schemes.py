"""The schemes: maps on frequencies, each with its attention factor."""

from __future__ import annotations

import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, arguments, array
from rfrope._core.arguments import LARGEST, finite, flag, fraction, whole
from rfrope._core.array import Array
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope, replace_fields

_LADDER = 1e-5  # how far, relatively, frequencies may be from a geometric ladder whose base is looked for


@array.select_device
def linear(frequencies: Array, factor: float) -> Rope:
    """Apply position interpolation: divide every frequency by `factor`.

    Position ``factor * p`` gets the phases that position p had: the trained range is stretched, and neighbours move
    closer together.

    Parameters
    ----------
    frequencies : Rope or array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``. Other fields of a Rope are kept, except that its context grows.
    factor : float
        Positive.

    Returns
    -------
    Rope
        Frequencies of the same shape, float64 where the library has it; attention factor 1.

    Raises
    ------
    ValueError
        If `factor` is not positive and finite, or a frequency is NaN, infinite or above 2**500 (checked where that is
        free).
    TypeError
        If an argument is not a number.

    See Also
    --------
    scaling.ntk, scaling.yarn, analysis.plan

    Notes
    -----
    Source: section 5 of the mathematics page; kaiokendev; Chen et al. 2023 (arXiv 2306.15595).

    Examples
    --------
    >>> linear([1.0, 0.1], 8.0).frequencies
    array([0.125 , 0.0125])
    """
    theta, factor = read(frequencies, shapes="any")[0], positive("factor", factor)
    return scaled_rope(frequencies, theta / factor, 1.0, "linear", factor=factor)


@array.select_device
def ntk(frequencies: Array, factor: float) -> Rope:
    """Apply NTK-aware scaling: keep the first frequency, divide the last by `factor`, and those between geometrically.

    Parameters
    ----------
    frequencies : Rope or array_like, (D,), radians per position
        At least two, from the fastest to the slowest.
    factor : float
        Positive.

    Returns
    -------
    Rope
        ``theta_i * factor ** (-i / (D - 1))``, float64 where the library has it; attention factor 1.

    Raises
    ------
    ValueError
        See `linear`. Also if there are fewer than two frequencies.
    TypeError
        See `linear`.

    See Also
    --------
    scaling.dynamic_ntk, scaling.linear, analysis.plan

    Notes
    -----
    For a geometric ladder this is another base, ``base * factor ** (d / (d - 2))`` with d = 2D. Source:
    section 5 of the mathematics page; bloc97.

    Examples
    --------
    >>> import rfrope
    >>> ntk(rfrope.geometric(3, base=1000.0), 4.0).frequencies
    array([1.    , 0.05  , 0.0025])
    >>> rfrope.geometric(3, base=1000.0 * 4.0 ** (6 / 4))
    array([1.    , 0.05  , 0.0025])
    """
    theta, xp = read(frequencies)
    factor = positive("factor", factor)
    return scaled_rope(frequencies, _slow_down(theta, factor, xp), 1.0, "ntk", factor=factor)


@array.select_device
def dynamic_ntk(frequencies: Array, factor: float, *, seq_len: int | None, max_position_embeddings: int) -> Rope:
    """Apply NTK-aware scaling by as much as the current sequence needs.

    Up to `max_position_embeddings` positions nothing changes. A sequence of n positions gets `ntk` with factor
    ``factor * n / max_position_embeddings - (factor - 1)``.

    Parameters
    ----------
    frequencies : Rope or array_like, (D,), radians per position
        At least two, from the fastest to the slowest.
    factor : float
        Positive.
    seq_len : int or None
        Positions in the sequence; None for a short one.
    max_position_embeddings : int
        Positions in training.

    Returns
    -------
    Rope
        See `ntk`.

    Raises
    ------
    ValueError
        See `ntk`. Also if a length is not positive.
    TypeError
        See `linear`. Also if a length is not a whole number.

    See Also
    --------
    scaling.ntk, analysis.plan

    Notes
    -----
    Keys that were rotated for a shorter sequence keep their old frequencies unless rotated again (`rotation.rerotate`).
    Source: section 5 of the mathematics page; emozilla.

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(3, base=1000.0)
    >>> dynamic_ntk(omega, 3.0, seq_len=2048, max_position_embeddings=2048).frequencies
    array([1.  , 0.1 , 0.01])
    >>> dynamic_ntk(omega, 3.0, seq_len=4096, max_position_embeddings=2048).frequencies  # as ntk(omega, 4.0)
    array([1.    , 0.05  , 0.0025])
    """
    theta, xp = read(frequencies)
    factor = positive("factor", factor)
    slowed = _slow_down(theta, stretch(factor, seq_len, max_position_embeddings), xp)
    return scaled_rope(frequencies, slowed, 1.0, "dynamic", factor=factor, seq_len=seq_len)


@array.select_device
def yarn(
    frequencies: Array,
    factor: float,
    *,
    original_max_position_embeddings: int,
    base: float | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
) -> Rope:
    """Apply YaRN: keep fast frequencies, divide slow ones by `factor`, with a linear ramp over the blocks between.

    The ramp goes from the block that completes `beta_fast` turns in the original context to the one that completes
    `beta_slow`. An attention factor that grows with ``ln factor`` sharpens scores.

    Parameters
    ----------
    frequencies : Rope or array_like, (D,), radians per position
        From the fastest to the slowest.
    factor : float
        Positive.
    original_max_position_embeddings : int
        Positions of the original training.
    base : float, optional
        Base of the geometric ladder, which places the ramp. Default: found from `frequencies`; required if they are not
        such a ladder, and for arrays on a device, of JAX or of Dask.
    beta_fast, beta_slow : float
        Turns in the original context at the ends of the ramp.
    truncate : bool
        Round the ends of the ramp outwards to whole blocks.
    attention_factor : float, optional
        Replaces the one that follows from `factor`, `mscale` and `mscale_all_dim`.
    mscale, mscale_all_dim : float, optional
        If both are given and not 0, the attention factor is ``m(mscale) / m(mscale_all_dim)`` with ``m(c) = 0.1 c ln
        factor + 1``; otherwise ``m(1)``. For a factor up to 1 all these are 1.

    Returns
    -------
    Rope
        Frequencies ``(D,)``, float64 where the library has it, and the attention factor.

    Raises
    ------
    ValueError
        See `linear`. Also if `base` is required and missing or not above 1, a number is not positive (`mscale` and
        `mscale_all_dim`: negative), or `beta_fast` is below `beta_slow`.
    TypeError
        See `linear`. Also if `truncate` is not a bool.

    See Also
    --------
    scaling.llama3, scaling.ntk, analysis.plan

    Notes
    -----
    As in transformers, `mscale` alone has no effect. Source: section 5 of the mathematics page; Peng et al. 2023
    (arXiv 2309.00071).

    Examples
    --------
    >>> import rfrope
    >>> frequencies, factor = yarn(rfrope.geometric(4), 8.0, original_max_position_embeddings=4096)
    >>> frequencies.tolist(), round(factor, 4)
    ([1.0, 0.1, 0.005625, 0.000125], 1.2079)
    """
    theta, xp = read(frequencies)
    factor, n_blocks, truncate = positive("factor", factor), theta.shape[0], flag("truncate", truncate)
    base = _find_base(theta) if base is None else positive("base", base)
    if base <= 1.0:
        raise ValueError(f"base is {base}; expected a number above 1")
    beta_fast, beta_slow = positive("beta_fast", beta_fast), positive("beta_slow", beta_slow)
    if beta_fast < beta_slow:
        raise ValueError(f"beta_fast is {beta_fast}, beta_slow {beta_slow}; expected the first not below the second")
    original = whole("original_max_position_embeddings", original_max_position_embeddings, 1)
    low, high = ramp_ends(2 * n_blocks, math.log(base), original, beta_fast, beta_slow, truncate)
    index = xp.arange(n_blocks, dtype=theta.dtype, device=array.device(theta))
    kept = 1.0 - array.clip((index - low) / (high - low), 0.0, 1.0, xp)
    if attention_factor is None:
        both = {"mscale": mscale, "mscale_all_dim": mscale_all_dim}.items()
        given = [finite(name, value, minimum=0.0, maximum=2.0**100) for name, value in both if value is not None]
        attention_factor = sharpen_yarn(factor, *given) if len(given) == 2 and all(given) else sharpen_yarn(factor)
    else:
        attention_factor = positive("attention_factor", attention_factor)
    scaled = theta / factor * (1.0 - kept) + theta * kept
    return scaled_rope(frequencies, scaled, attention_factor, "yarn", factor=factor)


@array.select_device
def longrope(
    frequencies: Array,
    *,
    short_factor: Array,
    long_factor: Array,
    original_max_position_embeddings: int,
    factor: float,
    seq_len: int | None = None,
    attention_factor: float | None = None,
) -> Rope:
    """Apply LongRoPE: divide each frequency by its own factor, from one list or, for long sequences, another.

    Parameters
    ----------
    frequencies : Rope or array_like, (D,), radians per position
    short_factor, long_factor : array_like, (D,)
        Found by a search, and published with the model. Negative ones reverse a block's rotation.
    original_max_position_embeddings : int
        `short_factor` is used up to this many positions, `long_factor` beyond. At least 2.
    factor : float
        Positive ratio of the contexts; it only enters the attention factor.
    seq_len : int, optional
        Positions in the sequence; None for a short one.
    attention_factor : float, optional
        Replaces ``sqrt(1 + ln factor / ln original_max_position_embeddings)``, or 1 for a factor up to 1.

    Returns
    -------
    Rope
        Frequencies ``(D,)``, float64 where the library has it, and the attention factor, the same for both lists.

    Raises
    ------
    ValueError
        See `linear`. Also if the three arrays differ in length, or a number is not positive.
    TypeError
        See `linear`. Also if arrays are of different libraries.

    See Also
    --------
    scaling.yarn, analysis.plan

    Notes
    -----
    Source: section 5 of the mathematics page; Ding et al. 2024 (arXiv 2402.13753), as in Phi-3.

    Examples
    --------
    >>> short, long = [1.0, 1.5], [2.0, 10.0]
    >>> options = dict(short_factor=short, long_factor=long, original_max_position_embeddings=4096, factor=32.0)
    >>> longrope([1.0, 0.03], **options).frequencies
    array([1.  , 0.02])
    >>> frequencies, factor = longrope([1.0, 0.03], seq_len=4097, **options)
    >>> frequencies, round(factor, 4)
    (array([0.5  , 0.003]), 1.1902)
    """
    theta, xp = read(frequencies, short_factor=short_factor, long_factor=long_factor)
    original = whole("original_max_position_embeddings", original_max_position_embeddings, 2)
    divisors = []
    for name, value in (("short_factor", short_factor), ("long_factor", long_factor)):
        divisors.append(array.widen(array.numbers(value, xp, name=name, device=array.device(theta)), xp))
        if divisors[-1].shape != theta.shape:
            shapes = f"{name} has shape {tuple(divisors[-1].shape)}, but frequencies has {tuple(theta.shape)}"
            raise ValueError(f"{shapes}; expected one number for each frequency")
        sizes = xp.abs(divisors[-1])
        if array.has_host_values(sizes) and not bool(xp.all((sizes >= 1.0 / LARGEST) & (sizes < LARGEST))):
            raise ValueError(f"{name} holds numbers that are 0 or not finite; expected numbers other than 0")
    if attention_factor is None:
        attention_factor = sharpen_longrope(positive("factor", factor), original)
    else:
        attention_factor = positive("attention_factor", attention_factor)
    is_long = seq_len is not None and whole("seq_len", seq_len, 1) > original
    return scaled_rope(frequencies, theta / divisors[is_long], attention_factor, "longrope", seq_len=seq_len)


@array.select_device
def llama3(
    frequencies: Array,
    factor: float,
    *,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> Rope:
    """Apply Llama 3.1's scaling: keep frequencies with many turns in the original context, divide those with few.

    ``turns = original_max_position_embeddings * theta / 2 pi``. With `high_freq_factor` turns or more a frequency is
    kept, up to `low_freq_factor` it is divided by `factor`, between them it is interpolated.

    Parameters
    ----------
    frequencies : Rope or array_like, (D,), radians per position
    factor : float
        Positive.
    low_freq_factor, high_freq_factor : float
        Positive; turns in the original context, the first not above the second. If equal, as in Llama 4, the
        transition is a step.
    original_max_position_embeddings : int
        Positions of the original training.

    Returns
    -------
    Rope
        Frequencies ``(D,)``, float64 where the library has it; attention factor 1.

    Raises
    ------
    ValueError
        See `linear`. Also if a number is not positive, or `low_freq_factor` is above `high_freq_factor`.
    TypeError
        See `linear`.

    See Also
    --------
    scaling.yarn, analysis.plan

    Notes
    -----
    Source: section 5 of the mathematics page; Meta's Llama 3.1. The sign of a frequency does not matter.

    Examples
    --------
    >>> import rfrope
    >>> options = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    >>> llama3([1.0, 0.002, 0.0005], 8.0, **options).frequencies.round(7)
    array([1.0000e+00, 1.1878e-03, 6.2500e-05])
    """
    theta, xp = read(frequencies)
    factor = positive("factor", factor)
    low, high = positive("low_freq_factor", low_freq_factor), positive("high_freq_factor", high_freq_factor)
    if low > high:
        raise ValueError(f"low_freq_factor is {low}, high_freq_factor {high}; expected the first not above the second")
    original = whole("original_max_position_embeddings", original_max_position_embeddings, 1)
    turns = xp.abs(theta) * (original / (2.0 * math.pi))
    if low == high:
        scaled = xp.where(turns < low, theta / factor, theta)
    else:
        kept = array.clip((turns - low) / (high - low), 0.0, 1.0, xp)
        scaled = (1.0 - kept) * theta / factor + kept * theta
    return scaled_rope(frequencies, scaled, 1.0, "llama3", factor=factor)


@array.select_device
def proportional(frequencies: Array, *, partial_rotary_factor: float = 1.0, factor: float = 1.0) -> Rope:
    """Keep the first part of a ladder that spans the whole head; set the other frequencies to 0.

    Other partial rotary factors build a shorter ladder; here exponents are divided by the width of the head, so the
    remaining frequencies are those of the full ladder.

    Parameters
    ----------
    frequencies : Rope or array_like, (D,), radians per position
        The ladder of the whole head, D = head_dim / 2.
    partial_rotary_factor : float
        From 0 to 1; the first ``int(partial_rotary_factor * 2D // 2)`` frequencies are kept, the others become 0.
    factor : float
        Positive; divides all of them.

    Returns
    -------
    Rope
        Frequencies ``(D,)``, float64 where the library has it; attention factor 1.

    Raises
    ------
    ValueError
        See `linear`. Also if `partial_rotary_factor` is not from 0 to 1.
    TypeError
        See `linear`.

    See Also
    --------
    geometric, scaling.linear

    Notes
    -----
    Source: section 5 of the mathematics page; Gemma 4's global layers.

    Examples
    --------
    >>> proportional([1.0, 0.1, 0.01, 0.001], partial_rotary_factor=0.5).frequencies
    array([1. , 0.1, 0. , 0. ])
    """
    theta, xp = read(frequencies)
    part, factor = fraction("partial_rotary_factor", partial_rotary_factor), positive("factor", factor)
    kept = int(part * (2 * theta.shape[0]) // 2)
    index = xp.arange(theta.shape[0], dtype=theta.dtype, device=array.device(theta))
    turning = xp.where(index < kept, theta / factor, xp.zeros_like(theta))
    return scaled_rope(frequencies, turning, 1.0, "proportional", factor=factor, partial_rotary_factor=part)


# -- steps of several --------------------------------------------------------------------------------------------------


def positive(name: str, value: Any) -> float:
    """Return a positive number whose cube and quotients stay within float64."""
    return arguments.positive(name, value, minimum=2.0**-100, maximum=2.0**100)


def stretch(factor: float, seq_len: int | None, max_position_embeddings: int) -> float:
    """Return the factor by which dynamic NTK scaling stretches the slowest wavelength; 1 for a short sequence."""
    longest = whole("max_position_embeddings", max_position_embeddings, 1)
    length = longest if seq_len is None else max(whole("seq_len", seq_len, 1), longest)
    return factor * length / longest - (factor - 1)


def sharpen_yarn(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0) -> float:
    """Return YaRN's attention factor ``m(mscale) / m(mscale_all_dim)``; see `yarn`."""
    over, under = (1.0 + 0.1 * scale * math.log(max(factor, 1.0)) for scale in (mscale, mscale_all_dim))
    return over / under


def sharpen_longrope(factor: float, original: float) -> float:
    """Return LongRoPE's attention factor for a ratio of contexts; see `longrope`."""
    return math.sqrt(1.0 + math.log(max(factor, 1.0)) / math.log(original))


def read(frequencies: Any, *, shapes: str = "line", **beside: Any) -> tuple[Array, ModuleType]:
    """Check frequencies, and return them in the shape they have and the widest float of their library."""
    theta = frequencies.frequencies if isinstance(frequencies, Rope) else frequencies
    xp, device = array.shared(frequencies=theta, **beside)
    return angles.from_vectors(angles.read_frequencies(theta, xp, device, shapes=shapes), theta), xp


def scaled_rope(given: Any, frequencies: Array, attention_factor: float, scheme: str, **parameters: Any) -> Rope:
    """Return the Rope of a scheme's result, with a longer context; it keeps the other fields of a given Rope."""
    step = {"scheme": scheme, **{name: value for name, value in parameters.items() if value is not None}}
    if not isinstance(given, Rope):
        return Rope(frequencies, attention_factor=attention_factor, source=Provenance(scaled_by=(step,)))
    longer = np.asarray(1.0 if scheme == "dynamic" else float(parameters.get("factor") or 1.0))
    if "axis" in parameters:
        longer = np.where(np.arange(frequencies.shape[-1]) == parameters["axis"], longer, 1.0)
    return replace_fields(
        given,
        frequencies=frequencies,
        attention_factor=given.attention_factor * attention_factor,
        context=given.context and np.maximum(1, np.rint(longer * np.asarray(given.context))).astype(int).tolist(),
        source=replace(given.source, scaled_by=(*given.source.scaled_by, step)),
    )


def _slow_down(theta: Array, factor: float, xp: ModuleType) -> Array:
    n_blocks = theta.shape[0]
    if n_blocks < 2:
        raise ValueError(f"frequencies has shape {tuple(theta.shape)}; expected at least two: the first stays")
    return theta * factor ** (xp.arange(n_blocks, dtype=theta.dtype, device=array.device(theta)) / float(1 - n_blocks))


def ramp_ends(
    width: int, log_base: float, original: int, beta_fast: float, beta_slow: float, truncate: bool
) -> tuple[float, float]:
    """Return the blocks where YaRN's ramp begins and ends; as in transformers, clamped to the width of the head."""
    low, high = (width * math.log(original / (beta * 2 * math.pi)) / (2 * log_base) for beta in (beta_fast, beta_slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    return float(low), float(high + 0.001 if low == high else high)


def _find_base(theta: Array) -> float:
    """Return the base of a geometric ladder."""
    if not array.has_host_values(theta):
        raise ValueError("base is None, and frequencies are lazy or on a device, where they are not read; pass base=")
    host = array.to_host(theta, "frequencies")
    n_blocks = host.shape[0]
    if n_blocks > 1 and host[-1] > 0.0:
        base = float(host[-1]) ** (-n_blocks / (n_blocks - 1))
        if np.allclose(host, base ** (-np.arange(n_blocks) / n_blocks), rtol=_LADDER, atol=0.0):
            return base
    raise ValueError("base is None, and frequencies are not a ladder base ** (-i / D) of two or more; pass base=")
