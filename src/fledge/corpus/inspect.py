"""What a corpus looks like, and what may be wrong with it, before hours are spent on it."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field

from fledge.corpus.corpus import Corpus
from fledge.files import readable_bytes

GIANT = 10 << 20  # bytes; a longer document is worth a question
REMEMBERED = 1_000_000  # documents whose checksums are compared to find duplicates
SHOWN = 160  # bytes of a sample


@dataclass
class Report:
    """Counts, sizes, samples and warnings."""

    documents: dict[str, int] = field(default_factory=lambda: {"train": 0, "validation": 0})
    bytes: dict[str, int] = field(default_factory=lambda: {"train": 0, "validation": 0})
    shortest: int = 0
    longest: int = 0
    duplicates: int = 0
    skipped: int = 0
    formats: dict[str, int] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def inspect(corpus: Corpus, samples: int = 3) -> Report:
    """Read a corpus once and say what is in it."""
    report = Report(formats=dict(Counter(source.format for source in corpus.sources)))
    seen: set[int] = set()
    invalid = nul = carriage = 0
    lengths: list[int] = []
    for batch in corpus.batches():
        report.skipped += batch.skipped
        for document, held in zip(batch.documents, batch.validation.tolist(), strict=True):
            name = "validation" if held else "train"
            report.documents[name] += 1
            report.bytes[name] += len(document)
            number = sum(report.documents.values())
            lengths = [min([*lengths, len(document)]), max([*lengths, len(document)])]
            if number <= REMEMBERED:
                check = zlib.crc32(document) | len(document) << 32
                report.duplicates += check in seen
                seen.add(check)
            invalid += not _is_utf8(document)
            nul += b"\0" in document
            carriage += b"\r\n" in document
            if number & (number - 1) == 0 and len(report.samples) < samples:  # the 1st, 2nd, 4th … document
                report.samples.append(document[:SHOWN].decode("utf-8", "replace"))
    report.shortest, report.longest = lengths or [0, 0]
    report.warnings = _warnings(corpus, report, invalid, nul, carriage)
    return report


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
