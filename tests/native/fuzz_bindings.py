"""Random arguments, good and bad, for every function that the native core shows Python.

    fuzz_bindings.py MODULE [SECONDS] [SEED]

`run-sanitized.sh` builds the core with sanitizers and runs this: whatever is given, an answer or an exception follows,
and no memory is touched that is not the caller's. Answers to good arguments are compared with plain ones.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

ODD_NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    255,
    65535,
    65536,
    -1,
    -2,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
ODD_VALUES: tuple[Any, ...] = (None, "", "text", b"", 1.5, [], {}, (), object(), [None], np.zeros(3), float("nan"))
MODES = ("recognise", "text", "refuse", "other")
PATTERNS = ("gpt2", "cl100k", "o200k", "other")
MARKS = (b"<|end|>", b"<|end|>!", b"\n", b"ab", b"")
Random = random.Random


def loaded(path: str) -> Any:
    """The module of that file, whatever core is installed."""
    spec = importlib.util.spec_from_file_location("fledge._core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_core = loaded(sys.argv[1])


strange: list[bool] = []  # an entry for each odd argument of the call at hand


def odd(chance: Random, value: Any, often: float = 0.04) -> Any:
    """The value, or now and then one that has no business there: then facts about the answer need not hold."""
    if chance.random() >= often:
        return value
    strange.append(True)
    return chance.choice(ODD_NUMBERS if isinstance(value, int) or chance.random() < 0.3 else ODD_VALUES)


def text(chance: Random, longest: int = 300) -> bytes:
    parts = (
        b" the",
        b" cat",
        b"\n",
        "é".encode(),
        "漢字".encode(),
        b"\xff",
        b"123",
        b"<|end|>",
        b"aaaa",
        b"'s",
        b"\0",
        b"=" * 20,
    )
    made = b"".join(chance.choices(parts, k=chance.randrange(longest // 4)))
    return made * chance.choice((1, 1, 1, 40))


def offsets(chance: Random, size: int) -> Any:
    count = chance.randrange(12)
    places = sorted(chance.randrange(size + 1) for _ in range(count + 1))
    if chance.random() < 0.2:
        places[chance.randrange(len(places))] = chance.choice(ODD_NUMBERS) % 2**64
    return odd(chance, np.array(places, np.uint64))


def numbers(chance: Random, count: int, most: int = 40) -> Any:
    found = [
        chance.randrange(most) if chance.random() < 0.97 else chance.choice(ODD_NUMBERS[:-1]) for _ in range(count)
    ]
    return odd(chance, np.array(found, np.int64), 0.01)


def threads(chance: Random) -> Any:
    return odd(chance, chance.choice((1, 2, 3)))


# ---- one function each ---------------------------------------------------------------------------------------------


def count_invalid(chance: Random) -> None:
    data = text(chance)
    found = _core.count_invalid(data)
    assert (found == 0) == (data == data.decode("utf-8", "ignore").encode())
    _core.count_invalid(odd(chance, data, 0.3))


def last_merges(chance: Random) -> None:
    _core.last_merges(odd(chance, [bytes([byte]) for byte in range(256)] + [text(chance, 20) for _ in range(20)]))


def checksums(chance: Random) -> None:
    data, count = text(chance), chance.randrange(5)
    starts, ends, sums = numbers(chance, count), numbers(chance, count, 300), np.empty(count, np.int64)
    _core.checksums(data, starts, ends, odd(chance, sums))
    assert sums.tolist() == [zlib.crc32(data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def checksum(chance: Random) -> None:
    data, before = text(chance), odd(chance, chance.getrandbits(32))
    assert _core.checksum(data, before) == zlib.crc32(data, before)


def find_marks(chance: Random) -> None:
    data, mark = text(chance), chance.choice(MARKS)
    found = _core.find_marks(data, odd(chance, mark)).tolist()
    assert len(found) == (data.count(mark) if mark else 0)
    assert all(data.startswith(mark, place) for place in found)


def divide(chance: Random) -> None:
    data = text(chance)
    bounds = offsets(chance, len(data))
    flags = np.array([chance.randrange(2) for _ in range(max(0, len(bounds) - 1))], np.bool_)
    if chance.random() < 0.1:
        flags = np.array([chance.randrange(256) for _ in flags], np.uint8).view(np.bool_)
    room = int(bounds[-1]) - int(bounds[0]) if chance.random() < 0.8 else chance.randrange(30)
    out = np.full(min(abs(room), 1 << 20), 7, np.uint8)
    _core.divide(data, bounds, odd(chance, flags), odd(chance, out))
    pieces = [data[a:b] for a, b in itertools.pairwise(bounds.tolist())]
    wanted = [
        piece for held in (0, 1) for piece, flag in zip(pieces, flags.view(np.uint8), strict=True) if bool(flag) == held
    ]
    assert out.tobytes().startswith(b"".join(wanted))


def gather(chance: Random) -> None:
    width, size, count = chance.choice((2, 4)), chance.randrange(40), chance.randrange(4)
    with tempfile.TemporaryFile() as file:
        ids = np.arange(30, dtype=f"<u{width}")
        file.write(ids.tobytes())
        file.flush()
        plain = chance.random() < 0.5
        arrays = [np.full(size, -7, np.int64) for _ in range(2 if plain else 4)]
        begins = np.sort(numbers(chance, count, max(1, size)))
        sources, lengths = numbers(chance, count, 25), numbers(chance, count, 6)
        extra = (None, None) if plain else (numbers(chance, count), numbers(chance, count))
        rows = (*arrays, None, None) if plain else tuple(arrays)
        place = odd(chance, file.fileno(), 0.02)
        _core.gather(
            place, odd(chance, width), begins, sources, lengths, *extra, 9, 8, *(odd(chance, row, 0.01) for row in rows)
        )
        for begin, source, length in zip(begins.tolist(), sources.tolist(), lengths.tolist(), strict=True):
            assert arrays[1][begin : begin + length].tolist() == ids[source : source + length].tolist()


def find_places(chance: Random) -> None:
    known = np.sort(numbers(chance, chance.randrange(300), 1000))
    step, values = odd(chance, chance.choice((1, 3, 64))), numbers(chance, 10, 1000)
    rungs = np.ascontiguousarray(known[::step]) if chance.random() < 0.9 else numbers(chance, 3)
    places = np.empty(len(values), np.int64)
    _core.find_places(known, rungs, step, values, odd(chance, places))
    if len(known) and values.min() >= known[0] and np.array_equal(rungs, known[::step]):
        assert places.tolist() == (np.searchsorted(known, values, "right") - 1).tolist()


def encoder(chance: Random) -> Any:
    tokens: list[Any] = [(bytes([byte]), byte) for byte in range(256)]
    merges: list[Any] = [(b"t", b"h"), (b" ", b"th"), (b"a", b"a"), (b"aa", b"aa"), (b"=", b"="), (b"==", b"==")]
    tokens += [(left + right, 256 + rank) for rank, (left, right) in enumerate(merges)]
    if chance.random() < 0.2:
        tokens.append(odd(chance, (text(chance, 8), chance.choice(ODD_NUMBERS)), 0.3))
    if chance.random() < 0.1:
        merges.append(odd(chance, (text(chance, 8), b"a"), 0.5))
    if chance.random() < 0.1:
        del tokens[chance.randrange(256)]
    specials = [(mark, 300 + place) for place, mark in enumerate(MARKS[: chance.randrange(5)])]
    wide = odd(chance, chance.random() < 0.5)
    whole = chance.random() < 0.2
    return _core.Encoder(
        tokens, odd(chance, merges), odd(chance, specials), specials[:1], chance.choice(PATTERNS), whole, wide
    )


def encode(chance: Random) -> None:
    core, data, mode = encoder(chance), text(chance), chance.choice(MODES)
    whole = core.encode(odd(chance, data), mode, threads(chance)).tolist()
    assert core.encode(np.frombuffer(data, np.uint8), mode, 2).tolist() == whole
    with suppress(UnicodeDecodeError):
        assert core.encode_list(odd(chance, data.decode()), mode) == whole
    assert 0 <= core.last_cut(data, mode) <= len(data)
    bounds = offsets(chance, len(data))
    ids, starts = core.encode_spans(data, bounds, mode, threads(chance))
    assert len(starts) == len(bounds)
    assert starts[-1] == len(ids)
    core.encode_words(data, bounds)


def count(chance: Random) -> None:
    marks = [mark for mark in MARKS if mark or chance.random() < 0.05]
    core = _core.PretokenCounter(chance.choice(PATTERNS), odd(chance, marks), threads(chance))
    data = text(chance)
    core.add_text(odd(chance, data))
    core.add_spans(data, offsets(chance, len(data)))
    words = [(text(chance, 30), chance.choice((1, 5, 2**63))) for _ in range(3)]
    core.add_words(odd(chance, words), odd(chance, 100))
    assert 0 <= core.last_cut(data) <= len(data)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        core.add_file(odd(chance, os.fsencode(file.name)))
    if chance.random() < 0.1:
        core.add_file(chance.choice((b"/nowhere", b"/tmp", b"\0", b"")))

    def progress(merges: int) -> None:
        chance.choice((core.finish, lambda: core.distinct, lambda: core.add_text(b"again"), lambda: None))()

    core.train(odd(chance, 300), odd(chance, 1), odd(chance, progress, 0.3))
    assert core.distinct >= 0
    assert core.source_bytes >= 0


def values(chance: Random, *shape: int) -> Any:
    return np.array([chance.uniform(-1, 1) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)


def address(chance: Random, array: Any) -> Any:
    """Where an array lies; or null, or no place for numbers. Any other address would be the caller's own fault."""
    return array.ctypes.data if chance.random() < 0.98 else chance.choice((0, 1, 3, -1, None, "x", 2**64))


