"""Training: optimizers, schedules, the loop, distribution, metrics. The loop promises that no work is lost.

`train` takes a `Setup`: the settings, a model, its tokenizer, the `fledge.tokens.Windows` of the two splits
(`validation` may be None) and the run's folder, in which `metrics.csv`, `loss.svg`, `samples.txt` and
`checkpoints/step-XXXXXXXX/` appear. To go on with a run: `bundle = load_checkpoint(folder, at=None)`, then
`train(Setup(config, bundle.model, …, resume=bundle))`.
"""

from fledge.runs.branches import find_checkpoint, load_checkpoint
from fledge.runs.metrics import read_metrics
from fledge.training.loop import TrainingResult, train
from fledge.training.optimizers import SGD, AdamW, Muon, Optimizer, build_optimizer
from fledge.training.progress import Diverged
from fledge.training.ranks import Ranks, join_ranks
from fledge.training.schedules import schedule
from fledge.training.session import Setup
from fledge.training.stops import parse_duration

__all__ = [
    "SGD",
    "AdamW",
    "Diverged",
    "Muon",
    "Optimizer",
    "Ranks",
    "Setup",
    "TrainingResult",
    "build_optimizer",
    "find_checkpoint",
    "join_ranks",
    "load_checkpoint",
    "parse_duration",
    "read_metrics",
    "schedule",
    "train",
]
