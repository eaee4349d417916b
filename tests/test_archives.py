"""NumPy's files that were damaged or made to hurt: refused, in memory that the file's own length bounds."""

from __future__ import annotations

import io
import warnings
import zipfile

import numpy as np
import pytest

import rfrope
from rfrope._core import archives, capacity


def header(shape, dtype="<f8", version=(1, 0)):
    file = io.BytesIO()
    write = np.lib.format.write_array_header_1_0 if version == (1, 0) else np.lib.format.write_array_header_2_0
    write(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "value",
    [np.arange(6.0).reshape(2, 3), np.zeros((0, 4)), np.asarray(3), np.asarray("text"), np.arange(3, dtype=">i2")],
)
def test_arrays_come_back(tmp_path, value, order):
    value = np.asarray(value, order=order)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", a=value)
        found = archives.members(str(tmp_path / "a.npz"), compressed=save is np.savez_compressed)["a"]
        assert (found.dtype, found.shape, found.tolist()) == (value.dtype, value.shape, value.tolist())
        assert found.flags.writeable
    np.save(tmp_path / "a.npy", value)
    assert archives.single(str(tmp_path / "a.npy")).tolist() == value.tolist()


REFUSED = {
    "a larger shape": header((2**40, 64)) + bytes(64),
    "a smaller shape": header((2,)) + bytes(64),
    "a negative shape": header((-2, -4)) + bytes(64),
    "no bytes each": header((2**62,), "<U0"),
    "long axes of nothing": header((2**62, 2**62, 0)),
    "objects": header((1,), "|O") + bytes(8),
    "fields": header((1,), [("a", "<f8")]) + bytes(8),
    "no header": b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8', ",
    "a header that does not end": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 60_000,
    "a later version": b"\x93NUMPY\x09\x00" + bytes(100),
    "nothing": b"",
    "text": b"hello",
    "a pickle": b"\x80\x04N.",
}


@pytest.mark.parametrize("case", REFUSED)
def test_members_that_are_no_arrays(tmp_path, case):
    path = str(tmp_path / "a.npz")
    zipped(path, {"a.npy": REFUSED[case]})
    with pytest.raises(archives.DamagedError):
        archives.members(path)
    (tmp_path / "a.npy").write_bytes(REFUSED[case])
    with pytest.raises(archives.DamagedError):
        archives.single(str(tmp_path / "a.npy"))


def test_a_bomb_costs_nothing(tmp_path, peak):
    """32 MB of zeros in a file of 32 kB: refused by `load`, and where compression is usual, by what is free."""
    path = tmp_path / "bomb.npz"
    zipped(path, {"frequencies.npy": header((2**22,)) + bytes(2**25), "metadata.npy": b""}, zipfile.ZIP_DEFLATED)
    peak(anew=True)
    with pytest.raises(ValueError, match=r"bomb\.npz is damaged, .* compressed members"):
        rfrope.load(path)
    assert peak() < 2**22


def test_compressed_arrays_must_fit(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(2**18))
    monkeypatch.setenv(capacity.VARIABLE, "1e6")
    with pytest.raises(ValueError, match=r"a\.npz would take 0\.00419 GB .* RFROPE_MAX_BYTES allows 0\.001 GB"):
        archives.members(str(tmp_path / "a.npz"), compressed=True)


def test_a_member_that_lies_about_its_size(tmp_path, peak):
    path = tmp_path / "a.npz"
    zipped(path, {"a.npy": header((2**22,)) + bytes(2**25)}, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    real, said = (2**25 + len(header((2**22,)))).to_bytes(4, "little"), (1000).to_bytes(4, "little")
    path.write_bytes(content.replace(real, said))
    peak(anew=True)
    with pytest.raises(archives.DamagedError):
        archives.members(str(path), compressed=True)
    assert peak() < 2**22


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it is empty"),
        (b"hello, world", "it is text"),
        (b"GGUF\x03\0\0\0", "it is a GGUF"),
        (b"\x93NUMPY\x01\0", r"it is a single array \(\.npy\)"),
        (b"\x80\x04N.", "it is a pickle, which is never loaded"),
        (b"\x01\x02\x03", "it is a file of another kind"),
    ],
)
def test_other_files_are_named_in_our_own_words(tmp_path, content, told):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=told) as caught:
        rfrope.load(path)
    assert "allow_pickle" not in str(caught.value)


def test_every_flipped_bit_and_cut_is_an_error_of_ours(tmp_path):
    """Or it changes nothing that is read: times and attributes of members."""
    path = tmp_path / "a.npz"
    rfrope.save(path, [0.5, 0.25], source={"seed": 1})
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    bits = rng.choice(8 * len(good), 1500, replace=False)
    for bit in bits:
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << int(bit) % 8
        path.write_bytes(changed)
        try:
            found = rfrope.load(path)
        except ValueError:
            continue
        assert (found.frequencies.tolist(), found.source.to_dict()) == ([0.5, 0.25], {"seed": 1})
    for length in range(0, len(good), 37):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match="damaged"):
            rfrope.load(path)


def test_two_members_of_one_name_are_refused(tmp_path):
    """Another reader would take the other of them."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for value in (1.0, 2.0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # zipfile says so, too
                archive.writestr("a.npy", header((1,)) + np.array([value]).tobytes())
    with pytest.raises(archives.DamagedError, match="two members of one name"):
        archives.members(str(path))
