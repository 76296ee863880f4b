"""A run's folder: what lies where, which checkpoint is which, and what a run keeps of its settings, origin and metrics.

Whatever needs a part of a run asks here. `find_bundle` names the bundle of a checkpoint, for
`fledge.bundle.load_bundle`. Names load when first used: the account of a recipe needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.runs.checkpoints import At, checkpoints, find_bundle
    from fledge.runs.metrics import read_metrics

__all__ = ["At", "checkpoints", "find_bundle", "read_metrics"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fledge.runs' has no attribute {name!r}")
    home = "metrics" if name == "read_metrics" else "checkpoints"
    return getattr(importlib.import_module(f"fledge.runs.{home}"), name)
