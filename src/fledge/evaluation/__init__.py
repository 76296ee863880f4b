"""Perplexity and bits per byte, yardsticks to hold them against, and adapters to outside harnesses."""

from fledge.evaluation.evaluate import Evaluation, evaluate, evaluate_texts
from fledge.evaluation.ngram import Baselines, KneserNey, baselines

__all__ = ["Baselines", "Evaluation", "KneserNey", "baselines", "evaluate", "evaluate_texts"]
