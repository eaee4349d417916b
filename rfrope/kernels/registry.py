"""The registry: one list of records, from which names, help and tables are derived."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rfrope._core.arguments import among, listed, show, spelled
from rfrope.kernels import families, spectra
from rfrope.kernels.base import Kernel
from rfrope.kernels.parameters import Sought

ENTRY_POINT_GROUP = "rfrope.kernels"
RESERVED = ("axes", "mixture")  # names of the algebra


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

    @property
    def sought(self) -> dict[str, Sought | None]:
        """Parameters but ndim, and where a fit looks for them.

        What the factory's fields do not say is taken from a built-in family's parameter of that name, or None.
        """
        own, usual = _fields_of(self.factory), _usual()
        return {name: own.get(name, usual.get(name)) for name in self.parameters if name != "ndim"}


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
_loading = threading.RLock()  # a plug-in may ask for records while it is loaded, another thread waits
_plugins = "unread"  # or "being read", or "read"


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
    if _plugins != "read":
        _read_plugins()
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
        If a name is taken, or is not an identifier.
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
    names = listed("aliases", aliases, "a tuple of names")
    texts = {
        "formula": formula,
        "law": law,
        "dimensions": dimensions,
        "example": str(name) if example is None else example,
    }
    for argument, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{argument} is {show(text)}; expected text for people")
    return _add(Record(name, factory, formula, law, dimensions, texts["example"], names))


def kernel(name: str, **parameters: Any) -> Kernel:
    """Make a registered kernel.

    Parameters
    ----------
    name : str
        One of `names`, or an alias, in any spelling.
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
        For an unknown parameter, or one that is not a number.

    Examples
    --------
    >>> kernel("gaussian", scale=32.0).phi([0.0, 32.0]).round(4)
    array([1.    , 0.6065])
    """
    record = find(name)
    unknown = [p for p in parameters if p not in record.parameters]
    if unknown:
        raise TypeError(
            f"kernel {record.name!r} has no parameter {show(unknown[0])}; expected {', '.join(record.parameters)}"
        )
    made = record.factory(**parameters)
    if not isinstance(made, Kernel):
        raise TypeError(
            f"the factory of kernel {record.name!r} returned {type(made).__name__}; expected a rfrope Kernel"
        )
    return made


def _fields_of(factory: Any) -> dict[str, Sought]:
    fields = getattr(factory, "__dataclass_fields__", {})
    return {name: field.metadata["sought"] for name, field in fields.items() if "sought" in field.metadata}


def _usual() -> dict[str, Sought]:
    """Where a fit looks for parameters by their names, as the first built-in family that has them says."""
    usual: dict[str, Sought] = {}
    for record in _RECORDS:
        usual = _fields_of(record.factory) | usual
    return usual


def find(name: str) -> Record:
    """Return the record that has a name or alias, or say which names there are."""
    if not isinstance(name, str):
        raise TypeError(f"name is {show(name)}; expected the name of a kernel, one of {', '.join(names())}")
    known = {one: record for record in records() for one in (record.name, *record.aliases)}
    meant = spelled(name, tuple(known))
    if meant is None:
        raise ValueError(f"unknown kernel {show(name)}{among(name, names())}")
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
    try:
        inspect.signature(record.factory)
    except ValueError:
        raise TypeError(
            f"factory is {show(record.factory)}, whose parameters cannot be read; expected a function"
        ) from None
    bare = [p for p, default in record.parameters.items() if default is inspect.Parameter.empty]
    if bare:
        raise TypeError(
            f"factory of {record.name!r} has parameter {bare[0]!r} without default; expected defaults for all"
        )
    _RECORDS.append(record)
    return record


def _read_plugins() -> None:
    """Load plug-ins once in a process, whichever thread asks first, and only then say which were left out."""
    global _plugins  # the state of a lazy look-up; it selects no behaviour
    with _loading:
        if _plugins != "unread":
            return
        _plugins = "being read"
        try:
            left_out = _load_plugins()
        except BaseException:  # interrupted: what was loaded stays, the next call goes on
            _plugins = "unread"
            raise
        _plugins = "read"
    for message in left_out:
        warnings.warn(message, stacklevel=4)


def _load_plugins() -> list[str]:
    """Add the records of installed plug-ins, and return why others were left out."""
    from importlib.metadata import entry_points

    left_out = []
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            record = point.load()
            if not isinstance(record, Record):
                raise TypeError(f"it is a {type(record).__name__}; expected a rfrope.kernels.Record")
            if record not in _RECORDS:
                _add(record)
        except (Exception, SystemExit) as error:  # a broken plug-in must not take the library with it
            left_out.append(f"kernel plug-in {point.name!r} ({point.value}) was left out: {error}")
    return left_out
