"""Names come from files that anybody may have written: nothing in them acts on a terminal, or reorders what is read."""

import json
import re

import browser
import numpy as np
import pytest
from campaign import campaign
from conftest import rows

import rfrope
from rfrope import models
from rfrope._backends import diagnostics
from rfrope._core.results import Copyable, Report, Table, Words
from rfrope.cli import main, page

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eknil\u2066\u200b\rPASSED\nPASSED"
SAFE = r"\x1b]0;title\x07\x1b[2J\x9b31m\u202eknil\u2066\u200b\rPASSED\nPASSED"
PART = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 128, "rope_theta": 10000.0}
LLAMA = {"model_type": "llama", **PART}
CONFIGS = {
    "a part": {"model_type": "own", f"{EVIL}_config": LLAMA, "text_config": LLAMA},
    "a model type": {**PART, "model_type": EVIL},
    "a kind of layers": {
        **LLAMA,
        "rope_parameters": {EVIL: {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}},
    },
    "a scheme": {**LLAMA, "rope_scaling": {"rope_type": EVIL, "factor": 2.0}},
    "a key": {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, EVIL: 3}},
    "a key of layers": {**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1e4}, EVIL: 3}},
    "nothing that is read": {f"{EVIL}_config": {"model_type": EVIL}},
    "a value": {**LLAMA, "rope_theta": EVIL},
    "too many parts": {},
}
for _ in range(12):
    CONFIGS["too many parts"] = {"model_type": "own", f"{EVIL}_config": CONFIGS["too many parts"]}


def is_shown(text: str) -> bool:
    """Whether every character but line ends is shown as itself."""
    return text.replace("\n", "").isprintable()


def assert_safe(text: str) -> None:
    """No character hides, and no name has made a line."""
    assert is_shown(text)
    assert not re.search(r"^PASSED(?!: largest)", text, re.MULTILINE)


COMMANDS = {
    "inspect": lambda path: ["inspect", path],
    "inspect --json": lambda path: ["inspect", path, "--json"],
    "inspect two": lambda path: ["inspect", path, path],
    "check": lambda path: ["check", path, path.replace("config", "other")],
    "compare": lambda path: ["compare", path],
    "plan": lambda path: ["plan", path, "--context", "256"],
    "audit": lambda path: ["audit", path.replace("config.json", "buffers.npz"), path],
    "export": lambda path: ["export", path, "--to", "vllm"],
    "export --part": lambda path: ["export", path, "--to", "vllm", "--part", EVIL],
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_print_no_escapes_of_a_config(command, config, tmp_path, capsys, quick_fits):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[config]))
    (tmp_path / "other.json").write_text(json.dumps({**LLAMA, "rope_theta": 7.0}))
    ladders = {f"{EVIL}.inv_freq": rfrope.geometric(8), "model.inv_freq": rfrope.geometric(8, base=7.0)}
    np.savez(tmp_path / "buffers.npz", **ladders)
    code = main(COMMANDS[command](str(path)))
    out, err = capsys.readouterr()
    assert out or err
    assert code in (0, 1, 2)
    if command != "inspect --json":
        assert_safe(out)
    assert_safe(err)


@campaign
def test_the_name_of_a_part_is_shown_with_escapes(tmp_path, capsys, monkeypatch, quick_fits):
    monkeypatch.setenv("COLUMNS", "1000")
    path, html = tmp_path / "config.json", tmp_path / "page.html"
    path.write_text(json.dumps(CONFIGS["a part"]))
    for command in ("inspect", "compare", "plan"):
        assert main([*COMMANDS[command](str(path)), "--html", str(html), "--force"]) == 0
        assert SAFE in capsys.readouterr().out, command
        text = html.read_text("utf-8")
        assert is_shown(text.replace("\t", ""))
        assert SAFE in json.dumps(browser.parts_of(text)).replace("\\\\", "\\")


