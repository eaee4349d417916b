"""Cached keys of one Rope turned into those of another."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks
from rfrope._core.array import Array
from rfrope.rotation.rope import Rope, pairing_for
from rfrope.rotation.turning import rotate


@array.select_device
def rerotate(k: Array, positions: Array, old: Rope | Array, new: Rope | Array, *, out: Array | None = None) -> Array:
    """Turn keys that one Rope has rotated into those that another would have made of the same features.

    For a cache of keys whose Rope changes: a dynamic scheme that grew with the text, another base, another design.

    Parameters
    ----------
    k : array_like, (..., d)
        Rotated keys (or queries) of a real floating dtype, d even and at least 2D of either Rope; for polar Ropes 2D.
    positions : array_like
        Where they stand: any shape ``P`` where both Ropes have frequencies ``(D,)``, else ``(*P, k)``.
    old, new : Rope or array_like
        What has rotated them, and what is to have rotated them; attention factors are exchanged too. Bare frequencies,
        in radians per unit of position, are a Rope with the pairing "half".
    out : array, optional
        Where to write; ``out=k`` works in place.

    Returns
    -------
    array, (..., d)
        ``new.rotate(old.rotate(k, positions, inverse=True), positions)``, in the dtype and device of `k`; `out` if it
        was given.

    Raises
    ------
    ValueError
        As `rotate`, and for Ropes that take positions of different shapes or of which one is polar.
    TypeError
        As `rotate`.

    Notes
    -----
    Where both have one pairing and frequencies of one shape, every block is turned once, by ``p new - p old``, with
    cos and sin of that exact phase to 1e-15: one rounding to the dtype of `k`, however large the position. Else the
    features are turned back and then forth, with two roundings. The roundings of repeated calls add up; the page on
    schemes has their size.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> old = rfrope.Rope(rfrope.geometric(4), context=16)
    >>> new = rfrope.scaling.dynamic_ntk(old, 2.0, seq_len=32, max_position_embeddings=16)
    >>> k, positions = np.random.default_rng(0).standard_normal((32, 8)), np.arange(32)
    >>> cached = old.rotate(k, positions)
    >>> moved = rerotate(cached, positions, old, new, out=cached)  # in place
    >>> bool(np.allclose(moved, new.rotate(k, positions), atol=1e-14))
    True
    """
    array.shared(k=k, out=out)
    for name, one in (("old", old), ("new", new)):
        if not isinstance(one, Rope):
            xp, device = array.shared(**{name: one})
            angles.frequencies(one, xp, device, name=name)
    old, new = (one if isinstance(one, Rope) else Rope(one) for one in (old, new))
    k = blocks.features(k, array.shared(k=k)[0], "k")
    if old.polar != new.polar:
        raise ValueError(f"old has polar={old.polar} and new polar={new.polar}; expected the same")
    for name, one in (("old", old), ("new", new)):
        blocks.check_width(k, one.n_blocks, name, "k")
        if one.polar and k.shape[-1] != 2 * one.n_blocks:
            raise ValueError(
                f"k has shape {tuple(k.shape)}; expected {2 * one.n_blocks} polar features: {name} has {one.n_blocks} "
                "frequencies"
            )
    pairings = [pairing_for(one, k[..., : one.n_blocks] if one.polar else k, "k") for one in (old, new)]
    before, after = _alike(old.vectors, new.vectors)
    constants = {"positions": positions, "old": before, "new": after}
    xp, device = array.shared(constants, k=k, out=out)
    xp = array.space_of_constants(xp, constants)
    # one line beside frequencies of axes takes positions as these do
    which, one = max((("old", old.vectors), ("new", new.vectors)), key=lambda named: named[1].ndim)
    read = angles.checked(positions, one, None, xp, device, frequencies_name=f"frequencies of {which}")
    at = read.positions
    blocks.check_rotation(k, read.shape, pairings[0], None, out, ("k", "positions", "old", "new"), at, before, after)
    if pairings[0] != pairings[1] or before.shape != after.shape:
        same = pairings[1] if old.polar else None  # magnitudes go where the new pairing has them
        features = rotate(
            k, at, before, pairing=pairings[0], out_pairing=same, scale=old.attention_factor, inverse=True
        )
        return rotate(features, at, after, pairing=pairings[1], scale=new.attention_factor, out=out)
    scale = new.attention_factor / old.attention_factor
    both = _concatenate_difference(after, before, xp, device)
    return rotate(k, xp.concat([at, at], axis=-1), both, pairing=pairings[0], scale=scale, out=out)


def _alike(old: Array, new: Array) -> tuple[Array, Array]:
    """Frequencies that take positions of one shape, ``(..., D, k)``."""
    with array.compute_eagerly(old), array.compute_eagerly(new):
        old, new = (angles.to_vectors(one, one) for one in (old, new))
    if old.shape[-1] != new.shape[-1]:
        raise ValueError(
            f"old turns by {old.shape[-1]} position axes and new by {new.shape[-1]}; expected as many, since the "
            "positions are the same"
        )
    return old, new


def _concatenate_difference(new: Array, old: Array, xp: ModuleType, device: Any) -> Any:
    """Frequencies ``(*H, D, 2k)`` whose phases at positions given twice are those of new less those of old."""
    if all(type(one) is np.ndarray for one in (new, old)):
        both = np.concatenate([new.astype(np.float64), -old.astype(np.float64)], axis=-1)
        return both if array.has_float64(xp, device) else both.tolist()  # as a list it loses nothing
    wide = [angles.frequencies(one, xp, device) for one in (new, old)]
    return xp.concat([wide[0], -wide[1]], axis=-1)
