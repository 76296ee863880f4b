"""A tokenizer of bytes, so that tests know every id; and small stores made with it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fledge.corpus import Corpus
from fledge.tokenizer.base import Roles, Tokenizer
from fledge.tokens import TokenSplit, TokenStore, write_store
from fledge.tokens.checked import Checked

SEPARATED = Roles(start=0, end=0, separator=0)
BOUNDED = Roles(start=257, end=258, pad=259)
BARE = Roles()
ROLES = {"separated": SEPARATED, "bounded": BOUNDED, "bare": BARE}


class ByteTokenizer(Tokenizer):
    """Byte b is id b + 1; 0 separates documents; `shift` makes another tokenizer of it."""

    kind = "bytes"

    def __init__(self, roles: Roles = SEPARATED, shift: int = 0) -> None:
        self.vocab = {0: b"<|endoftext|>", **{1 + (i + shift) % 256: bytes([i]) for i in range(256)}}
        self.vocab |= {257: b"<s>", 258: b"</s>", 259: b"<>"}
        self.special_tokens = {"<|endoftext|>": 0}
        self._roles, self.shift = roles, shift

    @property
    def roles(self) -> Roles:
        return self._roles

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(repr((self._roles, self.shift)).encode()).hexdigest()

    def encode_array(self, text: str | bytes, special: str = "recognise") -> Any:
        data = text.encode() if isinstance(text, str) else text
        ids = 1 + (np.frombuffer(data, np.uint8).astype(np.uint16) + self.shift) % 256
        if special != "recognise" or b"<|endoftext|>" not in data:
            return ids
        parts = [self.encode_array(part, "text") for part in data.split(b"<|endoftext|>")]
        return np.concatenate([parts[0], *(x for part in parts[1:] for x in (np.zeros(1, np.uint16), part))])

    def encode_spans(self, buffer: Any, offsets: Any, special: str = "text", threads: int | None = None) -> Any:
        if special == "text":
            return self.encode_array(bytes(buffer), "text"), offsets.astype(np.uint64)
        return super().encode_spans(buffer, offsets, special, threads)

    def save(self, folder: str | PathLike[str]) -> None:
        Path(folder).mkdir(exist_ok=True, parents=True)
        (Path(folder) / "tokenizer.json").write_text('{"kind": "bytes"}')


def make_store(
    folder: Path, documents: Sequence[bytes], layout: str = "separated", fraction: float = 0.0
) -> TokenStore:
    corpus = Corpus.from_documents(documents, validation_fraction=fraction)
    return write_store(corpus, ByteTokenizer(ROLES[layout]), folder, progress=False)


def make_split(folder: Path, documents: Sequence[bytes], layout: str = "separated") -> TokenSplit:
    """A split written by plain numpy, without the care that a store takes: hundreds of them in a second."""
    folder.mkdir(exist_ok=True)
    drop = int(layout == "separated")  # the separator before a line belongs to the document before it
    lines = [line[drop:] for line in lines_of(documents, layout)]
    tokens = np.array([token for line in lines for token in line], "<u2")
    starts = np.cumsum([0, *map(len, lines)])[:-1].astype("<u8")
    files = []
    for name, array, limit in (("train.bin", tokens, 260), ("train.documents.bin", starts, None)):
        array.tofile(folder / name)
        raw = array.tobytes()
        checksums = [format(zlib.crc32(raw[at : at + 2**20]), "08x") for at in range(0, len(raw), 2**20)]
        files.append(Checked(folder / name, array.dtype, len(array), checksums, limit))
    return TokenSplit("train", layout, sum(map(len, documents)), *files)  # type: ignore[arg-type]


def lines_of(documents: Sequence[bytes], layout: str) -> list[list[int]]:
    """Every document with what stands before and after it, by the plainest code."""
    before = {"separated": [0], "bounded": [257], "bare": []}[layout]
    after = {"separated": [0], "bounded": [258], "bare": []}[layout]
    return [[*before, *(byte + 1 for byte in text), *after] for text in documents]
