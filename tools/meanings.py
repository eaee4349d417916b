"""Kinds of mutations by meaning: what is left out, or taken for another thing (`tools.mutations` lists them)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

Change = tuple[ast.expr | ast.stmt, str]  # what is replaced, and by what

MEMORY = re.compile(r"_(known|kept|held|often|seen|last|steps|tensors|plan|memory|shelf|dict__|cache)\b", re.IGNORECASE)
KEY = re.compile(r"^_?(key|layout|signature|question|name)s?$")
REFUSES = re.compile(r"^_*(check|refuse|require|ask|hold)")
SAID = {"help", "metavar", "doc", "title", "description", "stacklevel", "strict", "encoding", "desc", "label", "said"}
TALKS = {"warn", "print", "add_note", "add_argument", "add_parser"}
COPIES = {"array", "ascontiguousarray", "list", "dict", "deepcopy", "MappingProxyType", "copy"}
TURNS = {"swapaxes", "moveaxis", "matrix_transpose", "permute_dims", "transpose"}
CARRIES = {"replace", "of", "_replace"}
NARROWER = {"float64": "float32", "complex128": "complex64"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _name(node: ast.AST) -> str:
    """Last name of a call's function, or of an attribute."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _inside(node: ast.expr) -> str:
    """Source of an operand."""
    plain = isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript)
    return _text(node) if plain else f"({_text(node)})"


def _with(node: ast.Call, arguments: list[ast.expr], keywords: list[ast.keyword]) -> str:
    return _text(ast.Call(node.func, arguments, keywords))


def _without(values: list[ast.AST]) -> Iterator[tuple[int, list[ast.AST]]]:
    """Lists with one left out, and its place."""
    for i in range(len(values)):
        yield i, [*values[:i], *values[i + 1 :]]


def _texts(node: ast.AST) -> bool:
    """Whether an expression puts texts or lists together."""
    return any(
        isinstance(part, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in ast.walk(node)
    )


def _sign(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Assign(value=value) | ast.Return(value=value):
            number = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div | ast.MatMult)
            if (number and not _texts(value)) or _name(value or node) in ("sin", "expm1", "log", "log1p", "matmul"):
                yield value, f"-{_inside(value)}"
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield node, _inside(operand)


def _factor(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.AugAssign(op=ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Pow()):
            yield node, "pass"
        case ast.BinOp(left=left, op=ast.Pow()) if not isinstance(left, ast.Constant):
            yield node, _inside(left)
        case ast.BinOp(left=ast.BinOp(left=first, op=ast.Mult(), right=second), op=ast.Mult(), right=third):
            if not _texts(node):
                yield node, f"{_inside(first)} * {_inside(third)}"
                yield node, f"{_inside(second)} * {_inside(third)}"
        case ast.Call(args=[only], keywords=[]) if _name(node) in ("sqrt", "square", "abs", "exp", "log", "log1p"):
            yield node, _inside(only)


def _term(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.AugAssign(op=ast.Add() | ast.Sub() | ast.BitOr() | ast.BitAnd()):
            yield node, "pass"
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append" | "extend" | "add" | "update"))):
            yield node, "pass"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right) if node.lineno != node.end_lineno:
            if not _texts(node):
                yield node, _inside(left)
                yield node, _inside(right)


def _stale(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="clear" | "pop" | "popitem" | "cache_clear"))):
            yield node, "pass"
        case ast.Delete(targets=[ast.Subscript() | ast.Attribute()]):
            yield node, "pass"
        case ast.Assign(targets=[target], value=ast.Tuple(elts=parts)) if KEY.match(_name(target)):
            for i, others in _without(parts):
                if len(parts) > 1 and not isinstance(parts[i], ast.Constant):
                    yield node.value, f"({', '.join(map(_text, others))},)"
        case ast.If(test=ast.Compare(ops=[ast.Eq() | ast.Is()]) as test) if MEMORY.search(_text(test)):
            yield test, "True"
        case ast.If(test=ast.Compare(ops=[ast.NotEq() | ast.IsNot() | ast.NotIn() | ast.Gt() | ast.GtE()]) as test):
            if MEMORY.search(_text(test)):
                yield test, "False"
    if isinstance(node, Function) and any("cache" in _text(one) for one in node.decorator_list) and node.args.args[1:]:
        first = node.decorator_list[0]
        stale = "lambda f, m={}: lambda *a, **k: m[a[:-1]] if a[:-1] in m else m.setdefault(a[:-1], f(*a, **k))"
        yield first, f"({stale})\n{' ' * (first.col_offset - 1)}@{_text(first)}"


def _axes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.keyword():
            return
        case ast.Attribute(value=value, attr="T" | "mT"):
            yield node, _inside(value)
        case ast.Call(args=[first, *_]):
            if _name(node) in TURNS and not isinstance(first, ast.Constant):
                yield node, _inside(first)
        case ast.Subscript(value=ast.Attribute(attr="shape" | "strides") as value, slice=place):
            for old, new in (("-1", "0"), ("0", "-1"), ("-2", "-1"), ("1", "0")):
                if _text(place) == old:
                    yield node, f"{_text(value)}[{new}]"
        case ast.Subscript(slice=ast.Tuple(elts=parts)) if len(parts) == 2 and any(_text(p) == "None" for p in parts):
            yield node, f"{_text(node.value)}[{_text(parts[1])}, {_text(parts[0])}]"
    if isinstance(node, ast.Call):
        for one in node.keywords:
            if one.arg in ("axis", "axes"):
                yield one.value, "0" if _text(one.value) != "0" else "-1"


