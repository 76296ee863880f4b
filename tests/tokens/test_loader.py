"""The loader's pieces of work: the batches are those of the windows, whoever made them and in however few calls."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from fledge.config import TokensConfig
from fledge.errors import FledgeError
from fledge.tokens import Batch, Loader, Windows, make_windows
from fledge.tokens import loader as module
from fledge.training.progress import GREATEST
from fledge.training.skipping import Skipping
from fledge.training.stepper import cut
from tests.tokens.helpers import ROLES, make_split

TEXTS = [b"word %d " % i * (1 + i * 7 % 23) for i in range(200)]
POLICIES = ("stream", "packed", "slide-in", "full", "aligned", "longest", "lanes")


def windows_of(tmp_path, policy: str) -> Windows:
    config = TokensConfig(context_length=16, policy=policy)
    return make_windows(make_split(tmp_path, TEXTS), config, ROLES["separated"], 3, lanes=8)


def assert_equal(batch: Batch, wanted: Batch) -> None:
    for left, right in zip(batch, wanted, strict=True):
        assert (left is None) == (right is None)
        assert left is None or right is None or left.equal(right)


@pytest.mark.filterwarnings("ignore:tokens.policy = longest")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("piece", "planned"), [(1, 1), (300, 16), (1 << 17, 2048)])
def test_batches_are_those_of_the_windows(tmp_path, monkeypatch, policy, piece, planned):
    """In pieces of one batch or several, found a few or many at a time, across epochs and for any share of them."""
    monkeypatch.setattr(module, "PIECE", piece)
    monkeypatch.setattr(module, "PLANNED", planned)
    windows, plain = windows_of(tmp_path / "one", policy), windows_of(tmp_path / "other", policy)
    stop = min(len(windows) + 100, 1000) + 5
    for rank, ranks in ((0, 1), (1, 2)):
        loader = Loader(windows, 8, start=3, stop=stop, rank=rank, ranks=ranks)
        found = list(loader)
        assert [first for first, _ in found] == list(range(3, stop, 8))
        for first, batch in found:
            assert_equal(batch, plain.batch(list(loader.share(first))))


@pytest.mark.parametrize("policy", ["stream", "packed", "lanes"])
@pytest.mark.parametrize("skipped", [[], [(40, 48)], [(45, 50), (51, 52)], [(0, 9), (300, 400)]])
def test_training_makes_batches_together_and_leaves_out_what_is_skipped(tmp_path, policy, skipped):
    """The same samples in the same order as one by one; and a piece of work that nothing divides is one memory."""
    windows, plain = windows_of(tmp_path / "one", policy), windows_of(tmp_path / "other", policy)
    left = [n for n in range(1000) if not any(first <= n < after for first, after in skipped)]
    for start, rank, ranks in ((0, 0, 1), (3, 1, 2)):
        loader = Loader(Skipping(windows, skipped), 8, start=start, stop=531, rank=rank, ranks=ranks)  # type: ignore[arg-type]
        found = list(loader)
        assert [first for first, _ in found] == list(range(start, 531, 8))
        for first, batch in found:
            assert_equal(batch, plain.batch([left[n] for n in loader.share(first)]))
        memories = {batch.inputs_BT.untyped_storage().data_ptr() for _, batch in found}
        assert len(memories) < len(found) / 2


@pytest.mark.parametrize("policy", ["stream", "packed", "lanes"])
def test_the_greatest_counters_that_a_checkpoint_may_hold_overflow_nothing(tmp_path, policy):
    """Else a forged number of samples would be taken, and resuming would hang or go on somewhere else."""
    windows, start = windows_of(tmp_path, policy), GREATEST - 1
    found = list(Loader(Skipping(windows, [(0, start)]), 8, start=start, stop=start + 32))  # type: ignore[arg-type]
    for first, batch in found:
        assert_equal(batch, windows_of(tmp_path / str(first), policy).batch(range(start + first, start + first + 8)))
    assert len(found) == 4


@pytest.mark.parametrize("policy", ["stream", "lanes", "packed"])
def test_batches_of_one_piece_are_whole_tensors_of_their_own(tmp_path, policy):
    """What models and kernels are given is contiguous, wherever it is copied and however it is cut; and what one
    writes into a part of a batch shows in no other.
    """
    windows, plain = windows_of(tmp_path / "one", policy), windows_of(tmp_path / "other", policy)
    wanted = [plain.batch(range(first, first + 8)) for first in range(0, 64, 8)]
    found = [batch for _, batch in Loader(windows, 8, stop=64)]
    assert len({batch.inputs_BT.untyped_storage().data_ptr() for batch in found}) < len(found)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    pinned = [batch.pin() for batch in found] if torch.cuda.is_available() else []
    for batches in (found, pinned):
        for batch, right in zip(batches, wanted, strict=False):
            for device in devices:
                moved = batch.to(device)
                assert all(part is None or part.is_contiguous() for part in moved)
                assert_equal(moved.to("cpu"), right)
                parts = cut(moved, 3)
                assert [len(part.inputs_BT) for part in parts] == [3, 3, 2]
                for part, low in zip(parts, (0, 3, 6), strict=True):
                    assert all(some is None or some.is_contiguous() for some in part)
                    rows = Batch(*(None if some is None else some[low : low + 3] for some in right))
                    assert_equal(part.to("cpu"), rows)
    places = [part for batch in found for part in batch if part is not None]
    for number, part in enumerate(places):
        part.fill_(number)
    assert [part.unique().tolist() for part in places] == [[number] for number in range(len(places))]


class Meeting:
    """Stands in for windows. The thread in the background waits at its first batch for the consumer to make one."""

    context_length = module.PIECE  # so that each batch is a piece of its own

    def __init__(self, fails: bool = False) -> None:
        self.consumer, self.fails = threading.current_thread(), fails
        self.met, self.made_here = threading.Event(), []

    def batch(self, samples: Sequence[int]) -> Batch:
        ids = torch.tensor(list(samples))[:, None]
        if threading.current_thread() is self.consumer:
            self.made_here.append(int(samples[0]))
            self.met.set()
            if self.fails:
                raise FledgeError(f"Sample {samples[0]} is damaged.")
        else:
            assert self.met.wait(60), "the consumer waited instead of helping"
        return Batch(ids, ids + 1)

    def ahead(self, shares: Sequence[range]) -> None: ...

    def batches(self, shares: Sequence[range]) -> list[Batch]:
        return [self.batch(share) for share in shares]


def test_a_consumer_that_would_wait_makes_batches_itself():
    windows = Meeting()
    found = list(Loader(windows, 2, stop=40))
    assert windows.made_here
    assert [first for first, _ in found] == list(range(0, 40, 2))
    assert torch.cat([batch.inputs_BT for _, batch in found]).flatten().tolist() == list(range(40))


def test_an_error_of_a_batch_made_early_waits_for_its_turn():
    windows = Meeting(fails=True)
    found = []
    with pytest.raises(FledgeError, match="is damaged") as caught:
        for first, _ in Loader(windows, 2, stop=40):
            found.append(first)
    assert f"Sample {windows.made_here[0]} " in str(caught.value)
    assert found == list(range(0, windows.made_here[0], 2))
