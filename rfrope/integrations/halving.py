"""Learn a rotation from several starts by successive halving: a short run from each, then only from the best.

A checkpoint is complete after every step: the same call goes on from it with the same bits.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch

from rfrope._core import files, parallel
from rfrope._core.arguments import finite, listed, path_of, positive, show, whole
from rfrope.integrations.tuned import Tuning
from rfrope.rotation.rope import Rope

Tensor: TypeAlias = Any  # torch.Tensor, unknown to the type checker
Module: TypeAlias = Any

GOING, WAITED, BROKEN, DROPPED = 0, 1, 2, 3  # states of learning from a start
AS_IT_IS, LEARNED = "as it is", "learned"  # methods compared with the starts: the model's own rotation, and the result
PENALTY = 0.001  # weight of the sum of squared log-factors and log-temperature, divided by the number of sets
PATIENCE = 5  # validations without a lower loss before learning ends
_FARTHEST = 64.0  # largest log-factor or log-temperature, within the range of float32
_SAMPLED = 16  # values per parameter by which a checkpoint recognises a model
_SECONDS = 1.0  # between two checkpoints
_NUMBERS = ("step", "looked", "waited", "ended", "loss", "first", "total", "count")


class TrainingOptions:
    """Loss, batches and options of a run, checked."""

    def __init__(
        self,
        loss: Any,
        learning: Any,
        validation: Any,
        held_out: Any,
        steps: Any,
        rate: Any,
        race: Any = 0.25,
        check_every: Any = None,
        about: Any = None,
    ) -> None:
        if not callable(loss):
            raise TypeError(f"loss is {show(loss)}; expected a function of a batch")
        if not callable(learning) and not len(listed("learning", learning, "batches, or a function of the step")):
            raise ValueError("learning has no batches; expected at least one")
        self.loss = loss  # of a batch: the loss per document, (documents,), or one number
        self.learning = learning  # a function of the step, or batches used in turn
        # batches by part, such as within and beyond: those that choose, and those that judge
        self.validation, self.held_out = _read_parts("validation", validation), _read_parts("held_out", held_out)
        self.steps = whole("steps", steps, 1)  # in all, from the best start
        self.race = round(finite("race", race, minimum=0.0, maximum=1.0) * self.steps)  # from every start
        self.check_every = max(1, self.steps // 20) if check_every is None else whole("check_every", check_every, 1)
        self.rate = positive("rate", rate)  # learning rate of Adam at the first step; it falls to 0
        self.about = about  # what `learning` makes batches from; identifies a checkpoint

    def batch(self, step: int) -> Any:
        """Return the batch of a step."""
        return self.learning(step) if callable(self.learning) else self.learning[step % len(self.learning)]


def _read_parts(name: str, given: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is {show(given)}; expected a dict of batches by the name of their part")
    parts = {part: listed(f"{name}[{part!r}]", batches, "batches") for part, batches in given.items()}
    if not parts or not all(parts.values()):
        raise ValueError(f"{name} has no documents; expected at least one batch in every part")
    return parts


@dataclass(frozen=True, eq=False)
class RotaryModules:
    """The rotary modules of a model."""

    model: Module
    make: Callable[[Sequence[Rope]], list[Module]]  # modules that learn from the Ropes of a start
    # a context in which the model uses such modules, or for None its own rotation
    put_in: Callable[[list[Module] | None], AbstractContextManager[Any]]


class Learner:
    """Learning from one start: its modules, Adam, and the best so far."""

    def __init__(self, ropes: Sequence[Rope], modules: list[Module], rate: float) -> None:
        self.ropes, self.modules = ropes, modules
        self.parameters = [*dict.fromkeys(one for module in modules for one in module.parameters())]
        self.optimiser = torch.optim.Adam(self.parameters, lr=rate)
        self.best = self.values  # at the best validation
        self.loss, self.first = math.inf, 0  # the same, and its step
        self.step, self.looked = 0, -1  # steps done, and the step of the last validation
        self.waited, self.ended = 0, GOING  # validations since the best one
        self.total, self.count = 0.0, 0  # sum and number of losses since the last validation

    @property
    def values(self) -> Tensor:
        """A copy of all parameters, one after the other."""
        return torch.cat([one.detach().reshape(-1) for one in self.parameters])

    @torch.no_grad()
    def use(self, values: Tensor) -> list[Module]:
        """Return the modules, with other values of the parameters."""
        for one, part in zip(self.parameters, values.split([one.numel() for one in self.parameters]), strict=True):
            one.copy_(part.reshape(one.shape))
        return self.modules

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return copies of everything that changes: tensors, and numbers."""
        adam = self.optimiser.state_dict()["state"]
        tensors = {f"adam.{i}.{name}": one for i, own in adam.items() for name, one in own.items()}
        tensors |= {"values": self.values, "best": self.best}
        return {name: one.cpu().clone() for name, one in tensors.items()}, {n: getattr(self, n) for n in _NUMBERS}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """Restore the state from copies."""
        vars(self).update(numbers)
        adam: dict[int, dict[str, Tensor]] = {}
        for kind, _, name in (each.partition(".") for each in tensors):
            if kind == "adam":
                adam.setdefault(int(name.partition(".")[0]), {})[name.partition(".")[2]] = tensors[f"adam.{name}"]
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": adam})
        self.best = tensors["best"].to(self.best)
        self.use(tensors["values"].to(self.best))


