"""Questions of text: what Unicode does, what BPE learns, how well and how fast it encodes, how wide ids are."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from fledge.files import readable_bytes
from fledge.reports.page import Page
from fledge.start.look import look_at

if TYPE_CHECKING:
    from fledge.tokenizer import Tokenizer
    from fledge.workbook.book import Book

SAMPLE = 4_000_000  # bytes that facts of Unicode are counted on
SPEED = 50_000_000  # bytes that speed and compression are measured on
REPEATS = 3
DOCUMENTS = 10  # of each text, whose compression is measured one by one
WRONG = (b"\xc1\xa1", b"\xc2\x00")
"Two bytes that are no character; the program says why."

Facts = dict[str, Any]


def sample_of(book: Book, name: str, size: int) -> bytes:
    from fledge.tokenizer.compare import limited

    return b"".join(bytes(block.buffer) for block in limited(book.plan.corpus(name), size))[:size]


# -- Unicode -----------------------------------------------------------------------------------------------------------


def ask_unicode(book: Book) -> Facts:
    from fledge.tokenizer.unicode import flaws, string_sizes, why_invisible

    word = "this is a test" + chr(0) + "string"
    sizes = {}
    example = "hello 가"
    for name in book.plan.corpora:
        text = sample_of(book, name, SAMPLE).decode("utf-8", "replace")
        facts = string_sizes(text)
        other = [character for character in text if ord(character) > 127 and character != "\ufffd"]
        if other:
            place = text.index(other[0])
            example = text[max(0, place - 6) : place + 3].strip() or example
        sizes[name] = {
            "characters": facts.code_points,
            "utf8": facts.utf8_bytes,
            "utf16": facts.utf16_bytes,
            "utf32": facts.utf32_bytes,
            "other": len(other),
            "distinct": len(set(text)),
        }
    try:
        wrong = "".join(bytes([byte]).decode("utf-8") for byte in example.encode())
    except UnicodeDecodeError as error:
        wrong = str(error)
    return {
        "null": [repr(chr(0)), why_invisible(chr(0)), repr(word), len(word), len(word.replace(chr(0), ""))],
        "sizes": sizes,
        "example": example,
        "wrong": wrong,
        "fails": wrong != example,
        "flaws": [[data.hex(" ").upper(), flaw.reason] for data in WRONG for flaw in list(flaws(data))[:1]],
    }


def show_unicode(page: Page, facts: Facts, book: Book) -> None:
    shown, why, word, length, without = facts["null"]
    page.paragraph(
        f"chr(0) is a character: its representation is {shown}, and printed it is {why}. Inside a string it is kept "
        f"and not seen: {word} has {length} characters, {length - without} more than what the eye counts."
    )
    rows = [
        (name, s["characters"], s["utf8"], s["utf16"], s["utf32"], s["other"], s["distinct"])
        for name, s in facts["sizes"].items()
    ]
    page.table(["text", "characters", "UTF-8 bytes", "UTF-16", "UTF-32", "beyond ASCII", "distinct characters"], rows)
    for name, s in facts["sizes"].items():
        smallest = min(("utf8", "utf16", "utf32"), key=lambda key: s[key])
        names = {"utf8": "UTF-8", "utf16": "UTF-16", "utf32": "UTF-32"}
        page.paragraph(
            f"{names[smallest]} is the smallest for {name}: UTF-16 takes {s['utf16'] / max(1, s['utf8']):.2f} and "
            f"UTF-32 {s['utf32'] / max(1, s['utf8']):.2f} times the bytes of UTF-8, and "
            f"{s['other'] / max(1, s['characters']):.2%} of its characters are beyond ASCII."
        )
    if facts["fails"]:
        page.paragraph(
            f"Decoding {facts['example']!r} byte by byte does not give it back, but an error: {facts['wrong']}."
        )
    else:
        page.paragraph(f"Decoding {facts['example']!r} byte by byte works, for all of its characters are ASCII.")
    for written, reason in facts["flaws"]:
        page.paragraph(f"The bytes {written} are no text: {reason}.")


# -- BPE ---------------------------------------------------------------------------------------------------------------


def vocabulary_for(size: int) -> int:
    """Ids for a text of so many bytes: 10,000 and 32,000 as in the course, fewer where the text is small.

    >>> vocabulary_for(4_000_000), vocabulary_for(2_000_000_000), vocabulary_for(20_000)
    (10000, 32000, 512)
    """
    for most, ids in ((100_000, 512), (1_000_000, 2_000), (100_000_000, 10_000)):
        if size <= most:
            return ids
    return 32_000


def ask_bpe(book: Book) -> Facts:
    from fledge.tokenizer import train_bpe
    from fledge.tokenizer.compare import limited
    from fledge.tokenizer.inspect import longest_tokens

    found = {}
    for name in book.plan.corpora:
        corpus, most = book.plan.corpus(name), book.plan.text_bytes
        there = look_at(corpus).bytes
        whole, size = there <= most, min(there, most)
        source: Any = corpus
        if not whole:
            source = (
                bytes(block.buffer[int(start) : int(end)])
                for block in limited(corpus, most)
                for start, end in zip(block.offsets, block.offsets[1:], strict=False)
            )
        started = time.perf_counter()
        tokenizer = train_bpe(source, vocabulary_for(size), ["<|endoftext|>"])
        seconds = time.perf_counter() - started
        tokenizer.save(book.folder / "tokenizers" / name)
        profile = tokenizer.training_profile
        assert profile is not None
        longest = longest_tokens(tokenizer, 5)
        text = sample_of(book, name, SPEED)
        found[name] = {
            "vocabulary": tokenizer.vocab_size,
            "asked": vocabulary_for(size),
            "bytes": profile.source_bytes,
            "whole": whole,
            "seconds": seconds,
            "distinct": profile.distinct_pretokens,
            "phases": [[phase.name, phase.seconds, phase.peak_memory] for phase in profile.phases],
            "counted": len(text),
            "longest": [
                [token.data.decode("utf-8", "replace"), len(token.data), text.count(token.data)] for token in longest
            ],
        }
    return found


def show_bpe(page: Page, facts: Facts, book: Book) -> None:
    page.table(
        ["text", "bytes", "vocabulary", "seconds", "peak memory", "distinct pre-tokens"],
        [
            (
                name,
                f["bytes"],
                f["vocabulary"],
                f["seconds"],
                readable_bytes(max(peak for _, _, peak in f["phases"])),
                f["distinct"],
            )
            for name, f in facts.items()
        ],
    )
    for name, f in facts.items():
        part = "" if f["whole"] else f" (the first {readable_bytes(f['bytes'])} of it; more time reads more)"
        short = (
            f" Merging ended there, {f['asked'] - f['vocabulary']:,} ids before the {f['asked']:,} asked for: no pair "
            "was left."
            if f["vocabulary"] < f["asked"]
            else ""
        )
        page.paragraph(f"{name}{part}: {f['vocabulary']:,} ids in {f['seconds']:.2f} seconds.{short}")
    page.paragraph("Peak memory is that of the whole process, with all that it had loaded before.")


def show_longest(page: Page, facts: Facts, book: Book) -> None:
    for name, f in facts.items():
        where = f"the first {readable_bytes(f['counted'])}" if f["bytes"] > f["counted"] else "the text"
        page.table(
            [f"longest tokens of {name}", "bytes", f"times in {where}"],
            [(repr(text), length, count) for text, length, count in f["longest"]],
        )
        text, length, count = f["longest"][0]
        page.paragraph(
            f"The longest token of {name} is {text!r}, {length} bytes; {count:,} times in {where}. BPE merges what is "
            "frequent, whatever it means: a token is as long as what was repeated."
        )


def show_profile(page: Page, facts: Facts, book: Book) -> None:
    for name, f in facts.items():
        total = sum(seconds for _, seconds, _ in f["phases"]) or 1e-9
        page.table(
            [f"phase, {name}", "seconds", "share", "peak memory"],
            [(phase, s, f"{s / total:.0%}", readable_bytes(peak)) for phase, s, peak in f["phases"]],
        )
        slowest = max(f["phases"], key=lambda phase: phase[1])
        page.paragraph(f"For {name}, “{slowest[0]}” takes the most: {slowest[1] / total:.0%} of {total:.3f} seconds.")


# -- encoding ----------------------------------------------------------------------------------------------------------


def tokenizers(book: Book) -> dict[str, Tokenizer]:
    from fledge.tokenizer import load_tokenizer

    return {name: load_tokenizer(book.folder / "tokenizers" / name) for name in book.plan.corpora}


def ask_encoding(book: Book) -> Facts:
    from fledge.tokenizer.compare import compare_documents, compare_tokenizers

    trained = tokenizers(book)
    corpora = {name: book.plan.corpus(name) for name in book.plan.corpora}
    found: dict[str, list[Facts]] = {"one": [], "all": []}
    for label, threads in (("one", 1), ("all", None)):
        runs = [compare_tokenizers(trained, corpora, limit=SPEED, threads=threads) for _ in range(REPEATS)]
        for measurements in zip(*runs, strict=True):
            seconds = statistics.median(one.seconds for one in measurements)
            found[label].append(measurements[0]._replace(seconds=seconds).record())
    samples = compare_documents(trained, corpora, DOCUMENTS, limit=SPEED)
    return {
        **found,
        "sizes": {name: tokenizer.vocab_size for name, tokenizer in trained.items()},
        "documents": [[one.corpus, one.tokenizer, len(one.documents), one.mean, one.deviation] for one in samples],
    }


def show_compression(page: Page, facts: Facts, book: Book) -> None:
    names = list(facts["sizes"])
    ratio = {(m["tokenizer"], m["corpus"]): m["bytes_per_token"] for m in facts["all"]}
    page.table(
        ["bytes per token of", *(f"on {name}" for name in names)],
        [(f"the tokenizer of {name}", *(ratio[name, corpus] for corpus in names)) for name in names],
    )
    if len(names) == 1:
        page.paragraph(
            f"One token of {names[0]} stands for {ratio[names[0], names[0]]:.2f} bytes. With a second --corpus, each "
            "tokenizer is tried on the other's text too."
        )
    for corpus in names:
        for other in names:
            if other != corpus:
                own, crossed = ratio[corpus, corpus], ratio[other, corpus]
                better = "fewer" if crossed < own else "more"
                page.paragraph(
                    f"On {corpus}, the tokenizer of {other} packs {crossed:.2f} bytes into a token, where its own "
                    f"packs {own:.2f}: {abs(1 - crossed / own):.0%} {better}."
                )

    if sampled := facts.get("documents"):
        page.table(
            ["text", "tokenizer of", "documents drawn at random", "bytes per token, mean", "± from one to the next"],
            sampled,
        )


def show_throughput(page: Page, facts: Facts, book: Book) -> None:
    from fledge.progress import readable_time

    def own(measured: list[Facts]) -> list[Facts]:
        return [m for m in measured if m["tokenizer"] == m["corpus"]]

    page.table(
        ["text", "one thread, MB/s", "all threads, MB/s", "825 GB, one thread", "825 GB, all threads"],
        [
            (
                one["corpus"],
                one["bytes_per_second"] / 1e6,
                many["bytes_per_second"] / 1e6,
                readable_time(one["pile_seconds"]),
                readable_time(many["pile_seconds"]),
            )
            for one, many in zip(own(facts["one"]), own(facts["all"]), strict=True)
        ],
    )
    best = min(own(facts["all"]) + own(facts["one"]), key=lambda m: m["pile_seconds"])
    page.paragraph(
        f"At the best of these speeds, The Pile (825 GB) would take {readable_time(best['pile_seconds'])} on this "
        f"machine. Each figure is the median of {REPEATS} runs over at most {readable_bytes(SPEED)}; reading the text "
        "is not counted, and a small text says less of the speed than a large one."
    )


def show_width(page: Page, facts: Facts, book: Book) -> None:
    rows = []
    for measured in facts["all"]:
        if measured["tokenizer"] == measured["corpus"]:
            size = facts["sizes"][measured["tokenizer"]]
            tokens = measured["tokens"]
            rows.append((measured["corpus"], size, f"uint{measured['width']}", tokens, 2 * tokens, 4 * tokens))
    page.table(["text", "vocabulary", "ids fit", "tokens measured", "as uint16, bytes", "as uint32, bytes"], rows)
    widest = max(facts["sizes"].values())
    fits = "every id here fits" if widest <= 65_536 else "some vocabularies here do not fit"
    page.paragraph(
        f"Sixteen bits hold the numbers 0 to 65,535, and no id is negative. The largest vocabulary has {widest:,} ids: "
        f"{fits} in uint16."
    )
