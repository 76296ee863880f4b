"""What every tokenizer can do: text to ids and back, its special tokens and their roles, one fingerprint.

A subclass gives `vocab`, `special_tokens`, `encode_array`, `decode_bytes` and `save`; the rest follows from these.
"""

from __future__ import annotations

import codecs
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fledge.errors import FledgeError, nearest

Special = Literal["recognise", "text", "refuse"]
"Whether the text of a special token becomes that token, stays plain text, or is an error."
Ids = npt.NDArray[Any]

SPECIAL_MODES = ("recognise", "text", "refuse")
ERRORS = ("replace", "strict", "ignore", "backslashreplace", "surrogateescape", "surrogatepass")
"What `decode` may do with bytes that are not UTF-8; Python knows these names."


class Roles(NamedTuple):
    """The ids that stand for something; None where the tokenizer has no such token."""

    unknown: int | None = None
    start: int | None = None
    end: int | None = None
    pad: int | None = None
    separator: int | None = None


class FileReport(NamedTuple):
    """What `encode_file` did: ids written, bytes read, and how many of these are not valid UTF-8."""

    tokens: int
    source_bytes: int
    invalid_bytes: int


def check_special(special: str) -> None:
    """Refuse a word that is not one of the three ways to treat special tokens."""
    if special not in SPECIAL_MODES:
        known = nearest(str(special), SPECIAL_MODES)
        raise FledgeError(f"special = {special!r} is not a way to treat special tokens. {known}")


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`; `name` is what the person called it.

    >>> check_whole("threads", 0)
    Traceback (most recent call last):
    ...
    fledge.errors.FledgeError: threads = 0 must be a whole number, 1 or more.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise FledgeError(f"{name} = {value!r:.60} must be a whole number, {least} or more.")


def to_bytes(text: str | bytes) -> bytes:
    """UTF-8 of a text; lone surrogates, which UTF-8 forbids, keep their three-byte form, so that nothing is lost.

    >>> to_bytes("a\\ud800")
    b'a\\xed\\xa0\\x80'
    """
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise FledgeError(f"a text is a {type(text).__name__}; texts are str or bytes.")
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


class Tokenizer(ABC):
    """Text to ids and back. The same text gives the same ids by every way of encoding."""

    kind: str
    vocab: Mapping[int, bytes]
    special_tokens: Mapping[str, int]

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id: the rows an embedding needs."""
        return max(self.vocab, default=-1) + 1

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """The width of ids in arrays and files: 16 bits where every id fits, else 32."""
        return np.dtype(np.uint16 if self.vocab_size <= 65536 else np.uint32)

    @property
    @abstractmethod
    def roles(self) -> Roles:
        """The ids of unknown, start, end, pad and separator."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A SHA-256, in hexadecimal, of all that affects the ids."""

    @abstractmethod
    def encode_array(self, text: str | bytes, special: Special = "recognise") -> Ids:
        """The ids of one text as an array of `token_dtype`."""

    @abstractmethod
    def save(self, folder: str | PathLike[str]) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` into a folder."""

    def encode(self, text: str | bytes | Sequence[str | bytes], special: Special = "recognise") -> list[int]:
        """The ids of a text, or of several texts one after the other, as a list."""
        if isinstance(text, (str, bytes)):
            return self.encode_array(text, special).tolist()  # type: ignore[no-any-return]
        if not isinstance(text, Iterable):
            raise FledgeError(f"a text is a {type(text).__name__}; texts are str or bytes, or a list of them.")
        return [token for part in text for token in self.encode(part, special)]

    def encode_batch(
        self, texts: Iterable[str | bytes], special: Special = "recognise", threads: int | None = None
    ) -> list[Ids]:
        """One array of ids per text."""
        return [self.encode_array(text, special) for text in texts]

    def encode_spans(
        self, buffer: bytes | memoryview, offsets: Ids, special: Special = "text", threads: int | None = None
    ) -> tuple[Ids, npt.NDArray[np.uint64]]:
        """Encode every span `buffer[offsets[i]:offsets[i + 1]]` on its own.

        Returns the ids of all spans in one array, and n + 1 offsets into it: where each span's ids start.
        """
        view = memoryview(buffer)
        bounds = offsets.tolist()
        parts = [self.encode_array(bytes(view[start:end]), special) for start, end in itertools.pairwise(bounds)]
        ends = np.cumsum([0, *map(len, parts)], dtype=np.uint64)
        return (np.concatenate(parts) if parts else np.empty(0, self.token_dtype)), ends

    def encode_iterable(self, texts: Iterable[str], special: Special = "recognise") -> Iterator[int]:
        """Lazily, the ids of the texts joined: the same whatever way the text was cut into pieces."""
        yield from self.encode("".join(texts), special)

    def encode_file(
        self,
        path: str | PathLike[str],
        sink: str | PathLike[str],
        special: Special = "recognise",
        threads: int | None = None,
    ) -> FileReport:
        """Encode a text file into a file of raw little-endian ids, which appears only when it is whole."""
        from fledge.files import atomic_write

        data = Path(path).read_bytes()
        ids = self.encode_array(data, special)
        with atomic_write(Path(sink)) as file:
            file.write(ids.astype(self.token_dtype.newbyteorder("<")).tobytes())
        invalid = 0
        try:
            data.decode()
        except UnicodeDecodeError:
            invalid = len(data) - len(data.decode("utf-8", "ignore").encode())
        return FileReport(len(ids), len(data), invalid)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that the ids stand for, exactly."""
        # Arrays and tensors give their numbers all at once, which is quicker and makes Python's own of them.
        numbers = ids.tolist() if hasattr(ids, "tolist") else ids
        vocab = self.vocab
        try:
            return b"".join([vocab[token] for token in numbers])
        except KeyError as error:
            raise FledgeError(f"id {error.args[0]!r:.40} is not in the vocabulary of {len(vocab):,} tokens.") from None
        except TypeError:
            given = type(ids).__name__ + (f" of {ids.ndim} dimensions" if hasattr(ids, "ndim") else "")
            raise FledgeError(
                f"ids are whole numbers in a list or in an array of one dimension; this is a {given}."
            ) from None

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """The text of the ids. What is not UTF-8 becomes U+FFFD, unless `errors` names another way.

        `errors="surrogatepass"` gives back lone surrogates too.
        """
        try:
            codecs.lookup_error(errors)
        except (LookupError, TypeError):
            raise FledgeError(
                f"errors = {errors!r:.60} is not a way to decode. {nearest(str(errors), ERRORS)}"
            ) from None
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decoder(self) -> StreamDecoder:
        """A decoder that takes ids one by one and gives out text as soon as its characters are whole."""
        return StreamDecoder(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size:,} ids, {len(self.special_tokens)} special)"


class StreamDecoder:
    """Ids in, text out, never half a character: bytes wait until their character is whole or can't become so."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that `token` completes; often a whole word, sometimes nothing yet."""
        return self._decoder.decode(self._tokenizer.decode_bytes((token,)))

    def finish(self) -> str:
        """What is left: U+FFFD for a character that was never completed. The decoder can be used again."""
        rest = self._decoder.decode(b"", True)
        self._decoder.reset()
        return rest
