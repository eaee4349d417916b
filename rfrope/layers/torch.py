"""Rotary embedding as a module of PyTorch: exact wherever it is moved or cast, learnable, compiled, exported."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np

from rfrope._core import angles, array, blocks, capacity, tensors, turns, twins
from rfrope._core.angles import Angles
from rfrope._core.arguments import choice
from rfrope._core.blocks import Turn
from rfrope.rotation.rope import Rope, dealt
from rfrope.rotation.turning import rotated, rotation_table

try:
    import torch

    from rfrope.layers.graphs import InGraphs
except ImportError as error:
    raise ImportError("rfrope.layers.torch needs PyTorch: pip install 'rfrope[torch]'") from error

__all__ = ["RotaryEmbedding"]

_LEARNABLE = ("frequencies", "phases", "both")
_OTHERS = ("inv_freq", "original_inv_freq", "freqs", "cos_cached", "sin_cached")  # what other modules put into states
_ROUNDED = 0.01  # relative: further than bfloat16 takes a frequency
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
    rope : Rope or array_like
        Frequencies ``(D,)``, or of their own for each head and of several axes ``(*H, D, k)``; with its pairing,
        attention factor and sections. An array is paired ``"half"``.
    learnable : bool or {"frequencies", "phases", "both"}
        What is a parameter: nothing, or the frequencies (also True), or phases in radians that are added to those of
        the keys, or both. Parameters are float64, or float32 if the Rope's frequencies are.
    max_positions : int, optional
        Rotate by tables of cos and sin in float32 for so many positions, with torch's own operators alone: for graphs
        that are to run without rfrope. Positions are then integers from 0 to ``max_positions - 1``.

    Attributes
    ----------
    rope : Rope
        As given; frequencies that are learned start from it.
    axes : int
        How many axes positions have.
    frequencies, phases : torch.nn.Parameter or None
        What is learned: the shape of ``rope.frequencies``, and of one phase for each block.

    Raises
    ------
    ValueError, TypeError
        For a Rope without a pairing, an unknown `learnable`, and tables for several axes or heads, or for what is
        learned.
    ImportError
        From the module, where PyTorch is missing; the message names the extra to install.

    Notes
    -----
    On the CPU a call without gradients runs compiled loops at once, and a decode step does not check again what it has
    checked. With gradients, under ``torch.compile`` and in ``torch.export`` it is one operator for each of q and k
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

    def __init__(self, rope: Any, learnable: bool | str = False, max_positions: int | None = None) -> None:
        super().__init__()
        self.rope = rope if isinstance(rope, Rope) else Rope(rope)
        if self.rope.pairing is None:
            raise ValueError("rope.pairing is None; expected 'half' or 'interleaved', as dataclasses.replace gives it")
        self._turn = Turn(self.rope.pairing, self.rope.pairing, self.rope.attention_factor)
        named = ("none", "frequencies")[learnable] if isinstance(learnable, bool) else learnable
        choice("learnable", named, ("none", *_LEARNABLE))
        self._learned = tuple(name for name in _LEARNABLE[:2] if named in (name, "both"))
        row = 64.0 * self.rope.n_blocks
        self.max_positions = (
            None if max_positions is None else capacity.count("max_positions", max_positions, 1, each=row)
        )
        self._host = angles.on_host(self.rope)  # (D, k) or (heads, D, k)
        heads = self._host.shape[:-2]
        if len(heads) > 1:
            raise ValueError(
                f"the Rope has frequencies of shape {self._host.shape}; expected one axis of heads at most"
            )
        self._sets = heads[0] if heads else 0
        self._blocks, self.axes = self._host.shape[-2:]
        self._is_fixed = not self._learned and self.rope.source.get("turned") != "last"
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
        self, q: Tensor, k: Tensor, positions: Tensor | None = None, offset: int | Tensor = 0
    ) -> tuple[Tensor, Tensor]:
        """Turn queries and keys.

        Parameters
        ----------
        q, k : tensors, (..., heads, tokens, d)
            They have one dtype; keys may have fewer heads than queries, which then share them in groups of neighbours.
        positions : tensor or array_like, optional
            Those of the tokens: ``(tokens,)`` for all sequences or ``(batch, tokens)``, and with a last axis k for
            several axes of positions. Ragged and packed sequences say theirs. Consecutive from 0 unless given.
        offset : int or tensor
            Added to the positions: how many tokens a cache holds.

        Returns
        -------
        q, k : tensors
            Turned, with the shape, dtype and device of those given.

        Raises
        ------
        ValueError, TypeError
            As `rfrope.rotate`, and for heads that do not fit in groups.
        """
        if torch.compiler.is_compiling():
            turned = self.in_graph(q, k, positions, offset)
            return self._slowly(q, k, positions, offset) if turned is None else turned
        steps = self._steps.get(q.shape[-3] if self._sets and q.ndim > 2 else 0)
        at = None if steps is None else self._read(q, positions, offset)
        turned = None if steps is None or at is None else steps.turned(q, k, at)
        return self._slowly(q, k, positions, offset) if turned is None else turned

    def extra_repr(self) -> str:
        """What the module is made of, in its repr."""
        learned = f", learnable={' and '.join(self._learned)}" if self._learned else ""
        return f"{self.rope!r}{learned}" + (f", max_positions={self.max_positions}" if self.max_positions else "")

    # -- what is kept, and what is made anew ---------------------------------------------------------------------------

    def _forget(self) -> None:
        """Make what follows from the Rope, which no cast, move or file changes: it is no buffer."""
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
        self._steps: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        made = ("_constants", "_placed", "_steps")
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

    def _slowly(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> tuple[Tensor, Tensor]:
        """Turn with all checks, and note what a repeated call needs."""
        self._check(q, k)
        at = self._positions(q, positions, offset)
        if self.max_positions is not None:
            self._check_rows(at, self.max_positions)
            if q.dtype != torch.float64:
                return self._by_table(q, k, at)
        turned = self._turned(q, k, at, self._omega(q.device))
        if not (torch.compiler.is_compiling() or self._learned or self.max_positions is not None):
            self._learn(q, k, positions, offset)
        return turned

    def _learn(self, q: Tensor, k: Tensor, positions: Any, offset: Any) -> None:
        read = self._read(q, positions, offset)
        if read is None:
            return
        heads = q.shape[-3] if self._sets else 0
        steps = self._steps.get(heads)
        if steps is None:
            try:
                kind = twins.load("cpu", "rotation").Steps
            except ImportError:
                return
            of_queries = np.repeat(self._host, heads // self._sets, axis=0) if self._sets else self._host
            steps = kind((of_queries, self._host), self._turn.pairing, self.rope.attention_factor)
            self._steps[heads] = steps
        steps.learn(q, k, read)

    def _read(self, q: Tensor, positions: Any, offset: Any) -> np.ndarray | None:
        """Positions as compiled loops read them, if that takes no look at their values."""
        if type(offset) is not int:
            return None
        if positions is None:
            if self.axes > 1:
                return None
            return np.arange(offset, offset + q.shape[-2], dtype=np.float64)[:, None]
        if not (isinstance(positions, torch.Tensor) and tensors.are_memory(positions)):
            return None
        given = positions.numpy()
        if given.dtype.kind not in "iu":
            return None
        read = np.array(given, np.float64, order="C")
        read = angles.as_vectors(read, self.axes)
        return _with_heads(read + offset if offset else read)

    def _check(self, q: Tensor, k: Tensor) -> None:
        for name, x in (("q", q), ("k", k)):
            blocks.features(_dense(x, name), _XP, name)
            if x.ndim < 3:
                raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (..., heads, tokens, d)")
            blocks.check_width(x, self._blocks, "the Rope", name)
            if self.rope.source.get("turned") == "last" and x.shape[-1] > self.rope.rotary_dim:
                last = f"{name}[..., -{self.rope.rotary_dim}:]"
                raise ValueError(f"this model turns the last features of a head; expected {last} as {name}")
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"q has {q.shape[-2]} tokens, but k has {k.shape[-2]}; expected the same: call it for each"
            )
        heads, shared = q.shape[-3], k.shape[-3]
        if shared == 0 or heads % shared:
            raise ValueError(f"q has {heads} heads and k has {shared}; expected a number that {shared} divides")
        if self._sets and self._sets != shared:
            raise ValueError(
                f"the Rope has {self._sets} sets of frequencies, but k has {shared} heads; expected one set for each "
                "head of k, which the queries of its group share"
            )

    def _positions(self, q: Tensor, positions: Any, offset: Any) -> Tensor:
        """Positions ``(*P, k)``, with an axis for the heads where there are several sequences."""
        axes = self.axes
        xp, device = array.shared({"positions": positions, "offset": offset}, q=q)
        if positions is None:
            if axes > 1:
                raise ValueError(f"positions is None; expected (..., tokens, {axes}): the Rope has {axes} axes")
            positions = torch.arange(q.shape[-2], device=device)
        positions = _widened(array.numbers(positions, xp, name="positions", device=device))
        if axes > 1 and (positions.ndim < 2 or positions.shape[-1] != axes):
            raise ValueError(f"positions has shape {tuple(positions.shape)}; expected (..., tokens, {axes})")
        positions = angles.as_vectors(positions, axes)
        if isinstance(offset, int):
            positions = positions + offset if offset else positions
        else:
            offset = _widened(array.numbers(offset, xp, name="offset", device=device))
            positions = positions + (offset.reshape(-1, 1, 1) if offset.ndim else offset)
        angles.check_values("positions", positions, xp)
        return _with_heads(positions)

    def _omega(self, device: Any) -> Tensor:
        """Frequencies ``(D, k)``, or ``(heads of keys, D, k)``, in float64; on the host if the device has none."""
        if self.frequencies is not None:
            _check_wide("frequencies", self.frequencies)
            learned = _widened(self.frequencies, copied=True)
            if self.rope.sections is not None:
                return dealt(learned, self.rope.sections, self.rope.interleaved)
            return angles.as_vectors(learned, learned)
        return self._moved("frequencies", device) if array.has_float64(_XP, device) else self._host

    def _moved(self, name: str, device: Any) -> Tensor:
        """What follows from the Rope, on a device."""
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

    def _turned(self, q: Tensor, k: Tensor, at: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        xp, shift = _XP, None
        if self.phases is not None:
            _check_wide("phases", self.phases)
            shift = _widened(self.phases, copied=True)
            shift = shift[:, None] if self._sets else shift
        of_queries, found = self._of_queries(omega, q.shape[-3] // k.shape[-3]), []
        for name, x, angle in (("q", q, Angles(at, of_queries, None, xp)), ("k", k, Angles(at, omega, shift, xp))):
            blocks.prepared(x, angle.shape, self._turn.pairing, None, None, (name, "positions"))
            found.append(rotated(x, angle, self._turn, None))
        return found[0], found[1]

    def _of_queries(self, omega: Any, group: int) -> Any:
        """Frequencies of the heads of queries, from those of the keys that they share."""
        if not self._sets or group == 1:
            return omega
        return omega.repeat(group, 0) if omega is self._host else omega.repeat_interleave(group, 0)

    @staticmethod
    def _check_rows(at: Tensor, count: int) -> None:
        """Refuse positions that are not rows of the tables."""
        if at.is_floating_point():
            raise TypeError("positions are floats; expected integers, as max_positions is given")
        if array.on_host(at) and at.numel() and not 0 <= int(at.min()) <= int(at.max()) < count:
            raise ValueError(f"positions go from {int(at.min())} to {int(at.max())}; expected 0 to {count - 1}")


def _dense(x: Any, name: str) -> Tensor:
    """Refuse what is no tensor, or holds some of its elements only."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} has type {type(x).__module__}.{type(x).__qualname__}; expected a tensor of PyTorch")
    tensors.check_dense(x, name)
    return x


def _widened(numbers: Tensor, *, copied: bool = False) -> Tensor:
    """Numbers that may be added up: in float64, or int64 for integers.

    What shards parameters frees their memory after the call, and cannot where a loop saw it: loops are given a copy.
    """
    wide = torch.float64 if array.has_float64(_XP, numbers.device) else torch.float32
    return numbers.to(wide if numbers.is_floating_point() else torch.int64, copy=copied)


def _with_heads(positions: Any) -> Any:
    """Positions ``(tokens, k)``, or ``(..., 1, tokens, k)`` where each sequence has its own."""
    return positions[..., None, :, :] if positions.ndim > 2 else positions


def _check_wide(name: str, parameter: Tensor) -> None:
    if parameter.dtype not in _WIDE:
        raise TypeError(
            f"{name} is a parameter of {parameter.dtype}, which rounds it; expected float32 or float64: leave this "
            "module out of mixed precision (fully_shard it by itself, before the model), and load it again"
        )
