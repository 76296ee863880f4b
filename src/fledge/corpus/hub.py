"""Hugging Face's hub: addresses such as hf://owner/name, pinned to a commit; files fetched once, checked, never run.

huggingface_hub asks the hub and signs in. The bytes come by our own download, which goes on where it stopped. A token
is read by huggingface_hub from where it keeps it (`hf auth login`, HF_TOKEN); it is sent to the hub alone and kept
nowhere.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fledge.corpus.fetch import NotReached, Remote, download
from fledge.errors import FledgeError, note, short
from fledge.extras import missing
from fledge.files import cache_folder, read_json, readable_bytes, write_json

SCHEME = "hf://"
COMMIT = re.compile("[0-9a-f]{40}")
_NAME = r"[A-Za-z0-9][\w.-]{0,95}"
_ADDRESS = re.compile(rf"hf:/{{1,2}}(datasets/)?({_NAME}/{_NAME})(?:@([\w.%-]+))?(?:/(.*))?")
MOST_TEXT = 100_000_000
"Bytes of a file that is not weights: tokenizers have some millions."


class Address(NamedTuple):
    """A repository of the hub, and a file or folder in it."""

    kind: str
    "`model` or `dataset`."
    repository: str
    revision: str | None
    "A branch, a tag or a commit; None for the main branch."
    path: str = ""

    def __str__(self) -> str:
        prefix = "datasets/" if self.kind == "dataset" else ""
        at = f"@{self.revision}" if self.revision else ""
        return f"{SCHEME}{prefix}{self.repository}{at}{self.path and '/'}{self.path}"


class RepositoryFiles(NamedTuple):
    """The files of a repository at one commit: their sizes, and a checksum that the hub states."""

    commit: str
    files: dict[str, tuple[int, str]]


def is_hub(place: object) -> bool:
    """Whether this is an address of the hub, also as `Path` shortens it.

    >>> is_hub("hf://owner/name"), is_hub(Path("hf://owner/name")), is_hub("runs/akjv")
    (True, True, False)
    """
    return isinstance(place, str | os.PathLike) and os.fspath(place)[:4] in ("hf:/", b"hf:/")


def parse_address(place: object) -> Address:
    """
    >>> parse_address("hf://datasets/owner/name@main/part/a.txt")
    Address(kind='dataset', repository='owner/name', revision='main', path='part/a.txt')
    """
    found = _ADDRESS.fullmatch(str(place))
    if found is None or found[2].startswith("datasets/") or ".." in (found[4] or "").split("/") or ".." in found[2]:
        raise FledgeError(
            f"{short(str(place))} is not a hub address. Write hf://owner/name for a model, or "
            "hf://datasets/owner/name/FILE; @REVISION after the name is a branch, a tag or a commit."
        )
    return Address("dataset" if found[1] else "model", found[2], found[3], found[4] or "")


def pin_address(address: Address) -> Address:
    """The address with the commit that its revision stands for now."""
    return address._replace(revision=find_repository(address).commit)


def find_repository(address: Address) -> RepositoryFiles:
    """What the repository holds. A commit that was looked at before is remembered; of a branch, the last answer serves
    where the hub can't be reached, and that is said."""
    place, name = _place(address), address.revision or "main"
    if (known := _remembered(place, name)) is not None and COMMIT.fullmatch(name):
        return known
    try:
        with hub_sentences(address):
            info = hub_api().repo_info(
                address.repository, revision=address.revision, repo_type=address.kind, files_metadata=True
            )
    except NotReached as error:
        commit = _branch(place, name)
        if commit is None or (known := _remembered(place, commit)) is None:
            raise
        note(f"{error} Using the copy of commit {commit[:12]} that was downloaded before.")
        return known
    files = {}
    for file in info.siblings or []:
        large = getattr(file.lfs, "sha256", None) or (file.lfs or {}).get("sha256") if file.lfs else None
        if isinstance(file.size, int) and file.size >= 0:
            files[file.rfilename] = (file.size, str(large or file.blob_id or ""))
    if not COMMIT.fullmatch(info.sha or ""):
        raise FledgeError(f"The hub's answer about {address} names no commit. Try again later.")
    snapshot = RepositoryFiles(info.sha, files)
    write_json(place / f"{info.sha}.json", files)
    if not COMMIT.fullmatch(name):
        write_json(place / f"{name}.branch.json", info.sha)
    return snapshot


