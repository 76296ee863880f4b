"""What every tokenizer can do: text to ids and back, its special tokens and their roles, one fingerprint.

A subclass gives `vocab`, `special_tokens`, `roles`, `fingerprint`, `encode_array` and `_document`; the rest follows.
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
from fledge.files import to_bytes
from fledge.tokenizer.checks import as_path, brief, check_special, check_texts, check_threads
from fledge.tokenizer.disk import CONFIGURATION, FORMAT, ROLE_NAMES, VOCABULARY, write_folder, written_json
from fledge.tokenizer.parts import Parts
from fledge.tokenizer.sources import unpacked
from fledge.tokenizer.stream import EncodedPart, FileReport, check_places, write_parts

Special = Literal["recognise", "text", "refuse"]
"Whether the text of a special token becomes that token, stays plain text, or is an error."
Ids = npt.NDArray[Any]

ERRORS = ("replace", "strict", "ignore", "backslashreplace", "surrogateescape", "surrogatepass")
"What `decode` may do with bytes that are not UTF-8; Python knows these names."
READ_AT_ONCE = 1 << 22


class Roles(NamedTuple):
    """The ids that stand for something; None where the tokenizer has no such token."""

    unknown: int | None = None
    start: int | None = None
    end: int | None = None
    pad: int | None = None
    separator: int | None = None

    @property
    def own_start(self) -> int | None:
        """The start token, where it is not the separator, too: then every text begins with it."""
        return None if self.start == self.separator else self.start


class Tokenizer(ABC):
    """Text to ids and back. The same text gives the same ids by every way of encoding."""

    kind: str
    vocab: Mapping[int, bytes]
    special_tokens: Mapping[str, int]
    always: frozenset[str] = frozenset()
    "Special tokens that are found in plain text too."

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
        check_texts(texts)
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

    def encode_iterable(self, texts: Iterable[str | bytes], special: Special = "recognise") -> Iterator[int]:
        """Lazily, the ids of the texts joined: the same whatever way the text was cut into pieces."""
        check_special(special)
        if not isinstance(texts, str):  # whose characters are pieces as good as any
            check_texts(texts)
        for part in self._encode_pieces(map(to_bytes, texts), special):
            yield from part.ids.tolist()

    def encode_file(
        self,
        path: str | PathLike[str],
        sink: str | PathLike[str],
        special: Special = "recognise",
        threads: int | None = None,
    ) -> FileReport:
        """Encode a text file, compressed or not, into a file of raw little-endian ids of `token_dtype`.

        The sink appears only when it is whole. Bytes that are not UTF-8 are kept, and counted in the report. Memory
        does not grow with the file, but with its longest stretch that can't be cut, such as one without white space.
        """
        check_special(special)
        check_threads(threads)
        source, target = as_path(path), as_path(sink)
        check_places(source, target)
        return write_parts(self._encode_source(source, special, threads), source, target, self.token_dtype)

    def _encode_pieces(
        self, pieces: Iterable[bytes], special: Special, threads: int | None = None
    ) -> Iterator[EncodedPart]:
        """The joined pieces part by part. A tokenizer that does not know where a text may be cut takes it as one."""
        data = b"".join(pieces)
        valid = len(data.decode("utf-8", "ignore").encode())
        yield EncodedPart(self.encode_array(data, special), len(data), len(data) - valid)

    def _encode_source(self, source: Path, special: Special, threads: int | None) -> Iterator[EncodedPart]:
        """A file part by part, decompressed where its name says that it is compressed."""
        return self._encode_pieces(unpacked(source, READ_AT_ONCE), special, threads)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that the ids stand for, exactly."""
        if isinstance(ids, (str, bytes)):
            raise _not_ids(ids)
        # Arrays and tensors give their numbers all at once, which is quicker and makes Python's own of them.
        numbers = ids.tolist() if hasattr(ids, "tolist") else ids
        vocab = self.vocab
        try:
            return b"".join([vocab[token] for token in numbers])
        except KeyError as error:
            token = brief(error.args[0])
            raise FledgeError(f"id {token} is not in the vocabulary of {len(vocab):,} tokens.") from None
        except TypeError:
            raise _not_ids(ids) from None

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

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `tokenizer.json` (for BPE a Hugging Face file) and `tokenizer_config.json` into a folder."""
        place = as_path(folder)
        if place.exists() and not place.is_dir():
            raise FledgeError(f"{place} is a file, and a tokenizer is saved into a folder.")
        write_folder(place, self._files(place))

    def _files(self, folder: Path, shared: bool = False) -> dict[str, bytes]:
        """The two files of our own folder, `shared` with other programs also where ours are simpler; `folder` is for
        the sentences that speak of it."""
        document, described = self._document(str(folder), shared)
        configuration = {
            "format": FORMAT,
            "kind": self.kind,
            "roles": self.roles._asdict(),
            **described,
            "fingerprint": self.fingerprint,
        }
        return {VOCABULARY: written_json(document), CONFIGURATION: written_json(configuration)}

    def _document(self, where: str, shared: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `tokenizer.json` holds, and what `tokenizer_config.json` says besides kind, roles and fingerprint."""
        raise NotImplementedError(f"{type(self).__name__} has neither _document nor a save of its own.")

    def _described(self) -> dict[str, Any]:
        """What other programs look for in `tokenizer_config.json`."""
        texts = {token: text for text, token in self.special_tokens.items()}
        names = {
            ROLE_NAMES[role]: texts[token]
            for role, token in self.roles._asdict().items()
            if role in ROLE_NAMES and token in texts
        }
        return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}

    def parts(self) -> Parts:
        """What a byte-pair encoding is made of; other kinds are refused."""
        raise FledgeError(
            f"a {self.kind} tokenizer can't be written in this format for other programs: they read BPE only. "
            "Choose huggingface."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vocab_size:,} ids, {len(self.special_tokens)} special)"


def _not_ids(given: Any) -> FledgeError:
    what = type(given).__name__ + (f" of {given.ndim} dimensions" if hasattr(given, "ndim") else "")
    return FledgeError(f"ids are whole numbers in a list or in an array of one dimension; this is a {what}.")


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
