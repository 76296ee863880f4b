"""Where text comes from: files, folders, compressed or remote, JSONL, Parquet, the AKJV; split before anything else."""

from fledge.corpus.batch import Cursor, DocumentBatch, TextBlock
from fledge.corpus.corpus import Corpus
from fledge.corpus.text import JoinedText

__all__ = ["Corpus", "Cursor", "DocumentBatch", "JoinedText", "TextBlock"]
