"""What is minimised: a micro-batch in, the sum of its losses out; against the text, and against other models.

All that is compiled or sharded is in here. A run may name teachers, whose averaged prediction is a second target.
A token of text says what came next once; a teacher says for every token how likely it was. The average of several
teachers is better than each of them, and a student that learns it keeps most of that in one model. Probabilities are
averaged, not logits. Teachers see the same windows as the student, and are computed as it trains: nothing is stored, so
a run with teachers goes on after a kill like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge.config import RunConfig
from fledge.errors import FledgeError
from fledge.loss import head_loss
from fledge.tokens.batch import MASKED

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer
    from fledge.training.device import Precision

PLAIN = ("stream",)
"Policies of windows whose documents a model need not know."
ROWS = 1 << 25
"Logits at once: tokens by vocabulary. More are gone through in parts, of which only one is held."


class Objective(nn.Module):
    """The model with its loss. In eval mode the loss is the plain cross-entropy, whatever training adds to it."""

    def __init__(
        self, model: Model, precision: Precision, device: torch.device, smoothing: float, z_loss: float
    ) -> None:
        super().__init__()
        self.model = model
        self.precision, self.device = precision, device
        self.smoothing, self.z_loss = smoothing, z_loss
        self.teachers: Teachers | None = None

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor, plan: Any = None, state: Any = None) -> tuple[Tensor, Any]:
        """The sum over unmasked targets, and the state to carry on where one was given."""
        smoothing, z_loss = (self.smoothing, self.z_loss) if self.training else (0.0, 0.0)
        with self.precision.autocast(self.device):
            hidden_BTD, state = self.model.hidden(inputs_BT, plan, state)
            if self.training and self.teachers is not None:
                return self.teachers.loss(self.model, hidden_BTD, inputs_BT, targets_BT, smoothing, z_loss), state
            total, _ = head_loss(self.model, hidden_BTD, targets_BT, label_smoothing=smoothing, z_loss=z_loss)
        return total, state


class Teachers:
    """Models whose averaged probabilities are targets. They are no part of the student, and never change."""

    def __init__(self, models: Sequence[Model], share: float, precision: Precision, device: torch.device) -> None:
        self.models = [model.to(device).eval().requires_grad_(False) for model in models]
        self.share, self.precision, self.device = share, precision, device

    @torch.no_grad()
    def hidden(self, inputs_BT: Tensor) -> list[Tensor]:
        with self.precision.autocast(self.device):
            return [model.hidden(inputs_BT)[0].flatten(0, -2) for model in self.models]

    @torch.no_grad()
    def probabilities(self, hidden: Sequence[Tensor]) -> Tensor:
        """The average of the teachers' probabilities, from some rows of their hidden states."""
        total: Tensor | None = None
        for model, rows in zip(self.models, hidden, strict=True):
            with self.precision.autocast(self.device):
                logits = model.head(rows)
            each = torch.softmax(logits.float(), dim=-1)
            total = each if total is None else total.add_(each)
        assert total is not None
        return total.div_(len(self.models))

    def loss(
        self, student: Model, hidden_BTD: Tensor, inputs_BT: Tensor, targets_BT: Tensor, smoothing: float, z_loss: float
    ) -> Tensor:
        """The summed loss of the unmasked targets: text and teachers in their shares."""
        hidden, targets = hidden_BTD.flatten(0, -2), targets_BT.flatten()
        known = self.hidden(inputs_BT)
        total = torch.zeros((), device=hidden.device)
        step = max(1, ROWS // student.vocabulary_size)
        for start in range(0, hidden.shape[0], step):
            here = slice(start, start + step)
            logits, real = student.head(hidden[here]).float(), targets[here]
            kept = (real != MASKED).float()
            # One distribution of text and teachers, so that the logits are normalised once.
            wanted = self.probabilities([rows[here] for rows in known]).mul_(self.share)
            wanted += (1 - self.share) * smoothing / logits.shape[-1]
            mine = torch.full_like(kept, (1 - self.share) * (1 - smoothing))
            wanted.scatter_add_(1, real.clamp(min=0)[:, None], mine[:, None])
            total = total + functional.cross_entropy(logits, wanted, reduction="none") @ kept
            if z_loss:
                total = total + (1 - self.share) * z_loss * (torch.logsumexp(logits, -1).square() @ kept)
        return total


def open_teachers(
    config: RunConfig, tokenizer: Tokenizer, precision: Precision, device: torch.device
) -> Teachers | None:
    """The teachers that a run names, checked against it; None where it names none."""
    from fledge.bundle import load_bundle
    from fledge.runs import find_bundle

    settings = config.training
    if not settings.teachers:
        return None
    bundles = [load_bundle(find_bundle(teacher)) for teacher in settings.teachers]
    require_teachers(config, tokenizer, bundles)
    return Teachers([bundle.model for bundle in bundles], settings.teachers_share, precision, device)


def require_teachers(config: RunConfig, tokenizer: Tokenizer, bundles: Sequence[Bundle]) -> None:
    """Refuse teachers that this run can't learn from, each with the way out."""
    length = config.tokens.context_length
    if config.tokens.policy not in PLAIN:
        raise FledgeError(
            f"tokens.policy = {config.tokens.policy} can't be used with teachers, which read windows without "
            "document boundaries. Set tokens.policy=stream."
        )
    for bundle in bundles:
        if bundle.tokenizer.fingerprint != tokenizer.fingerprint:
            raise FledgeError(
                f"The teacher {bundle.source} has another tokenizer than the student "
                f"({bundle.tokenizer.vocab_size:,} and {tokenizer.vocab_size:,} ids), so its predictions are "
                "of other tokens. Use teachers that share one tokenizer; fledge distill gives it to the "
                "student."
            )
        if bundle.model.context_length < length:
            raise FledgeError(
                f"The teacher {bundle.source} has a context of {bundle.model.context_length:,} tokens, and "
                f"the student's windows have {length:,}. Set "
                f"tokens.context_length={bundle.model.context_length} or less."
            )
