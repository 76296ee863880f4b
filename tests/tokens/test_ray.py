"""The same bytes from a local two-worker Ray as from one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fledge.corpus.corpus
import fledge.corpus.readers
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.tokens import write_store
from tests.tokens.helpers import ByteTokenizer

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fledge-lm[ray]'")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    root = str(Path(__file__).parents[2])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}},
    )
    yield
    ray.shutdown()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_workers_write_the_same_bytes(tmp_path, monkeypatch):
    from fledge.tokens.cluster import write_store_on_ray

    monkeypatch.setattr(fledge.corpus.corpus, "BLOCK", 2000)
    monkeypatch.setattr(fledge.corpus.readers, "BLOCK", 2000)
    path = tmp_path / "text.txt"
    path.write_text("<|endoftext|>".join(f"text {i} " + "word " * (i % 50) for i in range(500)))
    address = f"file://{path}"
    write_store(Corpus.open(address), ByteTokenizer(), tmp_path / "local", progress=False)
    write_store_on_ray(Corpus.open(address), ByteTokenizer(), str(tmp_path / "ray"), progress=False)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    write_store_on_ray(Corpus.open(address), ByteTokenizer(), f"file://{tmp_path}/remote", progress=False)
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
    other = ByteTokenizer(shift=1)
    with pytest.raises(FledgeError, match="the tokenizer has changed"):
        write_store_on_ray(Corpus.open(address), other, f"file://{tmp_path}/remote", progress=False)
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
    write_store_on_ray(Corpus.open(address), other, f"file://{tmp_path}/remote", progress=False, restart=True)
    write_store(Corpus.open(address), other, tmp_path / "local", progress=False, restart=True)
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
