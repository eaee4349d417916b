"""Scores as functions of two positions: how far they are from a function of the lag, and those of FoPE."""

from __future__ import annotations

from types import ModuleType

from rfrope._core import angles, array, turns
from rfrope._core.arguments import whole
from rfrope._core.array import Array


@array.select_device
def toeplitz_defect(values: Array) -> Array:
    """Share of a matrix's squares that no function of the lag explains: 0 if it depends on the lag alone.

    Parameters
    ----------
    values : array_like, (..., M, N)
        Scores, or what they are made of, at positions in equal steps: rows are queries, columns are keys. Leave masked
        ones out.

    Returns
    -------
    array, (...)
        ``1 - |nearest Toeplitz matrix|^2 / |values|^2`` in the Frobenius norm, from 0 to 1; float64 where the library
        has it, with gradients. 0 for a matrix of zeros.

    Raises
    ------
    ValueError
        For less than two axes, and for NaN, infinity or magnitudes above 2**500, where looking is free.
    TypeError
        For anything but real numbers.

    See Also
    --------
    scores : those of a Rope, of which none is lost.
    analysis.fourier_two_point : those of FoPE.

    Notes
    -----
    The nearest matrix whose entries depend on the lag has their mean along each diagonal. Rotations by position have
    none of it, for any frequencies. For queries and keys of the same content it is what a scheme loses first: without
    it there is no Phi for theorem 2 and Bochner's theorem to speak about.

    Examples
    --------
    >>> import numpy as np
    >>> at = np.arange(6)
    >>> float(toeplitz_defect(np.cos(0.3 * (at[:, None] - at))).__round__(12))
    0.0
    >>> float(toeplitz_defect(np.cos(0.3 * at[:, None]) * np.cos(0.3 * at)).round(4))
    0.3222
    """
    xp, device = array.shared(values=values)
    values = angles.read_numbers("values", values, xp, device)
    if values.ndim < 2 or 0 in values.shape[-2:]:
        raise ValueError(f"values has shape {tuple(values.shape)}; expected (..., queries, keys)")
    by_lag = _align_lags(values, xp)
    ones = _align_lags(xp.ones_like(values), xp)
    means = xp.sum(by_lag, axis=-2, keepdims=True) / xp.sum(ones, axis=-2, keepdims=True)
    lost = xp.sum(xp.sum((by_lag - means * ones) ** 2, axis=-1), axis=-1)
    total = xp.sum(xp.sum(values**2, axis=-1), axis=-1)
    return lost / xp.where(total > 0.0, total, xp.ones_like(total))


