"""Documents on their way out of a corpus, some megabytes at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fledge.corpus.sources import Special
from fledge.corpus.split import Parts
from fledge.corpus.text import JoinedText


class TextBlock(NamedTuple):
    """Documents side by side: number i is `buffer[offsets[i]:offsets[i + 1]]`."""

    buffer: bytes
    offsets: npt.NDArray[np.uint64]
    parts: Parts


class Cursor(NamedTuple):
    """A place between two documents: the source's number, and the reader's position in it."""

    source: int = 0
    position: tuple[int, ...] = ()


class DocumentBatch(NamedTuple):
    """Some documents, the part of each, and the cursor from which reading would go on."""

    text: JoinedText
    parts: Parts
    cursor: Cursor
    consumed: int
    skipped: int
    checksums: npt.NDArray[np.uint32] = np.empty(0, np.uint32)  # of the documents
    special: Special = "text"  # whether special tokens written in the documents count as such

    @property
    def documents(self) -> list[bytes]:
        """The documents, each on its own."""
        return self.text.documents()


@dataclass
class Gathered:
    """What was read since the last batch, all of it to be encoded alike."""

    special: Special
    texts: list[JoinedText] = field(default_factory=list)
    parts: list[Parts] = field(default_factory=list)
    size: int = 0
    skipped: int = 0

    def add(self, text: JoinedText, parts: Parts, skipped: int) -> None:
        self.texts.append(text)
        self.parts.append(parts)
        self.size += text.size
        self.skipped += skipped

    def batch(self, cursor: Cursor, consumed: int) -> DocumentBatch:
        """All of it, with the cursor after it."""
        sums = np.concatenate([text.checksums for text in self.texts])
        parts = np.concatenate(self.parts)
        return DocumentBatch(_one(self.texts), parts, cursor, consumed, self.skipped, sums, self.special)


def _one(texts: list[JoinedText]) -> JoinedText:
    return texts[0] if len(texts) == 1 else JoinedText.of([view for text in texts for view in text.views()])
