"""Turn query and key vectors by position, exactly and on any array library; compare them.

Conventions: a block is two features, paired ``"half"`` (i, i + D, as Hugging Face and GPT-NeoX) or ``"interleaved"``
(2i, 2i + 1, as Meta's Llama), and is turned counter-clockwise by ``phase = position . frequency`` radians. Only the
first 2D features are turned, the others pass through. A lag is KEY minus QUERY position.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from rfrope import _accel, _array, _blocks, _turns
from rfrope._array import Array


@_array.on_device_of_arrays
def phases(positions: Array, frequencies: Array, *, shift: Array | None = None) -> Array:
    """Plain phases ``positions . frequencies + shift``, for people to look at.

    The product is rounded to float64 and not reduced, so it loses about ``1.1e-16 * |phase|`` radians: 5e-12 at
    position 131071 and everything near 2**53. `rotate`, `rotation_table` and `scores` do not use it.

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
        ``P + (D,)``, or what ``positions @ frequencies^T`` broadcasts to.

    Raises
    ------
    ValueError
        For shapes that do not fit together, and for NaN or infinite values.
    TypeError
        For arrays of different libraries or of a dtype without numbers on a line.

    Examples
    --------
    >>> phases([0, 1, 2], [1.0, 0.5])
    array([[0. , 0. ],
           [1. , 0.5],
           [2. , 1. ]])
    """
    xp = _array.namespace(positions=positions, frequencies=frequencies, shift=shift)
    positions, frequencies, shift = _placed(positions, frequencies, shift, xp, _first_device(positions, frequencies))
    dtype = frequencies.dtype
    if isinstance(frequencies, np.ndarray):
        frequencies = _array.from_host(frequencies, xp)
    total: Array = 0.0
    for position, frequency in _turns.axes(positions, frequencies):
        total = total + _array.astype(position, dtype, xp) * frequency
    if frequencies.ndim > 1 and positions.ndim == 1:
        total = total[..., 0, :]
    return total if shift is None else total + shift


@_array.on_device_of_arrays
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
    """Rotate features by position: RoPE, for a query or a key.

    Cos and sin are those of the exact product of the given positions and frequencies to 1e-15, up to phases of 2**53;
    they are never formed in the dtype of `x`.

    Parameters
    ----------
    x : array_like, (..., d)
        Features of a real floating dtype, d even.
    positions : array_like
        Integers or floats, negative ones and gaps included: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for
        frequencies ``(*H, D, k)``. Integers count exactly up to 2**53.
    frequencies : array_like, radians per unit of position
        ``(D,)``, ``(D, k)``, or per head ``(H, D, k)``; 2D <= d. The phases, ``P + (D,)`` or what
        ``positions @ frequencies^T`` broadcasts to, broadcast against the leading axes of `x`.
    pairing, out_pairing : {"half", "interleaved"}
        Which two features make a block, in `x` and in the result (the same unless given).
    shift : array_like, radians, optional
        Added to the phases; broadcasts against them.
    scale : float or array_like
        Positive; multiplies cos and sin (an attention factor). An array broadcasts against the phases.
    inverse : bool
        Undo the rotation: turn by the negative phases and divide by `scale`.
    out : array, optional
        Where to write, of the shape and dtype of the result; ``out=x`` works in place.

    Returns
    -------
    array, (..., d)
        The dtype and device of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        For shapes that do not fit, an odd d, 2D > d, positions, frequencies or shifts that are NaN or above 2**500, a
        `scale` that is not positive, an unknown pairing, or an `out` that is read-only, of another shape, or partly
        overlaps `x`. Values are looked at only where that costs nothing: not on devices, in JAX or in Dask.
    TypeError
        For `x` that is not real floating, arrays of different libraries, `out` of another dtype, or `out` where
        gradients are asked for.

    Notes
    -----
    Where float64 does not exist (JAX without x64), integer positions keep exact phases, with cos and sin to 2e-7; for
    other positions, or frequencies that are themselves traced, that holds for phases up to 2**24. Frequencies given
    there as a list keep the float64 values that an array of that library could not hold.
    Source: section 1 of the mathematics page; ``R(p . omega_i)`` of seed 000.

    Examples
    --------
    A quarter turn takes the first feature of a block to the second:

    >>> import numpy as np
    >>> rotate(np.array([1.0, 0.0]), 1, [np.pi / 2]).round(12)
    array([0., 1.])
    """
    if type(x) is np.ndarray and shift is None and (again := _accel.twin("rotated_again")):
        turned = again(x, positions, frequencies, scale, inverse, pairing, out_pairing, out)
        if turned is not None:
            return turned
    arrays = {"x": x, "positions": positions, "frequencies": frequencies, "shift": shift, "scale": scale, "out": out}
    xp = _array.namespace(**arrays)
    x = _blocks.features(x, xp)
    positions, frequencies, shift = _placed(positions, frequencies, shift, xp, _array.device(x))
    shape = _phases_shape(positions, frequencies, shift)
    scale, shape = _checked_scale(scale, inverse, shape, x, xp)
    _check_width(x, shape[-1], "frequencies")
    angles = (positions, frequencies, shift, scale)
    out_pairing = _blocks.prepared(x, shape, pairing, out_pairing, out, ("x", "positions"), *angles)
    turn = _accel.choose(_rotated, x, *angles, out)
    return turn(x, *angles, inverse, pairing, out_pairing, out, xp)


@_array.on_device_of_arrays
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
        2D <= d; the leading axes broadcast against those of `x`. Cos and sin are taken in float64 where the library
        has it, and are as good as the phases that came.
    pairing, out_pairing, scale, inverse, out
        As in `rotate`.

    Returns
    -------
    array, (..., d)
        The dtype and device of `x`; `out` if it was given.

    Raises
    ------
    ValueError, TypeError
        As `rotate`.

    Examples
    --------
    >>> import numpy as np
    >>> rotate_by_phases(np.array([1.0, 0.0]), [np.pi]).round(12)
    array([-1.,  0.])
    """
    xp = _array.namespace(x=x, phases=phases, scale=scale, out=out)
    x = _blocks.features(x, xp)
    phases = _array.as_widest(_array.numbers(phases, xp, name="phases", device=_array.device(x)), xp)
    if phases.ndim == 0:
        raise ValueError("phases is a single number; expected an array (..., D) with one phase a block")
    scale, shape = _checked_scale(scale, inverse, phases.shape, x, xp)
    _check_width(x, shape[-1], "phases")
    out_pairing = _blocks.prepared(x, shape, pairing, out_pairing, out, ("x", "phases"), phases, scale)
    turn = _accel.choose(_rotated_by_phases, x, phases, scale, out)
    return turn(x, phases, scale, inverse, pairing, out_pairing, out, xp)


