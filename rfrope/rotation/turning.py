"""Rotate query and key vectors by position, exactly and on any array library."""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks, dispatch, libraries, turns
from rfrope._core.angles import Angles, token_axes
from rfrope._core.arguments import LARGEST_SCALE, flag, positive, show
from rfrope._core.array import Array, library
from rfrope._core.blocks import TurnOptions
from rfrope._core.dispatch import (
    CPU,
    CPU_DENSE,
    CUDA,
    TORCH_RECORDING,
    TORCH_ROTATION,
    TRITON,
    dispatched,
    pass_on_device,
)
from rfrope._core.lazy import DASK, Constant


@array.select_device
def phases(positions: Array, frequencies: Array, *, shift: Array | None = None) -> Array:
    """Return the phases ``positions . frequencies + shift``, for inspection.

    They are rounded to float64 and not reduced, so the error is about ``1.1e-16 * |phase|`` radians: 5e-12 at position
    131071, and no digit is left near 2**53. `rotate`, `rotation_table` and `scores` do not use them.

    Parameters
    ----------
    positions : array_like
        Integers or floats: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for frequencies ``(*H, D, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``.
    shift : array_like, radians, optional
        Added to the phases; broadcasts against them.

    Returns
    -------
    array, radians, float64 where the library has it
        ``P + (D,)``, or the shape of ``positions @ frequencies^T`` under broadcasting.

    Raises
    ------
    ValueError
        If shapes do not fit together, or values are NaN or infinite.
    TypeError
        If arrays are of different libraries, or a dtype is neither integer nor real floating.

    See Also
    --------
    rotate_by_phases, rotation_table

    Examples
    --------
    >>> phases([0, 1, 2], [1.0, 0.5])
    array([[0. , 0. ],
           [1. , 0.5],
           [2. , 1. ]])
    """
    read = angles.read(positions, frequencies, shift)
    return turns.phases(read)


