"""Documents out of a source, some megabytes at a time, from any position on: one function per format.

A position is a short list of numbers that a reader understands (bytes, lines or rows done); reading from it
gives exactly the documents that were still to come, so interrupted work can go on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fledge.config import CorpusConfig
from fledge.corpus.sources import Source
from fledge.corpus.split import Spans, cut_document, cut_place
from fledge.corpus.streams import BUFFER
from fledge.corpus.text import JoinedText
from fledge.errors import FledgeError, nearest
from fledge.extras import missing
from fledge.files import readable_bytes, to_bytes

BLOCK = 16 << 20  # bytes of text per step: large enough to keep every core busy, small enough to forget
ROWS = 4096  # rows of a Parquet file per step, at most
DEFAULT = CorpusConfig()


@dataclass(frozen=True)
class Options:
    """What the formats need to know beyond the source. Checksums of stores are made of its `repr`."""

    separator: bytes = DEFAULT.separator.encode()
    field: str = DEFAULT.field
    book_titles: bool = DEFAULT.book_titles
    validation_fraction: float = DEFAULT.validation_fraction
    skip_bad: bool = DEFAULT.skip_bad
    max_document_bytes: int = DEFAULT.max_document_bytes
    split: Literal["document", "group"] = dataclasses.field(default="document", repr=False)  # old checksums lack it
    seed: int = dataclasses.field(default=DEFAULT.split_seed, repr=False)  # this, too
    test_fraction: float = dataclasses.field(default=DEFAULT.test_fraction, repr=False)  # and this

    @classmethod
    def of(cls, config: CorpusConfig) -> Options:
        same = {field.name for field in dataclasses.fields(cls)} - {"separator", "seed"}
        return cls(config.separator.encode(), seed=config.split_seed, **config.model_dump(include=same))

    def with_nothing_held_out(self) -> Options:
        """For all of a text."""
        return dataclasses.replace(self, validation_fraction=0.0, test_fraction=0.0)


class Read(NamedTuple):
    """Some documents, the position after them, the source bytes consumed, and how many bad lines were skipped."""

    text: JoinedText
    position: list[int]
    consumed: int
    skipped: int = 0
    parts: list[int] | None = None  # None: decided by the documents' hashes


def read(source: Source, options: Options, position: list[int], contiguous: int | bool = False) -> Iterator[Read]:
    """The documents of a source after `position` ([] for its start).

    `contiguous` cuts texts into spans of their parts: its value is the text's size, or True if unknown.
    """
    size = None if contiguous is True else contiguous
    if contiguous and source.format in ("text", "files"):
        separator = options.separator if source.format == "text" else b""
        spans = Spans.of(size, options.validation_fraction, options.test_fraction)
        yield from _spans(source, separator, spans, position)
        return
    for found in READERS[source.format](source, options, position):
        yield _cut(found, options) if contiguous else found


def _cut(found: Read, options: Options) -> Read:
    shares = options.validation_fraction, options.test_fraction
    pieces = [piece for document in found.text.documents() for piece in cut_document(document, *shares)]
    return found._replace(text=JoinedText.of([text for text, _ in pieces]), parts=[part for _, part in pieces])


def read_text(source: Source, options: Options, position: list[int]) -> Iterator[Read]:
    """One text with a separator between documents."""
    yield from _separated(source, options.separator, options, position)


def read_lines(source: Source, options: Options, position: list[int]) -> Iterator[Read]:
    """One document per line, without its line end."""
    yield from _separated(source, b"\n", options, position)


def read_file(source: Source, options: Options, position: list[int]) -> Iterator[Read]:
    """The whole source as one document."""
    if position:
        return
    with source.open() as stream:
        parts, size = [], 0
        while part := stream.read(BUFFER):
            parts.append(part)
            size += len(part)
            if size > options.max_document_bytes:
                raise FledgeError(_too_long(source, "byte 0", options))
        yield Read(JoinedText.of([b"".join(parts)]), [1], stream.consumed)


def _separated(source: Source, mark: bytes, options: Options, position: list[int]) -> Iterator[Read]:
    done = position[0] if position else 0
    with source.open() as stream:
        for data in stream.pieces(mark, done, BLOCK, options.max_document_bytes):
            text = JoinedText.between(data, mark, strip_returns=mark == b"\n")
            if text.longest > options.max_document_bytes:
                first = int(text.starts[(text.ends - text.starts > options.max_document_bytes).argmax()])
                raise FledgeError(_too_long(source, f"byte {done + first:,}", options))
            done += len(data)
            yield Read(text, [done], stream.consumed)


def _spans(source: Source, separator: bytes, spans: Spans, position: list[int]) -> Iterator[Read]:
    """A text of few documents as alternating spans of its parts, cut at line ends and separators."""
    done = position[0] if position else 0
    with source.open() as stream:
        stream.skip(done)
        data, ended = b"", False
        while True:
            place, part = spans.next(done)
            slack = spans.slack(part)
            need = place - done + slack + len(separator) + 4  # and the rest of a separator or a character
            if not ended and len(data) < need:
                more = stream.read(need - len(data))
                ended = len(data) + len(more) < need
                data += more
            if not data:
                return
            beyond = place - done >= len(data)
            end = len(data) if beyond else cut_place(data, place - done, slack, separator)
            text = JoinedText.between(data[:end], separator) if separator else JoinedText.of([data[:end]])
            data = data[end:]
            done += end
            yield Read(text, [done], stream.consumed, 0, [part] * len(text))


def _too_long(source: Source, place: str, options: Options) -> str:
    return (
        f"{source.address}: the document at {place} is longer than "
        f"{readable_bytes(options.max_document_bytes)}. "
        "Check the separator and the format, or raise the limit with --max-document-bytes (in a recipe, "
        "corpus.max_document_bytes) if there is memory for it."
    )


def read_jsonl(source: Source, options: Options, position: list[int]) -> Iterator[Read]:
    """One JSON object per line; the document is the text in one of its fields."""
    done, line = position or (0, 0)
    with source.open() as stream:
        for data in stream.pieces(b"\n", done, BLOCK, options.max_document_bytes):
            documents, skipped = [], 0
            for text in bytes(data).removesuffix(b"\n").split(b"\n"):
                line += 1
                if not text or text.isspace():
                    continue
                too_long = len(text) > 2 * options.max_document_bytes  # if so, reading may have stopped within the line
                try:
                    document = b"" if too_long else _field(text, options.field)
                except ValueError as error:
                    if not options.skip_bad:
                        raise FledgeError(
                            f"{source.address}, line {line:,}: {error}. Correct the line, or leave such lines out "
                            "with --skip-bad."
                        ) from None
                    skipped += 1
                    continue
                if too_long or len(document) > options.max_document_bytes:
                    raise FledgeError(_too_long(source, f"line {line:,}", options))
                documents.append(document)
            done += len(data)
            yield Read(JoinedText.of(documents), [done, line], stream.consumed, skipped)


def _field(line: bytes, field: str) -> bytes:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at column {error.colno})") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, and this is {_kind(value)}")
    if field not in value:
        raise ValueError(
            f"there is no field {field!r}. {nearest(field, value) if value else 'The object is empty'}".rstrip(".")
        )
    text = value[field]
    if not isinstance(text, str):
        raise ValueError(f"the field {field!r} holds {_kind(text)}, not text")
    return to_bytes(text)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def read_parquet(source: Source, options: Options, position: list[int]) -> Iterator[Read]:
    """One row per document; the text is in one column. Rows without a text (null) are left out."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise missing("Reading Parquet files", "pyarrow", "data") from None
    done = position[0] if position else 0
    with source.open() as stream, stream.anywhere() as opened:
        try:
            # Unless told otherwise, the library holds a whole row group of the file.
            file = parquet.ParquetFile(opened, buffer_size=BUFFER, pre_buffer=False)
            names = file.schema_arrow.names
            if options.field not in names:
                raise FledgeError(
                    f"{source.address} has no column {options.field!r}. {nearest(options.field, names)} Name "
                    "the column with --field (in a recipe, corpus.field)."
                )
            kind = file.schema_arrow.field(options.field).type
            value_kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
            texts = (
                arrow.types.is_string,
                arrow.types.is_large_string,
                arrow.types.is_binary,
                arrow.types.is_large_binary,
            )
            if not any(check(value_kind) for check in texts):
                raise FledgeError(
                    f"{source.address}: the column {options.field!r} holds {kind}, not text. Name "
                    "the column with --field (in a recipe, corpus.field)."
                )
            first = 0
            for group in range(file.num_row_groups):
                facts = file.metadata.row_group(group)
                rows = facts.num_rows
                step = max(1, min(ROWS, BLOCK * rows // max(1, facts.total_byte_size)))
                skip = max(0, done - first)
                first += rows
                if skip >= rows:
                    continue
                for batch in file.iter_batches(batch_size=step, row_groups=[group], columns=[options.field]):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    column = batch.column(0)[skip:].cast(value_kind).cast(arrow.large_binary())
                    skip = 0
                    documents = column.to_pylist()
                    for row, document in enumerate(documents, done + 1):
                        if document and len(document) > options.max_document_bytes:
                            raise FledgeError(_too_long(source, f"row {row:,}", options))
                    done += len(column)
                    yield Read(JoinedText.of([document for document in documents if document]), [done], stream.consumed)
        except (arrow.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:  # of the disk; Arrow's own have none
                raise
            reason = str(error).splitlines()[0]
            raise FledgeError(f"{source.address} is not a whole Parquet file ({reason}). Fetch it again.") from None


def read_memory(source: Source, options: Options, position: list[int]) -> Iterator[Read]:
    """Documents that are already in memory: the verses of the AKJV, or a list given by the caller."""
    done = position[0] if position else 0
    while done < len(source.documents):
        size, end = 0, done
        while end < len(source.documents) and size < BLOCK:
            size += len(source.documents[end])
            end += 1
        text = JoinedText.of(source.documents[done:end])
        done = end
        yield Read(text, [done], sum(map(len, source.documents[:done])))


READERS: dict[str, Callable[[Source, Options, list[int]], Iterator[Read]]] = {
    "text": read_text,
    "lines": read_lines,
    "files": read_file,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "memory": read_memory,
}
