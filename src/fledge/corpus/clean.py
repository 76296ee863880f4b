"""A new corpus out of an old one: one of each group of copies, and on request without what is broken or private.

Nothing is changed in place, and what is left out is listed with the reason. Interrupted, nothing is left behind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fledge.corpus.copies import ALIKE, find_copies
from fledge.corpus.corpus import Corpus
from fledge.corpus.passages import INSIDE, find_passages
from fledge.corpus.private import has_markup, is_mojibake, mask, recurring_lines, script_of, without_lines
from fledge.errors import FledgeError
from fledge.files import COMPRESSED, atomic_write, documents_format

OPENING = 80  # bytes of a document that the list of those left out shows
DROPS = ("mojibake", "markup", "script", "lines")
Keep = Literal["first", "longest"]


@dataclass
class Cleaned:
    """What was written, and what was left out."""

    documents: int = 0
    kept: int = 0
    bytes: int = 0
    kept_bytes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    "Documents in which bytes that are no UTF-8 became U+FFFD, which JSON asks for."
    list: Path | None = None


def clean(
    corpus: Corpus,
    out: Path,
    alike: float = ALIKE,
    keep: Keep = "first",
    masked: bool = False,
    drop: Collection[str] = (),
    progress: bool = False,
) -> Cleaned:
    """Write the documents worth keeping to `out`: JSONL where its name says so, else a text with separators.

    `drop` leaves out documents that are mojibake, full of markup or of another script than most, and takes out lines
    that recur in most documents.
    """
    as_json = documents_format(out.name) == "jsonl"
    if not out.name or out.name.lower().endswith(COMPRESSED) or documents_format(out.name) not in ("jsonl", None):
        raise FledgeError(
            f"A cleaned corpus is a .jsonl file or a text file, and {out} is neither. Name one with --out."
        )
    listed = out.with_name(f"{out.name}.left-out")
    for path in (out, listed):
        if path.exists():
            raise FledgeError(f"{path} exists already. Name another file with --out, or remove that one.")
    for source in corpus.sources:
        if source.half_known:
            raise FledgeError("Cleaning reads the text several times. Write standard input to a file first.")
    copies = find_copies(corpus.watched("finding near-copies", progress), alike)
    sizes = [len(document) for document in corpus.documents()]
    if not any(sizes):
        raise FledgeError(f"{corpus.name} holds no text. Nothing was written.")
    leaders = copies.groups.copy()
    if keep == "longest":
        best: dict[int, int] = {}
        for number, group in enumerate(copies.groups.tolist()):
            if group not in best or sizes[number] > sizes[best[group]]:
                best[group] = number
        leaders = np.array([best[group] for group in copies.groups.tolist()], leaders.dtype)
    passages = find_passages(batch.text for batch in corpus.watched("finding repeated passages", progress))
    inside = passages.shares() >= INSIDE
    scripts = Counter(map(script_of, corpus.documents())) if "script" in drop else Counter()
    usual = scripts.most_common(1)[0][0] if scripts else ""
    lines = recurring_lines(corpus.documents()) if "lines" in drop else set()

    def reason(number: int, document: bytes) -> dict[str, Any] | None:
        leader = int(leaders[number])
        if leader != number:
            kind = "copy" if copies.exact[number] == copies.exact[leader] else "near-copy"
            return {"reason": kind, "of": leader, "similarity": round(copies.similarity(number, leader), 3)}
        if inside[number]:
            return {"reason": "inside another"}
        if "mojibake" in drop and is_mojibake(document):
            return {"reason": "mojibake"}
        if "markup" in drop and has_markup(document):
            return {"reason": "markup"}
        if usual and (script := script_of(document)) != usual:
            return {"reason": "script", "script": script}
        return None

    result = Cleaned(list=listed)
    separator = corpus.options.separator
    with atomic_write(out) as file, atomic_write(listed) as notes:
        documents = (one for batch in corpus.watched("writing", progress) for one in batch.documents)
        for number, document in enumerate(documents):
            result.documents += 1
            result.bytes += len(document)
            why, left = reason(number, document), without_lines(document, lines)
            if why is None and not left.strip():
                why = {"reason": "empty"}
            if why is not None:
                result.left_out[why["reason"]] += 1
                opening = document[:OPENING].decode("utf-8", "replace")
                notes.write(json.dumps({"document": number, **why, "opening": opening}).encode() + b"\n")
                continue
            document = left
            if masked:
                document, counts = mask(document)
                result.masked += counts
            result.kept += 1
            result.kept_bytes += len(document)
            if as_json:
                text = document.decode("utf-8", "replace")
                result.replaced += text.encode() != document
                file.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
            elif separator in document:
                raise FledgeError(
                    f"Document {number:,} holds the separator {separator.decode()!r}, and would become two. Name a "
                    "file that ends in .jsonl with --out."
                )
            else:
                file.write(separator + document if result.kept > 1 else document)
        if not result.kept:
            raise FledgeError("Nothing would be left. Drop less.")
    return result
