"""Kernels: combinations that are none, parameters, specifications, registration, and parameters that are learned."""

import dataclasses
from functools import partial

import numpy as np
from conftest import library
from problems import units

import rfrope
from rfrope import kernels
from rfrope.kernels import Kernel, axes, mixture, parameters, parse, register
from rfrope.kernels.families import Gaussian

G, C, E, P = map(parse, ("gaussian(scale=4)", "cauchy(scale=3)", "exponential(scale=6)", "periodic"))
G2, C2 = parse("gaussian(scale=(4, 9), ndim=2)"), parse("cauchy(scale=3, ndim=2)")
NARROW, STABLE = parse("periodic(scale=0.002)"), parse("stable(exponent=1.5, ndim=2)")
NAN, INF = float("nan"), float("inf")
LUMPS = {"weights": (0.5, 0.5), "means": (0.0, (1.0, -2.0)), "scales": ((1.0, 2.0), 0.5), "ndim": 2}
TAKEN = {"name": "dirac", "factory": Gaussian, "formula": "1", "law": "0"}


def at_bounds():
    """Draws are cut at 2**500, and products of what is larger overflow: a law there would not be that of its Phi."""
    for record in kernels.records():
        made = parse(record.example)
        for name in sorted({*units(made), "scales", "means"} & set(record.parameters)):
            value = (1e300,) * len(made.means) if name in ("means", "scales") else 1e300
            yield partial(dataclasses.replace, made, **{name: value}), ValueError, (f"{name} is ", " to 2**500")


def of_tensors():
    torch = library("torch").module
    parameters.shares("weights", torch.softmax(torch.ones(9, requires_grad=True), 0))


def family(name, words, error=ValueError, **values):
    return partial(rfrope.kernel, name, **values), error, words


