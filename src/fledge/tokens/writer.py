"""Corpus to token store, in bounded memory: one thread reads, all cores encode, one thread commits.

Killed at any moment, the same call goes on from the last commit, and the finished bytes are those of an
undisturbed run: data files only grow, and the journal names the length up to which each is safe on the disk.
"""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fledge import files
from fledge.corpus import Corpus, DocumentBatch
from fledge.errors import FledgeError, command, note
from fledge.files import require_space, write_json
from fledge.progress import progress_bar
from fledge.system import sync_file, sync_folder
from fledge.tokenizer.base import Tokenizer
from fledge.tokenizer.checks import check_threads
from fledge.tokens.encoding import Encoded, encode_batches
from fledge.tokens.store import (
    FORMAT,
    JOURNAL,
    MANIFEST,
    PASSAGES,
    SPLITS,
    TOKENIZER,
    VERSION,
    TokenStore,
    new_manifest,
)
from fledge.tokens.work import Committer, Journal, Work, begins_journal, read_journal

READ_AHEAD = 2  # blocks of text waiting for the encoder
BYTES_PER_TOKEN = 4  # about, in a good vocabulary: for the check of the disk
SIGNS = (MANIFEST, JOURNAL)  # a folder that holds one of them is taken for a store
HEAD = 4096  # bytes of them that show whether fledge wrote them
T = TypeVar("T")
Encoder = Callable[[Iterable[DocumentBatch]], Iterator[tuple[DocumentBatch, dict[str, Encoded]]]]


class OtherText(FledgeError):
    """A store was begun with other text, or another tokenizer, than it is asked to go on with."""


def write_store(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: str | Path,
    threads: int | None = None,
    progress: bool = True,
    restart: bool = False,
    encoder: Encoder | None = None,
    verify: bool = True,
) -> TokenStore:
    """Encode a corpus into a store; go on with an unfinished one; return one that is already whole as it is.

    A store of another source or tokenizer is refused; `restart` throws it away. `encoder` encodes elsewhere. `verify`
    compares a store that was there before with its checksums; without it they are compared as it is read.
    """
    if "://" in str(folder):
        raise FledgeError(
            f"{folder} is an address, and a store is written to a folder unless Ray writes it. Add --engine ray, or "
            "name a folder with --out."
        )
    check_threads(threads)
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FledgeError(f"{folder} is a file, and a token store is a folder. Name another one with --out.")
    corpus = corpus if restart else as_begun(corpus, tokenizer, folder)
    purpose = purpose_of(corpus, tokenizer)

    def found() -> TokenStore:
        store = TokenStore.open(folder)
        require_same(store.manifest["purpose"], purpose, folder, corpus, store.manifest.get("content"), None)
        if verify:
            store.verify()
        return store

    if not restart and (folder / MANIFEST).exists() and not (folder / JOURNAL).exists():
        return found()  # nothing is written, so any number may look at once
    began = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder), _no_leftovers(folder, began):
        require_ours(folder, {name: _head(folder / name) for name in SIGNS if (folder / name).exists()})
        if restart:
            _clear(folder)
        if (folder / MANIFEST).exists():
            store = found()
            if (folder / JOURNAL).exists():  # killed between the manifest and the end
                Journal(folder / JOURNAL).remove()
            return store
        if not (folder / JOURNAL).exists() and any(folder.iterdir()):
            raise FledgeError(f"The folder {folder} exists and holds other files. Name a new folder with --out.")
        if encoder is None:

            def encoder(batches: Iterable[DocumentBatch]) -> Iterator[tuple[DocumentBatch, dict[str, Encoded]]]:
                return encode_batches(batches, tokenizer, threads)

        _write(corpus, tokenizer, folder, encoder, progress, purpose)
    return TokenStore.open(folder)


def store_on_the_fly(
    corpus: Corpus, tokenizer: Tokenizer, folder: str | Path | None = None, progress: bool = True
) -> TokenStore:
    """A store where none was made beforehand, and a warning that names the way to make one.

    It is kept in `folder`, and used from there without a word the next time; without one it goes with the process.
    """
    if folder is not None and (Path(folder) / MANIFEST).exists():
        return write_store(corpus, tokenizer, folder, progress=progress, verify=False)
    once = command("tokenize", *corpus.arguments, "--tokenizer", "TOKENIZER", "--out", "tokens")
    note(
        f"There is no token store, so {corpus.name} is tokenized first. To do that once for all runs: {once}, "
        "then --set tokens.store=tokens"
    )
    if folder is not None:
        return write_store(corpus, tokenizer, folder, progress=progress)
    place = tempfile.mkdtemp(prefix="fledge-tokens-")
    store = write_store(corpus, tokenizer, Path(place) / "store", progress=progress)
    weakref.finalize(store, shutil.rmtree, place, ignore_errors=True)
    return store


