"""A store at an address: never replaced by another one unasked, and never whole while it is being replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.tokens import write_store
from tests.tokens.helpers import ByteTokenizer

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("ray", reason="Ray is not installed: pip install 'fledge-lm[ray]'")

TEXTS = [b"text %d" % i for i in range(100)]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"file://{tmp_path}/remote"


def copied(folder: Path, address: str, shift: int = 0) -> None:
    from fledge.tokens.cluster import _copy

    write_store(Corpus.from_documents(TEXTS), ByteTokenizer(shift=shift), folder, progress=False)
    _copy(folder, address)


def again(address: str, texts: list[bytes] = TEXTS, shift: int = 0, restart: bool = False) -> dict:
    """All that is asked here is answered before a cluster is needed."""
    from fledge.tokens.cluster import write_store_on_ray

    corpus, tokenizer = Corpus.from_documents(texts), ByteTokenizer(shift=shift)
    return write_store_on_ray(corpus, tokenizer, address, progress=False, restart=restart)


def test_a_store_is_staged_where_nobody_else_can_have_put_one(tmp_path, address, monkeypatch):
    """The temporary folder belongs to everybody: a folder of a name that can be guessed may be somebody else's."""
    from fledge.tokens.cluster import _staging

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = _staging(address)
    assert place == _staging(address), "an interrupted run finds its journal"
    assert place.parent.stat().st_mode & 0o777 == 0o700
    place.parent.rmdir()
    (tmp_path / "theirs").mkdir()
    place.parent.symlink_to(tmp_path / "theirs")
    with pytest.raises(FledgeError, match="is not a folder of yours"):
        _staging(address)


def test_the_same_store_is_whole_and_another_one_is_refused(tmp_path, address):
    copied(tmp_path / "staged", address)
    assert not (tmp_path / "staged").exists()
    assert again(address)["splits"]["train"]["documents"] > 0
    before = {path: path.read_bytes() for path in (tmp_path / "remote").rglob("*") if path.is_file()}
    assert "journal.jsonl" not in {path.name for path in before}
    with pytest.raises(FledgeError, match=r"the tokenizer has changed.*--restart"):
        again(address, shift=1)
    with pytest.raises(FledgeError, match="the source has changed"):
        again(address, texts=TEXTS[:50])
    assert {path: path.read_bytes() for path in (tmp_path / "remote").rglob("*") if path.is_file()} == before


def test_a_store_cut_at_its_address_is_not_called_whole(tmp_path, address):
    copied(tmp_path / "staged", address)
    (tmp_path / "remote" / "train.bin").write_bytes(b"ab")
    with pytest.raises(FledgeError, match=r"train\.bin was cut"):
        again(address)
    (tmp_path / "remote" / "store.json").write_text('{"format": "fledge-tokens"}')
    with pytest.raises(FledgeError, match=r"does not describe a token store.*--restart"):
        again(address)


def test_other_files_at_the_address_are_left_alone(tmp_path, address):
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "train.bin").write_bytes(b"of another program")
    with pytest.raises(FledgeError, match="holds other files"):
        again(address)
    for name in ("store.json", "journal.jsonl"):
        (tmp_path / "remote" / name).write_text("{}\n")
        for restart in (False, True):
            with pytest.raises(FledgeError, match=f"{name} does not belong to a token store"):
                again(address, restart=restart)
        assert (tmp_path / "remote" / name).read_text() == "{}\n"
        (tmp_path / "remote" / name).unlink()


def test_a_copy_that_fails_half_way_does_not_look_whole(tmp_path, address, monkeypatch):
    """The old manifest is gone before the first file is replaced, and the new one comes last."""
    copied(tmp_path / "staged", address)
    system = type(fsspec.filesystem("file"))
    put = system.put_file

    def failing(self, path, target, **more):
        if path.endswith("validation.bin"):
            raise OSError("the network is gone")
        put(self, path, target, **more)

    with monkeypatch.context() as context:
        context.setattr(system, "put_file", failing)
        with pytest.raises(OSError, match="network"):
            copied(tmp_path / "staged", address, shift=1)
    assert not (tmp_path / "remote" / "store.json").exists()
    assert (tmp_path / "remote" / "journal.jsonl").exists()
    copied(tmp_path / "staged", address, shift=1)
    assert again(address, shift=1)["splits"]["train"]["documents"] > 0
