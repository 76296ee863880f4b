"""Killed at any write, flush or rename, a store goes on where it stopped and ends with the same bytes."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fledge.corpus.corpus
import fledge.corpus.readers
import fledge.tokens.checked
import fledge.tokens.work
import fledge.tokens.writer
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.tokens import TokenStore, write_store
from tests.tokens.helpers import ByteTokenizer

TEXTS = [f"document {i}: " + "some words " * (i % 7) for i in range(40)]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text of many small blocks, each committed, with checksums of 64 bytes: every boundary is met
    often.
    """
    monkeypatch.setattr(fledge.corpus.corpus, "BLOCK", 200)
    monkeypatch.setattr(fledge.corpus.readers, "BLOCK", 200)
    monkeypatch.setattr(fledge.tokens.work, "COMMIT_SECONDS", 0.0)
    for module in (fledge.tokens.work, fledge.tokens.checked):
        monkeypatch.setattr(module, "BLOCK_BYTES", 64)
    path = tmp_path / "text.txt"
    path.write_text("<|endoftext|>".join(TEXTS))
    return path


def write(source: Path, folder: Path) -> TokenStore:
    return write_store(Corpus.open(source), ByteTokenizer(), folder, progress=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Faults:
    """Counts writes, flushes, truncations, renames and removals, and ends the process at one of them.

    A write is torn in the middle first. With `power`, what was not flushed is lost as well.
    """

    CALLS = ("write", "fsync", "ftruncate", "replace", "unlink")

    def __init__(self, number: int, power: bool) -> None:
        self.left, self.power = number, power
        self.flushed: dict[str, int] = {}
        self.one_at_a_time = threading.Lock()
        self.real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in self.CALLS}
        for name in self.CALLS:
            setattr(os, name, self.wrapped(name))

    def wrapped(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self.one_at_a_time:  # no other thread writes between the cut and the end
                self.left -= 1
                if self.left == 0:
                    if name == "write":
                        self.real["write"](arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                    self.die()
                if name == "fsync":
                    path = os.readlink(f"/proc/self/fd/{arguments[0]}")
                    self.flushed[path] = os.fstat(arguments[0]).st_size
                    return None
                if name == "write" and self.power:
                    path = os.readlink(f"/proc/self/fd/{arguments[0]}")
                    self.flushed.setdefault(path, os.fstat(arguments[0]).st_size)  # what stood there before is safe
                return self.real[name](*arguments, **options)

        return call

    def die(self) -> None:
        if self.power:
            for path, size in self.flushed.items():
                if os.path.isfile(path) and os.path.getsize(path) > size:
                    os.truncate(path, size)
        os.kill(os.getpid(), signal.SIGKILL)


def killed_at(number: int, source: Path, folder: Path, power: bool) -> bool:
    """Write the store in a child that is killed at its `number`-th step; False when it has fewer."""
    child = os.fork()
    if child == 0:
        try:
            Faults(number, power)
            write(source, folder)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


pytestmark = [
    pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs the file table in /proc"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_killed_at_every_boundary(power, source, tmp_path, monkeypatch):
    """One kill at each write, flush, truncation, rename and removal in turn, then the same command again."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(fledge.tokens.work.Committer, "offer", lambda self: self.finish())  # after each block
    write(source, tmp_path / "undisturbed")
    wanted = contents(tmp_path / "undisturbed")
    assert wanted.keys() == {
        "store.json", "train.bin", "train.documents.bin", "validation.bin", "validation.documents.bin",
        "tokenizer/tokenizer.json",
    }  # fmt: skip
    for number in count(1):
        folder = tmp_path / f"killed-{number}"
        if not killed_at(number, source, folder, power):
            break
        if (folder / "store.json").exists():
            TokenStore.open(folder).verify()  # what looks whole is whole
        write(source, folder)
        assert contents(folder) == wanted, f"after a kill at step {number}"
    assert number > 60


def test_killed_again_and_again(source, tmp_path, monkeypatch):
    """Each attempt gets a little further than the last, and the end is the same."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    write(source, tmp_path / "undisturbed")
    kills = 0
    while killed_at(25 + kills % 9, source, tmp_path / "killed", power=kills % 2 == 0):
        kills += 1
        assert kills < 200
    assert kills > 3
    assert contents(tmp_path / "killed") == contents(tmp_path / "undisturbed")


def test_an_unfinished_store_is_not_opened(source, tmp_path):
    assert killed_at(60, source, tmp_path / "killed", power=False)
    with pytest.raises(FledgeError, match="not finished"):
        TokenStore.open(tmp_path / "killed")


def test_a_changed_source_or_tokenizer_is_noticed(source, tmp_path):
    for number in (60, 10**6):  # unfinished, and finished
        folder = tmp_path / str(number)
        killed_at(number, source, folder, power=False)
        with pytest.raises(FledgeError, match="the tokenizer has changed"):
            write_store(Corpus.open(source), ByteTokenizer(shift=1), folder, progress=False)
        other = tmp_path / "other" / source.name
        other.parent.mkdir(exist_ok=True)
        other.write_text(source.read_text() + "more")
        with pytest.raises(FledgeError, match="the source has changed"):
            write(other, folder)
        assert write(source, folder).split("train").tokens.size


@pytest.mark.parametrize(
    ("number", "changed"), [(60, 5), (10**6, 5), (10**6, 900)], ids=["unfinished", "head", "middle"]
)
def test_a_copied_source_is_accepted_and_a_changed_byte_is_noticed(number, changed, source, tmp_path):
    folder, copied = tmp_path / "store", tmp_path / "elsewhere" / "copied.txt"
    killed_at(number, source, folder, power=False)
    copied.parent.mkdir()
    data = source.read_bytes()
    copied.write_bytes(data[:changed] + bytes([data[changed] ^ 1]) + data[changed + 1 :])
    with pytest.raises(FledgeError, match="the source has changed"):
        write(copied, folder)
    copied.write_bytes(data)
    os.utime(copied, (1, 1))
    accepted, wanted = write(copied, folder), write(source, tmp_path / "undisturbed")
    assert accepted.manifest["content"] == wanted.manifest["content"] == Corpus.open(copied).content()
    for name in ("train.bin", "train.documents.bin", "validation.bin", "validation.documents.bin"):
        assert (folder / name).read_bytes() == (wanted.folder / name).read_bytes()


def test_two_writers_exclude_each_other(source, tmp_path):
    with fledge.tokens.writer.sole_writer(tmp_path), pytest.raises(FledgeError, match="Another process"):
        write(source, tmp_path)


def test_a_full_pipe_is_not_taken_for_another_writer(tmp_path):
    full = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    with pytest.raises(BlockingIOError) as raised, fledge.tokens.writer.sole_writer(tmp_path):
        raise full
    assert raised.value is full


def test_who_comes_second_leaves_the_folder_to_the_first(source, tmp_path, monkeypatch):
    """Two begin at the same moment: one makes the folder, the other writes in it before the first can."""
    folder = tmp_path / "store"
    first = ExitStack()
    real = Path.mkdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        real(path, *arguments, **options)
        if path == folder:
            first.enter_context(fledge.tokens.writer.sole_writer(folder))
            (folder / "journal.jsonl").touch()

    with first, monkeypatch.context() as context:
        context.setattr(Path, "mkdir", mkdir)
        with pytest.raises(FledgeError, match="Another process"):
            write(source, folder)
        assert (folder / "journal.jsonl").exists()
    assert write(source, folder).split("train").tokens.size


def test_a_whole_store_is_given_to_any_number_at_once(source, tmp_path):
    written = write(source, tmp_path / "store")
    with fledge.tokens.writer.sole_writer(tmp_path / "store"):
        assert write(source, tmp_path / "store").manifest == written.manifest


def test_restart_throws_the_old_store_away(source, tmp_path):
    write(source, tmp_path / "store")
    source.write_text("another text altogether\n" * 300)
    with pytest.raises(FledgeError, match="--restart"):
        write(source, tmp_path / "store")
    corpus = Corpus.open(source, format="lines", validation_fraction=0)
    store = write_store(corpus, ByteTokenizer(), tmp_path / "store", progress=False, restart=True)
    assert len(store.split("train").documents) == 300


def test_a_full_disk_costs_nothing_that_was_done(source, tmp_path, monkeypatch):
    """An error from the system while writing leaves an unfinished store, and the same command ends it."""
    real, calls = os.write, count(1)

    def full(descriptor: int, data: Any) -> int:
        if next(calls) > 15:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    write(source, tmp_path / "undisturbed")
    with monkeypatch.context() as context:
        context.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            write(source, tmp_path / "store")
    assert not (tmp_path / "store" / "store.json").exists()
    write(source, tmp_path / "store")
    assert contents(tmp_path / "store") == contents(tmp_path / "undisturbed")


SCRIPT = """
import sys
import fledge.corpus.readers, fledge.corpus.corpus, fledge.tokens.work
from fledge.corpus import Corpus
from fledge.tokens import write_store
from tests.tokens.helpers import ByteTokenizer
fledge.corpus.readers.BLOCK = fledge.corpus.corpus.BLOCK = 1 << 16
fledge.tokens.work.COMMIT_SECONDS = 0.0
print("begin", flush=True)
write_store(Corpus.open(sys.argv[1], split="document"), ByteTokenizer(), sys.argv[2], progress=False)
"""


@pytest.mark.slow
def test_fifty_kills_at_random_moments(tmp_path):
    """kill -9 whenever it happens to strike: fifty times, and the bytes are those of an undisturbed run."""
    source = tmp_path / "text.txt"
    with open(source, "w") as file:
        for number in range(150_000):
            file.write(f"{number} " + "many words in a row " * (number % 40) + "<|endoftext|>")
    command = [sys.executable, "-c", SCRIPT, str(source)]
    begun = time.monotonic()
    subprocess.run([*command, str(tmp_path / "undisturbed")], check=True)
    longest = (time.monotonic() - begun) / 5
    wanted = contents(tmp_path / "undisturbed")
    moments = random.Random(7)
    folder, kills, unfinished = tmp_path / "killed", 0, 0
    while kills < 50:
        process = subprocess.Popen([*command, str(folder)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begin\n"  # the time before, of imports, would be no test
        time.sleep(moments.uniform(0, longest))
        process.kill()
        done = process.wait() == 0
        process.stdout.close()
        kills += not done
        if done:  # it came to its end before the blow: begin anew
            assert contents(folder) == wanted
            folder = tmp_path / f"killed-{kills}"
        else:
            unfinished += not (folder / "store.json").exists()
    subprocess.run([*command, str(folder)], check=True)
    assert contents(folder) == wanted
    assert unfinished > 25
