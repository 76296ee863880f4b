"""The word tokenizer: words, runs of white space and single punctuation marks, each one id.

A word too rare to have an id is spelled in characters, and a character without one in bytes.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from fledge.tokenizer.base import Ids
from fledge.tokenizer.spelling import FIRST_BYTE, SpellingTokenizer

REMEMBERED = 1 << 17  # stretches of text whose ids are kept at hand

# White space of more than one character is one piece; what lies between such runs can be cut at spaces and line ends.
_RUNS = re.compile(r"(\s\s+)")


class WordTokenizer(SpellingTokenizer):
    """Words as ids. The `pieces` are words, runs of white space and characters beyond ASCII, by frequency.

    >>> tokenizer = WordTokenizer.train(["the egg, the Egg and the egg"])
    >>> tokenizer.pieces
    ('the', 'egg', 'Egg', 'and')
    >>> tokenizer.encode("the egg?")
    [260, 36, 261, 67]
    >>> tokenizer.decode(tokenizer.encode("the eggs?"))
    'the eggs?'
    """

    kind = "word"
    needs = "words, runs of white space or characters beyond ASCII"

    def __init__(self, pieces: Iterable[str]) -> None:
        super().__init__(pieces)
        self._type_code = "H" if self.token_dtype.itemsize == 2 else "I"
        self._stretches = _Stretches(self)

    def __reduce__(self) -> tuple[type[WordTokenizer], tuple[tuple[str, ...]]]:
        return WordTokenizer, (self.pieces,)

    @staticmethod
    def allowed(piece: str) -> bool:
        if piece.isascii() and len(piece) == 1:
            return False
        return words(piece) == [piece] and not any("\ud800" <= character <= "\udfff" for character in piece)

    @staticmethod
    def count(texts: Iterable[str]) -> Counter[str]:
        stretches: Counter[str] = Counter()
        for text in texts:
            parts = _RUNS.split(text)
            stretches.update(parts[1::2])
            for part in parts[::2]:
                stretches.update(part.replace("\n", " ").split(" "))
        counts: Counter[str] = Counter()
        split = splitter()
        for stretch, seen in stretches.items():
            for piece in split(stretch):
                counts[piece] += seen
        for piece, seen in list(counts.items()):
            if len(piece) > 1 and not piece.isascii():
                for character in piece:
                    counts[character] += seen
        return counts

    def settled(self, text: str) -> int:
        """Up to the last white space that follows something else: nothing reaches across."""
        cut = len(text) - 1
        while cut > 0 and not (text[cut].isspace() and not text[cut - 1].isspace()):
            cut -= 1
        return max(cut, 0)

    def encode_plain(self, text: str) -> Ids:
        ids = bytearray()
        width = self.token_dtype.itemsize
        encoded = self._stretches.__getitem__
        line_end = np.array([self.known["\n"]], self.token_dtype).tobytes()
        for position, part in enumerate(_RUNS.split(text)):
            if position % 2:
                ids += encoded(part)
            else:
                for line in part.split("\n"):
                    ids += b"".join(map(encoded, line.split(" ")))
                    ids[-width:] = line_end
            del ids[-width:]  # the space or line end that is not there
        return np.frombuffer(ids, self.token_dtype)

    def encode_stretch(self, text: str) -> bytes:
        """The ids of each word in `text`, or of its spelling, as raw bytes."""
        ids: list[int] = []
        for piece in splitter()(text):
            token = self.known.get(piece)
            if token is not None:
                ids.append(token)
                continue
            for character in piece:
                token = self.known.get(character)
                if token is not None:
                    ids.append(token)
                else:
                    ids += [FIRST_BYTE + byte for byte in character.encode("utf-8", "surrogateescape")]
        return array(self._type_code, ids).tobytes()


class _Stretches(dict[str, bytes]):
    """The ids of what stands between two spaces, and of one space after it, worked out when first met.

    Most of a text is made of few such stretches, so most of it is encoded by looking up and joining bytes.
    """

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self._encode = tokenizer.encode_stretch
        self._space = np.array([tokenizer.known[" "]], tokenizer.token_dtype).tobytes()

    def __missing__(self, text: str) -> bytes:
        ids = self._encode(text) + self._space
        if len(text) < 100:
            if len(self) >= REMEMBERED:
                self.clear()
            self[text] = ids
        return ids


def words(text: str) -> list[str]:
    """The text cut into words, runs of white space and single other characters; joined, they are the text.

    Letters and digits make words, with the marks that combine with them, and an apostrophe between letters.

    >>> words("You're  annoying.")
    ["You're", '  ', 'annoying', '.']
    """
    return splitter()(text)


@cache
def splitter() -> Callable[[str], list[str]]:
    letter, mark = r"[^\W_]", f"[{combining_marks()}]"
    return re.compile(rf"{letter}+(?:{mark}+{letter}*|['’]{letter}+)*|\s+|[\W_]").findall


def combining_marks() -> str:
    """The combining marks as ranges of a character class: Python's `re` has no name for them.

    All of them lie in these two ranges; without them, words of Hindi, Thai or decomposed French fall apart.
    """
    ranges: list[list[int]] = []
    for code in (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0)):
        if unicodedata.category(chr(code)).startswith("M"):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
