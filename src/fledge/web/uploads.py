"""Texts to train on: those below the served folders, and what a person drops on the page.

A text that arrives is put into `texts` of the first served folder, under a name made safe, and never over another file.
It comes in parts, none of which is kept in memory, and appears under its name when it is whole.
"""

from __future__ import annotations

import filecmp
import importlib.util
import os
import re
import secrets
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Body, Query
from pydantic import Field

from fledge.errors import FledgeError, nearest
from fledge.files import DOCUMENTS, PARTIAL, require_space
from fledge.web.facts import TextFacts, text_facts
from fledge.web.library import Library, NotFound
from fledge.web.schemas import NUMBER, Answer, Request

FOLDER = "texts"
LARGEST = 1 << 30
PART = 4 << 20
OPEN = 8  # uploads at once
SPARE = 64 << 20  # bytes of the disk that an upload leaves free
LONGEST_NAME = 80
OLD = 86_400  # seconds after which an upload that nobody went on with is forgotten
PLAIN = (".txt", ".text", ".md", ".rst")
KINDS = (*PLAIN, *DOCUMENTS, *(f"{kind}{packed}" for kind in (".txt", ".jsonl") for packed in (".gz", ".zst", ".xz")))
DEPTH, MOST = 4, 500
# What people drop by mistake begins like this.
STRANGE = {
    b"%PDF": "a PDF file",
    b"PK\x03\x04": "a zip file or an office document",
    b"\xd0\xcf\x11\xe0": "an office document",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"\x1f\x8b": "a compressed file",
    b"\x28\xb5\x2f\xfd": "a compressed file",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
CORPUS = "akjv"


class TextEntry(Answer):
    name: str
    bytes: int | None
    "None for a packaged corpus."
    corpus: bool = False


class TextsAnswer(Answer):
    texts: list[TextEntry]
    place: str | None
    "Where new texts go; none where no folder of runs is served."
    note: str | None
    "Why nothing can be trained here, where that is so."
    largest: int
    part: int
    "Bytes of a text at most, and of a part of one."


class BeginUpload(Request):
    name: Annotated[str, Field(min_length=1, max_length=1000)]
    bytes: Annotated[int, Field(ge=1, le=1 << 50), NUMBER]


class UploadAnswer(Answer):
    upload: str
    received: int
    text: str | None
    "Its name among the texts, once it is whole."


class Upload(NamedTuple):
    path: Path
    name: str
    size: int


class Texts:
    """Every text by its name; what is not found here can't be trained on."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._open: OrderedDict[str, Upload] = OrderedDict()
        self._lock = Lock()

    def all(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for source in self.library.sources:
            if source.is_dir():
                prefix = f"{source.resolve().name}/" if len(self.library.sources) > 1 else ""
                for path in walk(source, source.resolve(), DEPTH):
                    found.setdefault(f"{prefix}{path.relative_to(source)}", path)
                    if len(found) >= MOST:
                        return found
        return found

    def find(self, names: list[str]) -> list[str]:
        """As the command line takes them."""
        known = self.all()
        for name in names:
            if name not in known and not (name == CORPUS and has_corpus()):
                hint = nearest(name, known) if known else "There is none below the served folders yet."
                raise NotFound(f"There is no text called {name!r}. {hint}")
        return [str(known[name].absolute()) if name in known else name for name in dict.fromkeys(names)]

    def name_of(self, place: str) -> str | None:
        """What a text that a run was begun with is called here."""
        if place == CORPUS:
            return CORPUS if has_corpus() else None
        return next((name for name, path in self.all().items() if str(path.absolute()) == place), None)

    def begin(self, name: str, size: int) -> str:
        home = self.library.home()
        if size > LARGEST:
            raise FledgeError(
                f"{name[:100]} has {size >> 20:,} MB, and the page takes {LARGEST >> 20:,} at most. Put it into "
                f"{home.resolve().name} by hand: it is then listed here."
            )
        require_space(home, size + SPARE, "The text")
        folder = home / FOLDER
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            what = "a link" if folder.is_symlink() else "a file"
            raise FledgeError(f"{FOLDER} is {what}, and texts are kept in a folder of that name. Move it away.")
        forget_old(folder)
        key = secrets.token_hex(8)
        upload = Upload(folder / f"{key}{PARTIAL}", safe_name(name), size)
        with self._lock:
            self._open[key] = upload
            while len(self._open) > OPEN:  # the oldest was given up
                self._open.popitem(last=False)[1].path.unlink(missing_ok=True)
        return key

    def add(self, key: str, offset: int, part: bytes) -> UploadAnswer:
        with self._lock:
            if key not in self._open:
                raise NotFound("There is no such upload any more: begin it again.")
            upload = self._open[key]
            received = upload.path.stat().st_size if upload.path.exists() else 0
            if offset != received or not part:
                raise FledgeError(f"The next part begins at byte {received:,}, and is not empty.")
            if received + len(part) > upload.size:
                self._give_up(key)
                raise FledgeError(f"{upload.name} is longer than it was said to be. Send it again.")
            if not offset and (reason := unreadable(upload.name, part)):
                self._give_up(key)
                raise FledgeError(f"{upload.name} is {reason}, and no plain text. Save it as plain text in UTF-8.")
            try:
                upload.path.parent.mkdir(parents=True, exist_ok=True)
                with open(upload.path, "ab") as file:
                    file.write(part)
                    file.flush()
                    os.fsync(file.fileno())
                text = self._finish(key) if received + len(part) == upload.size else None
            except OSError:
                self._give_up(key)
                raise
        return UploadAnswer(upload=key, received=received + len(part), text=text)

    def _give_up(self, key: str) -> None:
        self._open.pop(key).path.unlink(missing_ok=True)

    def _finish(self, key: str) -> str:
        """Give the file its name, or the next free one; no file is written over.

        The name is taken by an empty file, which the text then replaces: not every disk has links.
        """
        upload = self._open[key]
        stem, dot, ending = upload.name.partition(".")
        number, path = 1, upload.path.with_name(upload.name)
        while True:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                if not path.is_symlink() and path.is_file() and filecmp.cmp(path, upload.path, shallow=False):
                    upload.path.unlink()
                    break
                number += 1
                path = upload.path.with_name(f"{stem}-{number}{dot}{ending}")
                continue
            try:
                os.replace(upload.path, path)
            except OSError:
                path.unlink()
                raise
            break
        del self._open[key]
        name = self.name_of(str(path.absolute()))
        if name is None:
            raise FledgeError(f"{path.name} is kept, and there are more than {MOST} texts: it is not listed.")
        return name


def routes(texts: Texts) -> APIRouter:
    router = APIRouter(prefix="/api/texts", tags=["texts"])
    looking = Lock()

    @router.get("")
    def listed() -> TextsAnswer:
        """The texts that can be trained on, and where new ones go."""
        place, note = None, None
        try:
            place = str(texts.library.home() / FOLDER)
        except FledgeError as error:
            note = str(error)
        entries = [TextEntry(name=name, bytes=path.stat().st_size) for name, path in texts.all().items()]
        if has_corpus():
            entries.append(TextEntry(name=CORPUS, bytes=None, corpus=True))
        return TextsAnswer(texts=entries, place=place, note=note, largest=LARGEST, part=PART)

    @router.post("")
    def begin(request: BeginUpload) -> UploadAnswer:
        """Begin to send a text; its parts follow."""
        return UploadAnswer(upload=texts.begin(request.name, request.bytes), received=0, text=None)

    @router.post("/part")
    def part(
        content: Annotated[bytes, Body(media_type="application/octet-stream", max_length=PART)],
        upload: str = Query(max_length=40),
        offset: int = Query(ge=0, le=LARGEST),
    ) -> UploadAnswer:
        """The next part of a text. With the last one it gets its name."""
        return texts.add(upload, offset, content)

    @router.get("/facts")
    def facts(text: Annotated[list[str], Query(min_length=1, max_length=50)]) -> TextFacts:
        """What texts are: size, documents, script, copies, and what looks wrong, as `fledge corpus show` says it."""
        places = texts.find(text)
        with looking:
            return text_facts(tuple(places), stamp(places))

    return router


def stamp(places: list[str]) -> tuple[tuple[int, int], ...]:
    """Size and time of change of each: what is known of the texts holds for as long as these are the same."""
    found = []
    for place in places:
        with suppress(FileNotFoundError):
            status = os.stat(place)
            found.append((status.st_size, status.st_mtime_ns))
    return tuple(found)


def has_corpus() -> bool:
    return importlib.util.find_spec("pythonbible_akjv") is not None


def walk(folder: Path, root: Path, depth: int) -> Iterator[Path]:
    """Text files, but hidden ones, what fledge writes itself, and what lies behind a link that leads out."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    names = {entry.name for entry in found}
    if names & {"config.json", "bundle.json", "tokenizer.json", "store.json", "plan.json", "metrics.csv"}:
        return
    for entry in found:
        path = Path(entry.path)
        if entry.name.startswith(".") or entry.name.endswith(PARTIAL):
            continue
        if entry.is_symlink() and not path.resolve().is_relative_to(root):
            continue
        if entry.is_dir() and depth and not entry.is_symlink():
            yield from walk(path, root, depth - 1)
        elif entry.is_file() and entry.name.lower().endswith(KINDS):
            yield path


def safe_name(name: str) -> str:
    """A file's name of letters, digits and a few signs, with an ending that says that it is text.

    >>> safe_name("../../etc/My Diary.txt"), safe_name("C:\\\\x\\\\code.py"), safe_name("..."), safe_name("lines.jsonl")
    ('My-Diary.txt', 'code-py.txt', 'text.txt', 'lines.jsonl')
    """
    last = unicodedata.normalize("NFC", re.split(r"[/\\]", name)[-1])
    stem, ending = os.path.splitext(last)
    if ending.lower() not in (*PLAIN, ".jsonl", ".ndjson"):
        stem, ending = last, ".txt"
    stem = re.sub(r"[^\w-]+", "-", stem).strip("-_") or "text"
    while len(stem.encode()) > LONGEST_NAME:
        stem = stem[:-1]
    return f"{stem}{ending.lower()}"


def unreadable(name: str, beginning: bytes) -> str | None:
    """What a file is that is no text, by how it begins."""
    for sign, kind in STRANGE.items():
        if beginning.startswith(sign):
            return kind
    if b"\0" in beginning[: 1 << 16]:
        return "a binary file"
    return None


def forget_old(folder: Path) -> None:
    """Remove what was begun by a server that has ended since, so that no half of a text stays for ever."""
    for path in folder.glob(f"*{PARTIAL}"):
        with suppress(FileNotFoundError):
            if (
                re.fullmatch("[0-9a-f]{16}", path.name.removesuffix(PARTIAL))
                and time.time() - path.stat().st_mtime > OLD
            ):
                path.unlink()
