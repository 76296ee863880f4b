"""Where text lies: paths, folders, globs, fsspec addresses, standard input; and the format of each."""

from __future__ import annotations

import glob
import gzip
import hashlib
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from fledge.corpus.folder import text_files
from fledge.corpus.hub import is_hub, parse_address, pin_address
from fledge.corpus.streams import BUFFER, StandardInput, Stream, damaged, decompressed
from fledge.errors import FledgeError, changed
from fledge.extras import missing
from fledge.files import did_you_mean, documents_format, without_query

Special = Literal["recognise", "text"]
STANDARD_INPUT = "-"
DRIVERS = {
    "http": "'fledge-lm[data]'",
    "https": "'fledge-lm[data]'",
    "sftp": "paramiko",
    "ssh": "paramiko",
}  # else by fsspec
STAMPS = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created", "blob_id")


@dataclass(frozen=True)
class Source:
    """One stream of bytes: its address, the format of its documents, and what identifies its content."""

    address: str
    format: str
    size: int | None = None
    modified: str | None = None
    held_out: bool = False
    documents: tuple[bytes, ...] = field(default=(), repr=False)  # for corpora that live in memory
    head: StandardInput | None = field(default=None, repr=False)

    @property
    def special(self) -> Special:
        """How documents are encoded: special tokens count only in text files, whose author wrote them there."""
        return "recognise" if self.format == "text" else "text"

    @property
    def stamp(self) -> str | None:
        """What differs when the content does: the time of change, or a checksum of what is in memory."""
        return hashlib.sha256(b"\0".join(self.documents)).hexdigest() if self.documents else self.modified

    @property
    def can_move(self) -> bool:
        """Whether this is a local file, which can be read again and may be copied elsewhere without a change."""
        return self.head is None and not self.documents and "://" not in self.address

    @property
    def half_known(self) -> bool:
        """Whether `stamp` covers the beginning alone: standard input that is longer than what is kept of it."""
        return self.head is not None and not self.head.whole

    @contextmanager
    def open(self) -> Iterator[Stream]:
        """The decompressed bytes from the start; a cut or damaged file is refused by name."""
        with _sentences(self.address), _raw(self) as raw:
            try:
                yield Stream(raw, decompressed(raw, self.address), self.address)
            except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
                raise FledgeError(damaged(self.address, error)) from None


@contextmanager
def _sentences(address: str) -> Iterator[None]:
    """Drivers of remote addresses raise exceptions of all kinds; each becomes a sentence that names the address."""
    try:
        yield
    except Exception as error:
        named = isinstance(error, (FledgeError, MemoryError)) or (isinstance(error, OSError) and error.filename)
        if named or "://" not in address:
            raise
        what = str(error).strip().rstrip(".") or type(error).__name__
        raise FledgeError(
            f"{address} can't be read: {what}. Check the address and the connection, or fetch the file first and name "
            "it by its path."
        ) from None


@contextmanager
def _raw(source: Source) -> Iterator[IO[bytes]]:
    if source.head is not None:
        yield source.head.open()
    elif "://" in source.address:
        system, path = filesystem(source.address)
        with system.open(path, "rb") as file:
            yield file
    else:
        with open(source.address, "rb", buffering=BUFFER) as file:
            yield file
            now = os.fstat(file.fileno())
            if source.modified is not None and (now.st_size, str(now.st_mtime_ns)) != (source.size, source.modified):
                raise changed(source.address)


def filesystem(address: str) -> tuple[Any, str]:
    """The file system behind an fsspec address, and the path in it; a driver that is missing is named."""
    try:
        import fsspec
    except ImportError:
        raise missing("A remote address", "fsspec", "data") from None
    options = {"endpoint": os.environ["HF_ENDPOINT"]} if is_hub(address) and os.environ.get("HF_ENDPOINT") else {}
    try:
        system, path = fsspec.core.url_to_fs(address, **options)
    except ImportError as error:
        from fsspec.registry import known_implementations

        scheme = address.partition("://")[0]
        home = known_implementations.get(scheme, {}).get("class", "").partition(".")[0]
        package = DRIVERS.get(scheme) or ("" if home == "fsspec" else home)
        what = f"pip install {package}" if package else str(error)
        raise FledgeError(f"{address} can't be opened: {scheme} addresses need another package: {what}.") from None
    except ValueError as error:
        raise FledgeError(f"{address} can't be opened: {error}.") from None
    return system, path