def strings(value):
    """All texts in some data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


def test_no_text_of_a_page_hides_anything():
    parts = [Table([(EVIL, "b"), ("c", EVIL)], EVIL, note=EVIL), Copyable(EVIL, f"two\nlines {EVIL}"), Words([EVIL])]
    text = page.render(EVIL, page.list_parts(Report(parts, EVIL[::-1])), EVIL)
    found = [*strings(browser.parts_of(text))]
    assert len(found) > 6
    for one in (text.replace("\t", ""), *found):
        assert is_shown(one)
    assert any(one.startswith("two\nlines ") for one in found)  # its lines stay


def test_python_shows_no_escapes_of_a_config():
    for rope in rfrope.from_config(CONFIGS["a part"]):
        assert "".join([repr(rope), rope.source.model.name, rope.source.model.model_type]).isprintable()
    assert rfrope.from_config(CONFIGS["a model type"])[0].source.model.model_type == SAFE
    compared = models.compare(CONFIGS["a part"])
    found = models.audit({f"{EVIL}.inv_freq": rfrope.geometric(8, base=7.0)}, rfrope.geometric(8))
    rope = rfrope.Rope([1.0], pairing=None, source={"note": EVIL, EVIL: EVIL})
    for one in (compared, found, *compared.ropes, *found.findings):
        assert_safe(str(one))
    for one in (compared, found):
        assert_safe(one._repr_html_())
    with pytest.raises(ValueError, match=r"rope\.pairing is None") as caught:
        rope.rotate(np.ones(2), 1)
    assert str(caught.value).isprintable()


def test_errors_of_files_show_no_escapes(tmp_path):
    path = tmp_path / "rope.npz"
    good = {"units": "radians per unit of position", "shape": [2], "dtype": "float64", "rfrope": "0"}
    for held in (
        {EVIL: np.ones(2)},
        {"metadata": json.dumps({"format": 10**300, "units": EVIL})},
        {"metadata": json.dumps({"format": 2, "source": {}, "rope": {}, **good, "units": EVIL, "shape": [EVIL]})},
        {"metadata": json.dumps({"format": 1, "provenance": {}, **good, "dtype": EVIL})},
        {EVIL: np.array([None], dtype=object)},
    ):
        np.savez(path, **({"frequencies": np.ones(2)} | held if "metadata" in held else held))
        with pytest.raises(ValueError, match=r"rope\.npz") as caught:
            rfrope.load(path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


def test_words_of_the_command_line_are_printed_with_escapes(tmp_path, capsys):
    folder = tmp_path / "\x1b[31m"
    folder.mkdir()
    path = folder / "rope.npz"
    rfrope.save(path, rfrope.Rope([1.0, 0.5], context=8))
    assert main(["export", str(path), "--to", "vllm", "-o", str(folder / "new.json")]) == 0
    assert_safe(capsys.readouterr().out)
    assert main(["inspect", str(folder / EVIL)]) == 2
    with pytest.raises(SystemExit):
        main(["inspect", "--" + EVIL])
    assert is_shown(capsys.readouterr().err)


@pytest.mark.parametrize(("words", "ends"), rows("cli/escapes.json", "names"))
def test_no_line_is_made_by_the_name_of_a_file(words, ends, tmp_path, run, quick_fits):
    """A folder that a pattern of the shell found may have any name; so may what an archive holds."""
    folder = tmp_path / EVIL
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    np.savez(folder / "rope.npz", **{EVIL: np.ones(3)})
    files = ("config.json", "rope.npz", "new")
    code, out, err = run(*(folder / word if word.startswith(files) else word for word in words.split()))
    assert code == ends
    assert_safe(out)
    assert_safe(err)


def test_the_doctor_prints_what_libraries_say_with_escapes(monkeypatch, capsys):
    found = diagnostics.Diagnosis(EVIL, False, EVIL, EVIL, EVIL)
    monkeypatch.setattr(diagnostics.Diagnostic, "diagnose", lambda self: found)
    assert main(["doctor"]) == 0
    assert is_shown(capsys.readouterr().out)
