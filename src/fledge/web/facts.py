"""What a text is, before anything is trained on it: what `fledge corpus show` says, for the page."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from fledge.errors import notes_kept
from fledge.web.schemas import Answer

if TYPE_CHECKING:
    from fledge.corpus import Corpus

WHOLE = 24 << 20  # bytes up to which copies are looked for: more would keep a person waiting


class CopyGroup(Answer):
    count: int
    opening: str


class TextFacts(Answer):
    """What texts are. Shares are of the bytes, and not known of a text that is large."""

    bytes: int
    documents: int
    shortest: int | None
    longest: int | None
    scripts: list[str]
    copied: float | None
    "In documents that are copies or near-copies of others."
    repeated: float | None
    "In passages that stand earlier, too."
    groups: list[CopyGroup]
    samples: list[str]
    warnings: list[str]
    note: str | None


@lru_cache(maxsize=16)
def text_facts(places: tuple[str, ...], stamp: object) -> TextFacts:
    """The facts of texts by their places; `stamp` is another when a file of them changed."""
    from fledge.corpus import Corpus
    from fledge.corpus.inspect import inspect

    with notes_kept():  # the warnings say it too
        corpus = Corpus.open(*places)
        if (corpus.size or 0) > WHOLE:
            return quick_facts(corpus)
        report = inspect(corpus, 3)
    size = sum(report.bytes.values())
    return TextFacts(
        bytes=size,
        documents=sum(report.documents.values()),
        shortest=report.shortest,
        longest=report.longest,
        scripts=[name for name, _ in report.scripts.most_common(3)],
        copied=report.copied_bytes / max(1, size),
        repeated=report.repeated_bytes / max(1, size),
        groups=[CopyGroup(count=count, opening=opening) for count, opening in report.groups],
        samples=report.samples,
        warnings=report.warnings,
        note=None,
    )


def quick_facts(corpus: Corpus) -> TextFacts:
    from fledge.corpus.private import script_of
    from fledge.start.look import look_at

    look = look_at(corpus)
    first = next(iter(corpus.without_groups().batches())).documents[0][: 1 << 16]
    return TextFacts(
        bytes=look.bytes,
        documents=look.documents,
        shortest=None,
        longest=None,
        scripts=[script_of(first)],
        copied=None,
        repeated=None,
        groups=[],
        samples=[first[:160].decode("utf-8", "replace")],
        warnings=[],
        note="The text is large, so that only its beginning was read. For copies and warnings: fledge corpus show",
    )
