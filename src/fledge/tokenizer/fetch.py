"""Published vocabularies, downloaded once: checked by SHA-256, kept in a cache, resumed where cut off."""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from fledge.errors import FledgeError, nearest
from fledge.files import readable_bytes, require_space, sha256
from fledge.progress import progress_bar
from fledge.tokenizer.ranks import ENCODINGS, Encoding

ATTEMPTS = 3
TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 16


def cache_folder() -> Path:
    """Where downloads are kept: `$FLEDGE_CACHE`, or `fledge` in the user's cache folder."""
    own = os.environ.get("FLEDGE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fledge"


def place_of(name: str) -> Path:
    return cache_folder() / "tokenizers" / f"{name}.tiktoken"


def cached(name: str) -> Path | None:
    """The file of a published vocabulary that was fetched before and is whole; None for any other name."""
    if name not in ENCODINGS:
        return None
    place = place_of(name)
    if not place.is_file():
        raise FledgeError(f"{name} has not been fetched yet. Where there is a network: fledge tokenizer fetch {name}")
    if sha256(place) != ENCODINGS[name].sha256:
        raise FledgeError(f"{place} does not match its checksum. Fetch it again: fledge tokenizer fetch {name}")
    return place


def fetch(name: str, *, progress: bool = False) -> Path:
    """Download a published vocabulary (`gpt2`, `cl100k`, `o200k`), unless it is in the cache already."""
    if name not in ENCODINGS:
        raise FledgeError(f"{name} is not a vocabulary that can be fetched. {nearest(name, ENCODINGS)}")
    encoding, place = ENCODINGS[name], place_of(name)
    if place.is_file() and sha256(place) == encoding.sha256:
        return place
    require_space(place.parent, 2 * encoding.size, f"The vocabulary {name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(place.name + ".part")
    host = urlsplit(encoding.address).netloc
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _download(encoding, partial, name, progress)
            break
        except urllib.error.HTTPError as error:
            raise FledgeError(f"{host} answered {error.code} ({error.reason}) for {encoding.address}.") from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            have = partial.stat().st_size if partial.exists() else 0
            if attempt == ATTEMPTS or (isinstance(error, urllib.error.URLError) and not have):
                kept = f" {readable_bytes(have)} are kept, and the same command goes on from there." if have else ""
                raise FledgeError(
                    f"{name} could not be fetched from {host}: {reason}.{kept} Without a network, copy "
                    f"{encoding.address.rsplit('/', 1)[1]} from elsewhere and name that file instead."
                ) from None
    if sha256(partial) != encoding.sha256:
        partial.unlink()
        raise FledgeError(
            f"what {host} sent for {name} does not match its checksum, and was thrown away. Try again later."
        )
    os.replace(partial, place)
    return place


def _download(encoding: Encoding, partial: Path, name: str, progress: bool) -> None:
    """Fill `partial` up to the expected size, from where it ends."""
    have = partial.stat().st_size if partial.exists() else 0
    if have > encoding.size:
        partial.unlink()
        have = 0
    if have == encoding.size:
        return
    request = urllib.request.Request(encoding.address)
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        if not _continues(answer, have):
            have = 0
        with (
            open(partial, "ab" if have else "wb") as file,
            progress_bar(f"Fetching {name}", encoding.size - have, shown=progress) as bar,
        ):
            while have < encoding.size and (block := answer.read(min(BLOCK, encoding.size - have))):
                file.write(block)
                have += len(block)
                bar.advance(len(block))
    if have < encoding.size:
        raise http.client.IncompleteRead(b"", encoding.size - have)


def _continues(answer: http.client.HTTPResponse, have: int) -> bool:
    """Whether the server sends the rest, and not the whole file again."""
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return answer.status == 206 and match is not None and int(match[1]) == have
