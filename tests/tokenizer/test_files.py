"""Files that others read and write. The judges are `tokenizers`, `transformers` and `tiktoken` themselves."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import shutil
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge import BPETokenizer, FledgeError, train_bpe
from fledge.tokenizer import (
    CharacterTokenizer,
    Roles,
    Tokenizer,
    WordTokenizer,
    export_tokenizer,
    load_tokenizer,
)
from fledge.tokenizer.huggingface import EXPRESSIONS, OLDER_CL100K, QWEN, pattern_name
from fledge.tokenizer.save import save_new_tokenizer
from fledge.tokenizer.sentencepiece import NORMALIZERS, SPACE

TEXTS = [
    "",
    " ",
    "Hello, world! It's 2026; we'LL see, won’t we?\n\n\tTabs  and   spaces \r\n end ",
    "naïve café — Ελληνικά, русский текст, 中文字符, हिन्दी में, 👩‍👩‍👧 😀😀 \u00a0\u2028\u3000x",
    "1234567 3.14 ½ Ⅷ ٣ (foo_bar) /* C */ https://example.org/a?b=c&d#e",
    "<|endoftext|>a<|endoftext|><|pad|>b <|end of text|>",
    "'S 'T 'Re 'ſ don'T  I'M\u0301",
    "zzzz" * 30 + "\n" * 7 + " " * 11 + "CamelCaseHTTPServer123abc",
]
SAMPLE = [*TEXTS, "the cat sat on the mat, the end; " * 20, "low lower lowest newer newest " * 10]


def train(pattern: str = "gpt2", specials: tuple[str, ...] = ("<|endoftext|>", "<|pad|>")) -> BPETokenizer:
    return train_bpe(SAMPLE, 420, specials, pattern=pattern)


@pytest.fixture(scope="module")
def trained() -> BPETokenizer:
    return train()


def messy(shared_data: Path) -> list[str]:
    lines = (shared_data / "messy" / "blns.txt").read_bytes().decode("utf-8", "replace").split("\n")
    return [*TEXTS, *lines, (shared_data / "messy" / "UTF-8-demo.txt").read_bytes().decode()]


# ---- our own folder ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [train, lambda: WordTokenizer.train(SAMPLE), lambda: CharacterTokenizer.train(SAMPLE)])
def test_what_is_saved_is_loaded_again(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer = make()
    tokenizer.save(tmp_path / "folder")
    again = load_tokenizer(tmp_path / "folder")
    assert type(again) is type(tokenizer)
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.vocab, again.special_tokens, again.roles) == (
        tokenizer.vocab,
        tokenizer.special_tokens,
        tokenizer.roles,
    )
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for text in TEXTS:
        assert again.encode(text) == tokenizer.encode(text)


def test_the_configuration_says_kind_roles_and_pattern(trained: BPETokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    configuration = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert configuration["kind"] == "bpe"
    assert configuration["pattern"] == "gpt2"
    assert configuration["roles"] == trained.roles._asdict()
    assert configuration["fingerprint"] == trained.fingerprint


def test_roles_that_names_do_not_tell_are_kept(trained: BPETokenizer, tmp_path: Path) -> None:
    roles = Roles(start=1, end=0, pad=1)
    BPETokenizer(trained.vocab, trained.merges, trained.special_tokens, roles=roles).save(tmp_path)
    assert load_tokenizer(tmp_path).roles == roles


def test_a_word_tokenizer_is_a_readable_list_of_pieces(tmp_path: Path) -> None:
    WordTokenizer.train(["egg on toast"]).save(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    assert document["pieces"] == ["egg", "on", "toast"] or sorted(document["pieces"]) == [
        "egg",
        "on",
        "toast",
    ]
    assert (document["kind"], document["first_byte"], document["first_piece"]) == ("word", 4, 260)


# ---- Hugging Face ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_tokenizers_reads_our_file_with_equal_ids(pattern: str, tmp_path: Path, shared_data: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = train(pattern)
    tokenizer.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.get_vocab_size() == tokenizer.vocab_size
    for text in messy(shared_data):
        ids = theirs.encode(text).ids
        assert ids == tokenizer.encode(text), text
        assert theirs.decode(ids, skip_special_tokens=False) == text


def test_transformers_reads_our_folder(trained: BPETokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trained.save(tmp_path)
    for theirs in (
        transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json")),
        transformers.AutoTokenizer.from_pretrained(str(tmp_path)),
    ):
        for text in TEXTS:
            assert theirs(text)["input_ids"] == trained.encode(text), text
    assert theirs.eos_token_id == trained.roles.end
    assert theirs.pad_token_id == trained.roles.pad


def test_a_file_that_tokenizers_trained_gives_equal_ids(tmp_path: Path, shared_data: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|endoftext|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=specials, show_progress=False
    )
    theirs.train_from_iterator(SAMPLE, trainer)
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.special_tokens == {"<|endoftext|>": 0, "<|pad|>": 1}
    for text in messy(shared_data):
        assert tokenizer.encode(text) == theirs.encode(text).ids, text


COMBINED = [
    "e\u0301t\u0065\u0301 \u212b\u2126 \u1100\u1161\u11a8 \uac01 q\u0307\u0323 <|endoftext|>\u0301x ＡＢ ﬃ ½ x²",
    "a1  2b   345 6\n7\t 8 \n\n 9  'll1's 10,000.50 1st    four     spaces        eight",
    "\u0301 a \u0301\n\u0301b  \u0344 \u0958 ſ K ; …",
]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = {**BYTE_LEVEL, "use_regex": False}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
NFC = {"type": "NFC"}
PUBLISHED: dict[str, tuple[Any, list[dict[str, Any]], bool]] = {
    "Qwen": (NFC, [{**SPLIT, "pattern": {"Regex": QWEN}}, BYTES], False),
    "SmolLM": (None, [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL], False),
    "digits together": (None, [{"type": "Digits", "individual_digits": False}, BYTE_LEVEL], False),
    "GPT-NeoX": ({"type": "Sequence", "normalizers": [NFC]}, [BYTE_LEVEL], False),
    "Llama 3": (None, [{**SPLIT, "pattern": {"Regex": OLDER_CL100K[0]}}, BYTES], True),
    "whole words": (NFC, [BYTE_LEVEL], True),
}


def published(folder: Path, name: str) -> Any:
    """A tokenizer of tokenizers' own with these steps; with `ignore_merges` it has lost every third merge."""
    tokenizers = pytest.importorskip("tokenizers")
    normalizer, steps, whole = PUBLISHED[name]
    path = folder / "tokenizer.json"
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    document = {**json.loads(theirs.to_str()), "normalizer": normalizer}
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(document))
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    theirs.train_from_iterator([*SAMPLE, *COMBINED] * 3, trainer)
    theirs.add_tokens([tokenizers.AddedToken(" " * count, special=False, normalized=True) for count in (8, 4)])
    document = json.loads(theirs.to_str())
    if whole:
        del document["model"]["merges"][::3]
        document["model"]["ignore_merges"] = True
    path.write_text(json.dumps(document))
    return tokenizers.Tokenizer.from_file(str(path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_tokenizer_gives_equal_ids(name: str, tmp_path: Path, shared_data: Path) -> None:
    """By every way of encoding, and again in the file that it is saved to."""
    theirs = published(tmp_path, name)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.whole_words is PUBLISHED[name][2]
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.fingerprint == tokenizer.fingerprint
    reader = type(theirs).from_file(str(tmp_path / "saved" / "tokenizer.json"))
    texts = [*messy(shared_data), *SAMPLE, *COMBINED, "<|endoftext|>".join(COMBINED)]
    for text in texts:
        ids = theirs.encode(text).ids
        assert tokenizer.encode(text) == ids, text
        assert reader.encode(text).ids == ids, text
    expected = [theirs.encode(text).ids for text in texts]
    assert [ids.tolist() for ids in again.encode_batch(texts)] == expected
    joined = "\n\nNew\n".join(texts)
    assert list(tokenizer.encode_iterable(joined[at : at + 1000] for at in range(0, len(joined), 1000))) == (
        whole := theirs.encode(joined).ids
    )
    (tmp_path / "text").write_bytes(joined.encode())
    tokenizer.encode_file(tmp_path / "text", tmp_path / "ids")
    assert np.fromfile(tmp_path / "ids", tokenizer.token_dtype).tolist() == whole
    assert tokenizer.decode(whole) == (unicodedata.normalize("NFC", joined) if tokenizer.composed else joined)


def sentencepiece(folder: Path, scheme: str, spaced: bool = False) -> Any:
    """A tokenizer like Llama 2's, with every split of a token as a merge; `spaced` lets tokens hold spaces within."""
    tokenizers = pytest.importorskip("tokenizers")
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(split=not spaced)
    trained.train_from_iterator(
        [*TEXTS[1:], *COMBINED, "the cat sat on the mat; " * 9] * 3,
        tokenizers.trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=150),
    )
    found = json.loads(trained.to_str())["model"]
    specials = ["<unk>", "<s>", "</s>"]
    order = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(found["vocab"], key=found["vocab"].get)]
    names = {name: number for number, name in enumerate(order)}
    made = dict.fromkeys("".join(merge) for merge in found["merges"])
    splits = [(name[:at], name[at:]) for name in made for at in range(1, len(name))]
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}
    merges = [f"{left} {right}" for left, right in splits if left in names and right in names]
    document = {
        **json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()),
        "added_tokens": [{"id": number, "content": text, **plain} for number, text in enumerate(specials)],
        "normalizer": normalizer if scheme == "normalizer" else None,
        "pre_tokenizer": None if scheme == "normalizer" else metaspace,
        "model": {
            **found,
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": names,
            "merges": merges,
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    )
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("scheme", "spaced"),
    [("normalizer", False), ("normalizer", True), ("first", False), ("always", False), ("never", False)],
)
def test_sentencepiece_gives_equal_ids(scheme: str, spaced: bool, tmp_path: Path, shared_data: Path) -> None:
    theirs = sentencepiece(tmp_path, scheme, spaced)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.kind == "sentencepiece"
    assert tokenizer.roles == Roles(unknown=0, start=1, end=2, separator=2)
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.fingerprint == tokenizer.fingerprint
    reader = type(theirs).from_file(str(tmp_path / "saved" / "tokenizer.json"))
    texts = [*messy(shared_data), *COMBINED, "</s>".join(COMBINED), "<s> a</s>b", " a  b ", "a\u2581b 你 好 é"]
    for text in texts:
        ids = theirs.encode(text).ids
        assert again.encode(text) == ids, text
        assert reader.encode(text).ids == ids, text
        kept = text.replace(SPACE, " ")
        assert again.decode(tokenizer.encode(text, special="text")) in (kept, f" {kept}")
    with pytest.raises(FledgeError, match="</s> at byte 2"):
        tokenizer.encode("a </s>", special="refuse")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda document: document["model"]["vocab"].pop("<0x41>"), r"no token for 1 of the 256 bytes .*0x41"),
        (lambda document: document["model"]["merges"].append("<s> a"), r"merge \d+ is '<s> a'"),
        (lambda document: document["model"]["merges"].append([["a"], "b"]), r"merge \d+ is"),
        (lambda document: document["model"]["vocab"].update({"\ud800": 9000}), "half of a UTF-16 pair"),
        (lambda document: document["model"]["vocab"].update({"": 9000}), "gives the id 9000 to '' and ''"),
        (lambda document: document["model"]["vocab"].update({"new": 5}), "gives the id 5 to .* and 'new'"),
        (lambda document: document["model"].update(ignore_merges=True), "sets ignore_merges"),
        (lambda document: document["pre_tokenizer"].update(split=True), "prepares text in a way"),
        (lambda document: document["pre_tokenizer"].update(prepend_scheme=[]), "prepares text in a way"),
        (lambda document: document.update(added_tokens=None), "added_tokens must be a list"),
        (
            lambda document: (
                document.update(normalizer=NORMALIZERS[0][0]),
                document["added_tokens"][1].update(normalized=True),
            ),
            "looks for the token <s> after it rewrites text",
        ),
    ],
)
def test_a_sentencepiece_that_can_not_be_followed_is_refused(
    change: Callable[[dict[str, Any]], Any], sentence: str, tmp_path: Path
) -> None:
    sentencepiece(tmp_path, "first")
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    change(document)
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(FledgeError, match=sentence) as refusal:
        load_tokenizer(tmp_path)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(("content", "refused"), [("<|né|>", True), ("<|end|>", False)])
