"""How good a model is, on the page of its run: n-gram baselines and compressors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fledge.files import read_json, readable_bytes, write_json
from fledge.reports.page import Page
from fledge.reports.reference import MEANING, REFERENCE

if TYPE_CHECKING:
    from fledge.evaluation import Evaluation
    from fledge.run import Run

BASELINES = "baselines.json"
FINAL = {
    "validation": "text that it has not seen",
    "test": "the test part, which no checkpoint or setting was chosen by",
}  # how the part that a final figure is measured on is named


def run_baselines(run: Run, most_tokens: int | None = None) -> dict[str, float]:
    """Nats per token of the n-gram models on this run's test tokens, or validation tokens, computed once and kept.

    With `most_tokens`, they are held against so many of them, and counted on a hundred times as many at most.
    """
    from fledge.evaluation import baselines

    kept = run.folder / BASELINES
    if not kept.is_file():
        store = run.tokens
        train, held_out = (store.split(name).verify().tokens for name in ("train", store.final))
        counted = None if most_tokens is None else 100 * most_tokens
        found = baselines(train[:counted], held_out[:most_tokens], run.tokenizer.vocab_size)
        write_json(kept, {"unigram": found.unigram, "bigram": found.bigram, "trigram": found.trigram})
    return {str(name): float(value) for name, value in read_json(kept).items()}


def add_meaning(page: Page, evaluation: Evaluation) -> None:
    """The measures in plain words, for somebody who meets them for the first time."""
    page.heading("What the numbers mean")
    if bits := evaluation.bits_per_byte:
        page.paragraph(
            "Bits per byte measure how well the model predicts text that it has not seen. A byte is a letter of plain "
            "English. Guessing blindly takes 8 bits for each; a model that always knew what comes next would take 0. "
            f"This one takes {bits:.2f}: with its help, 1,000 bytes of such text could be stored in {125 * bits:,.0f}."
        )
    page.paragraph(
        "The loss in nats per token is the same measure for each token (a piece of text, often a word), with another "
        "logarithm. Perplexity is the number of tokens between which the model hesitates, on average. Lower is better "
        "for all of them. An n-gram model only counts: a unigram how often each token occurs, a bigram which token "
        "follows which, a trigram which follows each pair. Kneser–Ney is the usual way to fill the gaps in such "
        "counts. A trained model should beat them all."
    )


def add_forecast(page: Page, forecast: Any, evaluation: Evaluation) -> None:
    """What fledge start expected of the model before it was trained."""
    if said := forecast_verdict(forecast, evaluation.bits_per_byte):
        page.paragraph(said)


def add_answer(
    page: Page, run: Run, evaluation: Evaluation, baselines: dict[str, float], reference: float | None = None
) -> None:
    """The model beside n-gram baselines and, where its loss is known, the fixed reference recipe."""
    held_out = run.tokens.split(run.tokens.final)
    bytes_per_token = held_out.source_bytes / len(held_out.tokens)
    if evaluation.bytes:  # of what was evaluated, which may be a part
        bytes_per_token = evaluation.bytes / evaluation.tokens
    rows: list[tuple[str, float]] = [
        (f"{name} (Kneser–Ney)" if name != "unigram" else name, loss) for name, loss in baselines.items()
    ]
    rows += [(f"the {REFERENCE} recipe", reference)] if reference is not None else []
    rows = sorted([*rows, ("this model", evaluation.loss)], key=lambda row: -row[1])
    page.table(
        ["predicting the held-out text with", "nats per token", "perplexity", "bits per byte"],
        [(name, loss, math.exp(loss), loss / math.log(2) / bytes_per_token) for name, loss in rows],
        strong=[name for name, _ in rows].index("this model"),
    )
    best = min(baselines, key=lambda name: baselines[name])
    beaten = [name for name, loss in baselines.items() if evaluation.loss < loss]
    if best in beaten:
        margin = baselines[best] - evaluation.loss
        verdict = f"The model beats every n-gram baseline on held-out text: the {best} by {margin:.2f} nats."
    elif beaten:
        verdict = (
            f"The model beats the {' and the '.join(beaten)}, and not yet the {best}: train longer"
            f"{' (fledge train akjv)' if run.config.name == 'akjv-demo' else ''}."
        )
    else:
        verdict = "The model is no better than counting tokens: it has not learned yet. Train longer."
    page.paragraph(
        f"{verdict} All rows are measured on the same {evaluation.tokens:,} tokens of {FINAL[held_out.name]}. "
        "Neither the model nor the counts have seen them; the model saw "
        f"{evaluation.mean_context:.0f} tokens of context on average.{'' if reference is None else f' {MEANING}'}"
    )


def add_compression(page: Page, run: Run, evaluation: Evaluation) -> None:
    """What programs that people know need for the same held-out text after the same training text."""
    from fledge.evaluation.compression import HELD_OUT, TRAINING, compression

    texts = []
    for name, most in (("train", TRAINING), (run.tokens.final, HELD_OUT)):
        split = run.tokens.split(name)
        count = int(1.2 * most * len(split.tokens) / max(1, split.source_bytes)) + 1
        part = split.tokens[-count:] if name == "train" else split.tokens[:count]
        texts.append(run.tokenizer.decode_bytes(part))
    found = compression(*texts)
    if found is None:
        return
    rows = [*found.bits.items(), *([("this model", evaluation.bits_per_byte)] if evaluation.bits_per_byte else [])]
    rows = sorted(rows, key=lambda row: -row[1])
    strong = next((number for number, (name, _) in enumerate(rows) if name == "this model"), None)
    page.table(["compressing the held-out text with", "bits per byte"], rows, strong=strong)
    page.paragraph(
        "xz and bz2 are widely used compressors. Each compressed the training text with and without the held-out text "
        f"behind it; the difference is what the held-out text costs. The last {readable_bytes(found.training)} of the "
        f"training text and the first {readable_bytes(found.held_out)} of the held-out text were used."
    )


def forecast_verdict(found: Any, bits: float | None) -> str | None:
    """How far off a forecast was; None where there was none.

    >>> forecast_verdict({"bits_per_byte": 2.0, "low": 1.9, "high": 2.1}, 2.06)
    'The forecast was 2.000 bits per byte; the model reached 2.060, which is 3.0 % more and inside the interval of \
1.900 to 2.100.'
    """
    if not isinstance(found, dict) or not {"bits_per_byte", "low", "high"} <= found.keys() or not bits:
        return None
    off = bits / found["bits_per_byte"] - 1
    place = "inside" if found["low"] <= bits <= found["high"] else "outside"
    return (
        f"The forecast was {found['bits_per_byte']:.3f} bits per byte; the model reached {bits:.3f}, which is "
        f"{abs(100 * off):.1f} % {'more' if off >= 0 else 'less'} and {place} the interval of {found['low']:.3f} to "
        f"{found['high']:.3f}."
    )
