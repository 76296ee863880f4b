"""The store on disk: what is in it, who can read it, and what is refused."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import fledge.corpus.corpus
import fledge.corpus.readers
import fledge.tokens.packing
import fledge.tokens.scratch
import fledge.tokens.work
from fledge.cli.tokens import _summary
from fledge.config import TokensConfig
from fledge.corpus import Corpus, Cursor, DocumentBatch, JoinedText
from fledge.errors import FledgeError
from fledge.tokens import Loader, TokenStore, make_windows, store_on_the_fly, write_store
from fledge.tokens.adopt import import_tokens
from fledge.tokens.encoding import encode_batch, encode_batches
from tests.tokens.helpers import BARE, ROLES, ByteTokenizer, make_split, make_store

TEXTS = [b"text %d " % i + b"word " * (i % 9) for i in range(200)]


@pytest.mark.parametrize("layout", ["separated", "bounded", "bare"])
def test_a_store_holds_the_documents(tmp_path, layout):
    store = make_store(tmp_path / "store", TEXTS, layout, fraction=0.2)
    bounds = {"separated": ([], [0]), "bounded": ([257], [258]), "bare": ([], [])}[layout]
    corpus = Corpus.from_documents(TEXTS, validation_fraction=0.2)
    for name in ("train", "validation"):
        split = store.split(name)
        wanted = list(corpus.documents(name))
        assert len(split.documents) == len(wanted) > 20
        for number, text in enumerate(wanted):
            assert split.document(number).tolist() == [*bounds[0], *(byte + 1 for byte in text), *bounds[1]]
        assert split.source_bytes == sum(map(len, wanted))
    store.verify()


def test_plain_readers_open_the_file(tmp_path):
    """nanoGPT's way: numpy.memmap of uint16."""
    make_store(tmp_path / "store", TEXTS)
    tokens = np.memmap(tmp_path / "store" / "train.bin", dtype=np.uint16, mode="r")
    assert bytes((tokens[: len(TEXTS[0])] - 1).astype(np.uint8)) == TEXTS[0]


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.binary(min_size=1, max_size=9).filter(lambda t: t.strip()), min_size=1, max_size=8),
    between=st.lists(st.sampled_from([b"<|endoftext|>", b"<|endoftext|> \n<|endoftext|>"]), min_size=8, max_size=8),
    ended=st.booleans(),
    flags=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    layout=st.sampled_from(["separated", "bounded", "bare"]),
    special=st.sampled_from(["recognise", "text"]),
)
def test_encoding_in_place_equals_encoding_one_by_one(documents, between, ended, flags, layout, special):
    """Separators encoded where they lie, or put in afterwards: the same ids, starts and bytes."""
    data = b"".join(part for pair in zip(documents, between, strict=False) for part in pair)
    data = data if ended else data.removesuffix(between[len(documents) - 1])
    text = JoinedText.between(data, b"<|endoftext|>")
    parts = np.array(flags[: len(text)], np.uint8)
    tokenizer = ByteTokenizer(ROLES[layout])
    found = encode_batch(DocumentBatch(text, parts, Cursor(), 0, 0), tokenizer, special, 1)
    for number, name in enumerate(("train", "validation", "test")):
        wanted = parts == number
        chosen = [document for document, keep in zip(text.documents(), wanted, strict=True) if keep]
        before, after = {"separated": ([], [0]), "bounded": ([257], [258]), "bare": ([], [])}[layout]
        ids = [[*before, *(byte + 1 for byte in document), *after] for document in chosen]
        if not chosen:
            assert name not in found
            continue
        assert found[name].ids.tolist() == [token for line in ids for token in line]
        assert found[name].starts.tolist() == np.cumsum([0, *map(len, ids)])[:-1].tolist()
        assert found[name].source_bytes == sum(map(len, chosen))


