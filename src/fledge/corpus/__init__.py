"""Where text comes from: files, folders, compressed or remote, JSONL, Parquet, the AKJV; split before
anything else.
"""

from fledge.corpus.corpus import Batch, Block, Corpus, Cursor
from fledge.corpus.text import Text

__all__ = ["Batch", "Block", "Corpus", "Cursor", "Text"]