@array.select_device
def fourier_two_point(
    q_positions: Array, k_positions: Array, frequencies: Array, cosine: Array, sine: Array, *, n_padded: int = 0
) -> Array:
    """Score that FoPE gives equal contents at two positions: a function of both, and not of the lag.

    Parameters
    ----------
    q_positions, k_positions : array_like
        ``(M,)`` and ``(N,)``.
    frequencies : array_like, (n,), radians per position
        Those that are kept.
    cosine, sine : array_like, (..., n, n_blocks)
        Coefficients of each wave in the place of each block's cos and of its sin, apart; leading axes are heads. RoPE
        has two identity matrices.
    n_padded : int
        Blocks whose frequency was removed. Their cos and sin are both 1 in the published code, so that they do not
        turn, and count twice.

    Returns
    -------
    array, (..., M, N)
        ``(1/D) (sum_j F_j(m) F_j(n) + G_j(m) G_j(n) + 2 n_padded)`` with ``F(m) = cos(m omega) @ cosine`` and ``G(m) =
        sin(m omega) @ sine``, D = n_blocks + n_padded; float64 where the library has it, with gradients.

    Raises
    ------
    ValueError
        For shapes that do not fit, or no block at all.
    TypeError
        See `rotate`.

    See Also
    --------
    analysis.mean_kernel : the same for RoPE, a function of the lag.
    analysis.toeplitz_defect : how far this one is from that.

    Notes
    -----
    A block is multiplied by ``F + i G``, which has another modulus at each position: nothing is turned, and norms
    change. The result is positive definite, as products of a function with itself are, but no function of the lag. Over
    long texts with distinct frequencies `toeplitz_defect` of it tends, without padded blocks, to ``1 - sum_l (A_ll +
    B_ll)^2 / (2 |A|^2 + 2 |B|^2)`` with ``A = cosine @ cosine.T``, ``B = sine @ sine.T``.

    In the mean over coefficients as published, the identity and independent normal numbers of variance ``s^2 / n``, it
    is a kernel: ``mean_kernel(lag, frequencies) (1 + s^2)``. Only one draw of them is made, and then kept. No export
    holds it: engines take frequencies, and a table of turns has modulus 1. Source: Hua et al. (2024).

    Examples
    --------
    Without coefficients of other waves it is RoPE:

    >>> import numpy as np
    >>> plain = fourier_two_point([0, 1], [0, 5], [1.0, 0.1], np.eye(2), np.eye(2))
    >>> from rfrope.analysis import mean_kernel
    >>> bool(np.allclose(plain, mean_kernel([[0, 5], [-1, 4]], [1.0, 0.1])))
    True
    >>> mixed = np.array([[1.0, 0.2], [-0.1, 1.0]])
    >>> fourier_two_point([0, 1], [0, 1], [1.0, 0.1], mixed, np.eye(2)).round(4)
    array([[1.125 , 0.8602],
           [0.8602, 1.0645]])
    """
    n_padded, frequencies = whole("n_padded", n_padded), angles.frequencies_of(frequencies)
    positions = {"q_positions": q_positions, "k_positions": k_positions}
    xp, device = array.shared({**positions, "frequencies": frequencies, "cosine": cosine, "sine": sine})
    read = {"cosine": cosine, "sine": sine}
    read = {name: angles.read_numbers(name, v, xp, device) for name, v in read.items()}
    angles_read = [angles.checked(value, frequencies, None, xp, device, name) for name, value in positions.items()]
    waves = [turns.cos_sin(one) for one in angles_read]
    shapes = {name: tuple(value.shape) for name, value in read.items()}
    n = waves[0][0].shape[-1]
    for name, (cos, _) in zip(positions, waves, strict=True):
        if cos.ndim != 2:
            raise ValueError(
                f"{name} or frequencies have too few or too many axes; expected one position each, and (n,)"
            )
    if any(len(one) < 2 or one[-2] != n for one in shapes.values()):
        raise ValueError(
            f"cosine and sine have shapes {shapes['cosine']} and {shapes['sine']}, and there are {n} frequencies; "
            f"expected (..., {n}, n_blocks)"
        )
    if shapes["cosine"][-1] != shapes["sine"][-1] or not shapes["sine"][-1] + n_padded:
        counts = f"{shapes['cosine'][-1]} and {shapes['sine'][-1]}, and n_padded is {n_padded}"
        raise ValueError(f"cosine and sine have blocks {counts}; expected as many, and some")
    heads = array.broadcast_shapes(shapes)[:-2]
    made = (*heads, waves[0][0].shape[0], waves[1][0].shape[0])
    array.check_memory(24.0, made, waves[0][0], "q_positions or k_positions")
    total = 0.0
    for place, weights in enumerate(read.values()):
        first, second = (xp.matmul(array.astype(wave[place], weights.dtype, xp), weights) for wave in waves)
        total = total + xp.matmul(first, xp.matrix_transpose(second))
    return (total + 2.0 * n_padded) / (shapes["sine"][-1] + n_padded)


# -- the mathematics ---------------------------------------------------------------------------------------------------


def _align_lags(values: Array, xp: ModuleType) -> Array:
    """Rows ``(..., M, M + N - 1)`` in which a column is a lag, with zeros where a row has none."""
    *leading, queries, keys = values.shape
    if queries == 1:
        return values
    zeros = xp.zeros_like(values[..., :1])
    gap = xp.broadcast_to(zeros, (*leading, queries, queries - 2))  # one less than a lag for each row moves it by one
    flat = xp.reshape(xp.concat([values, gap], axis=-1), (*leading, queries * (keys + queries - 2)))
    first, last = (xp.broadcast_to(zeros[..., 0, :], (*leading, n)) for n in (queries - 1, 1))
    return xp.reshape(xp.concat([first, flat, last], axis=-1), (*leading, queries, queries + keys - 1))
