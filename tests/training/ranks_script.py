"""Run under torchrun by test_ranks.py: replicated and sharded training, and a run handed from one layout to another."""

from __future__ import annotations

import sys
from pathlib import Path

from fledge.training import join_ranks
from tests.training.support import TextWindows, run, settings

CURVE = {"steps": 50, "log_every": 1, "save_every": 25, "evaluate_every": 25, "sample_every": 0}

LEVEL = {"name": "constant", "warmup_steps": 0}


def main(folder: Path) -> None:
    windows = TextWindows(16, padded=True)
    with join_ranks("cpu"):
        for parallel in ("ddp", "fsdp"):
            config = settings(training={**CURVE, "parallel": parallel, "micro_batch": 2})
            run(config, folder / parallel, windows=windows)
        config = settings(optimizer={"name": "muon"}, training={**CURVE, "steps": 4, "parallel": "fsdp"})
        run(config, folder / "muon", windows=windows)
        config = settings(schedule=LEVEL, training={**CURVE, "steps": 8, "parallel": "fsdp"})
        run(config, folder / "handed", resume=True, windows=windows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