def test_an_interrupted_store_with_a_test_part_goes_on(tmp_path, monkeypatch):
    """Validation is what it is without a test part, the test part comes out of training, and a kill changes nothing."""
    monkeypatch.setattr(fledge.corpus.corpus, "BLOCK", 300)
    monkeypatch.setattr(fledge.tokens.work, "COMMIT_SECONDS", 0.0)
    texts = [f"text number {i} " * 3 for i in range(400)]

    def corpus(test: float) -> Corpus:
        return Corpus.from_documents(texts, validation_fraction=0.2, test_fraction=test)

    def stopping(batches):
        for number, pair in enumerate(encode_batches(batches, ByteTokenizer(), 1)):
            if number == 20:
                raise KeyboardInterrupt
            yield pair

    monkeypatch.setattr(fledge.corpus.readers, "BLOCK", 300)
    plain = write_store(corpus(0.0), ByteTokenizer(), tmp_path / "plain", progress=False)
    whole = write_store(corpus(0.1), ByteTokenizer(), tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt):
        write_store(corpus(0.1), ByteTokenizer(), tmp_path / "cut", progress=False, encoder=stopping)
    assert (tmp_path / "cut" / "test.bin").stat().st_size > 0
    again = write_store(corpus(0.1), ByteTokenizer(), tmp_path / "cut", progress=False)
    for file in ("store.json", *(f"{name}{end}.bin" for name in whole.splits for end in ("", ".documents"))):
        assert (again.folder / file).read_bytes() == (whole.folder / file).read_bytes()
    assert plain.splits == ("train", "validation")
    assert whole.splits == ("train", "validation", "test")
    assert (plain.folder / "validation.bin").read_bytes() == (whole.folder / "validation.bin").read_bytes()
    assert not list(plain.folder.glob("test*"))
    assert "test" not in plain.manifest["splits"]
    counts = [len(whole.split(name).documents) for name in whole.splits]
    assert sum(counts) == 400
    assert 20 < counts[2] < 60
    with pytest.raises(FledgeError, match=r"has no test part. Tokenize again with corpus.test_fraction above 0"):
        plain.split("test")
    with pytest.raises(FledgeError, match="begun with other text"):
        write_store(corpus(0.1), ByteTokenizer(), plain.folder, progress=False)


def test_the_bytes_do_not_depend_on_how_the_text_is_cut(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_bytes(b"<|endoftext|>".join(TEXTS))
    contents = []
    for size in (100, 777, 8 << 20):
        monkeypatch.setattr(fledge.corpus.corpus, "BLOCK", size)
        monkeypatch.setattr(fledge.corpus.readers, "BLOCK", size)
        write_store(Corpus.open(path), ByteTokenizer(), tmp_path / str(size), progress=False)
        contents.append([(tmp_path / str(size) / name).read_bytes() for name in ("train.bin", "store.json")])
    assert contents[0] == contents[1] == contents[2]


def test_nothing_in_a_jsonl_document_can_forge_a_boundary(tmp_path):
    forged = "before <|endoftext|> after"
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"{forged} {i}"}) for i in range(30)))
    corpus = Corpus.open(path, validation_fraction=0)
    split = write_store(corpus, ByteTokenizer(), tmp_path / "store", progress=False).split("train")
    assert len(split.documents) == 30
    assert (np.asarray(split.tokens) == 0).sum() == 30


def test_a_flipped_byte_is_noticed_when_it_is_read(tmp_path):
    store = make_store(tmp_path / "store", TEXTS)
    path = tmp_path / "store" / "train.bin"
    data = bytearray(path.read_bytes())
    data[500] ^= 4
    path.write_bytes(data)
    store = TokenStore.open(tmp_path / "store")
    windows = make_windows(store.split("train"), TokensConfig(context_length=8), store.roles, 0)
    with pytest.raises(FledgeError, match=r"train.bin: bytes 0 to .* do not match their checksum"):
        windows.batch([0])
    with pytest.raises(FledgeError, match="checksum"):
        store.verify()


def test_a_cut_store_is_refused(tmp_path):
    make_store(tmp_path / "store", TEXTS)
    path = tmp_path / "store" / "train.bin"
    os.truncate(path, path.stat().st_size - 2)
    with pytest.raises(FledgeError, match=r"train.bin has .* bytes instead of"):
        TokenStore.open(tmp_path / "store")
    path.unlink()
    with pytest.raises(FledgeError, match=r"train.bin is missing"):
        TokenStore.open(tmp_path / "store")


