"""The registry: names, parsing without evaluation, and registration."""

import builtins
import json
import os
from dataclasses import dataclass

import numpy as np
import problems
import pytest
from conftest import TESTS, rows

import rfrope
from rfrope import kernels
from rfrope.kernels import axes, mixture, parse, registry
from rfrope.kernels.base import Kernel

TEXTS = {"formula": "1", "law": "0"}


@pytest.fixture
def shelf(monkeypatch):
    """A copy of the registry that is thrown away after the test."""
    monkeypatch.setattr(registry, "_RECORDS", list(kernels.records()))


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", kernels.records(), ids=lambda record: record.name)
def test_records_say_what_people_need_and_their_examples_parse(record):
    assert all((record.formula, record.law, record.dimensions))
    assert "ndim" in record.parameters
    example, made = parse(record.example), record.factory()
    assert type(example) is type(made)
    if record.name not in problems.WITHOUT_LENGTH:
        assert example != made, "the example is at unit scale, where a lost factor does not show"
    assert made.name == record.name
    assert [rfrope.kernel(one) for one in (record.name, *record.aliases)] == [made] * (1 + len(record.aliases))


def test_a_kernel_is_found_in_any_spelling():
    wanted = rfrope.kernel("rational_quadratic", alpha=2.0)
    for name in ("Rational-Quadratic", "rationalQuadratic", "RATIONAL QUADRATIC"):
        assert rfrope.kernel(name, alpha=2.0) == wanted
    assert rfrope.kernels.parse("Matern(nu=1.5) * GAUSSIAN") == rfrope.kernels.parse("matern(nu=1.5) * gaussian")


# -- parse -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    rows("kernels/registry.json", "specifications"),
)
def test_specifications(text, name, parameters):
    assert parse(text) == rfrope.kernel(name, **parameters)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-150, 3.2733906078961414e150, 3.06e-151])
def test_repr_keeps_every_bit(value):
    assert parse(repr(rfrope.kernel("gaussian", scale=value))).scale == value


MALICIOUS = json.loads((TESTS / "kernels" / "refused.json").read_text("utf-8")) | {
    "deep signs": "gaussian(scale=" + "-" * 200_000 + "1)",
    "deep algebra": "(" * 60 + "gaussian" + ").rescale(2)" * 60,
    "deeper algebra": "axes(" * 150 + "gaussian" + ")" * 150,
    "deepest algebra": "gaussian" + ".rescale(2)" * 5000,
    "longest product": " * ".join(["gaussian"] * 100_000),
    "longer number": "gaussian(scale=1" + "0" * 5000 + ")",
}


@pytest.mark.parametrize("what", MALICIOUS)
def test_what_is_no_specification_is_refused_and_nothing_runs(what, monkeypatch):
    def explode(*_, **__):
        raise AssertionError("something was evaluated")

    monkeypatch.setattr(os, "system", explode)
    monkeypatch.setattr(builtins, "eval", explode)
    monkeypatch.setattr(builtins, "exec", explode)
    with pytest.raises((ValueError, TypeError), match=r"expected|unknown kernel"):
        parse(MALICIOUS[what])


ALGEBRA = {
    "gaussian * cauchy(scale=3)": lambda g, c: g * c,
    "gaussian*cauchy(scale=3)*gaussian": lambda g, c: g * c * g,
    "gaussian * (cauchy(scale=3) * gaussian)": lambda g, c: g * c * g,
    "mixture([0.25, 0.75], [gaussian, cauchy(scale=3)])": lambda g, c: mixture([0.25, 0.75], [g, c]),
    "mixture((0.25, 0.75), (gaussian, cauchy(scale=3)))": lambda g, c: mixture([0.25, 0.75], [g, c]),
    "axes(gaussian, cauchy(scale=3))": lambda g, c: axes(g, c),
    "gaussian.rescale(2)": lambda g, c: g.rescale(2),
    "gaussian().rescale((2,))": lambda g, c: g.rescale(2),
    "(gaussian * cauchy(scale=3)).rescale(2)": lambda g, c: (g * c).rescale(2),
    "axes(gaussian, cauchy(scale=3)).warp([[1, 0.5], [-5, 2]])": lambda g, c: axes(g, c).warp([[1, 0.5], [-5, 2]]),
    "axes(gaussian, cauchy(scale=3)).rescale((1, 2)).rescale(3)": lambda g, c: axes(g, c).rescale((1, 2)).rescale(3),
    "constant * gaussian": lambda g, c: g,
}


@pytest.mark.parametrize("text", ALGEBRA)
def test_the_algebra_is_read(text):
    assert parse(text) == ALGEBRA[text](rfrope.kernel("gaussian"), rfrope.kernel("cauchy", scale=3))


def test_long_and_wide_expressions_are_read():
    assert len(parse(" * ".join(["gaussian"] * 900)).factors) == 900
    assert parse(f"axes({', '.join(['gaussian'] * 100)})").ndim == 100


@pytest.mark.parametrize("times", [19, 20, 21, 39, 40, 41])
def test_products_inside_one_another_are_counted(times):
    """Each product is an operation deeper, and so is what is rescaled: 40 at most."""
    for product in ("(cauchy * {}).rescale(2)", "({} * cauchy).rescale(2)"):
        text = "gaussian"
        for _ in range(times):
            text = product.format(text)
        if 2 * times <= 40:
            assert parse(text).n_columns == times + 1
        else:
            with pytest.raises(ValueError, match="is nested more than 40 deep"):
                parse(text)


# -- register ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Dirac(Kernel):
    """Phi = 1: all frequencies 0."""

    name = "dirac"
    height: float = 1.0
    ndim: int = 1

    @property
    def n_columns(self):
        return 1

    def _phi(self, lags, xp):
        return xp.ones_like(lags[..., 0])

    def _transport(self, u):
        return np.zeros((*u.shape[:-1], self.ndim))


@pytest.mark.usefixtures("shelf")
def test_a_registered_kernel_is_found_everywhere():
    record = kernels.register("dirac", Dirac, **TEXTS, aliases=("one",), example="dirac(height=2.0)")
    assert record in kernels.records()
    assert kernels.names()[-1] == "dirac"
    assert rfrope.kernel("one", height=2) == parse("dirac(height=2)")
    assert rfrope.sample("dirac", 3, rng=0).tolist() == [0.0, 0.0, 0.0]
    assert record.dimensions == "any k"
    assert record.example == "dirac(height=2.0)"
    assert kernels.register("dirac_too", Dirac, **TEXTS).example == "dirac_too"
    before = kernels.records()
    with pytest.raises(ValueError, match="name 'rbf' is taken"):
        kernels.register("new", Dirac, **TEXTS, aliases=("fresh", "rbf"))
    assert kernels.records() == before
    kernels.register("wrong", lambda ndim=1: "no kernel", **TEXTS)
    with pytest.raises(TypeError, match=r"^the factory of kernel 'wrong' returned 'no kernel'; expected a rfrope"):
        rfrope.kernel("wrong")
