"""Mistakes that a person would make, found in the syntax tree: something is left out, or two things are confused.

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
text       a line of a kernel, for Triton or CUDA, as `kernel_mistakes.csv` says
"""

from __future__ import annotations

import ast
import collections
import csv
import hashlib
import itertools
import pathlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from tools.meanings import KINDS

LEFT_OUT = "/cuda/"  # what needs a device
KERNEL_MISTAKES = pathlib.Path(__file__).with_name("kernel_mistakes.csv")
RARE = ("stale", "copy")  # chosen before the others, of which there are many
TALKS = ("warn", "add_note", "print", "ValueError", "TypeError", "DamagedError", "UnknownError")


@dataclass(frozen=True)
class Mutation:
    """A changed place: the module's path, the function, the first line, the lines before and after, and the kind."""

    module: str
    function: str
    line: int
    before: str
    after: str
    kind: str

    @property
    def name(self) -> str:
        """A name that stays where other lines change, however its own lines are broken."""
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
    """Paths of the modules that are mutated, and of the sources of kernels."""
    found = (path.relative_to(root).as_posix() for path in sorted((root / "rfrope").rglob("*.py")))
    sources = sorted({row["module"] for row in _kernel_mistakes() if not row["module"].endswith(".py")})
    return [path for path in found if LEFT_OUT not in path] + sources


def mutations(root: pathlib.Path, module: str) -> list[Mutation]:
    """All mutations of a module, no two of them the same."""
    source = (root / module).read_text("utf-8")
    lines, found = source.split("\n"), {}
    for row in _kernel_mistakes():
        if row["module"] == module:
            ((number, line),) = ((i, line) for i, line in enumerate(lines, 1) if row["before"] in line)
            one = Mutation(module, "kernel", number, line, line.replace(row["before"], row["after"]), "text")
            found[one.name] = one
    if not module.endswith(".py"):
        return list(found.values())
    for kind, function, node, text in _changes(ast.parse(source)):
        place = slice(node.lineno - 1, node.end_lineno)
        last = lines[node.end_lineno - 1].encode()
        first = lines[node.lineno - 1].encode()
        after = (first[: node.col_offset] + text.encode() + last[node.end_col_offset :]).decode()
        one = Mutation(module, function, node.lineno, "\n".join(lines[place]), after, kind)
        found.setdefault(one.name, one)
    return list(found.values())


def _kernel_mistakes() -> list[dict[str, str]]:
    """Return the rows of the table of kernels: a module, a text that it has once, and what a person might write."""
    with KERNEL_MISTAKES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def chosen(root: pathlib.Path, number: int, seed: int) -> list[Mutation]:
    """Return about so many mutations: from each module by its length, at least two, of as many kinds as there are."""
    all_of = {module: mutations(root, module) for module in modules(root)}
    sites = {module: len(some) for module, some in all_of.items() if some}
    share = (number - 2 * len(sites)) / sum(sites.values())
    found = []
    for module, count in sites.items():
        ranks: collections.Counter[str] = collections.Counter()
        order = []
        for one in sorted(all_of[module], key=lambda one: one.order(seed)):
            ranks[one.kind] += 1
            order.append((ranks[one.kind], one.kind not in RARE, len(order), one))
        source = (root / module).read_text("utf-8")
        ordered = [one for *_, one in sorted(order, key=lambda entry: entry[:3])]
        able = (one for one in ordered if one.kind == "text" or _compiles(one.applied(source)))
        found += itertools.islice(able, 2 + max(0, round(share * count)))
    return found


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(source, "mutated", "exec")
    except SyntaxError:
        return False
    return True


def _changes(tree: ast.AST) -> Iterator[tuple[str, str, ast.stmt | ast.expr, str]]:
    """Yield kind, function, what is replaced, and by what."""
    for function, node in _places(tree, "module"):
        for kind, changes in KINDS.items():
            for part, text in changes(node):
                yield kind, function, part, text


def _places(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Yield nodes that compute something, each with its function; messages, types and decorators do not."""
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
    """Return whether a node speaks to people, or to type checkers, alone."""
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
