"""What one would rather not train on, told by its form, and what went wrong with a text before it came here.

A help, and no promise: a form may miss what it is meant for, and match what is none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

FORMS = {
    "e-mail": rb"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,4}\.[A-Za-z]{2,24}\b",
    "key": rb"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=\s]{0,8000}(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?"
    rb"|\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,80}|sk-[A-Za-z0-9_-]{20,100}|AIza[A-Za-z0-9_-]{35}"
    rb"|eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{2,4000}\.[A-Za-z0-9_-]{8,1000}|xox[abps]-[A-Za-z0-9-]{10,80})\b",
    "password": rb"(?i:(?<![A-Za-z])(?:password|passwort|passwd|pwd|api[_-]?key|secret(?:[_-]?access)?(?:[_-]?key)?)"
    rb"[\"']?\s?[:=](?:\s?[\"']|(?!\s)|\s(?=\S{0,80}[^A-Za-z\s\"',.;:!?])))[^\s\"']{6,80}",  # not "secret: nobody"
    "card": rb"\b(?:[0-9][ -]?){12,18}[0-9]\b",
    "phone": rb"(?<![\w.])(?:\+[0-9]{1,3}[ .-]?(?:\(?[0-9]{1,4}\)?[ .-]?){2,5}[0-9]{2,4}"
    rb"|\(?[0-9]{3}\)?[ .-][0-9]{3}[ .-][0-9]{4})(?![\w])",
    "base64": rb"(?<![A-Za-z0-9+/])(?=[A-Za-z0-9+/]{0,200}[0-9+/])[A-Za-z0-9+/]{120,}={0,2}",
}
PRIVATE = re.compile(b"|".join(b"(?P<%s>%s)" % (kind.replace("-", "_").encode(), form) for kind, form in FORMS.items()))
CONTINUING = (  # what Latin-1 and Windows-1252 have for 0x80 to 0xBF
    b"(?:\xc2[\x80-\xbf]|\xe2[\x80-\x84][\x80-\xbf]|\xc5[\x92\x93\xa0\xa1\xb8\xbd\xbe]|\xc6\x92|\xcb[\x86\x9c])"
)
MOJIBAKE = re.compile(
    b"\xc3[\x82\x83]\xc2[\x80-\xbf]|\xc3\xa2\xe2\x82\xac|\xef\xbf\xbd"  # UTF-8 read as Latin-1
    b"|(?:\xc3[\x84-\x9f]" + CONTINUING + b"|\xc3[\xa0-\xaf]" + CONTINUING + b"{2}){3}"  # of other scripts
    b"|(?:\xd0[\xa0\xa1](?:[\xc2-\xd1][\x80-\xbf]|\xe2[\x80-\xbf]{2})){4}"  # as Windows-1251
)
MARKUP = re.compile(rb"</?[A-Za-z][A-Za-z0-9]{0,10}(?: [^<>\n]{0,200})?/?>|&(?:[a-z]{2,8}|#[0-9]{1,6});")
SCRIPTS = {
    "Latin": "A-Za-z\u00c0-\u024f\u1e00-\u1eff",
    "Greek": "\u0370-\u03ff\u1f00-\u1fff",
    "Cyrillic": "\u0400-\u052f",
    "Hebrew": "\u0590-\u05ff",
    "Arabic": "\u0600-\u06ff\u0750-\u077f",
    "Indic": "\u0900-\u0dff",
    "Thai": "\u0e00-\u0e7f",
    "Hangul": "\u1100-\u11ff\uac00-\ud7af",
    "Kana": "\u3040-\u30ff",
    "Han": "\u3400-\u9fff",
    "Armenian": "\u0530-\u058f",
    "Georgian": "\u10a0-\u10ff\u1c90-\u1cbf",
    "Ethiopic": "\u1200-\u139f",
    "Lao, Tibetan or Burmese": "\u0e80-\u109f",
    "Khmer": "\u1780-\u17ff",
    "another": "\u0700-\u08ff\u13a0-\u177f\u1800-\u1c8f\u2c00-\u2dff\ua000-\uabff",
}
LETTERS = {name: re.compile(f"[{letters}]") for name, letters in SCRIPTS.items()}
LOOKED_AT = 1 << 14  # bytes of a document that show its script
MOSTLY = 0.8  # of its letters
MANY_TAGS = 5  # fewer may be quoted
RECURRING, ENOUGH_DOCUMENTS, SAMPLED = 0.5, 10, 1000
"The share of documents with a line that make it a header or a footer; of how many at least; seen in how many."


def find_private(document: bytes) -> Iterator[re.Match[bytes]]:
    """What looks private in a document; `lastgroup` is its kind.

    >>> [m.lastgroup for m in find_private(b"write to anna@example.org or call +44 20 7946 0958")]
    ['e_mail', 'phone']
    """
    for match in PRIVATE.finditer(document):
        if match.lastgroup != "card" or is_card(match[0]):
            yield match


def is_card(number: bytes) -> bool:
    """Whether the last digit is the check digit that card numbers have."""
    digits = [int(chr(byte)) for byte in number if 48 <= byte < 58]
    doubled = [sum(divmod(2 * digit, 10)) if place % 2 else digit for place, digit in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0 and len(set(digits)) > 1


def mask(document: bytes) -> tuple[bytes, Counter[str]]:
    """The document with a placeholder for all that looks private, and how often each kind was replaced.

    >>> mask(b"mail anna@example.org now")
    (b'mail [e-mail] now', Counter({'e-mail': 1}))
    """
    counts: Counter[str] = Counter()
    parts, done = [], 0
    for match in find_private(document):
        kind = (match.lastgroup or "").replace("_", "-")
        counts[kind] += 1
        parts += [document[done : match.start()], f"[{kind}]".encode()]
        done = match.end()
    return b"".join([*parts, document[done:]]), counts


def hidden(text: bytes) -> str:
    """An example with its middle left out, so that showing it tells nobody.

    >>> hidden(b"anna@example.org")
    'an…g'
    """
    shown = text.decode("utf-8", "replace")
    return f"{shown[:2]}…{shown[-1:]}"


def script_of(document: bytes) -> str:
    """The script of most letters; `mixed` where none has most, `none` where there are no letters.

    >>> script_of(b"In the beginning"), script_of("В начале".encode()), script_of(b"1, 2, 3")
    ('Latin', 'Cyrillic', 'none')
    """
    head = document[:LOOKED_AT]
    if head.isascii():
        return "Latin" if re.search(rb"[A-Za-z]", head) else "none"
    text = head.decode("utf-8", "ignore")
    counts = {name: len(letters.findall(text)) for name, letters in LETTERS.items()}
    if 20 * counts["Kana"] > counts["Han"]:  # Japanese is written in both
        counts["Kana"], counts["Han"] = counts["Kana"] + counts["Han"], 0
    total = sum(counts.values())
    best = max(counts, key=lambda name: counts[name])
    return "none" if not total else best if counts[best] >= MOSTLY * total else "mixed"


def is_mojibake(document: bytes) -> bool:
    """Whether text was decoded as another encoding than its own, or with what could not be decoded replaced.

    >>> is_mojibake("Ã©tÃ©".encode()), is_mojibake("été".encode())
    (True, False)
    """
    return MOJIBAKE.search(document) is not None


def has_markup(document: bytes) -> bool:
    """Whether tags or entities were left over."""
    return sum(1 for _, _ in zip(MARKUP.finditer(document), range(MANY_TAGS), strict=False)) == MANY_TAGS


def recurring_lines(documents: Iterable[bytes]) -> dict[bytes, float]:
    """Lines near the beginning or the end of most documents, such as headers and footers; and of which share."""
    counts: Counter[bytes] = Counter()
    total = 0
    for document in documents:
        if len(document) > 2 * LOOKED_AT:
            document = document[:LOOKED_AT] + b"\n" + document[-LOOKED_AT:]
        counts.update({line for line in map(bytes.strip, document.split(b"\n")) if len(line) >= 8})
        total += 1
        if total == SAMPLED:
            break
    if total < ENOUGH_DOCUMENTS:
        return {}
    return {line: count / total for line, count in counts.items() if count > RECURRING * total}


def without_lines(document: bytes, lines: Collection[bytes]) -> bytes:
    """The document without those lines."""
    if not lines:
        return document
    return b"\n".join(line for line in document.split(b"\n") if line.strip() not in lines)
