"""The registry: one list of records, from which names, help and tables are derived."""

from __future__ import annotations

import ast
import difflib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rfrope.kernels import families
from rfrope.kernels.base import Kernel

ENTRY_POINT_GROUP = "rfrope.kernels"


@dataclass(frozen=True)
class Record:
    """What the registry knows of a kernel family.

    Attributes
    ----------
    name : str
        How it is asked for.
    factory : callable
        Returns a `Kernel` from keyword parameters, all with defaults; usually the class itself.
    formula : str
        Phi, for people; r is the lag's length, s the scale.
    law : str
        How omega is distributed, for people.
    dimensions : str
        The numbers k of axes it is defined for.
    example : str
        A specification at non-unit scale, which `rfrope validate` uses when no kernel is named.
    aliases : tuple of str
        Other names.
    """

    name: str
    factory: Callable[..., Kernel]
    formula: str
    law: str
    dimensions: str
    example: str
    aliases: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameter names and their defaults, in order."""
        return {p.name: p.default for p in inspect.signature(self.factory).parameters.values()}


_RECORDS: list[Record] = [
    Record(
        "gaussian",
        families.Gaussian,
        "exp(-r^2/(2 s^2))",
        "normal, standard deviation 1/s",
        "any k",
        "gaussian(scale=32.0)",
        ("rbf", "squared_exponential"),
    ),
    Record(
        "cauchy",
        families.Cauchy,
        "1/(1 + r^2/s^2)",
        "Laplace, scale 1/s (k = 1); sqrt(2E) z/s, E ~ Exp(1) (k > 1)",
        "any k",
        "cauchy(scale=24.0)",
    ),
    Record(
        "sinc",
        families.Sinc,
        "prod_j sin(W_j x_j)/(W_j x_j)",
        "uniform on (-W_j, W_j) on each axis",
        "any k",
        "sinc(bandwidth=0.1)",
    ),
    Record(
        "matern",
        families.Matern,
        "2^(1-nu)/Gamma(nu) t^nu K_nu(t), t = sqrt(2 nu) r/s",
        "multivariate Student t, 2 nu degrees of freedom, over s",
        "any k",
        "matern(nu=1.5, scale=16.0)",
    ),
    Record(
        "exponential",
        families.Exponential,
        "exp(-r/s)",
        "multivariate Cauchy, over s",
        "any k",
        "exponential(scale=48.0)",
        ("laplacian",),
    ),
    Record(
        "log_uniform",
        families.LogUniform,
        "[Ci(high x) - Ci(low x)]/ln(high/low)",
        "a random sign times low (high/low)^U, U uniform on (0, 1)",
        "k = 1",
        "log_uniform(low=0.05, high=0.5)",
    ),
]
_plugins_loaded = False


def records() -> tuple[Record, ...]:
    """All records, those of installed plug-ins (entry-point group ``rfrope.kernels``) included.

    Returns
    -------
    tuple of Record

    Examples
    --------
    >>> records()[0].formula
    'exp(-r^2/(2 s^2))'
    """
    global _plugins_loaded  # the one-time flag of a lazy look-up; it selects no behaviour
    if not _plugins_loaded:
        _plugins_loaded = True
        _load_plugins()
    return tuple(_RECORDS)


def names() -> tuple[str, ...]:
    """Names of the registered kernels.

    Returns
    -------
    tuple of str

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
    """Add a kernel family, for this process; a package does it for good with an entry point that names a `Record`.

    Parameters
    ----------
    name : str
        A Python identifier that no family has.
    factory : callable
        Returns a `Kernel` from keyword parameters, all with defaults; usually a frozen dataclass.
    formula, law, dimensions : str
        For people: Phi, the distribution of omega, the allowed numbers of axes.
    example : str, optional
        A specification that `rfrope validate` checks; ``name`` unless given.
    aliases : tuple of str
        Other names.

    Returns
    -------
    Record

    Raises
    ------
    ValueError
        If a name is taken or no identifier.
    TypeError
        If `factory` cannot be called, or has a parameter without default.

    Examples
    --------
    A name is given once; ``docs/kernels.rst`` shows a family of one's own.

    >>> from rfrope.kernels.families import Gaussian
    >>> register("rbf", Gaussian, formula="exp(-r^2/2)", law="normal")
    Traceback (most recent call last):
        ...
    ValueError: name 'rbf' is taken; expected another one
    """
    return _add(Record(name, factory, formula, law, dimensions, example or name, tuple(aliases)))


