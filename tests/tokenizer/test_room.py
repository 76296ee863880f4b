"""The room opens quickly: importing it loads neither torch nor the native core, nor anything heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import fledge.tokenizer

LOOK = """
import json, sys, time
started = time.process_time()
import fledge.tokenizer
seconds = time.process_time() - started
heavy = [name for name in ("torch", "matplotlib", "numpy", "fledge._core", "rich") if name in sys.modules]
tokenizer = fledge.tokenizer.WordTokenizer.train(["a word"])
tokenizer.decode(tokenizer.encode("words"))
later = [name for name in ("torch", "matplotlib", "fledge._core") if name in sys.modules]
print(json.dumps([seconds, heavy, later]))
"""


def test_importing_the_room_is_light() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, check=True, timeout=60)
    seconds, heavy, later = json.loads(done.stdout)
    assert seconds < 0.15
    assert heavy == []
    assert later == []


def test_every_public_name_is_there() -> None:
    for name in fledge.tokenizer.__all__:
        assert getattr(fledge.tokenizer, name).__name__ == name
    assert dir(fledge.tokenizer) == sorted(fledge.tokenizer.__all__)
