"""How well a model predicts text: nats per token, perplexity, bits per byte and per character.

Bits per byte compare models with different tokenizers: all have to account for the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fledge.bundle.fit import require_fit
from fledge.errors import FledgeError
from fledge.evaluation.losses import TokenLosses, token_losses, windows_over
from fledge.notebook import table
from fledge.tokens.store import end_token, layout_of

if TYPE_CHECKING:
    from fledge.model import Model
    from fledge.tokenizer import Roles, Tokenizer
    from fledge.tokens import TokenSplit

Documents = Literal["stream", "alone"]
LN2 = math.log(2)


@dataclass(frozen=True)
class Evaluation:
    """What was measured. Each predicted token counts once, with as much context as the windows gave it."""

    loss: float
    "Nats per token."
    tokens: int
    bits_per_byte: float | None
    bits_per_character: float | None
    bytes: int | None
    characters: int | None
    stride: int
    context_length: int
    by_position: NDArray[np.float64] = field(repr=False)
    "Mean loss of the tokens that were predicted from 1, 2, … tokens of context; NaN where there were none."
    by_document: NDArray[np.float64] = field(repr=False)
    "Mean loss of each document, NaN for one without a predicted token."
    mean_context: float = 0.0

    @property
    def perplexity(self) -> float:
        """e to the loss: among how many equally likely tokens the model hesitates."""
        return math.exp(min(self.loss, 700))

    def summary(self) -> dict[str, float]:
        """The numbers alone, by name, as a manifest or a table wants them."""
        values = {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "bits_per_character": self.bits_per_character,
            "tokens": self.tokens,
            "mean_context": self.mean_context,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        numbers = self.summary()
        shown = [f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" for value in numbers.values()]
        return table([name.replace("_", " ") for name in numbers], [shown])


def evaluate(
    model: Model,
    split: TokenSplit,
    *,
    roles: Roles | None = None,
    tokenizer: Tokenizer | None = None,
    stride: int | None = None,
    documents: Documents = "stream",
    max_tokens: int | None = None,
    positions: bool = False,
    batch_tokens: int = 16_384,
    progress: bool = False,
) -> Evaluation:
    """A split of a token store, as one stream or each document alone; windows move by `stride` (half the context).

    With the tokenizer, characters are counted too; with it or its `roles`, the first document follows a separator,
    as all others do. `max_tokens` evaluates the beginning only. Where windows overlap, few tokens have little context:
    with `positions`, `by_position` is measured again on windows that do not.
    """
    if max_tokens is not None and max_tokens < 1:
        raise FledgeError(f"max_tokens = {max_tokens} is not allowed: give at least 1.")
    if not len(split.tokens):
        raise FledgeError(
            f"The {split.name} split holds no tokens. Evaluate another one (--split), or a text (--text FILE)."
        )
    last = len(split.tokens) if max_tokens is None else min(max_tokens, len(split.tokens))
    whole = last == len(split.tokens)
    count = len(split.documents) if whole else int(np.searchsorted(split.documents, last))
    if whole:
        split.verify()
    else:
        split.document_file.check(0, count)
        split.token_file.check(0, last - 1)
    roles = tokenizer.roles if roles is None and tokenizer is not None else roles
    separator = end_token(roles) if roles is not None and split.layout == "separated" else None
    tokens, starts = np.asarray(split.tokens[:last]), np.asarray(split.documents[:count], dtype=np.int64)
    stretches = _stretches(tokens, starts, separator)
    source_bytes, characters = (split.source_bytes if whole else None), None
    if tokenizer is not None:
        require_fit(int(tokens.max()) + 1, tokenizer.vocab_size, "The split", "Give the one that made the tokens.")
        sizes, symbols = _sizes(tokenizer)
        characters = int(symbols[tokens].sum())
        source_bytes = split.source_bytes if whole else int(sizes[tokens].sum())
        firsts = tokens[stretches.unpredicted(documents)]
        source_bytes, characters = source_bytes - int(sizes[firsts].sum()), characters - int(symbols[firsts].sum())
    elif not whole:
        source_bytes = round(split.source_bytes * len(tokens) / len(split.tokens))
    return _measure(model, stretches, documents, stride, positions, source_bytes, characters, batch_tokens, progress)


def evaluate_texts(
    model: Model,
    tokenizer: Tokenizer,
    texts: Iterable[str | bytes],
    *,
    stride: int | None = None,
    documents: Documents = "stream",
    positions: bool = False,
    batch_tokens: int = 16_384,
    progress: bool = False,
) -> Evaluation:
    """Plain texts, one document each; the text of a special token in them does not become that token."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        what = "one text" if isinstance(texts, str | bytes) else f"a {type(texts).__name__}"
        raise FledgeError(f"The texts are {what}: give a list of texts, such as ['Once upon a time'].")
    require_fit(tokenizer.vocab_size, model.vocabulary_size)
    roles = tokenizer.roles
    bounded = layout_of(roles) == "bounded"
    separator = None if bounded else end_token(roles)
    parts: list[NDArray[np.integer]] = []
    starts: list[int] = []
    length = source_bytes = characters = 0
    for text in texts:
        ids = tokenizer.encode_array(text, special="text")
        before = [roles.start] if bounded else []
        after = [roles.end] if bounded else [separator] if separator is not None else []
        starts.append(length)
        parts.append(np.concatenate([np.array(before, ids.dtype), ids, np.array(after, ids.dtype)]))
        length += len(parts[-1])
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        source_bytes += len(data)
        characters += _characters(data)
    if not parts:
        raise FledgeError("There is no text to evaluate.")
    tokens = np.concatenate(parts)
    stretches = _stretches(tokens, np.array(starts), separator)
    if len(firsts := tokens[stretches.unpredicted(documents)]) and not bounded:
        sizes, symbols = _sizes(tokenizer)
        source_bytes, characters = source_bytes - int(sizes[firsts].sum()), characters - int(symbols[firsts].sum())
    return _measure(model, stretches, documents, stride, positions, source_bytes, characters, batch_tokens, progress)


