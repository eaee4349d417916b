"""Learn the rotation of a frozen transformers model for a longer context."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope import analysis
from rfrope._core.arguments import choice, finite, flag, fraction, listed, show, whole
from rfrope._core.parallel import show_progress
from rfrope.integrations import keeping, tuning, windows
from rfrope.integrations.halving import Places, Race, frozen
from rfrope.integrations.tuned import Tuning
from rfrope.layers.torch import RotaryEmbedding
from rfrope.models import from_config
from rfrope.rotation.rope import Assumed, Rope

Module: TypeAlias = Any  # torch.nn.Module, which the type checker does not see

_WINDOW = 1024  # default tokens of a window, at most the trained context
_READINGS = ("auto", "whole", "windows")
_KEYS = ("window", "text")
_FEW_KEYS = (
    "These losses are of windows. Attention sees at most {length} tokens in one, and up to {context} in a whole text, "
    "which may rank rotations otherwise: read some texts whole before you use what was learned{more}."
)


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """The learned part of a model's rotation."""

    model: Module
    rope: Rope  # the model's own
    layers: int
    heads: int  # heads of the keys
    kind: str | None  # kind of layer, where there are several; `others` are the Ropes of the others, which stay
    others: dict[str, Rope]

    def make(self, ropes: Sequence[Rope], learnable: tuple[str, ...]) -> list[Module]:
        """Return learning modules, on the model's device."""
        made = [RotaryEmbedding(rope, learnable) for rope in ropes]
        for one in made:
            one.head_dim = None if isinstance(one.start.head_dim, Assumed) else one.head_dim
        return [one.to(next(self.model.parameters()).device) for one in made]

    def put_in(self, replace: Any, modules: list[Module] | None) -> AbstractContextManager[Any]:
        """Return a context in which the model uses `modules`, or its own rotation."""
        if modules is None:
            return nullcontext()
        given: Any = modules[0] if len(modules) == 1 else modules
        if self.kind is not None:
            given = self.others | {self.kind: given}
        made: AbstractContextManager[Any] = replace(self.model, given)
        return made


def read_target(model: Module, part: str | None, per: str, trained: int | None) -> Target:
    """Return what a model can learn: its Rope, or that of the layers that see far."""
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
    config = model.config.get_text_config()
    if len(ropes) > 1 and per != "model":
        raise ValueError(f"per is {per!r}, but the model has several kinds of layers; expected 'model'")
    kinds = {one.rpartition(".")[2]: rope for one, rope in ropes.items()}
    kind = name.rpartition(".")[2] if len(ropes) > 1 else None
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    others = {one: rope for one, rope in kinds.items() if one != kind}
    return Target(model, ropes[name], int(config.num_hidden_layers), int(heads), kind, others)


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


def split(documents: Sequence[np.ndarray], share: float, seed: int, least: int) -> list[list[np.ndarray]]:
    """Return the documents that teach, those that choose, and held-out ones."""
    seen: dict[bytes, int] = {}
    for i, one in enumerate(documents):
        if (first := seen.setdefault(one.tobytes(), i)) != i:
            raise ValueError(f"texts[{i}] is texts[{first}] again; expected different documents")
    for i, one in enumerate(documents):
        if len(one) < least:
            raise ValueError(f"texts[{i}] has {len(one)} tokens; expected at least {least}, those of a window")
    apart = max(2, round(share * len(documents)))
    if len(documents) < 2 * apart + 1:
        raise ValueError(
            f"texts has {len(documents)} documents; expected at least {2 * apart + 1}: {apart} are held out, {apart} "
            "choose, and the others are learned from"
        )
    order = [documents[i] for i in np.random.default_rng([seed, 0]).permutation(len(documents))]
    return [order[2 * apart :], order[apart : 2 * apart], order[:apart]]


@contextmanager
def _stop_dropout(model: Module) -> Iterator[None]:
    """Disable attention dropout of a model, also in training mode."""
    with ExitStack() as undo:
        for one in model.modules():
            for name in ("attention_dropout", "dropout", "p"):
                value = vars(one).get(name)
                if isinstance(value, float) and value > 0.0:
                    setattr(one, name, 0.0)
                    undo.callback(setattr, one, name, value)
        yield


@contextmanager
def _checkpointed(model: Module) -> Iterator[None]:
    """Make a model checkpoint activations between layers."""
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ValueError(
            f"{type(model).__name__} cannot checkpoint activations; expected activation_checkpointing=False"
        )
    had = any(getattr(one, "gradient_checkpointing", False) for one in model.modules())
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # as releases name it
    getattr(model, f"{kind}_checkpointing_enable")(**{f"{kind}_checkpointing_kwargs": {"use_reentrant": False}})
    try:
        with _stop_dropout(model):
            yield
    finally:
        if not had:
            getattr(model, f"{kind}_checkpointing_disable")()


def _loss_of_texts(model: Module, texts: keeping.Texts, batch: keeping.Windows | windows.Batch) -> Any:
    model.eval()
    if isinstance(batch, keeping.Windows):
        return texts.losses(batch)
    texts.forget()  # held-out documents come last
    return windows.document_losses(model, batch)


def _loss(model: Module, is_checkpointed: bool, batch: windows.Batch) -> Any:
    model.train(is_checkpointed and torch.is_grad_enabled())  # in which mode alone transformers checkpoints
    return windows.document_losses(model, batch)