def product(chance: Random) -> None:
    outputs, inputs, rows = chance.randrange(1, 40), chance.randrange(1, 70), chance.randrange(1, 9)
    weight, x, out = (
        values(chance, outputs, inputs),
        values(chance, rows, inputs),
        np.empty((rows, outputs), np.float32),
    )
    multiply = _core.Product(address(chance, weight), 0, outputs, inputs)
    wrong = chance.choice((0, 9, -1, 2**64 - 1)) if chance.random() < 0.05 else rows
    multiply(address(chance, x), 0, address(chance, out), wrong, odd(chance, 2))
    assert wrong == rows
    assert np.allclose(out, x @ weight.T, atol=1e-4)


def softmax_slope(chance: Random) -> None:
    rows, columns = chance.randrange(1, 9), chance.randrange(1, 70)
    logits = values(chance, rows, columns)
    targets = np.array([chance.choice((-100, chance.randrange(columns))) for _ in range(rows)], np.int64)
    if chance.random() < 0.1:
        targets[0] = wrong = chance.choice((columns, -1, -(2**63), 2**63 - 1))
    else:
        wrong = 0
    wanted = np.log(np.exp(logits).sum(-1)) - logits[np.arange(rows), targets.clip(0, columns - 1)]
    place = address(chance, logits)
    found = _core.softmax_slope(place, True, targets, columns, 0.0, 0.0, True, threads(chance))
    assert not wrong
    assert np.isclose(found, wanted[targets >= 0].sum(), atol=1e-3)


