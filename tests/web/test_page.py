"""Facts about the page's own files: they are packaged, whole, and ask for nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fledge.tokenizer.unicode import why_invisible
from fledge.web.files import STATIC, read_files


def test_the_page_loads_only_what_is_here(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for address in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
        assert address.startswith("/")
        assert client.get(address).status_code == 200


def test_every_module_imports_files_that_exist() -> None:
    files = read_files()
    for name, file in files.items():
        if name.endswith(".js"):
            for target in re.findall(r'from "(\.[^"]+)"', file.content.decode()):
                path = (STATIC / Path(name).parent / target).resolve().relative_to(STATIC.resolve()).as_posix()
                assert path in files, f"{name} imports {target}"


@pytest.mark.parametrize(
    "pattern", [r"https?://(?!www\.w3\.org/)", r"innerHTML", r"\beval\(", r"document\.write", r"style="]
)
def test_no_file_reaches_out_or_builds_markup_from_text(pattern: str) -> None:
    for name, file in read_files().items():
        assert not re.search(pattern, file.content.decode()), name


def test_what_the_eye_does_not_see_is_the_same_on_the_page_as_in_the_tokenizers() -> None:
    found = re.search(r"^const HIDDEN = /(.*)/gu;$", read_files()["pieces.js"].content.decode(), re.MULTILINE)
    assert found
    hidden = re.compile(re.sub(r"\\u\{(\w+)\}", lambda code: rf"\U{code[1]:0>8}", found[1]))
    invisible = {chr(code) for code in range(0x110000) if why_invisible(chr(code))}
    invisible -= {"\n", *map(chr, range(0xD800, 0xE000))}  # a line's end has a sign of its own, half a pair never comes
    assert {character for character in invisible if not hidden.match(character)} == set()


def test_unchanged_files_are_not_sent_again(client: TestClient) -> None:
    tag = client.get("/static/main.js").headers["etag"]
    assert client.get("/static/main.js", headers={"if-none-match": tag}).status_code == 304


def test_the_api_is_documented(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert {"/v1/completions", "/api/tokens", "/api/runs", "/api/generate", "/api/account"} <= set(document["paths"])
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["description"], path
