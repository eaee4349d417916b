"""Rotary embedding as a module of PyTorch: exact wherever it is moved or cast, learnable, compiled, exported."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np

from rfrope._core import angles, array, blocks, capacity, dispatch, turns
from rfrope._core.angles import Angles
from rfrope._core.arguments import choice, flag
from rfrope._core.blocks import Turn
from rfrope._core.libraries import TORCH
from rfrope.rotation.rope import Rope, dealt
from rfrope.rotation.turning import rotated, rotation_table

try:
    import torch

    from rfrope.layers.graphs import InGraphs
    from rfrope.layers.reading import origin, read_head_dim, read_ladder
except ImportError as error:
    raise ImportError("rfrope.layers.torch needs PyTorch: pip install 'rfrope[torch]'") from error

__all__ = ["RotaryEmbedding"]

_LEARNABLE = ("frequencies", "phases", "both")
_OTHERS = ("inv_freq", "original_inv_freq", "freqs", "cos_cached", "sin_cached")  # what other modules put into states
_ROUNDED = 0.01  # relative: further than bfloat16 takes a frequency
_LAYOUTS = ("bhtd", "bthd")
_DONE = "_is_hf_initialized"  # the mark of transformers
_WIDE = (torch.float32, torch.float64)
_XP = array.named_namespace(torch)

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see


class RotaryEmbedding(InGraphs):
    """Rotate queries and keys by position.

    Its frequencies stay exact under ``half()``, ``bfloat16()``, ``to(dtype)``, autocast and mixed precision, are made
    anew from the Rope after the meta device, and are not part of the state, unless they are learned.

    Parameters
    ----------
    rope : Rope, array_like or int
        Frequencies ``(D,)``, or of their own for each head and of several axes ``(*H, D, k)``; with its pairing,
        attention factor and sections. An array is paired ``"half"``. An even number of features 2D, as other libraries
        take it, stands for the ladder of base 10000, ``rfrope.geometric(D)``.
    learnable : bool or {"frequencies", "phases", "both"}
        What is a parameter: nothing, or the frequencies (also True), or phases in radians that are added to those of
        the keys, or both. Parameters are float64, or float32 if the Rope's frequencies are.
    max_positions : int, optional
        Rotate by tables of cos and sin in float32 for so many positions, with torch's own operators alone: for graphs
        that are to run without rfrope. Positions are then integers from 0 to ``max_positions - 1``.
    head_dim : int, optional
        Features of a query or key, of which the first 2D are turned; that of the Rope, or 2D, unless given. Features of
        another width are refused, but for the 2D that turn, taken by themselves.
    layout : {"bhtd", "bthd"}
        The order of batch, heads, tokens and features: as attention takes them, or as projections leave them.

    Attributes
    ----------
    rope : Rope
        As given; frequencies that are learned start from it.
    head_dim, layout
        As above.
    axes : int
        How many axes positions have.
    frequencies, phases : torch.nn.Parameter or None
        What is learned: the shape of ``rope.frequencies``, and of one phase for each block.

    Raises
    ------
    ValueError, TypeError
        For a Rope without a pairing, or of another `head_dim`, an unknown `learnable` or `layout`, and tables for
        several axes or heads, or for what is learned.
    ImportError
        From the module, where PyTorch is missing; the message names the extra to install.

    Notes
    -----
    On the CPU a call without gradients runs compiled loops at once, and a decode loop holds the plan of its layout.
    With gradients, under ``torch.compile`` and in ``torch.export`` it is one operator for each of q and k
    (`rfrope::turn`), which runs the same loops forwards and backwards.

    Examples
    --------
    >>> import rfrope, torch
    >>> rotary = RotaryEmbedding(rfrope.geometric(32))
    >>> q, k = torch.ones(1, 8, 16, 64), torch.ones(1, 2, 16, 64)  # 8 heads of queries, 2 of keys, 16 tokens
    >>> q, k = rotary(q, k)
    >>> q, k = rotary(q[..., :1, :], k[..., :1, :], offset=16)  # the next token of a cache
    >>> q.shape, k.shape
    (torch.Size([1, 8, 1, 64]), torch.Size([1, 2, 1, 64]))
    """

    def __init__(
        self,
        rope: Any,
        learnable: bool | str = False,
        max_positions: int | None = None,
        *,
        head_dim: int | None = None,
        layout: str = "bhtd",
    ) -> None:
        super().__init__()
        if isinstance(rope, int | np.integer):
            rope = read_ladder(rope)
        self.rope = rope if isinstance(rope, Rope) else Rope(rope)
        if self.rope.pairing is None:
            raise ValueError("rope.pairing is None; expected 'half' or 'interleaved', as dataclasses.replace gives it")
        self.head_dim, self.layout = read_head_dim(self.rope, head_dim), choice("layout", layout, _LAYOUTS)
        self._turn = Turn(self.rope.pairing, self.rope.pairing, self.rope.attention_factor)
        named = ("none", "frequencies")[learnable] if isinstance(learnable, bool) else learnable
        choice("learnable", named, ("none", *_LEARNABLE))
        self._learned = tuple(name for name in _LEARNABLE[:2] if named in (name, "both"))
        row = 64.0 * self.rope.n_blocks
        self.max_positions = (
            None if max_positions is None else capacity.count("max_positions", max_positions, 1, each=row)
        )
        self._host = angles.read_on_host(self.rope)  # (D, k) or (heads, D, k)
        heads = self._host.shape[:-2]
        if len(heads) > 1:
            raise ValueError(
                f"the Rope has frequencies of shape {self._host.shape}; expected one axis of heads at most"
            )
        self._sets = heads[0] if heads else 0
        self._blocks, self.axes = self._host.shape[-2:]
        self._is_fixed, self._last_turn = not self._learned, self.rope.source.model.turns_last
        if self.max_positions is not None and (self._learned or self._sets or self._host.shape[-1] > 1):
            what = "what is learned" if self._learned else f"frequencies of shape {self._host.shape}"
            raise ValueError(f"max_positions is {max_positions}, but there are no tables for {what}; expected None")
        dtype = torch.float32 if array.dtype_name(self.rope.frequencies) == "float32" else torch.float64
        shape = {"frequencies": tuple(self.rope.frequencies.shape), "phases": self._host.shape[:-1]}
        for name in _LEARNABLE[:2]:
            learned = torch.nn.Parameter(torch.empty(shape[name], dtype=dtype)) if name in self._learned else None
            self.register_parameter(name, learned)
        self._from_meta = any(getattr(self, name).is_meta for name in self._learned)
        self.reset_parameters()
        self._forget()

    def reset_parameters(self) -> None:
        """Let what is learned start anew: frequencies from the Rope, phases from 0."""
        self._start(self._learned)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        positions: Tensor | None = None,
        offset: int | Tensor = 0,
        k_positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Turn queries and keys.

        Parameters
        ----------
        q, k : tensors, (..., heads, tokens, d)
            Or ``(..., tokens, heads, d)``, as `layout` says. They have one dtype; keys may have fewer heads than
            queries, which then share them in groups of neighbours.
        positions : tensor or array_like, optional
            Those of the tokens: ``(tokens,)`` for all sequences or ``(batch, tokens)``, and with a last axis k for
            several axes of positions. Ragged and packed sequences say theirs. Consecutive from 0 unless given.
        offset : int or tensor
            Added to the positions: how many tokens a cache holds.
        k_positions : tensor or array_like, optional
            Those of the keys where they are others, or as many as there are other keys; `offset` is not added.

        Returns
        -------
        q, k : tensors
            Turned, with the shape, dtype and device of those given.

        Raises
        ------
        ValueError, TypeError
            As `rfrope.rotate`, for heads that do not fit in groups or are of another width, and for positions of more
            than 64 bits.
        """
        x, y = (q, k) if self.layout == "bhtd" else (self._exchanged(q), self._exchanged(k))
        turned = None
        if torch.compiler.is_compiling():
            turned = self.turn_in_graph(x, y, positions, offset) if k_positions is None else None
        elif k_positions is None and self._is_fixed and self.max_positions is None:
            turned = self._turn_at_once(x, y, positions, offset)
        if turned is None:
            turned = self._turned_both(x, y, positions, offset, k_positions)
        return turned if self.layout == "bhtd" else (self._exchanged(turned[0]), self._exchanged(turned[1]))

    def rotate(
        self, x: Tensor, positions: Tensor | None = None, offset: int | Tensor = 0, *, keys: bool = False
    ) -> Tensor:
        """Turn queries or keys alone.

        Parameters
        ----------
        x : tensor, (..., heads, tokens, d)
            As in `forward`. Where each head has frequencies of its own, as many heads as there are sets, or some for
            each.
        positions, offset
            As in `forward`.
        keys : bool
            Add the phases that are learned, which belong to keys.

        Returns
        -------
        tensor
            Turned, with the shape, dtype and device of x.

        Raises
        ------
        ValueError, TypeError
            As `forward`.
        """
        x = x if self.layout == "bhtd" else self._exchanged(x)
        self._check("x", x)
        if self._sets and x.shape[-3] % self._sets:
            raise ValueError(
                f"the Rope has {self._sets} sets of frequencies, but x has {x.shape[-3]} heads; expected a multiple of "
                f"{self._sets}{self._hint(x.shape[-2] % self._sets == 0)}"
            )
        at = self._read("positions", x, positions, offset)
        (turned,) = self._turned(origin(offset), at, ("x", x, flag("keys", keys)))
        return turned if self.layout == "bhtd" else self._exchanged(turned)

    def extra_repr(self) -> str:
        """Return the fields that the repr shows."""
        shown = [repr(self.rope)] + ([f"learnable={' and '.join(self._learned)}"] if self._learned else [])
        shown += [f"max_positions={self.max_positions}"] if self.max_positions else []
        shown += [f"head_dim={self.head_dim}"] if self.head_dim != self.rope.head_dim else []
        return ", ".join(shown + ([f"layout={self.layout!r}"] if self.layout != "bhtd" else []))

    # -- what is kept, and what is made anew ---------------------------------------------------------------------------

    def _forget(self) -> None:
        """Rebuild constants derived from the Rope. They are not buffers, so casts and loads leave them unchanged."""
        made = {"frequencies": self._host}
        if not self._learned:
            words, rests = turns.wrapping_turns(self._host)
            made["turns"] = np.stack([words, rests.view(np.int64)])
        if self.max_positions is not None:
            at = np.arange(self.max_positions)
            tables = rotation_table(at, self._host[:, 0], scale=self.rope.attention_factor)
            made["rows of positions"] = np.concatenate(tables, axis=-1).astype(np.float32)
        with torch.inference_mode(False):
            self._constants = {name: torch.from_numpy(value.copy()) for name, value in made.items()}
        self._placed: dict[Any, Tensor] = {}
        self._backend = _loops()
        self._last_plans: tuple[Any, Any] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        made = ("_constants", "_placed", "_backend", "_last_plans")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _apply(self, fn: Any, recurse: bool = True) -> RotaryEmbedding:
        """Move what is learned, and never narrow it; what comes from the meta device starts anew."""
        empty = any(getattr(self, name).is_meta for name in self._learned)

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            if found.dtype == tensor.dtype or not tensor.is_floating_point():
                return found
            like = torch.empty_like(tensor, device=found.device)
            return like if tensor.is_meta or like.is_meta else like.copy_(tensor)

        super()._apply(moved, recurse)
        if empty and not any(getattr(self, name).is_meta for name in self._learned):
            self.reset_parameters()
        return self

    def _start(self, names: tuple[str, ...]) -> None:
        starts = {"frequencies": array.to_host(self.rope.frequencies), "phases": np.zeros(self._host.shape[:-1])}
        with torch.no_grad():
            for name in names:
                parameter, start = getattr(self, name), torch.from_numpy(np.array(starts[name], np.float64))
                if hasattr(parameter, "placements"):  # a part of it is here, as fully_shard leaves it
                    from torch.distributed.tensor import distribute_tensor

                    like = parameter.device_mesh, parameter.placements
                    start = distribute_tensor(start.to(parameter.device, parameter.dtype), *like)
                parameter.copy_(start)

    def __setattr__(self, name: str, value: Any) -> None:
        """Note that a loader of transformers is done with this module: what no file had is raw memory, and starts anew.

        The loader marks each parameter that it has read, and then every module. A module that was not made on the meta
        device holds no raw memory; what marks it then is no loader.
        """
        super().__setattr__(name, value)
        if name == _DONE and value and self._from_meta:
            self._from_meta = False
            self._start(tuple(one for one in self._learned if not getattr(getattr(self, one), _DONE, False)))

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: Any,
    ) -> None:
        """Accept what other rotary modules have in their states, and keep to the Rope."""
        others = {name: state_dict.pop(f"{prefix}{name}", None) for name in _OTHERS}
        given = others["inv_freq"]
        if given is not None and "frequencies" in self._learned:
            state_dict.setdefault(f"{prefix}frequencies", given.reshape(self.frequencies.shape))
        elif given is not None:
            expected = torch.from_numpy(array.to_host(self.rope.frequencies).astype(np.float64)).reshape(-1)
            given = given.detach().double().cpu().reshape(-1)
            if given.shape != expected.shape or bool(((given - expected).abs() > _ROUNDED * expected.abs()).any()):
                warnings.warn(
                    f"{prefix}inv_freq of the state is not what the Rope has, and is passed over: expected the Rope of "
                    "this checkpoint, as rfrope.from_config gives it",
                    stacklevel=2,
                )
        for name in self._learned:
            if (key := f"{prefix}{name}") in state_dict:
                state_dict[key] = state_dict[key].to(getattr(self, name).dtype)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    # -- the call ------------------------------------------------------------------------------------------------------

    def _turn_at_once(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> tuple[Tensor, Tensor] | None:
        """Turn small tensors of the CPU by one call, or return None for whatever takes a closer look.

        The plans of the last layout are held: a decode loop asks for them again.
        """
        if self._backend is None or not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor)):
            return None
        at = self._read_quickly(q, positions, offset) if TORCH.are_memory(q, k) else None
        if at is None:
            return None
        key = q.shape, q.stride(), k.shape, k.stride(), q.dtype, k.dtype, at.shape
        last, plans = self._last_plans
        if key != last:
            plans = None
            if self._belong(q, k) and self._fits(at, q):
                frequencies = self._read_frequencies(q.shape[-3])
                found = self._backend.plans_of_both(q, k, at.shape, frequencies, self._turn.pairing)
                plans = None if found is None else (found, frequencies)
            self._last_plans = key, plans
        if plans is None:
            return None
        turned: tuple[Tensor, Tensor] = self._backend.rotated_both(plans[0], q, k, at, plans[1], self._turn.scale)
        return turned

    def _read_frequencies(self, heads: int) -> tuple[Any, Any]:
        """Frequencies of so many heads of queries, and of keys, as the backend reads them."""
        read = self._backend.Frequencies.read
        of_queries = self._repeat_for_heads(self._host, heads)
        of_keys = read(self._host)
        return of_keys if of_queries is self._host else read(of_queries), of_keys

    def _turned_both(
        self, q: Tensor, k: Tensor, positions: Any, offset: Any, k_positions: Any
    ) -> tuple[Tensor, Tensor]:
        """Turn with all checks."""
        self._check("q", q)
        self._check("k", k)
        self._check_both(q, k, k_positions is not None)
        at = self._read("positions", q, positions, offset)
        if k_positions is not None:
            k_at = self._read("k_positions", k, k_positions, 0)
            (first,) = self._turned(origin(offset), at, ("q", q, False))
            (second,) = self._turned("k_positions", k_at, ("k", k, True))
            return first, second
        first, second = self._turned(origin(offset), at, ("q", q, False), ("k", k, True))
        return first, second

    def _check(self, name: str, x: Tensor) -> None:
        """Refuse what are no features, in the layout bhtd, of the heads that this module turns."""
        blocks.features(self._dense(x, name), _XP, name)
        for learned in self._learned:
            self._check_device(name, x, learned, getattr(self, learned))
        if x.ndim < 3:
            order = "heads, tokens" if self.layout == "bhtd" else "tokens, heads"
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (..., {order}, d)")
        blocks.check_width(x, self._blocks, "the Rope", name)
        width, turning = x.shape[-1], 2 * self._blocks
        if width > turning and self._last_turn:
            raise ValueError(
                f"this model turns the last features of a head; expected {name}[..., -{turning}:] as {name}"
            )
        if width != self.head_dim and not self._takes(width):
            part = "" if turning == self.head_dim else f", or the {turning} that turn"
            raise ValueError(
                f"{name} has {width} features, but heads have {self.head_dim}; expected {self.head_dim}{part}: to turn "
                f"{turning} of {width}, give head_dim={width} to the Rope, or to RotaryEmbedding for an array"
            )

    def _check_both(self, q: Tensor, k: Tensor, apart: bool) -> None:
        """Refuse queries and keys that do not belong together."""
        self._check_device("q", q, "k", k)
        (heads, tokens), (shared, k_tokens) = q.shape[-3:-1], k.shape[-3:-1]
        if tokens != k_tokens and not apart:
            raise ValueError(
                f"q has {tokens} tokens, but k has {k_tokens}; expected the same, or k_positions"
                + self._hint(heads == shared)
            )
        if shared == 0 or heads % shared:
            raise ValueError(f"q has {heads} heads and k has {shared}; expected a number that {shared} divides")
        if self._sets and self._sets != shared:
            raise ValueError(
                f"the Rope has {self._sets} sets of frequencies, but k has {shared} heads; expected one set for each "
                f"head of k, which the queries of its group share{self._hint(k_tokens == self._sets)}"
            )

    def _hint(self, likely: bool) -> str:
        """Say that features seem to come in the other layout."""
        other, order = ("bthd", "tokens, heads") if self.layout == "bhtd" else ("bhtd", "heads, tokens")
        return f"; if features are (..., {order}, d), layout={other!r}" if likely else ""

    def _omega(self, device: Any) -> Tensor:
        """Frequencies ``(D, k)``, or ``(heads of keys, D, k)``, in float64; on the host if the device has none."""
        if self.frequencies is not None:
            self._check_wide("frequencies", self.frequencies)
            learned = self._widened(self.frequencies, True)
            if self.rope.sections is not None:
                return dealt(learned, self.rope.sections, self.rope.interleaved)
            return angles.to_vectors(learned, learned)
        return self._moved("frequencies", device) if array.has_float64(_XP, device) else self._host

    def _moved(self, name: str, device: Any) -> Tensor:
        """Return a constant derived from the Rope, on a device."""
        constant = self._constants[name]
        if constant.device == device:
            return constant
        found = self._placed.get((name, device))
        if found is None:
            with torch.inference_mode(False):
                found = constant.to(device)
            if not torch.compiler.is_compiling():
                self._placed[name, device] = found
        return found

    def _turned(self, places: str, at: Tensor, *features: tuple[str, Tensor, bool]) -> list[Tensor]:
        """Turn features, each with its name and whether it is keys, at positions of a name."""
        _, first, _ = features[0]
        fits = at.ndim == 2 and at.shape[0] == first.shape[-2]
        if self.max_positions is not None:
            self._check_rows(places, at, self.max_positions)
            if first.dtype != torch.float64:
                for name, x, _ in () if fits else features:
                    self._check_places(name, x, places, at, (*at.shape[:-1], self._blocks))
                rows = self._rows(at, first.device)
                return [self._turn_by_rows(x, *rows, self._turn.pairing) for _, x, _ in features]
        omega, shift, found = self._omega(first.device), self.phases, []
        if shift is not None:
            self._check_wide("phases", shift)
            shift = self._widened(shift, True)
            shift = shift[:, None] if self._sets else shift
        for name, x, are_keys in features:
            angle = Angles(at, self._repeat_for_heads(omega, x.shape[-3]), shift if are_keys else None, _XP)
            if not fits or self._sets:
                self._check_places(name, x, places, at, angle.shape)
            found.append(rotated(x, angle, self._turn, None))
        return found

    def _check_places(self, name: str, x: Tensor, places: str, at: Tensor, phases: tuple[int, ...]) -> None:
        """Refuse positions that are not those of the tokens."""
        try:
            blocks.prepared(x, phases, self._turn.pairing, None, None, (name, places))
        except ValueError as error:
            order = "" if self.layout == "bhtd" else ", in the order of layout 'bhtd'"
            raise ValueError(f"{error}{order}{self._hint(at.shape[-2] == x.shape[-3])}") from None

    def _repeat_for_heads(self, omega: Any, heads: int) -> Any:
        """Frequencies of so many heads, which share those of the keys in groups."""
        if not self._sets or heads == self._sets:
            return omega
        group = heads // self._sets
        return omega.repeat(group, 0) if omega is self._host else omega.repeat_interleave(group, 0)

    def _check_wide(self, name: str, parameter: Tensor) -> None:
        """Refuse a parameter that something has narrowed."""
        if parameter.dtype not in _WIDE:
            raise TypeError(
                f"{name} is a parameter of {parameter.dtype}, which rounds it; expected float32 or float64: leave this "
                "module out of mixed precision (fully_shard it by itself, before the model), and load it again"
            )


def _loops() -> Any:
    """Return the compiled loops of the CPU; None where they cannot work."""
    try:
        return dispatch.load(dispatch.CPU.rotation)
    except ImportError:
        return None
