"""What a plan is expected to reach, said before training; the report says afterwards how far off that was."""

from __future__ import annotations

from fledge.accounting import Account
from fledge.config import RunConfig
from fledge.start import law

Forecast = dict[str, float]
"`bits_per_byte`, and the interval `low` to `high`: as `start.json` keeps it."


def forecast(config: RunConfig, vocabulary_size: int, text: law.Text) -> Forecast:
    """What a run is expected to reach on the part of the text that was counted for `text`."""
    context = config.tokens.context_length
    size = Account(config.model, vocabulary_size, context).parameters.inside
    tokens = config.steps * config.training.batch_size * context
    bits = law.expected_bits(text, size, tokens, config.optimizer.weight_decay)
    bits *= law.ROWS if config.optimizer.embedding_decay else 1.0
    spread = law.spread(size, tokens)
    return {"bits_per_byte": round(bits, 4), "low": round(bits / spread, 4), "high": round(bits * spread, 4)}


def expectation(found: Forecast) -> str:
    """
    >>> expectation({"bits_per_byte": 1.98, "low": 1.9, "high": 2.06})
    '1.98 bits per byte are expected, with nine chances in ten between 1.90 and 2.06'
    """
    return (
        f"{found['bits_per_byte']:.2f} bits per byte are expected, with nine chances in ten between {found['low']:.2f} "
        f"and {found['high']:.2f}"
    )
