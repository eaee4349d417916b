"""Learn a rotation from several starts by successive halving: a short run from each, then only from the best.

A checkpoint is that of a whole step: the same call goes on from it with the same bits.
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
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch

from rfrope._core import files, parallel
from rfrope._core.arguments import finite, listed, path_of, positive, show, whole
from rfrope.integrations.tuned import LEARNED, Tuning
from rfrope.rotation.rope import Rope

Tensor: TypeAlias = Any  # torch.Tensor, unknown to the type checker
Module: TypeAlias = Any

AS_IT_IS = "as it is"  # the method by the model's own rotation
PENALTY = 0.001  # weight of the sum of squared log-factors and log-temperature, divided by the number of sets
PATIENCE = 5  # validations without a lower loss before learning ends
_FARTHEST = 64.0  # largest log-factor or log-temperature, within the range of float32
_SAMPLED = 16  # values per parameter by which a checkpoint recognises a model
_SECONDS = 1.0  # between two checkpoints


def _read_parts(name: str, given: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is {show(given)}; expected a dict of batches by the name of their part")
    parts = {part: listed(f"{name}[{part!r}]", batches, "batches") for part, batches in given.items()}
    if not parts or not all(parts.values()):
        raise ValueError(f"{name} has no documents; expected at least one batch in every part")
    return parts


class Learner:
    """Learning from one start: its modules, Adam, and the best so far."""

    def __init__(self, name: str, rope: Rope, modules: list[Module]) -> None:
        self.name, self.rope, self.modules = name, rope, modules
        self.parameters = [*dict.fromkeys(one for module in modules for one in module.parameters())]
        self.values = torch.cat([one.detach().reshape(-1) for one in self.parameters])  # which the parameters copy
        self.optimiser = torch.optim.Adam([self.values])  # at a rate that every step sets
        self.best = self.values.clone()  # at the best validation
        self.loss, self.first = math.inf, 0  # the same, and its step
        self.step, self.looked = 0, -1  # steps done, and the step of the last validation
        self.waited, self.ended = 0, ""  # validations since the best one, and why learning from this start ended
        self.total, self.count = 0.0, 0  # sum and number of losses since the last validation

    @torch.no_grad()
    def use(self, values: Tensor) -> list[Module]:
        """Return the modules, with these values of the parameters."""
        for one, part in zip(self.parameters, values.split([one.numel() for one in self.parameters]), strict=True):
            one.copy_(part.reshape(one.shape))
        return self.modules

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that changes: tensors, and numbers."""
        tensors = {"values": self.values, "best": self.best, **self.optimiser.state[self.values]}
        return tensors, {name: value for name, value in vars(self).items() if isinstance(value, int | float | str)}

    def restore(self, tensors: dict[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Restore the state."""
        vars(self).update(numbers)
        self.values.copy_(tensors.pop("values"))
        self.best = tensors.pop("best").to(self.best)
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": {0: tensors} if tensors else {}})
        self.use(self.values)


class Halving:
    """Learning from all starts, and the losses of held-out documents."""

    def __init__(
        self,
        model: Module,
        make: Callable[[Rope], list[Module]],  # modules that learn from the Rope of a start
        # a context in which the model uses such modules, or for None its own rotation
        put_in: Callable[[list[Module] | None], AbstractContextManager[Any]],
        starts: Mapping[str, Rope],
        loss: Any,
        learning: Any,
        validation: Any,
        held_out: Any,
        *,
        steps: Any,
        rate: Any,
        race: Any = 0.25,
        check_every: Any = None,
        about: Any = None,
        checkpoint: Any = None,
    ) -> None:
        if not callable(loss):
            raise TypeError(f"loss is {show(loss)}; expected a function of a batch")
        if not callable(learning) and not len(listed("learning", learning, "batches, or a function of the step")):
            raise ValueError("learning has no batches; expected at least one")
        self.model, self.make, self.put_in = model, make, put_in
        self.loss, self.learning = loss, learning  # a function of the step, or batches used in turn
        self.about = about  # what `learning` makes batches from; identifies a checkpoint
        # batches by part, such as within and beyond: those that choose, and those that judge
        self.validation, self.held_out = _read_parts("validation", validation), _read_parts("held_out", held_out)
        self.steps = whole("steps", steps, 1)  # in all, from the best start
        self.race = round(finite("race", race, minimum=0.0, maximum=1.0) * self.steps)  # from every start
        self.check_every = max(1, self.steps // 20) if check_every is None else whole("check_every", check_every, 1)
        self.rate = positive("rate", rate)  # learning rate of Adam at the first step; it falls to 0
        if LEARNED in starts:
            raise ValueError(f"starts has {LEARNED!r}, the name of the learned rotation; expected another name")
        self.learners = {name: Learner(name, rope, make(rope)) for name, rope in starts.items()}
        if len({learner.best.numel() for learner in self.learners.values()}) > 1:
            raise ValueError("starts have Ropes of different shapes; expected frequencies of one shape")
        self.history: list[tuple[str, int, float | None, list[float]]] = []  # start, step, mean loss, and of each part
        self.readings: list[list[float]] = []  # of each held-out batch, for each part and method: losses of documents
        self._path, self._due = None, time.monotonic() + _SECONDS  # when to write next
        if checkpoint is not None:
            self._path, self._question = path_of("checkpoint", checkpoint), self._ask()
            if os.path.lexists(self._path):
                self._restore()
            else:
                files.check_writable(self._path)

    @property
    def best(self) -> Learner:
        """The learner with the lowest loss so far."""
        return min(self.learners.values(), key=lambda one: one.loss)

    def run(self, progress: Any) -> Tuning:
        """Learn, and evaluate the held-out documents."""
        methods = [*dict.fromkeys([AS_IT_IS, *self.learners, LEARNED])]
        parts = [(method, part, len(held)) for method in methods for part, held in self.held_out.items()]
        total = (len(self.learners) - 1) * self.race + self.steps + sum(count for *_, count in parts)
        done = sum(one.step for one in self.learners.values()) + len(self.readings)
        steps = self._steps(methods)
        try:
            for _ in parallel.show_progress(steps, total, progress, done):
                pass
        finally:
            steps.close()  # restores the model's rotation
        self._keep(is_last=True)
        losses, left = dict[str, dict[str, np.ndarray]](), iter(self.readings)
        for method, part, count in parts:
            losses.setdefault(method, {})[part] = np.concatenate([*itertools.islice(left, count)])
        best = self.best
        history = tuple(
            {"start": name, "step": step, "learning": mean, "validation": dict(zip(self.validation, each, strict=True))}
            for name, step, mean, each in self.history
        )
        ended = best.ended or f"all {self.steps} steps were done"
        return Tuning(best.use(best.best)[0].rope, best.name, best.first, ended, history, losses)

    def _steps(self, methods: Sequence[str]) -> Generator[None]:
        """Do the remaining steps."""
        for learner in self.learners.values():
            yield from self._learn(learner, self.race if len(self.learners) > 1 else 0)
        if not np.isfinite([one.loss for one in self.learners.values()]).any():
            raise ValueError(
                "loss is NaN or infinite on the validation from every start, before anything was learned; expected "
                "finite numbers"
            )
        going = sorted((one for one in self.learners.values() if not one.ended), key=lambda one: one.loss)
        for one in going[1:]:
            one.ended = "another start was better"
        for best in going[:1]:
            yield from self._learn(best, self.steps)
        yield from self._read(methods)

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, learner: Learner, until: int) -> Iterator[None]:
        """Learn from a start up to a step."""
        if learner.ended:
            return
        with self.put_in(learner.modules):
            while True:
                is_due = learner.step % self.check_every == 0 or learner.step == self.steps
                if is_due and learner.looked < learner.step:
                    self._look(learner)
                    self._keep()
                if learner.ended or learner.step >= until:
                    return
                if not self._step(learner):
                    learner.ended = self._explain_break(learner)
                self._keep()
                yield

    def _explain_break(self, learner: Learner) -> str:
        done = f"{learner.step} of {self.steps} steps"
        return f"the loss was NaN or infinite, or a factor too large, after {done}; the best is kept"

    def _batch(self, step: int) -> Any:
        return self.learning(step) if callable(self.learning) else self.learning[step % len(self.learning)]

    @torch.enable_grad()
    def _step(self, learner: Learner) -> bool:
        """Do one step; return False if the loss, a gradient or a parameter is out of range."""
        parameters, values = learner.parameters, learner.values
        loss = _checked(self.loss(self._batch(learner.step))).mean()
        if not loss.requires_grad:
            raise ValueError("loss has no gradient for the learned parameters; expected a loss of the given model")
        sets = len(learner.rope.frequencies) if learner.rope.frequencies.ndim > 2 else 1
        squares = sum(one.square().sum() for one in parameters) / sets
        total = loss + (PENALTY * squares).to(loss.device, loss.dtype)
        values.grad = torch.cat([one.reshape(-1) for one in torch.autograd.grad(total, parameters)])
        if not all(bool(torch.isfinite(one).all()) for one in (total.detach(), values.grad)):
            return False
        learner.optimiser.param_groups[0]["lr"] = self.rate * (1.0 - learner.step / self.steps)
        learner.optimiser.step()
        if not bool((values.abs() <= _FARTHEST).all()):
            return False
        learner.use(values)
        learner.step += 1
        learner.total, learner.count = learner.total + float(loss.detach()), learner.count + 1
        return True

    def _look(self, learner: Learner) -> None:
        """Validate, and note whether the loss fell."""
        found = [float(np.mean(self._losses(batches))) for batches in self.validation.values()]
        loss, mean = float(np.mean(found)), learner.total / learner.count if learner.count else None
        self.history.append((learner.name, learner.step, mean, found))
        learner.looked, learner.total, learner.count = learner.step, 0.0, 0
        learner.waited += 1
        if math.isfinite(loss) and loss < learner.loss:
            learner.loss, learner.first, learner.best, learner.waited = loss, learner.step, learner.values.clone(), 0
        if not math.isfinite(loss):
            learner.ended = self._explain_break(learner)
        elif learner.waited >= PATIENCE:
            learner.ended = f"the validation loss fell no further; {learner.step} of {self.steps} steps were done"

    @torch.no_grad()
    def _losses(self, batches: Sequence[Any]) -> np.ndarray:
        """Return the loss of each document."""
        found = [_checked(self.loss(batch)).detach().cpu().double().reshape(-1).numpy() for batch in batches]
        return np.concatenate(found)

    def _read(self, methods: Sequence[str]) -> Iterator[None]:
        """Evaluate every method on the held-out batches."""
        batches = [one for held in self.held_out.values() for one in held]
        left = [*itertools.product(methods, batches)][len(self.readings) :]
        for method, pairs in itertools.groupby(left, key=lambda pair: pair[0]):
            modules = None
            if method == LEARNED:
                modules = self.best.use(self.best.best)
            elif method != AS_IT_IS:
                modules = self.make(self.learners[method].rope)
            with self.put_in(modules):
                for _, batch in pairs:
                    self.readings.append(self._losses([batch]).tolist())
                    self._keep()
                    yield

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _ask(self) -> dict[str, str]:
        """Return digests of everything that determines the result."""
        learning, learners = self.learning, [*self.learners.values()]
        if callable(learning):
            learning = [self.about, self._batch(0), self._batch(self.steps - 1)]
        ropes = [[one.name, np.asarray(one.rope.frequencies), one.rope.attention_factor] for one in learners]
        asked = {name: getattr(self, name) for name in ("steps", "race", "check_every", "rate")}
        asked |= {"starts": ropes, "learnable": [*learners[0].modules[0].learnable]}
        asked |= {"batches": [self.validation, self.held_out, learning], "model": _fingerprint(self.model)}
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
        self.history, self.readings = told["history"], told["readings"]
        for i, (learner, numbers) in enumerate(zip(self.learners.values(), told["learners"], strict=True)):
            own = {name.partition("/")[2]: one for name, one in found.items() if name.startswith(f"{i}/")}
            learner.restore(own, numbers)

    def _keep(self, is_last: bool = False) -> None:
        """Write the state after a whole step, unless the last write was less than a second ago and more follows."""
        if self._path is None or (time.monotonic() < self._due and not is_last):
            return
        states = [one.state() for one in self.learners.values()]
        tensors = {f"{i}/{name}": one for i, (own, _) in enumerate(states) for name, one in own.items()}
        told = {"history": self.history, "readings": self.readings, "learners": [numbers for _, numbers in states]}
        about = {"question": json.dumps(self._question), "state": json.dumps(told)}
        try:
            files.write(self._path, safetensors.torch.save(tensors, about), overwrite=True)
        except OSError as error:  # the work goes on, and the next checkpoint may succeed
            warnings.warn(f"checkpoint {self._path} was not written: {error}", RuntimeWarning, stacklevel=2)
        self._due = time.monotonic() + _SECONDS


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
