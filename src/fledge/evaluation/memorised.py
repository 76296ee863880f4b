"""What a model says word for word as its training text does, beside what held-out human text repeats of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fledge.errors import FledgeError
from fledge.tokens.index import COPIED, PassageIndex, covered
from fledge.tokens.store import TokenStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fledge.config import SamplingConfig
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer

SAMPLES, SAMPLE_TOKENS = 16, 128
PROMPTS, PROMPT_TOKENS = 64, 32  # training passages that are to be continued, and how long each half is
LENGTHS = (5, 10, COPIED, 50, 100)  # tokens by which copied text is told
HELD_OUT = 100_000  # tokens of human text, at most
BY_HEART, MORE_THAN_HUMAN = 0.2, 0.2
"From which share of passages continued word for word, or of copied tokens above that of human text, it is by heart."


@dataclass(frozen=True)
class Memorised:
    """How much of what a model writes is its training text."""

    generated: float
    "The share of generated tokens inside a stretch of 20 tokens or more that stands in the training text."
    held_out: float | None
    "The same share of held-out text, which people wrote; None where nothing is held out."
    extracted: float
    "The share of training passages that the model continues word for word, 32 tokens after 32, greedily."
    continued: float
    "The share of copied tokens, as `generated` counts them, in what the model writes after those passages."
    longest: int
    "Tokens of the longest generated stretch that stands in the training text."
    generated_by_length: dict[int, float] = field(default_factory=dict)
    "The share of generated tokens by the least length of the stretch; empty where none were generated."
    held_out_by_length: dict[int, float] = field(default_factory=dict)

    @property
    def by_heart(self) -> bool:
        """Whether the model has learned its text by heart."""
        return self.extracted >= BY_HEART or self.generated >= (self.held_out or 0.0) + MORE_THAN_HUMAN


def training_store(bundle: Path, config: Any) -> TokenStore:
    """The tokens that a bundle was trained on: those its settings name, or those of its run."""
    named = config.tokens.store
    places = [Path(named)] if named else [folder / "tokens" for folder in (bundle, *bundle.absolute().parents[:2])]
    for place in places:
        if (place / "store.json").is_file():
            return TokenStore.open(place)
    raise FledgeError(
        f"The tokens that {bundle} was trained on are not here (looked for {places[-1]}). Name the store with --store."
    )


def continued(model: Model, ids_BT: torch.Tensor, count: int) -> torch.Tensor:
    """The likeliest tokens after each row, one after the other."""
    device = next(model.parameters()).device
    ids_BT, length = ids_BT.to(device), ids_BT.shape[1]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for _ in range(count):
                hidden_BTD, _ = model.hidden(ids_BT[:, -model.context_length :])
                ids_BT = torch.cat([ids_BT, model.head(hidden_BTD[:, -1]).argmax(-1, keepdim=True)], 1)
    finally:
        model.train(was_training)
    return ids_BT[:, length:].cpu()


def without_leaks(
    store: TokenStore, by_document: NDArray[np.float64], part: str = "validation"
) -> tuple[float, float | None]:
    """The share of evaluated held-out documents of which half or more stands in the training text, in stretches of 20
    tokens, and the mean loss of the tokens of all others; None where none is left.
    """
    split = store.split(part)
    starts = np.asarray(split.documents, np.int64)[: len(by_document)]
    ends = np.append(starts[1:], len(split.tokens) if len(by_document) == len(split.documents) else starts[-1])
    sizes = np.maximum(ends - starts, 0)  # the last of a part was not evaluated to its end, and counts nothing
    copied = PassageIndex.of(store).copied(split.tokens[: int(ends[-1])], threads=os.cpu_count() or 1)
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(copied)))
    leaked = (2 * (before[ends] - before[starts]) >= sizes) & (sizes > 0)
    rest = ~leaked & (sizes > 0) & ~np.isnan(by_document)
    loss = float(np.average(by_document[rest], weights=sizes[rest])) if rest.any() else None
    return float(leaked.sum() / max(1, (sizes > 0).sum())), loss


def memorised(
    model: Model,
    tokenizer: Tokenizer,
    store: TokenStore,
    settings: SamplingConfig,
    prompts: Sequence[str] = (),
    samples: int = SAMPLES,
) -> Memorised:
    """Sample from the model, continue training passages, and look both up in the training text."""
    from fledge.generation import generate

    index = PassageIndex.of(store)
    texts = list(prompts) or [settings.prompt]
    values = {"samples": -(-samples // len(texts)), "max_tokens": SAMPLE_TOKENS, "stop": ()}
    generations = generate(model, tokenizer, texts, settings.model_copy(update=values))
    lengths = [index.longest(one.ids)[0] for one in generations if one.ids]
    tokens, held_out = store.split("train").tokens, store.split("validation").tokens[:HELD_OUT]
    human = [index.longest(held_out, os.cpu_count() or 1)[0]] if len(held_out) >= COPIED else []
    of_model, of_people = shares(lengths), shares(human)
    half = max(1, min(PROMPT_TOKENS, model.context_length // 2))
    extracted = after_passages = 0.0
    if len(tokens) >= 2 * half:
        count = min(PROMPTS, len(tokens) - 2 * half + 1)
        starts = np.linspace(0, len(tokens) - 2 * half, count).astype(np.int64)
        rows = torch.from_numpy(np.stack([tokens[start : start + 2 * half] for start in starts]).astype(np.int64))
        written = continued(model, rows[:, :half], half)
        extracted = float((written == rows[:, half:]).all(1).float().mean())
        after_passages = shares([index.longest(row)[0] for row in written.numpy()])[COPIED]
    return Memorised(
        generated=of_model.get(COPIED, 0.0),
        held_out=of_people.get(COPIED),
        extracted=extracted,
        continued=after_passages,
        longest=max((int(one.max()) for one in lengths), default=0),
        generated_by_length=of_model,
        held_out_by_length=of_people,
    )


def shares(texts: Sequence[NDArray[np.int64]]) -> dict[int, float]:
    """The share of copied tokens by the least length of a stretch, of texts by their longest matches."""
    size = sum(map(len, texts))
    return {least: float(sum(int(covered(one, least).sum()) for one in texts) / size) for least in LENGTHS if size}
