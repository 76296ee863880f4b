"""What `fledge corpus show`, `clean` and `leak` find and do, on texts in which it was planted."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from fledge.corpus import Corpus
from fledge.corpus.clean import clean
from fledge.corpus.inspect import inspect, leak
from fledge.corpus.private import find_private, is_card, is_mojibake, mask, recurring_lines
from fledge.errors import FledgeError
from fledge.reports.corpus import corpus_page
from tests.corpus.test_copies import changed, story


def written(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def opened(path: Path) -> Corpus:
    return Corpus.open(path, validation_fraction=0)


def read(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_clean_keeps_one_of_each_group_and_says_why_others_went(tmp_path):
    """A copy, a near-copy and a document that stands inside another; the source is not touched."""
    generator = random.Random(1)
    texts = [story(generator) for _ in range(5)]
    near = changed(texts[1], 0.04, generator) + " and more"
    part = " ".join(texts[2].split()[50:120])
    source = written(tmp_path / "text.jsonl", [part, *texts, texts[0], near])
    before = source.read_bytes()
    done = clean(opened(source), tmp_path / "clean.jsonl")
    assert read(tmp_path / "clean.jsonl") == texts
    assert dict(done.left_out) == {"copy": 1, "near-copy": 1, "inside another": 1}
    notes = [json.loads(line) for line in (tmp_path / "clean.jsonl.left-out").read_text().splitlines()]
    assert [(note["document"], note.get("of")) for note in notes] == [(0, None), (6, 1), (7, 2)]
    assert source.read_bytes() == before
    clean(opened(source), tmp_path / "longest.jsonl", keep="longest")
    assert near in read(tmp_path / "longest.jsonl")
    assert texts[1] not in read(tmp_path / "longest.jsonl")
    with pytest.raises(FledgeError, match="exists already"):
        clean(opened(source), tmp_path / "clean.jsonl")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize(
    "text", ["в начале", "Ἐν ἀρχῇ ἦν", "בראשית ברא", "في البدء", "はじめに神は天と地とを", "태초에 하나님이", "l’été"]
)
def test_utf8_that_was_read_as_one_byte_a_letter_is_mojibake(text, encoding):
    assert not is_mojibake(text.encode())
    wrong = "".join(bytes([byte]).decode(encoding, "ignore") or chr(byte) for byte in text.encode())
    assert is_mojibake(wrong.encode())


def test_clean_drops_what_is_broken_and_masks_what_is_private_on_request(tmp_path):
    generator = random.Random(2)
    texts = [f"My Diary, all rights reserved\n{story(generator, 60)}" for _ in range(12)]
    broken = [
        "the cafÃ© was closed " + story(generator, 30),
        "<p>one</p> <b>two</b> <i>three</i> " + story(generator, 30),
    ]
    other = "в начале сотворил бог небо и землю " * 3
    private = "write to anna@example.org " + story(generator, 30)
    source = written(tmp_path / "text.jsonl", [*texts, *broken, other, private])
    assert len(read(source)) == clean(opened(source), tmp_path / "all.jsonl").kept
    done = clean(opened(source), tmp_path / "clean.jsonl", masked=True, drop=("mojibake", "markup", "script", "lines"))
    assert dict(done.left_out) == {"mojibake": 1, "markup": 1, "script": 1}
    kept = read(tmp_path / "clean.jsonl")
    assert not any("Diary" in text for text in kept)
    assert inspect(opened(source)).recurring == {"My Diary, all rights reserved": 12 / 16}
    assert kept[-1].startswith("write to [e-mail] word")


def test_show_tells_what_clean_would_leave_out_and_in_which_documents_something_was_found(tmp_path):
    """With a page that holds all of it; and the bars end with the whole text."""
    generator = random.Random(4)
    texts = [story(generator) for _ in range(30)]
    texts += [texts[0], changed(texts[1], 0.04, generator), " ".join(texts[2].split()[50:120])]
    texts += ["В начале сотворил Бог небо и землю", "РџСЂРёРІРµС‚, РјРёСЂ", "ここに日本語の文章と漢字があります"]
    source = written(tmp_path / "text.jsonl", [*texts, *(["a@example.org b@example.org"] * 2)])
    report = inspect(opened(source))
    done = clean(opened(source), tmp_path / "clean.jsonl")
    assert report.left_out == done.left_out == {"copy": 2, "near-copy": 1, "inside another": 1}
    assert report.left_out_bytes.total() == done.bytes - done.kept_bytes
    assert report.examples == {"Cyrillic": [33, 34], "mojibake": [34], "Kana": [35], "e-mail": [36, 37]}
    page = corpus_page("text", report).html()
    assert page.count("<svg") == 1
    assert "36, 37" in page
    assert "<svg" in corpus_page("akjv", inspect(Corpus.from_documents(["one"], validation_fraction=0))).html()


def test_every_reading_shows_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fledge.progress.LINE_EVERY", -1)
    source = written(tmp_path / "text.jsonl", [story(random.Random(seed)) for seed in range(3)])
    clean(opened(source), tmp_path / "quiet.jsonl")
    assert not capsys.readouterr().err
    clean(opened(source), tmp_path / "clean.jsonl", progress=True)
    lines = capsys.readouterr().err.splitlines()
    titles = ["finding near-copies", "finding repeated passages", "writing"]
    assert [line.partition(":")[0] for line in lines if "(100%)" in line] == titles


def test_a_document_of_recurring_lines_alone_is_listed_as_empty(tmp_path):
    footer = "all rights reserved"
    source = written(
        tmp_path / "text.jsonl", [f"{story(random.Random(seed))}\n{footer}" for seed in range(12)] + [footer]
    )
    done = clean(opened(source), tmp_path / "clean.jsonl", drop=("lines",), alike=1)
    notes = [json.loads(line) for line in (tmp_path / "clean.jsonl.left-out").read_text().splitlines()]
    assert done.left_out.total() == len(notes) == 1
    assert notes[0]["document"] == 12


def test_lines_recur_near_the_edges_of_documents_and_the_middle_of_long_ones_is_not_kept_in_memory():
    edge, middle = b"all rights reserved", b"a line of the middle"
    long = b"\n".join([edge, b"one line\n" * 10_000, middle, b"other line\n" * 10_000, edge])
    assert recurring_lines([long] * 10).keys() == {edge, b"one line", b"other line"}


def test_nothing_is_left_behind_where_cleaning_ends_early(tmp_path):
    source = tmp_path / "text.jsonl"
    written(source, ["one text", "another <|endoftext|> text"])
    with pytest.raises(FledgeError, match=r"separator.*\.jsonl"):
        clean(opened(source), tmp_path / "clean.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.jsonl"]


def test_show_counts_copies_by_their_content_and_the_leak():
    """Two texts with the same CRC-32 and length are no copies; what stands on both sides is told by its length."""
    report = inspect(Corpus.from_documents([b"plumless, and so on", b"buckeroo, and so on"], validation_fraction=0))
    assert (report.duplicates, report.near_copies) == (0, 0)
    generator = random.Random(3)
    texts = [story(generator) for _ in range(20)]
    train = Corpus.from_documents(texts, validation_fraction=0)
    held = Corpus.from_documents([texts[3][100:400], story(generator, 100)], validation_fraction=0)
    size = sum(map(len, held.documents()))
    assert leak(held, train) == {50: 300 / size, 100: 300 / size, 200: 300 / size, 500: 0, 1000: 0}
    twice = inspect(Corpus.from_documents([*texts, *texts[:5]], validation_fraction=0))
    assert twice.duplicates == 5
    assert twice.copied_bytes == sum(map(len, texts[:5])) == twice.repeated_bytes
    assert twice.groups[0][0] == 2


def test_crc_collisions_are_no_copies():
    """Found by search: the same length, the same CRC-32, other bytes."""
    from zlib import crc32

    sums: dict[int, bytes] = {}
    generator = np.random.default_rng(1)
    while True:
        text = generator.integers(97, 123, 10, np.uint8).tobytes()
        if sums.setdefault(crc32(text), text) != text:
            break
    assert inspect(Corpus.from_documents([sums[crc32(text)], text], validation_fraction=0)).duplicates == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("mail a.b-c@example.co.uk!", "e_mail"),
        ("card 4111 1111 1111 1111", "card"),
        ("call (555) 123-4567 now", "phone"),
        ("AKIAIOSFODNN7EXAMPLE", "key"),
        ('password: "hunter22"', "password"),
        ("password: hunter22", "password"),
        ("pwd=letmein", "password"),
        ("QUJD" * 40 + "0+/=", "base64"),
    ],
)
def test_private_things_are_known_by_their_form(text, kind):
    assert [match.lastgroup for match in find_private(text.encode())] == [kind]
    assert mask(text.encode())[0] != text.encode()


def test_plain_numbers_and_words_are_not_private():
    assert list(find_private(b"He told us the secret: nobody else knew, and the password: Friendship.")) == []
    text = b"In 1914-1918 there were 4111 1111 1111 1112 of them, at 3.14159 and 10:30, on page 123. See a@b."
    assert list(find_private(text)) == []
    assert not is_card(b"0000000000000000")


@pytest.mark.parametrize("name", ["", "clean.txt.gz", "clean.jsonl.ZST", "clean.parquet"])
def test_clean_writes_no_file_whose_name_promises_another_format(tmp_path, name, monkeypatch):
    """Its name says how a file is read: plain text under such a name could not be read again."""
    monkeypatch.chdir(tmp_path)
    source = written(tmp_path / "text.jsonl", [story(random.Random(1))])
    with pytest.raises(FledgeError, match="neither"):
        clean(opened(source), Path(name))
    assert list(tmp_path.iterdir()) == [source]


def test_clean_writes_lines_of_json_under_every_name_that_is_read_as_such(tmp_path):
    texts = [story(random.Random(seed)) for seed in range(3)]
    source = written(tmp_path / "text.jsonl", texts)
    clean(opened(source), tmp_path / "clean.NDJSON")
    assert [one.decode() for one in opened(tmp_path / "clean.NDJSON").documents()] == texts


@pytest.mark.parametrize("text", ["", "<|endoftext|><|endoftext|>"])
def test_clean_says_that_a_text_is_empty(tmp_path, text):
    (tmp_path / "empty.txt").write_text(text)
    with pytest.raises(FledgeError, match="holds no text"):
        clean(opened(tmp_path / "empty.txt"), tmp_path / "clean.jsonl")
    assert not list(tmp_path.glob("clean*"))