@_array.on_device_of_arrays
def rotate_by_table(
    x: Array, cos: Array, sin: Array, *, pairing: str = "half", out_pairing: str | None = None, out: Array | None = None
) -> Array:
    """Rotate features by a table of cos and sin, made once by `rotation_table` and used for many layers.

    Parameters
    ----------
    x : array_like, (..., d)
        Features of a real floating dtype, d even.
    cos, sin : array_like, (..., D)
        One column a block, 2D <= d; the leading axes broadcast against those of `x`. A Hugging Face table of width 2D
        holds every column twice: pass its first half.
    pairing, out_pairing, out
        As in `rotate`.

    Returns
    -------
    array, (..., d)
        The dtype and device of `x`; `out` if it was given.

    Raises
    ------
    ValueError, TypeError
        As `rotate`, and if `cos` and `sin` differ in shape.

    Examples
    --------
    >>> rotate_by_table([[1.0, 2.0]], [[0.0]], [[1.0]])
    array([[-2.,  1.]])
    """
    xp = _array.namespace(x=x, cos=cos, sin=sin, out=out)
    x = _blocks.features(x, xp)
    cos, sin = (_array.numbers(v, xp, name=name, device=_array.device(x)) for v, name in ((cos, "cos"), (sin, "sin")))
    if cos.shape != sin.shape or cos.ndim == 0:
        raise ValueError(
            f"cos has shape {tuple(cos.shape)} and sin {tuple(sin.shape)}; expected one shape (..., D) for both"
        )
    _check_width(x, cos.shape[-1], "cos")
    out_pairing = _blocks.prepared(x, cos.shape, pairing, out_pairing, out, ("x", "cos"), cos, sin)
    turn = _accel.choose(_rotated_by_table, x, cos, sin, out)
    return turn(x, cos, sin, pairing, out_pairing, out, xp)


