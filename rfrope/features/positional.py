"""Stochastic positional encoding: features whose mean product is a kernel of the lag."""

from __future__ import annotations

from rfrope._core import angles, array
from rfrope._core.arguments import whole
from rfrope._core.array import Array
from rfrope.features.estimates import read_vectors, read_wide, to_computable
from rfrope.kernels import Kernel
from rfrope.kernels.text import read_kernel
from rfrope.rotation import rotation_table


@array.select_device
def stochastic(
    x: Array, positions: Array, frequencies: Array, projections: Array, *, shift: Array | None = None
) -> Array:
    """Return features whose mean product is ``sum_c q_c k_c`` times a kernel of the lag (SPE; in k axes, F-StrIPE).

    Parameters
    ----------
    x : array_like, (..., L, d)
        Queries or keys.
    positions : array_like
        Their positions: ``(L,)`` for frequencies ``(K,)``, else ``(L, k)``. Structure in the sense of F-StrIPE, such as
        chords, goes into further axes.
    frequencies : array_like, radians per unit of position
        ``(K,)`` or ``(K, k)`` for all features of x, or ``(d, K, k)`` for each.
    projections : array_like, (d, 2K, R)
        Standard normal, the same for queries and keys: ``rfrope.sample("gaussian(ndim=R)", 2 * K, heads=d)``. To weight
        a frequency by a gain, multiply its two rows, i and K + i.
    shift : array_like, radians, optional
        Added to the phases. A shift of the queries moves the kernel, as in SPE.

    Returns
    -------
    array, (..., L, R)
        Divided by ``sqrt(K R)``. With the dtype and device of `x`; 16-bit inputs are computed in float32.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit or an argument is of the wrong type. See also `rfrope.rotation_table`.

    See Also
    --------
    features.stochastic_variance : variance of the inner product.

    Notes
    -----
    Over the projections, ``stochastic(q) . stochastic(k)`` has mean ``sum_c q_c k_c Phi_K(lag)``, where ``Phi_K(lag)``
    is the mean of ``cos(lag . omega)`` over the K frequencies of feature c. Phases are as accurate as in
    `rfrope.rotate`. Source: Liutkus et al. (2021), sineSPE; Agarwal et al. (2025a, 2025b).

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> omega = rfrope.sample("gaussian(scale=32)", 64, design="quantile")
    >>> z = rfrope.sample("gaussian(ndim=4096)", 128, heads=2, rng=0)
    >>> q, k = np.array([[1.0, 0.5]]), np.array([[2.0, -1.0]])
    >>> found = stochastic(q, [100], omega, z) @ stochastic(k, [132], omega, z).T
    >>> float(found[0, 0].round(2)), float((q @ k.T)[0, 0] * np.exp(-0.5).round(2))
    (0.89, 0.915)
    """
    frequencies = angles.frequencies_of(frequencies)
    xp, device = array.shared(
        {"positions": positions, "frequencies": frequencies, "projections": projections, "shift": shift}, x=x
    )
    x = read_vectors("x", x, xp, device, 2)
    y, noise = to_computable(x, xp), read_vectors("projections", projections, xp, device, 3)
    table = rotation_table(positions, frequencies, shift=shift)
    cos, sin = (array.asarray(one, xp, name="positions", device=device) for one in table)
    if noise.shape[-3:-1] != (x.shape[-1], 2 * cos.shape[-1]):
        raise ValueError(
            f"projections has shape {tuple(noise.shape)}, but x has {x.shape[-1]} features and frequencies has "
            f"K = {cos.shape[-1]}; expected ({x.shape[-1]}, {2 * cos.shape[-1]}, R)"
        )
    if cos.ndim < 2 or cos.shape[-2] not in (1, x.shape[-2]):
        raise ValueError(f"positions are of shape {tuple(cos.shape[:-1])}, but x has {x.shape[-2]} tokens")
    waves = xp.concat([array.astype(one, y.dtype, xp) for one in (cos, sin)], axis=-1)
    if waves.ndim == 2:
        waves = waves[None, ...]
    code = xp.moveaxis(xp.matmul(waves, array.astype(noise, y.dtype, xp)), -3, -2)
    found = xp.matmul(y[..., None, :], code)[..., 0, :]
    return array.astype(found * float(cos.shape[-1] * noise.shape[-1]) ** -0.5, x.dtype, xp)


@array.select_device
def stochastic_variance(
    q: Array, k: Array, lags: Array, kernel: Kernel | str, n_features: int, *, n_frequencies: int | None = None
) -> Array:
    """Return the variance of the product of two `stochastic` features over independent projections and frequencies.

    Parameters
    ----------
    q, k : array_like, (..., d)
    lags : array_like, in units of position
        Lags, KEY minus QUERY: ``(...)`` for a kernel with one axis, ``(..., ndim)`` with more.
    kernel : Kernel or str
        Law of the frequencies; a string is read by `rfrope.kernels.parse`.
    n_features : int
        R, at least 1.
    n_frequencies : int, optional
        K, the number of independent frequencies, the same for all features of q and k. Default: the exact kernel, the
        limit of large K.

    Returns
    -------
    array, float64 where the library has it
        The broadcast shape.

    Raises
    ------
    ValueError, TypeError
        If shapes do not fit, a lag is NaN or infinite, the kernel is invalid, or an argument is of the wrong type.

    See Also
    --------
    score_variance : for queries and keys rotated as in RF-RoPE.

    Notes
    -----
    The variance is ``(|q|^2 |k|^2 + (q . k)^2 Phi^2) / R`` (Isserlis' theorem). With K drawn frequencies,
    ``(q . k)^2 (v / K) (1 + 1 / R)`` is added, where ``v = (1 + Phi_2)/2 - Phi^2``. The page on features compares it
    with `rfrope.score_variance`.

    Examples
    --------
    >>> q, k = [1.0, 0.5], [2.0, -1.0]
    >>> [float(stochastic_variance(q, k, lag, "gaussian(scale=32)", 64).round(4)) for lag in (0.0, 1000.0)]
    [0.1328, 0.0977]
    """
    law = read_kernel(kernel)
    xp, device = array.shared({"lags": lags}, q=q, k=k)
    q, k = read_wide("q", q, "k", k, xp, device)
    lags = angles.checked_lags(lags, law.ndim, xp, device, "lags", law)
    array.broadcast_shapes({"q": q.shape[:-1], "k": k.shape[:-1], "lags": lags.shape[:-1]})
    r, product = float(whole("n_features", n_features, 1)), xp.sum(q * k, axis=-1) ** 2
    phi = law.phi_of_vectors(lags, xp)
    found = (xp.sum(q * q, axis=-1) * xp.sum(k * k, axis=-1) + product * phi * phi) / r
    if n_frequencies is None:
        return found
    spread = 0.5 + 0.5 * law.phi_of_vectors(2.0 * lags, xp) - phi * phi
    return found + product * spread * ((1.0 + 1.0 / r) / whole("n_frequencies", n_frequencies, 1))
