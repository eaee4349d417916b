"""Rotary embedding as a PyTorch module: exact in every dtype and on every device, learnable, compilable, exportable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rfrope._core import angles, array, dispatch, turns
from rfrope._core.arguments import choice, flag, positive, whole
from rfrope._core.blocks import MAGNITUDES, TurnOptions
from rfrope.designs.learning import learned_kernel
from rfrope.frequencies.ladders import geometric
from rfrope.rotation.rope import Assumed, Rope
from rfrope.rotation.turning import rotation_table

try:
    import torch

    from rfrope.layers.launching import has_device
    from rfrope.layers.learning import LEARNABLE, POLAR_VERSION, read_learnable
    from rfrope.layers.turning import ORDERS, TurningModule
except ImportError as error:
    raise ImportError("rfrope.layers.torch needs PyTorch: pip install torch") from error

__all__ = ["PolarEmbedding", "RotaryEmbedding", "parameter_groups"]

_LOWEST = -2.0 * math.pi  # lower bound of the phases of a polar module, in radians
_SPREAD = 0.6531  # standard deviation of a product of two independent softplus of standard normal numbers

Tensor: TypeAlias = Any  # torch.Tensor, which the type checker does not see


class RotaryEmbedding(TurningModule):
    """Rotate queries and keys by position.

    Frequencies stay exact under ``half()``, ``bfloat16()``, ``to(dtype)``, autocast and mixed precision, and need no
    initialisation after the meta device. The state dict has them only if they are learned.

    Parameters
    ----------
    rope : Rope, array_like or int
        Frequencies ``(D,)``, or ``(*H, D, k)`` for several heads or axes. A Rope also sets pairing, attention factor
        and sections; an array is paired ``"half"``. An even int 2D, the width of a head, means RoPE of base 10000,
        ``rfrope.geometric(D)``.
    learnable : bool, str or sequence of str
        Parameters to learn: those of the ``"kernel"``, with the frequencies at the points of its design
        (`rfrope.designs.learned_kernel`); ``"factors"`` of the frequencies (or True), the ``"frequencies"`` themselves,
        ``"phases"`` added to those of the keys, in radians, and ``"temperature"``, a factor of all scores; ``"both"``
        means frequencies and phases. Factors and temperature are stored as logarithms, so they stay positive, and a
        step of AdamW changes every frequency by the same share; a step of frequencies themselves may be many times a
        slow one.
        Parameters are float64, or float32 if the Rope's frequencies are.
    max_positions : int, optional
        Rotate by float32 cos/sin tables of this many positions, using only torch's own operators, for graphs that run
        without rfrope. Positions must then be integers from 0 to ``max_positions - 1``.
    head_dim : int, optional
        Number of features of a query or key; the first 2D are rotated. Features must have this width, or be the 2D
        rotated ones alone. Default: that of the Rope, or 2D.
    layout : {"bhtd", "bthd"}
        Order of batch, heads, tokens and features: as attention expects it, or as projections return it.

    Attributes
    ----------
    start : Rope
        The given Rope, from which learning starts.
    rope : Rope
        The current Rope, as NumPy arrays: `start` with the learned kernel, frequencies, factors and temperature, which
        ``rope.source.scaled_by`` records. Learned phases are not included.
    learnable, kernel : tuple of str; Kernel, tuple of Kernel or None
        Names of the learned parameters; the learned kernel, or one for each set of frequencies.
    head_dim, layout
        As given.
    axes : int
        Number of position axes.
    frequencies, log_factors, phases, log_temperature : torch.nn.Parameter or None
        Learned parameters: two of the shape of ``start.frequencies``, one phase per block, and one number t. Queries
        and keys are each multiplied by ``exp(t / 2)``, like an attention factor. Those of a kernel have the names of
        `rfrope.designs.LearnedKernel`, as ``log_scale``.

    Raises
    ------
    ValueError, TypeError
        If the Rope has no pairing or another `head_dim`, ``learnable`` or `layout` is unknown, or `max_positions` is
        combined with several axes or heads, or with learned parameters.
    ImportError
        On import of the module if PyTorch is missing; the message names the extra to install.

    See Also
    --------
    rotate, layers.torch.PolarEmbedding, layers.torch.parameter_groups, integrations.transformers.replace_rotary

    Notes
    -----
    On the CPU, calls without gradients run compiled loops, and a decode loop reuses the plan of its layout. With
    gradients, under ``torch.compile`` and in ``torch.export``, q and k are each one operator (`rfrope::turn`), which
    runs the same loops forwards and backwards.

    The frequencies of a learned kernel are made on the host, once for equal parameters. After ``eval()``, calls without
    gradients turn by the Rope learned so far, as fast as a module that learns nothing; so do compiled ones, if no
    parameter requires a gradient (``requires_grad_(False)``). A value written into a parameter in a compiled
    graph, or on a device past autograd (``.data``), takes effect after ``train()``, ``eval()`` or a load.

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

    _bias_heads: int | None = None  # key heads with their own phases that share one set of frequencies

    def __init__(
        self,
        rope: Any,
        learnable: bool | str | Sequence[str] = False,
        max_positions: int | None = None,
        *,
        head_dim: int | None = None,
        layout: str = "bhtd",
    ) -> None:
        super().__init__()
        self.start = self._read_rope(rope)
        if self.start.pairing is None:
            raise ValueError("rope.pairing is None; expected 'half' or 'interleaved', as dataclasses.replace gives it")
        self.head_dim, self.layout = _read_head_dim(self.start, head_dim), choice("layout", layout, tuple(ORDERS))
        polar, pairing = self.start.polar, self.start.pairing
        coming = MAGNITUDES if polar else pairing
        self._turn = TurnOptions(coming, pairing, self.start.attention_factor, softplus=polar)
        self.learnable = read_learnable(learnable)
        self._law = learned_kernel(self.start) if "kernel" in self.learnable else None
        self._law_names = () if self._law is None else tuple(self._law.parameters)
        self._law_text = "" if self._law is None else repr(self._law.kernel)
        self._learned = (*self._law_names, *filter(None, (LEARNABLE[name] for name in self.learnable)))
        self._host = angles.read_on_host(self.start)  # (D, k) or (heads, D, k)
        if self._host.ndim > 3:
            raise ValueError(
                f"the Rope has frequencies of shape {self._host.shape}; expected at most one axis of heads"
            )
        self._sets = len(self._host) if self._host.ndim == 3 else 0
        self._blocks, self.axes = self._host.shape[-2:]
        self.max_positions = max_positions
        if max_positions is not None:
            self.max_positions = whole("max_positions", max_positions, 1)
            if self._learned or self._sets or self.axes > 1:
                what = "what is learned" if self._learned else f"frequencies of shape {self._host.shape}"
                raise ValueError(f"max_positions is {max_positions}, but there are no tables for {what}; expected None")
        dtype = torch.float32 if array.dtype_name(self.start.frequencies) == "float32" else torch.float64
        omega, heads = array.to_host(self.start.frequencies), self._bias_heads
        phases = np.zeros(self._host.shape[:-1] if heads is None else (heads, self._blocks))
        starts = {"log_factors": np.zeros(omega.shape), "phases": phases, "log_temperature": np.zeros(())}
        self._register((self._law.parameters if self._law else {}) | {"frequencies": omega} | starts, dtype)
        self._forget()

    def _read_rope(self, rope: Any) -> Rope:
        """Return the Rope of a Rope, frequencies or a width, of the kind that this module turns."""
        polar = isinstance(self, PolarEmbedding)
        if isinstance(rope, int | np.integer):
            each = 1 if polar else 2  # features of a frequency
            if whole("rope", rope, each) % each:
                raise ValueError(f"rope is {rope}; expected an even number of features, or a Rope or frequencies")
            rope = geometric(int(rope) // each)
        rope = rope if isinstance(rope, Rope) else Rope(rope, polar=polar)
        if polar and not rope.polar:
            raise ValueError(
                "rope is not polar: it has one frequency per two features; expected one per feature, as from "
                "rfrope.design(..., polar=True)"
            )
        if rope.polar and not polar:
            raise ValueError("rope is polar; expected rfrope.layers.torch.PolarEmbedding, or a Rope with polar=False")
        return rope

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        positions: Tensor | None = None,
        offset: int | Tensor = 0,
        k_positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys.

        Parameters
        ----------
        q, k : tensors, (..., heads, tokens, d)
            Or ``(..., tokens, heads, d)``, according to `layout`. Both have one dtype; keys may have fewer heads, each
            shared by a group of neighbouring query heads.
        positions : tensor or array_like, optional
            ``(tokens,)`` for all sequences, or ``(batch, tokens)``, with a last axis k for several position axes.
            Required for ragged and packed sequences. Default: consecutive from 0.
        offset : int or tensor
            Added to the positions: the number of tokens in a cache.
        k_positions : tensor or array_like, optional
            Positions of the keys, if different or of another number; `offset` is not added.

        Returns
        -------
        q, k : tensors
            Rotated, with the shape, dtype and device of the input.

        Raises
        ------
        ValueError, TypeError
            See `rfrope.rotate`. Also if heads do not fit in groups or have another width, or positions have more than
            64 bits.
        """
        if self._fixed is not None and (fixed := self.find_fixed()) is not None:
            found: tuple[Tensor, Tensor] = fixed.forward(q, k, positions, offset, k_positions)
            return found
        x, y = (q, k) if self.layout == "bhtd" else (self.exchanged(q), self.exchanged(k))
        turned = None
        if k_positions is None and not self._learned:
            turn = self.turn_in_graph if torch.compiler.is_compiling() else self.turn_at_once
            turned = turn(x, y, positions, offset)
        if turned is None and k_positions is None:
            turned = self.turn_on_device(x, y, positions, offset)
        if turned is None:
            first, second = self.turn_checked((("q", x, False), ("k", y, True)), positions, offset, k_positions)
            turned = first, second
        return turned if self.layout == "bhtd" else (self.exchanged(turned[0]), self.exchanged(turned[1]))

    def rotate(
        self, x: Tensor, positions: Tensor | None = None, offset: int | Tensor = 0, *, keys: bool = False
    ) -> Tensor:
        """Rotate queries or keys alone.

        Parameters
        ----------
        x : tensor, (..., heads, tokens, d)
            See `forward`. If each head has its own frequencies, the number of heads must be a multiple of the number of
            sets.
        positions, offset
            See `forward`.
        keys : bool
            Add the learned phases, which apply to keys.

        Returns
        -------
        tensor
            Rotated, with the shape, dtype and device of x.

        Raises
        ------
        ValueError, TypeError
            See `forward`.
        """
        keys = flag("keys", keys)
        if self._fixed is not None and (fixed := self.find_fixed()) is not None:
            return fixed.rotate(x, positions, offset)
        x = x if self.layout == "bhtd" else self.exchanged(x)
        (turned,) = self.turn_checked((("x", x, keys),), positions, offset)
        return turned if self.layout == "bhtd" else self.exchanged(turned)

    def extra_repr(self) -> str:
        """Return the fields that the repr shows."""
        shown = [repr(self.start)] + ([f"learnable={' and '.join(self.learnable)}"] if self._learned else [])
        shown += [f"max_positions={self.max_positions}"] if self.max_positions else []
        shown += [f"heads={self._bias_heads}"] if self._bias_heads else []
        shown += [f"head_dim={self.head_dim}"] if self.head_dim != self.start.head_dim else []
        return ", ".join(shown + ([f"layout={self.layout!r}"] if self.layout != "bhtd" else []))

    # -- what is kept, and what is made anew ---------------------------------------------------------------------------

    def _forget(self) -> None:
        """Rebuild constants derived from the Rope. They are not buffers, so casts and loads leave them unchanged."""
        made = {"frequencies": self._host} | ({} if self._law is None else {"points": self._law.points})
        if self.frequencies is None:
            made["words"], _ = turns.turn_words(self._host)
        if self.max_positions is not None:
            tables = rotation_table(np.arange(self.max_positions), self._host[:, 0], scale=self.start.attention_factor)
            made["rows of positions"] = np.concatenate(tables, axis=-1).astype(np.float32)
        with torch.inference_mode(False):
            self._constants = {name: torch.from_numpy(value.copy()) for name, value in made.items()}
        if self.frequencies is None:
            host = torch.device("cpu")
            self._constants["frequencies"] = turns.make_integer_turns(self._host, array.named_namespace(torch), host)
        self._placed, self._last_law, self._last_launch = {}, (None, None), [None]
        self._fixed, self._watched = None, ()
        self._place(torch.get_default_device(), *(getattr(self, name).device for name in self._learned))
        self._backend = dispatch.find(dispatch.CPU_DENSE) if self.max_positions is None else None
        self._last_calls = [([None], [None]), ([None], [None])]

    def __getstate__(self) -> dict[str, Any]:
        made = ("_constants", "_placed", "_backend", "_last_calls", "_last_launch", "_last_law", "_fixed", "_watched")
        state = {name: value for name, value in self.__dict__.items() if name not in made}
        return state | {"_devices": sorted({str(device) for _, device in self._placed})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        devices = state.pop("_devices", ())
        super().__setstate__(state)
        self._forget()
        self._place(*(torch.device(name) for name in devices if has_device(name)))


class _Bounded(torch.autograd.Function):
    """Return the nearest phase in [-2 pi, 0], with a gradient beyond where a step against it leads back.

    Phases start at a bound. With the gradient of a clamp, which is 0 beyond, one that steps over it would stay there.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(phases: Tensor) -> Tensor:
        """Return the phases within the bounds."""
        return phases.clamp(_LOWEST, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep the phases."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient, but 0 where a step against it would lead further away."""
        (phases,) = ctx.saved_tensors
        away = ((phases > 0.0) & (gradient < 0.0)) | ((phases < _LOWEST) & (gradient > 0.0))
        return torch.where(away, torch.zeros_like(gradient), gradient)


class _BoundedForward(_Bounded):
    """The same, with a derivative for forward mode: that of a clamp. PyTorch's compiler takes no function with one."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep the phases for both modes."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        """Return the tangent, but 0 beyond the bounds."""
        (phases,) = ctx.saved_tensors
        return torch.where((phases > 0.0) | (phases < _LOWEST), torch.zeros_like(tangent), tangent)


class PolarEmbedding(RotaryEmbedding):
    """Turn queries and keys into polar features, whose scores follow a kernel.

    Queries and keys x become magnitudes ``m = log(1 + exp(x))`` and then features ``(m cos u, m sin u)``, twice as
    wide. A score is ``sum_i m_i m'_i cos(lag omega_i + delta_i)``: no weight is negative, so while delta is 0 every
    score follows the kernel of the frequencies, not only the mean score (see the page of proofs).

    Parameters
    ----------
    rope : Rope, array_like or int
        A polar Rope, as returned by ``rfrope.design(..., polar=True)``; or frequencies, one per feature of a head; or
        the number of features of a head, for the ladder of base 10000.
    learnable : bool, str or sequence of str
        See `RotaryEmbedding`. Phases are the bias delta of keys. They start at 0 and are clamped to [-2 pi, 0] where
        they are used, with a gradient beyond where a step against it leads back, instead of a clamp's 0; forward mode
        differentiates the clamp.
    heads : int, optional
        Number of key heads, each with its own phases, if all share one set of frequencies.
    layout : {"bhtd", "bthd"}
        See `RotaryEmbedding`.

    Attributes
    ----------
    start, rope, head_dim, layout, axes, frequencies, log_factors, phases, log_temperature
        See `RotaryEmbedding`; `head_dim` is the number of magnitudes.
    score_scale : float
        Scale to pass to attention, so that initial scores spread as RoPE's do; see Notes.

    Raises
    ------
    ValueError, TypeError
        See `RotaryEmbedding`. Also for a Rope that is not polar, and for `heads` with frequencies per head.

    See Also
    --------
    rfrope.rotation.rotate_polar : the same as a function.

    Notes
    -----
    Attention divides by the root of the width it sees, now ``2 head_dim``, so pass it a scale. With independent
    standard normal content, RoPE's logits ``q . k / sqrt(head_dim)`` have standard deviation 1 at every lag; polar
    logits with ``scale=score_scale`` have 1 at lag 0, around a mean of ``0.99 sqrt(head_dim) Phi(lag)``: attention
    follows the kernel from the start. PoPE's scale, ``head_dim ** -0.5``, gives 0.65 times both. Source: Gopalakrishnan
    et al. (2025).

    Examples
    --------
    >>> import rfrope, torch
    >>> rope = rfrope.design("gaussian", head_dim=64, context=512, heads=2, ladder=(4.0, 64.0), polar=True, rng=0)
    >>> polar = PolarEmbedding(rope, learnable="phases")
    >>> q, k = torch.randn(1, 8, 16, 64), torch.randn(1, 2, 16, 64)  # 8 heads of queries, 2 of keys, 16 tokens
    >>> q, k = polar(q, k)
    >>> q.shape, k.shape
    (torch.Size([1, 8, 16, 128]), torch.Size([1, 2, 16, 128]))
    >>> weights = torch.softmax(polar.score_scale * q[:, :2] @ k.mT, -1)
    """

    _version = POLAR_VERSION

    def __init__(
        self,
        rope: Any,
        learnable: bool | str | Sequence[str] = False,
        *,
        heads: int | None = None,
        layout: str = "bhtd",
    ) -> None:
        if heads is not None:
            self._bias_heads = whole("heads", heads, 1)
        super().__init__(rope, learnable, layout=layout)
        if heads is not None and (self._sets or "phases" not in self._learned):
            what = f"{self._sets} sets of frequencies" if self._sets else "no phases to learn"
            raise ValueError(f"heads is {heads}, but the module has {what}; expected None")

    @property
    def score_scale(self) -> float:
        """Return the scale to pass to attention."""
        return 1.0 / (_SPREAD * self._blocks**0.5)

    def _bounded(self, phases: Tensor) -> Tensor:
        return (_Bounded if torch.compiler.is_compiling() else _BoundedForward).apply(phases)


def parameter_groups(model: Any, *, rate: float | None = None) -> list[dict[str, Any]]:
    """Return the parameters of a model in two groups for an optimiser: those of rotary modules have no decay.

    Parameters
    ----------
    model : torch.nn.Module
    rate : float, optional
        Learning rate of the rotary modules. Default: that of the optimiser.

    Returns
    -------
    list of dict
        All other parameters, and those of `RotaryEmbedding` and `PolarEmbedding`.

    See Also
    --------
    layers.torch.RotaryEmbedding

    Examples
    --------
    >>> import torch
    >>> rotary = RotaryEmbedding(64, learnable="kernel")
    >>> optimizer = torch.optim.AdamW(parameter_groups(rotary, rate=0.01), lr=1e-3)
    >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    [(0, 0.001, 0.01), (2, 0.01, 0.0)]
    """
    learned = {one for part in model.modules() if isinstance(part, TurningModule) for one in part.parameters(False)}
    groups: list[list[Tensor]] = [[], []]
    for parameter in model.parameters():
        groups[parameter in learned].append(parameter)
    own: dict[str, Any] = {} if rate is None else {"lr": positive("rate", rate)}
    return [{"params": groups[False]}, {"params": groups[True], "weight_decay": 0.0, **own}]


def _read_head_dim(rope: Rope, head_dim: Any) -> int | None:
    """Width of a head, which may be that of the Rope alone where it has one."""
    width = rope.head_dim if head_dim is None else whole("head_dim", head_dim, rope.rotary_dim)
    if width != rope.head_dim and not isinstance(rope.head_dim, Assumed):
        raise ValueError(
            f"head_dim is {width}, but the Rope has head_dim={rope.head_dim}; expected the same, or only one of them"
        )
    return width
