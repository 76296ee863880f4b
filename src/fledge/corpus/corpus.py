"""`Corpus`: documents out of any text, in order, each in the training, the validation or the test part.

Nothing is held but the block at hand. The same sources always give the same documents and the same parts.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fledge.config import CorpusConfig, RunConfig, parse, say_useless
from fledge.corpus import akjv
from fledge.corpus.batch import Cursor, DocumentBatch, Gathered, TextBlock
from fledge.corpus.copies import Sides
from fledge.corpus.native import crc32
from fledge.corpus.readers import BLOCK, Options, Read, read
from fledge.corpus.sources import Source, Special, find_sources
from fledge.corpus.split import ENOUGH, PARTS, VALIDATION, Parts, held_out
from fledge.corpus.streams import BUFFER
from fledge.corpus.text import JoinedText
from fledge.errors import FledgeError, note
from fledge.files import to_bytes
from fledge.progress import progress_bar

Split = Literal["train", "validation", "test"]
COMPRESSION = 20  # bytes of text that a compressed byte may stand for
LISTED = 1000  # sources named one by one in a description; more are summed up by a checksum


class Corpus:
    """Documents of text, split into training, validation and, where one is asked for, test.

    >>> corpus = Corpus.from_documents(["In the beginning", "And the earth"], validation_fraction=0)
    >>> [document.decode() for document in corpus.documents("train")]
    ['In the beginning', 'And the earth']
    """

    def __init__(self, sources: Sequence[Source], options: Options) -> None:
        self.sources = list(sources)
        self.options = options
        self.config: CorpusConfig | None = None  # the settings it was opened with
        self._counted: tuple[int, dict[int, int | None]] | None = None
        self._said = False
        self._shown = False  # whether a bar shows the reading that finds near-copies

    @classmethod
    def open(cls, *sources: str | Path, **settings: Any) -> Corpus:
        """The documents of files, folders, globs, fsspec addresses, `-`, or named corpora, one after the other.

        The keywords are the other settings of `corpus`, such as `format="lines"`.
        """
        return cls.from_config(parse(CorpusConfig, {**settings, "source": sources}))

    @classmethod
    def from_config(cls, config: CorpusConfig) -> Corpus:
        """The corpus that the settings describe."""
        try:
            options = Options.of(config)
        except UnicodeEncodeError:
            raise FledgeError(f"corpus.separator = {config.separator!r} is not valid UTF-8.") from None
        if not config.source:
            raise FledgeError("corpus.source is empty. Name a file, a folder or a corpus such as akjv.")
        if not config.separator:
            raise FledgeError(
                "The separator (--separator, or corpus.separator) is empty. Name one, or leave it out and choose "
                "--format files or lines."
            )
        found = _find(config.source, config.format, options, held_out=False)
        found += _find(config.validation_source, config.format, options, held_out=True)
        given = (name for name, field in CorpusConfig.model_fields.items() if getattr(config, name) != field.default)
        formats = {akjv.NAME if source.format == "memory" else source.format for source in found}
        as_read = (config.model_copy(update={"format": format}) for format in formats)
        say_useless((f"corpus.{name}" for name in given), *(RunConfig(corpus=corpus) for corpus in as_read))
        corpus = cls(found, options)
        corpus.config = config
        return corpus

    @classmethod
    def from_documents(
        cls, documents: Iterable[str | bytes], validation_fraction: float = 0.1, test_fraction: float = 0.0
    ) -> Corpus:
        """A corpus of texts that are in memory, one document each."""
        texts = tuple(to_bytes(text) if isinstance(text, str) else bytes(text) for text in documents)
        shares = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
        return cls([_memory("memory", texts)], Options.of(parse(CorpusConfig, shares)))

    @property
    def arguments(self) -> list[str]:
        """The sources as they were named, and the settings that are not the usual ones, for `fledge tokenize`."""
        if self.config is None:
            return ["SOURCE"]
        words = list(self.config.source)
        for name, field in CorpusConfig.model_fields.items():
            value = getattr(self.config, name)
            if name == "source" or value == field.default:
                continue
            option = "--" + name.removesuffix("_source").replace("_", "-")
            values = value if isinstance(value, tuple) else (value,)
            words += [option] if value is True else [word for one in values for word in (option, str(one))]
        return words

    @property
    def special(self) -> Special:
        """How all documents are encoded together: special tokens count only if every source is a text file."""
        return "recognise" if all(source.special == "recognise" for source in self.sources) else "text"

    @property
    def size(self) -> int | None:
        """Bytes of the sources as they lie, compressed or not; None where that is unknown."""
        sizes = [source.size for source in self.sources]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def contiguous(self) -> bool:
        """Whether there are too few documents to hold some out, so that blocks of their text are held out instead."""
        return any(self._shares) and self._count()[0] < ENOUGH

    @cached_property
    def _sources_are_held_out(self) -> bool:
        """Whether some sources are held out as they are, instead of a share of the documents."""
        return any(source.held_out for source in self.sources)

    @property
    def _shares(self) -> tuple[float, float]:
        """What is held out of the documents for validation and for the test; sources held out are for validation."""
        return 0.0 if self._sources_are_held_out else self.options.validation_fraction, self.options.test_fraction

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts: a test part is one only where it is asked for."""
        return PARTS if self.options.test_fraction else PARTS[:2]

    @cached_property
    def _sides(self) -> Sides | None:
        """What keeps near-copies on one side, which takes a reading of its own; None where each document has its own.

        Where sources are held out as they are, or blocks of one text, nothing is to be chosen.
        """
        if self.options.split != "group" or not any(self._shares) or self.contiguous:
            return None
        if self.half_known:
            note(
                f"{self.name} can be read only once, so near-copies may end up in different parts. Write it "
                "to a file first to avoid that."
            )
            return None
        alone = Corpus(self.sources, self.options.with_nothing_held_out())
        return Sides(alone.watched("finding near-copies", self._shown))

    def keep_together(self) -> None:
        """Find near-copies now, with a progress bar, where the split needs them; else that waits for the first use."""
        self._shown = True
        _ = self._sides

    def without_groups(self) -> Corpus:
        """The same corpus, each document held out by itself."""
        found = Corpus(self.sources, replace(self.options, split="document"))
        found.config = self.config and self.config.model_copy(update={"split": "document"})
        return found

    @property
    def description(self) -> dict[str, Any]:
        """What a manifest keeps of the corpus: enough to see that another one is different."""
        listed: list[dict[str, Any]] = [
            {
                "address": source.address if "://" in source.address else os.path.basename(source.address),
                "format": source.format,
                "bytes": source.size,
                **({"held_out": True} if source.held_out else {}),
            }
            for source in self.sources[:LISTED]
        ]
        settings = {
            "separator": self.options.separator.decode(),
            "field": self.options.field,
            "book_titles": self.options.book_titles,
            "validation_fraction": self.options.validation_fraction,
            **({"test_fraction": self.options.test_fraction} if self.options.test_fraction else {}),
            "skip_bad": self.options.skip_bad,
            "split": "contiguous" if self.contiguous else "groups" if self._sides else "documents",
        }
        return {"sources": listed, "count": len(self.sources), "bytes": self.size, **settings}

    @property
    def identity(self) -> str:
        """A checksum over addresses, sizes, times of change and settings: it differs when a source has
        changed, and when it was only moved.
        """
        return self._summed([(source.address, source.stamp) for source in self.sources], self.options)

    @property
    def outline(self) -> str:
        """A checksum over sizes, formats and settings: what must agree before it is worth comparing contents.

        What is done with bad lines and long documents may differ: the contents show whether that changed them.
        """
        alike = replace(self.options, skip_bad=Options.skip_bad, max_document_bytes=Options.max_document_bytes)
        return self._summed([("", "") if one.can_move else (one.address, one.stamp) for one in self.sources], alike)

    @property
    def half_known(self) -> bool:
        """Whether `identity` may be the same for another text: standard input is known by its beginning."""
        return any(source.half_known for source in self.sources)

    def content(self, documents: int | None = None) -> int:
        """A checksum of the text of all documents, or of the first so many, which are read for it."""
        value, left = 0, sys.maxsize if documents is None else documents
        for batch in self.batches() if left else ():
            value = add_content(value, batch.checksums[:left])
            left -= len(batch.checksums[:left])
            if not left:
                break
        return value

    def _summed(self, places: list[tuple[str, str | None]], options: Options) -> str:
        digest = hashlib.sha256(repr(options).encode())
        if options.split == "group" and any(self._shares):
            digest.update(b"split by groups")
        if options.seed and (options.validation_fraction or options.test_fraction):
            digest.update(b"split with seed %d" % options.seed)
        if options.test_fraction:
            digest.update(b"test part of %r" % options.test_fraction)
        for source, (address, stamp) in zip(self.sources, places, strict=True):
            digest.update(repr((address, source.format, source.size, stamp, source.held_out)).encode())
        return digest.hexdigest()

    def blocks(self, split: Split | None = None) -> Iterator[TextBlock]:
        """The documents, some megabytes at a time; of one split, or of all."""
        for batch in self.batches():
            text, parts = batch.text, batch.parts
            if split is not None:
                wanted = parts == PARTS.index(split)
                text = JoinedText(text.buffer, text.starts[wanted], text.ends[wanted])
                parts = parts[wanted]
            if len(text):
                joined = text.joined()
                offsets = np.append(joined.starts, joined.ends[-1:]).astype(np.uint64)
                yield TextBlock(bytes(joined.buffer), offsets, parts)

    def documents(self, split: Split | None = None) -> Iterator[bytes]:
        """The documents one by one."""
        for batch in self.batches():
            for document, part in zip(batch.documents, batch.parts.tolist(), strict=True):
                if split is None or PARTS[part] == split:
                    yield document

    def watched(self, title: str, shown: bool = True) -> Iterator[DocumentBatch]:
        """The documents as `batches` gives them, with a progress bar of that title."""
        if self.options.split == "group":
            _ = self._sides  # its reading has a bar of its own, which is to end before this one begins
        with progress_bar(title, self.size, shown=shown) as bar:
            for batch in self.batches():
                yield batch
                bar.advance(batch.consumed - bar.done)

    def batches(self, start: Cursor | None = None) -> Iterator[DocumentBatch]:
        """The documents from a cursor on, in pieces of some megabytes, and the cursor after each piece."""
        start = start or Cursor()
        contiguous = self._announce() if self.contiguous else False
        before = sum(source.size or 0 for source in self.sources[: start.source])
        consumed = 0
        gathered = Gathered("text")
        for number in range(start.source, len(self.sources)):
            source = self.sources[number]
            if source.special != gathered.special:
                if gathered.size or gathered.skipped:
                    yield gathered.batch(Cursor(number), max(consumed, before))
                gathered = Gathered(source.special)
            position = list(start.position) if number == start.source else []
            spans, options = self._spans(number, contiguous)
            for found in read(source, options, position, spans):
                gathered.add(found.text, self._parts(source, found), found.skipped)
                consumed = before + (found.consumed if source.size is None else min(found.consumed, source.size))
                if gathered.size >= BLOCK // 2:
                    yield gathered.batch(Cursor(number, tuple(found.position)), consumed)
                    gathered = Gathered(source.special)
            before += source.size or 0
        if gathered.size or gathered.skipped:
            yield gathered.batch(Cursor(len(self.sources)), max(consumed, before))

    def _spans(self, number: int, contiguous: bool) -> tuple[int | bool, Options]:
        """Whether a source is cut into spans (see `read`), and with what options.

        A text without separators that is too long to be one document is cut even where nothing is to be held out.
        """
        source, options = self.sources[number], self.options
        if contiguous and not source.held_out:
            options = replace(options, validation_fraction=self._shares[0])
            known = self._count()[1][number]
            return (True if known is None else max(known, 1)), options
        limit = options.max_document_bytes
        if source.format in ("text", "files") and (source.size is None or source.size * COMPRESSION > limit):
            count, size = _survey(source, options)
            if count < ENOUGH and (size is None or size > limit):
                return size or True, options.with_nothing_held_out()
        return False, options

    def _parts(self, source: Source, found: Read) -> Parts:
        if source.held_out:
            return np.full(len(found.text), VALIDATION, np.uint8)
        if found.parts is not None:
            return np.array(found.parts, np.uint8)
        validation, test = self._shares
        sums = self._sides.checksums(found.text) if self._sides else None
        return held_out(found.text, validation, sums, self.options.seed, test)

    def _announce(self) -> bool:
        if not self._said:
            self._said = True
            count = self._count()[0]
            texts = "one document" if count == 1 else f"only {count} documents"
            shares = zip(self._shares, ("validation", "the test"), strict=True)
            held = " and ".join(f"{100 * share:g}% of the text is held out for {use}" for share, use in shares if share)
            note(
                f"{self.name} holds {texts}: {held} as contiguous blocks cut at line ends. "
                f"(With {ENOUGH} documents or more, whole documents are held out.)"
                + " corpus.split_seed has no effect on blocks."
                * bool(self.options.seed)
            )
        return True

    @property
    def name(self) -> str:
        """The sources in a few words."""
        first = self.sources[0].address if self.sources else "nothing"
        first = "standard input" if first == "-" else first
        return first if len(self.sources) == 1 else f"{first} and {len(self.sources) - 1} more"

    @property
    def few_documents(self) -> int:
        """How many there are, where they are few; elsewhere a number that is enough to be many."""
        return self._count()[0]

    def _count(self) -> tuple[int, dict[int, int | None]]:
        """The number of documents, as far as it matters, and, where they are few, the size of each source's text."""
        if self._counted is None:
            documents, sizes = 0, {}
            for number, source in enumerate(self.sources):
                if source.held_out:
                    continue
                count, sizes[number] = _survey(source, self.options)
                documents += count
                if documents >= ENOUGH:
                    break
            if not documents:
                raise FledgeError(
                    f"{self.name} holds no documents: no text but white space. Check corpus.source and corpus.format."
                )
            self._counted = documents, sizes
        return self._counted

    def __repr__(self) -> str:
        return f"Corpus({self.name})"