def keep_freed_memory(chance: Random) -> None:
    _core.keep_freed_memory()


def attention(chance: Random) -> None:
    rows, key_heads, shared = chance.randrange(1, 3), chance.randrange(1, 3), chance.randrange(1, 3)
    size, capacity = chance.randrange(1, 40), chance.randrange(1, 20)
    heads, used = key_heads * shared, chance.randrange(1, capacity + 1)
    queries, out = values(chance, rows, heads, size), np.empty((rows, heads, size), np.float32)
    keys, known = values(chance, rows, key_heads, capacity, size), values(chance, rows, key_heads, capacity, size)
    bad = chance.random() < 0.1
    attend = _core.Attention(heads, chance.choice((0, heads + 1)) if bad else key_heads, size, capacity, 0.5)
    wrong = chance.choice((0, capacity + 1, -1, 2**63)) if chance.random() < 0.1 else used
    attend(
        address(chance, queries),
        heads * size,
        address(chance, keys),
        address(chance, known),
        wrong,
        address(chance, out),
        rows,
        threads(chance),
    )
    scores = 0.5 * np.einsum("bhd,bhcd->bhc", queries, np.repeat(keys, shared, 1)[:, :, :used])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = np.einsum(
        "bhc,bhcd->bhd", weights / weights.sum(-1, keepdims=True), np.repeat(known, shared, 1)[:, :, :used]
    )
    assert wrong == used
    assert np.allclose(out, wanted, atol=1e-4)


