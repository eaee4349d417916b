"""Positions for images and video, sinusoidal embeddings, and running sums of rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array, blocks, turns
from rfrope._core.angles import check_values, read_numbers
from rfrope._core.arguments import axis_of, choice, listed, positive, show, whole
from rfrope._core.array import Array
from rfrope.rotation.turning import table_of

AFTER_VIDEO = ("largest", "sides")
RESIZED: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {  # places of patches i, of n, or of m in training
    "extrapolate": lambda i, n, m: i,
    "interpolate": lambda i, n, m: i * (m / n),
    "interpolate centres": lambda i, n, m: (i + 0.5) * (m / n) - 0.5,
    "edges": lambda i, n, m: np.linspace(-1.0, 1.0, n),
    "centres": lambda i, n, m: (2 * i + 1) / n - 1.0,
}
_STEPS = 2**20  # that add up at once without 64 bits


def mrope_positions(
    segments: Sequence[int | Sequence[float]],
    *,
    merge: int = 2,
    start: int = 0,
    after_video: str = "largest",
    xp: Any = None,
    device: Any = None,
) -> Array:
    """Return (time, row, column) positions of text with images and video, as counted by Qwen2-VL, 2.5-VL and 3-VL.

    Parameters
    ----------
    segments : sequence
        An int is a number of text tokens; ``(t, h, w)`` is the grid of patches of an image (t = 1) or video;
        ``(t, h, w, interval)`` is a video whose frames are `interval` positions apart. Qwen3-VL writes the time of each
        frame as text before it: give every frame as ``(1, h, w)``.
    merge : int
        Number of patches on each side that become one token (``spatial_merge_size``).
    start : int
        Position of the first token.
    after_video : {"largest", "sides"}
        Where text continues after a video with more positions in time than on its longer side:

        - largest: after the largest of its three positions, as in the paper, in transformers up to 5.2, vLLM (commit
          002d181), SGLang 0.5.23 and MLX-VLM (02f4c3a), and as the models were trained;
        - sides: after the larger of its height and width, in tokens, which puts the text before later frames, as in
          transformers 5.3 to 5.23.
    xp, device
        Array library (a module; default: NumPy) and device of the result.

    Returns
    -------
    array, (L, 3)
        Integers, for a `Rope` with three sections. Text advances all three together; after an image it continues at the
        larger of height and width, in tokens. Generated tokens continue at the largest position plus 1.

    Raises
    ------
    ValueError
        If a grid has another form, `merge` does not divide a side, an interval is not positive, or `after_video` is
        unknown.
    TypeError
        If a size is not a whole number.

    See Also
    --------
    rotation.grid_positions, mrope

    Notes
    -----
    For Qwen2.5-VL the interval is ``tokens_per_second * second_per_grid_ts``; times are rounded down from float32, as
    in its code. transformers 4 first truncates ``second_per_grid_ts`` to whole seconds. transformers returns the
    transpose, ``(3, batch, L)``.

    Source: Wang et al., "Qwen2-VL: Enhancing vision-language model's perception of the world at any resolution" (2024),
    section 2.1: each modality begins at the largest position of the one before it, plus one.

    Examples
    --------
    Two text tokens, an image of 2 by 2 tokens, one more text token:

    >>> mrope_positions([2, (1, 4, 4), 1]).T
    array([[0, 1, 2, 2, 2, 2, 4],
           [0, 1, 2, 2, 3, 3, 4],
           [0, 1, 2, 3, 2, 3, 4]])

    A video of four frames of one token each, and a text token after it:

    >>> for rule in ("largest", "sides"):
    ...     mrope_positions([(4, 2, 2), 1], after_video=rule)[:, 0]
    array([0, 1, 2, 3, 4])
    array([0, 1, 2, 3, 1])
    """
    choice("after_video", after_video, AFTER_VIDEO)
    merge, at, found = whole("merge", merge, 1), whole("start", start), [np.empty((0, 3), dtype=np.int64)]
    kinds = "a list of whole numbers and of (t, h, w), as [5, (1, 4, 4)]"
    for number, segment in enumerate(listed("segments", segments, kinds)):
        name = f"segments[{number}]"
        if not isinstance(segment, list | tuple):
            length = whole(name, segment)
            found.append(at + np.repeat(np.arange(length)[:, None], 3, axis=1))
            at += length
            continue
        if len(segment) not in (3, 4):
            raise ValueError(f"{name} is {show(segment)}; expected (t, h, w), or (t, h, w, interval)")
        frames, *sides = (whole(f"{name}[{axis}]", size, 1) for axis, size in enumerate(segment[:3]))
        interval = positive(f"{name}[3]", segment[3], maximum=2.0**20) if len(segment) == 4 else 1.0
        if any(side % merge for side in sides):
            raise ValueError(f"{name} is {show(segment)}; expected a height and width that merge = {merge} divides")
        rows, columns = (side // merge for side in sides)
        times = (np.arange(frames, dtype=np.float32) * np.float32(interval)).astype(np.int64)
        grid = np.stack(np.meshgrid(times, np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
        found.append(at + grid.reshape(-1, 3))
        at += max(rows, columns, int(times[-1]) + 1 if after_video == "largest" else 1)
    return array.place_for_caller(np.concatenate(found), xp, device, None)


def grid_positions(
    shape: Sequence[int],
    *,
    resized: str = "extrapolate",
    trained: Sequence[int] | None = None,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Array:
    """Return positions of the patches of an image or volume, at a resolution that may differ from the one in training.

    Parameters
    ----------
    shape : sequence of int
        Number of patches on each axis, as (rows, columns).
    resized : {"extrapolate", "interpolate", "interpolate centres", "edges", "centres"}
        With n patches on an axis, and m in training, patch i is at

        - extrapolate: ``i``;
        - interpolate: ``i m / n``, which keeps corners of patches in place (EVA-02);
        - interpolate centres: ``(i + 1/2) m / n - 1/2``, which keeps centres of patches in place;
        - edges: ``2 i / (n - 1) - 1``, from -1 to 1 for every n (lucidrains' "pixel"; a single patch is at -1);
        - centres: ``(2 i + 1) / n - 1``, inside -1 and 1 (DINOv3).
    trained : sequence of int, optional
        m on each axis, for the two interpolations.
    xp, device, dtype
        See `geometric`.

    Returns
    -------
    array, (n_1 ... n_k, k)
        Patches row by row; integers for "extrapolate" unless a dtype is given.

    Raises
    ------
    ValueError
        If `resized` is unknown, the shape has no axes, or `trained` is missing, superfluous, or of another length.
    TypeError
        If a size is not a whole number.

    See Also
    --------
    rotation.mrope_positions, axial, mixed

    Examples
    --------
    >>> grid_positions((2, 2)).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    >>> grid_positions((1, 4), resized="interpolate", trained=(1, 2))[:, 1]
    array([0. , 0.5, 1. , 1.5])
    >>> grid_positions((1, 4), resized="centres")[:, 1]
    array([-0.75, -0.25,  0.25,  0.75])
    """
    choice("resized", resized, tuple(RESIZED))
    sizes = _read_sizes("shape", shape)
    if not sizes:
        raise ValueError("shape is empty; expected the number of patches on each axis")
    if (trained is None) == resized.startswith("interpolate"):
        wanted = "the number of patches in training" if trained is None else "none, since nothing is interpolated"
        raise ValueError(f"trained is {show(trained)} with resized={resized!r}; expected {wanted}")
    before = sizes if trained is None else _read_sizes("trained", trained)
    if len(before) != len(sizes):
        raise ValueError(f"trained is {show(trained)}; expected {len(sizes)} numbers, like shape")
    axes = [RESIZED[resized](np.arange(n), n, m) for n, m in zip(sizes, before, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(math.prod(sizes), len(sizes))
    return array.place_for_caller(grid, xp, device, dtype)


def _read_sizes(name: str, value: Any) -> list[int]:
    numbers = listed(name, value, "a number for each axis")
    return [whole(f"{name}[{axis}]", size, 1) for axis, size in enumerate(numbers)]


# -- the sinusoidal embedding -----------------------------------------------------------------------------------------


@array.select_device
def sinusoidal(positions: Array, frequencies: Array, *, pairing: str = "half", dtype: Any = None) -> Array:
    """Return the sinusoidal embedding of positions: sine and cosine of each block's phase.

    Parameters
    ----------
    positions : array_like
        Integers or floats: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for frequencies ``(*H, D, k)``.
        Integers count exactly up to 2**53.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    pairing : {"half", "interleaved"}
        Order of the features: all sines and then all cosines, as in tensor2tensor, fairseq and diffusion models, or
        ``sin_0, cos_0, sin_1, cos_1, ...``, as in the paper.
    dtype : dtype of the caller's library, optional
        Dtype of the result. Default: float64 where the library has it. Values are rounded once, at the end.

    Returns
    -------
    array
        ``P + (2D,)``, or the shape of ``positions @ frequencies^T`` with 2D for D. Within 1e-15 of the exact values for
        phases up to 2**53 (see `rotate` for libraries without float64).

    Raises
    ------
    ValueError, TypeError
        See `rotation_table`. Also for an unknown pairing.

    See Also
    --------
    rotation.shift_matrix, geometric

    Notes
    -----
    ``E(s) . E(t) = sum_i cos((s - t) . theta_i)`` depends on the distance alone: it is D times
    `rfrope.analysis.mean_kernel` at ``s - t``. Source: Vaswani et al., "Attention is all you need" (2017); (2) of
    Stratos.

    Examples
    --------
    >>> sinusoidal([0, 1], [1.0, 0.1]).round(4)
    array([[0.    , 0.    , 1.    , 1.    ],
           [0.8415, 0.0998, 0.5403, 0.995 ]])
    """
    blocks.check_pairing(pairing)
    cos, sin, xp = table_of(positions, frequencies, dtype)
    return blocks.join(sin, cos, pairing, xp)


@array.select_device
def shift_matrix(offset: Array, frequencies: Array, *, pairing: str = "half", dtype: Any = None) -> Array:
    """Return the matrix that shifts a sinusoidal embedding: ``E(t + offset) = B(offset) E(t)`` for every t.

    Parameters
    ----------
    offset : array_like
        Distances, with the shapes of ``positions`` in `sinusoidal`; may be negative or fractional.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    pairing : {"half", "interleaved"}
        Pairing of the embedding.
    dtype : dtype of the caller's library, optional
        See `sinusoidal`.

    Returns
    -------
    array, (..., 2D, 2D)
        The leading axes are those of ``sinusoidal(offset, frequencies)``. The matrix is orthogonal, with
        ``B(j) B(k) = B(j + k)`` and transpose ``B(-offset)``.

    Raises
    ------
    ValueError, TypeError
        See `sinusoidal`.

    See Also
    --------
    sinusoidal, rotation.phases

    Notes
    -----
    Each block ``(sin, cos)`` is multiplied by ``[[cos u, sin u], [-sin u, cos u]]``, ``u = offset . theta``: (8) of
    Stratos, the rotation by -u in this order. `rotate` turns pairs ``(cos, sin)`` by +u. To move many embeddings call
    `sinusoidal` at the new positions: of the 4 D^2 entries of the matrix only 4 D are not 0.

    Examples
    --------
    >>> import numpy as np
    >>> shift_matrix(1, [0.5]).round(4)
    array([[ 0.8776,  0.4794],
           [-0.4794,  0.8776]])
    >>> moved = shift_matrix(-7, [1.0, 0.1]) @ sinusoidal(10**6, [1.0, 0.1])
    >>> bool(np.allclose(moved, sinusoidal(10**6 - 7, [1.0, 0.1]), rtol=0, atol=1e-15))
    True
    """
    blocks.check_pairing(pairing)
    cos, sin, xp = table_of(offset, frequencies, dtype, "offset")
    index = xp.arange(cos.shape[-1], dtype=xp.int32, device=array.device(cos))
    own = index[:, None] == index
    upper = blocks.join(_diagonal(cos, own, xp), _diagonal(sin, own, xp), pairing, xp)
    lower = blocks.join(_diagonal(-sin, own, xp), _diagonal(cos, own, xp), pairing, xp)
    columns = blocks.join(xp.matrix_transpose(upper), xp.matrix_transpose(lower), pairing, xp)
    return xp.matrix_transpose(columns)


def _diagonal(values: Array, own: Array, xp: ModuleType) -> Array:
    """Return diagonal matrices ``(..., D, D)``; a NaN stays in its row."""
    row = values[..., None, :]
    return xp.where(own, row, xp.zeros_like(row))


# -- running sums of rates ---------------------------------------------------------------------------------------------


@array.select_device
def cumulative_phases(rates: Array, *, offset: Array | None = None, axis: int = -2) -> tuple[Array, Array]:
    """Return running sums of rates along the tokens, modulo 2 pi: phases for `rotate_by_phases`.

    They are summed as wrapping integers, in units of ``2**-96`` of a turn, so no digits are lost, and a sequence gives
    the same bits token by token as all at once.

    Parameters
    ----------
    rates : array_like, radians per token, (..., T, D)
        Rotation of each block at each token; integers or floats, 16 bits included.
    offset : array_like, optional
        Start of the phases, of the shape of `rates` without `axis`: floats in radians, which broadcast, or the integers
        that an earlier call returned. Default: 0.
    axis : int
        Axis of the tokens.

    Returns
    -------
    phases : array, radians in [-pi, pi], (..., T, D)
        Offset plus the rates of tokens 0 to t, for token t; float64 where the library has it. Gradients are those of
        the plain sum.
    offset : array of integers
        The last phase, to be kept in a cache for the next call: ``(2, ..., D)`` of int64, or ``(5, ..., D)`` of int32
        without 64 bits.

    Raises
    ------
    ValueError
        If `rates` has no such axis, a value is NaN, infinite or above 2**500 in magnitude (checked only where that is
        free), `offset` has another shape, or there are more than 2**20 tokens without 64 bits.
    TypeError
        If a value is not a real number, or an integer `offset` is not one that a call returned.

    See Also
    --------
    rotate_by_phases : rotates features by these phases.
    rotate : equivalent if the rates are the same for all tokens.

    Notes
    -----
    A phase is within 7e-16 radians of the exact sum modulo 2 pi for rates up to 2**50 and 2**31 tokens; without 64 bits
    within 5e-7, for rates up to 2 pi and 2**20 tokens, where a plain float32 sum is wrong by tenths of a radian. Much
    larger rates have phases without meaning.

    The score of two tokens depends on the sum of the rates between them, not on the lag;
    :doc:`relatives </explain/relatives>` says what that loses. Rates of published models in their simplest form,
    from content x:

    - Mamba-3 (Lahoti et al., 2026): ``dt * pi * tanh(a)``, dt per head, a per block, on half or all of the features;
    - Selective RoPE (Movahedi et al., 2025): a linear map of x;
    - CARoPE (Veisi et al., 2025): ``f ** i`` for block i = 1, ..., D, with ``f = 1 / (1 + softplus(w . x))`` per head;
    - GRAPE, contextual (Zhang et al., 2025): ``omega_i`` times a positive function of x.

    Examples
    --------
    Constant rates are positions times frequencies:

    >>> import numpy as np
    >>> rates = np.full((5, 2), [1.0, 0.1])
    >>> phases, cached = cumulative_phases(rates)
    >>> phases.round(4)
    array([[ 1.    ,  0.1   ],
           [ 2.    ,  0.2   ],
           [ 3.    ,  0.3   ],
           [-2.2832,  0.4   ],
           [-1.2832,  0.5   ]])

    The next token continues from the returned offset:

    >>> cumulative_phases(rates[:1], offset=cached)[0].round(4)
    array([[-0.2832,  0.6   ]])
    """
    xp, device = array.shared({"offset": offset}, rates=rates)
    rates = read_numbers("rates", rates, xp, device)
    axis = axis_of("rates", axis, rates.shape) % rates.ndim
    wide = array.has_float64(xp, array.device(rates))
    if not wide and rates.shape[axis] > _STEPS:
        raise ValueError(
            f"rates has {rates.shape[axis]} tokens; expected at most 2**20 at once without 64 bits: pass them in parts"
        )
    start, added = _read_offset(offset, rates, axis, wide, xp)
    total = _carried(_cumulate(_units(rates, wide, xp), 1 + axis, xp) + start, wide, xp)
    return _radians(total, rates, added, axis, wide, xp), _last(total, start, 1 + axis, xp)


# -- the mathematics: words (W, ...) of whole numbers, the highest first -----------------------------------------------

# each word counts the units that the one before it is made of, and the first drops whole turns: with 64 bits units of
# 2**-64 of a turn and of 2**-96, of which 2**31 add up; without, five words of 10 bits, of which 2**20 add up
_BITS = {True: (64, 32), False: (10,) * 5}


def _units(radians: Array, wide: bool, xp: ModuleType) -> Array:
    """Words of angles, modulo a turn."""
    if wide:
        units, rests = turns.wrapping_turns(radians, 64, xp)
        rests = array.astype(xp.round(rests * 2.0 ** _BITS[wide][1]), xp.int64, xp)
        return _carried(xp.stack([units, rests]), wide, xp)
    words = [xp.zeros_like(radians)] * len(_BITS[wide])
    for part in turns.reduced_turns(radians, xp):
        for place, bits in enumerate(_BITS[wide]):
            part = part * 2.0**bits
            nearest = xp.round(part)
            words[place], part = words[place] + nearest, part - nearest
    return _carried(array.astype(xp.stack(words), xp.int32, xp), wide, xp)


def _carried(words: Array, wide: bool, xp: ModuleType) -> Array:
    """Words without what belongs to the one before."""
    bits = _BITS[wide]
    found: list[Array] = []
    carry: Any = 0
    for place in range(len(bits) - 1, -1, -1):
        sums = words[place, ...] + carry
        if bits[place] < 64:
            carry, sums = sums >> bits[place], sums & (2 ** bits[place] - 1)
        found.insert(0, sums)
    return xp.stack(found)


def _cumulate(units: Array, axis: int, xp: ModuleType) -> Array:
    add = getattr(xp, "cumulative_sum", None) or xp.cumsum  # NumPy before 2.1
    return add(units, axis=axis)


def _last(total: Array, start: Any, axis: int, xp: ModuleType) -> Array:
    """Units after all tokens, if there are any."""
    if total.shape[axis]:
        return xp.moveaxis(total, axis, 0)[-1, ...]
    return xp.sum(total, axis=axis) + (start if type(start) is int else xp.squeeze(start, axis=axis))


def _radians(total: Array, rates: Array, added: Any, axis: int, wide: bool, xp: ModuleType) -> Array:
    """Angles of units, with the derivatives of a plain sum, which itself adds nothing."""
    if wide:
        phases = array.astype(total[0, ...], xp.float64, xp) * (2.0 * math.pi * 2.0**-64)
    else:
        total, share = array.astype(total, xp.float32, xp), 2.0**-10
        high = total[0, ...] - xp.where(total[0, ...] >= 512.0, 1024.0, 0.0)
        low = share * (total[1, ...] + share * (total[2, ...] + share * total[3, ...]))
        phases = (2.0 * math.pi * share) * (high + low)
    if isinstance(rates, np.ndarray):
        return phases
    bits = array.library(rates).detach_as_int16
    nothing = _cumulate(rates - bits(rates), axis, xp)
    return phases + (nothing if type(added) is float else nothing + (added - bits(added)))


# -- what is allowed in ------------------------------------------------------------------------------------------------


def _read_offset(offset: Any, rates: Array, axis: int, wide: bool, xp: ModuleType) -> tuple[Any, Any]:
    """Units that sums start from, and the same in radians where derivatives may be asked for."""
    if offset is None:
        return 0, 0.0
    shape = rates.shape[:axis] + rates.shape[axis + 1 :]
    given = array.numbers(offset, xp, name="offset", device=array.device(rates))
    kept = (len(_BITS[wide]), *shape)
    if array.is_integer(given):
        if not hasattr(offset, "dtype") or tuple(given.shape) != kept or not array.dtype_name(given).startswith("int"):
            raise TypeError(
                f"offset is {show(offset)}; expected radians as floats, or integers of shape {kept} that an earlier "
                "call returned"
            )
        return xp.expand_dims(given, axis=1 + axis), 0.0
    given = array.widen(given, xp)
    check_values("offset", given, xp)
    named = {"offset": tuple(given.shape), "rates without its axis": tuple(shape)}
    if array.broadcast_shapes(named) != shape:
        raise ValueError(f"offset has shape {named['offset']}; expected {tuple(shape)}, or what broadcasts to it")
    given = xp.expand_dims(xp.broadcast_to(given, shape), axis=axis)
    return _units(given, wide, xp), given
