"""A first guess from counts: before the first step, a Transformer becomes a bigram model of its training text.

Pairs of neighbouring tokens are counted in a second, and training from random weights spends its first hundreds of
steps on learning little else. So the blocks begin silent (their outputs are zero), and embedding, final norm and head
are fitted to the smoothed counts: each row of the table of pairs teaches all its successors at once.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fledge.config import RunConfig
from fledge.errors import FledgeError
from fledge.evaluation.ngram import KneserNey
from fledge.model import Model
from fledge.model.transformer import Transformer
from fledge.training.device import choose_device, set_threads

MOST_IDS = 16_384
"The table of pairs is dense: at this vocabulary it takes 1 GiB."
MOST_TOKENS = 20_000_000
ROUNDS = 60
RATES = (0.1, 0.02)
"Peaks for the two matrices and for the norm; both fall to nothing."
ROWS = 2048


def require_pairs(config: RunConfig, vocabulary_size: int) -> None:
    """Refuse what cannot begin as a bigram model, before anything is counted."""
    model = config.model
    if model.architecture != "transformer" or model.norm_place != "pre":
        raise FledgeError(
            "training.start = pairs is for architecture = transformer with norm_place = pre: only there does a silent "
            "block leave the embedding as it is. Set training.start=random."
        )
    if model.tied:
        raise FledgeError(
            "training.start = pairs needs a head of its own: what follows a token is not what it is like. "
            "Set model.tied=false, or training.start=random."
        )
    if vocabulary_size > MOST_IDS:
        raise FledgeError(
            f"training.start = pairs counts into a table of all pairs, and a vocabulary of {vocabulary_size:,} is too "
            f"large for it: {MOST_IDS:,} is the most. Set training.start=random."
        )


def start_from_pairs(model: Model, tokens: NDArray[np.integer], config: RunConfig) -> float:
    """Fit the embedding, the final norm and the head to the pairs in `tokens`; the fitted loss in nats per token."""
    require_pairs(config, model.vocabulary_size)
    assert isinstance(model, Transformer)
    assert model.lm_head is not None
    device = choose_device(config.training.device)
    set_threads(config.training.threads)
    targets_VV, weights_V = pair_targets(tokens[:MOST_TOKENS], model.vocabulary_size, device)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(("output_proj.weight", "w2.weight")):
                weights.zero_()
    rows = [model.token_embeddings.used, model.lm_head.used]
    norm = list(model.ln_final.parameters())
    fitted = [part.detach().to(device).clone().requires_grad_() for part in (*rows, *norm)]
    loss = fit(model.ln_final, fitted, targets_VV, weights_V)
    with torch.no_grad():
        for part, values in zip((*rows, *norm), fitted, strict=True):
            part.copy_(values)
    return loss


def pair_targets(tokens: NDArray[np.integer], vocabulary_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The smoothed probability of each id after each id, and the share of the text that each id is."""
    counts = KneserNey(tokens, vocabulary_size, 2)
    table = np.empty((vocabulary_size, vocabulary_size), np.float32)
    successors = np.arange(vocabulary_size)
    step = max(1, (1 << 22) // vocabulary_size)
    for first in range(0, vocabulary_size, step):
        ids = np.arange(first, min(first + step, vocabulary_size))
        pairs = np.stack(np.broadcast_arrays(ids[:, None], successors), axis=-1).reshape(-1, 2)
        table[ids] = counts.probabilities(pairs).reshape(len(ids), -1)
    share = np.bincount(tokens[:-1], minlength=vocabulary_size) / max(1, len(tokens) - 1)
    return torch.from_numpy(table).to(device), torch.from_numpy(share).float().to(device)


def fit(norm: torch.nn.Module, fitted: list[Tensor], targets_VV: Tensor, weights_V: Tensor) -> float:
    """Full passes over the table by Adam, the rows in the order of the ids; changes `fitted` in place."""
    optimizer = torch.optim.Adam(
        [{"params": fitted[:2], "lr": RATES[0]}, {"params": fitted[2:], "lr": RATES[1]}], betas=(0.9, 0.95)
    )
    embeddings_VD, head_VD, *norms = fitted
    names = [name for name, _ in norm.named_parameters()]
    total = 0.0
    for number in range(ROUNDS):
        for group, rate in zip(optimizer.param_groups, RATES, strict=True):
            group["lr"] = rate * (1 - number / ROUNDS)
        total = 0.0
        for first in range(0, len(weights_V), ROWS):
            rows = slice(first, first + ROWS)
            hidden = torch.func.functional_call(norm, dict(zip(names, norms, strict=True)), (embeddings_VD[rows],))
            scores = functional.log_softmax(functional.linear(hidden, head_VD), dim=-1)
            loss = -(weights_V[rows] * (targets_VV[rows] * scores).sum(-1)).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach().item()
        optimizer.step()
        optimizer.zero_grad()
    return total
