"""One file instead of a folder: a bundle as `.zip` (stored, nothing to unpack with) or `.tar.zst` (smaller).

An archive is read like a stranger's: only files its manifest lists come out, and none longer than the manifest says.
"""

from __future__ import annotations

import errno
import io
import lzma
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fledge.bundle.card import CARD
from fledge.bundle.manifest import (
    LARGEST_MANIFEST,
    MANIFEST,
    MOST_FILES,
    TRAINING,
    Manifest,
    manifest_bytes,
    read_manifest,
    verify_files,
)
from fledge.errors import FledgeError
from fledge.extras import missing
from fledge.files import atomic_write, readable_bytes, require_space, temporary_folder

SUFFIXES = (".zip", ".tar.zst")
UNPACKED = "fledge-unpacked-"
LARGEST_CARD = 1_000_000
LARGEST_HEADER = 1 << 14  # of a tar's long names and the like: hundreds may follow each other, and all are kept
LARGEST_RATIO = 200  # a bundle that unpacks to more than this many times its size is no bundle of weights
SLACK = 64_000_000
BLOCK = 1 << 20


def is_archive(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def pack(bundle: Path, target: Path, training: bool = True) -> Path:
    """The bundle, a folder or packed already, as one file; without `training`, only what is needed to use the model."""
    if not target.name.lower().endswith(SUFFIXES):
        raise FledgeError(f"{target} must end in {' or '.join(SUFFIXES)}.")
    if target.exists():
        raise FledgeError(f"{target} exists already. Choose another name, or remove it first.")
    if not is_archive(bundle):
        return _pack_folder(bundle, target, training)
    with temporary_folder(UNPACKED) as home:
        folder = unpack(bundle, Path(home) / "bundle")
        with named_as(bundle, folder):
            return _pack_folder(folder, target, training)


def _pack_folder(folder: Path, target: Path, training: bool) -> Path:
    manifest = read_manifest(folder)
    verify_files(folder, manifest.files)
    if not training:
        kept = {name: entry for name, entry in manifest.files.items() if not name.startswith(f"{TRAINING}/")}
        manifest = manifest.model_copy(update={"files": kept})
    card = folder / CARD
    own_card = card.is_file() and card.resolve().parent == folder.resolve()  # and not a link to a file of the person's
    if own_card and card.stat().st_size > LARGEST_CARD:
        raise FledgeError(f"{card} is longer than the {LARGEST_CARD:,} bytes allowed in a packed bundle. Shorten it.")
    files = [folder / name for name in dict.fromkeys([*[CARD] * own_card, *manifest.files])]
    require_space(target.parent, sum(path.stat().st_size for path in files), f"Packing {folder.name}")
    with atomic_write(target) as file, _writer(target, file) as add:
        add(MANIFEST, io.BytesIO(manifest_bytes(manifest)), len(manifest_bytes(manifest)))
        for path in files:
            with open(path, "rb") as source:
                add(path.relative_to(folder).as_posix(), source, path.stat().st_size)
    return target


Add = Callable[[str, IO[bytes], int], None]


@contextmanager
def _writer(target: Path, file: IO[bytes]) -> Iterator[Add]:
    """How a file of this kind takes in one more member. Times are left out: the same bundle packs to the same bytes."""
    if target.name.lower().endswith(".zip"):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:

            def add_to_zip(name: str, source: IO[bytes], size: int) -> None:
                info = zipfile.ZipInfo(name)
                info.file_size = size
                with archive.open(info, "w") as member:
                    shutil.copyfileobj(source, member, BLOCK)

            yield add_to_zip
        return
    with (
        zstandard().ZstdCompressor(level=3, threads=-1).stream_writer(file, closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="w|") as tar,
    ):

        def add_to_tar(name: str, source: IO[bytes], size: int) -> None:
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, source)

        yield add_to_tar


def packed_manifest(path: Path) -> Manifest:
    """The manifest of a packed bundle, without unpacking the rest."""
    with temporary_folder(UNPACKED) as folder, named_as(path, Path(folder)), reading(path) as entries:
        first = next(entries, None)
        if first is None or first[0] != MANIFEST:
            raise FledgeError(
                f"{path} is not a packed bundle: it does not begin with {MANIFEST}. Pack the bundle's folder with "
                "fledge bundle pack."
            )
        copy_limited(first[1], Path(folder) / MANIFEST, LARGEST_MANIFEST, path)
        return read_manifest(Path(folder))


def packed_sizes(path: Path) -> dict[str, int] | None:
    """The size of every file in a .zip, from its table of contents; None for a .tar.zst, which has none."""
    if not path.name.lower().endswith(".zip"):
        return None
    with whole_archive(path), zipfile.ZipFile(path) as archive:
        return {info.filename: info.file_size for info in archive.infolist()}


