"""Training of byte-pair encoding: count the pre-tokens of the text on all cores, then merge the best pair, and again.

The best pair is the one that occurs most often; of equals, the lexicographically greater pair of byte strings. The
result depends on neither the threads nor the order in which the text is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fledge import memory
from fledge.errors import FledgeError, note
from fledge.files import COMPRESSED, documents_format, readable_bytes, to_bytes
from fledge.progress import Bar, progress_bar
from fledge.tokenizer.bpe import BPETokenizer
from fledge.tokenizer.checks import MOST_IDS, check_stretch, check_whole, thread_count
from fledge.tokenizer.patterns import PATTERNS, check_pattern, count_with_pattern
from fledge.tokenizer.sources import (
    GATHER,
    as_paths,
    corpus_of,
    document_bytes,
    documents_of,
    texts_of_source,
    unpacked,
)
from fledge.tokenizer.specials import checked_specials

if TYPE_CHECKING:
    from fledge._core import PretokenCounter


class Phase(NamedTuple):
    """One phase of training: what was done, how long it took, and the most memory the process held during it."""

    name: str
    seconds: float
    peak_memory: int


class TrainingProfile(NamedTuple):
    """Where the time and memory of a training went; `str()` is a table."""

    phases: tuple[Phase, ...]
    source_bytes: int
    distinct_pretokens: int
    merges: int

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    def __str__(self) -> str:
        lines = [f"{'phase':<16}{'seconds':>10}{'share':>8}{'peak memory':>14}"]
        for phase in self.phases:
            share = phase.seconds / max(self.seconds, 1e-9)
            lines.append(f"{phase.name:<16}{phase.seconds:>10.3f}{share:>8.0%}{readable_bytes(phase.peak_memory):>14}")
        total = max((phase.peak_memory for phase in self.phases), default=0)
        lines.append(f"{'all':<16}{self.seconds:>10.3f}{'100%':>8}{readable_bytes(total):>14}")
        lines.append(
            f"{readable_bytes(self.source_bytes)} of text, {self.distinct_pretokens:,} distinct pre-tokens, "
            f"{self.merges:,} merges"
        )
        return "\n".join(lines)


def train_bpe(
    source: Any,
    vocab_size: int | None,
    special_tokens: Iterable[str] = (),
    *,
    pattern: str = "gpt2",
    threads: int | None = None,
    min_frequency: int = 1,
    progress: bool = False,
) -> BPETokenizer:
    """Learn a byte-level BPE vocabulary of `vocab_size` ids: special tokens, the 256 bytes, then merges.

    `source` is a path, several paths (compressed ones, JSONL and Parquet too), a `Corpus`, or an iterable of texts,
    each a document of its own. Strings in a list are paths if one of them is a file, or if all look like one. With
    `vocab_size=None` merging ends when no pair occurs twice; a pair seen less than `min_frequency` times is never
    merged. Where the time and memory went is kept as `training_profile`.

    >>> tokenizer = train_bpe(["low lower lowest"], 260, ["<|endoftext|>"])
    >>> tokenizer.merges
    [(b'o', b'w'), (b'l', b'ow'), (b'low', b'e')]
    """
    from fledge._core import PretokenCounter

    specials = checked_specials(special_tokens)
    if len(set(specials)) < len(specials):
        raise FledgeError(f"special_tokens = {specials!r} must be different.")
    first_merge = len(specials) + 256
    if vocab_size is not None:
        check_whole("vocab_size", vocab_size, 0, MOST_IDS)
        if vocab_size < first_merge:
            raise FledgeError(
                f"a vocabulary of {vocab_size} is too small: {len(specials)} special token{'s' * (len(specials) != 1)} "
                f"and the 256 bytes need {first_merge}."
            )
    check_whole("min_frequency", min_frequency)
    check_pattern(pattern)
    wanted = (MOST_IDS if vocab_size is None else vocab_size) - first_merge
    least = max(2, min_frequency) if vocab_size is None else min_frequency
    phases: list[Phase] = []
    native = pattern if pattern in PATTERNS else "gpt2"
    counter = PretokenCounter(native, [to_bytes(text) for text in specials], thread_count(threads))
    with _phase(phases, "scan and count"):
        paths = as_paths(source)
        _count(counter, source, paths, pattern, specials, progress)
        counter.finish()
    if counter.source_bytes == 0:
        named = "the source" if paths is None else ", ".join(map(str, paths))
        raise FledgeError(f"there is no text to train on: {named} is empty. Give a file, folder or corpus with text.")
    with progress_bar("merging", None if vocab_size is None else wanted, "merges", 1, shown=progress) as bar:
        merges = _merge(counter, wanted, least, phases, bar)
    with _phase(phases, "vocabulary"):
        tokenizer = _build(merges, specials, pattern)
    if vocab_size is not None and len(merges) < wanted:
        reason = "no pair is left to merge" if least == 1 else f"no pair occurs {least} times any more"
        note(
            f"training ended at {first_merge + len(merges):,} ids instead of {vocab_size:,}: {reason}. "
            "Use more text or a smaller vocabulary."
        )
    tokenizer.training_profile = TrainingProfile(tuple(phases), counter.source_bytes, counter.distinct, len(merges))
    return tokenizer


def _build(merges: Sequence[tuple[int, int, int, int]], specials: Sequence[str], pattern: str) -> BPETokenizer:
    tokens = [bytes([byte]) for byte in range(256)]
    pairs = []
    for left, right, _, _ in merges:
        pairs.append((tokens[left], tokens[right]))
        tokens.append(tokens[left] + tokens[right])
    vocab = dict(enumerate([*map(to_bytes, specials), *tokens]))
    numbered = {text: token for token, text in enumerate(specials)}
    return BPETokenizer(vocab, pairs, numbered, pattern=pattern, lazy=True)


# ---- counting ----------------------------------------------------------------------------------------------------


def _count(
    counter: PretokenCounter,
    source: Any,
    paths: Sequence[Path] | None,
    pattern: str,
    specials: Sequence[str],
    progress: bool,
) -> None:
    if pattern not in PATTERNS:
        _count_with_pattern(counter, texts_of_source(source, paths), pattern, specials)
    elif paths is not None:
        total = sum(path.stat().st_size for path in paths)
        with progress_bar("counting", total, shown=progress) as bar:
            for path in paths:
                if documents_format(path.name):
                    _count_texts(counter, corpus_of(path).blocks())
                elif path.suffix.lower() in COMPRESSED:
                    _count_blocks(counter, unpacked(path))
                else:
                    counter.add_file(os.fsencode(path))
                bar.advance(path.stat().st_size)
    else:
        _count_texts(counter, texts_of_source(source, None))


def _count_texts(counter: PretokenCounter, texts: Iterable[Any]) -> None:
    """Texts are gathered, so that native code is called once for thousands of short ones."""
    import numpy as np

    parts: list[bytes] = []
    size = 0

    def hand_over() -> None:
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.uint64)
        counter.add_spans(b"".join(parts), offsets)

    for text in texts:
        if hasattr(text, "buffer") and hasattr(text, "offsets"):  # a block of a corpus
            counter.add_spans(text.buffer, np.ascontiguousarray(text.offsets, dtype=np.uint64))
            continue
        data = document_bytes(text)
        parts.append(data)
        size += len(data)
        if size >= GATHER:
            hand_over()
            parts, size = [], 0
    hand_over()


def _count_blocks(counter: PretokenCounter, blocks: Iterable[bytes]) -> None:
    """One long text in blocks: each is counted up to a place where a cut changes nothing, the rest goes to the next."""
    held = bytearray()
    wanted = 0
    for block in blocks:
        held += block
        if len(held) < wanted:
            continue
        end = counter.last_cut(held)
        check_stretch(0 if end else len(held))
        wanted = 0 if end else 2 * len(held)  # a long pre-token: look again when there is twice as much
        counter.add_text(memoryview(held)[:end])
        del held[:end]
    counter.add_text(held)


def _count_with_pattern(counter: PretokenCounter, texts: Iterable[Any], pattern: str, specials: Sequence[str]) -> None:
    known = [to_bytes(text) for text in specials]
    for text in texts:
        documents = documents_of(text) if hasattr(text, "offsets") else [document_bytes(text)]
        for document in documents:
            counter.add_words(count_with_pattern(pattern, document, known), len(document))


# ---- time and memory ---------------------------------------------------------------------------------------------


@contextmanager
def _phase(phases: list[Phase], name: str) -> Iterator[None]:
    memory.forget_peak()
    started = time.perf_counter()
    yield
    phases.append(Phase(name, time.perf_counter() - started, memory.peak_memory()))


def _merge(counter: PretokenCounter, wanted: int, least: int, phases: list[Phase], bar: Bar) -> list[Any]:
    """Native code counts the pairs, says so with 0 merges, and merges."""
    with ExitStack() as phase:
        phase.enter_context(_phase(phases, "count pairs"))

        def advance(merges: int) -> None:
            if not merges:
                phase.close()
                phase.enter_context(_phase(phases, "merge"))
            bar.advance(merges - bar.done)

        return counter.train(wanted, least, advance)