def test_a_damaged_or_newer_manifest_is_refused(tmp_path):
    make_store(tmp_path / "store", TEXTS)
    path = tmp_path / "store" / "store.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(FledgeError, match="Install a newer fledge"):
        TokenStore.open(tmp_path / "store")
    path.write_text(json.dumps({key: value for key, value in manifest.items() if key != "splits"}))
    with pytest.raises(FledgeError, match="is damaged"):
        TokenStore.open(tmp_path / "store")
    path.write_text("{")
    with pytest.raises(FledgeError, match="not valid JSON"):
        TokenStore.open(tmp_path / "store")


def leaves(value, place=()):
    """Where every value of a JSON document lies, objects and lists among them."""
    yield place
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(part, (*place, key))


FORGED = (None, [], {"a": 1}, "", -1, 1.5, 3, 10**30)


def test_every_forged_manifest_is_read_or_refused(tmp_path):
    """Each value of store.json in turn becomes another, or goes: a sentence, or a store that holds what it says."""
    make_store(tmp_path / "store", TEXTS, fraction=0.2)
    path = tmp_path / "store" / "store.json"
    whole = json.loads(path.read_text())
    refused = 0
    for place in leaves({**whole, "source": {}, "purpose": {}}):
        for forged in (*FORGED, leaves):  # a function: leave it out
            manifest = json.loads(json.dumps(whole))
            owner = manifest
            for key in place[:-1]:
                owner = owner[key]
            if not place:
                manifest = forged if forged is not leaves else {}
            elif forged is leaves:
                del owner[place[-1]]
            else:
                owner[place[-1]] = forged
            path.write_text(json.dumps(manifest))
            try:
                store = TokenStore.open(tmp_path / "store")
                store.verify()
                store.split("train").document(0)
                _summary(Console(file=io.StringIO()), store)
            except FledgeError:
                refused += 1
    assert refused > 150


def test_documents_that_begin_beyond_the_tokens_are_noticed(tmp_path):
    """Even with the right checksum."""
    for number, starts in enumerate(([0, 10**6], [5, 0])):
        store = tmp_path / str(number)
        make_store(store, [b"one text", b"another"])
        data = np.array(starts, "<u8").tobytes()
        (store / "train.documents.bin").write_bytes(data)
        manifest = json.loads((store / "store.json").read_text())
        manifest["splits"]["train"]["checksums"]["documents"] = [format(zlib.crc32(data), "08x")]
        (store / "store.json").write_text(json.dumps(manifest))
        with pytest.raises(FledgeError, match="documents begin beyond the tokens"):
            TokenStore.open(store).split("train").document(0)


def test_ids_outside_the_vocabulary_are_noticed(tmp_path):
    make_store(tmp_path / "store", TEXTS)
    path = tmp_path / "store" / "store.json"
    manifest = json.loads(path.read_text())
    manifest["tokenizer"]["vocabulary_size"] = 100
    path.write_text(json.dumps(manifest))
    with pytest.raises(FledgeError, match="outside the vocabulary of 100"):
        TokenStore.open(tmp_path / "store").verify()


def test_another_tokenizer_is_refused_by_name(tmp_path):
    store = make_store(tmp_path / "store", TEXTS)
    store.require(ByteTokenizer())
    with pytest.raises(FledgeError, match="another tokenizer .* than runs/a"):
        store.require(ByteTokenizer(shift=1), "runs/a")


