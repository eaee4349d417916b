"""``rfrope kernels``: the registry, printed."""

from __future__ import annotations

import json

from rfrope import kernels
from rfrope.kernels import registry
from rfrope.kernels.families import Gaussian


def test_every_kernel_is_listed(says, monkeypatch):
    record = registry.Record("own", Gaussian, "exp(-r^2)", "normal", "any k", "own(scale=8.0)")
    monkeypatch.setattr(registry, "_RECORDS", [*registry._RECORDS, record])
    out = says("kernels")
    assert "own(scale=1.0, ndim=1)" in out
    for one in kernels.records():
        for text in (one.formula, one.law, one.dimensions, one.example, *one.parameters, *one.aliases):
            assert text in out
    out = says("kernels", "matern", "rbf", "gaussian")
    assert [line.partition("(")[0] for line in out.splitlines() if line[:1] != " "] == ["matern", "gaussian"]


def test_kernels_as_json(run):
    out = run("kernels", "--json")[1]
    held = json.loads(out)
    assert out.count("\n") > 7 * len(held)  # a line for each entry, for people and for diff
    assert [record["name"] for record in held] == list(kernels.names())
    (matern,) = (record for record in held if record["name"] == "matern")
    assert matern["parameters"] == {"nu": 1.5, "scale": 1.0, "ndim": 1}
    assert set(matern) == {"name", "aliases", "formula", "law", "parameters", "dimensions", "example"}
