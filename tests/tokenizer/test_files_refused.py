"""Files that are damaged, hostile or beyond what fledge follows: one sentence each, and never another error."""

from __future__ import annotations

import base64
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge import BPETokenizer, FledgeError, train_bpe
from fledge.tokenizer import WordTokenizer, disk, export_tokenizer, load_tokenizer, patterns
from fledge.tokenizer import files as tokenizer_files
from fledge.tokenizer.parts import byte_letters


@pytest.fixture(scope="module")
def trained() -> BPETokenizer:
    return train_bpe(["low lower lowest", "new newer newest"], 262, ["<|endoftext|>", "<|pad|>"])


def test_places_without_a_tokenizer_are_told(tmp_path: Path, trained: BPETokenizer) -> None:
    with pytest.raises(FledgeError, match="there is no tokenizer at"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(FledgeError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FledgeError, match=r"needs merges\.txt beside it"):
        load_tokenizer(tmp_path)
    with pytest.raises(FledgeError, match="is a file"):
        trained.save(tmp_path / "vocab.json")


@pytest.mark.parametrize(
    "name",
    ["x" * 5000, "a/" + "é" * 200, "a\0b", "a\ud800", 5, None, b"abc"],
    ids=["long", "long in bytes", "zero byte", "surrogate", "number", "nothing", "bytes"],
)
def test_what_can_not_be_a_path_is_told(name: Any, trained: BPETokenizer, tmp_path: Path) -> None:
    ways = [
        lambda: load_tokenizer(name),
        lambda: tokenizer_files.open_tokenizer(name, "--tokenizer"),
        lambda: trained.save(name),
        lambda: export_tokenizer(trained, name, "gpt2"),
        lambda: BPETokenizer.from_files(name, name),
    ]
    for way in ways:
        with pytest.raises(FledgeError, match="can't be a path|is not a path") as refusal:
            way()
        assert len(str(refusal.value)) < 200


def test_special_tokens_of_ranks_are_texts(trained: BPETokenizer, tmp_path: Path) -> None:
    ranks, beside = export_tokenizer(trained, tmp_path / "own.tiktoken", "tiktoken")
    beside.unlink()
    with pytest.raises(FledgeError, match="half of a UTF-16 pair"):
        load_tokenizer(ranks, pattern="gpt2", special_tokens={"\ud800": 900})
    with pytest.raises(FledgeError, match="pattern .* half of a UTF-16 pair"):
        load_tokenizer(ranks, pattern="\ud800")
    vocabulary, _ = export_tokenizer(trained, tmp_path / "gpt2", "gpt2")
    with pytest.raises(FledgeError, match="must be texts and their ids"):
        load_tokenizer(vocabulary, special_tokens=5)  # type: ignore[arg-type]


def test_words_are_not_exported_for_programs_that_can_not_read_them(tmp_path: Path, trained: BPETokenizer) -> None:
    with pytest.raises(FledgeError, match="they read BPE only"):
        export_tokenizer(WordTokenizer([]), tmp_path / "a.tiktoken", "tiktoken")
    with pytest.raises(FledgeError, match="Did you mean tiktoken"):
        export_tokenizer(trained, tmp_path, "tiktokens")
    with pytest.raises(FledgeError, match=r"must end in \.tiktoken"):
        export_tokenizer(trained, tmp_path / "ranks.txt", "tiktoken")


def bytes_vocabulary() -> dict[str, int]:
    return {letter: byte for byte, letter in byte_letters().items()}


def document(**changes: Any) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": {**bytes_vocabulary(), "th": 256}, "merges": ["t h"]}
    whole = {
        "model": model,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": [],
    }
    for path, value in changes.items():
        place: Any = whole
        *parents, last = path.split("__")
        for name in parents:
            place = place[name]
        place[last] = value
    return whole


def test_the_smallest_foreign_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(document()))
    assert load_tokenizer(tmp_path).encode("the") == [256, ord("e")]


