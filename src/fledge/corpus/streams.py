"""The bytes of a source, plain or compressed: read in pieces, skipped, or taken from standard input, which comes once.

What is compressed is told by the end of its name.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from fledge import system
from fledge.errors import FledgeError, changed
from fledge.extras import missing
from fledge.files import without_query

HEAD = 64 << 20  # of standard input, kept in memory to see how its documents lie
BUFFER = 1 << 20
ZSTD_CHUNK = 1 << 16
ZSTD_WINDOW = 1 << 31  # bytes: what `zstd --long=31` looks back on


def read_at(file: int, start: int, size: int, name: object) -> bytes:
    """Exactly `size` bytes of an open file from a place that it had; a file that has become shorter is named."""
    parts = []
    while size > 0:
        part = system.read_at(file, size, start)
        if not part:
            raise changed(name, "became shorter")
        parts.append(part)
        start += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
        if self._plain and self._on_disk():
            yield from self._anew(mark, start, size, limit)
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

    def _anew(self, mark: bytes, start: int, size: int, limit: int) -> Iterator[memoryview]:
        """Every piece read from its start: what stands behind its last mark is read again with the next one.

        Nothing is mapped, for a file that becomes shorter would then end the process.
        """
        total = os.fstat(self.raw.fileno()).st_size
        want = size
        while start < total:
            data = read_at(self.raw.fileno(), start, min(total - start, want), self._address)
            end = len(data)
            if start + end < total and (last := data.rfind(mark)) >= 0:
                end = last + len(mark)
            elif start + end < total and end <= 2 * limit:
                want *= 2
                continue
            want = size
            start += end
            self.raw.seek(start)
            yield memoryview(data)[:end]

    def _on_disk(self) -> bool:
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


def decompressed(raw: IO[bytes], name: str) -> IO[bytes]:
    """The same bytes unpacked, as the end of the name says."""
    unpack = UNPACKERS.get(os.path.splitext(without_query(name).lower())[1])
    return raw if unpack is None else cast(IO[bytes], unpack(raw))


def damaged(address: str, error: BaseException) -> str:
    return (
        f"{address} can't be decompressed to its end ({error}): the file was cut or damaged. "
        "Fetch it again, or check where it came from."
    )
