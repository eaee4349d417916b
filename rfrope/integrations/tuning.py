"""Learn the rotation of a PyTorch model, its weights frozen: `tune_modules`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np

from rfrope._core import array
from rfrope._core.arguments import choice, listed, show
from rfrope.rotation.rope import Rope

try:
    import torch

    from rfrope.integrations.halving import AS_IT_IS, Halving, frozen
    from rfrope.integrations.tuned import Tuning
    from rfrope.layers.torch import PolarEmbedding, RotaryEmbedding
except ImportError as error:
    raise ImportError("integrations.tuning needs PyTorch and safetensors: pip install torch safetensors") from error

__all__ = ["Tuning", "tune_modules"]

_LEARNABLE = ("factors", "temperature")

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see


def tune_modules(
    model: Module,
    loss: Callable[[Any], Any],
    learning: Sequence[Any] | Callable[[int], Any],
    validation: Mapping[str, Sequence[Any]],
    held_out: Mapping[str, Sequence[Any]],
    *,
    starts: Mapping[str, Any] | None = None,
    learnable: str | Sequence[str] = _LEARNABLE,
    steps: int = 200,
    rate: float = 0.01,
    race: float = 0.25,
    check_every: int | None = None,
    checkpoint: Any = None,
    progress: Any = None,
) -> Tuning:
    """Learn the rotation of a PyTorch model that uses `rfrope.layers.torch.RotaryEmbedding`, with its weights frozen.

    Every start runs a part of the steps; the best on the validation continues alone. At the end, the held-out batches
    compare the model as it is, every start, and the learned rotation.

    Parameters
    ----------
    model : torch.nn.Module
        Left unchanged: weights to the bit, rotation, ``requires_grad`` and the mode of every module.
    loss : callable
        ``loss(batch)`` runs the model and returns the loss of each document (picture, recording) of the batch,
        ``(documents,)``, or one number, which counts as one document. Learning minimises its mean.
    learning : sequence or callable
        Batches, used in turn, or ``learning(step)``, which must return the same batch whenever called for a step.
    validation, held_out : dict of str to sequence
        Batches of each part, as ``{"within": [...], "beyond": [...]}``. The mean of the validation's parts chooses the
        start and stops the learning; held-out batches do neither, and should share no document with it.
    starts : dict of str to Rope, optional
        Ropes to start from, each for all layers. Default: the model's own, named "as it is". A Rope with a set for each
        key head, ``(heads, D, 1)``, has factors for each.
    learnable : str or sequence of str
        "factors", "temperature" or both; see `rfrope.layers.torch.RotaryEmbedding`. All layers share them.
    steps : int
        Maximum number of Adam steps from the best start.
    rate : float
        Learning rate of Adam at the first step; it falls linearly to 0. In trials 0.05 was too large.
    race : float
        Part of the steps that every start runs.
    check_every : int
        Steps between validations (default: a twentieth of all). Five without a lower loss end the learning; the best
        parameters are kept.
    checkpoint : str or os.PathLike, optional
        File to resume from (safetensors), written atomically about once a second, and at the end: the same call
        continues from it after any interruption, with the same bits as an uninterrupted one.
    progress : None, bool or callable
        See `rfrope.estimate_kernel`.

    Returns
    -------
    Tuning
        ``print`` it to see whether it helps.

    Raises
    ------
    ValueError
        If the model has no such module, or polar ones, or ones that learn phases; if starts differ in shape, or layers
        without `starts`; if a part has no batches; if the loss is not finite from any start or has no gradient; if an
        option is not as described above; or if `checkpoint` belongs to another call.
    TypeError
        If an argument or a loss is of another type.

    See Also
    --------
    integrations.tuning.Tuning, integrations.transformers.tune

    Notes
    -----
    A loss that is not finite, or a factor beyond ``exp(64)`` or ``exp(-64)``, as from a `rate` that is far too large,
    ends the learning from that start, and its best so far is kept. The loss has a weak pull towards the start: 0.001
    times the sum of the squared log-factors and log-temperature of a set. A checkpoint identifies all batches of a
    sequence, or the first and last of a callable `learning`, but not `loss`: keep one for each data set.
    Rotations and their gradients are exact at any position. A step takes the memory of a training step without
    the gradients and moments of the weights. On one machine, with the same number of threads, the same arguments give
    the same bits.

    Examples
    --------
    >>> import rfrope, torch
    >>> rotary, x = RotaryEmbedding(rfrope.geometric(4)), torch.randn(1, 1, 6, 8)
    >>> wanted = rfrope.rotate(x, torch.arange(6), 0.9 * rfrope.geometric(4))
    >>> def loss(batch):
    ...     return (rotary_of(model)(x, x)[0] - wanted).square().mean()
    >>> model = torch.nn.ModuleList([rotary])
    >>> def rotary_of(model):
    ...     return model[0]  # what stands there while it learns
    >>> part = {"all": [None]}
    >>> tuning = tune_modules(model, loss, [None], part, part, steps=60, learnable="factors")
    >>> (tuning.rope.frequencies / rfrope.geometric(4)).round(1)[:2], model[0] is rotary
    (array([0.9, 0.9]), True)
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {show(model)}; expected a torch.nn.Module")
    found = _rotaries(model)
    own = [one.rope for one in found]
    if starts is None and any(not _are_alike(own[0], one) for one in own):
        raise ValueError("model has Ropes that differ by layer; expected starts, each for all layers")
    ropes, names = read_starts({AS_IT_IS: own[0]} if starts is None else starts, own), read_learnable(learnable)
    device = next((one.device for one in model.parameters()), None)

    def make(rope: Rope) -> list[Module]:
        made = []
        for one in found:
            made.append(RotaryEmbedding(rope, names, layout=one.layout).to(device))
            made[-1].head_dim = one.head_dim
            for name, parameter in made[0].named_parameters():  # all have the same
                setattr(made[-1], name, parameter)
        return made

    with frozen(model):
        return Halving(
            model, make, lambda made: _swapped(model, found, made), ropes, loss, learning, validation, held_out,
            steps=steps, rate=rate, race=race, check_every=check_every, checkpoint=checkpoint,
        ).run(progress)  # fmt: skip