SPLIT = {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": []}, "section named model"),
        ({"model__type": "WordPiece"}, "WordPiece"),
        ({"model__vocab": []}, "lacks a vocabulary"),
        ({"model__merges": {}}, "lacks a vocabulary"),
        ({"model__merges": ["t h e"]}, "merge 1"),
        ({"model__merges": ["th"]}, "merge 1"),
        ({"model__merges": [["t"]]}, "merge 1"),
        ({"model__merges": [["t", 5]]}, "merge 1"),
        ({"model__merges": ["t h", "t h"]}, "twice"),
        ({"model__merges": ["t h", "th e"]}, "not in the vocabulary"),
        ({"model__merges": ["t h", "\U0001f600 h"]}, "merge 2"),
        ({"model__vocab": {"a": 0}}, "255 of the 256 bytes"),
        ({"model__vocab": {**bytes_vocabulary(), "th": 5}}, "to both"),
        ({"model__vocab": {**bytes_vocabulary(), "th": -1}}, "whole numbers"),
        ({"model__vocab": {**bytes_vocabulary(), "th": 256.0}}, "whole numbers"),
        ({"model__vocab": {**bytes_vocabulary(), "th": True}}, "whole numbers"),
        ({"model__vocab": {**bytes_vocabulary(), "th": 10**12}}, "whole numbers"),
        ({"model__vocab": {**bytes_vocabulary(), "th": 256, "▁the": 257}}, "not byte-level"),
        ({"model__byte_fallback": True}, "falls back to bytes"),
        ({"model__continuing_subword_prefix": "##"}, "continuing_subword_prefix"),
        ({"model__dropout": 0.1}, "dropout"),
        ({"normalizer": {"type": "NFKC"}}, "rewrites text .*NFKC"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}}, "NFC, Strip"),
        ({"normalizer": {"type": "Sequence", "normalizers": 5}}, "rewrites text"),
        ({"normalizer": "NFC"}, "rewrites text"),
        ({"pre_tokenizer": None}, "byte-level BPE"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "byte-level BPE"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "space before every text"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": 5}}, "byte-level BPE"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTE_LEVEL]}},
            "does not know",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [{**SPLIT, "behavior": "Removed"}, BYTE_LEVEL],
                }
            },
            "does not know",
        ),
        ({"added_tokens": 5}, "must be a list"),
        ({"added_tokens": [{"id": 300}]}, "has no content"),
        ({"added_tokens": [{"id": 300, "content": ""}]}, "has no content"),
        ({"added_tokens": [{"id": "x", "content": "<a>"}]}, "whole numbers"),
        ({"added_tokens": [{"id": 3, "content": "<a>"}]}, "to both"),
        ({"added_tokens": [{"id": 300, "content": "<a>"}, {"id": 301, "content": "<a>"}]}, "two ids"),
        ({"added_tokens": [{"id": 300, "content": "<a>"}, {"id": 300, "content": "<b>"}]}, "to both"),
        ({"added_tokens": [{"id": 300, "content": "<a>", "lstrip": True}]}, "lstrip"),
        ({"added_tokens": [{"id": 116, "content": "t"}]}, "adds the token t, which its merges or bytes need"),
        ({"added_tokens": [{"id": 256, "content": "th"}]}, "adds the token th, which its merges or bytes need"),
        ({"model__vocab": {**bytes_vocabulary(), "th": 256, "": 257}}, "gives the id 257 to no bytes"),
    ],
)
def test_a_foreign_file_that_can_not_be_followed_is_refused(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(document(**changes)))
    with pytest.raises(FledgeError, match=sentence) as refusal:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"model": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b"7", "section named model"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"kind": "word", "format": 99}', "format 99"),
        (b'{"kind": "word", "format": 1, "pieces": 5}', "lacks its pieces"),
        (b'{"kind": "word", "format": 1, "pieces": ["a b"], "special_tokens": %s}', "pieces must be"),
        (b'{"kind": "character", "format": 1, "pieces": [1], "special_tokens": %s}', "pieces must be"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    specials = json.dumps({"<|unknown|>": 0, "<|start|>": 1, "<|end|>": 2, "<|pad|>": 3}).encode()
    (tmp_path / "tokenizer.json").write_bytes(content.replace(b"%s", specials))
    with pytest.raises(FledgeError, match=sentence):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kept", [30_000, -20])
def test_merges_that_were_cut_are_refused(kept: int, shared_data: Path, tmp_path: Path) -> None:
    """Else thousands of ordinary tokens would be special ones."""
    (tmp_path / "vocab.json").write_bytes((shared_data / "cs336" / "gpt2_vocab.json").read_bytes())
    lines = (shared_data / "cs336" / "gpt2_merges.txt").read_text().splitlines()
    (tmp_path / "merges.txt").write_text("\n".join(lines[:kept]))
    with pytest.raises(FledgeError, match=r"vocab.json with merges.txt has .*: the merges were cut") as refusal:
        load_tokenizer(tmp_path)
    assert "Fetch both files again" in str(refusal.value)


def test_merges_that_lack_one_are_refused_and_many_special_tokens_are_not(tmp_path: Path) -> None:
    tokens = [*bytes_vocabulary(), "th", "the", *(f"<|reserved {n}|>" for n in range(200)), *"éà", "<|reserved|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({text: token for token, text in enumerate(dict.fromkeys(tokens))}))
    (tmp_path / "merges.txt").write_text("t h\nth e\n")
    assert len(load_tokenizer(tmp_path).special_tokens) == 201
    (tmp_path / "merges.txt").write_text("th e\n")
    with pytest.raises(FledgeError, match="such as 'th': the merges were cut"):
        load_tokenizer(tmp_path)


def test_a_file_of_another_kind_is_told_which_are_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    with pytest.raises(FledgeError, match=r"fledge reads a tokenizer\.json, .* ends in \.tiktoken\."):
        load_tokenizer(tmp_path / "tokenizer.model")


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        (5, "roles must name"),
        ({"start": 0}, "roles must name"),
        ({"unknown": None, "start": 77, "end": None, "pad": None, "separator": None}, "no special token"),
        ({"unknown": None, "start": [1], "end": None, "pad": None, "separator": None}, "no special token"),
    ],
)
def test_roles_must_be_special_tokens(roles: Any, sentence: str, trained: BPETokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"roles": roles}))
    with pytest.raises(FledgeError, match=sentence):
        load_tokenizer(tmp_path)


