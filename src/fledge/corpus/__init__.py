"""Where text comes from: files, folders, compressed or remote, JSONL, Parquet, the AKJV; split before anything else."""

from fledge.corpus.batch import Batch, Block, Cursor
from fledge.corpus.corpus import Corpus
from fledge.corpus.text import Text

__all__ = ["Batch", "Block", "Corpus", "Cursor", "Text"]
