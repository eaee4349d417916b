"""Cached keys, rotated to another Rope or to other positions."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks, libraries
from rfrope._core.angles import Angles
from rfrope._core.array import Array
from rfrope._core.lazy import JAX
from rfrope.rotation import turning
from rfrope.rotation.rope import Rope, pairing_for, turned_by_rope
from rfrope.rotation.turning import rotate

_FARTHEST = 2**53


@array.select_device
def rerotate(k: Array, positions: Array, old: Rope | Array, new: Rope | Array, *, out: Array | None = None) -> Array:
    """Turn keys rotated by one Rope into the same keys rotated by another.

    For a cache whose Rope changes: a dynamic scheme that grew with the text, another base, another design.

    Parameters
    ----------
    k : array_like, (..., d)
        Rotated keys (or queries) of a real floating dtype, d even and at least 2D of either Rope; for polar Ropes 2D.
    positions : array_like
        Their positions: any shape ``P`` if both Ropes have frequencies ``(D,)``, else ``(*P, k)``.
    old, new : Rope or array_like
        Rope of the given keys, and of the result, with their attention factors. Bare frequencies, in radians per unit
        of position, are a Rope with pairing "half".
    out : array, optional
        Output array. ``out=k`` works in place.

    Returns
    -------
    array, (..., d)
        ``new.rotate(old.rotate(k, positions, inverse=True), positions)``, with the dtype and device of `k`; `out` if
        given.

    Raises
    ------
    ValueError
        See `rotate`. Also if the Ropes take positions of different shapes, or only one is polar.
    TypeError
        See `rotate`.

    See Also
    --------
    rotation.relocate, models.can_relocate

    Notes
    -----
    If both Ropes have the same pairing and shape of frequencies, each block is rotated once, by ``p new - p old``, with
    cos and sin within 1e-15 for this exact phase: one rounding to the dtype of `k`, for phases of either Rope up to
    2**53, as in `rotate`. Otherwise the keys are rotated back and then forth, with two roundings. Errors of repeated
    calls add up; the page on cached keys has their size.

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
    k, (old, new), pairings = _read_keys(k, old=old, new=new)
    if old.polar != new.polar:
        raise ValueError(f"old has polar={old.polar} and new polar={new.polar}; expected the same")
    before, after = _alike(old.vectors, new.vectors)
    constants = {"positions": positions, "old": before, "new": after}
    xp, device = array.shared(constants, k=k, out=out)
    xp = array.space_of_constants(xp, constants)
    # one axis beside several takes positions of the same form
    which, one = max((("old", old.vectors), ("new", new.vectors)), key=lambda named: named[1].ndim)
    read = angles.check_angles(positions, one, None, xp, device, frequencies_name=f"frequencies of {which}")
    at = read.positions
    blocks.check_rotation(k, read.shape, pairings[0], None, out, ("k", "positions", "old", "new"), at, before, after)
    if pairings[0] != pairings[1] or before.shape != after.shape:
        same = pairings[1] if old.polar else None  # magnitudes in the order of the new pairing
        features = rotate(
            k, at, before, pairing=pairings[0], out_pairing=same, scale=old.attention_factor, inverse=True
        )
        return rotate(features, at, after, pairing=pairings[1], scale=new.attention_factor, out=out)
    scale = new.attention_factor / old.attention_factor
    both = _concatenate_difference(after, before, xp, device)
    return rotate(k, xp.concat([at, at], axis=-1), both, pairing=pairings[0], scale=scale, out=out)


