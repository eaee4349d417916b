"""The table of problems covers the registry."""

import pathlib

import numpy as np
import problems

from rfrope import kernels


def test_every_registered_kernel_has_problems_and_no_other():
    known = set(problems.FAMILIES) | set(problems.WITHOUT_LENGTH)
    assert known == set(kernels.names()), "a new registry entry needs a row in problems.FAMILIES"
    assert {p.family for p in problems.KERNELS} == set(problems.FAMILIES)
    with np.load(pathlib.Path(__file__).parents[1] / "tables" / "phi.npz") as table:
        tabulated = {str(text).partition("(")[0] for text in table["kernels"]}
    assert tabulated == set(problems.FAMILIES), "a new family needs rows in tests/tables/make_phi.py"
