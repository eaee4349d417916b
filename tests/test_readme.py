"""README and documentation pages: their examples run, and their commands are those that CI runs."""

import ast
import doctest
import importlib
import json
import pathlib
import re
import shlex
import textwrap
import tomllib

import pytest
from campaign import sparse

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.rst"))
SLOW = ("proofs.rst", "limits.rst", "reading.rst", "inverse_design.rst", "designs.rst")  # statistics and searches


def blocks(language, page="README.md"):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_readme_examples_run(capsys, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("agg")
    monkeypatch.chdir(tmp_path)
    examples, names = blocks("python"), {}
    for example in [one for one in examples if not of_a_framework(one)]:
        exec(compile(example, "README.md", "exec"), names)
        assert len(example.splitlines()) <= 12
    told = capsys.readouterr().out
    first, _, second = told.partition("\n")
    assert re.fullmatch(r"this draw: .*; all draws: mean .*, standard deviation .*", first)
    assert second.startswith("64 frequencies for 128 features of a head, over a context of 131072 positions.\n")
    assert re.fullmatch(r"over 4096 positions: .* within \S+", told.splitlines()[-1])
    assert len(examples) == 5
    importlib.import_module("matplotlib.pyplot").close("all")


def test_from_readme_to_a_rope_that_is_saved_verified_exported_and_drawn(capsys, monkeypatch, tmp_path):
    """The path of a new user, in ten lines, and the same in a shell."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    (example,) = [one for one in blocks("python") if "rfrope.save(" in one]
    assert len(example.splitlines()) == 10
    exec(compile(example, "README.md", "exec"), {})
    pyplot.close("all")
    told = capsys.readouterr().out
    assert ": passed, 95 tests" in told
    assert "\nPASSED\n" in told
    rfrope = importlib.import_module("rfrope")
    held, config = rfrope.load("rope.npz"), json.loads(pathlib.Path("config.json").read_text("utf-8"))
    (exported,) = rfrope.from_config(config | {"model_type": "llama", "head_dim": 64})
    assert max(abs(exported.frequencies - held.frequencies)) < 1e-6
    assert pathlib.Path("rope.png").read_bytes().startswith(b"\x89PNG")
    shell = re.findall(r"^    (rfrope .+)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert [line.split()[1] for line in shell] == ["design", "validate", "export"]
    main = importlib.import_module("rfrope.cli").main
    few = {"validate": ["--samples", "4096", "--trials", "1024"]}
    for line in shell:
        words = shlex.split(line)[1:]
        assert main([*words, *few.get(words[0], ["--force"])]) == 0
    assert json.loads(pathlib.Path("config.json").read_text("utf-8")) == config
    assert "mean kernel" in pathlib.Path("rope.html").read_text("utf-8")


LINES = {"torch": "from rfrope.layers.torch ", "transformers": "from rfrope.integrations.transformers "}


def of_a_framework(example):
    """The library that an example begins with, where it is not one that the extra "test" brings."""
    return next((name for name, line in LINES.items() if example.startswith(line)), "")


def given(framework):
    """What the reader of three lines has already."""
    torch, rfrope = importlib.import_module("torch"), importlib.import_module("rfrope")
    if framework == "torch":
        return {"rfrope": rfrope, "q": torch.ones(1, 8, 16, 64), "k": torch.ones(1, 2, 16, 64)}
    transformers = importlib.import_module("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=4))
    return {"rfrope": rfrope, "model": model}


@pytest.mark.filterwarnings("ignore")  # of frameworks, while they are imported
@pytest.mark.parametrize("framework", ["torch", "transformers"])
def test_three_lines_for_a_framework_run(framework):
    for name in ("torch", framework):
        pytest.importorskip(name, reason=f"{name} is not installed")
    (example,) = [one for one in blocks("python") if of_a_framework(one) == framework]
    assert len([line for line in example.splitlines() if line]) == 3
    names = given(framework)
    exec(compile(example, "README.md", "exec"), names)
    if framework == "torch":
        expected = names["rfrope"].rotate(given("torch")["k"], range(100_000, 100_016), names["rfrope"].geometric(32))
        assert float((names["k"].detach() - expected).abs().max()) < 1e-6
    else:
        assert names["replacement"].attentions == 2
    page = (ROOT / "docs" / f"{framework}.rst").read_text("utf-8") if PAGES else ""
    code = re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", page, re.MULTILINE)
    assert len(code) > 1 or not PAGES
    exec(compile("\n".join(map(textwrap.dedent, code)), f"{framework}.rst", "exec"), {})


def test_the_example_of_rotate_in_pytorch_runs():
    """The docstring's own test passes over it, since the extra "test" does not bring PyTorch."""
    pytest.importorskip("torch", reason="torch is not installed")
    rotate = importlib.import_module("rfrope").rotate
    text = rotate.__doc__.replace("  # doctest: +SKIP", "")
    assert text.count(">>> import torch\n") == 1
    names = {"rotate": rotate}
    example = doctest.DocTestParser().get_doctest(text, names, "rotate", None, 0)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


@pytest.mark.skipif(not PAGES, reason="docs/ is not here")
def test_the_code_of_the_first_page_runs():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    page = (ROOT / "docs" / "index.rst").read_text("utf-8")
    (code,) = re.findall(r"^      \.\. code-block:: python\n\n((?:         .*\n|\n)+)", page, re.MULTILINE)
    names = {}
    exec(compile(textwrap.dedent(code), "index.rst", "exec"), names)
    assert names["q"].shape == (8, 128, 64)
    assert names["q"].dtype == torch.float32
    assert len([line for line in code.splitlines() if line.strip()]) <= 7


def designs_in(code):
    """The statements that call `rfrope.design`, without their layout."""
    statements = ast.parse(textwrap.dedent(code)).body
    return [ast.unparse(one) for one in statements if "rfrope.design(" in ast.unparse(one)]


@pytest.mark.skipif(not PAGES, reason="docs/ is not here")
def test_the_picture_of_the_first_page_is_that_of_its_code():
    page = (ROOT / "docs" / "index.rst").read_text("utf-8")
    (code,) = re.findall(r"^      \.\. code-block:: python\n\n((?:         .*\n|\n)+)", page, re.MULTILINE)
    (script,) = re.findall(r"sphx_glr_(plot_\w+)_001\.png", page)
    drawn = designs_in((ROOT / "examples" / "gallery" / f"{script}.py").read_text("utf-8"))
    assert len(drawn) == 1
    assert designs_in(code) == drawn


def test_readme_has_the_three_commands_that_ci_runs():
    commands = blocks("sh")
    ci = (ROOT / ".ci" / "run").read_text("utf-8") if (ROOT / ".ci").is_dir() else ""
    assert len(commands) == 3
    assert not ci or re.findall(r"readme_command (\d) \.venv-ci", ci) == ["1", "2", "3"]
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install ") for command in commands)
    assert commands[0].endswith("&& .venv/bin/rfrope validate\n")
    assert commands[1].endswith("&& OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n auto\n")
    assert commands[2].endswith("&& .venv/bin/sphinx-build -W -b html docs docs/_build/html\n")


def test_readme_links_lead_somewhere():
    links = re.findall(r"\]\((\S+?)\)", (ROOT / "README.md").read_text("utf-8"))
    assert links
    for link in links:
        assert link.startswith("docs/") or (ROOT / link).is_file()
        assert not PAGES or (ROOT / link).is_file()


@pytest.mark.parametrize("page", sparse(PAGES, lambda page: page not in SLOW))
def test_examples_of_documentation_page(page):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    outcome = doctest.testfile(str(ROOT / "docs" / page), module_relative=False, optionflags=flags, encoding="utf-8")
    assert outcome.failed == 0


GPU = ROOT / "docs" / "gpu.md"
needs_docs = pytest.mark.skipif(not GPU.is_file(), reason="docs/ is not here")


@needs_docs
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_examples_for_a_device_run_on_the_cpu(library):
    (example,) = [text for text in blocks("python", "docs/gpu.md") if text.startswith(f"import {library}\n")]
    if library == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    exec(compile(example.replace("cupy", "numpy").replace('"cuda"', '"cpu"'), "gpu.md", "exec"), {})


@needs_docs
def test_commands_for_a_device_exist():
    text = GPU.read_text("utf-8")
    lines = [line for block in blocks("sh", "docs/gpu.md") for line in block.splitlines()]
    lines += re.findall(r"`((?:pip|python|rfrope) [^`]+)`", text)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for line in lines:
        program, *words = shlex.split(line)
        if program == "pip":
            extra = re.fullmatch(r"rfrope\[(\w+)\]", words[-1])
            assert extra is None or extra[1] in extras, line
        elif program == "rfrope":
            assert {"doctor": {"--json"}, "validate": set()}[words[0]] >= set(words[1:]), line
        elif words[:2] == ["-m", "benchmarks.gpu"]:
            options = {word for word in words[2:] if word.startswith("--")}
            source = (ROOT / "benchmarks" / "gpu.py").read_text("utf-8")
            assert all(f'"{option}"' in source for option in options), line
        else:
            assert words[:2] == ["-m", "pytest"], line
            assert all((ROOT / word).exists() for word in words if word.startswith("tests")), line


@needs_docs
def test_no_speed_of_a_device_is_told_that_was_not_measured():
    performance = GPU.read_text("utf-8").partition("## Performance")[2]
    if "{include} gpu_table.md" in performance:
        table = (GPU.parent / "gpu_table.md").read_text("utf-8")
        assert table.startswith("<!-- Made by: python -m benchmarks.gpu")
    else:
        assert performance.strip().startswith("Not yet measured.")
        assert not re.search(r"\d", performance)
