"""Twins for arrays in the memory of the CPU: plans in Python, loops compiled by Numba, transforms of finufft."""

LEAVES = ("rotation", "sums", "estimators")  # each may be missing; the other modules here are what they are made of