def unpack(path: Path, folder: Path) -> Path:
    """The files of a packed bundle in a new `folder`, as many and as long as the manifest allows."""
    manifest = packed_manifest(path)
    check_total(path, manifest, folder)
    budget = {name: entry.size for name, entry in manifest.files.items()}
    budget |= {MANIFEST: LARGEST_MANIFEST, CARD: LARGEST_CARD}
    folder.mkdir(parents=True)
    with reading(path) as entries:
        for name, stream in entries:
            if name not in budget:
                wrong = (
                    "a second time" if name in (*manifest.files, MANIFEST, CARD) else "which its manifest does not list"
                )
                raise FledgeError(f"{path} holds {name!r}, {wrong}. Do not trust it.")
            try:
                copy_limited(stream, folder / name, budget.pop(name), path)
            except (FileExistsError, IsADirectoryError, NotADirectoryError):
                raise FledgeError(f"{path} holds {name!r}, in the way of another file. Do not trust it.") from None
    return folder


@contextmanager
def named_as(path: Path, folder: Path) -> Iterator[None]:
    """Sentences about a copy unpacked to `folder` name the archive instead, which is what the person knows."""
    try:
        yield
    except FledgeError as error:
        raise FledgeError(str(error).replace(str(folder), str(path))) from None


@contextmanager
def reading(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """`members`, where a cut or forged archive is answered by a sentence."""
    with whole_archive(path), members(path) as entries:
        yield entries


@contextmanager
def whole_archive(path: Path) -> Iterator[None]:
    """Whatever a cut or forged archive makes the readers raise, turned into a sentence."""
    try:
        yield
    except FledgeError:
        raise
    except broken_archive_errors() as error:
        # Readers raise a bare OSError, or a seek to nowhere; any other is of the disk, and says so itself.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise FledgeError(
            f"{path} is not a whole packed bundle ({error}): it was cut or changed after it was written. Copy it "
            "again, or pack the bundle anew with fledge bundle pack."
        ) from None


@contextmanager
def members(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    """The plain files of an archive in order, each to be read before the next; links and devices are refused."""
    if path.name.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            if len(archive.infolist()) > MOST_FILES + 2:  # the manifest itself and the card
                count = len(archive.infolist())
                raise FledgeError(f"{path} holds {count:,} files; no packed bundle has that many. Do not trust it.")
            yield ((info.filename, archive.open(info)) for info in archive.infolist())
        return
    with (
        open(path, "rb") as file,
        zstandard().ZstdDecompressor(max_window_size=1 << 27).stream_reader(file) as raw,
        tarfile.open(fileobj=io.BufferedReader(raw, BLOCK), mode="r|", tarinfo=_Member) as tar,
    ):
        yield (_plain(path, tar, info) for info in tar)


class _Member(tarfile.TarInfo):
    """A member of a stranger's tar: long names and the like, which are read whole, are none of a bundle's."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        extended = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if self.type in (*extended, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK) and self.size > LARGEST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]  # tarfile's own hook, which its types leave out

    def _refuse_sparse(self, *given: Any) -> None:
        """Maps of files with holes, in all four notations, are read without a limit."""
        raise tarfile.ReadError("a file with holes")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def _plain(path: Path, archive: tarfile.TarFile, info: tarfile.TarInfo) -> tuple[str, IO[bytes]]:
    stream = archive.extractfile(info) if info.isreg() else None
    if stream is None:
        raise FledgeError(f"{path} holds {info.name!r}, which is not a plain file. Do not trust it.")
    return info.name, stream


def copy_limited(stream: IO[bytes], target: Path, limit: int, where: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copied = 0
    with open(target, "wb") as file:
        while block := stream.read(BLOCK):
            copied += len(block)
            if copied > limit:
                raise FledgeError(
                    f"{where}: {target.name} is longer than the {limit:,} bytes allowed. Do not trust it."
                )
            file.write(block)


def check_total(path: Path, manifest: Manifest, folder: Path) -> None:
    total = sum(entry.size for entry in manifest.files.values())
    if total > LARGEST_RATIO * path.stat().st_size + SLACK:
        raise FledgeError(
            f"{path} claims to unpack from {readable_bytes(path.stat().st_size)} to {readable_bytes(total)}. "
            "Do not trust it."
        )
    advice = "Free some space, or set TMPDIR to a folder with more."
    require_space(folder, total, f"Unpacking {path.name}", advice)


def zstandard() -> Any:
    try:
        import zstandard as module
    except ModuleNotFoundError:
        raise missing("A .tar.zst (a .zip does not)", "zstandard", "data") from None
    return module


def broken_archive_errors() -> tuple[type[Exception], ...]:
    """What the readers raise on a cut or forged archive, zstandard's own among them where it is installed."""
    errors: tuple[type[Exception], ...] = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError)
    errors += (struct.error, EOFError, OSError, OverflowError, RuntimeError, ValueError)
    try:
        return (*errors, zstandard().ZstdError)
    except FledgeError:
        return errors