@_array.on_device_of_arrays
def rotation_table(
    positions: Array, frequencies: Array, *, shift: Array | None = None, scale: Any = 1.0, dtype: Any = None
) -> tuple[Array, Array]:
    """Cos and sin of the phases, for `rotate_by_table` or for another framework.

    Parameters
    ----------
    positions, frequencies, shift, scale
        As in `rotate`.
    dtype : dtype of the caller's library, optional
        Of the result: float64 where the library has it, unless given. The values are rounded once, at the end.

    Returns
    -------
    cos, sin : arrays
        ``P + (D,)``, or what ``positions @ frequencies^T`` broadcasts to; within 1e-15 of the exact values for phases
        up to 2**53 (see `rotate` for libraries without float64).

    Raises
    ------
    ValueError, TypeError
        As `rotate`.

    Examples
    --------
    >>> cos, sin = rotation_table([0, 1], [3.141592653589793])
    >>> cos[:, 0]
    array([ 1., -1.])
    """
    xp = _array.namespace(positions=positions, frequencies=frequencies, shift=shift, scale=scale)
    positions, frequencies, shift = _placed(positions, frequencies, shift, xp, _first_device(positions, frequencies))
    scale, _ = _checked_scale(scale, False, _phases_shape(positions, frequencies, shift), positions, xp)
    cos, sin = _accel.choose(_table, positions, frequencies, shift, scale)(positions, frequencies, shift, scale, xp)
    dtype = _array.check_float_dtype(dtype, xp)
    return (cos, sin) if dtype is None else (_array.astype(cos, dtype, xp), _array.astype(sin, dtype, xp))


@_array.on_device_of_arrays
def convert_pairing(x: Array, source: str, target: str, *, axis: int = -1, width: int | None = None) -> Array:
    """Reorder features, or the rows of a weight, from one pairing to the other.

    Parameters
    ----------
    x : array_like
        Features ``(..., d)``, or a weight with the head's features along `axis`. For a projection of H heads, reshape
        its rows to ``(H, d, in)`` and use ``axis=1``. Any dtype.
    source, target : {"half", "interleaved"}
        The pairing that `x` has, and the one to give it.
    axis : int
        Where the features are.
    width : int, optional
        How many features along `axis` are rotated (2D); those beyond keep their place. All unless given.

    Returns
    -------
    array
        Shape, dtype and device of `x`.

    Raises
    ------
    ValueError
        For an unknown pairing, an axis that `x` lacks, or a width that is odd or too large.

    Examples
    --------
    >>> convert_pairing([0, 1, 2, 3], "half", "interleaved")
    array([0, 2, 1, 3])
    """
    xp = _array.namespace(x=x)
    x = _array.asarray(x, xp, name="x")
    _blocks.check_pairing(source, "source")
    _blocks.check_pairing(target, "target")
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis!r}, but x has {x.ndim} axes (shape {tuple(x.shape)}); expected one of them")
    length = x.shape[axis]
    width = length if width is None else width
    if isinstance(width, bool) or not isinstance(width, int | np.integer) or width % 2 or not 0 <= width <= length:
        raise ValueError(
            f"width is {width!r}; expected an even number of features, at most the {length} along axis {axis}"
        )
    moved = xp.moveaxis(x, axis, -1)
    joined = _blocks.join(*_blocks.pair(moved[..., :width], source), target, xp)
    if width < length:
        joined = xp.concat([joined, moved[..., width:]], axis=-1)
    return xp.moveaxis(joined, -1, axis)


@_array.on_device_of_arrays
def to_complex(x: Array, *, pairing: str = "half") -> Array:
    """View each block as a complex number, first feature real: rotation is then multiplication by ``exp(i phase)``.

    Parameters
    ----------
    x : array_like, (..., d)
        Features of a real floating dtype, d even.
    pairing : {"half", "interleaved"}
        Which two features make a block.

    Returns
    -------
    array, (..., d / 2)
        complex128 for float64, complex64 for narrower types. A copy.

    Raises
    ------
    ValueError, TypeError
        As `rotate`.

    Notes
    -----
    The score is ``Re sum z_q conj(z_k)`` (section 7 of the mathematics page, which corrects seed 004).

    Examples
    --------
    >>> to_complex([1.0, 2.0, 3.0, 4.0])
    array([1.+3.j, 2.+4.j])
    """
    xp = _array.namespace(x=x)
    x = _blocks.features(x, xp)
    if _array.dtype_name(x) in ("float16", "bfloat16"):
        x = _array.astype(x, xp.float32, xp)
    return _array.make_complex(*_blocks.pair(x, _blocks.check_pairing(pairing)), xp)


