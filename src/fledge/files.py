"""Files that are either whole or absent: written under a temporary name, flushed, renamed; checked by SHA-256."""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from fledge import system
from fledge.errors import FledgeError
from fledge.system import Lock, lock, sync_file, sync_folder

PARTIAL = ".partial"
LOOKS = 5  # at a folder that is taken, before it is believed
COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
Format = Literal["auto", "text", "files", "lines", "jsonl", "parquet", "akjv"]
"Of a corpus. A new one is a name here, its files' endings, and its reader in corpus/readers.py."
DOCUMENTS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}


def without_query(address: str) -> str:
    """A web address up to its `?` or `#`, where the file's name ends; any other name as it is.

    >>> without_query("https://example.org/text.jsonl.gz?token=1"), without_query("what?.txt")
    ('https://example.org/text.jsonl.gz', 'what?.txt')
    """
    return re.sub(r"(https?://[^?#]*).*", r"\1", address)


def documents_format(name: str) -> str | None:
    """The format of documents that the end of a file's name tells, compressed or not; None for plain text."""
    stem = without_query(name).lower()
    while stem.endswith(COMPRESSED):
        stem = stem[: stem.rindex(".")]
    return DOCUMENTS.get(os.path.splitext(stem)[1])


@contextmanager
def atomic_write(path: Path | str) -> Iterator[IO[bytes]]:
    """A binary file that appears under its name only when the block ends without an error.

    Several may write the same name at once: each has a temporary file of its own, and the last to end is kept.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path, folder=False) as temporary:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    sync_folder(path.parent)


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


def require_utf8(path: Path, what: str) -> None:
    """Refuse a place that safetensors could not read from, before anything is written there."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise FledgeError(
            f"{path} contains a name that is not UTF-8, and {what} can't be read from there. Choose another place."
        ) from None


def exchange(one: Path, other: Path) -> None:
    """Let two folders change their names at once; in two steps where the file system can't."""
    if not system.swap(one, other):
        aside = other.with_name(f"{other.name}.old{PARTIAL}")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(other, aside)
        os.rename(one, other)
        os.rename(aside, one)


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """A folder that appears under its name only when the block ends without an error; `path` must not exist."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path, folder=True) as temporary:
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                sync_file(Path(folder) / name)
            sync_folder(Path(folder))
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            # Another writer was first: what is in the way is said under its own name, not the temporary one.
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
    sync_folder(path.parent)


@contextmanager
def _temporary(path: Path, folder: bool) -> Iterator[Path]:
    """A new file or folder beside `path`, for one writer alone; what is left of it after the block is removed.

    The writer holds a lock on it, which ends with the process: what can be locked was left by a killed one.
    """
    _sweep(path)
    while True:
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
        if folder:
            temporary.mkdir()
        else:
            temporary.touch(exist_ok=False)
        held = _locked(temporary)
        if temporary.exists():
            break
        held.close()  # another writer took it for a leftover before it was locked
    try:
        yield temporary
    finally:
        _remove(temporary)
        held.close()


def _locked(path: Path | str) -> Lock:
    """A lock on what was just made; none where the file system has no locks, and then leftovers stay."""
    with suppress(OSError):
        return lock(path, wait=True)
    return Lock(-1)


def finished_name(name: str) -> str:
    """What a file or folder is called when it is whole, where the name is of one that is being written.

    >>> finished_name("out/model.zip.e6e03fe5.partial")
    'out/model.zip'
    """
    return re.sub(rf"(\.[0-9a-f]{{8}})?{re.escape(PARTIAL)}(?=/|$)", "", name)


def _sweep(path: Path) -> None:
    """Remove what killed writers of `path` left, and nothing that is still being written."""
    left = re.compile(re.escape(path.name) + rf"(\.[0-9a-f]{{8}})?{re.escape(PARTIAL)}")
    for entry in os.scandir(path.parent):
        # A file with no more than the suffix may be a download to go on with.
        if (found := left.fullmatch(entry.name)) and (found[1] or entry.is_dir(follow_symlinks=False)):
            _remove_unlocked(entry)


def _remove_unlocked(entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        held = lock(entry.path)
        try:
            _remove(Path(entry.path))
        finally:
            held.close()


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A folder for as long as the object lives; those of the same prefix whose processes were killed are removed."""
    for entry in os.scandir(tempfile.gettempdir()):
        if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
            _remove_unlocked(entry)
    while True:
        folder = tempfile.TemporaryDirectory(prefix=prefix)
        weakref.finalize(folder, _locked(folder.name).close)
        if os.path.exists(folder.name):  # another process may take it for a leftover before it is locked
            return folder


@contextmanager
def locked(folder: Path, sentence: str) -> Iterator[None]:
    """One process at a time has a folder, which must exist; another is refused with the sentence.

    The lock is on the folder itself and goes with the process. Where the file system has no locks, nobody is refused.
    """
    held = Lock(-1)
    for left in reversed(range(LOOKS)):
        try:
            held = lock(folder)
            break
        except BlockingIOError:
            if not left:
                raise FledgeError(sentence) from None
            time.sleep(0.02)  # who only asks whether it is taken holds it for a moment
        except OSError:
            if not folder.is_dir():
                raise
            break
    try:
        yield
    finally:
        held.close()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path | str, value: Any) -> None:
    """`value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        file.write(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Indented JSON as people read it; bytes of a file's name that are no text become \\udc80 and so on."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def read_json(path: Path | str) -> Any:
    """The JSON in `path`; what is not JSON, or beyond what Python reads, is refused with the place where it breaks."""
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        raise FledgeError(f"{path} is not valid JSON ({error}): the file was cut or changed.") from None


def sha256(path: Path | str) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def require_space(
    folder: Path | str, needed: int, what: str, advice: str = "Free some space or choose another folder."
) -> None:
    """Refuse to start work that would fill the disk: `needed` bytes for `what` below `folder`."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise FledgeError(
            f"{what} needs about {readable_bytes(needed)} in {folder}, and only {readable_bytes(free)} are free. "
            f"{advice}"
        )


def readable_bytes(count: float) -> str:
    """
    >>> readable_bytes(1_530_000)
    '1.5 MB'
    """
    if abs(count) >= 10**18:  # which a forged file may claim, and a float need not hold
        return "over a million TB"
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def cache_folder() -> Path:
    """Where downloads and compiled code are kept: `$FLEDGE_CACHE`, or `fledge` in the user's cache folder."""
    if chosen := os.environ.get("FLEDGE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fledge"


def did_you_mean(path: Path) -> str:
    """A sentence with the place that a mistyped path may have meant; empty where there is none.

    A run of that name below `runs/` comes first, then names like it beside it, then those below `runs/`.
    """
    runs = Path("runs")
    found = runs / path.name if (runs / path.name).exists() else _near(path) or _near(runs / path.name)
    return f" Did you mean {found}?" if found else ""


def _near(path: Path) -> Path | None:
    """An existing path like this one, of which every part may be mistyped; one with the same ending first."""
    folder = path.parent
    if not folder.exists() and folder != path:
        if (above := _near(folder)) is None:
            return None
        path = above / path.name
        return path if path.exists() else _near(path)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    alike = [name for name in names if os.path.splitext(name)[1] == path.suffix]
    near = difflib.get_close_matches(path.name, alike, n=1) or difflib.get_close_matches(path.name, names, 1, 0.8)
    return folder / near[0] if near else None