def rotate(
    x: Array,
    positions: Array,
    frequencies: Array,
    *,
    pairing: str = "half",
    out_pairing: str | None = None,
    shift: Array | None = None,
    scale: Any = 1.0,
    inverse: bool = False,
    out: Array | None = None,
) -> Array:
    """Rotate queries or keys by position (RoPE).

    Cos and sin are within 1e-15 of those of the exact product of positions and frequencies, for phases up to 2**53, in
    any dtype of `x`.

    Parameters
    ----------
    x : array_like, (..., d)
        Features of a real floating dtype, d even.
    positions : array_like
        Integers or floats, in any order: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for frequencies
        ``(*H, D, k)``. Integers are exact up to 2**53. Floats of 16 and 32 bits warn if they are too large to represent
        every whole number, or fractions that matter; where values are not read (devices, graphs), all of 16 bits do.
    frequencies : array_like, radians per unit of position
        ``(D,)``, ``(D, k)``, or per head ``(H, D, k)``; 2D <= d, and features beyond 2D are not rotated. The phases,
        ``P + (D,)`` or the shape of ``positions @ frequencies^T`` under broadcasting, must broadcast to the leading
        axes of `x`. A Rope with a given `head_dim` takes only features of that width or of width 2D.
    pairing, out_pairing : {"half", "interleaved"}
        Features that form a block, in `x` and in the result. Default: the same in both.
    shift : array_like, radians, optional
        Added to the phases; broadcasts against them. Triton's kernel returns NaN from 2**53 on.
    scale : float or array_like
        Positive factor of cos and sin (an attention factor). An array broadcasts against the phases.
    inverse : bool
        Undo the rotation: turn by the negative phases and divide by `scale`.
    out : array, optional
        Output array, of the shape and dtype of the result. ``out=x`` works in place.

    Returns
    -------
    array, (..., d)
        Same dtype and device as `x`; `out` if given.

    Raises
    ------
    ValueError
        If shapes do not fit, the phases would enlarge `x`, d is odd, 2D > d, the width of `x` is not that of the Rope,
        a position, frequency or shift is NaN or above 2**500, `scale` is not positive, a pairing is unknown, or `out`
        is read-only, of another shape, or partly overlaps `x`. Values are checked only where that is free: not on
        devices, in JAX or in Dask.
    TypeError
        If `x` is not real floating, arrays are of different libraries, or `out` has another dtype or is given where
        gradients are recorded.

    See Also
    --------
    Rope.rotate : faster for repeated calls with the same frequencies.
    scores : rotates queries and keys and multiplies them.
    rotation_table, rotate_by_table, rotate_by_phases : rotation by tables that are used again, or by given phases.
    layers.torch.RotaryEmbedding : a PyTorch module, with frequencies that may be learned.
    rotation.rotate_polar : for polar features, one frequency per magnitude.
    rotation.rerotate : turns cached keys from one Rope to another.
    rotation.relocate : moves cached keys without applying the attention factor again.

    Notes
    -----
    Without float64 (JAX without x64), phases of integer positions are still exact, and cos and sin are within 2e-7;
    for other positions and for traced frequencies, this holds for phases up to 2**24. Give frequencies as a list there
    to keep their float64 values.
    Source: section 1 of the mathematics page; ``R(p . omega_i)`` of the RF-RoPE paper.

    Examples
    --------
    A quarter turn takes the first feature of a block to the second:

    >>> import numpy as np
    >>> rotate(np.array([1.0, 0.0]), 1, [np.pi / 2]).round(12)
    array([0., 1.])

    8 heads and 16 tokens, far into a text: a score depends on the lag alone:

    >>> import rfrope
    >>> q, k = np.random.default_rng(0).standard_normal((2, 1, 8, 16, 64), dtype=np.float32)
    >>> positions, omega = np.arange(100_000, 100_016), rfrope.geometric(32)
    >>> far = [rotate(x, positions, omega) for x in (q, k)]
    >>> near = [rotate(x, np.arange(16), omega) for x in (q, k)]
    >>> far[0].shape, far[0].dtype
    ((1, 8, 16, 64), dtype('float32'))
    >>> scores = [a @ b.swapaxes(-1, -2) for a, b in (far, near)]
    >>> bool(np.max(np.abs(scores[0] - scores[1])) < 1e-4)
    True

    Each head has its own frequencies, ``(H, D, 1)``; positions are then ``(L, 1)``:

    >>> per_head = rfrope.sample("gaussian(scale=32)", 32, rng=0, heads=8)
    >>> rotate(q, positions[:, None], per_head).shape
    (1, 8, 16, 64)

    The 4 by 4 patches of an image have two coordinates, and frequencies ``(D, 2)``:

    >>> patches = np.stack(np.meshgrid(np.arange(4), np.arange(4), indexing="ij"), axis=-1).reshape(16, 2)
    >>> plane = rfrope.axial(rfrope.geometric(16), rfrope.geometric(16)).frequencies
    >>> rotate(q, patches, plane).shape
    (1, 8, 16, 64)

    PyTorch tensors keep their dtype, device and gradients, and phases are as exact in 16 bits:

    >>> import torch  # doctest: +SKIP
    >>> x = torch.ones(1, 8, 16, 64, dtype=torch.bfloat16, requires_grad=True)  # doctest: +SKIP
    >>> turned = rotate(x, torch.arange(100_000, 100_016), omega)  # doctest: +SKIP
    >>> turned.dtype, turned.requires_grad  # doctest: +SKIP
    (torch.bfloat16, True)
    """
    if type(frequencies) is not np.ndarray and hasattr(frequencies, "_frequencies_for"):  # a Rope
        frequencies = angles.frequencies_of(frequencies, pairing, scale, x)
    turn = pairing, pairing if out_pairing is None else out_pairing, scale, inverse, False
    turned = None
    if type(x) is np.ndarray or libraries.may_reach_loops(x):
        dense = load_fast_path()
        turned = dense and dense.turned_at_once("positions", x, positions, frequencies, shift, turn, out)
        if turned is None and dense and shift is out is None and getattr(x, "requires_grad", False) and x.is_cpu:
            recording = dispatch.find(TORCH_RECORDING)
            turned = recording and recording.rotated(dense.turned_at_once, rotate, x, positions, frequencies, turn)
    elif shift is None and (at_once := pass_on_device(x)):
        turned = at_once(x, positions, frequencies, (pairing, out_pairing), scale, inverse, out)
    if turned is not None:
        return turned
    return _read_and_rotated(x, positions, frequencies, shift, scale, (pairing, out_pairing), inverse, out)


