"""Frequencies as a function of their kernel's parameters, at the fixed points of a design."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from rfrope._core import angles, array, random
from rfrope._core.arguments import LARGEST, show
from rfrope._core.array import Array
from rfrope.designs import sets
from rfrope.kernels import Kernel, parse
from rfrope.kernels.algebra import Axes, Mixture
from rfrope.kernels.base import Product, Rescaled, Warped
from rfrope.kernels.families import Family, Scaled
from rfrope.kernels.gradients import fix_points, list_movable, warn_of_tails
from rfrope.kernels.parameters import multiply, split
from rfrope.kernels.registry import kernel as make_kernel
from rfrope.rotation.rope import Rope

_STEP = 2.0**-200  # imaginary, so that derivatives have no rounding of differences
_FORMS = {"exponent": "logit_exponent", "means": "relative_means"}  # names in which others than logarithms are learned


@dataclass(frozen=True, eq=False)
class LearnedKernel:
    """Frequencies as a function of a kernel's parameters, for training in any library.

    Attributes
    ----------
    kernel : Kernel
        The kernel of the first head, whose other parameters are fixed.
    points : ndarray, float64, (..., D, n_columns)
        Fixed points of the unit cube.
    shape : tuple of int
        Shape of the frequencies.
    parameters : dict of ndarray, float64
        Starting values by name, ``(*H, ...)``: one set for each set of frequencies. ``log_scale`` is the logarithm of a
        scale, and so for ``nu``, ``alpha``, ``bandwidth``, ``radius``, ``period``, ``low``, ``high`` and the ``scales``
        of a spectral mixture; ``relative_means`` are its means over its scales; ``logit_exponent`` is ``log(e / (2 -
        e))``. In a product, mixture or kernel of several axes, names end with the number of the part, from 1.

    See Also
    --------
    designs.learned_kernel

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.design("matern(nu=1.5, scale=64)", head_dim=8, context=512, design="quantile")
    >>> law = rfrope.designs.learned_kernel(rope)
    >>> {name: float(value.round(4)) for name, value in law.parameters.items()}
    {'log_nu': 0.4055, 'log_scale': 4.1589}
    """

    kernel: Kernel
    points: np.ndarray
    shape: tuple[int, ...]
    parameters: dict[str, np.ndarray]

    @classmethod
    def make(cls, law: Kernel, points: np.ndarray, shape: tuple[int, ...]) -> LearnedKernel:
        """Return the frequencies of points by the parameters of one kernel, with which all heads start."""
        starts = {n: np.broadcast_to(v, (*points.shape[:-2], *v.shape)) for n, v in _parameters(law).items()}
        return cls(law, points, shape, starts)

    def frequencies(self, parameters: Mapping[str, Array]) -> Array:
        """Return the frequencies of parameters, differentiable in each.

        Parameters
        ----------
        parameters : mapping of str to array_like
            All of `parameters`, in their shapes, of one library.

        Returns
        -------
        array, radians per unit of position, float64 where the library has it
            Of the shape of the Rope's frequencies.

        Raises
        ------
        ValueError
            If a parameter is missing or unknown, or has another shape.
        TypeError
            If one is not a real number, or they are of several libraries.

        Examples
        --------
        >>> import numpy as np
        >>> import rfrope
        >>> law = rfrope.designs.learned_kernel(rfrope.Rope(rfrope.geometric(4)))
        >>> longer = law.parameters | {"log_low": np.log(1e-6)}  # the base becomes a million
        >>> bool(np.allclose(law.frequencies(longer), rfrope.geometric(4, base=1e6)))
        True
        """
        if parameters.keys() != self.parameters.keys():
            raise ValueError(f"parameters has {sorted(parameters)}; expected {sorted(self.parameters)}")
        xp, device = array.shared(**parameters)
        rows = []
        for name, start in self.parameters.items():
            x = array.widen(array.numbers(parameters[name], xp, name=name, device=device), xp)
            if tuple(x.shape) != start.shape:
                raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {start.shape}")
            rows.append(xp.reshape(x, (*self.points.shape[:-2], -1)))
        return self.move(xp.concat(rows, axis=-1), xp)

    def move(self, row: Array, xp: ModuleType) -> Array:
        """Return the frequencies of parameters ``(*H, P)`` in one row for each set."""
        parameters, end = {}, 0
        for name, size in self.sizes.items():
            start, end = end, end + math.prod(size)
            parameters[name] = xp.reshape(row[..., None, start:end], (*row.shape[:-1], 1, *size))
        return xp.reshape(self._fixed(parameters, xp), self.shape)

    def tabulate(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return frequencies in their shape, and their derivatives ``(*H, D, k, P)``, by complex steps.

        By the logarithm of the length of a law in one axis, the last of its parameters, that is minus the frequency, or
        0 where that was cut.
        """
        law, xp = self.kernel, array.named_namespace(np)
        has_length = isinstance(law, Scaled) and law.ndim == 1 and [*self.parameters][-1] == "log_scale"
        n = row.shape[-1] - has_length
        steps = 1j * _STEP * np.eye(n, n + has_length) if n else np.zeros((1, 1))
        moved = [self.move(row + step, xp) for step in steps]
        omega = moved[0].real.copy()  # dense, as calls without checks need it
        slopes = np.empty((*self.points.shape[:-1], omega.size // self.points[..., 0].size, n + has_length))
        for i, one in enumerate(moved[:n]):
            slopes[..., i] = one.imag.reshape(slopes.shape[:-1]) / _STEP
        if has_length:
            slopes[..., n] = np.where(np.abs(omega) < LARGEST, -omega, 0.0).reshape(slopes.shape[:-1])
        return omega, slopes

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter for one point: what all axes share has a last axis of its own."""
        found = {name: value.shape[self.points.ndim - 2 :] for name, value in self.parameters.items()}
        return {n: v if len(v) > n.startswith(("relative_means", "log_scales")) else (*v, 1) for n, v in found.items()}

    @cached_property
    def _fixed(self) -> Callable[[Mapping[str, Array], ModuleType], Array]:
        return _fix(self.kernel, self.points, iter(_families(self.kernel)))

    def __reduce__(self) -> tuple[Any, ...]:
        return LearnedKernel, (self.kernel, self.points, self.shape, self.parameters)

    def kernels(self, parameters: Mapping[str, Array]) -> tuple[Kernel, ...]:
        """Return the kernels of parameters, one for each set of frequencies, with numbers of 15 digits.

        Parameters
        ----------
        parameters : mapping of str to array_like
            See `frequencies`.

        Raises
        ------
        ValueError
            If a parameter is outside the range of its kernel.

        Examples
        --------
        >>> import rfrope
        >>> law = rfrope.designs.learned_kernel(rfrope.Rope(rfrope.geometric(4)))
        >>> law.kernels(law.parameters)
        (log_uniform(low=0.0001, high=1.0),)
        """
        host = {name: np.asarray(array.to_host(value), np.float64) for name, value in parameters.items()}
        families = _families(self.kernel)

        def rebuild(head: tuple[int, ...]) -> Kernel:
            own = {name: value[head] for name, value in host.items()}
            return _rebuild(self.kernel, iter([_values(names, own, np) for _, names in families]))

        return tuple(map(rebuild, np.ndindex(self.points.shape[:-2])))


def learned_kernel(rope: Rope) -> LearnedKernel:
    """Return the frequencies of a Rope as a function of the parameters of its kernel.

    Parameters
    ----------
    rope : Rope
        Of `design` with the design "quantile", or "iid", "stratified", "shifted", "sobol" or "halton" and a seed, for
        one head or for several, each with parameters of its own. A geometric ladder of frequencies, as RoPE's
        ``base ** (-i / D)``, counts as ``log_uniform(low=1/base, high=1)``.

    Returns
    -------
    LearnedKernel

    Raises
    ------
    ValueError
        If `source` does not say from which kernel and points the frequencies came, or they have been changed since; if
        the kernel has nothing to learn, heads have kernels of different form, or an exponent is 2, where derivatives by
        it are infinite.
    TypeError
        If `rope` is not a Rope.

    See Also
    --------
    designs.LearnedKernel, layers.torch.RotaryEmbedding

    Notes
    -----
    Points stay, parameters move: at fixed points a frequency is a smooth function of them. Weights of a mixture and
    the scale of a periodic kernel stay too, since with them frequencies jump.

    Averaged over random points, derivatives of ``cos(lag omega)`` estimate that of Phi without bias if ``abs(omega)``
    has a mean, and with a finite variance if its square has one. ``exponential``, ``matern`` with nu <= 1/2 and
    ``power_exponential`` with an exponent <= 1 have no mean: more points do not come closer. ``matern`` with nu <= 1
    and ``power_exponential`` with an exponent below 2 have no variance. With a randomised design a warning says so.

    Examples
    --------
    In JAX, with a dict of parameters:

    >>> import rfrope
    >>> law = learned_kernel(rfrope.design("gaussian(scale=32)", head_dim=8, context=512, design="quantile"))
    >>> def loss(parameters):
    ...     return rfrope.analysis.mean_kernel(16.0, law.frequencies(parameters))
    >>> round(float(loss(law.parameters)), 3)  # jax.grad(loss)(law.parameters)
    0.898
    """
    if not isinstance(rope, Rope):
        raise TypeError(f"rope is {show(rope)}; expected a Rope, as rfrope.design returns it")
    omega = np.asarray(array.to_host(rope.frequencies), np.float64)
    vectors = angles.add_axis_dimension(omega, omega)
    if vectors.ndim > 3:
        raise ValueError(f"the Rope has frequencies of shape {omega.shape}; expected at most one axis of heads")
    heads = vectors.shape[:-2]
    if rope.source.kernel is None or (rope.source.design is None and "log_uniform" in str(rope.source.kernel)):
        laws, points = _read_ladder(vectors)
    else:
        laws, points = _read_design(rope, vectors)
    held = [_parameters(law) for law in laws]
    if not held[0]:
        raise ValueError(f"kernel is {laws[0]!r}, which has no parameter that moves frequencies smoothly")
    if any(one.keys() != held[0].keys() for one in held):
        raise ValueError(f"heads have kernels of different form, as {laws[0]!r}; expected one family for all")
    starts = {name: np.reshape([one[name] for one in held], (*heads, *np.shape(held[0][name]))) for name in held[0]}
    if rope.source.design not in (None, "quantile"):
        for family, _ in _families(laws[0]):
            warn_of_tails(family, stacklevel=3)
    found = LearnedKernel(laws[0], points.reshape(*heads, *points.shape[-2:]), omega.shape, starts)
    narrow = array.dtype_name(rope.frequencies) == "float32"
    if not np.allclose(found.frequencies(starts), omega, rtol=1e-5 if narrow else 1e-9, atol=1e-7 if narrow else 1e-11):
        raise ValueError(
            f"the Rope's frequencies are not those of its kernel {laws[0]!r} and design {rope.source.design!r}: they "
            "were changed since, or heads have kernels of different form; expected a Rope as rfrope.design returns it"
        )
    return found


# -- the points of a Rope ----------------------------------------------------------------------------------------------


def _read_design(rope: Rope, vectors: np.ndarray) -> tuple[list[Kernel], np.ndarray]:
    """Return one kernel and the points of each set of frequencies."""
    source, count, n_blocks = rope.source, math.prod(vectors.shape[:-2]), vectors.shape[-2]
    laws = _read_laws(source.kernel, count)
    last = source.scaled_by[-1] if source.scaled_by else {}
    began = _read_laws(last["began"], count) if last.get("scheme") == "learned" and "began" in last else laws
    found: list[np.ndarray | None] = [None]
    if source.design == "quantile":
        found = [sets.quantile_points(law, n_blocks) for law in began]
    elif source.design in sets.POINTS and source.seed is not None:
        key = random.key_from_rng(source.seed)
        found = [sets.POINTS[source.design](law, key, n_blocks, h, 1)[0] for h, law in enumerate(began)]
    points = [one for one in found if one is not None]
    if len(points) < len(laws):
        raise ValueError(
            f"the Rope's design is {source.design!r} with seed {source.seed}, which does not give points of "
            f"{laws[0]!r}; expected 'quantile' in one axis for a law of one column, or {', '.join(sets.POINTS)} with a "
            "seed: rfrope.design(..., design='stratified', rng=0)"
        )
    return laws, np.stack(points)


def _read_laws(texts: Any, count: int) -> list[Kernel]:
    laws = [parse(text) for text in ((texts,) if isinstance(texts, str) else texts)]
    laws = laws * count if len(laws) == 1 else laws
    if len(laws) != count:
        raise ValueError(f"the Rope has {count} sets of frequencies and {len(laws)} kernels; expected as many")
    return laws


def _read_ladder(vectors: np.ndarray) -> tuple[list[Kernel], np.ndarray]:
    """Return log-uniform laws and points of geometric ladders, which begin at the upper end of the law."""
    size, n_blocks = np.abs(vectors), vectors.shape[-2]
    place = 1.0 - np.arange(n_blocks)[:, None] / max(n_blocks, 1)
    known = vectors.shape[-1] == 1 and n_blocks > 1 and np.all(size > 0.0)
    if known:
        high = size[..., :1, :]
        low = high * (size[..., -1:, :] / high) ** (n_blocks / (n_blocks - 1))
        known = np.all(low < high) and np.allclose(low * (high / low) ** place, size, rtol=1e-5, atol=0.0)
    if not known:
        raise ValueError(
            "the Rope does not name the kernel of its frequencies, and they are not a geometric ladder from fast to "
            "slow; expected a Rope of rfrope.design, or learnable='factors'"
        )
    ends = np.concatenate([low, high], -1).reshape(-1, 2).tolist()
    laws = [make_kernel("log_uniform", low=_round(a), high=_round(b)) for a, b in ends]
    return laws, np.clip(0.5 + 0.5 * np.sign(vectors) * place, 2.0**-53, 1.0 - 2.0**-53)


# -- parameters of a kernel --------------------------------------------------------------------------------------------


def _parts(law: Kernel) -> tuple[str, tuple[Kernel, ...]]:
    """Return the kernels that make up another, and the name of its field that holds them."""
    for name in ("factors", "kernels", "kernel"):
        if isinstance(law, Axes | Mixture | Product | Rescaled | Warped) and hasattr(law, name):
            held = getattr(law, name)
            return name, held if isinstance(held, tuple) else (held,)
    raise ValueError(f"kernel is {law!r}, whose parameters cannot be learned; expected families of rfrope.kernels")


def _families(law: Kernel) -> list[tuple[Any, dict[str, str]]]:
    """Return the families of a kernel in order, each with the names of what is learned, by those of its fields."""

    def leaves(law: Kernel) -> list[Kernel]:
        return [law] if isinstance(law, Family) else [leaf for part in _parts(law)[1] for leaf in leaves(part)]

    found = leaves(law)
    ends = [f"_{i}" if len(found) > 1 else "" for i in range(1, len(found) + 1)]
    return [
        (family, {name: _FORMS.get(name, f"log_{name}") + end for name in list_movable(family)})
        for family, end in zip(found, ends, strict=True)
    ]


def _parameters(law: Kernel) -> dict[str, np.ndarray]:
    """Return what is learned of one kernel."""
    found = {}
    for family, names in _families(law):
        held = {name: np.asarray(getattr(family, name)) for name in names if name not in ("means", "scales")}
        if "means" in names:
            shape = (len(family.weights), family.ndim) if family.ndim > 1 else (len(family.weights),)
            held |= {n: np.stack([np.broadcast_to(v, shape[1:]) for v in getattr(family, n)]) for n in names}
            held["means"] = held["means"] / held["scales"]
        for name, value in held.items():
            if name == "exponent":
                if value == 2.0:
                    raise ValueError(
                        "exponent is 2.0, where its derivatives are infinite; expected 'gaussian', or 1.99"
                    )
                value = value / (2.0 - value)
            found[names[name]] = np.asarray(value if name == "means" else np.log(value), np.float64)
    return found


def _values(names: Mapping[str, str], parameters: Mapping[str, Any], xp: ModuleType) -> dict[str, Any]:
    """Return the values of a family's parameters, whose learned names are given by those of its fields."""
    values = {name: parameters[own] for name, own in names.items()}
    for name, x in values.items():
        if name == "exponent":
            values[name] = 2.0 / (1.0 + xp.exp(-x))
        elif name != "means":
            values[name] = xp.exp(x)
    if "means" in values:
        values["means"] = values["means"] * values["scales"]
    return values


def _round(value: Any) -> Any:
    """Return plain numbers of 15 digits."""
    return float(f"{value:.15g}") if np.ndim(value) == 0 else tuple(map(_round, value))


def _rebuild(law: Kernel, values: Iterator[dict[str, Any]]) -> Kernel:
    """Return the kernel of such a form with other values."""
    if isinstance(law, Family):
        plain = {name: _round(value) for name, value in next(values).items()}
        if "low" in plain or "high" in plain:  # ends that learning has exchanged make the same law
            plain["low"], plain["high"] = sorted((plain["low"], plain["high"]))
        return dataclasses.replace(law, **plain)  # type: ignore[type-var]
    name, parts = _parts(law)
    made = tuple(_rebuild(part, values) for part in parts)
    return dataclasses.replace(law, **{name: made[0] if name == "kernel" else made})  # type: ignore[type-var]


def _fix(
    law: Any, u: np.ndarray, families: Iterator[tuple[Any, dict[str, str]]]
) -> Callable[[Mapping[str, Any], ModuleType], Array]:
    """Return the frequencies ``(..., k)`` of points, as the kernel's own transport has them, by learned parameters."""
    if isinstance(law, Family):
        _, names = next(families)
        move = fix_points(law, u)
        return lambda parameters, xp: move(_values(names, parameters, xp), xp)
    _, parts = _parts(law)
    is_mixture = isinstance(law, Mixture)
    columns = (
        [u[..., 1 : 1 + part.n_columns] for part in parts] if is_mixture else split(u, [p.n_columns for p in parts])
    )
    moves = [_fix(part, own, families) for part, own in zip(parts, columns, strict=True)]

    def combine(parameters: Mapping[str, Any], xp: ModuleType) -> Array:
        moved = [move(parameters, xp) for move in moves]
        found, *others = moved
        if isinstance(law, Mixture):
            chosen = np.searchsorted(np.cumsum(law.weights)[:-1], u[..., 0], side="right")[..., None]
            for j, other in enumerate(others, 1):
                found = xp.where(array.from_host(chosen == j, xp, device=array.device(found)), other, found)
            return found
        if isinstance(law, Axes):
            return xp.concat(moved, axis=-1)
        if isinstance(law, Warped):
            return multiply(found, np.asarray(law.matrix), xp)
        if isinstance(law, Rescaled):
            return found / array.from_host(np.asarray(law.scale), xp, device=array.device(found), dtype=found.dtype)
        return sum(others, found)

    return combine
