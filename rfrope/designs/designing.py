"""From a kernel to the rotation of a model's heads, with the error that it reaches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rfrope._core import array, capacity, random
from rfrope._core.arguments import positive, show, whole
from rfrope.designs.errors import error, lower_bound
from rfrope.designs.optimising import read_range
from rfrope.designs.sampling import check_design, read_kernels, records, sample
from rfrope.kernels import Kernel
from rfrope.rotation.provenance import Provenance
from rfrope.rotation.rope import Rope


def design(
    kernel: Kernel | str | Sequence[Kernel | str],
    *,
    head_dim: int,
    context: int | Sequence[int],
    heads: int | None = None,
    design: str = "auto",
    rng: Any = None,
    rotary_dim: int | None = None,
    ladder: tuple[float, float] | None = None,
    norm: str | None = None,
    pairing: str = "half",
    xp: Any = None,
    device: Any = None,
    dtype: Any = None,
) -> Rope:
    """Make the frequencies of a kernel for a model's heads, and say how well they realise it over the context.

    Parameters
    ----------
    kernel : Kernel or str, or a sequence of them
        What to realise; a string is read by `rfrope.kernels.parse`. A sequence has one kernel for each head.
    head_dim : int
        Features of a head, even.
    context : int or sequence of int
        How many positions, at least 2; one number or one for each axis.
    heads : int, optional
        Number of heads, each with a set of its own; one set for all unless given.
    design : str
        How frequencies are made; see `sample`.
    rng : None, int, sequence of ints or numpy.random.Generator
        Seed of the randomised designs. None takes fresh entropy, which `source` then holds, so that the set can be made
        again.
    rotary_dim : int, optional
        Features of a head that are turned, even; all unless given.
    ladder : (first, last), optional
        Scales of the kernel from the first head to the last, at equal ratios; with one kernel and several heads.
    norm : {"rms", "sup"}, optional
        The error that the design "optimised" lowers; "rms" unless given.
    pairing : {"half", "interleaved"}
        That of the model.
    xp, device, dtype
        As in `sample`.

    Returns
    -------
    Rope
        Frequencies ``(D,)``, ``(D, k)`` or ``(H, D, k)``; in its ``source``

        - ``kernel``: its text, or one for each head;
        - ``design``: the design's own name where "auto" chose it; ``norm``; ``seed``, if the design is randomised and
          it was not a Generator;
        - ``error``: ``rms`` and ``sup`` of the worst head's mean kernel against Phi, over the whole lags below the
          context on every axis;
        - ``lower_bound``, of the design "optimised": the root mean square error that no set of so many blocks falls
          below for that head's kernel, 0 where none is known; see `rfrope.designs.optimise`.

    Raises
    ------
    ValueError
        For widths that are odd or do not fit, a context below 2, numbers of heads and kernels that differ, and as
        `sample`.
    TypeError
        For arguments of another kind.

    Examples
    --------
    >>> rope = design("gaussian(scale=32)", head_dim=64, context=512, design="optimised")
    >>> rope
    Rope(32 frequencies, pairing='half', head_dim=64, context=512)
    >>> rope.source.design, bool(rope.source.error["sup"] < 0.02)
    ('optimised', True)
    """
    width = even("head_dim", head_dim)
    turned = width if rotary_dim is None else even("rotary_dim", rotary_dim, most=width)
    kernels = _read_kernels_of_heads(kernel, heads, ladder)
    several = len(kernels) > 1
    lengths = read_range(kernels[0], context, "context", least=2)
    reach = tuple(length - 1 for length in lengths)
    chosen = {check_design(design, each) for each in kernels}
    seed = _seed(rng) if any(record.randomised for record in records() if record.name in chosen) else None
    norm = norm or "rms" if design == "optimised" else norm
    made = sample(
        kernels if several else kernels[0],
        turned // 2,
        rng=rng if seed is None else seed,
        design=design,
        heads=None if several else heads,
        max_lag=reach if design in ("optimised", "balanced") else None,
        norm=norm,
    )
    sets = made.reshape(-1, turned // 2, kernels[0].ndim)
    if np.all(sets == sets[0]) and not several:  # the design is deterministic
        sets = sets[:1]
    errors = [error(kernels[h % len(kernels)], omega, reach) for h, omega in enumerate(sets)]
    worst = max(range(len(errors)), key=lambda h: errors[h].rms)
    source = Provenance(
        kernel=tuple(map(repr, kernels)) if several else repr(kernels[0]),
        design=chosen.pop() if len(chosen) == 1 else design,
        norm=norm,
        seed=seed,
        error={"rms": max(each.rms for each in errors), "sup": max(each.sup for each in errors)},
        lower_bound=lower_bound(kernels[worst % len(kernels)], turned // 2, reach) if design == "optimised" else None,
    )
    return Rope(
        array.placed(made, xp, device, dtype),
        pairing=pairing,
        head_dim=width,
        context=lengths[0] if len(lengths) == 1 else lengths,
        source=source,
    )


def even(name: str, value: Any, most: int = 2**32 - 2) -> int:
    """Return an even number of features, at least 2."""
    number = whole(name, value, 2)
    if number % 2 or number > most:
        raise ValueError(f"{name} is {number}; expected an even number from 2 to {most}")
    return number


def _read_kernels_of_heads(kernel: Any, heads: Any, ladder: Any) -> list[Kernel]:
    """One kernel for all heads, or one for each."""
    chosen = list(read_kernels(kernel))
    if heads is not None and len(chosen) > 1 and whole("heads", heads, 1) != len(chosen):
        raise ValueError(f"heads is {heads} but kernel has {len(chosen)} kernels; expected one number, or no heads")
    if heads is not None:
        whole("heads", heads, 1)
    if ladder is None:
        return chosen
    if len(chosen) > 1 or heads is None:
        raise ValueError(f"ladder is {show(ladder)}; expected one kernel with it, and heads")
    if not isinstance(ladder, list | tuple) or len(ladder) != 2:
        raise TypeError(f"ladder is {show(ladder)}; expected two scales, those of the first and the last head")
    heads = capacity.count("heads", heads, 1, each=2000.0)
    first, last = (positive(f"ladder[{i}]", value) for i, value in enumerate(ladder))
    return [_rescale(chosen[0], scale) for scale in np.geomspace(first, last, heads).tolist()]


def _rescale(kernel: Kernel, scale: float) -> Kernel:
    """Return a kernel of another scale, of so few digits that its text is the kernel."""
    if not isinstance(getattr(kernel, "scale", None), float) or not dataclasses.is_dataclass(kernel):
        raise ValueError(
            f"kernel is {kernel!r}, which has no single scale; expected one such as gaussian with a ladder"
        )
    return dataclasses.replace(kernel, scale=float(f"{scale:.6g}"))


def _seed(rng: Any) -> Any:
    """Return a seed that can be written down: what came, or fresh entropy; None for a generator, which has a state."""
    if rng is None:
        return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]
    if isinstance(rng, list | tuple):
        random.key_from_rng(rng)
        return [int(each) for each in rng]
    return int(rng) if isinstance(rng, int | np.integer) and not isinstance(rng, bool) else None
