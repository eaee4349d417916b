"""Ropes on disk: round trips, sources, damaged files, and files that appear whole or not at all."""

import os
import stat
import sys

import numpy as np
import pytest
from conftest import rows
from stored import rewritten, told

import rfrope
from rfrope import Rope
from rfrope._core import files
from rfrope.storage import load, save

OMEGA = np.linspace(0.1, 0.7, 4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "set.npz"


@pytest.fixture
def tensors(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    return tmp_path / "set.safetensors"


@pytest.fixture(params=["path", "tensors"])
def either(request):
    """A file of each kind."""
    return request.getfixturevalue(request.param)


# -- round trips -------------------------------------------------------------------------------------------------------


LAYOUTS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "backwards": lambda omega: omega[::-2],
    "other byte order": lambda omega: omega.astype(omega.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(4,), (4, 2), (3, 4, 1), (2, 3, 4, 2), (0,)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_round_trip(either, shape, dtype, layout):
    omega = LAYOUTS[layout](np.random.default_rng(0).normal(size=shape).astype(dtype))
    save(either, omega)
    loaded = load(either)
    assert isinstance(loaded, Rope)
    assert (loaded.frequencies.dtype, loaded.frequencies.shape) == (dtype, omega.shape)
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
def test_every_field_comes_back(either, fields):
    rope = Rope(OMEGA, **fields, source={"seed": 1})
    save(either, rope, source={"kernel": "gaussian(scale=1.0)"})
    loaded = load(either)
    for name in ("pairing", "head_dim", "attention_factor", "sections", "interleaved", "context"):
        assert getattr(loaded, name) == getattr(rope, name)
        assert type(getattr(loaded, name)) is type(getattr(rope, name))
    assert loaded.source.to_dict() == {"seed": 1, "kernel": "gaussian(scale=1.0)"}
    assert rope.source.to_dict() == {"seed": 1}


def test_the_source_comes_back_as_plain_values(either):
    kernel = rfrope.kernel("matern", nu=1.5, scale=(8.0, 4.0), ndim=2)
    save(either, OMEGA, source={
        "kernel": kernel, "seed": np.int64(3), "rms": np.float32(0.5), "note": "Φ, \ud800", "none": None, "yes": True,
        "path": "p", "frequencies": (1, 2), "nested": {"kernels": [kernel], "x": np.arange(2)},
    })  # fmt: skip
    held = load(either).source.to_dict()
    assert held == {"kernel": repr(kernel), "seed": 3, "rms": 0.5, "note": "Φ, \ud800", "none": None, "yes": True,
                    "path": "p", "frequencies": [1, 2], "nested": {"kernels": [repr(kernel)], "x": [0, 1]}}  # fmt: skip
    assert type(held["seed"]) is int
    assert rfrope.kernels.parse(held["kernel"]) == kernel


def test_metadata_tells_units_and_version_to_a_reader_without_rfrope(path):
    save(path, OMEGA, source={"seed": 1})
    with np.load(path, allow_pickle=False) as archive:
        held = dict(archive)  # nothing is pickled
    assert sorted(held) == ["frequencies", "metadata"]
    metadata = told(path)
    assert len(metadata.pop("digest")) == 64
    fields = {"pairing": "half", "head_dim": None, "attention_factor": 1.0, "sections": None, "interleaved": False,
              "context": None, "polar": False}  # fmt: skip
    assert metadata == {"format": 2, "rfrope": rfrope.__version__, "units": "radians per unit of position",
                        "shape": [4], "dtype": "float64", "rope": fields, "source": {"seed": 1}}  # fmt: skip


def test_one_set_one_file(tmp_path):
    save(tmp_path / "a.npz", OMEGA, source={"seed": 1})
    save(str(tmp_path / "b.npz"), OMEGA.tolist(), source={"seed": 1})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


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


# -- whole or not at all -----------------------------------------------------------------------------------------------


def test_an_existing_file_stays(path):
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="exists; expected a new name, or overwrite=True"):
        save(path, OMEGA)
    with pytest.raises(TypeError, match="overwrite is 1; expected True or False"):
        save(path, OMEGA, overwrite=1)
    for refused in (np.full(4, np.nan), Rope(OMEGA, source={"x": 1j})):
        with pytest.raises((TypeError, ValueError), match=r"NaN or infinity|it holds 1j"):
            save(path, refused, overwrite=True)
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


THERE = {
    "a folder": (lambda path: path.mkdir(), "is not a regular file"),
    "a link": (lambda path: path.symlink_to(path.with_name("nowhere.npz")),
               r"set\.npz is a link to .*nowhere\.npz, which does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("case", THERE)
def test_what_is_no_file_is_never_replaced(path, case, overwrite):
    make, words = THERE[case]
    make(path)
    with pytest.raises(FileExistsError, match=words):
        save(path, OMEGA, overwrite=overwrite)
    assert os.listdir(path.parent) == ["set.npz"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_keeps_its_mode(path, mode):
    save(path, OMEGA)
    path.chmod(mode)
    save(path, 2.0 * OMEGA, overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert np.array_equal(load(path).frequencies, 2.0 * OMEGA)


# -- damaged and foreign files -----------------------------------------------------------------------------------------

DAMAGED = {  # tensors; core/test_files.py has the other files
    "a list": lambda good: b"\x80" + good[1:8] + b"[" + good[9:],
    **{f"to {last}": lambda good, last=last: (b"\x80" + good[1:])[:last] for last in (0, 5, 9, 40, -8)},
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_that_begin_as_a_pickle(tensors, case):
    save(tensors, OMEGA)
    tensors.write_bytes(DAMAGED[case](tensors.read_bytes()))
    with pytest.raises(ValueError, match=r"set\..* is damaged, or not a file of frequencies: SafetensorError: "):
        load(tensors)


@pytest.mark.parametrize("held", [{}, {"frequencies": OMEGA}, {"metadata": np.asarray("{}")}, {"a": OMEGA}])
def test_files_of_others(path, held):
    np.savez(path, **held)
    with pytest.raises(ValueError, match=r"set\.npz holds (.+); expected what rfrope.save writes"):
        load(path)


FOREIGN = {case: told for case, *told in rows("storage.json", "foreign")} | {
    "NaN": ({"frequencies": np.full(4, np.nan)}, "holds no Rope .frequencies holds NaN or infinity"),
    "a number": ({"frequencies": np.asarray(1.0), "shape": []}, "holds no Rope .frequencies is a single number"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_files_that_contradict_themselves(path, case):
    changes, words = FOREIGN[case]
    save(path, OMEGA, source={"seed": 1})
    rewritten(path)
    assert load(path).source.to_dict() == {"seed": 1}  # it is refused for what is changed alone
    rewritten(path, **changes)
    with pytest.raises(ValueError, match=words):
        load(path)


@pytest.mark.parametrize("text", ["", "[]", "1", "null", "{", "[" * 100_000, '{"format": 1e999}', "9" * 5000])
def test_metadata_that_is_no_record(path, text):
    np.savez(path, frequencies=OMEGA, metadata=text)
    with pytest.raises(ValueError, match="expected"):
        load(path)


# -- safetensors -------------------------------------------------------------------------------------------------------


def test_without_safetensors(tmp_path, monkeypatch):
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="pip install safetensors"):
        save(tmp_path / "set.safetensors", OMEGA)
    assert os.listdir(tmp_path) == []
    (tmp_path / "set.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModuleNotFoundError, match="pip install safetensors"):
        load(tmp_path / "set.safetensors")


def test_the_content_tells_the_format(tensors, path):
    save(tensors, OMEGA)
    tensors.rename(path)
    assert np.array_equal(load(path).frequencies, OMEGA)


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
    """Whatever has such a name: a link, what it leads to, a folder, a file of today; nor a file of another name."""
    folder = path.parent
    names = {name: folder / f".rfrope-{name}.tmp" for name in ("file", "link", "folder", "fresh")}
    precious, notes = folder / "precious", folder / ".rfrope-notes"
    for file in (names["file"], names["fresh"], precious, notes):
        file.write_text("mine")
    names["link"].symlink_to(precious)
    names["folder"].mkdir()
    for name in {*names.values(), precious, notes} - {names["fresh"]}:
        os.utime(name, (0, 0), follow_symlinks=False)
    save(path, OMEGA)
    save(folder / "other.npz", OMEGA)
    files.check_writable(str(folder / "third"))
    assert {*folder.iterdir()} == {*names.values(), precious, notes, path, folder / "other.npz"} - {names["file"]}
    assert names["link"].is_symlink()
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
