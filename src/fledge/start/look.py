"""What a text shows before anything is learned: its size, its documents, and what counting its tokens reaches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fledge.corpus import Corpus
from fledge.corpus.native import native
from fledge.corpus.passages import PASSAGE, find_passages
from fledge.corpus.text import JoinedText
from fledge.errors import FledgeError
from fledge.files import readable_bytes

if TYPE_CHECKING:
    from fledge.corpus.corpus import Split
    from fledge.tokenizer import Tokenizer

LEAST_BYTES = 20_000
LOOKED_AT, SAMPLE = 64 << 20, 4 << 20
"Bytes that are looked at, and that are encoded to see how long a token is and what counting reaches."
HELD_OUT_SAMPLE = 512 << 10
FEW_HELD_OUT, TOO_FEW_HELD_OUT = 5_000, 1_000  # bytes
REPEATED = 0.5  # of a held-out part in passages of the training text: figures on it say nothing of other text
TOKENIZED_PER_SECOND = 20e6  # bytes; slow enough to be true of any machine


@dataclass(frozen=True)
class Look:
    documents: int
    bytes: int
    characters: int
    "Different ones, in the first megabyte."


def look_at(corpus: Corpus) -> Look:
    """Size, documents and characters; of a large text the beginning, and the rest reckoned from it."""
    documents = size = 0
    characters: set[str] = set()
    share = 1.0
    for batch in corpus.without_groups().batches():
        text = batch.text.joined()
        if not size:
            characters = set(bytes(text.buffer[: 1 << 20]).decode("utf-8", "replace"))
        documents += len(text)
        size += text.size
        if size >= LOOKED_AT and corpus.size:
            share = batch.consumed / corpus.size
            break
    documents = corpus.few_documents if corpus.contiguous else round(documents / share)
    return Look(documents, round(size / share), len(characters))


def require_enough(look: Look, name: str, seconds: float) -> None:
    """Refuse a text too small to learn from, and one too large for the time."""
    if look.bytes < LEAST_BYTES:
        raise FledgeError(
            f"{name} holds {look.bytes:,} bytes of text: too little to learn a language from. Give at least "
            f"{LEAST_BYTES:,}, better a hundred times as much."
        )
    if (needed := 2 * look.bytes / TOKENIZED_PER_SECOND) > seconds / 3:
        raise FledgeError(
            f"{name} holds {readable_bytes(look.bytes)}: to read and tokenize it may take {needed:,.0f} of "
            f"the {seconds:,.0f} seconds. Give a longer --time, or fewer texts."
        )


def counted(look: Look) -> str:
    """
    >>> counted(Look(1, 5000, 60)), counted(Look(1200, 5000, 60))
    ('1 document', '1,200 documents')
    """
    return f"{look.documents:,} document{'s' * (look.documents != 1)}"


def bytes_per_token(corpus: Corpus, tokenizer: Tokenizer) -> float:
    from fledge.tokenizer.compare import limited

    size = tokens = 0
    for block in limited(corpus, SAMPLE):
        ids, _ = tokenizer.encode_spans(block.buffer, block.offsets, corpus.special)
        size += len(block.buffer)
        tokens += len(ids) + len(block.offsets) - 1  # each document is followed by its end
    return size / max(1, tokens)


class Counts(NamedTuple):
    """What counting reaches on a held-out part."""

    bytes: int
    "Of the part, or of the beginning of it that was used."
    bits: dict[str, float]
    "Bits per byte of a `bigram` and a `trigram` model of its tokens; nothing where the text is too short to count."


def count_tokens(corpus: Corpus, tokenizer: Tokenizer, part: Split) -> Counts:
    """Pairs and triples of tokens, counted in the beginning of the training text."""
    from fledge.evaluation.ngram import baselines

    training, held_out = beginning(corpus, "train", SAMPLE), beginning(corpus, part, HELD_OUT_SAMPLE)
    train, ids = (tokenizer.encode_array(text, special="text") for text in (training, held_out))
    if min(len(train), len(ids)) < 3:
        return Counts(len(held_out), {})
    found = baselines(train, ids, tokenizer.vocab_size)
    scale = found.tokens / (len(held_out) * math.log(2))
    return Counts(len(held_out), {name: round(getattr(found, name) * scale, 3) for name in ("bigram", "trigram")})


def beginning(corpus: Corpus, part: Split, most: int) -> bytes:
    """The first bytes of a part."""
    text = bytearray()
    for document in corpus.documents(part):
        text += document[: most - len(text)]
        if len(text) >= most:
            break
    return bytes(text)


def held_out_remarks(corpus: Corpus, validation: int, final: int) -> Iterator[str]:
    """Why figures on the held-out parts, of so many bytes, may mislead."""
    few = min(validation, final)
    if few < FEW_HELD_OUT:
        yield f"{validation:,} bytes choose the model and {final:,} give the final figure: " + (
            "on so little text it may be off by a tenth"
            if few >= TOO_FEW_HELD_OUT
            else "too few to tell how good it is. Give more text, or raise corpus.validation_fraction or "
            "corpus.test_fraction"
        )
    if native("find_stretches") is not None:
        training, held_out = beginning(corpus, "train", SAMPLE), beginning(corpus, "validation", HELD_OUT_SAMPLE)
        found = find_passages([JoinedText.of([training])], [JoinedText.of([held_out])])
        if found.size and (share := found.covered(PASSAGE) / found.size) >= REPEATED:
            yield (
                f"{share:.0%} of the held-out text stands in the training text word for word: figures on it say how "
                "well the text repeats itself. Remove repeated text, or hold out another one (corpus.validation_source)"
            )


def name_of(text: str) -> str:
    """A run's name from a path.

    >>> name_of("books/My Diary.txt"), name_of("akjv")
    ('my-diary', 'akjv')
    """
    stem = Path(text.rstrip("/")).name.split(".")[0].lower()
    return re.sub(r"[^a-z0-9_-]+", "-", stem).strip("-") or "text"
