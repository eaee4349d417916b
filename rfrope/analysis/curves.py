"""Curves over lags: the mean kernel of given frequencies, and what it is compared with."""

from __future__ import annotations

from rfrope import _accel, _array, _sums
from rfrope._array import Array
from rfrope.rotation import _first_device, _placed

__all__ = ["mean_kernel"]


@_array.on_device_of_arrays
def mean_kernel(frequencies: Array, delta: Array) -> Array:
    """Mean kernel of given frequencies: the mean over the blocks of ``cos(delta . omega)``.

    It is the expected score of unit content that all blocks share equally, and what `estimate_kernel` averages.

    Parameters
    ----------
    frequencies : array_like, radians per unit of position
        ``(D,)`` or ``(*H, D, k)``, with at least one block. ``(H, D, k)`` gives one curve for each head.
    delta : array_like, in units of position
        Lags: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for ``(*H, D, k)``, as positions in `rotate`.
        Integers count exactly up to 2**53.

    Returns
    -------
    array
        ``P``, or what ``delta @ frequencies^T`` broadcasts to, without the axis of the blocks; float64 where the
        library has it.

    Raises
    ------
    ValueError
        For shapes that do not fit together, no blocks, and for NaN or infinite values.
    TypeError
        For arrays of different libraries or of a dtype without numbers on a line.

    Notes
    -----
    ``C(delta) = (1/D) sum_i cos(delta . omega_i)``: section 5 of the mathematics page, and the score of identical unit
    tokens in seed 002. Phases are exact, so the direct sum is within 1e-15 or so for ``|delta . omega| <= 2**53``
    (see `rotate` for libraries without float64). Where a non-uniform fast Fourier transform is cheaper (many blocks at
    many lags, in up to three axes, on the CPU or a CUDA device) the result is within 1e-9.

    The curve of `geometric` is not that of its continuum: it turns negative far earlier.

    Examples
    --------
    >>> import rfrope
    >>> omega = rfrope.geometric(64, base=10_000.0)
    >>> mean_kernel(omega, [0, 1, 1706, 1707]).round(4)
    array([ 1.    ,  0.9702,  0.0011, -0.0078])
    """
    xp = _array.namespace(frequencies=frequencies, delta=delta)
    delta, frequencies, _ = _placed(delta, frequencies, None, xp, _first_device(delta, frequencies), "delta")
    if frequencies.shape[-1 if frequencies.ndim == 1 else -2] == 0:
        raise ValueError(f"frequencies has shape {tuple(frequencies.shape)}; expected at least one block")
    return _accel.choose(_sums.mean_cos, delta, frequencies)(frequencies, delta, xp)
