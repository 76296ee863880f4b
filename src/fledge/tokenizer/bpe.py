"""Byte-pair encoding: any bytes to ids and back, by merges learned from text. The work is done in native code.

Text is first cut into pre-tokens by a pattern (`gpt2`, `cl100k`, `o200k`, or a regular expression); merges never cross
their borders, nor those of special tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fledge.errors import FledgeError
from fledge.files import COMPRESSED, to_bytes
from fledge.tokenizer.base import Ids, Roles, Special, Tokenizer
from fledge.tokenizer.checks import MOST_IDS, as_path, brief, check_special, check_texts, check_threads, thread_count
from fledge.tokenizer.parts import Parts
from fledge.tokenizer.patterns import PATTERNS, check_pattern, compose, cut_pretokens, encode_between, refused
from fledge.tokenizer.specials import number_specials, roles_by_name
from fledge.tokenizer.stream import EncodedPart, LastCut, file_blocks, settled_blocks

if TYPE_CHECKING:
    from fledge._core import Encoder
    from fledge.tokenizer.train import TrainingProfile

SHORT = 10_000  # characters: up to this a call is worth more than what other threads could do meanwhile
_OF_WHAT = "a vocabulary is ids and their bytes, and merges are pairs of bytes; something else is among them."


class BPETokenizer(Tokenizer):
    """Byte-level BPE from a vocabulary and merges in order of rank.

    `special_tokens` are texts with their ids, or texts alone: these take their id from the vocabulary, or the next free
    one. `roles` default to what the names of the special tokens say. Those named in `always` are found in text whatever
    `special` says, as Hugging Face does with tokens that were added but are not special. `lazy` leaves the tables of
    native code to their first use; otherwise they are made now, so that the first text is as quick as the next.

    `composed` and `whole_words` are for vocabularies of other programs: the first composes text to Unicode's NFC, which
    is then what `decode` gives back; the second makes every pre-token that is a token this token (`ignore_merges`).

    >>> vocab = {i: bytes([i]) for i in range(256)} | {256: b"th", 257: b"the"}
    >>> tokenizer = BPETokenizer(vocab, [(b"t", b"h"), (b"th", b"e")], ["<|endoftext|>"])
    >>> tokenizer.encode("the<|endoftext|>th")
    [257, 258, 256]
    >>> tokenizer.decode([257, 258])
    'the<|endoftext|>'
    """

    kind = "bpe"

    def __init__(
        self,
        vocab: Mapping[int, bytes],
        merges: Sequence[tuple[bytes, bytes]],
        special_tokens: Mapping[str, int] | Iterable[str] | None = None,
        *,
        pattern: str = "gpt2",
        roles: Roles | None = None,
        always: Iterable[str] = (),
        composed: bool = False,
        whole_words: bool = False,
        lazy: bool = False,
    ) -> None:
        check_pattern(pattern)
        try:
            self.vocab: dict[int, bytes] = dict(vocab)
            self.merges: list[tuple[bytes, bytes]] = list(merges)
        except (TypeError, ValueError):
            raise FledgeError(_OF_WHAT) from None
        self.pattern, self.composed, self.whole_words = pattern, composed, whole_words
        size = _checked_size(self.vocab)
        self.special_tokens: dict[str, int] = number_specials(self.vocab, special_tokens)
        self.always = frozenset(always)
        if unknown := self.always - self.special_tokens.keys():
            raise FledgeError(f"always = {min(unknown)!r:.60} is not one of special_tokens.")
        self.training_profile: TrainingProfile | None = None
        "Where the time and memory of training went; None for a tokenizer that was not trained here."
        self._size = max([size, *(token + 1 for token in self.special_tokens.values())])
        by_name = {text: token for text, token in self.special_tokens.items() if text not in self.always}
        self._roles = roles if roles is not None else roles_by_name(by_name)
        if not lazy:
            self._prepare()

    def _prepare(self) -> None:
        """Make the tables of native code; where it was not built, all that needs no encoding still works."""
        with contextlib.suppress(ImportError):
            _ = self._encoder

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: native tables stay here, and are made anew there when they are needed."""
        return {name: value for name, value in self.__dict__.items() if name != "_encoder"}

    @classmethod
    def from_files(
        cls,
        vocab: str | PathLike[str],
        merges: str | PathLike[str],
        special_tokens: Mapping[str, int] | Iterable[str] | None = None,
        *,
        pattern: str = "gpt2",
    ) -> BPETokenizer:
        """The tokenizer in GPT-2's two files, `vocab.json` and `merges.txt`."""
        from fledge.tokenizer.huggingface import read_gpt2

        found = read_gpt2(as_path(vocab), as_path(merges), None, pattern)
        if special_tokens is None:
            return cls(**found._asdict())
        return cls(found.vocab, found.merges, special_tokens, pattern=pattern)

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def roles(self) -> Roles:
        return self._roles

    @cached_property
    def token_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if self._size <= 65536 else np.uint32)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"bpe 1 {self.pattern}\n".encode())
        for token in sorted(self.vocab):
            digest.update(b"%d %d " % (token, len(self.vocab[token])) + self.vocab[token])
        for left, right in self.merges:
            digest.update(b"%d %d " % (len(left), len(right)) + left + right)
        for text, token in sorted(self.special_tokens.items()):
            digest.update(b"%d " % token + to_bytes(text) + b"\n")
        for text in sorted(self.always):
            digest.update(b"always " + to_bytes(text) + b"\n")
        if self.composed:
            digest.update(b"composed\n")
        if self.whole_words:
            digest.update(b"whole words\n")
        return digest.hexdigest()

    # ---- encoding ------------------------------------------------------------------------------------------------

    def encode(self, text: str | bytes | Sequence[str | bytes], special: Special = "recognise") -> list[int]:
        if not isinstance(text, str) or len(text) > SHORT or self.pattern not in PATTERNS:
            return super().encode(text, special)
        if self.composed and not text.isascii():
            return super().encode(text, special)
        try:
            return self._encoder.encode_list(text, special)
        except UnicodeEncodeError:  # a lone surrogate
            return self.encode_array(text, special).tolist()  # type: ignore[no-any-return]
        except (LookupError, ValueError, TypeError) as error:
            raise self._explained(error, special) from None

    def encode_array(
        self, text: str | bytes | memoryview, special: Special = "recognise", threads: int | None = None
    ) -> Ids:
        """The ids of one text as an array of `token_dtype`; bytes that are not UTF-8 are encoded as they are."""
        return self._encode_part(text, special, threads, 0)

    def _encode_part(self, text: str | bytes | memoryview, special: Special, threads: int | None, start: int) -> Ids:
        """The ids of a part of a text that begins at byte `start`: a refusal names the place in the whole."""
        data = text if isinstance(text, (bytes, memoryview, bytearray)) else to_bytes(text)
        if self.pattern not in PATTERNS or not self._is_normal(data):
            return encode_between(self, bytes(data), special, start, self._encode_stretch)
        try:
            return self._encoder.encode(data, special, _threads(threads, len(data)))
        except (LookupError, ValueError, TypeError) as error:
            raise self._explained(error, special, start) from None

    def _encode_stretch(self, text: bytes, _: int) -> Ids:
        """The ids of a text without special tokens, composed or cut in Python."""
        text = compose(text) if self.composed else text
        if self.pattern in PATTERNS:
            return self._encoder.encode(text, "text", 1)
        words = list(cut_pretokens(self.pattern, text))
        bounds = np.cumsum([0, *map(len, words)], dtype=np.uint64)
        return self._encoder.encode_words(b"".join(words), bounds)

    def encode_batch(
        self, texts: Iterable[str | bytes], special: Special = "recognise", threads: int | None = None
    ) -> list[Ids]:
        check_texts(texts)
        parts = [to_bytes(text) for text in texts]
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.uint64)
        ids, starts = self.encode_spans(b"".join(parts), offsets, special, threads)
        return np.split(ids, starts[1:-1].astype(np.int64)) if parts else []

    def encode_spans(
        self, buffer: bytes | memoryview, offsets: Ids, special: Special = "text", threads: int | None = None
    ) -> tuple[Ids, npt.NDArray[np.uint64]]:
        if self.pattern not in PATTERNS or not self._is_normal(buffer):
            return super().encode_spans(buffer, offsets, special, threads)
        bounds = np.ascontiguousarray(offsets, dtype=np.uint64)
        try:
            return self._encoder.encode_spans(buffer, bounds, special, _threads(threads, len(buffer)))
        except (LookupError, ValueError, TypeError) as error:
            raise self._explained(error, special, texts=len(bounds) - 1) from None

    def _is_normal(self, data: bytes | bytearray | memoryview) -> bool:
        """Whether the text is encoded as it is: composed already, where that is asked for."""
        return not self.composed or compose(whole := bytes(data)) is whole

    def _encode_pieces(
        self, pieces: Iterable[bytes], special: Special, threads: int | None = None
    ) -> Iterator[EncodedPart]:
        return self._encode_blocks(settled_blocks(pieces, self._last_cut(special)), special, threads)

    def _encode_source(self, source: Path, special: Special, threads: int | None) -> Iterator[EncodedPart]:
        # What has no size is read to its end: a pipe, or a file that the system makes up while it is read.
        if source.suffix.lower() in COMPRESSED or not source.is_file() or not source.stat().st_size:
            return super()._encode_source(source, special, threads)
        return self._encode_blocks(file_blocks(source, self._last_cut(special)), special, threads)

    def _last_cut(self, special: Special) -> LastCut | None:
        """Where native code knows that text may be cut, also where nothing is composed. A regular expression of the
        user's own may look at any distance."""
        if self.pattern not in PATTERNS:
            return None
        return lambda text: self._encoder.last_cut(text, "text" if special == "text" else "recognise")

    def _encode_blocks(
        self, blocks: Iterable[bytes | memoryview], special: Special, threads: int | None
    ) -> Iterator[EncodedPart]:
        from fledge._core import count_invalid

        start = 0
        for block in blocks:
            yield EncodedPart(self._encode_part(block, special, threads, start), len(block), count_invalid(block))
            start += len(block)

    @cached_property
    def _encoder(self) -> Encoder:
        from fledge._core import Encoder

        special_ids = set(self.special_tokens.values())
        tokens = [(data, token) for token, data in sorted(self.vocab.items()) if token not in special_ids]
        specials = [(to_bytes(text), token) for text, token in self.special_tokens.items()]
        always = [(to_bytes(text), self.special_tokens[text]) for text in self.always]
        pattern = self.pattern if self.pattern in PATTERNS else "gpt2"
        try:
            return Encoder(tokens, self.merges, specials, always, pattern, self.whole_words, self._size > 65536)
        except KeyError as error:
            raise FledgeError(
                f"a merge needs the token {error.args[0]!r:.60}, which is not in the vocabulary, or is a special one."
            ) from None
        except (TypeError, RuntimeError):  # what native code can't turn into its own
            raise FledgeError(_OF_WHAT) from None

    def _explained(self, error: Exception, special: str, start: int = 0, texts: int = 1) -> Exception:
        """What native code refused, as a sentence for the person."""
        check_special(special)
        if isinstance(error, LookupError) and len(error.args) == 3:
            token, place, text = error.args
            return refused(token, start + place, "the text" if texts == 1 else f"text {text + 1:,} of {texts:,}")
        return FledgeError(f"{error}.") if "vocabulary" in str(error) else error

    # ---- files ---------------------------------------------------------------------------------------------------

    def parts(self) -> Parts:
        return Parts(**{name: getattr(self, name) for name in Parts._fields})

    def _document(self, where: str, shared: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        from fledge.tokenizer.huggingface import write_document

        return write_document(self.parts(), where), {"pattern": self.pattern, **self._described()}


def _threads(threads: int | None, size: int) -> int:
    """None but this one for a text that is too short to share."""
    if size < 1 << 21:
        check_threads(threads)
        return 1
    return thread_count(threads)


def _checked_size(vocab: Mapping[int, bytes]) -> int:
    """One more than the greatest id; a token of no bytes is refused."""
    if b"" in vocab.values():
        raise FledgeError("the vocabulary has a token of no bytes; every token stands for some.")
    try:
        least, most = min(vocab, default=0), max(vocab, default=-1)
        if least >= 0 and most < MOST_IDS:
            return most + 1
    except TypeError:
        raise FledgeError(_OF_WHAT) from None
    raise FledgeError(
        f"the vocabulary has the id {brief(least if least < 0 else most)}; ids are whole numbers below {MOST_IDS:,}."
    )