@array.select_device
def _read_and_rotated(
    x: Any, positions: Any, frequencies: Any, shift: Any, scale: Any, pairings: Any, inverse: bool, out: Any
) -> Array:
    """Read the arguments of `rotate` with all checks, and turn."""
    constants = {"positions": positions, "frequencies": frequencies, "shift": shift, "scale": scale}
    xp, device = array.shared(constants, x=x, out=out)
    x = blocks.features(x, xp, device=device)
    space = array.space_of_constants(xp, constants)
    read = angles.check_angles(positions, frequencies, shift, space, device)
    scale, shape = checked_scale(scale, read.shape, x, space)
    blocks.check_width(x, shape[-1], "frequencies")
    out_pairing = blocks.check_rotation(x, shape, *pairings, out, ("x", *constants), *read[:3], scale)
    return rotated(x, read, TurnOptions(pairings[0], out_pairing, scale, flag("inverse", inverse)), out)


def rotate_by_phases(
    x: Array,
    phases: Array,
    *,
    pairing: str = "half",
    out_pairing: str | None = None,
    scale: Any = 1.0,
    inverse: bool = False,
    out: Array | None = None,
) -> Array:
    """Rotate features by given phases, such as cumulative or learned ones.

    Parameters
    ----------
    x : array_like, (..., d)
        Features of a real floating dtype, d even.
    phases : array_like, radians, (..., D)
        2D <= d; the leading axes must broadcast to those of `x`. Cos and sin are computed in float64 where the library
        has it; on PyTorch devices in float32 if neither `x` nor the phases are wider, where Triton's kernel returns NaN
        from 2**53 on.
    pairing, out_pairing, scale, inverse, out
        See `rotate`.

    Returns
    -------
    array, (..., d)
        Same dtype and device as `x`; `out` if given.

    Raises
    ------
    ValueError, TypeError
        See `rotate`.

    See Also
    --------
    rotate, rotation.phases

    Examples
    --------
    >>> import numpy as np
    >>> rotate_by_phases(np.array([1.0, 0.0]), [np.pi]).round(12)
    array([-1.,  0.])
    """
    turn = pairing, pairing if out_pairing is None else out_pairing, scale, inverse, False
    turned = turned_at_once("phases", x, phases, None, None, turn, out)
    if turned is not None:
        return turned
    return _read_and_rotated_by_phases(x, phases, scale, (pairing, out_pairing), inverse, out)


@array.select_device
def _read_and_rotated_by_phases(x: Any, phases: Any, scale: Any, pairings: Any, inverse: bool, out: Any) -> Array:
    """Read the arguments of `rotate_by_phases` with all checks, and turn."""
    constants = {"phases": phases, "scale": scale}
    xp, device = array.shared(constants, x=x, out=out)
    x = blocks.features(x, xp, device=device)
    xp = array.space_of_constants(xp, constants)
    phases = array.numbers(phases, xp, name="phases", device=array.device(x))
    phases = (array.widen if array.dtype_name(x) == "float64" else array.widen_on_host)(phases, xp)
    if phases.ndim == 0:
        raise ValueError("phases is a single number; expected an array (..., D) with one phase per block")
    scale, shape = checked_scale(scale, phases.shape, x, xp, "phases")
    blocks.check_width(x, shape[-1], "phases")
    out_pairing = blocks.check_rotation(x, shape, *pairings, out, ("x", "phases", "scale"), phases, scale)
    return _rotated_by_phases(
        x, phases, TurnOptions(pairings[0], out_pairing, scale, flag("inverse", inverse)), out, xp
    )


