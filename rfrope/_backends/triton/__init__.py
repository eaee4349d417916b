"""The rotation in Triton, which comes with torch's wheels for devices of NVIDIA, AMD and Intel."""

_EARLIEST = (3, 4)  # version: those before do not compile the kernel
_OLDEST = (7, 0)  # compute capability of NVIDIA's devices: those before have no wheels of torch that bring Triton


def kinds() -> list[str]:
    """Return the types of devices that are here and that Triton serves, as PyTorch names them."""
    import torch

    return [kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()]


def check() -> None:
    """See whether there is Triton, and a device for it.

    Raises
    ------
    ImportError
        If not, with the reason.
    """
    import torch
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < _EARLIEST:
        raise ImportError(f"Triton {triton.__version__}; expected 3.4 or later, which PyTorch 2.8 and later bring")
    found = kinds()
    if not found:
        raise ImportError(f"PyTorch {torch.__version__} finds no device of CUDA, ROCm or XPU")
    if "cuda" in found and torch.version.hip is None:
        oldest = min(torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count()))
        if oldest < _OLDEST:
            raise ImportError(f"compute capability {oldest[0]}.{oldest[1]}; Triton needs 7.0 on every device")
    try:
        triton.runtime.driver.active.get_current_target()
    except Exception as error:  # it builds a part of itself with the machine's C compiler, which may be missing
        raise ImportError(f"Triton cannot reach the device: {type(error).__name__}: {error}") from error
