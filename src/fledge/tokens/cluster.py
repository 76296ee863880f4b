"""The same store from a Ray cluster: blocks of text are encoded by tasks, and written in their order here.

The bytes are those of a local run, and an interrupted run goes on, for reading, writing and the journal are
the same.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fledge.corpus import Batch, Corpus, Text
from fledge.errors import FledgeError
from fledge.tokenizer.base import Tokenizer
from fledge.tokens.encoding import Encoded, encode_batch
from fledge.tokens.store import MANIFEST
from fledge.tokens.writer import write_store

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

    `out` is a folder or an fsspec address; for the latter the store is staged in the temporary folder and
    copied, its manifest last. Returns the manifest.
    """
    try:
        import ray
    except ImportError:
        raise FledgeError("--engine ray needs the package ray: pip install 'fledge[ray]'.") from None
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    shared = ray.put(tokenizer)
    task = ray.remote(num_cpus=1)(_task)

    def encoder(batches: Iterable[Batch]) -> Iterator[tuple[Batch, dict[str, Encoded]]]:
        resources: dict[str, Any] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        limit = WAITING * max(1, int(resources.get("CPU", 1)))
        under_way: deque[tuple[Batch, Any]] = deque()
        for batch in batches:
            sent = batch._replace(text=batch.text.joined())  # a mapped file can't be sent
            emptied = batch._replace(text=Text.of([]))
            under_way.append((emptied, task.remote(sent, shared, corpus.special)))
            if len(under_way) >= limit:
                done, reference = under_way.popleft()
                yield done, ray.get(reference)
        for done, reference in under_way:
            yield done, ray.get(reference)

    remote = "://" in out
    folder = _staging(out) if remote else Path(out)
    store = write_store(corpus, tokenizer, folder, progress=progress, restart=restart, encoder=encoder)
    if remote:
        _copy(folder, out)
    return store.manifest


def _task(batch: Batch, tokenizer: Tokenizer, special: Any) -> dict[str, Encoded]:
    return encode_batch(batch, tokenizer, special, threads=1)


def _staging(out: str) -> Path:
    """The same local folder for the same address, so that an interrupted run finds its journal."""
    name = hashlib.sha256(out.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fledge-store-{name}"


def _copy(folder: Path, out: str) -> None:
    """Copy a whole store to an address, the manifest last, and remove the local one."""
    import shutil

    import fsspec

    system, place = fsspec.core.url_to_fs(out)
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.name == MANIFEST)
    for path in files:
        target = f"{place}/{path.relative_to(folder).as_posix()}"
        system.makedirs(target.rpartition("/")[0], exist_ok=True)
        system.put_file(str(path), target)
    shutil.rmtree(folder)