def find_sources(names: Sequence[str | Path], format: str, separator: bytes, held_out: bool = False) -> list[Source]:
    """Every stream behind the given paths, folders, globs and addresses, in the order given and sorted within each."""
    found: list[Source] = []
    for name in names:
        address = os.path.expanduser(str(name))
        if address == STANDARD_INPUT:
            chosen = "text" if format == "auto" else format
            if chosen == "parquet":
                raise FledgeError(
                    "Parquet can't be read from standard input, because it is read from its end. Write it to "
                    "a file and name the file."
                )
            kept = StandardInput(sys.stdin.buffer)
            size = len(kept.head) if kept.whole else None
            stamp = f"{zlib.crc32(kept.head):08x}"
            found.append(Source("-", chosen, size, stamp, held_out, head=kept))
            continue
        files, single = _remote(address) if "://" in address else _local(address)
        found += _with_formats(files, single, format, separator, held_out)
    return found


def _local(address: str) -> tuple[list[tuple[str, int, str]], bool]:
    path = Path(address)
    if path.is_dir():
        return [_stat(name) for name in text_files(str(path))], False
    if not path.exists() and glob.has_magic(address):
        names = sorted(name for name in glob.glob(address, recursive=True) if os.path.isfile(name))
        if not names:
            raise FledgeError(
                f"No file matches {address}. Check the pattern (quotes keep the shell from expanding it)."
            )
        return [_stat(name) for name in names], False
    return [_stat(address)], True


def _stat(name: str) -> tuple[str, int, str]:
    try:
        found = os.stat(name)
    except FileNotFoundError:
        from fledge.corpus.fetch import NAMED
        from fledge.errors import nearest

        known = ["akjv", *NAMED]
        hint = f" {nearest(name, known)}" if os.sep not in name and "." not in name else ""
        hint = did_you_mean(Path(name)) or hint
        raise FledgeError(f"There is no file or folder {name}.{hint or ' Check the path.'}") from None
    if not stat.S_ISREG(found.st_mode):
        raise FledgeError(
            f"{name} is a pipe or a device, which can be read only once. Give - as the source and pipe the "
            "text to standard input."
        )
    return name, found.st_size, str(found.st_mtime_ns)


def _remote(address: str) -> tuple[list[tuple[str, int, str]], bool]:
    if is_hub(address):
        address = str(
            pin_address(parse_address(address))
        )  # so that all files, and those of a resumed run, are of one commit
    system, path = filesystem(address)
    single = False
    found = []
    with _sentences(address):
        try:
            if glob.has_magic(without_query(path)):
                paths = sorted(system.glob(path))
            elif system.isdir(path):
                paths = sorted(name for name in system.find(path) if not Path(name).name.startswith("."))
            else:
                paths, single = [path], True
            for name in paths:
                info = system.info(name)
                stamp = next((str(info[key]) for key in STAMPS if info.get(key)), "")
                found.append((system.unstrip_protocol(name), int(info.get("size") or 0), stamp))
        except FileNotFoundError:
            raise FledgeError(f"There is nothing at {address}. Check the address.") from None
    if not found:
        raise FledgeError(f"No file matches {address}. Check the address.")
    return found, single


def _with_formats(
    files: list[tuple[str, int, str]], single: bool, format: str, separator: bytes, held_out: bool
) -> Iterator[Source]:
    """Formats by the end of the name; a text file of a folder is one document unless it holds separators.

    That is seen in its first megabyte. Of remote files only the first is looked at, for each look is a wait; the others
    are taken to be like it.
    """
    first: str | None = None
    for name, size, modified in files:
        chosen = documents_format(name) if format == "auto" else format
        if chosen is None:
            chosen = first or ("text" if single or _holds(Source(name, "text"), separator) else "files")
            first = chosen if "://" in name else None
        yield Source(name, chosen, size, modified, held_out)


def _holds(source: Source, separator: bytes) -> bool:
    if not separator:
        return False
    with source.open() as stream:
        return separator in stream.read(BUFFER)
