"""`Tuning`, the record of a learned rotation: Ropes, history, and losses on held-out documents."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfrope._core import array
from rfrope._core.results import Report, Result, Table, Words, plain
from rfrope.rotation.rope import Rope

__all__ = ["Tuning"]

LEARNED = "learned"  # the method that the others are compared with
_VERDICTS = {"better": "better than", "worse": "worse than", "even": "within two standard errors of"}
_DIGITS = 4


@dataclass(frozen=True, eq=False)
class Tuning(Result):
    """A rotation learned with all weights frozen; ``str(tuning)`` says whether it helps.

    Attributes
    ----------
    rope : Rope
        The learned Rope of all layers.
    start : str
        Name of its start, the best of the race.
    steps : int
        Steps up to the best validation; 0 if no step lowered it.
    ended : str
        Reason for the end of learning.
    history : tuple of dict
        One entry per validation: ``start``, ``step``, ``learning`` (mean loss of the steps since the last one, None at
        the first) and ``validation``, the loss of each part.
    losses : dict of str to dict of str to ndarray
        Loss of each held-out document, by method ("as it is", the starts, "learned") and by part.

    See Also
    --------
    integrations.tuning.tune_modules, integrations.transformers.tune

    Examples
    --------
    >>> import rfrope, torch
    >>> from rfrope.layers.torch import RotaryEmbedding
    >>> from rfrope.integrations.tuning import tune_modules
    >>> model, x = torch.nn.ModuleList([RotaryEmbedding(rfrope.geometric(4))]), torch.randn(1, 1, 6, 8)
    >>> wanted = rfrope.rotate(x, torch.arange(6), 0.9 * rfrope.geometric(4))
    >>> def loss(batch):
    ...     return (model[0](x, x)[0] - wanted).square().mean()
    >>> tuning = tune_modules(model, loss, [None], {"all": [None]}, {"all": [None]}, steps=60, learnable="factors")
    >>> tuning.steps > 0, tuning.rope.n_blocks
    (True, 4)
    """

    rope: Rope
    start: str
    steps: int
    ended: str
    history: tuple[dict[str, Any], ...]
    losses: dict[str, dict[str, np.ndarray]]

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts of the held-out documents, such as "within" and "beyond"."""
        return tuple(self.losses[LEARNED])

    def mean(self, method: str, part: str) -> tuple[float, float]:
        """Return the mean loss of a method over documents, and its standard error."""
        return _mean(self.losses[method][part])

    def difference(self, method: str, part: str) -> tuple[float, float]:
        """Return the learned rotation's mean loss minus a method's, and the standard error over pairs."""
        return _mean(self.losses[LEARNED][part] - self.losses[method][part])

    def verdict(self, method: str, part: str) -> str:
        """Return "better" or "worse" for the learned rotation against a method, or "even" within two standard errors.

        For few documents, the 95 % quantile of Student's t is used where it is larger than two. A loss that is not
        finite is "worse", or "better" if only the method's is not.
        """
        from scipy import special

        own, others = (np.isfinite(self.losses[name][part]) for name in (LEARNED, method))
        if not own.all():
            return "worse"
        if not others.all():
            return "better"
        mean, error = self.difference(method, part)  # the error of one document is NaN
        if mean == 0.0 or not abs(mean) > max(2.0, float(special.stdtrit(own.size - 1, 0.975))) * error:
            return "even"
        return "better" if mean < 0.0 else "worse"

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """Return mean losses, their differences from the learned one, and standard errors, as rows below a header."""
        rows = [("method", *self.parts, *(f"learned less it, {part}" for part in self.parts))]
        for name in self.losses:
            cells = [_stated(*self.mean(name, part)) for part in self.parts]
            less = ["" if name == LEARNED else _stated(*self.difference(name, part), "+") for part in self.parts]
            rows.append((name, *cells, *less))
        return tuple(rows)

    def _sentences(self) -> Iterator[str]:
        if not self.steps:
            yield f"No step lowered the validation loss: the learned rotation is {self.start} unchanged."
            return
        for part in self.parts:
            told = []
            for kind, words in _VERDICTS.items():
                if names := [one for one in self.losses if one != LEARNED and self.verdict(one, part) == kind]:
                    told.append(f"{words} {', '.join(names)}")
            yield f"{part}: the learned rotation is {'; '.join(told)}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON, with None for NaN."""
        rope = self.rope
        losses = {
            name: {
                part: {"documents": values, "mean": self.mean(name, part)[0], "stderr": self.mean(name, part)[1]}
                for part, values in parts.items()
            }
            for name, parts in self.losses.items()
        }
        kinds = {name: {part: self.verdict(name, part) for part in self.parts} for name in losses if name != LEARNED}
        numbers = {"frequencies": array.to_host(rope.frequencies), "attention_factor": rope.attention_factor}
        held = {name: value for name, value in vars(self).items() if name != "rope"}
        return plain({"ropes": [numbers | {"source": rope.source}], **held, "losses": losses, "learned_is": kinds})

    def report(self) -> Report:
        """Return where the learning ended, the losses, and where something was gained."""
        count = ", ".join(f"{len(values)} {part}" for part, values in self.losses[LEARNED].items())
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        preface = [
            f"Learned from {self.start} in {steps}: {self.ended}.",
            f"Mean loss on held-out documents ({count}), ± standard error over them:",
        ]
        told = [*self._sentences()]
        return Report([Words(preface), Table(self.table, rule=False), Words(told)], " ".join(told))


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error, NaN for fewer than two values."""
    values = np.asarray(values, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.std(values, ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan
        return float(np.mean(values)), error


def _stated(mean: float, error: float, sign: str = "") -> str:
    return f"{mean:{sign}.{_DIGITS}f} ± {error:.{_DIGITS}f}"
