"""Facts about text in tokenizers: exact bytes, plain specials, merges that end where encoding ends."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from fledge.tokenizer import load_tokenizer
from fledge.web.replay import replay_merges

NAMES = ["bpe-300", "bpe-370", "words", "characters"]


def ask(client: TestClient, text: str, names: list[str]) -> list[dict]:
    answer = client.post("/api/tokens", json={"text": text, "tokenizers": names})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_pieces_spell_the_text(client: TestClient, text: str) -> None:
    """For every tokenizer, the bytes of the tokens joined are the bytes of the text."""
    for result in ask(client, text, NAMES):
        pieces = [base64.b64decode(result["pieces"][str(token)]) for token in result["ids"]]
        assert b"".join(pieces) == text.encode()
        assert result["exact"]


def test_a_special_token_in_the_text_is_plain_text(client: TestClient, world: Path) -> None:
    tokenizer = load_tokenizer(world / "tokenizers" / "bpe-300")
    end = tokenizer.special_tokens["<|endoftext|>"]
    [result] = ask(client, "a<|endoftext|>b", ["bpe-300"])
    assert end not in result["ids"]
    assert len(result["ids"]) > 3


def test_one_unknown_tokenizer_leaves_the_others_alone(client: TestClient) -> None:
    first, second = ask(client, "egg", ["nothing", "words"])
    assert "There is no tokenizer" in first["error"]["message"]
    assert second["exact"]


def test_a_bundle_is_a_tokenizer_too(client: TestClient) -> None:
    [result] = ask(client, "the egg", ["alpha/checkpoints/step-00000200"])
    assert result["kind"] == "bpe"


def test_a_megabyte_is_answered(client: TestClient) -> None:
    text = "In the beginning was the egg.\n" * 35_000
    [result] = ask(client, text, ["bpe-370"])
    assert len(result["ids"]) > 100_000


def test_too_much_text_is_one_sentence(client: TestClient) -> None:
    answer = client.post("/api/tokens", json={"text": "a" * 2_000_001, "tokenizers": ["words"]})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("text:")


@pytest.mark.parametrize("text", ["therefore", " therefore", "the egg", "naïve 🥚", "0000", "<|endoftext|>"])
def test_the_replay_goes_from_bytes_to_tokens_one_merge_at_a_time(world: Path, text: str) -> None:
    tokenizer = load_tokenizer(world / "tokenizers" / "bpe-370")
    story = replay_merges(tokenizer, text)
    pieces = [[base64.b64decode(piece) for piece in step.pieces] for step in story.steps]
    assert pieces[0] == [bytes([byte]) for byte in text.encode()]
    assert pieces[-1] == [tokenizer.vocab[token] for token in tokenizer.encode(text, special="text")]
    for before, after, step in zip(pieces[:-1], pieces[1:], story.steps[1:], strict=True):
        assert len(after) == len(before) - 1
        assert b"".join(after) == text.encode()
        made = after[step.position]
        assert tokenizer.merges[step.rank] == (before[step.position], before[step.position + 1])
        assert made == b"".join(tokenizer.merges[step.rank])


def test_a_tokenizer_without_merges_says_so(client: TestClient) -> None:
    answer = client.post("/api/merges", json={"tokenizer": "words", "text": "egg"}).json()
    assert "no merges" in answer["note"]
    assert len(answer["steps"]) == 1


def test_characters_and_bytes_are_explained(client: TestClient) -> None:
    facts = client.post("/api/unicode", json={"text": "é\u200b"}).json()
    assert [c["code_point"] for c in facts["characters"]] == ["U+00E9", "U+200B"]
    assert facts["characters"][1]["note"]
    broken = client.post("/api/unicode", json={"hex": "68 c0 af"}).json()
    assert "C0 AF" in broken["flaws"][0]["reason"]
    assert client.post("/api/unicode", json={"hex": "abc"}).status_code == 422
    assert client.post("/api/unicode", json={}).status_code == 422
