"""Frequency sets for several position axes: images, video and volumes.

Each is a Rope with frequencies ``(D, k)``, or ``(H, D, k)`` with one set per head: row i is the direction and speed of
block i. Phases are ``positions @ frequencies^T``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.angles import frequencies_of, read_frequencies, read_numbers
from rfrope._core.arguments import LARGEST, choice, flag, positive, whole
from rfrope._core.array import Array, place_for_caller
from rfrope._core.quantiles import normal_quantile
from rfrope.rotation.pairings import assign_blocks, check_sections
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope, replace_fields

ORDERS = ("chunked", "interleaved")
_MOST_AXES = 1000  # for more of them powers of the generalised golden ratio overflow


@array.select_device
def axial(*sets: Array, order: str = "chunked") -> Rope:
    """Return a Rope that gives each set its own position axes and blocks.

    Parameters
    ----------
    *sets : Rope or array_like, radians per unit of position
        ``(D_j,)`` for one axis, ``(*H, D_j, k_j)`` for several; leading axes (heads) broadcast.
    order : {"chunked", "interleaved"}
        All blocks of the first set, then all of the second, and so on; or one block of each set in turn, as long as
        each lasts.

    Returns
    -------
    Rope
        Frequencies ``(*H, sum D_j, sum k_j)``, float64 where the library has it, with zeros where a block belongs to
        another set. Positions have coordinates in the order of the sets.

    Raises
    ------
    ValueError
        If there is no set, a set is a single number, leading axes do not broadcast, or the order is unknown.
    TypeError
        If sets are of different libraries, or a dtype is neither integer nor real floating.

    See Also
    --------
    mixed, golden_gate, rotation.grid_positions

    Notes
    -----
    The mean kernel is the mean of those of the sets, weighted by their blocks, not their product: between two tokens in
    the same row of an image, however far apart, the blocks of the other axis do not turn.

    Examples
    --------
    An image: positions are (row, column).

    >>> axial([1.0, 0.1], [1.0, 0.1]).frequencies
    array([[1. , 0. ],
           [0.1, 0. ],
           [0. , 1. ],
           [0. , 0.1]])
    >>> axial([1.0, 0.1, 0.01], [1.0], order="interleaved").frequencies
    array([[1.  , 0.  ],
           [0.  , 1.  ],
           [0.1 , 0.  ],
           [0.01, 0.  ]])
    """
    choice("order", order, ORDERS)
    if not sets:
        raise ValueError("axial got no set of frequencies; expected one for each axis")
    named = {f"sets[{j}]": frequencies_of(values) for j, values in enumerate(sets)}
    names = ("pairing", "attention_factor", "polar")
    kinds = {tuple(getattr(one, name) for name in names) for one in sets if isinstance(one, Rope)}
    if len(kinds) > 1:
        raise ValueError(f"sets differ in {', '.join(names)}: {sorted(kinds, key=str)}; expected the same")
    turned: dict[str, Any] = dict(zip(names, kinds.pop(), strict=True)) if kinds else {}
    xp, device = array.shared(**named)
    padded = _pad(named, xp, device)
    found = xp.concat(padded, axis=-2)
    if order == "interleaved":
        rounds = np.concatenate([np.arange(values.shape[-2]) for values in padded])
        places = array.from_host(np.argsort(rounds, kind="stable"), xp, device=array.device(found))
        found = xp.take(found, places, axis=-2)
    return Rope(found, source=Provenance(extra={"maker": "axial", "order": order}), **turned)


@array.select_device
def mixed(n_blocks: int, angles: Array, *, base: float = 10.0) -> Rope:
    """Return a Rope like RoPE-ViT's mixed one at initialisation: two perpendicular directions per head.

    Parameters
    ----------
    n_blocks : int
        D, half the rotated width; even.
    angles : array_like, radians
        Direction of the first half of the blocks, one per head: ``(H,)``, or any shape. The published models draw them
        uniformly from a full turn, and then learn the vectors; nothing is drawn here.
    base : float
        Positive; 10 in the published models, 100 in their axial ones (`axial` of two `geometric` sets).

    Returns
    -------
    Rope
        Frequencies (H, D, 2), float64 where the library has it. Blocks i < D/2 point along the angle, the others a
        quarter turn further, with magnitudes ``base ** (-4i / d)``, i = 0, ..., D/2 - 1, d = 2D, in each half.

    Raises
    ------
    ValueError
        If `n_blocks` is negative or odd, `base` is not positive and finite, or an angle is not finite.
    TypeError
        If `n_blocks` is not a whole number, or angles are neither integers nor real floats.

    See Also
    --------
    axial, golden_gate

    Notes
    -----
    Source: Heo et al., "Rotary position embedding for vision transformer" (2024). Gradients reach the angles.

    Examples
    --------
    >>> mixed(4, [0.0]).frequencies.round(4)
    array([[[ 1.    ,  0.    ],
            [ 0.3162,  0.    ],
            [-0.    ,  1.    ],
            [-0.    ,  0.3162]]])
    """
    n_blocks = whole("n_blocks", n_blocks)
    base = positive("base", base, minimum=1.0 / LARGEST, maximum=LARGEST)
    if n_blocks % 2:
        raise ValueError(f"n_blocks is {n_blocks}; expected an even number: half of the blocks for each direction")
    xp, _ = array.shared(angles=angles)
    angles = read_numbers("angles", angles, xp)
    half = n_blocks // 2
    index = xp.arange(half, dtype=angles.dtype, device=array.device(angles))
    sizes = base ** (-index / max(half, 1))
    cos, sin = xp.cos(angles)[..., None] * sizes, xp.sin(angles)[..., None] * sizes
    vectors = xp.stack([xp.concat([cos, -sin], axis=-1), xp.concat([sin, cos], axis=-1)], axis=-1)
    return Rope(vectors, source=Provenance(extra={"maker": "mixed", "base": base}))


def golden_gate(
    n_blocks: int,
    *,
    low: float,
    high: float,
    ndim: int = 2,
    heads: int | None = None,
    zero_blocks: int = 0,
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Rope:
    """Return a golden gate Rope: log-spaced magnitudes, and directions spread evenly over all blocks.

    No axis is special, and with two axes or more no two blocks of any head share a direction.

    Parameters
    ----------
    n_blocks : int
        D, half the rotated width.
    low, high : float, radians per unit of position
        Smallest and largest magnitude, ``0 < low <= high``.
    ndim : int
        k, the number of position axes, at least 1.
    heads : int, optional
        H. Directions continue from head to head; magnitudes are the same in each.
    zero_blocks : int
        Number of blocks, the first of each head, with frequency 0; at most D.
    xp, device, dtype
        See `geometric`.

    Returns
    -------
    Rope
        Frequencies (D, k), or (H, D, k) if ``heads`` is given.

    Raises
    ------
    ValueError
        If a count is negative or too large, or `low` and `high` are not as described above.
    TypeError
        If a count is not a whole number, `low` or `high` not a number, or `xp` not an array library.

    See Also
    --------
    mixed, axial

    Notes
    -----
    Magnitudes are ``low (high / low)^(i / (m - 1))``, i = 0, ..., m - 1, with m = D - zero_blocks. Block n, counted
    from 0 through all heads, zero blocks included, has

    - for two axes the angle ``n pi (sqrt(5) - 1) / 2``: opposite directions have the same cosine, so half a turn is
      divided by the golden ratio;
    - for any other number of axes the direction of a normal vector: quantiles of the normal law at the fractional
      parts of ``(n + 1) g^-j``, j = 1, ..., k, with g the positive root of ``g^(k+1) = g + 1`` (the golden ratio for
      k = 1, 1.2207 for k = 3).

    Source: Xiong, "On n-dimensional rotary positional embeddings" (2025, https://jerryxio.ng/posts/nd-rope/), for both
    formulas; the published code iterates ten times for g, which is solved here to float64.

    Examples
    --------
    >>> golden_gate(4, low=0.1, high=1.0).frequencies.round(4)
    array([[ 0.1   ,  0.    ],
           [-0.0781,  0.2008],
           [-0.3423, -0.3135],
           [ 0.8968, -0.4425]])
    """
    n_blocks, ndim = whole("n_blocks", n_blocks), whole("ndim", ndim, 1, _MOST_AXES)
    zeros, n_heads = whole("zero_blocks", zero_blocks), 1 if heads is None else whole("heads", heads)
    low, high = positive("low", low), positive("high", high, maximum=LARGEST)
    if low > high:
        raise ValueError(f"low is {low} and high is {high}; expected low <= high")
    if zeros > n_blocks:
        raise ValueError(f"zero_blocks is {zeros}; expected at most n_blocks, {n_blocks}")
    share = np.linspace(0.0, 1.0, n_blocks - zeros)
    sizes = np.concatenate([np.zeros(zeros), low ** (1.0 - share) * high**share])
    n = n_heads * n_blocks
    if ndim == 2:  # angles, up to half turns, are multiples of the golden section of half a turn
        half_turns = np.arange(n) * (0.5 * (math.sqrt(5.0) - 1.0))
        angles = math.pi * (half_turns - 2.0 * np.floor(0.5 * half_turns))
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    else:  # a Kronecker sequence in the cube, of the positive root of g ** (ndim + 1) = g + 1, from above by Newton
        g, previous = 2.0, math.inf
        while g < previous:
            previous, g = g, g - (g ** (ndim + 1) - g - 1.0) / ((ndim + 1) * g**ndim - 1.0)
        normal = normal_quantile(np.arange(1, n + 1)[:, None] * previous ** -np.arange(1.0, ndim + 1.0) % 1.0)
        directions = normal / np.linalg.norm(normal, axis=-1, keepdims=True)
    vectors = sizes[:, None] * np.reshape(directions, (n_heads, n_blocks, ndim))
    source = Provenance(extra={"maker": "golden_gate", "low": low, "high": high})
    return Rope(place_for_caller(vectors[0] if heads is None else vectors, xp, device, dtype), source=source)


@array.select_device
def mrope(frequencies: Array, sections: Sequence[int], *, interleaved: bool = False) -> Rope:
    """Return a multimodal Rope, which divides the blocks of one ladder among the position axes.

    Parameters
    ----------
    frequencies : Rope or array_like, (D,), radians per unit of position
        The ladder: `geometric`, or a scaled one.
    sections : sequence of int
        Number of blocks of each axis, with sum D: ``mrope_section`` of a published config, where axes are time, height
        and width.
    interleaved : bool
        False, as in Qwen2-VL: the blocks of an axis are neighbours, so time turns fastest. True, as in Qwen3-VL
        (``mrope_interleaved``): block i belongs to axis ``i mod k`` if that is not 0 and ``i < k * sections[axis]``,
        otherwise to axis 0, so each axis has fast and slow blocks.

    Returns
    -------
    Rope
        Frequencies (D, len(sections)), float64 where the library has it, with one nonzero number in each row. Other
        fields of a given Rope are kept.

    Raises
    ------
    ValueError
        If frequencies are not (D,), sections do not sum to D, or, when interleaved, an axis gets fewer blocks than its
        section.
    TypeError
        If a section is not a whole number, `interleaved` is not a bool, or frequencies are neither integers nor real
        floats.

    See Also
    --------
    rotation.mrope_positions, axial

    Notes
    -----
    If all coordinates of a position are equal, as in text, the phases are those of the ladder itself.

    Examples
    --------
    >>> mrope([1.0, 0.5, 0.25, 0.125], (2, 1, 1)).frequencies
    array([[1.   , 0.   , 0.   ],
           [0.5  , 0.   , 0.   ],
           [0.   , 0.25 , 0.   ],
           [0.   , 0.   , 0.125]])
    >>> mrope([1.0, 0.5, 0.25, 0.125], (2, 1, 1), interleaved=True).frequencies
    array([[1.   , 0.   , 0.   ],
           [0.   , 0.5  , 0.   ],
           [0.   , 0.   , 0.25 ],
           [0.125, 0.   , 0.   ]])
    """
    ladder = frequencies.frequencies if isinstance(frequencies, Rope) else frequencies
    xp, device = array.shared(frequencies=ladder)
    omega = read_frequencies(ladder, xp, device, shapes="line")[:, 0]
    interleaved = flag("interleaved", interleaved)
    lengths = check_sections(sections, omega.shape[0], interleaved)
    assigned = assign_blocks(omega, lengths, interleaved)
    return replace_fields(frequencies, frequencies=assigned, sections=None, interleaved=False)


# -- the mathematics ---------------------------------------------------------------------------------------------------


def _pad(sets: dict[str, Any], xp: ModuleType, device: Any) -> list[Array]:
    """Sets with zero columns for the axes of all others, and their leading axes broadcast."""
    arrays = [read_frequencies(values, xp, device, name=name) for name, values in sets.items()]
    leading: tuple[int, ...] = ()
    for name, values in zip(sets, arrays, strict=True):
        leading = array.broadcast_shapes({"those before": leading, f"the leading axes of {name}": values.shape[:-2]})
    total, before, padded = sum(values.shape[-1] for values in arrays), 0, []
    for values in arrays:
        blocks, axes = values.shape[-2:]
        left, right = (
            xp.full((*leading, blocks, width), 0.0, dtype=values.dtype, device=array.device(values))
            for width in (before, total - before - axes)
        )
        padded.append(xp.concat([left, xp.broadcast_to(values, (*leading, blocks, axes)), right], axis=-1))
        before += axes
    return padded


@array.select_device
def isotropic(magnitudes: Array, n_directions: int, *, ndim: int = 2) -> Rope:
    """Return a Rope with every magnitude along the same number of evenly spread directions.

    Parameters
    ----------
    magnitudes : array_like, (M,), radians per unit of position
        Usually a ladder (`geometric`), or radii of a kernel.
    n_directions : int
        Directions of each magnitude, at least 1, in three axes 3 or 6; opposite ones have the same cosine.
    ndim : {2, 3}
        k, the number of position axes.

    Returns
    -------
    Rope
        Frequencies (M * n_directions, ndim), float64 where the library has it: all directions of the first magnitude,
        then all of the second, and so on.

    Raises
    ------
    ValueError
        If magnitudes are not (M,) or not finite, there is no direction, or another number than 3 or 6 in three axes, or
        `ndim` is neither 2 nor 3.
    TypeError
        If a count is not whole, or magnitudes are neither integers nor real floats.

    See Also
    --------
    mixed, golden_gate

    Notes
    -----
    In two axes, magnitude j has the angles ``pi (i + j / M) / n``, i = 0, ..., n - 1: equal steps, each ring rotated a
    little from the last. By the Jacobi-Anger expansion a ring of n equal steps has the mean kernel
    ``J_0(z) + 2 sum_l (+-1) J_(2nl)(z) cos(2nl phi)``, with z the magnitude times the length of the lag, so direction
    matters from order 2n on.

    In three axes, three directions are the axes of the octahedron and six those of the icosahedron, in the same
    orientation for every magnitude: spherical designs with as few lines as the bound of Delsarte, Goethals and Seidel
    (1977) allows. `golden_gate` spreads any other number. Gradients reach the magnitudes.

    Examples
    --------
    >>> isotropic([1.0, 0.5], 2).frequencies.round(4)
    array([[ 1.    ,  0.    ],
           [ 0.    ,  1.    ],
           [ 0.3536,  0.3536],
           [-0.3536,  0.3536]])
    >>> isotropic([2.0], 3, ndim=3).frequencies
    array([[2., 0., 0.],
           [0., 2., 0.],
           [0., 0., 2.]])
    """
    ndim, n = whole("ndim", ndim, 2), whole("n_directions", n_directions, 1)
    if ndim > 3:
        raise ValueError(f"ndim is {ndim}; expected 2 or 3")
    if ndim == 3 and n not in (3, 6):
        raise ValueError(f"n_directions is {n}; expected 3 or 6 in three axes (golden_gate spreads any number)")
    xp, device = array.shared(magnitudes=magnitudes)
    sizes = read_numbers("magnitudes", magnitudes, xp)
    if sizes.ndim != 1:
        raise ValueError(f"magnitudes has shape {tuple(sizes.shape)}; expected (M,)")
    rings = sizes.shape[0]

    if ndim == 2:
        turns = (np.arange(n) + np.arange(rings)[:, None] / max(rings, 1)) / n
        units = np.stack([np.cos(math.pi * turns), np.sin(math.pi * turns)], axis=-1)
        units[np.abs(units) < 1e-16] = 0.0
    else:
        golden = 0.5 * (1.0 + math.sqrt(5.0))
        one = np.array([[0.0, 1.0, golden], [0.0, 1.0, -golden]]) / math.sqrt(golden + 2.0)
        lines = np.eye(3) if n == 3 else np.concatenate([np.roll(one, shift, axis=1) for shift in range(3)])
        units = np.broadcast_to(lines, (rings, n, 3)).copy()
    found = sizes[:, None, None] * array.from_host(units, xp, device=device, dtype=sizes.dtype)
    return Rope(xp.reshape(found, (rings * n, ndim)), source=Provenance(extra={"maker": "isotropic"}))