def synapses(chance: Random) -> None:
    rows, heads, neurons, width = (chance.randrange(1, most) for most in (3, 3, 40, 40))
    keys, x = np.maximum(values(chance, rows, heads, neurons), 0), values(chance, rows, width)
    kept, read = values(chance, rows, heads, neurons, width), np.empty((rows, heads, width), np.float32)
    wanted = np.einsum("bhn,bhnd->bhd", keys, kept)
    learn = _core.Synapses(heads if chance.random() < 0.98 else 0, neurons, width)
    learn(
        address(chance, keys), address(chance, x), address(chance, kept), address(chance, read), rows, threads(chance)
    )
    assert np.allclose(read, wanted, atol=1e-3)


def gated_sum(chance: Random) -> None:
    rows, heads, neurons, width = (chance.randrange(1, most) for most in (3, 3, 40, 40))
    inner, outer = values(chance, heads, neurons, width), values(chance, heads, neurons, width)
    gates, x = np.maximum(values(chance, rows, heads, neurons), 0), values(chance, rows, heads, width)
    out = np.empty((rows, width), np.float32)
    add = _core.GatedSum(address(chance, inner), address(chance, outer), heads, neurons, width)
    add(address(chance, gates), address(chance, x), address(chance, out), rows, threads(chance))
    found = gates * np.maximum(np.einsum("hnd,bhd->bhn", inner, x), 0)
    assert np.allclose(out, np.einsum("bhn,hnd->bd", found, outer), atol=1e-3)


def document_hash(chance: Random) -> None:
    key = bytes(range(chance.choice((16, 16, 16, 8))))
    document = text(chance)
    assert _core.document_hash(odd(chance, document), key) == _core.document_hash(document, key)


def watch_mapping(chance: Random) -> None:
    array = numbers(chance, chance.randrange(5000))
    number = _core.watch_mapping(odd(chance, array), odd(chance, bytes(chance.randrange(3000))))
    assert 0 <= number <= 256
    forget_mapping(chance, number)


def forget_mapping(chance: Random, number: int = 256) -> None:
    _core.forget_mapping(number)
    _core.forget_mapping(odd(chance, number))


def near_copies(chance: Random) -> None:
    found = _core.NearCopies(
        odd(chance, chance.choice((0.5, 0.6, 0.9, 1.0))),
        odd(chance, chance.randrange(1, 70)),
        threads(chance),
        bytes(16),
    )
    documents = [text(chance) for _ in range(chance.randrange(8))] * chance.choice((1, 2))
    ends = np.cumsum([len(one) for one in documents]).astype(np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends))[: len(ends)]
    found.add(b"".join(documents), odd(chance, starts), odd(chance, ends))
    assert len(found) == len(documents)
    assert found.exact().tolist() == [documents.index(one) for one in documents]
    assert all(first <= i for i, first in enumerate(found.groups().tolist()))
    found.hash(odd(chance, 0, 0.5)), found.similarity(odd(chance, 0, 0.5), 0)