def test_folders_that_are_not_stores(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    corpus = Corpus.from_documents(TEXTS)
    with pytest.raises(FledgeError, match="is a file"):
        write_store(corpus, ByteTokenizer(), tmp_path / "file", progress=False)
    with pytest.raises(FledgeError, match="holds other files"):
        write_store(corpus, ByteTokenizer(), tmp_path / "full", progress=False)
    assert (tmp_path / "full" / "file").exists()


def test_a_file_whose_name_is_not_utf8(tmp_path):
    """The name of a file is bytes: whatever they are, the manifest keeps them, and is UTF-8 all the same."""
    folder = tmp_path / "texts"
    folder.mkdir()
    path = folder / os.fsdecode(b"caf\xe9.txt")
    try:
        path.write_bytes(b"<|endoftext|>".join(TEXTS))
    except OSError:
        pytest.skip("this file system takes no such names")
    store = write_store(Corpus.open(folder), ByteTokenizer(), tmp_path / "store", progress=False)
    assert TokenStore.open(store.folder).manifest["source"]["sources"][0]["address"] == path.name
    assert "caf\\udce9.txt" in (store.folder / "store.json").read_bytes().decode()
    ids = folder / os.fsdecode(b"\xe9.bin")
    ids.write_bytes((store.folder / "train.bin").read_bytes())
    adopted = import_tokens(ids, ByteTokenizer(), tmp_path / "adopted", progress=False)
    assert adopted.manifest["source"]["imported"] == [ids.name]


def test_files_of_another_program_are_not_taken_for_a_store(tmp_path):
    """A restart removes a store of ours, unfinished too, and nothing that others wrote under such names."""
    corpus = Corpus.from_documents(TEXTS)
    make_store(tmp_path / "whole", TEXTS)
    for name, text in (("store.json", '{"goods": []}'), ("journal.jsonl", "00000000 {}\n")):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text(text)
        (folder / "train.bin").write_bytes(b"of another program")
        with pytest.raises(FledgeError, match=f"{name} does not belong to a token store"):
            write_store(corpus, ByteTokenizer(), folder, progress=False, restart=True)
        assert (folder / name).read_text() == text
        assert (folder / "train.bin").read_bytes() == b"of another program"
    (tmp_path / "whole" / "journal.jsonl").write_text("a user's own\n")
    with pytest.raises(FledgeError, match=r"journal.jsonl does not belong"):
        write_store(corpus, ByteTokenizer(), tmp_path / "whole", progress=False)
    for cut_short in (b"", b"3f", b'3f00aa11 {"outline":"3'):
        (tmp_path / "whole" / "journal.jsonl").write_bytes(cut_short)
        write_store(corpus, ByteTokenizer(), tmp_path / "whole", progress=False, restart=True).verify()


def test_importing_a_foreign_file(tmp_path):
    store = make_store(tmp_path / "store", TEXTS, fraction=0.2)
    files = [tmp_path / "store" / name for name in ("train.bin", "validation.bin")]
    adopted = import_tokens(files[0], ByteTokenizer(), tmp_path / "adopted", files[1], progress=False)
    for name in ("train", "validation"):
        assert np.array_equal(adopted.split(name).tokens, store.split(name).tokens)
        assert np.array_equal(adopted.split(name).documents, store.split(name).documents)
        assert adopted.split(name).source_bytes == store.split(name).source_bytes
    adopted.verify()
    with_header = np.zeros(512, "<u2")
    with_header.view("<u4")[0] = 20240520
    (tmp_path / "header.bin").write_bytes(with_header.tobytes() + files[0].read_bytes())
    again = import_tokens(tmp_path / "header.bin", ByteTokenizer(), tmp_path / "again", progress=False)
    assert np.array_equal(again.split("train").tokens, store.split("train").tokens)


def test_importing_what_does_not_fit(tmp_path):
    for name, data, message in (
        ("odd.bin", b"abc", "not a whole number of 2-byte ids"),
        ("other.bin", np.array([1, 999], "<u2").tobytes(), "id 999 .* outside the vocabulary of 260"),
        ("empty.bin", b"", "is empty"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FledgeError, match=message):
            import_tokens(tmp_path / name, ByteTokenizer(), tmp_path / "store", progress=False)
        assert not (tmp_path / "store").exists()
    (tmp_path / "wide.bin").write_bytes(np.array([5, 6, 7], "<u4").tobytes())
    tokenizer = ByteTokenizer(BARE)
    store = import_tokens(tmp_path / "wide.bin", tokenizer, tmp_path / "store", width=4, progress=False)
    assert store.split("train").tokens.tolist() == [5, 6, 7]
    assert store.split("train").documents.tolist() == [0]


def test_on_the_fly_says_how_to_avoid_it(tmp_path):
    with pytest.warns(UserWarning, match="fledge tokenize .* --out tokens"):
        store = store_on_the_fly(Corpus.from_documents(TEXTS), ByteTokenizer(), progress=False)
    folder = store.folder
    assert len(store.split("train").tokens)
    del store
    assert not folder.exists()
    with pytest.warns(UserWarning, match="There is no token store"):
        store_on_the_fly(Corpus.from_documents(TEXTS), ByteTokenizer(), tmp_path / "kept", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store_on_the_fly(Corpus.from_documents(TEXTS), ByteTokenizer(), tmp_path / "kept", progress=False)


def test_on_the_fly_names_the_sources_as_they_were_given(tmp_path):
    lines = "\n".join(json.dumps({"body": text.decode()}) for text in TEXTS)
    for name in ("a.data", "b.data"):
        (tmp_path / name).write_text(lines)
    names = [str(tmp_path / "*.data"), str(tmp_path / "b.data")]
    corpus = Corpus.open(*names, format="jsonl", field="body", skip_bad=True)
    with pytest.warns(UserWarning, match="There is no token store") as caught:
        store_on_the_fly(corpus, ByteTokenizer(), tmp_path / "kept", progress=False)
    words = shlex.split(str(caught[0].message).partition("all runs: ")[2].partition(", then")[0])
    options = ["--format", "jsonl", "--field", "body", "--skip-bad"]
    assert words[1:] == ["tokenize", *names, *options, "--tokenizer", "TOKENIZER", "--out", "tokens"]


def test_a_changed_tail_of_standard_input_is_noticed(tmp_path, monkeypatch):
    """What is kept of a long input is its beginning; a store that is whole is compared with all of it."""
    monkeypatch.setattr(fledge.corpus.streams, "HEAD", 500)

    def given(documents):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"<|endoftext|>".join(documents))))
        return write_store(Corpus.open("-"), ByteTokenizer(), tmp_path / "store", progress=False)

    first = given(TEXTS)
    assert given(TEXTS).manifest == first.manifest
    with pytest.raises(FledgeError, match="the source has changed"):
        given([*TEXTS[:-1], b"another end"])


