"""The registry: one list of records, from which names, help and tables are derived."""

from __future__ import annotations

import ast
import difflib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rfrope.kernels import families, spectra
from rfrope.kernels.base import Kernel, axes, mixture

ENTRY_POINT_GROUP = "rfrope.kernels"
_LONGEST = 2**16  # characters of a specification
_DEEPEST = 40  # operations of the algebra inside one another
_RESERVED = ("axes", "mixture")  # names of the algebra


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
        spectra.Sinc,
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
        "rational_quadratic",
        families.RationalQuadratic,
        "(1 + r^2/(2 alpha s^2))^-alpha",
        "sqrt(g) z/s, one g ~ Gamma(alpha, rate alpha) for all axes",
        "any k",
        "rational_quadratic(alpha=1.5, scale=24.0)",
    ),
    Record(
        "power_exponential",
        families.PowerExponential,
        "exp(-(r/s)^exponent), exponent in (0, 2]",
        "sqrt(2 S) z/s, one S positive (exponent/2)-stable for all axes",
        "any k",
        "power_exponential(exponent=1.5, scale=32.0)",
        ("stable",),
    ),
    Record(
        "log_uniform",
        spectra.LogUniform,
        "[Ci(high x) - Ci(low x)]/ln(high/low)",
        "a random sign times low (high/low)^U, U uniform on (0, 1)",
        "k = 1",
        "log_uniform(low=0.05, high=0.5)",
    ),
    Record(
        "periodic",
        spectra.Periodic,
        "exp((cos(2 pi x/period) - 1)/s^2)",
        "2 pi n/period, n whole with probability exp(-1/s^2) I_n(1/s^2)",
        "k = 1",
        "periodic(period=96.0, scale=0.7)",
        ("exp_sine_squared",),
    ),
    Record(
        "spectral_mixture",
        spectra.SpectralMixture,
        "sum_j w_j exp(-sum_a s_ja^2 x_a^2/2) cos(mu_j . x)",
        "component j with probability w_j, then a random sign times mu_j, plus s_j z",
        "any k",
        "spectral_mixture(weights=(0.75, 0.25), means=(0.01, 0.2), scales=(0.04, 0.02))",
    ),
    Record(
        "ball",
        spectra.Ball,
        "Gamma(k/2+1) (2/t)^(k/2) J_(k/2)(t), t = W r",
        "uniform in the ball of radius W",
        "any k",
        "ball(bandwidth=0.1)",
    ),
    Record(
        "shell",
        spectra.Shell,
        "Gamma(k/2) (2/t)^(k/2-1) J_(k/2-1)(t), t = W r; cos t for k = 1",
        "uniform on the sphere of radius W; -W or W for k = 1",
        "any k",
        "shell(radius=0.1)",
    ),
    Record("constant", spectra.Constant, "1", "0", "any k", "constant()"),
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
        ``low`` and ``high`` (radians per unit of position), ``ndim`` (axes); `records` lists them.

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
        ``name`` or ``name(parameter=number, ...)``; numbers, or tuples of numbers, one for each axis. Combined as in
        Python, nested freely: ``a * b``, ``mixture([0.3, 0.7], [a, b])``, ``axes(a, b)``, ``(a).rescale(2)`` and
        ``(a).warp([[1, 0.5], [0, 1]])``. ``repr`` of a kernel is such a text.

    Returns
    -------
    Kernel

    Raises
    ------
    ValueError
        If the text is not of that form, longer than 65536 characters or nested more than 40 deep, or as `kernel`.
    TypeError
        As `kernel`.

    Examples
    --------
    >>> parse("matern(nu=1.5, scale=(8, 4), ndim=2)")
    matern(nu=1.5, scale=(8.0, 4.0), ndim=2)
    >>> parse("mixture([0.25, 0.75], [constant, gaussian(scale=8) * periodic(period=24)])").phi([0.0, 24.0]).round(4)
    array([1.    , 0.2583])
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {text!r}; expected a string such as 'gaussian(scale=32)'")
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
        raise ValueError(f"{text!r:.80} is nested more than {_DEEPEST} deep; expected less")
    if isinstance(node, ast.Name) and node.id not in _RESERVED:
        return kernel(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _read_product(node, text, depth)
    if not isinstance(node, ast.Call):
        raise _malformed(text)
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("rescale", "warp"):
        (value,) = _arguments(node, 1, text)
        return getattr(_read(node.func.value, text, depth + 1), node.func.attr)(_literal(value, node.func.attr, text))
    if not isinstance(node.func, ast.Name):
        raise _malformed(text)
    if node.func.id == "axes":
        return axes(*(_read(part, text, depth + 1) for part in _arguments(node, None, text)))
    if node.func.id == "mixture":
        weights, parts = _arguments(node, 2, text)
        if not isinstance(parts, ast.List | ast.Tuple):
            raise _malformed(text)
        members = [_read(part, text, depth + 1) for part in parts.elts]
        return mixture(_literal(weights, "weights", text), members)
    return _read_family(node, node.func.id, text)


def _read_product(node: ast.expr, text: str, depth: int) -> Kernel:
    """Product of any number of factors, which are nested to the left."""
    factors = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors.append(node.right)
        node = node.left
    product = _read(node, text, depth + 1)
    for factor in reversed(factors):
        product = product * _read(factor, text, depth + 1)
    return product


def _read_family(node: ast.Call, name: str, text: str) -> Kernel:
    if node.args:
        expected = ", ".join(f"{p}=..." for p in _find(name).parameters)
        raise ValueError(f"{text!r:.80} has a parameter without a name; expected {name}({expected})")
    parameters: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in parameters:
            raise _malformed(text)
        parameters[keyword.arg] = _literal(keyword.value, keyword.arg, text)
    return kernel(name, **parameters)


def _arguments(node: ast.Call, count: int | None, text: str) -> list[ast.expr]:
    """Positional arguments of an operation, as many as expected."""
    if node.keywords or (count is not None and len(node.args) != count):
        raise _malformed(text)
    return node.args


def _literal(node: ast.expr, name: str, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"{name} in {text!r:.80} is not a number; expected a number or a tuple of numbers") from None


def _malformed(text: str) -> ValueError:
    return ValueError(
        f"cannot read kernel {text!r:.80}; expected name or name(parameter=number, ...), as 'matern(nu=1.5, scale=64)'"
        ", or such kernels combined: a * b, mixture([weights], [a, b]), axes(a, b), (a).rescale(s), (a).warp([[...]])"
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
    taken = {n for r in _RECORDS for n in (r.name, *r.aliases)} | set(_RESERVED)
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