ROWS = [
    *((partial(lambda other: other * G, other), TypeError, ("a kernel times ", "expected another kernel"))
      for other in (2.5, "gaussian", None)),
    (lambda: G * np.float64(2.5), TypeError, "a kernel times float64 is not a kernel: Phi(0) must stay 1"),
    *((call, ValueError, "kernels have [1, 2] axes")
      for call in (lambda: G * G2, lambda: mixture([0.5, 0.5], [G, G2]), lambda: parse("constant") * G2)),
    (lambda: mixture([0.5, 0.6], [G, C]), ValueError, ("weights is ", "with sum 1.1; expected sum 1")),
    (lambda: mixture([1.5, -0.5], [G, C]), ValueError, "weights is -0.5; expected a positive finite"),
    (lambda: mixture(["half", 0.5], [G, C]), TypeError, "weights is 'half'; expected a positive"),
    (lambda: mixture([1.0], [G, C]), ValueError, "weights has 1 entries and kernels 2"),
    (lambda: mixture([], []), TypeError, "kernels is (); expected one or more kernels"),
    (axes, TypeError, "kernels is (); expected one or more kernels"),
    *((partial(G2.rescale, bad), ValueError, "scale is ") for bad in ((1.0,), (1.0, 2.0, 3.0), (1.0, -2.0), 1e300)),
    *((partial(G2.warp, bad), ValueError, ("matrix is ", "expected a finite invertible matrix"))
      for bad in ([[1.0, 2.0], [2.0, 4.0]], np.zeros((2, 2)), [[1.0, NAN], [0.0, 1.0]])),
    *((partial(G2.warp, bad), ValueError, ("matrix has shape ", "; expected (2, 2)"))
      for bad in (2.0, [1.0, 2.0], np.eye(3), np.ones((1, 2, 2)))),
    *((partial(G2.warp, bad), TypeError, "matrix ")
      for bad in ([[1, 2], [3]], [["a", "b"], ["c", "d"]], [[1j, 0], [0, 1]])),
    (lambda: dataclasses.replace(G.rescale(2.0), scale=-1.0), ValueError, "scale is -1.0; expected"),
    *((partial(f, np.zeros(shape)), ValueError, (" has shape ", "; expected (..., 2): ", " has 2 axes"))
      for f, shape in ((G2.phi, ()), (G2.phi2, (3,)), (G2.density, (2, 3)))),
    *((partial(axes(G, C).transport, bad), ValueError, "u holds values outside (0, 1)")
      for bad in ([0.0, 0.5], [0.5, 1.0], [-0.1, 0.5], [0.5, NAN])),
    *((partial((G * C).transport, np.full(shape, 0.5)), ValueError, ("u has shape ", "; expected (..., 2)"))
      for shape in ((5, 3), (5,), (), (5, 0))),
    *((partial(law.density, [0.1, 0.2] if law.ndim > 1 else [0.1]), ValueError, "has no density")
      for law in (G2 * C2, axes(G * C, E), NARROW * G, P * P, P * P * P * P * P * G,
                  *map(parse, ("periodic", "shell", "constant", "stable(exponent=1.5)")), STABLE)),
    (Kernel, TypeError, ("Can't instantiate abstract class Kernel", "_phi")),
    *at_bounds(),
    # parameters of families
    *(family("gaussian", f"{len(bad)} values; expected one number or 2", scale=bad, ndim=2)
      for bad in ((), (1.0,), (1.0, 2.0, 3.0))),
    family("gaussian", "scale is (1, (2, 3)); expected", TypeError, scale=(1, (2, 3)), ndim=2),
    *(family(name, "ndim is 0; expected a whole number", ndim=0) for name in kernels.names()),
    family("periodic", "ndim is 2; expected 1: a periodic law has one axis", ndim=2),
    family("matern", ("nu is ", ", 2 values; expected one number"), nu=(1.5, 2.5), ndim=2),
    family("power_exponential", "exponent is 2.0000001; expected at most 2", exponent=2.0000001),
    *(family(name, f"{shape} is {value}; expected", **{shape: value}) for value in (1e-320, 1e-151, 1e151)
      for name, shape in (("matern", "nu"), ("rational_quadratic", "alpha"), ("power_exponential", "exponent"))),
    family("log_uniform", "low is 2.0 and high 1.0; expected low < high", low=2.0, high=1.0),
    family("constant", "kernel 'constant' has no parameter 'scale'; expected ndim", TypeError, scale=1.0),
    *(family("spectral_mixture", words, error, **LUMPS | {name: value}) for name, value, error, words in (
        ("weights", (), ValueError, "weights is [], with sum 0"),
        ("weights", (0.2, 0.3, 0.5), ValueError, "means has 2 entries and weights 3; expected as many"),
        ("means", (1.0, INF), ValueError, "means is inf; expected a finite number"),
        ("means", ((1.0, 2.0, 3.0), 1.0), ValueError, ("means is ", ", 3 values; expected one number or 2")),
        ("means", (((1.0,), 2.0), 1.0), TypeError, ("means is ", "; expected a finite number, or one for each of 2")),
        ("scales", (1.0, (1.0, -1.0)), ValueError, "scales is -1.0; expected a positive finite"),
    )),
    *((partial(parameters.shares, "weights", weights), ValueError, ("weights is ", "expected sum 1")) for weights in (
        [0.5, 0.5 + 1e-8], [0.5, 0.5 - 1e-8], np.full(1024, 0.6 / 1024, "f2"), np.full(1024, 1.4 / 1024, "f2"))),
    (of_tensors, TypeError, ("weights requires gradients, ", "; expected weights.detach()")),
    (lambda: parameters.positive("scale", 1e200), ValueError, "expected a positive number from 2**-500 to 2**500"),
    # names and specifications
    (lambda: rfrope.kernel(3), TypeError, "name is 3; expected the name of a kernel, one of gaussian"),
    *((partial(rfrope.kernel, name), ValueError, (f"unknown kernel '{name}'{hint}", "xpected one of 'gaussian'"))
      for name, hint in (("Gausian", "; did you mean 'gaussian'?"), ("zzz", ""), ("", ""))),
    (lambda: parse("sinc(scale=3)"), TypeError, "kernel 'sinc' has no parameter 'scale'; expected bandwidth, ndim"),
    *((partial(parse, f"gaussian(scale={value}, ndim=2)"), TypeError, ("scale is ", "; expected a positive number"))
      for value in ("'1'", "b'1'", "None", "...", "{}", "1j", "(1, 'a')", "((1, 2), (3, 4))")),
    (lambda: parse("matern(1.5)"), ValueError, "without a name; expected matern(nu=..., scale=..., ndim=...)"),
    (lambda: parse(" " * 70_000), ValueError, "text has 70000 characters; expected a specification of at most 65536"),
    *((partial(register, **TAKEN | changed), ValueError, f"name '{taken}' is taken; expected another one")
      for taken, changed in (("axes", {"name": "axes"}), ("mixture", {"name": "mixture"}), ("rbf", {"name": "rbf"}),
                             ("gaussian", {"name": "gaussian"}), ("rbf", {"aliases": ("rbf",)}))),
    *((partial(register, **TAKEN | {"name": name}), ValueError, ("name is ", "; expected a Python identifier"))
      for name in ("", "two words", "1st", 3, None)),
    (lambda: register(**TAKEN | {"factory": lambda height: height}), TypeError, "has parameter 'height' without"),
    (lambda: register(**TAKEN | {"factory": 3}), TypeError, "factory is 3; expected a callable"),
]  # fmt: skip