@contextmanager
def _no_leftovers(folder: Path, began: bool) -> Iterator[None]:
    """Where the folder is new and no text ever reached it, it goes again: nothing is worth resuming there."""
    try:
        yield
    except Exception:  # an interrupt is none: what it leaves is gone on with
        if began and not any(path.stat().st_size for path in folder.glob("*.bin")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def sole_writer(folder: Path) -> AbstractContextManager[None]:
    """One writer per folder, of a store as of a run."""
    return files.locked(folder, f"Another process is writing {folder}. Wait for it, or name another folder with --out.")


def _clear(folder: Path) -> None:
    """Remove a store, the manifest first, so that what is left never looks whole."""
    if (folder / MANIFEST).exists() or (folder / JOURNAL).exists():
        (folder / JOURNAL).touch()  # killed half-way, this is an unfinished store, not a folder of other files
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
        for name in SPLITS:
            (folder / f"{name}.bin").unlink(missing_ok=True)
            (folder / f"{name}.documents.bin").unlink(missing_ok=True)
        for name in (TOKENIZER, PASSAGES):
            shutil.rmtree(folder / name, ignore_errors=True)
        os.truncate(folder / JOURNAL, 0)


def require_ours(place: Path | str, heads: dict[str, bytes]) -> None:
    """Refuse to write where a manifest or a journal of another program lies; `heads` says how those there begin."""
    for name, head in heads.items():
        if not (begins_journal(head) if name == JOURNAL else FORMAT.encode() in head):
            raise FledgeError(
                f"{place}/{name} does not belong to a token store, and is left as it is. Name another place with "
                "--out, or move that file away."
            )


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(HEAD)


def purpose_of(corpus: Corpus, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a store is made of and by: another one is not gone on with, nor written over."""
    return {
        "source": corpus.identity,
        "outline": corpus.outline,
        "tokenizer": tokenizer.fingerprint,
        "version": VERSION,
    }


def as_begun(corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> Corpus:
    """The corpus with the split of the store in the folder: one that was begun before near-copies were kept together
    goes on as it began, unless a split was asked for by name.
    """
    if corpus.config is not None and "split" in corpus.config.model_fields_set:
        return corpus
    if (folder / JOURNAL).exists():
        kept = next(iter(read_journal(folder / JOURNAL)[0]), {})
    elif (folder / MANIFEST).exists():
        kept = TokenStore.open(folder).manifest["purpose"]
    else:
        return corpus
    before = corpus.without_groups()
    return before if kept.get("source") == before.identity or kept.get("outline") == before.outline else corpus


def require_same(
    found: dict[str, Any],
    wanted: dict[str, Any],
    folder: Path | str,
    corpus: Corpus,
    content: int | None,
    documents: int | None,
) -> None:
    """Refuse to go on with another source or tokenizer.

    Where only the place of the source, its time of change, or what is done with bad lines and long documents is
    another, its documents are read and compared with the checksum of those that were encoded: text that was copied is
    still the same text. So are those of a long standard input, if all were encoded; if not, they are still needed, for
    it can be read only once.
    """
    changed = ""
    if found.get("tokenizer") != wanted["tokenizer"]:
        changed = "the tokenizer has changed since"
    elif found.get("source") != wanted["source"] or (corpus.half_known and documents is None):
        alike = content is not None and found.get("outline") == wanted["outline"]
        if not alike or corpus.content(documents) != content:
            changed = "the source has changed since, or a setting that says how it is read"
    if changed:
        raise OtherText(
            f"{folder} was begun with other text or another tokenizer: {changed}. "
            "Name a new folder with --out, or throw this store away with --restart."
        )


def _write(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, encoder: Encoder, progress: bool, purpose: dict[str, Any]
) -> None:
    width = tokenizer.token_dtype.itemsize
    journal = Journal(folder / JOURNAL)
    if journal.records:
        last: dict[str, Any] = journal.records[-1] if len(journal.records) > 1 else {"content": 0, "splits": {}}
        documents = sum(split["documents"]["size"] // 8 for split in last["splits"].values())
        require_same(journal.records[0], purpose, folder, corpus, last.get("content"), documents)
    else:
        require_space(folder, (corpus.size or 0) * width // BYTES_PER_TOKEN, "The token store")
        journal.append(purpose)
    tokenizer.save(folder / TOKENIZER)
    for path in (folder / TOKENIZER).iterdir():
        sync_file(path)
    work = Work.resume(folder, journal.records[1:], corpus.parts)
    sync_folder(folder / TOKENIZER)
    sync_folder(folder)
    committer = Committer(journal, work)
    try:
        if progress:
            corpus.keep_together()
        with progress_bar("tokenizing", corpus.size, shown=progress) as bar:
            bar.advance(work.consumed)
            for batch, encoded in _ahead(encoder(_ahead(corpus.batches(work.cursor)))):
                bar.advance(batch.consumed - work.consumed)
                work.advance(batch, encoded)
                committer.offer()
        committer.finish()
        splits = {name: split.facts(width) for name, split in work.splits.items()}
        if not any(facts["documents"] for facts in splits.values()):
            raise FledgeError(f"{corpus.name} holds no documents. Check the source and its format.")
        manifest = new_manifest(tokenizer, splits, work.skipped, corpus.description, purpose, work.content)
        write_json(folder / MANIFEST, manifest)
        journal.remove()
    except BaseException:
        committer.settle()
        journal.close()
        raise
    finally:
        work.close()


def _ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, made by a thread of their own a little before they are needed."""
    ready: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(READ_AHEAD)
    stopped = threading.Event()

    def produce() -> None:
        try:
            for item in items:
                if not _put(ready, (item, None, False), stopped):
                    return
            _put(ready, (None, None, True), stopped)
        except BaseException as error:
            _put(ready, (None, error, True), stopped)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        while True:
            item, error, ended = ready.get()
            if error:
                raise error
            if ended:
                return
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()


def _put(ready: queue.Queue[Any], item: Any, stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