def test_an_added_token_found_before_text_is_composed_is_refused(content: str, refused: bool, tmp_path: Path) -> None:
    train_bpe(["a text"], 258, [content]).save(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["normalizer"] = {"type": "NFC"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "tokenizer_config.json").unlink()  # it holds the fingerprint
    if not refused:
        assert load_tokenizer(tmp_path).composed
        return
    with pytest.raises(FledgeError, match="looks for the token <|né|> before it rewrites text .normalized is false"):
        load_tokenizer(tmp_path)


def test_388_languages_have_equal_ids_in_all_three(tmp_path: Path, shared_data: Path) -> None:
    tokenizers, tiktoken = pytest.importorskip("tokenizers"), pytest.importorskip("tiktoken")
    zstandard = pytest.importorskip("zstandard")
    from tiktoken.load import load_tiktoken_bpe

    with open(shared_data / "messy" / "udhr_multilingual.txt.zst", "rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read().decode()
    tokenizer = train_bpe(iter([text]), 4000, ["<|endoftext|>"], pattern="o200k")
    tokenizer.save(tmp_path)
    hugging_face = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ranks, beside = export_tokenizer(tokenizer, tmp_path / "own.tiktoken", "tiktoken")
    described = json.loads(beside.read_text())
    described.pop("pattern")
    openai = tiktoken.Encoding("own", mergeable_ranks=load_tiktoken_bpe(str(ranks)), **described)
    for start in range(0, len(text), 100_000):
        part = text[start : start + 2000]
        ids = tokenizer.encode(part)
        assert hugging_face.encode(part).ids == ids
        assert openai.encode(part, allowed_special="all") == ids


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_white_space_at_the_end_has_equal_ids_in_all_three(pattern: str, tmp_path: Path) -> None:
    """At the end of a text and before a special token, of a tokenizer that learned such ends."""
    tokenizers, tiktoken = pytest.importorskip("tokenizers"), pytest.importorskip("tiktoken")
    from tiktoken.load import load_tiktoken_bpe

    ends = ["", " ", "\n", "\n  ", " \n ", "\r\n\t", "  \n\n  ", "\n\u3000", "\n\u00a0 \r", "\t \t"]
    texts = [f"a{end}" for end in ends] + [f"a{end}<|endoftext|>b{end}" for end in ends]
    tokenizer = without_warnings(lambda: train_bpe(texts * 9, 300, ["<|endoftext|>"], pattern=pattern))
    tokenizer.save(tmp_path)
    hugging_face = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ranks, beside = export_tokenizer(tokenizer, tmp_path / "own.tiktoken", "tiktoken")
    described = json.loads(beside.read_text())
    described.pop("pattern")
    openai = tiktoken.Encoding("own", mergeable_ranks=load_tiktoken_bpe(str(ranks)), **described)
    for text in texts:
        assert hugging_face.encode(text).ids == tokenizer.encode(text), text
        assert openai.encode(text, allowed_special="all") == tokenizer.encode(text), text
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("expression", OLDER_CL100K)
@pytest.mark.parametrize("learned", ["a \n b", "a\n  "])
def test_an_older_spelling_of_cl100k_is_that_pattern_where_the_ids_are_equal(
    expression: str, learned: str, tmp_path: Path
) -> None:
    """It divides what ends a text after a line end: another thing only where a merge would join the two."""
    tokenizers = pytest.importorskip("tokenizers")
    without_warnings(lambda: train_bpe([learned] * 9, 300, pattern="cl100k")).save(tmp_path / "own")
    document = json.loads((tmp_path / "own" / "tokenizer.json").read_text())
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = expression
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = without_warnings(lambda: load_tokenizer(tmp_path / "tokenizer.json"))
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.pattern == (expression if learned == "a\n  " else "cl100k")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (*TEXTS, "a\n  ", "a \n b\r\n\t"):
        assert tokenizer.encode(text) == theirs.encode(text).ids, text


def test_a_folder_that_we_wrote_with_the_older_spelling_is_the_tokenizer_it_was(tmp_path: Path) -> None:
    tokenizer = without_warnings(lambda: train_bpe(["a\n  "] * 9, 300, pattern="cl100k"))
    tokenizer.save(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = OLDER_CL100K[0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("pattern", ["gpt2", r"\p{L}+|[\s\S]"])
def test_added_tokens_that_are_not_special_are_found_in_every_text(pattern: str, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    without_warnings(lambda: train(pattern)).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.add_tokens([tokenizers.AddedToken(text, special=False) for text in ("  ", "<pad>", "dog")])
    theirs.save(str(path))
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(path)
    texts = [*TEXTS, "a  b   c", "the dog<pad>sat", "hotdog<|pad|>"]
    for text in texts:
        theirs.encode_special_tokens = False
        assert tokenizer.encode(text) == theirs.encode(text).ids, text
        theirs.encode_special_tokens = True  # as text, that is
        assert tokenizer.encode(text, special="text") == theirs.encode(text).ids, text
    assert tokenizer.encode("a  <pad>", special="refuse") == tokenizer.encode("a  <pad>")
    with pytest.raises(FledgeError, match=r"<\|pad\|> at byte 4"):
        tokenizer.encode("a  b<|pad|>", special="refuse")
    tokenizer.save(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again").fingerprint == tokenizer.fingerprint
    with pytest.warns(UserWarning, match="is found in plain text too, which a gpt2 file does not say"):
        export_tokenizer(tokenizer, tmp_path / "gpt2", "gpt2")


def test_ignoring_merges_is_no_matter_where_they_lead_to_every_token(trained: BPETokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["model"]["ignore_merges"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert load_tokenizer(tmp_path).fingerprint == trained.fingerprint


def test_merges_in_pairs_are_read_like_merges_in_lines(trained: BPETokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["model"]["merges"] = [merge.split(" ") for merge in document["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert load_tokenizer(tmp_path).fingerprint == trained.fingerprint


def test_a_pattern_of_ones_own_is_kept(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    with pytest.warns(UserWarning, match="regex"):
        tokenizer = train(r"\p{L}+|\p{N}|[^\p{L}\p{N}]+")
    tokenizer.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
    for text in TEXTS:
        assert theirs.encode(text).ids == tokenizer.encode(text), text


def without_warnings(work: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


@pytest.mark.parametrize("pattern", [r"\p{L}+", "the|cat", r"\p{L}*", r"(?=\p{N})", r"\p{L}+|[\s\S]"])
def test_hugging_face_keeps_what_a_pattern_does_not_match_as_we_do(pattern: str, tmp_path: Path) -> None:
    """Gaps are pre-tokens there too, also between matches of no characters."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = without_warnings(lambda: train(pattern))
    tokenizer.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert theirs.encode(text).ids == tokenizer.encode(text), text


def test_tiktoken_leaves_out_what_a_pattern_does_not_match_and_exporting_says_so(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    from tiktoken.load import load_tiktoken_bpe

    def in_tiktoken(tokenizer: BPETokenizer, name: str) -> Any:
        ranks, beside = export_tokenizer(tokenizer, tmp_path / name, "tiktoken")
        described = json.loads(beside.read_text())
        described.pop("pattern")
        return tiktoken.Encoding(name, mergeable_ranks=load_tiktoken_bpe(str(ranks)), **described)

    gaps = without_warnings(lambda: train(r"\p{L}+"))
    with pytest.warns(UserWarning, match=r"tiktoken leaves out text that the pattern \\p\{L\}\+ does not match"):
        theirs = in_tiktoken(gaps, "gaps.tiktoken")
    assert theirs.decode(theirs.encode("the cat!")) == "thecat"
    assert gaps.decode(gaps.encode("the cat!")) == "the cat!"
    whole = without_warnings(lambda: train(r"\p{L}+|[\s\S]"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = in_tiktoken(whole, "whole.tiktoken")
    for text in TEXTS:
        assert theirs.encode(text, allowed_special="all") == whole.encode(text), text


def test_gpt2s_files_do_not_keep_another_pattern_and_exporting_says_so(tmp_path: Path) -> None:
    tokenizer = train("cl100k")
    with pytest.warns(UserWarning, match="do not say that text is cut by cl100k: other programs cut it by gpt2"):
        export_tokenizer(tokenizer, tmp_path, "gpt2")
    assert any(load_tokenizer(tmp_path).encode(text) != tokenizer.encode(text) for text in TEXTS)
    assert load_tokenizer(tmp_path, pattern="cl100k").fingerprint == tokenizer.fingerprint


def test_a_special_token_spelled_like_an_ordinary_one_survives(tmp_path: Path) -> None:
    vocab = {0: b"a"} | {1 + byte: bytes([byte]) for byte in range(256)}
    tokenizer = BPETokenizer(vocab, [], {"a": 0})
    with pytest.warns(UserWarning, match="spelled like the ordinary token"):
        tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode("ab") == [0, 1 + ord("b")]


def test_roles_come_from_hugging_faces_names_too(trained: BPETokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    names = {"bos_token": {"content": "<|pad|>"}, "eos_token": "<|endoftext|>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    assert load_tokenizer(tmp_path).roles == Roles(start=1, end=0, separator=0)


# ---- GPT-2's two files -------------------------------------------------------------------------------------


def test_gpt2_from_its_two_files_is_gpt2(shared_data: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    tokenizer = load_tokenizer(shared_data / "cs336" / "gpt2_vocab.json")
    assert tokenizer.fingerprint == load_tokenizer(shared_data / "cs336" / "gpt2_merges.txt").fingerprint
    assert tokenizer.fingerprint == load_tokenizer(shared_data / "ranks" / "gpt2.tiktoken").fingerprint
    assert tokenizer.special_tokens == {"<|endoftext|>": 50256}
    theirs = tiktoken.Encoding(
        "gpt2",
        pat_str=EXPRESSIONS["gpt2"],
        mergeable_ranks={data: token for token, data in tokenizer.vocab.items() if token != 50256},
        special_tokens={"<|endoftext|>": 50256},
    )
    for text in messy(shared_data):
        assert tokenizer.encode(text) == theirs.encode(text, allowed_special="all"), text


def test_export_to_gpt2s_files_and_back(trained: BPETokenizer, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    written = export_tokenizer(trained, tmp_path, "gpt2")
    assert [path.name for path in written] == ["vocab.json", "merges.txt"]
    assert load_tokenizer(tmp_path).fingerprint == trained.fingerprint
    model = tokenizers.models.BPE.from_file(str(written[0]), str(written[1]))
    theirs = tokenizers.Tokenizer(model)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.add_special_tokens(list(trained.special_tokens))
    for text in TEXTS:
        assert theirs.encode(text).ids == trained.encode(text), text


def test_from_files_takes_special_tokens_by_name_or_number(trained: BPETokenizer, tmp_path: Path) -> None:
    vocabulary, merges = export_tokenizer(trained, tmp_path, "gpt2")
    named = BPETokenizer.from_files(vocabulary, merges, ["<|endoftext|>", "<|pad|>", "<new>"])
    assert named.special_tokens == {"<|endoftext|>": 0, "<|pad|>": 1, "<new>": trained.vocab_size}
    numbered = BPETokenizer.from_files(vocabulary, merges, {"<|endoftext|>": 0})
    assert numbered.special_tokens == {"<|endoftext|>": 0}


# ---- tiktoken's ranks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_tiktoken_reads_our_ranks_with_equal_ids(pattern: str, tmp_path: Path, shared_data: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    from tiktoken.load import load_tiktoken_bpe

    tokenizer = train(pattern)
    ranks, beside = export_tokenizer(tokenizer, tmp_path / "own.tiktoken", "tiktoken")
    described = json.loads(beside.read_text())
    theirs = tiktoken.Encoding(
        "own",
        pat_str=described["pat_str"],
        mergeable_ranks=load_tiktoken_bpe(str(ranks)),
        special_tokens=described["special_tokens"],
    )
    for text in messy(shared_data):
        assert theirs.encode(text, allowed_special="all") == tokenizer.encode(text), text
    assert load_tokenizer(ranks).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(("name", "file"), [("cl100k", "cl100k_base"), ("o200k", "o200k_base")])
def test_published_ranks_are_known_by_their_checksum(name: str, file: str, shared_data: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    path = shared_data / "ranks" / f"{file}.tiktoken"
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.pattern == name
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in path.read_bytes().splitlines()}
    theirs = tiktoken.Encoding(
        name, pat_str=EXPRESSIONS[name], mergeable_ranks=ranks, special_tokens=tokenizer.special_tokens
    )
    for text in messy(shared_data):
        assert tokenizer.encode(text) == theirs.encode(text, allowed_special="all"), text


def test_our_names_stand_for_the_expressions_that_tiktoken_uses() -> None:
    public = pytest.importorskip("tiktoken_ext.openai_public")
    source = Path(public.__file__).read_text()
    assert pattern_name(public.r50k_pat_str) == "gpt2"
    cl100k = re.search(r'"pat_str": r"""(.*?)"""', source)
    assert cl100k is not None
    assert pattern_name(cl100k[1]) == "cl100k"


def test_ranks_without_a_pattern_are_asked_for_one(trained: BPETokenizer, tmp_path: Path) -> None:
    ranks, beside = export_tokenizer(trained, tmp_path / "own.tiktoken", "tiktoken")
    beside.unlink()
    with pytest.raises(FledgeError, match="Give a pattern"):
        load_tokenizer(ranks)
    again = load_tokenizer(ranks, pattern="gpt2", special_tokens=trained.special_tokens)
    assert again.fingerprint == trained.fingerprint


def test_merges_out_of_the_order_of_ids_are_not_exported_as_ranks(trained: BPETokenizer, tmp_path: Path) -> None:
    ids = sorted(trained.vocab)
    turned = dict(zip([*ids[:-2], ids[-1], ids[-2]], [trained.vocab[token] for token in ids], strict=True))
    with pytest.raises(FledgeError, match="order of the ids"):
        export_tokenizer(
            BPETokenizer(turned, trained.merges, trained.special_tokens),
            tmp_path / "own.tiktoken",
            "tiktoken",
        )
    assert not list(tmp_path.iterdir())


# ---- by name ----


def test_a_name_that_was_not_fetched_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FledgeError, match="fledge tokenizer fetch cl100k"):
        load_tokenizer("cl100k")


def test_a_fetched_vocabulary_loads_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_data: Path) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizers").mkdir()
    (tmp_path / "tokenizers" / "gpt2.tiktoken").symlink_to(shared_data / "ranks" / "gpt2.tiktoken")
    assert load_tokenizer("gpt2").encode("Hello world") == [15496, 995]


# ---- whole or absent, and the very one -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [train, lambda: WordTokenizer.train(SAMPLE), lambda: CharacterTokenizer.train(SAMPLE)])
def test_the_fingerprint_is_checked(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    make().save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    configuration = json.loads(path.read_text())
    for wrong in ("0" * 64, None, 5):
        path.write_text(json.dumps(configuration | {"fingerprint": wrong}))
        with pytest.raises(FledgeError, match="another fingerprint") as refusal:
            load_tokenizer(tmp_path)
        assert str(tmp_path) in str(refusal.value)
    del configuration["fingerprint"]
    path.write_text(json.dumps(configuration))
    assert load_tokenizer(tmp_path).vocab_size > 256


def test_a_vocabulary_that_was_changed_is_refused(trained: BPETokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    merges = document["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    path.write_text(json.dumps(document))
    with pytest.raises(FledgeError, match="another fingerprint"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(("format", "name"), [("huggingface", "out"), ("gpt2", "out"), ("tiktoken", "out/a.tiktoken")])
def test_a_full_disk_leaves_nothing(
    trained: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, name: str, there: bool
) -> None:
    """The second file does not fit: the first does not stay behind either."""
    if there or format == "tiktoken":
        (tmp_path / "out").mkdir()
    flush, calls = os.fsync, []

    def fills_up(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fills_up)
    with pytest.raises(OSError, match="No space left"):
        export_tokenizer(trained, tmp_path / name, format)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("format", ["huggingface", "gpt2", "tiktoken"])
def test_the_space_is_checked_first(
    trained: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 100))
    with pytest.raises(FledgeError, match="only 100 bytes are free"):
        export_tokenizer(trained, tmp_path / "out.tiktoken", format)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_process_made_meanwhile_stays(
    trained: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def too_late(source: str, target: Path) -> None:
        target.mkdir()
        (target / "theirs").touch()
        rename(source, target)

    monkeypatch.setattr(os, "rename", too_late)
    with pytest.raises(FledgeError, match="out was made meanwhile by another process"):
        trained.save(tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


@pytest.mark.parametrize("there", ["folder", "empty folder", "file", "dead link"])
def test_what_came_into_being_meanwhile_stays_and_nothing_trained_is_lost(
    trained: BPETokenizer, tmp_path: Path, there: str
) -> None:
    """Beside it, under the first name that is free, and said."""
    out = tmp_path / "out"
    if "folder" in there:
        out.mkdir()
    if there == "folder":
        (out / "tokenizer.json").write_text("theirs")
    elif there == "file":
        out.write_text("theirs")
    elif there == "dead link":
        out.symlink_to("nowhere")
    (tmp_path / "out-2").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.warns(UserWarning, match=r"out in the meantime, .* the tokenizer is in .*out-3\."):
        assert save_new_tokenizer(trained, out) == tmp_path / "out-3"
    assert load_tokenizer(tmp_path / "out-3").fingerprint == trained.fingerprint
    assert [path for path in sorted(tmp_path.rglob("*")) if "out-3" not in str(path)] == before
    if there == "folder":
        assert (out / "tokenizer.json").read_text() == "theirs"


def test_a_special_token_that_begins_another_is_exported_with_a_warning(tmp_path: Path) -> None:
    tokenizer = train_bpe([b"a text"], 260, ["<|x|>", "<|x|>y"])
    with pytest.warns(UserWarning, match=r"the special token <\|x\|> begins another one"):
        export_tokenizer(tokenizer, tmp_path / "a.tiktoken", "tiktoken")
