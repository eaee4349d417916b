"""The ``xp`` fixture: every array library that is installed, behind one small face."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

LIBRARIES = ("numpy", "read-only numpy", "array-api-strict", "torch", "jax", "dask")
_MODULES = {"array-api-strict": "array_api_strict", "torch": "torch", "jax": "jax", "dask": "dask"}


@dataclass(frozen=True)
class Library:
    """An array library under test.

    ``lib(host)`` makes an array of it, ``lib.host(x)`` brings one back, ``lib.owns(x)`` tells whether x is one of its.
    """

    name: str
    module: ModuleType

    @property
    def lazy(self) -> bool:
        """Traces or defers: no value checks, no ``out=``."""
        return self.name in ("jax", "dask")

    @property
    def writable(self) -> bool:
        """Whether arrays made by this fixture can be written to."""
        return not self.lazy and self.name != "read-only numpy"

    def __call__(self, values: Any, dtype: str | None = None) -> Any:
        host = np.array(values, dtype=None if dtype == "bfloat16" else dtype)
        if self.name == "read-only numpy":
            host.flags.writeable = False
        if self.name.endswith("numpy"):
            return host
        if self.name == "dask":
            return self.module.asarray(host, chunks=tuple(max(1, n // 2) for n in host.shape))
        return self.module.asarray(host)

    def dtype(self, name: str) -> Any:
        return getattr(self.module, name)

    def host(self, x: Any) -> np.ndarray:
        if self.name == "dask":
            return np.asarray(x.compute())
        if self.name == "torch":
            return x.detach().cpu().numpy()
        if self.name == "array-api-strict":
            return np.from_dlpack(x) if x.ndim else np.asarray(x._array)
        return np.asarray(x)

    def owns(self, x: Any) -> bool:
        kinds = {"array-api-strict": "array_api_strict", "jax": "jax"}
        if self.name.endswith("numpy"):
            return isinstance(x, np.ndarray | np.generic)
        return type(x).__module__.partition(".")[0] in (kinds.get(self.name, self.name), "jaxlib")


def library(name: str) -> Library:
    """Return the library of that name, or skip the test where it is not installed."""
    if name.endswith("numpy"):
        return Library(name, np)
    module = _MODULES[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    if name == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return Library(name, jax.numpy)
    if name == "dask":
        import dask.array

        return Library(name, dask.array)
    return Library(name, importlib.import_module(module))


@pytest.fixture(params=LIBRARIES)
def xp(request: pytest.FixtureRequest) -> Library:
    """Every array library in turn."""
    return library(request.param)


@pytest.fixture(scope="session")
def cases() -> pathlib.Path:
    """Folder with the outputs of other projects' code."""
    folder = os.environ.get("RFROPE_CASES")
    if not folder:
        pytest.skip("RFROPE_CASES is not set: it names the folder with outputs of other projects' code")
    return pathlib.Path(folder)
