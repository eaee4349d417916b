"""How the package is laid out: sizes of functions and modules, what modules take of each other, the table of layers."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from rfrope.data.model_types import model_types

ROOT = pathlib.Path(__file__).parents[1]
MODULES = {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in (ROOT / "rfrope").rglob("*.py")}
LONGEST_BODY, LONGEST_MODULE = 45, 500


def body_lines(function: ast.FunctionDef) -> int:
    """Lines from the first statement to the last, the docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def is_module(name: str) -> bool:
    """Whether there is a package or a module of that dotted name."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def too_long(path: pathlib.Path, tree: ast.Module) -> list[str]:
    """Functions whose bodies are too long; compiled loops may be, since calls with arrays cost compile time."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    loops = path.name.endswith("_loops.py")
    return [one.name for one in functions if not loops and body_lines(one) > LONGEST_BODY]


def private_imports(tree: ast.Module) -> list[str]:
    """Private names that a module takes of another; a module or package with an underscore is none."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rfrope"):
            names = [f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")]
            found += [name for name in names if not is_module(name)]
    return found


def private_uses(tree: ast.Module) -> list[str]:
    """Private names that a module asks of a module it imported."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rfrope")
        for alias in node.names
        if is_module(f"{node.module}.{alias.name}")
    }
    return [
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported
        if re.match(r"_[A-Za-z]", node.attr) and node.attr not in ("_accel", "_core")
    ]


def test_no_function_is_long():
    assert {str(path): names for path, tree in MODULES.items() if (names := too_long(path, tree))} == {}


def test_no_module_is_long():
    lengths = {str(path): len((ROOT / path).read_text("utf-8").splitlines()) for path in MODULES}
    assert {path: length for path, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_no_module_takes_what_is_private_to_another():
    found = {
        str(path): names for path, tree in MODULES.items() if (names := private_imports(tree) + private_uses(tree))
    }
    assert found == {}


def test_the_checks_above_see_what_they_look_for():
    source = (
        "def f():\n"
        + "    x = 1\n" * 46
        + "from rfrope.scaling import schemes\nfrom rfrope.scaling.schemes import _slowed\n"
    )
    tree = ast.parse(source + "schemes._slowed(1)\n")
    assert too_long(pathlib.Path("rfrope/a.py"), tree) == ["f"]
    assert too_long(pathlib.Path("rfrope/a_loops.py"), tree) == []
    assert private_imports(tree) == ["rfrope.scaling.schemes._slowed"]
    assert private_uses(tree) == ["schemes._slowed"]


# -- the number of axes ------------------------------------------------------------------------------------------------

# Above the gate: the gate itself, what calls public functions as users do, and what reads arrays of other programs
# before anyone knows what they hold. A law's own mathematics in k dimensions is not below it, but beside it.
ABOVE_THE_GATE = ("_core/angles.py", "plotting/", "layers/", "integrations/", "data/", "models/held.py")
LAWS = ("kernels/families.py", "kernels/spectra.py", "kernels/parameters.py", "kernels/algebra.py", "bochner/")
MOST_AXIS_BRANCHES = 9
AXES = {"axes", "n_axes", "ndim", "k"}  # what a number of position axes is called
TURNING = {"positions", "frequencies", "vectors", "omega", "theta", "lags", "delta", "offset", "sets", "points", "at"}


def below_the_gate(path: pathlib.Path) -> bool:
    """Whether a module sees positions and frequencies in the gate's form alone."""
    return not path.relative_to("rfrope").as_posix().startswith((*ABOVE_THE_GATE, *LAWS))


def last_name(node: ast.expr) -> str:
    """``positions`` of ``positions`` and of ``read.positions``."""
    return getattr(node, "id", getattr(node, "attr", "")).lstrip("_")


def is_number_of_axes(node: ast.expr) -> bool:
    """How many axes an array has, how many positions have, or the length of the last axis of what turns."""
    if isinstance(node, ast.Name | ast.Attribute):
        return last_name(node) in AXES
    if isinstance(node, ast.Call):
        of_shape = last_name(node.func) == "len" and node.args and last_name(node.args[0]) == "shape"
        return last_name(node.func) == "ndim" or bool(of_shape)
    shape = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return shape and last_name(node.value.value) in TURNING and ast.unparse(node.slice) in ("-1", "1")


def asks_for_axes(node: ast.AST) -> bool:
    """Whether an expression compares a number of axes with 1, 2, 3 or 4, or asks the gate for the user's form."""
    if isinstance(node, ast.Call):
        return last_name(node.func) == "is_line"
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    numbers = [one for side in sides for one in (side.elts if isinstance(side, ast.Tuple) else [side])]
    small = any(isinstance(one, ast.Constant) and one.value in (1, 2, 3, 4) for one in numbers)
    return small and any(is_number_of_axes(side) for side in sides)


def ends_in_refusal(node: ast.AST) -> bool:
    """Whether it refuses what came, or words the refusal."""
    if isinstance(node, ast.FunctionDef):
        return node.returns is not None and ast.unparse(node.returns).endswith(("Error", "Exception"))
    return isinstance(node, ast.Raise) or (isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise))


