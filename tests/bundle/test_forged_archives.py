"""Archives that a stranger built by hand: each is refused with a sentence, and none is read without a limit."""

from __future__ import annotations

import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fledge.bundle import Bundle, archive, load_bundle, manifest
from fledge.bundle.archive import pack
from fledge.bundle.manifest import MANIFEST, describe_file
from fledge.errors import FledgeError
from tests.bundle.conftest import forge

MANY = 20_000  # blocks: ten megabytes, which compress to a few hundred bytes


def sparse_header() -> bytes:
    """An old GNU header of a file with holes, which says that more of its map follows."""
    info = tarfile.TarInfo(MANIFEST)
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def pax_header(**values: str) -> bytes:
    info = tarfile.TarInfo(MANIFEST)
    info.size = MANY * 512
    info.pax_headers = {f"GNU.sparse.{name}": value for name, value in values.items()}
    return info.tobuf(tarfile.PAX_FORMAT)


SPARSE = {
    "cut": (sparse_header(), b""),
    "extended": (sparse_header(), (b"00000000001\0" * 42 + b"\1" * 8) * MANY),
    "0.0": (pax_header(size="9", offset="1", numbytes="1"), b""),
    "0.1": (pax_header(map="1,2,3,4"), b""),
    "1.0": (pax_header(major="1", minor="0"), b"999999999\n" + b"1\n" * (MANY * 256)),
}


@pytest.mark.parametrize("name", SPARSE)
def test_files_with_holes_are_refused_before_their_maps_are_read(tmp_path: Path, name: str) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "holes.tar.zst"
    path.write_bytes(zstandard.compress(b"".join(SPARSE[name])))
    tracemalloc.start()
    try:
        with pytest.raises(FledgeError, match="not a whole packed bundle \\(a file with holes\\)"):
            load_bundle(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_headers_that_follow_each_other_do_not_add_up(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    values = b"".join(b"11 %06x=\n" % number for number in range(10_000))
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(values)
    header = info.tobuf(tarfile.USTAR_FORMAT) + values + bytes(-len(values) % 512)
    (tmp_path / "bomb.tar.zst").write_bytes(zstandard.compress(header * 100))
    with pytest.raises(FledgeError, match=r"not a whole packed bundle \(a header of 110,000 bytes\)"):
        load_bundle(tmp_path / "bomb.tar.zst")


def test_a_zip_whose_directory_is_elsewhere_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    packed = pack(bundle.path, tmp_path / "p.zip")
    data = bytearray(packed.read_bytes())
    (offset,) = struct.unpack_from("<L", data, len(data) - 6)
    struct.pack_into("<L", data, len(data) - 6, offset + 1000)
    packed.write_bytes(data)
    with pytest.raises(FledgeError, match=r"p\.zip is not a whole packed bundle"):
        load_bundle(packed)


def test_a_damaged_member_is_refused_whatever_it_is_compressed_with(bundle: Bundle, tmp_path: Path) -> None:
    packed = tmp_path / "p.zip"
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(packed, "w", compression) as archive:
            archive.write(bundle.path / MANIFEST, MANIFEST)
            middle = archive.getinfo(MANIFEST).compress_size // 2
        data = bytearray(packed.read_bytes())
        data[middle : middle + 64] = bytes(64)
        packed.write_bytes(data)
        with pytest.raises(FledgeError, match=r"p\.zip is not a whole packed bundle"):
            load_bundle(packed)


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "a/b"), ("a/b", "a"), ("a", "a/b/c"), ("README.md/x", "README.md"), ("x", f"{MANIFEST}/x")],
)
def test_a_file_can_not_be_the_folder_of_another(bundle: Bundle, tmp_path: Path, first: str, second: str) -> None:
    entry = describe_file(bundle.path / "tokenizer.json").model_dump()

    def change(values: dict[str, Any]) -> None:
        values["files"].update({first: entry, second: entry})
        values["files"].pop("README.md", None)

    forge(bundle.path, change)
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.write(bundle.path / MANIFEST, MANIFEST)
        for name in (first, second):
            archive.write(bundle.path / "tokenizer.json", name)
    with pytest.raises(FledgeError, match=r"p\.zip holds '.*', in the way of another file"):
        load_bundle(tmp_path / "p.zip")


@pytest.mark.parametrize("listed", [True, False])
def test_an_archive_of_a_hundred_thousand_files_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle: Bundle, listed: bool
) -> None:
    """Each was checked, and had a line in a table: that took minutes."""
    path = tmp_path / "many.zip"
    pack(bundle.path, path)
    monkeypatch.setattr(manifest if listed else archive, "MOST_FILES", 3 if listed else 8)
    with zipfile.ZipFile(path, "a") as packed:
        for number in range(10):
            packed.writestr(f"training/{number}", b"")
    with pytest.raises(FledgeError, match=r"(holds|lists) \d+ files; no (packed )?bundle has that many"):
        load_bundle(path)
