"""Twins for torch tensors whose operations are recorded, for gradients or by a compiler: operators of our own."""

LEAVES = ("rotation",)  # it may be missing, where PyTorch is too old
