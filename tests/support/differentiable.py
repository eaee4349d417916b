"""Functions of real arrays that can be differentiated by all of these, with arguments for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rfrope
from rfrope import analysis, heads

PAIRINGS = ("half", "interleaved")

FORMS = {  # frequencies, positions of three tokens, an offset that fits them
    "(D,)": ((3,), (3,), (1,)),
    "(D, k)": ((3, 2), (3, 2), (1, 2)),
    "(H, D, k)": ((2, 3, 2), (3, 2), (1, 2)),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """A function of real arrays; arguments named in `positive` are at least 1, the others between -1 and 1."""

    function: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]]
    positive: tuple[str, ...] = ("scale",)
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *arrays: Any) -> Any:
        return self.function(**dict(zip(self.shapes, arrays, strict=True)), **self.options)

    def arguments(self, still: tuple[str, ...] | None = None) -> list[np.ndarray]:
        """Arrays of float64; positions and lags reach up to 3.

        With `still` those named there are zero, as are positions, lags, offsets and shifts, and q is equal to k.
        """
        rng, found = np.random.default_rng(7), []
        for name, shape in self.shapes.items():
            values = rng.uniform(-1.0, 1.0, shape)
            values = values + 2.0 if name in self.positive else values
            values = 3.0 * values if name in ("positions", "q_positions", "k_positions", "lags") else values
            if still is not None and name in ("q", "k"):
                values = np.resize(np.arange(1.0, 9.0), shape)
            elif still is not None and (name in still or name not in ("x", "frequencies", *self.positive)):
                values = np.zeros(shape)
            found.append(values)
        return found


def _polar(x: Any, positions: Any, frequencies: Any, **options: Any) -> Any:
    return rfrope.rotation.rotate_polar(x, positions, frequencies, **options)


def _positional(frequencies: Any, offset: Any) -> Any:
    return heads.positional_weights(frequencies, d_model=2, offset=offset)[0]


def _profile(frequencies: Any, offset: Any) -> Any:
    axes = 1 if frequencies.ndim == 1 else frequencies.shape[-1]
    found = heads.positional_attention(frequencies, (4,) * axes, offset=offset, causal=False)
    return found.scores, found.weights


def problems(form: str, pairing: str) -> dict[str, Problem]:
    """One for every differentiable function that takes angles, for frequencies of one of the `FORMS`."""
    w, p, offset = FORMS[form]
    x, phases, paired = (2, 3, 8), (3, 3), {"pairing": pairing}
    angles = {"frequencies": w, "shift": phases}
    lags = {"q": (2, 1, 8), "k": (2, 1, 8), "lags": p, **angles}
    scores = {"q": x, "k": x, "q_positions": p, "k_positions": p, **angles}
    table = {"x": x, "cos": phases, "sin": phases}
    turned = {"x": x, "positions": p, **angles, "scale": phases}
    return {
        "rotate": Problem(rfrope.rotate, turned, options=paired),
        "inverse": Problem(rfrope.rotate, turned, options=paired | {"inverse": True}),
        "rotate_polar": Problem(_polar, turned | {"x": (2, 3, 3)}, options=paired | {"softplus": True}),
        "rotate_by_phases": Problem(rfrope.rotate_by_phases, {"x": x, "phases": phases, "scale": (3,)}, options=paired),
        "rotate_by_table": Problem(rfrope.rotate_by_table, table, options=paired),
        "rotation_table": Problem(rfrope.rotation_table, {"positions": p, **angles, "scale": phases}),
        "sinusoidal": Problem(rfrope.sinusoidal, {"positions": p, "frequencies": w}, options=paired),
        "shift_matrix": Problem(rfrope.rotation.shift_matrix, {"offset": p, "frequencies": w}, options=paired),
        "phases": Problem(rfrope.rotation.phases, {"positions": p, **angles}),
        "scores": Problem(rfrope.scores, scores, options=paired),
        "mean_kernel": Problem(analysis.mean_kernel, {"frequencies": w, "lags": p}),
        "phase_shift": Problem(heads.phase_shift, {"frequencies": w, "offset": offset}),
        "shifted_scores": Problem(heads.shifted_scores, lags, options=paired),
        "shifted_mean_kernel": Problem(heads.shifted_mean_kernel, {"lags": p, **angles}),
        "aligned_shift": Problem(
            heads.aligned_shift,
            {"frequencies": w, "offset": offset, "cosine": (3,), "sine": (3,)},
            ("cosine",),  # the angle jumps where both coefficients are zero
        ),
        "positional_scores": Problem(heads.positional_scores, {"frequencies": w, "lags": p, "offset": offset}),
        "positional_weights": Problem(_positional, {"frequencies": w, "offset": offset}),
        "positional_attention": Problem(_profile, {"frequencies": w, "offset": offset}),
    }


PAIRED = [name for name, problem in problems("(D,)", "half").items() if "pairing" in problem.options]
CASES = [
    (name, form, pairing)
    for form in FORMS
    for name in problems(form, "half")
    for pairing in (PAIRINGS if name in PAIRED else PAIRINGS[:1])
]
