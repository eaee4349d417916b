"""Scores as functions of two positions: their distance from functions of the lag, and those of FoPE."""

from __future__ import annotations

from types import ModuleType

from rfrope._core import angles, array, turns
from rfrope._core.arguments import whole
from rfrope._core.array import Array


@array.select_device
def toeplitz_defect(values: Array) -> Array:
    """Return the fraction of a matrix's squared norm that no function of the lag explains: 0 if it is Toeplitz.

    Parameters
    ----------
    values : array_like, (..., M, N)
        Scores, or other values, at equally spaced positions: rows are queries, columns are keys. Leave masked ones out.

    Returns
    -------
    array, (...)
        ``1 - |nearest Toeplitz matrix|^2 / |values|^2`` in the Frobenius norm, from 0 to 1; float64 where the library
        has it, with gradients. 0 for a matrix of zeros.

    Raises
    ------
    ValueError
        If there are less than two axes, or a value is NaN, infinite or above 2**500 in magnitude (checked where that is
        free).
    TypeError
        If a value is not a real number.

    See Also
    --------
    scores : the scores of a Rope, for which it is 0.
    analysis.fourier_two_point : the scores of FoPE.

    Notes
    -----
    The nearest Toeplitz matrix has the mean along each diagonal. For rotations by position the defect is 0, with any
    frequencies. With queries and keys of the same content, a scheme with a defect has no Phi, and Theorem 2 and
    Bochner's theorem do not apply to it.

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
    largest = xp.max(xp.abs(array.library(values).bits(values)), axis=(-2, -1), keepdims=True)
    values = values / xp.where(largest > 0.0, largest, xp.ones_like(largest))  # whose squares are finite, and not all 0
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
    """Return the FoPE score of equal contents at two positions, which is not a function of the lag.

    Parameters
    ----------
    q_positions, k_positions : array_like
        ``(M,)`` and ``(N,)``.
    frequencies : array_like, (n,), radians per position
        The frequencies that are kept.
    cosine, sine : array_like, (..., n, n_blocks)
        Coefficients of each wave in each block's cos and sin; leading axes are heads. For RoPE both are the identity.
    n_padded : int
        Number of blocks with removed frequency. In the published code their cos and sin are both 1, so they are not
        rotated, and count twice.

    Returns
    -------
    array, (..., M, N)
        ``(1/D) (sum_j F_j(m) F_j(n) + G_j(m) G_j(n) + 2 n_padded)`` with ``F(m) = cos(m omega) @ cosine`` and ``G(m) =
        sin(m omega) @ sine``, D = n_blocks + n_padded; float64 where the library has it, with gradients.

    Raises
    ------
    ValueError
        If shapes do not fit, or there is no block.
    TypeError
        See `rotate`.

    See Also
    --------
    analysis.mean_kernel : the same for RoPE, a function of the lag.
    analysis.toeplitz_defect : the distance from a function of the lag.

    Notes
    -----
    A block is multiplied by ``F + i G``, whose modulus depends on the position: this is not a rotation, and norms
    change. The result is positive definite, as a sum of products of functions with themselves, but not a function of
    the lag. Over long texts, with distinct frequencies and no padded blocks, its `toeplitz_defect` tends to
    ``1 - sum_l (A_ll + B_ll)^2 / (2 |A|^2 + 2 |B|^2)`` with ``A = cosine @ cosine.T``, ``B = sine @ sine.T``.

    On average over the published coefficients, the identity plus independent normal numbers of variance ``s^2 / n``, it
    is a kernel, ``mean_kernel(lag, frequencies) (1 + s^2)``; but a model draws them once and keeps them. No export can
    hold it: engines take frequencies, and the entries of a rotation table have modulus 1. Source: Hua et al. (2024).

    Examples
    --------
    Without coefficients of other waves it equals RoPE:

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
