"""`fledge corpus`, `fledge tokenize` and `fledge tokens` as a person types them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from fledge import train_bpe
from fledge.corpus import JoinedText
from fledge.corpus.split import held_out
from fledge.tokens import TokenStore

TEXTS = [f"Story {i}: once upon a time there were {i} cats, and they sat on a mat.\n" for i in range(120)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "stories.txt"
    path.write_text("<|endoftext|>".join(TEXTS))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path, text: Path) -> Path:
    folder = tmp_path / "tokenizer"
    train_bpe(text, 300, ["<|endoftext|>"]).save(folder)
    return folder


def test_corpus_show(fledge, text):
    shown = fledge("corpus", "show", text)
    assert shown.code == 0
    assert "train" in shown.out
    assert "Story 0: once upon a time" in shown.out
    assert "warning" not in shown.out
    wrong = fledge("corpus", "show", text.parent / "nothing.txt")
    assert wrong.code == 2
    assert wrong.err.startswith("fledge: There is no file or folder")
    assert "Traceback" not in wrong.err


def test_samples_are_printed_letter_by_letter(fledge, tmp_path):
    """No pictures for words between colons, and nothing that steers the terminal."""
    path = tmp_path / "a:cat:b\x1b[2J.txt"
    path.write_text("I :heart: you\x1b[2J")
    shown = fledge("corpus", "show", path, "--validation-fraction", 0)
    assert shown.code == 0, shown.err
    assert "I :heart: you\\x1b[2J" in shown.out
    assert "\x1b" not in shown.out
    assert "a:cat:b" in "".join(shown.out.split())


def test_corpus_fetch_knows_its_names(fledge):
    assert "tinystories" in fledge("corpus", "fetch", "list").out
    assert fledge("corpus", "fetch", "tinystorys").err.strip().endswith("Did you mean tinystories?")


def test_tokenize_and_look(fledge, text, tokenizer, tmp_path):
    store = tmp_path / "store"
    made = fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    assert made.code == 0, made.err
    assert f"{store} is whole" in made.out
    opened = TokenStore.open(store)
    count = sum(len(opened.split(name).documents) for name in ("train", "validation"))
    assert count == 120
    again = fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    assert again.out == made.out
    assert "is sound" in fledge("tokens", "check", store).out
    assert "windows of 64 tokens in train (packed)" in fledge("tokens", "show", store).out
    window = fledge("tokens", "show", store, "--window", 0, "--context-length", 48)
    assert "<|endoftext|>Story" in window.out
    assert "── document 1" in window.out
    assert "█" in window.out
    picture = tmp_path / "mask.svg"
    assert fledge("tokens", "show", store, "--window", 2, "--mask", picture).code == 0
    assert picture.read_text().startswith("<?xml")
    assert "There is no window" in fledge("tokens", "show", store, "--window", 10**9).err
    assert "policy" in fledge("tokens", "show", store, "--policy", "sideways").err


def test_a_window_is_shown_as_it_is(fledge, tokenizer, tmp_path):
    """No letters become a picture, and no text steers the terminal."""
    path, store = tmp_path / "odd.txt", tmp_path / "store"
    path.write_text("<|endoftext|>".join(f"I :heart: you\t{i}\x1b[2J\r\n" for i in range(40)))
    assert fledge("tokenize", path, "--tokenizer", tokenizer, "--out", store, "--quiet").code == 0
    shown = fledge("tokens", "show", store, "--window", 0).out
    assert "I :heart: you" in shown
    assert "⟨U+001B⟩[2J⟨U+000D⟩\n" in shown
    assert "\x1b" not in shown


def test_a_window_is_not_shown_by_another_tokenizer(fledge, text, tokenizer, tmp_path):
    store, other = tmp_path / "store", tmp_path / "other"
    fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    train_bpe(text, 290, ["<|endoftext|>"]).save(other)
    refused = fledge("tokens", "show", store, "--window", 0, "--tokenizer", other)
    assert refused.code == 2
    assert f"than --tokenizer {other}" in refused.err
    assert fledge("tokens", "show", store, "--window", 0, "--tokenizer", tokenizer).code == 0


def test_a_context_beyond_all_memory_is_a_sentence(fledge, text, tokenizer, tmp_path):
    store = tmp_path / "store"
    fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    refused = fledge("tokens", "show", store, "--window", 0, "--context-length", 10**20)
    assert refused.code == 2
    assert f"context_length = {10**20} is not allowed" in refused.err


def test_special_tokens_of_a_text_count_beside_jsonl(fledge, text, tokenizer, tmp_path):
    """Written in a text file they are tokens, in another format they are text, as docs/data.md says."""
    chat = tmp_path / "chat.txt"
    chat.write_text("#".join(f"Hello {i}<|endoftext|>there" for i in range(40)))
    extra = tmp_path / "extra.jsonl"
    extra.write_text("\n".join(json.dumps({"text": f"{i}<|endoftext|>"}) for i in range(40)))
    options = ("--separator", "#", "--tokenizer", tokenizer, "--validation-fraction", 0, "--quiet")
    for name, sources in (("both", [chat, extra]), ("chat", [chat]), ("extra", [extra])):
        made = fledge("tokenize", *sources, *options, "--out", tmp_path / name)
        assert made.code == 0, made.err
    tokens = {name: TokenStore.open(tmp_path / name).split("train").tokens for name in ("both", "chat", "extra")}
    assert np.array_equal(tokens["both"], np.concatenate((tokens["chat"], tokens["extra"])))
    assert [int((tokens[name] == 0).sum()) for name in ("chat", "extra")] == [80, 40]


@pytest.mark.parametrize("policy", ["stream", "slide-in", "slide-through", "full", "aligned", "longest", "lanes"])
def test_every_policy_can_be_shown(fledge, text, tokenizer, tmp_path, policy):
    store = tmp_path / "store"
    fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    shown = fledge("tokens", "show", store, "--window", 1, "--policy", policy, "--context-length", 16)
    assert shown.code == 0, shown.err
    assert "── document 0" in shown.out


def test_a_changed_source_is_refused_until_restart(fledge, text, tokenizer, tmp_path):
    command = ("tokenize", text, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    assert fledge(*command).code == 0
    text.write_text("<|endoftext|>".join(TEXTS[:60]))
    refused = fledge(*command)
    assert refused.code == 2
    assert "the source has changed" in refused.err
    assert fledge(*command, "--restart").code == 0


def test_bad_lines(fledge, tokenizer, tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join([*(json.dumps({"text": text}) for text in TEXTS), "{broken"]))
    command = ("tokenize", path, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    refused = fledge(*command)
    assert refused.code == 2
    assert "line 121" in refused.err
    made = fledge(*command, "--skip-bad", "--restart")
    assert "1 bad lines skipped" in made.out


def test_bad_lines_may_be_left_out_of_a_store_that_was_begun(fledge, tokenizer, tmp_path, monkeypatch):
    """What the sentence advises is possible, and the store is that of a run which knew it from the beginning."""
    for name, value in (("corpus.corpus.BLOCK", 500), ("corpus.readers.BLOCK", 500), ("tokens.work.COMMIT_SECONDS", 0)):
        monkeypatch.setattr(f"fledge.{name}", value)
    path, begun, whole = tmp_path / "text.jsonl", tmp_path / "begun", tmp_path / "whole"
    lines = [json.dumps({"text": text, "title": f"Story {i}"}) for i, text in enumerate(TEXTS)]
    path.write_text("\n".join([*lines, "{broken", json.dumps({"text": "long " * 100}), *lines]))
    # To keep near-copies together, all is read first, and nothing is begun.
    command = ("tokenize", path, "--tokenizer", tokenizer, "--split", "document", "--quiet", "--out")
    limit = ("--max-document-bytes", 400)
    assert "--skip-bad" in fledge(*command, begun, *limit).err
    assert len((begun / "journal.jsonl").read_text().splitlines()) > 1
    assert "raise the limit" in fledge(*command, begun, *limit, "--skip-bad").err
    refused = fledge(*command, begun, "--skip-bad", "--field", "title")
    assert "the source has changed since, or a setting" in refused.err
    made = fledge(*command, begun, "--skip-bad")
    assert made.code == 0, made.err
    fledge(*command, whole, "--skip-bad")
    for name in ("store.json", "train.bin", "train.documents.bin", "validation.bin"):
        assert (begun / name).read_bytes() == (whole / name).read_bytes()
    assert "line 121" in fledge(*command, begun).err  # a store without that line is not the one asked for here


def test_a_journal_that_is_not_ours_is_left_alone(fledge, tokenizer, tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for text in (json.dumps({"text": "dear diary"}) + "\n", json.dumps({"text": "and no line end"})):
        Path("journal.jsonl").write_text(text)
        Path("train.bin").write_bytes(b"of another program")
        for more in ([], ["--restart"]):
            refused = fledge("tokenize", "journal.jsonl", "--tokenizer", tokenizer, "--out", ".", *more)
            assert refused.code == 2
            assert "journal.jsonl does not belong to a token store" in refused.err
        assert {path.name for path in folder.iterdir()} == {"journal.jsonl", "train.bin"}
        assert Path("journal.jsonl").read_text() == text
        assert Path("train.bin").read_bytes() == b"of another program"


def test_import(fledge, text, tokenizer, tmp_path):
    fledge("tokenize", text, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    train = tmp_path / "store" / "train.bin"
    made = fledge("tokens", "import", train, "--tokenizer", tokenizer, "--out", tmp_path / "adopted", "--quiet")
    assert made.code == 0, made.err
    adopted = TokenStore.open(tmp_path / "adopted")
    assert np.array_equal(adopted.split("train").tokens, np.fromfile(train, np.uint16))
    wrong = fledge("tokens", "import", train, "--tokenizer", tokenizer, "--out", tmp_path / "b", "--width", 3)
    assert "--width 3" in wrong.err
    remote = fledge("tokens", "import", train, "--tokenizer", tokenizer, "--out", "s3://bucket/store")
    assert remote.code == 2
    assert "s3://bucket/store is an address" in remote.err


def test_damage_is_one_sentence(fledge, text, tokenizer, tmp_path):
    store = tmp_path / "store"
    fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    data = bytearray((store / "train.bin").read_bytes())
    data[7] ^= 1
    (store / "train.bin").write_bytes(data)
    found = fledge("tokens", "check", store)
    assert found.code == 2
    assert "do not match their checksum" in found.err
    assert "Traceback" not in found.err


def test_an_unknown_engine(fledge, text, tokenizer, tmp_path):
    refused = fledge("tokenize", text, "--tokenizer", tokenizer, "--out", tmp_path / "s", "--engine", "rey")
    assert refused.code == 2
    assert "Did you mean ray?" in refused.err


def test_an_address_needs_ray(fledge, text, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = fledge("tokenize", text, "--tokenizer", tokenizer, "--out", "s3://bucket/store")
    assert refused.code == 2
    assert "s3://bucket/store is an address" in refused.err
    assert "--engine ray" in refused.err
    assert not (tmp_path / "s3:").exists()


def test_a_store_at_an_address_is_not_shown_by_a_command_that_opens_folders(fledge, text, tokenizer, monkeypatch):
    cluster = pytest.importorskip("fledge.tokens.cluster")
    manifest = {"splits": {"train": {"tokens": 2, "documents": 1, "source_bytes": 9}}, "skipped": 0}
    monkeypatch.setattr(cluster, "write_store_on_ray", lambda *given, **more: manifest)
    made = fledge("tokenize", text, "--tokenizer", tokenizer, "--engine", "ray", "--out", "memory://store")
    assert made.code == 0, made.err
    assert "memory://store is whole" in made.out
    assert "tokens show" not in made.out


def test_a_damaged_gz_leaves_nothing_behind(fledge, tokenizer, tmp_path):
    data = bytearray(gzip.compress("\n".join(json.dumps({"text": text}) for text in TEXTS).encode()))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "z.jsonl.gz"
    path.write_bytes(data)
    refused = fledge("tokenize", path, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    assert refused.code == 2
    assert "can't be decompressed to its end" in refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / "store").exists()


def test_a_damaged_store_is_not_called_whole(fledge, text, tokenizer, tmp_path):
    store = tmp_path / "store"
    command = ("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    assert fledge(*command).code == 0
    sound = (store / "train.bin").read_bytes()
    (store / "train.bin").write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    refused = fledge(*command)
    assert refused.code == 2
    assert "do not match their checksum" in refused.err
    assert "--restart" in refused.err
    assert "is whole" not in refused.out
    assert fledge(*command, "--restart").code == 0
    assert (store / "train.bin").read_bytes() == sound


def test_a_limit_on_documents_is_an_option(fledge, text, tokenizer, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(json.dumps({"text": "word " * (1 + 500 * (i == 30))}) for i in range(60)))
    command = ("tokenize", path, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    refused = fledge(*command, "--max-document-bytes", 2000)
    assert refused.code == 2
    assert "the document at line 31 is longer than 2.0 kB" in refused.err
    assert "--max-document-bytes" in refused.err
    assert not (tmp_path / "store").exists()
    assert fledge(*command, "--max-document-bytes", 3000).code == 0


def test_nothing_to_train_on_is_said(fledge, tokenizer, tmp_path):
    path = tmp_path / "one.txt"
    copies = [f"held out by its hash {i}" for i in range(200)]
    (held,) = [text for text in copies if held_out(JoinedText.of([text.encode()]), 0.1)[0]][:1]
    path.write_text("<|endoftext|>".join([held] * 30))
    assert "nothing is left to train on" in fledge("corpus", "show", path).out
    made = fledge("tokenize", path, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    assert "nothing is left to train on" in made.out


def test_an_empty_separator_is_refused(fledge, text, tokenizer, tmp_path):
    for verb in (["corpus", "show", text], ["tokenize", text, "--tokenizer", tokenizer, "-o", tmp_path / "s"]):
        refused = fledge(*verb, "--separator", "")
        assert refused.code == 2
        assert "The separator (--separator" in refused.err


def test_fetch_says_what_is_checked(fledge):
    listed = dict(line.split(maxsplit=1) for line in fledge("corpus", "fetch", "list").out.splitlines())
    assert listed["tinystories"].endswith("checked by size and SHA-256")
    assert listed["openwebtext"].endswith(
        "checked by the SHA-256 that the server publishes, kept from the first fetch on"
    )


def test_an_empty_source_leaves_nothing_behind(fledge, text, tokenizer, tmp_path):
    (tmp_path / "empty.txt").touch()
    store = tmp_path / "store"
    for more in ([], ["--validation-fraction", "0"]):
        refused = fledge("tokenize", tmp_path / "empty.txt", "--tokenizer", tokenizer, "-o", store, *more)
        assert refused.code == 2
        assert "holds no documents" in refused.err
        assert not store.exists()
    assert fledge("tokenize", text, "--tokenizer", tokenizer, "-o", store, "--quiet").code == 0
    wrong = fledge("tokenize", text, "--tokenizer", text, "-o", tmp_path / "other")
    assert wrong.code == 2
    assert "--tokenizer" in wrong.err
    assert "a tokenizer was expected there" in wrong.err
