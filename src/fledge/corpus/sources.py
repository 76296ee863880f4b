"""Where bytes come from: paths, folders, globs, fsspec addresses, standard input; plain or compressed.

A `Source` is one stream of bytes with a format. What is compressed is told by the end of its name.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import io
import lzma
import mmap
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, cast

from fledge.corpus.folder import text_files
from fledge.errors import FledgeError
from fledge.extras import missing
from fledge.files import documents_format, without_query

Special = Literal["recognise", "text"]
STANDARD_INPUT = "-"
HEAD = 64 << 20  # of standard input, kept in memory to see how its documents lie
BUFFER = 1 << 20
KEPT_PIECES = 6  # of a mapped file, behind the place where it is read
ZSTD_CHUNK = 1 << 16
ZSTD_WINDOW = 1 << 31  # bytes: what `zstd --long=31` looks back on
DRIVERS = {"http": "'fledge[data]'", "https": "'fledge[data]'", "sftp": "paramiko", "ssh": "paramiko"}  # else by fsspec
STAMPS = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created")


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
        """How the documents are to be encoded: special tokens count only in text files, whose author wrote them
        there.
        """
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
                yield Stream(raw, _decompressed(raw, self.address), self.address)
            except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
                raise FledgeError(damaged(self.address, error)) from None


class Stream:
    """Decompressed bytes, and how far the file below has been read."""

    def __init__(self, raw: IO[bytes], bytes_in: IO[bytes], address: str) -> None:
        self.raw, self._bytes, self._address = raw, bytes_in, address
        self._plain = raw is bytes_in

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, or fewer at the end."""
        try:
            data = self._bytes.read(size)
            while len(data) < size and (more := self._bytes.read(size - len(data))):
                data += more
        except OSError as error:
            if error.errno is not None or self._plain:
                raise
            raise FledgeError(damaged(self._address, error)) from None  # bz2 says "Invalid data stream" this way
        return data

    def pieces(self, mark: bytes, start: int, size: int, limit: int) -> Iterator[bytes | memoryview]:
        """The bytes from `start` on in pieces of about `size` that end after a mark (the last one need not).

        A piece grows until it holds a mark; one of more than twice `limit` is given out without.
        """
        if self._plain and self._mappable():
            yield from self._mapped(mark, start, size, limit)
            return
        self.skip(start)
        rest, ended = b"", False
        while not ended:
            want = max(size, len(rest))  # doubling: a long document is searched a few times, not once per block
            more = self.read(want)
            ended = len(more) < want
            data = rest + more
            end = data.rfind(mark, max(0, len(rest) - len(mark) + 1))
            if ended or (end < 0 and len(data) > 2 * limit):
                rest = b""
            elif end < 0:
                rest = data
                continue
            else:
                data, rest = data[: end + len(mark)], data[end + len(mark) :]
            if data:
                yield data

    def _mapped(self, mark: bytes, start: int, size: int, limit: int) -> Iterator[memoryview]:
        total = os.fstat(self.raw.fileno()).st_size
        if not total:
            return
        mapped = mmap.mmap(self.raw.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(mapped)
        want = size
        while start < total:
            end = min(total, start + want)
            if end < total and (last := mapped.rfind(mark, start, end)) >= 0:
                end = last + len(mark)
            elif end < total and end - start <= 2 * limit:
                want *= 2
                continue
            want = size
            self.raw.seek(end)
            yield view[start:end]
            start = end
            if hasattr(mapped, "madvise"):  # what has been read need not stay in memory
                done = max(0, start - KEPT_PIECES * size)  # by the encoder too, which comes later
                mapped.madvise(mmap.MADV_DONTNEED, 0, done // mmap.PAGESIZE * mmap.PAGESIZE)

    def _mappable(self) -> bool:
        try:
            return stat.S_ISREG(os.fstat(self.raw.fileno()).st_mode)
        except (OSError, AttributeError):
            return False

    def skip(self, count: int) -> None:
        """Go `count` bytes on: by seeking in a plain file, by reading elsewhere."""
        if self._plain and self.raw.seekable():
            self.raw.seek(count, os.SEEK_CUR)
            return
        while count > 0:
            data = self.read(min(count, BUFFER))
            if not data:
                raise FledgeError(f"{self._address} ends earlier than it did before: it has changed.")
            count -= len(data)

    @contextmanager
    def anywhere(self) -> Iterator[IO[bytes]]:
        """The bytes as a file that can be read at any place: the source's own, or an unpacked copy."""
        if self._plain:
            yield self.raw
            return
        with tempfile.TemporaryFile() as unpacked:
            while data := self.read(BUFFER):
                unpacked.write(data)
            yield unpacked

    @property
    def consumed(self) -> int:
        """Bytes of the file itself, compressed or not, that have been read."""
        return self.raw.tell()


class StandardInput:
    """Standard input can be read once: its head is kept, so that the documents can be counted first."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.head = stream.read(HEAD)
        self.whole = len(self.head) < HEAD
        self._taken = False

    def preview(self) -> StandardInput:
        """The head alone, up to its last whole line: it can be read again and again."""
        if self.whole:
            return self
        return StandardInput(io.BytesIO(self.head[: self.head.rfind(b"\n") + 1] or self.head[:-1]))

    def open(self) -> IO[bytes]:
        if self._taken and not self.whole:
            raise FledgeError("Standard input can be read only once. Write it to a file first.")
        self._taken = True
        return cast(IO[bytes], _Joined(self.head, self._stream))


class _Joined(io.RawIOBase):
    """The kept head, then the rest of the stream."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest, self._position = io.BytesIO(head), rest, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._head.read(size) or self._rest.read(size)
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position


class _Zstandard(io.RawIOBase):
    """Zstandard frames one after the other. Unlike the library's reader, it refuses a frame that was cut."""

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            raise missing("Reading .zst files", "zstandard", "data") from None
        self._library, self._raw = zstandard, raw
        self._frame: Any = None
        self._ready = b""
        self._position = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, have = [], 0
        while size < 0 or have < size:
            if self._position >= len(self._ready):
                if self._ended or not self._more():
                    break
                continue
            part = self._ready[self._position : None if size < 0 else self._position + size - have]
            self._position += len(part)
            have += len(part)
            parts.append(part)
        return b"".join(parts)

    def _more(self) -> bool:
        rest = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
        data = rest or self._raw.read(ZSTD_CHUNK)
        if not data:
            if self._frame is not None and not self._frame.eof:
                raise EOFError("the last frame is not complete")
            self._ended = True
            return False
        if self._frame is None or self._frame.eof:
            self._frame = self._library.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
        try:
            self._ready, self._position = self._frame.decompress(data), 0
        except self._library.ZstdError as error:
            raise EOFError(str(error)) from None
        return True


def _gunzipped(raw: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=raw)


UNPACKERS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": _gunzipped,
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
    ".zst": _Zstandard,
}


def damaged(address: str, error: BaseException) -> str:
    return (
        f"{address} can't be decompressed to its end ({error}): the file was cut or damaged. "
        "Fetch it again, or check where it came from."
    )


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


def _decompressed(raw: IO[bytes], name: str) -> IO[bytes]:
    unpack = UNPACKERS.get(os.path.splitext(without_query(name).lower())[1])
    return raw if unpack is None else cast(IO[bytes], unpack(raw))


def filesystem(address: str) -> tuple[Any, str]:
    """The file system behind an fsspec address, and the path in it; a driver that is missing is named."""
    try:
        import fsspec
    except ImportError:
        raise missing("A remote address", "fsspec", "data") from None
    try:
        system, path = fsspec.core.url_to_fs(address)
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
    """Every stream behind the given paths, folders, globs and addresses, in the order given and sorted
    within each.
    """
    found: list[Source] = []
    for name in names:
        address = os.path.expanduser(str(name))
        if address == STANDARD_INPUT:
            chosen = "text" if format == "auto" else format
            if chosen == "parquet":
                raise FledgeError(
                    "Standard input can't be Parquet, which is read from its end. Write it to a file, and name that."
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
        raise FledgeError(f"There is no file or folder {name}.{hint or ' Check the path.'}") from None
    if not stat.S_ISREG(found.st_mode):
        raise FledgeError(
            f"{name} is a pipe or a device, which can be read only once. Give - as the source, and pipe it into that."
        )
    return name, found.st_size, str(found.st_mtime_ns)


def _remote(address: str) -> tuple[list[tuple[str, int, str]], bool]:
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

    Its first megabyte is looked at. Remote files are not, but for the first of them, which stands for the others: each
    look would be a wait.
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
