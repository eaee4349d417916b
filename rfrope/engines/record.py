"""The record of an engine: how it reads a config, what it is given, what it cannot carry, and where that was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import capacity
from rfrope.rotation.rope import Rope
from rfrope.scaling.registry import ladder, rotated_width

# -- an engine that reads a config -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ConfigRope:
    """One RoPE as a config describes it: the argument of an engine's rule.

    Attributes
    ----------
    rope : Rope
        As `from_config` reads it, for a text of `seq_len` positions.
    values : mapping
        ``rope_parameters`` as transformers 5 holds them after reading the config: names and defaults filled in.
    written : mapping
        ``rope_parameters`` and ``rope_scaling`` in one, as the config has them.
    raw : mapping
        The config itself, or the part of it that describes this RoPE.
    seq_len : int
        Positions in the longest text; engines that must choose when they start are started for it.

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

    @property
    def model_type(self) -> str:
        """``model_type`` of the config."""
        return self.rope.source.model.model_type

    @property
    def kind(self) -> str:
        """Kind of layers that it turns, where the config has several RoPEs."""
        return self.rope.source.model.name.rpartition(".")[2]

    @property
    def scheme(self) -> str:
        """Name of the scheme, as transformers 5 has it."""
        return str(self.values["rope_type"])

    @property
    def context(self) -> int:
        """``max_position_embeddings``, an int wherever a rule is asked."""
        return self.rope.context  # type: ignore[return-value]

    @property
    def part(self) -> float:
        """``partial_rotary_factor`` in the dict or beside it, which classes of some model types do not read."""
        return float(self.values.get("partial_rotary_factor", 1.0))

    def ladder(self, part: float = 1.0, base: float | None = None) -> np.ndarray:
        """Return the ladder over a part of the head, with the config's own base unless given."""
        assert self.rope.head_dim is not None  # set by every Rope
        return ladder(rotated_width(self.rope.head_dim, part), self.values["rope_theta"] if base is None else base)


