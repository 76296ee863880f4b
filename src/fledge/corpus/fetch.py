"""Named public corpora, and any file at an address: fetched once, resumed where they stopped, verified at the end."""

from __future__ import annotations

import os
import re
import string
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

from fledge.errors import FledgeError, nearest
from fledge.files import PARTIAL, atomic_write, cache_folder, readable_bytes, require_space, sha256
from fledge.progress import progress_bar
from fledge.system import sync_file, sync_folder

ATTEMPTS = 5  # times that a lost connection is taken up again before giving up
PAUSE = 1.0  # seconds before the second attempt; doubled each time
CHUNK = 1 << 20
TIMEOUT = 60.0


@dataclass(frozen=True)
class Remote:
    """A file at an address, with what is known of it."""

    address: str
    size: int | None = None
    sha256: str | None = None
    held_out: bool = False
    secret: str | None = field(default=None, repr=False)
    "What signs in at this address, and at none that it points on to."

    @property
    def name(self) -> str:
        try:
            name = os.path.basename(urllib.parse.urlsplit(self.address).path)
        except ValueError as error:
            raise FledgeError(f"{self.address} is not a valid address: {error}. Check it.") from None
        if name in ("", ".", ".."):
            raise FledgeError(f"{self.address} is the address of a folder. Add the name of a file in it.")
        return name


@dataclass(frozen=True)
class Named:
    """A public corpus: what it is, and its files."""

    about: str
    files: tuple[Remote, ...]

    @property
    def checked_by(self) -> str:
        """What a fetched copy is compared with."""
        known = all(file.sha256 is not None for file in self.files)
        return "size and SHA-256" if known else "the SHA-256 that the server publishes, kept from the first fetch on"


_STORIES = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-"
_WEB = "https://huggingface.co/datasets/stanford-cs336/owt-sample/resolve/main/owt_"
NAMED = {
    "tinystories": Named(
        "2.7 million short stories in simple words (CDLA-Sharing-1.0)",
        (
            Remote(
                f"{_STORIES}train.txt",
                2_227_753_162,
                "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
            ),
            Remote(
                f"{_STORIES}valid.txt",
                22_502_601,
                "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
                held_out=True,
            ),
        ),
    ),
    "openwebtext": Named(
        "a sample of OpenWebText, 11.9 GB of pages when unpacked (CC0)",
        (Remote(f"{_WEB}train.txt.gz"), Remote(f"{_WEB}valid.txt.gz", held_out=True)),
    ),
    "tinyshakespeare": Named(
        "1.1 MB of Shakespeare, one text without separators (public domain)",
        (
            Remote(
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                1_115_394,
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            ),
        ),
    ),
    "fineweb-edu": Named(
        "one Parquet file of the 10-billion-token sample of FineWeb-Edu, 2 GB (ODC-By)",
        (
            Remote(
                "https://huggingface.co/datasets/HuggingFaceFW/fineweb-edu/resolve/main/sample/10BT/000_00000.parquet"
            ),
        ),
    ),
}


def corpora_folder() -> Path:
    """Where fetched corpora lie: `$FLEDGE_CORPORA`, or `corpora` in the cache."""
    if chosen := os.environ.get("FLEDGE_CORPORA"):
        return Path(chosen)
    return cache_folder() / "corpora"


def located(name: str) -> list[tuple[str, bool]]:
    """The files behind a corpus name, and whether each is held out; any other name stands for itself."""
    if name not in NAMED or os.path.exists(name):
        return [(name, False)]
    folder = corpora_folder() / name
    found = [(str(folder / file.name), file.held_out) for file in NAMED[name].files]
    if not all(os.path.exists(path) for path, _ in found):
        raise FledgeError(f"The corpus {name} is not on this machine yet. Fetch it: fledge corpus fetch {name}")
    return found


def fetch_corpus(name: str, folder: Path | str | None = None, progress: bool = True) -> list[Path]:
    """Fetch a named corpus, or the file at an http(s) address; what is already there and whole is left alone."""
    if name.startswith(("http://", "https://")):
        return [download(Remote(name), Path(folder or "."), progress)]
    if name not in NAMED:
        raise FledgeError(f"There is no public corpus named {name!r}. {nearest(name, NAMED)}")
    place = Path(folder) if folder is not None else corpora_folder() / name
    return [_download_pinned(file, place, progress) for file in NAMED[name].files]


def _download_pinned(file: Remote, folder: Path, progress: bool) -> Path:
    """Fetch a file of which no checksum is known beforehand: the one that the server publishes is kept beside it.

    Where it publishes none, the kept one is that of what came the first time: a later change is noticed all the same.
    """
    if file.sha256 is not None:
        return download(file, folder, progress)
    kept = folder / f"{file.name}.sha256"  # as sha256sum writes it
    noted = re.match(rb"[0-9a-f]{64}\b", kept.read_bytes()) if kept.exists() else None
    known = noted[0].decode() if noted else None
    path = folder / file.name
    expected = known or (None if path.exists() else _published(file))
    try:
        path = download(replace(file, sha256=expected), folder, progress)
    except FledgeError as error:
        if known is None or "checksum" not in str(error):
            raise
        raise FledgeError(
            f"{error} The checksum of the first download is stored in {kept}; remove it to accept the new file."
        ) from None
    if known is None:
        with atomic_write(kept) as out:
            out.write(f"{expected or sha256(path)}  {file.name}\n".encode())
    return path