@_array.on_device_of_arrays
def from_complex(z: Array, *, pairing: str = "half") -> Array:
    """Undo `to_complex`: real and imaginary parts become the two features of each block.

    Parameters
    ----------
    z : array_like, complex, (..., D)
        One number a block.
    pairing : {"half", "interleaved"}
        Where to put the two features.

    Returns
    -------
    array, (..., 2D)
        float64 for complex128, float32 for complex64.

    Raises
    ------
    TypeError
        If `z` is not complex.

    Examples
    --------
    >>> from_complex([1 + 3j, 2 + 4j], pairing="interleaved")
    array([1., 3., 2., 4.])
    """
    xp = _array.namespace(z=z)
    z = _array.asarray(z, xp, name="z")
    if not _array.dtype_name(z).startswith("complex") or z.ndim == 0:
        raise TypeError(
            f"z has dtype {_array.dtype_name(z)} and shape {tuple(z.shape)}; expected a complex array (..., D)"
        )
    return _blocks.join(xp.real(z), xp.imag(z), _blocks.check_pairing(pairing), xp)


@_array.on_device_of_arrays
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
    """Attention scores before softmax and without its scale: rotated q dot rotated k, for every query and key.

    Parameters
    ----------
    q : array_like, (..., M, d)
        Queries before rotation.
    k : array_like, (..., N, d)
        Keys before rotation; the leading axes of q and k broadcast.
    q_positions, k_positions : array_like
        As `positions` in `rotate`: ``(M,)`` and ``(N,)``, or ``(M, k)`` and ``(N, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``; features beyond 2D count unrotated.
    pairing : {"half", "interleaved"}
        Which two features make a block.
    shift : array_like, radians, optional
        Added to the phases of the KEYS: with ``shift = -offset * frequencies`` equal content scores highest at lag
        `offset` (key minus query).

    Returns
    -------
    array, (..., M, N)
        The dtype and device of q and k; half precision and float32 are computed one type wider.

    Raises
    ------
    ValueError, TypeError
        As `rotate`, and if q and k differ in width or dtype.

    Examples
    --------
    The score depends on the lag alone:

    >>> import numpy as np
    >>> q = k = np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> scores(q, k, [5, 6], [5, 6], [1.0]).round(6)
    array([[1.      , 0.540302],
           [0.540302, 1.      ]])
    """
    xp = _array.namespace(
        q=q, k=k, q_positions=q_positions, k_positions=k_positions, frequencies=frequencies, shift=shift
    )
    q, k = _query_and_key(q, k, xp)
    for name, value in (("q", q), ("k", k)):
        if value.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (..., tokens, d): use {name}[None, :]")
    wide, turned = _array.wider_float(q, xp), []
    for name, x, positions, phase in (("q", q, q_positions, None), ("k", k, k_positions, shift)):
        wide_x, names = _array.astype(x, wide, xp), (name, f"{name}_positions")
        turned.append(_rotated_for_scores(wide_x, positions, frequencies, phase, pairing, names, xp))
    _array.broadcast_shapes({"q": q.shape[:-2], "k": k.shape[:-2]})
    return _array.astype(xp.matmul(turned[0], xp.matrix_transpose(turned[1])), q.dtype, xp)