class Halving:
    """Learning from all starts, and the losses of held-out documents."""

    def __init__(
        self, rotaries: RotaryModules, options: TrainingOptions, starts: Mapping[str, Sequence[Rope]], checkpoint: Any
    ) -> None:
        self.rotaries, self.options, self.names = rotaries, options, [*starts]
        if LEARNED in self.names:
            raise ValueError(f"starts has {LEARNED!r}, the name of the learned rotation; expected another name")
        self.learners = [Learner(ropes, rotaries.make(ropes), options.rate) for ropes in starts.values()]
        if len({learner.best.numel() for learner in self.learners}) > 1:
            raise ValueError("starts have Ropes of different shapes; expected frequencies of one shape")
        self.history: list[dict[str, Any]] = []
        self.readings: list[list[float]] = []  # of each held-out batch, for each part and method: losses of documents
        self._path, self._saved = None, time.monotonic()
        self._latest: tuple[dict[str, Tensor], dict[str, str]] | None = None  # a consistent state, however a step ends
        if checkpoint is not None:
            self._path, self._question = path_of("checkpoint", checkpoint), self._ask()
            if os.path.lexists(self._path):
                self._restore()
            else:
                files.check_writable(self._path)

    @property
    def winner(self) -> int:
        """Return the number of the start with the lowest loss so far."""
        return int(np.argmin([one.loss for one in self.learners]))

    def run(self, progress: Any) -> Tuning:
        """Learn, and evaluate the held-out documents; the checkpoint keeps the progress however this ends."""
        options = self.options
        methods = [AS_IT_IS, *(name for name in self.names if name != AS_IT_IS), LEARNED]
        parts = {(method, part): len(held) for method in methods for part, held in options.held_out.items()}
        total = (len(self.learners) - 1) * options.race + options.steps + sum(parts.values())
        done, steps = sum(one.step for one in self.learners) + len(self.readings), self._steps(methods)
        try:
            for _ in parallel.show_progress(steps, total, progress, done):
                pass
        finally:
            steps.close()  # restores the model's rotation
            self._write()
        best, losses, left = self.learners[self.winner], dict[str, dict[str, np.ndarray]](), iter(self.readings)
        for (method, part), count in parts.items():
            losses.setdefault(method, {})[part] = np.concatenate([*itertools.islice(left, count)])
        ended = {
            BROKEN: f"the loss was NaN or infinite, or a factor too large, after {best.step} of {options.steps} steps; "
            "the best is kept",
            WAITED: f"the validation loss fell no further; {best.step} of {options.steps} steps were done",
        }.get(best.ended, f"all {options.steps} steps were done")
        ropes = tuple(one.rope for one in best.use(best.best)[: len(best.ropes)])
        rope = ropes[0] if len(ropes) == 1 else ropes
        return Tuning(rope, self.names[self.winner], best.first, ended, tuple(self.history), losses)

    def _steps(self, methods: Sequence[str]) -> Generator[None]:
        """Do the remaining steps."""
        for learner in self.learners:
            yield from self._learn(learner, self.options.race if len(self.learners) > 1 else 0)
        if not np.isfinite([one.loss for one in self.learners]).any():
            raise ValueError(
                "loss is NaN or infinite on the validation from every start, before anything was learned; expected "
                "finite numbers"
            )
        going = [one for one in self.learners if one.ended == GOING]
        if going:
            best = min(going, key=lambda one: one.loss)
            for one in going:
                one.ended = GOING if one is best else DROPPED
            yield from self._learn(best, self.options.steps)
        yield from self._read(methods)

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, learner: Learner, until: int) -> Iterator[None]:
        """Learn from a start up to a step."""
        options = self.options
        if learner.ended != GOING:
            return
        with self.rotaries.put_in(learner.modules):
            while True:
                is_due = learner.step % options.check_every == 0 or learner.step == options.steps
                if is_due and learner.looked < learner.step:
                    self._look(learner)
                    self._keep()
                if learner.ended != GOING or learner.step >= until:
                    return
                self._step(learner)
                self._keep()
                yield

    @torch.enable_grad()
    def _step(self, learner: Learner) -> None:
        """Do one step."""
        options, parameters = self.options, learner.parameters
        loss = _checked(options.loss(options.batch(learner.step))).mean()
        sets = sum(len(one.frequencies) if one.frequencies.ndim > 2 else 1 for one in learner.ropes)
        squares = sum(one.square().sum() for one in parameters) / sets
        total = loss + (PENALTY * squares).to(loss.device, loss.dtype)
        gradients = torch.autograd.grad(total, parameters, allow_unused=True) if loss.requires_grad else [None]
        if all(one is None for one in gradients):
            raise ValueError("loss has no gradient for the learned parameters; expected a loss of the given model")
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
        if not all(bool(torch.isfinite(one).all()) for one in (total.detach(), *(one.grad for one in parameters))):
            learner.ended = BROKEN
            return
        learner.optimiser.param_groups[0]["lr"] = options.rate * (1.0 - learner.step / options.steps)
        learner.optimiser.step()
        if not bool((learner.values.abs() <= _FARTHEST).all()):
            learner.ended = BROKEN
            return
        learner.step += 1
        learner.total, learner.count = learner.total + float(loss.detach()), learner.count + 1

    def _look(self, learner: Learner) -> None:
        """Validate, and note whether the loss fell."""
        found = {part: float(np.mean(self._losses(batches))) for part, batches in self.options.validation.items()}
        loss, mean = float(np.mean([*found.values()])), learner.total / learner.count if learner.count else None
        name = self.names[self.learners.index(learner)]
        self.history.append({"start": name, "step": learner.step, "learning": mean, "validation": found})
        learner.looked, learner.total, learner.count = learner.step, 0.0, 0
        learner.waited += 1
        if math.isfinite(loss) and loss < learner.loss:
            learner.loss, learner.first, learner.best, learner.waited = loss, learner.step, learner.values, 0
        if not math.isfinite(loss):
            learner.ended = BROKEN
        elif learner.waited >= PATIENCE:
            learner.ended = WAITED

    @torch.no_grad()
    def _losses(self, batches: Sequence[Any]) -> np.ndarray:
        """Return the loss of each document."""
        found = [_checked(self.options.loss(batch)).detach().cpu().double().reshape(-1).numpy() for batch in batches]
        return np.concatenate(found)

    def _read(self, methods: Sequence[str]) -> Iterator[None]:
        """Evaluate every method on the held-out batches."""
        batches = [one for held in self.options.held_out.values() for one in held]
        for i, method in enumerate(methods):
            left, modules = batches[max(0, len(self.readings) - i * len(batches)) :], None
            if not left:
                continue
            if method == LEARNED:
                modules = self.learners[self.winner].use(self.learners[self.winner].best)
            elif method != AS_IT_IS:
                modules = self.rotaries.make(self.learners[self.names.index(method)].ropes)
            with self.rotaries.put_in(modules):
                for batch in left:
                    self.readings.append(self._losses([batch]).tolist())
                    self._keep()
                    yield

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _ask(self) -> dict[str, str]:
        """Return digests of everything that determines the result."""
        options, learning = self.options, self.options.learning
        if callable(learning):
            learning = [options.about, options.batch(0), options.batch(options.steps - 1)]
        ropes = [[np.asarray(one.frequencies), one.attention_factor] for own in self.learners for one in own.ropes]
        asked = {name: getattr(options, name) for name in ("steps", "race", "check_every", "rate")}
        asked |= {"starts": [*self.names, ropes], "learnable": [*self.learners[0].modules[0].learnable]}
        asked |= {"batches": [options.validation, options.held_out, learning]}
        asked |= {"model": _fingerprint(self.rotaries.model)}
        return {name: files.digest(value) for name, value in asked.items()}

    def _restore(self) -> None:
        try:
            with safetensors.safe_open(self._path, "pt") as file:
                asked, told = (json.loads(file.metadata()[name]) for name in ("question", "state"))
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        except (OSError, ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
            name = type(error).__name__
            raise ValueError(f"{self._path} is not a checkpoint ({name}); expected a new name") from None
        if asked != self._question:
            other = ", ".join(sorted(k for k in self._question if asked.get(k) != self._question[k]))
            raise ValueError(f"{self._path} is the checkpoint of another call ({other} differ); expected a new name")
        parts = {str(part): part for part in self.options.validation}
        for one in told["history"]:
            one["validation"] = {parts[name]: loss for name, loss in one["validation"].items()}
        self.history, self.readings = told["history"], told["readings"]
        for i, (learner, numbers) in enumerate(zip(self.learners, told["learners"], strict=True)):
            own = {name.partition("/")[2]: one for name, one in found.items() if name.startswith(f"{i}/")}
            learner.restore(own, numbers)
        self._keep()

    def _keep(self) -> None:
        """Record the state after a whole step, and write it if the last write is some time ago."""
        if self._path is None:
            return
        states = [one.state() for one in self.learners]
        tensors = {f"{i}/{name}": one for i, (own, _) in enumerate(states) for name, one in own.items()}
        history = [
            one | {"validation": {str(part): x for part, x in one["validation"].items()}} for one in self.history
        ]
        told = {"history": history, "readings": self.readings, "learners": [numbers for _, numbers in states]}
        self._latest = tensors, {"question": json.dumps(self._question), "state": json.dumps(told)}
        if time.monotonic() - self._saved >= _SECONDS:
            self._write()

    def _write(self) -> None:
        if self._path is None or self._latest is None:
            return
        self._saved = time.monotonic()
        try:
            files.write(self._path, safetensors.torch.save(*self._latest), overwrite=True)
        except OSError as error:  # the work goes on, and the next checkpoint may succeed
            warnings.warn(f"checkpoint {self._path} was not written: {error}", RuntimeWarning, stacklevel=2)


def _checked(loss: Any) -> Tensor:
    """Return a checked loss: one number, or one per document."""
    if not isinstance(loss, torch.Tensor) or loss.ndim > 1 or not loss.numel() or not loss.is_floating_point():
        what = f"a tensor of {loss.dtype} with shape {tuple(loss.shape)}" if hasattr(loss, "dtype") else show(loss)
        raise TypeError(f"loss gave {what}; expected a tensor of floats, one number or one for each document")
    return loss


def _fingerprint(model: Module) -> list[Any]:
    """Return a few values of each parameter, which further training changes."""
    found: list[Any] = []
    for name, one in model.named_parameters():
        flat = one.detach().reshape(-1)
        few = flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED]
        found += [name, str(one.dtype), str(tuple(one.shape)), few.double().cpu().numpy()]
    return found


@contextmanager
def frozen(model: Module) -> Iterator[None]:
    """Disable gradients and dropout of a model; restore both at the end."""
    with ExitStack() as undo:
        for part in model.modules():
            undo.callback(setattr, part, "training", part.training)
        for one in model.parameters():
            undo.callback(one.requires_grad_, one.requires_grad)
        model.eval()
        model.requires_grad_(False)
        yield
