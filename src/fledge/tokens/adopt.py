"""Token files from elsewhere, adopted into a store: raw ids as nanoGPT writes them, or with llm.c's header."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from fledge.errors import FledgeError
from fledge.files import PARTIAL, atomic_folder, require_space, write_json
from fledge.progress import progress_bar
from fledge.system import sync_folder
from fledge.tokenizer.base import Ids, Tokenizer
from fledge.tokens.store import MANIFEST, TOKENIZER, TokenStore, end_token, new_manifest
from fledge.tokens.work import GrowingFile, SplitFiles

HEADER = 1024  # bytes of llm.c's header, which begins with this number
HEADER_MAGIC = 20240520
CHUNK = 1 << 22  # ids at a time


def import_tokens(
    train: Path,
    tokenizer: Tokenizer,
    folder: Path,
    validation: Path | None = None,
    width: int | None = None,
    progress: bool = True,
) -> TokenStore:
    """A store out of one or two files of raw little-endian ids. Documents are found by the tokenizer's end token.

    `width` is the bytes of an id in the files: 2 or 4, by default what the tokenizer itself would write.
    """
    if folder.exists():
        raise FledgeError(f"{folder} exists already. Name a new folder with --out.")
    files = {"train": train, "validation": validation}
    size = sum(os.path.getsize(path) for path in files.values() if path is not None)
    require_space(folder, size, "The token store")
    shutil.rmtree(folder.with_name(folder.name + PARTIAL), ignore_errors=True)
    with atomic_folder(folder) as place, progress_bar("importing", size, shown=progress) as bar:
        splits = {}
        for name, path in files.items():
            split = SplitFiles(
                GrowingFile(place / f"{name}.bin", None), GrowingFile(place / f"{name}.documents.bin", None)
            )
            if path is not None:
                _adopt(path, np.dtype(f"<u{width or tokenizer.token_dtype.itemsize}"), split, tokenizer, bar)
            splits[name] = split.facts(tokenizer.token_dtype.itemsize)
            split.close()
        tokenizer.save(place / TOKENIZER)
        source = {"imported": [path.name for path in files.values() if path is not None], "bytes": size}
        purpose = {"source": "imported", "tokenizer": tokenizer.fingerprint}
        write_json(place / MANIFEST, new_manifest(tokenizer, splits, 0, source, purpose))
        sync_folder(place)
    return TokenStore.open(folder)


def _adopt(path: Path, dtype: np.dtype[Any], split: SplitFiles, tokenizer: Tokenizer, bar: Any) -> None:
    end, limit = end_token(tokenizer.roles), tokenizer.vocab_size
    done, last, open_start = 0, end, 0  # `open_start`: where the document under way began
    with open(path, "rb") as file:
        if int.from_bytes(file.read(4), "little") == HEADER_MAGIC:
            file.seek(HEADER)
        else:
            file.seek(0)
        if (os.path.getsize(path) - file.tell()) % dtype.itemsize:
            raise FledgeError(f"{path} is not a whole number of {dtype.itemsize}-byte ids. Is --width right?")
        while data := file.read(CHUNK * dtype.itemsize):
            ids: Ids = np.frombuffer(data, dtype)
            if int(ids.max()) >= limit:
                raise FledgeError(
                    f"{path}: id {int(ids.max())} near token {done + int(ids.argmax()):,} is outside the vocabulary of "
                    f"{limit:,}. Is it the right tokenizer, and is --width right?"
                )
            ends = done + np.flatnonzero(ids == end) + 1 if end is not None else np.empty(0, np.int64)
            starts = np.concatenate(([open_start], ends))
            open_start = int(starts[-1])
            _put(split, ids, starts[:-1], tokenizer)
            done += len(ids)
            last = int(ids[-1])
            bar.advance(len(data))
    if not done:
        raise FledgeError(f"{path} is empty.")
    if end is None or last != end:  # every document ends with the end token: the last one, too
        closing = np.array([] if end is None else [end], dtype)
        _put(split, closing, np.array([open_start]), tokenizer)


def _put(split: SplitFiles, ids: Ids, starts: Ids, tokenizer: Tokenizer) -> None:
    split.documents.append(starts.astype("<u8"))
    split.tokens.append(ids.astype(tokenizer.token_dtype.newbyteorder("<"), copy=False))
    text = ids[ids != end_token(tokenizer.roles)]
    split.source_bytes += len(tokenizer.decode_bytes(text.tolist()))
