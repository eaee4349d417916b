"""Changes to the source that a test should see, found in the syntax tree: tokens of a line, and meanings.

A mutation of kind ``line`` changes one token of one line. The others leave something out, or confuse two things:

sign       a result is negated
factor     a factor, a power or a scaling in place is left out
term       what is added, or put into a list, is left out
stale      a memory forgets part of its key, is never cleared, or takes another question for the same
axes       another axis; an array that is not transposed
swapped    two results, two names or two keywords change places
copy       an array, a list or a dict is shared that was copied; what was read-only can be written to
check      a test that raises is gone, or one of its clauses
guard      one clause of another condition is gone
keyword    a keyword argument is not passed on
field      an entry of a dict, or of what `replace` carries over, is left out
return     a loop ends after its first pass; a function returns too early, or not early
default    a default is another, or is taken although a value was given
dtype      a narrower type of number
"""

from __future__ import annotations

import ast
import collections
import hashlib
import itertools
import pathlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from tools import meanings

SWAPPED: dict[type[ast.AST], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.And: "or", ast.Or: "and"},
}
# what needs a device, or lies beside the data it once made
LEFT_OUT = ("rfrope/_accel/cuda/",)
RARE = ("stale", "copy")  # chosen before the others, of which there are many
TALKS = ("warn", "add_note", "print", "ValueError", "TypeError", "DamagedError", "UnknownError")


@dataclass(frozen=True)
class Mutation:
    """A changed place: the module's path, the function, the first line, and the lines before and after."""

    module: str
    function: str
    line: int
    before: str
    after: str
    kind: str = "line"

    @property
    def name(self) -> str:
        """What it is, wherever the lines stand and however they are broken."""
        return f"{self.module} {self.function}: {brief(self.before)} -> {brief(self.after)}"

    def order(self, seed: int) -> bytes:
        """Place among all: by chance, the same for as long as the line is."""
        return hashlib.blake2b(f"{seed} {self.name}".encode()).digest()

    def applied(self, source: str) -> str:
        """Source with the line changed."""
        lines, before = source.split("\n"), self.before.split("\n")
        place = slice(self.line - 1, self.line - 1 + len(before))
        assert lines[place] == before, f"line {self.line} of {self.module} is another now"
        lines[place] = [self.after]
        return "\n".join(lines)


def brief(lines: str) -> str:
    """Lines of source as one."""
    return " ".join(lines.split())


def modules(root: pathlib.Path) -> list[str]:
    """Paths of the modules that are mutated."""
    found = (path.relative_to(root).as_posix() for path in sorted((root / "rfrope").rglob("*.py")))
    return [path for path in found if not path.startswith(LEFT_OUT)]


def mutations(root: pathlib.Path, module: str) -> list[Mutation]:
    """All mutations of a module, no two of them the same."""
    source = (root / module).read_text("utf-8")
    lines, found = source.split("\n"), {}
    for kind, function, node, text in [*_of_lines(ast.parse(source)), *_of_meanings(ast.parse(source))]:
        place = slice(node.lineno - 1, node.end_lineno)
        last = lines[node.end_lineno - 1].encode()
        first = lines[node.lineno - 1].encode()
        after = (first[: node.col_offset] + text.encode() + last[node.end_col_offset :]).decode()
        one = Mutation(module, function, node.lineno, "\n".join(lines[place]), after, kind)
        found.setdefault(one.name, one)
    return list(found.values())


