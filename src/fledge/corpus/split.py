"""Which documents are held out: by a hash of each, or, where there are too few of them, as contiguous blocks.

The hash depends on the document's bytes alone, so a document stays on its side when others are added; a near-copy has
the hash of the first of its group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fledge.corpus.text import JoinedText, find_marks

Parts = npt.NDArray[np.uint8]
PARTS = ("train", "validation", "test")  # a document's part is a number: its place in this row
TRAIN, VALIDATION, TEST = range(3)

CHARACTER = 4  # bytes, at most: the cut before a shorter test block might lie past it
ENOUGH = 20  # documents; with fewer, a share chosen by hash may well be empty
BLOCKS = 10  # held-out blocks per text, spread over it, so that they resemble all of it
SMALLEST_PERIOD = 4096  # bytes of text per held-out block, at least
LARGEST_PERIOD = 32 << 20  # and at most: it bounds the memory that a text without separators needs
LINE_SEARCH = 1 << 16  # how far past the chosen place a line may end


def held_out(
    text: JoinedText, fraction: float, checksums: npt.NDArray[np.uint32] | None = None, seed: int = 0, test: float = 0.0
) -> Parts:
    """The part of each document, by its checksum or by one that is given instead.

    The validation part takes the lowest hashes and the test part the highest, so neither depends on the size of the
    other. Another seed chooses others; seed 0 is the split of stores that were made before there was one.

    >>> held_out(JoinedText.of([b"a verse"]), 0.0).tolist()
    [0]
    """
    parts = np.zeros(len(text), np.uint8)
    if not fraction and not test:
        return parts
    values = (text.checksums if checksums is None else checksums).astype(np.uint64)
    if seed:
        values ^= _mixed(np.array([seed], np.uint64))
    values = _mixed(values)
    parts[values < np.uint64(int(fraction * 2**64))] = VALIDATION
    parts[~values < np.uint64(int(test * 2**64))] = TEST
    return parts


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread 32 bits over 64, so that near checksums are not near: like splitmix64, with one shift fewer.

    Which documents a store holds out depends on every bit of it, so it stays as it is.
    """
    values = (values + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True)
class Spans:
    """The places where a text changes between its parts, found one after the other.

    The text is a row of equal periods. The last `held` bytes of each are for validation, and the `test` bytes before
    those for the test.
    """

    period: int
    held: int
    test: int = 0

    @classmethod
    def of(cls, size: int | None, fraction: float, test: float = 0.0) -> Spans:
        """The spans of a text of `size` bytes; of one whose size is unknown, the largest periods."""
        period = LARGEST_PERIOD
        if size is not None:
            periods = max(1, min(BLOCKS, size // SMALLEST_PERIOD), -(-size // LARGEST_PERIOD))
            period = max(1, -(-size // periods))
        tested = round(period * test)
        return cls(period, max(1, round(period * fraction)) if fraction else 0, tested if tested >= CHARACTER else 0)

    def slack(self, part: int) -> int:
        """How far past its place the cut after a span of this part may move to find the end of a line.

        It never passes a whole validation block, and the cuts around one do not depend on the test blocks.
        """
        held = self.test if not self.held or (part == TRAIN and self.test) else self.held
        return min(LINE_SEARCH, (held or self.period) // 2, (self.period - held) // 2)

    def next(self, position: int) -> tuple[int, int]:
        """Where the span that holds byte `position` should end, and its part.

        >>> [Spans(period=100, held=10, test=5).next(position) for position in (0, 85, 92)]
        [(85, 0), (90, 2), (100, 1)]
        """
        end = (position // self.period + 1) * self.period
        if position < end - self.held - self.test:
            return end - self.held - self.test, TRAIN
        if position < end - self.held:
            return end - self.held, TEST
        return end, VALIDATION if self.held else TEST


def cut_place(data: bytes | memoryview, place: int, slack: int, separator: bytes = b"") -> int:
    """The cut nearest after `place`: past a line's end, else past a blank, else between two characters.

    It never lies inside a separator, half of which would become text: it moves to the separator's start, or to its end
    where the data starts with it.
    """
    end = _plain_cut(data, place, slack)
    if separator:
        for start in find_marks(data[: end + len(separator) - 1], separator).tolist():
            if start < end < start + len(separator):
                return start or len(separator)
    return end


def _plain_cut(data: bytes | memoryview, place: int, slack: int) -> int:
    window = bytes(data[place : place + slack])
    for mark in (b"\n", b" "):
        if (found := window.find(mark)) >= 0:
            return place + found + 1
    end = place
    while end < len(data) and data[end] & 0xC0 == 0x80:  # a UTF-8 continuation byte: stay with its character
        end += 1
    return min(end, len(data))


def cut_document(document: bytes, fraction: float, test: float = 0.0) -> list[tuple[bytes, int]]:
    """One document as alternating pieces, each with its part."""
    spans = Spans.of(len(document), fraction, test)
    pieces: list[tuple[bytes, int]] = []
    position = 0
    while position < len(document):
        place, part = spans.next(position)
        end = cut_place(document, place, spans.slack(part)) if place < len(document) else len(document)
        if document[position:end].strip():
            pieces.append((document[position:end], part))
        position = end
    return pieces
