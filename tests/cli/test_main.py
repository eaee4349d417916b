"""The command line as a program: exit codes, bad input, terminals, help, interrupts, and the page that documents it."""

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
from conftest import rows
from packages import WARNINGS
from published import BY_MODEL

import rfrope
from rfrope import cli
from rfrope._core.results import COPIED
from rfrope.cli import main, shared

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "howto" / "command_line.rst"
COMMANDS = ("check", "validate", "design", "inspect", "plan", "export", "compare", "audit", "heads", "doctor")

BASES = rows("cli/refused.json", "commands")

REFUSED = [(words.format(model="{model}", **BASES), said) for words, said in rows("cli/refused.json", "refused")]
REFUSED = [pytest.param(*row, id=row[0], marks=WARNINGS if "{model}" in row[0] else ()) for row in REFUSED]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_is_refused(run, folder, request, words, said):
    """By code 2, with one line on stderr, and nothing written.

    A wrong word in one option alone, as ``--seed x`` or a file that is not there, is the sweep's of `bad_commands.py`.
    """
    words = shlex.split(words.format(model=request.getfixturevalue("model")) if "{model}" in words else words)
    before = sorted(os.listdir())
    found, out, err = run(*words)
    assert (found, out) == (2, "")
    assert re.search(rf"^rfrope( {words[0]})?: error: ", err, re.MULTILINE)
    assert said in err
    assert "Traceback" not in err
    assert sorted(os.listdir()) == before


OUTPUTS = re.findall(
    r"^    \$ rfrope (\S+ .*)\n((?:(?:    (?!\$ ).*)?\n)+?)(?=^\S|    \$)",
    PAGE.read_text("utf-8") if PAGE.is_file() else "",
    re.MULTILINE,
)


@campaign
@pytest.mark.parametrize(
    ("words", "block"), [one for one in OUTPUTS if one[1].strip()], ids=[w for w, b in OUTPUTS if b.strip()]
)
def test_the_outputs_on_the_documentation_page(run, folder, kept_fits, monkeypatch, words, block):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(shared, "LINES", 25)
    os.replace("qwen.json", "config.json")
    wanted, _, rest = textwrap.dedent(block).strip().partition("\n...")
    code, out, _ = run(*shlex.split(words))
    assert code == (1 if words.startswith("check") else 0)
    assert out.strip().startswith(wanted) if rest or wanted != textwrap.dedent(block).strip() else out.strip() == wanted


MARKS = {"model": WARNINGS, "campaign": campaign}


def lines(table):
    """Lines of commands, with marks; MODEL stands for a folder with a model, ``{}`` for a config."""
    return [
        pytest.param(words, marks=MARKS[marks[0]] if marks else ()) for words, *marks in rows("cli/lines.json", table)
    ]


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("words", lines("wide"))
def test_no_line_is_wider_than_the_terminal(run, monkeypatch, folder, config, quick_fits, request, words, width):
    words = words.replace("MODEL", str(request.getfixturevalue("model"))) if "MODEL" in words else words
    for model in ("Llama 3.1 8B", "gpt-oss-20b", "Qwen2.5 7B with YaRN") if "{}" in words else ("Llama 2 7B",):
        name = config(f"{model}.json", BY_MODEL[model].config)
        monkeypatch.setenv("COLUMNS", str(width))
        code, out, _ = run(*shlex.split(words.format(shlex.quote(name))))
        assert code in (0, 1)  # check and audit find something
        shown = [line for line in out.splitlines() if not line.startswith(COPIED)]
        assert not [line for line in shown if len(line) > width and " " in line.strip()]  # single words may


def heights(shown):
    """Return the rows that lines take on a terminal of 80 columns."""
    return sum(max(1, -(-len(line) // 80)) for line in shown)


@pytest.mark.parametrize("words", lines("long"))
def test_a_text_has_25_rows_until_all_are_asked_for(run, monkeypatch, folder, quick_fits, request, words):
    monkeypatch.setenv("COLUMNS", "80")
    words = words.replace("MODEL", str(request.getfixturevalue("model"))) if "MODEL" in words else words
    command, *others = words.split()
    whole = run(command, *others, "--all")[1].splitlines()
    monkeypatch.setattr(shared, "LINES", 25)
    assert run(command, *others, "--all")[1].splitlines() == whole
    shown = run(command, *others)[1].splitlines()
    laws = [at - 1 for at, line in enumerate(whole) if line.startswith("Nearest law of")]
    whole = whole[: laws[0]] if laws else whole  # of `compare`, which take long: made for --all alone
    if heights(whole) > 25:
        whole = [*whole[: len(shown) - 1], f"({len(whole) - len(shown) + 1} more lines with --all)"]
    assert shown == whole
    assert heights(shown) <= 25
    assert not shown[0].endswith(":")  # the verdict, not a heading


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
    said = b"rfrope: compiling for the first run on this machine; this takes some seconds"
    inspect = ("inspect", "--base", "1e4", "--head-dim", "8", "--context", "16")
    for words, errors in ((("export", "--help"), []), (inspect, [said]), (inspect, []), ((*inspect, "--json"), [])):
        done = program(*words, NUMBA_CACHE_DIR=str(tmp_path))
        assert (done.returncode, done.stderr.splitlines()) == (0, errors), words


@campaign
def test_exit_codes_leave_the_process_and_json_needs_no_greek_letters():
    done = program("validate", "gausian")
    assert (done.returncode, done.stdout, b"Traceback" in done.stderr) == (2, b"", False)
    assert b"gausian" in done.stderr
    done = program("validate", "gaussian", "--samples", "4096", "--trials", "1024", "--json", PYTHONIOENCODING="ascii")
    rows = json.loads(done.stdout)["results"][0]["rows"]
    assert {row["quantity"] for row in rows} == {"Φ", "Φ₂", "E sin", "E S", "Var S"}


def test_a_terminal_without_greek_letters_is_no_reason_to_stop(monkeypatch):
    """What it cannot show is replaced; arguments that are not given are those of the process."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "argv", ["rfrope", "design", "gaussian", "--head-dim", "8", "--context", "16"])
    assert cli.main() == 0
    screen.flush()
    shown = screen.buffer.getvalue().decode()
    assert "?" in shown
    assert "gaussian" in shown


@pytest.mark.campaign
def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "rfrope", "export", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=HANGS)) == (b"", 0)


def test_completion():
    shtab = pytest.importorskip("shtab", reason="shtab is not installed")
    out = shtab.complete(cli.make_parser(), "bash")
    assert all(name in out for name in (*COMMANDS, "--head-dim"))


def test_help_and_version(run, says):
    assert run() == run("--help")
    for command in ([], *([name] for name in COMMANDS)):
        out = says(*command, "--help")
        assert re.search(r"^usage: rfrope.*Exit codes?: 0.*Examples?: rfrope ", " ".join(out.split()))
    assert run("--version")[:2] == (0, f"rfrope {rfrope.__version__}\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (MemoryError(), 2, "error: out of memory"),
        (ValueError(), 2, "error: ValueError"),
        (KeyboardInterrupt(), 130, "interrupted; no file was left half written"),
    ],
)
def test_an_error_without_a_message_says_what_it_is(run, monkeypatch, error, code, said):
    monkeypatch.setattr("rfrope.cli.validate.validate", Mock(side_effect=error))
    assert run("validate", "gaussian") == (code, "", f"rfrope validate: {said}\n")


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
