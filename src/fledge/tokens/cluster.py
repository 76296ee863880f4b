"""The same store from a Ray cluster: blocks of text are encoded by tasks, and written in their order here.

The bytes are those of a local run, and an interrupted run goes on, for reading, writing and the journal are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fledge.corpus import Corpus, DocumentBatch, JoinedText
from fledge.corpus.sources import filesystem
from fledge.errors import FledgeError
from fledge.extras import missing
from fledge.tokenizer.base import Tokenizer
from fledge.tokens.encoding import Encoded, encode_batch
from fledge.tokens.store import JOURNAL, MANIFEST, TOKENIZER
from fledge.tokens.writer import HEAD, SIGNS, purpose_of, require_ours, require_same, write_store

WAITING = 3  # blocks per worker under way: one encoded, one arriving, one to be taken next


def write_store_on_ray(
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: str,
    progress: bool = True,
    address: str | None = None,
    restart: bool = False,
) -> dict[str, Any]:
    """Write a store with a Ray cluster (`address`, or the one of the environment, or a local one).

    `out` is a folder or an fsspec address; for the latter the store is staged in a folder of the user's own below the
    temporary one and copied, its manifest last. A store that is already there is left as it is, or refused if it is
    another one, unless `restart` is set. Returns the manifest.
    """
    try:
        import ray
    except ImportError:
        raise missing("--engine ray", "ray", "ray") from None
    remote = "://" in out
    if remote:
        _require_ours(out)
    if remote and not restart and (found := _found(out, corpus, tokenizer)) is not None:
        return found
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    shared = ray.put(tokenizer)
    task = ray.remote(num_cpus=1)(_task)

    def encoder(batches: Iterable[DocumentBatch]) -> Iterator[tuple[DocumentBatch, dict[str, Encoded]]]:
        resources: dict[str, Any] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        limit = WAITING * max(1, int(resources.get("CPU", 1)))
        under_way: deque[tuple[DocumentBatch, Any]] = deque()
        for batch in batches:
            sent = batch._replace(text=batch.text.joined())  # a mapped file can't be sent
            emptied = batch._replace(text=JoinedText.of([]))
            under_way.append((emptied, task.remote(sent, shared, batch.special)))
            if len(under_way) >= limit:
                done, reference = under_way.popleft()
                yield done, ray.get(reference)
        for done, reference in under_way:
            yield done, ray.get(reference)

    folder = _staging(out) if remote else Path(out)
    store = write_store(corpus, tokenizer, folder, progress=progress, restart=restart, encoder=encoder)
    if remote:
        _copy(folder, out)
    return store.manifest


def _task(batch: DocumentBatch, tokenizer: Tokenizer, special: Any) -> dict[str, Encoded]:
    return encode_batch(batch, tokenizer, special, threads=1)


def _staging(out: str) -> Path:
    """The same local folder for the same address, so that an interrupted run finds its journal.

    The temporary folder is everybody's, so the stores lie in one there that is this user's alone: somebody else could
    have made a folder of the same name first, to read or change what is staged.
    """
    user = os.getuid() if hasattr(os, "getuid") else "own"
    mine = Path(tempfile.gettempdir()) / f"fledge-{user}"
    with suppress(FileExistsError):
        mine.mkdir(mode=0o700)
    found = mine.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != getattr(os, "getuid", lambda: found.st_uid)():
        raise FledgeError(
            f"{mine} is not a folder of yours, and the store is not staged in it. Remove it, or set TMPDIR."
        )
    mine.chmod(0o700)
    return mine / f"store-{hashlib.sha256(out.encode()).hexdigest()[:16]}"


def _require_ours(out: str) -> None:
    system, place = filesystem(out)
    heads = {}
    for name in SIGNS:
        if system.exists(f"{place}/{name}"):
            with system.open(f"{place}/{name}", "rb") as file:
                heads[name] = file.read(HEAD)
    require_ours(out, heads)


def _found(out: str, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The manifest of the store at an address if it is whole and the one that is wanted; None if there is nothing yet,
    or an unfinished copy. Anything else is refused.
    """
    system, place = filesystem(out)
    if not system.exists(f"{place}/{MANIFEST}"):
        if system.exists(place) and not system.exists(f"{place}/{JOURNAL}") and system.find(place):
            raise FledgeError(f"{out} exists and holds other files. Name another address with --out.")
        return None
    try:
        manifest: dict[str, Any] = json.loads(system.cat_file(f"{place}/{MANIFEST}"))
        purpose, splits, width = manifest["purpose"], manifest["splits"], manifest["width"]
        sizes = {f"{name}.bin": splits[name]["tokens"] * width for name in splits}
        sizes |= {f"{name}.documents.bin": splits[name]["documents"] * 8 for name in splits}
    except (ValueError, KeyError, TypeError):
        raise FledgeError(f"{out}/{MANIFEST} does not describe a token store. Replace it with --restart.") from None
    require_same(purpose, purpose_of(corpus, tokenizer), out, corpus, manifest.get("content"), None)
    for name, size in sizes.items():
        if not system.exists(f"{place}/{name}") or system.size(f"{place}/{name}") != size:
            raise FledgeError(f"{out}/{name} was cut or is missing. Make the store again with --restart.")
    return manifest


def _copy(folder: Path, out: str) -> None:
    """Copy a whole store to an address and remove the local one.

    What is there is unfinished from the first change to the last: an old manifest goes before the data is written over,
    and the new one comes after it.
    """
    system, place = filesystem(out)
    system.makedirs(place, exist_ok=True)
    system.pipe_file(f"{place}/{JOURNAL}", b"")  # an unfinished store, not a folder of other files
    if system.exists(f"{place}/{MANIFEST}"):
        system.rm_file(f"{place}/{MANIFEST}")
    if system.exists(f"{place}/{TOKENIZER}"):
        system.rm(f"{place}/{TOKENIZER}", recursive=True)
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name == MANIFEST)
    for path in files:
        target = f"{place}/{path.relative_to(folder).as_posix()}"
        system.makedirs(target.rpartition("/")[0], exist_ok=True)
        system.put_file(str(path), target)
    system.rm_file(f"{place}/{JOURNAL}")
    shutil.rmtree(folder)
