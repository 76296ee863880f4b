"""A fixed recipe as a yardstick: a small GPT-2, as nanoGPT's README trains it on a machine without a GPU.

It is trained on the run's own tokens, in a folder of its own inside the run's, and measured on the same held-out part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.config import RunConfig, override_config
from fledge.reports.finished import result_of
from fledge.runs.checkpoints import checkpoints

if TYPE_CHECKING:
    from fledge.run import Run

REFERENCE = "reference"
"The name of its folder, and of its row in a report."
SETTINGS = (
    *("model.layers=4", "model.width=128", "model.heads=4", "model.norm=layer", "model.position=learned"),
    *("model.feed_forward=gelu", "model.tied=true", "model.initialisation=gpt2", "tokens.context_length=64"),
    *("optimizer.name=adamw", "optimizer.learning_rate=1e-3", "optimizer.beta2=0.99"),
    *("optimizer.weight_decay=0.1", "optimizer.embedding_decay=0.1", "schedule.warmup_steps=100"),
    *("training.steps=2000", "training.batch_size=12", "training.evaluate_windows=240", "training.sample_every=0"),
)
MEANING = (
    "The reference is a fixed recipe, trained on the same tokens: a GPT-2 of 4 layers of 128, for 2,000 steps of 12 "
    "windows of 64 tokens with AdamW, as nanoGPT's README trains a small model without a GPU."
)


def reference(run: Run, train: bool) -> Run | None:
    """The reference of a run: with `train`, trained now or to its end; else as it was trained before, if it was."""
    from fledge.run import Run

    own = run.config
    places = [f"training.device={own.training.device}", f"training.threads={own.training.threads or 'none'}"]
    config = override_config(RunConfig(name=f"{own.name}-{REFERENCE}", corpus=own.corpus), [*SETTINGS, *places])
    tokens = config.tokens.model_copy(update={"store": str(run.tokens.folder.absolute())})
    config = config.model_copy(update={"tokens": tokens})
    found = Run(config, run.folder / REFERENCE)
    finished = bool(checkpoints(found.folder)) and result_of(found).stopped is None
    if train and not finished:
        found.begun()
        if found.train().stopped:
            raise KeyboardInterrupt  # the same command goes on
    return found if train or finished else None
