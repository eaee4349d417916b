"""Gradients with respect to everything that is real are exact, so frequencies, phases and angles can be learned."""

import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from conftest import library
from differentiable import CASES, FORMS, PAIRED, PAIRINGS, problems

import rfrope
from rfrope import analysis

PAGES = [pathlib.Path(__file__).parents[2] / "docs" / "howto" / name for name in ("learning.rst", "learn_kernel.rst")]


# JAX runs the same code but compiles it first, which is slow: it gets fewer
JAX_CASES = [
    *((name, "(D,)", "half") for name in ("rotate", "scores")),
    *(case for case in CASES if case[1:] == ("(H, D, k)", PAIRINGS[case[0] in PAIRED])),
]


# -- finite differences ------------------------------------------------------------------------------------------------


def check_gradients(problem, still=None, order=1):
    torch = library("torch").module
    arguments = [torch.tensor(value, requires_grad=True) for value in problem.arguments(still)]
    if order == 1:
        assert torch.autograd.gradcheck(problem, arguments, eps=1e-6, atol=1e-7, rtol=1e-6)
    else:
        assert torch.autograd.gradgradcheck(problem, arguments, eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("name", "form", "pairing"), CASES)
def test_torch_gradients_are_those_of_finite_differences(name, form, pairing):
    check_gradients(problems(form, pairing)[name])


@pytest.mark.parametrize("name", ["rotate", "scores", "shifted_scores", "mean_kernel"])
def test_torch_second_derivatives_are_those_of_finite_differences(name):
    check_gradients(problems("(D,)", "half")[name], order=2)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("form", FORMS)
def test_torch_gradients_at_zero_are_those_of_finite_differences(form, pairing):
    """At positions, lags, offsets and shifts of zero, and q equal to k; and with frequencies of zero, too."""
    for name, problem in problems(form, pairing).items():
        if pairing == PAIRINGS[0] or name in PAIRED:
            for still in ((), ("frequencies",)):
                check_gradients(problem, still)


@pytest.mark.parametrize(("name", "form", "pairing"), JAX_CASES)
def test_jax_derivatives_are_those_of_finite_differences(name, form, pairing, jax):
    lib, problem = library("jax"), problems(form, pairing)[name]
    from jax.test_util import check_grads

    arguments = [lib(value) for value in problem.arguments()]
    modes = ("fwd", "rev") if name == "rotate" else ("rev",)
    check_grads(jax.jit(problem), arguments, order=1, modes=modes, eps=1e-6, atol=1e-7, rtol=1e-6)


# -- large positions: the analytic derivative --------------------------------------------------------------------------


def exact_slopes(q: np.ndarray, k: np.ndarray, m: int, n: int, omega: np.ndarray) -> tuple[list[float], list[float]]:
    """``d S / d omega_i = lag (B_i cos u_i - A_i sin u_i)``, and ``d S / d n`` by block, from 60 digits."""
    by_frequency, by_position = [], []
    with mpmath.workdps(60):
        q, k = q.reshape(2, -1).T.tolist(), k.reshape(2, -1).T.tolist()
        for (q_1, q_2), (k_1, k_2), w in zip(q, k, map(mpmath.mpf, omega.tolist()), strict=True):
            a, b = (mpmath.fdot((q_1, q_2), pair) for pair in ((k_1, k_2), (-k_2, k_1)))
            slope = b * mpmath.cos((n - m) * w) - a * mpmath.sin((n - m) * w)
            by_frequency.append(float((n - m) * slope))
            by_position.append(float(w * slope))
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


@pytest.mark.parametrize("span", [1e4, 2.0**24, 2.0**40])
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
    lib = library(name)
    weighted = lambda w, d: (analysis.mean_kernel(d, w) * lib(1.0 / lags)).sum()  # noqa: E731
    by_frequency, by_lag = gradients(name, weighted, [omega, lags])
    with mpmath.workdps(60):
        sines = [[float(mpmath.sin(mpmath.mpf(a) * mpmath.mpf(b))) for b in omega.tolist()] for a in lags.tolist()]
    np.testing.assert_allclose(by_frequency, -np.sum(sines, axis=0) / 5.0, rtol=0, atol=2e-15)
    np.testing.assert_allclose(by_lag * lags, -np.sum(sines * omega, axis=1) / 5.0, rtol=0, atol=2e-15)


# -- learning frequencies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_parameter_of_a_narrow_type_gets_the_gradient_of_float64_rounded_once(dtype, rng, torch):
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


# -- content-dependent phases ------------------------------------------------------------------------------------------


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.parametrize("module", ["torch", "jax"])
def test_the_examples_of_the_pages_that_need_other_libraries_run(module, page, monkeypatch, tmp_path):
    if not page.is_file():
        pytest.skip("docs/ is not here")
    library(module)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", page.read_text("utf-8"), re.MULTILINE)
    found = [
        block for block in blocks if re.search(rf"^ +(import {module}\b|from rfrope.layers.{module})", block, re.M)
    ]
    assert found
    names = {}  # blocks go on where the last one ended
    for block in found:
        exec(compile("\n".join(line[4:] for line in block.splitlines()), page.name, "exec"), names)
