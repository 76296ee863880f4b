"""What word and character tokenizers share: pieces over a floor of 256 bytes: any text can be spelled.

Ids are fixed and known: 0 to 3 special, 4 to 259 the bytes in order, then pieces, the most frequent first.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from fledge.errors import FledgeError, note
from fledge.files import to_bytes
from fledge.tokenizer.base import Ids, Roles, Special, Tokenizer
from fledge.tokenizer.checks import MOST_IDS, check_special, check_texts, check_whole
from fledge.tokenizer.disk import FORMAT
from fledge.tokenizer.parts import tokenizer_json
from fledge.tokenizer.stream import EncodedPart

SPECIAL_TOKENS = {"<|unknown|>": 0, "<|start|>": 1, "<|end|>": 2, "<|pad|>": 3}
FIRST_BYTE = len(SPECIAL_TOKENS)
FIRST_PIECE = FIRST_BYTE + 256

WORDS = r"[\p{L}\p{N}]+(?:\p{M}+[\p{L}\p{N}]*|['’][\p{L}\p{N}]+)*|[\s\x1c-\x1f]+|[^\p{L}\p{N}]"
"How a word tokenizer cuts text, for engines with Unicode classes."
_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")

Self = TypeVar("Self", bound="SpellingTokenizer")


class SpellingTokenizer(Tokenizer):
    """Known pieces are one id each; the rest is spelled in smaller ones, so nothing is out of vocabulary.

    No two ids stand for the same bytes, and decoding joins their bytes: every text comes back exactly.
    The unknown token is never produced; its id is kept for programs that expect one.
    """

    needs: ClassVar[str]
    "What pieces are, for the sentences that speak of them."

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces = tuple(pieces)
        self.special_tokens: Mapping[str, int] = dict(SPECIAL_TOKENS)
        self.known = {chr(code): FIRST_BYTE + code for code in range(128)}
        vocab = {token: text.encode() for text, token in SPECIAL_TOKENS.items()}
        vocab.update({FIRST_BYTE + byte: bytes([byte]) for byte in range(256)})
        for token, piece in enumerate(self.pieces, FIRST_PIECE):
            if not isinstance(piece, str) or not self.allowed(piece):
                raise FledgeError(
                    f"id {token} of a {self.kind} tokenizer is {piece!r:.60}: pieces must be {self.needs}."
                )
            first = self.known.setdefault(piece, token)
            if first != token:
                raise FledgeError(f"ids {first} and {token} of a {self.kind} tokenizer are both {piece!r:.60}.")
            vocab[token] = piece.encode()
        self.vocab: Mapping[int, bytes] = vocab
        self._fingerprint: str | None = None

    @staticmethod
    @abstractmethod
    def allowed(piece: str) -> bool:
        """Whether `piece` can be one id above the bytes."""

    @staticmethod
    @abstractmethod
    def count(texts: Iterable[str]) -> Counter[str]:
        """How often each possible piece occurs in `texts`."""

    @abstractmethod
    def encode_plain(self, text: str) -> Ids:
        """The ids of a text in which nothing is special; bytes that are not UTF-8 are U+DC80 to U+DCFF."""

    @abstractmethod
    def settled(self, text: str) -> int:
        """How many characters at the front of `text` have ids that nothing after it can change."""

    @classmethod
    def train(
        cls: type[Self], texts: Iterable[str | bytes], vocab_size: int | None = None, *, min_frequency: int = 1
    ) -> Self:
        """Keep the most frequent pieces: up to `vocab_size` ids, each seen `min_frequency` times or more.

        A piece never crosses from one text into the next.
        """
        if vocab_size is not None:
            check_whole("vocab_size", vocab_size, 0, MOST_IDS)
        check_whole("min_frequency", min_frequency)
        check_texts(texts)
        if vocab_size is not None and vocab_size < FIRST_PIECE:
            raise FledgeError(
                f"A vocabulary of {vocab_size} is too small for a {cls.kind} tokenizer: 4 special tokens and "
                f"256 bytes come first. Give at least {FIRST_PIECE}."
            )
        counts = cls.count(map(readable, texts))
        frequent = [piece for piece, seen in counts.items() if seen >= min_frequency and cls.allowed(piece)]
        # A character is counted wherever it stands, so it comes before every word that it is part of.
        frequent.sort(key=lambda piece: (-counts[piece], len(piece), piece))
        if vocab_size is not None:
            if vocab_size > FIRST_PIECE + len(frequent):
                times = f" seen {min_frequency} times" if min_frequency > 1 else ""
                note(
                    f"The text fills {FIRST_PIECE + len(frequent):,} of the {vocab_size:,} ids asked for: "
                    f"it has no more {cls.needs}{times}."
                )
            frequent = frequent[: vocab_size - FIRST_PIECE]
        return cls(frequent)

    @property
    def vocab_size(self) -> int:
        return FIRST_PIECE + len(self.pieces)

    @property
    def roles(self) -> Roles:
        return Roles(unknown=0, start=1, end=2, pad=3)

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            identity = json.dumps([self.kind, 1, self.pieces], separators=(",", ":"))
            self._fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        return self._fingerprint

    def encode_array(self, text: str | bytes, special: Special = "recognise") -> Ids:
        check_special(special)
        return self._encode_readable(readable(text), special)

    def _encode_readable(self, text: str, special: Special, start: int = 0) -> Ids:
        """The ids of a text, or of the part of one that begins at character `start`."""
        if special == "text" or "<|" not in text:
            return self.encode_plain(text)
        parts = _SPECIAL.split(text)  # plain, special, plain, special, …, plain
        if special == "refuse" and len(parts) > 1:
            raise FledgeError(
                f"the text holds the special token {parts[1]} at character {start + len(parts[0])}, and that is "
                "forbidden here. special='text' takes it as plain text, special='recognise' as the token."
            )
        ids = [
            np.array([SPECIAL_TOKENS[part]], self.token_dtype) if position % 2 else self.encode_plain(part)
            for position, part in enumerate(parts)
        ]
        return np.concatenate(ids)

    def encode_lines(self, lines: Iterable[str | bytes], special: Special = "text") -> list[list[int]]:
        """The ids of each line, between start and end.

        >>> from fledge.tokenizer import CharacterTokenizer
        >>> CharacterTokenizer([]).encode_lines(["ab", ""])
        [[1, 101, 102, 2], [1, 2]]
        """
        check_texts(lines)
        start, end = SPECIAL_TOKENS["<|start|>"], SPECIAL_TOKENS["<|end|>"]
        return [[start, *self.encode_array(line, special).tolist(), end] for line in lines]

    def _encode_pieces(
        self, pieces: Iterable[bytes], special: Special, threads: int | None = None
    ) -> Iterator[EncodedPart]:
        """`threads` changes nothing, for this is Python and runs on one."""
        decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        start = 0
        for text in self._settled_parts(map(decode, pieces), lambda: decode(b"", True)):
            ids = self._encode_readable(text, special, start)
            start += len(text)
            if text.isascii():
                yield EncodedPart(ids, len(text), 0)
            else:
                yield EncodedPart(ids, len(text.encode("utf-8", "surrogateescape")), len(_NOT_UTF8.findall(text)))

    def _settled_parts(self, parts: Iterable[str], last: Any) -> Iterator[str]:
        """The joined text cut anew, at places where a cut changes no id."""
        held, length, enough = [""], 0, 0
        for part in parts:
            held.append(part)
            length += len(part)
            if length < enough:
                continue
            joined = "".join(held)
            cut = self.settled(joined)
            yield joined[:cut]
            held, length = [joined[cut:]], len(joined) - cut
            enough = 2 * length  # a text without a place to cut is not searched again for every part
        yield "".join([*held, last()])

    def _document(self, where: str, shared: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        if shared:
            return write_spelled(self), self._described()
        ours = {
            "format": FORMAT,
            "kind": self.kind,
            "special_tokens": dict(self.special_tokens),
            "first_byte": FIRST_BYTE,
            "first_piece": FIRST_PIECE,
            "pieces": list(self.pieces),
        }
        return ours, {}


def readable(text: str | bytes) -> str:
    """The text as a string that UTF-8 with `surrogateescape` turns into its very bytes, good or bad."""
    if isinstance(text, str):
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            pass
    return to_bytes(text).decode("utf-8", "surrogateescape")


def written_names(tokenizer: SpellingTokenizer) -> dict[int, str]:
    """Every id as other programs write it: characters and words as they are, other bytes as <0x80> to <0xFF>."""
    names = {token: text for text, token in SPECIAL_TOKENS.items()}
    names |= {FIRST_BYTE + byte: chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in range(256)}
    return names | dict(enumerate(tokenizer.pieces, FIRST_PIECE))


def write_spelled(tokenizer: SpellingTokenizer) -> dict[str, Any]:
    """The whole of Hugging Face's `tokenizer.json`, which gives every text the ids that the tokenizer gives it.

    To its programs these are BPE without merges: what is cut out of a text (all of it, or a word) is one token if it is
    in the vocabulary, else its characters, and a character without an id is its bytes.
    """
    words = tokenizer.kind == "word"
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    model = {
        "byte_fallback": True,
        "ignore_merges": words,
        "vocab": {text: token for token, text in written_names(tokenizer).items()},
        "merges": [],
    }
    return tokenizer_json(SPECIAL_TOKENS, (), decoder, model, pre_tokenizer=split if words else None)


def read_spelled(document: Any, kind: type[SpellingTokenizer], where: str) -> SpellingTokenizer:
    """The tokenizer out of such a file; one that differs anywhere from how it is written is refused."""
    try:
        vocabulary = document["model"]["vocab"]
        tokenizer = kind(sorted((text for text in vocabulary if vocabulary[text] >= FIRST_PIECE), key=vocabulary.get))
    except FledgeError as error:
        raise FledgeError(f"{where}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise FledgeError(f"{where} is not the {kind.kind} tokenizer that {kind.kind} models leave with.") from None
    wanted = write_spelled(tokenizer)
    for section in wanted.keys() - {"post_processor", "version"}:
        if document.get(section) != wanted[section]:
            raise FledgeError(
                f"{where}: its section {section} is not that of a {kind.kind} tokenizer, so text would have other ids "
                "here. Bring the file from where the model was trained."
            )
    return tokenizer
