"""The command line as a program: exit codes, bad input, terminals, help, interrupts, and the page that documents it."""

from __future__ import annotations

import io
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
from unittest.mock import Mock

import pytest
from campaign import HANGS, campaign, interrupted
from published import BY_MODEL

import rfrope
from rfrope import cli
from rfrope.cli import main

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "command_line.rst"
COMMANDS = ("validate", "design", "inspect", "plan", "export", "compare", "audit", "diff", "heads", "kernels", "doctor")
FAST = ["validate", "gaussian", "--samples", "4096", "--trials", "1024"]
CHECK, DESIGN = "validate gaussian --samples 256 --trials 64", "design gaussian --head-dim 32 --context 256"
BASE = "inspect --base 1e4 --head-dim 32 --context 512"
BAD = {
    "nonsense": "usage: rfrope",
    "doctor cupy": "usage: rfrope",
    "kernels matern gausian": "unknown kernel 'gausian'; did you mean 'gaussian'? Expected one of 'gaussian', 'cauchy'",
    # validate
    "validate 'gaussian(scale=-1)'": "scale is -1",
    "validate 'gaussian; cauchy'": "cannot read kernel",
    "validate gaussian --samples -5": "--samples is -5; expected a whole number from 2",
    "validate gaussian --trials 3": "--trials is 3; expected a whole number from 4",
    "validate gaussian --seed x": "argument --seed: 'x' is not a whole number",
    f"{CHECK} --seed -1": "--seed is -1; expected None, a non-negative int",
    f"{CHECK} --blocks 33": "--blocks is 33; expected a whole number from 1 to 32",
    f"{CHECK} --alpha 1": "--alpha is 1.0; expected a number between 0 and 1",
    f"{CHECK} --alpha nan": "--alpha is nan",
    f"{CHECK} --pairing halves": "argument --pairing",
    f"{CHECK} --qk missing.npz": "--qk missing.npz: No such file or directory",
    f"{CHECK} --qk damaged.npz": "--qk damaged.npz: ",
    f"{CHECK} --qk none.npz": "--qk none.npz: holds weights (3,); expected arrays q and k",
    f"{CHECK} --html page.txt": "--html page.txt: expected a name that ends in .html",
    # design
    "design gaussian --head-dim 63 --context 64": "--head-dim is 63; expected an even number",
    "design gaussian --head-dim 64 --context 1": "--context is 1; expected a whole number from 2",
    "design gaussian --head-dim 64 --context 4k": "argument --context: '4k' is not a whole number",
    "design gaussian --head-dim 64 --context 64,48": "--context is (64, 48); expected one number or 1, one for each",
    "design gaussian --head-dim 4096 --context 64 --design optimised": "expected at most 1024 unknowns with design",
    "design gaussian 'gaussian(ndim=2)' --head-dim 8 --context 9": "has kernels with [1, 2] axes",
    "design gaussian cauchy --head-dim 8 --context 9 --heads 3": "--heads is 3 but kernel has 2 kernels",
    "design sinc --head-dim 8 --context 9 --heads 2 --ladder 8:64": "sinc(bandwidth=1.0), which has no single scale",
    "design 'gaussian(scale=1e-60)' --head-dim 8 --context 16 --dtype float32": "--dtype float32: the frequencies go",
    "design 'gaussian(scale=1e50)' --head-dim 8 --context 16 --dtype float32": "--dtype float32: the frequencies go",
    f"{DESIGN} --heads 0": "--heads is 0; expected a whole number from 1",
    f"{DESIGN} --design orthogonal": "--design is 'orthogonal' but gaussian(scale=1.0) has one axis",
    f"{DESIGN} --design Optimized": "--design: 'Optimized' is unknown; did you mean 'optimised'? Expected one of 'iid'",
    f"{DESIGN} --norm sup": "--norm is 'sup' but design is 'auto'",
    f"{DESIGN} --dtype float16": "--dtype",
    f"{DESIGN} --ladder 8:512": "--ladder is (8.0, 512.0); expected a single kernel and heads with it",
    f"{DESIGN} --heads 2 --ladder 8": "argument --ladder: '8' is not a range; expected two numbers",
    f"{DESIGN} --heads 2 --ladder 0:8": "--ladder[0] is 0.0; expected a positive finite number",
    f"{DESIGN} -o set.txt": "-o set.txt: path is 'set.txt'; expected a name that ends in .npz",
    f"{DESIGN} --plot set.gif": "--plot set.gif: expected a name that ends in .png",
    # inspect
    "inspect": "no frequencies to inspect; expected a config.json, a file of frequencies, or --base with --head-dim",
    "inspect --base 1e4 --head-dim 8": "--base 10000: expected --head-dim and --context with it",
    "inspect --base 0 --head-dim 8 --context 8": "--base is 0.0; expected a positive finite number",
    "inspect --base ten --head-dim 8 --context 8": "argument --base: invalid float value: 'ten'",
    "inspect --base 1e4 --head-dim 7 --context 8": "--head-dim is 7; expected an even number",
    "inspect --head-dim 8": "--head-dim 8: expected it with --base",
    "inspect meta-llama/Llama-3.1-8B": "there is no such file or folder here, and nothing is downloaded; expected",
    "inspect nowhere.npz": "nowhere.npz: there is no such file",
    "inspect broken.json": "broken.json",
    "inspect bert.json": "RoPE",
    "inspect bare.json": "bare.json gives no context; expected --context",
    "inspect no_context.npz": "no_context.npz holds no context; expected --context",
    "inspect plane.npz --context 4,4,4": "--context has 3 numbers; expected one, or 2",
    "inspect plane.npz --context 1": "--context is 1; expected a whole number from 2",
    "inspect config.json --context 4,4": "--context is (4, 4): a model's config has one axis; expected one number",
    "inspect config.json --seq-len 0": "--seq-len is 0; expected a whole number from 1",
    f"{BASE} --seq-len 9": "--seq-len 9: expected it with a SOURCE",
    # plan
    "plan config.json --context 256": "--context is 256; expected more than the 256 trained positions",
    "plan config.json --context 999 --trained 1": "--trained is 1; expected a whole number from 2",
    "plan config.json --context 999 --method su": "--method su: name is 'su'; expected one of 'yarn'",
    "plan config.json --context 999 --part text": "--part text: config.json has a RoPE for the whole model; expected",
    "plan layers.json --context 999 --part text": "--part text: layers.json has a RoPE for 'full_attention', 's",
    "plan layers.json --context 999 --part sliding_attention": "has nothing to plan: sliding_attention sees 64 positi",
    "plan config.json --context 999 -o rope.npz": "rope.npz exists; expected a new name, or --force",
    "plan no_context.npz --context 999": "has nothing to plan: it gives no context; expected --trained",
    "plan bare.json --context 999": "bare.json has nothing to plan: it gives no context; expected --trained",
    "plan vision.json --context 999": "nothing to plan: it turns by the two axes of a picture",
    # export
    "export --to vllm": "expected FILE and --to ENGINE, or --list, or --conformance DIR",
    "export rope.npz": "expected FILE and --to ENGINE",
    "export rope.npz --to vlm": "argument --to: 'vlm' is unknown; did you mean 'vLLM'? Expected one of 'trans",
    "export rope.npz --to vllm --model config.json": "expected -o with them",
    "export rope.npz --to vllm --part a": "expected -o with them",
    "export rope.npz --to vllm --dtype float16": "--dtype is 'float16', which vLLM does not use",
    "export rope.npz --to vllm -o new.txt": "-o new.txt: path is 'new.txt'; expected for vLLM",
    "export rope.npz --to vllm -o new.json --model none": "-o new.json: none: ",
    "export rope.npz --to llama.cpp -o new.gguf": "model is None; expected for llama.cpp the GGUF to copy",
    "export layers.json --to json": "has a RoPE for 'full_attention', 'sliding_attention'; expected one of them as --p",
    # compare
    "compare qwen.json --engine vlm": "--engine: 'vlm' is unknown; did you mean 'vLLM'? Expected one of 'trans",
    "compare qwen.json --seq-len 0": "--seq-len is 0; expected a whole number from 1",
    "compare missing.json": "there is no such file",
    "compare": "SOURCE",
    # audit
    "audit config.json qwen.json": "FILE config.json: expected a name that ends in .npy or .npz",
    "audit missing.npz qwen.json": "FILE missing.npz: No such file or directory",
    "audit damaged.npz qwen.json": "FILE damaged.npz: File is not a zip file",
    "audit objects.npy qwen.json": "pickled objects are never loaded",
    "audit none.npz qwen.json": "holds no frequencies or tables of a RoPE",
    "audit right.npy none.npz": "expected what rfrope.save writes",
    "audit right.npy missing": "missing",
    # diff
    "diff qwen.json": "NEW",
    "diff qwen.json missing.json": "there is no such file",
    "diff qwen.json broken.json": "is not valid JSON",
    "diff qwen.json config.json --tolerance 0": "--tolerance is 0",
    "diff qwen.json config.json --seq-len 0": "--seq-len is 0; expected a whole number from 1",
    "diff qwen.json plane.npz": "expected (D,)",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input(run, folder, words):
    before = sorted(os.listdir())
    code, out, err = run(*shlex.split(words))
    assert (code, out) == (2, "")
    assert re.search(rf"^rfrope( {words.split()[0]})?: error: ", err, re.MULTILINE)
    assert BAD[words] in err
    assert "Traceback" not in err
    assert sorted(os.listdir()) == before


OUTPUTS = re.findall(
    r"^    \$ rfrope (\S+ .*)\n((?:(?:    (?!\$ ).*)?\n)+?)(?=^\S|    \$)",
    PAGE.read_text("utf-8") if PAGE.is_file() else "",
    re.MULTILINE,
)
LLAMA_3 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@campaign
@pytest.mark.parametrize(
    ("words", "block"), [one for one in OUTPUTS if one[1].strip()], ids=[w for w, b in OUTPUTS if b.strip()]
)
def test_the_outputs_on_the_documentation_page(run, folder, config, kept_fits, monkeypatch, words, block):
    monkeypatch.setenv("COLUMNS", "80")
    if words.startswith("plan"):
        config("config.json", LLAMA_3)
    elif words.startswith(("compare", "audit", "diff")):
        os.replace("qwen.json", "config.json")
    os.mkdir("llama-3.1-8b")
    longer = {"max_position_embeddings": 131_072, "rope_scaling": SCALING | {"rope_type": "llama3"}}
    config("llama-3.1-8b/config.json", LLAMA_3 | longer)
    wanted, _, rest = textwrap.dedent(block).strip().partition("\n...")
    code, out, _ = run(*shlex.split(words))
    assert code == (1 if words.startswith(("audit", "diff")) else 0)
    assert out.strip().startswith(wanted) if rest or wanted != textwrap.dedent(block).strip() else out.strip() == wanted


LINES = (
    "validate gaussian 'matern(nu=0.5, scale=16)' --samples 256 --trials 64 --full",
    "design 'matern(nu=1.5)' --head-dim 16 --heads 3 --ladder 8:512 --context 64 -o new.npz --force",
    "inspect plane.npz --context 16",
    "inspect --base 10000 --base 500000 --head-dim 128 --context 512",
    "inspect {}",
    "inspect {} layers.json --context 4096",
    "plan {} --context 2000000",
    "compare {} --sources",
    "export {} --to json",
    "diff {} qwen.json",
    "audit wrong.npz qwen.json",
    "export --list",
    "kernels",
    pytest.param("doctor", marks=campaign),
)


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("words", LINES)
def test_no_line_is_wider_than_the_terminal(run_at, folder, config, quick_fits, words, width):
    for model in ("Llama 3.1 8B", "gpt-oss-20b", "Qwen2.5 7B with YaRN") if "{}" in words else ("Llama 2 7B",):
        name = config(f"{model}.json", BY_MODEL[model].config)
        run_at(width, *shlex.split(words.format(shlex.quote(name))))


def test_the_documentation_page_has_outputs():
    assert not PAGE.is_file() or sum(bool(block.strip()) for _, block in OUTPUTS) >= 8


# -- the process -------------------------------------------------------------------------------------------------------


def program(*arguments, **environment):
    """Run ``python -m rfrope`` in a process of its own."""
    command = [sys.executable, "-W", "error", "-m", "rfrope", *arguments]
    return subprocess.run(command, capture_output=True, env=os.environ | environment, timeout=HANGS)


def test_the_console_script_is_main():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="rfrope")
    assert script.load() is main


