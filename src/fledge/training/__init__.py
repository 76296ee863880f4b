"""Training: optimizers, schedules, the loop, distribution, metrics. The loop promises that no work is lost.

    train(config, model, tokenizer, windows, validation, folder, *, resume=None, bytes_per_token=None,
          time_limit=None, profile=False, quiet=False, on_evaluation=None, leave=False) -> TrainingResult

`windows` and `validation` are `fledge.tokens.Windows` of the two splits (`validation` may be None), `folder` is the
run's (`metrics.csv`, `loss.svg`, `samples.txt` and `checkpoints/step-XXXXXXXX/` appear in it). To go on with a run:
`bundle = load_checkpoint(folder, at=None)`, then `train(config, bundle.model, …, resume=bundle)`. `bytes_per_token` of
the validation split (source bytes / tokens) turns its loss into bits per byte.
"""

from fledge.training.loop import TrainingResult, train
from fledge.training.metrics import read_metrics
from fledge.training.optimizers import SGD, AdamW, Muon, Optimizer, build_optimizer
from fledge.training.progress import Diverged
from fledge.training.ranks import Ranks, join_ranks
from fledge.training.schedules import schedule
from fledge.training.stops import parse_duration
from fledge.training.timeline import find_checkpoint, load_checkpoint

__all__ = [
    "SGD",
    "AdamW",
    "Diverged",
    "Muon",
    "Optimizer",
    "Ranks",
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