def rotate_by_table(
    x: Array, cos: Array, sin: Array, *, pairing: str = "half", out_pairing: str | None = None, out: Array | None = None
) -> Array:
    """Rotate features by a cos/sin table, made once by `rotation_table` and used for many layers.

    Parameters
    ----------
    x : array_like, (..., d)
        Features of a real floating dtype, d even.
    cos, sin : array_like, (..., D)
        One column per block, 2D <= d; the leading axes must broadcast to those of `x`. A Hugging Face table of width 2D
        holds every column twice: pass its first half.
    pairing, out_pairing, out
        See `rotate`.

    Returns
    -------
    array, (..., d)
        Same dtype and device as `x`; `out` if given.

    Raises
    ------
    ValueError, TypeError
        See `rotate`. Also if `cos` and `sin` differ in shape.

    See Also
    --------
    rotate, rotation_table

    Examples
    --------
    >>> rotate_by_table([[1.0, 2.0]], [[0.0]], [[1.0]])
    array([[-2.,  1.]])
    """
    turn = pairing, pairing if out_pairing is None else out_pairing, 1.0, False, False
    turned = turned_at_once("table", x, cos, sin, None, turn, out)
    return _read_and_rotated_by_table(x, cos, sin, (pairing, out_pairing), out) if turned is None else turned


@array.select_device
def _read_and_rotated_by_table(x: Any, cos: Any, sin: Any, pairings: Any, out: Any) -> Array:
    """Read the arguments of `rotate_by_table` with all checks, and turn."""
    constants = {"cos": cos, "sin": sin}
    xp, device = array.shared(constants, x=x, out=out)
    x = blocks.features(x, xp, device=device)
    xp = array.space_of_constants(xp, constants)
    cos, sin = (array.numbers(v, xp, name=name, device=array.device(x)) for v, name in ((cos, "cos"), (sin, "sin")))
    if cos.shape != sin.shape or cos.ndim == 0:
        raise ValueError(
            f"cos has shape {tuple(cos.shape)} and sin {tuple(sin.shape)}; expected one shape (..., D) for both"
        )
    blocks.check_width(x, cos.shape[-1], "cos")
    out_pairing = blocks.check_rotation(x, cos.shape, *pairings, out, ("x", "cos"), cos, sin)
    return rotated_by_table(x, cos, sin, TurnOptions(pairings[0], out_pairing), out, xp)


@array.select_device
def rotation_table(
    positions: Array, frequencies: Array, *, shift: Array | None = None, scale: Any = 1.0, dtype: Any = None
) -> tuple[Array, Array]:
    """Return cos and sin of the phases, for `rotate_by_table` or another framework.

    Parameters
    ----------
    positions, frequencies, shift, scale
        See `rotate`.
    dtype : dtype of the caller's library, optional
        Dtype of the result. Default: float64 where the library has it. Values are rounded once, at the end.

    Returns
    -------
    cos, sin : arrays
        ``P + (D,)``, or the shape of ``positions @ frequencies^T`` under broadcasting; within 1e-15 of the exact values
        for phases up to 2**53 (see `rotate` for libraries without float64).

    Raises
    ------
    ValueError, TypeError
        See `rotate`.

    See Also
    --------
    rotate_by_table, rotation.phases

    Examples
    --------
    >>> cos, sin = rotation_table([0, 1], [3.141592653589793])
    >>> cos[:, 0]
    array([ 1., -1.])
    """
    frequencies = angles.frequencies_of(frequencies, None, scale)
    return table_of(positions, frequencies, dtype, shift=shift, scale=scale)[:2]


def table_of(
    positions: Any, frequencies: Any, dtype: Any, name: str = "positions", shift: Any = None, scale: Any = 1.0
) -> tuple[Array, Array, ModuleType]:
    """Return cos and sin of the phases in a dtype, which fit into memory, and their namespace."""
    others = None if type(scale) is float else {"scale": scale}  # a number fits any library
    read = angles.read(positions, frequencies, shift, name=name, other_arguments=others)
    xp = read.xp
    scale, shape = checked_scale(scale, read.shape, read.positions, xp)
    array.check_memory(40.0, shape, read.positions, f"{name} or frequencies")
    dtype = array.check_float_dtype(dtype, xp)
    cos, sin = _scaled(*turns.cos_sin(read), scale, False)
    return (cos, sin, xp) if dtype is None else (array.astype(cos, dtype, xp), array.astype(sin, dtype, xp), xp)