def add_content(value: int, checksums: npt.NDArray[np.uint32]) -> int:
    """The checksum of a content that goes on with documents of these checksums."""
    return crc32(checksums.astype("<u4", copy=False).data.cast("B"), value) if len(checksums) else value


def _find(names: Sequence[str], format: str, options: Options, held_out: bool) -> list[Source]:
    from fledge.corpus.fetch import located

    found: list[Source] = []
    for name in names:
        if format == akjv.NAME and name != akjv.NAME:
            raise FledgeError(
                f"--format akjv (corpus.format) is for the corpus akjv alone, and {name} is another source. Leave the "
                "format out, or name akjv as the source."
            )
        if name == akjv.NAME:
            found.append(_memory(akjv.NAME, tuple(akjv.verses(options.book_titles)), held_out))
            continue
        for place, part_held_out in located(name):
            found += find_sources([place], format, options.separator, held_out or part_held_out)
    return found


def _memory(name: str, documents: tuple[bytes, ...], held_out: bool = False) -> Source:
    return Source(name, "memory", sum(map(len, documents)), None, held_out, documents)


def _survey(source: Source, options: Options) -> tuple[int, int | None]:
    """How many documents a source holds, counted up to `ENOUGH`, and its text's size if that took all of it."""
    if source.head is not None and not source.head.whole:
        preview = replace(source, head=source.head.preview())
        count, _ = _survey(preview, options)
        return (ENOUGH if count > 1 else 1), None  # more is to come: separators there are, or there are none
    count = 0
    if source.format not in ("text", "files"):
        for found in read(source, options, []):
            count += len(found.text)
            if count >= ENOUGH:
                break
        return count, None
    separator = options.separator if source.format == "text" else b""
    size, inked, tail = 0, False, b""
    with source.open() as stream:
        while data := stream.read(BUFFER):
            size += len(data)
            parts = (tail + data).split(separator) if separator else [tail + data]
            for part in parts[:-1]:
                count += inked or bool(part.strip())
                inked = False
            last = parts[-1]
            tail = last[max(0, len(last) - len(separator) + 1) :] if separator else b""
            inked = inked or bool(last[: len(last) - len(tail)].strip())
            if count >= ENOUGH:
                return count, None
    return count + (inked or bool(tail.strip())), size
