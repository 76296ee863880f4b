"""What the launches of kernels add to a step on a GPU, beyond the work in them: most of a small model's time.

Counted in profiles of compiled steps on an H200 (docs/gpu-speed.md); other architectures are taken for a Transformer.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from fledge.config.sizes import NEWTON_SCHULZ, RECURRENT_GATES

if TYPE_CHECKING:
    from fledge.accounting.ledger import Account

RECORDED, SINGLE = 2.4e-6, 35e-6
"Seconds a kernel: the least it takes in a CUDA graph, and what Python needs to launch it by itself."
GPU_MFU = 0.43
"Of a GPU's peak, that products and what lies between them reach in steps of many tokens: 38 to 50 % (measured)."
BESIDE, OPTIMIZER = 20, 10
LAYER, QK_NORM, BDH_LAYER = 38, 9, 85
RECURRENT_LAYER, RECURRENT_TOKEN = 58, 3  # a token waits for the one before: it costs as much as this many kernels
SHAPES = 4  # of the matrices in a layer, which Muon takes in a batch each
PRODUCTS = 5  # kernels of one Newton–Schulz step


def kernels(account: Account) -> int:
    """How many kernels a step launches, or what else takes as long as so many."""
    config = account.config
    if config.architecture in RECURRENT_GATES:
        layer = RECURRENT_LAYER + RECURRENT_TOKEN * account.context_length
    elif config.architecture == "bdh":
        layer = BDH_LAYER
    else:
        layer = LAYER + QK_NORM * config.qk_norm
    update = OPTIMIZER + (SHAPES * (len(NEWTON_SCHULZ) * PRODUCTS + 7) if account.optimizer == "muon" else 0)
    return ceil(account.windows / account.batch) * (BESIDE + config.layers * layer) + update


def on_gpu(account: Account, products: float, recorded: bool) -> float:
    """Seconds of a step whose work takes so many: with those of its launches, which Python may be too slow for."""
    count = kernels(account)
    working = products + count * RECORDED
    return working if recorded else max(working, count * SINGLE)