def relocate(
    k: Array, old_positions: Array, new_positions: Array, rope: Rope | Array, *, out: Array | None = None
) -> Array:
    """Turn keys rotated at some positions into the same keys rotated at others.

    For a cache whose keys move: tokens before them were dropped (context shift), or a text cached alone is reused
    elsewhere in a prompt (prefix reuse, CacheBlend).

    Parameters
    ----------
    k : array_like, (..., d)
        Rotated keys of a real floating dtype, d even and at least 2D; for a polar Rope 2D. With latent attention, the
        ``rotary_dim`` features that are cached beside the latent ones.
    old_positions, new_positions : array_like
        Positions before and after: any shape ``P`` for frequencies ``(D,)`` without sections, else ``(*P, k)``. They
        broadcast against each other.
    rope : Rope or array_like
        Rope of the keys, with their pairing in the cache. Bare frequencies, in radians per unit of position, are a Rope
        with pairing "half".
    out : array, optional
        Output array. ``out=k`` works in place.

    Returns
    -------
    array, (..., d)
        Same dtype and device as `k`; `out` if given.

    Raises
    ------
    ValueError
        See `rotate`. Also if old and new positions do not broadcast, or are whole and more than 2**53 apart.
    TypeError
        See `rotate`.

    See Also
    --------
    rotation.rerotate : for a Rope that changes, as when its scheme depends on the length of the text.
    models.can_relocate : whether the cached keys of a model may move, from its config.

    Notes
    -----
    Each block is rotated once, by ``(new - old) omega``, with cos and sin within 1e-15 for this exact phase up to
    2**53, and beyond in proportion to it. The keys already contain the attention factor, so it is not applied, as
    ``rope.rotate(k, new - old)`` would. Integer positions are subtracted as integers, so differences are exact up to
    2**53 at any position (2**31 in JAX without x64); larger differences raise on the CPU, and are rounded on devices
    and in traces. Float positions are not subtracted: each has its own exact phase, ``new omega`` and ``old omega``, up
    to 2**53. The page on cached keys has the error after many moves, which is that of rounding to the dtype of `k`.

    Examples
    --------
    Of 48 cached tokens the first 16 are dropped, and the others move up:

    >>> import numpy as np, rfrope
    >>> rope = rfrope.scaling.yarn(rfrope.geometric(32), 4.0, original_max_position_embeddings=4096)
    >>> k = np.random.default_rng(0).standard_normal((8, 48, 64))  # heads, tokens, head_dim
    >>> cached = rope.rotate(k, np.arange(48))[:, 16:]
    >>> moved = relocate(cached, np.arange(16, 48), np.arange(32), rope, out=cached)  # in place
    >>> bool(np.allclose(moved, rope.rotate(k[:, 16:], np.arange(32)), atol=1e-14))
    True
    >>> round(rope.attention_factor, 4)  # inside of the keys once, and not twice
    1.1386
    """
    moved = _relocated_at_once(k, old_positions, new_positions, rope, out)
    return _read_and_relocated(k, old_positions, new_positions, rope, out) if moved is None else moved


@array.select_device
def _read_and_relocated(k: Array, old_positions: Array, new_positions: Array, rope: Any, out: Array | None) -> Array:
    """Read the arguments of `relocate` with all checks, and turn."""
    k, (rope,), (pairing,) = _read_keys(k, rope=rope)
    vectors = angles.frequencies_of(rope, None, None, k, "k")
    constants = {"old_positions": old_positions, "new_positions": new_positions, "rope": vectors}
    xp, device = array.shared(constants, k=k, out=out)
    xp = array.space_of_constants(xp, constants)
    old, new = (
        angles.check_angles(constants[name], vectors, None, xp, device, name).positions
        for name in ("old_positions", "new_positions")
    )
    shape = array.broadcast_shapes({"old_positions": old.shape, "new_positions": new.shape})
    old, new = (xp.broadcast_to(one, shape) for one in (old, new))
    origin = ("k", "old_positions and new_positions", "rope")
    phases = Angles(new, angles.add_axis_dimension(vectors, vectors), None, xp).shape
    blocks.check_rotation(k, phases, pairing, None, out, origin, new, vectors)
    if array.is_integer(old) and array.is_integer(new):
        _check_differences(new, old)
        bits = 32 if array.library_of(xp) is JAX and not array.has_float64(xp) else 64
        moved = angles.from_vectors(array.to_words(new, bits, xp) - array.to_words(old, bits, xp), vectors)
        return rotate(k, moved, vectors, pairing=pairing, out=out)
    both = _concatenate_difference(*_alike(vectors, vectors), xp, device)
    moved = xp.concat([array.widen(new, xp), array.widen(old, xp)], axis=-1)
    return rotate(k, moved, both, pairing=pairing, out=out)