@dataclass(frozen=True, eq=False)
class EngineRope:
    """One RoPE as an engine runs it.

    Attributes
    ----------
    frequencies : ndarray (D,), radians per position
    attention_factor : float
        Multiplies cos and sin.
    length : str
        How the length of the text counts.
    pairing : {"half", "interleaved"} or None
        The two features that make a block, in the order of the config's own weights.
    positions : int or None
        Where tables of cos and sin end, if there are such.
    ignored_keys : tuple of str
        Keys of the config that are not read, though they would count.
    note : str
        What else must be known.
    layers : tuple of int or None
        The layers that it turns so; None where that was not read, or the config does not number its layers.

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
    """An engine's reading of a config's RoPE, as its source says.

    Attributes
    ----------
    version : str
        Version of the source that was read: a release, or a commit and its date.
    sources : tuple of str
        The files, and the functions or classes in them.
    rule : callable
        ``rule(config)`` takes a `ConfigRope` and returns the `EngineRope`. It raises ``formulas.RefusedError`` where
        the engine would stop, and ``formulas.UnknownError`` where its source was not read: a rule never guesses.
    model_types : tuple of str
        Those whose code was read, for which the rule holds; empty for all that `rfrope.from_config` knows.
    layered : tuple of str
        Those of them with a RoPE for each kind of layers, which the rule finds in the config's ``kind``.

    See Also
    --------
    engines.Engine, models.compare

    Examples
    --------
    >>> import rfrope
    >>> vllm = next(one for one in rfrope.engines.records() if one.name == "vLLM")
    >>> vllm.reading.sources[0].partition(" ")[0]
    'vllm/model_executor/layers/rotary_embedding/__init__.py'
    """

    version: str
    sources: tuple[str, ...]
    rule: Callable[[ConfigRope], EngineRope]
    model_types: tuple[str, ...] = ()
    layered: tuple[str, ...] = ()


# -- an engine that is given frequencies -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ExportRequest:
    """A checked Rope, and the options that its engine uses.

    Attributes
    ----------
    rope : Rope
        With frequencies on the host: ``(D,)``, or where the engine takes a set for each head ``(H, D, 1)``, or any.
    context : int or None
        Positions for which tables are made and roundings given.
    base : float
        Base of the ladder that divisors refer to.
    dtype : str
        Type of tables.
    architecture : str
        Architecture of a GGUF.

    See Also
    --------
    engines.Format, exports.export

    Examples
    --------
    >>> import rfrope
    >>> rope = rfrope.Rope(rfrope.geometric(8), pairing="half", context=64)
    >>> request = rfrope.engines.ExportRequest(rope, 64, 1e4, "float32", "llama")
    >>> request.interleaved, request.heads, request.exact_table()[0].shape
    (False, None, (64, 8))
    """

    rope: Rope
    context: int | None
    base: float
    dtype: str
    architecture: str

    @property
    def interleaved(self) -> bool:
        """True where neighbours pair."""
        return self.rope.pairing == "interleaved"

    @property
    def heads(self) -> int | None:
        """The number of heads that have a set of their own; None where all share one."""
        return None if self.rope.frequencies.ndim < 3 else int(self.rope.frequencies.shape[0])

    @property
    def first_rows(self) -> np.ndarray:
        """The row of a table at which each head begins, ``(H,)``: that of position p is ``first_rows[h] + p``."""
        return np.arange(self.heads or 1, dtype=np.int32) * np.int32(self.context or 0)

    def exact_table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return cos and sin at all positions of the context, ``(S, D)`` in float64; of H heads ``(H S, D)``."""
        length = self.context or 0
        n_rows = length * (self.heads or 1)
        capacity.check(32.0 * n_rows * max(1, self.rope.rotary_dim), f"a table of context={length}", "context")
        positions = np.arange(length)
        cos, sin = self.rope.table(positions if self.heads is None else positions[:, None])
        return cos.reshape(n_rows, -1), sin.reshape(n_rows, -1)

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return cos and sin at all positions of the context, as `exact_table`, rounded once to the type asked for."""
        cos, sin = self.exact_table()
        return cos.astype(self.dtype), sin.astype(self.dtype)


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """An engine's arithmetic with the data that it was given.

    Attributes
    ----------
    frequencies : array, (D,), or None
        As the engine has them; None where it is given a table.
    phase_error : array, (D,), or float
        Largest relative error of a phase beside that of its frequency, from the engine's own arithmetic.
    entry_error : float
        Largest error of an entry of cos or sin, of size 1, beside that of its phase.

    See Also
    --------
    engines.Format, exports.rounding

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
    """The form in which an engine is given frequencies.

    Attributes
    ----------
    carries : str
        The data, in the engine's own words.
    exact : str
        Values that round.
    source : str
        Files of the engine that were read, with its version, and whether a test runs it.
    make : callable
        `ExportRequest` to plain data.
    arithmetic : callable
        `ExportRequest` and that data to `Arithmetic`.
    suffixes : tuple of str
        Endings of the files in which it is written.
    copies_model : bool
        Whether a file may be a copy of a model's, with its RoPE replaced.
    pairings : tuple of str
        Those that it can turn.
    factor : bool
        Whether it keeps an attention factor.
    any_rope : bool
        Whether a set for each head and several axes fit in.
    heads : str
        How a set for each head fits in, in words; "" where heads share one.
    layered : tuple of str
        Model types of which it takes the Ropes of all kinds of layers in one export.
    options : tuple of str
        Those of context, base, dtype and architecture that it uses.
    refusal : callable or None
        `ExportRequest` to a reason against it that the fields above do not say, or "".
    cannot : str
        The same in words, for the documentation.

    See Also
    --------
    engines.ExportRequest, exports.export

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
    layered: tuple[str, ...] = ()
    options: tuple[str, ...] = ("context",)
    refusal: Callable[[ExportRequest], str] | None = None
    cannot: str = ""

    @property
    def lacks(self) -> str:
        """Everything that it cannot carry, in words."""
        lacks = [] if self.any_rope or self.heads else ["sets for each head"]
        lacks += [] if self.any_rope else ["several axes"]
        lacks += [] if len(self.pairings) == 2 else ["interleaved pairs"]
        lacks += [] if self.factor else ["an attention factor"]
        return ", ".join([*lacks, self.cannot] if self.cannot else lacks) or "nothing"


@dataclass(frozen=True)
class Engine:
    """Everything that is known of one engine.

    Attributes
    ----------
    name : str
        As its makers write it; it is found in any spelling.
    reading : Reading or None
        How it reads a config's RoPE, where that is known: `rfrope.models.compare` asks it.
    format : Format or None
        How it is given frequencies, where it takes them: ``rfrope.exports`` writes it.

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
