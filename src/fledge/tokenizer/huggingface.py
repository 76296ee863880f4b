"""Hugging Face's `tokenizer.json`, and GPT-2's `vocab.json` with `merges.txt`: byte-level BPE in and out.

A file that asks for what this library does not do is refused: a text must have the same ids in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fledge.errors import FledgeError, note
from fledge.files import to_bytes
from fledge.tokenizer.disk import json_of, text_of
from fledge.tokenizer.parts import Parts, add_token, checked, token_id, tokenizer_json, unwritten, written
from fledge.tokenizer.ranks import unreachable
from fledge.tokenizer.sentencepiece import SentencePieces, read_sentencepiece

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
EXPRESSIONS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+(?![\s\S])|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"The regular expressions behind the patterns' names, as every engine with Unicode classes understands them."
DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"Digits apart, then gpt2 in what is between them: white space before a digit ends its piece."
QWEN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"What Qwen's models cut by: an older cl100k with digits apart."

# The same splits in other spellings that are met in files.
_SPELLINGS = {
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
    r"|\s*[\r\n]|\s+(?!\S)|\s": "cl100k",
}
# Older spellings of cl100k divide the white space that ends a text after its last line end.
OLDER_CL100K = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
)


def pattern_name(expression: str, merges: Iterable[tuple[bytes, bytes]] = ()) -> str:
    """The name of a known pattern that, with these merges, gives the same ids; any other expression is its own."""
    for name, known in EXPRESSIONS.items():
        if expression == known:
            return name
    if expression in OLDER_CL100K and not any(_joins_lines(left + right) for left, right in merges):
        return "cl100k"
    return _SPELLINGS.get(expression, expression)


def _joins_lines(token: bytes) -> bool:
    """Whether it is white space that goes on after a line end."""
    return re.search(rb"[\r\n][^\r\n]+\Z", token) is not None and not token.decode("utf-8", "ignore").strip()


def expression_of(pattern: str) -> str:
    """The regular expression behind a pattern's name, or the pattern itself."""
    return EXPRESSIONS.get(pattern, pattern)


def write_vocabulary(parts: Parts, where: str) -> dict[str, int]:
    """`vocab.json`: every token as GPT-2 writes it; special tokens as they are."""
    special_ids = set(parts.special_tokens.values())
    vocabulary = {written(data): token for token, data in sorted(parts.vocab.items()) if token not in special_ids}
    for text, token in parts.special_tokens.items():
        if vocabulary.setdefault(text, token) != token:
            note(
                f"{where}: the special token {text} is spelled like the ordinary token {vocabulary[text]}. "
                "fledge tells them apart; other programs will not."
            )
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))


def write_merges(parts: Parts) -> list[str]:
    return [f"{written(left)} {written(right)}" for left, right in parts.merges]


