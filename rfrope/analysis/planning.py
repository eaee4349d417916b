"""Methods to extend the context of a trained model, measured by their angles and mean kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rfrope._core import angles, array
from rfrope._core.arguments import named, show, whole
from rfrope._core.results import Report, Result, Table, Words, plain
from rfrope.analysis import bases
from rfrope.analysis.curves import first_negative_lag
from rfrope.designs.errors import inner
from rfrope.rotation.rope import Rope, refuse_polar
from rfrope.scaling import schemes
from rfrope.scaling.registry import EVERYWHERE, Stretched, describe_reach
from rfrope.scaling.registry import stretched as stretched_by_config

_YARN, _LLAMA3, _AS_IT_IS = "yarn", "llama3", "as it is"
_WHOLE = ("partial_rotary_factor", 1.0)  # goes without saying
_LADDER = 1e-12  # how far, relatively, frequencies may be from the ladder of a base
_DIGITS = 3  # digits to which measures are alike
_PERPLEXITY = {  # SmolLM2-135M-Instruct beyond its 8192 positions, in texts of 16384: experiments/extend_context.py
    _YARN: 4.96,
    "ntk": 5.10,
    _LLAMA3: 5.20,
    "linear": 20.77,
    _AS_IT_IS: 58.50,
}
_EVIDENCE = (
    "Methods are ordered by perplexity, measured for one model at twice its context, without training.",
    "The other columns describe geometry: angles, and the mean score of equal content.",
)
_NOTES = """\
perplexity: of SmolLM2-135M-Instruct beyond its 8192 positions, on texts of 16384 tokens; not of this model.
departure: root mean square change of the mean kernel at the trained lags. unseen: blocks that completed no
turn in training and turn further in the longer context. first < 0: first lag in the longer context at which
the mean score of equal content is negative. factor: attention factor, not one of the measures."""


@dataclass(frozen=True, eq=False)
class Method(Result):
    """One method for a longer context, and its measures.

    Attributes
    ----------
    name : str
        "as it is", "linear", "ntk", "yarn" or "llama3".
    rope : Rope
        The frequencies, with their attention factor and the longer context.
    rope_parameters : dict or None
        Equivalent entry of a config, with the names of transformers 5; None if no scheme makes these frequencies.
    departure : float
        Root mean square difference between its mean kernel and the trained one, at the trained lags.
    unseen : tuple of int
        Blocks that completed no turn in training and rotate further over the longer context.
    first_negative_lag : int or None
        First lag of the longer context with a negative mean kernel.
    perplexity : float
        Measured perplexity of SmolLM2-135M-Instruct, extended from 8192 to 16384 positions without training; lower is
        better. No other model or length was measured.

    See Also
    --------
    analysis.Plan

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.analysis.plan(rfrope.Rope(rfrope.geometric(32), context=2048), 4096)
    >>> yarn = found.method("yarn")
    >>> yarn.rope_parameters["factor"], yarn.unseen
    (2.0, ())
    """

    name: str
    rope: Rope
    rope_parameters: dict[str, Any] | None
    departure: float
    unseen: tuple[int, ...]
    first_negative_lag: int | None
    perplexity: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists for JSON."""
        held = {name: value for name, value in vars(self).items() if name != "rope"}
        frequencies = array.to_host(self.rope.frequencies)
        return plain(held | {"frequencies": frequencies, "attention_factor": self.rope.attention_factor})


