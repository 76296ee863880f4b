"""The American King James Version, from the package pythonbible-akjv: 31,102 verses, one document each."""

from __future__ import annotations

from fledge.extras import missing

NAME = "akjv"


def verses(book_titles: bool = False) -> list[bytes]:
    """Every verse in order, without its number; with `book_titles`, the book's name and a colon stand in front."""
    try:
        from pythonbible_akjv.plain_text_readers_bible import bible
    except ImportError:
        raise missing("The corpus akjv", "pythonbible-akjv", "demo") from None
    titles = {book.value: title for book, title in bible.short_titles.items()} if book_titles else {}
    text, ends = bible.scripture_content, bible.verse_end_indices
    found = []
    for number, start in bible.verse_start_indices.items():
        verse = " ".join(text[start : ends[number]].split())  # chapter ends carry line breaks, some verses tabs
        title = titles.get(number // 1_000_000)  # verse numbers are book, chapter, verse: 1001001 is Genesis 1:1
        found.append((f"{title}: {verse}" if title else verse).encode())
    return found