def _relocated_at_once(k: Any, old: Any, new: Any, rope: Any, out: Any) -> Any:
    """Move small dense keys by whole positions in one pass; return None where all checks are needed."""
    if not (type(k) is np.ndarray or libraries.may_reach_loops(k)) or not isinstance(rope, Rope) or rope.polar:
        return None
    dense = turning.load_fast_path()
    moved = dense and dense.subtract_positions(k, new, old)
    return None if moved is None else turned_by_rope(rope, "_flat_move", k, moved, False, out)


def _check_differences(new: Array, old: Array) -> None:
    """Refuse whole positions too far apart for an exact phase, where checking is free."""
    if not array.has_host_values(new) or not array.has_host_values(old) or 0 in new.shape:
        return
    ends = [array.to_host(one) for one in (new, old)]
    apart = np.abs(np.subtract(*[one.astype(np.float64) for one in ends]))
    for place in np.argwhere(apart >= _FARTHEST):
        one, other = (int(end[tuple(place)]) for end in ends)
        if abs(one - other) > _FARTHEST:
            raise ValueError(
                f"new_positions has {one} where old_positions has {other}, {one - other} apart; expected differences "
                f"of at most 2**53 = {_FARTHEST}, up to which phases are exact"
            )


def _read_keys(k: Any, **ropes: Any) -> tuple[Array, list[Rope], list[str]]:
    """Read keys and the Ropes that turn them, by their names; return both, and the pairing of each Rope."""
    for name, one in ropes.items():
        if not isinstance(one, Rope):
            xp, device = array.shared(**{name: one})
            angles.read_frequencies(one, xp, device, name=name)
            ropes[name] = Rope(one)
    k = blocks.features(k, array.shared(k=k)[0], "k")
    for name, one in ropes.items():
        blocks.check_width(k, one.n_blocks, name, "k")
        if one.polar and k.shape[-1] != 2 * one.n_blocks:
            raise ValueError(
                f"k has shape {tuple(k.shape)}; expected {2 * one.n_blocks} polar features: {name} has {one.n_blocks} "
                "frequencies"
            )
    pairings = [pairing_for(one, k[..., : one.n_blocks] if one.polar else k, "k") for one in ropes.values()]
    return k, [*ropes.values()], pairings


def _alike(old: Array, new: Array) -> tuple[Array, Array]:
    """Frequencies that take positions of one shape, ``(..., D, k)``."""
    with array.library(old).eager(old), array.library(new).eager(new):
        old, new = (angles.add_axis_dimension(one, one) for one in (old, new))
    if old.shape[-1] != new.shape[-1]:
        raise ValueError(
            f"old turns by {old.shape[-1]} position axes and new by {new.shape[-1]}; expected the same number, since "
            "the positions are the same"
        )
    return old, new


def _concatenate_difference(new: Array, old: Array, xp: ModuleType, device: Any) -> Any:
    """Frequencies ``(*H, D, 2k)`` whose phases at positions given twice are those of new less those of old."""
    if all(type(one) is np.ndarray for one in (new, old)):
        both = np.concatenate([new.astype(np.float64), -old.astype(np.float64)], axis=-1)
        return both if array.has_float64(xp, device) else both.tolist()  # as a list it loses nothing
    wide = [angles.read_frequencies(one, xp, device) for one in (new, old)]
    return xp.concat([wide[0], -wide[1]], axis=-1)
