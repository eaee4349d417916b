"""Learn a rotation from several starts by successive halving: a short run from each, then only from the best.

A checkpoint is complete after every step: the same call goes on from it with the same bits.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch

from rfrope._core import files, parallel
from rfrope._core.arguments import show
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
_NUMBERS = ("step", "looked", "waited", "ended", "loss", "total", "count")


@dataclass(frozen=True, eq=False)
class TrainingOptions:
    """Loss, batches and options of a run."""

    loss: Callable[[Any], Tensor]  # of a batch: the loss per document, (documents,), or one number
    learning: Any  # a function of the step, or batches used in turn
    validation: Mapping[str, Sequence[Any]]  # batches by part, such as within and beyond, to choose by
    held_out: Mapping[str, Sequence[Any]]  # the same, to judge by
    steps: int  # in all, from the best start
    race: int  # steps from every start, before all but the best are dropped
    check_every: int  # steps between validations
    rate: float  # learning rate of Adam at the first step; it falls to 0
    about: Any = None  # what `learning` makes batches from; identifies a checkpoint

    def batch(self, step: int) -> Any:
        """Return the batch of a step."""
        return self.learning(step) if callable(self.learning) else self.learning[step % len(self.learning)]


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
        self.best = [one.detach().clone() for one in self.parameters]  # at the best validation
        self.optimiser = torch.optim.Adam(self.parameters, lr=rate)
        self.loss = math.inf  # at the best validation
        self.step, self.looked = 0, -1  # steps done, and the step of the last validation
        self.waited, self.ended = 0, GOING  # validations since the best one
        self.total, self.count = 0.0, 0  # sum and number of losses since the last validation

    def state(self) -> dict[str, Tensor]:
        """Return copies of everything that changes."""
        found = {"numbers": torch.tensor([float(getattr(self, name)) for name in _NUMBERS], dtype=torch.float64)}
        for i, (parameter, best) in enumerate(zip(self.parameters, self.best, strict=True)):
            found |= {f"{i}.value": parameter.detach(), f"{i}.best": best}
            found |= {f"{i}.adam.{name}": one for name, one in self.optimiser.state[parameter].items()}
        return {name: one.cpu().clone() for name, one in found.items()}

    def restore(self, found: Mapping[str, Tensor]) -> None:
        """Restore the state from copies."""
        for name, number in zip(_NUMBERS, found["numbers"].tolist(), strict=True):
            setattr(self, name, number if name in ("loss", "total") else int(number))
        adam: dict[int, dict[str, Tensor]] = {}
        for name, one in found.items():
            if ".adam." in name:
                adam.setdefault(int(name.partition(".")[0]), {})[name.rpartition(".")[2]] = one
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": adam})
        with torch.no_grad():
            for i, (parameter, best) in enumerate(zip(self.parameters, self.best, strict=True)):
                parameter.copy_(found[f"{i}.value"])
                best.copy_(found[f"{i}.best"])

    @torch.no_grad()
    def use_best(self) -> list[Module]:
        """Return the modules with the parameters of the best validation."""
        for parameter, best in zip(self.parameters, self.best, strict=True):
            parameter.copy_(best)
        return self.modules


class Halving:
    """Learning from all starts, and the losses of held-out documents."""

    def __init__(
        self, rotaries: RotaryModules, options: TrainingOptions, starts: Mapping[str, Sequence[Rope]], checkpoint: Any
    ) -> None:
        self.rotaries, self.options, self.names = rotaries, options, [*starts]
        if LEARNED in self.names:
            raise ValueError(f"starts has {LEARNED!r}, the name of the learned rotation; expected another name")
        self.learners = [Learner(ropes, rotaries.make(ropes), options.rate) for ropes in starts.values()]
        if len({sum(one.numel() for one in learner.best) for learner in self.learners}) > 1:
            raise ValueError("starts have Ropes of different shapes; expected frequencies of one shape")
        self.history: list[list[float]] = []  # start, step, mean loss of the steps before, validation loss of each part
        self.readings: list[list[float]] = []  # method, part, batch and loss of each held-out document
        self._path, self._saved = None, time.monotonic()
        self._latest: dict[str, Tensor] = {}  # a consistent state, however a step ends
        if checkpoint is not None:
            self._path, self._question = files.path_of("checkpoint", checkpoint), self._ask()
            if os.path.lexists(self._path):
                self._restore()
            else:
                files.check_writable(self._path)

    @property
    def winner(self) -> int:
        """Return the number of the start with the lowest loss so far."""
        return int(np.argmin([one.loss for one in self.learners]))

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods compared: the model's own rotation, the starts, and the learned one."""
        return [AS_IT_IS, *(name for name in self.names if name != AS_IT_IS), LEARNED]

    def run(self, progress: Any) -> None:
        """Learn, and evaluate the held-out documents; the checkpoint keeps the progress however this ends."""
        options, more = self.options, len(self.learners) - 1
        readings = len(self.methods) * sum(map(len, options.held_out.values()))
        done = sum(one.step for one in self.learners) + len({(*line[:3],) for line in self.readings})
        steps = self._steps()
        try:
            for _ in parallel.show_progress(steps, more * options.race + options.steps + readings, progress, done):
                pass
        finally:
            steps.close()  # restores the model's rotation
            self._write()

    def _steps(self) -> Generator[None]:
        """Do the remaining steps."""
        if len(self.learners) > 1:
            for learner in self.learners:
                yield from self._learn(learner, self.options.race)
        else:
            yield from self._learn(self.learners[0], 0)
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
        yield from self._read()

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
        gradients = torch.autograd.grad(total, parameters, allow_unused=True) if loss.requires_grad else None
        if gradients is None or all(one is None for one in gradients):
            raise ValueError("loss has no gradient for the learned parameters; expected a loss of the given model")
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
        if not all(bool(torch.isfinite(one).all()) for one in (total.detach(), *(one.grad for one in parameters))):
            learner.ended = BROKEN
            return
        learner.optimiser.param_groups[0]["lr"] = options.rate * (1.0 - learner.step / options.steps)
        learner.optimiser.step()
        if not all(bool((one.detach().abs() <= _FARTHEST).all()) for one in parameters):
            learner.ended = BROKEN
            return
        learner.step += 1
        learner.total, learner.count = learner.total + float(loss.detach()), learner.count + 1

    def _look(self, learner: Learner) -> None:
        """Validate, and note whether the loss fell."""
        found = [float(np.mean(self._losses(batches))) for batches in self.options.validation.values()]
        loss = float(np.mean(found))
        before = learner.total / learner.count if learner.count else math.nan
        self.history.append([self.learners.index(learner), learner.step, before, *found])
        learner.looked, learner.total, learner.count = learner.step, 0.0, 0
        learner.waited += 1
        if math.isfinite(loss) and loss < learner.loss:
            learner.loss, learner.waited = loss, 0
            learner.best = [one.detach().clone() for one in learner.parameters]
        if not math.isfinite(loss):
            learner.ended = BROKEN
        elif learner.waited >= PATIENCE:
            learner.ended = WAITED

    @torch.no_grad()
    def _losses(self, batches: Sequence[Any]) -> np.ndarray:
        """Return the loss of each document."""
        found = [_checked(self.options.loss(batch)).detach().cpu().double().reshape(-1).numpy() for batch in batches]
        return np.concatenate(found)

    # -- held-out documents --------------------------------------------------------------------------------------------

    def _read(self) -> Iterator[None]:
        """Evaluate every method on the held-out batches."""
        done = {(*line[:3],) for line in self.readings}
        wanted = [(j, k) for j, part in enumerate(self.options.held_out.values()) for k in range(len(part))]
        for i, method in enumerate(self.methods):
            left = [(j, k) for j, k in wanted if (i, j, k) not in done]
            if not left:
                continue
            modules = None
            if method == LEARNED:
                modules = self.learners[self.winner].use_best()
            elif method != AS_IT_IS:
                modules = self.rotaries.make(self.learners[self.names.index(method)].ropes)
            with self.rotaries.put_in(modules):
                for j, k in left:
                    losses = self._losses([[*self.options.held_out.values()][j][k]])
                    self.readings += [[i, j, k, float(one)] for one in losses]
                    self._keep()
                    yield

    def losses(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the loss of each held-out document, by method and part."""
        held, parts = np.asarray(self.readings), [*self.options.held_out]
        return {
            method: {part: held[(held[:, 0] == i) & (held[:, 1] == j), 3] for j, part in enumerate(parts)}
            for i, method in enumerate(self.methods)
        }

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _ask(self) -> dict[str, str]:
        """Return digests of everything that determines the result."""
        options, learning = self.options, self.options.learning
        if callable(learning):
            learning = [options.about, options.batch(0), options.batch(options.steps - 1)]
        ropes = [[np.asarray(one.frequencies), one.attention_factor] for own in self.learners for one in own.ropes]
        made = ("loss", "learning", "validation", "held_out", "about")
        asked = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in made}
        asked |= {"starts": [*self.names, ropes], "learnable": [*self.learners[0].modules[0].learnable]}
        asked |= {"batches": [options.validation, options.held_out, learning]}
        asked |= {"model": _fingerprint(self.rotaries.model)}
        return {name: files.digest(value) for name, value in asked.items()}

    def _restore(self) -> None:
        try:
            with safetensors.safe_open(self._path, "pt") as file:
                asked = json.loads(file.metadata()["question"])
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        except (OSError, ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
            name = type(error).__name__
            raise ValueError(f"{self._path} is not a checkpoint ({name}); expected a new name") from None
        if asked != self._question:
            other = ", ".join(sorted(k for k in self._question if asked.get(k) != self._question[k]))
            raise ValueError(f"{self._path} is the checkpoint of another call ({other} differ); expected a new name")
        self._latest = found
        self.history, self.readings = found["history"].tolist(), found["readings"].tolist()
        for i, learner in enumerate(self.learners):
            learner.restore({name.partition("/")[2]: one for name, one in found.items() if name.startswith(f"{i}/")})

    def _keep(self) -> None:
        """Record the state after a whole step, and write it if the last write is some time ago."""
        if self._path is None:
            return
        lists = {"history": self.history, "readings": self.readings}
        found = {name: torch.tensor(lines, dtype=torch.float64) for name, lines in lists.items()}
        for i, learner in enumerate(self.learners):
            found |= {f"{i}/{name}": one for name, one in learner.state().items()}
        self._latest = found
        if time.monotonic() - self._saved >= _SECONDS:
            self._write()

    def _write(self) -> None:
        if self._path is None or not self._latest:
            return
        content = safetensors.torch.save(self._latest, {"question": json.dumps(self._question)})
        self._saved = time.monotonic()
        try:
            files.write(self._path, content, overwrite=True)
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
    wanted = [(one, one.requires_grad) for one in model.parameters()]
    modes = [(one, one.training) for one in model.modules()]
    try:
        model.eval()
        for one, _ in wanted:
            one.requires_grad_(False)
        yield
    finally:
        for one, wants in wanted:
            one.requires_grad_(wants)
        for one, mode in modes:
            one.training = mode