@dataclass(frozen=True, eq=False)
class Plan(Result):
    """Methods for a longer context, in order; ``str(plan)`` explains them.

    Attributes
    ----------
    trained_context, context : int
        Positions in training, and those to reach.
    n_blocks : int
        D.
    n_dead : int
        Blocks that complete no turn in the trained context.
    trained_negative_lag : int or None
        First lag of the trained context at which the trained mean kernel is negative.
    methods : tuple of Method
        By perplexity, best first.
    left_out : dict of str to str
        Methods that do not apply to these frequencies, and why.
    stretched : Stretched or None
        Scheme already applied by the config, if the plan starts from the ladder before it: ``scheme``, ``factor``,
        ``original_context`` and ``reach``.
    caution : str
        What that scheme reaches, where it is not the config's own context; or "".

    See Also
    --------
    analysis.plan, analysis.Method

    Examples
    --------
    >>> import rfrope
    >>> found = rfrope.analysis.plan(rfrope.Rope(rfrope.geometric(32), context=2048), 4096)
    >>> [one.name for one in found.methods]
    ['yarn', 'ntk', 'llama3', 'linear', 'as it is']
    """

    trained_context: int
    context: int
    n_blocks: int
    n_dead: int
    trained_negative_lag: int | None
    methods: tuple[Method, ...]
    left_out: dict[str, str]
    stretched: Stretched | None = None
    caution: str = ""

    def method(self, name: str) -> Method:
        """Return the method of a name; case and punctuation are ignored."""
        by_name = {one.name: one for one in self.methods}
        name = named("name", name, (*by_name, *self.left_out))
        if name in self.left_out:
            raise ValueError(f"name is {show(name)}, which is left out: {self.left_out[name]}")
        return by_name[name]

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """Return the measures of each method as rows of text below a header."""
        head = ("method", "perplexity", "departure", "unseen", "first < 0", "factor")
        rows = [
            (
                method.name,
                f"{method.perplexity:.2f}",
                f"{method.departure:.{_DIGITS}g}",
                str(len(method.unseen)),
                "never" if method.first_negative_lag is None else str(method.first_negative_lag),
                f"{method.rope.attention_factor:.4g}",
            )
            for method in self.methods
        ]
        return (head, *rows)

    @property
    def preface(self) -> str:
        """Return sentences on the start of the plan and the order of its methods."""
        lag = self.trained_negative_lag
        blocks = f"{self.n_blocks} block{'s' * (self.n_blocks != 1)} completed no turn in"
        start = [
            f"From {self.trained_context} trained positions to {self.context}, "
            f"{self.context / self.trained_context:.4g} times as many. {self.n_dead} of {blocks} training,",
            f"and the trained mean kernel is {'nowhere below 0' if lag is None else f'below 0 first at lag {lag}'}.",
        ]
        return "\n".join([*self._done_before(), *start, *_EVIDENCE])

    def _done_before(self) -> list[str]:
        """Return lines on earlier changes of the ladder, and on the start of the plan."""
        caution = [self.caution] if self.caution else []
        if self.stretched is None:
            steps = self.method(_AS_IT_IS).rope.source.scaled_by
            names = ", then ".join(str(step["scheme"]) for step in steps if step.get("factor") != 1.0)
            told = f"The frequencies were already scaled by {names}; the plan takes them as trained."
            return [*caution, told] if names else caution
        enough = f"It reaches the requested {self.context} positions unchanged."
        return [
            *(caution or [f"The config is {self.stretched}."]),
            *([enough] if self.context <= self.stretched.reach else []),
            f"The plan starts from the frequencies before {self.stretched.scheme}. If the model was trained on\n"
            "longer texts, pass their length (trained_context, --trained): they are then taken as they are.",
        ]

    def report(self) -> Report:
        """Return the start of the plan, the measures of each method, and notes on them."""
        first = self.methods[0]
        verdict = f"{first.name} is first, by perplexity measured for one model: {first.perplexity:.2f}."
        if self.stretched is not None and self.context <= self.stretched.reach:
            verdict = f"The config reaches {self.context} positions unchanged."
        notes = Words([_NOTES, *(f"{name} is left out: {reason}." for name, reason in self.left_out.items())])
        return Report([Words([self.preface]), Table(self.table, rule=False), notes], verdict)