def find_stretches(chance: Random) -> None:
    document = text(chance, 2000)
    bounds = offsets(chance, len(document))
    minimum = odd(chance, chance.randrange(4, 40))
    queries = odd(chance, int(chance.choice(bounds)) if chance.random() < 0.5 else 0)
    found = _core.find_stretches(document, bounds, minimum, queries, threads(chance)).reshape(-1, 3)
    for start, source, length in found.tolist():
        assert document[start : start + length] == document[source : source + length]


def some_tokens(chance: Random, width: str) -> Any:
    return np.array([chance.randrange(4) for _ in range(chance.randrange(200))], width)


def sort_suffixes(chance: Random) -> None:
    tokens = some_tokens(chance, chance.choice(("<u2", "<u4")))
    whole, limit = chance.random() < 0.9, odd(chance, 300)
    order = np.empty(len(tokens) if whole else chance.randrange(300), np.uint32)
    _core.sort_suffixes(odd(chance, tokens), odd(chance, order), limit, threads(chance))
    if whole:
        assert order.tolist() == sorted(range(len(tokens)), key=lambda i: tokens[i:].tolist())


def longest_matches(chance: Random) -> None:
    width = chance.choice(("<u2", "<u4"))
    tokens, sought = some_tokens(chance, width), some_tokens(chance, chance.choice((width, width, "<u2")))
    order = np.array(
        [chance.choice((i, i, i, chance.choice(ODD_NUMBERS) % 2**32)) for i in range(len(tokens))], np.uint32
    )
    lengths, places = np.zeros(len(sought), np.int64), np.zeros(len(sought), np.int64)
    limit = odd(chance, chance.randrange(1, 50))
    _core.longest_matches(tokens, odd(chance, order), limit, sought, 0, odd(chance, lengths), places, threads(chance))
    for i, length in enumerate(lengths.tolist()):
        assert not length or tokens[places[i] : places[i] + length].tolist() == sought[i : i + length].tolist()


FUZZED: dict[str, Callable[[Random], None]] = {
    "count_invalid": count_invalid,
    "last_merges": last_merges,
    "checksums": checksums,
    "checksum": checksum,
    "find_marks": find_marks,
    "divide": divide,
    "gather": gather,
    "find_places": find_places,
    "watch_mapping": watch_mapping,
    "forget_mapping": forget_mapping,
    "document_hash": document_hash,
    "NearCopies": near_copies,
    "find_stretches": find_stretches,
    "sort_suffixes": sort_suffixes,
    "longest_matches": longest_matches,
    "Encoder": encode,
    "PretokenCounter": count,
    "softmax_slope": softmax_slope,
    "keep_freed_memory": keep_freed_memory,
    "Product": product,
    "Attention": attention,
    "Synapses": synapses,
    "GatedSum": gated_sum,
}


def main(seconds: float, seed: int) -> None:
    bound = {name for name in dir(_core) if not name.startswith("_") and callable(getattr(_core, name))}
    assert bound == set(FUZZED), f"bound and not fuzzed, or the other way round: {sorted(bound ^ set(FUZZED))}"
    print(f"every bound function for {seconds:g} s from seed {seed}", flush=True)
    stop, calls, answered = time.monotonic() + seconds, 0, dict.fromkeys(FUZZED, 0)
    while time.monotonic() < stop:
        for name, fuzz in FUZZED.items():
            chance = Random(seed + calls)
            calls += 1
            strange.clear()
            try:
                fuzz(chance)
                answered[name] += 1
            except (AssertionError, SystemError) as error:
                if strange and isinstance(error, AssertionError):
                    continue
                print(f"{name} with seed {seed + calls - 1}", flush=True)
                raise
            except Exception:
                pass  # refused, as it may be
    assert all(answered.values()), f"never answered: {[name for name, times in answered.items() if not times]}"
    print(f"{calls} calls, {sum(answered.values())} answered, no fact broken")


if __name__ == "__main__":
    given = sys.argv[2:]
    main(float(given[0]) if given else 30, int(given[1]) if len(given) > 1 else random.getrandbits(31))