@dataclass(frozen=True)
class _Stretches:
    """A stream of ids; document i lies at starts[i]..ends[i], the token it is predicted after included."""

    tokens: NDArray[np.integer]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    shift: int
    "1 where a document begins with the separator before it, which is not its own."

    def unpredicted(self, documents: Documents) -> NDArray[np.int64]:
        """Tokens of documents that nothing stands before, so that nothing predicts them: their bytes do not count."""
        if self.shift:
            return self.starts[:0]
        first = self.starts[self.starts < self.ends]
        return first if documents == "alone" else first[:1]

    def owners(self, places: NDArray[np.int64]) -> NDArray[np.intp]:
        """The document that each place belongs to."""
        return np.searchsorted(self.starts, places - self.shift, side="right") - 1


def _stretches(tokens: NDArray[np.integer], starts: NDArray[np.int64], separator: int | None) -> _Stretches:
    if separator is None:
        return _Stretches(tokens, starts, np.append(starts[1:], len(tokens)), shift=0)
    # One separator in front: now each document follows the separator of the one before it.
    tokens = np.concatenate([np.array([separator], dtype=tokens.dtype), tokens])
    return _Stretches(tokens, starts, np.append(starts[1:] + 1, len(tokens)), shift=1)


def _measure(
    model: Model,
    stretches: _Stretches,
    documents: Documents,
    stride: int | None,
    positions: bool,
    source_bytes: int | None,
    characters: int | None,
    batch_tokens: int,
    progress: bool,
) -> Evaluation:
    if documents not in get_args(Documents):
        raise FledgeError(f"documents = {documents!r} is not allowed: choose {' or '.join(get_args(Documents))}.")
    context = model.context_length
    stride = max(1, context // 2) if stride is None else stride
    require_stride(stride, context)
    if documents == "alone":
        starts, ends = stretches.starts.tolist(), stretches.ends.tolist()
    else:
        starts, ends = [0], [len(stretches.tokens)]

    def losses(stride: int) -> TokenLosses:
        windows = list(windows_over(starts, ends, context, stride))
        return token_losses(model, stretches.tokens, windows, batch_tokens, progress)

    found = losses(stride)
    placed = losses(context) if positions and stride < context else found
    total = float(found.nats.sum(dtype=np.float64))
    return Evaluation(
        loss=total / len(found.nats),
        tokens=len(found.nats),
        bits_per_byte=total / LN2 / source_bytes if source_bytes else None,
        bits_per_character=total / LN2 / characters if characters else None,
        bytes=source_bytes,
        characters=characters,
        stride=stride,
        context_length=context,
        by_position=_means(placed.contexts - 1, placed, context),
        by_document=_means(stretches.owners(found.places), found, len(stretches.starts)),
        mean_context=float(found.contexts.mean()),
    )


def require_stride(stride: Any, context: int) -> None:
    if not isinstance(stride, Integral) or not 1 <= int(stride) <= context:
        raise FledgeError(
            f"A stride of {stride!r} does not fit a context of {context}: choose a whole number from 1 to {context}."
        )


def _means(groups: NDArray[np.integer], found: TokenLosses, count: int) -> NDArray[np.float64]:
    sums = np.bincount(groups, weights=found.nats, minlength=count)
    counts = np.bincount(groups, minlength=count)
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = sums / counts
    return means


def _sizes(tokenizer: Tokenizer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes and characters that each id stands for; special tokens stand for none."""
    sizes = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    symbols = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    special = set(tokenizer.special_tokens.values())
    for token, data in tokenizer.vocab.items():
        if token not in special:
            sizes[token] = len(data)
            symbols[token] = _characters(data)
    return sizes, symbols


def _characters(data: bytes) -> int:
    """Characters of UTF-8 text: bytes that do not continue one. It adds up over pieces, wherever they were cut."""
    return int(((np.frombuffer(data, np.uint8) & 0xC0) != 0x80).sum())
