"""The record of an engine: its reading of configs, its exports, their limits, and the sources that were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rfrope._core import capacity
from rfrope.data.model_types import read_table
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import ladder, rotated_width

# -- an engine that reads a config -------------------------------------------------------------------------------------


class RefusedError(ValueError):
    """The engine refuses this config."""


class UnknownError(ValueError):
    """The engine's source for this config was not read."""


def require_key(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key; refuse a config without it, as the engine does."""
    if values.get(key) is None:
        raise RefusedError(f"stops with an error: {key} missing")
    return values[key]


@dataclass(frozen=True, eq=False)
class ConfigRope:
    """One RoPE as described by a config: the argument of an engine's rule.

    Attributes
    ----------
    rope : Rope
        Result of `from_config` for a text of `seq_len` positions.
    values : mapping
        ``rope_parameters`` as read by transformers 5, with its names and defaults.
    written : mapping
        ``rope_parameters`` and ``rope_scaling`` of the config, merged.
    raw : mapping
        The config, or the part of it that describes this RoPE.
    seq_len : int
        Positions of the longest text; engines that choose a list at start are started for it.

    See Also
    --------
    engines.EngineRope, engines.Reading

    Examples
    --------
    >>> import rfrope
    >>> config = {"model_type": "llama", "head_dim": 16, "rope_theta": 10000.0, "max_position_embeddings": 512}
    >>> (rope,) = rfrope.from_config(config)
    >>> values = {"rope_type": "default", "rope_theta": 10000.0}
    >>> one = rfrope.engines.ConfigRope(rope, values, {}, config, seq_len=512)
    >>> one.model_type, one.scheme, one.context
    ('llama', 'default', 512)
    """

    rope: Rope
    values: Mapping[str, Any]
    written: Mapping[str, Any]
    raw: Mapping[str, Any]
    seq_len: int

    @cached_property
    def model_type(self) -> str:
        """``model_type`` of the config."""
        return self.rope.source.model.model_type

    @cached_property
    def kind(self) -> str:
        """Kind of layers that it rotates, if the config has several RoPEs."""
        return self.rope.source.model.name.rpartition(".")[2]

    @cached_property
    def scheme(self) -> str:
        """Name of the scheme in transformers 5."""
        return str(self.values["rope_type"])

    @cached_property
    def context(self) -> int:
        """``max_position_embeddings``, always an int in a rule."""
        return self.rope.context  # type: ignore[return-value]

    @cached_property
    def has_original(self) -> bool:
        """True if the config gives an original context, in the dict or beside it."""
        key = "original_max_position_embeddings"
        return self.written.get(key, self.raw.get(key)) is not None

    def ladder(self, part: float = 1.0, base: float | None = None) -> np.ndarray:
        """Return the ladder over a part of the head. Default: the config's base."""
        assert self.rope.head_dim is not None  # set by every Rope
        return ladder(rotated_width(self.rope.head_dim, part), self.values["rope_theta"] if base is None else base)


@dataclass(frozen=True, eq=False)
class EngineRope:
    """One RoPE as an engine runs it.

    Attributes
    ----------
    frequencies : ndarray (D,), radians per position
    attention_factor : float
        Factor of cos and sin.
    length : str
        Effect of the length of the text.
    pairing : {"half", "interleaved"} or None
        Features that form a block, in the order of the config's own weights.
    positions : int or None
        Length of the cos/sin tables, if there are any.
    ignored_keys : tuple of str
        Keys of the config that are not read although they matter.
    note : str
        Anything else to know.
    layers : tuple of int or None
        Layers rotated this way; None if that was not read, or the config does not number its layers.

    See Also
    --------
    engines.ConfigRope, models.compare

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.engines.EngineRope(rfrope.geometric(8), ignored_keys=("factor",))
    >>> found.frequencies.shape, found.attention_factor, found.ignored_keys
    ((8,), 1.0, ('factor',))
    """

    frequencies: np.ndarray
    attention_factor: float = 1.0
    length: str = "the same at every length"
    pairing: str | None = "half"
    positions: int | None = None
    ignored_keys: tuple[str, ...] = ()
    note: str = ""
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Reading:
    """An engine's reading of a config's RoPE, according to its source.

    Attributes
    ----------
    version : str
        Version of the source: a release, or a commit and its date.
    sources : tuple of str
        The files, and the functions or classes in them.
    rule : callable
        ``rule(config)`` takes a `ConfigRope` and returns the `EngineRope`. It raises ``record.RefusedError`` where
        the engine would stop, and ``record.UnknownError`` where its source was not read: a rule never guesses.
    model_types : tuple of str
        Model types whose code was read, for which the rule holds; empty for all that `rfrope.from_config` knows.
    layered : tuple of str
        Those with a RoPE for each kind of layer, which the rule finds in the config's ``kind``.
    failed : dict
        Errors that prevented the observation of tiny models of other types.

    See Also
    --------
    engines.Engine, models.compare

    Examples
    --------
    >>> import rfrope
    >>> vllm = next(one for one in rfrope.engines.records() if one.name == "vLLM")
    >>> vllm.reading.sources[0].partition(" ")[0]
    'tools/observe_engines.py'
    """

    version: str
    sources: tuple[str, ...]
    rule: Callable[[ConfigRope], EngineRope]
    model_types: tuple[str, ...] = ()
    layered: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


# -- an engine that is given frequencies -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ExportRequest:
    """A checked Rope, and the options that its engine uses.

    Attributes
    ----------
    rope : Rope
        With frequencies on the host: ``(D,)``; ``(H, D, 1)`` if the engine takes one set per head; or any shape.
    context : int or None
        Number of positions for tables and rounding errors.
    base : float
        Base of the ladder that divisors refer to.
    dtype : str
        Type of tables.
    architecture : str
        Architecture of a GGUF.
    scheme : mapping or None
        ``rope_parameters`` of the config that the Rope still follows, if the engine reads them as the Rope.

    See Also
    --------
    engines.Format, engines.export

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(8), pairing="half", context=64)
    >>> request = rfrope.engines.ExportRequest(rope, 64, 1e4, "float32", "llama")
    >>> request.interleaved, request.heads, request.table()[0].shape
    (False, None, (64, 8))
    """

    rope: Rope
    context: int | None
    base: float
    dtype: str
    architecture: str
    scheme: Mapping[str, Any] | None = None

    @property
    def interleaved(self) -> bool:
        """True if neighbouring features form a block."""
        return self.rope.pairing == "interleaved"

    @property
    def heads(self) -> int | None:
        """Number of heads with their own sets; None if all share one."""
        return None if self.rope.frequencies.ndim < 3 else int(self.rope.frequencies.shape[0])

    @property
    def first_rows(self) -> np.ndarray:
        """First row of each head in a table, ``(H,)``: position p is row ``first_rows[h] + p``."""
        return np.arange(self.heads or 1, dtype=np.int32) * np.int32(self.context or 0)

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return cos and sin at all positions of the context, ``(S, D)``; for H heads ``(H S, D)``; rounded once."""
        length = self.context or 0
        n_rows = length * (self.heads or 1)
        capacity.check(32.0 * n_rows * max(1, self.rope.rotary_dim), f"a table of context={length}", "context")
        positions = np.arange(length)
        cos, sin = self.rope.table(positions if self.heads is None else positions[:, None])
        return cos.reshape(n_rows, -1).astype(self.dtype), sin.reshape(n_rows, -1).astype(self.dtype)


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """An engine's arithmetic with exported data.

    Attributes
    ----------
    frequencies : array, (D,), or None
        Frequencies as the engine computes them; None if it is given a table.
    phase_error : array, (D,), or float
        Largest relative error of a phase in the engine's own arithmetic, beside that of its frequency.
    entry_error : float
        Largest error of an entry of cos or sin, of size 1, beside that of its phase.

    See Also
    --------
    engines.Format, engines.rounding

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(8), pairing="half", context=64)
    >>> request = rfrope.engines.ExportRequest(rope, 64, 1e4, "float32", "llama")
    >>> form = next(one.format for one in rfrope.engines.records() if one.name == "vLLM")
    >>> made = form.arithmetic(request, form.make(request))
    >>> made.frequencies.shape, made.phase_error > 0.0
    ((8,), True)
    """

    frequencies: np.ndarray | None
    phase_error: np.ndarray | float
    entry_error: float


@dataclass(frozen=True)
class Format:
    """The form in which an engine takes frequencies.

    Attributes
    ----------
    carries : str
        The data, in the engine's own terms.
    exact : str
        Values that are rounded.
    source : str
        Files of the engine that were read, with its version, and whether a test runs it.
    make : callable
        Maps an `ExportRequest` to plain data.
    arithmetic : callable
        Maps an `ExportRequest` and that data to `Arithmetic`.
    suffixes : tuple of str
        Suffixes of its files.
    copies_model : bool
        True if a file may be a copy of a model's, with its RoPE replaced.
    pairings : tuple of str
        Accepted pairings.
    factor : bool
        True if it keeps an attention factor.
    any_rope : bool
        True if it accepts one set per head, and several axes.
    heads : str
        Layout of one set per head, in words; "" if heads share one set.
    options : tuple of str
        Those of context, base, dtype and architecture that it uses.
    refusal : callable or None
        Maps an `ExportRequest` to a reason against it beyond the fields above, or "".
    cannot : str
        The same in words, for the documentation.

    See Also
    --------
    engines.ExportRequest, engines.export

    Examples
    --------
    >>> import rfrope
    >>> llama = next(one for one in rfrope.engines.records() if one.name == "llama.cpp")
    >>> llama.format.suffixes, llama.format.pairings
    (('.gguf',), ('half', 'interleaved'))
    """

    carries: str
    exact: str
    source: str
    make: Callable[[ExportRequest], dict[str, Any]]
    arithmetic: Callable[[ExportRequest, dict[str, Any]], Arithmetic]
    suffixes: tuple[str, ...] = (".npz",)
    copies_model: bool = False
    pairings: tuple[str, ...] = ("half", "interleaved")
    factor: bool = True
    any_rope: bool = False
    heads: str = ""
    options: tuple[str, ...] = ("context",)
    refusal: Callable[[ExportRequest], str] | None = None
    cannot: str = ""


@dataclass(frozen=True)
class Engine:
    """The record of one engine.

    Attributes
    ----------
    name : str
        Its own spelling; any other is accepted, too.
    reading : Reading or None
        Its reading of a config's RoPE, if known, for `rfrope.models.compare`.
    format : Format or None
        The form in which it takes frequencies, if it does, for `engines.export`.

    See Also
    --------
    engines.Reading, engines.Format

    Examples
    --------
    >>> import rfrope
    >>> by_name = {one.name: one for one in rfrope.engines.records()}
    >>> by_name["vLLM"].reading is not None, by_name["vLLM"].format.pairings
    (True, ('half',))
    """

    name: str
    reading: Reading | None = None
    format: Format | None = None


def make_engine(
    name: str,
    make: Callable[[ExportRequest], dict[str, Any]],
    arithmetic: Callable[[ExportRequest, dict[str, Any]], Arithmetic],
    refusal: Callable[[ExportRequest], str] | None = None,
    *,
    reading: Reading | None = None,
) -> Engine:
    """Return the record of an engine that takes a Rope as `make` gives it, with what was read of the form."""
    held = read_table("engines")[name]["format"]
    return Engine(name, reading, Format(make=make, arithmetic=arithmetic, refusal=refusal, **held))
