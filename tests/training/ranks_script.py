"""Run under torchrun by test_ranks.py: replicated and sharded training, and a run handed from one layout to another."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from fledge.config import RunConfig
from fledge.training import Ranks, join_ranks, stepper
from tests.training.support import TextWindows, run, settings
from tests.training.test_loop import poison

CURVE = {
    "steps": 50,
    "log_every": 1,
    "save_every": 25,
    "evaluate_every": 25,
    "sample_every": 0,
    "average": 0.3,
    "norms": True,
}

TAKEN = {"steps": 8, "log_every": 1, "save_every": 4, "sample_every": 0}

LEVEL = {"name": "constant", "warmup_steps": 0}


def main(folder: Path) -> None:
    windows = TextWindows(16, padded=True)
    with join_ranks("cpu") as ranks:
        for parallel in ("ddp", "fsdp"):
            config = settings(training={**CURVE, "parallel": parallel, "micro_batch": 2})
            run(config, folder / parallel, windows=windows)
        config = settings(optimizer={"name": "muon"}, training={**CURVE, "steps": 4, "parallel": "fsdp"})
        run(config, folder / "muon", windows=windows)
        config = settings(schedule=LEVEL, training={**CURVE, "steps": 8, "parallel": "fsdp"})
        run(config, folder / "handed", resume=True, windows=windows)
        uneven_memory(folder / "uneven", ranks)
        diverge_after_a_takeover(folder / "taken")


def uneven_memory(folder: Path, ranks: Ranks) -> None:
    """One process has room for fewer windows than the other."""
    with pytest.MonkeyPatch.context() as patch:

        def room(config: RunConfig, vocabulary_size: int, share: int, *others: Any) -> int:
            assert others[-1] == ranks.world, "the weights are spread over the processes"
            return share - ranks.rank

        patch.setattr(stepper, "largest_micro_batch", room)
        run(settings(training={**CURVE, "steps": 2, "evaluate_every": 2, "parallel": "fsdp"}), folder)


def diverge_after_a_takeover(folder: Path) -> None:
    """The main line has 8 steps. The branch from its step 4 takes over at step 8, and step 14 diverges."""
    with pytest.MonkeyPatch.context() as patch:
        poison(patch, math.nan, 105)
        config = settings(training={**TAKEN, "steps": 16, "on_divergence": "skip"})
        result = run(config, folder, resume=True, at=4)
        assert result.checkpoint.parent.parent == folder, "every process knows where the run is now"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
