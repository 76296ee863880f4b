"""A tokenizer for a corpus, as the settings say: loaded, or trained on the training part or on all of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fledge.config import TokenizerConfig
from fledge.progress import progress_bar
from fledge.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from fledge.corpus import Corpus


def train_tokenizer(
    config: TokenizerConfig, corpus: Corpus, threads: int | None = None, progress: bool = False
) -> Tokenizer:
    """The tokenizer that `config` describes; documents held out are not seen unless `fit_on` is "all".

    >>> from fledge.corpus import Corpus
    >>> corpus = Corpus.from_documents(["in the beginning"] * 30, validation_fraction=0)
    >>> train_tokenizer(TokenizerConfig(kind="word", vocabulary_size=None), corpus).encode("the beginning")
    [261, 36, 262]
    """
    if config.path is not None:
        from fledge.tokenizer.files import load_tokenizer

        return load_tokenizer(config.path)
    texts = _documents(corpus, config, progress)
    if config.kind == "bpe":
        from fledge.tokenizer.train import train_bpe

        return train_bpe(
            texts,
            config.vocabulary_size,
            config.special_tokens,
            pattern=config.pattern,
            threads=threads,
            min_frequency=config.min_frequency,
            progress=progress,
        )
    for setting in sorted(config.model_fields_set & {"pattern", "special_tokens"}):
        warnings.warn(f"tokenizer.{setting} has no effect on a {config.kind} tokenizer, whose own is fixed.")
    from fledge.tokenizer.character import CharacterTokenizer
    from fledge.tokenizer.word import WordTokenizer

    kind = WordTokenizer if config.kind == "word" else CharacterTokenizer
    return kind.train(texts, config.vocabulary_size, min_frequency=config.min_frequency)


def _documents(corpus: Corpus, config: TokenizerConfig, progress: bool) -> Iterator[bytes]:
    with progress_bar("Reading", corpus.size, shown=progress) as bar:
        for batch in corpus.batches():
            for document, held_out in zip(batch.documents, batch.validation.tolist(), strict=True):
                if config.fit_on == "all" or not held_out:
                    yield document
            bar.advance(batch.consumed - bar.done)