@array.select_device
def scores(
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    frequencies: Array,
    *,
    pairing: str = "half",
    shift: Array | None = None,
) -> Array:
    """Return attention scores before scaling and softmax, ``rotated q . rotated k`` for every query and key.

    Parameters
    ----------
    q : array_like, (..., M, d)
        Queries before rotation.
    k : array_like, (..., N, d)
        Keys before rotation; leading axes broadcast with those of q.
    q_positions, k_positions : array_like
        See `rotate`: ``(M,)`` and ``(N,)``, or ``(M, k)`` and ``(N, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``; features beyond 2D count unrotated. The phases may not enlarge q or k.
    pairing : {"half", "interleaved"}
        Features that form a block.
    shift : array_like, radians, optional
        Added to the phases of the KEYS: with ``shift = -offset * frequencies`` equal content scores highest at lag
        `offset` (key minus query).

    Returns
    -------
    array, (..., M, N)
        Same dtype and device as q and k; half precision and float32 are computed one type wider.

    Raises
    ------
    ValueError, TypeError
        See `rotate`. Also if q and k differ in width or dtype.

    See Also
    --------
    block_coefficients, expected_score, rotate

    Examples
    --------
    The score depends on the lag alone:

    >>> import numpy as np
    >>> q = k = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> scores(q, k, [5, 6], [5, 6], [1.0]).round(6)
    array([[1.      , 0.540302],
           [0.540302, 1.      ]])
    """
    frequencies = angles.frequencies_of(frequencies, pairing, 1.0, q)
    return scores_of(q, k, q_positions, k_positions, frequencies, pairing, shift, 1.0)


def scores_of(
    q: Any, k: Any, q_positions: Any, k_positions: Any, frequencies: Any, pairing: str, shift: Any, scale: float
) -> Array:
    """Return `scores`, with cos and sin of both sides multiplied by `scale`."""
    constants = {"q_positions": q_positions, "k_positions": k_positions, "frequencies": frequencies, "shift": shift}
    xp, device = array.shared(constants, q=q, k=k)
    q, k = blocks.query_and_key(q, k, xp, device)
    for name, value in (("q", q), ("k", k)):
        if value.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (..., tokens, d): use {name}[None, :]")
    array.broadcast_shapes({"q": q.shape[:-2], "k": k.shape[:-2]})
    wide, turned, space = array.wider_float(q, xp), [], array.space_of_constants(xp, constants)
    for name, x, positions, phase in (("q", q, q_positions, None), ("k", k, k_positions, shift)):
        read = angles.check_angles(positions, frequencies, phase, space, device, f"{name}_positions")
        blocks.check_width(x, read.blocks, "frequencies", name)
        names = name, f"{name}_positions", "frequencies", "shift"
        out_pairing = blocks.check_rotation(x, read.shape, pairing, None, None, names, *read[:3])
        turned.append(rotated(array.astype(x, wide, xp), read, TurnOptions(pairing, out_pairing, scale), None))
    return array.astype(xp.matmul(turned[0], xp.matrix_transpose(turned[1])), q.dtype, xp)


# -- the mathematics ---------------------------------------------------------------------------------------------------


@dispatched(CPU.rotation, TRITON, CUDA.rotation, TORCH_ROTATION)
def rotated(x: Array, angles: Angles, turn: TurnOptions, out: Array | None) -> Array:
    """Turn checked features by checked angles."""
    if comes_in_blocks(x, angles.xp):
        return map_blocks(rotate, x, angles, turn, out_pairing=turn.out_pairing)
    cos, sin = _scaled(*turns.cos_sin_for(x, angles), turn.scale, turn.inverse)
    return blocks.turned(x, cos, sin, turn, out, angles.xp)


