"""The vocabulary that suits a text, by counting: the one whose tokens a 5-gram model predicts best on held-out text.

Which size is best depends on the text more than on its length. Trials of small networks mislead: in their first passes
larger vocabularies are ahead in every text. A 5-gram model sees about as far at every size, and is counted in a part of
a second; docs/results/little-text.md has the runs that it was picked by.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fledge.config import TokenizerConfig, parse
from fledge.corpus import Corpus
from fledge.start.look import FEW_HELD_OUT, HELD_OUT_SAMPLE, SAMPLE, Look, beginning

if TYPE_CHECKING:
    from fledge.tokenizer import Tokenizer

LEAST_IDS, MOST_IDS = 1024, 4096
"Fewer were never better, and the head of more costs a CPU too much."
FROM_BYTES, TO_BYTES = 700_000, 2 * SAMPLE
"Shorter texts were not measured, and of longer ones the sample that is counted says too little."
FROM_TOKENS = 2e6
"Seen by a model in training: before, a larger vocabulary is ahead, for training begins from counts of its pairs."
USUAL_BYTES = 3.0
"Of a token, before there is a tokenizer."


def worth_counting(look: Look, seen: float) -> bool:
    """Whether what is usual for the length of a text may not be best for a small model that sees so many tokens."""
    return FROM_BYTES <= look.bytes <= TO_BYTES and seen >= FROM_TOKENS


def count_vocabularies(corpus: Corpus, usual: int) -> tuple[int, Tokenizer, str] | None:
    """The size that suits a text, its tokenizer, and why; None where too little is held out.

    Nothing but the text decides, and not its test part.
    """
    from fledge.tokenizer import train_tokenizer

    training, held_out = beginning(corpus, "train", SAMPLE), beginning(corpus, "validation", HELD_OUT_SAMPLE)
    if len(held_out) < FEW_HELD_OUT:
        return None
    sizes = [size for size in (usual // 2, usual, 2 * usual) if LEAST_IDS <= size <= MOST_IDS]
    found: dict[int, tuple[float, Tokenizer]] = {}
    for size in sizes:
        config = parse(TokenizerConfig, {"kind": "bpe", "vocabulary_size": size})
        tokenizer = train_tokenizer(config, corpus, progress=True)
        found[size] = (fivegram_bits(training, held_out, tokenizer), tokenizer)
    best = min(sizes, key=lambda size: found[size][0])
    figures = ", ".join(f"{found[size][0]:.3f} with {size:,}" for size in sizes)
    why = f"measured on held-out text, a 5-gram model of its tokens reaches {figures} tokens (bits per byte)"
    return best, found[best][1], why


def fivegram_bits(training: bytes, held_out: bytes, tokenizer: Tokenizer) -> float:
    """Bits per byte of a 5-gram model of the tokens."""
    from fledge.evaluation.ngram import KneserNey

    train, ids = (tokenizer.encode_array(text, special="text") for text in (training, held_out))
    nats = KneserNey(train, tokenizer.vocab_size, 5).loss(ids)
    return nats * (len(ids) - 4) / (len(held_out) * math.log(2))
