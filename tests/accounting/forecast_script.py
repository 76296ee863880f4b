"""Run under torchrun by test_forecast.py: two processes train a little, and say what they expect and what came."""

from __future__ import annotations

import sys
from pathlib import Path

from fledge.training import Setup, join_ranks, train
from tests.training.support import TextWindows, fresh_model, settings, tokenizer


def main(folder: Path) -> None:
    with join_ranks("cpu"):
        for parallel in ("ddp", "fsdp"):
            config = settings(training={"steps": 4, "parallel": parallel})
            train(Setup(config, fresh_model(config), tokenizer(), TextWindows(), None, folder / parallel))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
