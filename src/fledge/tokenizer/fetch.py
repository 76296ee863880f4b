"""Published vocabularies, downloaded once: checked by SHA-256, kept in a cache, resumed where cut off."""

from __future__ import annotations

from pathlib import Path

from fledge.corpus.fetch import NotReached, Remote, download
from fledge.corpus.hub import fetch_files, find_repository, parse_address
from fledge.errors import FledgeError, nearest
from fledge.files import cache_folder, sha256
from fledge.tokenizer.ranks import ENCODINGS


def kept_file(name: str) -> Path:
    return cache_folder() / "tokenizers" / f"{name}.tiktoken"


def cached(name: str) -> Path | None:
    """The file of a published vocabulary that was fetched before and is whole; None for any other name."""
    if name not in ENCODINGS:
        return None
    place = kept_file(name)
    if not place.is_file():
        raise FledgeError(f"{name} has not been fetched yet. Where there is a network: fledge tokenizer fetch {name}")
    if sha256(place) != ENCODINGS[name].sha256:
        raise FledgeError(f"{place} does not match its checksum. Fetch it again: fledge tokenizer fetch {name}")
    return place


def fetch_tokenizer(name: str, *, progress: bool = False) -> Path:
    """Download a published vocabulary (`gpt2`, `cl100k`, `o200k`), unless it is in the cache already."""
    if name not in ENCODINGS:
        raise FledgeError(f"{name} is not a published vocabulary. {nearest(name, ENCODINGS)}")
    encoding, place = ENCODINGS[name], kept_file(name)
    if place.is_file() and sha256(place) != encoding.sha256:
        place.unlink()
    file = Remote(encoding.address, encoding.size, encoding.sha256)
    try:
        return download(file, place.parent, progress, place.name)
    except NotReached as error:
        raise FledgeError(f"{error} Without a network, copy {file.name} from elsewhere and name that file.") from None


FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
"What a tokenizer on a hub consists of."


def from_hub(place: str) -> Path:
    """The folder with the tokenizer at an address such as `hf://owner/name`, fetched once."""
    address = parse_address(place)
    if address.path:
        raise FledgeError(
            f"{address} names a file: a tokenizer's address is hf://owner/name, with @REVISION where asked."
        )
    found = [name for name in FILES if name in find_repository(address).files]
    if not {"tokenizer.json", "vocab.json"} & set(found):
        raise FledgeError(f"There is no tokenizer.json in {address}.")
    if "tokenizer.json" in found:
        found = [name for name in found if name.startswith("tokenizer")]
    return fetch_files(address, found)
