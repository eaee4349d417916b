"""What the package may not do, read from its source: no unpickling, no evaluation of text, no shell, no network.

Files that users name are opened in one place, which refuses what is not a regular file.
"""

import ast
import pathlib

import pytest

import rfrope

ROOT = pathlib.Path(rfrope.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {
    *("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "codeop", "pty", "socket"),
    *("ssl", "http", "urllib", "ftplib", "smtplib", "xmlrpc", "requests", "httpx", "aiohttp", "huggingface_hub"),
}
CALLS = {"eval", "exec", "compile", "execfile", "__import__", "input", "breakpoint", "open"}
ATTRIBUTES = {"system", "popen", "getoutput", "getstatusoutput", "urlopen", "urlretrieve", "unpickle"}
OPTIONS = {"shell", "allow_pickle", "trust_remote_code"}
FORBIDDEN = MODULES | CALLS | ATTRIBUTES | OPTIONS | {"subprocess", "numpy.load"}
# what is there for a reason, by file and name; docs/project/security.rst tells why
ALLOWED = {
    ("_backends/cpu/compiling.py", "pickle"),  # Numba's own cache of compiled loops is read as Numba reads it
    ("_core/files.py", "open"),
    ("_core/capacity.py", "open"),  # what the system says of its memory
    ("_backends/diagnostics.py", "subprocess"),  # `rfrope doctor` looks at CuPy in a process of its own
}


def uses(tree):
    """Names of what a module imports, calls and asks for that could be dangerous."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call):
            yield from called(ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords})


def called(name, options):
    """What is dangerous about one call."""
    yield from (option for option in options if option in OPTIONS and options[option] != "False")
    last = name.rpartition(".")[2]
    if (name in CALLS or last in ATTRIBUTES) and name != "platform.system":
        yield last
    if name in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
        yield "numpy.load"


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_nothing_dangerous_is_used_but_what_is_there_for_a_reason(path):
    found = {name for name in uses(ast.parse(path.read_text("utf-8"))) if name in FORBIDDEN}
    assert found == {name for place, name in ALLOWED if place == path.relative_to(ROOT).as_posix()}
