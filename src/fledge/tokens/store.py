"""A token store: raw ids and document starts of each split, and a manifest that says when they are whole.

Every megabyte has a checksum, compared when it is first read; there, too, ids are checked against the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fledge.corpus.split import PARTS
from fledge.errors import FledgeError
from fledge.files import did_you_mean, read_json
from fledge.tokenizer.base import Roles
from fledge.tokens.checked import AGAIN, Checked

if TYPE_CHECKING:
    from fledge.tokenizer.base import Tokenizer

FORMAT = "fledge-tokens"
VERSION = 1
MANIFEST = "store.json"
JOURNAL = "journal.jsonl"
TOKENIZER, PASSAGES = "tokenizer", "passages"
SPLITS = PARTS

Layout = Literal["separated", "bounded", "bare"]
Ids = npt.NDArray[Any]


def layout_of(roles: Roles) -> Layout:
    """How documents are bounded: a start and an end token of their own, one separator after each, or nothing."""
    if roles.start is not None and roles.end is not None and roles.start != roles.end:
        return "bounded"
    return "bare" if end_token(roles) is None else "separated"


def end_token(roles: Roles) -> int | None:
    """The token that stands after each document."""
    return roles.separator if roles.separator is not None else roles.end


def new_manifest(
    tokenizer: Tokenizer,
    splits: dict[str, Any],
    skipped: int,
    source: dict[str, Any],
    purpose: dict[str, Any],
    content: int | None = None,
) -> dict[str, Any]:
    """The manifest of a store whose data files are whole; `content` is the checksum of the corpus's documents."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "width": tokenizer.token_dtype.itemsize,
        "layout": layout_of(tokenizer.roles),
        "tokenizer": {
            "fingerprint": tokenizer.fingerprint,
            "vocabulary_size": tokenizer.vocab_size,
            "kind": tokenizer.kind,
        },
        "roles": tokenizer.roles._asdict(),
        "splits": splits,
        "skipped": skipped,
        "source": source,
        "purpose": purpose,
        "content": content,
    }


Count = Annotated[int, Field(ge=0, lt=1 << 48)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)] | None


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True)


class _TokenizerFacts(_Facts):
    fingerprint: str
    vocabulary_size: Annotated[int, Field(ge=1, le=1 << 31)]
    kind: str


class _RoleFacts(_Facts):
    model_config = ConfigDict(strict=True, extra="forbid")
    unknown: Token = None
    start: Token = None
    end: Token = None
    pad: Token = None
    separator: Token = None


class _Checksums(_Facts):
    tokens: list[str]
    documents: list[str]


class _SplitFacts(_Facts):
    tokens: Count
    documents: Count
    source_bytes: Count
    checksums: _Checksums


class _Splits(_Facts):
    model_config = ConfigDict(strict=True, extra="forbid")
    train: _SplitFacts
    validation: _SplitFacts
    test: _SplitFacts | None = None


class _Manifest(_Facts):
    """What `store.json` has to hold. Names it does not know are left alone."""

    version: int
    width: Literal[2, 4]
    layout: Layout
    tokenizer: _TokenizerFacts
    roles: _RoleFacts
    splits: _Splits
    skipped: Count
    source: dict[str, Any]
    purpose: dict[str, Any]
    content: int | None = None


@dataclass
class TokenSplit:
    """The ids of one split in order, and where each document starts."""

    name: str
    layout: Layout
    source_bytes: int
    token_file: Checked
    document_file: Checked

    @property
    def tokens(self) -> Ids:
        """All ids, memory-mapped; `verify` first if they are read without windows."""
        return self.token_file.array

    @property
    def documents(self) -> Ids:
        """The start of each document in `tokens`, memory-mapped."""
        return self.document_file.array

    def verify(self) -> TokenSplit:
        """Compare every block with its checksum, and every id with the vocabulary."""
        self.token_file.check_all()
        self.document_file.check_all()
        return self

    def document(self, number: int) -> Ids:
        """The ids of one document with what bounds it."""
        if not 0 <= number < len(self.documents):
            raise FledgeError(
                f"The {self.name} split has {len(self.documents):,} documents, numbered from 0, and no {number:,}."
            )
        self.document_file.check(number, number + 1)
        start = int(self.documents[number])
        end = int(self.documents[number + 1]) if number + 1 < len(self.documents) else len(self.tokens)
        self.token_file.check(start, max(start, end - 1))
        return self.tokens[start:end]


