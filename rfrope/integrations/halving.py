"""Learn a rotation from several starts: a short race, then only the best; resumable after every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from rfrope._core import parallel
from rfrope._core.arguments import show
from rfrope._core.files import Checkpoint
from rfrope.rotation.rope import Rope

Tensor: TypeAlias = Any  # torch.Tensor, unknown to the type checker
Module: TypeAlias = Any
Loss: TypeAlias = Callable[[Any], Tensor]

GOING, WAITED, BROKEN, DROPPED = 0, 1, 2, 3  # states of learning from a start
AS_IT_IS, LEARNED = "as it is", "learned"  # methods compared with the starts: the model's own rotation, and the result
_FARTHEST = 64.0  # largest log-factor or log-temperature, within the range of float32
_SAMPLED = 16  # values per parameter by which a checkpoint recognises a model


@dataclass(frozen=True, eq=False)
class Course:
    """Loss, batches and options of a race."""

    loss: Loss  # of a batch: the loss per document, (documents,), or one number
    learning: Any  # a function of the step, or batches used in turn
    validation: Mapping[str, Sequence[Any]]  # batches by part, such as within and beyond, to choose by
    held_out: Mapping[str, Sequence[Any]]  # the same, to judge by
    steps: int  # in all, from the best start
    race: int  # steps from every start, before all but the best are dropped
    check_every: int  # steps between validations
    patience: int  # validations without improvement before learning ends
    rate: float  # learning rate of Adam at the first step; it falls to 0
    penalty: float  # weight of the sum of squared log-factors and log-temperature, divided by the number of sets
    about: Any = None  # what `learning` makes batches from; identifies a checkpoint

    def batch(self, step: int) -> Any:
        """Return the batch of a step."""
        return self.learning(step) if callable(self.learning) else self.learning[step % len(self.learning)]


@dataclass(frozen=True, eq=False)
class State:
    """Progress of a race: for each start, one row of parameters and their Adam moments."""

    n: int  # steps, validations and evaluations so far
    values: np.ndarray  # (starts, parameters), current values
    first: np.ndarray  # (starts, parameters), Adam's first moments; second alike
    second: np.ndarray
    best: np.ndarray  # (starts, parameters), values at the best validation
    loss: np.ndarray  # (starts,), at the best validation
    at: np.ndarray  # (starts,), steps done
    waited: np.ndarray  # (starts,), validations since the best one
    ended: np.ndarray  # (starts,), how it ended
    # (validations, 3 + parts): start, step, mean loss of the steps before, validation loss of each part
    history: np.ndarray
    running: np.ndarray  # (starts, 2): sum and number of losses since the last validation
    readings: np.ndarray  # (documents, 4): method, part, batch and loss of held-out documents

    @classmethod
    def empty(cls, starts: int, parameters: int, parts: int) -> State:
        """Return the state before the first step."""
        rows = {name: np.zeros((starts, parameters)) for name in ("values", "first", "second", "best")}
        numbers = {name: np.zeros(starts, np.int64) for name in ("at", "waited", "ended")}
        lists = {"history": np.zeros((0, 3 + parts)), "running": np.zeros((starts, 2)), "readings": np.zeros((0, 4))}
        return cls(n=0, loss=np.full(starts, math.inf), **rows, **numbers, **lists)

    def changed(self, row: int, **rows: Any) -> State:
        """Return a copy with new values in the row of a start."""
        copies = {name: getattr(self, name).copy() for name in rows}
        for name, value in rows.items():
            copies[name][row] = value
        return replace(self, n=self.n + 1, **copies)


@dataclass(frozen=True, eq=False)
class Places:
    """The rotary modules of a model."""

    model: Module
    make: Callable[[Sequence[Rope]], list[Module]]  # modules that learn from the Ropes of a start
    # a context in which the model uses such modules, or for None its own rotation
    put_in: Callable[[list[Module] | None], AbstractContextManager[Any]]


class Race:
    """Learning from all starts; its state is complete after every step."""

    def __init__(self, places: Places, course: Course, starts: Mapping[str, Sequence[Rope]], checkpoint: Any) -> None:
        self.places, self.course = places, course
        self.names, self.starts = [*starts], [*starts.values()]
        if LEARNED in self.names:
            raise ValueError(f"starts has {LEARNED!r}, the name of the learned rotation; expected another name")
        made = [places.make(ropes) for ropes in self.starts]
        sizes = {sum(one.numel() for one in parameters_of(modules)) for modules in made}
        if len(sizes) > 1:
            raise ValueError("starts have Ropes of different shapes; expected frequencies of one shape")
        self.state = State.empty(len(self.starts), sizes.pop(), len(course.validation))
        self._kept = None
        if checkpoint is not None:
            self._kept = Checkpoint(checkpoint, self._question([*made[0][0].learnable]))
            self.state = self._kept.restored(State, np.zeros(())) or self.state

    def _question(self, learned: list[str]) -> dict[str, Any]:
        """Return everything that determines the result, for a checkpoint."""
        course, model = self.course, self.places.model
        ropes = [[np.asarray(one.frequencies), one.attention_factor] for ropes in self.starts for one in ropes]
        kept = ("loss", "learning", "validation", "held_out", "about")
        numbers = {one.name: getattr(course, one.name) for one in fields(course) if one.name not in kept}
        learning = course.learning
        if callable(learning):
            learning = [course.about, course.batch(0), course.batch(course.steps - 1)]
        batches = [course.validation, course.held_out, learning]
        numbers |= {"starts": [*self.names, ropes], "learnable": learned}
        return numbers | {"batches": _plain(batches), "model": _fingerprint(model)}

    @property
    def winner(self) -> int:
        """Return the number of the start with the lowest loss so far."""
        return int(np.argmin(self.state.loss))

    @property
    def is_reading(self) -> bool:
        """True if all is learned, and some of the held-out documents are read."""
        return bool(len(self.state.readings))

    def run(self, progress: Any) -> None:
        """Learn, and evaluate the held-out documents; the checkpoint keeps the progress however this ends."""
        more, readings = len(self.starts) - 1, sum(map(len, self.course.held_out.values()))
        total = len(self.starts) + more * self.course.race + self.course.steps + len(self.methods) * readings
        steps = self._steps()
        try:
            for _ in parallel.show_progress(steps, total, progress, self.state.n):
                if self._kept is not None:
                    self._kept.keep(self.state, self.state.n)
        finally:
            steps.close()  # restores the model's rotation
            if self._kept is not None and self.state.n:
                self._kept.keep(self.state, self.state.n, now=True)

    def _steps(self) -> Generator[None]:
        """Do the remaining steps."""
        for number in range(len(self.starts)):
            yield from self._learn(number, self.course.race if len(self.starts) > 1 else 0)
        if not np.isfinite(self.state.loss).any():
            raise ValueError(
                "loss is NaN or infinite on the validation from every start, before anything was learned; expected "
                "finite numbers"
            )
        going = np.flatnonzero(self.state.ended == GOING)
        if going.size:
            best = int(going[np.argmin(self.state.loss[going])])
            ended = np.where(self.state.ended == GOING, DROPPED, self.state.ended)
            ended[best] = GOING
            self.state = replace(self.state, ended=ended)  # a resumed run chooses the same
            yield from self._learn(best, self.course.steps)
        yield from self._read()

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, number: int, until: int) -> Iterator[None]:
        """Learn from a start up to a step."""
        state = self.state
        looked = bool(len(state.history)) and number in state.history[:, 0]
        if looked and (state.at[number] >= until or state.ended[number] != GOING):
            return
        modules = self.places.make(self.starts[number])
        parameters = parameters_of(modules)
        with self.places.put_in(modules):
            write(parameters, self.state.values[number])
            if not looked:
                self._look(number)
                yield
            optimiser = self._optimiser(number, parameters)
            while self.state.at[number] < until and self.state.ended[number] == GOING:
                self._step(number, parameters, optimiser)
                yield

    def _optimiser(self, number: int, parameters: list[Tensor]) -> Any:
        """Return Adam in its state after the last step."""
        optimiser = torch.optim.Adam(parameters, lr=self.course.rate)
        if step := int(self.state.at[number]):
            first, second = (parted(getattr(self.state, name)[number], parameters) for name in ("first", "second"))
            for parameter, m, v in zip(parameters, first, second, strict=True):
                optimiser.state[parameter] = {"step": torch.tensor(float(step)), "exp_avg": m, "exp_avg_sq": v}
        return optimiser

    @torch.enable_grad()
    def _step(self, number: int, parameters: list[Tensor], optimiser: Any) -> None:
        """Do one step, and validate after some of them."""
        course, step = self.course, int(self.state.at[number])
        loss = _checked(course.loss(course.batch(step))).mean()
        sets = sum(len(one.frequencies) if one.frequencies.ndim > 2 else 1 for one in self.starts[number])
        squares = sum(one.square().sum() for one in parameters) / sets
        total = loss + (course.penalty * squares).to(loss.device, loss.dtype)
        gradients = torch.autograd.grad(total, parameters, allow_unused=True) if loss.requires_grad else None
        if gradients is None or all(one is None for one in gradients):
            raise ValueError("loss has no gradient for the learned parameters; expected a loss of the given model")
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
        if not all(bool(torch.isfinite(one).all()) for one in (total.detach(), *(one.grad for one in parameters))):
            self.state = self.state.changed(number, ended=BROKEN)
            return
        optimiser.param_groups[0]["lr"] = course.rate * (1.0 - step / course.steps)
        optimiser.step()
        held = [optimiser.state[one] for one in parameters]
        rows = {"values": parameters, "first": [one["exp_avg"] for one in held]}
        rows["second"] = [one["exp_avg_sq"] for one in held]
        running = self.state.running[number] + (float(loss.detach()), 1.0)
        made = {name: joined(tensors) for name, tensors in rows.items()}
        if not (np.abs(made["values"]) <= _FARTHEST).all():
            self.state = self.state.changed(number, ended=BROKEN)
            return
        after = self.state.changed(number, **made, at=step + 1, running=running)
        if (step + 1) % course.check_every and step + 1 != course.steps:
            self.state = after
            return
        self._look(number, after)

    def _look(self, number: int, state: State | None = None) -> None:
        """Validate, and record whether the loss fell; the state is replaced together with the step before."""
        state = self.state if state is None else state
        found = [float(np.mean(self._losses(batches))) for batches in self.course.validation.values()]
        loss, (total, count) = float(np.mean(found)), state.running[number]
        line = [number, state.at[number], total / count if count else math.nan, *found]
        is_better = math.isfinite(loss) and loss < state.loss[number]
        waited = 0 if is_better else int(state.waited[number]) + 1
        ended = GOING if waited < self.course.patience else WAITED
        rows: dict[str, Any] = {"waited": waited, "ended": ended if math.isfinite(loss) else BROKEN, "running": 0.0}
        if is_better:
            rows |= {"loss": loss, "best": state.values[number]}
        history = np.vstack([state.history, line])
        self.state = replace(state.changed(number, **rows), n=self.state.n + 1, history=history)

    @torch.no_grad()
    def _losses(self, batches: Sequence[Any]) -> np.ndarray:
        """Return the loss of each document."""
        found = [_checked(self.course.loss(batch)).detach().cpu().double().reshape(-1).numpy() for batch in batches]
        return np.concatenate(found)

    # -- held-out documents --------------------------------------------------------------------------------------------

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods compared: the model's own rotation, the starts, and the learned one."""
        return [AS_IT_IS, *(name for name in self.names if name != AS_IT_IS), LEARNED]

    def learned(self) -> list[Module]:
        """Return modules with the learned rotation."""
        modules = self.places.make(self.starts[self.winner])
        write(parameters_of(modules), self.state.best[self.winner])
        return modules

    def _read(self) -> Iterator[None]:
        """Evaluate every method on the held-out batches."""
        for i, method in enumerate(self.methods):
            wanted = [(j, k) for j, part in enumerate(self.course.held_out.values()) for k in range(len(part))]
            done = {(int(j), int(k)) for m, j, k, _ in self.state.readings if m == i}
            if done.issuperset(wanted):
                continue
            modules = None if method in (AS_IT_IS, LEARNED) else self.places.make(self.starts[self.names.index(method)])
            with self.places.put_in(self.learned() if method == LEARNED else modules):
                for j, k in wanted:
                    if (j, k) not in done:
                        losses = self._losses([[*self.course.held_out.values()][j][k]])
                        lines = [[i, j, k, one] for one in losses]
                        readings = np.vstack([self.state.readings, lines])
                        self.state = replace(self.state, n=self.state.n + 1, readings=readings)
                        yield

    def losses(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the loss of each held-out document, by method and part."""
        held, parts = self.state.readings, [*self.course.held_out]
        return {
            method: {part: held[(held[:, 0] == i) & (held[:, 1] == j), 3] for j, part in enumerate(parts)}
            for i, method in enumerate(self.methods)
        }


# -- parameters in a row -----------------------------------------------------------------------------------------------


def parameters_of(modules: Sequence[Module]) -> list[Tensor]:
    """Return the parameters of modules, shared ones once."""
    return [*dict.fromkeys(one for module in modules for one in module.parameters())]


def joined(tensors: Sequence[Tensor]) -> np.ndarray:
    """Return the values of tensors, concatenated."""
    return np.concatenate([one.detach().cpu().double().reshape(-1).numpy() for one in tensors])


def parted(row: np.ndarray, like: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors shaped like others from a row of values."""
    sizes = np.cumsum([one.numel() for one in like])[:-1]
    pairs = zip(np.split(row, sizes), like, strict=True)
    return [torch.tensor(part, dtype=one.dtype, device=one.device).reshape(one.shape) for part, one in pairs]


@torch.no_grad()
def write(parameters: Sequence[Tensor], row: np.ndarray) -> None:
    """Write a row of values into parameters."""
    for parameter, values in zip(parameters, parted(row, parameters), strict=True):
        parameter.copy_(values)


def _checked(loss: Any) -> Tensor:
    """Return a checked loss: one number, or one per document."""
    if not isinstance(loss, torch.Tensor) or loss.ndim > 1 or not loss.numel() or not loss.is_floating_point():
        what = f"a tensor of {loss.dtype} with shape {tuple(loss.shape)}" if hasattr(loss, "dtype") else show(loss)
        raise TypeError(f"loss gave {what}; expected a tensor of floats, one number or one for each document")
    return loss


# -- how a checkpoint recognises a model and batches -------------------------------------------------------------------


def _fingerprint(model: Module) -> list[Any]:
    """Return a few values of each parameter, which further training changes."""
    found: list[Any] = []
    for name, one in model.named_parameters():
        flat = one.detach().reshape(-1)
        few = flat[:: max(1, flat.numel() // _SAMPLED)][:_SAMPLED]
        found += [name, str(one.dtype), str(tuple(one.shape)), few.double().cpu().numpy()]
    return found


def _plain(value: Any) -> Any:
    """Return batches with tensors as NumPy arrays."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.double() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


# -- a model while its rotation is learned -----------------------------------------------------------------------------


@contextmanager
def frozen(model: Module, *, training: bool = False) -> Iterator[None]:
    """Disable gradients and dropout of a model; restore both at the end."""
    wanted = [(one, one.requires_grad) for one in model.parameters()]
    modes = [(one, one.training) for one in model.modules()]
    try:
        model.train(training)
        for one, _ in wanted:
            one.requires_grad_(False)
        yield
    finally:
        for one, wants in wanted:
            one.requires_grad_(wants)
        for one, mode in modes:
            one.training = mode
