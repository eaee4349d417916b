"""Gradients with respect to everything that is real are exact, so frequencies, phases and angles can be learned."""

from __future__ import annotations

import contextlib
import math
import pathlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mpmath
import numpy as np
import pytest
from conftest import library

import rfrope
from rfrope import analysis, heads
from rfrope._core import dispatch

PAIRINGS = ("half", "interleaved")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "learning.rst"


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# -- problems: functions of arrays, and the shapes of these ------------------------------------------------------------

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

    def arguments(self, span: float = 3.0) -> list[np.ndarray]:
        """Arrays of float64; positions and lags reach up to `span`."""
        rng, found = np.random.default_rng(7), []
        for name, shape in self.shapes.items():
            values = rng.uniform(-1.0, 1.0, shape)
            values = values + 2.0 if name in self.positive else values
            found.append(span * values if name in ("positions", "q_positions", "k_positions", "lags") else values)
        return found


def _table(positions: Any, frequencies: Any, shift: Any, scale: Any) -> Any:
    return rfrope.rotation_table(positions, frequencies, shift=shift, scale=scale)


def _polar(x: Any, positions: Any, frequencies: Any, **options: Any) -> Any:
    return rfrope.rotation.rotate_polar(x, positions, frequencies, **options)


def _terms(**arguments: Any) -> Any:
    terms = heads.shifted_terms(**arguments)
    return terms.cosine, terms.sine, terms.rest