def chosen(
    root: pathlib.Path, number: int, seed: int, among: tuple[str, ...] = ("",), *, meaning: bool = False
) -> list[Mutation]:
    """About so many mutations: from each module (whose path holds one of some texts) by its length.

    Each module gives at least one of its lines, or at least two by meaning, of as many kinds as there are.
    """
    names = [module for module in modules(root) if any(text in module for text in among)]
    all_of = {module: mutations(root, module) for module in names}
    all_of = {module: [one for one in some if (one.kind != "line") == meaning] for module, some in all_of.items()}
    sites = {module: len(some) for module, some in all_of.items() if some}
    least = 1 + meaning
    share = (number - least * len(sites)) / sum(sites.values())
    found = []
    for module, count in sites.items():
        ranks: collections.Counter[str] = collections.Counter()
        order = []
        for one in sorted(all_of[module], key=lambda one: one.order(seed)):
            ranks[one.kind] += 1
            order.append((ranks[one.kind] if meaning else 0, one.kind not in RARE, len(order), one))
        source = (root / module).read_text("utf-8")
        able = (one for *_, one in sorted(order, key=lambda entry: entry[:3]) if _compiles(one.applied(source)))
        found += itertools.islice(able, least + round(share * count))
    return found


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(source, "mutated", "exec")
    except SyntaxError:
        return False
    return True


def _of_lines(tree: ast.AST) -> Iterator[tuple[str, str, ast.expr, str]]:
    """Kind, function, what is replaced, and by what: in one line each."""
    compared = {part for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    for function, node in _places(tree, "module"):
        for part, text in _changes(node, bound=node in compared) if isinstance(node, ast.expr) else ():
            if part.lineno == part.end_lineno:
                yield "line", function, part, text


def _of_meanings(tree: ast.AST) -> Iterator[tuple[str, str, ast.stmt | ast.expr, str]]:
    """Kind, function, what is replaced, and by what."""
    for function, node in _places(tree, "module"):
        for kind, part, text in meanings.of(node):
            yield kind, function, part, text


def _places(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """What computes something, with the function it is in; messages, types and decorators do not."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "msg", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _says(child):
                continue
            inner = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = child.name if function == "module" else f"{function}.{child.name}"
            if isinstance(child, ast.expr | ast.stmt):
                yield inner, child
            yield from _places(child, inner)


def _says(node: ast.AST) -> bool:
    """Whether a node speaks to people, or to type checkers, alone."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
        return True
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):  # Name = Type | Type
        return _is_type(node.value)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in (*TALKS, "TypeVar", "cast")
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_type(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def _changes(node: ast.expr, *, bound: bool) -> Iterator[tuple[ast.expr, str]]:
    """Expressions to replace, and by what; a number that is part of a comparison is doubled, others change a little."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SWAPPED:
            yield node, f"{_text(left)} {SWAPPED[type(op)]} {_text(right)}"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPPED and not _is_text(node):
            yield node, f"{_text(left)} {SWAPPED[type(op)]} {_text(right)}"
            yield node, _text(left)
            yield node, _text(right)
        case ast.BoolOp(op=op, values=values):
            yield node, f" {SWAPPED[type(op)]} ".join(map(_text, values))
            yield node, f" {'and' if isinstance(op, ast.And) else 'or'} ".join(map(_text, values[:-1]))
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, _text(operand)
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
            yield node, str(value - 1) if value else "-1"
        case ast.Constant(value=float() as value) if value:
            usual = 2.0 if bound else 1.01
            yield node, repr(value * (10.0 if abs(value) < 1e-3 or abs(value) > 1e6 else usual))
        case ast.IfExp(test=test, body=body, orelse=other):
            yield node, f"{_text(other)} if {_text(test)} else {_text(body)}"
        case ast.Call(func=function, args=[first, second, *others], keywords=keywords):
            if not any(isinstance(one, ast.Starred) for one in node.args):
                swapped = ast.Call(function, [second, first, *others], keywords)
                yield node, ast.unparse(swapped)


def _text(node: ast.expr) -> str:
    """Source of an operand, in parentheses where it needs them."""
    plain = isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript)
    return ast.unparse(node) if plain else f"({ast.unparse(node)})"


def _is_text(node: ast.BinOp) -> bool:
    parts = [part for part in ast.walk(node) if isinstance(part, ast.JoinedStr | ast.Constant)]
    return any(isinstance(part, ast.JoinedStr) or isinstance(part.value, str | bytes) for part in parts)
