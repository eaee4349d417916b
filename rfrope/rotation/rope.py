"""`Rope`, the record of a rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import numpy as np

from rfrope._core import angles, array, blocks, dispatch, libraries, results, turns
from rfrope._core.arguments import LARGEST, flag, is_several, positive, printable, shape_of, show, whole
from rfrope._core.array import Array
from rfrope.rotation import turning
from rfrope.rotation.pairings import assign_blocks, check_sections
from rfrope.rotation.polar import rotate_polar
from rfrope.rotation.provenance import Provenance, read_provenance
from rfrope.rotation.turning import rotate, rotation_table, scores_of


class Assumed(int):
    """A `head_dim` that nobody gave: 2D. A copy with other fields knows by it that features may be wider."""


@dataclass(frozen=True, eq=False, repr=False)
class Rope:
    """A rotary position embedding: its frequencies, how they are applied, and where they came from.

    `design`, `from_config`, `load` and the schemes return one; functions that read frequencies accept one, or a bare
    array.

    Attributes
    ----------
    frequencies : array, radians per unit of position
        ``(D,)`` for scalar positions, or ``(*H, D, k)`` for positions ``(*P, k)``.
    pairing : {"half", "interleaved"} or None
        Features that form a block. None, for the few model types that use neither: the Rope can be read and saved,
        but not applied.
    head_dim : int
        Number of features of a query or key, at least 2D; those beyond 2D are not rotated. If given, features must have
        this width or be the 2D rotated features alone. Default: 2D, and features may be wider. D for a polar Rope.
    attention_factor : float
        Positive factor of cos and sin, for queries and keys alike: scores are multiplied by its square.
    sections : tuple of int or None
        Number of the blocks ``(D,)`` on each position axis, as in `mrope`; positions are then ``(*P, len(sections))``.
        Default: the shape of the frequencies determines the axes.
    interleaved : bool
        True if the sections alternate (Qwen3-VL) or follow one another (Qwen2-VL).
    context : int, tuple of int or None
        Number of positions that the frequencies were designed for, in all or on each axis.
    polar : bool
        True if features are D magnitudes m, one frequency each, which become the 2D features ``(m cos u, m sin u)``
        (`rfrope.rotation.rotate_polar`).
    source : Provenance
        Origin of the frequencies: kernel, design and seed, or model type and scheme. A dict is converted by
        `Provenance.from_dict`.

    Raises
    ------
    ValueError, TypeError
        If a value is not as described above.

    See Also
    --------
    design, from_config, rotate, save

    Notes
    -----
    NumPy frequencies are copied and made read-only: to change them, write to ``rope.frequencies.copy()`` and make a new
    Rope. ``torch.from_numpy`` ignores the flag, so give it a copy. Arrays of other libraries are kept as they are, so
    gradients reach them, and the next call sees what is written into them.

    A Rope made after importing JAX is a pytree whose leaf is the frequencies. It unpacks as ``frequencies,
    attention_factor``; ``numpy.asarray`` returns the frequencies; ``dataclasses.replace(rope, context=8192)`` returns a
    copy with another field.

    Examples
    --------
    >>> import numpy as np, rfrope
    >>> rope = Rope(rfrope.geometric(64), pairing="half", context=4096)
    >>> rope
    Rope(64 frequencies, pairing='half', head_dim=128, context=4096)
    >>> q = np.ones((8, 16, 128))  # 8 heads, 16 tokens
    >>> rope.rotate(q, np.arange(16)).shape
    (8, 16, 128)
    """

    frequencies: Array
    _: KW_ONLY
    pairing: str | None = "half"
    head_dim: int | None = None
    attention_factor: float = 1.0
    sections: tuple[int, ...] | None = None
    interleaved: bool = False
    context: int | tuple[int, ...] | None = None
    polar: bool = False
    source: Provenance = None  # type: ignore[assignment]  # a Provenance after __post_init__

    def __post_init__(self) -> None:
        frequencies, n_blocks = _checked_frequencies(self.frequencies)
        polar = self.polar if type(self.polar) is bool else flag("polar", self.polar)
        turned = n_blocks if polar else 2 * n_blocks
        width = turned if self.head_dim is None else whole("head_dim", self.head_dim)
        assumed = self.head_dim is None or (isinstance(self.head_dim, Assumed) and width == turned)
        if polar and width != turned:
            raise ValueError(
                f"head_dim is {width}, but a polar Rope has one frequency per feature; expected D = {turned}"
            )
        if width < turned:
            raise ValueError(f"head_dim is {width}; expected at least 2D = {turned}")
        interleaved = flag("interleaved", self.interleaved)
        sections = self.sections if self.sections is None else check_sections(self.sections, n_blocks, interleaved)
        if sections is not None and frequencies.ndim > 1:
            raise ValueError(
                f"sections is {sections}, but frequencies have shape {tuple(frequencies.shape)}; expected (D,) with "
                "sections"
            )
        if interleaved and sections is None:
            raise ValueError("interleaved is True, but sections is None; expected sections")
        checked = {
            "frequencies": frequencies,
            "pairing": self.pairing if self.pairing is None else blocks.check_pairing(self.pairing),
            "head_dim": Assumed(width) if assumed else width,
            "attention_factor": positive("attention_factor", self.attention_factor),
            "sections": sections,
            "interleaved": interleaved,
            "context": _checked_context(self.context),
            "polar": polar,
            "source": read_provenance(self.source),
        }
        self.__dict__.update(checked)  # frozen
        results.register(Rope, "frequencies")

    @property
    def n_blocks(self) -> int:
        """D, the number of frequencies of a head."""
        return int(self.frequencies.shape[-1 if angles.is_line(self.frequencies) else -2])

    @property
    def rotary_dim(self) -> int:
        """Number of rotated features of a head, including those of frequency 0: 2D, or D if polar."""
        return self.n_blocks if self.polar else 2 * self.n_blocks

    @property
    def qk_head_dim(self) -> int:
        """Number of features in a score; more than ``head_dim`` with latent attention."""
        return int(self.source.model.qk_head_dim or self.head_dim or 0)

    @property
    def vectors(self) -> Array:
        """Frequencies in the shape that `rfrope.rotate` takes: ``(D, len(sections))`` with sections, else unchanged."""
        if self.sections is None:
            return self.frequencies
        if not isinstance(self.frequencies, np.ndarray):  # it may have a gradient, or be traced
            return assign_blocks(self.frequencies, self.sections, self.interleaved)
        held = self.__dict__ if libraries.is_compiling() else self._held()
        if "_vectors" not in held:
            held["_vectors"] = _seal(assign_blocks(self.frequencies, self.sections, self.interleaved))
        return held["_vectors"]

    def rotate(self, x: Array, positions: Array, *, inverse: bool = False, out: Array | None = None) -> Array:
        """Rotate queries or keys by position; see `rfrope.rotate`.

        Repeated calls, as in a decode loop, are faster than `rfrope.rotate`. To move cached keys use
        `rotation.relocate`, which does not apply the attention factor again.

        Parameters
        ----------
        x : array_like, (..., d)
            Features of a real floating dtype, d even and at least 2D. For a polar Rope, magnitudes ``(..., D)``, or
            polar features ``(..., 2D)`` if `inverse`.
        positions : array_like
            Any shape ``P`` for frequencies ``(D,)`` without sections; ``(*P, k)`` otherwise.
        inverse : bool
            Undo the rotation.
        out : array, optional
            Output array. ``out=x`` works in place, except for a polar Rope.

        Returns
        -------
        array, (..., d)
            Same library, dtype and device as `x`; `out` if given. For a polar Rope ``(..., 2D)``, or ``(..., D)`` if
            `inverse`.

        Raises
        ------
        ValueError, TypeError
            See `rfrope.rotate`.

        Examples
        --------
        >>> import numpy as np
        >>> Rope([np.pi / 2], pairing="interleaved").rotate(np.array([1.0, 0.0]), 1).round(12)
        array([0., 1.])
        """
        turned = turned_by_rope(self, "_flat", x, positions, inverse, out)
        if turned is not None:
            return turned
        turn = rotate_polar if self.polar else rotate
        pairing, scale = _known_pairing(self), self.attention_factor
        return turn(x, positions, self, pairing=pairing, scale=scale, inverse=inverse, out=out)

    @array.select_device
    def scores(self, q: Array, k: Array, q_positions: Array, k_positions: Array) -> Array:
        """Return attention scores before softmax, times the square of the attention factor; see `rfrope.scores`.

        Parameters
        ----------
        q, k : array_like, (..., M, d) and (..., N, d)
            Queries and keys before rotation.
        q_positions, k_positions : array_like
            See `positions` of `rotate`.

        Returns
        -------
        array, (..., M, N)
            Same dtype and device as q and k.

        Raises
        ------
        ValueError, TypeError
            See `rfrope.scores`.

        Examples
        --------
        >>> rope = Rope([1.0], attention_factor=2.0)
        >>> rope.scores([[1.0, 0.0]], [[1.0, 0.0]], [5], [5])
        array([[4.]])
        """
        vectors, pairing = self._frequencies_for(self.pairing, None, q, "q"), _known_pairing(self)
        return scores_of(q, k, q_positions, k_positions, vectors, pairing, None, self.attention_factor)

    def table(self, positions: Array, *, dtype: Any = None) -> tuple[Array, Array]:
        """Return cos and sin of the phases, times the attention factor; see `rfrope.rotation_table`.

        Parameters
        ----------
        positions : array_like
            See `rotate`.
        dtype : dtype of the library of the positions, optional
            Default: float64 where the library has it.

        Returns
        -------
        cos, sin : arrays
            One column per block.

        Raises
        ------
        ValueError, TypeError
            See `rfrope.rotation_table`.

        Examples
        --------
        >>> Rope([1.0, 0.5]).table([0, 1])[0].round(4)
        array([[1.    , 1.    ],
               [0.5403, 0.8776]])
        """
        return rotation_table(positions, self.vectors, scale=self.attention_factor, dtype=dtype)

    def _frequencies_for(self, pairing: str | None, scale: Any, x: Any, name: str, polar: bool = False) -> Array:
        """Return the frequencies for a function that takes them bare, if it turns features as this Rope does.

        Parameters
        ----------
        pairing : str or None
            How the function pairs features; None where it has no features.
        scale : float, array_like or None
            Factor of cos and sin; None where it does not matter.
        x : array_like or None
            Its features, and what it calls them.
        name : str
        polar : bool
            True if it turns magnitudes.

        Raises
        ------
        ValueError
            For another pairing or attention factor, for features of another width, and for magnitudes where the Rope
            has features, or the reverse.
        """
        if self.polar != polar and (polar or pairing is not None):
            expected = (
                "rotation.rotate_polar for it"
                if self.polar
                else "a Rope with polar=True, with one frequency per magnitude"
            )
            raise ValueError(f"the Rope has polar={self.polar}; expected {expected}")
        known = self.source.model.pairing_from == "known"  # otherwise "interleaved" is as good as the Rope's default
        if pairing is not None and self.pairing != pairing and (known or pairing == "half" or self.pairing is None):
            wanted = "neither is right for it" if self.pairing is None else f"expected pairing={self.pairing!r}"
            raise ValueError(
                f"pairing is {show(pairing)}, but the Rope's is {self.pairing!r}: {wanted}; pass rope.frequencies to "
                "override"
            )
        factor = self.attention_factor
        if scale is not None and factor != 1.0 and not (isinstance(scale, int | float) and scale == factor):
            raise ValueError(
                f"scale is {show(scale)}, but the Rope has the attention factor {factor}; expected rope.rotate or "
                "rope.scores, or scale=rope.attention_factor where there is a scale; pass rope.frequencies to leave it "
                "out"
            )
        _check_width(self, x, name)
        # the frequencies, for torch where features are: copied there, with their words, once
        if type(x) is np.ndarray:
            return self.vectors
        held = self.__dict__ if libraries.is_compiling() else self._held()
        return turns.copy_to_device_of(x, self.vectors, held)

    def _held(self) -> dict[str, Any]:
        """All fields, and what was made from frequencies, unless somebody opened these for writing.

        PyTorch's compiler does that; they are closed again.
        """
        held = self.__dict__
        frequencies = held["frequencies"]
        if type(frequencies) is np.ndarray and (
            frequencies.flags.writeable or ("_vectors" in held and held["_vectors"].flags.writeable)
        ):
            _seal(frequencies)
            for made in ("_vectors", "_flat", "_flat_move", "_placed"):
                held.pop(made, None)
        return held

    def __iter__(self) -> Iterator[Any]:
        return iter((self.frequencies, self.attention_factor))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(array.to_host(self.frequencies), dtype=dtype, copy=copy)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.clear()  # what was prepared, too
        self.__dict__.update(state, source=read_provenance(state["source"]))
        _seal(self.frequencies)
        results.register(Rope, "frequencies")

    def __repr__(self) -> str:
        shape = tuple(getattr(self.frequencies, "shape", ()))  # JAX puts other things there, too
        what = f"{shape[0]} frequencies" if len(shape) == 1 else f"frequencies {shape}"
        usual = {"attention_factor": 1.0, "sections": None, "interleaved": False, "context": None, "polar": False}
        shown = [f"{n}={getattr(self, n)!r}" for n in ("pairing", "head_dim")]
        shown[0] += " (assumed)" if self.source.model.pairing_from == "assumed" else ""
        shown += [f"{n}={getattr(self, n)!r}" for n, value in usual.items() if getattr(self, n) != value]
        shown += [f"kernel={self.source.kernel!r}"] if isinstance(self.source.kernel, str) else []
        return f"Rope({', '.join([what, *shown])})"


_FIELDS = tuple(each.name for each in fields(Rope))


def turned_by_rope(rope: Rope, name: str, x: Any, positions: Any, inverse: Any, out: Any) -> Any:
    """Return small dense features turned at once; None where checks are needed.

    The name is "_flat", or "_flat_move" without the attention factor: so the Rope keeps its frequencies, how they turn,
    widths of features, and the plan of the last call, whose memory is read again.
    """
    if not (type(x) is np.ndarray or libraries.may_reach_loops(x)):
        return None
    held, dense = rope._held(), turning.load_fast_path()
    kept = held[name] if name in held else held.setdefault(name, _prepare_flat_pass(rope, name))
    if kept is None or dense is None:
        return None
    kind, read, pairings, factor, widths, again, last = kept
    if type(x) is np.ndarray and (turned := again(x, positions, inverse, out, last[0])) is not None:
        return turned
    if widths is not None and x.shape[-1:] not in widths:
        return None
    turn = *(pairings[::-1] if inverse is True else pairings), factor, inverse, False
    return dense.turned_at_once(kind, x, positions, read, None, turn, out, last)


def _prepare_flat_pass(rope: Rope, name: str) -> Any:
    vectors, backend = rope.vectors, dispatch.find(dispatch.CPU_DENSE)
    if backend is None or rope.pairing is None or type(vectors) is not np.ndarray:
        return None
    read = backend.Numbers.read(np.ascontiguousarray(vectors, np.float64))
    if read is None:
        return None
    if rope.polar:
        pairings = blocks.MAGNITUDES, rope.pairing
        return "polar", read, pairings, rope.attention_factor, None, backend.turned_again, [None]
    turns, head_dim = (rope.rotary_dim,), _given_head_dim(rope)
    widths: Any = (turns,) if rope.source.model.turns_last else head_dim and (turns, (head_dim,))
    factor = 1.0 if name == "_flat_move" else rope.attention_factor
    return "positions", read, (rope.pairing, rope.pairing), factor, widths, backend.turned_again, [None]


def pairing_for(rope: Rope, x: Any, name: str = "x") -> str:
    """Return the pairing of a Rope; refuse an unknown one, and models that do not turn the first 2D features of x."""
    _check_width(rope, x, name)
    return _known_pairing(rope)


def _known_pairing(rope: Rope) -> str:
    """Return the pairing of a Rope; say why if it has none."""
    if rope.pairing is None:
        note = f" ({printable(rope.source.model.note)})" if rope.source.model.note else ""
        raise ValueError(
            f"rope.pairing is None: this model pairs features in its own way{note}; expected a Rope with a "
            "pairing, such as dataclasses.replace(rope, pairing='half')"
        )
    return rope.pairing


def _check_width(rope: Rope, x: Any, name: str) -> None:
    if x is not None and not rope.polar and not getattr(x, "is_nested", False):  # others know what these must be
        shape = x.shape if hasattr(x, "shape") else shape_of(x)  # PyTorch's compiler can trace this
        check_head_width(name, shape[-1] if len(shape) else 0, rope, _given_head_dim(rope))


def _given_head_dim(rope: Rope) -> int | None:
    return None if isinstance(rope.head_dim, Assumed) else rope.head_dim


def check_head_width(name: str, width: int, rope: Rope, head_dim: int | None) -> None:
    """Refuse features whose width is not that of a given `head_dim`, or whose first 2D the model does not turn."""
    last = rope.source.model.turns_last
    if (not last and (head_dim is None or width == head_dim)) or width <= (turning := rope.rotary_dim):
        return
    if last:
        raise ValueError(
            f"this model turns the last {turning} features of a head, but this call would turn the first of the "
            f"{width} of {name}; expected {name}[..., -{turning}:]"
        )
    part = "" if turning == head_dim else f", or the {turning} that turn"
    raise ValueError(
        f"{name} has {width} features, but head_dim is {head_dim}; expected {head_dim}{part}: for heads of {width} "
        f"features of which {turning} are rotated, give head_dim={width} to the Rope"
    )


# -- what is allowed in ------------------------------------------------------------------------------------------------


def _checked_frequencies(value: Any) -> tuple[Array, int]:
    """Frequencies as they came, NumPy's as a copy, lists and integers as floats; and how many blocks a head has."""
    if type(value) is np.ndarray and value.dtype == np.float64 and value.ndim == 1 and 0 < value.size <= 2**16:
        if not np.vdot(value, value) < LARGEST * LARGEST:  # NaN and infinity too
            angles.check_values("frequencies", value, np)
        value = value.copy()
        value.flags.writeable = False
        return value, value.size
    if isinstance(value[0] if isinstance(value, list | tuple) and value else value, Rope):
        raise TypeError(
            "frequencies is a Rope, or several; expected an array (dataclasses.replace changes other fields)"
        )
    xp, device = array.shared(frequencies=value)
    n_blocks = angles.read_frequencies(value, xp, device).shape[-2]
    value = array.numbers(value, xp, name="frequencies", device=device)
    value = value if array.is_real_floating(value) else array.widen(value, xp)
    return _seal(value.copy()) if isinstance(value, np.ndarray) else value, n_blocks


