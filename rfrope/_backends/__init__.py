"""Backends: compiled and transformed versions of a few generic functions; README.md beside this says how they work.

`cpu` holds those for arrays in the memory of the CPU, `cuda` those for arrays on a CUDA device, under the same names.
What both sides share, without Numba or CuPy, lies here: `layout`, `transforms`, `diagnostics`.
"""
