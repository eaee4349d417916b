"""The registry: one list of records, from which names, help and tables are derived, and kernels by name or text."""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from rfrope._core.arguments import list_choices, listed, show, spelled
from rfrope.kernels.algebra import axes, mixture
from rfrope.kernels.base import Kernel
from rfrope.kernels.parameters import SearchRange

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
    """Return all records, including those of `kernels.register`.

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
    """Register a kernel family for this process.

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
    record = Record(name, factory, formula, law, dimensions, example, aliases)
    taken = {n for r in _RECORDS for n in (r.name, *r.aliases)} | set(RESERVED)
    for one in (name, *aliases):
        if not isinstance(one, str) or not one.isidentifier():
            raise ValueError(f"name is {show(one)}; expected a Python identifier")
        if one in taken:
            raise ValueError(f"name {show(one)} is taken; expected another one")
    if not callable(factory):
        raise TypeError(f"factory is {show(factory)}; expected a callable that returns a Kernel")
    bare = [p for p, default in record.parameters.items() if default is inspect.Parameter.empty]
    if bare:
        raise TypeError(f"factory of {name!r} has parameter {bare[0]!r} without a default; expected one")
    _RECORDS.append(record)
    return record


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


_LONGEST = 2**16  # characters of a specification
_DEEPEST = 40  # operations of the algebra inside one another


def parse(text: str) -> Kernel:
    """Return the kernel of a specification such as ``"matern(nu=1.5, scale=64)"``; nothing is evaluated.

    Parameters
    ----------
    text : str
        ``name`` or ``name(parameter=number, ...)``; numbers, or tuples of numbers, one for each axis. Combined as in
        Python, nested freely: ``a * b``, ``mixture([0.3, 0.7], [a, b])``, ``axes(a, b)``, ``(a).rescale(2)`` and
        ``(a).warp([[1, 0.5], [0, 1]])``. ``repr`` of a kernel is such a text.

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError
        See `kernel`. Also if the text has another form, more than 65536 characters, or more than 40 levels.
    TypeError
        See `kernel`.

    See Also
    --------
    kernel, kernels.names

    Examples
    --------
    >>> parse("matern(nu=1.5, scale=(8, 4), ndim=2)")
    matern(nu=1.5, scale=(8.0, 4.0), ndim=2)
    >>> parse("mixture([0.25, 0.75], [constant, gaussian(scale=8) * periodic(period=24)])").phi([0.0, 24.0]).round(4)
    array([1.    , 0.2583])
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {show(text)}; expected a string such as 'gaussian(scale=32)'")
    if len(text) > _LONGEST:
        raise ValueError(f"text has {len(text)} characters; expected a specification of at most {_LONGEST}")
    try:
        node: ast.expr = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _malformed(text) from None
    return _read(node, text, 0)


def _read(node: ast.expr, text: str, depth: int) -> Kernel:
    """Kernel of an expression inside a specification."""
    if depth > _DEEPEST:
        raise ValueError(f"{show(text)} is nested more than {_DEEPEST} deep; expected less")
    match node:
        case ast.Name(id=name) if name not in RESERVED:
            return kernel(name)
        case ast.BinOp(op=ast.Mult()):
            factors: list[ast.expr] = []
            inside: ast.expr = node
            while isinstance(inside, ast.BinOp) and isinstance(inside.op, ast.Mult):  # they are nested to the left
                factors.append(inside.right)
                inside = inside.left
            read = [_read(factor, text, depth + 1) for factor in (inside, *reversed(factors))]
            return math.prod(read[1:], start=read[0])
        case ast.Call(func=ast.Name("axes"), args=parts, keywords=[]):
            return axes(*(_read(part, text, depth + 1) for part in parts))
        case ast.Call(func=ast.Name("mixture"), args=[weights, ast.List(parts) | ast.Tuple(parts)], keywords=[]):
            return mixture(_literal(weights, "weights", text), [_read(part, text, depth + 1) for part in parts])
        case ast.Call(func=ast.Attribute(inside, "rescale" | "warp" as name), args=[value], keywords=[]):
            return getattr(_read(inside, text, depth + 1), name)(_literal(value, name, text))
        case ast.Call(func=ast.Name(name)) if name not in RESERVED:
            return _read_family(node, name, text)
    raise _malformed(text)


def _read_family(node: ast.Call, name: str, text: str) -> Kernel:
    if node.args:
        expected = ", ".join(f"{p}=..." for p in find(name).parameters)
        raise ValueError(f"{show(text)} has a parameter without a name; expected {name}({expected})")
    parameters: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in parameters:
            raise _malformed(text)
        parameters[keyword.arg] = _literal(keyword.value, keyword.arg, text)
    return kernel(name, **parameters)


def _literal(node: ast.expr, name: str, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"{name} in {show(text)} is not a number; expected a number or a tuple of numbers") from None


def _malformed(text: str) -> ValueError:
    return ValueError(
        f"cannot read kernel {show(text)}; expected name or name(parameter=number, ...), as 'matern(nu=1.5, scale=64)'"
        ", or such kernels combined: a * b, mixture([weights], [a, b]), axes(a, b), (a).rescale(s), (a).warp([[...]])"
    )


def read_kernel(kernel: Kernel | str, name: str = "kernel") -> Kernel:
    """Return a kernel, read from its specification if it is a string."""
    if isinstance(kernel, str):
        return parse(kernel)
    if not isinstance(kernel, Kernel):
        raise TypeError(f"{name} is {show(kernel)}; expected a kernel, as rfrope.kernel('gaussian'), or its text")
    return kernel
