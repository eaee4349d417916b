"""Regular files alone are read, to a bound; damaged ones, or those made to hurt, are refused in little memory."""

import io
import os
import socket
import sys
import types
import warnings
import zipfile

import bad_input
import numpy as np
import pytest
from campaign import campaign

import rfrope
from rfrope import engines, models
from rfrope._core import files
from rfrope.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="FIFOs, /dev and limits of memory are Linux's")
ROPE = rfrope.Rope([1.0, 0.5], context=8)


STRANGE = {
    "FIFO": os.mkfifo,
    "link to a FIFO": lambda path: (os.mkfifo(f"{path}.fifo"), os.symlink(f"{path}.fifo", path)),
    "endless device": lambda path: os.symlink("/dev/zero", path),
    "terminal": lambda path: os.symlink("/dev/tty", path),
    "folder": os.mkdir,
    "file longer than it says": lambda path: os.symlink("/proc/self/status", path),
    "nothing": lambda path: None,
}


def exported(engine, suffix):
    """A call of `engines.write` with the model to copy."""

    def call(path):
        if engine == "llama.cpp":
            pytest.importorskip("gguf")
        engines.write(path.parent / f"new{suffix}", ROPE, engine, model=path)

    return suffix, call


def command(suffix, words):
    """A command with a path, whose error goes to stderr."""

    def call(path):
        code = main(words.replace("PATH", str(path)).split(" "))
        raise OSError(f"code {code}") if code else AssertionError("it was read")

    return suffix, call


WORDS = {
    ".json": ("inspect PATH", "compare PATH", "plan PATH --context 64"),
    ".npz": ("inspect PATH", "export PATH --to vllm", "validate gaussian --qk PATH", "audit PATH PATH"),
    ".npy": ("audit PATH PATH",),
}
COMMANDS = [(suffix, words) for suffix, several in WORDS.items() for words in several]
READERS = {
    "load .npz": (".npz", rfrope.load),
    "load .safetensors": (".safetensors", rfrope.load),
    "from_config": (".json", rfrope.from_config),
    "compare": (".json", models.compare),
    "audit": (".json", lambda path: models.audit([1.0, 0.5], path)),
    "engines.write of a config": exported("vllm", ".json"),
    "engines.write of a GGUF": exported("llama.cpp", ".gguf"),
    **{f"rfrope {words} of {suffix}": command(suffix, words) for suffix, words in COMMANDS},
}