def write_document(parts: Parts, where: str) -> dict[str, Any]:
    """The whole of `tokenizer.json`."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if parts.pattern == "gpt2":
        pre_tokenizer: dict[str, Any] = {**byte_level, "use_regex": True}
    else:
        split = {
            "type": "Split",
            "pattern": {"Regex": expression_of(parts.pattern)},
            "behavior": "Isolated",
            "invert": False,
        }
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, {**byte_level, "use_regex": False}]}
    model = {"ignore_merges": parts.whole_words, "vocab": write_vocabulary(parts, where), "merges": write_merges(parts)}
    normalizer = {"type": "NFC"} if parts.composed else None
    decoder = {**byte_level, "use_regex": True}
    return tokenizer_json(parts.special_tokens, parts.always, decoder, model, normalizer, pre_tokenizer)


def start_before_texts(start: str, token: int) -> dict[str, Any]:
    """The post-processor of a `tokenizer.json` that puts one special token before every text."""
    first, sequence = {"SpecialToken": {"id": start, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, sequence],
        "pair": [first, sequence, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {start: {"id": start, "ids": [token], "tokens": [start]}},
    }


def _adds_to_texts(post_processor: Any, start: str | None) -> bool:
    """Whether every text gets tokens besides its own; the `start` token in front is what `generate` adds, too."""
    kind = _type(post_processor)
    if kind == "Sequence":
        return any(_adds_to_texts(each, start) for each in post_processor.get("processors") or ())
    if kind != "TemplateProcessing":
        return kind not in (None, "ByteLevel")
    single = post_processor.get("single")
    steps = [_step(step) for step in single] if isinstance(single, list) else []
    return steps not in ([("Sequence", "A")], [("SpecialToken", start), ("Sequence", "A")])


def _step(step: Any) -> tuple[Any, Any]:
    """A step of a template: what it is, and of which name."""
    kind, content = next(iter(step.items()), (None, None)) if isinstance(step, dict) else (None, None)
    return kind, content.get("id") if isinstance(content, dict) else None


def read_document(document: Any, where: str, start: str | None = None) -> Parts | SentencePieces:
    """The parts of a byte-level BPE or of a SentencePiece out of the contents of a `tokenizer.json`; `start` is its
    start token, if it has one that is not its end token, too."""
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise FledgeError(f"{where} is not a tokenizer: a tokenizer.json has a section named model.")
    model = document["model"]
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise FledgeError(f"{where} holds a {kind!r:.40} model; fledge reads byte-level BPE.")
    for section, key in ((model, "continuing_subword_prefix"), (model, "end_of_word_suffix"), (model, "dropout")):
        if section.get(key):
            raise FledgeError(f"{where} sets model.{key} = {section[key]!r:.40}, which byte-level BPE does not have.")
    special_tokens, always = _read_added_tokens(document.get("added_tokens", []), where)
    for ignored in ("truncation", "padding"):
        if document.get(ignored):
            note(f"{where} sets {ignored}; fledge leaves that to those who use the ids.")
    if _adds_to_texts(document.get("post_processor"), start):
        note(f"{where} adds tokens around every text; fledge does so only where it is asked.")
    if document.get("normalizer"):
        _require_found_alike(document["added_tokens"], bool(model.get("byte_fallback")), where)
    if model.get("byte_fallback"):
        return read_sentencepiece(document, special_tokens, always, where)
    composed = _is_composed(document.get("normalizer"), where)
    expression = _read_pattern(document.get("pre_tokenizer"), where)
    parts = read_vocabulary(model.get("vocab"), model.get("merges"), special_tokens, expression, where)
    pattern = pattern_name(expression, parts.merges)
    whole = bool(model.get("ignore_merges")) and bool(unreachable(parts))
    return parts._replace(pattern=pattern, always=always, composed=composed, whole_words=whole)


def read_gpt2(vocabulary: Path, merges: Path, special_tokens: Mapping[str, int] | None, pattern: str | None) -> Parts:
    """The parts in GPT-2's two files; special tokens not given are what no merge makes."""
    lines = (line.rstrip("\r") for line in text_of(merges).split("\n"))
    pairs = [line for line in lines if line and not line.startswith("#version")]
    where = f"{vocabulary} with {merges.name}"
    return read_vocabulary(json_of(vocabulary), pairs, special_tokens, pattern or "gpt2", where)


def read_vocabulary(
    vocabulary: Any, merges: Any, special_tokens: Mapping[str, int] | None, pattern: str, where: str
) -> Parts:
    """The parts out of `vocab.json` and `merges.txt`; special tokens not given are what no merge makes."""
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise FledgeError(f"{where} lacks a vocabulary (names and ids) or a list of merges.")
    pairs = [_read_merge(merge, number, where) for number, merge in enumerate(merges, 1)]
    made = {left + right for left, right in pairs}
    vocab: dict[int, bytes] = {}
    specials: dict[str, int] = {}
    for text, value in vocabulary.items():
        token = token_id(value, where, repr(text))
        data = unwritten(text)
        ordinary = data is not None and (len(data) == 1 or data in made)
        if special_tokens is not None and special_tokens.get(text) == token:
            continue
        if data is None or (special_tokens is None and not ordinary):
            if special_tokens is not None:
                raise FledgeError(
                    f"{where}: the token {text!r:.60} is not spelled in bytes: this is not byte-level BPE."
                )
            specials[text] = token
        else:
            add_token(vocab, token, data, where)
    if special_tokens is None:
        _require_all_merges(specials, pairs, len(vocabulary), where)
    for text, token in (specials if special_tokens is None else special_tokens).items():
        specials[text] = token
        add_token(vocab, token, to_bytes(text), where)
    return checked(Parts(vocab, pairs, specials, pattern), where)


