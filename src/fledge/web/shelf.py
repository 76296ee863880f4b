"""Tokenizers and models that are open: the last few that were asked for, read again when their files change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from fledge.errors import FledgeError
from fledge.web.library import ARCHIVES, Library

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.tokenizer import Tokenizer
    from fledge.tokens.index import PassageIndex

BUNDLES = 4
TOKENIZERS = 16
T = TypeVar("T")
Key = tuple[Path, int]


class Recent(Generic[T]):
    """The `limit` things used last, by path and time of change. One at a time is read, since two would only share
    the disk; who asks for one that is open does not wait for it."""

    def __init__(self, limit: int, read: Callable[[Path], T]) -> None:
        self._limit, self._read = limit, read
        self._lock, self._reading = Lock(), Lock()
        self._kept: OrderedDict[Key, T] = OrderedDict()

    def get(self, path: Path) -> T:
        key = (path, written_when(path))
        found = self._find(key)
        if found is None:
            with self._reading:
                found = self._find(key)  # another may have read it meanwhile
                if found is None:
                    found = self._read(path)
                    self._keep(key, found)
        return found

    def _find(self, key: Key) -> T | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: Key, found: T) -> None:
        with self._lock:
            for old in [kept for kept in self._kept if kept[0] == key[0]]:
                del self._kept[old]
            self._kept[key] = found
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)


class Shelf:
    """What the views work with, by the names of the library."""

    def __init__(self, library: Library, device: str = "cpu") -> None:
        self.library, self.device = library, device
        self._bundles: Recent[Bundle] = Recent(BUNDLES, self.read_bundle)
        self._tokenizers: Recent[Tokenizer] = Recent(TOKENIZERS, self._read_tokenizer)
        self._passages: Recent[PassageIndex] = Recent(BUNDLES, self._read_passages)

    def bundle(self, name: str) -> Bundle:
        """A model with its tokenizer, checked and ready."""
        return self._bundles.get(self.library.bundle(name))

    def tokenizer(self, name: str) -> Tokenizer:
        """A tokenizer of its own or of a bundle; the weights of the bundle are not touched."""
        return self._tokenizers.get(self.library.tokenizer(name))

    def passages(self, name: str) -> PassageIndex:
        """The index of the text that a bundle was trained on, where its run made one: no request makes it."""
        store = self.library.tokens(self.library.bundle(name))
        if store is None:
            raise FledgeError(
                f"The tokens that {name} was trained on are not beside it in the served folders. Leave sources out, or "
                "ask at a terminal: fledge generate RUN --sources --store STORE"
            )
        try:
            index = self._passages.get(store)
            index.store.require(self.bundle(name).tokenizer)
        except (FledgeError, OSError, ValueError):
            raise FledgeError(
                f"The tokens of {name} have no index of passages that fits them. Leave sources out, or run once at a "
                "terminal what makes it: fledge generate RUN --sources"
            ) from None
        return index

    def _read_passages(self, store: Path) -> PassageIndex:
        from fledge.tokens import TokenStore
        from fledge.tokens.index import PassageIndex

        return PassageIndex(TokenStore.open(store))

    def read_bundle(self, path: Path) -> Bundle:
        """The bundle at a path of the library, read anew and not kept: for one that is needed once."""
        from fledge.bundle import load_bundle
        from fledge.generation import widen

        bundle = load_bundle(path, device=self.device)
        widen(bundle.model)
        return bundle

    def _read_tokenizer(self, path: Path) -> Tokenizer:
        from fledge.tokenizer import load_tokenizer

        return self._bundles.get(path).tokenizer if path.name.lower().endswith(ARCHIVES) else load_tokenizer(path)


def written_when(path: Path) -> int:
    """When what lies there was written last."""
    for name in ("bundle.json", "tokenizer.json"):
        if (path / name).is_file():
            return (path / name).stat().st_mtime_ns
    return path.stat().st_mtime_ns
