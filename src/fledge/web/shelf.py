"""Tokenizers and models that are open: the last few that were asked for, read again when their files change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from fledge.web.library import ARCHIVES, Library

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.tokenizer import Tokenizer

BUNDLES = 4
TOKENIZERS = 16
T = TypeVar("T")


class Recent(Generic[T]):
    """The `limit` things used last, by path and time of change. One at a time is read: two would only share
    the disk."""

    def __init__(self, limit: int, read: Callable[[Path], T]) -> None:
        self._limit, self._read = limit, read
        self._lock = Lock()
        self._kept: OrderedDict[tuple[Path, int], T] = OrderedDict()

    def get(self, path: Path) -> T:
        key = (path, _changed(path))
        with self._lock:
            if key not in self._kept:
                found = self._read(path)
                for old in [kept for kept in self._kept if kept[0] == path]:
                    del self._kept[old]
                self._kept[key] = found
                while len(self._kept) > self._limit:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


class Shelf:
    """What the views work with, by the names of the library."""

    def __init__(self, library: Library, device: str = "cpu") -> None:
        self.library, self.device = library, device
        self._bundles: Recent[Bundle] = Recent(BUNDLES, self._read_bundle)
        self._tokenizers: Recent[Tokenizer] = Recent(TOKENIZERS, self._read_tokenizer)

    def bundle(self, name: str) -> Bundle:
        """A model with its tokenizer, checked and ready."""
        return self._bundles.get(self.library.bundle(name))

    def tokenizer(self, name: str) -> Tokenizer:
        """A tokenizer of its own or of a bundle; the weights of the bundle are not touched."""
        return self._tokenizers.get(self.library.tokenizer(name))

    def _read_bundle(self, path: Path) -> Bundle:
        from fledge.bundle import load_bundle

        return load_bundle(path, device=self.device)

    def _read_tokenizer(self, path: Path) -> Tokenizer:
        from fledge.tokenizer import load_tokenizer

        return self._bundles.get(path).tokenizer if path.name.lower().endswith(ARCHIVES) else load_tokenizer(path)


def _changed(path: Path) -> int:
    for name in ("bundle.json", "tokenizer.json"):
        if (path / name).is_file():
            return (path / name).stat().st_mtime_ns
    return path.stat().st_mtime_ns
