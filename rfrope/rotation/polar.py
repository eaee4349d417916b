"""Polar features: magnitudes rotated by position alone, so that every score follows the kernel."""

from __future__ import annotations

from typing import Any

from rfrope._core import angles, array, blocks
from rfrope._core.arguments import flag
from rfrope._core.array import Array
from rfrope._core.blocks import MAGNITUDES, TurnOptions
from rfrope.rotation import turning
from rfrope.rotation.turning import checked_scale, comes_in_blocks, map_blocks, rotated


def rotate_polar(
    magnitudes: Array,
    positions: Array,
    frequencies: Array,
    *,
    shift: Array | None = None,
    pairing: str = "half",
    softplus: bool = False,
    scale: Any = 1.0,
    inverse: bool = False,
    out: Array | None = None,
) -> Array:
    """Return the polar features ``(m cos u, m sin u)`` of magnitudes, with ``u = position . frequency + shift`` (PoPE).

    The result is twice as wide: each magnitude becomes a block of two features. A query and a key score
    ``sum_i m_i m'_i cos(lag . omega_i + shift_i)``, with lag key minus query and the shift of the key. No weight is
    negative, so without shift the score follows the kernel whatever the content.

    Parameters
    ----------
    magnitudes : array_like, (..., D)
        0 or more, of a real floating dtype; any numbers if `softplus`. Polar features (..., 2D) if `inverse`.
    positions : array_like
        See `rotate`: any shape ``P`` for frequencies ``(D,)``; ``(*P, k)`` for frequencies ``(*H, D, k)``.
    frequencies : array_like, radians per unit of position
        ``(D,)``, ``(D, k)``, or per head ``(H, D, k)``: one per magnitude. The phases must broadcast to the leading
        axes of `magnitudes`.
    shift : array_like, radians, optional
        Added to the phases; broadcasts against them. PoPE learns one per head and frequency, for keys alone, and clamps
        it to [-2 pi, 0]; nothing is clamped here.
    pairing : {"half", "interleaved"}
        Features that form a block: in the result, or in the input if `inverse`.
    softplus : bool
        Take ``log(1 + exp(x))`` of the input as magnitudes, accurate to 2 units in the last place of its dtype
        (computed in float32 for 16 bits). Not with `inverse`.
    scale : float or array_like
        Positive factor of the result. An array broadcasts against the phases.
    inverse : bool
        Undo it: turn by the negative phases, divide by `scale`, and return the first feature of each block, (..., D).
    out : array, optional
        Output array, of the shape of the result and the dtype of `magnitudes`; may not share memory with them.

    Returns
    -------
    array, (..., 2D), or (..., D) in the inverse
        Same dtype and device as `magnitudes`; `out` if given.

    Raises
    ------
    ValueError
        See `rotate`. Also if there is not one frequency per magnitude, a magnitude is negative without `softplus` (NaN
        passes), or `softplus` is given with `inverse`. Values are checked only where that is cheap: not on devices, in
        JAX, or in Dask before it computes.
    TypeError
        See `rotate`.

    See Also
    --------
    rotate : for features of any sign, two per frequency (RoPE).

    Notes
    -----
    Phases are as exact as those of `rotate`. Source: Gopalakrishnan et al. (2025), "Decoupling the
    'What' and 'Where' With Polar Coordinate Positional Embeddings".

    Examples
    --------
    A quarter turn takes a magnitude from the first feature of its block to the second:

    >>> import numpy as np
    >>> rotate_polar(np.array([2.0]), 1, [np.pi / 2]).round(12)
    array([0., 2.])

    A score is a sum of cosines of the lag, weighted by content:

    >>> import rfrope
    >>> q, k = np.random.default_rng(0).uniform(0.0, 1.0, (2, 64))
    >>> omega, delta = rfrope.geometric(64), np.linspace(-1.0, 0.0, 64)
    >>> turned = rotate_polar(q, 100_000, omega), rotate_polar(k, 99_983, omega, shift=delta)
    >>> bool(np.isclose(turned[0] @ turned[1], np.sum(q * k * np.cos(-17 * omega + delta)), rtol=1e-12))
    True

    With `softplus`, content may have any sign:

    >>> rotate_polar(np.array([-1.0, 0.0, 1.0]), 0, [1.0, 0.1, 0.01], softplus=True)[:3].round(6)
    array([0.313262, 0.693147, 1.313262])
    """
    if hasattr(frequencies, "_frequencies_for"):  # a Rope
        frequencies = angles.frequencies_of(frequencies, pairing, scale, magnitudes, "magnitudes", polar=True)
    pairings = (pairing, MAGNITUDES) if inverse is True else (MAGNITUDES, pairing)
    turn = *pairings, scale, inverse, softplus
    turned = turning.turned_at_once("polar", magnitudes, positions, frequencies, shift, turn, out)
    if turned is not None:
        return turned
    return _read_and_rotated(magnitudes, positions, frequencies, shift, pairing, softplus, scale, inverse, out)


@array.select_device
def _read_and_rotated(
    magnitudes: Any,
    positions: Any,
    frequencies: Any,
    shift: Any,
    pairing: str,
    softplus: bool,
    scale: Any,
    inverse: bool,
    out: Any,
) -> Array:
    """Read the arguments of `rotate_polar` with all checks, and turn."""
    pairings = (pairing, MAGNITUDES) if flag("inverse", inverse) else (MAGNITUDES, pairing)
    blocks.check_pairing(pairing)
    if flag("softplus", softplus) and inverse:
        raise ValueError("softplus is True in the inverse, which gives magnitudes; expected at most one of them")
    constants = {"positions": positions, "frequencies": frequencies, "shift": shift, "scale": scale}
    xp, device = array.shared(constants, magnitudes=magnitudes, out=out)
    x = blocks.features(magnitudes, xp, "magnitudes", device, pairings[0])
    space = array.space_of_constants(xp, constants)
    read = angles.check_angles(positions, frequencies, shift, space, device)
    scale, phases = checked_scale(scale, read.shape, x, space)
    check_polar_width(x, phases[-1], "magnitudes", inverse)
    turn = TurnOptions(*pairings, scale, inverse, softplus)
    blocks.check_turn(x, phases, turn, out, ("magnitudes", *constants), *read[:3], scale)
    if not (inverse or softplus):
        blocks.check_magnitudes(x, xp, "magnitudes")
    if comes_in_blocks(x, read.xp):
        width = turn.shape(x.shape, phases)[-1]
        return map_blocks(rotate_polar, x, read, turn._replace(pairing=pairing), width, softplus=softplus)
    return rotated(x, read, turn, out)


def check_polar_width(x: Array, n_frequencies: int, name: str, inverse: bool = False) -> None:
    """Refuse features that do not have one frequency per magnitude."""
    wanted = (2 if inverse else 1) * n_frequencies
    if x.shape[-1] != wanted:
        what = "features: the inverse takes two per frequency" if inverse else "magnitudes"
        raise ValueError(
            f"frequencies has D = {n_frequencies}, but {name} has shape {tuple(x.shape)}; expected (..., {wanted}) "
            f"{what}: rotate_polar takes one frequency per magnitude, rotate one per two features"
        )
