"""Kernels from text: ``"matern(nu=1.5, scale=64) * periodic(period=24)"``, read and never evaluated."""

from __future__ import annotations

import ast
from typing import Any

from rfrope._core.arguments import show
from rfrope.kernels.algebra import axes, mixture
from rfrope.kernels.base import Kernel
from rfrope.kernels.registry import RESERVED, find, kernel

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
            return _read_product(node, text, depth)
        case ast.Call(func=ast.Name("axes"), args=parts, keywords=[]):
            return axes(*(_read(part, text, depth + 1) for part in parts))
        case ast.Call(func=ast.Name("mixture"), args=[weights, ast.List(parts) | ast.Tuple(parts)], keywords=[]):
            return mixture(_literal(weights, "weights", text), [_read(part, text, depth + 1) for part in parts])
        case ast.Call(func=ast.Attribute(inside, "rescale" | "warp" as name), args=[value], keywords=[]):
            return getattr(_read(inside, text, depth + 1), name)(_literal(value, name, text))
        case ast.Call(func=ast.Name(name)) if name not in RESERVED:
            return _read_family(node, name, text)
    raise _malformed(text)


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
