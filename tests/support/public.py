"""What rfrope offers: its public objects by name, and the table of what their names promise.

``python tests/support/public.py`` writes the table; its difference is what a change does to users.
"""

import dataclasses
import inspect
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import rfrope

TABLE = pathlib.Path(__file__).parents[1] / "tables" / "public_names.txt"
MODULES = {name: value for name in rfrope.__all__ if isinstance(value := getattr(rfrope, name), ModuleType)}
METHODS = {
    "Rope": ("__init__", "rotate", "scores", "table"),
    "Kernel": ("__call__", "__mul__", "phi", "phi2", "density", "transport", "rescale", "warp"),
}


def bare(function: Any) -> str:
    """Return a signature without annotations."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def offered() -> dict[str, Any]:
    """Return all public objects by name: those at the top, those of modules, and methods of Rope and Kernel."""
    found = {name: getattr(rfrope, name) for name in rfrope.__all__ if name not in MODULES}
    for module, value in MODULES.items():
        found |= {f"{module}.{name}": getattr(value, name) for name in getattr(value, "__all__", ())}
    for owner, methods in METHODS.items():
        found |= {f"{owner}.{name}": getattr(getattr(rfrope, owner), name) for name in methods}
    return found


def promise(value: Any) -> str:
    """Return what a name promises: a signature, the fields of a record, or the type of a constant."""
    if dataclasses.is_dataclass(value):
        return ": " + ", ".join(field.name for field in dataclasses.fields(value) if field.name[0] != "_")
    if inspect.isclass(value):
        return ": class"
    return bare(value) if callable(value) else f": {type(value).__name__}"


def lines() -> Iterator[str]:
    """Yield the lines of the table: every object once, and where else it is offered."""
    first: dict[int, str] = {}
    for name, value in offered().items():
        known = first.setdefault(id(value), name)
        yield f"{name}{promise(value)}" if known == name else f"{name} is {known}"


OFFERED = offered()
FUNCTIONS = {n: one for n, one in OFFERED.items() if callable(one) and not inspect.isclass(one) and "__" not in n}
RECORDS = {name: value for name, value in OFFERED.items() if dataclasses.is_dataclass(value)}


if __name__ == "__main__":
    TABLE.write_text("\n".join(lines()) + "\n", "utf-8")
