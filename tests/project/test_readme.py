"""README and documentation pages: their examples run."""

import ast
import doctest
import importlib
import json
import pathlib
import re
import shlex
import textwrap

import pytest
from campaign import sparse

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.glob("[!_g]*/*.rst"))
SLOW = {f"explain/{name}.rst" for name in ("proofs", "proofs_bounds", "proofs_polar", "limits", "reading")}
SLOW |= {f"howto/{name}.rst" for name in ("inverse_design", "designs", "caches")}  # statistics and searches
needs_docs = pytest.mark.skipif(not PAGES, reason="docs/ is not here")


def blocks(language, page="README.md"):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def code_blocks(page):
    """Blocks of Python of a page that are no doctests, each with its caption."""
    text = (DOCS / page).read_text("utf-8")
    pattern = r"^( *)\.\. code-block:: python\n(?:\1   :caption: (.*)\n)?\n((?:\1   .*\n|\n)+)"
    return [(caption, textwrap.dedent(code)) for _, caption, code in re.findall(pattern, text, re.MULTILINE)]


def run(code, names, page):
    exec(compile(code, page, "exec"), names)
    return names


def test_readme_example_in_numpy_runs(capsys):
    run(blocks("python")[0], {}, "README.md")
    error, verdict = capsys.readouterr().out.splitlines()
    assert f"{float(error):.3f}" == re.search(r"how closely they match: (\S+)", blocks("python")[0])[1]
    assert verdict.startswith("matern(nu=1.5, scale=64.0): passed, ")


def test_readme_example_in_pytorch_runs():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    names = run(blocks("python")[1], {}, "README.md")
    torch.manual_seed(0)
    q, k = torch.randn(1, 32, 16, 64), torch.randn(1, 8, 16, 64)
    for turned, x in ((names["q"], q), (names["k"], k)):
        expected = names["rope"].rotate(x, torch.arange(100_000, 100_016))
        assert float((turned - expected).abs().max()) < 1e-6


def test_readme_commands_run(capsys, monkeypatch, tmp_path):
    (commands,) = blocks("console")
    monkeypatch.chdir(tmp_path)
    (config,) = re.findall(r"^config = (.*)$", blocks("python")[1], re.MULTILINE)
    pathlib.Path("config.json").write_text(json.dumps(ast.literal_eval(config)), "utf-8")
    main = importlib.import_module("rfrope.cli").main
    for line in commands.splitlines():
        program, *words = shlex.split(line)
        assert program == "rfrope"
        assert main(words) == 0
    told = capsys.readouterr().out
    for part in ("right: ", "Error of the mean kernel", "rope.npz"):
        assert part in told


@pytest.mark.filterwarnings("ignore")  # of frameworks, while they are imported
def test_a_model_takes_a_rope_as_the_readme_says():
    pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    (call,) = re.findall(
        r"`rfrope\.integrations\.transformers\.(replace_rotary\(model, rope\))`",
        (ROOT / "README.md").read_text("utf-8"),
    )
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=4))
    (rope,) = importlib.import_module("rfrope").from_config(model.config)
    module = importlib.import_module("rfrope.integrations.transformers")
    assert eval(call, {"model": model, "rope": rope, "replace_rotary": module.replace_rotary}).attentions == 2


def test_the_example_of_rotate_in_pytorch_runs():
    """The docstring's own test passes over it, since the extra "test" does not bring PyTorch."""
    pytest.importorskip("torch", reason="torch is not installed")
    rotate = importlib.import_module("rfrope").rotate
    text = rotate.__doc__.replace("  # doctest: +SKIP", "")
    assert text.count(">>> import torch\n") == 1
    names = {"rotate": rotate}
    example = doctest.DocTestParser().get_doctest(text, names, "rotate", None, 0)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


@needs_docs
@pytest.mark.filterwarnings("ignore")  # of frameworks, while they are imported
@pytest.mark.parametrize(
    "page", sparse(["index", "learn/quickstart", "howto/torch", "howto/transformers"], lambda page: page == "index")
)
def test_code_of_a_page_runs_from_top_to_bottom(page):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if page == "howto/transformers":
        pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    names = run("\n".join(text for _, text in code_blocks(f"{page}.rst")), {}, f"{page}.rst")
    if page == "index":
        torch.manual_seed(0)
        q, at = torch.randn(2, 1, 8, 128, 64)[0], range(10**6, 10**6 + 128)
        expected = names["rfrope"].rotate(q, at, names["rfrope"].geometric(32))
        assert float((names["q"] - expected).abs().max()) < 1e-6