def fetch_files(address: Address, names: Iterable[str], progress: bool = True) -> Path:
    """The folder with these files of a repository at its commit; what is there already is not fetched again."""
    snapshot = find_repository(address)
    folder = _place(address) / snapshot.commit / address.repository.partition("/")[2]
    pin = address._replace(revision=snapshot.commit)
    for name in names:
        if name != Path(name).name or name.startswith(".") or "\\" in name:
            raise FledgeError(f"{address} holds a file named {name!r:.80}, which is not a plain file name.")
        size, checksum = snapshot.files[name]
        if size > MOST_TEXT and not name.endswith(".safetensors"):
            raise FledgeError(
                f"{name} of {address} has {readable_bytes(size)}, far too much for a text. Do not trust it."
            )
        with hub_sentences(address):
            from huggingface_hub import hf_hub_url
            from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

            url = hf_hub_url(
                address.repository, name, repo_type=address.kind, revision=snapshot.commit, endpoint=_endpoint()
            )
            token = build_hf_headers().get("authorization")
        large = checksum if len(checksum) == 64 else None
        whole = (folder / name).is_file()
        path = download(Remote(url, size, large, secret=token), folder, progress)
        if not whole and large is None and checksum and _git_checksum(path) != checksum:
            path.unlink()
            raise FledgeError(f"{name} of {pin} does not match its checksum and was deleted. Try again later.")
    return folder


def address_of(path: Path) -> str | None:
    """The address, with its commit, of what was fetched into a folder; None for any other place."""
    home = cache_folder() / "hub"
    parts = path.absolute().relative_to(home).parts if home in path.absolute().parents else ()
    if len(parts) != 5 or not COMMIT.match(parts[3]):
        return None
    return str(Address(parts[0][:-1], "/".join(parts[1:3]), parts[3][:40]))


def hub_api() -> Any:
    """huggingface_hub's client, at the hub that HF_ENDPOINT names."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise missing("Hugging Face's hub", "huggingface_hub", "hub") from None
    return HfApi(endpoint=_endpoint(), library_name="fledge")


@contextmanager
def hub_sentences(address: Address) -> Iterator[None]:
    """What goes wrong between here and the hub, in a sentence that names the address."""
    hub_api()
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    login = "sign in with hf auth login, or set HF_TOKEN"
    try:
        yield
    except GatedRepoError:
        raise FledgeError(f"{address} requires an agreement: accept it on its page, and {login}.") from None
    except RevisionNotFoundError:
        raise FledgeError(f"{address}: there is no such branch, tag or commit in the repository.") from None
    except RepositoryNotFoundError:
        raise FledgeError(f"There is no {address} on the hub, or it is private: check the name, or {login}.") from None
    except LocalTokenNotFoundError:
        raise FledgeError(f"{address} needs a token: {login}.") from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise FledgeError(f"The hub does not give you access to {address}: {login}.") from None
        if status is not None and status < 500:
            raise FledgeError(f"The hub refuses {address}: {short(str(error).splitlines()[0])}") from None
        raise NotReached(f"The hub does not answer for {address} ({status}).") from None
    except FledgeError:
        raise
    except Exception as error:
        if not _is_connection(error):
            raise
        raise NotReached(
            f"The hub can't be reached for {address}: {short(str(error) or type(error).__name__)}."
        ) from None


def _is_connection(error: BaseException) -> bool:
    """Clients of several generations raise their own: all of them derive from these names."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "OfflineModeIsEnabled", "Timeout", "TimeoutError"})


def _endpoint() -> str | None:
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def _place(address: Address) -> Path:
    return cache_folder() / "hub" / f"{address.kind}s" / address.repository


def _remembered(place: Path, commit: str) -> RepositoryFiles | None:
    kept = place / f"{commit}.json"
    if not COMMIT.fullmatch(commit) or not kept.is_file():
        return None
    return RepositoryFiles(commit, {name: (size, checksum) for name, (size, checksum) in read_json(kept).items()})


def _branch(place: Path, name: str) -> str | None:
    kept = place / f"{name}.branch.json"
    return str(read_json(kept)) if kept.is_file() else None


def _git_checksum(path: Path) -> str:
    """The name that git gives to a file of this content."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