def _seal(frequencies: Array) -> Array:
    """Make a NumPy array that nobody else holds read-only, so that prepared data stays valid."""
    if isinstance(frequencies, np.ndarray):
        frequencies.flags.writeable = False
    return frequencies


def _checked_context(context: Any) -> int | tuple[int, ...] | None:
    if context is not None and type(context) is not int and is_several(context):
        if not len(context):
            raise ValueError("context is empty; expected one number, one for each axis, or None")
        return tuple(whole(f"context[{axis}]", length, 1) for axis, length in enumerate(context))
    return None if context is None else whole("context", context, 1)


def refuse_polar(rope: Any, name: str, reason: str) -> None:
    """Refuse a polar Rope where it has no meaning."""
    if getattr(rope, "polar", False):
        raise ValueError(f"{name} is polar, but {reason}; expected a Rope with polar=False")


def replace_fields(made_from: Any, /, **changes: Any) -> Rope:
    """Return a copy of `made_from` with some fields changed; make a Rope if `made_from` is bare frequencies.

    Parameters
    ----------
    made_from : Rope or array_like
        The argument of a map on frequencies.
    **changes
        The fields to change, `frequencies` among them.
    """
    return Rope(**{**(made_from.__getstate__() if isinstance(made_from, Rope) else {}), **changes})
