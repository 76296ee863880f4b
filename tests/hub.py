"""A small server of the hub's protocol on this machine: repositories as commits of files, for tests.

It answers what huggingface_hub and its file system ask: who a repository is, its tree, its files (with ranges, and
large ones by way of another address), uploads as regular and as large files, and commits. It notes every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

OF_REPOSITORY = re.compile(r"/api/((?:models|datasets)/[^/]+/[^/]+)(?:/(\w[\w-]*)(?:/([^/]+))?(?:/(.*))?)?")
LARGE = (".safetensors", ".parquet", ".bin")


def git_name(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Repositories by `models/owner/name` or `datasets/owner/name`: their commits, the newest last."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.stored: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.token: str | None = None
        self.cut_at: int | None = None
        "Bytes after which the next answer with a large file breaks off."
        self.address = ""

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        commits = self.repositories.setdefault(repository, {})
        name = hashlib.sha1(repr((repository, len(commits), sorted(files))).encode()).hexdigest()
        commits[name] = dict(files)
        return name

    def find(self, repository: str, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        commits = self.repositories.get(repository)
        if not commits:
            return None
        name = list(commits)[-1] if revision in (None, "main") else revision
        return (str(name), commits[str(name)]) if name in commits else None


def entry(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "file", "path": name, "rfilename": name, "size": len(data), "oid": git_name(data)}
    found["blobId"] = found["oid"]
    if name.endswith(LARGE):
        found["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        found["lfs"]["oid"] = found["lfs"]["sha256"]
    return found


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for key, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        self.answer({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})

    def allowed(self, repository: str) -> bool:
        sent = self.headers.get("Authorization")
        return repository not in self.hub.private or sent == f"Bearer {self.hub.token}"

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self.chunks())
        self.hub.requests.append((self.command, path, dict(self.headers)))
        if found := re.fullmatch(r"/stored/(\w+)", path):
            return self.object(found[1], body)
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            asked = json.loads(body)
            repository = f"models/{asked.get('organization') or 'owner'}/{asked['name']}"
            if repository in self.hub.repositories:
                return self.answer({"error": "exists", "url": f"{self.hub.address}/{repository[7:]}"}, 409)
            self.hub.commit(repository, {})
            return self.answer({"url": f"{self.hub.address}/{repository[7:]}", "id": repository[7:]})
        if found := re.fullmatch(
            r"/api/((?:models|datasets)/[^/]+/[^/]+)(?:/(\w[\w-]*)(?:/([^/]+))?(?:/(.*))?)?", path
        ):
            return self.api(found[1], found[2], found[3], found[4] or "", body, query)
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self.batch(json.loads(body))
        if found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(f"{found[1] or 'models/'}{found[2]}", found[3], found[4])
        self.refuse(404, "EntryNotFound")

    do_GET = do_POST = do_PUT = do_HEAD = handle_any

    def chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().strip() or b"0", 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def api(
        self, repository: str, verb: str | None, revision: str | None, path: str, body: bytes, query: dict[str, Any]
    ) -> None:
        if repository not in self.hub.repositories or not self.allowed(repository):
            return self.refuse(404 if self.headers.get("Authorization") else 401, "RepoNotFound")
        found = self.hub.find(repository, revision)
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        commit, files = found
        if verb in (None, "revision"):
            siblings = [entry(name, data) for name, data in sorted(files.items())]
            return self.answer({"id": repository.partition("/")[2], "sha": commit, "siblings": siblings, "tags": []})
        if verb == "tree":
            below = {name: data for name, data in files.items() if not path or name.startswith(f"{path}/")}
            if path and not below:
                return self.refuse(404, "EntryNotFound")
            rest = {name[len(path) + 1 if path else 0 :]: (name, data) for name, data in below.items()}
            deep = query.get("recursive", ["false"])[0].lower() == "true"
            listed = [entry(name, data) for key, (name, data) in sorted(rest.items()) if deep or "/" not in key]
            folders = sorted({key.partition("/")[0] for key in rest if "/" in key})
            listed += [
                {"type": "directory", "path": f"{path}/{f}" if path else f, "oid": git_name(b"")} for f in folders
            ]
            return self.answer(listed)
        if verb == "paths-info":
            form = parse_qs(body.decode())
            asked = form.get("paths") or json.loads(body or b"{}").get("paths", [])
            listed = [entry(name, files[name]) for name in asked if name in files]
            folders = [n for n in asked if n not in files and any(f.startswith(f"{n}/") for f in files)]
            return self.answer(listed + [{"type": "directory", "path": n, "oid": git_name(b"")} for n in folders])
        if verb == "preupload":
            asked = json.loads(body)["files"]
            modes = {f["path"]: "lfs" if f["path"].endswith(LARGE) else "regular" for f in asked}
            return self.answer(
                {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}
            )
        if verb == "commit":
            return self.take(repository, files, body)
        self.refuse(404, "EntryNotFound")

    def take(self, repository: str, before: dict[str, bytes], body: bytes) -> None:
        files = dict(before)
        for line in body.splitlines():
            said = json.loads(line)
            value = said["value"]
            if said["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif said["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif said["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.hub.commit(repository, files)
        url = f"{self.hub.address}/{repository.partition('/')[2]}/commit/{commit}"
        self.answer({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for item in asked["objects"]:
            upload = {"href": f"{self.hub.address}/stored/{item['oid']}", "header": {}}
            new = item["oid"] not in self.hub.stored
            objects.append({**item, **({"actions": {"upload": upload}} if new else {})})
        self.answer({"transfer": "basic", "objects": objects}, headers={"Content-Type": "application/json"})

    def object(self, name: str, body: bytes) -> None:
        if self.command == "PUT":
            assert hashlib.sha256(body).hexdigest() == name
            self.hub.stored[name] = body
            return self.answer(b"")
        self.send_part(self.hub.stored[name], {"ETag": f'"{name}"'})

    def resolve(self, repository: str, revision: str, name: str) -> None:
        found = self.hub.find(repository, revision)
        if found is None or not self.allowed(repository):
            return self.refuse(404, "RepoNotFound")
        commit, files = found
        if name not in files:
            return self.refuse(404, "EntryNotFound")
        data, about = files[name], {"X-Repo-Commit": commit}
        if name.endswith(LARGE):
            checksum = hashlib.sha256(data).hexdigest()
            self.hub.stored[checksum] = data
            about |= {"X-Linked-Etag": f'"{checksum}"', "X-Linked-Size": str(len(data))}
            elsewhere = self.hub.address.replace("127.0.0.1", "localhost")  # as large files lie on other servers
            return self.answer(b"", 302, {**about, "Location": f"{elsewhere}/stored/{checksum}"})
        self.send_part(data, {**about, "ETag": f'"{git_name(data)}"'})

    def send_part(self, data: bytes, headers: dict[str, str]) -> None:
        status, start, end = 200, 0, len(data)
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start, end, status = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data)), 206
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        part = data[start:end]
        cut = self.hub.cut_at
        if cut is None or self.command == "HEAD" or len(part) <= cut:
            return self.answer(part, status, headers)
        self.hub.cut_at = None
        self.send_response(status)
        for key, text in {"Content-Length": str(len(part)), **headers}.items():
            self.send_header(key, text)
        self.end_headers()
        self.wfile.write(part[:cut])
        self.close_connection = True


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers while the block runs."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfHub", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