@array.select_device
def plan(rope: Any, context: int, *, trained_context: int | None = None) -> Plan:
    """Compare methods that extend the context of a trained model: measured perplexity and geometry.

    The perplexity was measured on one small model at twice its context, not on yours.

    Parameters
    ----------
    rope : Rope or array_like, (D,), radians per position
        The trained frequencies. If their config has a scheme with a factor above 1, the plan starts from the ladder
        before that scheme, and from the original context. Unrotated blocks of a head count, as in `summarise`; sections
        do not: all axes advance together, as in text.
    context : int
        Positions to reach, more than the trained ones.
    trained_context : int, optional
        Positions in training, at least 2. Default: the Rope's context. A value above a scheme's original context (for
        linear, ntk and proportional, which name none, at least the config's own) means that the model was trained with
        the scheme: its frequencies are then the start, for dynamic and longrope those at the trained context.

    Returns
    -------
    Plan
        ``print`` it, or use its ``methods``, each with its ``rope``.

    Raises
    ------
    ValueError
        If a context is missing or not as described above, there are several heads or axes, or all frequencies are 0.
    TypeError
        If an argument is of another type.

    See Also
    --------
    analysis.Plan, scaling.yarn, integrations.transformers.tune

    Notes
    -----
    With s the ratio of the contexts, the methods are the trained frequencies unchanged; `linear`, `ntk` and `yarn` with
    factor s; and `llama3` with s and the bands of Llama 3.1. YaRN is left out if the trained frequencies are not a
    geometric ladder. Measures ignore attention factors:

    - departure: the root mean square of ``C'(m) - C(m)`` over all trained lags m, with C the mean kernel;
    - unseen: a block with less than a turn in training showed angles up to ``trained_context theta``, and meets new
      ones if ``context theta'`` is larger; one with a turn or more showed all;
    - first negative lag of C' within the context; later is better.

    They do not order the methods: on the one model measured, a set of divisors optimised for them came after YaRN, ntk
    and llama3.

    Examples
    --------
    >>> import rfrope
    >>> found = plan(rfrope.Rope(rfrope.geometric(64, base=5e5), context=8192), 32768)
    >>> [method.name for method in found.methods]
    ['yarn', 'ntk', 'llama3', 'linear', 'as it is']
    >>> round(found.method("llama3").departure, 3), round(found.method("yarn").departure, 3)
    (0.105, 0.111)
    """
    trained = rope if isinstance(rope, Rope) else Rope(rope)
    refuse_polar(trained, "rope", "the methods for longer contexts were made and measured for RoPE")
    trained_context = None if trained_context is None else whole("trained_context", trained_context, 2)
    before, caution = stretched_by_config(trained), describe_reach(trained)
    if before is not None and (trained_context or 0) >= before.original_context + before.names_original:
        before = None  # the model was trained with its scheme
    trained = trained if before is None else before.rope
    omega = np.asarray(angles.read_on_host(trained.frequencies, "rope", shapes="one axis")[:, 0])
    if not np.any(omega):
        raise ValueError("all frequencies of rope are 0; expected at least one other")
    trained = replace(trained, frequencies=omega)
    if trained_context is None:
        trained_context = max(trained.context) if isinstance(trained.context, tuple) else trained.context
    if trained_context is None:
        raise ValueError("trained_context is missing; expected the positions in training, such as 4096")
    context = whole("context", context)
    if context <= trained_context:
        raise ValueError(f"context is {context}; expected more than the {trained_context} trained positions")
    still = np.zeros(max(0, (trained.qk_head_dim + 1) // 2 - omega.size))
    given = _Stretch(np.append(np.abs(omega), still), trained_context, context)
    made, left_out = _published(replace(trained, context=trained_context), given)
    methods = [_measured(name, one, parameters, given) for name, (one, parameters) in made.items()]
    return Plan(
        trained_context,
        context,
        trained.n_blocks,
        int(np.sum(given.complete_no_turn[: trained.n_blocks])),
        first_negative_lag(given.trained, trained_context - 1),
        tuple(sorted(methods, key=lambda method: method.perplexity)),
        left_out,
        before,
        caution,
    )


# -- the methods ------------------------------------------------------------------------------------------------------

_Made = dict[str, tuple[Rope, dict[str, Any] | None]]


def _published(trained: Rope, given: _Stretch) -> tuple[_Made, dict[str, str]]:
    """Ropes of the published methods with what a config says of them, and why others are left out."""
    original, base = given.trained_context, ladder_base(trained)
    factor = given.context / original
    long: dict[str, Any] = {"factor": factor, "original_max_position_embeddings": original}
    bands: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}  # Llama 3.1's
    makers: dict[str, tuple[Callable[[], Rope], dict[str, Any]]] = {
        _AS_IT_IS: (lambda: trained, {"rope_type": "default"}),
        "linear": (lambda: schemes.linear(trained, factor), {"rope_type": "linear", "factor": factor}),
        "ntk": (lambda: schemes.ntk(trained, factor), {"rope_type": "default"}),
        _YARN: (lambda: schemes.yarn(trained, base=base, **long), {"rope_type": "yarn", **long}),
        _LLAMA3: (lambda: schemes.llama3(trained, **bands, **long), {"rope_type": "llama3", **bands, **long}),
    }
    left_out = {}
    if base is None:
        left_out[_YARN] = "the trained frequencies are not a geometric ladder, by which it places its ramp"
    if trained.n_blocks < 2:
        left_out["ntk"] = "it keeps the first block and slows the last, and there is one"
    made: _Made = {}
    for name, (make, parameters) in makers.items():
        if name not in left_out:
            rope = replace(make(), context=given.context)
            made[name] = (rope, None if base is None else _parameters(trained, base, parameters, name, factor))
    return made, left_out


def _parameters(
    trained: Rope, base: float, parameters: dict[str, Any], name: str, factor: float
) -> dict[str, Any] | None:
    """Entries of a config, where the trained Rope is a ladder; None for what no scheme says beside it."""
    held = trained.source.rope_parameters
    if trained.attention_factor != 1.0 or (not held and trained.head_dim != trained.rotary_dim):
        return None
    width = trained.rotary_dim
    beside = {key: held[key] for key in EVERYWHERE if key in held and (key, held[key]) != _WHOLE}
    theta = base * factor ** (width / (width - 2)) if name == "ntk" else base
    return parameters | beside | {"rope_theta": theta}


def ladder_base(trained: Rope) -> float | None:
    """Return the base of the trained frequencies if they are a geometric ladder, or None."""
    if not np.all(trained.frequencies):
        return None
    return bases.ladder_base(trained.frequencies, _LADDER, trained.source.rope_parameters.get("rope_theta", 0.0))


# -- measures ----------------------------------------------------------------------------------------------------------


class _Stretch(NamedTuple):
    """Trained frequencies, their context, and the context to reach."""

    trained: np.ndarray  # (D,), radians per position: not negative
    trained_context: int  # positions
    context: int

    @property
    def complete_no_turn(self) -> np.ndarray:
        """Return True for each block with less than a turn in the trained context."""
        return self.trained * (self.trained_context / (2.0 * math.pi)) < 1.0


def _measured(name: str, rope: Rope, parameters: dict[str, Any] | None, given: _Stretch) -> Method:
    omega = np.abs(rope.frequencies)
    omega = np.append(omega, np.zeros(given.trained.size - omega.size))  # a 0 for each block that never turns
    unseen = given.complete_no_turn & (omega * given.context > (1.0 + 1e-9) * given.trained * given.trained_context)
    return Method(
        name,
        rope,
        parameters,
        departure=math.sqrt(_mean_square(omega, given.trained, given.trained_context)),
        unseen=tuple(np.flatnonzero(unseen).tolist()),
        first_negative_lag=first_negative_lag(omega, given.context - 1),
        perplexity=_PERPLEXITY[name],
    )


def _mean_square(omega: np.ndarray, trained: np.ndarray, n_lags: int) -> float:
    """Return the mean square difference of two mean kernels over lags 0, ..., n_lags - 1, in closed form."""
    own, both, other = (
        np.sum(inner((n_lags - 1,), a[:, None, None], b[:, None]))
        for a, b in ((omega, omega), (omega, trained), (trained, trained))
    )
    twice = (2.0 * n_lags - 1.0) / (2.0 * n_lags)  # `inner` counts every lag but 0 twice, and at 0 both are 1
    return max(0.0, twice * float(own - 2.0 * both + other) / len(omega) ** 2)
