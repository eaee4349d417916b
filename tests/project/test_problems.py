"""The table of problems covers the registry, and its answers are right."""

import math
import pathlib

import numpy as np
import problems
import pytest

import rfrope
from rfrope import kernels


def test_every_registered_kernel_has_problems_and_no_other():
    known = set(problems.FAMILIES) | set(problems.WITHOUT_LENGTH)
    assert known == set(kernels.names()), "a new registry entry needs a row in problems.FAMILIES"
    assert {p.family for p in problems.KERNELS} == set(problems.FAMILIES)
    with np.load(pathlib.Path(__file__).parents[1] / "tables" / "phi.npz") as table:
        tabulated = {str(text).partition("(")[0] for text in table["kernels"]}
    assert tabulated == set(problems.FAMILIES), "a new family needs rows in tests/tables/make_phi.py"


@pytest.mark.parametrize(
    ("name", "parameters", "lag", "value"),
    [
        ("gaussian", {"scale": 2.0}, 2.0, math.exp(-0.5)),
        ("cauchy", {"scale": 2.0}, 4.0, 0.2),
        ("sinc", {"bandwidth": 0.5}, math.pi, 2.0 / math.pi),
        ("exponential", {"scale": 2.0}, 6.0, math.exp(-3.0)),
        ("matern", {"nu": 0.5, "scale": 2.0}, 6.0, math.exp(-3.0)),
        ("matern", {"nu": 1.5, "scale": 2.0}, 2.0, (1 + math.sqrt(3.0)) * math.exp(-math.sqrt(3.0))),
        ("rational_quadratic", {"alpha": 2.0, "scale": 3.0}, 6.0, 0.25),
        ("power_exponential", {"exponent": 0.5, "scale": 2.0}, 8.0, math.exp(-2.0)),
        ("power_exponential", {"exponent": 2.0, "scale": 2.0}, 8.0, math.exp(-16.0)),
        ("periodic", {"period": 8.0, "scale": 0.5}, 2.0, math.exp(-4.0)),
        ("periodic", {"period": 8.0, "scale": 0.5}, 12.0, math.exp(-8.0)),
        ("spectral_mixture", {"weights": (0.5, 0.5), "means": (0.0, 3.0), "scales": (1.0, 2.0)}, 1.0,
         0.5 * math.exp(-0.5) + 0.5 * math.exp(-2.0) * math.cos(3.0)),
        ("ball", {"bandwidth": 0.5}, math.pi, 2.0 / math.pi),
        ("ball", {"bandwidth": 0.5, "ndim": 3}, (0.0, 0.0, 2.0 * math.pi), 3.0 / math.pi**2),
        ("shell", {"radius": 0.5}, 2.0 * math.pi, -1.0),
        ("shell", {"radius": 0.5, "ndim": 3}, (0.0, math.pi, 0.0), 2.0 / math.pi),
        ("gaussian", {"scale": (2.0, 4.0), "ndim": 2}, (2.0, 4.0), math.exp(-1.0)),
        ("sinc", {"bandwidth": (0.5, 1.0), "ndim": 2}, (math.pi, math.pi / 2), (2.0 / math.pi) ** 2),
    ],
)  # fmt: skip
def test_values_by_hand_are_those_of_the_reference_and_of_the_library(name, parameters, lag, value):
    made = rfrope.kernel(name, **parameters)
    problem = problems.KernelProblem(name, made, (1.0,) * made.ndim, ())
    assert float(problems.phi_reference(problem, lag)) == pytest.approx(value, rel=1e-14)
    assert float(made(np.asarray(lag))) == pytest.approx(value, rel=1e-13)
