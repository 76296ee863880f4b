"""Character and word tokenizers as Hugging Face's `tokenizer.json`, both ways.

To its programs they are BPE without merges: what is cut out of a text (all of it, or a word) is one token if it is in
the vocabulary, else its characters, and a character without an id is its bytes.
"""

from __future__ import annotations

from typing import Any

from fledge.errors import FledgeError
from fledge.tokenizer.spelling import FIRST_BYTE, FIRST_PIECE, SPECIAL_TOKENS, SpellingTokenizer

WORDS = r"[\p{L}\p{N}]+(?:\p{M}+[\p{L}\p{N}]*|['’][\p{L}\p{N}]+)*|[\s\x1c-\x1f]+|[^\p{L}\p{N}]"
"How a word tokenizer cuts text, for engines with Unicode classes."


def names_of(tokenizer: SpellingTokenizer) -> dict[int, str]:
    """Every id as other programs write it: characters and words as they are, other bytes as <0x80> to <0xFF>."""
    names = {token: text for text, token in SPECIAL_TOKENS.items()}
    names |= {FIRST_BYTE + byte: chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in range(256)}
    return names | dict(enumerate(tokenizer.pieces, FIRST_PIECE))


def write_spelled(tokenizer: SpellingTokenizer) -> dict[str, Any]:
    """The whole of `tokenizer.json`, which gives every text the ids that the tokenizer gives it."""
    words = tokenizer.kind == "word"
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": text, **plain} for text, token in SPECIAL_TOKENS.items()],
        "normalizer": None,
        "pre_tokenizer": split if words else None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": words,
            "vocab": {text: token for token, text in names_of(tokenizer).items()},
            "merges": [],
        },
    }


def read_spelled(document: Any, kind: type[SpellingTokenizer], where: str) -> SpellingTokenizer:
    """The tokenizer out of such a file; one that differs anywhere from how it is written is refused."""
    try:
        vocabulary = document["model"]["vocab"]
        tokenizer = kind(sorted((text for text in vocabulary if vocabulary[text] >= FIRST_PIECE), key=vocabulary.get))
    except FledgeError as error:
        raise FledgeError(f"{where}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise FledgeError(f"{where} is not the {kind.kind} tokenizer that {kind.kind} models leave with.") from None
    wanted = write_spelled(tokenizer)
    for section in wanted.keys() - {"post_processor", "version"}:
        if document.get(section) != wanted[section]:
            raise FledgeError(
                f"{where}: its section {section} is not that of a {kind.kind} tokenizer, so text would have other ids "
                "here. Bring the file from where the model was trained."
            )
    return tokenizer
