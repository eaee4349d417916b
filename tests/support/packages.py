"""Packages of other projects that tests run, where they are installed, and scripts of this one."""

import contextlib
import importlib
import importlib.util
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

WARNINGS = [pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Deprecation", "Future", "User")]


def installed(name: str) -> Any:
    """Return a module, or skip where its package is not installed or does not load, with the reason."""
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        pytest.skip(f"{top} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except Exception as error:
            pytest.skip(f"{name} does not load: {type(error).__name__}: {error}".partition("\n")[0])


@contextlib.contextmanager
def script_at(path: Any) -> Iterator[Any]:
    """Give the module that a file is, though in no package."""
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def experiment_scripts(monkeypatch: Any, torch: Any) -> Iterator[Any]:
    """Yield what loads a script by its name, as ``python experiments/NAME.py`` finds others beside it."""
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parents[2] / "experiments"))
    threads = torch.get_num_threads()

    def load(name: str) -> Any:
        if "smollm2" in name:
            pytest.importorskip("transformers", "5.0", reason=f"experiments/{name}.py needs transformers")
        return importlib.import_module(name)

    yield load
    torch.set_num_threads(threads)