@_array.on_device_of_arrays
def block_coefficients(q: Array, k: Array, *, pairing: str = "half") -> tuple[Array, Array]:
    """Coefficients of the exact decomposition ``S = sum_i A_i cos u_i + B_i sin u_i``, with ``u_i = lag . omega_i``.

    Parameters
    ----------
    q, k : array_like, (..., d)
        Query and key before rotation, of one real floating dtype; the leading axes broadcast.
    pairing : {"half", "interleaved"}
        Which two features make a block.

    Returns
    -------
    A, B : arrays, (..., d / 2)
        ``A_i = q_i . k_i`` and ``B_i = q_i^T J k_i = q_i2 k_i1 - q_i1 k_i2``, with J the turn by +90 degrees. The dtype
        of q and k.

    Raises
    ------
    ValueError, TypeError
        As `rotate`, and if q and k differ in width or dtype.

    Notes
    -----
    Source: the exact decomposition of seed 000, section 1 of the mathematics page.

    Examples
    --------
    >>> block_coefficients([1.0, 0.0], [0.0, 1.0])
    (array([0.]), array([-1.]))
    """
    xp = _array.namespace(q=q, k=k)
    q, k = _query_and_key(q, k, xp)
    _blocks.check_pairing(pairing)
    _array.broadcast_shapes({"q": q.shape[:-1], "k": k.shape[:-1]})
    dtype, wide = q.dtype, _array.wider_float(q, xp)
    q_1, q_2 = _blocks.pair(_array.astype(q, wide, xp), pairing)
    k_1, k_2 = _blocks.pair(_array.astype(k, wide, xp), pairing)
    return _array.astype(q_1 * k_1 + q_2 * k_2, dtype, xp), _array.astype(q_2 * k_1 - q_1 * k_2, dtype, xp)


# -- the mathematics; `_accel` has twins of these functions of checked arrays ------------------------------------------


def _rotated(
    x: Array,
    positions: Array,
    frequencies: Array,
    shift: Array | None,
    scale: Any,
    inverse: bool,
    pairing: str,
    out_pairing: str,
    out: Array | None,
    xp: ModuleType,
) -> Array:
    cos, sin = _scaled(*_turns.cos_sin(positions, frequencies, shift, xp), scale, inverse)
    return _blocks.turned(x, cos, sin, pairing, out_pairing, out, xp)


def _rotated_by_phases(
    x: Array,
    phases: Array,
    scale: Any,
    inverse: bool,
    pairing: str,
    out_pairing: str,
    out: Array | None,
    xp: ModuleType,
) -> Array:
    cos, sin = _scaled(xp.cos(phases), xp.sin(phases), scale, inverse)
    return _blocks.turned(x, cos, sin, pairing, out_pairing, out, xp)


def _rotated_by_table(
    x: Array, cos: Array, sin: Array, pairing: str, out_pairing: str, out: Array | None, xp: ModuleType
) -> Array:
    return _blocks.turned(x, cos, sin, pairing, out_pairing, out, xp)


def _table(
    positions: Array, frequencies: Array, shift: Array | None, scale: Any, xp: ModuleType
) -> tuple[Array, Array]:
    return _scaled(*_turns.cos_sin(positions, frequencies, shift, xp), scale, False)


def _scaled(cos: Array, sin: Array, scale: Any, inverse: bool) -> tuple[Array, Array]:
    """Multiply by the scale, or prepare to undo all."""
    if inverse:
        sin = -sin
    if isinstance(scale, float) and scale == 1.0:
        return cos, sin
    return (cos / scale, sin / scale) if inverse else (cos * scale, sin * scale)


# -- preparation: no mathematics below this line, only what is allowed in ----------------------------------------------


def _query_and_key(q: Array, k: Array, xp: ModuleType) -> tuple[Array, Array]:
    q, k = _blocks.features(q, xp, "q"), _blocks.features(k, xp, "k")
    if q.dtype != k.dtype:
        raise TypeError(f"q has dtype {_array.dtype_name(q)} but k has {_array.dtype_name(k)}; expected the same")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"q has shape {tuple(q.shape)} but k has {tuple(k.shape)}; expected the same number of features"
        )
    return q, k


def _rotated_for_scores(
    x: Array,
    positions: Array,
    frequencies: Array,
    shift: Array | None,
    pairing: str,
    names: tuple[str, str],
    xp: ModuleType,
) -> Array:
    """Rotate queries or keys, with error messages that name them."""
    positions, frequencies, shift = _placed(positions, frequencies, shift, xp, _array.device(x), names[1])
    shape = _phases_shape(positions, frequencies, shift)
    _check_width(x, shape[-1], "frequencies", names[0])
    _blocks.prepared(x, shape, pairing, None, None, names)
    turn = _accel.choose(_rotated, x, positions, frequencies, shift)
    return turn(x, positions, frequencies, shift, 1.0, False, pairing, pairing, None, xp)


