"""Windows against brute force: every window of every line, by the plainest code that could be right."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.config import TokensConfig
from fledge.errors import FledgeError
from fledge.tokens import Batch, Windows, make_windows
from tests.tokens.helpers import ROLES, lines_of, make_split

pytestmark = pytest.mark.filterwarnings("ignore:tokens.policy = longest")

PADDED = ("slide-in", "slide-through", "full", "aligned", "longest")
texts = st.lists(st.binary(min_size=1, max_size=12).filter(lambda text: not text.isspace()), min_size=1, max_size=12)
layouts = st.sampled_from(["separated", "bounded", "bare"])
Row = tuple[tuple[int, ...], tuple[int, ...]]


def windows_of(
    documents: list[bytes],
    layout: str,
    policy: str,
    length: int,
    seed: int = 0,
    shuffle: bool = True,
    **more: object,
) -> Windows:
    with tempfile.TemporaryDirectory() as folder:
        split = make_split(Path(folder) / "store", documents, layout)
        lanes = more.pop("lanes", None)
        config = TokensConfig(context_length=length, policy=policy, **more)  # type: ignore[arg-type]
        return make_windows(split, config, ROLES[layout], seed, shuffle, lanes=lanes)  # type: ignore[arg-type]


def pairs_in(row: int, batch: Batch) -> tuple[tuple[int, int], ...]:
    """The (input, target) pairs of a row that count."""
    kept = batch.targets_BT[row] != -100
    return tuple(zip(batch.inputs_BT[row][kept].tolist(), batch.targets_BT[row][kept].tolist(), strict=True))


def expected(
    line: list[int], policy: str, length: int, remainder: str
) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """All windows of one line: the column in which its pairs begin, and the pairs."""
    pairs = list(pairwise(line))
    n = len(pairs)
    if not n:
        return []
    if policy == "longest":
        return [(0, tuple(pairs[:length]))]
    found = []
    for offset in range(-length + 1, n):
        inside = [(c, pairs[offset + c]) for c in range(length) if 0 <= offset + c < n]
        keep = {
            "slide-in": offset + length <= n,
            "slide-through": True,
            "full": len(inside) == length or len(inside) == n < length,
            "aligned": offset >= 0 and offset % length == 0 and (remainder == "pad" or len(inside) == length),
        }[policy]
        if keep:
            found.append((inside[0][0], tuple(pair for _, pair in inside)))
    return found


@pytest.mark.parametrize("policy", PADDED)
@settings(max_examples=40, deadline=None)
@given(documents=texts, layout=layouts, length=st.integers(1, 9), remainder=st.sampled_from(["cut", "pad"]))
def test_an_epoch_is_every_window_of_every_line(policy, documents, layout, length, remainder):
    """The windows of an epoch are those of a brute-force enumeration, each exactly once."""
    brute = [w for line in lines_of(documents, layout) for w in expected(line, policy, length, remainder)]
    longest = max(len(line) - 1 for line in lines_of(documents, layout))
    if not brute or (policy == "full" and longest < length):
        with pytest.raises(FledgeError):
            windows_of(documents, layout, policy, length, remainder=remainder)
        return
    windows = windows_of(documents, layout, policy, length, remainder=remainder)
    assert len(windows) == len(brute)
    batch = windows.batch(range(len(windows)))
    found = []
    for row in range(len(windows)):
        kept = (batch.targets_BT[row] != -100).nonzero()[:, 0]
        found.append((int(kept[0]), pairs_in(row, batch)))
        if batch.documents_BT is not None and batch.positions_BT is not None:
            padding = batch.targets_BT[row] == -100
            assert ((batch.documents_BT[row] == -1) == padding).all()
            assert batch.positions_BT[row][~padding].tolist() == list(range(len(kept)))
    assert Counter(found) == Counter(brute)


@settings(max_examples=40, deadline=None)
@given(documents=texts, layout=layouts, length=st.integers(1, 9), shuffle=st.booleans())
def test_stream_covers_the_text(documents, layout, length, shuffle):
    """Continuous windows side by side hold every token as a target, but the first and the remainder."""
    lines = lines_of(documents, layout)
    text = [token for line in lines for token in (line[1:] if layout == "separated" else line)]
    if len(text) <= length:
        with pytest.raises(FledgeError):
            windows_of(documents, layout, "stream", length)
        return
    windows = windows_of(documents, layout, "stream", length, shuffle=shuffle)
    assert len(windows) == (len(text) - 1) // length
    batch = windows.batch(range(len(windows)))
    rows = Counter(tuple(row) for row in batch.targets_BT.tolist())
    assert rows == Counter(tuple(text[i + 1 : i + 1 + length]) for i in range(0, len(text) - length, length))
    assert batch.positions_BT is None
    assert batch.documents_BT is None


@settings(max_examples=40, deadline=None)
@given(documents=texts, layout=layouts, length=st.integers(1, 9), seed=st.integers(0, 9), epoch=st.integers(1, 3))
def test_later_epochs_of_a_stream_are_cut_elsewhere(documents, layout, length, seed, epoch):
    """Around the end of the text and on from its beginning: no pair comes twice, and only the remainder is left out."""
    lines = lines_of(documents, layout)
    text = [token for line in lines for token in (line[1:] if layout == "separated" else line)]
    if len(text) <= length:
        return
    windows = windows_of(documents, layout, "stream", length, seed)
    batch = windows.batch(range(epoch * len(windows), (epoch + 1) * len(windows)))
    found = [pairs_in(row, batch) for row in range(len(windows))]
    assert all(len(row) == length for row in found)
    pairs = list(pairwise(text))
    around = pairs + pairs
    rows = sorted(found)
    assert any(
        rows == sorted(tuple(around[start + i * length : start + (i + 1) * length]) for i in range(len(windows)))
        for start in range(len(pairs))
    )
    assert not Counter(pair for row in found for pair in row) - Counter(pairs)


@pytest.mark.parametrize("policy", ["stream", "packed"])
def test_epochs_cut_a_long_document_at_other_places(policy):
    """Nearly all windows are new ones; the first epoch is the old one, and validation is cut in one way always."""
    text = np.random.default_rng(0).integers(0, 256, 1000, np.uint8).tobytes()
    windows = windows_of([text], "separated", policy, 16)
    epochs = [windows.batch(range(n * len(windows), (n + 1) * len(windows))).inputs_BT for n in range(4)]
    firsts = [{tuple(row) for row in epoch.tolist()} for epoch in epochs]
    assert all(len(one & other) <= 2 for place, one in enumerate(firsts) for other in firsts[place + 1 :])
    begins = {pairs[0] for pairs in (pairs_in(row, windows.batch(range(len(windows)))) for row in range(len(windows)))}
    side_by_side = windows_of([text], "separated", policy, 16, shuffle=False)
    batch = side_by_side.batch(range(2 * len(side_by_side)))
    assert {pairs_in(row, batch)[0] for row in range(len(side_by_side))} == begins
    half = len(side_by_side)
    assert batch.inputs_BT[:half].equal(batch.inputs_BT[half:])


@settings(max_examples=60, deadline=None)
@given(
    documents=texts,
    layout=layouts,
    length=st.integers(1, 9),
    best_fit=st.booleans(),
    seed=st.integers(0, 5),
    offset=st.integers(0, 4),
)
def test_packing_loses_nothing_and_mixes_nothing(documents, layout, length, best_fit, seed, offset):
    """In each epoch every pair of every document comes once, in its document's order, with positions in a
    row.
    """
    lines = [line for line in lines_of(documents, layout) if len(line) > 1]
    if not lines:
        return
    windows = windows_of(documents, layout, "packed", length, seed, best_fit=best_fit, position_offset=offset)
    for epoch in range(3):
        first = epoch * len(windows)
        batch = windows.batch(range(first, first + len(windows)))
        stretches = []
        for row in range(len(windows)):
            numbers = batch.documents_BT[row]
            assert (batch.targets_BT[row] == -100).equal(numbers == -1)
            for number in sorted(set(numbers.tolist()) - {-1}):
                held = numbers == number
                places = held.nonzero()[:, 0].tolist()
                assert places == list(range(places[0], places[-1] + 1))
                positions = batch.positions_BT[row][held].tolist()
                assert positions == list(range(positions[0], positions[0] + len(positions)))
                assert positions[-1] < length
                assert positions[0] <= offset
                stretches.append(
                    tuple(
                        zip(
                            batch.inputs_BT[row][held].tolist(),
                            batch.targets_BT[row][held].tolist(),
                            strict=True,
                        )
                    )
                )
        wanted = Counter(pair for line in lines for pair in pairwise(line))
        assert Counter(pair for stretch in stretches for pair in stretch) == wanted
        sources = ["".join(map(chr, line)) for line in lines]
        for stretch in stretches:
            text = chr(stretch[0][0]) + "".join(chr(target) for _, target in stretch)
            assert any(text in source for source in sources)
        if best_fit:
            whole = Counter(text for text in sources if len(text) - 1 <= length)
            placed = Counter(chr(s[0][0]) + "".join(chr(t) for _, t in s) for s in stretches)
            assert all(placed[text] >= count for text, count in whole.items())


@settings(max_examples=30, deadline=None)
@given(documents=texts, length=st.integers(1, 5), lanes=st.integers(1, 3))
def test_lanes_go_on_where_they_stopped(documents, length, lanes):
    """Row i of each batch continues row i of the batch before it."""
    text = [token for line in lines_of(documents, "separated") for token in line[1:]]
    if (len(text) - 1) // length < lanes:
        with pytest.raises(FledgeError):
            windows_of(documents, "separated", "lanes", length, lanes=lanes)
        return
    windows = windows_of(documents, "separated", "lanes", length, lanes=lanes)
    joined = [windows.batch(range(first, first + lanes)) for first in range(0, len(windows), lanes)]
    inputs = torch.cat([batch.inputs_BT for batch in joined], 1)
    targets = torch.cat([batch.targets_BT for batch in joined], 1)
    assert inputs[:, 1:].equal(targets[:, :-1])
    steps = len(windows) // lanes * length
    assert inputs.flatten().tolist() == text[: steps * lanes]


@pytest.mark.parametrize("policy", ["stream", "packed", *PADDED])
@settings(max_examples=15, deadline=None)
@given(documents=texts, seed=st.integers(0, 2**64 - 1), data=st.data())
def test_a_sample_is_a_pure_function(policy, documents, seed, data):
    """Sample n is the same alone, in any batch, in any order and after any history; epochs are
    permutations.
    """
    documents = [*documents, b"a somewhat longer text"]
    one, other = (windows_of(documents, "separated", policy, 4, seed) for _ in range(2))
    numbers = data.draw(st.lists(st.integers(0, 3 * len(one) - 1), min_size=1, max_size=12))
    width = one.batch(numbers).inputs_BT.shape[1]
    together = one.batch(np.array(numbers))
    for row, number in enumerate(numbers):
        alone = other.batch([number])
        for left, right in zip(together, alone, strict=True):
            if left is not None:
                assert left[row, : right.shape[1]].equal(right[0])
    assert together.inputs_BT.shape[1] == width
    for epoch in range(2):
        samples = np.arange(epoch * len(one), (epoch + 1) * len(one))
        assert sorted(one.ordered(samples).tolist()) == list(range(len(one)))


def test_masks_keep_documents_apart(tmp_path):
    """The sawtooth: a place sees its own document's earlier places, and padding sees no document."""
    windows = windows_of([b"abc", b"de", b"fghij"], "separated", "packed", 8, shuffle=False)
    batch = windows.batch([0, 1])
    assert batch.documents_BT.tolist() == [[0, 0, 0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 0, -1, -1, -1]]
    assert batch.positions_BT.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0], [0, 1, 2, 3, 4, 0, 0, 0]]
    assert batch.inputs_BT[0].tolist() == [0, 98, 99, 100, 0, 101, 102, 0]
    assert batch.targets_BT[0].tolist() == [98, 99, 100, 0, 101, 102, 0, 103]


def test_full_windows_need_a_document_long_enough():
    with pytest.raises(FledgeError, match="longest document has 4 tokens"):
        windows_of([b"abc", b"de"], "separated", "full", 10)


def test_longest_says_that_it_cuts():
    with pytest.warns(UserWarning, match="cut at tokens.context_length = 4"):
        windows_of([b"abcdefgh", b"de"], "separated", "longest", 4)