def ranks_of(tokens: dict[bytes, Any]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %s\n" % str(rank).encode() for token, rank in tokens.items())


BYTES = {bytes([byte]): byte for byte in range(256)}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no ranks"),
        (b"IQ==\n", "line 1"),
        (b"??? 0\n", "line 1"),
        (b"IQ== zero\n", "line 1"),
        (b"IQ== 1 2\n", "line 1"),
        (b"IQ== " + b"9" * 10_000, "whole numbers"),
        (b"IQ== -1\n", "whole numbers"),
        (b"IQ== 0\nIQ== 1\n", "again"),
        (b"IQ== 0\nIg== 0\n", "same rank"),
        (b"IQ== 0\n", "of the 256 bytes"),
        (ranks_of(BYTES | {b"the": 256}), "no merge"),
        (ranks_of(BYTES | {b"a" * 5000: 256}), "too long"),
    ],
)
def test_damaged_ranks_are_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "own.tiktoken").write_bytes(content)
    with pytest.raises(FledgeError, match=sentence):
        load_tokenizer(tmp_path / "own.tiktoken", pattern="gpt2")


def test_a_special_id_that_a_rank_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.tiktoken").write_bytes(ranks_of(BYTES))
    for specials in ({"<a>": 5}, {"<a>": 300, "<b>": 300}, {"<a>": "5"}):
        with pytest.raises(FledgeError):
            load_tokenizer(tmp_path / "own.tiktoken", pattern="gpt2", special_tokens=specials)  # type: ignore[arg-type]


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MOST_BYTES", 10)
    (tmp_path / "tokenizer.json").write_text(json.dumps(document()))
    with pytest.raises(FledgeError, match="too much for a tokenizer"):
        load_tokenizer(tmp_path)


