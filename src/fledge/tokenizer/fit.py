"""A tokenizer for a corpus, as the settings say: loaded, or trained on the training part or on all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fledge.config import RunConfig, TokenizerConfig, say_useless
from fledge.corpus.split import TRAIN
from fledge.files import COMPRESSED, documents_format
from fledge.progress import progress_bar
from fledge.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from fledge.corpus import Corpus
    from fledge.corpus.sources import Source


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
            _plain_files(corpus, config) or texts,
            config.vocabulary_size,
            config.special_tokens,
            pattern=config.pattern,
            threads=threads,
            min_frequency=config.min_frequency,
            progress=progress,
        )
    say_useless((f"tokenizer.{name}" for name in config.model_fields_set), RunConfig(tokenizer=config))
    from fledge.tokenizer.character import CharacterTokenizer
    from fledge.tokenizer.word import WordTokenizer

    kind = WordTokenizer if config.kind == "word" else CharacterTokenizer
    return kind.train(texts, config.vocabulary_size, min_frequency=config.min_frequency)


def _plain_files(corpus: Corpus, config: TokenizerConfig) -> list[Path]:
    """The files of a corpus, where native code finds the same documents in them; none where it would not.

    It takes all of a plain text and divides it at special tokens, with no step through Python for each document.
    """
    from fledge.tokenizer.patterns import PATTERNS

    options, sources = corpus.options, corpus.sources
    everything = config.fit_on == "all" or not (
        options.validation_fraction or options.test_fraction or any(one.held_out for one in sources)
    )
    divided = options.separator.decode() in config.special_tokens and config.pattern in PATTERNS
    unlimited = options.max_document_bytes == type(options).max_document_bytes
    if everything and divided and unlimited and all(map(_is_plain, sources)):
        return [Path(one.address) for one in sources]
    return []


def _is_plain(source: Source) -> bool:
    name = source.address
    packed = documents_format(name) is not None or name.lower().endswith(COMPRESSED)
    return source.format == "text" and source.can_move and not packed


def _documents(corpus: Corpus, config: TokenizerConfig, progress: bool) -> Iterator[bytes]:
    with progress_bar("Reading", corpus.size, shown=progress) as bar:
        for batch in corpus.batches():
            for document, part in zip(batch.documents, batch.parts.tolist(), strict=True):
                if config.fit_on == "all" or part == TRAIN:
                    yield document
            bar.advance(batch.consumed - bar.done)
