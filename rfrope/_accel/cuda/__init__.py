"""Twins for arrays on a CUDA device: plans in Python, kernels in CUDA C++, transforms of cufinufft."""

LEAVES = ("rotation", "sums", "estimators")  # each may be missing; the other modules here are what they are made of
