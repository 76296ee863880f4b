"""The character tokenizer: one id per code point; one too rare to have an id is spelled in its bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fledge.tokenizer.base import Ids, Special
from fledge.tokenizer.checks import check_special
from fledge.tokenizer.spelling import FIRST_BYTE, FIRST_PIECE, SPECIAL_TOKENS, SpellingTokenizer

_LONGEST_SPECIAL = max(map(len, SPECIAL_TOKENS))


class CharacterTokenizer(SpellingTokenizer):
    """Characters as ids. ASCII is spelled by the 128 lower bytes, so `pieces` are the characters beyond it.

    >>> tokenizer = CharacterTokenizer.train(["naïve café"])
    >>> tokenizer.pieces
    ('é', 'ï')
    >>> tokenizer.encode("é€")
    [260, 230, 134, 176]
    >>> tokenizer.decode([260, 230, 134, 176])
    'é€'
    """

    kind = "character"
    needs = "single characters beyond ASCII"

    def __init__(self, pieces: Iterable[str]) -> None:
        super().__init__(pieces)
        codes = [ord(piece) for piece in self.pieces]
        self._id_of_code = np.full(max(codes, default=0) + 2, -1, np.int32)  # the last entry stays for codes beyond
        self._id_of_code[codes] = np.arange(FIRST_PIECE, FIRST_PIECE + len(codes))

    @staticmethod
    def allowed(piece: str) -> bool:
        return len(piece) == 1 and piece > "\x7f" and not "\ud800" <= piece <= "\udfff"

    @staticmethod
    def count(texts: Iterable[str]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for text in texts:
            if not text.isascii():
                counts.update(text)
        return counts

    def settled(self, text: str) -> int:
        """All but what may be the front of a special token."""
        cut = text.rfind("<", max(0, len(text) - _LONGEST_SPECIAL))
        return cut if cut >= 0 else len(text)

    def encode_plain(self, text: str) -> Ids:
        ids, kept = self._ids_by_byte(text)
        return ids if kept is None else ids[kept]

    def encode_spans(
        self, buffer: bytes | memoryview, offsets: Ids, special: Special = "text", threads: int | None = None
    ) -> tuple[Ids, npt.NDArray[np.uint64]]:
        """As for every tokenizer, in one pass over the buffer; `threads` changes nothing."""
        check_special(special)
        view = memoryview(buffer)
        starts = np.asarray(offsets, np.int64)
        data = np.frombuffer(view, np.uint8)
        inner = starts[1:-1][starts[1:-1] < len(data)]
        if special != "text" or not starts.size or bool(np.any((data[inner] & 0xC0) == 0x80)):
            return super().encode_spans(buffer, offsets, special, threads)  # a span begins inside a character
        ids, kept = self._ids_by_byte(str(view[starts[0] : starts[-1]], "utf-8", "surrogateescape"))
        bounds = starts - starts[0]
        if kept is None:
            return ids, bounds.astype(np.uint64)
        before = np.zeros(len(kept) + 1, np.uint64)
        np.cumsum(kept, out=before[1:])
        return ids[kept], before[bounds]

    def _ids_by_byte(self, text: str) -> tuple[Ids, npt.NDArray[np.bool_] | None]:
        """An id for every byte of the text, and which of them to keep (None for all).

        Every byte has its own id at first. Then a known character's id takes the place of its first byte, and
        its other bytes are dropped.
        """
        data = np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)
        ids = data.astype(self.token_dtype)
        ids += FIRST_BYTE
        if len(data) == len(text) or not self.pieces:
            return ids, None
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        lengths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
        lengths[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1  # a byte that is not UTF-8
        firsts = np.cumsum(lengths) - lengths
        tokens = self._id_of_code[np.minimum(codes, len(self._id_of_code) - 1)]
        known = tokens >= 0
        ids[firsts[known]] = tokens[known]
        kept = np.repeat(~known, lengths)
        kept[firsts] = True
        return ids, kept
