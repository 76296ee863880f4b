"""What `fledge tokenizer` prints: rich tables out of the facts that the library gives."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fledge.files import readable_bytes
from fledge.progress import readable_time
from fledge.tokenizer.base import Tokenizer
from fledge.tokenizer.compare import Measurement, Sample
from fledge.tokenizer.display import visible_bytes
from fledge.tokenizer.inspect import KINDS, Contrast, Token, Usage, VocabularyFacts, longest_tokens
from fledge.tokenizer.train import TrainingProfile
from fledge.tokenizer.unicode import CATEGORIES, CodePoint, Flaw, StringSizes

SHOWN = 80  # characters of a token


def table(*headings: str, title: str | None = None) -> Table:
    """Numbers are right-aligned: a heading that starts with `>` says so."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for heading in headings:
        right = heading.startswith(">")
        made.add_column(heading.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return made


def quoted(token: Token) -> Text:
    """A token between quotation marks, so that its spaces can be seen; of a long one the beginning."""
    text = visible_bytes(token.data[: 4 * SHOWN]).replace("\n", "")
    return Text(f"“{text}”" if len(text) <= SHOWN else f"“{text[:SHOWN]}…")


def profile_table(profile: TrainingProfile) -> Table:
    """Where the time and memory of training went."""
    made = table("phase", ">time", ">share", ">peak memory", title="Training")
    for phase in profile.phases:
        share = phase.seconds / max(profile.seconds, 1e-9)
        made.add_row(phase.name, f"{phase.seconds:.3f} s", f"{share:.0%}", readable_bytes(phase.peak_memory))
    peak = max((phase.peak_memory for phase in profile.phases), default=0)
    made.add_section()
    made.add_row("all", f"{profile.seconds:.3f} s", "100%", readable_bytes(peak))
    return made


def longest_table(tokenizer: Tokenizer, count: int) -> Table:
    made = table(">id", ">bytes", "token", title="Longest tokens")
    for token in longest_tokens(tokenizer, count):
        made.add_row(str(token.token), str(len(token.data)), quoted(token))
    return made


def print_facts(console: Console, facts: VocabularyFacts, used: Usage | None) -> None:
    """A vocabulary's facts, and what a text uses of it."""
    made = table("fact", ">value", title="Vocabulary")
    made.add_row("kind", facts.kind)
    made.add_row("ids", f"{facts.ids:,}")
    if facts.tokens < facts.ids:
        made.add_row("ids that stand for nothing", f"{facts.ids - facts.tokens:,}")
    for kind, count in facts.kinds.items():
        made.add_row(KINDS[kind], f"{count:,}")
    made.add_row("mean bytes of a token", f"{facts.mean_bytes:.2f}")
    made.add_row("bits of an id on disk", str(facts.width))
    for role, token in facts.roles.items():
        if token is not None:
            made.add_row(f"id of {role}", str(token))
    console.print(made)
    if facts.special_tokens:
        special = table(">id", "text", title="Special tokens")
        for text, token in sorted(facts.special_tokens.items(), key=lambda item: item[1]):
            special.add_row(str(token), Text(text))
        console.print(special)
    longest = table(">id", ">bytes", "token", title="Longest tokens")
    for entry in facts.longest:
        longest.add_row(str(entry.token), str(len(entry.data)), quoted(entry))
    console.print(longest)
    if used is not None:
        _print_usage(console, facts, used)


def _print_usage(console: Console, facts: VocabularyFacts, used: Usage) -> None:
    made = table("fact", ">value", title="On this text")
    made.add_row("bytes", f"{used.source_bytes:,}")
    made.add_row("tokens", f"{used.tokens:,}")
    made.add_row("bytes per token", f"{used.bytes_per_token:.3f}")
    made.add_row("ids used", f"{used.used:,} ({used.used / max(facts.tokens, 1):.1%})")
    made.add_row("ids never used", f"{len(used.unused):,}")
    made.add_row("most frequent ids that make up half of it", f"{used.half:,}")
    console.print(made)
    frequent = table(">id", ">times", "token", title="Most frequent")
    for token, count in used.frequent:
        frequent.add_row(str(token.token), f"{count:,}", quoted(token))
    console.print(frequent)
    pieces = [token for token in used.unused if len(token.data) > 1]
    if pieces:
        console.print("Never used:", Text(" ").join(quoted(token) for token in pieces[-20:]))


def print_comparison(console: Console, measured: Sequence[Measurement]) -> None:
    """The matrix of compression, and below it speed and width."""
    tokenizers = list(dict.fromkeys(one.tokenizer for one in measured))
    by_place = {(one.corpus, one.tokenizer): one for one in measured}
    matrix = table("corpus", ">bytes", *(f">{escape(name)}" for name in tokenizers), title="Bytes per token")
    for corpus in dict.fromkeys(one.corpus for one in measured):
        row = [by_place[corpus, name] for name in tokenizers]
        best = max(one.bytes_per_token for one in row)
        cells = [
            Text(f"{one.bytes_per_token:.3f}", style="bold green" if one.bytes_per_token == best else "") for one in row
        ]
        matrix.add_row(Text(corpus), readable_bytes(row[0].source_bytes), *cells)
    console.print(matrix)
    speed = table(
        "tokenizer", ">MB/s", ">time for 825 GB", ">bits per id", ">825 GB as ids", title="Speed on all of it"
    )
    for name in tokenizers:
        mine = [one for one in measured if one.tokenizer == name]
        whole = Measurement(
            name,
            "all",
            sum(one.source_bytes for one in mine),
            sum(one.tokens for one in mine),
            sum(one.seconds for one in mine),
            mine[0].width,
        )
        speed.add_row(
            Text(name),
            f"{whole.bytes_per_second / 1e6:,.1f}",
            readable_time(whole.pile_seconds),
            str(whole.width),
            readable_bytes(whole.pile_bytes),
        )
    console.print(speed)


def sample_table(samples: Sequence[Sample]) -> Table:
    """Documents one by one: how much their compression differs."""
    made = table(
        "corpus", "tokenizer", ">documents", ">mean", ">± from one to the next", ">least", ">most",
        title="Bytes per token of documents drawn at random",
    )  # fmt: skip
    for one in samples:
        ratios = one.ratios
        values = (one.mean, one.deviation, min(ratios), max(ratios))
        made.add_row(Text(one.corpus), Text(one.tokenizer), str(len(ratios)), *(f"{value:.3f}" for value in values))
    return made


def print_contrast(console: Console, names: Sequence[str], found: Contrast, limit: int) -> None:
    """What two vocabularies share, and the first tokens that each has alone."""
    console.print(f"{found.shared:,} tokens are in both.", highlight=False)
    for name, side in zip(names, (found.only_first, found.only_second), strict=True):
        shown = f", the first {limit}" if len(side) > limit else ""
        console.print(Text(f"Only in {name}: {len(side):,}{shown}", style="bold"))
        console.print(Text(" ").join(quoted(token) for token in side[:limit]))


def print_code_points(console: Console, points: Sequence[CodePoint], facts: StringSizes) -> None:
    """Each character, and the sizes of the whole."""
    made = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    categories = [f"{point.category} {CATEGORIES[point.category]}" for point in points]
    longest_word = max(len(word) for text in ("category", *categories) for word in text.split())
    # Bytes stand in one line; the name takes the room that is left, at 80 columns still enough for its words.
    made.add_column("")
    made.add_column("code point", width=8)
    made.add_column("name, and why it is not seen", overflow="fold")
    made.add_column("category", width=longest_word if console.width < 100 else None)
    for form in ("UTF-8", "UTF-16", "UTF-32"):
        made.add_column(form, no_wrap=True)
    for point, category in zip(points, categories, strict=True):
        made.add_row(
            "" if point.invisible else Text(point.character),
            f"U+{point.code:04X}",
            f"{point.name} ({point.invisible})" if point.invisible else point.name,
            category,
            spaced(point.utf8),
            spaced(point.utf16),
            spaced(point.utf32),
        )
    console.print(made)
    form = "in composed form (NFC)" if facts.composed else "not in composed form (NFC)"
    console.print(
        f"{facts.code_points:,} code points; {facts.utf8_bytes:,} bytes in UTF-8, {facts.utf16_bytes:,} in UTF-16, "
        f"{facts.utf32_bytes:,} in UTF-32; {facts.invisible:,} not seen; {form}.",
        highlight=False,
    )


def spaced(data: bytes | None) -> str:
    return "none" if data is None else data.hex(" ").upper()


def print_flaws(console: Console, found: Sequence[Flaw], more: bool) -> None:
    """Where bytes are not UTF-8, and why."""
    made = table(">byte", "bytes", "fault", "reason", title="Not UTF-8")
    for flaw in found:
        made.add_row(f"{flaw.start:,}", spaced(flaw.data), flaw.fault, flaw.reason)
    console.print(made)
    if more:
        console.print("There are more; --limit shows them.")