def axis_branches(tree: ast.AST) -> list[str]:
    """Branches on the number of axes, and comparisons whose truth is used as a number, one for each line.

    A refusal is none: neither its condition nor its words.
    """
    if ends_in_refusal(tree):
        rest = tree.orelse if isinstance(tree, ast.If) else []
        return [found for node in rest for found in axis_branches(node)]
    if asks_for_axes(tree):
        return [ast.unparse(tree)]
    return [found for node in ast.iter_child_nodes(tree) for found in axis_branches(node)]


def test_hardly_anything_below_the_gate_asks_for_the_number_of_axes():
    found = {str(path): axis_branches(tree) for path, tree in MODULES.items() if below_the_gate(path)}
    assert sum(map(len, found.values())) <= MOST_AXIS_BRANCHES, {path: names for path, names in found.items() if names}


PLANTED_AXES = """
def f(positions, frequencies, axes, read, kernel):
    a = positions[..., None] if frequencies.ndim == 1 else positions
    if read.positions.ndim > 1:
        a = a[0]
    while np.ndim(frequencies) < 3:
        frequencies = frequencies[None]
    b = [x for x in a if axes > 1]
    c = (1,) * (len(read.positions.shape) > 1)
    d = a if frequencies.shape[-1] == 1 else b
    e = a if is_line(frequencies) else b
    return kernel.ndim == 1 and c or d, e
"""
REFUSED_AXES = """
def f(positions, frequencies, axes):
    if positions.ndim > 2:
        told = "an axis" if axes == 1 else "axes"
        raise ValueError(f"expected {told}")
    if positions.shape[-1] == axes or positions.shape[:-2] or positions.ndim == 0:
        return 1
def g(axes) -> ValueError:
    return ValueError("an axis" if axes == 1 else "axes")
"""


def test_planted_branches_on_the_number_of_axes_are_seen():
    assert len(axis_branches(ast.parse(PLANTED_AXES))) == 8
    assert axis_branches(ast.parse(REFUSED_AXES)) == []
    for path in ("rfrope/heads/positional.py", "rfrope/_accel/cpu/sums.py", "rfrope/exports/tables.py"):
        assert below_the_gate(pathlib.Path(path))
        planted = ast.parse((ROOT / path).read_text("utf-8") + PLANTED_AXES)
        assert len(axis_branches(planted)) == len(axis_branches(MODULES[pathlib.Path(path)])) + 8


# -- the sum over blocks -----------------------------------------------------------------------------------------------

# The one sum and its twins, and series that are not over blocks: of laws, of special functions.
SUMS = ("_core/sums.py", "_accel/")
OTHER_SERIES = ("kernels/", "bochner/", "data/", "_core/special.py")
NOT_OVER_BLOCKS = {
    "designs/lags.py: projected",  # it sums over lags, for each frequency
    "montecarlo.py: _kernel_moments",  # over draws
}
REDUCTIONS = {"sum", "mean", "matmul", "dot", "vdot", "vecdot", "inner", "einsum", "tensordot", "weighted", "combined"}
WAVES = {"cos", "sin", "cos_sin", "wave", "waves", "_wave", "_waves", "waves_of_phases"}  # functions that make waves
SUMMED = {"total", "summed", "mean_cos", "mean_square"}  # methods of waves that have summed them
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
PASSED_ON = {"zip", "tuple", "list", "map", "conj", "matrix_transpose", "reshape", "broadcast_to", "astype", "where"}


def called(node: ast.AST) -> str:
    """Last name of what a call calls."""
    return getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""


