"""Operators of our own for torch tensors whose operations are recorded, for gradients or by a compiler."""


def check() -> None:
    """Refuse a PyTorch that cannot register operators with gradients."""
    import torch

    if not all(hasattr(torch.library, name) for name in ("register_fake", "register_autograd", "register_vmap")):
        raise ImportError(f"PyTorch {torch.__version__} cannot register such operators; expected 2.5 or later")
