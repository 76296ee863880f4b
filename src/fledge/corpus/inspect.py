"""What a corpus looks like, and what may be wrong with it, before hours are spent on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fledge.corpus.copies import find_copies
from fledge.corpus.corpus import Corpus
from fledge.corpus.passages import INSIDE, LENGTHS, PASSAGE, find_passages
from fledge.corpus.private import find_private, has_markup, hidden, is_mojibake, recurring_lines, script_of
from fledge.corpus.split import PARTS, TRAIN
from fledge.corpus.text import JoinedText
from fledge.files import readable_bytes

GIANT = 10 << 20  # bytes; a longer document is worth a question
GROUPS = 5  # of copies, and of passages, that are shown
SHOWN = 160  # bytes of a sample
EXAMPLES = 5  # documents that are named for each finding


@dataclass
class Report:
    """Counts, sizes, samples and warnings."""

    documents: dict[str, int]
    bytes: dict[str, int]
    shortest: int = 0
    longest: int = 0
    duplicates: int = 0
    "Documents with the same bytes as an earlier one."
    near_copies: int = 0
    "Documents that are near-copies of an earlier one, and no copies."
    copied_bytes: int = 0
    "Bytes of documents that are copies or near-copies."
    groups: list[tuple[int, str]] = field(default_factory=list)
    "The largest groups of copies: how many documents, and the opening of the first."
    left_out: Counter[str] = field(default_factory=Counter)
    "How many documents `clean` would leave out, by the reason."
    left_out_bytes: Counter[str] = field(default_factory=Counter)
    repeated_bytes: int = 0
    "Bytes in passages that stand earlier, too."
    passages: list[tuple[str, int, int]] = field(default_factory=list)
    "The passages that take most: opening, times, greatest length."
    leaked: dict[int, float] = field(default_factory=dict)
    "The share of held-out bytes that stands in the training text, by the least length of the match."
    private: Counter[str] = field(default_factory=Counter)
    private_examples: dict[str, str] = field(default_factory=dict)
    scripts: Counter[str] = field(default_factory=Counter)
    mojibake: int = 0
    markup: int = 0
    examples: dict[str, list[int]] = field(default_factory=dict)
    "The numbers of the first documents with each finding: mojibake, markup, private kinds, and the rarer scripts."
    recurring: dict[str, float] = field(default_factory=dict)
    "Lines that stand in most documents, and in which share of them."
    skipped: int = 0
    formats: dict[str, int] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def inspect(corpus: Corpus, samples: int = 3, progress: bool = False) -> Report:
    """Read a corpus, several times where that is possible, and say what is in it."""
    report = Report(
        dict.fromkeys(corpus.parts, 0),
        dict.fromkeys(corpus.parts, 0),
        formats=dict(Counter(source.format for source in corpus.sources)),
    )
    invalid = nul = carriage = 0
    lengths: list[int] = []

    def found(finding: str, number: int) -> None:
        if len(numbers := report.examples.setdefault(finding, [])) < EXAMPLES:
            numbers.append(number)

    for batch in corpus.watched("looking at documents", progress):
        report.skipped += batch.skipped
        for document, part in zip(batch.documents, batch.parts.tolist(), strict=True):
            name = PARTS[part]
            report.documents[name] += 1
            report.bytes[name] += len(document)
            number = sum(report.documents.values())
            lengths = [min([*lengths, len(document)]), max([*lengths, len(document)])]
            for match in find_private(document):
                kind = (match.lastgroup or "").replace("_", "-")
                report.private[kind] += 1
                report.private_examples.setdefault(kind, hidden(match[0]))
                if number - 1 not in report.examples.get(kind, ()):
                    found(kind, number - 1)
            report.scripts[script := script_of(document)] += 1
            found(script, number - 1)
            if is_mojibake(document):
                report.mojibake += 1
                found("mojibake", number - 1)
            if has_markup(document):
                report.markup += 1
                found("markup", number - 1)
            invalid += not _is_utf8(document)
            nul += b"\0" in document
            carriage += b"\r\n" in document
            if number & (number - 1) == 0 and len(report.samples) < samples:  # the 1st, 2nd, 4th … document
                report.samples.append(document[:SHOWN].decode("utf-8", "replace"))
    report.shortest, report.longest = lengths or [0, 0]
    for script, _ in report.scripts.most_common(1):
        del report.examples[script]  # what most are is no finding
    if not corpus.half_known:
        _copied(corpus, report, progress)
    report.warnings = _warnings(corpus, report, invalid, nul, carriage)
    return report


def _copied(corpus: Corpus, report: Report, progress: bool) -> None:
    """Copies, repeated passages and the leak, each in a reading of its own."""
    copies = find_copies(corpus.watched("finding near-copies", progress))
    numbers = np.arange(len(copies.groups))
    report.duplicates = int((copies.exact != numbers).sum())
    report.near_copies = int(copies.near.sum()) - report.duplicates
    largest = dict(Counter(copies.groups.tolist()).most_common(GROUPS))
    openings = {}
    number = 0
    for batch in corpus.batches():
        for document in batch.documents:
            report.copied_bytes += len(document) if copies.near[number] else 0
            if largest.get(number, 0) > 1:
                openings[number] = document[:SHOWN].decode("utf-8", "replace")
            number += 1
    report.groups = [(count, openings[first]) for first, count in largest.items() if first in openings]
    passages = find_passages(batch.text for batch in corpus.watched("finding repeated passages", progress))
    sizes, exact = np.diff(passages.bounds), copies.exact == copies.exact[copies.groups]
    reasons = {"copy": copies.near & exact, "near-copy": copies.near & ~exact}
    reasons["inside another"] = ~copies.near & (passages.shares() >= INSIDE)
    report.left_out = +Counter({why: int(chosen.sum()) for why, chosen in reasons.items()})
    report.left_out_bytes = +Counter({why: int(sizes[chosen].sum()) for why, chosen in reasons.items()})
    report.repeated_bytes = passages.covered(PASSAGE)
    report.passages = passages.largest(GROUPS)
    report.leaked = leak(corpus, progress=progress)
    lines = recurring_lines(corpus.documents())
    report.recurring = {
        line.decode("utf-8", "replace"): lines[line] for line in sorted(lines, key=lambda one: -lines[one])
    }


def leak(held_out: Corpus, train: Corpus | None = None, progress: bool = False) -> dict[int, float]:
    """The share of held-out bytes that stands in the training text, by the least length of the match in bytes; of all
    of one corpus in another, or of one corpus' held-out part in its training part.
    """

    def texts(corpus: Corpus, wanted: bool) -> Iterator[JoinedText]:
        for batch in corpus.watched(f"reading {'held-out' if wanted else 'training'} text", progress):
            chosen = (batch.parts != TRAIN) == wanted if train is None else np.ones(len(batch.text), np.bool_)
            yield JoinedText(batch.text.buffer, batch.text.starts[chosen], batch.text.ends[chosen])

    found = find_passages(texts(train or held_out, False), texts(held_out, True), LENGTHS[0])
    if not found.size or not found.first:
        return {}
    return {length: found.covered(length) / found.size for length in LENGTHS}


def _is_utf8(document: bytes) -> bool:
    try:
        document.decode()
    except UnicodeDecodeError:
        return False
    return True


def _warnings(corpus: Corpus, report: Report, invalid: int, nul: int, carriage: int) -> list[str]:
    count = sum(report.documents.values())
    found = []
    if corpus.contiguous and "text" in report.formats:
        found.append(
            f"No or few separators {corpus.options.separator.decode()!r}: the text is split into contiguous blocks. If "
            "it has documents, name what stands between them with --separator, or use --format lines or files."
        )
    if report.longest > GIANT and not corpus.contiguous:
        found.append(f"One document has {readable_bytes(report.longest)}: is the separator right?")
    if report.duplicates:
        found.append(f"{report.duplicates:,} of {count:,} documents are exact copies of others.")
    if report.near_copies:
        found.append(f"{report.near_copies:,} of {count:,} documents are near-copies of others.")
    if report.mojibake:
        found.append(f"{report.mojibake:,} documents look mis-decoded (mojibake): convert them anew.")
    if report.markup:
        found.append(f"{report.markup:,} documents hold tags or entities of a markup language.")
    if report.private:
        kinds = ", ".join(f"{number:,} × {kind}" for kind, number in report.private.most_common())
        found.append(f"Private by its form: {kinds}. fledge corpus clean --mask replaces it; a help, not a promise.")
    if invalid:
        found.append(
            f"{invalid:,} documents are not valid UTF-8: the text may be in another encoding (Latin-1, UTF-16). "
            "Convert it first: iconv -f latin1 -t utf-8"
        )
    if nul:
        found.append(f"{nul:,} documents hold zero bytes: UTF-16 text, or not text at all?")
    if carriage:
        found.append(f"{carriage:,} documents have Windows line ends (\\r\\n); they are kept as they are.")
    if report.skipped:
        found.append(f"{report.skipped:,} bad lines were skipped.")
    if count and not report.documents["train"]:
        found.append("All documents are held out, and nothing is left to train on: lower corpus.validation_fraction.")
    if not report.documents["validation"]:
        found.append("Nothing is held out for validation: set corpus.validation_fraction above 0.")
    return found