def kernel(name: str, **parameters: Any) -> Kernel:
    """Make a registered kernel.

    Parameters
    ----------
    name : str
        One of `names`, or an alias.
    **parameters
        As the family names them: ``scale`` (units of position, a number or one for each axis), ``nu``, ``bandwidth``,
        ``low`` and ``high`` (radians per unit of position), ``ndim`` (axes).

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError
        For an unknown kernel, or a value that the family does not allow.
    TypeError
        For an unknown parameter, or one that is no number.

    Examples
    --------
    >>> kernel("gaussian", scale=32.0).phi([0.0, 32.0]).round(4)
    array([1.    , 0.6065])
    """
    record = _find(name)
    unknown = [p for p in parameters if p not in record.parameters]
    if unknown:
        raise TypeError(
            f"kernel {record.name!r} has no parameter {unknown[0]!r}; expected {', '.join(record.parameters)}"
        )
    made = record.factory(**parameters)
    if not isinstance(made, Kernel):
        raise TypeError(
            f"the factory of kernel {record.name!r} returned {type(made).__name__}; expected a rfrope Kernel"
        )
    return made


def parse(text: str) -> Kernel:
    """Make a kernel from a specification such as ``"matern(nu=1.5, scale=64)"``; nothing is evaluated.

    Parameters
    ----------
    text : str
        ``name`` or ``name(parameter=number, ...)``; numbers, or tuples of numbers, one for each axis.

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError
        If the text is not of that form, or as `kernel`.
    TypeError
        As `kernel`.

    Examples
    --------
    >>> parse("matern(nu=1.5, scale=(8, 4), ndim=2)")
    matern(nu=1.5, scale=(8.0, 4.0), ndim=2)
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {text!r}; expected a string such as 'gaussian(scale=32)'")
    try:
        node: ast.expr = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _malformed(text) from None
    if isinstance(node, ast.Name):
        return kernel(node.id)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise _malformed(text)
    if node.args:
        expected = ", ".join(f"{p}=..." for p in _find(node.func.id).parameters)
        raise ValueError(f"{text!r:.80} has a parameter without a name; expected {node.func.id}({expected})")
    parameters: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in parameters:
            raise _malformed(text)
        try:
            parameters[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise ValueError(
                f"{keyword.arg} in {text!r:.80} is not a number; expected a number or a tuple of numbers"
            ) from None
    return kernel(node.func.id, **parameters)


def _malformed(text: str) -> ValueError:
    return ValueError(
        f"cannot read kernel {text!r:.80}; expected name or name(parameter=number, ...), as 'matern(nu=1.5, scale=64)'"
    )


def _find(name: str) -> Record:
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}; expected the name of a kernel, one of {', '.join(names())}")
    for record in records():
        if name == record.name or name in record.aliases:
            return record
    close = difflib.get_close_matches(name, names(), n=1)
    hint = f"; did you mean {close[0]!r}? Expected" if close else "; expected"
    raise ValueError(f"unknown kernel {name!r}{hint} one of {', '.join(names())}")


def _add(record: Record) -> Record:
    taken = {n for r in _RECORDS for n in (r.name, *r.aliases)}
    for name in (record.name, *record.aliases):
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"name is {name!r}; expected a Python identifier")
        if name in taken:
            raise ValueError(f"name {name!r} is taken; expected another one")
    if not callable(record.factory):
        raise TypeError(f"factory is {record.factory!r}; expected a callable that returns a Kernel")
    bare = [p for p, default in record.parameters.items() if default is inspect.Parameter.empty]
    if bare:
        raise TypeError(
            f"factory of {record.name!r} has parameter {bare[0]!r} without default; expected defaults for all"
        )
    _RECORDS.append(record)
    return record


def _load_plugins() -> None:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            record = point.load()
            if not isinstance(record, Record):
                raise TypeError(f"it is a {type(record).__name__}; expected a rfrope.kernels.Record")
            _add(record)
        except Exception as error:  # a broken plug-in must not take the library with it
            warnings.warn(f"kernel plug-in {point.name!r} ({point.value}) was left out: {error}", stacklevel=3)
