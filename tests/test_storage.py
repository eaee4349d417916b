"""Ropes on disk: round trips, sources, damaged files, and files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from campaign import HANGS

import rfrope
from rfrope import Rope, exports
from rfrope._core import files
from rfrope.storage import load, save

OMEGA = np.linspace(0.1, 0.7, 4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "set.npz"


def rewritten(path, *, frequencies=None, **changes):
    """Write a file whose metadata is not as `save` has it, with the digest of these; None removes an entry."""
    with np.load(path, allow_pickle=False) as archive:
        held, metadata = archive["frequencies"], json.loads(str(archive["metadata"]))
    held = held if frequencies is None else frequencies
    metadata = {name: value for name, value in (metadata | {"digest": None} | changes).items() if value is not None}
    if "digest" not in metadata and metadata.get("format") != 1:
        metadata["digest"] = hashlib.sha256(json.dumps(metadata).encode() + held.tobytes()).hexdigest()
    np.savez(path, frequencies=held, metadata=json.dumps(metadata))


# -- round trips -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (4, 2), (3, 4, 1), (2, 3, 4, 2), (0,)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_round_trip(path, shape, dtype):
    omega = np.random.default_rng(0).normal(size=shape).astype(dtype)
    save(path, omega)
    loaded = load(path)
    assert isinstance(loaded, Rope)
    assert (loaded.frequencies.dtype, loaded.frequencies.shape) == (omega.dtype, shape)
    assert np.array_equal(loaded.frequencies, omega)
    assert (loaded.source.to_dict(), loaded.pairing, loaded.attention_factor, loaded.context) == ({}, "half", 1.0, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"pairing": "interleaved", "head_dim": 100, "attention_factor": 1.25, "context": 4096},
        {"pairing": None, "sections": (1, 3), "interleaved": False, "context": (64, 32)},
        {"sections": (2, 2), "interleaved": True},
    ],
)
def test_every_field_comes_back(path, fields):
    rope = Rope(OMEGA, **fields, source={"seed": 1})
    save(path, rope, source={"kernel": "gaussian(scale=1.0)"})
    loaded = load(path)
    for name in ("pairing", "head_dim", "attention_factor", "sections", "interleaved", "context"):
        assert getattr(loaded, name) == getattr(rope, name)
        assert type(getattr(loaded, name)) is type(getattr(rope, name))
    assert loaded.source.to_dict() == {"seed": 1, "kernel": "gaussian(scale=1.0)"}
    assert rope.source.to_dict() == {"seed": 1}


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_file_that_version_0_1_wrote(suffix):
    """By ``rfrope.save(path, sample(kernel, 8, rng=3), kernel=kernel, seed=3, context=4096, note="Φ")`` of 0.1."""
    if suffix == "safetensors":
        pytest.importorskip("safetensors", reason="safetensors is not installed")
    loaded = load(pathlib.Path(__file__).with_name("tables") / f"version_0_1.{suffix}")
    assert loaded.source.to_dict() == {"kernel": "gaussian(scale=32.0)", "seed": 3, "context": 4096, "note": "Φ"}
    assert (loaded.context, loaded.pairing, loaded.head_dim) == (4096, "half", 16)
    assert np.array_equal(loaded.frequencies, rfrope.sample("gaussian(scale=32)", 8, rng=3))


def test_the_source_comes_back_as_plain_values(path):
    kernel = rfrope.kernel("matern", nu=1.5, scale=(8.0, 4.0), ndim=2)
    save(path, OMEGA, source={
        "kernel": kernel, "seed": np.int64(3), "rms": np.float32(0.5), "note": "Φ, \ud800", "none": None, "yes": True,
        "path": "p", "frequencies": (1, 2), "nested": {"kernels": [kernel], "x": np.arange(2)},
    })  # fmt: skip
    held = load(path).source.to_dict()
    assert held == {"kernel": repr(kernel), "seed": 3, "rms": 0.5, "note": "Φ, \ud800", "none": None, "yes": True,
                    "path": "p", "frequencies": [1, 2], "nested": {"kernels": [repr(kernel)], "x": [0, 1]}}  # fmt: skip
    assert type(held["seed"]) is int
    assert rfrope.kernels.parse(held["kernel"]) == kernel


def test_metadata_tells_units_and_version_to_a_reader_without_rfrope(path):
    save(path, OMEGA, source={"seed": 1})
    with np.load(path, allow_pickle=False) as archive:
        metadata = json.loads(str(archive["metadata"]))
    assert len(metadata.pop("digest")) == 64
    fields = {"pairing": "half", "head_dim": None, "attention_factor": 1.0, "sections": None, "interleaved": False,
              "context": None, "polar": False}  # fmt: skip
    assert metadata == {"format": 2, "rfrope": rfrope.__version__, "units": "radians per unit of position",
                        "shape": [4], "dtype": "float64", "rope": fields, "source": {"seed": 1}}  # fmt: skip


def test_one_set_one_file(tmp_path):
    save(tmp_path / "a.npz", OMEGA, source={"seed": 1})
    save(str(tmp_path / "b.npz"), OMEGA.tolist(), source={"seed": 1})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize("omega", [OMEGA[::-2], np.asfortranarray(np.arange(6.0).reshape(2, 3)), OMEGA.astype(">f8")])
def test_strides_and_byte_order_do_not_matter(path, omega):
    save(path, omega)
    assert np.array_equal(load(path).frequencies, omega)
    assert load(path).frequencies.dtype == np.float64


@pytest.mark.parametrize("library", ["torch", "array_api_strict", "jax.numpy"])
def test_other_libraries(path, library):
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    save(path, xp.asarray(OMEGA.astype(np.float32)))
    loaded = load(path, xp=xp).frequencies
    assert type(loaded) is type(xp.asarray([0.0]))
    assert loaded.dtype == xp.float32
    assert np.array_equal(np.asarray(loaded), OMEGA.astype(np.float32))


def test_bfloat16_is_stored_as_float32(path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    omega = OMEGA.astype(ml_dtypes.bfloat16)
    save(path, omega)
    assert load(path).frequencies.dtype == np.float32
    assert np.array_equal(load(path).frequencies, omega.astype(np.float32))


def test_a_dtype_on_loading(path):
    save(path, OMEGA)
    assert load(path, dtype="float32").frequencies.dtype == np.float32
    with pytest.raises(TypeError, match="dtype is 'int32'"):
        load(path, dtype="int32")


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD_FREQUENCIES = {
    "NaN": (np.asarray([np.nan]), ValueError, "NaN or infinity"),
    "infinity": (np.asarray([1.0, np.inf]), ValueError, "NaN or infinity"),
    "a number": (np.asarray(1.0), ValueError, "frequencies is a single number"),
    "integers": (np.arange(4), TypeError, "dtype int64"),
    "complex": (OMEGA + 1j, TypeError, "dtype complex128"),
    "text": ("0.1", TypeError, "frequencies"),
    "none": (None, TypeError, "frequencies"),
    "objects": (np.asarray([object()]), TypeError, "frequencies"),
}


@pytest.mark.parametrize("case", BAD_FREQUENCIES)
def test_bad_frequencies(path, case):
    omega, kind, told = BAD_FREQUENCIES[case]
    with pytest.raises(kind, match=told):
        save(path, omega)
    assert os.listdir(path.parent) == []


BAD_SOURCES = {
    "an object": (object(), TypeError, "it holds <object"),
    "NaN": (float("nan"), ValueError, "which JSON cannot hold .* expected finite numbers"),
    "infinity deep inside": ({"a": [1.0, np.inf]}, ValueError, "source is {'x': {'a': .* expected finite numbers"),
    "keys that are pairs": ({(1, 2): 2}, TypeError, "which JSON cannot hold"),
    "keys that are numbers": ({"inside": [{1: 2}]}, TypeError, "which JSON cannot hold .*the key 1"),
    "bytes": (b"a", TypeError, "it holds b'a'"),
    "complex": (np.asarray([1j]), TypeError, "it holds 1j"),
    "a set": ({1, 2}, TypeError, "it holds {1, 2}"),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_bad_sources(path, case):
    value, kind, told = BAD_SOURCES[case]
    with pytest.raises(kind, match=told):
        save(path, OMEGA, source={"x": value})
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("name", ["set", "set.npz.gz"])
def test_other_suffixes(tmp_path, name):
    with pytest.raises(ValueError, match=r"expected a name that ends in \.npz or \.safetensors"):
        save(str(tmp_path / name), OMEGA)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none/set\.npz"):
        save(tmp_path / "none" / "set.npz", OMEGA)
    assert os.listdir(tmp_path) == []


def test_a_folder_of_that_name(tmp_path):
    (tmp_path / "set.npz").mkdir()
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="is not a regular file"):
            save(tmp_path / "set.npz", OMEGA, overwrite=overwrite)


# -- whole or not at all -----------------------------------------------------------------------------------------------


def test_an_existing_file_stays(path):
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="exists; expected a new name, or overwrite=True"):
        save(path, OMEGA)
    assert path.read_text() == "precious"
    save(path, OMEGA, overwrite=True)
    assert np.array_equal(load(path).frequencies, OMEGA)
    assert os.listdir(path.parent) == ["set.npz"]


def test_a_file_that_appears_meanwhile_stays(path, monkeypatch):
    beside = files._written_beside

    def slow(target, content):
        name = beside(target, content)
        if content:
            path.write_text("precious")
        return name

    monkeypatch.setattr(files, "_written_beside", slow)
    with pytest.raises(FileExistsError):
        save(path, OMEGA)
    assert path.read_text() == "precious"
    assert os.listdir(path.parent) == ["set.npz"]


def test_without_hard_links(path, monkeypatch):
    def refuse(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    save(path, OMEGA)
    assert np.array_equal(load(path).frequencies, OMEGA)
    assert os.listdir(path.parent) == ["set.npz"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_stops_leaves_all_as_it_was(path, monkeypatch, overwrite, error):
    if overwrite:
        path.write_text("precious")
    before = os.listdir(path.parent)
    calls = []

    def fail(descriptor):
        calls.append(descriptor)
        if len(calls) > 1:  # the first is the trial before the work
            raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        save(path, OMEGA, overwrite=overwrite)
    assert os.listdir(path.parent) == before
    assert not overwrite or path.read_text() == "precious"


def test_the_file_has_the_usual_permissions(path):
    (path.parent / "usual").write_text("")
    save(path, OMEGA)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "usual").stat().st_mode)


def test_the_file_behind_a_link_is_replaced(tmp_path):
    save(tmp_path / "real.npz", OMEGA)
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    save(tmp_path / "link.npz", 2.0 * OMEGA, overwrite=True)
    assert (tmp_path / "link.npz").is_symlink()
    assert np.array_equal(load(tmp_path / "real.npz").frequencies, 2.0 * OMEGA)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_to_nothing_is_refused(tmp_path, overwrite):
    (tmp_path / "link.npz").symlink_to(tmp_path / "nowhere.npz")
    with pytest.raises(FileExistsError, match=r"link\.npz is a link to .*nowhere\.npz, which does not exist"):
        save(tmp_path / "link.npz", OMEGA, overwrite=overwrite)
    assert not (tmp_path / "nowhere.npz").exists()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode(path, mode):
    save(path, OMEGA)
    path.chmod(mode)
    save(path, 2.0 * OMEGA, overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert np.array_equal(load(path).frequencies, 2.0 * OMEGA)


KILLED_WHILE_WRITING = """
import os, signal, sys
from rfrope._core import files
def half(file):
    file.write(b"half")
    file.flush()
    print(file.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
files.write(sys.argv[1], half)
"""


def test_what_a_killed_writer_left_is_removed_after_a_day(path):
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HANGS)
    left, foreign = pathlib.Path(done.stdout.strip()), path.parent / ".rfrope-notes"
    foreign.write_text("mine")
    save(path, OMEGA)
    assert left.exists()
    for one in (left, foreign):
        os.utime(one, (1e9, 1e9))
    save(path, OMEGA, overwrite=True)
    assert not left.exists()
    assert foreign.exists()


@pytest.mark.parametrize("overwrite", ["no", 1, None, np.asarray([True, False])])
def test_a_flag_is_a_flag(path, overwrite):
    save(path, OMEGA)
    before = path.read_bytes()
    with pytest.raises(TypeError, match=r"overwrite is .*; expected True or False"):
        save(path, OMEGA, overwrite=overwrite)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "kind"),
    [(3, TypeError), (None, TypeError), (b"a.npz", TypeError), ("", ValueError), ("a\0.npz", ValueError)],
)
def test_a_path_is_a_path(name, kind):
    with pytest.raises(kind, match=r"path is .*; expected"):
        save(name, OMEGA)
    with pytest.raises(kind, match=r"path is .*; expected"):
        load(name)


def test_swapped_arguments_are_told_their_order(path):
    for rope in (OMEGA, Rope(OMEGA)):
        for call in (save, lambda *swapped: exports.write(*swapped, "vllm")):
            with pytest.raises(TypeError, match=r"^path is .*; expected a path, .*: path comes first, then rope$"):
                call(rope, path)


# -- damaged and foreign files -----------------------------------------------------------------------------------------

DAMAGED = {
    "nothing": lambda good: b"",
    "cut off": lambda good: good[: len(good) // 2],
    "a changed byte": lambda good: good.replace(OMEGA[1].tobytes(), OMEGA[2].tobytes(), 1),
    "a pickle": lambda good: b"\x80\x04N.",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files(path, case):
    save(path, OMEGA)
    good = path.read_bytes()
    path.write_bytes(DAMAGED[case](good))
    assert path.read_bytes() != good
    with pytest.raises(ValueError, match=r"set\.npz is damaged, or not a file of frequencies"):
        load(path)


def test_a_missing_file(path):
    with pytest.raises(FileNotFoundError, match=r"set\.npz"):
        load(path)


def test_pickled_objects_are_not_loaded(path, tmp_path):
    class Loud:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "loaded"),))

    np.savez(path, frequencies=np.asarray([Loud()], dtype=object), metadata="{}")
    with pytest.raises(ValueError, match="damaged, or not a file of frequencies"):
        load(path)
    assert not (tmp_path / "loaded").exists()


def test_nothing_is_pickled(path):
    save(path, OMEGA, source={"kernel": rfrope.kernel("gaussian")})
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == ["frequencies.npy", "metadata.npy"]
        for name in archive.namelist():
            assert np.load(io.BytesIO(archive.read(name)), allow_pickle=False).dtype.kind in "fU"


@pytest.mark.parametrize("held", [{}, {"frequencies": OMEGA}, {"metadata": np.asarray("{}")}, {"a": OMEGA}])
def test_files_of_others(path, held):
    np.savez(path, **held)
    with pytest.raises(ValueError, match=r"set\.npz holds (.+); expected what rfrope.save writes"):
        load(path)


FOREIGN = {
    "a later format": ({"format": 3}, "has format 3; expected at most 2"),
    "a format that is text": ({"format": "1"}, "has format '1'; expected at most 2"),
    "no format": ({"format": None}, "does not say what it holds"),
    "no units": ({"units": None}, "does not say what it holds"),
    "cycles": ({"units": "cycles per unit of position"}, "says that it holds"),
    "another shape": ({"shape": [3]}, "says that it holds"),
    "no shape": ({"shape": 4}, "does not say what it holds"),
    "another dtype": ({"dtype": "float32"}, "says that it holds"),
    "no source": ({"source": None}, "does not say what it holds"),
    "a source that is text": ({"source": "me"}, "holds no Rope .source is 'me'"),
    "fields that are a list": ({"rope": []}, "does not say what it holds"),
    "an unknown field": ({"rope": {"colour": 1}}, "holds no Rope .*colour"),
    "a bad field": ({"rope": {"pairing": "neox"}}, "holds no Rope .pairing is 'neox'"),
    "a digest of something else": ({"digest": 64 * "0"}, "is damaged, .* does not match its digest"),
    "version 0.1 without provenance": ({"format": 1, "source": {}}, "does not say what it holds"),
    "version 0.1 with one that is text": ({"format": 1, "provenance": "me"}, "does not say what it holds"),
    "NaN": ({"frequencies": np.full(4, np.nan)}, "holds no Rope .frequencies holds NaN or infinity"),
    "a number": ({"frequencies": np.asarray(1.0), "shape": []}, "holds no Rope .frequencies is a single number"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_files_that_contradict_themselves(path, case):
    changes, told = FOREIGN[case]
    save(path, OMEGA, source={"seed": 1})
    rewritten(path)
    assert load(path).source.to_dict() == {"seed": 1}  # it is refused for what is changed alone
    rewritten(path, **changes)
    with pytest.raises(ValueError, match=told):
        load(path)


def test_a_file_without_its_digest(path):
    save(path, OMEGA)
    with np.load(path) as archive:
        metadata = json.loads(str(archive["metadata"]))
    del metadata["digest"]
    np.savez(path, frequencies=OMEGA, metadata=json.dumps(metadata))
    with pytest.raises(ValueError, match=r"is damaged, .* does not match its digest"):
        load(path)


@pytest.mark.parametrize("text", ["", "[]", "1", "null", "{", "[" * 100_000, '{"format": 1e999}', "9" * 5000])
def test_metadata_that_is_no_record(path, text):
    np.savez(path, frequencies=OMEGA, metadata=text)
    with pytest.raises(ValueError, match="expected"):
        load(path)


def test_a_header_that_claims_more_than_memory(path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 64)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("frequencies.npy", header.getvalue())
        archive.writestr("metadata.npy", header.getvalue())
    with pytest.raises(ValueError, match="damaged, or not a file of frequencies"):
        load(path)


# -- safetensors -------------------------------------------------------------------------------------------------------


def test_without_safetensors(tmp_path, monkeypatch):
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="pip install safetensors"):
        save(tmp_path / "set.safetensors", OMEGA)
    assert os.listdir(tmp_path) == []
    (tmp_path / "set.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModuleNotFoundError, match="pip install safetensors"):
        load(tmp_path / "set.safetensors")


@pytest.fixture
def tensors(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    return tmp_path / "set.safetensors"


@pytest.mark.parametrize("omega", [OMEGA, OMEGA[::-2], np.ones((3, 4, 1), np.float32), OMEGA.astype(np.float16)])
def test_safetensors_round_trip(tensors, omega):
    save(tensors, omega, source={"kernel": rfrope.kernel("gaussian"), "seed": 3})
    loaded = load(tensors)
    assert np.array_equal(loaded.frequencies, omega)
    assert loaded.frequencies.dtype == omega.dtype
    assert loaded.source.to_dict() == {"kernel": "gaussian(scale=1.0)", "seed": 3}


def test_the_content_tells_the_format(tensors, path):
    save(tensors, OMEGA)
    tensors.rename(path)
    assert np.array_equal(load(path).frequencies, OMEGA)


@pytest.mark.parametrize(("last", "brace"), [(0, b"{"), (5, b"{"), (9, b"{"), (40, b"{"), (-8, b"{"), (None, b"[")])
def test_damaged_safetensors(tensors, last, brace):
    save(tensors, OMEGA)
    good = tensors.read_bytes()
    tensors.write_bytes((b"\x80" + good[1:8] + brace + good[9:])[:last])  # as a pickle begins
    with pytest.raises(ValueError, match=r"damaged, or not a file of frequencies: SafetensorError: "):
        load(tensors)


def test_safetensors_of_others(tensors):
    from safetensors.numpy import save_file

    save_file({"weight": OMEGA}, tensors)
    with pytest.raises(ValueError, match="holds weight; expected what"):
        load(tensors)


def test_a_flipped_bit_of_a_tensor_is_noticed(tensors):
    """In its numbers, what it says of them, and the names of both."""
    rope = Rope(OMEGA[:2], pairing="interleaved", attention_factor=1.25, context=64, source={"seed": 1})
    save(tensors, rope)
    good, unnoticed = tensors.read_bytes(), []
    for bit in range(0, 8 * len(good), 13):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        tensors.write_bytes(changed)
        try:
            loaded = load(tensors)
        except ValueError:
            continue
        same = np.array_equal(loaded.frequencies, OMEGA[:2]) and all(
            getattr(loaded, name) == getattr(rope, name)
            for name in ("pairing", "attention_factor", "context", "source")
        )
        unnoticed += [] if same else [bit]
    assert not unnoticed


def test_a_temporary_file_never_opens_one_that_is_there(path, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "known")
    other = path.parent / ".rfrope-known.tmp"
    other.write_text("precious")
    with pytest.raises(FileExistsError):
        save(path, OMEGA)
    assert other.read_text() == "precious"


def test_only_files_are_removed_as_left_behind(path):
    """Whatever has such a name, and is old: a link, what it leads to, a folder."""
    folder = path.parent
    names = {name: folder / f".rfrope-{name}.tmp" for name in ("file", "link", "folder")}
    precious = folder / "precious"
    precious.write_text("mine")
    names["file"].write_bytes(b"")
    names["link"].symlink_to(precious)
    names["folder"].mkdir()
    for name in (*names.values(), precious):
        os.utime(name, (0, 0), follow_symlinks=False)
    save(path, OMEGA)
    rfrope.save(folder / f"other{path.suffix}", OMEGA)
    files.check_writable(str(folder / "third"))
    assert not names["file"].exists()
    assert names["link"].is_symlink()
    assert names["folder"].is_dir()
    assert precious.read_text() == "mine"


def test_a_file_is_on_the_disk_before_it_has_its_name(path, monkeypatch):
    """After a loss of power the old content or the new is there: the content is synchronised, then renamed."""
    seen, synchronise, replace = [], os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda number: (seen.append(os.fstat(number).st_size), synchronise(number)))
    monkeypatch.setattr(files.os, "replace", lambda *names: (seen.append("renamed"), replace(*names)))
    path.write_bytes(b"old")
    for content in (b"new content", lambda file: file.write(b"new content")):
        files.write(str(path), content, overwrite=True)
    assert path.read_bytes() == b"new content"
    assert seen == 2 * [len(b"new content"), "renamed"]