def read_learnable(learnable: Any) -> tuple[str, ...]:
    """Return the names of the parameters to learn."""
    names = (learnable,) if isinstance(learnable, str) else listed("learnable", learnable, "names of what is learned")
    for name in names:
        choice("learnable", name, _LEARNABLE)
    if not names:
        raise ValueError("learnable is empty; expected 'factors', 'temperature' or both")
    return tuple(names)


def read_starts(starts: Any, own: Sequence[Rope]) -> dict[str, Rope]:
    """Return the Rope of each start."""
    if not isinstance(starts, Mapping) or not starts:
        raise TypeError(f"starts is {show(starts)}; expected a dict of Ropes by their names")
    ropes = {name: one if isinstance(one, Rope) else Rope(one) for name, one in starts.items()}
    if AS_IT_IS in ropes and any(not _are_alike(ropes[AS_IT_IS], one) for one in own):
        raise ValueError(
            f"starts[{AS_IT_IS!r}] differs from the model's own Rope, which has that name; expected another"
        )
    return ropes


def _are_alike(first: Rope, other: Rope) -> bool:
    one, two = (array.to_host(rope.vectors) for rope in (first, other))
    return one.shape == two.shape and bool(np.all(one == two)) and first.attention_factor == other.attention_factor


# -- modules of a model ------------------------------------------------------------------------------------------------


def _rotaries(model: Module) -> list[Module]:
    """Return the modules of a model that turn, each once."""
    found = [one for one in model.modules() if isinstance(one, RotaryEmbedding)]
    if not found:
        raise ValueError(
            f"model, {type(model).__name__}, has no rfrope.layers.torch.RotaryEmbedding; expected a model that turns "
            "by it, or integrations.transformers.tune for one of transformers"
        )
    for one in found:
        if isinstance(one, PolarEmbedding) or one is model:
            what = "is a RotaryEmbedding itself" if one is model else "has a PolarEmbedding"
            raise ValueError(f"model {what}; expected one that has RotaryEmbedding in it")
        if "phases" in one.learnable:
            raise ValueError("model has a RotaryEmbedding that learned phases, which no Rope holds; expected none")
    return found


@contextmanager
def _swapped(model: Module, found: Sequence[Module], made: Sequence[Module] | None) -> Iterator[None]:
    """Replace some modules by others."""
    new = {id(old): one for old, one in zip(found, made or found, strict=True)}
    with ExitStack() as undo:
        for parent in [*model.modules()]:
            for name, child in [*parent._modules.items()]:
                if id(child) in new:
                    undo.callback(parent._modules.__setitem__, name, child)
                    parent._modules[name] = new[id(child)]
        yield
