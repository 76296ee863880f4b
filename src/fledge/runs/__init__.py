"""A run's folder: what lies where, which checkpoint is which, and what a run keeps of its settings, origin and metrics.

Whatever needs a part of a run asks here. `find_bundle` names the bundle of a checkpoint, for
`fledge.bundle.load_bundle`.
"""

from fledge.runs.checkpoints import At, checkpoints, find_bundle
from fledge.runs.metrics import read_metrics

__all__ = ["At", "checkpoints", "find_bundle", "read_metrics"]