@campaign
def test_the_first_call_on_a_machine_says_that_it_compiles(tmp_path):
    """Once, on stderr; calls that compile nothing say nothing, and those do not that find it done."""
    pytest.importorskip("numba", reason="loops are compiled by Numba")
    said = b"rfrope: compiling, which only the first calls on a machine need; some seconds"
    inspect = ("inspect", "--base", "1e4", "--head-dim", "8", "--context", "16")
    for words, errors in ((("kernels",), []), (inspect, [said]), (inspect, []), ((*inspect, "--json"), [])):
        done = program(*words, NUMBA_CACHE_DIR=str(tmp_path))
        assert (done.returncode, done.stderr.splitlines()) == (0, errors), words


def test_exit_codes_leave_the_process():
    done = program("validate", "gausian")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"gausian" in done.stderr
    assert b"Traceback" not in done.stderr


@campaign
def test_json_without_greek_letters():
    done = program(*FAST, "--json", PYTHONIOENCODING="ascii")
    rows = json.loads(done.stdout)["results"][0]["rows"]
    assert {row["quantity"] for row in rows} == {"Φ", "Φ₂", "E sin", "E S", "Var S"}


def test_a_terminal_without_greek_letters_is_no_reason_to_stop(monkeypatch):
    """What it cannot show is replaced; arguments that are not given are those of the process."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "argv", ["rfrope", "kernels"])
    assert cli.main() == 0
    screen.flush()
    assert b"?" in screen.buffer.getvalue()
    assert "gaussian" in screen.buffer.getvalue().decode()


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "rfrope", "kernels"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=HANGS) == 0
    assert errors == b""


def test_completion(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, _, err = run("--print-completion", "bash")
    assert code == 2
    assert "pip install 'rfrope[completion]'" in err
    monkeypatch.undo()
    pytest.importorskip("shtab", reason="shtab is not installed")
    code, out, _ = run("--print-completion", "bash")
    assert code == 0
    assert all(name in out for name in (*COMMANDS, "--head-dim"))


def test_help_and_version(run):
    assert run() == run("--help")
    for command in ([], *([name] for name in COMMANDS)):
        code, out, err = run(*command, "--help")
        assert (code, err) == (0, "")
        assert re.search(r"^usage: rfrope.*Exit codes?: 0.*Examples?: rfrope ", " ".join(out.split()))
    assert run("--version")[:2] == (0, f"rfrope {rfrope.__version__}\n")


@pytest.mark.parametrize(("error", "said"), [(MemoryError(), "out of memory"), (ValueError(), "ValueError")])
def test_an_error_without_a_message_says_what_it_is(run, monkeypatch, error, said):
    monkeypatch.setattr("rfrope.cli.validate.validate", Mock(side_effect=error))
    assert run("validate", "gaussian") == (2, "", f"rfrope validate: error: {said}\n")


def test_an_interrupt_is_one_line(run, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("rfrope.cli.validate.validate", stop)
    code, out, err = run("validate", "gaussian")
    assert (code, out, err) == (130, "", "rfrope validate: interrupted; no file was left half written\n")


@campaign
def test_an_interrupt_of_the_process():
    """A real signal, while the trials run."""
    many = ["validate", "gaussian(scale=32)", "--samples", "4294967295"]
    code = (  # a job in the background would ignore the signal
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import contextlib, io; from rfrope.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "    main([*sys.argv[1:-1], '1000000'])\n"  # imports and Numba's compiler may lose an interrupt
        "print('ready', flush=True); sys.exit(main(sys.argv[1:]))"
    )
    returned, out, err = interrupted([sys.executable, "-c", code, *many])
    assert (returned, out) == (130, ""), err
    assert err == "rfrope validate: interrupted; no file was left half written\n"