def tune(
    model: Module,
    texts: Any,
    context: int,
    *,
    replace: Any,
    trained: int | None = None,
    starts: Any = ("yarn", "llama3", "ntk"),
    per: str = "model",
    part: str | None = None,
    tokenizer: Any = None,
    window: int | None = None,
    chunks: int = 2,
    batch: int = 1,
    whole_windows: float = 0.0,
    held_out: float = 0.25,
    reading: str = "auto",
    keys: str = "window",
    rng: int = 0,
    learnable: Any = ("factors", "temperature"),
    activation_checkpointing: bool = False,
    checkpoint: Any = None,
    progress: Any = None,
    **course: Any,
) -> Tuning:
    """Return `rfrope.integrations.transformers.tune`, with `replace` as the function that replaces a rotation."""
    per, names = choice("per", per, tuning.PER), tuning.read_learnable(learnable)
    target = read_target(model, part, per, trained)
    replace(model, target.others | {target.kind: target.rope} if target.kind else target.rope).undo()
    plan = analysis.plan(target.rope, context, trained_context=trained)
    found = read_starts(starts, plan)
    trained = plan.trained_context
    layers, sets = (1 if per == "model" else target.layers), (target.heads if per == "head" else None)
    ropes = {
        name: tuple(dataclasses.replace(one, context=plan.context) for one in each)
        for name, each in tuning.read_starts(found, [target.rope] * layers, per, sets).items()
    }
    length = min(trained, _WINDOW) if window is None else whole("window", window, 3, trained)
    layout = windows.Layout(trained, plan.context, length, whole("chunks", chunks, 2, length - 1))
    documents = windows.read_documents(texts, tokenizer, model.get_input_embeddings().num_embeddings)
    rng = whole("rng", rng)
    long = finite("whole_windows", whole_windows, least=0.0, most=1.0)
    is_checkpointed = flag("activation_checkpointing", activation_checkpointing)
    if choice("keys", keys, _KEYS) == "text":
        _check_keeping(target, documents, plan.context, is_checkpointed, long)
    learning, choosing, judging = split(documents, fraction("held_out", held_out), rng, length)
    _check_whole("whole_windows", bool(long), learning, plan.context, any)
    are_whole = choice("reading", reading, _READINGS) == "whole"
    _check_whole("reading", are_whole, judging, plan.context, all)
    are_whole = are_whole or (reading == "auto" and all(len(one) >= plan.context for one in judging))
    drawn: dict[str, Any] = {"documents": learning, "layout": layout, "seed": rng, "whole": long}
    drawn["windows"] = whole("batch", batch, 1)
    draw: Any = partial(windows.learning_batch, **drawn)
    loss: Any = partial(_loss, model, is_checkpointed)
    validation: Any = windows.read_parts(choosing, layout, rng + 1, are_whole=False)
    texts = None
    if keys == "text":
        seen = [one[: plan.context] for one in (*learning, *choosing)]
        texts, drawn["keys"] = keeping.Texts(model), seen
        draw = partial(keeping.learning_batch, texts=len(learning), layout=layout, seed=rng, batch=drawn["windows"])
        loss = partial(_loss_of_texts, model, texts)
        validation = keeping.read_parts(range(len(learning), len(seen)), layout, rng + 1)
    held = windows.read_parts(judging, layout, rng + 2, are_whole=are_whole)
    made = dataclasses.replace(tuning.read_course(loss, draw, validation, held, **course), about=drawn)
    places = Places(model, lambda some: target.make(some, names), partial(target.put_in, replace))
    with frozen(model), _checkpointed(model) if is_checkpointed else nullcontext():
        race = Race(places, made, ropes, checkpoint)
        if texts is not None:
            _read(texts, drawn["keys"], race, progress)
        learned = tuning.finish(race, progress)
    return dataclasses.replace(learned, note="" if are_whole else _few_keys(layout, texts is None))


def _few_keys(layout: windows.Layout, by_windows: bool) -> str:
    """Return what losses of windows may hide, and what to do about it."""
    more = f", or learn with keys='text' from texts of {layout.context} tokens" if by_windows else ""
    return _FEW_KEYS.format(length=layout.window, context=layout.context, more=more)


def _read(texts: keeping.Texts, documents: Sequence[np.ndarray], race: Race, progress: Any) -> None:
    """Read documents by the first start and keep them, unless all has been learned before."""
    if not race.is_reading:
        with race.places.put_in(race.places.make(race.starts[0])):
            for ids in show_progress(documents, len(documents), progress):
                texts.read(ids)


def _check_keeping(
    target: Target, documents: Sequence[np.ndarray], context: int, is_checkpointed: bool, long: float
) -> None:
    """Refuse what windows that see a text cannot be combined with, and short texts."""
    if target.kind is not None:
        raise ValueError("keys is 'text', but the model has several kinds of layers; expected keys='window'")
    if is_checkpointed or long:
        name = "activation_checkpointing" if is_checkpointed else "whole_windows"
        raise ValueError(f"keys is 'text' together with {name}; expected one of them")
    for i, one in enumerate(documents):
        if len(one) < context:
            raise ValueError(
                f"keys is 'text', but texts[{i}] has {len(one)} tokens; expected at least {context} in every text, "
                "such as several joined, or keys='window'"
            )


def _check_whole(name: str, are_whole: bool, documents: Sequence[np.ndarray], context: int, enough: Any) -> None:
    """Refuse documents too short to be read whole."""
    if are_whole and not enough(len(one) >= context for one in documents):
        longest = max(map(len, documents))
        raise ValueError(
            f"{name} asks for texts of {context} tokens, but the longest of those documents has {longest}; expected "
            "longer texts, or windows alone"
        )