@pytest.mark.parametrize(
    ("reader", "kind"),
    [*((reader, "FIFO") for reader in READERS), *(("audit", kind) for kind in (*STRANGE, "socket") if kind != "FIFO")],
)
def test_what_is_no_regular_file_is_refused_at_once(reader, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket has at most 107 bytes
    suffix, call = READERS[reader]
    path = tmp_path / f"strange{suffix}"
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as held:
            held.bind(path.name)
    else:
        STRANGE[kind](path)
    with bad_input.watched(30), pytest.raises((OSError, ValueError)):
        call(path)


def test_a_config_has_a_bound(tmp_path, peak):
    path = tmp_path / "config.json"
    with open(path, "wb") as file:
        file.write(b"{}")
        file.truncate(2**35)  # holes take no place on the disk
    peak(anew=True)
    for call in (rfrope.from_config, exported("vllm", ".json")[1]):
        with pytest.raises(ValueError, match=f"^{path} has more than 16777216 bytes; expected a smaller file"):
            call(path)
    assert peak() < 2**26
    path.write_bytes(b"{}" + b" " * (2**24 - 2))
    with pytest.raises(ValueError, match=f"^{path} describes no RoPE"):
        rfrope.from_config(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_of_holes_is_asked_for_memory_before_it_is_read(suffix, tmp_path, peak):
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"rope{suffix}"
    rfrope.save(path, ROPE)
    with open(path, "r+b") as file:
        file.truncate(2**42)
    peak(anew=True)
    with pytest.raises(ValueError, match=r"would take .* GB of memory"):
        rfrope.load(path)
    assert peak() < 2**26


def test_a_file_that_grows_is_read_to_the_length_that_it_had(tmp_path, monkeypatch):
    path = tmp_path / "grows.npy"
    np.save(path, np.ones(4))
    whole, real = path.read_bytes(), os.fstat
    assert files.read_bytes(str(path)) == whole

    def grown(descriptor):
        """What the file was; behind the look somebody writes on."""
        found = real(descriptor)
        with open(path, "ab") as file:
            file.write(b"more")
        return found

    opened = files.open_regular(str(path))
    monkeypatch.setattr(files, "open_regular", lambda _: opened)
    monkeypatch.setattr(os, "fstat", grown)
    with pytest.raises(ValueError, match=rf"has more than {len(whole)} bytes; .* does not grow"):
        files.read_bytes(str(path))


def test_the_file_that_was_looked_at_is_the_one_that_is_read(tmp_path, monkeypatch):
    """Nobody can put a FIFO in its place between the look and the reading: there is one descriptor."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 1}')
    real = os.fstat

    def swapped(descriptor):
        found = real(descriptor)
        if path.is_file():
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "fstat", swapped)
    with bad_input.watched(30):
        assert rfrope.from_config(path)[0].n_blocks == 4


@campaign
def test_json_inside_a_file_has_the_bound_too(tmp_path):
    """Lists in memory are far longer than in a text."""
    path = tmp_path / "rope.npz"
    with pytest.raises(ValueError, match=r"^source has \d+ characters as JSON; expected at most 16777216"):
        rfrope.save(path, ROPE, source={"note": "x" * 2**24})
    assert not path.exists()
    long = np.asarray("[" + "[]," * 2**23 + "1]")
    np.savez(path, frequencies=np.ones(2), metadata=long)
    with pytest.raises(ValueError, match="does not say what it holds"):
        rfrope.load(path)


# -- NumPy's files -----------------------------------------------------------------------------------------------------


def header(shape, dtype="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two members of one name
        for name, content in members:
            archive.writestr(name, content)


VALUES = [np.arange(6.0).reshape(2, 3), np.zeros((0, 4)), np.asarray(3), np.asarray("text"), np.arange(3, dtype=">i2")]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("value", VALUES)
def test_arrays_come_back(tmp_path, value, order):
    value = np.asarray(value, order=order)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", a=value)
        found = files.read_arrays(str(tmp_path / "a.npz"), compressed=save is np.savez_compressed)["a"]
        assert (found.dtype, found.shape, found.tolist()) == (value.dtype, value.shape, value.tolist())
        assert found.flags.writeable
    np.save(tmp_path / "a.npy", value)
    assert files.read_array(str(tmp_path / "a.npy")).tolist() == value.tolist()


REFUSED = {
    "a larger shape": header((2**40, 64)) + bytes(64),
    "a negative shape": header((-2, -4)) + bytes(64),
    "no bytes each": header((2**62,), "<U0"),
    "long axes of nothing": header((2**62, 2**62, 0)),
    "objects": header((1,), "|O") + bytes(8),
    "fields": header((1,), [("a", "<f8")]) + bytes(8),
    "no header": b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8', ",
    "a later version": b"\x93NUMPY\x09\x00" + bytes(100),
    "nothing": b"",
    "a pickle": b"\x80\x04N.",
}


@pytest.mark.parametrize("case", REFUSED)
def test_members_that_are_no_arrays(tmp_path, case):
    zipped(tmp_path / "a.npz", [("a.npy", REFUSED[case])])
    (tmp_path / "a.npy").write_bytes(REFUSED[case])
    for read, name in ((files.read_arrays, "a.npz"), (files.read_array, "a.npy")):
        with pytest.raises(files.DamagedError):
            read(str(tmp_path / name))


def test_what_a_pickle_would_run_is_not_run(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    np.save(tmp_path / "a.npy", np.array([Harm()]))
    zipped(tmp_path / "a.npz", [("a.npy", (tmp_path / "a.npy").read_bytes())])
    for read, name in ((files.read_arrays, "a.npz"), (files.read_array, "a.npy")):
        with pytest.raises(files.DamagedError):
            read(str(tmp_path / name))
    assert not (tmp_path / "ran").exists()


def test_a_bomb_and_a_member_that_lies_about_its_size_cost_nothing(tmp_path, peak):
    """32 MB of zeros in a file of 32 kB: refused by `load`, and elsewhere by what it says."""
    path, zeros = tmp_path / "bomb.npz", header((2**22,)) + bytes(2**25)
    zipped(path, [("frequencies.npy", zeros), ("metadata.npy", b"")], zipfile.ZIP_DEFLATED)
    content, real = path.read_bytes(), len(zeros).to_bytes(4, "little")
    del zeros
    peak(anew=True)
    with pytest.raises(ValueError, match=r"bomb\.npz is damaged, .* compressed members"):
        rfrope.load(path)
    path.write_bytes(content.replace(real, (1000).to_bytes(4, "little")))
    with pytest.raises(files.DamagedError):
        files.read_arrays(str(path), compressed=True)
    assert peak() < 2**22


KINDS = {
    "it is empty": b"",
    "it is text": b"hello, world",
    "it is a GGUF": b"GGUF\x03\0\0\0",
    r"it is a single array \(\.npy\)": b"\x93NUMPY\x01\0",
    "it is a pickle, which is never loaded": b"\x80\x04N.",
    "it is a file of another kind": b"\x01\x02\x03",
}


@pytest.mark.parametrize("told", KINDS)
def test_other_files_are_named_in_our_own_words(tmp_path, told):
    (tmp_path / "a.npz").write_bytes(KINDS[told])
    with pytest.raises(ValueError, match=told) as caught:
        rfrope.load(tmp_path / "a.npz")
    assert "allow_pickle" not in str(caught.value)


def test_every_flipped_bit_and_cut_is_an_error_of_ours(tmp_path):
    """Or it changes nothing that is read: times and attributes of members."""
    path = tmp_path / "a.npz"
    rfrope.save(path, [0.5, 0.25], source={"seed": 1})
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    bits = rng.choice(8 * len(good), 200, replace=False)
    for bit in bits:
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << int(bit) % 8
        path.write_bytes(changed)
        try:
            found = rfrope.load(path)
        except ValueError:
            continue
        assert (found.frequencies.tolist(), found.source.to_dict()) == ([0.5, 0.25], {"seed": 1})
    for length in range(0, len(good), 97):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match="damaged"):
            rfrope.load(path)


def test_two_members_of_one_name_are_refused(tmp_path):
    """Another reader would take the other of them."""
    zipped(tmp_path / "a.npz", [("a.npy", header((1,)) + np.array([value]).tobytes()) for value in (1.0, 2.0)])
    with pytest.raises(files.DamagedError, match="two members with the same name"):
        files.read_arrays(str(tmp_path / "a.npz"))


# -- digests -----------------------------------------------------------------------------------------------------------


def test_what_differs_has_another_digest():
    """Inside of dicts, records and objects too; what an object has computed meanwhile does not matter."""

    def density(band):
        def law(w):
            bump = np.exp(-0.5 * (np.abs(w) - band) ** 2) / np.sqrt(8.0 * np.pi)
            return 0.995 * np.exp(-0.5 * w * w) / np.sqrt(2.0 * np.pi) + 0.005 * bump

        return rfrope.bochner.from_density(law, normalise=True)

    one, again, other = density(20.0), density(20.0), density(40.0)
    assert files.digest(one) == files.digest(again)
    assert files.digest(one) != files.digest(other)
    one(3.0)
    assert files.digest(one) == files.digest(again)
    long, zero = np.arange(9999.0), np.zeros(9999)
    for make in (lambda x: {"ids": x}, lambda x: [x], lambda x: types.SimpleNamespace(ids=x)):
        changed = long.copy()
        changed[5000] = -1.0
        assert files.digest(make(long)) == files.digest(make(long.copy())) != files.digest(make(changed))
    assert files.digest(zero) != files.digest(zero[:, None]) != files.digest(zero.astype(np.float32)[:, None])