def test_any_error_before_the_first_text_leaves_no_folder(tmp_path):
    def encoder(batches):
        raise RuntimeError("the cluster is gone")

    with pytest.raises(RuntimeError):
        write_store(Corpus.from_documents(TEXTS), ByteTokenizer(), tmp_path / "store", progress=False, encoder=encoder)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("policy", ["stream", "packed", "slide-in", "aligned", "longest", "lanes"])
def test_ranks_share_one_global_batch(tmp_path, policy):
    """1, 2 or 4 processes see the same samples in the same order, from any start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = make_split(tmp_path, TEXTS)
        config = TokensConfig(context_length=16, policy=policy)
        windows = make_windows(split, config, ROLES["separated"], 3, lanes=8)
    whole = [batch for _, batch in Loader(windows, 8, start=16, stop=48)]
    for ranks in (2, 4):
        loaders = [Loader(windows, 8, start=16, stop=48, rank=rank, ranks=ranks) for rank in range(ranks)]
        for batch, *shares in zip(whole, *loaders, strict=True):
            rows = [row for _, share in shares for row in share.targets_BT.tolist()]
            for row, wanted in zip(rows, batch.targets_BT.tolist(), strict=True):
                width = min(len(row), len(wanted))  # `longest` pads each share to its own longest
                assert row[:width] == wanted[:width]
    with pytest.raises(FledgeError, match="shared evenly"):
        Loader(windows, 8, ranks=3)
    for wrong in ({"batch_size": 0}, {"batch_size": 8, "ranks": 0}, {"batch_size": 8, "rank": 5, "ranks": 2}):
        with pytest.raises(FledgeError, match=next(reversed(wrong)).removesuffix("s")):
            Loader(windows, **wrong)


def test_the_loader_numbers_its_batches_and_hands_on_errors(tmp_path):
    split = make_split(tmp_path, TEXTS)
    windows = make_windows(split, TokensConfig(context_length=16), ROLES["separated"], 3)
    assert [first for first, _ in Loader(windows, 8, start=5, stop=30)] == [5, 13, 21, 29]
    assert [len(batch.inputs_BT) for _, batch in Loader(windows, 8, start=5, stop=30)] == [8, 8, 8, 1]
    damaged = make_split(tmp_path, TEXTS)
    damaged.token_file.checksums[0] = "00000000"
    windows = make_windows(damaged, TokensConfig(context_length=16), ROLES["separated"], 3)
    with pytest.raises(FledgeError, match="checksum"):
        next(iter(Loader(windows, 8)))


def test_numpy_and_native_gathering_agree(tmp_path, monkeypatch):
    gather = pytest.importorskip("fledge.tokens.gather")
    if gather.native("gather") is None:
        pytest.skip("the native core is not built")
    split = make_split(tmp_path, TEXTS)
    for policy in ("stream", "packed", "slide-through", "full"):
        config = TokensConfig(context_length=20, policy=policy)
        windows = make_windows(split, config, ROLES["separated"], 3)
        native = windows.batch(range(len(windows)))
        with monkeypatch.context() as context:
            context.setattr(gather, "native", lambda name: None)
            plain = windows.batch(range(len(windows)))
        for left, right in zip(native, plain, strict=True):
            assert (left is None) == (right is None)
            assert left is None or left.equal(right)


def test_best_fit_wastes_little_and_says_how_much(tmp_path):
    split = make_split(tmp_path, [b"x" * (1 + i * 37 % 60) for i in range(500)])
    loose = make_windows(split, TokensConfig(context_length=64, policy="packed"), ROLES["separated"], 0)
    tight = make_windows(split, TokensConfig(context_length=64, policy="packed", best_fit=True), ROLES["separated"], 0)
    assert loose.describe()["waste"] < 0.005
    assert tight.describe()["waste"] < 0.03
    empty = (tight.batch(range(len(tight))).targets_BT == -100).float().mean().item()
    assert abs(empty - tight.describe()["waste"]) < 1e-6


def test_best_fit_holds_no_memory_for_each_document(tmp_path, monkeypatch):
    """What is kept for an epoch lies in files; while it is made, so many bytes a document as docs/data.md says."""
    monkeypatch.setattr(fledge.tokens.scratch, "SMALL", 1000)
    monkeypatch.setattr(fledge.tokens.scratch, "CHUNK", 1000)
    count, config = 30_000, TokensConfig(context_length=64, policy="packed", best_fit=True)
    split = make_split(tmp_path, [b"x" * (1 + i * 37 % 60) for i in range(count)])
    kept = [make_windows(split, config, ROLES["separated"], 0)]  # once before, for what any first call leaves
    kept[0].batch(range(8))
    tracemalloc.start()
    try:
        kept.append(make_windows(split, config, ROLES["separated"], 1))
        kept[1].batch(range(8))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * count
    assert peak < 60 * count


def test_an_epoch_may_be_built_while_pages_are_given_back(tmp_path, monkeypatch):
    split = make_split(tmp_path, TEXTS)
    windows, twin = (
        make_windows(split, TokensConfig(context_length=16, policy="packed"), ROLES["separated"], 3) for _ in range(2)
    )
    windows.index(0)
    monkeypatch.setattr(fledge.tokens.packing, "release", lambda array: windows.index(1))  # as another thread would
    windows._release()
    pieces = windows.index(1).pieces
    assert pieces.tolist() == twin.index(1).pieces.tolist()
    # Every document once, and at the end the beginning of the first one again, which the epoch began after.
    assert pieces.size - bool(windows.index(1).lead) == len(set(pieces.tolist())) == len(TEXTS)


def test_open_is_quick_and_silent(tmp_path: Path):
    make_store(tmp_path / "store", TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TokenStore.open(str(tmp_path / "store"))


def test_a_number_of_threads_is_refused_as_it_was_given(tmp_path: Path):
    """It is divided among batches that are encoded side by side, and the sentence must not name a half of it."""
    many = 99999999999999999999999
    with pytest.raises(FledgeError, match=f"threads = {many} must be a whole number"):
        write_store(Corpus.from_documents(TEXTS), ByteTokenizer(), tmp_path / "store", many, progress=False)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("how", ["became shorter", "was changed"])
@pytest.mark.parametrize("form", ["text", "lines", "jsonl"])
def test_a_source_that_is_changed_while_it_is_read_is_named(tmp_path, monkeypatch, form, how):
    """The store is not whole, and no signal ends the process, as it did where the file was mapped."""
    monkeypatch.setattr(fledge.corpus.readers, "BLOCK", 1 << 16)
    monkeypatch.setattr(fledge.corpus.corpus, "BLOCK", 1 << 16)
    source, store = tmp_path / "text.txt", tmp_path / "store"
    line = json.dumps({"text": "a line of text"}) if form == "jsonl" else "a line of text<|endoftext|>"
    source.write_text(f"{line}\n" * 30_000)
    corpus = Corpus.open(source, format=form)
    assert not corpus.contiguous

    class Meddling(ByteTokenizer):
        def encode_spans(self, *arguments, **options):
            os.truncate(source, 1 << 10) if how == "became shorter" else os.utime(source, (1, 1))
            return super().encode_spans(*arguments, **options)

    with pytest.raises(FledgeError, match=f"text.txt {how} while it was read"):
        write_store(corpus, Meddling(), store, progress=False)
    assert not (store / "store.json").exists()


CUT = """
import os, sys, threading
import numpy as np
from fledge.errors import FledgeError
from fledge.tokens.store import TokenStore