def _swapped(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=[first, second, *others]) as target], value=value):
            if not any(isinstance(one, ast.Starred) for one in target.elts):
                yield target, ", ".join(map(_text, [second, first, *others]))
        case ast.Return(value=ast.Tuple(elts=[first, second, *others]) as value):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield value, ", ".join(map(_text, [second, first, *others]))
        case ast.Call(keywords=[first, second, *others]) if first.arg and second.arg and _name(node) not in TALKS:
            if not isinstance(first.value, ast.Constant) and not isinstance(second.value, ast.Constant):
                crossed = [ast.keyword(first.arg, second.value), ast.keyword(second.arg, first.value), *others]
                yield node, _with(node, node.args, crossed)


def _copy(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="copy"), args=[]):
            yield node, _inside(value)
        case ast.Call(args=[first, *_]) if _name(node) in COPIES:
            if isinstance(first, ast.Name | ast.Attribute | ast.Subscript):
                yield node, _text(first)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="setflags"))):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute(attr="writeable")]):
            yield node, "pass"
    if isinstance(node, ast.Call):
        for one in node.keywords:
            if one.arg == "copy" and _text(one.value) == "True":
                yield one.value, "False"


def _check(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.If(test=test, body=body) if isinstance(body[-1], ast.Raise):
            yield test, "False"
            if isinstance(test, ast.BoolOp):
                yield from _clauses(test)
        case ast.Expr(value=ast.Call() as call) if REFUSES.match(_name(call)):
            yield node, "pass"


def _guard(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.If(test=ast.BoolOp() as test, body=body) if not isinstance(body[-1], ast.Raise):
            yield from _clauses(test)
        case ast.IfExp(test=ast.BoolOp() as test) | ast.While(test=ast.BoolOp() as test):
            yield from _clauses(test)
        case ast.Return(value=ast.BoolOp() as value) | ast.Assign(value=ast.BoolOp() as value):
            yield from _clauses(value)


def _clauses(test: ast.BoolOp) -> Iterator[Change]:
    joined = " and " if isinstance(test.op, ast.And) else " or "
    for _, others in _without(test.values):
        yield test, f"({joined.join(map(_inside, others))})"


def _keyword(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Call(args=arguments, keywords=keywords) if _name(node) not in TALKS | CARRIES:
            for i, others in _without(keywords):
                if keywords[i].arg and keywords[i].arg not in SAID:
                    yield node, _with(node, arguments, others)


def _field(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Call(args=arguments, keywords=keywords) if _name(node) in CARRIES:
            for i, others in _without(keywords):
                if keywords[i].arg:
                    yield node, _with(node, arguments, others)
        case ast.Dict(keys=keys, values=values) if len(keys) > 1:
            for i in range(len(keys)):
                if isinstance(keys[i], ast.Constant):
                    parts = (keys[:i] + keys[i + 1 :], values[:i] + values[i + 1 :])
                    yield node, _text(ast.Dict(*parts))


def _return(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.For(body=[*_, last]) | ast.While(body=[*_, last]) if not isinstance(last, ast.Return | ast.Raise):
            if not isinstance(last, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match):
                yield last, f"{_text(last)}\n{' ' * last.col_offset}break"
        case ast.If(test=test, body=[ast.Return() | ast.Continue()], orelse=[]):
            yield test, "True"
            yield test, "False"
        case ast.Expr(value=ast.Call() as call) if _name(call) not in TALKS and not REFUSES.match(_name(call)):
            yield node, "pass"


def _default(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.IfExp(test=ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)])):
            yield node, _inside(node.body)
            yield node, _inside(node.orelse)
        case ast.BoolOp(op=ast.Or(), values=[ast.Name() | ast.Attribute() | ast.Call() as first, second]):
            yield node, _inside(second)
            yield node, _inside(first)
        case ast.Call(func=ast.Attribute(attr="get"), args=[first, _]):
            yield node, _with(node, [first], [])
        case ast.FunctionDef(args=ast.arguments(defaults=defaults, kw_defaults=named)):
            for one in [*defaults, *(one for one in named if one is not None)]:
                match one:
                    case ast.Constant(value=bool() as value):
                        yield one, str(not value)
                    case ast.Constant(value=int() | float() as value):
                        yield one, repr(value * 2 + (not value))
                    case ast.Constant(value=None):
                        yield one, "1"


def _dtype(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Attribute) and node.attr in NARROWER:
        yield node, f"{_text(node.value)}.{NARROWER[node.attr]}"


KINDS: dict[str, Callable[[ast.AST], Iterator[Change]]] = {
    "stale": _stale,
    "copy": _copy,
    "check": _check,
    "field": _field,
    "sign": _sign,
    "factor": _factor,
    "term": _term,
    "axes": _axes,
    "swapped": _swapped,
    "guard": _guard,
    "keyword": _keyword,
    "return": _return,
    "default": _default,
    "dtype": _dtype,
}