def holds_a_wave(node: ast.AST, known: set[str]) -> bool:
    """Whether an expression is made of cos or sin: by calls, by name, or by a variable that holds some."""
    if isinstance(node, ast.Call):
        if called(node) in WAVES | known:
            return not ast.unparse(node.func).startswith("math.")
        passed = [*node.args, *(word.value for word in node.keywords)] if called(node) in PASSED_ON | {"abs"} else []
        if not called(node):  # of what a table holds
            return any(holds_a_wave(part, known) for part in [*passed, node.func])
        method = isinstance(node.func, ast.Attribute) and called(node) not in SUMMED
        return any(holds_a_wave(part, known) for part in [*passed, *([node.func.value] if method else [])])
    if isinstance(node, ast.Attribute):
        return node.attr in ("cos", "sin") or (node.attr not in ("xp", "shape") and holds_a_wave(node.value, known))
    if isinstance(node, ast.Name):
        return node.id in known
    return any(holds_a_wave(part, known) for part in ast.iter_child_nodes(node))


def names_of_waves(function: ast.FunctionDef, nodes: list[ast.AST], made: set[str]) -> set[str]:
    """Parameters that are called waves, and variables of a function that hold some; `made` are functions that do."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    known = made | {one.arg for one in arguments if one.arg in ("cos", "sin", "wave", "waves")}
    bound = [node for node in nodes if isinstance(node, (*ASSIGNMENTS, ast.For, ast.comprehension))]
    for _ in range(2):  # variables made of variables
        for node in bound:
            value = node.value if isinstance(node, ASSIGNMENTS) else node.iter
            if value is not None and holds_a_wave(value, known):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                known |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return known


def is_over_blocks(call: ast.Call) -> bool:
    """Whether a reduction may be over the last axis: it names no other."""
    axis = next((word.value for word in call.keywords if word.arg == "axis"), ast.Constant(-1))
    return ast.unparse(axis) in ("-1", "1")


def sums_of_waves(tree: ast.Module) -> list[str]:
    """Places that sum waves over the blocks, or cut the blocks into parts, which is the one sum's work.

    Waves are what functions make of cos and sin. A sum is a reduction over the last axis, or ``@``.
    """
    functions = {node: list(ast.walk(node)) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    tables = [node for node in tree.body if isinstance(node, ASSIGNMENTS) and node.value is not None]
    made = {
        name.id
        for node in tables
        if holds_a_wave(node.value, set())
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    for function, nodes in functions.items():
        known = names_of_waves(function, nodes, made)
        if any(isinstance(node, ast.Return) and node.value and holds_a_wave(node.value, known) for node in nodes):
            made.add(function.name)
    found = set()
    for function, nodes in functions.items():
        known = names_of_waves(function, nodes, made)
        for node in nodes:
            parts = []
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                parts = [node.left, node.right]
            elif called(node) in REDUCTIONS and is_over_blocks(node):
                of = [node.func.value] if isinstance(node.func, ast.Attribute) else []
                parts = [*of, *node.args]
            cut = called(node) == "part" and isinstance(node.func, ast.Attribute)
            if cut or any(holds_a_wave(part, known) for part in parts):
                found.add(function.name)
    return sorted(found)


def test_the_sum_over_blocks_is_written_once():
    paths = {path: path.relative_to("rfrope").as_posix() for path in MODULES}
    found = {
        f"{name}: {function}"
        for path, name in paths.items()
        if not name.startswith((*SUMS, *OTHER_SERIES))
        for function in sums_of_waves(MODULES[path])
    }
    assert found == NOT_OVER_BLOCKS
    assert "_over_parts" in sums_of_waves(MODULES[pathlib.Path("rfrope/_core/sums.py")])


@pytest.mark.parametrize(
    "body",
    [  # as they stood in five modules before there was one sum
        "cos, sin = turns.cos_sin(a)\n    return xp.sum(w * cos, axis=-1)",
        "cos, sin = waves(x, omega)\n    total: np.ndarray = sums.combined(one, two, cos, sin, np)\n    return total",
        "cos, sin = waves(x, omega)\n    return -float(np.sum(omega * omega * (one * cos + two * sin)))",
        "cos, sin = waves(x, omega)\n    return (two * cos - one * sin) @ omega",
        "value = xp.sum(cos * (xp.matmul(one, cos) + xp.matmul(two, sin)), axis=-2)\n    return value",
        "return sums.combined(one[..., None, :], two[..., None, :], cos, sin, xp)",
        "fall = 2.0 * cos_sin(half)[1] ** 2\n    total = xp.sum(fall, axis=-1)\n    return total",
        "total = 0.0\n    for span in spans:\n        total = total + read(half.part(span))\n    return total",
        "return np.mean(np.cos(lag * omega))",
        "phases = x @ omega\n    return (one * np.cos(phases)).sum(axis=-1)",
        "return sums.weighted(one, np.cos(x), np)",
    ],
)
def test_sums_over_blocks_that_are_written_again_are_seen(body):
    assert sums_of_waves(ast.parse(f"def f(x, omega, one, two, cos, sin):\n    {body}\n")) == ["f"]


def test_sums_by_way_of_a_table_of_functions_are_seen():
    table = 'KINDS: dict = {"phi": lambda u, xp: xp.cos(u), "sin": lambda u, xp: xp.sin(u)}'
    body = "values = KINDS[kind](phases(lags, omega), xp)\n    return xp.mean(values, axis=-1)"
    assert sums_of_waves(ast.parse(f"{table}\ndef f(lags, omega, kind, xp):\n    {body}\n")) == ["f"]
    assert sums_of_waves(ast.parse("def f(u, kinds, xp):\n    return xp.mean(kinds[0](u), axis=-1)\n")) == []


@pytest.mark.parametrize(
    "body",
    [
        "return sums.over_blocks(angles, one, two)",
        "return xp.sum(Waves.of(angles).total(one, two), axis=-1)",
        "return xp.sum(turns.cos_sin(angles)[0], axis=-2)",
        "return math.cos(x) * xp.sum(one, axis=-1)",
        "return xp.sum(one * two, axis=-1)",
    ],
)
def test_calls_of_the_one_sum_are_not_sums_written_again(body):
    assert sums_of_waves(ast.parse(f"def f(x, one, two, angles):\n    {body}\n")) == []


# -- model types -------------------------------------------------------------------------------------------------------

WORDS = {"phi", "new"}  # model types, too: the kernel's function, and what is not old
OTHER_NAMES = {
    "rfrope/models/conformance.py",  # configs, written out as vectors
    "rfrope/exports/gguf.py",  # architectures of llama.cpp, which are not model types
}


def model_types_in(tree: ast.Module, names: set[str]) -> set[str]:
    """Strings that are the name of a model type, or its beginning where that is asked for."""
    found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    begun = {
        word.value
        for node in ast.walk(tree)
        if called(node) == "startswith"
        for word in ast.walk(node)
        if isinstance(word, ast.Constant) and isinstance(word.value, str) and len(word.value) > 3
    }
    return (found & names) | {word for word in begun if any(name.startswith(word) for name in names)}


def test_model_types_are_named_in_the_table_alone():
    names = set(model_types()) - WORDS
    places = {path.as_posix(): sorted(model_types_in(tree, names)) for path, tree in MODULES.items()}
    assert {place for place, found in places.items() if found} == OTHER_NAMES


@pytest.mark.parametrize(
    "line",
    [  # as they stood before
        'is_llama = told.model_type in ("llama", "mistral")',
        'bases = {"qwen2": 1e6}',
        'part = told.part if told.model_type == "phi3" else 1.0',
        'if told.model_type.startswith("qwen"):\n    pass',
    ],
)
def test_names_of_model_types_are_seen(line):
    assert model_types_in(ast.parse(line), set(model_types()))


# -- layers ------------------------------------------------------------------------------------------------------------


def table_of_layers() -> list[list[str]]:
    """Modules of each row of the table in CONTRIBUTING.md, from the top."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| \d+ \| (.*?) \|", text, re.MULTILINE)
    return [[name.rstrip("/") for name in re.findall(r"`([a-z_]+/?)`", row)] for row in rows]


def contract() -> list[list[str]]:
    """Modules of each layer of the first contract of import-linter, from the top."""
    tomllib = pytest.importorskip("tomllib")
    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[name.strip().removeprefix("rfrope.") for name in layer.split("|")] for layer in told]


def test_the_table_of_layers_is_the_contract_and_the_tree():
    table = table_of_layers()
    assert [sorted(row) for row in table] == [sorted(row) for row in contract()]
    tree = {path.parts[1].removesuffix(".py") for path in MODULES} - {"__init__"}
    assert {name for row in table for name in row} == tree