store, where = sys.argv[1:]
split = TokenStore.open(store).split("train").verify()
held = split.tokens
os.truncate(split.token_file.path, 4096)

def read():
    try:
        print("read", int(held.astype(np.int64).sum()))
        for _ in range(1000):
            pass
    except FledgeError as error:
        print(error)
    try:
        print("read again", int(split.tokens.astype(np.int64).sum()))
    except FledgeError:
        pass

if where == "main":
    read()
else:
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_store_that_becomes_shorter_while_it_is_read_is_named(tmp_path: Path, where: str):
    """numpy reads it mapped: the signal for a page that is gone becomes a sentence, and no number is made of it."""
    make_store(tmp_path / "store", ["a text of many words " * 5_000] * 30)
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(tmp_path / "store"), where], capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if where == "main" else 2), done.stderr
    said = done.stdout if where == "main" else done.stderr
    assert f"{tmp_path / 'store' / 'train.bin'} became shorter while it was read" in said
    assert "read" not in done.stdout.split()[:1]
    assert "read again" not in done.stdout, "what is gone reads as zeros"


def test_a_store_that_becomes_shorter_while_batches_are_made_is_named(tmp_path: Path):
    make_store(tmp_path / "store", ["a text of many words " * 5_000] * 30)
    split = TokenStore.open(tmp_path / "store").split("train").verify()
    windows = make_windows(split, TokensConfig(context_length=64), BARE, seed=0)
    windows.batch(range(4))
    os.truncate(split.token_file.path, 4096)
    with pytest.raises(FledgeError, match="train.bin became shorter while it was read"):
        windows.batch(range(64))


def test_a_signal_that_is_not_ours_ends_as_it_did(tmp_path: Path):
    """A mapped file that is no store's: the handler steps aside."""
    make_store(tmp_path / "store", TEXTS)
    (tmp_path / "other").write_bytes(bytes(1 << 16))
    code = (
        "import mmap, os, sys; from fledge.tokens.store import TokenStore; store = TokenStore.open(sys.argv[1]);"
        "file = open(sys.argv[2], 'r+b'); mapped = mmap.mmap(file.fileno(), 0); os.truncate(sys.argv[2], 0);"
        "mapped[40_000]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store"), str(tmp_path / "other")], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGBUS
