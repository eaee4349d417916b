"""The registry: one list of records, from which names, help and tables are derived."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from rfrope._core.arguments import list_choices, listed, show, spelled
from rfrope.kernels.base import Kernel
from rfrope.kernels.parameters import SearchRange

ENTRY_POINT_GROUP = "rfrope.kernels"
RESERVED = ("axes", "mixture")  # names of the algebra
_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class Record:
    """Registry entry of a kernel family.

    Attributes
    ----------
    name : str
        Its name.
    factory : callable
        Returns a `Kernel` from keyword parameters, all with defaults; usually the class itself.
    formula : str
        Readable formula of Phi; r is the length of the lag, s the scale.
    law : str
        Readable distribution of omega.
    dimensions : str
        Allowed numbers k of axes.
    example : str
        A specification at non-unit scale, used by `rfrope validate` if no kernel is named.
    aliases : tuple of str
        Other names.

    See Also
    --------
    kernels.register, kernels.records

    Examples
    --------
    >>> import rfrope
    >>> record = next(one for one in rfrope.kernels.records() if one.name == "matern")
    >>> record.parameters, record.example
    ({'nu': 1.5, 'scale': 1.0, 'ndim': 1}, 'matern(nu=1.5, scale=16.0)')
    """

    name: str
    factory: Callable[..., Kernel]
    formula: str
    law: str
    dimensions: str
    example: str
    aliases: tuple[str, ...] = ()

    @functools.cached_property  # 10 us of the 60 of `kernel`
    def parameters(self) -> dict[str, Any]:
        """Return parameter names and their defaults, in order."""
        return {p.name: p.default for p in inspect.signature(self.factory).parameters.values()}

    @property
    def search_ranges(self) -> dict[str, SearchRange | None]:
        """Return where a fit searches for each parameter except ndim.

        A parameter that the factory's fields do not describe takes the range of the same name in a built-in family, or
        None.
        """
        known: dict[str, SearchRange] = {}
        for record in (*reversed(_RECORDS), self):
            fields = getattr(record.factory, "__dataclass_fields__", {})
            known |= {name: one.metadata["search"] for name, one in fields.items() if "search" in one.metadata}
        return {name: known.get(name) for name in self.parameters if name != "ndim"}


_RECORDS: list[Record] = []  # this package's in the order of its modules, then others
_loading = threading.RLock()  # a plug-in may call `records` while loading; other threads wait
_plugins_are_read = False


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def family(
    name: str, formula: str, law: str, example: str, *, aliases: tuple[str, ...] = ()
) -> Callable[[_Class], _Class]:
    """Register a class of this package as a frozen dataclass, described as in `Record`."""

    def enter(kind: _Class) -> _Class:
        kind.name = name  # type: ignore[attr-defined]
        dimensions = "k = 1" if kind.most_axes == 1 else "any k"  # type: ignore[attr-defined]
        made: _Class = dataclass(frozen=True, repr=False)(kind)  # type: ignore[assignment]
        _RECORDS.append(Record(name, made, formula, law, dimensions, example, aliases))
        return made

    return enter


def records() -> tuple[Record, ...]:
    """Return all records, including those of installed plug-ins (entry-point group ``rfrope.kernels``).

    Returns
    -------
    tuple of Record

    See Also
    --------
    kernels.Record, kernels.register

    Examples
    --------
    >>> records()[0].formula
    'exp(-r^2/(2 s^2))'
    """
    for message in _read_plugins():
        warnings.warn(message, stacklevel=3)
    return tuple(_RECORDS)


def names() -> tuple[str, ...]:
    """Return the names of the registered kernels.

    Returns
    -------
    tuple of str

    See Also
    --------
    kernels.records, kernel

    Examples
    --------
    >>> names()[:2]
    ('gaussian', 'cauchy')
    """
    return tuple(record.name for record in records())


def register(
    name: str,
    factory: Callable[..., Kernel],
    *,
    formula: str,
    law: str,
    dimensions: str = "any k",
    example: str | None = None,
    aliases: tuple[str, ...] = (),
) -> Record:
    """Register a kernel family for this process; an entry point that names a `Record` does so permanently.

    Parameters
    ----------
    name : str
        A Python identifier that is not taken.
    factory : callable
        Returns a `Kernel` from keyword parameters, all with defaults; usually a frozen dataclass.
    formula, law, dimensions : str
        Readable formula of Phi, distribution of omega, and allowed numbers of axes.
    example : str, optional
        A specification that `rfrope validate` checks. Default: ``name``.
    aliases : tuple of str
        Other names.

    Returns
    -------
    Record

    Raises
    ------
    ValueError
        If a name is taken, or is not an identifier.
    TypeError
        If `factory` cannot be called, or has a parameter without default.

    See Also
    --------
    kernels.Record, kernels.records

    Examples
    --------
    A name can be registered once; ``docs/howto/kernels.rst`` defines a new family.

    >>> from rfrope.kernels.families import Gaussian
    >>> register("rbf", Gaussian, formula="exp(-r^2/2)", law="normal")
    Traceback (most recent call last):
        ...
    ValueError: name 'rbf' is taken; expected another one
    """
    aliases = listed("aliases", aliases, "a tuple of names")
    example = str(name) if example is None else example
    return _add(Record(name, factory, formula, law, dimensions, example, aliases))


def kernel(name: str, **parameters: Any) -> Kernel:
    """Return a registered kernel.

    Parameters
    ----------
    name : str
        One of `names`, or an alias; case and punctuation are ignored.
    **parameters
        Parameters of the family: ``scale`` (units of position, one for all axes or one for each), ``nu``,
        ``bandwidth``, ``low`` and ``high`` (radians per unit of position), ``ndim`` (axes); `records` lists them.

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError
        If the kernel is unknown, or the family does not allow a value.
    TypeError
        If a parameter is unknown, or not a number.

    See Also
    --------
    kernels.parse, kernels.names, design, sample

    Examples
    --------
    >>> kernel("gaussian", scale=32.0).phi([0.0, 32.0]).round(4)
    array([1.    , 0.6065])
    """
    record = find(name)
    unknown = [p for p in parameters if p not in record.parameters]
    if unknown:
        expected = ", ".join(record.parameters)
        raise TypeError(f"kernel {record.name!r} has no parameter {show(unknown[0])}; expected {expected}")
    made = record.factory(**parameters)
    if not isinstance(made, Kernel):
        raise TypeError(f"the factory of kernel {record.name!r} returned {show(made)}; expected a rfrope Kernel")
    return made


def find(name: str) -> Record:
    """Return the record of a name or alias; list the names if it is unknown."""
    if not isinstance(name, str):
        raise TypeError(f"name is {show(name)}; expected the name of a kernel, one of {', '.join(names())}")
    known = {one: record for record in records() for one in (record.name, *record.aliases)}
    meant = spelled(name, tuple(known))
    if meant is None:
        raise ValueError(f"unknown kernel {show(name)}{list_choices(name, names())}")
    return known[meant]


def _add(record: Record) -> Record:
    taken = {n for r in _RECORDS for n in (r.name, *r.aliases)} | set(RESERVED)
    for name in (record.name, *record.aliases):
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"name is {show(name)}; expected a Python identifier")
        if name in taken:
            raise ValueError(f"name {show(name)} is taken; expected another one")
    if not callable(record.factory):
        raise TypeError(f"factory is {show(record.factory)}; expected a callable that returns a Kernel")
    bare = [p for p, default in record.parameters.items() if default is inspect.Parameter.empty]
    if bare:
        raise TypeError(f"factory of {record.name!r} has parameter {bare[0]!r} without a default; expected one")
    _RECORDS.append(record)
    return record


def _read_plugins() -> list[str]:
    """Add the records of installed plug-ins once in a process, and return why others were left out."""
    global _plugins_are_read  # the state of a lazy look-up; it selects no behaviour
    left_out: list[str] = []
    with _loading:
        if _plugins_are_read:
            return left_out
        from importlib.metadata import entry_points

        _plugins_are_read = True
        try:
            for point in entry_points(group=ENTRY_POINT_GROUP):
                try:
                    record = point.load()
                    if not isinstance(record, Record):
                        raise TypeError(f"it is a {type(record).__name__}; expected a rfrope.kernels.Record")
                    if record not in _RECORDS:
                        _add(record)
                except (Exception, SystemExit) as error:  # a broken plug-in must not break the library
                    left_out.append(f"kernel plug-in {point.name!r} ({point.value}) was left out: {error}")
        except BaseException:  # interrupted: the next call continues
            _plugins_are_read = False
            raise
    return left_out