# ---- hostile files -------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a JSON document, except for the many like one another."""
    found = [path] if path else []
    if isinstance(node, (dict, list)):
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node))[:12]:
            found += places(value, (*path, key))
    return found


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """One small tokenizer of each format, and the file of it that is to be damaged."""
    folder = tmp_path_factory.mktemp("hostile")
    bpe = train_bpe(["low lower lowest"], 260, ["<|endoftext|>"], pattern="cl100k")
    bpe.save(folder / "bpe")
    WordTokenizer.train(["été low lower lowest"]).save(folder / "word")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does not keep the pattern
        export_tokenizer(bpe, folder / "gpt2", "gpt2")
    export_tokenizer(bpe, folder / "own.tiktoken", "tiktoken")
    return {
        "document": (folder / "bpe", "bpe/tokenizer.json"),
        "configuration": (folder / "bpe", "bpe/tokenizer_config.json"),
        "word": (folder / "word", "word/tokenizer.json"),
        "vocabulary": (folder / "gpt2", "gpt2/vocab.json"),
        "merges": (folder / "gpt2", "gpt2/merges.txt"),
        "ranks": (folder / "own.tiktoken", "own.tiktoken"),
        "beside ranks": (folder / "own.tiktoken", "own.tiktoken.json"),
    }


def loads_or_refuses(path: Path, damaged: Path, content: bytes) -> None:
    whole = damaged.read_bytes()
    damaged.write_bytes(content)
    sentence = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_tokenizer(path).encode("low")
    except FledgeError as error:
        sentence = str(error)
    finally:
        damaged.write_bytes(whole)
    assert len(sentence) < 600  # whatever the file holds


@pytest.mark.parametrize("format", ["document", "configuration", "word", "vocabulary", "beside ranks"])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(
    hostile: dict[str, tuple[Path, str]], format: str, data: st.DataObject
) -> None:
    path, name = hostile[format]
    damaged = path.parent / name
    document = json.loads(damaged.read_bytes())
    *parents, last = data.draw(st.sampled_from(places(document)))
    place = document
    for key in parents:
        place = place[key]
    if data.draw(st.booleans()):
        place[last] = data.draw(JSON)
    else:
        del place[last]
    loads_or_refuses(path, damaged, json.dumps(document).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("format", ["document", "word", "vocabulary", "merges", "ranks"])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_damage_to_the_bytes_is_read_or_refused(
    hostile: dict[str, tuple[Path, str]], format: str, data: st.DataObject
) -> None:
    path, name = hostile[format]
    damaged = path.parent / name
    content = bytearray(damaged.read_bytes())
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 20)) | st.just(len(content)))
    content[start:end] = data.draw(st.binary(max_size=8))
    loads_or_refuses(path, damaged, bytes(content))


@pytest.mark.filterwarnings("ignore:the pattern")
def test_a_pattern_that_tries_too_many_ways_is_refused_when_its_tokenizer_is_read(
    trained: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for hours: not a person who was given the file, nor those who share a page with them."""
    monkeypatch.setattr(patterns, "PATIENCE", 0.1)
    pattern = r"(?:.|\w)+\d"
    plain = BPETokenizer(trained.vocab, trained.merges, trained.special_tokens, pattern=r"\w+|\W")
    plain.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace(json.dumps(plain.pattern), json.dumps(pattern)))
    with pytest.raises(FledgeError, match="needs more than 0.1 s for a text of 41 characters: it tries too many ways"):
        load_tokenizer(tmp_path)


@pytest.mark.filterwarnings("ignore:the pattern")
def test_a_pattern_that_is_slow_on_one_text_alone_is_given_up(
    trained: BPETokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "PATIENCE", 0.1)
    slow = BPETokenizer(trained.vocab, trained.merges, pattern=r"(?:z|[z])+\d|.")
    assert slow.decode(slow.encode("low")) == "low"
    with pytest.raises(FledgeError, match="needs more than 0.1 s for a text of 40 characters"):
        slow.encode("z" * 40)
    with pytest.raises(FledgeError, match="it tries too many ways to match"):
        train_bpe(["z" * 40], 300, pattern=slow.pattern)
