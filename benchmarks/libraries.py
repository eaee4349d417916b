"""The array libraries that benchmarks are run on; those that are not installed are skipped."""

import importlib.util

import numpy as np


def _cupy_works():
    """Whether CuPy has a device; it is imported only where it is installed."""
    if importlib.util.find_spec("cupy") is None:
        return False
    try:
        cupy = importlib.import_module("cupy")
        return int(cupy.ones(3).sum()) == 3
    except Exception:  # no device, no driver, or a broken installation: `rfrope doctor` says which
        return False


NAMES = ("numpy", "torch", "jax", *(("cupy",) if _cupy_works() else ()))


def module(name):
    """Return the library's namespace; NotImplementedError, which asv reports as skipped, where it is not installed."""
    if name == "numpy":
        return np
    if importlib.util.find_spec(name) is None:
        raise NotImplementedError(f"{name} is not installed")
    if name == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return jax.numpy
    return importlib.import_module(name)


def features(name, shape, dtype):
    """Return standard normal features of a library and dtype."""
    xp = module(name)
    host = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    if name == "numpy" and dtype == "bfloat16":
        if importlib.util.find_spec("ml_dtypes") is None:
            raise NotImplementedError("ml_dtypes is not installed")
        return host.astype(importlib.import_module("ml_dtypes").bfloat16)
    if not hasattr(xp, dtype):
        raise NotImplementedError(f"{name} has no {dtype}")
    return xp.asarray(xp.asarray(host), dtype=getattr(xp, dtype))


def ready(name, function):
    """Return `function` as a user would call it: compiled for JAX, and waiting for the result."""
    if name == "cupy":
        stream = module(name).cuda.get_current_stream()

        def finished(*arguments):
            result = function(*arguments)
            stream.synchronize()
            return result

        return finished
    if name != "jax":
        return function
    import jax

    compiled = jax.jit(function)
    return lambda *arguments: jax.block_until_ready(compiled(*arguments))


def host(x):
    """Return an array of any library as one of NumPy."""
    return x.get() if hasattr(x, "get") else np.asarray(x)
