"""A folder as a source: all of its texts and nothing else, and what is left out is said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fledge import train_bpe
from fledge.bundle import save_bundle
from fledge.config import ModelConfig, RunConfig
from fledge.corpus import Corpus, JoinedText
from fledge.errors import FledgeError
from fledge.model import build_model
from fledge.tokens import write_store
from fledge.tokens.work import Journal

BYTES = [b"document %d of a folder" % i for i in range(30)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(BYTES):
        (folder / f"{i:03}.txt").write_bytes(text)
    return folder


def documents(*sources: Path) -> list[bytes]:
    return list(Corpus.open(*sources, validation_fraction=0).documents())


def test_many_small_files_are_looked_at_once_each(folder, monkeypatch):
    """The work for a file does not grow with the number of those before it, nor with that of all sources."""
    sized, walked = [], []
    size = JoinedText.size.fget

    class Sources(list):
        def __iter__(self):
            walked.append(1)
            return super().__iter__()

    corpus = Corpus.open(folder, split="document")  # near-copies are looked for in a reading of its own
    corpus.sources = Sources(corpus.sources)
    monkeypatch.setattr(JoinedText, "size", property(lambda text: sized.append(1) or size(text)))
    assert sum(len(batch.text) for batch in corpus.batches()) == len(BYTES)
    assert len(sized) <= len(BYTES)
    assert len(walked) < 10


def test_a_folder_that_can_not_be_read_is_not_passed_over(folder, monkeypatch):
    (folder / "secret").mkdir()
    scandir = os.scandir

    def refused(path):
        if os.path.basename(path) == "secret":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(FledgeError, match=r"texts/secret can't be read \(Permission denied\)"):
        Corpus.open(folder)
    (folder / "secret").rename(folder / ".secret")
    assert documents(folder) == BYTES  # hidden ones are none of ours


def test_links_to_folders_are_followed_and_no_folder_is_read_twice(folder, tmp_path):
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "more.txt").write_bytes(b"and more")
    (folder / "z").symlink_to(tmp_path / "elsewhere")
    (folder / "y").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "elsewhere" / "deep" / "circle").symlink_to(folder)
    assert documents(folder) == [*BYTES, b"and more"]


def test_a_pipe_in_a_folder_is_left_out_aloud(folder):
    os.mkfifo(folder / "pipe")
    with pytest.warns(UserWarning, match="left out pipe: a pipe or a device"):
        assert documents(folder) == BYTES


def test_each_file_of_a_folder_is_looked_at_for_separators(folder):
    (folder / "README.md").write_bytes(b"About these stories.")
    (folder / "stories.txt").write_bytes(b"<|endoftext|>".join(BYTES))
    assert documents(folder) == [*BYTES, b"About these stories.", *BYTES]


def test_what_fledge_wrote_into_the_folder_is_left_out_aloud(folder):
    """A tokenizer, a store, one begun, a bundle, a run: the texts, and so the store's purpose, stay the same."""
    before = Corpus.open(folder)
    tokenizer = train_bpe([b"a text to learn from"], 260, ["<|endoftext|>"])
    tokenizer.save(folder / "tok")
    write_store(before, tokenizer, folder / "tokens", progress=False)
    (folder / "begun").mkdir()
    Journal(folder / "begun" / "journal.jsonl").append({"source": before.identity})
    (folder / "begun" / "train.bin").write_bytes(b"ab")
    config = RunConfig(model=ModelConfig(layers=1, width=16, heads=2), tokens={"context_length": 16})
    save_bundle(folder / "bundle", config, tokenizer, build_model(config.model, tokenizer.vocab_size, 16))
    (folder / "runs" / "mine").mkdir(parents=True)
    for name in ("config.json", "metrics.csv", "samples.txt"):
        (folder / "runs" / "mine" / name).write_text("{}")
    with pytest.warns(UserWarning, match=r"left out begun, bundle, runs/mine and 2 more: written by fledge itself"):
        after = Corpus.open(folder)
    assert after.identity == before.identity


def test_files_that_only_share_a_name_with_ours_are_read(folder):
    for name in ("store.json", "journal.jsonl", "config.json"):
        (folder / name.partition(".")[0]).mkdir()
        (folder / name.partition(".")[0] / name).write_bytes(b'{"text": "mine"}')
    assert documents(folder) == [*BYTES, b'{"text": "mine"}', b"mine", b'{"text": "mine"}']
    assert documents(folder / "store") == [b'{"text": "mine"}']
