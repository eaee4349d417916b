"""Learn the rotation of a frozen transformers model for a longer context."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope import analysis
from rfrope._core.arguments import choice, listed, show, whole
from rfrope._core.parallel import show_progress
from rfrope.integrations import tuning
from rfrope.integrations.halving import Halving, frozen
from rfrope.integrations.text_caches import (
    TextCaches,
    Windows,
    divide,
    draw_window,
    read_documents,
    read_whole,
    spread_windows,
)
from rfrope.integrations.tuned import Tuning
from rfrope.layers.torch import RotaryEmbedding
from rfrope.models import from_config
from rfrope.rotation.rope import Assumed, Rope

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

_WINDOW = 1024  # default tokens of a window, at most the trained context
_HELD_OUT = 0.25  # part of the documents; as many choose


def read_target(model: Module, part: str | None, trained: int | None) -> tuple[Rope, Callable[[Any], Any]]:
    """Return the Rope of a model, or of its layers that see far, and a function that adds those of its other layers."""
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise TypeError(f"model is {show(model)}; expected a model of transformers")
    if model.get_output_embeddings() is None or model.get_input_embeddings() is None:
        raise ValueError(f"model is a {type(model).__name__}, which has no logits; expected a causal language model")
    ropes = {one.source.model.name: one for one in from_config(model.config)}
    far = {
        name: one
        for name, one in ropes.items()
        if one.source.model.window is None or one.source.model.window >= (trained or np.max(one.context or 0))
    }
    if part is None and not far:
        seen = ", ".join(f"{one.source.model.window} positions" for one in ropes.values())
        raise ValueError(f"part is None, but all layers see only {seen}; expected layers that see the context")
    if part is None and len(far) != 1:
        raise ValueError(f"part is None, but the model has Ropes for {', '.join(map(repr, far))}; expected one of them")
    name = choice("part", next(iter(far)) if part is None else part, [*ropes])
    kind, kinds = name.rpartition(".")[2], {one.rpartition(".")[2]: rope for one, rope in ropes.items()}
    return ropes[name], lambda given: given if len(ropes) == 1 else kinds | {kind: given}


def read_starts(starts: Any, plan: analysis.Plan) -> dict[str, Any]:
    """Return the Ropes to start from, by name; names alone are methods of the plan for a longer context."""
    if isinstance(starts, Mapping):
        found = dict(starts)
    else:
        names = (starts,) if isinstance(starts, str) else listed("starts", starts, "names of methods")
        made = [one.name for one in plan.methods]
        for name in names:
            if name in plan.left_out:
                raise ValueError(f"starts has {name!r}, which is left out: {plan.left_out[name]}")
            choice("starts", name, made)
        found = {name: plan.method(name).rope for name in names}
    if not found:
        raise ValueError("starts is empty; expected at least one name, as 'yarn', or Rope")
    return found


def tune(
    model: Module,
    texts: Any,
    context: int,
    *,
    trained: int | None = None,
    starts: Any = ("yarn", "llama3", "ntk"),
    part: str | None = None,
    tokenizer: Any = None,
    window: int | None = None,
    rng: int = 0,
    learnable: str | Sequence[str] = ("factors", "temperature"),
    steps: int = 200,
    rate: float = 0.01,
    checkpoint: Any = None,
    progress: Any = None,
) -> Tuning:
    """Learn factors of a frozen model's frequencies, and a temperature, for a longer context.

    Documents are divided, by `rng`, into those that teach, a quarter (at least two) that choose the start and stop the
    learning, and as many held-out ones, for which the returned `rfrope.integrations.tuning.Tuning` reports.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model that `replace_rotary` accepts. Left unchanged.
    texts : iterable
        At least 5 different documents: token ids, strings, or ``pathlib.Path`` of text files. Each has at least
        `context` tokens; longer ones are cut.
    context : int
        Positions to reach.
    trained : int, optional
        Positions in training; ``trained_context`` of `rfrope.analysis.plan`.
    starts : str, sequence of str or mapping
        Methods of `rfrope.analysis.plan`, or Ropes by name, as in `integrations.tuning.tune_modules`. The first one
        reads the documents: name the best first.
    part : str, optional
        Kind of layers that learn, if several kinds see far. The others keep their Rope.
    tokenizer : callable, optional
        The model's tokenizer, for strings and files.
    window : int, optional
        Tokens of the window of a step, at least 3. Default: the trained context, at most 1024.
    rng : int
        Seed of the division and the windows.
    learnable, steps, rate, checkpoint, progress
        See `rfrope.integrations.tuning.tune_modules`. `progress` is used for reading, and then again for learning.

    Returns
    -------
    integrations.tuning.Tuning
        Its ``rope`` is one Rope, which `replace_rotary` and `rfrope.engines.export` take.

    Raises
    ------
    ValueError, TypeError
        If the rotation of the model cannot be replaced, or its keys change after the rotation; if texts are too short
        or too few, `context` is not above the trained one, a start is unknown, the loss is not finite from any start,
        an option is not as described above, or `checkpoint` belongs to another call.

    See Also
    --------
    integrations.tuning.Tuning, analysis.plan, integrations.transformers.replace_rotary

    Notes
    -----
    A document that teaches or chooses is read once, by the first start. Its keys before rotation and its values stay on
    the model's device until learning ends: ``4 * layers * key heads * head_dim`` bytes for each token, in half
    precision. A window, drawn anywhere in it, attends to all tokens before it, whose keys are rotated by what is
    learned; activations of attention are computed again for gradients. Held-out documents are read whole, in chunks.

    The loss, in nats, is that of the next token: "within" the trained context, and "beyond" it. The loss of a
    window is that of a whole reading by the rotation that the text was read by, and near it for others, since keys and
    values of deeper layers depend on the rotation, too. A call that goes on from `checkpoint` reads these texts again.

    Windows that attend to their own tokens alone, at long positions (Zhu et al. 2023), are not offered: on SmolLM2-135M
    they chose a rotation that reads whole texts worse than YaRN.

    Examples
    --------
    >>> import torch, transformers
    >>> from rfrope.integrations.transformers import tune
    >>> sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    >>> config = transformers.LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=16)
    >>> model, texts = transformers.LlamaForCausalLM(config), torch.arange(246).reshape(6, 41) % 16
    >>> tuning = tune(model, texts, 32, starts="ntk", steps=2)
    >>> tuning.rope.context, [*tuning.losses]
    (32, ['as it is', 'ntk', 'learned'])
    """
    from rfrope.integrations.transformers import replace_rotary  # which imports this module

    names, (own, join) = tuning.read_learnable(learnable), read_target(model, part, trained)
    replace_rotary(model, join(own)).undo()
    plan = analysis.plan(own, context, trained_context=trained)
    trained, context = plan.trained_context, plan.context
    read = tuning.read_starts(read_starts(starts, plan), [own])
    ropes = {name: dataclasses.replace(one, context=context) for name, one in read.items()}
    length = min(trained, _WINDOW) if window is None else whole("window", window, 3, trained)
    rng = whole("rng", rng)
    learning, choosing, judging = divide(read_documents(texts, tokenizer, model), context, _HELD_OUT, rng)
    caches = TextCaches(model)

    def loss(one: Any) -> Any:
        if isinstance(one, Windows):
            return caches.losses(one)
        caches.forget()  # held-out documents come last
        return read_whole(model, *one)

    held_out = {"within": [(one[:trained], 0) for one in judging], "beyond": [(one, trained) for one in judging]}
    drawn = {"texts": len(learning), "context": context, "length": length, "seed": rng}
    validation = spread_windows(range(len(learning), len(learning) + len(choosing)), trained, context, length, rng + 1)

    def make(rope: Rope) -> list[Module]:
        one = RotaryEmbedding(rope, names)
        one.head_dim = None if isinstance(one.start.head_dim, Assumed) else one.head_dim
        return [one.to(next(model.parameters()).device)]

    def put_in(modules: list[Module] | None) -> AbstractContextManager[Any]:
        return nullcontext() if modules is None else replace_rotary(model, join(modules[0]))

    with frozen(model):
        run = Halving(
            model, make, put_in, ropes, loss, partial(draw_window, **drawn), validation, held_out,
            steps=steps, rate=rate, about=[drawn, learning, choosing], checkpoint=checkpoint,
        )  # fmt: skip
        if not run.readings:
            with put_in(make(next(iter(ropes.values())))):
                for ids in show_progress([*learning, *choosing], len(learning) + len(choosing), progress):
                    caches.read(ids)
        return run.run(progress)