def _require_all_merges(specials: Iterable[str], merges: Iterable[tuple[bytes, bytes]], size: int, where: str) -> None:
    """Refuse ordinary tokens among those that no merge makes: needed by one, spelled in bytes' letters, or too many."""
    needed = {half for pair in merges for half in pair}
    lost = [text for text in specials if unwritten(text)]
    certain = [text for text in lost if max(text) >= "\u0100" or unwritten(text) in needed]
    if certain or len(lost) > max(100, size // 100):
        raise FledgeError(
            f"{where} has {len(lost):,} tokens that no merge makes, such as {(certain or lost)[0]!r:.60}: the merges "
            "were cut, or are those of another vocabulary. Fetch both files again; if they are whole, give the special "
            "tokens and their ids as special_tokens."
        )


def _read_merge(merge: Any, number: int, where: str) -> tuple[bytes, bytes]:
    halves = merge.split(" ") if isinstance(merge, str) else merge
    if isinstance(halves, list) and len(halves) == 2 and all(isinstance(half, str) and half for half in halves):
        left, right = unwritten(halves[0]), unwritten(halves[1])
        if left is not None and right is not None:
            return left, right
    raise FledgeError(f"{where}: merge {number} is {merge!r:.60}, and a merge is two tokens spelled in bytes.")


def _read_added_tokens(added: Any, where: str) -> tuple[dict[str, int], frozenset[str]]:
    """The added tokens, and those of them that are not special there: found in every text."""
    special_tokens: dict[str, int] = {}
    if not isinstance(added, list):
        raise FledgeError(f"{where}: added_tokens must be a list.")
    for entry in added:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or not entry["content"]:
            raise FledgeError(f"{where}: {entry!r:.60} in added_tokens has no content.")
        text = entry["content"]
        for flag in ("lstrip", "rstrip", "single_word"):
            if entry.get(flag):
                raise FledgeError(
                    f"{where} sets {flag} for the token {text}, which changes the ids around it; not read."
                )
        if special_tokens.setdefault(text, token_id(entry.get("id"), where, text)) != entry["id"]:
            raise FledgeError(f"{where} adds the token {text:.60} with two ids.")
    return special_tokens, frozenset(entry["content"] for entry in added if entry.get("special") is False)


def _require_found_alike(added: Iterable[Mapping[str, Any]], pieces: bool, where: str) -> None:
    """Refuse added tokens that are looked for before text is rewritten where we look after it, or the other way."""
    for entry in added:
        late = bool(entry.get("normalized", not entry.get("special")))
        if late if pieces else not late and not entry["content"].isascii():
            theirs, ours = ("after", "before") if late else ("before", "after")
            raise FledgeError(
                f"{where} looks for the token {entry['content']:.60} {theirs} it rewrites text (normalized is "
                f"{str(late).lower()}), and fledge only {ours} that: the ids around it would differ; not read."
            )


def _read_pattern(pre_tokenizer: Any, where: str) -> str:
    """The expression that cuts a text, or its name, out of a ByteLevel step, alone or after one Split."""
    steps = pre_tokenizer.get("pretokenizers") if _type(pre_tokenizer) == "Sequence" else [pre_tokenizer]
    steps = steps if isinstance(steps, list) else []
    if not steps or _type(steps[-1]) != "ByteLevel":
        raise FledgeError(
            f"{where} does not cut text into bytes (pre_tokenizer ByteLevel); fledge reads byte-level BPE."
        )
    byte_level, before = steps[-1], steps[:-1]
    if byte_level.get("add_prefix_space"):
        raise FledgeError(
            f"{where} puts a space before every text (add_prefix_space): text would not come back; not read."
        )
    uses_gpt2 = byte_level.get("use_regex", True)
    if not before:
        if not uses_gpt2:
            return r"[\s\S]+"
        return "gpt2"
    if len(before) == 1 and _type(before[0]) == "Digits" and uses_gpt2:
        return DIGITS if before[0].get("individual_digits") else DIGITS.replace(r"\p{N}", r"\p{N}+", 1)
    if len(before) == 1 and _type(before[0]) == "Split" and not uses_gpt2:
        split = before[0]
        rule = split.get("pattern")
        expression = rule.get("Regex") if isinstance(rule, dict) else None
        if isinstance(expression, str) and split.get("behavior") == "Isolated" and not split.get("invert"):
            return expression
    names = ", ".join(str(_type(step)) for step in steps)
    raise FledgeError(
        f"{where} cuts text in a way that fledge does not know ({names:.99}). It reads ByteLevel with its own "
        "expression, alone or after Digits; or without it, after one Split by a Regex whose matches are Isolated and "
        "not inverted."
    )


def _type(section: Any) -> Any:
    return section.get("type") if isinstance(section, dict) else None


def _is_composed(normalizer: Any, where: str) -> bool:
    """Whether text is composed to NFC first. What rewrites text in any other way is refused."""
    steps = normalizer.get("normalizers") if _type(normalizer) == "Sequence" else [normalizer] if normalizer else []
    kinds = [_type(step) for step in steps] if isinstance(steps, list) else [normalizer]
    if kinds in ([], ["NFC"]):
        return kinds == ["NFC"]
    names = ", ".join(map(str, kinds))
    raise FledgeError(
        f"{where} rewrites text before it is encoded ({names:.99}), so text would not come back; fledge reads the "
        "normalizer NFC alone."
    )
