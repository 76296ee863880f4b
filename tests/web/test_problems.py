"""Facts about the sentence for a request that does not fit: its place in the request, in the request's own words."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

OBJECT = "The body of the request should be a JSON object, sent as application/json."


def message(client: TestClient, path: str, **sent: Any) -> str:
    answer = client.post(path, **sent)
    assert answer.status_code == 422
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "text or hex is missing."),
        ({"text": 3}, "text: input should be a valid string."),
        ({"hex": "abc"}, "hex: should have two hexadecimal digits a byte"),
        ({"hex": "ab\n"}, "hex: should have two hexadecimal digits a byte"),
        ({"hex": 3}, "hex: input should be a valid string."),
        ({"text": "a", "hex": "61"}, "hex is not a field of this request."),
        ([], OBJECT),
        ("text", OBJECT),
    ],
)
def test_of_two_forms_the_one_meant_is_told(client: TestClient, body: Any, expected: str) -> None:
    assert message(client, "/api/unicode", json=body).startswith(expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"prompt": ["a", 3, 4]}, "prompt.1: input should be a valid string."),
        ({"prompt": [1, "a"]}, "prompt.1: should be a number."),
        ({"prompt": [[1, -1]]}, "prompt.0.1: input should be greater than or equal to 0."),
        ({"prompt": "x" * 100_001}, "prompt: string should have at most 100000 characters."),
        ({"prompt": {}}, "prompt: a value of this kind does not fit."),
        ({"stop": [""]}, "stop.0: string should have at least 1 character."),
        ({"temprature": 1}, "temprature is not a field of this request."),
    ],
)
def test_a_value_of_several_forms_is_told_by_its_place(
    client: TestClient, values: dict[str, Any], expected: str
) -> None:
    assert message(client, "/v1/completions", json={"model": "alpha", **values}) == expected


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (b"{a", "application/json", "The body is not valid JSON: Expecting property name"),
        (b"\xff\xfe", "application/json", "The body is not valid JSON"),
        (b'{"text": "a"}', "text/plain", OBJECT),
        (b"", "application/json", OBJECT),
    ],
)
def test_a_body_that_is_no_json_gets_a_sentence(client: TestClient, content: bytes, kind: str, expected: str) -> None:
    assert message(client, "/api/unicode", content=content, headers={"content-type": kind}).startswith(expected)