def _phases_shape(positions: Array, frequencies: Array, shift: Array | None) -> tuple[int, ...]:
    shape = _turns.phases_shape(positions.shape, frequencies.shape)
    return shape if shift is None else _array.broadcast_shapes({"shift": shift.shape, "the phases": shape})


def _first_device(*arrays: Array) -> Any:
    return next((d for d in map(_array.device, arrays) if d is not None), None)


def _placed(
    positions: Array, frequencies: Array, shift: Array | None, xp: ModuleType, device: Any, name: str = "positions"
) -> tuple[Array, Array, Array | None]:
    """Check positions, frequencies and shift, and bring lists to the caller's library and device.

    A list of frequencies stays a float64 array of NumPy where the library has no float64, so that it loses nothing.
    """
    positions = _array.numbers(positions, xp, name=name, device=device)
    if isinstance(frequencies, list | tuple) and not _array.has_float64(xp, device):
        frequencies = _array.as_widest(_array.numbers(frequencies, np, name="frequencies"), np)
    else:
        frequencies = _array.as_widest(_array.numbers(frequencies, xp, name="frequencies", device=device), xp)
    if frequencies.ndim == 0:
        raise ValueError("frequencies is a single number; expected (D,), or (*H, D, k) for k axes")
    if frequencies.ndim > 1:
        _check_axes(positions, frequencies, name)
    shape = _turns.phases_shape(positions.shape, frequencies.shape)
    if shift is not None:
        shift = _array.as_widest(_array.numbers(shift, xp, name="shift", device=device), xp)
        _array.broadcast_shapes({"shift": shift.shape, "the phases": shape})
    for what, value in ((name, positions), ("frequencies", frequencies), ("shift", shift)):
        if value is not None and not _array.is_integer(value) and not _array.all_within(value, _turns.LARGEST, xp):
            raise ValueError(f"{what} holds NaN or infinity, or magnitudes above 2**500; expected finite numbers")
    return positions, frequencies, shift


def _check_axes(positions: Array, frequencies: Array, name: str) -> None:
    axes = frequencies.shape[-1]
    if axes == 0:
        raise ValueError(f"frequencies has shape {tuple(frequencies.shape)}; expected at least one position axis")
    if positions.ndim == 0 or positions.shape[-1] != axes:
        hint = f": use {name}[..., None]" if axes == 1 else ""
        raise ValueError(
            f"{name} has shape {tuple(positions.shape)}, but frequencies of shape {tuple(frequencies.shape)} have "
            f"k = {axes} axes; expected {name} of shape (..., {axes}){hint}"
        )


def _check_width(x: Array, blocks: int, name: str, x_name: str = "x") -> None:
    if 2 * blocks > x.shape[-1]:
        hint = (
            f"; if {name} repeats its columns, pass the first half" if name == "cos" and blocks == x.shape[-1] else ""
        )
        raise ValueError(
            f"{name} has D = {blocks} blocks, which needs {2 * blocks} features, but {x_name} has shape "
            f"{tuple(x.shape)}; expected D <= {x.shape[-1] // 2}{hint}"
        )


def _checked_scale(
    scale: Any, inverse: bool, shape: tuple[int, ...], like: Array, xp: ModuleType
) -> tuple[Any, tuple[int, ...]]:
    """Return the scale as a float or an array beside `like`, and the shape of the phases with it."""
    if not isinstance(inverse, bool | np.bool):
        raise TypeError(f"inverse is {inverse!r}; expected True or False")
    if isinstance(scale, int | float) and not isinstance(scale, bool):
        scale = float(scale)
        fine = 0.0 < scale < math.inf
    else:
        scale = _array.as_widest(_array.numbers(scale, xp, name="scale", device=_array.device(like)), xp)
        shape = _array.broadcast_shapes({"scale": scale.shape, "the phases": shape})
        fine = not _array.on_host(scale) or bool(xp.all((scale > 0.0) & (scale < math.inf)))
    if not fine:
        raise ValueError(f"scale is {scale!r:.80}; expected positive finite numbers")
    return scale, shape