class _Here(urllib.request.HTTPRedirectHandler):
    """Stays where it is sent elsewhere: a hub states the checksum of a large file as it points to its place."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _published(file: Remote) -> str | None:
    """The SHA-256 that the server states, as hubs do of large files; None where it states none."""
    request = urllib.request.Request(file.address, method="HEAD", headers={"User-Agent": "fledge"})
    headers: Any = {}
    with suppress(OSError, HTTPException):
        try:
            headers = urllib.request.build_opener(_Here).open(request, timeout=TIMEOUT).headers
        except urllib.error.HTTPError as answer:  # a redirection is one, too
            headers = answer.headers
    for name in ("X-Linked-Etag", "ETag"):
        if found := re.fullmatch(r'(?:W/)?"?([0-9a-f]{64})"?', headers.get(name) or ""):
            return found[1]
    return None


class NotReached(FledgeError):
    """A file could not be fetched because the network or the server does not let it through."""


def download(file: Remote, folder: Path, progress: bool = True, name: str | None = None) -> Path:
    """Fetch one file into a folder, under its own name or another.

    It appears there only when it is whole and its checksum, if one is known, is right.
    """
    path = folder / (name or file.name)
    if path.exists():
        if problem := _problem(file, path):
            raise FledgeError(f"{path} {problem}: it was changed or damaged. Remove it and fetch it again.")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    partial, stamp = path.with_name(path.name + PARTIAL), path.with_name(path.name + PARTIAL + ".tag")
    if file.size is not None:
        require_space(folder, file.size - _length(partial), path.name)
    with progress_bar(f"fetching {path.name}", file.size, shown=progress) as bar:
        for attempt in range(ATTEMPTS):
            try:
                if _attempt(file, partial, stamp, bar):
                    break
                problem = "the connection was lost"
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise FledgeError(f"{file.address} answers {error.code} {error.reason}.") from None
                problem = f"the server answers {error.code} {error.reason}"
            except FledgeError:
                raise
            except ValueError as error:
                raise FledgeError(f"{file.address} can't be fetched: {error}. Check the address.") from None
            except (OSError, HTTPException) as error:
                if isinstance(error, OSError) and error.filename:  # the disk, not the network
                    raise
                cause = getattr(error, "reason", error)
                problem = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
                if isinstance(error, urllib.error.URLError) and not _length(partial):
                    raise _not_reached(file, problem, partial) from None  # there is no network, or no such server
            if attempt + 1 < ATTEMPTS:
                time.sleep(PAUSE * 2**attempt)
        else:
            raise _not_reached(file, problem, partial)
    stamp.unlink(missing_ok=True)
    if problem := _problem(file, partial):
        partial.unlink()
        raise FledgeError(f"The download from {file.address} {problem} and was deleted. Try again later.")
    sync_file(partial)
    os.replace(partial, path)
    sync_folder(folder)
    return path


def _not_reached(file: Remote, problem: str, partial: Path) -> NotReached:
    have = _length(partial)
    kept = f" {readable_bytes(have)} are kept; the same command goes on from there." if have else ""
    return NotReached(f"{file.address} can't be fetched now: {problem}.{kept}")


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _attempt(file: Remote, partial: Path, stamp: Path, bar: Any) -> bool:
    """One connection: go on where the last one stopped. True when everything has come."""
    have = _length(partial)
    address = urllib.parse.quote(file.address, safe=string.punctuation, errors="surrogateescape")  # é becomes %C3%A9
    request = urllib.request.Request(address, headers={"User-Agent": "fledge", "Accept-Encoding": "identity"})
    if file.secret is not None:
        request.add_unredirected_header("Authorization", file.secret)
    if have:
        request.add_header("Range", f"bytes={have}-")
        if stamp.exists():  # if the file at the address has changed, the server sends all of it
            request.add_header("If-Range", stamp.read_text())
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing after what we have
            whole = (error.headers.get("Content-Range") or "").rpartition("/")[2]
            if whole == str(have):
                return True
            partial.unlink()
            return False
        raise
    with response:
        going_on = response.status == 206
        start = have if going_on else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        if file.size is not None and total is not None and total != file.size:
            raise FledgeError(
                f"{file.address} has {total:,} bytes, and {file.size:,} are expected: the file there was replaced. "
                "Fetch it by hand if you trust it."
            )
        if total is not None:
            bar.total = total
            require_space(partial.parent, total - start, file.name)
        if tag := response.headers.get("ETag") or response.headers.get("Last-Modified"):
            stamp.write_text(tag)
        if bar.done < start:
            bar.advance(start - bar.done)
        with open(partial, "r+b" if going_on else "wb") as out:
            out.seek(start)
            while data := response.read(CHUNK):
                out.write(data)
                bar.advance(len(data))
            end = out.tell()
        return total is None or bool(end >= total)


def _problem(file: Remote, path: Path) -> str:
    """How a file differs from the one expected; nothing where it does not."""
    if file.size is not None and path.stat().st_size != file.size:
        return f"has {path.stat().st_size:,} bytes instead of {file.size:,}"
    if file.sha256 is not None and sha256(path) != file.sha256:
        return "does not match its checksum (SHA-256)"
    return ""
