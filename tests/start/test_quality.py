"""The benchmark of what `start` makes, and the grid it is fitted to, on a text of some kilobytes."""

from __future__ import annotations

import csv
import doctest
import json
import sys

import pytest

from benchmarks import quality
from benchmarks.quality import ROWS, Result, Row, line, nanogpt, result_of
from tools import grid

TEXT = "".join(f"On day {n} the {n * 7 % 13}th ship left the harbour for {n * 11 % 17} islands.\n" for n in range(1500))


@pytest.mark.parametrize("module", [quality, grid])
def test_its_examples_are_true(module) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_a_row_is_held_against_what_it_names() -> None:
    at_trigram = [Result(1.95, 1.96, None, 2.0)]
    assert line("x", ROWS["books-908k-cpu"], at_trigram, {})[1] is None
    assert line("x", ROWS["books-908k-cpu"], [Result(1.97, 1.96, None, 2.0)], {})[1]
    longer = ROWS["books-10m-longer"]
    assert line("x", longer, [Result(1.47, None, None, 15)], {"books-10m": 1.5})[1] is None
    assert line("x", longer, [Result(1.49, None, None, 15)], {"books-10m": 1.5})[1]
    assert "nothing to hold it to" in line("x", longer, [Result(1.49, None, None, 15)], {})[0]
    late = Row("x", None, 2, False, None, 2.0, 1.9)
    assert "took 3.0 minutes" in str(line("x", late, [Result(1.8, None, None, 3.0)], {})[1])


def test_an_earlier_program_says_its_result(tmp_path) -> None:
    (tmp_path / "start.json").write_text('{"counts": {"trigram": 2.1}}')
    said = "result     3.1 nats per token, 2.174 bits per byte on text that it has not seen"
    assert result_of(tmp_path, said, 2.0) == Result(2.174, 2.1, None, 2.0)


def test_a_grid_goes_on_where_it_was(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["grid", str(tmp_path / "grid.csv"), f"ships={tmp_path / 'text.txt'}", "--bytes", "60k"]
    words += ["--shapes", "1x32", "--passes", "0.2", "--work", str(tmp_path / "work"), "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", words)
    grid.main()
    monkeypatch.setattr(sys, "argv", [*words, "1"])  # another seed
    grid.main()
    with (tmp_path / "grid.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0", "1"]
    assert capsys.readouterr().out.count("bits per byte") == 2  # the first was not trained again
    for row in rows:
        assert 0 < float(row["bits_per_byte"]) < 6
        assert float(row["bits_per_byte"]) > 0.5 * float(row["trigram"])
        assert int(row["bytes"]) == 60_000


@pytest.mark.slow
def test_a_row_runs_from_end_to_end(tmp_path, monkeypatch, capsys) -> None:
    """One `fledge start` of half a minute, its result kept and not measured again."""
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.setitem(ROWS, "akjv-cpu", Row(str(tmp_path / "text.txt"), None, 0.5, False, None, 8.0, 7.0))
    words = ["quality", "--only", "akjv-cpu", "--seeds", "0", "--out", str(tmp_path / "out"), "--check"]
    monkeypatch.setattr(sys, "argv", [*words, "--peer", "slowrun=/nowhere", "nanogpt=/nowhere"])
    for _ in range(2):
        with pytest.raises(SystemExit):
            quality.main()
    said = capsys.readouterr().out
    assert said.count("akjv-cpu") >= 2
    assert "skip slowrun" in said
    assert "no train.py" in said
    kept = json.loads((tmp_path / "out" / "akjv-cpu-0.json").read_text())
    assert 0 < kept["bits"] < 8
    assert kept["trigram"]


def test_nanogpt_is_trained_on_our_text_and_judged_on_our_test_part(tmp_path, monkeypatch) -> None:
    """A stand-in for its trainer, of the same interface: what it learns from and what is measured are checked."""
    from fledge.run import Run
    from tests.small import SMALL

    (tmp_path / "text.txt").write_text(TEXT)
    settings = [*SMALL, f"corpus.source={tmp_path / 'text.txt'}", "corpus.test_fraction=0.1"]
    run = Run("akjv-demo", tmp_path / "run", overrides=settings, quiet=True)
    assert len(run.tokens.split("test").tokens)
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "model.py").write_text(
        "import torch\n"
        "class GPTConfig:\n"
        "    def __init__(self, block_size, vocab_size): self.size = vocab_size\n"
        "class GPT(torch.nn.Module):\n"
        "    def __init__(self, config):\n"
        "        super().__init__()\n"
        "        self.share = torch.nn.Parameter(torch.zeros(config.size))\n"
        "    def forward(self, ids, targets):\n"
        "        return self.share.expand(*ids.shape, -1), None\n"
    )
    (clone / "train.py").write_text(
        "import pickle, sys\nimport numpy, torch\n"
        "words = dict(word.removeprefix('--').split('=') for word in sys.argv[2:])\n"
        "data = 'data/' + words['dataset'] + '/'\n"
        "ids = numpy.fromfile(data + 'train.bin', dtype=numpy.uint16)\n"
        "size = pickle.load(open(data + 'meta.pkl', 'rb'))['vocab_size']\n"
        "share = numpy.log(numpy.bincount(ids, minlength=size) + 1.0)\n"
        "model = {'_orig_mod.share': torch.tensor(share, dtype=torch.float32)}\n"
        "arguments = {'block_size': 32, 'vocab_size': size}\n"
        "torch.save({'model_args': arguments, 'model': model}, words['out_dir'] + '/ckpt.pt')\n"
    )
    bits = nanogpt(clone, run.folder, 1.0, False, tmp_path / "work")
    assert 3.0 < bits < 4.6  # the entropy of the letters of such text
    assert not list((clone / "data").iterdir())
    (clone / "train.py").write_text("")  # as one that is stopped before its first checkpoint
    assert nanogpt(clone, run.folder, 1.0, False, tmp_path / "work") == bits, "kept, and not trained again"
    assert nanogpt(clone, run.folder, 1.0, False, tmp_path / "other") is None
