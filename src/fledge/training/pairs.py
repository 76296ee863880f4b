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
ROWS = 1024


def require_pairs(config: RunConfig, vocabulary_size: int) -> None:
    """Refuse what cannot begin as a bigram model, before anything is counted."""
    model = config.model
    if model.architecture != "transformer" or model.norm_place != "pre":
        raise FledgeError(
            "training.start = pairs needs architecture = transformer with norm_place = pre, because only "
            "there a block with zero output leaves the embedding unchanged. Set training.start=random."
        )
    if model.tied:
        raise FledgeError(
            "training.start = pairs needs an untied head. Set model.tied=false, or training.start=random."
        )
    if vocabulary_size > MOST_IDS:
        raise FledgeError(
            f"training.start = pairs counts all pairs in a table, and a vocabulary of {vocabulary_size:,} is "
            f"too large for it: the limit is {MOST_IDS:,}. Set training.start=random."
        )


def start_from_pairs(model: Model, tokens: NDArray[np.integer], config: RunConfig) -> None:
    """Silence the blocks, and fit the embedding, the final norm and the head to the pairs in `tokens`."""
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
    fit_pairs(model.ln_final, fitted, targets_VV, weights_V)
    with torch.no_grad():
        for part, values in zip((*rows, *norm), fitted, strict=True):
            part.copy_(values)


def pair_targets(tokens: NDArray[np.integer], vocabulary_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The smoothed probability of each id after each id, and the share of the text that each id is."""
    counts = KneserNey(tokens, vocabulary_size, 2)
    pairs, single = counts.orders[1], counts.probabilities(np.arange(vocabulary_size)[:, None])
    backed_off = np.ones(vocabulary_size)
    backed_off[pairs.contexts] = pairs.discount * pairs.successors / pairs.totals
    totals = np.ones(vocabulary_size)
    totals[pairs.contexts] = pairs.totals
    table = np.multiply.outer(backed_off.astype(np.float32), single.astype(np.float32))
    first, second = np.divmod(pairs.grams, counts.base)
    table[first, second] += np.maximum(pairs.counts - pairs.discount, 0) / totals[first]
    share = np.bincount(tokens[:-1], minlength=vocabulary_size) / max(1, len(tokens) - 1)
    return torch.from_numpy(table).to(device), torch.from_numpy(share).float().to(device)


def fit_pairs(norm: torch.nn.Module, fitted: list[Tensor], targets_VV: Tensor, weights_V: Tensor) -> None:
    """Full passes over the table by Adam; changes `fitted` in place.

    The gradient of the scores is written down, probability less target: the table is large and this passes over it the
    fewest times. Only the norm is left to autograd.
    """
    optimizer = torch.optim.Adam(
        [{"params": fitted[:2], "lr": RATES[0]}, {"params": fitted[2:], "lr": RATES[1]}], betas=(0.9, 0.95)
    )
    embeddings_VD, head_VD, *norms = fitted
    names = [name for name, _ in norm.named_parameters()]
    for number in range(ROUNDS):
        for group, rate in zip(optimizer.param_groups, RATES, strict=True):
            group["lr"] = rate * (1 - number / ROUNDS)
        hidden_VD = torch.func.functional_call(norm, dict(zip(names, norms, strict=True)), (embeddings_VD,))
        pull_VD, head_VD.grad = torch.empty_like(hidden_VD), torch.zeros_like(head_VD)
        with torch.no_grad():
            for first in range(0, len(weights_V), ROWS):
                rows = slice(first, first + ROWS)
                wrong = torch.softmax(functional.linear(hidden_VD[rows], head_VD), dim=-1)
                wrong.sub_(targets_VV[rows]).mul_(weights_V[rows, None])
                head_VD.grad.addmm_(wrong.mT, hidden_VD[rows])
                torch.mm(wrong, head_VD, out=pull_VD[rows])
        hidden_VD.backward(pull_VD)  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