def _alignment(**arguments: Any) -> Any:
    found = heads.alignment(**arguments)
    return found.overall, found.blocks, found.angles


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
    return {
        "rotate": Problem(rfrope.rotate, {"x": x, "positions": p, **angles, "scale": phases}, options=paired),
        "inverse": Problem(
            rfrope.rotate, {"x": x, "positions": p, **angles, "scale": phases}, options=paired | {"inverse": True}
        ),
        "rotate_polar": Problem(
            _polar, {"x": (2, 3, 3), "positions": p, **angles, "scale": phases}, options=paired | {"softplus": True}
        ),
        "rotate_by_phases": Problem(rfrope.rotate_by_phases, {"x": x, "phases": phases, "scale": (3,)}, options=paired),
        "rotate_by_table": Problem(rfrope.rotate_by_table, table, options=paired),
        "rotation_table": Problem(_table, {"positions": p, **angles, "scale": phases}),
        "phases": Problem(rfrope.rotation.phases, {"positions": p, **angles}),
        "scores": Problem(rfrope.scores, scores, options=paired),
        "mean_kernel": Problem(analysis.mean_kernel, {"frequencies": w, "lags": p}),
        "phase_shift": Problem(heads.phase_shift, {"frequencies": w, "offset": offset}),
        "shifted_scores": Problem(heads.shifted_scores, lags, options=paired),
        "shifted_terms": Problem(_terms, lags, options=paired),
        "shifted_mean_kernel": Problem(heads.shifted_mean_kernel, {"lags": p, **angles}),
        "aligned_shift": Problem(
            heads.aligned_shift,
            {"frequencies": w, "offset": offset, "cosine": (3,), "sine": (3,)},
            ("cosine",),  # the angle jumps where both coefficients are zero
        ),
        "alignment": Problem(_alignment, {**angles, "offset": offset, "weights": (3,)}, ("weights",)),
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
# JAX runs the same code but compiles it first, which is slow: it gets fewer
JAX_CASES = [
    *((name, "(D,)", "half") for name in ("rotate", "scores")),
    *(case for case in CASES if case[1:] == ("(H, D, k)", PAIRINGS[case[0] in PAIRED])),
]


# -- finite differences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form", "pairing"), CASES)
def test_torch_gradients_are_those_of_finite_differences(name, form, pairing):
    torch, problem = library("torch").module, problems(form, pairing)[name]
    arguments = [torch.tensor(value, requires_grad=True) for value in problem.arguments()]
    assert torch.autograd.gradcheck(problem, arguments, eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["rotate", "scores", "shifted_scores", "mean_kernel"])
def test_torch_second_derivatives_are_those_of_finite_differences(name):
    torch, problem = library("torch").module, problems("(D,)", "half")[name]
    arguments = [torch.tensor(value, requires_grad=True) for value in problem.arguments()]
    assert torch.autograd.gradgradcheck(problem, arguments, eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("name", "form", "pairing"), JAX_CASES)
def test_jax_derivatives_are_those_of_finite_differences(name, form, pairing):
    lib, problem = library("jax"), problems(form, pairing)[name]
    import jax
    from jax.test_util import check_grads

    arguments = [lib(value) for value in problem.arguments()]
    modes = ("fwd", "rev") if name == "rotate" else ("rev",)
    check_grads(jax.jit(problem), arguments, order=1, modes=modes, eps=1e-6, atol=1e-7, rtol=1e-6)


def test_the_checks_notice_a_gradient_that_is_off_by_little():
    """Mutation: a factor of 1 + 1e-5 in the gradient alone."""
    torch, problem = library("torch").module, problems("(D,)", "half")["scores"]

    def spoilt(*arrays):
        value = problem(*arrays)
        return value.detach() + (1.0 + 1e-5) * (value - value.detach())

    arguments = [torch.tensor(value, requires_grad=True) for value in problem.arguments()]
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(spoilt, arguments, eps=1e-6, atol=1e-7, rtol=1e-6)


# -- large positions: the analytic derivative --------------------------------------------------------------------------

SPANS = (1e4, 2.0**24, 2.0**40)


def exact_slopes(q: np.ndarray, k: np.ndarray, m: int, n: int, omega: np.ndarray) -> tuple[list[float], list[float]]:
    """``d S / d omega_i = lag (B_i cos u_i - A_i sin u_i)``, and ``d S / d n`` by block, from 60 digits."""
    blocks, lag = len(omega), mpmath.mpf(n) - mpmath.mpf(m)
    by_frequency, by_position = [], []
    with mpmath.workdps(60):
        for i in range(blocks):
            q_1, q_2, k_1, k_2 = (mpmath.mpf(float(v)) for v in (q[i], q[i + blocks], k[i], k[i + blocks]))
            u = lag * mpmath.mpf(float(omega[i]))
            slope = (q_2 * k_1 - q_1 * k_2) * mpmath.cos(u) - (q_1 * k_1 + q_2 * k_2) * mpmath.sin(u)
            by_frequency.append(float(lag * slope))
            by_position.append(float(mpmath.mpf(float(omega[i])) * slope))
    return by_frequency, by_position


def gradients(name: str, function: Callable[..., Any], arguments: list[np.ndarray]) -> list[np.ndarray]:
    """Gradients of a scalar function by all arguments, by torch or JAX."""
    lib = library(name)
    if name == "jax":
        import jax

        slopes = jax.jit(jax.grad(function, argnums=tuple(range(len(arguments)))))
        return list(map(np.asarray, slopes(*map(lib, arguments))))
    tensors = [lib(value).requires_grad_() for value in arguments]
    return [g.numpy() for g in lib.module.autograd.grad(function(*tensors), tensors)]


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_gradients_of_scores_at_large_positions_are_the_analytic_ones(name, span, rng):
    omega = np.concatenate([rfrope.geometric(3), [-0.7]])
    q, k = rng.standard_normal((2, 8))
    m, n = float(round(span)), float(round(0.37 * span))

    def score(omega, k_position):
        lib = library(name)
        return rfrope.scores(lib(q[None]), lib(k[None]), lib([m]), k_position, omega)[0, 0]

    by_frequency, by_position = gradients(name, score, [omega, np.asarray([n])])
    exact, by_block = exact_slopes(q, k, round(m), round(n), omega)
    bound = float(np.linalg.norm(q) * np.linalg.norm(k))  # no slope is above this times the lag, or times omega
    np.testing.assert_allclose(by_frequency, exact, rtol=0, atol=4e-15 * span * bound)
    np.testing.assert_allclose(by_position, [math.fsum(by_block)], rtol=0, atol=4e-15 * bound)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_gradients_of_the_mean_kernel_at_large_lags_are_the_analytic_ones(name):
    omega, lags = np.concatenate([rfrope.geometric(4), [-0.7]]), np.asarray([1e4, 2.0**24 + 1.0, 2.0**40])
    weights = 1.0 / lags
    lib = library(name)
    by_frequency, by_lag = gradients(
        name, lambda w, d: (analysis.mean_kernel(d, w) * lib(weights)).sum(), [omega, lags]
    )
    with mpmath.workdps(60):
        sines = [
            [float(mpmath.sin(mpmath.mpf(a) * mpmath.mpf(b))) for b in map(float, omega)] for a in map(float, lags)
        ]
    np.testing.assert_allclose(by_frequency, -np.sum(sines, axis=0) / 5.0, rtol=0, atol=2e-15)
    np.testing.assert_allclose(by_lag * lags, -np.sum(sines * omega, axis=1) / 5.0, rtol=0, atol=2e-15)


# -- learning frequencies ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def wanted_functions() -> Iterator[list[str]]:
    """Note the names of compiled functions that were wanted, and of operators as "recorded" ones."""
    names: list[str] = []
    find = dispatch.backend_function
    with pytest.MonkeyPatch.context() as patch:
        label = {"cpu": "", "torch": "recorded "}
        patch.setattr(
            dispatch,
            "backend_function",
            lambda function, place: names.append(label[place] + function.name) or find(function, place),
        )
        yield names


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("rotated", lambda x, at, w: rfrope.rotate(x, at, w)),
        ("rotated", lambda x, at, w: rfrope.scores(x, x, at, at, w)),
        ("cos_sin", lambda x, at, w: rfrope.rotation_table(at, w)[1]),
        ("mean_cos", lambda x, at, w: analysis.mean_kernel(at, w)),
    ],
    ids=["rotate", "scores", "rotation_table", "mean_kernel"],
)
def test_a_parameter_goes_through_an_operator_and_loops_are_taken_without_gradients(name, call):
    torch = library("torch").module
    frequencies = torch.nn.Parameter(torch.asarray(rfrope.geometric(4)))
    x, at = torch.ones(3, 8, dtype=torch.float64), torch.arange(3)
    with wanted_functions() as names:
        with_gradient = call(x, at, frequencies)
        assert names[0] == f"recorded {name}"
        with_gradient.sum().backward()
        names.clear()
        with torch.no_grad():
            without = call(x, at, frequencies)
        assert set(names) <= {name}, "small dense tensors are turned at once, without any function of its name"
    assert frequencies.grad.abs().sum() > 0.0
    torch.testing.assert_close(with_gradient.detach(), without, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_parameter_of_a_narrow_type_gets_the_gradient_of_float64_rounded_once(dtype, rng):
    torch = library("torch").module
    x = torch.asarray(rng.standard_normal((5, 8))).to(getattr(torch, dtype))
    at, start = torch.arange(5) + 10_000, torch.asarray(rfrope.geometric(4)).float()
    found = []
    for wide in (False, True):
        frequencies = torch.nn.Parameter(start.double() if wide else start)
        turned = rfrope.rotate(x.double() if wide else x, at, frequencies)
        turned.sum().backward()
        found.append(frequencies.grad)
    assert turned.dtype == torch.float64
    assert found[0].dtype == torch.float32
    tolerance = 1e-6 if dtype == "float32" else 2.0**-7
    torch.testing.assert_close(found[0].double(), found[1], rtol=0, atol=tolerance * 5.0 * 10_004.0)


def hidden_frequencies(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys, frequencies that made their scores, and others that are off by up to 5 %."""
    omega = rfrope.geometric(6, base=100.0)
    q, k = rng.standard_normal((2, 12, 12))
    return q, k, omega, omega * (1.0 + rng.uniform(-0.05, 0.05, 6))


def test_torch_learns_the_frequencies_behind_scores(rng):
    torch = library("torch").module
    q, k, omega, start = map(torch.asarray, hidden_frequencies(rng))
    at = torch.arange(12)
    wanted = rfrope.scores(q, k, at, at, omega)
    frequencies = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.LBFGS([frequencies], max_iter=100, line_search_fn="strong_wolfe", tolerance_change=1e-15)

    def closure():
        optimizer.zero_grad()
        loss = torch.mean((rfrope.scores(q, k, at, at, frequencies) - wanted) ** 2)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert (start - omega).abs().max() > 0.005
    torch.testing.assert_close(frequencies.detach(), omega, rtol=0, atol=1e-7)


# -- content-dependent phases ------------------------------------------------------------------------------------------

TOKENS, BLOCKS = 7, 3


def selective(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys, inputs, and a projection from inputs to one angle for each block."""
    q, k = rng.standard_normal((2, TOKENS, 2 * BLOCKS + 2))
    return q, k, rng.standard_normal((TOKENS, 4)), rng.standard_normal((4, BLOCKS))


def turned_scores(q: Any, k: Any, phases: Any, pairing: str) -> Any:
    q, k = (rfrope.rotate_by_phases(x, phases, pairing=pairing) for x in (q, k))
    return q @ k.T


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_depend_on_the_angles_between_two_tokens_alone(pairing, xp, rng):
    q, k, inputs, projection = selective(rng)
    angles = np.tanh(inputs @ projection)
    got = xp.host(turned_scores(xp(q), xp(k), xp(np.cumsum(angles, axis=0)), pairing))
    A, B = rfrope.block_coefficients(q[:, None, : 2 * BLOCKS], k[None, :, : 2 * BLOCKS], pairing=pairing)
    for m in range(TOKENS):
        for n in range(TOKENS):
            low, high = sorted((m, n))
            between = np.sum(angles[low + 1 : high + 1], axis=0) * (1.0 if n > m else -1.0)
            exact = np.sum(A[m, n] * np.cos(between) + B[m, n] * np.sin(between)) + q[m, -2:] @ k[n, -2:]
            assert got[m, n] == pytest.approx(exact, abs=1e-13)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_equal_angles_are_rope(pairing, xp, rng):
    q, k, _, _ = selective(rng)
    omega = rfrope.geometric(BLOCKS)
    phases = np.cumsum(np.tile(omega, (TOKENS, 1)), axis=0)
    at = np.arange(TOKENS)
    got = xp.host(turned_scores(xp(q), xp(k), xp(phases), pairing))
    np.testing.assert_allclose(got, rfrope.scores(q, k, at, at, omega, pairing=pairing), atol=1e-13)


def selective_score(lib: Any, q: Any, k: Any, pairing: str) -> Callable[..., Any]:
    """Score as a function of inputs and projection."""

    def function(inputs, projection):
        angles = lib.module.tanh(inputs @ projection)
        return turned_scores(q, k, lib.module.cumsum(angles, 0), pairing)

    return function


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients_reach_the_projection_of_angles(pairing, rng):
    q, k, inputs, projection = selective(rng)
    lib = library("torch")
    function = selective_score(lib, lib(q), lib(k), pairing)
    arguments = [lib(value).requires_grad_() for value in (inputs, projection)]
    assert lib.module.autograd.gradcheck(function, arguments, eps=1e-6, atol=1e-7, rtol=1e-6)


def random_angles(length: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.0, 1.0, (length, 32)).astype(np.float32)


def test_sums_of_angles_in_float32_lose_what_the_page_says():
    """docs/learning.rst has these figures; NumPy adds one by one, and so float32 rounds at every token."""
    stated = {1024: (2e-4, 2e-3), 4096: (1e-3, 2e-2), 65536: (0.05, 1.0)}
    for length, (low, high) in stated.items():
        angles = random_angles(length)
        wide = np.cumsum(angles, axis=0, dtype=np.float64)
        assert low < np.max(np.abs(np.cumsum(angles, axis=0) - wide)) < high
        exact = [math.fsum(column) for column in angles.T.astype(np.float64)]
        np.testing.assert_allclose(wide[-1], exact, rtol=0, atol=1e-11)


def test_without_float64_sums_of_turns_keep_their_accuracy():
    """As docs/learning.rst advises: whole turns are taken away exactly, at every step."""
    library("jax")
    import jax

    turns = random_angles(65536)[:, :4] / np.float32(2.0 * math.pi)
    exact = np.cumsum(turns, axis=0, dtype=np.float64)

    def add(a, b):
        return a + b - jax.numpy.round(a + b)

    scan = jax.jit(lambda v: jax.lax.associative_scan(add, v))
    sums = scan(jax.numpy.asarray(turns))
    assert sums.dtype == jax.numpy.float32
    found = np.asarray(sums, dtype=np.float64)
    plain = np.asarray(jax.numpy.cumsum(jax.numpy.asarray(turns), axis=0), dtype=np.float64)
    errors = [2.0 * math.pi * np.max(np.abs(sums - exact - np.round(sums - exact))) for sums in (found, plain)]
    assert errors[0] < 1e-4
    assert errors[1] > 20.0 * errors[0]


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
@pytest.mark.parametrize("module", ["torch", "jax"])
def test_the_examples_of_the_page_that_need_other_libraries_run(module):
    library(module)
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE.read_text("utf-8"), re.MULTILINE)
    found = [block for block in blocks if re.search(rf"^ +import {module}\b", block, re.MULTILINE)]
    assert found
    for block in found:
        exec(compile("\n".join(line[4:] for line in block.splitlines()), PAGE.name, "exec"), {})