@needs_docs
def test_from_a_kernel_to_a_rope_that_is_saved_verified_exported_and_drawn(capsys, monkeypatch, tmp_path):
    """The path of docs/learn/design_kernel.rst in ten lines, and the same in a shell."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    ((_, example),) = code_blocks("learn/design_kernel.rst")
    run(example, {}, "learn/design_kernel.rst")
    pyplot.close("all")
    told = capsys.readouterr().out
    assert ": passed, " in told
    assert "\nPASSED\n" in told
    rfrope = importlib.import_module("rfrope")
    held, config = rfrope.load("rope.npz"), json.loads(pathlib.Path("config.json").read_text("utf-8"))
    (exported,) = rfrope.from_config(config | {"model_type": "llama", "head_dim": 64})
    assert max(abs(exported.frequencies - held.frequencies)) < 1e-6
    assert pathlib.Path("rope.png").read_bytes().startswith(b"\x89PNG")
    text = (DOCS / "learn/design_kernel.rst").read_text("utf-8").partition("The same in a shell.")[2]
    shell = re.findall(r"^    (rfrope .+)$", text, re.MULTILINE)
    assert [line.split()[1] for line in shell] == ["design", "validate", "export"]
    main = importlib.import_module("rfrope.cli").main
    few = {"validate": ["--samples", "4096", "--trials", "1024"]}
    for line in shell:
        words = shlex.split(line)[1:]
        assert main([*words, *few.get(words[0], ["--force"])]) == 0
    assert json.loads(pathlib.Path("config.json").read_text("utf-8")) == config
    assert "mean kernel" in pathlib.Path("rope.html").read_text("utf-8")


def apply_rotary_emb(x, cos, sin):
    """What flash-attn's function of this name computes by default, for (batch, tokens, heads, head_dim)."""
    torch = importlib.import_module("torch")
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@needs_docs
@pytest.mark.filterwarnings("ignore")  # of the other libraries
@pytest.mark.parametrize(
    ("section", "peer"),
    [
        ("From Hugging Face code", "torch"),
        ("From rotary-embedding-torch", "rotary_embedding_torch"),
        ("From flash-attn", ""),
        ("From x-transformers", "x_transformers"),
    ],
)
def test_code_before_and_after_a_migration_gives_the_same(section, peer):
    pytest.importorskip("torch", reason="torch is not installed")
    if peer:
        pytest.importorskip(peer, reason=f"{peer} is not installed")
    page = (DOCS / "howto/migrate.rst").read_text("utf-8")
    assert f"\n{section}\n" in page
    code = code_blocks("howto/migrate.rst")
    sections = re.findall(r"^(From .+)\n-+$", page, re.MULTILINE)
    at = 1 + 2 * sections.index(section)
    (_, start), (first, before), (second, after) = code[0], *code[at : at + 2]
    assert (first, second, len(code)) == ("before", "after", 1 + 2 * len(sections))
    given = run(start, {}, "howto/migrate.rst")
    old, new = dict(given), run(after, dict(given), "howto/migrate.rst")
    if peer:
        run(before, old, "howto/migrate.rst")
    else:  # without a device, and by the formula of flash-attn
        lines = [line for line in before.splitlines() if "import" not in line]
        old |= {"apply_rotary_emb": apply_rotary_emb, "q": new["q"], "k": new["k"]}
        run("\n".join(lines).replace(', device="cuda"', ""), old, "howto/migrate.rst")
    for name in ("q_out", "k_out"):
        assert float((old[name] - new[name]).detach().abs().max()) < 3e-6
        assert float((old[name] - given[name[0]].reshape(old[name].shape)).detach().abs().max()) > 0.1


def test_readme_links_lead_somewhere():
    links = re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\"\s]+)", (ROOT / "README.md").read_text("utf-8"))
    assert links
    for link in links:
        assert link.startswith(("docs/", "examples/")) or (ROOT / link).is_file()
        assert not PAGES or (ROOT / link).exists()


@pytest.mark.parametrize("page", sparse(PAGES, lambda page: page not in SLOW))
def test_examples_of_documentation_page(page):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    outcome = doctest.testfile(str(ROOT / "docs" / page), module_relative=False, optionflags=flags, encoding="utf-8")
    assert outcome.failed == 0


@needs_docs
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_examples_for_a_device_run_on_the_cpu(library):
    (example,) = [text for text in blocks("python", "docs/howto/gpu.md") if text.startswith(f"import {library}\n")]
    if library == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    run(example.replace("cupy", "numpy").replace('"cuda"', '"cpu"'), {}, "howto/gpu.md")