class TokenStore:
    """A whole token store, opened for reading.

    >>> TokenStore.open("nowhere")
    Traceback (most recent call last):
    fledge.errors.FledgeError: nowhere is not a token store: there is no store.json. Make one with fledge
    tokenize.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self.fingerprint: str = manifest["tokenizer"]["fingerprint"]
        self.vocabulary_size: int = manifest["tokenizer"]["vocabulary_size"]
        self.roles = Roles(**manifest["roles"])
        self.layout: Layout = manifest["layout"]
        self.dtype = np.dtype(f"<u{manifest['width']}")
        self._splits: dict[str, TokenSplit] = {}

    @classmethod
    def open(cls, folder: str | Path) -> TokenStore:
        """Open a store; one that is unfinished, cut or of a newer format is refused."""
        folder = Path(folder)
        if not (folder / MANIFEST).is_file():
            if (folder / JOURNAL).exists():
                raise FledgeError(
                    f"{folder} is not finished, because tokenizing was interrupted. The same fledge tokenize "
                    "command resumes it."
                )
            meant = "" if folder.exists() else did_you_mean(folder)
            raise FledgeError(
                f"{folder} is not a token store: there is no {MANIFEST}.{meant or ' Make one with fledge tokenize.'}"
            )
        manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise FledgeError(f"{folder / MANIFEST} does not describe a token store.")
        if isinstance(manifest.get("version"), int) and manifest["version"] > VERSION:
            raise FledgeError(
                f"{folder} was written in version {manifest['version']} of the format, and this fledge knows up to "
                f"{VERSION}. Install a newer fledge."
            )
        try:
            _Manifest.model_validate(manifest)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise FledgeError(f"{folder / MANIFEST} is damaged: {where}: {first['msg']}. {AGAIN}") from None
        store = cls(folder, manifest)
        for name in store.splits:
            store.split(name)
        return store

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the parts that the store has."""
        return tuple(name for name in SPLITS if self.manifest["splits"].get(name))

    @property
    def final(self) -> str:
        """The part for a final figure: test where there is one with text in it, else validation."""
        return "test" if "test" in self.splits and len(self.split("test").tokens) else "validation"

    def split(self, name: str) -> TokenSplit:
        """`train`, `validation` or, where the store has one, `test`."""
        if name not in SPLITS:
            raise FledgeError(f"A store has the splits train, validation and perhaps test, and no {name!r}.")
        if name not in self.splits:
            raise FledgeError(
                f"{self.folder} has no test part. Tokenize again with corpus.test_fraction above 0 (--test-fraction), "
                "or ask for its validation part."
            )
        if name not in self._splits:
            facts = self.manifest["splits"][name]
            tokens = Checked(
                self.folder / f"{name}.bin",
                self.dtype,
                facts["tokens"],
                facts["checksums"]["tokens"],
                self.vocabulary_size,
            )
            starts = self.folder / f"{name}.documents.bin"
            checksums = facts["checksums"]["documents"]
            documents = Checked(starts, np.dtype("<u8"), facts["documents"], checksums, facts["tokens"] + 1, True)
            self._splits[name] = TokenSplit(name, self.layout, facts["source_bytes"], tokens, documents)
        return self._splits[name]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that wrote the ids, kept beside them."""
        from fledge.tokenizer import load_tokenizer

        if not (self.folder / TOKENIZER).is_dir():
            raise FledgeError(f"{self.folder} holds no tokenizer: it was imported. Name one with --tokenizer.")
        loaded: Tokenizer = load_tokenizer(self.folder / TOKENIZER)
        return loaded

    def require(self, tokenizer: Tokenizer, name: str = "the model's tokenizer") -> None:
        """Refuse to go on with a tokenizer that gives other ids than those in the store."""
        if tokenizer.fingerprint != self.fingerprint:
            raise FledgeError(
                f"The store {self.folder} was written with another tokenizer ({self.fingerprint[:12]}…) than {name} "
                f"({tokenizer.fingerprint[:12]}…): its ids would mean other text. Tokenize again: fledge tokenize "
                "SOURCE --tokenizer TOKENIZER --out STORE"
            )

    def verify(self) -> None:
        """Compare everything with its checksum."""
        for name in self.splits:
            self.split(name).verify()
