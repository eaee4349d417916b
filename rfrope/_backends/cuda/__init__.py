"""Functions for arrays on a CUDA device: plans in Python, kernels in CUDA C++."""


def check() -> None:
    """Refuse a machine that cannot compile and run the kernels."""
    from rfrope._backends.cuda import device

    device.check()