@dispatched(CPU.rotation, TRITON, CUDA.rotation, TORCH_ROTATION)
def _rotated_by_phases(x: Array, phases: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    if comes_in_blocks(x, xp):
        return map_blocks(rotate_by_phases, x, phases, turn, out_pairing=turn.out_pairing)
    cos, sin = _scaled(xp.cos(phases), xp.sin(phases), turn.scale, turn.inverse)
    return blocks.turned(x, cos, sin, turn, out, xp)


@dispatched(CPU.rotation, CUDA.rotation, TORCH_ROTATION)
def rotated_by_table(x: Array, cos: Array, sin: Array, turn: TurnOptions, out: Array | None, xp: ModuleType) -> Array:
    """Turn checked features by cos and sin."""
    if comes_in_blocks(x, xp):
        pairings = {"pairing": turn.pairing, "out_pairing": turn.out_pairing}
        return DASK.map_chunks(rotate_by_table, x, {"cos": Constant(cos), "sin": Constant(sin)}, pairings)
    return blocks.turned(x, cos, sin, turn, out, xp)


def _scaled(cos: Array, sin: Array, scale: Any, inverse: bool) -> tuple[Array, Array]:
    """Multiply by the scale, or prepare the inverse."""
    if inverse:
        sin = -sin
    if isinstance(scale, float) and scale == 1.0:
        return cos, sin
    return (cos / scale, sin / scale) if inverse else (cos * scale, sin * scale)


# -- what is allowed in ------------------------------------------------------------------------------------------------


@cache
def load_fast_path() -> Any:
    """Return the backend that checks and rotates small dense CPU arrays in one pass, or None."""
    return dispatch.find(CPU_DENSE)


def turned_at_once(kind: str, x: Any, first: Any, second: Any, shift: Any, turn: Any, out: Any) -> Any:
    """Return small dense features turned in one pass; None where all checks are needed."""
    dense = load_fast_path() if type(x) is np.ndarray or libraries.may_reach_loops(x) else None
    return dense and dense.turned_at_once(kind, x, first, second, shift, turn, out)


def checked_scale(
    scale: Any,
    shape: tuple[int, ...],
    like: Array,
    xp: ModuleType,
    origin: str = "the phases from positions and frequencies",
) -> tuple[Any, tuple[int, ...]]:
    """Return the scale, as a float or an array like `like`, and the shape of the phases times it."""
    if isinstance(scale, int | float) and not isinstance(scale, bool) and 0.0 < scale <= LARGEST_SCALE:
        return float(scale), shape  # PyTorch's compiler may trace it, and can do no more than compare
    if not hasattr(scale, "dtype") and not isinstance(scale, list | tuple):
        return positive("scale", scale), shape
    scale = array.widen_on_host(array.numbers(scale, xp, name="scale", device=array.device(like)), xp)
    if array.has_host_values(scale) and not bool(xp.all((scale > 0.0) & (scale < math.inf))):
        raise ValueError(f"scale is {show(scale)}; expected positive finite numbers")
    return scale, array.broadcast_shapes({"scale": scale.shape, origin: shape})


# -- blocks of Dask ----------------------------------------------------------------------------------------------------


def comes_in_blocks(x: Array, xp: ModuleType) -> bool:
    """Return whether features are Dask's and all constants NumPy's (`array.space_of_constants`)."""
    return xp is np and library(x).is_lazy


def map_blocks(function: Any, x: Array, angles: Any, turn: Any, width: int | None = None, **options: Any) -> Array:
    """Map a public function of features and `Angles`, or phases, over Dask's blocks; a new width is given."""
    constants = {"phases": Constant(angles)}
    if isinstance(angles, Angles):
        constants = {"positions": Constant(angles.positions)}
        constants["frequencies"] = Constant(angles.frequencies, 2, 1 + token_axes(angles.positions))
        if angles.shift is not None:
            constants["shift"] = Constant(angles.shift)
    options |= {"pairing": turn.pairing, "inverse": turn.inverse}
    is_number = isinstance(turn.scale, float)
    (options if is_number else constants)["scale"] = turn.scale if is_number else Constant(turn.scale)
    return DASK.map_chunks(function, x, constants, options, width)
